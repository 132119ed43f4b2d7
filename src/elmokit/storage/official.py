"""The official format of AllenNLP and bilm-tf, read and written.

Input: options.json and its weights as they were downloaded, HDF5 or a TensorFlow checkpoint; also token-embedding and
softmax files. Output: a `BiLMConfig` and tensors named as the parameters of `network.BiLM`; in the other direction HDF5
files with the same bits. `official_views` is the one table for both directions.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from elmokit.config import BiLMConfig
from elmokit.files import replacing, replacing_together
from elmokit.network import BiLM
from elmokit.settings import from_mapping, read_json
from elmokit.storage.bounds import check_content, check_sizes, num_weights
from elmokit.storage.folder import ModelFiles, check_finite
from elmokit.storage.hdf5 import open_hdf5, writing_hdf5
from elmokit.storage.layouts import OFFICIAL_WEIGHTS_FILE, OPTIONS_FILE
from elmokit.storage.tensorflow import open_checkpoint
from elmokit.text import NUM_CHARACTERS, Vocabulary

logger = logging.getLogger(__name__)

# keys of option files; beside the sizes of the model they hold how it was trained
LSTM_KEYS = {"cell_clip", "dim", "n_layers", "proj_clip", "projection_dim", "use_skip_connections"}
CHAR_KEYS = {"activation", "embedding", "filters", "max_characters_per_token", "n_characters", "n_highway"}
TRAINING_KEYS = {
    "all_clip_norm_val",
    "batch_size",
    "bidirectional",
    "char_cnn",
    "dropout",
    "learning_rate",
    "lstm",
    "n_epochs",
    "n_negative_samples_batch",
    "n_tokens_vocab",
    "n_train_tokens",
    "sample_softmax",
    "share_embedding_softmax",
    "unroll_steps",
}


class Arrays(Protocol):
    """A file of arrays under their official names. Errors are a ValueError that names the file."""

    @property
    def path(self) -> Path: ...

    @property
    def names(self) -> list[str]: ...

    @property
    def num_bytes(self) -> int:
        """Size of the file, or of the files that hold the arrays."""

    def about(self, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Shape and dtype of the array `name`."""

    def read(self, name: str) -> npt.NDArray[Any]: ...


def open_arrays(path: str | os.PathLike[str]) -> contextlib.AbstractContextManager[Arrays]:
    """Open a weight file: the .index of a TensorFlow checkpoint, or an HDF5 file."""
    return open_checkpoint(path) if Path(path).suffix == ".index" else open_hdf5(path)


def read_official(
    options_path: str | os.PathLike[str],
    weights_path: str | os.PathLike[str],
    *,
    embeddings_path: str | os.PathLike[str] | None = None,
    boundary_ids: tuple[int, int] = (0, 1),
) -> tuple[BiLMConfig, dict[str, Tensor]]:
    """Read the configuration and the biLM's tensors of an official model.

    Args:
        options_path: The options file.
        weights_path: The HDF5 weight file, or the .index of a TensorFlow checkpoint.
        embeddings_path: A token-embedding file, which makes a word-level model.
        boundary_ids: Rows of <S> and </S> in the vocabulary of a word-level model.

    Returns:
        The configuration, and the tensors in float32 by name.

    Raises:
        ValueError: If a file is missing, damaged, or does not fit the options. The message names the file.
    """
    options = read_json(options_path)
    with open_arrays(weights_path) as file, open_arrays(embeddings_path or weights_path) as embeddings:
        names = file.names
        word_level = embeddings_path is not None or not ("char_cnn" in options or "char_embed" in names)
        config = config_from_options(
            options,
            source=str(options_path),
            num_words=_rows(embeddings, "embedding") if word_level else None,
            boundary_ids=boundary_ids,
        )
        # some files have no projection, because the filters already have its width
        if not any(name.startswith("CNN_proj/") for name in names) and config.filters_dim == config.projection_dim:
            config = dataclasses.replace(config, char_projection=False)
        check_sizes(config, num_tensors=len(names), source=str(options_path), weights=file.path)
        with torch.device("meta"):
            shapes = {name: tensor.shape for name, tensor in BiLM(config).state_dict().items()}
        expected = official_views(config, {name: torch.empty(shape, device="meta") for name, shape in shapes.items()})
        file_of = {name: embeddings if name == "embedding" else file for name in expected}
        for name, parts in expected.items():  # before the first is read: memory is for a model that fits
            _check(file_of[name], name, parts)
        _refuse_surplus(file, set(names) - set(expected), word_level, str(options_path))
        num_bytes = file.num_bytes + (0 if embeddings_path is None else embeddings.num_bytes)
        check_content(num_weights(config), num_bytes, file.path)
        weights = {name: torch.empty(shape) for name, shape in shapes.items()}
        for name, parts in official_views(config, weights).items():
            _fill(file_of[name], name, parts)
    return config, weights


def read_official_model(
    options_path: str | os.PathLike[str],
    weights_path: str | os.PathLike[str],
    *,
    vocabulary_path: str | os.PathLike[str] | None = None,
    embeddings_path: str | os.PathLike[str] | None = None,
    softmax_path: str | os.PathLike[str] | None = None,
) -> ModelFiles:
    """Read an official model with everything that belongs to it.

    Args:
        options_path: The options file.
        weights_path: The HDF5 weight file, or the .index of a TensorFlow checkpoint.
        vocabulary_path: The words of the rows of the softmax, or of a word-level model.
        embeddings_path: A token-embedding file, which makes a word-level model.
        softmax_path: The softmax file, which makes a language model. A checkpoint has its own softmax.

    Raises:
        ValueError: If a file is missing, damaged, or does not fit the others. The message names the file.
    """
    vocabulary = None if vocabulary_path is None else Vocabulary.load(Path(vocabulary_path))
    config, weights = read_official(
        options_path,
        weights_path,
        embeddings_path=embeddings_path,
        boundary_ids=(0, 1) if vocabulary is None else (vocabulary.bos_id, vocabulary.eos_id),
    )
    softmax = None
    if softmax_path is None and Path(weights_path).suffix == ".index":  # a checkpoint holds everything that was trained
        if vocabulary is not None:
            softmax_path = weights_path
        else:
            logger.warning("%s: its softmax is ignored, since no vocabulary names its rows", weights_path)
    if softmax_path is not None:
        if vocabulary is None:
            raise ValueError(f"{softmax_path}: a softmax needs the vocabulary that names its rows: pass vocabulary=")
        softmax = read_softmax(softmax_path, projection_dim=config.projection_dim)
        _check_rows(softmax, vocabulary, softmax_path, vocabulary_path)
    return ModelFiles(config, weights, softmax, vocabulary)


def read_language_model(
    softmax_path: str | os.PathLike[str], vocabulary_path: str | os.PathLike[str], *, projection_dim: int
) -> tuple[dict[str, Tensor], Vocabulary]:
    """Read a softmax file and the vocabulary that names its rows.

    Args:
        softmax_path: The HDF5 file, or the .index of a TensorFlow checkpoint.
        vocabulary_path: A file with one word per line.
        projection_dim: Width of the softmax's rows.

    Returns:
        `weight` (V, P) and `bias` (V,), and the V words.

    Raises:
        ValueError: If a file is damaged, or the two do not fit. The message names the file.
    """
    vocabulary = Vocabulary.load(Path(vocabulary_path))
    softmax = read_softmax(softmax_path, projection_dim=projection_dim)
    _check_rows(softmax, vocabulary, softmax_path, vocabulary_path)
    return softmax, vocabulary


def _check_rows(softmax: Mapping[str, Tensor], vocabulary: Vocabulary, softmax_path: Any, vocabulary_path: Any) -> None:
    """Refuse a softmax of another number of rows than its vocabulary has words."""
    if len(softmax["bias"]) != len(vocabulary):
        raise ValueError(
            f"{softmax_path} has {len(softmax['bias'])} rows, {vocabulary_path} has {len(vocabulary)} words"
        )


def write_official(config: BiLMConfig, weights: Mapping[str, Tensor], folder: str | os.PathLike[str]) -> None:
    """Write options.json and weights.hdf5.

    Args:
        config: The sizes of the biLM.
        weights: Its tensors by name.
        folder: The folder to write. It is created if it does not exist.

    Raises:
        ValueError: If the model has a lexicon of its own or is not an LSTM: the official format has no place for them.
        OSError: If a file cannot be written. Files that existed are unchanged.
    """
    if config.architecture != "lstm":
        raise ValueError(
            f'the official format holds LSTM layers, this model has architecture "{config.architecture}": '
            "use save_pretrained"
        )
    if config.num_lexicon_characters is not None:
        raise ValueError("the official format encodes words as bytes and cannot hold a lexicon: use save_pretrained")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with replacing_together([folder / OFFICIAL_WEIGHTS_FILE, folder / OPTIONS_FILE]) as (target, options):
        with writing_hdf5(target) as file:
            for name, parts in official_views(config, weights).items():
                file[name] = torch.cat([part.detach().float().cpu() for part in parts]).numpy()
        options.write_text(json.dumps(options_from_config(config), indent=2) + "\n", encoding="utf-8")


def official_views(config: BiLMConfig, weights: Mapping[str, Tensor]) -> dict[str, list[Tensor]]:
    """The table of names: official name -> views of our tensors.

    Args:
        config: The sizes of the biLM.
        weights: Its tensors by name.

    Returns:
        For each official array, the views that, concatenated along axis 0, are that array.
    """
    views: dict[str, list[Tensor]] = {}
    if config.num_words is not None:
        views["embedding"] = [weights["word_embedding"]]
    else:
        views["char_embed"] = [weights["char_encoder.char_embedding"]]
        for i in range(len(config.filters)):
            ours = f"char_encoder.convolutions.{i}"
            views[f"CNN/W_cnn_{i}"] = [weights[f"{ours}.weight"].permute(2, 1, 0).unsqueeze(0)]
            views[f"CNN/b_cnn_{i}"] = [weights[f"{ours}.bias"]]
        for k in range(config.num_highways):
            for part in ("carry", "transform"):
                ours = f"char_encoder.highways.{k}.{part}"
                views[f"CNN_high_{k}/W_{part}"] = [weights[f"{ours}.weight"].t()]
                views[f"CNN_high_{k}/b_{part}"] = [weights[f"{ours}.bias"]]
        if config.char_projection:
            views["CNN_proj/W_proj"] = [weights["char_encoder.projection.weight"].t()]
            views["CNN_proj/b_proj"] = [weights["char_encoder.projection.bias"]]
    for d in range(2):
        for k in range(config.num_layers):
            ours, cell = f"layers.{k}", f"RNN_{d}/RNN/MultiRNNCell/Cell{k}/LSTMCell"
            views[f"{cell}/W_0"] = [weights[f"{ours}.input_weight"][d], weights[f"{ours}.recurrent_weight"][d]]
            views[f"{cell}/B"] = [weights[f"{ours}.bias"][d]]
            views[f"{cell}/W_P_0"] = [weights[f"{ours}.projection"][d]]
    return views


def config_from_options(
    options: Mapping[str, Any],
    *,
    source: str,
    num_words: int | None = None,
    boundary_ids: tuple[int, int] = (0, 1),
) -> BiLMConfig:
    """Convert official options to our configuration. Unknown keys are logged, not refused.

    Args:
        options: The content of options.json.
        source: Name of the file, for messages.
        num_words: Number of words of a word-level model.
        boundary_ids: Rows of <S> and </S> of a word-level model.

    Raises:
        ValueError: If a value is missing or wrong. The message names `source`.
    """
    lstm = table_in(options, "lstm", source)
    values: dict[str, Any] = {
        "cell_dim": required(lstm, "lstm", "dim", source),
        "projection_dim": required(lstm, "lstm", "projection_dim", source),
        "num_layers": lstm.get("n_layers", 1),
        "cell_clip": lstm.get("cell_clip") or None,  # AllenNLP and bilm-tf read 0 as no clipping
        "proj_clip": lstm.get("proj_clip") or None,
        "skip_connections": bool(lstm.get("use_skip_connections", False)),
    }
    unknown = {*(set(options) - TRAINING_KEYS), *(f"lstm.{key}" for key in set(lstm) - LSTM_KEYS)}
    if num_words is not None:
        values.update(num_words=num_words, bos_id=boundary_ids[0], eos_id=boundary_ids[1])
    else:
        char_cnn = table_in(options, "char_cnn", source)
        # 261 for training, 262 for inference (one more for padding): the weights are the same
        if char_cnn.get("n_characters", NUM_CHARACTERS) not in (NUM_CHARACTERS, NUM_CHARACTERS + 1):
            raise ValueError(f"{source}: char_cnn.n_characters is {char_cnn['n_characters']}, not 261 or 262")
        embedding = table_in(char_cnn, "embedding", f"{source}: char_cnn")
        values.update(
            char_dim=required(embedding, "char_cnn.embedding", "dim", source),
            filters=required(char_cnn, "char_cnn", "filters", source),
            activation=required(char_cnn, "char_cnn", "activation", source),
            max_characters=char_cnn.get("max_characters_per_token", 50),
            num_highways=char_cnn.get("n_highway") or 0,
        )
        unknown |= {f"char_cnn.{key}" for key in set(char_cnn) - CHAR_KEYS}
    if unknown:
        logger.warning("%s: unknown keys are ignored: %s", source, ", ".join(sorted(unknown)))
    return from_mapping(BiLMConfig, values, source=source)


def options_from_config(config: BiLMConfig) -> dict[str, Any]:
    """Convert our configuration to official options, as AllenNLP and bilm-tf read them."""
    options: dict[str, Any] = {
        "lstm": {
            "dim": config.cell_dim,
            "projection_dim": config.projection_dim,
            "n_layers": config.num_layers,
            "cell_clip": config.cell_clip,
            "proj_clip": config.proj_clip,
            "use_skip_connections": config.skip_connections,
        }
    }
    if config.num_words is None:
        options["char_cnn"] = {
            "activation": config.activation,
            "embedding": {"dim": config.char_dim},
            "filters": [list(pair) for pair in config.filters],
            "max_characters_per_token": config.max_characters,
            "n_characters": NUM_CHARACTERS + 1,
            "n_highway": config.num_highways,
        }
    return options


def read_softmax(path: str | os.PathLike[str], *, projection_dim: int) -> dict[str, Tensor]:
    """Read an official softmax file, or the softmax of a checkpoint.

    Args:
        path: The HDF5 file, or the .index of a TensorFlow checkpoint.
        projection_dim: Width of its rows.

    Returns:
        `weight` (V, P) and `bias` (V,).

    Raises:
        ValueError: If the file is missing, damaged, or of another width. The message names it.
    """
    with open_arrays(path) as file:
        # a word-level model may use its word table as softmax
        table = "embedding" if "softmax/W" not in file.names and "embedding" in file.names else "softmax/W"
        rows = _rows(file, table)
        names = {"weight": table, "bias": "softmax/b"}
        shapes = {"weight": (rows, projection_dim), "bias": (rows,)}
        for part, name in names.items():  # before memory is taken
            _check(file, name, [torch.empty(shapes[part], device="meta")])
        check_content(rows * (projection_dim + 1), file.num_bytes, file.path)
        softmax = {part: torch.empty(shape) for part, shape in shapes.items()}
        for part, name in names.items():
            _fill(file, name, [softmax[part]])
    return softmax


def write_softmax(softmax: Mapping[str, Tensor], path: str | os.PathLike[str]) -> None:
    """Write an official softmax file from `weight` (V, P) and `bias` (V,)."""
    _write(path, {"softmax/W": softmax["weight"], "softmax/b": softmax["bias"]})


def write_token_embeddings(vectors: Tensor, path: str | os.PathLike[str]) -> None:
    """Write a token-embedding file from one row per word of a vocabulary, (V, P)."""
    _write(path, {"embedding": vectors})


def _write(path: str | os.PathLike[str], arrays: Mapping[str, Tensor]) -> None:
    """Write an HDF5 file of float32 arrays, atomically."""
    with replacing(Path(path)) as target, writing_hdf5(target) as file:
        for name, tensor in arrays.items():
            file[name] = tensor.detach().float().cpu().numpy()


def _rows(file: Arrays, name: str) -> int:
    """Number of rows of a table."""
    shape, _ = file.about(name)
    if not shape:
        raise ValueError(f"{file.path}: {name} is a single number, not a table")
    return shape[0]


def _check(file: Arrays, name: str, parts: list[Tensor]) -> None:
    """Check that the array `name` exists and has the shape of the concatenated views."""
    shape, dtype = file.about(name)
    expected = (sum(len(part) for part in parts), *parts[0].shape[1:])
    if shape != expected:
        raise ValueError(f"{file.path}: {name} is {shape}, the options need {expected}")
    if dtype.kind != "f":
        raise ValueError(f"{file.path}: {name} holds {dtype}, not floating-point numbers")


def _fill(file: Arrays, name: str, parts: list[Tensor]) -> None:
    """Copy the array `name` into the views."""
    with np.errstate(over="ignore"):
        values = torch.from_numpy(file.read(name).astype(np.float32, copy=False))
    check_finite(values, file.path, name)
    begin = 0
    for part in parts:
        part.copy_(values[begin : begin + len(part)])
        begin += len(part)


def _refuse_surplus(file: Arrays, surplus: set[str], word_level: bool, options: str) -> None:
    """Refuse layers, filters or highways that the options do not name: without them the vectors would be wrong."""
    for name in sorted(surplus):
        group = name.split("/")[0]
        if group == "char_embed" or group.startswith("CNN"):
            if word_level:  # the character encoder, which the word table replaces
                continue
        elif group == "softmax" and file.path.suffix == ".index":  # see read_official_model
            continue
        elif not group.startswith("RNN_"):
            logger.warning("%s: %s is not part of the biLM and is ignored", file.path, name)
            continue
        raise ValueError(f"{file.path}: {name} is not in {options}: the options contradict the weights")


def table_in(values: Mapping[str, Any], key: str, source: str) -> Mapping[str, Any]:
    """The table `values[key]`.

    Raises:
        ValueError: If it is missing or is not a table. The message names `source`.
    """
    table = values.get(key)
    if not isinstance(table, Mapping):
        raise ValueError(f"{source}: {key!r} is missing or is not a table: {table!r}")
    return table


def required(values: Mapping[str, Any], table: str, key: str, source: str) -> Any:
    """The value `values[key]`.

    Raises:
        ValueError: If it is missing. The message names `source` and `table`.
    """
    if key not in values:
        raise ValueError(f"{source}: {table}.{key} is missing")
    return values[key]
