"""Batches of sentences by length, within a number of tokens.

Input: token lists.  Output: `Batch`es, and a thread that prepares the next ones.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from elmokit.text import BOS_TOKEN, EOS_TOKEN, TREEBANK, Tokenizer
from elmokit.text.sentences import check_batch

# What a step takes beside its rows, in rows. A step takes 54 us at 64 rows, 116 at 256, 394 at 1,024 (original, H200).
STEP_ROWS: Final = 90

A = TypeVar("A")
R = TypeVar("R")


class Words(NamedTuple):
    """Tokens of a user's list of which a model reads several units: word n is units `starts[n]` to `starts[n + 1]`."""

    tokens: list[str]
    starts: list[int]
    """(W+1,): the first unit of each word, and the number of units."""


@dataclass(frozen=True)
class Batch:
    """Sentences that run together."""

    positions: list[int]
    """Index of each sentence in the input."""
    tokens: list[list[str]]
    """Tokens of each sentence, as the model reads them."""
    words: list[Words] | None = None
    """Tokens of each sentence, as the user gave them; None if they are `tokens`."""

    @functools.cached_property
    def read(self) -> list[str]:
        """<S>, </S>, and the tokens of all sentences, one after the other."""
        read = [BOS_TOKEN, EOS_TOKEN]
        for tokens in self.tokens:
            read += tokens
        return read

    def checked(self) -> Batch:
        """The batch, if its tokens are strings; a ValueError names one that is not."""
        if set(map(type, self.read)) == {str}:
            return self
        return Batch(self.positions, check_batch(self.tokens, self.positions), self.words)

    @functools.cached_property
    def lengths(self) -> list[int]:
        """Number of tokens of each sentence."""
        return [len(tokens) for tokens in self.tokens]

    @functools.cached_property
    def is_padded(self) -> bool:
        """Whether sentences are of different lengths, so that some of them are padded."""
        return len(set(self.lengths)) > 1

    @property
    def num_words(self) -> list[int]:
        """Number of tokens of each sentence, as the user gave them."""
        return self.lengths if self.words is None else [len(words.tokens) for words in self.words]

    def part(self, rows: slice) -> Batch:
        """Some of the sentences."""
        return Batch(self.positions[rows], self.tokens[rows], None if self.words is None else self.words[rows])


def split_words(tokens: list[str], tokenizer: Tokenizer) -> Words | None:
    """The words of a token list, if the tokenizer splits one of them into several units; else None."""
    sizes = [len(tokenizer.units(token)) for token in tokens]
    return Words(tokens, [0, *accumulate(sizes)]) if max(sizes, default=1) > 1 else None


def plan(
    sentences: list[list[str]],
    first: int,
    *,
    budget: int | None,
    batch_size: int | None,
    tokenizer: Tokenizer = TREEBANK,
) -> list[Batch]:
    """Group sentences into batches.

    Args:
        sentences: Token lists.
        first: Index of the first sentence in the input.
        budget: Largest number of padded tokens per batch; sentences are then sorted by falling length, and batches that
            would be largely padding are smaller. None: no limit, and sentences stay in order.
        batch_size: Largest number of sentences per batch; None: no limit.
        tokenizer: Splits tokens of which the model reads several units.
    """
    words: list[Words | None] = [None] * len(sentences)
    if tokenizer.splits_words:
        words = [split_words(tokens, tokenizer) for tokens in sentences]
        sentences = [
            tokens if own is None else [unit for token in tokens for unit in tokenizer.units(token)]
            for tokens, own in zip(sentences, words, strict=True)
        ]
    order = list(range(len(sentences)))
    num_steps = np.fromiter(map(len, sentences), np.int64, len(sentences)) + 2
    if budget is not None and len(order) > 1:
        by_length = np.argsort(-num_steps, kind="stable")
        order, num_steps = by_length.tolist(), num_steps[by_length]
    batches, begin = [], 0
    while begin < len(order):
        size = len(order)
        if budget is not None:
            size = max(1, budget // int(num_steps[begin]))
        size = min(size, batch_size or size)
        if budget is not None:
            size = _without_padding(num_steps[begin : begin + size])
        chosen = order[begin : begin + size]
        tokens = [sentences[number] for number in chosen]
        own_words = None
        if tokenizer.splits_words and any(words[number] is not None for number in chosen):
            own_words = [
                words[number] or Words(sentences[number], list(range(len(sentences[number]) + 1))) for number in chosen
            ]
        batches.append(Batch([first + number for number in chosen], tokens, own_words))
        begin += len(chosen)
    return batches


def _without_padding(num_steps: npt.NDArray[np.int64]) -> int:
    """Number of the first of these sentences (falling lengths) to run together: all, or fewer if that saves time.

    All rows of a batch take the steps of the longest one. Two batches have more steps and less padding.
    """
    total = len(num_steps)
    if total == 1:
        return 1
    sizes = np.arange(1, total)  # of the first of two batches
    costs = num_steps[0] * (STEP_ROWS + sizes) + num_steps[1:] * (STEP_ROWS + total - sizes)
    best = int(costs.argmin())
    return int(sizes[best]) if costs[best] < num_steps[0] * (STEP_ROWS + total) else total


def one_ahead(function: Callable[[A], R], arguments: Sequence[A]) -> Iterator[R]:
    """Yield function(argument) for each argument; a thread computes the next result while one is in use."""
    if len(arguments) < 2:
        yield from map(function, arguments)
        return
    with ThreadPoolExecutor(1, "elmokit-tokens") as pool:
        ahead = pool.submit(function, arguments[0])
        for argument in arguments[1:]:
            ready, ahead = ahead, pool.submit(function, argument)
            yield ready.result()
        yield ahead.result()
