"""Tokens become what a task's network reads.

Enters: sentences as token lists.  Leaves: for each token x_k, which is its static or trained word vector, its
characters and, as in section 3.2 of Peters et al. (2018), ELMo's vector; and beside it the second mix, for a task to
join to its RNN's output.  They come as all tokens in a row (`Tokens`) or as a row for each sentence (`Embedded`).
Whether and where ELMo joins is decided here: a task's network reads `inputs.input_dim` and `inputs.output_dim` and does
not ask.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from elmokit.model import ELMo
from elmokit.network import ScalarMix, to_device
from elmokit.tasks.layers import LockedDropout
from elmokit.tasks.vectors import FrozenLayers, StaticVectors
from elmokit.text import NUM_CHARACTERS, PAD, as_tokens, words_to_ids

CHARACTER_DIM = 25
CHARACTER_WINDOW = 3


@dataclass(frozen=True)
class Tokens:
    """The N tokens of all sentences in a row, dropout applied."""

    x: Tensor
    """(N, input_dim)."""
    output: Tensor
    """(N, output_dim): the second mix; of width 0 without one."""


@dataclass(frozen=True)
class Embedded:
    """A batch of sentences, dropout applied.  T is at least 1, also where no sentence has a token."""

    x: Tensor
    """(B, T, input_dim), zeros at padding."""
    mask: Tensor
    """(B, T) bool: True where a token stands."""
    output: Tensor
    """(B, T, output_dim): for `torch.cat([rnn_output, embedded.output], -1)`; of width 0 without a second mix."""


def read_tokens(given: Any) -> list[str]:
    """What a user gave as one sentence: a string, a list of tokens, or a mapping with one of them as text or tokens."""
    if isinstance(given, Mapping):
        if len(given) != 1 or not set(given) <= {"text", "tokens"}:
            raise ValueError(f'{dict(given)!r:.100}: expected a sentence as {{"text": …}} or {{"tokens": […]}}')
        given = next(iter(given.values()))
    return as_tokens([given])[0]


class Inputs(nn.Module):
    """The vectors of tokens, as a task's config asks for them; built by the trainer."""

    def __init__(
        self,
        *,
        words: Sequence[str],
        word_dim: int,
        static: StaticVectors | None,
        char_dim: int,
        elmo: FrozenLayers | ELMo | None,
        num_mixes: int,
        dropout: float,
        elmo_dropout: float,
    ) -> None:
        """`words` (in small letters) have trained vectors of `word_dim`; an `ELMo` is trained too."""
        super().__init__()
        self._rows = {word: row for row, word in enumerate(words, start=1)}  # 0: any other word
        self.words = nn.Embedding(len(words) + 1, word_dim) if word_dim else None
        self.static = static
        self.characters = Characters(char_dim) if char_dim else None
        self.frozen = elmo if isinstance(elmo, FrozenLayers) else None
        self.elmo = elmo if isinstance(elmo, ELMo) else None
        elmo_dim, num_layers = 0, 0
        if self.frozen is not None:
            elmo_dim, num_layers = self.frozen.dim, self.frozen.num_layers
        elif self.elmo is not None:
            elmo_dim, num_layers = 2 * self.elmo.config.projection_dim, self.elmo.config.num_layers + 1
        self.mixes = nn.ModuleList(ScalarMix(num_layers) for _ in range(num_mixes))
        self.dropout, self.elmo_dropout = LockedDropout(dropout), nn.Dropout(elmo_dropout)
        static_dim = static.dim if static is not None else 0
        self.input_dim = word_dim + static_dim + char_dim + (elmo_dim if num_mixes else 0)
        self.output_dim = elmo_dim if num_mixes == 2 else 0
        self._device_holder: Tensor
        self.register_buffer("_device_holder", torch.empty(0), persistent=False)

    @property
    def device(self) -> torch.device:
        """Where the network is, and where its tensors should be made."""
        return self._device_holder.device

    def forward(self, sentences: Sequence[Sequence[str]]) -> Embedded:
        """Token lists -> vectors, mask and the second mix."""
        tokens, mask = self.tokens(sentences), _mask(sentences)
        return Embedded(lay_out(tokens.x, mask), to_device(mask, self.device), lay_out(tokens.output, mask))

    def tokens(self, sentences: Sequence[Sequence[str]]) -> Tokens:
        """Token lists -> the vectors of their tokens, one sentence behind the other: no padding to pay for."""
        words = list(chain.from_iterable(sentences))
        distinct = {word: number for number, word in enumerate(dict.fromkeys(words))}
        places = torch.tensor([distinct[word] for word in words], dtype=torch.long)
        x = self._embed_words(list(distinct) or [""])[to_device(places, self.device)]  # (N, D)
        of_sentence = [number for number, tokens in enumerate(sentences) for _ in tokens]
        kept = self.dropout(x.new_ones(len(sentences), 1, x.shape[1])).squeeze(1)  # (B, D)
        x = x * kept[to_device(torch.tensor(of_sentence, dtype=torch.long), self.device)]
        if not len(self.mixes):
            return Tokens(x, x.new_zeros(len(x), 0))
        layers = self._layers(sentences).unsqueeze(1)  # (L+1, 1, N, 2P)
        everywhere = torch.ones(1, len(x), dtype=torch.bool, device=self.device)
        mixed = [self.elmo_dropout(mix(layers, everywhere).squeeze(0)) for mix in self.mixes]
        return Tokens(torch.cat([x, mixed[0]], dim=-1), mixed[1] if len(mixed) == 2 else x.new_zeros(len(x), 0))

    def _embed_words(self, words: list[str]) -> Tensor:
        """(N, D): what does not depend on the context, once for each distinct word."""
        parts = [torch.zeros(len(words), 0, device=self.device)]
        if self.words is not None:
            rows = torch.tensor([self._rows.get(word.lower(), 0) for word in words])
            parts.append(self.words(to_device(rows, self.device)))
        if self.static is not None:
            parts.append(to_device(torch.from_numpy(self.static.lookup(words)), self.device))
        if self.characters is not None:
            parts.append(self.characters(words))
        return torch.cat(parts, dim=-1)

    def _layers(self, sentences: Sequence[Sequence[str]]) -> Tensor:
        """(L+1, N, 2P)."""
        if self.frozen is not None:
            return to_device(self.frozen.tokens(sentences), self.device).float()
        assert self.elmo is not None
        layers: Tensor = self.elmo.bilm(to_device(self.elmo.to_ids(sentences), self.device)).layers  # (L+1, B, T, 2P)
        places = _mask(sentences)[:, : layers.shape[2]].flatten().nonzero().squeeze(1)
        return layers.flatten(1, 2).index_select(1, to_device(places, self.device))

    def mix_l2(self) -> Tensor:
        """Sum of squares of the mixes' layer weights."""
        zero = torch.zeros((), device=self.device)
        return sum((mix.l2() for mix in self.mixes if isinstance(mix, ScalarMix)), zero)

    def mix_weights(self) -> list[list[float]]:
        """The learned share of each layer, mix by mix."""
        return [mix.weights.softmax(dim=0).tolist() for mix in self.mixes if isinstance(mix, ScalarMix)]


def lay_out(tokens: Tensor, mask: Tensor) -> Tensor:
    """(N, D), and a mask (B, T) on the host with N places -> (B, T, D): one after the other, zeros elsewhere."""
    rows = tokens.new_zeros(mask.numel(), tokens.shape[1])
    if tokens.numel():
        places = to_device(mask.flatten().nonzero().squeeze(1), tokens.device)
        rows = rows.index_copy(0, places, tokens)
    return rows.view(*mask.shape, tokens.shape[1])


def _mask(sentences: Sequence[Sequence[str]]) -> Tensor:
    """(B, T) bool, on the host: True where a token stands."""
    lengths = torch.tensor([len(tokens) for tokens in sentences], dtype=torch.long)
    return torch.arange(max([1, *map(len, sentences)])) < lengths.unsqueeze(1)


class Characters(nn.Module):
    """The characters of a word -> a vector: one convolution, and its maximum over the places."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(NUM_CHARACTERS, CHARACTER_DIM)
        self.convolution = nn.Conv1d(CHARACTER_DIM, dim, CHARACTER_WINDOW)

    def forward(self, words: Sequence[str]) -> Tensor:
        """N words -> (N, dim)."""
        ids = torch.from_numpy(words_to_ids(words)).long()
        lengths = (ids != PAD).sum(dim=1)
        ids = ids[:, : max(int(lengths.max()), CHARACTER_WINDOW)]
        x = self.embedding(to_device(ids, self.embedding.weight.device))  # (N, C, d)
        x = torch.relu(self.convolution(x.transpose(1, 2)))  # (N, dim, places)
        # a window that reaches behind the word's end is there or not with the longest word of the batch: none counts,
        # but for the first one of a word that is shorter than a window
        last = (lengths - CHARACTER_WINDOW).clamp(min=0)
        counts = torch.arange(x.shape[2]) <= last.unsqueeze(1)  # (N, places)
        return (x * to_device(counts, x.device).unsqueeze(1)).amax(dim=2)
