"""The arithmetic of layers: the clipped, projected LSTM over time in three engines, and parts of transformer blocks.

interface.py  what every engine has, and its tensors
eager.py      the reference: the equations in plain PyTorch
blocks.py     what a transformer block computes between its products, in plain PyTorch; for GPUs cuda/blocks.py
cpu/          fast on CPU cores, in float32 and int8
cuda/         fast on NVIDIA GPUs
samples.py    elements of a weight by which a change is noticed
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
from torch.nn import functional

from elmokit.kernels import blocks, cpu, eager
from elmokit.kernels.blocks import AttentionSizes, Past
from elmokit.kernels.interface import BlockParts, Engine, LSTMState, LSTMWeights
from elmokit.kernels.samples import samples_of

__all__ = [
    "AttentionSizes",
    "BlockParts",
    "Engine",
    "LSTMState",
    "LSTMWeights",
    "Past",
    "bfloat16_works",
    "block_parts",
    "check_dtype",
    "choose",
    "forced",
    "has_triton",
    "linear",
    "product",
    "product_dtype",
    "samples_of",
]

_forced: ContextVar[ModuleType | None] = ContextVar("elmokit_engine", default=None)


def choose(inputs: Tensor) -> Engine:
    """The fastest engine for `inputs` (by device and dtype), or the one that `forced` sets.

    Raises:
        ValueError: If the products kill the process (see `check_dtype`).
    """
    check_dtype(inputs)
    if (engine := _forced.get()) is not None:
        return cast(Engine, engine)
    if inputs.is_cuda:
        from elmokit.kernels import cuda

        if cuda.is_available(inputs):
            return cuda
    return cpu if cpu.is_available(inputs) else eager


def block_parts(inputs: Tensor) -> BlockParts:
    """What runs between the products of transformer blocks over `inputs`: fused where the CUDA engine runs."""
    if not inputs.numel():
        return blocks
    return choose(inputs).blocks


def linear(rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Products of rows, as `functional.linear`; without gradients on a CPU, weights are packed once.

    Args:
        rows: (n, K).
        weight: (N, K).
        bias: (N,).

    Returns:
        (n, N).
    """
    needs_grad = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (rows, weight, bias))
    if needs_grad or not cpu.is_available(rows):
        return functional.linear(rows, weight, bias)
    # a single row would be multiplied in another order: a word has the same vector, whatever is encoded with it
    together = rows if len(rows) != 1 else rows.expand(2, -1)
    return cpu.packed_linear(weight).product(together, bias=bias)[: len(rows)]


def product(rows: Tensor, weight: Tensor) -> Tensor:
    """Products of rows with the weights of each direction, in the dtype of products.

    Args:
        rows: (D, N, K).
        weight: (D, K, M).

    Returns:
        (D, N, M).
    """
    if rows.is_cuda and torch.is_grad_enabled() and weight.requires_grad:
        from elmokit.kernels.cuda import products

        return products.product(rows.to(product_dtype(rows)), weight)
    return torch.bmm(rows, weight)


@functools.cache
def has_triton() -> bool:
    """Whether Triton is installed, which compiles the kernels for GPUs."""
    return importlib.util.find_spec("triton") is not None


@contextlib.contextmanager
def forced(engine: ModuleType) -> Iterator[None]:
    """Run every layer inside the block on `engine`, a module of this package: for tests and comparisons."""
    token = _forced.set(engine)
    try:
        yield
    finally:
        _forced.reset(token)


def check_dtype(tensor: Tensor) -> None:
    """Raise a ValueError if products of `tensor` are bfloat16, by its dtype or autocast, and kill the process here."""
    if tensor.device.type == "cpu" and product_dtype(tensor) == torch.bfloat16 and not bfloat16_works():
        raise ValueError(
            "bfloat16 products crash on this CPU: use float32 without autocast (which is also faster here), "
            "or set ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16 before the first product"
        )


def product_dtype(tensor: Tensor) -> torch.dtype:
    """The dtype of products of `tensor`: its own, or that of autocast."""
    device = tensor.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else tensor.dtype


@functools.cache
def bfloat16_works() -> bool:
    """Whether bfloat16 products run on this CPU; a child process tries them.

    Some virtual machines announce AMX and kill a process that uses it.
    """
    trial = (
        "import torch; from torch.nn.functional import conv1d; a = torch.ones(64, 64, 64, dtype=torch.bfloat16); "
        "(a @ a).sum().item(); conv1d(a, a).sum().item()"
    )
    return subprocess.run([sys.executable, "-c", trial], capture_output=True, check=False).returncode == 0
