"""How a network gets its weights: by gradients, epoch after epoch, or from one sum over the training examples.

Input: a task with fresh weights, training and dev examples. Output: the same task with its best weights, saved in its
folder, and the dev scores. Both methods write checkpoints, and resume from the newest one.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from elmokit.model import ELMo
from elmokit.network import to_host
from elmokit.storage.snapshots import Snapshot, Snapshots
from elmokit.tasks.recorder import Recorder
from elmokit.tasks.settings import TaskConfig
from elmokit.tasks.task import HasBatches, HasLoss, HasSums
from elmokit.tasks.trained import (
    BILM_FOLDER,
    BILM_PREFIX,
    WEIGHTS_FILE,
    TrainedTask,
    load_network_state,
    load_weights,
    network_state,
)

logger = logging.getLogger(__name__)

METRICS_FILE = "metrics.jsonl"
POOLED_BATCHES = 50  # batches that are sorted by length together: little padding, and still shuffled
DECAY_EPOCHS = 2  # epochs without a better dev score until the learning rate is lowered
EXAMPLES_AT_ONCE = 4096  # of a network that is computed from a sum, between two checkpoints

E = TypeVar("E")  # an example of a task, or any item


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
    """Mean loss of the epoch until now; NaN for a network without a loss."""
    scores: dict[str, float] | None = None
    """Dev scores, at the end of an epoch."""


OnProgress = Callable[[Progress], None]


@dataclass
class Learning:
    """What is trained, and on what."""

    trained: TrainedTask
    out: Path
    examples: list[Any]
    dev: list[Any]
    snapshots: Snapshots
    report: OnProgress
    start_time: float
    """By `time.perf_counter`, as if the run had never been stopped."""


class Sums:
    """Computes a network (`HasSums`) from one sum over the training examples: one epoch, block by block.

    Args:
        learning: What is trained.
    """

    def __init__(self, learning: Learning) -> None:
        self.learning = learning
        self.best, self.best_epoch, self.epoch = dict[str, float](), 1, 1

    def train(self) -> None:
        """Add up the blocks, with a checkpoint after each, and compute the dev scores."""
        learning, network = self.learning, self.learning.trained.network
        assert isinstance(network, HasSums)
        total, done, sums = len(learning.examples), 0, None
        newest = learning.snapshots.newest()
        if newest is not None:
            snapshot = learning.snapshots.load(newest)
            done, sums = newest, snapshot.tensors["sums"]
            learning.start_time -= snapshot.values["seconds"]
            logger.info("%s: resumes after %d examples", learning.out, newest)
        while done < total:
            block = learning.examples[done : done + EXAMPLES_AT_ONCE]

            def report(number: int, done: int = done) -> None:
                learning.report(Progress("vectors", done + number, total))

            added = network.sums(block, report)
            sums = added if sums is None else sums + added
            done += len(block)
            seconds = time.perf_counter() - learning.start_time
            learning.snapshots.save(Snapshot(done, {"sums": sums}, {"seconds": seconds}))
        assert sums is not None
        network.set_sums(sums)
        self.best = learning.trained.score(learning.dev)
        learning.trained.save(learning.out)
        learning.report(Progress("epoch", 1, 1, 1, scores=self.best))


class Epochs:
    """Trains a network by gradients (`HasLoss`), and keeps the best epoch.

    Args:
        learning: What is trained.
        parts: The examples of each file, whose layers by a frozen biLM are stored.
    """

    def __init__(self, learning: Learning, parts: Sequence[Sequence[Any]]) -> None:
        self.learning, self.trained, self.out = learning, learning.trained, learning.out
        self.config, self.task = learning.trained.config, learning.trained.task
        frozen = self.trained.network.inputs.frozen
        if frozen is not None:
            for part in parts:  # complete files, so that another share or seed reads the same vectors
                sentences = chain.from_iterable(map(self.task.sentences, part))
                frozen.prepare(
                    list(sentences), lambda done, total: self.learning.report(Progress("vectors", done, total))
                )
        self.optimizer = _optimizer(self.config, self.module)
        self.recorder = self._make_recorder()
        self.epoch, self.best_epoch, self.best, self.metrics_size = 0, 0, dict[str, float](), 0

    @property
    def module(self) -> nn.Module:
        """The network as an `nn.Module`."""
        assert isinstance(self.trained.network, nn.Module)
        return self.trained.network

    def _make_recorder(self) -> Recorder | None:
        """What records the updates; None where there is no GPU, or the network or a trained biLM needs the host."""
        network, inputs = self.trained.network, self.trained.network.inputs
        if inputs.device.type != "cuda" or not isinstance(network, HasBatches):
            return None
        if inputs.elmo is not None and inputs.frozen is None:
            return None
        return Recorder(inputs.device, lambda batch: self._backward(network.loss_of(batch)))

    def train(self) -> None:
        """Train until the last epoch, or until the dev score no longer improves; leaves the best weights."""
        self._resume()
        while self.epoch < self.config.epochs and self.epoch - self.best_epoch < self.config.patience:
            self._epoch()
        self._load_best()

    def _epoch(self) -> None:
        """One epoch: its updates, the dev scores, and a checkpoint."""
        self.epoch += 1
        config = self.config
        torch.manual_seed(config.seed * 1_000_003 + self.epoch)
        rounds = round(1 / config.share)  # a share is read as often as gives the number of updates of all examples
        examples = [example for _ in range(rounds) for example in self.learning.examples]
        batches = _shuffled_batches(examples, self.trained.size, config.batch_size, (config.seed, self.epoch))
        mean_loss = self._update(batches)
        scores = self.trained.score(self.learning.dev)
        metric = self.task.metric
        if not self.best or scores[metric] > self.best[metric]:
            self.best, self.best_epoch = scores, self.epoch
            self.trained.save(self.out)
        elif (self.epoch - self.best_epoch) % DECAY_EPOCHS == 0:
            for group in self.optimizer.param_groups:
                group["lr"] *= config.rate_decay
        self._save({"epoch": self.epoch, "loss": mean_loss, **scores})
        self.learning.report(Progress("epoch", len(batches), len(batches), self.epoch, mean_loss, scores))

    def _update(self, batches: Sequence[Sequence[Any]]) -> float:
        """Update the weights on each batch, and return the mean loss."""
        self.module.train()
        total = 0.0
        with contextlib.nullcontext() if self.recorder is None else self.recorder.stream():
            for number, read_loss in enumerate(_one_behind(map(self._step, batches)), start=1):
                loss = float(read_loss())
                total += loss
                if not math.isfinite(total):
                    where = f"batch {number} of epoch {self.epoch}"
                    raise ValueError(f"{self.out}: the loss of {where} is {loss}: lower learning_rate")
                if number < len(batches):
                    self.learning.report(Progress("epoch", number, len(batches), self.epoch, total / number))
        return total / len(batches)

    def _step(self, batch: Sequence[Any]) -> Callable[[], Tensor]:
        """Update the weights on a batch, and return a function that waits for its loss."""
        network = self.trained.network
        if self.recorder is not None:
            assert isinstance(network, HasBatches)
            loss = self.recorder.run(network.collect(batch, rounded=True))
        else:
            assert isinstance(network, HasLoss)
            loss = self._backward(network.loss(batch))
        nn.utils.clip_grad_norm_(self.module.parameters(), self.config.clip_norm)
        self.optimizer.step()
        return to_host(loss)

    def _backward(self, loss: Tensor) -> Tensor:
        """Compute the gradients of a batch from its loss, and return the loss with the regularization."""
        if self.config.mix_l2:
            loss = loss + self.config.mix_l2 * self.trained.network.inputs.mix_l2()
        self.optimizer.zero_grad(set_to_none=self.recorder is None)  # graphs write them to the same place
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

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
            "seconds": time.perf_counter() - self.learning.start_time,
        }
        self.learning.snapshots.save(Snapshot(self.epoch, tensors, values))

    def _resume(self) -> None:
        newest = self.learning.snapshots.newest()
        if newest is None:
            return
        snapshot = self.learning.snapshots.load(newest)
        weights = _with_prefix("network.", snapshot.tensors)
        source = str(self.learning.snapshots.folder)
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
        self.learning.start_time -= snapshot.values["seconds"]
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


def _one_behind(items: Iterable[E]) -> Iterator[E]:
    """Each item after the next one was made: the host prepares an update while a GPU computes the one before."""
    waiting: list[E] = []
    for item in items:
        yield from waiting
        waiting = [item]
    yield from waiting


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
    optimizer = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    return optimizer(groups, weight_decay=config.weight_decay, fused=True)  # one kernel for all parameters


def _with_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names have the prefix, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
