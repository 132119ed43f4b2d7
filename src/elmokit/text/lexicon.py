"""Words become ids of a model's own lexicon of characters and words (ELMoForManyLangs).

Enters: words.  Leaves: one row for each word: the number of the word, then those of its characters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    pass
from elmokit.text.characters import BOS_TOKEN, EOS_TOKEN, MAX_CHARACTERS


class Lexicon:
    """The characters and words that a model knows by number, where it does not read words as UTF-8 bytes.

    Rows of its character table: the characters in their order, then six marks: unknown, <S>, </S>, begin and end of a
    word, pad. Rows of its word table: unknown, <S>, </S>, then the words in their order. The sentence boundaries are
    `<S>` and `</S>` as everywhere, and also `<bos>` and `<eos>`, as such models name them.
    """

    NUM_MARKS: Final = 6
    NUM_SPECIAL_WORDS: Final = 3

    def __init__(self, characters: Iterable[str], words: Iterable[str] = ()) -> None:
        self.characters, self.words = tuple(characters), tuple(words)
        self._characters = {character: row for row, character in enumerate(self.characters)}
        self._words = {word: row for row, word in enumerate(self.words, self.NUM_SPECIAL_WORDS)}
        for name, given, rows in (("character", self.characters, self._characters), ("word", self.words, self._words)):
            if len(rows) < len(given):
                double = next(item for item, count in Counter(given).items() if count > 1)
                raise ValueError(f"the {name} {double!r} is there twice: a lexicon holds each once")
        for character in self.characters:
            if len(character) != 1:
                raise ValueError(f"{character!r} is no character")

    def ids(self, words: Sequence[str], *, max_characters: int = MAX_CHARACTERS) -> npt.NDArray[np.int64]:
        """Words as (len(words), 1 + max_characters) rows, counted from 0: the word's, then those of its characters.

        Words are cut to `max_characters` - 2 characters before they are looked up, as the models were trained.
        """
        unknown, _, _, begin, end, pad = range(len(self.characters), len(self.characters) + self.NUM_MARKS)
        ids = np.full((len(words), 1 + max_characters), pad, np.int64)
        boundaries = lexicon_boundaries(len(self.characters), max_characters=max_characters)
        for row, word in zip(ids, words, strict=True):
            if word in _LEXICON_BOUNDARIES:
                row[:] = boundaries[_LEXICON_BOUNDARIES[word]]
                continue
            cut = word[: max_characters - 2]
            row[0] = self._words.get(cut, 0)
            row[1] = begin
            row[2 : 2 + len(cut)] = [self._characters.get(character, unknown) for character in cut]
            row[2 + len(cut)] = end
        return ids


_LEXICON_BOUNDARIES: Final = {BOS_TOKEN: 0, "<bos>": 0, EOS_TOKEN: 1, "<eos>": 1}


def lexicon_boundaries(num_characters: int, *, max_characters: int) -> npt.NDArray[np.int64]:
    """The ids of the two sentence boundaries in a `Lexicon` of so many characters: (2, 1 + max_characters)."""
    _, bos, eos, begin, end, pad = range(num_characters, num_characters + Lexicon.NUM_MARKS)
    ids = np.full((2, 1 + max_characters), pad, np.int64)
    ids[:, 0] = 1, 2
    ids[:, 1:4] = [[begin, bos, end], [begin, eos, end]]
    return ids
