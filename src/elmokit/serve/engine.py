"""The model behind a batcher: what the endpoints ask of it.

Input: token lists with a function of their `Reading`; sentences to score; words to replace or to look up; inputs of
tasks.  Output: NumPy arrays and plain values, equal to those of `ELMo`, whatever other requests share the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from elmokit.index import Neighbour, WordIndex
from elmokit.inference.runner import TOKENS_AT_ONCE
from elmokit.inference.scores import NUM_READ, REACH, Substitute, TokenLogProbs
from elmokit.inference.views import Reading, View, check_layers, view_of
from elmokit.model import ELMo
from elmokit.network import pausing
from elmokit.serve.batching import Batcher, BatchReport, Run, Ticket
from elmokit.serve.settings import Settings
from elmokit.serve.turns import PAUSE_STEPS

Vectors = npt.NDArray[np.float32]
Reduce = Callable[[Reading], Tensor]

NUM_BOUNDARIES = 2  # tokens that the model adds to each sentence
QUEUED_BATCHES = 16
WAIT_FRACTION = 0.35  # of the deadline: what a client waits by estimate. The rest is for what comes after it.
WARM_UP_ROWS = 64  # most batches have at most this many sentences


class Task(Protocol):
    """A trained task, such as `elmokit.tasks.load_task` returns."""

    def predict(self, texts: list[Any], /) -> Sequence[Any]:
        """A prediction for each text that can be written as JSON. It does not depend on the other texts."""


@dataclass(frozen=True)
class SubstituteQuery:
    """A place in a sentence, the number of words to return for it, and whether to return the word that is there."""

    tokens: list[str]
    position: int
    k: int
    keep_word: bool = False


@dataclass(frozen=True)
class NeighbourQuery:
    """A sentence with one word or phrase in brackets, the number of neighbours to return, and the sentence's length."""

    sentence: str
    k: int
    num_tokens: int


class Engine:
    """A model with its tasks and its index behind a `Batcher`.

    Args:
        model: The model. It is put into evaluation mode.
        settings: Sizes of batches and of the queue.
        tasks: Trained tasks by name.
        index: Index for `neighbours`.
        report: Called on the model's thread after each batch.
        beside: Engine of another model, whose batcher runs this model too.
        prefix: Start of the names of this model's lanes.

    Raises:
        ValueError: If the model carries state from batch to batch, or the index was built with another model.
    """

    def __init__(
        self,
        model: ELMo,
        settings: Settings,
        *,
        tasks: Mapping[str, Task] | None = None,
        index: WordIndex | None = None,
        report: Callable[[BatchReport], None] = lambda report: None,
        beside: Engine | None = None,
        prefix: str = "",
    ) -> None:
        if model.state != "stateless":
            raise ValueError("requests do not depend on each other: load the model without state='carry'")
        if index is not None:
            index.check_model(model)
        self.model, self.tasks, self.index = model.eval(), dict(tasks or {}), index
        self.prefix = prefix
        lanes: dict[str, Run] = {
            "vectors": self._vectors,
            "log_probs": self._log_probs,
            "substitutes": self._substitutes,
            "neighbours": self._neighbours,
            **{f"task {name}": _predict(task) for name, task in self.tasks.items()},
        }
        self.batcher: Batcher = _make_batcher(model, settings, report) if beside is None else beside.batcher
        self.batcher.lanes.update({prefix + name: run for name, run in lanes.items()})

    def warm_up(self) -> None:
        """Run the model once; see the function `warm_up`."""
        warm_up(self.model)

    def num_units(self, tokens: list[str]) -> int:
        """Number of tokens that the model reads for a token list: a Chinese word counts by its characters."""
        tokenizer = self.model.tokenizer
        return sum(len(tokenizer.units(token)) for token in tokens) if tokenizer.splits_words else len(tokens)

    # ---- on the event loop -------------------------------------------------------------------------------------------

    def admit(self, lane: str, lengths: Sequence[int], client: str) -> Ticket:
        """Admit a request to the queue of the batcher.

        Args:
            lane: "vectors", "log_probs", "substitutes", "neighbours" or "task NAME".
            lengths: Number of tokens of each item.
            client: Who sends the request.

        Returns:
            The ticket for the work, and for `Batcher.release`.

        Raises:
            OverloadedError: If the queue has no capacity for it, or it would not be answered in time.
        """
        cost = sum(_cost(lane, length) for length in lengths)
        return self.batcher.admit(sum(lengths), lane=self.prefix + lane, client=client, cost=cost)

    async def vectors(
        self, sentences: Sequence[list[str]], reduce: Reduce | Sequence[Reduce], ticket: Ticket | None = None
    ) -> list[Vectors]:
        """Vectors of sentences.

        Args:
            sentences: Token lists.
            reduce: A function of the `Reading` of one sentence, or a function for each sentence. It runs on the model's
                thread.
            ticket: What `admit` returned; None in a program without admission.

        Returns:
            The result of the function for each sentence.
        """
        if not self.model.reads_words and not self.model.tokenizer.splits_words:
            # The cache of words need not keep the characters that the model does not read. One more is kept: a word
            # that is cut does not have the weight of another word, which ends there.
            limit = self.model.config.max_characters + 1
            sentences = [[token[:limit] for token in tokens] for tokens in sentences]
        reduces = [reduce] * len(sentences) if callable(reduce) else reduce
        return await self._submit(
            "vectors", list(zip(sentences, reduces, strict=True)), map(self.num_units, sentences), ticket
        )

    async def log_probs(self, sentences: Sequence[list[str]], ticket: Ticket | None = None) -> list[TokenLogProbs]:
        """Log-probabilities of every token of each token list."""
        return await self._submit("log_probs", sentences, map(self.num_units, sentences), ticket)

    async def substitutes(self, query: SubstituteQuery, ticket: Ticket | None = None) -> list[Substitute]:
        """The likeliest words for a place in a sentence, best first."""
        results: list[list[Substitute]] = await self._submit(
            "substitutes", [query], [self.num_units(query.tokens)], ticket
        )
        return results[0]

    async def neighbours(self, query: NeighbourQuery, ticket: Ticket | None = None) -> list[Neighbour]:
        """The words of the index nearest to a word in its sentence, best first."""
        results: list[list[Neighbour]] = await self._submit("neighbours", [query], [query.num_tokens], ticket)
        return results[0]

    async def predict(
        self, task: str, inputs: Sequence[Any], lengths: Sequence[int], ticket: Ticket | None = None
    ) -> list[Any]:
        """Predictions of a task.

        Args:
            task: Name of the task.
            inputs: Its inputs.
            lengths: Number of tokens of each input.
            ticket: What `admit` returned; None in a program without admission.

        Returns:
            A prediction for each input.
        """
        return await self._submit(f"task {task}", inputs, lengths, ticket)

    async def _submit(
        self, lane: str, items: Sequence[Any], lengths: Iterable[int], ticket: Ticket | None
    ) -> list[Any]:
        costs = [_cost(lane, length) for length in lengths]
        return await self.batcher.submit(self.prefix + lane, items, costs, ticket)

    # ---- on the model's thread ---------------------------------------------------------------------------------------

    @torch.no_grad()
    def _vectors(self, items: list[tuple[list[str], Reduce]]) -> list[Vectors]:
        results: list[Vectors] = [np.empty(0, np.float32)] * len(items)
        for position, reading in self.model.readings([tokens for tokens, _ in items]):
            _, reduce = items[position]
            results[position] = _own_array(reduce(reading))
        return results

    def _log_probs(self, sentences: list[list[str]]) -> list[TokenLogProbs]:
        return self.model.log_probs(sentences)

    def _substitutes(self, queries: list[SubstituteQuery]) -> list[list[Substitute]]:
        return [
            self.model.substitutes(query.tokens, position=query.position, k=query.k, keep_word=query.keep_word)
            for query in queries
        ]

    def _neighbours(self, queries: list[NeighbourQuery]) -> list[list[Neighbour]]:
        assert self.index is not None
        return [self.index.neighbours(self.model, query.sentence, query.k) for query in queries]


def _cost(lane: str, num_tokens: int) -> int:
    """Cost of an item in a batch: the number of tokens that the model reads for it."""
    cost = num_tokens + NUM_BOUNDARIES
    if lane == "substitutes":  # the sentence with each candidate is read too
        cost += NUM_READ * (min(num_tokens, 2 * REACH + 1) + NUM_BOUNDARIES)
    return cost


def _make_batcher(model: ELMo, settings: Settings, report: Callable[[BatchReport], None]) -> Batcher:
    """A batcher without lanes, with sizes for the device of the model."""
    batch_tokens = settings.batch_tokens or TOKENS_AT_ONCE.get(model.device.type, TOKENS_AT_ONCE["cpu"])
    return Batcher(
        {},
        batch_tokens=batch_tokens,
        queue_tokens=settings.queue_tokens or max(QUEUED_BATCHES * batch_tokens, settings.max_request_tokens),
        patience=settings.patience,
        max_wait=WAIT_FRACTION * settings.deadline,
        pausing=partial(pausing, num_steps=PAUSE_STEPS) if model.config.architecture == "lstm" else None,
        report=report,
    )


def _predict(task: Task) -> Run:
    return lambda inputs: list(task.predict(inputs))


def _own_array(vectors: Tensor) -> Vectors:
    """A float32 array with its own memory: a view would keep the tensor of all sentences in memory."""
    vectors = vectors.float()
    if vectors.is_cpu and vectors.untyped_storage().nbytes() > vectors.nbytes:
        vectors = vectors.clone()
    array: Vectors = vectors.cpu().numpy()
    return array


# ---- functions of the reading of one sentence ------------------------------------------------------------------------


def token_vectors(view: View) -> Reduce:
    """A function from a reading to the vectors of the tokens (T, 2P), as from `ELMo.embed`.

    Args:
        view: One vector per token: not "all".
    """
    return lambda reading: view.tokens(reading)[0]


def sentence_vector(view: View, *, normalize: bool) -> Reduce:
    """A function that averages token vectors, as `ELMo.encode` does.

    Args:
        view: One vector per token: not "all".
        normalize: Scale the result to length one.

    Returns:
        A function from a reading to (2P,). A sentence without tokens gives zeros.
    """

    def reduce(reading: Reading) -> Tensor:
        vectors = view.tokens(reading)[0]
        mean = vectors.sum(dim=0, dtype=torch.float32) / max(1, len(vectors))
        return torch.nn.functional.normalize(mean, dim=-1) if normalize else mean

    return reduce


def chunk_vectors(view: View, ends: Sequence[int], *, normalize: bool) -> Reduce:
    """A function that averages the token vectors of each chunk of a document.

    Args:
        view: One vector per token: not "all".
        ends: For each of n chunks, the number of tokens of the document up to its end.
        normalize: Scale each result to length one.

    Returns:
        A function from the reading of the document to (n, 2P). A chunk without tokens gives zeros.
    """
    starts = [0, *ends[:-1]]

    def reduce(reading: Reading) -> Tensor:
        vectors = view.tokens(reading)[0]
        sums = [vectors[start:end].sum(dim=0, dtype=torch.float32) for start, end in zip(starts, ends, strict=True)]
        counts = [max(1, end - start) for start, end in zip(starts, ends, strict=True)]
        means = torch.stack(sums) / torch.tensor(counts, device=vectors.device).unsqueeze(1)
        return torch.nn.functional.normalize(means, dim=-1) if normalize else means

    return reduce


def phrase_vector(view: View, start: int, end: int) -> Reduce:
    """A function that gives the vector of a phrase, of length one.

    Args:
        view: One vector per token: not "all".
        start: The first token of the phrase.
        end: The token after it.

    Returns:
        A function from a reading to (2P,).
    """
    first, behind = torch.tensor([start]), torch.tensor([end])
    return lambda reading: torch.nn.functional.normalize(view.spans(reading, first, behind)[0, 0], dim=-1)


def chosen_layers(numbers: Sequence[int], num_layers: int) -> Reduce:
    """A function that picks several layers.

    Args:
        numbers: Numbers of the k layers, in the order of the result.
        num_layers: Number of layers of the model, layer 0 included.

    Returns:
        A function from a reading to (k, T, 2P).

    Raises:
        ValueError: If the model has no such layer.
    """
    for number in numbers:
        check_layers(number, num_layers, single=True)
    chosen, every = list(numbers), view_of("all", num_layers)
    return lambda reading: every.tokens(reading)[chosen, 0]


def weighted_sum(layers: Reduce, weights: Sequence[float], gamma: float) -> Reduce:
    """A function that mixes layers with given weights: gamma * sum_j softmax(weights)_j * layer_j.

    Args:
        layers: A function from a reading to the k layers to mix (k, T, 2P).
        weights: k weights, before the softmax.
        gamma: Factor of the sum.

    Returns:
        A function from a reading to (T, 2P).
    """
    factors = torch.tensor(weights, dtype=torch.float32).softmax(dim=0) * gamma

    def reduce(reading: Reading) -> Tensor:
        chosen = layers(reading)
        return torch.einsum("l,ltp->tp", factors.to(chosen), chosen)

    return reduce


def warm_up(model: ELMo) -> None:
    """Run the model once with each number of active rows up to `WARM_UP_ROWS`.

    On a CPU this packs the weights and compiles a product for each number of rows. The first requests do not wait for
    that, and memory does not grow because of it.

    Args:
        model: The model.
    """
    model.embed([["warm", "up"]], layers="sense")  # also makes the weights of words
    with torch.no_grad():
        model.bilm(model.to_ids([["warm"] * length for length in range(1, WARM_UP_ROWS + 1)]).to(model.device))
