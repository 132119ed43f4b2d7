"""How words become the ids that a biLM reads: one protocol, three implementations.

Input: words.  Output: ids, each one higher than the row of the table that it names, because 0 is padding:

    CharacterIds  (N, C)      UTF-8 bytes of each word, as in the published models
    TableIds      (N,)        the row of each word in a table: word-level models
    LexiconIds    (N, 1 + C)  the word's row, then those of its characters: ELMoForManyLangs

A biLM makes its reader from the sizes in its config; a model adds the words (`make_word_ids`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from elmokit.config import BiLMConfig
from elmokit.text.characters import BOS_TOKEN, EOS_TOKEN, NUM_CHARACTERS, words_to_ids
from elmokit.text.lexicon import Lexicon, lexicon_boundaries
from elmokit.text.vocabulary import Vocabulary

Ids = npt.NDArray[np.int64]


class WordIds(Protocol):
    """What a biLM and everything before it need to know about ids."""

    @property
    def num_columns(self) -> int | None:
        """Number of ids per word; None where a word is one id."""
        ...

    @property
    def limits(self) -> tuple[tuple[slice, int], ...]:
        """Columns, and the largest id that each of them may hold."""
        ...

    @property
    def boundaries(self) -> Ids:
        """Ids of <S> and </S>: (2, C), (2,) or (2, 1 + C)."""
        ...

    @property
    def known(self) -> list[Any]:
        """What the ids depend on beside the sizes, as JSON values: part of a model's digest."""
        ...

    def describe(self) -> str:
        """What is read, in words: "characters", "60,003 words"."""
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
        return words_to_ids(words, max_characters=self.max_characters).astype(np.int64) + 1


@dataclass(frozen=True)
class TableIds:
    """Words are rows of a table, by their place in the vocabulary."""

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
        return f"{self.num_words:,} words"

    def ids(self, words: Sequence[str]) -> Ids:
        if self.vocabulary is None:
            raise ValueError("a word-level biLM does not know its words: use ELMo.to_ids")
        return self.vocabulary.ids(words).astype(np.int64) + 1


@dataclass(frozen=True)
class LexiconIds:
    """Words and their characters are rows of tables, by their place in a lexicon."""

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
        return f"{self.num_characters:,} characters and {self.num_words:,} words"

    def ids(self, words: Sequence[str]) -> Ids:
        if self.lexicon is None:
            raise ValueError("this biLM does not know the characters of its lexicon: use ELMo.to_ids")
        return self.lexicon.ids(words, max_characters=self.max_characters) + 1


def make_word_ids(
    config: BiLMConfig, vocabulary: Vocabulary | None = None, lexicon: Lexicon | None = None, *, source: str = "ELMo"
) -> WordIds:
    """Make the reader that a config asks for, and check that the words fit its sizes.

    Args:
        config: Sizes of the biLM.
        vocabulary: Words of a word-level model. A model that reads characters ignores it.
        lexicon: Characters and words of a model with a lexicon of its own; no other model has one.
        source: Where the words come from, for error messages.

    Raises:
        ValueError: If the model needs words that are missing, or their number differs from the config's.
    """
    wanted = None
    if config.num_lexicon_characters is not None:
        wanted = f"{config.num_lexicon_characters} characters and {config.num_lexicon_words} words"
    held = None if lexicon is None else f"{len(lexicon.characters)} characters and {len(lexicon.words)} words"
    if held != wanted:
        raise ValueError(f"{source}: a lexicon of {held or 'nothing'}, the model asks for {wanted or 'none'}")
    if config.num_words is not None and (vocabulary is None or len(vocabulary) != config.num_words):
        came = "it is missing" if vocabulary is None else f"this one has {len(vocabulary)} words"
        raise ValueError(f"{source}: a word-level model of {config.num_words} words needs its vocabulary: {came}")
    return _make(config, vocabulary, lexicon)


def word_ids_of_sizes(config: BiLMConfig) -> WordIds:
    """The reader of a biLM that does not know its words: boundaries and limits only."""
    return _make(config, None, None)


def _make(config: BiLMConfig, vocabulary: Vocabulary | None, lexicon: Lexicon | None) -> WordIds:
    if config.num_words is not None:
        return TableIds(config.num_words, config.bos_id, config.eos_id, vocabulary)
    if config.num_lexicon_characters is not None:
        return LexiconIds(config.max_characters, config.num_lexicon_characters, config.num_lexicon_words, lexicon)
    return CharacterIds(config.max_characters)
