"""Perplexity of an n-gram model with modified Kneser-Ney smoothing, to compare a language model with.

    python benchmarks/character_ngrams.py CORPUS HELDOUT... --model zh [--order 5] [--tokens N] [--out ngrams.json]

Input: a corpus that `elmokit prepare` made with the vocabulary of the model, and held-out text. Output: for each text
the perplexity per token of the n-gram model and, with --model, of the forward direction of the biLM, on the same tokens
and sentence ends. Words outside the vocabulary are <UNK> to both. The sentences are those of the single sentences in
`elmokit probe --heldout`.

Only what the held-out text asks for is counted: for each order the n-grams whose context occurs in it. Contexts are
counted in several passes, so that memory stays small. Discounts come from a random 1/64 of all n-grams.

S. Chen, J. Goodman (1998), An Empirical Study of Smoothing Techniques for Language Modeling, section 3.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from elmokit import ELMo
from elmokit.corpus import Corpus
from elmokit.text import Tokenizer, Vocabulary

Keys = npt.NDArray[np.uint64]
Counts = npt.NDArray[np.int64]

BASE, MIX = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)
CHUNK = 1 << 23  # tokens that are read at once
PASSES = 3
FILTER_BITS = 24


@dataclass
class Text:
    """Ids of a text with a boundary (id 0) between sentences, and the keys of the n-grams that end at each place."""

    ids: npt.NDArray[np.int64]
    order: int

    def __post_init__(self) -> None:
        tokens = self.ids.astype(np.uint64) + np.uint64(1)
        is_boundary = self.ids == 0
        places = np.arange(len(self.ids))
        starts = np.maximum.accumulate(np.where(is_boundary, places, 0))
        # tokens of the sentence before a place, the boundary included; a boundary itself ends the sentence before it
        starts = np.concatenate([[0], starts[:-1]])
        self.num_before = places - starts
        with np.errstate(over="ignore"):
            self.keys = [tokens * MIX]
            for _ in range(1, self.order):
                longer = np.zeros_like(tokens)
                longer[1:] = self.keys[-1][:-1] * BASE + tokens[1:] * MIX
                self.keys.append(longer)

    def has(self, order: int) -> npt.NDArray[np.bool_]:
        """Places at which an n-gram of this order ends that lies in one sentence, which may begin with its boundary."""
        return (self.num_before >= order - 1) & (np.arange(len(self.ids)) > 0)

    def begins(self, order: int) -> npt.NDArray[np.bool_]:
        """Places at which the n-gram of this order begins with the boundary."""
        return self.num_before == order - 1

    def contexts(self, order: int) -> Keys:
        """Keys of the contexts of the n-grams of an order."""
        contexts = np.zeros_like(self.keys[0])
        if order > 1:
            contexts[1:] = self.keys[order - 2][:-1]
        return contexts


def chunks(ids: npt.NDArray[np.int64], order: int) -> Iterator[Text]:
    """A text in chunks of complete sentences."""
    begin = 0
    while begin < len(ids) - 1:
        part = np.asarray(ids[begin : begin + CHUNK])
        end = np.flatnonzero(part == 0)[-1] if begin + CHUNK < len(ids) else len(part) - 1
        yield Text(part[: end + 1], order)
        begin += int(end)


class Filter:
    """A set of keys."""

    def __init__(self, keys: Keys) -> None:
        self.keys = np.unique(keys)
        self._table = np.zeros(1 << FILTER_BITS, bool)
        self._table[self._slots(self.keys)] = True

    @staticmethod
    def _slots(keys: Keys) -> Keys:
        with np.errstate(over="ignore"):
            return (keys * MIX) >> np.uint64(64 - FILTER_BITS)

    def where(self, keys: Keys, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Those of the places whose key is in the set."""
        places = places[self._table[self._slots(keys[places])]]
        found = np.searchsorted(self.keys, keys[places]).clip(max=len(self.keys) - 1)
        return places[self.keys[found] == keys[places]]


@dataclass
class Grams:
    """Different n-grams: keys, keys of their contexts, counts."""

    keys: Keys
    contexts: Keys
    counts: Counts

    @classmethod
    def of(cls, keys: Keys, contexts: Keys, counts: Counts | None = None) -> Grams:
        """Count equal keys, or add up their counts."""
        order = np.argsort(keys)
        ordered = keys[order]
        first = np.flatnonzero(np.concatenate([ordered[:1] == ordered[:1], ordered[1:] != ordered[:-1]]))
        if counts is None:
            sums = np.diff(np.append(first, len(keys)))
        else:
            sums = np.add.reduceat(counts[order], first) if len(first) else counts[:0]
        return cls(ordered[first], contexts[order[first]], sums.astype(np.int64))

    def plus(self, other: Grams) -> Grams:
        """The n-grams of both."""
        return Grams.of(
            np.concatenate([self.keys, other.keys]),
            np.concatenate([self.contexts, other.contexts]),
            np.concatenate([self.counts, other.counts]),
        )


class Total:
    """The sum of many `Grams`: those of like size are added first, so that each n-gram is sorted few times."""

    def __init__(self) -> None:
        self._parts = [Grams(np.empty(0, np.uint64), np.empty(0, np.uint64), np.empty(0, np.int64))]

    def add(self, grams: Grams) -> None:
        self._parts.append(grams)
        while len(self._parts) > 1 and len(self._parts[-2].keys) < 2 * len(self._parts[-1].keys):
            self._parts[-2:] = [self._parts[-2].plus(self._parts[-1])]

    def sum(self) -> Grams:
        while len(self._parts) > 1:
            self._parts[-2:] = [self._parts[-2].plus(self._parts[-1])]
        return self._parts[0]


def count(ids: npt.NDArray[np.int64], order: int, highest: int, wanted: Filter, *, by_key: bool) -> Grams:
    """Counts of the n-grams whose context (or, `by_key`, whose own key) is wanted.

    The highest order has occurrences; lower ones have numbers of different tokens before them, and occurrences where
    they begin a sentence.
    """
    total, longer = Total(), Total()
    for text in chunks(ids, min(order + 1, highest)):
        keys, contexts = text.keys[order - 1], text.contexts(order)
        places = wanted.where(keys if by_key else contexts, np.flatnonzero(text.has(order)))
        begins = text.begins(order)[places] if order < highest else np.ones(len(places), bool)
        raw = places[begins]
        total.add(Grams.of(keys[raw], contexts[raw]))
        if order < highest:
            inside = places[~begins]
            # different longer n-grams; their "context" is the key of the n-gram
            longer.add(Grams.of(text.keys[order][inside], keys[inside]))
            known = Grams.of(keys[inside], contexts[inside])
            total.add(Grams(known.keys, known.contexts, np.zeros(len(known.keys), np.int64)))
    grams = total.sum()
    if order < highest:
        continued, numbers = np.unique(longer.sum().contexts, return_counts=True)
        grams.counts[np.searchsorted(grams.keys, continued)] += numbers
    return grams


def discounts(counts: Counts) -> npt.NDArray[np.float64]:
    """D1, D2, D3+ of modified Kneser-Ney smoothing."""
    n1, n2, n3, n4 = (max(1, int((counts == number).sum())) for number in (1, 2, 3, 4))
    y = n1 / (n1 + 2 * n2)
    return np.clip([1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3], 0.0, [1.0, 2.0, 3.0])


def sampled(keys: Keys) -> npt.NDArray[np.bool_]:
    """A random 1/64 of all keys."""
    with np.errstate(over="ignore"):
        return np.asarray(((keys ^ (keys >> np.uint64(29))) * BASE) >> np.uint64(58) == 0)


class Sampled(Filter):
    """All sampled keys."""

    def __init__(self) -> None:
        super().__init__(np.zeros(1, np.uint64))

    def where(self, keys: Keys, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return places[sampled(keys[places])]


class Everything(Filter):
    """All keys."""

    def __init__(self) -> None:
        super().__init__(np.zeros(1, np.uint64))

    def where(self, keys: Keys, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return places


def log_probs(train: npt.NDArray[np.int64], test: Text, num_words: int, highest: int) -> npt.NDArray[np.float64]:
    """Natural log-probability of each token of a text but the first, which is a boundary."""
    places = np.flatnonzero(test.has(1))
    probs = np.full(len(test.ids), 1.0 / num_words)
    for order in range(1, highest + 1):
        began = time.monotonic()
        sample = count(train, order, highest, Everything() if order == 1 else Sampled(), by_key=True)
        levels = discounts(sample.counts)
        own = places[test.has(order)[places]]
        contexts, keys = test.contexts(order), test.keys[order - 1]
        wanted = np.unique(contexts[own])
        for share in np.array_split(wanted, PASSES if order > 1 else 1):
            if not len(share):
                continue
            grams = count(train, order, highest, Filter(share), by_key=False) if order > 1 else sample
            if not len(grams.keys):
                continue
            group, inverse = np.unique(grams.contexts, return_inverse=True)
            total = np.bincount(inverse, grams.counts)
            kinds = [np.bincount(inverse, grams.counts == n) for n in (1, 2)] + [np.bincount(inverse, grams.counts > 2)]
            left = sum(level * kind for level, kind in zip(levels, kinds, strict=True))
            here = own[np.isin(contexts[own], group)] if order > 1 else own
            at = np.searchsorted(group, contexts[here])
            found = np.searchsorted(grams.keys, keys[here]).clip(max=len(grams.keys) - 1)
            counts = np.where(grams.keys[found] == keys[here], grams.counts[found], 0)
            kept = counts - np.concatenate([[0.0], levels])[counts.clip(max=3)]
            probs[here] = (kept.clip(min=0) + left[at] * probs[here]) / total[at]
        print(f"order {order}: discounts {levels.round(3)}, {time.monotonic() - began:.0f} s", flush=True)
    return np.log(probs[places])


def ids_of(lines: list[str], vocabulary: Vocabulary, tokenizer: Tokenizer) -> npt.NDArray[np.int64]:
    """Ids of sentences with a boundary before each, and after the last: 0; words count from 1."""
    ids = [0]
    for line in lines:
        ids += [int(number) + 1 for number in vocabulary.ids(tokenizer(line))]
        ids.append(0)
    return np.array(ids)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", help="Folder that `elmokit prepare` made.")
    parser.add_argument("heldout", nargs="+", help="Text files, one sentence per line.")
    parser.add_argument("--vocabulary", help="Vocabulary of the corpus.  [default: that of the model]")
    parser.add_argument("--model", help="Model to compare with.")
    parser.add_argument("--order", type=int, default=5)
    parser.add_argument("--tokens", type=int, help="Count the first tokens of the corpus only.")
    parser.add_argument("--heldout-tokens", type=int, default=35_000, help="Tokens of each text that are scored.")
    parser.add_argument("--out", type=Path, help="JSON file of the results.")
    options = parser.parse_args()
    model = None if options.model is None else ELMo.from_pretrained(options.model)
    vocabulary = Vocabulary.load(options.vocabulary) if options.vocabulary else None
    if vocabulary is None:
        assert model is not None
        assert model.vocabulary is not None
        vocabulary = model.vocabulary
    corpus = Corpus.open(options.corpus, vocabulary=vocabulary)
    stream = corpus.stream[: options.tokens]
    targets = corpus.form_targets.astype(np.int64) + 1
    targets[:2] = 0  # the boundary
    train = np.empty(len(stream), np.int32)
    for begin in range(0, len(stream), CHUNK):
        train[begin : begin + CHUNK] = targets[stream[begin : begin + CHUNK]]
    train[-1] = 0
    tokenizer = Tokenizer(corpus.tokenizer or "han")  # type: ignore[arg-type]
    texts: list[list[str]] = []
    for path in options.heldout:
        lines: list[str] = []
        size = 0
        with open(path, encoding="utf-8") as file:
            for line in filter(str.strip, file):
                if size >= options.heldout_tokens:
                    break
                lines.append(line.strip())
                size += len(tokenizer(line))
        texts.append(lines)
    ids = [ids_of(lines, vocabulary, tokenizer) for lines in texts]
    together = np.concatenate([ids[0], *(own[1:] for own in ids[1:])])  # all are counted in one go
    every = log_probs(train, Text(together, options.order), len(vocabulary), options.order)  # type: ignore[arg-type]
    ends = np.cumsum([len(own) - 1 for own in ids])
    results = {}
    for path, lines, scores in zip(options.heldout, texts, np.split(every, ends[:-1]), strict=True):
        perplexity = float(np.exp(-scores.mean()))
        results[Path(path).name] = {"num_predictions": len(scores), "perplexity": perplexity}
        print(f"{path}: {len(scores):,} predictions, {options.order}-gram {perplexity:.2f}", flush=True)
        if model is not None:
            result = model.perplexity(lines)
            print(
                f"{path}: {result.num_tokens:,} predictions, biLM forward {result.forward:.2f}, both {result.both:.2f}"
            )
    if options.out is not None:
        report = {"order": options.order, "num_tokens": len(train), "num_words": len(vocabulary), "texts": results}
        options.out.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
