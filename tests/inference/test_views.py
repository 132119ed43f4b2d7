"""`layers=` is checked in one module and means the same everywhere; slot and sense are what their formulas say."""

import re

import numpy as np
import pytest
import torch

from elmokit import ELMo
from elmokit.inference.views import HALF_DISTANCE, REACH, Reading, check_layers, view_of
from elmokit.text import WordWeights

LAYERS = torch.randn(3, 2, 7, 8, generator=torch.Generator().manual_seed(0))  # (L+1, B, T+2, 2P)
READING = Reading(LAYERS, (5, 5))
INSIDE = LAYERS[:, :, 1:-1]

WORDS = ["the", "of", "a", "bank", "river", "money", "deposit", "heron", *(f"word{k}" for k in range(5)), "."]
SENTENCES = [
    ["the", "bank", "of", "the", "river"],
    ["money"],
    [],
    ["a", "heron", "."],
    ["bank", "bank", "the", "bank", "bank", "."],  # repeated words
    np.random.default_rng(1).choice(WORDS, 3 * REACH + 7).tolist(),  # longer than the reach, and than a block
]


# ---- by hand, one word at a time, from the float64 reference ---------------------------------------------------------


def slot_by_hand(layers: np.ndarray, start: int, end: int) -> np.ndarray:
    """Of tokens[start:end]; `layers` (L+1, T+2, 2P) begin with <S>."""
    width = layers.shape[-1] // 2
    return np.concatenate([layers[-1, start, :width], layers[-1, end + 1, width:]])


def sense_by_hand(layers: np.ndarray, tokens: list[str], weight: WordWeights, start: int, end: int) -> np.ndarray:
    width = layers.shape[-1] // 2
    words, contexts = np.zeros(width), np.zeros(width)
    for place, token in enumerate(tokens):
        distance = start - place if place < start else place - end + 1
        if start <= place < end or distance > REACH:
            continue
        factor = float(weight([token])[0]) / (1 + distance / HALF_DISTANCE)
        words += factor * layers[0, place + 1, :width]
        contexts += factor * (layers[-1, place + 1, :width] if place < start else layers[-1, place + 1, width:])
    said = slot_by_hand(layers, start, end) - np.concatenate([layers[-1, 0, :width], layers[-1, -1, width:]])
    around = np.concatenate([part / max(np.linalg.norm(part), 1e-12) for part in (words, contexts)])
    mixed = said / max(np.linalg.norm(said), 1e-12) + 0.6 * around / 2**0.5
    return np.tanh((2 * width) ** 0.5 * mixed) / (2 * width) ** 0.5


@pytest.mark.parametrize("variant", [{}, {"layers": 1, "skip": False}, {"layers": 3}, {"word_level": True}])
def test_slot_and_sense_equal_the_formulas_for_any_model_alone_and_in_any_batch(official_model, tmp_path, variant):
    official = official_model(seed=3, **variant)
    embeddings = {}
    if official.vocabulary is not None:
        (tmp_path / "words.txt").write_text("\n".join(official.vocabulary), encoding="utf-8")
        embeddings = {"vocabulary": tmp_path / "words.txt", "embeddings": official.weights_path}
    model = ELMo.from_files(official.options_path, official.weights_path, **embeddings, dtype=torch.float64)
    if official.vocabulary is not None:
        assert model.word_weights.digest() == WordWeights(official.vocabulary).digest()
    weights = model.word_weights = WordWeights(WORDS)
    expected: dict[str, list[np.ndarray]] = {"slot": [], "sense": []}
    for tokens in SENTENCES:
        layers = official.expected(tokens).with_boundaries
        places = [(k, k + 1) for k in range(len(tokens))]
        expected["slot"].append(np.array([slot_by_hand(layers, *place) for place in places]))
        expected["sense"].append(np.array([sense_by_hand(layers, tokens, weights, *place) for place in places]))
    for view, wanted in expected.items():
        together = model.embed(SENTENCES, layers=view)
        in_pairs = model.embed(SENTENCES, layers=view, batch_size=2)
        for number, tokens in enumerate(SENTENCES):
            (alone,) = model.embed([tokens], layers=view)
            for vectors in (alone, together[number], in_pairs[number]):
                assert vectors.shape == (len(tokens), model.dim)
                np.testing.assert_allclose(vectors, wanted[number].reshape(-1, model.dim), atol=1e-9)
        means = [rows.mean(axis=0) if len(rows) else np.zeros(model.dim) for rows in wanted]
        np.testing.assert_allclose(model.encode(SENTENCES, layers=view), means, atol=1e-9)


def test_a_phrase_is_seen_from_outside_as_one_word(official_model):
    official = official_model(seed=4)
    model = ELMo.from_files(official.options_path, official.weights_path, dtype=torch.float64)
    weights = model.word_weights = WordWeights(WORDS)
    tokens = SENTENCES[-1]
    layers = official.expected(tokens).with_boundaries
    spans = [(0, 3), (90, 92), (7, 150), (len(tokens) - 2, len(tokens)), (0, len(tokens)), (5, 6)]
    ((_, reading),) = model.readings([tokens])
    start, end = torch.tensor(spans).unbind(dim=1)
    for name, by_hand in (
        ("slot", lambda span: slot_by_hand(layers, *span)),
        ("sense", lambda span: sense_by_hand(layers, tokens, weights, *span)),
        ("top", lambda span: layers[-1, span[0] + 1 : span[1] + 1].mean(axis=0)),
        ("average", lambda span: layers[:, span[0] + 1 : span[1] + 1].mean(axis=(0, 1))),
    ):
        vectors = view_of(name, model.num_layers).spans(reading, start, end)[0]
        np.testing.assert_allclose(vectors.numpy(), np.array([by_hand(span) for span in spans]), atol=1e-9)


def test_with_carried_state_the_views_read_what_the_network_computed(official_model):
    official = official_model(seed=5)
    model = ELMo.from_files(official.options_path, official.weights_path, state="carry", dtype=torch.float64)
    weights = model.word_weights = WordWeights(WORDS)
    first, second = SENTENCES[0], SENTENCES[4]
    model.embed([first], layers="sense")
    (vectors,) = model.embed([second], layers="sense")
    layers = official.expected(second, state=official.expected(first).state).with_boundaries
    wanted = [sense_by_hand(layers, second, weights, k, k + 1) for k in range(len(second))]
    np.testing.assert_allclose(vectors, wanted, atol=1e-9)


def test_a_sentence_of_one_word_says_nothing_about_its_sense(tiny_elmo):
    model = ELMo.from_pretrained(tiny_elmo)
    vectors = model.embed([["money"], ["the", "bank"]], layers="sense")
    np.testing.assert_array_equal(vectors[0], np.zeros((1, model.dim)))
    assert np.abs(vectors[1]).max() > 0.1
    assert model.similarity("money", "money", word="money") == 0


def test_the_sense_of_a_word_does_not_depend_on_the_word_itself(tiny_elmo):
    model = ELMo.from_pretrained(tiny_elmo)
    first, second = model.embed([["the", word, "of", "the", "river"] for word in ("bank", "heron")], layers="sense")
    np.testing.assert_allclose(first[1], second[1], atol=1e-6)
    assert np.abs(first[2] - second[2]).max() > 1e-2


def test_half_precision_gives_the_views_of_its_own_layers_in_its_own_type(tiny_elmo):
    model = ELMo.from_pretrained(tiny_elmo, dtype=torch.bfloat16)
    (half,) = model.embed([SENTENCES[0]], layers="sense", convert_to_tensor=True)
    ((_, reading),) = model.readings([SENTENCES[0]])
    wide = view_of("sense", 3).tokens(Reading(reading.layers.float(), reading.lengths, reading.weights))
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), wide[0], atol=2e-2, rtol=0)


# ---- word weights ----------------------------------------------------------------------------------------------------


def test_a_weight_falls_with_the_probability_of_the_word():
    by_rank = WordWeights(["the", "of", "heron"])
    expected = [1e-3 / (1e-3 + 1 / (10 * (rank + 10))) for rank in (0, 2, 3)]  # the last is unknown
    np.testing.assert_allclose(by_rank(["the", "heron", "egret"]), expected, rtol=1e-6)
    by_count = WordWeights({"the": 900, "heron": 100})
    expected = [1e-3 / (1e-3 + p) for p in (0.9, 0.1, 0.1)]
    np.testing.assert_allclose(by_count(["the", "heron", "egret"]), expected, rtol=1e-6)
    assert by_rank.digest() != by_count.digest() == WordWeights({"the": 900, "heron": 100}).digest()


@pytest.mark.parametrize(
    ("words", "message"),
    [([], "words is empty"), ({}, "words is empty"), ("the", "words"), ({"the": -1}, "words['the'] must be a number")],
)
def test_wrong_words_are_refused(words, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        WordWeights(words)


def test_a_model_without_a_vocabulary_has_the_weights_of_english_and_a_caller_may_change_them(tiny_elmo):
    model = ELMo.from_pretrained(tiny_elmo)
    assert model.vocabulary is None
    the, bank, heron = model.word_weights(["the", "bank", "heron"])
    assert the < bank < heron
    before = model.embed([SENTENCES[0]], layers="sense")[0]
    model.word_weights = WordWeights(["river", "bank", "of", "the"])
    assert np.abs(model.embed([SENTENCES[0]], layers="sense")[0] - before).max() > 1e-3
    with pytest.raises(ValueError, match=r"word_weights must be an elmokit\.text\.WordWeights"):
        model.word_weights = ["the"]


# ---- the argument ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ("average", (INSIDE[0] + INSIDE[1] + INSIDE[2]) / 3),
        ("top", INSIDE[2]),
        ("all", INSIDE),
        (0, INSIDE[0]),
        (-1, INSIDE[2]),
        (-3, INSIDE[0]),
        (np.int64(1), INSIDE[1]),
        (np.uint8(2), INSIDE[2]),
    ],
)
def test_a_view_is_what_its_name_says(layers, expected):
    torch.testing.assert_close(view_of(layers, 3).tokens(READING), expected)


@pytest.mark.parametrize("layers", ["bottom", "0", 3, -4, True, 1.0, None, [1], np.float64(1)])
def test_anything_else_is_refused_with_the_value(layers):
    with pytest.raises(ValueError, match=r"layers must be .* a number from 0 to 2, not"):
        view_of(layers, 3)


def test_a_caller_that_needs_one_vector_per_token_refuses_all_layers():
    assert check_layers("top", 3, single=True) == "top"
    with pytest.raises(
        ValueError,
        match=r'must be "average", "top", "slot", "sense" or a number from 0 to 2, not .all., which is for embed',
    ):
        view_of("all", 3, single=True)
