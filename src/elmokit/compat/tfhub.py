"""The ELMo module of TF-Hub."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Literal, overload

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from elmokit.model import ELMo
from elmokit.text import as_list

Inputs = Sequence[str] | Mapping[str, Sequence[Sequence[str]] | npt.ArrayLike]


class TFHubELMo(nn.Module):
    """`hub.Module("https://tfhub.dev/google/elmo/3")`: both signatures and all outputs, as torch tensors.

    Args:
        model: An `ELMo` with one mix, or what `ELMo.from_pretrained` takes. The mix's weights are trainable.
        trainable: Train the biLM too, if `model` is not an `ELMo`.

    Raises:
        ValueError: If the model has not exactly one mix.
    """

    def __init__(self, model: ELMo | str | os.PathLike[str] | None = "original", trainable: bool = False) -> None:
        super().__init__()
        if not isinstance(model, ELMo):
            model = ELMo.from_pretrained(model, freeze=not trainable, num_mixes=1, dropout=0.0)
        if len(model.mixes) != 1:
            raise ValueError(
                f"the model has {len(model.mixes)} mixes, TF-Hub's output has one: make it with num_mixes=1"
            )
        self.elmo = model

    @overload
    def forward(
        self, inputs: Inputs, signature: Literal["default", "tokens"] = ..., as_dict: Literal[False] = ...
    ) -> Tensor: ...

    @overload
    def forward(
        self, inputs: Inputs, signature: Literal["default", "tokens"] = ..., *, as_dict: Literal[True]
    ) -> dict[str, Tensor]: ...

    def forward(
        self, inputs: Inputs, signature: Literal["default", "tokens"] = "default", as_dict: bool = False
    ) -> Tensor | dict[str, Tensor]:
        """Run a batch.

        Args:
            inputs: B strings, which are split on spaces; with `signature="tokens"` {"tokens": (B, T), "sequence_len":
                (B)}.
            signature: "default" or "tokens".
            as_dict: Return all outputs.

        Returns:
            The sentence vectors (B, 2P); or {"word_emb": (B, T, P), "lstm_outputs1": (B, T, 2P), "lstm_outputs2",
            "elmo": (B, T, 2P), "default": (B, 2P)}. `default` is the mean of `elmo` over the tokens, without padding.

        Raises:
            ValueError: If the inputs do not fit the signature.
        """
        if signature == "default":
            sentences = [_split_on_spaces(sentence, place) for place, sentence in enumerate(as_list(inputs))]
        elif signature == "tokens":
            sentences = _unpadded(inputs)
        else:
            raise ValueError(f'signature must be "default" or "tokens", not {signature!r}')
        output = self.elmo(self.elmo.to_ids(sentences))
        mixed, lengths = output.mixes[0], output.mask.sum(dim=1, keepdim=True)
        default: Tensor = (mixed * output.mask.unsqueeze(-1)).sum(dim=1) / lengths.clamp(min=1)
        if not as_dict:
            return default
        result = {"word_emb": output.layers[0, :, :, : self.elmo.config.projection_dim]}
        result |= {f"lstm_outputs{number}": layer for number, layer in enumerate(output.layers[1:], 1)}
        return result | {"elmo": mixed, "default": default}


def _split_on_spaces(sentence: object, place: int) -> list[str]:
    if not isinstance(sentence, str):
        raise ValueError(f'inputs[{place}] is {sentence!r}, not a string: token lists need signature="tokens"')
    return [token for token in sentence.split(" ") if token]


def _unpadded(inputs: object) -> list[list[str]]:
    if not isinstance(inputs, Mapping) or set(inputs) != {"tokens", "sequence_len"}:
        raise ValueError(f'signature "tokens" takes {{"tokens": …, "sequence_len": …}}, not {inputs!r}')
    rows, lengths = as_list(inputs["tokens"]), np.asarray(inputs["sequence_len"])
    if lengths.shape != (len(rows),) or (lengths.size and lengths.dtype.kind not in "iu"):
        raise ValueError(f"sequence_len is {inputs['sequence_len']!r}, not {len(rows)} integers, one per row")
    for place, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        if isinstance(row, str) or not 0 <= length <= len(row):
            raise ValueError(
                f"tokens[{place}] is {row!r}, not a list of at least sequence_len[{place}] = {length} tokens"
            )
    return [list(row[:length]) for row, length in zip(rows, lengths, strict=True)]
