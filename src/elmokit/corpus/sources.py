"""Text files become blocks of whole lines, and a block becomes sentences.

In come .txt, .gz, .xz, .zst and .parquet files: one sentence a line; a blank line ends a document, and so does the end
of a file or of a row of a parquet file. Out come bytes, block by block, so that one process can read while others work;
`sentences` turns them into tokens there.
"""

from __future__ import annotations

import glob
import gzip
import io
import logging
import lzma
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from elmokit.text import Tokenizer

Paths = str | Path | Sequence[str | Path]
Tokenized = bool | Literal["characters"]
"""Whether words stand between spaces already; or each character is a token."""

Progress = Callable[[int, int], None]
"""Called now and then with the bytes of the text files that have been read, and the bytes that there are."""

BLOCK_BYTES = 1 << 23  # decompressed text that one process takes at a time

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Block:
    """Some whole lines of a file."""

    file: Path
    begins_file: bool
    content: bytes


def find_files(paths: Paths) -> list[Path]:
    """The files that paths and globs name, in their order; the matches of a glob in the order of their names."""
    files: list[Path] = []
    for path in [paths] if isinstance(paths, str | Path) else paths:
        if Path(path).is_dir():
            raise ValueError(f"{path} is a folder: name its files, as in {Path(path) / '*.txt'}")
        found = [str(path)] if Path(path).is_file() else sorted(glob.glob(str(path), recursive=True))
        if not found:
            raise ValueError(f"{path}: no such file, and no file matches it as a glob")
        files += (Path(name) for name in found if not Path(name).is_dir())
    if not files:
        raise ValueError("no text files are given")
    return files


def read_blocks(files: list[Path], progress: Progress | None) -> Iterator[Block]:
    """The blocks of all files, in order. What a block holds depends on its file and BLOCK_BYTES alone."""
    done, total = 0, sum(file.stat().st_size for file in files)
    for file in files:
        begins, parts = True, [b""]
        for piece, place in _read_pieces(file):
            cut = piece.rfind(b"\n") + 1
            if cut and sum(map(len, parts)) + len(piece) >= BLOCK_BYTES:
                yield Block(file, begins, _without_mark(b"".join([*parts, piece[:cut]]), begins))
                begins, parts = False, [piece[cut:]]
            else:
                parts.append(piece)
            if progress:
                progress(done + place, total)
        if last := _without_mark(b"".join(parts), begins):
            yield Block(file, begins, last)
        done += file.stat().st_size


def _without_mark(content: bytes, begins_file: bool) -> bytes:
    return content.removeprefix(b"\xef\xbb\xbf") if begins_file else content  # the byte-order mark of some editors


def sentences(content: bytes, *, tokenized: Tokenized) -> tuple[Iterator[list[str]], int]:
    """(the tokens of each line, the number of lines that hold bytes which are not UTF-8 and become U+FFFD).

    A line without tokens is a blank one.
    """
    content = content.removesuffix(b"\n")
    num_replaced = 0
    try:
        text = content.decode()
    except UnicodeDecodeError:
        text = content.decode(errors="replace")
        num_replaced = sum(not _is_utf8(line) for line in content.split(b"\n"))
    # Not splitlines: it also splits at characters that stand inside lines, as U+2028.
    return map(tokenizer_of(tokenized), text.split("\n")), num_replaced


def tokenizer_of(tokenized: Tokenized) -> Tokenizer:
    """The tokenizer that `tokenized` means; a model trained on the text keeps it."""
    return Tokenizer("characters" if tokenized == "characters" else "spaces" if tokenized else "treebank")


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def report_replaced(num_lines: int) -> None:
    """Log how many lines were not UTF-8, if any."""
    if num_lines:
        logger.warning("%d lines hold bytes that are not UTF-8; the bytes were replaced by U+FFFD", num_lines)


def _read_pieces(file: Path) -> Iterator[tuple[bytes, int]]:
    """Yield (piece of the decompressed text, bytes of the file read so far)."""
    kind = file.suffix.lower()
    if kind == ".parquet":
        yield from _read_parquet(file)
        return
    open_text: Any = {".gz": gzip.open, ".xz": lzma.open, ".zst": _open_zst}.get(kind)
    with open(file, "rb") as raw:
        text: IO[bytes] = open_text(raw) if open_text else raw
        try:
            while piece := text.read(BLOCK_BYTES):
                yield piece, raw.tell()
        except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
            raise ValueError(f"{file} is damaged or cut off: {error}") from error


def _open_zst(raw: IO[bytes]) -> io.BufferedReader:
    return io.BufferedReader(_Frames(raw, _import("zstandard", raw.name, "train")))


class _Frames(io.RawIOBase):
    """The text of a .zst file of any number of frames; zstandard's own reader is silent where a file is cut off."""

    def __init__(self, raw: IO[bytes], zstandard: Any) -> None:
        self._raw, self._zstandard = raw, zstandard
        self._frame: Any = None  # the frame that has begun and not ended
        self._text = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._text:
            piece = self._raw.read(1 << 17)
            if not piece:
                if self._frame:
                    raise EOFError("the last frame has no end")
                return 0
            while piece:
                self._frame = self._frame or self._zstandard.ZstdDecompressor().decompressobj()
                try:
                    self._text += self._frame.decompress(piece)
                except self._zstandard.ZstdError as error:
                    raise EOFError(error) from error
                piece = self._frame.unused_data
                if self._frame.eof:
                    self._frame = None
        size = min(len(buffer), len(self._text))
        buffer[:size], self._text = self._text[:size], self._text[size:]
        return size


def _read_parquet(file: Path) -> Iterator[tuple[bytes, int]]:
    arrow = _import("pyarrow", file, "parquet")
    parquet = _import("pyarrow.parquet", file, "parquet")
    try:
        table = parquet.ParquetFile(file)
    except arrow.ArrowInvalid as error:
        raise ValueError(f"{file} is not a parquet file: {error}") from error
    with table:
        columns = {field.name: field.type for field in table.schema_arrow}
        strings = [name for name, kind in columns.items() if kind in (arrow.string(), arrow.large_string())]
        if "text" not in strings and len(strings) != 1:
            listed = ", ".join(f"{name} ({kind})" for name, kind in columns.items())
            raise ValueError(f"{file} needs a string column 'text', or one string column alone; it has {listed}")
        column = "text" if "text" in strings else strings[0]
        num_rows, size = 0, file.stat().st_size
        for batch in table.iter_batches(batch_size=1024, columns=[column]):
            num_rows += batch.num_rows
            # As bytes: text that is not UTF-8 is then replaced and counted as in other files.
            rows = batch.column(0).cast(arrow.large_binary()).to_pylist()
            yield b"".join(row + b"\n\n" for row in rows if row), size * num_rows // table.metadata.num_rows


def _import(module: str, file: str | Path, extra: str) -> Any:
    try:
        return __import__(module, fromlist=["_"])
    except ImportError as error:
        raise ImportError(f'{file} needs {module}: pip install "elmokit[{extra}]"') from error
