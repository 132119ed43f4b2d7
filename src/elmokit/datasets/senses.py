"""Words with their senses or similarities in context: all-words WSD, WordNet's sense index, WiC and SCWS.

Input: the path of a file, plain or gzipped. Output: a list of `SenseSentence` or of `WordPair`, or a `SenseIndex`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from xml.parsers import expat

from elmokit.arguments import check_path
from elmokit.datasets.lines import check_not_empty, choose, fail, parse_number, read_lines, read_text
from elmokit.progress import format_count

Word = tuple[str, str]
"""A lemma in lowercase, and NOUN, VERB, ADJ or ADV."""
SenseIndex = dict[Word, list[str]]
"""The sense keys of each word, the most frequent sense first."""

QUOTES = {"``": '"', "''": '"'}  # of the Penn Treebank; running text, which models are trained on, has "
KINDS = {"1": "NOUN", "2": "VERB", "3": "ADJ", "4": "ADV", "5": "ADJ"}  # of sense keys; 5: satellite adjectives


@dataclass(frozen=True, slots=True)
class SenseInstance:
    """A word of a sentence whose sense is to be found."""

    id: str
    index: int
    """Index of the word in the sentence's tokens."""
    lemma: str
    pos: str
    """NOUN, VERB, ADJ or ADV."""
    senses: tuple[str, ...]
    """WordNet sense keys, each of which is correct; empty without a key file."""

    @property
    def word(self) -> Word:
        """The word that is asked for."""
        return self.lemma.lower(), self.pos


@dataclass(frozen=True, slots=True)
class SenseSentence:
    """A sentence with its sense instances; a token may be a phrase with spaces ("primary election")."""

    id: str
    tokens: list[str]
    lemmas: list[str]
    pos: list[str]
    instances: list[SenseInstance]

    def as_words(self) -> tuple[list[str], list[int]]:
        """The sentence as a model reads it.

        Returns:
            The words of all tokens, and T+1 offsets: `tokens[k]` is `words[offsets[k] : offsets[k + 1]]`.
        """
        phrases = as_phrases(self)
        return [word for phrase in phrases for word in phrase], [0, *accumulate(map(len, phrases))]


@dataclass(frozen=True, slots=True)
class WordInContext:
    """One word of a sentence, at `tokens[index]`; `word` is the word as the dataset names it, often the lemma."""

    word: str
    pos: str
    tokens: list[str]
    index: int


@dataclass(frozen=True, slots=True)
class WordPair:
    """Two words in context and their similarity: 0 to 10 in SCWS, 1 (same meaning) or 0 in WiC."""

    first: WordInContext
    second: WordInContext
    score: float


def as_phrases(sentence: SenseSentence) -> list[list[str]]:
    """The words of each token, which may be a phrase, as a model reads them."""
    return [QUOTES.get(token, token).split() or [token] for token in sentence.tokens]


def read_wsd(path: str | Path, keys: str | Path | None = None) -> list[SenseSentence]:
    """Read the XML of the all-words WSD framework (Raganato et al., 2017) with its gold keys.

    Args:
        path: The XML file.
        keys: The key file, which must have keys for every instance. None: `<name>.gold.key.txt` (or .gz) beside
            `<name>.data.xml`, where it exists.

    Returns:
        The sentences in the order of the file.

    Raises:
        ValueError: If a file is not in this format. The message names the line.
    """
    path = Path(check_path("path", path))
    if keys is None:
        stem = re.sub(r"(\.data)?\.xml(\.gz)?$", "", path.name)
        beside = (path.with_name(f"{stem}.gold.key.txt{end}") for end in ("", ".gz"))
        keys = next((file for file in beside if file.is_file()), None)
    parser = _SenseParser(path, keys)
    parser.parse()
    return check_not_empty(path, parser.sentences)


def _read_keys(path: str | Path) -> dict[str, tuple[str, ...]]:
    """The sense keys of each instance id."""
    gold: dict[str, tuple[str, ...]] = {}
    for number, line in read_lines(path):
        name, *senses = line.split()
        if not senses or not all("%" in sense for sense in senses):
            fail(path, number, f"{line!r}, expected an instance id and its WordNet sense keys")
        gold[name] = tuple(senses)
    return gold


class _SenseParser:
    """Handles the XML elements of a WSD file as they are read."""

    def __init__(self, path: Path, keys: str | Path | None) -> None:
        self.path, self.keys = path, keys
        self.gold = {} if keys is None else _read_keys(keys)
        self.sentences: list[SenseSentence] = []
        self.text: list[str] = []
        self.parser = expat.ParserCreate()
        self.parser.StartElementHandler, self.parser.EndElementHandler = self._start, self._end
        self.parser.CharacterDataHandler = self.text.append
        self.parser.EntityDeclHandler = self._refuse_entity  # a corpus needs none, and they can grow without bound

    def parse(self) -> None:
        try:
            self.parser.Parse(read_text(self.path), True)
        except expat.ExpatError as error:
            fail(self.path, error.lineno, f"{expat.errors.messages[error.code]}, expected well-formed XML")

    def _attribute(self, attributes: Mapping[str, str], name: str, element: str) -> str:
        if name not in attributes:
            fail(self.path, self.parser.CurrentLineNumber, f"<{element}> has no attribute {name}")
        return attributes[name]

    def _start(self, element: str, attributes: dict[str, str]) -> None:
        self.text.clear()
        if element == "sentence":
            self.sentences.append(SenseSentence(self._attribute(attributes, "id", element), [], [], [], []))
        if element not in ("wf", "instance"):
            return
        if not self.sentences:
            fail(self.path, self.parser.CurrentLineNumber, f"<{element}> outside of any <sentence>")
        sentence = self.sentences[-1]
        lemma, pos = (self._attribute(attributes, name, element) for name in ("lemma", "pos"))
        sentence.lemmas.append(lemma)
        sentence.pos.append(pos)
        if element == "instance":
            name = self._attribute(attributes, "id", element)
            if self.keys and name not in self.gold:
                fail(self.path, self.parser.CurrentLineNumber, f"the instance {name} has no sense key in {self.keys}")
            instance = SenseInstance(name, len(sentence.tokens), lemma, pos, self.gold.get(name, ()))
            sentence.instances.append(instance)

    def _end(self, element: str) -> None:
        if element in ("wf", "instance"):
            if not (token := "".join(self.text).strip()):
                fail(self.path, self.parser.CurrentLineNumber, f"<{element}> contains no word")
            self.sentences[-1].tokens.append(token)

    def _refuse_entity(self, name: str, *_: object) -> None:
        fail(self.path, self.parser.CurrentLineNumber, f"declares the entity {name!r}: entities are not read")


def read_sense_index(path: str | Path) -> SenseIndex:
    """Read WordNet's index.sense: the senses of each lemma and part of speech.

    Args:
        path: The file.

    Returns:
        The sense keys by (lemma, part of speech), the first sense first.

    Raises:
        ValueError: If the file is not in this format. The message names the line.
    """
    numbered: dict[Word, list[tuple[int, str]]] = {}
    for number, line in read_lines(path):
        match = re.fullmatch(r"(\S+%[1-5]:\S*) \d+ (\d+) \d+", line)
        if not match:
            fail(path, number, f"{line!r}, expected a sense key, an offset, a sense number and a count")
        key, rank = match.groups()
        numbered.setdefault(word_of_sense(key), []).append((int(rank), key))
    check_not_empty(path, list(numbered))
    return {word: [key for _, key in sorted(senses)] for word, senses in numbered.items()}


def word_of_sense(key: str) -> Word:
    """The word of a WordNet sense key, such as ("bank", "NOUN") of `bank%1:17:01::`."""
    lemma, _, rest = key.rpartition("%")
    return lemma, KINDS[rest[0]]


def read_wic(path: str | Path, gold: str | Path | None = None) -> list[WordPair]:
    """Read Word in Context.

    Args:
        path: The sentence pairs, `<name>.data.txt`.
        gold: The labels T and F, one per line. None: `<name>.gold.txt` beside `path`.

    Returns:
        The pairs in the order of the file, with the score 1 for the same meaning and 0 for another.

    Raises:
        ValueError: If a file is not in this format. The message names the line.
    """
    path = Path(check_path("path", path))
    gold = gold or path.with_name(path.name.replace(".data.", ".gold."))
    scores = [choose(gold, number, line.strip(), {"T": 1.0, "F": 0.0}) for number, line in read_lines(gold)]
    rows = [(number, line.split("\t")) for number, line in read_lines(path)]
    if len(rows) != len(scores):
        labels = format_count(len(scores), "label")
        raise ValueError(f"{gold}: {labels}, expected one for each of the {len(rows)} pairs of {path}")
    pairs = []
    for (number, row), score in zip(rows, scores, strict=True):
        match = re.fullmatch(r"(\d+)-(\d+)", row[2]) if len(row) == 5 else None
        if not match:
            fail(path, number, f"{row[:3]}, expected word, N or V, indices i-j and two sentences, tabs between them")
        words = []
        for sentence, index in zip(row[3:], match.groups(), strict=True):
            tokens = sentence.split(" ")
            if int(index) >= len(tokens):
                fail(path, number, f"the index {index} is too large for the {len(tokens)} tokens of {sentence!r}")
            words.append(WordInContext(row[0], row[1], tokens, int(index)))
        pairs.append(WordPair(words[0], words[1], score))
    return check_not_empty(path, pairs)


def read_scws(path: str | Path) -> list[WordPair]:
    """Read SCWS: two words, each marked `<b> … </b>` in its context, and the mean of their ratings.

    Args:
        path: The file.

    Returns:
        The pairs in the order of the file.

    Raises:
        ValueError: If the file is not in this format. The message names the line.
    """
    pairs = []
    for number, line in read_lines(path):
        row = line.split("\t")
        if len(row) != 18:
            fail(path, number, f"{len(row)} columns, expected 18 with a tab between them")
        words = []
        for word, pos, context in ((row[1], row[2], row[5]), (row[3], row[4], row[6])):
            tokens = [token for token in context.split(" ") if token]
            if tokens.count("<b>") != 1 or tokens.index("<b>") + 2 >= len(tokens):
                fail(path, number, f"the word {word!r} is not marked once in its context, expected '<b> {word} </b>'")
            index = tokens.index("<b>")
            words.append(WordInContext(word, pos, [token for token in tokens if token not in ("<b>", "</b>")], index))
        pairs.append(WordPair(words[0], words[1], parse_number(path, number, row[7], float)))
    return check_not_empty(path, pairs)
