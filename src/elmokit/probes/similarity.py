"""Similarity of words in context: the same meaning or another (WiC), how similar (SCWS), and triples of sentences.

Input: a model, and pairs or triples of words in context. Output: accuracy, rank correlation, and the fraction of
triples in which the two uses of one sense are nearer to each other than either is to the third; all by cosine, per
layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from elmokit.datasets import WordPair
from elmokit.extras import require
from elmokit.inference.vectors import unit
from elmokit.model import ELMo
from elmokit.probes.senses import SenseTriple
from elmokit.probes.vectors import Floats, Place, Progress, gather, view_names
from elmokit.text import find_phrase


@dataclass(frozen=True)
class WordInContextScores:
    """Accuracy in percent, by a threshold on the cosine that is chosen on train."""

    num_pairs: int
    thresholds: dict[str, float]
    train: dict[str, float]
    test: dict[str, float]
    best_layer: str
    """The best on train."""


@dataclass(frozen=True)
class RatingScores:
    """Spearman's correlation of the cosine with the mean rating, times 100."""

    num_pairs: int
    layers: dict[str, float]
    num_same_word: int
    same_word: dict[str, float]
    """On the pairs of one word in two contexts, where only the sense can differ; empty if there are fewer than two."""


@dataclass(frozen=True)
class TripleScores:
    """Percent of triples in which both comparisons are won."""

    num_triples: int
    layers: dict[str, float]
    lost: dict[str, list[str]]
    """The words of the other triples."""


def same_meaning(
    model: ELMo, train: Sequence[WordPair], test: Sequence[WordPair], *, progress: Progress | None = None
) -> WordInContextScores:
    """Decide for each pair whether the word has the same meaning (score 1) or not (score 0).

    Args:
        model: The model.
        train: Pairs on which the threshold and the layer are chosen.
        test: Pairs to decide.
        progress: Called after each batch.

    Raises:
        ValueError: If there are no pairs.
    """
    if not train or not test:
        raise ValueError(f"there are {len(train)} pairs to choose by and {len(test)} to test: each needs at least one")
    cosines = _pair_cosines(model, [*train, *test], progress)  # (n, views)
    truths = np.array([pair.score > 0.5 for pair in (*train, *test)])
    known, asked = slice(len(train)), slice(len(train), None)
    thresholds, on_train, on_test = {}, {}, {}
    for name, column in zip(view_names(model), cosines.T, strict=True):
        thresholds[name] = threshold = best_threshold(column[known], truths[known])
        right = (column >= threshold) == truths
        on_train[name], on_test[name] = 100 * float(right[known].mean()), 100 * float(right[asked].mean())
    return WordInContextScores(len(test), thresholds, on_train, on_test, max(on_train, key=lambda name: on_train[name]))


def best_threshold(values: Floats, truths: npt.NDArray[np.bool_]) -> float:
    """The lowest threshold, half way between two values, for which `values >= threshold` is right most often."""
    order = np.argsort(values, kind="stable")
    values, truths = np.asarray(values, np.float64)[order], truths[order]
    # a cut before position c gives False for c values and True for the rest
    right = np.concatenate([[0], np.cumsum(~truths)]) + np.concatenate([np.cumsum(truths[::-1])[::-1], [0]])
    between = (np.concatenate([[values[0] - 2], values]) + np.concatenate([values, [values[-1] + 2]])) / 2
    is_cut = np.concatenate([[True], values[1:] > values[:-1], [True]])  # no cut between equal values
    return float(between[np.where(is_cut, right, -1).argmax()])


def likeness(model: ELMo, pairs: Sequence[WordPair], *, progress: Progress | None = None) -> RatingScores:
    """Compare the cosines of word pairs in context with people's ratings.

    Args:
        model: The model.
        pairs: Words in context; a context is read as one sequence.
        progress: Called after each batch.

    Raises:
        ValueError: If there are fewer than two pairs.
        ImportError: If scipy is not installed.
    """
    spearmanr = require("scipy.stats", extra="tasks").spearmanr
    if len(pairs) < 2:
        raise ValueError(f"a correlation needs at least two pairs, not {len(pairs)}")
    # equal words have equal vectors in layer 0, and float32 gives their cosines an order that means nothing
    cosines = np.round(_pair_cosines(model, pairs, progress), 6)
    ratings = np.array([pair.score for pair in pairs])

    def correlate(chosen: Sequence[int]) -> dict[str, float]:
        result = {}
        for name, column in zip(view_names(model), cosines[chosen].T, strict=True):
            is_constant = np.ptp(column) < 1e-5  # layer 0 of one word: there is no order
            result[name] = 0.0 if is_constant else 100 * float(spearmanr(column, ratings[chosen]).statistic)
        return result

    same = [n for n, pair in enumerate(pairs) if pair.first.word.casefold() == pair.second.word.casefold()]
    return RatingScores(len(pairs), correlate(range(len(pairs))), len(same), correlate(same) if len(same) > 1 else {})


def sense_triples(model: ELMo, triples: Sequence[SenseTriple]) -> TripleScores:
    """Count the triples whose first two uses are nearer to each other than to the third.

    Args:
        model: The model, whose tokenizer cuts the sentences.
        triples: A word in three sentences each.

    Raises:
        ValueError: If there are no triples, or a word is not in its sentence.
    """
    if not triples:
        raise ValueError("there are no triples: give at least one")
    sentences: list[list[str]] = []
    places: list[Place] = []
    for triple in triples:
        for text in (triple.first, triple.second, triple.other):
            tokens = model.tokenizer(text)
            try:
                place = find_phrase(triple.word, tokens, model.tokenizer)
            except ValueError:
                raise ValueError(f"the word {triple.word!r} is not in {text!r}") from None
            places.append(Place(len(sentences), *place))
            sentences.append(tokens)
    vectors = unit(gather(model, sentences, places)).reshape(len(triples), 3, len(view_names(model)), -1)
    first, second, other = vectors.swapaxes(0, 1)  # (n, views, 2P) each
    together = (first * second).sum(axis=-1)
    won = (together > (first * other).sum(axis=-1)) & (together > (second * other).sum(axis=-1))  # (n, views)
    names = view_names(model)
    return TripleScores(
        num_triples=len(triples),
        layers={name: 100 * float(column.mean()) for name, column in zip(names, won.T, strict=True)},
        lost={
            name: [triple.word for triple, win in zip(triples, column, strict=True) if not win]
            for name, column in zip(names, won.T, strict=True)
        },
    )


def _pair_cosines(model: ELMo, pairs: Sequence[WordPair], progress: Progress | None) -> Floats:
    """(n, views): the cosine of each pair in each layer and view."""
    words = [word for pair in pairs for word in (pair.first, pair.second)]
    places = [Place(number, word.index, word.index + 1) for number, word in enumerate(words)]
    vectors = unit(gather(model, [word.tokens for word in words], places, progress=progress))
    return np.asarray((vectors[0::2] * vectors[1::2]).sum(axis=-1))
