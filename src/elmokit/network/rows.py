"""Distinct rows of ids, and rows of a table by their index.

Input: ids of words, many of them the same; vectors of distinct words and an index.  Output: each distinct word once,
with the index that undoes it; the vector of every word, with a gradient.

Shapes: N rows, M distinct rows, C columns, P width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def distinct_rows(ids: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct rows of ids, and the index of each row among them.

    Rows are compared by a 64-bit hash. If two different rows have the same hash, complete rows are compared.

    Args:
        ids: (N, C) or (N,).

    Returns:
        (M, C) or (M,) distinct rows, and (N,) indices.
    """
    if not len(ids):
        return ids, torch.zeros(0, dtype=torch.long, device=ids.device)
    if ids.ndim == 1:
        distinct, inverse = torch.unique(ids, return_inverse=True)
        return distinct, inverse
    generator = torch.Generator().manual_seed(0)
    factors = torch.randint(2**62, (ids.shape[1],), generator=generator, dtype=torch.int64) * 2 + 1
    hashes = (ids.long() * factors.to(ids.device)).sum(dim=1)  # overflows wrap around
    keys, inverse = torch.unique(hashes, return_inverse=True)
    first = torch.full((len(keys),), len(ids), dtype=torch.long, device=ids.device)
    first.scatter_reduce_(0, inverse, torch.arange(len(ids), device=ids.device), "amin")
    distinct = ids[first]
    if not torch.equal(distinct[inverse], ids):
        distinct, inverse = torch.unique(ids, dim=0, return_inverse=True)
    return distinct, inverse


def take_rows(vectors: Tensor, index: Tensor) -> Tensor:
    """vectors[index], with a gradient that is summed in float32 or wider without sorting the index.

    Args:
        vectors: (N, P).
        index: Rows, of any shape.

    Returns:
        (*index.shape, P).
    """
    if not (vectors.requires_grad and torch.is_grad_enabled()):
        return functional.embedding(index, vectors)  # an index would start OpenMP's threads
    rows: Tensor = _TakeRows.apply(vectors, index)  # type: ignore[no-untyped-call]
    return rows


class _TakeRows(torch.autograd.Function):
    """`take_rows` with its gradient."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.num_rows, ctx.dtype = len(vectors), vectors.dtype
        return vectors[index]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_rows: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        values = grad_rows.reshape(-1, grad_rows.shape[-1])
        dtype = torch.promote_types(values.dtype, torch.float32)
        sums = values.new_zeros(ctx.num_rows, values.shape[1], dtype=dtype)
        return sums.index_add_(0, index.reshape(-1), values.to(dtype)).to(ctx.dtype), None
