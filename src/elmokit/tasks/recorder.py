"""CUDA graphs of the updates of a task: recorded once for each size of a batch, then replayed.

Input: a function that computes the loss of a batch and its gradients, and batches on the host. Output: the same loss
and gradients, with one launch. The function must not wait for the device or depend on a value, and it must write the
gradients to the same tensors each time.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeVar

import torch
from torch import Tensor

from elmokit.tasks.batches import sizes_of, tensors_of, with_tensors

logger = logging.getLogger(__name__)

EAGER_BATCHES = 2  # batches of a size before it is recorded, which load kernels and allocate workspaces and gradients
MAX_GRAPHS = 64  # batches of other sizes are computed eagerly
ALIGNMENT = 512  # of tensors in one piece of memory, in bytes, as PyTorch's allocator has it

B = TypeVar("B")  # a batch


@dataclass(frozen=True)
class Recorded:
    """The graph of one size."""

    graph: torch.cuda.CUDAGraph
    memory: Tensor
    """Where it reads the batch."""
    loss: Tensor
    """What it writes."""


class Recorder:
    """Computes batches on a GPU: the first ones of a size eagerly, the others by a recorded graph.

    A batch has the same random numbers in both cases.

    Args:
        device: The GPU.
        compute: Computes the gradients of a batch on the device, and returns its loss.
    """

    def __init__(self, device: torch.device, compute: Callable[[Any], Tensor]) -> None:
        self._compute = compute
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()
        self._memory = torch.empty(0, dtype=torch.uint8, device=device)
        self._counts = Counter[Any]()
        self._graphs: dict[Any, Recorded] = {}
        self._works = True

    @property
    def num_graphs(self) -> int:
        """Number of sizes that are recorded."""
        return len(self._graphs)

    @contextlib.contextmanager
    def stream(self) -> Iterator[None]:
        """Run the work inside this context on the recorder's own stream."""
        outside = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(outside)  # weights may have been made, loaded or read there
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            outside.wait_stream(self._stream)

    def run(self, batch: Any) -> Tensor:
        """Compute a batch, inside `stream`.

        Args:
            batch: A batch on the host (see batches.py).

        Returns:
            The loss. Its memory is written again by later batches.
        """
        sizes, offsets = sizes_of(batch), _offsets(batch)
        recorded = self._graphs.get(sizes)
        if recorded is not None:
            self._place(batch, offsets, recorded.memory)
            recorded.graph.replay()
            return recorded.loss
        if len(self._memory) < offsets[-1]:
            self._memory = self._memory.new_empty(2 * offsets[-1])
        placed = self._place(batch, offsets, self._memory)
        self._counts[sizes] += 1
        if self._works and self._counts[sizes] > EAGER_BATCHES and len(self._graphs) < MAX_GRAPHS:
            recorded = self._record(placed)
            if recorded is not None:
                self._graphs[sizes] = recorded
                recorded.graph.replay()
                return recorded.loss
        return self._compute(placed)

    def _record(self, placed: Any) -> Recorded | None:
        """Record the graph of a batch without computing it; None, after a warning, if that is not possible."""
        graph, generator = torch.cuda.CUDAGraph(), torch.cuda.default_generators[self._stream.device.index]
        before = generator.clone_state()
        try:
            # not `torch.cuda.graph`, which empties the caches of memory each time; other threads may use the GPU
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                loss = self._compute(placed)
            finally:
                graph.capture_end()
        except RuntimeError as error:
            logger.warning("an update cannot be recorded (%s): training continues without CUDA graphs", error)
            self._works = False
            self._graphs.clear()
            generator.graphsafe_set_state(before)  # it would still expect a recording
            return None
        return Recorded(graph, self._memory, loss)

    def _place(self, batch: B, offsets: Sequence[int], memory: Tensor) -> B:
        """Copy the tensors of a batch into memory of the device, in one piece and without waiting for it."""
        tensors = list(tensors_of(batch))
        host = torch.empty(offsets[-1], dtype=torch.uint8, pin_memory=True)
        for tensor, offset in zip(tensors, offsets, strict=False):
            _view(host, offset, tensor).copy_(tensor)
        memory[: len(host)].copy_(host, non_blocking=True)
        return with_tensors(
            batch, [_view(memory, offset, tensor) for tensor, offset in zip(tensors, offsets, strict=False)]
        )


def _offsets(batch: Any) -> list[int]:
    """Where each tensor of a batch begins in one piece of memory, in bytes, and where the last one ends."""
    sizes = (-(-tensor.nbytes // ALIGNMENT) * ALIGNMENT for tensor in tensors_of(batch))
    return list(accumulate(sizes, initial=0))


def _view(memory: Tensor, offset: int, like: Tensor) -> Tensor:
    """A tensor of the shape and dtype of another, in memory."""
    return memory[offset : offset + like.nbytes].view(like.dtype).view(like.shape)
