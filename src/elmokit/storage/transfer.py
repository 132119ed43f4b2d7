"""One HTTP request of a download, which resumes an incomplete file.

Input: a URL, the path of the incomplete file and that of its record. Output: the completed file, or an error that tells
whether another attempt may succeed.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from elmokit.files import write_json

BY_HAND = (
    "Or download the files by hand and use ELMo.from_files(options, weights), "
    "or set ELMOKIT_CACHE to a cache folder that holds them."
)
_TIMEOUT = 30.0  # seconds without a byte
_BLOCK = 1 << 18
_PASSING_STATUS = {408, 425, 429, 500, 502, 503, 504}
_VALIDATORS = ("ETag", "Last-Modified")


class BrokenDownloadError(Exception):
    """An attempt failed, and the next one may succeed."""


class ChangedContentError(BrokenDownloadError):
    """The server now has other content than before: the next attempt starts over."""


def transfer(url: str, partial: Path, note: Path, report: Callable[[int, int | None], None]) -> None:
    """Send one request and complete `partial`, resuming where it ends if the content is still the same.

    Args:
        url: An http or https URL.
        partial: The incomplete file. It is created if it does not exist.
        note: The record of the incomplete file: its URL, its total length, and what identifies its content.
        report: Called with the number of bytes so far and the total, which is None if unknown.

    Raises:
        BrokenDownloadError: If the request failed in a way that may pass: call again.
        ConnectionError: If the server refuses the request.
        OSError: If the file cannot be written. It names `partial`.
    """
    known = read_record(note)
    have = partial.stat().st_size if partial.exists() else 0
    if have and have == known.get("total"):
        return  # complete, but interrupted before it was renamed
    validator = _validator(known)
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
                before = known if offset else {}  # a 206 response may omit what the first one said
                fields = {field: response.headers.get(field, before.get(field)) for field in _VALIDATORS}
                write_json(note, {"url": url, "total": total, **fields})
                report(done, total)
                for block in _blocks(response, None if end is None else end - offset):
                    file.write(block)
                    done += len(block)
                    report(done, total)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:  # the error of a full disk does not name the file
            raise OSError(error.errno, error.strerror, str(partial)) from error
    if total is not None and done < total:
        raise BrokenDownloadError(f"the connection ended after {done} of {total} bytes")


def is_resumable(record: Mapping[str, Any]) -> bool:
    """Whether the server has sent what identifies the content of an incomplete file."""
    return _validator(record) is not None


def _validator(record: Mapping[str, Any]) -> str | None:
    """The strong ETag of a record, or else its date.

    A weak ETag promises equal meaning, not equal bytes: with it a download cannot be resumed.
    """
    etag = record.get("ETag")
    if isinstance(etag, str) and etag and not etag.startswith("W/"):
        return etag
    date = record.get("Last-Modified")
    return date if isinstance(date, str) and date else None


def _check_part(response: http.client.HTTPResponse, offset: int, known: Mapping[str, Any]) -> tuple[int, int]:
    """End of a 206 response's range, and total length; an error unless it continues the same content at `offset`."""
    span = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", response.headers.get("Content-Range", ""))
    if span is None or int(span[1]) != offset or int(span[2]) >= int(span[3]):
        raise ChangedContentError("the server sent another range than was requested")
    same = all(response.headers.get(field) in (None, known.get(field)) for field in _VALIDATORS)
    if offset and not (same and known.get("total") in (None, int(span[3]))):
        raise ChangedContentError("the content changed between two attempts")
    return int(span[2]) + 1, int(span[3])


def _open(request: urllib.request.Request) -> http.client.HTTPResponse:
    """Send a request. Not with urlopen, which would also follow a redirect to ftp."""
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
            raise ChangedContentError(what) from error
        if error.code in _PASSING_STATUS:
            raise BrokenDownloadError(what) from error
        raise ConnectionError(f"{request.full_url}: {what}. Check the URL. {BY_HAND}") from error
    except (OSError, http.client.HTTPException) as error:
        raise BrokenDownloadError(_reason(error)) from error


def _blocks(response: http.client.HTTPResponse, length: int | None) -> Iterator[bytes]:
    """The body as it arrives, at most `length` bytes; the caller checks whether it is complete."""
    while length is None or length > 0:
        try:
            # read1, so that an interruption loses nothing that arrived before it
            block = response.read1(_BLOCK if length is None else min(_BLOCK, length))
        except (OSError, http.client.HTTPException) as error:
            raise BrokenDownloadError(_reason(error)) from error
        if not block:
            return
        yield block
        if length is not None:
            length -= len(block)


def _reason(error: Exception) -> str:
    """What a network error says, in one line."""
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, TimeoutError):
        return f"no answer within {_TIMEOUT:g} s"
    return f"{type(cause).__name__}: {cause}" if isinstance(cause, Exception) else str(cause)


def read_record(path: Path) -> dict[str, Any]:
    """The JSON object in a record; empty if there is none, or it cannot be read."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
