"""The endpoints of vectors, and of tokens.

Input: texts or token lists.  Output: vectors of sentences, tokens or layers, as JSON, .npy or safetensors.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from elmokit.inference.views import View, default_layers, view_of
from elmokit.model import ELMo
from elmokit.progress import format_count
from elmokit.serve import schemas, wire
from elmokit.serve.engine import (
    Reduce,
    Vectors,
    chosen_layers,
    chunk_vectors,
    phrase_vector,
    sentence_vector,
    token_vectors,
    weighted_sum,
)
from elmokit.serve.errors import OPENAI_ERROR_RESPONSES, RefusalError
from elmokit.serve.reader import Readers, RequestReader
from elmokit.text import BOS_TOKEN, EOS_TOKEN, find_phrase


def add_vectors(app: FastAPI, readers: Readers) -> None:
    """Add the endpoints of vectors and tokens.

    Args:
        app: The application.
        readers: Read requests and wait for results.
    """

    @app.post("/embed", response_model=list[list[float]], responses=wire.BINARY_RESPONSES, tags=["vectors"])
    async def embed(request: Request, body: schemas.EmbedRequest) -> Response:
        """One vector per text: the mean of its token vectors, of length one unless `normalize` is false."""
        _, reader = readers.choose(body.model)
        model = reader.engine.model
        view = view_of(body.layers, model.num_layers, single=True)
        _check_dimensions(body.dimensions, model.dim)
        sentences = await reader.sentences(request, body.inputs, body)
        normalize = body.normalize is not False
        if body.late_chunking:
            vectors = await _chunk_vectors(request, reader, sentences, view, normalize=normalize)
        else:
            vectors = await reader.vectors(request, sentences, sentence_vector(view, normalize=normalize))
        return await wire.matrix_response(request, _shortened(vectors, body.dimensions, normalize=normalize))

    @app.post("/embed_all", response_model=list[list[list[float]]], responses=wire.BINARY_RESPONSES, tags=["vectors"])
    async def embed_all(request: Request, body: schemas.EmbedAllRequest) -> Response:
        """One vector per token of each text."""
        _, reader = readers.choose(body.model)
        view = view_of(body.layers, reader.engine.model.num_layers, single=True)
        sentences = await reader.sentences(request, body.inputs, body)
        return await wire.ragged_response(request, await reader.vectors(request, sentences, token_vectors(view)))

    @app.post("/layers", response_model=schemas.LayersResponse, responses=wire.BINARY_RESPONSES, tags=["vectors"])
    async def layers(request: Request, body: schemas.LayersRequest) -> Response:
        """Layers of every token, or with `weights` their mix: gamma * sum_j softmax(weights)_j * layer_j."""
        _, reader = readers.choose(body.model)
        num_layers = reader.engine.model.num_layers
        numbers = list(range(num_layers)) if body.layers == "all" else body.layers
        reduce = chosen_layers(numbers, num_layers)
        if body.weights is not None:
            if len(body.weights) != len(numbers):
                counts = f"{format_count(len(numbers), 'layer')} came with {format_count(len(body.weights), 'weight')}"
                raise ValueError(f"{counts}: send one weight per layer")
            reduce = weighted_sum(reduce, body.weights, body.gamma)
        elif body.gamma != 1.0:
            raise ValueError("gamma belongs to a mix: send weights too, [0, 0, …] for the average")
        sentences = await reader.sentences(request, body.inputs, body)
        before = b'{"tokens":' + orjson.dumps(sentences) + b',"layers":' + orjson.dumps(numbers) + b',"vectors":['
        vectors = await reader.vectors(request, sentences, reduce)
        return await wire.ragged_response(request, vectors, before=before, after=b"]}")

    @app.post("/similarity", response_model=list[float], tags=["vectors"])
    async def similarity(request: Request, body: schemas.SimilarityRequest) -> Response:
        """The cosine of one sentence with each of the others; with `word`, of that word in them."""
        _, reader = readers.choose(body.model)
        model = reader.engine.model
        inputs, parameters = body.inputs, body.parameters or schemas.SimilarityParameters()
        default = default_layers(inputs.word)
        view = view_of(default if parameters.layers is None else parameters.layers, model.num_layers, single=True)
        if not inputs.sentences:
            raise RefusalError(400, "Empty", "inputs.sentences is empty: send at least one sentence")
        texts: schemas.Inputs = [inputs.source_sentence, *inputs.sentences]
        sentences = await reader.sentences(request, texts, parameters, name="sentences")
        reduce: Reduce | list[Reduce] = sentence_vector(view, normalize=True)
        if inputs.word is not None:
            reduce = await run_in_threadpool(_phrases, inputs.word, sentences, view, model)
        source, *others = await reader.vectors(request, sentences, reduce)
        return wire.json_response(np.stack(others) @ source)

    @app.post(
        "/",
        response_model=list[list[float]] | list[float],
        responses=wire.BINARY_RESPONSES,
        tags=["vectors"],
    )
    async def hugging_face(request: Request, body: schemas.HuggingFaceRequest) -> Response:
        """The endpoint of Hugging Face's clients: as /embed, or as /similarity if `inputs` has a `source_sentence`."""
        if isinstance(body, schemas.SimilarityRequest):
            return await similarity(request, body)
        return await embed(request, body)

    @app.post(
        "/v1/embeddings", response_model=schemas.OpenAIResponse, responses=OPENAI_ERROR_RESPONSES, tags=["vectors"]
    )
    async def openai_embeddings(request: Request, body: schemas.OpenAIRequest) -> Response:
        """OpenAI's endpoint: vectors of length one, as numbers or as base64 of little-endian float32."""
        name, reader = readers.choose(body.model)
        model = reader.engine.model
        view = view_of("average", model.num_layers, single=True)
        _check_dimensions(body.dimensions, model.dim)
        texts: schemas.Inputs = body.input if isinstance(body.input, str) else list(body.input)
        sentences = await reader.sentences(request, texts, name="input")
        if body.late_chunking:
            vectors = await _chunk_vectors(request, reader, sentences, view, normalize=True)
        else:
            vectors = await reader.vectors(request, sentences, sentence_vector(view, normalize=True))
        return await wire.openai_response(
            _shortened(vectors, body.dimensions, normalize=True),
            as_base64=body.encoding_format == "base64",
            model=name,
            num_tokens=sum(map(len, sentences)),
        )

    @app.post("/tokenize", response_model=list[list[schemas.SimpleToken]], tags=["vectors"])
    async def tokenize(request: Request, body: schemas.TokenizeRequest) -> Response:
        """The tokens of each text with their offsets."""
        _, reader = readers.choose(body.model)
        texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
        await reader.sentences(request, list(texts))  # checks the limits
        model = reader.engine.model
        return wire.json_response(await run_in_threadpool(_simple_tokens, texts, model, body.add_special_tokens))


async def _chunk_vectors(
    request: Request, reader: RequestReader, chunks: Sequence[list[str]], view: View, *, normalize: bool
) -> list[Vectors]:
    """One vector per chunk of a document that the model reads in one pass: the mean of the chunk's token vectors."""
    document = [token for tokens in chunks for token in tokens]
    limit = reader.settings.max_sentence_tokens
    num_tokens = reader.engine.num_units(document)
    if num_tokens > limit:
        message = f"the chunks have {num_tokens:,} tokens, at most {limit:,} are read in one pass: send fewer chunks"
        raise RefusalError(413, "Validation", message)
    ends = list(itertools.accumulate(map(len, chunks)))
    (vectors,) = await reader.vectors(request, [document], chunk_vectors(view, ends, normalize=normalize))
    return list(vectors)


def _check_dimensions(dimensions: int | None, full: int) -> None:
    """Check the number of dimensions that a request asks for."""
    if dimensions is not None and (dimensions < 1 or full % dimensions):
        raise ValueError(f"dimensions is {dimensions}: it must divide {full}, the width of this model's vectors")


def _shortened(vectors: list[Vectors], dimensions: int | None, *, normalize: bool) -> list[Vectors]:
    """Vectors whose numbers are sums of consecutive numbers of the given vectors."""
    if dimensions is None or not vectors or dimensions == len(vectors[0]):
        return vectors
    short = np.stack(vectors).reshape(len(vectors), dimensions, -1).sum(axis=2)
    if normalize:
        short /= np.maximum(np.linalg.norm(short, axis=1, keepdims=True), 1e-12)
    return list(short)


def _phrases(word: str, sentences: Sequence[list[str]], view: View, model: ELMo) -> list[Reduce]:
    """For each sentence, the first the source, a function that gives the vector of the word in it."""
    reduces = []
    for number, tokens in enumerate(sentences):
        try:
            place = find_phrase(word, tokens, model.tokenizer)
        except ValueError as error:
            name = f"sentences[{number - 1}]" if number else "source_sentence"
            raise ValueError(f"inputs.{name}: {error}") from None
        reduces.append(phrase_vector(view, *place))
    return reduces


def _simple_tokens(texts: Sequence[str], model: ELMo, add_special_tokens: bool) -> list[list[dict[str, Any]]]:
    """The tokens of each text as `SimpleToken`s."""

    def simple(text: str, start: int | None, stop: int | None) -> dict[str, Any]:
        number = None if model.vocabulary is None else model.vocabulary.id(text)
        return {"id": number, "text": text, "special": start is None, "start": start, "stop": stop}

    results = []
    for text in texts:
        tokens = [simple(token.text, token.start, token.end) for token in model.tokenizer.with_offsets(text)]
        if add_special_tokens:
            tokens = [simple(BOS_TOKEN, None, None), *tokens, simple(EOS_TOKEN, None, None)]
        results.append(tokens)
    return results
