"""The biLM of LSTM layers against tests/reference.py: every variant, characters, gradients, the mix, bad input."""

import json
import math

import h5py
import numpy as np
import pytest
import torch
from architectures import LSTM, SENTENCES, assert_equals_reference, assert_same_sentences, close, each_alone
from hypothesis import given
from hypothesis import strategies as st

import reference
from elmokit import kernels
from elmokit.config import BiLMConfig
from elmokit.kernels import LSTMState, LSTMWeights, eager
from elmokit.network import BiLM, CharacterEncoder, ScalarMix, find_device, lstm
from elmokit.network.rows import distinct_rows
from elmokit.storage.official import read_official
from elmokit.text import batch_to_ids

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
    assert_equals_reference(LSTM, official_model(1, **variant), SENTENCES)


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
    assert_equals_reference(LSTM, official_model(seed, **variant), sentences)


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
        assert torch.equal(bilm(model.ids(SENTENCES)).layers, model.bilm()(model.ids(SENTENCES)).layers)


def test_the_published_sizes_have_the_published_number_of_parameters():
    for config, expected in [
        (BiLMConfig(), 93_600_848),
        (BiLMConfig(cell_dim=2048, projection_dim=256, num_highways=1), 28_027_728),
        (BiLMConfig(cell_dim=1024, projection_dim=128, num_highways=1), 13_593_296),
    ]:
        with torch.device("meta"):
            assert sum(parameter.numel() for parameter in BiLM(config).parameters()) == expected


# ---- steps at once, and pauses ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(official_model):
    return official_model(7, **LSTM.sizes)


@pytest.fixture(scope="module")
def bilm(model):
    return model.bilm()


def test_a_limit_below_one_step_still_runs_one_step_at_a_time(model, bilm, monkeypatch):
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
    assert_same_sentences(output, [SENTENCES[0]], each_alone(model, bilm), LSTM.near)


def test_a_sentence_embeds_the_same_with_pauses_in_which_others_run(model, bilm):
    calls = []

    def pause():
        calls.append(bilm(model.ids([SENTENCES[1][:2]])).layers)

    with lstm.pausing(pause, 4):
        output = bilm(model.ids(SENTENCES))
    longest = max(map(len, SENTENCES)) + 2
    assert len(calls) == bilm.config.num_layers * math.ceil(longest / 4)
    assert_same_sentences(output, SENTENCES, each_alone(model, bilm), LSTM.near)
    close(calls[-1], bilm(model.ids([SENTENCES[1][:2]])).layers, 1e-6)
    assert len(calls) == bilm.config.num_layers * math.ceil(longest / 4), "no pauses after that"


# ---- characters -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_trimming_of_characters_changes_nothing(official_model, monkeypatch, activation):
    filters = ((1, 6), (2, 6), (3, 6), (7, 30))
    model = official_model(11, filters=filters, activation=activation, highways=0)
    encoder = model.bilm().double().char_encoder
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
    assert_equals_reference(LSTM, model, [["a"], ["abc", "x" * 47]])


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
        official_model(word_level=True).bilm()(ids)


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
