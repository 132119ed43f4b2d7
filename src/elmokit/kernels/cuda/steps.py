# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""The Triton kernels of the CUDA engine: the forward loop and the backward loop over the steps.

Input: padded tensors of one layer.  K is the padded projection width and C the padded number of cells.
`rows` (D, T + 2, B, 2K) holds [input | hidden state before the step] of time t in slot t + 1, so that one product with
`weight` (D, 2K, 4C) computes all gates.  The last state of a direction is in slot 0 or T + 1.  Columns of gates
interleave i, j, f and o in runs of 32 cells, so that a tile of the product contains all gates of its cells.
Output: the hidden halves of `rows`, outputs (D, T, B, P), the cells, and the activations for the backward loop.

Each loop is one kernel with several phases.  With all phases in one launch, its programs run through all steps and wait
for each other at a barrier after each phase (the launch must be cooperative).  With one phase per launch, the launches
are the barriers.  Partial sums are added in a fixed order, so that results do not depend on timing.
"""

from __future__ import annotations

import triton
import triton.language as tl

GATES, PROJECT, REDUCE = 1, 2, 4  # phases of the forward loop
HIDDEN, UNPROJECT, CELLS, BACK = 1, 2, 4, 8  # phases of the backward loop
ALL = 15
ROWS, COLUMNS = 32, 64  # size of an elementwise block of cells


@triton.jit
def _tanh(x, FAST: tl.constexpr):
    if FAST:  # one instruction, absolute error under 2^-10: less than the rounding to half precision that follows
        return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    return 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0)


@triton.jit
def _sigmoid(x, FAST: tl.constexpr):
    if FAST:
        return 0.5 * _tanh(0.5 * x, FAST) + 0.5
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def _clip(x, bound):
    return tl.where(x > bound, bound, tl.where(x < -bound, -bound, x))  # unlike minimum and maximum, keeps NaN


@triton.jit
def _wait_for_all(barrier, arrivals):
    """Wait until `arrivals` programs have arrived: what they wrote before the barrier can be read after it."""
    tl.debug_barrier()
    tl.atomic_add(barrier, 1, sem="release", scope="gpu")
    while tl.atomic_add(barrier, 0, sem="acquire", scope="gpu") < arrivals:
        pass
    tl.debug_barrier()


@triton.jit
def _split_gates(x, BM: tl.constexpr, BN: tl.constexpr):
    """(BM, 4BN) with interleaved gates -> i, j, f, o of (BM, BN).

    All four gates of a cell are in the registers of one thread after the product, so no data is moved.
    """
    first, second = x.reshape(BM, BN // 32, 4, 32).permute(0, 1, 3, 2).reshape(BM, BN, 2, 2).split()
    i, f = first.split()
    j, o = second.split()
    return i, j, f, o


@triton.jit
def _column(cell):
    """The column of a cell's first gate; the columns of the others follow at distances of 32."""
    return tl.max_contiguous(tl.multiple_of(cell // 32 * 128 + cell % 32, 8), 8)


@triton.jit
def _gates_tile(
    tile, d, s, rows, weight, bias, hoisted, lengths, cell, cell_output, gates, cells, depth, T, B, apart, cell_clip,
    K: tl.constexpr, C: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    HOISTED: tl.constexpr, EARLY: tl.constexpr, SAVE: tl.constexpr, PRECISION: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """BM rows, BN cells: all four gates, the new cells, and the cell output that the projection reads."""
    row_tiles = tl.cdiv(B, BM)
    b = tile % row_tiles * BM + tl.arange(0, BM)
    first_cell = tile // row_tiles * BN
    t = tl.where(d == 0, s, T - 1 - s)
    inside = (b < B)[:, None]
    b = tl.minimum(b, B - 1)
    n = 4 * first_cell + tl.arange(0, 4 * BN)
    k = tl.arange(0, BK)
    step = (d * T + t).to(tl.int64) * B
    own = b[:, None] * C + first_cell + tl.arange(0, BN)[None, :]
    cell += d.to(tl.int64) * B * C + own
    hoisted += step * (4 * C) + b[:, None] * (4 * C) + n[None, :]
    if EARLY:  # these loads are then under way during the product
        before = tl.load(cell)
        of_inputs = tl.load(hoisted)
    a = rows + (d * (T + 2) + t + 1).to(tl.int64) * B * (2 * K) + b[:, None] * (2 * K) + k[None, :]
    acc = tl.zeros((BM, 4 * BN), dtype=tl.float32)
    w = weight + d * (2 * K * 4 * C) + k[:, None] * (4 * C) + n[None, :]
    for begin in range(K if HOISTED else 0, depth, BK):
        acc = tl.dot(tl.load(a + begin), tl.load(w + begin * (4 * C)), acc, input_precision=PRECISION)
    acc += tl.load(bias + d * (4 * C) + n)[None, :]
    if EARLY:
        acc += of_inputs
    elif HOISTED:
        acc += tl.load(hoisted)
    i, j, f, o = _split_gates(acc, BM, BN)
    i = _sigmoid(i, FAST)
    j = _tanh(j, FAST)
    f = _sigmoid(f, FAST)
    o = _sigmoid(o, FAST)
    dtype = cell_output.dtype.element_ty
    if SAVE:
        g = gates + step * (4 * C) + b[:, None] * (4 * C) + _column(first_cell + tl.arange(0, BN))[None, :]
        tl.store(g, i.to(dtype), mask=inside)
        tl.store(g + 32, j.to(dtype), mask=inside)
        tl.store(g + 64, f.to(dtype), mask=inside)
        tl.store(g + 96, o.to(dtype), mask=inside)
    active = (t < tl.load(lengths + d * apart + b))[:, None] & inside
    if not EARLY:
        before = tl.load(cell)
    if SAVE:
        tl.store(cells + step * C + own, before.to(dtype), mask=inside)
    after = _clip(tl.fma(f, before, i * j), cell_clip)  # rounded alike, wherever the cells are loaded
    tl.store(cell, after, mask=active)
    held = step if SAVE else d.to(tl.int64) * B
    tl.store(cell_output + held * C + own, (o * _tanh(after, FAST)).to(dtype), mask=inside)


@triton.jit
def _write_hidden(h, d, t, b, p, inside, rows, outputs, lengths, T, B, P, apart, proj_clip, K: tl.constexpr):
    """Clip new hidden values and write them into the rows of the next step and into the outputs."""
    dtype = rows.dtype.element_ty
    active = t < tl.load(lengths + d * apart + b, mask=inside, other=0)
    here = rows + ((d * (T + 2) + t + 1).to(tl.int64) * B + b) * (2 * K) + K + p
    after = here + tl.where(d == 0, 1, -1).to(tl.int64) * B * (2 * K)
    h = _clip(h, proj_clip).to(dtype)
    h = tl.where(active, h, tl.load(here, mask=inside, other=0.0))
    tl.store(after, h, mask=inside)
    written = outputs + ((d * T + t).to(tl.int64) * B + b) * P + p
    tl.store(written, tl.where(active, h, 0.0), mask=inside & (p < P))


@triton.jit
def _project_tile(
    tile, d, s, rows, projection, lengths, cell_output, outputs, partials, T, B, P, D, apart, proj_clip,
    K: tl.constexpr, C: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SPLIT: tl.constexpr,
    SAVE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """BM rows, BN columns of the hidden state: complete, or one of SPLIT partial sums."""
    row_tiles = tl.cdiv(B, BM)
    column_tiles: tl.constexpr = K // BN
    b = tile % row_tiles * BM + tl.arange(0, BM)
    rest = tile // row_tiles
    p = rest % column_tiles * BN + tl.arange(0, BN)
    part = rest // column_tiles
    t = tl.where(d == 0, s, T - 1 - s)
    inside = (b < B)[:, None]
    b = tl.minimum(b, B - 1)[:, None]
    k = tl.arange(0, BK)
    held = (d * T + t if SAVE else d).to(tl.int64) * B * C
    a = cell_output + held + part * (C // SPLIT) + b * C + k[None, :]
    w = projection + d * (C * K) + (part * (C // SPLIT) + k[:, None]) * K + p[None, :]
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for begin in range(0, C // SPLIT, BK):
        acc = tl.dot(tl.load(a + begin), tl.load(w + begin * K), acc, input_precision=PRECISION)
    if SPLIT == 1:
        _write_hidden(acc, d, t, b, p[None, :], inside, rows, outputs, lengths, T, B, P, apart, proj_clip, K)
    else:
        tl.store(partials + ((part * D + d).to(tl.int64) * B + b) * K + p[None, :], acc, mask=inside)


@triton.jit
def _sum_of_parts(partials, element, inside, total, SPLIT: tl.constexpr):
    """The sum of SPLIT partial sums, in a fixed order."""
    value = tl.load(partials + element, mask=inside, other=0.0)
    for part in tl.static_range(1, SPLIT):
        value += tl.load(partials + part * total + element, mask=inside, other=0.0)
    return value


@triton.jit(do_not_specialize=["begin", "end", "depth", "T", "B", "P", "D", "apart"])
def forward_loop(
    rows, weight, bias, hoisted, projection, lengths, cell, cell_output, outputs, gates, cells, partials, barrier,
    begin, end, depth, T, B, P, D, apart, cell_clip, proj_clip,
    K: tl.constexpr, C: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    PM: tl.constexpr, PN: tl.constexpr, PK: tl.constexpr, SPLIT: tl.constexpr,
    HOISTED: tl.constexpr, EARLY: tl.constexpr, SAVE: tl.constexpr, PHASES: tl.constexpr, PRECISION: tl.constexpr,
    FAST: tl.constexpr, ELEMENTS: tl.constexpr,
):  # fmt: skip
    """Steps `begin` to `end` of all directions. Their lengths are `apart` by B, or by 0 if both have the same."""
    first = tl.program_id(0)
    programs = tl.num_programs(0)
    arrivals = 0
    cell_tiles = C // BN * tl.cdiv(B, BM)
    hidden_tiles = SPLIT * (K // PN) * tl.cdiv(B, PM)
    blocks = tl.cdiv(B * K, ELEMENTS)
    for s in range(begin, end):
        if PHASES & 1:
            for tile in range(first, D * cell_tiles, programs):
                _gates_tile(
                    tile % cell_tiles, tile // cell_tiles, s, rows, weight, bias, hoisted, lengths, cell, cell_output,
                    gates, cells, depth, T, B, apart, cell_clip, K, C, BM, BN, BK, HOISTED, EARLY, SAVE, PRECISION,
                    FAST,
                )  # fmt: skip
        if PHASES == 15:
            arrivals += programs
            _wait_for_all(barrier, arrivals)
        if PHASES & 2:
            for tile in range(first, D * hidden_tiles, programs):
                _project_tile(
                    tile % hidden_tiles, tile // hidden_tiles, s, rows, projection, lengths, cell_output, outputs,
                    partials, T, B, P, D, apart, proj_clip, K, C, PM, PN, PK, SPLIT, SAVE, PRECISION,
                )  # fmt: skip
        if PHASES == 15:
            arrivals += programs
            _wait_for_all(barrier, arrivals)
        if SPLIT > 1:
            if PHASES & 4:
                for block in range(first, D * blocks, programs):
                    d = block // blocks
                    t = tl.where(d == 0, s, T - 1 - s)
                    element = block % blocks * ELEMENTS + tl.arange(0, ELEMENTS)
                    inside = element < B * K
                    h = _sum_of_parts(partials, d * B * K + element, inside, D * B * K, SPLIT)
                    b, p = element // K, element % K
                    _write_hidden(h, d, t, b, p, inside, rows, outputs, lengths, T, B, P, apart, proj_clip, K)
            if PHASES == 15:
                arrivals += programs
                _wait_for_all(barrier, arrivals)


@triton.jit
def _unproject_tile(
    tile, d, s, grad_hidden, projection, grad_cell_output, depth, T, B,
    K: tl.constexpr, C: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """BM rows, BN cells: gradient of the cell output."""
    row_tiles = tl.cdiv(B, BM)
    b = tile % row_tiles * BM + tl.arange(0, BM)
    c = tile // row_tiles * BN + tl.arange(0, BN)
    t = tl.where(d == 0, s, T - 1 - s)
    inside = (b < B)[:, None]
    b = tl.minimum(b, B - 1)[:, None]
    k = tl.arange(0, BK)
    a = grad_hidden + (d * T + t).to(tl.int64) * B * K + b * K + k[None, :]
    w = projection + d * (C * K) + c[None, :] * K + k[:, None]
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for begin in range(0, depth, BK):
        acc = tl.dot(tl.load(a + begin), tl.load(w + begin), acc, input_precision=PRECISION)
    written = grad_cell_output + d.to(tl.int64) * B * C + b * C + c[None, :]
    tl.store(written, acc.to(grad_cell_output.dtype.element_ty), mask=inside)


@triton.jit
def _cells_strip(
    strip, d, s, grad_cell_output, lengths, gates, cells, grad_gates, grad_cell, grad_bias, T, B, strips_of_rows,
    cell_clip,
    C: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Gradients of the gates before their activation, and of the cells before the step.

    A strip is COLUMNS cells of every `strips_of_rows`-th block of ROWS rows.  The gradient of the bias is summed over a
    strip in registers.
    """
    c = strip // strips_of_rows * COLUMNS + tl.arange(0, COLUMNS)
    strip = strip % strips_of_rows
    column = _column(c)
    t = tl.where(d == 0, s, T - 1 - s)
    step = (d * T + t).to(tl.int64) * B
    here = d.to(tl.int64) * B * C
    dtype = gates.dtype.element_ty
    sum_i = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    sum_j = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    sum_f = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    sum_o = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for block in tl.range(strip, tl.cdiv(B, ROWS), strips_of_rows, num_stages=STAGES):
        b = block * ROWS + tl.arange(0, ROWS)
        inside = (b < B)[:, None]
        active = (t < tl.load(lengths + d * B + b, mask=b < B, other=0))[:, None]
        b = b[:, None]
        own = b * C + c[None, :]
        four = step * (4 * C) + b * (4 * C) + column[None, :]
        i = tl.load(gates + four, mask=inside, other=0.0).to(tl.float32)
        j = tl.load(gates + four + 32, mask=inside, other=0.0).to(tl.float32)
        f = tl.load(gates + four + 64, mask=inside, other=0.0).to(tl.float32)
        o = tl.load(gates + four + 96, mask=inside, other=0.0).to(tl.float32)
        before = tl.load(cells + step * C + own, mask=inside, other=0.0).to(tl.float32)
        dm = tl.load(grad_cell_output + here + own, mask=inside, other=0.0).to(tl.float32)
        dc = tl.load(grad_cell + here + own, mask=inside, other=0.0)
        after = f * before + i * j
        squashed = _tanh(_clip(after, cell_clip), FAST)
        dc += dm * o * (1.0 - squashed * squashed)
        dc = tl.where((tl.abs(after) <= cell_clip) & active, dc, 0.0)
        tl.store(grad_cell + here + own, dc * f, mask=active)
        di = dc * j * i * (1.0 - i)
        dj = dc * i * (1.0 - j * j)
        df = dc * before * f * (1.0 - f)
        do = tl.where(active, dm * squashed * o * (1.0 - o), 0.0)
        tl.store(grad_gates + four, di.to(dtype), mask=inside)
        tl.store(grad_gates + four + 32, dj.to(dtype), mask=inside)
        tl.store(grad_gates + four + 64, df.to(dtype), mask=inside)
        tl.store(grad_gates + four + 96, do.to(dtype), mask=inside)
        sum_i += di
        sum_j += dj
        sum_f += df
        sum_o += do
    grad_bias += (d * strips_of_rows + strip) * (4 * C) + column
    tl.store(grad_bias, tl.load(grad_bias) + tl.sum(sum_i, axis=0))
    tl.store(grad_bias + 32, tl.load(grad_bias + 32) + tl.sum(sum_j, axis=0))
    tl.store(grad_bias + 64, tl.load(grad_bias + 64) + tl.sum(sum_f, axis=0))
    tl.store(grad_bias + 96, tl.load(grad_bias + 96) + tl.sum(sum_o, axis=0))


@triton.jit
def _grad_hidden_tile(
    tile, d, s, grad_gates, weight, partials, T, B, D,
    K: tl.constexpr, C: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SPLIT: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """BM rows, BN columns: one of SPLIT partial sums of the gradient of the hidden state before the step."""
    row_tiles = tl.cdiv(B, BM)
    column_tiles: tl.constexpr = K // BN
    b = tile % row_tiles * BM + tl.arange(0, BM)
    rest = tile // row_tiles
    p = rest % column_tiles * BN + tl.arange(0, BN)
    part = rest // column_tiles
    t = tl.where(d == 0, s, T - 1 - s)
    inside = (b < B)[:, None]
    b = tl.minimum(b, B - 1)[:, None]
    k = tl.arange(0, BK)
    a = grad_gates + (d * T + t).to(tl.int64) * B * (4 * C) + part * (4 * C // SPLIT) + b * (4 * C) + k[None, :]
    w = weight + d * (2 * K * 4 * C) + (K + p[None, :]) * (4 * C) + part * (4 * C // SPLIT) + k[:, None]
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for begin in range(0, 4 * C // SPLIT, BK):
        acc = tl.dot(tl.load(a + begin), tl.load(w + begin), acc, input_precision=PRECISION)
    tl.store(partials + ((part * D + d).to(tl.int64) * B + b) * K + p[None, :], acc, mask=inside)


@triton.jit(do_not_specialize=["begin", "end", "depth", "strips_of_rows", "T", "B", "P", "D"])
def backward_loop(
    rows, weight, projection, lengths, grad_outputs, grad_hidden, carry, grad_cell_output, gates, cells, grad_gates,
    grad_cell, grad_bias, partials, barrier, begin, end, depth, strips_of_rows, T, B, P, D, cell_clip, proj_clip,
    K: tl.constexpr, C: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    PM: tl.constexpr, PN: tl.constexpr, PK: tl.constexpr, SPLIT: tl.constexpr,
    PHASES: tl.constexpr, PRECISION: tl.constexpr, FAST: tl.constexpr, ELEMENTS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Backward steps `begin` to `end` of all directions, counted from the last step."""
    first = tl.program_id(0)
    programs = tl.num_programs(0)
    arrivals = 0
    cell_tiles = C // BN * tl.cdiv(B, BM)
    hidden_tiles = SPLIT * (K // PN) * tl.cdiv(B, PM)
    blocks = tl.cdiv(B * K, ELEMENTS)
    strips = C // COLUMNS * strips_of_rows
    for back in range(begin, end):
        s = T - 1 - back
        if PHASES & 1:  # gradient of the projected values before their clip, from this step's output and later steps
            for block in range(first, D * blocks, programs):
                d = block // blocks
                t = tl.where(d == 0, s, T - 1 - s)
                now = (d * T + t).to(tl.int64) * B
                after = (d * (T + 2) + t + 1 + tl.where(d == 0, 1, -1)).to(tl.int64) * B
                element = block % blocks * ELEMENTS + tl.arange(0, ELEMENTS)
                inside = element < B * K
                b, p = element // K, element % K
                active = t < tl.load(lengths + d * B + b, mask=inside, other=0)
                own = d * B * K + element
                later = tl.load(carry + own, mask=inside, other=0.0)
                later += _sum_of_parts(partials, own, inside, D * B * K, SPLIT)
                h = tl.load(rows + (after + b) * (2 * K) + K + p, mask=inside, other=0.0).to(tl.float32)
                grad = tl.load(grad_outputs + (now + b) * P + p, mask=inside & (p < P), other=0.0).to(tl.float32)
                grad = tl.where(active & (tl.abs(h) < proj_clip), grad + later, 0.0)
                tl.store(grad_hidden + now * K + element, grad.to(grad_hidden.dtype.element_ty), mask=inside)
                tl.store(carry + own, tl.where(active, 0.0, later), mask=inside)
        if PHASES == 15:
            arrivals += programs
            _wait_for_all(barrier, arrivals)
        if PHASES & 2:
            for tile in range(first, D * cell_tiles, programs):
                _unproject_tile(
                    tile % cell_tiles, tile // cell_tiles, s, grad_hidden, projection, grad_cell_output, depth, T, B,
                    K, C, BM, BN, BK, PRECISION,
                )  # fmt: skip
        if PHASES == 15:
            arrivals += programs
            _wait_for_all(barrier, arrivals)
        if PHASES & 4:
            for strip in range(first, D * strips, programs):
                _cells_strip(
                    strip % strips, strip // strips, s, grad_cell_output, lengths, gates, cells, grad_gates, grad_cell,
                    grad_bias, T, B, strips_of_rows, cell_clip, C, ROWS, COLUMNS, STAGES, FAST,
                )  # fmt: skip
        if PHASES == 15:
            arrivals += programs
            _wait_for_all(barrier, arrivals)
        if PHASES & 8:
            for tile in range(first, D * hidden_tiles, programs):
                _grad_hidden_tile(
                    tile % hidden_tiles, tile // hidden_tiles, s, grad_gates, weight, partials, T, B, D,
                    K, C, PM, PN, PK, SPLIT, PRECISION,
                )  # fmt: skip
        if PHASES == 15:
            arrivals += programs
            _wait_for_all(barrier, arrivals)
