"""`quantized`: a new biLM with int8 matrices, close to the original, which stays as it was."""

import copy
import hashlib
import pickle

import pytest
import torch
from torch import nn

from elmokit.config import BiLMConfig
from elmokit.kernels import LSTMState
from elmokit.network import BiLM, ProjectedLSTM, lstm
from elmokit.network.int8 import Int8Linear, Int8LSTM, quantized

CHARACTERS = BiLMConfig(char_dim=4, filters=((1, 8), (2, 8)), num_highways=2, cell_dim=32, projection_dim=16)
WORDS = BiLMConfig(num_words=20, cell_dim=32, projection_dim=16)
LEXICON = BiLMConfig(
    num_lexicon_characters=5, num_lexicon_words=7, word_dim=6, filters=((1, 8),), cell_dim=32, projection_dim=16
)
CONFIGS = pytest.mark.parametrize("config", [CHARACTERS, WORDS, LEXICON], ids=["characters", "words", "lexicon"])


def random_bilm(config):
    torch.manual_seed(0)
    return BiLM(config).eval()


def random_ids(bilm, *, num_rows=3, num_tokens=5):
    columns = bilm.config.id_columns
    shape = (num_rows, num_tokens) if columns is None else (num_rows, num_tokens, columns)
    ids = torch.randint(1, 6, shape, generator=torch.Generator().manual_seed(1))
    ids[1, 3:] = 0
    return ids


@CONFIGS
def test_the_int8_model_stays_close_to_the_original(config):
    bilm = random_bilm(config)
    ids = random_ids(bilm)
    with torch.no_grad():
        exact, rounded = bilm(ids), quantized(bilm)(ids)
    assert torch.equal(exact.mask, rounded.mask)
    cosines = torch.cosine_similarity(exact.layers, rounded.layers, dim=-1)[:, exact.mask]
    assert cosines.min() > 0.99
    assert not torch.equal(exact.layers[1:], rounded.layers[1:])
    assert not rounded.layers[:, ~rounded.mask].any()


@CONFIGS
def test_the_original_stays_as_it_was_and_shares_what_is_not_rounded(config):
    bilm = random_bilm(config)
    digest = bilm.digest()
    rounded = quantized(bilm)
    assert bilm.digest() == digest
    assert not bilm.is_int8
    assert all(parameter.requires_grad for parameter in bilm.parameters())
    assert not any(isinstance(module, nn.Linear | ProjectedLSTM) for module in rounded.modules())
    shared = [n for n, p in rounded.named_parameters() if not n.startswith("layers.")]
    own = dict(bilm.named_parameters())
    assert all(rounded.get_parameter(name).data_ptr() == own[name].data_ptr() for name in shared)
    assert bool(shared)


def test_the_int8_model_is_not_trained_and_has_a_digest_of_its_own():
    bilm = random_bilm(CHARACTERS)
    rounded = quantized(bilm)
    assert rounded.is_int8
    assert not any(parameter.requires_grad for parameter in rounded.parameters())
    assert rounded.digest() == hashlib.sha256(f"{bilm.digest()} as int8".encode()).hexdigest()
    assert (rounded.training, quantized(bilm.train()).training) == (False, True)


def test_copies_of_an_int8_model_compute_the_same():
    rounded = quantized(random_bilm(CHARACTERS))
    ids = random_ids(rounded)
    expected = rounded(ids).layers
    for twin in (copy.deepcopy(rounded), pickle.loads(pickle.dumps(rounded))):
        assert torch.equal(twin(ids).layers, expected)
        assert twin.digest() == rounded.digest()


@pytest.mark.parametrize("steps_at_once", [1, 2, 3])
def test_an_int8_layer_gives_the_same_in_blocks_of_steps(monkeypatch, steps_at_once):
    generator = torch.Generator().manual_seed(2)
    layer = Int8LSTM(random_bilm(CHARACTERS).layers[0])
    inputs = torch.randn(2, 7, 3, 16, generator=generator)
    state = LSTMState(torch.randn(2, 3, 16, generator=generator), torch.randn(2, 3, 32, generator=generator))
    lengths = torch.tensor([7, 2, 4])
    outputs, last = layer(inputs, lengths, state)
    monkeypatch.setattr(lstm, "GATES_AT_ONCE", {"cpu": steps_at_once * 3 * 8 * 32})
    in_blocks, last_in_blocks = layer(inputs, lengths, state)
    torch.testing.assert_close(in_blocks, outputs, atol=1e-6, rtol=0)
    torch.testing.assert_close(tuple(last_in_blocks), tuple(last), atol=1e-6, rtol=0)


def test_an_int8_linear_layer_multiplies_by_whole_steps_of_each_output():
    linear, x = nn.Linear(20, 6), torch.randn(4, 20)
    steps = linear.weight.detach().abs().amax(dim=1, keepdim=True) / 127
    row_steps = x.abs().amax(dim=1, keepdim=True) / 127
    rounded = torch.round(x / row_steps) * row_steps @ (torch.round(linear.weight.detach() / steps) * steps).t()
    torch.testing.assert_close(Int8Linear(linear)(x), rounded + linear.bias, atol=1e-5, rtol=0)


def test_a_model_that_is_not_on_a_cpu_is_refused():
    with pytest.raises(ValueError, match="int8 weights run on a CPU"):
        quantized(BiLM(CHARACTERS).to("meta"))
