"""Nearest neighbours: of words by their letters, and of a word in context in a corpus (Peters et al., 2018, table 4).

Input: a model, and words, or sentences with a [word] in brackets and a corpus. Output: the nearest words, or the
nearest words in context, by cosine; the search is exact.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from elmokit.arguments import check_callable, check_instance, check_integer
from elmokit.inference.vectors import unit
from elmokit.inference.views import Layers, view_of
from elmokit.model import ELMo
from elmokit.probes.vectors import Array, Progress, check_token_lists, read_all
from elmokit.text import MarkedWord, Tokenizer, as_list, check_tokens, marked_word

WORDS_AT_ONCE = 4096


@dataclass(frozen=True)
class WordNeighbour:
    """A word of the vocabulary near another by its letters."""

    word: str
    cosine: float


@dataclass(frozen=True)
class ContextNeighbour:
    """A token of a corpus near a word in context."""

    tokens: list[str]
    position: int
    cosine: float


def neighbours_of_words(model: ELMo, words: Sequence[str], *, k: int = 8) -> dict[str, list[WordNeighbour]]:
    """The words of the vocabulary nearest to each of `words` in the context-free layer, without the word itself.

    Args:
        model: A model that reads characters and has a vocabulary.
        words: Any words; they may be misspelled or new.
        k: Number of neighbours.

    Returns:
        For each word its neighbours, best first.

    Raises:
        ValueError: If the model reads words or has no vocabulary, or an argument is wrong.
    """
    check_instance("model", model, ELMo, "a model, such as ELMo.from_pretrained()")
    k, words = check_integer("k", k), check_tokens(words, "words", "a list of words")
    if model.reads_words:
        raise ValueError("this model reads words, not characters: a word that it does not know has no vector")
    if model.vocabulary is None:
        raise ValueError("this model has no vocabulary.txt: there are no words to look among")
    specials = {model.vocabulary.bos_id, model.vocabulary.eos_id, model.vocabulary.unk_id}
    known = [word for number, word in enumerate(model.vocabulary.words) if number not in specials]
    queries = _unit_vectors(model, words)
    cosines = np.concatenate(
        [
            queries @ _unit_vectors(model, known[begin : begin + WORDS_AT_ONCE]).T
            for begin in range(0, len(known), WORDS_AT_ONCE)
        ]
        or [np.zeros((len(words), 0), np.float32)],
        axis=1,
    )  # (words, V)
    result = {}
    for word, row in zip(words, cosines, strict=True):
        nearest = (number for number in np.argsort(-row, kind="stable")[: k + 1] if known[number] != word)
        result[word] = [WordNeighbour(known[number], float(row[number])) for number in nearest][:k]
    return result


def nearest_in_context(
    model: ELMo,
    queries: Sequence[str],
    corpus: Sequence[Sequence[str]],
    *,
    k: int = 5,
    layer: Layers = "sense",
    progress: Progress | None = None,
) -> list[list[ContextNeighbour]]:
    """The tokens of a corpus nearest to a word in context, at most one per sentence.

    Args:
        model: The model.
        queries: Sentences with one word in brackets, "He sat on the [bank] ." The same sentence in the corpus is left
            out.
        corpus: Token lists.
        k: Number of neighbours.
        layer: As `layers` of `ELMo.embed`, but not "all".
        progress: Called after each batch.

    Returns:
        For each query its neighbours, best first.

    Raises:
        ValueError: If the model has no such layer, a query has not one word in brackets, or an argument is wrong.
    """
    check_instance("model", model, ELMo, "a model, such as ELMo.from_pretrained()")
    check_callable("progress", progress)
    k = check_integer("k", k)
    view = view_of(layer, model.num_layers, single=True, caller="nearest_in_context")
    corpus = check_token_lists(corpus, "corpus")
    asked = [_marked_query(query, number, model.tokenizer) for number, query in enumerate(as_list(queries, "queries"))]
    if not asked:
        return []
    vectors = model.embed([tokens for tokens, _ in asked], layers=layer)
    wanted = unit(np.stack([found[place] for found, (_, place) in zip(vectors, asked, strict=True)]))  # (Q, 2P)
    # (cosine, minus the sentence's number, place): the earlier sentence wins where two are equal
    best: list[list[tuple[float, int, int]]] = [[] for _ in asked]
    for number, reading in read_all(model, corpus, progress=progress):
        if not len(corpus[number]):
            continue
        cosines = wanted @ unit(view.tokens(reading)[0].float().cpu().numpy()).T  # (Q, T)
        for heap, (tokens, _), row in zip(best, asked, cosines, strict=True):
            if list(corpus[number]) == tokens:
                continue
            place = int(row.argmax())
            heapq.heappush(heap, (float(row[place]), -number, place))
            if len(heap) > k:
                heapq.heappop(heap)
    return [
        [ContextNeighbour(list(corpus[-number]), place, cosine) for cosine, number, place in sorted(heap, reverse=True)]
        for heap in best
    ]


def _marked_query(query: str, number: int, tokenizer: Tokenizer) -> MarkedWord:
    """The tokens of a query, and where its word is."""
    try:
        return marked_word(query, tokenizer)
    except ValueError as error:
        raise ValueError(f"queries[{number}]: {error}") from None


def _unit_vectors(model: ELMo, words: Sequence[str]) -> Array:
    """(words, P): context-free vectors of length one."""
    return np.asarray(unit(model.embed_words(words).float().cpu().numpy()), np.float32)
