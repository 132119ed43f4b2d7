"""Sentences of a user as token lists.

Input: strings, which are tokenized, or lists of tokens, which are not changed.  Output: token lists, or a ValueError
that names the wrong sentence or token.
"""

from __future__ import annotations

import os
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain
from typing import Any, Final

from elmokit.text.tokenizer import TREEBANK, Tokenizer

TOKENS: Final = "a string or a list of tokens"


def as_list(sentences: object, name: str = "sentences") -> list[Any]:
    """Check that sentences are a list or another iterable, and not one string.

    Args:
        sentences: The argument of a user: a list, a tuple, a generator, a pandas Series, an array of strings, …
        name: Name of the argument, for messages.

    Raises:
        ValueError: If it is one string, not iterable, a table (DataFrame), a mapping, a set, bytes, or numbers.
    """
    return _items(check_sentences(sentences, name), name, "a list of strings or of token lists")


def check_sentences(sentences: object, name: str = "sentences") -> Iterable[Any]:
    """Check the type of sentences as `as_list` does, without reading them.

    Args:
        sentences: The argument of a user.
        name: Name of the argument, for messages.

    Returns:
        The same sentences, to iterate over.

    Raises:
        ValueError: As for `as_list`.
    """
    if isinstance(sentences, str):
        raise ValueError(f"expected a list of {name}, got one string: write [{reprlib.repr(sentences)}]")
    return _check_iterable(sentences, name, "a list of strings or of token lists")


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
    items = as_list(sentences)
    if set(map(type, items)) == {list} and set(map(type, chain.from_iterable(items))) <= {str}:  # the usual token lists
        return items
    return [
        tokenizer(sentence) if isinstance(sentence, str) else check_tokens(sentence, f"sentences[{position}]", TOKENS)
        for position, sentence in enumerate(items, first)
    ]


def check_batch(sentences: list[list[str]], positions: Sequence[int]) -> list[list[str]]:
    """Check the tokens of some sentences that are lists, not all of which are plain strings, as `as_tokens` does.

    Args:
        sentences: Lists of tokens.
        positions: The number of each sentence, for error messages.
    """
    return [
        check_tokens(sentence, f"sentences[{position}]", TOKENS)
        for position, sentence in zip(positions, sentences, strict=True)
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
    return list(_check_iterable(value, name, expected))


def _check_iterable(value: object, name: str, expected: str) -> Iterable[Any]:
    """Refuse what is not iterable, and what would be iterated in a way that its owner does not mean."""
    if type(value) is list:  # the usual case
        return value
    if hasattr(value, "columns"):  # a DataFrame, whose items are the names of its columns
        columns = [str(column) for column in value.columns]
        column = "text" if "text" in columns or not columns else columns[0]
        raise ValueError(
            f"{name} is a {type(value).__name__} with the columns {reprlib.repr(columns)}: pass the strings of one "
            f'column, such as df["{column}"].tolist()'
        )
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and (len(shape) > 2 or (len(shape) == 2 and shape[1] == 1)):
        raise ValueError(
            f"{name} is an array of shape {tuple(shape)}: pass one string per sentence, such as array[:, 0].tolist(), "
            "or one list of tokens per sentence, such as array.tolist()"
        )
    if shape == ():
        raise _wrong(name, value, expected)
    if hasattr(value, "to_pylist"):  # an array of pyarrow, whose items are not strings
        return value.to_pylist()  # type: ignore[no-any-return]
    # A string or bytes would be split into characters; a mapping or a set does not keep the order of the words.
    if not isinstance(value, Iterable) or isinstance(
        value, str | bytes | bytearray | memoryview | Mapping | AbstractSet
    ):
        raise _wrong(name, value, expected)
    return value


def _wrong(name: str, value: object, expected: str) -> ValueError:
    """The error for a value of a wrong type."""
    text = " ".join(reprlib.repr(value).split())
    hint = ""
    if value is None or text in ("nan", "<NA>", "NaT"):
        hint = "; leave out what is missing, or put '' in its place"
    elif isinstance(value, bytes):
        hint = "; decode it, as in value.decode()"
    elif isinstance(value, os.PathLike):
        hint = "; read the file first, as in path.read_text().splitlines()"
    elif isinstance(value, Mapping | AbstractSet):
        hint = ", in an order"
    return ValueError(f"{name} is {text} ({type(value).__name__}): expected {expected}{hint}")
