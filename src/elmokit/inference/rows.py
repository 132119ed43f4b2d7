"""The vectors of a batch as the vectors of each sentence, without padding, in memory of their own.

Input: rows of a batch.  Output: one tensor or array per sentence. It is a copy: a view would keep, and save, the
vectors of the complete batch.
"""

from __future__ import annotations

from collections.abc import Sequence

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
    # two kernels for all sentences: one per sentence would take longer to launch than the network to run
    places = to_device(torch.from_numpy(packed_places(lengths)), rows.device)
    time_first = rows.transpose(-3, -2).flatten(-3, -2)  # (…, T B, 2P), for the layers of an LSTM without a copy
    return split_copies(time_first.index_select(-2, places), lengths)


def split_copies(packed: Tensor, lengths: Sequence[int]) -> list[Tensor]:
    """Parts of the last dimension but one, each in memory of its own.

    Args:
        packed: (…, sum of lengths, 2P), contiguous.
        lengths: Of each part.
    """
    *outer, _, width = packed.shape
    parts = [packed.new_empty((*outer, length, width)) for length in lengths]
    if packed.numel():
        torch.split_with_sizes_copy(packed, list(lengths), dim=packed.ndim - 2, out=parts)
    return parts


def arrays_of(rows: Tensor, lengths: Sequence[int]) -> list[npt.NDArray[np.floating]]:
    """As `tensors_of`, as NumPy arrays in float32 or wider."""
    rows = rows.to(torch.promote_types(rows.dtype, torch.float32)).cpu()  # NumPy has no bfloat16
    return [row.narrow(-2, 0, length).numpy().copy() for row, length in _by_sentence(rows, lengths)]


def _by_sentence(rows: Tensor, lengths: Sequence[int]) -> zip[tuple[Tensor, int]]:
    return zip(rows.unbind(-3), lengths, strict=True)


def packed_places(lengths: Sequence[int]) -> npt.NDArray[np.int64]:
    """Where the tokens of one sentence after the other are, if those of all sentences are laid out time first."""
    sizes = np.array(lengths, np.int64)
    row = np.arange(len(sizes)).repeat(sizes)
    time = np.arange(len(row)) - (sizes.cumsum() - sizes).repeat(sizes)
    return time * len(sizes) + row
