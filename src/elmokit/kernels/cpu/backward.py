"""The layer with gradients, as one node of autograd.

Input: the tensors of one layer (see `interface`).  Output: what `steps` computes, and the gradients of all of them.
The gradients of the weights are large products after the backward pass over the steps.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from elmokit.kernels.cpu.rows import ActiveRows, active_rows, steps_of
from elmokit.kernels.cpu.steps import Clips, run_time_bias
from elmokit.kernels.cpu.threads import in_parallel
from elmokit.kernels.eager import clip
from elmokit.kernels.interface import LSTMState, LSTMWeights


class SavedActivations(NamedTuple):
    """What the backward pass of one direction needs, for all active rows R."""

    active: ActiveRows
    rows: Tensor  # (R, P)
    gates: Tensor  # (R, 4C), after their activations
    hidden_before: Tensor  # (R, P)
    cell_before: Tensor  # (R, C)
    unclipped_cell: Tensor  # (R, C)
    cell_tanh: Tensor  # (R, C) tanh of the clipped cell
    unclipped_hidden: Tensor  # (R, P)


class DifferentiableLSTM(torch.autograd.Function):
    """`cpu.lstm` with gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        lengths: Tensor,
        clips: Clips,
        inputs: Tensor,
        input_weight: Tensor,
        recurrent: Tensor,
        bias: Tensor,
        projection: Tensor,
        hidden: Tensor,
        cell: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Outputs (D, T, B, P), hidden and cell after the last step; saves the activations."""
        outputs, hidden_after, cell_after = (part.new_empty(part.shape) for part in (inputs, hidden, cell))
        weights = LSTMWeights(input_weight, recurrent, bias, projection)
        saved: dict[int, SavedActivations] = {}

        def run(d: int) -> None:
            active = active_rows(lengths[d], inputs.shape[1])
            state = LSTMState(active.sort(hidden[d]), active.sort(cell[d]))
            saved[d] = run_steps_saving(active, active.gather(inputs[d]), weights, state, clips, d)
            active.scatter(clip(saved[d].unclipped_hidden, clips.proj), outputs[d])
            active.unsort(state.hidden, hidden_after[d])
            active.unsort(state.cell, cell_after[d])

        in_parallel(run, len(inputs))
        ctx.save_for_backward(*weights)
        ctx.saved, ctx.clips, ctx.shape = saved, clips, inputs.shape
        return outputs, hidden_after, cell_after

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_outputs: Tensor, grad_hidden: Tensor, grad_cell: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the arguments of `forward`, in their order."""
        weights = LSTMWeights(*ctx.saved_tensors)
        grad_inputs = grad_outputs.new_empty(ctx.shape)
        grad_weights = LSTMWeights(*(torch.empty_like(weight) for weight in weights))
        grad_state = LSTMState(torch.empty_like(grad_hidden), torch.empty_like(grad_cell))

        def run(d: int) -> None:
            saved: SavedActivations = ctx.saved[d]
            active = saved.active
            state = LSTMState(active.sort(grad_hidden[d]), active.sort(grad_cell[d]))
            grad_rows = active.gather(grad_outputs[d])
            grad_gates, grad_projected = run_steps_backward(saved, grad_rows, weights, state, ctx.clips, d)
            cell_output = saved.gates.chunk(4, dim=1)[3] * saved.cell_tanh
            torch.mm(saved.rows.t(), grad_gates, out=grad_weights.input[d])
            torch.mm(saved.hidden_before.t(), grad_gates, out=grad_weights.recurrent[d])
            torch.sum(grad_gates, dim=0, out=grad_weights.bias[d])
            torch.mm(cell_output.t(), grad_projected, out=grad_weights.projection[d])
            active.scatter(grad_gates @ weights.input[d].t(), grad_inputs[d])
            active.unsort(state.hidden, grad_state.hidden[d])
            active.unsort(state.cell, grad_state.cell[d])

        in_parallel(run, len(grad_inputs))
        return None, None, grad_inputs, *grad_weights, *grad_state


def run_steps_saving(
    active: ActiveRows, rows: Tensor, weights: LSTMWeights, state: LSTMState, clips: Clips, d: int
) -> SavedActivations:
    """`steps.run_steps` with all activations saved; weights change after each training step, so they are not packed."""
    hidden, cell = state
    recurrent, projection = weights.recurrent[d], weights.projection[d]
    gates = torch.addmm(run_time_bias(weights.bias[d]), rows, weights.input[d])  # (R, 4C)
    hidden_before, unclipped_hidden = torch.empty_like(rows), torch.empty_like(rows)
    cell_before, unclipped_cell, cell_tanh = rows.new_empty(3, len(rows), cell.shape[1])
    for start, n in steps_of(active.counts, reverse=d == 1):
        here, h, c = slice(start, start + n), hidden[:n], cell[:n]
        hidden_before[here], cell_before[here] = h, c
        g = gates[here].addmm_(h, recurrent)
        i, j, f, o = g.chunk(4, dim=1)
        j.mul_(2.0)
        g.sigmoid_()
        j.mul_(2.0).sub_(1.0)  # tanh(j) = 2 sigmoid(2 j) - 1
        new_cell = torch.mul(c, f, out=unclipped_cell[here]).addcmul_(i, j)
        c.copy_(clip(new_cell, clips.cell))
        tanh_c = torch.mul(c, 2.0, out=cell_tanh[here]).sigmoid_().mul_(2.0).sub_(1.0)
        h.copy_(clip(torch.mm(tanh_c * o, projection, out=unclipped_hidden[here]), clips.proj))
    return SavedActivations(
        active, rows, gates, hidden_before, cell_before, unclipped_cell, cell_tanh, unclipped_hidden
    )


def run_steps_backward(
    saved: SavedActivations, grad_rows: Tensor, weights: LSTMWeights, grad_state: LSTMState, clips: Clips, d: int
) -> tuple[Tensor, Tensor]:
    """Gradients of the gates before their activations (R, 4C) and of the projected values before their clip (R, P).

    `grad_rows` (R, P) is the gradient of the outputs.  `grad_state` is the gradient of the last state; the gradient of
    the first state is written into it.
    """
    recurrent, projection = weights.recurrent[d].t(), weights.projection[d].t()
    i, j, f, o = saved.gates.chunk(4, dim=1)
    tanh_c = saved.cell_tanh
    slope_of_cell = (1.0 - tanh_c * tanh_c).mul_(o)  # d cell_output / d cell
    # Derivatives of the cell with respect to the gates i, j, f before their activations, and of cell_output with
    # respect to o.  The loop multiplies them in place by the gradients of the cell and of cell_output.
    grad_gates = torch.cat(
        [j * i * (1.0 - i), (1.0 - j * j).mul_(i), saved.cell_before * f * (1.0 - f), tanh_c * o * (1.0 - o)], dim=1
    )
    cell_inside, hidden_inside = inside(saved.unclipped_cell, clips.cell), inside(saved.unclipped_hidden, clips.proj)
    grad_projected = grad_rows.clone()
    cell_dim = tanh_c.shape[1]
    for start, n in reversed(steps_of(saved.active.counts, reverse=d == 1)):
        here, grad_h, grad_c = slice(start, start + n), grad_state.hidden[:n], grad_state.cell[:n]
        grad_p = grad_projected[here].add_(grad_h).mul_(hidden_inside[here])
        grad_cell_output = grad_p @ projection  # (n, C)
        grad_c.addcmul_(grad_cell_output, slope_of_cell[here]).mul_(cell_inside[here])
        g = grad_gates[here]
        g.view(n, 4, cell_dim)[:, :3].mul_(grad_c.unsqueeze(1))
        g[:, 3 * cell_dim :].mul_(grad_cell_output)
        grad_c.mul_(f[here])
        torch.mm(g, recurrent, out=grad_h)
    return grad_gates, grad_projected


def inside(values: Tensor, bound: float | None) -> Tensor:
    """Where a clip passes the gradient on: values within ±bound."""
    return torch.ones_like(values, dtype=torch.bool) if bound is None else values.abs() <= bound
