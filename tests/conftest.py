"""What the tests share: where the published activations and the corpora lie, and tiny official models to load."""

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

import reference
from elmokit import BiLM, BiLMConfig, ELMo
from elmokit.storage.official import read_official

if importlib.util.find_spec("triton") and not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is first imported: its kernels then run on the CPU

# The tensors of the tests are tiny: a second thread costs more than it brings, and test runs share their machine.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the processes that tests start

settings.register_profile(
    "elmokit", deadline=None, derandomize=True, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("elmokit")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("no CUDA device here")


REPOSITORY = Path(__file__).resolve().parent.parent


def folder_or_skip(variable: str, default: Path) -> Path:
    folder = Path(os.environ.get(variable, default))
    if not folder.is_dir():
        pytest.skip(f"no folder {folder}: set {variable}")
    return folder


@pytest.fixture(scope="session")
def golden() -> Path:
    """The tiny official model `allennlp-skip`, with activations that the original TensorFlow code computed."""
    folder = folder_or_skip("ELMOKIT_GOLDEN", REPOSITORY.parent / "shared" / "golden")
    return folder if (folder / "options.json").is_file() else folder / "allennlp-skip"


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of corpora and tasks."""
    return folder_or_skip("ELMOKIT_DATA", REPOSITORY.parent / "shared" / "data")


class OfficialModel(NamedTuple):
    """A random tiny model: in memory for the reference, on disk for the package."""

    options: reference.Options
    arrays: reference.Arrays
    vocabulary: list[str] | None  # of a word-level model
    options_path: Path
    weights_path: Path

    def expected(self, sentence: list[str], state: reference.State | None = None) -> reference.Run:
        """What the reference makes of one sentence."""
        return reference.bilm(self.options, self.arrays, sentence, state=state, vocabulary=self.vocabulary)

    def ids(self, sentences: list[list[str]]) -> torch.Tensor:
        """The sentences as one padded batch, spelled by the reference."""
        return torch.from_numpy(reference.shifted_ids(self.options, sentences, self.vocabulary))

    def bilm(self) -> BiLM:
        """The package's network with these weights, read from the files."""
        config, weights = read_official(self.options_path, self.weights_path)
        bilm = BiLM(config)
        bilm.load_state_dict(weights)
        return bilm.eval().requires_grad_(False)


@pytest.fixture(scope="session")
def official_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., OfficialModel]:
    """official_model(seed=0, **variant) writes a model of that variant (see reference.random_model)."""

    def make(seed: int = 0, **variant: Any) -> OfficialModel:
        options, arrays = reference.random_model(np.random.default_rng(seed), **variant)
        vocabulary = reference.random_vocabulary(len(arrays["embedding"])) if "embedding" in arrays else None
        paths = reference.write_official(tmp_path_factory.mktemp("official"), options, arrays)
        return OfficialModel(options, arrays, vocabulary, *paths)

    return make


@pytest.fixture(scope="session")
def tiny_elmo(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a random biLM, for tasks."""
    folder = tmp_path_factory.mktemp("elmo")
    torch.manual_seed(7)
    sizes = BiLMConfig(char_dim=4, filters=((1, 8), (2, 8)), num_highways=1, cell_dim=16, projection_dim=8)
    ELMo(BiLM(sizes)).save_pretrained(folder)
    return str(folder)
