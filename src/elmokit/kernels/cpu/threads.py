"""Two directions at once."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

_pool: ThreadPoolExecutor | None = None
_pool_lock = threading.Lock()


def in_parallel(run: Callable[[int], None], num_directions: int) -> None:
    """run(0), run(1), …, side by side with an equal share of the caller's cores where it has more than one."""
    cores = torch.get_num_threads()
    if num_directions < 2 or cores < 2:
        for d in range(num_directions):
            run(d)
        return
    share, inference = max(1, cores // num_directions), torch.is_inference_mode_enabled()

    def task(d: int) -> None:
        set_own_threads(share)
        with torch.inference_mode(inference), torch.no_grad():  # modes belong to a thread, so the caller's are set here
            run(d)

    for future in [pool().submit(task, d) for d in range(num_directions)]:
        future.result()


def set_own_threads(count: int) -> None:
    """Give the calling thread `count` cores; all other threads, also those yet to come, keep theirs."""
    if torch.get_num_threads() == count:
        return
    # PyTorch's number is the caller's own and also what new threads start with: a new thread reads it and puts it back
    with _pool_lock, ThreadPoolExecutor(1) as new_thread:
        usual = new_thread.submit(torch.get_num_threads).result()
        torch.set_num_threads(count)
        new_thread.submit(torch.set_num_threads, usual).result()


def pool() -> ThreadPoolExecutor:
    """Two threads, started when first needed and shared by all callers."""
    global _pool
    with _pool_lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(2, thread_name_prefix="elmokit-direction")
        return _pool


def _forget_pool() -> None:
    """A forked child has the pool but not its threads."""
    global _pool, _pool_lock
    _pool, _pool_lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)
