"""Tiny models, text and settings that the tests of pretraining share."""

import dataclasses
import json
import random
from collections.abc import Callable
from pathlib import Path

import torch

from elmokit.config import BiLMConfig
from elmokit.corpus import Corpus, Streams
from elmokit.pretraining import PretrainConfig, PretrainResult
from elmokit.pretraining.batches import BatchMaker, StepBatches
from elmokit.pretraining.optimizers import Rates
from elmokit.pretraining.processes import Processes
from elmokit.pretraining.step import LanguageModel, Learner
from elmokit.storage.snapshots import Snapshots

RECIPES = Path(__file__).resolve().parents[2] / "src" / "elmokit" / "recipes"


SOURCE = Path(__file__).resolve().parents[2] / "src"


MODEL = BiLMConfig(char_dim=3, filters=((1, 4), (2, 5), (3, 4)), num_highways=1, cell_dim=8, projection_dim=6)


SETTINGS = {
    "batch_size": 4, "unroll": 5, "steps": 12, "eval_every": 4, "checkpoint_every": 3, "log_every": 2,
    "loss": "full", "optimizer": "adamw", "learning_rate": 0.01, "warmup_steps": 2, "final_rate": 0.1, "clip_norm": 1.0,
    "ema_decay": 0.9, "dropout": 0.1, "eval_batch_size": 2, "tensorboard": False, "device": "cpu", "tokenized": True,
}  # fmt: skip


BLOCKS = BiLMConfig(
    char_dim=3, filters=((1, 4), (2, 5), (3, 4)), num_highways=1, architecture="transformer", projection_dim=8,
    num_heads=2, feedforward_dim=10, num_layers=3, attention_window=4,
)  # fmt: skip


MUON = {**SETTINGS, "optimizer": "muon", "state_reset": 0.2}


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


def config(**settings) -> PretrainConfig:
    return PretrainConfig(train="-", out="-", **{**SETTINGS, **settings})


def make_learner(corpus: Corpus, *, dtype=torch.float32, model=MODEL, **settings) -> Learner:
    torch.manual_seed(0)
    num_words = int(corpus.form_targets.max()) + 1
    made = config(**settings)
    return Learner(LanguageModel(model, num_words).to(dtype), made, Processes(device=torch.device(made.device)))


def step_batches(
    corpus: Corpus, number: int, *, batch_size=4, unroll=5, accumulation=1, model=MODEL, static_shapes=False
):
    streams = Streams(corpus, batch_size=batch_size, unroll=unroll, seed=1)
    maker = BatchMaker(corpus, model, static_shapes=static_shapes)
    return [
        StepBatches([maker.make(streams.next()) for _ in range(accumulation)], streams.state) for _ in range(number)
    ]


def rates(step: int, **changed) -> Rates:
    return dataclasses.replace(Rates(step, 0.05, 0.05, 0.1), **changed)


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def assert_stopped_run_resumes(
    folder: Path, run: Callable[..., PretrainResult], stop: Callable[[Path], None]
) -> PretrainResult:
    """A run of 40 steps with a checkpoint every 10, which `stop` stops after step 20, resumes bit by bit.

    Args:
        folder: The complete run is written to `complete`, the other to `stopped`.
        run: `pretrain` with everything but `out`.
        stop: Starts a run in its argument and stops it.

    Returns:
        The result of the complete run.
    """
    complete = run(out=folder / "complete")
    stop(folder / "stopped")
    assert Snapshots(folder / "stopped" / "checkpoints").newest() == 20
    run(out=folder / "stopped")
    for name in ("model.safetensors", "softmax.safetensors", "metrics.jsonl"):
        assert (folder / "stopped" / name).read_bytes() == (folder / "complete" / name).read_bytes(), name
    one, other = (Snapshots(folder / name / "checkpoints").load(40).tensors for name in ("complete", "stopped"))
    assert one.keys() == other.keys()
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())
    return complete
