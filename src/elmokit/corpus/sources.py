"""Text files as blocks of lines, and blocks as sentences.

Input: .txt, .gz, .xz, .zst and .parquet files with one sentence per line.  A document ends at a blank line, at the end
of a file and at the end of a row of a parquet file.  Output: blocks of bytes, so that one process reads
while others work; `sentences` splits a block into tokens.
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

from elmokit.arguments import check_paths
from elmokit.extras import require
from elmokit.progress import format_count
from elmokit.text import Tokenizer, TokenizerName

Paths = str | Path | Sequence[str | Path]
Tokenized = bool | Literal["characters", "han"]
"""How a line is split. False: by the Penn Treebank rules. True: at spaces. "characters": into single characters. "han":
into Han characters and other words, for Chinese."""

Progress = Callable[[int, int], None]
"""Called with the number of bytes of the text files read so far, and their total size."""

BLOCK_BYTES = 1 << 23  # size of a block of decompressed text

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Block:
    """Complete lines of a file."""

    file: Path
    begins_file: bool
    content: bytes


def find_files(paths: Paths) -> list[Path]:
    """The files of paths and globs, in order; the matches of a glob are sorted by name.

    Args:
        paths: One or more paths or globs.

    Raises:
        ValueError: If a path is a folder, or there is no such file.
    """
    files: list[Path] = []
    for path in check_paths("paths", paths):
        if Path(path).is_dir():
            raise ValueError(f"{path} is a folder: name its files, as in {Path(path) / '*.txt'}")
        names = [str(path)] if Path(path).is_file() else sorted(glob.glob(str(path), recursive=True))
        if not names:
            raise ValueError(f"{path}: no such file, and no file matches it as a glob")
        files += (Path(name) for name in names if not Path(name).is_dir())
    if not files:
        raise ValueError("there are no text files: name at least one")
    return files


def read_blocks(files: list[Path], progress: Progress | None) -> Iterator[Block]:
    """Read the blocks of all files, in order. The content of a block depends on its file and BLOCK_BYTES only.

    Args:
        files: Text files.
        progress: Called after each piece.

    Raises:
        ValueError: If a file is damaged or incomplete.
        ImportError: If a package to read a file is missing.
    """
    check_packages(files)
    done, total = 0, sum(file.stat().st_size for file in files)
    for file in files:
        begins, parts = True, [b""]
        for piece, num_read in _read_pieces(file):
            cut = piece.rfind(b"\n") + 1
            if cut and sum(map(len, parts)) + len(piece) >= BLOCK_BYTES:
                yield Block(file, begins, _without_byte_order_mark(b"".join([*parts, piece[:cut]]), begins))
                begins, parts = False, [piece[cut:]]
            else:
                parts.append(piece)
            if progress:
                progress(done + num_read, total)
        if last := _without_byte_order_mark(b"".join(parts), begins):
            yield Block(file, begins, last)
        done += file.stat().st_size


def check_packages(files: list[Path]) -> None:
    """Import the packages that read these files, before any work is done.

    Args:
        files: Text files.

    Raises:
        ImportError: If a package is missing.
    """
    packages = {".zst": ("zstandard", "train"), ".parquet": ("pyarrow", "parquet")}
    for file in files:
        if package := packages.get(file.suffix.lower()):
            try:
                require(package[0], extra=package[1])
            except ImportError as error:
                raise ImportError(f"{file}: {error}") from error


def _without_byte_order_mark(content: bytes, begins_file: bool) -> bytes:
    return content.removeprefix(b"\xef\xbb\xbf") if begins_file else content


def sentences(content: bytes, *, tokenized: Tokenized) -> tuple[Iterator[list[str]], int]:
    """Split a block into sentences.

    Args:
        content: Complete lines.
        tokenized: How a line is split into tokens.

    Returns:
        The tokens of each line (none for a blank line), and the number of lines with bytes that are not UTF-8, which
        become U+FFFD.
    """
    content = content.removesuffix(b"\n")
    num_replaced = 0
    try:
        text = content.decode()
    except UnicodeDecodeError:
        text = content.decode(errors="replace")
        num_replaced = sum(not _is_utf8(line) for line in content.split(b"\n"))
    # Not splitlines: it also splits at characters inside lines, such as U+2028.
    return map(tokenizer_of(tokenized), text.split("\n")), num_replaced


def tokenizer_of(tokenized: Tokenized) -> Tokenizer:
    """The tokenizer that a value of `tokenized` means. A model that is trained on the text records its name."""
    if isinstance(tokenized, str):
        return Tokenizer(tokenized)
    return Tokenizer("spaces" if tokenized else "treebank")


def tokenized_of(tokenizer: TokenizerName) -> Tokenized:
    """The value of `tokenized` that means this tokenizer: the inverse of `tokenizer_of`."""
    return tokenizer if tokenizer in ("characters", "han") else tokenizer == "spaces"


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def report_replaced(num_lines: int) -> None:
    """Log the number of lines that were not UTF-8, if there are any."""
    if num_lines:
        lines = format_count(num_lines, "line has", "lines have")
        logger.warning("%s bytes that are not UTF-8; the bytes were replaced by U+FFFD", lines)


def _read_pieces(file: Path) -> Iterator[tuple[bytes, int]]:
    """Yield (piece of the decompressed text, number of bytes of the file read so far)."""
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
    return io.BufferedReader(_ZstdReader(raw, require("zstandard", extra="train")))


class _ZstdReader(io.RawIOBase):
    """Reads a .zst file of any number of frames; zstandard's own reader does not notice an incomplete file."""

    def __init__(self, raw: IO[bytes], zstandard: Any) -> None:
        self._raw, self._zstandard = raw, zstandard
        self._frame: Any = None  # the frame that is being read
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
    arrow, parquet = require("pyarrow", extra="parquet"), require("pyarrow.parquet", extra="parquet")
    try:
        table = parquet.ParquetFile(file)
    except arrow.ArrowInvalid as error:
        raise ValueError(f"{file} is not a parquet file: {error}") from error
    with table:
        columns = {field.name: field.type for field in table.schema_arrow}
        strings = [name for name, kind in columns.items() if kind in (arrow.string(), arrow.large_string())]
        if "text" not in strings and len(strings) != 1:
            listed = ", ".join(f"{name} ({kind})" for name, kind in columns.items())
            raise ValueError(f"{file} needs a string column 'text', or a single string column; it has {listed}")
        column = "text" if "text" in strings else strings[0]
        num_rows, size = 0, file.stat().st_size
        for batch in table.iter_batches(batch_size=1024, columns=[column]):
            num_rows += batch.num_rows
            # As bytes: text that is not UTF-8 is then replaced and counted as in other files.
            rows = batch.column(0).cast(arrow.large_binary()).to_pylist()
            yield b"".join(row + b"\n\n" for row in rows if row), size * num_rows // table.metadata.num_rows
