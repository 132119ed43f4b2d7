"""Vectors of many sentences become one file, in bounded memory, and a run that was stopped goes on.

Enters: an `ELMo`, and lines of text as they come.  Leaves: a file with one entry for each line, blank ones too:

    hdf5         AllenNLP's layout: datasets "0", "1", … by line, and `sentence_to_index`, a JSON string of shape (1,)
    npz          arrays "0", "1", …
    safetensors  tensors "0", "1", …
    parquet      rows of line (int64), tokens (list<string>), vectors (nested lists in the shape of the array)

An array is (T, 2P), or (L+1, T, 2P) of all layers.  While a run lasts, OUT.partial holds what is done: job.json says
what was asked for, and each part-N.npz holds a run of lines with their vectors, there whole or not at all.  A part is
taken over only where its lines are still the lines of the input, so that nothing is lost or doubled.  The file is made
from the parts at the end and takes its name in one step; until then the parts need as much room as the file itself.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from elmokit.files import replacing, sync_folder, write_json
from elmokit.inference.views import Layers
from elmokit.model import ELMo
from elmokit.storage.hdf5 import writing_hdf5
from elmokit.text import tokenize

Format = Literal["hdf5", "npz", "parquet", "safetensors"]
SUFFIXES: dict[str, Format] = {
    ".hdf5": "hdf5",
    ".h5": "hdf5",
    ".npz": "npz",
    ".parquet": "parquet",
    ".safetensors": "safetensors",
}

PART_LINES = 4096
PART_BYTES = 1 << 28  # vectors of a part in float32; a line that is longer by itself is a part by itself
SAFETENSORS_HEADER_BYTES = 100_000_000  # its readers refuse more


@dataclass(frozen=True)
class VectorFile:
    """The file that is asked for."""

    path: Path
    format: Format
    layers: Layers = "average"
    dtype: Literal["float32", "float16"] = "float32"
    gzip: bool = False
    tokenized: bool = False
    """Tokens are what stands between spaces; else lines are tokenized."""
    forget_sentences: bool = False
    """HDF5: leave `sentence_to_index` out."""
    use_sentence_keys: bool = False
    """HDF5: name a dataset by its sentence."""

    def __post_init__(self) -> None:
        if self.gzip and self.format == "safetensors":
            raise ValueError(f"{self.path}: safetensors files are not compressed; leave gzip out, or write hdf5")
        if self.format != "hdf5" and (self.forget_sentences or self.use_sentence_keys):
            raise ValueError(f"{self.path}: sentence keys are a matter of hdf5 files, this is {self.format}")
        if self.format == "parquet":
            _import_parquet()  # before hours of work, not after them

    def split(self, line: str) -> list[str]:
        """The tokens of a line."""
        return line.split() if self.tokenized else tokenize(line)


@dataclass(frozen=True)
class Written:
    """What a run did."""

    num_sentences: int
    num_tokens: int
    num_resumed: int
    """Sentences that an interrupted run before this one had done."""


def format_of(path: Path) -> Format:
    """The format that a file's suffix means."""
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"{path}: its suffix names no format; end it in {', '.join(SUFFIXES)}, or name a format")
    return SUFFIXES[path.suffix.lower()]


def read_lines(file: Iterable[bytes], name: str) -> Iterator[str]:
    """The lines of a UTF-8 text, stripped; a line ends at a line feed and nowhere else."""
    for number, line in enumerate(file, 1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")  # some editors begin a file with a mark
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{name}: line {number} is not UTF-8 at byte {error.start + 1}: convert the file, as in "
                "iconv -f latin1 -t utf8"
            ) from None
        yield text.strip()


def write_vectors(
    model: ELMo, lines: Iterable[str], file: VectorFile, *, batch_size: int | None = None, overwrite: bool = False
) -> Written:
    """Embed every line and write the file; the same call goes on where an earlier one was stopped.

    A file that is there is replaced.  Parts of a run with other settings or other text are a ValueError; with
    `overwrite` they are dropped, except those that this run would make again just so.
    """
    if file.use_sentence_keys:
        lines = _check_keys(lines)
    parts = _Parts(file, model, overwrite)
    try:
        done = _embed_parts(model, lines, file, parts, batch_size)
    except BaseException:
        if not any(parts.folder.glob("part-*")):  # nothing was done: leave nothing behind
            shutil.rmtree(parts.folder)
        raise
    with _naming(file.path):
        whole = parts.folder / "whole"
        with replacing(whole) as target:
            _WRITERS[file.format](target, parts, file)
        os.replace(whole, file.path)
        sync_folder(file.path.parent)
        shutil.rmtree(parts.folder)
    return done


def _embed_parts(model: ELMo, lines: Iterable[str], file: VectorFile, parts: _Parts, batch_size: int | None) -> Written:
    num_done = num_resumed = num_tokens = 0
    for texts, tokens in _chunks(lines, file, model):
        if parts.take_over(texts, num_done):
            num_resumed += len(texts)
        else:
            vectors = model.embed(tokens, layers=file.layers, batch_size=batch_size)
            with _naming(parts.folder):
                parts.add(texts, tokens, vectors, num_done)
        num_done += len(texts)
        num_tokens += sum(map(len, tokens))
    parts.end(num_done)
    return Written(num_done, num_tokens, num_resumed)


def _chunks(lines: Iterable[str], file: VectorFile, model: ELMo) -> Iterator[tuple[list[str], list[list[str]]]]:
    """(lines, their tokens), cut at places that depend on the text and the shape of the vectors alone."""
    num_planes = model.config.num_layers + 1 if file.layers == "all" else 1
    most_tokens = PART_BYTES // (num_planes * 2 * model.config.projection_dim * 4)
    texts: list[str] = []
    tokens: list[list[str]] = []
    num_tokens = 0
    for text in lines:
        words = file.split(text)
        if texts and (len(texts) == PART_LINES or num_tokens + len(words) > most_tokens):
            yield texts, tokens
            texts, tokens, num_tokens = [], [], 0
        texts.append(text)
        tokens.append(words)
        num_tokens += len(words)
    if texts:
        yield texts, tokens


# ---- what is done so far ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Part:
    first: int
    """The number of its first line, counted from 0."""
    texts: list[str]
    lengths: npt.NDArray[np.int64]
    vectors: npt.NDArray[Any]
    """(T, 2P) or (L+1, T, 2P) of all its lines, one after the other."""

    def sentences(self) -> Iterator[tuple[int, str, npt.NDArray[Any]]]:
        """(line number, line, vectors)."""
        ends = np.cumsum(self.lengths).tolist()
        for number, (text, length, end) in enumerate(zip(self.texts, self.lengths.tolist(), ends, strict=True)):
            yield self.first + number, text, self.vectors[..., end - length : end, :]


class _Parts:
    """The folder OUT.partial."""

    def __init__(self, file: VectorFile, model: ELMo, overwrite: bool) -> None:
        self.file, self.overwrite = file, overwrite
        self.folder = file.path.with_name(f"{file.path.name}.partial")
        self.count = 0
        self.shape = (model.config.num_layers + 1,) if file.layers == "all" else ()
        self.width = 2 * model.config.projection_dim
        job = {
            "layers": file.layers,
            "dtype": file.dtype,
            "tokenized": file.tokenized,
            "model": model.digest(),
        }
        self.folder.mkdir(exist_ok=True)
        for left_by_a_killed_run in self.folder.glob(".*.tmp"):
            left_by_a_killed_run.unlink()
        begun = self._read_job()
        if begun is None:
            self._drop()
        for key, value in job.items():
            if begun is not None and begun.get(key) != value:
                self._refuse(f"was begun with {key} {begun.get(key)}, and now it is {value}")
        if begun != job:
            write_json(self.folder / "job.json", job)

    def _read_job(self) -> dict[str, Any] | None:
        path = self.folder / "job.json"
        if not path.exists():
            return None
        try:
            job = json.loads(path.read_bytes())
        except ValueError:
            job = None
        if not isinstance(job, dict):
            raise ValueError(f"{path} is damaged: remove {self.folder} to start over")
        return job

    def path(self, number: int) -> Path:
        return self.folder / f"part-{number:08d}.npz"

    def take_over(self, texts: list[str], first: int) -> bool:
        """Whether the next part is there and holds these lines."""
        path = self.path(self.count)
        if not path.exists():
            return False
        held = self.read(self.count, first, with_vectors=False).texts
        if held != texts:
            same = next((n for n, pair in enumerate(zip(held, texts, strict=False)) if pair[0] != pair[1]), None)
            line = first + (min(len(held), len(texts)) if same is None else same) + 1
            self._refuse(f"was begun with other text: line {line} differs")
            return False
        self.count += 1
        return True

    def end(self, num_lines: int) -> None:
        """There are no more lines, so there shall be no more parts."""
        if self.path(self.count).exists():
            self._refuse(f"was begun with a longer text; now it ends after line {num_lines}")

    def _refuse(self, difference: str) -> None:
        """Drop the parts that do not fit, where that is allowed."""
        if not self.overwrite:
            raise ValueError(
                f"{self.folder} {difference}: run as it was begun to go on, or start over with --overwrite"
            )
        self._drop()

    def _drop(self) -> None:
        for path in self.folder.glob("part-*.npz"):
            if path >= self.path(self.count):
                path.unlink()

    def add(self, texts: list[str], tokens: list[list[str]], vectors: list[npt.NDArray[Any]], first: int) -> None:
        lengths = np.array([len(words) for words in tokens], np.int64)
        joined = np.empty((*self.shape, int(lengths.sum()), self.width), self.file.dtype)
        part = _Part(first, texts, lengths, joined)
        for (number, _, place), values in zip(part.sentences(), vectors, strict=True):
            try:
                with np.errstate(over="raise"):
                    place[...] = values
            except FloatingPointError:
                raise ValueError(f"line {number + 1} has values beyond {self.file.dtype}: write float32") from None
        with replacing(self.path(self.count)) as target, open(target, "wb") as file:
            text = np.frombuffer("\n".join(texts).encode(), np.uint8)
            np.savez(file, text=text, lengths=lengths, vectors=joined)
        self.count += 1

    def read(self, number: int, first: int, *, with_vectors: bool = True) -> _Part:
        path = self.path(number)
        try:
            with open(path, "rb") as file, np.load(file) as arrays:
                texts = arrays["text"].tobytes().decode().split("\n")
                vectors = arrays["vectors"] if with_vectors else np.empty(0)
                return _Part(first, texts, arrays["lengths"], vectors)
        except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(f"{path} is damaged ({error}): remove it, and its lines are embedded again") from None

    def __iter__(self) -> Iterator[_Part]:
        first = 0
        for number in range(self.count):
            part = self.read(number, first)
            first += len(part.texts)
            yield part

    def lengths(self) -> Iterator[int]:
        """The number of tokens of each line."""
        for number in range(self.count):
            yield from self.read(number, 0, with_vectors=False).lengths.tolist()


def _check_keys(lines: Iterable[str]) -> Iterator[str]:
    """Let lines through that can all be names in one HDF5 file, where `/` makes a group and a name stands once."""
    datasets: set[bytes] = set()
    groups: set[bytes] = set()
    for number, line in enumerate(lines, 1):
        steps = [step for step in line.split("/") if step not in ("", ".")]
        if not steps or "\0" in line:
            raise ValueError(f"line {number}: {line[:40]!r} cannot be a key: leave sentence keys out")
        above = [_short("/".join(steps[:depth])) for depth in range(1, len(steps))]
        own = _short("/".join(steps))
        if own in datasets:
            raise ValueError(f"line {number}: {line[:40]!r} is there twice, so it cannot be a key: leave them out")
        if own in groups or not datasets.isdisjoint(above):
            raise ValueError(f"line {number}: {line[:40]!r} and another line differ by what follows a /: no keys then")
        datasets.add(own)
        groups.update(above)
        yield line


def _short(key: str) -> bytes:
    return hashlib.blake2b(key.encode(), digest_size=16).digest()


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Let errors of the disk name the file that was asked for, and not a temporary one."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise OSError(error.errno or 0, f"cannot be written: {reason}; what is done is kept", str(path)) from error


# ---- parts -> the file -----------------------------------------------------------------------------------------------


def _write_hdf5(target: Path, parts: _Parts, file: VectorFile) -> None:
    import h5py

    with_index = not file.use_sentence_keys and not file.forget_sentences
    sentence_to_index: dict[str, str] = {}
    with writing_hdf5(target) as out:
        for part in parts:
            for number, text, vectors in part.sentences():
                # HDF5 compresses by chunks, and there are none of nothing
                compression = "gzip" if file.gzip and vectors.size else None
                key = text if file.use_sentence_keys else str(number)
                out.create_dataset(key, data=vectors, compression=compression)
                if with_index:
                    sentence_to_index[text] = key
        if with_index:
            index = out.create_dataset("sentence_to_index", (1,), dtype=h5py.string_dtype())
            index[0] = json.dumps(sentence_to_index)


def _write_npz(target: Path, parts: _Parts, file: VectorFile) -> None:
    compression = zipfile.ZIP_DEFLATED if file.gzip else zipfile.ZIP_STORED
    with zipfile.ZipFile(target, "w", compression) as out:
        for part in parts:
            for number, _, vectors in part.sentences():
                with out.open(f"{number}.npy", "w", force_zip64=True) as entry:
                    np.lib.format.write_array(entry, vectors, allow_pickle=False)


def _write_safetensors(target: Path, parts: _Parts, file: VectorFile) -> None:
    """By hand: the library wants all tensors in memory at once.  Eight bytes of length, a JSON header, the values."""
    dtype = {"float32": "F32", "float16": "F16"}[file.dtype]
    bytes_per_token = int(np.prod(parts.shape, dtype=np.int64)) * parts.width * np.dtype(file.dtype).itemsize
    entries, end = {}, 0
    for number, length in enumerate(parts.lengths()):
        begin, end = end, end + length * bytes_per_token
        shape = [*parts.shape, length, parts.width]
        entries[str(number)] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    if len(header) > SAFETENSORS_HEADER_BYTES:
        raise ValueError(
            f"{file.path}: {len(entries)} tensors are too many for the header of one safetensors file: rename "
            f"{parts.folder.name} after an .hdf5 or .npz file, and write that one"
        )
    with open(target, "wb") as out:
        out.write(len(header).to_bytes(8, "little") + header)
        for part in parts:
            for _, _, vectors in part.sentences():
                out.write(np.ascontiguousarray(vectors, np.dtype(file.dtype).newbyteorder("<")).data)


def _write_parquet(target: Path, parts: _Parts, file: VectorFile) -> None:
    arrow, parquet = _import_parquet()
    kind = arrow.from_numpy_dtype(np.dtype(file.dtype))
    for _ in range(2 + len(parts.shape)):
        kind = arrow.list_(kind)
    schema = arrow.schema({"line": arrow.int64(), "tokens": arrow.list_(arrow.string()), "vectors": kind})
    with parquet.ParquetWriter(target, schema, compression="gzip" if file.gzip else "none") as out:
        for part in parts:
            lines = np.arange(part.first, part.first + len(part.texts))
            vectors = part.vectors
            if parts.shape:  # layers stand inside of lines there: (lines, L+1, T, 2P)
                vectors = np.concatenate([values.reshape(-1, parts.width) for _, _, values in part.sentences()])
            nested = nest_vectors(arrow, vectors, part.lengths, *parts.shape)
            tokens = arrow.array([file.split(text) for text in part.texts], schema.field("tokens").type)
            out.write_table(arrow.table([arrow.array(lines), tokens, nested], schema=schema))


def nest_vectors(arrow: Any, rows: npt.NDArray[Any], lengths: npt.ArrayLike, num_layers: int | None = None) -> Any:
    """Rows (N, 2P) of lines, one behind the other, as a column: `lengths` rows a line, or in each of its layers."""
    nested = _nest(arrow, arrow.array(rows.reshape(-1)), np.full(len(rows), rows.shape[1]))
    if num_layers is None:
        return _nest(arrow, nested, lengths)
    return _nest(arrow, _nest(arrow, nested, np.repeat(lengths, num_layers)), np.full(np.size(lengths), num_layers))


def _nest(arrow: Any, values: Any, counts: npt.ArrayLike) -> Any:
    """Lists of the next `counts` values each."""
    return arrow.ListArray.from_arrays(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32), values)


def _import_parquet() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ValueError('parquet files need pyarrow: pip install "elmokit[parquet]"') from error
    return pyarrow, pyarrow.parquet


_WRITERS: dict[Format, Callable[[Path, _Parts, VectorFile], None]] = {
    "hdf5": _write_hdf5,
    "npz": _write_npz,
    "parquet": _write_parquet,
    "safetensors": _write_safetensors,
}
