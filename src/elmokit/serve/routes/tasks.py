"""The endpoints of trained tasks and of the index.

Input: texts, token lists or objects for a task; a sentence with one marked word for the index.  Output: predictions;
words of the indexed corpus in their sentences.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from elmokit.serve import schemas, wire
from elmokit.serve.engine import NeighbourQuery
from elmokit.serve.errors import RefusalError
from elmokit.serve.reader import RequestReader, ticket_of
from elmokit.text import Tokenizer, marked_phrase


def add_tasks(app: FastAPI, reader: RequestReader) -> None:
    """Add the endpoints of tasks and of the index.

    Args:
        app: The application.
        reader: Reads requests and waits for results. An unknown task is 404; without an index /neighbours is 424.
    """
    engine = reader.engine
    tokenizer = engine.model.tokenizer

    @app.post("/tasks/{name}", response_model=list[Any], tags=["tasks"])
    async def task(request: Request, name: str, body: schemas.TaskRequest) -> Response:
        """The prediction of a trained task for each text, token list, or object with the fields of the task."""
        if name not in engine.tasks:
            names = ", ".join(engine.tasks) or "none"
            raise RefusalError(404, "NotFound", f"there is no task {name!r}; the tasks of this server: {names}")
        inputs = body.inputs if isinstance(body.inputs, list) else [body.inputs]
        reader.check_count(inputs, "inputs")
        lengths = await run_in_threadpool(lambda: [_num_tokens(value, tokenizer) for value in inputs])
        reader.admit(request, f"task {name}", lengths)
        predictions = await reader.before_deadline(engine.predict(name, inputs, lengths, ticket_of(request)))
        return await run_in_threadpool(wire.json_response, predictions)

    @app.post("/neighbours", response_model=list[schemas.NeighbourWord], tags=["index"])
    async def neighbours(request: Request, body: schemas.NeighboursRequest) -> Response:
        """The words of the indexed corpus nearest to the word or phrase in brackets, at most one per sentence."""
        if engine.index is None:
            raise RefusalError(424, "Backend", "this server has no index: start it with --index FOLDER")
        phrase = marked_phrase(body.inputs, tokenizer)
        (tokens,) = await reader.sentences(request, [phrase.tokens], lane="neighbours")
        query = NeighbourQuery(body.inputs, body.k, len(tokens))
        return wire.json_response(await reader.before_deadline(engine.neighbours(query, ticket_of(request))))


def _num_tokens(value: Any, tokenizer: Tokenizer) -> int:
    """Number of tokens of all strings in a JSON value."""
    if isinstance(value, str):
        return len(tokenizer(value))
    if isinstance(value, dict):
        value = list(value.values())
    return sum(_num_tokens(item, tokenizer) for item in value) if isinstance(value, list) else 0
