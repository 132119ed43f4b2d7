"""TF-Hub's module: its addresses, its inputs as arrays, its signatures, and the width of its outputs."""

import shutil

import numpy as np
import pytest
import torch

from elmokit.compat import TFHubELMo
from elmokit.model import ELMo

SENTENCES = [["The", "bank", "lent", "money"], ["Hi"], ["naïve", "日本", "."]]
STRINGS = [" ".join(sentence) for sentence in SENTENCES]
WIDTH = 10  # 2P


@pytest.fixture(scope="module")
def made(official_model):
    return official_model(5)


@pytest.fixture(scope="module")
def folder(made, tmp_path_factory):
    where = tmp_path_factory.mktemp("folder")
    shutil.copy(made.options_path, where / "options.json")
    shutil.copy(made.weights_path, where / "weights.hdf5")
    return where


@pytest.fixture(scope="module")
def elmo(folder):
    return TFHubELMo(folder)


def means(made):
    return np.stack([made.expected(sentence).layers.mean(axis=(0, 1)) for sentence in SENTENCES])


@pytest.mark.parametrize(
    "address",
    [
        "https://tfhub.dev/google/elmo/1",
        "https://tfhub.dev/google/elmo/2",
        "https://tfhub.dev/google/elmo/3",
        "https://tfhub.dev/google/elmo/3/",
        "http://tfhub.dev/google/elmo/3",
        "https://tfhub.dev/google/elmo/3?tf-hub-format=compressed",
        "https://tfhub.dev/google/elmo/2/?tf-hub-format=compressed",
        "https://tfhub.dev/google/elmo",
        "https://www.kaggle.com/models/google/elmo/tensorFlow1/elmo/3",
    ],
)
def test_the_addresses_of_the_module_are_the_published_original(folder, monkeypatch, address):
    asked = []
    load = ELMo.from_pretrained

    def from_pretrained(name, **settings):
        asked.append(name)
        return load(folder, **settings)

    monkeypatch.setattr(ELMo, "from_pretrained", from_pretrained)
    elmo = TFHubELMo(address, trainable=True)
    assert asked == ["original"]
    assert not elmo.elmo.freeze


@pytest.mark.parametrize(
    "address",
    [
        "https://tfhub.dev/google/elmo/4",
        "https://tfhub.dev/google/elmo/33",
        "https://tfhub.dev/google/universal-sentence-encoder/4",
        "https://example.org/google/elmo/3",
    ],
)
def test_another_address_is_refused_with_the_right_one(address):
    with pytest.raises(ValueError, match=r"is not the ELMo of TF-Hub: pass https://tfhub\.dev/google/elmo/3"):
        TFHubELMo(address)


class StringTensor:
    """As TensorFlow's: it becomes an array of bytes."""

    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return np.array([value.encode() for value in self.values], dtype=object)


@pytest.mark.parametrize(
    "inputs",
    [
        np.array(STRINGS),
        np.array(STRINGS, dtype=object),
        np.array([value.encode() for value in STRINGS]),
        np.array([value.encode() for value in STRINGS], dtype=object),
        np.array(STRINGS)[:, None],
        np.array(STRINGS, dtype=object)[:, None],
        np.array([value.encode() for value in STRINGS], dtype=object)[:, None],
        StringTensor(STRINGS),
    ],
    ids=["str", "object", "bytes", "bytes object", "column", "object column", "bytes column", "tensor"],
)
def test_arrays_of_strings_are_sentences_also_as_a_column(made, elmo, inputs):
    np.testing.assert_allclose(elmo(inputs).detach(), means(made), atol=1e-5)


@pytest.mark.parametrize("dtype", [str, object, bytes])
def test_tokens_and_their_lengths_may_be_arrays(made, elmo, dtype):
    rows = [[*sentence, *[""] * (4 - len(sentence))] for sentence in SENTENCES]
    if dtype is bytes:
        rows = [[token.encode() for token in row] for row in rows]
    tokens = np.array(rows, dtype=object if dtype is object else None)
    for lengths in (np.array([4, 1, 3], dtype=np.int32), np.array([[4], [1], [3]]), torch.tensor([4, 1, 3])):
        found = elmo({"tokens": tokens, "sequence_len": lengths}, signature="tokens")
        np.testing.assert_allclose(found.detach(), means(made), atol=1e-5)


def test_outputs_of_tokens_are_as_wide_as_the_tokens_and_padding_is_zeros(made, elmo):
    rows = [[*sentence, *["pad"] * (7 - len(sentence))] for sentence in SENTENCES]
    outputs = elmo({"tokens": rows, "sequence_len": [4, 1, 3]}, signature="tokens", as_dict=True)
    assert {name: tuple(values.shape) for name, values in outputs.items()} == {
        "word_emb": (3, 7, 5),
        "lstm_outputs1": (3, 7, WIDTH),
        "lstm_outputs2": (3, 7, WIDTH),
        "elmo": (3, 7, WIDTH),
        "default": (3, WIDTH),
    }
    for row, sentence in enumerate(SENTENCES):
        every = made.expected(sentence).layers
        for name, expected in {
            "word_emb": every[0, :, :5], "lstm_outputs1": every[1], "lstm_outputs2": every[2],
            "elmo": every.mean(axis=0),
        }.items():  # fmt: skip
            np.testing.assert_allclose(outputs[name][row, : len(sentence)].detach(), expected, atol=1e-5)
            assert not outputs[name][row, len(sentence) :].any()
    np.testing.assert_allclose(outputs["default"].detach(), means(made), atol=1e-5)


def test_signatures_are_called_as_in_tensorflow_2(made, elmo):
    default = elmo.signatures["default"](np.array(STRINGS))
    rows = [[*sentence, *[""] * (4 - len(sentence))] for sentence in SENTENCES]
    tokens = elmo.signatures["tokens"](tokens=rows, sequence_len=[4, 1, 3])
    assert set(default) == set(tokens) == {"word_emb", "lstm_outputs1", "lstm_outputs2", "elmo", "default"}
    for name in default:
        assert torch.equal(default[name], tokens[name])
    np.testing.assert_allclose(default["default"].detach(), means(made), atol=1e-5)


@pytest.mark.parametrize(
    ("inputs", "signature", "says"),
    [
        (np.array([["a", "b"]]), "default", r'shape \(1, 2\), not \(B,\) or \(B, 1\): tokens need signature="tokens"'),
        (np.array("a"), "default", r"shape \(\), not"),
        (np.array(["a", None], dtype=object), "default", r"inputs\[1\] is None, not a string"),
        (np.array([1.5]), "default", r"inputs\[0\] is 1\.5, not a string"),
        (np.array([b"\xff"]), "default", r"inputs\[0\] is b'\\xff', which is not UTF-8"),
        ({"tokens": np.array(["a"]), "sequence_len": [1]}, "tokens", r"tokens have the shape \(1,\), not \(B, T\)"),
        ({"tokens": np.array([[b"\xff"]]), "sequence_len": [1]}, "tokens", r"tokens\[0\]\[0\] is b'\\xff'"),
        ({"tokens": np.array([[1]]), "sequence_len": [1]}, "tokens", "a token, which is a string"),
    ],
)
def test_arrays_are_checked(elmo, inputs, signature, says):
    with pytest.raises(ValueError, match=says):
        elmo(inputs, signature=signature)
