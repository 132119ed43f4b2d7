"""Pairs of sentences with an entailment label: SNLI, MultiNLI and SICK.

Input: the path of a file, plain or gzipped. Output: a list of `SentencePair`, sentences as strings.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elmokit.arguments import check_path
from elmokit.datasets.lines import check_not_empty, choose, first_line, member, parse_json, read_lines, read_table

ENTAILMENT_LABELS = {label: label for label in ("entailment", "neutral", "contradiction")}
NO_AGREEMENT = "-"  # the label of a pair on which the annotators disagree
SICK_COLUMNS = ("sentence_A", "sentence_B", "entailment_judgment")


@dataclass(frozen=True, slots=True)
class SentencePair:
    """Two sentences and the relation of the first to the second: entailment, neutral or contradiction."""

    premise: str
    hypothesis: str
    label: str


def read_snli(path: str | Path) -> list[SentencePair]:
    """Read SNLI or MultiNLI, as `.jsonl` or as the published table.

    Pairs without a gold label (`-`) are skipped.

    Args:
        path: The file.

    Returns:
        The pairs in the order of the file.

    Raises:
        ValueError: If the file is not in this format. The message names the line.
    """
    names = ("gold_label", "sentence1", "sentence2")
    rows: Iterator[tuple[int, Any]]
    if ".jsonl" in Path(check_path("path", path)).suffixes:
        rows = ((number, parse_json(path, number, line)) for number, line in read_lines(path))
    else:
        rows = read_table(path, names)
    pairs = []
    for number, row in rows:
        label, premise, hypothesis = (member(path, number, row, name, str) for name in names)
        if label != NO_AGREEMENT:
            pairs.append(SentencePair(premise, hypothesis, choose(path, number, label, ENTAILMENT_LABELS)))
    return check_not_empty(path, pairs)


def read_sick(path: str | Path) -> list[SentencePair]:
    """Read SICK: sentence A, sentence B and the judgement.

    Args:
        path: The file, a table with the names of the columns in its first line.

    Returns:
        The pairs in the order of the file, with lowercase labels as in SNLI.

    Raises:
        ValueError: If the file is not in this format. The message names the line.
    """
    pairs = []
    for number, row in read_table(path, SICK_COLUMNS):
        premise, hypothesis, judgement = (row[name] for name in SICK_COLUMNS)
        pairs.append(SentencePair(premise, hypothesis, choose(path, number, judgement.lower(), ENTAILMENT_LABELS)))
    return check_not_empty(path, pairs)


def read_entailment(path: str | Path) -> list[SentencePair]:
    """Read a file of entailment pairs: SICK (`read_sick`), SNLI or MultiNLI (`read_snli`).

    Args:
        path: The file. A column `entailment_judgment` in its first line means SICK.

    Returns:
        The pairs in the order of the file.

    Raises:
        ValueError: If the file is in none of these formats. The message names the line.
    """
    return read_sick(path) if SICK_COLUMNS[-1] in first_line(path).split("\t") else read_snli(path)
