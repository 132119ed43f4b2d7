"""Text files: every format gives the same text; missing, damaged and wrongly encoded files are reported."""

import gzip
import logging
import lzma
import random
import sys
from collections import Counter

import pytest
from tiny_corpora import SPECIALS, as_text, cut_to_48_bytes, make_documents, read_back, write_parquet

from elmokit.corpus import (
    build_vocabulary,
    count_words,
    prepare,
    sources,
)
from elmokit.text import Vocabulary


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
    with pytest.raises(ImportError, match=rf'{name}: {module} is not installed: pip install "elmokit\[{extra}\]"'):
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
        "3 lines have bytes that are not UTF-8"
    ] * 2


def test_one_line_that_is_not_utf8_is_one_line(tmp_path, caplog):
    (tmp_path / "a.txt").write_bytes(b"caf\xe9 a\n")
    count_words(tmp_path / "a.txt")
    (record,) = caplog.records
    assert record.getMessage().startswith("1 line has bytes that are not UTF-8")


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


def test_each_character_can_be_a_token(tmp_path):
    path = tmp_path / "zh.txt"
    path.write_text("银行 借钱。\n河岸。\n", encoding="utf-8")
    vocabulary = build_vocabulary(path, tokenized="characters")
    assert set(vocabulary.words[3:]) == set("银行借钱。河岸")
    assert vocabulary.words[3] == "。"
    corpus = prepare(path, tmp_path / "corpus", vocabulary=vocabulary, tokenized="characters")
    assert (corpus.num_tokens, corpus.num_sentences) == (8, 2)
