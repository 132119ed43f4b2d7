"""The layer as operators of PyTorch, for autograd and for compilers: elmokit::lstm and elmokit::lstm_backward.

Input and output: flat tensors, because operators take neither named tuples nor None (see `launch` for their shapes).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from elmokit.kernels.cuda.launch import Bounds, SavedActivations, run_backward, run_forward
from elmokit.kernels.cuda.tiles import device_of, plan_backward, plan_forward
from elmokit.kernels.cuda.weights import PreparedWeights
from elmokit.kernels.interface import LSTMState


def lstm_directly(
    inputs: Tensor,
    lengths: Tensor,
    weights: PreparedWeights,
    state: LSTMState | None,
    bounds: Bounds,
    *,
    num_cells: int,
    save: bool = False,
) -> tuple[Tensor, LSTMState, SavedActivations]:
    """The layer, without the dispatch of an operator: see `launch.run_forward`."""
    C, K = weights.projection.shape[1:]
    plan = plan_forward(inputs.shape[2], C, K, inputs.dtype, device_of(inputs), save=save)
    return run_forward(plan, inputs, lengths, weights, state, bounds, num_cells=num_cells, save=save)


def _lstm(
    inputs: Tensor,
    lengths: Tensor,
    weight: Tensor,
    bias: Tensor,
    projection: Tensor,
    hidden: Tensor,
    cell: Tensor,
    cell_clip: float,
    proj_clip: float,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Outputs, hidden, cell, and the four tensors of `SavedActivations`."""
    weights, bounds = PreparedWeights(weight, bias, projection), Bounds(cell_clip, proj_clip)
    state, num_cells = LSTMState(hidden, cell), cell.shape[2]
    outputs, after, saved = lstm_directly(inputs, lengths, weights, state, bounds, num_cells=num_cells, save=save)
    # an operator may return neither views nor one tensor twice
    state_after = (part.clone(memory_format=torch.contiguous_format) for part in after)
    return outputs, *state_after, *(saved if save else (inputs.new_empty(0) for _ in saved))


lstm_operator = torch.library.custom_op("elmokit::lstm", _lstm, mutates_args=())


@lstm_operator.register_fake
def _(
    inputs: Tensor,
    lengths: Tensor,
    weight: Tensor,
    bias: Tensor,
    projection: Tensor,
    hidden: Tensor,
    cell: Tensor,
    cell_clip: float,
    proj_clip: float,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    directions, times, num_rows, _ = inputs.shape
    C, K = projection.shape[1:]
    shapes = [(times + 2, num_rows, 2 * K), (times, num_rows, 4 * C), (times, num_rows, C), (times, num_rows, C)]
    rows, gates, cells, cell_output = (
        inputs.new_empty(directions, *shape) if save else inputs.new_empty(0) for shape in shapes
    )
    return _empty_like(inputs), _empty_like(hidden), _empty_like(cell.float()), rows, gates, cells, cell_output


@torch.library.custom_op("elmokit::lstm_backward", mutates_args=())
def _lstm_backward(
    grad_outputs: Tensor,
    grad_hidden: Tensor,
    grad_cell: Tensor,
    lengths: Tensor,
    weight: Tensor,
    projection: Tensor,
    rows: Tensor,
    gates: Tensor,
    cells: Tensor,
    cell_output: Tensor,
    cell_clip: float,
    proj_clip: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of inputs, weight, bias, projection, hidden and cell."""
    C, K = projection.shape[1:]
    plan = plan_backward(rows.shape[2], C, K, rows.dtype, device_of(rows))
    grad_state, bounds = LSTMState(grad_hidden, grad_cell), Bounds(cell_clip, proj_clip)
    saved = SavedActivations(rows, gates, cells, cell_output)
    grads = run_backward(plan, grad_outputs, grad_state, lengths, weight, projection, saved, bounds)
    return grads.inputs, *grads.weights, *grads.state


@_lstm_backward.register_fake
def _(
    grad_outputs: Tensor,
    grad_hidden: Tensor,
    grad_cell: Tensor,
    lengths: Tensor,
    weight: Tensor,
    projection: Tensor,
    rows: Tensor,
    gates: Tensor,
    cells: Tensor,
    cell_output: Tensor,
    cell_clip: float,
    proj_clip: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    grad_bias = grad_cell.new_empty(weight.shape[0], weight.shape[2])
    grad_state = _empty_like(grad_hidden), _empty_like(grad_cell)
    return _empty_like(grad_outputs), _empty_like(weight), grad_bias, _empty_like(projection), *grad_state


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, lengths, weight, _, projection, _, _, ctx.cell_clip, ctx.proj_clip, _ = inputs
    ctx.save_for_backward(lengths, weight, projection, *output[3:])
    ctx.like = [(x.shape, x.dtype, x.device) for x in output[:3]]
    ctx.set_materialize_grads(False)  # otherwise autograd fills zeros of the size of all saved tensors


def _differentiate(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    grad_outputs, grad_hidden, grad_cell = (
        torch.zeros(shape, dtype=dtype, device=device) if grad is None else grad
        for grad, (shape, dtype, device) in zip(grads, ctx.like, strict=False)
    )
    grad_inputs, grad_weight, grad_bias, grad_projection, grad_hidden, grad_cell = torch.ops.elmokit.lstm_backward(
        grad_outputs, grad_hidden, grad_cell, *ctx.saved_tensors, ctx.cell_clip, ctx.proj_clip
    )
    grad_weights = grad_weight, grad_bias, grad_projection
    return grad_inputs, None, *grad_weights, grad_hidden, grad_cell, None, None, None


lstm_operator.register_autograd(_differentiate, setup_context=_save)


def _empty_like(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)
