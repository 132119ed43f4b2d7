"""One training step: forward pass of both streams, loss of both directions, backward pass, update.

Input: batches from `batches.py`, and the learning rates of the step.  Output: updated weights, optimizer state and the
state of the rows; losses are summed on the device.  Nothing in a step waits for the device or depends on a value, so
that on a GPU the step is recorded once as CUDA graphs and replayed (`recorder.py`).

Random generators are seeded at every step by (seed, position in the streams, process): a checkpoint needs no generator
state.

Shapes: D = 2 directions, T tokens per row, B rows, P projection, N distinct words.
"""

from __future__ import annotations

import contextlib
import copy
import math
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from elmokit.config import BiLMConfig
from elmokit.network import AttentionState, BiLM, OutputLayer, State, take_rows
from elmokit.network.losses import chunked_softmax_loss, sampled_softmax_loss
from elmokit.network.sampling import LogUniformSampler, Negatives, SampledRows, gather_rows
from elmokit.pretraining.batches import Batch, StepBatches
from elmokit.pretraining.optimizers import Optimizer, Rates
from elmokit.pretraining.processes import Processes
from elmokit.pretraining.recorder import GraphRecorder
from elmokit.pretraining.settings import PretrainConfig


class LanguageModel(nn.Module):
    """What is trained: a biLM and the output layer that both directions share.

    Args:
        config: Sizes of the biLM.
        num_words: Number of words of the vocabulary.
    """

    def __init__(self, config: BiLMConfig, num_words: int) -> None:
        super().__init__()
        self.bilm = BiLM(config)
        self.output = OutputLayer(num_words, config.projection_dim)


class Learner:
    """The weights, the optimizer and the state of the rows of this process, and the training step.

    Args:
        model: The model to train. It is moved to the device of this process.
        config: Settings of the run.
        processes: The processes that train together.
    """

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

        self.state = self._initial_state(config.batch_size // processes.world_size)
        """The state of the rows, which the next batch starts from; None if every row is always reset."""
        self.loss_sums = torch.zeros(2, dtype=torch.float64, device=device)
        """(2,): sums of the forward and backward losses since the last report."""
        self.non_finite = torch.zeros(4, dtype=torch.float64, device=device)
        """(step, forward loss, backward loss, gradient norm) of the first step that was not finite; zeros before."""
        self.norm = torch.zeros((), device=device)
        self._losses = torch.zeros(2, dtype=torch.float64, device=device)
        self._numbers = torch.zeros(6, dtype=torch.float64, device=device)
        self._dropout = torch.Generator(device)
        self._draws = torch.Generator(device)
        self._rows: SampledRows | None = None
        self._batches: list[Batch] = []
        self._targets: Tensor | None = None
        self._recorder = GraphRecorder(device, [self._dropout, self._draws]) if device.type == "cuda" else None

    def _initial_state(self, num_rows: int) -> State | None:
        """Zeros. A transformer's are as narrow as its products; if no row keeps them, there are none."""
        state = self.model.bilm.initial_state(num_rows)
        if isinstance(state, AttentionState):
            if self.config.state_reset == 1.0:
                return None
            if self.config.precision == "bfloat16":
                state = AttentionState(state.past_keys.bfloat16(), state.past_values.bfloat16(), state.num_past)
        return state

    @property
    def trained(self) -> LanguageModel:
        """The model to evaluate and to save: with `ema_decay` the running average of the weights."""
        return self.averaged or self.model

    @property
    def tokens_per_step(self) -> int:
        """Number of predictions per update and direction, in all processes."""
        return self.config.batch_size * self.config.unroll * self.config.accumulation

    def step(self, batches: StepBatches, rates: Rates) -> None:
        """Do one update.

        Args:
            batches: `accumulation` batches.
            rates: Learning rates of this step.
        """
        numbers = [
            rates.step, rates.learning_rate, rates.output_learning_rate, rates.ema_fraction,
            *self.optimizer.bias_corrections(rates.step),
        ]  # fmt: skip
        # seeded by the position, so that a resumed run draws the same numbers
        position = batches.position.step
        self._dropout.manual_seed(_combine_seeds(self.config.seed, position, 1 + self.processes.rank))
        self._draws.manual_seed(_combine_seeds(self.config.seed, position, 0))  # the same negatives in all processes
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
        """Gather the targets of all processes: the sampled softmax updates their rows of the output layer."""
        if self.sampler is None or self.processes.world_size == 1:
            return
        own = torch.stack([batch.targets for batch in self._batches])
        parts = [torch.empty_like(own) for _ in range(self.processes.world_size)]
        dist.all_gather(parts, own)
        together = torch.stack(parts)
        if self._targets is None:
            self._targets = together
        self._targets.copy_(together)  # into the tensor that a recorded graph reads

    def _find_gradients(self) -> None:
        """Compute the gradients of the mean loss over all batches of this process, and carry the state of the rows."""
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
            if self.config.state_reset and self.state is not None:
                self._reset_rows(self.state)
            with self._precision():
                forward, backward, state = self.losses(
                    batch, self.state, rows=self._rows, negatives=negatives[number] if negatives else None
                )
            ((forward + backward) * scale).backward()  # type: ignore[no-untyped-call]
            if self.state is not None and state is not None:
                for carried, after in zip(self.state, state, strict=True):
                    carried.copy_(after.detach())
            self._losses += torch.stack([forward.detach(), backward.detach()])
        self.loss_sums += self._losses

    def _reset_rows(self, state: State) -> None:
        """Let a random fraction of the rows start anew: an LSTM from zeros, a transformer from no tokens."""
        keep = self.norm.new_empty(state[0].shape[2])  # (B,)
        keep.bernoulli_(1.0 - self.config.state_reset, generator=self._dropout)
        # keys and values that are no tokens are not read
        for carried in [state.num_past] if isinstance(state, AttentionState) else state:  # (L, D, B, …)
            carried.mul_(keep.to(carried.dtype).view(-1, *[1] * (carried.ndim - 3)))

    def losses(
        self,
        batch: Batch,
        state: State | None,
        *,
        rows: SampledRows | None = None,
        negatives: tuple[Negatives, Negatives] | None = None,
    ) -> tuple[Tensor, Tensor, State | None]:
        """Mean loss of each direction on one batch.

        Args:
            batch: Words and targets, on the device.
            state: State before the batch; None if every row starts anew.
            rows: Rows of the output layer that the sampled softmax updates; None for the output layer itself.
            negatives: Negatives of the forward and of the backward direction; None for the full softmax.

        Returns:
            Loss of the forward direction (), of the backward direction (), and the state after the batch.
        """
        bilm = self.model.bilm
        tokens = take_rows(bilm.embed_groups(batch.words), batch.index)  # (D, T, B, P)
        lengths = torch.full((tokens.shape[2],), tokens.shape[1], dtype=torch.long, device=tokens.device)
        dropout = self._drop if self.config.dropout else None
        (top,), after = bilm.run_layers(
            tokens, lengths, state, dropout=dropout, with_state=state is not None, only_top=True
        )
        losses = []
        for direction, vectors in enumerate(top.unbind()):  # not an index, whose gradient is as large as both
            hidden, targets = vectors.flatten(0, 1), batch.targets[direction].flatten()  # (T B, P), (T B,)
            if negatives is None:
                losses.append(chunked_softmax_loss(hidden, targets, self.model.output))
            else:
                losses.append(sampled_softmax_loss(hidden, targets, rows or self.model.output, negatives[direction]))
        return losses[0], losses[1], after

    def _drop(self, x: Tensor) -> Tensor:
        """Dropout with this process's generator."""
        keep = 1.0 - self.config.dropout
        mask = torch.empty_like(x).bernoulli_(keep, generator=self._dropout)
        return (x * mask) * (1.0 / keep)  # not a scaled mask: 1 / 0.9 is not exact in bfloat16

    def _precision(self) -> contextlib.AbstractContextManager[Any]:
        """Autocast to bfloat16 where the settings ask for it."""
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
        """Clip the gradients, update the weights and their running average."""
        step, rate, output_rate, ema_fraction, *corrections = self._numbers.to(self.optimizer.gradients.dtype).unbind()
        norm = self.optimizer.gradient_norm(self._rows)
        now = torch.stack([step.double(), *(self._losses / len(self._batches)), norm.double()])
        is_first = ~torch.isfinite(now).all() & (self.non_finite[0] == 0)
        self.non_finite.copy_(torch.where(is_first, now, self.non_finite))
        self.norm.copy_(norm)
        scale = (self.config.clip_norm / norm).clamp(max=1.0)
        self.optimizer.update(scale, rate, output_rate, (corrections[0], corrections[1]), self._rows)
        if self._average is not None:
            self._average.values.lerp_(self.optimizer.flat.values, ema_fraction)

    def find_non_finite(self, step: int, *, weights: bool = False) -> str | None:
        """Describe the first step whose losses or gradients were not finite or, with `weights`, the weights now.

        Args:
            step: Number of updates done.
            weights: Also check the weights.

        Returns:
            The step, and what is not finite there; None if everything is finite.
        """
        self.finish()
        first_step, forward, backward, norm = self.non_finite.tolist()
        if first_step > 0:
            values = {"forward loss": forward, "backward loss": backward, "norm of the gradient": norm}
            names = " and the ".join(name for name, value in values.items() if not math.isfinite(value))
            problem = f"step {int(first_step)}: the {names} is not finite"
            problem += f" (forward loss {forward}, backward loss {backward}, norm {norm})"
        elif weights and not bool(torch.isfinite(self.optimizer.flat.values).all()):
            problem = f"step {step}: the weights after it are not finite"
        else:
            return None
        for name, parameter in self.model.named_parameters():
            if not bool(torch.isfinite(parameter.detach()).all()):
                return f"{problem}, first in {name}"
        return problem

    def finish(self) -> None:
        """Wait until all steps are done, so that the weights and the sums can be read."""
        if self._recorder is not None:
            torch.cuda.synchronize(self.processes.device)

    def _carried(self) -> dict[str, Tensor]:
        """The state of the rows by name, such as "hidden" and "cell"; rows are the third dimension."""
        return {} if self.state is None else self.state._asdict()

    def tensors(self) -> dict[str, Tensor]:
        """All tensors that a step reads and changes; the state is that of this process's rows."""
        tensors = self.optimizer.tensors() | {"loss_sums": self.loss_sums} | self._carried()
        if self._average is not None:
            tensors["average"] = self._average.values
        return tensors

    def gather_tensors(self) -> dict[str, Tensor]:
        """What a checkpoint keeps: `tensors`, with the state of the rows of all processes and the mean losses.

        The number of processes may then change when a run is resumed.
        """
        tensors, world_size = self.tensors(), self.processes.world_size
        if world_size > 1:
            for name in self._carried():
                parts = [torch.empty_like(tensors[name]) for _ in range(world_size)]
                dist.all_gather(parts, tensors[name])
                tensors[name] = torch.cat(parts, dim=2)
            tensors["loss_sums"] = tensors["loss_sums"].clone()
            dist.all_reduce(tensors["loss_sums"])
            tensors["loss_sums"] /= world_size
        return tensors

    def restore(self, tensors: dict[str, Tensor], *, source: str) -> None:
        """Load the tensors of a checkpoint.

        Args:
            tensors: What `gather_tensors` returned, in this or another number of processes.
            source: Name of the checkpoint, for error messages.

        Raises:
            ValueError: If a tensor is missing or has another shape.
        """
        num_rows = self.config.batch_size // self.processes.world_size
        own_rows = slice(self.processes.rank * num_rows, (self.processes.rank + 1) * num_rows)
        for name, own in self.tensors().items():
            saved = tensors.get(name)
            if saved is not None and name in self._carried() and self.processes.world_size > 1:
                saved = saved[:, :, own_rows]
            if saved is None or saved.shape != own.shape:
                problem = "missing" if saved is None else f"{tuple(saved.shape)}, this run needs {tuple(own.shape)}"
                raise ValueError(f"{source}: {name} is {problem}")
            own.copy_(saved)


def _combine_seeds(*numbers: int) -> int:
    """One seed from several numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0]) >> 1
