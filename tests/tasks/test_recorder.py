"""Updates as CUDA graphs: the losses, gradients and random numbers of the eager updates."""

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from test_batches import EXAMPLES, TAGS, TEXTS

from elmokit.datasets import TaggedSentence
from elmokit.storage.snapshots import Snapshots
from elmokit.tasks import TASKS, TaskConfig, learning, recorder
from elmokit.tasks.learning import Epochs, Learning
from elmokit.tasks.trained import assemble, load_elmo


@pytest.fixture
def epochs_of(tiny_elmo, cache, tmp_path):
    """epochs_of(task, examples, **settings): what trains the task, with fresh weights."""

    def make(name: str, examples: list[Any], **settings: Any) -> Epochs:
        defaults = {"elmo_at": "both", "dropout": 0.3, "elmo_dropout": 0.3, "device": "cuda", "learning_rate": 0.01}
        config = TaskConfig(
            task=name, train="none", out=str(tmp_path), elmo=tiny_elmo, cache=cache, word_dim=6, char_dim=7,
            hidden_dim=8, num_layers=2, **{**defaults, **settings},
        )  # fmt: skip
        task, device = TASKS[name], torch.device(config.device)
        elmo = load_elmo(config, device)
        torch.manual_seed(2)
        trained = assemble(task, config, task.fit(examples), ["he", "rome", "is"], elmo, device)
        snapshots = Snapshots(tmp_path / "checkpoints")
        return Epochs(
            Learning(trained, Path(config.out), examples, examples, snapshots, lambda _: None, 0.0), [examples]
        )

    return make


def updates(epochs: Epochs, batches: list[list[Any]]) -> tuple[list[float], list[torch.Tensor]]:
    """The losses of updates, and the last gradients."""
    torch.manual_seed(5)
    epochs.module.train()
    with contextlib.nullcontext() if epochs.recorder is None else epochs.recorder.stream():
        losses = [float(epochs._step(batch)()) for batch in batches]
    torch.cuda.synchronize()
    return losses, [parameter.grad.clone() for parameter in epochs.module.parameters() if parameter.grad is not None]


def longer(name: str) -> list[Any]:
    """Examples of other sizes than those of EXAMPLES."""
    if name in ("ner", "pos"):
        return [TaggedSentence(tokens * 4, tags * 4) for tokens, tags in zip(TEXTS, TAGS, strict=True)]
    return EXAMPLES[name][:2]


@pytest.mark.gpu
@pytest.mark.parametrize("elmo_at", ["none", "both"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_recorded_updates_are_those_that_are_computed_eagerly(epochs_of, monkeypatch, name, elmo_at):
    examples, other = EXAMPLES[name], longer(name)
    batches = [examples, other, [*reversed(examples)], other, examples, other] * 3
    recorded = epochs_of(name, examples, elmo_at=elmo_at)
    losses, gradients = updates(recorded, batches)
    assert recorded.recorder is not None
    assert recorded.recorder.num_graphs == 2
    monkeypatch.setattr(recorder, "MAX_GRAPHS", 0)  # the same sizes, and so the same random numbers
    eager = epochs_of(name, examples, elmo_at=elmo_at)
    expected, expected_gradients = updates(eager, batches)
    assert eager.recorder is not None
    assert eager.recorder.num_graphs == 0
    assert losses == pytest.approx(expected, rel=1e-3, abs=1e-4)
    for one, other_one in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(one, other_one, rtol=1e-2, atol=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("name", EXAMPLES)
def test_without_dropout_recorded_updates_are_those_of_a_plain_loop(epochs_of, monkeypatch, name):
    examples = EXAMPLES[name]
    losses, _ = updates(epochs_of(name, examples, dropout=0.0, elmo_dropout=0.0), [examples] * 6)
    monkeypatch.setattr(learning.Epochs, "_make_recorder", lambda _: None)
    expected, _ = updates(epochs_of(name, examples, dropout=0.0, elmo_dropout=0.0), [examples] * 6)
    assert losses == pytest.approx(expected, rel=1e-3, abs=1e-4)


@pytest.mark.gpu
def test_an_epoch_has_the_same_random_numbers_after_graphs_were_recorded(epochs_of):
    """Weights that do not change, and the seed of an epoch: eager, recorded, replayed."""
    epochs = epochs_of("sentiment", EXAMPLES["sentiment"], learning_rate=1e-30)
    first, _ = updates(epochs, [EXAMPLES["sentiment"]] * 5)
    again, _ = updates(epochs, [EXAMPLES["sentiment"]] * 5)
    assert len(set(first)) == 5
    assert again == pytest.approx(first, rel=1e-5)


@pytest.mark.gpu
def test_an_update_that_cannot_be_recorded_is_computed_eagerly_after_one_warning(epochs_of, monkeypatch, caplog):
    examples = EXAMPLES["sentiment"]
    expected, _ = updates(epochs_of("sentiment", examples), [examples] * 6)
    epochs = epochs_of("sentiment", examples)
    loss_of = epochs.trained.network.loss_of

    def waits(batch: Any) -> torch.Tensor:
        loss: torch.Tensor = loss_of(batch)
        loss.item()
        return loss

    monkeypatch.setattr(epochs.trained.network, "loss_of", waits)
    with caplog.at_level(logging.WARNING, "elmokit"):
        losses, _ = updates(epochs, [examples] * 6)
    assert losses == pytest.approx(expected, rel=1e-3, abs=1e-4)
    assert len(caplog.records) == 1
    assert "cannot be recorded" in caplog.text


@pytest.mark.gpu
@pytest.mark.parametrize(("task", "settings"), [("ner", {"tune": True}), ("coreference", {})])
def test_a_trained_bilm_and_a_network_without_batches_are_not_recorded(epochs_of, task, settings):
    examples = EXAMPLES["ner"] if task == "ner" else []
    assert epochs_of(task, examples, **settings).recorder is None


def test_nothing_is_recorded_on_a_cpu(epochs_of):
    assert epochs_of("ner", EXAMPLES["ner"], device="cpu").recorder is None


# ---- the recorder without a GPU --------------------------------------------------------------------------------------


@pytest.fixture
def imitation(monkeypatch):
    """Graphs on the CPU: a recording keeps the function, and a replay calls it and writes its result."""

    class Graph:
        recording: ClassVar[list["Graph"]] = []
        replays = 0

        def __init__(self) -> None:
            self.compute: Callable[[], None] = lambda: None

        def capture_begin(self, **_: Any) -> None:
            Graph.recording.append(self)

        def capture_end(self) -> None:
            Graph.recording.pop()

        def replay(self) -> None:
            Graph.replays += 1
            self.compute()

    generator = SimpleNamespace(clone_state=lambda: "before", graphsafe_set_state=lambda state: states.append(state))
    states: list[str] = []
    stream = SimpleNamespace(device=torch.device("cuda", 0), wait_stream=lambda _: None)
    empty = torch.empty
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "Stream", lambda _: stream)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    monkeypatch.setattr(torch.cuda, "default_generators", [generator])
    monkeypatch.setattr(torch, "empty", lambda *sizes, pin_memory=False, **options: empty(*sizes, **options))
    return SimpleNamespace(Graph=Graph, states=states)


@dataclass(frozen=True)
class Numbers:
    a: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor


def numbers(size: int, seed: int) -> Numbers:
    generator = torch.Generator().manual_seed(seed)
    a, b = torch.randint(9, (size,), generator=generator), torch.randn(3, size, generator=generator).half().t()
    return Numbers(a, b, a > 4)


def total(batch: Numbers) -> torch.Tensor:
    return batch.a.sum() + batch.b.double().sum() + 100 * batch.c.sum()


def test_a_size_is_computed_twice_then_recorded_and_then_replayed(imitation):
    Graph, calls = imitation.Graph, []

    def compute(batch: Numbers) -> torch.Tensor:
        calls.append(len(batch.a))
        loss = total(batch)
        if Graph.recording:
            Graph.recording[-1].compute = lambda: loss.copy_(total(batch))
            return loss.fill_(-1)
        return loss

    tested = recorder.Recorder(torch.device("cpu"), compute)
    for seed, size in enumerate([5, 5, 700, 5, 700, 5, 700, 5, 700, 700, 5]):  # the second needs more memory
        batch = numbers(size, seed)
        assert tested.run(batch).item() == pytest.approx(total(batch).item())
    assert calls == [5, 5, 700, 5, 700, 700]
    assert (tested.num_graphs, Graph.replays) == (2, 7)


def test_no_more_than_a_number_of_sizes_is_recorded(imitation, monkeypatch):
    monkeypatch.setattr(recorder, "MAX_GRAPHS", 1)
    tested = recorder.Recorder(torch.device("cpu"), total)
    for size in (5, 6, 5, 6, 5, 6, 6):
        tested.run(numbers(size, 0))
    assert tested.num_graphs == 1


def test_a_recording_that_fails_leaves_the_eager_way_and_the_random_numbers(imitation, caplog):
    def compute(batch: Numbers) -> torch.Tensor:
        if imitation.Graph.recording:
            raise RuntimeError("operation not permitted when stream is capturing")
        return total(batch)

    tested = recorder.Recorder(torch.device("cpu"), compute)
    with caplog.at_level(logging.WARNING, "elmokit"):
        for seed in range(5):
            batch = numbers(4, seed)
            assert tested.run(batch).item() == pytest.approx(total(batch).item())
    assert caplog.text.count("cannot be recorded (operation not permitted") == 1
    assert (imitation.states, imitation.Graph.recording, tested.num_graphs) == (["before"], [], 0)
