"""The blocks of a transformer biLM: a stack of causal blocks per direction, each with its own weights.

Input: vectors (D, T, B, P), lengths (B,) and the state.  Output: vectors (D, T, B, P) of every layer, and the state.

One block, per direction; the backward direction reads its tokens from the last to the first:

    q, k, v = split(norm(x) @ attention_input)                        num_heads parts each
    x = x + attention(rotary(norm(q)), rotary(norm(k)), v) @ attention_output
    gate, value = split(norm(x) @ feedforward_input)
    x = x + (silu(gate) * value) @ feedforward_output

norm divides by the root of the mean square and has no weights.  Token vectors are normalized.  Layer l is norm(x) after
block l: what the next block reads, or the output layer.  A token attends to itself and to the window - 1 tokens before
it.  Positions are relative, so a text may be read in blocks: the state holds the last window - 1 keys and values of
each row, before their rotation.

Legend of shapes: D = 2 directions, T tokens, B sentences, P projection, H heads, F feed-forward, W window, L blocks.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from elmokit import kernels
from elmokit.kernels import cpu
from elmokit.kernels.cpu.packed import packed_direction

logger = logging.getLogger(__name__)

NORM_EPS = 1e-6  # added to the mean square
ROTARY_BASE = 10_000.0
TOKENS_AT_ONCE = {"cpu": 2**13, "cuda": 2**18}  # of all rows in one call, if sentences are longer than the window

Product = Callable[[str, Tensor], Tensor]
"""Name of a matrix of a block, rows (D, N, K) -> (D, N, M), of the directions that run together."""
Dropout = Callable[[Tensor], Tensor]


class AttentionState(NamedTuple):
    """The last keys and values of each row, right-aligned: what the next tokens attend to."""

    past_keys: Tensor  # (L, D, B, W - 1, P), normalized and not rotated
    past_values: Tensor  # (L, D, B, W - 1, P)
    num_past: Tensor  # (1, 1, B) int64: how many of them are tokens; the others are not read


@dataclass(frozen=True)
class Attention:
    """Sizes of the attention of all blocks."""

    num_heads: int
    window: int


class Block(Protocol):
    """The matrices of one block: attention_input, attention_output, feedforward_input and feedforward_output."""

    def product(self, name: str, rows: Tensor) -> Tensor:
        """Multiply the rows of both directions (D, N, K) by a matrix: (D, N, M)."""

    def direction(self, d: int) -> Product:
        """The products of one direction, on a CPU and without gradients."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """What may be trained."""


class TransformerBlock(nn.Module):
    """One block, both directions, each with its own weights: causal attention, then a gated feed-forward part.

    Args:
        projection_dim: Width P of a vector, per direction.
        feedforward_dim: Width F of the feed-forward part, per direction.
        num_layers: Number of blocks of the model: the more, the less each one adds at first.
    """

    def __init__(self, *, projection_dim: int, feedforward_dim: int, num_layers: int) -> None:
        super().__init__()
        p, f = projection_dim, feedforward_dim
        self.attention_input = nn.Parameter(torch.empty(2, p, 3 * p))  # q, k, v
        self.attention_output = nn.Parameter(torch.empty(2, p, p))
        self.feedforward_input = nn.Parameter(torch.empty(2, p, 2 * f))  # gate, value
        self.feedforward_output = nn.Parameter(torch.empty(2, f, p))
        outputs = 1 / math.sqrt(2 * num_layers)
        for weight, scale in [
            (self.attention_input, 1.0),
            (self.attention_output, outputs),
            (self.feedforward_input, 1.0),
            (self.feedforward_output, outputs),
        ]:
            bound = scale * math.sqrt(3.0 / weight.shape[1])
            nn.init.uniform_(weight, -bound, bound)

    def product(self, name: str, rows: Tensor) -> Tensor:
        """Multiply the rows of both directions (D, N, K) by a matrix: (D, N, M)."""
        weight: Tensor = getattr(self, name)
        return torch.bmm(rows, weight)

    def direction(self, d: int) -> Product:
        """The products of one direction, with packed weights, on a CPU and without gradients."""

        def product(name: str, rows: Tensor) -> Tensor:
            return packed_direction(getattr(self, name), d).product(rows[0]).unsqueeze(0)

        return product


def run_blocks(
    blocks: Sequence[Block],
    x: Tensor,
    lengths: Tensor,
    state: AttentionState | None,
    attention: Attention,
    *,
    dropout: Dropout | None = None,
    with_state: bool = True,
    fixed_shapes: bool = False,
) -> tuple[list[Tensor], AttentionState | None]:
    """Run every block, in both directions.

    Args:
        blocks: The L blocks.
        x: (D, T, B, P) token vectors; direction 1 runs from the last token of a row to its first.
        lengths: (B,) number of tokens per row.
        state: State before the first token; None if there are no tokens before it.
        attention: Sizes of the attention.
        dropout: Applied to the token vectors and to what each half of a block adds.
        with_state: Return the state.
        fixed_shapes: All calls have these shapes, as in pretraining: on a GPU it pays to compile the blocks.

    Returns:
        (D, T, B, P) of each of the L+1 layers, the first of which is the input, and the state after the last token of
        each row, or None.  Vectors after the end of a row are zero, except in layer 0.
    """
    if torch.is_autocast_enabled(x.device.type):  # only products are in half precision, not their sum
        x = x.to(torch.promote_types(x.dtype, torch.float32))
    x = x if dropout is None else dropout(x)
    order = _reading_order(lengths, x.shape[1])  # (B, T)
    rows = torch.stack([x[0].transpose(0, 1), _reorder(x[1].transpose(0, 1), order)])  # (D, B, T, P)
    needs_grad = torch.is_grad_enabled() and (
        x.requires_grad or any(weight.requires_grad for block in blocks for weight in block.parameters())
    )
    fuse = fixed_shapes and x.is_cuda and dropout is None  # a compiled function cannot draw from a generator
    run = _Run(attention, lengths, dropout, with_state, fused_block if fuse else _run_block)
    if kernels.choose(x) is not cpu or needs_grad or dropout is not None:
        outputs, after = run([block.product for block in blocks], rows, state)
        forward, backward = (list(part) for part in zip(*(layer.unbind() for layer in outputs), strict=True))
    else:
        forward, backward, after = _run_in_threads(run, blocks, rows, state)
    layers = [x]
    for one, other in zip(forward, backward, strict=True):  # (B, T, P) each
        layers.append(torch.stack([one, _reorder(other, order)]).transpose(1, 2))  # (D, T, B, P)
    return layers, after


def _run_in_threads(
    run: _Run, blocks: Sequence[Block], rows: Tensor, state: AttentionState | None
) -> tuple[list[Tensor], list[Tensor], AttentionState | None]:
    """Both directions at the same time on a CPU: the layers (B, T, P) of each, and the state."""
    results: list[tuple[list[Tensor], AttentionState | None]] = [([], None), ([], None)]

    def run_direction(d: int) -> None:
        part = state
        if state is not None:
            own = slice(d, d + 1)
            part = AttentionState(state.past_keys[:, own], state.past_values[:, own], state.num_past)
        results[d] = run([block.direction(d) for block in blocks], rows[d : d + 1], part)

    cpu.in_parallel(run_direction, 2)
    (forward, state_f), (backward, state_b) = results
    after = None
    if state_f is not None and state_b is not None:
        keys = torch.cat([state_f.past_keys, state_b.past_keys], dim=1)
        values = torch.cat([state_f.past_values, state_b.past_values], dim=1)
        after = AttentionState(keys, values, state_f.num_past)
    return [layer[0] for layer in forward], [layer[0] for layer in backward], after


@dataclass(frozen=True)
class _Run:
    """One pass over rows (D, B, T, P) in reading order, of both directions or of one."""

    attention: Attention
    lengths: Tensor
    dropout: Dropout | None
    with_state: bool
    run_block: Callable[..., _BlockOutput]

    def __call__(
        self, products: Sequence[Product], x: Tensor, state: AttentionState | None
    ) -> tuple[list[Tensor], AttentionState | None]:
        """(D, B, T, P) -> each block's (D, B, T, P), zero after the end of a row, and the state."""
        num_rows, num_steps = x.shape[1:3]
        if state is None and num_steps <= self.attention.window:
            return self._block_of_tokens(products, x, self.lengths, None, with_state=self.with_state)
        layers: list[list[Tensor]] = [[] for _ in products]
        begins = list(self._begins(num_rows, num_steps, x.device))
        for begin, end in zip(begins, [*begins[1:], num_steps], strict=True):
            lengths = (self.lengths - begin).clamp(0, end - begin)
            outputs, state = self._block_of_tokens(
                products, x[:, :, begin:end], lengths, state, with_state=self.with_state or end < num_steps
            )
            for layer, output in zip(layers, outputs, strict=True):
                layer.append(output)
        return [torch.cat(parts, dim=2) for parts in layers], state

    def _begins(self, num_rows: int, num_steps: int, device: torch.device) -> Iterator[int]:
        """Where the blocks of tokens begin that run one after the other; they bound the memory of a document."""
        at_once = TOKENS_AT_ONCE.get(device.type, TOKENS_AT_ONCE["cpu"]) // max(1, num_rows)
        yield from range(0, max(1, num_steps), max(1, min(at_once, 4 * self.attention.window)))

    def _block_of_tokens(
        self,
        products: Sequence[Product],
        x: Tensor,
        lengths: Tensor,
        state: AttentionState | None,
        *,
        with_state: bool,
    ) -> tuple[list[Tensor], AttentionState | None]:
        """Run tokens (D, B, T, P) through every block."""
        num_steps = x.shape[2]
        past = 0 if state is None else self.attention.window - 1
        turns = _turns(past + num_steps, x.shape[-1] // self.attention.num_heads, x)
        mask = None
        if state is not None or num_steps > self.attention.window:
            mask = _mask(None if state is None else state.num_past, num_steps, self.attention.window, x.device)
        is_token = (torch.arange(num_steps, device=x.device) < lengths.unsqueeze(1)).unsqueeze(-1)  # (B, T, 1)
        keep = _last_tokens(lengths, self.attention.window - 1) if with_state else None
        layers, keys, values = [], [], []
        normed = norm(x)
        for number, product in enumerate(products):
            before = None if state is None else (state.past_keys[number], state.past_values[number])
            x, normed, k, v = self.run_block(
                product, x, normed, before, turns, mask, num_heads=self.attention.num_heads, dropout=self.dropout
            )
            layers.append(torch.where(is_token, normed, 0.0))
            if keep is not None:
                keys.append(_take(k, keep, self.attention.window - 1, has_past=state is not None))
                values.append(_take(v, keep, self.attention.window - 1, has_past=state is not None))
        if keep is None:
            return layers, None
        num_past = lengths if state is None else state.num_past[0, 0] + lengths
        num_past = num_past.clamp(max=self.attention.window - 1).view(1, 1, -1)
        return layers, AttentionState(torch.stack(keys), torch.stack(values), num_past)


# ---- one block -------------------------------------------------------------------------------------------------------


class _BlockOutput(NamedTuple):
    """What a block hands on."""

    x: Tensor  # (D, B, T, P)
    normed: Tensor  # (D, B, T, P), norm(x)
    keys: Tensor  # (D, B, S, P), those of the past first
    values: Tensor  # (D, B, S, P)


def _run_block(
    product: Product,
    x: Tensor,
    normed: Tensor,
    past: tuple[Tensor, Tensor] | None,
    turns: tuple[Tensor, Tensor],
    mask: Tensor | None,
    *,
    num_heads: int,
    dropout: Dropout | None,
) -> _BlockOutput:
    """Run one block.

    Args:
        product: Multiplies by the matrices of the block.
        x: (D, B, T, P).
        normed: (D, B, T, P), norm(x).
        past: Keys and values (D, B, W - 1, P) of the tokens before.
        turns: Factors of `_turns` for all S keys.
        mask: Keys that each token may attend to; None: causal.
        num_heads: Number of heads.
        dropout: Applied to what each half of the block adds.
    """
    drop = dropout or (lambda y: y)
    added, k, v = _attend(product, normed, past, turns, mask, num_heads)
    x = x + drop(added)
    gate, value = product("feedforward_input", norm(x).flatten(1, 2)).chunk(2, dim=-1)  # (D, B T, F) each
    x = x + drop(product("feedforward_output", functional.silu(gate) * value).view(x.shape))
    return _BlockOutput(x, norm(x), k, v)


def _attend(
    product: Product,
    x: Tensor,
    past: tuple[Tensor, Tensor] | None,
    turns: tuple[Tensor, Tensor],
    mask: Tensor | None,
    num_heads: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """What attention adds (D, B, T, P), and all keys and values (D, B, S, P), those of the past first."""
    d, num_rows, num_steps, p = x.shape
    heads = (num_heads, p // num_heads)
    qkv = product("attention_input", x.flatten(1, 2)).view(d, num_rows, num_steps, 3 * heads[0], heads[1])
    queries_keys = norm(qkv[..., : 2 * heads[0], :])
    q, k = queries_keys.chunk(2, dim=-2)  # (D, B, T, H, P / H) each
    v = qkv[..., 2 * heads[0] :, :]
    if past is not None:
        keys, values = (part.view(*part.shape[:-1], *heads).to(k.dtype) for part in past)
        k, v = torch.cat([keys, k], dim=2), torch.cat([values, v], dim=2)
    cos, sin = (part.to(k.dtype) for part in turns)  # half precision under autocast
    q = _turn(q, cos[len(cos) - num_steps :], sin[len(sin) - num_steps :])
    # (D, B, S, H, P / H) -> (D B, H, S, P / H)
    asked, known, taken = (part.flatten(0, 1).transpose(1, 2) for part in (q, _turn(k, cos, sin), v))
    if mask is not None and len(mask) > 1:
        mask = mask.repeat(d, 1, 1, 1)
    mixed = functional.scaled_dot_product_attention(asked, known, taken, attn_mask=mask, is_causal=mask is None)
    mixed = mixed.transpose(1, 2).reshape(d, num_rows * num_steps, p)
    return product("attention_output", mixed).view(x.shape), k.flatten(-2), v.flatten(-2)


class FusedBlock:
    """`_run_block` with fused kernels, for training on a GPU: element-wise kernels took more than half of a step.

    It is compiled at its first call. One compilation serves all blocks of the same sizes, since weights are inputs. If
    it fails, as it does without a C compiler, the block runs as it is.

    Args:
        backend: Compiler of `torch.compile`.
    """

    def __init__(self, backend: str | Callable[..., Any] = "inductor") -> None:
        self._backend = backend
        self._compiled: Callable[..., _BlockOutput] | None = None

    def __call__(self, *arguments: Any, **settings: Any) -> _BlockOutput:
        from torch._dynamo.exc import TorchDynamoException  # takes a second to import

        if self._compiled is None:
            self._compiled = torch.compile(_run_block, dynamic=False, backend=self._backend)
        try:
            return self._compiled(*arguments, **settings)
        except TorchDynamoException as error:
            reason = " ".join(str(error).splitlines()[:2])
            logger.warning("the blocks cannot be compiled (%s): training continues without, which is slower", reason)
            self._compiled = _run_block
            return _run_block(*arguments, **settings)


fused_block = FusedBlock()


# ---- positions and windows -------------------------------------------------------------------------------------------


def norm(x: Tensor) -> Tensor:
    """Divide vectors (..., P) by the root of their mean square; zeros stay zeros."""
    return functional.rms_norm(x, x.shape[-1:], eps=NORM_EPS).to(x.dtype)  # autocast may widen it


def _turns(num_steps: int, dim: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Factors (S, 1, dim) of vectors and of their swapped halves that rotate them to positions 0 to S - 1."""
    device = like.device
    rates = torch.exp(torch.arange(0, dim, 2, dtype=torch.float64, device=device) * (-math.log(ROTARY_BASE) / dim))
    angles = torch.arange(num_steps, dtype=torch.float64, device=device).view(-1, 1, 1) * rates
    cos, sin = angles.cos().to(like.dtype), angles.sin().to(like.dtype)
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


def _reading_order(lengths: Tensor, num_steps: int) -> Tensor:
    """(B, T): the step that the backward direction reads at each step; its own inverse. Padding stays where it is."""
    steps = torch.arange(num_steps, device=lengths.device)
    ends = lengths.unsqueeze(1)
    return torch.where(steps < ends, ends - 1 - steps, steps)


def _reorder(rows: Tensor, order: Tensor) -> Tensor:
    """Rows (B, T, P) with their steps in another order."""
    return rows.gather(1, order.unsqueeze(-1).expand_as(rows))


def _last_tokens(lengths: Tensor, count: int) -> Tensor:
    """(B, count): indices of the last tokens of each row among `count` past tokens and its own."""
    return lengths.unsqueeze(1) + torch.arange(count, device=lengths.device)


def _take(sequence: Tensor, index: Tensor, num_past: int, *, has_past: bool) -> Tensor:
    """The tokens (D, B, W - 1, P) at an index (B, W - 1) of past and present tokens; zeros without a past."""
    if not has_past:
        sequence = functional.pad(sequence, (0, 0, num_past, 0))
    return sequence.gather(2, index.unsqueeze(-1).expand(len(sequence), *index.shape, sequence.shape[-1]))
