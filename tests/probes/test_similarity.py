"""Similarity of words in context: thresholds, rank correlation, triples."""

import dataclasses
import sys

import numpy as np
import pytest
from probe_data import (
    VIEWS,
    cosine,
    of_each_view,
    pairs,
)

from elmokit.probes import (
    SENSE_TRIPLES,
    SenseTriple,
    likeness,
    same_meaning,
    sense_triples,
)
from elmokit.probes.similarity import best_threshold


def pair_cosines(model, given):
    each = [[of_each_view(model, word.tokens, word.index) for word in (pair.first, pair.second)] for pair in given]
    return np.array([[cosine(a, b) for a, b in zip(first, second, strict=True)] for first, second in each])


@pytest.mark.parametrize("seed", range(6))
def test_no_other_threshold_is_right_more_often(seed):
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 6, 15) / 6  # with many that are equal
    truths = rng.random(15) < 0.5
    found = best_threshold(values, truths)
    cuts = [-1, *(np.arange(6) / 6 + 0.01), 2]
    assert ((values >= found) == truths).sum() == max(((values >= cut) == truths).sum() for cut in cuts)


def test_the_threshold_is_that_of_train_and_so_is_the_layer(model):
    train, test = pairs(1, 30), pairs(2, 20)
    scores = same_meaning(model, train, test)
    for layer, known, asked in zip(VIEWS, pair_cosines(model, train).T, pair_cosines(model, test).T, strict=True):
        threshold = scores.thresholds[layer]
        assert scores.train[layer] == pytest.approx(
            100 * max(np.mean((known >= cut) == [p.score == 1 for p in train]) for cut in [-2, *known, 2])
        )
        assert scores.test[layer] == pytest.approx(100 * np.mean((asked >= threshold) == [p.score == 1 for p in test]))
    assert scores.best_layer == max(VIEWS, key=lambda layer: scores.train[layer])
    with pytest.raises(ValueError, match="0 pairs to choose by"):
        same_meaning(model, [], test)


def test_the_correlation_is_that_of_ranks(model, monkeypatch):
    given = [dataclasses.replace(pair, score=number % 4) for number, pair in enumerate(pairs(3, 25))]
    scores = likeness(model, given)

    def ranks(values):
        values = np.round(values, 6)  # equal vectors have equal ranks
        return [(np.sum(values < value) + np.sum(values <= value) + 1) / 2 for value in values]

    for layer, column in zip(VIEWS, pair_cosines(model, given).T, strict=True):
        expected = np.corrcoef(ranks(column), ranks(np.array([pair.score for pair in given])))[0, 1]
        assert scores.layers[layer] == pytest.approx(100 * expected, abs=1e-2)
    same = [number for number, pair in enumerate(given) if pair.first.word == pair.second.word]
    assert (scores.num_pairs, scores.num_same_word) == (25, len(same))
    assert scores.same_word == pytest.approx(likeness(model, [given[number] for number in same]).layers)
    assert scores.same_word["0"] == 0  # the same vector in all of them
    with pytest.raises(ValueError, match="needs at least two pairs, not 1"):
        likeness(model, given[:1])
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    with pytest.raises(ImportError, match=r"elmokit\[tasks\]"):
        likeness(model, given)


def test_a_triple_is_won_when_both_comparisons_are(model):
    triples = SENSE_TRIPLES[:8]
    scores = sense_triples(model, triples)
    for layer, name in [(0, "0"), (1, "1"), (2, "2"), ("average", "mean"), ("slot", "slot"), ("sense", "sense")]:
        lost = []
        for one in triples:
            if layer == 0:  # without context the three are one vector, and no comparison is won
                lost.append(one.word)
                continue
            alike = model.similarity(one.first, one.second, word=one.word, layers=layer)
            others = [
                model.similarity(text, one.other, word=one.word, layers=layer) for text in (one.first, one.second)
            ]
            lost += [one.word] if alike <= max(others) else []
        assert scores.lost[name] == lost
        assert scores.layers[name] == pytest.approx(100 * (1 - len(lost) / len(triples)))
    with pytest.raises(ValueError, match="'bank' is not in 'no such word'"):
        sense_triples(model, [SenseTriple("bank", "a bank", "no such word", "bank")])
    with pytest.raises(ValueError, match="there are no triples"):
        sense_triples(model, [])
