"""Words of a dictionary in running text: from inflected forms to lemmas, without a tagger.

Input: the tokens of a sentence. Output: its words and phrases with the lemmas and parts of speech that they can have.

A form has the lemmas that it has in the training data, itself, and what the rules below make of it; lemmas that are not
in the dictionary do not count. The rules are those of English inflection, as in WordNet's morphy. Irregular forms
("took") are found if they are in the training data.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from elmokit.datasets import Word

RULES = {
    "NOUN": {"s": ("",), "es": ("",), "ies": ("y",), "ves": ("f", "fe"), "men": ("man",)},
    "VERB": {"s": ("",), "es": ("",), "ies": ("y",), "ed": ("", "e"), "ied": ("y",), "ing": ("", "e")},
    "ADJ": {"er": ("", "e"), "est": ("", "e"), "ier": ("y",), "iest": ("y",)},
}  # part of speech -> ending -> endings of the lemma
DOUBLING = ("ed", "ing", "er", "est")  # endings that double a consonant: "stopped", "bigger"
LONGEST_PHRASE = 5  # words
CLIPPED = ("ca", "wo", "sha", "ai")  # what the Penn Treebank's tokens have before "n't"


@dataclass(frozen=True)
class FoundWord:
    """A word or a phrase of a sentence, `tokens[start:end]`."""

    start: int
    end: int
    counts: dict[Word, int]
    """What it can be, with the number of times that it is this in the training data."""


class WordFinder:
    """Finds the words of a dictionary in sentences.

    Args:
        dictionary: The words.
        forms: Lowercase forms of the training data, phrases with spaces between their words; for each form its words
            and how often it is each of them.
        left_out: Lowercase forms that are never found, such as function words.
    """

    def __init__(
        self, dictionary: Iterable[Word], forms: Mapping[str, Mapping[Word, int]], left_out: Collection[str]
    ) -> None:
        self._kinds: dict[str, list[str]] = {}
        for lemma, pos in dictionary:
            self._kinds.setdefault(lemma, []).append(pos)
        self._forms, self._left_out = forms, frozenset(left_out)

    def find(self, tokens: Sequence[str]) -> list[FoundWord]:
        """Find the words of a sentence. From left to right, the longest phrase of the dictionary is taken.

        A phrase that is not in the training data does not begin with a form that is left out ("the street").

        Args:
            tokens: The tokens.
        """
        lower = [token.lower() for token in tokens]
        for place, (token, after) in enumerate(pairwise(lower)):
            if after == "n't" and token in CLIPPED:
                lower[place] = "n't"
        found: list[FoundWord] = []
        start = 0
        while start < len(lower):
            counts: dict[Word, int] = {}
            for end in range(min(start + LONGEST_PHRASE, len(lower)), start, -1):
                form = " ".join(lower[start:end])
                if (lower[start] not in self._left_out or form in self._forms) and (counts := self.counts(form)):
                    found.append(FoundWord(start, end, counts))
                    break
            start = end
        return found

    def counts(self, form: str) -> dict[Word, int]:
        """What a form can be.

        Args:
            form: A lowercase word, or a phrase with spaces between its words.

        Returns:
            Words of the dictionary, with the number of times that the form is this word in the training data.
        """
        if form in self._left_out:
            return {}
        counts = dict(self._forms.get(form, {}))
        for lemma, kinds in _lemmas(form.replace(" ", "_")):
            for pos in self._kinds.get(lemma, ()):
                if pos in kinds:
                    counts.setdefault((lemma, pos), 0)
        return counts


def _lemmas(form: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """What a form may be a form of, with parts of speech. Of a phrase, a noun is inflected at its end, a verb at its
    first word: "primary elections", "takes place"."""
    yield form, ("NOUN", "VERB", "ADJ", "ADV")
    first, mark, rest = form.partition("_")
    for pos, endings in RULES.items():
        for stem in _stems(first if pos == "VERB" else form, endings):
            yield stem + mark + rest if pos == "VERB" else stem, (pos,)


def _stems(form: str, endings: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    for ending, replacements in endings.items():
        stem = form.removesuffix(ending)
        if len(stem) < 2 or stem == form:
            continue
        yield from (stem + replacement for replacement in replacements)
        if ending in DOUBLING and len(stem) > 2 and stem[-1] == stem[-2]:
            yield stem[:-1]
