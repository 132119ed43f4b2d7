"""The ELMo module of TF-Hub.

Input: strings or padded tokens, as lists, arrays of NumPy or tensors of TensorFlow. Output: TF-Hub's dictionary of
outputs, as torch tensors.
"""

from __future__ import annotations

import os
import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from elmokit.arguments import check_choice, check_flag, describe
from elmokit.model import ELMo
from elmokit.text import as_list

Inputs = Sequence[str] | npt.NDArray[Any] | Mapping[str, Sequence[Sequence[str]] | npt.ArrayLike]

# the addresses of the published module; TF-Hub's addresses lead to Kaggle since 2023
_ELMO_URL = re.compile(
    r"https?://(tfhub\.dev/google/elmo(/[123])?|(www\.)?kaggle\.com/models/google/elmo(/[\w/-]*)?)/?([?#].*)?", re.ASCII
)


class TFHubELMo(nn.Module):
    """`hub.Module("https://tfhub.dev/google/elmo/3")`: both signatures and all outputs, as torch tensors.

    Args:
        model: An `ELMo` with one mix, or what `ELMo.from_pretrained` takes; the URL of TF-Hub's module, in any version,
            is the published "original". The mix's weights are trainable.
        trainable: Train the biLM too, if `model` is not an `ELMo`.

    Raises:
        ValueError: If the model has not exactly one mix, or a URL is not that of TF-Hub's ELMo.
    """

    def __init__(self, model: ELMo | str | os.PathLike[str] | None = "original", trainable: bool = False) -> None:
        super().__init__()
        if not isinstance(model, ELMo):
            freeze = not check_flag("trainable", trainable)
            model = ELMo.from_pretrained(_model_name(model), freeze=freeze, num_mixes=1, dropout=0.0)
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
            inputs: B strings, which are split on spaces: a list, or an array (B,) or (B, 1) of strings or UTF-8 bytes.
                With `signature="tokens"` {"tokens": (B, T), "sequence_len": (B)}; T is the width of the outputs.
            signature: "default" or "tokens".
            as_dict: Return all outputs.

        Returns:
            The sentence vectors (B, 2P); or {"word_emb": (B, T, P), "lstm_outputs1": (B, T, 2P), "lstm_outputs2",
            "elmo": (B, T, 2P), "default": (B, 2P)}. `default` is the mean of `elmo` over the tokens, without padding.
            Padding is zeros.

        Raises:
            ValueError: If the inputs do not fit the signature.
        """
        width = 0
        signature, as_dict = check_choice("signature", signature, ("default", "tokens")), check_flag("as_dict", as_dict)
        if signature == "default":
            sentences = [_split_on_spaces(sentence, place) for place, sentence in enumerate(_strings(inputs))]
        else:
            sentences, width = _unpadded(inputs)
        output = self.elmo(_widened(self.elmo.to_ids(sentences), width))
        mixed, lengths = output.mixes[0], output.mask.sum(dim=1, keepdim=True)
        default: Tensor = (mixed * output.mask.unsqueeze(-1)).sum(dim=1) / lengths.clamp(min=1)
        if not as_dict:
            return default
        result = {"word_emb": output.layers[0, :, :, : self.elmo.config.projection_dim]}
        result |= {f"lstm_outputs{number}": layer for number, layer in enumerate(output.layers[1:], 1)}
        return result | {"elmo": mixed, "default": default}

    @property
    def signatures(self) -> dict[str, Callable[..., dict[str, Tensor]]]:
        """The signatures as `hub.load` of TensorFlow 2 has them.

        `signatures["default"](text)` and `signatures["tokens"](tokens=…, sequence_len=…)` give all outputs.
        """

        def default(text: Inputs) -> dict[str, Tensor]:
            return self(text, as_dict=True)  # type: ignore[no-any-return]

        def tokens(tokens: Any, sequence_len: Any) -> dict[str, Tensor]:
            inputs = {"tokens": tokens, "sequence_len": sequence_len}
            return self(inputs, signature="tokens", as_dict=True)  # type: ignore[no-any-return]

        return {"default": default, "tokens": tokens}


def _model_name(model: str | os.PathLike[str] | None) -> str | os.PathLike[str] | None:
    """The name of a model; that of the published one for the URLs of TF-Hub's module."""
    if not isinstance(model, str) or not re.match(r"https?://", model):
        return model
    if not _ELMO_URL.fullmatch(model.strip()):
        raise ValueError(
            f"{model} is not the ELMo of TF-Hub: pass https://tfhub.dev/google/elmo/3 (or /1, /2), a name as "
            '"original", or a folder'
        )
    return "original"


def _strings(inputs: object) -> list[object]:
    """The sentences of a list, or of an array (B,) or (B, 1)."""
    if not _is_array(inputs):
        return as_list(inputs)
    values = _as_array(inputs, "inputs")
    if values.ndim == 2 and values.shape[1] == 1:  # as Keras passes a column of strings
        values = values[:, 0]
    if values.ndim != 1:
        raise ValueError(f'inputs have the shape {values.shape}, not (B,) or (B, 1): tokens need signature="tokens"')
    return [_decoded(value, f"inputs[{place}]") for place, value in enumerate(values.tolist())]


def _split_on_spaces(sentence: object, place: int) -> list[str]:
    if not isinstance(sentence, str):
        shown = reprlib.repr(sentence)
        raise ValueError(f'inputs[{place}] is {shown}, not a string: token lists need signature="tokens"')
    return [token for token in sentence.split(" ") if token]


def _unpadded(inputs: object) -> tuple[list[list[str]], int]:
    """The tokens of each row, and the width of the padded batch."""
    if not isinstance(inputs, Mapping) or set(inputs) != {"tokens", "sequence_len"}:
        raise ValueError(f'signature "tokens" takes {{"tokens": …, "sequence_len": …}}, not {describe(inputs)}')
    rows, lengths = _rows(inputs["tokens"]), _numbers(inputs["sequence_len"])
    if lengths.shape == (len(rows), 1):
        lengths = lengths[:, 0]
    if lengths.shape != (len(rows),) or (lengths.size and lengths.dtype.kind not in "iu"):
        shown = reprlib.repr(inputs["sequence_len"])
        raise ValueError(f"sequence_len is {shown}, not {len(rows)} integers, one per row")
    padded = [row if isinstance(row, str) else as_list(row, f"tokens[{place}]") for place, row in enumerate(rows)]
    for place, (row, length) in enumerate(zip(padded, lengths, strict=True)):
        if isinstance(row, str) or not 0 <= length <= len(row):
            least = f"sequence_len[{place}] = {length}"
            raise ValueError(f"tokens[{place}] is {reprlib.repr(row)}, not a list of at least {least} tokens")
    sentences = [list(row[:length]) for row, length in zip(padded, lengths, strict=True)]
    return sentences, max(map(len, padded), default=0)


def _rows(tokens: object) -> list[Any]:
    """The rows of tokens: of a list, or of an array (B, T)."""
    if not _is_array(tokens):
        return as_list(tokens, "tokens")
    values = _as_array(tokens, "tokens")
    if values.ndim != 2:
        raise ValueError(f"tokens have the shape {values.shape}, not (B, T)")
    return [
        [_decoded(value, f"tokens[{place}][{step}]") for step, value in enumerate(row)]
        for place, row in enumerate(values.tolist())
    ]


def _numbers(lengths: object) -> npt.NDArray[Any]:
    """The lengths as an array; lists of different lengths as an array without dimensions, which fits no batch."""
    try:
        return np.asarray(lengths)
    except (ValueError, TypeError, RuntimeError):
        return np.empty((), dtype=object)


def _is_array(value: object) -> bool:
    """Whether this is an array, or something that becomes one, such as a string tensor of TensorFlow."""
    return hasattr(value, "__array__") and not isinstance(value, np.generic)


def _as_array(value: object, name: str) -> npt.NDArray[Any]:
    try:
        return np.asarray(value)
    except (TypeError, RuntimeError, NotImplementedError):  # a tensor that NumPy cannot hold: sparse, on a GPU
        raise ValueError(f"{name} must be strings, not {describe(value)}") from None


def _decoded(value: object, name: str) -> object:
    """A string of an array: TensorFlow's strings are UTF-8 bytes."""
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} is {value!r}, which is not UTF-8 ({error.reason}): decode it to a string") from None


def _widened(ids: Tensor, width: int) -> Tensor:
    """Ids (B, T, …), padded with zeros to at least `width` tokens."""
    if ids.shape[1] >= width:
        return ids
    padding = torch.zeros(len(ids), width - ids.shape[1], *ids.shape[2:], dtype=ids.dtype)
    return torch.cat([ids, padding], dim=1)
