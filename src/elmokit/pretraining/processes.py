"""The process that trains: its device, the processes beside it that torchrun started, and the signals that stop it."""

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

WAIT = datetime.timedelta(hours=2)  # for another process, that may be preparing text


@dataclass(frozen=True)
class Processes:
    """The processes that train together, each on its share of the rows."""

    rank: int = 0
    world_size: int = 1
    device: torch.device = torch.device("cpu")  # noqa: RUF009 - a device is immutable


@contextlib.contextmanager
def join_processes(device: str) -> Iterator[Processes]:
    """This process alone, or one of those that torchrun started."""
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    found = find_device(device)
    if found.type == "cuda":
        if world_size > 1:
            found = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(found if found.index is not None else 0)
    if world_size == 1:
        yield Processes(device=found)
        return
    ours = not dist.is_initialized()
    if ours:
        store, rank, world_size = next(rendezvous("env://", timeout=WAIT))
        if os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]:
            # torchrun's store lives on when it starts dead workers again, with the addresses of the dead in it; on one
            # machine all of them count the restarts alike
            store = PrefixStore(f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        backend = "nccl" if found.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=WAIT)
    try:
        yield Processes(dist.get_rank(), dist.get_world_size(), found)
    finally:
        if ours:
            dist.destroy_process_group()


class StopSignals:
    """While it stands, SIGTERM and SIGINT only leave their name here; a second one acts as it always does."""

    def __init__(self) -> None:
        self.name: str | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():  # Python allows handlers there alone
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
