"""A local HTTP server that interrupts, announces wrong lengths or changes its content, as each test asks."""

import io
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import h5py
import numpy as np


def hdf5_bytes(seed: int = 0, size: int = 50_000) -> bytes:
    memory = io.BytesIO()
    with h5py.File(memory, "w") as file:
        file["char_embed"] = np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)
    return memory.getvalue()


WEIGHTS = hdf5_bytes()
OPTIONS = json.dumps({"lstm": {"dim": 16}, "char_cnn": {"filters": [[1, 4]]}}).encode()


@dataclass
class Resource:
    """One path of the server: a body with its validators, and what happens to the next requests, in order.

    A deed gets the handler and the resource; when none is left, the server answers correctly.
    """

    body: bytes
    etag: str | None = '"one"'
    modified: str | None = None
    deeds: list[Callable[["Handler", "Resource"], None]] = field(default_factory=list)
    requests: list[dict[str, str]] = field(default_factory=list)

    @property
    def ranges(self) -> list[str | None]:
        return [request.get("Range") for request in self.requests]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        resources: dict[str, Resource] = self.server.resources  # type: ignore[attr-defined]
        wanted = resources.get(self.path.partition("?")[0])
        if wanted is None:
            self.answer(404, {"Content-Length": "0"}, b"")
            return
        wanted.requests.append(dict(self.headers.items()))
        deed = wanted.deeds.pop(0) if wanted.deeds else well
        deed(self, wanted)

    def answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        pass


def validators(it: Resource) -> dict[str, str]:
    pairs = {"ETag": it.etag, "Last-Modified": it.modified}
    return {name: value for name, value in pairs.items() if value is not None}


def well(handler: Handler, it: Resource, cut: int | None = None) -> None:
    """RFC 9110: If-Range first, then Range, 416 beyond the end; `cut` interrupts the body after this many bytes."""
    asked = re.fullmatch(r"bytes=(\d+)-", handler.headers.get("Range", ""))
    if asked and handler.headers.get("If-Range") in (it.etag, it.modified):
        start = int(asked[1])
        if start >= len(it.body):
            handler.answer(416, {"Content-Range": f"bytes */{len(it.body)}", "Content-Length": "0"}, b"")
            return
        part, status = it.body[start:], 206
        headers = {"Content-Range": f"bytes {start}-{len(it.body) - 1}/{len(it.body)}"}
    else:
        part, status, headers = it.body, 200, {}
    handler.answer(status, {**headers, **validators(it), "Content-Length": str(len(part))}, part[:cut])


def cut_after(count: int) -> Callable[[Handler, Resource], None]:
    return lambda handler, it: well(handler, it, cut=count)


def ignore_range(handler: Handler, it: Resource) -> None:
    handler.answer(200, {**validators(it), "Content-Length": str(len(it.body))}, it.body)


def announce(length: int) -> Callable[[Handler, Resource], None]:
    return lambda handler, it: handler.answer(200, {**validators(it), "Content-Length": str(length)}, it.body)


def say(status: int, headers: dict[str, str] | None = None, body: bytes = b"") -> Callable[[Handler, Resource], None]:
    return lambda handler, it: handler.answer(status, {"Content-Length": str(len(body)), **(headers or {})}, body)


def then(change: Callable[[Resource], None], deed: Callable[[Handler, Resource], None]) -> Callable[..., None]:
    def both(handler: Handler, it: Resource) -> None:
        deed(handler, it)
        change(it)

    return both


class Server(ThreadingHTTPServer):
    daemon_threads = True
    resources: dict[str, Resource]

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is part of these tests."""

    def put(self, path: str, body: bytes, **more: object) -> tuple[str, Resource]:
        self.resources[path] = Resource(body, **more)  # type: ignore[arg-type]
        return f"http://127.0.0.1:{self.server_port}{path}", self.resources[path]
