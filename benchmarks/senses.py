"""Senses of a word, found without labels, against the senses of SemCor.

    python benchmarks/senses.py semcor.data.xml.gz [--model MODEL] [--words 50]

Input: SemCor in the format of the all-words WSD framework. Output: a table: V-measure and paired F of the groups of
`ELMo.senses` against WordNet's senses and supersenses, beside k-means on the top layer, one group and chance; means
over words, with the standard deviation over seeds where there are seeds, and the standard error over words.

The words are the most frequent ones of SemCor with at least 50 instances, of which at most 80% have one sense. The
constants of the method were chosen on the 100 words that follow the first 50.
"""

import argparse
from collections import Counter
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from sklearn.cluster import KMeans
from sklearn.metrics import v_measure_score

from elmokit import ELMo
from elmokit.datasets import SenseInstance, as_phrases, read_wsd
from elmokit.inference.grouping import group
from elmokit.inference.vectors import unit
from elmokit.inference.views import view_of
from elmokit.progress import reporting

SEEDS = range(5)
LEAST, MOST_SHARE = 50, 0.8
Labels = npt.NDArray[np.int64]


def paired_f(truth: list[str], labels: Labels) -> float:
    """F1 of the pairs that are in one group, against the pairs that are in one sense."""

    def num_pairs(values: list[object]) -> float:
        return sum(count * (count - 1) / 2 for count in Counter(values).values())

    both = num_pairs(list(zip(truth, labels.tolist(), strict=True)))
    return 200 * both / max(num_pairs(truth) + num_pairs(labels.tolist()), 1)


def supersense(key: str) -> str:
    """The lexicographer's file of a sense key."""
    return key.split("%")[1].split(":")[1]


class Word:
    """The instances of a word, with their vectors in each view."""

    def __init__(self, instances: list[SenseInstance]) -> None:
        self.senses = [one.senses[0] for one in instances]
        self.vectors: dict[str, npt.NDArray[np.float32]] = {}

    def score(self, labels: Labels) -> list[float]:
        """V-measure and paired F against senses, and against supersenses; NaN where there is one supersense."""
        scores = []
        for truth in (self.senses, [supersense(key) for key in self.senses]):
            is_one = len(set(truth)) == 1
            scores += [np.nan] * 2 if is_one else [100 * v_measure_score(truth, labels), paired_f(truth, labels)]
        return scores


def read_words(path: str, model: ELMo, num_words: int) -> list[Word]:
    sentences = read_wsd(path)
    instances: dict[tuple[str, str], list[tuple[int, SenseInstance]]] = {}
    for number, sentence in enumerate(sentences):
        for one in sentence.instances:
            instances.setdefault((one.lemma.lower(), one.pos), []).append((number, one))

    def is_ambiguous(found: list[tuple[int, SenseInstance]]) -> bool:
        most = Counter(one.senses[0] for _, one in found).most_common(1)[0][1]
        return len(found) >= LEAST and most <= MOST_SHARE * len(found)

    ranked = sorted((word for word in instances if is_ambiguous(instances[word])), key=lambda w: -len(instances[w]))
    chosen = ranked[:num_words]
    print(f"{num_words} words: {', '.join(lemma for lemma, _ in chosen)}")
    words = {word: Word([one for _, one in instances[word]]) for word in chosen}
    by_sentence: dict[int, list[tuple[tuple[str, str], int, SenseInstance]]] = {}
    for word in chosen:
        for row, (number, one) in enumerate(instances[word]):
            by_sentence.setdefault(number, []).append((word, row, one))
        for name in VIEWS:
            words[word].vectors[name] = np.zeros((len(instances[word]), model.dim), np.float32)
    numbers = list(by_sentence)
    phrases = [as_phrases(sentences[number]) for number in numbers]
    views = {name: view_of(name, model.num_layers) for name in VIEWS}
    with reporting(True, "sentences", len(numbers)) as progress:
        tokens = [[token for phrase in sentence for token in phrase] for sentence in phrases]
        for position, reading in model.readings(tokens, show_progress=progress):
            own = by_sentence[numbers[position]]
            ends = np.cumsum([len(phrase) for phrase in phrases[position]])
            end = torch.tensor([int(ends[one.index]) for _, _, one in own])
            start = end - torch.tensor([len(phrases[position][one.index]) for _, _, one in own])
            for name, view in views.items():
                vectors = view.spans(reading, start, end)[0].cpu().numpy()
                for (word, row, _), vector in zip(own, unit(vectors), strict=True):
                    words[word].vectors[name][row] = vector
    return list(words.values())


VIEWS = ("sense", "slot", "top", "average")
Method = Callable[[Word, int], Labels]


def kmeans(view: str, number: Callable[[Word], int]) -> Method:
    return lambda word, seed: KMeans(number(word), n_init=5, random_state=seed).fit_predict(word.vectors[view])


def main() -> None:
    parser = argparse.ArgumentParser(description="Senses found without labels, against those of SemCor.")
    parser.add_argument("semcor")
    parser.add_argument("--model")
    parser.add_argument("--words", type=int, default=50)
    options = parser.parse_args()
    words = read_words(options.semcor, ELMo.from_pretrained(options.model), options.words)
    found = {id(word): group(word.vectors["sense"]) for word in words}

    def num_found(word: Word) -> int:
        return len(found[id(word)].centres)

    def num_true(word: Word) -> int:
        return len(set(word.senses))

    methods: dict[str, Method] = {
        "ELMo.senses, number found": lambda word, _: found[id(word)].labels,
        "k-means on layer top, that number": kmeans("top", num_found),
        "k-means on the average, that number": kmeans("average", num_found),
        "k-means on sense, that number": kmeans("sense", num_found),
        "chance, that number": lambda word, seed: np.random.default_rng(seed).integers(
            0, num_found(word), len(word.senses)
        ),
        "one group": lambda word, _: np.zeros(len(word.senses), np.int64),
        "ELMo.senses, WordNet's number": lambda word, _: group(word.vectors["sense"], num_true(word)).labels,
        "k-means on layer top, WordNet's number": kmeans("top", num_true),
    }
    print(f"groups found: {np.mean([num_found(word) for word in words]):.1f} on average")
    print("| groups | V, senses | paired F, senses | V, supersenses | paired F, supersenses |\n|---|---|---|---|---|")
    for name, method in methods.items():
        seeds = SEEDS if "k-means" in name or "chance" in name else [0]
        scores = np.array([[word.score(method(word, seed)) for word in words] for seed in seeds])  # (seeds, words, 4)
        means = np.nanmean(scores, axis=1)  # (seeds, 4)
        errors = np.nanstd(scores.mean(axis=0), axis=0) / np.sqrt(np.isfinite(scores[0]).sum(axis=0))
        cells = [f"{m:.1f} ± {e:.1f}" for m, e in zip(means.mean(axis=0), errors, strict=True)]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
