"""A biLM whose matrices are rounded to int8: smaller and faster, for inference on a CPU.

Input: a biLM with float32 weights.  Output: a new biLM of the same configuration; the original is not modified.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import torch
from torch import Tensor, nn

from elmokit.kernels import LSTMState, cpu
from elmokit.network.bilm import BiLM, BiLMOutput, State
from elmokit.network.lstm import ProjectedLSTM, run_in_blocks
from elmokit.network.transformer import Product, TransformerBlock, native_block


def quantized(bilm: BiLM) -> BiLM:
    """Round the matrices of the layers, highways and projections to int8.

    Embeddings, convolutions and biases stay in float32; the new model shares them with the original.  The new model
    cannot be trained or saved.

    Args:
        bilm: A model in float32 on a CPU. Not modified.

    Returns:
        The int8 model. Its digest depends on the digest of the original.

    Raises:
        ValueError: The model is not on a CPU, or int8 products crash on this CPU.
    """
    return Int8BiLM(bilm)


class Int8BiLM(BiLM):
    """The result of `quantized`."""

    is_int8 = True

    def __init__(self, bilm: BiLM) -> None:
        if next(bilm.parameters()).device.type != "cpu":
            raise ValueError("int8 weights run on a CPU: leave quantize unset, or use device='cpu'")
        with torch.device("meta"):
            super().__init__(bilm.config)
        self.load_weights(bilm.state_dict())  # shared, not copied
        self.layers = nn.ModuleList(
            Int8Block(layer) if isinstance(layer, TransformerBlock) else Int8LSTM(layer) for layer in self.layers
        )
        for module in list(self.modules()):
            for name, child in module.named_children():
                if isinstance(child, nn.Linear):
                    setattr(module, name, Int8Linear(child))
        self.requires_grad_(False).train(bilm.training)
        self._digest = hashlib.sha256(f"{bilm.digest()} as int8".encode()).hexdigest()

    def embed_words(self, ids: Tensor) -> Tensor:
        """See `BiLM.embed_words`. Autocast has no effect."""
        with torch.autocast("cpu", enabled=False):
            return super().embed_words(ids)

    def contextualize(
        self,
        tokens: Tensor,
        lengths: Tensor,
        *,
        state: State | None = None,
        keep_boundaries: bool = False,
        with_state: bool = True,
        padded: bool = True,
    ) -> BiLMOutput:
        """See `BiLM.contextualize`. Autocast has no effect."""
        with torch.autocast("cpu", enabled=False):
            return super().contextualize(
                tokens,
                lengths,
                state=state,
                keep_boundaries=keep_boundaries,
                with_state=with_state,
                padded=padded,
            )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Int8BiLM:
        """Refuse other devices and dtypes (`to`, `half`, `cuda`, …) before any weight is changed."""
        moved = fn(torch.zeros(1))
        if moved.dtype != torch.float32 or moved.device.type != "cpu":
            raise ValueError(
                f"a model with int8 weights computes in float32 on a CPU, it cannot become {moved.dtype} on "
                f"{moved.device}: load it without quantize"
            )
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def digest(self) -> str:
        """The SHA-256 of the original's digest and "as int8": packed weights cannot be hashed."""
        return self._digest


class Int8LSTM(nn.Module):
    """A `ProjectedLSTM` whose matrices are int8."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        assert isinstance(layer, ProjectedLSTM)
        self.cell_clip, self.proj_clip = layer.cell_clip, layer.proj_clip
        self.weights = cpu.quantize(layer.weights())
        self.bias = nn.Parameter(self.weights.bias, requires_grad=False)

    def forward(self, inputs: Tensor, lengths: Tensor, state: LSTMState | None) -> tuple[Tensor, LSTMState]:
        """See `ProjectedLSTM.forward`."""

        def run(inputs: Tensor, lengths: Tensor, state: LSTMState | None) -> tuple[Tensor, LSTMState]:
            return cpu.lstm(inputs, lengths, self.weights, state, cell_clip=self.cell_clip, proj_clip=self.proj_clip)

        return run_in_blocks(run, inputs, lengths, state, num_gates=self.bias.numel())


class Int8Block(nn.Module):
    """A `TransformerBlock` whose matrices are int8."""

    def __init__(self, block: TransformerBlock) -> None:
        super().__init__()
        self._matrices = {
            name: [cpu.quantize_matrix(matrix) for matrix in weight] for name, weight in block.named_parameters()
        }

    def product(self, name: str, rows: Tensor) -> Tensor:
        """See `TransformerBlock.product`."""
        return torch.cat([self.direction(d)(name, rows[d : d + 1]) for d in range(2)])

    def direction(self, d: int) -> Product:
        """See `TransformerBlock.direction`."""

        def product(name: str, rows: Tensor) -> Tensor:
            return self._matrices[name][d].product(rows[0]).unsqueeze(0)

        return product

    def for_native(self, d: int) -> cpu.NativeBlock | None:
        """See `TransformerBlock.for_native`."""
        return native_block(self._matrices[name][d].for_native() for name in cpu.NativeBlock._fields)


class Int8Linear(nn.Module):
    """An `nn.Linear` whose matrix is int8."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.matrix = cpu.quantize_matrix(linear.weight.t())
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        """(N, in) -> (N, out)."""
        return self.matrix.product(x, bias=self.bias)

    def for_native(self) -> cpu.NativeLinear | None:
        """See `encoder.HasNative`."""
        matrix = self.matrix.for_native()
        return None if matrix is None else cpu.NativeLinear(matrix, self.bias)
