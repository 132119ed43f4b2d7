"""The senses of a word in a corpus: its occurrences in groups, each with its typical sentences and a label.

Input: occurrences of a word and their vectors.  Output: `WordSenses`, the most frequent sense first.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from elmokit.arguments import check_path
from elmokit.extras import require
from elmokit.files import replacing
from elmokit.inference.grouping import group
from elmokit.inference.vectors import Floats, unit
from elmokit.progress import format_count
from elmokit.text import Tokenizer, join_tokens
from elmokit.text.marked import phrase_places

NUM_LABELLING: Final = 12  # typical occurrences of a sense whose slots give its label

MARKERS: Final = "os^Dv"

Array = npt.NDArray[np.float32]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Occurrence:
    """A word, or a phrase, in a sentence: `tokens[start:end]`."""

    tokens: list[str]
    start: int
    end: int
    sentence: int
    """Index of the sentence in the corpus."""

    def __str__(self) -> str:
        parts = [*self.tokens[: self.start], f"[{join_tokens(self.tokens[self.start : self.end])}]"]
        return join_tokens([*parts, *self.tokens[self.end :]])


@dataclass(frozen=True)
class Sense:
    """One sense of a word."""

    share: float
    """Fraction of the occurrences."""
    occurrences: list[Occurrence]
    """The most typical first, which is nearest to the centre."""
    substitutes: list[str]
    """Words that fit in its place, and in the place of the other senses less; empty without a language model."""


@dataclass(frozen=True, eq=False)
class WordSenses:
    """The senses of a word."""

    word: str
    senses: list[Sense]
    """The most frequent first."""
    occurrences: list[Occurrence]
    """All occurrences, in the order of the corpus."""
    labels: npt.NDArray[np.int64]
    """(N,): the index in `senses` of each occurrence."""
    vectors: Array
    """(N, 2P): their vectors, of length one."""

    def plot(self, path: str | Path) -> None:
        """Draw the occurrences in the plane of their first two principal components, one color for each sense.

        Args:
            path: An .svg, .png or .pdf file.

        Raises:
            ImportError: If matplotlib is not installed.
            ValueError: If there are no occurrences, or the file has another suffix.
        """
        target = check_picture(path)
        if not self.occurrences:
            raise ValueError(f"{self.word!r} does not occur: there is nothing to draw")
        matplotlib = require("matplotlib", extra="plot")
        matplotlib.use("agg")
        pyplot = require("matplotlib.pyplot", extra="plot")
        centred = self.vectors.astype(np.float64) - self.vectors.mean(axis=0, dtype=np.float64)
        _, _, axes = np.linalg.svd(centred, full_matrices=False)
        places = centred @ axes[:2].T  # (N, 2), or (N, 1) of one occurrence
        places = np.pad(places, ((0, 0), (0, 2 - places.shape[1])))
        labels = [f"{100 * sense.share:.0f}%  {', '.join(sense.substitutes)}".strip() for sense in self.senses]
        fonts = _fonts(self.word + "".join(labels))
        # a word may be "$", which begins a formula
        settings = {"svg.hashsalt": "elmokit", "font.family": fonts, "text.parse_math": False}
        with matplotlib.rc_context(settings):
            # the legend has a line per sense, and leaves the occurrences their room
            figure, axis = pyplot.subplots(figsize=(7, max(6, 4 + 0.25 * len(labels))))
            try:
                for number, label in enumerate(labels):
                    own = places[self.labels == number]
                    marker = MARKERS[number // 10 % len(MARKERS)]  # there are ten colors
                    axis.scatter(
                        *own.T, s=24, alpha=0.6, color=f"C{number % 10}", marker=marker, label=label, linewidths=0
                    )
                title = f"“{self.word}”, {format_count(len(self.occurrences), 'occurrence')}"
                axis.set(title=title, xticks=[], yticks=[])
                figure.legend(loc="outside lower center", frameon=False)
                figure.set_layout_engine("constrained")
                with replacing(target) as temporary:
                    kind = target.suffix.lower().removeprefix(".")
                    metadata = {"Date": None} if kind == "svg" else None
                    with warnings.catch_warnings():  # _fonts has said it, once for all glyphs
                        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
                        figure.savefig(temporary, format=kind, metadata=metadata, dpi=150)
            finally:
                pyplot.close(figure)


def _fonts(text: str) -> list[str]:
    """Names of the fonts that draw a text: that of matplotlib, and those of the machine that have what it lacks."""
    font_manager = require("matplotlib.font_manager", extra="plot")
    names: list[str] = list(font_manager.FontProperties().get_family())
    missing = {ord(character) for character in text if not character.isspace()}
    missing -= _characters_of(font_manager.findfont(font_manager.FontProperties()))
    if not missing:
        return names
    manager = font_manager.fontManager
    known = {font.fname for font in manager.ttflist}
    for path in set(font_manager.findSystemFonts()) - known:  # installed since matplotlib listed the fonts
        with suppress(OSError, RuntimeError):  # damaged, or of a kind that it does not read
            manager.addfont(path)
    # matplotlib's last resort has a box for every character
    fonts = [font for font in manager.ttflist if not font.name.startswith("Last Resort")]
    for font in sorted(fonts, key=lambda font: (font.style != "normal", font.weight != 400, font.name)):
        if found := missing & _characters_of(font.fname):
            names.append(font.name)
            missing -= found
        if not missing:
            return names
    characters = "".join(map(chr, sorted(missing)))
    logger.warning("no font of this machine has %s: install one, such as Noto Sans CJK for Chinese", characters)
    return names


def _characters_of(font: str) -> set[int]:
    """The code points that a font file has; none if it cannot be read."""
    try:
        return set(require("matplotlib.font_manager", extra="plot").get_font(font).get_charmap())
    except (OSError, RuntimeError):  # removed since matplotlib listed the fonts, or damaged
        return set()


def check_picture(path: str | Path) -> Path:
    """Check that a picture can be drawn, before any long work.

    Raises:
        ImportError: If matplotlib is not installed.
        ValueError: If the file has another suffix than .svg, .png or .pdf.
    """
    target = Path(check_path("path", path))
    if target.suffix.lower() not in (".svg", ".png", ".pdf"):
        raise ValueError(f"{target}: a picture is an .svg, .png or .pdf file: give the path such a suffix")
    require("matplotlib", extra="plot")
    return target


def find_occurrences(word: str, sentences: Sequence[list[str]], tokenizer: Tokenizer) -> Iterator[Occurrence]:
    """Every occurrence of a word or a phrase, in upper or lower case.

    Args:
        word: A word, or a phrase, which the tokenizer cuts.
        sentences: Token lists.
        tokenizer: That of the model.

    Raises:
        ValueError: If the word has no token.
    """
    parts = tokenizer(word)
    if not parts:
        raise ValueError(f"word is {word!r}: pass a word or a phrase")
    for number, tokens in enumerate(sentences):
        for start, end in phrase_places(word, parts, tokens):
            yield Occurrence(tokens, start, end, number)


def group_senses(
    word: str,
    occurrences: list[Occurrence],
    vectors: Floats,
    *,
    num_senses: int | None = None,
    label: Callable[[list[list[Occurrence]]], list[list[str]]] | None = None,
) -> WordSenses:
    """Group the occurrences of a word into senses.

    Args:
        word: The word.
        occurrences: Its occurrences.
        vectors: (N, 2P): their vectors.
        num_senses: Number of senses; None finds it from the data.
        label: Gives words for each list of typical occurrences; None: no labels.
    """
    vectors = np.asarray(unit(vectors), np.float32)
    if not occurrences:
        return WordSenses(word, [], [], np.zeros(0, np.int64), vectors)
    groups = group(vectors, num_senses)
    members: list[list[Occurrence]] = []
    for number, centre in enumerate(groups.centres):
        own = np.flatnonzero(groups.labels == number)
        nearest = own[np.argsort(-(vectors[own] @ centre), kind="stable")]
        members.append([occurrences[place] for place in nearest])
    substitutes = [[] for _ in members] if label is None else label([own[:NUM_LABELLING] for own in members])
    senses = [Sense(len(own) / len(occurrences), own, words) for own, words in zip(members, substitutes, strict=True)]
    return WordSenses(word, senses, occurrences, groups.labels, vectors)
