"""The scripts that measure the Chinese model: what they read, how they count, and where they write."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def scripts(monkeypatch):
    """The two scripts as modules."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in ("chinese", "chinese_card", "english_card"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import chinese
    import chinese_card

    return chinese, chinese_card


def test_uses_of_characters_are_read_with_their_places(scripts, tmp_path):
    path = tmp_path / "train.csv"
    path.write_text('他把～花了。,货币1,钱,x,y\n"一，～,二～",货币2,钱,x,y\nno mark,1,钱,x,y\n', encoding="utf-8")
    first, second = scripts[0].read_senses(path)
    assert (first.tokens, first.position, first.sense) == ([*"他把钱花了。"], 2, "货币1")
    assert (second.tokens, second.position, second.character) == ([*"一，钱,二钱"], 2, "钱")


def test_a_use_takes_the_sense_of_the_nearest_use_of_its_character(scripts):
    chinese, _ = scripts
    train = [
        chinese.Use([], 0, character, sense) for character, sense in (("a", "1"), ("a", "2"), ("a", "2"), ("b", "3"))
    ]
    test = [
        chinese.Use([], 0, character, sense) for character, sense in (("a", "1"), ("a", "2"), ("b", "3"), ("c", "4"))
    ]
    train_vectors = np.array([[[1, 0]], [[0, 1]], [[0, 1]], [[1, 1]]], float)
    test_vectors = np.array([[[1, 0.1]], [[1, 0.1]], [[-1, 0]], [[1, 0]]], float)
    found = chinese.nearest_senses(train, train_vectors, test, test_vectors, ["view"])
    assert found["nearest"] == {"view": 50.0}  # the first and the third; the fourth has no sense
    assert found["most_frequent_sense"] == 50.0  # the second and the third
    assert found["new_characters"] == 1
    assert found["ambiguous"] == {"num_uses": 2, "most_frequent_sense": 50.0, "nearest": {"view": 50.0}}


@pytest.mark.parametrize(
    ("how", "told"), [("first", "first"), ("last", "last"), ("ends", "both"), ("mean", "both"), ("attention", "both")]
)
def test_a_classifier_of_words_sees_what_its_characters_give_it(scripts, how, told):
    """Words of two characters: the tag is told by the first one's backward half and by the last one's forward half."""
    chinese, _ = scripts
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(4, (4000,), generator=generator)
    layer = torch.randn(8000, 8, generator=generator) / 10
    layer[1::2, 0] += 4.0 * (labels % 2) - 2  # forward half of the last character
    layer[::2, 4] += 4.0 * (labels // 2) - 2  # backward half of the first
    starts, sizes = torch.arange(0, 8000, 2), torch.full((4000,), 2)
    accuracy = chinese.pooled_accuracy(layer.half(), starts, sizes, labels, 3000, how)
    assert accuracy > 95 if told == "both" else 30 < accuracy < 75


def test_figures_are_written_between_their_marks_only(scripts):
    _, card = scripts
    text = "a\n<!-- chinese:x -->\nold\n<!-- /chinese -->\nb\n<!-- chinese:y -->\n<!-- /chinese -->\n"
    expected = "a\n<!-- chinese:x -->\nX\n<!-- /chinese -->\nb\n<!-- chinese:y -->\nY\n<!-- /chinese -->\n"
    assert card.filled(text, {"x": "X", "y": "Y\n"}, "page") == expected
    with pytest.raises(ValueError, match="page: there is no figure 'y'"):
        card.filled(text, {"x": "X"}, "page")


def test_a_figure_that_was_not_measured_again_stays(scripts):
    _, card = scripts
    text = "<!-- chinese:tags -->\nold\n<!-- /chinese -->\n<!-- chinese:speed -->\nold\n<!-- /chinese -->\n"
    expected = text.replace("speed -->\nold", "speed -->\nnew")
    assert card.filled(text, {"speed": "new"}, "page") == expected


def test_scores_of_tasks_come_from_finished_runs(scripts, tmp_path):
    _, card = scripts
    for run, score in {"none-1": 0.5, "none-2": 0.52, "both-1": 0.6}.items():
        (tmp_path / run).mkdir()
        result = {"metric": "f1", "test": {"f1": score}}
        (tmp_path / run / "result.json").write_text(json.dumps(result))
    (tmp_path / "both-2").mkdir()  # not finished
    scores = card.task_scores(tmp_path)
    assert scores == {"none": [50.0, 52.0], "both": [60.0]}
    table = card.task_table({"ner-weibo": scores, "chnsenticorp": {}})
    assert "| without ELMo | 51.00 ± 1.41 (2) |  | elmokit |" in table
    assert "| ELMo at input and output | 60.00 (1) |  | elmokit |" in table
    assert "ELMo at the input" not in table


def test_the_sizes_of_the_text_are_those_of_its_table(scripts):
    _, card = scripts
    found = card.data((BENCHMARKS.parent / "corpora" / "chinese.md").read_text(encoding="utf-8"))
    assert found.startswith("356.53 million Han characters in 10,241,635 sentences and 586,557 documents")
    assert "encyclopedia 85.9%" in found
