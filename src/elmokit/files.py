"""Files: atomic writes, checksums, JSON, locks.

Input: the path of a file or a folder. Output: a temporary path to write to, which replaces the file in one step once
its content is on disk; the SHA-256 of a file; a lock that other processes respect.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import re
import secrets
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # Windows has no flock: locks do nothing there
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger(__name__)

_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}  # of file systems that have no flock


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Write a file atomically.

    The block writes to the temporary path that it receives. When the block ends without an error, the content is on
    disk and replaces `path`. When it fails, `path` is unchanged and the temporary file is removed.

    Args:
        path: The file to write. If it is a link, the link stays and its target is replaced.

    Raises:
        ValueError: If `path` exists and is not a regular file (a folder, a device).
        OSError: If the file cannot be written. The error names `path`, not the temporary file.
    """
    with replacing_together([path]) as temporaries:
        yield temporaries[0]


@contextlib.contextmanager
def replacing_together(paths: Sequence[Path]) -> Iterator[list[Path]]:
    """Write several files atomically: all are complete on disk before the first one is replaced.

    The files have the mode of the umask.

    Args:
        paths: The files to write. They are replaced in this order.

    Raises:
        ValueError: If one of `paths` exists and is not a regular file.
        OSError: If a file cannot be written. The error names the path that was asked for.
    """
    for path in paths:
        if os.path.lexists(path) and not path.is_file():
            raise ValueError(f"{path}: this is not a regular file: pass the path of a file to write")
    targets = [Path(os.path.realpath(path)) for path in paths]
    for target in targets:
        _remove_leftovers(target)
    own = f"{_host()}-{os.getpid()}-{secrets.token_hex(4)}"
    temporaries = [target.with_name(f".{target.name}.{own}.tmp") for target in targets]
    try:
        modes = []
        for temporary in temporaries:
            temporary.touch(exist_ok=False)
            modes.append(temporary.stat().st_mode)  # that of the umask; some writers make a file of their own
        yield temporaries
        for temporary, mode in zip(temporaries, modes, strict=True):
            temporary.chmod(mode)
            sync_file(temporary)
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


def _host() -> str:
    """The name of this machine in names of files."""
    return re.sub(r"[^A-Za-z0-9]", "_", socket.gethostname())[:32]


def _remove_leftovers(target: Path) -> None:
    """Remove the temporary files of `target` that killed processes of this machine left."""
    if os.name != "posix":  # elsewhere os.kill ends a process
        return
    pattern = re.compile(rf"\.{re.escape(target.name)}\.{re.escape(_host())}-(\d+)-[0-9a-f]{{8}}\.tmp")
    try:
        names = os.listdir(target.parent)
    except OSError:  # the write that follows says why
        return
    for name in names:
        if match := pattern.fullmatch(name):
            try:
                os.kill(int(match[1]), 0)
            except ProcessLookupError:
                (target.parent / name).unlink(missing_ok=True)
            except (PermissionError, OverflowError):
                pass  # it runs, as another user; or it is no process


def write_json(path: Path, value: Any) -> None:
    """Write `value` as an indented JSON file, atomically.

    Args:
        path: The file to write.
        value: JSON values: dicts, lists, strings, numbers, booleans, None.

    Raises:
        ValueError: If `path` exists and is not a regular file.
        OSError: If the file cannot be written.
    """
    text = json.dumps(value, indent=1)
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's content, as 64 hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of_json(value: Any) -> str:
    """The SHA-256 of JSON values, as 64 hexadecimal digits. The order of keys does not matter."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


@contextlib.contextmanager
def locked(path: Path, *, wait: bool) -> Iterator[None]:
    """Hold an exclusive lock on a file or a folder.

    The lock ends with the block, or with the process and its forks. On systems without flock (Windows) nothing is
    locked.

    Args:
        path: A folder, or a file. A path that does not exist is created as an empty file.
        wait: Wait while another process holds the lock. A file system without locks is then a warning.

    Raises:
        BlockingIOError: If `wait` is False and another process holds the lock.
        OSError: If `path` cannot be opened, or if `wait` is False and the file system has no locks.
    """
    if fcntl is None:
        yield
        return
    handle = _open_locked(path, wait)
    try:
        yield
    finally:
        os.close(handle)


def check_new_folder(path: Path) -> None:
    """Refuse, before any work, a path in which no folder can be made.

    Raises:
        ValueError: If there is a file at the path, or in the place of a folder above it.
    """
    nearest = next((one for one in (path, *path.parents) if one.exists()), path)
    if nearest.exists() and not nearest.is_dir():
        raise ValueError(f"{'' if nearest == path else f'{path}: '}{nearest} is a file: name a folder")


@contextlib.contextmanager
def claimed(target: Path, *, lock: Path | None = None, doing: str = "writing it") -> Iterator[None]:
    """Let one process at a time write a file or a folder.

    The lock file says which process writes. A lock of a process that was killed does not count.

    Args:
        target: What is written.
        lock: The lock file, which is removed at the end. Default: `.NAME.lock` beside `target`.
        doing: What the other process is doing, for the message.

    Raises:
        ValueError: If another process writes `target`. The message names the process, its host and when it began.
        OSError: If the lock file cannot be created.
    """
    if fcntl is None:
        yield
        return
    path = target.with_name(f".{target.name}.lock") if lock is None else lock
    try:
        handle = _open_locked(path, wait=False)
    except BlockingIOError:
        raise ValueError(
            f"{target}: another process is {doing}{_holder(path)}: wait until it ends, or use another path"
        ) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        logger.warning("%s cannot be locked (%s): do not write it from two processes at once", target, error)
        path.unlink(missing_ok=True)
        yield
        return
    try:
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        os.ftruncate(handle, 0)
        os.write(handle, json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": since}).encode())
        yield
    finally:
        path.unlink(missing_ok=True)  # before the lock ends: a process that waits for it then opens a new file
        os.close(handle)


def _holder(path: Path) -> str:
    """The process that a lock file names; "" if it has just begun or ended."""
    try:
        holder = json.loads(path.read_bytes())
        return f" (process {holder['pid']} on {holder['host']}, since {holder['since']})"
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _open_locked(path: Path, wait: bool) -> int:
    """Open and lock `path`; open it again if another process removed it in the meantime."""
    while True:
        handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _flock(handle, path, wait)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle), os.stat(path)):
                    return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _flock(handle: int, path: Path, wait: bool) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        if not wait:
            raise
        logger.info("waiting for another process that uses %s", path)
        fcntl.flock(handle, fcntl.LOCK_EX)
    except OSError as error:  # some network file systems have no locks
        if not wait:
            raise
        logger.warning("%s cannot be locked (%s): do not use it from two processes at once", path, error)


def sync_file(path: Path) -> None:
    """Write the content of a file to disk."""
    with open(path, "rb+") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Write the entries of a folder to disk, where the system supports it."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
