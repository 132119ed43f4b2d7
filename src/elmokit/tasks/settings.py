"""How a task is trained: every choice of a run, flat, with its default, and the recipe file that holds them.

Enters: the name of a task or a TOML file, and `key=value` overrides.  Leaves: a `TaskConfig`; an unknown key, a wrong
type or values that do not fit together are a ValueError that names the source and the key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from elmokit.settings import check_types, from_mapping, read_recipe, recipe_names

Files = str | tuple[str, ...]
ElmoAt = Literal["none", "input", "both"]


@dataclass(frozen=True)
class TaskConfig:
    """One training of one task."""

    task: str
    """ner, chunking, pos, sentiment, …: see `elmokit.tasks.TASKS`."""
    train: Files
    """One file, or several that are read one after the other."""
    out: str
    """The folder of the run, and then of the trained task."""
    dev: Files | None = None
    """Chooses the best epoch; null: the last tenth of `train`, which is then left out of it."""
    test: Files | None = None
    """Scored once, with the best weights."""
    share: float = 1.0
    """Train on this part of the training examples, drawn by `seed`; they are repeated to the epoch of all of them."""
    phrases: bool = False
    """Train on the labelled phrases inside the training sentences too, which sentiment's trees have."""

    elmo: str | None = None
    """The biLM: a folder, an official name, a Hugging Face id; null: the model that comes with elmokit."""
    elmo_at: ElmoAt = "input"
    """Where ELMo's vectors join: nowhere, at the task's input, or also at its RNN's output with a second mix."""
    tune: bool = False
    """Train the biLM too; it is then saved with the task."""
    mix_l2: float = 0.001
    """The lambda of the mixes' weights."""
    elmo_dropout: float = 0.5
    vectors: str = "trained"
    """A file or folder of static word vectors, which stay as they are; "trained": learned with the task."""
    word_dim: int = 50
    """Width of trained vectors; 0: none."""
    char_dim: int = 50
    """Filters of the convolution over a word's characters; 0: none."""

    hidden_dim: int = 200
    """Units of an RNN, each direction."""
    num_layers: int = 1
    """Layers of the task's RNN."""
    dropout: float = 0.5

    optimizer: Literal["adam", "adamw"] = "adam"
    learning_rate: float = 1e-3
    tune_learning_rate: float = 1e-4
    """That of the biLM, where it is trained."""
    weight_decay: float = 0.0
    rate_decay: float = 0.5
    """The learning rates are multiplied by this after every two epochs in a row without a better dev score."""
    clip_norm: float = 5.0
    """Largest norm of all gradients together."""
    batch_size: int = 32
    """Examples of an update, alike in length."""
    epochs: int = 40
    patience: int = 6
    """Stop after so many epochs in a row without a better dev score."""

    seed: int = 1
    device: str = "auto"
    """"cpu", "cuda", "cuda:1"; "auto": a GPU where there is one."""
    cache: str | None = None
    """Folder of the frozen biLM's vectors; null: elmokit's cache folder.  What lies there may be deleted."""

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
        for name in ("share", "rate_decay"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} must be above 0 and at most 1, not {getattr(self, name)}")
        for name in ("dropout", "elmo_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be 0 or more and less than 1, not {getattr(self, name)}")
        for name in ("train", "dev", "test", "out", "vectors"):
            if getattr(self, name) in ("", ()):
                raise ValueError(f"{name} is empty: name a file or a folder")
        if self.tune and self.elmo_at == "none":
            raise ValueError('tune trains the biLM, but elmo_at is "none": set elmo_at to "input" or "both"')
        if self.elmo_at == "none" and not self.char_dim and self.vectors == "trained" and not self.word_dim:
            raise ValueError("a token has no vector: give elmo_at, vectors, word_dim or char_dim")


def load_recipe(recipe: str, defaults: Mapping[str, Mapping[str, Any]], overrides: Mapping[str, Any]) -> TaskConfig:
    """The config of a task's name (a key of `defaults`) or of a TOML file that names its task, changed by `overrides`.

    What neither says is as `defaults` has it for that task, and else as `TaskConfig` has it.
    """
    values: dict[str, Any] = {"task": recipe}
    if recipe not in defaults:
        if not recipe.endswith(".toml") and recipe not in recipe_names("tasks"):
            raise ValueError(
                f"{recipe!r} is no task and no recipe; tasks: {', '.join(sorted(defaults))}; "
                f"recipes: {', '.join(recipe_names('tasks'))}; or name a .toml file"
            )
        values = read_recipe(recipe, "tasks")
        if values.get("task") not in defaults:
            known = ", ".join(sorted(defaults))
            raise ValueError(f"{recipe}: task must be one of {known}, not {values.get('task')!r}")
    source = " with ".join([recipe, *(f"{key}={value}" for key, value in overrides.items())])
    values = {**defaults[values["task"]], **values, **overrides}
    return from_mapping(TaskConfig, values, source=source)


def find_files(folder: str, suffixes: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """The files of a data folder whose names say train, dev (or valid) and test, plain or gzipped."""
    if not Path(folder).is_dir():
        raise ValueError(f"{folder}: there is no such folder")
    found: dict[str, tuple[str, ...]] = {}
    for part, pattern in {"train": "train", "dev": "dev|valid", "test": "test"}.items():
        names = [
            str(path)
            for path in sorted(Path(folder).iterdir())
            if path.name.removesuffix(".gz").endswith(suffixes) and re.search(rf"(?<![a-z])({pattern})", path.name)
        ]
        if names:
            found[part] = tuple(names)
    if "train" not in found:
        raise ValueError(f"{folder}: no file with `train` in its name and one of {', '.join(suffixes)} at its end")
    return found
