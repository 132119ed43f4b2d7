"""Settings and recipes: wrong ones are named, and every recipe trains."""

import dataclasses
import math
import tomllib
from pathlib import Path

import pytest
import torch
from task_examples import SENTENCES

from elmokit.tasks import TASKS, train
from elmokit.tasks.settings import find_files, load_recipe

RECIPES = Path(__file__).resolve().parents[2] / "src" / "elmokit" / "recipes" / "tasks"


OURS = ["ner", "chunking", "pos", "sentiment"]


DEFAULTS = {name: task.defaults for name, task in TASKS.items()}


def test_no_recipe_has_the_name_of_a_task_which_would_hide_it():
    assert {path.stem for path in RECIPES.glob("*.toml")}.isdisjoint(TASKS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "cooking"}, "task must be one of .*ner.*, not 'cooking'"),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"learning_rate": 0.0}, "learning_rate must be above 0"),
        ({"learning_rate": math.inf}, "learning_rate must be finite, not inf"),
        ({"weight_decay": math.inf}, "weight_decay must be finite, not inf"),
        ({"out": "x\udfffy"}, r"out is 'x\\udfffy': a path has no"),
        ({"share": 1.5}, "share must be above 0 and at most 1"),
        ({"dropout": 1.0}, "dropout must be 0 or more and less than 1"),
        ({"train": ()}, "train is empty"),
        ({"elmo_at": "none", "tune": True}, 'elmo_at is "none"'),
        ({"elmo_at": "none", "word_dim": 0, "char_dim": 0}, "a token has no vector"),
        ({"elmo_at": "top"}, "elmo_at must be 'none' or 'input' or 'both'"),
        ({"device": "abacus"}, "device 'abacus'"),
        ({"train": "nowhere.conll"}, "nowhere.conll"),
    ],
)
def test_bad_settings_are_named(small, changes, message):
    with pytest.raises(ValueError, match=message):
        train(dataclasses.replace(small(), **changes))
    assert not Path(small().out).exists()  # so that the right settings can still be given for this folder


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_named(small):
    with pytest.raises(ValueError, match="device 'cuda' cannot be used"):
        train(small(device="cuda"))


def test_files_of_a_folder_are_found_by_their_names(tmp_path):
    names = ["en-train.conllu.gz", "en-dev.conllu", "valid.conllu", "test.conllu", "train.md", "latest.conllu"]
    for name in names:
        (tmp_path / name).touch()
    found = find_files(str(tmp_path), (".conllu",))
    assert {part: [Path(file).name for file in files] for part, files in found.items()} == {
        "train": ["en-train.conllu.gz"],
        "dev": ["en-dev.conllu", "valid.conllu"],
        "test": ["test.conllu"],
    }
    with pytest.raises(ValueError, match="no file with `train`"):
        find_files(str(tmp_path), (".csv",))
    with pytest.raises(ValueError, match="no such folder"):
        find_files(str(tmp_path / "nowhere"), (".csv",))


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.toml")), ids=lambda path: path.stem)
def test_every_recipe_is_a_config(path):
    config = load_recipe(str(path), DEFAULTS, {})
    assert config.test is not None
    assert set(tomllib.loads(path.read_text())) >= {"task", "train", "test", "out"}


@pytest.mark.parametrize(
    "path",
    [path for path in sorted(RECIPES.glob("*.toml")) if tomllib.loads(path.read_text())["task"] in OURS],
    ids=lambda path: path.stem,
)
def test_every_recipe_trains(path, small, tmp_path):
    """With the recipe's own settings, sizes and all, on the ten examples."""
    recipe = tomllib.loads(path.read_text())
    like, examples = small(recipe["task"]), tmp_path / "trees.txt"
    if recipe.get("phrases"):
        trees = (
            f"({number % 3} {' '.join(f'({len(word) % 5} {word})' for word in sentence.split())})\n"
            for number, sentence in enumerate(SENTENCES)
        )
        examples.write_text("".join(trees), encoding="utf-8")
    else:
        examples = like.train
    files = {"train": str(examples), "dev": None, "test": str(examples), "out": like.out}
    changes = {"elmo": like.elmo, "cache": like.cache, "epochs": 1, "device": "cpu"}
    result = train(load_recipe(str(path), DEFAULTS, {**files, **changes}))
    assert 0 <= result.score <= 1


def test_a_recipe_that_does_not_fit_is_named(tmp_path):
    with pytest.raises(ValueError, match="'cooking' is not a task"):
        load_recipe("cooking", DEFAULTS, {})
    with pytest.raises(ValueError, match="no such recipe"):
        load_recipe(str(tmp_path / "x.toml"), DEFAULTS, {})
    path = tmp_path / "bad.toml"
    path.write_text("task = ")
    with pytest.raises(ValueError, match=r"bad\.toml: not a TOML file"):
        load_recipe(str(path), DEFAULTS, {})
    path.write_text('task = "cooking"')
    with pytest.raises(ValueError, match=r"bad\.toml: task must be one of"):
        load_recipe(str(path), DEFAULTS, {})
    path.write_text('task = "ner"\nspoons = 3')
    with pytest.raises(ValueError, match=r"bad\.toml with out=x: unknown key 'spoons'"):
        load_recipe(str(path), DEFAULTS, {"out": "x"})
    with pytest.raises(ValueError, match=r"ner with out=x: train is not set: set it .* with --data FOLDER or --train"):
        load_recipe("ner", DEFAULTS, {"out": "x"})
    with pytest.raises(ValueError, match="ner with train=x: out is not set: set it in the recipe or with --out FOLDER"):
        load_recipe("ner", DEFAULTS, {"train": "x"})
    assert load_recipe("sentiment", DEFAULTS, {"train": "a", "out": "b"}).hidden_dim == 100
