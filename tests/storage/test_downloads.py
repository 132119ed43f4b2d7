"""Downloads, from a local HTTP server that interrupts, announces wrong lengths or changes its content."""

import hashlib
import json
import logging
import os
import re
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from broken_server import (
    OPTIONS,
    WEIGHTS,
    Handler,
    Resource,
    Server,
    announce,
    cut_after,
    hdf5_bytes,
    ignore_range,
    say,
    then,
    validators,
    well,
)

from elmokit import files
from elmokit.files import replacing
from elmokit.storage import downloads, transfer


def kept(cache: Path) -> list[str]:
    """Names of the files in the cache except locks, without the hash."""
    return sorted(path.name.partition("-")[2] for path in cache.glob("*") if path.suffix != ".lock")


# --- a download that succeeds


def test_a_url_is_fetched_once_and_remembered_with_its_sha256(server: Server, cache: Path) -> None:
    url, it = server.put("/m/weights.hdf5", WEIGHTS)
    path = downloads.fetch(url)
    assert path.read_bytes() == WEIGHTS
    assert path.parent == cache
    assert downloads.fetch(url) == path
    assert len(it.requests) == 1
    record = json.loads(Path(f"{path}.json").read_text())
    assert {key: record[key] for key in ("url", "sha256", "size", "etag")} == {
        "url": url,
        "sha256": hashlib.sha256(WEIGHTS).hexdigest(),
        "size": len(WEIGHTS),
        "etag": '"one"',
    }
    assert kept(cache) == ["weights.hdf5", "weights.hdf5.json"]


def test_urls_with_the_same_last_part_never_share_a_file(server: Server) -> None:
    first, _ = server.put("/a/options.json", b'{"a": 1}')
    second, _ = server.put("/b/options.json", b'{"b": 2}')
    paths = [downloads.fetch(url) for url in (first, second, f"{second}?version=2")]
    assert len(set(paths)) == 3
    assert [path.read_bytes() for path in paths] == [b'{"a": 1}', b'{"b": 2}', b'{"b": 2}']


def test_a_cached_name_is_safe_and_short_whatever_the_url(server: Server, cache: Path) -> None:
    for path in ("/", "/a%2F..%2Fb", "/" + "x" * 200 + ".txt", "/.."):
        url, _ = server.put(path, b"word\n")
        found = downloads.fetch(url)
        assert found.parent == cache
        assert re.fullmatch(r"[0-9a-f]{16}-[\w.-]{1,100}", found.name)


def test_progress_rises_to_the_total_and_the_final_name_appears_only_when_complete(server: Server, cache: Path) -> None:
    url, _ = server.put("/weights.hdf5", WEIGHTS, deeds=[cut_after(20_000)])
    seen: list[tuple[str, int, int | None]] = []

    def progress(label: str, done: int, total: int | None) -> None:
        seen.append((label, done, total))
        assert not list(cache.glob("*-weights.hdf5"))

    downloads.fetch(url, progress=progress)
    assert {(label, total) for label, _, total in seen} == {("weights.hdf5", len(WEIGHTS))}
    done = [count for _, count, _ in seen]
    assert done == sorted(done)
    assert (done[0], done[-1]) == (0, len(WEIGHTS))
    assert done.count(20_000) == 2  # the end of the first attempt is the start of the second
    assert list(cache.glob("*-weights.hdf5"))


def test_a_body_of_unknown_length_is_taken_when_it_ends_properly(server: Server) -> None:
    def chunked(handler: Handler, it: Resource) -> None:
        parts = [it.body[:100], it.body[100:]]
        coded = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
        handler.answer(200, {"Transfer-Encoding": "chunked"}, coded + b"0\r\n\r\n")

    def chunked_and_cut(handler: Handler, it: Resource) -> None:
        handler.answer(200, {"Transfer-Encoding": "chunked"}, b"64\r\n" + it.body[:50])

    url, it = server.put("/words.txt", b"word\n" * 100, deeds=[chunked_and_cut, chunked])
    totals: list[int | None] = []
    assert downloads.fetch(url, progress=lambda _, __, total: totals.append(total)).read_bytes() == it.body
    assert set(totals) == {None}
    assert it.ranges == [None, None]


def test_a_redirect_is_followed_but_not_to_another_scheme(server: Server) -> None:
    target, _ = server.put("/real/options.json", OPTIONS)
    url, _ = server.put("/moved/options.json", b"", deeds=[say(302, {"Location": target})])
    assert downloads.fetch(url).read_bytes() == OPTIONS
    for elsewhere, reason in {
        "file:///etc/hostname": "HTTP 302 .*not allowed",
        "ftp://127.0.0.1/options.json": "unknown url type: ftp",
    }.items():
        url, _ = server.put("/evil/options.json", b"", deeds=[say(302, {"Location": elsewhere})] * 4)
        with pytest.raises(ConnectionError, match=rf"(?s)evil/options\.json: .*{reason}"):
            downloads.fetch(url)


def test_the_library_logs_and_prints_nothing(
    server: Server, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    url, _ = server.put("/weights.hdf5", WEIGHTS, deeds=[say(503)])
    with caplog.at_level(logging.INFO, logger="elmokit.storage.downloads"):
        downloads.fetch(url)
    assert capfd.readouterr() == ("", "")
    assert f"downloading {url}" in caplog.text
    assert "HTTP 503" in caplog.text


# --- a download that breaks


def test_a_broken_download_resumes_where_it_stopped(server: Server) -> None:
    url, it = server.put("/weights.hdf5", WEIGHTS, deeds=[cut_after(10_000), cut_after(5_000)])
    assert downloads.fetch(url).read_bytes() == WEIGHTS
    assert it.ranges == [None, "bytes=10000-", "bytes=15000-"]
    assert it.requests[1]["If-Range"] == '"one"'


def test_a_later_call_resumes_where_an_earlier_one_gave_up(server: Server, cache: Path) -> None:
    url, it = server.put("/weights.hdf5", WEIGHTS, deeds=[cut_after(1_000), *[say(500)] * 3])
    with pytest.raises(ConnectionError, match=r"HTTP 500.*4 attempts.*from_files.*ELMOKIT_CACHE"):
        downloads.fetch(url)
    assert kept(cache) == ["weights.hdf5.partial", "weights.hdf5.partial.json"]
    assert downloads.fetch(url).read_bytes() == WEIGHTS
    assert it.ranges[-1] == "bytes=1000-"
    assert kept(cache) == ["weights.hdf5", "weights.hdf5.json"]


def test_an_interrupted_download_keeps_what_arrived(server: Server, cache: Path) -> None:
    url, it = server.put("/weights.hdf5", WEIGHTS, deeds=[cut_after(30_000)])

    def stop(_: str, done: int, __: int | None) -> None:
        if done == 30_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        downloads.fetch(url, progress=stop)
    assert downloads.fetch(url).read_bytes() == WEIGHTS
    assert it.ranges == [None, "bytes=30000-"]


def test_without_an_etag_the_date_vouches_for_the_content(server: Server) -> None:
    date = "Wed, 21 Oct 2015 07:28:00 GMT"
    url, it = server.put("/weights.hdf5", WEIGHTS, etag='W/"weak"', modified=date, deeds=[cut_after(10_000)])
    assert downloads.fetch(url).read_bytes() == WEIGHTS
    assert it.requests[1]["If-Range"] == date
    assert it.ranges == [None, "bytes=10000-"]


@pytest.mark.parametrize("etag", [None, 'W/"weak"'])
def test_a_content_that_nothing_vouches_for_is_never_spliced(server: Server, etag: str | None) -> None:
    url, it = server.put("/weights.hdf5", WEIGHTS, etag=etag, deeds=[cut_after(10_000)])
    assert downloads.fetch(url).read_bytes() == WEIGHTS
    assert it.ranges == [None, None]


@pytest.mark.parametrize(
    ("etag", "modified", "resumes"),
    [
        ('"one"', None, True),
        (None, "Wed, 21 Oct 2015 07:28:00 GMT", True),
        ('W/"weak"', "Wed, 21 Oct 2015 07:28:00 GMT", True),
        (None, None, False),
        ('W/"weak"', None, False),
    ],
)
def test_the_error_says_whether_the_next_call_resumes_and_it_is_true(
    server: Server, etag: str | None, modified: str | None, resumes: bool
) -> None:
    url, it = server.put("/weights.hdf5", WEIGHTS, etag=etag, modified=modified)
    it.deeds = [cut_after(1_000)] * 4
    says = (
        "the next call resumes the download" if resumes else "the next call starts over, since the server sends neither"
    )
    with pytest.raises(ConnectionError, match=says):
        downloads.fetch(url)
    assert downloads.fetch(url).read_bytes() == WEIGHTS
    assert it.ranges[-1] == ("bytes=4000-" if resumes else None)


def test_a_download_of_which_nothing_arrived_promises_nothing(server: Server) -> None:
    url, _ = server.put("/weights.hdf5", WEIGHTS, deeds=[say(500)] * 4)
    with pytest.raises(ConnectionError, match=r"HTTP 500.*4 attempts\)\. Try again later\. Or download"):
        downloads.fetch(url)


def test_a_server_that_ignores_ranges_starts_over(server: Server) -> None:
    url, it = server.put("/weights.hdf5", WEIGHTS, deeds=[cut_after(10_000), ignore_range])
    assert downloads.fetch(url).read_bytes() == WEIGHTS
    assert it.ranges == [None, "bytes=10000-"]


def test_a_content_that_changes_between_break_and_resume_is_never_spliced(server: Server) -> None:
    other = hdf5_bytes(seed=1)
    assert len(other) == len(WEIGHTS)

    def change(it: Resource) -> None:
        it.body, it.etag = other, '"two"'

    url, it = server.put("/weights.hdf5", WEIGHTS, deeds=[then(change, cut_after(10_000))])
    assert downloads.fetch(url).read_bytes() == other
    assert it.ranges == [None, "bytes=10000-"]


def test_a_server_that_resumes_another_content_in_spite_of_if_range_is_found_out(server: Server) -> None:
    other = hdf5_bytes(seed=1)

    def splice(handler: Handler, it: Resource) -> None:
        it.body, it.etag = other, '"two"'  # before the answer: the next request may come at once
        span = {"Content-Range": f"bytes 10000-{len(other) - 1}/{len(other)}", "ETag": '"two"'}
        handler.answer(206, {**span, "Content-Length": str(len(other) - 10_000)}, other[10_000:])

    url, it = server.put("/weights.hdf5", WEIGHTS, deeds=[cut_after(10_000), splice])
    assert downloads.fetch(url).read_bytes() == other
    assert it.ranges == [None, "bytes=10000-", None]


@pytest.mark.parametrize("span", ["bytes 5000-{last}/{size}", "bytes 10000-{last}/*", "bytes 10000-{size}/{size}", ""])
def test_a_wrong_part_is_thrown_away_and_the_download_starts_over(server: Server, span: str) -> None:
    size = len(WEIGHTS)
    wrong = say(206, {"Content-Range": span.format(last=size - 1, size=size), "ETag": '"one"'}, WEIGHTS[10_000:])
    url, it = server.put("/weights.hdf5", WEIGHTS, deeds=[cut_after(10_000), wrong])
    assert downloads.fetch(url).read_bytes() == WEIGHTS
    assert it.ranges == [None, "bytes=10000-", None]


def test_a_part_of_a_content_of_another_length_starts_over(server: Server) -> None:
    size = len(WEIGHTS)
    longer = say(206, {"Content-Range": f"bytes 10000-{size}/{size + 1}", "ETag": '"one"'}, WEIGHTS[10_000:] + b"x")
    url, it = server.put("/weights.hdf5", WEIGHTS, deeds=[cut_after(10_000), longer])
    assert downloads.fetch(url).read_bytes() == WEIGHTS
    assert it.ranges == [None, "bytes=10000-", None]


def test_a_smaller_part_than_asked_for_is_joined_by_the_next(server: Server) -> None:
    part = {
        "Content-Range": f"bytes 10000-19999/{len(WEIGHTS)}"
    }  # and no ETag: that of the first response is still valid
    url, it = server.put("/weights.hdf5", WEIGHTS, deeds=[cut_after(10_000), say(206, part, WEIGHTS[10_000:20_000])])
    assert downloads.fetch(url).read_bytes() == WEIGHTS
    assert it.ranges == [None, "bytes=10000-", "bytes=20000-"]


def test_a_range_that_the_server_cannot_satisfy_starts_over(server: Server) -> None:
    shorter = hdf5_bytes(seed=2, size=2_000)

    def shrink(it: Resource) -> None:
        it.body = shorter  # the same ETag: the server lies, and 416 is all there is to see

    url, it = server.put("/weights.hdf5", WEIGHTS, deeds=[then(shrink, cut_after(10_000))])
    assert downloads.fetch(url).read_bytes() == shorter
    assert it.ranges == [None, "bytes=10000-", None]


def test_a_complete_file_that_was_not_yet_renamed_is_not_fetched_again(
    server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, it = server.put("/weights.hdf5", WEIGHTS)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(downloads, "_content_problem", interrupt)
        with pytest.raises(KeyboardInterrupt):
            downloads.fetch(url)
    assert kept(cache) == ["weights.hdf5.partial", "weights.hdf5.partial.json"]
    assert downloads.fetch(url).read_bytes() == WEIGHTS
    assert len(it.requests) == 1


def test_an_unreadable_note_beside_a_partial_file_starts_over(server: Server, cache: Path) -> None:
    url, it = server.put("/weights.hdf5", WEIGHTS, deeds=[cut_after(10_000), *[say(500)] * 3])
    with pytest.raises(ConnectionError):
        downloads.fetch(url)
    (note,) = cache.glob("*.partial.json")
    for rubbish in (b'{"ETag": "\x00', b"[1, 2]"):
        note.write_bytes(rubbish)
        it.deeds[:] = [say(404)]
        with pytest.raises(ConnectionError):
            downloads.fetch(url)
        assert it.ranges[-1] is None
    assert downloads.fetch(url).read_bytes() == WEIGHTS


def test_a_server_that_falls_silent_is_asked_again(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "_TIMEOUT", 1.0)
    over = threading.Event()

    def stall(handler: Handler, it: Resource) -> None:
        handler.answer(200, {**validators(it), "Content-Length": str(len(it.body))}, it.body[:10_000])
        handler.wfile.flush()
        over.wait(30)

    url, it = server.put("/weights.hdf5", WEIGHTS, deeds=[stall])
    try:
        assert downloads.fetch(url).read_bytes() == WEIGHTS
    finally:
        over.set()
    assert it.ranges == [None, "bytes=10000-"]


def test_a_full_disk_names_the_file_and_the_download_resumes_when_there_is_room(server: Server) -> None:
    big = hdf5_bytes(size=600_000)
    url, it = server.put("/weights.hdf5", big)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    try:
        with pytest.raises(OSError, match=r"weights\.hdf5\.partial"):
            downloads.fetch(url)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert downloads.fetch(url).read_bytes() == big
    assert it.ranges == [None, "bytes=200000-"]


# --- a server that lies or talks rubbish


def test_a_body_shorter_than_announced_is_never_taken_as_complete(server: Server, cache: Path) -> None:
    url, it = server.put("/weights.hdf5", WEIGHTS, etag=None, deeds=[announce(len(WEIGHTS) + 10)] * 4)
    with pytest.raises(ConnectionError, match=rf"after {len(WEIGHTS)} of {len(WEIGHTS) + 10} bytes"):
        downloads.fetch(url)
    assert len(it.requests) == 4
    assert not list(cache.glob("*-weights.hdf5"))
    assert downloads.fetch(url).read_bytes() == WEIGHTS


@pytest.mark.parametrize(("path", "body"), [("/weights.hdf5", WEIGHTS), ("/options.json", OPTIONS)])
def test_a_body_longer_than_announced_is_found_out_by_its_content(
    server: Server, cache: Path, path: str, body: bytes
) -> None:
    url, _ = server.put(path, body, deeds=[announce(len(body) - 10)])
    with pytest.raises(ValueError, match=rf"{re.escape(url)}: expected .* but {len(body) - 10} bytes arrived"):
        downloads.fetch(url)
    assert kept(cache) == []
    assert downloads.fetch(url).read_bytes() == body


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/weights.hdf5", b"<!DOCTYPE html><title>Sign in</title>", "expected an HDF5 file, but an HTML page"),
        ("/weights.h5", b"\n <html>moved</html>", "expected an HDF5 file, but an HTML page"),
        ("/weights.hdf5", b"version https://git-lfs", r"expected an HDF5 file, but 23 bytes .* b'version https://'"),
        ("/weights.hdf5", b"", r"expected an HDF5 file, but nothing arrived"),
        ("/weights.hdf5", WEIGHTS[:1000], r"expected an HDF5 file, but 1000 bytes .* do not open .*truncated"),
        ("/options.json", b"<html>moved</html>", "expected JSON, but an HTML page"),
        ("/options.json", b'{"lstm": ', "expected JSON, but 9 bytes"),
        ("/options.json", b"\xff\xfe\xfd", "expected JSON, but 3 bytes"),
        ("/vocab.txt", b"<html>moved</html>", "expected a file, but an HTML page"),
        ("/vocab.txt", b"", "expected a file, but nothing arrived"),
    ],
)
def test_rubbish_is_refused_by_name_and_not_kept(
    server: Server, cache: Path, path: str, body: bytes, message: str
) -> None:
    url, it = server.put(path, body)
    with pytest.raises(ValueError, match=f"{re.escape(url)}: {message}"):
        downloads.fetch(url)
    assert kept(cache) == []
    assert len(it.requests) == 1


def test_a_content_with_another_sha256_than_asked_for_is_refused(server: Server, cache: Path) -> None:
    url, it = server.put("/weights.hdf5", WEIGHTS)
    right = hashlib.sha256(WEIGHTS).hexdigest()
    with pytest.raises(ValueError, match=f"its sha256 is {right}, expected {'0' * 64}"):
        downloads.fetch(url, sha256="0" * 64)
    assert kept(cache) == []
    path = downloads.fetch(url, sha256=right.upper())
    with pytest.raises(ValueError, match=f"{re.escape(str(path))}: its sha256 is {right}, expected {'0' * 64}"):
        downloads.fetch(url, sha256="0" * 64)
    assert len(it.requests) == 2
    with pytest.raises(ValueError, match="sha256 'abc': expected 64"):
        downloads.fetch(url, sha256="abc")


def test_a_url_whose_content_changed_since_its_first_use_is_refused(server: Server, cache: Path) -> None:
    url, it = server.put("/weights.hdf5", WEIGHTS)
    path = downloads.fetch(url)
    path.unlink()
    it.body, it.etag = hdf5_bytes(seed=1), '"two"'
    with pytest.raises(ValueError, match=r"on first use it was .* delete .*weights\.hdf5\.json"):
        downloads.fetch(url)
    assert kept(cache) == ["weights.hdf5.json"]
    assert downloads.fetch(url, sha256=hashlib.sha256(it.body).hexdigest()).read_bytes() == it.body


# --- what happens to the cache between two calls


def test_a_cached_file_that_changed_is_an_error_until_it_is_deleted(server: Server) -> None:
    url, it = server.put("/weights.hdf5", WEIGHTS)
    path = downloads.fetch(url)
    for changed in (WEIGHTS[:-1], bytes(len(WEIGHTS))):
        path.write_bytes(changed)
        os.utime(path, ns=(1, 1))
        with pytest.raises(ValueError, match=rf"{re.escape(str(path))}: this file has changed .* delete it"):
            downloads.fetch(url)
    assert len(it.requests) == 1
    path.unlink()
    assert downloads.fetch(url).read_bytes() == WEIGHTS


def test_a_copied_cache_is_as_good_as_the_first(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    url, it = server.put("/weights.hdf5", WEIGHTS)
    path = downloads.fetch(url)
    os.utime(path, ns=(1, 1))
    assert downloads.fetch(url) == path
    assert json.loads(Path(f"{path}.json").read_text())["mtime_ns"] == 1
    monkeypatch.setattr(downloads, "sha256_of", lambda _: pytest.fail("hashed a file that nobody touched"))
    assert downloads.fetch(url) == path
    assert len(it.requests) == 1


def test_a_cached_file_without_a_usable_record_is_taken(server: Server) -> None:
    url, it = server.put("/weights.hdf5", WEIGHTS)
    path = downloads.fetch(url)
    record = Path(f"{path}.json")
    record.unlink()
    assert downloads.fetch(url, sha256=hashlib.sha256(WEIGHTS).hexdigest()) == path
    assert json.loads(record.read_text())["sha256"] == hashlib.sha256(WEIGHTS).hexdigest()
    record.write_text(json.dumps({"size": path.stat().st_size, "mtime_ns": path.stat().st_mtime_ns}))
    with pytest.raises(ValueError, match=f"expected {'0' * 64}"):
        downloads.fetch(url, sha256="0" * 64)
    record.unlink()
    record.mkdir()  # a record that can neither be read nor written, as in a cache of somebody else
    assert downloads.fetch(url) == path
    assert len(it.requests) == 1
    assert not list(path.parent.glob("*.tmp"))


def test_a_cache_that_cannot_be_written_says_so(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ELMOKIT_CACHE", str(tmp_path / "file" / "cache"))
    url, it = server.put("/weights.hdf5", WEIGHTS)
    with pytest.raises(ValueError, match=r"cache folder .*file.cache is not writable .*ELMOKIT_CACHE"):
        downloads.fetch(url)
    assert it.requests == []


# --- errors of the network


@pytest.mark.parametrize("status", [403, 404, 410])
def test_a_refusal_is_an_error_at_once_and_the_next_call_asks_again(server: Server, cache: Path, status: int) -> None:
    url, it = server.put("/weights.hdf5", WEIGHTS, deeds=[say(status, body=b"<html>no</html>")])
    with pytest.raises(ConnectionError, match=rf"{re.escape(url)}: HTTP {status} .*from_files"):
        downloads.fetch(url)
    assert len(it.requests) == 1
    assert kept(cache) == []
    assert downloads.fetch(url).read_bytes() == WEIGHTS


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_passing_failure_is_asked_again(server: Server, status: int) -> None:
    url, it = server.put("/weights.hdf5", WEIGHTS, deeds=[say(status), say(status)])
    assert downloads.fetch(url).read_bytes() == WEIGHTS
    assert len(it.requests) == 3


def test_a_response_that_is_not_a_file_is_an_error(server: Server, cache: Path) -> None:
    url, _ = server.put("/weights.hdf5", WEIGHTS, deeds=[say(202)])
    with pytest.raises(ConnectionError, match="HTTP 202"):
        downloads.fetch(url)
    assert kept(cache) == []


def test_a_response_that_is_not_http_is_an_error(server: Server) -> None:
    def hang_up(handler: Handler, it: Resource) -> None:
        handler.close_connection = True

    def babble(handler: Handler, it: Resource) -> None:
        handler.wfile.write(b"220 mail ready\r\n")
        handler.close_connection = True

    url, it = server.put("/weights.hdf5", WEIGHTS, deeds=[hang_up, hang_up, babble, babble])
    with pytest.raises(ConnectionError, match="BadStatusLine: 220 mail ready"):
        downloads.fetch(url)
    assert len(it.requests) == 4


def test_no_server_no_name_and_no_answer_are_each_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    with pytest.raises(ConnectionError, match=rf"http://127\.0\.0\.1:{port}/w\.hdf5: .*refused.*from_files"):
        downloads.fetch(f"http://127.0.0.1:{port}/w.hdf5")

    def fails(error: OSError) -> Callable[..., None]:
        def getaddrinfo(*_: object, **__: object) -> None:
            raise error

        return getaddrinfo

    monkeypatch.setattr(socket, "getaddrinfo", fails(socket.gaierror(-2, "Name or service not known")))
    with pytest.raises(ConnectionError, match=r"models\.invalid/w\.hdf5: .*Name or service not known"):
        downloads.fetch("http://models.invalid/w.hdf5")
    monkeypatch.setattr(socket, "getaddrinfo", fails(TimeoutError("timed out")))
    with pytest.raises(ConnectionError, match=r"models\.invalid/w\.hdf5: no answer within 10 s"):
        downloads.fetch("http://models.invalid/w.hdf5")


def test_offline_the_cache_works_and_the_network_is_not_touched(
    server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, it = server.put("/weights.hdf5", WEIGHTS)
    monkeypatch.setenv("ELMOKIT_OFFLINE", "1")
    with pytest.raises(ConnectionError, match=rf"{re.escape(url)} is not in the cache .*ELMOKIT_OFFLINE"):
        downloads.fetch(url)
    assert it.requests == []
    assert not cache.exists()
    monkeypatch.setenv("ELMOKIT_OFFLINE", "0")
    path = downloads.fetch(url)
    monkeypatch.setenv("ELMOKIT_OFFLINE", "Yes")
    assert downloads.fetch(url) == path
    assert len(it.requests) == 1


@pytest.mark.parametrize(
    ("value", "expected"), [("1", True), ("true", True), ("YES", True), ("0", False), ("", False), ("no", False)]
)
def test_offline_is_what_the_variable_says(value: str, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELMOKIT_OFFLINE", value)
    assert downloads.is_offline() is expected


# --- two at once


def hold(started: threading.Event, gate: threading.Event) -> Callable[[Handler, Resource], None]:
    def deed(handler: Handler, it: Resource) -> None:
        started.set()
        gate.wait(30)
        well(handler, it)

    return deed


def test_two_threads_make_one_download(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    started, waiting, gate = threading.Event(), threading.Event(), threading.Event()
    url, it = server.put("/options.json", OPTIONS, deeds=[hold(started, gate)])
    inform = files.logger.info

    def info(message: str, *args: object) -> None:
        inform(message, *args)
        if message.startswith("waiting"):
            waiting.set()

    monkeypatch.setattr(files.logger, "info", info)
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(downloads.fetch(url))) for _ in range(2)]
    threads[0].start()
    assert started.wait(30)
    threads[1].start()
    assert waiting.wait(30)
    gate.set()
    for thread in threads:
        thread.join(30)
    assert len(found) == 2
    assert found[0] == found[1]
    assert found[0].read_bytes() == OPTIONS
    assert len(it.requests) == 1


FETCH = """
import logging, sys
from elmokit.storage import downloads
logging.basicConfig(level=logging.INFO, stream=sys.stderr)
print(downloads.fetch(sys.argv[1]).read_text())
"""


def test_two_processes_make_one_download(server: Server) -> None:
    started, gate = threading.Event(), threading.Event()
    url, it = server.put("/options.json", OPTIONS, deeds=[hold(started, gate)])
    command = [sys.executable, "-c", FETCH, url]

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    with start() as first:
        assert started.wait(30)
        with start() as second:
            assert second.stderr is not None
            assert "waiting for another process that uses" in second.stderr.readline()
            gate.set()
            outputs = [process.communicate(timeout=30)[0] for process in (first, second)]
    assert outputs == [OPTIONS.decode() + "\n"] * 2
    assert len(it.requests) == 1


def test_without_locks_a_download_still_works(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Lockless:
        LOCK_EX, LOCK_NB = 2, 4

        @staticmethod
        def flock(*_: int) -> None:
            raise OSError(38, "Function not implemented")

    monkeypatch.setattr(files, "fcntl", Lockless)
    url, _ = server.put("/a/options.json", OPTIONS)
    assert downloads.fetch(url).read_bytes() == OPTIONS
    assert "cannot be locked" in caplog.text
    monkeypatch.setattr(files, "fcntl", None)
    url, _ = server.put("/b/options.json", OPTIONS)
    assert downloads.fetch(url).read_bytes() == OPTIONS


# --- paths and URLs that are not downloads


def test_a_local_path_comes_back_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "my options.json"
    file.write_bytes(OPTIONS)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ELMOKIT_OFFLINE", "1")
    for given in (file, str(file), file.as_uri(), f"file://localhost{tmp_path}/my%20options.json", "~/my options.json"):
        assert downloads.fetch(given) == file
    assert downloads.fetch(file, sha256=hashlib.sha256(OPTIONS).hexdigest()) == file
    with pytest.raises(ValueError, match=r"my options\.json: its sha256 is"):
        downloads.fetch(file, sha256="0" * 64)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("nowhere/weights.hdf5", "no file 'nowhere/weights.hdf5'"),
        ("", "no file ''"),
        ("nul\x00byte", "no file"),
        (".", "this is a folder"),
        (Path("file:///nowhere"), "no file"),
        ("file:///nowhere/weights.hdf5", "no file"),
        ("file://elsewhere/weights.hdf5", "another machine"),
        ("ftp://host/weights.hdf5", "scheme 'ftp' is not known; use http, https or file"),
        ("s3://bucket/weights.hdf5", "scheme 's3'"),
        ("http:///weights.hdf5", "not a URL"),
        ("http://[::1/weights.hdf5", "not a URL"),
        ("http://host:port/weights.hdf5", "not a URL"),
        ("http://host/my weights.hdf5", "percent-encoded"),
        ("http://host/w\r\nX: y", "percent-encoded"),
        ("http://höst/weights.hdf5", "percent-encoded"),
        (None, "None: expected a string or a path, got NoneType"),
        (b"weights.hdf5", "got bytes"),
        (7, "got int"),
    ],
)
def test_what_cannot_be_fetched_is_an_error_that_names_it(value: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        downloads.fetch(value)


def test_the_cache_folder_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    monkeypatch.setenv("ELMOKIT_CACHE", "~/mine")
    assert downloads.cache_dir() == tmp_path / "mine"
    monkeypatch.setenv("ELMOKIT_CACHE", "")
    assert downloads.cache_dir() == Path("/xdg/elmokit")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert downloads.cache_dir() == tmp_path / ".cache" / "elmokit"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert downloads.cache_dir() == tmp_path / ".cache" / "elmokit"


# --- what is in the cache, and cleaning it


def everything(cache: Path) -> set[str]:
    return {path.relative_to(cache).as_posix() for path in cache.rglob("*")}


def test_the_cache_lists_each_download_with_its_url_and_size(server: Server, cache: Path) -> None:
    assert downloads.cached_files() == []
    whole, _ = server.put("/a/options.json", OPTIONS)
    broken, _ = server.put("/b/weights.hdf5", WEIGHTS, deeds=[cut_after(10_000), *[say(500)] * 3])
    path = downloads.fetch(whole)
    with pytest.raises(ConnectionError):
        downloads.fetch(broken)
    listed = {file.url: file for file in downloads.cached_files()}
    assert set(listed) == {whole, broken}
    assert (listed[whole].path, listed[whole].is_complete) == (path, True)
    assert (listed[broken].path, listed[broken].is_complete) == (downloads.cached_path(broken), False)
    assert listed[whole].size == sum(file.stat().st_size for file in cache.glob(f"{path.name}*"))
    assert 10_000 < listed[broken].size < 11_000


def test_cleaning_removes_what_downloads_wrote_and_nothing_else(server: Server, cache: Path) -> None:
    cache.mkdir()
    theirs = [
        "notes.txt",
        "0123456789abcdef-weights.hdf5",  # the name of a download, without a record
        "0123456789abcdef-other.json",
        "vectors/0123456789abcdef-x.f16",
        "full.lock",
        "0123456789abcdef-full.lock",
        ".hidden.1-00000000.tmp",
    ]
    (cache / "vectors").mkdir()
    for name in theirs:
        (cache / name).write_bytes(b"theirs")
    (cache / "list.json").write_text("[1]")
    (cache / "record.json").write_text(json.dumps({"url": "https://host/weights.hdf5", "sha256": "0"}))
    (cache / "strange.json").write_text(json.dumps({"url": "http://[::1"}))
    before = everything(cache)

    whole, _ = server.put("/a/options.json", OPTIONS)
    broken, _ = server.put("/b/weights.hdf5", WEIGHTS, deeds=[cut_after(10_000), *[say(500)] * 3])
    refused, _ = server.put("/c/weights.hdf5", WEIGHTS, deeds=[say(404)])
    path = downloads.fetch(whole)
    (cache / f".{path.name}.json.12-0123abcd.tmp").write_bytes(b"killed")
    for url in (broken, refused):
        with pytest.raises(ConnectionError):
            downloads.fetch(url)
    written = [cache / name for name in everything(cache) - before]
    assert len(written) == 8  # file, record, lock, temporary; partial, its record, lock; lock
    size = sum(file.stat().st_size for file in written)
    assert downloads.clean_cache() == size > len(OPTIONS) + 10_000
    assert everything(cache) == before
    assert downloads.clean_cache() == 0
    assert downloads.fetch(whole).read_bytes() == OPTIONS


def test_a_cache_that_does_not_exist_is_clean(cache: Path) -> None:
    assert downloads.clean_cache() == 0
    assert not cache.exists()


def test_cleaning_leaves_a_download_that_is_under_way(server: Server, cache: Path) -> None:
    started, gate = threading.Event(), threading.Event()
    done, _ = server.put("/a/options.json", OPTIONS)
    url, it = server.put("/b/options.json", OPTIONS, deeds=[hold(started, gate)])
    path = downloads.fetch(done)
    found: list[Path] = []
    thread = threading.Thread(target=lambda: found.append(downloads.fetch(url)))
    thread.start()
    assert started.wait(30)
    assert downloads.clean_cache() > 0
    assert everything(cache) == {f"{downloads.cached_path(url).name}.lock"}
    gate.set()
    thread.join(30)
    assert not path.exists()
    assert found[0].read_bytes() == OPTIONS
    assert len(it.requests) == 1


@pytest.mark.parametrize("record", [".json", ".partial.json"])
def test_a_record_that_a_killed_process_was_writing_belongs_to_its_download(tmp_path: Path, record: str) -> None:
    target = tmp_path / "weights.hdf5"
    with replacing(Path(f"{target}{record}")) as temporary:
        assert downloads._files_of(target) == [temporary]
