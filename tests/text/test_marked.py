"""Brackets around a phrase: which tokens of the sentence it is."""

import pytest

from elmokit.text import TREEBANK, Tokenizer, marked_phrase, tokenize


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
