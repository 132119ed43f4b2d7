# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""The Triton kernels of attention: norms of queries and keys, rotation, window, softmax and state in one launch.

Input: queries, keys and values (D, B T, 3P) as the product writes them, and the past (D, B, W - 1, P).
Output: what each token takes (D, B T, P), and the last W - 1 keys and values of each row; or gradients.

A program computes BT tokens of one head of one row, in a loop over tiles of BT keys.  Tokens of the past have times
below 0, and a tile of keys is of the past or of the row.  Scores are never written to memory: the backward pass
computes them again, from the logarithm of the sum of each softmax.  There, a program has its tokens first as keys and
then as queries, so that each gradient is summed by one program, in a fixed order.

The pairs of a rotation are the two halves of a head.  They are loaded as two tiles of HALF columns, padded, and a score
is the sum of two products.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOWEST = tl.constexpr(-1.0e30)  # used as minus infinity, whose difference with itself would be NaN
LONG_AGO = tl.constexpr(-(2**30))  # before every token


@triton.jit
def _load_halves(pointer, inside, HEAD: tl.constexpr, HALF: tl.constexpr):
    """Rows of one head as two (BT, HALF) float32 tiles; `pointer` is (BT, 1)."""
    c = tl.arange(0, HALF)[None, :]
    mask = inside & (c < HEAD // 2)
    first = tl.load(pointer + c, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(pointer + HEAD // 2 + c, mask=mask, other=0.0).to(tl.float32)
    return first, second


@triton.jit
def _store_halves(pointer, first, second, inside, HEAD: tl.constexpr, HALF: tl.constexpr):
    c = tl.arange(0, HALF)[None, :]
    mask = inside & (c < HEAD // 2)
    tl.store(pointer + c, first.to(pointer.dtype.element_ty), mask=mask)
    tl.store(pointer + HEAD // 2 + c, second.to(pointer.dtype.element_ty), mask=mask)


@triton.jit
def _load_complete(pointer, inside, HEAD: tl.constexpr, DIM: tl.constexpr):
    """Rows of one head as one (BT, DIM) tile."""
    c = tl.arange(0, DIM)[None, :]
    return tl.load(pointer + c, mask=inside & (c < HEAD), other=0.0)


@triton.jit
def _store_complete(pointer, x, inside, HEAD: tl.constexpr, DIM: tl.constexpr):
    c = tl.arange(0, DIM)[None, :]
    tl.store(pointer + c, x.to(pointer.dtype.element_ty), mask=inside & (c < HEAD))


@triton.jit
def _norm(first, second, eps, HEAD: tl.constexpr):
    """Both halves divided by the root of their mean square, and the factor."""
    scale = tl.rsqrt((tl.sum(first * first, axis=1) + tl.sum(second * second, axis=1)) / HEAD + eps)[:, None]
    return first * scale, second * scale, scale


@triton.jit
def _norm_backward(grad_1, grad_2, normed_1, normed_2, scale, HEAD: tl.constexpr):
    """Gradient of `_norm`."""
    along = ((tl.sum(grad_1 * normed_1, axis=1) + tl.sum(grad_2 * normed_2, axis=1)) / HEAD)[:, None]
    return scale * (grad_1 - normed_1 * along), scale * (grad_2 - normed_2 * along)


@triton.jit
def _load_turns(cos, sin, t, inside, HEAD: tl.constexpr, HALF: tl.constexpr, W: tl.constexpr):
    """Cosines and sines (BT, HALF) at times t (BT, 1); the first token of the past is at position 0."""
    c = tl.arange(0, HALF)[None, :]
    at = (t + (W - 1)) * (HEAD // 2) + c
    mask = inside & (c < HEAD // 2)
    return tl.load(cos + at, mask=mask, other=0.0), tl.load(sin + at, mask=mask, other=0.0)


@triton.jit
def _turn(first, second, cos, sin):
    return first * cos - second * sin, second * cos + first * sin


@triton.jit
def _add_keys(
    q_1, q_2, k_1, k_2, v, cos, sin, t, begin, oldest, length, peak, total, acc,
    HEAD: tl.constexpr, HALF: tl.constexpr, W: tl.constexpr, BT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of normalized keys, from `begin` on: the new peak, sum and mixture of the softmax."""
    s = begin + tl.arange(0, BT)
    cos_k, sin_k = _load_turns(cos, sin, s[:, None], (s >= oldest)[:, None] & (s < length)[:, None], HEAD, HALF, W)
    k_1, k_2 = _turn(k_1, k_2, cos_k, sin_k)
    scores = tl.dot(q_1, tl.trans(k_1.to(q_1.dtype)), input_precision=PRECISION)
    scores = tl.dot(q_2, tl.trans(k_2.to(q_2.dtype)), scores, input_precision=PRECISION)
    visible = (s[None, :] <= t) & (s[None, :] > t - W) & (s[None, :] >= oldest) & (t < length)
    higher = tl.maximum(peak, tl.max(tl.where(visible, scores, LOWEST), axis=1))
    chances = tl.where(visible, tl.exp(scores - higher[:, None]), 0.0)
    fade = tl.exp(peak - higher)
    total = total * fade + tl.sum(chances, axis=1)
    acc = tl.dot(chances.to(v.dtype), v, acc * fade[:, None], input_precision=PRECISION)
    return higher, total, acc


@triton.jit(do_not_specialize=["T", "B"])
def attention_forward(
    qkv, past_keys, past_values, num_past, lengths, cos, sin, mixed, logsumexp, next_keys, next_values, T, B,
    scale, eps,
    P: tl.constexpr, HEAD: tl.constexpr, HALF: tl.constexpr, DIM: tl.constexpr, W: tl.constexpr, BT: tl.constexpr,
    PAST: tl.constexpr, STATE: tl.constexpr, SAVE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """BT tokens of one head of one row; with STATE also their part of the state."""
    HEADS: tl.constexpr = P // HEAD
    PAST_TILES: tl.constexpr = (W - 1 + BT - 1) // BT
    tiles = tl.cdiv(T, BT)
    program = tl.program_id(0)
    tile = program % tiles
    head = program // tiles % HEADS
    row = (program // tiles // HEADS).to(tl.int64)  # d * B + b
    length = tl.load(lengths + row % B).to(tl.int32)
    oldest = 0
    if PAST:
        oldest = -tl.load(num_past + row % B).to(tl.int32)
    own = qkv + row * T * (3 * P) + head * HEAD
    before = row * (W - 1) * P + head * HEAD

    t = (tile * BT + tl.arange(0, BT))[:, None]
    is_query = t < length
    q_1, q_2 = _load_halves(own + t * (3 * P), is_query, HEAD, HALF)
    q_1, q_2, _ = _norm(q_1, q_2, eps, HEAD)
    cos_q, sin_q = _load_turns(cos, sin, t, is_query, HEAD, HALF, W)
    q_1, q_2 = _turn(q_1 * scale, q_2 * scale, cos_q, sin_q)
    q_1 = q_1.to(qkv.dtype.element_ty)
    q_2 = q_2.to(qkv.dtype.element_ty)
    peak = tl.full((BT,), LOWEST, dtype=tl.float32)
    total = tl.zeros((BT,), dtype=tl.float32)
    acc = tl.zeros((BT, DIM), dtype=tl.float32)
    # the first tile of keys that a token of this tile sees, counted from that of time 0
    first = (tl.maximum(tile * BT - (W - 1), oldest) + PAST_TILES * BT) // BT - PAST_TILES
    is_used = tile * BT < length
    if PAST:
        for number in range(first, tl.where(is_used, 0, first)):
            s = (number * BT + tl.arange(0, BT))[:, None]
            is_key = (s >= oldest) & (s < 0)
            k_1, k_2 = _load_halves(past_keys + before + (s + (W - 1)) * P, is_key, HEAD, HALF)
            v = _load_complete(past_values + before + (s + (W - 1)) * P, is_key, HEAD, DIM).to(qkv.dtype.element_ty)
            peak, total, acc = _add_keys(
                q_1, q_2, k_1, k_2, v, cos, sin, t, number * BT, oldest, length, peak, total, acc,
                HEAD, HALF, W, BT, PRECISION,
            )  # fmt: skip
    for number in range(tl.maximum(first, 0), tl.where(is_used, tile + 1, 0)):
        s = (number * BT + tl.arange(0, BT))[:, None]
        is_key = s < length
        k_1, k_2 = _load_halves(own + P + s * (3 * P), is_key, HEAD, HALF)
        k_1, k_2, _ = _norm(k_1, k_2, eps, HEAD)
        v = _load_complete(own + 2 * P + s * (3 * P), is_key, HEAD, DIM)
        peak, total, acc = _add_keys(
            q_1, q_2, k_1, k_2, v, cos, sin, t, number * BT, oldest, length, peak, total, acc,
            HEAD, HALF, W, BT, PRECISION,
        )  # fmt: skip
        if STATE:
            place = s + (W - 1) - length
            is_kept = is_key & (place >= 0) & (s >= tile * BT)
            _store_halves(next_keys + before + place * P, k_1, k_2, is_kept, HEAD, HALF)
            _store_complete(next_values + before + place * P, v, is_kept, HEAD, DIM)
    total = tl.where(total > 0.0, total, 1.0)  # of tokens after the end of the row
    _store_complete(mixed + row * T * P + head * HEAD + t * P, acc / total[:, None], t < T, HEAD, DIM)
    if SAVE:
        sums = tl.where(is_query, (peak + tl.log(total))[:, None], 0.0)
        tl.store(logsumexp + (row * HEADS + head) * T + t, sums, mask=t < T)
    if STATE:
        # what the state keeps of the past, zeros where there are no tokens
        for number in range(tl.where(tile == 0, 0, PAST_TILES), PAST_TILES):
            s = ((number - PAST_TILES) * BT + tl.arange(0, BT))[:, None]
            place = s + (W - 1) - length
            is_kept = (place >= 0) & (s < 0)
            k_1 = tl.zeros((BT, HALF), dtype=tl.float32)
            k_2 = tl.zeros((BT, HALF), dtype=tl.float32)
            v = tl.zeros((BT, DIM), dtype=tl.float32)
            if PAST:
                is_key = is_kept & (s >= oldest)
                k_1, k_2 = _load_halves(past_keys + before + (s + (W - 1)) * P, is_key, HEAD, HALF)
                v = _load_complete(past_values + before + (s + (W - 1)) * P, is_key, HEAD, DIM).to(tl.float32)
            _store_halves(next_keys + before + place * P, k_1, k_2, is_kept, HEAD, HALF)
            _store_complete(next_values + before + place * P, v, is_kept, HEAD, DIM)


@triton.jit
def _load_queries(
    own, mixed, grad_mixed, logsumexp, cos, sin, t, length, scale, eps,
    P: tl.constexpr, HEAD: tl.constexpr, HALF: tl.constexpr, DIM: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """Of tokens t (BT, 1): halves of normalized queries, turns, the gradient of what they take, the
    product of both, and the logarithm of the sum of their softmax."""
    inside = t < length
    q_1, q_2 = _load_halves(own + t * (3 * P), inside, HEAD, HALF)
    q_1, q_2, _ = _norm(q_1, q_2, eps, HEAD)
    cos_q, sin_q = _load_turns(cos, sin, t, inside, HEAD, HALF, W)
    grad = _load_complete(grad_mixed + t * P, inside, HEAD, DIM)
    taken = _load_complete(mixed + t * P, inside, HEAD, DIM)
    along = tl.sum(grad.to(tl.float32) * taken.to(tl.float32), axis=1)
    sums = tl.load(logsumexp + t, mask=inside, other=0.0)
    return q_1, q_2, cos_q, sin_q, grad, along, sums


@triton.jit
def _add_grad_queries(
    q_1, q_2, k_1, k_2, v, grad, along, sums, cos, sin, t, begin, oldest, length, grad_1, grad_2,
    HEAD: tl.constexpr, HALF: tl.constexpr, W: tl.constexpr, BT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """What one tile of normalized keys adds to the gradient of the rotated queries."""
    s = begin + tl.arange(0, BT)
    cos_k, sin_k = _load_turns(cos, sin, s[:, None], (s >= oldest)[:, None] & (s < length)[:, None], HEAD, HALF, W)
    k_1, k_2 = _turn(k_1, k_2, cos_k, sin_k)
    k_1 = k_1.to(q_1.dtype)
    k_2 = k_2.to(q_2.dtype)
    scores = tl.dot(q_1, tl.trans(k_1), input_precision=PRECISION)
    scores = tl.dot(q_2, tl.trans(k_2), scores, input_precision=PRECISION)
    visible = (s[None, :] <= t) & (s[None, :] > t - W) & (s[None, :] >= oldest) & (t < length)
    chances = tl.where(visible, tl.exp(tl.where(visible, scores, 0.0) - sums), 0.0)
    back = tl.dot(grad, tl.trans(v), input_precision=PRECISION)
    back = (chances * (back - along[:, None])).to(q_1.dtype)
    return tl.dot(back, k_1, grad_1, input_precision=PRECISION), tl.dot(back, k_2, grad_2, input_precision=PRECISION)


@triton.jit(do_not_specialize=["T", "B"])
def attention_backward(
    qkv, past_keys, past_values, num_past, lengths, cos, sin, mixed, logsumexp, grad_mixed, grad_next_keys,
    grad_next_values, grad_qkv, grad_past_keys, grad_past_values, T, B, scale, eps,
    P: tl.constexpr, HEAD: tl.constexpr, HALF: tl.constexpr, DIM: tl.constexpr, W: tl.constexpr, BT: tl.constexpr,
    PAST: tl.constexpr, STATE: tl.constexpr, GRAD_PAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of BT tokens of one head of one row, with GRAD_PAST also of the past.

    STATE: the last keys and values have a gradient, too.
    """
    HEADS: tl.constexpr = P // HEAD
    PAST_TILES: tl.constexpr = (W - 1 + BT - 1) // BT
    tiles = tl.cdiv(T, BT)
    if GRAD_PAST:
        tiles += PAST_TILES
    program = tl.program_id(0)
    tile = program % tiles
    if GRAD_PAST:
        tile -= PAST_TILES
    head = program // tiles % HEADS
    row = (program // tiles // HEADS).to(tl.int64)
    length = tl.load(lengths + row % B).to(tl.int32)
    oldest = 0
    if PAST:
        oldest = -tl.load(num_past + row % B).to(tl.int32)
    dtype = qkv.dtype.element_ty
    own = qkv + row * T * (3 * P) + head * HEAD
    before = row * (W - 1) * P + head * HEAD
    mixed += row * T * P + head * HEAD
    grad_mixed += row * T * P + head * HEAD
    logsumexp += (row * HEADS + head) * T
    written = grad_qkv + row * T * (3 * P) + head * HEAD

    # the tokens as keys
    s = (tile * BT + tl.arange(0, BT))[:, None]
    is_key = (s >= oldest) & (s < length)
    k_1, k_2 = _load_halves(own + P + s * (3 * P), is_key & (s >= 0), HEAD, HALF)
    v = _load_complete(own + 2 * P + s * (3 * P), is_key & (s >= 0), HEAD, DIM)
    k_1, k_2, _ = _norm(k_1, k_2, eps, HEAD)
    if GRAD_PAST:
        is_past = is_key & (s < 0)
        past_1, past_2 = _load_halves(past_keys + before + (s + (W - 1)) * P, is_past, HEAD, HALF)
        k_1 += past_1
        k_2 += past_2
        v += _load_complete(past_values + before + (s + (W - 1)) * P, is_past, HEAD, DIM).to(dtype)
    cos_k, sin_k = _load_turns(cos, sin, s, is_key, HEAD, HALF, W)
    turned_1, turned_2 = _turn(k_1, k_2, cos_k, sin_k)
    turned_1 = turned_1.to(dtype)
    turned_2 = turned_2.to(dtype)
    grad_1 = tl.zeros((BT, HALF), dtype=tl.float32)
    grad_2 = tl.zeros((BT, HALF), dtype=tl.float32)
    grad_v = tl.zeros((BT, DIM), dtype=tl.float32)
    last = tl.minimum(tile * BT + BT - 1 + W - 1, length - 1)  # the last token that sees one of them
    for number in range(tl.maximum(tile, 0), tl.maximum((last + BT) // BT, 0)):
        t = number * BT + tl.arange(0, BT)
        q_1, q_2, cos_q, sin_q, grad, along, sums = _load_queries(
            own, mixed, grad_mixed, logsumexp, cos, sin, t[:, None], length, scale, eps, P, HEAD, HALF, DIM, W
        )
        q_1, q_2 = _turn(q_1 * scale, q_2 * scale, cos_q, sin_q)
        q_1 = q_1.to(dtype)
        q_2 = q_2.to(dtype)
        scores = tl.dot(turned_1, tl.trans(q_1), input_precision=PRECISION)
        scores = tl.dot(turned_2, tl.trans(q_2), scores, input_precision=PRECISION)  # (keys, queries)
        visible = (s <= t[None, :]) & (s > t[None, :] - W) & (s >= oldest) & (t[None, :] < length)
        chances = tl.where(visible, tl.exp(tl.where(visible, scores, 0.0) - tl.trans(sums)), 0.0)
        grad_v = tl.dot(chances.to(dtype), grad, grad_v, input_precision=PRECISION)
        back = tl.dot(v, tl.trans(grad), input_precision=PRECISION)
        back = (chances * (back - along[None, :])).to(dtype)
        grad_1 = tl.dot(back, q_1, grad_1, input_precision=PRECISION)
        grad_2 = tl.dot(back, q_2, grad_2, input_precision=PRECISION)
    # loaded again, because the loop needs their registers
    cos_k, sin_k = _load_turns(cos, sin, s, is_key, HEAD, HALF, W)
    grad_1, grad_2 = _turn(grad_1, grad_2, cos_k, -sin_k)
    if STATE:
        place = s + (W - 1) - length
        is_kept = is_key & (place >= 0)
        kept_1, kept_2 = _load_halves(grad_next_keys + before + place * P, is_kept, HEAD, HALF)
        grad_1 += kept_1
        grad_2 += kept_2
        grad_v += _load_complete(grad_next_values + before + place * P, is_kept, HEAD, DIM).to(tl.float32)
    if GRAD_PAST:
        is_written = (s < 0) & (s >= 1 - W)
        _store_halves(grad_past_keys + before + (s + (W - 1)) * P, grad_1, grad_2, is_written, HEAD, HALF)
        _store_complete(grad_past_values + before + (s + (W - 1)) * P, grad_v, is_written, HEAD, DIM)
    is_own = (s >= 0) & (s < T)
    k_1, k_2 = _load_halves(own + P + s * (3 * P), is_key & is_own, HEAD, HALF)
    k_1, k_2, factor = _norm(k_1, k_2, eps, HEAD)
    grad_1, grad_2 = _norm_backward(grad_1, grad_2, k_1, k_2, factor, HEAD)
    _store_halves(written + P + s * (3 * P), grad_1, grad_2, is_own, HEAD, HALF)
    _store_complete(written + 2 * P + s * (3 * P), grad_v, is_own, HEAD, DIM)

    # the tokens as queries
    q_1, q_2, cos_q, sin_q, grad, along, sums = _load_queries(
        own, mixed, grad_mixed, logsumexp, cos, sin, s, tl.where(tile < 0, LONG_AGO, length), scale, eps,
        P, HEAD, HALF, DIM, W,
    )  # fmt: skip
    turned_1, turned_2 = _turn(q_1 * scale, q_2 * scale, cos_q, sin_q)
    turned_1 = turned_1.to(dtype)
    turned_2 = turned_2.to(dtype)
    grad_1 = tl.zeros((BT, HALF), dtype=tl.float32)
    grad_2 = tl.zeros((BT, HALF), dtype=tl.float32)
    first = (tl.maximum(tile * BT - (W - 1), oldest) + PAST_TILES * BT) // BT - PAST_TILES
    is_used = (tile * BT < length) & (tile >= 0)
    if PAST:
        for number in range(first, tl.where(is_used, 0, first)):
            u = (number * BT + tl.arange(0, BT))[:, None]
            inside = (u >= oldest) & (u < 0)
            k_1, k_2 = _load_halves(past_keys + before + (u + (W - 1)) * P, inside, HEAD, HALF)
            v = _load_complete(past_values + before + (u + (W - 1)) * P, inside, HEAD, DIM).to(dtype)
            grad_1, grad_2 = _add_grad_queries(
                turned_1, turned_2, k_1, k_2, v, grad, along, sums, cos, sin, s, number * BT, oldest, length,
                grad_1, grad_2, HEAD, HALF, W, BT, PRECISION,
            )  # fmt: skip
    for number in range(tl.maximum(first, 0), tl.where(is_used, tile + 1, 0)):
        u = (number * BT + tl.arange(0, BT))[:, None]
        k_1, k_2 = _load_halves(own + P + u * (3 * P), u < length, HEAD, HALF)
        k_1, k_2, _ = _norm(k_1, k_2, eps, HEAD)
        v = _load_complete(own + 2 * P + u * (3 * P), u < length, HEAD, DIM)
        grad_1, grad_2 = _add_grad_queries(
            turned_1, turned_2, k_1, k_2, v, grad, along, sums, cos, sin, s, number * BT, oldest, length,
            grad_1, grad_2, HEAD, HALF, W, BT, PRECISION,
        )  # fmt: skip
    is_query = is_own & (s < length)
    cos_q, sin_q = _load_turns(cos, sin, s, is_query, HEAD, HALF, W)
    q_1, q_2 = _load_halves(own + s * (3 * P), is_query, HEAD, HALF)
    q_1, q_2, factor = _norm(q_1, q_2, eps, HEAD)
    grad_1, grad_2 = _turn(grad_1, grad_2, cos_q, -sin_q)
    grad_1, grad_2 = _norm_backward(grad_1 * scale, grad_2 * scale, q_1, q_2, factor, HEAD)
    _store_halves(written + s * (3 * P), grad_1, grad_2, is_own, HEAD, HALF)
