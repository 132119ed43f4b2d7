"""Proteins as sentences of residues: the names that users of SeqVec know, over an official model."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from elmokit import ELMo
from elmokit.compat import SeqVecEmbedder, read_fasta

PROTEINS = {"P1": "SEQWENCE", "P2": "MKTAYIAKQRXU", "P3": ""}


@pytest.fixture(scope="module")
def protein_model(official_model):
    return official_model(21)


@pytest.fixture(scope="module")
def embedder(protein_model):
    return SeqVecEmbedder(protein_model.options_path.parent)


def test_each_residue_is_a_token(protein_model, embedder):
    found = embedder.embed_many(PROTEINS.values())
    for vectors, sequence in zip(found, PROTEINS.values(), strict=True):
        expected = protein_model.expected(list(sequence)).layers
        assert vectors.shape == (3, len(sequence), 10)
        np.testing.assert_allclose(vectors, expected, atol=1e-5)
        np.testing.assert_allclose(embedder.reduce_per_residue(vectors), expected.sum(axis=0), atol=1e-4)
        if sequence:
            wanted = expected.sum(axis=0).mean(axis=0)
            np.testing.assert_allclose(embedder.reduce_per_protein(vectors), wanted, atol=1e-4)
    assert np.array_equal(embedder.reduce_per_protein(found[2]), np.zeros(10))


def test_blanks_and_small_letters_are_the_same_protein(embedder):
    np.testing.assert_array_equal(embedder.embed("seq WEN\nce"), embedder.embed("SEQWENCE"))


def test_a_model_in_memory_will_do(protein_model, embedder):
    elmo = ELMo.from_files(protein_model.options_path, protein_model.weights_path)
    np.testing.assert_array_equal(SeqVecEmbedder(elmo).embed("SEQ"), embedder.embed("SEQ"))


@pytest.mark.parametrize(("sequence", "says"), [("MK-T", "'-' at position 2"), ("MKT*", r"'\*'"), ("MÜ", "'Ü'")])
def test_gaps_stops_and_other_signs_are_named(embedder, sequence, says):
    with pytest.raises(ValueError, match=rf"sequences\[1\] has {says}"):
        embedder.embed_many(["MKT", sequence])


def test_what_is_no_string_is_named(embedder):
    with pytest.raises(ValueError, match=r"sequences\[0\] is \['M', 'K'\], not a string of letters"):
        embedder.embed_many([["M", "K"]])
    with pytest.raises(ValueError, match="expected a list of sequences, got one string"):
        embedder.embed_many("MKT")


def test_fasta_is_read_in_order(tmp_path):
    (tmp_path / "p.fasta").write_text(">sp|P1 first protein\nSEQ\nwence\n\n>P2\n\n>P3 x\r\nMK\r\n")
    assert list(read_fasta(tmp_path / "p.fasta").items()) == [("sp|P1", "SEQwence"), ("P2", ""), ("P3", "MK")]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("MKT\n>P1\nMK\n", "line 1 comes before the first header"),
        (">P1\nMK\n>P1 again\nMT\n", "line 3 names 'P1'"),
        (">\nMK\n", "line 1 names ''"),
    ],
)
def test_what_is_no_fasta_is_named_with_its_line(tmp_path, content, says):
    (tmp_path / "p.fasta").write_text(content)
    with pytest.raises(ValueError, match=rf"p\.fasta: {says}"):
        read_fasta(tmp_path / "p.fasta")


def test_the_example_writes_one_vector_a_protein(protein_model, tmp_path):
    (tmp_path / "p.fasta").write_text(">P1\nSEQWENCE\n>P2\nMKT\n")
    script = Path(__file__).parent.parent / "examples" / "proteins.py"
    arguments = [tmp_path / "p.fasta", tmp_path / "p.npz", "--model", protein_model.options_path.parent]
    done = subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].split() == ["P1", "8", "residues"]
    with np.load(tmp_path / "p.npz") as vectors:
        expected = protein_model.expected(list("MKT")).layers.sum(axis=0).mean(axis=0)
        np.testing.assert_allclose(vectors["P2"], expected, atol=1e-4)
