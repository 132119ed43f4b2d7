"""Muon: an update is that of the definition in NumPy, a run that stops resumes bit by bit, and it learns."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from tiny_runs import MODEL

from elmokit.corpus import Streams, build_vocabulary, prepare
from elmokit.pretraining import PretrainConfig, muon, pretrain
from elmokit.pretraining.batches import BatchMaker, StepBatches
from elmokit.pretraining.optimizers import Rates
from elmokit.pretraining.processes import Processes
from elmokit.pretraining.step import LanguageModel, Learner
from elmokit.storage.snapshots import Snapshots

SETTINGS = {
    "batch_size": 4, "unroll": 5, "steps": 40, "eval_every": 10, "checkpoint_every": 10, "log_every": 10,
    "loss": "full", "optimizer": "muon", "learning_rate": 0.01, "warmup_steps": 2, "final_rate": 0.1, "clip_norm": 1.0,
    "ema_decay": 0.9, "dropout": 0.1, "state_reset": 0.2, "eval_batch_size": 2, "tensorboard": False, "device": "cpu",
    "tokenized": True,
}  # fmt: skip
BY_MUON = {
    *(f"bilm.layers.{n}.{kind}" for n in (0, 1) for kind in ("input_weight", "recurrent_weight", "projection")),
    *(f"bilm.char_encoder.highways.0.{kind}.weight" for kind in ("transform", "carry")),
    "bilm.char_encoder.projection.weight",
}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    lines = [f"{who} left the {what} by the {where} ." for who in ("she", "he", "nobody")
             for what, where in (("money", "bank"), ("fish", "river"), ("bread", "oven"))]  # fmt: skip
    (folder / "train.txt").write_text("\n".join(lines * 20) + "\n")
    (folder / "heldout.txt").write_text("\n".join(lines) + "\n")
    return {"train": str(folder / "train.txt"), "heldout": str(folder / "heldout.txt")}


@pytest.fixture(scope="module")
def corpus(text, tmp_path_factory):
    vocabulary = build_vocabulary(text["train"], tokenized=True)
    return prepare(text["train"], tmp_path_factory.mktemp("corpus"), vocabulary=vocabulary, tokenized=True)


def make_learner(corpus, *, dtype=torch.float64, device="cpu", model=MODEL, **settings):
    torch.manual_seed(0)
    made = LanguageModel(model, int(corpus.form_targets.max()) + 1).to(dtype)
    config = PretrainConfig(train="-", out="-", **{**SETTINGS, **settings})
    return Learner(made, config, Processes(device=torch.device(device)))


def make_steps(corpus, number, *, static_shapes=False):
    streams = Streams(corpus, batch_size=4, unroll=5, seed=1)
    maker = BatchMaker(corpus, MODEL, static_shapes=static_shapes)
    return [StepBatches([maker.make(streams.next())], streams.state) for _ in range(number)]


def orthogonal(matrix):
    """Five Newton-Schulz steps, as they are written."""
    x = matrix / np.linalg.norm(matrix)
    if x.shape[0] > x.shape[1]:
        return orthogonal(matrix.T).T
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x


def gates(weight):
    """(P, 4C) -> the four matrices (P, C), and back."""
    return np.split(weight, 4, axis=1)


def expected_update(name, momentum):
    """The update of one parameter, for a learning rate of 1."""
    if momentum.ndim == 3:  # a matrix for each direction
        return np.stack([expected_update(name, one) for one in momentum])
    if name.endswith(("input_weight", "recurrent_weight")):
        return np.concatenate([expected_update("gate", gate) for gate in gates(momentum)], axis=1)
    return 0.2 * math.sqrt(max(momentum.shape)) * orthogonal(momentum)


@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
def test_updates_are_those_of_the_definition(corpus, weight_decay):
    learner = make_learner(corpus, dropout=0.0, ema_decay=None, weight_decay=weight_decay)
    parameters = dict(learner.model.named_parameters())
    assert set(learner.optimizer._muon_names) == BY_MUON
    momenta = {name: np.zeros(parameters[name].shape) for name in BY_MUON}
    for number, given in enumerate(make_steps(corpus, 3), 1):
        before = {name: parameter.detach().numpy().copy() for name, parameter in parameters.items()}
        learner._batches = given.batches
        learner._find_gradients()
        gradients = {name: parameter.grad.numpy().copy() for name, parameter in parameters.items()}
        scale = min(1.0, 1.0 / math.sqrt(sum((g**2).sum() for g in gradients.values())))
        learner._numbers.copy_(torch.tensor([number, 0.02, 0.02, 0.0, 1 - 0.9**number, 1 - 0.99**number]))
        learner._update()
        for name in BY_MUON:
            gradient = scale * gradients[name]
            momenta[name] = 0.95 * momenta[name] + gradient
            nesterov = gradient + 0.95 * momenta[name]
            expected = (1 - 0.02 * weight_decay) * before[name] - 0.02 * expected_update(name, nesterov)
            np.testing.assert_allclose(parameters[name].detach().numpy(), expected, atol=1e-6, err_msg=name)


def test_other_parameters_than_matrices_take_the_steps_of_adamw(corpus):
    learner, other = (make_learner(corpus, optimizer=optimizer) for optimizer in ("muon", "adamw"))
    (given,) = make_steps(corpus, 1)
    for one in (learner, other):
        one.step(given, Rates(1, 0.02, 0.02, 0.1))
    for (name, found), expected in zip(learner.model.named_parameters(), other.model.parameters(), strict=True):
        assert torch.equal(found, expected) == (name not in BY_MUON), name


@pytest.mark.parametrize("shape", [(3, 4, 9), (2, 6, 6)])
def test_singular_values_come_near_one(shape):
    torch.manual_seed(0)
    found = torch.linalg.svdvals(muon.orthogonalize(torch.randn(shape, dtype=torch.float64)))
    assert float(found.min()) > 0.5
    assert float(found.max()) < 1.3


def test_a_gradient_of_zeros_changes_nothing():
    value, momentum = torch.ones(2, 3, 8), torch.zeros(2, 3, 8)
    muon.update([("bilm.layers.0.input_weight", value, momentum)], torch.tensor(0.1))
    assert torch.equal(value, torch.ones(2, 3, 8))


def test_it_learns(text, tmp_path):
    settings = {**SETTINGS, "batch_size": 8, "steps": 150, "eval_every": 50, "learning_rate": 0.03, "dropout": 0.0}
    found = pretrain(**text, model=MODEL, out=tmp_path, **settings)
    assert found.best_step == 150
    assert found.last.both < 0.5 * found.unigram


@pytest.mark.parametrize("loss", [{}, {"loss": "sampled", "num_negatives": 4}], ids=["full", "sampled"])
def test_a_run_that_stopped_resumes_bit_by_bit(text, tmp_path, loss):
    settings = {**SETTINGS, **loss}
    pretrain(**text, model=MODEL, out=tmp_path / "whole", **settings)
    step, left = Learner.step, [25]

    def until(self, *given):
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        step(self, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Learner, "step", until)
        with pytest.raises(KeyboardInterrupt):
            pretrain(**text, model=MODEL, out=tmp_path / "stopped", **settings)
    assert Snapshots(tmp_path / "stopped" / "checkpoints").newest() == 20
    pretrain(**text, model=MODEL, out=tmp_path / "stopped", **settings)
    for name in ("model.safetensors", "softmax.safetensors", "metrics.jsonl"):
        assert (tmp_path / "stopped" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    last = [Snapshots(tmp_path / name / "checkpoints").load(40).tensors for name in ("whole", "stopped")]
    assert last[0].keys() == last[1].keys() >= {"means", "average"}
    assert all(torch.equal(tensor, last[1][name]) for name, tensor in last[0].items())


@pytest.mark.gpu
def test_a_gpu_takes_the_same_steps_recorded_or_not(corpus, caplog):
    model = dataclasses.replace(MODEL, cell_dim=64, projection_dim=32)

    def losses(*, recorded):
        learner = make_learner(corpus, dtype=torch.float32, device="cuda", model=model, dropout=0.0)
        learner._recorder._works = recorded
        found = []
        for number, given in enumerate(make_steps(corpus, 10, static_shapes=True), 1):
            learner.step(given, Rates(number, 0.01, 0.01, 0.1))
            learner.finish()
            found.append(learner.loss_sums.tolist())
        return found

    recorded = losses(recorded=True)
    assert "cannot be recorded" not in caplog.text
    np.testing.assert_allclose(recorded, losses(recorded=False), rtol=1e-2)
