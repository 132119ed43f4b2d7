"""What the host collects of a batch of examples: frozen dataclasses of tensors.

A field is a tensor, another such dataclass, None, or a number: a size that the shapes of the tensors do not show. Two
batches of the same sizes are computed by the same operations.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor

from elmokit.network import to_device

B = TypeVar("B")  # a batch


def tensors_of(batch: Any) -> Iterator[Tensor]:
    """The tensors of a batch, in the order of its fields."""
    for value in _values(batch):
        if isinstance(value, Tensor):
            yield value
        elif dataclasses.is_dataclass(value):
            yield from tensors_of(value)


def sizes_of(batch: Any) -> tuple[Any, ...]:
    """The shapes and numbers of a batch, in the order of its fields."""
    return tuple(
        value.shape if isinstance(value, Tensor) else sizes_of(value) if dataclasses.is_dataclass(value) else value
        for value in _values(batch)
    )


def with_tensors(batch: B, tensors: Iterable[Tensor]) -> B:
    """The batch with other tensors, in the order of `tensors_of`."""
    rest = iter(tensors)

    def other(value: Any) -> Any:
        if isinstance(value, Tensor):
            return next(rest)
        return with_tensors(value, rest) if dataclasses.is_dataclass(value) else value

    return type(batch)(*map(other, _values(batch)))


def on_device(batch: B, device: torch.device) -> B:
    """Copy the tensors of a batch to a device, without waiting for it."""
    return with_tensors(batch, (to_device(tensor, device) for tensor in tensors_of(batch)))


def fill_up(tensor: Tensor, num_rows: int, value: float = 0) -> Tensor:
    """Append rows of a value, so that there are `num_rows`."""
    if len(tensor) == num_rows:
        return tensor
    return torch.cat([tensor, tensor.new_full((num_rows - len(tensor), *tensor.shape[1:]), value)])


def round_up(size: int, step: int) -> int:
    """Round a size up to one of few: to multiples of `step`, and four sizes between a power of two and the next."""
    step = max(step, 1 << max(0, (size - 1).bit_length() - 3))
    return -(-size // step) * step


def _values(batch: Any) -> list[Any]:
    return [getattr(batch, field.name) for field in dataclasses.fields(batch)]
