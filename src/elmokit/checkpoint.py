"""A model folder: config.json, model.safetensors, README.md; a language model with softmax.safetensors, vocabulary.txt.

Enters: tensors named as in `network.py`.  Leaves: a folder, written whole or not at all; and back again, every tensor
checked by name, shape, type and finiteness before it is used.  Nothing is ever unpickled.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from elmokit.config import BiLMConfig, from_mapping, read_json, to_mapping
from elmokit.corpus import Vocabulary
from elmokit.files import replacing
from elmokit.network import BiLM

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
SOFTMAX_FILE = "softmax.safetensors"
VOCABULARY_FILE = "vocabulary.txt"
CARD_FILE = "README.md"

MIX_NAME = re.compile(r"mixes\.(\d+)\.(weights|gamma)")


@dataclass(frozen=True)
class ModelFiles:
    """Everything that a model folder holds."""

    config: BiLMConfig
    weights: dict[str, Tensor]
    """The biLM's tensors, and `mixes.k.weights`, `mixes.k.gamma` where mixes were saved."""
    softmax: dict[str, Tensor] | None = None
    """`weight` (V, P) and `bias` (V,) of the output layer that both directions share."""
    vocabulary: Vocabulary | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    """How the mixes were made: `layer_norm`."""


def save(files: ModelFiles, folder: str | os.PathLike[str], *, card: str) -> None:
    """Write the folder; readers see the old model or the new one, config.json last."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = {"format": "elmokit", "bilm": to_mapping(files.config), **files.settings}
    with contextlib.ExitStack() as whole:  # every file is complete on disk before the first takes its place
        weights = whole.enter_context(replacing(folder / WEIGHTS_FILE))
        save_file({name: tensor.contiguous() for name, tensor in files.weights.items()}, weights)
        if files.softmax is not None:
            softmax = whole.enter_context(replacing(folder / SOFTMAX_FILE))
            save_file({name: tensor.contiguous() for name, tensor in files.softmax.items()}, softmax)
        if files.vocabulary is not None:
            files.vocabulary.save(whole.enter_context(replacing(folder / VOCABULARY_FILE)))
        if not (folder / CARD_FILE).exists():
            whole.enter_context(replacing(folder / CARD_FILE)).write_text(card, encoding="utf-8")
        text = json.dumps(config, indent=2) + "\n"
        whole.enter_context(replacing(folder / CONFIG_FILE)).write_text(text, encoding="utf-8")


def load(folder: str | os.PathLike[str]) -> ModelFiles:
    """Read and check the folder; tensors come as they are stored."""
    folder = Path(folder)
    if not (folder / CONFIG_FILE).is_file():
        raise ValueError(f"{folder}: no {CONFIG_FILE}, so this is no elmokit model folder")
    values = read_json(folder / CONFIG_FILE)
    if values.pop("format", None) != "elmokit":
        raise ValueError(f'{folder / CONFIG_FILE}: no "format": "elmokit", so another program wrote it')
    config = from_mapping(BiLMConfig, values.pop("bilm", {}), source=str(folder / CONFIG_FILE))
    unknown = sorted(set(values) - {"layer_norm"})
    if unknown:
        raise ValueError(f"{folder / CONFIG_FILE}: unknown key {unknown[0]!r}")
    weights = _read(folder / WEIGHTS_FILE)
    with torch.device("meta"):
        expected = {name: tuple(tensor.shape) for name, tensor in BiLM(config).state_dict().items()}
    for name, tensor in weights.items():
        if match := MIX_NAME.fullmatch(name):
            expected[name] = (config.num_layers + 1,) if match[2] == "weights" else ()
        check_finite(tensor, folder / WEIGHTS_FILE, name)
    check_shapes({name: tuple(tensor.shape) for name, tensor in weights.items()}, expected, folder / WEIGHTS_FILE)

    softmax, vocabulary = None, None
    if (folder / VOCABULARY_FILE).is_file():
        vocabulary = Vocabulary.load(folder / VOCABULARY_FILE)
    if (folder / SOFTMAX_FILE).is_file():
        softmax = _read(folder / SOFTMAX_FILE)
        if vocabulary is None:
            raise ValueError(f"{folder}: {SOFTMAX_FILE} needs a {VOCABULARY_FILE} that names its rows")
        rows = len(vocabulary)
        shapes = {name: tuple(tensor.shape) for name, tensor in softmax.items()}
        check_shapes(shapes, {"weight": (rows, config.projection_dim), "bias": (rows,)}, folder / SOFTMAX_FILE)
        for name, tensor in softmax.items():
            check_finite(tensor, folder / SOFTMAX_FILE, name)
    return ModelFiles(config, weights, softmax, vocabulary, values)


def check_shapes(found: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...]], path: Path) -> None:
    """Every tensor is there with its shape and no other is, or a ValueError that names file and tensor."""
    for name, shape in expected.items():
        if name not in found:
            raise ValueError(f"{path}: {name} {shape} is missing")
        if found[name] != shape:
            raise ValueError(f"{path}: {name} is {found[name]}, the configuration asks for {shape}")
    surplus = sorted(set(found) - set(expected))
    if surplus:
        raise ValueError(f"{path}: {surplus[0]} is not part of a model with this configuration")


def check_finite(tensor: Tensor, path: Path, name: str) -> None:
    """A floating-point tensor without NaN or infinity, or ValueError."""
    if not tensor.is_floating_point():
        raise ValueError(f"{path}: {name} holds {tensor.dtype}, not floating-point numbers")
    if not math.isfinite(tensor.sum(dtype=torch.float64).item()):
        bad = int((~torch.isfinite(tensor)).sum())
        raise ValueError(f"{path}: {name} holds {bad} values that are NaN or infinite: the file is damaged")


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise ValueError(f"{path}: the file is missing")
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except SafetensorError as error:
        raise ValueError(f"{path}: not a whole safetensors file ({error})") from None
