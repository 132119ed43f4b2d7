"""Context-free vectors of words from their characters, by native: one call for all words of a thread.

Input: ids of characters (N, C) and the weights of a character encoder.  Output: vectors (N, P).

`network/encoder.py` has the same in PyTorch, which runs elsewhere.  In PyTorch the 40 calls of 25 words took as long as
their products, and the sums of filters were written to memory and read again.

Shapes: N words, C characters per word, d width of a character vector, w width of a filter, F channels of all filters, P
width of the result.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from elmokit.kernels.cpu import native
from elmokit.kernels.cpu.native import NativeMatrix
from elmokit.kernels.cpu.threads import in_parallel

WORDS_FOR_TWO_THREADS = 4  # fewer take less time in one thread: each reads all weights


class NativeLinear(NamedTuple):
    """A linear layer."""

    matrix: NativeMatrix  # (K, N)
    bias: Tensor  # (N,)


class WordEncoder(NamedTuple):
    """The weights of a character encoder."""

    characters: Tensor  # (number of characters, d), of ids from 1 on; id 0 is a vector of zeros
    pad: int  # id of the pad character
    filters: Sequence[tuple[Tensor, Tensor]]  # weights (channels, d, w) and biases (channels,)
    is_tanh: bool  # the activation after the filters: tanh, or relu
    highways: Sequence[tuple[NativeLinear, NativeLinear]]  # transform (F, F) and carry (F, F) of each
    projection: NativeLinear | None  # (F, P); None: P is F


class _Filter(ctypes.Structure):
    _fields_ = (
        ("width", ctypes.c_int64),
        ("channels", ctypes.c_int64),
        ("weight", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
    )


class _Linear(ctypes.Structure):
    _fields_ = (("matrix", native.Matrix), ("bias", ctypes.c_void_p), ("num_columns", ctypes.c_int64))


class _Words(ctypes.Structure):
    _fields_ = (
        ("num_characters", ctypes.c_int64),
        ("char_dim", ctypes.c_int64),
        ("max_characters", ctypes.c_int64),
        ("pad", ctypes.c_int64),
        ("characters", ctypes.c_void_p),
        ("num_filters", ctypes.c_int64),
        ("num_channels", ctypes.c_int64),
        ("is_tanh", ctypes.c_int64),
        ("num_highways", ctypes.c_int64),
        ("filters", ctypes.POINTER(_Filter)),
        ("highways", ctypes.POINTER(_Linear)),
        ("projection", ctypes.POINTER(_Linear)),
    )


def encode_words(ids: Tensor, encoder: WordEncoder) -> Tensor:
    """The vectors of words. A word has the same vector to the bit, whatever is encoded with it.

    Half of the words are encoded in the thread of each direction.

    Args:
        ids: (N, C) shifted ids on the host.
        encoder: Weights, float32.

    Returns:
        (N, P).

    Raises:
        IndexError: An id is not in the table of characters.
    """
    ids = ids.to(torch.int64).contiguous()
    num_words, num_characters = len(ids), len(encoder.characters)
    if num_words:
        values = ids.numpy()
        lowest, highest = int(np.min(values)), int(np.max(values))
        if lowest < 0 or highest > num_characters:
            raise IndexError(f"ids run from {lowest} to {highest}, the table has {num_characters} characters")
    num_channels = sum(len(weight) for weight, _ in encoder.filters)
    vectors = ids.new_empty(
        num_words, encoder.projection.matrix.num_columns if encoder.projection else num_channels, dtype=torch.float32
    )
    kept: list[Tensor] = []  # what the library reads, until it returns

    def address(tensor: Tensor) -> int:
        kept.append(tensor.detach().to(torch.float32).contiguous())
        return kept[-1].data_ptr()

    def linear(layer: NativeLinear) -> _Linear:
        return _Linear(layer.matrix.argument(), address(layer.bias), layer.matrix.num_columns)

    filters = [
        _Filter(weight.shape[2], len(weight), address(weight), address(bias)) for weight, bias in encoder.filters
    ]
    highways = [linear(layer) for pair in encoder.highways for layer in pair]
    words = _Words(
        num_characters,
        encoder.characters.shape[1],
        ids.shape[1],
        encoder.pad,
        address(encoder.characters),
        len(filters),
        num_channels,
        encoder.is_tanh,
        len(encoder.highways),
        (_Filter * len(filters))(*filters),
        (_Linear * len(highways))(*highways),
        None if encoder.projection is None else ctypes.pointer(linear(encoder.projection)),
    )
    columns = [layer.matrix.depth * layer.matrix.num_columns for pair in encoder.highways for layer in pair]

    def run(begin: int, end: int) -> None:
        native.call(
            "elmokit_words", ctypes.byref(words), end - begin, ids[begin:].data_ptr(), vectors[begin:].data_ptr()
        )

    middle = (num_words + 1) // 2 if num_words >= WORDS_FOR_TWO_THREADS else num_words
    parts = ((0, middle), (middle, num_words))

    def run_half(half: int) -> None:
        begin, end = parts[half]
        if begin < end:
            native.in_threads(
                lambda first, last: run(begin + first, begin + last), end - begin, work=(end - begin) * sum(columns)
            )

    in_parallel(run_half, 2)
    return vectors
