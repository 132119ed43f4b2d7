"""The active rows of each step: sentences that still have tokens.

Input: lengths (B,) of one direction.  Output: which rows are active at each step, how to gather them into one matrix,
and how the steps are grouped for the input product.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

HOISTED_ROWS = 64  # rows per input product: enough for full speed, few enough to stay in the cache


class ActiveRows(NamedTuple):
    """The active rows of all steps as one matrix (R, P): step after step, the longest sentence of each step first.

    The rows of one step are a slice of this matrix, and a prefix of the sorted rows of the state.
    """

    counts: list[int]  # number of active rows at each step
    order: Tensor | None  # (B,) sentences, the longest first; None: as they are
    positions: Tensor | None  # (R,) position of each row among T * B; None if all rows are active at all steps

    def gather(self, steps: Tensor) -> Tensor:
        """(T, B, P) -> (R, P)."""
        flat = steps.reshape(-1, steps.shape[-1])
        return flat if self.positions is None else flat[self.positions]

    def scatter(self, rows: Tensor, steps: Tensor) -> None:
        """Write (R, P) into `steps` (T, B, P), and zeros where no row is active."""
        flat = steps.view(-1, steps.shape[-1])
        if self.positions is None:
            flat.copy_(rows)
        else:
            flat.zero_()[self.positions] = rows

    def sort(self, state: Tensor) -> Tensor:
        """A copy of (B, …) with the longest sentence first."""
        return state.clone() if self.order is None else state[self.order]

    def unsort(self, ordered: Tensor, state: Tensor) -> None:
        """Write the sorted rows into `state` (B, …), in the order of the sentences."""
        if self.order is None:
            state.copy_(ordered)
        else:
            state[self.order] = ordered


def active_rows(lengths: Tensor, num_steps: int) -> ActiveRows:
    """The active rows of (T, B): row b is active at steps t < lengths[b]."""
    num_rows = len(lengths)
    if num_rows == 1:  # one sentence has nothing to sort, and is short work
        length = int(lengths[0])
        positions = None if length == num_steps else torch.arange(length)
        return ActiveRows([1] * length + [0] * (num_steps - length), None, positions)
    ordered, order = lengths.sort(descending=True, stable=True)
    active = torch.arange(num_steps).unsqueeze(1) < ordered  # (T, B)
    counts = active.sum(dim=1).tolist()
    if sum(counts) == num_steps * num_rows:
        return ActiveRows(counts, order, None)  # the stable sort has changed nothing
    positions = (torch.arange(num_steps).unsqueeze(1) * num_rows + order)[active]
    return ActiveRows(counts, order, positions)


def steps_of(counts: list[int], *, reverse: bool) -> list[tuple[int, int]]:
    """(first row, number of rows) of each step with active rows, in the order of the forward pass."""
    steps, row = [], 0
    for n in counts:
        if n:
            steps.append((row, n))
            row += n
    return steps[::-1] if reverse else steps


class Block(NamedTuple):
    """Consecutive steps whose inputs are multiplied together."""

    begin: int  # first row
    end: int
    steps: list[tuple[int, int]]


def blocks(counts: list[int], *, reverse: bool) -> Iterator[Block]:
    """Group the steps into blocks of about HOISTED_ROWS rows."""
    all_steps = steps_of(counts, reverse=reverse)
    steps: list[tuple[int, int]] = []
    num_rows = 0
    for k, (row, n) in enumerate(all_steps):
        steps.append((row, n))
        num_rows += n
        if num_rows >= HOISTED_ROWS or k == len(all_steps) - 1:
            first = min(steps[0][0], row)
            yield Block(first, first + num_rows, steps)
            steps, num_rows = [], 0
