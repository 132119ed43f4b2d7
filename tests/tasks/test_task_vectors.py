"""Static word vectors, and the layers of a frozen biLM on disk."""

import numpy as np
import pytest
import torch
from task_examples import SENTENCES

from elmokit import ELMo
from elmokit.tasks import vectors
from elmokit.tasks.vectors import FrozenLayers, load_static


def test_static_vectors_are_looked_up_as_written_and_then_in_lowercase(glove):
    static = load_static(str(glove))
    found = static.lookup(["Rome", "Oslo", "OSLO", "nothing"])
    assert found.tolist() == [[1, 2, 3], [4, 5, 6], [7, 8, 9], [0, 0, 0]]
    assert static.lookup([]).shape == (0, 3)


def test_the_head_of_word2vec_and_words_with_spaces_are_read(tmp_path):
    path = tmp_path / "vectors.txt"
    path.write_text("2 3\n. . 1 2 3\nb 4 5 6\n", encoding="utf-8")
    assert load_static(str(path)).lookup([". .", "b"]).tolist() == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize("names", ["words.txt", "index.parquet"])
def test_an_array_is_read_with_the_words_beside_it(tmp_path, names):
    table = np.arange(6, dtype=np.float32).reshape(3, 2)
    np.save(tmp_path / "vectors.npy", table)
    words = ["a", "b", "c"]
    if names.endswith(".txt"):
        (tmp_path / names).write_text("\n".join(words), encoding="utf-8")
    else:
        pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.table({"index": words}), tmp_path / names)
    for path in (tmp_path, tmp_path / "vectors.npy"):
        assert load_static(str(path)).lookup(["c", "z", "A"]).tolist() == [[4, 5], [0, 0], [0, 1]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a 1 2\nb 1\n", "line 2: expected a word and its 2 numbers"),
        ("a 1 2\n1 2\n", "line 2: 1 numbers, expected 2"),
        ("a 1 x\n", "line 1: expected a word and its 2 numbers"),
        ("a\n", "line 1: 0 numbers, expected some"),
        ("", "no word vectors in this file"),
    ],
)
def test_a_bad_file_of_vectors_is_named(tmp_path, content, message):
    path = tmp_path / "bad.txt"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=rf"bad\.txt.*{message}"):
        load_static(str(path))


def test_a_folder_of_vectors_that_does_not_fit_is_named(tmp_path):
    with pytest.raises(ValueError, match="no word vectors here"):
        load_static(str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match="found none"):
        load_static(str(tmp_path))
    np.save(tmp_path / "v.npy", np.zeros((3, 2), dtype=np.float32))
    (tmp_path / "w.txt").write_text("a\nb\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"v\.npy: \(3, 2\), but .*w\.txt has 2 words"):
        load_static(str(tmp_path / "v.npy"))
    (tmp_path / "v.npy").write_bytes(b"")
    with pytest.raises(ValueError, match=r"v\.npy: not an array of word vectors"):
        load_static(str(tmp_path))


@pytest.fixture
def layers(tiny_elmo, tmp_path):
    """layers(): a fresh reader of the same folder of vectors."""
    elmo = ELMo.from_pretrained(tiny_elmo, num_mixes=0)
    return lambda: FrozenLayers(elmo, tmp_path / "vectors")


TOKENS = [sentence.split() for sentence in SENTENCES] + [[], SENTENCES[0].split()]


def refuse_to_run(monkeypatch):
    monkeypatch.setattr(ELMo, "embed", lambda *_, **__: pytest.fail("the biLM ran"))


def test_vectors_are_computed_once_and_equal_those_that_are_not_stored(layers, monkeypatch):
    live = layers().tokens(TOKENS)
    first = layers()
    first.prepare(TOKENS)
    refuse_to_run(monkeypatch)
    second = layers()
    second.prepare(TOKENS, lambda *_: pytest.fail("computed again"))
    for stored in (first, second):
        torch.testing.assert_close(stored.tokens(TOKENS), live, atol=2e-3, rtol=2e-3)
        assert stored.tokens([[]]).shape == (3, 0, 16)
    second.prepare([[]])  # nothing to store is nothing stored
    assert len(list(second.folder.glob("*.f16"))) == 1


@pytest.mark.parametrize("damage", ["cut", "flip", "no record", "bad record"])
def test_corrupted_vectors_are_computed_again(layers, damage, caplog):
    good = layers()
    good.prepare(TOKENS)
    expected = good.tokens(TOKENS).clone()
    (path,) = good.folder.glob("*.f16")
    content = bytearray(path.read_bytes())
    if damage == "cut":
        path.write_bytes(content[:-2])
    elif damage == "flip":
        content[100] ^= 1
        path.write_bytes(content)
    elif damage == "no record":
        path.with_suffix(".json").unlink()
    else:
        path.with_suffix(".json").write_text("{}")
    again = layers()
    again.prepare(TOKENS)
    assert "is corrupted and is computed again" in caplog.text
    assert torch.equal(again.tokens(TOKENS), expected)


def test_the_computation_of_vectors_resumes_where_it_was_stopped(layers, monkeypatch):
    monkeypatch.setattr(vectors, "SENTENCES_AT_ONCE", 3)
    whole = layers()
    whole.prepare(TOKENS)
    expected = whole.tokens(TOKENS).clone()
    for path in whole.folder.iterdir():
        path.unlink()

    def stop(done, total):
        assert total == 10
        if done == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        layers().prepare(TOKENS, stop)
    (part,) = whole.folder.iterdir()
    with open(part, "ab") as file:
        file.write(b"incomplete")
    ran = []
    embed = ELMo.embed
    monkeypatch.setattr(ELMo, "embed", lambda self, s, **k: ran.extend(s) or embed(self, s, **k))
    again = layers()
    again.prepare(TOKENS)
    assert len(ran) == 4
    torch.testing.assert_close(again.tokens(TOKENS), expected, atol=2e-3, rtol=2e-3)
    assert {path.suffix for path in again.folder.iterdir()} == {".f16", ".json"}


def test_another_model_has_other_vectors(layers, tiny_elmo, tmp_path):
    layers().prepare(TOKENS)
    elmo = ELMo.from_pretrained(tiny_elmo, num_mixes=0)
    with torch.no_grad():
        elmo.bilm.layers[0].bias[0, 0] += 1e-3
    other = FrozenLayers(elmo, tmp_path / "vectors")
    other.prepare(TOKENS)
    assert len(list(other.folder.glob("*.f16"))) == 2


def test_vectors_too_large_for_half_floats_are_refused(layers, monkeypatch):
    monkeypatch.setattr(ELMo, "embed", lambda *_, **__: [np.full((3, 1, 16), 1e6, dtype=np.float32)])
    with pytest.raises(ValueError, match="float16: set tune"):
        layers().prepare([["a"]])
