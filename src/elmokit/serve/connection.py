"""An HTTP connection with timeouts.

Input: bytes of a client.  Output: requests, as uvicorn makes them. A connection is closed if its client is too slow to
send the head of a request or to read its response, or does not send HTTP.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from elmokit.serve.errors import RefusalError
from elmokit.serve.wire import JSON

FIRST_REQUEST_SECONDS = 1.0  # at shutdown, a new connection has this long to send its first request


class Connection(H11Protocol):
    """uvicorn's connection with timeouts and the server's format of errors."""

    client_timeout = 30.0
    """Seconds that a client has to send the head of a request, or to read a part of its response."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timeout of the first request."""
        super().connection_made(transport)
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        """Read a request or a part of one."""
        super().data_received(data)
        self._watch_head()

    def on_response_complete(self) -> None:
        """Read what the client sent during the response. If it is a part of a head, start the timeout of the head."""
        super().on_response_complete()
        if self.conn.trailing_data[0]:
            self._unset_keepalive_if_required()
            self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timeouts."""
        self._cancel_timers()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client reads slower than the server writes: start the timeout of the response."""
        super().pause_writing()
        self._write_timer = self.loop.call_later(self.client_timeout, self.transport.abort)

    def resume_writing(self) -> None:
        """The client has read: stop the timeout of the response."""
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def shutdown(self) -> None:
        """Close the connection at shutdown. A new connection may still send its first request."""
        if self.cycle is None:
            self.loop.call_later(min(FIRST_REQUEST_SECONDS, self.client_timeout), self._close_unless_used)
        else:
            super().shutdown()

    def _close_unless_used(self) -> None:
        if self.cycle is None and not self.transport.is_closing():
            super().shutdown()

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are not valid HTTP."""
        self._refuse(RefusalError(400, "Validation", msg))

    def _watch_head(self) -> None:
        """Start the timeout while the head of a request is expected, stop it while a request is answered."""
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if is_answering or self.transport.is_closing():
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self.client_timeout, self._on_head_timeout)

    def _on_head_timeout(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing() and (self.cycle is None or self.cycle.response_complete):
            self._refuse(RefusalError(408, "Timeout", f"no request within {self.client_timeout:g} s"))

    def _refuse(self, refusal: RefusalError) -> None:
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            headers = [("content-type", JSON), ("content-length", str(len(refusal.body))), ("connection", "close")]
            response = h11.Response(status_code=refusal.status, headers=headers)
            for event in (response, h11.Data(data=refusal.body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _cancel_timers(self) -> None:
        for timer in (self._head_timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        self._head_timer = self._write_timer = None
