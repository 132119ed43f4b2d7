"""The Chinese model that comes with the package: it is there, small, whole, and what its card says."""

import logging
import re
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

import elmokit
from elmokit import ELMo, embed_spans
from elmokit.probes import CHINESE_TRIPLES, sense_triples

FOLDER = Path(elmokit.__file__).parent / "models" / "zh"
CARD = (FOLDER / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def model() -> ELMo:
    return ELMo.from_pretrained("zh")


def test_it_fits_the_package():
    sizes = {path.name: path.stat().st_size for path in FOLDER.iterdir()}
    assert sum(sizes.values()) <= 20e6
    assert max(sizes.values()) < 25e6


def test_its_matrices_are_stored_as_int8():
    with safe_open(FOLDER / "softmax.safetensors", framework="pt") as file:
        assert file.get_slice("weight").get_dtype() == "I8"
        assert file.get_slice("weight").get_shape() == [10_003, 256]


def test_it_is_a_language_model_of_the_sizes_that_the_card_names(model):
    assert model.tokenizer.name == "han"
    assert model.embed(["我去银行取钱。"])[0].shape == (7, 512)
    assert model.config.cell_dim == int(re.search(r"layers of ([\d,]+) cells", CARD)[1].replace(",", ""))
    assert f"{len(model.vocabulary):,} tokens" in CARD.replace("\n", " ")
    parameters = sum(parameter.numel() for parameter in model.bilm.parameters())
    assert f"{parameters / 1e6:.1f} million" in CARD


def test_it_knows_simplified_and_traditional_characters(model):
    assert {"们", "們", "国", "國", "，", ",", "。"} <= set(model.vocabulary.words)


def test_it_tells_chinese_from_the_same_characters_in_disorder(model):
    for text in ("他把钱存在银行里。", "他把錢存在銀行裡。"):
        assert model.perplexity([text]).both < 200
        assert model.perplexity([text[-2::-1] + "。"]).both > 3 * model.perplexity([text]).both


def test_it_tells_senses_apart_as_often_as_the_card_says(model):
    found = sense_triples(model, CHINESE_TRIPLES).layers
    rows = dict(re.findall(r"^\| (layer \d|mean|slot|sense) \| ([\d.]+) \|", CARD, re.MULTILINE))
    assert rows.keys() == {"layer 0", "layer 1", "layer 2", "mean", "slot", "sense"}
    for name, cell in rows.items():
        assert found[name.removeprefix("layer ")] == pytest.approx(float(cell), abs=0.05)


@pytest.mark.parametrize(
    "text",
    [
        "ＡＢＣ１２３，真的！ﾊﾝｶｸ",
        "开😀心👨‍👩‍👧了❤️",
        "我love你москва한국어ไทย",
        "𠮷野家的𪚥龘",
        "第一行\n第二行\r\n\t第三行",
        "銀行與银行",
        "\u200b\ufeff你\u202e好",
        "。。。！！！",
    ],
)
def test_hostile_text_has_the_same_vectors_alone_in_a_batch_and_by_offsets(model, text):
    alone, beside = model.embed([text])[0], model.embed(["短。", text, "一个长一点的句子，在它旁边。"])[1]
    tokens = model.tokenizer.with_offsets(text)
    assert alone.shape == (len(tokens), 512)
    assert np.isfinite(alone).all()
    np.testing.assert_allclose(alone, beside, atol=1e-5)
    spans = [(token.start, token.end) for token in tokens]
    np.testing.assert_allclose(embed_spans(model, [text], [spans], unit="characters")[0], alone, atol=1e-5)


def test_the_english_model_names_it_when_it_is_given_chinese(caplog):
    with caplog.at_level(logging.WARNING):
        ELMo.from_pretrained().embed(["我去银行取钱。"])
    (record,) = caplog.records
    assert record.getMessage().endswith('for Chinese, load the model "zh"')
