"""Pieces of many requests -> batches by token budget, in fair turns, on one thread.

Enters: from the event loop, requests: lists of pieces (sentences), each with its cost in tokens, for one of several
lanes (what is asked of the model; only pieces of one lane run together).  Leaves: each request's results in its order.

Turns are fair by requests: a piece's turn is the number of tokens of its own request before it, counted from the turn
at which the request came; turns go on by each request's share of the tokens that ran (fair queueing).  So a short
request passes the rest of a long document, and the document goes on however many short requests come.  A piece much
longer than the one whose turn it is waits for its own turn, since all pieces of a batch end together.
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

MUCH_LONGER = 4  # times as long as the first of a batch
SHORT = 32  # tokens; up to MUCH_LONGER times this may always join
FIRST_SPEED = 1000.0  # tokens per second, until there is a measurement
NEWS = 0.2  # share of the newest full batch in the estimate of the speed


class OverloadedError(Exception):
    """The queue is full; `retry_after` seconds will have emptied it."""

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"the server has more to do than it can: try again in {retry_after} s")
        self.retry_after = retry_after


@dataclass(frozen=True)
class BatchReport:
    """What one run of the model was."""

    lane: str
    num_pieces: int
    num_tokens: int
    seconds: float
    waited: float
    """Seconds that the piece whose turn it was had waited."""


@dataclass(eq=False)
class _Request:
    """A request on its way: the results that are there, and the future that wants all of them."""

    future: asyncio.Future[list[Any]]
    loop: asyncio.AbstractEventLoop
    results: list[Any]
    missing: int
    since: float
    dropped: bool = False  # nobody waits any more, or a piece has failed
    error: Exception | None = None


@dataclass(order=True)
class _Piece:
    turn: float
    number: int  # of equal turns, the one that came first
    request: _Request = field(compare=False)
    place: int = field(compare=False)
    item: Any = field(compare=False)
    cost: int = field(compare=False)


class Batcher:
    """One thread that runs batches; `submit` is called from event loops."""

    def __init__(
        self,
        lanes: Mapping[str, Run],
        *,
        batch_tokens: int,
        queue_tokens: int,
        patience: float,
        longest_wait: float = 60.0,
        report: Callable[[BatchReport], None] = lambda report: None,
    ) -> None:
        self.lanes, self.batch_tokens, self.queue_tokens, self.patience = lanes, batch_tokens, queue_tokens, patience
        self.longest_wait, self.report = longest_wait, report
        self.admitted = 0
        """Tokens of requests that were let in and not yet let go."""
        self._waiting: dict[str, list[_Piece]] = {lane: [] for lane in lanes}  # heaps
        self._tokens_waiting = 0
        self._turn = 0.0  # of a request that comes now
        self._num_requests = 0  # that wait or run
        self._numbers = itertools.count()
        self._tokens_per_second = FIRST_SPEED
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="elmokit-model", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Finish the batch that runs, drop what waits, end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join()

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    # ---- on the event loop -------------------------------------------------------------------------------------------

    def admit(self, tokens: int) -> None:
        """Count the tokens of a request until `release`, or raise `OverloadedError` where there is no room for them."""
        with self._changed:
            if self.admitted and self.admitted + tokens > self._room():
                raise OverloadedError(self._seconds_to_empty())
            self.admitted += tokens

    def release(self, tokens: int) -> None:
        """The answer to a request that was let in is sent, or nobody wants it."""
        with self._changed:
            self.admitted -= tokens

    def check_room(self) -> None:
        """Raise `OverloadedError` where the queue is full already."""
        if self.admitted >= self._room():
            raise OverloadedError(self._seconds_to_empty())

    def _room(self) -> float:
        """Tokens that may be inside: no more than `queue_tokens`, nor than run within `longest_wait` seconds."""
        return min(self.queue_tokens, max(2 * self.batch_tokens, self.longest_wait * self._tokens_per_second))

    def _seconds_to_empty(self) -> int:
        return max(1, min(60, round(self._tokens_waiting / self._tokens_per_second)))

    async def submit(self, lane: str, items: Sequence[Any], costs: Sequence[int]) -> list[Any]:
        """The results of the items, in their order; when the caller is cancelled, what has not run never will."""
        if not items:
            return []
        loop = asyncio.get_running_loop()
        request = _Request(loop.create_future(), loop, [None] * len(items), len(items), time.monotonic())
        with self._changed:
            if self._closed:
                raise RuntimeError("the server is closed")
            turn, waiting = self._turn, self._waiting[lane]
            for place, (item, cost) in enumerate(zip(items, costs, strict=True)):
                heapq.heappush(waiting, _Piece(turn, next(self._numbers), request, place, item, cost))
                turn += cost
            self._tokens_waiting += sum(costs)
            self._num_requests += 1
            self._changed.notify()
        try:
            return await request.future
        finally:
            request.dropped = True
            with self._changed:
                self._num_requests -= 1

    # ---- on the model's thread ---------------------------------------------------------------------------------------

    def _serve(self) -> None:
        while (batch := self._next_batch()) is not None:
            lane, pieces = batch
            if pieces:
                self._run(lane, pieces)

    def _next_batch(self) -> tuple[str, list[_Piece]] | None:
        """The next pieces to run together; None when the server is closed."""
        with self._changed:
            while not self._closed and not any(self._waiting.values()):
                self._changed.wait()
            until = time.monotonic() + self.patience
            while not self._closed and self._tokens_waiting < self.batch_tokens:
                left = until - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            if self._closed:
                return None
            lane = min((heap[0], lane) for lane, heap in self._waiting.items() if heap)[1]
            return lane, self._take(self._waiting[lane])

    def _take(self, waiting: list[_Piece]) -> list[_Piece]:
        """Pieces from the head of a heap, within the budget, none much longer than the first."""
        taken: list[_Piece] = []
        too_long: list[_Piece] = []
        room = self.batch_tokens
        while waiting:
            piece = waiting[0]
            if piece.request.dropped:
                self._tokens_waiting -= heapq.heappop(waiting).cost
                continue
            if taken and piece.cost > MUCH_LONGER * max(taken[0].cost, SHORT):
                too_long.append(heapq.heappop(waiting))
                continue
            if taken and piece.cost > room:
                break
            taken.append(heapq.heappop(waiting))
            room -= piece.cost
        for piece in too_long:
            heapq.heappush(waiting, piece)
        num_tokens = sum(piece.cost for piece in taken)
        self._tokens_waiting -= num_tokens
        if taken:
            self._turn = max(self._turn, taken[0].turn) + num_tokens / max(1, self._num_requests)
        return taken

    def _run(self, lane: str, pieces: list[_Piece]) -> None:
        begin = time.monotonic()
        results = self._results(lane, pieces)
        seconds = time.monotonic() - begin
        num_tokens = sum(piece.cost for piece in pieces)
        # a small batch says little of what a full queue runs at
        news = NEWS * min(1.0, num_tokens / self.batch_tokens)
        self._tokens_per_second += news * (num_tokens / max(seconds, 1e-6) - self._tokens_per_second)
        self.report(BatchReport(lane, len(pieces), num_tokens, seconds, begin - pieces[0].request.since))
        done: dict[asyncio.AbstractEventLoop, list[_Request]] = {}
        for piece, result in zip(pieces, results, strict=True):
            request = piece.request
            if request.dropped:
                continue
            if isinstance(result, Exception):
                request.error, request.dropped = result, True  # its other pieces need not run
            else:
                request.results[piece.place] = result
                request.missing -= 1
            if request.missing == 0 or request.error is not None:
                done.setdefault(request.loop, []).append(request)
        for loop, requests in done.items():
            try:
                loop.call_soon_threadsafe(_deliver, requests)
            except RuntimeError:  # the loop is closed, so nobody waits
                logger.debug("the event loop closed before its results came")

    def _results(self, lane: str, pieces: list[_Piece]) -> list[Any]:
        """A result or an exception for each piece; where a batch fails its pieces run alone."""
        try:
            return self.lanes[lane]([piece.item for piece in pieces])
        except Exception as error:
            if len(pieces) == 1:
                return [error]
        return [self._results(lane, [piece])[0] for piece in pieces]


def _deliver(requests: list[_Request]) -> None:
    for request in requests:
        if not request.future.done():
            if request.error is not None:
                request.future.set_exception(request.error)
            else:
                request.future.set_result(request.results)
