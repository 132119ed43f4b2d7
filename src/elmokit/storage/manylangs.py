"""Model folders of ELMoForManyLangs (HIT-SCIR).

Input: a folder with config.json (which names a second file, with the sizes), char.dic, word.dic, token_embedder.pkl and
encoder.pkl. Output: a `BiLMConfig` with a lexicon, and tensors named as the parameters of `network.BiLM`. The two .pkl
files are read by PyTorch's loader for tensors only: anything else in a pickle is refused and never run.

Its rules, where they differ from those of the official models:
- Characters are code points, cut after `max_characters_per_token` - 2 of them; what the lexicon does not hold is <oov>.
- A word begins with the character <eow> and ends with <bow>: its code swaps the two names, and it was trained so.
- The highway's gate weighs the input, not the new value: g x + (1 - g) relu(...).
- The LSTM's gates are in the order i, f, j, o, and the forget bias is complete: no 1 is added.
"""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from elmokit.config import PUBLISHED_FILTERS, BiLMConfig
from elmokit.settings import from_mapping, read_json
from elmokit.storage.bounds import check_content, check_sizes
from elmokit.storage.folder import ModelFiles, check_finite, check_shapes
from elmokit.storage.layouts import CONFIG_FILE, EMBEDDER_FILE, ENCODER_FILE
from elmokit.storage.official import required, table_in
from elmokit.text import Lexicon

UNKNOWN, BOS, EOS = "<oov>", "<bos>", "<eos>"
MARKS = (UNKNOWN, BOS, EOS, "<eow>", "<bow>", "<pad>")  # in the order of `Lexicon`: unknown, bounds, begin, end, pad

# The sizes of all published models; many of their folders name this file but do not contain it.
SAMPLE_NAME = re.compile(r"cnn_\d+_100_512_4096_sample\.json")
SAMPLE: Mapping[str, Any] = {
    "encoder": {"name": "elmo", "projection_dim": 512, "cell_clip": 3, "proj_clip": 3, "dim": 4096, "n_layers": 2},
    "token_embedder": {
        "name": "cnn",
        "activation": "relu",
        "filters": [list(pair) for pair in PUBLISHED_FILTERS],
        "n_highway": 2,
        "word_dim": 100,
        "char_dim": 50,
        "max_characters_per_token": 50,
    },
}


def read_manylangs(folder: str | os.PathLike[str]) -> ModelFiles:
    """Read a model folder of ELMoForManyLangs. Its classifier, which few folders have, is ignored.

    Args:
        folder: The folder.

    Returns:
        The model, with a lexicon.

    Raises:
        ValueError: If a file is missing, damaged, or does not fit the sizes. The message names the file.
    """
    folder = Path(folder)
    sizes, source = _read_sizes(folder)
    encoder, embedder = table_in(sizes, "encoder", source), table_in(sizes, "token_embedder", source)
    for name, part, known in (("encoder", encoder, "elmo"), ("token_embedder", embedder, "cnn")):
        kind = required(part, name, "name", source)
        if str(kind).lower() != known:
            raise ValueError(f"{source}: {name}.name is {kind!r}: only {known!r} is supported")
    char_dim, word_dim = (_width(embedder, key, source) for key in ("char_dim", "word_dim"))
    if not char_dim and not word_dim:
        raise ValueError(f"{source}: token_embedder.char_dim and .word_dim are both 0: a word has no vector")
    characters = _read_lexicon(folder / "char.dic", MARKS) if char_dim else {}
    words = _read_lexicon(folder / "word.dic", (UNKNOWN, BOS, EOS)) if word_dim else {}
    lexicon = Lexicon(
        [c for c in sorted(characters, key=characters.__getitem__) if len(c) == 1],
        [w for w in sorted(words, key=words.__getitem__) if w not in (UNKNOWN, BOS, EOS)],
    )
    values: dict[str, Any] = {
        "num_lexicon_characters": len(lexicon.characters),
        "num_lexicon_words": len(lexicon.words),
        "word_dim": word_dim,
        "max_characters": required(embedder, "token_embedder", "max_characters_per_token", source),
        "char_dim": char_dim or 1,
        "filters": required(embedder, "token_embedder", "filters", source) if char_dim else [],
        "activation": embedder.get("activation", "relu"),
        "num_highways": embedder.get("n_highway", 0) if char_dim else 0,
        "cell_dim": required(encoder, "encoder", "dim", source),
        "projection_dim": required(encoder, "encoder", "projection_dim", source),
        "num_layers": required(encoder, "encoder", "n_layers", source),
        "cell_clip": encoder.get("cell_clip") or None,
        "proj_clip": encoder.get("proj_clip") or None,
        "skip_connections": True,
    }
    config = from_mapping(BiLMConfig, values, source=source)
    paths = (folder / EMBEDDER_FILE, folder / ENCODER_FILE)
    embedder_tensors, encoder_tensors = map(_read_tensors, paths)
    num_tensors = len(embedder_tensors) + len(encoder_tensors)
    check_sizes(config, num_tensors=num_tensors, source=source, weights=paths[1])
    weights = _token_weights(paths[0], embedder_tensors, config, lexicon, characters, words)
    weights |= _layer_weights(paths[1], encoder_tensors, config)
    return ModelFiles(config, weights, lexicon=lexicon)


def _width(embedder: Mapping[str, Any], key: str, source: str) -> int:
    width = required(embedder, "token_embedder", key, source)
    if not isinstance(width, int) or width < 0:
        raise ValueError(f"{source}: token_embedder.{key} must be a width, or 0 for none, not {width!r}")
    return width


def _read_sizes(folder: Path) -> tuple[Mapping[str, Any], str]:
    """The table of sizes that config.json names, and the file in which it is."""
    named = read_json(folder / CONFIG_FILE).get("config_path")
    if not isinstance(named, str):
        raise ValueError(f"{folder / CONFIG_FILE}: 'config_path', which names the file of sizes, is {named!r}")
    name = re.split(r"[/\\]", named)[-1]
    # often a path of the machine that trained the model: a file of that name in the folder counts too
    for path in (folder / named, folder / name, folder / "configs" / name):
        if path.is_file():
            return read_json(path), str(path)
    if SAMPLE_NAME.fullmatch(name):
        return SAMPLE, f"{folder / CONFIG_FILE}: {name}"
    raise ValueError(
        f"{folder / CONFIG_FILE} names {named!r}, but there is no such file: copy {name}, which holds the sizes of the "
        "model, into the folder"
    )


def _read_lexicon(path: Path, needed: tuple[str, ...]) -> dict[str, int]:
    """A .dic file: per line an item, a tab and its row. A blank item is the ideographic space."""
    if not path.is_file():
        raise ValueError(f"{path}: the file is missing")
    rows: dict[str, int] = {}
    for number, line in enumerate(path.read_bytes().removesuffix(b"\n").split(b"\n"), 1):
        try:
            *item, row = line.decode("utf-8").strip().split("\t")
            rows[item[0] if item else "\u3000"] = int(row)
        except ValueError:
            raise ValueError(f"{path}: line {number} is {line[:40]!r}, not an item, a tab and a number") from None
        if len(item) > 1 or int(row) < 0:
            raise ValueError(f"{path}: line {number} is {line[:40]!r}, not an item, a tab and a number")
    if missing := [mark for mark in needed if mark not in rows]:
        raise ValueError(f"{path}: {', '.join(missing)} is missing")
    return rows


def _token_weights(
    path: Path,
    tensors: Mapping[str, Tensor],
    config: BiLMConfig,
    lexicon: Lexicon,
    characters: dict[str, int],
    words: dict[str, int],
) -> dict[str, Tensor]:
    """Tensors of the lexicon encoder, with rows in the order of `Lexicon`."""
    filters_dim = config.filters_dim
    expected: dict[str, tuple[int, ...]] = {
        "projection.weight": (config.projection_dim, config.word_dim + filters_dim),
        "projection.bias": (config.projection_dim,),
    }
    if words:
        expected["word_emb_layer.embedding.weight"] = (max(words.values()) + 1, config.word_dim)
    if characters:
        expected["char_emb_layer.embedding.weight"] = (max(characters.values()) + 1, config.char_dim)
    for i, (width, channels) in enumerate(config.filters):
        expected[f"convolutions.{i}.weight"] = (channels, config.char_dim, width)
        expected[f"convolutions.{i}.bias"] = (channels,)
    for k in range(config.num_highways):
        expected[f"highways._layers.{k}.weight"] = (2 * filters_dim, filters_dim)
        expected[f"highways._layers.{k}.bias"] = (2 * filters_dim,)
    tensors = _checked(tensors, expected, path)

    weights = {f"projection.{part}": tensors[f"projection.{part}"] for part in ("weight", "bias")}
    if words:
        order = [words[word] for word in (UNKNOWN, BOS, EOS, *lexicon.words)]
        weights["word_embedding"] = tensors["word_emb_layer.embedding.weight"][order]
    if characters:
        order = [characters[character] for character in (*lexicon.characters, *MARKS)]
        weights["spelling.char_embedding"] = tensors["char_emb_layer.embedding.weight"][order]
    for i in range(len(config.filters)):
        for part in ("weight", "bias"):
            weights[f"spelling.convolutions.{i}.{part}"] = tensors[f"convolutions.{i}.{part}"]
    for k in range(config.num_highways):
        for part in ("weight", "bias"):
            new, carried = tensors[f"highways._layers.{k}.{part}"].chunk(2)
            weights[f"spelling.highways.{k}.transform.{part}"] = new
            weights[f"spelling.highways.{k}.carry.{part}"] = -carried  # 1 - sigmoid(x) = sigmoid(-x)
    return {f"lexicon_encoder.{name}": tensor.contiguous() for name, tensor in weights.items()}


def _layer_weights(path: Path, tensors: Mapping[str, Tensor], config: BiLMConfig) -> dict[str, Tensor]:
    """Tensors of the LSTMs, both directions of a layer stacked."""
    cell, width = config.cell_dim, config.projection_dim
    shapes = {
        "input_linearity.weight": (4 * cell, width),
        "state_linearity.weight": (4 * cell, width),
        "state_linearity.bias": (4 * cell,),
        "state_projection.weight": (width, cell),
    }
    cells = [[f"{direction}_layer_{k}." for direction in ("forward", "backward")] for k in range(config.num_layers)]
    expected = {one + name: shape for pair in cells for one in pair for name, shape in shapes.items()}
    tensors = _checked(tensors, expected, path)
    weights = {}
    for k, pair in enumerate(cells):
        for ours, theirs in (
            ("input_weight", "input_linearity.weight"),
            ("recurrent_weight", "state_linearity.weight"),
        ):
            weights[f"layers.{k}.{ours}"] = torch.stack([_gates(tensors[one + theirs]).t() for one in pair])
        bias = torch.stack([_gates(tensors[one + "state_linearity.bias"]) for one in pair])
        bias[:, 2 * cell : 3 * cell] -= 1.0  # the network adds 1 to the forget gate
        weights[f"layers.{k}.bias"] = bias
        weights[f"layers.{k}.projection"] = torch.stack([tensors[one + "state_projection.weight"].t() for one in pair])
    return weights


def _gates(rows: Tensor) -> Tensor:
    """Blocks of rows i, f, j, o -> i, j, f, o."""
    i, f, j, o = rows.chunk(4)
    return torch.cat([i, j, f, o])


def _read_tensors(path: Path) -> Mapping[str, Tensor]:
    """The tensors of a file that torch.save wrote, in its old or its new format."""
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
                    raise ValueError("it is compressed")
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a pickle that is damaged or refused raises errors of many types
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(
            f"{path}: not a file of tensors only, as torch.save writes them, or incomplete ({reason})"
        ) from None
    if not isinstance(tensors, Mapping) or not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
        raise ValueError(f"{path}: not a table of tensors by name")
    check_content(sum(tensor.numel() for tensor in tensors.values()), path.stat().st_size, path)
    return tensors


def _checked(tensors: Mapping[str, Tensor], expected: Mapping[str, tuple[int, ...]], path: Path) -> dict[str, Tensor]:
    """The tensors in float32, once their names, shapes and values are checked."""
    check_shapes({name: tuple(tensor.shape) for name, tensor in tensors.items()}, expected, path)
    for name, tensor in tensors.items():
        check_finite(tensor, path, name)
    return {name: tensor.float() for name, tensor in tensors.items()}
