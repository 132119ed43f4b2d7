"""What a biLM with its softmax says of text: log-probabilities, perplexity, substitutes.

Enters: a biLM, the output layer that both directions share, its vocabulary, and sentences or a prepared corpus.
Leaves: natural log-probabilities of each word given the words before it, and given those after it; perplexities; words
that fit a place.  Sentences are read each by itself, without state; a prepared corpus is read as training reads it, in
two streams with the state carried on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from elmokit.characters import words_to_ids
from elmokit.config import BiLMConfig
from elmokit.corpus import Corpus, Vocabulary, evaluation_batches
from elmokit.kernels import LSTMState
from elmokit.losses import OutputLayer
from elmokit.network import BiLM, BiLMState
from elmokit.pipeline import plan

TOKENS_AT_ONCE = 1 << 22  # of a corpus that is counted: memory does not grow with it


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
    return _perplexity(forward, backward, sum(len(scores.tokens) + 1 for scores in log_probs))


def heldout_perplexity(
    bilm: BiLM, output_layer: OutputLayer, corpus: Corpus, *, batch_size: int = 32, unroll: int = 20
) -> Perplexity:
    """The perplexity of a prepared corpus by the full softmax, state carried: the published test.

    The corpus is read as `batch_size` runs of text side by side; `unroll` changes the memory needed, not the result.
    """
    if corpus.form_targets.max() >= output_layer.num_words:
        raise ValueError(
            f"{corpus.folder} has word ids up to {corpus.form_targets.max()}, the softmax has {output_layer.num_words} "
            "words: prepare the text with the vocabulary of the model"
        )
    device = output_layer.weight.device
    batch_size = min(batch_size, corpus.num_sentences)
    state = bilm.initial_state(batch_size)
    sums, count = torch.zeros(2, dtype=torch.float64, device=device), 0
    with torch.no_grad():
        for batch in evaluation_batches(corpus, batch_size=batch_size, unroll=unroll):
            assert batch.weights is not None
            forms, index = np.unique(stream_layout(batch.forward_inputs, batch.backward_inputs), return_inverse=True)
            vectors = bilm.embed_words(form_ids(bilm.config, corpus, forms).to(device))  # (N, P)
            index = index.reshape(2, -1, batch_size)
            outputs, state = run_streams(bilm, vectors[torch.from_numpy(index).to(device)], state)  # (D, T, B, P)
            targets = stream_layout(batch.forward_targets, batch.backward_targets).astype(np.int64)
            weights = stream_layout(batch.weights, batch.weights)
            found = output_layer.log_probs(outputs, torch.from_numpy(targets).to(device))  # (D, T, B)
            # where a run has ended its row reads on, into nothing that counts
            sums += (found * torch.from_numpy(weights).to(device)).sum(dim=(1, 2), dtype=torch.float64)
            count += int(batch.weights.sum())
    forward, backward = sums.tolist()
    return _perplexity(forward, backward, count)


def unigram_perplexity(train: Corpus, heldout: Corpus, num_words: int) -> float:
    """The perplexity of `heldout` by word frequencies of `train` alone (one added to each count): the mark to beat."""
    counts = np.zeros((2, num_words), np.int64)
    for corpus, count in zip((train, heldout), counts, strict=True):
        targets = np.asarray(corpus.form_targets)
        for begin in range(1, len(corpus.stream), TOKENS_AT_ONCE):
            forms = np.maximum(corpus.stream[begin : begin + TOKENS_AT_ONCE], 1)  # a boundary is predicted as </S>
            count += np.bincount(targets[forms], minlength=num_words)
    log_probs = np.log((counts[0] + 1) / (counts[0].sum() + num_words))
    return float(np.exp(-(log_probs @ counts[1]) / counts[1].sum()))


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


# ---- two streams through the biLM, as training and the held-out test read them ---------------------------------------


def run_streams(
    bilm: BiLM, tokens: Tensor, state: BiLMState, *, dropout: Callable[[Tensor], Tensor] | None = None
) -> tuple[Tensor, BiLMState]:
    """Token vectors of two independent streams (D, T, B, P) -> the top layer's outputs (D, T, B, P), and the state.

    Unlike in `BiLM.contextualize` the directions read different tokens, every row is full, and `dropout` falls on each
    LSTM's input (and so on what a skip connection carries) and on the last output.  See `stream_layout` for the order.
    """
    drop = dropout or (lambda x: x)
    lengths = torch.full((tokens.shape[2],), tokens.shape[1], dtype=torch.long, device=tokens.device)
    x = drop(tokens)
    last: list[LSTMState] = []
    for number, layer in enumerate(bilm.layers):
        outputs, after = layer(x, lengths, LSTMState(state.hidden[number], state.cell[number]))
        if number > 0 and bilm.config.skip_connections:
            outputs = outputs + x
        x = drop(outputs)
        last.append(after)
    return x, BiLMState(torch.stack([s.hidden for s in last]), torch.stack([s.cell for s in last]))


def stream_layout(forward: npt.NDArray[np.generic], backward: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """Two streams' rows (B, T), each in its own reading order -> (D, T, B).

    The LSTMs walk direction 1 from the last step down, so its rows stand with their first token last.
    """
    return np.stack([forward.T, backward.T[::-1]])


def form_ids(config: BiLMConfig, corpus: Corpus, forms: npt.NDArray[np.generic]) -> Tensor:
    """Word forms of a corpus as `BiLM.embed_words` reads them: shifted character ids (N, C), or word ids (N,)."""
    if config.num_words is not None:
        return torch.from_numpy(np.asarray(corpus.form_targets)[forms].astype(np.int64) + 1)
    return torch.from_numpy(np.asarray(corpus.forms)[forms].astype(np.int64) + 1)


# ---- sentences -------------------------------------------------------------------------------------------------------


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


def _perplexity(forward: float, backward: float, count: int) -> Perplexity:
    """From sums of log-probabilities over `count` predictions in each direction."""
    return Perplexity(
        forward=_exp(-forward / count),
        backward=_exp(-backward / count),
        both=_exp(-(forward + backward) / (2 * count)),
        num_tokens=count,
    )


def _exp(value: float) -> float:
    return math.exp(value) if value < 700.0 else math.inf
