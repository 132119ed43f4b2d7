"""The Chinese sense triples are fair: each sentence has its word once, and no other word gives the answer away."""

from itertools import combinations

import pytest

from elmokit.probes import CHINESE_TRIPLES

every_triple = pytest.mark.parametrize("triple", CHINESE_TRIPLES, ids=lambda triple: triple.word)


def sentences(triple):
    return triple.first, triple.second, triple.other


def test_there_are_fifteen_words_and_no_sentence_is_there_twice():
    assert len({triple.word for triple in CHINESE_TRIPLES}) == len(CHINESE_TRIPLES) == 15
    assert len({text for triple in CHINESE_TRIPLES for text in sentences(triple)}) == 45


@every_triple
def test_each_sentence_is_complete_and_has_its_word_once(triple):
    for text in sentences(triple):
        assert text.count(triple.word) == 1
        assert text.endswith("。")
        assert 9 <= len(text) <= 26


@every_triple
def test_the_sentences_of_a_triple_share_no_other_content_word(triple):
    segmenter = pytest.importorskip("elmokit.integrations.chinese")
    pytest.importorskip("rjieba")

    def content(text):
        return {word.text for word in segmenter.segment(text) if len(word.text) > 1 and triple.word not in word.text}

    for one, two in combinations(sentences(triple), 2):
        assert not content(one) & content(two)
