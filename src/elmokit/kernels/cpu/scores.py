"""Sums of the exponentials of scores, without all scores in memory.

Input: rows (N, P), and the weight (V, P) and bias (V,) of an output layer, float32.
Output: the log of the sum of the exponentials of each row's scores (N,).

All scores of a row do not fit into the cache: writing and reading them takes longer than their product. A block of
scores is summed while it is in the cache, by native in two reads, or by PyTorch, whose logsumexp has about six.
"""

from __future__ import annotations

import torch
from torch import Tensor

from elmokit.kernels.cpu import native
from elmokit.kernels.cpu.threads import in_parallel

ROWS_AT_ONCE, WORDS_AT_ONCE = 512, 512  # a block of scores that stays in the cache of a core


def log_sums(rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The log of the sum of the exponentials of each row's scores, without gradients.

    Each half of the rows has a thread with half of the cores.

    Args:
        rows: (N, P).
        weight: (V, P).
        bias: (V,).

    Returns:
        (N,).
    """
    rows, weight, bias = rows.detach(), weight.detach(), bias.detach().contiguous()
    blocks = list(zip(torch.split(weight, WORDS_AT_ONCE), torch.split(bias, WORDS_AT_ONCE), strict=True))
    sum_blocks = _sum_blocks if native.library() is None else _sum_blocks_natively
    results = rows.new_empty(len(rows))

    def run(some: Tensor, found: Tensor) -> None:
        memory = rows.new_empty(ROWS_AT_ONCE * WORDS_AT_ONCE)  # new memory for each block would not be in the cache
        for part, result in zip(torch.split(some, ROWS_AT_ONCE), torch.split(found, ROWS_AT_ONCE), strict=True):
            result.copy_(sum_blocks(part, blocks, memory))

    halves = list(zip(rows.tensor_split(2), results.tensor_split(2), strict=True))
    in_parallel(lambda half: run(*halves[half]), 2)
    return results


def _sum_blocks(rows: Tensor, blocks: list[tuple[Tensor, Tensor]], memory: Tensor) -> Tensor:
    sums = []
    for weight, bias in blocks:
        scores = memory[: len(rows) * len(weight)].view(len(rows), len(weight))
        sums.append(torch.addmm(bias, rows, weight.t(), out=scores).logsumexp(dim=1))
    return torch.stack(sums).logsumexp(dim=0)


def _sum_blocks_natively(rows: Tensor, blocks: list[tuple[Tensor, Tensor]], memory: Tensor) -> Tensor:
    peaks, sums = rows.new_full((len(rows),), float("-inf")), rows.new_zeros(len(rows), dtype=torch.float64)
    for weight, bias in blocks:
        scores = memory[: len(rows) * len(weight)].view(len(rows), len(weight))
        native.add_scores(torch.mm(rows, weight.t(), out=scores), bias, peaks, sums)
    return sums.log_().add_(peaks)
