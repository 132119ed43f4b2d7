"""What stands between the connections and the endpoints.

Enters: every request, before its body is read.  Leaves: to the endpoints, requests that have a right to an answer and
whose bodies are whole; to the client, an answer in the one shape of errors where that is not so; to the log and the
metrics, one entry for each.  A request whose client has gone is cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import secrets
import time
from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from elmokit.serve.observe import Metrics
from elmokit.serve.settings import Settings
from elmokit.serve.wire import JSON, RefusalError

logger = logging.getLogger(__name__)

OPEN_PATHS = {"/health", "/ready", "/docs", "/openapi.json"}  # and the page: they say nothing that is not published
CLIENT_GONE = 499  # nobody sees this status but the log
THROWN_AWAY = 16_000_000  # bytes of a body that is too large, read so that the client reads the answer


class Guard:
    """ASGI middleware; the outermost but for CORS."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        settings: Settings,
        metrics: Metrics,
        open_paths: frozenset[str],
        known_paths: frozenset[str],
        check_room: Callable[[], None],
        is_draining: Callable[[], bool],
    ) -> None:
        self.app, self.settings, self.metrics = app, settings, metrics
        self.known_paths = known_paths
        self.open_paths, self.check_room, self.is_draining = open_paths | OPEN_PATHS, check_room, is_draining
        self.key = None if settings.api_key is None else f"Bearer {settings.api_key}".encode()
        self.num_inside = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        exchange = _Exchange(scope, send, is_draining=self.is_draining)
        self.num_inside += 1
        self.metrics.in_flight.inc()
        try:
            try:
                body = await self._admit(scope, receive)
                await self._answer(scope, body, receive, exchange)
            except RefusalError as refusal:
                await exchange.refuse(refusal)
                if refusal.status == 413:
                    await self._throw_away(receive)
                    await exchange.end()
            except _ClientGoneError:
                exchange.status = CLIENT_GONE
        except Exception:
            logger.exception("a request failed", extra={"fields": {"id": exchange.id}})
            if exchange.status:  # too late to say so
                exchange.status = 500
            else:
                await exchange.refuse(RefusalError(500, "Backend", "the server failed at this request"))
        finally:
            self.num_inside -= 1
            self.metrics.in_flight.dec()
            for release in exchange.releases:
                release()
            self._note(scope, exchange)

    async def _admit(self, scope: Scope, receive: Receive) -> bytes:
        """The body of a request that may be answered, or a RefusalError."""
        headers = dict(scope["headers"])
        if self.key is not None and scope["path"] not in self.open_paths:
            given = headers.get(b"authorization", b"")
            if not hmac.compare_digest(given, self.key):
                raise RefusalError(
                    401, "Unauthorized", "send the API key: `Authorization: Bearer KEY`", {"www-authenticate": "Bearer"}
                )
        # who asks whether the server lives must not be told that it is busy
        if self.num_inside > self.settings.max_requests and scope["path"] not in OPEN_PATHS:
            raise RefusalError(429, "Overloaded", "too many requests at once: try again in 1 s", {"retry-after": "1"})
        length = headers.get(b"content-length")
        if length is not None and int(length) > self.settings.max_body_bytes:  # h11 takes digits alone
            raise self._too_large()
        body = await self._read(receive)
        if scope["method"] == "POST":
            kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
            if kind != JSON.encode():
                raise RefusalError(415, "Validation", "send the request as JSON, with `Content-Type: application/json`")
            self.check_room()
        return body

    async def _read(self, receive: Receive) -> bytes:
        parts, size, more = [], 0, True
        try:
            async with asyncio.timeout(self.settings.client_timeout):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _ClientGoneError
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > self.settings.max_body_bytes:
                        raise self._too_large()
                    more = message.get("more_body", False)
        except TimeoutError:
            reason = f"the body did not come within {self.settings.client_timeout:g} s"
            raise RefusalError(408, "Timeout", reason, {"connection": "close"}) from None
        return b"".join(parts)

    def _too_large(self) -> RefusalError:
        limit = self.settings.max_body_bytes
        return RefusalError(
            413, "Validation", f"the body is larger than {limit:,} bytes: send less at a time", {"connection": "close"}
        )

    async def _throw_away(self, receive: Receive) -> None:
        """Read what the client still sends: a socket closed over unread bytes takes the answer with it."""
        left = THROWN_AWAY
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(5.0, self.settings.client_timeout)):
                while left > 0:
                    message = await receive()
                    if message["type"] == "http.disconnect" or not message.get("more_body", False):
                        return
                    left -= len(message.get("body", b""))

    async def _answer(self, scope: Scope, body: bytes, receive: Receive, exchange: _Exchange) -> None:
        """Run the endpoint; stop it when its client goes."""
        gone = asyncio.ensure_future(_disconnect(receive))
        unread = [body]

        async def replay() -> Message:
            if unread:
                return {"type": "http.request", "body": unread.pop(), "more_body": False}
            await asyncio.shield(gone)
            return {"type": "http.disconnect"}

        answer = asyncio.ensure_future(self.app(scope, replay, exchange.send))
        try:
            await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                if exchange.is_complete:
                    await answer
                else:
                    answer.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await answer
                    raise _ClientGoneError
            answer.result()
        finally:
            gone.cancel()
            answer.cancel()

    def _note(self, scope: Scope, exchange: _Exchange) -> None:
        # a path that is none of ours may hold anything
        unrouted = scope["path"] if scope["path"] in self.known_paths else "other"
        route = getattr(scope.get("route"), "path", unrouted)
        seconds = time.monotonic() - exchange.since
        self.metrics.requests.labels(route, exchange.status).inc()
        self.metrics.seconds.labels(route).observe(seconds)
        fields: dict[str, Any] = {
            "id": exchange.id,
            "method": scope["method"] if scope["method"] in ("GET", "POST") else "other",
            "route": route,
            "status": exchange.status,
            "ms": round(1000 * seconds, 2),
            **scope["elmokit.counts"],
        }
        logger.info("request", extra={"fields": fields})


class _ClientGoneError(Exception):
    pass


class _Exchange:
    """One answer on its way out, and what is noted of it."""

    def __init__(self, scope: Scope, send: Send, *, is_draining: Callable[[], bool]) -> None:
        self.id = secrets.token_hex(8)
        self.since = time.monotonic()
        self.status = 0  # until the answer begins
        self.is_complete = False
        self.releases: list[Callable[[], None]] = []
        self._send, self._is_draining = send, is_draining
        scope["elmokit.releases"] = self.releases
        scope["elmokit.counts"] = {}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = [*message.get("headers", ()), (b"x-request-id", self.id.encode())]
            if self._is_draining():  # the server ends: this connection takes no more requests
                headers.append((b"connection", b"close"))
            message = {**message, "headers": headers}
        elif message["type"] == "http.response.body" and not message.get("more_body", False):
            self.is_complete = True
        await self._send(message)

    async def refuse(self, refusal: RefusalError) -> None:
        headers = {"content-type": JSON, "content-length": str(len(refusal.body)), **refusal.headers}
        encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
        await self.send({"type": "http.response.start", "status": refusal.status, "headers": encoded})
        # the end of an answer to a body that is too large comes when the body has been thrown away
        await self.send({"type": "http.response.body", "body": refusal.body, "more_body": refusal.status == 413})

    async def end(self) -> None:
        await self.send({"type": "http.response.body", "body": b"", "more_body": False})


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
