"""Words of a dictionary are found in running text: forms of the training data, English inflection, phrases."""

import pytest

from elmokit.tasks.lemmas import WordFinder

DICTIONARY = [
    ("bank", "NOUN"), ("bank", "VERB"), ("take", "VERB"), ("take_place", "VERB"), ("place", "NOUN"), ("stop", "VERB"),
    ("hope", "VERB"), ("hop", "VERB"), ("carry", "VERB"), ("box", "NOUN"), ("city", "NOUN"), ("wife", "NOUN"),
    ("leaf", "NOUN"), ("leave", "VERB"), ("woman", "NOUN"), ("big", "ADJ"), ("happy", "ADJ"), ("large", "ADJ"),
    ("well", "ADV"), ("primary_election", "NOUN"), ("election", "NOUN"), ("in", "NOUN"), ("i", "NOUN"), ("see", "VERB"),
    ("go", "VERB"), ("lens", "NOUN"), ("fill", "VERB"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ("bank", {("bank", "NOUN"), ("bank", "VERB")}),
        ("banks", {("bank", "NOUN"), ("bank", "VERB")}),
        ("taking", {("take", "VERB")}),
        ("stopped", {("stop", "VERB")}),
        ("filled", {("fill", "VERB")}),
        ("hoping", {("hope", "VERB"), ("hop", "VERB")}),
        ("hopping", {("hop", "VERB")}),
        ("carried", {("carry", "VERB")}),
        ("carries", {("carry", "VERB")}),
        ("goes", {("go", "VERB")}),
        ("boxes", {("box", "NOUN")}),
        ("cities", {("city", "NOUN")}),
        ("wives", {("wife", "NOUN")}),
        ("leaves", {("leaf", "NOUN"), ("leave", "VERB")}),
        ("lens", {("lens", "NOUN")}),
        ("women", {("woman", "NOUN")}),
        ("bigger", {("big", "ADJ")}),
        ("happiest", {("happy", "ADJ")}),
        ("larger", {("large", "ADJ")}),
        ("well", {("well", "ADV")}),
        ("welling", set()),
        ("is", set()),  # not "i": a stem has two letters at least
        ("took", set()),
        ("primary elections", {("primary_election", "NOUN")}),
        ("takes place", {("take_place", "VERB")}),
        ("take places", set()),
        ("", set()),
    ],
)
def test_a_form_has_the_lemmas_that_english_inflection_gives_it(form, words):
    counts = WordFinder(DICTIONARY, {}, ()).counts(form)
    assert set(counts) == words
    assert not any(counts.values())


def test_a_form_of_the_training_data_has_its_words_there_with_their_counts():
    forms = {"saw": {("see", "VERB"): 7}, "banks": {("bank", "NOUN"): 3}, "took place": {("take_place", "VERB"): 1}}
    finder = WordFinder([*DICTIONARY, ("saw", "NOUN")], forms, ())
    assert finder.counts("saw") == {("see", "VERB"): 7, ("saw", "NOUN"): 0}
    assert finder.counts("banks") == {("bank", "NOUN"): 3, ("bank", "VERB"): 0}
    found = finder.find(["It", "Took", "place"])
    assert [(one.start, one.end, one.counts) for one in found] == [(1, 3, {("take_place", "VERB"): 1})]


def test_the_longest_phrase_is_found_and_forms_that_are_left_out_are_not():
    finder = WordFinder(DICTIONARY, {}, {"in", "i"})
    tokens = ["I", "saw", "primary", "elections", "taking", "place", "in", "big", "banks", "."]
    found = [(" ".join(tokens[one.start : one.end]), sorted(one.counts)) for one in finder.find(tokens)]
    assert found == [
        ("primary elections", [("primary_election", "NOUN")]),
        ("taking place", [("take_place", "VERB")]),
        ("big", [("big", "ADJ")]),
        ("banks", [("bank", "NOUN"), ("bank", "VERB")]),
    ]
    assert finder.find([]) == finder.find(["", " ", "."]) == []


def test_a_phrase_that_is_not_in_training_does_not_begin_with_a_form_that_is_left_out():
    dictionary = [("the_street", "NOUN"), ("street", "NOUN"), ("the_city", "NOUN")]
    finder = WordFinder(dictionary, {"the city": {("the_city", "NOUN"): 1}}, {"the"})
    tokens = ["the", "street", "the", "city"]
    assert [(one.start, one.end) for one in finder.find(tokens)] == [(1, 2), (2, 4)]


def test_what_the_tokenizer_leaves_of_an_auxiliary_verb_is_not_a_word():
    finder = WordFinder([("ca", "NOUN"), ("do", "VERB")], {}, ())
    assert [one.start for one in finder.find(["Ca", "n't"])] == []
    assert [one.start for one in finder.find(["CA", ",", "do", "n't"])] == [0, 2]
