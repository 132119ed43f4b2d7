"""The forward pass of one direction, without gradients.

Input: gathered active rows (see `rows`), the weights in the form that multiplies fastest, and the state.
Output: the results of all rows, and the state after the last step.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor

from elmokit.kernels.cpu import native
from elmokit.kernels.cpu.int8 import Int8Matrix, Int8Weights
from elmokit.kernels.cpu.native import NativeMatrix
from elmokit.kernels.cpu.one_row import cell_output, float_steps, in_torchscript, int8_steps
from elmokit.kernels.cpu.packed import PackedMatrix, packed_direction
from elmokit.kernels.cpu.rows import blocks
from elmokit.kernels.interface import LSTMState, LSTMWeights


class Clips(NamedTuple):
    """Bounds of the cells and of the outputs; None does not clip."""

    cell: float | None
    proj: float | None


class Matrix(Protocol):
    """A weight (K, N) in the form that multiplies fastest."""

    def product(self, rows: Tensor, *, bias: Tensor | None = None, plus: Tensor | None = None) -> Tensor:
        """Multiply rows by the weight.

        Args:
            rows: (n, K).
            bias: (N,), added to the result.
            plus: (n, N), to which the product is added in place.

        Returns:
            (n, N), a new tensor or `plus`.
        """


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
    h, c = hidden, cell
    for begin, end, steps in blocks(counts, reverse=d == 1):
        from_inputs = layer.input.product(rows[begin:end], bias=layer.bias)  # (r, 4C)
        if (packed := native_weights(layer, len(hidden))) is not None:
            of_block = [(row - begin, n) for row, n in steps]
            native.run_steps(from_inputs, of_block, *packed, *state, results[begin:end], *clips)
            continue
        # the views of all steps are made at once
        sizes = [n for _, n in (steps if d == 0 else steps[::-1])]
        step_gates, step_results = (
            list(part.split_with_sizes(sizes))[:: -1 if d == 1 else 1] for part in (from_inputs, results[begin:end])
        )
        if len(hidden) == 1:
            run_one_row(step_gates, step_results, layer, state, clips)
            continue
        for gates, result in zip(step_gates, step_results, strict=True):
            n = gates.size(0)
            if n != h.size(0):
                h, c = hidden[:n], cell[:n]
            layer.recurrent.product(h, plus=gates)
            h.copy_(layer.projection.product(cell_output(gates, c, clips.cell)))
            if clips.proj is not None:
                h.clamp_(-clips.proj, clips.proj)
            result.copy_(h)


def native_weights(layer: Layer, num_rows: int) -> tuple[NativeMatrix, NativeMatrix] | None:
    """The recurrent weight and the projection for `native.run_steps`, or None where PyTorch runs the steps."""
    recurrent, projection = layer.recurrent, layer.projection
    if isinstance(recurrent, Int8Matrix) and isinstance(projection, Int8Matrix):
        first, second = recurrent.for_native(), projection.for_native()
        return None if first is None or second is None else (first, second)
    if isinstance(recurrent, PackedMatrix) and isinstance(projection, PackedMatrix) and native.is_fast(num_rows):
        return recurrent.in_blocks_of_gates, projection.in_blocks
    return None


def run_one_row(steps: list[Tensor], results: list[Tensor], layer: Layer, state: LSTMState, clips: Clips) -> None:
    """Run steps of one row: see `one_row`."""
    recurrent, projection = layer.recurrent, layer.projection
    if isinstance(recurrent, PackedMatrix) and isinstance(projection, PackedMatrix):
        in_torchscript(float_steps)(steps, results, *state, recurrent.for_one_row, projection.for_one_row, *clips)
    elif isinstance(recurrent, Int8Matrix) and isinstance(projection, Int8Matrix):
        matrices = (recurrent.by_columns, recurrent.scales, projection.by_columns, projection.scales)
        in_torchscript(int8_steps)(steps, results, *state, *matrices, *clips)
