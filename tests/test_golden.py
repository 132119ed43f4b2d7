"""The published activations: a tiny official model, and what the original TensorFlow code made of thirty sentences."""

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from elmokit import ELMo, batch_to_ids
from elmokit.compat import ElmoEmbedder


def close(found, published):
    assert found.shape == published.shape
    assert np.allclose(found, published, atol=1e-6, rtol=1e-5), np.abs(found - published).max()


def datasets(path: Path) -> dict[str, np.ndarray]:
    names = []
    with h5py.File(path) as file:
        file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
        return {name: file[name][()] for name in names}


@pytest.fixture(scope="module")
def batches(golden):
    """Ten batches of three tokenized sentences: batch k is the k-th of each list."""
    lists = json.loads((golden / "sentences.json").read_text(encoding="utf-8"))
    return [[sentence.split() for sentence in batch] for batch in zip(*lists, strict=True)]


@pytest.fixture(scope="module")
def published(golden):
    """published[k][i]: the top layer (T, 2P) of sentence i of batch k."""
    found = []
    for i in range(3):
        with h5py.File(golden / f"lm_embeddings_{i}.hdf5") as file:
            found.append([np.concatenate(list(file[str(k)][()]), axis=-1) for k in range(10)])
    return list(zip(*found, strict=True))


def load(golden, **settings):
    return ELMo.from_files(golden / "options.json", golden / "lm_weights.hdf5", **settings)


def test_the_bilm_gives_the_published_top_layer_when_its_state_is_passed_by_hand(golden, batches, published):
    bilm, state = load(golden).bilm, None
    for batch, expected in zip(batches, published, strict=True):
        with torch.no_grad():
            output = bilm(batch_to_ids(batch), state=state)
        state = output.state
        for row, tokens, vectors in zip(output.layers[-1].numpy(), batch, expected, strict=True):
            close(row[: len(tokens)], vectors)


def test_elmo_gives_the_published_top_layer_when_it_carries_state(golden, batches, published):
    model = load(golden, state="carry")
    for _ in range(2):
        for batch, expected in zip(batches, published, strict=True):
            for found, vectors in zip(model.embed(batch, layers="top", batch_size=3), expected, strict=True):
                close(found, vectors)
        model.reset_state()


def test_one_call_over_all_batches_carries_the_same_state(golden, batches, published):
    sentences = [sentence for batch in batches for sentence in batch]
    found = load(golden, state="carry").embed(sentences, layers="top", batch_size=3)
    for vectors, expected in zip(found, [vectors for batch in published for vectors in batch], strict=True):
        close(vectors, expected)


def test_the_module_and_allennlp_s_embedder_carry_it_too(golden, batches, published):
    model = load(golden, state="carry")
    embedder = ElmoEmbedder(golden / "options.json", golden / "lm_weights.hdf5", state="carry")
    for batch, expected in zip(batches, published, strict=True):
        with torch.no_grad():
            layers = model(batch_to_ids(batch)).layers[-1].numpy()
        for row, arrays, vectors in zip(layers, embedder.embed_batch(batch), expected, strict=True):
            close(row[: len(vectors)], vectors)
            close(arrays[-1], vectors)


def test_without_state_the_first_batch_is_the_published_one_and_the_second_is_not(golden, batches, published):
    model = load(golden)
    for found, vectors in zip(model.embed(batches[0], layers="top"), published[0], strict=True):
        close(found, vectors)
    found = model.embed(batches[1], layers="top")
    assert max(np.abs(a - b).max() for a, b in zip(found, published[1], strict=True)) > 1e-3


def test_the_published_token_embeddings_come_from_the_published_vocabulary(golden, tmp_path):
    load(golden).export_token_embeddings(golden / "vocab_test.txt", tmp_path / "tokens.hdf5")
    found, expected = datasets(tmp_path / "tokens.hdf5"), datasets(golden / "elmo_token_embeddings.hdf5")
    assert list(found) == list(expected) == ["embedding"]
    assert found["embedding"].shape == expected["embedding"].shape
    np.testing.assert_allclose(found["embedding"], expected["embedding"], atol=1e-6, rtol=0)


def test_a_word_level_model_of_the_token_embeddings_gives_the_character_model_s_vectors(golden, batches, caplog):
    characters = load(golden)
    words = load(golden, embeddings=golden / "elmo_token_embeddings.hdf5", vocabulary=golden / "vocab_test.txt")
    assert caplog.text == ""  # the characters that it does not read are no surprise
    known = set((golden / "vocab_test.txt").read_text(encoding="utf-8").split("\n"))
    sentences = [sentence for batch in batches for sentence in batch if set(sentence) <= known]
    assert len(sentences) >= 10
    for found, expected in zip(
        words.embed(sentences, layers="all"), characters.embed(sentences, layers="all"), strict=True
    ):
        np.testing.assert_allclose(found, expected, atol=2e-6)


def test_261_and_262_characters_mean_the_same_file(golden, batches, tmp_path):
    options = json.loads((golden / "options.json").read_text(encoding="utf-8"))
    found = []
    for number in (261, 262):
        options["char_cnn"]["n_characters"] = number
        path = tmp_path / f"{number}.json"
        path.write_text(json.dumps(options), encoding="utf-8")
        found.append(ELMo.from_files(path, golden / "lm_weights.hdf5").embed(batches[0], layers="all"))
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_official_file_comes_back_bit_for_bit_also_by_way_of_our_folder(golden, tmp_path):
    load(golden).save_pretrained(tmp_path / "ours")
    ELMo.from_pretrained(tmp_path / "ours").export_hdf5(tmp_path / "theirs")
    expected, found = datasets(golden / "lm_weights.hdf5"), datasets(tmp_path / "theirs" / "weights.hdf5")
    assert sorted(found) == sorted(expected)
    for name, values in expected.items():
        assert found[name].dtype == values.dtype
        assert found[name].tobytes() == values.tobytes(), name
    assert json.loads((tmp_path / "theirs" / "options.json").read_text(encoding="utf-8")) == json.loads(
        (golden / "options.json").read_text(encoding="utf-8")
    )
