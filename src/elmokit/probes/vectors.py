"""Vectors of words in context, as all probes read them.

Input: a model, tokenized sentences, and the places of words in them. Output: each word's vector in every layer, one
sentence or one word at a time, so that memory does not grow with the corpus.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from elmokit.model import ELMo
from elmokit.text import as_list, check_tokens

Array = npt.NDArray[np.float32]
Floats = npt.NDArray[np.floating]
Progress = Callable[[int, int | None], None]
"""Called with the number of tokens done, and of all."""

MEAN = "mean"
TOKENS_AT_ONCE = 16384  # embedded together: their vectors in all layers are in memory at a time


class Place(NamedTuple):
    """A word, or a phrase, of a list of sentences: `sentences[sentence][start:end]`."""

    sentence: int
    start: int
    end: int


def layer_names(model: ELMo) -> list[str]:
    """Names of the rows that probes report: each layer, the context-free one first, and the mean of all."""
    return [*map(str, range(model.num_layers)), MEAN]


def check_token_lists(sentences: Iterable[Sequence[str]], name: str) -> list[list[str]]:
    """Check token lists.

    Args:
        sentences: Token lists, in any iterable.
        name: Name of the argument, for messages.

    Raises:
        ValueError: If an element is not a list of strings. The message names its position.
    """
    return [
        check_tokens(tokens, f"{name}[{number}]", "a list of tokens")
        for number, tokens in enumerate(as_list(sentences, name))
    ]


def sentence_vectors(
    model: ELMo, sentences: Sequence[Sequence[str]], *, progress: Progress | None = None
) -> Iterator[tuple[int, Array]]:
    """Vectors of sentences in all layers.

    Args:
        model: The model.
        sentences: Token lists.
        progress: Called after each batch.

    Returns:
        (number, (L+1, T, 2P)) of each sentence, in order of length.
    """
    order = sorted(range(len(sentences)), key=lambda number: len(sentences[number]))
    total = sum(map(len, sentences))
    done, begin = 0, 0
    while begin < len(order):
        end, tokens = begin, 0
        while end < len(order) and (end == begin or tokens + len(sentences[order[end]]) <= TOKENS_AT_ONCE):
            tokens += len(sentences[order[end]])
            end += 1
        window = order[begin:end]
        vectors = model.embed([list(sentences[number]) for number in window], layers="all")
        yield from zip(window, vectors, strict=True)
        done, begin = done + tokens, end
        if progress is not None:
            progress(done, total)


def place_vectors(
    model: ELMo, sentences: Sequence[Sequence[str]], places: Sequence[Place], *, progress: Progress | None = None
) -> Iterator[tuple[int, Array]]:
    """Vectors of words and phrases in all layers. A phrase is the mean of its words.

    Args:
        model: The model.
        sentences: Token lists. Sentences without a place are not read.
        places: The words and phrases.
        progress: Called after each batch.

    Returns:
        (number, (L+2, 2P)) of each place: its layers, then their mean.

    Raises:
        ValueError: If a place is not in its sentence.
    """
    wanted: dict[int, list[int]] = {}
    for number, place in enumerate(places):
        if not 0 <= place.start < place.end <= len(sentences[place.sentence]):
            raise ValueError(f"there are no tokens {place.start} to {place.end} in {sentences[place.sentence]}")
        wanted.setdefault(place.sentence, []).append(number)
    used = list(wanted)
    for index, vectors in sentence_vectors(model, [sentences[number] for number in used], progress=progress):
        for number in wanted[used[index]]:
            word = vectors[:, places[number].start : places[number].end].mean(axis=1)  # (L+1, 2P)
            yield number, np.concatenate([word, word.mean(axis=0, keepdims=True)])


def gather(
    model: ELMo, sentences: Sequence[Sequence[str]], places: Sequence[Place], *, progress: Progress | None = None
) -> Array:
    """As `place_vectors`, in one array (places, L+2, 2P) in the order of the places."""
    result = np.zeros((len(places), model.num_layers + 1, model.dim), np.float32)
    for number, vectors in place_vectors(model, sentences, places, progress=progress):
        result[number] = vectors
    return result
