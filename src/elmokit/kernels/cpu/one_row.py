"""The steps of one sentence in one call of TorchScript.

Input: the input products of each step, the weights of one direction, and the state.
Output: the results of each step, and the state after the last step.

The products of one row are short: with a call from Python for each operation, the threads of the two directions wait
for each other's Python as long as they compute.  A call of TorchScript runs all steps without Python; it needs no
compiler.  Where there is no TorchScript, the same functions run as Python.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def float_steps(
    steps: list[Tensor],
    results: list[Tensor],
    hidden: Tensor,
    cell: Tensor,
    recurrent: Tensor,
    projection: Tensor,
    cell_clip: float | None,
    proj_clip: float | None,
) -> None:
    """Run the steps of one row with float32 weights.

    Args:
        steps: (1, 4C) of each step: the input product and the bias; overwritten.
        results: (1, P) of each step, overwritten with the results.
        hidden: (1, P), overwritten.
        cell: (1, C), overwritten.
        recurrent: (P, 4C).
        projection: (C, P).
        cell_clip: Bound of the cells.
        proj_clip: Bound of the outputs.
    """
    before = hidden
    for number, gates in enumerate(steps):
        gates.addmm_(before, recurrent)
        before = torch.mm(cell_output(gates, cell, cell_clip), projection, out=results[number])
        if proj_clip is not None:
            before.clamp_(-proj_clip, proj_clip)
    hidden.copy_(before)


def int8_steps(
    steps: list[Tensor],
    results: list[Tensor],
    hidden: Tensor,
    cell: Tensor,
    recurrent: Tensor,
    recurrent_scales: Tensor,
    projection: Tensor,
    projection_scales: Tensor,
    cell_clip: float | None,
    proj_clip: float | None,
) -> None:
    """As `float_steps`, with int8 weights and the scales of their columns."""
    before = hidden
    for number, gates in enumerate(steps):
        gates.addcmul_(int8_product(before, recurrent), recurrent_scales)
        sums = int8_product(cell_output(gates, cell, cell_clip), projection)
        before = torch.mul(sums, projection_scales, out=results[number])
        if proj_clip is not None:
            before.clamp_(-proj_clip, proj_clip)
    hidden.copy_(before)


def cell_output(gates: Tensor, cell: Tensor, cell_clip: float | None) -> Tensor:
    """Update the cells (n, C) by the gates (n, 4C), which are overwritten; returns o tanh(c) (n, C)."""
    i, j, f, o = gates.chunk(4, 1)
    j.add_(j)  # twice: faster than a product with a number
    gates.sigmoid_()
    # j holds sigmoid(2 j), and tanh(j) = 2 sigmoid(2 j) - 1
    cell.mul_(f).addcmul_(i, j, value=2.0).sub_(i)
    if cell_clip is not None:
        cell.clamp_(-cell_clip, cell_clip)
    return o.neg().addcmul_(o, torch.add(cell, cell).sigmoid_(), value=2.0)


def int8_product(rows: Tensor, values: Tensor) -> Tensor:
    """Round rows (n, K) to int8, with one scale per row, and multiply: (n, N) without the scales of the columns."""
    scale = rows.abs().amax([1], True).clamp_(min=1e-30).div_(127.0)  # (n, 1)
    rounded = rows.div(scale).round_()
    if values.dtype == torch.int8:
        return torch._int_mm(rounded.to(torch.int8), values).mul(scale)
    return torch.mm(rounded, values).mul_(scale)


def in_torchscript(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function in TorchScript, or the function itself where TorchScript does not work."""
    with _lock:
        return _script(function)


@functools.cache
def _script(function: Callable[..., Any]) -> Callable[..., Any]:
    if sys.version_info >= (3, 14):  # not supported by torch.jit
        return function
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecated since PyTorch 2.9
            scripted: Callable[..., Any] = torch.jit.script(function)
    except Exception:  # torch.jit was removed, there are no source files, or it does not know an operation
        return function
    return scripted


_lock = threading.Lock()


def _renew_lock() -> None:
    """Replace the lock in a forked child: another thread of the parent may have held it."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)
