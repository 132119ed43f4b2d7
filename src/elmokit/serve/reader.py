"""Texts of a request become token lists within the limits, and results come before the deadline.

Input: the inputs of a request.  Output: token lists that are admitted to the queue, or a `RefusalError`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

from fastapi import Request
from starlette.concurrency import run_in_threadpool

from elmokit.serve.batching import Ticket
from elmokit.serve.engine import Engine, Reduce, Vectors
from elmokit.serve.errors import RefusalError, refuse_overload
from elmokit.serve.observe import Metrics
from elmokit.serve.schemas import Inputs, Truncation
from elmokit.serve.settings import Settings

INLINE_CHARACTERS = 4096  # at most this many are tokenized on the event loop, in about a millisecond


class RequestReader:
    """Tokenizes requests, checks them against the limits, and waits for their results.

    Args:
        engine: The model behind its batcher.
        settings: The limits.
        metrics: Counts the tokens of admitted requests.
    """

    def __init__(self, engine: Engine, settings: Settings, metrics: Metrics) -> None:
        self.engine, self.settings, self.metrics = engine, settings, metrics

    async def sentences(
        self,
        request: Request,
        inputs: Inputs,
        truncation: Truncation | None = None,
        *,
        name: str = "inputs",
        lane: str = "vectors",
    ) -> list[list[str]]:
        """Tokenize the inputs of a request and admit it.

        Args:
            request: The request.
            inputs: One text, texts, or token lists. Strings are cut by the model's tokenizer.
            truncation: Whether long sentences are cut. None: the endpoint has no truncation.
            name: Name of the field, for messages.
            lane: The lane of the engine in which the request will run.

        Returns:
            The tokens of each input.

        Raises:
            RefusalError: 400 without inputs or without a token, 413 beyond a limit, 429 or 503 if the queue is full.
        """
        texts = [inputs] if isinstance(inputs, str) else inputs
        self.check_count(texts, name)
        if sum(map(len, texts)) > INLINE_CHARACTERS:
            sentences = await run_in_threadpool(self._tokens_of, texts)
        else:
            sentences = self._tokens_of(texts)
        if not any(sentences):
            raise RefusalError(400, "Empty", f"{name} has no tokens: send at least one word")
        limit = self.settings.max_sentence_tokens
        if truncation is not None and truncation.truncate:
            from_left = truncation.truncation_direction.lower() == "left"
            sentences = [tokens[-limit:] if from_left else tokens[:limit] for tokens in sentences]
        lengths = [self.engine.num_units(tokens) for tokens in sentences]
        for index, length in enumerate(lengths):
            if length > limit:
                raise RefusalError(
                    413,
                    "Validation",
                    f"{name}[{index}] has {length:,} tokens, at most {limit:,} are allowed: split it into "
                    "sentences" + ("" if truncation is None else ", or send truncate: true"),
                )
        self.admit(request, lane, lengths)
        return sentences

    def admit(self, request: Request, lane: str, lengths: Sequence[int]) -> None:
        """Admit a request to the queue until its response is sent.

        Args:
            request: The request. `ticket_of` gives its ticket after this.
            lane: The lane of the engine in which it will run.
            lengths: Number of tokens of each sentence.

        Raises:
            RefusalError: 413 if the request has too many tokens, 429 if the queue is full, 503 if the request would
                not be answered in time.
        """
        num_tokens, limit = sum(lengths), self.settings.max_request_tokens
        if num_tokens > limit:
            message = f"the request has {num_tokens:,} tokens, at most {limit:,} are allowed: send several requests"
            raise RefusalError(413, "Validation", message)
        client = request.scope["elmokit.client"]
        ticket = refuse_overload(partial(self.engine.admit, lane, lengths, client))
        self.metrics.queue_tokens.inc(num_tokens)
        request.scope["elmokit.ticket"] = ticket
        request.scope["elmokit.releases"].append(partial(self._release, ticket))
        request.scope["elmokit.counts"].update(sentences=len(lengths), tokens=num_tokens)

    def check_count(self, texts: Sequence[Any], name: str) -> None:
        """Check the number of inputs.

        Args:
            texts: The inputs.
            name: Name of the field, for messages.

        Raises:
            RefusalError: 400 without inputs, 413 with too many.
        """
        if not texts:
            raise RefusalError(400, "Empty", f"{name} is empty: send at least one sentence")
        limit = self.settings.max_sentences
        if len(texts) > limit:
            message = f"{name} has {len(texts):,} sentences, at most {limit:,} are allowed: send several requests"
            raise RefusalError(413, "Validation", message)

    def check_language_model(self) -> None:
        """Check that the model gives probabilities.

        Raises:
            RefusalError: 424 if it does not.
        """
        if not self.engine.model.is_language_model:
            raise RefusalError(424, "Backend", "this model gives vectors but no probabilities: it has no output layer")

    async def before_deadline(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Wait for a result.

        Args:
            work: A coroutine. It is cancelled at the deadline.

        Raises:
            RefusalError: 504 if the deadline passes.
        """
        try:
            async with asyncio.timeout(self.settings.deadline):
                return await work
        except TimeoutError:
            message = f"no result within {self.settings.deadline:g} s: send fewer sentences, or try again later"
            raise RefusalError(504, "Timeout", message) from None

    async def vectors(
        self, request: Request, sentences: Sequence[list[str]], reduce: Reduce | Sequence[Reduce]
    ) -> list[Vectors]:
        """Vectors of sentences, before the deadline.

        Args:
            request: The request, which is admitted.
            sentences: Token lists from `sentences`.
            reduce: A function of the `Reading` of one sentence, or a function for each sentence.

        Returns:
            The result of the function for each sentence.
        """
        work = self.engine.vectors(sentences, reduce, ticket_of(request))
        vectors: list[Vectors] = await self.before_deadline(work)
        return vectors

    def _release(self, ticket: Ticket) -> None:
        self.engine.batcher.release(ticket)
        self.metrics.queue_tokens.dec(ticket.tokens)

    def _tokens_of(self, texts: Sequence[str | list[str]]) -> list[list[str]]:
        tokenizer = self.engine.model.tokenizer
        return [tokenizer(text) if isinstance(text, str) else text for text in texts]


def ticket_of(request: Request) -> Ticket:
    """The ticket of a request that `RequestReader` has admitted."""
    ticket: Ticket = request.scope["elmokit.ticket"]
    return ticket


class Readers:
    """The readers of all models of a server.

    Args:
        readers: A reader for each model, by its name. The first one is the default.
    """

    def __init__(self, readers: Mapping[str, RequestReader]) -> None:
        self.readers = dict(readers)
        self.default_name, self.default = next(iter(self.readers.items()))

    def choose(self, name: str | None) -> tuple[str, RequestReader]:
        """Choose a model.

        Args:
            name: Name from a request; None is the first model. A server with one model accepts any name.

        Returns:
            The name of the model and its reader.

        Raises:
            RefusalError: 404 if the server has several models, and none of this name.
        """
        if name is None or len(self.readers) == 1:
            return self.default_name, self.default
        if name not in self.readers:
            names = ", ".join(self.readers)
            raise RefusalError(404, "NotFound", f"there is no model {name!r}; the models of this server: {names}")
        return name, self.readers[name]
