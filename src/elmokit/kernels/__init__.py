"""The clipped, projected LSTM over time, once per engine, and the choice between them.

Enters: the tensors of one layer (see `interface`).  Leaves: the engine module that runs them best.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from types import ModuleType
from typing import cast

import torch
from torch import Tensor

from elmokit.kernels import cpu, eager
from elmokit.kernels.interface import Engine, LSTMState, LSTMWeights

__all__ = ["Engine", "LSTMState", "LSTMWeights", "bfloat16_works", "check_dtype", "choose", "forced", "has_triton"]

_forced: ContextVar[ModuleType | None] = ContextVar("elmokit_engine", default=None)


def choose(inputs: Tensor) -> Engine:
    """The engine for tensors such as `inputs`, or the one that `forced` names."""
    if (engine := _forced.get()) is not None:
        return cast(Engine, engine)
    if inputs.is_cuda:
        from elmokit.kernels import cuda

        if cuda.is_available(inputs):
            return cuda
    return cpu if cpu.is_available(inputs) else eager


@functools.cache
def has_triton() -> bool:
    """Whether the kernels for GPUs can be compiled here."""
    return importlib.util.find_spec("triton") is not None


@contextlib.contextmanager
def forced(engine: ModuleType) -> Iterator[None]:
    """Inside the block every layer runs on `engine` (a module of this package): for tests and side-by-side timing."""
    token = _forced.set(engine)
    try:
        yield
    finally:
        _forced.reset(token)


def check_dtype(tensor: Tensor) -> None:
    """Refuse bfloat16 on a CPU where its products kill the process."""
    if tensor.dtype == torch.bfloat16 and tensor.device.type == "cpu" and not bfloat16_works():
        raise ValueError(
            "bfloat16 products crash on this CPU: use dtype=torch.float32 (here the faster one too), "
            "or set ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16 before the first product"
        )


@functools.cache
def bfloat16_works() -> bool:
    """Whether bfloat16 products run on this CPU, tried in a process of its own.

    Some virtual machines announce AMX and then answer its first instruction with SIGILL.
    """
    trial = (
        "import torch; from torch.nn.functional import conv1d; a = torch.ones(64, 64, 64, dtype=torch.bfloat16); "
        "(a @ a).sum().item(); conv1d(a, a).sum().item()"
    )
    return subprocess.run([sys.executable, "-c", trial], capture_output=True, check=False).returncode == 0
