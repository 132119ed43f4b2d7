"""Replacing the files of a model folder in one step.

Input: a folder and the new content of its files. Output: the folder holds either the old model or the new one, whenever
the process is killed.

New files are first written to the subfolder `.saving`. config.json, which holds the checksum of every file, is the
switch: until it is replaced the folder is the old model, from then on the new one. The other files are moved to their
places after it. If a process is killed before it has moved a file, the file is read from `.saving`, and the next save
moves it. In a folder without config.json, which is not a model yet, config.json is moved last.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from elmokit.files import locked, sync_file, sync_folder
from elmokit.storage.layouts import CONFIG_FILE

STAGING = ".saving"
LOCK = ".saving.lock"
CHECKSUMS = "checksums"
_BLOCK = 1 << 20


def checksum(path: Path) -> str:
    """The CRC-32 of a file's content, as 8 hexadecimal digits.

    CRC-32 finds every changed bit and every exchanged file, and is faster than a cryptographic hash: 36 MB take 9 ms,
    SHA-256 with instructions of the CPU takes 20 ms, without them about 80 ms.
    """
    crc, buffer = 0, memoryview(bytearray(_BLOCK))
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            crc = zlib.crc32(buffer[:count], crc)
    return f"{crc:08x}"


def checksum_of_json(value: Any) -> str:
    """The CRC-32 of JSON values, as 8 hexadecimal digits. The order of keys does not matter."""
    return f"{zlib.crc32(json.dumps(value, sort_keys=True).encode()):08x}"


@contextlib.contextmanager
def checking(folder: Path, expected: Mapping[Path, str], problem: str | None = None) -> Iterator[None]:
    """Compare the checksums of files in other threads while the block reads them.

    Args:
        folder: The model folder.
        expected: Checksum of each file.
        problem: What is already known to be wrong.

    Raises:
        ValueError: When the block ends, if there is a problem or a checksum differs. A ValueError of the block, which
            the damaged file may have caused, is part of the message.
    """
    with ThreadPoolExecutor(max(1, len(expected))) as pool:
        running = {path: pool.submit(checksum, path) for path in expected}
        caught: ValueError | None = None
        try:
            yield
        except ValueError as error:
            caught = error
        for path, future in running.items():
            if problem is None and (actual := future.result()) != expected[path]:
                problem = (
                    f"{path}: its checksum is {actual}, but {folder / CONFIG_FILE} says {expected[path]}: the file is "
                    "damaged, or it belongs to another model. Save or copy the model again. If you changed the file on "
                    f'purpose, remove "{CHECKSUMS}" from {CONFIG_FILE}'
                )
        if problem is not None:
            raise ValueError(problem if caught is None else f"{caught}. {problem}") from caught
        if caught is not None:
            raise caught


def signature(folder: Path) -> tuple[object, ...]:
    """What changes when another process saves to a folder: which file config.json is, and what is in `.saving`."""
    try:
        staged = sorted(os.listdir(folder / STAGING))
    except OSError:
        staged = []
    config = (folder / CONFIG_FILE).stat()
    return config.st_ino, config.st_mtime_ns, config.st_size, *staged


@contextlib.contextmanager
def undisturbed(folder: Path) -> Iterator[None]:
    """Wait until no other process saves to a model folder, and let none begin before the block ends.

    Raises:
        OSError: If the lock file cannot be created. The error names the folder.
    """
    with _naming_files(folder), locked(folder / LOCK, wait=True):
        try:
            yield
        finally:
            (folder / LOCK).unlink(missing_ok=True)


def find_files(folder: Path, checksums: Mapping[str, str]) -> dict[str, Path]:
    """The path of each file of a model: its place in the folder, or where a killed process left it.

    Args:
        folder: The model folder.
        checksums: Checksum of each file by name.
    """
    if not (folder / STAGING).is_dir():
        return {name: folder / name for name in checksums}
    return {
        name: staged if (staged := _staged_file(folder, name, expected)) is not None else folder / name
        for name, expected in checksums.items()
    }


def replace_files(
    folder: Path,
    writers: Mapping[str, Callable[[Path], object]],
    write_config: Callable[[Path, dict[str, str]], object],
    obsolete: Iterable[str],
) -> None:
    """Replace the files of a model folder in one step.

    Args:
        folder: The folder. It is created if it does not exist.
        writers: By the name of a file, a function that writes it to a path.
        write_config: Writes config.json to a path, given the checksums of the other files.
        obsolete: Names of files that are removed.

    Raises:
        ValueError: If one of the names is taken by something that is not a regular file.
        OSError: If a file cannot be written. The error names the file. The folder holds the model that it held before,
            or the new one if only moving a file failed.
    """
    for name in (*writers, CONFIG_FILE):
        if os.path.lexists(folder / name) and not (folder / name).is_file():
            raise ValueError(f"{folder / name}: this is not a regular file: move it away, or save to another folder")
    folder.mkdir(parents=True, exist_ok=True)
    with undisturbed(folder):
        _complete_save(folder)
        try:
            _write_staged(folder, writers, write_config)
            is_model = (folder / CONFIG_FILE).exists()
            if is_model:
                _move(folder, CONFIG_FILE)
        except BaseException:
            shutil.rmtree(folder / STAGING, ignore_errors=True)
            raise
        for name in writers:
            _move(folder, name)
        if not is_model:
            _move(folder, CONFIG_FILE)
        for name in obsolete:
            (folder / name).unlink(missing_ok=True)
        shutil.rmtree(folder / STAGING)
        sync_folder(folder)


def _write_staged(
    folder: Path,
    writers: Mapping[str, Callable[[Path], object]],
    write_config: Callable[[Path, dict[str, str]], object],
) -> None:
    """Write all files to the subfolder `.saving`, complete on disk."""
    (folder / STAGING).mkdir()
    checksums: dict[str, str] = {}
    for name, write in writers.items():
        _write_file(_staged(folder, name), write)
        checksums[name] = checksum(_staged(folder, name))
    _write_file(_staged(folder, CONFIG_FILE), lambda path: write_config(path, checksums))
    sync_folder(folder / STAGING)
    sync_folder(folder)


def _write_file(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file to disk. Its mode is that of the umask, whatever the writer makes of it."""
    path.touch()
    mode = path.stat().st_mode
    write(path)
    path.chmod(mode)
    sync_file(path)


def _move(folder: Path, name: str) -> None:
    """Move a file from `.saving` to its place."""
    os.replace(_staged(folder, name), folder / name)
    if name == CONFIG_FILE:
        sync_folder(folder)


def _complete_save(folder: Path) -> None:
    """Move the files that a killed process did not move, and remove what else it left."""
    if not (folder / STAGING).is_dir():
        return
    for name, path in find_files(folder, read_checksums(folder)).items():
        if path != folder / name:
            os.replace(path, folder / name)
    sync_folder(folder)
    shutil.rmtree(folder / STAGING)


def read_checksums(folder: Path) -> dict[str, str]:
    """The checksums of files in config.json; empty if there are none, or config.json cannot be read."""
    try:
        checksums = json.loads((folder / CONFIG_FILE).read_bytes())[CHECKSUMS]["files"]
        return {name: str(value) for name, value in checksums.items() if Path(name).name == name}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}


def _staged(folder: Path, name: str) -> Path:
    return folder / STAGING / f"{name}.tmp"


def _staged_file(folder: Path, name: str, expected: str) -> Path | None:
    """The file in `.saving`, if it is the one that config.json names and the one in the folder is not."""
    path = _staged(folder, name)
    if not path.is_file() or checksum(path) != expected:
        return None
    in_place = folder / name
    return None if in_place.is_file() and checksum(in_place) == expected else path


@contextlib.contextmanager
def _naming_files(folder: Path) -> Iterator[None]:
    """Let an OSError name the file of the model, not the one in `.saving`."""
    try:
        yield
    except OSError as error:
        path = None if error.filename is None else Path(os.fsdecode(error.filename))
        if error.errno is None or (path is not None and path.parent != folder / STAGING):
            raise
        named = folder if path is None else folder / path.name.removesuffix(".tmp")
        raise OSError(error.errno, error.strerror, str(named)) from error
