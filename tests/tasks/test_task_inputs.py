"""The vectors of tokens that a task's network reads."""

import numpy as np
import pytest
import torch

from elmokit import ELMo
from elmokit.tasks.batches import on_device
from elmokit.tasks.inputs import Inputs, spell
from elmokit.tasks.vectors import FrozenLayers, load_static
from elmokit.text import Tokenizer


def make_inputs(**changes) -> Inputs:
    settings = {"words": ["rome", "oslo"], "word_dim": 3, "static": None, "char_dim": 5, "elmo": None, "dropout": 0.5}
    torch.manual_seed(0)
    return Inputs(**{**settings, **changes}).eval()


def test_a_token_has_the_same_vector_alone_and_in_any_batch(tiny_elmo, tmp_path, glove):
    elmo = ELMo.from_pretrained(tiny_elmo, num_mixes=2)
    sentences = [["Rome", "a"], [], ["extraordinarily", "oslo", "x", "Rome"], [""]]
    for source in (FrozenLayers(elmo, tmp_path), elmo):
        inputs = make_inputs(elmo=source, static=load_static(str(glove)))
        assert (inputs.input_dim, inputs.output_dim) == (3 + 3 + 5 + 16, 16)
        with torch.no_grad():
            together = inputs(sentences)
            assert together.x.shape == (4, 4, inputs.input_dim)
            assert together.mask.tolist() == [[i < len(tokens) for i in range(4)] for tokens in sentences]
            for row, tokens in enumerate(sentences):
                alone = inputs([tokens])
                torch.testing.assert_close(together.x[row, : len(tokens)], alone.x[0, : len(tokens)])
                torch.testing.assert_close(together.output[row, : len(tokens)], alone.output[0, : len(tokens)])
                assert not together.x[row, len(tokens) :].any()
        assert inputs([]).x.shape == (0, 1, inputs.input_dim)


def test_elmos_own_mixes_are_added_as_in_the_paper(tiny_elmo, tmp_path):
    elmo = ELMo.from_pretrained(tiny_elmo, num_mixes=2)
    inputs = make_inputs(elmo=FrozenLayers(elmo, tmp_path))
    with torch.no_grad():
        elmo.mixes[0].weights.copy_(torch.tensor([0.5, -1.0, 2.0]))
        elmo.mixes[1].gamma.fill_(3.0)
        embedded = inputs([["Rome", "again"]])
    layers = elmo.embed([["Rome", "again"]], layers="all")[0]
    shares = np.exp([0.5, -1.0, 2.0]) / np.exp([0.5, -1.0, 2.0]).sum()
    np.testing.assert_allclose(embedded.x[0, :, 8:], np.einsum("l,ltp->tp", shares, layers), atol=2e-3)
    np.testing.assert_allclose(embedded.output[0], 3 * layers.mean(axis=0), atol=6e-3)
    assert inputs.mix_l2().item() == pytest.approx(0.25 + 1 + 4)


def test_dropout_leaves_out_the_same_features_of_all_words_of_a_sentence():
    inputs = make_inputs(char_dim=0, word_dim=64).train()
    kept = inputs([["rome", "oslo", "x"], ["rome", "oslo"]]).x != 0
    assert torch.equal(kept[0, 0], kept[0, 1])
    assert torch.equal(kept[0, 0], kept[0, 2])
    assert torch.equal(kept[1, 0], kept[1, 1])
    assert not torch.equal(kept[0, 0], kept[1, 0])
    assert 16 < kept[0, 0].sum() < 48
    plain, dropped = inputs.eval()([["rome"]]).x, inputs.train()([["rome"]]).x
    torch.testing.assert_close(dropped[dropped != 0], 2 * plain[dropped != 0])


def test_words_that_have_no_trained_vector_share_one():
    inputs = make_inputs(char_dim=0)
    x = inputs([["ROME", "rome", "other", "words"]]).x[0]
    assert torch.equal(x[0], x[1])
    assert torch.equal(x[2], x[3])
    assert not torch.equal(x[0], x[2])


def test_the_character_vector_is_a_convolution_and_its_maximum():
    characters = make_inputs().characters
    word = "ab"  # begin, a, b, end: two windows of three
    ids = torch.tensor([258, 97, 98, 259])
    x = characters.embedding(ids)  # (4, d)
    weight, bias = characters.convolution.weight, characters.convolution.bias
    windows = [torch.einsum("wd,odw->o", x[start : start + 3], weight) + bias for start in (0, 1)]
    expected = torch.relu(torch.stack(windows)).amax(0)
    torch.testing.assert_close(characters(spell([word, "x" * 80]))[0], expected)


@pytest.mark.parametrize("frozen", [True, False])
def test_the_dropout_of_the_mixes_is_that_of_elmo(tiny_elmo, tmp_path, frozen):
    elmo = ELMo.from_pretrained(tiny_elmo, num_mixes=2, dropout=0.25, freeze=frozen)
    inputs = make_inputs(elmo=FrozenLayers(elmo, tmp_path) if frozen else elmo, dropout=0.0).train()
    embedded = inputs([["Rome", "is", "far"]] * 40)
    for mix in (embedded.x[..., 8:], embedded.output):
        assert (mix == 0).float().mean().item() == pytest.approx(0.25, abs=0.04)


def test_gradients_reach_the_mixes_and_a_bilm_only_where_it_is_not_frozen(tiny_elmo, tmp_path):
    for frozen in (True, False):
        elmo = ELMo.from_pretrained(tiny_elmo, freeze=frozen)
        inputs = make_inputs(elmo=FrozenLayers(elmo, tmp_path) if frozen else elmo)
        (inputs([["Rome", "again"]]).x.sum() + inputs.mix_l2()).backward()
        assert elmo.mixes[0].weights.grad.any()
        assert all((parameter.grad is None) == frozen for parameter in elmo.bilm.parameters())


def test_text_is_tokenized_as_the_bilm_was_trained(tiny_elmo, tmp_path):
    assert make_inputs().tokenizer.name == "treebank"
    elmo = ELMo.from_pretrained(tiny_elmo)
    elmo.tokenizer = Tokenizer("characters")
    for source in (elmo, FrozenLayers(elmo, tmp_path)):
        assert make_inputs(elmo=source).tokenizer is elmo.tokenizer


def test_a_chinese_word_is_one_token_as_in_embed(tiny_elmo, tmp_path):
    elmo = ELMo.from_pretrained(tiny_elmo, num_mixes=1)
    elmo.tokenizer = Tokenizer("han")
    sentences = [["我", "去", "银行", "取钱吧"], ["走"], []]
    expected = np.concatenate([vectors.mean(axis=0) for vectors in elmo.embed(sentences[:2], layers="all")])
    for source in (FrozenLayers(elmo, tmp_path), elmo):
        with torch.no_grad():
            embedded = make_inputs(elmo=source, word_dim=0, char_dim=0)(sentences)
        np.testing.assert_allclose(embedded.x[embedded.mask], expected, atol=2e-3)


@pytest.mark.parametrize("frozen", [True, False])
def test_a_row_may_be_a_part_of_a_sentence_or_several_sentences(tiny_elmo, tmp_path, frozen):
    elmo = ELMo.from_pretrained(tiny_elmo, num_mixes=2)
    elmo.tokenizer = Tokenizer("han")  # some words are several units
    inputs = make_inputs(elmo=FrozenLayers(elmo, tmp_path) if frozen else elmo)
    sentences = [["我", "去", "银行"], [], ["取钱吧", "走"], ["oslo"]]
    spans = [(0, 3), (1, 5), (5, 5), (4, 6)]
    with torch.no_grad():
        apart = inputs(sentences)
        x, output = apart.x[apart.mask], apart.output[apart.mask]
        for rounded in (False, frozen):
            rows = inputs.embed(on_device(inputs.collect(sentences, spans, rounded=rounded), inputs.device))
            assert rows.mask.sum(dim=1).tolist() == [end - start for start, end in spans]
            for row, (start, end) in enumerate(spans):
                torch.testing.assert_close(rows.x[row, : end - start], x[start:end])
                torch.testing.assert_close(rows.output[row, : end - start], output[start:end])
                assert not rows.x[row, end - start :].any()
