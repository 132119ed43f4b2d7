"""One training step: characters, two streams through the LSTMs, the loss of both directions, the update.

Enters: batches from `batches`, and the numbers that change with the step (learning rate and the like).  Leaves: changed
weights, optimizer sums and LSTM state; losses are added up on the device.  Nothing in a step waits for the device or
depends on a value, so that on a GPU the step is recorded once as CUDA graphs and replayed.

All parameters lie in one tensor, and so do their gradients: an update, a clip by norm, a reduction over processes or a
running average is then a few operations, however many parameters there are.  Under the sampled softmax the output layer
is apart: a step gathers the few rows that it can touch, and Adagrad changes only those, which is exact.

Random numbers are drawn from generators that every step seeds anew by (seed, position in the streams, process): there
is no generator state to save or to lose.

Legend of shapes: D = 2 directions, T tokens of a row, B rows, P projection, N distinct words, C characters, F filters.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from elmokit.config import BiLMConfig
from elmokit.corpus.heldout import run_streams
from elmokit.network import BiLM, BiLMState, CharacterEncoder
from elmokit.network.losses import (
    LogUniformSampler,
    Negatives,
    OutputLayer,
    SampledRows,
    chunked_softmax_loss,
    gather_rows,
    sampled_softmax_loss,
)
from elmokit.pretraining.batches import Batch, StepBatches
from elmokit.pretraining.settings import PretrainConfig
from elmokit.text import NUM_CHARACTERS

logger = logging.getLogger(__name__)

CPU = torch.device("cpu")
ALIGNMENT = 64  # elements: each parameter begins where wide loads can
EAGER_STEPS = 2  # of a shape, before it is recorded: kernels are compiled and workspaces made in them


class LanguageModel(nn.Module):
    """What is trained: a biLM and the softmax that both directions share."""

    def __init__(self, config: BiLMConfig, num_words: int) -> None:
        super().__init__()
        self.bilm = BiLM(config)
        self.output = OutputLayer(num_words, config.projection_dim)


@dataclass(frozen=True)
class Processes:
    """The processes that train together, each on its share of the rows."""

    rank: int = 0
    world_size: int = 1
    device: torch.device = CPU


@dataclass(frozen=True)
class Rates:
    """The numbers of one update that change from step to step."""

    step: int
    learning_rate: float
    output_learning_rate: float
    ema_share: float
    """Share of the new weights in their running average."""


# ---- characters -> token vectors -------------------------------------------------------------------------------------


def embed_forms(bilm: BiLM, words: list[Tensor]) -> Tensor:
    """Vectors (N, P) of the words of all groups (see `Batch.words`): `BiLM.embed_words`, made for training."""
    encoder = bilm.char_encoder
    if encoder is None:
        assert bilm.word_embedding is not None
        return functional.embedding(words[0].long(), bilm.word_embedding)
    maxima = _character_maxima(encoder, words, bilm.config.max_characters)  # (N, F)
    x = torch.relu(maxima) if encoder.activation == "relu" else torch.tanh(maxima)
    for highway in encoder.highways:
        x = highway(x)  # (N, F)
    return x if encoder.projection is None else encoder.projection(x)  # (N, P)


def _character_maxima(encoder: CharacterEncoder, words: list[Tensor], max_characters: int) -> Tensor:
    convolutions = [layer for layer in encoder.convolutions if isinstance(layer, nn.Conv1d)]
    widest = max(layer.kernel_size[0] for layer in convolutions)
    kernels, biases, limits, begin = [], [], [], 0
    for layer in convolutions:
        assert layer.bias is not None
        kernels.append(functional.pad(layer.weight, (0, widest - layer.kernel_size[0])))  # (channels, d, W)
        biases.append(layer.bias)
        limits.append((begin, begin + layer.out_channels, max_characters - layer.kernel_size[0] + 1))
        begin += layer.out_channels
    table = encoder.char_embedding
    device = table.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else table.dtype
    weight = torch.cat(kernels).transpose(1, 2).flatten(1)  # (F, W d)
    inputs = table.to(dtype), weight.to(dtype), tuple(limits)
    groups = [CharacterMaxima.apply(ids.long(), *inputs) for ids in words]  # type: ignore[no-untyped-call]
    return torch.cat(groups) + torch.cat(biases).to(dtype)


class CharacterMaxima(torch.autograd.Function):
    """Characters (N, C) -> the maximum of each convolution over the positions of the word, (N, F).

    All filters are one product: at each position stands a window of the widest, W, and the weights of a narrower filter
    are followed by zeros.  So ids come with W - 1 more pads than positions, and where a filter ends before the last
    position (`limits`: its channels and its number of positions), what it gives there is taken out.
    """

    @staticmethod
    def forward(
        ctx: Any, ids: Tensor, table: Tensor, weight: Tensor, limits: tuple[tuple[int, int, int], ...]
    ) -> Tensor:
        windows = _windows(ids, table, weight)  # (N, positions, W d)
        scores = windows.reshape(-1, weight.shape[1]) @ weight.T  # (N positions, F)
        scores = scores.view(*windows.shape[:2], -1)
        for begin, end, num_positions in limits:
            if num_positions < scores.shape[1]:
                scores[:, num_positions:, begin:end] = -math.inf
        maxima, positions = scores.max(dim=1)
        ctx.save_for_backward(ids, table, weight, positions)
        return maxima

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        ids, table, weight, positions = ctx.saved_tensors
        windows = _windows(ids, table, weight)
        num_positions, width, dim = windows.shape[1], weight.shape[1] // table.shape[1], table.shape[1]
        scores = gradient.new_zeros(len(ids), num_positions, len(weight))
        scores.scatter_(1, positions.unsqueeze(1), gradient.unsqueeze(1))
        flat = scores.view(-1, len(weight))
        weight_gradient = flat.T @ windows.reshape(-1, weight.shape[1])
        window_gradient = (flat @ weight).view(len(ids), num_positions, width, dim)
        characters = gradient.new_zeros(*ids.shape, dim)  # (N, C, d)
        for offset in range(width):
            characters[:, offset : offset + num_positions] += window_gradient[:, :, offset]
        return None, _sum_by_row(ids, characters, len(table)), weight_gradient, None


def _windows(ids: Tensor, table: Tensor, weight: Tensor) -> Tensor:
    """The vectors of W characters in a row, at each position: (N, positions, W d)."""
    return table[ids].flatten(1).unfold(1, weight.shape[1], table.shape[1])


def _sum_by_row(ids: Tensor, values: Tensor, num_rows: int) -> Tensor:
    """(num_rows, d): the sums of the values of equal ids."""
    ids, values = ids.reshape(-1), values.reshape(-1, values.shape[-1])
    if ids.is_cuda and num_rows <= NUM_CHARACTERS:  # additions to so few rows would wait for each other
        one_hot = (ids.unsqueeze(1) == torch.arange(num_rows, device=ids.device)).to(values.dtype)
        return one_hot.T @ values
    return values.new_zeros(num_rows, values.shape[1]).index_add_(0, ids, values)


class TakeRows(torch.autograd.Function):
    """vectors[index], whose gradient is summed in float32 and never sorts the index."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.num_rows, ctx.dtype = len(vectors), vectors.dtype
        return vectors[index]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        values = gradient.reshape(-1, gradient.shape[-1])
        sums = values.new_zeros(
            ctx.num_rows, values.shape[1], dtype=torch.promote_types(values.dtype, torch.float32)
        ).index_add_(0, index.reshape(-1), values.to(torch.promote_types(values.dtype, torch.float32)))
        return sums.to(ctx.dtype), None


# ---- parameters in one tensor ----------------------------------------------------------------------------------------


class FlatParameters:
    """The parameters of a model, moved into one tensor: first the matrices, then the rest, last those set `apart`."""

    def __init__(self, model: nn.Module, apart: set[str]) -> None:
        named = dict(model.named_parameters())
        order = sorted(named, key=lambda name: (name in apart, named[name].ndim < 2))
        self.places: dict[str, tuple[int, tuple[int, ...]]] = {}
        end = self.num_decayed = self.num_dense = 0
        for name in order:
            self.places[name] = end, tuple(named[name].shape)
            end += -(-named[name].numel() // ALIGNMENT) * ALIGNMENT
            if name not in apart:
                self.num_dense = end
                if named[name].ndim >= 2:
                    self.num_decayed = end
        first = next(iter(named.values()))
        self.values = torch.zeros(end, dtype=first.dtype, device=first.device)
        for name, parameter in named.items():
            parameter.data = self.view(self.values, name).copy_(parameter.data)

    def view(self, flat: Tensor, name: str) -> Tensor:
        """The part of a tensor laid out as the parameters are that belongs to one of them."""
        begin, shape = self.places[name]
        return flat[begin : begin + math.prod(shape)].view(shape)


# ---- the step --------------------------------------------------------------------------------------------------------


class Learner:
    """The weights, the optimizer and the LSTM state of this process, and the step that changes them."""

    def __init__(self, model: LanguageModel, config: PretrainConfig, processes: Processes) -> None:
        self.model, self.config, self.processes = model.to(processes.device), config, processes
        device = processes.device
        self.sampler: LogUniformSampler | None = None
        if config.loss == "sampled":
            self.sampler = LogUniformSampler(model.output.num_words, config.num_negatives)
        apart = {"output.weight", "output.bias"} if self.sampler else set()
        # its parameters keep requires_grad: engines take those that do not for frozen, and remember them
        self.averaged = copy.deepcopy(model) if config.ema_decay is not None else None
        self.flat = FlatParameters(model, apart)
        self._average = FlatParameters(self.averaged, apart) if self.averaged is not None else None
        self.gradients = torch.zeros_like(self.flat.values[: self.flat.num_dense])
        for name, parameter in model.named_parameters():
            if name not in apart:
                parameter.grad = self.flat.view(self.gradients, name)

        # Adagrad's sums of squares begin at a positive number, AdamW's means at zero
        self.squares = torch.zeros_like(self.flat.values)
        self.squares[self.flat.num_dense :] = config.initial_accumulator
        if config.optimizer == "adagrad":
            self.squares[:] = config.initial_accumulator
        self.means = torch.zeros_like(self.gradients) if config.optimizer == "adamw" else None

        state = model.bilm.initial_state(config.batch_size // processes.world_size)
        self.state = BiLMState(state.hidden.clone(), state.cell.clone())
        self.loss_sums = torch.zeros(2, dtype=torch.float64, device=device)
        """Forward and backward losses of the batches since they were last set to zero."""
        self.trouble = torch.zeros(4, dtype=torch.float64, device=device)
        """(step, forward loss, backward loss, norm of the gradient) of the first step that was not finite, or zeros."""
        self.norm = torch.zeros((), device=device)
        self._losses = torch.zeros(2, dtype=torch.float64, device=device)
        self._numbers = torch.zeros(6, dtype=torch.float64, device=device)
        self._dropout = torch.Generator(device)
        self._draws = torch.Generator(device)
        self._rows: SampledRows | None = None
        self._batches: list[Batch] = []
        self._targets: Tensor | None = None
        self._recorder = _Recorder(device, [self._dropout, self._draws]) if device.type == "cuda" else None

    @property
    def trained(self) -> LanguageModel:
        """The model to evaluate and to save: the running average of the weights where one is kept."""
        return self.averaged or self.model

    @property
    def tokens_per_step(self) -> int:
        """Predictions of one update in each direction, in all processes."""
        return self.config.batch_size * self.config.unroll * self.config.accumulation

    def step(self, given: StepBatches, rates: Rates) -> None:
        """One update."""
        first_beta, second_beta = self.config.betas
        numbers = [
            rates.step, rates.learning_rate, rates.output_learning_rate, rates.ema_share,
            1 - first_beta**rates.step, 1 - second_beta**rates.step,
        ]  # fmt: skip
        # not by a generator's own state: a run that goes on from a checkpoint draws what it would have drawn
        place = given.position.step
        self._dropout.manual_seed(_mix(self.config.seed, place, 1 + self.processes.rank))
        self._draws.manual_seed(_mix(self.config.seed, place, 0))  # the same negatives in all processes
        if self._recorder is None:
            self._numbers.copy_(torch.tensor(numbers, dtype=torch.float64))
            self._batches = given.batches
            self._gather_targets()
            self._find_gradients()
            self._reduce()
            self._update()
            return
        with self._recorder.stream():
            self._numbers.copy_(torch.tensor(numbers, dtype=torch.float64).pin_memory(), non_blocking=True)
            self._batches = self._recorder.place(given.batches)
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
        """Gradients of the mean loss of this process, over all its batches; the LSTM state goes on."""
        self.gradients.zero_()
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
        vectors = embed_forms(self.model.bilm, batch.words)  # (N, P)
        tokens: Tensor = TakeRows.apply(vectors, batch.index)  # type: ignore[no-untyped-call]  # (D, T, B, P)
        outputs, after = run_streams(
            self.model.bilm, tokens, state, dropout=self._drop if self.config.dropout else None
        )
        found = []
        for direction in range(2):
            hidden, targets = outputs[direction].flatten(0, 1), batch.targets[direction].flatten()  # (T B, P), (T B,)
            if negatives is None:
                found.append(chunked_softmax_loss(hidden, targets, self.model.output))
            else:
                found.append(sampled_softmax_loss(hidden, targets, rows or self.model.output, negatives[direction]))
        return found[0], found[1], after

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
        dist.all_reduce(self.gradients)
        if self._rows is not None:
            assert self._rows.weight.grad is not None
            assert self._rows.bias.grad is not None
            dist.all_reduce(self._rows.weight.grad)
            dist.all_reduce(self._rows.bias.grad)

    @torch.no_grad()
    def _update(self) -> None:
        """Clip, change the weights by the optimizer, move the running average."""
        step, rate, output_rate, ema_share, first_correction, second_correction = self._numbers.to(
            self.gradients.dtype
        ).unbind()
        rows = self._rows
        parts = [self.gradients]
        if rows is not None:
            assert rows.weight.grad is not None
            assert rows.bias.grad is not None
            parts += [rows.weight.grad, rows.bias.grad]
        norm = torch.stack([torch.linalg.vector_norm(part) for part in parts]).norm()
        now = torch.stack([step.double(), *(self._losses / len(self._batches)), norm.double()])
        is_first = ~torch.isfinite(now).all() & (self.trouble[0] == 0)
        self.trouble.copy_(torch.where(is_first, now, self.trouble))
        self.norm.copy_(norm)
        scale = (self.config.clip_norm / norm).clamp(max=1.0)

        gradients, dense = self.gradients.mul_(scale), self.flat.num_dense
        values, squares = self.flat.values[:dense], self.squares[:dense]
        if self.means is None:
            squares.addcmul_(gradients, gradients)
            values.sub_(gradients.div_(squares.sqrt()).mul_(rate))
        else:
            first_beta, second_beta = self.config.betas
            self.means.lerp_(gradients, 1 - first_beta)
            squares.mul_(second_beta).addcmul_(gradients, gradients, value=1 - second_beta)
            if self.config.weight_decay:
                values[: self.flat.num_decayed].mul_(1 - rate * self.config.weight_decay)
            step_size = torch.div(self.means, (squares / second_correction).sqrt_().add_(self.config.eps))
            values.sub_(step_size.mul_(rate / first_correction))
        if rows is not None:
            factor = scale if self.config.optimizer == "adagrad" else scale * self.config.unroll
            for name, gradient in (("output.weight", rows.weight.grad), ("output.bias", rows.bias.grad)):
                assert gradient is not None
                gradient = gradient * factor
                sums = self.flat.view(self.squares, name).index_add_(0, rows.ids, gradient.square())
                change = gradient.div_(sums[rows.ids].sqrt()).mul_(-output_rate)
                self.flat.view(self.flat.values, name).index_add_(0, rows.ids, change)
        if self._average is not None:
            self._average.values.lerp_(self.flat.values, ema_share)

    def finish(self) -> None:
        """Wait until all steps are done, so that the weights and the sums can be read."""
        if self._recorder is not None:
            torch.cuda.synchronize(self.processes.device)

    def tensors(self) -> dict[str, Tensor]:
        """Everything that a step reads and changes; the LSTM state is that of this process's rows."""
        found = {
            "values": self.flat.values,
            "squares": self.squares,
            "loss_sums": self.loss_sums,
            "hidden": self.state.hidden,
            "cell": self.state.cell,
        }
        if self.means is not None:
            found["means"] = self.means
        if self._average is not None:
            found["average"] = self._average.values
        return found

    def restore(self, tensors: dict[str, Tensor], *, source: str) -> None:
        """Take what `tensors` gave."""
        for name, own in self.tensors().items():
            given = tensors.get(name)
            if given is None or given.shape != own.shape:
                found = "missing" if given is None else f"{tuple(given.shape)}, this run needs {tuple(own.shape)}"
                raise ValueError(f"{source}: {name} is {found}")
            own.copy_(given)


class _Recorder:
    """Runs the parts of a step on a GPU: a shape's first steps eagerly, then as graphs that were recorded once."""

    def __init__(self, device: torch.device, generators: list[torch.Generator]) -> None:
        self._generators = generators
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._shapes: list[torch.Size] = []
        self._placed: list[Batch] = []
        self._graphs: dict[str, torch.cuda.CUDAGraph] = {}
        self._num_steps = 0
        self._works = True

    @contextlib.contextmanager
    def stream(self) -> Iterator[None]:
        self._stream.wait_stream(torch.cuda.current_stream())  # where weights were made, restored or measured
        with torch.cuda.stream(self._stream):
            yield

    def place(self, batches: list[Batch]) -> list[Batch]:
        """Copy batches to where the graphs read them; other shapes than before begin anew."""
        given = [tensor for batch in batches for tensor in batch.tensors()]
        shapes = [tensor.shape for tensor in given]
        if shapes != self._shapes:
            self._stream.synchronize()  # the graphs and the batches that it may still be reading go away
            device = self._stream.device
            self._placed = [
                Batch(
                    [torch.empty_like(words, device=device) for words in batch.words],
                    torch.empty_like(batch.index, device=device),
                    torch.empty_like(batch.targets, device=device),
                )
                for batch in batches
            ]
            self._shapes, self._graphs, self._num_steps = shapes, {}, 0
        for own, tensor in zip((t for batch in self._placed for t in batch.tensors()), given, strict=True):
            own.copy_(tensor, non_blocking=True)
        self._num_steps += 1
        return self._placed

    def run(self, name: str, part: Callable[[], None]) -> None:
        if not self._works or self._num_steps <= EAGER_STEPS:
            part()
            return
        if name not in self._graphs:
            graph = torch.cuda.CUDAGraph()
            for generator in self._generators:
                graph.register_generator_state(generator)
            try:
                # the loader's thread pins memory meanwhile, which only this mode allows
                with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                    part()
            except RuntimeError as error:
                logger.warning("training goes on without CUDA graphs, slower: the step cannot be recorded (%s)", error)
                self._works, self._graphs = False, {}
                part()
                return
            self._graphs[name] = graph
        self._graphs[name].replay()


def _mix(*numbers: int) -> int:
    """One seed from several numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0]) >> 1
