"""Vectors of spans: equal to slices and sums in NumPy; what is no span is named; the attention learns."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elmokit import ELMo, batch_to_ids, embed_spans, tokenize
from elmokit.spans import SpanAttention, ends_of_spans, mean_of_spans, pad_spans, to_token_spans
from elmokit.text import WordWeights

SENTENCES = ["The New York bank lent money .", "He sat .", "", "Ada Lovelace and Maria Schmidt met in Lima ."]
SPANS = [[(1, 3), (0, 7), (2, 3)], [], [], [(0, 2), (3, 5), (7, 8), (0, 2)]]


@pytest.fixture(scope="module")
def model(tiny_elmo):
    return ELMo.from_pretrained(tiny_elmo)


@pytest.fixture
def attention():
    torch.manual_seed(1)
    module = SpanAttention(16)
    torch.nn.init.normal_(module.score.weight, std=3.0)
    return module


def by_hand(vectors, span, how, attention):
    """(2P,) or (4P,), from the token vectors (T, 2P) of a sentence, in float64."""
    inside = vectors[span[0] : span[1]].astype(np.float64)
    if how == "mean":
        return inside.mean(axis=0)
    if how == "ends":
        return np.concatenate([inside[0], inside[-1]])
    weights = np.exp(inside @ attention.score.weight.detach().numpy()[0].astype(np.float64))
    return (weights[:, None] * inside).sum(axis=0) / weights.sum()


# ---- sentences -> vectors of spans -----------------------------------------------------------------------------------


@pytest.mark.parametrize("layers", ["average", "top", 0, "all"])
@pytest.mark.parametrize("how", ["mean", "ends", "attention"])
def test_a_span_has_the_vector_that_its_tokens_give_by_hand(model, attention, how, layers):
    given_attention = attention if how == "attention" else None
    found = embed_spans(model, SENTENCES, SPANS, how=how, layers=layers, attention=given_attention)
    width = 32 if how == "ends" else 16
    for rows, own, vectors in zip(found, SPANS, model.embed(SENTENCES, layers=layers), strict=True):
        assert rows.dtype == np.float32
        assert rows.shape == ((3, len(own), width) if layers == "all" else (len(own), width))
        for layer, tokens in enumerate(vectors if layers == "all" else [vectors]):
            for n, span in enumerate(own):
                row = rows[layer, n] if layers == "all" else rows[n]
                np.testing.assert_allclose(row, by_hand(tokens, span, how, attention), rtol=1e-4, atol=1e-6)


def slot_by_hand(layers, start, end):
    """(2P,) float64, from all layers (L+1, T+2, 2P) with the boundary tokens: token k is at k + 1."""
    half = layers.shape[-1] // 2
    return np.concatenate([layers[-1, start, :half], layers[-1, end + 1, half:]])


def sense_by_hand(layers, weights, start, end):
    half = layers.shape[-1] // 2
    words, contexts = np.zeros(half), np.zeros(half)
    for place, weight in enumerate(weights):
        distance = start - place if place < start else place - (end - 1)
        if distance > 0:  # outside of the span; all of these sentences are short
            words += weight / (1 + distance / 2) * layers[0, place + 1, :half]
            own = slice(None, half) if place < start else slice(half, None)  # the direction that comes from there
            contexts += weight / (1 + distance / 2) * layers[-1, place + 1, own]
    said = slot_by_hand(layers, start, end) - slot_by_hand(layers, 0, len(weights))  # beyond what <S> and </S> say
    said, words, contexts = (part / max(np.linalg.norm(part), 1e-12) for part in (said, words, contexts))
    scale = np.sqrt(2 * half)
    return np.tanh(scale * (said + 0.6 * np.sqrt(0.5) * np.concatenate([words, contexts]))) / scale


@pytest.mark.parametrize("view", ["slot", "sense"])
def test_slot_and_sense_see_a_span_from_outside_as_one_word(tiny_elmo, view):
    model = ELMo.from_pretrained(tiny_elmo, dtype=torch.float64)
    model.word_weights = WordWeights({"The": 50, ".": 80, "bank": 3, "York": 1})
    found = embed_spans(model, SENTENCES, SPANS, layers=view)
    one_by_one = embed_spans(model, SENTENCES, SPANS, layers=view, batch_size=1)
    readings = dict(model.readings(SENTENCES))
    for number, (sentence, own) in enumerate(zip(SENTENCES, SPANS, strict=True)):
        layers = readings[number].layers[:, 0].numpy()  # (L+1, T+2, 2P)
        np.testing.assert_allclose(layers[:, 1:-1], model.embed([sentence], layers="all")[0], atol=1e-12)
        weights = [float(weight) for weight in model.word_weights(tokenize(sentence))]
        assert found[number].shape == (len(own), model.dim)
        for row, alone, span in zip(found[number], one_by_one[number], own, strict=True):
            expected = slot_by_hand(layers, *span) if view == "slot" else sense_by_hand(layers, weights, *span)
            np.testing.assert_allclose(row, expected, atol=1e-9)
            np.testing.assert_allclose(alone, expected, atol=1e-9)


@pytest.mark.parametrize("view", ["slot", "sense"])
def test_a_span_of_one_token_is_the_token_and_its_own_words_do_not_count(model, view):
    tokens = tokenize(SENTENCES[0])
    singles = [[(k, k + 1) for k in range(len(tokens))]]
    (found,) = embed_spans(model, [tokens], singles, layers=view)
    np.testing.assert_allclose(found, model.embed([tokens], layers=view)[0], atol=1e-6)
    # the words between <S> and the span, and between the span and </S>, are all that forward and backward read
    other = [*tokens[:1], "Los", "Angeles", *tokens[3:]]
    (one,), (another,) = embed_spans(model, [tokens, other], [[(1, 3)], [(1, 3)]], layers="slot")
    np.testing.assert_allclose(one, another, atol=1e-6)
    text = SENTENCES[0]
    place = (text.index("New York"), text.index(" bank"))
    (by_characters,) = embed_spans(model, [text], [[place]], unit="characters", layers=view)
    (by_tokens,) = embed_spans(model, [text], [[(1, 3)]], layers=view)
    np.testing.assert_array_equal(by_characters, by_tokens)


@pytest.mark.parametrize("view", ["slot", "sense"])
@pytest.mark.parametrize("how", ["ends", "attention"])
def test_slot_and_sense_are_not_pooled_from_tokens(model, attention, view, how):
    given_attention = attention if how == "attention" else None
    with pytest.raises(ValueError, match=f"layers=\"{view}\" looks at a span from outside.*leave out how='{how}'"):
        embed_spans(model, SENTENCES, SPANS, how=how, layers=view, attention=given_attention)


def test_token_lists_tensors_batches_and_half_precision_give_the_same(model, tiny_elmo):
    expected = embed_spans(model, SENTENCES, SPANS)
    tokens = [tokenize(sentence) for sentence in SENTENCES]
    found = embed_spans(model, tokens, [np.array(own).reshape(-1, 2) for own in SPANS], batch_size=1)
    tensors = embed_spans(model, SENTENCES, SPANS, convert_to_tensor=True)
    half = embed_spans(ELMo.from_pretrained(tiny_elmo, dtype=torch.float16), SENTENCES, SPANS)
    for one, other, tensor, rounded in zip(expected, found, tensors, half, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-6)
        assert not tensor.requires_grad
        np.testing.assert_array_equal(tensor.numpy(), one)
        assert rounded.dtype == np.float32
        np.testing.assert_allclose(rounded, one, atol=0.01)


def test_sentences_without_spans_are_not_read(model, monkeypatch):
    seen, real = [], ELMo.readings
    monkeypatch.setattr(ELMo, "readings", lambda self, given, **rest: seen.extend(given) or real(self, given, **rest))
    embed_spans(model, SENTENCES, SPANS)
    assert sorted(map(len, seen)) == [0, 0, 7, 9]


def test_a_carried_state_passes_through_sentences_without_spans(tiny_elmo, model):
    carrying = ELMo.from_pretrained(tiny_elmo, state="carry")
    expected = carrying.embed(SENTENCES, batch_size=1)
    carrying.reset_state()
    found = embed_spans(carrying, SENTENCES, SPANS, batch_size=1)
    np.testing.assert_allclose(found[3][0], expected[3][:2].mean(axis=0), rtol=1e-4, atol=1e-6)
    assert not np.allclose(found[3], embed_spans(model, SENTENCES, SPANS)[3], atol=1e-5)


def test_no_sentences_give_no_arrays_and_a_bar_can_be_shown(model, capsys):
    assert embed_spans(model, [], []) == []
    embed_spans(model, SENTENCES, SPANS, show_progress=True)
    shown = capsys.readouterr()
    assert "spans" in shown.err
    assert shown.out == ""


# ---- spans of characters ---------------------------------------------------------------------------------------------


def test_a_name_is_found_by_its_characters(model):
    text = 'She said: "New York\'s bank lent Ada  Lovelace money."'
    names = ["New York", "New York's bank", "Ada  Lovelace", "ove", " money. "]
    places = [(text.index(name.strip()), text.index(name.strip()) + len(name.strip())) for name in names]
    located = to_token_spans(text, places)
    assert located.tokens == tokenize(text)
    assert [located.tokens[start:end] for start, end in located.spans] == [
        ["New", "York"], ["New", "York", "'s", "bank"], ["Ada", "Lovelace"], ["Lovelace"], ["money", "."],
    ]  # fmt: skip
    found = embed_spans(model, [text, "x"], [places, [(0, 1)]], unit="characters")
    expected = embed_spans(model, [text, "x"], [located.spans, [(0, 1)]])
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@given(st.text(st.sampled_from("ab .,'\"$n"), max_size=20), st.data())
def test_a_span_of_characters_takes_the_tokens_that_have_one_of_them(text, data):
    start = data.draw(st.integers(0, max(0, len(text) - 1)))
    end = data.draw(st.integers(start + 1, max(len(text), start + 1)))
    owners = {}
    place = 0
    for number, token in enumerate(tokenize(text)):
        place = text.index(token, place)
        owners |= dict.fromkeys(range(place, place + len(token)), number)
        place += len(token)
    touched = sorted({owners[at] for at in range(start, end) if at in owners})
    if touched:
        assert to_token_spans(text, [(start, end)]).spans == [(touched[0], touched[-1] + 1)]
    else:
        with pytest.raises(ValueError, match=r"it has no token|outside of the sentence"):
            to_token_spans(text, [(start, end)])


@pytest.mark.parametrize("name", ["characters", "spaces", "treebank"])
def test_spans_of_characters_are_counted_in_the_tokens_of_the_model(tiny_elmo, name):
    pretrained = ELMo.from_pretrained(tiny_elmo)
    model = ELMo(pretrained.bilm, tokenizer=name)
    text = "银行, 在河边."
    located = to_token_spans(text, [(1, 5)], model.tokenizer)
    tokens, span = {
        "characters": (["银", "行", ",", "在", "河", "边", "."], (1, 4)),
        "spaces": (["银行,", "在河边."], (0, 2)),
        "treebank": (["银行", ",", "在河边", "."], (0, 3)),
    }[name]
    assert located == (tokens, [span])
    (found,) = embed_spans(model, [text], [[(1, 5)]], unit="characters")
    (expected,) = pretrained.embed([tokens])
    np.testing.assert_allclose(found[0], expected[slice(*span)].mean(axis=0), rtol=1e-5, atol=1e-6)
    (by_tokens,) = embed_spans(model, [text], [[span]])
    np.testing.assert_array_equal(by_tokens, found)


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "unit", "message"),
    [
        ([(1, 1)], "tokens", r"spans\[1\]\[0\] is \(1, 1\), empty"),
        ([(0, 1), (2, 1)], "tokens", r"spans\[1\]\[1\] is \(2, 1\), reversed"),
        ([(0, 4)], "tokens", r"spans\[1\]\[0\] is \(0, 4\), outside of the sentence, which has 3 tokens"),
        ([(-1, 2)], "tokens", r"\(-1, 2\), outside"),
        ([(0, 9)], "characters", r"\(0, 9\), outside of the sentence, which has 8 characters"),
        ([(2, 3)], "characters", r"spans\[1\]\[0\] is \(2, 3\), which is ' ': it has no token"),
        ([(0.5, 2)], "tokens", r"spans\[1\]\[0\] is \(0.5, 2\): expected \(start, end\), two integers"),
        ([(0, 1, 2)], "tokens", "two integers"),
        ((0, 2), "tokens", r"spans\[1\]\[0\] is 0: expected \(start, end\)"),
        (None, "tokens", r"spans\[1\] is None: expected the spans of one sentence"),
        ("0-2", "tokens", r"spans\[1\] is '0-2': expected the spans of one sentence"),
    ],
)
def test_what_is_not_a_span_of_the_sentence_is_named(model, own, unit, message):
    with pytest.raises(ValueError, match=message):
        embed_spans(model, ["It is .", "He sat ."], [[], own], unit=unit)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"how": "max"}, 'how must be "mean", "ends" or "attention", not \'max\''),
        ({"how": "attention"}, "needs attention="),
        ({"how": "ends", "attention": SpanAttention(16)}, "is for how=\"attention\", not for how='ends'"),
        ({"how": "attention", "attention": SpanAttention(8)}, "8 wide, this model's are 16 wide"),
        ({"unit": "words"}, "not 'words'"),
        ({"layers": 3}, "a number from 0 to 2, not 3"),
        ({"spans": [[]]}, "4 sentences came with 1 list of spans: pass one list"),
        ({"spans": "0-2"}, "got one string"),
        ({"sentences": "He sat ."}, "got one string"),
        ({"sentences": [["He", "sat"]], "spans": [[(0, 1)]], "unit": "characters"}, r"sentences\[0\] is not a string"),
    ],
)
def test_what_does_not_fit_together_is_named(model, changes, message):
    arguments = {"sentences": SENTENCES, "spans": [[] for _ in SENTENCES], **changes}
    with pytest.raises(ValueError, match=message):
        embed_spans(model, **arguments)


# ---- inside a network ------------------------------------------------------------------------------------------------


def test_in_a_network_padding_changes_nothing_and_missing_spans_are_zeros(model, attention):
    tokens = [tokenize(sentence) for sentence in SENTENCES]
    out = model(batch_to_ids(tokens))
    place = pad_spans(SPANS, list(map(len, tokens)))
    assert place.shape == (4, 4, 2)
    for pool, how in ((mean_of_spans, "mean"), (ends_of_spans, "ends"), (attention, "attention")):
        found = pool(out.mixes[0], place).detach().numpy()
        expected = embed_spans(model, tokens, SPANS, how=how, attention=attention if how == "attention" else None)
        for rows, known in zip(found, expected, strict=True):
            np.testing.assert_allclose(rows[: len(known)], known, rtol=1e-4, atol=1e-6)
            assert not rows[len(known) :].any()


def test_attention_may_score_one_thing_and_sum_another(attention):
    x, values = torch.randn(2, 5, 16), torch.randn(2, 5, 3)
    place = torch.tensor([[[0, 3]], [[2, 5]]])
    found = attention(x, place, values)
    for row, (start, end) in enumerate([(0, 3), (2, 5)]):
        weights = torch.softmax(x[row, start:end] @ attention.score.weight[0], dim=0)
        torch.testing.assert_close(found[row, 0], weights @ values[row, start:end])


def test_untrained_attention_is_the_mean_and_training_finds_the_word_that_counts():
    names, rest = ["Rome", "Oslo", "Lima", "Ada"], ["the", "of", "old", "a"]
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    vector_of = {word: torch.randn(16) for word in [*names, *rest]}
    sentences, wanted = [], []
    for _ in range(48):
        name, words = str(rng.choice(names)), [str(word) for word in rng.choice(rest, 5)]
        words[rng.integers(5)] = name
        sentences.append(torch.stack([vector_of[word] for word in words]))
        wanted.append(vector_of[name])
    x, target = torch.stack(sentences), torch.stack(wanted)  # (B, T, D), (B, D)
    place = pad_spans([[(0, 5)]] * 48, [5] * 48)
    attention = SpanAttention(16)
    torch.testing.assert_close(attention(x, place), mean_of_spans(x, place))
    optimizer = torch.optim.Adam(attention.parameters(), lr=0.1)
    for _ in range(100):
        loss = torch.nn.functional.mse_loss(attention(x, place)[:, 0], target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.testing.assert_close(attention(x, place)[:, 0], target, atol=0.1, rtol=0)


def test_padded_spans_give_no_gradient_that_is_no_number(attention):
    x = torch.randn(1, 3, 16, requires_grad=True)
    attention(x, torch.tensor([[[0, 0], [1, 3]]])).sum().backward()
    assert torch.isfinite(x.grad).all()
    assert not x.grad[0, 0].any()


@pytest.mark.parametrize("pool", [mean_of_spans, ends_of_spans, SpanAttention(4)])
def test_a_network_is_told_of_spans_that_are_none(pool):
    x = torch.zeros(1, 3, 4)
    for bad in ([2, 4], [2, 1], [1, 1], [-1, 2]):
        with pytest.raises(ValueError, match=r"empty, reversed or outside of the 3 tokens"):
            pool(x, torch.tensor([[bad]]))
    with pytest.raises(ValueError, match=r"integers \(B, S, 2\), not torch.float32 of \(1, 1, 2\)"):
        pool(x, torch.zeros(1, 1, 2))
    with pytest.raises(ValueError, match=r"not torch.int64 of \(1, 3\)"):
        pool(x, torch.zeros(1, 3, dtype=torch.long))
    assert pool(x, pad_spans([[]], [3])).shape[1] == 0


def test_padding_checks_each_span_against_its_own_sentence():
    with pytest.raises(ValueError, match=r"spans\[1\]\[0\] is \(0, 3\), outside of the sentence, which has 2 tokens"):
        pad_spans([[(0, 3)], [(0, 3)]], [3, 2])


@pytest.mark.gpu
@pytest.mark.parametrize("how", ["mean", "ends", "attention"])
def test_a_gpu_gives_the_same_vectors_of_spans(model, tiny_elmo, attention, how):
    expected = embed_spans(model, SENTENCES, SPANS, how=how, attention=attention if how == "attention" else None)
    moved = attention.cuda() if how == "attention" else None
    found = embed_spans(ELMo.from_pretrained(tiny_elmo, device="cuda"), SENTENCES, SPANS, how=how, attention=moved)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)
