"""Jobs run in several processes.

Input: a function and an iterator of arguments.  Output: the results, in the order of the jobs.
"""

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
    """Yield function(*job) for each job, in order. Only a few jobs are held in memory at a time.

    Args:
        function: A function that can be pickled.
        jobs: Arguments of each call.
        workers: Number of processes; None: one per core.

    Raises:
        ValueError: If `workers` is less than 1.
        RuntimeError: If a worker process died.
    """
    if workers is None:
        workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if workers < 1:
        raise ValueError(f"workers is {workers}: it must be at least 1")
    first = list(islice(jobs, 2))
    if workers == 1 or len(first) < 2:  # starting processes takes longer than one job
        yield from (function(*job) for job in chain(first, jobs))
        return
    # Not by fork: the parent may have threads, such as those of torch.
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
            "a worker process died: either memory ran out, or the calling script has no"
            " `if __name__ == '__main__':`, which new processes need; workers=1 starts no process"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _follow_parent() -> None:
    """Ignore Ctrl-C, which the parent handles, and exit when the parent is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_after_parent, daemon=True).start()


def _exit_after_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
