"""The clipped, projected LSTM as its equations read, in plain PyTorch: the oracle of the other engines.

Enters: inputs (D, T, B, P) time first, lengths (D, B), weights and state.  Leaves: outputs (D, T, B, P), zero at
padding, and the state of each row after its own last token.  Direction 0 walks up in time, direction 1 down.
Autograd differentiates it; it runs on any device and in any floating dtype.
"""

from __future__ import annotations

import torch
from torch import Tensor

from elmokit.kernels.interface import LSTMState, LSTMWeights


def lstm(
    inputs: Tensor,
    lengths: Tensor,
    weights: LSTMWeights,
    state: LSTMState,
    *,
    cell_clip: float | None,
    proj_clip: float | None,
) -> tuple[Tensor, LSTMState]:
    """Run one layer, all directions (see `interface`)."""
    outputs, hiddens, cells = [], [], []
    for d in range(len(inputs)):
        h, c = state.hidden[d], state.cell[d]  # (B, P), (B, C)
        from_inputs = inputs[d] @ weights.input[d] + weights.bias[d]  # (T, B, 4C): all steps in one product
        times = range(len(from_inputs))
        steps: list[Tensor] = [h] * len(times)
        for t in times if d == 0 else reversed(times):
            i, j, f, o = (from_inputs[t] + h @ weights.recurrent[d]).chunk(4, dim=-1)  # (B, C) each
            # bilm-tf adds 1 to the forget gate at run time, so no file's bias holds it
            c_next = clip(torch.sigmoid(f + 1.0) * c + torch.sigmoid(i) * torch.tanh(j), cell_clip)
            h_next = clip((torch.sigmoid(o) * torch.tanh(c_next)) @ weights.projection[d], proj_clip)  # (B, P)
            live = (t < lengths[d]).unsqueeze(-1)  # (B, 1)
            h, c = torch.where(live, h_next, h), torch.where(live, c_next, c)
            steps[t] = torch.where(live, h_next, 0.0)
        outputs.append(torch.stack(steps) if steps else inputs.new_zeros(0, *h.shape))  # (T, B, P)
        hiddens.append(h)
        cells.append(c)
    return torch.stack(outputs), LSTMState(torch.stack(hiddens), torch.stack(cells))


def clip(values: Tensor, bound: float | None) -> Tensor:
    """Clip to ±bound; None leaves the values as they are."""
    return values if bound is None else values.clamp(-bound, bound)
