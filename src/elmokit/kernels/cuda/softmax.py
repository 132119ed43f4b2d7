# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Softmax and its gradient over a chunk of scores, fused: each score is read twice and written once.

Enters: scores of tokens against columns, as `losses.softmax_gradient_` has them, on a GPU.  Leaves: losses; the scores
become their own gradient.  One program works on one token, so no sum depends on timing.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096
LOWEST = -1.0e30  # stands for minus infinity, whose difference with itself would be NaN


@triton.jit
def _row_kernel(
    scores, bias, target_columns, extra_scores, weights, losses, extra_gradients, num_columns,
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
    whole = tl.sum(total * tl.exp(highest - peak)) + tl.exp(extra - peak)

    is_column = target >= 0
    at = tl.maximum(target, 0)
    own = tl.where(is_column, tl.load(scores + at).to(tl.float32) + tl.load(bias + at), extra)
    tl.store(losses + row, tl.log(whole) - (own - peak))
    tl.store(extra_gradients + row, tl.where(is_column, 0.0, weight * (tl.exp(extra - peak) / whole - 1.0)))
    tl.debug_barrier()  # the target's score has been read before it is written over

    factor = weight / whole
    for begin in range(0, num_columns, BLOCK):
        c = begin + column
        inside = c < num_columns
        x = tl.load(scores + c, mask=inside, other=0.0).to(tl.float32) + tl.load(bias + c, mask=inside, other=LOWEST)
        gradient = factor * tl.exp(x - peak) - tl.where(c == target, weight, 0.0)
        tl.store(scores + c, gradient.to(scores.dtype.element_ty), mask=inside)


def softmax_gradient_(
    scores: Tensor, bias: Tensor, target_columns: Tensor, extra_scores: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor]:
    """As `losses.softmax_gradient_`, for contiguous scores and arithmetic in float32."""
    assert scores.is_contiguous()
    assert bias.dtype == torch.float32
    losses, extra_gradients = torch.empty_like(extra_scores), torch.empty_like(extra_scores)
    tensors = (scores, bias.contiguous(), target_columns.contiguous(), extra_scores.contiguous(), weights.contiguous())
    if len(scores):
        with torch.cuda.device_of(scores):
            _row_kernel[(len(scores),)](
                *tensors, losses, extra_gradients, scores.shape[1], BLOCK=BLOCK, LOWEST=LOWEST, num_warps=16
            )
    return losses, extra_gradients
