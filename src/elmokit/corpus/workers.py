"""Jobs are shared out to the processes of all cores, and their results come back in order."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, islice
from typing import Any, TypeVar

T = TypeVar("T")


def run_in_order(function: Callable[..., T], jobs: Iterator[tuple[Any, ...]], workers: int | None) -> Iterator[T]:
    """Yield function(*job) for each job, in order, computed by `workers` processes; few jobs are held at a time."""
    if workers is None:
        workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if workers < 1:
        raise ValueError(f"workers is {workers}: it takes at least one")
    first = list(islice(jobs, 2))
    if workers == 1 or len(first) < 2:  # to start processes would take longer than the work
        yield from (function(*job) for job in chain(first, jobs))
        return
    # Not by fork: the parent may run threads, as torch does.
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _follow_parent)
    try:
        waiting: deque[Future[T]] = deque()
        for job in chain(first, jobs):
            waiting.append(pool.submit(function, *job))
            if len(waiting) > workers + 1:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise RuntimeError(
            "a worker process died: either memory ran out, or the script that called has no"
            " `if __name__ == '__main__':` around its work, which new processes need; workers=1 starts none"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _follow_parent() -> None:
    """Let the parent alone answer Ctrl-C, and leave no process behind when the parent is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_after_parent, daemon=True).start()


def _exit_after_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
