"""What a task is: its reader, its labels, its network and its score.

A task is an object that implements `Task`; `elmokit.tasks.TASKS` has them by name. The trainer, `TrainedTask` and the
command line work with any such object.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, Protocol, TypeVar, runtime_checkable

from torch import Tensor

from elmokit.arguments import check_paths, describe
from elmokit.extras import require
from elmokit.tasks.inputs import Inputs
from elmokit.tasks.settings import TaskConfig
from elmokit.text import TREEBANK, Tokenizer

E = TypeVar("E")  # an example of a task
P = TypeVar("P", contravariant=True)  # a prediction for an example


class Network(Protocol):
    """What `Task.build` returns: an `nn.Module` that holds the inputs that it reads as `self.inputs`.

    It is trained by gradients (`HasLoss`) or computed from the training examples in one pass (`HasSums`).
    """

    inputs: Inputs

    def predict(self, examples: Sequence[Any]) -> list[Any]:
        """One prediction per example of a batch. It is called without gradients and in eval mode."""
        ...


@runtime_checkable
class HasLoss(Protocol):
    """A network that is trained by gradients, epoch after epoch."""

    def loss(self, examples: Sequence[Any]) -> Tensor:
        """The mean loss of a batch, a scalar."""
        ...


@runtime_checkable
class HasBatches(HasLoss, Protocol):
    """A network whose loss is `loss_of(collect(examples))`, by operations that do not depend on a value.

    On a GPU, with a frozen biLM, the trainer records its updates as CUDA graphs, one for each size of a batch.
    """

    def collect(self, examples: Sequence[Any], *, rounded: bool = False) -> Any:
        """Collect all that the loss depends on.

        Args:
            examples: A batch.
            rounded: Round sizes up, so that few different ones occur. What fills up does not change the loss.

        Returns:
            A dataclass of tensors on the host, as `elmokit.tasks.batches` describes it.
        """
        ...

    def loss_of(self, batch: Any) -> Tensor:
        """The mean loss of a batch, a scalar.

        Args:
            batch: What `collect` returned, on the device. Nothing else of the host is read, and nothing is waited for.
        """
        ...


@runtime_checkable
class HasSums(Protocol):
    """A network whose weights come from a sum over all training examples: there are no gradients and no epochs."""

    def sums(self, examples: Sequence[Any], on_examples: Callable[[int], None]) -> Tensor:
        """What examples add to the sum.

        Args:
            examples: Some of the training examples.
            on_examples: Called with the number of examples that are done.

        Returns:
            A tensor on the CPU. Its shape is the same for any examples.
        """
        ...

    def set_sums(self, sums: Tensor) -> None:
        """Set the weights.

        Args:
            sums: The sum over all training examples.
        """
        ...


class Task(Protocol[E, P]):
    """A task. Its examples and predictions are objects of any kind."""

    @property
    def metric(self) -> str:
        """The key of `score`'s result by which the best epoch is chosen. Higher is better."""
        ...

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Suffixes of its data files, without `.gz`."""
        ...

    @property
    def defaults(self) -> Mapping[str, Any]:
        """Settings of `TaskConfig` for which this task has a default of its own."""
        ...

    @property
    def requirements(self) -> tuple[str, ...]:
        """Optional modules that `read` and `score` import; the extra `tasks` installs them."""
        ...

    def read(self, path: str, tokenizer: Tokenizer = TREEBANK) -> list[E]:
        """Read a data file.

        Args:
            path: The file.
            tokenizer: Tokenizes text of the file that is not tokenized.

        Returns:
            The examples of the file.
        """
        ...

    def sentences(self, example: E) -> list[list[str]]:
        """Every token list of the example that its network passes to `inputs`."""
        ...

    def fit(self, examples: Sequence[E]) -> dict[str, Any]:
        """What the network must know of the training examples, such as labels, as plain JSON values."""
        ...

    def build(self, config: TaskConfig, fitted: dict[str, Any], inputs: Inputs) -> Network:
        """Build the network with fresh weights.

        Args:
            config: Sizes and dropout.
            fitted: What `fit` returned.
            inputs: What the network reads.
        """
        ...

    def score(self, examples: Sequence[E], predictions: Sequence[P]) -> dict[str, float]:
        """Scores of predictions, from 0 to 1, for examples with gold answers."""
        ...

    def from_text(self, text: Any, tokenizer: Tokenizer = TREEBANK) -> E:
        """Make an example without gold answers.

        Args:
            text: What a user passed to `TrainedTask.predict`: a string, a list of tokens or a mapping of fields.
            tokenizer: Tokenizes strings.
        """
        ...

    def to_json(self, example: E, prediction: P) -> dict[str, Any]:
        """The prediction, with the tokens that it is about, as plain JSON values."""
        ...


@runtime_checkable
class HasPhrases(Protocol):
    """A task whose examples have labelled parts that can be trained on too (`TaskConfig.phrases`)."""

    def phrases(self, examples: Sequence[Any]) -> list[Any]:
        """The labelled parts of the examples, as examples."""
        ...


@runtime_checkable
class HasResources(Protocol):
    """A task that keeps data of another file than the training files (`TaskConfig.sense_index`)."""

    def resources(self, config: TaskConfig) -> dict[str, Any]:
        """Check the settings and read the file that they name.

        Args:
            config: The settings.

        Returns:
            Plain JSON values, which are added to those of `fit`.

        Raises:
            ValueError: If the task cannot be trained with these settings, or the file cannot be read.
        """
        ...


def find_task(name: str) -> Task[Any, Any]:
    """Find a task by its name.

    Raises:
        ValueError: If there is no task of this name.
    """
    from elmokit.tasks import TASKS  # the modules of the tasks import this one

    if not isinstance(name, str) or name not in TASKS:
        raise ValueError(f"task must be one of {', '.join(sorted(TASKS))}, not {describe(name)}")
    return TASKS[name]


def check_requirements(task: Task[Any, Any]) -> None:
    """Import the optional modules of a task, before any long work is done.

    Raises:
        ImportError: If one is not installed. The message names the pip command.
    """
    for module in task.requirements:
        require(module, extra="tasks")


def read_files(
    task: Task[E, Any],
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    tokenizer: Tokenizer,
) -> list[E]:
    """Read the examples of one file, or of several in their order."""
    paths = check_paths("files", files)
    if not paths:
        raise ValueError("files is empty: pass at least one file")
    return list(chain.from_iterable(task.read(path, tokenizer) for path in paths))
