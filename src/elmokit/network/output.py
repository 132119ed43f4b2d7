"""The output layer: the top layer of one direction becomes scores of words.

Input: hidden vectors (..., P) of one direction.  Output: scores (..., V), or the log-probability of each target word.
Both directions share one layer.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# Scores held at a time where the caller sets no chunk: 256 MiB in float32 on a CPU, 1 GiB on a GPU, whose products are
# fast enough to notice how often the (C, P) gradient is added to.
SCORES_PER_CHUNK = {"cpu": 2**26, "cuda": 2**28}


class OutputLayer(nn.Module):
    """The softmax layer that both directions share: one row and one bias for each word of the vocabulary."""

    def __init__(self, num_words: int, dim: int) -> None:
        """Start as published: weight (V, P) from N(0, 1 / sqrt(P)), bias (V,) at zero."""
        super().__init__()
        if num_words < 1 or dim < 1:
            raise ValueError(f"an output layer needs at least one word and one dimension, not {num_words} and {dim}")
        self.weight = nn.Parameter(torch.randn(num_words, dim) / math.sqrt(dim))
        self.bias = nn.Parameter(torch.zeros(num_words))

    @property
    def num_words(self) -> int:
        """The size V of the vocabulary."""
        return self.weight.shape[0]

    def logits(self, hidden: Tensor) -> Tensor:
        """Score every word: (..., P) -> (..., V), in the dtype of `hidden`."""
        return F.linear(hidden, self.weight.to(hidden.dtype), self.bias.to(hidden.dtype))

    def log_probs(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Log-probability of each target, (..., P) and (...) -> (...), holding one chunk of scores at a time."""
        flat_hidden, flat_targets = hidden.reshape(-1, hidden.shape[-1]), targets.reshape(-1)
        chunk = chunk_size(None, self.num_words, hidden)
        check_range("target", flat_targets, self.num_words)
        losses = []
        for part, words in zip(torch.split(flat_hidden, chunk), torch.split(flat_targets, chunk), strict=True):
            logits = self.logits(part)  # (chunk, V)
            losses.append(F.cross_entropy(logits.to(accumulation_dtype(logits)), words, reduction="none"))
        return -torch.cat(losses).reshape(targets.shape)


def accumulation_dtype(tensor: Tensor) -> torch.dtype:
    """The dtype of sums: float32 or wider."""
    return torch.promote_types(tensor.dtype, torch.float32)


def chunk_size(chunk_tokens: int | None, num_columns: int, hidden: Tensor) -> int:
    """Number of tokens whose scores are held at a time."""
    if chunk_tokens is None:
        return max(1, SCORES_PER_CHUNK.get(hidden.device.type, SCORES_PER_CHUNK["cpu"]) // num_columns)
    if chunk_tokens < 1:
        raise ValueError(f"chunk_tokens is {chunk_tokens}: at least one token at a time")
    return chunk_tokens


def check_range(name: str, ids: Tensor, num_words: int) -> None:
    """Check word ids against the size of the vocabulary, where they are on the CPU."""
    if ids.dtype != torch.int64:
        raise ValueError(f"{name} ids are {ids.dtype}, not torch.int64")
    if ids.is_cuda or not ids.numel():  # a look at the values would stop the GPU
        return
    low, high = (int(value) for value in torch.aminmax(ids))
    if low < 0 or high >= num_words:
        wrong = low if low < 0 else high
        raise ValueError(f"{name} id {wrong} is outside the vocabulary: ids go from 0 to {num_words - 1}")
