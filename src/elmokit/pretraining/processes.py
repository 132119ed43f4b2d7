"""The processes of a run: devices, torchrun, and the signals that stop a run.

Input: the name of a device and the environment that torchrun sets.  Output: `Processes`, and the name of a signal.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from elmokit.network import find_device

TIMEOUT = datetime.timedelta(hours=2)  # another process may be preparing text


@dataclass(frozen=True)
class Processes:
    """The processes that train together, each on its part of the rows."""

    rank: int = 0
    """Number of this process, from 0."""
    world_size: int = 1
    """Number of processes."""
    device: torch.device = torch.device("cpu")  # noqa: RUF009 - a device is immutable
    """Device of this process."""

    def wait_for_all(self) -> None:
        """Wait until all processes have called this."""
        if self.world_size > 1:
            dist.barrier()


@contextlib.contextmanager
def join_processes(device: str) -> Iterator[Processes]:
    """Join the processes that torchrun started; without torchrun this process is the only one.

    Args:
        device: "cpu", "cuda", "cuda:1" or "auto". Under torchrun each process takes the GPU of its local rank.

    Raises:
        ValueError: If there is no such device.
    """
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    own_device = find_device(device)
    if own_device.type == "cuda":
        if world_size > 1:
            own_device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(own_device if own_device.index is not None else 0)
    if world_size == 1:
        yield Processes(device=own_device)
        return
    is_owner = not dist.is_initialized()
    if is_owner:
        store, rank, world_size = next(rendezvous("env://", timeout=TIMEOUT))
        if os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]:
            # torchrun keeps its store when it restarts workers, with the addresses of the old ones in it; on one
            # machine all workers know the same number of restarts
            store = PrefixStore(f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        backend = "nccl" if own_device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=TIMEOUT)
    try:
        yield Processes(dist.get_rank(), dist.get_world_size(), own_device)
    finally:
        if is_owner:
            dist.destroy_process_group()


class StopSignals:
    """Inside this context SIGTERM and SIGINT only set `name`; a second signal has its usual effect."""

    def __init__(self) -> None:
        self.name: str | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():  # the only thread that may set handlers
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _note(self, number: int, _: FrameType | None) -> None:
        self.name = signal.Signals(number).name
        self.__exit__()
