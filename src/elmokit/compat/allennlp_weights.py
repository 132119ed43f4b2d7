"""Weights that AllenNLP saved: its parameter names and layouts, translated when a module of `compat` loads them.

Input: a `state_dict` of AllenNLP's `Elmo`, `_ElmoBiLm` or `_ElmoCharacterEncoder`, at any place of a task model.
Output: the same tensors under the names of elmokit's modules. Names that are elmokit's own pass unchanged.

    AllenNLP                                                         elmokit
    _token_embedder._char_embedding_weights (262, d)                 char_embedding (261, d): row 0 is padding
    _token_embedder._highways._layers.K.weight (2F, F)               highways.K.transform; minus highways.K.carry
    _elmo_lstm.forward_layer_L.input_linearity.weight (4C, P)        layers.L.input_weight[0] (P, 4C)
    _elmo_lstm.backward_layer_L.state_linearity.bias (4C)            layers.L.bias[1] (4C), forget gate minus 1
    scalar_mix_K.scalar_parameters.J (1)                             mixes.K.weights[J]

The gates are input, forget, candidate, output in AllenNLP, and input, candidate, forget, output here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

Weights = Mapping[str, Tensor]

_LSTM_NAMES = {
    ("input_linearity", "weight"): "input_weight",
    ("state_linearity", "weight"): "recurrent_weight",
    ("state_linearity", "bias"): "bias",
    ("state_projection", "weight"): "projection",
}
_DIRECTIONS = ("forward", "backward")


def elmo_weights(theirs: Weights) -> dict[str, Tensor]:
    """The weights of AllenNLP's `Elmo`, named as in `compat.Elmo`."""
    ours = {f"elmo.bilm.{name}": tensor for name, tensor in _bilm(_below(theirs, "_elmo_lstm.")).items()}
    scalars: dict[str, dict[int, Tensor]] = defaultdict(dict)
    for name, tensor in theirs.items():
        match name.split("."):
            case [mix, "scalar_parameters", layer] if layer.isdecimal():
                scalars[mix][int(layer)] = tensor
            case [mix, "gamma"]:
                ours[f"elmo.mixes.{mix.removeprefix('scalar_mix_')}.gamma"] = tensor.reshape(())
    for mix, by_layer in scalars.items():
        weights = torch.cat([tensor.reshape(1) for _, tensor in sorted(by_layer.items())])
        ours[f"elmo.mixes.{mix.removeprefix('scalar_mix_')}.weights"] = weights
    return ours


def bilm_weights(theirs: Weights) -> dict[str, Tensor]:
    """The weights of AllenNLP's `_ElmoBiLm`, named as in `compat._ElmoBiLm`."""
    return {f"elmo.bilm.{name}": tensor for name, tensor in _bilm(theirs).items()}


def encoder_weights(theirs: Weights) -> dict[str, Tensor]:
    """The weights of AllenNLP's `_ElmoCharacterEncoder`, named as in `compat._ElmoCharacterEncoder`."""
    return {f"encoder.{name}": tensor for name, tensor in _encoder(theirs).items()}


def translate(
    state: dict[str, Any], prefix: str, starts: tuple[str, ...], to_ours: Callable[[Weights], dict[str, Tensor]]
) -> None:
    """Replace AllenNLP's names in a `state_dict`, in place. What is missing stays missing, for torch to report.

    Args:
        state: The `state_dict` of a whole model.
        prefix: Where the module is in the model.
        starts: How AllenNLP's names of this module begin.
        to_ours: One of the functions above.
    """
    names = [name for name in state if name.startswith(tuple(prefix + start for start in starts))]
    theirs = {name.removeprefix(prefix): state.pop(name) for name in names}
    state.update({prefix + name: tensor for name, tensor in to_ours(theirs).items()})


def load_elmo(module: nn.Module, state: dict[str, Any], prefix: str, *_: object) -> None:
    """The hook of `Elmo` before it loads a `state_dict`."""
    translate(state, prefix, ("_elmo_lstm.", "scalar_mix_"), elmo_weights)


def load_bilm(module: nn.Module, state: dict[str, Any], prefix: str, *_: object) -> None:
    """The hook of `_ElmoBiLm` before it loads a `state_dict`."""
    translate(state, prefix, ("_token_embedder.", "_elmo_lstm.", "_word_embedding."), bilm_weights)


def load_encoder(module: nn.Module, state: dict[str, Any], prefix: str, *_: object) -> None:
    """The hook of `_ElmoCharacterEncoder` before it loads a `state_dict`."""
    translate(state, prefix, ("_char_embedding_weights", "char_conv_", "_highways.", "_projection."), encoder_weights)


def _bilm(theirs: Weights) -> dict[str, Tensor]:
    """The names of `_ElmoBiLm` -> those of `network.BiLM`. The cache of `vocab_to_cache` is left out."""
    encoder = _encoder(_below(theirs, "_token_embedder."))
    return {f"char_encoder.{name}": tensor for name, tensor in encoder.items()} | _lstms(_below(theirs, "_elmo_lstm."))


def _encoder(theirs: Weights) -> dict[str, Tensor]:
    """The names of `_ElmoCharacterEncoder` -> those of `network.CharacterEncoder`."""
    ours: dict[str, Tensor] = {}
    for name, tensor in theirs.items():
        match name.split("."):
            case ["_char_embedding_weights"]:
                ours["char_embedding"] = tensor[1:]
            case [convolution, part] if convolution.startswith("char_conv_"):
                ours[f"convolutions.{convolution.removeprefix('char_conv_')}.{part}"] = tensor
            case ["_highways", "_layers", number, part]:
                transform, carry = tensor.chunk(2)
                ours[f"highways.{number}.transform.{part}"] = transform
                ours[f"highways.{number}.carry.{part}"] = -carry
            case ["_projection", part]:
                ours[f"projection.{part}"] = tensor
    return ours


def _lstms(theirs: Weights) -> dict[str, Tensor]:
    """The names of AllenNLP's LSTMs, one per layer and direction -> those of `network.BiLM`, one per layer."""
    parts: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for name, tensor in theirs.items():
        match name.split("."):
            case [layer, linear, part] if (linear, part) in _LSTM_NAMES:
                direction, _, number = layer.partition("_layer_")
                ours = _LSTM_NAMES[linear, part]
                parts[f"layers.{number}.{ours}"][direction] = _lstm_weight(ours, tensor)
    return {
        name: torch.stack([by_direction[direction] for direction in _DIRECTIONS])
        for name, by_direction in parts.items()
        if set(by_direction) == set(_DIRECTIONS)
    }


def _lstm_weight(name: str, tensor: Tensor) -> Tensor:
    """One weight of one direction, in elmokit's layout."""
    if name == "projection":
        return tensor.t()  # (C, P)
    input_gate, forget_gate, candidate, output_gate = tensor.chunk(4)
    if name == "bias":
        forget_gate = forget_gate - 1.0
    ordered = torch.cat([input_gate, candidate, forget_gate, output_gate])
    return ordered if name == "bias" else ordered.t()  # (4C,), (P, 4C)


def _below(weights: Weights, prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}
