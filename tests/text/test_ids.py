"""Words as ids: the three kinds keep one contract."""

import numpy as np
import pytest

from elmokit import BiLMConfig, Vocabulary, batch_to_ids
from elmokit.text import Lexicon, make_word_ids, word_ids_of_sizes

WORDS = ["<S>", "</S>", "<UNK>", "bank", "river"]
SIZES = {"cell_dim": 4, "projection_dim": 2, "char_dim": 2, "filters": ((1, 2),)}
CASES = {
    "characters": (BiLMConfig(**SIZES), {}),
    "words": (BiLMConfig(**SIZES, num_words=5), {"vocabulary": Vocabulary(WORDS)}),
    "lexicon": (
        BiLMConfig(**SIZES, num_lexicon_characters=3, num_lexicon_words=2, word_dim=2),
        {"lexicon": Lexicon("abk", ["bank", "river"])},
    ),
}


@pytest.fixture(params=CASES)
def case(request):
    config, words = CASES[request.param]
    return config, make_word_ids(config, **words)


def test_ids_have_their_columns_and_stay_within_their_limits(case):
    _, word_ids = case
    ids = word_ids.ids(["bank", "x" * 99, "", "<S>", "</S>", "日本"])
    assert ids.dtype == np.int64
    assert ids.shape[1:] == (() if word_ids.num_columns is None else (word_ids.num_columns,))
    for columns, largest in word_ids.limits:
        part = ids if word_ids.num_columns is None else ids[:, columns]
        assert 1 <= part.min() <= part.max() <= largest  # 0 is padding


def test_the_boundaries_are_the_ids_of_their_tokens_with_and_without_the_words(case):
    config, word_ids = case
    np.testing.assert_array_equal(word_ids.boundaries, word_ids.ids(["<S>", "</S>"]))
    np.testing.assert_array_equal(word_ids_of_sizes(config).boundaries, word_ids.boundaries)
    assert word_ids_of_sizes(config).limits == word_ids.limits


def test_characters_are_those_of_batch_to_ids(case):
    _, word_ids = case
    if word_ids.describe() == "characters":
        np.testing.assert_array_equal(word_ids.ids(["bank", "naïve"]), batch_to_ids([["bank", "naïve"]])[0].numpy())


def test_a_reader_without_its_words_names_the_way_out(case):
    config, word_ids = case
    if word_ids.known:
        with pytest.raises(ValueError, match=r"use ELMo\.to_ids"):
            word_ids_of_sizes(config).ids(["bank"])


@pytest.mark.parametrize(
    ("config", "words", "message"),
    [
        (CASES["words"][0], {}, "5 words needs its vocabulary: it is missing"),
        (CASES["words"][0], {"vocabulary": Vocabulary(WORDS[:4])}, "this one has 4 words"),
        (CASES["lexicon"][0], {}, "a lexicon of nothing, the model asks for 3 characters and 2 words"),
        (CASES["lexicon"][0], {"lexicon": Lexicon("ab")}, "2 characters and 0 words, the model asks for 3"),
        (CASES["characters"][0], {"lexicon": Lexicon("ab")}, "the model asks for none"),
    ],
)
def test_words_that_do_not_fit_the_sizes_are_refused(config, words, message):
    with pytest.raises(ValueError, match=message):
        make_word_ids(config, **words)
