"""What a transformer block computes between its products, fused: `kernels/blocks.py` with fewer and faster kernels.

Input and output: as in `kernels/blocks.py`, but norms are in the dtype of products, which under autocast is half
precision, while sums keep the dtype of the vectors.

attention.py        norms of queries and keys, rotation, window, softmax and state: one launch (attention_launch.py)
elementwise.py      sum and norm, gate, reading order
block_operators.py  operators for autograd and compilers, which without gradients are left out

Attention reads what the product wrote, and no mask: whole documents take memory by their length.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from elmokit.kernels import product_dtype
from elmokit.kernels.blocks import AttentionSizes, Past, turn_tables
from elmokit.kernels.cuda import block_operators as operators


def norm(x: Tensor) -> Tensor:
    """Divide vectors (..., P) by the root of their mean square; zeros stay zeros."""
    return _norm(x, None)[1]


def add_norm(x: Tensor, added: Tensor) -> tuple[Tensor, Tensor]:
    """The sum of two tensors (D, B, T, P), and its norm."""
    return _norm(x, added)


def _norm(x: Tensor, added: Tensor | None) -> tuple[Tensor, Tensor]:
    dtype = product_dtype(x)
    x, added = x.contiguous(), None if added is None else added.contiguous()
    if _needs_operator(x, added):
        summands = x, x.new_empty(0) if added is None else added
        both: tuple[Tensor, Tensor] = operators.add_norm_operator(*summands, dtype)[:2]
        return both
    from elmokit.kernels.cuda.elementwise import run_norm

    total, normed, _ = run_norm(x, added, dtype, save=False)
    return total, normed


def gate(rows: Tensor) -> Tensor:
    """Gates and values (D, N, 2F) -> silu(gate) * value (D, N, F)."""
    rows = rows.contiguous()
    if _needs_operator(rows):
        gated: Tensor = operators.gate_operator(rows)
        return gated
    from elmokit.kernels.cuda.elementwise import run_gate

    return run_gate(rows)


class Attention:
    """Attention of T tokens of each row, after those of the past; all blocks use the same one.

    Arguments as for `blocks.Attention`.
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
        self.sizes, self.num_steps, self.with_state = sizes, num_steps, with_state
        self._lengths, self._num_past = lengths.contiguous(), lengths if num_past is None else num_past.contiguous()
        # a graph computes its own, since it fills them when it is replayed
        in_graph = torch.compiler.is_compiling() or (like.is_cuda and torch.cuda.is_current_stream_capturing())
        self._turns = turn_tables(
            sizes.window - 1 + num_steps, width // sizes.num_heads, like.device, keep=not in_graph
        )

    def __call__(self, qkv: Tensor, past: Past | None) -> tuple[Tensor, Past | None]:
        """Attend: see `blocks.Attention`."""
        qkv = qkv.contiguous()
        if past is not None:
            past = Past(past.keys.contiguous(), past.values.contiguous())
        if _needs_operator(qkv, *(past or ())):
            keys, values = past or (qkv.new_empty(0), qkv.new_empty(0))
            mixed, *after, _ = operators.attention_operator(
                qkv, keys, values, self._num_past, self._lengths, *self._turns, *self.sizes, self.num_steps,
                self.with_state,
            )  # fmt: skip
            return mixed, Past(*after) if self.with_state else None
        from elmokit.kernels.cuda.attention_launch import run_forward

        mixed, kept, _ = run_forward(
            qkv, past, self._num_past, self._lengths, self._turns, self.sizes, self.num_steps,
            with_state=self.with_state, save=False,
        )  # fmt: skip
        return mixed, kept


def to_reading_order(x: Tensor, lengths: Tensor, dtype: torch.dtype) -> Tensor:
    """(D, T, B, P) -> (D, B, T, P) in `dtype`, zero after the end of a row."""
    x = x if x.stride(-1) == 1 else x.contiguous()
    if _needs_operator(x):
        ordered: Tensor = operators.reading_order_operator(x, lengths, dtype)
        return ordered
    return operators.reading_order(x, lengths, dtype)


def to_text_order(layers: Sequence[Tensor], lengths: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """(D, B, T, P) each -> (D, T, B, P) each in `dtype`, zero after the end of a row."""
    if any(_needs_operator(layer) for layer in layers):
        return [operators.text_order_operator(layer.contiguous(), lengths, dtype) for layer in layers]
    from elmokit.kernels.cuda.elementwise import run_order

    d, num_rows, num_steps, width = layers[0].shape
    # directions beside each other, as the output of a biLM has them
    ordered = layers[0].new_empty(len(layers), num_steps, num_rows, d, width, dtype=dtype).permute(0, 3, 1, 2, 4)
    for layer, place in zip(layers, ordered, strict=True):
        run_order(layer.transpose(1, 2), lengths, place)
    return list(ordered)


def _needs_operator(*tensors: Tensor | None) -> bool:
    """Whether autograd or a compiler needs an operator, whose dispatch takes as long as its kernels for a sentence."""
    if torch.compiler.is_compiling():
        return True
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)
