"""Sentence vectors become one matrix in one file, in bounded memory.

Input: matrices (n, D), one after the other.  Output: a file that is complete or not there at all:

    npy          the matrix (N, D)
    npz          an array "vectors"
    hdf5         a dataset "vectors"
    safetensors  a tensor "vectors"
    parquet      rows of line (int64) and vector (list)

The number of rows is known only at the end, so that rows are collected in a temporary file beside OUT.
"""

from __future__ import annotations

import json
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from elmokit.extras import require
from elmokit.files import replacing
from elmokit.storage.hdf5 import writing_hdf5

Format = Literal["hdf5", "npy", "npz", "parquet", "safetensors"]
SUFFIXES: dict[str, Format] = {
    ".npy": "npy",
    ".npz": "npz",
    ".hdf5": "hdf5",
    ".h5": "hdf5",
    ".parquet": "parquet",
    ".safetensors": "safetensors",
}
NAME = "vectors"  # of the array, dataset or tensor
BLOCK_LINES = 4096


def format_of(path: Path) -> Format:
    """The format of a file's suffix."""
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"{path}: the suffix is none of {', '.join(SUFFIXES)}: rename the file, or add --format")
    return SUFFIXES[path.suffix.lower()]


def blocks_of(lines: Iterable[str]) -> Iterator[list[str]]:
    """The lines in lists of at most BLOCK_LINES."""
    remaining = iter(lines)
    while block := list(islice(remaining, BLOCK_LINES)):
        yield block


@dataclass(frozen=True)
class MatrixFile:
    """A file to write."""

    path: Path
    format: Format
    dtype: Literal["float32", "float16"] = "float32"

    def __post_init__(self) -> None:
        if self.format == "parquet":
            require("pyarrow", extra="parquet")

    def write(self, blocks: Iterable[npt.NDArray[np.float32]], width: int) -> int:
        """Write matrices (n, `width`), one below the other, and return the number of rows."""
        with (
            replacing(self.path) as target,
            tempfile.TemporaryFile(dir=self.path.parent, prefix=f".{self.path.name}.") as raw,
        ):
            num_rows = 0
            for block in blocks:
                raw.write(self._convert(block, num_rows).tobytes())
                num_rows += len(block)
            raw.flush()
            shape = (num_rows, width)
            rows = np.memmap(raw, self._stored, "r", shape=shape) if num_rows else np.empty(shape, self._stored)
            _WRITERS[self.format](target, rows)
            return num_rows

    @property
    def _stored(self) -> np.dtype[Any]:
        return np.dtype(self.dtype).newbyteorder("<")

    def _convert(self, block: npt.NDArray[np.float32], first: int) -> npt.NDArray[Any]:
        with np.errstate(over="ignore"):
            rows = block.astype(self._stored)
        too_large = np.isinf(rows).any(axis=1) & np.isfinite(block).all(axis=1)
        if too_large.any():
            line = first + int(too_large.argmax()) + 1
            raise ValueError(f"line {line} has values beyond {self.dtype}: write float32, or add --normalize")
        return rows


def _write_npy(target: Path, rows: npt.NDArray[Any]) -> None:
    with open(target, "wb") as out:
        np.lib.format.write_array(out, rows, allow_pickle=False)


def _write_npz(target: Path, rows: npt.NDArray[Any]) -> None:
    with zipfile.ZipFile(target, "w") as archive, archive.open(f"{NAME}.npy", "w", force_zip64=True) as entry:
        np.lib.format.write_array(entry, rows, allow_pickle=False)


def _write_hdf5(target: Path, rows: npt.NDArray[Any]) -> None:
    with writing_hdf5(target) as file:
        file.create_dataset(NAME, data=rows)


def _write_safetensors(target: Path, rows: npt.NDArray[Any]) -> None:
    """By hand, since the library copies the matrix: eight bytes of length, a JSON header, the values."""
    kind = {"float32": "F32", "float16": "F16"}[rows.dtype.name]
    entry = {"dtype": kind, "shape": rows.shape, "data_offsets": [0, rows.nbytes]}
    header = json.dumps({NAME: entry}, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    with open(target, "wb") as out:
        out.write(len(header).to_bytes(8, "little") + header)
        out.write(rows.data)


def _write_parquet(target: Path, rows: npt.NDArray[Any]) -> None:
    arrow, parquet = require("pyarrow", extra="parquet"), require("pyarrow.parquet", extra="parquet")
    width = rows.shape[1]
    schema = arrow.schema({"line": arrow.int64(), "vector": arrow.list_(arrow.from_numpy_dtype(rows.dtype), width)})
    with parquet.ParquetWriter(target, schema) as writer:
        for first in range(0, len(rows), BLOCK_LINES):
            block = rows[first : first + BLOCK_LINES]
            vectors = arrow.FixedSizeListArray.from_arrays(arrow.array(block.reshape(-1)), width)
            lines = arrow.array(np.arange(first, first + len(block)))
            writer.write_table(arrow.table([lines, vectors], schema=schema))


_WRITERS: dict[Format, Callable[[Path, npt.NDArray[Any]], None]] = {
    "npy": _write_npy,
    "npz": _write_npz,
    "hdf5": _write_hdf5,
    "parquet": _write_parquet,
    "safetensors": _write_safetensors,
}
