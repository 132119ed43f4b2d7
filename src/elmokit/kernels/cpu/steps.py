"""The forward pass."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from elmokit.kernels.cpu.int8 import Int8Weights
from elmokit.kernels.cpu.packed import packed
from elmokit.kernels.cpu.rows import blocks
from elmokit.kernels.interface import LSTMState, LSTMWeights


class Clips(NamedTuple):
    """Bounds of the cells and of the outputs; None does not clip."""

    cell: float | None
    proj: float | None


class Matrix(Protocol):
    """A weight (K, N) in whatever form multiplies best."""

    def product(self, rows: Tensor, *, bias: Tensor | None = None, plus: Tensor | None = None) -> Tensor:
        """rows (n, K) @ weight, and either `bias` (N,) or `plus` (n, N) added -> (n, N); `plus` may be overwritten."""


class Layer(NamedTuple):
    """The weights of one direction of one layer."""

    input: Matrix  # (P, 4C)
    recurrent: Matrix  # (P, 4C)
    bias: Tensor  # (4C,), with the forget gate's 1
    projection: Matrix  # (C, P)


def layer_of(weights: LSTMWeights | Int8Weights, d: int) -> Layer:
    """Direction d of a layer, its weights packed."""
    bias = run_time_bias(weights.bias[d])
    if isinstance(weights, Int8Weights):
        return Layer(weights.input[d], weights.recurrent[d], bias, weights.projection[d])
    return Layer(packed(weights.input, d), packed(weights.recurrent, d), bias, packed(weights.projection, d))


def run_time_bias(bias: Tensor) -> Tensor:
    """(4C,) with 1 on the forget gate: bilm-tf adds it at run time, so no file's bias holds it."""
    bias = bias.detach().clone()
    bias.view(4, -1)[2] += 1.0
    return bias


def walk(
    rows: Tensor, counts: list[int], layer: Layer, state: LSTMState, results: Tensor, clips: Clips, d: int
) -> None:
    """The recurrence over gathered rows (R, P), `counts[t]` of them at step t; writes results (R, P) and state."""
    hidden, cell = state
    scratch = torch.empty_like(cell)
    h, c, y = hidden, cell, scratch
    for begin, end, steps in blocks(counts, reverse=d == 1):
        from_inputs = layer.input.product(rows[begin:end], bias=layer.bias)  # (r, 4C)
        for start, n in steps:
            if n != len(h):
                h, c, y = hidden[:n], cell[:n], scratch[:n]
            gates = layer.recurrent.product(h, plus=from_inputs[start - begin : start - begin + n])  # (n, 4C)
            i, j, f, o = gates.chunk(4, dim=1)  # (n, C) each
            j.mul_(2.0)
            gates.sigmoid_()
            # j holds sigmoid(2 j), and tanh(j) = 2 sigmoid(2 j) - 1
            c.mul_(f).addcmul_(i, j, value=2.0).sub_(i)
            if clips.cell is not None:
                c.clamp_(-clips.cell, clips.cell)
            torch.mul(c, 2.0, out=y).sigmoid_()
            torch.addcmul(o.neg_(), o, y, value=-2.0, out=y)  # o tanh(c), by the same identity
            h.copy_(layer.projection.product(y))
            if clips.proj is not None:
                h.clamp_(-clips.proj, clips.proj)
            results[start : start + n] = h
