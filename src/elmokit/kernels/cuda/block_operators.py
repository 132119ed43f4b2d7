"""The fused parts of a transformer block as operators of PyTorch, for autograd and for compilers: elmokit::add_norm, …

Input and output: flat tensors, because operators take neither named tuples nor None; an empty tensor is None.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from elmokit.kernels.blocks import AttentionSizes, Past

# ---- sum and norm ----------------------------------------------------------------------------------------------------


@torch.library.custom_op("elmokit::add_norm", mutates_args=())
def add_norm_operator(x: Tensor, added: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """The sum, its norm in `dtype`, and the factors of the norm; without `added` the first is empty."""
    from elmokit.kernels.cuda.elementwise import run_norm

    return run_norm(x, added if added.numel() else None, dtype, save=True)


@add_norm_operator.register_fake
def _(x: Tensor, added: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    total = torch.empty_like(x) if added.numel() else x.new_empty(0)
    factors = x.new_empty(x.numel() // x.shape[-1], dtype=torch.float32)
    return total, torch.empty_like(x, dtype=dtype), factors


@torch.library.custom_op("elmokit::add_norm_backward", mutates_args=())
def _add_norm_backward(
    grad_total: Tensor,
    grad_normed: Tensor,
    normed: Tensor,
    factors: Tensor,
    dtype: torch.dtype,
    added_dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """The gradient of the sum in each dtype, the second one empty if both are the same; `grad_total` may be empty."""
    from elmokit.kernels.cuda.elementwise import run_norm_backward

    total = grad_total if grad_total.numel() else None
    dtypes = (dtype,) if dtype == added_dtype else (dtype, added_dtype)
    grads = run_norm_backward(total, grad_normed, normed, factors, dtypes)
    return grads[0], grads[1] if len(grads) > 1 else normed.new_empty(0)


@_add_norm_backward.register_fake
def _(
    grad_total: Tensor,
    grad_normed: Tensor,
    normed: Tensor,
    factors: Tensor,
    dtype: torch.dtype,
    added_dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    second = normed.new_empty(0) if dtype == added_dtype else torch.empty_like(normed, dtype=added_dtype)
    return torch.empty_like(normed, dtype=dtype), second


def _save_norm(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, added, _ = inputs
    ctx.save_for_backward(*output[1:])
    ctx.dtypes, ctx.adds = (x.dtype, added.dtype), added.numel() > 0
    ctx.set_materialize_grads(False)


def _differentiate_norm(
    ctx: Any, grad_total: Tensor | None, grad_normed: Tensor | None, _: Any
) -> tuple[Tensor | None, Tensor | None, None]:
    normed, factors = ctx.saved_tensors
    if grad_normed is None:
        grad = grad_added = grad_total
    else:
        total = normed.new_empty(0) if grad_total is None else grad_total.contiguous()
        grad, grad_added = torch.ops.elmokit.add_norm_backward(
            total, grad_normed.contiguous(), normed, factors, *ctx.dtypes
        )
        grad_added = grad_added if grad_added.numel() else grad
    if grad_added is not None:
        grad_added = grad_added.to(ctx.dtypes[1]) if ctx.adds else None
    return grad, grad_added, None


add_norm_operator.register_autograd(_differentiate_norm, setup_context=_save_norm)


# ---- gate ------------------------------------------------------------------------------------------------------------


@torch.library.custom_op("elmokit::gate", mutates_args=())
def gate_operator(rows: Tensor) -> Tensor:
    """Gates and values (D, N, 2F) -> (D, N, F)."""
    from elmokit.kernels.cuda.elementwise import run_gate

    return run_gate(rows)


@gate_operator.register_fake
def _(rows: Tensor) -> Tensor:
    return rows.new_empty(*rows.shape[:-1], rows.shape[-1] // 2)


@torch.library.custom_op("elmokit::gate_backward", mutates_args=())
def _gate_backward(grad_gated: Tensor, rows: Tensor) -> Tensor:
    """The gradient of gates and values."""
    from elmokit.kernels.cuda.elementwise import run_gate_backward

    return run_gate_backward(grad_gated, rows)


@_gate_backward.register_fake
def _(grad_gated: Tensor, rows: Tensor) -> Tensor:
    return torch.empty_like(rows)


def _save_gate(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate_gate(ctx: Any, grad_gated: Tensor) -> Tensor:
    grad: Tensor = torch.ops.elmokit.gate_backward(grad_gated.contiguous(), *ctx.saved_tensors)
    return grad


gate_operator.register_autograd(_differentiate_gate, setup_context=_save_gate)


# ---- reading order ---------------------------------------------------------------------------------------------------


def reading_order(x: Tensor, lengths: Tensor, dtype: torch.dtype) -> Tensor:
    """(D, T, B, P) -> contiguous (D, B, T, P) in the other order, zero after the end of a row."""
    from elmokit.kernels.cuda.elementwise import run_order

    d, num_steps, num_rows, width = x.shape
    ordered = x.new_empty(d, num_rows, num_steps, width, dtype=dtype)
    run_order(x, lengths, ordered.transpose(1, 2))
    return ordered


reading_order_operator = torch.library.custom_op("elmokit::reading_order", reading_order, mutates_args=())


@reading_order_operator.register_fake
def _(x: Tensor, lengths: Tensor, dtype: torch.dtype) -> Tensor:
    d, num_steps, num_rows, width = x.shape
    return x.new_empty(d, num_rows, num_steps, width, dtype=dtype)


def text_order(rows: Tensor, lengths: Tensor, dtype: torch.dtype) -> Tensor:
    """(D, B, T, P) -> contiguous (D, T, B, P) in the other order, zero after the end of a row."""
    from elmokit.kernels.cuda.elementwise import run_order

    d, num_rows, num_steps, width = rows.shape
    ordered = rows.new_empty(d, num_steps, num_rows, width, dtype=dtype)
    run_order(rows.transpose(1, 2), lengths, ordered)
    return ordered


text_order_operator = torch.library.custom_op("elmokit::text_order", text_order, mutates_args=())


@text_order_operator.register_fake
def _(rows: Tensor, lengths: Tensor, dtype: torch.dtype) -> Tensor:
    d, num_rows, num_steps, width = rows.shape
    return rows.new_empty(d, num_steps, num_rows, width, dtype=dtype)


def _save_order(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])
    ctx.dtype = inputs[0].dtype


def _differentiate_order(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    return torch.ops.elmokit.text_order(grad.contiguous(), *ctx.saved_tensors, ctx.dtype), None, None


def _differentiate_text(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    return torch.ops.elmokit.reading_order(grad.contiguous(), *ctx.saved_tensors, ctx.dtype), None, None


reading_order_operator.register_autograd(_differentiate_order, setup_context=_save_order)
text_order_operator.register_autograd(_differentiate_text, setup_context=_save_order)


# ---- attention -------------------------------------------------------------------------------------------------------


@torch.library.custom_op("elmokit::attention", mutates_args=())
def attention_operator(
    qkv: Tensor,
    past_keys: Tensor,
    past_values: Tensor,
    num_past: Tensor,
    lengths: Tensor,
    cos: Tensor,
    sin: Tensor,
    num_heads: int,
    window: int,
    num_steps: int,
    with_state: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What each token takes, the last keys and values, and the logarithm of the sum of each softmax."""
    from elmokit.kernels.cuda.attention_launch import run_forward

    past = Past(past_keys, past_values) if past_keys.numel() else None
    sizes, turns = AttentionSizes(num_heads, window), (cos, sin)
    mixed, after, logsumexp = run_forward(
        qkv, past, num_past, lengths, turns, sizes, num_steps, with_state=with_state, save=True
    )
    return mixed, *(after or (qkv.new_empty(0), qkv.new_empty(0))), logsumexp


@attention_operator.register_fake
def _(
    qkv: Tensor,
    past_keys: Tensor,
    past_values: Tensor,
    num_past: Tensor,
    lengths: Tensor,
    cos: Tensor,
    sin: Tensor,
    num_heads: int,
    window: int,
    num_steps: int,
    with_state: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    d, num_tokens, width = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
    shape = (d, len(lengths), window - 1, width) if with_state else (0,)
    logsumexp = qkv.new_empty(d * num_tokens * num_heads, dtype=torch.float32)
    return qkv.new_empty(d, num_tokens, width), qkv.new_empty(shape), qkv.new_empty(shape), logsumexp


@torch.library.custom_op("elmokit::attention_backward", mutates_args=())
def _attention_backward(
    grad_mixed: Tensor,
    grad_keys: Tensor,
    grad_values: Tensor,
    qkv: Tensor,
    past_keys: Tensor,
    past_values: Tensor,
    num_past: Tensor,
    lengths: Tensor,
    cos: Tensor,
    sin: Tensor,
    mixed: Tensor,
    logsumexp: Tensor,
    num_heads: int,
    window: int,
    num_steps: int,
    grad_past: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values, and with `grad_past` of those of the past."""
    from elmokit.kernels.cuda.attention_launch import run_backward

    grad_qkv, before = run_backward(
        grad_mixed,
        Past(grad_keys, grad_values) if grad_keys.numel() else None,
        qkv,
        Past(past_keys, past_values) if past_keys.numel() else None,
        num_past,
        lengths,
        (cos, sin),
        mixed,
        logsumexp,
        AttentionSizes(num_heads, window),
        num_steps,
        grad_past=grad_past,
    )
    return grad_qkv, *(before or (qkv.new_empty(0), qkv.new_empty(0)))


@_attention_backward.register_fake
def _(
    grad_mixed: Tensor,
    grad_keys: Tensor,
    grad_values: Tensor,
    qkv: Tensor,
    past_keys: Tensor,
    past_values: Tensor,
    num_past: Tensor,
    lengths: Tensor,
    cos: Tensor,
    sin: Tensor,
    mixed: Tensor,
    logsumexp: Tensor,
    num_heads: int,
    window: int,
    num_steps: int,
    grad_past: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    before = [torch.empty_like(part) if grad_past else part.new_empty(0) for part in (past_keys, past_values)]
    return torch.empty_like(qkv), before[0], before[1]


def _save_attention(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:7], output[0], output[3])
    ctx.sizes = inputs[7:10]
    ctx.set_materialize_grads(False)


def _differentiate_attention(
    ctx: Any, grad_mixed: Tensor | None, grad_keys: Tensor | None, grad_values: Tensor | None, _: Any
) -> tuple[Tensor | None, ...]:
    qkv, past_keys, *rest = ctx.saved_tensors
    mixed = rest[-2]
    nothing = qkv.new_empty(0)
    if grad_keys is not None or grad_values is not None:
        _, window, num_steps = ctx.sizes
        shape = len(qkv), qkv.shape[1] // num_steps, window - 1, mixed.shape[-1]
        grad_keys, grad_values = (
            qkv.new_zeros(shape) if grad is None else grad.contiguous() for grad in (grad_keys, grad_values)
        )
    grads = torch.ops.elmokit.attention_backward(
        torch.zeros_like(mixed) if grad_mixed is None else grad_mixed.contiguous(),
        nothing if grad_keys is None else grad_keys,
        nothing if grad_values is None else grad_values,
        qkv,
        past_keys,
        *rest,
        *ctx.sizes,
        has_past := bool(past_keys.numel()) and any(ctx.needs_input_grad[1:3]),
    )
    return grads[0], *(grads[1:] if has_past else (None, None)), *[None] * 8


attention_operator.register_autograd(_differentiate_attention, setup_context=_save_attention)
