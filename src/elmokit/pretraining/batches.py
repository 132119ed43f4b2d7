"""Batches of distinct words, made ahead of time by a thread.

Input: a corpus and its two streams.  Output: the batches of each step, in pinned memory for a GPU.  Each distinct word
of a batch is encoded once.  Words are sorted by length into a few groups, each cut to its longest word, because
trailing pads cost as much as characters.

Shapes: D = 2 directions, T tokens per row, B rows, N distinct words per group, C characters per word.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from elmokit.config import BiLMConfig
from elmokit.corpus import Corpus, StreamPosition, Streams, TrainingBatch
from elmokit.corpus.streams import stream_layout
from elmokit.text import PAD, word_ids_of_sizes

GROUPS = (8, 12, 18)  # length of the longest word of each group but the last, in characters with marks
Ints = npt.NDArray[Any]
QUEUE_SIZE = 3  # steps whose batches are made ahead


@dataclass(frozen=True, eq=False)
class Batch:
    """One batch of both streams, on the host or on the device."""

    words: list[Tensor]
    """Shifted ids of the distinct words of each group: int16 characters (N, C); of a word-level model one group of word
    ids (N,)."""
    index: Tensor
    """(D, T, B): row of each token's word, counted over the concatenated groups."""
    targets: Tensor
    """(D, T, B): vocabulary ids to predict."""

    def tensors(self) -> list[Tensor]:
        """All tensors of the batch."""
        return [*self.words, self.index, self.targets]


@dataclass(frozen=True, eq=False)
class StepBatches:
    """The batches of one update, and the position of the streams after it."""

    batches: list[Batch]
    position: StreamPosition


class BatchMaker:
    """Makes a `Batch` from the word forms of both streams.

    Args:
        corpus: The text.
        config: Sizes of the model.
        static_shapes: Pad groups so that their shapes rarely change and a recorded CUDA graph fits the next batch:
            sizes only grow, each time with some margin.

    Raises:
        ValueError: If the corpus was prepared for another number of characters per word.
    """

    def __init__(self, corpus: Corpus, config: BiLMConfig, *, static_shapes: bool) -> None:
        self._corpus, self._word_ids, self._static = corpus, word_ids_of_sizes(config), static_shapes
        corpus.ids_of(np.zeros(0, np.int64), self._word_ids)  # checks that the corpus fits the model
        self._widest = max((width for width, _ in config.filters), default=1)
        self._max_characters = self._word_ids.num_columns or 0
        self._longest = sorted({min(longest, self._max_characters) for longest in (*GROUPS, self._max_characters)})
        self._sizes = [0] * len(self._longest)
        self._slots = np.zeros(len(corpus.form_targets), np.int32)

    def make(self, batch: TrainingBatch) -> Batch:
        """Group the distinct word forms of both streams.

        Args:
            batch: (B, T) word forms and targets of both streams.
        """
        forms = stream_layout(batch.forward_inputs, batch.backward_inputs)
        distinct, inverse = self._distinct(forms.reshape(-1))
        ids = self._corpus.ids_of(distinct, self._word_ids)
        if ids.ndim == 2:
            words, rows = self._group(ids)
        else:
            words, rows = [self._padded(ids, 0, 1)], np.arange(len(distinct))
        targets = stream_layout(batch.forward_targets, batch.backward_targets)
        return Batch(
            [torch.from_numpy(group) for group in words],
            torch.from_numpy(rows[inverse].reshape(forms.shape).astype(np.int64)),
            torch.from_numpy(targets.astype(np.int64)),
        )

    def _distinct(self, forms: Ints) -> tuple[Ints, Ints]:
        """Distinct forms and the index of each token's form, as `np.unique` with inverse, but without sorting."""
        tokens = np.arange(len(forms), dtype=np.int32)
        self._slots[forms] = tokens  # of equal forms, the last token is kept
        last = self._slots[forms]
        is_last = last == tokens
        return forms[is_last], (np.cumsum(is_last) - 1)[last]

    def _group(self, ids: Ints) -> tuple[list[Ints], Ints]:
        """Shifted characters (N, C) -> the characters of each group, and each form's row in the concatenated groups."""
        pad = PAD + 1
        lengths = (ids != pad).sum(axis=1)
        group_of = np.searchsorted(self._longest, lengths)
        words, rows, begin = [], np.empty(len(ids), np.int64), 0
        for number, longest in enumerate(self._longest):
            members = np.flatnonzero(group_of == number)
            if not self._static:
                longest = int(lengths[members].max(initial=0))
            columns = min(longest + self._widest, self._max_characters)  # see `CharacterEncoder.trim`
            group = self._padded(ids[members, :columns], number, pad)
            rows[members] = begin + np.arange(len(members))
            begin += len(group)
            if len(group):
                words.append(group)
        return words, rows

    def _padded(self, group: Ints, number: int, filler: int) -> Ints:
        """Pad a group to its static size."""
        if not self._static:
            return group
        if len(group) > self._sizes[number]:
            self._sizes[number] = -(-int(1.1 * len(group) + 64) // 128) * 128
        pads = np.full((self._sizes[number] - len(group), *group.shape[1:]), filler, group.dtype)
        return np.concatenate([group, pads]) if len(pads) else group


class Loader:
    """An endless iterator over the batches of each update, which a thread makes ahead.  Close it after use.

    Args:
        streams: The two token streams.
        maker: Makes the batches.
        accumulation: Number of batches per update.
        pin: Copy batches to pinned memory, for a GPU.
    """

    def __init__(self, streams: Streams, maker: BatchMaker, *, accumulation: int, pin: bool) -> None:
        self._streams, self._maker, self._accumulation, self._pin = streams, maker, accumulation, pin
        self._ready: queue.Queue[StepBatches | BaseException] = queue.Queue(QUEUE_SIZE)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="elmokit-loader", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[StepBatches]:
        while True:
            item = self._ready.get()
            if isinstance(item, BaseException):
                raise item
            yield item

    def close(self) -> None:
        """Stop the thread."""
        self._closed.set()
        while self._thread.is_alive():
            with contextlib.suppress(queue.Empty):  # the thread may wait for space in the queue
                self._ready.get(timeout=0.01)
        self._thread.join()

    def _work(self) -> None:
        try:
            while not self._closed.is_set():
                self._ready.put(self._make())
        except BaseException as error:
            self._ready.put(error)

    def _make(self) -> StepBatches:
        batches = [self._maker.make(self._streams.next()) for _ in range(self._accumulation)]
        if self._pin:
            batches = [
                Batch([w.pin_memory() for w in b.words], b.index.pin_memory(), b.targets.pin_memory()) for b in batches
            ]
        return StepBatches(batches, self._streams.state)
