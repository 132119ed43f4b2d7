"""A sentence in which one word is marked with brackets: "He sat on the [bank] ."

Input: the sentence as a string.  Output: its tokens without the brackets, and the position of the marked word.
"""

from __future__ import annotations

from typing import NamedTuple

from elmokit.text.tokenizer import TREEBANK, Tokenizer


class MarkedWord(NamedTuple):
    """A word in its sentence: `tokens[position]`."""

    tokens: list[str]
    position: int


def marked_word(sentence: str, tokenizer: Tokenizer = TREEBANK, *, allow_blank: bool = False) -> MarkedWord:
    """Find the word in brackets.

    Args:
        sentence: A string with one pair of brackets around a word, which is one token.
        tokenizer: Splits the text before and after the word.
        allow_blank: Also accept empty brackets, whose word is "".

    Returns:
        The tokens and the position of the word.

    Raises:
        ValueError: If there is not exactly one pair of brackets, or it is empty.

    >>> marked_word("He sat on the [bank].")
    MarkedWord(tokens=['He', 'sat', 'on', 'the', 'bank', '.'], position=4)
    """
    if not isinstance(sentence, str):
        raise ValueError(f"expected a sentence such as 'He sat on the [bank] .', not {sentence!r}")
    before, opening, rest = sentence.partition("[")
    word, closing, after = rest.partition("]")
    is_one_pair = opening and closing and not any(bracket in before + word + after for bracket in "[]")
    if not is_one_pair or not (allow_blank or word.strip()):
        raise ValueError(f"mark one word with brackets, as in 'He sat on the [bank] .', not {sentence!r}")
    left = tokenizer(before)
    return MarkedWord([*left, word.strip(), *tokenizer(after)], len(left))
