"""A connection that waits for nobody for ever.

Enters: bytes of a client.  Leaves: requests, as uvicorn makes them; and the end of a connection whose client takes too
long over the head of a request or over reading its answer, or speaks no HTTP.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from elmokit.serve.wire import JSON, RefusalError

FIRST_REQUEST = 1.0  # seconds that a connection has for it when the server ends


class Connection(H11Protocol):
    """uvicorn's connection with limits of time, and the one shape of errors."""

    client_timeout = 30.0

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a request, and not for long."""
        super().connection_made(transport)
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        """A request, or a part of one."""
        super().data_received(data)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for any more."""
        self._cancel_timers()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client reads more slowly than we write."""
        super().pause_writing()
        self._write_timer = self.loop.call_later(self.client_timeout, self.transport.abort)

    def resume_writing(self) -> None:
        """The client has read."""
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def shutdown(self) -> None:
        """The server ends: a connection that was just made may still send the request that it was made for."""
        if self.cycle is None:
            self.loop.call_later(min(FIRST_REQUEST, self.client_timeout), self._end_unless_used)
        else:
            super().shutdown()

    def _end_unless_used(self) -> None:
        if self.cycle is None and not self.transport.is_closing():
            super().shutdown()

    def send_400_response(self, msg: str) -> None:
        """What came is no HTTP."""
        self._refuse(RefusalError(400, "Validation", msg))

    def _watch_head(self) -> None:
        """Start the clock where the head of a request is awaited, stop it where one is being answered."""
        answering = self.cycle is not None and not self.cycle.response_complete
        if answering or self.transport.is_closing():
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self.client_timeout, self._head_is_late)

    def _head_is_late(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing() and (self.cycle is None or self.cycle.response_complete):
            self._refuse(RefusalError(408, "Timeout", f"no request came within {self.client_timeout:g} s"))

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
