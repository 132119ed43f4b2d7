"""Word counts and vocabularies: order, ids, files, and the errors of bad files."""

import hashlib
from collections import Counter

import pytest
from tiny_corpora import SPECIALS

from elmokit.corpus import (
    build_vocabulary,
    count_words,
    evaluation_batches,
    prepare,
)
from elmokit.text import Vocabulary, tokenize


def test_a_vocabulary_is_the_special_words_then_words_by_frequency_then_alphabet(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("b a c\n\na b d <S> <UNK> <UNK> <UNK>\nb\n")
    assert list(build_vocabulary(path, tokenized=True).words) == [*SPECIALS, "b", "a", "c", "d"]
    assert list(build_vocabulary(path, tokenized=True, size=5).words) == [*SPECIALS, "b", "a"]
    assert list(build_vocabulary(path, tokenized=True, min_count=3).words) == [*SPECIALS, "b"]


def test_raw_text_is_tokenized_and_tokenized_text_is_split_at_spaces(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("It's here.\r\n")
    assert count_words(path) == Counter(tokenize("It's here."))
    assert count_words(path, tokenized=True) == Counter(["It's", "here."])


def test_a_vocabulary_gives_ids_and_unknown_words_the_id_of_unk():
    vocabulary = Vocabulary([*SPECIALS, "a", "b"])
    assert [vocabulary.id("b"), vocabulary.id("zzz")] == [4, 2]
    assert vocabulary.ids(["b", "zzz", "<S>"]).tolist() == [4, 2, 0]
    assert vocabulary.ids([]).shape == (0,)
    assert len(vocabulary) == 5
    assert "a" in vocabulary
    assert "zzz" not in vocabulary


def test_a_saved_vocabulary_loads_the_same_and_its_digest_is_that_of_the_file(tmp_path):
    vocabulary = Vocabulary([*SPECIALS, "naïve", "日本"])
    vocabulary.save(tmp_path / "vocabulary.txt")
    assert Vocabulary.load(tmp_path / "vocabulary.txt").words == vocabulary.words
    assert vocabulary.digest == hashlib.sha256((tmp_path / "vocabulary.txt").read_bytes()).hexdigest()
    assert [path.name for path in tmp_path.iterdir()] == ["vocabulary.txt"]


def test_a_foreign_vocabulary_holds_the_specials_anywhere_and_its_end_mark_has_no_id(tmp_path):
    (tmp_path / "v.txt").write_text("</S>\r\n<S>\r\nthe\r\n<UNK>\r\nof\r\n!!!MAXTERMID\r\n")
    vocabulary = Vocabulary.load(tmp_path / "v.txt")
    assert (vocabulary.bos_id, vocabulary.eos_id, vocabulary.unk_id, len(vocabulary)) == (1, 0, 3, 5)
    (tmp_path / "t.txt").write_text("the of it\n")
    corpus = prepare(tmp_path / "t.txt", tmp_path / "c", vocabulary=vocabulary, tokenized=True)
    (batch,) = evaluation_batches(corpus, batch_size=1, unroll=4)
    assert batch.forward_targets.tolist() == [[2, 4, 3, 0]]
    assert batch.backward_targets.tolist() == [[3, 4, 2, 1]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"<S>\n</S>\nthe\n", "<UNK> is missing"),
        (b"the\n", "<S>, </S>, <UNK> is missing"),
        (b"<S>\n</S>\n<UNK>\nthe\nof\nthe\n", "'the' occurs twice, on lines 4 and 6"),
        (b"<S>\n</S>\n\n<UNK>\n", "line 3 is empty"),
        (b"", "line 1 is empty"),
        (b"<S>\n</S>\n<UNK>\ncaf\xe9\n", "line 4 is not UTF-8: b'caf\\\\xe9'"),
    ],
)
def test_a_bad_vocabulary_file_is_an_error_that_names_the_file_and_the_line(tmp_path, content, message):
    (tmp_path / "bad.txt").write_bytes(content)
    with pytest.raises(ValueError, match=rf"bad\.txt: .*{message}"):
        Vocabulary.load(tmp_path / "bad.txt")


def test_a_vocabulary_without_words_is_an_error(tmp_path):
    (tmp_path / "empty.txt").write_text("\n \n")
    (tmp_path / "text.txt").write_text("a a b\n")
    with pytest.raises(ValueError, match=r"no word in .*empty\.txt"):
        build_vocabulary(tmp_path / "empty.txt")
    with pytest.raises(ValueError, match=r"min_count is 3: no word of \S+text\.txt, \S+empty\.txt occurs"):
        build_vocabulary([tmp_path / "text.txt", tmp_path / "empty.txt"], min_count=3)
    with pytest.raises(ValueError, match="size is 3"):
        build_vocabulary(tmp_path / "text.txt", size=3)
