"""A task with its weights, and the folder that holds it.

    config.json          settings, labels and words
    model.safetensors    the weights of the network and of ELMo's mixes
    bilm/                the biLM, if it was trained with the task

A frozen biLM and a file of word vectors are not copied. The folder has their names, their paths (absolute, and from the
folder, for both being moved together) and checksums, and `load_task` checks that they are the same.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from elmokit.arguments import check_path, check_string
from elmokit.files import check_new_folder, replacing_together
from elmokit.model import ELMo
from elmokit.network import find_device
from elmokit.settings import from_mapping, read_json, to_mapping
from elmokit.storage.downloads import cache_dir
from elmokit.tasks.inputs import Inputs
from elmokit.tasks.settings import TaskConfig
from elmokit.tasks.task import Network, Task, check_requirements, find_task, read_files
from elmokit.tasks.vectors import FrozenLayers, load_static
from elmokit.text import as_list

FORMAT = "elmokit task 1"
CONFIG_FILE, WEIGHTS_FILE, BILM_FOLDER = "config.json", "model.safetensors", "bilm"
NUM_MIXES = {"none": 0, "input": 1, "both": 2}
GPU_BATCHES = 4  # batches of the training's size that a GPU predicts together: its time is that of the launches

# Names of weights in files where they differ from those of the network: version 0.1 kept the mixes beside the biLM.
NAME_IN_NETWORK, NAME_IN_FILE = "inputs.elmo.mixes.", "inputs.mixes."
# Weights of the biLM: those of a frozen one are never written, those of a tuned one are in bilm/ and in checkpoints.
BILM_PREFIX = "inputs.elmo.bilm."


class TrainedTask:
    """A task with its weights, as `load_task` returns it.

    Args:
        task: The task.
        config: The settings of its training.
        fitted: What `Task.fit` returned.
        words: Lowercase words that have a trained vector.
        network: What `Task.build` returned.
    """

    def __init__(
        self,
        task: Task[Any, Any],
        config: TaskConfig,
        fitted: dict[str, Any],
        words: list[str],
        network: Network,
    ) -> None:
        self.task, self.config, self.fitted, self.words, self.network = task, config, fitted, words, network

    def predict(self, texts: Sequence[Any]) -> list[dict[str, Any]]:
        """Predict.

        Args:
            texts: Strings, lists of tokens or mappings of fields, by the task. Strings are tokenized by the tokenizer
                of the biLM.

        Returns:
            One dict per text: its tokens and the prediction, as plain JSON values.
        """
        tokenizer = self.network.inputs.tokenizer
        examples = [self.task.from_text(text, tokenizer) for text in as_list(texts, "texts")]
        return [
            self.task.to_json(example, prediction)
            for example, prediction in zip(examples, self.answer(examples), strict=True)
        ]

    def evaluate(self, files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> dict[str, float]:
        """Compute the scores on data files.

        Args:
            files: One file, or several.

        Returns:
            Scores from 0 to 1 by name.

        Raises:
            ValueError: If a file cannot be read, or there is none.
            ImportError: If an optional module that the scores need is not installed.
        """
        check_requirements(self.task)
        return self.score(read_files(self.task, files, self.network.inputs.tokenizer))

    def score(self, examples: Sequence[Any]) -> dict[str, float]:
        """The scores on examples that the task's reader returned."""
        return self.task.score(examples, self.answer(examples))

    @torch.no_grad()
    def answer(self, examples: Sequence[Any]) -> list[Any]:
        """The network's prediction for each example."""
        assert isinstance(self.network, nn.Module)
        self.network.eval()
        order = sorted(range(len(examples)), key=lambda place: self.size(examples[place]))
        predictions: list[Any] = [None] * len(order)
        at_once = self.config.batch_size * (GPU_BATCHES if self.network.inputs.device.type == "cuda" else 1)
        for begin in range(0, len(order), at_once):
            places = order[begin : begin + at_once]
            batch = self.network.predict([examples[place] for place in places])
            for place, prediction in zip(places, batch, strict=True):
                predictions[place] = prediction
        return predictions

    def size(self, example: Any) -> int:
        """Number of tokens of an example."""
        return sum(map(len, self.task.sentences(example)))

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the folder that `load_task` reads.

        Args:
            folder: The folder; it is made where it does not exist.

        Raises:
            ValueError: If `folder` is not the path of a folder.
            OSError: If it cannot be written.
        """
        folder, inputs = Path(check_path("folder", folder)), self.network.inputs
        check_new_folder(folder)
        folder.mkdir(parents=True, exist_ok=True)
        config = _with_absolute_paths(self.config)
        values = {
            "format": FORMAT,
            "config": to_mapping(config),
            "relative_paths": _paths_from(folder, config),
            "fitted": self.fitted,
            "words": self.words,
            "sha256_of_bilm": None if inputs.frozen is None else inputs.frozen.digest,
            "sha256_of_vectors": None if inputs.static is None else inputs.static.sha256,
        }
        if self.config.tune and inputs.elmo is not None:
            inputs.elmo.save_pretrained(folder / BILM_FOLDER)
        weights = {name: t.cpu().contiguous() for name, t in network_state(self.network, with_bilm=False).items()}
        with replacing_together([folder / WEIGHTS_FILE, folder / CONFIG_FILE]) as (weights_path, config_path):
            save_file(weights, weights_path)
            config_path.write_text(json.dumps(values, indent=1), encoding="utf-8")


def load_task(
    folder: str | os.PathLike[str], *, device: str = "auto", elmo: str | None = None, vectors: str | None = None
) -> TrainedTask:
    """Load a trained task.

    Args:
        folder: The folder that `train` or `TrainedTask.save` wrote.
        device: "cpu", "cuda", "cuda:1"; "auto" is a GPU where there is one.
        elmo: Where the frozen biLM of the task is, if it was moved.
        vectors: Where the word vectors of the task are, if they were moved.

    Raises:
        ValueError: If the folder is not that of a task, or the biLM or the word vectors are not those of its training.
    """
    folder = Path(check_path("folder", folder))
    for name, moved_to in (("elmo", elmo), ("vectors", vectors)):
        if moved_to is not None:
            check_string(name, moved_to)
            check_path(name, moved_to)
    path = folder / CONFIG_FILE
    if not path.is_file():
        raise ValueError(f"{folder}: no {CONFIG_FILE}: this is not the folder of a trained task")
    values = read_json(path)
    if values.get("format") != FORMAT:
        raise ValueError(f"{path}: its format is {values.get('format')!r}, not {FORMAT!r}")
    missing = {"config", "fitted", "words", "sha256_of_bilm", "sha256_of_vectors"} - values.keys()
    if missing:
        raise ValueError(f"{path}: {', '.join(sorted(missing))} is missing")
    config = from_mapping(TaskConfig, values["config"], source=f"{path}: config")
    moved = _moved_paths(folder, config, values.get("relative_paths") or {})
    config = dataclasses.replace(config, elmo=elmo or moved["elmo"], vectors=vectors or moved["vectors"])
    place = find_device(device)
    if _is_missing(config.elmo) and config.elmo_at != "none" and not config.tune:
        raise ValueError(
            f"{folder}: the biLM of this task was {config.elmo}, which is not there: pass its new path, "
            "elmo=… of load_task or --model"
        )
    model = load_elmo(config, place, folder=str(folder / BILM_FOLDER) if config.tune else None)
    trained = assemble(find_task(config.task), config, values["fitted"], values["words"], model, place)
    inputs = trained.network.inputs
    for digest, name, option in (
        (inputs.frozen and inputs.frozen.digest, "sha256_of_bilm", "elmo"),
        (inputs.static and inputs.static.sha256, "sha256_of_vectors", "vectors"),
    ):
        if digest != values[name]:
            raise ValueError(
                f"{folder}: trained with another {option} than {getattr(config, option) or 'the default model'} "
                f"(sha256 {values[name]}, now {digest}): pass {option}=… of load_task, or "
                f"--{'model' if option == 'elmo' else option}, the path of the one of the training"
            )
    load_weights(trained.network, folder / WEIGHTS_FILE)
    return trained


# ---- a task with fresh weights ---------------------------------------------------------------------------------------


def load_elmo(config: TaskConfig, device: torch.device, *, folder: str | None = None) -> ELMo | None:
    """Load the ELMo of a task, with fresh mixes.

    Args:
        config: Names the biLM; `elmo_at` gives the number of mixes.
        device: Where the biLM runs.
        folder: The biLM, if it is another than the config names.

    Returns:
        The model, without its output layer; None where the task does without ELMo.
    """
    if config.elmo_at == "none":
        return None
    elmo = ELMo.from_pretrained(
        folder or config.elmo,
        freeze=not config.tune,
        num_mixes=NUM_MIXES[config.elmo_at],
        dropout=config.elmo_dropout,
        layer_norm=False,
        device=device,
    )
    for name, parameter in elmo.mixes.named_parameters():  # mixes that were saved with the model are of another task
        nn.init.constant_(parameter, 1.0 if name.endswith("gamma") else 0.0)
    elmo.output_layer, elmo.vocabulary = None, elmo.vocabulary if elmo.reads_words else None
    return elmo


def assemble(
    task: Task[Any, Any],
    config: TaskConfig,
    fitted: dict[str, Any],
    words: list[str],
    elmo: ELMo | None,
    device: torch.device,
) -> TrainedTask:
    """Build a task with fresh weights.

    Args:
        task: The task.
        config: Its settings.
        fitted: What `Task.fit` returned.
        words: Lowercase words that have a trained vector.
        elmo: What `load_elmo` returned.
        device: Where the network is.
    """
    source: ELMo | FrozenLayers | None = elmo
    if elmo is not None and not config.tune:
        source = FrozenLayers(elmo, Path(config.cache) if config.cache is not None else cache_dir() / "vectors")
    inputs = Inputs(
        words=words,
        word_dim=config.word_dim if config.vectors == "trained" else 0,
        static=None if config.vectors == "trained" else load_static(config.vectors),
        char_dim=config.char_dim,
        elmo=source,
        dropout=config.dropout,
    )
    network = task.build(config, fitted, inputs)
    assert isinstance(network, nn.Module)
    return TrainedTask(task, config, fitted, words, network.to(device))


# ---- weights and their names in files --------------------------------------------------------------------------------


def network_state(network: Network, *, with_bilm: bool) -> dict[str, Tensor]:
    """The weights of a network by their names in files (see `NAME_IN_FILE`); those of the biLM only `with_bilm`."""
    assert isinstance(network, nn.Module)
    return {
        NAME_IN_FILE + name.removeprefix(NAME_IN_NETWORK) if name.startswith(NAME_IN_NETWORK) else name: tensor.detach()
        for name, tensor in network.state_dict().items()
        if with_bilm or not name.startswith(BILM_PREFIX)
    }


def load_network_state(network: Network, weights: Mapping[str, Tensor], *, with_bilm: bool, source: str) -> None:
    """Set the weights of a network to those that `network_state` returned.

    Raises:
        ValueError: If a name or a shape differs. The message names `source` and the weight.
    """
    expected = {name: tuple(tensor.shape) for name, tensor in network_state(network, with_bilm=with_bilm).items()}
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    if shapes != expected:
        name = sorted(dict(shapes.items() ^ expected.items()))[0]
        raise ValueError(f"{source}: {name} is {shapes.get(name, 'missing')}, the task expects {expected.get(name)}")
    assert isinstance(network, nn.Module)
    renamed = {
        NAME_IN_NETWORK + name.removeprefix(NAME_IN_FILE) if name.startswith(NAME_IN_FILE) else name: tensor
        for name, tensor in weights.items()
    }
    network.load_state_dict(renamed, strict=False)


def load_weights(network: Network, path: Path) -> None:
    """Set the weights of a network to those in a file that `TrainedTask.save` wrote.

    Raises:
        ValueError: If the file is incomplete, or not of this network.
    """
    try:
        weights = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path}: not a complete safetensors file ({error})") from None
    load_network_state(network, weights, with_bilm=False, source=str(path))


def _with_absolute_paths(config: TaskConfig) -> TaskConfig:
    """The config with paths that do not depend on the current folder."""
    elmo = str(Path(config.elmo).resolve()) if config.elmo is not None and Path(config.elmo).is_dir() else config.elmo
    vectors = config.vectors if config.vectors == "trained" else str(Path(config.vectors).expanduser().resolve())
    return dataclasses.replace(config, elmo=elmo, vectors=vectors)


def _paths_from(folder: Path, config: TaskConfig) -> dict[str, str]:
    """The paths of a config, from a folder: they hold if all is moved together."""
    paths = {"elmo": config.elmo, "vectors": None if config.vectors == "trained" else config.vectors}
    return {
        name: os.path.relpath(path, folder.resolve())
        for name, path in paths.items()
        if path is not None and Path(path).is_absolute()
    }


def _moved_paths(folder: Path, config: TaskConfig, relative: Mapping[str, str]) -> dict[str, Any]:
    """The paths of a config; a path that is gone is replaced by the one from the folder, if that is there."""
    paths = {"elmo": config.elmo, "vectors": config.vectors}
    for name, path in relative.items():
        if name in paths and _is_missing(paths[name]) and (folder.resolve() / path).exists():
            paths[name] = str((folder.resolve() / path).resolve())
    return paths


def _is_missing(path: str | None) -> bool:
    """Whether this is an absolute path where nothing is."""
    return path is not None and Path(path).is_absolute() and not Path(path).exists()
