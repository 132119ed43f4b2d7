"""Negatives of a sampled softmax, and the rows of the output layer that a step updates.

Input: the size of the vocabulary and a random generator.  Output: `Negatives`, and `SampledRows`, which receive the
gradient in place of the (V, P) weight of the output layer. Its dense gradient would cost more than the rest of a step:

    forward, backward = sampler.sample(generator), sampler.sample(generator)
    rows = gather_rows(output, targets_f, forward.ids, targets_b, backward.ids)
    loss_f = sampled_softmax_loss(hidden_f, targets_f, rows, forward)
    loss_b = sampled_softmax_loss(hidden_b, targets_b, rows, backward)
    (0.5 * (loss_f + loss_b)).backward()     # rows.weight.grad and rows.bias.grad; output.weight.grad stays None
    squares.index_add_(0, rows.ids, rows.weight.grad**2)                                         # Adagrad, exactly
    output.weight.data.index_add_(0, rows.ids, -lr * rows.weight.grad / squares[rows.ids].sqrt())

Nothing here waits for a GPU: sizes depend on shapes only, and values are checked only on the CPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from elmokit.network.output import OutputLayer, check_range

# A block this many standard deviations beyond the mean is too small less than once in 10**30 draws.
OVERDRAW_SIGMAS = 12.0


@dataclass(frozen=True)
class Negatives:
    """The sampled words of one sampled softmax."""

    ids: Tensor
    """(S,) distinct word ids, ascending."""
    num_tries: Tensor
    """() number of draws it took to find them, which their expected counts depend on."""
    sampler: LogUniformSampler
    """The distribution they were drawn from."""


class LogUniformSampler:
    """Draws distinct words with P(k) = log((k + 2) / (k + 1)) / log(V + 1): Zipf's law, for ids by falling frequency.

    Args:
        num_words: Number of words V of the vocabulary.
        num_samples: Number of distinct words per draw.

    Raises:
        ValueError: If `num_samples` is not from 1 to V - 1.
    """

    def __init__(self, num_words: int, num_samples: int) -> None:
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

        Draws are made in blocks of a fixed size that practically always suffices. If one does not, another follows on
        the CPU; on a GPU a device assertion fails, because the host cannot wait for the number of distinct words. The
        result is that of drawing one by one from the same uniform numbers.

        Args:
            generator: Random generator.
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
        """Log of the probability that a word is among the draws, 1 - (1 - p)^num_tries.

        Args:
            ids: Word ids, of any shape.
            num_tries: () number of draws.

        Returns:
            float64, in the shape of `ids`.
        """
        p = torch.log1p(1 / (ids.double() + 1)) / math.log(self.num_words + 1)
        return torch.log(-torch.expm1(num_tries * torch.log1p(-p)))

    def _draw(self, generator: torch.Generator) -> Tensor:
        """One block of draws."""
        # float64: the 24 bits of a float32 uniform are too coarse for a million words.
        uniform = torch.rand(self.num_draws, dtype=torch.float64, device=generator.device, generator=generator)
        return (torch.exp(uniform * math.log(self.num_words + 1)).long() - 1).clamp_(0, self.num_words - 1)


@dataclass(frozen=True)
class SampledRows:
    """The rows of an output layer that one step can update, as leaf tensors that receive the gradient in its place.

    `ids` has repeats, so that its length R depends on shapes only and the host does not wait for the number of distinct
    words. Only the first of several rows with the same id is read and receives a gradient; the gradient of the others
    is zero. `index_add_` over `ids` therefore adds the gradient of each word once, and the norm is that of the dense
    gradient.
    """

    ids: Tensor
    """(R,) word ids, ascending, with repeats."""
    weight: Tensor
    """(R, P) copy of the rows."""
    bias: Tensor
    """(R,) copy of the biases."""

    def find(self, ids: Tensor) -> Tensor:
        """Row of each word: the first one with its id.

        Args:
            ids: Word ids, of any shape.

        Raises:
            ValueError: If a word was not gathered (checked on the CPU only).
        """
        rows = torch.searchsorted(self.ids, ids.contiguous())
        if not ids.is_cuda:
            missing = ids[self.ids[rows.clamp(max=len(self.ids) - 1)] != ids]
            if len(missing):
                raise ValueError(
                    f"word {int(missing[0])} was not gathered: pass all targets and negatives to gather_rows"
                )
        return rows


def gather_rows(output: OutputLayer, *ids: Tensor) -> SampledRows:
    """Copy the rows of words.

    Args:
        output: The output layer.
        ids: Word ids of any shapes: targets and negatives of both directions, of all processes.

    Raises:
        ValueError: If there are no words, or an id is outside the vocabulary.
    """
    for words in ids:
        check_range("word", words, output.num_words)
    together = torch.cat([words.reshape(-1) for words in ids]).sort().values
    if not len(together):
        raise ValueError("no words to gather rows for: pass the step's targets and negatives")
    weight = output.weight.detach()[together].requires_grad_()  # (R, P)
    bias = output.bias.detach()[together].requires_grad_()  # (R,)
    return SampledRows(together, weight, bias)


def _first_distinct(draws: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The first `count` distinct draws, ascending; the number of draws it took; whether there were enough.

    All shapes are known beforehand, so that the host does not wait for a GPU.
    """
    values, order = torch.sort(draws, stable=True)  # stable: the first of equal values is the one drawn first
    is_first = torch.ones_like(values, dtype=torch.bool)
    is_first[1:] = values[1:] != values[:-1]
    num_found = torch.empty_like(is_first).scatter_(0, order, is_first).cumsum(0)  # after each draw
    num_tries = (num_found < count).sum() + 1
    is_kept = is_first & (order < num_tries)
    slots = torch.where(is_kept, is_kept.cumsum(0) - 1, count)  # dropped values go to slot `count`
    ids = values.new_zeros(count + 1).scatter_(0, slots, values)[:count]
    return ids, num_tries, num_found[-1] >= count


def _overdraw(num_words: int, num_samples: int) -> int:
    """Number of draws that have `num_samples` distinct words almost certainly, at most 10% above the least number."""
    ids = torch.arange(num_words, dtype=torch.float64)
    log_miss = torch.log1p(-torch.log1p(1 / (ids + 1)) / math.log(num_words + 1))
    num_draws = num_samples
    while True:
        missed = torch.exp(num_draws * log_miss)  # probability that each word is not drawn
        # Draws of different words are negatively correlated: the variance is at most the sum over single words.
        sigma = math.sqrt(float(missed @ (1 - missed)))
        if num_words - float(missed.sum()) - OVERDRAW_SIGMAS * sigma >= num_samples:
            return num_draws
        num_draws += num_draws // 10 + 1
