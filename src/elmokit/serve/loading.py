"""Answers while the model is loading.

Input: connections to the port of the server.  Output: 200 for /health, 503 for everything else, so that a load balancer
and an orchestrator know that the process lives and is not ready.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Generator

REQUEST_SECONDS = 5.0  # a client has this long to send its request
END_SECONDS = 1.0  # when the model is loaded, time to answer the last of these requests
MAX_HEAD_BYTES = 65536
HEALTHY = {"status": "healthy"}
LOADING = {"error": "the model is loading", "error_type": "Unhealthy"}


@contextlib.contextmanager
def answering_while_loading(listening: socket.socket) -> Generator[None, None, None]:
    """Answer requests in a thread, as long as the body of the `with` statement runs.

    Args:
        listening: A socket that listens. It stays open; connections that come later are for the server.
    """
    loop, stopped = asyncio.SelectorEventLoop(), asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(_answer(listening.dup(), stopped),), daemon=True)
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join()
        loop.close()


async def _answer(listening: socket.socket, stopped: asyncio.Event) -> None:
    """Answer requests until the event is set."""
    loop, tasks = asyncio.get_running_loop(), set[asyncio.Task[None]]()

    def accept() -> None:  # what it accepts has a task at once: asyncio.Server forgets a connection if it closes then
        with contextlib.suppress(OSError):
            task = loop.create_task(_converse(listening.accept()[0]))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    listening.setblocking(False)
    loop.add_reader(listening, accept)
    await stopped.wait()
    loop.remove_reader(listening)
    listening.close()
    if tasks:
        _, late = await asyncio.wait(tasks, timeout=END_SECONDS)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)


async def _converse(connection: socket.socket) -> None:
    """Answer one request and close its connection."""
    reader, writer = await asyncio.open_connection(sock=connection, limit=MAX_HEAD_BYTES)
    try:
        async with asyncio.timeout(REQUEST_SECONDS):
            head = await reader.readuntil(b"\r\n\r\n")
            path = head.split(b" ", 2)[1].split(b"?")[0] if head.count(b" ") > 1 else b""
            writer.write(_response(path, has_body=not head.startswith(b"HEAD ")))
            await writer.drain()
            writer.write_eof()
            while await reader.read(MAX_HEAD_BYTES):  # if bytes are not read, the client may not get the response
                pass
    except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        pass
    finally:
        writer.close()


def _response(path: bytes, *, has_body: bool) -> bytes:
    is_health = path == b"/health"
    body = json.dumps(HEALTHY if is_health else LOADING).encode()
    head = (
        f"HTTP/1.1 {'200 OK' if is_health else '503 Service Unavailable'}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nretry-after: 1\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + (body if has_body else b"")
