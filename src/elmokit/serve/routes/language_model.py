"""The endpoints of the language model.

Input: texts or token lists.  Output: log-probabilities of tokens, and words for a place in a sentence.
"""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from elmokit.inference.scores import TokenLogProbs, perplexity_of
from elmokit.serve import schemas, wire
from elmokit.serve.engine import SubstituteQuery
from elmokit.serve.reader import Readers, ticket_of
from elmokit.text import Tokenizer, marked_word


def add_language_model(app: FastAPI, readers: Readers) -> None:
    """Add the endpoints of the language model; without an output layer they answer 424.

    Args:
        app: The application.
        readers: Read requests and wait for results.
    """

    @app.post("/log_probs", response_model=list[schemas.SentenceLogProbs], tags=["language model"])
    async def log_probs(request: Request, body: schemas.LogProbsRequest) -> Response:
        """The log-probability of every token, from the tokens before it and from the tokens after it.

        Tokens that are not in the vocabulary are scored as <UNK> and marked. The perplexity of each sentence is given
        with and without them.
        """
        _, reader = readers.choose(body.model)
        reader.check_language_model()
        sentences = await reader.sentences(request, body.inputs, body, lane="log_probs")
        scores = await reader.before_deadline(reader.engine.log_probs(sentences, ticket_of(request)))
        return await run_in_threadpool(_log_probs_response, scores)

    @app.post("/substitutes", response_model=list[schemas.SubstituteWord], tags=["language model"])
    async def substitutes(request: Request, body: schemas.SubstitutesRequest) -> Response:
        """The likeliest words in place of the word in brackets, or of the token at `position`."""
        _, reader = readers.choose(body.model)
        reader.check_language_model()
        query = _substitute_query(body, reader.engine.model.tokenizer)
        await reader.sentences(request, [query.tokens], lane="substitutes")  # checks the limits
        return wire.json_response(await reader.before_deadline(reader.engine.substitutes(query, ticket_of(request))))


def _log_probs_response(scores: list[TokenLogProbs]) -> Response:
    """The scores of each sentence with its perplexity."""
    fields = []
    for one in scores:
        scores_of_tokens = {name: value for name, value in vars(one).items() if name != "num_units"}
        fields.append({**scores_of_tokens, "perplexity": perplexity_of([one])})
    return wire.json_response(fields)


def _substitute_query(body: schemas.SubstitutesRequest, tokenizer: Tokenizer) -> SubstituteQuery:
    """The tokens of a request and the position of the one to replace."""
    if isinstance(body.inputs, list):
        if body.position is None or body.position >= len(body.inputs):
            raise ValueError(
                f"position is {body.position}, there are {len(body.inputs)} tokens: send the index of one, from 0"
            )
        return SubstituteQuery(body.inputs, body.position, body.k, body.keep_word)
    if body.position is not None:
        raise ValueError("position is for token lists; in a text mark the word: He sat on the [bank] .")
    tokens, position = marked_word(body.inputs, tokenizer, allow_blank=True)
    return SubstituteQuery(tokens, position, body.k, body.keep_word)
