"""The text and the vocabulary of a run: what is empty, too short or does not fit is refused."""

import pytest
from tiny_runs import MODEL, SAMPLED, SETTINGS

from elmokit.corpus import build_vocabulary
from elmokit.pretraining import (
    pretrain,
)
from elmokit.text import Vocabulary


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no word in"),
        ("one line\n", "give more text or a smaller batch_size"),
        ("\n\n \n", "no word in"),
    ],
)
def test_text_that_is_empty_or_too_short_is_refused(tmp_path, content, message):
    (tmp_path / "text.txt").write_text(content)
    with pytest.raises(ValueError, match=message):
        pretrain(train=tmp_path / "text.txt", model=MODEL, out=tmp_path / "run", **SETTINGS)


def test_invalid_utf8_is_replaced_counted_and_trained_on(tmp_path, caplog):
    (tmp_path / "text.txt").write_bytes(b"good line here .\nbad \xff\xfe line .\n" * 40)
    assert (
        pretrain(train=tmp_path / "text.txt", model=MODEL, out=tmp_path / "run", **{**SETTINGS, "steps": 1}).step == 1
    )
    assert "40 lines" in caplog.text


def test_a_prepared_corpus_needs_its_own_vocabulary(corpus, text, tmp_path):
    with pytest.raises(ValueError, match="give the vocabulary file that it was prepared with"):
        pretrain(train=corpus.folder, model=MODEL, out=tmp_path / "a", **SETTINGS)
    Vocabulary(["<S>", "</S>", "<UNK>", "she"]).save(tmp_path / "other.txt")
    with pytest.raises(ValueError, match="was prepared with the vocabulary"):
        pretrain(
            train=corpus.folder, model=MODEL, out=tmp_path / "b", vocabulary=str(tmp_path / "other.txt"), **SETTINGS
        )
    build_vocabulary(text["train"], size=20, tokenized=True).save(tmp_path / "own.txt")
    settings = {**SETTINGS, "steps": 1, "vocabulary": str(tmp_path / "own.txt")}
    assert pretrain(train=corpus.folder, model=MODEL, out=tmp_path / "c", **settings).step == 1


@pytest.mark.parametrize(("words", "message"), [(["a", "b"], "missing"), (["<S>", "</S>", "<UNK>", "a", "a"], "twice")])
def test_a_vocabulary_without_specials_or_with_duplicates_is_refused(text, tmp_path, words, message):
    (tmp_path / "vocabulary.txt").write_text("\n".join(words) + "\n")
    with pytest.raises(ValueError, match=rf"vocabulary.txt: .*{message}"):
        pretrain(**text, model=MODEL, out=tmp_path / "a", vocabulary=str(tmp_path / "vocabulary.txt"), **SETTINGS)


def test_more_negatives_than_words_are_refused(text, tmp_path):
    with pytest.raises(ValueError, match="use the full softmax"):
        pretrain(**text, model=MODEL, out=tmp_path, **{**SETTINGS, **SAMPLED, "num_negatives": 1000})
