"""What a task is, and a task with its weights.

A task is an object that follows `Task`: its reader, labels, network and score; `elmokit.tasks.TASKS` names them.  With
weights it is a `TrainedTask`, which the trainer makes and `load_task` reads from a folder.

    config.json, model.safetensors       what was trained, with labels and words; bilm/ where the biLM was trained too

What training does not change is not copied: a frozen biLM and a file of word vectors are kept by name, and their
checksums make sure that they are the same when the task is loaded.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from elmokit.files import replacing_together
from elmokit.model import ELMo
from elmokit.settings import from_mapping, read_json, to_mapping
from elmokit.storage.downloads import cache_dir
from elmokit.tasks.inputs import Inputs
from elmokit.tasks.settings import Files, TaskConfig
from elmokit.tasks.vectors import FrozenLayers, load_static
from elmokit.text import as_list

FORMAT = "elmokit task 1"
CONFIG_FILE, WEIGHTS_FILE, BILM_FOLDER = "config.json", "model.safetensors", "bilm"

E = TypeVar("E")  # an example of a task
P = TypeVar("P", contravariant=True)  # a prediction for one


class Network(Protocol):
    """What a task's `build` gives: an `nn.Module` that holds the inputs it was given as `self.inputs`."""

    inputs: Inputs

    def loss(self, examples: Sequence[Any]) -> Tensor:
        """The mean loss of a batch, a scalar."""
        ...

    def predict(self, examples: Sequence[Any]) -> list[Any]:
        """One prediction for each example of a batch; called without gradients and in eval mode."""
        ...


class Task(Protocol[E, P]):
    """A task: what is read, what is learned, what counts.  Examples are any objects; `fit` gives plain JSON values."""

    @property
    def metric(self) -> str:
        """The score, a key of what `score` gives, by which the best epoch is chosen: more is better."""
        ...

    @property
    def suffixes(self) -> tuple[str, ...]:
        """How its data files end, `.gz` aside."""
        ...

    @property
    def defaults(self) -> Mapping[str, Any]:
        """Settings of `TaskConfig` where this task differs from the class's own."""
        ...

    def read(self, path: str) -> list[E]:
        """The examples of a file."""
        ...

    def sentences(self, example: E) -> list[list[str]]:
        """Every token list of the example that its network will give to `inputs`."""
        ...

    def fit(self, examples: Sequence[E]) -> dict[str, Any]:
        """What must be known of the training examples before the network can be built: labels."""
        ...

    def build(self, config: TaskConfig, fitted: dict[str, Any], inputs: Inputs) -> Network:
        """The network, with fresh weights."""
        ...

    def score(self, examples: Sequence[E], predictions: Sequence[P]) -> dict[str, float]:
        """The scores of predictions; examples hold the gold."""
        ...

    def from_text(self, given: Any) -> E:
        """What a user gave to `predict` (a string, a token list, a mapping of fields) as an example without gold."""
        ...

    def to_json(self, example: E, prediction: P) -> dict[str, Any]:
        """The prediction as plain values that say all: tokens and labels."""
        ...


@runtime_checkable
class HasPhrases(Protocol):
    """A task whose examples have labelled parts, which can train it too (`TaskConfig.phrases`)."""

    def phrases(self, examples: Sequence[Any]) -> list[Any]:
        """The labelled parts of the examples, as examples."""
        ...


class TrainedTask:
    """A task with its weights: what `load_task` gives."""

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
        """A plain dict for each text: a string, a list of tokens or a mapping of fields, as the task has it."""
        examples = [self.task.from_text(text) for text in as_list(texts)]
        return [
            self.task.to_json(example, prediction)
            for example, prediction in zip(examples, self.answer(examples), strict=True)
        ]

    def evaluate(self, files: Files) -> dict[str, float]:
        """The scores on data files."""
        return self.score(read_files(self.task, files))

    def score(self, examples: Sequence[Any]) -> dict[str, float]:
        """The scores on examples."""
        return self.task.score(examples, self.answer(examples))

    @torch.no_grad()
    def answer(self, examples: Sequence[Any]) -> list[Any]:
        """The network's prediction for each example."""
        assert isinstance(self.network, nn.Module)
        self.network.eval()
        order = sorted(range(len(examples)), key=lambda place: self.size(examples[place]))
        predictions: list[Any] = [None] * len(order)
        for begin in range(0, len(order), self.config.batch_size):
            places = order[begin : begin + self.config.batch_size]
            batch = self.network.predict([examples[place] for place in places])
            for place, prediction in zip(places, batch, strict=True):
                predictions[place] = prediction
        return predictions

    def size(self, example: Any) -> int:
        """Tokens of an example."""
        return sum(map(len, self.task.sentences(example)))

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the folder that `load_task` reads."""
        folder, inputs = Path(folder), self.network.inputs
        folder.mkdir(parents=True, exist_ok=True)
        values = {
            "format": FORMAT,
            "config": to_mapping(_with_whole_paths(self.config)),
            "fitted": self.fitted,
            "words": self.words,
            "sha256_of_bilm": None if inputs.frozen is None else inputs.frozen.digest,
            "sha256_of_vectors": None if inputs.static is None else inputs.static.sha256,
        }
        if inputs.elmo is not None:
            inputs.elmo.save_pretrained(folder / BILM_FOLDER)
        assert isinstance(self.network, nn.Module)
        weights = {
            name: tensor.detach().cpu().contiguous()
            for name, tensor in self.network.state_dict().items()
            if not name.startswith("inputs.elmo.")
        }
        with replacing_together([folder / WEIGHTS_FILE, folder / CONFIG_FILE]) as (weights_path, config_path):
            save_file(weights, weights_path)
            config_path.write_text(json.dumps(values, indent=1), encoding="utf-8")


def load_task(
    folder: str | os.PathLike[str], *, device: str = "auto", elmo: str | None = None, vectors: str | None = None
) -> TrainedTask:
    """A trained task; `elmo` and `vectors` say where its biLM and word vectors lie now, if they were moved."""
    folder = Path(folder)
    if not (folder / CONFIG_FILE).is_file():
        raise ValueError(f"{folder}: no {CONFIG_FILE}, so this is no folder of a trained task")
    values = read_json(folder / CONFIG_FILE)
    if values.get("format") != FORMAT:
        raise ValueError(f"{folder / CONFIG_FILE}: its format is {values.get('format')!r}, not {FORMAT!r}")
    missing = {"config", "fitted", "words", "sha256_of_bilm", "sha256_of_vectors"} - values.keys()
    if missing:
        raise ValueError(f"{folder / CONFIG_FILE}: {', '.join(sorted(missing))} is missing")
    config = from_mapping(TaskConfig, values["config"], source=f"{folder / CONFIG_FILE}: config")
    config = dataclasses.replace(config, elmo=elmo or config.elmo, vectors=vectors or config.vectors)
    task = find_task(config.task)
    tuned = str(folder / BILM_FOLDER) if config.tune else None
    trained = assemble(task, config, values["fitted"], values["words"], find_device(device), elmo_folder=tuned)
    inputs = trained.network.inputs
    for part, name, option in (
        (inputs.frozen and inputs.frozen.digest, "sha256_of_bilm", "elmo"),
        (inputs.static and inputs.static.sha256, "sha256_of_vectors", "vectors"),
    ):
        if part != values[name]:
            raise ValueError(
                f"{folder}: trained with another {option} than {getattr(config, option) or 'the default model'} "
                f"(sha256 {values[name]}, now {part}): pass {option}=…, where the one of the training lies"
            )
    assert isinstance(trained.network, nn.Module)
    load_weights(trained.network, folder / WEIGHTS_FILE)
    return trained


def find_task(name: str) -> Task[Any, Any]:
    """The task of that name."""
    from elmokit.tasks import TASKS  # a task's module imports this one

    if name not in TASKS:
        raise ValueError(f"task must be one of {', '.join(sorted(TASKS))}, not {name!r}")
    return TASKS[name]


def assemble(
    task: Task[Any, Any],
    config: TaskConfig,
    fitted: dict[str, Any],
    words: list[str],
    device: torch.device,
    *,
    elmo_folder: str | None,
) -> TrainedTask:
    """The task with fresh weights; the biLM comes from `elmo_folder` or else as the config names it."""
    elmo: ELMo | FrozenLayers | None = None
    if config.elmo_at != "none":
        model = ELMo.from_pretrained(elmo_folder or config.elmo, freeze=not config.tune, num_mixes=0, device=device)
        model.output_layer, model.vocabulary = None, model.vocabulary if model.reads_words else None
        elmo = model if config.tune else FrozenLayers(model, _cache_folder(config))
    inputs = Inputs(
        words=words,
        word_dim=config.word_dim if config.vectors == "trained" else 0,
        static=None if config.vectors == "trained" else load_static(config.vectors),
        char_dim=config.char_dim,
        elmo=elmo,
        num_mixes={"none": 0, "input": 1, "both": 2}[config.elmo_at],
        dropout=config.dropout,
        elmo_dropout=config.elmo_dropout,
    )
    network = task.build(config, fitted, inputs)
    assert isinstance(network, nn.Module)
    return TrainedTask(task, config, fitted, words, network.to(device))


def _cache_folder(config: TaskConfig) -> Path:
    return Path(config.cache) if config.cache is not None else cache_dir() / "vectors"


def read_files(task: Task[E, Any], files: Files) -> list[E]:
    """The examples of one file, or of several one after the other."""
    paths = (files,) if isinstance(files, str) else files
    return list(chain.from_iterable(map(task.read, paths)))


def find_device(name: str) -> torch.device:
    """A device by its name; "auto" is a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"device {name!r}: {error}") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device is {name!r}, but torch sees no GPU here: use cpu or auto")
    return device


def load_weights(module: nn.Module, path: Path) -> None:
    """Take the weights that `TrainedTask.save` wrote; those of a biLM are not among them."""
    try:
        weights = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path}: not a whole safetensors file ({error})") from None
    expected = {name: tuple(t.shape) for name, t in module.state_dict().items() if not name.startswith("inputs.elmo.")}
    found = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    if found != expected:
        name = sorted(dict(found.items() ^ expected.items()))[0]
        raise ValueError(f"{path}: {name} is {found.get(name, 'missing')}, the task asks for {expected.get(name)}")
    module.load_state_dict(weights, strict=False)


def _with_whole_paths(config: TaskConfig) -> TaskConfig:
    """Paths that hold from anywhere."""
    elmo = str(Path(config.elmo).resolve()) if config.elmo is not None and Path(config.elmo).is_dir() else config.elmo
    vectors = config.vectors if config.vectors == "trained" else str(Path(config.vectors).expanduser().resolve())
    return dataclasses.replace(config, elmo=elmo, vectors=vectors)
