"""Nearest neighbours: an exhaustive search gives the same."""

import numpy as np
import pytest
from probe_data import WORDS, cosine, of_each_view, sentences

from elmokit.model import ELMo
from elmokit.probes import (
    nearest_in_context,
    neighbours_of_words,
)
from elmokit.text import marked_word


def test_neighbours_of_a_new_word_are_the_nearest_of_the_vocabulary(model, monkeypatch):
    monkeypatch.setattr("elmokit.probes.neighbours.WORDS_AT_ONCE", 6)
    found = neighbours_of_words(model, ["bankk", "river"], k=4)
    for word, nearest in found.items():
        asked = model.embed([[word]], layers=0)[0][0]
        cosines = {known: cosine(asked, model.embed([[known]], layers=0)[0][0]) for known in WORDS if known != word}
        best = sorted(cosines, key=lambda known: -cosines[known])[:4]
        assert [one.word for one in nearest] == best
        assert [one.cosine for one in nearest] == pytest.approx([cosines[known] for known in best], abs=1e-5)


def test_neighbours_of_words_need_characters_and_a_vocabulary(model, official_model):
    with pytest.raises(ValueError, match="k must be at least 1, not 0"):
        neighbours_of_words(model, ["a"], k=0)
    files = official_model(seed=1, word_level=True)
    (files.options_path.parent / "words.txt").write_text("\n".join(files.vocabulary) + "\n")
    by_words = ELMo.from_files(
        files.options_path, files.weights_path, vocabulary=files.options_path.parent / "words.txt"
    )
    with pytest.raises(ValueError, match="reads words, not characters"):
        neighbours_of_words(by_words, ["a"])
    with pytest.raises(ValueError, match=r"no vocabulary\.txt"):
        neighbours_of_words(ELMo(model.bilm), ["a"])


@pytest.mark.parametrize(("layer", "row"), [({}, -1), ({"layer": 1}, 1), ({"layer": "slot"}, -2), ({"layer": -1}, 2)])
def test_the_nearest_words_in_context_are_those_of_an_exhaustive_search(model, layer, row):
    corpus = [*sentences(5, 20), [], ["she", "sat", "by", "the", "bank"]]
    queries = ["she sat by the [bank]", "the [play] ran"]
    for query, found in zip(queries, nearest_in_context(model, queries, corpus, k=3, **layer), strict=True):
        tokens, place = marked_word(query)
        asked = of_each_view(model, tokens, place)[row]
        best = []
        for sentence in corpus:
            if sentence and sentence != tokens:
                each = [cosine(asked, of_each_view(model, sentence, number)[row]) for number in range(len(sentence))]
                best.append((max(each), sentence, int(np.argmax(each))))
        best.sort(key=lambda one: -one[0])
        assert [one.cosine for one in found] == pytest.approx([value for value, _, _ in best[:3]], abs=1e-5)
        assert [(one.tokens, one.position) for one in found] == [(sentence, at) for _, sentence, at in best[:3]]


def test_a_query_marks_one_word():
    assert marked_word("He sat on the [bank].") == (["He", "sat", "on", "the", "bank", "."], 4)
    for wrong in ("no mark", "[two] [marks]", "an empty [ ] one"):
        with pytest.raises(ValueError, match="mark one word"):
            marked_word(wrong)


def test_neighbours_in_context_refuse_what_is_not_there(model):
    with pytest.raises(ValueError, match="a number from 0 to 2, not 3"):
        nearest_in_context(model, ["a [b]"], [["a"]], layer=3)
    with pytest.raises(ValueError, match="k must be at least 1, not 0"):
        nearest_in_context(model, ["a [b]"], [["a"]], k=0)


def test_no_queries_have_no_neighbours_and_a_wrong_query_is_named(model):
    assert nearest_in_context(model, [], [["the", "bank"]]) == []
    with pytest.raises(ValueError, match=r"queries\[1\]: mark one word with brackets"):
        nearest_in_context(model, ["the [bank]", "the bank"], [["the", "bank"]])
    corpus = [["the", "bank"], ["a", "river"]]
    expected = nearest_in_context(model, ["a [bank]"], corpus)
    assert nearest_in_context(model, iter(["a [bank]"]), iter(corpus)) == expected
