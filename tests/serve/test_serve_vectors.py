"""The endpoints of vectors and tokens give what the library gives, whatever other requests share the batch."""

import asyncio
import base64
import io
import random
import re
import threading

import httpx
import numpy as np
import openai
import pytest
import safetensors.numpy
from served import SENSE_TOLERANCE, TEXTS, TOLERANCE, WORDS, make_model, post, serving

from elmokit import ELMo
from elmokit.inference.views import view_of
from elmokit.serve import wire
from elmokit.serve.app import create_app
from elmokit.serve.engine import Engine, chosen_layers, token_vectors
from elmokit.serve.settings import Settings
from elmokit.text import WordWeights


@pytest.mark.parametrize("layers", ["average", "top", "slot", "sense", 0, 2])
@pytest.mark.parametrize("normalize", [True, False])
def test_embed_gives_the_vectors_of_encode(client, model, layers, normalize):
    found = post(client, "/embed", {"inputs": TEXTS, "layers": layers, "normalize": normalize}).json()
    expected = model.encode(TEXTS, layers=layers, normalize=normalize)
    tolerance = SENSE_TOLERANCE if layers == "sense" else TOLERANCE
    np.testing.assert_allclose(np.array(found, np.float32), expected, **tolerance)


def test_embed_normalizes_unless_told_otherwise(client):
    found = np.array(post(client, "/embed", {"inputs": "The bank"}).json())
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), [1.0], atol=1e-5)


def test_embed_all_gives_the_vectors_of_embed(client, model):
    found = post(client, "/embed_all", {"inputs": TEXTS}).json()
    for vectors, expected in zip(found, model.embed(TEXTS), strict=True):
        np.testing.assert_allclose(np.array(vectors).reshape(expected.shape), expected, **TOLERANCE)


@pytest.mark.parametrize("layers", ["top", "slot", "sense", 1])
def test_embed_all_gives_any_view_of_embed(client, model, layers):
    found = post(client, "/embed_all", {"inputs": TEXTS, "layers": layers}).json()
    tolerance = SENSE_TOLERANCE if layers == "sense" else TOLERANCE
    for vectors, expected in zip(found, model.embed(TEXTS, layers=layers), strict=True):
        np.testing.assert_allclose(np.array(vectors).reshape(expected.shape), expected, **tolerance)


def test_requests_for_different_views_share_one_batch(model):
    reports = []
    engine = Engine(model, Settings(patience=0.2), report=reports.append)
    sentences = [["The", "bank", "lent", "money"], ["a", "river"], [], ["the", "bank", "of", "the", "river", "."]]
    views = {name: view_of(name, model.num_layers) for name in ("average", "top", "slot", "sense")}

    async def ask():
        wanted = [engine.vectors(sentences, token_vectors(view)) for view in views.values()]
        return await asyncio.gather(*wanted, engine.vectors(sentences, chosen_layers([2, 0], 3)))

    engine.batcher.start()
    try:
        *found, layers = asyncio.run(ask())
    finally:
        engine.batcher.close()
    assert [report.num_pieces for report in reports] == [5 * len(sentences)]
    for name, vectors in zip(views, found, strict=True):
        tolerance = SENSE_TOLERANCE if name == "sense" else TOLERANCE
        for rows, expected in zip(vectors, model.embed(sentences, layers=name), strict=True):
            np.testing.assert_allclose(rows, expected, **tolerance)
    for stacked, expected in zip(layers, model.embed(sentences, layers="all"), strict=True):
        np.testing.assert_allclose(stacked, expected[[2, 0]], **TOLERANCE)


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


@pytest.mark.parametrize("layers", [None, "average", "top", "slot", "sense", 1])
@pytest.mark.parametrize("word", [None, "bank", "BANK", "the river"])
def test_similarity_compares_sentences_or_a_word_by_any_view(client, model, word, layers):
    source, *others = [
        "The bank of the river .",
        "He sat by the river bank .",
        "the river, the bank",
        "a bank by The River",
        "bank the river bank",
    ]
    inputs = {"source_sentence": source, "sentences": others, "word": word}
    found = post(client, "/similarity", {"inputs": inputs, "parameters": {"layers": layers}}).json()
    expected = [model.similarity(source, other, word=word, layers=layers) for other in others]
    np.testing.assert_allclose(found, expected, **SENSE_TOLERANCE)
    if layers is None:
        del inputs["word" if word is None else "sentences"]
        inputs["sentences"] = others
        assert post(client, "/similarity", {"inputs": inputs}).json() == found


@pytest.mark.parametrize(("direction", "kept"), [("right", slice(None, 512)), ("Left", slice(-512, None))])
def test_a_long_sentence_is_cut_where_that_is_asked_for(client, model, direction, kept):
    tokens = [WORDS[3 + n % 12] for n in range(600)]
    body = {"inputs": [tokens], "truncate": True, "truncation_direction": direction, "normalize": False}
    np.testing.assert_allclose(post(client, "/embed", body).json(), model.encode([tokens[kept]]), **TOLERANCE)


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
    monkeypatch.setattr(wire, "NUMBERS_PER_PART", 40)
    body = post(client, "/layers", {"inputs": TEXTS}).json()
    for vectors, expected in zip(body["vectors"], model.embed(TEXTS, layers="all"), strict=True):
        np.testing.assert_allclose(np.array(vectors).reshape(expected.shape), expected, **TOLERANCE)
    found = post(client, "/embed_all", {"inputs": TEXTS}).json()
    assert [len(vectors) for vectors in found] == [len(tokens) for tokens in body["tokens"]]


def test_the_cache_of_words_keeps_no_more_characters_than_the_model_reads(client, model):
    word = "x" * 100_000
    found = post(client, "/embed_all", {"inputs": [[word]]}).json()
    np.testing.assert_allclose(found[0], model.embed([[word]])[0], **TOLERANCE)
    model.forget_words()
    post(client, "/embed_all", {"inputs": [[word]]})
    assert max(map(len, model._runner._words._slots)) < 100


def test_a_word_longer_than_the_model_reads_has_its_own_weight(client, model):
    known = "x" * model.config.max_characters
    tokens = ["the", known + "x" * 100, "bank"]
    before, model.word_weights = model.word_weights, WordWeights([known, "the"])
    try:
        found = post(client, "/embed_all", {"inputs": [tokens], "layers": "sense"}).json()
        (expected,) = model.embed([tokens], layers="sense")
        np.testing.assert_allclose(found[0], expected, **SENSE_TOLERANCE)
        (as_known,) = model.embed([["the", known, "bank"]], layers="sense")  # the same characters, another weight
        assert np.abs(as_known - expected).max() > 1e-3
    finally:
        model.word_weights = before


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
        assert "dimensions is 3" in wrong.value.body["message"]
        with pytest.raises(openai.UnprocessableEntityError) as wrong:
            official.embeddings.create(model="tiny", input=[[1, 2, 3]])
        assert "valid string" in wrong.value.body["message"]


def test_tokenize_gives_the_offsets_of_tokens(client):
    text = "The bänk isn't here."
    (tokens,) = post(client, "/tokenize", {"inputs": text}).json()
    assert [token["text"] for token in tokens] == ["<S>", "The", "bänk", "is", "n't", "here", ".", "</S>"]
    assert [token["special"] for token in tokens] == [True, *[False] * 6, True]
    assert all(text[token["start"] : token["stop"]] == token["text"] for token in tokens[1:-1])
    assert tokens[1]["id"] == WORDS.index("The")
    assert tokens[2]["id"] == WORDS.index("<UNK>")
    (bare,) = post(client, "/tokenize", {"inputs": [text], "add_special_tokens": False}).json()
    assert bare == tokens[1:-1]


@pytest.mark.parametrize(
    ("tokenizer", "tokens"),
    [("spaces", ["The", "bank's", "here."]), ("characters", list("Thebank'shere."))],
)
def test_strings_are_cut_by_the_tokenizer_of_the_model(tokenizer, tokens):
    model, text = make_model(tokenizer=tokenizer), "The bank's here."
    with serving(model) as client:
        (cut,) = post(client, "/tokenize", {"inputs": text, "add_special_tokens": False}).json()
        (vectors,) = post(client, "/embed_all", {"inputs": [text]}).json()
    assert [token["text"] for token in cut] == tokens
    assert all(text[token["start"] : token["stop"]] == token["text"] for token in cut)
    np.testing.assert_allclose(vectors, model.embed([tokens])[0], **TOLERANCE)


def test_a_model_that_carries_state_is_not_served():
    model = ELMo(make_model().bilm, state="carry")
    with pytest.raises(ValueError, match="state='carry'"):
        create_app(model, Settings())


@pytest.mark.parametrize("path", ["/layers", "/embed_all"])
def test_lists_of_chinese_words_have_one_vector_per_word(path):
    model = make_model(words=[*"我去银行取钱在河边。"], tokenizer="han")
    lists = [["我", "去", "银行", "取", "钱", "。"], ["银行", "在", "河边"], [*"我在河边"]]
    layers = "all" if path == "/layers" else "slot"
    expected = np.concatenate(model.embed(lists, layers=layers), axis=-2)
    with serving(model) as client:
        body = {"inputs": lists} if path == "/layers" else {"inputs": lists, "layers": layers}
        found = np.load(io.BytesIO(post(client, path, body, accept="application/x-npy").content))
    np.testing.assert_allclose(found, expected, **TOLERANCE)
