"""Bodies that clients have not sent completely.

Input: the parts of bodies.  Output: complete bodies. Incomplete ones are counted separately from requests: clients that
stop sending do not take the place of others. If there are too many of them, the oldest one is given up.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from starlette.types import Receive

from elmokit.serve.errors import RefusalError

MAX_UPLOADS = 1024
MAX_UPLOAD_BYTES = 64_000_000


class DisconnectedError(Exception):
    """The client has disconnected."""


@dataclass(eq=False)
class _Upload:
    """One body: its size so far, and the timeout that ends it."""

    timeout: asyncio.Timeout
    size: int = 0
    is_given_up: bool = False


class Uploads:
    """Reads the bodies of requests.

    Args:
        max_body_bytes: Largest size of a body.
        client_timeout: Seconds that a client has to send a body.
        max_uploads: Largest number of incomplete bodies.
        max_upload_bytes: Largest size of all incomplete bodies together; at least two bodies.
    """

    def __init__(
        self,
        *,
        max_body_bytes: int,
        client_timeout: float,
        max_uploads: int = MAX_UPLOADS,
        max_upload_bytes: int = MAX_UPLOAD_BYTES,
    ) -> None:
        self.max_body_bytes, self.client_timeout, self.max_uploads = max_body_bytes, client_timeout, max_uploads
        self.max_upload_bytes = max(max_upload_bytes, 2 * max_body_bytes)
        self._uploads: dict[_Upload, None] = {}  # oldest first
        self._num_bytes = 0

    async def read(self, receive: Receive) -> bytes:
        """Read a body.

        Args:
            receive: The ASGI function that gives its parts.

        Returns:
            The complete body.

        Raises:
            RefusalError: 413 if it is too large, 408 if it is sent too slowly, 503 if it is given up for newer ones.
            DisconnectedError: If the client disconnects.
        """
        parts: list[bytes] = []
        upload: _Upload | None = None
        try:
            async with asyncio.timeout(self.client_timeout) as timeout:
                upload = _Upload(timeout)
                self._uploads[upload] = None
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise DisconnectedError
                    parts.append(message.get("body", b""))
                    upload.size += len(parts[-1])
                    self._num_bytes += len(parts[-1])
                    if upload.size > self.max_body_bytes:
                        raise self.too_large()
                    more = message.get("more_body", False)
                    if more:
                        self._give_up_oldest()
        except TimeoutError:
            assert upload is not None
            raise self._too_slow(upload) from None
        finally:
            if upload is not None:
                self._uploads.pop(upload, None)
                self._num_bytes -= upload.size
        return b"".join(parts)

    def too_large(self) -> RefusalError:
        """The error of a body that is too large."""
        message = f"the body is larger than {self.max_body_bytes:,} bytes: send several requests"
        return RefusalError(413, "Validation", message, {"connection": "close"})

    def _too_slow(self, upload: _Upload) -> RefusalError:
        if upload.is_given_up:
            headers = {"connection": "close", "retry-after": "1"}
            return RefusalError(503, "Overloaded", "too many requests are sent slowly: try again in 1 s", headers)
        reason = f"the body was not received within {self.client_timeout:g} s"
        return RefusalError(408, "Timeout", reason, {"connection": "close"})

    def _give_up_oldest(self) -> None:
        """End the oldest incomplete body if there are too many."""
        if len(self._uploads) > self.max_uploads or self._num_bytes > self.max_upload_bytes:
            oldest = next((upload for upload in self._uploads if not upload.is_given_up), None)
            if oldest is not None:
                oldest.is_given_up = True
                oldest.timeout.reschedule(asyncio.get_running_loop().time())
