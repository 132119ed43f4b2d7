"""An optional module that is missing is named, with the command that installs it, before any work is done."""

import dataclasses
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from elmokit.cli.tasks import task as task_group
from elmokit.tasks import TASKS, load_task, train
from elmokit.tasks.compare import compare, compare_shares, summarize

MODULES = {"ner": "seqeval", "chunking": "seqeval", "pos": "conllu", "coreference": "scipy"}


@pytest.fixture
def hide(monkeypatch):
    """hide(module): importing it fails, as where it is not installed."""

    def make_missing(module: str) -> None:
        for name in [module, *(name for name in sys.modules if name.startswith(f"{module}."))]:
            monkeypatch.setitem(sys.modules, name, None)

    return make_missing


def message(module: str, extra: str = "tasks") -> str:
    return rf"{module} is not installed: pip install .elmokit\[{extra}\]"


def test_a_task_names_the_modules_that_it_needs():
    needed = {name: task.requirements[0].partition(".")[0] for name, task in TASKS.items() if task.requirements}
    assert needed == MODULES


@pytest.mark.parametrize(("name", "module"), MODULES.items())
def test_training_stops_before_anything_is_read_or_written(hide, small, tmp_path, name, module):
    config = dataclasses.replace(small(), task=name, train="nowhere", elmo="nowhere")
    hide(module)
    with pytest.raises(ImportError, match=message(module)):
        train(config, on_progress=lambda _: pytest.fail("it trained"))
    with pytest.raises(ImportError, match=message(module)):
        compare(config)
    with pytest.raises(ImportError, match=message(module)):
        compare_shares(config, [0.5, 1])
    assert not (tmp_path / "run").exists()


def test_evaluation_stops_before_a_file_is_read_and_prediction_goes_without(hide, small):
    config = small(elmo_at="none", epochs=1)
    train(config)
    hide("seqeval")
    trained = load_task(config.out)
    with pytest.raises(ImportError, match=message("seqeval")):
        trained.evaluate("nowhere")
    assert trained.predict(["Rome ."])[0]["tokens"] == ["Rome", "."]


@pytest.mark.parametrize("verb", ["train", "compare"])
def test_the_command_line_stops_before_anything_is_read(hide, tmp_path, verb):
    hide("seqeval")
    arguments = [verb, "ner", "--train", "nowhere", "--out", str(tmp_path / "run"), "--device", "cpu"]
    result = CliRunner().invoke(task_group, arguments)
    with pytest.raises(ImportError, match=message("seqeval")):
        raise result.exception
    assert not (tmp_path / "run").exists()


def test_a_comparison_needs_matplotlib_before_it_trains(hide, small, tmp_path):
    hide("matplotlib")
    config = small(epochs=1, elmo_at="none")
    with pytest.raises(ImportError, match=message("matplotlib", "plot")):
        compare(config, on_progress=lambda *_: pytest.fail("it trained"))
    with pytest.raises(ImportError, match=message("matplotlib", "plot")):
        summarize(["nowhere"], tmp_path / "out")
    assert not Path(config.out).exists()


def test_words_in_a_parquet_file_need_pyarrow(hide, small, tmp_path):
    np.save(tmp_path / "v.npy", np.zeros((1, 2), dtype=np.float32))
    (tmp_path / "v.parquet").touch()
    hide("pyarrow")
    with pytest.raises(ImportError, match=message("pyarrow", "parquet")):
        train(small(elmo_at="none", vectors=str(tmp_path / "v.npy")))
