"""The endpoints of the language model and of tasks give what the library gives."""

import asyncio
import dataclasses

import numpy as np
import pytest
import torch
from served import TEXTS, TOLERANCE, WORDS, error_of, make_model, post, serving

from elmokit.inference.scores import NUM_READ
from elmokit.serve import schemas
from elmokit.serve.app import create_app
from elmokit.serve.engine import Engine, SubstituteQuery
from elmokit.serve.server import serve
from elmokit.serve.settings import Settings


def test_log_probs_are_those_of_the_library(client, model):
    for found, expected in zip(
        post(client, "/log_probs", {"inputs": TEXTS}).json(), model.log_probs(TEXTS), strict=True
    ):
        assert found["tokens"] == expected.tokens
        np.testing.assert_allclose(found["forward"], expected.forward, **TOLERANCE)
        np.testing.assert_allclose(found["backward"], expected.backward, **TOLERANCE)
        assert found["forward_end"] == pytest.approx(expected.forward_end, abs=1e-6)
        assert found["backward_end"] == pytest.approx(expected.backward_end, abs=1e-6)
        assert found["unknown"] == expected.unknown.tolist() == [token not in WORDS for token in expected.tokens]
        perplexity = dataclasses.asdict(model.perplexity([expected.tokens]))
        assert found["perplexity"] == pytest.approx(perplexity, rel=1e-5)


def test_a_place_costs_as_much_as_the_sentences_that_are_read_for_it(model):
    reports = []
    engine = Engine(model, Settings(patience=0.2, batch_tokens=300), report=reports.append)
    query = SubstituteQuery(["the", "bank", "of", "the", "river", "."], 1, 3)

    async def ask():
        return await asyncio.gather(*(engine.substitutes(query) for _ in range(3)))

    engine.batcher.start()
    try:
        found = asyncio.run(ask())
    finally:
        engine.batcher.close()
    assert found == [model.substitutes(query.tokens, position=1, k=3)] * 3
    num_read = (len(query.tokens) + 2) * (1 + NUM_READ)  # with sentence boundaries
    assert [(report.num_pieces, report.num_tokens) for report in reports] == [(1, num_read)] * 3


def test_the_fields_of_log_probs_are_those_of_its_schema(client):
    (found,) = post(client, "/log_probs", {"inputs": "the unheard bank"}).json()
    assert schemas.SentenceLogProbs.model_validate(found, strict=True).model_dump() == found
    assert found["perplexity"]["num_unknown"] == sum(found["unknown"]) == 1


def test_a_perplexity_that_is_too_large_for_a_float_is_null():
    model = make_model()
    with torch.no_grad():
        model.output_layer.bias[WORDS.index("river")] = 1e5
    with serving(model) as client:
        (found,) = post(client, "/log_probs", {"inputs": "the bank"}).json()
    assert found["perplexity"]["both"] is None
    assert schemas.SentenceLogProbs.model_validate(found).perplexity.known is None


def test_substitutes_are_those_of_the_library_for_a_text_and_for_tokens(client, model):
    expected = [
        {"word": one.word, "log_prob": pytest.approx(one.log_prob, abs=1e-6)}
        for one in model.substitutes("He sat by the [bank] .", k=4)
    ]
    assert post(client, "/substitutes", {"inputs": "He sat by the [bank] .", "k": 4}).json() == expected
    tokens = ["He", "sat", "by", "the", "bank", "."]
    assert post(client, "/substitutes", {"inputs": tokens, "position": 4, "k": 4}).json() == expected
    kept = post(client, "/substitutes", {"inputs": tokens, "position": 4, "k": 1, "keep_word": True}).json()
    assert [one["word"] for one in kept] in (["bank"], [expected[0]["word"], "bank"])


def test_the_marked_word_is_found_with_the_tokenizer_of_the_model():
    model = make_model(tokenizer="spaces")
    with serving(model) as client:
        answer = post(client, "/substitutes", {"inputs": "bank's [river] lent.", "k": 3}).json()
    expected = model.substitutes(["bank's", "river", "lent."], position=1, k=3)
    assert answer == [{"word": one.word, "log_prob": pytest.approx(one.log_prob, abs=1e-6)} for one in expected]


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
def test_substitutes_need_exactly_one_valid_place(client, body):
    error_of(client.post("/substitutes", json=body), 422, "Validation")


def test_a_model_without_an_output_layer_gives_only_vectors():
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


def test_neighbours_are_those_of_the_index_and_need_one(model, index):
    with serving(model, index=index) as server:
        answer = post(server, "/neighbours", {"inputs": "He sat by the [bank] .", "k": 2})
        assert [hit["cosine"] for hit in answer.json()] == [
            pytest.approx(hit.cosine, abs=1e-6) for hit in index.neighbours(model, "He sat by the [bank] .", 2)
        ]
        assert server.get("/info").json()["index_words"] == len(index)
        assert server.post("/neighbours", json={"inputs": "no brackets"}).status_code == 422
    with pytest.raises(ValueError, match="another model"):
        create_app(make_model(seed=1), Settings(), index=index)
    with serving(model) as bare:
        refused = bare.post("/neighbours", json={"inputs": "[a]"})
        assert refused.status_code == 424
        assert "--index" in refused.json()["error"]
        assert bare.get("/info").json()["index_words"] is None


def test_an_index_is_held_against_the_model_before_the_server_listens(model, index, tmp_path):
    class ListeningError(Exception):
        pass

    def listening(url):
        raise ListeningError

    def start(model, folder):
        serve(lambda: model, Settings(port=0), index=folder, on_listening=listening)

    with pytest.raises(ListeningError):
        start(model, index.folder)
    with pytest.raises(ValueError, match="this is not an index"):
        start(model, tmp_path)
    with pytest.raises(ValueError, match="another model"):
        start(make_model(seed=1), index.folder)


def test_a_chinese_model_takes_raw_text_and_lists_of_words():
    model = make_model(tokenizer="han")
    words = ["我", "去", "银行", "。"]
    with serving(model, Settings(port=0, drain=0.0, max_sentence_tokens=8)) as client:
        (tokens,) = post(client, "/tokenize", {"inputs": "我去 银行。", "add_special_tokens": False}).json()
        assert [(one["text"], one["start"], one["stop"]) for one in tokens] == [
            ("我", 0, 1),
            ("去", 1, 2),
            ("银", 3, 4),
            ("行", 4, 5),
            ("。", 5, 6),
        ]
        (found,) = post(client, "/log_probs", {"inputs": [words]}).json()
        (expected,) = model.log_probs([words])
        np.testing.assert_allclose(found["forward"], expected.forward, **TOLERANCE)
        assert found["perplexity"]["num_tokens"] == 6
        assert schemas.SentenceLogProbs.model_validate(found, strict=True).model_dump() == found
        body = {"inputs": {"source_sentence": "我去银行。", "sentences": ["他在银行。"], "word": "银行"}}
        cosine = model.similarity("我去银行。", "他在银行。", word="银行")
        assert post(client, "/similarity", body).json() == [pytest.approx(cosine, abs=1e-5)]
        longest = client.post("/log_probs", json={"inputs": [["银行" * 5]]})
        assert longest.status_code == 413
        assert "inputs[0] has 10 tokens, at most 8 are allowed" in longest.text
