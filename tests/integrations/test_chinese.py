"""Words of Chinese text: slices of the text, of which a Chinese model makes one vector each."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmokit import ELMo
from elmokit.text import Tokenizer

pytest.importorskip("rjieba")
from elmokit.integrations.chinese import segment


def test_words_have_offsets_in_the_text():
    text = "我爱 北京天安门。\n好😀"
    words = segment(text)
    assert [word.text for word in words] == ["我", "爱", "北京", "天安门", "。", "好", "😀"]
    assert all(text[word.start : word.end] == word.text for word in words)


@given(st.text(st.characters(), max_size=40))
def test_no_character_but_whitespace_is_lost(text):
    words = segment(text)
    assert all(text[word.start : word.end] == word.text for word in words)
    assert "".join("".join(word.text.split()) for word in words) == "".join(text.split())


def test_words_are_vectors_of_a_chinese_model(tiny_elmo):
    elmo = ELMo.from_pretrained(tiny_elmo)
    elmo.tokenizer = Tokenizer("han")
    text = "我去银行取钱。"
    words = segment(text)
    (by_word,), (by_character,) = elmo.embed([[word.text for word in words]]), elmo.embed([text])
    half = elmo.dim // 2
    expected = [[*by_character[word.end - 1][:half], *by_character[word.start][half:]] for word in words]
    np.testing.assert_allclose(by_word, expected, atol=1e-6)


def test_text_that_is_not_a_string_is_refused():
    with pytest.raises(ValueError, match="text"):
        segment(["我"])
