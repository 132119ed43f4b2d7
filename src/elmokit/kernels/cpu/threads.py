"""The directions of a layer run at the same time, each in a thread with its own number of cores."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

_pool: ThreadPoolExecutor | None = None
_pool_lock = threading.Lock()


def in_parallel(run: Callable[[int], None], num_directions: int) -> None:
    """Call run(0), run(1), … at the same time, the caller's cores divided equally between them.

    With one direction or one core the calls run one after the other in the caller's thread.
    """
    num_cores = torch.get_num_threads()
    if num_directions < 2 or num_cores < 2:
        for d in range(num_directions):
            run(d)
        return
    cores_each, inference = max(1, num_cores // num_directions), torch.is_inference_mode_enabled()

    def task(d: int) -> None:
        set_own_threads(cores_each)
        with torch.inference_mode(inference), torch.no_grad():  # modes are per thread: set those of the caller
            run(d)

    for future in [pool().submit(task, d) for d in range(num_directions)]:
        future.result()


def set_own_threads(count: int) -> None:
    """Let the calling thread use `count` cores; other threads, including new ones, keep their number."""
    if torch.get_num_threads() == count:
        return
    # torch.set_num_threads also changes the number that new threads start with: a new thread reads it and restores it
    with _pool_lock, ThreadPoolExecutor(1) as new_thread:
        default = new_thread.submit(torch.get_num_threads).result()
        torch.set_num_threads(count)
        new_thread.submit(torch.set_num_threads, default).result()


def pool() -> ThreadPoolExecutor:
    """Two threads, started at the first use and shared by all callers."""
    global _pool
    with _pool_lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(2, thread_name_prefix="elmokit-direction")
        return _pool


def _forget_pool() -> None:
    """Drop the pool in a forked child, which has the object but not its threads."""
    global _pool, _pool_lock
    _pool, _pool_lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)
