"""Words drawn to stand for the vocabulary in a sampled softmax, and the rows of the output layer that a step touches.

Input: the size of the vocabulary and a random generator.  Output: `Negatives`, and `SampledRows` that take the gradient
in place of the output layer's (V, P) weight, whose dense gradient would cost more than the rest of a step:

    forward, backward = sampler.sample(generator), sampler.sample(generator)
    rows = gather_rows(output, targets_f, forward.ids, targets_b, backward.ids)
    loss_f = sampled_softmax_loss(hidden_f, targets_f, rows, forward)
    loss_b = sampled_softmax_loss(hidden_b, targets_b, rows, backward)
    (0.5 * (loss_f + loss_b)).backward()     # rows.weight.grad and rows.bias.grad; output.weight.grad stays None
    squares.index_add_(0, rows.ids, rows.weight.grad**2)                                         # Adagrad, exactly
    output.weight.data.index_add_(0, rows.ids, -lr * rows.weight.grad / squares[rows.ids].sqrt())

Nothing here waits for a GPU: sizes depend on shapes only, so values are checked only where they are on the CPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from elmokit.network.output import OutputLayer, check_range

# An over-draw this many standard deviations beyond the mean falls short less than once in 10**30 draws.
OVERDRAW_SIGMAS = 12.0


@dataclass(frozen=True)
class Negatives:
    """Words drawn to stand for the vocabulary in one sampled softmax."""

    ids: Tensor
    """(S,) distinct word ids, ascending."""
    num_tries: Tensor
    """() draws it took to find them: what their expected counts depend on."""
    sampler: LogUniformSampler
    """The distribution they came from."""


class LogUniformSampler:
    """Draws distinct words with P(k) = log((k + 2) / (k + 1)) / log(V + 1): Zipf's law, ids by falling frequency."""

    def __init__(self, num_words: int, num_samples: int) -> None:
        """Draw `num_samples` of `num_words` words; a draw of all of them would be the full softmax."""
        if not 1 <= num_samples < num_words:
            raise ValueError(
                f"cannot draw {num_samples} distinct negatives from {num_words} words: "
                f"num_samples must be from 1 to {num_words - 1}; for a small vocabulary use the full softmax"
            )
        self.num_words = num_words
        self.num_samples = num_samples
        self.num_draws = _overdraw(num_words, num_samples)

    def sample(self, generator: torch.Generator) -> Negatives:
        """Draw with replacement until `num_samples` distinct words are found, on the generator's device.

        Draws come in blocks of a fixed size that practically always suffices. On the CPU a block that falls short is
        followed by another; on a GPU it raises a device assertion, so that a draw never waits for the host and is
        never wrong in silence. Either way the result is what drawing one by one from the same uniforms gives.
        """
        draws = self._draw(generator)
        while True:
            ids, num_tries, enough = _first_distinct(draws, self.num_samples)
            if draws.is_cuda:
                torch._assert_async(enough)
                break
            if enough:
                break
            draws = torch.cat([draws, self._draw(generator)])
        return Negatives(ids, num_tries, self)

    def log_expected_counts(self, ids: Tensor, num_tries: Tensor) -> Tensor:
        """Log of the chance that each word is among `num_tries` draws, 1 - (1 - p)^tries, in float64."""
        p = torch.log1p(1 / (ids.double() + 1)) / math.log(self.num_words + 1)
        return torch.log(-torch.expm1(num_tries * torch.log1p(-p)))

    def _draw(self, generator: torch.Generator) -> Tensor:
        # float64: the 24 bits of a float32 uniform are too coarse to reach each of a million words in proportion.
        uniform = torch.rand(self.num_draws, dtype=torch.float64, device=generator.device, generator=generator)
        return (torch.exp(uniform * math.log(self.num_words + 1)).long() - 1).clamp_(0, self.num_words - 1)


@dataclass(frozen=True)
class SampledRows:
    """The rows of an output layer that one step can touch, as leaf tensors that take the gradient in its place.

    `ids` keeps repeats, so that its length R depends on shapes alone and a GPU need not tell the host how many words
    are distinct. Only the first row of each run of equal ids is read and receives gradient; the others get exact zeros.
    So `index_add_` over `ids` adds each word's whole gradient once, and the gradient's norm is that of the dense one.
    """

    ids: Tensor
    """(R,) word ids, ascending, with repeats."""
    weight: Tensor
    """(R, P) copy of the rows."""
    bias: Tensor
    """(R,) copy of the biases."""

    def find(self, ids: Tensor) -> Tensor:
        """Row of each word: the first that holds its id."""
        rows = torch.searchsorted(self.ids, ids.contiguous())
        if not ids.is_cuda:
            missing = ids[self.ids[rows.clamp(max=len(self.ids) - 1)] != ids]
            if len(missing):
                raise ValueError(
                    f"word {int(missing[0])} was not gathered: pass all targets and negatives to gather_rows"
                )
        return rows


def gather_rows(output: OutputLayer, *ids: Tensor) -> SampledRows:
    """Copy the rows of all words in `ids`: the targets and the negatives of both directions (and of all processes)."""
    for words in ids:
        check_range("word", words, output.num_words)
    together = torch.cat([words.reshape(-1) for words in ids]).sort().values
    if not len(together):
        raise ValueError("no words to gather rows for: pass the step's targets and negatives")
    weight = output.weight.detach()[together].requires_grad_()  # (R, P)
    bias = output.bias.detach()[together].requires_grad_()  # (R,)
    return SampledRows(together, weight, bias)


def _first_distinct(draws: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The first `count` distinct draws, ascending; how many draws that took; and whether there were so many.

    All shapes are known beforehand, so that a GPU runs through without the host.
    """
    values, order = torch.sort(draws, stable=True)  # stable: the first of equal values is the one drawn first
    is_first = torch.ones_like(values, dtype=torch.bool)
    is_first[1:] = values[1:] != values[:-1]
    num_found = torch.empty_like(is_first).scatter_(0, order, is_first).cumsum(0)  # after each draw
    num_tries = (num_found < count).sum() + 1
    is_kept = is_first & (order < num_tries)
    slots = torch.where(is_kept, is_kept.cumsum(0) - 1, count)  # slot `count` takes what is dropped
    ids = values.new_zeros(count + 1).scatter_(0, slots, values)[:count]
    return ids, num_tries, num_found[-1] >= count


def _overdraw(num_words: int, num_samples: int) -> int:
    """Draws after which `num_samples` distinct words are all but certain: up to a tenth more than the least number."""
    ids = torch.arange(num_words, dtype=torch.float64)
    log_miss = torch.log1p(-torch.log1p(1 / (ids + 1)) / math.log(num_words + 1))
    num_draws = num_samples
    while True:
        missed = torch.exp(num_draws * log_miss)  # chance of each word not to be drawn
        # Words crowd each other out, so the variance of the number found is at most the sum over single words.
        sigma = math.sqrt(float(missed @ (1 - missed)))
        if num_words - float(missed.sum()) - OVERDRAW_SIGMAS * sigma >= num_samples:
            return num_draws
        num_draws += num_draws // 10 + 1
