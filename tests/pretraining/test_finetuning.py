"""Other models and fine-tuning: word-level models, Chinese, the tokenizer of a model, weights of a given model."""

import dataclasses
import json
import os
import signal
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_runs import MODEL, RECIPES, SETTINGS, config, lines, make_text

from elmokit.corpus import Corpus
from elmokit.inference.scores import Perplexity
from elmokit.model import ELMo
from elmokit.pretraining import (
    PretrainResult,
    finetune,
    pretrain,
)
from elmokit.pretraining.data import make_model
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
    # step 6 has the held-out perplexity of the weights as given
    assert (rest.step, rest.num_steps, sorted(set(steps))) == (10, 10, [6, 7, 8, 9, 10])
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


# ---- defaults, the perplexity before the first step, and other vocabularies ------------------------------------------


def test_the_defaults_are_those_of_a_recipe_in_the_package(finished, text, tmp_path):
    recipe = tomllib.loads((RECIPES / "finetune.toml").read_text())
    assert (recipe["optimizer"], recipe["clip_norm"]) == ("adamw", 1.0)
    result = finetune(finished[0].folder, **text, out=tmp_path / "tuned", tokenized=True, tensorboard=False)
    used = json.loads((tmp_path / "tuned" / "recipe.json").read_text())
    assert {name: used[name] for name in recipe} == recipe
    corpus = Corpus.open(tmp_path / "tuned" / "corpus" / "train")
    assert result.num_steps == max(1, round(3 * corpus.num_pairs / (64 * 20)))


def test_fine_tuning_with_the_defaults_improves_the_model(text, tmp_path):
    model = dataclasses.replace(MODEL, cell_dim=32, projection_dim=16)
    learned = {**SETTINGS, "steps": 200, "eval_every": 100, "batch_size": 16, "learning_rate": 0.02, "dropout": 0.0}
    given = pretrain(**text, model=model, out=tmp_path / "given", **learned)
    new = make_text(tmp_path / "new.txt", seed=7, num_sentences=400)
    tuned = finetune(
        given.folder, train=new, heldout=text["heldout"], out=tmp_path / "tuned", tokenized=True, eval_batch_size=2
    )
    assert tuned.before.both == pytest.approx(given.best.both, rel=1e-5)
    assert tuned.best.both <= tuned.before.both
    assert tuned.last.both < 1.1 * tuned.before.both


def test_a_training_that_only_makes_it_worse_leaves_the_model_as_given_and_says_so(finished, text, tmp_path):
    given = load(finished[0].folder)
    settings = {**SETTINGS, "steps": 8, "eval_every": 2, "learning_rate": 3.0, "ema_decay": None, "warmup_steps": 0}
    result = finetune(given, **text, out=tmp_path, **settings)
    assert (result.best_step, result.best) == (0, result.before)
    assert result.last.both > 2 * result.before.both
    assert result.summary == (
        f"Fine-tuning did not improve the model: the held-out perplexity was {result.before.both:.2f} before the first "
        f"step and rose to {result.last.both:.2f}. The model as given is saved. Try a smaller learning_rate, or more "
        "text."
    )
    saved = load(tmp_path)
    assert all(torch.equal(saved.weights[name], tensor) for name, tensor in given.weights.items())
    assert all(torch.equal(saved.softmax[name], tensor) for name, tensor in given.softmax.items())
    assert lines(tmp_path / "metrics.jsonl")[0] == {
        "step": 0,
        "heldout_perplexity": result.before.both,
        "heldout_forward_perplexity": result.before.forward,
        "heldout_backward_perplexity": result.before.backward,
    }
    again = finetune(given, **text, out=tmp_path, **settings)  # it has ended: the same is said
    assert (again.before, again.summary) == (result.before, result.summary)


def test_a_rise_after_the_best_step_is_said_in_plain_words():
    def perplexity(both: float) -> Perplexity:
        return Perplexity(both, both, both, 10)

    result = PretrainResult(
        Path("out"), 50, 50, "steps", perplexity(70.8), 30, perplexity(72.0), 300.0, before=perplexity(76.0)
    )
    fell = "The held-out perplexity fell from 76.00 to 70.80 at step 30"
    assert result.summary == f"{fell}, then rose to 72.00. The model of step 30 is saved."
    assert dataclasses.replace(result, last=result.best).summary == f"{fell}."
    assert dataclasses.replace(result, before=None).summary is None


def test_a_pretraining_from_random_weights_is_not_measured_before_its_first_step(finished):
    assert finished[0].before is None
    assert lines(finished[0].folder / "metrics.jsonl")[0]["step"] > 0


def test_a_fine_tuning_that_is_resumed_has_the_lines_of_one_that_was_not(finished, text, tmp_path):
    def stop(report):
        if report.step == 4:
            os.kill(os.getpid(), signal.SIGTERM)

    for out, on_progress in ((tmp_path / "a", stop), (tmp_path / "a", None), (tmp_path / "b", None)):
        result = finetune(finished[0].folder, **text, out=out, on_progress=on_progress, **SETTINGS)
    assert result.before is not None
    for name in ("metrics.jsonl", "model.safetensors", "softmax.safetensors"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_the_recipe_of_a_longer_training_is_continued_with_its_own_settings(finished, text, tmp_path):
    recipe = tmp_path / "long.toml"
    recipe.write_text(
        'train = "elsewhere.txt"\nheldout = "elsewhere.txt"\nout = "elsewhere"\noptimizer = "muon"\nsteps = 9\n'
        'learning_rate = 0.005\nloss = "full"\nbatch_size = 4\nunroll = 5\npatience = 4\n[model]\ncell_dim = 99\n'
    )
    settings = {"first_step": 6, "tokenized": True, "tensorboard": False}
    result = finetune(finished[0].folder, **text, out=tmp_path / "rest", recipe=recipe, **settings)
    used = json.loads((tmp_path / "rest" / "recipe.json").read_text())
    assert (used["optimizer"], used["steps"], used["first_step"], used["train"]) == ("muon", 9, 6, text["train"])
    assert used["model"]["cell_dim"] == MODEL.cell_dim
    assert (result.step, result.num_steps) == (9, 9)
    with pytest.raises(ValueError, match="nothing: no such recipe"):
        finetune(finished[0].folder, **text, out=tmp_path / "x", recipe="nothing")


def test_a_fraction_as_eval_every_measures_that_often_in_a_run(finished, text, tmp_path):
    finetune(finished[0].folder, **text, out=tmp_path, patience=None, **{**SETTINGS, "eval_every": 0.25})
    measured = [line["step"] for line in lines(tmp_path / "metrics.jsonl") if "heldout_perplexity" in line]
    assert measured == [0, 3, 6, 9, 12]


def test_without_held_out_text_the_defaults_have_no_patience(finished, text, tmp_path):
    result = finetune(finished[0].folder, train=text["train"], out=tmp_path, tokenized=True, tensorboard=False)
    assert (result.ended, result.before, result.summary) == ("steps", None, None)


def test_another_vocabulary_keeps_the_rows_of_shared_words_and_starts_new_ones_from_their_neighbours(
    finished, text, tmp_path
):
    given = load(finished[0].folder)
    known = given.vocabulary
    words = ["<S>", "</S>", "<UNK>", "river", "breads", "the", "moneys", "she"]
    vocabulary = Vocabulary(words)
    language_model = make_model(config(), given.config, given, vocabulary)
    weight, bias = given.softmax["weight"].double(), given.softmax["bias"].double()
    new_weight, new_bias = (tensor.detach().double() for tensor in language_model.output.parameters())

    elmo = ELMo.from_pretrained(finished[0].folder)
    vectors = elmo.bilm.embed_words(torch.from_numpy(elmo.bilm.word_ids.ids([*known.words[3:], "breads", "moneys"])))
    vectors = vectors.detach().double().numpy()
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    for number, word in enumerate(words):
        if word in known:
            row, at = weight[known.id(word)], bias[known.id(word)]
        else:
            cosines = vectors[: len(known) - 3] @ vectors[len(known) - 3 + ["breads", "moneys"].index(word)]
            nearest = 3 + np.argsort(-cosines)[:10]
            row = 0.5 * weight[known.unk_id] + 0.5 * weight[nearest].mean(dim=0)
            at = bias[known.unk_id] - np.log(2 + 1)
        torch.testing.assert_close(new_weight[number], row, atol=1e-6, rtol=0)
        torch.testing.assert_close(new_bias[number], torch.as_tensor(at), atol=1e-6, rtol=0)


def test_fine_tuning_with_another_vocabulary_starts_near_the_model_and_not_at_random(finished, text, tmp_path):
    """A new softmax would begin at about one guess among all words."""
    words = [word for word in load(finished[0].folder).vocabulary.words if word != "visitor1"]
    Vocabulary([*words, "visitor99", "visitor98"]).save(tmp_path / "words.txt")
    settings = {**SETTINGS, "steps": 1, "vocabulary": str(tmp_path / "words.txt")}
    result = finetune(finished[0].folder, **text, out=tmp_path / "tuned", **settings)
    assert result.before.both == pytest.approx(finished[0].best.both, rel=0.2)
    assert result.before.both < len(words) / 2


def test_a_word_level_model_refuses_other_words_of_the_same_number(text, tmp_path):
    model = dataclasses.replace(MODEL, num_words=30)
    pretrain(**text, model=model, out=tmp_path / "words", vocabulary_size=30, **{**SETTINGS, "steps": 1})
    words = load(tmp_path / "words").vocabulary.words
    Vocabulary([*words[:-1], "other"]).save(tmp_path / "other.txt")
    with pytest.raises(ValueError, match="cannot be tuned with another one"):
        finetune(tmp_path / "words", **text, out=tmp_path / "x", vocabulary=str(tmp_path / "other.txt"), **SETTINGS)
    assert not (tmp_path / "x").exists()
