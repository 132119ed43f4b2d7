"""HDF5 files of arrays: reading with one kind of error, and writing.

Input: a path. Output: arrays under their names (see `official.Arrays`), or a new file.

A file that is read is not trusted. An array must be in the file itself: links, virtual datasets and external storage,
which name other files of this machine, are refused. So is an array that takes more memory than the file accounts for.
"""

from __future__ import annotations

import contextlib
import math
import os
import zlib
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

SMALL = 1 << 20  # bytes that an array may take although the file does not hold them
CHECKSUM_SIZE = 4  # bytes that the filter fletcher32 appends to a chunk
SUPPORTED_FILTERS = {h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32}


class HDF5Arrays:
    """The datasets of an open file."""

    def __init__(self, file: h5py.File) -> None:
        self._file = file
        self._checked: dict[str, h5py.Dataset] = {}
        self.path = Path(file.filename)

    @property
    def names(self) -> list[str]:
        """Names of all datasets, with their groups: "CNN/W_cnn_0"."""
        names: list[str] = []
        with self._reading("the list of its arrays"):
            self._file.visititems(lambda key, item: names.append(key) if isinstance(item, h5py.Dataset) else None)
        return names

    def about(self, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Shape and dtype of the array `name`."""
        dataset = self._dataset(name)
        with self._reading(name):
            return dataset.shape, dataset.dtype

    def read(self, name: str) -> npt.NDArray[Any]:
        """The array `name`."""
        dataset = self._dataset(name)
        with self._reading(name):
            values: npt.NDArray[Any] = dataset[()]
        return values

    @property
    def num_bytes(self) -> int:
        """Size of the file."""
        return self.path.stat().st_size

    def _dataset(self, name: str) -> h5py.Dataset:
        if name in self._checked:
            return self._checked[name]
        with self._reading(name):
            link = _find_link(self._file, name)
            dataset = self._file.get(name) if link is None else None
        if link is not None:
            raise ValueError(f"{self.path}: {link} is a link, which is not followed: copy the array into the file")
        if not isinstance(dataset, h5py.Dataset):
            present = ", ".join(self.names[:40]) or "nothing"
            raise ValueError(f"{self.path}: {name} is missing; the file holds {present}")
        with self._reading(name):
            problem = _storage_problem(dataset, self.num_bytes)
        if problem is not None:
            raise ValueError(f"{self.path}: {name} {problem}")
        self._checked[name] = dataset
        return dataset

    @contextlib.contextmanager
    def _reading(self, what: str) -> Iterator[None]:
        """Turn each error that HDF5 raises for a damaged file into a ValueError that names the file."""
        try:
            yield
        except (RuntimeError, OSError, KeyError, TypeError, OverflowError, UnicodeDecodeError) as error:
            raise ValueError(f"{self.path}: {what} cannot be read, the file is damaged ({error})") from None


def _find_link(file: h5py.File, name: str) -> str | None:
    """The first part of a path that is a soft or an external link; None if there is none."""
    parts = name.split("/")
    for end in range(1, len(parts) + 1):
        path = "/".join(parts[:end])
        if not file.id.links.exists(path.encode()):
            return None
        if file.id.links.get_info(path.encode()).type != h5py.h5l.TYPE_HARD:
            return path
    return None


def _storage_problem(dataset: h5py.Dataset, num_bytes: int) -> str | None:
    """Why a dataset is not read: its values are not in the file, or are larger than they should be."""
    if dataset.is_virtual:
        return "is a virtual dataset, whose values are in other files: copy the values into the file"
    if dataset.external:
        return f"has its values in another file, {dataset.external[0][0]!r}: copy them into the file"
    if dataset.shape is None:  # an empty dataset
        return None
    size = math.prod(dataset.shape) * dataset.dtype.itemsize
    if dataset.chunks is not None:
        return _chunk_problem(dataset, size)
    if size > max(SMALL, num_bytes) or (size > SMALL and dataset.id.get_storage_size() < size):
        return f"has {size} bytes, which are not in the file ({num_bytes} bytes): the file is incomplete"
    return None


def _chunk_problem(dataset: h5py.Dataset, size: int) -> str | None:
    """Why a dataset of `size` bytes that is stored in chunks is not read."""
    chunk_size = math.prod(dataset.chunks) * dataset.dtype.itemsize
    if chunk_size > max(SMALL, size):
        return f"has {size} bytes, but its chunks have {chunk_size} bytes each: the file is damaged"
    num_chunks = math.prod(-(-length // chunk) for length, chunk in zip(dataset.shape, dataset.chunks, strict=True))
    if size > SMALL and dataset.id.get_num_chunks() < num_chunks:
        return f"has {dataset.id.get_num_chunks()} of {num_chunks} chunks: the file is incomplete"
    properties = dataset.id.get_create_plist()
    filters = [properties.get_filter(index)[0] for index in range(properties.get_nfilters())]
    if unknown := sorted(set(filters) - SUPPORTED_FILTERS):
        return f"is stored with the HDF5 filter {unknown[0]}, which is not supported: run `h5repack -f NONE IN OUT`"
    if h5py.h5z.FILTER_FLETCHER32 in filters:
        for index in range(dataset.id.get_num_chunks()):
            if dataset.id.get_chunk_info(index).size < CHECKSUM_SIZE:  # libhdf5 reads before its buffer and crashes
                return "has a chunk without its checksum: the file is damaged"
    if h5py.h5z.FILTER_DEFLATE in filters:
        limit = chunk_size + 64  # a checksum
        for index in range(dataset.id.get_num_chunks()):
            chunk = dataset.id.get_chunk_info(index)
            if chunk.size > 2 * limit or filters.count(h5py.h5z.FILTER_DEFLATE) > 1:
                return f"has a chunk of {chunk.size} bytes for {chunk_size} bytes of values: the file is damaged"
            mask, content = dataset.id.read_direct_chunk(chunk.chunk_offset)
            if mask == 0 and len(_inflate(content, limit + 1)) > limit:
                return f"has a chunk that inflates to more than its {chunk_size} bytes: the file is damaged"
    return None


def _inflate(content: bytes, limit: int) -> bytes:
    """Decompress at most `limit` bytes. What HDF5 cannot read either is empty."""
    try:
        return zlib.decompressobj().decompress(content, limit)
    except zlib.error:
        return b""


@contextlib.contextmanager
def open_hdf5(path: str | os.PathLike[str]) -> Iterator[HDF5Arrays]:
    """Open an HDF5 file for reading.

    Args:
        path: The file.

    Raises:
        ValueError: If there is no such file, or it is not a complete HDF5 file. The message names it.
    """
    if not Path(path).is_file():
        raise ValueError(f"{path}: {'this is a folder' if Path(path).is_dir() else 'no such file'}")
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise ValueError(f"{path}: not a complete HDF5 file ({error})") from None
    with file:
        yield HDF5Arrays(file)


@contextlib.contextmanager
def writing_hdf5(path: Path) -> Iterator[h5py.File]:
    """Open a new HDF5 file for writing.

    Args:
        path: The file. Use a path of `files.replacing` to write atomically.

    Raises:
        OSError: If the disk is full or fails. It names `path` and comes once the block has ended.
    """
    with _RecordingFile(path, "w+") as raw:
        try:
            with h5py.File(raw, "w") as file:
                yield file
        except (OSError, RuntimeError) as error:  # HDF5 noticed that the file is shorter than what it wrote
            if raw.error is None:
                raise
            raise OSError(raw.error.errno, raw.error.strerror, str(path)) from error
        if raw.error is not None:
            raise OSError(raw.error.errno, raw.error.strerror, str(path))


class _RecordingFile(FileIO):
    """A file that accepts every write and records the first error.

    HDF5 also writes in destructors, whose errors Python can only print, once per dataset.
    """

    error: OSError | None = None

    def write(self, data: Any, /) -> int:
        """Write all of `data`, or record why not."""
        rest = memoryview(data)
        try:
            while self.error is None and len(rest):
                rest = rest[super().write(rest) :]
        except OSError as error:
            self.error = error
        return len(data)

    def truncate(self, size: int | None = None, /) -> int:
        """Set the file's length, or record why not."""
        try:
            return super().truncate(size)
        except OSError as error:
            self.error = self.error or error
            return size or 0
