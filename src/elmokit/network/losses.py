"""The biLM's objective: softmax over a vocabulary, in full, in chunks, or over log-uniform samples.

Input: the top layer of one direction, `hidden` (N, P), and the words to predict, `targets` (N,).  Output: the mean
negative log-probability, ready for `backward`.

- `full_softmax_loss` is the readable truth: it holds all (N, V) scores.
- `chunked_softmax_loss` is the same number and never holds more than a chunk of them.
- `sampled_softmax_loss` compares each target with S words drawn by `LogUniformSampler` (Jean et al., 2015, as in
  TensorFlow: unique draws, log expected counts subtracted, accidental hits removed).

The last two compute the gradient in the forward pass, while a chunk of scores is at hand; backward only scales it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from elmokit import kernels
from elmokit.network.output import (
    OutputLayer,
    accumulation_dtype,
    check_range,
    chunk_size,
)
from elmokit.network.sampling import Negatives, SampledRows

# A vocabulary of 60,003 words makes rows of scores that begin at odd addresses, for which matrix products take half the
# speed of a GPU: columns that nothing can choose fill them up.
COLUMN_MULTIPLE = {"cpu": 1, "cuda": 64}


def full_softmax_loss(hidden: Tensor, targets: Tensor, output: OutputLayer) -> Tensor:
    """Negative log-probability of each target: (N, P) and (N,) -> (N,)."""
    _check_tokens(hidden, targets, None, output)
    check_range("target", targets, output.num_words)
    logits = output.logits(hidden)  # (N, V)
    return F.cross_entropy(logits.to(accumulation_dtype(logits)), targets, reduction="none")


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
    check_range("target", targets, output.num_words)
    hidden = _as_autocast(hidden)
    with torch.no_grad(), torch.autocast(hidden.device.type, enabled=False):
        dtype = accumulation_dtype(hidden)
        weights = _token_weights(hidden, weights)
        found = _loss_and_gradients(
            hidden,
            output.weight.to(hidden.dtype),
            output.bias.to(dtype),
            targets,
            hidden.new_full(targets.shape, -math.inf, dtype=dtype),
            weights,
            chunk_size(chunk_tokens, output.num_words, hidden),
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
    check_range("target", targets, negatives.sampler.num_words)
    hidden = _as_autocast(hidden)
    with torch.no_grad(), torch.autocast(hidden.device.type, enabled=False):
        dtype = accumulation_dtype(hidden)
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
            chunk_size(chunk_tokens, len(ids), hidden),
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


def _as_autocast(hidden: Tensor) -> Tensor:
    device = hidden.device.type
    return hidden.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else hidden


def _token_weights(hidden: Tensor, weights: Tensor | None) -> Tensor:
    dtype = accumulation_dtype(hidden)
    return hidden.new_ones(len(hidden), dtype=dtype) if weights is None else weights.to(dtype)


def _check_tokens(hidden: Tensor, targets: Tensor, weights: Tensor | None, output: OutputLayer | SampledRows) -> None:
    dim = output.weight.shape[1]
    if hidden.dim() != 2 or hidden.shape[1] != dim:
        raise ValueError(f"hidden is {tuple(hidden.shape)}, the output layer asks for (tokens, {dim})")
    if targets.shape != hidden.shape[:1]:
        raise ValueError(f"targets are {tuple(targets.shape)}: {len(hidden)} tokens need ({len(hidden)},)")
    if weights is not None and weights.shape != targets.shape:
        raise ValueError(f"weights are {tuple(weights.shape)}: {len(hidden)} tokens need ({len(hidden)},)")
