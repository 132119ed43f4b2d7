"""Pronouns: the words of a passage are found in its tokens, and every he and she of a text is asked for."""

import itertools

from test_coreference import PASSAGES, write_passages

from elmokit.tasks import TASKS
from elmokit.tasks.pronouns import PronounPassage, PronounQuestion

PRONOUNS = TASKS["pronouns"]


def test_a_passage_is_cut_into_tokens_and_its_words_found_in_them(tmp_path):
    passages = PRONOUNS.read(str(write_passages(tmp_path / "x.tsv")))
    for passage, (_, pronoun, a, is_a, b, is_b) in zip(passages, PASSAGES, strict=True):
        tokens = list(itertools.chain(*passage.sentences))
        (question,) = passage.questions
        spans = [question.pronoun, *question.candidates]
        assert [" ".join(tokens[start:end]) for start, end in spans] == [pronoun, a, b]
        assert question.refers == [is_a, is_b]
    assert [len(passage.sentences) for passage in passages] == [1, 1, 2, 1, 2, 2]


def test_a_plain_text_asks_for_every_pronoun_with_every_name():
    passage = PRONOUNS.from_text("Perhaps Ada Roe met Tom. Tom said I knew her. When Mr. Max left, he did not see him.")
    tokens = list(itertools.chain(*passage.sentences))
    asked = [tokens[question.pronoun[0]] for question in passage.questions]
    assert asked == ["her", "he", "him"]
    names = {" ".join(tokens[a:b]) for question in passage.questions for a, b in question.candidates}
    assert names == {"Ada Roe", "Tom", "Mr. Max"}
    assert PRONOUNS.from_text("he slept").questions == [PronounQuestion((0, 1), [], [])]
    assert PRONOUNS.to_json(PronounPassage([["he"]], [PronounQuestion((0, 1), [], [])]), [[]])["pronouns"] == [
        {"start": 0, "end": 1, "text": "he", "refers_to": None, "candidates": []}
    ]
