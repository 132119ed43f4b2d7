"""The weights of one layer in the layout that the kernels read.

Input: `LSTMWeights`.  Output: `PreparedWeights`, padded and interleaved, cached if the layer is frozen.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections import OrderedDict
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from elmokit.kernels.interface import LSTMWeights

WIDTH_STEP, CELL_STEP = 64, 64  # widths are padded to multiples of these, which every tile divides
RUN = 32  # consecutive cells of one gate (see `steps`)
CACHED_LAYERS = 16  # number of frozen layers whose prepared weights are kept


class PreparedWeights(NamedTuple):
    """Weights of one layer, padded with zeros to full tiles: K is the padded P, and C is padded too."""

    weight: Tensor  # (D, 2K, 4C): input weights above recurrent weights, gates interleaved (see `steps`)
    bias: Tensor  # (D, 4C) float32, including the 1 of the forget gate
    projection: Tensor  # (D, C, K)


_cache: OrderedDict[tuple[Any, ...], tuple[list[weakref.ref[Tensor]], PreparedWeights]] = OrderedDict()
_cache_lock = threading.Lock()


def cached_weights(weights: LSTMWeights, dtype: torch.dtype) -> PreparedWeights:
    """`prepare`, with a cache for frozen layers; trained weights change with every step."""
    trained = any(w.requires_grad for w in weights)
    if trained or torch.compiler.is_compiling() or any(w.is_inference() for w in weights):
        return prepare(weights, dtype)
    key = (dtype, *((w.data_ptr(), w._version, w.shape, w.dtype) for w in weights))
    with _cache_lock, contextlib.suppress(KeyError):  # not there, or forgotten this moment
        found = _cache[key][1]
        _cache.move_to_end(key)
        return found
    with torch.inference_mode(False), torch.no_grad():  # also later calls outside of inference mode read these
        prepared = prepare(weights, dtype)
    # it goes with the first of its weights: another tensor may get the same address
    forget = functools.partial(_cache.pop, key)  # called with the reference, which is the default of `pop`
    with _cache_lock:
        _cache[key] = ([weakref.ref(w, forget) for w in weights], prepared)
        while len(_cache) > CACHED_LAYERS:
            _cache.popitem(last=False)
    return prepared


def prepare(weights: LSTMWeights, dtype: torch.dtype) -> PreparedWeights:
    """Join, pad, interleave and cast the weights; differentiable."""
    cells, width = weights.projection.shape[1:]
    C, K = cells + -cells % CELL_STEP, width + -width % WIDTH_STEP
    projection = weights.projection.to(dtype)
    if cells < C or width < K:
        projection = functional.pad(projection, (0, K - width, 0, C - cells))
    weight: Tensor = _Interleave.apply(K, C, dtype, weights.input, weights.recurrent)  # type: ignore[no-untyped-call]
    bias = _Interleave.apply(1, C, torch.float32, weights.bias.unsqueeze(1)).squeeze(1)  # type: ignore[no-untyped-call]
    # 1 for the forget gate, which is not in the bias; computed on the device, since a copy from the host waits for it
    forget = torch.arange(4 * C, device=bias.device) // RUN % 4 == 2
    return PreparedWeights(weight, bias + forget, projection.contiguous())


class _Interleave(torch.autograd.Function):
    """Matrices (D, P, 4C) in blocks of gates -> stacked, padded with zeros, gates interleaved, cast."""

    @staticmethod
    def forward(ctx: Any, padded_width: int, padded_cells: int, dtype: torch.dtype, *parts: Tensor) -> Tensor:
        directions, width, columns = parts[0].shape
        ctx.sizes = width, columns, padded_width, parts[0].dtype
        is_padded = (width, columns) != (padded_width, 4 * padded_cells)
        make = parts[0].new_zeros if is_padded else parts[0].new_empty
        joined = make(directions, len(parts) * padded_width, 4 * padded_cells, dtype=dtype)
        for n, part in enumerate(parts):
            blocks = part.reshape(directions, width, 4, columns // 4)
            if columns < 4 * padded_cells:
                blocks = functional.pad(blocks, (0, padded_cells - columns // 4))
            begin = n * padded_width
            _by_gate(joined)[:, begin : begin + width] = blocks.reshape(*blocks.shape[:3], -1, RUN)
        return joined

    @staticmethod
    def backward(ctx: Any, grad_joined: Tensor) -> tuple[Tensor | None, ...]:
        width, columns, padded_width, dtype = ctx.sizes
        grads = []
        for begin in range(0, grad_joined.shape[1], padded_width):
            grad = _by_gate(grad_joined)[:, begin : begin + width].to(dtype, memory_format=torch.contiguous_format)
            grads.append(grad.flatten(-2)[..., : columns // 4].flatten(-2))
        return None, None, None, *grads


def _by_gate(interleaved: Tensor) -> Tensor:
    """A view (…, 4, C / RUN, RUN) of (…, 4C)."""
    return interleaved.reshape(*interleaved.shape[:-1], -1, 4, RUN).transpose(-3, -2)
