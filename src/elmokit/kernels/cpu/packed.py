"""Float32 weights, packed once."""

from __future__ import annotations

import functools
import os
import platform
import threading
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.weak import WeakIdKeyDictionary

PACKED_FOR_ROWS = 64  # oneDNN's layout for this many rows is also the best for fewer and for more
FEW_ROWS = 64  # that are multiplied as they are: a step of the LSTM
FINGERPRINT = 1024  # elements of a weight that tell whether it was written behind autograd's back


class PackedMatrix(NamedTuple):
    """A float32 weight as it stands and, where oneDNN knows how, in its blocked layout."""

    plain: Tensor  # (K, N)
    blocked: Tensor | None

    def product(self, rows: Tensor, *, bias: Tensor | None = None, plus: Tensor | None = None) -> Tensor:
        """See `Matrix`."""
        # one row is a matrix-vector product, bound by reading the weights, which the plain layout does best
        if self.blocked is None or len(rows) == 1:
            if plus is not None:
                return plus.addmm_(rows, self.plain)
            return rows @ self.plain if bias is None else torch.addmm(bias, rows, self.plain)
        n = len(rows)
        more = _even(n) - n
        filled = functional.pad(rows, (0, 0, 0, more)) if more else rows
        result: Tensor = torch.ops.mkldnn._linear_pointwise.default(filled, self.blocked, bias, "none", [], "")[:n]
        return result if plus is None else plus.add_(result)  # oneDNN's own addition is slower


def _even(n: int) -> int:
    """So many rows are multiplied in place of n, at most a sixteenth more.

    For each number of rows oneDNN compiles a program of half a MB and keeps it, a thousand of them: without this, a
    process that meets batches of all sizes would grow by hundreds of MB.
    """
    step = 1 << max(0, n.bit_length() - 5)
    return n if n <= FEW_ROWS else -(-n // step) * step


class Cached(NamedTuple):
    """Packed directions of a weight, and what the weight looked like when they were packed."""

    seen: tuple[int, int]
    fingerprint: Tensor
    directions: dict[int | None, PackedMatrix]


_cache: WeakIdKeyDictionary = WeakIdKeyDictionary()  # weight -> Cached; an entry goes with its weight
_cache_lock = threading.Lock()


def linear(rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`functional.linear` of rows (n, K) for a weight (N, K) that stays the same from call to call; no gradient."""
    with torch.no_grad():
        return packed(weight.t(), None, owner=weight).product(rows, bias=bias)


def packed(weight: Tensor, d: int | None, *, owner: Tensor | None = None) -> PackedMatrix:
    """`weight[d]`, or all of `weight` (K, N) for None, packed; from the cache unless the weight changed since.

    Writes that autograd counts (optimizers, load_state_dict, no_grad) show in the version; writes through `.data` do
    not, so a sample spread over the whole weight is compared too.  A view names its `owner`, which lives longer.
    """
    owner = weight if owner is None else owner
    seen = (0 if owner.is_inference() else owner._version, owner.data_ptr())
    flat = owner.detach().reshape(-1)
    fingerprint = flat[:: max(1, flat.numel() // FINGERPRINT)]
    with _cache_lock:
        if owner not in _cache:
            _cache[owner] = Cached(seen, fingerprint.clone(), {})
        entry: Cached = _cache[owner]
        if entry.seen != seen or not torch.equal(entry.fingerprint, fingerprint):
            entry = _cache[owner] = Cached(seen, fingerprint.clone(), {})
        if d not in entry.directions:
            plain = (weight if d is None else weight[d]).detach()
            entry.directions[d] = PackedMatrix(plain, block(plain) if can_block() and plain.numel() else None)
        return entry.directions[d]


def block(plain: Tensor) -> Tensor:
    """(K, N) in oneDNN's layout, opaque to everything but its own products."""
    blocked: Tensor = torch.ops.mkldnn._reorder_linear_weight(plain.t().contiguous(), PACKED_FOR_ROWS)
    return blocked


@functools.cache
def can_block() -> bool:
    """Whether this build of PyTorch packs float32 weights for this CPU."""
    return (
        platform.machine().lower() in ("x86_64", "amd64")
        and torch._C._has_mkldnn
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def _renew_lock() -> None:
    """A forked child may have copied the lock while another thread held it."""
    global _cache_lock
    _cache_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)
