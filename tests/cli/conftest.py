"""Models and text that the tests of the verbs share."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from verbs import LINES, WORDS, run


@pytest.fixture(scope="session")
def official(official_model: Callable[..., Any]) -> Any:
    return official_model(seed=3)


@pytest.fixture(scope="session")
def folder(official: Any) -> Path:
    """A model in the official format."""
    return official.options_path.parent


@pytest.fixture(scope="session")
def language_model(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model with a softmax, in our format."""
    here = tmp_path_factory.mktemp("language")
    rng = np.random.default_rng(4)
    with h5py.File(here / "softmax.hdf5", "w") as file:
        file["softmax/W"] = rng.standard_normal((len(WORDS), 5)).astype(np.float32)
        file["softmax/b"] = rng.standard_normal(len(WORDS)).astype(np.float32)
    (here / "words.txt").write_text("".join(f"{word}\n" for word in WORDS))
    run("convert", folder, here / "model", "--softmax", here / "softmax.hdf5", "--vocabulary", here / "words.txt")
    return here / "model"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "in.txt"
    path.write_text("".join(f"{line}\n" for line in LINES))
    return path


@pytest.fixture(scope="session")
def characters_model(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of `folder`, whose tokenizer makes each character a token."""
    target = tmp_path_factory.mktemp("characters") / "model"
    run("convert", folder, target)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, "tokenizer": "characters"}))
    return target
