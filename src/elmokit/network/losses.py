"""The training objective: softmax over a vocabulary, in full, in chunks, or over log-uniform samples.

Input: the top layer of one direction, `hidden` (N, P), and the words to predict, `targets` (N,).  Output: the mean
negative log-probability, with a gradient.

- `full_softmax_loss` is the definition; it holds all (N, V) scores.
- `chunked_softmax_loss` returns the same number and holds one chunk of scores at a time.
- `sampled_softmax_loss` compares each target with S words drawn by `LogUniformSampler` (Jean et al., 2015, as in
  TensorFlow: unique draws, log expected counts subtracted, accidental hits removed).

The last two compute the gradient in the forward pass, while a chunk of scores is in memory; backward scales it.
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

ONES = 8  # columns of ones beside hidden vectors: products are fast if rows begin at multiples of 16 bytes
# The number of columns of scores is padded to a multiple: matrix products of a GPU are half as fast if rows are not
# aligned, as with 60,003 words.
COLUMN_MULTIPLE = {"cpu": 1, "cuda": 64}


def full_softmax_loss(hidden: Tensor, targets: Tensor, output: OutputLayer) -> Tensor:
    """Negative log-probability of each target.

    Args:
        hidden: (N, P).
        targets: (N,) word ids.
        output: The output layer.

    Returns:
        (N,), in float32 or wider.

    Raises:
        ValueError: If the shapes do not fit, or an id is outside the vocabulary.
    """
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
    """Mean of `full_softmax_loss`, with (chunk_tokens, V) scores in memory at a time.

    Args:
        hidden: (N, P). Products have its dtype (or that of autocast), sums float32 or wider.
        targets: (N,) word ids.
        output: The output layer.
        weights: (N,) weight of each token in the mean, for example 0 at padding. If all are 0 the loss is 0.
        chunk_tokens: Number of tokens at a time. Default: by `SCORES_PER_CHUNK`.

    Returns:
        The loss ().

    Raises:
        ValueError: As for `full_softmax_loss`.
    """
    _check_tokens(hidden, targets, weights, output)
    check_range("target", targets, output.num_words)
    hidden = _as_autocast(hidden)
    with torch.no_grad(), torch.autocast(hidden.device.type, enabled=False):
        dtype = accumulation_dtype(hidden)
        weights = _token_weights(hidden, weights)
        sums = _loss_and_gradients(
            hidden,
            output.weight.to(hidden.dtype),
            output.bias.to(dtype),
            targets,
            hidden.new_full(targets.shape, -math.inf, dtype=dtype),
            weights,
            chunk_size(chunk_tokens, output.num_words, hidden),
        )
    return _mean(sums, weights, hidden, output)


def sampled_softmax_loss(
    hidden: Tensor,
    targets: Tensor,
    output: OutputLayer | SampledRows,
    negatives: Negatives,
    *,
    weights: Tensor | None = None,
    chunk_tokens: int | None = None,
) -> Tensor:
    """Mean loss of each target against the negatives. The log of a word's expected count is subtracted from its score.

    By definition accidental hits are removed from the negatives and the target is one more column. For a target that is
    among the negatives this is the same sum as using its column there; any other target is one more column.

    Args:
        hidden: (N, P), as for `chunked_softmax_loss`.
        targets: (N,) word ids.
        output: The output layer, whose gradient is dense, or its rows of this step from `gather_rows`.
        negatives: One draw, shared by all tokens.
        weights: (N,) weight of each token in the mean.
        chunk_tokens: Number of tokens at a time. Default: by `SCORES_PER_CHUNK`.

    Returns:
        The loss ().

    Raises:
        ValueError: As for `full_softmax_loss`; or if a word was not gathered.
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

        sums = _loss_and_gradients(
            hidden,
            output.weight[column_rows].to(hidden.dtype),
            column_bias.to(dtype),
            torch.where(is_negative, nearest, -1),
            target_scores.masked_fill(is_negative, -math.inf),
            weights,
            chunk_size(chunk_tokens, len(ids), hidden),
        )
        # Targets among the negatives add only zeros here. These are the frequent words: their zeros go to different
        # rows, to avoid thousands of atomic additions to one address on a GPU.
        anywhere = torch.arange(len(targets), device=targets.device) % len(output.weight)
        target_rows = torch.where(is_negative, anywhere, target_rows)
        sums.grad_hidden.add_(sums.grad_extra[:, None] * target_weight)
        grad_weight = torch.zeros_like(output.weight, dtype=dtype)
        grad_weight.index_add_(0, column_rows, sums.grad_weight)
        grad_weight.index_add_(0, target_rows, sums.grad_extra[:, None] * hidden)
        grad_bias = torch.zeros_like(output.bias, dtype=dtype)
        grad_bias.index_add_(0, column_rows, sums.grad_bias).index_add_(0, target_rows, sums.grad_extra)
    return _mean(replace(sums, grad_weight=grad_weight, grad_bias=grad_bias), weights, hidden, output)


@dataclass(frozen=True)
class _LossAndGradients:
    """The weighted sum of the losses of tokens, and its gradients."""

    loss: Tensor  # ()
    grad_hidden: Tensor  # (N, P)
    grad_weight: Tensor  # (C, P)
    grad_bias: Tensor  # (C,)
    grad_extra: Tensor  # (N,)


def _loss_and_gradients(
    hidden: Tensor,
    columns: Tensor,
    bias: Tensor,
    target_columns: Tensor,
    extra_scores: Tensor,
    weights: Tensor,
    chunk_tokens: int,
) -> _LossAndGradients:
    """Softmax of `hidden` (N, P) over `columns` (C, P) and one extra score per token, a chunk of tokens at a time.

    `target_columns` and `extra_scores` are as in `softmax_gradient_`. Sums over tokens have the dtype of the bias.
    """
    num_columns = len(columns)
    surplus = -num_columns % COLUMN_MULTIPLE.get(hidden.device.type, 1)
    if surplus:
        columns, bias = F.pad(columns, (0, 0, 0, surplus)), F.pad(bias, (0, surplus), value=-math.inf)
    loss = bias.new_zeros(())
    grad_hidden, grad_extra = torch.empty_like(hidden), torch.empty_like(extra_scores)
    if in_products := _sums_in_products(hidden, bias):
        with_ones = F.pad(hidden, (0, ONES), value=1.0)  # (N, P + 8)
        grads = bias.new_zeros(len(columns), with_ones.shape[1])
        grad_columns, grad_bias = grads[:, :-ONES], grads[:, -1]
    else:
        grad_columns, grad_bias = torch.zeros_like(columns, dtype=bias.dtype), torch.zeros_like(bias)
    for start in range(0, len(hidden), chunk_tokens):
        part = slice(start, start + chunk_tokens)
        scores = hidden[part] @ columns.T  # (n, C)
        losses, grad_extra[part] = softmax_gradient_(
            scores, bias, target_columns[part], extra_scores[part], weights[part]
        )
        loss += losses @ weights[part]
        torch.matmul(scores, columns, out=grad_hidden[part])
        if in_products:
            torch.ops.aten.addmm.dtype_out(grads, scores.T, with_ones[part], grads.dtype, out=grads)
        else:
            grad_columns += scores.T @ hidden[part]
            grad_bias += scores.sum(0, dtype=bias.dtype)
    return _LossAndGradients(loss, grad_hidden, grad_columns[:num_columns], grad_bias[:num_columns], grad_extra)


def _sums_in_products(hidden: Tensor, bias: Tensor) -> bool:
    """Whether products in half precision can be added to float32 sums, which takes a GPU and PyTorch 2.8.

    The sum over tokens that is the gradient of the bias is then a product with ones, and no pass over the scores.
    """
    half = hidden.dtype in (torch.float16, torch.bfloat16) and bias.dtype == torch.float32
    return half and hidden.is_cuda and hasattr(torch.ops.aten.addmm, "dtype_out")


def softmax_gradient_(
    scores: Tensor, bias: Tensor, target_columns: Tensor, extra_scores: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor]:
    """Losses of a chunk of tokens. The scores are overwritten by their gradient.

    Args:
        scores: (n, C) products in any float dtype. Overwritten by weight * (softmax - one-hot of the target).
        bias: (C,) added to the scores; its dtype is that of the arithmetic and of the results.
        target_columns: (n,) column of the target, or -1 if its score is the extra one.
        extra_scores: (n,) score of the target if it is not a column, else -inf.
        weights: (n,) factor of each token's gradient, not of its loss.

    Returns:
        (n,) losses, and (n,) gradients of the extra scores: 0 if the target is a column.
    """
    if scores.is_cuda and bias.dtype == torch.float32 and kernels.has_triton():
        from elmokit.kernels.cuda import softmax

        return softmax.softmax_gradient_(scores, bias, target_columns, extra_scores, weights)
    sums = scores.to(bias.dtype).add_(bias)  # (n, C), the scores themselves if the dtypes agree
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
    """A mean whose gradients are already known: `factor` times a sum of losses."""

    @staticmethod
    def forward(ctx: Any, sums: _LossAndGradients, factor: Tensor, *inputs: Tensor) -> Tensor:
        ctx.save_for_backward(factor, sums.grad_hidden, sums.grad_weight, sums.grad_bias)
        ctx.dtypes = [tensor.dtype for tensor in inputs]
        return sums.loss * factor

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_mean: Tensor) -> tuple[Tensor | None, ...]:
        factor, *grads = ctx.saved_tensors
        return None, None, *((g * (grad_mean * factor)).to(dtype) for g, dtype in zip(grads, ctx.dtypes, strict=True))


def _mean(sums: _LossAndGradients, weights: Tensor, hidden: Tensor, output: OutputLayer | SampledRows) -> Tensor:
    """The weighted mean, as a tensor with a gradient."""
    total = weights.sum()
    factor = torch.where(total > 0, 1 / total, 0)  # the loss of padding only is 0, not NaN
    mean: Tensor = _KnownGradients.apply(sums, factor, hidden, output.weight, output.bias)  # type: ignore[no-untyped-call]
    return mean


def _as_autocast(hidden: Tensor) -> Tensor:
    """Cast to the dtype of autocast, if it is on."""
    return hidden.to(kernels.product_dtype(hidden))


def _token_weights(hidden: Tensor, weights: Tensor | None) -> Tensor:
    """Weights (N,) of tokens; ones by default."""
    dtype = accumulation_dtype(hidden)
    return hidden.new_ones(len(hidden), dtype=dtype) if weights is None else weights.to(dtype)


def _check_tokens(hidden: Tensor, targets: Tensor, weights: Tensor | None, output: OutputLayer | SampledRows) -> None:
    """Check that the shapes fit."""
    dim = output.weight.shape[1]
    if hidden.dim() != 2 or hidden.shape[1] != dim:
        raise ValueError(f"hidden is {tuple(hidden.shape)}, the output layer asks for (tokens, {dim})")
    if targets.shape != hidden.shape[:1]:
        raise ValueError(f"targets are {tuple(targets.shape)}: {len(hidden)} tokens need ({len(hidden)},)")
    if weights is not None and weights.shape != targets.shape:
        raise ValueError(f"weights are {tuple(weights.shape)}: {len(hidden)} tokens need ({len(hidden)},)")
