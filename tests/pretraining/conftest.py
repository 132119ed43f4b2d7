"""Text, a prepared corpus and a finished run that the tests of pretraining share."""

import pytest
from tiny_runs import MODEL, SETTINGS, make_text

from elmokit.corpus import Corpus, build_vocabulary, prepare
from elmokit.pretraining import (
    Progress,
    pretrain,
)


@pytest.fixture(scope="session")
def text(tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("text")
    return {
        "train": str(make_text(folder / "train.txt", seed=1, num_sentences=150)),
        "heldout": str(make_text(folder / "heldout.txt", seed=2, num_sentences=20)),
    }


@pytest.fixture(scope="session")
def corpus(text, tmp_path_factory) -> Corpus:
    vocabulary = build_vocabulary(text["train"], size=20, tokenized=True)
    return prepare(text["train"], tmp_path_factory.mktemp("corpus"), vocabulary=vocabulary, tokenized=True)


@pytest.fixture(scope="session")
def finished(text, tmp_path_factory):
    """A run of 60 steps that learns, its reports, and its result."""
    reports: list[Progress] = []
    settings = {**SETTINGS, "steps": 60, "eval_every": 20, "checkpoint_every": 20, "log_every": 10, "batch_size": 16}
    settings |= {"dropout": 0.0, "learning_rate": 0.02, "tensorboard": False}
    out = tmp_path_factory.mktemp("runs") / "mine"
    result = pretrain(**text, model=MODEL, out=out, on_progress=reports.append, **settings)
    return result, reports, settings
