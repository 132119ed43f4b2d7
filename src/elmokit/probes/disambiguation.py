"""Word senses by nearest neighbour (Peters et al., 2018, table 5): does a word's vector know its sense?

Input: a model, sentences with known senses (SemCor), sentences whose senses are asked for, and WordNet's sense index.
Output: F1 of each layer and view on each set, with two baselines that need no vectors.

A sense is the mean vector of its training instances; a word takes the nearest one by cosine, and a word that is not in
training takes WordNet's first sense. In a layer a phrase ("took place") is the mean of its words; the views slot and
sense see it as one word.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from elmokit.datasets import SenseIndex, SenseInstance, SenseSentence, Word
from elmokit.datasets import as_phrases as as_phrases
from elmokit.inference.vectors import unit
from elmokit.model import ELMo
from elmokit.probes.vectors import Place, Progress, place_vectors, view_names
from elmokit.tasks import metrics

ALL = "all"


@dataclass(frozen=True)
class DisambiguationScores:
    """F1 in percent. Each mapping is from a set's name to its figure; `all` is the test sets together."""

    dev: str
    """The set on which the best layer is chosen; it is not part of `all`."""
    num_instances: dict[str, int]
    num_unseen: dict[str, int]
    """Instances whose word is not in the training sentences: they take the first sense."""
    first_sense: dict[str, float]
    most_frequent: dict[str, float]
    """The sense that is most frequent in training."""
    layers: dict[str, dict[str, float]]
    """Layer or view -> set -> F1."""
    best_layer: str


def disambiguate(
    model: ELMo,
    train: Sequence[SenseSentence],
    tests: Mapping[str, Sequence[SenseSentence]],
    index: SenseIndex,
    *,
    dev: str,
    progress: Progress | None = None,
) -> DisambiguationScores:
    """Give every instance of `tests` a sense by each layer.

    Args:
        model: The model.
        train: Sentences with known senses.
        tests: Sets by name.
        index: Senses of each word, the first one first.
        dev: The set on which the best layer is chosen.
        progress: Called after each batch.

    Raises:
        ValueError: If `dev` is not one of `tests`, or is the only one.
    """
    if dev not in tests or len(tests) < 2:
        raise ValueError(f"the sets are {', '.join(tests) or 'none'}: expected {dev!r}, which chooses, and one to test")
    questions = {
        name: [one for sentence in sentences for one in sentence.instances] for name, sentences in tests.items()
    }
    questions[ALL] = [one for name in tests if name != dev for one in questions[name]]
    words = {one.word for instances in questions.values() for one in instances}
    counts: dict[Word, Counter[str]] = {}
    for sentence in train:
        for one in sentence.instances:
            if one.word in words:
                counts.setdefault(one.word, Counter()).update(one.senses)
    asked = [sentence for sentences in tests.values() for sentence in sentences]
    nearest = _nearest_senses(model, train, asked, counts, progress)

    def first_sense(one: SenseInstance) -> str | None:
        return next(iter(index.get(one.word, ())), None)

    def most_frequent(one: SenseInstance) -> str | None:
        found = counts.get(one.word)
        return found.most_common(1)[0][0] if found else first_sense(one)

    def score(answer: Callable[[SenseInstance], str | None]) -> dict[str, float]:
        """F1 of each set; None is a question without an answer."""
        figures = {}
        for name, instances in questions.items():
            answers = [answer(one) for one in instances]
            figures[name] = 100 * metrics.sense_f1([one.senses for one in instances], answers)["f1"]
        return figures

    def by_layer(row: int) -> Callable[[SenseInstance], str | None]:
        return lambda one: nearest[id(one)][row] if id(one) in nearest else most_frequent(one)

    layers = {name: score(by_layer(row)) for row, name in enumerate(view_names(model))}
    return DisambiguationScores(
        dev=dev,
        num_instances={name: len(instances) for name, instances in questions.items()},
        num_unseen={name: sum(one.word not in counts for one in instances) for name, instances in questions.items()},
        first_sense=score(first_sense),
        most_frequent=score(most_frequent),
        layers=layers,
        best_layer=max(layers, key=lambda name: layers[name][dev]),
    )


def _nearest_senses(
    model: ELMo,
    train: Sequence[SenseSentence],
    asked: Sequence[SenseSentence],
    counts: Mapping[Word, Counter[str]],
    progress: Progress | None,
) -> dict[int, list[str]]:
    """The sense of each instance in each layer, by `id(instance)`: another set may use an instance's own id again.

    A word with one sense in training needs no vector and is left out, as is one that is not in training.
    """
    rows = {word: {sense: row for row, sense in enumerate(found)} for word, found in counts.items() if len(found) > 1}
    shape = (len(view_names(model)), model.dim)
    sums = {
        word: np.zeros((len(senses), *shape)) for word, senses in rows.items()
    }  # a sum has the direction of the mean
    examples = _read(train, rows)
    for number, vectors in place_vectors(model, examples.sentences, examples.places, progress=progress):
        one = examples.instances[number]
        for sense in one.senses:
            sums[one.word][rows[one.word][sense]] += vectors
    centres = {word: unit(total) for word, total in sums.items()}  # (senses, views, 2P)
    nearest = {}
    questions = _read(asked, rows)
    for number, vectors in place_vectors(model, questions.sentences, questions.places):
        one = questions.instances[number]
        senses = list(rows[one.word])
        cosines = np.einsum("sld,ld->ls", centres[one.word], unit(vectors))
        nearest[id(one)] = [senses[best] for best in cosines.argmax(axis=1)]
    return nearest


@dataclass(frozen=True)
class _Reading:
    """Sentences as the model reads them, and the places of the instances."""

    sentences: list[list[str]]
    places: list[Place]
    instances: list[SenseInstance]


def _read(sentences: Sequence[SenseSentence], wanted: Mapping[Word, object]) -> _Reading:
    reading = _Reading([], [], [])
    for number, sentence in enumerate(sentences):
        words, offsets = sentence.as_words()
        reading.sentences.append(words)
        for one in sentence.instances:
            if one.word in wanted:
                reading.places.append(Place(number, offsets[one.index], offsets[one.index + 1]))
                reading.instances.append(one)
    return reading
