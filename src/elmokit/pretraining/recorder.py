"""CUDA graphs of a training step: recorded once per shape, then replayed.

Input: the parts of a step, as functions without arguments, and the batches they read.  Output: the same results, with
one launch per part.  A part must not wait for the device or depend on a value.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator

import torch

from elmokit.pretraining.batches import Batch

logger = logging.getLogger(__name__)

EAGER_STEPS = 2  # steps of a shape before it is recorded, which compile kernels and allocate workspaces


class GraphRecorder:
    """Runs the parts of a step on a GPU: eagerly for the first steps of a shape, then as recorded graphs.

    Args:
        device: The GPU.
        generators: Random generators that the parts draw from.
    """

    def __init__(self, device: torch.device, generators: list[torch.Generator]) -> None:
        self._generators = generators
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._shapes: list[torch.Size] = []
        self._placed: list[Batch] = []
        self._graphs: dict[str, torch.cuda.CUDAGraph] = {}
        self._num_steps = 0
        self._works = True

    @contextlib.contextmanager
    def stream(self) -> Iterator[None]:
        """Run the work inside this context on the recorder's own stream."""
        self._stream.wait_stream(torch.cuda.current_stream())  # weights may have been made, loaded or measured there
        with torch.cuda.stream(self._stream):
            yield

    def place(self, batches: list[Batch]) -> list[Batch]:
        """Copy batches into the tensors that the graphs read; new shapes discard the graphs."""
        tensors = [tensor for batch in batches for tensor in batch.tensors()]
        shapes = [tensor.shape for tensor in tensors]
        if shapes != self._shapes:
            self._stream.synchronize()  # it may still read the old batches
            device = self._stream.device
            self._placed = [
                Batch(
                    [torch.empty_like(words, device=device) for words in batch.words],
                    torch.empty_like(batch.index, device=device),
                    torch.empty_like(batch.targets, device=device),
                )
                for batch in batches
            ]
            self._shapes, self._graphs, self._num_steps = shapes, {}, 0
        for own, tensor in zip((t for batch in self._placed for t in batch.tensors()), tensors, strict=True):
            own.copy_(tensor, non_blocking=True)
        self._num_steps += 1
        return self._placed

    def run(self, name: str, part: Callable[[], None]) -> None:
        """Run a part, or replay its graph."""
        if not self._works or self._num_steps <= EAGER_STEPS:
            part()
            return
        if name not in self._graphs:
            graph = torch.cuda.CUDAGraph()
            for generator in self._generators:
                graph.register_generator_state(generator)
            try:
                # the only mode in which the loader's thread may pin memory during the recording
                with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                    part()
            except RuntimeError as error:
                logger.warning(
                    "the step cannot be recorded (%s): training continues without CUDA graphs, which is slower", error
                )
                self._works, self._graphs = False, {}
                part()
                return
            self._graphs[name] = graph
        self._graphs[name].replay()
