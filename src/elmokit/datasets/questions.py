"""Questions with answers in a paragraph: SQuAD v1.1.

Input: the path of a JSON file, plain or gzipped. Output: a list of `Question`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elmokit.datasets.lines import check_not_empty, check_offset, fail, member, parse_json, read_text


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer at `context[start:]`, in characters."""

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


def read_squad(path: str | Path) -> list[Question]:
    """Read SQuAD v1.1 JSON.

    Args:
        path: The file. Every answer must be in its paragraph at its offset.

    Returns:
        The questions in the order of the file.

    Raises:
        ValueError: If the file is not in this format. The message names the article or the question.
    """
    questions = []
    content = parse_json(path, 1, read_text(path))
    for article in member(path, "the file", content, "data", list):
        title = str(article.get("title", "")) if isinstance(article, dict) else ""
        place = f"article {title!r}"
        for paragraph in member(path, place, article, "paragraphs", list):
            context = member(path, place, paragraph, "context", str)
            for entry in member(path, place, paragraph, "qas", list):
                name = member(path, place, entry, "id", str)
                answers = _read_answers(path, f"question {name}", context, entry)
                question = member(path, f"question {name}", entry, "question", str)
                questions.append(Question(name, title, context, question, answers))
    return check_not_empty(path, questions)


def _read_answers(path: str | Path, place: str, context: str, entry: Any) -> list[Answer]:
    answers = []
    for answer in member(path, place, entry, "answers", list):
        text = member(path, place, answer, "text", str)
        start = member(path, place, answer, "answer_start", int)
        check_offset(path, place, context, text, start)
        answers.append(Answer(text, start))
    if not answers:
        fail(path, place, "no answer, expected one as in SQuAD v1.1")
    return answers
