"""What a transformer block computes between its products, in plain PyTorch: norms, attention, gates, reading order.

Input and output: tensors in reading order; the backward direction reads each row from its last token to its first.
`cuda/blocks.py` has the same names, fused.  This module runs on any device and in any floating dtype, and autograd
differentiates it.

Legend of shapes: D directions, T tokens, B rows, P projection, H heads, F feed-forward, W window, S = W - 1 + T with
a past, else T.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

NORM_EPS = 1e-6  # added to the mean square
ROTARY_BASE = 10_000.0


class AttentionSizes(NamedTuple):
    """Sizes of the attention of all blocks."""

    num_heads: int
    window: int  # a token attends to itself and to the window - 1 tokens before it


class Past(NamedTuple):
    """Keys and values of the tokens before, right-aligned."""

    keys: Tensor  # (D, B, W - 1, P), normalized and not rotated
    values: Tensor  # (D, B, W - 1, P)


def norm(x: Tensor) -> Tensor:
    """Divide vectors (..., P) by the root of their mean square; zeros stay zeros."""
    return functional.rms_norm(x, x.shape[-1:], eps=NORM_EPS).to(x.dtype)  # autocast may widen it


def add_norm(x: Tensor, added: Tensor) -> tuple[Tensor, Tensor]:
    """The sum of two tensors (D, B, T, P), and its norm."""
    total = x + added
    return total, norm(total)


def gate(rows: Tensor) -> Tensor:
    """Gates and values (D, N, 2F) -> silu(gate) * value (D, N, F)."""
    first, value = rows.chunk(2, dim=-1)
    return functional.silu(first) * value


class Attention:
    """Attention of T tokens of each row, after those of the past; all blocks use the same one.

    Args:
        sizes: Heads and window.
        lengths: (B,) number of tokens of each row. What is computed for later ones is not defined.
        num_past: (B,) number of tokens before; None if there are none.
        num_steps: T.
        width: P.
        like: A tensor of the dtype and the device of the rows.
        with_state: Return the last keys and values.
    """

    def __init__(
        self,
        sizes: AttentionSizes,
        lengths: Tensor,
        num_past: Tensor | None,
        num_steps: int,
        width: int,
        like: Tensor,
        *,
        with_state: bool,
    ) -> None:
        self.sizes, self.num_steps = sizes, num_steps
        past = 0 if num_past is None else sizes.window - 1
        self._turns = _turns(past + num_steps, width // sizes.num_heads, like)
        self._mask = None
        if num_past is not None or num_steps > sizes.window:
            self._mask = _mask(num_past, num_steps, sizes.window, like.device)
        self._keep = _last_tokens(lengths, sizes.window - 1) if with_state else None

    def __call__(self, qkv: Tensor, past: Past | None) -> tuple[Tensor, Past | None]:
        """Attend.

        Args:
            qkv: (D, B T, 3P) queries, keys and values.
            past: Keys and values of the tokens before; None if there are none.

        Returns:
            (D, B T, P) what each token takes, and the keys and values of the last W - 1 tokens of each row, or None.
        """
        num_heads, window = self.sizes
        d, width = len(qkv), qkv.shape[-1] // 3
        qkv = qkv.view(d, -1, self.num_steps, 3 * num_heads, width // num_heads)
        q, k = norm(qkv[..., : 2 * num_heads, :]).chunk(2, dim=-2)  # (D, B, T, H, P / H) each
        v = qkv[..., 2 * num_heads :, :]
        if past is not None:
            keys, values = (part.view(*part.shape[:-1], num_heads, width // num_heads).to(k.dtype) for part in past)
            k, v = torch.cat([keys, k], dim=2), torch.cat([values, v], dim=2)
        cos, sin = (part.to(k.dtype) for part in self._turns)  # half precision under autocast
        asked, known = _turn(q, cos[-self.num_steps :], sin[-self.num_steps :]), _turn(k, cos, sin)
        # (D, B, S, H, P / H) -> (D B, H, S, P / H)
        asked, known, taken = (part.flatten(0, 1).transpose(1, 2) for part in (asked, known, v))
        mask = self._mask
        if mask is not None and len(mask) > 1:
            mask = mask.repeat(d, 1, 1, 1)
        mixed = functional.scaled_dot_product_attention(asked, known, taken, attn_mask=mask, is_causal=mask is None)
        mixed = mixed.transpose(1, 2).reshape(d, -1, width)
        if self._keep is None:
            return mixed, None
        kept = (_take(part.flatten(-2), self._keep, window - 1, has_past=past is not None) for part in (k, v))
        return mixed, Past(*kept)


# ---- reading order ---------------------------------------------------------------------------------------------------


def to_reading_order(x: Tensor, lengths: Tensor, dtype: torch.dtype) -> Tensor:
    """(D, T, B, P) -> (D, B, T, P) in `dtype`."""
    order = _reading_order(lengths, x.shape[1])
    return torch.stack([x[0].transpose(0, 1), _reorder(x[1].transpose(0, 1), order)]).to(dtype)


def to_text_order(layers: Sequence[Tensor], lengths: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """(D, B, T, P) each -> (D, T, B, P) each in `dtype`, zero after the end of a row."""
    directions = (direction_to_text_order(own, lengths, d) for d, own in enumerate(zip(*layers, strict=True)))
    return [torch.stack(parts).transpose(1, 2).to(dtype) for parts in zip(*directions, strict=True)]


def direction_to_text_order(layers: Sequence[Tensor], lengths: Tensor, d: int) -> Iterator[Tensor]:
    """(B, T, P) of direction d of each layer -> (B, T, P) each, zero after the end of a row."""
    if not layers:
        return
    num_steps = layers[0].shape[1]
    order = _reading_order(lengths, num_steps)
    is_token = (torch.arange(num_steps, device=lengths.device) < lengths.unsqueeze(1)).unsqueeze(-1)  # (B, T, 1)
    for layer in layers:
        yield torch.where(is_token, layer if d == 0 else _reorder(layer, order), 0.0)


def _reading_order(lengths: Tensor, num_steps: int) -> Tensor:
    """(B, T): the step that the backward direction reads at each step; its own inverse. Padding stays where it is."""
    steps = torch.arange(num_steps, device=lengths.device)
    ends = lengths.unsqueeze(1)
    return torch.where(steps < ends, ends - 1 - steps, steps)


def _reorder(rows: Tensor, order: Tensor) -> Tensor:
    """Rows (B, T, P) with their steps in another order."""
    return rows.gather(1, order.unsqueeze(-1).expand_as(rows))


# ---- positions and windows -------------------------------------------------------------------------------------------


def angles(num_steps: int, dim: int, device: torch.device) -> Tensor:
    """(S, dim / 2) float64: the angle of each pair of a head at positions 0 to S - 1."""
    rates = torch.exp(torch.arange(0, dim, 2, dtype=torch.float64, device=device) * (-math.log(ROTARY_BASE) / dim))
    return torch.arange(num_steps, dtype=torch.float64, device=device).unsqueeze(1) * rates


def turn_tables(num_steps: int, dim: int, device: torch.device, *, keep: bool = True) -> tuple[Tensor, Tensor]:
    """Cosines and sines (S, dim / 2) float32 of at least `num_steps` positions; `keep` them for the next calls."""
    padded = 1 << (num_steps - 1).bit_length()  # few tables
    return _kept_tables(padded, dim, device) if keep else _tables(padded, dim, device)


@functools.cache
def _kept_tables(num_steps: int, dim: int, device: torch.device) -> tuple[Tensor, Tensor]:
    with torch.inference_mode(False), torch.no_grad():  # also later calls outside of inference mode read these
        return _tables(num_steps, dim, device)


def _tables(num_steps: int, dim: int, device: torch.device) -> tuple[Tensor, Tensor]:
    turned = angles(num_steps, dim, device)
    return turned.cos().float(), turned.sin().float()


def _turns(num_steps: int, dim: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Factors (S, 1, dim) of vectors and of their swapped halves that rotate them to positions 0 to S - 1."""
    turned = angles(num_steps, dim, like.device).unsqueeze(1)
    cos, sin = turned.cos().to(like.dtype), turned.sin().to(like.dtype)
    return torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs (i, i + dim / 2) of vectors (D, B, S, H, dim) by the angles of their positions."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, dims=-1), sin)


def _mask(num_past: Tensor | None, num_steps: int, window: int, device: torch.device) -> Tensor:
    """(B, 1, T, W - 1 + T) bool: the past and present keys that each token may attend to; (1, 1, T, T) without past."""
    position = torch.arange(num_steps, device=device).unsqueeze(1)  # (T, 1)
    other = torch.arange(0 if num_past is None else 1 - window, num_steps, device=device)  # (S,), of the past below 0
    is_near = (other <= position) & (other > position - window)  # (T, S)
    if num_past is None:
        return is_near.expand(1, 1, -1, -1)
    is_token = other >= -num_past.view(-1, 1, 1)  # (B, 1, S)
    return (is_near & is_token).unsqueeze(1)


def _last_tokens(lengths: Tensor, count: int) -> Tensor:
    """(B, count): indices of the last tokens of each row among `count` past tokens and its own."""
    return lengths.unsqueeze(1) + torch.arange(count, device=lengths.device)


def _take(sequence: Tensor, index: Tensor, num_past: int, *, has_past: bool) -> Tensor:
    """The tokens (D, B, W - 1, P) at an index (B, W - 1) of past and present tokens; zeros without a past."""
    if not has_past:
        sequence = functional.pad(sequence, (0, 0, num_past, 0))
    return sequence.gather(2, index.unsqueeze(-1).expand(len(sequence), *index.shape, sequence.shape[-1]))
