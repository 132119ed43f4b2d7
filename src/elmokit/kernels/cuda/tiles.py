"""How the products of one layer are divided into tiles.

Input: the sizes of a layer, a dtype and a device.  Output: a `Plan` for the forward or the backward loop.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True)
class Tile:
    """What one program of a product computes at a time."""

    rows: int
    columns: int  # in the first product of the forward loop: cells, each with four gates
    depth: int
    warps: int
    stages: int


@dataclass(frozen=True)
class Plan:
    """The tiles of one time loop: of the product on the side of the cells, and on the side of the hidden state."""

    cells: Tile
    hidden: Tile
    split: int  # number of parts of the sum behind the hidden state, so that all processors have work
    hoisted: bool = False  # forward only: the inputs' part of the gates is computed before the loop
    looped: bool = True  # all steps in one launch
    early: bool = False  # hoisted only: cells and the inputs' part are loaded before the product of their gates


class Device(NamedTuple):
    """The properties of a GPU that a plan depends on."""

    processors: int
    large: bool  # whether the shared memory of a processor holds the large tiles, which its matrix units need


@functools.lru_cache(maxsize=1024)
def plan_forward(rows: int, cells: int, width: int, dtype: torch.dtype, device: Device, *, save: bool = False) -> Plan:
    """The tiles of the forward loop, as measured on an H200.

    Args:
        rows: Number of sentences B.
        cells: Padded number of cells C.
        width: Padded projection width K.
        dtype: Of the inputs and weights.
        device: The GPU.
        save: Whether activations are saved, for training.
    """
    hoisted = early = False
    if not device.large:
        a, b = Tile(64, 32, 32, 4, 2), Tile(64, 32, 32, 4, 2)
    elif dtype == torch.float32:
        a, b = Tile(64, 64, 32, 8, 3), Tile(64, 64, 32, 8, 3)
    elif rows <= 64:
        # the recurrent half of the weights stays in the cache between steps, both halves would not
        high = 16 if rows <= 16 else 32 if rows <= 32 else 64
        a, b, hoisted = Tile(high, 64, 64, 8, 4), Tile(high, 64, 64, 8, 4), True
        if high == 64 and width > 128 and not save:
            a, early = Tile(64, 64, 32, 8, 6), True
    elif rows > 2048 and width > 128:
        a, b = Tile(128, 64, 64, 8, 3), Tile(128, 128, 64, 8, 3)
    else:
        full = 2 * (cells // 64) * -(-rows // 128) > 0.7 * device.processors
        a = Tile(128 if full else 64, 64, 64, 8, 4)
        b = Tile(64, 32, 64, 8, 4) if width <= 128 and 512 < rows <= 2048 else Tile(128, 64, 64, 8, 4)
    b = dataclasses.replace(b, columns=math.gcd(b.columns, width))
    return Plan(a, b, _split(rows, width, cells, b, device), hoisted, early=early)


def plan_backward(rows: int, cells: int, width: int, dtype: torch.dtype, device: Device) -> Plan:
    """The tiles of the backward loop; arguments as for `plan_forward`."""
    if not device.large:
        a, b = Tile(64, 32, 32, 4, 2), Tile(64, 32, 32, 4, 2)
    elif dtype == torch.float32:
        a, b = Tile(64, 64, 32, 8, 3), Tile(64, 64, 32, 8, 3)
    else:
        high = 128 if rows > 64 else 64
        a, b = Tile(high, 256, 64, 8, 3), Tile(high, 256, 64, 8, 3)
    a = dataclasses.replace(a, columns=math.gcd(a.columns, cells))
    b = dataclasses.replace(b, columns=math.gcd(b.columns, width))
    return Plan(a, b, _split(rows, width, 4 * cells, b, device))


def _split(rows: int, width: int, depth: int, tile: Tile, device: Device) -> int:
    """Number of parts of a sum over `depth`, a power of two: the tiles of two directions then fill the processors."""
    tiles = 2 * -(-rows // tile.rows) * (width // tile.columns)
    parts = 1
    while 2 * parts * tiles <= device.processors and depth % (2 * parts * tile.depth) == 0:
        parts *= 2
    return parts


def device_of(tensor: Tensor) -> Device:
    """The GPU that holds a tensor; for a CPU tensor (Triton's interpreter) one processor."""
    return _cuda_device(tensor.device) if tensor.is_cuda else Device(1, large=False)


@functools.cache
def _cuda_device(device: torch.device) -> Device:
    properties = torch.cuda.get_device_properties(device)
    return Device(properties.multi_processor_count, large=properties.major == 9)
