"""The endpoints about the server itself.

Input: the model, the limits and the metrics.  Output: what the server serves, whether it is healthy and ready, and its
metrics for Prometheus.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from elmokit import __version__
from elmokit.serve import schemas
from elmokit.serve.engine import Engine, Task
from elmokit.serve.errors import OPENAI_ERROR_RESPONSES, RefusalError
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
    app: FastAPI, engines: Mapping[str, Engine], settings: Settings, metrics: Metrics, lifecycle: Lifecycle
) -> None:
    """Add /info, /v1/models, /health, /ready and /metrics.

    Args:
        app: The application.
        engines: The models behind their batcher, by name. The first one is the default.
        settings: The limits.
        metrics: What /metrics shows.
        lifecycle: What /ready shows.
    """
    names = list(engines)
    infos = {name: _info(one, settings, name, names) for name, one in engines.items()}
    batcher = engines[names[0]].batcher
    started = int(time.time())
    unavailable: dict[int | str, dict[str, Any]] = {
        503: {"model": schemas.ErrorBody, "description": "The server is loading, shutting down or broken."}
    }

    def openai_model(name: str) -> schemas.OpenAIModel:
        return schemas.OpenAIModel(id=name, object="model", created=started, owned_by="elmokit")

    def check_model(name: str) -> str:
        if name not in infos:
            raise RefusalError(
                404, "NotFound", f"there is no model {name!r}; the models of this server: {', '.join(names)}"
            )
        return name

    @app.get("/info", tags=["server"])
    async def info(model: str | None = None) -> schemas.Info:
        """The model and the limits; `?model=NAME` for another model than the first."""
        return infos[names[0] if model is None else check_model(model)]

    @app.get("/v1/models", responses=OPENAI_ERROR_RESPONSES, tags=["server"])
    async def models() -> schemas.OpenAIModels:
        """The models of this server, in the format of OpenAI."""
        return schemas.OpenAIModels(object="list", data=[openai_model(name) for name in names])

    @app.get("/v1/models/{name:path}", responses=OPENAI_ERROR_RESPONSES, tags=["server"])
    async def one_model(name: str) -> schemas.OpenAIModel:
        """A model of this server, in the format of OpenAI."""
        return openai_model(check_model(name))

    @app.get("/health", responses=unavailable, tags=["server"])
    async def health() -> schemas.Status:
        """200 while the thread that runs the model is alive."""
        if not batcher.is_alive:
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


def _info(engine: Engine, settings: Settings, name: str, names: list[str]) -> schemas.Info:
    """What /info shows."""
    model = engine.model
    dtype = "int8" if model.bilm.is_int8 else str(next(model.bilm.parameters()).dtype).removeprefix("torch.")
    return schemas.Info(
        model_id=name,
        model_sha=model.digest(),
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
        tokenizer=model.tokenizer.name,
        tasks=list(engine.tasks),
        task_kinds={task_name: _kind(task) for task_name, task in engine.tasks.items()},
        index_words=None if engine.index is None else len(engine.index),
        models=names,
    )


def _kind(task: Task) -> str | None:
    """The kind of a `TrainedTask`, such as ner; None for another object with `predict`."""
    kind = getattr(getattr(task, "config", None), "task", None)
    return kind if isinstance(kind, str) else None
