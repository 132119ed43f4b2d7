"""The convolutions of a word's characters: the maximum of each filter over the positions of the word.

Input: shifted ids of characters (N, C).  Output: maxima (N, F).  `filter_maxima` multiplies, for gradients or a GPU;
`looked_up_maxima` adds rows of a table, on a CPU.

Shapes: N words, C characters per word, d width of a character vector, w width of a filter, W width of the widest one, F
channels of all filters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from elmokit.text import NUM_CHARACTERS

Limits = tuple[tuple[int, int, int], ...]
"""(first channel, channel after the last, number of positions in a word of full length) of each filter."""


@dataclass(frozen=True)
class FilterBank:
    """Filters that are applied as one product; narrower filters are padded with zeros to the width W of the widest."""

    weight: Tensor
    """(W d, F)."""
    limits: Limits
    """Of each filter."""


def make_bank(convolutions: Sequence[nn.Conv1d], max_characters: int, dtype: torch.dtype) -> FilterBank:
    """Make one bank of convolutions.

    Args:
        convolutions: Filters of any widths.
        max_characters: Length of a word.
        dtype: Data type of the product.
    """
    width = max(layer.kernel_size[0] for layer in convolutions)
    filters = []
    for layer in convolutions:
        weight = layer.weight.flatten().view(layer.weight.shape)  # its gradient gets the strides that DDP expects
        filters.append(functional.pad(weight, (0, width - layer.kernel_size[0])))  # (channels, d, W)
    weight = torch.cat(filters).transpose(1, 2).flatten(1).to(dtype).t()
    return FilterBank(weight, limits_of(convolutions, max_characters))


def limits_of(convolutions: Sequence[nn.Conv1d], max_characters: int) -> Limits:
    """The limits of convolutions whose channels lie one after the other."""
    limits, begin = [], 0
    for layer in convolutions:
        limits.append((begin, begin + layer.out_channels, max_characters - layer.kernel_size[0] + 1))
        begin += layer.out_channels
    return tuple(limits)


def filter_maxima(ids: Tensor, table: Tensor, bank: FilterBank) -> Tensor:
    """The maximum of each filter over the positions of a word, by one product of all filters.

    Args:
        ids: (N, C) shifted ids.
        table: (1 + number of characters, d); row 0 is zero.
        bank: Filters.

    Returns:
        (N, F).
    """
    ids = ids.long()
    if torch.is_grad_enabled() and (table.requires_grad or bank.weight.requires_grad):
        maxima: Tensor = _FilterMaxima.apply(ids, table, bank.weight, bank.limits)  # type: ignore[no-untyped-call]
        return maxima
    x = functional.embedding(ids, table).flatten(1)  # (N, C d)
    return _scores(_windows(x, table, bank.weight), bank.weight, bank.limits).amax(dim=1)


def looked_up_maxima(
    groups: Sequence[Tensor], table: Tensor, convolutions: Sequence[nn.Conv1d], max_characters: int
) -> list[Tensor]:
    """As `filter_maxima` of each group, without gradients and with few operations, for a CPU.

    The output of a filter is the sum of what each of its characters adds. What a character adds at each place of a
    filter is computed once, since a text has few characters. Then w rows are added in place of a product of w d rows.

    Args:
        groups: (N, C) shifted ids of each group.
        table: (1 + number of characters, d); row 0 is zero.
        convolutions: Filters of any widths.
        max_characters: Length of a word.

    Returns:
        (N, F) of each group.
    """
    is_used = torch.zeros(len(table), dtype=torch.bool)
    for ids in groups:
        is_used[ids.long()] = True
    characters = table[is_used]  # (U, d)
    limits, width = limits_of(convolutions, max_characters), max(layer.kernel_size[0] for layer in convolutions)
    summands = table.new_zeros(width, len(characters), limits[-1][1])  # (W, U, F)
    for layer, (begin, end, _) in zip(convolutions, limits, strict=True):
        weight = layer.weight.detach().to(table.dtype).permute(2, 1, 0)  # (w, d, channels)
        summands[: len(weight), :, begin:end] = characters @ weight
    row = is_used.cumsum(0) - 1  # of a character among those used
    first_rows = torch.arange(width) * len(characters)  # of each place of a filter
    maxima = []
    for ids in groups:
        places = row[ids.long()].unfold(1, width, 1) + first_rows  # (N, positions, W)
        sums = functional.embedding_bag(places.flatten(0, 1), summands.flatten(0, 1), mode="sum")  # (N positions, F)
        maxima.append(_within(sums.view(*places.shape[:2], summands.shape[2]), limits).amax(dim=1))
    return maxima


class _FilterMaxima(torch.autograd.Function):
    """`filter_maxima` with its gradient, which only the window of each maximum receives."""

    @staticmethod
    def forward(ctx: Any, ids: Tensor, table: Tensor, weight: Tensor, limits: Limits) -> Tensor:
        windows = _windows(functional.embedding(ids, table).flatten(1), table, weight)
        maxima, positions = _scores(windows, weight, limits).max(dim=1)
        ctx.save_for_backward(ids, table, weight, positions)
        return maxima

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_maxima: Tensor) -> tuple[Tensor | None, ...]:
        ids, table, weight, positions = ctx.saved_tensors
        windows = _windows(functional.embedding(ids, table).flatten(1), table, weight)
        num_positions, dim = windows.shape[1], table.shape[1]
        width = len(weight) // dim
        grad_scores = grad_maxima.new_zeros(len(ids), num_positions, weight.shape[1])
        grad_scores.scatter_(1, positions.unsqueeze(1), grad_maxima.unsqueeze(1))
        flat = grad_scores.view(-1, weight.shape[1])  # (N positions, F)
        grad_weight = (flat.T @ windows.reshape(-1, len(weight))).T
        grad_windows = (flat @ weight.T).view(len(ids), num_positions, width, dim)
        grad_characters = grad_maxima.new_zeros(*ids.shape, dim)  # (N, C, d)
        for offset in range(width):
            grad_characters[:, offset : offset + num_positions] += grad_windows[:, :, offset]
        return None, _sum_by_row(ids, grad_characters, len(table)), grad_weight, None


def _windows(x: Tensor, table: Tensor, weight: Tensor) -> Tensor:
    """(N, C d) -> (N, positions, W d): the vectors of W consecutive characters at each position."""
    return x.unfold(1, len(weight), table.shape[1])


def _scores(windows: Tensor, weight: Tensor, limits: Limits) -> Tensor:
    """(N, positions, F): output of each filter at each position; minus infinity where it does not fit."""
    scores = (windows.reshape(-1, len(weight)) @ weight).view(*windows.shape[:2], weight.shape[1])
    return _within(scores, limits)


def _within(scores: Tensor, limits: Limits) -> Tensor:
    """Write minus infinity where a filter does not fit into a word of full length: (N, positions, F)."""
    for begin, end, num_positions in limits:
        if num_positions < scores.shape[1]:
            scores[:, num_positions:, begin:end] = -math.inf
    return scores


def _sum_by_row(ids: Tensor, values: Tensor, num_rows: int) -> Tensor:
    """(num_rows, d): the sums of the values of equal ids."""
    ids, values = ids.reshape(-1), values.reshape(-1, values.shape[-1])
    if ids.is_cuda and num_rows <= 1 + NUM_CHARACTERS:  # atomic additions to few rows are slow
        one_hot = (ids.unsqueeze(1) == torch.arange(num_rows, device=ids.device)).to(values.dtype)
        return one_hot.T @ values
    return values.new_zeros(num_rows, values.shape[1]).index_add_(0, ids, values)
