"""The server as the clients of others see it: OpenAI, Hugging Face, LangChain, LlamaIndex, browsers, proxies."""

import base64
import gzip
import json
import os
import subprocess
import sys
import time
import zlib

import httpx
import huggingface_hub
import numpy as np
import openai
import pytest
from huggingface_hub.errors import HfHubHTTPError
from served import TEXTS, TOLERANCE, error_of, make_model, post, raw_request, reply_to, serving

from elmokit.serve.settings import Settings

CLIENTS = os.environ.get("ELMOKIT_CLIENTS", sys.executable)  # an interpreter that has LangChain and LlamaIndex
TEXT = "The bank lent money."


@pytest.fixture(scope="module")
def legal():
    return make_model(seed=1)


@pytest.fixture(scope="module")
def two(model, legal):
    with serving(model, name="tiny", models={"legal": legal}) as client:
        yield client


# ---- the official clients --------------------------------------------------------------------------------------------


@pytest.fixture
def official(client):
    with openai.OpenAI(base_url=f"{client.base_url}/v1", api_key="any", max_retries=0) as official:
        yield official


@pytest.fixture
def hugging_face(client):
    return huggingface_hub.InferenceClient(str(client.base_url), token="any")


def test_openai_lists_the_models(two):
    with openai.OpenAI(base_url=f"{two.base_url}/v1", api_key="any") as official:
        assert [model.id for model in official.models.list()] == ["tiny", "legal"]
        assert official.models.retrieve("legal").owned_by == "elmokit"
        with pytest.raises(openai.NotFoundError, match="there is no model 'other'"):
            official.models.retrieve("other")


def test_openai_chooses_a_model_by_its_name(two, model, legal):
    with openai.OpenAI(base_url=f"{two.base_url}/v1", api_key="any", max_retries=0) as official:
        for name, expected in [("tiny", model), ("legal", legal)]:
            answer = official.embeddings.create(model=name, input=TEXT)
            assert answer.model == name
            found = answer.data[0].embedding
            np.testing.assert_allclose(found, expected.encode([TEXT], normalize=True)[0], **TOLERANCE)
        with pytest.raises(openai.NotFoundError, match="the models of this server: tiny, legal"):
            official.embeddings.create(model="text-embedding-3-small", input=TEXT)


@pytest.mark.parametrize("dimensions", [1, 4, 8, 16])
def test_fewer_dimensions_are_sums_of_consecutive_numbers(official, model, dimensions):
    found = official.embeddings.create(model="tiny", input=TEXT, dimensions=dimensions).data[0].embedding
    full = model.encode([TEXT], normalize=True)[0]
    short = np.add.reduceat(full, range(0, 16, 16 // dimensions))
    np.testing.assert_allclose(found, short / np.linalg.norm(short), **TOLERANCE)


def test_openai_shows_what_is_wrong(official):
    for wrong, named in [
        ({"input": TEXT, "dimensions": 32}, "dimensions is 32: it must divide 16"),
        ({"input": TEXT, "dimensions": 0}, "dimensions is 0: it must divide 16"),
        ({"input": [[464, 3331]]}, "token ids are numbers of OpenAI's tokenizer"),
        ({"input": [464, 3331]}, "check_embedding_ctx_length=False"),
        ({"input": ""}, "input has no tokens"),
        ({"input": TEXT, "extra_body": {"normalise": True}}, "normalise: Extra inputs are not permitted"),
    ]:
        with pytest.raises(openai.APIStatusError) as shown:
            official.embeddings.create(model="tiny", **wrong)
        assert named in str(shown.value)


def test_hugging_face_extracts_features(hugging_face, model):
    for texts in (TEXT, TEXTS):
        found = hugging_face.feature_extraction(texts, normalize=True, truncate=True, truncation_direction="right")
        expected = model.encode([texts] if isinstance(texts, str) else texts, normalize=True)
        np.testing.assert_allclose(found, expected, **TOLERANCE)
    raw = hugging_face.feature_extraction(TEXT, normalize=False)
    np.testing.assert_allclose(raw, model.encode([TEXT]), **TOLERANCE)
    assert hugging_face.feature_extraction(TEXT, dimensions=4).shape == (1, 4)


def test_hugging_face_compares_sentences(hugging_face, model):
    others = ["He sat by the river bank.", "a"]
    found = hugging_face.sentence_similarity(TEXT, other_sentences=others)
    np.testing.assert_allclose(found, [model.similarity(TEXT, other) for other in others], **TOLERANCE)


def test_hugging_face_shows_what_is_wrong(hugging_face):
    with pytest.raises(HfHubHTTPError, match="dimensions is 3: it must divide 16"):
        hugging_face.feature_extraction(TEXT, dimensions=3)
    with pytest.raises(HfHubHTTPError, match="inputs has no tokens"):
        hugging_face.feature_extraction(" ")


LANGCHAIN = """
import sys
from langchain_openai import OpenAIEmbeddings
url, *texts = sys.argv[1:]
client = OpenAIEmbeddings(base_url=url + "/v1", api_key="any", model="tiny", check_embedding_ctx_length=False)
vectors = [*client.embed_documents(texts), client.embed_query(texts[0])]
"""
LANGCHAIN_IDS = """
import sys
import langchain_openai
class Encoding:
    def encode(self, text, **_): return [1, 2, 3]
    def encode_ordinary(self, text): return [1, 2, 3]
import tiktoken
tiktoken.encoding_for_model = tiktoken.get_encoding = lambda name: Encoding()
url, *texts = sys.argv[1:]
client = langchain_openai.OpenAIEmbeddings(base_url=url + "/v1", api_key="any", model="tiny", max_retries=0)
try:
    client.embed_documents(texts)
except Exception as error:
    assert "OpenAIEmbeddings(check_embedding_ctx_length=False)" in str(error), error
    vectors = []
"""
LLAMA_INDEX = """
import sys
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
url, *texts = sys.argv[1:]
client = OpenAILikeEmbedding(model_name="tiny", api_base=url + "/v1", api_key="any")
vectors = [*client.get_text_embedding_batch(texts), client.get_query_embedding(texts[0])]
"""
LLAMA_INDEX_TEI = """
import sys
from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference
url, *texts = sys.argv[1:]
client = TextEmbeddingsInference(model_name="tiny", base_url=url, query_instruction="", text_instruction="")
vectors = [*client.get_text_embedding_batch(texts), client.get_query_embedding(texts[0])]
"""


@pytest.mark.parametrize(
    ("module", "program", "num_vectors"),
    [
        ("langchain_openai", LANGCHAIN, 3),
        ("langchain_openai", LANGCHAIN_IDS, 0),
        ("llama_index.embeddings.openai_like", LLAMA_INDEX, 3),
        ("llama_index.embeddings.text_embeddings_inference", LLAMA_INDEX_TEI, 3),
    ],
)
def test_frameworks_get_the_vectors_of_the_library(client, model, module, program, num_vectors):
    if subprocess.run([CLIENTS, "-c", f"import {module}"], capture_output=True, check=False).returncode:
        pytest.skip(f"{module} is not installed: set ELMOKIT_CLIENTS to an interpreter that has it")
    program += "\nimport json; print('VECTORS' + json.dumps([list(map(float, vector)) for vector in vectors]))"
    texts = [TEXT, "He sat by the river bank."]
    done = subprocess.run(
        [CLIENTS, "-c", program, str(client.base_url).rstrip("/"), *texts], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = np.array(json.loads(done.stdout.rsplit("VECTORS", 1)[1]))
    assert len(found) == num_vectors
    if num_vectors:
        np.testing.assert_allclose(found, model.encode([*texts, texts[0]], normalize=True), **TOLERANCE)


# ---- models, chunks --------------------------------------------------------------------------------------------------


def test_every_endpoint_of_a_model_takes_its_name(two, model, legal):
    for name, expected in [(None, model), ("tiny", model), ("legal", legal)]:
        chosen = {} if name is None else {"model": name}
        found = post(two, "/embed_all", {"inputs": TEXT, **chosen}).json()
        np.testing.assert_allclose(found[0], expected.embed([TEXT])[0], **TOLERANCE)
        scores = post(two, "/log_probs", {"inputs": TEXT, **chosen}).json()
        np.testing.assert_allclose(scores[0]["forward"], expected.log_probs([TEXT])[0].forward, **TOLERANCE)
        info = two.get("/info", params=chosen).json()
        assert (info["model_id"], info["models"]) == (name or "tiny", ["tiny", "legal"])
        assert info["model_sha"] == expected.digest()
    for path in ("/embed", "/embed_all", "/layers", "/log_probs", "/tokenize"):
        assert "'other'" in error_of(two.post(path, json={"inputs": "a", "model": "other"}), 404, "NotFound")
    error_of(two.get("/info", params={"model": "other"}), 404, "NotFound")
    assert 'elmokit_tokens_total{lane="legal: vectors"}' in two.get("/metrics").text


@pytest.mark.parametrize("layers", ["average", "sense", 2])
@pytest.mark.parametrize("normalize", [True, False])
def test_late_chunks_are_parts_of_one_pass_over_the_document(client, model, layers, normalize):
    chunks = ["The bank lent money.", "", "He sat by the river bank.", "a"]
    body = {"inputs": chunks, "late_chunking": True, "layers": layers, "normalize": normalize}
    found = np.array(post(client, "/embed", body).json())
    tokens = [model.tokenizer(chunk) for chunk in chunks]
    (document,) = model.embed([[token for part in tokens for token in part]], layers=layers)
    for vector, part in zip(found, np.split(document, np.cumsum([*map(len, tokens)])[:-1]), strict=True):
        expected = part.sum(axis=0) / max(1, len(part))
        if normalize:
            expected = expected / max(np.linalg.norm(expected), 1e-12)
        np.testing.assert_allclose(vector, expected, atol=1e-5)
    alone = np.array(post(client, "/embed", {**body, "late_chunking": False}).json())
    assert np.abs(alone - found).max() > 1e-3


def test_late_chunks_by_the_openai_client(official, client):
    chunks = ["The bank lent money.", "He sat by the river bank."]
    answer = official.embeddings.create(model="tiny", input=chunks, extra_body={"late_chunking": True})
    expected = post(client, "/embed", {"inputs": chunks, "late_chunking": True}).json()
    np.testing.assert_allclose([item.embedding for item in answer.data], expected, **TOLERANCE)


def test_a_document_too_long_for_one_pass_is_413(client):
    body = {"inputs": ["a " * 300, "a " * 300], "late_chunking": True}
    assert "600 tokens, at most 512" in error_of(client.post("/embed", json=body), 413, "Validation")


# ---- HTTP ------------------------------------------------------------------------------------------------------------


def test_head_is_get_without_the_body(client):
    for path in ("/", "/info", "/health", "/docs"):
        get, head = client.get(path), client.head(path)
        assert head.status_code == get.status_code == 200
        assert head.content == b""
        assert head.headers["content-type"] == get.headers["content-type"]
    error_of(client.request("GET", "/embed"), 405, "MethodNotAllowed")
    assert client.head("/embed").status_code == 405


def test_a_page_that_the_browser_has_is_not_sent_again(client):
    for path in ("/", "/explorer.css", "/docs"):
        first = client.get(path)
        again = client.get(path, headers={"if-none-match": f'"other", {first.headers["etag"]}'})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"].removeprefix("W/") == first.headers["etag"].removeprefix("W/")
        assert client.get(path, headers={"if-none-match": '"other"'}).content == first.content


@pytest.mark.parametrize("count", [1, 40, 400])
def test_json_is_compressed_for_those_who_accept_it(client, count):
    body = {"inputs": [["bank", "the", "river"]] * count}
    plain = client.post("/embed_all", json=body, headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    raw = httpx.Client(base_url=client.base_url).build_request("POST", "/embed_all", json=body)
    raw.headers["accept-encoding"] = "br;q=1, gzip;q=0.8"
    with httpx.Client() as own:
        packed = own.send(raw, stream=True)
        content = b"".join(packed.iter_raw())
    if len(plain.content) < 1024:
        assert "content-encoding" not in packed.headers
    else:
        assert packed.headers["content-encoding"] == "gzip"
        assert len(content) < 0.7 * len(plain.content)
        content = gzip.decompress(content)
    assert content == plain.content
    assert "accept-encoding" in packed.headers["vary"].lower()


def test_arrays_are_not_compressed(client):
    asked = {"accept": "application/x-npy", "accept-encoding": "gzip"}
    answer = client.post("/embed", json={"inputs": ["a"] * 100}, headers=asked)
    assert "content-encoding" not in answer.headers
    refused = client.post("/embed", json={"inputs": ["a"] * 100}, headers={"accept-encoding": "gzip;q=0"})
    assert "content-encoding" not in refused.headers


def test_a_compressed_body_is_415(client):
    content = zlib.compress(b'{"inputs": "a"}')
    headers = {"content-type": "application/json", "content-encoding": "deflate"}
    assert "compressed" in error_of(client.post("/embed", content=content, headers=headers), 415, "Validation")
    assert client.post("/embed", json={"inputs": "a"}, headers={"content-encoding": "identity"}).status_code == 200


def test_an_unknown_field_is_named(client):
    message = error_of(client.post("/embed", json={"inputs": "a", "normalise": True}), 422, "Validation")
    assert message.startswith("normalise: Extra inputs are not permitted")
    long = error_of(client.post("/embed", json={"inputs": "a", "x" * 300: True}), 422, "Validation")
    assert "x" * 60 not in long
    inner = {"inputs": {"source_sentence": "a", "sentences": ["b"], "words": "c"}}
    assert error_of(client.post("/similarity", json=inner), 422, "Validation").startswith("words: Extra inputs")


@pytest.mark.parametrize("path", ["/embed", "/embed_all", "/log_probs", "/tokenize"])
@pytest.mark.parametrize("inputs", ["", "  \n", ["", " "], [[]]])
def test_an_empty_text_is_400(client, path, inputs):
    if path == "/tokenize" and inputs == [[]]:
        return
    error_of(client.post(path, json={"inputs": inputs}), 400, "Empty")


def test_a_preflight_of_the_openai_client_in_a_browser_is_answered(model):
    asked = "authorization, content-type, x-stainless-lang, x-stainless-retry-count, openai-organization"
    headers = {"origin": "https://a.example", "access-control-request-method": "POST"}
    settings = Settings(cors_origins=("https://a.example",), api_key="key", drain=0.0)
    with serving(model, settings) as client:
        answer = client.options("/v1/embeddings", headers={**headers, "access-control-request-headers": asked})
        assert answer.status_code == 200
        allowed = {name.strip() for name in answer.headers["access-control-allow-headers"].lower().split(",")}
        assert set(asked.split(", ")) <= allowed
        assert "POST" in answer.headers["access-control-allow-methods"]


def test_the_id_and_the_trace_of_a_request_are_passed_on(client, caplog):
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    with caplog.at_level("INFO", "elmokit"):
        answer = post(client, "/embed", {"inputs": "a"}, **{"x-request-id": "abc-1.2", "traceparent": trace})
        deadline, found = time.monotonic() + 10, []
        while not found and time.monotonic() < deadline:  # the server writes its log after the answer
            found = [record.fields for record in caplog.records if getattr(record, "fields", {}).get("id") == "abc-1.2"]
            time.sleep(0.01)
    assert (answer.headers["x-request-id"], answer.headers["traceparent"]) == ("abc-1.2", trace)
    assert [fields["trace_id"] for fields in found] == [trace[3:35]]
    for wrong in ({"x-request-id": "two words"}, {"x-request-id": "x" * 200}, {"traceparent": "00-zz-1-01"}):
        answer = post(client, "/embed", {"inputs": "a"}, **wrong)
        assert len(answer.headers["x-request-id"]) == 16
        assert "traceparent" not in answer.headers


def test_base64_and_numbers_are_the_same_vector(client):
    numbers = post(client, "/v1/embeddings", {"input": TEXT}).json()["data"][0]["embedding"]
    text = post(client, "/v1/embeddings", {"input": TEXT, "encoding_format": "base64"}).json()["data"][0]["embedding"]
    np.testing.assert_array_equal(np.frombuffer(base64.b64decode(text), "<f4"), np.array(numbers, np.float32))


def test_a_name_of_another_site_is_refused_by_a_server_of_this_machine(client, model):
    body = b'{"inputs": "a"}'

    def status(address, host):
        request = raw_request("/embed", body, headers="connection: close\r\n").replace(b"host: x", b"host: " + host)
        return int(reply_to(address, request).split(b" ")[1])

    for host in (b"127.0.0.1:8080", b"[::1]:8080", b"localhost", b"elmokit:80", b"a.localhost", b"::1"):
        assert status(client.address, host) == 200, host
    for host in (b"evil.example", b"evil.example:8080", b"127.0.0.1.evil.example"):
        assert status(client.address, host) == 400, host
    with serving(model, Settings(allowed_hosts=("api.example",), drain=0.0)) as named:
        assert status(named.address, b"API.example:443") == 200
        assert status(named.address, b"127.0.0.1") == 400
    with serving(model, Settings(host="0.0.0.0", drain=0.0)) as everywhere:
        assert status(everywhere.address, b"api.example") == 200
