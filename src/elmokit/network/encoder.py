"""Encoders of words: character convolutions, highways and projection, with or without a word table.

Input: shifted ids of words, (N, C) characters or (N, 1 + C) of a lexicon.  Output: context-free vectors (N, P).
Inference and training use the same convolutions (`filter_maxima`); in training words are grouped by length.

Shapes: N words, C characters per word, d width of a character vector, w width of a filter, W width of the widest one, F
channels of all filters, P projection.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from elmokit import kernels
from elmokit.kernels import product_dtype
from elmokit.network.devices import to_device
from elmokit.text import NUM_CHARACTERS, Lexicon

WORDS_AT_ONCE = {"cpu": 32, "cuda": 4096}  # number of words whose windows fit the cache of a CPU, or fill a GPU


class CharacterEncoder(nn.Module):
    """Encodes a word by its characters: convolutions, maximum over positions, highways, projection.

    Args:
        char_dim: Width d of a character vector.
        filters: (width, channels) of each convolution.
        activation: "relu" or "tanh", after the maximum.
        num_highways: Number of highway layers.
        projection_dim: Width P of the result. None: no projection, P is the number of channels.
        max_characters: Number of characters C per word.
        num_characters: Number of rows of the character table; the last one is the pad character.
    """

    def __init__(
        self,
        *,
        char_dim: int,
        filters: Sequence[tuple[int, int]],
        activation: str,
        num_highways: int,
        projection_dim: int | None,
        max_characters: int,
        num_characters: int = NUM_CHARACTERS,
    ) -> None:
        super().__init__()
        self.max_characters = max_characters
        self.shifted_pad = num_characters  # the pad character is the last, and ids are shifted by one
        filters_dim = sum(channels for _, channels in filters)
        self.activation = activation
        self.char_embedding = nn.Parameter(torch.empty(num_characters, char_dim))
        self.convolutions = nn.ModuleList(nn.Conv1d(char_dim, channels, width) for width, channels in filters)
        self.highways = nn.ModuleList(Highway(filters_dim) for _ in range(num_highways))
        self.projection: nn.Module | None = None
        if projection_dim is not None:
            self.projection = init_linear(Linear(filters_dim, projection_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize the parameters as published."""
        nn.init.uniform_(self.char_embedding, -1.0, 1.0)
        for convolution in self.convolutions:
            assert isinstance(convolution, nn.Conv1d)
            assert convolution.bias is not None
            if self.activation == "relu":
                nn.init.uniform_(convolution.weight, -0.05, 0.05)
            elif not convolution.weight.is_meta:  # as in init_linear
                nn.init.normal_(convolution.weight, 0.0, 1.0 / math.sqrt(convolution.weight[0].numel()))
            nn.init.zeros_(convolution.bias)

    def forward(self, char_ids: Tensor) -> Tensor:
        """Encode words.

        Args:
            char_ids: (N, C) shifted ids, on any device. If they are on the host, it does not wait for a GPU.

        Returns:
            (N, P) on the encoder's device.
        """
        device = self.char_embedding.device
        # groups of words of similar length are trimmed most
        order = (char_ids != self.shifted_pad).sum(dim=1).argsort()
        at_once = WORDS_AT_ONCE.get(device.type, WORDS_AT_ONCE["cpu"])
        sorted_ids = char_ids[order]
        begins = range(0, max(1, len(order)), at_once)
        groups = [to_device(self.trim(sorted_ids[begin : begin + at_once]), device) for begin in begins]
        maxima = self._maxima(groups)[to_device(order.argsort(), device)]  # (N, F)
        return self._project(maxima)

    def encode_groups(self, groups: Sequence[Tensor]) -> Tensor:
        """Encode words that are already grouped by length, for training.

        Args:
            groups: (N, C) shifted ids of each group on the encoder's device. C is `max_characters`, or every word is
                followed by at least as many pads as the width of the widest filter (see `trim`).

        Returns:
            (N of all groups, P), one group after the other.
        """
        return self._project(self._maxima(groups))

    def _maxima(self, groups: Sequence[Tensor]) -> Tensor:
        """(N, C) of each group -> (N of all groups, F): maximum of each filter over the positions, plus its bias."""
        convolutions = [layer for layer in self.convolutions if isinstance(layer, nn.Conv1d)]
        is_training = torch.is_grad_enabled() and any(parameter.requires_grad for parameter in self.parameters())
        table = functional.pad(self.char_embedding, (0, 0, 1, 0))  # id 0 is a vector of zeros
        dtype = product_dtype(table)
        table = table.to(dtype)
        groups = [self._with_room(ids) for ids in groups]
        if is_training or not table.is_cpu:
            bank = make_bank(convolutions, self.max_characters, dtype)
            maxima = [filter_maxima(ids, table, bank) for ids in groups]
        else:
            maxima = looked_up_maxima(groups, table, convolutions, self.max_characters)
        bias = torch.cat([layer.bias for layer in convolutions if layer.bias is not None])
        return torch.cat(maxima) + bias.to(dtype)

    def _with_room(self, ids: Tensor) -> Tensor:
        """Append pads to words of full length, for the windows of the widest filter at the last positions."""
        if ids.shape[1] < self.max_characters:
            return ids
        return functional.pad(ids, (0, self.widest - 1), value=self.shifted_pad)

    def _project(self, maxima: Tensor) -> Tensor:
        """(N, F) -> (N, P).

        The activation is applied after the maximum: activations are monotonic, so the result is the same.
        """
        x = torch.relu(maxima) if self.activation == "relu" else torch.tanh(maxima)
        for highway in self.highways:
            x = highway(x)  # (N, F)
        if self.projection is not None:
            x = self.projection(x)  # (N, P)
        return x

    @property
    def widest(self) -> int:
        """Width of the widest filter."""
        return max(layer.kernel_size[0] for layer in self.convolutions if isinstance(layer, nn.Conv1d))

    def trim(self, char_ids: Tensor) -> Tensor:
        """Drop trailing columns of pads, without changing any maximum.

        Pads are not masked, so windows over pads count. All windows of pads only are equal, and one is kept.

        Args:
            char_ids: (N, C) shifted ids.

        Returns:
            (N, C') with C' <= C.
        """
        is_used = (char_ids != self.shifted_pad).any(dim=0)  # (C,)
        longest = int((is_used * torch.arange(1, len(is_used) + 1, device=is_used.device)).max())  # one wait for a GPU
        return char_ids[:, : min(char_ids.shape[1], longest + self.widest)]


# ---- the maximum of each filter over the positions of a word ---------------------------------------------------------


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


# ---- parts of encoders -----------------------------------------------------------------------------------------------


class Linear(nn.Linear):
    """An `nn.Linear` whose products are those of the engines."""

    def forward(self, input: Tensor) -> Tensor:
        """(N, in) -> (N, out)."""
        return kernels.linear(input, self.weight, self.bias)


class Highway(nn.Module):
    """y = g * relu(x Wt + bt) + (1 - g) * x, with g = sigmoid(x Wc + bc)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.transform: nn.Module = init_linear(Linear(dim, dim))
        self.carry: nn.Module = init_linear(Linear(dim, dim), bias=-2.0)

    def forward(self, x: Tensor) -> Tensor:
        """(N, F) -> (N, F)."""
        return torch.lerp(x, torch.relu(self.transform(x)), torch.sigmoid(self.carry(x)))


class LexiconEncoder(nn.Module):
    """Encodes a word by its row in a word table and by its characters, as in ELMoForManyLangs.

    Both parts are concatenated and projected. `filters` may be empty or `word_dim` 0, but not both.

    Args:
        num_characters: Number of characters of the lexicon.
        char_dim: Width of a character vector.
        filters: (width, channels) of each convolution.
        activation: "relu" or "tanh".
        num_highways: Number of highway layers.
        num_words: Number of words of the lexicon.
        word_dim: Width of a word vector.
        projection_dim: Width P of the result.
        max_characters: Number of characters C per word.
    """

    def __init__(
        self,
        *,
        num_characters: int,
        char_dim: int,
        filters: Sequence[tuple[int, int]],
        activation: str,
        num_highways: int,
        num_words: int,
        word_dim: int,
        projection_dim: int,
        max_characters: int,
    ) -> None:
        super().__init__()
        self.word_embedding: nn.Parameter | None = None
        if word_dim:
            self.word_embedding = nn.Parameter(torch.empty(num_words + Lexicon.NUM_SPECIAL_WORDS, word_dim))
            nn.init.uniform_(self.word_embedding, -1.0, 1.0)
        self.spelling: CharacterEncoder | None = None
        if filters:
            self.spelling = CharacterEncoder(
                char_dim=char_dim,
                filters=filters,
                activation=activation,
                num_highways=num_highways,
                projection_dim=None,
                max_characters=max_characters,
                num_characters=num_characters + Lexicon.NUM_MARKS,
            )
        width = word_dim + sum(channels for _, channels in filters)
        self.projection: nn.Module = init_linear(Linear(width, projection_dim))

    def forward(self, ids: Tensor) -> Tensor:
        """Encode words.

        Args:
            ids: (N, 1 + C) shifted ids: the word, then its characters.

        Returns:
            (N, P).
        """
        parts = []
        if self.word_embedding is not None:
            rows = to_device(ids[:, 0] - 1, self.word_embedding.device)
            parts.append(functional.embedding(rows, self.word_embedding))  # (N, word_dim)
        if self.spelling is not None:
            parts.append(self.spelling(ids[:, 1:]))  # (N, F)
        vectors: Tensor = self.projection(torch.cat(parts, dim=-1))
        return vectors


def init_linear(linear: nn.Linear, *, bias: float = 0.0) -> nn.Linear:
    """Initialize a linear layer as published: weights from N(0, 1/sqrt(fan_in)), constant bias."""
    if not linear.weight.is_meta:  # on a meta tensor normal_ would import torch's compiler
        nn.init.normal_(linear.weight, 0.0, 1.0 / math.sqrt(linear.in_features))
        nn.init.constant_(linear.bias, bias)
    return linear
