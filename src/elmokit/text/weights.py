"""How much a word tells about the text around it: a rare word more than a frequent one.

Input: words in order of falling frequency, or their counts.  Output: a weight between 0 and 1 for each token.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from elmokit.arguments import check_number
from elmokit.files import sha256_of_json
from elmokit.text.sentences import check_tokens

SMOOTHING: Final = 1e-3  # the probability of a word whose weight is one half (Arora et al., 2017)


class WordWeights:
    """Weights of words: SMOOTHING / (SMOOTHING + p), where p is the probability of the word.

    Args:
        words: Words in order of falling frequency, such as those of a vocabulary; the probability of the word at
            index r is taken to be 1 / (10 (r + 10)), which is Zipf's law. Or a mapping from words to their counts in a
            text. A word that is not among them is taken to be rarer than all of them.

    Raises:
        ValueError: If a count is not a number of at least 0, or there are no words.

    >>> weights = WordWeights(["the", "bank", "heron"])
    >>> weights(["the", "heron", "flew"]).round(3).tolist()
    [0.091, 0.107, 0.115]
    """

    def __init__(self, words: Iterable[str] | Mapping[str, float]) -> None:
        if isinstance(words, Mapping):
            names = check_tokens(list(words), "words", "words with their counts")
            counts = np.array([check_number(f"words[{name!r}]", words[name], least=0) for name in names])
            probabilities = counts / max(float(counts.sum()), 1.0)
            rarest = float(probabilities.min(initial=1.0))
        else:
            names = check_tokens(words, "words", "a list of words in order of falling frequency")
            probabilities = 1 / (10 * (np.arange(len(names)) + 10.0))
            rarest = 1 / (10 * (len(names) + 10.0))
        if not names:
            raise ValueError("words is empty: pass at least one word")
        self.known = dict(zip(names, (SMOOTHING / (SMOOTHING + probabilities)).tolist(), strict=True))
        """The weight of each of the words."""
        self.unknown = SMOOTHING / (SMOOTHING + rarest)
        """The weight of any other word."""

    def __call__(self, tokens: Sequence[str]) -> npt.NDArray[np.float32]:
        """The weight of each token: (T,)."""
        return np.array([self.known.get(token, self.unknown) for token in tokens], np.float32)

    def batch(self, sentences: Sequence[Sequence[str]], num_tokens: int) -> npt.NDArray[np.float32]:
        """The weights of several sentences: (B, num_tokens), zeros after the end of a sentence."""
        weights = np.zeros((len(sentences), num_tokens), np.float32)
        for row, tokens in zip(weights, sentences, strict=True):
            row[: len(tokens)] = self(tokens)
        return weights

    def digest(self) -> str:
        """The SHA-256 of all weights."""
        return sha256_of_json([list(self.known.items()), self.unknown])
