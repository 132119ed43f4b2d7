"""Words of an index: where a word is, neighbours, all occurrences of one, and hashes by which they are found.

Input: words. Output: one hash of 8 bytes for each. Words that differ only in upper and lower case have the same hash.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

import numpy as np
import numpy.typing as npt

HASH: Final = np.dtype("<u8")  # of 64 bits: among 100 million distinct words two share a hash by a chance of 1 in 3,700

Rows = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class StoredWord:
    """A word and its sentence: `tokens[position]`."""

    tokens: list[str]
    position: int
    sentence_number: int
    """Number of the sentence, counted from 0 in the order of adding, empty sentences included."""


@dataclass(frozen=True)
class Neighbour:
    """A word of the index near the one that was asked about."""

    tokens: list[str]
    index: int
    """Position of the word in `tokens`."""
    word: str
    cosine: float
    sentence_number: int
    """Number of the sentence, counted from 0 in the order of adding, empty sentences included."""


@dataclass(frozen=True)
class Occurrences:
    """Occurrences of one word, in the order of adding."""

    words: list[StoredWord]
    vectors: npt.NDArray[np.float32]
    """(N, 2P): their vectors, of length one within the precision of float16."""
    rows: Rows
    """(N,): their rows, as in `Hits`."""
    num_total: int
    """Number of occurrences in the index, of which `words` may be a sample."""


def hash_words(words: Iterable[str]) -> Hashes:
    """The hash of each word: (N,)."""
    known = _Hashes()
    return np.frombuffer(b"".join([known[word] for word in words]), HASH)


def spread(rows: Rows, limit: int | None) -> Rows:
    """At most `limit` of the rows, at even distances; all for None."""
    if limit is None or len(rows) <= limit:
        return rows
    return rows[np.arange(limit) * len(rows) // limit]


class _Hashes(dict[str, bytes]):
    """The hash of each word, computed once."""

    def __missing__(self, word: str) -> bytes:
        # a token may hold half of a surrogate pair
        text = word.casefold().encode("utf-8", "surrogatepass")
        self[word] = digest = blake2b(text, digest_size=HASH.itemsize).digest()
        return digest
