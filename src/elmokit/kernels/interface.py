"""What every engine agrees on: the tensors of one bidirectional layer of clipped, projected LSTM.

D directions (0 forward, 1 backward), T steps, B rows, P projection, C cells.  The directions are an axis, not a flag:
an engine can run both at once.  Time stands before rows so that the rows of one step are contiguous.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor


class LSTMWeights(NamedTuple):
    """Weights of one layer; gate columns are blocks i, j (candidate), f, o."""

    input: Tensor  # (D, P, 4C)
    recurrent: Tensor  # (D, P, 4C)
    bias: Tensor  # (D, 4C), without the 1 that the forget gate gets at run time
    projection: Tensor  # (D, C, P)


class LSTMState(NamedTuple):
    """What a row remembers: its last clipped output and its cells."""

    hidden: Tensor  # (D, B, P)
    cell: Tensor  # (D, B, C)


class Engine(Protocol):
    """`lstm(inputs (D, T, B, P), lengths (D, B), weights, state, …) -> outputs (D, T, B, P), state`.

    Row b of direction d is live at steps t < lengths[d, b]; direction 0 starts at step 0, direction 1 at the row's own
    last live step and goes down.  Outputs at steps that are not live are zero, and the state does not move there.
    """

    def lstm(
        self,
        inputs: Tensor,
        lengths: Tensor,
        weights: LSTMWeights,
        state: LSTMState,
        *,
        cell_clip: float | None,
        proj_clip: float | None,
    ) -> tuple[Tensor, LSTMState]: ...
