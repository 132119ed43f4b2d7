"""Vectors of words in context, as all probes read them.

Input: a model, tokenized sentences, and the places of words in them. Output: each word's vector in every layer and
view, one sentence or one word at a time, so that memory does not grow with the corpus.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from elmokit.inference.views import Reading, view_of
from elmokit.model import ELMo
from elmokit.text import as_list, check_tokens

Array = npt.NDArray[np.float32]
Floats = npt.NDArray[np.floating]
Progress = Callable[[int, int | None], None]
"""Called with the number of tokens done, and of all."""

MEAN = "mean"
VIEWS = ("slot", "sense")


class Place(NamedTuple):
    """A word, or a phrase, of a list of sentences: `sentences[sentence][start:end]`."""

    sentence: int
    start: int
    end: int


def layer_names(model: ELMo) -> list[str]:
    """Names of the rows of a probe of layers: each layer, the context-free one first, and the mean of all."""
    return [*map(str, range(model.num_layers)), MEAN]


def view_names(model: ELMo) -> list[str]:
    """Names of the rows of a probe of words in context: layers, their mean, and the views from outside."""
    return [*layer_names(model), *VIEWS]


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


def read_all(
    model: ELMo, sentences: Sequence[list[str]], *, progress: Progress | None = None
) -> Iterator[tuple[int, Reading]]:
    """As `ELMo.readings`; progress counts tokens.

    Args:
        model: The model.
        sentences: Token lists.
        progress: Called after each batch.
    """
    done, total = 0, sum(map(len, sentences))

    def report(num_sentences: int, num_all: int) -> None:
        if progress is not None:
            progress(done, total)

    for number, reading in model.readings(sentences, show_progress=report):
        yield number, reading
        done += len(sentences[number])


def place_vectors(
    model: ELMo, sentences: Sequence[Sequence[str]], places: Sequence[Place], *, progress: Progress | None = None
) -> Iterator[tuple[int, Array]]:
    """Vectors of words and phrases in all layers and views. In a layer, a phrase is the mean of its words.

    Args:
        model: The model.
        sentences: Token lists. Sentences without a place are not read.
        places: The words and phrases.
        progress: Called after each batch.

    Returns:
        (number, (views, 2P)) of each place, in the order of `view_names`.

    Raises:
        ValueError: If a place is not in its sentence.
    """
    wanted: dict[int, list[int]] = {}
    for number, place in enumerate(places):
        if not 0 <= place.start < place.end <= len(sentences[place.sentence]):
            raise ValueError(f"there are no tokens {place.start} to {place.end} in {sentences[place.sentence]}")
        wanted.setdefault(place.sentence, []).append(number)
    views = [view_of(name, model.num_layers) for name in ("all", *VIEWS)]
    used = [list(sentences[number]) for number in wanted]
    own_places = list(wanted.values())
    for position, reading in read_all(model, used, progress=progress):
        own = own_places[position]
        start, end = torch.tensor([(places[number].start, places[number].end) for number in own]).unbind(dim=1)
        layers, *others = (view.spans(reading, start, end).squeeze(-3).cpu().numpy() for view in views)
        rows = np.stack([*layers, layers.mean(axis=0), *others], axis=1)  # (S, views, 2P)
        yield from zip(own, rows, strict=True)


def gather(
    model: ELMo, sentences: Sequence[Sequence[str]], places: Sequence[Place], *, progress: Progress | None = None
) -> Array:
    """As `place_vectors`, in one array (places, views, 2P) in the order of the places."""
    result = np.zeros((len(places), len(view_names(model)), model.dim), np.float32)
    for number, vectors in place_vectors(model, sentences, places, progress=progress):
        result[number] = vectors
    return result
