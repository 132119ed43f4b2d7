"""The text and the vocabulary of a run: what is empty, too short or does not fit is refused."""

import os
import shutil

import pytest
from tiny_runs import MODEL, SAMPLED, SETTINGS

from elmokit.corpus import Corpus, build_vocabulary
from elmokit.files import claimed
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


def test_more_negatives_than_words_mean_the_full_softmax(text, tmp_path):
    """Not an error: a small text has a small vocabulary."""
    settings = {**SETTINGS, **SAMPLED, "num_negatives": 1000}
    pretrain(**text, model=MODEL, out=tmp_path / "many", **settings)
    pretrain(**text, model=MODEL, out=tmp_path / "full", **{**settings, "loss": "full"})
    for name in ("model.safetensors", "softmax.safetensors", "metrics.jsonl"):
        assert (tmp_path / "many" / name).read_bytes() == (tmp_path / "full" / name).read_bytes()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"train": "nothing.txt"}, "nothing.txt: no such file"),
        ({"heldout": "nothing.txt"}, "nothing.txt: no such file"),
        ({"vocabulary": "nothing.txt"}, "No such file"),
        ({"batch_size": 10_000}, "smaller batch_size"),
        ({"train": "EMPTY"}, "no word in"),
        ({"heldout": "EMPTY"}, "no sentence in"),
    ],
)
def test_a_run_that_is_refused_leaves_nothing_that_blocks_the_corrected_call(text, tmp_path, wrong, message):
    (tmp_path / "empty.txt").write_text("")
    wrong = {key: str(tmp_path / "empty.txt") if value == "EMPTY" else value for key, value in wrong.items()}
    settings = {**text, **SETTINGS, "steps": 1}
    for out in (tmp_path / "new", tmp_path / "existing"):
        (tmp_path / "existing").mkdir(exist_ok=True)
        (tmp_path / "existing" / "mine.txt").write_text("a file of the user")
        with pytest.raises((ValueError, OSError), match=message):
            pretrain(**{**settings, **wrong}, model=MODEL, out=out)
        left = sorted(path.name for path in out.rglob("*"))
        assert left == ([] if out.name == "new" else ["mine.txt"])
        assert pretrain(**settings, model=MODEL, out=out).step == 1
    assert (tmp_path / "existing" / "mine.txt").read_text() == "a file of the user"


def test_a_folder_that_is_a_file_and_text_that_is_a_folder_are_refused(text, tmp_path):
    (tmp_path / "out").write_text("a file of the user")
    with pytest.raises(ValueError, match="out is a file: name a folder"):
        pretrain(**text, **SETTINGS, model=MODEL, out=tmp_path / "out")
    (tmp_path / "texts").mkdir()
    with pytest.raises(
        ValueError, match=r"texts is a folder without a corpus of .*: name its files, as in .*texts/\*\.txt"
    ):
        pretrain(**{**text, "train": str(tmp_path / "texts")}, **SETTINGS, model=MODEL, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_corpus_that_stands_in_the_folder_of_a_refused_run_is_not_removed(corpus, text, tmp_path):
    shutil.copytree(corpus.folder, tmp_path / "corpus" / "train")
    vocabulary = build_vocabulary(text["train"], size=20, tokenized=True)
    vocabulary.save(tmp_path / "words.txt")
    with pytest.raises(ValueError, match="smaller batch_size"):
        pretrain(**text, model=MODEL, out=tmp_path, vocabulary=str(tmp_path / "words.txt"),
                 **{**SETTINGS, "batch_size": 10_000})  # fmt: skip
    assert Corpus.open(tmp_path / "corpus" / "train", vocabulary=vocabulary).num_tokens == corpus.num_tokens


def test_a_prepared_corpus_and_a_recipe_with_another_tokenizer_contradict_each_other(corpus, text, tmp_path):
    build_vocabulary(text["train"], size=20, tokenized=True).save(tmp_path / "words.txt")
    settings = {**SETTINGS, "steps": 1, "vocabulary": str(tmp_path / "words.txt")}
    message = 'was prepared with the tokenizer "spaces", tokenized = False means "treebank": set tokenized = true'
    with pytest.raises(ValueError, match=message):
        pretrain(train=corpus.folder, model=MODEL, out=tmp_path / "a", **{**settings, "tokenized": False})
    with pytest.raises(ValueError, match=message):
        pretrain(train=text["train"], heldout=corpus.folder, model=MODEL, out=tmp_path / "a",
                 **{**settings, "tokenized": False})  # fmt: skip
    assert not (tmp_path / "a").exists()
    assert pretrain(train=corpus.folder, model=MODEL, out=tmp_path / "a", **settings).step == 1


def test_a_flipped_bit_in_a_prepared_corpus_stops_a_run_before_it_begins(corpus, text, tmp_path):
    shutil.copytree(corpus.folder, tmp_path / "corpus")
    content = bytearray((tmp_path / "corpus" / "stream.bin").read_bytes())
    content[42] ^= 64
    (tmp_path / "corpus" / "stream.bin").write_bytes(content)
    build_vocabulary(text["train"], size=20, tokenized=True).save(tmp_path / "words.txt")
    with pytest.raises(ValueError, match=r"stream\.bin: shard 0.* is damaged: .*prepare the text again"):
        pretrain(train=tmp_path / "corpus", model=MODEL, out=tmp_path / "run",
                 vocabulary=str(tmp_path / "words.txt"), **SETTINGS)  # fmt: skip
    assert not (tmp_path / "run").exists()


def test_one_run_at_a_time_trains_in_a_folder_and_the_second_is_told_who(text, tmp_path):
    pretrain(**text, model=MODEL, out=tmp_path, **{**SETTINGS, "steps": 2})
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    message = rf"another process is training in it \(process {os.getpid()} on .*: wait until it ends, or use another"
    with claimed(tmp_path, lock=tmp_path / ".lock"), pytest.raises(ValueError, match=message):
        pretrain(**text, model=MODEL, out=tmp_path, **SETTINGS)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    (tmp_path / ".lock").write_text("{}")  # of a process that was killed
    assert pretrain(**text, model=MODEL, out=tmp_path, **SETTINGS).step == 12
