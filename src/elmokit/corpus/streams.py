"""A prepared corpus becomes batches of the two token streams, forward and backward.

In comes a `Corpus`; its pairs (see prepared.py) are the predictions of both directions. Out come `TrainingBatch`es of
(B, unroll) word forms and the vocabulary ids that follow or precede them: without end, in an order that a seed gives
(`Streams`), or once, in order (`evaluation_batches`).
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from elmokit.corpus.prepared import Corpus

CHUNK_PAIRS = 1 << 20  # pairs that are looked up at a time, to spread the cost of the look-up over many batches

Ints = npt.NDArray[np.int32]
Places = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class TrainingBatch:
    """Each row goes on where the same row of the batch before it ended, in either direction. All are (B, unroll)."""

    forward_inputs: Ints
    """word forms: rows of `Corpus.forms`"""
    forward_targets: Ints
    """vocabulary ids of the words that follow"""
    backward_inputs: Ints
    backward_targets: Ints
    """vocabulary ids of the words that precede"""
    weights: npt.NDArray[np.float32] | None = None
    """1 for a prediction that counts, 0 for one that only fills up a row; None where all count"""


@dataclass(frozen=True)
class StreamPosition:
    """Where a stream stands: `step` batches have been read. The other integers tell one stream from another."""

    step: int
    epoch: int
    rows: int
    unroll: int
    seed: int
    num_pairs: int


class Streams:
    """The two endless token streams of a corpus, in batches of `batch_size` rows.

    Each epoch has its own order of documents, drawn by seed; inside a document sentences stay in order, and a corpus of
    one document stays as it is. The pairs of all documents in that order are cut into as many runs, equal to one pair,
    as there are rows in all processes. Row b reads run b, upwards in the forward stream and downwards in the backward
    stream (there a document's last sentence comes first, so that the state carried over is that of the text which
    follows), then its run of the next epoch. So each pair comes once per epoch and direction; a position is found
    without reading what comes before it; and rank r of n processes has the rows from r * batch_size on that one process
    with n * batch_size rows would have. A run may begin inside a sentence: once per row and epoch.
    """

    def __init__(
        self,
        corpus: Corpus,
        *,
        batch_size: int,
        unroll: int,
        seed: int,
        shuffle: bool = True,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if batch_size < 1 or unroll < 1 or seed < 0 or not 0 <= rank < world_size:
            raise ValueError(
                f"batch_size={batch_size}, unroll={unroll}, seed={seed}, rank={rank}, world_size={world_size}:"
                " sizes are at least 1, the seed is at least 0, rank is less than world_size"
            )
        rows = batch_size * world_size
        if corpus.num_pairs < rows:
            raise ValueError(
                f"{corpus.folder} has {corpus.num_pairs} tokens for the {rows} rows of a batch:"
                " give more text or a smaller batch_size"
            )
        self.corpus, self.shuffle = corpus, shuffle
        self._position = StreamPosition(0, 0, rows, unroll, seed, corpus.num_pairs)
        cuts = np.arange(rank * batch_size, (rank + 1) * batch_size + 1, dtype=np.int64) * corpus.num_pairs // rows
        self._run_starts, self._run_lengths = cuts[:-1], np.diff(cuts)
        self._orders: dict[int, tuple[Places, Places]] = {}
        self._chunk_steps = max(1, min(CHUNK_PAIRS // (batch_size * unroll), corpus.num_pairs // (rows * unroll)))
        self._thread = ThreadPoolExecutor(1, "elmokit-streams")
        self._chunks: dict[int, Future[list[TrainingBatch]]] = {}

    @property
    def tokens_per_epoch(self) -> int:
        """Predictions in each direction and epoch, in all processes together."""
        return self.corpus.num_pairs

    @property
    def state(self) -> StreamPosition:
        """The place of the batch that `next` gives next; it is the same in all processes."""
        return self._position

    def restore(self, position: StreamPosition) -> None:
        """Go to a place: from there on, `next` gives what it gave before, bit by bit."""
        if (there := self._at(position.step)) != position:
            raise ValueError(f"{position} is a place in other streams: in these it would be {there}")
        self._position = there

    def _at(self, step: int) -> StreamPosition:
        here = self._position
        return replace(here, step=step, epoch=step * here.unroll * here.rows // here.num_pairs)

    def next(self) -> TrainingBatch:
        """The next batch. Batches are looked up by the chunk; a thread is at work on the chunk after this one."""
        number, within = divmod(self._position.step, self._chunk_steps)
        self._chunks = {
            n: self._chunks.get(n) or self._thread.submit(self._read_chunk, n) for n in (number, number + 1)
        }
        batch = self._chunks[number].result()[within]
        self._position = self._at(self._position.step + 1)
        return batch

    def _read_chunk(self, number: int) -> list[TrainingBatch]:
        unroll = self._position.unroll
        width = self._chunk_steps * unroll
        forward = self._find_pairs(number * width, width, downwards=False)
        backward = self._find_pairs(number * width, width, downwards=True)
        return [
            _read_pairs(self.corpus, forward[:, start : start + unroll], backward[:, start : start + unroll])
            for start in range(0, width, unroll)
        ]

    def _find_pairs(self, start: int, width: int, *, downwards: bool) -> Places:
        """The pairs (B, width) that each row reads from its `start`-th on, counted from the first epoch."""
        lengths = self._run_lengths
        pairs = np.empty((len(lengths), width), np.int64)
        ascending = pairs[:, ::-1] if downwards else pairs  # the same memory
        for epoch in range(start // int(lengths.max()), (start + width - 1) // int(lengths.min()) + 1):
            # The part of its run in this epoch that each row reads: mostly all of `width`, at times nothing.
            low = np.clip(start - epoch * lengths, 0, lengths)
            high = np.clip(start + width - epoch * lengths, 0, lengths)
            first = self._run_starts + (lengths - high if downwards else low)
            found = self._look_up(epoch, first, first + high - low)
            if len(found) == pairs.size:
                ascending[:] = found.reshape(pairs.shape)
            else:
                read_now = np.arange(start, start + width) // lengths[:, None] == epoch
                ascending[read_now[:, ::-1] if downwards else read_now] = found
        return pairs

    def _look_up(self, epoch: int, low: Places, high: Places) -> Places:
        """The pairs that stand from `low` to `high` in the epoch's order; those of one row after those of another."""
        begins, shifts = self._order(epoch)
        first = np.searchsorted(begins, low, "right") - 1
        num_pieces = np.where(high > low, np.searchsorted(begins, high, "left") - first, 0)
        # A piece is what one row reads of one document.
        row = np.repeat(np.arange(len(low)), num_pieces)
        document = np.arange(len(row)) + np.repeat(first - (np.cumsum(num_pieces) - num_pieces), num_pieces)
        start = np.maximum(begins[document], low[row])
        length = np.minimum(begins[document + 1], high[row]) - start
        pairs = np.repeat(start + shifts[document] - (np.cumsum(length) - length), length)
        pairs += np.arange(len(pairs))
        return pairs

    def _order(self, epoch: int) -> tuple[Places, Places]:
        """(where each document begins in the epoch's order, how far it is from there to its place in the stream)."""
        if epoch not in self._orders:
            documents = np.asarray(self.corpus.documents)
            order = np.arange(len(documents) - 1)
            if self.shuffle:
                # Raw draws stay the same in every version of NumPy, its permutations need not.
                draws = np.random.PCG64([self._position.seed, epoch]).random_raw(len(order))
                order = np.argsort(draws, kind="stable")
            begins = np.append(0, np.cumsum(np.diff(documents)[order]))
            self._orders = {e: kept for e, kept in self._orders.items() if e == epoch - 1}  # some rows are there still
            self._orders[epoch] = begins, documents[:-1][order] - begins[:-1]
        return self._orders[epoch]


def evaluation_batches(corpus: Corpus, *, batch_size: int, unroll: int) -> Iterator[TrainingBatch]:
    """Read a corpus once, in order: each pair comes once in each direction with weight 1; all else has weight 0.

    Each row reads some whole sentences; the rows are about equally long.
    """
    if batch_size < 1 or unroll < 1:
        raise ValueError(f"batch_size={batch_size}, unroll={unroll}: both are at least 1")
    boundaries = np.flatnonzero(np.asarray(corpus.stream) == 0)
    cuts = np.arange(batch_size + 1, dtype=np.int64) * corpus.num_pairs // batch_size
    runs = boundaries[np.searchsorted(boundaries, cuts)][:, None]
    starts, ends = runs[:-1], runs[1:]
    for step in range(0, int((ends - starts).max()), unroll):
        place = np.arange(step, step + unroll)
        inside = place < ends - starts
        forward, backward = np.where(inside, starts + place, 0), np.where(inside, ends - 1 - place, 0)
        yield replace(_read_pairs(corpus, forward, backward), weights=inside.astype(np.float32))


def _read_pairs(corpus: Corpus, forward: Places, backward: Places) -> TrainingBatch:
    stream, targets = np.asarray(corpus.stream), np.asarray(corpus.form_targets)
    # The boundary is stored as 0, which is <S>; where it means </S> it is raised to 1.
    return TrainingBatch(
        forward_inputs=stream.take(forward),
        forward_targets=targets.take(np.maximum(stream.take(forward + 1), 1)),
        backward_inputs=np.maximum(stream.take(backward + 1), 1),
        backward_targets=targets.take(stream.take(backward)),
    )


def stream_layout(forward: npt.NDArray[np.generic], backward: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """Two streams' rows (B, T), each in its own reading order -> (D, T, B).

    The LSTMs walk direction 1 from the last step down, so its rows stand with their first token last.
    """
    return np.stack([forward.T, backward.T[::-1]])
