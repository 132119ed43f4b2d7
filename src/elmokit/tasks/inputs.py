"""Tokens become the vectors that a task's network reads.

Input: sentences as token lists. Output: one vector x_k per token, which is its word vector, its characters and, as in
section 3.2 of Peters et al. (2018), ELMo's first mix; and ELMo's second mix, which a task adds to its RNN's output.
The host collects what a batch needs (`Collected`), and the device computes the vectors from it (`Embedded`).

Whether and where ELMo is added is decided here. A task's network only reads `inputs.input_dim` and `inputs.output_dim`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor, nn

from elmokit.model import ELMo
from elmokit.network import ScalarMix
from elmokit.tasks.batches import fill_up, on_device, round_up
from elmokit.tasks.layers import LockedDropout
from elmokit.tasks.vectors import FrozenLayers, StaticVectors
from elmokit.text import NUM_CHARACTERS, PAD, TREEBANK, Tokenizer, words_to_ids

CHARACTER_DIM = 25
CHARACTER_WINDOW = 3


@dataclass(frozen=True)
class Read:
    """What a biLM reads that is not frozen."""

    ids: Tensor
    """(S, T, …), as `ELMo.to_ids` returns them."""
    last: Tensor
    """(N,): the place of each token in the flattened (S, T); of its last unit if the biLM reads it as several."""
    first: Tensor | None
    """(N,): the place of its first unit; None if every token is one unit."""


@dataclass(frozen=True)
class Collected:
    """What the host collects of B rows: N tokens in all, of S sentences, with U distinct words.

    `Inputs.collect` makes it, and `Inputs.embed` computes the vectors from it. If the sizes are rounded up, the last
    tokens, sentences and words belong to no row.
    """

    words: Tensor
    """(N,): which of the distinct words a token is. The tokens are in the order of the rows."""
    sentences: Tensor
    """(N,): the sentence of a token."""
    is_token: Tensor
    """(1, N) bool: False at tokens that belong to no row."""
    num_sentences: int
    """S."""
    trained: Tensor | None
    """(U,): the row of a word in the table of trained vectors."""
    static: Tensor | None
    """(U, dim): the vector of a word that is not trained."""
    characters: Tensor | None
    """(U, C): the characters of a word, from `spell`."""
    layers: Tensor | None
    """(L+1, N, 2P), float16: the layers of a frozen biLM."""
    read: Read | None
    """What a biLM reads that is not frozen."""
    places: Tensor
    """(B, T): which of the N tokens is here; any at padding."""
    mask: Tensor
    """(B, T) bool: True at tokens. T is at least 1, even if no row has a token."""


@dataclass(frozen=True)
class Embedded:
    """The vectors of a batch, dropout applied."""

    x: Tensor
    """(B, T, input_dim), zeros at padding."""
    mask: Tensor
    """(B, T) bool: True at tokens. T is at least 1, even if no row has a token."""
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
        return self.embed(on_device(self.collect(sentences), self.device))

    def collect(
        self,
        sentences: Sequence[Sequence[str]],
        spans: Sequence[tuple[int, int]] | None = None,
        *,
        rounded: bool = False,
    ) -> Collected:
        """Collect what `embed` reads.

        Args:
            sentences: S lists of tokens.
            spans: The tokens of each row, as (start, end) in the tokens of all sentences; None: a row is a sentence.
            rounded: Round the sizes up, so that few different ones occur.

        Returns:
            Tensors on the host.
        """
        words = list(chain.from_iterable(sentences))
        sentence_of = [number for number, tokens in enumerate(sentences) for _ in tokens]
        every = list(range(len(words)))
        lengths, chosen = list(map(len, sentences)), every
        if spans is not None:
            lengths = [end - start for start, end in spans]
            chosen = list(chain.from_iterable(range(start, end) for start, end in spans))
        forms = list(dict.fromkeys(words)) or [""]
        longest, num_tokens, num_sentences, num_forms = max([1, *lengths]), len(chosen), len(sentences), len(forms)
        if rounded:
            longest, num_sentences = round_up(longest, 8), round_up(num_sentences, 32)
            num_tokens, num_forms = longest * len(lengths), 1 << max(6, (num_forms - 1).bit_length())
        row_of = {form: row for row, form in enumerate(forms)}
        sizes, steps = torch.tensor(lengths, dtype=torch.long).unsqueeze(1), torch.arange(longest)
        is_live = self.elmo is not None and self.frozen is None
        layers = None
        if self.frozen is not None:
            layers = self.frozen.tokens(sentences, None if chosen == every else chosen, num_tokens)
        return Collected(
            words=fill_up(torch.tensor([row_of[words[token]] for token in chosen], dtype=torch.long), num_tokens),
            sentences=fill_up(torch.tensor([sentence_of[token] for token in chosen], dtype=torch.long), num_tokens),
            is_token=(torch.arange(num_tokens) < len(chosen)).unsqueeze(0),
            num_sentences=num_sentences,
            trained=fill_up(self._look_up(forms), num_forms) if self.words is not None else None,
            static=fill_up(torch.from_numpy(self.static.lookup(forms)), num_forms) if self.static is not None else None,
            characters=fill_up(spell(forms, rounded=rounded), num_forms, PAD) if self.characters is not None else None,
            layers=layers,
            read=self._read(sentences, chosen) if is_live else None,
            places=(sizes.cumsum(0) - sizes + steps).clamp(max=num_tokens - 1),
            mask=steps < sizes,
        )

    def embed(self, batch: Collected) -> Embedded:
        """Compute the vectors of a batch that is on the device.

        Args:
            batch: What `collect` returned. Nothing else of the host is read, unless the biLM is trained.

        Returns:
            Vectors, mask and second mix, one row per row of the batch.
        """
        x = self._embed_words(batch)  # (N, D)
        kept = self.dropout(x.new_ones(batch.num_sentences, 1, x.shape[1])).squeeze(1)  # (S, D)
        x, output = x * kept[batch.sentences], x.new_zeros(len(x), 0)
        if self.elmo is not None:
            mixes = self.elmo.mix(self._layers(batch).unsqueeze(1), batch.is_token)  # (1, N, 2P) each
            x = torch.cat([x, mixes[0].squeeze(0)], dim=-1)
            output = mixes[1].squeeze(0) if len(mixes) == 2 else output
        return Embedded(_lay_out(x, batch), batch.mask, _lay_out(output, batch))

    def _look_up(self, forms: Sequence[str]) -> Tensor:
        """(U,): the rows of words in the table of trained vectors."""
        return torch.tensor([self._rows.get(form.lower(), 0) for form in forms])

    def _embed_words(self, batch: Collected) -> Tensor:
        """(N, D): the vectors that do not depend on the context."""
        parts = []
        if self.words is not None:
            parts.append(self.words(batch.trained))
        if batch.static is not None:
            parts.append(batch.static.to(self._device_holder.dtype))
        if self.characters is not None:
            parts.append(self.characters(batch.characters))
        if not parts:
            return self._device_holder.new_zeros(len(batch.words), 0)
        return torch.cat(parts, dim=-1)[batch.words]

    def _read(self, sentences: Sequence[Sequence[str]], chosen: Sequence[int]) -> Read:
        """What the biLM reads, and where it finds the chosen tokens of all sentences in it."""
        assert self.elmo is not None
        units = [[self.elmo.tokenizer.units(token) for token in tokens] for tokens in sentences]
        read = [list(chain.from_iterable(tokens)) for tokens in units]
        ids = self.elmo.to_ids(read)
        lengths = torch.tensor(list(map(len, read)), dtype=torch.long).unsqueeze(1)
        places = (torch.arange(ids.shape[1]) < lengths).flatten().nonzero().squeeze(1)
        # words that the biLM reads as several characters, as in `ELMo.embed`
        sizes = torch.tensor([len(own) for tokens in units for own in tokens], dtype=torch.long)
        last = (sizes.cumsum(0) - 1)[chosen]
        first = None if len(sizes) == len(places) else places[last - sizes[chosen] + 1]
        return Read(ids, places[last], first)

    def _layers(self, batch: Collected) -> Tensor:
        """(L+1, N, 2P): the layers of the biLM."""
        if batch.layers is not None:
            return batch.layers.to(self._device_holder.dtype)
        assert self.elmo is not None
        assert batch.read is not None
        layers = self.elmo.bilm(batch.read.ids).layers.flatten(1, 2)  # (L+1, S * T, 2P)
        vectors: Tensor = layers.index_select(1, batch.read.last)
        if batch.read.first is None:
            return vectors
        width = vectors.shape[2] // 2
        return torch.cat([vectors[:, :, :width], layers.index_select(1, batch.read.first)[:, :, width:]], dim=2)

    def mix_l2(self) -> Tensor:
        """Sum of squares of the mixes' layer weights."""
        return torch.zeros((), device=self.device) if self.elmo is None else self.elmo.mix_l2()

    def mix_weights(self) -> list[list[float]]:
        """The learned weights of the layers, which add up to 1, for each mix."""
        if self.elmo is None:
            return []
        return [mix.weights.softmax(dim=0).tolist() for mix in self.elmo.mixes if isinstance(mix, ScalarMix)]


def _lay_out(tokens: Tensor, batch: Collected) -> Tensor:
    """(N, D) -> (B, T, D): the tokens of each row, zeros at padding."""
    shape = (*batch.mask.shape, tokens.shape[1])
    if not len(tokens):
        return tokens.new_zeros(shape)
    return tokens.index_select(0, batch.places.flatten()).view(shape) * batch.mask.unsqueeze(-1)


class Characters(nn.Module):
    """The characters of a word -> a vector: one convolution, and its maximum over the positions.

    Args:
        dim: Width of the vector.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(NUM_CHARACTERS, CHARACTER_DIM)
        self.convolution = nn.Conv1d(CHARACTER_DIM, dim, CHARACTER_WINDOW)

    def forward(self, ids: Tensor) -> Tensor:
        """(N, C), from `spell` -> (N, dim)."""
        x = self.embedding(ids.long())  # (N, C, d)
        x = torch.relu(self.convolution(x.transpose(1, 2)))  # (N, dim, positions)
        # Windows that reach beyond the end of a word depend on the longest word of the batch, so they do not count,
        # except the first window of a word that is shorter than a window.
        last = ((ids != PAD).sum(dim=1, keepdim=True) - CHARACTER_WINDOW).clamp(min=0)
        counts = torch.arange(x.shape[2], device=x.device) <= last  # (N, positions)
        return (x * counts.unsqueeze(1)).amax(dim=2)


def spell(words: Sequence[str], *, rounded: bool = False) -> Tensor:
    """The characters of N words, for `Characters`.

    Args:
        words: The words.
        rounded: Round C up, so that few different ones occur.

    Returns:
        (N, C), int16, on the host; PAD after the end of a word.
    """
    ids = torch.from_numpy(words_to_ids(words))
    longest = max(int((ids != PAD).sum(dim=1).max()), CHARACTER_WINDOW)
    return ids[:, : round_up(longest, 16) if rounded else longest]
