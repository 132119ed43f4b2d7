"""A model records the tokenizer of its training text, and splits strings with it wherever they are read."""

import dataclasses

import numpy as np
import pytest
from tiny_runs import MODEL, SETTINGS

from elmokit.corpus import prepare
from elmokit.corpus.heldout import heldout_perplexity
from elmokit.model import ELMo
from elmokit.pretraining import finetune, pretrain
from elmokit.storage.folder import load

LINES = ["银行在河边", "她去河边走", "他在银行里"]  # of one length
SENTENCE = "银行在河边"


@pytest.fixture(scope="module")
def chinese(tmp_path_factory):
    """A text without spaces, and a model that was trained on its characters."""
    folder = tmp_path_factory.mktemp("chinese")
    (folder / "zh.txt").write_text("\n".join(LINES * 20) + "\n", encoding="utf-8")
    settings = {**SETTINGS, "tokenized": "characters", "steps": 4}
    pretrain(train=folder / "zh.txt", out=folder / "run", model=MODEL, **settings)
    return folder / "zh.txt", folder / "run"


def test_a_model_of_characters_reads_each_character_of_a_string_as_a_token(chinese):
    _, folder = chinese
    model = ELMo.from_pretrained(folder)
    assert (load(folder).tokenizer, model.tokenizer.name) == ("characters", "characters")
    assert "Its tokenizer is `characters`" in (folder / "README.md").read_text(encoding="utf-8")
    (vectors,) = model.embed([SENTENCE])
    assert vectors.shape == (5, 12)
    np.testing.assert_array_equal(vectors, model.embed([list(SENTENCE)])[0])
    assert model.perplexity([SENTENCE]) == model.perplexity([list(SENTENCE)])
    assert model.log_probs([SENTENCE])[0].tokens == list(SENTENCE)
    assert all(character in model.vocabulary for character in SENTENCE)


def test_the_perplexity_of_strings_is_that_of_a_corpus_prepared_with_the_same_tokenizer(chinese, tmp_path):
    _, folder = chinese
    model = ELMo.from_pretrained(folder)
    (tmp_path / "heldout.txt").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    corpus = prepare(tmp_path / "heldout.txt", tmp_path / "corpus", vocabulary=model.vocabulary, tokenized="characters")
    # as many rows as sentences: each starts from a zero state
    by_corpus = heldout_perplexity(
        model.bilm, model.output_layer, corpus, batch_size=len(LINES), unk_id=model.vocabulary.unk_id
    )
    by_strings = model.perplexity(LINES)
    assert by_corpus.num_tokens == by_strings.num_tokens == 3 * (5 + 1)
    assert dataclasses.astuple(by_corpus) == pytest.approx(dataclasses.astuple(by_strings), rel=1e-5)


def test_saving_a_model_keeps_its_tokenizer(chinese, tmp_path):
    _, folder = chinese
    model = ELMo.from_pretrained(folder)
    model.save_pretrained(tmp_path / "saved")
    again = ELMo.from_pretrained(tmp_path / "saved")
    assert again.tokenizer == model.tokenizer
    np.testing.assert_array_equal(again.embed([SENTENCE])[0], ELMo.from_pretrained(folder).embed([SENTENCE])[0])


@pytest.mark.parametrize(
    ("tokenized", "tokens"), [(True, ["She", "can't", "stop."]), (False, ["She", "ca", "n't", "stop", "."])]
)
def test_a_model_of_tokenized_text_splits_at_spaces_and_one_of_raw_text_by_the_treebank_rules(
    text, tmp_path, tokenized, tokens
):
    settings = {**SETTINGS, "steps": 1, "tokenized": tokenized}
    pretrain(train=text["train"], out=tmp_path, model=MODEL, **settings)
    model = ELMo.from_pretrained(tmp_path)
    assert model.log_probs(["She can't stop."])[0].tokens == tokens
    assert len(model.embed(["She can't stop."])[0]) == len(tokens)


def test_fine_tuning_uses_and_keeps_the_tokenizer_of_the_model(chinese, tmp_path):
    text, folder = chinese
    settings = {name: value for name, value in SETTINGS.items() if name != "tokenized"}
    finetune(folder, train=text, out=tmp_path / "tuned", **{**settings, "steps": 1})
    assert load(tmp_path / "tuned").tokenizer == "characters"
    assert ELMo.from_pretrained(tmp_path / "tuned").embed([SENTENCE])[0].shape == (5, 12)
    finetune(folder, train=text, out=tmp_path / "again", **{**settings, "steps": 1, "tokenized": "characters"})
    with pytest.raises(ValueError, match='tokenized = True means the tokenizer "spaces", the model has "characters"'):
        finetune(folder, train=text, out=tmp_path / "other", **{**settings, "tokenized": True})
    assert not (tmp_path / "other").exists()


def test_text_that_is_already_tokenized_can_tune_a_model_of_the_treebank_rules(text, tmp_path):
    settings = {**SETTINGS, "steps": 1}
    pretrain(train=text["train"], out=tmp_path / "run", model=MODEL, **{**settings, "tokenized": False})
    finetune(tmp_path / "run", train=text["train"], out=tmp_path / "tuned", **{**settings, "tokenized": True})
    assert load(tmp_path / "tuned").tokenizer == "treebank"
    with pytest.raises(ValueError, match='means the tokenizer "characters", the model has "treebank"'):
        finetune(
            tmp_path / "run", train=text["train"], out=tmp_path / "other", **{**settings, "tokenized": "characters"}
        )


def test_a_chinese_model_reads_strings_characters_and_words(tmp_path):
    text = ["我在iPhone上看银行。", "她去河边走了2.5公里。"] * 20
    (tmp_path / "zh.txt").write_text("\n".join(text) + "\n", encoding="utf-8")
    pretrain(
        train=tmp_path / "zh.txt", out=tmp_path / "run", model=MODEL, **{**SETTINGS, "tokenized": "han", "steps": 4}
    )
    model = ELMo.from_pretrained(tmp_path / "run")
    assert (load(tmp_path / "run").tokenizer, model.tokenizer.name) == ("han", "han")
    assert {"iPhone", "2.5", "银", "。"} <= set(model.vocabulary.words)
    (vectors,) = model.embed(["我在iPhone上看银行。"])
    assert vectors.shape == (8, 12)
    (words,) = model.embed([["我", "在", "iPhone", "上", "看", "银行", "。"]])
    np.testing.assert_allclose(words[5], [*vectors[6][:6], *vectors[5][6:]], atol=1e-6)
    assert model.perplexity(["我在银行。"]) == model.perplexity([[*"我在银行。"]])
