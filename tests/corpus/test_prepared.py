"""Prepared corpora: the arrays hold the text, preparation can be killed, and damaged files are found."""

import errno
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from tiny_corpora import (
    SPECIALS,
    about,
    as_text,
    contents,
    cut_to_48_bytes,
    make_corpus,
    make_documents,
    read_back,
    spelled,
)

from elmokit.corpus import (
    Corpus,
    Streams,
    build_vocabulary,
    count_words,
    evaluation_batches,
    prepare,
    prepared,
    sources,
)
from elmokit.corpus.heldout import unigram_perplexity
from elmokit.files import claimed
from elmokit.text import Vocabulary, words_to_ids


@pytest.mark.parametrize("block_bytes", [1, 7, 64, 1000, 1 << 23])
def test_a_corpus_holds_the_text_whatever_the_size_of_its_shards(tmp_path, monkeypatch, block_bytes):
    documents = make_documents(2)
    monkeypatch.setattr(sources, "BLOCK_BYTES", block_bytes)
    content = "\n \n" + as_text(documents).replace("\n\n", "\n\t\n\n\n")
    (tmp_path / "a.txt").write_text(content, encoding="utf-8")
    vocabulary = build_vocabulary(tmp_path / "a.txt", tokenized=True, size=20, workers=1)
    corpus = prepare(tmp_path / "a.txt", tmp_path / "c", vocabulary=vocabulary, tokenized=True, workers=1)
    assert read_back(corpus) == cut_to_48_bytes(documents)
    sentences = [sentence for document in documents for sentence in document]
    assert corpus.num_tokens == sum(map(len, sentences))
    assert (corpus.num_sentences, corpus.num_documents) == (len(sentences), len(documents))
    counts = Counter(word for sentence in sentences for word in sentence)
    forms = ["<S>", "</S>", *sorted(counts, key=lambda word: (-counts[word], word))]
    assert np.array_equal(corpus.forms, words_to_ids(forms))
    assert corpus.form_targets.tolist() == [vocabulary.id(form) for form in forms]
    assert corpus.vocabulary_digest == vocabulary.digest
    corpus.verify()
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == [
        "corpus.json", "documents.bin", "form_targets.bin", "forms.bin", "stream.bin",
    ]  # fmt: skip


def test_words_outside_the_vocabulary_keep_their_characters_and_are_unk_as_targets(tmp_path):
    (tmp_path / "a.txt").write_text("cat dog\n")
    corpus = prepare(tmp_path / "a.txt", tmp_path / "c", vocabulary=Vocabulary([*SPECIALS, "cat"]), tokenized=True)
    (batch,) = evaluation_batches(corpus, batch_size=1, unroll=3)
    assert [spelled(corpus.forms[form]) for form in batch.forward_inputs[0]] == ["<S>", "cat", "dog"]
    assert batch.forward_targets.tolist() == [[3, 2, 1]]


def test_a_literal_boundary_in_the_text_does_not_end_a_sentence(tmp_path):
    (tmp_path / "a.txt").write_text("a <S> b </S>\n")
    corpus = prepare(tmp_path / "a.txt", tmp_path / "c", vocabulary=Vocabulary([*SPECIALS, "a", "b"]), tokenized=True)
    assert (corpus.num_sentences, corpus.num_tokens) == (1, 4)
    (batch,) = evaluation_batches(corpus, batch_size=1, unroll=5)
    assert [spelled(corpus.forms[form]) for form in batch.forward_inputs[0]] == ["<S>", "a", "<S>", "b", "</S>"]
    assert batch.forward_targets.tolist() == [[3, 0, 4, 1, 1]]


def test_words_are_encoded_with_the_number_of_characters_asked_for(tmp_path):
    corpus, _ = make_corpus(tmp_path, [[["abcdefgh"]]], max_characters=6)
    assert corpus.forms.shape == (3, 6)
    assert spelled(corpus.forms[2]) == "abcd"


def test_a_corpus_is_the_same_for_any_number_of_workers(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "BLOCK_BYTES", 1500)
    paths = []
    for seed in range(2):
        paths.append(tmp_path / f"{seed}.txt")
        paths[-1].write_text(as_text(make_documents(seed, 50)), encoding="utf-8")
    by_one = count_words(paths, workers=1)
    together = count_words(paths, workers=2)
    assert together == by_one
    assert by_one.total() > 1000
    vocabulary = build_vocabulary(paths, workers=1)
    one = prepare(paths, tmp_path / "one", vocabulary=vocabulary, workers=1)
    two = prepare(paths, tmp_path / "two", vocabulary=vocabulary, workers=2)
    assert len(json.loads((one.folder / "corpus.json").read_text())["shards"]) > 4
    assert contents(two.folder) == contents(one.folder)


def test_a_text_without_a_sentence_is_an_error_that_names_it(tmp_path):
    for content in ["", "\n\n \n"]:
        (tmp_path / "void.txt").write_text(content)
        with pytest.raises(ValueError, match=r"no sentence in .*void\.txt"):
            prepare(tmp_path / "void.txt", tmp_path / "c", vocabulary=Vocabulary(SPECIALS))
        with pytest.raises(ValueError, match="is not a prepared corpus"):
            Corpus.open(tmp_path / "c")
        assert not (tmp_path / "c").exists()


def test_a_folder_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "text.txt").write_text("a b\n")
    with pytest.raises(ValueError, match=r"text\.txt is a file: name a folder"):
        prepare(tmp_path / "text.txt", tmp_path / "text.txt", vocabulary=Vocabulary(SPECIALS))
    assert (tmp_path / "text.txt").read_text() == "a b\n"


def test_preparing_the_same_again_returns_it_and_other_text_is_refused(tmp_path):
    corpus, vocabulary = make_corpus(tmp_path, make_documents(3))
    path = tmp_path / "text.txt"
    before = contents(corpus.folder), (corpus.folder / "stream.bin").stat().st_mtime_ns
    prepare(path, corpus.folder, vocabulary=vocabulary, tokenized=True)
    assert (contents(corpus.folder), (corpus.folder / "stream.bin").stat().st_mtime_ns) == before
    for changed in [{"tokenized": False}, {"vocabulary": Vocabulary(SPECIALS)}, {"max_characters": 20}]:
        with pytest.raises(ValueError, match="holds a corpus of other text or vocabulary"):
            prepare(path, corpus.folder, **{"vocabulary": vocabulary, "tokenized": True, **changed})
    path.write_text("other text\n")
    with pytest.raises(ValueError, match="holds a corpus of other text or vocabulary"):
        prepare(path, corpus.folder, vocabulary=vocabulary, tokenized=True)
    assert contents(corpus.folder) == before[0]


PREPARE_AND_DIE = """
    import os, signal, sys
    from elmokit.corpus import Vocabulary, prepare, sources

    sources.BLOCK_BYTES = 400
    left = int(sys.argv[1])
    replace = os.replace

    def replace_or_die(*paths):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)  # the new file is written and not yet in its place
        replace(*paths)

    os.replace = replace_or_die
    prepare("text.txt", "killed", vocabulary=Vocabulary.load("vocabulary.txt"), tokenized=True, workers=1)
"""


def test_a_preparation_that_is_killed_again_and_again_ends_as_one_that_was_not(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "BLOCK_BYTES", 400)
    (tmp_path / "text.txt").write_text(as_text(make_documents(4, 120)), encoding="utf-8")
    vocabulary = build_vocabulary(tmp_path / "text.txt", tokenized=True, workers=1)
    vocabulary.save(tmp_path / "vocabulary.txt")
    whole = prepare(tmp_path / "text.txt", tmp_path / "whole", vocabulary=vocabulary, tokenized=True, workers=1)
    num_shards = len(about(whole)["shards"])
    kept: dict[Path, int] = {}

    def prepare_and_die(file_number):
        command = [sys.executable, "-c", textwrap.dedent(PREPARE_AND_DIE), str(file_number)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == -signal.SIGKILL, done.stderr
        shards = {path: path.stat().st_mtime_ns for path in (tmp_path / "killed" / "shards").glob("*.npz")}
        assert shards.items() >= kept.items(), "a finished shard was made again"
        kept.update(shards)
        with pytest.raises(ValueError, match="is not a prepared corpus"):
            Corpus.open(tmp_path / "killed")

    draw = random.Random(5)
    while len(kept) < num_shards - 6:
        prepare_and_die(draw.randint(2, 5))
    for number_in_join in range(1, 6):
        prepare_and_die(num_shards - len(kept) + number_in_join)
    assert len(kept) == num_shards
    prepare(tmp_path / "text.txt", tmp_path / "killed", vocabulary=vocabulary, tokenized=True)
    assert contents(tmp_path / "killed") == contents(whole.folder)


def test_an_incomplete_or_changed_shard_is_made_again(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "BLOCK_BYTES", 400)
    (tmp_path / "text.txt").write_text(as_text(make_documents(6, 120)), encoding="utf-8")
    vocabulary = build_vocabulary(tmp_path / "text.txt", tokenized=True, workers=1)
    whole = prepare(tmp_path / "text.txt", tmp_path / "whole", vocabulary=vocabulary, tokenized=True, workers=1)

    def stop(done, total):
        if done > total * 0.8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(tmp_path / "text.txt", tmp_path / "c", vocabulary=vocabulary, tokenized=True, workers=1, progress=stop)
    torn, emptied, *turned = sorted((tmp_path / "c" / "shards").glob("*.npz"))
    torn.write_bytes(torn.read_bytes()[:-30])
    emptied.write_bytes(b"")
    assert len(turned) > 5
    for number, shard in enumerate(turned):
        content = bytearray(shard.read_bytes())
        content[(len(content) - 1) * number // (len(turned) - 1)] ^= 1 << number % 8
        shard.write_bytes(content)
    prepare(tmp_path / "text.txt", tmp_path / "c", vocabulary=vocabulary, tokenized=True, workers=1)
    assert contents(tmp_path / "c") == contents(whole.folder)


def test_a_shard_that_is_damaged_while_it_is_used_is_an_error_that_names_it(tmp_path, monkeypatch):
    (tmp_path / "text.txt").write_text("a b\n")
    whole = "elmokit.corpus.preparing._Shard.is_complete"
    monkeypatch.setattr(whole, lambda shard: bool(shard.path.write_bytes(b"torn")))
    with pytest.raises(ValueError, match=r"\.npz was damaged after it was written"):
        prepare(tmp_path / "text.txt", tmp_path / "c", vocabulary=Vocabulary(SPECIALS))


def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "vocabulary.txt"
    Vocabulary([*SPECIALS, "old"]).save(path)

    def fail(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        Vocabulary([*SPECIALS, "new"]).save(path)
    assert "old" in Vocabulary.load(path)
    assert list(tmp_path.iterdir()) == [path]


def test_a_script_without_a_main_guard_is_told_so(tmp_path):
    (tmp_path / "text.txt").write_text("a b c\n" * 100)
    code = """
        from elmokit.corpus import count_words, sources
        sources.BLOCK_BYTES = 100
        count_words("text.txt", workers=2)
    """
    (tmp_path / "run.py").write_text(textwrap.dedent(code))
    done = subprocess.run([sys.executable, "run.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "RuntimeError: a worker process died" in done.stderr
    assert "`if __name__ == '__main__':`" in done.stderr


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads the process table of Linux")
def test_the_workers_of_a_killed_preparation_leave_with_it(tmp_path):
    (tmp_path / "text.txt").write_text("a b c\n\n" * 20000)
    code = """
        from elmokit.corpus import Vocabulary, prepare, sources
        sources.BLOCK_BYTES = 100  # so small that the work does not come to an end
        if __name__ == "__main__":
            prepare("text.txt", "c", vocabulary=Vocabulary(["<S>", "</S>", "<UNK>"]), workers=2)
    """
    (tmp_path / "run.py").write_text(textwrap.dedent(code))
    parent = subprocess.Popen([sys.executable, "run.py"], cwd=tmp_path)
    try:
        wait_until(lambda: len(list((tmp_path / "c" / "shards").glob("*.npz"))) > 2)
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
        assert len(children) >= 2
    finally:
        parent.kill()
        parent.wait()
    wait_until(lambda: not any(is_running(child) for child in children))


def wait_until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def is_running(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_the_package_needs_no_torch():
    code = """
        import importlib.util, sys, types
        elmokit = types.ModuleType("elmokit")
        elmokit.__path__ = list(importlib.util.find_spec("elmokit").submodule_search_locations)
        sys.modules["elmokit"] = elmokit  # without what the package itself imports
        import elmokit.corpus
        sys.exit("torch" in sys.modules)
    """
    assert subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=False).returncode == 0


def test_a_corpus_of_another_vocabulary_is_an_error_that_names_both(tmp_path):
    corpus, vocabulary = make_corpus(tmp_path, make_documents(7))
    assert Corpus.open(corpus.folder, vocabulary=vocabulary).num_tokens == corpus.num_tokens
    other = Vocabulary([*SPECIALS, "a"])
    with pytest.raises(ValueError, match=f"{vocabulary.digest}.*{other.digest}"):
        Corpus.open(corpus.folder, vocabulary=other)


@pytest.mark.parametrize("name", ["stream.bin", "documents.bin", "forms.bin", "form_targets.bin"])
def test_a_changed_byte_is_found_and_the_place_named(tmp_path, monkeypatch, name):
    monkeypatch.setattr(sources, "BLOCK_BYTES", 200)
    corpus, _ = make_corpus(tmp_path, make_documents(8, 20), workers=1)
    corpus.verify()
    content = bytearray((corpus.folder / name).read_bytes())
    content[len(content) // 2] ^= 4
    (corpus.folder / name).write_bytes(content)
    place, lengths = len(content) // 2 // 4, np.cumsum([part["length"] for part in about(corpus)["shards"]])
    where = (
        rf"stream\.bin: shard {np.searchsorted(lengths, place, 'right')}, from text\.txt"
        if name == "stream.bin"
        else name
    )
    with pytest.raises(ValueError, match=rf"{where}.* is damaged: its checksum differs. Remove .* prepare the text"):
        Corpus.open(corpus.folder)
    with pytest.raises(ValueError, match=rf"{where}.* is damaged"):
        corpus.verify()  # it was opened before


@pytest.mark.parametrize("bit", [20, 31])
@pytest.mark.parametrize("element", [7, 0, -1])
def test_a_flipped_bit_in_a_stream_too_large_for_checksums_is_named_when_it_is_read(
    tmp_path, monkeypatch, element, bit
):
    corpus, vocabulary = make_corpus(tmp_path, make_documents(8, 20))
    good = Corpus.open(corpus.folder)
    stream = np.fromfile(corpus.folder / "stream.bin", np.uint32)
    stream[element] ^= np.uint32(1 << bit)
    stream.tofile(corpus.folder / "stream.bin")
    monkeypatch.setattr(prepared, "CHECKED_BYTES", 0)
    damaged = Corpus.open(corpus.folder)
    message = r"stream\.bin is damaged: it has .*prepare the text again"
    streams = Streams(damaged, batch_size=2, unroll=5, seed=1)
    with pytest.raises(ValueError, match=message):
        [streams.next() for _ in range(2 * damaged.num_pairs // 10)]
    with pytest.raises(ValueError, match=message):
        list(evaluation_batches(damaged, batch_size=2, unroll=5))
    if element:  # the first boundary is not predicted
        with pytest.raises(ValueError, match=message):
            unigram_perplexity(good, damaged, len(vocabulary))


def test_a_corpus_records_its_tokenizer_and_one_of_an_earlier_version_has_none(tmp_path):
    for number, (tokenized, name) in enumerate({False: "treebank", True: "spaces", "characters": "characters"}.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "text.txt").write_text(as_text(make_documents(3)), encoding="utf-8")
        corpus = prepare(folder / "text.txt", folder / "corpus", vocabulary=Vocabulary(SPECIALS), tokenized=tokenized)
        assert (corpus.tokenizer, about(corpus)["tokenizer"]) == (name, name)
    described = about(corpus)
    del described["sha256"], described["tokenizer"]
    described["sha256"] = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()
    (corpus.folder / "corpus.json").write_text(json.dumps(described))
    assert Corpus.open(corpus.folder).tokenizer is None


def test_only_one_process_prepares_a_folder_and_the_second_is_told_who(tmp_path):
    corpus, vocabulary = make_corpus(tmp_path, make_documents(3))
    message = rf"{corpus.folder}: another process is preparing it \(process {os.getpid()} "
    with claimed(corpus.folder, lock=corpus.folder / ".lock"), pytest.raises(ValueError, match=message):
        prepare(tmp_path / "text.txt", corpus.folder, vocabulary=vocabulary, tokenized=True)
    prepare(tmp_path / "text.txt", corpus.folder, vocabulary=vocabulary, tokenized=True)
    (corpus.folder / ".lock").write_text('{"pid": 1}')  # of a process that was killed
    prepare(tmp_path / "text.txt", corpus.folder, vocabulary=vocabulary, tokenized=True)
    assert not (corpus.folder / ".lock").exists()


def test_a_file_that_is_cut_off_missing_or_edited_is_found_at_opening(tmp_path):
    corpus, _ = make_corpus(tmp_path, make_documents(9))
    described = (corpus.folder / "corpus.json").read_text()
    content = (corpus.folder / "forms.bin").read_bytes()
    (corpus.folder / "forms.bin").write_bytes(content[:-1])
    with pytest.raises(ValueError, match=rf"forms\.bin has {len(content) - 1} bytes and should have {len(content)}"):
        Corpus.open(corpus.folder)
    (corpus.folder / "forms.bin").unlink()
    with pytest.raises(ValueError, match=r"forms\.bin has 0 bytes"):
        Corpus.open(corpus.folder)
    for edited in [described.replace('"num_documents": 12', '"num_documents": 11'), "{}", "[]", described[:-9]]:
        assert edited != described
        (corpus.folder / "corpus.json").write_text(edited)
        with pytest.raises(ValueError, match=r"corpus\.json is damaged"):
            Corpus.open(corpus.folder)


def test_opening_maps_the_arrays_and_does_not_read_them(tmp_path):
    corpus, _ = make_corpus(tmp_path, make_documents(10))
    described = about(corpus)
    del described["sha256"]
    described["num_tokens"] = 10**11 // 4 - 1 - described["num_sentences"]
    described["sha256"] = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()
    (corpus.folder / "corpus.json").write_text(json.dumps(described))
    with open(corpus.folder / "stream.bin", "r+b") as file:
        file.truncate(10**11)  # a hole of a hundred gigabytes, more than any memory
    large = Corpus.open(corpus.folder)
    for array in [large.stream, large.documents, large.forms, large.form_targets]:
        assert isinstance(array, np.memmap)
        assert array.mode == "r"
    assert large.stream.shape == (10**11 // 4,)
    assert large.stream[:50].tolist() == corpus.stream[:50].tolist()
    assert large.stream[-1] == 0
