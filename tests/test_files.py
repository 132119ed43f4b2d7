"""Files: writes are atomic, checksums are those of hashlib, and a lock keeps other processes out."""

import errno
import hashlib
import json
import logging
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from elmokit import files
from elmokit.files import claimed, locked, replacing, replacing_together, sha256_of, sha256_of_json, write_json


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# ---- atomic writes ---------------------------------------------------------------------------------------------------


def test_files_that_belong_together_appear_together_or_not_at_all(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text("old", encoding="utf-8")
    with pytest.raises(FileNotFoundError), replacing_together([first, second]) as (temporary, _):
        temporary.write_text((tmp_path / "none").read_text(encoding="utf-8"), encoding="utf-8")
    assert contents(tmp_path) == {"first": b"old"}
    with replacing_together([first, second]) as temporaries:
        for temporary in temporaries:
            temporary.write_text("new", encoding="utf-8")
        assert first.read_text(encoding="utf-8") == "old"
    assert contents(tmp_path) == {"first": b"new", "second": b"new"}


def test_the_temporary_file_of_a_killed_process_is_removed_by_the_next_write(tmp_path):
    code = """
import os, signal, sys
from pathlib import Path
from elmokit.files import replacing
with replacing(Path(sys.argv[1])) as temporary:
    temporary.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    target = tmp_path / "out.txt"
    subprocess.run([sys.executable, "-c", code, str(target)], check=False)
    assert len(contents(tmp_path)) == 1
    other = tmp_path / "other.txt"
    with replacing(target) as running, replacing(other) as temporary:  # neither removes that of the other
        assert len(contents(tmp_path)) == 2
        with replacing(target) as second:
            second.write_text("second", encoding="utf-8")
        temporary.write_text("whole", encoding="utf-8")
        running.write_text("whole", encoding="utf-8")
    assert contents(tmp_path) == {"out.txt": b"whole", "other.txt": b"whole"}


@pytest.mark.parametrize("path", ["/dev/full", "/dev/null", "folder"])
def test_a_device_or_a_folder_is_never_replaced(tmp_path, path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match=rf"{path}: this is not a regular file"), replacing(tmp_path / path):
        pytest.fail("got to write")
    assert (tmp_path / path).exists()
    assert not (tmp_path / path).is_file()


def test_a_link_stays_and_what_it_points_to_is_replaced(tmp_path):
    (tmp_path / "target").write_text("old", encoding="utf-8")
    (tmp_path / "link").symlink_to("target")
    with replacing(tmp_path / "link") as temporary:
        temporary.write_text("new", encoding="utf-8")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text(encoding="utf-8") == "new"


def test_an_output_in_no_folder_is_named_as_it_was_asked_for(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none/out\.txt'"), replacing(tmp_path / "none" / "out.txt"):
        pytest.fail("got to write")


def test_an_error_about_another_file_goes_through_untouched(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"input\.txt'"), replacing(tmp_path / "out.txt"):
        (tmp_path / "input.txt").read_text(encoding="utf-8")
    with pytest.raises(OSError, match="words only"), replacing(tmp_path / "out.txt"):
        raise OSError("words only")
    assert contents(tmp_path) == {}


def test_json_comes_back_as_it_was_written_and_a_failed_write_leaves_the_old_file(tmp_path):
    value = {"b": [1, 2.5, None, True], "a": {"ü": "\ud800 日本"}}
    write_json(tmp_path / "x.json", value)
    assert json.loads((tmp_path / "x.json").read_text(encoding="ascii")) == value
    with pytest.raises(TypeError):
        write_json(tmp_path / "x.json", {"b": object()})
    assert json.loads((tmp_path / "x.json").read_bytes()) == value
    assert list(contents(tmp_path)) == ["x.json"]


# ---- checksums -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", b"abc", bytes(range(256)) * 5000])
def test_the_checksum_of_a_file_is_that_of_its_bytes(tmp_path, content):
    (tmp_path / "file").write_bytes(content)
    assert sha256_of(tmp_path / "file") == hashlib.sha256(content).hexdigest()


def test_the_checksum_of_json_does_not_depend_on_the_order_of_keys():
    assert sha256_of_json({"a": 1, "b": [1, 2]}) == sha256_of_json({"b": [1, 2], "a": 1})
    assert sha256_of_json({"a": 1, "b": [1, 2]}) == hashlib.sha256(b'{"a": 1, "b": [1, 2]}').hexdigest()
    assert sha256_of_json([1, 2]) != sha256_of_json([2, 1])


# ---- locks -----------------------------------------------------------------------------------------------------------

HOLD = """
import sys
from pathlib import Path
from elmokit.files import locked
with locked(Path(sys.argv[1]), wait=True):
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("kind", ["folder", "file", "new"])
def test_a_lock_keeps_another_process_out_until_it_ends_or_dies(tmp_path, kind):
    path = tmp_path / "it"
    if kind == "folder":
        path.mkdir()
    elif kind == "file":
        path.write_text("content", encoding="utf-8")
    for ends in (lambda process: process.communicate("\n", timeout=30), lambda process: process.kill()):
        command = [sys.executable, "-c", HOLD, str(path)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline() == "held\n"
            with pytest.raises(BlockingIOError), locked(path, wait=False):
                pytest.fail("got the lock")
            ends(process)
        with locked(path, wait=False):
            pass
    if kind == "file":
        assert path.read_text(encoding="utf-8") == "content"


def test_who_waits_for_a_lock_gets_it_when_it_is_released(tmp_path, caplog):
    order: list[str] = []
    waiting = threading.Event()

    class Notice(logging.Handler):
        def emit(self, record):
            if "waiting for another process" in record.getMessage():
                waiting.set()

    def second() -> None:
        with locked(tmp_path, wait=True):
            order.append("second")

    notice = Notice()
    files.logger.addHandler(notice)
    try:
        with caplog.at_level(logging.INFO, logger="elmokit.files"), locked(tmp_path, wait=True):
            thread = threading.Thread(target=second)
            thread.start()
            assert waiting.wait(30)
            order.append("first")
        thread.join(30)
    finally:
        files.logger.removeHandler(notice)
    assert order == ["first", "second"]


def test_a_lock_file_that_was_removed_meanwhile_is_not_held_in_vain(tmp_path):
    """Who waits for a file that its holder removes must not hold a lock that nobody else can see."""
    path = tmp_path / "lock"
    seen: list[bool] = []

    def second() -> None:
        with locked(path, wait=True):
            seen.append(path.exists())

    with locked(path, wait=True):
        thread = threading.Thread(target=second)
        thread.start()
        path.unlink()
    thread.join(30)
    assert seen == [True]


def test_an_error_in_the_block_releases_the_lock(tmp_path):
    with pytest.raises(KeyError), locked(tmp_path, wait=True):
        raise KeyError
    with locked(tmp_path, wait=False):
        pass


def test_a_file_system_without_locks_is_a_warning_for_who_waits_and_an_error_for_who_does_not(
    tmp_path, monkeypatch, caplog
):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(files.fcntl, "flock", no_locks)
    with locked(tmp_path, wait=True):
        assert "cannot be locked ([Errno 37] No locks available)" in caplog.text
    with pytest.raises(OSError, match="No locks available"), locked(tmp_path, wait=False):
        pytest.fail("got the lock")


def test_without_flock_nothing_is_locked(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "fcntl", None)
    with locked(tmp_path / "lock", wait=False), locked(tmp_path / "lock", wait=False):
        pass


# ---- claims ----------------------------------------------------------------------------------------------------------

CLAIM = """
import sys
from pathlib import Path
from elmokit.files import claimed
with claimed(Path(sys.argv[1])):
    print("claimed", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.skipif(files.fcntl is None, reason="there are no file locks here")
@pytest.mark.parametrize("ends", [True, False], ids=["ends", "is killed"])
def test_a_claim_names_the_process_that_holds_it_until_that_ends_or_is_killed(tmp_path, ends):
    target = tmp_path / "out.npz"
    with subprocess.Popen(
        [sys.executable, "-c", CLAIM, str(target)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        assert other.stdout.readline() == "claimed\n"
        holder = (
            rf"\(process {other.pid} on {socket.gethostname()}, since {time.strftime('%Y')}-\d\d-\d\d \d\d:\d\d:\d\d\)"
        )
        message = rf"out\.npz: another process is writing it {holder}: wait"
        for _ in range(2):  # who is refused leaves the claim as it is
            with pytest.raises(ValueError, match=message), claimed(target):
                pytest.fail("got the claim")
        if ends:
            other.stdin.write("\n")
            other.stdin.flush()
        else:
            other.kill()
        other.wait()
    with claimed(target), claimed(tmp_path / "another.npz"):
        assert not target.exists()
    assert list(tmp_path.iterdir()) == []


def test_a_claim_ends_with_an_error_too_and_what_a_lock_file_holds_does_not_matter(tmp_path):
    (tmp_path / ".out.lock").write_text("torn")
    with pytest.raises(KeyError), claimed(tmp_path / "out"):
        raise KeyError
    with claimed(tmp_path / "out", lock=tmp_path / "elsewhere"):
        assert [path.name for path in tmp_path.iterdir()] == ["elsewhere"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(files.fcntl is None, reason="there are no file locks here")
def test_a_claim_on_a_file_system_without_locks_is_a_warning(tmp_path, monkeypatch, caplog):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(files.fcntl, "flock", no_locks)
    with claimed(tmp_path / "out"):
        assert "out cannot be locked ([Errno 37] No locks available)" in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_without_flock_nothing_is_claimed(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "fcntl", None)
    with claimed(tmp_path / "out"), claimed(tmp_path / "out"):
        assert list(tmp_path.iterdir()) == []
