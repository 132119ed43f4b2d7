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

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from elmokit import kernels
from elmokit.kernels import AttentionSizes, BlockParts, Past, cpu
from elmokit.kernels.blocks import direction_to_text_order
from elmokit.kernels.cpu.native import NativeMatrix
from elmokit.kernels.cpu.packed import packed_direction

TOKENS_AT_ONCE = {"cpu": 2**13, "cuda": 2**18}  # of all rows in one call, if sentences are longer than the window

Product = Callable[[str, Tensor], Tensor]
"""Name of a matrix of a block, rows (D, N, K) -> (D, N, M), of the directions that run together."""
Dropout = Callable[[Tensor], Tensor]


class AttentionState(NamedTuple):
    """The last keys and values of each row, right-aligned: what the next tokens attend to."""

    past_keys: Tensor  # (L, D, B, W - 1, P), normalized and not rotated
    past_values: Tensor  # (L, D, B, W - 1, P)
    num_past: Tensor  # (1, 1, B) int64: how many of them are tokens; the others are not read


class Block(Protocol):
    """The matrices of one block: attention_input, attention_output, feedforward_input and feedforward_output."""

    def product(self, name: str, rows: Tensor) -> Tensor:
        """Multiply the rows of both directions (D, N, K) by a matrix: (D, N, M)."""

    def direction(self, d: int) -> Product:
        """The products of one direction, on a CPU and without gradients."""

    def for_native(self, d: int) -> cpu.NativeBlock | None:
        """The weights of one direction for `cpu.run_blocks`, if that is fast."""

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
        return kernels.product(rows, weight)

    def direction(self, d: int) -> Product:
        """The products of one direction, with packed weights, on a CPU and without gradients."""

        def product(name: str, rows: Tensor) -> Tensor:
            return packed_direction(getattr(self, name), d).product(rows[0]).unsqueeze(0)

        return product

    def for_native(self, d: int) -> cpu.NativeBlock | None:
        """The weights of one direction for `cpu.run_blocks`, if that is fast."""
        return native_block(packed_direction(getattr(self, name), d).for_native() for name in cpu.NativeBlock._fields)


def native_block(matrices: Iterable[NativeMatrix | None]) -> cpu.NativeBlock | None:
    """A block of four matrices, in the order of the fields; None if one of them is."""
    packed = [matrix for matrix in matrices if matrix is not None]
    return cpu.NativeBlock(*packed) if len(packed) == len(cpu.NativeBlock._fields) else None


def run_blocks(
    blocks: Sequence[Block],
    x: Tensor,
    lengths: Tensor,
    state: AttentionState | None,
    sizes: AttentionSizes,
    *,
    dropout: Dropout | None = None,
    with_state: bool = True,
    only_top: bool = False,
) -> tuple[list[Tensor], AttentionState | None]:
    """Run every block, in both directions.

    Args:
        blocks: The L blocks.
        x: (D, T, B, P) token vectors; direction 1 runs from the last token of a row to its first.
        lengths: (B,) number of tokens per row.
        state: State before the first token; None if there are no tokens before it.
        sizes: Sizes of the attention.
        dropout: Applied to the token vectors and to what each half of a block adds.
        with_state: Return the state.
        only_top: Return the last layer only.

    Returns:
        (D, T, B, P) of each of the L+1 layers, the first of which is the input, and the state after the last token of
        each row, or None.  Vectors after the end of a row are zero, except in layer 0.  Under autocast layers are in
        float32; the last one alone is as narrow as the products that read it.
    """
    dtype = x.dtype
    if torch.is_autocast_enabled(x.device.type):  # only products are in half precision, not their sum
        dtype = torch.promote_types(dtype, torch.float32)
    x = x if dropout is None else dropout(x.to(dtype))
    parts = kernels.block_parts(x)
    rows = parts.to_reading_order(x, lengths, dtype)  # (D, B, T, P)
    needs_grad = torch.is_grad_enabled() and (
        x.requires_grad or any(weight.requires_grad for block in blocks for weight in block.parameters())
    )
    run = _Run(sizes, lengths, with_state)
    pytorch = _InPyTorch(parts, sizes, [block.product for block in blocks], dropout, only_top)
    if kernels.choose(x) is not cpu or needs_grad or dropout is not None:
        outputs, after = run(pytorch, rows, state)
        layers = parts.to_text_order(outputs, lengths, outputs[0].dtype if only_top else dtype)
    else:
        layers, after = _run_in_threads(run, pytorch, blocks, rows, state)
    return layers if only_top else [x.to(dtype), *layers], after


def _run_in_threads(
    run: _Run, pytorch: _InPyTorch, blocks: Sequence[Block], rows: Tensor, state: AttentionState | None
) -> tuple[list[Tensor], AttentionState | None]:
    """Both directions at the same time on a CPU: the layers (D, T, B, P), and the state."""
    num_layers = len(blocks[-1:] if pytorch.only_top else blocks)
    layers = [torch.empty_like(rows) for _ in range(num_layers)]  # (D, B, T, P)
    states: list[AttentionState | None] = [None, None]

    def run_direction(d: int) -> None:
        part = state
        if state is not None:
            part = AttentionState(state.past_keys[:, d : d + 1], state.past_values[:, d : d + 1], state.num_past)
        packed = [native for block in blocks if (native := block.for_native(d)) is not None]
        run_tokens: RunTokens
        if blocks and len(packed) == len(blocks):
            run_tokens = _InNative(packed, pytorch.sizes, pytorch.only_top)
        else:
            run_tokens = dataclasses.replace(pytorch, products=[block.direction(d) for block in blocks])
        outputs, states[d] = run(run_tokens, rows[d : d + 1], part)
        in_order = direction_to_text_order([output[0] for output in outputs], run.lengths, d)
        for layer, own in zip(layers, in_order, strict=True):
            layer[d] = own

    cpu.in_parallel(run_direction, 2)
    forward, backward = states
    after = None
    if forward is not None and backward is not None:
        keys = torch.cat([forward.past_keys, backward.past_keys], dim=1)
        values = torch.cat([forward.past_values, backward.past_values], dim=1)
        after = AttentionState(keys, values, forward.num_past)
    return [layer.transpose(1, 2) for layer in layers], after


class RunTokens(Protocol):
    """Tokens (D, B, T, P) through every block: each one's (D, B, T, P), and keys and values (L, D, B, W - 1, P)."""

    def __call__(
        self, x: Tensor, lengths: Tensor, state: AttentionState | None, *, with_state: bool
    ) -> tuple[list[Tensor], Past | None]: ...


@dataclass(frozen=True)
class _InPyTorch:
    """Both directions or one of them, with products in PyTorch or elsewhere."""

    parts: BlockParts
    sizes: AttentionSizes
    products: Sequence[Product]
    dropout: Dropout | None
    only_top: bool

    def __call__(
        self, x: Tensor, lengths: Tensor, state: AttentionState | None, *, with_state: bool
    ) -> tuple[list[Tensor], Past | None]:
        """See `RunTokens`."""
        num_past = None if state is None else state.num_past[0, 0]
        attention = self.parts.Attention(
            self.sizes, lengths, num_past, x.shape[2], x.shape[3], x, with_state=with_state
        )
        drop = self.dropout or (lambda y: y)
        layers, kept = [], []
        normed = self.parts.norm(x)
        for number, product in enumerate(self.products):
            past = None if state is None else Past(state.past_keys[number], state.past_values[number])
            mixed, after = attention(product("attention_input", normed.flatten(1, 2)), past)
            x, normed = self.parts.add_norm(x, drop(product("attention_output", mixed).view(x.shape)))
            gated = self.parts.gate(product("feedforward_input", normed.flatten(1, 2)))  # (D, B T, F)
            x, normed = self.parts.add_norm(x, drop(product("feedforward_output", gated).view(x.shape)))
            if not self.only_top or number == len(self.products) - 1:
                layers.append(normed)
            if after is not None:
                kept.append(after)
        return layers, Past(*map(torch.stack, zip(*kept, strict=True))) if with_state else None


@dataclass(frozen=True)
class _InNative:
    """One direction in C."""

    blocks: Sequence[cpu.NativeBlock]
    sizes: AttentionSizes
    only_top: bool

    def __call__(
        self, x: Tensor, lengths: Tensor, state: AttentionState | None, *, with_state: bool
    ) -> tuple[list[Tensor], Past | None]:
        """See `RunTokens`."""
        past = None if state is None else Past(state.past_keys[:, 0], state.past_values[:, 0])
        num_past = None if state is None else state.num_past[0, 0]
        layers, kept = cpu.run_blocks(
            self.blocks, x[0], lengths, past, num_past, self.sizes, with_state=with_state, only_top=self.only_top
        )
        together = None if kept is None else Past(*(part.unsqueeze(1) for part in kept))
        return [layer.unsqueeze(0) for layer in layers], together


@dataclass(frozen=True)
class _Run:
    """One pass over rows (D, B, T, P) in reading order, of both directions or of one."""

    sizes: AttentionSizes
    lengths: Tensor
    with_state: bool

    def __call__(
        self, run_tokens: RunTokens, x: Tensor, state: AttentionState | None
    ) -> tuple[list[Tensor], AttentionState | None]:
        """(D, B, T, P) -> each block's (D, B, T, P), undefined after the end of a row, and the state."""
        num_rows, num_steps = x.shape[1:3]
        if state is None and num_steps <= self.sizes.window:
            return self._block_of_tokens(run_tokens, x, self.lengths, None, with_state=self.with_state)
        layers: list[list[Tensor]] = []
        begins = list(self._begins(num_rows, num_steps, x.device))
        for begin, end in zip(begins, [*begins[1:], num_steps], strict=True):
            lengths = (self.lengths - begin).clamp(0, end - begin)
            outputs, state = self._block_of_tokens(
                run_tokens, x[:, :, begin:end], lengths, state, with_state=self.with_state or end < num_steps
            )
            layers.append(outputs)
        return [torch.cat(together, dim=2) for together in zip(*layers, strict=True)], state

    def _begins(self, num_rows: int, num_steps: int, device: torch.device) -> Iterator[int]:
        """Where the blocks of tokens begin that run one after the other; they bound the memory of a document."""
        at_once = TOKENS_AT_ONCE.get(device.type, TOKENS_AT_ONCE["cpu"]) // max(1, num_rows)
        yield from range(0, max(1, num_steps), max(1, min(at_once, 4 * self.sizes.window)))

    def _block_of_tokens(
        self, run_tokens: RunTokens, x: Tensor, lengths: Tensor, state: AttentionState | None, *, with_state: bool
    ) -> tuple[list[Tensor], AttentionState | None]:
        """Run tokens (D, B, T, P) through every block."""
        layers, kept = run_tokens(x, lengths, state, with_state=with_state)
        if kept is None:
            return layers, None
        count = (lengths if state is None else state.num_past[0, 0] + lengths).clamp(max=self.sizes.window - 1)
        return layers, AttentionState(*kept, count.view(1, 1, -1))
