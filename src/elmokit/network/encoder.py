"""Encoders of words: character convolutions, highways and projection, with or without a word table.

Input: shifted ids of words, (N, C) characters or (N, 1 + C) of a lexicon.  Output: context-free vectors (N, P).
In training words are grouped by length.

Shapes: N words, C characters per word, d width of a character vector, w width of a filter, W width of the widest one, F
channels of all filters, P projection.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from elmokit import kernels
from elmokit.kernels import cpu, product_dtype
from elmokit.network.devices import to_device
from elmokit.network.filters import filter_maxima, looked_up_maxima, make_bank
from elmokit.text import NUM_CHARACTERS, Lexicon

# number of words whose windows fit the cache of a CPU; on a GPU few enough that one long word does not widen all
WORDS_AT_ONCE = {"cpu": 32, "cuda": 1024}
GROUPS_FOR_TWO_THREADS = 4  # fewer groups of words are faster in one thread: each thread reads all weights


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
        if (weights := self._for_native()) is not None:
            return cpu.encode_words(char_ids.cpu(), weights)
        # Ids are sorted on the host in NumPy: PyTorch would start OpenMP's threads, which then spin on the cores of the
        # LSTM. Groups of words of similar length are trimmed most.
        ids = self.trim(char_ids.cpu()).numpy()  # all words have many columns of pads, which would take long to sort
        order = np.count_nonzero(ids != self.shifted_pad, axis=1).argsort(kind="stable")
        at_once = WORDS_AT_ONCE.get(device.type, WORDS_AT_ONCE["cpu"])
        sorted_ids = torch.from_numpy(ids.take(order, axis=0))
        begins = range(0, max(1, len(order)), at_once)
        groups = [to_device(self.trim(sorted_ids[begin : begin + at_once]), device) for begin in begins]
        if self._is_training() or not cpu.is_available(self.char_embedding):
            return self.encode_groups(groups)[to_device(torch.from_numpy(order.argsort()), device)]
        # In the threads of the LSTM's directions, as OpenMP's threads of the caller would spin on their cores. They do
        # not wait for each other.
        num_threads = 2 if len(groups) >= GROUPS_FOR_TWO_THREADS else 1
        parts = [self.char_embedding.new_empty(0)] * num_threads

        def run(thread: int) -> None:
            if thread < num_threads:
                parts[thread] = self.encode_groups(groups[thread::num_threads])

        cpu.in_parallel(run, 2)
        places = [order[begin : begin + at_once] for begin in begins]
        computed = np.concatenate([place for thread in range(num_threads) for place in places[thread::num_threads]])
        return torch.cat(parts).index_select(0, torch.from_numpy(computed.argsort()))

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
        table = functional.pad(self.char_embedding, (0, 0, 1, 0))  # id 0 is a vector of zeros
        dtype = product_dtype(table)
        table = table.to(dtype)
        groups = [self._with_room(ids) for ids in groups]
        if self._is_training() or not table.is_cpu:
            bank = make_bank(convolutions, self.max_characters, dtype)
            maxima = [filter_maxima(ids, table, bank) for ids in groups]
        else:
            maxima = looked_up_maxima(groups, table, convolutions, self.max_characters)
        bias = torch.cat([layer.bias for layer in convolutions if layer.bias is not None])
        return torch.cat(maxima) + bias.to(dtype)

    def _for_native(self) -> cpu.WordEncoder | None:
        """The weights as the compiled library takes them, without gradients on a CPU; None where PyTorch computes."""
        if self._is_training() or not cpu.is_available(self.char_embedding):
            return None
        layers = [layer for highway in self.highways for layer in (highway.transform, highway.carry)]
        layers += [] if self.projection is None else [self.projection]
        linear = [layer.for_native() for layer in layers if isinstance(layer, HasNative)]
        found = [layer for layer in linear if layer is not None]
        if not layers or len(found) < len(layers):
            return None
        convolutions = [layer for layer in self.convolutions if isinstance(layer, nn.Conv1d)]
        num_paired = 2 * len(self.highways)
        return cpu.WordEncoder(
            characters=self.char_embedding,
            pad=self.shifted_pad,
            filters=[(layer.weight, layer.bias) for layer in convolutions if layer.bias is not None],
            is_tanh=self.activation == "tanh",
            highways=list(zip(found[0:num_paired:2], found[1:num_paired:2], strict=True)),
            projection=found[-1] if self.projection is not None else None,
        )

    def _is_training(self) -> bool:
        """Whether gradients are asked for."""
        return torch.is_grad_enabled() and any(parameter.requires_grad for parameter in self.parameters())

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
            char_ids: (N, C) shifted ids on the host.

        Returns:
            (N, C') with C' <= C.
        """
        used = np.flatnonzero((char_ids.numpy() != self.shifted_pad).any(axis=0))  # columns
        longest = int(used[-1]) + 1 if len(used) else 0
        return char_ids[:, : min(char_ids.shape[1], longest + self.widest)]


# ---- parts of encoders -----------------------------------------------------------------------------------------------


@runtime_checkable
class HasNative(Protocol):
    """A linear layer that the compiled library can compute."""

    def for_native(self) -> cpu.NativeLinear | None:
        """The layer as the library takes it; None where the library is not the fastest way."""


class Linear(nn.Linear):
    """An `nn.Linear` whose products are those of the engines."""

    def forward(self, input: Tensor) -> Tensor:
        """(N, in) -> (N, out)."""
        return kernels.linear(input, self.weight, self.bias)

    def for_native(self) -> cpu.NativeLinear | None:
        """See `HasNative`."""
        matrix = cpu.packed_linear(self.weight).for_native()
        return None if matrix is None else cpu.NativeLinear(matrix, self.bias)


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
