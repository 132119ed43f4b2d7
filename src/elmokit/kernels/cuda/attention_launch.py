"""Attention on a GPU: buffers, sizes of tiles and launches of the kernels in `attention`.

Input: queries, keys and values as the product writes them, and the past.  Output: see `blocks.Attention`; or gradients.

Legend of shapes: D directions, T tokens, B rows, P projection, H heads, W window, S = W - 1 + T.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from elmokit.kernels.blocks import NORM_EPS, AttentionSizes, Past
from elmokit.kernels.cuda.launch import precision

LARGEST_EXPONENT = 15.9  # of a power of 2 in float16, with room for rounding
# three programs at a time on a processor
FORWARD_PLAN = {"num_warps": 4, "num_stages": 1, "maxnreg": 168}
BACKWARD_PLAN = {"num_warps": 4, "num_stages": 1, "maxnreg": 168}


def run_forward(
    qkv: Tensor,
    past: Past | None,
    num_past: Tensor | None,
    lengths: Tensor,
    turns: tuple[Tensor, Tensor],
    sizes: AttentionSizes,
    num_steps: int,
    *,
    with_state: bool,
    save: bool,
) -> tuple[Tensor, Past | None, Tensor]:
    """Attend: see `blocks.Attention`.

    Args:
        qkv: (D, B T, 3P), contiguous.
        past: Keys and values of the tokens before.
        num_past: (B,) number of tokens before.
        lengths: (B,).
        turns: Cosines and sines (S, P / H / 2) float32 of at least W - 1 + T positions.
        sizes: Heads and window.
        num_steps: T.
        with_state: Return the last keys and values.
        save: Return what the backward pass needs.

    Returns:
        (D, B T, P) what each token takes, zeros after the end of a row; the last keys and values; and the logarithm of
        the sum of each softmax (D, B, H, T), or nothing.
    """
    from elmokit.kernels.cuda import attention

    constants, programs = _launch(qkv, lengths, sizes, num_steps)
    d, width, nothing = len(qkv), constants["P"], qkv.new_empty(0)
    mixed = qkv.new_empty(d, qkv.shape[1], width)
    logsumexp = qkv.new_empty(d * len(lengths) * sizes.num_heads * num_steps if save else 0, dtype=torch.float32)
    after = None
    if with_state:
        shape = d, len(lengths), sizes.window - 1, width
        after = Past(qkv.new_empty(shape), qkv.new_empty(shape))
    keys, values = (nothing, nothing) if past is None else past
    with torch.cuda.device_of(qkv):  # type: ignore[no-untyped-call]
        attention.attention_forward[(programs,)](
            qkv, keys, values, num_past if num_past is not None else lengths, lengths, *turns, mixed, logsumexp,
            *(after or (nothing, nothing)), num_steps, len(lengths), _scale(constants["HEAD"]), NORM_EPS, **constants,
            SHIFT=_shift(constants["HEAD"]), PAST=keys.numel() > 0, STATE=with_state and sizes.window > 1, SAVE=save,
            **FORWARD_PLAN,
        )  # fmt: skip
    return mixed, after, logsumexp


def run_backward(
    grad_mixed: Tensor,
    grad_after: Past | None,
    qkv: Tensor,
    past: Past | None,
    num_past: Tensor | None,
    lengths: Tensor,
    turns: tuple[Tensor, Tensor],
    mixed: Tensor,
    logsumexp: Tensor,
    sizes: AttentionSizes,
    num_steps: int,
    *,
    grad_past: bool,
) -> tuple[Tensor, Past | None]:
    """Gradients of `run_forward`: of qkv, and of the past where it is asked for."""
    from elmokit.kernels.cuda import attention

    constants, programs = _launch(qkv, lengths, sizes, num_steps)
    nothing = qkv.new_empty(0)
    keys, values = (nothing, nothing) if past is None else past
    grad_past = grad_past and keys.numel() > 0
    if grad_past:
        tiles = -(-num_steps // constants["BT"])
        programs = programs // tiles * (tiles + -(-(sizes.window - 1) // constants["BT"]))
    grad_qkv = torch.empty_like(qkv)
    grad_before = Past(torch.empty_like(keys), torch.empty_like(values)) if grad_past else None
    with torch.cuda.device_of(qkv):  # type: ignore[no-untyped-call]
        attention.attention_backward[(programs,)](
            qkv, keys, values, num_past if num_past is not None else lengths, lengths, *turns, mixed, logsumexp,
            grad_mixed, *(grad_after or (nothing, nothing)), grad_qkv, *(grad_before or (nothing, nothing)), num_steps,
            len(lengths), _scale(constants["HEAD"]), NORM_EPS, **constants,
            PAST=keys.numel() > 0, STATE=grad_after is not None and sizes.window > 1, GRAD_PAST=grad_past,
            ALONE=num_steps <= constants["BT"] and not grad_past, **BACKWARD_PLAN,
        )  # fmt: skip
    return grad_qkv, grad_before


def _launch(qkv: Tensor, lengths: Tensor, sizes: AttentionSizes, num_steps: int) -> tuple[dict[str, Any], int]:
    """The constants of a launch, and the number of programs."""
    width = qkv.shape[-1] // 3
    head = width // sizes.num_heads
    half = max(16, _power_of_2(head // 2))  # a product has at least 16 columns
    fits = max(16, min(64, 8192 // (2 * half * qkv.element_size())))
    tile = min(fits, max(16, _power_of_2(num_steps)))
    constants = {
        "P": width, "HEAD": head, "HALF": half, "DIM": 2 * half, "W": sizes.window, "BT": tile,
        "PRECISION": precision(qkv.dtype),
    }  # fmt: skip
    return constants, -(-num_steps // tile) * sizes.num_heads * len(qkv) * len(lengths)


def _power_of_2(number: int) -> int:
    """The next power of two."""
    return 1 << max(0, number - 1).bit_length()


def _scale(head_dim: int) -> float:
    """The factor that makes of products of queries and keys exponents of 2."""
    return math.log2(math.e) / math.sqrt(head_dim)


def _shift(head_dim: int) -> float:
    """What is subtracted from exponents, so that powers fit into float16."""
    return max(0.0, math.log2(math.e) * math.sqrt(head_dim) - LARGEST_EXPONENT)
