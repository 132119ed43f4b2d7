"""A complete run: metrics, progress, model folder, model card, and the ways in which a run ends."""

import dataclasses
import math
import shutil
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tiny_runs import MODEL, RECIPES, SETTINGS, lines

from elmokit.corpus import Corpus
from elmokit.model import ELMo
from elmokit.pretraining import (
    DivergenceError,
    load_recipe,
    metrics,
    pretrain,
    run_recipe,
)
from elmokit.pretraining.step import Learner
from elmokit.storage.snapshots import Snapshots


def test_the_heldout_perplexity_falls_at_every_measurement_below_the_unigram_model(finished):
    result, _, _ = finished
    measured = [
        line["heldout_perplexity"] for line in lines(result.folder / "metrics.jsonl") if "heldout_perplexity" in line
    ]
    assert len(measured) == 3
    assert measured == sorted(measured, reverse=True)
    assert result.best.both == measured[-1] < 0.7 * result.unigram
    assert (result.ended, result.step, result.best_step) == ("steps", 60, 60)


def test_progress_tells_step_loss_speed_and_time_left(finished):
    result, reports, _ = finished
    assert [report.step for report in reports] == [10, 20, 30, 40, 50, 60]
    assert reports[0].heldout is None
    assert reports[-1].heldout is not None
    assert reports[-1].seconds_left == 0
    assert all(report.tokens_per_second > 0 for report in reports)
    assert reports[-1].perplexity == pytest.approx(math.exp(reports[-1].loss))
    speeds = lines(result.folder / "speed.jsonl")
    assert [line["tokens_per_second"] for line in speeds] == [report.tokens_per_second for report in reports]


def test_the_result_loads_speaks_and_exports(finished, tmp_path):
    result, _, _ = finished
    model = ELMo.from_pretrained(result.folder)
    likely = model.perplexity([["she", "left", "the", "fish", "by", "the", "river", "."]])
    unlikely = model.perplexity([["river", "the", "the", ".", "left", "fish", "by", "she"]])
    assert likely.both < unlikely.both
    model.export_hdf5(tmp_path)
    again = ELMo.from_files(tmp_path / "options.json", tmp_path / "weights.hdf5")
    fresh = ELMo.from_pretrained(result.folder)  # no word in its cache either
    np.testing.assert_array_equal(again.embed([["she"]])[0], fresh.embed([["she"]])[0])


def test_the_card_tells_data_curve_and_recipe(finished):
    result, _, _ = finished
    card = (result.folder / "README.md").read_text()
    assert "| 60 |" in card
    assert f"{result.unigram:.1f}" in card
    assert '"cell_dim": 8' in card


def test_the_recipe_that_a_run_leaves_runs_again(finished, tmp_path):
    result, _, _ = finished
    again, model = load_recipe(result.folder / "recipe.json", [f"out={tmp_path}", "steps=2"])
    assert model == MODEL
    assert run_recipe(again, model).step == 2


def test_a_finished_run_returns_at_once_and_a_longer_one_resumes(finished, text, tmp_path):
    result, _, settings = finished
    shutil.copytree(result.folder, tmp_path / "copy")
    again = pretrain(**text, model=MODEL, out=tmp_path / "copy", **settings)
    assert dataclasses.replace(again, folder=result.folder) == result
    longer = pretrain(**text, model=MODEL, out=tmp_path / "copy", **{**settings, "steps": 70})
    assert (longer.step, len(lines(tmp_path / "copy" / "metrics.jsonl"))) == (70, 6 + 3 + 2)


def test_only_the_last_two_checkpoints_are_kept(finished):
    result, _, _ = finished
    assert sorted(path.name for path in (result.folder / "checkpoints").iterdir()) == ["step-00000040", "step-00000060"]


def test_other_settings_in_the_same_folder_are_refused(finished, text):
    result, _, settings = finished
    with pytest.raises(ValueError, match="holds a run with batch_size = 16, not 8"):
        pretrain(**text, model=MODEL, out=result.folder, **{**settings, "batch_size": 8})


def test_without_heldout_text_the_last_model_is_the_result(text, tmp_path):
    result = pretrain(train=text["train"], out=tmp_path, model=MODEL, **{**SETTINGS, "ema_decay": None, "steps": 5})
    assert (result.best, result.unigram) == (None, None)
    saved = load_file(tmp_path / "model.safetensors")
    snapshot = Snapshots(tmp_path / "checkpoints").load(5)
    begin, *shape = snapshot.values["places"]["bilm.layers.1.bias"]
    values = snapshot.tensors["values"][begin : begin + math.prod(shape)].view(*shape)
    assert torch.equal(saved["layers.1.bias"], values)


def test_epochs_set_the_number_of_steps(text, tmp_path):
    settings = {**SETTINGS, "steps": None, "epochs": 0.5}
    result = pretrain(train=text["train"], out=tmp_path, model=MODEL, **settings)
    corpus = Corpus.open(tmp_path / "corpus" / "train")
    assert result.num_steps == result.step == round(0.5 * corpus.num_pairs / 20)


def test_training_stops_when_the_heldout_perplexity_does_not_improve(text, tmp_path):
    settings = {**SETTINGS, "patience": 2, "learning_rate": 1e-12, "steps": 100, "eval_every": 2, "ema_decay": None}
    # nothing moves, so no measurement is better than the first
    result = pretrain(**text, model=MODEL, out=tmp_path, **settings)
    assert (result.ended, result.step, result.best_step) == ("patience", 6, 2)
    assert pretrain(**text, model=MODEL, out=tmp_path, **settings).ended == "patience"


def test_tensorboard_gets_what_metrics_get_and_its_absence_is_no_error(text, tmp_path, monkeypatch):
    written = []

    class Board:
        add_scalar = staticmethod(lambda name, value, step: written.append((name, value, step)))
        close = staticmethod(lambda: written.append("closed"))

    monkeypatch.setattr(metrics, "_open_tensorboard", lambda folder: Board)
    pretrain(train=text["train"], out=tmp_path / "a", model=MODEL, **{**SETTINGS, "steps": 2, "tensorboard": True})
    assert written[-1] == "closed"
    assert ("loss", lines(tmp_path / "a" / "metrics.jsonl")[0]["loss"], 2) in written
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    assert metrics._open_tensorboard(tmp_path) is None


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_writes_its_events(tmp_path):
    pytest.importorskip("tensorboard")
    (tmp_path / "run").mkdir()
    with metrics.Metrics(tmp_path / "run", tensorboard=True) as written:
        written.write(1, {"loss": 2.0})
    assert list((tmp_path / "run" / "tensorboard").iterdir())


def test_a_loss_that_is_not_finite_stops_the_run_says_where_and_keeps_the_good_checkpoint(text, tmp_path, monkeypatch):
    step = Learner.step

    def poisoned(self, given, rates):
        if rates.step == 5:
            with torch.no_grad():
                self.model.bilm.layers[1].projection[0, 0, 0] = math.nan
        step(self, given, rates)

    monkeypatch.setattr(Learner, "step", poisoned)
    with pytest.raises(DivergenceError) as caught:
        pretrain(**text, model=MODEL, out=tmp_path, **SETTINGS)
    assert "step 5: the forward loss and the norm of the gradient is not finite" in str(caught.value)
    assert "The checkpoint of step 3 is good" in str(caught.value)
    monkeypatch.undo()
    assert Snapshots(tmp_path / "checkpoints").newest() == 3
    assert pretrain(**text, model=MODEL, out=tmp_path, **SETTINGS).step == 12


def test_weights_that_are_not_finite_are_never_saved(text, tmp_path):
    with pytest.raises(
        DivergenceError, match=r"step 1: the weights after it are not finite, first in .* no checkpoint"
    ):
        pretrain(**text, model=MODEL, out=tmp_path, **{**SETTINGS, "learning_rate": 1e39, "checkpoint_every": 1})


def test_a_device_that_does_not_exist_is_refused(text, tmp_path):
    with pytest.raises(ValueError, match="device 'gpu' cannot be used"):
        pretrain(**text, model=MODEL, out=tmp_path, **{**SETTINGS, "device": "gpu"})
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="device 'cuda' cannot be used"):
            pretrain(**text, model=MODEL, out=tmp_path, **{**SETTINGS, "device": "cuda"})


def test_bfloat16_is_refused_on_a_cpu_where_it_ends_the_process(text, tmp_path, monkeypatch):
    monkeypatch.setattr("elmokit.kernels.bfloat16_works", lambda: False)
    with pytest.raises(ValueError, match="bfloat16 products crash on this CPU"):
        pretrain(**text, model=MODEL, out=tmp_path, precision="bfloat16", **SETTINGS)


@pytest.mark.parametrize("name", ["tiny", "small", "medium", "original", "word-level", "chinese"])
def test_every_recipe_runs(text, tmp_path, name):
    small = ["batch_size=2", "unroll=3", "steps=1", "vocabulary_size=20", "device=cpu", "tensorboard=false"]
    small += ["num_negatives=4", "precision=float32", "eval_batch_size=1"]
    if name in ("medium", "original"):  # their weights are large for a test; the sizes are tested above
        small += ["model.cell_dim=16", "model.projection_dim=8"]
    recipe, model = load_recipe(
        RECIPES / f"{name}.toml",
        [f"train={text['train']}", f"heldout={text['heldout']}", f"out={tmp_path}", "vocabulary=null", *small],
    )
    assert run_recipe(recipe, model).step == 1


@pytest.mark.slow
def test_the_tiny_recipe_learns_the_shared_text_in_minutes(data, tmp_path):
    import lzma

    if not (data / "pretrain").is_dir():
        pytest.skip(f"no folder {data / 'pretrain'}")
    with lzma.open(data / "pretrain" / "train-0.txt.xz") as file:
        (tmp_path / "train.txt").write_bytes(file.read(8_000_000).rsplit(b"\n", 1)[0])
    heldout = (data / "pretrain" / "heldout-wiki.txt").read_bytes()[:200_000].rsplit(b"\n", 1)[0]
    (tmp_path / "heldout.txt").write_bytes(heldout)
    overrides = [f"train={tmp_path / 'train.txt'}", f"heldout={tmp_path / 'heldout.txt'}", f"out={tmp_path / 'run'}"]
    result = run_recipe(*load_recipe(RECIPES / "tiny.toml", overrides))
    curve = [
        line["heldout_perplexity"] for line in lines(tmp_path / "run" / "metrics.jsonl") if "heldout_perplexity" in line
    ]
    assert curve == sorted(curve, reverse=True)
    assert result.best.both < 0.6 * result.unigram
