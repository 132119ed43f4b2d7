"""What the server asks of a model, by batches.

Enters: tokenized sentences with what is wanted of their layers; sentences to score; words to replace or to look up;
texts for tasks.  Leaves: NumPy arrays and plain values, equal to those of `ELMo`, whoever shares the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from elmokit.index import Neighbour, WordIndex
from elmokit.inference.runner import TOKENS_AT_ONCE
from elmokit.inference.scores import Substitute, TokenLogProbs
from elmokit.model import ELMo
from elmokit.serve.batching import Batcher, BatchReport, Run
from elmokit.serve.settings import Settings

Vectors = npt.NDArray[np.float32]
Reduce = Callable[[Tensor], Tensor]

BOUNDARIES = 2  # tokens that the model adds to each sentence
QUEUED_BATCHES = 16
WARM_ROWS = 64  # of a batch, as most have at most


class Task(Protocol):
    """What `elmokit.tasks.load_task` gives."""

    def predict(self, texts: list[Any], /) -> Sequence[Any]:
        """For each text an answer that JSON can hold, whatever the other texts are."""


@dataclass(frozen=True)
class Blank:
    """A place in a sentence, and how many words for it are wanted."""

    tokens: list[str]
    position: int
    k: int


@dataclass(frozen=True)
class Lookup:
    """A sentence with one word in brackets, and how many neighbours of that are wanted."""

    sentence: str
    k: int


class Engine:
    """A model with its tasks and its index behind one `Batcher`."""

    def __init__(
        self,
        model: ELMo,
        settings: Settings,
        *,
        tasks: Mapping[str, Task] | None = None,
        index: WordIndex | None = None,
        report: Callable[[BatchReport], None] = lambda report: None,
    ) -> None:
        if model.state != "stateless":
            raise ValueError("the server answers each request by itself: load the model without state='carry'")
        if index is not None:
            index.check_model(model)
        self.model, self.tasks, self.index = model.eval(), dict(tasks or {}), index
        batch_tokens = settings.batch_tokens or TOKENS_AT_ONCE.get(model.device.type, TOKENS_AT_ONCE["cpu"])
        lanes: dict[str, Run] = {
            "vectors": self._vectors,
            "log_probs": self._log_probs,
            "substitutes": self._substitutes,
            "neighbours": self._neighbours,
            **{f"task {name}": _predict(task) for name, task in self.tasks.items()},
        }
        self.batcher = Batcher(
            lanes,
            batch_tokens=batch_tokens,
            queue_tokens=settings.queue_tokens or max(QUEUED_BATCHES * batch_tokens, settings.max_request_tokens),
            patience=settings.patience,
            longest_wait=settings.deadline / 2,  # what comes in shall be answered in time
            report=report,
        )

    @property
    def is_language_model(self) -> bool:
        """Whether there are probabilities to ask for."""
        return self.model.is_language_model

    def warm_up(self) -> None:
        """See `warm_up`."""
        warm_up(self.model)

    # ---- on the event loop -------------------------------------------------------------------------------------------

    async def vectors(self, sentences: Sequence[list[str]], reduce: Reduce) -> list[Vectors]:
        """For each sentence what `reduce` makes of its layers (L+1, T, 2P)."""
        if not self.model.reads_words:
            # the model reads so many bytes of a word and no more; its memory of words need not hold the rest
            longest = self.model.config.max_characters
            sentences = [[token[:longest] for token in tokens] for tokens in sentences]
        return await self._submit("vectors", [(tokens, reduce) for tokens in sentences], map(len, sentences))

    async def log_probs(self, sentences: Sequence[list[str]]) -> list[TokenLogProbs]:
        """Log-probabilities of every token."""
        return await self._submit("log_probs", sentences, map(len, sentences))

    async def substitutes(self, blank: Blank) -> list[Substitute]:
        """The likeliest words for a place."""
        found: list[list[Substitute]] = await self._submit("substitutes", [blank], [len(blank.tokens)])
        return found[0]

    async def neighbours(self, lookup: Lookup, length: int) -> list[Neighbour]:
        """The words of the index nearest to one in its sentence, which has so many tokens."""
        found: list[list[Neighbour]] = await self._submit("neighbours", [lookup], [length])
        return found[0]

    async def predict(self, task: str, texts: Sequence[Any], lengths: Sequence[int]) -> list[Any]:
        """What a task says of each text, which has so many tokens."""
        return await self._submit(f"task {task}", texts, lengths)

    async def _submit(self, lane: str, items: Sequence[Any], lengths: Iterable[int]) -> list[Any]:
        return await self.batcher.submit(lane, items, [length + BOUNDARIES for length in lengths])

    # ---- on the model's thread ---------------------------------------------------------------------------------------

    @torch.no_grad()
    def _vectors(self, items: list[tuple[list[str], Reduce]]) -> list[Vectors]:
        layers = self.model.embed([tokens for tokens, _ in items], layers="all", convert_to_tensor=True)
        return [_own_array(reduce(stacked)) for stacked, (_, reduce) in zip(layers, items, strict=True)]

    def _log_probs(self, sentences: list[list[str]]) -> list[TokenLogProbs]:
        return self.model.log_probs(sentences)

    def _substitutes(self, blanks: list[Blank]) -> list[list[Substitute]]:
        return [self.model.substitutes(blank.tokens, position=blank.position, k=blank.k) for blank in blanks]

    def _neighbours(self, lookups: list[Lookup]) -> list[list[Neighbour]]:
        assert self.index is not None
        return [self.index.neighbours(self.model, lookup.sentence, lookup.k) for lookup in lookups]


def _predict(task: Task) -> Run:
    return lambda texts: list(task.predict(texts))


def _own_array(vectors: Tensor) -> Vectors:
    """An array that keeps nothing but itself alive: a view would keep the whole batch."""
    vectors = vectors.float()
    if vectors.is_cpu and vectors.untyped_storage().nbytes() > vectors.nbytes:
        vectors = vectors.clone()
    array: Vectors = vectors.cpu().numpy()
    return array


# ---- layers (L+1, T, 2P) -> what a request wants of them -------------------------------------------------------------


def sentence_vector(tokens: Reduce, *, normalize: bool) -> Reduce:
    """The mean of the token vectors that `tokens` gives, as `ELMo.encode` makes it: (2P,)."""

    def reduce(layers: Tensor) -> Tensor:
        vectors = tokens(layers)
        mean = vectors.sum(dim=0, dtype=torch.float32) / max(1, len(vectors))
        return torch.nn.functional.normalize(mean, dim=-1) if normalize else mean

    return reduce


def one_layer(layers: str | int, num_layers: int) -> Reduce:
    """Token vectors (T, 2P): "average" is the even mix, "top" the last layer, a number one layer."""
    if layers == "average":
        return lambda stacked: stacked.mean(dim=0)
    number = num_layers if layers == "top" else layers
    if not isinstance(number, int) or not 0 <= number <= num_layers:
        raise ValueError(f'layers must be "average", "top" or a number from 0 to {num_layers}, not {layers!r}')
    return lambda stacked: stacked[number]


def chosen_layers(numbers: Sequence[int], num_layers: int) -> Reduce:
    """The layers with these numbers, (k, T, 2P)."""
    wrong = [number for number in numbers if not 0 <= number <= num_layers]
    if wrong:
        raise ValueError(f"layers are numbers from 0 to {num_layers}, not {wrong[0]}")
    chosen = list(numbers)
    return lambda stacked: stacked[chosen]


def mixed(layers: Reduce, weights: Sequence[float], gamma: float) -> Reduce:
    """gamma * sum_j softmax(weights)_j * layer_j of the layers that `layers` gives: (T, 2P)."""
    shares = torch.tensor(weights, dtype=torch.float32).softmax(dim=0) * gamma
    return lambda stacked: torch.einsum("l,ltp->tp", shares.to(stacked), layers(stacked))


def warm_up(model: ELMo) -> None:
    """Run once with each number of rows up to `WARM_ROWS`, one less at every step of the LSTMs.

    A CPU packs the weights then, and compiles a product for each number: what the first requests would wait for, and
    what memory would grow by, is there before the server is ready.
    """
    model.embed([["warm", "up"]])
    with torch.no_grad():
        model.bilm(model.to_ids([["warm"] * length for length in range(1, WARM_ROWS + 1)]).to(model.device))
