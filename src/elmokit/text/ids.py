"""Words as the ids that a biLM reads: one protocol, three implementations.

Input: words.  Output: shifted ids: each is one higher than its row of the embedding table, because 0 is padding.

    CharacterIds  (N, C)      UTF-8 bytes of each word, as in the published models
    TableIds      (N,)        row of each word in a table: word-level models
    LexiconIds    (N, 1 + C)  row of the word, then of its characters: ELMoForManyLangs

A biLM knows the sizes only (`word_ids_of_sizes`); a model also knows the words (`make_word_ids`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from elmokit.config import BiLMConfig
from elmokit.progress import format_count
from elmokit.text.characters import BOS_TOKEN, EOS_TOKEN, NUM_CHARACTERS, words_to_ids
from elmokit.text.lexicon import Lexicon, lexicon_boundaries
from elmokit.text.vocabulary import Vocabulary

Ids = npt.NDArray[np.int64]


class WordIds(Protocol):
    """How words become ids."""

    @property
    def num_columns(self) -> int | None:
        """Number of ids per word; None if a word is a single id."""
        ...

    @property
    def limits(self) -> tuple[tuple[slice, int], ...]:
        """(columns, largest id in these columns)."""
        ...

    @property
    def boundaries(self) -> Ids:
        """Ids of <S> and </S>: (2, C), (2,) or (2, 1 + C)."""
        ...

    @property
    def known(self) -> list[Any]:
        """The words and characters that ids depend on, as JSON values: part of a model's digest."""
        ...

    def describe(self) -> str:
        """A description for users: "characters", "60,003 words"."""
        ...

    def ids(self, words: Sequence[str]) -> Ids:
        """Ids of N words: (N, C), (N,) or (N, 1 + C)."""
        ...


@dataclass(frozen=True)
class CharacterIds:
    """Words are read as UTF-8 bytes."""

    max_characters: int

    @property
    def num_columns(self) -> int | None:
        return self.max_characters

    @property
    def limits(self) -> tuple[tuple[slice, int], ...]:
        return ((slice(None), NUM_CHARACTERS),)

    @property
    def boundaries(self) -> Ids:
        return self.ids([BOS_TOKEN, EOS_TOKEN])

    @property
    def known(self) -> list[Any]:
        return []

    def describe(self) -> str:
        return "characters"

    def ids(self, words: Sequence[str]) -> Ids:
        return np.add(words_to_ids(words, max_characters=self.max_characters), 1, dtype=np.int64)


@dataclass(frozen=True)
class TableIds:
    """Words are rows of a table, in the order of the vocabulary."""

    num_words: int
    bos_id: int
    eos_id: int
    vocabulary: Vocabulary | None = None

    @property
    def num_columns(self) -> int | None:
        return None

    @property
    def limits(self) -> tuple[tuple[slice, int], ...]:
        return ((slice(None), self.num_words),)

    @property
    def boundaries(self) -> Ids:
        return np.array([self.bos_id + 1, self.eos_id + 1])

    @property
    def known(self) -> list[Any]:
        return [] if self.vocabulary is None else [self.vocabulary.words]

    def describe(self) -> str:
        return format_count(self.num_words, "word")

    def ids(self, words: Sequence[str]) -> Ids:
        if self.vocabulary is None:
            raise ValueError("a word-level biLM does not know its words: use ELMo.to_ids")
        return self.vocabulary.ids(words).astype(np.int64) + 1


@dataclass(frozen=True)
class LexiconIds:
    """Words and their characters are rows of tables, in the order of a lexicon."""

    max_characters: int
    num_characters: int
    num_words: int
    lexicon: Lexicon | None = None

    @property
    def num_columns(self) -> int | None:
        return 1 + self.max_characters

    @property
    def limits(self) -> tuple[tuple[slice, int], ...]:
        largest_word = self.num_words + Lexicon.NUM_SPECIAL_WORDS
        return (slice(0, 1), largest_word), (slice(1, None), self.num_characters + Lexicon.NUM_MARKS)

    @property
    def boundaries(self) -> Ids:
        return lexicon_boundaries(self.num_characters, max_characters=self.max_characters) + 1

    @property
    def known(self) -> list[Any]:
        return [] if self.lexicon is None else [self.lexicon.characters, self.lexicon.words]

    def describe(self) -> str:
        return _lexicon_sizes(self.num_characters, self.num_words)

    def ids(self, words: Sequence[str]) -> Ids:
        if self.lexicon is None:
            raise ValueError("this biLM does not know the characters of its lexicon: use ELMo.to_ids")
        return self.lexicon.ids(words, max_characters=self.max_characters) + 1


def make_word_ids(
    config: BiLMConfig, vocabulary: Vocabulary | None = None, lexicon: Lexicon | None = None, *, source: str = "ELMo"
) -> WordIds:
    """Make the `WordIds` of a model, and check that its words fit the config.

    Args:
        config: Sizes of the biLM.
        vocabulary: Words of a word-level model. A model that reads characters ignores it.
        lexicon: Characters and words of a model with a lexicon of its own; None for other models.
        source: Where the words come from, for error messages.

    Raises:
        ValueError: If the model needs words that are missing, or their number differs from the config's.
    """
    expected = None
    if config.num_lexicon_characters is not None:
        expected = _lexicon_sizes(config.num_lexicon_characters, config.num_lexicon_words)
    actual = None if lexicon is None else _lexicon_sizes(len(lexicon.characters), len(lexicon.words))
    if actual != expected:
        raise ValueError(f"{source}: a lexicon of {actual or 'nothing'}, the model asks for {expected or 'none'}")
    if config.num_words is not None and (vocabulary is None or len(vocabulary) != config.num_words):
        problem = "it is missing" if vocabulary is None else f"this one has {format_count(len(vocabulary), 'word')}"
        size = format_count(config.num_words, "word")
        raise ValueError(f"{source}: a word-level model of {size} needs its vocabulary: {problem}")
    return _make(config, vocabulary, lexicon)


def word_ids_of_sizes(config: BiLMConfig) -> WordIds:
    """The `WordIds` of a biLM, which does not know its words: boundaries and limits only."""
    return _make(config, None, None)


def _lexicon_sizes(num_characters: int, num_words: int) -> str:
    return f"{format_count(num_characters, 'character')} and {format_count(num_words, 'word')}"


def _make(config: BiLMConfig, vocabulary: Vocabulary | None, lexicon: Lexicon | None) -> WordIds:
    if config.num_words is not None:
        return TableIds(config.num_words, config.bos_id, config.eos_id, vocabulary)
    if config.num_lexicon_characters is not None:
        return LexiconIds(config.max_characters, config.num_lexicon_characters, config.num_lexicon_words, lexicon)
    return CharacterIds(config.max_characters)
