"""The settings of a training, with their defaults, and the recipe files that hold them.

Input: the name of a task or a recipe, and `key=value` overrides. Output: a `TaskConfig`. An unknown key, a wrong type
or values that do not fit together are a ValueError that names the source and the key.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from elmokit.arguments import check_path, check_paths
from elmokit.settings import check_types, from_mapping, read_recipe, recipe_names

Files = str | tuple[str, ...]
ElmoAt = Literal["none", "input", "both"]


@dataclass(frozen=True)
class TaskConfig:
    """The settings of one training."""

    task: str
    """ner, chunking, pos, sentiment, …: see `elmokit.tasks.TASKS`."""
    train: Files
    """Training files: one, or several."""
    out: str
    """Folder of the run and of the trained task."""
    dev: Files | None = None
    """Files that choose the best epoch; null: the last tenth of `train`, which is then not trained on."""
    test: Files | None = None
    """Files that are scored once, with the best weights."""
    share: float = 1.0
    """Fraction of the training examples to train on, drawn by `seed`. They are repeated, so that an epoch has the same
    number of updates."""
    phrases: bool = False
    """Train also on the labelled phrases inside the training sentences (trees of sentiment)."""

    sense_index: str | None = None
    """WordNet's index.sense, for `wsd`: words that are not in `train` take their first sense in it; null: none."""

    elmo: str | None = None
    """The biLM: a folder, an official name, a Hugging Face id; null: the model that comes with elmokit."""
    elmo_at: ElmoAt = "input"
    """Where ELMo's vectors are added: nowhere, at the task's input, or also at its RNN's output with a second mix."""
    tune: bool = False
    """Train the biLM too. It is then saved with the task."""
    mix_l2: float = 0.001
    """Weight of the L2 regularization of the mixes' layer weights."""
    elmo_dropout: float = 0.5
    """Dropout of ELMo's mixes."""
    vectors: str = "trained"
    """A file or folder of static word vectors, which are not trained; "trained": word vectors are trained."""
    word_dim: int = 50
    """Width of trained word vectors; 0: none."""
    char_dim: int = 50
    """Number of filters of the convolution over a word's characters; 0: none."""

    hidden_dim: int = 200
    """Units of the task's RNN per direction."""
    num_layers: int = 1
    """Number of layers of the task's RNN."""
    dropout: float = 0.5
    """Dropout of the task's network."""

    optimizer: Literal["adam", "adamw"] = "adam"
    """The optimizer."""
    learning_rate: float = 1e-3
    """Learning rate of the task's network and of ELMo's mixes."""
    tune_learning_rate: float = 1e-4
    """Learning rate of the biLM, if it is trained."""
    weight_decay: float = 0.0
    """Weight decay of the optimizer."""
    rate_decay: float = 0.5
    """The learning rates are multiplied by this after every two epochs in a row without a better dev score."""
    clip_norm: float = 5.0
    """Largest norm of all gradients together."""
    batch_size: int = 32
    """Number of examples per update; they are of similar length."""
    epochs: int = 40
    """Largest number of epochs."""
    patience: int = 6
    """Number of epochs in a row without a better dev score after which training stops."""

    seed: int = 1
    """Seed of everything random."""
    device: str = "auto"
    """"cpu", "cuda", "cuda:1"; "auto": a GPU where there is one."""
    cache: str | None = None
    """Folder of the frozen biLM's vectors; null: elmokit's cache folder. Its files may be deleted."""

    def __post_init__(self) -> None:
        check_types(self)
        least = {"hidden_dim": 1, "num_layers": 1, "batch_size": 1, "epochs": 1, "patience": 1, "seed": 0,
                 "word_dim": 0, "char_dim": 0, "mix_l2": 0, "weight_decay": 0}  # fmt: skip
        for name, bound in least.items():
            if not getattr(self, name) >= bound:
                raise ValueError(f"{name} must be at least {bound}, not {getattr(self, name)}")
        for name in ("learning_rate", "tune_learning_rate", "clip_norm"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
        for name in ("learning_rate", "tune_learning_rate", "weight_decay", "mix_l2"):  # clip_norm may be inf
            if not math.isfinite(getattr(self, name)):
                raise ValueError(f"{name} must be finite, not {getattr(self, name)}")
        for name in ("share", "rate_decay"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} must be above 0 and at most 1, not {getattr(self, name)}")
        for name in ("dropout", "elmo_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be 0 or more and less than 1, not {getattr(self, name)}")
        for name in ("train", "dev", "test", "out", "vectors", "sense_index"):
            if getattr(self, name) in ("", ()):
                raise ValueError(f"{name} is empty: pass a file or a folder")
        for name in ("train", "dev", "test", "out", "vectors", "sense_index", "elmo", "cache"):
            if getattr(self, name) is not None:
                check_paths(name, getattr(self, name))
        if self.tune and self.elmo_at == "none":
            raise ValueError('tune trains the biLM, but elmo_at is "none": set elmo_at to "input" or "both"')
        if self.elmo_at == "none" and not self.char_dim and self.vectors == "trained" and not self.word_dim:
            raise ValueError("a token has no vector: give elmo_at, vectors, word_dim or char_dim")


def load_recipe(recipe: str, defaults: Mapping[str, Mapping[str, Any]], overrides: Mapping[str, Any]) -> TaskConfig:
    """Load the settings of a training.

    Args:
        recipe: The name of a task, the name of a recipe of the package, or a TOML file that names its task.
        defaults: For each task its defaults. They come before those of `TaskConfig`.
        overrides: Settings that replace those of the recipe.

    Raises:
        ValueError: If there is no such recipe, or a setting is wrong. The message names it.
    """
    recipe = os.fspath(check_path("recipe", recipe))
    values: dict[str, Any] = {"task": recipe}
    if recipe not in defaults:
        if not recipe.endswith(".toml") and recipe not in recipe_names("tasks"):
            raise ValueError(
                f"{recipe!r} is not a task or a recipe; tasks: {', '.join(sorted(defaults))}; "
                f"recipes: {', '.join(recipe_names('tasks'))}; or pass a .toml file"
            )
        values = read_recipe(recipe, "tasks")
        if values.get("task") not in defaults:
            known = ", ".join(sorted(defaults))
            raise ValueError(f"{recipe}: task must be one of {known}, not {values.get('task')!r}")
    source = " with ".join([recipe, *(f"{key}={value}" for key, value in overrides.items())])
    values = {**defaults[values["task"]], **values, **overrides}
    fields = {field.name for field in dataclasses.fields(TaskConfig)}  # an unknown key may be "train", misspelt
    for name, options in (("train", "--data FOLDER or --train FILE"), ("out", "--out FOLDER")):
        if name not in values and values.keys() <= fields:
            raise ValueError(f"{source}: {name} is not set: set it in the recipe or with {options}")
    return from_mapping(TaskConfig, values, source=source)


def find_files(folder: str, suffixes: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Find the files of a data folder.

    Args:
        folder: The folder.
        suffixes: Suffixes of the files, without `.gz`.

    Returns:
        The files with train, dev (or valid) and test in their names, by "train", "dev" and "test".

    Raises:
        ValueError: If there is no such folder, or no training file in it.
    """
    if not Path(check_path("folder", folder)).is_dir():
        raise ValueError(f"{folder}: no such folder")
    files: dict[str, tuple[str, ...]] = {}
    for part, pattern in {"train": "train", "dev": "dev|valid", "test": "test"}.items():
        names = [
            str(path)
            for path in sorted(Path(folder).iterdir())
            if path.name.removesuffix(".gz").endswith(suffixes) and re.search(rf"(?<![a-z])({pattern})", path.name)
        ]
        if names:
            files[part] = tuple(names)
    if "train" not in files:
        raise ValueError(f"{folder}: no file with `train` in its name and one of the suffixes {', '.join(suffixes)}")
    return files
