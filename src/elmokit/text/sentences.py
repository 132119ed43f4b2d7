"""What a user gives as sentences becomes lists of tokens.

Enters: strings, which are tokenized, or lists of tokens, which are taken as they are.  Leaves: token lists, or a
ValueError that says which sentence or token is wrong.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    pass
from elmokit.text.tokenizer import TREEBANK, Tokenizer


def as_list(sentences: object) -> list[Any]:
    """Check that a user gave a list (or other iterable) of sentences, and not one string."""
    if isinstance(sentences, str):
        raise ValueError(f"expected a list of sentences, got one string: write [{reprlib.repr(sentences)}]")
    return _items(sentences, "sentences", "a list of strings or of token lists")


def as_tokens(sentences: object, tokenizer: Tokenizer = TREEBANK, *, first: int = 0) -> list[list[str]]:
    """Check what a user gave as sentences, and return them as lists of tokens.

    A sentence is a string, which is tokenized, or an iterable of tokens, which are taken as they are, the empty token
    among them; both kinds may be mixed. No sentences give [], a sentence without tokens gives [] in its place.
    Anything else (one bare string, bytes, None, numbers, mappings, sets, deeper nesting) is a ValueError that says
    where it stands, counted from `first`.
    """
    return [
        tokenizer(sentence)
        if isinstance(sentence, str)
        else check_tokens(sentence, f"sentences[{position}]", "a string or a list of tokens")
        for position, sentence in enumerate(as_list(sentences), first)
    ]


def check_tokens(tokens: object, name: str, expected: str) -> list[str]:
    """The tokens of one sentence as a list of strings, or a ValueError that names the one that is not."""
    if type(tokens) is list and set(map(type, tokens)) <= {str}:  # nearly always
        return tokens
    words = _items(tokens, name, expected)
    if set(map(type, words)) <= {str}:
        return words  # type: ignore[return-value]
    for position, word in enumerate(words):
        if not isinstance(word, str):
            raise _wrong(f"{name}[{position}]", word, "a token, which is a string")
    return [str(word) for word in words]  # a subclass, as NumPy's strings are


def _items(value: object, name: str, expected: str) -> list[object]:
    # A string or bytes would fall into characters, and a mapping or a set has lost the order of the words.
    if not isinstance(value, Iterable) or isinstance(
        value, str | bytes | bytearray | memoryview | Mapping | AbstractSet
    ):
        raise _wrong(name, value, expected)
    try:
        return list(value)
    except TypeError as error:  # an array without dimensions calls itself iterable
        raise _wrong(name, value, expected) from error


def _wrong(name: str, value: object, expected: str) -> ValueError:
    return ValueError(f"{name} is {reprlib.repr(value)} ({type(value).__name__}): expected {expected}")
