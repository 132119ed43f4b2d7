"""Downloads: a URL becomes a file of the cache, downloaded once.

The cache is the folder `ELMOKIT_CACHE`, or the XDG cache. A download is written to `<file>.partial` and renamed only
when it is complete, of the right kind and on disk. An interrupted download is resumed, if the server confirms by a
strong ETag or a Last-Modified date that the content is still the same; without them it starts over. Beside each file,
`<file>.json` {url, sha256, size, etag, mtime_ns} records the SHA-256 of the first download. Every later content of that
file is compared with it. `ELMOKIT_OFFLINE=1` forbids the network; cached files still work.

This module checks that a file is complete and is HDF5 or JSON at all. The shapes of the tensors are checked against the
options in `official.py`.
"""

from __future__ import annotations

import glob
import hashlib
import json
import logging
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from elmokit.files import locked, sha256_of, write_json
from elmokit.storage.transfer import (
    BY_HAND,
    BrokenDownloadError,
    ChangedContentError,
    is_resumable,
    read_record,
    transfer,
)

log = logging.getLogger(__name__)
Progress = Callable[[str, int, int | None], None]
"""Called with the file's name, the number of bytes so far, and the total number of bytes (None if unknown)."""
_PAUSES = (0.5, 1.0, 2.0)  # seconds before each further attempt
_LOCK_NAME = re.compile(r"[0-9a-f]{16}-[\w.-]+\.lock", re.ASCII)
_HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"


def cache_dir() -> Path:
    """The folder of downloaded files: ELMOKIT_CACHE, or XDG_CACHE_HOME/elmokit, or ~/.cache/elmokit."""
    if own := os.environ.get("ELMOKIT_CACHE"):
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME", "")
    # the XDG specification says that a relative path is ignored
    return (Path(shared) if os.path.isabs(shared) else Path.home() / ".cache") / "elmokit"


def is_offline() -> bool:
    """Whether ELMOKIT_OFFLINE forbids the network."""
    return os.environ.get("ELMOKIT_OFFLINE", "").strip().lower() in {"1", "true", "yes", "on"}


def cached_path(url: str) -> Path:
    """The path that the download of `url` has in the cache, whether it exists or not."""
    basename = re.sub(r"[^\w.-]", "_", PurePosixPath(urlsplit(url).path).name, flags=re.ASCII)[-100:]
    return cache_dir() / f"{hashlib.sha256(url.encode()).hexdigest()[:16]}-{basename or 'file'}"


def fetch(url_or_path: str | os.PathLike[str], *, sha256: str | None = None, progress: Progress | None = None) -> Path:
    """The local file of a path or URL; an http(s) URL is downloaded into the cache unless it is there.

    Args:
        url_or_path: A path, a file:// URL, or an http(s) URL.
        sha256: SHA-256 that the content must have. Without it, a downloaded file must have that of its first download.
        progress: Called while a file is downloaded.

    Returns:
        The path of the file.

    Raises:
        ValueError: If there is no such file, the URL is not valid, the content is wrong, or the cache is not writable.
        ConnectionError: If the file cannot be downloaded.
    """
    text = as_text(url_or_path)
    if sha256 is not None and not re.fullmatch(r"[0-9a-fA-F]{64}", sha256):
        raise ValueError(f"sha256 {sha256!r}: expected 64 hexadecimal digits")
    expected = None if sha256 is None else sha256.lower()
    local = _local_path(url_or_path, text)
    if local is not None:
        if not text or not os.path.exists(local):
            raise ValueError(f"no file {text!r}")
        if os.path.isdir(local):
            raise ValueError(f"{text}: this is a folder, expected a file")
        if expected is not None and (actual := sha256_of(local)) != expected:
            raise ValueError(f"{text}: its sha256 is {actual}, expected {expected}")
        return local

    target = cached_path(text)
    if _is_cached(target, text, expected):
        return target
    if is_offline():
        raise ConnectionError(
            f"{text} is not in the cache {target.parent}, and ELMOKIT_OFFLINE forbids the network: unset it to "
            f"download. {BY_HAND}"
        )
    with ExitStack() as stack:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(Path(f"{target}.lock"), wait=True))
        except OSError as error:
            raise ValueError(
                f"the cache folder {target.parent} is not writable ({error}): set ELMOKIT_CACHE to one that is"
            ) from error
        # the process that held the lock before may have downloaded the file
        if not _is_cached(target, text, expected):
            _download(text, target, expected, progress)
    return target


@dataclass(frozen=True)
class CachedFile:
    """A download in the cache."""

    url: str
    path: Path
    """The file, which does not exist while the download is incomplete."""
    size: int
    """Bytes on disk, with its record, its lock and its incomplete download."""
    is_complete: bool


def cached_files() -> list[CachedFile]:
    """All downloads in the cache, complete or not, sorted by path."""
    return [
        CachedFile(url, target, sum(path.stat().st_size for path in _files_of(target)), target.is_file())
        for target, url in _recorded_urls().items()
    ]


def clean_cache() -> int:
    """Remove all downloads from the cache, complete or not.

    Only files that downloads wrote are removed: the file, its record, its lock, and its incomplete download. A file
    that another process downloads at the moment stays.

    Returns:
        The number of bytes that were freed.

    Raises:
        OSError: If a file cannot be removed.
    """
    freed = 0
    for target in _recorded_urls():
        with suppress(BlockingIOError), locked(Path(f"{target}.lock"), wait=False):
            for path in _files_of(target):
                freed += path.stat().st_size
                path.unlink()
    for lock in cache_dir().glob("*.lock"):  # of downloads that failed before the first byte
        if _LOCK_NAME.fullmatch(lock.name) and lock.is_file() and lock.stat().st_size == 0:
            with suppress(BlockingIOError), locked(lock, wait=False):
                lock.unlink(missing_ok=True)
    return freed


def _recorded_urls() -> dict[Path, str]:
    """Target -> URL of each download that has a record, or a record of its incomplete file."""
    result = {}
    for record in sorted(cache_dir().glob("*.json")):
        url = read_record(record).get("url")
        with suppress(ValueError):  # of a file that is not ours
            target = cached_path(url) if isinstance(url, str) else record
            if record.name in (f"{target.name}.json", f"{target.name}.partial.json"):
                result[target] = str(url)
    return dict(sorted(result.items()))


def _files_of(target: Path) -> list[Path]:
    """The files that exist of a download."""
    paths = [Path(f"{target}{suffix}") for suffix in ("", ".json", ".partial", ".partial.json", ".lock")]
    for record in (".json", ".partial.json"):  # left by a process that was killed in `write_json`
        paths += target.parent.glob(f".{glob.escape(target.name)}{record}.*-*.tmp")
    return [path for path in paths if path.is_file()]


def as_text(name: object) -> str:
    """A string or a path as a string; anything else is a ValueError that names it."""
    text = os.fspath(name) if isinstance(name, str | os.PathLike) else None
    if not isinstance(text, str):
        raise ValueError(f"{name!r}: expected a string or a path, got {type(name).__name__}")
    return text


def _local_path(url_or_path: str | os.PathLike[str], text: str) -> Path | None:
    """The path of a local file or a file:// URL; None for an http(s) URL."""
    if not isinstance(url_or_path, str) or "://" not in text:
        return Path(text).expanduser()
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(f"{text!r}: not a URL ({error})") from error
    if parts.scheme == "file":
        if host not in (None, "localhost"):
            raise ValueError(f"{text!r}: a file:// URL of another machine; write file:///path")
        return Path(urllib.request.url2pathname(parts.path))
    if parts.scheme not in ("http", "https"):
        raise ValueError(f"{text!r}: the scheme {parts.scheme!r} is not known; use http, https or file")
    if not host or not text.isascii() or re.search(r"[\x00-\x20\x7f]", text):
        raise ValueError(f"{text!r}: not a URL (no host, or characters that must be percent-encoded)")
    return None


def _is_cached(target: Path, url: str, expected: str | None) -> bool:
    """Whether the file exists; a ValueError if its content has changed or has not the SHA-256 `expected`."""
    try:
        stat = target.stat()
    except OSError:
        return False
    record = read_record(_record_path(target))
    recorded = (record.get("size"), record.get("mtime_ns"))
    if "sha256" not in record or recorded != (stat.st_size, stat.st_mtime_ns):
        # the file is newer than its record, or has none: a copied cache has new times and the same content
        actual = sha256_of(target)
        if record.get("sha256", actual) != actual:
            raise ValueError(
                f"{target}: this file has changed since it was downloaded from {url} (sha256 {actual}, was "
                f"{record['sha256']}): delete it to download it again"
            )
        with suppress(OSError, ValueError):  # a read-only cache works too, a little slower
            _write_record(target, target, url, actual, record.get("etag"))
        record["sha256"] = actual
    if expected is not None and record["sha256"] != expected:
        raise ValueError(
            f"{target}: its sha256 is {record['sha256']}, expected {expected}: delete it to download it again"
        )
    return True


def _download(url: str, target: Path, expected: str | None, progress: Progress | None) -> None:
    """Download `url`, resuming what an earlier call left, check the content, and give the file its name."""
    partial, note = Path(f"{target}.partial"), Path(f"{target}.partial.json")
    label = target.name.partition("-")[2]

    def report(done: int, total: int | None) -> None:
        if progress is not None:
            progress(label, done, total)

    log.info("downloading %s to %s", url, target)
    for pause in (*_PAUSES, None):
        try:
            transfer(url, partial, note, report)
            break
        except BrokenDownloadError as error:
            if isinstance(error, ChangedContentError):
                partial.unlink(missing_ok=True)
            if pause is None:
                if not partial.exists() or partial.stat().st_size == 0:
                    rest = "Try again later."
                elif is_resumable(read_record(note)):
                    rest = "Try again later: the next call resumes the download."
                else:
                    rest = (
                        "Try again later: the next call starts over, since the server sends neither a strong ETag nor "
                        "a Last-Modified date, by which a download can be resumed."
                    )
                raise ConnectionError(f"{url}: {error} ({len(_PAUSES) + 1} attempts). {rest} {BY_HAND}") from error
            log.info("%s: %s; next attempt in %s s", url, error, pause)
            time.sleep(pause)

    actual = sha256_of(partial)
    first = read_record(_record_path(target)).get("sha256")
    problem = _content_problem(partial, url)
    if problem is None and expected is not None and actual != expected:
        problem = f"its sha256 is {actual}, expected {expected}"
    elif problem is None and expected is None and first not in (None, actual):
        problem = (
            f"its sha256 is {actual}, but on first use it was {first}: the content of the URL has changed. "
            f"To accept the new content, delete {_record_path(target)}"
        )
    if problem is not None:
        partial.unlink()
        note.unlink(missing_ok=True)
        raise ValueError(f"{url}: {problem}. Nothing was kept. {BY_HAND}")
    # the record first: a file under its final name always has one
    _write_record(target, partial, url, actual, read_record(note).get("ETag"))
    os.replace(partial, target)
    note.unlink(missing_ok=True)
    log.info("%s: sha256 %s", target, actual)


def _content_problem(path: Path, url: str) -> str | None:
    """What is wrong with a downloaded file, by the suffix of its URL; None if nothing is."""
    suffix = PurePosixPath(urlsplit(url).path).suffix.lower()
    with open(path, "rb") as file:
        head = file.read(64)
    start = head.lstrip().lower()
    size = path.stat().st_size
    if not head:
        arrived = "nothing arrived (0 bytes)"
    elif start.startswith((b"<!doctype html", b"<html")):
        arrived = f"an HTML page arrived ({size} bytes)"
    else:
        arrived = f"{size} bytes arrived that begin with {head[:16]!r}"

    if suffix in (".hdf5", ".h5"):
        if not head.startswith(_HDF5_SIGNATURE):
            return f"expected an HDF5 file, but {arrived}"
        import h5py

        # HDF5 knows its own length, so a body that the server announced too short does not open
        try:
            h5py.File(path, "r").close()
        except OSError as error:
            return f"expected an HDF5 file, but {arrived} and do not open ({error})"
    elif suffix == ".json":
        try:
            json.loads(path.read_bytes())
        except ValueError as error:
            return f"expected JSON, but {arrived} ({error})"
    elif not arrived.startswith(f"{size} bytes"):
        return f"expected a file, but {arrived}"
    return None


def _record_path(target: Path) -> Path:
    return Path(f"{target}.json")


def _write_record(target: Path, content: Path, url: str, sha256: str, etag: str | None) -> None:
    """Write the record of `target`, whose content is still in `content`."""
    stat = content.stat()
    record = {"url": url, "sha256": sha256, "size": stat.st_size, "etag": etag, "mtime_ns": stat.st_mtime_ns}
    write_json(_record_path(target), record)
