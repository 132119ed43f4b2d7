"""The trainer: a run that was stopped ends as if it had not been, and the best epoch is kept."""

import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from task_examples import SENTENCES, write_examples

from elmokit import files
from elmokit.tasks import TASKS, load_task, train, trainer
from elmokit.tasks.tagging import Tagger
from elmokit.tasks.trainer import Snapshots


def state_of(folder: str) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(Path(folder) / "model.safetensors")


def assert_same_run(one: str, other: str) -> None:
    assert (Path(one) / "metrics.jsonl").read_text() == (Path(other) / "metrics.jsonl").read_text()
    first, second = state_of(one), state_of(other)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    results = [json.loads((Path(folder) / "result.json").read_text()) for folder in (one, other)]
    for result in results:
        del result["folder"], result["seconds"]
    assert results[0] == results[1]


@pytest.mark.parametrize("tune", [False, True])
def test_a_training_that_was_stopped_ends_as_if_it_had_not_been(small, tmp_path, tune):
    settings = {"dropout": 0.3, "elmo_dropout": 0.3, "epochs": 4, "elmo_at": "both", "tune": tune, "patience": 1}
    settings |= {"test": str(write_examples("ner", tmp_path / "test.conll")), "rate_decay": 0.7, "patience": 9}
    whole, parts = small(out=str(tmp_path / "whole"), **settings), small(out=str(tmp_path / "parts"), **settings)
    train(whole)
    for epoch, done in ((1, 2), (3, 1), (3, 3)):  # inside the first epoch, inside the third, at the end of the third

        def stop(progress, epoch=epoch, done=done):
            if (progress.epoch, progress.done) == (epoch, done):
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            train(parts, on_progress=stop)
    train(parts)
    assert_same_run(whole.out, parts.out)


@pytest.mark.skipif(files.fcntl is None, reason="there are no file locks here")
def test_two_do_not_train_in_one_folder_at_once(small, tmp_path):
    config, alone = (small(out=str(tmp_path / name), elmo_at="none", dropout=0.3) for name in ("out", "alone"))
    num_refused = 0

    def meanwhile(progress):
        nonlocal num_refused
        with pytest.raises(
            ValueError, match=rf"another process is training in it \(process {os.getpid()} on .*, since "
        ):
            train(config)
        num_refused += 1

    train(alone)
    train(config, on_progress=meanwhile)
    assert num_refused > 3
    assert_same_run(config.out, alone.out)
    assert not (tmp_path / "out" / ".lock").exists()


def test_a_training_that_another_process_finished_meanwhile_is_not_done_again(small, monkeypatch):
    """The other process trains while this one reads its data."""
    config, results = small(elmo_at="none"), []

    def load_slowly(*arguments):
        monkeypatch.setattr(trainer, "load_elmo", load_elmo)
        results.append(train(config))
        return load_elmo(*arguments)

    load_elmo = trainer.load_elmo
    monkeypatch.setattr(trainer, "load_elmo", load_slowly)
    assert train(config, on_progress=lambda _: pytest.fail("it trained again")) == results[0]


def test_a_training_that_was_killed_resumes_past_a_corrupted_checkpoint(small, tmp_path):
    settings = {"dropout": 0.3, "elmo_at": "none"}
    whole, killed = small(out=str(tmp_path / "whole"), **settings), small(out=str(tmp_path / "killed"), **settings)
    train(whole)
    program = (
        "import os, signal, sys, json, torch\nfrom elmokit.tasks import TaskConfig, train\n"
        "torch.set_num_threads(1)\n"  # as here: sums of several threads differ in their last digits
        "def die(progress):\n"
        "    if (progress.epoch, progress.done) == (3, 1): os.kill(os.getpid(), signal.SIGKILL)\n"
        "train(TaskConfig(**json.loads(sys.argv[1])), on_progress=die)\n"
    )
    config = json.dumps(dataclasses.asdict(killed))
    done = subprocess.run([sys.executable, "-c", program, config], timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL
    checkpoint = Path(killed.out) / "checkpoints" / "step-00000002" / "tensors.safetensors"
    checkpoint.write_bytes(checkpoint.read_bytes()[:-4])
    train(killed)
    assert_same_run(whole.out, killed.out)


def test_the_result_of_a_finished_training_is_returned_and_other_settings_are_refused(small):
    config = small(elmo_at="none", epochs=1)
    result = train(config)
    assert train(config, on_progress=lambda _: pytest.fail("it trained again")) == result
    assert not (Path(config.out) / "checkpoints").exists()
    with pytest.raises(ValueError, match="hidden_dim = 16, not 17"):
        train(dataclasses.replace(config, hidden_dim=17))


def test_a_run_of_an_older_version_without_a_setting_resumes(small, tmp_path):
    config = small()
    result = train(config)
    settings = tmp_path / "run" / "run.json"
    values = json.loads(settings.read_text())
    del values["phrases"]
    settings.write_text(json.dumps(values))
    assert train(config) == result
    with pytest.raises(ValueError, match="contains a run with phrases = False, not True"):
        train(dataclasses.replace(config, phrases=True))


def test_training_does_not_change_the_random_numbers_of_the_caller(small):
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    train(small(elmo_at="none", epochs=1))
    assert torch.equal(torch.rand(4), expected)


def test_the_best_epoch_is_kept_the_rate_falls_and_training_stops(small, monkeypatch):
    """Dev scores 0.2, 0.9, and then worse ones: the second epoch is the result, and three worse ones are enough."""
    scores = iter([0.2, 0.9, 0.1, 0.3, 0.3, 0.55])
    monkeypatch.setattr(type(TASKS["ner"]), "score", lambda *_: {"f1": next(scores)})
    weights, rates = [], []
    save = Snapshots.save

    def watch(self, snapshot):
        weights.append(snapshot.tensors["network.scores.weight"].clone())
        rates.append(snapshot.values["rates"])
        save(self, snapshot)

    monkeypatch.setattr(Snapshots, "save", watch)
    config = small(elmo_at="none", epochs=9, patience=3, test=small().train)
    result = train(config)
    assert (result.best_epoch, result.epochs, result.dev, result.test) == (2, 5, {"f1": 0.9}, {"f1": 0.55})
    assert result.score == 0.55
    assert torch.equal(state_of(config.out)["scores.weight"], weights[1])
    assert not torch.equal(weights[1], weights[3])
    assert rates == [[0.02], [0.02], [0.02], [0.01], [0.01]]


def test_the_best_weights_of_a_tuned_bilm_are_those_that_are_scored(small, monkeypatch):
    scores = iter([0.9, 0.1])
    answers = []
    score = type(TASKS["ner"]).score

    def watch(self, examples, predictions):
        answers.append(predictions)
        return {"f1": next(scores)} if len(answers) < 3 else score(self, examples, predictions)

    monkeypatch.setattr(type(TASKS["ner"]), "score", watch)
    config = small(elmo_at="input", tune=True, epochs=2, test=small().train, tune_learning_rate=0.1)
    train(config)
    assert answers[2] == answers[0]  # test is scored with the weights of the first epoch
    assert load_task(config.out).answer(TASKS["ner"].read(config.train)) == answers[0]


def test_a_frozen_bilm_stays_as_it_is_and_only_its_mixes_learn(small, tiny_elmo):
    result = train(small(elmo_at="both", mix_l2=0.0))
    assert np.shape(result.mix_weights) == (2, 3)
    assert all(sum(weights) == pytest.approx(1) for weights in result.mix_weights)
    assert result.mix_weights[0] != pytest.approx([1 / 3] * 3, abs=1e-4)


def test_the_mixes_are_held_back_by_their_l2(small, tmp_path):
    free = train(small(out=str(tmp_path / "free"), mix_l2=0.0))
    held = train(small(out=str(tmp_path / "held"), mix_l2=100.0))

    def spread(result):
        return max(result.mix_weights[0]) - min(result.mix_weights[0])

    assert spread(held) < spread(free) / 2


def test_without_a_dev_file_the_last_tenth_is_held_out(small, monkeypatch):
    sizes = []
    score = type(TASKS["ner"]).score
    monkeypatch.setattr(
        type(TASKS["ner"]), "score", lambda self, e, p: sizes.append([x.tokens for x in e]) or score(self, e, p)
    )
    train(small(elmo_at="none", dev=None, epochs=1))
    assert sizes == [[SENTENCES[-1].split()]]


def test_one_example_is_too_few_without_dev(small, tmp_path):
    path = tmp_path / "one.conll"
    path.write_text("a\tO\n", encoding="utf-8")
    with pytest.raises(ValueError, match="pass dev"):
        train(small(train=str(path), dev=None, elmo_at="none"))


def test_a_share_of_the_training_examples_is_drawn_by_the_seed(small, monkeypatch):
    fitted = []
    fit = type(TASKS["ner"]).fit
    monkeypatch.setattr(type(TASKS["ner"]), "fit", lambda self, e: fitted.append([x.tokens for x in e]) or fit(self, e))
    for seed in (1, 1, 2):
        config = small(elmo_at="none", share=0.3, seed=seed, out=f"{small().out}-{len(fitted)}")
        with pytest.raises(KeyboardInterrupt):
            train(config, on_progress=lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    assert [len(examples) for examples in fitted] == [3, 3, 3]
    assert fitted[0] == fitted[1] != fitted[2]


def test_an_epoch_of_a_share_has_as_many_updates_as_one_of_all(small):
    updates = {}
    for share in (1.0, 0.5, 0.2):
        config = small(elmo_at="none", share=share, epochs=1, batch_size=2, out=f"{small().out}-{share}")
        train(config, on_progress=lambda progress, share=share: updates.update({share: progress.total}))
    assert updates == {1.0: 5, 0.5: 5, 0.2: 5}  # of ten examples


def test_labelled_phrases_train_where_asked_each_once(small, tmp_path):
    train_file, dev_file = tmp_path / "train.txt", tmp_path / "dev.txt"
    train_file.write_text("(3 (4 good) (2 film))\n(1 (0 bad) (2 film))\n(2 film)\n", encoding="utf-8")
    dev_file.write_text("(1 (0 bad) (2 film))\n(4 good)\n(0 bad)\n", encoding="utf-8")
    totals = set()
    settings = {"phrases": True, "batch_size": 5, "epochs": 60, "patience": 60}
    config = small("sentiment", train=str(train_file), dev=str(dev_file), **settings)
    result = train(config, on_progress=lambda one: one.stage == "epoch" and totals.add(one.total))
    assert totals == {1}  # three sentences, good and bad: "film" is a sentence with that label already
    assert result.dev["accuracy"] == 1  # though no sentence of train has one of the labels 4 and 0


def test_phrases_are_refused_where_a_task_or_its_file_has_none(small):
    for name in ("ner", "sentiment"):
        with pytest.raises(ValueError, match=f"{name} finds no labelled phrases in .*train.*leave it out"):
            train(small(name, phrases=True))


def test_several_files_are_read_one_after_the_other(small, tmp_path):
    more = tmp_path / "more.conll"
    more.write_text("new\tB-NEW\n", encoding="utf-8")
    config = small(elmo_at="none", epochs=1)
    config = dataclasses.replace(config, train=(config.train, str(more)), optimizer="adamw", weight_decay=0.1)
    train(config)
    assert "B-NEW" in load_task(config.out).fitted["tags"]


def test_a_loss_that_is_not_finite_stops_the_training(small, monkeypatch):
    monkeypatch.setattr("elmokit.tasks.tagging.Tagger.loss", lambda self, _: self.scores.weight.sum() * math.nan)
    with pytest.raises(ValueError, match=r"batch 1 of epoch 1 is nan: lower learning_rate"):
        train(small(elmo_at="none"))


def test_the_batch_whose_loss_is_not_finite_is_named(small, monkeypatch):
    original, num_losses, reported = Tagger.loss, 0, []

    def loss(self, examples):
        nonlocal num_losses
        num_losses += 1
        return original(self, examples) * (math.inf if num_losses == 3 else 1)

    monkeypatch.setattr(Tagger, "loss", loss)
    with pytest.raises(ValueError, match=r"batch 3 of epoch 1 is inf: lower learning_rate"):
        train(small(elmo_at="none", batch_size=1), on_progress=reported.append)
    assert [(one.epoch, one.done) for one in reported] == [(1, 1), (1, 2)]
