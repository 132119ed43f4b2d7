"""Sentences of many requests become batches that run on one thread.

Input: requests from the event loop.  Output: the results of each request, in its order.

A request is a list of pieces (sentences), each with its cost in tokens. It is submitted to a lane: the queue of one
kind of work, such as vectors or log-probabilities. Only pieces of one lane run in the same batch. `admission` decides
which requests are admitted, `turns` which pieces run next.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from elmokit.serve.admission import Admission, OverloadedError, Ticket
from elmokit.serve.turns import Batch, Piece, Request, Turns

__all__ = ["BatchReport", "Batcher", "OverloadedError", "Run", "Ticket"]

logger = logging.getLogger(__name__)

Run = Callable[[list[Any]], list[Any]]
Pausing = Callable[[Callable[[], None]], AbstractContextManager[None]]

MAX_AGE = 1.1  # a request that has waited this many times `max_wait` goes first


@dataclass(frozen=True)
class BatchReport:
    """Measurements of one batch."""

    lane: str
    num_pieces: int
    num_tokens: int
    seconds: float
    queue_seconds: float
    """Seconds that the first piece of the batch waited."""


@dataclass(eq=False)
class _Answer:
    """The results of a request so far, and the future that is set when all of them are there."""

    future: asyncio.Future[list[Any]]
    loop: asyncio.AbstractEventLoop
    ticket: Ticket
    results: list[Any]
    num_missing: int
    error: Exception | None = None


class Batcher:
    """Collects pieces of requests into batches and runs them on its own thread.

    Args:
        lanes: For each lane the function that runs a batch: a list of items -> a list of results.
        batch_tokens: Largest cost of a batch in tokens. A single piece may cost more.
        queue_tokens: Largest number of tokens of admitted requests.
        patience: Seconds that a batch that is not full waits for more requests.
        max_wait: Admit no request that would wait longer than this many seconds, beyond two batches.
        pausing: A context in which lanes call a function from time to time while a long piece runs. Short requests
            run in this function. None: lanes do not pause.
        report: Called on the batcher's thread after each batch.
    """

    def __init__(
        self,
        lanes: Mapping[str, Run],
        *,
        batch_tokens: int,
        queue_tokens: int,
        patience: float,
        max_wait: float = 60.0,
        pausing: Pausing | None = None,
        report: Callable[[BatchReport], None] = lambda report: None,
    ) -> None:
        self.lanes, self.batch_tokens, self.patience = dict(lanes), batch_tokens, patience
        self.pausing, self.report = pausing, report
        self._admission = Admission(batch_tokens=batch_tokens, queue_tokens=queue_tokens, max_wait=max_wait)
        self._turns = Turns(
            batch_tokens=batch_tokens,
            max_age=MAX_AGE * max_wait,
            seconds=self._expected_seconds,
            can_pause=pausing is not None,
        )
        self._answers: dict[Request, _Answer] = {}
        self._last_end = 0.0
        self._pause_seconds = 0.0  # of all pauses so far
        self._is_paused = False
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="elmokit-model", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Finish the current batch, drop waiting pieces, and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join()

    @property
    def is_alive(self) -> bool:
        """Whether the thread is running."""
        return self._thread.is_alive()

    @property
    def admitted(self) -> int:
        """Tokens of requests that are admitted and not released."""
        return self._admission.tokens

    @property
    def tokens_waiting(self) -> int:
        """Cost of what has been submitted and has not run."""
        return self._turns.tokens_waiting

    # ---- on the event loop -------------------------------------------------------------------------------------------

    def admit(self, tokens: int, *, lane: str = "", client: str = "", cost: int | None = None) -> Ticket:
        """Count a request until `release`.

        Args:
            tokens: Number of tokens of the request. An empty queue admits any number.
            lane: The lane to which it will be submitted.
            client: Who sends it. Clients share the model equally.
            cost: Cost of all its pieces. None: the number of tokens.

        Returns:
            The ticket for `submit` and `release`.

        Raises:
            OverloadedError: If the queue has no capacity for it, or it would not be answered in time.
        """
        return self._admission.admit(tokens, lane=lane, client=client, cost=tokens if cost is None else cost)

    def release(self, ticket: Ticket) -> None:
        """Stop counting a request: it is answered or cancelled.

        Args:
            ticket: What `admit` returned.
        """
        self._admission.release(ticket)

    def check_capacity(self, client: str = "") -> None:
        """Check that the queue is not full.

        Args:
            client: Who asks.

        Raises:
            OverloadedError: If it is full.
        """
        self._admission.check(client)

    async def submit(
        self, lane: str, items: Sequence[Any], costs: Sequence[int], ticket: Ticket | None = None
    ) -> list[Any]:
        """Run items in batches. If the caller is cancelled, items that have not run are dropped.

        Args:
            lane: Name of the lane.
            items: The items of one request.
            costs: Cost of each item in tokens.
            ticket: What `admit` returned. None: a request of an unnamed client that is not counted.

        Returns:
            The results of the items, in their order.

        Raises:
            RuntimeError: If the batcher is closed.
            Exception: The exception of the first item that failed. Other requests of its batch are not affected.
        """
        if not items:
            return []
        loop, now = asyncio.get_running_loop(), time.monotonic()
        ticket = ticket or Ticket("", lane, 0, now)
        pieces = deque(Piece(index, *pair) for index, pair in enumerate(zip(items, costs, strict=True)))
        request = Request(ticket.client, lane, pieces, now)
        answer = _Answer(loop.create_future(), loop, ticket, [None] * len(items), len(items))
        with self._changed:
            if self._closed:
                raise RuntimeError("the batcher is closed")
            self._answers[request] = answer
            self._turns.add(request)
            self._changed.notify()
        try:
            return await answer.future
        finally:
            with self._changed:
                self._turns.remove(request)
                del self._answers[request]

    # ---- on the model's thread ---------------------------------------------------------------------------------------

    def _expected_seconds(self, lane: str, num_tokens: int, num_steps: int) -> float:
        return self._admission.pace(lane).seconds(num_tokens, num_steps)

    def _serve(self) -> None:
        """Run batches until the batcher is closed."""
        while self._wait():
            with self._changed:
                batch = self._turns.next_batch(time.monotonic())
            if batch is not None:
                self._run(batch)

    def _wait(self) -> bool:
        """Wait for a batch, and for more requests if it is not full; False when the batcher is closed."""
        with self._changed:
            while not self._closed and not self.tokens_waiting:
                self._changed.wait()
            end = time.monotonic() + self.patience
            while not self._closed and self.tokens_waiting < self.batch_tokens:
                seconds_left = end - time.monotonic()
                if seconds_left <= 0:
                    break
                self._changed.wait(seconds_left)
            return not self._closed

    def _run(self, batch: Batch) -> None:
        """Run a batch, update the speed, and hand out the results."""
        begin, paused_before = time.monotonic(), self._pause_seconds
        with self.pausing(self._pause) if self.pausing is not None and batch.pauses else nullcontext():
            results = self._results(batch.lane, [piece.item for piece in batch.pieces])
        end = time.monotonic()
        seconds = end - begin - (self._pause_seconds - paused_before)
        # the queue waits from the end of one batch to the end of the next
        ready = max(self._last_end, min(request.arrived for request in batch.requests))
        idle_seconds = 0.0 if self._is_paused else begin - min(begin, ready)
        self._last_end = end
        self._admission.pace(batch.lane).record(batch.num_tokens, batch.num_steps, seconds, seconds + idle_seconds)
        seconds_waited = begin - batch.requests[0].arrived
        self.report(BatchReport(batch.lane, len(batch.pieces), batch.num_tokens, seconds, seconds_waited))
        with self._changed:
            done = self._collect(batch, results)
        for loop, answers in done.items():
            try:
                loop.call_soon_threadsafe(_deliver, answers)
            except RuntimeError:  # the loop is closed, so nothing waits for the results
                logger.debug("the event loop was closed before its results were ready")

    def _pause(self) -> None:
        """Run short requests that wait, inside of a batch that takes long."""
        if self._is_paused:
            return
        begin = time.monotonic()
        with self._changed:
            batch = self._turns.short_batch(begin)
        if batch is None:
            return
        self._is_paused = True
        try:
            self._run(batch)
        finally:
            self._is_paused = False
            self._pause_seconds += time.monotonic() - begin

    def _collect(self, batch: Batch, results: list[Any]) -> dict[asyncio.AbstractEventLoop, list[_Answer]]:
        """Store the results of a batch; the requests that are complete or have failed, by event loop."""
        done: dict[asyncio.AbstractEventLoop, list[_Answer]] = {}
        for request, piece, result in zip(batch.requests, batch.pieces, results, strict=True):
            answer = self._answers.get(request)
            if answer is None:  # it was cancelled
                continue
            self._admission.has_run(answer.ticket, piece.cost)
            if request.is_dropped:
                continue
            if isinstance(result, Exception):
                answer.error = result
                self._turns.drop(request)
            else:
                answer.results[piece.index] = result
                answer.num_missing -= 1
            if answer.num_missing == 0 or answer.error is not None:
                done.setdefault(answer.loop, []).append(answer)
        return done

    def _results(self, lane: str, items: list[Any]) -> list[Any]:
        """A result or an exception for each item. If a batch fails, its items run one by one."""
        try:
            return self.lanes[lane](items)
        except Exception as error:
            if len(items) == 1:
                return [error]
        return [self._results(lane, [item])[0] for item in items]


def _deliver(answers: list[_Answer]) -> None:
    """Set the futures of complete or failed requests, on their event loop."""
    for answer in answers:
        if not answer.future.done():
            if answer.error is not None:
                answer.future.set_exception(answer.error)
            else:
                answer.future.set_result(answer.results)
