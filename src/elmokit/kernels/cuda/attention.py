# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""The Triton kernels of attention: norms of queries and keys, rotation, window, softmax and state in one launch.

Input: queries, keys and values (D, B T, 3P) as the product writes them, and the past (D, B, W - 1, P).
Output: what each token takes (D, B T, P), and the last W - 1 keys and values of each row; or gradients.

A program computes BT tokens of one head of one row, in a loop over tiles of BT keys.  Tokens of the past have times
below 0, and a tile of keys is of the past or of the row.  Scores are never written to memory: the backward pass
computes them again, from the logarithm of the sum of each softmax.  There, a program has its tokens as keys of later
tiles, then as keys and queries of their own, then as queries of earlier ones, so that each gradient is summed by one
program, in a fixed order.  Places after the end of a row are loaded as zeros, which add nothing to a gradient.

Queries and keys have the length sqrt(HEAD), so that no score is above that: powers are taken without a search for the
largest score.  They are powers of 2; `scale` has the factor.

The pairs of a rotation are the two halves of a head.  They are loaded as two tiles of HALF columns, padded, and a score
is the sum of two products.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG_2 = tl.constexpr(0.6931471805599453)


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
def _load_keys(pointer, cos, sin, s, inside, eps, HEAD: tl.constexpr, HALF: tl.constexpr, W: tl.constexpr):
    """Keys of the row at times s (BT, 1): halves of the normalized ones, and of the rotated ones."""
    k_1, k_2 = _load_halves(pointer, inside, HEAD, HALF)
    k_1, k_2, _ = _norm(k_1, k_2, eps, HEAD)
    cos_k, sin_k = _load_turns(cos, sin, s, inside, HEAD, HALF, W)
    turned_1, turned_2 = _turn(k_1, k_2, cos_k, sin_k)
    dtype = pointer.dtype.element_ty
    return k_1, k_2, turned_1.to(dtype), turned_2.to(dtype)


@triton.jit
def _load_past_keys(pointer, cos, sin, s, inside, dtype, HEAD: tl.constexpr, HALF: tl.constexpr, W: tl.constexpr):
    """Rotated keys of the past at times s (BT, 1)."""
    k_1, k_2 = _load_halves(pointer, inside, HEAD, HALF)
    cos_k, sin_k = _load_turns(cos, sin, s, inside, HEAD, HALF, W)
    k_1, k_2 = _turn(k_1, k_2, cos_k, sin_k)
    return k_1.to(dtype), k_2.to(dtype)


@triton.jit
def _load_queries(
    pointer, cos, sin, t, inside, scale, eps, HEAD: tl.constexpr, HALF: tl.constexpr, W: tl.constexpr
):  # fmt: skip
    """Rotated queries at times t (BT, 1), scaled: their products with keys are exponents."""
    q_1, q_2 = _load_halves(pointer, inside, HEAD, HALF)
    q_1, q_2, _ = _norm(q_1, q_2, eps, HEAD)
    cos_q, sin_q = _load_turns(cos, sin, t, inside, HEAD, HALF, W)
    q_1, q_2 = _turn(q_1 * scale, q_2 * scale, cos_q, sin_q)
    dtype = pointer.dtype.element_ty
    return q_1.to(dtype), q_2.to(dtype)


@triton.jit
def _dot_halves(left_1, left_2, right_1, right_2, PRECISION: tl.constexpr):
    """Products of the rows on the left with those on the right."""
    scores = tl.dot(left_1, tl.trans(right_1), input_precision=PRECISION)
    return tl.dot(left_2, tl.trans(right_2), scores, input_precision=PRECISION)


@triton.jit
def _add_keys(q_1, q_2, k_1, k_2, v, visible, shift, total, acc, PRECISION: tl.constexpr):
    """One tile of rotated keys: the new sum and mixture of the softmax."""
    scores = _dot_halves(q_1, q_2, k_1, k_2, PRECISION)
    chances = tl.where(visible, tl.exp2(scores - shift), 0.0)
    return total + tl.sum(chances, axis=1), tl.dot(chances.to(v.dtype), v, acc, input_precision=PRECISION)


@triton.jit(do_not_specialize=["T", "B"])
def attention_forward(
    qkv, past_keys, past_values, num_past, lengths, cos, sin, mixed, logsumexp, next_keys, next_values, T, B,
    scale, eps,
    P: tl.constexpr, HEAD: tl.constexpr, HALF: tl.constexpr, DIM: tl.constexpr, W: tl.constexpr, BT: tl.constexpr,
    SHIFT: tl.constexpr, PAST: tl.constexpr, STATE: tl.constexpr, SAVE: tl.constexpr, PRECISION: tl.constexpr,
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
    q_1, q_2 = _load_queries(own + t * (3 * P), cos, sin, t, is_query, scale, eps, HEAD, HALF, W)
    oldest_seen = tl.maximum(t - (W - 1), oldest)
    total = tl.zeros((BT,), dtype=tl.float32)
    acc = tl.zeros((BT, DIM), dtype=tl.float32)
    # the first tile of keys that a token of this tile sees, counted from that of time 0
    first = (tl.maximum(tile * BT - (W - 1), oldest) + PAST_TILES * BT) // BT - PAST_TILES
    is_used = tile * BT < length
    if PAST:
        for number in range(first, tl.where(is_used, 0, first)):
            s = number * BT + tl.arange(0, BT)
            at = before + (s[:, None] + (W - 1)) * P
            is_key = (s >= oldest)[:, None]
            k_1, k_2 = _load_past_keys(past_keys + at, cos, sin, s[:, None], is_key, q_1.dtype, HEAD, HALF, W)
            v = _load_complete(past_values + at, is_key, HEAD, DIM).to(q_1.dtype)
            visible = s[None, :] >= oldest_seen
            total, acc = _add_keys(q_1, q_2, k_1, k_2, v, visible, SHIFT, total, acc, PRECISION)
    for number in range(tl.maximum(first, 0), tl.where(is_used, tile + 1, 0)):
        s = number * BT + tl.arange(0, BT)
        at = own + s[:, None] * (3 * P)
        is_key = (s < length)[:, None]
        normed_1, normed_2, k_1, k_2 = _load_keys(at + P, cos, sin, s[:, None], is_key, eps, HEAD, HALF, W)
        v = _load_complete(at + 2 * P, is_key, HEAD, DIM)
        if STATE:
            place = s[:, None] + (W - 1) - length
            is_kept = is_key & (place >= 0) & (s[:, None] >= tile * BT)
            _store_halves(next_keys + before + place * P, normed_1, normed_2, is_kept, HEAD, HALF)
            _store_complete(next_values + before + place * P, v, is_kept, HEAD, DIM)
        visible = (s[None, :] >= oldest_seen) & (s[None, :] <= t)
        total, acc = _add_keys(q_1, q_2, k_1, k_2, v, visible, SHIFT, total, acc, PRECISION)
    total = tl.where(total > 0.0, total, 1.0)  # a tile without tokens
    share = tl.where(is_query, (1.0 / total)[:, None], 0.0)
    _store_complete(mixed + row * T * P + head * HEAD + t * P, acc * share, t < T, HEAD, DIM)
    if SAVE:
        sums = tl.where(is_query, (tl.log2(total) + SHIFT)[:, None], 0.0)
        tl.store(logsumexp + (row * HEADS + head) * T + t, sums, mask=t < T)
    if STATE:
        # what the state keeps of the past, zeros where there are no tokens
        for number in range(tl.where((tile == 0) & (length < W - 1), 0, PAST_TILES), PAST_TILES):
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
def _load_grads(mixed, grad_mixed, logsumexp, t, inside, P: tl.constexpr, HEAD: tl.constexpr, DIM: tl.constexpr):
    """Of tokens t (BT, 1): the gradient of what they take, (BT,) the product of both, and (BT,) the sum of powers."""
    grad = _load_complete(grad_mixed + t * P, inside, HEAD, DIM)
    taken = _load_complete(mixed + t * P, inside, HEAD, DIM)
    along = tl.sum(grad.to(tl.float32) * taken.to(tl.float32), axis=1)
    sums = tl.sum(tl.load(logsumexp + t, mask=inside, other=0.0), axis=1)
    return grad, along, sums


@triton.jit
def _grad_scores(chances, left, right, along, PRECISION: tl.constexpr):
    """The gradient of scores: left and right are that of what tokens take and the values, in either order."""
    grad = tl.dot(left, tl.trans(right), input_precision=PRECISION)
    return (chances * (grad - along)).to(left.dtype)


@triton.jit
def _add_grad_queries(
    q_1, q_2, k_1, k_2, v, grad, along, sums, visible, grad_1, grad_2, PRECISION: tl.constexpr
):  # fmt: skip
    """What one tile of rotated keys adds to the gradient of the rotated queries."""
    scores = _dot_halves(q_1, q_2, k_1, k_2, PRECISION)
    chances = tl.where(visible, tl.exp2(scores - sums[:, None]), 0.0)
    back = _grad_scores(chances, grad, v, along[:, None], PRECISION)
    return tl.dot(back, k_1, grad_1, input_precision=PRECISION), tl.dot(back, k_2, grad_2, input_precision=PRECISION)


@triton.jit(do_not_specialize=["T", "B"])
def attention_backward(
    qkv, past_keys, past_values, num_past, lengths, cos, sin, mixed, logsumexp, grad_mixed, grad_next_keys,
    grad_next_values, grad_qkv, grad_past_keys, grad_past_values, T, B, scale, eps,
    P: tl.constexpr, HEAD: tl.constexpr, HALF: tl.constexpr, DIM: tl.constexpr, W: tl.constexpr, BT: tl.constexpr,
    PAST: tl.constexpr, STATE: tl.constexpr, GRAD_PAST: tl.constexpr, ALONE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of BT tokens of one head of one row, with GRAD_PAST also of the past.

    STATE: the last keys and values have a gradient, too.  ALONE: a row has no other tile, and the past no gradient.
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

    s = (tile * BT + tl.arange(0, BT))[:, None]
    is_token = (s >= 0) & (s < length)
    _, _, k_1, k_2 = _load_keys(own + P + s * (3 * P), cos, sin, s, is_token, eps, HEAD, HALF, W)
    v = _load_complete(own + 2 * P + s * (3 * P), is_token, HEAD, DIM)
    is_past = (s >= oldest) & (s < 0)
    if GRAD_PAST:
        past_at = before + (s + (W - 1)) * P
        past_1, past_2 = _load_past_keys(past_keys + past_at, cos, sin, s, is_past, dtype, HEAD, HALF, W)
        k_1 += past_1
        k_2 += past_2
        v += _load_complete(past_values + past_at, is_past, HEAD, DIM).to(dtype)
    is_key = is_token | is_past

    # the tokens as keys of later tiles
    grad_1 = tl.zeros((BT, HALF), dtype=tl.float32)
    grad_2 = tl.zeros((BT, HALF), dtype=tl.float32)
    grad_v = tl.zeros((BT, DIM), dtype=tl.float32)
    if not ALONE:
        last = tl.minimum(tile * BT + BT - 1 + W - 1, length - 1)  # the last token that sees one of them
        for number in range(tl.maximum(tile + 1, 0), tl.maximum((last + BT) // BT, 0)):
            t = number * BT + tl.arange(0, BT)
            inside = (t < length)[:, None]
            q_1, q_2 = _load_queries(
                own + t[:, None] * (3 * P), cos, sin, t[:, None], inside, scale, eps, HEAD, HALF, W
            )
            grad, along, sums = _load_grads(mixed, grad_mixed, logsumexp, t[:, None], inside, P, HEAD, DIM)
            scores = _dot_halves(k_1, k_2, q_1, q_2, PRECISION)  # (keys, queries)
            visible = is_key & (s > t[None, :] - W)
            chances = tl.where(visible, tl.exp2(scores - sums[None, :]), 0.0)
            grad_v = tl.dot(chances.to(dtype), grad, grad_v, input_precision=PRECISION)
            back = _grad_scores(chances, v, grad, along[None, :], PRECISION)
            grad_1 = tl.dot(back, q_1, grad_1, input_precision=PRECISION)
            grad_2 = tl.dot(back, q_2, grad_2, input_precision=PRECISION)

    # as both: keys and queries of this tile
    t = tile * BT + tl.arange(0, BT)
    q_1, q_2 = _load_queries(own + s * (3 * P), cos, sin, s, is_token, scale, eps, HEAD, HALF, W)
    grad, along, sums = _load_grads(mixed, grad_mixed, logsumexp, s, is_token, P, HEAD, DIM)
    scores = _dot_halves(k_1, k_2, q_1, q_2, PRECISION)
    visible = s <= t[None, :]
    if W < BT:
        visible = visible & (s > t[None, :] - W)
    chances = tl.where(visible, tl.exp2(scores - sums[None, :]), 0.0)
    grad_v = tl.dot(chances.to(dtype), grad, grad_v, input_precision=PRECISION)
    back = _grad_scores(chances, v, grad, along[None, :], PRECISION)
    grad_1 = tl.dot(back, q_1, grad_1, input_precision=PRECISION)
    grad_2 = tl.dot(back, q_2, grad_2, input_precision=PRECISION)
    back = tl.trans(back)
    asked_1 = tl.dot(back, k_1, input_precision=PRECISION)
    asked_2 = tl.dot(back, k_2, input_precision=PRECISION)

    # the gradients of keys and values are complete
    cos_k, sin_k = _load_turns(cos, sin, s, is_key, HEAD, HALF, W)
    grad_1, grad_2 = _turn(grad_1 * LOG_2, grad_2 * LOG_2, cos_k, -sin_k)
    if STATE:
        place = s + (W - 1) - length
        is_kept = is_key & (place >= 0)
        kept_1, kept_2 = _load_halves(grad_next_keys + before + place * P, is_kept, HEAD, HALF)
        grad_1 += kept_1
        grad_2 += kept_2
        grad_v += _load_complete(grad_next_values + before + place * P, is_kept, HEAD, DIM).to(tl.float32)
    if GRAD_PAST:
        past_at = before + (s + (W - 1)) * P
        is_written = (s < 0) & (s >= 1 - W)
        _store_halves(grad_past_keys + past_at, grad_1, grad_2, is_written, HEAD, HALF)
        _store_complete(grad_past_values + past_at, grad_v, is_written, HEAD, DIM)
    is_own = (s >= 0) & (s < T)
    # loaded again, because the products need their registers
    normed_1, normed_2 = _load_halves(own + P + s * (3 * P), is_token, HEAD, HALF)
    normed_1, normed_2, factor = _norm(normed_1, normed_2, eps, HEAD)
    grad_1, grad_2 = _norm_backward(grad_1, grad_2, normed_1, normed_2, factor, HEAD)
    _store_halves(written + P + s * (3 * P), grad_1, grad_2, is_own, HEAD, HALF)
    _store_complete(written + 2 * P + s * (3 * P), grad_v, is_own, HEAD, DIM)

    # as queries of earlier tiles
    oldest_seen = tl.maximum(s - (W - 1), oldest)
    first = (tl.maximum(tile * BT - (W - 1), oldest) + PAST_TILES * BT) // BT - PAST_TILES
    is_used = (tile * BT < length) & (tile >= 0)
    if PAST:
        for number in range(first, tl.where(is_used, 0, first)):
            u = number * BT + tl.arange(0, BT)
            past_at = before + (u[:, None] + (W - 1)) * P
            inside = (u >= oldest)[:, None]
            k_1, k_2 = _load_past_keys(past_keys + past_at, cos, sin, u[:, None], inside, dtype, HEAD, HALF, W)
            v = _load_complete(past_values + past_at, inside, HEAD, DIM).to(dtype)
            visible = u[None, :] >= oldest_seen
            asked_1, asked_2 = _add_grad_queries(
                q_1, q_2, k_1, k_2, v, grad, along, sums, visible, asked_1, asked_2, PRECISION
            )
    if not ALONE:
        for number in range(tl.maximum(first, 0), tl.where(is_used, tile, 0)):
            u = number * BT + tl.arange(0, BT)
            at = own + u[:, None] * (3 * P)
            inside = (u < length)[:, None]
            _, _, k_1, k_2 = _load_keys(at + P, cos, sin, u[:, None], inside, eps, HEAD, HALF, W)
            v = _load_complete(at + 2 * P, inside, HEAD, DIM)
            visible = u[None, :] >= oldest_seen
            asked_1, asked_2 = _add_grad_queries(
                q_1, q_2, k_1, k_2, v, grad, along, sums, visible, asked_1, asked_2, PRECISION
            )
    cos_q, sin_q = _load_turns(cos, sin, s, is_token, HEAD, HALF, W)
    asked_1, asked_2 = _turn(asked_1, asked_2, cos_q, -sin_q)
    normed_1, normed_2 = _load_halves(own + s * (3 * P), is_token, HEAD, HALF)
    normed_1, normed_2, factor = _norm(normed_1, normed_2, eps, HEAD)
    factor *= scale * LOG_2
    asked_1, asked_2 = _norm_backward(asked_1, asked_2, normed_1, normed_2, factor, HEAD)
    _store_halves(written + s * (3 * P), asked_1, asked_2, is_own, HEAD, HALF)
