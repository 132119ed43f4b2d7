"""Brackets around a phrase: which tokens of the sentence it is."""

import pytest

from elmokit.text import TREEBANK, Tokenizer, find_phrase, marked_phrase, tokenize
from elmokit.text.marked import phrase_places


@pytest.mark.parametrize(
    ("sentence", "phrase"),
    [
        ("He sat on the [bank].", ["bank"]),
        ("She left [New York].", ["New", "York"]),
        ("She left [New York]'s harbour .", ["New", "York"]),
        ("[New  York] is large", ["New", "York"]),
        ("She [ can't ] pay", ["ca", "n't"]),
        ("Mr. [Roe] left .", ["Roe"]),  # the text before the brackets alone is "Mr" and "."
        ("the [U.S.] army", ["U.S."]),
        ("[Mr. Roe] left", ["Mr.", "Roe"]),
        ('He said "[yes]" twice.', ["yes"]),
        ("the [the] the", ["the"]),
        ("[all of it]", ["all", "of", "it"]),
    ],
)
def test_the_sentence_is_tokenized_as_without_brackets(sentence, phrase):
    found = marked_phrase(sentence)
    assert found.tokens == tokenize(sentence.replace("[", "").replace("]", ""))
    assert found.tokens[found.start : found.end] == phrase


def test_of_equal_words_the_marked_one_is_found():
    assert marked_phrase("bank by bank by [bank] by bank") == (["bank", "by"] * 3 + ["bank"], 4, 5)


@pytest.mark.parametrize(
    ("sentence", "name", "tokens", "span"),
    [
        ("on the [bank].", "spaces", ["on", "the", "bank", "."], (2, 3)),
        ("on the [river bank].", "spaces", ["on", "the", "river", "bank", "."], (2, 4)),
        ("they un[do] it", "treebank", ["they", "un", "do", "it"], (2, 3)),
        ("他在[银行]里", "characters", ["他", "在", "银", "行", "里"], (2, 4)),
    ],
)
def test_brackets_end_a_token(sentence, name, tokens, span):
    assert marked_phrase(sentence, Tokenizer(name)) == (tokens, *span)


@pytest.mark.parametrize("wrong", ["", "no mark", "[]", "a [ ] b", "[a] [b]", "[a", "a]", "[[a]]", "[a [b] c]"])
def test_one_pair_of_brackets_with_content_is_needed(wrong):
    with pytest.raises(ValueError, match=r"mark one word with brackets, as in 'He sat on the \[bank\] \.'"):
        marked_phrase(wrong)


@pytest.mark.parametrize("wrong", [None, 3, b"the [bank]", ["the", "[bank]"]])
def test_a_sentence_is_a_string(wrong):
    with pytest.raises(ValueError, match="expected a sentence such as"):
        marked_phrase(wrong, TREEBANK)


@pytest.mark.parametrize(
    ("phrase", "tokens", "place"),
    [
        ("bank", ["Bank", "and", "bank", "bank"], (2, 3)),  # as it is written comes before another case
        ("BANK", ["a", "Bank", "bank"], (1, 2)),
        ("New York", ["New", "Yorkers", "in", "New", "York"], (3, 5)),
        ("can't", ["you", "can't", "or", "ca", "n't"], (1, 2)),  # a list may have it as one token
        ("can't", ["you", "ca", "n't", "or", "can't"], (1, 3)),
    ],
)
def test_the_first_occurrence_of_a_phrase_is_found(phrase, tokens, place):
    assert find_phrase(phrase, tokens) == place


def test_every_occurrence_of_a_phrase_is_found_from_left_to_right_without_overlaps():
    tokens = ["New", "york", "new", "new", "York", "new york"]
    assert list(phrase_places("New York", ["New", "York"], tokens)) == [(0, 2), (3, 5), (5, 6)]
    assert list(phrase_places("New York", ["New", "York"], tokens, str)) == []
    assert list(phrase_places("a a", ["a", "a"], ["a", "a", "a", "a", "a"])) == [(0, 2), (2, 4)]


def test_a_phrase_that_is_not_there_is_named_with_the_tokens():
    for phrase in ("river", "bank a", ""):
        with pytest.raises(ValueError, match=r"is not in the sentence; its tokens are \['a', 'bank'\]"):
            find_phrase(phrase, ["a", "bank"])
