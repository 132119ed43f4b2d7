"""Layers whose matrices are rounded to int8, for inference on a CPU."""

from __future__ import annotations

from torch import Tensor, nn

from elmokit.kernels import cpu


class Int8Linear(nn.Module):
    """A linear layer whose matrix is int8."""

    def __init__(self, linear: nn.Module) -> None:
        super().__init__()
        assert isinstance(linear, nn.Linear)
        self.matrix = cpu.quantize_matrix(linear.weight.t())
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        """(N, in) -> (N, out)."""
        return self.matrix.product(x, bias=self.bias)
