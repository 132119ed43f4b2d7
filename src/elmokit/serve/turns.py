"""The order in which pieces of requests run.

Input: requests of clients.  Output: the pieces of the next batch.

Clients share the model equally, and the requests of a client share its part equally (fair queueing). A client has a
turn, which grows by the tokens that ran for it; the client with the lowest turn is next. A new client starts at the
current turn, which grows by the number of tokens that ran, divided by the number of clients. The requests of one client
have turns of the same kind. So a short request passes the rest of a long document, and the document still makes
progress while short requests arrive. A request that has waited too long goes first, the oldest before the others.

All pieces of a batch end together. A piece that is much longer than the first piece of a batch does not join it. While
short requests arrive, pieces of long requests join a batch only if it takes about as long as a short request. A single
piece that takes longer pauses if it can, and short requests run in its pauses. Otherwise a batch has up to
`batch_tokens` tokens.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

MAX_LENGTH_RATIO = 4  # a piece joins a batch if it is at most this many times as long as the first piece
SHORT_TOKENS = 32  # a shorter first piece counts as this long
SHORT_FRACTION = 8  # a request is short if its cost is at most this part of a full batch
SHORT_SECONDS = 2.0  # after a short request has waited, more of them are expected for this long
SHORT_UPDATE = 0.1  # weight of the newest short request in the running mean of their seconds
MIN_SLICE = 0.01  # seconds; a batch that takes less need not be smaller
LONG_SLICE = 1.5  # a batch of long requests may take this many times as long as a short request
SHARED_SLICE = 0.5  # the same while a short request waits
PAUSE_STEPS = 64  # between pauses of a long piece: shorter blocks of steps take more time in all

Seconds = Callable[[str, int, int], float]


@dataclass(frozen=True)
class Piece:
    """One item of a request: its place in the request, and its cost in tokens."""

    index: int
    item: Any
    cost: int


@dataclass(eq=False)
class Request:
    """A request in the queue."""

    client: str
    lane: str
    pieces: deque[Piece]
    """What has not run."""
    arrived: float
    is_dropped: bool = False
    """It was cancelled, or a piece has failed: the rest of it does not run."""
    is_long: bool = False
    turn: float = 0.0
    number: int = 0

    def __lt__(self, other: Request) -> bool:
        return (self.turn, self.number) < (other.turn, other.number)

    @property
    def is_waiting(self) -> bool:
        """Whether it has pieces to run."""
        return bool(self.pieces) and not self.is_dropped


@dataclass(eq=False)
class _Client:
    """A client: its turn, and its requests in a heap for each lane."""

    turn: float
    request_turn: float = 0.0  # the first turn of a request that comes now
    num_requests: int = 0  # that wait or run
    waiting: dict[str, list[Request]] = field(default_factory=dict)

    def next_request(self, lane: str) -> Request | None:
        """The request that is next in a lane. Requests that do not wait are removed."""
        heap = self.waiting.get(lane, [])
        while heap and not heap[0].is_waiting:
            heapq.heappop(heap)
        return heap[0] if heap else None


@dataclass
class Batch:
    """The pieces of one batch with their requests."""

    lane: str
    requests: list[Request] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    num_tokens: int = 0
    pauses: bool = False
    """Short requests should run in its pauses."""

    @property
    def num_steps(self) -> int:
        """Number of tokens of the longest piece."""
        return max((piece.cost for piece in self.pieces), default=0)

    def take(self, request: Request) -> None:
        """Move the next piece of a request into the batch."""
        piece = request.pieces.popleft()
        self.requests.append(request)
        self.pieces.append(piece)
        self.num_tokens += piece.cost


class Turns:
    """The queue of requests.

    Args:
        batch_tokens: Largest cost of a batch in tokens. A single piece may cost more.
        max_age: A request that is older than this many seconds goes first.
        seconds: Expected seconds of a batch, from its lane, number of tokens and number of steps.
        can_pause: Whether batches can pause.
    """

    def __init__(self, *, batch_tokens: int, max_age: float, seconds: Seconds, can_pause: bool = False) -> None:
        self.batch_tokens, self.max_age, self.seconds, self.can_pause = batch_tokens, max_age, seconds, can_pause
        self.tokens_waiting = 0
        self._clients: dict[str, _Client] = {}
        self._arrivals: deque[Request] = deque()
        self._turn = 0.0  # the first turn of a client that comes now
        self._numbers = itertools.count()
        self._short_seconds = MIN_SLICE  # running mean of what short requests take
        self._last_short = -math.inf

    def add(self, request: Request) -> None:
        """Add a request.

        Args:
            request: The request. `remove` must be called for it at the end.
        """
        costs = [piece.cost for piece in request.pieces]
        client = self._clients.setdefault(request.client, _Client(self._turn))
        if client.num_requests == 0:
            client.turn = max(client.turn, self._turn)
        client.num_requests += 1
        request.turn, request.number = client.request_turn, next(self._numbers)
        request.is_long = sum(costs) > self.batch_tokens // SHORT_FRACTION
        if not request.is_long:
            seconds = max(MIN_SLICE, self.seconds(request.lane, sum(costs), max(costs)))
            self._short_seconds += SHORT_UPDATE * (seconds - self._short_seconds)
            self._last_short = request.arrived
        heapq.heappush(client.waiting.setdefault(request.lane, []), request)
        self._arrivals.append(request)
        self.tokens_waiting += sum(costs)

    def drop(self, request: Request) -> None:
        """Do not run the rest of a request.

        Args:
            request: The request.
        """
        request.is_dropped = True
        self.tokens_waiting -= sum(piece.cost for piece in request.pieces)
        request.pieces.clear()

    def remove(self, request: Request) -> None:
        """Remove a request that is answered, has failed or was cancelled.

        Args:
            request: The request.
        """
        self.drop(request)
        self._clients[request.client].num_requests -= 1

    def next_batch(self, now: float) -> Batch | None:
        """Take the pieces of the next batch.

        Args:
            now: The time, on the clock of `Request.arrived`.

        Returns:
            The batch; None if nothing waits.
        """
        self._arrivals = deque(request for request in self._arrivals if request.is_waiting)
        oldest = itertools.takewhile(lambda request: now - request.arrived > self.max_age, self._arrivals)
        overdue = list(oldest)
        lane = overdue[0].lane if overdue else self._next_lane()
        if lane is None:
            return None
        batch, max_seconds = Batch(lane), self._slice(now)
        self._take(batch, overdue, math.inf)
        batch.pauses = self.can_pause and not batch.pieces and max_seconds < math.inf
        self._fill(batch, max_seconds)
        batch.pauses = batch.pauses and batch.num_steps > PAUSE_STEPS
        self.tokens_waiting -= batch.num_tokens
        return batch

    def short_batch(self, now: float) -> Batch | None:
        """Take pieces of short requests that run in a pause of a batch, in the order in which they came.

        Args:
            now: The time, on the clock of `Request.arrived`.

        Returns:
            The batch; None if no short request waits.
        """
        waiting = [request for request in self._arrivals if request.is_waiting and not request.is_long]
        if not waiting:
            return None
        self._last_short = now
        batch, costs = Batch(waiting[0].lane), [piece.cost for piece in waiting[0].pieces]
        whole = self.seconds(batch.lane, sum(costs), max(costs))
        self._take(batch, waiting, max(whole, LONG_SLICE * self._short_seconds))
        self.tokens_waiting -= batch.num_tokens
        return batch

    def _take(self, batch: Batch, requests: list[Request], max_seconds: float) -> None:
        """Move pieces of requests into a batch in this order, while it has room and takes no longer."""
        for request in requests:
            while request.lane == batch.lane and request.is_waiting and self._fits(batch, request):
                if self._seconds_with(batch, request.pieces[0]) > max_seconds:
                    return
                self._clients[request.client].turn += request.pieces[0].cost
                batch.take(request)

    def _slice(self, now: float) -> float:
        """Largest number of seconds of a batch with pieces of long requests."""
        if any(not request.is_long for request in self._arrivals):
            self._last_short = now
            return SHARED_SLICE * self._short_seconds
        return LONG_SLICE * self._short_seconds if now - self._last_short < SHORT_SECONDS else math.inf

    def _next_lane(self) -> str | None:
        """The lane of the request that is next."""
        turns = []
        for client in self._clients.values():
            request = min(filter(None, map(client.next_request, client.waiting)), default=None)
            if request is not None:
                turns.append((client.turn, request.number, request.lane))
        return min(turns)[2] if turns else None

    def _fill(self, batch: Batch, max_seconds: float) -> None:
        """Fill a batch in the order of turns; long requests only up to this many seconds."""
        set_aside: list[tuple[_Client, Request]] = []
        tokens_of: dict[str, int] = {}
        first_turns: dict[str, float] = {}
        clients = [
            (client.turn, request.number, name)
            for name, client in self._clients.items()
            if (request := client.next_request(batch.lane)) is not None
        ]
        heapq.heapify(clients)
        first_turn = clients[0][0] if clients else self._turn
        while clients:
            _, _, name = heapq.heappop(clients)
            client = self._clients[name]
            request = client.next_request(batch.lane)
            if request is None:
                continue
            piece, heap = request.pieces[0], client.waiting[batch.lane]
            is_too_long = batch.pieces and piece.cost > MAX_LENGTH_RATIO * max(batch.pieces[0].cost, SHORT_TOKENS)
            runs_in_pauses = batch.pauses and batch.num_steps > PAUSE_STEPS and not request.is_long
            too_many_seconds = request.is_long and self._seconds_with(batch, piece) > max_seconds
            if is_too_long or runs_in_pauses or too_many_seconds:
                set_aside.append((client, heapq.heappop(heap)))
            elif not self._fits(batch, request):
                break
            else:
                batch.take(request)
                first_turns.setdefault(name, request.turn)
                tokens_of[name] = tokens_of.get(name, 0) + piece.cost
                request.turn += piece.cost
                heapq.heapreplace(heap, request)
                client.turn += piece.cost
            heapq.heappush(clients, (client.turn, request.number, name))
        for client, request in set_aside:
            heapq.heappush(client.waiting[batch.lane], request)
        self._advance(first_turn, first_turns, tokens_of)

    def _advance(self, first_turn: float, first_turns: dict[str, float], tokens_of: dict[str, int]) -> None:
        """Advance the turns at which new clients and new requests start."""
        for name, num_tokens in tokens_of.items():
            client = self._clients[name]
            start = max(client.request_turn, first_turns[name])
            client.request_turn = start + num_tokens / max(1, client.num_requests)
        num_active = sum(client.num_requests > 0 for client in self._clients.values())
        self._turn = max(self._turn, first_turn) + sum(tokens_of.values()) / max(1, num_active)
        gone = [name for name, one in self._clients.items() if not one.num_requests and one.turn <= self._turn]
        for name in gone:
            del self._clients[name]

    def _fits(self, batch: Batch, request: Request) -> bool:
        """Whether a batch has room for the next piece of a request."""
        return not batch.pieces or batch.num_tokens + request.pieces[0].cost <= self.batch_tokens

    def _seconds_with(self, batch: Batch, piece: Piece) -> float:
        """Expected seconds of a batch with one more piece; 0 for its first piece, which always runs."""
        if not batch.pieces:
            return 0.0
        return self.seconds(batch.lane, batch.num_tokens + piece.cost, max(batch.num_steps, piece.cost))
