"""Text that a user passes to `predict` becomes tokens.

Input: a string, a list of tokens, or a mapping with one of them. Output: the tokens of one sentence, or of each
sentence of a document.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from elmokit.text import TREEBANK, Tokenizer, as_tokens


def read_tokens(text: Any, tokenizer: Tokenizer = TREEBANK) -> list[str]:
    """The tokens of one sentence.

    Args:
        text: A string, a list of tokens, or a mapping with one of them as `text` or `tokens`.
        tokenizer: Tokenizes a string.

    Raises:
        ValueError: If it is none of these.
    """
    if isinstance(text, Mapping):
        text = _only_value(text, ("text", "tokens"), 'a sentence as {"text": …} or {"tokens": […]}')
    return as_tokens([text], tokenizer)[0]


def read_sentences(text: Any, tokenizer: Tokenizer = TREEBANK) -> list[list[str]]:
    """The tokens of each sentence of a document.

    Args:
        text: A string, the tokens of one sentence, the token lists of several, or a mapping with one of these as
            `text`, `tokens` or `sentences`.
        tokenizer: Cuts a string into sentences and tokens.

    Raises:
        ValueError: If it is none of these.
    """
    if isinstance(text, Mapping):
        names = ("text", "tokens", "sentences")
        text = _only_value(text, names, 'a document as {"text": …} or {"sentences": [[…]]}')
    if isinstance(text, str):
        return [[token.text for token in sentence] for sentence in tokenizer.sentences(text)]
    if isinstance(text, list | tuple) and not any(isinstance(item, str) for item in text):
        return as_tokens(text, tokenizer)
    return [read_tokens(text, tokenizer)]


def describe_span(tokens: Sequence[str], span: tuple[int, int]) -> dict[str, Any]:
    """The span `tokens[start:end]` with its text, as plain JSON values."""
    start, end = span
    return {"start": start, "end": end, "text": " ".join(tokens[start:end])}


def _only_value(fields: Mapping[str, Any], names: tuple[str, ...], expected: str) -> Any:
    """The value of a mapping that has exactly one of the keys `names`."""
    if len(fields) != 1 or not set(fields) <= set(names):
        raise ValueError(f"{dict(fields)!r:.100}: expected {expected}")
    return next(iter(fields.values()))
