"""Muon: an update is that of the definition in NumPy, a run that stops resumes bit by bit, and it learns."""

import dataclasses
import functools
import math

import numpy as np
import pytest
import torch
from tiny_runs import BLOCKS, MODEL, MUON, assert_stopped_run_resumes, make_learner, rates, step_batches

from elmokit.config import BiLMConfig
from elmokit.pretraining import muon, pretrain
from elmokit.pretraining.step import Learner
from elmokit.storage.snapshots import Snapshots

RUN = {**MUON, "steps": 40, "eval_every": 10, "checkpoint_every": 10, "log_every": 10}
BY_MUON = {
    *(f"bilm.layers.{n}.{kind}" for n in (0, 1) for kind in ("input_weight", "recurrent_weight", "projection")),
    *(f"bilm.char_encoder.highways.0.{kind}.weight" for kind in ("transform", "carry")),
    "bilm.char_encoder.projection.weight",
}


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
    learner = make_learner(
        corpus, dtype=torch.float64, **{**MUON, "dropout": 0.0, "ema_decay": None, "weight_decay": weight_decay}
    )
    parameters = dict(learner.model.named_parameters())
    assert set(learner.optimizer._muon_names) == BY_MUON
    momenta = {name: np.zeros(parameters[name].shape) for name in BY_MUON}
    for number, given in enumerate(step_batches(corpus, 3), 1):
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
    learner, other = (
        make_learner(corpus, dtype=torch.float64, **{**MUON, "optimizer": optimizer}) for optimizer in ("muon", "adamw")
    )
    (given,) = step_batches(corpus, 1)
    for one in (learner, other):
        one.step(given, rates(1, learning_rate=0.02, output_learning_rate=0.02))
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
    settings = {**RUN, "batch_size": 8, "steps": 150, "eval_every": 50, "learning_rate": 0.03, "dropout": 0.0}
    found = pretrain(**text, model=MODEL, out=tmp_path, **settings)
    assert found.best_step == 150
    assert found.last.both < 0.5 * found.unigram


@pytest.mark.parametrize("loss", [{}, {"loss": "sampled", "num_negatives": 4}], ids=["full", "sampled"])
def test_a_run_that_stopped_resumes_bit_by_bit(text, tmp_path, loss):
    settings = {**RUN, **loss}
    run = functools.partial(pretrain, **text, model=MODEL, **settings)
    step, left = Learner.step, [25]

    def until(self, *given):
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        step(self, *given)

    def stop_in_step_25(out):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Learner, "step", until)
            with pytest.raises(KeyboardInterrupt):
                run(out=out)

    assert_stopped_run_resumes(tmp_path, run, stop_in_step_25)
    last = Snapshots(tmp_path / "complete" / "checkpoints").load(40).tensors
    assert {"means", "average"} <= set(last)


LSTM = dataclasses.replace(MODEL, cell_dim=64, projection_dim=32)
TRANSFORMER = dataclasses.replace(BLOCKS, projection_dim=32, feedforward_dim=64)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("model", "precision", "state_reset"),
    [
        (LSTM, "float32", 0.2),
        (TRANSFORMER, "float32", 0.3),
        (TRANSFORMER, "float32", 1.0),
        (TRANSFORMER, "bfloat16", 0.3),
        (TRANSFORMER, "bfloat16", 1.0),
    ],
    ids=lambda value: value.architecture if isinstance(value, BiLMConfig) else None,
)
def test_a_gpu_takes_the_same_steps_recorded_or_not(corpus, caplog, model, precision, state_reset):
    settings = {**MUON, "device": "cuda", "dropout": 0.0, "precision": precision, "state_reset": state_reset}

    def losses(*, recorded):
        learner = make_learner(corpus, model=model, **settings)
        learner._recorder._works = recorded
        found = []
        for number, given in enumerate(step_batches(corpus, 10, model=model, static_shapes=True), 1):
            learner.step(given, rates(number, learning_rate=0.01, output_learning_rate=0.01))
            learner.finish()
            found.append(learner.loss_sums.tolist())
        return found

    recorded = losses(recorded=True)
    assert "cannot be recorded" not in caplog.text
    np.testing.assert_allclose(recorded, losses(recorded=False), rtol=1e-2)
