"""From a list of sentences to batches, and from words to their context-free vectors.

Enters: tokenized sentences and a function that embeds words.  Leaves: batches by length within a token budget, ready
ahead of their use, and a bounded memory of word vectors, so that running text pays for each word once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

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


class WordCache:
    """Word -> its context-free vector, kept across calls; words that were not used lately make room for new ones."""

    def __init__(self, embed: Callable[[Sequence[str]], Tensor], capacity: int) -> None:
        self.embed, self.capacity = embed, capacity
        self._lock = threading.Lock()
        self._empty()

    def forget(self) -> None:
        """Drop every word."""
        with self._lock:
            self._empty()

    def _empty(self) -> None:
        self._key: object = None
        self._slots: dict[str, int] = {}
        self._table: Tensor | None = None  # (slots, P)
        self._used = np.zeros(0, dtype=np.int64)  # the call that last read each slot
        self._call = 0

    def lookup(self, words: list[str], key: object) -> Tensor:
        """The vectors of `words`, (N, P); `key` changes with the weights that make them."""
        with self._lock:
            if key != self._key:
                self._empty()
                self._key = key
            self._call += 1
            missing = [word for word in dict.fromkeys(words) if word not in self._slots]
            if missing:
                self._insert(missing, words)
            assert self._table is not None
            slots = np.fromiter(map(self._slots.__getitem__, words), dtype=np.int64, count=len(words))
            self._used[slots] = self._call
            return self._table.index_select(0, to_device(torch.from_numpy(slots), self._table.device))

    def _insert(self, missing: list[str], words: list[str]) -> None:
        if len(self._slots) + len(missing) > self.capacity:
            self._make_room(len(missing), keep=set(words))
        vectors = self.embed(missing)
        begin, end = len(self._slots), len(self._slots) + len(missing)
        if self._table is None or end > len(self._table):
            grown = vectors.new_empty(max(end, min(2 * end, self.capacity)), vectors.shape[1])
            if self._table is not None:
                grown[:begin] = self._table[:begin]
            self._table = grown
            self._used = np.concatenate([self._used, np.zeros(len(grown) - len(self._used), dtype=np.int64)])
        self._table[begin:end] = vectors
        self._slots.update(zip(missing, range(begin, end), strict=True))

    def _make_room(self, needed: int, keep: set[str]) -> None:
        """Keep the half that was used last, and what this call reads; slots are numbered anew."""
        assert self._table is not None
        room = max(0, min(self.capacity // 2, self.capacity - needed))
        newest = sorted(self._slots, key=lambda word: -self._used[self._slots[word]])
        kept = [word for place, word in enumerate(newest) if place < room or word in keep]
        slots = [self._slots[word] for word in kept]
        self._table[: len(kept)] = self._table[torch.tensor(slots, dtype=torch.long, device=self._table.device)]
        self._used[: len(kept)] = self._used[slots]
        self._slots = dict(zip(kept, range(len(kept)), strict=True))


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """Copy from the host; to a GPU through pinned memory, since any other copy waits until the GPU has no work left."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values.to(device)


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
