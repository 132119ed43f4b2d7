"""Nearest vectors: an HNSW graph that proposes rows, and an exact comparison.

Input: query vectors of length one, and the stored vectors (N, 2P), float16. Output: the k nearest rows of each query
with their cosines. The graph holds the vectors rounded to int8 and proposes more rows than are asked for; the float16
vectors decide their order.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from elmokit.extras import require
from elmokit.index.words import Rows

ROWS_AT_ONCE = 16384  # rows that are converted at a time, in exact search and while the graph grows
CONNECTIVITY, EXPANSION_ADD, EXPANSION_SEARCH = 16, 128, 128

Vectors = npt.NDArray[np.floating]


@dataclass(frozen=True)
class Hits:
    """Nearest rows of each query, best first."""

    rows: npt.NDArray[np.int64]
    """(queries, k)."""
    cosines: npt.NDArray[np.float32]
    """(queries, k)."""


@dataclass(frozen=True)
class Ranking:
    """Nearest rows of one query, best first."""

    rows: npt.NDArray[np.int64]
    cosines: npt.NDArray[np.float32]


class WordGraph:
    """An HNSW graph over the first rows of a store."""

    def __init__(self, dim: int) -> None:
        self._graph: Any = require("usearch.index", extra="index").Index(
            ndim=dim,
            metric="cos",
            dtype="i8",
            connectivity=CONNECTIVITY,
            expansion_add=EXPANSION_ADD,
            expansion_search=EXPANSION_SEARCH,
        )

    @classmethod
    def view(cls, path: Path, *, dim: int, num_rows: int, num_bytes: int) -> WordGraph:
        """Open a saved graph for searching; it stays on disk.

        Raises:
            OSError, RuntimeError: If the file is missing, or is not a graph of that size.
        """
        if path.stat().st_size != num_bytes:
            raise RuntimeError(f"it has {path.stat().st_size:,} bytes, expected {num_bytes:,}")
        graph = cls(dim)
        graph._graph.view(path)
        if len(graph._graph) != num_rows or graph._graph.ndim != dim:
            raise RuntimeError(f"it has {len(graph._graph)} vectors of {graph._graph.ndim} numbers")
        return graph

    def load(self, path: Path) -> None:
        """Read a saved graph into memory, to add to it."""
        self._graph.load(path)

    def save(self, path: Path) -> None:
        """Write the graph to a file."""
        self._graph.save(path)

    def add(self, vectors: Vectors, begin: int, end: int) -> None:
        """Add the rows from `begin` to `end` of `vectors` (N, 2P)."""
        for first in range(begin, end, ROWS_AT_ONCE):
            rounded = to_int8(vectors[first : min(first + ROWS_AT_ONCE, end)])
            self._graph.add(np.arange(first, first + len(rounded)), rounded, threads=torch.get_num_threads())

    def propose(self, query: npt.NDArray[np.int8], count: int) -> Rows:
        """About `count` rows near a query (2P,), fewer where the graph does not reach them."""
        return np.asarray(self._graph.search(query, count).keys, np.int64)


def to_int8(vectors: Vectors) -> npt.NDArray[np.int8]:
    """Scale each vector (N, 2P) to the full range of int8; the cosine does not depend on its length."""
    wide = vectors.astype(np.float32)
    largest = np.maximum(np.abs(wide).max(axis=1, keepdims=True), 1e-12)
    return np.asarray(np.rint(wide * (127 / largest)), np.int8)


def compare(queries: npt.NDArray[np.float32], vectors: Vectors, first: int, k: int) -> Hits:
    """The k nearest of the rows from `first` on, each compared with each query."""
    best = [Ranking(np.zeros(0, np.int64), np.zeros(0, np.float32)) for _ in queries]
    for begin in range(first, len(vectors), ROWS_AT_ONCE):
        some = vectors[begin : begin + ROWS_AT_ONCE].astype(np.float32)
        rows = np.arange(begin, begin + len(some))
        for number, cosines in enumerate(queries @ some.T):
            old = best[number]
            best[number] = rank(np.concatenate([old.rows, rows]), np.concatenate([old.cosines, cosines]), k)
    return stack(best, k)


def compare_some(query: npt.NDArray[np.float32], vectors: Vectors, rows: Rows) -> Ranking:
    """The given rows (R,), ascending, by their cosines with a query (2P,)."""
    parts = [rows[begin : begin + ROWS_AT_ONCE] for begin in range(0, len(rows), ROWS_AT_ONCE)]
    cosines = [vectors[part].astype(np.float32) @ query for part in parts]
    return rank(rows, np.concatenate([*cosines, np.zeros(0, np.float32)]), len(rows))


def rank(rows: Rows, cosines: npt.NDArray[np.float32], k: int) -> Ranking:
    """The k largest cosines. Of equal ones the earlier row is first; `rows` must be ascending where they are equal."""
    if len(rows) > 4 * k:  # sorting all of them would cost more than the products
        threshold = np.partition(cosines, len(cosines) - k)[len(cosines) - k]
        kept = cosines >= threshold
        rows, cosines = rows[kept], cosines[kept]
    order = np.argsort(-cosines, kind="stable")[:k]
    return Ranking(rows[order], cosines[order])


def stack(rankings: list[Ranking], k: int) -> Hits:
    """The rankings of all queries as two arrays (queries, k)."""
    hits = Hits(np.zeros((len(rankings), k), np.int64), np.zeros((len(rankings), k), np.float32))
    for number, ranking in enumerate(rankings):
        hits.rows[number], hits.cosines[number] = ranking.rows, ranking.cosines
    return hits
