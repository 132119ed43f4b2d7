"""Labels of the senses of a word: other words that fit in its place.

Input: typical occurrences of each sense.  Output: for each sense the words that fit it, and fit the other senses less.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

import numpy as np
from torch import Tensor

from elmokit.inference.fills import MOST_TOKENS
from elmokit.inference.scores import Scorer
from elmokit.inference.senses import Occurrence
from elmokit.inference.vectors import Floats
from elmokit.text import Tokenizer, WordWeights

NUM_LABELS: Final = 5
MOST_SEEN: Final = 200  # words among which labels are chosen
LEAST_WEIGHT: Final = 0.5  # of words that label a sense, against the largest: not "the" and "of"
NUM_FILLED: Final = 3  # occurrences of a sense of a Chinese word whose places are filled by other words
MOST_FILLED: Final = 50


@dataclass(frozen=True)
class SenseLabels:
    """Finds the labels of senses with a language model."""

    scorer: Scorer
    tokenizer: Tokenizer
    weights: WordWeights
    """How much each word counts: frequent ones are no labels."""
    slots: Callable[[Sequence[Occurrence]], Tensor]
    """Gives what the context expects at each of N occurrences, (N, 2P)."""

    def __call__(self, senses: list[list[Occurrence]]) -> list[list[str]]:
        """Words that fit in the place of the occurrences of each sense."""
        if self.tokenizer.splits_words and 1 < len(self._units(senses[0][0])) <= MOST_TOKENS:
            return self._of_several_tokens(senses)
        left_out = {word.casefold() for own in senses for one in own for word in one.tokens[one.start : one.end]}
        fit = [self.scorer.log_fit(self.slots(own)).exp().mean(dim=0).cpu().numpy() for own in senses]  # (V,) each
        words = self.scorer.vocabulary.words
        weights = self.weights(words)
        is_label = weights > LEAST_WEIGHT * weights.max()
        return distinct_words(np.stack(fit) * is_label, words, left_out)

    def _units(self, one: Occurrence) -> list[str]:
        """The tokens that the model reads for the word of an occurrence."""
        return [unit for token in one.tokens[one.start : one.end] for unit in self.tokenizer.units(token)]

    def _of_several_tokens(self, senses: list[list[Occurrence]]) -> list[list[str]]:
        """Words of as many tokens. Each takes longer to find, so fewer places are filled."""
        probabilities: list[dict[str, float]] = []
        for own in senses:
            totals: dict[str, float] = {}
            for one in own[:NUM_FILLED]:
                tokens = [*one.tokens[: one.start], "".join(self._units(one)), *one.tokens[one.end :]]
                for found in self.scorer.substitutes(tokens, one.start, MOST_FILLED, keep_word=True):
                    totals[found.word] = totals.get(found.word, 0.0) + float(np.exp(found.log_prob)) / NUM_FILLED
            probabilities.append(totals)
        words = list(dict.fromkeys(word for own in probabilities for word in own))
        fit = np.array([[own.get(word, 0.0) for word in words] for own in probabilities])
        return distinct_words(fit, words, {"".join(self._units(senses[0][0])).casefold()})


def distinct_words(fit: Floats, words: Sequence[str], left_out: set[str]) -> list[list[str]]:
    """Words that fit one sense more than the others.

    Args:
        fit: (senses, V): probability of each word in each sense; words of zeros are not labels.
        words: The V words.
        left_out: Lowercase words that are not labels.

    Returns:
        For each sense its best words by p / (sum of p over the senses) * p.
    """
    scores = fit * fit / np.maximum(fit.sum(axis=0), 1e-300)
    results = []
    for row in scores:
        best = (words[place] for place in np.argsort(-row, kind="stable")[:MOST_SEEN] if row[place] > 0)
        fitting = (word for word in best if word.isalpha() and word.casefold() not in left_out)
        results.append(list(islice(fitting, NUM_LABELS)))
    return results
