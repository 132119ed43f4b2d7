"""Nothing moved: what version 0.1 computed is computed still, and what it wrote is read still.

Enters: data/, which make.py wrote with version 0.1: models, a corpus, a killed training, an index, tasks, and the
values that 0.1 gave for them.  Leaves: nothing; each test asks one of `make.ANSWERS` again and compares.

Another CPU adds up in another order, so numbers may differ in their last digits: see TOLERANCES.  Where
ELMOKIT_EXACT=1 is set, on a machine of the kind that made the files, every bit must be the same.
"""

import json
import math
import os
import shutil
from pathlib import Path

import make
import numpy as np
import pytest
import torch

EXACT = os.environ.get("ELMOKIT_EXACT") == "1"
TOLERANCE = 1e-6  # of a number, or of the largest of an array where that is above 1
TOLERANCES = {
    "english": 3e-6,  # its sums are longer than those of the tiny models
    "english_language": 2e-5,  # exp over a vocabulary of its size is added up in float32
    "mixes": 5e-6,  # gradients are long sums
    "rounded": 3e-2,  # the rows of an int8 product are rounded: a last digit can become a step of 1/127
    "index": 5e-4,  # vectors are stored as float16
    "tasks": 5e-5,  # and here, those of a frozen biLM
    "task_training": 5e-5,
    "other_tasks": 5e-4,
}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A copy of data/: nothing in the repository is written to."""
    folder = tmp_path_factory.mktemp("unchanged") / "data"
    shutil.copytree(make.DATA, folder)
    return folder


@pytest.fixture
def check(home, tmp_path, monkeypatch):
    """check(name): the values of that answer are those of version 0.1."""
    monkeypatch.chdir(home)
    monkeypatch.setenv("ELMOKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ELMOKIT_OFFLINE", "1")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)

    def compare(name, expected=None):
        scratch = tmp_path / "scratch"
        scratch.mkdir()
        found = make.ANSWERS[name](scratch)
        same(found, stored(home, expected or name), TOLERANCES.get(name, TOLERANCE), name)

    yield compare
    torch.set_num_threads(threads)


def stored(home: Path, name: str) -> dict:
    values = {}
    if (path := home / "expected" / f"{name}.json").exists():
        values |= json.loads(path.read_text(encoding="utf-8"))
    if (path := home / "expected" / f"{name}.npz").exists():
        with np.load(path) as file:
            values |= {key: file[key] for key in file.files}
    return values


def same(found, expected, tolerance, where):
    """Numbers are close, or equal to the bit; all else is equal."""
    if isinstance(expected, np.ndarray):
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype), where
        if EXACT or expected.dtype.kind != "f":
            np.testing.assert_array_equal(found, expected, err_msg=where)
        else:
            scale = max(1.0, np.abs(expected).max(initial=0.0))
            np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * scale, err_msg=where)
    elif isinstance(expected, dict):
        assert sorted(found) == sorted(expected), where
        for key, value in expected.items():
            same(found[key], value, tolerance, f"{where}: {key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), where
        for number, (one, other) in enumerate(zip(found, expected, strict=True)):
            same(one, other, tolerance, f"{where}: {number}")
    elif isinstance(expected, float) and not EXACT:
        assert math.isclose(found, expected, rel_tol=tolerance, abs_tol=tolerance), (where, found, expected)
    else:
        assert found == expected, where


# ---- vectors ---------------------------------------------------------------------------------------------------------


def test_words_have_the_ids_that_version_0_1_gave(check):
    check("ids")


def test_models_that_version_0_1_saved_give_its_vectors(check):
    check("vectors")


def test_the_embedded_model_gives_the_vectors_of_version_0_1(check):
    check("english")


def test_the_embedded_model_gives_the_probabilities_of_version_0_1(check):
    check("english_language")


def test_official_files_give_the_vectors_of_version_0_1(check):
    check("official_files")


def test_int8_products_give_the_vectors_of_version_0_1(check):
    try:
        check("rounded")
    except ValueError as error:  # elmokit tried the products in another process first
        if "cannot run here" not in str(error):
            raise
        pytest.skip(str(error))
    except AssertionError:
        ones = torch.full((32, 64), 127, dtype=torch.int8)
        if EXACT or bool((torch._int_mm(ones, ones.t().contiguous()) == 127 * 127 * 64).all()):
            raise
        pytest.skip(
            "torch's int8 products overflow on this CPU, which has no VNNI: version 0.1 gave other vectors there"
        )


def test_carried_state_goes_on_as_in_version_0_1(check):
    check("carried")


def test_mixes_and_the_gradients_of_all_parameters_are_those_of_version_0_1(check):
    check("mixes")


def test_vectors_of_phrases_are_those_of_version_0_1(check):
    check("spans")


def test_the_command_line_writes_the_vectors_of_version_0_1(check):
    check("vector_files")


def test_language_models_give_the_probabilities_of_version_0_1(check):
    check("language")


# ---- training --------------------------------------------------------------------------------------------------------


def without_tokenizers(files: dict[str, bytes]) -> dict:
    """The same files; what corpus.json says, without the name of the tokenizer, which 0.1 did not record."""
    about = {name: json.loads(content) for name, content in files.items() if name.endswith("corpus.json")}
    for values in about.values():
        values.pop("tokenizer", None)
        del values["sha256"]  # of all values
    return {**files, **about}


def test_text_is_prepared_to_the_bytes_that_version_0_1_wrote(home, tmp_path, monkeypatch):
    monkeypatch.chdir(home)
    make.prepare(tmp_path)
    assert without_tokenizers(files_in(tmp_path)) == without_tokenizers(files_in(home / "corpus"))


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_training_takes_the_steps_of_version_0_1(check):
    check("training")


def test_training_a_model_on_takes_the_steps_of_version_0_1(check):
    check("finetuning")


def test_a_run_that_version_0_1_left_unfinished_goes_on_as_version_0_1_would_have(check):
    check("resumed", expected="whole_run")


def test_a_run_that_was_never_killed_takes_the_same_steps(check):
    check("whole_run")


# ---- what is built on vectors ----------------------------------------------------------------------------------------


def test_an_index_that_version_0_1_built_finds_the_same_neighbours(check):
    check("index")


def test_tasks_that_version_0_1_trained_predict_the_same(check):
    check("tasks")


def test_tasks_are_trained_to_the_scores_of_version_0_1(check):
    check("task_training")


def test_the_other_tasks_learn_and_predict_what_they_did_in_version_0_1(check):
    check("other_tasks")
