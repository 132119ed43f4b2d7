"""An exported transformer biLM gives what the equations say, for any batch, and carries its sizes."""

import json

import numpy as np
import pytest
import torch

from elmokit import ELMo, Vocabulary, batch_to_ids
from transformer_models import random_transformer

onnx = pytest.importorskip("onnx", reason="the extra elmokit[onnx] is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="the extra elmokit[onnx] is not installed")

from elmokit.integrations.onnx import export_onnx  # noqa: E402

SENTENCES = [["The", "bank", "lent", "money", "to", "the", "mill", "."], [], ["é" * 40], ["a", "<S>", "</S>", "bank"]]


def run(path, ids):
    """{output name: array} of a file."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, {"ids": np.asarray(ids)}), strict=True))


def make_elmo(model):
    return ELMo(model.bilm(), vocabulary=Vocabulary(model.vocabulary) if model.vocabulary else None).eval()


@pytest.mark.parametrize(
    "variant", [{}, {"attention_window": 1}, {"attention_window": 50}, {"num_heads": 1, "num_layers": 4}], ids=str
)
def test_a_transformer_gives_what_the_equations_say(variant, tmp_path):
    model = random_transformer(3, **variant)
    path = export_onnx(make_elmo(model), tmp_path / "model.onnx").path
    onnx.checker.check_model(path, full_check=True)
    found = run(path, model.ids(SENTENCES))
    assert found["mask"].sum(axis=1).tolist() == [8, 0, 1, 4]
    for row, sentence in enumerate(SENTENCES):
        if sentence:
            assert np.abs(found["layers"][:, row, : len(sentence)] - model.expected(sentence).layers).max() < 1e-5
        assert not found["layers"][:, row, len(sentence) :].any()


def test_a_word_level_transformer_gives_what_the_equations_say(tmp_path):
    model = random_transformer(3, num_words=12)
    found = run(export_onnx(make_elmo(model), tmp_path / "model.onnx").path, model.ids([["word1", "word2", "none"]]))
    assert np.abs(found["layers"][:, 0] - model.expected(["word1", "word2", "none"]).layers).max() < 1e-5


def test_one_file_reads_batches_of_any_size_and_length(tmp_path):
    model = random_transformer(3, attention_window=6)
    elmo = make_elmo(model)
    path = export_onnx(elmo, tmp_path / "model.onnx").path
    sentence = ["The", "bank", "lent", "money"] * 30
    for sentences in ([], [[]], [[], []], [["a"]], [sentence], [["a"]] * 70, [sentence[:k] for k in range(20)]):
        ids = batch_to_ids(sentences)
        with torch.no_grad():
            expected = elmo.bilm(ids).layers.numpy()
        layers = run(path, ids)["layers"]
        assert layers.shape == expected.shape
        assert np.abs(layers - expected).max(initial=0) < 1e-5


@pytest.mark.parametrize("layers", ["average", "top", "slot", 0, 2])
def test_chosen_layers_are_those_of_embed(layers, tmp_path):
    elmo = make_elmo(random_transformer(3))
    file = export_onnx(elmo, tmp_path / "model.onnx", layers=layers)
    found = run(file.path, batch_to_ids(SENTENCES))["vectors"]
    for vectors, expected in zip(found, elmo.embed(SENTENCES, layers=layers), strict=True):
        assert np.abs(vectors[: len(expected)] - expected).max(initial=0) < 1e-5


def test_int8_weights_are_stored_and_the_metadata_has_the_architecture(tmp_path):
    elmo = make_elmo(random_transformer(3, projection_dim=32, feedforward_dim=64))
    sizes = {dtype: export_onnx(elmo, tmp_path / f"{dtype}.onnx", dtype=dtype) for dtype in ("float32", "int8")}
    assert sizes["int8"].num_bytes < sizes["float32"].num_bytes
    ids = batch_to_ids(SENTENCES)
    single, int8 = (run(file.path, ids)["layers"] for file in sizes.values())
    assert 0 < np.abs(single - int8).max() < 0.5
    metadata = {prop.key: prop.value for prop in onnx.load(sizes["int8"].path).metadata_props}
    config = json.loads(metadata["config"])
    assert (config["architecture"], config["feedforward_dim"]) == ("transformer", 64)
