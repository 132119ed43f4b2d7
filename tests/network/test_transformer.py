"""The transformer biLM against tests/reference_transformer.py, and what must not change its numbers."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import reference_transformer
from elmokit import kernels
from elmokit.config import BiLMConfig
from elmokit.kernels import cpu, eager
from elmokit.kernels.cpu import native
from elmokit.network import AttentionState, BiLM, BiLMState, transformer
from transformer_models import random_transformer

SENTENCES = [
    ["The", "bank", "lent", "money", "to", "the", "mill", "."],
    ["Yes"],
    ["We", "sat", "by", "the", "bank", "of", "the", "river", ",", "café", "naïve", "日本語"],
    [],
    ["x" * 70, "", "</S>", "a", "<S>", "<UNK>", "\x00"],
    ["bank", "bank", "bank"],
]


def close(given, expected, tolerance):
    """Same shape, and nowhere farther apart than `tolerance`."""
    given, expected = (torch.as_tensor(np.asarray(values)).double() for values in (given, expected))
    torch.testing.assert_close(given, expected, rtol=0.0, atol=tolerance)


def assert_past(state, row, past, sizes, tolerance):
    """The state's keys and values of a row are the reference's last ones, and nothing else counts."""
    num_kept = sizes["attention_window"] - 1
    for (which, block), seen in past.items():
        last = seen[-num_kept:] if num_kept else []
        assert state.num_past[0, 0, row] == len(last)
        for age, (key, value) in enumerate(reversed(last), 1):
            heads = [reference_transformer.norm(part) for part in np.split(key, sizes["num_heads"])]
            close(state.past_keys[block, which, row, -age], np.concatenate(heads), tolerance)
            close(state.past_values[block, which, row, -age], value, tolerance)


def assert_equals_reference(model, sentences, *, single=1e-5, double=1e-10):
    """The complete batch, in float32 and in float64, layers and state, with and without boundary tokens."""
    expected = [model.expected(sentence) for sentence in sentences]
    bilm = model.bilm()
    for dtype, tolerance in [(torch.float32, single), (torch.float64, double)]:
        bilm = bilm.to(dtype)  # the weights are float32 numbers, so float64 holds them exactly
        bare = bilm(model.ids(sentences))
        complete = bilm(model.ids(sentences), keep_boundaries=True)
        for row, (sentence, run) in enumerate(zip(sentences, expected, strict=True)):
            close(bare.layers[:, row, : len(sentence)], run.layers, tolerance)
            close(complete.layers[:, row, : len(sentence) + 2], run.with_boundaries, tolerance)
            assert_past(bare.state, row, run.past, model.sizes, tolerance)


# ---- the reference --------------------------------------------------------------------------------------------------


def test_the_attention_of_the_random_models_is_far_from_even_and_from_one_token(monkeypatch):
    largest, real = [], reference_transformer.attention_weights

    def measuring(query, keys):
        weights = real(query, keys)
        if len(keys) == 5:
            largest.append(weights.max())
        return weights

    monkeypatch.setattr(reference_transformer, "attention_weights", measuring)
    random_transformer(3, num_words=9).expected(["word1", "word2", "word3", "word4", "word5", "word0", "word2"])
    assert 0.3 < np.mean(largest) < 0.9


def test_the_reference_s_log_probabilities_are_those_of_its_layers():
    model = random_transformer(num_words=12)
    rng = np.random.default_rng(0)
    weight, bias = rng.standard_normal((12, 8)), rng.standard_normal(12)
    sentence = ["word1", "word7", "nonsense"]
    (found,) = reference_transformer.log_probs(
        model.sizes, model.arrays, [sentence], weight, bias, model.vocabulary, word_level=True
    )
    top = model.expected(sentence).with_boundaries[-1]  # (T+2, 2P)
    ids = [0, 4, 10, 2, 1]
    for k in range(1, 5):
        scores = np.exp(weight @ top[k - 1, :8] + bias)
        assert found.forward[k - 1] == pytest.approx(np.log(scores[ids[k]] / scores.sum()))
    for k in range(4):
        scores = np.exp(weight @ top[k + 1, 8:] + bias)
        assert found.backward[k] == pytest.approx(np.log(scores[ids[k]] / scores.sum()))


# ---- every size -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "variant",
    [
        {},
        {"num_layers": 1},
        {"num_layers": 5},
        {"num_heads": 1},
        {"num_heads": 4},
        {"attention_window": 1},
        {"attention_window": 2},
        {"attention_window": 14},
        {"attention_window": 100},
        {"feedforward_dim": 1},
        {"activation": "tanh", "num_highways": 0},
        {"char_projection": False},
        {"max_characters": 9},
        {"num_words": 12},
    ],
    ids=lambda variant: " ".join(f"{name}={value}" for name, value in variant.items()) or "published",
)
def test_every_variant_equals_the_reference(variant):
    assert_equals_reference(random_transformer(1, **variant), SENTENCES)


sizes = st.tuples(st.integers(1, 3), st.integers(1, 3))  # heads, half of their width
variants = st.fixed_dictionaries(
    {
        "num_layers": st.integers(1, 4),
        "sizes": sizes,
        "feedforward_dim": st.integers(1, 9),
        "attention_window": st.integers(1, 9),
        "num_highways": st.integers(0, 2),
        "num_words": st.sampled_from([None, None, 7]),
    }
)
words = st.one_of(st.text(max_size=6), st.sampled_from(["word0", "word3", "the", "<S>", "x" * 60]))
batches = st.lists(st.lists(words, max_size=7), min_size=1, max_size=3)


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1), variant=variants, sentences=batches)
def test_any_variant_of_any_size_equals_the_reference(seed, variant, sentences):
    num_heads, half = variant["sizes"]
    rest = {name: value for name, value in variant.items() if name != "sizes"}
    model = random_transformer(seed, num_heads=num_heads, projection_dim=2 * num_heads * half, **rest)
    assert_equals_reference(model, sentences)


def test_both_directions_in_one_product_equal_the_packed_products_of_each():
    model = random_transformer(2, attention_window=4)
    bilm, ids = model.bilm(), model.ids(SENTENCES)
    packed = bilm(ids)
    with kernels.forced(eager):
        batched = bilm(ids)
    close(packed.layers, batched.layers, 1e-5)
    for one, other in zip(packed.state, batched.state, strict=True):
        close(one, other, 1e-5)


# ---- state ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", [{}, {"attention_window": 1}, {"attention_window": 20}, {"num_words": 12}], ids=str)
def test_carried_state_gives_what_the_reference_gives_with_carried_state(variant):
    model = random_transformer(5, **variant)
    later, last = SENTENCES[2:] + SENTENCES[:2], SENTENCES[::-1]
    for dtype, tolerance in [(torch.float32, 1e-5), (torch.float64, 1e-10)]:
        bilm = model.bilm().to(dtype)
        first = bilm(model.ids(SENTENCES))
        second = bilm(model.ids(later), state=first.state)
        third = bilm(model.ids(last), state=second.state)
        for row in range(len(SENTENCES)):
            expected = model.expected(later[row], past=model.expected(SENTENCES[row]).past)
            close(second.layers[:, row, : len(later[row])], expected.layers, tolerance)
            assert_past(second.state, row, expected.past, model.sizes, tolerance)
            expected = model.expected(last[row], past=expected.past)
            close(third.layers[:, row, : len(last[row])], expected.layers, tolerance)


def test_a_call_keeps_no_state_and_does_not_change_its_argument():
    model = random_transformer(5)
    bilm, ids = model.bilm(), model.ids(SENTENCES)
    first = bilm(ids)
    kept = [part.clone() for part in first.state]
    bilm(ids, state=first.state)
    close(bilm(ids).layers, first.layers, 1e-6)
    assert all(torch.equal(one, other) for one, other in zip(first.state, kept, strict=True))


def test_zeros_are_the_state_before_the_first_token():
    model = random_transformer(5)
    bilm, ids = model.bilm().double(), model.ids(SENTENCES)  # in float32 they differ by its rounding, 1e-6
    close(bilm(ids, state=bilm.initial_state(len(ids))).layers, bilm(ids).layers, 1e-12)


def test_keys_and_values_that_are_no_tokens_are_not_read():
    model = random_transformer(5)
    bilm, ids = model.bilm().double(), model.ids(SENTENCES)
    state = bilm.initial_state(len(ids))
    garbage = AttentionState(state.past_keys + 7.0, state.past_values - 9.0, state.num_past)
    close(bilm(ids, state=garbage).layers, bilm(ids).layers, 1e-12)


def test_the_state_is_left_out_where_it_is_not_asked_for():
    model = random_transformer(5)
    ids = model.ids(SENTENCES)
    output = model.bilm()(ids, with_state=False)
    assert output.state is None
    close(output.layers, model.bilm()(ids).layers, 1e-6)


def test_a_state_of_another_batch_or_architecture_is_refused():
    bilm, ids = random_transformer(5).bilm(), random_transformer(5).ids(SENTENCES)
    with pytest.raises(ValueError, match=r"state.past_keys is \(2, 2, 3, 4, 8\), this batch needs \(2, 2, 6, 4, 8\)"):
        bilm(ids, state=bilm.initial_state(3))
    with pytest.raises(ValueError, match="state must be a AttentionState"):
        bilm(ids, state=BiLMState(torch.zeros(1), torch.zeros(1)))
    with pytest.raises(ValueError, match=r"state.past_keys is torch.float64 on cpu, the model torch.float32 on cpu"):
        bilm(ids, state=random_transformer(5).bilm().double().initial_state(6))


# ---- invariance -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model():
    return random_transformer(7, num_layers=3, projection_dim=8, feedforward_dim=16, attention_window=6)


@pytest.fixture(scope="module")
def bilm(model):
    return model.bilm()


@pytest.fixture(scope="module")
def alone(model, bilm):
    """Each sentence's layers, run by itself."""
    return {tuple(sentence): bilm(model.ids([sentence])).layers[:, 0] for sentence in SENTENCES}


def assert_same_sentences(output, sentences, expected):
    """`output` holds at each row what `expected` (a dict by sentence) says, and nothing elsewhere."""
    for row, sentence in enumerate(sentences):
        close(output.layers[:, row, : len(sentence)], expected[tuple(sentence)], 2e-6)
        assert output.mask[row].tolist() == [t < len(sentence) for t in range(output.mask.shape[1])]


def test_a_sentence_has_the_same_vectors_in_a_batch_of_one_and_in_any_batch(model, bilm, alone):
    assert_same_sentences(bilm(model.ids(SENTENCES)), SENTENCES, alone)
    for other in SENTENCES:
        pair = [SENTENCES[0], other]
        assert_same_sentences(bilm(model.ids(pair)), pair, alone)


@given(order=st.permutations(SENTENCES), again=st.integers(0, 2))
def test_a_sentence_embeds_the_same_in_any_order(model, bilm, alone, order, again):
    shuffled = order + order[:again]
    assert_same_sentences(bilm(model.ids(shuffled)), shuffled, alone)


@pytest.mark.parametrize("columns", [1, 2, 17])
def test_a_sentence_embeds_the_same_under_more_padding(model, bilm, alone, columns):
    padded = torch.nn.functional.pad(model.ids(SENTENCES), (0, 0, 0, columns))
    output = bilm(padded)
    assert_same_sentences(output, SENTENCES, alone)
    assert output.layers.shape[2] == padded.shape[1]


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 12])
def test_a_sentence_embeds_the_same_in_blocks(model, bilm, alone, monkeypatch, steps):
    before = bilm(model.ids(SENTENCES)).state
    monkeypatch.setattr(transformer, "TOKENS_AT_ONCE", {"cpu": steps * len(SENTENCES)})
    output = bilm(model.ids(SENTENCES))
    assert_same_sentences(output, SENTENCES, alone)
    for one, other in zip(output.state, before, strict=True):
        close(one, other, 2e-6)


@pytest.mark.parametrize("window", [2, 6, 40])
def test_a_text_that_is_read_in_blocks_has_the_vectors_of_the_complete_text(window):
    model = random_transformer(7, num_layers=3, attention_window=window)
    bilm = model.bilm().double()
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
    for one, other in zip(state, after, strict=True):
        close(one, other, 1e-10)


@pytest.mark.parametrize("in_c", [False, True])
def test_a_document_takes_memory_by_its_window_not_by_its_square(monkeypatch, in_c):
    if in_c and not native.is_wide():
        pytest.skip("the blocks are not compiled, or this processor has no AVX-512 with VNNI")
    model, known = random_transformer(7, attention_window=8), []
    attend, run = torch.nn.functional.scaled_dot_product_attention, cpu.run_blocks

    def attending(q, k, v, **options):
        known.append(k.shape[2])
        return attend(q, k, v, **options)

    def running(blocks, x, *arguments, **options):
        known.append(x.shape[1])
        return run(blocks, x, *arguments, **options)

    monkeypatch.setattr(native, "is_wide", lambda: in_c)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", attending)
    monkeypatch.setattr(cpu, "run_blocks", running)
    model.bilm()(model.ids([["word"] * 1000]))
    assert max(known) < 8 * 8


@pytest.mark.parametrize("keep_boundaries", [False, True])
def test_outputs_at_padding_are_exactly_zero(model, bilm, keep_boundaries):
    output = bilm(model.ids(SENTENCES), keep_boundaries=keep_boundaries)
    assert output.mask.sum(dim=1).tolist() == [len(sentence) + 2 * keep_boundaries for sentence in SENTENCES]
    assert not output.layers[:, ~output.mask].any()
    assert output.layers[:, output.mask].abs().sum(dim=-1).all()


@pytest.mark.parametrize("sentences", [[], [[]], [[], []]], ids=str)
def test_no_sentences_and_sentences_without_words_have_no_vectors(model, bilm, sentences):
    ids = torch.zeros(len(sentences), 0, 50, dtype=torch.long)
    output = bilm(ids)
    assert output.layers.shape == (4, len(sentences), 0, 16)
    assert output.state.num_past.tolist() == [[[2] * len(sentences)]]


def test_layer_0_is_the_token_vector_twice_and_every_layer_has_one_length(model, bilm):
    layers = bilm(model.ids([SENTENCES[0], SENTENCES[2]])).layers
    assert torch.equal(layers[0, ..., :8], layers[0, ..., 8:])
    assert torch.equal(layers[0, 0, 1], layers[0, 1, 4])  # "bank", at any position
    close(layers[0, 0, 1, :8], bilm.embed_words(model.ids([["bank"]])[0])[0], 1e-6)
    lengths = layers[:, 1].unflatten(-1, (2, 8)).norm(dim=-1)
    close(lengths, torch.full_like(lengths, 8**0.5), 1e-3)


# ---- causality ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [3, 20])
@pytest.mark.parametrize("k", range(9))
def test_forward_does_not_see_later_tokens_nor_backward_earlier_ones(k, window):
    bilm = random_transformer(7, num_layers=2, attention_window=window).bilm()
    tokens = torch.randn(9, 1, 8, generator=torch.Generator().manual_seed(k))  # (T, B, P)
    later, earlier = tokens.clone(), tokens.clone()
    later[k + 1 :] += 1.0
    earlier[:k] += 1.0
    layers, with_later, with_earlier = (
        bilm.contextualize(vectors, torch.tensor([9]), keep_boundaries=True).layers[:, 0]
        for vectors in (tokens, later, earlier)
    )
    close(layers[:, : k + 1, :8], with_later[:, : k + 1, :8], 1e-6)
    close(layers[:, k:, 8:], with_earlier[:, k:, 8:], 1e-6)
    # layer 0 depends on its own token only; the others on the tokens of their side
    assert torch.equal(layers[0, k], with_later[0, k])
    assert torch.equal(layers[0, k], with_earlier[0, k])
    if k < 8:
        assert ((layers[1:, k, 8:] - with_later[1:, k, 8:]).abs().amax(dim=-1) > 1e-4).all()
    if k > 0:
        assert ((layers[1:, k, :8] - with_earlier[1:, k, :8]).abs().amax(dim=-1) > 1e-4).all()


def test_causality_holds_from_words_on(model, bilm):
    beginning = ["We", "sat", "by", "the", "bank"]
    one, other = [*beginning, "of", "the", "river"], [*beginning, "and", "our", "money"]
    first, second = (bilm(model.ids([sentence])).layers[:, 0] for sentence in (one, other))
    close(first[:, :5, :8], second[:, :5, :8], 1e-6)
    backward = [bilm(model.ids([sentence[::-1]])).layers[:, 0] for sentence in (one, other)]
    close(backward[0][:, 3:, 8:], backward[1][:, 3:, 8:], 1e-6)
    assert (first[1:, 4, 8:] - second[1:, 4, 8:]).abs().amax() > 1e-3


def test_a_token_sees_as_far_as_all_windows_together_and_no_farther():
    window, num_layers = 3, 2
    bilm = random_transformer(7, num_layers=num_layers, attention_window=window).bilm().double()
    tokens = torch.randn(12, 1, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    reach = num_layers * (window - 1)
    for distance, is_seen in [(reach, True), (reach + 1, False)]:
        changed = tokens.clone()
        changed[11 - distance] += 1.0
        tops = [
            bilm.contextualize(vectors, torch.tensor([12]), keep_boundaries=True).layers[-1, 0, 11, :8]
            for vectors in (tokens, changed)
        ]
        assert ((tops[0] - tops[1]).abs().max() > 1e-9) == is_seen


# ---- gradients ------------------------------------------------------------------------------------------------------


def test_gradients_are_those_of_finite_differences():
    bilm = (
        random_transformer(4, num_layers=2, projection_dim=4, feedforward_dim=3, attention_window=3, num_words=5)
        .bilm()
        .double()
        .requires_grad_(True)
    )
    ids = torch.tensor([[2, 5, 4, 3, 4], [5, 1, 0, 0, 0]])

    def loss(*parameters):
        return torch.func.functional_call(bilm, dict(zip(names, parameters, strict=True)), (ids,)).layers.sin().sum()

    names, parameters = zip(*bilm.named_parameters(), strict=True)
    assert torch.autograd.gradcheck(loss, parameters, atol=1e-5)


def test_dropout_is_applied_to_the_tokens_and_to_each_half_of_a_block(model):
    bilm, shapes = model.bilm(), []

    def doubled(x):
        shapes.append(tuple(x.shape))
        return x * 2.0

    tokens = torch.randn(4, 3, 8).expand(2, -1, -1, -1)
    layers, _ = bilm.run_layers(tokens, torch.tensor([4] * 3), None, dropout=doubled)
    assert shapes == [(2, 4, 3, 8)] + [(2, 3, 4, 8)] * 6
    assert torch.equal(layers[0], tokens * 2.0)


def test_a_block_of_the_published_width_adds_little_at_first():
    torch.manual_seed(0)
    bilm = BiLM(BiLMConfig(architecture="transformer", projection_dim=64, num_heads=2, feedforward_dim=170,
                           num_layers=4, num_words=20, attention_window=16))  # fmt: skip
    tokens = bilm.embed_words(torch.arange(1, 21)).unsqueeze(1).detach()
    layers = bilm.contextualize(tokens, torch.tensor([20]), keep_boundaries=True).layers
    cosine = torch.cosine_similarity(layers[1:, 0], layers[0, 0], dim=-1).mean(dim=-1)
    assert (cosine > 0.5).all()
    assert (cosine.diff() < 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_near_single_precision(model, bilm, dtype):
    if dtype == torch.bfloat16 and not kernels.bfloat16_works():
        pytest.skip("bfloat16 products crash on this CPU")
    ids = model.ids(SENTENCES)
    half = model.bilm().to(dtype)(ids)
    assert half.layers.dtype == dtype
    close(half.layers.float(), bilm(ids).layers, 0.02 if dtype == torch.float16 else 0.15)
