"""The transformer biLM against tests/reference_transformer.py: every size, its window, memory, gradients."""

import numpy as np
import pytest
import torch
from architectures import SENTENCES, Transformer, assert_equals_reference, close, states_close
from hypothesis import given, settings
from hypothesis import strategies as st

import reference_transformer
from elmokit import kernels
from elmokit.config import BiLMConfig
from elmokit.kernels import cpu, eager
from elmokit.kernels.cpu import native
from elmokit.network import AttentionState, BiLM
from transformer_models import random_transformer


@pytest.fixture(scope="module")
def model():
    return random_transformer(7, **Transformer.sizes)


@pytest.fixture(scope="module")
def bilm(model):
    return model.bilm()


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
    assert_equals_reference(Transformer, random_transformer(1, **variant), SENTENCES)


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
    assert_equals_reference(Transformer, model, sentences)


def test_both_directions_in_one_product_equal_the_packed_products_of_each():
    model = random_transformer(2, attention_window=4)
    bilm, ids = model.bilm(), model.ids(SENTENCES)
    packed = bilm(ids)
    with kernels.forced(eager):
        batched = bilm(ids)
    close(packed.layers, batched.layers, 1e-5)
    states_close(packed.state, batched.state, 1e-5)


# ---- the window ------------------------------------------------------------------------------------------------------


def test_keys_and_values_that_are_no_tokens_are_not_read():
    model = random_transformer(5)
    bilm, ids = model.bilm().double(), model.ids(SENTENCES)
    state = bilm.initial_state(len(ids))
    garbage = AttentionState(state.past_keys + 7.0, state.past_values - 9.0, state.num_past)
    close(bilm(ids, state=garbage).layers, bilm(ids).layers, 1e-12)


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


# ---- lengths, gradients, precision -----------------------------------------------------------------------------------


def test_every_layer_has_one_length(model, bilm):
    layers = bilm(model.ids([SENTENCES[0], SENTENCES[2]])).layers
    lengths = layers[:, 1].unflatten(-1, (2, 8)).norm(dim=-1)
    close(lengths, torch.full_like(lengths, 8**0.5), 1e-3)


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
