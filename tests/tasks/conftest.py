"""What the tests of the tasks share: a small training, a cache of vectors, static vectors."""

from pathlib import Path

import pytest
from task_examples import SUFFIX, small_config, write_examples

from elmokit.tasks import TASKS, TaskConfig


@pytest.fixture(scope="session")
def cache(tmp_path_factory) -> str:
    return str(tmp_path_factory.mktemp("vectors"))


@pytest.fixture
def small(tmp_path, tiny_elmo, cache):
    """small(task, **changes): the config of a small training on ten examples."""

    def make(task: str = "ner", **changes: object) -> TaskConfig:
        for module in TASKS[task].requirements:
            pytest.importorskip(module, reason=f"the task {task} needs {module}")
        file = tmp_path / f"train{SUFFIX[task]}"
        if not file.exists():
            write_examples(task, file)
        settings = {"cache": cache, "learning_rate": 0.02, "epochs": 3}
        return small_config(task, file, tmp_path, tiny_elmo, **{**settings, **changes})

    return make


@pytest.fixture
def glove(tmp_path) -> Path:
    """Static vectors as text."""
    path = tmp_path / "glove.txt"
    path.write_text("rome 1 2 3\nOslo 4 5 6\noslo 7 8 9\nada -1 -2 -3\n", encoding="utf-8")
    return path
