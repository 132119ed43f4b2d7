"""The interface of all engines: the tensors of one bidirectional layer of the clipped, projected LSTM.

An engine is a module with a function `lstm`: `eager`, `cpu` and `cuda` have the same arguments and results.

Legend of shapes: D directions (0 forward, 1 backward), T steps, B rows (sentences), P projection, C cells.  Directions
are an axis, so that an engine can run both at the same time.  Time is before rows, so that the rows of one step are
contiguous.

One step, for the active rows:

    i, j, f, o = split(x @ input + h @ recurrent + bias)
    c = clip(sigmoid(f + 1) * c + sigmoid(i) * tanh(j), cell_clip)
    h = clip((sigmoid(o) * tanh(c)) @ projection, proj_clip)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from elmokit.kernels.blocks import AttentionSizes, Past


class LSTMWeights(NamedTuple):
    """Weights of one layer; the columns of the gates are four blocks: i, j (candidate), f, o."""

    input: Tensor  # (D, P, 4C)
    recurrent: Tensor  # (D, P, 4C)
    bias: Tensor  # (D, 4C), without the 1 that is added to the forget gate at run time
    projection: Tensor  # (D, C, P)


class LSTMState(NamedTuple):
    """The state of each row: its last clipped output and its cells."""

    hidden: Tensor  # (D, B, P)
    cell: Tensor  # (D, B, C)


def zero_state(inputs: Tensor, bias: Tensor) -> LSTMState:
    """The state of rows that nothing was read of: zeros, in the dtype of the weights.

    Args:
        inputs: (D, T, B, P).
        bias: (D, 4C), of the weights.
    """
    directions, _, num_rows, width = inputs.shape
    num_cells = bias.shape[1] // 4
    return LSTMState(bias.new_zeros(directions, num_rows, width), bias.new_zeros(directions, num_rows, num_cells))


class Attention(Protocol):
    """Attention of T tokens of each row, of all blocks."""

    def __call__(self, qkv: Tensor, past: Past | None) -> tuple[Tensor, Past | None]:
        """(D, B T, 3P) -> (D, B T, P), and the last keys and values: see `blocks.Attention`."""


class MakeAttention(Protocol):
    """The class of an `Attention`."""

    def __call__(
        self,
        sizes: AttentionSizes,
        lengths: Tensor,
        num_past: Tensor | None,
        num_steps: int,
        width: int,
        like: Tensor,
        *,
        with_state: bool,
    ) -> Attention:
        """See `blocks.Attention`."""


class BlockParts(Protocol):
    """A module that computes what is between the products of transformer blocks: see `blocks`."""

    @property
    def Attention(self) -> MakeAttention:  # noqa: N802 (it is a class)
        """Attention of some tokens."""

    def norm(self, x: Tensor) -> Tensor:
        """Divide vectors by the root of their mean square."""

    def add_norm(self, x: Tensor, added: Tensor) -> tuple[Tensor, Tensor]:
        """A sum, and its norm."""

    def gate(self, rows: Tensor) -> Tensor:
        """Gates and values (D, N, 2F) -> silu(gate) * value (D, N, F)."""

    def to_reading_order(self, x: Tensor, lengths: Tensor, dtype: torch.dtype) -> Tensor:
        """(D, T, B, P) -> (D, B, T, P) in `dtype`."""

    def to_text_order(self, layers: Sequence[Tensor], lengths: Tensor, dtype: torch.dtype) -> list[Tensor]:
        """(D, B, T, P) each -> (D, T, B, P) each, zero after the end of a row."""


class Engine(Protocol):
    """A module that runs one layer over time, and names what runs between the products of transformer blocks."""

    @property
    def blocks(self) -> BlockParts:
        """The parts of transformer blocks: the module `blocks`, or one with the same names."""

    def lstm(
        self,
        inputs: Tensor,
        lengths: Tensor,
        weights: LSTMWeights,
        state: LSTMState | None,
        *,
        cell_clip: float | None,
        proj_clip: float | None,
    ) -> tuple[Tensor, LSTMState]:
        """Run one layer, all directions.

        Row b of direction d is active at steps t < lengths[d, b].  Direction 0 runs from step 0 up, direction 1 from
        the row's last active step down.

        Gradients reach inputs, weights and state.  T, B and lengths may be 0; inputs and lengths may be expanded views.
        On a GPU a call must not wait for the device, because training records it as a CUDA graph.  An engine that
        cannot run under autocast or torch.compile says so in its `is_available(inputs)`, which `choose` asks.

        Args:
            inputs: (D, T, B, P) vectors.
            lengths: (D, B) number of active steps of each row, 0 to T.
            weights: Weights of the layer.
            state: State before the first step of each row, which is not modified; None is `zero_state`.
            cell_clip: Bound of the cells; None does not clip.
            proj_clip: Bound of the outputs; None does not clip.

        Returns:
            Outputs (D, T, B, P), zero at steps that are not active, and the state after the last active step of each
            row: without gradients it may be a view of larger memory and, where cells are float32, wider than the
            weights.
        """
