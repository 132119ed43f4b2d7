"""The mix of layers that a task learns (Peters et al., 2018, equation 1).

Enters: every layer's vectors (L+1, B, T, 2P) and their mask.  Leaves: one vector for each token (B, T, 2P).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ScalarMix(nn.Module):
    """gamma * sum_j softmax(w)_j * layer_j: the weights that a task learns (equation 1 of the paper)."""

    def __init__(self, num_layers: int, *, layer_norm: bool = False, eps: float = 1e-13) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(num_layers))
        self.gamma = nn.Parameter(torch.ones(()))
        self.layer_norm, self.eps = layer_norm, eps

    def forward(self, layers: Tensor, mask: Tensor) -> Tensor:
        """(L+1, B, T, 2P), (B, T) -> (B, T, 2P)."""
        if len(layers) != len(self.weights):
            raise ValueError(f"this mix weighs {len(self.weights)} layers, {len(layers)} came")
        if self.layer_norm:
            layers = self._normalize(layers, mask)
        return self.gamma * torch.einsum("l,lbtp->btp", self.weights.softmax(dim=0), layers)

    def _normalize(self, layers: Tensor, mask: Tensor) -> Tensor:
        """One mean and one variance for each layer, over all unmasked elements of the batch."""
        live = mask.unsqueeze(-1).to(layers.dtype)  # (B, T, 1)
        count = (live.sum() * layers.shape[-1]).clamp(min=1)
        over = (1, 2, 3)
        mean = (layers * live).sum(over, keepdim=True) / count
        variance = (((layers - mean) * live) ** 2).sum(over, keepdim=True) / count
        return (layers - mean) * torch.rsqrt(variance + self.eps)

    def l2(self) -> Tensor:
        """Sum of squares of the layer weights: the paper's regulariser, before its lambda."""
        return (self.weights**2).sum()
