"""A model folder: config.json, model.safetensors, README.md; a language model with softmax.safetensors, vocabulary.txt.

Enters: tensors named as in `network.py`.  Leaves: a folder, written whole or not at all; and back again, every tensor
checked by name, shape, type and finiteness before it is used.  Nothing is ever unpickled.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from elmokit.config import BiLMConfig, from_mapping, read_json, to_mapping
from elmokit.corpus import Vocabulary
from elmokit.files import replacing_together
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
    """Write the folder: every file is complete on disk before the first takes its place, config.json last."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = json.dumps({"format": "elmokit", "bilm": to_mapping(files.config), **files.settings}, indent=2) + "\n"
    writers: dict[str, Callable[[Path], object]] = {WEIGHTS_FILE: partial(_write, files.weights)}
    if files.softmax is not None:
        writers[SOFTMAX_FILE] = partial(_write, files.softmax)
    if files.vocabulary is not None:
        writers[VOCABULARY_FILE] = files.vocabulary.save
    if not (folder / CARD_FILE).exists():
        writers[CARD_FILE] = lambda path: path.write_text(card, encoding="utf-8")
    writers[CONFIG_FILE] = lambda path: path.write_text(config, encoding="utf-8")
    with replacing_together([folder / name for name in writers]) as temporaries:
        for write, temporary in zip(writers.values(), temporaries, strict=True):
            write(temporary)
    # those of a model that was here before do not belong to this one
    for name in {SOFTMAX_FILE, VOCABULARY_FILE} - set(writers):
        (folder / name).unlink(missing_ok=True)


def load(folder: str | os.PathLike[str]) -> ModelFiles:
    """Read and check the folder; tensors come as they are stored."""
    folder = Path(folder)
    if not (folder / CONFIG_FILE).is_file():
        raise ValueError(f"{folder}: no {CONFIG_FILE}, so this is no elmokit model folder")
    values = read_json(folder / CONFIG_FILE)
    if values.pop("format", None) != "elmokit":
        raise ValueError(f'{folder / CONFIG_FILE}: no "format": "elmokit", so another program wrote it')
    config = from_mapping(BiLMConfig, values.pop("bilm", None), source=f"{folder / CONFIG_FILE}: bilm")
    unknown = sorted(set(values) - {"layer_norm"})
    if unknown:
        raise ValueError(f"{folder / CONFIG_FILE}: unknown key {unknown[0]!r}")
    if not isinstance(values.get("layer_norm", False), bool):
        raise ValueError(f"{folder / CONFIG_FILE}: layer_norm must be true or false, not {values['layer_norm']!r}")
    weights = _read(folder / WEIGHTS_FILE)
    with torch.device("meta"):
        expected = {name: tuple(tensor.shape) for name, tensor in BiLM(config).state_dict().items()}
    for mix in range(len({match[1] for name in weights if (match := MIX_NAME.fullmatch(name))})):
        expected |= {f"mixes.{mix}.weights": (config.num_layers + 1,), f"mixes.{mix}.gamma": ()}
    for name, tensor in weights.items():
        check_finite(tensor, folder / WEIGHTS_FILE, name)
    check_shapes({name: tuple(tensor.shape) for name, tensor in weights.items()}, expected, folder / WEIGHTS_FILE)

    softmax, vocabulary = None, None
    if (folder / VOCABULARY_FILE).is_file():
        vocabulary = Vocabulary.load(folder / VOCABULARY_FILE)
    if config.num_words is not None and (vocabulary is None or len(vocabulary) != config.num_words):
        held = "is missing" if vocabulary is None else f"has {len(vocabulary)} words"
        raise ValueError(
            f"{folder / VOCABULARY_FILE} {held}: this word-level model needs the {config.num_words} of its own"
        )
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
    if tensor.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        raise ValueError(f"{path}: {name} holds {tensor.dtype}, not floating-point numbers")
    if not math.isfinite(tensor.sum(dtype=torch.float64).item()):
        bad = int((~torch.isfinite(tensor)).sum())
        raise ValueError(f"{path}: {name} holds {bad} values that are NaN or infinite: the file is damaged")


def _write(tensors: Mapping[str, Tensor], path: Path) -> None:
    try:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    except SafetensorError as error:  # a full disk, most likely: "… (os error 28)"
        code = re.search(r"os error (\d+)", str(error))
        raise OSError(int(code[1]) if code else errno.EIO, str(error), str(path)) from None


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise ValueError(f"{path}: the file is missing")
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except SafetensorError as error:
        raise ValueError(f"{path}: not a whole safetensors file ({error})") from None
