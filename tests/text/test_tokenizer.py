"""Tokenizers: rules, tokens that are slices of the text, sentences."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmokit.text import TREEBANK, Tokenizer, tokenize

TEXTS = st.text(st.characters(codec="utf-8"), max_size=60)
NAMES = ["treebank", "spaces", "characters", "han"]


def test_the_three_rules():
    text = "It's 银行 (ok)."
    assert Tokenizer("treebank")(text) == ["It", "'s", "银行", "(", "ok", ")", "."]
    assert Tokenizer("spaces")(text) == ["It's", "银行", "(ok)."]
    assert Tokenizer("characters")(text) == [*"It's", *"银行", *"(ok)."]
    assert TREEBANK("The bank.") == tokenize("The bank.")


@pytest.mark.parametrize("name", NAMES)
@given(text=TEXTS)
def test_offsets_cut_the_tokens_out_of_the_text(name, text):
    tokenizer = Tokenizer(name)
    tokens = tokenizer.with_offsets(text)
    assert [token.text for token in tokens] == tokenizer(text) == [text[t.start : t.end] for t in tokens]
    assert all(first.end <= second.start for first, second in pairwise(tokens))


@pytest.mark.parametrize("name", NAMES)
@given(text=TEXTS)
def test_sentences_have_offsets_in_the_complete_text_and_lose_no_character(name, text):
    tokens = [token for sentence in Tokenizer(name).sentences(text) for token in sentence]
    assert all(text[t.start : t.end] == t.text for t in tokens)
    assert "".join(t.text for t in tokens).split() == ["".join(text.split())] * bool(tokens) or name == "treebank"


def test_an_unknown_rule_is_refused_with_its_name():
    with pytest.raises(ValueError, match="tokenizer must be one of treebank, spaces, characters, han, not 'words'"):
        Tokenizer("words")
