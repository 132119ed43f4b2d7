"""What the networks of the tasks are built from.

Enters: vectors (B, T, D) and their mask (B, T), True where a token stands.  Leaves: vectors, pooled vectors, or the
tags of a sequence.  Padding never changes a result, and a sentence without tokens has one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

NEVER = -1e4  # the score of what may not be: far below any other, and still a number


class LockedDropout(nn.Module):
    """Dropout that leaves out the same features at every token of a sentence."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        if not self.training or not self.rate:
            return x
        kept = torch.empty_like(x[:, :1]).bernoulli_(1 - self.rate)
        return x * kept / (1 - self.rate)


class BiLSTM(nn.Module):
    """LSTMs in both directions, dropout after each layer; padding leaves as zeros."""

    def __init__(self, input_dim: int, hidden_dim: int, *, num_layers: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        widths = [input_dim, *[2 * hidden_dim] * num_layers]
        self.output_dim = widths[-1]
        self.layers = nn.ModuleList(
            nn.LSTM(width, hidden_dim, batch_first=True, bidirectional=True) for width in widths[:-1]
        )
        self.dropout = LockedDropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(B, T, D), (B, T) -> (B, T, 2H)."""
        lengths = mask.sum(dim=1).clamp(min=1).cpu()  # packing knows no empty rows; what they give is masked below
        for layer in self.layers:
            packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            x, _ = pad_packed_sequence(layer(packed)[0], batch_first=True, total_length=mask.shape[1])
            x = self.dropout(x)
        return x * mask.unsqueeze(-1)


class AttentionPool(nn.Module):
    """The tokens' mean, weighted by a learned score of each."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.score = nn.Linear(dim, 1)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(B, T, D), (B, T) -> (B, D)."""
        weights = masked_softmax(self.score(x).squeeze(-1), mask)  # (B, T)
        return torch.einsum("bt,btd->bd", weights, x)


def masked_softmax(scores: Tensor, mask: Tensor, dim: int = -1) -> Tensor:
    """Softmax over what the mask (broadcast) lets through; zeros where it lets nothing through."""
    return scores.masked_fill(~mask, NEVER).softmax(dim) * mask


def masked_max(x: Tensor, mask: Tensor) -> Tensor:
    """(B, T, D), (B, T) -> (B, D): the largest over the tokens; zeros where there is none."""
    largest = x.masked_fill(~mask.unsqueeze(-1), NEVER).amax(dim=1)
    return largest * mask.any(dim=1, keepdim=True)


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """(B, T, D), (B, T) -> (B, D): the mean over the tokens; zeros where there is none."""
    live = mask.unsqueeze(-1).to(x.dtype)
    return (x * live).sum(dim=1) / live.sum(dim=1).clamp(min=1)


class CRF(nn.Module):
    """A linear-chain conditional random field over K tags (Lafferty et al., 2001).

    The score of a tag sequence is the sum of its emissions and of its transitions, one into the first tag and one out
    of the last among them.  `allowed` constrains decoding alone: gold tags that break it still train.
    """

    def __init__(self, num_tags: int, *, allowed: Tensor | None = None, allowed_first: Tensor | None = None) -> None:
        """`allowed` (K, K): may tag j follow tag i; `allowed_first` (K,): may a sequence begin with it."""
        super().__init__()
        self.transitions = nn.Parameter(torch.empty(num_tags, num_tags).uniform_(-0.1, 0.1))
        self.first = nn.Parameter(torch.empty(num_tags).uniform_(-0.1, 0.1))
        self.last = nn.Parameter(torch.empty(num_tags).uniform_(-0.1, 0.1))
        self.allowed: Tensor
        self.allowed_first: Tensor
        everything = torch.ones(num_tags, num_tags, dtype=torch.bool)
        self.register_buffer("allowed", everything if allowed is None else allowed, persistent=False)
        self.register_buffer(
            "allowed_first", everything[0].clone() if allowed_first is None else allowed_first, persistent=False
        )

    def log_likelihood(self, emissions: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
        """(B, T, K), (B, T), (B, T) -> (B,): log p(tags | emissions); 0 for a sentence without tokens."""
        return (self._score(emissions, tags, mask) - self._log_partition(emissions, mask)) * mask.any(dim=1)

    def _score(self, emissions: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
        live = mask.to(emissions.dtype)
        emitted = (emissions.gather(2, tags.unsqueeze(2)).squeeze(2) * live).sum(dim=1)
        moved = (self.transitions[tags[:, :-1], tags[:, 1:]] * live[:, 1:]).sum(dim=1)
        ends = tags.gather(1, (mask.sum(dim=1, keepdim=True) - 1).clamp(min=0)).squeeze(1)
        return emitted + moved + self.first[tags[:, 0]] + self.last[ends]

    def _log_partition(self, emissions: Tensor, mask: Tensor) -> Tensor:
        """The forward algorithm: log of the sum of exp(score) over all tag sequences."""
        alphas = self.first + emissions[:, 0]  # (B, K)
        for time in range(1, emissions.shape[1]):
            moved = (alphas.unsqueeze(2) + self.transitions).logsumexp(dim=1) + emissions[:, time]
            alphas = torch.where(mask[:, time, None], moved, alphas)
        return (alphas + self.last).logsumexp(dim=1)

    @torch.no_grad()
    def decode(self, emissions: Tensor, mask: Tensor) -> list[list[int]]:
        """(B, T, K), (B, T) -> the best allowed tags of each sentence (Viterbi)."""
        transitions = self.transitions.masked_fill(~self.allowed, NEVER)
        best = self.first.masked_fill(~self.allowed_first, NEVER) + emissions[:, 0]  # (B, K)
        stay = torch.arange(best.shape[1], device=best.device).expand_as(best)
        came_from = []
        for time in range(1, emissions.shape[1]):
            scores, sources = (best.unsqueeze(2) + transitions).max(dim=1)
            live = mask[:, time, None]
            best = torch.where(live, scores + emissions[:, time], best)
            came_from.append(torch.where(live, sources, stay))
        tag = (best + self.last).argmax(dim=1)  # (B,)
        path = [tag]
        for sources in reversed(came_from):
            tag = sources.gather(1, tag.unsqueeze(1)).squeeze(1)
            path.append(tag)
        rows: list[list[int]] = torch.stack(path[::-1], dim=1).tolist()
        return [row[:length] for row, length in zip(rows, mask.sum(dim=1).tolist(), strict=True)]


def bio_rules(tags: Sequence[str]) -> tuple[Tensor, Tensor]:
    """`allowed` and `allowed_first` for tags of the B-/I-/O scheme: I-x follows B-x or I-x alone."""
    allowed = torch.tensor([[_may_follow(before, tag) for tag in tags] for before in tags])
    return allowed, torch.tensor([_may_follow("O", tag) for tag in tags])


def _may_follow(before: str, tag: str) -> bool:
    return not tag.startswith("I-") or (before[:2] in ("B-", "I-") and before[2:] == tag[2:])
