"""Products of rows, the steps of the LSTM and sums of scores in C: one call runs all steps of one direction.

Input: weights (K, N), packed once by `pack` or `pack_int8`; rows.  Output: products, or the results of all steps.
`words.py` calls what encodes words, `block_stack.py` what runs transformer blocks.

`csrc/steps.c` is compiled when a wheel is built and when a checkout is installed (`hatch_build.py`).  Without a
compiler, where the library does not load, and with ELMOKIT_NATIVE=0, `is_fast` is False, and PyTorch computes the same.

A step reads a weight once, from the first to the last byte: weights are packed into blocks of 64 columns, and a block
of a recurrent weight holds the four gates of 16 cells.  A float32 weight that is exactly integers of 8 bits times a
scale per column, as those of the models in the package, is packed as these integers: a step reads a quarter of the
bytes, and the products are rounded as those of any other float32 weight.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import logging
import os
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from elmokit.kernels.cpu.threads import cores_of_caller

FOLDER = Path(__file__).parent
LIBRARY = FOLDER / "csrc" / "libsteps.so"
SOURCES = tuple(FOLDER / "csrc" / name for name in ("steps.c", "kernel.h", "blocks.h", "words.h"))

FLOAT, EXACT, ROUNDED = range(3)  # as in steps.c
LANES, COLUMNS = 16, 64  # cells and columns of a block
STEPS = 127  # int8 values are integers from -127 to 127
ROWS_AT_ONCE = 6  # rows that are multiplied together: a thread of its own is worth it for as many
WORK_OF_A_THREAD = 2**23  # multiplications: a fraction of a millisecond

_log = logging.getLogger(__name__)


class NativeMatrix(NamedTuple):
    """A weight (K, N) in blocks."""

    kind: int
    num_columns: int
    depth: int  # K, filled up with zeros
    values: Tensor  # (blocks, depth, 64) float32 or int8; (blocks, depth / 4, 64, 4) int8 for rounded rows
    scales: Tensor  # (N,) filled up, of int8 values
    offsets: Tensor  # (N,) filled up, int32: what the sums of rounded rows are too large by

    def argument(self) -> Matrix:
        """The matrix as the library takes it; valid as long as the tensors are."""
        parts = (self.values.data_ptr(), self.scales.data_ptr(), self.offsets.data_ptr())
        return Matrix(self.kind, self.depth, len(self.values), *parts)


class Matrix(ctypes.Structure):
    """A `NativeMatrix` as the library takes it."""

    _fields_ = (
        ("kind", ctypes.c_int64),
        ("depth", ctypes.c_int64),
        ("blocks", ctypes.c_int64),
        ("values", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("offsets", ctypes.c_void_p),
    )


class _Layer(ctypes.Structure):
    _fields_ = (
        ("recurrent", Matrix),
        ("projection", Matrix),
        ("output_dim", ctypes.c_int64),
        ("cell_dim", ctypes.c_int64),
        ("cell_clip", ctypes.c_float),
        ("proj_clip", ctypes.c_float),
    )


# ---- the library -----------------------------------------------------------------------------------------------------


@functools.cache
def library() -> ctypes.CDLL | None:
    """The library, or None where it is not there, does not load or was compiled from another source."""
    if os.environ.get("ELMOKIT_NATIVE") == "0":
        return None
    try:
        opened = ctypes.CDLL(str(LIBRARY))
        opened.elmokit_source.restype = ctypes.c_uint32
        is_current = opened.elmokit_source() == zlib.crc32(b"".join(path.read_bytes() for path in SOURCES))
    except (OSError, AttributeError) as error:
        _log.debug("LSTM steps run in PyTorch: %s", error)
        return None
    if not is_current:
        _log.debug("LSTM steps run in PyTorch: %s was compiled from another source", LIBRARY)
        return None
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    opened.elmokit_product.argtypes = [pointer, number, number, number, pointer, pointer, pointer]
    opened.elmokit_steps.argtypes = [pointer, number, pointer, pointer, number, *[pointer] * 4]
    opened.elmokit_words.argtypes = [pointer, number, pointer, pointer]
    opened.elmokit_blocks.argtypes = [pointer, pointer]
    opened.elmokit_add_scores.argtypes = [pointer, pointer, number, number, pointer, pointer]
    return opened


def is_fast(num_rows: int) -> bool:
    """Whether the library is the fastest way to multiply this many rows; without AVX-512 that is one row."""
    opened = library()
    return opened is not None and (num_rows == 1 or is_wide())


def is_wide() -> bool:
    """Whether the processor has AVX-512 with VNNI: then the library is fast for many rows, and computes int8 rows."""
    opened = library()
    return opened is not None and bool(opened.elmokit_is_wide())


# ---- packing ---------------------------------------------------------------------------------------------------------


def pack(weight: Tensor, *, of_gates: bool = False) -> NativeMatrix:
    """A float32 weight (K, N) in blocks; `of_gates` if its columns are four gates."""
    weight = weight.detach()
    scales = exact_scales(weight)
    if scales is None:
        values, none = _blocks(weight, of_gates), weight.new_empty(0)
        return NativeMatrix(FLOAT, weight.shape[1], values.shape[1], values, none, none)
    values = _blocks((weight / scales).round_(), of_gates).to(torch.int8)
    return NativeMatrix(EXACT, weight.shape[1], values.shape[1], values, _row(scales, of_gates), scales.new_empty(0))


def pack_int8(values: Tensor, scales: Tensor, *, of_gates: bool = False) -> NativeMatrix:
    """An int8 weight (K, N) with the scales (N,) of its columns, in blocks; rows are rounded too, when multiplied."""
    blocks = _blocks(values, of_gates)
    offsets = 128 * values.sum(dim=0, dtype=torch.int32)  # rounded rows are 128 too large
    in_fours = blocks.view(len(blocks), blocks.shape[1] // 4, 4, COLUMNS).transpose(2, 3).contiguous()
    return NativeMatrix(
        ROUNDED, values.shape[1], blocks.shape[1], in_fours, _row(scales, of_gates), _row(offsets, of_gates)
    )


def _blocks(weight: Tensor, of_gates: bool) -> Tensor:
    """(K, N) -> (blocks, depth, 64), filled up with zeros."""
    columns = _columns(weight, of_gates)  # (K, blocks, 64)
    return functional.pad(columns, (0, 0, 0, 0, 0, -len(weight) % COLUMNS)).transpose(0, 1).contiguous()


def _row(numbers: Tensor, of_gates: bool) -> Tensor:
    """(N,) in the order of the blocks, filled up with zeros."""
    return _columns(numbers.unsqueeze(0), of_gates).flatten().contiguous()


def _columns(weight: Tensor, of_gates: bool) -> Tensor:
    """(K, N) -> (K, blocks, 64), filled up with zeros."""
    if not of_gates:
        padded = functional.pad(weight, (0, -weight.shape[1] % COLUMNS))
        return padded.reshape(len(weight), padded.shape[1] // COLUMNS, COLUMNS)
    gates = weight.reshape(len(weight), 4, weight.shape[1] // 4)  # (K, 4, C)
    cells = functional.pad(gates, (0, -gates.shape[2] % LANES))
    blocks = cells.reshape(len(weight), 4, cells.shape[2] // LANES, LANES).transpose(1, 2)
    return blocks.reshape(len(weight), cells.shape[2] // LANES, COLUMNS)


def exact_scales(weight: Tensor) -> Tensor | None:
    """The scales (N,) of a weight (K, N) that is exactly integers from -127 to 127 times scales, or None."""
    scales = weight.abs().amax(dim=0).clamp(min=1e-30) / STEPS if len(weight) else weight.new_ones(weight.shape[1])
    for part in (weight[:4], weight):  # of other weights the first rows tell
        if not torch.equal((part / scales).round_().mul_(scales), part):
            return None
    return scales


# ---- computing -------------------------------------------------------------------------------------------------------


def product(rows: Tensor, matrix: NativeMatrix, bias: Tensor | None) -> Tensor:
    """Multiply rows (n, K) by a packed weight (K, N), plus a bias (N,): (n, N)."""
    rows = rows.detach().contiguous()
    bias = None if bias is None else bias.detach().contiguous()
    results = rows.new_empty(len(rows), matrix.num_columns)
    argument = matrix.argument()

    def run(begin: int, end: int) -> None:
        call(
            "elmokit_product",
            ctypes.byref(argument),
            end - begin,
            rows.shape[1],
            matrix.num_columns,
            rows[begin:].data_ptr(),
            None if bias is None else bias.data_ptr(),
            results[begin:].data_ptr(),
        )

    in_threads(run, len(rows), work=rows.numel() * matrix.num_columns)
    return results


def run_steps(
    gates: Tensor,
    steps: list[tuple[int, int]],
    recurrent: NativeMatrix,
    projection: NativeMatrix,
    hidden: Tensor,
    cell: Tensor,
    results: Tensor,
    cell_clip: float | None,
    proj_clip: float | None,
) -> None:
    """Run steps of the LSTM.

    Args:
        gates: (R, 4C) input products and biases of all steps.
        steps: (first row of gates and results, number of active rows) of each step.
        recurrent: (P, 4C), packed with `of_gates`.
        projection: (C, P).
        hidden: (B, P), overwritten.
        cell: (B, C), overwritten.
        results: (R, P), overwritten.
        cell_clip: Bound of the cells.
        proj_clip: Bound of the outputs.
    """
    bounds = (float("inf") if bound is None else bound for bound in (cell_clip, proj_clip))
    layer = _Layer(recurrent.argument(), projection.argument(), hidden.shape[1], cell.shape[1], *bounds)

    def run(begin: int, end: int) -> None:
        # rows are sorted: those of a part are active until a step, and then no more
        counts = [min(max(count - begin, 0), end - begin) for _, count in steps]
        numbers = ctypes.c_int64 * len(steps)
        call(
            "elmokit_steps",
            ctypes.byref(layer),
            len(steps),
            numbers(*(first + begin for first, _ in steps)),
            numbers(*counts),
            end - begin,
            *(part.data_ptr() for part in (gates, results, hidden[begin:], cell[begin:])),
        )

    in_threads(run, len(hidden), work=len(gates) * 5 * hidden.shape[1] * cell.shape[1])


def add_scores(scores: Tensor, bias: Tensor, peaks: Tensor, sums: Tensor) -> None:
    """Add a block of scores to the sums of exponentials of its rows: the log of a row's sum is `peaks + sums.log()`.

    Args:
        scores: (n, m), contiguous; at least one column.
        bias: (m,), added to each row.
        peaks: (n,) the largest scores, -inf at first; updated.
        sums: (n,) float64, of the exponentials of scores minus `peaks`, 0 at first; updated.
    """
    pointers = (part.data_ptr() for part in (peaks, sums))
    call("elmokit_add_scores", scores.data_ptr(), bias.data_ptr(), *scores.shape, *pointers)


def call(name: str, *arguments: Any) -> None:
    """Call a function of the library.

    Raises:
        MemoryError: It has no memory.
    """
    if getattr(library(), name)(*arguments):
        raise MemoryError(f"{name} has no memory for its rows")


def in_threads(run: Callable[[int, int], None], num_rows: int, *, work: int) -> None:
    """Call run(begin, end) for parts of the rows, in as many threads as the caller may use."""
    parts = min(cores_of_caller(), num_rows // ROWS_AT_ONCE, work // WORK_OF_A_THREAD)
    if parts < 2:
        return run(0, num_rows)
    bounds = [num_rows * part // parts for part in range(parts + 1)]
    own, *others = itertools.pairwise(bounds)
    futures = [_pool().submit(run, *part) for part in others]
    run(*own)
    for future in futures:
        future.result()


@functools.cache
def _pool() -> ThreadPoolExecutor:
    """Threads for parts of rows, apart from those of the directions, which wait for them."""
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="elmokit-rows")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # a child has the pool but not its threads
