"""elmokit's own format: a model folder.

The folder has config.json, model.safetensors and README.md; that of a language model also softmax.safetensors and
vocabulary.txt; that of a model with a lexicon of its own (not UTF-8 bytes) also lexicon.json.

Input: tensors named as the parameters of `network.BiLM`. Output: a folder, written completely or not at all (see
`switching.py`). In the other direction, the checksum of every file and the name, shape, dtype and values of every
tensor are checked, and it is float32 whatever it was stored as. Folders of versions 0.1 and 0.2 have no checksums.
Nothing is unpickled.

A matrix may be stored as int8: `NAME` holds integers and `NAME.scale` the step size per output of the matrix, shaped so
that their product is the matrix. The dtypes of the tensors tell how they are stored.
"""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from elmokit.config import BiLMConfig
from elmokit.files import replacing
from elmokit.network import BiLM
from elmokit.settings import from_mapping, read_json, to_mapping
from elmokit.storage.bounds import check_sizes
from elmokit.storage.layouts import (
    CARD_FILE,
    CONFIG_FILE,
    LEXICON_FILE,
    SOFTMAX_FILE,
    VOCABULARY_FILE,
    WEIGHTS_FILE,
    SoftmaxUrls,
)
from elmokit.storage.switching import (
    CHECKSUMS,
    checking,
    checksum,
    checksum_of_json,
    find_files,
    read_checksums,
    replace_files,
    signature,
    undisturbed,
)
from elmokit.text import Lexicon, Tokenizer, TokenizerName, Vocabulary, make_word_ids

logger = logging.getLogger(__name__)

Storage = Literal["float32", "float16", "int8"]

CHECKED_FILES = (WEIGHTS_FILE, SOFTMAX_FILE, VOCABULARY_FILE, LEXICON_FILE)
STEPS = 127  # an int8 matrix holds integers from -127 to 127
SCALE = ".scale"
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
CARD_OF_0_2 = re.compile(
    r"# A biLM over [^\n]+\n\n\d+ layers of \d+ cells, projection \d+; [\d,]+ parameters\.\n\n"
    r"```python\nfrom elmokit import ELMo\n\nmodel = ELMo\.from_pretrained\(\"this folder\"\)\n```\n"
)
MIX_NAME = re.compile(r"mixes\.(\d+)\.(weights|gamma)")


@dataclass(frozen=True)
class ModelFiles:
    """What the files of a model hold."""

    config: BiLMConfig
    weights: dict[str, Tensor]
    """The biLM's tensors, and `mixes.k.weights`, `mixes.k.gamma` if mixes were saved."""
    softmax: dict[str, Tensor] | None = None
    """`weight` (V, P) and `bias` (V,) of the output layer that both directions share."""
    vocabulary: Vocabulary | None = None
    lexicon: Lexicon | None = None
    """Of a model that knows characters and words by number, instead of reading UTF-8 bytes."""
    layer_norm: bool = False
    """Whether the mixes normalize the layers."""
    tokenizer: TokenizerName = "treebank"
    """How the model's text is split into tokens."""
    softmax_urls: SoftmaxUrls | None = None
    """Where the softmax and the vocabulary of a published model are, which are read when they are needed."""


def save(files: ModelFiles, folder: str | os.PathLike[str], *, card: str, storage: Storage | None = None) -> None:
    """Write a model folder. If the process is killed, the folder holds the old model or the new one, both complete.

    Args:
        files: The model.
        folder: The folder to write. It is created if it does not exist. Files of another model in it are replaced.
        card: Text of README.md. A README.md that someone wrote or changed is kept.
        storage: How the tensors are stored (see `stored`); None stores them as they are.

    Raises:
        ValueError: If `storage` is not known, or the weights cannot be stored that way.
        OSError: If a file cannot be written. A model that was in the folder is unchanged.
    """
    folder = Path(folder)
    values = {
        "format": "elmokit",
        "bilm": to_mapping(files.config),
        "layer_norm": files.layer_norm,
        "tokenizer": files.tokenizer,
    }
    writers: dict[str, Callable[[Path], object]] = {WEIGHTS_FILE: partial(_write, stored(files.weights, storage))}
    if files.softmax is not None:
        writers[SOFTMAX_FILE] = partial(_write, stored(files.softmax, storage))
    if files.vocabulary is not None:
        writers[VOCABULARY_FILE] = files.vocabulary.save
    if files.lexicon is not None:
        lexicon = json.dumps({"characters": files.lexicon.characters, "words": files.lexicon.words})
        writers[LEXICON_FILE] = lambda path: path.write_text(lexicon + "\n", encoding="utf-8")
    if _may_replace_card(folder, card):
        writers[CARD_FILE] = lambda path: path.write_text(card, encoding="utf-8")

    def write_config(path: Path, checksums: dict[str, str]) -> None:
        path.write_text(_config_text(values, checksums), encoding="utf-8")

    obsolete = {SOFTMAX_FILE, VOCABULARY_FILE, LEXICON_FILE} - set(writers)  # of another model
    replace_files(folder, writers, write_config, obsolete)


def record_checksums(folder: str | os.PathLike[str]) -> None:
    """Write the checksums of the files of a model folder to its config.json.

    For a folder of version 0.1 or 0.2, or one whose files were changed on purpose. The model must load.

    Args:
        folder: The model folder.

    Raises:
        ValueError: If the model is damaged.
    """
    folder = Path(folder)
    values = read_json(folder / CONFIG_FILE)
    values.pop(CHECKSUMS, None)
    _load(folder, dict(values))
    names = [name for name in CHECKED_FILES if (folder / name).is_file()]
    with replacing(folder / CONFIG_FILE) as path:
        path.write_text(_config_text(values, {name: checksum(folder / name) for name in names}), encoding="utf-8")


def _config_text(values: Mapping[str, Any], checksums: Mapping[str, str]) -> str:
    """The content of config.json, with the checksums of its biLM and of the files."""
    bilm = checksum_of_json(values["bilm"])
    return json.dumps({**values, CHECKSUMS: {"bilm": bilm, "files": checksums}}, indent=2) + "\n"


def _may_replace_card(folder: Path, card: str) -> bool:
    """Whether README.md does not exist, or was written by `save` and not changed since."""
    path = folder / CARD_FILE
    if not path.is_file() or checksum(path) == read_checksums(folder).get(CARD_FILE):
        return True
    text = path.read_bytes().decode("utf-8", "replace")
    return text == card or CARD_OF_0_2.fullmatch(text) is not None


def load(folder: str | os.PathLike[str]) -> ModelFiles:
    """Read and check a model folder.

    Args:
        folder: The folder.

    Returns:
        The model. Its tensors are float32, however they are stored.

    Raises:
        ValueError: If a file is missing, damaged, or does not fit the others. The message names the file.
    """
    folder = Path(folder)
    if not (folder / CONFIG_FILE).is_file():
        raise ValueError(f"{folder}: no {CONFIG_FILE}, so this is not an elmokit model folder")
    before = signature(folder)
    try:
        files = _load(folder, read_json(folder / CONFIG_FILE))
    except (ValueError, FileNotFoundError):
        if signature(folder) == before:
            raise
    else:
        if signature(folder) == before:
            return files
    with undisturbed(folder):  # another process is saving to the folder
        return _load(folder, read_json(folder / CONFIG_FILE))


def _load(folder: Path, values: dict[str, Any]) -> ModelFiles:
    """Read and check a model folder whose config.json holds `values`."""
    if values.pop("format", None) != "elmokit":
        raise ValueError(f'{folder / CONFIG_FILE}: no "format": "elmokit", so another program wrote it')
    bilm = values.pop("bilm", None)
    config = from_mapping(BiLMConfig, bilm, source=f"{folder / CONFIG_FILE}: bilm")
    layer_norm, tokenizer = values.pop("layer_norm", False), values.pop("tokenizer", "treebank")
    recorded = values.pop(CHECKSUMS, None)
    if values:
        raise ValueError(f"{folder / CONFIG_FILE}: unknown key {min(values)!r}")
    if not isinstance(layer_norm, bool):
        raise ValueError(f"{folder / CONFIG_FILE}: layer_norm must be true or false, not {layer_norm!r}")
    try:
        Tokenizer(tokenizer)
    except ValueError as error:
        raise ValueError(f"{folder / CONFIG_FILE}: {error}") from None
    checksums = _checksums(recorded, folder / CONFIG_FILE)
    paths = _paths(folder, checksums)
    problem = _bilm_problem(recorded, bilm, folder / CONFIG_FILE)
    with checking(folder, {paths[name]: value for name, value in checksums.items() if name in paths}, problem):
        weights_path = paths.get(WEIGHTS_FILE, folder / WEIGHTS_FILE)
        weights = _read(weights_path)
        check_sizes(config, num_tensors=len(weights), source=str(folder / CONFIG_FILE), weights=weights_path)
        with torch.device("meta"):
            expected = {name: tuple(tensor.shape) for name, tensor in BiLM(config).state_dict().items()}
        for mix in range(len({match[1] for name in weights if (match := MIX_NAME.fullmatch(name))})):
            expected |= {f"mixes.{mix}.weights": (config.num_layers + 1,), f"mixes.{mix}.gamma": ()}
        check_shapes({name: tuple(tensor.shape) for name, tensor in weights.items()}, expected, weights_path)
        vocabulary = Vocabulary.load(paths[VOCABULARY_FILE]) if VOCABULARY_FILE in paths else None
        lexicon_path = paths.get(LEXICON_FILE, folder / LEXICON_FILE)
        lexicon = None if config.num_lexicon_characters is None else _read_lexicon(lexicon_path)
        words_file = LEXICON_FILE if config.num_words is None else VOCABULARY_FILE
        make_word_ids(config, vocabulary, lexicon, source=str(folder / words_file))
        softmax = None
        if SOFTMAX_FILE in paths:
            softmax = _read_softmax(paths[SOFTMAX_FILE], config, vocabulary)
    return ModelFiles(config, weights, softmax, vocabulary, lexicon, layer_norm, tokenizer)


def _checksums(recorded: Any, source: Path) -> dict[str, str]:
    """The checksums of the files in config.json; empty if there are none."""
    if recorded is None:
        return {}
    if not isinstance(recorded, Mapping) or set(recorded) != {"bilm", "files"}:
        raise ValueError(f'{source}: {CHECKSUMS} must hold "bilm" and "files", not {recorded!r}')
    checksums = recorded["files"]
    if not isinstance(checksums, Mapping) or not {WEIGHTS_FILE} <= set(checksums) <= {*CHECKED_FILES, CARD_FILE}:
        raise ValueError(f"{source}: {CHECKSUMS}.files must hold checksums of the model's files, not {checksums!r}")
    return {name: value for name, value in checksums.items() if name != CARD_FILE}  # a card may be edited


def _bilm_problem(recorded: Any, bilm: Any, source: Path) -> str | None:
    """What is wrong with the sizes of the biLM, by their checksum in config.json; None if nothing is."""
    if recorded is None or (actual := checksum_of_json(bilm)) == recorded["bilm"]:
        return None
    return (
        f"{source}: the checksum of bilm is {actual}, but {recorded['bilm']!r} is recorded: the file is damaged. "
        f'If you changed it on purpose, remove "{CHECKSUMS}"'
    )


def _paths(folder: Path, checksums: Mapping[str, str]) -> dict[str, Path]:
    """The files of a model. One that config.json does not name is of another model and is ignored.

    Raises:
        ValueError: If a file that config.json names is missing, or is not a file.
    """
    if not checksums:
        return {name: folder / name for name in CHECKED_FILES if (folder / name).is_file()}
    for name in CHECKED_FILES:
        if name not in checksums and (folder / name).is_file():
            logger.warning("%s is ignored: %s does not name it", folder / name, CONFIG_FILE)
    paths = find_files(folder, checksums)
    for path in paths.values():
        if not path.is_file():
            problem = "this is not a regular file" if os.path.lexists(path) else "the file is missing"
            raise ValueError(
                f"{path}: {problem}, but {CONFIG_FILE} names it: copy the model again, or, to do without the file, "
                f'remove its line from "{CHECKSUMS}" in {CONFIG_FILE}'
            )
    return paths


def _read_softmax(path: Path, config: BiLMConfig, vocabulary: Vocabulary | None) -> dict[str, Tensor]:
    """The output layer of a language model, which has one row per word of the vocabulary."""
    softmax = _read(path)
    if vocabulary is None:
        raise ValueError(f"{path.parent}: {SOFTMAX_FILE} needs a {VOCABULARY_FILE} that names its rows")
    expected = {"weight": (len(vocabulary), config.projection_dim), "bias": (len(vocabulary),)}
    check_shapes({name: tuple(tensor.shape) for name, tensor in softmax.items()}, expected, path)
    return softmax


def _read_lexicon(path: Path) -> Lexicon:
    """The lexicon in lexicon.json."""
    if not path.is_file():
        raise ValueError(f"{path}: the file is missing")
    lists = read_json(path)
    for name in ("characters", "words"):
        items = lists.get(name)
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            raise ValueError(f"{path}: {name!r} must be a list of strings")
    try:
        return Lexicon(lists["characters"], lists["words"])
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def stored(tensors: Mapping[str, Tensor], storage: Storage | None) -> Mapping[str, Tensor]:
    """Tensors in the dtypes in which they are stored.

    Args:
        tensors: The tensors by name.
        storage: "float32"; "float16"; "int8": matrices in int8 with their scales, everything else in float16; or None
            for the tensors as they are. A tensor with values beyond the range of float16 (65504) stays float32.

    Raises:
        ValueError: If `storage` is not known, or a matrix for int8 holds NaN or infinite values.
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
    """The axes that a product with this matrix sums over; none if the tensor is not a matrix.

    LSTM weights are (directions, inputs, outputs), all others (outputs, inputs …).
    """
    if tensor.ndim < 2 or name.endswith("bias"):
        return ()
    return (1,) if name.startswith("layers.") else tuple(range(1, tensor.ndim))


def _quantize(name: str, matrix: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix -> integers (int8) and step sizes (bfloat16): the largest weight of each output is 127 steps.

    bfloat16 has float32's range in two bytes, so that one rule stores every matrix, and so few digits that a step times
    an integer is exact in float32: a matrix that was int8 once becomes the same int8 again. Smaller steps that clip the
    largest weights were tried: the error falls by less than 1%.
    """
    matrix = matrix.float()
    if not torch.isfinite(matrix).all():
        raise ValueError(f"{name} holds NaN or infinite values, which int8 cannot store")
    largest = matrix.abs().amax(dim=_summed_axes(name, matrix), keepdim=True)
    scale = largest.div(STEPS).clamp(min=torch.finfo(torch.bfloat16).tiny).to(torch.bfloat16)
    return (matrix / scale.float()).round_().clamp_(-STEPS, STEPS).to(torch.int8), scale


def _dequantize(name: str, tensors: Mapping[str, Tensor], path: Path) -> Tensor:
    """The float32 matrix of an int8 tensor and its scale; a ValueError if they do not fit."""
    steps, scale = tensors[name], tensors.get(name + SCALE)
    if scale is None:
        raise ValueError(f"{path}: {name} is int8, but {name}{SCALE}, which holds its step sizes, is missing")
    if scale.dtype not in FLOATS:
        raise ValueError(f"{path}: {name}{SCALE} holds {scale.dtype}, not floating-point numbers")
    summed = _summed_axes(name, steps)
    shape = tuple(1 if axis in summed else size for axis, size in enumerate(steps.shape))
    if tuple(scale.shape) != shape:
        raise ValueError(f"{path}: {name}{SCALE} is {tuple(scale.shape)}, {name} needs {shape}")
    scale = scale.float()
    # 128 of the largest steps are still finite, so the matrix itself needs no check
    is_valid = (scale > 0) & (scale < torch.finfo(torch.float32).max / (STEPS + 1))
    if not is_valid.all():
        bad = int((~is_valid).sum())
        raise ValueError(f"{path}: {name}{SCALE} holds {bad} values that are not step sizes: the file is damaged")
    return steps.float().mul_(scale)


def check_shapes(actual: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...]], path: Path) -> None:
    """Check that a file holds exactly the tensors of a model.

    Args:
        actual: Shape of each tensor in the file, by name.
        expected: Shape of each tensor that the configuration needs, by name.
        path: The file, for the message.

    Raises:
        ValueError: If a tensor is missing, has another shape, or does not belong. The message names file and tensor.
    """
    for name, shape in expected.items():
        if name not in actual:
            raise ValueError(f"{path}: {name} {shape} is missing")
        if actual[name] != shape:
            raise ValueError(f"{path}: {name} is {actual[name]}, the configuration needs {shape}")
    surplus = sorted(set(actual) - set(expected))
    if surplus:
        raise ValueError(f"{path}: {surplus[0]} is not part of a model with this configuration")


def check_finite(tensor: Tensor, path: Path, name: str) -> None:
    """Check that a tensor of a file is of a floating-point dtype and holds neither NaN nor infinity.

    Raises:
        ValueError: If it does not. The message names file and tensor.
    """
    if tensor.dtype not in FLOATS:
        raise ValueError(f"{path}: {name} holds {tensor.dtype}, not floating-point numbers")
    if not math.isfinite(tensor.sum(dtype=torch.float64).item()):
        bad = int((~torch.isfinite(tensor)).sum())
        raise ValueError(f"{path}: {name} holds {bad} values that are NaN or infinite: the file is damaged")


def _write(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write a safetensors file; its errors become an OSError."""
    try:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    except SafetensorError as error:  # a full disk, most likely: "… (os error 28)"
        code = re.search(r"os error (\d+)", str(error))
        raise OSError(int(code[1]) if code else errno.EIO, str(error), str(path)) from None


def _read(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, checked and in float32."""
    if not path.is_file():
        raise ValueError(f"{path}: the file is missing")
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except SafetensorError as error:
        raise ValueError(f"{path}: not a complete safetensors file ({error})") from None
    result = {}
    for name, tensor in tensors.items():
        matrix = tensors.get(name.removesuffix(SCALE))
        if name.endswith(SCALE) and (matrix is None or matrix.dtype != torch.int8):
            raise ValueError(f"{path}: {name} has no int8 {name.removesuffix(SCALE)} to which it belongs")
        if tensor.dtype == torch.int8:
            result[name] = _dequantize(name, tensors, path)
        elif not name.endswith(SCALE):
            check_finite(tensor, path, name)
            result[name] = tensor.float()
    return result
