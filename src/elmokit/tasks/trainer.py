"""One trainer for all tasks: from a `TaskConfig` to a folder that `load_task` reads.

It reads the files, builds the network, trains it (learning.py), computes the dev scores after every epoch, keeps the
best weights, and scores test with them once.

    out/config.json, model.safetensors   the trained task (with bilm/ if the biLM was trained too)
    out/metrics.jsonl                    loss and dev scores of each epoch
    out/result.json                      written last: the run is finished, and `train` returns it at once
    out/checkpoints/                     while the run is not finished

A run that was stopped resumes when `train` is called again, and ends with the same weights and numbers: everything
random in an epoch is drawn from the seed and the epoch's number.
"""

from __future__ import annotations

import dataclasses
import random
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from elmokit.arguments import check_callable, check_instance
from elmokit.files import check_new_folder, claimed, write_json
from elmokit.network import find_device
from elmokit.settings import from_mapping, read_json, to_mapping
from elmokit.storage.snapshots import Snapshots
from elmokit.tasks.learning import Epochs, Learning, OnProgress, Progress, Sums
from elmokit.tasks.settings import TaskConfig
from elmokit.tasks.task import HasPhrases, HasResources, HasSums, Task, check_requirements, find_task, read_files
from elmokit.tasks.trained import assemble, load_elmo
from elmokit.text import TREEBANK

__all__ = ["RESULT_FILE", "OnProgress", "Progress", "TaskResult", "check_folder", "train"]

RUN_FILE, RESULT_FILE, CHECKPOINT_FOLDER = "run.json", "result.json", "checkpoints"
TRAINED_WORD_COUNT = 2  # rarer words share the vector of unknown words, which learns from them

E = TypeVar("E")  # an example of a task


@dataclass(frozen=True)
class TaskResult:
    """A finished training."""

    folder: str
    task: str
    metric: str
    dev: dict[str, float]
    test: dict[str, float] | None
    best_epoch: int
    epochs: int
    mix_weights: list[list[float]]
    """The learned weights of the biLM's layers, which add up to 1, for each mix."""
    seconds: float

    @property
    def score(self) -> float:
        """The task's metric: on test if there is a test file, else on dev."""
        return (self.dev if self.test is None else self.test)[self.metric]


# ---- training --------------------------------------------------------------------------------------------------------


def train(config: TaskConfig, *, on_progress: OnProgress | None = None) -> TaskResult:
    """Train a task.

    Args:
        config: The settings. A run in `config.out` that was stopped resumes; the result of a finished one is returned.
        on_progress: Called during training.

    Returns:
        The scores, and where the trained task is.

    Raises:
        ImportError: If an optional module that the task needs is not installed.
        ValueError: If settings or files are wrong, `config.out` has a run with other settings, or another process is
            training there.
    """
    check_instance("config", config, TaskConfig, "the settings of a training, a TaskConfig")
    check_callable("on_progress", on_progress)
    out, task = Path(config.out), find_task(config.task)
    check_requirements(task)
    check_folder(config)
    if (out / RESULT_FILE).is_file():
        return _read_result(out)
    if out.is_dir():
        with _claimed(out):  # stop now, not after the data was read
            pass
    device = find_device(config.device)
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        run = _Run(config, task, out, device, on_progress)
        out.mkdir(parents=True, exist_ok=True)
        with _claimed(out):
            check_folder(config)  # another process may have been faster
            if (out / RESULT_FILE).is_file():
                return _read_result(out)
            write_json(out / RUN_FILE, _identity(config))  # after the data was read without an error
            return run.run()


def _claimed(out: Path) -> AbstractContextManager[None]:
    """Keep other processes from training in the folder; a ValueError names the one that does."""
    return claimed(out, lock=out / ".lock", doing="training in it")


def _read_result(out: Path) -> TaskResult:
    return from_mapping(TaskResult, read_json(out / RESULT_FILE), source=str(out / RESULT_FILE))


class _Run:
    """One training: its data, its network, and the method that trains it."""

    def __init__(
        self, config: TaskConfig, task: Task[Any, Any], out: Path, device: torch.device, report: OnProgress | None
    ) -> None:
        self.config, self.task, self.out = config, task, out
        start_time = time.perf_counter()
        resources = _resources(task, config)
        elmo = load_elmo(config, device)
        tokenizer = TREEBANK if elmo is None else elmo.tokenizer
        train_examples = read_files(task, config.train, tokenizer)
        dev = [] if config.dev is None else read_files(task, config.dev, tokenizer)
        self.test = [] if config.test is None else read_files(task, config.test, tokenizer)
        parts = [train_examples, dev, self.test]
        if config.dev is None:
            if len(train_examples) < 2:
                raise ValueError(f"{config.train}: one example is too few to hold out a dev set: pass dev")
            num_dev = max(1, len(train_examples) // 10)
            train_examples, dev = train_examples[:-num_dev], train_examples[-num_dev:]
        examples = _draw(train_examples, config.share, config.seed)
        if config.phrases:
            examples = examples + _phrases(task, config, examples)
            parts.append(_phrases(task, config, train_examples))
        fitted = {**task.fit(examples), **resources}
        words = _frequent_words(task, examples) if config.vectors == "trained" and config.word_dim else []
        torch.manual_seed(config.seed)
        self.learning = Learning(
            trained=assemble(task, config, fitted, words, elmo, device),
            out=out,
            examples=examples,
            dev=dev,
            snapshots=Snapshots(out / CHECKPOINT_FOLDER),
            report=report or (lambda _: None),
            start_time=start_time,
        )
        self.method: Epochs | Sums
        if isinstance(self.learning.trained.network, HasSums):
            self.method = Sums(self.learning)
        else:
            self.method = Epochs(self.learning, parts)

    def run(self) -> TaskResult:
        """Train, score test, and write the result."""
        method, trained = self.method, self.learning.trained
        method.train()
        test = trained.score(self.test) if self.test else None
        result = TaskResult(
            folder=str(self.out),
            task=self.config.task,
            metric=self.task.metric,
            dev=method.best,
            test=test,
            best_epoch=method.best_epoch,
            epochs=method.epoch,
            mix_weights=trained.network.inputs.mix_weights(),
            seconds=time.perf_counter() - self.learning.start_time,
        )
        write_json(self.out / RESULT_FILE, dataclasses.asdict(result))
        shutil.rmtree(self.out / CHECKPOINT_FOLDER, ignore_errors=True)
        return result


def _resources(task: Task[Any, Any], config: TaskConfig) -> dict[str, Any]:
    """What a task keeps of the files that its settings name."""
    if isinstance(task, HasResources):
        return task.resources(config)
    if config.sense_index is not None:
        raise ValueError(f"sense_index is {config.sense_index!r}, but {config.task} has no word senses: leave it out")
    return {}


def _draw(examples: list[E], share: float, seed: int) -> list[E]:
    """A random sample of the examples."""
    if share == 1:
        return examples
    return random.Random(f"share {seed}").sample(examples, max(1, round(share * len(examples))))


def _phrases(task: Task[E, Any], config: TaskConfig, examples: Sequence[E]) -> list[E]:
    """The labelled phrases inside examples."""
    phrases = task.phrases(examples) if isinstance(task, HasPhrases) else []
    if not phrases:
        raise ValueError(f"phrases is set, but {config.task} finds no labelled phrases in {config.train}: leave it out")
    return phrases


def _frequent_words(task: Task[E, Any], examples: Sequence[E]) -> list[str]:
    """Lowercase words that have a trained vector."""
    counts = Counter(word.lower() for e in examples for tokens in task.sentences(e) for word in tokens)
    return sorted(word for word, count in counts.items() if count >= TRAINED_WORD_COUNT)


def _identity(config: TaskConfig) -> dict[str, Any]:
    """The settings that two runs must share to be the same."""
    return {**to_mapping(config), "device": None, "cache": None, "out": None}


def check_folder(config: TaskConfig) -> None:
    """Refuse settings whose folder cannot be that of their run.

    Args:
        config: The settings of a training.

    Raises:
        ValueError: If `config.out` is a file, or has a run with other settings.
    """
    out = Path(config.out)
    check_new_folder(out)
    if not (out / RUN_FILE).is_file():
        return
    defaults = {one.name: one.default for one in dataclasses.fields(config) if one.default is not dataclasses.MISSING}
    new, old = _identity(config), {**defaults, **read_json(out / RUN_FILE)}  # an older run has fewer settings
    for key in sorted(new | old):
        if new.get(key) != old.get(key):
            raise ValueError(
                f"{out}: contains a run with {key} = {old.get(key)!r}, not {new.get(key)!r}: choose another folder, "
                "or delete this one"
            )
