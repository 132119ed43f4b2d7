"""Settings of a training run, and the recipe files that hold them.

Input: a TOML file (settings at the top, the sizes of the biLM in a table `[model]`), the recipe.json of a run, or
arguments of `pretrain`; and `key=value` overrides.  Output: a `PretrainConfig` and a `BiLMConfig`.  An unknown key, a
wrong type or a value out of range is a ValueError that names the file and the key.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from elmokit.arguments import check_path, check_paths
from elmokit.config import BiLMConfig
from elmokit.settings import check_types, from_mapping, read_recipe, read_setting

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@dataclass(frozen=True)
class PretrainConfig:
    """Settings of one training run.

    The defaults are the published training (Peters et al., 2018; bilm-tf). In a recipe, None is written as `null` in
    JSON, and as a missing key in TOML.
    """

    train: str | tuple[str, ...]
    """Training text: files (paths or globs), or one folder made by `elmokit prepare`."""
    out: str
    """The run's folder: the best model so far, checkpoints, metrics, and the prepared corpus."""
    heldout: str | tuple[str, ...] | None = None
    """Held-out text, or a prepared folder, whose perplexity is measured. Default: None."""
    vocabulary: str | None = None
    """Vocabulary file. A prepared folder needs the file it was made with. Default: counted from the training text."""
    vocabulary_size: int | None = None
    """Largest size of a counted vocabulary, including its three special words. Default: no limit."""
    min_count: int = 1
    """A counted vocabulary excludes words that occur fewer times than this."""
    tokenized: bool | Literal["characters", "han"] = False
    """How the text is split into tokens. False: by the Penn Treebank rules. True: at spaces, for text that is already
    tokenized. "characters": each character is a token. "han": each Han character and each other word is a token, for
    Chinese. The model records this as its tokenizer. For a prepared folder, set what `elmokit prepare` was called
    with."""

    batch_size: int = 384
    """Number of rows per batch, in all processes together."""
    unroll: int = 20
    """Number of tokens per row and batch. The state is carried to the next batch, gradients are not."""
    accumulation: int = 1
    """Number of batches per update; their gradients are averaged."""
    steps: int | None = None
    """Number of updates. Default: as many as `epochs` need."""
    epochs: float = 10.0
    """Number of passes over the training text. Ignored if `steps` is set."""
    first_step: int = 0
    """Number of updates that the initial weights already had, when a training of `steps` updates is split into runs on
    different machines: the run starts at this point of the schedule, after a warm-up of its own."""

    loss: Literal["sampled", "full"] = "sampled"
    """"sampled": softmax over the target and `num_negatives` sampled words; over the vocabulary if it has no more words
    than that. "full": over the vocabulary."""
    num_negatives: int = 8192
    """Number of negatives of the sampled softmax, drawn per batch and direction."""
    state_reset: float = 0.0
    """Probability that a row starts a batch without the state of the batch before. The published training never resets
    the state; with a few percent the model learns to read single sentences, which start from a zero state."""
    dropout: float = 0.1
    """Dropout probability of the input of each LSTM layer and of the output of the last one; of a transformer, of its
    token vectors and of what each half of a block adds."""

    optimizer: Literal["adagrad", "adamw", "muon"] = "adagrad"
    """"muon": Muon for the matrices of layers, highways and projections, AdamW for all other parameters. Under the
    sampled softmax the output layer always uses Adagrad, because an update changes only some of its rows."""
    learning_rate: float = 0.2
    """Learning rate after the warm-up."""
    warmup_steps: int = 0
    """Number of updates over which the learning rate rises linearly from 0."""
    final_rate: float = 1.0
    """Fraction of the learning rate at the last step, reached along a cosine. 1 keeps the learning rate constant."""
    output_learning_rate: float | None = None
    """Learning rate of the output layer under the sampled softmax. Default: `learning_rate`."""
    initial_accumulator: float = 1.0
    """Initial value of Adagrad's sums of squares."""
    betas: tuple[float, float] = (0.9, 0.99)
    """AdamW's decay rates of the means of gradients and of squared gradients."""
    eps: float = 1e-9
    """AdamW's term added to the denominator."""
    weight_decay: float = 0.0
    """Decoupled weight decay of matrices, for AdamW and Muon."""
    clip_norm: float = 10.0
    """Largest norm of all gradients together; larger gradients are scaled down. inf: no clipping. With Adagrad the
    gradients are those of loss x unroll, as published."""
    ema_decay: float | None = None
    """Decay of a running average of the weights, which is then evaluated and saved. Default: no average."""

    eval_every: float = 1000
    """Number of updates between two measurements of the held-out perplexity; below 1, a fraction of the run: 0.1 is ten
    measurements. Fine-tuning also measures before the first update."""
    eval_batch_size: int = 32
    """Number of rows that the held-out text is split into; the state is carried along a row."""
    patience: int | None = None
    """Stop after this many measurements in a row without a better one. Default: do not stop early."""
    checkpoint_every: int = 1000
    """Number of updates between two checkpoints."""
    log_every: int = 100
    """Number of updates between two lines of metrics."""
    tensorboard: bool = True
    """Also write TensorBoard events, if it is installed: pip install "elmokit[train]"."""

    seed: int = 1
    """Seed of the initial weights, the order of documents, dropout and negatives."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Data type of matrix products. Weights, sums and cell states are float32."""
    device: str = "auto"
    """"cpu", "cuda", "cuda:1", or "auto": a GPU if there is one."""

    def __post_init__(self) -> None:
        check_types(self)
        lower_bounds = {
            "batch_size": 1, "unroll": 1, "accumulation": 1, "num_negatives": 1, "min_count": 1, "warmup_steps": 0,
            "first_step": 0,
            "eval_batch_size": 1, "checkpoint_every": 1, "log_every": 1, "seed": 0, "weight_decay": 0,
            "steps": 1, "patience": 1, "vocabulary_size": 4, "initial_accumulator": 0, "eps": 0,
        }  # fmt: skip
        for name, bound in lower_bounds.items():
            value = getattr(self, name)
            if value is not None and not value >= bound:
                raise ValueError(f"{name} must be at least {bound}, not {value}")
        for name in ("learning_rate", "output_learning_rate", "epochs", "clip_norm", "eval_every"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be above 0, not {value}")
        for name in (
            "learning_rate", "output_learning_rate", "epochs", "eval_every", "weight_decay",
            "initial_accumulator", "eps",
        ):  # fmt: skip
            value = getattr(self, name)
            if value is not None and not math.isfinite(value):  # clip_norm may be inf
                raise ValueError(f"{name} must be finite, not {value}")
        for name, value in {"dropout": self.dropout, "ema_decay": self.ema_decay}.items():
            if value is not None and not 0 <= value < 1:
                raise ValueError(f"{name} must be 0 or more and less than 1, not {value}")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas must be 0 or more and less than 1, not {self.betas}")
        for name in ("final_rate", "state_reset"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be from 0 to 1, not {getattr(self, name)}")
        if self.eval_every >= 1:
            if self.eval_every != int(self.eval_every):
                raise ValueError(
                    f"eval_every must be a number of updates, or a fraction below 1, not {self.eval_every}"
                )
            object.__setattr__(self, "eval_every", int(self.eval_every))  # a file shows 1000, not 1000.0
        for name in ("train", "out", "heldout"):
            if getattr(self, name) in ("", ()):
                raise ValueError(f"{name} is empty: name a file or a folder")
        for name in ("train", "out", "heldout", "vocabulary"):
            if getattr(self, name) is not None:
                check_paths(name, getattr(self, name))
        if self.first_step and (self.steps is None or self.first_step >= self.steps):
            raise ValueError(f"first_step is {self.first_step}: set steps to a larger number, not {self.steps}")
        if self.patience is not None and self.heldout is None:
            raise ValueError(f"patience is {self.patience}, but heldout is not set: patience needs held-out text")


def make_config(
    train: Paths, out: str | os.PathLike[str], heldout: Paths | None, settings: dict[str, Any], *, source: str
) -> PretrainConfig:
    """Make a `PretrainConfig` from the arguments of `pretrain` or `finetune`.

    Args:
        train: Training text.
        out: The run's folder.
        heldout: Held-out text, or None.
        settings: Values of other fields.
        source: Name of the function, for error messages.

    Raises:
        ValueError: If a field is unknown or a value is not valid.
    """

    def as_setting(name: str, paths: Paths) -> str | list[str]:
        names = check_paths(name, paths)
        return names[0] if isinstance(paths, str | os.PathLike) else names

    try:
        paths: dict[str, Any] = {"train": as_setting("train", train), "out": os.fspath(check_path("out", out))}
        paths["heldout"] = None if heldout is None else as_setting("heldout", heldout)
        if settings.get("vocabulary") is not None:
            paths["vocabulary"] = os.fspath(check_path("vocabulary", settings["vocabulary"]))
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None
    return from_mapping(PretrainConfig, {**settings, **paths}, source=source)


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> tuple[PretrainConfig, BiLMConfig]:
    """Read a recipe.

    Args:
        path: A TOML or JSON file, or the name of a recipe in the package: "tiny".
        overrides: `key=value` for a setting, `model.key=value` for a size of the biLM. The value is TOML or plain text.

    Returns:
        The settings of the run and the sizes of the biLM.

    Raises:
        ValueError: If there is no such recipe, a key is unknown or a value is not valid.
    """
    source, values = str(path), read_recipe(path)
    for override in overrides:
        try:
            key, value = read_setting(override)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        source += f" with {override}"
        table, _, name = key.rpartition(".")
        target = values if not table else values.setdefault(table, {})
        target[name] = value
    model = from_mapping(BiLMConfig, values.pop("model", {}), source=f"{source}: [model]")
    for name in ("train", "out"):
        if name not in values:
            raise ValueError(f"{source}: {name} is not set: set it in the recipe or with --set {name}=PATH")
    return from_mapping(PretrainConfig, values, source=source), model


def finetune_defaults(recipe: str | os.PathLike[str], *, has_heldout: bool) -> dict[str, Any]:
    """The settings of a recipe that fine-tuning uses unless they are set otherwise.

    Args:
        recipe: A TOML or JSON file, or the name of a recipe in the package.
        has_heldout: Whether there is held-out text; without it there is no patience.

    Returns:
        The settings. Those that name text and folders, and the sizes of the biLM, are left out.

    Raises:
        ValueError: If there is no such recipe.
    """
    values = read_recipe(recipe)
    for name in ("train", "heldout", "out", "model", *(() if has_heldout else ("patience",))):
        values.pop(name, None)
    return values
