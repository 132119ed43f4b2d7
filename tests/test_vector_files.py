"""Files of vectors from Python; the command line has its tests in tests/cli."""

import numpy as np
import pytest

from elmokit import ELMo
from elmokit.text import WordWeights, tokenize
from elmokit.vector_files import VectorFile, Written, format_of, formats, write_vectors

LINES = ["银行, 在河边.", "", "It's a bank."]


@pytest.mark.parametrize(
    ("name", "tokenized", "cut"),
    [
        ("treebank", False, tokenize),
        ("characters", False, lambda line: list(line.replace(" ", ""))),
        ("spaces", False, str.split),
        ("characters", True, str.split),
    ],
)
def test_lines_are_cut_by_the_tokenizer_of_the_model_unless_they_are_tokenized(
    tiny_elmo, tmp_path, name, tokenized, cut
):
    pretrained = ELMo.from_pretrained(tiny_elmo)
    model = ELMo(pretrained.bilm, tokenizer=name).eval()
    tokens = [cut(line) for line in LINES]
    path = tmp_path / "vectors.npz"
    written = write_vectors(model, LINES, VectorFile(path, format_of(path), tokenized=tokenized))
    assert written == Written(len(LINES), sum(map(len, tokens)), 0)
    with np.load(path) as arrays:
        for number, expected in enumerate(pretrained.embed(tokens)):
            np.testing.assert_allclose(arrays[str(number)], expected, rtol=1e-5, atol=1e-6)


def test_a_parquet_file_has_the_tokens_of_the_model(tiny_elmo, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    model = ELMo(ELMo.from_pretrained(tiny_elmo).bilm, tokenizer="characters").eval()
    write_vectors(model, LINES, VectorFile(tmp_path / "vectors.parquet", "parquet", layers="all"))
    rows = parquet.read_table(tmp_path / "vectors.parquet").to_pylist()
    assert [row["tokens"] for row in rows] == [list(line.replace(" ", "")) for line in LINES]
    np.testing.assert_allclose(rows[0]["vectors"], model.embed(LINES[:1], layers="all")[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("layers", ["slot", "sense"])
def test_a_file_of_slot_or_sense_has_the_vectors_of_embed(tiny_elmo, tmp_path, layers):
    model = ELMo.from_pretrained(tiny_elmo)
    write_vectors(model, LINES, VectorFile(tmp_path / "vectors.npz", "npz", layers=layers))
    with np.load(tmp_path / "vectors.npz") as arrays:
        for number, expected in enumerate(model.embed(LINES, layers=layers)):
            np.testing.assert_allclose(arrays[str(number)], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("layers", ["slot", "sense"])
def test_a_run_of_sense_does_not_resume_with_other_weights_of_words(tiny_elmo, tmp_path, monkeypatch, layers):
    model, file = ELMo.from_pretrained(tiny_elmo), VectorFile(tmp_path / "vectors.npz", "npz", layers=layers)

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setitem(formats.WRITERS, "npz", full)
        with pytest.raises(OSError, match="No space left"):
            write_vectors(model, LINES, file)
    model.word_weights = WordWeights(["bank", "It"])
    if layers == "slot":  # which reads no weights
        assert write_vectors(model, LINES, file).num_resumed == len(LINES)
        return
    with pytest.raises(ValueError, match=r"was begun with word_weights [0-9a-f]{64}, and now it is"):
        write_vectors(model, LINES, file)
    assert write_vectors(model, LINES, file, overwrite=True).num_resumed == 0


def test_a_model_that_carries_its_state_is_refused(tiny_elmo, tmp_path):
    """What an earlier run has done is not read again, so that the state after it is not known."""
    model = ELMo.from_pretrained(tiny_elmo, state="carry")
    with pytest.raises(ValueError, match='load it with state="stateless"'):
        write_vectors(model, LINES, VectorFile(tmp_path / "vectors.npz", "npz"))
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_exists_is_replaced_only_where_asked(tiny_elmo, tmp_path):
    model, file = ELMo.from_pretrained(tiny_elmo), VectorFile(tmp_path / "vectors.npz", "npz")
    write_vectors(model, LINES, file)
    with pytest.raises(ValueError, match=r"vectors\.npz already exists"):
        write_vectors(model, LINES[:1], file)
    assert write_vectors(model, LINES[:1], file, overwrite=True).num_sentences == 1


@pytest.mark.parametrize("name", ["vectors.npz", "vectors.hdf5", "vectors.safetensors"])
def test_a_line_with_a_lone_surrogate_or_a_line_break_is_embedded(tiny_elmo, tmp_path, name):
    lines = ["the bank", "a \udcff b", "one\nand two"]
    model = ELMo.from_pretrained(tiny_elmo)
    write_vectors(model, lines, VectorFile(tmp_path / name, format_of(tmp_path / name), layers="top"))
    assert (tmp_path / name).is_file()
