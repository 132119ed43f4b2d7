"""Words become context-free vectors: character convolutions, highways, projection; or a word table beside them.

Enters: shifted ids of words, (N, C) characters or (N, 1 + C) of a lexicon.  Leaves: vectors (N, P).

Legend of shapes: N words, C characters of a word, d width of a character vector, F filters, P projection.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from elmokit.network.devices import to_device
from elmokit.network.int8 import Int8Linear
from elmokit.text import NUM_CHARACTERS, Lexicon

WORDS_AT_ONCE = {"cpu": 64, "cuda": 4096}  # the windows of so many words stay in a CPU's cache, or fill a GPU


class CharacterEncoder(nn.Module):
    """Characters of a word -> its context-free vector: convolutions, max over positions, highways, projection."""

    def __init__(
        self,
        *,
        char_dim: int,
        filters: Sequence[tuple[int, int]],
        activation: str,
        num_highways: int,
        projection_dim: int | None,
        num_characters: int = NUM_CHARACTERS,
    ) -> None:
        super().__init__()
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
        """(N, C) shifted ids -> (N, P).  Ids may still be on the host: then nothing waits for a GPU."""
        device = self.char_embedding.device
        order = (char_ids != self.shifted_pad).sum(dim=1).argsort()  # words of one length together are trimmed the most
        at_once = WORDS_AT_ONCE.get(device.type, WORDS_AT_ONCE["cpu"])
        begins = range(0, max(1, len(order)), at_once)
        sorted_ids = char_ids[order]
        blocks = [self._maxima(to_device(self.trim(sorted_ids[begin : begin + at_once]), device)) for begin in begins]
        maxima = torch.cat(blocks)[to_device(order.argsort(), device)]  # (N, F)
        x = torch.relu(maxima) if self.activation == "relu" else torch.tanh(maxima)
        for highway in self.highways:
            x = highway(x)  # (N, F)
        if self.projection is not None:
            x = self.projection(x)  # (N, P)
        return x

    def _maxima(self, char_ids: Tensor) -> Tensor:
        """(N, C) -> (N, F): each filter's maximum over all positions, its windows the rows of one product.

        The maximum comes before the activation: both activations rise, so it is the same, and the work C times less.
        """
        table = functional.pad(self.char_embedding, (0, 0, 1, 0))  # id 0 reads as zeros
        x = functional.embedding(char_ids, table).flatten(1)  # (N, C d)
        maxima = []
        for convolution in self.convolutions:
            assert isinstance(convolution, nn.Conv1d)
            weight = convolution.weight.permute(2, 1, 0).flatten(0, 1)  # (w d, n)
            windows = x.unfold(1, len(weight), table.shape[1])  # (N, positions, w d)
            products = windows.reshape(-1, len(weight)) @ weight
            assert convolution.bias is not None
            maxima.append(products.view(*windows.shape[:2], weight.shape[1]).amax(dim=1) + convolution.bias)
        return torch.cat(maxima, dim=-1)

    def trim(self, char_ids: Tensor) -> Tensor:
        """Drop trailing columns that hold pads alone, and only so many that no maximum can change.

        Pads are not masked, so windows over pads count; but all windows of pads alone are equal, and one is enough.
        """
        columns = char_ids.shape[1]
        used = (char_ids != self.shifted_pad).any(dim=0).nonzero()
        longest = int(used[-1]) + 1 if len(used) else 0
        widest = max(c.kernel_size[0] for c in self.convolutions if isinstance(c, nn.Conv1d))
        return char_ids[:, : min(columns, longest + widest)]

    def quantize(self) -> None:
        """Keep the matrices of highways and projection as int8 alone."""
        for highway in self.highways:
            assert isinstance(highway, Highway)
            highway.transform, highway.carry = map(Int8Linear, (highway.transform, highway.carry))
        if self.projection is not None:
            self.projection = Int8Linear(self.projection)


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
    """A word's row in a table beside what its characters make of it, both projected: ELMoForManyLangs' token vector.

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

    def quantize(self) -> None:
        """Keep the matrices of all products as int8 alone."""
        if self.spelling is not None:
            self.spelling.quantize()
        self.projection = Int8Linear(self.projection)


def init_linear(linear: nn.Linear, *, bias: float = 0.0) -> nn.Linear:
    """N(0, 1/sqrt(fan_in)) and a constant bias, as published."""
    if not linear.weight.is_meta:  # normal_ on a meta tensor imports half of torch's compiler, for nothing
        nn.init.normal_(linear.weight, 0.0, 1.0 / math.sqrt(linear.in_features))
        nn.init.constant_(linear.bias, bias)
    return linear
