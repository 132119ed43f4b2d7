"""Transformer blocks of one direction by native: one call for the rows of a thread.

Input: vectors (B, T, P), the packed weights of all blocks, and the keys and values before the first token.  Output:
the vectors above each block, and the keys and values after the last token.

`network/transformer.py` has the same in PyTorch, which runs elsewhere.  In PyTorch a third of the time went into what
is between the products, more with many rows, whose tensors left the cache; and padding was computed.

Shapes: B rows, T tokens, P width, L blocks, W window.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from elmokit.kernels.blocks import AttentionSizes, Past, turn_tables
from elmokit.kernels.cpu import native
from elmokit.kernels.cpu.native import NativeMatrix

NOTHING = (None, None)  # in place of a `Past`


class NativeBlock(NamedTuple):
    """The weights of one direction of a block."""

    attention_input: NativeMatrix
    attention_output: NativeMatrix
    feedforward_input: NativeMatrix
    feedforward_output: NativeMatrix


class _Block(ctypes.Structure):
    _fields_ = tuple((name, native.Matrix) for name in NativeBlock._fields)


class _Stack(ctypes.Structure):
    _fields_ = (
        ("num_blocks", ctypes.c_int64),
        ("width", ctypes.c_int64),
        ("num_heads", ctypes.c_int64),
        ("feedforward_dim", ctypes.c_int64),
        ("window", ctypes.c_int64),
        ("blocks", ctypes.POINTER(_Block)),
        ("cosines", ctypes.c_void_p),
        ("sines", ctypes.c_void_p),
    )


class _Pass(ctypes.Structure):
    _fields_ = (
        ("all_rows", ctypes.c_int64),
        ("num_rows", ctypes.c_int64),
        ("num_steps", ctypes.c_int64),
        ("lengths", ctypes.c_void_p),
        ("num_past", ctypes.c_void_p),
        ("x", ctypes.c_void_p),
        ("layers", ctypes.POINTER(ctypes.c_void_p)),
        ("past_keys", ctypes.c_void_p),
        ("past_values", ctypes.c_void_p),
        ("keys", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
    )


def run_blocks(
    blocks: Sequence[NativeBlock],
    x: Tensor,
    lengths: Tensor,
    past: Past | None,
    num_past: Tensor | None,
    sizes: AttentionSizes,
    *,
    with_state: bool,
    only_top: bool,
) -> tuple[list[Tensor], Past | None]:
    """Run every block. A row has the same vectors to the bit, whatever runs with it.

    Args:
        blocks: Weights of at least one block.
        x: (B, T, P) float32.
        lengths: (B,) number of tokens of each row.
        past: (L, B, W - 1, P) each, right-aligned; None if there is none.
        num_past: (B,) how many of them are tokens; None if there is no past.
        sizes: Sizes of the attention.
        with_state: Return the keys and values after the last tokens, right-aligned after zeros.
        only_top: Return the last layer only.

    Returns:
        (B, T, P) above each block, undefined after the end of a row, and (L, B, W - 1, P) each, or None.
    """
    num_rows, num_steps, width = x.shape
    x, lengths = x.detach().contiguous(), lengths.to(torch.int64).contiguous()
    layers = [x.new_empty(x.shape) for _ in (blocks[-1:] if only_top else blocks)]
    unwanted = [None] * (len(blocks) - len(layers))
    kept = None
    if with_state:
        shape = (len(blocks), num_rows, sizes.window - 1, width)
        kept = Past(x.new_zeros(shape), x.new_zeros(shape))
    if past is not None and num_past is not None:
        past, num_past = Past(*(part.contiguous() for part in past)), num_past.to(torch.int64).contiguous()
    states = (*(past or NOTHING), *(kept or NOTHING))
    turns = turn_tables(num_steps + (0 if past is None else sizes.window - 1), width // sizes.num_heads, x.device)
    arguments = [_Block(*(matrix.argument() for matrix in block)) for block in blocks]
    stack = _Stack(
        len(blocks),
        width,
        sizes.num_heads,
        blocks[0].feedforward_input.num_columns // 2,
        sizes.window,
        (_Block * len(blocks))(*arguments),
        *(part.data_ptr() for part in turns),
    )

    def run(begin: int, end: int) -> None:
        own = _Pass(
            num_rows,
            end - begin,
            num_steps,
            lengths[begin:].data_ptr(),
            None if num_past is None else num_past[begin:].data_ptr(),
            x[begin:].data_ptr(),
            (ctypes.c_void_p * len(blocks))(*unwanted, *(layer[begin:].data_ptr() for layer in layers)),
            *(None if part is None else part[:, begin:].data_ptr() for part in states),
        )
        native.call("elmokit_blocks", ctypes.byref(stack), ctypes.byref(own))

    matrices = sum(matrix.depth * matrix.num_columns for block in blocks for matrix in block)
    native.in_threads(run, num_rows, work=num_rows * num_steps * matrices)
    return layers, kept
