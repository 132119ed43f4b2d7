"""Sentences of a user as token lists.

Input: strings, which are tokenized, or lists of tokens, which are not changed.  Output: token lists, or a ValueError
that names the wrong sentence or token.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from elmokit.text.tokenizer import TREEBANK, Tokenizer


def as_list(sentences: object) -> list[Any]:
    """Check that sentences are a list or another iterable, and not one string.

    Args:
        sentences: The argument of a user.

    Raises:
        ValueError: If it is a string or not iterable.
    """
    if isinstance(sentences, str):
        raise ValueError(f"expected a list of sentences, got one string: write [{reprlib.repr(sentences)}]")
    return _items(sentences, "sentences", "a list of strings or of token lists")


def as_tokens(sentences: object, tokenizer: Tokenizer = TREEBANK, *, first: int = 0) -> list[list[str]]:
    """Check sentences, and return them as lists of tokens.

    Args:
        sentences: An iterable of sentences. A sentence is a string or an iterable of tokens; both may be mixed. A token
            is any string, also the empty one.
        tokenizer: Splits strings.
        first: Number of the first sentence, for error messages.

    Returns:
        One list of tokens per sentence; [] for a sentence without tokens.

    Raises:
        ValueError: If an element is something else (bytes, None, a number, a mapping, a set, a nested list); the
            message names its position.
    """
    return [
        tokenizer(sentence)
        if isinstance(sentence, str)
        else check_tokens(sentence, f"sentences[{position}]", "a string or a list of tokens")
        for position, sentence in enumerate(as_list(sentences), first)
    ]


def check_tokens(tokens: object, name: str, expected: str) -> list[str]:
    """The tokens of one sentence as a list of strings; a ValueError names a token that is not a string."""
    if type(tokens) is list and set(map(type, tokens)) <= {str}:  # the usual case
        return tokens
    words = _items(tokens, name, expected)
    if set(map(type, words)) <= {str}:
        return words  # type: ignore[return-value]
    for position, word in enumerate(words):
        if not isinstance(word, str):
            raise _wrong(f"{name}[{position}]", word, "a token, which is a string")
    return [str(word) for word in words]  # subclasses of str, such as NumPy's strings


def _items(value: object, name: str, expected: str) -> list[object]:
    """The items of an iterable as a list."""
    # A string or bytes would be split into characters; a mapping or a set does not keep the order of the words.
    if not isinstance(value, Iterable) or isinstance(
        value, str | bytes | bytearray | memoryview | Mapping | AbstractSet
    ):
        raise _wrong(name, value, expected)
    try:
        return list(value)
    except TypeError as error:  # an array without dimensions
        raise _wrong(name, value, expected) from error


def _wrong(name: str, value: object, expected: str) -> ValueError:
    """The error for a value of a wrong type."""
    return ValueError(f"{name} is {reprlib.repr(value)} ({type(value).__name__}): expected {expected}")
