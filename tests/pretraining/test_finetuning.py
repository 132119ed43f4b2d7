"""Other models and fine-tuning: word-level models, Chinese, the tokenizer of a model, weights of a given model."""

import dataclasses
import json

import pytest
import torch
from tiny_runs import MODEL, SETTINGS, make_text

from elmokit.model import ELMo
from elmokit.pretraining import (
    finetune,
    pretrain,
)
from elmokit.storage.folder import load
from elmokit.text import Vocabulary


def test_a_word_level_model_trains_by_its_settings_only(text, tmp_path):
    model = dataclasses.replace(MODEL, num_words=1000)
    result = pretrain(**text, model=model, out=tmp_path, vocabulary_size=30, **{**SETTINGS, "steps": 30})
    files = load(tmp_path)
    assert files.config.num_words == len(files.vocabulary) == 30
    assert result.last.both < 30
    assert len(ELMo.from_pretrained(tmp_path).log_probs([["she", "left"]])[0].forward) == 2


def test_a_word_table_smaller_than_the_vocabulary_is_refused(text, tmp_path):
    model = dataclasses.replace(MODEL, num_words=10)
    with pytest.raises(ValueError, match="num_words is 10, the vocabulary has 30 words"):
        pretrain(**text, model=model, out=tmp_path, vocabulary_size=30, **SETTINGS)


@pytest.mark.parametrize("word_level", [False, True])
def test_chinese_trains_with_words_or_characters_between_spaces(tmp_path, word_level):
    text = tmp_path / "zh.txt"
    text.write_text("她 在 河 边 散步 。\n他 去 银行 存 钱 。\n\n" * 30, encoding="utf-8")
    model = dataclasses.replace(MODEL, num_words=50 if word_level else None)
    result = pretrain(train=text, heldout=text, out=tmp_path / "run", model=model, **{**SETTINGS, "steps": 40})
    assert result.last.both < result.unigram
    assert "银行" in ELMo.from_pretrained(tmp_path / "run").vocabulary


def test_fine_tuning_continues_from_weights_softmax_and_vocabulary(finished, text, tmp_path):
    result, _, _ = finished
    new = make_text(tmp_path / "new.txt", seed=7, num_sentences=60)
    settings = {**SETTINGS, "steps": 4, "eval_every": 1, "learning_rate": 1e-9}
    tuned = finetune(result.folder, train=new, heldout=text["heldout"], out=tmp_path / "tuned", **settings)
    # nothing was learned at that rate: the model is the one that was given
    assert tuned.last.both == pytest.approx(result.best.both, rel=1e-3)
    assert load(tmp_path / "tuned").vocabulary.digest == load(result.folder).vocabulary.digest


def test_a_training_split_into_runs_counts_its_steps_through(finished, text, tmp_path):
    result, _, _ = finished
    settings = {**SETTINGS, "steps": 10, "first_step": 6, "log_every": 1}
    rest = finetune(result.folder, **text, out=tmp_path / "rest", **settings)
    steps = [json.loads(line)["step"] for line in (tmp_path / "rest" / "metrics.jsonl").read_text().splitlines()]
    assert (rest.step, rest.num_steps, sorted(set(steps))) == (10, 10, [7, 8, 9, 10])
    with pytest.raises(ValueError, match="first_step is 6, but the weights are random: call `finetune`"):
        pretrain(**text, model=MODEL, out=tmp_path / "random", **settings)


def test_fine_tuning_an_official_model_starts_a_new_softmax(official_model, text, tmp_path):
    official = official_model(seed=4)
    model = ELMo.from_files(official.options_path, official.weights_path)
    model.save_pretrained(tmp_path / "given")
    files = load(tmp_path / "given")
    assert files.softmax is None
    result = finetune(files, **text, out=tmp_path / "tuned", vocabulary_size=20, **{**SETTINGS, "steps": 2})
    tuned = load(result.folder)
    assert len(tuned.softmax["weight"]) == len(tuned.vocabulary) == 20
    name = "layers.0.input_weight"
    assert (tuned.weights[name] - files.weights[name]).abs().max() < 0.1
    assert not torch.equal(tuned.weights[name], files.weights[name])


def test_a_word_level_model_cannot_be_tuned_with_another_vocabulary(text, tmp_path):
    model = dataclasses.replace(MODEL, num_words=30)
    pretrain(**text, model=model, out=tmp_path / "words", vocabulary_size=30, **{**SETTINGS, "steps": 1})
    Vocabulary(["<S>", "</S>", "<UNK>", "she"]).save(tmp_path / "small.txt")
    with pytest.raises(ValueError, match="num_words is 30, the vocabulary has 4 words"):
        finetune(tmp_path / "words", **text, out=tmp_path / "x", vocabulary=str(tmp_path / "small.txt"), **SETTINGS)
