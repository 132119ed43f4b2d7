"""Batches by length, and the cache of word vectors."""

import pytest
import torch

from elmokit.inference.batches import Batch, plan
from elmokit.inference.word_cache import WordCache


def test_the_word_cache_is_bounded_and_forgets_what_was_not_used_lately():
    asked = []

    def embed(words):
        asked.extend(words)
        return torch.tensor([[float(word)] for word in words])

    cache = WordCache(10)

    def look_up(*numbers):
        slots, table = cache.lookup([str(n) for n in numbers], embed, "k")
        return table[torch.from_numpy(slots)].flatten().tolist()

    assert look_up(*range(8)) == list(range(8))
    assert look_up(0, 1) == [0, 1]
    assert look_up(20, 0, 21, 22, 20) == [20, 0, 21, 22, 20]  # eleven words: five stay
    asked.clear()
    assert look_up(0, 22, 21, 20, 1) == [0, 22, 21, 20, 1]
    assert asked == []
    assert look_up(5, 2, 3, 4, 6, 7, 8) == [5, 2, 3, 4, 6, 7, 8]
    assert look_up(*range(100, 150)) == list(range(100, 150))  # more than fit: the call is still right
    assert look_up(149, 3) == [149, 3]
    assert len(cache._slots) <= 10


def test_words_whose_vectors_could_not_be_made_are_not_taken_for_known():
    def embed(words):
        if "bad" in words:
            raise RuntimeError("no memory")
        return torch.ones(len(words), 1)

    cache = WordCache(10)
    cache.lookup(["a"], embed, "k")
    with pytest.raises(RuntimeError, match="no memory"):
        cache.lookup(["a", "bad"], embed, "k")
    with pytest.raises(RuntimeError, match="no memory"):
        cache.lookup(["bad"], embed, "k")
    assert cache.lookup(["a", "b"], embed, "k")[1][:2].shape == (2, 1)


def test_batches_go_by_length_within_the_budget():
    sentences = [["w"] * length for length in (3, 9, 1, 9, 4)]
    batches = plan(sentences, 100, budget=22, batch_size=None)
    assert batches[0] == Batch([101, 103], [sentences[1], sentences[3]])
    assert [batch.positions for batch in batches[1:]] == [[104, 100, 102]]
    assert [batch.positions for batch in plan(sentences, 0, budget=22, batch_size=1)] == [[1], [3], [4], [0], [2]]
    assert [batch.positions for batch in plan(sentences, 0, budget=None, batch_size=2)] == [[0, 1], [2, 3], [4]]
    assert [b.positions for b in plan([["w"] * 99], 0, budget=5, batch_size=None)] == [[0]]
