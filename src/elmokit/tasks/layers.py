"""Layers that the networks of the tasks share.

Input: vectors (B, T, D) and their mask (B, T), True at tokens. Output: vectors, pooled vectors, or the tags of a
sequence. Padding never changes a result, and a sentence without tokens has a result too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

NEVER = -1e4  # the score of what is not allowed: far below any other, and finite


class LockedDropout(nn.Module):
    """Dropout that drops the same features at every token of a sentence.

    Args:
        rate: Fraction of the features that are dropped in training.
    """

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
    """LSTMs in both directions, with dropout after each layer.

    Rows are not packed: cuDNN has its fast kernels only for rows of one length. Instead the input has one more feature,
    1 at padding, whose weights close the input, forget and output gates. The state is then zero at padding, and a row
    is read backward from its last token.

    Args:
        input_dim: Width D of the input.
        hidden_dim: Units H per direction.
        num_layers: Number of layers.
        dropout: Dropout after each layer.
    """

    def __init__(self, input_dim: int, hidden_dim: int, *, num_layers: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        widths = [input_dim, *[2 * hidden_dim] * num_layers]
        self.output_dim = widths[-1]
        self.layers = nn.ModuleList(
            nn.LSTM(width, hidden_dim, batch_first=True, bidirectional=True) for width in widths[:-1]
        )
        self.dropout = LockedDropout(dropout)
        self._closing: Tensor
        gates = torch.tensor([NEVER, NEVER, 0.0, NEVER])  # input, forget, cell, output
        self.register_buffer("_closing", gates.repeat_interleave(hidden_dim).unsqueeze(1), persistent=False)  # (4H, 1)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(B, T, D), (B, T) -> (B, T, 2H), zeros at padding."""
        padding = (~mask).unsqueeze(-1).to(x.dtype)  # (B, T, 1)
        for layer in self.layers:
            assert isinstance(layer, nn.LSTM)
            zeros = x.new_zeros(2, len(x), layer.hidden_size)
            weights = self._closed_at_padding(layer)
            x, _, _ = torch.lstm(
                torch.cat([x, padding], dim=-1), (zeros, zeros), weights, True, 1, 0.0, self.training, True, True
            )
            x = self.dropout(x)
        return x * mask.unsqueeze(-1)

    def _closed_at_padding(self, layer: nn.LSTM) -> list[Tensor]:
        """The weights of a layer with those of the feature of padding, in the order of `torch.lstm`."""
        directions = [
            [torch.cat([own[0], self._closing], dim=1), own[1], own[2], own[3]]  # (4H, D+1), (4H, H), (4H,), (4H,)
            for own in layer.all_weights
        ]
        # cuDNN reads the weights without a copy if they are in one piece in its order: all matrices, then all biases
        order = [weight for half in (slice(0, 2), slice(2, 4)) for own in directions for weight in own[half]]
        pieces = torch.cat([weight.flatten() for weight in order]).split_with_sizes(
            [weight.numel() for weight in order]
        )
        in_one = [piece.view_as(weight) for piece, weight in zip(pieces, order, strict=True)]
        return [*in_one[:2], *in_one[4:6], *in_one[2:4], *in_one[6:]]


class AttentionPool(nn.Module):
    """The mean of the tokens, weighted by a learned score of each.

    Args:
        dim: Width D of a token.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.score = nn.Linear(dim, 1)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(B, T, D), (B, T) -> (B, D)."""
        weights = masked_softmax(self.score(x).squeeze(-1), mask)  # (B, T)
        return torch.einsum("bt,btd->bd", weights, x)


def masked_softmax(scores: Tensor, mask: Tensor, dim: int = -1) -> Tensor:
    """Softmax where the mask is True; zeros elsewhere, and everywhere where the mask is all False.

    Args:
        scores: Scores of any shape.
        mask: Bool, broadcast to the shape of the scores.
        dim: The dimension that is normalized.
    """
    return scores.masked_fill(~mask, NEVER).softmax(dim) * mask


def masked_max(x: Tensor, mask: Tensor) -> Tensor:
    """(B, T, D), (B, T) -> (B, D): the maximum over the tokens; zeros where there is none."""
    largest = x.masked_fill(~mask.unsqueeze(-1), NEVER).amax(dim=1)
    return largest * mask.any(dim=1, keepdim=True)


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """(B, T, D), (B, T) -> (B, D): the mean over the tokens; zeros where there is none."""
    weights = mask.unsqueeze(-1).to(x.dtype)
    return (x * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)


class CRF(nn.Module):
    """A linear-chain conditional random field over K tags (Lafferty et al., 2001).

    The score of a tag sequence is the sum of its emissions and of its transitions, including one into the first tag and
    one out of the last.

    Args:
        num_tags: Number K of tags.
        allowed: (K, K) bool: True at (i, j) if tag j may follow tag i; None allows all. It constrains only decoding:
            gold tags that break it are trained on.
        allowed_first: (K,) bool: True if a sequence may begin with the tag; None allows all.
    """

    def __init__(self, num_tags: int, *, allowed: Tensor | None = None, allowed_first: Tensor | None = None) -> None:
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
        """The log-probability of tags.

        Args:
            emissions: (B, T, K), the score of each tag at each token.
            tags: (B, T), the indices of the tags.
            mask: (B, T) bool, True at tokens.

        Returns:
            (B,): log p(tags | emissions); 0 for a sentence without tokens.
        """
        lengths = mask.sum(dim=1).clamp(min=1)
        log_partition: Tensor = _LogPartition.apply(  # type: ignore[no-untyped-call]
            emissions, self.transitions, self.first, self.last, lengths
        )
        return (self._score(emissions, tags, mask) - log_partition) * mask.any(dim=1)

    def _score(self, emissions: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
        """(B,): the score of the tags."""
        weights = mask.to(emissions.dtype)
        emission_score = (emissions.gather(2, tags.unsqueeze(2)).squeeze(2) * weights).sum(dim=1)
        transition_score = (self.transitions[tags[:, :-1], tags[:, 1:]] * weights[:, 1:]).sum(dim=1)
        last_tags = tags.gather(1, (mask.sum(dim=1, keepdim=True) - 1).clamp(min=0)).squeeze(1)
        return emission_score + transition_score + self.first[tags[:, 0]] + self.last[last_tags]

    @torch.no_grad()
    def decode(self, emissions: Tensor, mask: Tensor) -> list[list[int]]:
        """Find the best allowed tags of each sentence (Viterbi).

        Args:
            emissions: (B, T, K), the score of each tag at each token.
            mask: (B, T) bool, True at tokens.

        Returns:
            For each sentence one tag index per token.
        """
        into = (
            self.transitions.masked_fill(~self.allowed, NEVER).t().contiguous()
        )  # (K, K): from tag i into tag j: [j, i]
        best = [self.first.masked_fill(~self.allowed_first, NEVER) + emissions[:, 0]]  # (B, K) for each token
        for time in range(1, emissions.shape[1]):
            scores = (best[-1].unsqueeze(1) + into).amax(dim=2) + emissions[:, time]
            best.append(torch.where(mask[:, time, None], scores, best[-1]))
        tag = (best[-1] + self.last).argmax(dim=1)  # (B,)
        path = [tag]
        for time in range(emissions.shape[1] - 1, 0, -1):
            source = (best[time - 1] + into[tag]).argmax(dim=1)
            tag = torch.where(mask[:, time], source, tag)
            path.append(tag)
        rows: list[list[int]] = torch.stack(path[::-1], dim=1).tolist()
        return [row[:length] for row, length in zip(rows, mask.sum(dim=1).tolist(), strict=True)]


class _LogPartition(torch.autograd.Function):
    """The log of the sum of exp(score) over all tag sequences, (B,).

    The gradients are the probabilities of tags and of pairs of tags, by the forward-backward algorithm. Both directions
    are computed in one pass over the tokens, the second on mirrored rows, so that the backward pass has no loop.
    """

    @staticmethod
    def forward(
        ctx: Any, emissions: Tensor, transitions: Tensor, first: Tensor, last: Tensor, lengths: Tensor
    ) -> Tensor:
        """(B, T, K), (K, K), (K,), (K,), (B,) from 1 -> (B,)."""
        lengths, places = lengths.unsqueeze(1), torch.arange(emissions.shape[1], device=emissions.device)
        mask = places < lengths  # (B, T)
        mirror = torch.where(mask, lengths - 1 - places, places).unsqueeze(2).expand_as(emissions)
        steps = torch.stack([emissions, emissions.gather(1, mirror)]).unbind(dim=2)  # T of (2, B, K)
        into = torch.stack([transitions.t(), transitions]).unsqueeze(1)  # (2, 1, K, K)
        states = [torch.stack([first, last]).unsqueeze(1) + steps[0]]  # (2, B, K) for each token
        for step in steps[1:]:
            states.append((states[-1].unsqueeze(2) + into).logsumexp(dim=3) + step)
        # (B, T, K) each: the score of all sequences that end with a tag here, and of all that begin with it here
        until, since = torch.stack(states, dim=2)
        since = since.gather(1, mirror)
        total: Tensor = (first + since[:, 0]).logsumexp(dim=1)
        ctx.save_for_backward(emissions, transitions, mask, until, since, total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, None]:
        """The gradients of all but the lengths."""
        emissions, transitions, mask, until, since, total = ctx.saved_tensors
        since = since - total[:, None, None]
        tags = (until + since - emissions).exp().where(mask.unsqueeze(2), 0) * gradient[:, None, None]  # (B, T, K)
        pairs = (until[:, :-1].unsqueeze(3) + transitions + since[:, 1:].unsqueeze(2)).exp()  # (B, T-1, K, K)
        pairs = pairs.where(mask[:, 1:, None, None], 0) * gradient[:, None, None, None]
        is_last = mask & ~nn.functional.pad(mask[:, 1:], (0, 1))
        return tags, pairs.sum(dim=(0, 1)), tags[:, 0].sum(dim=0), (tags * is_last.unsqueeze(2)).sum(dim=(0, 1)), None


def bio_rules(tags: Sequence[str]) -> tuple[Tensor, Tensor]:
    """The rules of the B-/I-/O scheme, for a `CRF`: I-x follows only B-x or I-x.

    Args:
        tags: K tags.

    Returns:
        `allowed` (K, K) and `allowed_first` (K,).
    """
    allowed = torch.tensor([[_may_follow(before, tag) for tag in tags] for before in tags])
    return allowed, torch.tensor([_may_follow("O", tag) for tag in tags])


def _may_follow(before: str, tag: str) -> bool:
    return not tag.startswith("I-") or (before[:2] in ("B-", "I-") and before[2:] == tag[2:])
