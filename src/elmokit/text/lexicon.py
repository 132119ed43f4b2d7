"""Words as ids of a model's own lexicon of characters and words (ELMoForManyLangs).

Input: words.  Output: one row of ids per word: the id of the word, then the ids of its characters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from elmokit.text.characters import BOS_TOKEN, EOS_TOKEN, MAX_CHARACTERS


class Lexicon:
    """The characters and words of a model that does not read words as UTF-8 bytes.

    Rows of the character table: the characters, then six marks: unknown, <S>, </S>, begin of word, end of word, pad.
    Rows of the word table: unknown, <S>, </S>, then the words. The sentence boundaries are `<S>` and `</S>`, or `<bos>`
    and `<eos>`, as such models name them.

    Args:
        characters: Distinct characters.
        words: Distinct words.

    Raises:
        ValueError: If a character or a word occurs twice, or a character is longer than one.
    """

    NUM_MARKS: Final = 6
    NUM_SPECIAL_WORDS: Final = 3

    def __init__(self, characters: Iterable[str], words: Iterable[str] = ()) -> None:
        self.characters, self.words = tuple(characters), tuple(words)
        self._characters = {character: row for row, character in enumerate(self.characters)}
        self._words = {word: row for row, word in enumerate(self.words, self.NUM_SPECIAL_WORDS)}
        for name, items, rows in (("character", self.characters, self._characters), ("word", self.words, self._words)):
            if len(rows) < len(items):
                duplicate = next(item for item, count in Counter(items).items() if count > 1)
                raise ValueError(f"the {name} {duplicate!r} occurs twice: a lexicon has each {name} once")
        for character in self.characters:
            if len(character) != 1:
                raise ValueError(f"{character!r} is not a single character")

    def ids(self, words: Sequence[str], *, max_characters: int = MAX_CHARACTERS) -> npt.NDArray[np.int64]:
        """Ids of words, counted from 0. Words are truncated to `max_characters` - 2 characters, as in training.

        Args:
            words: N words.
            max_characters: Number of character ids per word.

        Returns:
            (N, 1 + max_characters): the row of the word, then those of its characters.
        """
        unknown, _, _, begin, end, pad = range(len(self.characters), len(self.characters) + self.NUM_MARKS)
        ids = np.full((len(words), 1 + max_characters), pad, np.int64)
        boundaries = lexicon_boundaries(len(self.characters), max_characters=max_characters)
        for row, word in zip(ids, words, strict=True):
            if word in _LEXICON_BOUNDARIES:
                row[:] = boundaries[_LEXICON_BOUNDARIES[word]]
                continue
            word = word[: max_characters - 2]
            row[0] = self._words.get(word, 0)
            row[1] = begin
            row[2 : 2 + len(word)] = [self._characters.get(character, unknown) for character in word]
            row[2 + len(word)] = end
        return ids


_LEXICON_BOUNDARIES: Final = {BOS_TOKEN: 0, "<bos>": 0, EOS_TOKEN: 1, "<eos>": 1}


def lexicon_boundaries(num_characters: int, *, max_characters: int) -> npt.NDArray[np.int64]:
    """Ids of <S> and </S> in a `Lexicon` of this many characters: (2, 1 + max_characters)."""
    _, bos, eos, begin, end, pad = range(num_characters, num_characters + Lexicon.NUM_MARKS)
    ids = np.full((2, 1 + max_characters), pad, np.int64)
    ids[:, 0] = 1, 2
    ids[:, 1:4] = [[begin, bos, end], [begin, eos, end]]
    return ids
