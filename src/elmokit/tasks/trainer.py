"""One trainer for all tasks: from a `TaskConfig` to a folder that `load_task` reads.

It reads the files, builds the network, has the frozen biLM's vectors on disk, trains, measures on dev after every
epoch, keeps the best weights, and scores test with them once.

    out/config.json, model.safetensors   the trained task (with bilm/ where the biLM was trained too)
    out/metrics.jsonl                    loss and scores of each epoch
    out/result.json                      written last: the run is finished; `train` then gives it back at once
    out/checkpoints/                     while it runs

A training that was killed goes on when `train` is called again, to the same weights and numbers: everything random in
an epoch is drawn from the seed and the epoch's number.
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
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from elmokit.files import write_json
from elmokit.settings import from_mapping, read_json, to_mapping
from elmokit.storage.snapshots import Snapshot, Snapshots
from elmokit.tasks.settings import TaskConfig
from elmokit.tasks.task import (
    BILM_FOLDER,
    WEIGHTS_FILE,
    HasPhrases,
    Task,
    assemble,
    find_device,
    find_task,
    load_weights,
    read_files,
)

logger = logging.getLogger(__name__)

RUN_FILE, RESULT_FILE, METRICS_FILE, CHECKPOINT_FOLDER = "run.json", "result.json", "metrics.jsonl", "checkpoints"
POOLED_BATCHES = 50  # so many are sorted by length together: alike enough to pad little, and still shuffled
DECAY_EPOCHS = 2  # without a better dev score, until the learning rate falls
TRAINED_WORD_COUNT = 2  # words seen less often share the vector of unknown words, which learns from them

E = TypeVar("E")  # an example of a task


@dataclass(frozen=True)
class Progress:
    """Where a training stands."""

    stage: str
    """"vectors", or "epoch"."""
    done: int
    total: int
    """Sentences embedded, or updates of this epoch."""
    epoch: int = 0
    loss: float = math.nan
    scores: dict[str, float] | None = None
    """On dev, once an epoch is over."""


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
    """The learned share of each biLM layer, for each mix."""
    seconds: float

    @property
    def score(self) -> float:
        """The task's own score: on test where there is one, else on dev."""
        return (self.dev if self.test is None else self.test)[self.metric]


# ---- training --------------------------------------------------------------------------------------------------------


def train(config: TaskConfig, *, on_progress: OnProgress | None = None) -> TaskResult:
    """Train as `config` says, or go on where that was stopped, or give back the result of a run that is finished."""
    out, task = Path(config.out), find_task(config.task)
    _refuse_another_run(out, config)
    if (out / RESULT_FILE).is_file():
        return from_mapping(TaskResult, read_json(out / RESULT_FILE), source=str(out / RESULT_FILE))
    device = find_device(config.device)
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        run = _Run(config, task, out, device, on_progress)
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / RUN_FILE, _identity(config))  # not before the data could be read
        return run.run()


class _Run:
    """One training: its data, network and optimizer."""

    def __init__(
        self, config: TaskConfig, task: Task[Any, Any], out: Path, device: torch.device, report: OnProgress | None
    ) -> None:
        self.config, self.task, self.out = config, task, out
        self.report = report or (lambda _: None)
        self.began = time.perf_counter()
        everything = read_files(task, config.train)
        self.dev = [] if config.dev is None else read_files(task, config.dev)
        self.test = [] if config.test is None else read_files(task, config.test)
        parts = [everything, self.dev, self.test]
        if config.dev is None:
            if len(everything) < 2:
                raise ValueError(f"{config.train}: one example is too few to hold out a part of them: give dev")
            held_out = max(1, len(everything) // 10)
            everything, self.dev = everything[:-held_out], everything[-held_out:]
        self.examples = _draw(everything, config.share, config.seed)
        if config.phrases:
            self.examples = self.examples + _phrases(task, config, self.examples)
        fitted = task.fit(self.examples)
        words = _frequent_words(task, self.examples) if config.vectors == "trained" and config.word_dim else []
        torch.manual_seed(config.seed)
        self.trained = assemble(task, config, fitted, words, device, elmo_folder=None)
        frozen = self.trained.network.inputs.frozen
        if frozen is not None:
            if config.phrases:
                parts.append(_phrases(task, config, everything))
            for part in parts:  # as the files have them, so that another share or seed finds the same vectors
                sentences = chain.from_iterable(map(task.sentences, part))
                frozen.prepare(list(sentences), lambda done, of: self.report(Progress("vectors", done, of)))
        self.optimizer = _optimizer(config, self.module)
        self.snapshots = Snapshots(out / CHECKPOINT_FOLDER)
        self.epoch, self.best_epoch, self.best, self.metrics_size = 0, 0, dict[str, float](), 0

    @property
    def module(self) -> nn.Module:
        """The network as torch sees it."""
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
            seconds=time.perf_counter() - self.began,
        )
        write_json(self.out / RESULT_FILE, dataclasses.asdict(result))
        shutil.rmtree(self.out / CHECKPOINT_FOLDER, ignore_errors=True)
        return result

    def _epoch(self) -> None:
        self.epoch += 1
        config = self.config
        torch.manual_seed(config.seed * 1_000_003 + self.epoch)
        rounds = round(1 / config.share)  # a share is read as often as gives the updates of all: an epoch stays one
        examples = [example for _ in range(rounds) for example in self.examples]
        batches = _shuffled_batches(examples, self.trained.size, config.batch_size, (config.seed, self.epoch))
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
        scores = self.trained.score(self.dev)
        metric = self.task.metric
        if not self.best or scores[metric] > self.best[metric]:
            self.best, self.best_epoch = scores, self.epoch
            self.trained.save(self.out)
        elif (self.epoch - self.best_epoch) % DECAY_EPOCHS == 0:
            for group in self.optimizer.param_groups:
                group["lr"] *= config.rate_decay
        mean = total / len(batches)
        self._save({"epoch": self.epoch, "loss": mean, **scores})
        self.report(Progress("epoch", len(batches), len(batches), self.epoch, mean, scores))

    # ---- stop and go on ----

    def _save(self, metrics: dict[str, float]) -> None:
        with open(self.out / METRICS_FILE, "a", encoding="utf-8") as file:
            file.truncate(self.metrics_size)  # of an epoch that is done again
            file.seek(0, os.SEEK_END)
            file.write(json.dumps(metrics) + "\n")
            file.flush()
            os.fsync(file.fileno())
            self.metrics_size = file.tell()
        tensors = {f"network.{name}": tensor for name, tensor in self.module.state_dict().items()}
        for number, state in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{number}.{name}": tensor for name, tensor in state.items()}
        values = {
            "best": self.best,
            "best_epoch": self.best_epoch,
            "metrics_size": self.metrics_size,
            "rates": [group["lr"] for group in self.optimizer.param_groups],
            "seconds": time.perf_counter() - self.began,
        }
        self.snapshots.save(Snapshot(self.epoch, tensors, values))

    def _resume(self) -> None:
        newest = self.snapshots.newest()
        if newest is None:
            return
        snapshot = self.snapshots.load(newest)
        self.module.load_state_dict(_under("network.", snapshot.tensors))
        states: dict[int, dict[str, Tensor]] = {}
        for name, tensor in _under("optimizer.", snapshot.tensors).items():
            number, key = name.split(".")
            states.setdefault(int(number), {})[key] = tensor
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": states})
        for group, rate in zip(self.optimizer.param_groups, snapshot.values["rates"], strict=True):
            group["lr"] = rate
        self.epoch, self.best_epoch = newest, snapshot.values["best_epoch"]
        self.best, self.metrics_size = snapshot.values["best"], snapshot.values["metrics_size"]
        self.began -= snapshot.values["seconds"]
        logger.info("%s: goes on after epoch %d", self.out, newest)

    def _load_best(self) -> None:
        if self.best_epoch == self.epoch:
            return
        if self.config.tune:
            bilm = load_file(self.out / BILM_FOLDER / WEIGHTS_FILE)
            elmo = self.trained.network.inputs.elmo
            assert elmo is not None
            elmo.bilm.load_state_dict(bilm)
        load_weights(self.module, self.out / WEIGHTS_FILE)


def _draw(examples: list[E], share: float, seed: int) -> list[E]:
    if share == 1:
        return examples
    return random.Random(f"share {seed}").sample(examples, max(1, round(share * len(examples))))


def _phrases(task: Task[E, Any], config: TaskConfig, examples: Sequence[E]) -> list[E]:
    found = task.phrases(examples) if isinstance(task, HasPhrases) else []
    if not found:
        raise ValueError(f"phrases is set, but {config.task} finds no labelled phrases in {config.train}: leave it out")
    return found


def _frequent_words(task: Task[E, Any], examples: Sequence[E]) -> list[str]:
    counts = Counter(word.lower() for e in examples for tokens in task.sentences(e) for word in tokens)
    return sorted(word for word, count in counts.items() if count >= TRAINED_WORD_COUNT)


def _shuffled_batches(
    examples: Sequence[E], size: Callable[[E], int], batch_size: int, seed: tuple[int, int]
) -> list[list[E]]:
    """All examples in a random order, in batches of about one length."""
    chance = random.Random(f"batches {seed}")
    order = list(examples)
    chance.shuffle(order)
    pool = batch_size * POOLED_BATCHES
    batches = []
    for begin in range(0, len(order), pool):
        alike = sorted(order[begin : begin + pool], key=size)
        batches += [alike[first : first + batch_size] for first in range(0, len(alike), batch_size)]
    chance.shuffle(batches)
    return batches


def _optimizer(config: TaskConfig, module: nn.Module) -> torch.optim.Optimizer:
    groups: dict[bool, list[nn.Parameter]] = {False: [], True: []}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            groups[name.startswith("inputs.elmo.")].append(parameter)
    settings: list[dict[str, Any]] = [{"params": groups[False], "lr": config.learning_rate}]
    if groups[True]:
        settings.append({"params": groups[True], "lr": config.tune_learning_rate})
    if config.optimizer == "adam":
        return torch.optim.Adam(settings, weight_decay=config.weight_decay)
    return torch.optim.AdamW(settings, weight_decay=config.weight_decay)


def _identity(config: TaskConfig) -> dict[str, Any]:
    """What makes two runs the same, wherever they run."""
    return {**to_mapping(config), "device": None, "cache": None, "out": None}


def _refuse_another_run(out: Path, config: TaskConfig) -> None:
    if not (out / RUN_FILE).is_file():
        return
    unsaid = {one.name: one.default for one in dataclasses.fields(config) if one.default is not dataclasses.MISSING}
    ours, theirs = _identity(config), {**unsaid, **read_json(out / RUN_FILE)}  # an older run has fewer settings
    for key in sorted(ours | theirs):
        if ours.get(key) != theirs.get(key):
            raise ValueError(
                f"{out}: holds a run with {key} = {theirs.get(key)!r}, not {ours.get(key)!r}: name another folder, "
                "or delete this one"
            )


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
