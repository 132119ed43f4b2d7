"""The n-gram model of benchmarks/character_ngrams.py equals modified Kneser-Ney smoothing, written out."""

from __future__ import annotations

import importlib.util
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest

FILE = Path(__file__).parents[2] / "benchmarks" / "character_ngrams.py"
NUM_WORDS, ORDER = 7, 3


@pytest.fixture
def ngrams(monkeypatch):
    """The script, with small chunks, and with discounts from all n-grams."""
    specification = importlib.util.spec_from_file_location("character_ngrams", FILE)
    module = importlib.util.module_from_spec(specification)
    monkeypatch.setitem(__import__("sys").modules, "character_ngrams", module)
    specification.loader.exec_module(module)
    monkeypatch.setattr(module, "CHUNK", 200)
    monkeypatch.setattr(module, "sampled", lambda keys: np.ones(len(keys), bool))
    return module


class Expected:
    """Modified Kneser-Ney smoothing, n-gram by n-gram."""

    def __init__(self, sentences, discounts):
        self.counts = {order: Counter() for order in range(1, ORDER + 1)}
        before = defaultdict(set)
        for sentence in ([0, *words, 0] for words in sentences):
            for end in range(1, len(sentence)):
                for order in range(1, min(ORDER, end + 1) + 1):
                    start = end - order + 1
                    gram = tuple(sentence[start : end + 1])
                    if order == ORDER or start == 0:
                        self.counts[order][gram] += 1
                    else:
                        before[gram].add(sentence[start - 1])
        for gram, others in before.items():
            self.counts[len(gram)][gram] += len(others)
        self.levels = {order: discounts(np.array(list(own.values()))) for order, own in self.counts.items()}

    def prob(self, history, word):
        history = tuple(history[-(ORDER - 1) :])
        lower = self.prob(history[1:], word) if history else 1 / NUM_WORDS
        order = len(history) + 1
        rows = {gram[-1]: count for gram, count in self.counts[order].items() if gram[:-1] == history}
        if not rows:
            return lower
        levels = [0, *self.levels[order]]
        left = sum(levels[min(count, 3)] for count in rows.values())
        count = rows.get(word, 0)
        return (count - levels[min(count, 3)] + left * lower) / sum(rows.values())


def test_log_probabilities_are_those_of_modified_kneser_ney_smoothing(ngrams, capsys):
    rng = np.random.default_rng(0)
    words = np.arange(1, NUM_WORDS)
    sentences = [
        rng.choice(words, size=rng.integers(1, 8), p=[0.4, 0.25, 0.15, 0.1, 0.07, 0.03]).tolist() for _ in range(300)
    ]
    train = np.array([0, *(number for sentence in sentences for number in (*sentence, 0))])
    expected = Expected(sentences, ngrams.discounts)
    test = [[1, 2, 1], [3, 6], [], [1, 1, 1, 5, 2]]
    ids = np.array([0, *(number for sentence in test for number in (*sentence, 0))])
    logs = [
        np.log(expected.prob([0, *sentence[:n]], word)) for sentence in test for n, word in enumerate([*sentence, 0])
    ]
    np.testing.assert_allclose(ngrams.log_probs(train, ngrams.Text(ids, ORDER), NUM_WORDS, ORDER), logs, atol=1e-12)
    assert sum(expected.prob([0, 1, 2], word) for word in range(NUM_WORDS)) == pytest.approx(1)
    assert "order 3: discounts" in capsys.readouterr().out
