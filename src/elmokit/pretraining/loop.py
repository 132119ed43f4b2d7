"""One run of training: data, steps, measurements, checkpoints, signals, and the model folder that comes out.

Enters: a recipe and text.  Leaves, in the run's folder:

    config.json, model.safetensors, softmax.safetensors, vocabulary.txt, README.md   the best model so far
    recipe.json        every setting of the run
    metrics.jsonl      losses and held-out perplexities by step; a run that was killed and went on has the same lines
    speed.jsonl        tokens per second by step
    checkpoints/       the last two checkpoints
    corpus/            the vocabulary and the prepared text, where text was given

The same call starts a run and goes on with one that was stopped or killed: the result is the same, bit by bit on a CPU.
Under `torchrun` each process takes its share of the rows; the folder must be one that all of them see.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import math
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError

from elmokit import kernels
from elmokit.config import BiLMConfig
from elmokit.corpus import StreamPosition, Streams
from elmokit.corpus.heldout import heldout_perplexity, unigram_perplexity
from elmokit.files import replacing, write_json
from elmokit.inference.scores import Perplexity
from elmokit.pretraining.batches import BatchMaker, Loader
from elmokit.pretraining.data import fit_word_table, make_model, open_data
from elmokit.pretraining.metrics import METRICS_FILE, SPEED_FILE, Metrics, truncate
from elmokit.pretraining.optimizers import Rates
from elmokit.pretraining.processes import Processes, StopSignals, join_processes
from elmokit.pretraining.settings import PretrainConfig
from elmokit.pretraining.step import Learner
from elmokit.settings import from_mapping, read_json, to_mapping
from elmokit.storage import folder as checkpoint
from elmokit.storage.folder import ModelFiles
from elmokit.storage.layouts import CARD_FILE
from elmokit.storage.snapshots import Snapshot, Snapshots

logger = logging.getLogger(__name__)

RECIPE_FILE = "recipe.json"
# settings that a run may change when it goes on; others would make it another run
MAY_CHANGE = {
    "device", "steps", "epochs", "eval_every", "eval_batch_size", "checkpoint_every", "log_every", "patience",
    "tensorboard", "out",
}  # fmt: skip

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


class DivergenceError(RuntimeError):
    """The loss or a gradient was not finite."""


@dataclass(frozen=True)
class Progress:
    """Where a run stands; the loss is the mean over both directions since the report before."""

    step: int
    num_steps: int
    loss: float
    perplexity: float
    learning_rate: float
    tokens_per_second: float
    seconds_left: float
    heldout: Perplexity | None
    """The last measurement."""


@dataclass(frozen=True)
class PretrainResult:
    """How a run ended, and what it left."""

    folder: Path
    """A model folder for `ELMo.from_pretrained`."""
    step: int
    num_steps: int
    ended: str
    """"steps", "patience", or the signal that stopped it: "SIGTERM", "SIGINT"."""
    best: Perplexity | None
    best_step: int
    last: Perplexity | None
    unigram: float | None
    """Perplexity of the held-out text by word frequencies alone."""


OnProgress = Callable[[Progress], None]


def pretrain(
    *,
    train: Paths,
    out: str | os.PathLike[str],
    heldout: Paths | None = None,
    model: BiLMConfig | None = None,
    on_progress: OnProgress | None = None,
    **settings: object,
) -> PretrainResult:
    """Train a biLM on text, or go on with the run that `out` holds.

    Args:
        train: text files (paths or globs), or one folder that `elmokit prepare` made.
        out: the run's folder, and then the model's.
        heldout: text whose perplexity is measured as training goes on; the best model by it is what is kept.
        model: the biLM's sizes; without them the published "original".
        on_progress: called every `log_every` steps.
        settings: any other field of `PretrainConfig`.
    """
    config = _config(train, out, heldout, settings)
    return run_recipe(config, model or BiLMConfig(), on_progress=on_progress)


def finetune(
    model: ModelFiles | str | os.PathLike[str],
    *,
    train: Paths,
    out: str | os.PathLike[str],
    heldout: Paths | None = None,
    on_progress: OnProgress | None = None,
    **settings: object,
) -> PretrainResult:
    """Train on from the weights of a model folder, or of any `ModelFiles`; arguments are those of `pretrain`.

    The softmax goes on too where the model has one and its vocabulary is kept; else a new one begins.
    """
    files = model if isinstance(model, ModelFiles) else checkpoint.load(model)
    return run_recipe(_config(train, out, heldout, settings), files.config, initial=files, on_progress=on_progress)


def run_recipe(
    config: PretrainConfig,
    model: BiLMConfig,
    *,
    initial: ModelFiles | None = None,
    on_progress: OnProgress | None = None,
) -> PretrainResult:
    """Run a recipe, from `initial` weights where given: what `pretrain` and `finetune` do with their arguments."""
    with join_processes(config.device) as processes:
        if config.batch_size % processes.world_size:
            raise ValueError(
                f"batch_size is {config.batch_size}, which {processes.world_size} processes cannot share evenly"
            )
        if config.precision == "bfloat16":
            kernels.check_dtype(torch.empty(0, dtype=torch.bfloat16, device=processes.device))
        return _Run(config, model, initial, processes, on_progress).run()


def _config(
    train: Paths, out: str | os.PathLike[str], heldout: Paths | None, settings: dict[str, object]
) -> PretrainConfig:
    def spell(paths: Paths) -> str | list[str]:
        return str(paths) if isinstance(paths, str | os.PathLike) else [str(path) for path in paths]

    where = {"train": spell(train), "out": str(out), "heldout": None if heldout is None else spell(heldout)}
    return from_mapping(PretrainConfig, {**where, **settings}, source="pretrain")


@dataclass
class _Standing:
    """What a run knows of itself beside tensors: JSON values, saved with each checkpoint."""

    step: int = 0
    steps_since_log: int = 0
    best: list[float] | None = None
    best_step: int = 0
    measured: list[tuple[int, list[float]]] = dataclasses.field(default_factory=list)
    """(step, [forward, backward, both, num_tokens]) of each measurement."""
    since_best: int = 0


class _Run:
    def __init__(
        self,
        config: PretrainConfig,
        model: BiLMConfig,
        initial: ModelFiles | None,
        processes: Processes,
        on_progress: OnProgress | None,
    ) -> None:
        self.config, self.processes, self.on_progress = config, processes, on_progress
        self.out = Path(config.out)
        self.is_first = processes.rank == 0
        if self.is_first:  # the others find everything ready
            self.out.mkdir(parents=True, exist_ok=True)
            _check_recipe(self.out / RECIPE_FILE, config, model)
            open_data(config, model, initial)
        self._wait_for_all()
        self.data = open_data(config, model, initial)
        self.unigram: float | None = None
        if self.is_first and self.data.heldout is not None:
            self.unigram = unigram_perplexity(self.data.train, self.data.heldout, len(self.data.vocabulary))
        self.model_config = fit_word_table(model, self.data.vocabulary, initial)
        rows = config.batch_size // processes.world_size
        self.streams = Streams(
            self.data.train,
            batch_size=rows,
            unroll=config.unroll,
            seed=config.seed,
            rank=processes.rank,
            world_size=processes.world_size,
        )
        per_step = config.batch_size * config.unroll * config.accumulation
        self.num_steps = config.steps or max(1, round(config.epochs * self.streams.tokens_per_epoch / per_step))
        language_model = make_model(config, self.model_config, initial, self.data.vocabulary)
        self.learner = Learner(language_model, config, processes)
        self.snapshots = Snapshots(self.out / "checkpoints")
        self.standing = _Standing()
        self.position = self.streams.state
        self._last_log = (0, time.perf_counter())

    def run(self) -> PretrainResult:
        self._restore()
        ended = self._how_it_ended()
        if ended is not None:
            return self._result(ended)
        is_gpu = self.processes.device.type == "cuda"
        maker = BatchMaker(self.data.train, self.model_config, static_shapes=is_gpu)
        loader = Loader(self.streams, maker, accumulation=self.config.accumulation, pin=is_gpu)
        self._last_log = (self.standing.step, time.perf_counter())
        with contextlib.ExitStack() as whole:
            whole.callback(loader.close)
            metrics = whole.enter_context(Metrics(self.out, self.config.tensorboard)) if self.is_first else None
            stop = whole.enter_context(StopSignals())
            for batches in loader:
                standing = self.standing
                self.learner.step(batches, self._rates(standing.step + 1))
                standing.step += 1
                standing.steps_since_log += 1
                self.position = batches.position
                is_log_step = self._is_due(self.config.log_every)
                if is_log_step or self.processes.device.type == "cpu":
                    self._check_finite()
                if is_log_step:
                    self._log(metrics)
                if self.data.heldout is not None and self._is_due(self.config.eval_every):
                    self._measure(metrics)
                ended = self._how_it_ended() or self._agree_to_stop(stop.name)
                if ended is not None or self._is_due(self.config.checkpoint_every):
                    self._save(metrics)
                if ended is not None:
                    break
        assert ended is not None
        if stop.name == ended:
            logger.warning(
                "%s: stopped after step %d of %d; the checkpoint is in %s, the same call goes on from there",
                ended, self.standing.step, self.num_steps, self.snapshots.folder,
            )  # fmt: skip
        return self._result(ended)

    def _is_due(self, every: int) -> bool:
        return self.standing.step % every == 0 or self.standing.step == self.num_steps

    def _how_it_ended(self) -> str | None:
        if self.standing.step >= self.num_steps:
            return "steps"
        if self.config.patience is not None and self.standing.since_best >= self.config.patience:
            return "patience"
        return None

    def _agree_to_stop(self, name: str | None) -> str | None:
        """A signal that reached any of the processes; several agree only now and then, as they must wait for it."""
        if self.processes.world_size == 1:
            return name
        if not self._is_due(self.config.log_every):
            return None
        number = getattr(signal, name).value if name else 0
        flag = torch.tensor(float(number), device=self.processes.device)
        dist.all_reduce(flag, dist.ReduceOp.MAX)
        return signal.Signals(int(flag)).name if flag else None

    def _rates(self, step: int) -> Rates:
        config = self.config
        warmth = min(1.0, step / config.warmup_steps) if config.warmup_steps else 1.0
        way = min(1.0, max(0, step - config.warmup_steps) / max(1, self.num_steps - config.warmup_steps))
        share = warmth * (config.final_rate + (1 - config.final_rate) * 0.5 * (1 + math.cos(math.pi * way)))
        output_rate = config.learning_rate if config.output_learning_rate is None else config.output_learning_rate
        # the average forgets the first, worst weights sooner than its decay would
        decay = 0.0 if config.ema_decay is None else min(config.ema_decay, step / (step + 10))
        return Rates(step, config.learning_rate * share, output_rate * share, 1 - decay)

    # ---- what is said and measured ----

    def _check_finite(self, *, weights: bool = False) -> None:
        """Stop where a step's losses or gradients were not finite or, if asked, the weights are not."""
        self.learner.finish()
        step, forward, backward, norm = self.learner.non_finite.tolist()
        if step > 0:
            found = {"forward loss": forward, "backward loss": backward, "norm of the gradient": norm}
            where = " and the ".join(name for name, value in found.items() if not math.isfinite(value))
            where += f" is not finite (forward loss {forward}, backward loss {backward}, norm {norm})"
        elif weights and not bool(torch.isfinite(self.learner.optimizer.flat.values).all()):
            step, where = self.standing.step, "weights after it are not finite"
        else:
            return
        broken = [
            name for name, p in self.learner.model.named_parameters() if not bool(torch.isfinite(p.detach()).all())
        ]
        if broken:
            where += f", first in {broken[0]}"
        kept = self.snapshots.steps()
        raise DivergenceError(
            f"step {int(step)}: the {where}. "
            + (f"The checkpoint of step {kept[-1]} is good. " if kept else "There is no checkpoint yet. ")
            + "Start again, in another folder, with a smaller learning_rate or clip_norm, or with more warmup_steps"
        )

    def _log(self, metrics: Metrics | None) -> None:
        """The mean losses since the last report."""
        standing, learner = self.standing, self.learner
        num_batches = standing.steps_since_log * self.config.accumulation
        sums = learner.loss_sums.clone()
        if self.processes.world_size > 1:
            dist.all_reduce(sums)
        forward, backward = (sums / (num_batches * self.processes.world_size)).tolist()
        norm = float(learner.norm)
        learner.loss_sums.zero_()
        standing.steps_since_log = 0
        rates = self._rates(standing.step)
        loss = 0.5 * (forward + backward)
        before, then = self._last_log
        now = time.perf_counter()
        speed = (standing.step - before) * learner.tokens_per_step / max(now - then, 1e-9)
        self._last_log = (standing.step, now)
        if metrics is None:
            return
        metrics.write(
            standing.step,
            {
                "loss": loss,
                "forward_loss": forward,
                "backward_loss": backward,
                "gradient_norm": norm,
                "learning_rate": rates.learning_rate,
            },
        )
        metrics.write_speed(standing.step, speed)
        if self.on_progress is not None:
            left = (self.num_steps - standing.step) * learner.tokens_per_step / speed
            last = _perplexity(standing.measured[-1][1]) if standing.measured else None
            self.on_progress(
                Progress(standing.step, self.num_steps, loss, _exp(loss), rates.learning_rate, speed, left, last)
            )

    def _measure(self, metrics: Metrics | None) -> None:
        """The held-out perplexity; a better one than before makes this model the folder's."""
        self._check_finite(weights=True)
        assert self.data.heldout is not None
        found = torch.zeros(4, dtype=torch.float64, device=self.processes.device)
        if self.is_first:
            began = time.perf_counter()
            model = self.learner.trained
            measured = heldout_perplexity(
                model.bilm, model.output, self.data.heldout, batch_size=self.config.eval_batch_size
            )
            found.copy_(torch.tensor(dataclasses.astuple(measured), dtype=torch.float64))
            self._last_log = (self._last_log[0], self._last_log[1] + time.perf_counter() - began)
        if self.processes.world_size > 1:
            dist.broadcast(found, 0)
        numbers, standing = found.tolist(), self.standing
        standing.measured.append((standing.step, numbers))
        standing.since_best += 1
        is_best = standing.best is None or numbers[2] < standing.best[2]
        if is_best:
            standing.best, standing.best_step, standing.since_best = numbers, standing.step, 0
        if metrics is not None:
            metrics.write(
                standing.step,
                {
                    "heldout_perplexity": numbers[2],
                    "heldout_forward_perplexity": numbers[0],
                    "heldout_backward_perplexity": numbers[1],
                },
            )
            if is_best:
                self._save_model()

    # ---- what is kept ----

    def _save(self, metrics: Metrics | None) -> None:
        """A checkpoint; without held-out text the model folder too, as there is no better choice than the last."""
        self._check_finite(weights=True)
        tensors = dict(self.learner.tensors())
        if self.processes.world_size > 1:
            for name in ("hidden", "cell"):  # the state of all rows, so that the number of processes may change
                parts = [torch.empty_like(tensors[name]) for _ in range(self.processes.world_size)]
                dist.all_gather(parts, tensors[name])
                tensors[name] = torch.cat(parts, dim=2)
            tensors["loss_sums"] = tensors["loss_sums"].clone()
            dist.all_reduce(tensors["loss_sums"])
            tensors["loss_sums"] /= self.processes.world_size
        if metrics is not None:
            if self.data.heldout is None:
                self._save_model()
            values = {
                "standing": dataclasses.asdict(self.standing),
                "position": dataclasses.asdict(self.position),
                "metrics_bytes": metrics.sync(),
                "places": {
                    name: [begin, *shape] for name, (begin, shape) in self.learner.optimizer.flat.places.items()
                },
            }
            on_host = {name: tensor.cpu() for name, tensor in tensors.items()}
            self.snapshots.save(Snapshot(self.standing.step, on_host, values))
        self._wait_for_all()

    def _restore(self) -> None:
        """Go on from the newest checkpoint that is whole, if there is one."""
        step = self.snapshots.newest() if self.is_first else None
        if self.processes.world_size > 1:
            number = torch.tensor(-1 if step is None else step, device=self.processes.device)
            dist.broadcast(number, 0)
            step = int(number) if int(number) >= 0 else None
        if step is None:
            if self.is_first:
                truncate(self.out / METRICS_FILE, 0)
                truncate(self.out / SPEED_FILE, 0)
            return
        snapshot = self.snapshots.load(step)
        source = f"{self.snapshots.folder}, step {step}"
        rows = self.config.batch_size // self.processes.world_size
        own = slice(self.processes.rank * rows, (self.processes.rank + 1) * rows)
        for name in ("hidden", "cell"):
            snapshot.tensors[name] = snapshot.tensors[name][:, :, own]
        self.learner.restore(snapshot.tensors, source=source)
        self.standing = _Standing(**snapshot.values["standing"])
        self.position = StreamPosition(**snapshot.values["position"])
        self.streams.restore(self.position)
        if self.is_first:
            truncate(self.out / METRICS_FILE, snapshot.values["metrics_bytes"])
        logger.info("going on after step %d of %d", step, self.num_steps)

    def _save_model(self) -> None:
        model = self.learner.trained
        files = ModelFiles(
            self.model_config,
            {name: tensor.detach().cpu().clone() for name, tensor in model.bilm.state_dict().items()},
            {name: tensor.detach().cpu().clone() for name, tensor in model.output.state_dict().items()},
            self.data.vocabulary,
        )
        card = self._card()
        try:
            with replacing(self.out / CARD_FILE) as path:
                path.write_text(card, encoding="utf-8")
            checkpoint.save(files, self.out, card=card)
        except (OSError, SafetensorError) as error:
            raise OSError(
                f"{self.out}: the model could not be written ({error}): make room, and the same call goes on from the "
                "last checkpoint"
            ) from error

    def _card(self) -> str:
        """The README of the model folder: what it is, what it read, how well it does, how to get it again."""
        config, standing, data = self.config, self.standing, self.data
        model = self.model_config
        reads = "words" if model.num_words is not None else "characters"
        lines = [
            f"# A biLM: {model.num_layers} layers of {model.cell_dim} cells, {2 * model.projection_dim} dimensions",
            "",
            f"Trained with elmokit for {standing.step:,} of {self.num_steps:,} steps of {config.batch_size} rows x "
            f"{config.unroll} tokens; it reads {reads} and predicts {len(data.vocabulary):,} words.",
            "",
            '```python\nfrom elmokit import ELMo\n\nmodel = ELMo.from_pretrained("this folder")\n```',
            "",
            "## Data",
            "",
            f"Training text: {data.train.num_tokens:,} words, {data.train.num_sentences:,} sentences, "
            f"{data.train.num_documents:,} documents.",
        ]
        if data.heldout is not None:
            lines += [
                f"Held-out text: {data.heldout.num_tokens:,} words; by word frequencies alone its perplexity is "
                f"{self.unigram:.1f}.",
                "",
                "## Held-out perplexity",
                "",
                "| step | forward | backward | both |",
                "|---:|---:|---:|---:|",
                *(f"| {step:,} | {f:.2f} | {b:.2f} | {both:.2f} |" for step, (f, b, both, _) in standing.measured),
            ]
        recipe = json.dumps(_recipe(config, model), indent=1)
        return "\n".join([*lines, "", "## Recipe", "", f"```json\n{recipe}\n```", ""])

    def _result(self, ended: str) -> PretrainResult:
        standing = self.standing
        return PretrainResult(
            folder=self.out,
            step=standing.step,
            num_steps=self.num_steps,
            ended=ended,
            best=None if standing.best is None else _perplexity(standing.best),
            best_step=standing.best_step,
            last=_perplexity(standing.measured[-1][1]) if standing.measured else None,
            unigram=self.unigram,
        )

    def _wait_for_all(self) -> None:
        if self.processes.world_size > 1:
            dist.barrier()


def _perplexity(numbers: list[float]) -> Perplexity:
    forward, backward, both, num_tokens = numbers
    return Perplexity(forward, backward, both, int(num_tokens))


def _exp(value: float) -> float:
    return math.exp(value) if value < 700.0 else math.inf


def _recipe(config: PretrainConfig, model: BiLMConfig) -> dict[str, Any]:
    return {**to_mapping(config), "model": to_mapping(model)}


def _check_recipe(path: Path, config: PretrainConfig, model: BiLMConfig) -> None:
    """A folder belongs to one run: write down its recipe, or see that it is the one that was."""
    recipe = _recipe(config, model)
    if path.exists():
        before = read_json(path)
        for name in sorted({*recipe, *before} - MAY_CHANGE):
            if recipe.get(name) != before.get(name):
                raise ValueError(
                    f"{path.parent} holds a run with {name} = {before.get(name)}, not {recipe.get(name)}: "
                    "start in another folder, or go on with the same settings"
                )
    write_json(path, recipe)
