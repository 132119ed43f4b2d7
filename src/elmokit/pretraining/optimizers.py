"""Optimizers and the learning rate schedule.

Input: the parameters of a model and their gradients, each in one tensor, and the learning rates of the step.  Output:
updated parameters.  With all parameters in one tensor an update, clipping, a sum over processes and a running average
are a few operations for any number of parameters.

Under the sampled softmax the output layer is separate: a step gathers the rows that it can change, and Adagrad updates
only these, which is exact.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from elmokit.network.sampling import SampledRows
from elmokit.pretraining import muon
from elmokit.pretraining.settings import PretrainConfig

ALIGNMENT = 64  # each parameter begins at a multiple of this many elements, for wide loads


@dataclass(frozen=True)
class Rates:
    """The numbers of an update that depend on the step."""

    step: int
    """Number of the update in this run, from 1."""
    learning_rate: float
    output_learning_rate: float
    """Learning rate of the output layer under the sampled softmax."""
    ema_fraction: float
    """Weight of the new parameters in their running average."""


def rates_at(config: PretrainConfig, step: int, num_steps: int) -> Rates:
    """Learning rates of one update: linear warm-up, then a cosine.

    Args:
        config: Settings of the run.
        step: Number of the update, from `first_step` + 1.
        num_steps: Number of updates of the complete training.
    """
    own_step = step - config.first_step
    warmup = min(1.0, own_step / config.warmup_steps) if config.warmup_steps else 1.0
    progress = min(1.0, max(0, step - config.warmup_steps) / max(1, num_steps - config.warmup_steps))
    factor = warmup * (config.final_rate + (1 - config.final_rate) * 0.5 * (1 + math.cos(math.pi * progress)))
    output_rate = config.learning_rate if config.output_learning_rate is None else config.output_learning_rate
    # a smaller decay in the first steps: the average forgets the initial weights sooner
    decay = 0.0 if config.ema_decay is None else min(config.ema_decay, own_step / (own_step + 10))
    return Rates(own_step, config.learning_rate * factor, output_rate * factor, 1 - decay)


class FlatParameters:
    """The parameters of a model in one tensor, in this order: those of Muon, other matrices, the rest, separate ones.

    Args:
        model: The model; its parameters become views of the tensor.
        separate: Names of parameters that have no dense gradient.
        muon_names: Names of parameters that Muon updates.
    """

    def __init__(self, model: nn.Module, separate: Collection[str], muon_names: Collection[str]) -> None:
        named = dict(model.named_parameters())
        order = sorted(named, key=lambda name: (name in separate, name not in muon_names, named[name].ndim < 2))
        self._begins: dict[str, tuple[int, tuple[int, ...]]] = {}
        end = self.num_muon = self.num_decayed = self.num_dense = 0
        for name in order:
            self._begins[name] = end, tuple(named[name].shape)
            end += -(-named[name].numel() // ALIGNMENT) * ALIGNMENT
            if name not in separate:
                self.num_dense = end
                if name in muon_names:
                    self.num_muon = end
                if named[name].ndim >= 2:
                    self.num_decayed = end
        like = next(iter(named.values()))
        self.values = torch.zeros(end, dtype=like.dtype, device=like.device)
        for name, parameter in named.items():
            parameter.data = self.view(self.values, name).copy_(parameter.data)

    def layout(self) -> dict[str, list[int]]:
        """[first element, *shape] of each parameter in the tensor, as JSON values."""
        return {name: [begin, *shape] for name, (begin, shape) in self._begins.items()}

    def view(self, flat: Tensor, name: str) -> Tensor:
        """The part of a tensor of this layout that belongs to one parameter, in its shape."""
        begin, shape = self._begins[name]
        return flat[begin : begin + math.prod(shape)].view(shape)


class Optimizer:
    """Adagrad, AdamW, or Muon with AdamW for other parameters than matrices.

    Args:
        config: Which optimizer, and its constants.
        model: The model, whose parameters move into one tensor (`flat`).
        separate: Names of the output layer's parameters under the sampled softmax: Adagrad updates their rows.
    """

    def __init__(self, config: PretrainConfig, model: nn.Module, separate: Collection[str]) -> None:
        self.config = config
        self._muon_names: list[str] = []  # a list: the order of the matrices is part of the result
        if config.optimizer == "muon":
            self._muon_names = [name for name, _ in model.named_parameters() if muon.is_matrix(name)]
        self.flat = FlatParameters(model, separate, self._muon_names)
        self.gradients = torch.zeros_like(self.flat.values[: self.flat.num_dense])
        for name, parameter in model.named_parameters():
            if name not in separate:
                parameter.grad = self.flat.view(self.gradients, name)
        # Adagrad's sums of squares start at `initial_accumulator`, the means of AdamW and Muon at zero
        self.squares = torch.zeros_like(self.flat.values)
        self.squares[self.flat.num_dense :] = config.initial_accumulator
        if config.optimizer == "adagrad":
            self.squares[:] = config.initial_accumulator
        self.means = torch.zeros_like(self.gradients) if config.optimizer != "adagrad" else None

    def like(self, model: nn.Module, separate: Collection[str]) -> FlatParameters:
        """The parameters of a copy of the model, in the same layout."""
        return FlatParameters(model, separate, self._muon_names)

    def tensors(self) -> dict[str, Tensor]:
        """The tensors of a checkpoint: parameters, squares and means."""
        means = {} if self.means is None else {"means": self.means}
        return {"values": self.flat.values, "squares": self.squares, **means}

    def bias_corrections(self, step: int) -> tuple[float, float]:
        """Divisors of AdamW's means of gradients and of their squares at a step."""
        first_beta, second_beta = self.config.betas
        return 1 - first_beta**step, 1 - second_beta**step

    def gradient_norm(self, rows: SampledRows | None) -> Tensor:
        """Norm of all gradients together: ().

        Args:
            rows: Rows of the output layer with their gradients, under the sampled softmax.
        """
        parts = [self.gradients]
        if rows is not None:
            assert rows.weight.grad is not None
            assert rows.bias.grad is not None
            parts += [rows.weight.grad, rows.bias.grad]
        norm: Tensor = torch.stack([torch.linalg.vector_norm(part) for part in parts]).norm()
        return norm

    def update(
        self, scale: Tensor, rate: Tensor, output_rate: Tensor, corrections: tuple[Tensor, Tensor],
        rows: SampledRows | None,
    ) -> None:  # fmt: skip
        """Update the parameters.

        Args:
            scale: Factor of the gradients that clips their norm.
            rate: Learning rate.
            output_rate: Learning rate of the output layer's rows.
            corrections: See `bias_corrections`.
            rows: Rows of the output layer with their gradients, under the sampled softmax.
        """
        self.gradients.mul_(scale)
        if self.means is None:
            self._adagrad(rate)
        else:
            self._adamw_and_muon(self.means, rate, corrections)
        if rows is not None:
            # Adagrad's gradient is that of the loss x unroll, as published
            factor = scale if self.config.optimizer == "adagrad" else scale * self.config.unroll
            self._adagrad_rows(rows, factor, output_rate)

    def _adagrad(self, rate: Tensor) -> None:
        dense = self.flat.num_dense
        values, squares = self.flat.values[:dense], self.squares[:dense]
        squares.addcmul_(self.gradients, self.gradients)
        values.sub_(self.gradients.div_(squares.sqrt()).mul_(rate))

    def _adamw_and_muon(self, means: Tensor, rate: Tensor, corrections: tuple[Tensor, Tensor]) -> None:
        flat, config, gradients = self.flat, self.config, self.gradients
        values, squares = flat.values[: flat.num_dense], self.squares[: flat.num_dense]
        if config.weight_decay:
            values[: flat.num_decayed].mul_(1 - rate * config.weight_decay)
        if flat.num_muon:
            muon.move_means(gradients[: flat.num_muon], means[: flat.num_muon])
            matrices = [(name, flat.view(values, name), flat.view(gradients, name)) for name in self._muon_names]
            muon.update(matrices, rate)
        values, gradients, squares, means = (part[flat.num_muon :] for part in (values, gradients, squares, means))
        first_beta, second_beta = config.betas
        first_correction, second_correction = corrections
        means.lerp_(gradients, 1 - first_beta)
        squares.mul_(second_beta).addcmul_(gradients, gradients, value=1 - second_beta)
        step_size = torch.div(means, (squares / second_correction).sqrt_().add_(config.eps))
        values.sub_(step_size.mul_(rate / first_correction))

    def _adagrad_rows(self, rows: SampledRows, factor: Tensor, rate: Tensor) -> None:
        for name, gradient in (("output.weight", rows.weight.grad), ("output.bias", rows.bias.grad)):
            assert gradient is not None
            gradient = gradient * factor
            sums = self.flat.view(self.squares, name).index_add_(0, rows.ids, gradient.square())
            change = gradient.div_(sums[rows.ids].sqrt()).mul_(-rate)
            self.flat.view(self.flat.values, name).index_add_(0, rows.ids, change)
