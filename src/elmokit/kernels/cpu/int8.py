"""Int8 weights."""

from __future__ import annotations

import functools
import subprocess
import sys
from typing import NamedTuple

import torch
from torch import Tensor

from elmokit.kernels.interface import LSTMWeights


class Int8Matrix(NamedTuple):
    """A weight rounded to int8, one scale for each column; rows are rounded as they come, one scale for each row.

    A scale of its own for each row keeps a sentence's vectors the same alone and in any batch.
    """

    by_rows: Tensor  # (K, N) int8: what many rows read fastest
    by_columns: Tensor  # (N, K) int8, the same: what one row reads fastest
    scales: Tensor  # (N,)

    def product(self, rows: Tensor, *, bias: Tensor | None = None, plus: Tensor | None = None) -> Tensor:
        """See `Matrix`."""
        scale = rows.abs().amax(dim=1, keepdim=True).clamp_(min=1e-30).div_(127.0)  # (n, 1)
        rounded = (rows / scale).round_().to(torch.int8)
        values = self.by_columns.t() if len(rows) == 1 else self.by_rows
        result = torch._int_mm(rounded, values).to(torch.float32).mul_(scale).mul_(self.scales)
        add = plus if bias is None else bias
        return result if add is None else result.add_(add)


class Int8Weights(NamedTuple):
    """`LSTMWeights` with int8 matrices, one for each direction."""

    input: tuple[Int8Matrix, ...]
    recurrent: tuple[Int8Matrix, ...]
    bias: Tensor  # (D, 4C)
    projection: tuple[Int8Matrix, ...]


def quantize(weights: LSTMWeights) -> Int8Weights:
    """The weights of a layer in int8, for `lstm`: a copy, that later changes of `weights` do not reach."""
    matrices = [tuple(quantize_matrix(matrix) for matrix in weight) for weight in weights._replace(bias=weights.input)]
    return Int8Weights(matrices[0], matrices[1], weights.bias.detach().clone(), matrices[3])


def quantize_matrix(weight: Tensor) -> Int8Matrix:
    """A float weight (K, N) rounded to int8, symmetric, one scale for each column."""
    if not int8_runs():
        raise ValueError(
            "quantize='int8' cannot run here: this CPU announces AMX and faults when it is used; leave quantize unset"
        )
    weight = weight.detach().float()
    scales = weight.abs().amax(dim=0).clamp(min=1e-30) / 127.0
    by_rows = (weight / scales).round().to(torch.int8).contiguous()
    return Int8Matrix(by_rows, by_rows.t().contiguous(), scales)


@functools.cache
def int8_runs() -> bool:
    """Whether int8 products return at all.

    Some virtual machines announce AMX and kill the process that uses it, so there a child process tries first.
    """
    if not announces_amx():
        return True
    attempt = "import torch; a = torch.ones(32, 256, dtype=torch.int8); torch._int_mm(a, a.t().contiguous())"
    return subprocess.run([sys.executable, "-c", attempt], capture_output=True).returncode == 0


def announces_amx() -> bool:
    """Whether the CPU claims to have matrix tiles."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return any("amx_int8" in line for line in lines)
    except OSError:
        return False
