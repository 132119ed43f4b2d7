"""Middleware between the connections and the endpoints.

Input: every request, before its body is read.  Output: to the endpoints, authorized requests with complete bodies; to
the client, an error for any other request; to the log and the metrics, one entry per request.  A request whose client
disconnects is cancelled.  HEAD is answered as GET, without the body.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import secrets
import time
from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from elmokit.serve.access import Access
from elmokit.serve.errors import RefusalError
from elmokit.serve.observe import Metrics
from elmokit.serve.settings import Settings
from elmokit.serve.uploads import DisconnectedError, Uploads
from elmokit.serve.wire import JSON

logger = logging.getLogger(__name__)

OPEN_PATHS = {"/health", "/ready", "/docs", "/openapi.json"}  # and the explorer page: no API key is needed
CLIENT_DISCONNECTED = 499  # only in the log and the metrics
MAX_DISCARDED_BYTES = 16_000_000  # of a body that is too large
REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")
TRACEPARENT = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")  # W3C Trace Context


class Guard:
    """ASGI middleware: the outermost one, except for CORS.

    Args:
        app: The application.
        settings: The limits.
        access: The API keys and the host names.
        metrics: Counts requests.
        open_paths: Paths that need no API key, besides `OPEN_PATHS`.
        known_paths: Paths that may be named in the log and the metrics.
        check_queue: Called with the name of the client; raises a `RefusalError` if the queue is full.
        is_draining: Whether the server is shutting down.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        settings: Settings,
        access: Access,
        metrics: Metrics,
        open_paths: frozenset[str],
        known_paths: frozenset[str],
        check_queue: Callable[[str], None],
        is_draining: Callable[[], bool],
    ) -> None:
        self.app, self.settings, self.access, self.metrics = app, settings, access, metrics
        self.known_paths = known_paths
        self.open_paths, self.check_queue, self.is_draining = open_paths | OPEN_PATHS, check_queue, is_draining
        self.uploads = Uploads(max_body_bytes=settings.max_body_bytes, client_timeout=settings.client_timeout)
        self.num_complete = 0  # requests whose body is complete, and whose response is not

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        exchange = _Exchange(scope, send, is_draining=self.is_draining)
        scope = {**scope, **exchange.scope_fields}
        if scope["method"] == "HEAD":  # the connection sends no body for it
            scope["method"] = "GET"
        self.metrics.in_flight.inc()
        try:
            try:
                body = await self._admit(scope, receive)
                await self._answer(scope, body, receive, exchange)
            except RefusalError as refusal:
                await exchange.refuse(refusal)
                if refusal.status == 413:
                    await self._discard_body(receive)
                    await exchange.end()
            except DisconnectedError:
                exchange.status = CLIENT_DISCONNECTED
        except Exception:
            logger.exception("request failed", extra={"fields": {"id": exchange.id}})
            if exchange.status:  # the response has begun, so the client cannot be told
                exchange.status = 500
            else:
                await exchange.refuse(RefusalError(500, "Backend", "the server failed to answer this request"))
        finally:
            self.metrics.in_flight.dec()
            for release in exchange.releases:
                release()
            self._record(scope, exchange)

    async def _admit(self, scope: Scope, receive: Receive) -> bytes:
        """The body of a request that passes the checks; otherwise a RefusalError."""
        headers = dict(scope["headers"])
        if not self.access.allows_host(headers.get(b"host", b"")):
            raise RefusalError(
                400, "Validation", "the server is not known by this host name: start it with --allowed-host"
            )
        scope["elmokit.client"] = self._client(scope, headers)
        self._check_count(scope)
        length = headers.get(b"content-length")
        if length is not None and int(length) > self.settings.max_body_bytes:  # h11 accepts only digits
            raise self.uploads.too_large()
        body = await self.uploads.read(receive)
        if scope["method"] == "POST":
            kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
            if kind != JSON.encode():
                raise RefusalError(415, "Validation", "send the request as JSON, with `Content-Type: application/json`")
            if headers.get(b"content-encoding", b"identity").strip().lower() not in (b"identity", b""):
                message = "the body is compressed: send it without `Content-Encoding`"
                raise RefusalError(415, "Validation", message, {"accept-encoding": "identity"})
            self.check_queue(scope["elmokit.client"])
        self._check_count(scope)
        return body

    def _client(self, scope: Scope, headers: dict[bytes, bytes]) -> str:
        """The name of the client, which shares the model with the others: its key and its address."""
        key: int | None = None
        if self.access.needs_key and scope["path"] not in self.open_paths:
            key = self.access.key_number(headers.get(b"authorization", b""))
            if key is None:
                raise RefusalError(
                    401, "Unauthorized", "send the API key: `Authorization: Bearer KEY`", {"www-authenticate": "Bearer"}
                )
        return f"{key} {(scope.get('client') or ('',))[0]}"

    def _check_count(self, scope: Scope) -> None:
        # health checks are answered even when the server is busy
        if self.num_complete >= self.settings.max_requests and scope["path"] not in OPEN_PATHS:
            raise RefusalError(
                429, "Overloaded", "the server has too many requests: try again in 1 s", {"retry-after": "1"}
            )

    async def _discard_body(self, receive: Receive) -> None:
        """Read the rest of the body: if a socket is closed with unread bytes, the client does not get the response."""
        bytes_left = MAX_DISCARDED_BYTES
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(5.0, self.settings.client_timeout)):
                while bytes_left > 0:
                    message = await receive()
                    if message["type"] == "http.disconnect" or not message.get("more_body", False):
                        return
                    bytes_left -= len(message.get("body", b""))

    async def _answer(self, scope: Scope, body: bytes, receive: Receive, exchange: _Exchange) -> None:
        """Run the endpoint; cancel it if the client disconnects."""
        self.num_complete += 1
        exchange.releases.append(self._leave)
        disconnected = asyncio.ensure_future(_wait_for_disconnect(receive))
        unread = [body]

        async def replay() -> Message:
            if unread:
                return {"type": "http.request", "body": unread.pop(), "more_body": False}
            await asyncio.shield(disconnected)
            return {"type": "http.disconnect"}

        answer = asyncio.ensure_future(self.app(scope, replay, exchange.send))
        try:
            await asyncio.wait((answer, disconnected), return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                if exchange.is_complete:
                    await answer
                else:
                    answer.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await answer
                    raise DisconnectedError
            answer.result()
        finally:
            disconnected.cancel()
            answer.cancel()

    def _leave(self) -> None:
        self.num_complete -= 1

    def _record(self, scope: Scope, exchange: _Exchange) -> None:
        """Write the log line and the metrics of a request."""
        # an unknown path may contain anything, also a user's text
        unrouted = scope["path"] if scope["path"] in self.known_paths else "other"
        route = getattr(scope.get("route"), "path", unrouted)
        seconds = time.monotonic() - exchange.begin
        self.metrics.requests.labels(route, exchange.status).inc()
        self.metrics.seconds.labels(route).observe(seconds)
        fields: dict[str, Any] = {
            "id": exchange.id,
            "method": exchange.method if exchange.method in ("GET", "HEAD", "POST") else "other",
            "route": route,
            "status": exchange.status,
            "ms": round(1000 * seconds, 2),
            **exchange.counts,
        }
        if exchange.trace_id is not None:
            fields["trace_id"] = exchange.trace_id
        logger.info("request", extra={"fields": fields})


class _Exchange:
    """One request and its response: id, time, status, and what to release at the end."""

    def __init__(self, scope: Scope, send: Send, *, is_draining: Callable[[], bool]) -> None:
        headers = dict(scope["headers"])
        sent_id, parent = headers.get(b"x-request-id", b""), headers.get(b"traceparent", b"")
        self.id = sent_id.decode() if REQUEST_ID.fullmatch(sent_id) else secrets.token_hex(8)
        trace = TRACEPARENT.fullmatch(parent)
        self.trace_id = None if trace is None else trace[1].decode()
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.begin = time.monotonic()
        self.status = 0  # until the response begins
        self.is_complete = False
        self.releases: list[Callable[[], None]] = []
        self.counts: dict[str, int] = {}
        self._passed_on = [(b"x-request-id", self.id.encode()), *([(b"traceparent", parent)] if trace else [])]
        self._send, self._is_draining = send, is_draining

    @property
    def scope_fields(self) -> dict[str, Any]:
        """What endpoints find in the scope of the request."""
        return {"elmokit.releases": self.releases, "elmokit.counts": self.counts}

    async def send(self, message: Message) -> None:
        """Send a message of the response, with the request's id in the headers."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = [*message.get("headers", ()), *self._passed_on]
            if self._is_draining():  # this connection accepts no more requests
                headers.append((b"connection", b"close"))
            message = {**message, "headers": headers}
        elif message["type"] == "http.response.body" and not message.get("more_body", False):
            self.is_complete = True
        await self._send(message)

    async def refuse(self, refusal: RefusalError) -> None:
        """Answer with an error."""
        body = refusal.body_for(self.path)
        headers = {"content-type": JSON, "content-length": str(len(body)), **refusal.headers}
        encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
        await self.send({"type": "http.response.start", "status": refusal.status, "headers": encoded})
        # if the body is too large, the response ends after the body is discarded
        await self.send({"type": "http.response.body", "body": body, "more_body": refusal.status == 413})

    async def end(self) -> None:
        """End the response."""
        await self.send({"type": "http.response.body", "body": b"", "more_body": False})


async def _wait_for_disconnect(receive: Receive) -> None:
    """Return when the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass
