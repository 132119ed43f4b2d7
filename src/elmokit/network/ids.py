"""Checks of the ids that a biLM reads.

Input: shifted ids of sentences or of words, as `text/ids.py` makes them, and the `WordIds` of the model.  Output: the
mask of sentences, or a ValueError that names what is wrong with the ids.

Shapes: B sentences, T tokens, N words, C characters per word.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from elmokit.arguments import check_instance
from elmokit.text import WordIds


def token_mask(ids: Tensor, word_ids: WordIds, *, name: str = "ids") -> Tensor:
    """Check the shifted ids of sentences, and return their mask. The host waits once if the ids are on a GPU.

    Args:
        ids: (B, T, C), (B, T) or (B, T, 1 + C).
        word_ids: What the model reads.
        name: Name of the argument, for messages.

    Returns:
        (B, T) bool, True at tokens.

    Raises:
        ValueError: If the ids have a wrong shape, type or range, or padding before a token.
    """
    _check_form(ids, word_ids, "B, T", name)
    mask = ids > 0 if word_ids.num_columns is None else (ids > 0).any(dim=-1)
    has_gap = (mask[:, 1:] & ~mask[:, :-1]).any()
    *extremes, gap = torch.cat([_extremes(ids, word_ids), has_gap.to(ids.dtype).view(1)]).tolist()
    _check_range(extremes, word_ids, name)
    if gap:
        raise ValueError(f"{name} have padding before a token: padding belongs at the end of a row")
    return mask


def check_words(ids: Tensor, word_ids: WordIds) -> None:
    """Check the shifted ids of words; their range only on the host, which does not wait for a GPU.

    Args:
        ids: (N, C), (N,) or (N, 1 + C).
        word_ids: What the model reads.

    Raises:
        ValueError: If the ids have a wrong shape, type or range.
    """
    _check_form(ids, word_ids, "N", "ids")
    if not ids.is_cuda:
        _check_range(_host_extremes(ids, word_ids), word_ids, "ids")


def _check_form(ids: Tensor, word_ids: WordIds, axes: str, name: str) -> None:
    """Check the class, the shape (axes, columns) and the data type of ids."""
    check_instance(name, ids, Tensor, "a tensor, as batch_to_ids and ELMo.to_ids make it")
    columns = word_ids.num_columns
    num_axes = len(axes.split(", ")) + (columns is not None)
    if ids.ndim != num_axes or (columns is not None and ids.shape[-1] != columns):
        wanted = f"({axes})" if columns is None else f"({axes}, {columns})"
        raise ValueError(f"{name} are {tuple(ids.shape)}, this model reads {wanted}: make them with ELMo.to_ids")
    if ids.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"{name} are {ids.dtype}, not torch.int64: make them with batch_to_ids")
    check_dense(ids, name)


def check_dense(ids: Tensor, name: str) -> None:
    """Refuse sparse ids."""
    if ids.layout is not torch.strided:
        raise ValueError(f"{name} are {ids.layout}, not torch.strided: pass {name}.to_dense()")


def _extremes(ids: Tensor, word_ids: WordIds) -> Tensor:
    """The smallest and the largest id of each part of `word_ids.limits`, one after the other; zeros without ids."""
    if not ids.numel():
        return ids.new_zeros(2 * len(word_ids.limits))
    parts = [ids if word_ids.num_columns is None else ids[..., columns] for columns, _ in word_ids.limits]
    return torch.stack([extreme for part in parts for extreme in part.aminmax()])


def _host_extremes(ids: Tensor, word_ids: WordIds) -> list[int]:
    """As `_extremes`, of ids on the host, in NumPy: PyTorch would start OpenMP's threads."""
    values = ids.numpy() if ids.numel() else np.zeros((1, *ids.shape[1:]), np.int64)
    parts = [values if word_ids.num_columns is None else values[..., columns] for columns, _ in word_ids.limits]
    return [int(extreme) for part in parts for extreme in (part.min(), part.max())]


def _check_range(extremes: Sequence[int], word_ids: WordIds, name: str) -> None:
    """Check the ids' extremes, those of `_extremes`."""
    for number, (_, largest) in enumerate(word_ids.limits):
        lowest, highest = extremes[2 * number : 2 * number + 2]
        if lowest < 0 or highest > largest:
            raise ValueError(f"{name} run from {lowest} to {highest}, this model reads 0 to {largest}")
