"""The mix of layers that a task learns (Peters et al., 2018, equation 1).

Input: every layer's vectors (L+1, B, T, 2P) and their mask.  Output: one vector per token (B, T, 2P).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from elmokit.arguments import check_flag, check_integer, check_number
from elmokit.kernels import check_dtype


class ScalarMix(nn.Module):
    """A weighted sum of the layers, gamma * sum_j softmax(w)_j * layer_j, with learned w and gamma.

    Args:
        num_layers: Number of layers L+1, layer 0 included.
        layer_norm: Normalize each layer over the unmasked elements of the batch first.
        eps: Added to the variance.
    """

    def __init__(self, num_layers: int, *, layer_norm: bool = False, eps: float = 1e-13) -> None:
        super().__init__()
        num_layers, layer_norm = check_integer("num_layers", num_layers), check_flag("layer_norm", layer_norm)
        check_number("eps", eps, least=0)
        self.weights = nn.Parameter(torch.zeros(num_layers))
        self.gamma = nn.Parameter(torch.ones(()))
        self.layer_norm, self.eps = layer_norm, eps

    def forward(self, layers: Tensor, mask: Tensor) -> Tensor:
        """Mix the layers.

        Args:
            layers: (L+1, B, T, 2P).
            mask: (B, T) bool, True at tokens.

        Returns:
            (B, T, 2P).

        Raises:
            ValueError: If the number of layers is not that of the weights.
        """
        if len(layers) != len(self.weights):
            raise ValueError(f"this mix has weights for {len(self.weights)} layers, not {len(layers)}")
        if self.layer_norm:
            layers = self._normalize(layers, mask)
        check_dtype(layers)
        return self.gamma * torch.einsum("l,lbtp->btp", self.weights.softmax(dim=0), layers)

    def _normalize(self, layers: Tensor, mask: Tensor) -> Tensor:
        """Normalize each layer by its mean and variance over all unmasked elements of the batch."""
        is_token = mask.unsqueeze(-1).to(layers.dtype)  # (B, T, 1)
        count = (is_token.sum() * layers.shape[-1]).clamp(min=1)
        dims = (1, 2, 3)
        mean = (layers * is_token).sum(dims, keepdim=True) / count
        variance = (((layers - mean) * is_token) ** 2).sum(dims, keepdim=True) / count
        return (layers - mean) * torch.rsqrt(variance + self.eps)

    def l2(self) -> Tensor:
        """Sum of squares of the layer weights: the paper's regularization term without its factor."""
        return (self.weights**2).sum()
