"""The vectors of a batch as the vectors of each sentence, without padding, in memory of their own.

Input: rows of a batch.  Output: one tensor or array per sentence. It is a copy: a view would keep, and save, the
vectors of the complete batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from elmokit.network import to_device


def tensors_of(rows: Tensor, lengths: Sequence[int]) -> list[Tensor]:
    """The vectors of each sentence.

    Args:
        rows: (…, B, T, 2P); what follows a sentence is not read.
        lengths: B numbers of tokens.

    Returns:
        (…, its number of tokens, 2P) of each sentence, on the device of `rows`.
    """
    if not rows.is_cuda or len(lengths) == 1:
        return [row.narrow(-2, 0, length).clone() for row, length in _by_sentence(rows, lengths)]
    return packed_copies(rows, lengths)


def packed_copies(rows: Tensor, lengths: Sequence[int]) -> list[Tensor]:
    """As `tensors_of`, by few kernels: to launch one per sentence takes longer than to run the network."""
    *outer, _, _, width = rows.shape
    num_layers = math.prod(outer)
    time_first = rows.transpose(-3, -2).reshape(-1, width)  # (… T B, 2P), for the layers of an LSTM without a copy
    places = to_device(torch.from_numpy(packed_places(lengths, num_layers, rows.shape[-2])), rows.device)
    packed = time_first.index_select(0, places)  # one sentence after the other, each (…, its number of tokens, 2P)
    views: list[Tensor] = []
    for length, same in groupby(lengths):
        count = sum(1 for _ in same)
        begin, packed = packed[: count * num_layers * length], packed[count * num_layers * length :]
        views.extend(begin.view(count, *outer, length, width).unbind())
    # each in memory of its own: allocated from Python, they would take as long as the network
    return list(torch._foreach_mul(views, 1))


def arrays_of(rows: Tensor, lengths: Sequence[int]) -> list[npt.NDArray[np.floating]]:
    """As `tensors_of`, as NumPy arrays in float32 or wider."""
    rows = rows.to(torch.promote_types(rows.dtype, torch.float32)).cpu()  # NumPy has no bfloat16
    return [row.narrow(-2, 0, length).numpy().copy() for row, length in _by_sentence(rows, lengths)]


def _by_sentence(rows: Tensor, lengths: Sequence[int]) -> zip[tuple[Tensor, int]]:
    return zip(rows.unbind(-3), lengths, strict=True)


def packed_places(lengths: Sequence[int], num_layers: int, num_steps: int) -> npt.NDArray[np.int64]:
    """Where the tokens of each sentence are, layer after layer, in rows laid out as (num_layers, num_steps, B)."""
    num_rows = len(lengths)
    sizes = np.array(lengths, np.int64).repeat(num_layers)  # of the layers of each sentence
    first = (np.arange(num_layers) * (num_steps * num_rows) + np.arange(num_rows)[:, None]).ravel()  # places of them
    begins = sizes.cumsum() - sizes
    from_zero = (first - begins * num_rows).repeat(sizes)  # where the first token of the batch would be, in their steps
    places: npt.NDArray[np.int64] = from_zero + np.arange(len(from_zero)) * num_rows
    return places
