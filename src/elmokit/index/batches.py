"""Sentences become batches that are embedded and committed together.

Input: sentences, and how many of them an earlier call has added. Output: batches of the others, each with the number
and the digest of all sentences up to its end, so that the next call can check where to resume.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from elmokit.inference.runner import Sentence
from elmokit.text import Tokenizer, as_tokens

TOKENS_AT_ONCE = 16384  # embedded and committed together: what a kill can cost


@dataclass(frozen=True)
class SentenceBatch:
    """Sentences that are added in one step."""

    lines: list[bytes]
    """The sentences as lines of sentences.jsonl."""
    tokens: list[list[str]]
    num_done: int
    """Number of sentences of the source up to the end of this batch."""
    digest: str
    """SHA-256 of those sentences."""


def make_batches(
    sentences: Iterable[Sentence], tokenizer: Tokenizer, *, num_known: int, digest: str, name: str
) -> Iterator[SentenceBatch]:
    """Batches of the sentences after the first `num_known`.

    Args:
        sentences: Strings, which the tokenizer cuts, or token lists.
        tokenizer: How strings are cut.
        num_known: Number of sentences at the beginning that were added before.
        digest: SHA-256 of those.
        name: The source and the store, for messages.

    Raises:
        ValueError: If the first `num_known` sentences are not those that were added before.
    """
    changed = ValueError(
        f"{name} has {num_known:,} sentences of it, which are no longer its first ones: add the text under another "
        "name, or build a new index"
    )
    hasher = hashlib.sha256()
    lines: list[bytes] = []
    tokens: list[list[str]] = []
    number = num_tokens = 0
    for number, sentence in enumerate(sentences, 1):
        (words,) = as_tokens([sentence], tokenizer, first=number - 1)
        line = json.dumps(words).encode() + b"\n"
        hasher.update(line)
        if number <= num_known:
            if number == num_known and hasher.hexdigest() != digest:
                raise changed
            continue
        lines.append(line)
        tokens.append(words)
        num_tokens += len(words)
        if num_tokens >= TOKENS_AT_ONCE or len(tokens) >= TOKENS_AT_ONCE:
            yield SentenceBatch(lines, tokens, number, hasher.hexdigest())
            lines, tokens, num_tokens = [], [], 0
    if number < num_known:
        raise changed
    if lines:
        yield SentenceBatch(lines, tokens, number, hasher.hexdigest())
