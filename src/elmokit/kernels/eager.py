"""The reference engine: the equations of the clipped, projected LSTM in plain PyTorch.

Input and output: as in `interface`.  It runs on any device and in any floating dtype, and autograd differentiates it.
The other engines are tested against it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from elmokit.kernels import blocks
from elmokit.kernels.interface import LSTMState, LSTMWeights, zero_state

__all__ = ["blocks", "lstm"]


def lstm(
    inputs: Tensor,
    lengths: Tensor,
    weights: LSTMWeights,
    state: LSTMState | None,
    *,
    cell_clip: float | None,
    proj_clip: float | None,
) -> tuple[Tensor, LSTMState]:
    """Run one layer, all directions: see `interface.Engine.lstm`."""
    state = zero_state(inputs, weights.bias) if state is None else state
    outputs, hiddens, cells = [], [], []
    for d in range(len(inputs)):
        h, c = state.hidden[d], state.cell[d]  # (B, P), (B, C)
        from_inputs = inputs[d] @ weights.input[d] + weights.bias[d]  # (T, B, 4C): all steps in one product
        times = range(len(from_inputs))
        steps: list[Tensor] = [h] * len(times)
        for t in times if d == 0 else reversed(times):
            i, j, f, o = (from_inputs[t] + h @ weights.recurrent[d]).chunk(4, dim=-1)  # (B, C) each
            # bilm-tf adds 1 to the forget gate at run time, so the bias in a file does not contain it
            c_next = clip(torch.sigmoid(f + 1.0) * c + torch.sigmoid(i) * torch.tanh(j), cell_clip)
            h_next = clip((torch.sigmoid(o) * torch.tanh(c_next)) @ weights.projection[d], proj_clip)  # (B, P)
            active = (t < lengths[d]).unsqueeze(-1)  # (B, 1)
            h, c = torch.where(active, h_next, h), torch.where(active, c_next, c)
            steps[t] = torch.where(active, h_next, 0.0)
        outputs.append(torch.stack(steps) if steps else inputs.new_zeros(0, *h.shape))  # (T, B, P)
        hiddens.append(h)
        cells.append(c)
    return torch.stack(outputs), LSTMState(torch.stack(hiddens), torch.stack(cells))


def clip(values: Tensor, bound: float | None) -> Tensor:
    """Clip to ±bound; None does not clip."""
    return values if bound is None else values.clamp(-bound, bound)
