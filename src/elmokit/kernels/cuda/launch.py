"""The forward and the backward loop of one layer according to a plan: buffers, launches, products over all steps.

Input: inputs and prepared weights.  Output: outputs and state; or gradients.

Legend of shapes: D directions, T steps, B rows, P projection, K padded projection, C padded cells.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from elmokit.kernels.cuda.tiles import Plan, device_of
from elmokit.kernels.cuda.weights import PreparedWeights
from elmokit.kernels.interface import LSTMState


class Bounds(NamedTuple):
    """Bounds of the cells and of the outputs; infinity does not clip."""

    cell: float
    proj: float


class _Buffers(NamedTuple):
    """What the forward loop writes beside its outputs. `cell` is zeros."""

    rows: Tensor  # (D, T + 2, B, 2K): inputs and hidden states (see `steps`)
    cell: Tensor  # (D, B, C) float32
    cell_output: Tensor  # (D, B, C), or (D, T, B, C) of all steps
    partials: Tensor  # (split, D, B, K) float32
    barrier: Tensor  # a counter of arrivals, int32


class SavedActivations(NamedTuple):
    """What the backward loop reads; empty tensors in inference."""

    rows: Tensor  # (D, T + 2, B, 2K): inputs and hidden states (see `steps`)
    gates: Tensor  # (D, T, B, 4C), after their activations
    cells: Tensor  # (D, T, B, C), before each step
    cell_output: Tensor  # (D, T, B, C): o tanh(c), which the projection reads


class Gradients(NamedTuple):
    """Gradients of the loss with respect to the tensors of a layer, the weights in their prepared form."""

    inputs: Tensor  # (D, T, B, P)
    weights: PreparedWeights
    state: LSTMState


def run_forward(
    plan: Plan,
    inputs: Tensor,
    lengths: Tensor,
    weights: PreparedWeights,
    state: LSTMState | None,
    bounds: Bounds,
    *,
    num_cells: int,
    save: bool,
) -> tuple[Tensor, LSTMState, SavedActivations]:
    """The forward loop: outputs (D, T, B, P), the state after the last step, and the activations if `save`.

    The state is a view of the loop's buffers: who keeps it makes a copy. `lengths` (D, B) may be one row, expanded.
    What comes before the launch is what one sentence waits for: the fewer operations, the better.
    """
    from elmokit.kernels.cuda import steps

    directions, times, num_rows, width = inputs.shape
    C, K = weights.projection.shape[1:]
    only_hidden = plan.hoisted and not save  # nothing reads the inputs in the rows
    buffers = _zero_buffers(plan, inputs, C, K) if only_hidden else _large_buffers(plan, inputs, C, K, save=save)
    rows, cell, cell_output, partials, barrier = buffers
    hidden = rows.flatten(0, 1)[:, :, K : K + width]  # (D (T + 2), B, P)
    if state is not None or not only_hidden:
        before = hidden[1 :: 2 * times + 1]  # (D, B, P): slot 1 forward, slot T backward
        before.zero_() if state is None else before.copy_(state.hidden)
    if state is not None:
        cell[..., :num_cells] = state.cell
    outputs = torch.empty_like(inputs, memory_format=torch.contiguous_format)
    nothing = inputs.new_empty(0)
    gates = inputs.new_empty(directions, times, num_rows, 4 * C) if save else nothing
    cells = inputs.new_empty(directions, times, num_rows, C) if save else nothing
    # the rows of weights behind the width are zeros
    hoisted = torch.bmm(inputs.flatten(1, 2), weights.weight[:, :width]) if plan.hoisted else nothing
    tensors = (rows, weights.weight, weights.bias, hoisted, weights.projection, lengths, cell, cell_output, outputs)
    _run_loop(
        plan,
        steps.forward_loop,
        (*tensors, gates, cells, partials, barrier),
        (2 * K, times, num_rows, width, directions, lengths.stride(0), *bounds),
        {"K": K, "C": C, "HOISTED": plan.hoisted, "EARLY": plan.early, "SAVE": save},
        {
            steps.GATES: directions * (C // plan.cells.columns) * -(-num_rows // plan.cells.rows),
            steps.PROJECT: directions * _hidden_tiles(plan, num_rows, K),
            steps.REDUCE: directions * -(-num_rows * K // _elements(inputs, num_rows, K)) if plan.split > 1 else 0,
        },
    )
    after = hidden[times + 1 : times + 3]  # (D, B, P): slot T + 1 forward, slot 0 backward
    state_after = LSTMState(after, cell[..., :num_cells])
    if save:
        return outputs, state_after, SavedActivations(rows, gates, cells, cell_output)
    return outputs, state_after, SavedActivations(nothing, nothing, nothing, nothing)


def _zero_buffers(plan: Plan, inputs: Tensor, C: int, K: int) -> _Buffers:
    """Buffers of few rows whose inputs the loop does not read: one piece of memory and one launch, which fills it."""
    directions, times, num_rows, _ = inputs.shape
    cells, shape = directions * num_rows * C, (directions, times + 2, num_rows, 2 * K)
    per_float = 4 // inputs.element_size()
    # every size is a multiple of 16 bytes, by which the kernels read
    sizes = (cells, math.prod(shape) // per_float, cells // per_float, plan.split * directions * num_rows * K, 4)
    zeros = inputs.new_zeros(sum(sizes), dtype=torch.float32)
    cell, rows, cell_output, partials, barrier = torch.split_with_sizes(zeros, sizes)
    return _Buffers(
        rows.view(inputs.dtype).view(shape),
        cell.view(directions, num_rows, C),
        cell_output.view(inputs.dtype),
        partials,
        barrier.view(torch.int32),
    )


def _large_buffers(plan: Plan, inputs: Tensor, C: int, K: int, *, save: bool) -> _Buffers:
    """Buffers with the inputs in the rows; what the loop writes before it reads it is left as it is."""
    directions, times, num_rows, width = inputs.shape
    make = inputs.new_zeros if width < K else inputs.new_empty
    rows = make(directions, times + 2, num_rows, 2 * K)
    rows[:, 1:-1, :, :width] = inputs
    cell = inputs.new_zeros(directions, num_rows, C, dtype=torch.float32)
    cell_output = inputs.new_empty(directions, times if save else 1, num_rows, C)
    partials = cell.new_empty(plan.split if plan.split > 1 else 0, directions, num_rows, K)
    return _Buffers(rows, cell, cell_output, partials, _barrier(inputs))


def run_backward(
    plan: Plan,
    grad_outputs: Tensor,
    grad_state: LSTMState,
    lengths: Tensor,
    weight: Tensor,
    projection: Tensor,
    saved: SavedActivations,
    bounds: Bounds,
) -> Gradients:
    """The backward loop, then the products over all steps.

    Args:
        plan: From `plan_backward`.
        grad_outputs: (D, T, B, P) gradient of the outputs.
        grad_state: Gradient of the state after the last step.
        lengths: (D, B) int32.
        weight: Of `PreparedWeights`.
        projection: Of `PreparedWeights`.
        saved: From `run_forward`.
        bounds: As in `run_forward`.
    """
    from elmokit.kernels.cuda import steps

    rows = saved.rows
    directions, times, num_rows, width = grad_outputs.shape
    num_cells = grad_state.cell.shape[2]
    C, K = projection.shape[1:]
    carry, grad_cell = _padded(grad_state.hidden, K), _padded(grad_state.cell, C)
    grad_projected = rows.new_empty(directions, times, num_rows, K)  # of the projected values before their clip
    grad_cell_output = rows.new_empty(directions, num_rows, C)
    grad_gates = torch.empty_like(saved.gates)
    strips = min(-(-num_rows // steps.ROWS), max(1, device_of(rows).processors * steps.COLUMNS // (directions * C)))
    grad_bias = grad_cell.new_zeros(directions, strips, 4 * C)
    partials = grad_cell.new_zeros(plan.split, directions, num_rows, K)
    inputs = (rows, weight, projection, lengths, grad_outputs.contiguous(), grad_projected, carry, grad_cell_output)
    # clipped values were rounded to the dtype of the rows: compare them with the rounded bound
    rounded = float(torch.tensor(bounds.proj, dtype=rows.dtype))
    _run_loop(
        plan,
        steps.backward_loop,
        (*inputs, saved.gates, saved.cells, grad_gates, grad_cell, grad_bias, partials, _barrier(rows)),
        (K, strips, times, num_rows, width, directions, bounds.cell, rounded),
        {"K": K, "C": C, "ROWS": steps.ROWS, "COLUMNS": steps.COLUMNS, "STAGES": plan.cells.stages},
        {
            steps.HIDDEN: directions * -(-num_rows * K // _elements(rows, num_rows, K)),
            steps.UNPROJECT: directions * (C // plan.cells.columns) * -(-num_rows // plan.cells.rows),
            steps.CELLS: directions * (C // steps.COLUMNS) * strips,
            steps.BACK: directions * _hidden_tiles(plan, num_rows, K),
        },
    )
    grad_gates = grad_gates.flatten(1, 2)  # (D, TB, 4C)
    grad_inputs = torch.bmm(grad_gates, weight[:, :K].transpose(1, 2)).view(directions, times, num_rows, K)
    grad_weight = torch.bmm(rows[:, 1:-1].flatten(1, 2).transpose(1, 2), grad_gates)
    grad_projection = torch.bmm(saved.cell_output.flatten(1, 2).transpose(1, 2), grad_projected.flatten(1, 2))
    carry += partials.sum(dim=0)
    grad_hidden = carry[..., :width].to(grad_state.hidden.dtype, memory_format=torch.contiguous_format, copy=True)
    return Gradients(
        grad_inputs[..., :width].contiguous(),
        PreparedWeights(grad_weight, grad_bias.sum(dim=1), grad_projection),
        LSTMState(grad_hidden, grad_cell[..., :num_cells].contiguous()),
    )


def _run_loop(
    plan: Plan,
    kernel: Any,
    tensors: tuple[Tensor, ...],
    scalars: tuple[float, ...],
    sizes: dict[str, int],
    programs_of: dict[int, int],
) -> None:
    """Launch all steps of a loop: in one cooperative launch, or phase by phase.

    `programs_of` gives the number of programs that each phase has work for.
    """
    from elmokit.kernels.cuda import steps

    rows = tensors[0]  # (D, T + 2, B, 2K)
    a, b = plan.cells, plan.hidden
    constants = {
        **sizes,
        "BM": a.rows, "BN": a.columns, "BK": a.depth, "PM": b.rows, "PN": b.columns, "PK": b.depth, "SPLIT": plan.split,
        "ELEMENTS": _elements(rows, rows.shape[2], sizes["K"]), "PRECISION": precision(rows.dtype),
        "FAST": rows.is_cuda and rows.dtype != torch.float32,
        "num_warps": a.warps, "num_stages": a.stages,
    }  # fmt: skip
    times = rows.shape[1] - 2
    with torch.cuda.device_of(rows):  # type: ignore[no-untyped-call]
        if plan.looped and can_cooperate():
            grid = (min(device_of(rows).processors, max(programs_of.values())),)
            kernel[grid](*tensors, 0, times, *scalars, PHASES=steps.ALL, launch_cooperative_grid=True, **constants)
            return
        for step in range(times):
            for phase, programs in programs_of.items():
                if programs:
                    kernel[(programs,)](*tensors, step, step + 1, *scalars, PHASES=phase, **constants)


@functools.cache
def can_cooperate() -> bool:
    """Whether this Triton can launch a grid whose programs all run at the same time (since 3.3)."""
    from triton.backends.nvidia.compiler import CUDAOptions

    return "launch_cooperative_grid" in {field.name for field in dataclasses.fields(CUDAOptions)}


def _hidden_tiles(plan: Plan, num_rows: int, K: int) -> int:
    """Number of tiles of the product on the side of the hidden state, for one direction."""
    return plan.split * (K // plan.hidden.columns) * -(-num_rows // plan.hidden.rows)


def _elements(like: Tensor, num_rows: int, K: int) -> int:
    """Size of an elementwise block: small to give all processors work, or large to hide the latency of memory."""
    return 1024 if num_rows * K < 2048 * device_of(like).processors else 4096


def _barrier(like: Tensor) -> Tensor:
    """The counter of arrivals at the barriers of one launch."""
    return torch.zeros(1, dtype=torch.int32, device=like.device)


def _padded(x: Tensor, width: int) -> Tensor:
    """A float32 copy whose last axis is padded to `width`."""
    if x.shape[-1] == width:
        return x.to(torch.float32, memory_format=torch.contiguous_format, copy=True)
    return functional.pad(x.float(), (0, width - x.shape[-1])).contiguous()


def precision(dtype: torch.dtype) -> str:
    """Precision of float32 products: exact, unless the user has allowed tf32 for cuBLAS."""
    if dtype != torch.float32:  # the settings take long to read
        return "tf32"
    matmul = torch.backends.cuda.matmul
    chosen = getattr(matmul, "fp32_precision", None)  # since torch 2.9
    allowed = matmul.allow_tf32 if chosen is None else chosen == "tf32"
    return "tf32" if allowed else "ieee"
