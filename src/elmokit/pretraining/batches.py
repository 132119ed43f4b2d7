"""Batches, made ahead of time by a thread: which distinct words a step reads, and where each stands.

Enters: a corpus, its two streams.  Leaves: one `Batch` a step, in tensors that a GPU can fetch while it works.  A word
form that occurs often in a batch is spelled, and will be encoded, once.  Forms are sorted by length into a few groups,
each cut to its longest word: trailing pads cost as much as letters.

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
from elmokit.corpus.heldout import stream_layout
from elmokit.text import PAD

GROUPS = (8, 12, 18)  # characters, marks included, of the longest word of each group but the last
Ints = npt.NDArray[Any]
AHEAD = 3  # batches that wait to be taken


@dataclass(frozen=True, eq=False)
class Batch:
    """One batch of both streams, on the host or on the device."""

    words: list[Tensor]
    """Of each group the distinct words: characters (N, C) int16, ids as the corpus counts them; of a word-level model
    one group of vocabulary ids (N,)."""
    index: Tensor
    """(D, T, B): the place of each token among all words, one group after the other."""
    targets: Tensor
    """(D, T, B): the vocabulary id to predict."""

    def tensors(self) -> list[Tensor]:
        """All of them."""
        return [*self.words, self.index, self.targets]


@dataclass(frozen=True, eq=False)
class StepBatches:
    """What one update reads, and where the streams stand after it."""

    batches: list[Batch]
    position: StreamPosition


class Spelling:
    """Turns what the streams give into a `Batch`.

    With `static_shapes` every group is padded to a size, and to a number of characters, that hardly ever changes, so
    that a recorded CUDA graph fits the next batch: sizes only grow, and leave some room when they do.
    """

    def __init__(self, corpus: Corpus, config: BiLMConfig, *, static_shapes: bool) -> None:
        if config.num_words is None and corpus.forms.shape[1] != config.max_characters:
            raise ValueError(
                f"{corpus.folder} was prepared with {corpus.forms.shape[1]} characters a word, the model reads "
                f"{config.max_characters}: prepare the text again, or set max_characters"
            )
        self._corpus, self._config, self._static = corpus, config, static_shapes
        self._longest = sorted({min(longest, config.max_characters) for longest in (*GROUPS, config.max_characters)})
        self._widest = max(width for width, _ in config.filters) if config.filters else 1
        self._sizes = [0] * len(self._longest)
        self._slots = np.zeros(len(corpus.form_targets), np.int32)

    def spell(self, batch: TrainingBatch) -> Batch:
        """Find the distinct forms of both streams, group them, and say where each token's form stands."""
        forms = stream_layout(batch.forward_inputs, batch.backward_inputs)
        distinct, inverse = self._distinct(forms.reshape(-1))
        if self._config.num_words is None:
            words, places = self._group(distinct)
        else:
            ids = np.asarray(self._corpus.form_targets)[distinct]
            words, places = [self._padded(ids, 0, 0)], np.arange(len(distinct))
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

    def _group(self, distinct: Ints) -> tuple[list[Ints], Ints]:
        """Characters of each group of forms, and the place of each form among all of them."""
        spelled = np.asarray(self._corpus.forms)[distinct]  # (N, C)
        lengths = (spelled != PAD).sum(axis=1)
        group_of = np.searchsorted(self._longest, lengths)
        words, places, begin = [], np.empty(len(distinct), np.int64), 0
        for number, longest in enumerate(self._longest):
            members = np.flatnonzero(group_of == number)
            if not self._static:
                longest = int(lengths[members].max(initial=0))
            # a window of the widest filter at each of the positions 0 ... longest; see `CharacterMaxima`
            columns = min(longest + 1, self._config.max_characters) + self._widest - 1
            group: Ints = np.full((len(members), columns), PAD, np.int16)
            group[:, : spelled.shape[1]] = spelled[members, :columns]
            group = self._padded(group, number, PAD)
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

    def __init__(self, streams: Streams, spelling: Spelling, *, accumulation: int, pin: bool) -> None:
        self._streams, self._spelling, self._accumulation, self._pin = streams, spelling, accumulation, pin
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
        batches = [self._spelling.spell(self._streams.next()) for _ in range(self._accumulation)]
        if self._pin:
            batches = [
                Batch([w.pin_memory() for w in b.words], b.index.pin_memory(), b.targets.pin_memory()) for b in batches
            ]
        return StepBatches(batches, self._streams.state)
