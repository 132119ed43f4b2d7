"""The endpoints about the server itself.

Input: the model, the limits and the metrics.  Output: what the server serves, whether it is healthy and ready, and its
metrics for Prometheus.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from elmokit import __version__
from elmokit.serve import schemas
from elmokit.serve.engine import Engine, Task
from elmokit.serve.errors import RefusalError
from elmokit.serve.observe import Metrics
from elmokit.serve.settings import Settings


@dataclass
class Lifecycle:
    """Whether the server accepts requests."""

    is_ready: bool = False
    """The model is loaded and warmed up."""
    is_draining: bool = False
    """The server is shutting down: it answers the requests that it has, and closes their connections."""


def add_status(
    app: FastAPI, engine: Engine, settings: Settings, metrics: Metrics, lifecycle: Lifecycle, name: str
) -> None:
    """Add /info, /health, /ready and /metrics.

    Args:
        app: The application.
        engine: The model behind its batcher.
        settings: The limits.
        metrics: What /metrics shows.
        lifecycle: What /ready shows.
        name: Name of the model.
    """
    server_info = _info(engine, settings, name)
    unavailable: dict[int | str, dict[str, Any]] = {
        503: {"model": schemas.ErrorBody, "description": "The server is loading, shutting down or broken."}
    }

    @app.get("/info", tags=["server"])
    async def info() -> schemas.Info:
        """The model and the limits."""
        return server_info

    @app.get("/health", responses=unavailable, tags=["server"])
    async def health() -> schemas.Status:
        """200 while the thread that runs the model is alive."""
        if not engine.batcher.is_alive:
            raise RefusalError(503, "Unhealthy", "the thread that runs the model has stopped")
        return schemas.Status(status="healthy")

    @app.get("/ready", responses=unavailable, tags=["server"])
    async def ready() -> schemas.Status:
        """200 when the model is loaded and the server is not shutting down."""
        if lifecycle.is_draining:
            raise RefusalError(503, "Unhealthy", "the server is shutting down")
        if not lifecycle.is_ready:
            raise RefusalError(503, "Unhealthy", "the model is loading")
        return schemas.Status(status="ready")

    @app.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}}, tags=["server"])
    async def prometheus() -> Response:
        """Metrics in the text format of Prometheus."""
        text = await run_in_threadpool(metrics.text)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


def _info(engine: Engine, settings: Settings, name: str) -> schemas.Info:
    """What /info shows."""
    model = engine.model
    dtype = "int8" if model.bilm.is_int8 else str(next(model.bilm.parameters()).dtype).removeprefix("torch.")
    return schemas.Info(
        model_id=name,
        model_sha=None,
        model_dtype=dtype,
        model_type=schemas.ModelType(embedding=schemas.Embedding(pooling="mean")),
        max_concurrent_requests=settings.max_requests,
        max_input_length=settings.max_sentence_tokens,
        max_batch_tokens=engine.batcher.batch_tokens,
        max_batch_requests=None,
        max_client_batch_size=settings.max_sentences,
        max_request_tokens=settings.max_request_tokens,
        max_body_bytes=settings.max_body_bytes,
        auto_truncate=False,
        tokenization_workers=1,
        version=__version__,
        num_layers=model.num_layers,
        vector_dim=model.dim,
        language_model=model.is_language_model,
        vocabulary_size=None if model.vocabulary is None else len(model.vocabulary),
        tasks=list(engine.tasks),
        task_kinds={task_name: _kind(task) for task_name, task in engine.tasks.items()},
        index_words=None if engine.index is None else len(engine.index),
    )


def _kind(task: Task) -> str | None:
    """The kind of a `TrainedTask`, such as ner; None for another object with `predict`."""
    kind = getattr(getattr(task, "config", None), "task", None)
    return kind if isinstance(kind, str) else None
