"""Vocabulary, prepared corpora and token streams, against plain Python that keeps everything in lists."""

import errno
import gzip
import hashlib
import json
import logging
import lzma
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from dataclasses import asdict
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from elmokit.corpus import (
    Corpus,
    StreamPosition,
    Streams,
    build_vocabulary,
    count_words,
    evaluation_batches,
    prepare,
    sources,
)
from elmokit.text import Vocabulary, tokenize, words_to_ids

SPECIALS = ["<S>", "</S>", "<UNK>"]
FIELDS = ["forward_inputs", "forward_targets", "backward_inputs", "backward_targets"]


def make_documents(seed, num_documents=12):
    """Documents of sentences of words, some of them long, rare or not ASCII."""
    draw = random.Random(seed)
    words = [f"w{n}" for n in range(40)] + ["naïve", "日本語", "x" * 60, "<UNK>"]
    weights = [1 / (n + 1) for n in range(len(words))]
    return [
        [draw.choices(words, weights, k=draw.randint(1, 9)) for _ in range(draw.randint(1, 6))]
        for _ in range(num_documents)
    ]


def as_text(documents):
    return "\n".join("".join(" ".join(sentence) + "\n" for sentence in document) for document in documents)


def make_corpus(folder, documents, size=20, **settings):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "text.txt").write_text(as_text(documents), encoding="utf-8")
    vocabulary = build_vocabulary(folder / "text.txt", tokenized=True, size=size)
    return prepare(
        folder / "text.txt", folder / "corpus", vocabulary=vocabulary, tokenized=True, **settings
    ), vocabulary


def spelled(row):
    """The word that a row of character ids spells."""
    ids = row.tolist()
    ids = ids[1 : ids.index(259)]
    return {256: "<S>", 257: "</S>"}.get(ids[0]) or bytes(ids).decode(errors="replace")


def read_back(corpus):
    """The documents of a corpus, from its arrays alone."""
    words = [spelled(row) for row in corpus.forms]
    documents = []
    for start, end in zip(corpus.documents[:-1], corpus.documents[1:], strict=True):
        assert corpus.stream[start] == 0
        sentences = []
        for form in corpus.stream[start:end].tolist():
            if form == 0:
                sentences.append([])
            else:
                sentences[-1].append(words[form])
        documents.append(sentences)
    assert corpus.stream[-1] == 0
    return documents


def cut_to_48_bytes(documents):
    return [[[word.encode()[:48].decode() for word in sentence] for sentence in document] for document in documents]


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


# ---- vocabulary -----------------------------------------------------------------------------------------------------


def test_a_vocabulary_is_the_specials_then_words_by_frequency_then_spelling(tmp_path):
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
    with pytest.raises(ValueError, match="min_count is 3"):
        build_vocabulary(tmp_path / "text.txt", min_count=3)
    with pytest.raises(ValueError, match="size is 3"):
        build_vocabulary(tmp_path / "text.txt", size=3)


# ---- text files -----------------------------------------------------------------------------------------------------


def write_parquet(path, columns):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table(columns), path)


def test_every_kind_of_file_gives_the_same_corpus(tmp_path, monkeypatch):
    zstandard = pytest.importorskip("zstandard")
    documents = make_documents(1, 60)
    content = as_text(documents).encode()
    half = len(content) // 2
    (tmp_path / "a.txt").write_bytes(content)
    (tmp_path / "a.gz").write_bytes(gzip.compress(content))
    (tmp_path / "a.xz").write_bytes(lzma.compress(content[:half]) + lzma.compress(content[half:]))
    pack = zstandard.ZstdCompressor().compress
    (tmp_path / "a.ZST").write_bytes(pack(content[:half]) + pack(content[half:]))
    rows = [as_text([document]) for document in documents]
    write_parquet(
        tmp_path / "a.parquet",
        {"id": list(range(len(rows) + 2)), "text": [*rows, None, ""], "x": ["?"] * (len(rows) + 2)},
    )
    write_parquet(tmp_path / "b.parquet", {"only": rows})
    vocabulary = build_vocabulary(tmp_path / "a.txt", tokenized=True)
    monkeypatch.setattr(sources, "BLOCK_BYTES", 500)
    for name in ["a.txt", "a.gz", "a.xz", "a.ZST", "a.parquet", "b.parquet"]:
        corpus = prepare(tmp_path / name, tmp_path / f"corpus-{name}", vocabulary=vocabulary, tokenized=True, workers=1)
        assert read_back(corpus) == cut_to_48_bytes(documents), name
        assert count_words(tmp_path / name, tokenized=True, workers=1) == Counter(content.decode().split()), name


def test_globs_name_files_in_order_and_the_end_of_a_file_ends_a_document(tmp_path):
    for name in ["b", "a", "c"]:
        (tmp_path / f"{name}.txt").write_text(name)
    (tmp_path / "[d].txt").write_text("\ufeffd", encoding="utf-8")
    vocabulary = Vocabulary(SPECIALS)
    paths = [str(tmp_path / "?.txt"), tmp_path / "[d].txt"]
    corpus = prepare(paths, tmp_path / "corpus", vocabulary=vocabulary, workers=1)
    assert read_back(corpus) == [[["a"]], [["b"]], [["c"]], [["d"]]]


@pytest.mark.parametrize("verb", ["count", "prepare"])
def test_bad_text_paths_are_errors_that_name_them(tmp_path, verb):
    def read(path):
        if verb == "count":
            return count_words(path, workers=1)
        return prepare(path, tmp_path / "out", vocabulary=Vocabulary(SPECIALS), workers=1)

    with pytest.raises(ValueError, match=r"nothing\*\.txt: no such file"):
        read(tmp_path / "nothing*.txt")
    with pytest.raises(ValueError, match=r"is a folder: name its files"):
        read(tmp_path)
    with pytest.raises(ValueError, match="there are no text files"):
        read([])
    with pytest.raises(ValueError, match="workers is 0"):
        next(iter([count_words(__file__, workers=0)]))


def test_damaged_files_are_errors_that_name_them(tmp_path):
    zstandard = pytest.importorskip("zstandard")
    content = random.Random(0).randbytes(5000).hex().encode()
    packed = {"a.gz": gzip.compress(content), "a.xz": lzma.compress(content)}
    packed["a.zst"] = zstandard.ZstdCompressor(write_checksum=True).compress(content)
    for name, whole in packed.items():
        turned = bytearray(whole)
        turned[len(whole) // 2] ^= 255
        for damaged in [whole[:-20], bytes(turned), b"no such format"]:
            (tmp_path / name).write_bytes(damaged)
            with pytest.raises(ValueError, match=rf"{name} is damaged or cut off"):
                count_words(tmp_path / name)
    pytest.importorskip("pyarrow")
    (tmp_path / "a.parquet").write_bytes(b"no such format")
    with pytest.raises(ValueError, match=r"a\.parquet is not a parquet file"):
        count_words(tmp_path / "a.parquet")


def test_a_parquet_file_without_a_text_column_is_an_error_that_names_the_columns(tmp_path):
    write_parquet(tmp_path / "a.parquet", {"title": ["a"], "body": ["b"], "n": [1]})
    with pytest.raises(ValueError, match=r"a\.parquet needs .* it has title \(string\), body \(string\), n \(int64\)"):
        count_words(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("name", "module", "extra"), [("a.zst", "zstandard", "train"), ("a.parquet", "pyarrow", "parquet")]
)
def test_a_missing_package_is_an_error_that_names_the_extra(tmp_path, monkeypatch, name, module, extra):
    (tmp_path / name).write_bytes(b"")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf'{name} needs {module}: pip install "elmokit\[{extra}\]"'):
        count_words(tmp_path / name)


def test_lines_that_are_not_utf8_are_replaced_and_counted(tmp_path, caplog):
    (tmp_path / "a.txt").write_bytes(
        "caf\xe9 a\ngood é \ufffd\n\xff\xfe\n".encode("latin-1", "replace") + "naïve\n".encode()
    )
    lines = (tmp_path / "a.txt").read_bytes().split(b"\n")[:-1]
    num_bad = sum(b"\xe9" in line or b"\xff" in line for line in lines)
    assert num_bad == 3
    with caplog.at_level(logging.WARNING):
        counts = count_words(tmp_path / "a.txt", tokenized=True)
        corpus = prepare(tmp_path / "a.txt", tmp_path / "c", vocabulary=Vocabulary(SPECIALS), tokenized=True)
    assert counts.num_replaced_lines == corpus.num_replaced_lines == num_bad
    assert counts["caf\ufffd"] == 1
    assert counts["naïve"] == 1
    assert [record.getMessage().split(";")[0] for record in caplog.records] == [
        "3 lines hold bytes that are not UTF-8"
    ] * 2


def test_progress_goes_up_to_the_size_of_all_files(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "BLOCK_BYTES", 50)
    (tmp_path / "a.txt").write_text("a b c\n" * 100)
    (tmp_path / "b.gz").write_bytes(gzip.compress(b"a b c\n" * 100))
    seen = []
    count_words([tmp_path / "a.txt", tmp_path / "b.gz"], progress=lambda *now: seen.append(now), workers=1)
    total = sum((tmp_path / name).stat().st_size for name in ["a.txt", "b.gz"])
    assert len(seen) > 10
    assert seen == sorted(seen)
    assert seen[-1] == (total, total)


# ---- prepare --------------------------------------------------------------------------------------------------------


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


def test_words_are_spelled_with_as_many_characters_as_asked(tmp_path):
    corpus, _ = make_corpus(tmp_path, [[["abcdefgh"]]], max_characters=6)
    assert corpus.forms.shape == (3, 6)
    assert spelled(corpus.forms[2]) == "abcd"


def test_a_corpus_is_the_same_for_any_number_of_workers(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "BLOCK_BYTES", 1500)
    paths = []
    for seed in range(2):
        paths.append(tmp_path / f"{seed}.txt")
        paths[-1].write_text(as_text(make_documents(seed, 50)), encoding="utf-8")
    alone = count_words(paths, workers=1)
    together = count_words(paths, workers=2)
    assert together == alone
    assert alone.total() > 1000
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


def test_a_torn_or_changed_shard_is_made_again(tmp_path, monkeypatch):
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
    whole = "elmokit.corpus.prepared._Shard.is_complete"
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


# ---- a prepared corpus ----------------------------------------------------------------------------------------------


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
    damaged = Corpus.open(corpus.folder)
    place, lengths = len(content) // 2 // 4, np.cumsum([part["length"] for part in about(corpus)["shards"]])
    where = (
        rf"stream\.bin: shard {np.searchsorted(lengths, place, 'right')}, from text\.txt"
        if name == "stream.bin"
        else name
    )
    with pytest.raises(ValueError, match=rf"{where}.* is damaged"):
        damaged.verify()


def about(corpus):
    return json.loads((corpus.folder / "corpus.json").read_text())


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


# ---- streams --------------------------------------------------------------------------------------------------------


def pairs_of(document):
    """The (forward input, forward target) and (backward input, backward target) of a document, in the text's order."""
    forward, backward = [], []
    for sentence in document:
        inputs, targets = ["<S>", *sentence], [*sentence, "</S>"]
        forward += zip(inputs, targets, strict=True)
        inputs, targets = ["</S>", *reversed(sentence)], [*reversed(sentence), "<S>"]
        backward += reversed(list(zip(inputs, targets, strict=True)))
    return forward, backward


def expected_rows(documents, rows, seed, num_epochs, shuffle=True):
    """What each row of the two streams reads in whole epochs, as lists of (input word, target word)."""
    forward_rows, backward_rows = [[] for _ in range(rows)], [[] for _ in range(rows)]
    for epoch in range(num_epochs):
        order = list(range(len(documents)))
        if shuffle:
            draws = np.random.PCG64([seed, epoch]).random_raw(len(documents)).tolist()
            order.sort(key=draws.__getitem__)
        forward = [pair for d in order for pair in pairs_of(documents[d])[0]]
        backward = [pair for d in order for pair in pairs_of(documents[d])[1]]
        for row in range(rows):
            run = slice(row * len(forward) // rows, (row + 1) * len(forward) // rows)
            forward_rows[row] += forward[run]
            backward_rows[row] += reversed(backward[run])
    return forward_rows, backward_rows


def words_read(corpus, vocabulary, batches):
    """What the rows of batches hold, in the form of `expected_rows`."""
    words = [spelled(row) for row in corpus.forms]
    rows = []
    for direction in ["forward", "backward"]:
        inputs = np.concatenate([getattr(batch, f"{direction}_inputs") for batch in batches], axis=1)
        targets = np.concatenate([getattr(batch, f"{direction}_targets") for batch in batches], axis=1)
        rows.append(
            [
                [(words[form], vocabulary.words[target]) for form, target in zip(*row, strict=True)]
                for row in zip(inputs.tolist(), targets.tolist(), strict=True)
            ]
        )
    return rows


def with_unk(rows, vocabulary):
    return [[(word, target if target in vocabulary else "<UNK>") for word, target in row] for row in rows]


def assert_same_batches(some, others):
    for one, other in zip(some, others, strict=True):
        for field in FIELDS:
            assert np.array_equal(getattr(one, field), getattr(other, field)), field


@pytest.mark.parametrize(
    ("rows", "unroll", "num_documents"),
    [(1, 1, 3), (1, 5, 1), (3, 4, 12), (7, 20, 30), (16, 3, 12), (50, 20, 12), (2, 900, 2)],
)
@pytest.mark.parametrize("shuffle", [True, False])
def test_the_streams_are_those_of_the_definition_over_several_epochs(tmp_path, rows, unroll, num_documents, shuffle):
    documents = cut_to_48_bytes(make_documents(rows, num_documents))
    corpus, vocabulary = make_corpus(tmp_path, documents)
    streams = Streams(corpus, batch_size=rows, unroll=unroll, seed=11, shuffle=shuffle)
    num_steps = 3 * streams.tokens_per_epoch // (rows * unroll) + 2
    num_epochs = num_steps * unroll // (streams.tokens_per_epoch // rows) + 1
    batches = [streams.next() for _ in range(num_steps)]
    for batch in batches:
        for field in FIELDS:
            array = getattr(batch, field)
            assert (array.shape, array.dtype, array.flags.c_contiguous) == ((rows, unroll), np.int32, True)
    for read, expected in zip(
        words_read(corpus, vocabulary, batches), expected_rows(documents, rows, 11, num_epochs, shuffle), strict=True
    ):
        assert read == [row[: num_steps * unroll] for row in with_unk(expected, vocabulary)]


def test_a_sentence_is_read_forward_after_its_start_and_backward_after_its_end(tmp_path):
    corpus, vocabulary = make_corpus(tmp_path, [[["a", "b"], ["c"]]])
    streams = Streams(corpus, batch_size=1, unroll=5, seed=0)
    forward, backward = words_read(corpus, vocabulary, [streams.next()])
    assert forward == [[("<S>", "a"), ("a", "b"), ("b", "</S>"), ("<S>", "c"), ("c", "</S>")]]
    assert backward == [[("</S>", "c"), ("c", "<S>"), ("</S>", "b"), ("b", "a"), ("a", "<S>")]]


def test_every_pair_comes_once_per_epoch_and_the_order_changes_from_epoch_to_epoch(tmp_path):
    documents = cut_to_48_bytes(make_documents(12, 40))
    corpus, vocabulary = make_corpus(tmp_path, documents, size=None)
    streams = Streams(corpus, batch_size=1, unroll=1, seed=3)
    expected = [Counter(pair for d in documents for pair in pairs_of(d)[direction]) for direction in (0, 1)]
    seen = []
    for _ in range(3):
        batches = [streams.next() for _ in range(streams.tokens_per_epoch)]
        rows = words_read(corpus, vocabulary, batches)
        assert [Counter(row) for (row,) in rows] == expected
        seen.append(rows)
    assert seen[0] != seen[1] != seen[2] != seen[0]
    assert streams.tokens_per_epoch == corpus.num_tokens + corpus.num_sentences == expected[0].total()
    assert streams.state.epoch == 3


def test_another_seed_gives_another_order_and_the_same_seed_the_same(tmp_path):
    corpus, _ = make_corpus(tmp_path, make_documents(13, 30))
    first, same, other = (
        [streams.next() for _ in range(10)]
        for streams in [Streams(corpus, batch_size=4, unroll=5, seed=seed) for seed in [1, 1, 2]]
    )
    assert_same_batches(first, same)
    assert any(not np.array_equal(a.forward_inputs, b.forward_inputs) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("world_size", [2, 3])
def test_processes_share_the_rows_that_one_process_would_have(tmp_path, world_size):
    corpus, _ = make_corpus(tmp_path, make_documents(14, 30))
    alone = Streams(corpus, batch_size=6, unroll=7, seed=5)
    ranks = [
        Streams(corpus, batch_size=6 // world_size, unroll=7, seed=5, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]
    for _ in range(3 * corpus.num_pairs // 42):
        whole, parts = alone.next(), [streams.next() for streams in ranks]
        for field in FIELDS:
            assert np.array_equal(getattr(whole, field), np.concatenate([getattr(part, field) for part in parts]))
        assert {streams.state for streams in ranks} == {alone.state}


@pytest.mark.parametrize("chunk_pairs", [1, 100, 1 << 20])
def test_streams_go_on_from_any_position_bit_by_bit(tmp_path, monkeypatch, chunk_pairs):
    monkeypatch.setattr("elmokit.corpus.streams.CHUNK_PAIRS", chunk_pairs)
    corpus, _ = make_corpus(tmp_path, make_documents(15, 30))
    streams = Streams(corpus, batch_size=5, unroll=4, seed=6)
    positions, batches = [], []
    for _ in range(4 * corpus.num_pairs // 20):
        positions.append(streams.state)
        batches.append(streams.next())
    draw = random.Random(7)
    fresh = Streams(corpus, batch_size=5, unroll=4, seed=6)
    for step in [0, *draw.sample(range(len(batches) - 5), 12)]:
        written = json.dumps(asdict(positions[step]))
        for restored in [streams, fresh]:
            restored.restore(StreamPosition(**json.loads(written)))
            assert restored.state == positions[step]
            assert_same_batches([restored.next() for _ in range(5)], batches[step : step + 5])


def test_a_position_of_other_streams_is_refused(tmp_path):
    corpus, _ = make_corpus(tmp_path, make_documents(16, 30))
    streams = Streams(corpus, batch_size=4, unroll=5, seed=1)
    before = streams.state
    for changed in [{"batch_size": 5}, {"unroll": 4}, {"seed": 2}]:
        other = Streams(corpus, **{"batch_size": 4, "unroll": 5, "seed": 1, **changed})
        other.next()
        with pytest.raises(ValueError, match=r"a position in other streams"):
            streams.restore(other.state)
    assert streams.state == before


def test_bad_stream_settings_are_errors_that_name_them(tmp_path):
    corpus, _ = make_corpus(tmp_path, [[["a", "b"]]])
    settings = {"batch_size": 1, "unroll": 1, "seed": 0}
    bad = [{"batch_size": 0}, {"unroll": 0}, {"seed": -1}, {"rank": 1}, {"world_size": 0}]
    for change in bad:
        ((name, value),) = change.items()
        with pytest.raises(ValueError, match=f"{name}={value}"):
            Streams(corpus, **{**settings, **change})
    with pytest.raises(ValueError, match="has 3 tokens for the 4 rows of a batch"):
        Streams(corpus, **{**settings, "batch_size": 4})
    with pytest.raises(ValueError, match="unroll=0"):
        next(evaluation_batches(corpus, batch_size=1, unroll=0))


@pytest.mark.parametrize(("rows", "unroll"), [(1, 1), (1, 1000), (4, 7), (16, 20), (200, 3)])
def test_evaluation_reads_every_pair_once_in_rows_of_whole_sentences(tmp_path, rows, unroll):
    documents = cut_to_48_bytes(make_documents(17, 20))
    corpus, vocabulary = make_corpus(tmp_path, documents)
    batches = list(evaluation_batches(corpus, batch_size=rows, unroll=unroll))
    weights = np.concatenate([batch.weights for batch in batches], axis=1)
    assert weights.dtype == np.float32
    assert weights.shape == (rows, len(batches) * unroll)
    assert set(weights.ravel().tolist()) <= {0.0, 1.0}
    lengths = weights.sum(axis=1).astype(int)
    assert (np.diff(weights, axis=1) <= 0).all(), "a row is filled up at its end alone"
    longest_sentence = max(len(sentence) + 1 for document in documents for sentence in document)
    assert (lengths <= corpus.num_pairs // rows + 1 + longest_sentence).all()
    forward, backward = (
        [row[:length] for row, length in zip(read, lengths, strict=True)]
        for read in words_read(corpus, vocabulary, batches)
    )
    for row in forward:
        assert not row or (row[0][0], row[-1][1]) == ("<S>", "</S>")
    expected = [[pair for document in documents for pair in pairs_of(document)[direction]] for direction in (0, 1)]
    expected_forward, expected_backward = with_unk(expected, vocabulary)
    assert [pair for row in forward for pair in row] == expected_forward
    assert [pair for row in backward for pair in reversed(row)] == expected_backward


def test_the_shared_text_goes_through_vocabulary_corpus_and_streams(tmp_path):
    source = (
        Path(os.environ.get("ELMOKIT_SHARED", Path(__file__).resolve().parents[3] / "shared"))
        / "data/pretrain/heldout-wiki.txt"
    )
    if not source.exists():
        pytest.skip(f"needs {source}")
    with open(source, encoding="utf-8") as file:
        lines = list(islice(file, 1500))
    (tmp_path / "part.txt").write_text("".join(lines), encoding="utf-8")
    vocabulary = build_vocabulary(tmp_path / "part.txt", min_count=2)
    corpus = prepare(tmp_path / "part.txt", tmp_path / "corpus", vocabulary=vocabulary)
    sentences = [tokenize(line.rstrip("\n")) for line in lines]
    assert [sentence for document in read_back(corpus) for sentence in document] == [s for s in sentences if s]
    assert corpus.num_documents == sum(
        bool(s) and not before for before, s in zip([[], *sentences[:-1]], sentences, strict=True)
    )
    streams = Streams(corpus, batch_size=8, unroll=20, seed=1)
    num_unknown = sum((streams.next().forward_targets == vocabulary.unk_id).sum() for _ in range(20))
    assert 0 < num_unknown < 0.5 * 20 * 160


def test_each_character_can_be_a_token(tmp_path):
    path = tmp_path / "zh.txt"
    path.write_text("银行 借钱。\n河岸。\n", encoding="utf-8")
    vocabulary = build_vocabulary(path, tokenized="characters")
    assert set(vocabulary.words[3:]) == set("银行借钱。河岸")
    assert vocabulary.words[3] == "。"
    corpus = prepare(path, tmp_path / "corpus", vocabulary=vocabulary, tokenized="characters")
    assert (corpus.num_tokens, corpus.num_sentences) == (8, 2)
