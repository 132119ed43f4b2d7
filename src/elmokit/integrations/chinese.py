"""Words of Chinese text, for those who want vectors of words: a segmenter from the extra `chinese`.

Input: a string.  Output: its words with their offsets, for `embed` and the other methods, which take lists of words.

A Chinese model of elmokit reads characters and needs no segmenter; a word that it is given is one vector. The segmenter
is rjieba, the Rust edition of jieba: the same dictionary and rules, maintained, without dependencies, and with wheels
for all platforms; jieba itself has had no release since 2020.
"""

from __future__ import annotations

from elmokit.arguments import check_string
from elmokit.extras import require
from elmokit.text import Token

__all__ = ["segment"]


def segment(text: str) -> list[Token]:
    """Split a text into words.

    Args:
        text: A Chinese text. Whitespace is not a word.

    Returns:
        The words with their offsets: `text[word.start:word.end] == word.text`.

    Raises:
        ImportError: If rjieba is not installed.
        ValueError: If `text` is not a string.

    ```python
    words = segment("我去银行取钱。")
    (vectors,) = elmo.embed([[word.text for word in words]])
    ```
    """
    check_string("text", text)
    rjieba = require("rjieba", extra="chinese")
    words: list[Token] = []
    # lone surrogates cannot be passed on: they are words of their own
    readable = text.encode("utf-32", "surrogatepass").decode("utf-32", "replace")
    for _, start, end in rjieba.tokenize(readable, "default"):
        if not text[start:end].isspace():
            words.append(Token(text[start:end], start, end))
    return words
