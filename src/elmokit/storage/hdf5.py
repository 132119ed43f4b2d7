"""HDF5 files of arrays: opened to be read, with one kind of error, or written whole.

Enters: a path.  Leaves: arrays under their names (see `official.Arrays`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from elmokit.files import ForgivingFile


class HDF5Arrays:
    """The datasets of an open file."""

    def __init__(self, file: h5py.File) -> None:
        self._file = file
        self.path = Path(file.filename)

    @property
    def names(self) -> list[str]:
        """Of all datasets, groups and slashes included."""
        names: list[str] = []
        with self._reading("the list of its arrays"):
            self._file.visititems(lambda key, item: names.append(key) if isinstance(item, h5py.Dataset) else None)
        return names

    def about(self, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Shape and type."""
        dataset = self._dataset(name)
        with self._reading(name):
            return dataset.shape, dataset.dtype

    def read(self, name: str) -> npt.NDArray[Any]:
        """The whole array."""
        dataset = self._dataset(name)
        with self._reading(name):
            values: npt.NDArray[Any] = dataset[()]
        return values

    def _dataset(self, name: str) -> h5py.Dataset:
        with self._reading(name):
            found = self._file.get(name)
        if not isinstance(found, h5py.Dataset):
            held = ", ".join(self.names[:40]) or "nothing"
            raise ValueError(f"{self.path}: {name} is missing; the file holds {held}")
        return found

    @contextlib.contextmanager
    def _reading(self, what: str) -> Iterator[None]:
        """HDF5 has no one error for a damaged file: whatever comes while `what` is read names the file."""
        try:
            yield
        except (RuntimeError, OSError, KeyError, TypeError, OverflowError, UnicodeDecodeError) as error:
            raise ValueError(f"{self.path}: {what} cannot be read, the file is damaged ({error})") from None


@contextlib.contextmanager
def open_hdf5(path: str | os.PathLike[str]) -> Iterator[HDF5Arrays]:
    """An HDF5 file to read from; anything else is a ValueError that names it."""
    if not Path(path).is_file():
        raise ValueError(f"{path}: {'this is a folder' if Path(path).is_dir() else 'no such file'}")
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise ValueError(f"{path}: not a whole HDF5 file ({error})") from None
    with file:
        yield HDF5Arrays(file)


@contextlib.contextmanager
def writing_hdf5(path: Path) -> Iterator[h5py.File]:
    """A new HDF5 file to write to; a full disk is an OSError that names it, once the block has ended."""
    with ForgivingFile(path, "w+") as raw:
        with h5py.File(raw, "w") as file:
            yield file
        if raw.error is not None:
            raise OSError(raw.error.errno, raw.error.strerror, str(path))
