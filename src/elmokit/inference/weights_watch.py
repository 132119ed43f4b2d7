"""Notices that the weights of context-free vectors have changed, so that cached vectors are not used.

Input: a biLM.  Output: a `Look`, whose key is that of the look before if the weights are the same.

PyTorch does not count writes through `.data`, so elements of every weight are compared. Their number is such that a
change of a complete row or column of the published models is noticed.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from elmokit.kernels import product_dtype, samples_of
from elmokit.network import BiLM, to_host

NUM_SAMPLES = 2048  # elements of each weight that are compared
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by their bytes


class WeightsWatch:
    """Compares weights with those of the call before; threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places: tuple[object, ...] = ()  # what changes if PyTorch knows of a change
        # elements of every weight, where they are in memory; those of a weight with gaps are copies, and not kept
        self._views: list[Tensor] = []
        self._samples = torch.empty(0)  # what they were, on the host
        self._generation = 0

    def look(self, bilm: BiLM) -> Look:
        """Start to compare the weights of a biLM with those of the call before.

        The host does not wait for a GPU, except for weights that PyTorch knows to be others.
        """
        weights = bilm.word_parameters()
        tensors = [(w.data_ptr(), 0 if w.is_inference() else w._version, w.dtype, w.device) for w in weights]
        places = (*tensors, product_dtype(weights[0]))
        with self._lock, torch.no_grad():
            if places != self._places:
                self._places = places
                views = _views_of(weights)
                self._views = views if all(weight.is_contiguous() for weight in weights) else []
                return Look(self, self._remember(_joined(views).cpu()), None)
            views = self._views or _views_of(weights)
            answer = _Answer(views, self._samples)
            if weights[0].is_cuda:
                return Look(self, self._generation, answer)
            return Look(self, self._generation if answer.is_same() else self._remember(answer.samples), None)

    def renew(self, samples: Tensor) -> int:
        """Remember samples that differ from the last ones; returns a new key."""
        with self._lock:
            return self._remember(samples)

    def _remember(self, samples: Tensor) -> int:
        self._samples = samples
        self._generation += 1
        return self._generation


class Look:
    """One comparison. On a GPU it is made later: vectors are computed with the key, and again if it changed."""

    def __init__(self, watch: WeightsWatch, key: int, answer: _Answer | None) -> None:
        self.key = key
        self._watch, self._answer = watch, answer

    def begin(self) -> None:
        """Begin the comparison now, not when it is asked for: a GPU that is busy would not get to it."""
        if self._answer is not None:
            self._answer.begin()

    def has_changed(self) -> bool:
        """Whether the key is no longer that of the call before this one; the host waits for the comparison."""
        answer, self._answer = self._answer, None
        if answer is None or answer.is_same():
            return False
        self.key = self._watch.renew(answer.samples)
        return True


class _Answer:
    """A comparison on the host: each operation on a GPU would be a launch."""

    samples: Tensor  # once it is known

    def __init__(self, views: Sequence[Tensor], before: Tensor) -> None:
        self._begin, self._before = _copying(views), before
        self._arrive: Callable[[], Tensor] | None = None

    def begin(self) -> None:
        self._arrive = self._begin()

    def is_same(self) -> bool:
        self.samples = (self._arrive or self._begin())()
        # NumPy, because a comparison in PyTorch would start OpenMP's threads
        return np.array_equal(self.samples.numpy(), self._before.numpy())


def _views_of(weights: Sequence[Tensor]) -> list[Tensor]:
    """Samples of weights as integers, by which a NaN is equal to itself."""
    samples = [samples_of(weight, NUM_SAMPLES) for weight in weights]
    return [part.view(_INTEGERS[part.element_size()]) for part in samples]


def _copying(views: Sequence[Tensor]) -> Callable[[], Callable[[], Tensor]]:
    """A function that begins to copy samples to the host, as they are when all that is launched by now is done.

    On a GPU they are copied in a stream of their own: who waits for them does not wait for what is launched since.
    """
    device = views[0].device
    if device.type != "cuda":
        return lambda: to_host(_joined(views))
    now = torch.cuda.current_stream(device).record_event()

    def begin() -> Callable[[], Tensor]:
        stream = _stream_of_copies(device)
        stream.wait_event(now)
        with torch.cuda.stream(stream):
            return to_host(_joined(views))

    return begin


@functools.cache
def _stream_of_copies(device: torch.device) -> torch.cuda.Stream:
    """A stream beside those that compute."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _joined(views: Sequence[Tensor]) -> Tensor:
    """A copy of all samples, one after the other."""
    if views[0].is_cuda:
        return torch.cat(list(views))
    return torch.from_numpy(np.concatenate([view.numpy() for view in views]))
