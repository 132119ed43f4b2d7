"""Training of a transformer biLM: losses and gradients are exact, state is carried, and a run resumes bit by bit."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from tiny_runs import MODEL, SETTINGS, config, lines, make_learner, rates, step_batches

import reference_transformer
from elmokit import ELMo
from elmokit.config import BiLMConfig
from elmokit.corpus import Streams
from elmokit.corpus.heldout import heldout_perplexity
from elmokit.network import AttentionState
from elmokit.pretraining import finetune, muon, pretrain
from elmokit.pretraining.batches import BatchMaker, StepBatches
from elmokit.pretraining.processes import Processes
from elmokit.pretraining.step import LanguageModel, Learner
from elmokit.storage.snapshots import Snapshots
from elmokit.text import words_to_ids
from transformer_models import random_transformer

BLOCKS = BiLMConfig(
    char_dim=3, filters=((1, 4), (2, 5), (3, 4)), num_highways=1, architecture="transformer", projection_dim=8,
    num_heads=2, feedforward_dim=10, num_layers=3, attention_window=4,
)  # fmt: skip
MUON = {**SETTINGS, "optimizer": "muon", "state_reset": 0.2}


@pytest.mark.parametrize("state_reset", [0.0, 1.0])
def test_the_gradient_of_every_parameter_equals_finite_differences(corpus, state_reset):
    learner = make_learner(corpus, dtype=torch.float64, model=BLOCKS, dropout=0.0, state_reset=state_reset)
    batch = step_batches(corpus, 1, model=BLOCKS)[0].batches[0]
    rng = torch.Generator().manual_seed(3)
    state = None
    if learner.state is not None:
        past = [torch.randn(part.shape, generator=rng, dtype=part.dtype) for part in learner.state[:2]]
        state = AttentionState(*past, torch.tensor([[[3, 0, 1, 2]]]))

    def total() -> torch.Tensor:
        forward, backward, _ = learner.losses(batch, state)
        return forward + backward

    named = dict(learner.model.named_parameters())
    gradients = dict(zip(named, torch.autograd.grad(total(), list(named.values())), strict=True))
    for name, parameter in named.items():
        for _ in range(2):
            direction = torch.randn(parameter.shape, generator=rng, dtype=parameter.dtype)
            with torch.no_grad():
                values = parameter.clone()
                parameter.copy_(values + 1e-6 * direction)
                above = total()
                parameter.copy_(values - 1e-6 * direction)
                below = total()
                parameter.copy_(values)
            measured = float(above - below) / 2e-6
            assert float((gradients[name] * direction).sum()) == pytest.approx(measured, rel=1e-5, abs=1e-8), name


def test_the_losses_are_those_of_the_reference_with_state_carried_in_both_streams(corpus):
    model = random_transformer(2, attention_window=6)
    sizes = model.bilm().config
    learner = make_learner(corpus, model=sizes, dropout=0.0)
    learner.model.bilm.load_state_dict(model.bilm().state_dict())
    streams = Streams(corpus, batch_size=3, unroll=4, seed=1)
    maker = BatchMaker(corpus, sizes, static_shapes=False)
    state = learner.model.bilm.initial_state(3)
    weight, bias = (p.detach().double().numpy() for p in learner.model.output.parameters())
    words = {row.tobytes(): word for word, row in _forms()}
    pasts: list = [[{} for _ in range(3)] for _ in range(2)]
    for _ in range(3):
        read = streams.next()
        with torch.no_grad():
            *found, state = learner.losses(maker.make(read), state)
        for which, (inputs, targets) in enumerate(
            [(read.forward_inputs, read.forward_targets), (read.backward_inputs, read.backward_targets)]
        ):
            losses = []
            for row in range(3):
                for form, target in zip(inputs[row], targets[row], strict=True):
                    word = words[np.asarray(corpus.forms)[form].tobytes()]
                    vector = reference_transformer.token_vector(model.sizes, model.arrays, word, None)
                    x = reference_transformer.norm(vector)
                    top = reference_transformer.read(model.sizes, model.arrays, which, x, pasts[which][row])[-1]
                    logits = weight @ top + bias
                    losses.append(np.log(np.exp(logits - logits.max()).sum()) + logits.max() - logits[target])
            assert float(found[which]) == pytest.approx(np.mean(losses), rel=1e-5)


def _forms():
    """(word, its ids) of all words of the text."""
    grammar = "she he left the money fish bread by bank river oven today quietly ."
    words = ["<S>", "</S>", *grammar.split(), *(f"visitor{number}" for number in range(40))]
    return zip(words, words_to_ids(words), strict=True)


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
    complete = pretrain(**text, model=BLOCKS, out=tmp_path / "complete", **settings)
    assert complete.best.both < 0.6 * complete.unigram

    class StopError(Exception):
        pass

    def stop(progress):
        if progress.step == 26:
            raise StopError

    with pytest.raises(StopError):
        pretrain(**text, model=BLOCKS, out=tmp_path / "stopped", on_progress=stop, **settings)
    assert Snapshots(tmp_path / "stopped" / "checkpoints").newest() == 20
    pretrain(**text, model=BLOCKS, out=tmp_path / "stopped", **settings)
    for name in ("model.safetensors", "softmax.safetensors", "metrics.jsonl"):
        assert (tmp_path / "stopped" / name).read_bytes() == (tmp_path / "complete" / name).read_bytes(), name
    one, other = (Snapshots(tmp_path / name / "checkpoints").load(40).tensors for name in ("complete", "stopped"))
    assert {"past_keys", "past_values", "num_past"} <= set(one)
    assert all(torch.equal(one[name], other[name]) for name in {*one, *other})
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
@pytest.mark.parametrize("state_reset", [0.3, 1.0])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_gpu_takes_the_same_steps_recorded_or_not(corpus, caplog, precision, state_reset):
    model = dataclasses.replace(BLOCKS, projection_dim=32, feedforward_dim=64)

    def losses(*, recorded):
        torch.manual_seed(0)
        settings = {**MUON, "dropout": 0.0, "precision": precision, "state_reset": state_reset}
        made = LanguageModel(model, int(corpus.form_targets.max()) + 1)
        learner = Learner(made, config(**settings), Processes(device=torch.device("cuda")))
        learner._recorder._works = recorded
        streams, maker = Streams(corpus, batch_size=4, unroll=5, seed=1), BatchMaker(corpus, model, static_shapes=True)
        found = []
        for number in range(1, 11):
            learner.step(StepBatches([maker.make(streams.next())], streams.state), rates(number, learning_rate=0.01))
            learner.finish()
            found.append(learner.loss_sums.tolist())
        return found

    recorded = losses(recorded=True)
    assert "cannot be recorded" not in caplog.text
    np.testing.assert_allclose(recorded, losses(recorded=False), rtol=1e-2)


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
