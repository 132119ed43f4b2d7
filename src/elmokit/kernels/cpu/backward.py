"""The LSTM with gradients."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from elmokit.kernels.cpu.rows import LiveRows, live_rows, steps_of
from elmokit.kernels.cpu.steps import Clips, run_time_bias
from elmokit.kernels.cpu.threads import in_parallel
from elmokit.kernels.eager import clip
from elmokit.kernels.interface import LSTMState, LSTMWeights


class Trace(NamedTuple):
    """What the backward walk needs of one direction, for all live rows R."""

    live: LiveRows
    rows: Tensor  # (R, P)
    gates: Tensor  # (R, 4C), after their sigmoids and tanh
    hidden_before: Tensor  # (R, P)
    cell_before: Tensor  # (R, C)
    cell_raw: Tensor  # (R, C) before the clip
    cell_tanh: Tensor  # (R, C) tanh of the clipped cell
    hidden_raw: Tensor  # (R, P) before the clip


class Differentiable(torch.autograd.Function):
    """`lstm` as one node of autograd."""

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
        """Walk as `walk` does, keeping what the way back needs."""
        outputs, hidden_after, cell_after = (part.new_empty(part.shape) for part in (inputs, hidden, cell))
        weights = LSTMWeights(input_weight, recurrent, bias, projection)
        traces: dict[int, Trace] = {}

        def run(d: int) -> None:
            live = live_rows(lengths[d], inputs.shape[1])
            state = LSTMState(live.sort(hidden[d]), live.sort(cell[d]))
            traces[d] = traced_walk(live, live.gather(inputs[d]), weights, state, clips, d)
            live.scatter(clip(traces[d].hidden_raw, clips.proj), outputs[d])
            live.unsort(state.hidden, hidden_after[d])
            live.unsort(state.cell, cell_after[d])

        in_parallel(run, len(inputs))
        ctx.save_for_backward(*weights)
        ctx.traces, ctx.clips, ctx.shape = traces, clips, inputs.shape
        return outputs, hidden_after, cell_after

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, of_outputs: Tensor, of_hidden: Tensor, of_cell: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of `forward`'s arguments, in their order."""
        weights = LSTMWeights(*ctx.saved_tensors)
        of_inputs = of_outputs.new_empty(ctx.shape)
        of_weights = LSTMWeights(*(torch.empty_like(weight) for weight in weights))
        of_state = LSTMState(torch.empty_like(of_hidden), torch.empty_like(of_cell))

        def run(d: int) -> None:
            trace: Trace = ctx.traces[d]
            live = trace.live
            state = LSTMState(live.sort(of_hidden[d]), live.sort(of_cell[d]))
            of_gates, of_projected = walk_back(trace, live.gather(of_outputs[d]), weights, state, ctx.clips, d)
            y = trace.gates.chunk(4, dim=1)[3] * trace.cell_tanh
            torch.mm(trace.rows.t(), of_gates, out=of_weights.input[d])
            torch.mm(trace.hidden_before.t(), of_gates, out=of_weights.recurrent[d])
            torch.sum(of_gates, dim=0, out=of_weights.bias[d])
            torch.mm(y.t(), of_projected, out=of_weights.projection[d])
            live.scatter(of_gates @ weights.input[d].t(), of_inputs[d])
            live.unsort(state.hidden, of_state.hidden[d])
            live.unsort(state.cell, of_state.cell[d])

        in_parallel(run, len(of_inputs))
        return None, None, of_inputs, *of_weights, *of_state


def traced_walk(live: LiveRows, rows: Tensor, weights: LSTMWeights, state: LSTMState, clips: Clips, d: int) -> Trace:
    """`walk` with everything kept; weights change after each training step, so they are not packed."""
    hidden, cell = state
    recurrent, projection = weights.recurrent[d], weights.projection[d]
    gates = torch.addmm(run_time_bias(weights.bias[d]), rows, weights.input[d])  # (R, 4C)
    hidden_before, hidden_raw = torch.empty_like(rows), torch.empty_like(rows)
    cell_before, cell_raw, cell_tanh = rows.new_empty(3, len(rows), cell.shape[1])
    for start, n in steps_of(live.counts, reverse=d == 1):
        here, h, c = slice(start, start + n), hidden[:n], cell[:n]
        hidden_before[here], cell_before[here] = h, c
        g = gates[here].addmm_(h, recurrent)
        i, j, f, o = g.chunk(4, dim=1)
        j.mul_(2.0)
        g.sigmoid_()
        j.mul_(2.0).sub_(1.0)  # tanh(j) = 2 sigmoid(2 j) - 1
        raw = torch.mul(c, f, out=cell_raw[here]).addcmul_(i, j)
        c.copy_(clip(raw, clips.cell))
        tanh_c = torch.mul(c, 2.0, out=cell_tanh[here]).sigmoid_().mul_(2.0).sub_(1.0)
        h.copy_(clip(torch.mm(tanh_c * o, projection, out=hidden_raw[here]), clips.proj))
    return Trace(live, rows, gates, hidden_before, cell_before, cell_raw, cell_tanh, hidden_raw)


def walk_back(
    trace: Trace, of_rows: Tensor, weights: LSTMWeights, of_state: LSTMState, clips: Clips, d: int
) -> tuple[Tensor, Tensor]:
    """Gradients of the gates before their nonlinearities (R, 4C) and of the projections before their clip (R, P).

    `of_rows` is the gradient of the outputs; `of_state` enters as the last state's and leaves as the first's.
    """
    recurrent, projection = weights.recurrent[d].t(), weights.projection[d].t()
    i, j, f, o = trace.gates.chunk(4, dim=1)
    tanh_c = trace.cell_tanh
    to_cell = (1.0 - tanh_c * tanh_c).mul_(o)  # from o tanh(c) to c
    # what the gradient of the cell (of o tanh(c), for the gate o) is multiplied by on its way to each gate
    of_gates = torch.cat(
        [j * i * (1.0 - i), (1.0 - j * j).mul_(i), trace.cell_before * f * (1.0 - f), tanh_c * o * (1.0 - o)], dim=1
    )
    keep_cell, keep_hidden = inside(trace.cell_raw, clips.cell), inside(trace.hidden_raw, clips.proj)
    of_projected = of_rows.clone()
    cells = tanh_c.shape[1]
    for start, n in reversed(steps_of(trace.live.counts, reverse=d == 1)):
        here, of_h, of_c = slice(start, start + n), of_state.hidden[:n], of_state.cell[:n]
        of_p = of_projected[here].add_(of_h).mul_(keep_hidden[here])
        of_y = of_p @ projection  # (n, C)
        of_c.addcmul_(of_y, to_cell[here]).mul_(keep_cell[here])
        g = of_gates[here]
        g.view(n, 4, cells)[:, :3].mul_(of_c.unsqueeze(1))
        g[:, 3 * cells :].mul_(of_y)
        of_c.mul_(f[here])
        torch.mm(g, recurrent, out=of_h)
    return of_gates, of_projected


def inside(values: Tensor, bound: float | None) -> Tensor:
    """Where a clip lets the gradient through."""
    return torch.ones_like(values, dtype=torch.bool) if bound is None else values.abs() <= bound
