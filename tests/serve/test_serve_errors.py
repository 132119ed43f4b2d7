"""Requests that cannot be answered get an error in one format; the API key and the origins are checked."""

import json
import logging

import openai
import orjson
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from served import error_of, post, serving

from elmokit.serve.errors import RefusalError
from elmokit.serve.observe import JSONLines
from elmokit.serve.settings import Settings

BANKS = {"source_sentence": "The bank lent money .", "sentences": ["He robbed the bank .", "a bank"]}


@pytest.mark.parametrize(
    ("path", "body", "status", "error_type", "named"),
    [
        ("/embed", {"inputs": []}, 400, "Empty", "inputs is empty"),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": []}}, 400, "Empty", "sentences"),
        ("/similarity", {"inputs": {**BANKS, "word": "loan"}}, 422, "Validation", "source_sentence: the word 'loan'"),
        ("/similarity", {"inputs": {**BANKS, "word": "The"}}, 422, "Validation", "inputs.sentences[1]: the word 'The'"),
        ("/similarity", {"inputs": {**BANKS, "word": "lent money"}}, 422, "Validation", "sentences[0]: the word 'lent"),
        ("/similarity", {"inputs": {**BANKS, "word": " "}}, 422, "Validation", "the word ' ' is not in the sentence"),
        (
            "/similarity",
            {"inputs": {**BANKS, "word": ""}},
            422,
            "Validation",
            "inputs.word: String should have at least",
        ),
        (
            "/similarity",
            {"inputs": {**BANKS, "word": "a" * 1001}},
            422,
            "Validation",
            "inputs.word: String should have",
        ),
        ("/similarity", {"inputs": {**BANKS, "word": ["bank"]}}, 422, "Validation", "inputs.word: Input should be a"),
        ("/similarity", {"inputs": BANKS, "parameters": {"layers": 3}}, 422, "Validation", "from 0 to 2, not 3"),
        ("/similarity", {"inputs": BANKS, "parameters": {"layers": "all"}}, 422, "Validation", "'slot' or 'sense'"),
        ("/embed", {"inputs": "a", "layers": "all"}, 422, "Validation", "'slot' or 'sense'"),
        ("/embed", {"inputs": 3}, 422, "Validation", "inputs: Input should be a valid string"),
        ("/embed", {"inputs": ["a", 3]}, 422, "Validation", "inputs.1"),
        ("/embed", {}, 422, "Validation", "inputs: Field required"),
        ("/embed", {"inputs": "a", "normalise": True}, 422, "Validation", "Extra inputs"),
        ("/embed", {"inputs": "a", "normalize": "yes"}, 422, "Validation", "normalize"),
        ("/embed", {"inputs": "a", "layers": 3}, 422, "Validation", "from 0 to 2, not 3"),
        ("/embed", {"inputs": "a", "prompt_name": "query"}, 422, "Validation", "prompt_name"),
        ("/layers", {"inputs": "a", "layers": [0, 7]}, 422, "Validation", "from 0 to 2, not 7"),
        ("/layers", {"inputs": "a", "weights": [1]}, 422, "Validation", "3 layers came with 1 weight"),
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
def test_every_error_has_one_format(client, path, body, status, error_type, named):
    assert named in error_of(client.post(path, json=body), status, error_type)


def test_a_wrong_method_is_named(client):
    response = client.get("/embed")
    error_of(response, 405, "MethodNotAllowed")
    assert response.headers["allow"] == "POST"


def test_the_place_where_a_body_is_not_json_is_named(client):
    response = client.post("/embed", content=b'{"inputs": bad}', headers={"content-type": "application/json"})
    message = error_of(response, 422, "Validation")
    assert message.startswith("the body is not JSON: ")
    assert message.endswith(", at character 11")


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe", b'{"inputs": "\\ud800"}', b"[" * 100_000, b'{"inputs":' * 5000, b"NaN", b'"a"', b"null"],
)
def test_a_body_that_is_not_a_request_is_422(client, content):
    error_of(client.post("/embed", content=content, headers={"content-type": "application/json"}), 422, "Validation")


def test_the_content_type_must_be_json(client):
    assert "application/json" in error_of(client.post("/embed", content=b'{"inputs": "a"}'), 415, "Validation")


def test_a_message_is_short_and_can_be_written():
    refusal = RefusalError(422, "Validation", "\ud800" + "x" * 10_000)
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
