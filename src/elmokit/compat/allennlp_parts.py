"""The parts that AllenNLP's `Elmo` is made of: `ScalarMix`, `_ElmoBiLm` and `_ElmoCharacterEncoder`.

Input: tensors of layers, or character ids (B, T, 50). Output: what AllenNLP's modules return. `_ElmoBiLm` and
`_ElmoCharacterEncoder` keep the sentence boundaries, so that their results have T + 2 tokens.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypedDict

import torch
from torch import Tensor, nn

from elmokit.arguments import check_flag, check_instance, check_integer, check_path, check_weights
from elmokit.compat.allennlp_weights import load_bilm, load_encoder
from elmokit.inference.runner import StateRule
from elmokit.model import ELMo
from elmokit.network.ids import token_mask
from elmokit.network.rows import distinct_rows, take_rows

AnyPath = str | os.PathLike[str]
IDS = "a tensor of character ids, as batch_to_ids makes it"


class ScalarMix(nn.Module):
    """`allennlp.modules.ScalarMix`: gamma * sum_k softmax(w)_k * tensor_k, with learned w and gamma.

    The parameters are named as in AllenNLP: `scalar_parameters.0`, …, and `gamma`, each of shape (1,).

    Args:
        mixture_size: Number of tensors.
        do_layer_norm: Normalize each tensor by its mean and variance over all unmasked elements first.
        initial_scalar_parameters: Initial w, before the softmax; None is zeros.
        trainable: Train w and gamma.

    Raises:
        ValueError: If the number of `initial_scalar_parameters` is not `mixture_size`.
    """

    def __init__(
        self,
        mixture_size: int,
        do_layer_norm: bool = False,
        initial_scalar_parameters: Sequence[float] | None = None,
        trainable: bool = True,
    ) -> None:
        super().__init__()
        mixture_size, trainable = check_integer("mixture_size", mixture_size), check_flag("trainable", trainable)
        initial = [0.0] * mixture_size
        if initial_scalar_parameters is not None:
            initial = check_weights("initial_scalar_parameters", initial_scalar_parameters)
        if len(initial) != mixture_size:
            raise ValueError(f"initial_scalar_parameters has {len(initial)} weights, mixture_size is {mixture_size}")
        self.mixture_size, self.do_layer_norm = mixture_size, check_flag("do_layer_norm", do_layer_norm)
        self.scalar_parameters = nn.ParameterList(
            nn.Parameter(torch.tensor([weight]), requires_grad=trainable) for weight in initial
        )
        self.gamma = nn.Parameter(torch.ones(1), requires_grad=trainable)

    def forward(self, tensors: Sequence[Tensor], mask: Tensor | None = None) -> Tensor:
        """Mix tensors.

        Args:
            tensors: `mixture_size` tensors of one shape (..., D).
            mask: (...), True where there is a token. Only layer norm reads it, and needs it.

        Returns:
            (..., D).

        Raises:
            ValueError: If the number of tensors is not `mixture_size`, or layer norm has no mask.
        """
        if len(tensors) != self.mixture_size:
            raise ValueError(f"this ScalarMix mixes {self.mixture_size} tensors, not {len(tensors)}")
        if self.do_layer_norm:
            if mask is None:
                raise ValueError("do_layer_norm=True needs a mask, which says what elements count: pass mask=")
            tensors = [_normalize(tensor, mask) for tensor in tensors]
        weights = torch.cat(list(self.scalar_parameters)).softmax(dim=0)
        weighted = [weight * tensor for weight, tensor in zip(weights, tensors, strict=True)]
        return self.gamma * torch.stack(weighted).sum(dim=0)


def _normalize(tensor: Tensor, mask: Tensor) -> Tensor:
    """One mean and variance over all unmasked elements of the batch."""
    counted = mask.unsqueeze(-1).to(tensor.dtype)  # (..., 1)
    count = counted.sum() * tensor.shape[-1]
    mean = (tensor * counted).sum() / count
    variance = (((tensor - mean) * counted) ** 2).sum() / count
    return (tensor - mean) / torch.sqrt(variance + (1e-13 if tensor.dtype.itemsize > 2 else 1e-4))


class BiLmOutput(TypedDict):
    """What `_ElmoBiLm.forward` gives."""

    activations: list[Tensor]
    """(B, T + 2, 2P) of each layer."""
    mask: Tensor
    """(B, T + 2)."""


class _ElmoBiLm(nn.Module):
    """`allennlp.modules.elmo._ElmoBiLm`: every layer of a biLM, with the sentence boundaries.

    It loads a `state_dict` that AllenNLP saved.

    Args:
        options_file: The official options, a path or a URL.
        weight_file: The official weights, a path or a URL.
        requires_grad: Train the biLM.
        vocab_to_cache: Accepted and not used: each distinct word of a batch is computed once in any case.
        state: "stateless", or "carry" for AllenNLP's behaviour.
    """

    def __init__(
        self,
        options_file: AnyPath,
        weight_file: AnyPath,
        requires_grad: bool = False,
        vocab_to_cache: Sequence[str] | None = None,
        *,
        state: StateRule = "stateless",
    ) -> None:
        super().__init__()
        self.elmo = ELMo.from_files(
            check_path("options_file", options_file),
            check_path("weight_file", weight_file),
            freeze=not check_flag("requires_grad", requires_grad),
            num_mixes=0,
            keep_boundaries=True,
            state=state,
        )
        self.num_layers = self.elmo.num_layers
        self.register_load_state_dict_pre_hook(load_bilm)  # type: ignore[no-untyped-call]
        self.train()  # as every new module is

    def get_output_dim(self) -> int:
        """Width of a vector."""
        return self.elmo.dim

    def forward(self, inputs: Tensor, word_inputs: Tensor | None = None) -> BiLmOutput:
        """Run a batch.

        Args:
            inputs: Character ids (B, T, 50).
            word_inputs: Accepted and not used.

        Returns:
            `activations`, (B, T + 2, 2P) of each layer from the context-free one up, and `mask` (B, T + 2).

        Raises:
            ValueError: If the ids have a wrong shape, type or range.
        """
        check_instance("inputs", inputs, Tensor, IDS)
        output = self.elmo(inputs)
        return {"activations": list(output.layers), "mask": output.mask}


class EncoderOutput(TypedDict):
    """What `_ElmoCharacterEncoder.forward` gives."""

    mask: Tensor
    """(B, T + 2)."""
    token_embedding: Tensor
    """(B, T + 2, P)."""


class _ElmoCharacterEncoder(nn.Module):
    """`allennlp.modules.elmo._ElmoCharacterEncoder`: context-free vectors of tokens and sentence boundaries.

    It loads a `state_dict` that AllenNLP saved.

    Args:
        options_file: The official options, a path or a URL.
        weight_file: The official weights, a path or a URL.
        requires_grad: Train the encoder.
    """

    def __init__(self, options_file: AnyPath, weight_file: AnyPath, requires_grad: bool = False) -> None:
        super().__init__()
        check_path("options_file", options_file)
        check_path("weight_file", weight_file)
        freeze = not check_flag("requires_grad", requires_grad)
        bilm = ELMo.from_files(options_file, weight_file, freeze=freeze, num_mixes=0).bilm
        assert bilm.char_encoder is not None  # `from_files` refuses a word-level model without its vocabulary
        self.output_dim = bilm.config.projection_dim
        self.encoder, self._word_ids = bilm.char_encoder, bilm.word_ids
        self._boundaries: Tensor
        self.register_buffer("_boundaries", bilm.boundary_ids, persistent=False)
        self.register_load_state_dict_pre_hook(load_encoder)  # type: ignore[no-untyped-call]
        self.train()

    def get_output_dim(self) -> int:
        """Width of a vector."""
        return self.output_dim

    def forward(self, inputs: Tensor) -> EncoderOutput:
        """Encode a batch.

        Args:
            inputs: Character ids (B, T, 50).

        Returns:
            `token_embedding` (B, T + 2, P) and `mask` (B, T + 2). At padding is the vector of fifty zeros, as in
            AllenNLP.

        Raises:
            ValueError: If the ids have a wrong shape, type or range, or padding before a token.
        """
        lengths = token_mask(inputs, self._word_ids, name="inputs").sum(dim=1)  # (B,)
        first, last = self._boundaries.to(inputs.device)
        ids = nn.functional.pad(inputs.long(), (0, 0, 1, 1))  # (B, T + 2, 50)
        ids[:, 0] = first
        ids[torch.arange(len(ids), device=ids.device), lengths + 1] = last
        words, index = distinct_rows(ids.flatten(0, 1))
        vectors = take_rows(self.encoder(words), index.to(self._boundaries.device).view(ids.shape[:2]))
        return {"mask": (ids > 0).any(dim=-1), "token_embedding": vectors}
