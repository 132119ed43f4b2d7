"""The output layer: scores of words from the top layer of one direction.

Input: hidden states (..., P) of one direction.  Output: scores (..., V), or the log-probability of each target word.
Both directions share one layer.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elmokit.kernels import check_dtype, cpu

# Default number of scores that are held at a time: 256 MiB in float32 on a CPU, and 1 GiB on a GPU, where more chunks
# would cost time because each adds to the (C, P) gradient.
SCORES_PER_CHUNK = {"cpu": 2**26, "cuda": 2**28}


class OutputLayer(nn.Module):
    """The output layer that both directions share: one row and one bias per word of the vocabulary.

    Initial values as published: weight (V, P) from N(0, 1 / sqrt(P)), bias (V,) zero.

    Args:
        num_words: Number of words V.
        dim: Width P of a hidden state.

    Raises:
        ValueError: If a size is less than 1.
    """

    def __init__(self, num_words: int, dim: int) -> None:
        super().__init__()
        if num_words < 1 or dim < 1:
            raise ValueError(f"an output layer needs at least one word and one dimension, not {num_words} and {dim}")
        self.weight = nn.Parameter(torch.randn(num_words, dim) / math.sqrt(dim))
        self.bias = nn.Parameter(torch.zeros(num_words))

    @property
    def num_words(self) -> int:
        """Number of words V."""
        return self.weight.shape[0]

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of every word.

        Args:
            hidden: (..., P).

        Returns:
            (..., V), in the dtype of `hidden`.
        """
        check_dtype(hidden)
        return F.linear(hidden, self.weight.to(hidden.dtype), self.bias.to(hidden.dtype))

    def log_probs(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Log-probability of each target. Only one block of scores is held at a time.

        Args:
            hidden: (..., P).
            targets: (...) word ids.

        Returns:
            (...), in float32 or wider.

        Raises:
            ValueError: If an id is outside the vocabulary (checked on the CPU only).
        """
        flat_hidden, flat_targets = hidden.reshape(-1, hidden.shape[-1]), targets.reshape(-1)
        check_range("target", flat_targets, self.num_words)
        weights = (self.weight, self.bias)
        is_training = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (hidden, *weights))
        if hidden.device.type == "cpu" and hidden.dtype == self.weight.dtype == torch.float32 and not is_training:
            check_dtype(hidden)
            weight, bias = self.weight.detach(), self.bias.detach()
            scores: Tensor = torch.linalg.vecdot(flat_hidden.detach(), weight[flat_targets]) + bias[flat_targets]
            return (scores - cpu.log_sums(flat_hidden, weight, bias)).reshape(targets.shape)
        chunk, losses = chunk_size(None, self.num_words, hidden), []
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
        raise ValueError(f"chunk_tokens is {chunk_tokens}: it must be at least 1")
    return chunk_tokens


def check_range(name: str, ids: Tensor, num_words: int) -> None:
    """Check word ids against the size of the vocabulary, if they are on the CPU."""
    if ids.dtype != torch.int64:
        raise ValueError(f"{name} ids are {ids.dtype}, not torch.int64")
    if ids.is_cuda or not ids.numel():  # reading the values would wait for the GPU
        return
    low, high = (int(value) for value in torch.aminmax(ids))
    if low < 0 or high >= num_words:
        wrong = low if low < 0 else high
        raise ValueError(f"{name} id {wrong} is outside the vocabulary: ids go from 0 to {num_words - 1}")
