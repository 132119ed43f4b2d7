"""Texts with one label each: the Stanford Sentiment Treebank, and tables of labels and texts.

Input: the path of a file, plain or gzipped. Output: a list of `LabelledText`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from elmokit.datasets.lines import check_not_empty, choose, fail, read_lines, read_table

SST_LABELS = {label: label for label in "01234"}
TREE_BRACKETS = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}"}
TREE_PART = re.compile(r"(\() *([^() ]*)|(\))|([^() ]+)")


@dataclass(frozen=True, slots=True)
class LabelledText:
    """A sentence or phrase with one label."""

    tokens: list[str]
    label: str
    phrases: list[LabelledText] = field(default_factory=list)
    """The labelled phrases inside it, each before its own parts."""


def read_sst_trees(path: str | Path) -> list[LabelledText]:
    r"""Read the Stanford Sentiment Treebank, one tree per line.

    The escapes of a tree are undone: `-LRB-` is "(", `\/` is "/".

    Args:
        path: The file.

    Returns:
        The sentences with their labels, "0" (very negative) to "4", and with their labelled phrases.

    Raises:
        ValueError: If the file is not in this format. The message names the line.
    """
    return check_not_empty(path, [_parse_tree(path, number, line) for number, line in read_lines(path)])


def _parse_tree(path: str | Path, number: int, line: str) -> LabelledText:
    phrases: list[LabelledText] = []
    open_phrases: list[LabelledText] = []
    for opened, label, closed, word in TREE_PART.findall(line):
        if opened:
            phrase = LabelledText([], choose(path, number, label, SST_LABELS))
            open_phrases.append(phrase)
            phrases.append(phrase)
        elif not open_phrases:
            fail(path, number, f"{closed or word!r} comes after the tree, expected one tree per line")
        elif closed:
            if not open_phrases.pop().tokens:
                fail(path, number, "a phrase without words, expected at least one")
        else:
            token = TREE_BRACKETS.get(word, word).replace("\\/", "/").replace("\\*", "*")
            for phrase in open_phrases:
                phrase.tokens.append(token)
    if open_phrases:
        fail(path, number, f"{len(open_phrases)} brackets are not closed")
    sentence, *parts = phrases
    sentence.phrases.extend(parts)
    return sentence


def read_labelled_tsv(path: str | Path) -> list[LabelledText]:
    """Read a tab-separated table with the columns `label` and `text` (SST-2).

    Args:
        path: The file. Its first line has the names of the columns; texts are split at their spaces.

    Returns:
        The texts with their labels, in the order of the file.

    Raises:
        ValueError: If the file is not in this format. The message names the line.
    """
    examples = []
    for number, row in read_table(path, ("label", "text")):
        if not (row["label"] and row["text"].strip(" ")):
            fail(path, number, "an empty column, expected a label and a text")
        examples.append(LabelledText([token for token in row["text"].split(" ") if token], row["label"]))
    return check_not_empty(path, examples)
