"""What LSTM layers and transformer blocks have in common, each compared with its own reference.

State carries a text, and no number depends on the batch, on padding, on blocks or on tokens of the other side.
"""

import numpy as np
import pytest
import torch
from architectures import (
    LSTM,
    SENTENCES,
    Transformer,
    assert_same_sentences,
    close,
    each_alone,
    states_close,
)
from hypothesis import given
from hypothesis import strategies as st

import reference
from elmokit.network import AttentionState, BiLMState, encoder, parameters_of
from transformer_models import random_transformer

ARCHITECTURES = {"lstm": LSTM, "transformer": Transformer}


@pytest.fixture(scope="module", params=list(ARCHITECTURES))
def architecture(request):
    return ARCHITECTURES[request.param]


@pytest.fixture(scope="module")
def make(architecture, official_model):
    """make(seed, **variant) gives a random model of the architecture."""
    return official_model if architecture is LSTM else random_transformer


@pytest.fixture(scope="module")
def model(architecture, make):
    return make(7, **architecture.sizes)


@pytest.fixture(scope="module")
def bilm(model):
    return model.bilm()


@pytest.fixture(scope="module")
def alone(model, bilm):
    return each_alone(model, bilm)


def of(architecture, *values):
    """Parameters of a test that are those of one architecture."""
    return [(architecture, value) for value in values]


def test_the_reference_s_log_probabilities_are_those_of_its_layers(architecture, make):
    model = make(**architecture.word_level)
    width = model.bilm().config.projection_dim
    rng = np.random.default_rng(0)
    weight, bias = rng.standard_normal((12, width)), rng.standard_normal(12)
    sentence = ["word1", "word7", "nonsense"]
    (found,) = architecture.log_probs(model, [sentence], weight, bias)
    top = model.expected(sentence).with_boundaries[-1]  # (T+2, 2P)
    ids = [0, 4, 10, 2, 1]
    for k in range(1, 5):
        scores = np.exp(weight @ top[k - 1, :width] + bias)
        assert found.forward[k - 1] == pytest.approx(np.log(scores[ids[k]] / scores.sum()))
    for k in range(4):
        scores = np.exp(weight @ top[k + 1, width:] + bias)
        assert found.backward[k] == pytest.approx(np.log(scores[ids[k]] / scores.sum()))
    mean = (found.forward.sum() + found.backward.sum()) / 8
    assert reference.perplexity([found]) == pytest.approx(np.exp(-mean))


# ---- state ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("architecture", "variant"),
    [
        *of("lstm", {}, {"skip": False, "layers": 3}, {"word_level": True}),
        *of("transformer", {}, {"attention_window": 1}, {"attention_window": 20}, {"num_words": 12}),
    ],
    indirect=["architecture"],
    ids=str,
)
def test_carried_state_gives_what_the_reference_gives_with_carried_state(architecture, make, variant):
    model = make(5, **variant)
    later, last = SENTENCES[2:] + SENTENCES[:2], SENTENCES[::-1]
    for dtype, tolerance in [(torch.float32, 1e-5), (torch.float64, 1e-10)]:
        bilm = model.bilm().to(dtype)
        first = bilm(model.ids(SENTENCES))
        second = bilm(model.ids(later), state=first.state)
        third = bilm(model.ids(last), state=second.state)
        for row in range(len(SENTENCES)):
            run = architecture.expected_after(model, later[row], model.expected(SENTENCES[row]))
            close(second.layers[:, row, : len(later[row])], run.layers, tolerance)
            architecture.assert_state(model, second.state, row, run, tolerance)
            run = architecture.expected_after(model, last[row], run)
            close(third.layers[:, row, : len(last[row])], run.layers, tolerance)


def test_a_call_keeps_no_state_and_does_not_change_its_argument(architecture, make):
    model = make(5)
    bilm, ids = model.bilm(), model.ids(SENTENCES)
    first = bilm(ids)
    kept = [part.clone() for part in first.state]
    bilm(ids, state=first.state)
    close(bilm(ids).layers, first.layers, architecture.same)
    assert all(torch.equal(one, other) for one, other in zip(first.state, kept, strict=True))


@pytest.mark.parametrize(
    ("architecture", "dtype", "tolerance"),
    [
        ("lstm", torch.float32, 0.0),
        ("transformer", torch.float64, 1e-12),  # in float32 they differ by its rounding, 1e-6
    ],
    indirect=["architecture"],
)
def test_zeros_are_the_state_before_the_first_token(architecture, make, dtype, tolerance):
    model = make(5)
    bilm, ids = model.bilm().to(dtype), model.ids(SENTENCES)
    close(bilm(ids, state=bilm.initial_state(len(ids))).layers, bilm(ids).layers, tolerance)


def test_the_state_is_left_out_where_it_is_not_asked_for(architecture, make):
    model = make(5)
    ids = model.ids(SENTENCES)
    output = model.bilm()(ids, with_state=False)
    assert output.state is None
    close(output.layers, model.bilm()(ids).layers, architecture.same)


NOTHING = torch.zeros(1)


@pytest.mark.parametrize(
    ("architecture", "change", "message"),
    [
        (
            "lstm",
            lambda bilm, state: bilm.initial_state(3),
            r"state.hidden is \(3, 2, 3, 8\), this batch needs \(3, 2, 2, 8\)",
        ),
        (
            "lstm",
            lambda bilm, state: state._replace(hidden=state.hidden[:2]),
            r"state.hidden is \(2, 2, 2, 8\), this batch needs \(3, 2, 2, 8\)",
        ),
        (
            "lstm",
            lambda bilm, state: state._replace(cell=state.cell[..., :8]),
            r"state.cell is \(3, 2, 2, 8\), this batch needs \(3, 2, 2, 16\)",
        ),
        ("lstm", lambda bilm, state: AttentionState(NOTHING, NOTHING, NOTHING), "state must be a BiLMState"),
        (
            "lstm",
            lambda bilm, state: BiLMState(state.hidden.double(), state.cell),
            "state.hidden is torch.float64 on cpu, the model torch.float32 on cpu",
        ),
        (
            "transformer",
            lambda bilm, state: bilm.initial_state(3),
            r"state.past_keys is \(3, 2, 3, 5, 8\), this batch needs \(3, 2, 2, 5, 8\)",
        ),
        ("transformer", lambda bilm, state: BiLMState(NOTHING, NOTHING), "state must be a AttentionState"),
        (
            "transformer",
            lambda bilm, state: state._replace(past_keys=state.past_keys.double()),
            "state.past_keys is torch.float64 on cpu, the model torch.float32 on cpu",
        ),
    ],
    indirect=["architecture"],
    ids=["batch", "layers", "width", "architecture", "dtype", "batch", "architecture", "dtype"],
)
def test_a_state_of_another_shape_dtype_or_architecture_is_refused_by_name(model, bilm, change, message):
    with pytest.raises(ValueError, match=message):
        bilm(model.ids(SENTENCES[:2]), state=change(bilm, bilm.initial_state(2)))


# ---- invariance -----------------------------------------------------------------------------------------------------


def test_a_sentence_has_the_same_vectors_in_a_batch_of_one_and_in_any_batch(architecture, model, bilm, alone):
    assert_same_sentences(bilm(model.ids(SENTENCES)), SENTENCES, alone, architecture.near)
    for other in SENTENCES:
        pair = [SENTENCES[0], other]
        assert_same_sentences(bilm(model.ids(pair)), pair, alone, architecture.near)


@given(order=st.permutations(SENTENCES), again=st.integers(0, 2))
def test_a_sentence_embeds_the_same_in_any_order(architecture, model, bilm, alone, order, again):
    shuffled = order + order[:again]
    assert_same_sentences(bilm(model.ids(shuffled)), shuffled, alone, architecture.near)


@pytest.mark.parametrize("columns", [1, 2, 17])
def test_a_sentence_embeds_the_same_under_more_padding(architecture, model, bilm, alone, columns):
    padded = torch.nn.functional.pad(model.ids(SENTENCES), (0, 0, 0, columns))
    output = bilm(padded)
    assert_same_sentences(output, SENTENCES, alone, architecture.near)
    assert output.layers.shape[2] == padded.shape[1]


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 12])
@pytest.mark.parametrize("words_at_once", [None, 1, 3])
def test_a_sentence_embeds_the_same_in_blocks(architecture, model, bilm, alone, monkeypatch, steps, words_at_once):
    before = bilm(model.ids(SENTENCES)).state
    architecture.limit_steps(monkeypatch, bilm, steps, len(SENTENCES))
    if words_at_once is not None:
        monkeypatch.setitem(encoder.WORDS_AT_ONCE, "cpu", words_at_once)
    output = bilm(model.ids(SENTENCES))
    assert_same_sentences(output, SENTENCES, alone, architecture.near)
    states_close(output.state, before, architecture.near)


def test_state_carries_through_blocks(architecture, model, bilm, monkeypatch):
    ids = model.ids(SENTENCES)
    start = bilm(ids).state
    whole = bilm(ids.flip(0), state=start)
    architecture.limit_steps(monkeypatch, bilm, 2, len(ids))
    blocks = bilm(ids.flip(0), state=start)
    close(blocks.layers, whole.layers, architecture.near)
    states_close(blocks.state, whole.state, architecture.near)


@pytest.mark.parametrize(
    ("architecture", "variant"),
    [
        *of("lstm", {}),
        *of("transformer", {"attention_window": 2}, {"attention_window": 6}, {"attention_window": 40}),
    ],
    indirect=["architecture"],
    ids=str,
)
def test_a_text_that_is_read_in_blocks_has_the_vectors_of_the_complete_text(architecture, make, variant):
    bilm = make(7, **architecture.sizes | variant).bilm().double()
    tokens = torch.randn(30, 2, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)  # (T, B, P)
    complete, after = bilm.run_layers(tokens.expand(2, -1, -1, -1), torch.tensor([30, 30]), None)
    state, parts = None, []
    for begin, end in [(0, 7), (7, 8), (8, 19), (19, 30)]:
        # each direction reads its own text: the backward one from the end
        part = torch.stack([tokens[begin:end], tokens[30 - end : 30 - begin]])
        layers, state = bilm.run_layers(part, torch.tensor([end - begin] * 2), state)
        parts.append(layers)
    for number, expected in enumerate(complete):
        close(torch.cat([layers[number][0] for layers in parts]), expected[0], 1e-10)
        close(torch.cat([layers[number][1] for layers in parts[::-1]]), expected[1], 1e-10)
    states_close(state, after, 1e-10)


@pytest.mark.parametrize("keep_boundaries", [False, True])
def test_outputs_at_padding_are_exactly_zero(model, bilm, keep_boundaries):
    output = bilm(model.ids(SENTENCES), keep_boundaries=keep_boundaries)
    assert output.mask.sum(dim=1).tolist() == [len(sentence) + 2 * keep_boundaries for sentence in SENTENCES]
    assert not output.layers[:, ~output.mask].any()
    assert output.layers[:, output.mask].abs().sum(dim=-1).all()


def test_parameters_are_those_of_the_module_in_its_order(bilm):
    assert [id(one) for one in parameters_of(bilm)] == [id(one) for one in bilm.parameters()]


@pytest.mark.parametrize("keep_boundaries", [False, True])
def test_rows_without_padding_need_no_mask(bilm, keep_boundaries):
    tokens = torch.randn(7, 3, bilm.config.projection_dim)  # (T, B, P)
    expected, found = (
        bilm.contextualize(tokens, torch.full((3,), 7), keep_boundaries=keep_boundaries, padded=padded)
        for padded in (True, False)
    )
    assert torch.equal(found.layers, expected.layers)
    assert torch.equal(found.mask, expected.mask)
    assert all(torch.equal(a, b) for a, b in zip(found.state, expected.state, strict=True))


def test_boundary_tokens_are_kept_where_asked(model, bilm):
    ids = model.ids(SENTENCES)
    whole, bare = bilm(ids, keep_boundaries=True), bilm(ids)
    assert whole.layers.shape[2] == bare.layers.shape[2] + 2
    for row, sentence in enumerate(SENTENCES):
        assert torch.equal(whole.layers[:, row, 1 : len(sentence) + 1], bare.layers[:, row, : len(sentence)])
        # a sentence's own "<S>" is spelled as the boundary is
        close(whole.layers[0, row, 0], whole.layers[0, 4, 5], 1e-6)


def test_layer_0_is_the_token_vector_twice(model, bilm):
    layer = bilm(model.ids(SENTENCES)).layers[0]
    assert torch.equal(layer[..., :8], layer[..., 8:])
    assert torch.equal(layer[0, 1], layer[2, 4])  # "bank", at any position
    assert not torch.equal(layer[0, 1], layer[0, 0])
    close(layer[0, 1, :8], bilm.embed_words(model.ids([["bank"]])[0])[0], 1e-6)


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (1, 0), (2, 0), (2, 3)])
@pytest.mark.parametrize("word_level", [False, True])
def test_batches_without_tokens_have_outputs_without_tokens(architecture, make, shape, word_level):
    model = make(**(architecture.word_level if word_level else {}))
    bilm = model.bilm()
    width = 2 * bilm.config.projection_dim
    rows, steps = shape
    ids = torch.zeros(*shape, *(() if word_level else (50,)), dtype=torch.long)
    output = bilm(ids)
    assert output.layers.shape == (3, rows, steps, width)
    assert output.mask.shape == shape
    assert not output.layers.any()
    assert not output.mask.any()
    assert [part.shape for part in output.state] == architecture.state_shapes(model, rows)
    whole = bilm(ids, keep_boundaries=True)
    assert whole.layers.shape == (3, rows, steps + 2, width)
    for row in range(rows):
        close(whole.layers[:, row, :2], model.expected([]).with_boundaries, 1e-5)
        architecture.assert_state(model, output.state, row, model.expected([]), 1e-5)


def test_int32_ids_read_as_int64_ids_do(architecture, model, bilm):
    ids = model.ids(SENTENCES)
    close(bilm(ids.int()).layers, bilm(ids).layers, architecture.same)


# ---- causality ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("architecture", "variant"),
    [*of("lstm", {}), *of("transformer", {"attention_window": 3}, {"attention_window": 20})],
    indirect=["architecture"],
    ids=str,
)
@pytest.mark.parametrize("k", range(9))
def test_forward_does_not_see_later_tokens_nor_backward_earlier_ones(architecture, make, k, variant):
    bilm = make(7, **architecture.sizes | variant).bilm()
    tokens = torch.randn(9, 1, 8, generator=torch.Generator().manual_seed(k))  # (T, B, P)
    later, earlier = tokens.clone(), tokens.clone()
    later[k + 1 :] += 1.0
    earlier[:k] += 1.0
    layers, with_later, with_earlier = (
        bilm.contextualize(vectors, torch.tensor([9]), keep_boundaries=True).layers[:, 0]
        for vectors in (tokens, later, earlier)
    )
    close(layers[:, : k + 1, :8], with_later[:, : k + 1, :8], architecture.same)
    close(layers[:, k:, 8:], with_earlier[:, k:, 8:], architecture.same)
    # layer 0 depends on its own token only; the others on the tokens of their side
    assert torch.equal(layers[0, k], with_later[0, k])
    assert torch.equal(layers[0, k], with_earlier[0, k])
    if k < 8:
        assert ((layers[1:, k, 8:] - with_later[1:, k, 8:]).abs().amax(dim=-1) > architecture.far).all()
    if k > 0:
        assert ((layers[1:, k, :8] - with_earlier[1:, k, :8]).abs().amax(dim=-1) > architecture.far).all()


def test_causality_holds_from_words_on(model, bilm):
    beginning = ["We", "sat", "by", "the", "bank"]
    one, other = [*beginning, "of", "the", "river"], [*beginning, "and", "our", "money"]
    first, second = (bilm(model.ids([sentence])).layers[:, 0] for sentence in (one, other))
    close(first[:, :5, :8], second[:, :5, :8], 1e-6)
    backward = [bilm(model.ids([sentence[::-1]])).layers[:, 0] for sentence in (one, other)]
    close(backward[0][:, 3:, 8:], backward[1][:, 3:, 8:], 1e-6)
    assert (first[1:, 4, 8:] - second[1:, 4, 8:]).abs().amax() > 1e-3


# ---- learning -------------------------------------------------------------------------------------------------------


def test_all_parameters_of_the_bilm_learn(make):
    model = make(2)
    bilm = model.bilm().train().requires_grad_(True)
    bilm(model.ids(SENTENCES)).layers.square().sum().backward()
    for name, parameter in bilm.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.any(), name
