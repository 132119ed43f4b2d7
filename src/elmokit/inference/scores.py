"""Scores of a biLM with its output layer: log-probabilities, perplexity, substitutes.

Input: sentences, each read from a zero state.  Output: natural log-probabilities of each word given the words before it
and given the words after it; perplexities; words that fit a position.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from elmokit.inference.batches import Batch, Words
from elmokit.inference.fills import fill, log_prior
from elmokit.inference.runner import Runner, Sentence
from elmokit.inference.views import Reading, view_of
from elmokit.network import BiLM, OutputLayer
from elmokit.text import Vocabulary, join_tokens

NUM_READ: Final = 24  # substitutes that are read in their sentence; more change little
REACH: Final = 32  # tokens on each side of them that are read


@dataclass(frozen=True, eq=False)
class TokenLogProbs:
    """Log-probabilities of one sentence of T tokens."""

    tokens: list[str]
    forward: npt.NDArray[np.float64]
    """(T,): log p of each token given the tokens before it."""
    backward: npt.NDArray[np.float64]
    """(T,): log p of each token given the tokens after it."""
    forward_end: float
    """log p of the end of the sentence given all tokens."""
    backward_end: float
    """log p of the start of the sentence given all tokens."""
    unknown: npt.NDArray[np.bool_]
    """(T,): True where the token is scored as <UNK>: it is not in the vocabulary, or is <UNK> itself.

    The log-probability of such a token is that of any word outside the vocabulary, not that of this word.
    """
    num_units: npt.NDArray[np.int64] | None = None
    """(T,): number of predictions in each token, where the model reads a token as several, such as a Chinese word as
    its characters; the log-probabilities are then their sums. None: one each."""

    def of_words(self, words: Words) -> TokenLogProbs:
        """The log-probabilities of words of which these tokens are the units."""
        starts = np.array(words.starts[:-1])
        return TokenLogProbs(
            tokens=words.tokens,
            forward=np.add.reduceat(self.forward, starts),
            backward=np.add.reduceat(self.backward, starts),
            forward_end=self.forward_end,
            backward_end=self.backward_end,
            unknown=np.logical_or.reduceat(self.unknown, starts),
            num_units=np.diff(words.starts),
        )


@dataclass(frozen=True)
class Perplexity:
    """exp of the mean negative log-probability, sentence boundaries included.

    A token outside the vocabulary is scored as <UNK>, which is likelier than most words: a text with more such tokens
    tends to have a lower perplexity. `known` leaves them out.
    """

    forward: float
    """Of the direction that predicts the next word."""
    backward: float
    """Of the direction that predicts the word before."""
    both: float
    """Geometric mean of the two; papers on biLMs report this number."""
    num_tokens: int
    """Number of predictions in each direction: tokens, and one boundary per sentence."""
    num_unknown: int | None = None
    """Number of tokens that are not in the vocabulary; None if they were not counted."""
    known: float | None = None
    """As `both`, over the tokens of the vocabulary and the boundaries only; None if it was not measured."""


@dataclass(frozen=True)
class Substitute:
    """A word that fits a position."""

    word: str
    log_prob: float
    """Natural log-probability, normalized over the vocabulary without its special words."""


@dataclass(frozen=True, eq=False)
class Scorer:
    """A biLM, the output layer that both directions share, and its vocabulary.

    A word outside the vocabulary is scored as <UNK>; a model that reads characters still reads the word's characters.

    Args:
        runner: Runs sentences through the biLM.
        bilm: The network.
        output_layer: Its output layer.
        vocabulary: The words of the output layer, the most frequent first.
        use_cache: Use the runner's cache of word vectors.

    Raises:
        ValueError: If the vocabulary and the output layer differ in size.
    """

    runner: Runner
    bilm: BiLM
    output_layer: OutputLayer
    vocabulary: Vocabulary
    use_cache: bool = True

    def __post_init__(self) -> None:
        if len(self.vocabulary) != self.output_layer.num_words:
            raise ValueError(
                f"the vocabulary has {len(self.vocabulary)} words, the softmax {self.output_layer.num_words}"
            )

    def log_probs(self, sentences: Sequence[Sentence], *, batch_tokens: int | None = None) -> list[TokenLogProbs]:
        """Log-probabilities of every token of every sentence; they do not depend on the batches.

        Args:
            sentences: Strings or token lists.
            batch_tokens: Largest number of padded tokens per batch. Default: by device.

        Returns:
            One `TokenLogProbs` per sentence.
        """
        results: list[TokenLogProbs | None] = [None] * len(sentences)
        for batch, top in self._top_layers(sentences, batch_tokens):
            words: Sequence[Words | None] = batch.words or [None] * len(batch.tokens)
            for position, own, scores in zip(batch.positions, words, self._score(batch.tokens, top), strict=True):
                results[position] = scores if own is None or not own.tokens else scores.of_words(own)
        return [scores for scores in results if scores is not None]

    def substitutes(
        self, tokens: Sequence[str], position: int, k: int, *, keep_word: bool = False, num_read: int = NUM_READ
    ) -> list[Substitute]:
        """The k words that fit best in place of `tokens[position]`, best first.

        p(w | left, right) is taken as proportional to p(w | left) p(w | right) / p(w), which is exact if left and right
        are independent given w. p(w) is log-uniform in the word's rank, as the vocabulary is sorted by frequency. The
        special words are excluded. The best words by this are then read in the sentence: their probabilities together
        stay, and each has a part of them proportional to the probability of the sentence with it, which depends on left
        and right together. A token of which the model reads several units, such as a Chinese word, is replaced by words
        of as many units (see `fills.py`).

        Args:
            tokens: The sentence.
            position: Index of the token to replace.
            k: Number of words; fewer are returned if the vocabulary is smaller.
            keep_word: Also return the token itself, if the vocabulary has it; last if it is not among the k words.
            num_read: Number of words that are read in the sentence, and the token itself if it is kept; 0: none.

        Returns:
            The words with their log-probabilities.

        Raises:
            ValueError: If there is no such position, k is less than 1, or num_read is less than 0.
        """
        if not 0 <= position < len(tokens):
            raise ValueError(f"position is {position}, the sentence has tokens 0 to {len(tokens) - 1}")
        if k < 1:
            raise ValueError(f"k is {k}: ask for at least one word")
        if num_read < 0:
            raise ValueError(f"num_read is {num_read}: pass 0 to read no word in the sentence, or more")
        units = [self.runner.tokenizer.units(token) for token in tokens]
        if len(units[position]) > 1:
            return self._fill(units, position, k, keep_word=keep_word, num_read=num_read)
        position = sum(map(len, units[:position]))
        tokens = list(chain.from_iterable(units))
        ((_, top),) = self._top_layers([tokens], None)  # (1, T+2, 2P)
        slot = view_of("slot", self.bilm.config.num_layers + 1).tokens(Reading(top[None], (len(tokens),)))[0, position]
        scores = self.log_fit(slot[None])[0]  # (V,)
        own = self.vocabulary.id(tokens[position])
        if not keep_word and own != self.vocabulary.unk_id:
            scores[own] = -math.inf
        num_fitting = int(torch.isfinite(scores).sum())
        if num_read:
            read = scores.topk(min(num_read, num_fitting)).indices
            if keep_word and torch.isfinite(scores[own]) and own not in read:
                read = torch.cat([read, read.new_tensor([own])])
            words = [[self.vocabulary.words[word]] for word in read.tolist()]
            scores[read] = self._share_by_reading(tokens[:position], words, tokens[position + 1 :], scores[read])
        best = scores.topk(min(k, num_fitting))
        found = list(zip(best.indices.tolist(), best.values.tolist(), strict=True))
        if keep_word and torch.isfinite(scores[own]) and all(word != own for word, _ in found):
            found.append((own, float(scores[own])))
        return [Substitute(self.vocabulary.words[word], log_prob) for word, log_prob in found]

    def _fill(
        self, units: list[list[str]], position: int, k: int, *, keep_word: bool, num_read: int
    ) -> list[Substitute]:
        """As `substitutes`, where the token is several units."""
        left, right = (list(chain.from_iterable(part)) for part in (units[:position], units[position + 1 :]))
        own = units[position]
        filled = fill(self, left, right, len(own), own=own if keep_word else None)
        filled = [(word, log_prob) for word, log_prob in filled if keep_word or word != own]
        read = [one for place, one in enumerate(filled) if place < num_read or one[0] == own] if num_read else []
        if read:
            words, before = [word for word, _ in read], torch.tensor([log_prob for _, log_prob in read])
            shared = self._share_by_reading(left, words, right, before.double()).tolist()
            filled = [*zip(words, shared, strict=True), *(one for one in filled if one[0] not in words)]
            filled.sort(key=lambda one: -one[1])
        found = [Substitute(join_tokens(word), log_prob) for word, log_prob in filled]
        kept = [one for one in found[k:] if keep_word and one.word == join_tokens(own)]
        return [*found[:k], *kept]

    def _share_by_reading(self, left: list[str], words: list[list[str]], right: list[str], log_probs: Tensor) -> Tensor:
        """Divide the probability of some words anew, by the sentence with each of them.

        Args:
            left: Tokens before the place.
            words: N words of one number of tokens.
            right: Tokens after it.
            log_probs: (N,), of which the sum of the probabilities stays.
        """
        of_sentences = self._log_sentences(left[-REACH:], words, right[:REACH]).to(log_probs)
        return of_sentences.log_softmax(dim=0) + log_probs.logsumexp(dim=0)

    @torch.no_grad()
    def _log_sentences(self, left: list[str], words: list[list[str]], right: list[str]) -> Tensor:
        """Log-probability of a sentence with each of N words in one place: (N,), float64, up to a constant.

        It is the mean over both directions. The forward one has predicted all tokens before the place before it reads
        the word, so these are the same for all words and are left out; likewise backward.
        """
        begin, end = len(left) + 1, len(left) + 1 + len(words[0])  # of the word; <S> comes first
        sentences = [[*left, *word, *right] for word in words]
        vocabulary = self.vocabulary
        ids = [[vocabulary.bos_id, *vocabulary.ids(sentence), vocabulary.eos_id] for sentence in sentences]
        results = torch.zeros(len(words), dtype=torch.float64)
        for batch, top in self._top_layers(sentences, None):
            targets = torch.tensor([ids[place] for place in batch.positions], device=top.device)  # (B, T+2)
            ahead, back = top.chunk(2, dim=-1)  # (B, T+2, P)
            ahead = self.output_layer.log_probs(ahead[:, begin - 1 : -1], targets[:, begin:])
            back = self.output_layer.log_probs(back[:, 1 : end + 1], targets[:, :end])
            results[batch.positions] = ((ahead.double().sum(dim=1) + back.double().sum(dim=1)) / 2).cpu()
        return results

    def next_words(self, prefixes: list[list[str]]) -> Tensor:
        """Log-probabilities (N, V) of the word after each of N token lists of one length, which begin a sentence."""
        return self._at_end(prefixes, forward=True)

    def previous_words(self, suffixes: list[list[str]]) -> Tensor:
        """Log-probabilities (N, V) of the word before each of N token lists of one length, which end a sentence."""
        return self._at_end(suffixes, forward=False)

    @torch.no_grad()
    def _at_end(self, parts: list[list[str]], *, forward: bool) -> Tensor:
        width = self.bilm.config.projection_dim
        rows: list[Tensor] = [torch.empty(0)] * len(parts)
        for batch, top in self._top_layers(parts, None):
            states = top[:, len(parts[0]), :width] if forward else top[:, 1, width:]  # (B, P)
            log_probs = self.output_layer.logits(states).double().log_softmax(dim=-1).cpu()
            for position, row in zip(batch.positions, log_probs, strict=True):
                rows[position] = row
        return torch.stack(rows)

    @torch.no_grad()
    def log_fit(self, slots: Tensor) -> Tensor:
        """Log-probabilities of every word in given slots, as `substitutes` defines them.

        Args:
            slots: (N, 2P), the view "slot".

        Returns:
            (N, V), float64; minus infinity for the special words.
        """
        vocabulary = self.vocabulary
        sides = torch.stack(slots.chunk(2, dim=-1), dim=1)  # (N, 2, P)
        scores = self.output_layer.logits(sides).double().log_softmax(dim=-1).sum(dim=1)  # (N, V)
        scores -= log_prior(scores.shape[-1]).to(scores.device)
        scores[:, [vocabulary.bos_id, vocabulary.eos_id, vocabulary.unk_id]] = -math.inf
        return scores.log_softmax(dim=-1)

    def _top_layers(self, sentences: Sequence[Sentence], batch_tokens: int | None) -> Iterator[tuple[Batch, Tensor]]:
        """Batches and their top layers (B, T+2, 2P), with boundaries."""
        batches = self.runner.run(
            self.bilm,
            sentences,
            batch_tokens=batch_tokens,
            use_cache=self.use_cache,
            ignore_state=True,
        )
        for batch, output in batches:
            yield batch, output.layers[-1]

    @torch.no_grad()
    def _score(self, sentences: list[list[str]], top: Tensor) -> Iterator[TokenLogProbs]:
        """Scores of each sentence from the top layer (B, T+2, 2P)."""
        vocabulary = self.vocabulary
        targets = np.full((len(sentences), top.shape[1]), vocabulary.eos_id, np.int64)
        targets[:, 0] = vocabulary.bos_id
        for row, sentence in enumerate(sentences):
            targets[row, 1 : len(sentence) + 1] = vocabulary.ids(sentence)
        words = torch.from_numpy(targets).to(top.device)
        forward_top, backward_top = top.chunk(2, dim=-1)  # (B, T+2, P)
        # position t predicts the word after it and the word before it; a sentence has T+1 predictions per direction
        counts = np.array([len(sentence) + 1 for sentence in sentences])
        is_used = torch.from_numpy(np.arange(top.shape[1] - 1) < counts[:, None]).to(top.device)  # (B, T+1)
        hidden = torch.cat([forward_top[:, :-1][is_used], backward_top[:, 1:][is_used]])  # (N, P)
        log_probs = self.output_layer.log_probs(hidden, torch.cat([words[:, 1:][is_used], words[:, :-1][is_used]]))
        ends = counts.cumsum()[:-1]
        forward, backward = (np.split(part, ends) for part in log_probs.double().cpu().numpy().reshape(2, -1))
        for row, sentence in enumerate(sentences):
            yield TokenLogProbs(
                tokens=sentence,
                forward=forward[row][:-1].copy(),
                backward=backward[row][1:].copy(),
                forward_end=float(forward[row][-1]),
                backward_end=float(backward[row][0]),
                unknown=targets[row, 1 : len(sentence) + 1] == vocabulary.unk_id,
            )


def perplexity_of(log_probs: Sequence[TokenLogProbs]) -> Perplexity:
    """The perplexity of scored sentences. Each sentence counts one boundary per direction in addition to its tokens.

    It is per prediction: the words of a list that a model reads by characters count by their characters.

    Args:
        log_probs: Scores of at least one sentence.

    Raises:
        ValueError: If there are no sentences.
    """
    if not log_probs:
        raise ValueError("no sentences: a perplexity needs at least one")
    known_forward = sum(float(scores.forward[~scores.unknown].sum()) + scores.forward_end for scores in log_probs)
    known_backward = sum(float(scores.backward[~scores.unknown].sum()) + scores.backward_end for scores in log_probs)
    return perplexity_of_sums(
        forward=sum(float(scores.forward.sum()) + scores.forward_end for scores in log_probs),
        backward=sum(float(scores.backward.sum()) + scores.backward_end for scores in log_probs),
        count=sum(_num_predictions(scores) + 1 for scores in log_probs),
        num_unknown=sum(_num_predictions(scores, scores.unknown) for scores in log_probs),
        known=known_forward + known_backward,
    )


def _num_predictions(scores: TokenLogProbs, where: npt.NDArray[np.bool_] | None = None) -> int:
    """Number of predictions in all tokens, or in those of a mask."""
    sizes = np.ones(len(scores.tokens), np.int64) if scores.num_units is None else scores.num_units
    return int(sizes.sum() if where is None else sizes[where].sum())


def perplexity_of_sums(
    forward: float, backward: float, count: int, *, num_unknown: int | None = None, known: float = 0.0
) -> Perplexity:
    """The perplexity of summed log-probabilities.

    Args:
        forward: Sum of the log-probabilities of the forward direction.
        backward: Sum of the log-probabilities of the backward direction.
        count: Number of predictions in each direction.
        num_unknown: Number of them whose token is unknown; None if these were not counted.
        known: Sum of the log-probabilities of all other predictions, over both directions.
    """
    return Perplexity(
        forward=perplexity_of_loss(-forward / count),
        backward=perplexity_of_loss(-backward / count),
        both=perplexity_of_loss(-(forward + backward) / (2 * count)),
        num_tokens=count,
        num_unknown=num_unknown,
        known=None if num_unknown is None else perplexity_of_loss(-known / (2 * (count - num_unknown))),
    )


def perplexity_of_loss(loss: float) -> float:
    """exp(loss); infinity if that is too large for a float."""
    return math.exp(loss) if loss < 700.0 else math.inf
