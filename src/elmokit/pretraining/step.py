"""One training step: words, two streams through the biLM, the loss of both directions, the update.

Input: batches from `batches.py`, and the numbers that change with the step.  Output: changed weights, optimizer state
and LSTM state; losses are added up on the device.  Nothing in a step waits for the device or depends on a value, so
that on a GPU the step is recorded once as CUDA graphs and replayed (`recorder.py`).

Random numbers are drawn from generators that every step seeds anew by (seed, position in the streams, process): there
is no generator state to save or to lose.

Legend of shapes: D = 2 directions, T tokens of a row, B rows, P projection, N distinct words.
"""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from elmokit.config import BiLMConfig
from elmokit.network import BiLM, BiLMState, OutputLayer, take_rows
from elmokit.network.losses import chunked_softmax_loss, sampled_softmax_loss
from elmokit.network.sampling import LogUniformSampler, Negatives, SampledRows, gather_rows
from elmokit.pretraining.batches import Batch, StepBatches
from elmokit.pretraining.optimizers import Optimizer, Rates
from elmokit.pretraining.processes import Processes
from elmokit.pretraining.recorder import GraphRecorder
from elmokit.pretraining.settings import PretrainConfig


class LanguageModel(nn.Module):
    """What is trained: a biLM and the softmax that both directions share."""

    def __init__(self, config: BiLMConfig, num_words: int) -> None:
        super().__init__()
        self.bilm = BiLM(config)
        self.output = OutputLayer(num_words, config.projection_dim)


class Learner:
    """The weights, the optimizer and the LSTM state of this process, and the step that changes them."""

    def __init__(self, model: LanguageModel, config: PretrainConfig, processes: Processes) -> None:
        self.model, self.config, self.processes = model.to(processes.device), config, processes
        device = processes.device
        self.sampler: LogUniformSampler | None = None
        if config.loss == "sampled":
            self.sampler = LogUniformSampler(model.output.num_words, config.num_negatives)
        separate = {"output.weight", "output.bias"} if self.sampler else set()
        # its parameters keep requires_grad: engines take those that do not for frozen, and remember them
        self.averaged = copy.deepcopy(model) if config.ema_decay is not None else None
        self.optimizer = Optimizer(config, model, separate)
        self._average = self.optimizer.like(self.averaged, separate) if self.averaged is not None else None

        state = model.bilm.initial_state(config.batch_size // processes.world_size)
        self.state = BiLMState(state.hidden.clone(), state.cell.clone())
        self.loss_sums = torch.zeros(2, dtype=torch.float64, device=device)
        """Forward and backward losses of the batches since they were last set to zero."""
        self.non_finite = torch.zeros(4, dtype=torch.float64, device=device)
        """(step, forward loss, backward loss, norm of the gradient) of the first step that was not finite, or zeros."""
        self.norm = torch.zeros((), device=device)
        self._losses = torch.zeros(2, dtype=torch.float64, device=device)
        self._numbers = torch.zeros(6, dtype=torch.float64, device=device)
        self._dropout = torch.Generator(device)
        self._draws = torch.Generator(device)
        self._rows: SampledRows | None = None
        self._batches: list[Batch] = []
        self._targets: Tensor | None = None
        self._recorder = GraphRecorder(device, [self._dropout, self._draws]) if device.type == "cuda" else None

    @property
    def trained(self) -> LanguageModel:
        """The model to evaluate and to save: the running average of the weights where one is kept."""
        return self.averaged or self.model

    @property
    def tokens_per_step(self) -> int:
        """Predictions of one update in each direction, in all processes."""
        return self.config.batch_size * self.config.unroll * self.config.accumulation

    def step(self, batches: StepBatches, rates: Rates) -> None:
        """One update."""
        numbers = [
            rates.step, rates.learning_rate, rates.output_learning_rate, rates.ema_share,
            *self.optimizer.bias_corrections(rates.step),
        ]  # fmt: skip
        # not by a generator's own state: a run that resumes from a checkpoint draws what it would have drawn
        place = batches.position.step
        self._dropout.manual_seed(_combine_seeds(self.config.seed, place, 1 + self.processes.rank))
        self._draws.manual_seed(_combine_seeds(self.config.seed, place, 0))  # the same negatives in all processes
        if self._recorder is None:
            self._numbers.copy_(torch.tensor(numbers, dtype=torch.float64))
            self._batches = batches.batches
            self._gather_targets()
            self._find_gradients()
            self._reduce()
            self._update()
            return
        with self._recorder.stream():
            self._numbers.copy_(torch.tensor(numbers, dtype=torch.float64).pin_memory(), non_blocking=True)
            self._batches = self._recorder.place(batches.batches)
            self._gather_targets()
            self._recorder.run("gradients", self._find_gradients)
            self._reduce()
            self._recorder.run("update", self._update)

    def _gather_targets(self) -> None:
        """The targets of all processes: the rows of the output layer that the sampled softmax can touch."""
        if self.sampler is None or self.processes.world_size == 1:
            return
        own = torch.stack([batch.targets for batch in self._batches])
        parts = [torch.empty_like(own) for _ in range(self.processes.world_size)]
        dist.all_gather(parts, own)
        together = torch.stack(parts)
        if self._targets is None:
            self._targets = together
        self._targets.copy_(together)  # at the place that a recorded graph reads

    def _find_gradients(self) -> None:
        """Gradients of the mean loss of this process, over all its batches; the LSTM state is carried on."""
        self.optimizer.gradients.zero_()
        negatives: list[tuple[Negatives, Negatives]] = []
        if self.sampler is not None:
            for _ in self._batches:
                negatives.append((self.sampler.sample(self._draws), self.sampler.sample(self._draws)))
            targets = [self._targets] if self._targets is not None else [batch.targets for batch in self._batches]
            drawn = [one.ids for pair in negatives for one in pair]
            self._rows = gather_rows(self.model.output, *targets, *drawn)
        self._losses.zero_()
        scale = 0.5 / (len(self._batches) * self.processes.world_size)
        if self.config.optimizer == "adagrad":
            scale *= self.config.unroll  # as published
        for number, batch in enumerate(self._batches):
            if self.config.state_reset:
                keep = self.state.hidden.new_empty(self.state.hidden.shape[2], 1)  # (B, 1)
                keep.bernoulli_(1.0 - self.config.state_reset, generator=self._dropout)
                for carried in self.state:
                    carried.mul_(keep)
            with self._precision():
                forward, backward, state = self.losses(
                    batch, self.state, rows=self._rows, negatives=negatives[number] if negatives else None
                )
            ((forward + backward) * scale).backward()  # type: ignore[no-untyped-call]
            self.state.hidden.copy_(state.hidden.detach())
            self.state.cell.copy_(state.cell.detach())
            self._losses += torch.stack([forward.detach(), backward.detach()])
        self.loss_sums += self._losses

    def losses(
        self,
        batch: Batch,
        state: BiLMState,
        *,
        rows: SampledRows | None = None,
        negatives: tuple[Negatives, Negatives] | None = None,
    ) -> tuple[Tensor, Tensor, BiLMState]:
        """Mean loss of each direction on one batch, and the state after it."""
        bilm = self.model.bilm
        tokens = take_rows(bilm.embed_groups(batch.words), batch.index)  # (D, T, B, P)
        lengths = torch.full((tokens.shape[2],), tokens.shape[1], dtype=torch.long, device=tokens.device)
        layers, after = bilm.run_layers(tokens, lengths, state, dropout=self._drop if self.config.dropout else None)
        losses = []
        for direction in range(2):
            hidden, targets = (
                layers[-1][direction].flatten(0, 1),
                batch.targets[direction].flatten(),
            )  # (T B, P), (T B,)
            if negatives is None:
                losses.append(chunked_softmax_loss(hidden, targets, self.model.output))
            else:
                losses.append(sampled_softmax_loss(hidden, targets, rows or self.model.output, negatives[direction]))
        return losses[0], losses[1], after

    def _drop(self, x: Tensor) -> Tensor:
        keep = 1.0 - self.config.dropout
        mask = torch.empty_like(x).bernoulli_(keep, generator=self._dropout)
        return (x * mask) * (1.0 / keep)  # not a scaled mask: 1 / 0.9 is no bfloat16

    def _precision(self) -> contextlib.AbstractContextManager[Any]:
        enabled = self.config.precision == "bfloat16"
        # no cache of cast weights: a recorded graph would keep reading those of its first step
        return torch.autocast(self.processes.device.type, torch.bfloat16, enabled=enabled, cache_enabled=False)

    def _reduce(self) -> None:
        """Sum the gradients over processes; each was divided by their number."""
        if self.processes.world_size == 1:
            return
        dist.all_reduce(self.optimizer.gradients)
        if self._rows is not None:
            assert self._rows.weight.grad is not None
            assert self._rows.bias.grad is not None
            dist.all_reduce(self._rows.weight.grad)
            dist.all_reduce(self._rows.bias.grad)

    @torch.no_grad()
    def _update(self) -> None:
        """Clip, change the weights by the optimizer, move the running average."""
        step, rate, output_rate, ema_share, *corrections = self._numbers.to(self.optimizer.gradients.dtype).unbind()
        norm = self.optimizer.gradient_norm(self._rows)
        now = torch.stack([step.double(), *(self._losses / len(self._batches)), norm.double()])
        is_first = ~torch.isfinite(now).all() & (self.non_finite[0] == 0)
        self.non_finite.copy_(torch.where(is_first, now, self.non_finite))
        self.norm.copy_(norm)
        scale = (self.config.clip_norm / norm).clamp(max=1.0)
        self.optimizer.update(scale, rate, output_rate, (corrections[0], corrections[1]), self._rows)
        if self._average is not None:
            self._average.values.lerp_(self.optimizer.flat.values, ema_share)

    def finish(self) -> None:
        """Wait until all steps are done, so that the weights and the sums can be read."""
        if self._recorder is not None:
            torch.cuda.synchronize(self.processes.device)

    def tensors(self) -> dict[str, Tensor]:
        """Everything that a step reads and changes; the LSTM state is that of this process's rows."""
        tensors = self.optimizer.tensors()
        tensors |= {"loss_sums": self.loss_sums, "hidden": self.state.hidden, "cell": self.state.cell}
        if self._average is not None:
            tensors["average"] = self._average.values
        return tensors

    def restore(self, tensors: dict[str, Tensor], *, source: str) -> None:
        """Take what `tensors` gave."""
        for name, own in self.tensors().items():
            saved = tensors.get(name)
            if saved is None or saved.shape != own.shape:
                problem = "missing" if saved is None else f"{tuple(saved.shape)}, this run needs {tuple(own.shape)}"
                raise ValueError(f"{source}: {name} is {problem}")
            own.copy_(saved)


def _combine_seeds(*numbers: int) -> int:
    """One seed from several numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0]) >> 1
