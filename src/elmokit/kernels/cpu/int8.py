"""Weights rounded to int8, and their products.

Input: float weights (K, N).  Output: int8 values with one scale per column, which multiply float rows (n, K).
"""

from __future__ import annotations

import functools
import subprocess
import sys
from typing import NamedTuple

import torch
from torch import Tensor

from elmokit.kernels.cpu import native
from elmokit.kernels.cpu.native import NativeMatrix
from elmokit.kernels.cpu.one_row import int8_product
from elmokit.kernels.interface import LSTMWeights

STEPS = 127  # rounded values are integers from -127 to 127


class Int8Matrix(NamedTuple):
    """A weight rounded to int8 with one scale per column.

    A product rounds its rows to int8 too, with one scale per row: a sentence's vectors are the same in every batch.
    """

    by_rows: Tensor  # (K, N) int8: the fastest layout for many rows; float32 where int8 products are not exact
    by_columns: Tensor  # (K, N), the same values, column after column: the fastest layout for one row
    scales: Tensor  # (N,)
    in_blocks: NativeMatrix | None  # for `native`; of a recurrent weight in blocks of gates

    def product(self, rows: Tensor, *, bias: Tensor | None = None, plus: Tensor | None = None) -> Tensor:
        """See `steps.Matrix`."""
        if plus is None and (packed := self.for_native()) is not None:
            return native.product(rows, packed, bias)
        sums = int8_product(rows, self.by_columns if rows.size(0) == 1 else self.by_rows)  # (n, N)
        if plus is not None:
            return plus.addcmul_(sums, self.scales)
        return sums.mul_(self.scales) if bias is None else torch.addcmul(bias, sums, self.scales)

    def for_native(self) -> NativeMatrix | None:
        """The weight for `native`, if that computes int8 products: then all, so that a row's does not depend on n."""
        return self.in_blocks if native.is_wide() else None


class Int8Weights(NamedTuple):
    """`LSTMWeights` with int8 matrices, one per direction."""

    input: tuple[Int8Matrix, ...]
    recurrent: tuple[Int8Matrix, ...]
    bias: Tensor  # (D, 4C), float
    projection: tuple[Int8Matrix, ...]


def quantize(weights: LSTMWeights) -> Int8Weights:
    """Round the matrices of a layer to int8.

    Args:
        weights: Float weights of one layer, on the CPU.

    Returns:
        A copy for `cpu.lstm`; later changes of `weights` do not change it.

    Raises:
        ValueError: int8 products crash on this CPU.
    """

    def matrices(weight: Tensor, *, of_gates: bool = False) -> tuple[Int8Matrix, ...]:
        return tuple(quantize_matrix(matrix, of_gates=of_gates) for matrix in weight)

    bias = weights.bias.detach().clone()
    return Int8Weights(
        matrices(weights.input), matrices(weights.recurrent, of_gates=True), bias, matrices(weights.projection)
    )


def quantize_matrix(weight: Tensor, *, of_gates: bool = False) -> Int8Matrix:
    """Round a float weight (K, N) to int8, symmetrically, with one scale per column.

    Args:
        weight: (K, N).
        of_gates: It is a recurrent weight, for `run_steps` and not for `product`.
    """
    if not int8_works():
        raise ValueError(
            "quantize='int8' cannot run here: this CPU announces AMX and crashes when it is used; leave quantize unset"
        )
    weight = weight.detach().float()
    scales = weight.abs().amax(dim=0).clamp(min=1e-30) / STEPS
    by_rows = (weight / scales).round()
    if not int8_is_exact():
        return Int8Matrix(by_rows, by_rows, scales, None)  # the same integers, multiplied in float32
    by_rows = by_rows.to(torch.int8).contiguous()
    in_blocks = native.pack_int8(by_rows, scales, of_gates=of_gates) if native.is_wide() else None
    return Int8Matrix(by_rows, by_rows.t().contiguous().t(), scales, in_blocks)


@functools.cache
def int8_works() -> bool:
    """Whether int8 products run on this CPU.

    Some virtual machines announce AMX and kill a process that uses it, so there a child process tries it first.
    """
    if not announces_amx():
        return True
    trial = "import torch; a = torch.ones(32, 256, dtype=torch.int8); torch._int_mm(a, a.t().contiguous())"
    return subprocess.run([sys.executable, "-c", trial], capture_output=True).returncode == 0


@functools.cache
def int8_is_exact() -> bool:
    """Whether int8 products are exact on this CPU: without VNNI, PyTorch's sums of large values overflow 16 bits."""
    ramp = torch.arange(64 * 256).reshape(64, 256) % 255 - 127
    rows = torch.cat([torch.full_like(ramp, 127), torch.full_like(ramp, -127), ramp])  # (192, 256)
    values = rows.to(torch.int8)
    return all(
        torch.equal(torch._int_mm(left, right), (left.long() @ right.long()).to(torch.int32))
        for left in (values, values[:1])
        for right in (values.t(), values.t().contiguous())
    )


def announces_amx() -> bool:
    """Whether the CPU lists int8 matrix tiles among its features."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return any("amx_int8" in line for line in lines)
    except OSError:
        return False
