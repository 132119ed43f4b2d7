"""What a run reports and what it remembers.

Input: numbers of the training loop.  Output: `Progress` during a run, `PretrainResult` at its end, and `TrainingState`,
the part of a checkpoint that is not tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from elmokit.inference.scores import Perplexity


class DivergenceError(RuntimeError):
    """The loss, a gradient or a weight is not finite."""


@dataclass(frozen=True)
class Progress:
    """The status of a run, reported every `log_every` steps."""

    step: int
    """Number of updates done."""
    num_steps: int
    """Number of updates of the complete run."""
    loss: float
    """Mean loss over both directions since the last report."""
    perplexity: float
    """exp(loss)."""
    learning_rate: float
    tokens_per_second: float
    seconds_left: float
    """Estimated time until the last step."""
    heldout: Perplexity | None
    """The last held-out perplexity; None before the first measurement."""


OnProgress = Callable[[Progress], None]


@dataclass(frozen=True)
class PretrainResult:
    """The outcome of a run."""

    folder: Path
    """A model folder for `ELMo.from_pretrained`."""
    step: int
    """Number of updates done."""
    num_steps: int
    """Number of updates of the complete run."""
    ended: str
    """Why the run ended: "steps", "patience", or the name of a signal: "SIGTERM", "SIGINT"."""
    best: Perplexity | None
    """Best held-out perplexity; None without held-out text."""
    best_step: int
    """Step of the best held-out perplexity."""
    last: Perplexity | None
    """Last held-out perplexity."""
    unigram: float | None
    """Held-out perplexity of a unigram model of the training text."""
    before: Perplexity | None = None
    """Held-out perplexity of a fine-tuned model before the first update; None without held-out text."""

    @property
    def summary(self) -> str | None:
        """What fine-tuning did to the held-out perplexity, in plain words; None if it was not measured before."""
        if self.before is None or self.best is None or self.last is None:
            return None
        before, best, last = self.before.both, self.best.both, self.last.both
        if not best < before:
            change = f"rose to {last:.2f}" if last > before else "did not fall"
            return (
                f"Fine-tuning did not improve the model: the held-out perplexity was {before:.2f} before the first "
                f"step and {change}. The model as given is saved. Try a smaller learning_rate, or more text."
            )
        fell = f"The held-out perplexity fell from {before:.2f} to {best:.2f} at step {self.best_step:,}"
        if last > best:
            return f"{fell}, then rose to {last:.2f}. The model of step {self.best_step:,} is saved."
        return f"{fell}."


@dataclass
class TrainingState:
    """What a run remembers in addition to tensors: JSON values, saved with each checkpoint.

    A perplexity is a list [forward, backward, both, num_tokens].
    """

    step: int = 0
    steps_since_log: int = 0
    best: list[float] | None = None
    best_step: int = 0
    measured: list[tuple[int, list[float]]] = field(default_factory=list)
    """(step, perplexity) of each measurement."""
    since_best: int = 0
    """Number of measurements since the best one."""

    def add_measurement(self, numbers: list[float]) -> bool:
        """Record a held-out perplexity of the current step; returns whether it is the best one."""
        self.measured.append((self.step, numbers))
        self.since_best += 1
        is_best = self.best is None or numbers[2] < self.best[2]
        if is_best:
            self.best, self.best_step, self.since_best = numbers, self.step, 0
        return is_best

    def best_perplexity(self) -> Perplexity | None:
        """The best measurement."""
        return None if self.best is None else _perplexity(self.best)

    def perplexity_at(self, step: int) -> Perplexity | None:
        """The measurement at a step; None if there is none."""
        return next((_perplexity(numbers) for at, numbers in self.measured if at == step), None)

    def last_perplexity(self) -> Perplexity | None:
        """The last measurement."""
        return _perplexity(self.measured[-1][1]) if self.measured else None


def _perplexity(numbers: list[float]) -> Perplexity:
    forward, backward, both, num_tokens = numbers
    return Perplexity(forward, backward, both, int(num_tokens))
