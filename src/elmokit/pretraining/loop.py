"""The training loop: data, steps, measurements, checkpoints, signals, and the model folder.

Input: settings and text.  Output, in the run's folder:

    config.json, model.safetensors, softmax.safetensors, vocabulary.txt, README.md   the best model so far
    recipe.json        every setting of the run
    metrics.jsonl      losses and held-out perplexities per step; the same lines if the run was killed and resumed
    speed.jsonl        tokens per second per step
    checkpoints/       the last two checkpoints
    corpus/            the vocabulary and the prepared text, unless `train` is a prepared folder

The same call starts a run and resumes one that was stopped or killed.  On a CPU a resumed run gives the same result as
an uninterrupted one, bit by bit.  Under `torchrun` each process trains on its part of the rows; all processes must see
the run's folder.

The input is checked before anything is written.  One run at a time writes a folder: the lock file is `.lock`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors import SafetensorError

from elmokit import kernels
from elmokit.arguments import check_callable, check_instance, check_path
from elmokit.config import BiLMConfig
from elmokit.corpus import StreamPosition, Streams
from elmokit.corpus.heldout import heldout_perplexity, unigram_perplexity
from elmokit.corpus.sources import tokenized_of, tokenizer_of
from elmokit.files import check_new_folder, claimed, replacing
from elmokit.inference.scores import perplexity_of_loss
from elmokit.pretraining.batches import BatchMaker, Loader
from elmokit.pretraining.card import RECIPE_FILE, check_recipe, model_card, write_recipe
from elmokit.pretraining.data import check_input, fit_word_table, make_model, open_data
from elmokit.pretraining.metrics import METRICS_FILE, SPEED_FILE, Metrics, truncate
from elmokit.pretraining.optimizers import rates_at
from elmokit.pretraining.processes import Processes, StopSignals, join_processes
from elmokit.pretraining.results import DivergenceError, OnProgress, PretrainResult, Progress, TrainingState
from elmokit.pretraining.settings import Paths, PretrainConfig, finetune_defaults, make_config
from elmokit.pretraining.step import Learner
from elmokit.storage import folder as model_folder
from elmokit.storage import names
from elmokit.storage.folder import ModelFiles
from elmokit.storage.layouts import CARD_FILE
from elmokit.storage.snapshots import Snapshot, Snapshots

logger = logging.getLogger(__name__)


def pretrain(
    *,
    train: Paths,
    out: str | os.PathLike[str],
    heldout: Paths | None = None,
    model: BiLMConfig | None = None,
    on_progress: OnProgress | None = None,
    **settings: object,
) -> PretrainResult:
    """Train a biLM on text, or resume the run in `out`.

    Args:
        train: Text files (paths or globs), or one folder made by `elmokit prepare`.
        out: The run's folder. The model is saved here.
        heldout: Text whose perplexity is measured during training. The model with the lowest one is saved.
        model: Sizes of the biLM. Default: those of the published "original" model.
        on_progress: Called with a `Progress` every `log_every` steps.
        settings: Any other field of `PretrainConfig`.

    Returns:
        The folder, the number of steps, and the held-out perplexities.

    Raises:
        ValueError: If a setting is not valid, `out` holds a run with other settings, or another process trains in it.
        DivergenceError: If the loss, a gradient or a weight is not finite.
        OSError: If a checkpoint or the model cannot be written.
    """
    config = make_config(train, out, heldout, settings, source="pretrain")
    return run_recipe(config, BiLMConfig() if model is None else model, on_progress=on_progress)


def finetune(
    model: ModelFiles | str | os.PathLike[str],
    *,
    train: Paths,
    out: str | os.PathLike[str],
    heldout: Paths | None = None,
    recipe: str | os.PathLike[str] = "finetune",
    on_progress: OnProgress | None = None,
    **settings: object,
) -> PretrainResult:
    """Continue training a model on other text.

    The output layer is kept if the model has one. With another vocabulary, the rows of words that both vocabularies
    have are kept, and new words start from similar ones. The model keeps its tokenizer. The held-out perplexity is
    measured before the first update too: if training only makes it worse, the model as given is saved.

    Args:
        model: A model folder, a name, a Hugging Face id, or the files of any model that can be loaded.
        train: As for `pretrain`.
        out: As for `pretrain`.
        heldout: As for `pretrain`.
        recipe: Recipe whose settings are the defaults: a name of the package, a TOML file, or the recipe.json of a run.
            Its text, its folder and its sizes are not used. The default is made for fine-tuning.
        on_progress: As for `pretrain`.
        settings: Any other field of `PretrainConfig`. By default the text is split by the model's tokenizer, and
            `tokenized` must agree with it. True also agrees with "treebank": the text is already split.

    Returns:
        As for `pretrain`. `summary` says whether the model improved.

    Raises:
        ValueError: As for `pretrain`; or if `tokenized` contradicts the model's tokenizer.
        DivergenceError: As for `pretrain`.
        OSError: As for `pretrain`.
    """
    if model is not None and not isinstance(model, ModelFiles):
        check_path("model", model)
    check_callable("on_progress", on_progress)
    settings = finetune_defaults(recipe, has_heldout=heldout is not None) | settings
    config = make_config(train, out, heldout, settings, source="finetune")  # before a model is downloaded
    files = model if isinstance(model, ModelFiles) else names.resolve(model).read()
    if "tokenized" not in settings:
        config = dataclasses.replace(config, tokenized=tokenized_of(files.tokenizer))
    return run_recipe(config, files.config, initial=files, on_progress=on_progress)


def run_recipe(
    config: PretrainConfig,
    model: BiLMConfig,
    *,
    initial: ModelFiles | None = None,
    on_progress: OnProgress | None = None,
) -> PretrainResult:
    """Run the training that a recipe describes; `pretrain` and `finetune` call this.

    Args:
        config: Settings of the run.
        model: Sizes of the biLM.
        initial: Model to start from; None starts from random weights.
        on_progress: Called with a `Progress` every `log_every` steps.

    Returns:
        As for `pretrain`.

    Raises:
        ValueError: As for `finetune`.
        DivergenceError: As for `pretrain`.
        OSError: As for `pretrain`.
    """
    check_instance("config", config, PretrainConfig, "the settings of a run, a PretrainConfig")
    check_instance("model", model, BiLMConfig, "the sizes of the biLM, a BiLMConfig")
    if initial is not None:
        check_instance("initial", initial, ModelFiles, "the files of a model or None")
    check_callable("on_progress", on_progress)
    if config.first_step and initial is None:
        raise ValueError(
            f"first_step is {config.first_step}, but the weights are random: call `finetune` with a trained model"
        )
    with join_processes(config.device) as processes:
        if config.batch_size % processes.world_size:
            raise ValueError(
                f"batch_size is {config.batch_size}, which {processes.world_size} processes cannot share evenly"
            )
        if config.precision == "bfloat16":
            kernels.check_dtype(torch.empty(0, dtype=torch.bfloat16, device=processes.device))
        with contextlib.ExitStack() as stack:
            if processes.rank == 0:  # the other processes belong to the same run
                check_new_folder(Path(config.out))
                check_recipe(Path(config.out) / RECIPE_FILE, config, model)
                check_input(config, model, initial)
                stack.enter_context(_claimed_folder(Path(config.out)))
                check_recipe(Path(config.out) / RECIPE_FILE, config, model)  # another process may have been faster
            return _Run(config, model, initial, processes, on_progress).run()


@contextlib.contextmanager
def _claimed_folder(out: Path) -> Iterator[None]:
    """Create the run's folder, and keep other runs out of it."""
    is_new = not out.exists()
    out.mkdir(parents=True, exist_ok=True)
    try:
        with claimed(out, lock=out / ".lock", doing="training in it"):
            yield
    finally:
        if is_new:
            with contextlib.suppress(OSError):
                out.rmdir()  # if the run was refused and nothing is in it


@contextlib.contextmanager
def _removed_if_refused(out: Path) -> Iterator[None]:
    """Remove what a new run wrote if its input is refused, so that a corrected call can use the folder."""
    corpora = [out / "corpus" / name for name in ("train", "heldout")]
    written = [path for path in (out / RECIPE_FILE, out / "corpus" / "vocabulary.txt", *corpora) if not path.exists()]
    try:
        yield
    except (ValueError, ImportError):
        for path in written:
            if path in corpora and not (path / "shards").exists():  # text that is half prepared is used again
                shutil.rmtree(path, ignore_errors=True)
            elif path not in corpora:
                path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            (out / "corpus").rmdir()
        raise


class _Run:
    """One run in one process."""

    def __init__(
        self,
        config: PretrainConfig,
        model: BiLMConfig,
        initial: ModelFiles | None,
        processes: Processes,
        on_progress: OnProgress | None,
    ) -> None:
        self.config, self.processes, self.on_progress = config, processes, on_progress
        self.tokenizer = tokenizer_of(config.tokenized).name if initial is None else initial.tokenizer
        self.out = Path(config.out)
        self.is_first = processes.rank == 0
        self.is_finetuning = initial is not None
        with _removed_if_refused(self.out) if self.is_first else contextlib.nullcontext():
            self._build(model, initial)
        self.snapshots = Snapshots(self.out / "checkpoints")
        self.state = TrainingState(step=config.first_step)
        self.position = self.streams.state
        self._last_log = (0, time.perf_counter())

    def _build(self, model: BiLMConfig, initial: ModelFiles | None) -> None:
        """Prepare the data, and build the streams and the learner."""
        config, processes = self.config, self.processes
        if self.is_first:  # the other processes open what this one prepares
            is_resumed = (self.out / RECIPE_FILE).exists()
            write_recipe(self.out / RECIPE_FILE, config, model)
            self.data = open_data(config, model, initial, is_resumed=is_resumed)
        processes.wait_for_all()
        if not self.is_first:
            self.data = open_data(config, model, initial, is_resumed=True)
        self.unigram: float | None = None
        if self.is_first and self.data.heldout is not None:
            self.unigram = unigram_perplexity(self.data.train, self.data.heldout, len(self.data.vocabulary))
        self.model_config = fit_word_table(model, self.data.vocabulary, initial)
        self.streams = Streams(
            self.data.train,
            batch_size=config.batch_size // processes.world_size,
            unroll=config.unroll,
            seed=config.seed,
            rank=processes.rank,
            world_size=processes.world_size,
        )
        per_step = config.batch_size * config.unroll * config.accumulation
        self.num_steps = config.steps or max(1, round(config.epochs * self.streams.tokens_per_epoch / per_step))
        own_steps = self.num_steps - config.first_step
        self.eval_every = int(config.eval_every) or max(1, round(config.eval_every * own_steps))
        self.static_shapes = processes.device.type == "cuda"
        self.maker = BatchMaker(self.data.train, self.model_config, static_shapes=self.static_shapes)
        language_model = make_model(config, self.model_config, initial, self.data.vocabulary)
        if config.loss == "sampled" and config.num_negatives >= len(self.data.vocabulary):
            logger.info(
                "the vocabulary has %d words, too few for num_negatives = %d: the loss is the full softmax",
                len(self.data.vocabulary), config.num_negatives,
            )  # fmt: skip
            config = dataclasses.replace(config, loss="full")
        self.learner = Learner(language_model, config, processes)

    def run(self) -> PretrainResult:
        """Train until the last step, until patience ends, or until a signal."""
        self._restore()
        ended = self._how_it_ended()
        if ended is not None:
            return self._result(ended)
        accumulation = self.config.accumulation
        loader = Loader(self.streams, self.maker, accumulation=accumulation, pin=self.static_shapes)
        self._last_log = (self.state.step, time.perf_counter())
        with contextlib.ExitStack() as stack:
            stack.callback(loader.close)
            metrics = stack.enter_context(Metrics(self.out, self.config.tensorboard)) if self.is_first else None
            stop = stack.enter_context(StopSignals())
            is_at_first_step = self.state.step == self.config.first_step and not self.state.measured
            if self.is_finetuning and is_at_first_step and self.data.heldout is not None:
                self._measure(metrics)  # the model as given is the first candidate for the best one
            for batches in loader:
                state = self.state
                self.learner.step(batches, rates_at(self.config, state.step + 1, self.num_steps))
                state.step += 1
                state.steps_since_log += 1
                self.position = batches.position
                is_log_step = self._is_due(self.config.log_every)
                if is_log_step or self.processes.device.type == "cpu":
                    self._check_finite()
                if is_log_step:
                    self._log(metrics)
                if self.data.heldout is not None and self._is_due(self.eval_every):
                    self._measure(metrics)
                ended = self._how_it_ended() or self._agree_to_stop(stop.name)
                if ended is not None or self._is_due(self.config.checkpoint_every):
                    self._save(metrics)
                if ended is not None:
                    break
        assert ended is not None
        if stop.name == ended:
            logger.warning(
                "%s: stopped after step %d of %d; the checkpoint is in %s, the same call resumes from it",
                ended, self.state.step, self.num_steps, self.snapshots.folder,
            )  # fmt: skip
        return self._result(ended)

    def _is_due(self, every: int) -> bool:
        """Whether something that happens every `every` steps, and at the last one, happens now."""
        return self.state.step % every == 0 or self.state.step == self.num_steps

    def _how_it_ended(self) -> str | None:
        """Why the run is over; None while it is not."""
        if self.state.step >= self.num_steps:
            return "steps"
        if self.config.patience is not None and self.state.since_best >= self.config.patience:
            return "patience"
        return None

    def _agree_to_stop(self, name: str | None) -> str | None:
        """A signal that any of the processes received.  Several processes exchange it at log steps only."""
        if self.processes.world_size == 1:
            return name
        if not self._is_due(self.config.log_every):
            return None
        number = getattr(signal, name).value if name else 0
        flag = torch.tensor(float(number), device=self.processes.device)
        dist.all_reduce(flag, dist.ReduceOp.MAX)
        return signal.Signals(int(flag)).name if flag else None

    # ---- reports and measurements ----

    def _check_finite(self, *, weights: bool = False) -> None:
        """Raise if losses or gradients were not finite or, with `weights`, if a weight is not."""
        problem = self.learner.find_non_finite(self.state.step, weights=weights)
        if problem is None:
            return
        steps = self.snapshots.steps()
        raise DivergenceError(
            f"{problem}. "
            + (f"The checkpoint of step {steps[-1]} is good. " if steps else "There is no checkpoint yet. ")
            + "Start again, in another folder, with a smaller learning_rate or clip_norm, or with more warmup_steps"
        )

    def _log(self, metrics: Metrics | None) -> None:
        """Report the mean losses since the last report."""
        state, learner = self.state, self.learner
        num_batches = state.steps_since_log * self.config.accumulation
        sums = learner.loss_sums.clone()
        if self.processes.world_size > 1:
            dist.all_reduce(sums)
        forward, backward = (sums / (num_batches * self.processes.world_size)).tolist()
        norm = float(learner.norm)
        learner.loss_sums.zero_()
        state.steps_since_log = 0
        rates = rates_at(self.config, state.step, self.num_steps)
        loss = 0.5 * (forward + backward)
        before, then = self._last_log
        now = time.perf_counter()
        speed = (state.step - before) * learner.tokens_per_step / max(now - then, 1e-9)
        self._last_log = (state.step, now)
        if metrics is None:
            return
        metrics.write(
            state.step,
            {
                "loss": loss,
                "forward_loss": forward,
                "backward_loss": backward,
                "gradient_norm": norm,
                "learning_rate": rates.learning_rate,
            },
        )
        metrics.write_speed(state.step, speed)
        if self.on_progress is not None:
            left = (self.num_steps - state.step) * learner.tokens_per_step / speed
            self.on_progress(
                Progress(
                    step=state.step,
                    num_steps=self.num_steps,
                    loss=loss,
                    perplexity=perplexity_of_loss(loss),
                    learning_rate=rates.learning_rate,
                    tokens_per_second=speed,
                    seconds_left=left,
                    heldout=state.last_perplexity(),
                )
            )

    def _measure(self, metrics: Metrics | None) -> None:
        """Measure the held-out perplexity, and save the model if it is the best so far."""
        self._check_finite(weights=True)
        assert self.data.heldout is not None
        numbers = torch.zeros(4, dtype=torch.float64, device=self.processes.device)
        if self.is_first:
            began = time.perf_counter()
            model = self.learner.trained
            perplexity = heldout_perplexity(
                model.bilm, model.output, self.data.heldout, batch_size=self.config.eval_batch_size
            )
            measured = [perplexity.forward, perplexity.backward, perplexity.both, perplexity.num_tokens]
            numbers.copy_(torch.tensor(measured, dtype=torch.float64))
            self._last_log = (self._last_log[0], self._last_log[1] + time.perf_counter() - began)
        if self.processes.world_size > 1:
            dist.broadcast(numbers, 0)
        forward, backward, both, num_tokens = numbers.tolist()
        is_best = self.state.add_measurement([forward, backward, both, num_tokens])
        if metrics is not None:
            directions = {"heldout_forward_perplexity": forward, "heldout_backward_perplexity": backward}
            metrics.write(self.state.step, {"heldout_perplexity": both, **directions})
            if is_best:
                self._save_model()

    # ---- files ----

    def _save(self, metrics: Metrics | None) -> None:
        """Save a checkpoint and, without held-out text, the model."""
        self._check_finite(weights=True)
        tensors = self.learner.gather_tensors()
        if metrics is not None:
            if self.data.heldout is None:
                self._save_model()
            values = {
                "standing": dataclasses.asdict(self.state),
                "position": dataclasses.asdict(self.position),
                "metrics_bytes": metrics.sync(),
                "places": self.learner.optimizer.flat.layout(),
            }
            on_host = {name: tensor.cpu() for name, tensor in tensors.items()}
            self.snapshots.save(Snapshot(self.state.step, on_host, values))
        self.processes.wait_for_all()

    def _restore(self) -> None:
        """Resume from the newest complete checkpoint, if there is one."""
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
        self.learner.restore(snapshot.tensors, source=f"{self.snapshots.folder}, step {step}")
        self.state = TrainingState(**snapshot.values["standing"])
        self.position = StreamPosition(**snapshot.values["position"])
        self.streams.restore(self.position)
        if self.is_first:
            truncate(self.out / METRICS_FILE, snapshot.values["metrics_bytes"])
        logger.info("resuming after step %d of %d", step, self.num_steps)

    def _save_model(self) -> None:
        """Write the model folder."""
        model = self.learner.trained
        files = ModelFiles(
            self.model_config,
            {name: tensor.detach().cpu().clone() for name, tensor in model.bilm.state_dict().items()},
            {name: tensor.detach().cpu().clone() for name, tensor in model.output.state_dict().items()},
            self.data.vocabulary,
            tokenizer=self.tokenizer,
        )
        card = model_card(
            self.config,
            self.model_config,
            self.data,
            self.state,
            num_steps=self.num_steps,
            unigram=self.unigram,
            tokenizer=self.tokenizer,
        )
        try:
            with replacing(self.out / CARD_FILE) as path:
                path.write_text(card, encoding="utf-8")
            model_folder.save(files, self.out, card=card)
        except (OSError, SafetensorError) as error:
            raise OSError(
                f"{self.out}: the model could not be written ({error}): free some disk space; the same call "
                "resumes from the last checkpoint"
            ) from error

    def _result(self, ended: str) -> PretrainResult:
        return PretrainResult(
            folder=self.out,
            step=self.state.step,
            num_steps=self.num_steps,
            ended=ended,
            best=self.state.best_perplexity(),
            best_step=self.state.best_step,
            last=self.state.last_perplexity(),
            unigram=self.unigram,
            before=self.state.perplexity_at(self.config.first_step) if self.is_finetuning else None,
        )
