"""Tokens become the vectors that a task's network reads.

Input: sentences as token lists. Output: one vector x_k per token, which is its word vector, its characters and, as in
section 3.2 of Peters et al. (2018), ELMo's first mix; and ELMo's second mix, which a task adds to its RNN's output.
They come as all tokens in a row (`Tokens`) or as one row per sentence (`Embedded`).

Whether and where ELMo is added is decided here. A task's network only reads `inputs.input_dim` and `inputs.output_dim`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor, nn

from elmokit.model import ELMo
from elmokit.network import ScalarMix, to_device
from elmokit.tasks.layers import LockedDropout
from elmokit.tasks.vectors import FrozenLayers, StaticVectors
from elmokit.text import NUM_CHARACTERS, PAD, TREEBANK, Tokenizer, words_to_ids

CHARACTER_DIM = 25
CHARACTER_WINDOW = 3


@dataclass(frozen=True)
class Tokens:
    """The N tokens of all sentences in a row, dropout applied."""

    x: Tensor
    """(N, input_dim)."""
    output: Tensor
    """(N, output_dim): the second mix; output_dim is 0 without one."""


@dataclass(frozen=True)
class Embedded:
    """A batch of sentences, dropout applied. T is at least 1, even if no sentence has a token."""

    x: Tensor
    """(B, T, input_dim), zeros at padding."""
    mask: Tensor
    """(B, T) bool: True at tokens."""
    output: Tensor
    """(B, T, output_dim), for `torch.cat([rnn_output, embedded.output], -1)`; output_dim is 0 without a second mix."""


class Inputs(nn.Module):
    """The vectors of tokens.

    Args:
        words: Lowercase words that have a trained vector; all other words share one.
        word_dim: Width of trained word vectors; 0 for none.
        static: Word vectors that are not trained.
        char_dim: Width of the vector of a word's characters; 0 for none.
        elmo: A model with one mix (for the input) or two (for the output too), or its layers on disk. The mixes are
            trained with the task, and so is the biLM where it is not frozen.
        dropout: Dropout of word vectors and characters. That of ELMo's mixes is the model's own.
    """

    def __init__(
        self,
        *,
        words: Sequence[str],
        word_dim: int,
        static: StaticVectors | None,
        char_dim: int,
        elmo: ELMo | FrozenLayers | None,
        dropout: float,
    ) -> None:
        super().__init__()
        self._rows = {word: row for row, word in enumerate(words, start=1)}  # 0: any other word
        self.words = nn.Embedding(len(words) + 1, word_dim) if word_dim else None
        self.static = static
        self.characters = Characters(char_dim) if char_dim else None
        self.frozen = elmo if isinstance(elmo, FrozenLayers) else None
        self.elmo: ELMo | None = elmo.elmo if isinstance(elmo, FrozenLayers) else elmo
        self.dropout = LockedDropout(dropout)
        static_dim = static.dim if static is not None else 0
        elmo_dim, num_mixes = (0, 0) if self.elmo is None else (self.elmo.dim, len(self.elmo.mixes))
        self.input_dim = word_dim + static_dim + char_dim + elmo_dim
        self.output_dim = elmo_dim if num_mixes == 2 else 0
        self._device_holder: Tensor
        self.register_buffer("_device_holder", torch.empty(0), persistent=False)

    @property
    def device(self) -> torch.device:
        """The device of the network and of its tensors."""
        return self._device_holder.device

    @property
    def tokenizer(self) -> Tokenizer:
        """How text is tokenized: as the biLM was trained, or by the Penn Treebank rules without one."""
        return TREEBANK if self.elmo is None else self.elmo.tokenizer

    def forward(self, sentences: Sequence[Sequence[str]]) -> Embedded:
        """Embed B sentences.

        Args:
            sentences: Lists of tokens.

        Returns:
            Vectors, mask and second mix, one row per sentence.
        """
        tokens, mask = self.tokens(sentences), _mask(sentences)
        return Embedded(lay_out(tokens.x, mask), to_device(mask, self.device), lay_out(tokens.output, mask))

    def tokens(self, sentences: Sequence[Sequence[str]]) -> Tokens:
        """Embed sentences without padding.

        Args:
            sentences: Lists of tokens.

        Returns:
            The vectors of all tokens, one sentence after the other.
        """
        words = list(chain.from_iterable(sentences))
        distinct = {word: number for number, word in enumerate(dict.fromkeys(words))}
        places = torch.tensor([distinct[word] for word in words], dtype=torch.long)
        x = self._embed_words(list(distinct) or [""])[to_device(places, self.device)]  # (N, D)
        sentence_of_token = [number for number, tokens in enumerate(sentences) for _ in tokens]
        kept = self.dropout(x.new_ones(len(sentences), 1, x.shape[1])).squeeze(1)  # (B, D)
        x = x * kept[to_device(torch.tensor(sentence_of_token, dtype=torch.long), self.device)]
        if self.elmo is None:
            return Tokens(x, x.new_zeros(len(x), 0))
        layers = self._layers(sentences).unsqueeze(1)  # (L+1, 1, N, 2P)
        mask = torch.ones(1, len(x), dtype=torch.bool, device=self.device)
        mixes = [mix.squeeze(0) for mix in self.elmo.mix(layers, mask)]  # (N, 2P) each
        return Tokens(torch.cat([x, mixes[0]], dim=-1), mixes[1] if len(mixes) == 2 else x.new_zeros(len(x), 0))

    def _embed_words(self, words: list[str]) -> Tensor:
        """(N, D): the vectors that do not depend on the context, one row per distinct word."""
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
        """(L+1, N, 2P): the layers of the biLM, from disk where it is frozen."""
        if self.frozen is not None:
            return to_device(self.frozen.tokens(sentences), self.device).float()
        assert self.elmo is not None
        units = [[self.elmo.tokenizer.units(token) for token in tokens] for tokens in sentences]
        sizes = torch.tensor([len(own) for tokens in units for own in tokens], dtype=torch.long)
        read = [list(chain.from_iterable(tokens)) for tokens in units]
        layers: Tensor = self.elmo.bilm(to_device(self.elmo.to_ids(read), self.device)).layers  # (L+1, B, T, 2P)
        places = _mask(read)[:, : layers.shape[2]].flatten().nonzero().squeeze(1)
        vectors = layers.flatten(1, 2).index_select(1, to_device(places, self.device))
        if len(sizes) == len(places):
            return vectors
        # words that the biLM reads as several characters, as in `ELMo.embed`
        last = sizes.cumsum(0) - 1
        last, first = to_device(torch.stack([last, last - sizes + 1]), self.device)
        width = vectors.shape[2] // 2
        return torch.cat([vectors[:, last, :width], vectors[:, first, width:]], dim=2)

    def mix_l2(self) -> Tensor:
        """Sum of squares of the mixes' layer weights."""
        return torch.zeros((), device=self.device) if self.elmo is None else self.elmo.mix_l2()

    def mix_weights(self) -> list[list[float]]:
        """The learned weights of the layers, which add up to 1, for each mix."""
        if self.elmo is None:
            return []
        return [mix.weights.softmax(dim=0).tolist() for mix in self.elmo.mixes if isinstance(mix, ScalarMix)]


def lay_out(tokens: Tensor, mask: Tensor) -> Tensor:
    """Lay out tokens in rows.

    Args:
        tokens: (N, D), the tokens of all rows, one row after the other.
        mask: (B, T) bool on the host, True at the N tokens.

    Returns:
        (B, T, D), zeros where the mask is False.
    """
    rows = tokens.new_zeros(mask.numel(), tokens.shape[1])
    if tokens.numel():
        places = to_device(mask.flatten().nonzero().squeeze(1), tokens.device)
        rows = rows.index_copy(0, places, tokens)
    return rows.view(*mask.shape, tokens.shape[1])


def _mask(sentences: Sequence[Sequence[str]]) -> Tensor:
    """(B, T) bool, on the host: True at tokens."""
    lengths = torch.tensor([len(tokens) for tokens in sentences], dtype=torch.long)
    return torch.arange(max([1, *map(len, sentences)])) < lengths.unsqueeze(1)


class Characters(nn.Module):
    """The characters of a word -> a vector: one convolution, and its maximum over the positions.

    Args:
        dim: Width of the vector.
    """

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
        x = torch.relu(self.convolution(x.transpose(1, 2)))  # (N, dim, positions)
        # Windows that reach beyond the end of a word depend on the longest word of the batch, so they do not count,
        # except the first window of a word that is shorter than a window.
        last = (lengths - CHARACTER_WINDOW).clamp(min=0)
        counts = torch.arange(x.shape[2]) <= last.unsqueeze(1)  # (N, positions)
        return (x * to_device(counts, x.device).unsqueeze(1)).amax(dim=2)
