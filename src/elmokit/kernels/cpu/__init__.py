"""The clipped, projected LSTM on CPU cores, in float32, with and without gradients.

Enters: the tensors of one layer (see `interface`), or their int8 form from `quantize`.  Leaves: what `eager` leaves,
within 1e-5, and the same gradients.

What makes it fast, most first:
- weights are packed once into oneDNN's blocked layout: a product of 32 rows reads 67 MB of weights at twice the speed;
- inputs are multiplied for many steps at once, a few hundred rows at a time, so that gates stay in the cache;
- rows are sorted by length: those alive at a step are a prefix, and only they are computed;
- tanh is written as a sigmoid, which PyTorch computes six times faster;
- the two directions run in two threads with half of the cores each, and never wait for each other;
- in training, all weight gradients are large products after the loop.
"""

from __future__ import annotations

import torch
from torch import Tensor

from elmokit.kernels.cpu.backward import Differentiable
from elmokit.kernels.cpu.int8 import Int8Matrix, Int8Weights, quantize, quantize_matrix
from elmokit.kernels.cpu.rows import HOISTED_ROWS, live_rows
from elmokit.kernels.cpu.steps import Clips, layer_of, walk
from elmokit.kernels.cpu.threads import in_parallel
from elmokit.kernels.interface import LSTMState, LSTMWeights

__all__ = [
    "HOISTED_ROWS",
    "Int8Matrix",
    "Int8Weights",
    "in_parallel",
    "is_available",
    "layer_of",
    "lstm",
    "quantize",
    "quantize_matrix",
]


def is_available(inputs: Tensor) -> bool:
    """Whether this engine takes layers with such `inputs`; other dtypes, autocast and tracing are eager's."""
    return (
        inputs.device.type == "cpu"
        and inputs.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )


def lstm(
    inputs: Tensor,
    lengths: Tensor,
    weights: LSTMWeights | Int8Weights,
    state: LSTMState,
    *,
    cell_clip: float | None,
    proj_clip: float | None,
) -> tuple[Tensor, LSTMState]:
    """Run one layer, all directions (see `interface`); int8 weights take no gradient."""
    clips = Clips(cell_clip, proj_clip)
    if isinstance(weights, LSTMWeights) and torch.is_grad_enabled():
        differentiable = (inputs, *weights, *state)
        if any(tensor.requires_grad for tensor in differentiable):
            outputs, hidden, cell = Differentiable.apply(lengths, clips, *differentiable)  # type: ignore[no-untyped-call]
            return outputs, LSTMState(hidden, cell)
    # the caller's thread computes nothing: its helpers would go on spinning for a while on the cores of the directions
    outputs = inputs.new_empty(inputs.shape)
    after = LSTMState(*(part.new_empty(part.shape) for part in state))

    def run(d: int) -> None:
        layer, live = layer_of(weights, d), live_rows(lengths[d], inputs.shape[1])
        rows, hidden, cell = live.gather(inputs[d]), live.sort(state.hidden[d]), live.sort(state.cell[d])
        results = torch.empty_like(rows)
        walk(rows, live.counts, layer, LSTMState(hidden, cell), results, clips, d)
        live.scatter(results, outputs[d])
        live.unsort(hidden, after.hidden[d])
        live.unsort(cell, after.cell[d])

    with torch.no_grad():
        in_parallel(run, len(inputs))
    return outputs, after
