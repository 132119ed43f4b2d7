"""An ELMo over transformer blocks: every method that takes a model takes it, and files keep it."""

import copy
import pickle

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import reference
import reference_transformer
from elmokit import ELMo, Vocabulary
from elmokit.cli.main import main
from elmokit.network import BiLM, OutputLayer
from elmokit.storage.bounds import num_weights
from transformer_models import random_transformer

SENTENCES = [
    ["The", "bank", "lent", "money", "to", "the", "mill", "."],
    ["Yes"],
    ["We", "sat", "by", "the", "bank", "of", "the", "river", ",", "café", "naïve", "日本語"],
    [],
    ["bank", "bank", "bank"],
]
WORDS = [reference.START, reference.END, reference.UNKNOWN, "the", "bank", "of", "money", "river", "mill", "lent", "."]


def close(given, expected, tolerance=1e-5):
    """Same shape, and nowhere farther apart than `tolerance`."""
    given, expected = (torch.as_tensor(np.asarray(values).copy()).double() for values in (given, expected))
    torch.testing.assert_close(given, expected, rtol=0.0, atol=tolerance)


@pytest.fixture(scope="module")
def model():
    return random_transformer(2, num_layers=3, attention_window=6)


@pytest.fixture(scope="module")
def elmo(model):
    """A language model: a transformer with an output layer and a vocabulary."""
    torch.manual_seed(1)
    return ELMo(model.bilm(), output_layer=OutputLayer(len(WORDS), 8), vocabulary=Vocabulary(WORDS))


# ---- vectors --------------------------------------------------------------------------------------------------------


def test_embed_returns_every_layer_of_the_reference(model, elmo):
    assert (elmo.num_layers, elmo.dim) == (4, 16)
    for sentence, vectors in zip(SENTENCES, elmo.embed(SENTENCES, layers="all"), strict=True):
        close(vectors, model.expected(sentence).layers)


@pytest.mark.parametrize("layers", ["average", "top", 0, 2, -1])
def test_a_choice_of_layers_is_that_of_all_layers(elmo, layers):
    every = elmo.embed(SENTENCES, layers="all")
    number = {"top": -1}.get(layers, layers)
    for vectors, all_layers in zip(elmo.embed(SENTENCES, layers=layers), every, strict=True):
        close(vectors, all_layers.mean(axis=0) if layers == "average" else all_layers[number])


def test_the_slot_is_the_forward_state_before_a_word_and_the_backward_state_after_it(model, elmo):
    for sentence, slots in zip(SENTENCES, elmo.embed(SENTENCES, layers="slot"), strict=True):
        top = model.expected(sentence).with_boundaries[-1]
        close(slots, np.concatenate([top[:-2, :8], top[2:, 8:]], axis=1))


def test_the_slot_does_not_depend_on_the_word_in_it(elmo):
    one, other = elmo.embed([["the", "bank", "lent"], ["the", "mill", "lent"]], layers="slot")
    close(one[1], other[1], 1e-6)
    assert np.abs(one[0] - other[0]).max() > 1e-3


def test_senses_similarity_and_sentence_vectors_work(elmo):
    vectors = elmo.embed(["the bank of the river"], layers="sense")
    assert vectors[0].shape == (5, 16)
    assert np.isfinite(vectors[0]).all()
    assert np.isfinite(elmo.similarity("the bank lent money", "the bank of the river", word="bank"))
    assert elmo.encode(["the bank .", "money"]).shape == (2, 16)
    assert elmo.senses("bank", ["the bank lent money .", "the bank of the river ."] * 3).senses


# ---- state ----------------------------------------------------------------------------------------------------------


def test_carried_state_gives_what_the_reference_gives_with_carried_state(model):
    elmo = ELMo(model.bilm(), state="carry")
    pasts = [None] * 4
    batches = [SENTENCES[:4], SENTENCES[1:3], SENTENCES[::-1][:4]]  # a shorter batch keeps the state of the other rows
    for batch in batches:
        for row, (sentence, vectors) in enumerate(zip(batch, elmo.embed(batch, layers="all"), strict=True)):
            run = model.expected(sentence, past=pasts[row])
            close(vectors, run.layers)
            pasts[row] = run.past
    elmo.reset_state()
    close(elmo.embed([SENTENCES[0]], layers="all")[0], model.expected(SENTENCES[0]).layers)


def test_forward_carries_state_as_embed_does(model):
    one, other = (ELMo(model.bilm(), state="carry", num_mixes=1) for _ in range(2))
    for _ in range(3):
        layers = one(one.to_ids(SENTENCES)).layers
        for row, vectors in enumerate(other.embed(SENTENCES, layers="all")):
            close(layers[:, row, : len(SENTENCES[row])], vectors)


def test_the_carried_state_takes_the_memory_of_the_window(model):
    elmo = ELMo(model.bilm(), state="carry")
    for _ in range(5):
        elmo.embed([["word"] * 200])
    state = elmo._runner._carried
    assert state.past_keys.shape == (3, 2, 1, 5, 8)
    assert state.num_past.tolist() == [[[5]]]


# ---- language model -------------------------------------------------------------------------------------------------


def test_log_probabilities_are_those_of_the_reference(model, elmo):
    sentences = [["the", "bank", "of", "the", "river", "."], ["nonsense"], ["money"] * 9]
    weight, bias = (parameter.detach().numpy() for parameter in elmo.output_layer.parameters())
    expected = reference_transformer.log_probs(model.sizes, model.arrays, sentences, weight, bias, WORDS)
    for scores, known in zip(elmo.log_probs(sentences), expected, strict=True):
        close([*scores.forward, scores.forward_end], known.forward)
        close([scores.backward_end, *scores.backward], known.backward)
    assert elmo.perplexity(sentences).both == pytest.approx(reference.perplexity(expected), rel=1e-5)


def test_substitutes_are_the_likeliest_words_of_a_slot(elmo):
    words = elmo.substitutes("the [bank] of the river", k=3)
    assert len(words) == 3
    assert {substitute.word for substitute in words} <= set(WORDS[3:])


# ---- training -------------------------------------------------------------------------------------------------------


def test_gradients_reach_the_mixes_and_only_the_layers_that_are_not_frozen(model):
    elmo = ELMo(model.bilm(), num_mixes=1, freeze=True)
    ids = elmo.to_ids(SENTENCES)
    elmo(ids).mixes[0].sum().backward()
    assert elmo.mixes[0].weights.grad is not None
    assert all(parameter.grad is None for parameter in elmo.bilm.parameters())
    elmo.unfreeze(from_layer=2)
    elmo(ids).mixes[0].sum().backward()
    trained = {name for name, parameter in elmo.bilm.named_parameters() if parameter.grad is not None}
    matrices = ("attention_input", "attention_output", "feedforward_input", "feedforward_output")
    assert trained == {f"layers.{block}.{name}" for block in (1, 2) for name in matrices}


def test_a_trained_model_and_a_frozen_one_have_the_same_vectors(model):
    frozen, trained = ELMo(model.bilm()), ELMo(model.bilm(), freeze=False)
    ids = frozen.to_ids(SENTENCES)
    close(frozen(ids).layers, trained(ids).layers.detach(), 5e-6)


def test_changed_weights_change_the_vectors(model):
    elmo = ELMo(model.bilm())
    before = elmo.embed(SENTENCES[:1])[0]
    elmo.bilm.layers[0].attention_output.data.mul_(2.0)
    assert np.abs(elmo.embed(SENTENCES[:1])[0] - before).max() > 1e-3


# ---- files ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "tolerance"), [(None, 0.0), ("float16", 0.02), ("int8", 0.5)])
def test_a_folder_keeps_the_model(elmo, tmp_path, dtype, tolerance):
    elmo.save_pretrained(tmp_path / "model", dtype=dtype)
    loaded = ELMo.from_pretrained(tmp_path / "model")
    assert loaded.config == elmo.config
    for one, other in zip(loaded.embed(SENTENCES, layers="all"), elmo.embed(SENTENCES, layers="all"), strict=True):
        close(one, other, tolerance)
    assert (loaded.digest() == elmo.digest()) == (dtype is None)
    assert "3 transformer blocks" in (tmp_path / "model" / "README.md").read_text()
    if dtype == "int8":  # what was int8 once is the same int8 again
        loaded.save_pretrained(tmp_path / "again", dtype=dtype)
        assert (tmp_path / "again/model.safetensors").read_bytes() == (
            tmp_path / "model/model.safetensors"
        ).read_bytes()


def test_the_official_format_is_refused_and_nothing_is_written(elmo, tmp_path):
    with pytest.raises(ValueError, match='the official format holds LSTM layers, this model has architecture "transf'):
        elmo.export_hdf5(tmp_path / "official")
    assert not (tmp_path / "official").exists()


def test_the_command_line_describes_and_converts_a_transformer(elmo, tmp_path):
    elmo.save_pretrained(tmp_path / "model")
    told = CliRunner().invoke(main, ["info", str(tmp_path / "model")])
    assert told.exit_code == 0, told.output
    assert "attention window" in told.output
    assert "cell" not in told.output
    done = CliRunner().invoke(main, ["convert", str(tmp_path / "model"), str(tmp_path / "small"), "--dtype", "int8"])
    assert done.exit_code == 0, done.output
    done = CliRunner().invoke(main, ["convert", str(tmp_path / "model"), str(tmp_path / "copy")])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "copy" / "model.safetensors").exists()
    refused = CliRunner().invoke(main, ["convert", str(tmp_path / "model"), str(tmp_path / "h5"), "--to", "official"])
    assert refused.exit_code != 0
    assert "LSTM layers" in refused.output


def test_the_number_of_weights_is_known_before_the_network_is_built(model):
    for variant in ({}, {"num_words": 12}, {"char_projection": False}, {"num_heads": 1, "feedforward_dim": 3}):
        bilm = random_transformer(1, **variant).bilm()
        assert num_weights(bilm.config) == sum(parameter.numel() for parameter in bilm.parameters())


def test_a_copy_and_a_pickle_have_the_same_vectors(elmo):
    for same in (copy.deepcopy(elmo), pickle.loads(pickle.dumps(elmo))):
        close(same.embed(SENTENCES[:1])[0], elmo.embed(SENTENCES[:1])[0], 1e-6)


# ---- int8 -----------------------------------------------------------------------------------------------------------


def test_int8_is_near_float32_and_the_same_alone_and_in_any_batch(tmp_path):
    torch.manual_seed(0)
    sizes = random_transformer(2, num_layers=3, projection_dim=64, feedforward_dim=96, num_heads=2)
    ELMo(BiLM(sizes.bilm().config)).save_pretrained(tmp_path)
    single, int8 = ELMo.from_pretrained(tmp_path), ELMo.from_pretrained(tmp_path, quantize="int8")
    together = int8.embed(SENTENCES, layers="all")
    for sentence, vectors, expected in zip(SENTENCES, together, single.embed(SENTENCES, layers="all"), strict=True):
        close(int8.embed([sentence], layers="all")[0], vectors, 1e-5)
        if sentence:
            cosine = (vectors * expected).sum(-1) / np.linalg.norm(vectors, axis=-1) / np.linalg.norm(expected, axis=-1)
            assert cosine.min() > 0.999
    with pytest.raises(ValueError, match="int8"):
        int8.unfreeze()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_a_model_in_another_dtype_embeds(elmo, tmp_path, dtype):
    elmo.save_pretrained(tmp_path)
    other = ELMo.from_pretrained(tmp_path, dtype=dtype)
    for one, two in zip(other.embed(SENTENCES), elmo.embed(SENTENCES), strict=True):
        close(one, two, 0.02 if dtype == torch.float16 else 1e-5)
