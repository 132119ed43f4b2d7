"""SQuAD is read as published, and errors are named with the question."""

import json

import pytest

from elmokit.datasets import Answer, Question, read_squad

QA = {"id": "q1", "question": "Who?", "answers": [{"text": "Ann", "answer_start": 0}, {"text": "é", "answer_start": 5}]}
SQUAD = {"version": "1.1", "data": [{"title": "T", "paragraphs": [{"context": "Ann, é.", "qas": [QA]}]}]}


def squad_with(**changes):
    return json.dumps({"data": [{"title": "T", "paragraphs": [{"context": "Ann, é.", "qas": [QA | changes]}]}]})


@pytest.mark.parametrize(
    ("reader", "name", "content", "expected"),
    [
        (
            read_squad,
            "a.json",
            json.dumps(SQUAD),
            [Question("q1", "T", "Ann, é.", "Who?", [Answer("Ann", 0), Answer("é", 5)])],
        ),
    ],
)
def test_a_file_is_read_alike_plain_and_gzipped_and_with_a_byte_order_mark(
    check_reads, reader, name, content, expected
):
    check_reads(reader, name, content, expected)


@pytest.mark.parametrize(
    ("reader", "content", "line", "message"),
    [
        (read_squad, '{"data":\n\n [}', 3, "Expecting value at character 3, expected JSON"),
        (read_squad, "[" * 1_000_000, 1, "expected JSON"),
    ],
)
def test_an_error_in_a_file_is_named_with_its_line(check_fails, reader, content, line, message):
    check_fails(reader, content, line, message)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            squad_with(answers=[{"text": "Ann", "answer_start": 1}]),
            "question q1: 'Ann' is not at its offset 1; the text there is 'nn,'",
        ),
        (squad_with(answers=[]), "question q1: no answer, expected one"),
        (squad_with(question=None), "question q1: question is None, expected one of type str"),
        ('{"data": [3]}', "article '': paragraphs is None, expected one of type list"),
        ("[]", "the file: data is None"),
    ],
)
def test_a_bad_question_is_named_by_its_id(write, content, message):
    with pytest.raises(ValueError, match=f"a.json, {message}"):
        read_squad(write("a.json", content))


@pytest.mark.parametrize(
    ("name", "num_questions", "num_answers"),
    [
        ("squad/train-v1.1-subset.json.gz", 14348, 14348),
        ("squad/train-v1.1-extra.json.gz", 6118, 6118),
        ("squad/dev-v1.1-half.json.gz", 4961, 17778),
        ("squad/test-v1.1-half.json.gz", 5609, 16948),
        ("xquad/xquad.en.json", 1190, 1190),
        ("qamr/train.json.gz", 18863, None),
        ("qamr/dev.json.gz", 9265, None),
        ("qamr/test.json.gz", 9455, None),
        ("subjqa/train.json.gz", 1909, None),
        ("subjqa/dev.json", 500, None),
        ("subjqa/test.json.gz", 1333, None),
    ],
)
def test_the_real_questions_are_all_read(tasks, name, num_questions, num_answers):
    questions = read_squad(tasks / "qa" / name)
    assert len(questions) == num_questions
    assert num_answers in (None, sum(len(question.answers) for question in questions))
