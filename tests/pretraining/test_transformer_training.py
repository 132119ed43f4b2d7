"""Training of a transformer biLM: state is carried or reset, Muon updates its matrices, a run resumes bit by bit."""

import functools
import json

import numpy as np
import pytest
import torch
from tiny_runs import (
    BLOCKS,
    MODEL,
    MUON,
    SETTINGS,
    assert_stopped_run_resumes,
    lines,
    make_learner,
    rates,
    step_batches,
)

from elmokit import ELMo
from elmokit.corpus.heldout import heldout_perplexity
from elmokit.pretraining import finetune, muon, pretrain
from elmokit.storage.snapshots import Snapshots
from transformer_models import random_transformer


def test_state_is_carried_without_gradient_and_reset_rows_start_anew(corpus):
    learner = make_learner(corpus, model=BLOCKS, dropout=0.0)
    for batches in step_batches(corpus, 3, model=BLOCKS):
        learner.step(batches, rates(1))
    assert learner.state.num_past.tolist() == [[[3] * 4]]
    assert not learner.state.past_keys.requires_grad
    assert learner.state.past_keys.any()
    learner = make_learner(corpus, model=BLOCKS, dropout=0.0, state_reset=0.99)
    for batches in step_batches(corpus, 1, model=BLOCKS, unroll=2):
        learner.step(batches, rates(1))
    learner._reset_rows(learner.state)
    assert learner.state.num_past.tolist() == [[[0] * 4]]


def test_rows_that_are_always_reset_carry_nothing_and_have_the_losses_of_rows_that_start_anew(corpus):
    reset, carried = (make_learner(corpus, model=BLOCKS, dropout=0.0, state_reset=rate) for rate in (1.0, 0.0))
    assert reset.state is None
    assert not {"past_keys", "past_values", "num_past"} & set(reset.tensors())
    batch = step_batches(corpus, 1, model=BLOCKS, unroll=7)[0].batches[0]
    for one, other in zip(reset.losses(batch, None)[:2], carried.losses(batch, carried.state)[:2], strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


def test_muon_updates_every_matrix_of_a_block_as_its_parts():
    torch.manual_seed(0)
    for name, shape, parts in [
        ("bilm.layers.0.attention_input", (2, 4, 12), 3),
        ("bilm.layers.0.attention_output", (2, 4, 4), 1),
        ("bilm.layers.0.feedforward_input", (2, 4, 10), 2),
        ("bilm.layers.0.feedforward_output", (2, 5, 4), 1),
    ]:
        assert muon.is_matrix(name)
        momentum, value = torch.randn(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.float64)
        muon.update([(name, value, momentum.clone())], torch.tensor(1.0, dtype=torch.float64))
        for d in range(2):
            for given, moved in zip(momentum[d].chunk(parts, dim=1), value[d].chunk(parts, dim=1), strict=True):
                rows, columns = given.shape
                left, _, right = torch.linalg.svd(given, full_matrices=False)
                step = -moved / (0.2 * max(rows, columns) ** 0.5)
                singular = torch.linalg.svdvals(step)
                assert ((singular > 0.6) & (singular < 1.3)).all()
                # the directions are those of the momentum: only singular values change
                inside = left.T @ step @ right.T
                torch.testing.assert_close(inside, torch.diag(inside.diagonal()), rtol=0, atol=1e-10)


def test_a_run_learns_and_one_that_is_stopped_resumes_bit_by_bit(text, tmp_path):
    settings = {**MUON, "steps": 40, "eval_every": 10, "checkpoint_every": 10, "batch_size": 8, "learning_rate": 0.02}
    run = functools.partial(pretrain, **text, model=BLOCKS, **settings)

    class StopError(Exception):
        pass

    def stop(progress):
        if progress.step == 26:
            raise StopError

    def stop_in_step_26(out):
        with pytest.raises(StopError):
            run(out=out, on_progress=stop)

    complete = assert_stopped_run_resumes(tmp_path, run, stop_in_step_26)
    assert complete.best.both < 0.6 * complete.unigram
    last = Snapshots(tmp_path / "complete" / "checkpoints").load(40).tensors
    assert {"past_keys", "past_values", "num_past"} <= set(last)
    losses = [line["loss"] for line in lines(tmp_path / "complete" / "metrics.jsonl") if "loss" in line]
    assert losses[-1] < losses[0]

    # the model of the run is one that everything takes
    elmo = ELMo.from_pretrained(tmp_path / "complete")
    assert elmo.config == BLOCKS
    assert elmo.embed(["she left the money by the bank ."])[0].shape == (8, 16)
    recipe = json.loads((tmp_path / "complete" / "recipe.json").read_text())
    assert recipe["model"]["architecture"] == "transformer"
    assert "cell_dim" not in recipe["model"]
    tuned = finetune(tmp_path / "complete", **text, out=tmp_path / "tuned", steps=4, batch_size=4, device="cpu",
                     tensorboard=False)  # fmt: skip
    assert tuned.last.both < 1.1 * complete.best.both


def test_a_folder_of_an_lstm_run_is_not_resumed_with_a_transformer(text, tmp_path):
    settings = {**SETTINGS, "steps": 2}
    pretrain(**text, model=MODEL, out=tmp_path, **settings)
    with pytest.raises(ValueError, match="holds a run with model = "):
        pretrain(**text, model=BLOCKS, out=tmp_path, **settings)


def test_the_heldout_perplexity_does_not_depend_on_the_unroll(corpus):
    model = random_transformer(2, attention_window=6)
    learner = make_learner(corpus, model=model.bilm().config)
    learner.model.bilm.load_state_dict(model.bilm().state_dict())
    found = [
        heldout_perplexity(learner.model.bilm, learner.model.output, corpus, batch_size=9, unroll=unroll).both
        for unroll in (9, 40)
    ]
    assert found[0] == pytest.approx(found[1], rel=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_gpu_gives_what_the_reference_gives(dtype):
    model = random_transformer(3, attention_window=6)
    sentences = [["The", "bank", "lent", "money", "to", "the", "mill", "."], ["Yes"], []]
    bilm = model.bilm().to("cuda", dtype)
    first = bilm(model.ids(sentences).cuda())
    second = bilm(model.ids(sentences).cuda(), state=first.state)
    tolerance = {torch.float32: 1e-4, torch.float16: 0.03, torch.bfloat16: 0.2}[dtype]
    for row, sentence in enumerate(sentences):
        run = model.expected(sentence)
        again = model.expected(sentence, past=run.past)
        for output, expected in ((first, run), (second, again)):
            found = output.layers[:, row, : len(sentence)].double().cpu().numpy()
            np.testing.assert_allclose(found, expected.layers, rtol=0, atol=tolerance)
