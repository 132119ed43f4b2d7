"""One layer of the biLM: an LSTM with projection and clips, in both directions.

Enters: vectors (D, T, B, P), lengths (B,) and the state.  Leaves: vectors (D, T, B, P) and the state.

Legend of shapes: D = 2 directions, T tokens, B sentences, P projection, C cells.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from elmokit import kernels
from elmokit.kernels import LSTMState, LSTMWeights, cpu

GATES_AT_ONCE = {"cpu": 2**26, "cuda": 2**32}  # elements of the hoisted input product that one kernel call may hold


class ProjectedLSTM(nn.Module):
    """One layer of LSTM with projection and clips, both directions, each with weights of its own."""

    def __init__(self, *, projection_dim: int, cell_dim: int, cell_clip: float | None, proj_clip: float | None) -> None:
        super().__init__()
        self.cell_clip, self.proj_clip = cell_clip, proj_clip
        self.int8: cpu.Int8Weights | None = None
        self.input_weight = nn.Parameter(torch.empty(2, projection_dim, 4 * cell_dim))
        self.recurrent_weight = nn.Parameter(torch.empty(2, projection_dim, 4 * cell_dim))
        self.bias = nn.Parameter(torch.zeros(2, 4 * cell_dim))
        self.projection = nn.Parameter(torch.empty(2, cell_dim, projection_dim))
        # Glorot over the joined [input; recurrent] matrix, as TensorFlow saw it
        bound = math.sqrt(6.0 / (2 * projection_dim + 4 * cell_dim))
        nn.init.uniform_(self.input_weight, -bound, bound)
        nn.init.uniform_(self.recurrent_weight, -bound, bound)
        bound = math.sqrt(6.0 / (cell_dim + projection_dim))
        nn.init.uniform_(self.projection, -bound, bound)

    def forward(self, inputs: Tensor, lengths: Tensor, state: LSTMState) -> tuple[Tensor, LSTMState]:
        """inputs (D, T, B, P), lengths (B,) -> outputs (D, T, B, P), state.

        A long document goes through in blocks of steps, the state carried, so that memory does not grow with the gates
        of all its steps; the backward direction takes its blocks from the end.
        """
        run: Callable[..., tuple[Tensor, LSTMState]] = cpu.lstm if self.int8 else kernels.choose(inputs).lstm
        weights = self.int8 or self._weights()
        steps, rows = inputs.shape[1:3]
        gates_per_step = max(1, rows * self.bias.numel())
        block = max(1, GATES_AT_ONCE.get(inputs.device.type, GATES_AT_ONCE["cpu"]) // gates_per_step)
        forward, backward = [], []
        for begin in range(0, max(steps, 1), block):
            end = min(begin + block, steps)
            if end - begin == steps:
                part, part_lengths = inputs, lengths.expand(2, -1)
            else:
                part = torch.stack([inputs[0, begin:end], inputs[1, steps - end : steps - begin]])
                starts = torch.tensor([[begin], [steps - end]], device=lengths.device)
                part_lengths = (lengths - starts).clamp(0, end - begin)  # (D, B)
            outputs, state = run(part, part_lengths, weights, state, cell_clip=self.cell_clip, proj_clip=self.proj_clip)
            if end - begin == steps:
                return outputs, state
            forward.append(outputs[0])
            backward.append(outputs[1])
        return torch.stack([torch.cat(forward), torch.cat(backward[::-1])]), state

    def _weights(self) -> LSTMWeights:
        return LSTMWeights(self.input_weight, self.recurrent_weight, self.bias, self.projection)

    def quantize(self) -> None:
        """Keep the matrices as int8 alone."""
        self.int8 = cpu.quantize(self._weights())
        for name in ("input_weight", "recurrent_weight", "projection"):
            setattr(self, name, nn.Parameter(torch.empty(0), requires_grad=False))
