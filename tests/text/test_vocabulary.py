"""The vocabulary: ids of words, and of words only."""

import numpy as np
import pytest

from elmokit import Vocabulary

WORDS = ["<S>", "</S>", "<UNK>", "the", "bank", "b"]


@pytest.mark.parametrize("kind", [list, tuple, iter, np.array, lambda words: (word for word in words)])
def test_words_may_come_in_any_ordered_container(kind):
    ids = Vocabulary(WORDS).ids(kind(["bank", "river", "the"]))
    assert ids.dtype == np.int32
    assert ids.tolist() == [WORDS.index("bank"), WORDS.index("<UNK>"), WORDS.index("the")]
    assert Vocabulary(WORDS).ids(kind([])).tolist() == []


def test_one_string_is_not_a_list_of_words_and_what_is_no_word_is_not_unknown():
    vocabulary = Vocabulary(WORDS)
    with pytest.raises(ValueError, match=r"^words is 'bank' \(str\): expected a list of words"):
        vocabulary.ids("bank")
    with pytest.raises(ValueError, match=r"^words\[1\] is frozenset\(\)"):
        vocabulary.ids(["the", frozenset()])
    with pytest.raises(ValueError, match=r"^word must be a string, not b'x'"):
        vocabulary.id(b"x")


def test_a_word_that_is_not_utf8_is_named_and_nothing_is_written(tmp_path):
    vocabulary = Vocabulary([*WORDS, "x\udfffy", "z"])
    with pytest.raises(ValueError, match=r"^'x\\udfffy' has a lone surrogate"):
        vocabulary.save(tmp_path / "vocabulary.txt")
    assert list(tmp_path.iterdir()) == []


def test_a_device_is_not_read_as_a_vocabulary(tmp_path):
    (tmp_path / "vocabulary.txt").symlink_to("/dev/zero")
    with pytest.raises(ValueError, match=r"vocabulary\.txt: this is a device"):
        Vocabulary.load(tmp_path / "vocabulary.txt")
