"""The endpoints of the language model and of tasks give what the library gives."""

import numpy as np
import pytest
from served import TEXTS, TOLERANCE, error_of, make_model, post, serving


def test_log_probs_are_those_of_the_library(client, model):
    for found, expected in zip(
        post(client, "/log_probs", {"inputs": TEXTS}).json(), model.log_probs(TEXTS), strict=True
    ):
        assert found["tokens"] == expected.tokens
        np.testing.assert_allclose(found["forward"], expected.forward, **TOLERANCE)
        np.testing.assert_allclose(found["backward"], expected.backward, **TOLERANCE)
        assert found["forward_end"] == pytest.approx(expected.forward_end, abs=1e-6)
        assert found["backward_end"] == pytest.approx(expected.backward_end, abs=1e-6)


def test_substitutes_are_those_of_the_library_for_a_text_and_for_tokens(client, model):
    expected = [
        {"word": one.word, "log_prob": pytest.approx(one.log_prob, abs=1e-6)}
        for one in model.substitutes("He sat by the [bank] .", k=4)
    ]
    assert post(client, "/substitutes", {"inputs": "He sat by the [bank] .", "k": 4}).json() == expected
    tokens = ["He", "sat", "by", "the", "bank", "."]
    assert post(client, "/substitutes", {"inputs": tokens, "position": 4, "k": 4}).json() == expected


@pytest.mark.parametrize(
    "body",
    [
        {"inputs": "no brackets"},
        {"inputs": "[two] [words]"},
        {"inputs": "]wrong["},
        {"inputs": "[one]", "position": 0},
        {"inputs": ["a"], "position": 1},
        {"inputs": ["a"]},
        {"inputs": []},
        {"inputs": "[a]", "k": 0},
        {"inputs": "[a]", "k": 1001},
    ],
)
def test_a_place_to_fill_must_be_one(client, body):
    error_of(client.post("/substitutes", json=body), 422, "Validation")


def test_a_model_without_an_output_layer_gives_vectors_alone():
    with serving(make_model(language_model=False)) as plain:
        assert not plain.get("/info").json()["language_model"]
        post(plain, "/embed", {"inputs": "a"})
        assert post(plain, "/tokenize", {"inputs": "a"}).json()[0][1]["id"] is None
        assert "no output layer" in error_of(plain.post("/log_probs", json={"inputs": "a"}), 424, "Backend")
        error_of(plain.post("/substitutes", json={"inputs": "[a]"}), 424, "Backend")


def test_a_task_answers_for_texts_tokens_and_objects(client):
    found = post(client, "/tasks/capitals", {"inputs": ["The Bank lent", "none"]}).json()
    assert found == [{"capitals": ["The", "Bank"]}, {"capitals": []}]
    assert post(client, "/tasks/capitals", {"inputs": "He"}).json() == [{"capitals": ["He"]}]
    assert len(post(client, "/tasks/capitals", {"inputs": [{"premise": "a", "n": 3}, ["b"]]}).json()) == 2
    assert len(post(client, "/tasks/capitals", {"inputs": {"premise": "a"}}).json()) == 1
    assert "capitals" in error_of(client.post("/tasks/other", json={"inputs": "a"}), 404, "NotFound")
    error_of(client.post("/tasks/capitals", json={"inputs": []}), 400, "Empty")
