"""Batches, made ahead of time by a thread: which distinct words a step reads, and where each of them is.

Input: a corpus and its two streams.  Output: one `Batch` per step, in tensors that a GPU can fetch while it works.  A
word form that occurs often in a batch is encoded once.  Forms are sorted by length into a few groups, each cut to its
longest word: trailing pads cost as much as characters.

Legend of shapes: D = 2 directions, T tokens of a row, B rows, N distinct words of a group, C their characters.
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

GROUPS = (8, 12, 18)  # characters, marks included, of the longest word of each group but the last
Ints = npt.NDArray[Any]
AHEAD = 3  # batches that wait to be taken


@dataclass(frozen=True, eq=False)
class Batch:
    """One batch of both streams, on the host or on the device."""

    words: list[Tensor]
    """Shifted ids of the distinct words of each group: int16 characters (N, C); of a word-level model one group of word
    ids (N,)."""
    index: Tensor
    """(D, T, B): the place of each token among all words, one group after the other."""
    targets: Tensor
    """(D, T, B): the vocabulary id to predict."""

    def tensors(self) -> list[Tensor]:
        """All of them."""
        return [*self.words, self.index, self.targets]


@dataclass(frozen=True, eq=False)
class StepBatches:
    """What one update reads, and the position of the streams after it."""

    batches: list[Batch]
    position: StreamPosition


class BatchMaker:
    """Turns what the streams give into a `Batch`.

    Args:
        corpus: The text.
        config: Sizes of the model, which say how it reads words.
        static_shapes: Pad every group to a size, and to a number of characters, that hardly ever changes, so that a
            recorded CUDA graph fits the next batch: sizes only grow, and leave some room when they do.
    """

    def __init__(self, corpus: Corpus, config: BiLMConfig, *, static_shapes: bool) -> None:
        self._corpus, self._word_ids, self._static = corpus, word_ids_of_sizes(config), static_shapes
        corpus.ids_of(np.zeros(0, np.int64), self._word_ids)  # a corpus that does not fit the model is refused here
        self._widest = max((width for width, _ in config.filters), default=1)
        self._max_characters = self._word_ids.num_columns or 0
        self._longest = sorted({min(longest, self._max_characters) for longest in (*GROUPS, self._max_characters)})
        self._sizes = [0] * len(self._longest)
        self._slots = np.zeros(len(corpus.form_targets), np.int32)

    def make(self, batch: TrainingBatch) -> Batch:
        """Find the distinct forms of both streams, group them, and say where each token's form is."""
        forms = stream_layout(batch.forward_inputs, batch.backward_inputs)
        distinct, inverse = self._distinct(forms.reshape(-1))
        ids = self._corpus.ids_of(distinct, self._word_ids)
        if ids.ndim == 2:
            words, places = self._group(ids)
        else:
            words, places = [self._padded(ids, 0, 1)], np.arange(len(distinct))
        targets = stream_layout(batch.forward_targets, batch.backward_targets)
        return Batch(
            [torch.from_numpy(group) for group in words],
            torch.from_numpy(places[inverse].reshape(forms.shape).astype(np.int64)),
            torch.from_numpy(targets.astype(np.int64)),
        )

    def _distinct(self, forms: Ints) -> tuple[Ints, Ints]:
        """As np.unique with inverse, in the order of the forms' last tokens and without a sort."""
        tokens = np.arange(len(forms), dtype=np.int32)
        self._slots[forms] = tokens  # of equal forms the last token remains
        last = self._slots[forms]
        is_last = last == tokens
        return forms[is_last], (np.cumsum(is_last) - 1)[last]

    def _group(self, ids: Ints) -> tuple[list[Ints], Ints]:
        """Shifted characters (N, C) -> those of each group of forms, and the place of each form among all of them."""
        pad = PAD + 1
        lengths = (ids != pad).sum(axis=1)
        group_of = np.searchsorted(self._longest, lengths)
        words, places, begin = [], np.empty(len(ids), np.int64), 0
        for number, longest in enumerate(self._longest):
            members = np.flatnonzero(group_of == number)
            if not self._static:
                longest = int(lengths[members].max(initial=0))
            columns = min(longest + self._widest, self._max_characters)  # see `CharacterEncoder.trim`
            group = self._padded(ids[members, :columns], number, pad)
            places[members] = begin + np.arange(len(members))
            begin += len(group)
            if len(group):
                words.append(group)
        return words, places

    def _padded(self, group: Ints, number: int, filler: int) -> Ints:
        if not self._static:
            return group
        if len(group) > self._sizes[number]:
            self._sizes[number] = -(-int(1.1 * len(group) + 64) // 128) * 128
        more = self._sizes[number] - len(group)
        return np.concatenate([group, np.full((more, *group.shape[1:]), filler, group.dtype)]) if more else group


class Loader:
    """An endless iterator over what each update reads; a thread works ahead.  Close it when done."""

    def __init__(self, streams: Streams, maker: BatchMaker, *, accumulation: int, pin: bool) -> None:
        self._streams, self._maker, self._accumulation, self._pin = streams, maker, accumulation, pin
        self._ready: queue.Queue[StepBatches | BaseException] = queue.Queue(AHEAD)
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
        """End the thread."""
        self._closed.set()
        while self._thread.is_alive():
            with contextlib.suppress(queue.Empty):  # it may wait for room
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
