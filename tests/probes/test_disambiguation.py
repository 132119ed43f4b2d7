"""Word senses: a probe gives what brute force gives, and chooses nothing on test data."""

import numpy as np
import pytest
from probe_data import VIEWS, cosine, of_each_view, random_senses, sense_sentence

from elmokit.datasets import (
    read_sense_index,
    read_wsd,
)
from elmokit.probes import (
    disambiguate,
    disambiguation,
    suite,
)


def test_a_word_takes_the_sense_whose_mean_vector_is_nearest(model):
    train, dev, test = (random_senses(seed, 15, ["Bank", "play"]) for seed in (1, 2, 3))
    scores = disambiguate(model, train, {"dev": dev, "test": test}, {}, dev="dev")

    def vector(sentence):
        tokens = ['"', *(word for token in sentence.tokens[1:] for word in token.split())]
        phrase = len(sentence.tokens[3].split())
        return of_each_view(model, tokens, 3, 3 + phrase)

    means = {}
    for sentence in train:
        for sense in sentence.instances[0].senses:
            means.setdefault(sense, []).append(vector(sentence))
    means = {sense: np.mean(found, axis=0) for sense, found in means.items()}
    for row, layer in enumerate(VIEWS):
        for name, given in (("dev", dev), ("test", test)):
            right = 0
            for sentence in given:
                asked, one = vector(sentence)[row], sentence.instances[0]
                candidates = [sense for sense in means if sense.startswith(one.lemma)]
                right += max(candidates, key=lambda sense: cosine(means[sense][row], asked)) in one.senses
            assert scores.layers[layer][name] == pytest.approx(100 * right / len(given))
        assert scores.layers[layer]["all"] == scores.layers[layer]["test"]
    assert scores.layers[scores.best_layer]["dev"] == max(found["dev"] for found in scores.layers.values())


def test_what_training_never_showed_takes_the_first_sense_and_an_unknown_word_has_no_answer(model):
    train = [
        sense_sentence(["old", "bank"], (1, "bank", ("bank%2",))),
        sense_sentence(["a", "bank"], (1, "bank", ("bank%2",))),
        sense_sentence(["the", "bank"], (1, "bank", ("bank%1",))),
        sense_sentence(["a", "ball"], (1, "ball", ("ball%3",))),
    ]
    index = {("bank", "NOUN"): ["bank%1", "bank%2"], ("ball", "NOUN"): ["ball%1"], ("stage", "NOUN"): ["stage%1"]}
    test = [
        sense_sentence(["old", "bank"], (1, "bank", ("bank%2",))),
        sense_sentence(["ball"], (0, "ball", ("ball%3",))),
        sense_sentence(["stage"], (0, "stage", ("stage%1", "stage%2"))),
        sense_sentence(["boat"], (0, "boat", ("boat%1",))),
    ]
    scores = disambiguate(model, train, {"dev": test[:1], "one": test[:2], "two": test[2:]}, index, dev="dev")
    assert scores.first_sense == pytest.approx({"dev": 0, "one": 0, "two": 200 / 3, "all": 200 / 7})
    assert scores.most_frequent == pytest.approx({"dev": 100, "one": 100, "two": 200 / 3, "all": 600 / 7})
    assert scores.layers["2"] == pytest.approx({"dev": 100, "one": 100, "two": 200 / 3, "all": 600 / 7})
    assert scores.num_instances == {"dev": 1, "one": 2, "two": 2, "all": 4}
    assert scores.num_unseen == {"dev": 0, "one": 0, "two": 2, "all": 2}


def test_senses_need_a_set_that_chooses_and_one_to_test(model):
    with pytest.raises(ValueError, match="the sets are test: expected 'dev'"):
        disambiguate(model, [], {"test": []}, {}, dev="dev")


@pytest.mark.slow
def test_the_baselines_on_the_published_sets_are_those_that_are_known(model, data, monkeypatch):
    monkeypatch.setattr(disambiguation, "place_vectors", lambda *_, **__: iter(()))  # no vector, no time
    folder = data / "tasks" / "wsd"
    sets = {name: read_wsd(folder / name / f"{name}.data.xml") for name in (suite.DEV, *suite.TESTS)}
    index = read_sense_index(folder / "wordnet" / "index.sense.gz")
    scores = disambiguate(model, read_wsd(folder / "semcor" / "semcor.data.xml.gz"), sets, index, dev=suite.DEV)
    assert round(scores.first_sense["all"], 1) == 65.5
    assert round(scores.most_frequent["all"], 1) == 65.7
