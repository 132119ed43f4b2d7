# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Softmax and its gradient over a chunk of scores, fused: each score is read twice and written once.

Input: scores of tokens (see `losses.softmax_gradient_`), on a GPU.  Output: losses; the scores are overwritten by their
gradient.  One program computes one token, so that no sum depends on timing.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096
LOWEST = -1.0e30  # used as minus infinity, whose difference with itself would be NaN


@triton.jit
def _row_kernel(
    scores, bias, target_columns, extra_scores, weights, losses, grad_extra_scores, num_columns,
    BLOCK: tl.constexpr, LOWEST: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    scores += row * num_columns
    column = tl.arange(0, BLOCK)
    target = tl.load(target_columns + row)
    extra = tl.maximum(tl.load(extra_scores + row), LOWEST)
    weight = tl.load(weights + row)

    highest = tl.full((BLOCK,), LOWEST, dtype=tl.float32)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for begin in range(0, num_columns, BLOCK):
        c = begin + column
        inside = c < num_columns
        x = tl.load(scores + c, mask=inside, other=0.0).to(tl.float32) + tl.load(bias + c, mask=inside, other=LOWEST)
        higher = tl.maximum(highest, x)
        total = total * tl.exp(highest - higher) + tl.where(inside, tl.exp(x - higher), 0.0)
        highest = higher
    peak = tl.maximum(tl.max(highest), extra)
    total_exp = tl.sum(total * tl.exp(highest - peak)) + tl.exp(extra - peak)

    is_column = target >= 0
    at = tl.maximum(target, 0)
    own = tl.where(is_column, tl.load(scores + at).to(tl.float32) + tl.load(bias + at), extra)
    tl.store(losses + row, tl.log(total_exp) - (own - peak))
    tl.store(grad_extra_scores + row, tl.where(is_column, 0.0, weight * (tl.exp(extra - peak) / total_exp - 1.0)))
    tl.debug_barrier()  # the target's score is read before it is overwritten

    factor = weight / total_exp
    for begin in range(0, num_columns, BLOCK):
        c = begin + column
        inside = c < num_columns
        x = tl.load(scores + c, mask=inside, other=0.0).to(tl.float32) + tl.load(bias + c, mask=inside, other=LOWEST)
        grad = factor * tl.exp(x - peak) - tl.where(c == target, weight, 0.0)
        tl.store(scores + c, grad.to(scores.dtype.element_ty), mask=inside)


def softmax_gradient_(
    scores: Tensor, bias: Tensor, target_columns: Tensor, extra_scores: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor]:
    """`losses.softmax_gradient_` for contiguous scores on a GPU, computed in float32.

    Args:
        scores: (n, C) products in any float dtype, contiguous. Overwritten by weight * (softmax - one-hot target).
        bias: (C,) float32, added to the scores.
        target_columns: (n,) column of the target, or -1 if its score is in `extra_scores`.
        extra_scores: (n,) score of a target without a column, -inf for the others.
        weights: (n,) factor of each token's gradient, not of its loss.

    Returns:
        (n,) losses, and (n,) gradients of the extra scores: 0 where the target has a column.
    """
    assert scores.is_contiguous()
    assert bias.dtype == torch.float32
    losses, grad_extra_scores = torch.empty_like(extra_scores), torch.empty_like(extra_scores)
    tensors = (scores, bias.contiguous(), target_columns.contiguous(), extra_scores.contiguous(), weights.contiguous())
    if len(scores):
        with torch.cuda.device_of(scores):
            _row_kernel[(len(scores),)](
                *tensors, losses, grad_extra_scores, scores.shape[1], BLOCK=BLOCK, LOWEST=LOWEST, num_warps=16
            )
    return losses, grad_extra_scores
