"""The ASGI application: error handlers, the routes and the middleware.

Input: a model, its tasks, an index and `Settings`.  Output: an application that `server.make_server` runs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import orjson
from fastapi import FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import Response
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool

from elmokit import __version__
from elmokit.index import WordIndex
from elmokit.model import ELMo
from elmokit.serve.access import Access
from elmokit.serve.engine import Engine, Task
from elmokit.serve.errors import ERROR_RESPONSES, add_error_handlers, refuse_overload
from elmokit.serve.guard import Guard
from elmokit.serve.observe import Metrics
from elmokit.serve.reader import Readers, RequestReader
from elmokit.serve.routes.language_model import add_language_model
from elmokit.serve.routes.page import add_pages
from elmokit.serve.routes.status import Lifecycle, add_status
from elmokit.serve.routes.tasks import add_tasks
from elmokit.serve.routes.vectors import add_vectors
from elmokit.serve.settings import Settings
from elmokit.serve.transfer import Transfer
from elmokit.serve.wire import LENGTHS_HEADER


def create_app(
    model: ELMo,
    settings: Settings,
    *,
    name: str = "elmokit",
    tasks: Mapping[str, Task] | None = None,
    index: WordIndex | None = None,
    models: Mapping[str, ELMo] | None = None,
) -> FastAPI:
    """Make the application that serves a model.

    Args:
        model: The model. It is put into evaluation mode.
        settings: The limits, the API key and the origins.
        name: Name of the model in responses.
        tasks: Trained tasks by the name in their path, /tasks/NAME.
        index: Index for /neighbours, built with this model.
        models: Further models by name. Requests choose one of them with the field `model`.

    Returns:
        The application. `app.state.lifecycle` is the `Lifecycle` that the server updates, `app.state.engine` the
        `Engine`, `app.state.access` the `Access`.

    Raises:
        ValueError: If a model carries state from batch to batch, the index was built with another model, or the API
            keys cannot be read.
    """
    metrics, lifecycle, access = Metrics(), Lifecycle(), Access(settings)
    engine = Engine(model, settings, tasks=tasks, index=index, report=metrics.record_batch)
    engines = {name: engine}
    for other, further in (models or {}).items():
        engines[other] = Engine(further, settings, beside=engine, prefix=f"{other}: ")

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        engine.batcher.start()
        for one in engines.values():
            await run_in_threadpool(one.warm_up)
        lifecycle.is_ready = True
        yield
        await run_in_threadpool(engine.batcher.close)

    app = FastAPI(
        title="elmokit",
        version=__version__,
        summary="Contextual word vectors over HTTP.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
        responses=ERROR_RESPONSES,
    )
    app.state.lifecycle, app.state.engine, app.state.access = lifecycle, engine, access
    app.router.route_class = JSONRoute
    add_error_handlers(app)
    readers = Readers({name: RequestReader(one, settings, metrics) for name, one in engines.items()})
    add_vectors(app, readers)
    add_language_model(app, readers)
    add_tasks(app, readers.default)
    add_status(app, engines, settings, metrics, lifecycle)
    page_paths = add_pages(app, needs_key=access.needs_key)
    app.add_middleware(Transfer)
    app.add_middleware(
        Guard,
        settings=settings,
        access=access,
        metrics=metrics,
        open_paths=frozenset(page_paths),
        known_paths=frozenset(route.path for route in app.routes if isinstance(route, APIRoute)),
        check_queue=lambda client: refuse_overload(partial(engine.batcher.check_capacity, client)),
        is_draining=lambda: lifecycle.is_draining,
    )
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "HEAD", "POST"],
            allow_headers=["*"],  # OpenAI's client sends x-stainless-…; a page cannot send cookies
            expose_headers=[LENGTHS_HEADER, "retry-after", "x-request-id", "traceparent"],
        )
    return app


class JSONRoute(APIRoute):
    """A route whose body orjson reads: it limits the depth of nesting and refuses lone surrogates."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler of FastAPI, called with a `JSONRequest`."""
        handle = super().get_route_handler()

        async def read(request: Request) -> Response:
            return await handle(JSONRequest(request.scope, request.receive))

        return read


class JSONRequest(Request):
    """A request whose body orjson reads."""

    async def json(self) -> Any:
        """The value of the body. `orjson.JSONDecodeError` is a `json.JSONDecodeError`, which FastAPI handles."""
        return orjson.loads(await self.body())
