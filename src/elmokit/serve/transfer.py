"""How responses are transferred: compressed, or not at all if the client has them.

Input: responses of the endpoints.  Output: JSON and text as gzip for clients that accept it; 304 for a GET whose
`If-None-Match` has the `ETag` of the response.  Arrays in .npy, safetensors or base64 are not compressed: gzip takes
longer than it saves.
"""

from __future__ import annotations

import zlib
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MIN_BYTES = 1024  # a shorter response is not compressed
INLINE_BYTES = 16384  # at most this many are compressed on the event loop, in about a millisecond
LEVEL = 1  # numbers in JSON are hardly smaller with a higher level, which takes much longer
KINDS = ("application/json", "text/", "image/svg+xml")


class Transfer:
    """ASGI middleware around the endpoints.

    Args:
        app: The application.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        response = _Response(
            send,
            accepts_gzip=_accepts_gzip(headers.get("accept-encoding", "")),
            known_etags=headers.get("if-none-match", "") if scope["method"] == "GET" else "",
        )
        await self.app(scope, receive, response.send)


class _Response:
    """One response on its way."""

    def __init__(self, send: Send, *, accepts_gzip: bool, known_etags: str) -> None:
        self._send, self._accepts_gzip, self._known_etags = send, accepts_gzip, known_etags
        self._start: Message | None = None
        self._compressor: Any = None
        self._is_unchanged = False

    async def send(self, message: Message) -> None:
        """Send a message; the start of the response is sent with the first part of the body."""
        if message["type"] == "http.response.start":
            self._start = message
            return
        if message["type"] != "http.response.body":
            await self._send(message)
            return
        body, more = message.get("body", b""), message.get("more_body", False)
        if self._start is not None:
            start, self._start = self._start, None
            self._choose(start, len(body), more)
            if self._compressor is not None and not more:
                body = await self._compress(body, more)
                MutableHeaders(raw=start["headers"])["content-length"] = str(len(body))
                self._compressor = None
            await self._send(start)
        if self._compressor is not None:
            body = await self._compress(body, more)
        if not self._is_unchanged:
            await self._send({"type": "http.response.body", "body": body, "more_body": more})
        elif not more:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    def _choose(self, start: Message, size: int, more: bool) -> None:
        """Whether the response is compressed, or is not sent because the client has it."""
        start["headers"] = list(start.get("headers", ()))
        headers = MutableHeaders(raw=start["headers"])
        etag = headers.get("etag")
        if start["status"] == 200 and etag is not None and _names(self._known_etags, etag):
            self._is_unchanged, start["status"] = True, 304
            for name in ("content-length", "content-type"):
                if name in headers:
                    del headers[name]
            return
        if "content-encoding" in headers or not headers.get("content-type", "").startswith(KINDS):
            return
        headers.add_vary_header("accept-encoding")
        if self._accepts_gzip and (more or size >= MIN_BYTES):
            self._compressor = zlib.compressobj(LEVEL, wbits=31)
            headers["content-encoding"] = "gzip"
            if "content-length" in headers:
                del headers["content-length"]
            if etag is not None and not etag.startswith("W/"):
                headers["etag"] = f"W/{etag}"

    async def _compress(self, body: bytes, more: bool) -> bytes:
        def run() -> bytes:
            part: bytes = self._compressor.compress(body)
            return part if more else part + self._compressor.flush()

        return await run_in_threadpool(run) if len(body) > INLINE_BYTES else run()


def _accepts_gzip(accept: str) -> bool:
    """Whether a header Accept-Encoding allows gzip."""
    for part in accept.split(","):
        name, *parameters = (piece.strip().lower() for piece in part.split(";"))
        if name in ("gzip", "x-gzip"):
            return not any(
                parameter.replace(" ", "") in ("q=0", "q=0.0", "q=0.00", "q=0.000") for parameter in parameters
            )
    return False


def _names(known: str, etag: str) -> bool:
    """Whether a header If-None-Match names an ETag."""
    tags = [tag.strip().removeprefix("W/") for tag in known.split(",")]
    return "*" in tags or etag.removeprefix("W/") in tags
