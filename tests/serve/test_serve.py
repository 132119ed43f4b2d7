"""The server gives what the library gives, whoever asks at the same time, and says no in one shape of error."""

import base64
import contextlib
import io
import json
import logging
import random
import re
import socket
import threading
import time

import httpx
import numpy as np
import openai
import orjson
import pytest
import safetensors.numpy
import schemathesis
import torch
from hypothesis import HealthCheck, given, settings

from elmokit import BiLM, BiLMConfig, ELMo, Vocabulary
from elmokit.network import OutputLayer
from elmokit.serve import app as app_module
from elmokit.serve import wire
from elmokit.serve.app import create_app
from elmokit.serve.observe import JSONLines
from elmokit.serve.server import make_server
from elmokit.serve.settings import Settings

WORDS = ["<S>", "</S>", "<UNK>", ".", "the", "of", "a", "bank", "river", "money", "sat", "by", "lent", "He", "The"]
TEXTS = ["The bank lent money.", "", "He sat by the river bank.", "a", "the of " * 30, "Grüße, 銀行 🏦!"]
TOLERANCE = {"atol": 1e-6, "rtol": 0}


class Capitals:
    """Stands in for a trained task: the words with a capital letter."""

    def predict(self, texts):
        if any(text == "fail" for text in texts):
            raise RuntimeError("a secret text")
        return [{"capitals": [word for word in str(text).split() if word[:1].isupper()]} for text in texts]


def make_model(*, language_model=True, seed=0):
    torch.manual_seed(seed)
    config = BiLMConfig(char_dim=4, filters=((1, 8), (2, 8)), num_highways=1, cell_dim=16, projection_dim=8)
    parts = {"output_layer": OutputLayer(len(WORDS), 8), "vocabulary": Vocabulary(WORDS)} if language_model else {}
    return ELMo(BiLM(config), **parts).eval()


@contextlib.contextmanager
def serving(model, settings=None, **more):
    """A server in a thread; its application and a client."""
    settings = settings or Settings(port=0, drain=0.0)
    app = create_app(model, settings, **more)
    server = make_server(app, settings)
    listening = socket.create_server(("127.0.0.1", 0))
    address = listening.getsockname()
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    while not server.started:
        time.sleep(0.005)

    def stop():
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()

    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{address[1]}", timeout=60) as client:
            client.address, client.app, client.stop = address, app, stop
            yield client
    finally:
        stop()


@pytest.fixture(scope="module")
def model():
    return make_model()


@pytest.fixture(scope="module")
def client(model):
    with serving(model, name="tiny", tasks={"capitals": Capitals()}) as client:
        yield client


def post(client, path, body, **headers):
    response = client.post(path, json=body, headers=headers)
    assert response.status_code == 200, response.text
    return response


def error_of(response, status, error_type):
    """The message of an answer that is an error of this kind."""
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"error", "error_type"}
    assert body["error_type"] == error_type
    return body["error"]


# ---- vectors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layers", ["average", "top", 0, 2])
@pytest.mark.parametrize("normalize", [True, False])
def test_embed_gives_the_vectors_of_encode(client, model, layers, normalize):
    found = post(client, "/embed", {"inputs": TEXTS, "layers": layers, "normalize": normalize}).json()
    expected = model.encode(TEXTS, layers=layers, normalize=normalize)
    np.testing.assert_allclose(np.array(found, np.float32), expected, **TOLERANCE)


def test_embed_normalizes_unless_told_otherwise(client):
    found = np.array(post(client, "/embed", {"inputs": "The bank"}).json())
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), [1.0], atol=1e-5)


def test_embed_all_gives_the_vectors_of_embed(client, model):
    found = post(client, "/embed_all", {"inputs": TEXTS}).json()
    for vectors, expected in zip(found, model.embed(TEXTS), strict=True):
        np.testing.assert_allclose(np.array(vectors).reshape(expected.shape), expected, **TOLERANCE)


def test_lists_of_tokens_are_taken_as_they_are(client, model):
    tokens = [["The bank", "lent"], ["money"]]
    found = post(client, "/embed_all", {"inputs": tokens}).json()
    for vectors, expected in zip(found, model.embed(tokens), strict=True):
        np.testing.assert_allclose(vectors, expected, **TOLERANCE)


def test_layers_gives_any_layers_and_any_mix(client, model):
    body = post(client, "/layers", {"inputs": TEXTS[0], "layers": [2, 0]}).json()
    assert body["tokens"] == [["The", "bank", "lent", "money", "."]]
    assert body["layers"] == [2, 0]
    every = model.embed([TEXTS[0]], layers="all")[0]
    np.testing.assert_allclose(body["vectors"][0], every[[2, 0]], **TOLERANCE)
    whole = post(client, "/layers", {"inputs": TEXTS[0]}).json()
    np.testing.assert_allclose(whole["vectors"][0], every, **TOLERANCE)
    mix = post(client, "/layers", {"inputs": TEXTS[0], "weights": [0.5, -1, 2], "gamma": 3}).json()
    shares = np.exp([0.5, -1.0, 2.0]) / np.exp([0.5, -1.0, 2.0]).sum()
    np.testing.assert_allclose(mix["vectors"][0], 3 * np.einsum("l,ltp->tp", shares, every), **TOLERANCE)


def test_similarity_is_the_cosine_of_the_library(client, model):
    body = {"inputs": {"source_sentence": TEXTS[0], "sentences": TEXTS[2:]}, "parameters": {"truncate": None}}
    expected = [model.similarity(TEXTS[0], text) for text in TEXTS[2:]]
    np.testing.assert_allclose(post(client, "/similarity", body).json(), expected, **TOLERANCE)


def test_arrays_come_as_npy_by_accept(client, model):
    answer = post(client, "/embed", {"inputs": TEXTS}, accept="application/x-npy")
    assert answer.headers["content-type"] == "application/x-npy"
    found = np.load(io.BytesIO(answer.content), allow_pickle=False)
    np.testing.assert_allclose(found, model.encode(TEXTS, normalize=True), **TOLERANCE)
    answer = post(client, "/layers", {"inputs": TEXTS}, accept="application/json;q=0.5, application/x-npy")
    found = np.load(io.BytesIO(answer.content), allow_pickle=False)
    lengths = [int(length) for length in answer.headers["x-sentence-lengths"].split(",")]
    parts = np.split(found, np.cumsum(lengths)[:-1], axis=1)
    for part, expected in zip(parts, model.embed(TEXTS, layers="all"), strict=True):
        np.testing.assert_allclose(part, expected, **TOLERANCE)


def test_arrays_come_as_safetensors_by_accept(client, model):
    answer = post(client, "/embed_all", {"inputs": TEXTS}, accept="application/x-safetensors")
    found = safetensors.numpy.load(answer.content)
    for number, expected in enumerate(model.embed(TEXTS)):
        np.testing.assert_allclose(found[str(number)], expected, **TOLERANCE)
    answer = post(client, "/embed", {"inputs": TEXTS}, accept="application/x-safetensors")
    found = safetensors.numpy.load(answer.content)["embeddings"]
    np.testing.assert_allclose(found, model.encode(TEXTS, normalize=True), **TOLERANCE)


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        (None, wire.JSON),
        ("*/*", wire.JSON),
        ("text/html, image/*;q=0.2", wire.JSON),
        ("application/x-npy;q=0", wire.JSON),
        ("application/x-npy;q=much", wire.JSON),
        ("application/x-npy;q=0.4, application/x-safetensors;q=0.6", wire.SAFETENSORS),
        ("Application/X-NPY; charset=x", wire.NPY),
    ],
)
def test_the_accept_header_is_read_with_its_qualities(accept, kind):
    assert wire.wanted_type(accept) == kind


def test_a_large_answer_is_written_in_parts_and_is_the_same(client, model, monkeypatch):
    monkeypatch.setattr(wire, "NUMBERS_AT_ONCE", 40)
    body = post(client, "/layers", {"inputs": TEXTS}).json()
    for vectors, expected in zip(body["vectors"], model.embed(TEXTS, layers="all"), strict=True):
        np.testing.assert_allclose(np.array(vectors).reshape(expected.shape), expected, **TOLERANCE)
    found = post(client, "/embed_all", {"inputs": TEXTS}).json()
    assert [len(vectors) for vectors in found] == [len(tokens) for tokens in body["tokens"]]


def test_a_word_of_any_length_takes_no_room_in_the_memory_of_words(client, model):
    word = "x" * 100_000
    found = post(client, "/embed_all", {"inputs": [[word]]}).json()
    np.testing.assert_allclose(found[0], model.embed([[word]])[0], **TOLERANCE)
    model.forget_words()
    post(client, "/embed_all", {"inputs": [[word]]})
    assert max(map(len, model._words._slots)) < 100


def test_vectors_are_those_of_the_library_under_concurrent_mixed_load(client, model):
    rng = random.Random(5)
    texts = [" ".join(rng.choices([*WORDS[3:], "new", "Wörter"], k=rng.randint(0, 40))) for _ in range(60)]
    encoded = dict(zip(texts, model.encode(texts), strict=True))
    embedded = dict(zip(texts, model.embed(texts), strict=True))
    scored = dict(zip(texts, model.log_probs(texts), strict=True))
    problems = []

    def ask(seed):
        choose = random.Random(seed)
        with httpx.Client(base_url=client.base_url, timeout=60) as own:
            for _ in range(8):
                chosen = choose.sample(texts, choose.randint(1, 12))
                kind = choose.choice(["/embed", "/embed_all", "/log_probs", "/v1/embeddings"])
                if kind == "/v1/embeddings":
                    data = post(own, kind, {"input": chosen}).json()["data"]
                    pairs = [(item["embedding"], _unit(encoded[t])) for item, t in zip(data, chosen, strict=True)]
                else:
                    body = {"inputs": chosen, "normalize": False} if kind == "/embed" else {"inputs": chosen}
                    answers = post(own, kind, body).json()
                    if kind == "/log_probs":
                        pairs = [(a["forward"], scored[t].forward) for a, t in zip(answers, chosen, strict=True)]
                    else:
                        known = encoded if kind == "/embed" else embedded
                        pairs = [(a, known[t]) for a, t in zip(answers, chosen, strict=True)]
                for found, expected in pairs:
                    if expected.size and np.abs(np.array(found) - expected).max() > 1e-6:
                        problems.append((kind, np.abs(np.array(found) - expected).max()))

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert problems == []
    batches = client.get("/metrics").text
    pieces = float(re.search(r"elmokit_batch_sentences_sum (\S+)", batches)[1])
    count = float(re.search(r"elmokit_batch_sentences_count (\S+)", batches)[1])
    assert pieces > 2 * count, "requests shared batches"


def _unit(vector):
    return vector / max(np.linalg.norm(vector), 1e-12)


# ---- OpenAI's client, tokens, the language model, tasks --------------------------------------------------------------


@pytest.mark.parametrize("given", [TEXTS, "The bank lent money."])
@pytest.mark.parametrize("encoding_format", [None, "float", "base64"])
def test_the_official_openai_client_works(client, model, given, encoding_format):
    chosen = {} if encoding_format is None else {"encoding_format": encoding_format}
    with openai.OpenAI(base_url=f"{client.base_url}/v1", api_key="any") as official:
        answer = official.embeddings.create(model="tiny", input=given, **chosen)
    texts = [given] if isinstance(given, str) else given
    assert [item.index for item in answer.data] == list(range(len(texts)))
    assert answer.model == "tiny"
    assert answer.usage.prompt_tokens == sum(len(vectors) for vectors in model.embed(texts))
    for item, expected in zip(answer.data, model.encode(texts, normalize=True), strict=True):
        vector = item.embedding
        if encoding_format == "base64":
            vector = np.frombuffer(base64.b64decode(vector), "<f4")
        np.testing.assert_allclose(vector, expected, **TOLERANCE)


def test_the_openai_client_shows_our_errors(client):
    with openai.OpenAI(base_url=f"{client.base_url}/v1", api_key="any", max_retries=0) as official:
        with pytest.raises(openai.UnprocessableEntityError) as wrong:
            official.embeddings.create(model="tiny", input="a", dimensions=3)
        assert "dimensions is 3" in wrong.value.body
        with pytest.raises(openai.UnprocessableEntityError) as wrong:
            official.embeddings.create(model="tiny", input=[[1, 2, 3]])
        assert "valid string" in wrong.value.body


def test_tokenize_says_where_tokens_stand(client):
    text = "The bänk isn't here."
    (tokens,) = post(client, "/tokenize", {"inputs": text}).json()
    assert [token["text"] for token in tokens] == ["<S>", "The", "bänk", "is", "n't", "here", ".", "</S>"]
    assert [token["special"] for token in tokens] == [True, *[False] * 6, True]
    assert all(text[token["start"] : token["stop"]] == token["text"] for token in tokens[1:-1])
    assert tokens[1]["id"] == WORDS.index("The")
    assert tokens[2]["id"] == WORDS.index("<UNK>")
    (bare,) = post(client, "/tokenize", {"inputs": [text], "add_special_tokens": False}).json()
    assert bare == tokens[1:-1]


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


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "status", "error_type", "named"),
    [
        ("/embed", {"inputs": []}, 400, "Empty", "inputs is empty"),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": []}}, 400, "Empty", "sentences"),
        ("/embed", {"inputs": 3}, 422, "Validation", "inputs: Input should be a valid string"),
        ("/embed", {"inputs": ["a", 3]}, 422, "Validation", "inputs.1"),
        ("/embed", {}, 422, "Validation", "inputs: Field required"),
        ("/embed", {"inputs": "a", "normalise": True}, 422, "Validation", "Extra inputs"),
        ("/embed", {"inputs": "a", "normalize": "yes"}, 422, "Validation", "normalize"),
        ("/embed", {"inputs": "a", "layers": 3}, 422, "Validation", "from 0 to 2, not 3"),
        ("/embed", {"inputs": "a", "prompt_name": "query"}, 422, "Validation", "prompt_name"),
        ("/layers", {"inputs": "a", "layers": [0, 7]}, 422, "Validation", "from 0 to 2, not 7"),
        ("/layers", {"inputs": "a", "weights": [1]}, 422, "Validation", "3 layers and 1 weights"),
        ("/layers", {"inputs": "a", "gamma": 2}, 422, "Validation", "gamma belongs to a mix"),
        ("/layers", {"inputs": "a", "layers": []}, 422, "Validation", "layers"),
        ("/v1/embeddings", {"input": [1, 2]}, 422, "Validation", "input.0"),
        ("/embed", {"inputs": "a " * 513}, 413, "Validation", "inputs[0] has 513 tokens, at most 512"),
        ("/embed", {"inputs": ["a"] * 1025}, 413, "Validation", "1,025 sentences, at most 1,024"),
        ("/embed", {"inputs": ["a " * 400] * 21}, 413, "Validation", "8,400 tokens, at most 8,192"),
        ("/embed", {"inputs": "a" * 2_000_000}, 413, "Validation", "larger than 2,000,000 bytes"),
        ("/nothing", {}, 404, "NotFound", ""),
        ("/embed/", {}, 404, "NotFound", ""),
    ],
)
def test_what_cannot_be_answered_is_refused_in_one_shape(client, path, body, status, error_type, named):
    assert named in error_of(client.post(path, json=body), status, error_type)


def test_a_wrong_method_is_named(client):
    response = client.get("/embed")
    error_of(response, 405, "MethodNotAllowed")
    assert response.headers["allow"] == "POST"


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe", b'{"inputs": "\\ud800"}', b"[" * 100_000, b'{"inputs":' * 5000, b"NaN", b'"a"', b"null"],
)
def test_what_is_no_request_is_422(client, content):
    error_of(client.post("/embed", content=content, headers={"content-type": "application/json"}), 422, "Validation")


def test_a_body_must_be_called_json(client):
    assert "application/json" in error_of(client.post("/embed", content=b'{"inputs": "a"}'), 415, "Validation")


@pytest.mark.parametrize(("direction", "kept"), [("right", slice(None, 512)), ("Left", slice(-512, None))])
def test_a_long_sentence_is_cut_where_that_is_asked_for(client, model, direction, kept):
    tokens = [WORDS[3 + n % 12] for n in range(600)]
    body = {"inputs": [tokens], "truncate": True, "truncation_direction": direction, "normalize": False}
    np.testing.assert_allclose(post(client, "/embed", body).json(), model.encode([tokens[kept]]), **TOLERANCE)


def test_a_message_is_short_and_can_be_written():
    refusal = wire.RefusalError(422, "Validation", "\ud800" + "x" * 10_000)
    message = orjson.loads(refusal.body)["error"]
    assert len(message) < 600
    assert message.startswith("?xxx")


def test_a_failure_of_the_model_is_one_500_and_the_log_does_not_quote_it(client, caplog):
    with caplog.at_level(logging.INFO, "elmokit.serve"):
        message = error_of(client.post("/tasks/capitals", json={"inputs": ["fail"]}), 500, "Backend")
    assert "secret" not in message
    lines = [json.loads(JSONLines().format(record)) for record in caplog.records]
    assert "RuntimeError" in [line.get("exception") for line in lines]
    assert "secret" not in json.dumps(lines)
    assert post(client, "/tasks/capitals", {"inputs": ["Fine"]}).json() == [{"capitals": ["Fine"]}]


def test_the_api_key_opens_and_nothing_else_does(model):
    with serving(model, Settings(api_key="right", drain=0.0)) as client:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "right"}, {"authorization": b"\xff"}):
            response = client.post("/embed", json={"inputs": "a"}, headers=headers)
            error_of(response, 401, "Unauthorized")
            assert response.headers["www-authenticate"] == "Bearer"
        assert client.get("/info").status_code == 401
        assert client.get("/metrics").status_code == 401
        post(client, "/embed", {"inputs": "a"}, authorization="Bearer right")
        with openai.OpenAI(base_url=f"{client.base_url}/v1", api_key="right") as official:
            assert official.embeddings.create(model="tiny", input="a").data
        for path in ("/health", "/ready", "/docs", "/openapi.json"):
            assert client.get(path).status_code == 200


def test_pages_of_other_origins_may_ask_only_where_they_were_named(client, model):
    ask = {"origin": "https://a.example", "access-control-request-method": "POST"}
    assert "access-control-allow-origin" not in post(client, "/embed", {"inputs": "a"}, origin=ask["origin"]).headers
    assert "access-control-allow-origin" not in client.options("/embed", headers=ask).headers
    with serving(model, Settings(cors_origins=("https://a.example",), drain=0.0)) as open_client:
        allowed = open_client.options("/embed", headers=ask)
        assert allowed.headers["access-control-allow-origin"] == "https://a.example"
        other = post(open_client, "/embed", {"inputs": "a"}, origin="https://b.example")
        assert "access-control-allow-origin" not in other.headers


# ---- under load ------------------------------------------------------------------------------------------------------


class Slow:
    """A task that waits until it is let go."""

    def __init__(self):
        self.gate, self.entered, self.seen = threading.Event(), threading.Event(), []

    def predict(self, texts):
        self.seen += texts
        self.entered.set()
        assert self.gate.wait(30)
        return list(texts)


@pytest.fixture
def slow():
    task = Slow()
    yield task
    task.gate.set()


def in_background(client, path, body):
    """A request in a thread; its answer is appended to the list that comes back."""
    answers = []

    def ask():
        with httpx.Client(base_url=client.base_url, timeout=60) as own:
            answers.append(own.post(path, json=body))

    thread = threading.Thread(target=ask)
    thread.start()
    return thread, answers


def wait_for(condition):
    for _ in range(2000):
        if condition():
            return
        time.sleep(0.005)
    raise AssertionError("it did not happen")


def test_a_full_queue_answers_429_at_once_and_lets_in_again(model, slow):
    settings = Settings(max_request_tokens=20, max_sentence_tokens=20, queue_tokens=20, drain=0.0)
    with serving(model, settings, tasks={"slow": slow}) as client:
        thread, answers = in_background(client, "/tasks/slow", {"inputs": "a " * 15})
        assert slow.entered.wait(30)
        response = client.post("/embed", json={"inputs": "a " * 6})
        error_of(response, 429, "Overloaded")
        assert int(response.headers["retry-after"]) >= 1
        another, more = in_background(client, "/embed", {"inputs": "a " * 5})  # there is room for five
        engine = client.app.state.engine
        wait_for(lambda: engine.batcher.admitted == 20)
        error_of(client.post("/embed", json={"inputs": "a"}), 429, "Overloaded")
        assert client.get("/health").status_code == 200
        slow.gate.set()
        thread.join(30)
        another.join(30)
        assert [answer.status_code for answer in answers + more] == [200, 200]
        post(client, "/embed", {"inputs": "a " * 20})
        wait_for(lambda: engine.batcher.admitted == 0)


def test_more_requests_at_once_than_allowed_are_429(model, slow):
    with serving(model, Settings(max_requests=1, drain=0.0), tasks={"slow": slow}) as client:
        thread, answers = in_background(client, "/tasks/slow", {"inputs": "a"})
        assert slow.entered.wait(30)
        response = client.get("/info")
        error_of(response, 429, "Overloaded")
        assert response.headers["retry-after"] == "1"
        assert client.get("/health").status_code == 200
        slow.gate.set()
        thread.join(30)
        assert answers[0].status_code == 200


def test_a_request_past_its_deadline_is_504_and_never_runs(model, slow):
    with serving(model, Settings(deadline=0.2, drain=0.0), tasks={"slow": slow}) as client:
        thread, answers = in_background(client, "/tasks/slow", {"inputs": "a"})
        assert slow.entered.wait(30)
        error_of(client.post("/tasks/slow", json={"inputs": "b"}), 504, "Timeout")
        slow.gate.set()
        thread.join(30)
        assert answers[0].status_code == 504
        post(client, "/embed", {"inputs": "a"})
        assert slow.seen == ["a"]


def test_the_request_of_a_client_that_goes_never_runs(model, slow):
    with serving(model, tasks={"slow": slow}) as client:
        thread, _ = in_background(client, "/tasks/slow", {"inputs": "first"})
        assert slow.entered.wait(30)
        engine = client.app.state.engine
        leaver = socket.create_connection(client.address)
        leaver.sendall(raw_request("/tasks/slow", b'{"inputs": "two words"}'))
        wait_for(lambda: engine.batcher.admitted == 3)
        leaver.close()
        wait_for(lambda: engine.batcher.admitted == 1)
        slow.gate.set()
        thread.join(30)
        post(client, "/tasks/slow", {"inputs": "last"})
        assert slow.seen == ["first", "last"]
        assert 'status="499"' in client.get("/metrics").text


def test_what_was_accepted_is_answered_before_the_server_ends(model, slow):
    with serving(model, Settings(drain=0.2), tasks={"slow": slow}) as client:
        thread, answers = in_background(client, "/tasks/slow", {"inputs": "a"})
        assert slow.entered.wait(30)
        client.app.state.phase.is_draining = True
        response = client.get("/ready")
        assert "ending" in error_of(response, 503, "Unhealthy")
        assert response.headers["connection"] == "close"
        threading.Timer(0.3, slow.gate.set).start()
    thread.join(30)
    assert answers[0].status_code == 200


def test_a_connection_made_before_the_end_may_still_send_its_request(model):
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(serving(model, Settings(drain=0.2)))
        fresh = stack.enter_context(socket.create_connection(client.address, timeout=30))
        idle = stack.enter_context(socket.create_connection(client.address, timeout=30))
        wait_for(lambda: client.get("/health").status_code == 200)
        phase = client.app.state.phase
        stop = threading.Thread(target=client.stop)
        stop.start()
        wait_for(lambda: phase.is_draining)
        time.sleep(0.4)  # no connection is taken any more
        fresh.sendall(raw_request("/embed", b'{"inputs": "a"}'))
        answer = b""
        while part := fresh.recv(65536):
            answer += part
        assert answer.startswith(b"HTTP/1.1 200")
        assert b"connection: close" in answer
        assert idle.recv(100) == b""
        stop.join(30)


# ---- connections -----------------------------------------------------------------------------------------------------


def raw_request(path, body, length=None, headers=""):
    length = len(body) if length is None else length
    fixed = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n"
    return f"{fixed}{headers}\r\n".encode() + body


def said(address, *parts, pause=0.0, half_close=False):
    """All bytes that the server answers to these."""
    with socket.create_connection(address, timeout=30) as connection:
        with contextlib.suppress(OSError):
            for part in parts:
                connection.sendall(part)
                time.sleep(pause)
            if half_close:
                connection.shutdown(socket.SHUT_WR)
        answer = b""
        with contextlib.suppress(OSError):
            while part := connection.recv(65536):
                answer += part
        return answer


def test_what_is_no_http_is_400_in_the_same_shape(client):
    for garbage in (b"GARBAGE\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00", b"GET / HTTP/1.1\r\n\x00bad: x\r\n\r\n"):
        answer = said(client.address, garbage + b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 400")
        assert set(json.loads(answer.split(b"\r\n\r\n", 1)[1])) == {"error", "error_type"}


def test_a_head_without_end_is_400(client):
    answer = said(client.address, b"GET / HTTP/1.1\r\nhost: x\r\n", b"a: " + b"b" * 200_000)
    assert answer.startswith(b"HTTP/1.1 400")


def test_a_slow_client_is_not_waited_for(model):
    with serving(model, Settings(client_timeout=0.2, drain=0.0)) as client:
        for parts in ([], [b"POST /embed HTT"], [raw_request("/embed", b'{"inp', length=100)]):
            answer = said(client.address, *parts)
            assert answer.startswith(b"HTTP/1.1 408"), parts
            assert b'"error_type":"Timeout"' in answer
        two = raw_request("/embed", b'{"inputs": "a"}')
        answer = said(client.address, two, b"POST /em", pause=0.1)  # the second head never ends
        assert answer.startswith(b"HTTP/1.1 200")
        assert b"HTTP/1.1 408" in answer


def test_a_client_that_does_not_read_its_answer_is_let_go(model):
    with serving(model, Settings(client_timeout=0.3, drain=0.0)) as client:
        deaf = socket.socket()
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(client.address)
        body = orjson.dumps({"inputs": [["the"] * 500] * 16})
        with contextlib.suppress(OSError):
            for _ in range(3):
                deaf.sendall(raw_request("/layers", body))
        wait_for(lambda: 'route="/layers",status="499"' in client.get("/metrics").text)
        post(client, "/embed", {"inputs": "a"})
        assert client.app.state.engine.batcher.admitted == 0
        deaf.close()


def test_a_client_that_reads_slowly_gets_all_of_its_answer(client, model):
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.connect(client.address)
    tokens = [["the", "river"] * 250] * 16
    slow.sendall(raw_request("/layers", orjson.dumps({"inputs": tokens}), headers="accept: application/x-npy\r\n"))
    time.sleep(0.3)
    answer = b""
    while b"\r\n\r\n" not in answer or len(answer.split(b"\r\n\r\n", 1)[1]) < 3 * 8000 * 16 * 4 + 128:
        part = slow.recv(1 << 20)
        assert part, "the answer ended too soon"
        answer += part
    slow.close()
    found = np.load(io.BytesIO(answer.split(b"\r\n\r\n", 1)[1]))
    np.testing.assert_allclose(found[:, :500], model.embed(tokens[:1], layers="all")[0], **TOLERANCE)


def test_a_body_in_chunks_is_held_against_the_limit_too(model):
    with serving(model, Settings(max_body_bytes=1000, drain=0.0)) as client:
        pieces = [b'{"inputs": "', b"a" * 600, b"b" * 600, b'"}']
        response = client.post("/embed", content=iter(pieces), headers={"content-type": "application/json"})
        error_of(response, 413, "Validation")
        response = client.post("/embed", content=iter([b'{"inputs":', b'"a"}']), headers={"content-type": wire.JSON})
        assert response.status_code == 200
        huge = said(client.address, raw_request("/embed", b"a" * 300_000))
        assert huge.startswith(b"HTTP/1.1 413"), "the answer is read though the body was not"


def test_a_client_that_leaves_before_its_body_is_whole_hurts_nobody(client):
    assert said(client.address, raw_request("/embed", b'{"inp', length=100), half_close=True) == b""
    wait_for(lambda: 'route="/embed",status="499"' in client.get("/metrics").text)
    post(client, "/embed", {"inputs": "a"})


def test_a_batcher_that_ended_is_not_healthy(model):
    with serving(model) as client:
        client.app.state.engine.batcher.close()
        error_of(client.get("/health"), 503, "Unhealthy")


# ---- what the server says of itself ----------------------------------------------------------------------------------


def test_info_names_the_model_and_the_limits(client):
    info = client.get("/info").json()
    assert info["model_id"] == "tiny"
    assert info["model_type"] == {"embedding": {"pooling": "mean"}}
    assert (info["num_layers"], info["vector_dim"], info["vocabulary_size"]) == (3, 16, len(WORDS))
    assert (info["max_input_length"], info["max_client_batch_size"]) == (512, 1024)
    assert info["tasks"] == ["capitals"]


def test_the_log_is_json_and_holds_no_text_of_users(client, caplog):
    secret = "xylophone"
    with caplog.at_level(logging.INFO, "elmokit"):
        request_id = post(client, "/embed", {"inputs": secret}).headers["x-request-id"]
        client.post("/embed", json={"inputs": secret, secret: 1})
        client.post(f"/{secret}", json={})
        client.get(f"/tasks/{secret}?{secret}")
        client.request(secret.upper(), "/embed")
        client.post("/substitutes", json={"inputs": secret})
    lines = [json.loads(JSONLines().format(record)) for record in caplog.records]
    assert secret not in json.dumps(lines).lower()
    (first,) = [line for line in lines if line.get("id") == request_id]
    assert (first["route"], first["status"], first["sentences"], first["tokens"]) == ("/embed", 200, 1, 1)
    assert first["ms"] > 0
    assert secret not in client.get("/metrics").text.lower()


def test_metrics_count_what_happened(client):
    before = client.get("/metrics").text
    post(client, "/embed", {"inputs": ["a b c", "d"]})
    after = client.get("/metrics").text

    def value(text, name):
        found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    requests = 'elmokit_requests_total{route="/embed",status="200"}'
    assert value(after, requests) - value(before, requests) == 1
    tokens = 'elmokit_tokens_total{lane="vectors"}'
    assert value(after, tokens) - value(before, tokens) == 4 + 2 * 2  # the boundaries are read too
    assert value(after, "elmokit_queue_tokens") == 0
    assert value(after, "elmokit_requests_in_flight") == 1


def test_the_reference_page_needs_nothing_from_elsewhere(client):
    page = client.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", page.text)
    assert "<script" not in page.text
    for path in client.get("/openapi.json").json()["paths"]:
        assert f"<code>{path}</code>" in page.text


def test_the_page_is_served_file_by_file(model, tmp_path, monkeypatch):
    (tmp_path / "lib").mkdir()
    (tmp_path / "index.html").write_text("<p>explorer</p>")
    (tmp_path / "lib" / "chart.js").write_text("1")
    monkeypatch.setattr(app_module, "PAGE", tmp_path)
    with serving(model, Settings(api_key="key", drain=0.0)) as client:
        page = client.get("/")
        assert page.text == "<p>explorer</p>"
        assert "default-src 'self'" in page.headers["content-security-policy"]
        assert client.get("/lib/chart.js").text == "1"
        for path in ("/lib/../index.html", "/%2e%2e/etc/passwd", "/lib/"):
            assert client.get(path, headers={"authorization": "Bearer key"}).status_code in (200, 404)
        assert client.get("/lib/").status_code == 401


def test_a_model_that_carries_state_is_not_served():
    model = ELMo(make_model().bilm, state="carry")
    with pytest.raises(ValueError, match="state='carry'"):
        create_app(model, Settings())


# ---- the schema ------------------------------------------------------------------------------------------------------


def test_whatever_is_sent_gives_what_the_schema_says(client):
    api = schemathesis.openapi.from_url(f"{client.base_url}/openapi.json")
    checks = [
        schemathesis.checks.not_a_server_error,
        schemathesis.specs.openapi.checks.status_code_conformance,
        schemathesis.specs.openapi.checks.content_type_conformance,
        schemathesis.specs.openapi.checks.response_schema_conformance,
    ]
    operations = [operation.ok() for operation in api.get_all_operations()]
    assert len(operations) >= 13
    for operation in operations:
        for mode in schemathesis.GenerationMode:
            if mode == schemathesis.GenerationMode.NEGATIVE and operation.method == "get":
                continue  # there is nothing to get wrong

            @settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
            @given(case=operation.as_strategy(generation_mode=mode))
            def check(case):
                case.call_and_validate(checks=checks)

            check()
