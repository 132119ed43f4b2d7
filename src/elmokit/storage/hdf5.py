"""HDF5 files of arrays: reading with one kind of error, and writing.

Input: a path. Output: arrays under their names (see `official.Arrays`), or a new file.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt


class HDF5Arrays:
    """The datasets of an open file."""

    def __init__(self, file: h5py.File) -> None:
        self._file = file
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

    def _dataset(self, name: str) -> h5py.Dataset:
        with self._reading(name):
            dataset = self._file.get(name)
        if not isinstance(dataset, h5py.Dataset):
            present = ", ".join(self.names[:40]) or "nothing"
            raise ValueError(f"{self.path}: {name} is missing; the file holds {present}")
        return dataset

    @contextlib.contextmanager
    def _reading(self, what: str) -> Iterator[None]:
        """Turn each error that HDF5 raises for a damaged file into a ValueError that names the file."""
        try:
            yield
        except (RuntimeError, OSError, KeyError, TypeError, OverflowError, UnicodeDecodeError) as error:
            raise ValueError(f"{self.path}: {what} cannot be read, the file is damaged ({error})") from None


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
