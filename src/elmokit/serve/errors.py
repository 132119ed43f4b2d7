"""Errors of the server, all in one format: `{"error": …, "error_type": …}`, as in text-embeddings-inference.

Under /v1, the paths of OpenAI, `error` is an object with a `message`: OpenAI's clients show no other one.

Input: exceptions of endpoints, of FastAPI and of the batcher.  Output: responses with a status of 400 or more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from elmokit.serve import schemas
from elmokit.serve.batching import OverloadedError
from elmokit.serve.wire import JSON

T = TypeVar("T")

MAX_MESSAGE_LENGTH = 500
MAX_FIELD_LENGTH = 50
TOKEN_IDS = (
    "token ids are numbers of OpenAI's tokenizer, which this model does not have: send texts "
    "(in LangChain, OpenAIEmbeddings(check_embedding_ctx_length=False))"
)
OPENAI_PATHS = "/v1/"
STATUS_NAMES = {404: "NotFound", 405: "MethodNotAllowed"}
ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"description": description, "model": schemas.ErrorBody}
    for status, description in {
        400: "The input is empty, or the request is not valid HTTP.",
        401: "The API key is missing or wrong.",
        404: "The task or the model does not exist.",
        408: "The body was sent too slowly.",
        413: "The body, a sentence or the request is too large.",
        415: "The content type is not application/json, or the body is compressed.",
        422: "The request does not match the schema of this endpoint.",
        424: "The model has no output layer, or the server has no index.",
        429: "The queue is full. Retry-After gives the seconds to wait.",
        500: "The server failed.",
        503: "The request would not be answered in time. Retry-After gives the seconds to wait.",
        504: "The deadline passed.",
    }.items()
}
OPENAI_ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {**response, "model": schemas.OpenAIErrorBody} for status, response in ERROR_RESPONSES.items()
}
FIELDS = {
    name
    for schema in vars(schemas).values()
    if isinstance(schema, type) and issubclass(schema, schemas.RequestBody)
    for name in schema.model_fields
}


class RefusalError(Exception):
    """A request that is answered with an error.

    Args:
        status: HTTP status, 400 or more.
        error_type: Value of `error_type` in the body.
        message: Value of `error` in the body: what is wrong and what to do.
        headers: Additional headers of the response.
    """

    def __init__(self, status: int, error_type: str, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.error_type, self.headers = status, error_type, headers or {}

    @property
    def body(self) -> bytes:
        """The response body as JSON. A long message is cut."""
        return self.body_for("/")

    def body_for(self, path: str) -> bytes:
        """The response body as JSON, in the format of the clients of a path. A long message is cut.

        Args:
            path: Path of the request.
        """
        message = str(self)
        if len(message) > MAX_MESSAGE_LENGTH:
            message = message[:MAX_MESSAGE_LENGTH] + " …"
        # a message may quote text that UTF-8 cannot encode, such as a lone surrogate from a path
        message = message.encode("utf-8", "replace").decode()
        error: Any = message
        if path.startswith(OPENAI_PATHS):
            error = {"message": message, "type": self.error_type, "param": None, "code": None}
        return orjson.dumps({"error": error, "error_type": self.error_type})


def refuse_overload(check: Callable[[], T]) -> T:
    """Call `check`, which may raise `OverloadedError`.

    Returns:
        What `check` returns.

    Raises:
        RefusalError: 429 or 503 with a Retry-After header, in place of `OverloadedError`: 429 if a limit is reached,
            503 if the request would not be answered in time.
    """
    try:
        return check()
    except OverloadedError as error:
        status = 429 if error.reason == "queue" else 503
        raise RefusalError(status, "Overloaded", str(error), {"retry-after": str(error.retry_after)}) from None


def add_error_handlers(app: FastAPI) -> None:
    """Make the application answer every exception in the one format of errors.

    Args:
        app: The application. `RefusalError`, errors of validation, `HTTPException` and `ValueError` are handled.
    """
    app.add_exception_handler(RefusalError, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(ValueError, _bad_value)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RefusalError)
    return _respond(request, error)


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    problems, has_ids = [], False
    for problem in error.errors()[:3]:
        place = problem["loc"][1:]
        if problem["type"] == "extra_forbidden":
            problems.append(f"{_quoted(place[-1])}: {problem['msg']}: there is no field of this name")
            continue
        if problem["type"] == "json_invalid":
            problems.append(f"the body is not JSON: {problem['ctx']['error']}, at character {place[0]}")
            continue
        # for a union, pydantic also names the type that it tried
        field = ".".join(str(part) for part in place if isinstance(part, int) or part in FIELDS)
        problems.append(f"{field}: {problem['msg']}" if field else str(problem["msg"]))
        has_ids = has_ids or (place[:1] == ("input",) and _is_ids(problem.get("input")))
    if has_ids:
        problems.append(TOKEN_IDS)
    return _respond(request, RefusalError(422, "Validation", "; ".join(problems)))


def _is_ids(value: object) -> bool:
    """Whether a value is a token id, or a list that starts with one."""
    while isinstance(value, list) and value:
        value = value[0]
    return isinstance(value, int) and not isinstance(value, bool)


def _quoted(name: object) -> str:
    """The name of a field that a client sent, cut."""
    text = str(name)
    return text if len(text) <= MAX_FIELD_LENGTH else text[:MAX_FIELD_LENGTH] + "…"


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    error_type = STATUS_NAMES.get(error.status_code, "Validation")
    return _respond(request, RefusalError(error.status_code, error_type, str(error.detail), dict(error.headers or {})))


async def _bad_value(request: Request, error: Exception) -> Response:
    return _respond(request, RefusalError(422, "Validation", str(error)))


def _respond(request: Request, refusal: RefusalError) -> Response:
    return Response(refusal.body_for(request.url.path), refusal.status, refusal.headers, JSON)
