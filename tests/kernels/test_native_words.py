"""Words in C against the encoder in PyTorch."""

from __future__ import annotations

import pytest
import torch

from elmokit.kernels import cpu
from elmokit.kernels.cpu import native
from elmokit.network import CharacterEncoder
from elmokit.network.int8 import Int8Linear

# no number of channels is a multiple of a register, or all are; a filter as wide as a word
SIZES = [
    {"char_dim": 5, "filters": [(1, 3), (2, 65), (7, 20)], "projection_dim": 9, "max_characters": 12},
    {"char_dim": 16, "filters": [(1, 32), (3, 96), (4, 64)], "projection_dim": 64, "max_characters": 20},
    {"char_dim": 1, "filters": [(4, 1)], "projection_dim": None, "max_characters": 4},
]
NUM_CHARACTERS = 40


@pytest.fixture
def wide():
    if not native.is_wide():
        pytest.skip("the library is not compiled, or this processor has no AVX-512 with VNNI")


def an_encoder(sizes, *, activation="relu", num_highways=1, form="float"):
    torch.manual_seed(1)
    encoder = CharacterEncoder(
        **sizes, activation=activation, num_highways=num_highways, num_characters=NUM_CHARACTERS
    ).requires_grad_(False)
    for convolution in encoder.convolutions:
        convolution.weight.normal_()
        convolution.bias.normal_()
    linear = [(highway, name) for highway in encoder.highways for name in ("transform", "carry")]
    linear += [(encoder, "projection")] if encoder.projection is not None else []
    for parent, name in linear:
        layer = getattr(parent, name)
        layer.bias.normal_()
        if form == "integers":
            scales = (layer.weight.abs().amax(dim=1, keepdim=True) / 127).bfloat16().float()
            layer.weight.copy_((layer.weight / scales).round().clamp(-127, 127) * scales)
        if form == "int8":
            setattr(parent, name, Int8Linear(layer))
    return encoder


def words_of(encoder, num_words):
    """Ids of words of all lengths: some are full, some are pads only, and some have the id of a missing character."""
    generator = torch.Generator().manual_seed(num_words)
    width, pad = encoder.max_characters, encoder.shifted_pad
    ids = torch.randint(0, NUM_CHARACTERS, (num_words, width), generator=generator)
    lengths = torch.arange(num_words) % (width + 1)
    return torch.where(torch.arange(width) < lengths.unsqueeze(1), ids, pad)


def in_pytorch(encoder, ids, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(CharacterEncoder, "_for_native", lambda self: None)
        return encoder(ids)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("num_highways", [0, 1, 2])
@pytest.mark.parametrize("form", ["float", "integers"])
def test_words_have_the_vectors_that_pytorch_computes(wide, monkeypatch, sizes, activation, num_highways, form):
    encoder = an_encoder(sizes, activation=activation, num_highways=num_highways, form=form)
    for num_words in (0, 1, 2, 5, 49, 300):
        ids = words_of(encoder, num_words)
        torch.testing.assert_close(encoder(ids), in_pytorch(encoder, ids, monkeypatch), atol=1e-5, rtol=1e-5)
        assert torch.equal(encoder(ids.int()), encoder(ids))


@pytest.mark.parametrize("sizes", SIZES[:2])
def test_int8_words_have_the_vectors_that_pytorch_computes(wide, monkeypatch, sizes):
    encoder = an_encoder(sizes, num_highways=2, form="int8")
    ids = words_of(encoder, 60)
    # the last bit of a maximum can move a rounded value by a step
    torch.testing.assert_close(encoder(ids), in_pytorch(encoder, ids, monkeypatch), atol=0.05, rtol=0.02)


@pytest.mark.parametrize("form", ["float", "integers", "int8"])
@pytest.mark.parametrize("sizes", SIZES)
def test_a_word_is_equal_to_the_bit_alone_and_among_any_others(wide, sizes, form):
    encoder = an_encoder(sizes, num_highways=2, form=form)
    ids = words_of(encoder, 300)
    together = encoder(ids)
    for word in (0, 1, 5, 47, 48, 149, 150, 299):
        assert torch.equal(encoder(ids[word : word + 1])[0], together[word])
    assert torch.equal(encoder(ids[100:117]), together[100:117])


def test_words_are_divided_among_the_threads_of_the_caller(wide, monkeypatch):
    monkeypatch.setattr(native, "WORK_OF_A_THREAD", 1)
    encoder = an_encoder(SIZES[1])
    ids = words_of(encoder, 71)
    expected, before = encoder(ids), torch.get_num_threads()
    for num_threads in (1, 6):
        torch.set_num_threads(num_threads)
        try:
            assert torch.equal(encoder(ids), expected)
        finally:
            torch.set_num_threads(before)


def test_a_value_that_is_not_finite_is_not_hidden(wide):
    encoder = an_encoder(SIZES[0])
    ids = words_of(encoder, 9)
    ids[:, 0], ids[4, 0] = 1, 2
    encoder.char_embedding[1] = float("nan")  # of id 2
    found = encoder(ids)
    assert found[4].isnan().all()
    assert found[:4].isfinite().all()
    encoder.convolutions[1].bias[64] = float("nan")
    assert encoder(ids).isnan().all()


def test_an_id_outside_the_table_is_not_looked_up(wide):
    encoder = an_encoder(SIZES[0])
    for wrong in (-1, NUM_CHARACTERS + 1):
        ids = words_of(encoder, 3)
        ids[1, 2] = wrong
        with pytest.raises(IndexError, match=rf"{wrong}\b.*{NUM_CHARACTERS}"):
            encoder(ids)


def test_new_weights_are_used(wide):
    encoder = an_encoder(SIZES[1])
    ids = words_of(encoder, 5)
    before = encoder(ids)
    for parameter in encoder.parameters():
        kept = parameter.clone()
        parameter.add_(1.0)
        assert not torch.equal(encoder(ids), before)
        parameter.copy_(kept)
    assert torch.equal(encoder(ids), before)


def test_the_encoder_runs_in_pytorch_with_gradients_and_without_the_library(wide, monkeypatch):
    encoder = an_encoder(SIZES[1])
    ids = words_of(encoder, 5)
    called = []
    monkeypatch.setattr(cpu, "encode_words", lambda *arguments: called.append(arguments))
    encoder.requires_grad_(True)
    encoder(ids)
    with torch.autocast("cpu"), torch.no_grad():
        encoder(ids)
    monkeypatch.setattr(native, "library", lambda: None)
    with torch.no_grad():
        encoder(ids)
    assert not called
