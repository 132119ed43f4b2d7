"""What a biLM with its softmax says of sentences: log-probabilities, perplexity, substitutes.

Enters: a biLM, the output layer that both directions share, its vocabulary, and sentences, each read by itself.
Leaves: natural log-probabilities of each word given the words before it, and given those after it; perplexities; words
that fit a place.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from elmokit.config import BiLMConfig
from elmokit.inference.batches import plan
from elmokit.network import BiLM
from elmokit.network.losses import OutputLayer
from elmokit.text import Vocabulary, words_to_ids


@dataclass(frozen=True, eq=False)
class TokenLogProbs:
    """What the two language models say of one sentence of T tokens."""

    tokens: list[str]
    forward: npt.NDArray[np.float64]
    """(T,): log p of each token given the tokens before it."""
    backward: npt.NDArray[np.float64]
    """(T,): log p of each token given the tokens after it."""
    forward_end: float
    """log p of the sentence's end given all of its tokens."""
    backward_end: float
    """log p of the sentence's start given all of its tokens."""


@dataclass(frozen=True)
class Perplexity:
    """exp of the mean loss, sentence boundaries included."""

    forward: float
    backward: float
    both: float
    """Geometric mean of the two: the number that is published of biLMs."""
    num_tokens: int
    """Predictions in each direction: every token, and one boundary a sentence."""


@dataclass(frozen=True)
class Substitute:
    """A word that fits a place."""

    word: str
    log_prob: float


def token_log_probs(
    bilm: BiLM,
    output_layer: OutputLayer,
    vocabulary: Vocabulary,
    sentences: Sequence[Sequence[str]],
    *,
    batch_tokens: int = 2048,
) -> list[TokenLogProbs]:
    """Score every token of every sentence, in batches of about `batch_tokens`; results do not depend on the batches.

    A word outside the vocabulary is scored as <UNK>; a model that reads characters still reads its own letters.
    """
    _check_sizes(bilm.config, output_layer, vocabulary)
    if batch_tokens < 1:
        raise ValueError(f"batch_tokens is {batch_tokens}: at least one token at a time")
    results: list[TokenLogProbs | None] = [None] * len(sentences)
    for batch in plan([list(sentence) for sentence in sentences], 0, budget=batch_tokens, batch_size=None):
        scored = _score(batch.tokens, bilm, output_layer, vocabulary)
        for place, scores in zip(batch.positions, scored, strict=True):
            results[place] = scores
    return [scores for scores in results if scores is not None]


def perplexity_of(log_probs: Sequence[TokenLogProbs]) -> Perplexity:
    """The perplexity of scored sentences, each one's end (and start, backward) counted as one more token."""
    if not log_probs:
        raise ValueError("no sentences: a perplexity needs at least one")
    forward = sum(float(scores.forward.sum()) + scores.forward_end for scores in log_probs)
    backward = sum(float(scores.backward.sum()) + scores.backward_end for scores in log_probs)
    return perplexity_of_sums(forward, backward, sum(len(scores.tokens) + 1 for scores in log_probs))


def substitutes(
    bilm: BiLM,
    output_layer: OutputLayer,
    vocabulary: Vocabulary,
    tokens: Sequence[str],
    position: int,
    k: int,
    *,
    keep_word: bool = False,
) -> list[Substitute]:
    """The k words that fit best in place of `tokens[position]`, best first, with their log-probabilities.

    p(w | left, right) is proportional to p(w | left) p(w | right) / p(w), which would be exact if left and right were
    independent given w; p(w) falls log-uniformly with the word's rank, as the vocabulary is in order of frequency.
    The special words never fit; the word that stands there is left out unless `keep_word`.
    """
    _check_sizes(bilm.config, output_layer, vocabulary)
    if not 0 <= position < len(tokens):
        raise ValueError(f"position is {position}, the sentence has tokens 0 to {len(tokens) - 1}")
    if k < 1:
        raise ValueError(f"k is {k}: ask for at least one word")
    with torch.no_grad():
        top = bilm(_shifted_ids(bilm, vocabulary, [list(tokens)]), keep_boundaries=True).layers[-1, 0]  # (T+2, 2P)
        width = bilm.config.projection_dim
        # <S> stands before token 0, so token k has its left neighbour at k and its right one at k + 2
        sides = torch.stack([top[position, :width], top[position + 2, width:]])  # (2, P)
        scores = output_layer.logits(sides).double().log_softmax(dim=-1).sum(dim=0)  # (V,)
        ranks = torch.arange(len(scores), dtype=torch.float64, device=scores.device)
        scores -= torch.log(torch.log1p(1 / (ranks + 1)))
        scores[[vocabulary.bos_id, vocabulary.eos_id, vocabulary.unk_id]] = -math.inf
        scores = scores.log_softmax(dim=-1)
        own = vocabulary.id(tokens[position])
        if not keep_word and own != vocabulary.unk_id:
            scores[own] = -math.inf
        num_fitting = int(torch.isfinite(scores).sum())
        best = scores.topk(min(k, num_fitting))
    found = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [Substitute(vocabulary.words[word], log_prob) for word, log_prob in found]


def _score(
    sentences: list[list[str]], bilm: BiLM, output_layer: OutputLayer, vocabulary: Vocabulary
) -> Iterator[TokenLogProbs]:
    width = bilm.config.projection_dim
    with torch.no_grad():
        top = bilm(_shifted_ids(bilm, vocabulary, sentences), keep_boundaries=True).layers[-1]  # (B, T+2, 2P)
        targets = np.full((len(sentences), top.shape[1]), vocabulary.eos_id, np.int64)
        targets[:, 0] = vocabulary.bos_id
        for row, sentence in enumerate(sentences):
            targets[row, 1 : len(sentence) + 1] = vocabulary.ids(sentence)
        words = torch.from_numpy(targets).to(top.device)
        forward = output_layer.log_probs(top[:, :-1, :width], words[:, 1:]).double().cpu().numpy()
        backward = output_layer.log_probs(top[:, 1:, width:], words[:, :-1]).double().cpu().numpy()
    for row, sentence in enumerate(sentences):
        num_tokens = len(sentence)
        yield TokenLogProbs(
            tokens=sentence,
            forward=forward[row, :num_tokens].copy(),
            backward=backward[row, 1 : num_tokens + 1].copy(),
            forward_end=float(forward[row, num_tokens]),
            backward_end=float(backward[row, 0]),
        )


def _shifted_ids(bilm: BiLM, vocabulary: Vocabulary, sentences: list[list[str]]) -> Tensor:
    """The sentences as one batch: character ids (B, T, C), or word ids (B, T) of a word-level model."""
    config, longest = bilm.config, max(map(len, sentences))
    columns = () if config.num_words is not None else (config.max_characters,)
    ids = np.zeros((len(sentences), longest, *columns), np.int64)
    for row, sentence in enumerate(sentences):
        if config.num_words is not None:
            ids[row, : len(sentence)] = vocabulary.ids(sentence) + 1
        else:
            ids[row, : len(sentence)] = words_to_ids(sentence, max_characters=config.max_characters) + 1
    return torch.from_numpy(ids).to(next(bilm.parameters()).device)


def _check_sizes(config: BiLMConfig, output_layer: OutputLayer, vocabulary: Vocabulary) -> None:
    if len(vocabulary) != output_layer.num_words:
        raise ValueError(f"the vocabulary has {len(vocabulary)} words, the softmax {output_layer.num_words}")
    if config.num_words is not None and config.num_words != len(vocabulary):
        raise ValueError(f"the vocabulary has {len(vocabulary)} words, the word table {config.num_words}")


def perplexity_of_sums(forward: float, backward: float, count: int) -> Perplexity:
    """From sums of log-probabilities over `count` predictions in each direction."""
    return Perplexity(
        forward=_exp(-forward / count),
        backward=_exp(-backward / count),
        both=_exp(-(forward + backward) / (2 * count)),
        num_tokens=count,
    )


def _exp(value: float) -> float:
    return math.exp(value) if value < 700.0 else math.inf
