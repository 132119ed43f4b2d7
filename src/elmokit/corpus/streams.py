"""Batches of the two token streams, forward and backward.

Input: a `Corpus`, whose pairs (see prepared.py) are the predictions of both directions.  Output: `TrainingBatch`es of
(B, unroll) word forms and the vocabulary ids that follow or precede them: endless, in an order given by a seed
(`Streams`), or once, in order (`evaluation_batches`).
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from elmokit.corpus.prepared import Corpus
from elmokit.progress import format_count

CHUNK_PAIRS = 1 << 20  # number of pairs that are looked up at a time; a chunk is many batches

Ints = npt.NDArray[np.int32]
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class TrainingBatch:
    """Word forms and targets of both directions, (B, unroll). Each row continues the same row of the batch before."""

    forward_inputs: Ints
    """Word forms: rows of `Corpus.forms`."""
    forward_targets: Ints
    """Vocabulary ids of the words that follow."""
    backward_inputs: Ints
    """Word forms, from the last one to the first."""
    backward_targets: Ints
    """Vocabulary ids of the words that precede."""
    weights: npt.NDArray[np.float32] | None = None
    """1 for a prediction, 0 for padding; None if all are predictions."""


@dataclass(frozen=True)
class StreamPosition:
    """A position in the streams. The other fields identify the streams."""

    step: int
    """Number of batches read."""
    epoch: int
    rows: int
    unroll: int
    seed: int
    num_pairs: int


class Streams:
    """The two endless token streams of a corpus, in batches of `batch_size` rows.

    Each epoch has its own random order of documents; sentences within a document stay in order. The pairs of all
    documents in that order are cut into one run per row of all processes; the lengths of runs differ by at most one
    pair. Row b reads run b, then its run of the next epoch. The forward stream reads a run from its start, the backward
    stream from its end, so that the carried state is that of the text which follows. A run may begin inside a sentence.

    Each pair occurs once per epoch and direction. Any position is found without reading the text before it. Rank r of n
    processes reads rows r * batch_size to (r + 1) * batch_size of one process with n * batch_size rows.

    Args:
        corpus: The text.
        batch_size: Number of rows of this process.
        unroll: Number of tokens per row and batch.
        seed: Seed of the order of documents.
        shuffle: Shuffle the documents.
        rank: Number of this process.
        world_size: Number of processes.

    Raises:
        ValueError: If a size is not valid, or the corpus has fewer tokens than a batch has rows.
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
                f"{corpus.folder} has {format_count(corpus.num_pairs, 'token')} for the {rows} rows of a batch:"
                " give more text or a smaller batch_size"
            )
        self.corpus, self.shuffle = corpus, shuffle
        self._position = StreamPosition(0, 0, rows, unroll, seed, corpus.num_pairs)
        cuts = np.arange(rank * batch_size, (rank + 1) * batch_size + 1, dtype=np.int64) * corpus.num_pairs // rows
        self._run_starts, self._run_lengths = cuts[:-1], np.diff(cuts)
        self._orders: dict[int, tuple[Indices, Indices]] = {}
        self._chunk_steps = max(1, min(CHUNK_PAIRS // (batch_size * unroll), corpus.num_pairs // (rows * unroll)))
        self._thread = ThreadPoolExecutor(1, "elmokit-streams")
        self._chunks: dict[int, Future[list[TrainingBatch]]] = {}

    @property
    def tokens_per_epoch(self) -> int:
        """Number of predictions per direction and epoch, in all processes together."""
        return self.corpus.num_pairs

    @property
    def state(self) -> StreamPosition:
        """The position of the next batch; it is the same in all processes."""
        return self._position

    def restore(self, position: StreamPosition) -> None:
        """Continue from a position, with the same batches as before.

        Args:
            position: A value of `state`.

        Raises:
            ValueError: If the position belongs to other streams.
        """
        if (own_position := self._at(position.step)) != position:
            raise ValueError(f"{position} is a position in other streams: in these it would be {own_position}")
        self._position = own_position

    def _at(self, step: int) -> StreamPosition:
        """The position after `step` batches."""
        current = self._position
        return replace(current, step=step, epoch=step * current.unroll * current.rows // current.num_pairs)

    def next(self) -> TrainingBatch:
        """The next batch. Batches are looked up in chunks; a thread prepares the next chunk.

        Raises:
            ValueError: If the corpus is damaged.
        """
        number, within = divmod(self._position.step, self._chunk_steps)
        self._chunks = {
            n: self._chunks.get(n) or self._thread.submit(self._read_chunk, n) for n in (number, number + 1)
        }
        batch = self._chunks[number].result()[within]
        self._position = self._at(self._position.step + 1)
        return batch

    def _read_chunk(self, number: int) -> list[TrainingBatch]:
        """The batches of one chunk."""
        unroll = self._position.unroll
        width = self._chunk_steps * unroll
        forward = self._find_pairs(number * width, width, downwards=False)
        backward = self._find_pairs(number * width, width, downwards=True)
        return [
            _read_pairs(self.corpus, forward[:, start : start + unroll], backward[:, start : start + unroll])
            for start in range(0, width, unroll)
        ]

    def _find_pairs(self, start: int, width: int, *, downwards: bool) -> Indices:
        """The pairs (B, width) that each row reads from its `start`-th pair on, counted from the first epoch."""
        lengths = self._run_lengths
        pairs = np.empty((len(lengths), width), np.int64)
        ascending = pairs[:, ::-1] if downwards else pairs  # the same memory
        for epoch in range(start // int(lengths.max()), (start + width - 1) // int(lengths.min()) + 1):
            # The part of its run that each row reads in this epoch, from none to `width` pairs.
            low = np.clip(start - epoch * lengths, 0, lengths)
            high = np.clip(start + width - epoch * lengths, 0, lengths)
            first = self._run_starts + (lengths - high if downwards else low)
            pairs_of_epoch = self._look_up(epoch, first, first + high - low)
            if len(pairs_of_epoch) == pairs.size:
                ascending[:] = pairs_of_epoch.reshape(pairs.shape)
            else:
                read_now = np.arange(start, start + width) // lengths[:, None] == epoch
                ascending[read_now[:, ::-1] if downwards else read_now] = pairs_of_epoch
        return pairs

    def _look_up(self, epoch: int, low: Indices, high: Indices) -> Indices:
        """The pairs from `low` to `high` in the order of the epoch, concatenated over the rows."""
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

    def _order(self, epoch: int) -> tuple[Indices, Indices]:
        """The start of each document in the order of the epoch, and its start in the stream minus that."""
        if epoch not in self._orders:
            documents = np.asarray(self.corpus.documents)
            order = np.arange(len(documents) - 1)
            if self.shuffle:
                # Raw draws are the same in every version of NumPy; permutations may differ.
                draws = np.random.PCG64([self._position.seed, epoch]).random_raw(len(order))
                order = np.argsort(draws, kind="stable")
            begins = np.append(0, np.cumsum(np.diff(documents)[order]))
            self._orders = {e: order for e, order in self._orders.items() if e == epoch - 1}  # some rows still need it
            self._orders[epoch] = begins, documents[:-1][order] - begins[:-1]
        return self._orders[epoch]


def evaluation_batches(corpus: Corpus, *, batch_size: int, unroll: int) -> Iterator[TrainingBatch]:
    """Read a corpus once, in order: each pair occurs once in each direction with weight 1; padding has weight 0.

    Each row reads complete sentences; the rows have about the same length.

    Args:
        corpus: The text.
        batch_size: Number of rows.
        unroll: Number of tokens per row and batch.

    Raises:
        ValueError: If a size is less than 1, or the corpus is damaged.
    """
    if batch_size < 1 or unroll < 1:
        raise ValueError(f"batch_size={batch_size}, unroll={unroll}: both must be at least 1")
    boundaries = np.flatnonzero(np.asarray(corpus.stream) == 0)
    if len(boundaries) != corpus.num_sentences + 1 or boundaries[-1] != corpus.num_pairs:
        raise ValueError(
            f"{corpus.folder / 'stream.bin'} is damaged: it has {len(boundaries)} sentence boundaries for "
            f"{corpus.num_sentences} sentences. Remove {corpus.folder} and prepare the text again"
        )
    cuts = np.arange(batch_size + 1, dtype=np.int64) * corpus.num_pairs // batch_size
    runs = boundaries[np.searchsorted(boundaries, cuts)][:, None]
    starts, ends = runs[:-1], runs[1:]
    for step in range(0, int((ends - starts).max()), unroll):
        offsets = np.arange(step, step + unroll)
        inside = offsets < ends - starts
        forward, backward = np.where(inside, starts + offsets, 0), np.where(inside, ends - 1 - offsets, 0)
        yield replace(_read_pairs(corpus, forward, backward), weights=inside.astype(np.float32))


def _read_pairs(corpus: Corpus, forward: Indices, backward: Indices) -> TrainingBatch:
    """The word forms and targets of pairs (B, T) of both directions."""
    stream, targets = np.asarray(corpus.stream), np.asarray(corpus.form_targets)

    def forms(pairs: Indices) -> Ints:
        return corpus.check_forms(stream.take(pairs))

    # The boundary is stored as 0, which is <S>; where it means </S> it becomes 1.
    return TrainingBatch(
        forward_inputs=forms(forward),
        forward_targets=targets.take(np.maximum(forms(forward + 1), 1)),
        backward_inputs=np.maximum(forms(backward + 1), 1),
        backward_targets=targets.take(forms(backward)),
    )


def stream_layout(forward: npt.NDArray[np.generic], backward: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """Arrange the rows of both streams as the network reads them.

    Args:
        forward: (B, T) in the order of reading.
        backward: (B, T) in the order of reading.

    Returns:
        (D, T, B). Direction 1 is reversed in time, because its LSTMs run from the last step to the first.
    """
    return np.stack([forward.T, backward.T[::-1]])
