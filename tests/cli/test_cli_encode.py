"""encode: one row per line, in every format, atomically."""

import os
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import safetensors.numpy
from verbs import LINES, error_of, result_of, run, views_by_hand

from elmokit.cli import sentence_vectors
from elmokit.model import ELMo
from elmokit.text import tokenize

FORMATS = ["hdf5", "npy", "npz", "parquet", "safetensors"]


def read_matrix(path: Path) -> np.ndarray:
    """The matrix of a file, read by the library that the format belongs to."""
    kind = path.suffix[1:]
    if kind == "npy":
        return np.load(path)
    if kind == "npz":
        with np.load(path) as arrays:
            assert arrays.files == ["vectors"]
            return arrays["vectors"]
    if kind in ("hdf5", "h5"):
        with h5py.File(path) as file:
            assert list(file) == ["vectors"]
            return file["vectors"][()]
    if kind == "safetensors":
        return safetensors.numpy.load_file(path)["vectors"]
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(path)
    assert table["line"].to_pylist() == list(range(len(table)))
    return np.stack(table["vector"].to_numpy(zero_copy_only=False)) if len(table) else np.empty((0, 10), np.float32)


def expected_rows(official, lines, layers="average", split=tokenize):
    """Means of the reference's token vectors; zeros for a blank line."""
    rows = np.zeros((len(lines), 10))
    for row, tokens in zip(rows, map(split, lines), strict=True):
        if tokens:
            stacked = official.expected(tokens).layers
            chosen = {"top": stacked[-1], "average": stacked.mean(axis=0), "0": stacked[0], "-1": stacked[-1]}
            chosen |= views_by_hand(official.expected(tokens).with_boundaries, tokens)
            row[:] = chosen[layers].mean(axis=0)
    return rows


@pytest.mark.parametrize("kind", [*FORMATS, "h5"])
@pytest.mark.parametrize("layers", ["average", "top", "slot", "sense", "0", "-1"])
def test_every_format_holds_one_row_per_line(kind, layers, official, folder, text, tmp_path):
    out = tmp_path / f"out.{kind}"
    result = result_of("encode", text, out, "--model", folder, "--layers", layers)
    assert (result["num_sentences"], result["dim"], result["format"]) == (
        len(LINES),
        10,
        "hdf5" if kind == "h5" else kind,
    )
    rows = read_matrix(out)
    assert (rows.shape, rows.dtype) == ((len(LINES), 10), np.float32)
    np.testing.assert_allclose(rows, expected_rows(official, LINES, layers), atol=1e-5)
    assert not rows[1].any()  # the blank line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", out.name]


def test_normalized_rows_have_length_one_and_blank_lines_stay_zero(official, folder, text, tmp_path):
    run("encode", text, tmp_path / "out.npy", "--model", folder, "--normalize")
    rows = np.load(tmp_path / "out.npy")
    expected = expected_rows(official, LINES)
    lengths = np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(rows, expected / np.where(lengths == 0, 1, lengths), atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), [1, 0, 1, 1, 1], atol=1e-6)


def test_tokenized_text_is_split_at_spaces_only(official, folder, text, tmp_path):
    run("encode", text, tmp_path / "out.npy", "--model", folder, "--tokenized")
    np.testing.assert_allclose(
        np.load(tmp_path / "out.npy"), expected_rows(official, LINES, split=str.split), atol=1e-5
    )


def test_raw_text_is_split_by_the_tokenizer_of_the_model(official, characters_model, text, tmp_path):
    run("encode", text, tmp_path / "out.npy", "--model", characters_model)

    def characters(line: str) -> list[str]:
        return list(line.replace(" ", ""))

    np.testing.assert_allclose(
        np.load(tmp_path / "out.npy"), expected_rows(official, LINES, split=characters), atol=1e-5
    )


@pytest.mark.parametrize("kind", FORMATS)
def test_standard_input_in_many_blocks_gives_the_same_rows(kind, folder, text, tmp_path, monkeypatch):
    run("encode", text, tmp_path / f"one.{kind}", "--model", folder)
    monkeypatch.setattr(sentence_vectors, "BLOCK_LINES", 2)
    arguments = ["encode", "-", tmp_path / f"many.{kind}", "--model", folder, "--batch-size", 1]
    run(*arguments, text=text.read_bytes())
    one, many = read_matrix(tmp_path / f"one.{kind}"), read_matrix(tmp_path / f"many.{kind}")
    np.testing.assert_allclose(many, one, atol=1e-6)


@pytest.mark.parametrize("kind", FORMATS)
def test_an_empty_file_gives_a_matrix_without_rows(kind, folder, tmp_path):
    run("encode", "-", tmp_path / f"out.{kind}", "--model", folder, text="")
    assert read_matrix(tmp_path / f"out.{kind}").shape == (0, 10)


@pytest.mark.parametrize("kind", FORMATS)
def test_half_precision_is_the_same_rounded(kind, folder, text, tmp_path):
    for dtype in ("float32", "float16"):
        run("encode", text, tmp_path / f"{dtype}.{kind}", "--model", folder, "--dtype", dtype)
    exact, rounded = (read_matrix(tmp_path / f"{dtype}.{kind}") for dtype in ("float32", "float16"))
    assert rounded.dtype == np.float16
    assert np.array_equal(rounded, exact.astype(np.float16))


def test_values_that_half_precision_cannot_hold_are_an_error(folder, text, tmp_path, monkeypatch):
    monkeypatch.setattr(ELMo, "encode", lambda self, lines, **_: np.full((len(lines), 10), 1e6, np.float32))
    arguments = ["encode", text, tmp_path / "out.npy", "--model", folder]
    assert "line 1 has values beyond float16" in error_of(*arguments, "--dtype", "float16")
    assert [path.name for path in tmp_path.iterdir()] == ["in.txt"]
    run(*arguments)


def test_a_file_is_replaced_only_if_asked_and_only_by_a_complete_one(folder, text, tmp_path, monkeypatch):
    arguments = ["encode", text, tmp_path / "out.npy", "--model", folder]
    run(*arguments)
    before = (tmp_path / "out.npy").read_bytes()
    assert "out.npy already exists" in error_of(*arguments)
    monkeypatch.setattr(sentence_vectors, "BLOCK_LINES", 2)
    encode, num_calls = ELMo.encode, 0

    def encode_or_fail(self, *args, **kwargs):
        nonlocal num_calls
        num_calls += 1
        if num_calls == 2:
            raise RuntimeError("out of memory")
        return encode(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(ELMo, "encode", encode_or_fail)
        assert "out of memory" in error_of(*arguments, "--overwrite")
    assert (tmp_path / "out.npy").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out.npy"]
    text.write_text("one line\n")
    assert result_of(*arguments, "--overwrite")["num_sentences"] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing.txt", "out.npy"], "nothing.txt: No such file or directory"),
        (["in.txt", "out"], "out: the suffix is none of .npy, .npz, .hdf5, .h5, .parquet, .safetensors"),
        (
            ["in.txt", "out.npy", "--layers", "all"],
            'layers must be "average", "top", "slot", "sense" or a number from 0 to 2, not \'all\'',
        ),
        (["in.txt", "out.npy", "--layers", "3"], "a number from 0 to 2, not 3"),
        (["in.txt", "out.npy", "--batch-size", "0"], "batch_size must be at least 1, not 0"),
        (["in.txt", "away/out.npy"], "away/out.npy: there is no folder away"),
        (["in.txt", "out.npy", "--model", "nowhere"], "no model 'nowhere'"),
    ],
)
def test_encode_says_in_one_line_what_is_wrong(arguments, message, folder, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if "--model" not in arguments:
        arguments = [*arguments, "--model", str(folder)]
    assert message in error_of("encode", *arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["in.txt"]


def test_two_encode_the_same_output_one_after_the_other(folder, text, tmp_path, monkeypatch):
    arguments = ["encode", text, tmp_path / "out.npy", "--model", folder]
    encode, messages = ELMo.encode, []

    def encode_beside_another(self, *args, **kwargs):
        monkeypatch.setattr(ELMo, "encode", encode)
        messages.append(error_of(*arguments, "--layers", "top", "--overwrite"))
        return encode(self, *args, **kwargs)

    monkeypatch.setattr(ELMo, "encode", encode_beside_another)
    run(*arguments)
    assert f"out.npy: another process is writing it (process {os.getpid()} on " in messages[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out.npy"]
    assert "out.npy already exists" in error_of(*arguments)


def test_parquet_without_pyarrow_names_the_extra_before_the_model_is_loaded(text, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert 'pip install "elmokit[parquet]"' in error_of("encode", text, tmp_path / "o.parquet", "--model", "nowhere")
