"""A model folder: config.json, model.safetensors, README.md; a language model with softmax.safetensors, vocabulary.txt.

A model that does not read words as UTF-8 bytes has lexicon.json: the characters and words that it knows by number.

Enters: tensors named as in `network.py`.  Leaves: a folder, written whole or not at all; and back again, every tensor
checked by name, shape, type and finiteness before it is used, and float32 whatever it was stored as.  Nothing is ever
unpickled.

A matrix may be stored as int8: `NAME` holds whole steps, `NAME.scale` the size of a step, one for each output of the
matrix, shaped so that their product is the matrix.  The types of the tensors alone tell how they are stored.
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
from typing import Any, Literal, get_args

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from elmokit.config import BiLMConfig
from elmokit.files import replacing_together
from elmokit.network import BiLM
from elmokit.settings import from_mapping, read_json, to_mapping
from elmokit.text import Lexicon, Vocabulary

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
SOFTMAX_FILE = "softmax.safetensors"
VOCABULARY_FILE = "vocabulary.txt"
LEXICON_FILE = "lexicon.json"
CARD_FILE = "README.md"

Storage = Literal["float32", "float16", "int8"]

STEPS = 127  # of an int8 matrix on either side of zero
SCALE = ".scale"
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
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
    lexicon: Lexicon | None = None
    """Of a model that knows characters and words by number, instead of reading UTF-8 bytes."""


def save(files: ModelFiles, folder: str | os.PathLike[str], *, card: str, storage: Storage | None = None) -> None:
    """Write the folder: every file is complete on disk before the first takes its place, config.json last.

    `storage` is how the tensors are written (see `stored`), None as they are.
    """
    folder = Path(folder)
    config = json.dumps({"format": "elmokit", "bilm": to_mapping(files.config), **files.settings}, indent=2) + "\n"
    writers: dict[str, Callable[[Path], object]] = {WEIGHTS_FILE: partial(_write, stored(files.weights, storage))}
    if files.softmax is not None:
        writers[SOFTMAX_FILE] = partial(_write, stored(files.softmax, storage))
    if files.vocabulary is not None:
        writers[VOCABULARY_FILE] = files.vocabulary.save
    if files.lexicon is not None:
        lexicon = json.dumps({"characters": files.lexicon.characters, "words": files.lexicon.words})
        writers[LEXICON_FILE] = lambda path: path.write_text(lexicon + "\n", encoding="utf-8")
    if not (folder / CARD_FILE).exists():
        writers[CARD_FILE] = lambda path: path.write_text(card, encoding="utf-8")
    writers[CONFIG_FILE] = lambda path: path.write_text(config, encoding="utf-8")
    folder.mkdir(parents=True, exist_ok=True)
    with replacing_together([folder / name for name in writers]) as temporaries:
        for write, temporary in zip(writers.values(), temporaries, strict=True):
            write(temporary)
    # those of a model that was here before do not belong to this one
    for name in {SOFTMAX_FILE, VOCABULARY_FILE, LEXICON_FILE} - set(writers):
        (folder / name).unlink(missing_ok=True)


def load(folder: str | os.PathLike[str]) -> ModelFiles:
    """Read and check the folder; tensors are float32, however they are stored."""
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
    lexicon = None if config.num_lexicon_characters is None else _read_lexicon(folder / LEXICON_FILE)
    check_lexicon(lexicon, config, str(folder / LEXICON_FILE))
    return ModelFiles(config, weights, softmax, vocabulary, values, lexicon)


def _read_lexicon(path: Path) -> Lexicon:
    if not path.is_file():
        raise ValueError(f"{path}: the file is missing")
    lists = read_json(path)
    for name in ("characters", "words"):
        listed = lists.get(name)
        if not isinstance(listed, list) or not all(isinstance(item, str) for item in listed):
            raise ValueError(f"{path}: {name!r} must be a list of strings")
    try:
        return Lexicon(lists["characters"], lists["words"])
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def check_lexicon(lexicon: Lexicon | None, config: BiLMConfig, source: str) -> None:
    """A model that reads by a lexicon has one of its sizes, and no other model has one; or ValueError."""
    wanted = None
    if config.num_lexicon_characters is not None:
        wanted = f"{config.num_lexicon_characters} characters and {config.num_lexicon_words} words"
    found = None if lexicon is None else f"{len(lexicon.characters)} characters and {len(lexicon.words)} words"
    if found != wanted:
        raise ValueError(f"{source}: a lexicon of {found or 'nothing'}, the model asks for {wanted or 'none'}")


def stored(tensors: Mapping[str, Tensor], storage: Storage | None) -> Mapping[str, Tensor]:
    """Tensors as `storage` keeps them: float32; float16; or matrices in int8 with their scales, the rest in float16.

    What float16 cannot hold (beyond 65504) stays float32.
    """
    if storage is None:
        return tensors
    if storage not in get_args(Storage):
        raise ValueError(f"a model is stored as {', '.join(get_args(Storage))}, not as {storage!r}")
    if storage == "float32":
        return {name: tensor.float() for name, tensor in tensors.items()}
    result = {}
    for name, tensor in tensors.items():
        if storage == "int8" and _summed_axes(name, tensor):
            result[name], result[name + SCALE] = _quantize(name, tensor)
        else:
            half = tensor.to(torch.float16)
            result[name] = tensor.float() if torch.isinf(half).any() else half
    return result


def _summed_axes(name: str, tensor: Tensor) -> tuple[int, ...]:
    """The axes that a product with this matrix sums over; none where the tensor is no matrix.

    LSTM weights are (directions, inputs, outputs), all others (outputs, inputs …).
    """
    if tensor.ndim < 2 or name.endswith("bias"):
        return ()
    return (1,) if name.startswith("layers.") else tuple(range(1, tensor.ndim))


def _quantize(name: str, matrix: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix -> whole steps (int8) and their sizes (bfloat16): the largest weight of each output is 127 steps.

    bfloat16 has float32's range in two bytes, so that every matrix can be stored by one rule, and so few digits that
    a step times a whole number is exact in float32: a matrix that was int8 once becomes the same int8 again.  Smaller
    steps that clip the largest weights were tried: the error falls by less than 1%.
    """
    matrix = matrix.float()
    if not torch.isfinite(matrix).all():
        raise ValueError(f"{name} holds NaN or infinite values, which int8 cannot store")
    largest = matrix.abs().amax(dim=_summed_axes(name, matrix), keepdim=True)
    scale = largest.div(STEPS).clamp(min=torch.finfo(torch.bfloat16).tiny).to(torch.bfloat16)
    return (matrix / scale.float()).round_().clamp_(-STEPS, STEPS).to(torch.int8), scale


def _dequantize(name: str, tensors: Mapping[str, Tensor], path: Path) -> Tensor:
    """The float32 matrix of an int8 tensor and its scale, or a ValueError that says what is wrong with them."""
    steps, scale = tensors[name], tensors.get(name + SCALE)
    if scale is None:
        raise ValueError(f"{path}: {name} is int8, and {name}{SCALE}, which gives its steps a size, is missing")
    if scale.dtype not in FLOATS:
        raise ValueError(f"{path}: {name}{SCALE} holds {scale.dtype}, not floating-point numbers")
    summed = _summed_axes(name, steps)
    shape = tuple(1 if axis in summed else size for axis, size in enumerate(steps.shape))
    if tuple(scale.shape) != shape:
        raise ValueError(f"{path}: {name}{SCALE} is {tuple(scale.shape)}, {name} asks for {shape}")
    scale = scale.float()
    # the largest has room for all its steps, so the matrix need not be looked through
    is_size = (scale > 0) & (scale < torch.finfo(torch.float32).max / (STEPS + 1))
    if not is_size.all():
        bad = int((~is_size).sum())
        raise ValueError(f"{path}: {name}{SCALE} holds {bad} values that are no size of a step: the file is damaged")
    return steps.float().mul_(scale)


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
    if tensor.dtype not in FLOATS:
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
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except SafetensorError as error:
        raise ValueError(f"{path}: not a whole safetensors file ({error})") from None
    result = {}
    for name, tensor in tensors.items():
        matrix = tensors.get(name.removesuffix(SCALE))
        if name.endswith(SCALE) and (matrix is None or matrix.dtype != torch.int8):
            raise ValueError(f"{path}: {name} is there, and no int8 {name.removesuffix(SCALE)} that it belongs to")
        if tensor.dtype == torch.int8:
            result[name] = _dequantize(name, tensors, path)
        elif not name.endswith(SCALE):
            check_finite(tensor, path, name)
            result[name] = tensor.float()
    return result
