"""The CUDA engine: the clipped, projected LSTM on NVIDIA GPUs, both directions at the same time.

Input and output: as in `interface`, in float32, bfloat16 or float16; cells are float32 throughout.

weights.py    weights in the kernels' layout
tiles.py      tiles of the products
steps.py      the Triton kernels of the time loops
launch.py     buffers and launches
operators.py  operators for autograd and compilers
softmax.py    softmax and its gradient, fused
products.py   products of many rows, with a gradient of the weights that fills a GPU
blocks.py     the parts of transformer blocks, fused, from attention.py, elementwise.py and their operators

All steps of a layer are one launch, so a step has no launch cost.  In inference the gates are never written to memory.
Weight gradients are products over all steps, after the backward loop.  Only `steps`, `softmax`, `attention`
and `elementwise` need Triton.
"""

from __future__ import annotations

import contextlib
import functools
import math

import torch
from torch import Tensor

from elmokit.kernels import eager, has_triton
from elmokit.kernels.cuda import blocks
from elmokit.kernels.cuda.launch import Bounds
from elmokit.kernels.cuda.operators import lstm_directly, lstm_operator
from elmokit.kernels.cuda.weights import cached_weights
from elmokit.kernels.interface import LSTMState, LSTMWeights, zero_state

__all__ = ["blocks", "is_available", "lstm"]


def is_available(inputs: Tensor) -> bool:
    """Whether this engine runs `inputs`; if not, `eager` runs them."""
    if not inputs.is_cuda or inputs.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return False
    return has_triton() and _is_recent(inputs.device)


@functools.cache
def _is_recent(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= (8, 0)


def lstm(
    inputs: Tensor,
    lengths: Tensor,
    weights: LSTMWeights,
    state: LSTMState | None,
    *,
    cell_clip: float | None,
    proj_clip: float | None,
) -> tuple[Tensor, LSTMState]:
    """Run one layer, all directions, in the dtype of the inputs or of autocast: see `interface.Engine.lstm`."""
    if not inputs.numel():
        return eager.lstm(inputs, lengths, weights, state, cell_clip=cell_clip, proj_clip=proj_clip)
    device = inputs.device.type
    dtype = inputs.dtype
    exact: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
    if torch.is_autocast_enabled(device):  # the context takes as long as a launch
        dtype, exact = torch.get_autocast_dtype(device), torch.autocast(device, enabled=False)
    with exact:
        prepared = cached_weights(weights, dtype)
        inputs = inputs.to(dtype)
        bounds = Bounds(math.inf if cell_clip is None else cell_clip, math.inf if proj_clip is None else proj_clip)
        before = [] if state is None else [*state]
        save = torch.is_grad_enabled() and any(x.requires_grad for x in (inputs, *weights, *before))
        # autograd and compilers need the operator, whose dispatch takes as long as one step of a short sentence
        if save or torch.compiler.is_compiling():
            hidden, cell = zero_state(inputs, weights.bias) if state is None else state
            dtypes = [part.dtype for part in before] or [weights.bias.dtype] * 2
            lengths = lengths.to(torch.int32).contiguous()
            outputs, hidden, cell, *_ = lstm_operator(inputs, lengths, *prepared, hidden.to(dtype), cell, *bounds, save)
            return outputs, LSTMState(hidden.to(dtypes[0]), cell.to(dtypes[1]))
        lengths = lengths if lengths.stride(1) == 1 else lengths.contiguous()
        num_cells = weights.projection.shape[1]
        outputs, after, _ = lstm_directly(inputs, lengths, prepared, state, bounds, num_cells=num_cells)
        return outputs, after
