"""Float32 weights in the layouts that multiply fastest, packed once and cached.

Input: a weight (D, K, N) of an LSTM or (N, K) of a linear layer.  Output: a `PackedMatrix`, for one direction, which
multiplies rows (n, K).
"""

from __future__ import annotations

import functools
import os
import platform
import threading
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.weak import WeakIdKeyDictionary

from elmokit.kernels.cpu import native
from elmokit.kernels.cpu.native import NativeMatrix
from elmokit.kernels.samples import samples_of

PACKED_FOR_ROWS = 64  # the layout that oneDNN chooses for this many rows is the fastest for fewer and more rows too
EXACT_ROWS = 64  # up to this many rows (one step of the LSTM) are multiplied without padding
NUM_SAMPLES = 512  # elements of a direction of a weight, compared to detect writes which autograd does not count


class PackedMatrix:
    """A float32 weight (K, N) in the layouts that multiply fastest, each made when it is first needed.

    Args:
        plain: (K, N), not copied.
    """

    def __init__(self, plain: Tensor) -> None:
        self.plain = plain

    def product(self, rows: Tensor, *, bias: Tensor | None = None, plus: Tensor | None = None) -> Tensor:
        """See `steps.Matrix`."""
        n = rows.size(0)
        if plus is None and native.is_fast(n):
            return native.product(rows, self.in_blocks, bias)
        # one row is a matrix-vector product: its time is that of reading the weights, fastest in the plain layout
        if n < 2 or self.blocked is None:
            plain = self.for_one_row
            if plus is not None:
                return plus.addmm_(rows, plain)
            return torch.mm(rows, plain) if bias is None else torch.addmm(bias, rows, plain)
        padding = _padded_rows(n) - n
        padded = functional.pad(rows, (0, 0, 0, padding)) if padding else rows
        result: Tensor = torch.ops.mkldnn._linear_pointwise.default(padded, self.blocked, bias, "none", [], "")[:n]
        return result if plus is None else plus.add_(result)  # oneDNN's own addition is slower

    def for_native(self) -> NativeMatrix | None:
        """The weight for `native`, if that multiplies many rows fast."""
        return self.in_blocks if native.is_wide() else None

    @functools.cached_property
    def in_blocks(self) -> NativeMatrix:
        """For `native.product`, and for `native.run_steps` as the projection."""
        return native.pack(self.plain)

    @functools.cached_property
    def in_blocks_of_gates(self) -> NativeMatrix:
        """For `native.run_steps` as the recurrent weight."""
        return native.pack(self.plain, of_gates=True)

    @functools.cached_property
    def for_one_row(self) -> Tensor:
        """(K, N) for PyTorch: one row multiplies a tall matrix faster by columns."""
        return self.plain.t().contiguous().t() if self.plain.shape[0] > self.plain.shape[1] else self.plain

    @functools.cached_property
    def blocked(self) -> Tensor | None:
        """In oneDNN's blocked layout, where oneDNN supports it."""
        return to_blocked(self.plain) if can_block() and self.plain.numel() else None


def _padded_rows(n: int) -> int:
    """Number of rows to multiply in place of n, at most a sixteenth more.

    oneDNN compiles a program of half a MB for each number of rows and keeps up to a thousand of them.  Without padding,
    a process with batches of all sizes grows by hundreds of MB.
    """
    step = 1 << max(0, n.bit_length() - 5)
    return n if n <= EXACT_ROWS else -(-n // step) * step


class CacheEntry(NamedTuple):
    """One direction of a weight packed, and the weight's version, place and samples when it was packed."""

    version: int
    place: tuple[object, ...]  # address, shape and strides
    view: Tensor  # the elements of the weight that are compared, where they are in memory
    samples: Tensor  # what they were
    packed: PackedMatrix

    def is_current(self, version: int, place: tuple[object, ...]) -> bool:
        """Whether the weight is unchanged since it was packed."""
        return (self.version, self.place) == (version, place) and torch.equal(self.view, self.samples)


_cache: WeakIdKeyDictionary = WeakIdKeyDictionary()  # weight -> {d: CacheEntry}; freed with its weight
_cache_lock = threading.Lock()


def packed_direction(weight: Tensor, d: int) -> PackedMatrix:
    """`weight[d]` (K, N) of (D, K, N) packed: from the cache, or packed again if the weight has changed."""
    return _cached(weight, d, lambda: weight.detach()[d])


def packed_linear(weight: Tensor) -> PackedMatrix:
    """The weight (N, K) of a linear layer packed, as `packed_direction`."""
    return _cached(weight, 0, lambda: weight.detach().t())


def _cached(weight: Tensor, d: int, plain_of: Callable[[], Tensor]) -> PackedMatrix:
    """`plain_of()` (K, N) packed, which is a part of a weight or its transpose.

    Writes that autograd counts (optimizers, load_state_dict, no_grad) change the version.  Writes through `.data` do
    not, so samples spread over the weight are compared as well.
    """
    version, place = 0 if weight.is_inference() else weight._version, (weight.data_ptr(), weight.shape, weight.stride())
    with _cache_lock:
        entries: dict[int, CacheEntry] | None = _cache.get(weight)  # type: ignore[no-untyped-call]
        if entries is None:
            entries = _cache[weight] = {}
    # the threads of the directions do not wait for each other: each has an entry of its own
    entry = entries.get(d)
    if entry is None or not entry.is_current(version, place):
        plain = plain_of()
        in_rows = plain if plain.is_contiguous() else plain.t()
        # samples of a weight with gaps would be a copy: all of it is compared
        view = samples_of(in_rows, NUM_SAMPLES) if in_rows.is_contiguous() else plain
        entry = entries[d] = CacheEntry(version, place, view, view.clone(), PackedMatrix(plain))
    return entry.packed


def to_blocked(plain: Tensor) -> Tensor:
    """(K, N) in oneDNN's layout, which only oneDNN's products can read."""
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
    """Replace the lock in a forked child: another thread of the parent may have held it."""
    global _cache_lock
    _cache_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)
