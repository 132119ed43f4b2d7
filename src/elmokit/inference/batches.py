"""A list of sentences becomes batches by length within a token budget, prepared ahead of their use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

A = TypeVar("A")
R = TypeVar("R")


@dataclass(frozen=True)
class Batch:
    """Sentences that run together, and where each stood in the input."""

    positions: list[int]
    tokens: list[list[str]]

    @property
    def lengths(self) -> list[int]:
        """Tokens of each sentence."""
        return [len(tokens) for tokens in self.tokens]


def plan(sentences: list[list[str]], first: int, *, budget: int | None, batch_size: int | None) -> list[Batch]:
    """Batches by falling length, each at most `budget` padded tokens; without a budget, in order."""
    order = list(range(len(sentences)))
    if budget is not None:
        order.sort(key=lambda place: -len(sentences[place]))
    batches, begin = [], 0
    while begin < len(order):
        longest = len(sentences[order[begin]]) + 2
        size = max(1, budget // longest) if budget is not None else len(order)
        chosen = order[begin : begin + min(size, batch_size or size)]
        batches.append(Batch([first + place for place in chosen], [sentences[place] for place in chosen]))
        begin += len(chosen)
    return batches


def one_ahead(function: Callable[[A], R], arguments: Sequence[A]) -> Iterator[R]:
    """function(argument) for each, computed in a thread while the result before it is in use."""
    if len(arguments) < 2:
        yield from map(function, arguments)
        return
    with ThreadPoolExecutor(1, "elmokit-tokens") as pool:
        ahead = pool.submit(function, arguments[0])
        for argument in arguments[1:]:
            ready, ahead = ahead, pool.submit(function, argument)
            yield ready.result()
        yield ahead.result()
