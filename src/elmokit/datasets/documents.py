"""Documents with semantic roles and coreference (CoNLL-2012), and passages with ambiguous pronouns (GAP).

Input: the path of a file, plain or gzipped. Output: a list of `Document` or of `PronounExample`.
Spans are half-open: `tokens[start:end]`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from elmokit.datasets.lines import (
    check_not_empty,
    check_offset,
    choose,
    fail,
    parse_number,
    read_blocks,
    read_table,
    split_columns,
)

DOCUMENT_BEGIN, DOCUMENT_END = "#begin document", "#end document"
GAP_COLUMNS = ("ID", "Text", "Pronoun", "Pronoun-offset", "A", "A-offset", "A-coref", "B", "B-offset", "B-coref", "URL")


@dataclass(frozen=True, slots=True)
class Span:
    """A labelled span of a sentence: `tokens[start:end]`."""

    start: int
    end: int
    label: str


@dataclass(frozen=True, slots=True)
class Proposition:
    """A predicate of a sentence and its arguments; the predicate's own words have the label `V`."""

    predicate: int
    """Index of the predicate in the sentence's tokens."""
    roleset: str
    """PropBank's name of its sense: "come.03"."""
    arguments: list[Span]

    def tags(self, num_tokens: int) -> list[str]:
        """The arguments as one BIO tag per token. Where an argument is inside another, the outer one counts.

        Args:
            num_tokens: Number of tokens of the sentence.
        """
        tags = ["O"] * num_tokens
        for span in sorted(self.arguments, key=lambda span: span.end - span.start):
            tags[span.start : span.end] = [f"B-{span.label}"] + [f"I-{span.label}"] * (span.end - span.start - 1)
        return tags


@dataclass(frozen=True, slots=True)
class AnnotatedSentence:
    """A sentence of a CoNLL-2012 document; `pos` is "-" where the file has no parts of speech."""

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
    """Coreference: the mentions of each entity as (start, end), counted over the tokens of all sentences. Mentions and
    clusters are in the order of the text."""


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


def read_conll2012(path: str | Path) -> list[Document]:
    """Read CoNLL-2012 (`*_conll`): documents with the propositions of their sentences and with coreference.

    A sentence of p predicates has 12 + p columns: document, part, number, word, part of speech, parse, predicate lemma,
    frameset, sense, speaker, entity, the arguments of each predicate, coreference.

    Args:
        path: The file.

    Returns:
        The documents in the order of the file.

    Raises:
        ValueError: If the file is not in this format. The message names the line.
    """
    documents: list[Document] = []
    clusters: dict[str, list[tuple[int, int]]] = {}
    num_tokens = 0  # of the document so far
    begun = last = 0  # first line of the open document (0: none is open), and the line that is read
    for block in read_blocks(path, separators=(DOCUMENT_BEGIN, DOCUMENT_END)):
        last, line = block[0]
        if line.startswith(DOCUMENT_BEGIN):
            match = re.fullmatch(rf"{DOCUMENT_BEGIN} \((.+)\); part (\d+)\s*", line)
            if begun or not match:
                expected = f"the end of the document of line {begun}" if begun else "'#begin document (…); part 000'"
                fail(path, last, f"{line!r}, expected {expected}")
            documents.append(Document(match[1], int(match[2]), [], []))
            begun, num_tokens, clusters = last, 0, {}
        elif not begun:
            fail(path, last, f"{line[:60]!r}, expected '#begin document (…); part 000' before it")
        elif line.startswith(DOCUMENT_END):
            begun = 0
        else:
            sentence, mentions = _parse_sentence(path, [(number, split_columns(row)) for number, row in block])
            documents[-1].sentences.append(sentence)
            for mention in mentions:
                if mention.label not in clusters:
                    documents[-1].clusters.append(clusters.setdefault(mention.label, []))
                clusters[mention.label].append((num_tokens + mention.start, num_tokens + mention.end))
            num_tokens += len(sentence.tokens)
    if begun:
        fail(path, last, f"the file ends, expected '#end document' for the document of line {begun}")
    return check_not_empty(path, documents)


def _parse_sentence(path: str | Path, rows: list[tuple[int, list[str]]]) -> tuple[AnnotatedSentence, list[Span]]:
    """A sentence of CoNLL-2012 rows, and its mentions in the order of the text."""
    predicates = [index for index, (_, row) in enumerate(rows) if len(row) > 7 and row[7] != "-"]
    num_columns = 12 + len(predicates)
    for number, row in rows:
        if len(row) != num_columns:
            reason = f"12 and one for each of the {len(predicates)} predicates in the sentence"
            fail(path, number, f"{len(row)} columns, expected {num_columns}: {reason}")
    propositions = []
    for column, predicate in enumerate(predicates, start=11):
        cells = [(number, row[column]) for number, row in rows]
        arguments = _parse_spans(path, cells, r"(\([^()*|]+)*\*?\)*", opening=r"\(([^()*|]+)", closing=r"()\)")
        propositions.append(Proposition(predicate, ".".join(rows[predicate][1][6:8]), arguments))
    cells = [(number, row[-1]) for number, row in rows]
    mark = r"(\(\d+\)?|\d+\))"
    mentions = _parse_spans(path, cells, rf"{mark}(\|{mark})*", opening=r"\((\d+)", closing=r"(\d+)\)")
    return AnnotatedSentence([row[3] for _, row in rows], [row[4] for _, row in rows], propositions), mentions


def _parse_spans(
    path: str | Path, cells: list[tuple[int, str]], cell: str, *, opening: str, closing: str
) -> list[Span]:
    """The spans of one bracketed column, sorted by start and then by end.

    `opening` matches the labels that open in a cell, `closing` those that close: an empty label closes the last opened.
    """
    pending: list[tuple[str, int, int]] = []
    spans = []
    for index, (number, text) in enumerate(cells):
        if text in ("*", "-"):  # nearly all of them
            continue
        if not re.fullmatch(cell, text):
            fail(path, number, f"{text!r} in a column of brackets, expected something like '(label*', '*)', '(3|4)'")
        pending += ((label, index, number) for label in re.findall(opening, text))
        for label in re.findall(closing, text):
            last = max((at for at, entry in enumerate(pending) if label in ("", entry[0])), default=None)
            if last is None:
                fail(path, number, f"{text!r} closes a bracket that the sentence did not open")
            name, start, _ = pending.pop(last)
            spans.append(Span(start, index + 1, name))
    if pending:
        fail(path, pending[0][2], f"the bracket ({pending[0][0]} is not closed in its sentence")
    return sorted(spans, key=lambda span: (span.start, span.end))


def read_gap(path: str | Path) -> list[PronounExample]:
    """Read GAP: ambiguous pronouns, as a tab-separated table.

    Args:
        path: The file. Its first line has the names of the columns.

    Returns:
        The examples in the order of the file.

    Raises:
        ValueError: If the file is not in this format. The message names the line.
    """
    truth = {"TRUE": True, "FALSE": False}
    examples = []
    for number, row in read_table(path, GAP_COLUMNS):
        start = {}
        for name in ("Pronoun", "A", "B"):
            start[name] = parse_number(path, number, row[f"{name}-offset"], int)
            check_offset(path, number, row["Text"], row[name], start[name])
        a, b = (
            Candidate(row[name], start[name], choose(path, number, row[f"{name}-coref"].upper(), truth))
            for name in "AB"
        )
        examples.append(PronounExample(row["ID"], row["Text"], row["Pronoun"], start["Pronoun"], a, b, row["URL"]))
    return check_not_empty(path, examples)
