"""Words become context-free vectors: character convolutions, highways, projection; or a word table beside them.

Input: shifted ids of words, (N, C) characters or (N, 1 + C) of a lexicon.  Output: vectors (N, P).  Use and training
run the same convolutions (`filter_maxima`); training brings its words in groups of one length.

Legend of shapes: N words, C characters of a word, d width of a character vector, w width of a filter, W that of the
widest one, F channels of all filters, P projection.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from elmokit.network.devices import to_device
from elmokit.text import NUM_CHARACTERS, Lexicon

WORDS_AT_ONCE = {"cpu": 64, "cuda": 4096}  # the windows of this many words stay in a CPU's cache, or fill a GPU


class CharacterEncoder(nn.Module):
    """Characters of a word -> its context-free vector: convolutions, max over positions, highways, projection.

    Args:
        char_dim: Width d of a character vector.
        filters: (width, channels) of each convolution.
        activation: "relu" or "tanh", after the maximum.
        num_highways: Number of highway layers.
        projection_dim: Width P of the result; None leaves out the projection, and P is the number of channels.
        max_characters: Largest number C of characters of a word.
        num_characters: Rows of the character table; the last one is the pad character.
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
            self.projection = init_linear(nn.Linear(filters_dim, projection_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The published initial values."""
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
            char_ids: (N, C) shifted ids. They may still be on the host: then nothing waits for a GPU.

        Returns:
            (N, P) on the encoder's device.
        """
        device = self.char_embedding.device
        order = (char_ids != self.shifted_pad).sum(dim=1).argsort()  # words of one length together are trimmed the most
        at_once = WORDS_AT_ONCE.get(device.type, WORDS_AT_ONCE["cpu"])
        sorted_ids = char_ids[order]
        begins = range(0, max(1, len(order)), at_once)
        groups = [to_device(self.trim(sorted_ids[begin : begin + at_once]), device) for begin in begins]
        maxima = self._maxima(groups)[to_device(order.argsort(), device)]  # (N, F)
        return self._project(maxima)

    def encode_groups(self, groups: Sequence[Tensor]) -> Tensor:
        """Encode words that are sorted into groups already, as training brings them.

        Args:
            groups: (N, C) shifted ids of each group on the encoder's device. C is `max_characters`, or every word has
                at least as many pads behind it as the widest filter is wide (see `trim`).

        Returns:
            (N of all groups, P), one group after the other.
        """
        return self._project(self._maxima(groups))

    def _maxima(self, groups: Sequence[Tensor]) -> Tensor:
        """(N, C) of each group -> (N of all groups, F): each filter's maximum over the positions, bias added."""
        convolutions = [layer for layer in self.convolutions if isinstance(layer, nn.Conv1d)]
        is_training = torch.is_grad_enabled() and any(parameter.requires_grad for parameter in self.parameters())
        table = functional.pad(self.char_embedding, (0, 0, 1, 0))  # id 0 reads as zeros
        device = table.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else table.dtype
        # one product of all filters is quickest where launches or gradients count, one for each where operations do
        banks = [convolutions] if is_training or device == "cuda" else [[layer] for layer in convolutions]
        filter_banks = [make_bank(bank, self.max_characters, dtype) for bank in banks]
        if len(filter_banks) == 1:
            groups = [self._with_room(ids) for ids in groups]
        maxima = [filter_maxima(ids, table.to(dtype), filter_banks) for ids in groups]
        bias = torch.cat([layer.bias for layer in convolutions if layer.bias is not None])
        return torch.cat(maxima) + bias.to(dtype)

    def _with_room(self, ids: Tensor) -> Tensor:
        """Pads behind words of full length: windows of the widest filter reach beyond the last ones of the others."""
        if ids.shape[1] < self.max_characters:
            return ids
        return functional.pad(ids, (0, self.widest - 1), value=self.shifted_pad)

    def _project(self, maxima: Tensor) -> Tensor:
        """(N, F) -> (N, P).

        The maximum comes before the activation: both activations rise, so it is the same, and the work C times less.
        """
        x = torch.relu(maxima) if self.activation == "relu" else torch.tanh(maxima)
        for highway in self.highways:
            x = highway(x)  # (N, F)
        if self.projection is not None:
            x = self.projection(x)  # (N, P)
        return x

    @property
    def widest(self) -> int:
        """Characters that the widest filter reads."""
        return max(layer.kernel_size[0] for layer in self.convolutions if isinstance(layer, nn.Conv1d))

    def trim(self, char_ids: Tensor) -> Tensor:
        """Drop trailing columns of pads, but only as many as change no maximum.

        Pads are not masked, so windows over pads count; but all windows of pads only are equal, and one is enough.
        """
        used = (char_ids != self.shifted_pad).any(dim=0).nonzero()
        longest = int(used[-1]) + 1 if len(used) else 0
        return char_ids[:, : min(char_ids.shape[1], longest + self.widest)]


# ---- the maximum of each filter over the positions of a word ---------------------------------------------------------


@dataclass(frozen=True)
class FilterBank:
    """Filters that are applied as one product: a narrower filter is followed by zeros up to the widest, W."""

    weight: Tensor
    """(W d, F)."""
    limits: tuple[tuple[int, int, int], ...]
    """First and last channel of each filter, and the number of positions that it has in a word of full length."""


def make_bank(convolutions: Sequence[nn.Conv1d], max_characters: int, dtype: torch.dtype) -> FilterBank:
    """Put convolutions into one bank."""
    width = max(layer.kernel_size[0] for layer in convolutions)
    kernels, limits, begin = [], [], 0
    for layer in convolutions:
        kernels.append(functional.pad(layer.weight, (0, width - layer.kernel_size[0])))  # (channels, d, W)
        limits.append((begin, begin + layer.out_channels, max_characters - layer.kernel_size[0] + 1))
        begin += layer.out_channels
    if len(kernels) == 1:
        weight = kernels[0].permute(2, 1, 0).flatten(0, 1).to(dtype)  # (W d, F), what a product of few rows reads best
    else:
        weight = torch.cat(kernels).transpose(1, 2).flatten(1).to(dtype).t()
    return FilterBank(weight, tuple(limits))


def filter_maxima(ids: Tensor, table: Tensor, banks: Sequence[FilterBank]) -> Tensor:
    """(N, C) ids -> (N, F): the maximum of each filter over the positions of the word."""
    ids = ids.long()
    if torch.is_grad_enabled() and (table.requires_grad or banks[0].weight.requires_grad):
        maxima = [_FilterMaxima.apply(ids, table, bank.weight, bank.limits) for bank in banks]  # type: ignore[no-untyped-call]
    else:
        x = functional.embedding(ids, table).flatten(1)  # (N, C d)
        maxima = [_scores(_windows(x, table, bank.weight), bank.weight, bank.limits).amax(dim=1) for bank in banks]
    return torch.cat(maxima, dim=-1)


class _FilterMaxima(torch.autograd.Function):
    """The maxima with their gradient, which only the window at each maximum receives."""

    @staticmethod
    def forward(
        ctx: Any, ids: Tensor, table: Tensor, weight: Tensor, limits: tuple[tuple[int, int, int], ...]
    ) -> Tensor:
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
    """(N, C d) -> (N, positions, W d): the vectors of W characters in a row, at each position."""
    return x.unfold(1, len(weight), table.shape[1])


def _scores(windows: Tensor, weight: Tensor, limits: tuple[tuple[int, int, int], ...]) -> Tensor:
    """(N, positions, F): what each filter gives at each position; minus infinity where it does not fit."""
    scores = (windows.reshape(-1, len(weight)) @ weight).view(*windows.shape[:2], weight.shape[1])
    for begin, end, num_positions in limits:
        if num_positions < scores.shape[1]:
            scores[:, num_positions:, begin:end] = -math.inf
    return scores


def _sum_by_row(ids: Tensor, values: Tensor, num_rows: int) -> Tensor:
    """(num_rows, d): the sums of the values of equal ids."""
    ids, values = ids.reshape(-1), values.reshape(-1, values.shape[-1])
    if ids.is_cuda and num_rows <= 1 + NUM_CHARACTERS:  # additions to so few rows would wait for each other
        one_hot = (ids.unsqueeze(1) == torch.arange(num_rows, device=ids.device)).to(values.dtype)
        return one_hot.T @ values
    return values.new_zeros(num_rows, values.shape[1]).index_add_(0, ids, values)


# ---- parts of encoders -----------------------------------------------------------------------------------------------


class Highway(nn.Module):
    """y = g * relu(x Wt + bt) + (1 - g) * x, with g = sigmoid(x Wc + bc)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.transform: nn.Module = init_linear(nn.Linear(dim, dim))
        self.carry: nn.Module = init_linear(nn.Linear(dim, dim), bias=-2.0)

    def forward(self, x: Tensor) -> Tensor:
        """(N, F) -> (N, F)."""
        return torch.lerp(x, torch.relu(self.transform(x)), torch.sigmoid(self.carry(x)))


class LexiconEncoder(nn.Module):
    """A word's row in a table beside what its characters give, both projected: ELMoForManyLangs' token vector.

    `filters` may be empty, `word_dim` 0; not both.
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
        self.projection: nn.Module = init_linear(nn.Linear(width, projection_dim))

    def forward(self, ids: Tensor) -> Tensor:
        """(N, 1 + C) shifted ids -> (N, P)."""
        parts = []
        if self.word_embedding is not None:
            rows = to_device(ids[:, 0] - 1, self.word_embedding.device)
            parts.append(functional.embedding(rows, self.word_embedding))  # (N, word_dim)
        if self.spelling is not None:
            parts.append(self.spelling(ids[:, 1:]))  # (N, F)
        vectors: Tensor = self.projection(torch.cat(parts, dim=-1))
        return vectors


def init_linear(linear: nn.Linear, *, bias: float = 0.0) -> nn.Linear:
    """N(0, 1/sqrt(fan_in)) and a constant bias, as published."""
    if not linear.weight.is_meta:  # normal_ on a meta tensor imports half of torch's compiler, for nothing
        nn.init.normal_(linear.weight, 0.0, 1.0 / math.sqrt(linear.in_features))
        nn.init.constant_(linear.bias, bias)
    return linear
