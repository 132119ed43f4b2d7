"""Which requests are admitted to the queue.

Input: the tokens of requests, and the batches that ran.  Output: tickets, or an `OverloadedError` for a request that
the model would not answer in time, by the speed of the last batches.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from elmokit.serve.pace import Pace

TOTAL_WAIT = 1.4  # all clients together may wait this many times as long as one of them


class OverloadedError(Exception):
    """The queue is full.

    Args:
        retry_after: Seconds until the queue has capacity again.
        reason: "queue" if the limit of tokens is reached, "time" if the request would not be answered in time.
    """

    def __init__(self, retry_after: int, reason: Literal["queue", "time"] = "queue") -> None:
        super().__init__(f"the server is overloaded: try again in {retry_after} s")
        self.retry_after, self.reason = retry_after, reason


@dataclass(eq=False)
class Ticket:
    """An admitted request: from `Admission.admit` to `Admission.release`."""

    client: str
    lane: str
    tokens: int
    arrived: float
    cost_left: int = 0
    """Cost of what has not run."""


class Admission:
    """Counts what is admitted and what of it has not run.

    Args:
        batch_tokens: Size of a full batch in tokens. Two batches are always admitted.
        queue_tokens: Largest number of tokens of admitted requests.
        max_wait: Largest number of seconds that the requests of one client wait. All clients together wait at most
            `TOTAL_WAIT` times as long.
    """

    def __init__(self, *, batch_tokens: int, queue_tokens: int, max_wait: float) -> None:
        self.batch_tokens, self.queue_tokens, self.max_wait = batch_tokens, queue_tokens, max_wait
        self.tokens = 0
        """Tokens of requests that are admitted and not released."""
        self._paces: dict[str, Pace] = {}
        self._work: dict[str, int] = {}  # cost of what is admitted and has not run, by lane
        self._work_of: dict[str, dict[str, int]] = {}  # the same by client, then by lane
        self._lock = threading.Lock()

    def pace(self, lane: str) -> Pace:
        """The speed of a lane."""
        if lane not in self._paces:
            self._paces[lane] = Pace(self.batch_tokens)
        return self._paces[lane]

    def admit(self, tokens: int, *, lane: str, client: str, cost: int) -> Ticket:
        """Count a request until `release`.

        Args:
            tokens: Number of tokens of the request. An empty queue admits any number.
            lane: The lane in which it will run.
            client: Who sends it.
            cost: Cost of all its pieces.

        Returns:
            A ticket.

        Raises:
            OverloadedError: If the queue has no capacity for it, or it would not be answered in time.
        """
        with self._lock:
            if self.tokens:
                self._check_queue(tokens)
                self._check_wait(client, cost, self._seconds({lane: cost}))
            self.tokens += tokens
            ticket = Ticket(client, lane, tokens, time.monotonic())
            self._count(ticket, cost)
            return ticket

    def release(self, ticket: Ticket) -> None:
        """Stop counting a request: it is answered or cancelled.

        Args:
            ticket: What `admit` returned.
        """
        with self._lock:
            self.tokens -= ticket.tokens
            self._count(ticket, -ticket.cost_left)

    def has_run(self, ticket: Ticket, cost: int) -> None:
        """Count a piece of a request that has run.

        Args:
            ticket: What `admit` returned.
            cost: Cost of the piece.
        """
        with self._lock:
            self._count(ticket, -min(cost, ticket.cost_left))

    def check(self, client: str) -> None:
        """Check that the queue is not full.

        Args:
            client: Who asks.

        Raises:
            OverloadedError: If it is full.
        """
        with self._lock:
            if self.tokens:
                self._check_queue(1)
                self._check_wait(client, 1, 0.0)

    def _check_queue(self, tokens: int) -> None:
        if self.tokens + tokens > self.queue_tokens:
            raise OverloadedError(_retry_after(self._seconds(self._work)), "queue")

    def _check_wait(self, client: str, cost: int, seconds: float) -> None:
        """A client waits for the work of all, but no longer than for its own work when all clients take turns."""
        if sum(self._work.values()) + cost <= 2 * self.batch_tokens:
            return
        total = self._seconds(self._work) + seconds
        own = self._seconds(self._work_of.get(client, {})) + seconds
        num_clients = len(self._work_of.keys() | {client})
        excess = max(total - TOTAL_WAIT * self.max_wait, min(total, num_clients * own) - self.max_wait)
        if excess > 0:
            raise OverloadedError(_retry_after(excess), "time")

    def _count(self, ticket: Ticket, cost: int) -> None:
        """Add to the cost of what has not run."""
        ticket.cost_left += cost
        own = self._work_of.setdefault(ticket.client, {})
        for work in (self._work, own):
            work[ticket.lane] = work.get(ticket.lane, 0) + cost
        if not any(own.values()):
            del self._work_of[ticket.client]

    def _seconds(self, work: Mapping[str, int]) -> float:
        return sum(cost / self.pace(lane).tokens_per_second for lane, cost in work.items())


def _retry_after(seconds: float) -> int:
    return max(1, min(60, math.ceil(seconds)))
