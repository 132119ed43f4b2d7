"""embed, similar: what they write and print, and what they say about bad input."""

import json
import sys

import h5py
import numpy as np
import pytest
from click.testing import CliRunner
from verbs import (
    FORMATS,
    LINES,
    assert_same_vectors,
    error_of,
    read_tokens,
    read_vectors,
    result_of,
    run,
    sense_by_hand,
    views_by_hand,
)

from elmokit import progress
from elmokit.cli import main, sentence_vectors
from elmokit.model import ELMo
from elmokit.text import tokenize
from elmokit.vector_files import formats, write


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("layers", ["all", "top", "average", "slot", "sense", "0"])
def test_every_format_holds_the_vectors_of_every_line(kind, layers, official, folder, text, tmp_path):
    result = result_of("embed", text, tmp_path / f"out.{kind}", "--model", folder, "--layers", layers)
    assert (result["num_sentences"], result["format"]) == (len(LINES), kind)
    expected = []
    for line in LINES:
        stacked = official.expected(tokenize(line)).layers
        chosen = {"all": stacked, "top": stacked[-1], "average": stacked.mean(axis=0), "0": stacked[0]}
        chosen |= views_by_hand(official.expected(tokenize(line)).with_boundaries, tokenize(line))
        expected.append(chosen[layers])
    assert_same_vectors(read_vectors(tmp_path / f"out.{kind}"), expected)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", f"out.{kind}"]


@pytest.mark.parametrize("kind", FORMATS)
def test_half_precision_is_the_same_rounded(kind, folder, text, tmp_path):
    for dtype in ("float32", "float16"):
        run("embed", text, tmp_path / f"{dtype}.{kind}", "--model", folder, "--dtype", dtype, "--layers", "all")
    exact, rounded = (read_vectors(tmp_path / f"{dtype}.{kind}") for dtype in ("float32", "float16"))
    assert rounded[0].dtype == np.float16 or kind == "parquet"
    assert_same_vectors(rounded, [exact[number] for number in range(len(LINES))], rtol=1e-3)
    assert not np.array_equal(rounded[0].astype(np.float32), exact[0].astype(np.float32))


@pytest.mark.parametrize("kind", ["hdf5", "npz", "parquet"])
def test_compressed_files_hold_the_same(kind, folder, text, tmp_path):
    run("embed", text, tmp_path / f"plain.{kind}", "--model", folder)
    run("embed", text, tmp_path / f"small.{kind}", "--model", folder, "--compression", "gzip")
    plain, small = (read_vectors(tmp_path / f"{name}.{kind}") for name in ("plain", "small"))
    assert_same_vectors(small, [plain[number] for number in range(len(LINES))], rtol=0)


def test_an_hdf5_file_has_the_layout_of_allennlp(official, folder, text, tmp_path):
    run("embed", text, tmp_path / "out", "--format", "hdf5", "--model", folder, "--layers", "all", "--tokenized")
    with h5py.File(tmp_path / "out") as file:
        assert sorted(file) == ["0", "1", "2", "3", "4", "sentence_to_index"]
        assert file["sentence_to_index"].shape == (1,)
        index = json.loads(file["sentence_to_index"][0])
        assert index == {LINES[0]: "3", "": "1", LINES[2]: "2", LINES[4]: "4"}  # of equal lines the last is found
        assert file[index[LINES[0]]].shape == (3, 6, 10)
        assert file["0"].dtype == np.float32
        assert file["1"].shape == (3, 0, 10)
        assert file["2"].shape == (3, 4, 10)  # split at spaces alone
        np.testing.assert_allclose(file["2"], official.expected(LINES[2].split()).layers, atol=1e-5)


def test_raw_text_is_split_by_the_tokenizer_of_the_model(official, characters_model, text, tmp_path):
    run("embed", text, tmp_path / "out.npz", "--model", characters_model, "--layers", "-1")
    expected = [official.expected(list(line.replace(" ", ""))).layers[-1] for line in LINES]
    assert_same_vectors(read_vectors(tmp_path / "out.npz"), expected)


def test_sentences_can_be_forgotten_or_be_keys(folder, tmp_path):
    lines = "one two\nthree / four\n"
    run("embed", "-", tmp_path / "a.hdf5", "--model", folder, "--forget-sentences", text=lines)
    run("embed", "-", tmp_path / "b.hdf5", "--model", folder, "--use-sentence-keys", text=lines)
    with h5py.File(tmp_path / "a.hdf5") as numbered, h5py.File(tmp_path / "b.hdf5") as keyed:
        assert sorted(numbered) == ["0", "1"]
        assert "sentence_to_index" not in keyed
        for number, line in enumerate(lines.splitlines()):
            assert np.array_equal(keyed[line], numbered[str(number)])


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("same\nother\nsame\n", "line 3: 'same' is there twice"),
        ("one\n\n", "line 2: '' cannot be a key"),
        ("a/b\na\n", "line 2: 'a' and another line differ by what follows a /"),
        ("a\na/b\n", "line 2: 'a/b' and another line"),
        ("nul\0\n", "line 1: 'nul\\x00' cannot be a key"),
    ],
)
def test_lines_that_cannot_be_keys_are_named(lines, message, folder, tmp_path):
    found = error_of("embed", "-", tmp_path / "o.h5", "--model", folder, "--use-sentence-keys", text=lines)
    assert message in found
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("gzip", [False, True])
def test_every_format_holds_the_tokens_of_every_line(kind, gzip, folder, tmp_path, monkeypatch):
    if kind == "safetensors" and gzip:
        pytest.skip("safetensors files are never compressed")
    monkeypatch.setattr(write, "PART_LINES", 2)
    lines = ["She's \"here\", isn't she?", "", "银行 🏦 caf\u0065\u0301", "nul\0 [x] \\ \t .", "long " * 20_000, "end."]
    options = ["--compression", "gzip"] if gzip else []
    run("embed", "-", tmp_path / f"out.{kind}", "--model", folder, *options, text="\n".join(lines))
    tokens = read_tokens(tmp_path / f"out.{kind}")
    assert tokens == [tokenize(line) for line in lines]
    vectors = read_vectors(tmp_path / f"out.{kind}")
    assert [len(vectors[number]) for number in range(len(lines))] == [len(words) for words in tokens]


def test_tokens_of_tokenized_text_are_those_between_spaces(folder, tmp_path):
    run("embed", "-", tmp_path / "out.npz", "--model", folder, "--tokenized", text="isn't it?\n")
    assert read_tokens(tmp_path / "out.npz") == [["isn't", "it?"]]


@pytest.mark.parametrize("kind", FORMATS)
def test_no_lines_have_no_tokens(kind, folder, tmp_path):
    run("embed", "-", tmp_path / f"out.{kind}", "--model", folder, text="")
    assert read_tokens(tmp_path / f"out.{kind}") == []


def test_forgotten_sentences_leave_no_text_in_the_file(folder, tmp_path):
    run("embed", "-", tmp_path / "out.hdf5", "--model", folder, "--forget-sentences", text="secret words\n")
    with h5py.File(tmp_path / "out.hdf5") as file:
        assert (sorted(file), dict(file.attrs)) == (["0"], {})
    assert b"secret" not in (tmp_path / "out.hdf5").read_bytes()


def test_a_parquet_row_has_the_line_and_its_tokens(folder, text, tmp_path):
    import pyarrow.parquet

    run("embed", text, tmp_path / "out.parquet", "--model", folder)
    rows = pyarrow.parquet.read_table(tmp_path / "out.parquet").to_pylist()
    assert [row["tokens"] for row in rows] == [tokenize(line) for line in LINES]
    assert [len(row["vectors"]) for row in rows] == [len(tokenize(line)) for line in LINES]


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"one two\r\n\r\nthree\r\n", ["one two", "", "three"]),
        (b"no line feed at the end", ["no line feed at the end"]),
        (b"\xef\xbb\xbfa mark first\nthen\n", ["a mark first", "then"]),
        ("a\u2028b \u0085 c\n\U0001f600\n".encode(), ["a\u2028b \u0085 c", "\U0001f600"]),
        (b"", []),
        (b"\n", [""]),
        (b"long " * 3000 + b"\n" + b"x" * 20000 + b"\n", ["long " * 2999 + "long", "x" * 20000]),
    ],
)
def test_a_line_ends_at_a_line_feed_and_nowhere_else(content, lines, folder, tmp_path):
    (tmp_path / "in.txt").write_bytes(content)
    result = result_of("embed", tmp_path / "in.txt", tmp_path / "out.npz", "--model", folder)
    found = read_vectors(tmp_path / "out.npz")
    assert [found[number].shape for number in range(len(lines))] == [(len(tokenize(line)), 10) for line in lines]
    assert (result["num_sentences"], result["num_tokens"]) == (len(lines), sum(map(len, map(tokenize, lines))))


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("layers", ["all", "top"])
def test_an_empty_file_and_blank_lines_alone_make_a_file_too(kind, layers, folder, tmp_path):
    for lines in ("", "\n\n"):
        arguments = ["embed", "-", tmp_path / f"out.{kind}", "--overwrite", "--model", folder, "--layers", layers]
        run(*arguments, "--tokenized", text=lines)
        found = read_vectors(tmp_path / f"out.{kind}")
        assert sorted(found) == list(range(len(lines)))
        assert all(vectors.size == 0 for vectors in found.values())


def test_the_batch_size_does_not_change_the_vectors(folder, text, tmp_path):
    run("embed", text, tmp_path / "a.npz", "--model", folder)
    run("embed", text, tmp_path / "b.npz", "--model", folder, "--batch-size", 1)
    first, second = read_vectors(tmp_path / "a.npz"), read_vectors(tmp_path / "b.npz")
    assert_same_vectors(first, [second[number] for number in range(len(LINES))], rtol=1e-5)


@pytest.mark.parametrize("verb", ["embed", "encode"])
def test_without_a_terminal_progress_is_lines_that_say_what_is_done(verb, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    monkeypatch.setattr(write, "PART_LINES", 4)
    monkeypatch.setattr(sentence_vectors, "BLOCK_LINES", 4)
    (tmp_path / "in.txt").write_text("a b c d\n" * 10)
    arguments = [verb, tmp_path / "in.txt", tmp_path / "out.npz", "--model", folder, "--batch-size", 2, "--tokenized"]
    result = run(*arguments)
    label = {"embed": "embedding", "encode": "encoding"}[verb]
    amounts = [line.partition(",")[0] for line in result.stderr.splitlines()]
    expected = [f"{label}: {16 * n} bytes of 80 bytes ({20 * n}%)" for n in range(1, 6)]  # two lines per batch
    assert list(dict.fromkeys(amounts)) == expected
    assert result.stdout.startswith(str(tmp_path / "out.npz"))
    known = run(*arguments[:1], "-", *arguments[2:], "--overwrite", text="a b c d\n" * 10).stderr.splitlines()
    assert known[0].startswith(f"{label}: 16 bytes")  # of standard input the size is not known
    assert " of " not in known[0]


def test_text_that_is_not_utf8_is_an_error_that_names_the_line(folder, tmp_path):
    (tmp_path / "in.txt").write_bytes("fine\nf\xfcr\n".encode("latin-1"))
    message = error_of("embed", tmp_path / "in.txt", tmp_path / "out.hdf5", "--model", folder)
    assert "in.txt: line 2 is not UTF-8 at byte 2" in message
    assert "iconv" in message
    assert [path.name for path in tmp_path.iterdir()] == ["in.txt"]
    assert "standard input: line 1 is not UTF-8" in error_of(
        "embed", "-", tmp_path / "out.hdf5", "--model", folder, text=b"\xff\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing.txt", "out.npz"], "nothing.txt: No such file or directory"),
        ([".", "out.npz"], ".: Is a directory"),
        (["in.txt", "out"], "out: its suffix names no format"),
        (["in.txt", "out.npz", "--layers", "9"], "number from 0 to 2, not 9"),
        (
            ["in.txt", "out.npz", "--layers", "most"],
            'layers must be "average", "top", "all", "slot", "sense" or a number from 0 to 2, not \'most\'',
        ),
        (["in.txt", "out.npz", "--batch-size", "0"], "batch_size must be at least 1, not 0"),
        (["in.txt", "out.npz", "--device", "abacus"], "device 'abacus' cannot be used"),
        (["in.txt", "out.npz", "--forget-sentences"], "out.npz: sentence keys are an option of hdf5 files"),
        (["in.txt", "out.safetensors", "--compression", "gzip"], "safetensors files are not compressed"),
        (["in.txt", "in.txt/out.npz"], "in.txt/out.npz: there is no folder in.txt"),
        (["in.txt", "away/out.npz"], "away/out.npz: there is no folder away"),
        (["in.txt", "/dev/full", "--format", "npz", "--overwrite"], "/dev/full is not a regular file"),
        (["in.txt", ".", "--format", "npz"], ". is not a regular file"),
        (["in.txt", "in.txt", "--format", "npz"], "in.txt already exists"),
        (["in.txt", "out.npz", "--model", "nowhere"], "no model 'nowhere'"),
    ],
)
def test_embed_says_in_one_line_what_is_wrong(arguments, message, folder, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if "--model" not in arguments:
        arguments = [*arguments, "--model", str(folder)]
    assert message in error_of("embed", *arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["in.txt"]
    assert text.read_text().startswith(LINES[0])


def test_parquet_without_pyarrow_names_the_extra(folder, text, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert 'pip install "elmokit[parquet]"' in error_of("embed", text, tmp_path / "o.parquet", "--model", folder)


def test_values_that_half_precision_cannot_hold_are_an_error(folder, text, tmp_path, monkeypatch):
    monkeypatch.setattr(
        ELMo, "embed", lambda self, tokens, **_: [np.full((len(words), 10), 1e6, np.float32) for words in tokens]
    )
    arguments = ["embed", text, tmp_path / "out.npz", "--model", folder]
    assert "line 1 has values beyond float16: write float32" in error_of(*arguments, "--dtype", "float16")
    run(*arguments)


def test_more_tensors_than_a_safetensors_header_holds_can_still_be_written_as_hdf5(folder, text, tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "SAFETENSORS_HEADER_BYTES", 100)
    message = error_of("embed", text, tmp_path / "out.safetensors", "--model", folder)
    assert "5 tensors are too many" in message
    (tmp_path / "out.safetensors.partial").rename(tmp_path / "out.hdf5.partial")
    assert result_of("embed", text, tmp_path / "out.hdf5", "--model", folder)["num_resumed"] == 5


def test_a_word_level_model_is_known_by_its_vocabulary_too(official_model, tmp_path):
    words = official_model(seed=5, word_level=True)
    (words.options_path.parent / "vocabulary.txt").write_text("".join(f"{word}\n" for word in words.vocabulary))
    run("convert", words.options_path.parent, tmp_path / "model")
    run("embed", "-", tmp_path / "o.npz", "--model", tmp_path / "model", "--layers", "all", text="word1 word3 other\n")
    expected = words.expected(["word1", "word3", "other"]).layers
    np.testing.assert_allclose(read_vectors(tmp_path / "o.npz")[0], expected, atol=1e-5)
    info = result_of("info", tmp_path / "model")
    assert (info["input"], info["vocabulary_size"], info["language_model"]) == ("words", 12, False)
    assert "12 words" in run("info", tmp_path / "model").stdout


def test_one_layer_and_all_of_them_are_wrong_usage(folder):
    arguments = ["similar", "a", "b", "--per-layer", "--layers", "1", "--model", str(folder)]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert "--per-layer compares every layer, --layers 1 one" in result.stderr


def test_similar_prints_the_cosine_of_a_word_in_each_layer(official, folder):
    sentences = ["He sat by the bank .", "The Bank lent money ."]
    result = result_of("similar", *sentences, "--word", "bank", "--per-layer", "--model", folder)
    rows = []
    for sentence, place in zip(sentences, (4, 1), strict=True):
        tokens, run_of = tokenize(sentence), official.expected(tokenize(sentence))
        views = views_by_hand(run_of.with_boundaries, tokens)
        layers = run_of.layers[:, place]
        rows.append(np.vstack([layers, layers.mean(axis=0), views["slot"][place], views["sense"][place]]))
    a, b = rows
    expected = (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    assert list(result) == ["word", "sentences", "cosine"]
    assert list(result["cosine"]) == ["0", "1", "2", "average", "slot", "sense"]
    np.testing.assert_allclose(list(result["cosine"].values()), expected, atol=1e-5)
    usual = result_of("similar", *sentences, "--word", "bank", "--model", folder)
    assert usual["cosine"] == {"sense": pytest.approx(expected[-1], abs=1e-5)}
    averaged = result_of("similar", *sentences, "--word", "bank", "--layers", "average", "--model", folder)
    assert averaged["cosine"] == {"average": pytest.approx(expected[3], abs=1e-5)}
    table = run("similar", *sentences, "--word", "bank", "--layers", "all", "--model", folder).stdout.splitlines()
    assert [line.split() for line in table] == [
        ["layer", "cosine"],
        *([name, f"{value:.4f}"] for name, value in result["cosine"].items()),
    ]


def test_similar_compares_whole_sentences_without_a_word(official, folder):
    sentences = ["He sat by the bank .", "The bank lent money ."]
    result = result_of("similar", *sentences, "--layers", "top", "--model", folder)
    a, b = (official.expected(tokenize(sentence)).layers[-1].mean(axis=0) for sentence in sentences)
    assert result["cosine"] == {"top": pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b), abs=1e-5)}
    a, b = (official.expected(tokenize(sentence)).layers.mean(axis=(0, 1)) for sentence in sentences)
    cosine = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
    assert result_of("similar", *sentences, "--model", folder)["cosine"] == {"average": pytest.approx(cosine, abs=1e-5)}


def test_similar_compares_a_phrase_as_one_word(official, folder):
    sentences = ["She left New York in May .", "In new york, banks can't fail ."]
    places = [(2, 4), (1, 3)]
    vectors = []
    for sentence, place in zip(sentences, places, strict=True):
        layers = official.expected(tokenize(sentence)).with_boundaries
        vectors.append(sense_by_hand(layers, tokenize(sentence), *place))
    a, b = vectors
    cosine = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
    result = result_of("similar", *sentences, "--word", "New York", "--model", folder)
    assert result["cosine"] == {"sense": pytest.approx(cosine, abs=1e-5)}


@pytest.mark.parametrize("verb", ["embed", "encode", "similar", "export"])
def test_the_help_of_layers_names_every_view(verb):
    words = " ".join(run(verb, "--help").stdout.split())
    for name in ("average", "top", "slot", "sense"):
        assert f" {name}," in words.partition("--layers")[2]


def test_similar_names_a_word_that_is_not_there(folder):
    assert "the word 'money' is not in the sentence" in error_of(
        "similar", "a", "b", "--word", "money", "--model", folder
    )
