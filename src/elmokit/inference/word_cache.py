"""A bounded cache of context-free word vectors: each word of a text is encoded once.

Input: words and a function that embeds them.  Output: rows of a table of vectors.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import islice

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from elmokit.network import to_device


class WordCache:
    """A cache of context-free word vectors. If it is full, the words that were not used lately are dropped.

    Args:
        capacity: Largest number of words that are kept after a call.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._lock = threading.Lock()
        self._empty()

    def forget(self) -> None:
        """Drop every word."""
        with self._lock:
            self._empty()

    def _empty(self) -> None:
        self._key: object = None
        self._slots = Slots()
        self._table: Tensor | None = None  # (slots, P)
        self._used = np.zeros(0, dtype=np.int64)  # number of the last call that read each slot
        self._call = 0

    def lookup(
        self,
        words: Sequence[str],
        embed: Callable[[Sequence[str]], Tensor],
        key: object,
    ) -> tuple[npt.NDArray[np.int64], Tensor]:
        """The vectors of words.

        Args:
            words: N words, with repeats. A call may have more words than the capacity; some are dropped after it.
            embed: Computes the vectors (M, P) of words that are not in the cache.
            key: Changes with the weights of the vectors; the cache is then emptied.

        Returns:
            The slot of each word (N,), and a table (slots, P). Later calls do not change these rows of it.
        """
        with self._lock:
            if key != self._key:
                self._empty()
                self._key = key
            self._call += 1
            begin = len(self._slots)
            slots = self._slots.of(words)
            if len(self._slots) > begin:
                try:
                    self._fill(begin, embed)
                except BaseException:
                    self._empty()  # the new words have slots but no vectors
                    raise
            assert self._table is not None
            self._used[slots] = self._call
            table = self._table
            if len(self._slots) > self.capacity:
                self._make_room()
            return slots, table

    @torch.inference_mode(False)  # what is kept is read inside and outside of it
    @torch.no_grad()
    def _fill(self, begin: int, embed: Callable[[Sequence[str]], Tensor]) -> None:
        """Compute the vectors of the words from slot `begin` on."""
        vectors = embed(self._slots.words(begin))
        end = begin + len(vectors)
        if self._table is None or end > len(self._table):
            grown = vectors.new_empty(2 * end, vectors.shape[1])
            if self._table is not None:
                grown[:begin] = self._table[:begin]
            self._table = grown
            self._used = np.concatenate([self._used, np.zeros(len(grown) - len(self._used), dtype=np.int64)])
        self._table[begin:end] = vectors

    @torch.inference_mode(False)
    @torch.no_grad()
    def _make_room(self) -> None:
        """Keep the most recently used words, half of the capacity, in new slots."""
        assert self._table is not None
        newest = np.argsort(-self._used[: len(self._slots)], kind="stable")[: self.capacity // 2]
        words = self._slots.words()
        self._slots = Slots()
        self._slots.of([words[slot] for slot in newest])
        self._table = self._table[to_device(torch.from_numpy(newest), self._table.device)]
        self._used = self._used[newest]


class Slots(dict[str, int]):
    """The slot of each word; a new word gets the next slot."""

    def of(self, words: Sequence[str]) -> npt.NDArray[np.int64]:
        """The slots of words, known and new."""
        return np.fromiter(map(self.__getitem__, words), np.int64, len(words))

    def words(self, begin: int = 0) -> list[str]:
        """The words from slot `begin` on."""
        return [*islice(reversed(self), len(self) - begin)][::-1]

    def __missing__(self, word: str) -> int:
        self[word] = slot = len(self)
        return slot
