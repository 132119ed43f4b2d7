"""Files that are there whole or not at all.

Enters: the path that a file shall have.  Leaves: a temporary path beside it to write to, whose content takes the place
of the old file in one step once all of it is on the disk.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator, Sequence
from io import FileIO
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`; when the block ends well its content is on disk and takes the place of `path`."""
    with replacing_together([path]) as temporaries:
        yield temporaries[0]


@contextlib.contextmanager
def replacing_together(paths: Sequence[Path]) -> Iterator[list[Path]]:
    """As `replacing`, for files that belong together: all are on disk before the first takes its place, in order.

    An OSError names the path that was asked for.  What is no regular file (a folder, a device) is a ValueError: to
    take the place of /dev/null would be the end of it.
    """
    for path in paths:
        if os.path.lexists(path) and not path.is_file():
            raise ValueError(f"{path}: this is no regular file: give the path of a file to write")
    targets = [Path(os.path.realpath(path)) for path in paths]  # a link stays, and what it points to is replaced
    temporaries = [target.with_name(f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp") for target in targets]
    try:
        for temporary in temporaries:
            temporary.touch(exist_ok=False)
        yield temporaries
        for temporary in temporaries:
            with open(temporary, "rb+") as file:
                os.fsync(file.fileno())
        for temporary, target in zip(temporaries, targets, strict=True):
            os.replace(temporary, target)
        for folder in {target.parent for target in targets}:
            sync_folder(folder)
    except OSError as error:
        named: dict[str | None, Path] = {None: paths[0] if len(paths) == 1 else paths[0].parent}
        named |= {str(temporary): path for temporary, path in zip(temporaries, paths, strict=True)}
        filename = None if error.filename is None else str(error.filename)
        if error.errno is None or filename not in named:
            raise
        raise OSError(error.errno, error.strerror, str(named[filename])) from error
    finally:
        for temporary in temporaries:
            temporary.unlink(missing_ok=True)


class ForgivingFile(FileIO):
    """A file for HDF5 that takes everything and remembers what went wrong first.

    HDF5 writes in destructors too, whose errors Python can only print, one for each dataset.
    """

    error: OSError | None = None

    def write(self, data: Any, /) -> int:
        """Write all of `data`, or note why not."""
        rest = memoryview(data)
        try:
            while self.error is None and len(rest):
                rest = rest[super().write(rest) :]
        except OSError as error:
            self.error = error
        return len(data)

    def truncate(self, size: int | None = None, /) -> int:
        """Set the file's length, or note why not."""
        try:
            return super().truncate(size)
        except OSError as error:
            self.error = self.error or error
            return size or 0


def sync_folder(folder: Path) -> None:
    """Let the folder's entries reach the disk, where the system can do that."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
