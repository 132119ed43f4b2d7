"""Batches of sentences by length, within a number of tokens.

Input: token lists.  Output: `Batch`es, and a thread that prepares the next ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

A = TypeVar("A")
R = TypeVar("R")


@dataclass(frozen=True)
class Batch:
    """Sentences that run together."""

    positions: list[int]
    """Index of each sentence in the input."""
    tokens: list[list[str]]
    """Tokens of each sentence."""

    @property
    def lengths(self) -> list[int]:
        """Number of tokens of each sentence."""
        return [len(tokens) for tokens in self.tokens]


def plan(sentences: list[list[str]], first: int, *, budget: int | None, batch_size: int | None) -> list[Batch]:
    """Group sentences into batches.

    Args:
        sentences: Token lists.
        first: Index of the first sentence in the input.
        budget: Largest number of padded tokens per batch; sentences are then sorted by falling length. None: no limit,
            and sentences stay in order.
        batch_size: Largest number of sentences per batch; None: no limit.
    """
    order = list(range(len(sentences)))
    if budget is not None:
        order.sort(key=lambda number: -len(sentences[number]))
    batches, begin = [], 0
    while begin < len(order):
        longest = len(sentences[order[begin]]) + 2
        size = max(1, budget // longest) if budget is not None else len(order)
        chosen = order[begin : begin + min(size, batch_size or size)]
        batches.append(Batch([first + number for number in chosen], [sentences[number] for number in chosen]))
        begin += len(chosen)
    return batches


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
