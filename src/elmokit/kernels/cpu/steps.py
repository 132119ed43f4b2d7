"""The forward pass of one direction, without gradients.

Input: gathered active rows (see `rows`), the weights in the form that multiplies fastest, and the state.
Output: the results of all rows, and the state after the last step.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from elmokit.kernels.cpu.int8 import Int8Weights
from elmokit.kernels.cpu.packed import packed_direction
from elmokit.kernels.cpu.rows import blocks
from elmokit.kernels.interface import LSTMState, LSTMWeights


class Clips(NamedTuple):
    """Bounds of the cells and of the outputs; None does not clip."""

    cell: float | None
    proj: float | None


class Matrix(Protocol):
    """A weight (K, N) in the form that multiplies fastest."""

    def product(self, rows: Tensor, *, bias: Tensor | None = None, plus: Tensor | None = None) -> Tensor:
        """rows (n, K) @ weight + `bias` (N,) or `plus` (n, N) -> (n, N); `plus` may be overwritten."""


class Layer(NamedTuple):
    """The weights of one direction of one layer."""

    input: Matrix  # (P, 4C)
    recurrent: Matrix  # (P, 4C)
    bias: Tensor  # (4C,), including the 1 of the forget gate
    projection: Matrix  # (C, P)


def layer_of(weights: LSTMWeights | Int8Weights, d: int) -> Layer:
    """Direction d of a layer, its weights packed."""
    bias = run_time_bias(weights.bias[d])
    if isinstance(weights, Int8Weights):
        return Layer(weights.input[d], weights.recurrent[d], bias, weights.projection[d])
    return Layer(
        packed_direction(weights.input, d),
        packed_direction(weights.recurrent, d),
        bias,
        packed_direction(weights.projection, d),
    )


def run_time_bias(bias: Tensor) -> Tensor:
    """(4C,) plus 1 on the forget gate: bilm-tf adds it at run time, so the bias in a file does not contain it."""
    bias = bias.detach().clone()
    bias.view(4, -1)[2] += 1.0
    return bias


def run_steps(
    rows: Tensor, counts: list[int], layer: Layer, state: LSTMState, results: Tensor, clips: Clips, d: int
) -> None:
    """Run all steps over gathered rows (R, P), `counts[t]` of them at step t.

    Writes `results` (R, P) and `state`, whose rows are sorted by length.
    """
    hidden, cell = state
    scratch = torch.empty_like(cell)
    h, c, cell_output = hidden, cell, scratch
    for begin, end, steps in blocks(counts, reverse=d == 1):
        from_inputs = layer.input.product(rows[begin:end], bias=layer.bias)  # (r, 4C)
        for start, n in steps:
            if n != len(h):
                h, c, cell_output = hidden[:n], cell[:n], scratch[:n]
            gates = layer.recurrent.product(h, plus=from_inputs[start - begin : start - begin + n])  # (n, 4C)
            i, j, f, o = gates.chunk(4, dim=1)  # (n, C) each
            j.mul_(2.0)
            gates.sigmoid_()
            # j holds sigmoid(2 j), and tanh(j) = 2 sigmoid(2 j) - 1
            c.mul_(f).addcmul_(i, j, value=2.0).sub_(i)
            if clips.cell is not None:
                c.clamp_(-clips.cell, clips.cell)
            torch.mul(c, 2.0, out=cell_output).sigmoid_()
            torch.addcmul(o.neg_(), o, cell_output, value=-2.0, out=cell_output)  # o tanh(c), by the same identity
            h.copy_(layer.projection.product(cell_output))
            if clips.proj is not None:
                h.clamp_(-clips.proj, clips.proj)
            results[start : start + n] = h
