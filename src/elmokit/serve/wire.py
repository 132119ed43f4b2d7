"""Encodings of responses: JSON, .npy and safetensors.

Input: an Accept header and arrays.  Output: responses; a large JSON response is written in parts.
"""

from __future__ import annotations

import base64
import io
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import orjson
import safetensors.numpy
from fastapi import Request
from fastapi.responses import Response, StreamingResponse
from starlette.concurrency import run_in_threadpool

from elmokit.serve.engine import Vectors

JSON = "application/json"
NPY = "application/x-npy"
SAFETENSORS = "application/x-safetensors"
BINARY_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"content": {kind: {"schema": {"type": "string", "format": "binary"}} for kind in (NPY, SAFETENSORS)}}
}
LENGTHS_HEADER = "x-sentence-lengths"
NUMBERS_PER_PART = 32768  # numbers that one call writes as JSON: it blocks the event loop for about a millisecond


def wanted_type(accept: str | None) -> str:
    """Choose the encoding of a response.

    Args:
        accept: Value of the Accept header, with qualities.

    Returns:
        The content type with the highest quality among JSON, .npy and safetensors; JSON if none of them is named.
    """
    best, best_quality = JSON, 0.0
    for part in (accept or "").split(","):
        name, *parameters = (piece.strip().lower() for piece in part.split(";"))
        quality = 1.0
        for parameter in parameters:
            if parameter.startswith("q="):
                try:
                    quality = float(parameter[2:])
                except ValueError:
                    quality = 0.0
        if name in (JSON, NPY, SAFETENSORS) and quality > best_quality:
            best, best_quality = name, quality
    return best


def json_response(content: Any) -> Response:
    """Encode a small value as JSON; NumPy arrays and dataclasses are allowed."""
    return Response(orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY), media_type=JSON)


async def matrix_response(request: Request, vectors: Sequence[Vectors]) -> Response:
    """Encode one vector per text.

    Args:
        request: The request, whose Accept header chooses the encoding.
        vectors: n vectors (2P,).

    Returns:
        As JSON a list of lists, as .npy one array (n, 2P), as safetensors the tensor `embeddings` (n, 2P).
    """
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
    """Encode one array per sentence; sentences may have different lengths.

    Args:
        request: The request, whose Accept header chooses the encoding.
        arrays: An array (..., T, 2P) for each sentence.
        before: JSON before the list of arrays, its opening bracket included.
        after: JSON after the list of arrays, its closing bracket included.

    Returns:
        As JSON nested lists, as safetensors the tensors `0`, `1`, …, as .npy one array (..., tokens of all sentences,
        2P) with the number of tokens of each sentence in the header `x-sentence-lengths`.
    """
    kind = wanted_type(request.headers.get("accept"))
    if kind == JSON:
        return await parts_response(before, map(_json_pieces, arrays), after, _size(arrays))
    if kind == NPY:
        lengths = ",".join(str(array.shape[-2]) for array in arrays)
        content = await run_in_threadpool(lambda: _npy(np.concatenate(arrays, axis=-2)))
        return Response(content, media_type=NPY, headers={LENGTHS_HEADER: lengths})
    tensors = {str(number): np.ascontiguousarray(array) for number, array in enumerate(arrays)}
    return Response(await run_in_threadpool(safetensors.numpy.save, tensors), media_type=SAFETENSORS)


async def openai_response(vectors: Sequence[Vectors], *, as_base64: bool, model: str, num_tokens: int) -> Response:
    """Encode vectors in the format of OpenAI's embeddings endpoint.

    Args:
        vectors: n vectors (2P,).
        as_base64: Encode each vector as base64 of little-endian float32 instead of a list of numbers.
        model: Name of the model in the response.
        num_tokens: Number of tokens in the response's usage.
    """

    def item(index: int, vector: Vectors) -> Iterator[tuple[bytes, int]]:
        value = base64.b64encode(vector.astype("<f4").tobytes()).decode() if as_base64 else vector
        content = {"object": "embedding", "index": index, "embedding": value}
        yield orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY), vector.size

    rest = orjson.dumps({"model": model, "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens}})
    items = (item(index, vector) for index, vector in enumerate(vectors))
    return await parts_response(b'{"object":"list","data":[', items, b"]," + rest[1:], _size(vectors))


async def parts_response(
    before: bytes, items: Iterable[Iterator[tuple[bytes, int]]], after: bytes, size: int
) -> Response:
    """Write a JSON list.

    A small list is written at once. A large list is streamed, and its parts are encoded in another thread: other
    requests do not wait for it, and only one part is in memory at a time.

    Args:
        before: JSON before the items, the opening bracket included.
        items: Each item as pieces of JSON, each piece with the number of numbers in it.
        after: JSON after the items, the closing bracket included.
        size: Number of numbers in all items.
    """
    parts = _parts(before, items, after)
    if size <= NUMBERS_PER_PART:
        return Response(b"".join(parts), media_type=JSON)

    async def stream() -> AsyncIterator[bytes]:
        while (part := await run_in_threadpool(next, parts, None)) is not None:
            yield part

    return StreamingResponse(stream(), media_type=JSON)


def _parts(before: bytes, items: Iterable[Iterator[tuple[bytes, int]]], after: bytes) -> Iterator[bytes]:
    """Join pieces into parts of about NUMBERS_PER_PART numbers."""
    part, numbers = bytearray(before), 0
    for index, pieces in enumerate(items):
        if index:
            part += b","
        for piece, size in pieces:
            part += piece
            numbers += size
            if numbers >= NUMBERS_PER_PART:
                yield bytes(part)
                part, numbers = bytearray(), 0
    yield bytes(part + after)


def _json_pieces(array: Vectors) -> Iterator[tuple[bytes, int]]:
    """Encode an array as pieces of JSON, each with the number of numbers in it, at most about NUMBERS_PER_PART."""
    if array.ndim == 1 or array.size <= NUMBERS_PER_PART:
        yield orjson.dumps(np.ascontiguousarray(array), option=orjson.OPT_SERIALIZE_NUMPY), array.size
        return
    yield b"[", 0
    for index, part in enumerate(array):
        if index:
            yield b",", 0
        yield from _json_pieces(part)
    yield b"]", 0


def _size(arrays: Sequence[Vectors]) -> int:
    return sum(array.size for array in arrays)


def _npy(array: Vectors) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()
