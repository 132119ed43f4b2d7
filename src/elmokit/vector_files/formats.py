"""Parts become one file: HDF5, NPZ, safetensors or Parquet.

Input: the parts of a finished run. Output: the file, one entry per line (see file.py for the layouts).
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import h5py
import numpy as np
import numpy.typing as npt

from elmokit.extras import require
from elmokit.inference.vectors import Floats
from elmokit.storage.hdf5 import writing_hdf5
from elmokit.vector_files.file import Format, VectorFile
from elmokit.vector_files.parts import Parts

if TYPE_CHECKING:
    import pyarrow

TOKENS = "tokens"  # name of what holds the tokens of all lines
SAFETENSORS_HEADER_BYTES = 100_000_000  # its readers refuse more


def _write_hdf5(target: Path, parts: Parts, file: VectorFile) -> None:
    with_index = not file.use_sentence_keys and not file.forget_sentences
    sentence_to_index: dict[str, str] = {}
    with writing_hdf5(target) as out:
        for part in parts:
            for entry in part.entries():
                # HDF5 compresses by chunks, and an empty dataset has none
                compression = "gzip" if file.gzip and entry.vectors.size else None
                key = entry.text if file.use_sentence_keys else str(entry.line)
                out.create_dataset(key, data=entry.vectors, compression=compression)
                if with_index:
                    sentence_to_index[entry.text] = key
        if not file.forget_sentences:
            # of variable length, which an attribute may have beyond 64 kB; JSON escapes NUL, which HDF5 cannot store
            tokens = b"".join(parts.tokens_as_json()).decode("ascii")
            out.attrs.create(TOKENS, tokens, dtype=h5py.string_dtype())
        if with_index:
            index = out.create_dataset("sentence_to_index", (1,), dtype=h5py.string_dtype())
            index[0] = json.dumps(sentence_to_index)


def _write_npz(target: Path, parts: Parts, file: VectorFile) -> None:
    compression = zipfile.ZIP_DEFLATED if file.gzip else zipfile.ZIP_STORED
    with zipfile.ZipFile(target, "w", compression) as out:
        for part in parts:
            for entry in part.entries():
                with out.open(f"{entry.line}.npy", "w", force_zip64=True) as stream:
                    np.lib.format.write_array(stream, entry.vectors, allow_pickle=False)
        with out.open(f"{TOKENS}.npy", "w", force_zip64=True) as stream:
            shape = (sum(map(len, parts.tokens_as_json())),)
            header = {"descr": np.lib.format.dtype_to_descr(np.dtype(np.uint8)), "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(stream, header)
            for piece in parts.tokens_as_json():
                stream.write(piece)


def _write_safetensors(target: Path, parts: Parts, file: VectorFile) -> None:
    """Eight bytes of length, a JSON header, the values. The library would need all tensors in memory at once."""
    dtype = {"float32": "F32", "float16": "F16"}[file.dtype]
    bytes_per_token = int(np.prod(parts.layers_shape, dtype=np.int64)) * parts.dim * np.dtype(file.dtype).itemsize
    entries, end = {}, 0
    for number, length in enumerate(parts.lengths()):
        begin, end = end, end + length * bytes_per_token
        shape = [*parts.layers_shape, length, parts.dim]
        entries[str(number)] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    num_tensors, num_bytes = len(entries), sum(map(len, parts.tokens_as_json()))
    entries[TOKENS] = {"dtype": "U8", "shape": [num_bytes], "data_offsets": [end, end + num_bytes]}
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    if len(header) > SAFETENSORS_HEADER_BYTES:
        raise ValueError(
            f"{file.path}: {num_tensors} tensors are too many for the header of one safetensors file: rename "
            f"{parts.folder.name} after an .hdf5 or .npz file, and write that one"
        )
    with open(target, "wb") as out:
        out.write(len(header).to_bytes(8, "little") + header)
        for part in parts:
            for entry in part.entries():
                out.write(np.ascontiguousarray(entry.vectors, np.dtype(file.dtype).newbyteorder("<")).data)
        for piece in parts.tokens_as_json():
            out.write(piece)


def _write_parquet(target: Path, parts: Parts, file: VectorFile) -> None:
    arrow, parquet = (require(name, extra="parquet") for name in ("pyarrow", "pyarrow.parquet"))
    kind = arrow.from_numpy_dtype(np.dtype(file.dtype))
    for _ in range(2 + len(parts.layers_shape)):
        kind = arrow.list_(kind)
    schema = arrow.schema({"line": arrow.int64(), "tokens": arrow.list_(arrow.string()), "vectors": kind})
    with parquet.ParquetWriter(target, schema, compression="gzip" if file.gzip else "none") as out:
        for part in parts:
            lines = np.arange(part.first, part.first + len(part.texts))
            vectors = part.vectors
            if parts.layers_shape:  # the layers of each line one after the other: (lines, L+1, T, 2P)
                vectors = np.concatenate([entry.vectors.reshape(-1, parts.dim) for entry in part.entries()])
            nested = nest_vectors(vectors, part.lengths, *parts.layers_shape)
            tokens = arrow.array([parts.tokenizer(text) for text in part.texts], schema.field("tokens").type)
            out.write_table(arrow.table([arrow.array(lines), tokens, nested], schema=schema))


def nest_vectors(rows: Floats, lengths: npt.ArrayLike, num_layers: int | None = None) -> pyarrow.Array:
    """Vectors of lines as a column of nested lists.

    Args:
        rows: (N, 2P): the vectors of all lines, one after the other.
        lengths: Number of tokens of each line.
        num_layers: Number of layers of each line, which follow each other; None if a line has one.

    Returns:
        A column with one list per line, of vectors, or of layers of vectors.
    """
    arrow = require("pyarrow", extra="parquet")
    nested = _nest(arrow.array(rows.reshape(-1)), np.full(len(rows), rows.shape[1]))
    if num_layers is None:
        return _nest(nested, lengths)
    return _nest(_nest(nested, np.repeat(lengths, num_layers)), np.full(np.size(lengths), num_layers))


def _nest(values: pyarrow.Array, counts: npt.ArrayLike) -> pyarrow.Array:
    """Lists of the next `counts` values each."""
    lists = require("pyarrow", extra="parquet").ListArray
    return lists.from_arrays(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32), values)


WRITERS: Mapping[Format, Callable[[Path, Parts, VectorFile], None]] = {
    "hdf5": _write_hdf5,
    "npz": _write_npz,
    "parquet": _write_parquet,
    "safetensors": _write_safetensors,
}
