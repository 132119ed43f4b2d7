"""The standard formats of labelled English, each read by one function into plain dataclasses.

Enters: the path of a file in the format that its publisher chose, plain or gzipped (by its name, `.gz`).
Leaves: a list of examples in the order of the file.  Tokens, tags and offsets are kept as they are written: what counts
as right is a scorer's matter.  Spans of tokens are half-open, `tokens[start:end]`; so are spans of characters.
What is wrong in a file is a ValueError that names the file and the line.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar
from xml.parsers import expat

Value = TypeVar("Value")
BIO = re.compile(r"O|[BI]-\S+")
ENTAILMENT_LABELS = {label: label for label in ("entailment", "neutral", "contradiction")}
SST_LABELS = {label: label for label in "01234"}
GAP_COLUMNS = ("ID", "Text", "Pronoun", "Pronoun-offset", "A", "A-offset", "A-coref", "B", "B-offset", "B-coref", "URL")
TREE_BRACKETS = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}"}


@dataclass(frozen=True, slots=True)
class TaggedSentence:
    """A sentence with one tag a token: part of speech, chunk or entity."""

    tokens: list[str]
    tags: list[str]


@dataclass(frozen=True, slots=True)
class SenseInstance:
    """A word of a sentence whose sense is asked for."""

    id: str
    index: int
    """Its place in the sentence's tokens."""
    lemma: str
    pos: str
    """NOUN, VERB, ADJ or ADV."""
    senses: tuple[str, ...]
    """WordNet sense keys, any of which counts as right; empty where there is no key file."""


@dataclass(frozen=True, slots=True)
class SenseSentence:
    """A sentence with the words whose sense is known; a token may be a phrase with spaces ("primary election")."""

    id: str
    tokens: list[str]
    lemmas: list[str]
    pos: list[str]
    instances: list[SenseInstance]


@dataclass(frozen=True, slots=True)
class Span:
    """A labelled stretch of a sentence: `tokens[start:end]`."""

    start: int
    end: int
    label: str


@dataclass(frozen=True, slots=True)
class Proposition:
    """A predicate of a sentence and its arguments, the predicate's own words (`V`) among them."""

    predicate: int
    """Its place in the sentence's tokens."""
    roleset: str
    """PropBank's name of its sense: "come.03"."""
    arguments: list[Span]

    def tags(self, num_tokens: int) -> list[str]:
        """The arguments as one BIO tag a token; where one argument lies in another, the outer one counts."""
        tags = ["O"] * num_tokens
        for span in sorted(self.arguments, key=lambda span: span.end - span.start):
            tags[span.start : span.end] = [f"B-{span.label}"] + [f"I-{span.label}"] * (span.end - span.start - 1)
        return tags


@dataclass(frozen=True, slots=True)
class AnnotatedSentence:
    """A sentence of a CoNLL-2012 document; `pos` holds "-" where the file has no parts of speech."""

    tokens: list[str]
    pos: list[str]
    propositions: list[Proposition]


@dataclass(frozen=True, slots=True)
class Document:
    """One part of a CoNLL-2012 document."""

    name: str
    part: int
    sentences: list[AnnotatedSentence]
    clusters: list[list[tuple[int, int]]]
    """Coreference: the mentions of each entity as (start, end) in the tokens of all sentences in a row; mentions and
    clusters stand in the order of the text."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A name that a pronoun may refer to, at `text[start:]` of its example."""

    name: str
    start: int
    coreferent: bool


@dataclass(frozen=True, slots=True)
class PronounExample:
    """A passage of GAP: a pronoun at `text[start:]` and two names, at most one of which it refers to."""

    id: str
    text: str
    pronoun: str
    start: int
    a: Candidate
    b: Candidate
    url: str


@dataclass(frozen=True, slots=True)
class LabelledText:
    """A sentence or phrase with one label for all of it."""

    tokens: list[str]
    label: str
    phrases: list[LabelledText] = field(default_factory=list)
    """The labelled phrases inside it, each before its own parts."""


@dataclass(frozen=True, slots=True)
class SentencePair:
    """Two sentences as raw text and what the first says of the second: entailment, neutral or contradiction."""

    premise: str
    hypothesis: str
    label: str


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to be found at `context[start:]`, in characters."""

    text: str
    start: int


@dataclass(frozen=True, slots=True)
class Question:
    """A question on a paragraph, with the answer of every annotator: one in training sets, often three in others."""

    id: str
    title: str
    context: str
    question: str
    answers: list[Answer]


@dataclass(frozen=True, slots=True)
class WordInContext:
    """One word of a sentence, at `tokens[index]`; `word` is what was asked for, often the lemma."""

    word: str
    pos: str
    tokens: list[str]
    index: int


@dataclass(frozen=True, slots=True)
class WordPair:
    """Two words in context and how alike people find them: 0 to 10 in SCWS, 1 (same meaning) or 0 in WiC."""

    first: WordInContext
    second: WordInContext
    score: float


SenseIndex = dict[tuple[str, str], list[str]]
"""(lemma, NOUN | VERB | ADJ | ADV) -> the sense keys of that word, the most frequent sense first."""


def read_conllu(path: str | Path, *, column: Literal["upos", "xpos"] = "upos") -> list[TaggedSentence]:
    """CoNLL-U: the syntactic words with their universal (`upos`) or treebank (`xpos`) tags.

    Ranges of multiword tokens (3-4) and empty nodes (8.1) are left out; columns behind the tenth are not read.
    """
    try:
        from conllu.exceptions import ParseException
        from conllu.parser import parse_line
    except ImportError as error:
        raise ImportError('reading CoNLL-U needs conllu: pip install "elmokit[tasks]"') from error
    fields = ("id", "form", "lemma", "upos", "xpos")
    sentences = []
    for block in _blocks(path):
        tokens, tags = [], []
        for number, line in block:
            if line.startswith("#"):
                continue
            if (columns := line.count("\t") + 1) < 10:
                _fail(path, number, f"{columns} columns, expected the 10 of CoNLL-U with a tab between them")
            try:
                word = parse_line(line, fields)
            except ParseException as error:
                _fail(path, number, str(error))
            if not isinstance(word["id"], int):
                continue
            if word[column] in (None, "", "_"):
                _fail(path, number, f"the word {word['form']!r} has no tag, expected one in column {column}")
            tokens.append(word["form"])
            tags.append(word[column])
        if tokens:
            sentences.append(TaggedSentence(tokens, tags))
    return _filled(path, sentences)


def read_wsd(path: str | Path, keys: str | Path | None = None) -> list[SenseSentence]:
    """The XML of the all-words WSD framework (Raganato et al., 2017) with the gold keys that belong to it.

    `keys` is the key file; without it `<name>.gold.key.txt` beside `<name>.data.xml` is read where it is there, plain
    or gzipped.  Every instance must then have its keys.
    """
    path = Path(path)
    if keys is None:
        stem = re.sub(r"(\.data)?\.xml(\.gz)?$", "", path.name)
        beside = (path.with_name(f"{stem}.gold.key.txt{end}") for end in ("", ".gz"))
        keys = next((file for file in beside if file.is_file()), None)
    gold: dict[str, tuple[str, ...]] = {}
    for number, line in _lines(keys) if keys is not None else ():
        name, *senses = line.split()
        if not senses or not all("%" in sense for sense in senses):
            _fail(keys, number, f"{line!r}, expected an instance id and its WordNet sense keys")
        gold[name] = tuple(senses)

    sentences: list[SenseSentence] = []
    text: list[str] = []
    parser = expat.ParserCreate()

    def attribute(attributes: dict[str, str], name: str, element: str) -> str:
        if name not in attributes:
            _fail(path, parser.CurrentLineNumber, f"<{element}> has no attribute {name}")
        return attributes[name]

    def start(element: str, attributes: dict[str, str]) -> None:
        text.clear()
        if element == "sentence":
            sentences.append(SenseSentence(attribute(attributes, "id", element), [], [], [], []))
        if element not in ("wf", "instance"):
            return
        if not sentences:
            _fail(path, parser.CurrentLineNumber, f"<{element}> outside of any <sentence>")
        sentence = sentences[-1]
        sentence.lemmas.append(attribute(attributes, "lemma", element))
        sentence.pos.append(attribute(attributes, "pos", element))
        if element == "instance":
            name = attribute(attributes, "id", element)
            if keys and name not in gold:
                _fail(path, parser.CurrentLineNumber, f"the instance {name} has no sense key in {keys}")
            lemma, pos = sentence.lemmas[-1], sentence.pos[-1]
            sentence.instances.append(SenseInstance(name, len(sentence.tokens), lemma, pos, gold.get(name, ())))

    def end(element: str) -> None:
        if element in ("wf", "instance"):
            if not (token := "".join(text).strip()):
                _fail(path, parser.CurrentLineNumber, f"<{element}> holds no word")
            sentences[-1].tokens.append(token)

    def refuse_entity(name: str, *_: object) -> None:
        _fail(path, parser.CurrentLineNumber, f"declares the entity {name!r}: entities are not read")

    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.CharacterDataHandler = text.append
    parser.EntityDeclHandler = refuse_entity  # a corpus needs none, and they can grow without bound
    try:
        parser.Parse(_text(path), True)
    except expat.ExpatError as error:
        _fail(path, error.lineno, f"{expat.errors.messages[error.code]}, expected well-formed XML")
    return _filled(path, sentences)


def read_sense_index(path: str | Path) -> SenseIndex:
    """WordNet's index.sense: the candidates of each lemma and part of speech, the first sense first (the back-off)."""
    names = {"1": "NOUN", "2": "VERB", "3": "ADJ", "4": "ADV", "5": "ADJ"}  # 5: satellite adjectives
    numbered: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for number, line in _lines(path):
        match = re.fullmatch(r"((\S+)%([1-5]):\S*) \d+ (\d+) \d+", line)
        if not match:
            _fail(path, number, f"{line!r}, expected a sense key, an offset, a sense number and a count")
        key, lemma, kind, rank = match.groups()
        numbered.setdefault((lemma, names[kind]), []).append((int(rank), key))
    _filled(path, list(numbered))
    return {word: [key for _, key in sorted(senses)] for word, senses in numbered.items()}


def read_bio(path: str | Path) -> list[TaggedSentence]:
    """Two columns, token and BIO tag, with a tab or spaces between them (WNUT17, LitBank)."""
    return _tagged(path, ("token", "entity"), "entity")


def read_conll2003(path: str | Path, *, column: Literal["pos", "chunk", "entity"] = "entity") -> list[TaggedSentence]:
    """CoNLL-2003, four columns: token, part of speech, chunk, entity.  Published as IOB1: I- may begin one."""
    return _tagged(path, ("token", "pos", "chunk", "entity"), column)


def read_conll2000(path: str | Path, *, column: Literal["pos", "chunk"] = "chunk") -> list[TaggedSentence]:
    """CoNLL-2000, three columns: token, part of speech, chunk."""
    return _tagged(path, ("token", "pos", "chunk"), column)


def read_conll2012(path: str | Path) -> list[Document]:
    """CoNLL-2012 (`*_conll`): documents with the propositions of each sentence and the coreference of each document.

    A sentence of p predicates has 12 + p columns: document, part, number, word, part of speech, parse, predicate lemma,
    frameset, sense, speaker, entity, the arguments of each predicate, coreference.
    """
    documents: list[Document] = []
    clusters: dict[str, list[tuple[int, int]]] = {}
    num_tokens = 0  # of the document so far
    begun = last = 0  # the lines where the open document began (0: none is open) and where reading is
    for block in _blocks(path, alone=("#begin document", "#end document")):
        last, line = block[0]
        if line.startswith("#begin document"):
            match = re.fullmatch(r"#begin document \((.+)\); part (\d+)\s*", line)
            if begun or not match:
                expected = f"the end of the document of line {begun}" if begun else "'#begin document (…); part 000'"
                _fail(path, last, f"{line!r}, expected {expected}")
            documents.append(Document(match[1], int(match[2]), [], []))
            begun, num_tokens, clusters = last, 0, {}
        elif not begun:
            _fail(path, last, f"{line[:60]!r}, expected '#begin document (…); part 000' before it")
        elif line.startswith("#end document"):
            begun = 0
        else:
            sentence, mentions = _annotated(path, [(number, _columns(row)) for number, row in block])
            documents[-1].sentences.append(sentence)
            for mention in mentions:
                if mention.label not in clusters:
                    documents[-1].clusters.append(clusters.setdefault(mention.label, []))
                clusters[mention.label].append((num_tokens + mention.start, num_tokens + mention.end))
            num_tokens += len(sentence.tokens)
    if begun:
        _fail(path, last, f"the file ends, expected '#end document' for the document of line {begun}")
    return _filled(path, documents)


def _annotated(path: str | Path, rows: list[tuple[int, list[str]]]) -> tuple[AnnotatedSentence, list[Span]]:
    """A sentence of CoNLL-2012 rows, and its mentions in the order of the text."""
    predicates = [index for index, (_, row) in enumerate(rows) if len(row) > 7 and row[7] != "-"]
    width = 12 + len(predicates)
    for number, row in rows:
        if len(row) != width:
            reason = f"12 and one for each of the {len(predicates)} predicates in the sentence"
            _fail(path, number, f"{len(row)} columns, expected {width}: {reason}")
    propositions = []
    for column, predicate in enumerate(predicates, start=11):
        cells = [(number, row[column]) for number, row in rows]
        arguments = _spans(path, cells, r"(\([^()*|]+)*\*?\)*", opening=r"\(([^()*|]+)", closing=r"()\)")
        propositions.append(Proposition(predicate, ".".join(rows[predicate][1][6:8]), arguments))
    cells = [(number, row[-1]) for number, row in rows]
    mark = r"(\(\d+\)?|\d+\))"
    mentions = _spans(path, cells, rf"{mark}(\|{mark})*", opening=r"\((\d+)", closing=r"(\d+)\)")
    return AnnotatedSentence([row[3] for _, row in rows], [row[4] for _, row in rows], propositions), mentions


def _spans(path: str | Path, cells: list[tuple[int, str]], cell: str, *, opening: str, closing: str) -> list[Span]:
    """The spans of one bracketed column, by start and then by end.

    `opening` finds the labels that open in a cell, `closing` those that close: an empty label closes the last opened.
    """
    pending: list[tuple[str, int, int]] = []
    spans = []
    for index, (number, text) in enumerate(cells):
        if text in ("*", "-"):  # nearly all of them
            continue
        if not re.fullmatch(cell, text):
            _fail(path, number, f"{text!r} in a column of brackets, expected something like '(label*', '*)', '(3|4)'")
        pending += ((label, index, number) for label in re.findall(opening, text))
        for label in re.findall(closing, text):
            found = max((at for at, entry in enumerate(pending) if label in ("", entry[0])), default=None)
            if found is None:
                _fail(path, number, f"{text!r} closes a bracket that the sentence did not open")
            name, start, _ = pending.pop(found)
            spans.append(Span(start, index + 1, name))
    if pending:
        _fail(path, pending[0][2], f"the bracket ({pending[0][0]} is not closed in its sentence")
    return sorted(spans, key=lambda span: (span.start, span.end))


def read_gap(path: str | Path) -> list[PronounExample]:
    """GAP: ambiguous pronouns, a tab-separated table with a header."""
    truth = {"TRUE": True, "FALSE": False}
    examples = []
    for number, row in _table(path, GAP_COLUMNS):
        start = {}
        for name in ("Pronoun", "A", "B"):
            start[name] = _number(path, number, row[f"{name}-offset"], int)
            _check_offset(path, number, row["Text"], row[name], start[name])
        a, b = (
            Candidate(row[name], start[name], _choice(path, number, row[f"{name}-coref"].upper(), truth))
            for name in "AB"
        )
        examples.append(PronounExample(row["ID"], row["Text"], row["Pronoun"], start["Pronoun"], a, b, row["URL"]))
    return _filled(path, examples)


def read_sst_trees(path: str | Path) -> list[LabelledText]:
    r"""The Stanford Sentiment Treebank, a tree a line: each sentence with its label, "0" (very negative) to "4".

    Its phrases come with it, all in one list.  The escapes that a tree needs are undone: `-LRB-` is "(", `\/` is "/".
    """
    examples = []
    for number, line in _lines(path):
        found: list[LabelledText] = []
        open_phrases: list[LabelledText] = []
        for opened, label, closed, word in re.findall(r"(\() *([^() ]*)|(\))|([^() ]+)", line):
            if opened:
                phrase = LabelledText([], _choice(path, number, label, SST_LABELS))
                open_phrases.append(phrase)
                found.append(phrase)
            elif not open_phrases:
                _fail(path, number, f"{closed or word!r} stands behind the tree, expected one tree a line")
            elif closed:
                if not open_phrases.pop().tokens:
                    _fail(path, number, "a phrase without words, expected at least one")
            else:
                token = TREE_BRACKETS.get(word, word).replace("\\/", "/").replace("\\*", "*")
                for phrase in open_phrases:
                    phrase.tokens.append(token)
        if open_phrases:
            _fail(path, number, f"{len(open_phrases)} brackets are not closed")
        sentence, *parts = found
        sentence.phrases.extend(parts)
        examples.append(sentence)
    return _filled(path, examples)


def read_labelled_tsv(path: str | Path) -> list[LabelledText]:
    """A table with a header, `label` and `text` with a tab between them; the text is split at its spaces (SST-2)."""
    examples = []
    for number, row in _table(path, ("label", "text")):
        if not (row["label"] and row["text"].strip(" ")):
            _fail(path, number, "an empty column, expected a label and a text")
        examples.append(LabelledText([token for token in row["text"].split(" ") if token], row["label"]))
    return _filled(path, examples)


def read_snli(path: str | Path) -> list[SentencePair]:
    """SNLI and MultiNLI, as `.jsonl` or as the table with a header that is published beside it.

    Pairs on whose label the annotators did not agree (`-`) are left out, as everyone does.
    """
    names = ("gold_label", "sentence1", "sentence2")
    rows: Iterator[tuple[int, Any]]
    if ".jsonl" in Path(path).suffixes:
        rows = ((number, _json(path, number, line)) for number, line in _lines(path))
    else:
        rows = _table(path, names)
    pairs = []
    for number, row in rows:
        label, premise, hypothesis = (_member(path, number, row, name, str) for name in names)
        if label != "-":
            pairs.append(SentencePair(premise, hypothesis, _choice(path, number, label, ENTAILMENT_LABELS)))
    return _filled(path, pairs)


def read_sick(path: str | Path) -> list[SentencePair]:
    """SICK: sentence A, sentence B and the judgement, in small letters as SNLI has it."""
    pairs = []
    for number, row in _table(path, ("sentence_A", "sentence_B", "entailment_judgment")):
        label = _choice(path, number, row["entailment_judgment"].lower(), ENTAILMENT_LABELS)
        pairs.append(SentencePair(row["sentence_A"], row["sentence_B"], label))
    return _filled(path, pairs)


def read_squad(path: str | Path) -> list[Question]:
    """SQuAD v1.1 JSON: one example a question; every answer stands in its paragraph where its offset says."""
    questions = []
    content = _json(path, 1, _text(path))
    for article in _member(path, "the file", content, "data", list):
        title = str(article.get("title", "")) if isinstance(article, dict) else ""
        where = f"article {title!r}"
        for paragraph in _member(path, where, article, "paragraphs", list):
            context = _member(path, where, paragraph, "context", str)
            for entry in _member(path, where, paragraph, "qas", list):
                name = _member(path, where, entry, "id", str)
                place = f"question {name}"
                answers = []
                for answer in _member(path, place, entry, "answers", list):
                    text = _member(path, place, answer, "text", str)
                    start = _member(path, place, answer, "answer_start", int)
                    _check_offset(path, place, context, text, start)
                    answers.append(Answer(text, start))
                if not answers:
                    _fail(path, place, "no answer, expected one as in SQuAD v1.1")
                questions.append(Question(name, title, context, _member(path, place, entry, "question", str), answers))
    return _filled(path, questions)


def read_wic(path: str | Path, gold: str | Path | None = None) -> list[WordPair]:
    """Word in Context: `<name>.data.txt` with `<name>.gold.txt` beside it, or the file of T and F that `gold` names."""
    path = Path(path)
    gold = gold or path.with_name(path.name.replace(".data.", ".gold."))
    truths = [_choice(gold, number, line.strip(), {"T": 1.0, "F": 0.0}) for number, line in _lines(gold)]
    rows = [(number, line.split("\t")) for number, line in _lines(path)]
    if len(rows) != len(truths):
        raise ValueError(f"{gold}: {len(truths)} labels, expected one for each of the {len(rows)} pairs of {path}")
    pairs = []
    for (number, row), truth in zip(rows, truths, strict=True):
        match = re.fullmatch(r"(\d+)-(\d+)", row[2]) if len(row) == 5 else None
        if not match:
            _fail(path, number, f"{row[:3]}, expected word, N or V, places i-j and two sentences, tabs between them")
        words = []
        for sentence, place in zip(row[3:], match.groups(), strict=True):
            tokens = sentence.split(" ")
            if int(place) >= len(tokens):
                _fail(path, number, f"the word at place {place} is behind the {len(tokens)} tokens of {sentence!r}")
            words.append(WordInContext(row[0], row[1], tokens, int(place)))
        pairs.append(WordPair(words[0], words[1], truth))
    return _filled(path, pairs)


def read_scws(path: str | Path) -> list[WordPair]:
    """SCWS: two words, each marked `<b> … </b>` in its context, and the mean of their ratings."""
    pairs = []
    for number, line in _lines(path):
        row = line.split("\t")
        if len(row) != 18:
            _fail(path, number, f"{len(row)} columns, expected 18 with a tab between them")
        words = []
        for word, pos, context in ((row[1], row[2], row[5]), (row[3], row[4], row[6])):
            tokens = [token for token in context.split(" ") if token]
            if tokens.count("<b>") != 1 or tokens.index("<b>") + 2 >= len(tokens):
                _fail(path, number, f"the word {word!r} is not marked once in its context, expected '<b> {word} </b>'")
            index = tokens.index("<b>")
            words.append(WordInContext(word, pos, [token for token in tokens if token not in ("<b>", "</b>")], index))
        pairs.append(WordPair(words[0], words[1], _number(path, number, row[7], float)))
    return _filled(path, pairs)


def _tagged(path: str | Path, names: Sequence[str], wanted: str) -> list[TaggedSentence]:
    """The sentences of a file with the columns `names`, each token with its tag from the column `wanted`."""
    sentences = []
    for block in _blocks(path):
        tokens, tags = [], []
        for number, line in block:
            if line.startswith("-DOCSTART-"):
                continue
            row = _columns(line)
            if len(row) != len(names) or not all(row):
                _fail(path, number, f"{len(row)} columns in {line!r}, expected {len(names)}: {', '.join(names)}")
            tag = row[names.index(wanted)]
            if wanted != "pos" and not BIO.fullmatch(tag):
                _fail(path, number, f"the tag {tag!r}, expected O, B-… or I-…")
            tokens.append(row[0])
            tags.append(tag)
        if tokens:
            sentences.append(TaggedSentence(tokens, tags))
    return _filled(path, sentences)


def _columns(line: str) -> list[str]:
    # Not str.split(): a token of noisy text may hold a no-break space.
    return line.rstrip(" ").split("\t") if "\t" in line else re.split(" +", line.strip(" "))


def _table(path: str | Path, needed: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows of a tab-separated table without quoting, by the names in its first line, which must hold `needed`."""
    header: list[str] = []
    for number, line in _lines(path):
        row = line.split("\t")
        if not header:
            if missing := [name for name in needed if name not in row]:
                _fail(
                    path,
                    number,
                    f"no column {', '.join(missing)} in this first line, expected the names of the columns",
                )
            header = row
            continue
        if len(row) != len(header):
            _fail(path, number, f"{len(row)} columns, expected the {len(header)} of the first line")
        yield number, dict(zip(header, row, strict=True))


def _json(path: str | Path, number: int, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        _fail(path, number + error.lineno - 1, f"{error.msg} at character {error.colno}, expected JSON")
    except RecursionError:
        _fail(path, number, "brackets nested without end, expected JSON")


def _member(path: str | Path, place: int | str, holder: Any, name: str, kind: type[Value]) -> Value:
    value = holder.get(name) if isinstance(holder, dict) else None
    if not isinstance(value, kind):
        _fail(path, place, f"{name} is {value!r:.60}, expected one of type {kind.__name__}")
    return value


def _check_offset(path: str | Path, place: int | str, text: str, part: str, start: int) -> None:
    if start < 0 or not part or not text.startswith(part, start):
        found = text[max(start, 0) :][: len(part)]
        _fail(path, place, f"{part!r} is not at its offset {start}, where {found!r} stands")


def _choice(path: str | Path, number: int, text: str, choices: Mapping[str, Value]) -> Value:
    if text not in choices:
        _fail(path, number, f"the label {text!r}, expected one of {', '.join(choices)}")
    return choices[text]


def _number(path: str | Path, number: int, text: str, kind: Callable[[str], Value]) -> Value:
    try:
        return kind(text)
    except ValueError:
        _fail(path, number, f"{text!r}, expected a number")


def _text(path: str | Path) -> str:
    """All of a file; blank lines are kept as such, so that a parser counts lines as an editor does."""
    lines: list[str] = []
    for number, line in _lines(path):
        lines += [""] * (number - len(lines) - 1)
        lines.append(line)
    return "\n".join(_filled(path, lines))


def _blocks(path: str | Path, *, alone: tuple[str, ...] = ()) -> Iterator[list[tuple[int, str]]]:
    """The runs of lines between blank lines, each line with its number; what starts with `alone` is a run by itself."""
    block: list[tuple[int, str]] = []
    for number, line in _lines(path):
        if block and (number > block[-1][0] + 1 or line.startswith(alone) or block[-1][1].startswith(alone)):
            yield block
            block = []
        block.append((number, line))
    if block:
        yield block


def _lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """The lines that are not blank, with their numbers.  Only a line feed ends one: text holds U+2028 and the like."""
    path = Path(path)
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            for number, raw in enumerate(file, start=1):
                try:
                    line = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
                except UnicodeDecodeError as error:
                    _fail(path, number, f"byte {error.start + 1} of it is {raw[error.start]:#04x}, expected UTF-8")
                if line.strip(" \t"):
                    yield number, line
    except FileNotFoundError:
        raise ValueError(f"{path}: there is no such file") from None
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: cannot be read: {error}") from error


def _filled(path: str | Path, examples: list[Value]) -> list[Value]:
    if not examples:
        raise ValueError(f"{path}: holds no example, expected at least one")
    return examples


def _fail(path: str | Path | None, place: int | str, message: str) -> NoReturn:
    raise ValueError(f"{path}, {place if isinstance(place, str) else f'line {place}'}: {message}")
