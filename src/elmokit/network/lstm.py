"""One layer of the biLM: an LSTM with projection and clips, in both directions.

Input: vectors (D, T, B, P), lengths (B,) and the state.  Output: vectors (D, T, B, P) and the state.

Legend of shapes: D = 2 directions, T tokens, B sentences, P projection, C cells.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import torch
from torch import Tensor, nn

from elmokit import kernels
from elmokit.kernels import LSTMState, LSTMWeights

GATES_AT_ONCE = {"cpu": 2**26, "cuda": 2**32}  # gates of all steps, rows and directions in one call of an engine

RunLSTM = Callable[[Tensor, Tensor, LSTMState | None], tuple[Tensor, LSTMState]]
"""An engine's `lstm` with its weights and clips: inputs (D, T, B, P), lengths (D, B), state -> outputs, state."""


class _Pause(NamedTuple):
    """What is called between blocks of steps, and how long they are at most."""

    call: Callable[[], None]
    num_steps: int


_PAUSE: ContextVar[_Pause | None] = ContextVar("pause", default=None)


@contextmanager
def pausing(call: Callable[[], None], num_steps: int) -> Iterator[None]:
    """Layers of this thread run in blocks of steps: another use of the network need not wait for a long sentence.

    Args:
        call: Called after each block. It may run the network.
        num_steps: Largest number of steps per block.
    """
    token = _PAUSE.set(_Pause(call, num_steps))
    try:
        yield
    finally:
        _PAUSE.reset(token)


class ProjectedLSTM(nn.Module):
    """One layer of LSTM with projection and clips, both directions, each with its own weights."""

    def __init__(self, *, projection_dim: int, cell_dim: int, cell_clip: float | None, proj_clip: float | None) -> None:
        super().__init__()
        self.cell_clip, self.proj_clip = cell_clip, proj_clip
        self.input_weight = nn.Parameter(torch.empty(2, projection_dim, 4 * cell_dim))
        self.recurrent_weight = nn.Parameter(torch.empty(2, projection_dim, 4 * cell_dim))
        self.bias = nn.Parameter(torch.zeros(2, 4 * cell_dim))
        self.projection = nn.Parameter(torch.empty(2, cell_dim, projection_dim))
        # Glorot over the joined [input; recurrent] matrix, as in TensorFlow
        bound = math.sqrt(6.0 / (2 * projection_dim + 4 * cell_dim))
        nn.init.uniform_(self.input_weight, -bound, bound)
        nn.init.uniform_(self.recurrent_weight, -bound, bound)
        bound = math.sqrt(6.0 / (cell_dim + projection_dim))
        nn.init.uniform_(self.projection, -bound, bound)

    def forward(self, inputs: Tensor, lengths: Tensor, state: LSTMState | None) -> tuple[Tensor, LSTMState]:
        """Run the layer over sentences.

        Args:
            inputs: (D, T, B, P) vectors of tokens.
            lengths: (B,) number of tokens of each sentence.
            state: State before the first token of each direction; None is zeros.

        Returns:
            Outputs (D, T, B, P), zero after the end of a sentence, and the state after the last token.
        """
        engine, weights = kernels.choose(inputs), self.weights()

        def run(inputs: Tensor, lengths: Tensor, state: LSTMState | None) -> tuple[Tensor, LSTMState]:
            return engine.lstm(inputs, lengths, weights, state, cell_clip=self.cell_clip, proj_clip=self.proj_clip)

        return run_in_blocks(run, inputs, lengths, state, num_gates=self.bias.numel())

    def weights(self) -> LSTMWeights:
        """The parameters, as the engines take them."""
        return LSTMWeights(self.input_weight, self.recurrent_weight, self.bias, self.projection)


def run_in_blocks(
    run: RunLSTM, inputs: Tensor, lengths: Tensor, state: LSTMState | None, *, num_gates: int
) -> tuple[Tensor, LSTMState]:
    """Run a layer over long documents in blocks of steps, which bounds the memory of the gates; see also `pausing`.

    The state is carried from block to block.  The backward direction takes its blocks from the end.

    Args:
        run: Runs the layer over one block.
        inputs: (D, T, B, P) vectors of tokens.
        lengths: (B,) number of tokens of each sentence.
        state: State before the first token of each direction; None is zeros.
        num_gates: Number of gates per row and step, both directions: 8C.

    Returns:
        Outputs (D, T, B, P) and the state after the last token.
    """
    num_steps, num_rows = inputs.shape[1:3]
    gates_at_once = GATES_AT_ONCE.get(inputs.device.type, GATES_AT_ONCE["cpu"])
    block = max(1, gates_at_once // max(1, num_rows * num_gates))
    pause = _PAUSE.get()
    if pause is not None:
        block = min(block, max(1, pause.num_steps))
    if num_steps <= block:
        return run(inputs, lengths.expand(2, -1), state)
    forward, backward = [], []
    for begin in range(0, num_steps, block):
        end = min(begin + block, num_steps)
        part = torch.stack([inputs[0, begin:end], inputs[1, num_steps - end : num_steps - begin]])
        starts = torch.tensor([[begin], [num_steps - end]], device=lengths.device)
        outputs, state = run(part, (lengths - starts).clamp(0, end - begin), state)  # lengths (D, B)
        forward.append(outputs[0])
        backward.append(outputs[1])
        if pause is not None:
            pause.call()
    assert state is not None
    return torch.stack([torch.cat(forward), torch.cat(backward[::-1])]), state
