"""Sentences with one tag per token: CoNLL-U, CoNLL-2000, CoNLL-2003 and two-column BIO files.

Input: the path of a file, plain or gzipped. Output: a list of `TaggedSentence`, tokens and tags as in the file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from elmokit.datasets.lines import check_not_empty, fail, read_blocks, read_lines, split_columns
from elmokit.extras import require

BIO = re.compile(r"O|[BI]-\S+")
DOCUMENT_START = "-DOCSTART-"
CONLL2003_COLUMNS = ("token", "pos", "chunk", "entity")


@dataclass(frozen=True, slots=True)
class TaggedSentence:
    """A sentence with one tag per token: part of speech, chunk or entity."""

    tokens: list[str]
    tags: list[str]


def read_conllu(path: str | Path, *, column: Literal["upos", "xpos"] = "upos") -> list[TaggedSentence]:
    """Read the syntactic words of a CoNLL-U file with their tags.

    Ranges of multiword tokens (3-4) and empty nodes (8.1) are skipped, and so are columns after the tenth.

    Args:
        path: The file.
        column: "upos" for universal tags, "xpos" for the tags of the treebank.

    Returns:
        The sentences in the order of the file.

    Raises:
        ImportError: If conllu is not installed.
        ValueError: If the file is not in this format. The message names the line.
    """
    parse_line = require("conllu.parser", extra="tasks").parse_line
    parse_error = require("conllu.exceptions", extra="tasks").ParseException
    fields = ("id", "form", "lemma", "upos", "xpos")
    sentences = []
    for block in read_blocks(path):
        tokens, tags = [], []
        for number, line in block:
            if line.startswith("#"):
                continue
            if (num_columns := line.count("\t") + 1) < 10:
                fail(path, number, f"{num_columns} columns, expected the 10 of CoNLL-U with a tab between them")
            try:
                word = parse_line(line, fields)
            except parse_error as error:
                fail(path, number, str(error))
            if not isinstance(word["id"], int):
                continue
            if word[column] in (None, "", "_"):
                fail(path, number, f"the word {word['form']!r} has no tag, expected one in column {column}")
            tokens.append(word["form"])
            tags.append(word[column])
        if tokens:
            sentences.append(TaggedSentence(tokens, tags))
    return check_not_empty(path, sentences)


def read_bio(path: str | Path) -> list[TaggedSentence]:
    """Read two columns, token and BIO tag, with a tab or spaces between them (WNUT17, LitBank).

    Args:
        path: The file.

    Returns:
        The sentences in the order of the file.

    Raises:
        ValueError: If the file is not in this format. The message names the line.
    """
    return _read_columns(path, ("token", "entity"), "entity")


def read_conll2003(path: str | Path, *, column: Literal["pos", "chunk", "entity"] = "entity") -> list[TaggedSentence]:
    """Read the four columns of CoNLL-2003: token, part of speech, chunk, entity.

    Args:
        path: The file. It is published as IOB1, in which I- may begin a span; tags are returned as they are.
        column: The column of the tags.

    Returns:
        The sentences in the order of the file.

    Raises:
        ValueError: If the file is not in this format. The message names the line.
    """
    return _read_columns(path, CONLL2003_COLUMNS, column)


def read_conll2000(path: str | Path, *, column: Literal["pos", "chunk"] = "chunk") -> list[TaggedSentence]:
    """Read the three columns of CoNLL-2000: token, part of speech, chunk.

    Args:
        path: The file.
        column: The column of the tags.

    Returns:
        The sentences in the order of the file.

    Raises:
        ValueError: If the file is not in this format. The message names the line.
    """
    return _read_columns(path, ("token", "pos", "chunk"), column)


def read_entities(path: str | Path) -> list[TaggedSentence]:
    """Read a file of named entities: two columns (`read_bio`), or four (`read_conll2003`).

    Args:
        path: The file. The number of columns of its first token decides.

    Returns:
        The sentences in the order of the file.

    Raises:
        ValueError: If the file is in neither format. The message names the line.
    """
    lines = (line for _, line in read_lines(path) if not line.startswith(DOCUMENT_START))
    if len(split_columns(next(lines, ""))) == len(CONLL2003_COLUMNS):
        return read_conll2003(path)
    return read_bio(path)


def _read_columns(path: str | Path, names: Sequence[str], wanted: str) -> list[TaggedSentence]:
    """Read a file with the columns `names`; the tags are in the column `wanted`."""
    sentences = []
    for block in read_blocks(path):
        tokens, tags = [], []
        for number, line in block:
            if line.startswith(DOCUMENT_START):
                continue
            row = split_columns(line)
            if len(row) != len(names) or not all(row):
                fail(path, number, f"{len(row)} columns in {line!r}, expected {len(names)}: {', '.join(names)}")
            tag = row[names.index(wanted)]
            if wanted != "pos" and not BIO.fullmatch(tag):
                fail(path, number, f"the tag {tag!r}, expected O, B-… or I-…")
            tokens.append(row[0])
            tags.append(tag)
        if tokens:
            sentences.append(TaggedSentence(tokens, tags))
    return check_not_empty(path, sentences)
