"""A model warns, once, of text in a script that it has never seen."""

import logging

import pytest
import torch

from elmokit import ELMo
from elmokit.config import BiLMConfig
from elmokit.network import BiLM
from elmokit.text import KnownScripts, Vocabulary
from elmokit.text.scripts import script_of

ENGLISH = ["<S>", "</S>", "<UNK>", *(f"word{n}" for n in range(2000)), "α", "naïve", "2019", "."]
CHINESE = ["<S>", "</S>", "<UNK>", *"的一是不了在人有我他这", "iPhone"]


@pytest.mark.parametrize(
    ("character", "script"),
    [
        *[("a", "Latin"), ("ß", "Latin"), ("Ａ", "Latin"), ("银", "Han"), ("𠮷", "Han"), ("か", "Kana"), ("ｶ", "Kana")],
        *[
            ("ж", "Cyrillic"),
            ("글", "Hangul"),
            ("ا", "Arabic"),
            ("7", None),
            ("，", None),
            ("😀", None),
            ("\ud800", None),
        ],
        ("7", None),
    ],
)
def test_scripts_of_characters(character, script):
    assert script_of(character) == script


def test_a_script_of_one_word_in_two_thousand_is_not_known():
    assert KnownScripts(ENGLISH).scripts == {"Latin"}
    assert KnownScripts(CHINESE).scripts == {"Han", "Latin"}


def test_each_script_is_reported_once_and_only_where_it_is_most_of_a_sentence():
    known = KnownScripts(ENGLISH)
    assert known.unseen([["plain", "text", "."], ["naïve", "café"]]) is None
    assert known.unseen([["He", "wrote", "银行", "."]]) is None
    assert known.unseen([["fine"], ["我去银行。"]]) == "Han"
    assert known.unseen([["我去银行。"]]) is None
    assert known.unseen([["Москва"]]) == "Cyrillic"
    assert known.unseen([["123", "，"]]) is None


def make(words, tokenizer):
    bilm = BiLM(BiLMConfig(filters=((1, 4),), num_highways=1, cell_dim=8, projection_dim=4))
    return ELMo(bilm, vocabulary=Vocabulary(words), tokenizer=tokenizer).eval()


def test_embedding_raw_chinese_with_an_english_model_warns_once(caplog):
    torch.manual_seed(0)
    elmo = make(ENGLISH, "treebank")
    with caplog.at_level(logging.WARNING):
        elmo.embed(["The bank."])
        assert not caplog.records
        elmo.embed(["我去银行取钱。"])
        elmo.encode("他在河边。")
        elmo.to_ids(["他在河边。"])
    (record,) = caplog.records
    assert record.getMessage().startswith("text in Han letters: this model was trained on other scripts (Latin)")


def test_a_chinese_model_reads_chinese_and_words_in_latin_letters_without_a_warning(caplog):
    elmo = make(CHINESE, "han")
    with caplog.at_level(logging.WARNING):
        elmo.embed(["我有iPhone。", "𠮷野家", "naïve"])
    assert not caplog.records
