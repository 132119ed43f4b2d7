"""The directions of a layer run at the same time, each in a thread of its own with its share of the cores."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import torch

FEW_CPUS = 8  # of more, an idle one is found

_caller = threading.local()  # cores: those of a thread in `without_openmp`
_pools: dict[int, ThreadPoolExecutor] = {}  # direction -> its thread
_pool_lock = threading.Lock()


def in_parallel(run: Callable[[int], None], num_directions: int) -> None:
    """Call run(0), run(1), … at the same time, the caller's cores divided equally between them.

    With one direction or one core the calls run one after the other in the caller's thread.
    """
    num_cores = cores_of_caller()
    if num_directions < 2 or num_cores < 2:
        for d in range(num_directions):
            run(d)
        return
    cores_each, inference = max(1, num_cores // num_directions), torch.is_inference_mode_enabled()

    cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_setaffinity") else []

    def task(d: int) -> None:
        set_own_threads(cores_each)
        if num_directions <= len(cpus) <= FEW_CPUS:
            # Linux often wakes two threads of an idle machine on one CPU, and moves one of them after milliseconds
            os.sched_setaffinity(0, cpus[d * len(cpus) // num_directions : (d + 1) * len(cpus) // num_directions])
        with torch.inference_mode(inference), torch.no_grad():  # modes are per thread: set those of the caller
            run(d)

    for future in [pool(d).submit(task, d) for d in range(num_directions)]:
        future.result()


def cores_of_caller() -> int:
    """The number of cores that the calling thread may use: PyTorch's number of threads, also in `without_openmp`."""
    return getattr(_caller, "cores", None) or torch.get_num_threads()


@contextlib.contextmanager
def without_openmp() -> Iterator[None]:
    """PyTorch's loops over a few thousand numbers or more run on one core in the calling thread.

    Otherwise OpenMP's threads spin for milliseconds after each loop, on the cores that the directions need next.
    `in_parallel` divides the same cores as outside.
    """
    set_number, cores = openmp_setter(), torch.get_num_threads()
    if set_number is None or cores < 2:
        yield
        return
    set_number(1)
    _caller.cores = cores
    try:
        yield
    finally:
        _caller.cores = None
        set_number(cores)


@functools.cache
def openmp_setter() -> Callable[[int], object] | None:
    """`omp_set_num_threads` of PyTorch's OpenMP; None where it is not found or there are many CPUs.

    It changes the number of the calling thread only; torch.set_num_threads changes that of new threads too.
    """
    if (os.cpu_count() or 1) > FEW_CPUS:
        return None
    try:
        return ctypes.CDLL(torch._C.__file__).omp_set_num_threads
    except (OSError, AttributeError, TypeError):
        return None


def set_own_threads(count: int) -> None:
    """Let the calling thread use `count` cores; other threads, including new ones, keep their number."""
    if torch.get_num_threads() == count:
        return
    # torch.set_num_threads also changes the number that new threads start with: a new thread reads it and restores it
    with _pool_lock, ThreadPoolExecutor(1) as new_thread:
        default = new_thread.submit(torch.get_num_threads).result()
        torch.set_num_threads(count)
        new_thread.submit(torch.set_num_threads, default).result()


def pool(d: int) -> ThreadPoolExecutor:
    """The thread of direction d, started at the first use and shared by all callers."""
    with _pool_lock:
        if d not in _pools:
            _pools[d] = ThreadPoolExecutor(1, thread_name_prefix=f"elmokit-direction-{d}")
        return _pools[d]


def _forget_pool() -> None:
    """Drop the threads in a forked child, which has the objects but not their threads."""
    global _pool_lock
    _pools.clear()
    _pool_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)
