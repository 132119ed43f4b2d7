"""Rows that are alive at each step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

HOISTED_ROWS = 128  # rows of the input product at a time: enough for full speed, few enough to stay in the cache


class LiveRows(NamedTuple):
    """The live rows of all steps as one matrix (R, P): step after step, at each the longest sentences first.

    So the rows alive at a step are a slice, and among the sorted rows of the state they are a prefix.
    """

    counts: list[int]  # rows alive at each step
    order: Tensor  # (B,) sentences, longest first
    places: Tensor | None  # (R,) where each row stands among T * B; None where all rows live at all steps

    def gather(self, steps: Tensor) -> Tensor:
        """(T, B, P) -> (R, P)."""
        flat = steps.reshape(-1, steps.shape[-1])
        return flat if self.places is None else flat[self.places]

    def scatter(self, rows: Tensor, steps: Tensor) -> None:
        """(R, P) into (T, B, P), with zeros where no row is alive."""
        flat = steps.view(-1, steps.shape[-1])
        if self.places is None:
            flat.copy_(rows)
        else:
            flat.zero_()[self.places] = rows

    def sort(self, state: Tensor) -> Tensor:
        """(B, …) with the longest sentence first; a copy."""
        return state[self.order]

    def unsort(self, ordered: Tensor, state: Tensor) -> None:
        """The way back, into `state`."""
        state[self.order] = ordered


def live_rows(lengths: Tensor, num_steps: int) -> LiveRows:
    """Which rows of (T, B) are alive."""
    num_rows = len(lengths)
    ordered, order = lengths.sort(descending=True, stable=True)
    live = torch.arange(num_steps).unsqueeze(1) < ordered  # (T, B)
    counts = live.sum(dim=1).tolist()
    if sum(counts) == num_steps * num_rows:
        return LiveRows(counts, order, None)  # nothing to sort: the sort is stable
    places = (torch.arange(num_steps).unsqueeze(1) * num_rows + order)[live]
    return LiveRows(counts, order, places)


def steps_of(counts: list[int], *, reverse: bool) -> list[tuple[int, int]]:
    """(first row, rows) of each live step, in the order of the walk."""
    steps, row = [], 0
    for n in counts:
        if n:
            steps.append((row, n))
            row += n
    return steps[::-1] if reverse else steps


def blocks(counts: list[int], *, reverse: bool) -> Iterator[tuple[int, int, list[tuple[int, int]]]]:
    """Cut the live steps into runs of about HOISTED_ROWS rows: (first row, end row, steps)."""
    steps = steps_of(counts, reverse=reverse)
    block: list[tuple[int, int]] = []
    num_rows = 0
    for k, (row, n) in enumerate(steps):
        block.append((row, n))
        num_rows += n
        if num_rows >= HOISTED_ROWS or k == len(steps) - 1:
            first = min(block[0][0], row)
            yield first, first + num_rows, block
            block, num_rows = [], 0
