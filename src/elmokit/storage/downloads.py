"""A URL becomes a file of the cache, downloaded once.

A file from the network lands in the cache (`ELMOKIT_CACHE`, else the XDG cache) and is never fetched twice. It is
written beside its final name and moved there only when it is whole, of the right kind, and fsynced; a broken download
goes on where it stopped, and only where the server vouches that the content is still the same. Beside each file lies
`<file>.json` {url, sha256, size, etag, mtime_ns}: the sha256 of the first use, against which every later content of
that file is held. `ELMOKIT_OFFLINE=1` forbids the network; what the cache holds still works.

What is checked here is that a file is whole and is HDF5 or JSON at all. The shape of every tensor is checked against
the options where the pair is read, in `official.py`.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import logging
import os
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

if TYPE_CHECKING:
    pass


try:
    import fcntl
except ImportError:  # Windows: downloads of one file by two processes at once are not kept apart there
    fcntl = None  # type: ignore[assignment]
log = logging.getLogger(__name__)
Progress = Callable[[str, int, int | None], None]
"""Called with the file's name, the bytes that are there, and the bytes of the whole (None where unknown)."""
_TIMEOUT = 30.0  # seconds without a byte
_PAUSES = (0.5, 1.0, 2.0)  # seconds before each further attempt
_BLOCK = 1 << 18
_PASSING_STATUS = {408, 425, 429, 500, 502, 503, 504}
_VALIDATORS = ("ETag", "Last-Modified")
_HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
BY_HAND = (
    "Or download the files by hand and use ELMo.from_files(options, weights), "
    "or set ELMOKIT_CACHE to a cache folder that holds them."
)


def cache_dir() -> Path:
    """The folder of downloaded files: ELMOKIT_CACHE, else XDG_CACHE_HOME/elmokit, else ~/.cache/elmokit."""
    if own := os.environ.get("ELMOKIT_CACHE"):
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification says that a relative path is to be ignored.
    return (Path(shared) if os.path.isabs(shared) else Path.home() / ".cache") / "elmokit"


def is_offline() -> bool:
    """Whether ELMOKIT_OFFLINE forbids the network."""
    return os.environ.get("ELMOKIT_OFFLINE", "").strip().lower() in {"1", "true", "yes", "on"}


def fetch(url_or_path: str | os.PathLike[str], *, sha256: str | None = None, progress: Progress | None = None) -> Path:
    """The local file behind a path or URL: http and https come from the cache, paths and file:// as they are.

    `sha256` is what the content must have. Without it, a downloaded file must have the sha256 of its first use.
    """
    text = as_text(url_or_path)
    if sha256 is not None and not re.fullmatch(r"[0-9a-fA-F]{64}", sha256):
        raise ValueError(f"sha256 {sha256!r}: expected 64 hexadecimal digits")
    wanted = None if sha256 is None else sha256.lower()
    local = _local_path(url_or_path, text)
    if local is not None:
        if not text or not os.path.exists(local):
            raise ValueError(f"no file {text!r}")
        if os.path.isdir(local):
            raise ValueError(f"{text}: this is a folder, expected a file")
        if wanted is not None and (found := _sha256_of(local)) != wanted:
            raise ValueError(f"{text}: its sha256 is {found}, expected {wanted}")
        return local

    folder = cache_dir()
    basename = re.sub(r"[^\w.-]", "_", PurePosixPath(urlsplit(text).path).name, flags=re.ASCII)[-100:]
    target = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}-{basename or 'file'}"
    if _is_cached(target, text, wanted):
        return target
    if is_offline():
        raise ConnectionError(
            f"{text} is not in the cache {folder}, and ELMOKIT_OFFLINE forbids the network: unset it to download. "
            f"{BY_HAND}"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(f"{target}.lock", "ab")  # noqa: SIM115 - closed by the with below
    except OSError as error:
        raise ValueError(
            f"the cache folder {folder} is not writable ({error}): set ELMOKIT_CACHE to one that is"
        ) from error
    with lock, _held(lock.fileno(), target):
        # Whoever held the lock before may have brought the file.
        if not _is_cached(target, text, wanted):
            _download(text, target, wanted, progress)
    return target


def as_text(name: object) -> str:
    """A string or a path as a string; anything else is a ValueError."""
    text = os.fspath(name) if isinstance(name, str | os.PathLike) else None
    if not isinstance(text, str):
        raise ValueError(f"{name!r}: expected a string or a path, got {type(name).__name__}")
    return text


def _local_path(given: str | os.PathLike[str], text: str) -> Path | None:
    """The path where `text` is one or a file:// URL; None where it is an http(s) URL."""
    if not isinstance(given, str) or "://" not in text:
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


def _is_cached(target: Path, url: str, wanted: str | None) -> bool:
    """Whether the file is there; an error where it is there with another content than it had, or than is wanted."""
    try:
        stat = target.stat()
    except OSError:
        return False
    record = _read_json(_record_path(target))
    remembered = (record.get("size"), record.get("mtime_ns"))
    if "sha256" not in record or remembered != (stat.st_size, stat.st_mtime_ns):
        # Touched since it was remembered (or never remembered). A copied cache has new times and the same content.
        found = _sha256_of(target)
        if record.get("sha256", found) != found:
            raise ValueError(
                f"{target}: this file has changed since it was downloaded from {url} (sha256 {found}, was "
                f"{record['sha256']}): delete it, and it is fetched again"
            )
        with suppress(OSError):  # a read-only cache works too, a little slower
            _remember(target, target, url, found, record.get("etag"))
        record["sha256"] = found
    if wanted is not None and record["sha256"] != wanted:
        raise ValueError(
            f"{target}: its sha256 is {record['sha256']}, expected {wanted}: delete it, and it is fetched again"
        )
    return True


def _download(url: str, target: Path, wanted: str | None, progress: Progress | None) -> None:
    partial, note = Path(f"{target}.partial"), Path(f"{target}.partial.json")
    label = target.name.partition("-")[2]

    def report(done: int, total: int | None) -> None:
        if progress is not None:
            progress(label, done, total)

    log.info("downloading %s to %s", url, target)
    for pause in (*_PAUSES, None):
        try:
            _transfer(url, partial, note, report)
            break
        except _BrokenError as error:
            if isinstance(error, _ChangedError):
                partial.unlink(missing_ok=True)
            if pause is None:
                raise ConnectionError(
                    f"{url}: {error} ({len(_PAUSES) + 1} attempts). Try again later: what arrived is kept, and the "
                    f"next call goes on from there. {BY_HAND}"
                ) from error
            log.info("%s: %s; again in %s s", url, error, pause)
            time.sleep(pause)

    found = _sha256_of(partial)
    first = _read_json(_record_path(target)).get("sha256")
    problem = _content_problem(partial, url)
    if problem is None and wanted is not None and found != wanted:
        problem = f"its sha256 is {found}, expected {wanted}"
    elif problem is None and wanted is None and first not in (None, found):
        problem = (
            f"its sha256 is {found}, but on first use it was {first}: the content behind the URL has changed. "
            f"If that is as it should be, delete {_record_path(target)}"
        )
    if problem is not None:
        partial.unlink()
        note.unlink(missing_ok=True)
        raise ValueError(f"{url}: {problem}. Nothing was kept. {BY_HAND}")
    # The record first: a file under its final name always has one.
    _remember(target, partial, url, found, _read_json(note).get("ETag"))
    os.replace(partial, target)
    note.unlink(missing_ok=True)
    log.info("%s: sha256 %s", target, found)


class _BrokenError(Exception):
    """An attempt that failed in a way that the next may not."""


class _ChangedError(_BrokenError):
    """What the server has now does not go with what arrived before: the next attempt starts over."""


def _transfer(url: str, partial: Path, note: Path, report: Callable[[int, int | None], None]) -> None:
    """One request: bring `partial` to its full length, going on where it stands if the content is still the same."""
    known = _read_json(note)
    have = partial.stat().st_size if partial.exists() else 0
    if have and have == known.get("total"):
        return  # whole, but stopped before it was moved to its name
    # A weak ETag promises equal meaning, not equal bytes: it cannot vouch for a splice.
    etag = known.get("ETag") or "W/"
    validator = known.get("Last-Modified") if etag.startswith("W/") else etag
    offset = have if validator else 0
    headers = {"User-Agent": "elmokit", "Accept-Encoding": "identity"}
    if offset and validator:
        headers |= {"Range": f"bytes={offset}-", "If-Range": validator}

    with _open(urllib.request.Request(url, headers=headers)) as response:
        end: int | None
        total: int | None
        if response.status == 206:
            end, total = _check_part(response, offset, known)
        elif response.status == 200:
            offset, end, total = 0, response.length, response.length
        else:
            raise ConnectionError(f"{url}: HTTP {response.status} {response.reason}. Check the URL. {BY_HAND}")
        done = offset
        try:
            with open(partial, "ab") as file:
                file.truncate(offset)
                before = known if offset else {}  # a 206 answer may leave out what the first one said
                fields = {field: response.headers.get(field, before.get(field)) for field in _VALIDATORS}
                _write_json(note, {"url": url, "total": total, **fields})
                report(done, total)
                for block in _blocks(response, None if end is None else end - offset):
                    file.write(block)
                    done += len(block)
                    report(done, total)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:  # a full disk does not say by itself which file it was
            raise OSError(error.errno, error.strerror, str(partial)) from error
    if total is not None and done < total:
        raise _BrokenError(f"the connection ended after {done} of {total} bytes")


def _check_part(response: http.client.HTTPResponse, offset: int, known: Mapping[str, Any]) -> tuple[int, int]:
    """The end of a 206 answer's part, and of the whole; an error unless it goes on at `offset` of the same content."""
    span = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", response.headers.get("Content-Range", ""))
    if span is None or int(span[1]) != offset or int(span[2]) >= int(span[3]):
        raise _ChangedError("the server answered with another part than was asked for")
    same = all(response.headers.get(field) in (None, known.get(field)) for field in _VALIDATORS)
    if offset and not (same and known.get("total") in (None, int(span[3]))):
        raise _ChangedError("the content changed between two attempts")
    return int(span[2]) + 1, int(span[3])


def _open(request: urllib.request.Request) -> http.client.HTTPResponse:
    # Not urlopen: it would also follow a redirect to ftp.
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.UnknownHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPRedirectHandler,
        urllib.request.HTTPErrorProcessor,
    ):
        opener.add_handler(handler())
    try:
        return cast(http.client.HTTPResponse, opener.open(request, timeout=_TIMEOUT))
    except urllib.error.HTTPError as error:
        error.close()
        what = f"HTTP {error.code} {error.reason}"
        if error.code == 416:
            raise _ChangedError(what) from error
        if error.code in _PASSING_STATUS:
            raise _BrokenError(what) from error
        raise ConnectionError(f"{request.full_url}: {what}. Check the URL. {BY_HAND}") from error
    except (OSError, http.client.HTTPException) as error:
        raise _BrokenError(_reason(error)) from error


def _blocks(response: http.client.HTTPResponse, length: int | None) -> Iterator[bytes]:
    """The body as it arrives, `length` bytes of it; an end before that is for the caller to see."""
    while length is None or length > 0:
        try:
            # read1, so that a break loses nothing that had arrived before it
            block = response.read1(_BLOCK if length is None else min(_BLOCK, length))
        except (OSError, http.client.HTTPException) as error:
            raise _BrokenError(_reason(error)) from error
        if not block:
            return
        yield block
        if length is not None:
            length -= len(block)


def _reason(error: Exception) -> str:
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, TimeoutError):
        return f"no answer within {_TIMEOUT:g} s"
    return f"{type(cause).__name__}: {cause}" if isinstance(cause, Exception) else str(cause)


def _content_problem(path: Path, url: str) -> str | None:
    """What is wrong with a downloaded file, by the kind that its URL announces."""
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

        # HDF5 knows its own length, and so finds out a server that announced a body too short.
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


@contextmanager
def _held(lock: int, target: Path) -> Iterator[None]:
    """Hold the lock of one file; closing it lets go, also when the process dies."""
    if fcntl is not None:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.info("waiting for another download of %s", target)
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:  # some network file systems have no locks
            log.warning("%s cannot be locked (%s): do not download it from two processes at once", target, error)
    yield


def _record_path(target: Path) -> Path:
    return Path(f"{target}.json")


def _remember(target: Path, content: Path, url: str, sha256: str, etag: str | None) -> None:
    """Write the record of `target`, whose content still lies at `content`."""
    stat = content.stat()
    record = {"url": url, "sha256": sha256, "size": stat.st_size, "etag": etag, "mtime_ns": stat.st_mtime_ns}
    _write_json(_record_path(target), record)


def _read_json(path: Path) -> dict[str, Any]:
    """The object in a small JSON file of ours; empty where there is none, or none that can be read."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _write_json(path: Path, content: dict[str, Any]) -> None:
    temporary = Path(f"{path}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _sha256_of(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
