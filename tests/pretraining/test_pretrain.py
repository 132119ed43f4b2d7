"""Training: exact gradients, exact updates, exact resume, one result for any number of processes, clear failures."""

import contextlib
import dataclasses
import json
import math
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import reference
from elmokit.config import BiLMConfig
from elmokit.corpus import Corpus, Streams, build_vocabulary, prepare
from elmokit.model import ELMo
from elmokit.network import BiLM
from elmokit.network.sampling import LogUniformSampler, Negatives
from elmokit.pretraining import (
    DivergenceError,
    PretrainConfig,
    Progress,
    finetune,
    load_recipe,
    loop,
    metrics,
    pretrain,
    run_recipe,
)
from elmokit.pretraining.batches import BatchMaker, Loader, StepBatches
from elmokit.pretraining.optimizers import Rates
from elmokit.pretraining.processes import Processes
from elmokit.pretraining.step import LanguageModel, Learner
from elmokit.storage import snapshots
from elmokit.storage.folder import load
from elmokit.storage.official import read_official
from elmokit.storage.snapshots import Snapshot, Snapshots
from elmokit.text import Vocabulary, words_to_ids

RECIPES = Path(__file__).resolve().parents[2] / "src" / "elmokit" / "recipes"
SOURCE = Path(__file__).resolve().parents[2] / "src"
MODEL = BiLMConfig(char_dim=3, filters=((1, 4), (2, 5), (3, 4)), num_highways=1, cell_dim=8, projection_dim=6)
SETTINGS = {
    "batch_size": 4, "unroll": 5, "steps": 12, "eval_every": 4, "checkpoint_every": 3, "log_every": 2,
    "loss": "full", "optimizer": "adamw", "learning_rate": 0.01, "warmup_steps": 2, "final_rate": 0.1, "clip_norm": 1.0,
    "ema_decay": 0.9, "dropout": 0.1, "eval_batch_size": 2, "tensorboard": False, "device": "cpu", "tokenized": True,
}  # fmt: skip
SAMPLED = {"loss": "sampled", "num_negatives": 8, "optimizer": "adagrad", "learning_rate": 0.2, "clip_norm": 10.0}


def make_text(path: Path, *, seed: int, num_sentences: int) -> Path:
    """Sentences of a small grammar, with rare words, in documents of ten."""
    rng = random.Random(seed)
    places = {"money": "bank", "fish": "river", "bread": "oven"}
    lines = []
    for number in range(num_sentences):
        thing, place = rng.choice(sorted(places.items()))
        who = rng.choice(["she", "he", f"visitor{rng.randrange(40)}"])
        lines.append(f"{who} left the {thing} by the {place} {rng.choice(['today .', 'quietly .', '.'])}")
        if number % 10 == 9:
            lines.append("")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("text")
    return {
        "train": str(make_text(folder / "train.txt", seed=1, num_sentences=150)),
        "heldout": str(make_text(folder / "heldout.txt", seed=2, num_sentences=20)),
    }


@pytest.fixture(scope="module")
def corpus(text, tmp_path_factory) -> Corpus:
    vocabulary = build_vocabulary(text["train"], size=20, tokenized=True)
    return prepare(text["train"], tmp_path_factory.mktemp("corpus"), vocabulary=vocabulary, tokenized=True)


def config(**settings) -> PretrainConfig:
    return PretrainConfig(train="-", out="-", **{**SETTINGS, **settings})


def make_learner(corpus: Corpus, *, dtype=torch.float32, model=MODEL, **settings) -> Learner:
    torch.manual_seed(0)
    num_words = int(corpus.form_targets.max()) + 1
    return Learner(LanguageModel(model, num_words).to(dtype), config(**settings), Processes())


def step_batches(corpus: Corpus, number: int, *, batch_size=4, unroll=5, accumulation=1, model=MODEL):
    streams = Streams(corpus, batch_size=batch_size, unroll=unroll, seed=1)
    maker = BatchMaker(corpus, model, static_shapes=False)
    return [
        StepBatches([maker.make(streams.next()) for _ in range(accumulation)], streams.state) for _ in range(number)
    ]


def rates(step: int, **changed) -> Rates:
    return dataclasses.replace(Rates(step, 0.05, 0.05, 0.1), **changed)


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# ---- the loss and its gradients --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss", "model"),
    [
        ("full", MODEL),
        ("sampled", MODEL),
        ("full", dataclasses.replace(MODEL, activation="tanh", skip_connections=False, cell_clip=0.2, proj_clip=0.1)),
        ("full", dataclasses.replace(MODEL, num_words=20)),
    ],
    ids=["full", "sampled", "clipped", "words"],
)
def test_the_gradient_of_every_parameter_equals_finite_differences(corpus, loss, model):
    learner = make_learner(corpus, dtype=torch.float64, model=model, loss=loss, num_negatives=8, dropout=0.0)
    batch = step_batches(corpus, 1, model=model)[0].batches[0]
    rng = torch.Generator().manual_seed(3)
    state = type(learner.state)(
        *(torch.randn(part.shape, generator=rng, dtype=part.dtype) * 0.1 for part in learner.state)
    )
    negatives = None
    if loss == "sampled":
        negatives = (learner.sampler.sample(rng), learner.sampler.sample(rng))

    def total() -> torch.Tensor:
        forward, backward, _ = learner.losses(batch, state, negatives=negatives)
        return forward + backward

    named = dict(learner.model.named_parameters())
    gradients = dict(zip(named, torch.autograd.grad(total(), list(named.values())), strict=True))
    for name, parameter in named.items():
        directions = [torch.randn(parameter.shape, generator=rng, dtype=parameter.dtype) for _ in range(2)]
        # and single elements: one with the largest gradient, one anywhere
        for place in (gradients[name].abs().argmax(), torch.randint(parameter.numel(), (), generator=rng)):
            one = torch.zeros_like(parameter).flatten()
            one[place] = 1.0
            directions.append(one.view_as(parameter))
        for direction in directions:
            with torch.no_grad():
                values = parameter.clone()
                parameter.copy_(values + 1e-6 * direction)
                above = total()
                parameter.copy_(values - 1e-6 * direction)
                below = total()
                parameter.copy_(values)
            measured = float(above - below) / 2e-6
            found = float((gradients[name] * direction).sum())
            assert found == pytest.approx(measured, rel=1e-5, abs=1e-8), name


def test_the_losses_are_those_of_the_reference_with_state_carried_in_both_streams(corpus, official_model):
    official = official_model(seed=2)
    options, arrays = official.options, official.arrays
    model_config, weights = read_official(official.options_path, official.weights_path)
    learner = make_learner(corpus, model=model_config, dropout=0.0)
    learner.model.bilm.load_state_dict(weights)
    streams = Streams(corpus, batch_size=3, unroll=4, seed=1)
    maker = BatchMaker(corpus, model_config, static_shapes=False)
    state = learner.model.bilm.initial_state(3)
    spelled = {row.tobytes(): word for word, row in _spellings(corpus)}
    softmax = {n: p.detach().numpy().astype(np.float64) for n, p in learner.model.output.named_parameters()}
    carried: list = [[None] * 3, [None] * 3]
    for _ in range(3):
        batch = streams.next()
        with torch.no_grad():
            forward, backward, state = learner.losses(maker.make(batch), state)
        for which, found, inputs, targets in (
            (0, forward, batch.forward_inputs, batch.forward_targets),
            (1, backward, batch.backward_inputs, batch.backward_targets),
        ):
            losses = []
            for row in range(3):
                words = [spelled[np.asarray(corpus.forms)[form].tobytes()] for form in inputs[row]]
                x = np.array([reference.token_vector(options, arrays, word) for word in words])
                outputs, carried[which][row] = reference.direction(options, arrays, which, x, carried[which][row])
                logits = outputs[-1] @ softmax["weight"].T + softmax["bias"]
                log_probs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
                losses += [-log_probs[t, target] for t, target in enumerate(targets[row])]
            assert float(found) == pytest.approx(np.mean(losses), rel=1e-5)


def _spellings(corpus: Corpus):
    grammar = "she he left the money fish bread by bank river oven today quietly ."
    words = ["<S>", "</S>", *grammar.split()]
    words += [f"visitor{number}" for number in range(40)]
    return zip(words, words_to_ids(words), strict=True)


@pytest.mark.parametrize("static_shapes", [False, True])
@pytest.mark.parametrize(
    "variant", [{}, {"activation": "tanh", "num_highways": 0}, {"max_characters": 12}, {"filters": ((4, 6),)}]
)
def test_words_encoded_in_groups_are_those_of_the_network_and_so_are_their_gradients(tmp_path, variant, static_shapes):
    model = dataclasses.replace(MODEL, **{"filters": ((1, 2), (2, 3), (7, 4)), **variant})
    words = ["a", "of", "river", "x" * 9, "y" * 16, "z" * 40, "q" * 43, "w" * 47, "v" * 48, "long" * 30]
    (tmp_path / "text.txt").write_text(" ".join(words * 3) + "\n", encoding="utf-8")
    vocabulary = Vocabulary(["<S>", "</S>", "<UNK>", "of"])
    corpus = prepare(
        tmp_path / "text.txt", tmp_path / "corpus", vocabulary=vocabulary, tokenized=True,
        max_characters=model.max_characters,
    )  # fmt: skip
    raw = Streams(corpus, batch_size=2, unroll=15, seed=0).next()
    batch = BatchMaker(corpus, model, static_shapes=static_shapes).make(raw)
    torch.manual_seed(0)
    bilm = BiLM(model).double()
    for bias in (p for name, p in bilm.named_parameters() if name.endswith("bias")):
        torch.nn.init.normal_(bias)

    found = bilm.embed_groups(batch.words)[batch.index]  # (D, T, B, P)
    forms = np.stack([raw.forward_inputs.T, raw.backward_inputs.T[::-1]])
    ids = torch.from_numpy(np.asarray(corpus.forms)[forms.reshape(-1)].astype(np.int64) + 1)
    expected = torch.cat([bilm.embed_words(row[None]) for row in ids]).view_as(found)
    torch.testing.assert_close(found, expected)

    pattern = torch.randn(found.shape, dtype=torch.float64)
    parameters = list(bilm.char_encoder.parameters())
    own = torch.autograd.grad((found * pattern).sum(), parameters)
    for gradient, wanted in zip(own, torch.autograd.grad((expected * pattern).sum(), parameters), strict=True):
        torch.testing.assert_close(gradient, wanted)


def test_static_shapes_stay_the_same_from_batch_to_batch(corpus):
    streams = Streams(corpus, batch_size=4, unroll=5, seed=1)
    maker = BatchMaker(corpus, MODEL, static_shapes=True)
    shapes = [[tensor.shape for tensor in maker.make(streams.next()).tensors()] for _ in range(20)]
    assert all(shape == shapes[0] for shape in shapes)


def test_a_corpus_of_other_word_lengths_is_refused(corpus):
    with pytest.raises(ValueError, match="prepared with 50 characters per word, the model reads 30"):
        BatchMaker(corpus, dataclasses.replace(MODEL, max_characters=30), static_shapes=False)


def test_dropout_zeroes_its_share_scales_the_rest_and_repeats_with_the_step(corpus):
    learner = make_learner(corpus, dropout=0.25)
    learner._dropout.manual_seed(1)
    x = torch.ones(1000, 10)
    dropped = learner._drop(x)
    assert dropped.unique().tolist() == pytest.approx([0.0, 1 / 0.75])
    assert float((dropped == 0).float().mean()) == pytest.approx(0.25, abs=0.02)
    learner._dropout.manual_seed(1)
    assert torch.equal(dropped, learner._drop(x))


# ---- the update ------------------------------------------------------------------------------------------------------


def plain_steps(learner: Learner, given, optimizer, *, scale: float, clip: float, negatives=None) -> None:
    """The same steps by torch's own optimizers, autograd and clipping, on a model that is no flat tensor."""
    model = learner.model
    bare = Learner(model, dataclasses.replace(learner.config, ema_decay=None), Processes())
    state = model.bilm.initial_state(4)
    for number, one in enumerate(given):
        optimizer.zero_grad()
        for place, batch in enumerate(one.batches):
            drawn = negatives[number * len(one.batches) + place] if negatives else None
            forward, backward, after = bare.losses(batch, state, negatives=drawn)
            (0.5 * scale * (forward + backward) / len(one.batches)).backward()
            state = type(after)(after.hidden.detach(), after.cell.detach())
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()


@pytest.mark.parametrize(("share", "least", "most"), [(0.0, 0, 0), (0.5, 15, 35), (1.0, 44, 44)])
def test_a_share_of_the_rows_begins_a_step_without_memory(text, tmp_path, monkeypatch, share, least, most):
    fresh = []
    losses = Learner.losses

    def watched(self, batch, state, **arguments):
        fresh.append((state.cell == 0).all(dim=3).all(dim=1).all(dim=0))  # (B,)
        return losses(self, batch, state, **arguments)

    monkeypatch.setattr(Learner, "losses", watched)
    pretrain(model=MODEL, out=tmp_path / "run", **text, **{**SETTINGS, "state_reset": share})
    assert fresh[0].all()
    assert least <= int(torch.stack(fresh[1:]).sum()) <= most  # of eleven steps with four rows


@pytest.mark.parametrize("loss", ["full", "sampled"])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_adagrad_is_the_published_one_and_exact_on_the_rows_that_a_step_touches(
    corpus, monkeypatch, loss, accumulation
):
    settings = {**SAMPLED, "loss": loss, "clip_norm": 1.5, "dropout": 0.0, "ema_decay": None}
    learner = make_learner(corpus, accumulation=accumulation, **settings)
    other = make_learner(corpus, accumulation=accumulation, **settings)
    given = step_batches(corpus, 4, accumulation=accumulation)
    drawn: list[Negatives] = []
    if loss == "sampled":
        generator = torch.Generator().manual_seed(1)
        drawn = [learner.sampler.sample(generator) for _ in range(8 * accumulation)]
        queue = iter(drawn)
        monkeypatch.setattr(LogUniformSampler, "sample", lambda self, generator: next(queue))
    for number, one in enumerate(given, 1):
        learner.step(one, rates(number, learning_rate=0.2, output_learning_rate=0.2))
    for parameter in other.model.parameters():
        parameter.data, parameter.grad = parameter.data.clone(), None
    optimizer = torch.optim.Adagrad(other.model.parameters(), lr=0.2, initial_accumulator_value=1.0)
    pairs = list(zip(drawn[::2], drawn[1::2], strict=True))
    plain_steps(other, given, optimizer, scale=5, clip=1.5, negatives=pairs)
    for (name, found), expected in zip(learner.model.named_parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(found, expected, msg=lambda text, name=name: f"{name}: {text}", rtol=1e-4, atol=1e-5)


def test_adamw_is_that_of_torch_with_decay_on_matrices_alone(corpus):
    settings = {"dropout": 0.0, "ema_decay": None, "weight_decay": 0.1, "eps": 1e-8, "clip_norm": 0.5}
    learner, other = make_learner(corpus, **settings), make_learner(corpus, **settings)
    given = step_batches(corpus, 4)
    for number, one in enumerate(given, 1):
        learner.step(one, rates(number, learning_rate=0.02))
    for parameter in other.model.parameters():
        parameter.data, parameter.grad = parameter.data.clone(), None
    parameters = list(other.model.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.02, betas=(0.9, 0.99), eps=1e-8)
    plain_steps(other, given, optimizer, scale=1, clip=0.5)
    for found, expected in zip(learner.model.parameters(), parameters, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_under_the_sampled_softmax_adamw_leaves_the_output_layer_to_adagrad(corpus):
    learner = make_learner(corpus, **{**SAMPLED, "optimizer": "adamw", "num_negatives": 2, "dropout": 0.0})
    before = learner.model.output.weight.detach().clone()
    (given,) = step_batches(corpus, 1)
    learner.step(given, rates(1, learning_rate=0.01, output_learning_rate=0.1))
    moved = (learner.model.output.weight != before).any(dim=1)
    touched = set(learner._rows.ids.tolist())
    assert set(torch.nonzero(moved).flatten().tolist()) <= touched
    assert moved.any()
    assert len(touched) < len(before)


def test_the_running_average_forgets_by_its_share(corpus):
    learner = make_learner(corpus)
    average = learner.optimizer.flat.values.clone()
    for number, one in enumerate(step_batches(corpus, 3), 1):
        learner.step(one, rates(number, ema_fraction=0.3))
        average.lerp_(learner.optimizer.flat.values, 0.3)
    torch.testing.assert_close(
        learner.trained.bilm.layers[0].projection, learner.optimizer.flat.view(average, "bilm.layers.0.projection")
    )
    assert not torch.equal(learner.trained.output.weight, learner.model.output.weight)


def test_the_learning_rate_warms_up_and_falls_along_a_cosine(text, tmp_path):
    run_config = PretrainConfig(**text, out=str(tmp_path), **{**SETTINGS, "learning_rate": 1.0, "warmup_steps": 4})
    run = loop._Run(run_config, MODEL, None, Processes(), None)
    found = [run._rates(step).learning_rate for step in (1, 2, 4, 8, 12)]
    assert found == pytest.approx([0.25, 0.5, 1.0, 0.1 + 0.9 * 0.5, 0.1])
    constant = dataclasses.replace(run_config, warmup_steps=0, final_rate=1.0)
    run.config = constant
    assert {run._rates(step).learning_rate for step in (1, 5, 12)} == {1.0}


# ---- a whole run -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(text, tmp_path_factory):
    """A run of 60 steps that learns, its reports, and its result."""
    reports: list[Progress] = []
    settings = {**SETTINGS, "steps": 60, "eval_every": 20, "checkpoint_every": 20, "log_every": 10, "batch_size": 16}
    settings |= {"dropout": 0.0, "learning_rate": 0.02, "tensorboard": False}
    out = tmp_path_factory.mktemp("runs") / "mine"
    result = pretrain(**text, model=MODEL, out=out, on_progress=reports.append, **settings)
    return result, reports, settings


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


def test_a_finished_run_returns_at_once_and_a_longer_one_goes_on(finished, text, tmp_path):
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


def test_training_stops_when_the_heldout_text_is_not_learned_any_more(text, tmp_path):
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
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    assert metrics._open_tensorboard(tmp_path) is None


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_writes_its_events(tmp_path):
    pytest.importorskip("tensorboard")
    (tmp_path / "run").mkdir()
    with metrics.Metrics(tmp_path / "run", tensorboard=True) as written:
        written.write(1, {"loss": 2.0})
    assert list((tmp_path / "run" / "tensorboard").iterdir())


# ---- other models by recipe alone ------------------------------------------------------------------------------------


def test_a_word_level_model_trains_by_its_recipe_alone(text, tmp_path):
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


def test_fine_tuning_goes_on_from_weights_softmax_and_vocabulary(finished, text, tmp_path):
    result, _, _ = finished
    new = make_text(tmp_path / "new.txt", seed=7, num_sentences=60)
    settings = {**SETTINGS, "steps": 4, "eval_every": 1, "learning_rate": 1e-9}
    tuned = finetune(result.folder, train=new, heldout=text["heldout"], out=tmp_path / "tuned", **settings)
    # nothing was learned at that rate: the model is the one that was given
    assert tuned.last.both == pytest.approx(result.best.both, rel=1e-3)
    assert load(tmp_path / "tuned").vocabulary.digest == load(result.folder).vocabulary.digest


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


# ---- kill -9, at any moment ------------------------------------------------------------------------------------------

CHILD = """
    import json, os, random, signal, sys, threading, time
    import torch

    torch.set_num_threads(1)
    from elmokit.config import BiLMConfig
    from elmokit.pretraining import pretrain
    from elmokit.storage import snapshots
    from elmokit.pretraining.step import Learner

    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    def run(out, kill):
        if kill == "in the tensors":
            def torn(tensors, path):
                with open(path, "wb") as file:
                    file.write(b"half a file")
                die()
            snapshots.save_file = torn
        elif kill == "before the rename":
            replace = os.replace
            os.replace = lambda a, b: die() if os.path.basename(b).startswith("step-") else replace(a, b)
        elif kill == "while old ones are removed":
            snapshots.shutil.rmtree = lambda path, **_: die() if os.path.exists(path) else None
        elif kill is not None:
            # a moment inside one of the steps
            step, left = Learner.step, [kill]
            def until(self, *given):
                left[0] -= 1
                if left[0] < 0:
                    threading.Timer(-left[0] * 1e-3 * random.random(), die).start()
                step(self, *given)
            Learner.step = until
        pretrain(out=out, model=BiLMConfig(**MODEL), **SETTINGS)

    def fork(out, kill):
        pid = os.fork()  # the imports are done once
        if pid == 0:
            try:
                run(out, kill)
            except BaseException:
                import traceback
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        return os.waitpid(pid, 0)[1]

    job = json.loads(sys.argv[1])
    MODEL, SETTINGS = job["model"], job["settings"]
    MODEL["filters"] = tuple(map(tuple, MODEL["filters"]))
    statuses = [fork(job["whole"], None)]
    for kill in job["kills"]:
        statuses.append(fork(job["killed"], kill))
    statuses.append(fork(job["killed"], None))
    print(json.dumps(statuses))
"""


def run_killed(folder: Path, text: dict[str, str], kills: list, **settings) -> list[int]:
    """Statuses of a run that was let alone, of runs in another folder that were killed, and of the one that ends it."""
    job = {
        "model": dataclasses.asdict(MODEL), "settings": {**SETTINGS, **text, **settings}, "kills": kills,
        "whole": str(folder / "whole"), "killed": str(folder / "killed"),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(CHILD), json.dumps(job)],
        capture_output=True, text=True, timeout=600,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return json.loads(done.stdout)


def check_same_run(folder: Path) -> None:
    for name in ("model.safetensors", "softmax.safetensors", "vocabulary.txt", "metrics.jsonl", "README.md"):
        whole, killed = (folder / which / name for which in ("whole", "killed"))
        expected = (
            whole.read_text().replace("/whole", "/killed").encode() if name == "README.md" else whole.read_bytes()
        )
        assert killed.read_bytes() == expected, name
    last = [Snapshots(folder / which / "checkpoints").newest() for which in ("whole", "killed")]
    assert last[0] == last[1]
    whole, killed = (Snapshots(folder / which / "checkpoints").load(last[0]) for which in ("whole", "killed"))
    assert all(torch.equal(tensor, killed.tensors[name]) for name, tensor in whole.tensors.items())
    assert whole.values == killed.values


@pytest.mark.parametrize("loss", [{"state_reset": 0.3}, SAMPLED], ids=["full", "sampled"])
def test_a_run_that_is_killed_at_any_moment_ends_as_if_it_had_not_been(text, tmp_path, loss):
    kills = [2, "in the tensors", 5, "before the rename", 2, "while old ones are removed"]
    statuses = run_killed(tmp_path, text, kills, **loss)
    assert statuses[0] == statuses[-1] == 0
    assert statuses[1:-1] == [signal.SIGKILL] * len(kills)
    check_same_run(tmp_path)


@pytest.mark.slow
def test_a_run_that_is_killed_twenty_times_ends_as_if_it_had_not_been(text, tmp_path):
    rng = random.Random(11)
    kills: list = [rng.randrange(2, 12) for _ in range(20)] + ["in the tensors", "before the rename"] * 2
    rng.shuffle(kills)
    settings = {"steps": 150, "eval_every": 15, "checkpoint_every": 5, "log_every": 7, "accumulation": 2}
    statuses = run_killed(tmp_path, text, kills, **settings)
    assert statuses[0] == statuses[-1] == 0
    assert statuses.count(signal.SIGKILL) >= 20
    check_same_run(tmp_path)


# ---- checkpoints -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["tensors", "values", "missing", "other"])
def test_a_torn_checkpoint_is_never_loaded(tmp_path, damage):
    kept = Snapshots(tmp_path)
    for step in (1, 2):
        kept.save(Snapshot(step, {"x": torch.full((100,), float(step))}, {"n": step}))
    assert (kept.newest(), kept.load(2).values, float(kept.load(2).tensors["x"][0])) == (2, {"n": 2}, 2.0)
    folder = tmp_path / "step-00000002"
    if damage == "tensors":
        content = bytearray((folder / "tensors.safetensors").read_bytes())
        content[-1] ^= 1
        (folder / "tensors.safetensors").write_bytes(content)
    elif damage == "values":
        (folder / "snapshot.json").write_text((folder / "snapshot.json").read_text().replace('"n": 2', '"n": 3'))
    elif damage == "missing":
        (folder / "tensors.safetensors").unlink()
    else:
        (folder / "snapshot.json").write_text("[]")
    assert kept.newest() == 1
    with pytest.raises(ValueError, match="incomplete or damaged"):
        kept.load(2)
    kept.save(Snapshot(2, {"x": torch.zeros(3)}, {}))  # training comes by again
    assert kept.newest() == 2


def test_no_checkpoint_is_no_error(tmp_path):
    assert Snapshots(tmp_path / "none").newest() is None


def test_a_full_disk_keeps_the_older_checkpoint_and_says_so(text, tmp_path):
    settings = {**SETTINGS, "steps": 6, "checkpoint_every": 3}
    pretrain(**text, model=MODEL, out=tmp_path, **{**settings, "steps": 3})
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = (tmp_path / "checkpoints" / "step-00000003" / "tensors.safetensors").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size - 100, limit[1]))  # the checkpoint does not fit, all else does
    try:
        with pytest.raises(
            OSError, match=r"could not be written .* that of step 3 is complete: free disk space and start again"
        ):
            pretrain(**text, model=MODEL, out=tmp_path, **settings)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert Snapshots(tmp_path / "checkpoints").newest() == 3
    assert not list((tmp_path / "checkpoints").glob(".*"))
    assert pretrain(**text, model=MODEL, out=tmp_path, **settings).step == 6


def test_a_full_disk_at_the_first_checkpoint_or_for_the_model_is_clear_too(text, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(snapshots, "save_file", full)
    with pytest.raises(OSError, match="there is no older one"):
        pretrain(**text, model=MODEL, out=tmp_path / "a", **SETTINGS)
    monkeypatch.setattr(loop.model_folder, "save", full)
    with pytest.raises(OSError, match="the model could not be written"):
        pretrain(**text, model=MODEL, out=tmp_path / "b", **{**SETTINGS, "checkpoint_every": 100})


def test_a_checkpoint_of_other_sizes_is_refused(corpus):
    learner, other = make_learner(corpus), make_learner(corpus, model=dataclasses.replace(MODEL, cell_dim=9))
    with pytest.raises(ValueError, match="here: values is"):
        learner.restore(other.tensors(), source="here")
    with pytest.raises(ValueError, match="here: squares is missing"):
        learner.restore({"values": learner.optimizer.flat.values}, source="here")


# ---- what ends a run early -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_leaves_a_checkpoint_and_a_clear_line_and_the_run_goes_on_later(text, tmp_path, caplog, name):
    def at_step_four(report: Progress) -> None:
        if report.step == 4:
            os.kill(os.getpid(), getattr(signal, name))

    before = signal.getsignal(getattr(signal, name))
    stopped = pretrain(**text, model=MODEL, out=tmp_path / "a", on_progress=at_step_four, **SETTINGS)
    assert (stopped.ended, stopped.step) == (name, 4)
    assert f"{name}: stopped after step 4 of 12" in caplog.text
    assert signal.getsignal(getattr(signal, name)) is before
    ended = pretrain(**text, model=MODEL, out=tmp_path / "a", **SETTINGS)
    pretrain(**text, model=MODEL, out=tmp_path / "b", **SETTINGS)
    assert ended.ended == "steps"
    for file in ("model.safetensors", "metrics.jsonl"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


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


def test_an_error_in_the_loaders_thread_reaches_the_caller(corpus):
    class Broken:
        def next(self):
            raise RuntimeError("the disk is gone")

    loader = Loader(Broken(), BatchMaker(corpus, MODEL, static_shapes=False), accumulation=1, pin=False)
    with pytest.raises(RuntimeError, match="the disk is gone"):
        next(iter(loader))
    loader.close()


# ---- several processes -----------------------------------------------------------------------------------------------

WORKER = """
    import json, os, signal, sys
    import torch

    torch.set_num_threads(1)
    from pathlib import Path
    from elmokit.config import BiLMConfig
    from elmokit.pretraining import pretrain
    from elmokit.pretraining.step import Learner

    job = json.loads(sys.argv[1])
    mark, step = Path(job["mark"]), Learner.step

    def killed(self, given, rates):
        if rates.step == 8 and os.environ["RANK"] == "1" and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        step(self, given, rates)

    Learner.step = killed
    job["model"]["filters"] = tuple(map(tuple, job["model"]["filters"]))
    pretrain(model=BiLMConfig(**job["model"]), **job["settings"])
"""


@pytest.mark.parametrize("loss", [{"ema_decay": None}, {**SAMPLED, "accumulation": 2}], ids=["full", "sampled"])
def test_two_processes_are_as_one_also_when_one_is_killed_and_torchrun_starts_them_again(text, tmp_path, loss):
    settings = {**SETTINGS, **loss, "dropout": 0.0, **text}
    pretrain(model=MODEL, out=tmp_path / "one", **settings)
    script = tmp_path / "worker.py"
    script.write_text(textwrap.dedent(WORKER))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    job = {"model": dataclasses.asdict(MODEL), "mark": str(tmp_path / "mark")}
    job["settings"] = {**settings, "out": str(tmp_path / "two")}
    done = subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--max-restarts=1",
            "--monitor-interval=0.1", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}",
            "--local-addr=127.0.0.1", str(script), json.dumps(job),
        ],
        capture_output=True, text=True, timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE), "GLOO_SOCKET_IFNAME": "lo"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "mark").exists()
    one, two = (lines(tmp_path / which / "metrics.jsonl") for which in ("one", "two"))
    assert len(one) == len(two) == 6 + 3
    for expected, found in zip(one, two, strict=True):
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-5)


SECOND = """
    import json, sys
    import torch

    torch.set_num_threads(1)
    from elmokit.config import BiLMConfig
    from elmokit.pretraining import pretrain

    job = json.loads(sys.argv[1])
    job["model"]["filters"] = tuple(map(tuple, job["model"]["filters"]))
    print(pretrain(model=BiLMConfig(**job["model"]), **job["settings"]).ended)
"""


@pytest.mark.parametrize("loss", [{}, SAMPLED], ids=["full", "sampled"])
def test_a_signal_to_one_process_stops_all_and_any_number_of_processes_goes_on(text, tmp_path, monkeypatch, loss):
    settings = {**SETTINGS, **loss, "dropout": 0.0, **text}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    group = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    group |= {"GLOO_SOCKET_IFNAME": "lo"}
    job = {"model": dataclasses.asdict(MODEL), "settings": {**settings, "out": str(tmp_path / "two")}}
    second = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SECOND), json.dumps(job)],
        env={**os.environ, **group, "RANK": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    for name, value in {**group, "RANK": "0"}.items():
        monkeypatch.setenv(name, value)

    def at_step_four(report: Progress) -> None:
        if report.step == 4:
            second.terminate()

    result = pretrain(model=MODEL, out=tmp_path / "two", on_progress=at_step_four, **settings)
    output, errors = second.communicate(timeout=120)
    assert (result.ended, output.strip()) == ("SIGTERM", "SIGTERM"), errors
    assert 4 <= result.step < 12
    for name in [*group, "RANK"]:
        monkeypatch.delenv(name)
    assert pretrain(model=MODEL, out=tmp_path / "two", **settings).step == 12
    pretrain(model=MODEL, out=tmp_path / "one", **settings)
    one, two = (lines(tmp_path / which / "metrics.jsonl") for which in ("one", "two"))
    for expected, found in zip(one, two, strict=True):
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_rows_that_processes_cannot_share_are_refused(text, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "join_processes", lambda device: contextlib.nullcontext(Processes(0, 3)))
    with pytest.raises(ValueError, match="batch_size is 4, which 3 processes cannot share evenly"):
        pretrain(**text, model=MODEL, out=tmp_path, **SETTINGS)


def test_a_device_that_is_not_there_is_refused(text, tmp_path):
    with pytest.raises(ValueError, match="device 'gpu' cannot be used"):
        pretrain(**text, model=MODEL, out=tmp_path, **{**SETTINGS, "device": "gpu"})
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="device 'cuda' cannot be used"):
            pretrain(**text, model=MODEL, out=tmp_path, **{**SETTINGS, "device": "cuda"})


def test_bfloat16_is_refused_on_a_cpu_where_it_ends_the_process(text, tmp_path, monkeypatch):
    monkeypatch.setattr("elmokit.kernels.bfloat16_works", lambda: False)
    with pytest.raises(ValueError, match="bfloat16 products crash on this CPU"):
        pretrain(**text, model=MODEL, out=tmp_path, precision="bfloat16", **SETTINGS)


@pytest.mark.gpu
@pytest.mark.parametrize("loss", [{"ema_decay": 0.9}, {**SAMPLED, "accumulation": 2}], ids=["full", "sampled"])
def test_a_gpu_takes_the_same_steps_recorded_or_not_and_as_the_cpu_takes_them(corpus, loss, caplog):
    model = dataclasses.replace(MODEL, cell_dim=64, projection_dim=32)
    settings = {**SETTINGS, "dropout": 0.0, **loss}

    def losses(device: str, *, recorded: bool) -> list[list[float]]:
        torch.manual_seed(0)
        made = LanguageModel(model, int(corpus.form_targets.max()) + 1)
        learner = Learner(made, config(**settings), Processes(device=torch.device(device)))
        if learner._recorder is not None:
            learner._recorder._works = recorded
        streams = Streams(corpus, batch_size=4, unroll=5, seed=1)
        maker = BatchMaker(corpus, model, static_shapes=device == "cuda")
        loader = Loader(streams, maker, accumulation=learner.config.accumulation, pin=device == "cuda")
        found = []
        for number, batches in zip(range(1, 11), loader, strict=False):
            learner.step(batches, rates(number, learning_rate=0.01, output_learning_rate=0.01))
            learner.finish()
            found.append(learner.loss_sums.tolist())
        loader.close()
        return found

    recorded = losses("cuda", recorded=True)
    assert "cannot be recorded" not in caplog.text
    np.testing.assert_allclose(recorded, losses("cuda", recorded=False), rtol=1e-4)
    if settings["loss"] == "full":  # a GPU draws other negatives
        np.testing.assert_allclose(recorded, losses("cpu", recorded=False), rtol=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("loss", "steps"), [({}, 40), ({**SAMPLED, "learning_rate": 0.5}, 300)], ids=["full", "sampled"]
)
def test_a_gpu_learns_in_bfloat16_and_goes_on_after_a_stop(text, tmp_path, loss, steps):
    model = dataclasses.replace(MODEL, cell_dim=64, projection_dim=32)
    settings = {**SETTINGS, **loss, "device": "cuda", "precision": "bfloat16", "batch_size": 16, "steps": steps}
    settings |= {"eval_every": steps // 4}
    first = pretrain(**text, model=model, out=tmp_path, **settings)
    second = pretrain(**text, model=model, out=tmp_path, **{**settings, "steps": 2 * steps})
    assert second.best.both < first.best.both < first.unigram


# ---- recipes and bad input -------------------------------------------------------------------------------------------


def test_every_recipe_of_the_project_reads():
    recipes = sorted(path.stem for path in RECIPES.glob("*.toml"))
    assert {"tiny", "small", "medium", "original", "word-level", "chinese"} <= set(recipes)
    for name in recipes:
        load_recipe(RECIPES / f"{name}.toml")


@pytest.mark.parametrize(("name", "count"), [("small", 13_593_296), ("medium", 28_027_728), ("original", 93_600_848)])
def test_the_published_sizes_have_their_published_parameters(name, count):
    _, model = load_recipe(RECIPES / f"{name}.toml")
    with torch.device("meta"):
        assert sum(parameter.numel() for parameter in BiLM(model).parameters()) == count


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


def test_overrides_change_a_recipe(tmp_path):
    recipe, model = load_recipe(
        RECIPES / "tiny.toml",
        ["train=a b.txt", 'heldout=["x", "y"]', "model.cell_dim=17", "ema_decay=null", "seed = 5"],
    )
    assert (recipe.train, recipe.heldout, recipe.ema_decay, recipe.seed) == ("a b.txt", ("x", "y"), None, 5)
    assert model.cell_dim == 17


@pytest.mark.parametrize(
    ("content", "override", "message"),
    [
        ("batch_sise = 4", None, "unknown key 'batch_sise'"),
        ("batch_size = 'many'", None, "batch_size must be int, not 'many'"),
        ("[model]\ncells = 4", None, "unknown key 'cells'"),
        ("[model]\ncell_dim = 0", None, "cell_dim must be at least 1"),
        ("batch_size = ", None, "not a TOML file"),
        ("", "batch_size", "write a setting as key=value"),
        ("", "batch_size=0", "batch_size must be at least 1, not 0"),
        ("", "learning_rate=0", "learning_rate must be above 0"),
        ("", "dropout=1", "dropout must be 0 or more and less than 1"),
        ("", "betas=[0.5, 1.5]", "betas must be 0 or more and less than 1"),
        ("", "final_rate=2", "final_rate must be from 0 to 1"),
        ("", "state_reset=-0.1", "state_reset must be from 0 to 1"),
        ("", "train=[]", "train is empty"),
        ("", "patience=3", "no heldout text to measure"),
        ("", "nowhere.key=3", "unknown key 'nowhere'"),
    ],
)
def test_a_bad_recipe_names_the_file_and_the_key(tmp_path, content, override, message):
    path = tmp_path / "recipe.toml"
    path.write_text('train = "a"\nout = "b"\n' + content)
    with pytest.raises(ValueError, match=r"recipe\.toml") as caught:
        load_recipe(path, [override] if override else [])
    assert message in str(caught.value)


def test_a_recipe_that_is_not_there_and_one_without_text_are_refused(tmp_path):
    with pytest.raises(ValueError, match="no such recipe"):
        load_recipe(tmp_path / "none.toml")
    (tmp_path / "empty.toml").write_text("")
    with pytest.raises(ValueError, match="train"):
        load_recipe(tmp_path / "empty.toml")


def test_an_unknown_setting_of_pretrain_is_named(text, tmp_path):
    with pytest.raises(ValueError, match="unknown key 'batchsize'"):
        pretrain(**text, model=MODEL, out=tmp_path, batchsize=3)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no word in"),
        ("one line\n", "give more text or a smaller batch_size"),
        ("\n\n \n", "no word in"),
    ],
)
def test_text_that_is_empty_or_too_short_is_refused(tmp_path, content, message):
    (tmp_path / "text.txt").write_text(content)
    with pytest.raises(ValueError, match=message):
        pretrain(train=tmp_path / "text.txt", model=MODEL, out=tmp_path / "run", **SETTINGS)


def test_invalid_utf8_is_replaced_counted_and_trained_on(tmp_path, caplog):
    (tmp_path / "text.txt").write_bytes(b"good line here .\nbad \xff\xfe line .\n" * 40)
    assert (
        pretrain(train=tmp_path / "text.txt", model=MODEL, out=tmp_path / "run", **{**SETTINGS, "steps": 1}).step == 1
    )
    assert "40 lines" in caplog.text


def test_a_prepared_corpus_needs_its_own_vocabulary(corpus, text, tmp_path):
    with pytest.raises(ValueError, match="give the vocabulary file that it was prepared with"):
        pretrain(train=corpus.folder, model=MODEL, out=tmp_path / "a", **SETTINGS)
    Vocabulary(["<S>", "</S>", "<UNK>", "she"]).save(tmp_path / "other.txt")
    with pytest.raises(ValueError, match="was prepared with the vocabulary"):
        pretrain(
            train=corpus.folder, model=MODEL, out=tmp_path / "b", vocabulary=str(tmp_path / "other.txt"), **SETTINGS
        )
    build_vocabulary(text["train"], size=20, tokenized=True).save(tmp_path / "own.txt")
    settings = {**SETTINGS, "steps": 1, "vocabulary": str(tmp_path / "own.txt")}
    assert pretrain(train=corpus.folder, model=MODEL, out=tmp_path / "c", **settings).step == 1


@pytest.mark.parametrize(("words", "message"), [(["a", "b"], "missing"), (["<S>", "</S>", "<UNK>", "a", "a"], "twice")])
def test_a_vocabulary_without_specials_or_with_duplicates_is_refused(text, tmp_path, words, message):
    (tmp_path / "vocabulary.txt").write_text("\n".join(words) + "\n")
    with pytest.raises(ValueError, match=rf"vocabulary.txt: .*{message}"):
        pretrain(**text, model=MODEL, out=tmp_path / "a", vocabulary=str(tmp_path / "vocabulary.txt"), **SETTINGS)


def test_more_negatives_than_words_are_refused(text, tmp_path):
    with pytest.raises(ValueError, match="use the full softmax"):
        pretrain(**text, model=MODEL, out=tmp_path, **{**SETTINGS, **SAMPLED, "num_negatives": 1000})


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
