"""The biLM against tests/reference.py, and what must not change its numbers: batches, padding, blocks, later words."""

import json
import math

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import reference
from elmokit import kernels
from elmokit.config import BiLMConfig
from elmokit.kernels import LSTMState, LSTMWeights, eager
from elmokit.network import BiLM, BiLMState, CharacterEncoder, ScalarMix, encoder, find_device, lstm, parameters_of
from elmokit.network.rows import distinct_rows
from elmokit.storage.official import read_official
from elmokit.text import batch_to_ids

SENTENCES = [
    ["The", "bank", "lent", "money", "to", "the", "mill", "."],
    ["Yes"],
    ["We", "sat", "by", "the", "bank", "of", "the", "river", ",", "café", "naïve", "日本語"],
    [],
    ["x" * 70, "", "</S>", "a", "<S>", "<UNK>", "\x00"],
    ["bank", "bank", "bank"],
]


def load(model):
    """The BiLM of an OfficialModel."""
    config, weights = read_official(model.options_path, model.weights_path)
    bilm = BiLM(config)
    bilm.load_state_dict(weights)
    return bilm.eval().requires_grad_(False)


def close(given, expected, tolerance):
    """Same shape, and nowhere farther apart than `tolerance`."""
    given, expected = (torch.as_tensor(np.asarray(values)).double() for values in (given, expected))
    torch.testing.assert_close(given, expected, rtol=0.0, atol=tolerance)


def assert_equals_reference(model, sentences, *, single=1e-5, double=1e-10):
    """The whole batch, in float32 and in float64, layers and state, with and without boundary tokens."""
    expected = [model.expected(sentence) for sentence in sentences]
    bilm = load(model)
    for dtype, tolerance in [(torch.float32, single), (torch.float64, double)]:
        bilm = bilm.to(dtype)  # the weights are float32 numbers, so float64 holds them exactly
        bare = bilm(model.ids(sentences))
        whole = bilm(model.ids(sentences), keep_boundaries=True)
        for row, (sentence, run) in enumerate(zip(sentences, expected, strict=True)):
            close(bare.layers[:, row, : len(sentence)], run.layers, tolerance)
            close(whole.layers[:, row, : len(sentence) + 2], run.with_boundaries, tolerance)
            for (which, layer), (hidden, cell) in run.state.items():
                close(bare.state.hidden[layer, which, row], hidden, tolerance)
                close(bare.state.cell[layer, which, row], cell, tolerance)


# ---- the reference --------------------------------------------------------------------------------------------------


def test_the_reference_itself_gives_the_published_activations(golden):
    options = json.loads((golden / "options.json").read_text(encoding="utf-8"))
    with h5py.File(golden / "lm_weights.hdf5") as file:
        names = []
        file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
        arrays = {name: file[name][()] for name in names}
    streams = json.loads((golden / "sentences.json").read_text(encoding="utf-8"))
    for k, stream in enumerate(streams):
        state = None
        with h5py.File(golden / f"lm_embeddings_{k}.hdf5") as file:
            for position, sentence in enumerate(stream):
                run = reference.bilm(options, arrays, sentence.split(), state=state)
                state = run.state
                published = np.concatenate(list(file[str(position)][()]), axis=-1)  # (T, 2P)
                np.testing.assert_allclose(run.layers[-1], published, atol=1e-6, rtol=1e-5)


def test_both_clips_have_an_effect_in_a_fraction_of_the_random_models(official_model):
    model = official_model(3, layers=1)
    runs = [model.expected(sentence) for sentence in SENTENCES]
    cells = np.concatenate([cell for run in runs for _, cell in run.state.values()])
    outputs = np.concatenate([run.with_boundaries[1].ravel() for run in runs])
    assert 0.05 < (np.abs(cells) == 0.6).mean() < 0.95
    assert 0.05 < (np.abs(outputs) == 0.4).mean() < 0.95


def test_the_reference_s_log_probabilities_are_those_of_its_layers(official_model):
    model = official_model(word_level=True)
    rng = np.random.default_rng(0)
    weight, bias = rng.standard_normal((12, 5)), rng.standard_normal(12)
    sentence = ["word1", "word7", "nonsense"]
    (found,) = reference.log_probs(model.options, model.arrays, [sentence], weight, bias, model.vocabulary)
    top = model.expected(sentence).with_boundaries[-1]  # (T+2, 2P)
    ids = [0, 4, 10, 2, 1]
    for k in range(1, 5):
        scores = np.exp(weight @ top[k - 1, :5] + bias)
        assert found.forward[k - 1] == pytest.approx(np.log(scores[ids[k]] / scores.sum()))
    for k in range(4):
        scores = np.exp(weight @ top[k + 1, 5:] + bias)
        assert found.backward[k] == pytest.approx(np.log(scores[ids[k]] / scores.sum()))
    mean = (found.forward.sum() + found.backward.sum()) / 8
    assert reference.perplexity([found]) == pytest.approx(np.exp(-mean))


# ---- every variant --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "variant",
    [
        {},
        {"skip": False},
        {"skip": False, "layers": 3},
        {"layers": 3},
        {"layers": 1},
        {"activation": "tanh"},
        {"highways": 0},
        {"highways": 3},
        {"char_projection": False},
        {"char_projection": False, "highways": 0, "activation": "tanh"},
        {"projection_dim": 8},  # the filters' channels sum to 8 too, and there is a projection nevertheless
        {"cell_clip": None},
        {"proj_clip": None},
        {"cell_clip": None, "proj_clip": None},
        {"max_characters": 9},
        {"word_level": True},
        {"word_level": True, "skip": False, "layers": 1, "cell_clip": None},
    ],
    ids=lambda variant: " ".join(f"{name}={value}" for name, value in variant.items()) or "published",
)
def test_every_published_variant_equals_the_reference(official_model, variant):
    assert_equals_reference(official_model(1, **variant), SENTENCES)


clips = st.sampled_from([None, 0.3, 0.6, 3.0])
variants = st.fixed_dictionaries(
    {
        "skip": st.booleans(),
        "activation": st.sampled_from(["relu", "tanh"]),
        "highways": st.integers(0, 3),
        "char_projection": st.booleans(),
        "layers": st.integers(1, 3),
        "word_level": st.sampled_from([False, False, False, True]),
        "cell_clip": clips,
        "proj_clip": clips,
        "filters": st.lists(st.tuples(st.integers(1, 6), st.integers(1, 4)), min_size=1, max_size=3).map(tuple),
        "char_dim": st.integers(1, 4),
        "projection_dim": st.integers(1, 6),
        "cell_dim": st.integers(1, 8),
        "max_characters": st.sampled_from([6, 11, 50]),
        "num_words": st.integers(3, 9),
    }
)
words = st.one_of(st.text(max_size=8), st.sampled_from(["word0", "word3", "the", "<S>", "x" * 60]))
batches = st.lists(st.lists(words, max_size=5), min_size=1, max_size=3)


@given(seed=st.integers(0, 2**32 - 1), variant=variants, sentences=batches)
def test_any_variant_of_any_size_equals_the_reference(official_model, seed, variant, sentences):
    assert_equals_reference(official_model(seed, **variant), sentences)


@given(sentences=batches, max_characters=st.sampled_from([3, 6, 50]))
def test_the_package_encodes_words_as_the_reference_does(sentences, max_characters):
    options = {"char_cnn": {"max_characters_per_token": max_characters}}
    expected = reference.shifted_ids(options, sentences)
    assert np.array_equal(batch_to_ids(sentences, max_characters=max_characters).numpy(), expected)


def test_weights_are_taken_without_a_copy_by_a_model_without_memory(official_model):
    model = official_model(1)
    config, weights = read_official(model.options_path, model.weights_path)
    with torch.device("meta"):
        bilm = BiLM(config)
    bilm.load_weights(weights)
    for name, parameter in bilm.named_parameters():
        assert parameter.data_ptr() == weights[name].data_ptr()
    with torch.no_grad():
        assert torch.equal(bilm(model.ids(SENTENCES)).layers, load(model)(model.ids(SENTENCES)).layers)


def test_the_published_sizes_have_the_published_number_of_parameters():
    for config, expected in [
        (BiLMConfig(), 93_600_848),
        (BiLMConfig(cell_dim=2048, projection_dim=256, num_highways=1), 28_027_728),
        (BiLMConfig(cell_dim=1024, projection_dim=128, num_highways=1), 13_593_296),
    ]:
        with torch.device("meta"):
            assert sum(parameter.numel() for parameter in BiLM(config).parameters()) == expected


# ---- state ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", [{}, {"skip": False, "layers": 3}, {"word_level": True}], ids=str)
def test_carried_state_gives_what_the_reference_gives_with_carried_state(official_model, variant):
    model = official_model(5, **variant)
    bilm = load(model)
    later = SENTENCES[2:] + SENTENCES[:2]
    first = bilm(model.ids(SENTENCES))
    second = bilm(model.ids(later), state=first.state)
    for row in range(len(SENTENCES)):
        expected = model.expected(later[row], state=model.expected(SENTENCES[row]).state)
        close(second.layers[:, row, : len(later[row])], expected.layers, 1e-5)
        for (which, layer), (hidden, cell) in expected.state.items():
            close(second.state.hidden[layer, which, row], hidden, 1e-5)
            close(second.state.cell[layer, which, row], cell, 1e-5)


def test_a_call_keeps_no_state_and_does_not_change_its_argument(official_model):
    model = official_model(5)
    bilm = load(model)
    ids = model.ids(SENTENCES)
    first = bilm(ids)
    kept = BiLMState(first.state.hidden.clone(), first.state.cell.clone())
    bilm(ids, state=first.state)
    again = bilm(ids)
    assert torch.equal(first.layers, again.layers)
    assert torch.equal(first.state.hidden, kept.hidden)
    assert torch.equal(first.state.cell, kept.cell)


def test_zeros_are_the_state_before_the_first_token(official_model):
    model = official_model(5)
    bilm = load(model)
    ids = model.ids(SENTENCES)
    assert torch.equal(bilm(ids, state=bilm.initial_state(len(ids))).layers, bilm(ids).layers)


# ---- invariance -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(official_model):
    return official_model(7, layers=3, filters=((1, 4), (3, 5), (7, 6)), projection_dim=8, cell_dim=16)


@pytest.fixture(scope="module")
def bilm(model):
    return load(model)


def assert_same_sentences(output, sentences, expected):
    """`output` holds at each row what `expected` (a dict by sentence) says, and nothing elsewhere."""
    for row, sentence in enumerate(sentences):
        close(output.layers[:, row, : len(sentence)], expected[tuple(sentence)], 1e-6)
        assert output.mask[row].tolist() == [t < len(sentence) for t in range(output.mask.shape[1])]


@pytest.fixture(scope="module")
def alone(model, bilm):
    """Each sentence's layers, run by itself."""
    return {tuple(sentence): bilm(model.ids([sentence])).layers[:, 0] for sentence in SENTENCES}


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
@pytest.mark.parametrize("words_at_once", [1, 3])
def test_a_sentence_embeds_the_same_in_blocks(model, bilm, alone, monkeypatch, steps, words_at_once):
    before = bilm(model.ids(SENTENCES)).state
    gates = 2 * 4 * bilm.config.cell_dim * len(SENTENCES)
    monkeypatch.setattr(lstm, "GATES_AT_ONCE", {"cpu": steps * gates})
    monkeypatch.setitem(encoder.WORDS_AT_ONCE, "cpu", words_at_once)
    output = bilm(model.ids(SENTENCES))
    assert_same_sentences(output, SENTENCES, alone)
    close(output.state.hidden, before.hidden, 1e-6)
    close(output.state.cell, before.cell, 1e-6)


def test_a_limit_below_one_step_still_runs_one_step_at_a_time(model, bilm, alone, monkeypatch):
    calls = []
    real = eager.lstm

    def counting(inputs, *arguments, **settings):
        calls.append(inputs.shape[1])
        return real(inputs, *arguments, **settings)

    monkeypatch.setattr(eager, "lstm", counting)
    monkeypatch.setattr(lstm, "GATES_AT_ONCE", {"cpu": 1})
    with kernels.forced(eager):
        output = bilm(model.ids([SENTENCES[0]]))
    assert calls == [1] * 3 * (len(SENTENCES[0]) + 2)
    assert_same_sentences(output, [SENTENCES[0]], alone)


def test_a_sentence_embeds_the_same_with_pauses_in_which_others_run(model, bilm, alone):
    calls = []

    def pause():
        calls.append(bilm(model.ids([SENTENCES[1][:2]])).layers)

    with lstm.pausing(pause, 4):
        output = bilm(model.ids(SENTENCES))
    longest = max(map(len, SENTENCES)) + 2
    assert len(calls) == bilm.config.num_layers * math.ceil(longest / 4)
    assert_same_sentences(output, SENTENCES, alone)
    close(calls[-1], bilm(model.ids([SENTENCES[1][:2]])).layers, 1e-6)
    assert len(calls) == bilm.config.num_layers * math.ceil(longest / 4), "no pauses after that"


def test_state_carries_through_blocks(model, bilm, monkeypatch):
    ids = model.ids(SENTENCES)
    start = bilm(ids).state
    whole = bilm(ids.flip(0), state=start)
    monkeypatch.setattr(lstm, "GATES_AT_ONCE", {"cpu": 2 * 2 * 4 * bilm.config.cell_dim * len(ids)})
    blocks = bilm(ids.flip(0), state=start)
    close(blocks.layers, whole.layers, 1e-6)
    close(blocks.state.hidden, whole.state.hidden, 1e-6)
    close(blocks.state.cell, whole.state.cell, 1e-6)


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


# ---- causality ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", range(9))
def test_forward_does_not_see_later_tokens_nor_backward_earlier_ones(bilm, k):
    tokens = torch.randn(9, 1, 8, generator=torch.Generator().manual_seed(k))  # (T, B, P)
    later, earlier = tokens.clone(), tokens.clone()
    later[k + 1 :] += 1.0
    earlier[:k] += 1.0
    layers, with_later, with_earlier = (
        bilm.contextualize(vectors, torch.tensor([9]), keep_boundaries=True).layers[:, 0]
        for vectors in (tokens, later, earlier)
    )
    assert torch.equal(layers[:, : k + 1, :8], with_later[:, : k + 1, :8])
    assert torch.equal(layers[:, k:, 8:], with_earlier[:, k:, 8:])
    # layer 0 depends on its own token only; the others on all tokens on their side
    assert torch.equal(layers[0, k], with_later[0, k])
    assert torch.equal(layers[0, k], with_earlier[0, k])
    if k < 8:
        assert (layers[1:, k, 8:] != with_later[1:, k, 8:]).any(dim=-1).all()
    if k > 0:
        assert (layers[1:, k, :8] != with_earlier[1:, k, :8]).any(dim=-1).all()


def test_causality_holds_from_words_on(model, bilm):
    beginning = ["We", "sat", "by", "the", "bank"]
    one, other = [*beginning, "of", "the", "river"], [*beginning, "and", "our", "money"]
    first, second = (bilm(model.ids([sentence])).layers[:, 0] for sentence in (one, other))
    close(first[:, :5, :8], second[:, :5, :8], 1e-6)
    backward = [bilm(model.ids([sentence[::-1]])).layers[:, 0] for sentence in (one, other)]
    close(backward[0][:, 3:, 8:], backward[1][:, 3:, 8:], 1e-6)
    assert (first[1:, 4, 8:] - second[1:, 4, 8:]).abs().amax() > 1e-3


# ---- characters -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_trimming_of_characters_changes_nothing(official_model, monkeypatch, activation):
    filters = ((1, 6), (2, 6), (3, 6), (7, 30))
    model = official_model(11, filters=filters, activation=activation, highways=0)
    encoder = load(model).double().char_encoder
    lone = [torch.from_numpy(reference.shifted_ids(model.options, [["é" * (n % 2) + "w" * n]]))[0] for n in range(61)]
    trimmed = [encoder(ids) for ids in lone]
    together = encoder(torch.cat(lone))
    assert encoder.trim(lone[0]).shape == (1, 2 + 7)
    assert encoder.trim(torch.cat(lone)).shape == (61, 50)
    monkeypatch.setattr(CharacterEncoder, "trim", lambda self, char_ids: char_ids)
    for n, ids in enumerate(lone):
        close(trimmed[n], encoder(ids), 1e-12)
        close(together[n : n + 1], encoder(ids), 1e-12)


def test_a_window_of_pads_only_can_be_the_maximum(official_model):
    model = official_model(highways=0, filters=((1, 2), (3, 4)))
    model.arrays["char_embed"][reference.PAD] = 2.0
    model.arrays["CNN/W_cnn_1"][:] = 0.3
    reference.write_official(model.options_path.parent, model.options, model.arrays)
    assert_equals_reference(model, [["a"], ["abc", "x" * 47]])


@pytest.mark.parametrize("columns", [(), (1,), (50,)])
def test_distinct_rows_are_those_of_torch_unique(columns):
    ids = torch.randint(3 if columns else 40, (200, *columns), generator=torch.Generator().manual_seed(0))
    ids = torch.cat([ids, ids[::3]])
    distinct, inverse = distinct_rows(ids)
    assert torch.equal(distinct[inverse], ids)
    expected = torch.unique(ids, dim=0)
    assert torch.equal(torch.unique(distinct, dim=0), expected)
    assert len(distinct) == len(expected)


def test_words_whose_hashes_collide_are_still_told_apart(monkeypatch):
    # with all factors equal the hash is a sum, and anagrams collide
    monkeypatch.setattr(torch, "randint", lambda high, size, **_: torch.zeros(size, dtype=torch.int64))
    ids = torch.tensor([[1, 2, 3], [3, 2, 1], [1, 2, 3], [2, 2, 2], [9, 9, 9]])
    distinct, inverse = distinct_rows(ids)
    assert torch.equal(distinct[inverse], ids)
    assert len(distinct) == 4


def test_no_words_have_no_distinct_rows():
    distinct, inverse = distinct_rows(torch.zeros(0, 50, dtype=torch.long))
    assert distinct.shape == (0, 50)
    assert inverse.shape == (0,)


def test_each_distinct_word_is_encoded_once(model, bilm, monkeypatch):
    seen = []
    real = bilm.char_encoder.forward
    monkeypatch.setattr(bilm.char_encoder, "forward", lambda ids: seen.append(len(ids)) or real(ids))
    bilm(model.ids([["a", "b", "a"], ["b", "c"]]))
    assert seen == [2 + 3]  # the boundaries, and a, b, c


def test_no_words_have_no_vectors(bilm):
    assert bilm.char_encoder(torch.zeros(0, 50, dtype=torch.long)).shape == (0, 8)


# ---- the LSTM's gradients -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cell_clip", "proj_clip"), [(0.5, 0.1), (None, None), (0.5, None), (None, 0.1)])
def test_the_lstm_has_the_right_gradients(cell_clip, proj_clip):
    D, T, B, P, C = 2, 3, 4, 2, 2
    generator = torch.Generator().manual_seed(1)

    def normal(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()

    inputs, hidden, cell = normal(D, T, B, P), normal(D, B, P), normal(D, B, C)
    weights = LSTMWeights(normal(D, P, 4 * C), normal(D, P, 4 * C), normal(D, 4 * C), normal(D, C, P))
    lengths = torch.tensor([[3, 1, 0, 2], [2, 3, 1, 0]])

    def run(inputs, hidden, cell, *weights):
        state = LSTMState(hidden, cell)
        outputs, state = eager.lstm(
            inputs, lengths, LSTMWeights(*weights), state, cell_clip=cell_clip, proj_clip=proj_clip
        )
        return outputs, *state

    outputs, _, cells = run(inputs, hidden, cell, *weights)
    live = torch.arange(T)[:, None] < lengths[:, None]  # (D, T, B)
    assert not outputs[~live].any()
    moved = cells[lengths > 0]
    if cell_clip is not None:
        assert 0.1 < (moved.abs() == cell_clip).double().mean() < 0.9
    if proj_clip is not None:
        assert 0.1 < (outputs[live].abs() == proj_clip).double().mean() < 0.9
    assert torch.autograd.gradcheck(run, (inputs, hidden, cell, *weights))


def test_a_row_without_steps_keeps_its_state_and_layers_without_steps_have_no_output():
    weights = LSTMWeights(torch.randn(2, 2, 12), torch.randn(2, 2, 12), torch.randn(2, 12), torch.randn(2, 3, 2))
    state = LSTMState(torch.randn(2, 3, 2), torch.randn(2, 3, 3))
    lengths = torch.zeros(2, 3, dtype=torch.long)
    for steps in (0, 2):
        outputs, after = eager.lstm(
            torch.randn(2, steps, 3, 2), lengths, weights, state, cell_clip=None, proj_clip=None
        )
        assert outputs.shape == (2, steps, 3, 2)
        assert not outputs.any()
        assert torch.equal(after.hidden, state.hidden)
        assert torch.equal(after.cell, state.cell)


def test_all_parameters_of_the_bilm_learn(official_model):
    model = official_model(2)
    bilm = load(model).train().requires_grad_(True)
    bilm(model.ids(SENTENCES)).layers.square().sum().backward()
    for name, parameter in bilm.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.any(), name


# ---- the mix --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_the_mix_equals_the_reference(layer_norm, dtype, tolerance):
    rng = np.random.default_rng(0)
    layers = rng.standard_normal((3, 4, 5, 6)) * 2 + 1
    mask = np.arange(5) < np.array([5, 2, 0, 3])[:, None]
    mix = ScalarMix(3, layer_norm=layer_norm).to(dtype)
    weights, gamma = rng.standard_normal(3), 1.7
    with torch.no_grad():
        mix.weights.copy_(torch.from_numpy(weights))
        mix.gamma.fill_(gamma)
        mixed = mix(torch.from_numpy(layers).to(dtype), torch.from_numpy(mask))
    close(mixed, reference.scalar_mix(layers, mask, weights, gamma, layer_norm), tolerance)


def test_the_mix_starts_as_the_even_mean():
    layers = torch.randn(3, 2, 4, 6, generator=torch.Generator().manual_seed(0))
    close(ScalarMix(3)(layers, torch.ones(2, 4, dtype=torch.bool)).detach(), layers.mean(dim=0), 1e-6)


def test_padding_has_no_part_in_the_layer_norm():
    layers = torch.randn(2, 2, 4, 6, generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[True, True, False, False], [True, True, True, False]])
    noisy = torch.where(mask[None, :, :, None], layers, 1000.0)
    mix = ScalarMix(2, layer_norm=True).requires_grad_(False)
    assert torch.equal(mix(layers, mask)[mask], mix(noisy, mask)[mask])


def test_the_regularization_is_the_sum_of_squares_of_the_weights_only():
    mix = ScalarMix(3).requires_grad_(False)
    mix.weights.copy_(torch.tensor([1.0, -2.0, 3.0]))
    mix.gamma.fill_(9.0)
    assert mix.l2() == 14.0


def test_a_mix_of_another_number_of_layers_is_refused():
    with pytest.raises(ValueError, match="this mix has weights for 3 layers, not 2"):
        ScalarMix(3)(torch.zeros(2, 1, 1, 4), torch.ones(1, 1, dtype=torch.bool))


# ---- odd and bad input ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (2, 0), (2, 3)])
@pytest.mark.parametrize("word_level", [False, True])
def test_batches_without_tokens_have_outputs_without_tokens(official_model, shape, word_level):
    model = official_model(word_level=word_level)
    bilm = load(model)
    rows, steps = shape
    ids = torch.zeros(*shape, *(() if word_level else (50,)), dtype=torch.long)
    output = bilm(ids)
    assert output.layers.shape == (3, rows, steps, 10)
    assert output.mask.shape == shape
    assert not output.layers.any()
    assert not output.mask.any()
    assert output.state.hidden.shape == (2, 2, rows, 5)
    whole = bilm(ids, keep_boundaries=True)
    assert whole.layers.shape == (3, rows, steps + 2, 10)
    for row in range(rows):
        close(whole.layers[:, row, :2], model.expected([]).with_boundaries, 1e-5)


def test_int32_ids_read_as_int64_ids_do(model, bilm):
    ids = model.ids(SENTENCES)
    assert torch.equal(bilm(ids.int()).layers, bilm(ids).layers)


def characters(*shape, value=1):
    return torch.full((*shape, 50), value, dtype=torch.long)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (torch.ones(2, 3, dtype=torch.long), r"ids are \(2, 3\), this model reads \(B, T, 50\)"),
        (torch.ones(3, 50, dtype=torch.long), r"ids are \(3, 50\), this model reads \(B, T, 50\)"),
        (torch.ones(1, 2, 3, 50, dtype=torch.long), r"ids are \(1, 2, 3, 50\), this model reads \(B, T, 50\)"),
        (torch.ones(1, 2, 49, dtype=torch.long), r"ids are \(1, 2, 49\), this model reads \(B, T, 50\)"),
        (characters(1, 2).float(), r"ids are torch.float32, not torch.int64"),
        (characters(1, 2).bool(), r"ids are torch.bool, not torch.int64"),
        (characters(1, 2, value=262), "ids run from 262 to 262, this model reads 0 to 261"),
        (characters(1, 2, value=-1), "ids run from -1 to -1, this model reads 0 to 261"),
        (torch.cat([characters(1, 1, value=0), characters(1, 1)], dim=1), "padding before a token"),
        (torch.cat([characters(1, 1), characters(1, 1, value=0), characters(1, 1)], dim=1), "padding before a token"),
    ],
)
def test_bad_character_ids_are_refused_by_name(bilm, ids, message):
    with pytest.raises(ValueError, match=message):
        bilm(ids)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([[1] * 50], r"ids must be a tensor, .* not \[\[1, 1, 1, 1, 1, 1, \.\.\.\]\] \(list\)"),
        (characters(1, 2), r"ids are \(1, 2, 50\), this model reads \(N, 50\)"),
        (torch.ones(3, 49, dtype=torch.long), r"ids are \(3, 49\), this model reads \(N, 50\)"),
        (characters(2).float(), r"ids are torch.float32, not torch.int64"),
        (characters(2).to_sparse(), r"ids are torch.sparse_coo, not torch.strided"),
        (characters(2, value=262), "ids run from 262 to 262, this model reads 0 to 261"),
        (characters(2, value=-1), "ids run from -1 to -1, this model reads 0 to 261"),
    ],
)
def test_bad_ids_of_words_are_refused_by_name(bilm, ids, message):
    with pytest.raises(ValueError, match=message):
        bilm.embed_words(ids)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (torch.ones(2, dtype=torch.long), r"ids are \(2,\), this model reads \(B, T\)"),
        (characters(1, 2), r"ids are \(1, 2, 50\), this model reads \(B, T\)"),
        (torch.tensor([[1, 13]]), "ids run from 1 to 13, this model reads 0 to 12"),
        (torch.tensor([[1, -2]]), "ids run from -2 to 1, this model reads 0 to 12"),
        (torch.tensor([[0, 1]]), "padding before a token"),
    ],
)
def test_bad_word_ids_are_refused_by_name(official_model, ids, message):
    with pytest.raises(ValueError, match=message):
        load(official_model(word_level=True))(ids)


def test_a_state_of_another_shape_is_refused_by_name(model, bilm):
    ids = model.ids(SENTENCES[:2])
    hidden, cell = bilm.initial_state(2)
    for state, message in [
        (bilm.initial_state(3), r"state.hidden is \(3, 2, 3, 8\), this batch needs \(3, 2, 2, 8\)"),
        (BiLMState(hidden[:2], cell), r"state.hidden is \(2, 2, 2, 8\), this batch needs \(3, 2, 2, 8\)"),
        (BiLMState(hidden, cell[..., :8]), r"state.cell is \(3, 2, 2, 8\), this batch needs \(3, 2, 2, 16\)"),
    ]:
        with pytest.raises(ValueError, match=message):
            bilm(ids, state=state)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_fresh_weights_follow_the_published_recipe(activation):
    torch.manual_seed(0)
    config = BiLMConfig(cell_dim=40, projection_dim=64, activation=activation, filters=((1, 32), (5, 256)))
    bilm = BiLM(config).requires_grad_(False)
    encoder = bilm.char_encoder
    assert encoder.char_embedding.abs().max() <= 1.0
    assert encoder.char_embedding.std() == pytest.approx(3**-0.5, rel=0.1)
    wide = encoder.convolutions[1].weight
    if activation == "relu":
        assert wide.abs().max() <= 0.05
    else:
        assert wide.std() == pytest.approx((5 * 16) ** -0.5, rel=0.1)
    for highway in encoder.highways:
        assert (highway.carry.bias == -2.0).all()
        assert highway.transform.weight.std() == pytest.approx(288**-0.5, rel=0.1)
    assert encoder.projection.weight.std() == pytest.approx(288**-0.5, rel=0.1)
    for layer in bilm.layers:
        assert layer.input_weight.abs().max() <= (6 / (2 * 64 + 4 * 40)) ** 0.5
        assert layer.projection.abs().max() <= (6 / (40 + 64)) ** 0.5
        assert not layer.bias.any()


class LongerThanItSays(list):
    def __len__(self) -> int:
        return 10**6


@pytest.mark.parametrize("device", [["cpu"], LongerThanItSays(["cpu"]), 1, b"cpu", {"cpu"}])
def test_a_device_is_a_name(device):
    with pytest.raises(ValueError, match='device must be "cpu", "cuda", "cuda:1" or "auto", not '):
        find_device(device)
