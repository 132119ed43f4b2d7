"""Where a word is in a sentence: marked with brackets, "He sat on the [bank] .", or found by its text.

Input: the sentence as a string with brackets, or its tokens and a word.  Output: the position of the word, or of a
phrase, among the tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from elmokit.text.tokenizer import TREEBANK, Tokenizer


class MarkedWord(NamedTuple):
    """A word in its sentence: `tokens[position]`."""

    tokens: list[str]
    position: int


class MarkedPhrase(NamedTuple):
    """A phrase in its sentence: `tokens[start:end]`."""

    tokens: list[str]
    start: int
    end: int


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
    before, word, after = _split(sentence, allow_blank=allow_blank)
    left = tokenizer(before)
    return MarkedWord([*left, word.strip(), *tokenizer(after)], len(left))


def marked_phrase(sentence: str, tokenizer: Tokenizer = TREEBANK) -> MarkedPhrase:
    """Find the word or the phrase in brackets.

    The sentence is tokenized as it is without the brackets. If the brackets are inside a token, the tokenizer splits
    the text before, in and after them.

    Args:
        sentence: A string with one pair of brackets around a word or several.
        tokenizer: Splits the sentence.

    Returns:
        The tokens of the sentence, and which of them are in the brackets.

    Raises:
        ValueError: If there is not exactly one pair of brackets, or it is empty.

    >>> marked_phrase("He left [New York].")
    MarkedPhrase(tokens=['He', 'left', 'New', 'York', '.'], start=2, end=4)
    """
    before, phrase, after = _split(sentence)
    begin = len(before) + len(phrase) - len(phrase.lstrip())
    found = tokenizer.with_offsets(before + phrase + after)
    starts = [token.start for token in found]
    ends = [token.end for token in found]
    if begin in starts and begin + len(phrase.strip()) in ends:
        tokens = [token.text for token in found]
        return MarkedPhrase(tokens, starts.index(begin), ends.index(begin + len(phrase.strip())) + 1)
    left, inside = tokenizer(before), tokenizer(phrase)
    return MarkedPhrase([*left, *inside, *tokenizer(after)], len(left), len(left) + len(inside))


def _split(sentence: str, *, allow_blank: bool = False) -> tuple[str, str, str]:
    """The text before, in and after the brackets."""
    if not isinstance(sentence, str):
        raise ValueError(f"expected a sentence such as 'He sat on the [bank] .', not {sentence!r}")
    before, opening, rest = sentence.partition("[")
    word, closing, after = rest.partition("]")
    is_one_pair = opening and closing and not any(bracket in before + word + after for bracket in "[]")
    if not is_one_pair or not (allow_blank or word.strip()):
        raise ValueError(f"mark one word with brackets, as in 'He sat on the [bank] .', not {sentence!r}")
    return before, word, after


def find_phrase(phrase: str, tokens: Sequence[str], tokenizer: Tokenizer = TREEBANK) -> tuple[int, int]:
    """Find the first occurrence of a word or a phrase; if there is none, the first in upper or lower case.

    Args:
        phrase: A word, which may be several tokens ("can't"), or several words ("New York").
        tokens: The tokens of a sentence.
        tokenizer: Splits the phrase.

    Returns:
        (start, end): the phrase is `tokens[start:end]`.

    Raises:
        ValueError: If the phrase is not in the sentence, or has no token.

    >>> find_phrase("New York", ["She", "left", "new", "York", "."])
    (2, 4)
    """
    parts = tokenizer(phrase)
    for normalize in (str, str.casefold):
        for place in phrase_places(phrase, parts, tokens, normalize):
            return place
    raise ValueError(f"the word {phrase!r} is not in the sentence; its tokens are {list(tokens)}")


def phrase_places(
    phrase: str, parts: Sequence[str], tokens: Sequence[str], normalize: Callable[[str], str] = str.casefold
) -> Iterator[tuple[int, int]]:
    """Every occurrence of a word or a phrase, from left to right; they do not overlap.

    Args:
        phrase: The phrase, which a list of tokens may have as one token.
        parts: Its tokens, as the tokenizer splits it.
        tokens: The tokens of a sentence.
        normalize: Applied to tokens before they are compared. By default upper and lower case are the same.

    Yields:
        (start, end): the phrase is `tokens[start:end]`.
    """
    whole, wanted = normalize(phrase), [normalize(part) for part in parts]
    words = [normalize(token) for token in tokens]
    if whole not in words and (not wanted or wanted[0] not in words):
        return
    start = 0
    while start < len(words):
        size = 1 if words[start] == whole else len(wanted)
        if words[start] == whole or (wanted and words[start : start + size] == wanted):
            yield start, start + size
            start += size
        else:
            start += 1
