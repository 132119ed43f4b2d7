"""Scripts of letters: does a model know the writing of a text?

Input: the words of a model's vocabulary, and sentences.  Output: the script of a sentence that the model has not seen.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from itertools import chain
from typing import Final

RARE: Final = 1000  # a script of fewer words than one in so many is not known
MOST_CHECKED: Final = 1000  # sentences with letters beyond ASCII that are looked at

_WIDTHS: Final = ("FULLWIDTH", "HALFWIDTH", "MODIFIER")
_NAMES: Final = {"CJK": "Han", "KANGXI": "Han", "HIRAGANA": "Kana", "KATAKANA": "Kana"}


@lru_cache(maxsize=65536)
def script_of(character: str) -> str | None:
    """The script of a letter, such as "Latin" or "Han"; None for any other character.

    >>> script_of("é"), script_of("银"), script_of("5")
    ('Latin', 'Han', None)
    """
    if not character.isalpha():
        return None
    words = unicodedata.name(character, "").split()
    words = words[1:] if words and words[0] in _WIDTHS else words
    return _NAMES.get(words[0], words[0].capitalize()) if words else None


class KnownScripts:
    """The scripts of a model's words.

    Args:
        words: Words of a vocabulary or a lexicon.
    """

    def __init__(self, words: Iterable[str]) -> None:
        scripts = (script_of(word[0]) for word in words if word and not word.startswith("<"))
        counts = Counter(script for script in scripts if script is not None)
        self.scripts = {script for script, count in counts.most_common() if count * RARE >= counts.total()}
        self._num_checked = 0
        self._reported: set[str] = set()

    def unseen(self, sentences: Iterable[list[str]]) -> str | None:
        """The script of a sentence whose letters are mostly of one that is not known. Each script is returned once.

        Args:
            sentences: Token lists. Those after the first thousand with letters beyond ASCII are not looked at.
        """
        for tokens in sentences:
            if self._num_checked >= MOST_CHECKED:
                break
            if all(map(str.isascii, tokens)):
                continue
            self._num_checked += 1
            scripts = map(script_of, chain.from_iterable(tokens))
            counts = Counter(script for script in scripts if script is not None)
            for script, count in counts.most_common(1):
                if script not in self.scripts | self._reported and count * 2 > counts.total():
                    self._reported.add(script)
                    return script
        return None
