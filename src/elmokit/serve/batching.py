"""Sentences of many requests become batches that run on one thread.

Input: requests from the event loop.  Output: the results of each request, in its order.

A request is a list of pieces (sentences), each with its cost in tokens. It is submitted to a lane: the queue of one
kind of work, such as vectors or log-probabilities. Only pieces of one lane run in the same batch.

The queue is fair by requests (fair queueing). The turn of a piece is the turn at which its request came plus the
number of tokens of its request before it. The current turn grows by the number of tokens that ran, divided by the
number of requests. So a short request passes the rest of a long document, and the document still makes progress while
short requests arrive. All pieces of a batch end together; a piece that is much longer than the first piece of a batch
does not join it and waits for its own turn.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

logger = logging.getLogger(__name__)

Run = Callable[[list[Any]], list[Any]]

MAX_LENGTH_RATIO = 4  # a piece joins a batch if it is at most this many times as long as the first piece
SHORT_TOKENS = 32  # a shorter first piece counts as this long
INITIAL_SPEED = 1000.0  # tokens per second, before the first measurement
SPEED_UPDATE = 0.2  # weight of the newest full batch in the running mean of the speed


class OverloadedError(Exception):
    """The queue is full.

    Args:
        retry_after: Seconds until the queue will be empty.
    """

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"the server is overloaded: try again in {retry_after} s")
        self.retry_after = retry_after


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
class _Request:
    """A request: its results so far, and the future that is set when all of them are there."""

    future: asyncio.Future[list[Any]]
    loop: asyncio.AbstractEventLoop
    results: list[Any]
    num_missing: int
    submitted: float
    is_dropped: bool = False  # it was cancelled, or a piece has failed
    error: Exception | None = None


@dataclass(order=True)
class _Piece:
    """One item of a request. Pieces are ordered by turn, then by arrival."""

    turn: float
    number: int
    request: _Request = field(compare=False)
    index: int = field(compare=False)
    item: Any = field(compare=False)
    cost: int = field(compare=False)


class Batcher:
    """Collects pieces of requests into batches and runs them on its own thread.

    Args:
        lanes: For each lane the function that runs a batch: a list of items -> a list of results.
        batch_tokens: Largest cost of a batch in tokens. A single piece may cost more.
        queue_tokens: Largest number of tokens of admitted requests.
        patience: Seconds that a batch that is not full waits for more requests.
        max_wait: Admit no more tokens than run in this many seconds, but at least two batches.
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
        report: Callable[[BatchReport], None] = lambda report: None,
    ) -> None:
        self.lanes, self.batch_tokens, self.queue_tokens, self.patience = lanes, batch_tokens, queue_tokens, patience
        self.max_wait, self.report = max_wait, report
        self.admitted = 0
        """Tokens of requests that are admitted and not released."""
        self._waiting: dict[str, list[_Piece]] = {lane: [] for lane in lanes}  # heaps
        self._tokens_waiting = 0
        self._turn = 0.0  # the first turn of a request that comes now
        self._num_requests = 0  # that wait or run
        self._numbers = itertools.count()
        self._tokens_per_second = INITIAL_SPEED
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

    # ---- on the event loop -------------------------------------------------------------------------------------------

    def admit(self, tokens: int) -> None:
        """Count the tokens of a request until `release`.

        Args:
            tokens: Number of tokens of the request. An empty queue admits any number.

        Raises:
            OverloadedError: If the queue has no capacity for them.
        """
        with self._changed:
            if self.admitted and self.admitted + tokens > self._capacity():
                raise OverloadedError(self._seconds_to_empty())
            self.admitted += tokens

    def release(self, tokens: int) -> None:
        """Stop counting the tokens of a request: it is answered or cancelled.

        Args:
            tokens: The number of tokens that was given to `admit`.
        """
        with self._changed:
            self.admitted -= tokens

    def check_capacity(self) -> None:
        """Check that the queue is not full.

        Raises:
            OverloadedError: If it is full.
        """
        if self.admitted >= self._capacity():
            raise OverloadedError(self._seconds_to_empty())

    def _capacity(self) -> float:
        """Largest number of admitted tokens: at most `queue_tokens`, and at most what runs in `max_wait` seconds."""
        return min(self.queue_tokens, max(2 * self.batch_tokens, self.max_wait * self._tokens_per_second))

    def _seconds_to_empty(self) -> int:
        return max(1, min(60, round(self._tokens_waiting / self._tokens_per_second)))

    async def submit(self, lane: str, items: Sequence[Any], costs: Sequence[int]) -> list[Any]:
        """Run items in batches. If the caller is cancelled, items that have not run are dropped.

        Args:
            lane: Name of the lane.
            items: The items of one request.
            costs: Cost of each item in tokens.

        Returns:
            The results of the items, in their order.

        Raises:
            RuntimeError: If the batcher is closed.
            Exception: The exception of the first item that failed. Other requests of its batch are not affected.
        """
        if not items:
            return []
        loop = asyncio.get_running_loop()
        request = _Request(loop.create_future(), loop, [None] * len(items), len(items), time.monotonic())
        with self._changed:
            if self._closed:
                raise RuntimeError("the batcher is closed")
            turn, waiting = self._turn, self._waiting[lane]
            for index, (item, cost) in enumerate(zip(items, costs, strict=True)):
                heapq.heappush(waiting, _Piece(turn, next(self._numbers), request, index, item, cost))
                turn += cost
            self._tokens_waiting += sum(costs)
            self._num_requests += 1
            self._changed.notify()
        try:
            return await request.future
        finally:
            request.is_dropped = True
            with self._changed:
                self._num_requests -= 1

    # ---- on the model's thread ---------------------------------------------------------------------------------------

    def _serve(self) -> None:
        """Run batches until the batcher is closed."""
        while (batch := self._next_batch()) is not None:
            lane, pieces = batch
            if pieces:
                self._run(lane, pieces)

    def _next_batch(self) -> tuple[str, list[_Piece]] | None:
        """The lane and the pieces of the next batch; None when the batcher is closed."""
        with self._changed:
            while not self._closed and not any(self._waiting.values()):
                self._changed.wait()
            end = time.monotonic() + self.patience
            while not self._closed and self._tokens_waiting < self.batch_tokens:
                seconds_left = end - time.monotonic()
                if seconds_left <= 0:
                    break
                self._changed.wait(seconds_left)
            if self._closed:
                return None
            lane = min((heap[0], lane) for lane, heap in self._waiting.items() if heap)[1]
            return lane, self._take(self._waiting[lane])

    def _take(self, waiting: list[_Piece]) -> list[_Piece]:
        """Take the pieces of a batch from a heap, in the order of their turns; none is much longer than the first."""
        taken: list[_Piece] = []
        too_long: list[_Piece] = []
        tokens_left = self.batch_tokens
        while waiting:
            piece = waiting[0]
            if piece.request.is_dropped:
                self._tokens_waiting -= heapq.heappop(waiting).cost
                continue
            if taken and piece.cost > MAX_LENGTH_RATIO * max(taken[0].cost, SHORT_TOKENS):
                too_long.append(heapq.heappop(waiting))
                continue
            if taken and piece.cost > tokens_left:
                break
            taken.append(heapq.heappop(waiting))
            tokens_left -= piece.cost
        for piece in too_long:
            heapq.heappush(waiting, piece)
        num_tokens = sum(piece.cost for piece in taken)
        self._tokens_waiting -= num_tokens
        if taken:
            self._turn = max(self._turn, taken[0].turn) + num_tokens / max(1, self._num_requests)
        return taken

    def _run(self, lane: str, pieces: list[_Piece]) -> None:
        """Run a batch, update the speed, and hand out the results."""
        begin = time.monotonic()
        results = self._results(lane, pieces)
        seconds = time.monotonic() - begin
        num_tokens = sum(piece.cost for piece in pieces)
        # a small batch runs slower per token than the batches of a full queue, so it counts less
        weight = SPEED_UPDATE * min(1.0, num_tokens / self.batch_tokens)
        self._tokens_per_second += weight * (num_tokens / max(seconds, 1e-6) - self._tokens_per_second)
        self.report(BatchReport(lane, len(pieces), num_tokens, seconds, begin - pieces[0].request.submitted))
        done: dict[asyncio.AbstractEventLoop, list[_Request]] = {}
        for piece, result in zip(pieces, results, strict=True):
            request = piece.request
            if request.is_dropped:
                continue
            if isinstance(result, Exception):
                request.error, request.is_dropped = result, True  # its other pieces are not run
            else:
                request.results[piece.index] = result
                request.num_missing -= 1
            if request.num_missing == 0 or request.error is not None:
                done.setdefault(request.loop, []).append(request)
        for loop, requests in done.items():
            try:
                loop.call_soon_threadsafe(_deliver, requests)
            except RuntimeError:  # the loop is closed, so nothing waits for the results
                logger.debug("the event loop was closed before its results were ready")

    def _results(self, lane: str, pieces: list[_Piece]) -> list[Any]:
        """A result or an exception for each piece. If a batch fails, its pieces run one by one."""
        try:
            return self.lanes[lane]([piece.item for piece in pieces])
        except Exception as error:
            if len(pieces) == 1:
                return [error]
        return [self._results(lane, [piece])[0] for piece in pieces]


def _deliver(requests: list[_Request]) -> None:
    """Set the futures of complete or failed requests, on their event loop."""
    for request in requests:
        if not request.future.done():
            if request.error is not None:
                request.future.set_exception(request.error)
            else:
                request.future.set_result(request.results)
