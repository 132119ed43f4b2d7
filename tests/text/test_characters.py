"""Characters and tokens: tokens equal NLTK's, ids equal the published definition, bad input is reported."""

import random
import subprocess
import sys
import threading
import unicodedata
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("nltk")

import regex
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from nltk.tokenize import NLTKWordTokenizer

from elmokit.text import TREEBANK, as_tokens, batch_to_ids, tokenize, words_to_ids
from elmokit.text import tokens as characters

NLTK = NLTKWordTokenizer()


def pieces(text: str) -> list[str]:
    return text.split()


OPENING_QUOTES = pieces(""" " '' ' `` ` ``` “ ‘ « „ """)
CLOSING_QUOTES = pieces(""" " '' ' ''' ” ’ » """)
MARKS = pieces("""( ) [ ] { } < > . .. ... , : ; ? ! * - -- — – $ % & @ # / _ ,, :: .) ). ." ,' n't N'T""")
CLITICS = pieces("'s 'S 'm 'd 'll 'LL 're 'RE 've 'Ve 't 'n")
WORDS = pieces(
    "a s t d n The word U.S. Mr. cannot CanNot gonna gimme gotta lemme wanna d'ye more'n 'tis 'Twas don't. "
    "1 2,3 4:30 $3.88 O'Brien e.g. dogs' take-off 中文 naïve straße gIMme"
)
SPACES = [" ", " ", " ", " ", "  ", "\t", "\n", "\r\n", "\xa0", "\u3000"]
ODDITIES = list("\x00\x1c\x1f\x85\u0301½²ſıİ\u200d\u200cⓐ\u203f\u2028😀\ud800")
ATOMS = [*OPENING_QUOTES, *CLOSING_QUOTES, *MARKS, *CLITICS, *WORDS, *SPACES, *SPACES, *ODDITIES]


def nltk_tokens(text: str) -> list[tuple[str, int, int]]:
    return [(text[start:end], start, end) for start, end in NLTK.span_tokenize(text)]


@pytest.fixture
def no_memory() -> None:
    """Nothing tokenized before counts."""
    for memory in (characters._first, characters._inside, characters._last, characters._only):
        memory.clear()


# ---- tokens ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("The bank lent money .", ["The", "bank", "lent", "money", "."]),
        ('"No," he said.', ['"', "No", ",", '"', "he", "said", "."]),
        ("He'll pay $3.88 (or 3,36 euros).", ["He", "'ll", "pay", "$", "3.88", "(", "or", "3,36", "euros", ")", "."]),
        ("I can't, and cannot -- ever!", ["I", "ca", "n't", ",", "and", "can", "not", "--", "ever", "!"]),
        ("Mr. Smith's dogs' U.S. home.", ["Mr.", "Smith", "'s", "dogs", "'", "U.S.", "home", "."]),
        ("'Tis gonna... end", ["'", "Tis", "gon", "na", "...", "end"]),
        ("in the U.S.", ["in", "the", "U.S", "."]),
    ],
)
def test_text_is_split_by_the_treebank_rules_and_keeps_its_characters(text: str, tokens: list[str]) -> None:
    assert tokenize(text) == tokens


@given(st.lists(st.sampled_from(ATOMS), max_size=12).map("".join))
@settings(max_examples=150)
def test_tokens_and_offsets_equal_nltk_on_pieces_that_its_rules_look_at(text: str) -> None:
    assert TREEBANK.with_offsets(text) == nltk_tokens(text)


@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from(OPENING_QUOTES + MARKS), max_size=2).map("".join),
            st.sampled_from(WORDS),
            st.sampled_from(["", *CLITICS]),
            st.lists(st.sampled_from(CLOSING_QUOTES + MARKS), max_size=3).map("".join),
        ).map("".join),
        max_size=5,
    ).map(" ".join)
)
@settings(max_examples=150)
def test_tokens_and_offsets_equal_nltk_on_words_dressed_in_punctuation(text: str) -> None:
    assert TREEBANK.with_offsets(text) == nltk_tokens(text)


def test_tokens_and_offsets_equal_nltk_on_thousands_of_random_strings() -> None:
    rng = random.Random(0)
    for _ in range(5000):
        text = "".join(rng.choices(ATOMS, k=rng.randint(1, 10)))
        assert TREEBANK.with_offsets(text) == nltk_tokens(text)


@given(st.text())
@settings(max_examples=150)
def test_every_string_is_tokenized_and_only_whitespace_is_left_out(text: str) -> None:
    tokens = TREEBANK.with_offsets(text)
    assert [token.text for token in tokens] == [text[token.start : token.end] for token in tokens] == tokenize(text)
    assert "".join(token.text for token in tokens) == "".join(text.split())


@pytest.mark.parametrize("name", ["heldout-wiki.txt", "heldout-books.txt"])
def test_every_line_of_running_text_is_tokenized_as_by_nltk(data: Path, name: str, no_memory: None) -> None:
    for line in (data / "pretrain" / name).read_text(encoding="utf-8").splitlines():
        assert TREEBANK.with_offsets(line) == nltk_tokens(line)


def test_the_word_characters_around_an_apostrophe_are_those_of_nltk() -> None:
    word = regex.compile(r"\w")
    # Beyond the planes of living scripts there are only ideographs, and code points that a newer Unicode may assign.
    for character in map(chr, range(0x3000)):
        if unicodedata.category(character) != "Cn":
            assert characters._is_word_character(character) == bool(word.match(character)), hex(ord(character))


@pytest.mark.parametrize("text", ["", " ", "\t\n \u3000", "\x1c"])
def test_blank_text_has_no_tokens(text: str) -> None:
    assert tokenize(text) == []
    assert TREEBANK.with_offsets(text) == []


def test_what_is_remembered_stays_within_bounds(no_memory: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(characters._Chunks, "capacity", 10)
    text = " ".join(["a", *(f"word{number}," for number in range(35)), "x" * 1000, "b"])
    expected = nltk_tokens(text)
    for _ in range(2):
        assert TREEBANK.with_offsets(text) == expected
        assert 0 < len(characters._inside) <= 10
    assert "x" * 1000 not in characters._inside


def test_threads_tokenize_alike(no_memory: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(characters._Chunks, "capacity", 20)
    texts = [f"He said: \"It's no. {number}, you cannot, (not {number % 7})." for number in range(300)]
    expected = [[token for token, _, _ in nltk_tokens(text)] for text in texts]
    results: list[list[list[str]]] = []
    threads = [threading.Thread(target=lambda: results.append(list(map(tokenize, texts)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 4


@pytest.mark.parametrize("text", [None, b"bytes", 3, ["a list"]])
def test_what_is_no_text_is_named(text: object) -> None:
    with pytest.raises(ValueError, match=r"text is .*: expected a string"):
        tokenize(text)  # type: ignore[arg-type]


def test_tokenizing_and_encoding_need_neither_torch_nor_nltk() -> None:
    code = (
        "import sys\n"
        "from elmokit.text import tokenize, words_to_ids\n"
        "words_to_ids(tokenize('The bank.'))\n"
        "sys.exit(' '.join({'torch', 'nltk'} & set(sys.modules)))\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.stderr.strip() == "", run.stderr


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("", []),
        (" \n\n ", []),
        ("One. Two! Three? 4 five", ["One .", "Two !", "Three ?", "4 five"]),
        ('(It does.) "So it is." 3 are left… End', ["( It does . )", '" So it is . "', "3 are left…", "End"]),
        ("Mr. A. B. Roe met Dr. Poe. They ran.", ["Mr. A. B. Roe met Dr. Poe .", "They ran ."]),
        ("The U.S. Army met No. 5 e.g. Jones. So", ["The U.S. Army met No. 5 e.g. Jones .", "So"]),
        ('"Go." He went. (So did I.) Yes', ['" Go . "', "He went .", "( So did I . )", "Yes"]),
        ("approx. as much. but small letters go on", ["approx. as much. but small letters go on"]),
        ("He paid e.g. ten.\n\nshe slept", ["He paid e.g. ten .", "she slept"]),
        ("东京是首都。 很大", ["东京是首都。", "很大"]),
    ],
)
def test_a_text_is_cut_into_sentences_where_a_reader_would_cut_it(text: str, sentences: list[str]) -> None:
    found = TREEBANK.sentences(text)
    assert [" ".join(token.text for token in sentence) for sentence in found] == sentences
    assert all(text[token.start : token.end] == token.text for sentence in found for token in sentence)


@pytest.mark.parametrize("seed", range(20))
def test_cutting_into_sentences_loses_nothing_but_space(seed: int) -> None:
    chance = random.Random(seed)
    text = "".join(chance.choice(["A", "b", ".", "! ", " ", "\n\n", '"', "Mr", ". ", "é", "\u2028"]) for _ in range(60))
    tokens = [token for sentence in TREEBANK.sentences(text) for token in sentence]
    assert tokens == sorted(tokens, key=lambda token: token.start)
    assert "".join(token.text for token in tokens) == "".join(text.split())


# ---- character ids --------------------------------------------------------------------------------------------------


def spelled(word: str, width: int = 50) -> list[int]:
    """One word's ids as the published code writes them, an id at a time."""
    if word in ("<S>", "</S>"):
        middle = [256 if word == "<S>" else 257]
    else:
        middle = list(word.encode("utf-8", "ignore"))[: width - 2]
    ids = [258, *middle, 259]
    return ids + [260] * (width - len(ids))


NASTY_WORDS = ["", "a", "bank", "<S>", "</S>", "<UNK>", "<S\ud800>", "\x00", "\x07\x1b", "\ud800", "a\udfffb"]
NASTY_WORDS += [
    "é" * 24,
    "é" * 25,
    "aé" * 17,
    "x" * 47,
    "x" * 48,
    "x" * 49,
    "x" * 10_000,
    "😀",
    "\U0010ffff",
    "中" * 17,
]


def test_words_are_encoded_as_published() -> None:
    ids = words_to_ids(NASTY_WORDS)
    assert ids.dtype == np.int16
    assert ids.tolist() == [spelled(word) for word in NASTY_WORDS]


@given(st.lists(st.text(max_size=60) | st.sampled_from(NASTY_WORDS)), st.integers(3, 60))
def test_any_words_are_encoded_as_published_at_any_width(words: list[str], width: int) -> None:
    assert words_to_ids(words, max_characters=width).tolist() == [spelled(word, width) for word in words]


def test_no_words_have_no_ids() -> None:
    assert words_to_ids([]).shape == (0, 50)


@given(st.lists(st.lists(st.sampled_from(NASTY_WORDS) | st.text(max_size=5), max_size=6), max_size=5))
def test_a_batch_is_every_token_shifted_by_one_and_zeros(sentences: list[list[str]]) -> None:
    longest = max(map(len, sentences), default=0)
    expected = torch.zeros(len(sentences), longest, 50, dtype=torch.long)
    for row, sentence in enumerate(sentences):
        for column, word in enumerate(sentence):
            expected[row, column] = torch.tensor(spelled(word)) + 1
    ids = batch_to_ids(sentences)
    assert ids.dtype == torch.long
    assert torch.equal(ids, expected)


def test_a_batch_of_strings_is_a_batch_of_their_tokens() -> None:
    text = "I can't see it."
    assert torch.equal(batch_to_ids([text]), batch_to_ids([["I", "ca", "n't", "see", "it", "."]]))


def test_no_sentences_and_empty_sentences_have_a_shape() -> None:
    assert batch_to_ids([]).shape == (0, 0, 50)
    assert batch_to_ids([[], ""]).shape == (2, 0, 50)
    assert batch_to_ids([[], ["a"]], max_characters=7)[0].tolist() == [[0] * 7]


@pytest.mark.parametrize("width", [2, 0, -1])
def test_a_width_without_room_for_a_byte_is_refused(width: int) -> None:
    for spell in (words_to_ids, batch_to_ids):
        with pytest.raises(ValueError, match=f"max_characters must be at least 3, not {width}"):
            spell([], max_characters=width)


# ---- what users give as sentences -----------------------------------------------------------------------------------


def test_strings_token_lists_tuples_arrays_and_generators_are_sentences() -> None:
    given_sentences = ["Hi there.", ["a.b", ""], ("x y",), np.array(["p", "q"]), (word for word in "rs"), [], ""]
    expected = [["Hi", "there", "."], ["a.b", ""], ["x y"], ["p", "q"], ["r", "s"], [], []]
    for sentences in (given_sentences, iter(as_tokens(expected))):
        tokens = as_tokens(sentences)
        assert tokens == expected
        assert {type(word) for sentence in tokens for word in sentence} == {str}
    assert as_tokens(np.array(["Hi.", "Ho."])) == [["Hi", "."], ["Ho", "."]]


@pytest.mark.parametrize(
    ("sentences", "message"),
    [
        ("The bank.", r"got one string: write \['The bank.'\]"),
        (b"bytes", r"sentences is b'bytes' \(bytes\): expected a list of strings or of token lists"),
        (None, r"sentences is None"),
        (7, r"sentences is 7 \(int\)"),
        ({"a": 1}, r"sentences is \{'a': 1\} \(dict\)"),
        ({"a"}, r"sentences is \{'a'\} \(set\)"),
        (np.array("a"), r"sentences is array\('a'.*\(ndarray\)"),
        (["a", None], r"sentences\[1\] is None \(NoneType\): expected a string or a list of tokens"),
        (["a", float("nan")], r"sentences\[1\] is nan \(float\)"),
        ([b"a"], r"sentences\[0\] is b'a' \(bytes\)"),
        ([{"a": 1}], r"sentences\[0\] is \{'a': 1\} \(dict\)"),
        ([["a"], {"b"}], r"sentences\[1\] is \{'b'\} \(set\)"),
        ([["a", ["b"]]], r"sentences\[0\]\[1\] is \['b'\] \(list\): expected a token, which is a string"),
        ([["a"], ["b", b"c"]], r"sentences\[1\]\[1\] is b'c' \(bytes\)"),
        ([["a", None]], r"sentences\[0\]\[1\] is None"),
        ([[1.5]], r"sentences\[0\]\[0\] is 1.5 \(float\)"),
        ([[[1]]], r"sentences\[0\]\[0\] is \[1\] \(list\)"),
        (torch.zeros(1, 2, dtype=torch.long), r"sentences\[0\]\[0\] is tensor\(0\) \(Tensor\)"),
        (torch.zeros(2), r"sentences\[0\] is tensor\(0.\) \(Tensor\)"),
    ],
)
def test_what_is_no_sentence_is_named_with_its_place(sentences: object, message: str) -> None:
    for read in (as_tokens, batch_to_ids):
        with pytest.raises(ValueError, match=message):
            read(sentences)  # type: ignore[operator]


@pytest.mark.parametrize("words", ["word", b"word", None, 3])
def test_words_must_be_a_list(words: object) -> None:
    with pytest.raises(ValueError, match=r"words is .*: expected a list of words"):
        words_to_ids(words)  # type: ignore[arg-type]


def test_a_long_value_is_named_in_short() -> None:
    with pytest.raises(ValueError) as refusal:
        as_tokens("word " * 10_000)
    assert len(str(refusal.value)) < 200


def test_the_position_in_an_error_counts_from_the_first_sentence_of_the_caller() -> None:
    with pytest.raises(ValueError, match=r"sentences\[41\] is None"):
        as_tokens(["fine", None], first=40)
