"""Progress of long work, on standard error: a bar on a terminal or in a notebook, else lines.

Input: what is done so far, in bytes or in units of work.  Output: rich's bar, or lines such as

    embedding: 12.3 MB of 45.6 MB (27%), 1.2 MB/s, 0:00:27 left

The first line comes after some seconds, the next ones at most one every few seconds. rich is imported only for a bar.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from typing import Any

OnProgress = Callable[[int, int], None]
"""Called with what is done, and with all there is to do."""

SECONDS_BETWEEN_LINES = 5.0
MOST_SECONDS_BETWEEN_LINES = 60.0  # of work that takes an hour, so that its log stays short
RECENT_LINES = 6  # whose rate is shown


class Advance:
    """Advances a progress display by a count, or to a position.

    Args:
        show: Shows what is done, and all there is to do, None if that is not known.
        total: All there is to do.
    """

    def __init__(self, show: Callable[[int, int | None], None], total: int | None) -> None:
        self._show, self._done, self._total = show, 0, total

    def __call__(self, count: int) -> None:
        self.to(self._done + count, self._total)

    def to(self, done: int, total: int | None) -> None:
        """Show that `done` of `total` are done."""
        self._done, self._total = done, total
        self._show(done, total)


@contextmanager
def progress_bar(label: str, total: int | None, *, in_bytes: bool = True, report: bool = False) -> Iterator[Advance]:
    """Show progress on standard error.

    Args:
        label: What is done.
        total: All there is to do; None if it is not known.
        in_bytes: Count bytes, else units of work.
        report: The user asked for it: leave the bar, or a last line, also of work that takes no time.
    """
    if shows_bars():
        with _rich_bar(in_bytes, transient=not report) as bar:
            yield Advance(_move(bar, label, total), total)
        return
    lines = Lines(label, in_bytes=in_bytes)
    yield Advance(lines.show, total)
    if report or lines.num_written:
        lines.end()


@contextmanager
def reporting(show_progress: bool | OnProgress, label: str, total: int) -> Iterator[OnProgress]:
    """The progress of a call with the argument `show_progress`: a bar, nothing, or the function of the caller."""
    if callable(show_progress):
        yield show_progress
    elif show_progress:
        with progress_bar(label, total, in_bytes=False, report=True) as advance:
            yield advance.to
    else:
        yield lambda done, total: None


@contextmanager
def downloads() -> Iterator[Callable[[str, int, int | None], None]]:
    """Show the progress of files that are downloaded, each from its first byte on: most calls download nothing."""
    shown: dict[str, Callable[[int, int | None], None]] = {}
    with ExitStack() as stack:
        bars: list[Any] = []

        def progress(name: str, done: int, total: int | None) -> None:
            if name not in shown:
                if shows_bars() and not bars:
                    bars.append(stack.enter_context(_rich_bar(in_bytes=True, transient=True)))
                shown[name] = _move(bars[0], name, total) if bars else Lines(name, in_bytes=True).show
            shown[name](done, total)

        yield progress


def shows_bars() -> bool:
    """Whether standard error can show a bar: it is a terminal, or the cell of a notebook."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules


def format_bytes(count: float) -> str:
    """A number of bytes to read, such as "35.7 MB"."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} bytes"


def format_count(count: int, one: str, many: str | None = None) -> str:
    """A number with its noun, such as "1 sentence" or "1,200 sentences".

    Args:
        count: The number.
        one: The noun of one.
        many: The noun of several; None adds an "s".
    """
    return f"{count:,} {one if count == 1 else many or one + 's'}"


class Lines:
    """Writes progress as lines: none before SECONDS_BETWEEN_LINES have passed, then one in a while.

    Args:
        label: What is done.
        in_bytes: Counts are bytes.
    """

    def __init__(self, label: str, *, in_bytes: bool) -> None:
        self.label, self.in_bytes, self.num_written = label, in_bytes, 0
        self._begin = time.monotonic()
        self._next = self._begin + SECONDS_BETWEEN_LINES
        self._points = deque([(self._begin, 0)], maxlen=RECENT_LINES)
        self._last: tuple[int, int | None] = 0, None

    def show(self, done: int, total: int | None) -> None:
        """Write a line, if it is time for one."""
        self._last = done, total
        now = time.monotonic()
        if now < self._next:
            return
        wait = max(SECONDS_BETWEEN_LINES, min((now - self._begin) / 60, MOST_SECONDS_BETWEEN_LINES))
        self._next = now + wait
        self._write(done, total, now)

    def end(self) -> None:
        """Write the last line, unless it is written already."""
        now = time.monotonic()
        if self._points[-1][1] != self._last[0] or not self.num_written:
            done, total = self._last
            took = str(timedelta(seconds=round(now - self._begin)))
            self._print(f"{self.label}: {self._amount(done, total)}, {took} in all")

    def _write(self, done: int, total: int | None, now: float) -> None:
        if done < self._points[-1][1]:  # the next stage of the work
            self._points.clear()
        begin, before = self._points[0] if self._points else (now, done)
        self._points.append((now, done))
        rate = (done - before) / (now - begin) if now > begin else 0.0
        text = f"{self.label}: {self._amount(done, total)}"
        if rate > 0:
            text += f", {self._count(rate)}/s"
            if total is not None:
                text += f", {timedelta(seconds=round(max(0, total - done) / rate))} left"
        self._print(text)

    def _amount(self, done: int, total: int | None) -> str:
        if total is None:
            return self._count(done)
        percent = 100 * min(done, total) // total if total else 100
        return f"{self._count(done)} of {self._count(total)} ({percent}%)"

    def _count(self, count: float) -> str:
        return (
            format_bytes(count) if self.in_bytes else f"{count:,.1f}" if count < 10 and count % 1 else f"{count:,.0f}"
        )

    def _print(self, text: str) -> None:
        self.num_written += 1
        with suppress(OSError, ValueError):  # nobody reads it any more: the work does not end for that
            print(text, file=sys.stderr, flush=True)


def _move(bar: Any, label: str, total: int | None) -> Callable[[int, int | None], None]:
    task = bar.add_task(label, total=total)
    return lambda done, total: bar.update(task, completed=done, total=total)


def _rich_bar(in_bytes: bool, *, transient: bool) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    count = DownloadColumn() if in_bytes else MofNCompleteColumn()
    columns = [TextColumn("{task.description}"), BarColumn(), count, TimeRemainingColumn()]
    return Progress(*columns, console=Console(stderr=True), transient=transient)
