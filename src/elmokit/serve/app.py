"""The endpoints: those of text-embeddings-inference and OpenAI's /v1/embeddings, so that their clients work; and ours.

Enters: an `Engine` and `Settings`.  Leaves: an ASGI application.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import FileResponse, HTMLResponse, Response
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from elmokit import __version__
from elmokit.index import WordIndex
from elmokit.model import ELMo
from elmokit.serve import wire
from elmokit.serve.batching import OverloadedError
from elmokit.serve.engine import (
    Blank,
    Engine,
    Lookup,
    Reduce,
    Task,
    Vectors,
    chosen_layers,
    mixed,
    one_layer,
    sentence_vector,
)
from elmokit.serve.guard import Guard
from elmokit.serve.observe import Metrics
from elmokit.serve.reference import reference_page
from elmokit.serve.settings import Settings
from elmokit.serve.wire import RefusalError
from elmokit.text import BOS_TOKEN, EOS_TOKEN, marked_word, tokenize, tokenize_with_offsets

PAGE = Path(__file__).parent / "page"
PAGE_POLICY = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:"
# a system may know other types for these, and browsers run no module that is called anything else
PAGE_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
INLINE_CHARACTERS = 4096  # of text that the event loop tokenizes itself: about a millisecond

STATUS_NAMES = {404: "NotFound", 405: "MethodNotAllowed"}
ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"description": "There is no input, or this is no HTTP."},
    401: {"description": "The API key is missing or wrong."},
    404: {"description": "There is no such task."},
    408: {"description": "The body came too slowly."},
    413: {"description": "The body, a sentence or the request is too large."},
    415: {"description": "The body is not called application/json."},
    422: {"description": "The request is not what this endpoint takes."},
    424: {"description": "This server cannot do that: the model is no language model, or there is no index."},
    429: {"description": "There is too much to do; Retry-After says when to come back."},
    500: {"description": "The server failed."},
    504: {"description": "The deadline passed."},
}
for _answer in ERRORS.values():
    _answer["model"] = wire.ErrorBody
BINARY: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {kind: {"schema": {"type": "string", "format": "binary"}} for kind in (wire.NPY, wire.SAFETENSORS)}
    }
}


FIELDS = {
    name
    for kind in vars(wire).values()
    if isinstance(kind, type) and issubclass(kind, wire.RequestBody)
    for name in kind.model_fields
}


@dataclass
class Phase:
    """Where the server is in its life."""

    is_ready: bool = False
    is_draining: bool = False


class JSONRoute(APIRoute):
    """A route whose body is read by orjson, which knows no depth without end and no half characters."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's own handler over our request."""
        handle = super().get_route_handler()

        async def read(request: Request) -> Response:
            return await handle(JSONRequest(request.scope, request.receive))

        return read


class JSONRequest(Request):
    """A request whose body orjson reads."""

    async def json(self) -> Any:
        """The body's value; `orjson.JSONDecodeError` is one of json's, which FastAPI knows."""
        return orjson.loads(await self.body())


def create_app(
    model: ELMo,
    settings: Settings,
    *,
    name: str = "elmokit",
    tasks: Mapping[str, Task] | None = None,
    index: WordIndex | None = None,
) -> FastAPI:
    """The application; `app.state.phase` says and is told where the server is in its life."""
    metrics, phase = Metrics(), Phase()
    engine = Engine(model, settings, tasks=tasks, index=index, report=metrics.batch)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        engine.batcher.start()
        await run_in_threadpool(engine.warm_up)
        phase.is_ready = True
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
        responses=ERRORS,
    )
    app.state.phase, app.state.engine = phase, engine
    app.router.route_class = JSONRoute
    _handle_errors(app)
    reader = _Reader(engine, settings, metrics)
    _add_vectors(app, reader, name)
    _add_language_model(app, reader)
    _add_status(app, engine, settings, metrics, phase, name)
    page_paths = _add_page(app)
    app.add_middleware(
        Guard,
        settings=settings,
        metrics=metrics,
        open_paths=frozenset(page_paths),
        known_paths=frozenset(route.path for route in app.routes if isinstance(route, APIRoute)),
        check_room=partial(_refusing, engine.batcher.check_room),
        is_draining=lambda: phase.is_draining,
    )
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type"],
            expose_headers=[wire.LENGTHS_HEADER, "retry-after", "x-request-id"],
        )
    return app


# ---- errors ----------------------------------------------------------------------------------------------------------


def _handle_errors(app: FastAPI) -> None:
    """All errors have one shape."""

    def respond(refusal: RefusalError) -> Response:
        return Response(refusal.body, refusal.status, refusal.headers, wire.JSON)

    async def refused(_: Request, error: Exception) -> Response:
        assert isinstance(error, RefusalError)
        return respond(error)

    async def invalid(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        problems = []
        for problem in error.errors()[:3]:
            # of a union pydantic names the type that it tried, too
            parts = [str(part) for part in problem["loc"][1:] if isinstance(part, int) or part in FIELDS]
            place = ".".join(parts)
            problems.append(f"{place}: {problem['msg']}" if place else str(problem["msg"]))
        return respond(RefusalError(422, "Validation", "; ".join(problems)))

    async def http(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        kind = STATUS_NAMES.get(error.status_code, "Validation")
        return respond(RefusalError(error.status_code, kind, str(error.detail), dict(error.headers or {})))

    async def bad_value(_: Request, error: Exception) -> Response:
        return respond(RefusalError(422, "Validation", str(error)))

    app.add_exception_handler(RefusalError, refused)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(ValueError, bad_value)


def _refusing(check: Callable[[], None]) -> None:
    try:
        check()
    except OverloadedError as error:
        raise RefusalError(429, "Overloaded", str(error), {"retry-after": str(error.retry_after)}) from None


# ---- what requests share ---------------------------------------------------------------------------------------------


class _Reader:
    """From what a request holds to sentences that were let in, and their results before the deadline."""

    def __init__(self, engine: Engine, settings: Settings, metrics: Metrics) -> None:
        self.engine, self.settings, self.metrics = engine, settings, metrics

    async def sentences(
        self, request: Request, inputs: wire.Inputs, cut: wire.Truncation | None = None, *, name: str = "inputs"
    ) -> list[list[str]]:
        """Tokenize, hold against the limits, and let in or refuse."""
        settings = self.settings
        texts = [inputs] if isinstance(inputs, str) else inputs
        self.check_count(texts, name)
        if sum(map(len, texts)) > INLINE_CHARACTERS:
            sentences = await run_in_threadpool(_tokens_of, texts)
        else:
            sentences = _tokens_of(texts)
        longest = settings.max_sentence_tokens
        if cut is not None and cut.truncate:
            left = cut.truncation_direction.lower() == "left"
            sentences = [tokens[-longest:] if left else tokens[:longest] for tokens in sentences]
        for place, tokens in enumerate(sentences):
            if len(tokens) > longest:
                raise RefusalError(
                    413,
                    "Validation",
                    f"{name}[{place}] has {len(tokens):,} tokens, at most {longest:,} are read: split it into "
                    "sentences" + ("" if cut is None else ", or send truncate: true"),
                )
        self.admit(request, [len(tokens) for tokens in sentences])
        return sentences

    def admit(self, request: Request, lengths: Sequence[int]) -> None:
        """Let a request of so many tokens in until it is answered, or refuse it."""
        count = sum(lengths)
        if count > self.settings.max_request_tokens:
            raise RefusalError(
                413,
                "Validation",
                f"the request has {count:,} tokens, at most {self.settings.max_request_tokens:,} may come at a time",
            )
        _refusing(partial(self.engine.batcher.admit, count))
        self.metrics.queue_tokens.inc(count)
        request.scope["elmokit.releases"].append(partial(self._release, count))
        request.scope["elmokit.counts"].update(sentences=len(lengths), tokens=count)

    def check_count(self, texts: Sequence[Any], name: str) -> None:
        """There is something, and not too much of it."""
        if not texts:
            raise RefusalError(400, "Empty", f"{name} is empty: send at least one sentence")
        if len(texts) > self.settings.max_sentences:
            most = self.settings.max_sentences
            message = f"{name} holds {len(texts):,} sentences, at most {most:,} may come at a time"
            raise RefusalError(413, "Validation", message)

    def _release(self, count: int) -> None:
        self.engine.batcher.release(count)
        self.metrics.queue_tokens.dec(count)

    async def before_deadline(self, work: Coroutine[Any, Any, Any]) -> Any:
        """What the work gives, or 504."""
        try:
            async with asyncio.timeout(self.settings.deadline):
                return await work
        except TimeoutError:
            seconds = f"{self.settings.deadline:g} s"
            raise RefusalError(504, "Timeout", f"no result within {seconds}: send less, or come back later") from None

    async def vectors(self, sentences: Sequence[list[str]], reduce: Reduce) -> list[Vectors]:
        """Vectors before the deadline."""
        found: list[Vectors] = await self.before_deadline(self.engine.vectors(sentences, reduce))
        return found

    def check_language_model(self) -> None:
        """There are probabilities to ask for, or 424."""
        if not self.engine.is_language_model:
            raise RefusalError(424, "Backend", "this model gives vectors but no probabilities: it has no output layer")


def _tokens_of(texts: Sequence[str | list[str]]) -> list[list[str]]:
    return [tokenize(text) if isinstance(text, str) else text for text in texts]


# ---- vectors ---------------------------------------------------------------------------------------------------------


def _add_vectors(app: FastAPI, reader: _Reader, name: str) -> None:
    model = reader.engine.model
    last, vector_dim = model.config.num_layers, 2 * model.config.projection_dim

    @app.post("/embed", response_model=list[list[float]], responses=BINARY, tags=["vectors"])
    async def embed(request: Request, body: wire.EmbedRequest) -> Response:
        """One vector for each text: the mean of its token vectors, of length one unless `normalize` is false."""
        reduce = sentence_vector(one_layer(body.layers, last), normalize=body.normalize)
        sentences = await reader.sentences(request, body.inputs, body)
        return await wire.matrix_response(request, await reader.vectors(sentences, reduce))

    @app.post("/embed_all", response_model=list[list[list[float]]], responses=BINARY, tags=["vectors"])
    async def embed_all(request: Request, body: wire.EmbedAllRequest) -> Response:
        """One vector for each token of each text."""
        reduce = one_layer(body.layers, last)
        sentences = await reader.sentences(request, body.inputs, body)
        return await wire.ragged_response(request, await reader.vectors(sentences, reduce))

    @app.post("/layers", response_model=wire.LayersResponse, responses=BINARY, tags=["vectors"])
    async def layers(request: Request, body: wire.LayersRequest) -> Response:
        """Any layers of every token, or with `weights` their mix: gamma * sum_j softmax(weights)_j * layer_j."""
        numbers = list(range(last + 1)) if body.layers == "all" else body.layers
        reduce = chosen_layers(numbers, last)
        if body.weights is not None:
            if len(body.weights) != len(numbers):
                raise ValueError(f"there are {len(numbers)} layers and {len(body.weights)} weights: send one for each")
            reduce = mixed(reduce, body.weights, body.gamma)
        elif body.gamma != 1.0:
            raise ValueError("gamma belongs to a mix: send weights too, [0, 0, …] for the even mix")
        sentences = await reader.sentences(request, body.inputs, body)
        before = b'{"tokens":' + orjson.dumps(sentences) + b',"layers":' + orjson.dumps(numbers) + b',"vectors":['
        vectors = await reader.vectors(sentences, reduce)
        return await wire.ragged_response(request, vectors, before=before, after=b"]}")

    @app.post("/similarity", response_model=list[float], tags=["vectors"])
    async def similarity(request: Request, body: wire.SimilarityRequest) -> Response:
        """The cosine of one sentence with each of the others."""
        if not body.inputs.sentences:
            raise RefusalError(400, "Empty", "inputs.sentences is empty: send at least one sentence")
        texts: wire.Inputs = [body.inputs.source_sentence, *body.inputs.sentences]
        sentences = await reader.sentences(request, texts, body.parameters or wire.Truncation(), name="sentences")
        reduce = sentence_vector(one_layer("average", last), normalize=True)
        source, *others = await reader.vectors(sentences, reduce)
        return wire.json_response(np.stack(others) @ source)

    @app.post("/v1/embeddings", response_model=wire.OpenAIResponse, tags=["vectors"])
    async def openai_embeddings(request: Request, body: wire.OpenAIRequest) -> Response:
        """As OpenAI has it: vectors of length one, as numbers or as base64 of little-endian float32."""
        if body.dimensions not in (None, vector_dim):
            raise ValueError(f"dimensions is {body.dimensions}, the vectors of this model have {vector_dim}")
        texts: wire.Inputs = body.input if isinstance(body.input, str) else list(body.input)
        sentences = await reader.sentences(request, texts, name="input")
        vectors = await reader.vectors(sentences, sentence_vector(one_layer("average", last), normalize=True))
        return await wire.openai_response(
            vectors,
            as_base64=body.encoding_format == "base64",
            model=name,
            num_tokens=sum(map(len, sentences)),
        )

    @app.post("/tokenize", response_model=list[list[wire.SimpleToken]], tags=["vectors"])
    async def tokens(request: Request, body: wire.TokenizeRequest) -> Response:
        """The tokens of each text and where they stand."""
        texts: wire.Inputs = body.inputs if isinstance(body.inputs, str) else list(body.inputs)
        await reader.sentences(request, texts)  # the limits
        given = [body.inputs] if isinstance(body.inputs, str) else body.inputs
        found = await run_in_threadpool(_simple_tokens, given, model, body.add_special_tokens)
        return wire.json_response(found)


def _simple_tokens(texts: Sequence[str], model: ELMo, add_special_tokens: bool) -> list[list[dict[str, Any]]]:
    def simple(text: str, start: int | None, stop: int | None) -> dict[str, Any]:
        number = None if model.vocabulary is None else model.vocabulary.id(text)
        return {"id": number, "text": text, "special": start is None, "start": start, "stop": stop}

    results = []
    for text in texts:
        tokens = [simple(token.text, token.start, token.end) for token in tokenize_with_offsets(text)]
        if add_special_tokens:
            tokens = [simple(BOS_TOKEN, None, None), *tokens, simple(EOS_TOKEN, None, None)]
        results.append(tokens)
    return results


# ---- the language model and the tasks --------------------------------------------------------------------------------


def _add_language_model(app: FastAPI, reader: _Reader) -> None:
    @app.post("/log_probs", response_model=list[wire.SentenceLogProbs], tags=["language model"])
    async def log_probs(request: Request, body: wire.LogProbsRequest) -> Response:
        """The log-probability of every token, given the tokens before it and given those after it."""
        reader.check_language_model()
        sentences = await reader.sentences(request, body.inputs, body)
        scored = await reader.before_deadline(reader.engine.log_probs(sentences))
        return await run_in_threadpool(wire.json_response, scored)

    @app.post("/substitutes", response_model=list[wire.SubstituteWord], tags=["language model"])
    async def substitutes(request: Request, body: wire.SubstitutesRequest) -> Response:
        """The likeliest words in place of the one in brackets, or of the token at `position`."""
        reader.check_language_model()
        tokens, position = _blank(body)
        await reader.sentences(request, [tokens])
        found = await reader.before_deadline(reader.engine.substitutes(Blank(tokens, position, body.k)))
        return wire.json_response(found)

    @app.post("/neighbours", response_model=list[wire.NeighbourWord], tags=["index"])
    async def neighbours(request: Request, body: wire.NeighboursRequest) -> Response:
        """The words of the indexed corpus nearest to the one in brackets, in their sentences; one word a sentence."""
        if reader.engine.index is None:
            raise RefusalError(424, "Backend", "this server has no index: start it with --index FOLDER")
        (tokens,) = await reader.sentences(request, [marked_word(body.inputs)[0]])
        found = await reader.before_deadline(reader.engine.neighbours(Lookup(body.inputs, body.k), len(tokens)))
        return wire.json_response(found)

    @app.post("/tasks/{name}", response_model=list[Any], tags=["tasks"])
    async def task(request: Request, name: str, body: wire.TaskRequest) -> Response:
        """What a trained task says of each text, list of tokens, or object of the fields that it reads."""
        if name not in reader.engine.tasks:
            there = ", ".join(reader.engine.tasks) or "none"
            raise RefusalError(404, "NotFound", f"there is no task {name!r}; there are: {there}")
        texts = body.inputs if isinstance(body.inputs, list) else [body.inputs]
        reader.check_count(texts, "inputs")
        lengths = await run_in_threadpool(lambda: list(map(_num_tokens, texts)))
        reader.admit(request, lengths)
        found = await reader.before_deadline(reader.engine.predict(name, texts, lengths))
        return await run_in_threadpool(wire.json_response, found)


def _num_tokens(value: Any) -> int:
    """Tokens of all strings in a value."""
    if isinstance(value, str):
        return len(tokenize(value))
    if isinstance(value, dict):
        value = list(value.values())
    return sum(map(_num_tokens, value)) if isinstance(value, list) else 0


def _blank(body: wire.SubstitutesRequest) -> tuple[list[str], int]:
    """Tokens and the position of the one to replace."""
    if isinstance(body.inputs, list):
        if body.position is None or body.position >= len(body.inputs):
            raise ValueError(f"position is {body.position}, there are {len(body.inputs)} tokens: name one, from 0")
        return body.inputs, body.position
    if body.position is not None:
        raise ValueError("position belongs to a list of tokens; in a text mark the word: He sat on the [bank] .")
    return marked_word(body.inputs, allow_blank=True)


# ---- the server itself -----------------------------------------------------------------------------------------------


def _add_status(app: FastAPI, engine: Engine, settings: Settings, metrics: Metrics, phase: Phase, name: str) -> None:
    model = engine.model
    facts = wire.Info(
        model_id=name,
        model_sha=None,
        model_dtype="int8" if model.bilm.is_int8 else str(next(model.bilm.parameters()).dtype).removeprefix("torch."),
        model_type=wire.ModelType(embedding=wire.Embedding(pooling="mean")),
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
        num_layers=model.config.num_layers + 1,
        vector_dim=2 * model.config.projection_dim,
        language_model=engine.is_language_model,
        vocabulary_size=None if model.vocabulary is None else len(model.vocabulary),
        tasks=list(engine.tasks),
        task_kinds={task_name: _kind(task) for task_name, task in engine.tasks.items()},
        index_words=None if engine.index is None else len(engine.index),
    )
    unready: dict[int | str, dict[str, Any]] = {503: {"model": wire.ErrorBody, "description": "Not now."}}

    @app.get("/info", tags=["server"])
    async def info() -> wire.Info:
        """The model and the limits."""
        return facts

    @app.get("/health", responses=unready, tags=["server"])
    async def health() -> wire.Status:
        """200 while the server works at all."""
        if not engine.batcher.is_alive:
            raise RefusalError(503, "Unhealthy", "the thread that runs the model has ended")
        return wire.Status(status="healthy")

    @app.get("/ready", responses=unready, tags=["server"])
    async def ready() -> wire.Status:
        """200 when requests may come: the model is loaded, and the server is not about to end."""
        if not phase.is_ready or phase.is_draining:
            raise RefusalError(
                503, "Unhealthy", "the server is ending" if phase.is_draining else "the model is loading"
            )
        return wire.Status(status="ready")

    @app.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}}, tags=["server"])
    async def prometheus() -> Response:
        """What Prometheus reads."""
        text = await run_in_threadpool(metrics.text)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/docs", response_class=HTMLResponse, include_in_schema=False)
    async def docs() -> Response:
        return HTMLResponse(reference_page(app.openapi()), headers={"content-security-policy": PAGE_POLICY})


def _kind(task: Task) -> str | None:
    """ner, sentiment, … of a `TrainedTask`; any object that predicts may be served, so there may be none."""
    kind = getattr(getattr(task, "config", None), "task", None)
    return kind if isinstance(kind, str) else None


def _add_page(app: FastAPI) -> list[str]:
    """Serve each file of the explorer page under its own path, index.html at /; the paths."""
    files = {f"/{path.relative_to(PAGE).as_posix()}": path for path in PAGE.rglob("*") if path.is_file()}
    if "/index.html" in files:
        files["/"] = files.pop("/index.html")

    def serving(file: Path) -> Callable[[], Coroutine[Any, Any, Response]]:
        async def serve() -> Response:
            kind = PAGE_TYPES.get(file.suffix)
            return FileResponse(
                file, media_type=kind, headers={"content-security-policy": PAGE_POLICY, "cache-control": "no-cache"}
            )

        return serve

    for path, file in files.items():
        app.add_api_route(path, serving(file), response_class=FileResponse, include_in_schema=False)
    return list(files)
