"""What the tests of storage share: a local HTTP server, and an empty cache for each test."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from broken_server import Handler, Server

from elmokit.storage import downloads, transfer


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as it:
        it.resources = {}
        thread = threading.Thread(target=it.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield it
        it.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ELMOKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("ELMOKIT_OFFLINE", raising=False)
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(downloads, "_PAUSES", (0.0, 0.0, 0.0))
    monkeypatch.setattr(transfer, "_TIMEOUT", 10.0)
    return tmp_path / "cache"
