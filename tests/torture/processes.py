"""Work in a child process: with a time limit, a memory limit, and what became of it.

Input: a function without arguments. Output: an `Outcome`: its value, its exception, its exit code or its signal. The
child is forked, so that torch is imported once for thousands of them; it leads a session of its own, so that the
processes that it starts can be found.
"""

import contextlib
import faulthandler
import os
import pickle
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GIB = 1 << 30


@dataclass(frozen=True)
class Outcome:
    """What became of a child."""

    value: Any = None
    error: str | None = None
    """Type and message of the exception."""
    error_types: tuple[str, ...] = ()
    """The exception's type, and those that it is derived from."""
    traceback: str = ""
    exit_code: int = 0
    signal: int | None = None
    hung: bool = False
    seconds: float = 0.0
    peak: int = 0
    """Bytes of memory beyond those of the parent."""


class Child:
    """A function that runs in a process of its own.

    Args:
        work: What to run. A `SystemExit` is its exit code.
        log: The file of its standard output and error. Default: they are thrown away.
        folder: Its current folder.
        memory: Largest number of bytes of address space beyond those of this process.
    """

    def __init__(
        self, work: Callable[[], Any], *, log: Path | None = None, folder: Path | None = None, memory: int | None = None
    ) -> None:
        self._read, write = os.pipe()
        self._parent_bytes = _resident_bytes()
        self._begin = time.monotonic()
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _run_and_exit(work, write, log, folder, memory)
        os.close(write)

    def kill(self) -> None:
        """Kill the process, not those that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def wait(self, seconds: float, *, heartbeat: Callable[[], Any] = lambda: None) -> Outcome:
        """Wait for the end.

        Args:
            seconds: The process is killed if it takes longer; its log then has a traceback.
            heartbeat: A value that changes while the work advances: the time counts from the last change.
        """
        payload, hung, beat, deadline = b"", False, heartbeat(), self._begin + seconds
        while True:
            ready, _, _ = select.select([self._read], [], [], max(0.0, min(1.0, deadline - time.monotonic())))
            if heartbeat() != beat:
                beat, deadline = heartbeat(), time.monotonic() + seconds
            if not ready and time.monotonic() < deadline:
                continue
            if not ready:
                hung = True
                os.kill(self.pid, signal.SIGUSR1)  # faulthandler writes where it is
                time.sleep(0.3)
                self.kill()
                break
            chunk = os.read(self._read, 1 << 20)
            if not chunk:
                break
            payload += chunk
        os.close(self._read)
        _, status, usage = os.wait4(self.pid, 0)
        told = pickle.loads(payload) if payload and not hung else {}
        return Outcome(
            **told,
            signal=os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
            hung=hung,
            seconds=time.monotonic() - self._begin,
            peak=max(0, usage.ru_maxrss * 1024 - self._parent_bytes),
        )

    def orphans(self, seconds: float) -> list[int]:
        """Processes of its session that are alive after so many seconds; they are killed then."""
        deadline = time.monotonic() + seconds
        while (alive := _session_members(self.pid)) and time.monotonic() < deadline:
            time.sleep(0.05)
        for pid in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return alive


def _run_and_exit(
    work: Callable[[], Any], write: int, log: Path | None, folder: Path | None, memory: int | None
) -> None:
    code = 0
    try:
        os.setsid()
        handle = os.open(os.devnull if log is None else log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for stream in (1, 2):
            os.dup2(handle, stream)
        faulthandler.register(signal.SIGUSR1, file=2)
        if folder is not None:
            os.chdir(folder)
        if memory is not None:
            limit = _address_space() + memory
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        try:
            told = {"value": work()}
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
            told = {"exit_code": code}
        except BaseException as error:
            told = {
                "error": f"{type(error).__name__}: {error}",
                "error_types": tuple(kind.__name__ for kind in type(error).__mro__),
                "traceback": traceback.format_exc(),
            }
        sys.stdout.flush()
        sys.stderr.flush()
        payload = pickle.dumps(told)
        while payload:
            payload = payload[os.write(write, payload) :]
    finally:
        os._exit(code)


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _session_members(session: int) -> list[int]:
    members = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == session and fields[0] != "Z":
                    members.append(int(entry.name))
    return members
