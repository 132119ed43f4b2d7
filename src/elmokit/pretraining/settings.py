"""How a biLM is trained: every choice of a run, flat, with its default, and the recipe file that holds them.

Enters: a TOML file (settings at the top, the biLM's sizes in a table `[model]`), or the recipe.json that a run leaves,
and `key=value` overrides.
Leaves: a `PretrainConfig` and a `BiLMConfig`; an unknown key, a wrong type or values that do not fit together are a
ValueError that names the file and the key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from elmokit.config import BiLMConfig
from elmokit.settings import check_types, from_mapping, read_recipe, read_setting


@dataclass(frozen=True)
class PretrainConfig:
    """One training run.  The defaults are the published recipe (Peters et al., 2018; bilm-tf) on one process."""

    train: str | tuple[str, ...]
    """Text files (paths or globs; see `corpus`), or one folder that `elmokit prepare` made."""
    out: str
    """The run's folder: the best model so far, its checkpoints, metrics.jsonl, and the prepared corpus."""
    heldout: str | tuple[str, ...] | None = None
    """Text, or a prepared folder, whose perplexity is measured; null: none is."""
    vocabulary: str | None = None
    """Vocabulary file; null: counted from the training text.  A prepared folder needs the file it was made with."""
    vocabulary_size: int | None = None
    """Words of a vocabulary that is counted, its three specials included; null: all."""
    min_count: int = 1
    """A counted vocabulary leaves out words that occur less often."""
    tokenized: bool | Literal["characters"] = False
    """The text is tokenized already: words are what stands between spaces; or each character is a token."""

    batch_size: int = 384
    """Rows of a step, in all processes together."""
    unroll: int = 20
    """Tokens of a row in one step; the LSTM state goes on from step to step, gradients do not."""
    accumulation: int = 1
    """Batches, one after the other, whose gradients make one update."""
    steps: int | None = None
    """Updates in all; null: as many as `epochs` need."""
    epochs: float = 10.0
    """Passes over the training text; not read where `steps` is given."""

    loss: Literal["sampled", "full"] = "sampled"
    """Softmax over `num_negatives` words and the target, or over the whole vocabulary."""
    num_negatives: int = 8192
    """Words drawn for the sampled softmax, for each batch and direction anew."""
    state_reset: float = 0.0
    """Share of the rows, drawn anew at each step, that begin it with a state of zeros.  The published training never
    resets, so a model may not know what to do with the zeros that a single sentence starts from; a few percent help."""
    dropout: float = 0.1
    """Share of each LSTM's input and of the last output that is set to zero."""

    optimizer: Literal["adagrad", "adamw", "muon"] = "adagrad"
    """"muon": Muon for the matrices of LSTMs, highways and projections, AdamW for all else. Under the sampled softmax
    the output layer, of which a step touches few rows, takes Adagrad in any case."""
    learning_rate: float = 0.2
    warmup_steps: int = 0
    """Updates over which the learning rate rises from 0."""
    final_rate: float = 1.0
    """The learning rate falls along a cosine to this share of itself; 1 keeps it constant."""
    output_learning_rate: float | None = None
    """Adagrad's rate for the output layer under the sampled softmax; null: `learning_rate`."""
    initial_accumulator: float = 1.0
    """What Adagrad's sums of squares start at."""
    betas: tuple[float, float] = (0.9, 0.99)
    """AdamW's decay of the means of gradients and of their squares."""
    eps: float = 1e-9
    """AdamW's."""
    weight_decay: float = 0.0
    """AdamW's and Muon's, on matrices."""
    clip_norm: float = 10.0
    """Largest norm of all gradients together, those of Adagrad being of the loss x unroll; inf: any."""
    ema_decay: float | None = None
    """Decay of the running average of the weights, which is then what is evaluated and saved; null: no average."""

    eval_every: int = 1000
    """Updates between two measurements of the held-out perplexity."""
    eval_batch_size: int = 32
    """Runs of text, side by side, that the held-out text is cut into."""
    patience: int | None = None
    """Stop after so many measurements in a row without a better one; null: never."""
    checkpoint_every: int = 1000
    """Updates between two checkpoints."""
    log_every: int = 100
    """Updates between two lines of metrics."""
    tensorboard: bool = True
    """Write events for TensorBoard too, where it is installed: pip install "elmokit[train]"."""

    seed: int = 1
    precision: Literal["float32", "bfloat16"] = "float32"
    """Type of the products; weights, sums and cells are float32 in either case."""
    device: str = "auto"
    """"cpu", "cuda", "cuda:1"; "auto": a GPU where there is one."""

    def __post_init__(self) -> None:
        check_types(self)
        least = {
            "batch_size": 1, "unroll": 1, "accumulation": 1, "num_negatives": 1, "min_count": 1, "warmup_steps": 0,
            "eval_every": 1, "eval_batch_size": 1, "checkpoint_every": 1, "log_every": 1, "seed": 0, "weight_decay": 0,
            "steps": 1, "patience": 1, "vocabulary_size": 4, "initial_accumulator": 0, "eps": 0,
        }  # fmt: skip
        for name, bound in least.items():
            value = getattr(self, name)
            if value is not None and not value >= bound:
                raise ValueError(f"{name} must be at least {bound}, not {value}")
        for name in ("learning_rate", "output_learning_rate", "epochs", "clip_norm"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be above 0, not {value}")
        for name, value in {"dropout": self.dropout, "betas": min(self.betas), "ema_decay": self.ema_decay}.items():
            if value is not None and not 0 <= value < 1:
                raise ValueError(f"{name} must be 0 or more and less than 1, not {getattr(self, name)}")
        if not max(self.betas) < 1:
            raise ValueError(f"betas must be 0 or more and less than 1, not {self.betas}")
        for name in ("final_rate", "state_reset"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be from 0 to 1, not {getattr(self, name)}")
        for name in ("train", "out", "heldout"):
            if getattr(self, name) in ("", ()):
                raise ValueError(f"{name} is empty: name a file or a folder")
        if self.patience is not None and self.heldout is None:
            raise ValueError(f"patience is {self.patience}, but there is no heldout text to measure: give heldout")


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> tuple[PretrainConfig, BiLMConfig]:
    """Read a recipe; an override is `key=value`, or `model.key=value` for the biLM, the value as TOML or plain text."""
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
    return from_mapping(PretrainConfig, values, source=source), model
