"""Every door takes a transformer biLM: vectors in a host library, over HTTP and in an index are those of `embed`."""

import numpy as np
import pytest
import torch

from elmokit import ELMo, Vocabulary
from elmokit.index import WordIndex
from elmokit.network import OutputLayer
from transformer_models import random_transformer

SENTENCES = ["the bank lent money .", "the bank of the river"]
WORDS = ["<S>", "</S>", "<UNK>", "the", "bank", "of", "money", "river", "mill", "lent", "."]


@pytest.fixture(scope="module")
def elmo():
    torch.manual_seed(0)
    model = random_transformer(2, num_layers=3, attention_window=6)
    return ELMo(model.bilm(), output_layer=OutputLayer(len(WORDS), 8), vocabulary=Vocabulary(WORDS))


def test_hugging_face_transformers(elmo, tmp_path):
    pytest.importorskip("transformers")
    from elmokit.integrations.transformers import ElmokitModel, ElmokitTokenizer

    model, tokenizer = ElmokitModel.from_elmo(elmo), ElmokitTokenizer()
    model.save_pretrained(tmp_path)
    batch = tokenizer(SENTENCES, return_tensors="pt", padding=True)
    for one in (model, ElmokitModel.from_pretrained(tmp_path)):
        with torch.no_grad():
            states = one(**batch, output_hidden_states=True).hidden_states
        assert len(states) == 4
        for row, expected in enumerate(elmo.embed(SENTENCES, layers="all")):
            found = torch.stack([state[row, : expected.shape[1]] for state in states]).numpy()
            np.testing.assert_allclose(found, expected, atol=1e-5)


def test_sentence_transformers(elmo):
    host = pytest.importorskip("sentence_transformers")
    from sentence_transformers.sentence_transformer.modules import Pooling

    from elmokit.integrations.sentence_transformers import ElmoEmbeddings

    vectors = host.SentenceTransformer(modules=[ElmoEmbeddings(elmo), Pooling(16)], device="cpu").encode(SENTENCES)
    np.testing.assert_allclose(vectors, elmo.encode(SENTENCES), atol=1e-5)


def test_the_server(elmo):
    testclient = pytest.importorskip("fastapi.testclient")
    from elmokit.serve.app import create_app
    from elmokit.serve.settings import Settings

    with testclient.TestClient(create_app(elmo, Settings(drain=0.0))) as client:
        answer = client.post("/embed_all", json={"inputs": SENTENCES})
        assert answer.status_code == 200, answer.text
        for found, expected in zip(answer.json(), elmo.embed(SENTENCES), strict=True):
            np.testing.assert_allclose(found, expected, atol=1e-4)


def test_an_index_of_words(elmo, tmp_path):
    store = WordIndex.create(tmp_path / "store", elmo)
    store.add(elmo, [sentence.split() for sentence in SENTENCES])
    assert len(store) == 10
