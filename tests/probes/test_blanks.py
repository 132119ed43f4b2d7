"""Everyday sentences with a blank: filled by `substitutes`, accepted by a list that was written beforehand."""

import math

import pytest

from elmokit import ELMo
from elmokit.probes import BLANKS, fill_blanks
from elmokit.text import marked_word


def test_the_words_of_a_blank_are_the_substitutes_of_the_model(model):
    sentence = "the [____] lent money ."
    (filled,) = fill_blanks(model, {sentence: ""})
    expected = {one.word: math.exp(one.log_prob) for one in model.substitutes(sentence, k=5)}
    assert (filled.sentence, filled.words) == (sentence, expected)


def test_a_blank_is_accepted_by_its_first_word_only(model):
    first, second, *_ = fill_blanks(model, {"the [____] lent money .": ""})[0].words
    for accepted, is_accepted in ((first, True), (f"{second} {first}", True), (second, False), ("", False)):
        (filled,) = fill_blanks(model, {"the [____] lent money .": accepted})
        assert filled.is_accepted is is_accepted


def test_there_are_twenty_sentences_with_one_blank_each_and_words_that_fit():
    assert len(BLANKS) == 20
    for sentence, accepted in BLANKS.items():
        assert marked_word(sentence, allow_blank=True).tokens.count("____") == 1
        assert accepted.split()


def test_a_model_without_softmax_cannot_fill_blanks(model):
    with pytest.raises(ValueError, match="softmax"):
        fill_blanks(ELMo(model.bilm))
