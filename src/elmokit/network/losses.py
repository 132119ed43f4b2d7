"""The biLM's objective: softmax over a vocabulary, in full, in chunks, or over log-uniform samples.

In go the top layer of one direction, `hidden` (N, P), and the words to predict, `targets` (N,); out comes the mean
negative log-probability, ready for `backward`. Both directions share one `OutputLayer`.

- `full_softmax_loss` is the readable truth: it holds all (N, V) scores.
- `chunked_softmax_loss` is the same number and never holds more than a chunk of them.
- `sampled_softmax_loss` compares each target with S words drawn by `LogUniformSampler` (Jean et al., 2015, as in
  TensorFlow: unique draws, log expected counts subtracted, accidental hits removed).

The last two compute the gradient in the forward pass, while a chunk of scores is at hand; backward only scales it.

A step of sampled softmax touches few rows of the (V, P) weight, whose dense gradient would cost more than the rest of
the step. `gather_rows` copies the rows that a step can touch into a small leaf tensor that takes the gradient instead:

    forward, backward = sampler.sample(generator), sampler.sample(generator)
    rows = gather_rows(output, targets_f, forward.ids, targets_b, backward.ids)
    loss_f = sampled_softmax_loss(hidden_f, targets_f, rows, forward)
    loss_b = sampled_softmax_loss(hidden_b, targets_b, rows, backward)
    (0.5 * (loss_f + loss_b)).backward()     # rows.weight.grad and rows.bias.grad; output.weight.grad stays None
    squares.index_add_(0, rows.ids, rows.weight.grad**2)                                         # Adagrad, exactly
    output.weight.data.index_add_(0, rows.ids, -lr * rows.weight.grad / squares[rows.ids].sqrt())

Nothing here waits for a GPU: sizes depend on shapes alone, so values are checked only where they live on the CPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elmokit import kernels

# Scores held at a time where the caller sets no chunk: 256 MiB in float32 on a CPU, 1 GiB on a GPU, whose products are
# fast enough to notice how often the (C, P) gradient is added to.
SCORES_PER_CHUNK = {"cpu": 2**26, "cuda": 2**28}

# A vocabulary of 60,003 words makes rows of scores that begin at odd addresses, for which matrix products take half the
# speed of a GPU: columns that nothing can choose fill them up.
COLUMN_MULTIPLE = {"cpu": 1, "cuda": 64}

# An over-draw this many standard deviations beyond the mean falls short less than once in 10**30 draws.
OVERDRAW_SIGMAS = 12.0


class OutputLayer(nn.Module):
    """The softmax layer that both directions share: one row and one bias for each word of the vocabulary."""

    def __init__(self, num_words: int, dim: int) -> None:
        """Start as published: weight (V, P) from N(0, 1 / sqrt(P)), bias (V,) at zero."""
        super().__init__()
        if num_words < 1 or dim < 1:
            raise ValueError(f"an output layer needs at least one word and one dimension, not {num_words} and {dim}")
        self.weight = nn.Parameter(torch.randn(num_words, dim) / math.sqrt(dim))
        self.bias = nn.Parameter(torch.zeros(num_words))

    @property
    def num_words(self) -> int:
        """The size V of the vocabulary."""
        return self.weight.shape[0]

    def logits(self, hidden: Tensor) -> Tensor:
        """Score every word: (..., P) -> (..., V), in the dtype of `hidden`."""
        return F.linear(hidden, self.weight.to(hidden.dtype), self.bias.to(hidden.dtype))

    def log_probs(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Log-probability of each target, (..., P) and (...) -> (...), holding one chunk of scores at a time."""
        flat_hidden, flat_targets = hidden.reshape(-1, hidden.shape[-1]), targets.reshape(-1)
        chunk = _chunk_tokens(None, self.num_words, hidden)
        losses = [
            full_softmax_loss(h, t, self)
            for h, t in zip(torch.split(flat_hidden, chunk), torch.split(flat_targets, chunk), strict=True)
        ]
        return -torch.cat(losses).reshape(targets.shape)


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
        _check_range("word", words, output.num_words)
    together = torch.cat([words.reshape(-1) for words in ids]).sort().values
    if not len(together):
        raise ValueError("no words to gather rows for: pass the step's targets and negatives")
    weight = output.weight.detach()[together].requires_grad_()  # (R, P)
    bias = output.bias.detach()[together].requires_grad_()  # (R,)
    return SampledRows(together, weight, bias)


def full_softmax_loss(hidden: Tensor, targets: Tensor, output: OutputLayer) -> Tensor:
    """Negative log-probability of each target: (N, P) and (N,) -> (N,)."""
    _check_tokens(hidden, targets, None, output)
    _check_range("target", targets, output.num_words)
    logits = output.logits(hidden)  # (N, V)
    return F.cross_entropy(logits.to(_accumulation_dtype(logits)), targets, reduction="none")


def chunked_softmax_loss(
    hidden: Tensor,
    targets: Tensor,
    output: OutputLayer,
    *,
    weights: Tensor | None = None,
    chunk_tokens: int | None = None,
) -> Tensor:
    """Mean of `full_softmax_loss`, and its gradient, holding (chunk_tokens, V) scores at a time.

    Args:
        hidden: (N, P); products are made in its dtype (autocast's where that is on), sums in float32 or wider.
        targets: (N,) word ids.
        output: the shared output layer.
        weights: (N,) weight of each token in the mean, for example 0 at padding. Where all are 0 the loss is 0.
        chunk_tokens: tokens at a time; without it, as many as `SCORES_PER_CHUNK` allows.
    """
    _check_tokens(hidden, targets, weights, output)
    _check_range("target", targets, output.num_words)
    hidden = _as_autocast(hidden)
    with torch.no_grad(), torch.autocast(hidden.device.type, enabled=False):
        dtype = _accumulation_dtype(hidden)
        weights = _token_weights(hidden, weights)
        found = _loss_and_gradients(
            hidden,
            output.weight.to(hidden.dtype),
            output.bias.to(dtype),
            targets,
            hidden.new_full(targets.shape, -math.inf, dtype=dtype),
            weights,
            _chunk_tokens(chunk_tokens, output.num_words, hidden),
        )
    return _mean(found, weights, hidden, output)


def sampled_softmax_loss(
    hidden: Tensor,
    targets: Tensor,
    output: OutputLayer | SampledRows,
    negatives: Negatives,
    *,
    weights: Tensor | None = None,
    chunk_tokens: int | None = None,
) -> Tensor:
    """Mean loss of each target against the negatives, all scores less the log of the word's expected count.

    A target that is among the negatives competes there as its own column: removing that accidental hit and putting
    the target beside the negatives, as the definition says, is the same sum. Any other target is a column more.

    Args:
        hidden: (N, P), as for `chunked_softmax_loss`.
        targets: (N,) word ids.
        output: the output layer (its gradient is dense), or the step's rows of it from `gather_rows`.
        negatives: one draw, shared by all tokens.
        weights: (N,) weight of each token in the mean.
        chunk_tokens: tokens at a time; without it, as many as `SCORES_PER_CHUNK` allows.
    """
    _check_tokens(hidden, targets, weights, output)
    _check_range("target", targets, negatives.sampler.num_words)
    hidden = _as_autocast(hidden)
    with torch.no_grad(), torch.autocast(hidden.device.type, enabled=False):
        dtype = _accumulation_dtype(hidden)
        weights = _token_weights(hidden, weights)
        ids, num_tries, sampler = negatives.ids, negatives.num_tries, negatives.sampler
        nearest = torch.searchsorted(ids, targets.contiguous()).clamp_(max=len(ids) - 1)
        is_negative = ids[nearest] == targets  # (N,)

        column_rows, target_rows = ids, targets
        if isinstance(output, SampledRows):
            column_rows, target_rows = output.find(ids), output.find(targets)
        column_bias = output.bias[column_rows] - sampler.log_expected_counts(ids, num_tries)  # (S,)
        target_bias = output.bias[target_rows] - sampler.log_expected_counts(targets, num_tries)  # (N,)
        target_weight = output.weight[target_rows].to(dtype)  # (N, P)
        target_scores = (hidden * target_weight).sum(1) + target_bias.to(dtype)  # (N,)

        found = _loss_and_gradients(
            hidden,
            output.weight[column_rows].to(hidden.dtype),
            column_bias.to(dtype),
            torch.where(is_negative, nearest, -1),
            target_scores.masked_fill(is_negative, -math.inf),
            weights,
            _chunk_tokens(chunk_tokens, len(ids), hidden),
        )
        # Targets among the negatives have only zeros to add here. These are the frequent words, and sending their
        # zeros to rows all over the table spares a GPU thousands of atomic additions to one address.
        anywhere = torch.arange(len(targets), device=targets.device) % len(output.weight)
        target_rows = torch.where(is_negative, anywhere, target_rows)
        found.hidden.add_(found.extra[:, None] * target_weight)
        weight = torch.zeros_like(output.weight, dtype=dtype)
        weight.index_add_(0, column_rows, found.weight).index_add_(0, target_rows, found.extra[:, None] * hidden)
        bias = torch.zeros_like(output.bias, dtype=dtype)
        bias.index_add_(0, column_rows, found.bias).index_add_(0, target_rows, found.extra)
    return _mean(replace(found, weight=weight, bias=bias), weights, hidden, output)


@dataclass(frozen=True)
class _Found:
    """Sum of the tokens' losses, each times its weight, and the gradients of that sum."""

    loss: Tensor  # ()
    hidden: Tensor  # (N, P)
    weight: Tensor  # (C, P)
    bias: Tensor  # (C,)
    extra: Tensor  # (N,)


def _loss_and_gradients(
    hidden: Tensor,
    columns: Tensor,
    bias: Tensor,
    target_columns: Tensor,
    extra_scores: Tensor,
    weights: Tensor,
    chunk_tokens: int,
) -> _Found:
    """Softmax of `hidden` (N, P) over `columns` (C, P) and one extra score a token, a chunk of tokens at a time.

    `target_columns` and `extra_scores` are as in `softmax_gradient_`. Sums over tokens are kept in the bias's dtype.
    """
    num_columns = len(columns)
    surplus = -num_columns % COLUMN_MULTIPLE.get(hidden.device.type, 1)
    if surplus:
        columns, bias = F.pad(columns, (0, 0, 0, surplus)), F.pad(bias, (0, surplus), value=-math.inf)
    loss = bias.new_zeros(())
    hidden_gradient, extra_gradient = torch.empty_like(hidden), torch.empty_like(extra_scores)
    column_gradient, bias_gradient = torch.zeros_like(columns, dtype=bias.dtype), torch.zeros_like(bias)
    for start in range(0, len(hidden), chunk_tokens):
        part = slice(start, start + chunk_tokens)
        scores = hidden[part] @ columns.T  # (n, C)
        losses, extra_gradient[part] = softmax_gradient_(
            scores, bias, target_columns[part], extra_scores[part], weights[part]
        )
        loss += losses @ weights[part]
        torch.matmul(scores, columns, out=hidden_gradient[part])
        column_gradient += scores.T @ hidden[part]
        bias_gradient += scores.sum(0, dtype=bias.dtype)
    return _Found(loss, hidden_gradient, column_gradient[:num_columns], bias_gradient[:num_columns], extra_gradient)


def softmax_gradient_(
    scores: Tensor, bias: Tensor, target_columns: Tensor, extra_scores: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor]:
    """Losses of a chunk of tokens; its scores become their own gradient, in place.

    Args:
        scores: (n, C) products in any float dtype. Overwritten by weight * (softmax - one-hot of the target).
        bias: (C,) added to the scores; its dtype is that of the arithmetic and of the results.
        target_columns: (n,) the target's column, or -1 where its score is the extra one.
        extra_scores: (n,) score of the target where it is no column, -inf where it is one.
        weights: (n,) factor of each token's gradient, not of its loss.

    Returns:
        (n,) losses, and (n,) gradients of the extra scores: 0 where the target is a column.
    """
    if scores.is_cuda and bias.dtype == torch.float32 and kernels.has_triton():
        from elmokit.kernels.cuda import softmax

        return softmax.softmax_gradient_(scores, bias, target_columns, extra_scores, weights)
    sums = scores.to(bias.dtype).add_(bias)  # (n, C), the scores themselves where the dtypes agree
    is_column = target_columns >= 0
    at = target_columns.clamp(min=0)[:, None]
    target_scores = torch.where(is_column, sums.gather(1, at)[:, 0], extra_scores)
    highest = torch.maximum(sums.amax(1), extra_scores)
    sums.sub_(highest[:, None]).exp_()
    totals = sums.sum(1) + (extra_scores - highest).exp()
    losses = totals.log() - (target_scores - highest)
    sums.mul_((weights / totals)[:, None])
    sums.scatter_add_(1, at, -(weights * is_column)[:, None])
    scores.copy_(sums)
    return losses, torch.where(is_column, 0, weights * torch.expm1(-losses))


class _KnownGradients(torch.autograd.Function):
    """A sum whose gradients were found with it enters autograd as a mean: `share` times the sum."""

    @staticmethod
    def forward(ctx: Any, found: _Found, share: Tensor, *inputs: Tensor) -> Tensor:
        ctx.save_for_backward(share, found.hidden, found.weight, found.bias)
        ctx.dtypes = [tensor.dtype for tensor in inputs]
        return found.loss * share

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        share, *known = ctx.saved_tensors
        return None, None, *((k * (gradient * share)).to(dtype) for k, dtype in zip(known, ctx.dtypes, strict=True))


def _mean(found: _Found, weights: Tensor, hidden: Tensor, output: OutputLayer | SampledRows) -> Tensor:
    total = weights.sum()
    share = torch.where(total > 0, 1 / total, 0)  # a batch of nothing but padding has loss 0, not NaN
    mean: Tensor = _KnownGradients.apply(found, share, hidden, output.weight, output.bias)  # type: ignore[no-untyped-call]
    return mean


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


def _accumulation_dtype(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


def _as_autocast(hidden: Tensor) -> Tensor:
    device = hidden.device.type
    return hidden.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else hidden


def _token_weights(hidden: Tensor, weights: Tensor | None) -> Tensor:
    dtype = _accumulation_dtype(hidden)
    return hidden.new_ones(len(hidden), dtype=dtype) if weights is None else weights.to(dtype)


def _chunk_tokens(chunk_tokens: int | None, num_columns: int, hidden: Tensor) -> int:
    if chunk_tokens is None:
        return max(1, SCORES_PER_CHUNK.get(hidden.device.type, SCORES_PER_CHUNK["cpu"]) // num_columns)
    if chunk_tokens < 1:
        raise ValueError(f"chunk_tokens is {chunk_tokens}: at least one token at a time")
    return chunk_tokens


def _check_tokens(hidden: Tensor, targets: Tensor, weights: Tensor | None, output: OutputLayer | SampledRows) -> None:
    dim = output.weight.shape[1]
    if hidden.dim() != 2 or hidden.shape[1] != dim:
        raise ValueError(f"hidden is {tuple(hidden.shape)}, the output layer asks for (tokens, {dim})")
    if targets.shape != hidden.shape[:1]:
        raise ValueError(f"targets are {tuple(targets.shape)}: {len(hidden)} tokens need ({len(hidden)},)")
    if weights is not None and weights.shape != targets.shape:
        raise ValueError(f"weights are {tuple(weights.shape)}: {len(hidden)} tokens need ({len(hidden)},)")


def _check_range(name: str, ids: Tensor, num_words: int) -> None:
    if ids.dtype != torch.int64:
        raise ValueError(f"{name} ids are {ids.dtype}, not torch.int64")
    if ids.is_cuda or not ids.numel():  # a look at the values would stop the GPU
        return
    low, high = (int(value) for value in torch.aminmax(ids))
    if low < 0 or high >= num_words:
        wrong = low if low < 0 else high
        raise ValueError(f"{name} id {wrong} is outside the vocabulary: ids go from 0 to {num_words - 1}")
