# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""The Triton kernels of a transformer block between its products, but attention: sum and norm, gate, reading order.

Input and output: as in `kernels/blocks.py`, contiguous.  Each tensor is read or written once.  Gradients of norms are
computed from the normalized vectors, which the products keep anyway.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from elmokit.kernels.blocks import NORM_EPS

ELEMENTS = 2048  # of one program
COLUMNS = 1024  # of a gate, in one program: wide rows are faster


@triton.jit(do_not_specialize=["num_rows"])
def _norm_kernel(
    x, added, total, normed, factors, num_rows, eps,
    P: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr, ADD: tl.constexpr, SAVE: tl.constexpr,
):  # fmt: skip
    """ROWS vectors: their sum with others, its norm, and the factor of the norm."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, PADDED)[None, :]
    inside = (row < num_rows) & (column < P)
    at = row * P + column
    vector = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        vector += tl.load(added + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(total + at, vector.to(total.dtype.element_ty), mask=inside)
    factor = tl.rsqrt(tl.sum(vector * vector, axis=1) / P + eps)[:, None]
    tl.store(normed + at, (vector * factor).to(normed.dtype.element_ty), mask=inside)
    if SAVE:
        tl.store(factors + row, factor, mask=row < num_rows)


@triton.jit(do_not_specialize=["num_rows"])
def _norm_backward_kernel(
    grad_total, grad_normed, normed, factors, grad_x, grad_added, num_rows,
    P: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr, TOTAL: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """The gradient of ROWS vectors, which is that of both summands."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, PADDED)[None, :]
    inside = (row < num_rows) & (column < P)
    at = row * P + column
    grad = tl.load(grad_normed + at, mask=inside, other=0.0).to(tl.float32)
    direction = tl.load(normed + at, mask=inside, other=0.0).to(tl.float32)
    factor = tl.load(factors + row, mask=row < num_rows, other=0.0)
    grad = factor * (grad - direction * (tl.sum(grad * direction, axis=1) / P)[:, None])
    if TOTAL:
        grad += tl.load(grad_total + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(grad_x + at, grad.to(grad_x.dtype.element_ty), mask=inside)
    if ADD:
        tl.store(grad_added + at, grad.to(grad_added.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["num_rows"])
def _gate_kernel(rows, gated, num_rows, F: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    inside = (row < num_rows) & (column < F)
    at = row * (2 * F) + column
    x = tl.load(rows + at, mask=inside, other=0.0).to(tl.float32)
    value = tl.load(rows + F + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(gated + row * F + column, (x / (1.0 + tl.exp(-x)) * value).to(gated.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["num_rows"])
def _gate_backward_kernel(
    grad_gated, rows, grad_rows, num_rows, F: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    inside = (row < num_rows) & (column < F)
    at = row * (2 * F) + column
    x = tl.load(rows + at, mask=inside, other=0.0).to(tl.float32)
    value = tl.load(rows + F + at, mask=inside, other=0.0).to(tl.float32)
    grad = tl.load(grad_gated + row * F + column, mask=inside, other=0.0).to(tl.float32)
    opened = 1.0 / (1.0 + tl.exp(-x))
    grad_gate = grad * value * opened * (1.0 + x * (1.0 - opened))
    tl.store(grad_rows + at, grad_gate.to(grad_rows.dtype.element_ty), mask=inside)
    tl.store(grad_rows + F + at, (grad * x * opened).to(grad_rows.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["T", "B"])
def _order_kernel(
    x, lengths, ordered, T, B, x_direction, x_time, x_row, y_direction, y_time, y_row,
    P: tl.constexpr, PADDED: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """TOKENS tokens of one row of one direction: the backward direction from its last token to its first, then zeros.

    The order is its own inverse.
    """
    tiles = tl.cdiv(T, TOKENS)
    program = tl.program_id(0)
    row = program // tiles
    d = (row // B).to(tl.int64)
    b = (row % B).to(tl.int64)
    length = tl.load(lengths + b)
    t = (program % tiles * TOKENS + tl.arange(0, TOKENS))[:, None].to(tl.int64)
    column = tl.arange(0, PADDED)[None, :]
    source = tl.where(d == 0, t, length - 1 - t)
    at = x + d * x_direction + b * x_row + source * x_time + column
    vectors = tl.load(at, mask=(t < length) & (column < P), other=0.0)
    at = ordered + d * y_direction + b * y_row + t * y_time + column
    tl.store(at, vectors.to(ordered.dtype.element_ty), mask=(t < T) & (column < P))


# ---- launches --------------------------------------------------------------------------------------------------------


def run_norm(x: Tensor, added: Tensor | None, dtype: torch.dtype, *, save: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The sum (..., P), its norm in `dtype`, and with `save` the factors of the norm; no sum without `added`."""
    num_rows, width = x.numel() // x.shape[-1], x.shape[-1]
    total = torch.empty_like(x) if added is not None else x.new_empty(0)
    normed = torch.empty_like(x, dtype=dtype)
    factors = x.new_empty(num_rows if save else 0, dtype=torch.float32)
    grid, sizes = _rows(num_rows, width)
    with torch.cuda.device_of(x):
        _norm_kernel[grid](
            x, x if added is None else added, total, normed, factors, num_rows, NORM_EPS, P=width, **sizes,
            ADD=added is not None, SAVE=save,
        )  # fmt: skip
    return total, normed, factors


def run_norm_backward(
    grad_total: Tensor | None, grad_normed: Tensor, normed: Tensor, factors: Tensor, dtypes: tuple[torch.dtype, ...]
) -> tuple[Tensor, ...]:
    """The gradient of the sum, once in each dtype, of which there are one or two."""
    grads = tuple(torch.empty_like(normed, dtype=dtype) for dtype in dtypes)
    grid, sizes = _rows(len(factors), normed.shape[-1])
    with torch.cuda.device_of(normed):
        _norm_backward_kernel[grid](
            grad_normed if grad_total is None else grad_total, grad_normed, normed, factors, grads[0], grads[-1],
            len(factors), P=normed.shape[-1], **sizes, TOTAL=grad_total is not None, ADD=len(grads) > 1,
        )  # fmt: skip
    return grads


def run_gate(rows: Tensor) -> Tensor:
    """Gates and values (D, N, 2F) -> (D, N, F)."""
    gated = rows.new_empty(*rows.shape[:-1], rows.shape[-1] // 2)
    grid, sizes = _columns(gated)
    with torch.cuda.device_of(rows):
        _gate_kernel[grid](rows, gated, gated.numel() // gated.shape[-1], **sizes)
    return gated


def run_gate_backward(grad_gated: Tensor, rows: Tensor) -> Tensor:
    """The gradient (D, N, 2F) of gates and values."""
    grad_rows = torch.empty_like(rows)
    grid, sizes = _columns(grad_gated)
    with torch.cuda.device_of(rows):
        _gate_backward_kernel[grid](grad_gated, rows, grad_rows, rows.numel() // rows.shape[-1], **sizes)
    return grad_rows


def run_order(x: Tensor, lengths: Tensor, ordered: Tensor) -> None:
    """Copy vectors (D, T, B, P) to `ordered`, the backward direction in reading order, zeros after the end of a row."""
    d, num_steps, num_rows, width = x.shape
    padded = triton.next_power_of_2(width)
    tokens = max(1, min(ELEMENTS // padded, triton.next_power_of_2(num_steps)))
    with torch.cuda.device_of(x):
        _order_kernel[(-(-num_steps // tokens) * d * num_rows,)](
            x, lengths, ordered, num_steps, num_rows, *x.stride()[:3], *ordered.stride()[:3], P=width, PADDED=padded,
            TOKENS=tokens,
        )  # fmt: skip


def _rows(num_rows: int, width: int) -> tuple[tuple[int], dict[str, int]]:
    """Grid and sizes of a kernel whose programs compute complete vectors."""
    padded = triton.next_power_of_2(width)
    rows = max(1, ELEMENTS // padded)
    return (-(-num_rows // rows),), {"PADDED": padded, "ROWS": rows}


def _columns(gated: Tensor) -> tuple[tuple[int, int], dict[str, int]]:
    """Grid and sizes of a kernel of gates."""
    width = gated.shape[-1]
    columns = min(COLUMNS, triton.next_power_of_2(width))
    rows = ELEMENTS // columns
    num_rows = gated.numel() // width
    return (-(-num_rows // rows), -(-width // columns)), {"F": width, "ROWS": rows, "COLUMNS": columns}
