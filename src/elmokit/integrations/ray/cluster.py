"""The Ray cluster: join one, or start one on this machine."""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray

LOCAL_STORE_BYTES = (
    1 << 30
)  # the model passes through Ray's object store; `embed_files` puts nothing else of size there


@contextmanager
def cluster(address: str = "local") -> Iterator[None]:
    """Join a Ray cluster for the length of a block. A process that has joined one already stays in it.

    Args:
        address: "local" starts a cluster on this machine, which ends with the block; "auto" or host:port joins one.

    Raises:
        ValueError: If no cluster answers at that address, or it is one of a Ray client (ray://).
    """
    if ray.is_initialized():
        yield
        return
    if address.startswith("ray://"):
        raise ValueError(f"{address}: a Ray client sees no files of the cluster: run on it, with host:port or auto")
    if ":" in address:
        _check_answers(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a cluster that we start sends no statistics
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # errors are exceptions too
    data_logger = logging.getLogger("ray.data")
    level = data_logger.level
    local: dict[str, Any] = (
        {"include_dashboard": False, "object_store_memory": LOCAL_STORE_BYTES} if address == "local" else {}
    )
    try:
        data_logger.setLevel(logging.ERROR)
        with _silent_stderr():
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **local)
        yield
    finally:
        data_logger.setLevel(level)
        ray.shutdown()


def has_gpus() -> bool:
    """Whether the cluster has GPUs."""
    return bool(ray.cluster_resources().get("GPU"))  # type: ignore[no-untyped-call]


def _check_answers(address: str) -> None:
    """Connect once: Ray itself would try for minutes."""
    host, port = address.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, ValueError) as error:
        raise ValueError(f"{address}: no Ray cluster answers there ({error}): `ray status` says where it is") from None


@contextmanager
def _silent_stderr() -> Iterator[None]:
    """Hide what Ray's C++ code prints about its log level."""
    sys.stderr.flush()
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nothing, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)
