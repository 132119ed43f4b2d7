"""One trainer for all tasks: from a `TaskConfig` to a folder that `load_task` reads.

It reads the files, builds the network, stores the layers of a frozen biLM on disk, trains, computes the dev scores
after every epoch, keeps the best weights, and scores test with them once.

    out/config.json, model.safetensors   the trained task (with bilm/ if the biLM was trained too)
    out/metrics.jsonl                    loss and dev scores of each epoch
    out/result.json                      written last: the run is finished, and `train` returns it at once
    out/checkpoints/                     while the run is not finished

A run that was stopped resumes when `train` is called again, and ends with the same weights and numbers: everything
random in an epoch is drawn from the seed and the epoch's number.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from elmokit.arguments import check_callable, check_instance
from elmokit.files import claimed, write_json
from elmokit.model import ELMo
from elmokit.network import find_device
from elmokit.settings import from_mapping, read_json, to_mapping
from elmokit.storage.snapshots import Snapshot, Snapshots
from elmokit.tasks.settings import TaskConfig
from elmokit.tasks.task import HasPhrases, Task, check_requirements, find_task, read_files
from elmokit.tasks.trained import (
    BILM_FOLDER,
    BILM_PREFIX,
    WEIGHTS_FILE,
    assemble,
    load_elmo,
    load_network_state,
    load_weights,
    network_state,
)
from elmokit.text import TREEBANK

logger = logging.getLogger(__name__)

RUN_FILE, RESULT_FILE, METRICS_FILE, CHECKPOINT_FOLDER = "run.json", "result.json", "metrics.jsonl", "checkpoints"
POOLED_BATCHES = 50  # batches that are sorted by length together: little padding, and still shuffled
DECAY_EPOCHS = 2  # epochs without a better dev score until the learning rate is lowered
TRAINED_WORD_COUNT = 2  # rarer words share the vector of unknown words, which learns from them

E = TypeVar("E")  # an example of a task


@dataclass(frozen=True)
class Progress:
    """Progress of a training."""

    stage: str
    """"vectors" while the frozen biLM runs, or "epoch"."""
    done: int
    """Number of sentences that are embedded, or of updates in this epoch."""
    total: int
    """Number of all sentences, or of all updates of the epoch."""
    epoch: int = 0
    loss: float = math.nan
    scores: dict[str, float] | None = None
    """Dev scores, at the end of an epoch."""


OnProgress = Callable[[Progress], None]


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
    _refuse_another_run(out, config)
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
            _refuse_another_run(out, config)  # another process may have been faster
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
    """One training: its data, network and optimizer."""

    def __init__(
        self, config: TaskConfig, task: Task[Any, Any], out: Path, device: torch.device, report: OnProgress | None
    ) -> None:
        self.config, self.task, self.out = config, task, out
        self.report = report or (lambda _: None)
        self.start_time = time.perf_counter()
        elmo = load_elmo(config, device)
        tokenizer = TREEBANK if elmo is None else elmo.tokenizer
        train_examples = read_files(task, config.train, tokenizer)
        self.dev = [] if config.dev is None else read_files(task, config.dev, tokenizer)
        self.test = [] if config.test is None else read_files(task, config.test, tokenizer)
        parts = [train_examples, self.dev, self.test]
        if config.dev is None:
            if len(train_examples) < 2:
                raise ValueError(f"{config.train}: one example is too few to hold out a dev set: pass dev")
            num_dev = max(1, len(train_examples) // 10)
            train_examples, self.dev = train_examples[:-num_dev], train_examples[-num_dev:]
        self.examples = _draw(train_examples, config.share, config.seed)
        if config.phrases:
            self.examples = self.examples + _phrases(task, config, self.examples)
        fitted = task.fit(self.examples)
        words = _frequent_words(task, self.examples) if config.vectors == "trained" and config.word_dim else []
        torch.manual_seed(config.seed)
        self.trained = assemble(task, config, fitted, words, elmo, device)
        frozen = self.trained.network.inputs.frozen
        if frozen is not None:
            if config.phrases:
                parts.append(_phrases(task, config, train_examples))
            for part in parts:  # complete files, so that another share or seed reads the same vectors
                sentences = chain.from_iterable(map(task.sentences, part))
                frozen.prepare(list(sentences), lambda done, total: self.report(Progress("vectors", done, total)))
        self.optimizer = _optimizer(config, self.module)
        self.snapshots = Snapshots(out / CHECKPOINT_FOLDER)
        self.epoch, self.best_epoch, self.best, self.metrics_size = 0, 0, dict[str, float](), 0

    @property
    def module(self) -> nn.Module:
        """The network as an `nn.Module`."""
        assert isinstance(self.trained.network, nn.Module)
        return self.trained.network

    def run(self) -> TaskResult:
        self._resume()
        while self.epoch < self.config.epochs and self.epoch - self.best_epoch < self.config.patience:
            self._epoch()
        self._load_best()
        test = self.trained.score(self.test) if self.test else None
        result = TaskResult(
            folder=str(self.out),
            task=self.config.task,
            metric=self.task.metric,
            dev=self.best,
            test=test,
            best_epoch=self.best_epoch,
            epochs=self.epoch,
            mix_weights=self.trained.network.inputs.mix_weights(),
            seconds=time.perf_counter() - self.start_time,
        )
        write_json(self.out / RESULT_FILE, dataclasses.asdict(result))
        shutil.rmtree(self.out / CHECKPOINT_FOLDER, ignore_errors=True)
        return result

    def _epoch(self) -> None:
        """One epoch: its updates, the dev scores, and a checkpoint."""
        self.epoch += 1
        config = self.config
        torch.manual_seed(config.seed * 1_000_003 + self.epoch)
        rounds = round(1 / config.share)  # a share is read as often as gives the number of updates of all examples
        examples = [example for _ in range(rounds) for example in self.examples]
        batches = _shuffled_batches(examples, self.trained.size, config.batch_size, (config.seed, self.epoch))
        mean_loss = self._update(batches)
        scores = self.trained.score(self.dev)
        metric = self.task.metric
        if not self.best or scores[metric] > self.best[metric]:
            self.best, self.best_epoch = scores, self.epoch
            self.trained.save(self.out)
        elif (self.epoch - self.best_epoch) % DECAY_EPOCHS == 0:
            for group in self.optimizer.param_groups:
                group["lr"] *= config.rate_decay
        self._save({"epoch": self.epoch, "loss": mean_loss, **scores})
        self.report(Progress("epoch", len(batches), len(batches), self.epoch, mean_loss, scores))

    def _update(self, batches: Sequence[Sequence[Any]]) -> float:
        """Update the weights on each batch, and return the mean loss."""
        config = self.config
        self.module.train()
        total = 0.0
        for number, batch in enumerate(batches, start=1):
            loss = self.trained.network.loss(batch)
            if config.mix_l2:
                loss = loss + config.mix_l2 * self.trained.network.inputs.mix_l2()
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(self.module.parameters(), config.clip_norm)
            self.optimizer.step()
            total += loss.item()
            if not math.isfinite(total):
                where = f"batch {number} of epoch {self.epoch}"
                raise ValueError(f"{self.out}: the loss of {where} is {loss.item()}: lower learning_rate")
            if number < len(batches):
                self.report(Progress("epoch", number, len(batches), self.epoch, total / number))
        return total / len(batches)

    # ---- stop and resume ----

    def _save(self, metrics: dict[str, float]) -> None:
        with open(self.out / METRICS_FILE, "a", encoding="utf-8") as file:
            file.truncate(self.metrics_size)  # removes the line of an epoch that is repeated
            file.seek(0, os.SEEK_END)
            file.write(json.dumps(metrics) + "\n")
            file.flush()
            os.fsync(file.fileno())
            self.metrics_size = file.tell()
        state = network_state(self.trained.network, with_bilm=self.config.tune)
        tensors = {f"network.{name}": tensor for name, tensor in state.items()}
        for number, moments in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{number}.{name}": tensor for name, tensor in moments.items()}
        values = {
            "best": self.best,
            "best_epoch": self.best_epoch,
            "metrics_size": self.metrics_size,
            "rates": [group["lr"] for group in self.optimizer.param_groups],
            "seconds": time.perf_counter() - self.start_time,
        }
        self.snapshots.save(Snapshot(self.epoch, tensors, values))

    def _resume(self) -> None:
        newest = self.snapshots.newest()
        if newest is None:
            return
        snapshot = self.snapshots.load(newest)
        weights = _with_prefix("network.", snapshot.tensors)
        source = str(self.out / CHECKPOINT_FOLDER)
        load_network_state(self.trained.network, weights, with_bilm=self.config.tune, source=source)
        states: dict[int, dict[str, Tensor]] = {}
        for name, tensor in _with_prefix("optimizer.", snapshot.tensors).items():
            number, key = name.split(".")
            states.setdefault(int(number), {})[key] = tensor
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": states})
        for group, rate in zip(self.optimizer.param_groups, snapshot.values["rates"], strict=True):
            group["lr"] = rate
        self.epoch, self.best_epoch = newest, snapshot.values["best_epoch"]
        self.best, self.metrics_size = snapshot.values["best"], snapshot.values["metrics_size"]
        self.start_time -= snapshot.values["seconds"]
        logger.info("%s: resumes after epoch %d", self.out, newest)

    def _load_best(self) -> None:
        """Set the weights to those of the best epoch."""
        if self.best_epoch == self.epoch:
            return
        elmo = self.trained.network.inputs.elmo
        if elmo is not None and self.config.tune:
            best = ELMo.from_pretrained(self.out / BILM_FOLDER)
            elmo.bilm.load_state_dict(best.bilm.state_dict())
        load_weights(self.trained.network, self.out / WEIGHTS_FILE)


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


def _shuffled_batches(
    examples: Sequence[E], size: Callable[[E], int], batch_size: int, seed: tuple[int, int]
) -> list[list[E]]:
    """All examples in random order, in batches of similar length."""
    generator = random.Random(f"batches {seed}")
    order = list(examples)
    generator.shuffle(order)
    pool = batch_size * POOLED_BATCHES
    batches = []
    for begin in range(0, len(order), pool):
        by_length = sorted(order[begin : begin + pool], key=size)
        batches += [by_length[first : first + batch_size] for first in range(0, len(by_length), batch_size)]
    generator.shuffle(batches)
    return batches


def _optimizer(config: TaskConfig, module: nn.Module) -> torch.optim.Optimizer:
    """Two groups of parameters: the task with ELMo's mixes, and the biLM if it is trained."""
    task: list[nn.Parameter] = []
    bilm: list[nn.Parameter] = []
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            (bilm if name.startswith(BILM_PREFIX) else task).append(parameter)
    groups: list[dict[str, Any]] = [{"params": task, "lr": config.learning_rate}]
    if bilm:
        groups.append({"params": bilm, "lr": config.tune_learning_rate})
    if config.optimizer == "adam":
        return torch.optim.Adam(groups, weight_decay=config.weight_decay)
    return torch.optim.AdamW(groups, weight_decay=config.weight_decay)


def _identity(config: TaskConfig) -> dict[str, Any]:
    """The settings that two runs must share to be the same."""
    return {**to_mapping(config), "device": None, "cache": None, "out": None}


def _refuse_another_run(out: Path, config: TaskConfig) -> None:
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


def _with_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names have the prefix, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
