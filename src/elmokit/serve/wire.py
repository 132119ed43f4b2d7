"""What requests and answers look like on the wire.

Enters: JSON bodies, Accept headers, arrays.  Leaves: checked requests; answers as JSON, .npy or safetensors; and one
shape of error, `{"error": …, "error_type": …}`, as text-embeddings-inference has it.
"""

from __future__ import annotations

import base64
import io
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import orjson
import safetensors.numpy
from fastapi import Request
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool

from elmokit.serve.engine import Vectors

JSON = "application/json"
NPY = "application/x-npy"
SAFETENSORS = "application/x-safetensors"
LENGTHS_HEADER = "x-sentence-lengths"
LONGEST_MESSAGE = 500
NUMBERS_AT_ONCE = 32768  # that one call writes as JSON: about a millisecond in which nothing else runs


# ---- errors ----------------------------------------------------------------------------------------------------------


class RefusalError(Exception):
    """An answer that is no result."""

    def __init__(self, status: int, error_type: str, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.error_type, self.headers = status, error_type, headers or {}

    @property
    def body(self) -> bytes:
        """The one shape of errors."""
        message = str(self)
        if len(message) > LONGEST_MESSAGE:
            message = message[:LONGEST_MESSAGE] + " …"
        # a message may quote what JSON cannot say: half a surrogate pair, say, out of a path
        message = message.encode("utf-8", "replace").decode()
        return orjson.dumps({"error": message, "error_type": self.error_type})


class ErrorBody(BaseModel):
    """Every answer with a status of 400 or more."""

    error: str
    error_type: str


# ---- requests --------------------------------------------------------------------------------------------------------


class RequestBody(BaseModel):
    """Types are as they are written, and a key that nobody knows is an error: it is misspelled, most likely."""

    model_config = ConfigDict(extra="forbid", strict=True)


Inputs = str | list[str | list[str]]
Layer = Literal["average", "top"] | Annotated[int, Field(ge=0)]
Finite = Annotated[float, Field(allow_inf_nan=False, ge=-1e6, le=1e6)]


class Truncation(RequestBody):
    """What happens to a sentence that is too long."""

    truncate: bool | None = False
    truncation_direction: Literal["left", "right", "Left", "Right"] = "right"
    prompt_name: None = None
    """As text-embeddings-inference has it; there are no prompts here."""


class EmbedRequest(Truncation):
    """One text, texts, or lists of tokens."""

    inputs: Inputs
    normalize: bool = True
    layers: Layer = "average"


class EmbedAllRequest(Truncation):
    """One text, texts, or lists of tokens."""

    inputs: Inputs
    layers: Layer = "average"


class SimilarityInput(RequestBody):
    """One sentence, and those that it is compared with."""

    source_sentence: str
    sentences: list[str]


class SimilarityRequest(RequestBody):
    """Cosines of sentence vectors."""

    inputs: SimilarityInput
    parameters: Truncation | None = None


class TokenizeRequest(RequestBody):
    """One text or texts."""

    inputs: str | list[str]
    add_special_tokens: bool = True
    prompt_name: None = None


class OpenAIRequest(RequestBody):
    """As the embeddings endpoint of OpenAI."""

    input: str | list[str]
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    user: str | None = None


class LayersRequest(Truncation):
    """Some layers of every token; with `weights`, one for each of them, their mix."""

    inputs: Inputs
    layers: Literal["all"] | Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1, max_length=64)] = "all"
    weights: Annotated[list[Finite], Field(max_length=64)] | None = None
    gamma: Finite = 1.0


class LogProbsRequest(Truncation):
    """One text, texts, or lists of tokens."""

    inputs: Inputs


class SubstitutesRequest(RequestBody):
    """A text with one word in brackets, `He sat on the [bank] .`; or tokens and the position of one of them."""

    inputs: str | list[str]
    position: Annotated[int, Field(ge=0)] | None = None
    k: Annotated[int, Field(ge=1, le=1000)] = 10


class NeighboursRequest(RequestBody):
    """A text with one word in brackets, `He sat by the [bank] .`"""

    inputs: str
    k: Annotated[int, Field(ge=1, le=100)] = 10


class TaskRequest(RequestBody):
    """What a task reads, or a list of it: texts, lists of tokens, objects such as `{"premise": …, "hypothesis": …}`."""

    inputs: str | dict[str, Any] | list[str | list[str] | dict[str, Any]]


# ---- answers ---------------------------------------------------------------------------------------------------------


class SimpleToken(BaseModel):
    """A token and where it stands, in characters; `id` is its place in the vocabulary, where the model has one."""

    id: int | None
    text: str
    special: bool
    start: int | None
    stop: int | None


class OpenAIEmbedding(BaseModel):
    """One vector."""

    object: Literal["embedding"]
    embedding: list[float] | str
    index: int


class OpenAIUsage(BaseModel):
    """Tokens, counted as this model reads them."""

    prompt_tokens: int
    total_tokens: int


class OpenAIResponse(BaseModel):
    """As the embeddings endpoint of OpenAI."""

    object: Literal["list"]
    data: list[OpenAIEmbedding]
    model: str
    usage: OpenAIUsage


class LayersResponse(BaseModel):
    """`vectors[i]` is (layers, tokens, width), or with weights (tokens, width)."""

    tokens: list[list[str]]
    layers: list[int]
    vectors: list[Any]


class SentenceLogProbs(BaseModel):
    """Natural logarithms, for each token given those before it and given those after it."""

    tokens: list[str]
    forward: list[float]
    backward: list[float]
    forward_end: float
    backward_end: float


class SubstituteWord(BaseModel):
    """A word that fits."""

    word: str
    log_prob: float


class NeighbourWord(BaseModel):
    """A word of the indexed corpus, at `index` of the tokens of its sentence, and how near it is."""

    tokens: list[str]
    index: int
    word: str
    cosine: float
    sentence_number: int


class Embedding(BaseModel):
    """How a sentence's vector is made."""

    pooling: Literal["mean"]


class ModelType(BaseModel):
    """As text-embeddings-inference has it."""

    embedding: Embedding


class Info(BaseModel):
    """The model and the limits: the names of text-embeddings-inference, then ours."""

    model_id: str
    model_sha: str | None
    model_dtype: str
    model_type: ModelType
    max_concurrent_requests: int
    max_input_length: int
    max_batch_tokens: int
    max_batch_requests: int | None
    max_client_batch_size: int
    max_request_tokens: int
    max_body_bytes: int
    auto_truncate: bool
    tokenization_workers: int
    version: str
    num_layers: int
    vector_dim: int
    language_model: bool
    vocabulary_size: int | None
    tasks: list[str]
    task_kinds: dict[str, str | None]
    """What each task is, whatever it is called here: ner, sentiment, …"""
    index_words: int | None
    """Of the indexed corpus, where there is one."""


class Status(BaseModel):
    """Of the server."""

    status: str


def wanted_type(accept: str | None) -> str:
    """What an Accept header likes best of what there is; JSON where it says nothing of these."""
    best, liking = JSON, 0.0
    for part in (accept or "").split(","):
        name, *parameters = (piece.strip().lower() for piece in part.split(";"))
        quality = 1.0
        for parameter in parameters:
            if parameter.startswith("q="):
                try:
                    quality = float(parameter[2:])
                except ValueError:
                    quality = 0.0
        if name in (JSON, NPY, SAFETENSORS) and quality > liking:
            best, liking = name, quality
    return best


def json_response(content: Any) -> Response:
    """Small things as JSON."""
    return Response(orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY), media_type=JSON)


async def matrix_response(request: Request, vectors: Sequence[Vectors]) -> Response:
    """Vectors of one width (n, 2P): a JSON list of lists; one array; or one tensor called `embeddings`."""
    kind = wanted_type(request.headers.get("accept"))
    if kind == JSON:
        return await parts_response(b"[", map(_json_pieces, vectors), b"]", _size(vectors))
    matrix = np.stack(vectors)
    if kind == NPY:
        return Response(_npy(matrix), media_type=NPY)
    return Response(safetensors.numpy.save({"embeddings": matrix}), media_type=SAFETENSORS)


async def ragged_response(
    request: Request, arrays: Sequence[Vectors], *, before: bytes = b"[", after: bytes = b"]"
) -> Response:
    """One array (…, T, 2P) for each sentence: nested JSON lists between `before` and `after`; tensors `0`, `1`, …;
    or as .npy one array (…, all tokens, 2P) and the number of tokens of each sentence in a header.
    """
    kind = wanted_type(request.headers.get("accept"))
    if kind == JSON:
        return await parts_response(before, map(_json_pieces, arrays), after, _size(arrays))
    if kind == NPY:
        lengths = ",".join(str(array.shape[-2]) for array in arrays)
        content = await run_in_threadpool(lambda: _npy(np.concatenate(arrays, axis=-2)))
        return Response(content, media_type=NPY, headers={LENGTHS_HEADER: lengths})
    named = {str(number): np.ascontiguousarray(array) for number, array in enumerate(arrays)}
    return Response(await run_in_threadpool(safetensors.numpy.save, named), media_type=SAFETENSORS)


async def openai_response(vectors: Sequence[Vectors], *, as_base64: bool, model: str, num_tokens: int) -> Response:
    """Vectors as OpenAI sends them."""

    def item(place: int, vector: Vectors) -> Iterator[tuple[bytes, int]]:
        value = base64.b64encode(vector.astype("<f4").tobytes()).decode() if as_base64 else vector
        content = {"object": "embedding", "index": place, "embedding": value}
        yield orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY), vector.size

    rest = orjson.dumps({"model": model, "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens}})
    items = (item(place, vector) for place, vector in enumerate(vectors))
    return await parts_response(b'{"object":"list","data":[', items, b"]," + rest[1:], _size(vectors))


async def parts_response(
    before: bytes, items: Iterable[Iterator[tuple[bytes, int]]], after: bytes, size: int
) -> Response:
    """A JSON list of items, each in pieces that come with the number of numbers in them; `size` numbers in all.

    Small answers are written at once; large ones part by part in another thread, so that nobody waits for them, and
    that memory holds a part alone.
    """
    parts = _parts(before, items, after)
    if size <= NUMBERS_AT_ONCE:
        return Response(b"".join(parts), media_type=JSON)

    async def stream() -> AsyncIterator[bytes]:
        while (part := await run_in_threadpool(next, parts, None)) is not None:
            yield part

    return StreamingResponse(stream(), media_type=JSON)


def _parts(before: bytes, items: Iterable[Iterator[tuple[bytes, int]]], after: bytes) -> Iterator[bytes]:
    part, numbers = bytearray(before), 0
    for place, pieces in enumerate(items):
        if place:
            part += b","
        for piece, size in pieces:
            part += piece
            numbers += size
            if numbers >= NUMBERS_AT_ONCE:
                yield bytes(part)
                part, numbers = bytearray(), 0
    yield bytes(part + after)


def _json_pieces(array: Vectors) -> Iterator[tuple[bytes, int]]:
    """An array as JSON in pieces of about NUMBERS_AT_ONCE numbers, and how many numbers each holds."""
    if array.ndim == 1 or array.size <= NUMBERS_AT_ONCE:
        yield orjson.dumps(np.ascontiguousarray(array), option=orjson.OPT_SERIALIZE_NUMPY), array.size
        return
    yield b"[", 0
    for place, part in enumerate(array):
        if place:
            yield b",", 0
        yield from _json_pieces(part)
    yield b"]", 0


def _size(arrays: Sequence[Vectors]) -> int:
    return sum(array.size for array in arrays)


def _npy(array: Vectors) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()
