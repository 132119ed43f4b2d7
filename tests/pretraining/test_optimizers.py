"""Updates: Adagrad, AdamW, the running average and the learning rate are those of their definitions."""

import dataclasses

import pytest
import torch
from tiny_runs import SAMPLED, config, make_learner, rates, step_batches

from elmokit.network.sampling import LogUniformSampler, Negatives
from elmokit.pretraining.optimizers import rates_at
from elmokit.pretraining.processes import Processes
from elmokit.pretraining.step import Learner


def plain_steps(learner: Learner, given, optimizer, *, scale: float, clip: float, negatives=None) -> None:
    """The same steps by torch's own optimizers, autograd and clipping, on a model that is not one flat tensor."""
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


def test_adamw_is_that_of_torch_with_decay_on_matrices_only(corpus):
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


def test_the_running_average_moves_by_its_fraction(corpus):
    learner = make_learner(corpus)
    average = learner.optimizer.flat.values.clone()
    for number, one in enumerate(step_batches(corpus, 3), 1):
        learner.step(one, rates(number, ema_fraction=0.3))
        average.lerp_(learner.optimizer.flat.values, 0.3)
    torch.testing.assert_close(
        learner.trained.bilm.layers[0].projection, learner.optimizer.flat.view(average, "bilm.layers.0.projection")
    )
    assert not torch.equal(learner.trained.output.weight, learner.model.output.weight)


def test_the_learning_rate_warms_up_and_falls_along_a_cosine():
    settings = config(learning_rate=1.0, warmup_steps=4)
    learning_rates = [rates_at(settings, step, 12).learning_rate for step in (1, 2, 4, 8, 12)]
    assert learning_rates == pytest.approx([0.25, 0.5, 1.0, 0.1 + 0.9 * 0.5, 0.1])
    constant = dataclasses.replace(settings, warmup_steps=0, final_rate=1.0)
    assert {rates_at(constant, step, 12).learning_rate for step in (1, 5, 12)} == {1.0}


def test_a_run_that_starts_at_a_later_step_has_the_rates_of_that_part_of_the_schedule():
    whole = config(learning_rate=1.0, warmup_steps=4, steps=40)
    rest = dataclasses.replace(whole, first_step=20)
    for step in range(24, 41):
        assert rates_at(rest, step, 40).learning_rate == rates_at(whole, step, 40).learning_rate
    assert rates_at(rest, 22, 40).learning_rate == pytest.approx(0.5 * rates_at(whole, 22, 40).learning_rate)
    assert [rates_at(rest, step, 40).step for step in (21, 40)] == [1, 20]  # AdamW's means start anew
    with pytest.raises(ValueError, match="first_step is 20: set steps to a larger number, not 20"):
        dataclasses.replace(rest, steps=20)
