"""Each task is learned, saved, loaded and used, and any text has a prediction."""

import gzip
import json

import pytest
from task_examples import learn_by_heart

from elmokit.tasks import TASKS, load_task, train
from elmokit.tasks.texts import read_tokens

OURS = ["ner", "chunking", "pos", "sentiment"]


@pytest.mark.parametrize("elmo_at", ["none", "both"])
@pytest.mark.parametrize("name", OURS)
def test_ten_examples_are_memorized_and_the_saved_task_answers_the_same(small, name, elmo_at):
    config = small(name, elmo_at=elmo_at, epochs=40, patience=40, rate_decay=1.0)
    trained = learn_by_heart(config, TASKS[name].metric)
    assert trained.evaluate(config.train)[TASKS[name].metric] == 1.0
    examples = trained.task.read(config.train)
    answers = trained.predict([" ".join(example.tokens) for example in examples])
    assert [answer["tokens"] for answer in answers] == [example.tokens for example in examples]
    if name == "sentiment":
        assert [answer["label"] for answer in answers] == [example.label for example in examples]
        assert all(sum(answer["probabilities"].values()) == pytest.approx(1) for answer in answers)
    else:
        assert [answer["tags"] for answer in answers] == [example.tags for example in examples]


@pytest.mark.parametrize("name", OURS)
def test_any_text_has_a_prediction(small, name):
    config = small(name, epochs=1)
    train(config)
    trained = load_task(config.out)
    odd = ["", "   ", [], ["", "\x00"], "a" * 300, "Zürich 東京 \ud800", {"text": "Rome ."}, {"tokens": ["Rome"]}]
    answers = trained.predict(odd)
    assert [len(answer["tokens"]) for answer in answers] == [0, 0, 0, 2, 1, 3, 2, 1]
    json.dumps(answers)
    assert trained.predict([]) == []
    alone = [trained.predict([text])[0] for text in odd]
    for one, other in zip(alone, answers, strict=True):
        if name == "sentiment":
            assert one["probabilities"] == pytest.approx(other["probabilities"], abs=1e-5)
        else:
            assert one == other
    if name in ("ner", "chunking"):
        for answer in answers:
            for span in answer["spans"]:
                assert span["text"] == " ".join(answer["tokens"][span["start"] : span["end"]])


@pytest.mark.parametrize(
    ("given", "message"),
    [("one string", "one string"), ([3], "sentences"), ([{"txt": "a"}], "text"), ([["a", 3]], "token")],
)
def test_a_value_that_is_not_a_sentence_is_refused(small, given, message):
    config = small(epochs=1, elmo_at="none")
    train(config)
    with pytest.raises(ValueError, match=message):
        load_task(config.out).predict(given)


def test_a_mapping_has_one_sentence():
    assert read_tokens({"text": "a b"}) == read_tokens({"tokens": ["a", "b"]}) == ["a", "b"]


def test_conll2003_is_read_by_its_columns(tmp_path):
    path = tmp_path / "eng.train.txt.gz"
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.write("-DOCSTART- -X- O O\n\nRome NNP I-NP I-LOC\nOslo NNP I-NP B-LOC\n")
    (sentence,) = TASKS["ner"].read(str(path))
    assert sentence.tags == ["B-LOC", "B-LOC"]  # IOB1, in which the first of them begins with I-
    with pytest.raises(ValueError, match="nowhere"):
        TASKS["ner"].read(str(tmp_path / "nowhere"))


def test_trees_of_the_sentiment_treebank_are_read(tmp_path):
    path = tmp_path / "train.txt"
    path.write_text("(3 (2 It) (4 works))\n", encoding="utf-8")
    (example,) = TASKS["sentiment"].read(str(path))
    assert (example.tokens, example.label) == (["It", "works"], "3")


@pytest.mark.gpu
@pytest.mark.parametrize("tune", [False, True])
@pytest.mark.parametrize("name", OURS)
def test_what_a_gpu_trained_answers_the_same_on_a_cpu(small, name, tune):
    for module in TASKS[name].requirements:
        pytest.importorskip(module, reason=f"the task {name} needs {module}")
    config = small(name, device="cuda", elmo_at="both", tune=tune)
    result = train(config)
    metric = TASKS[name].metric
    assert load_task(config.out, device="cpu").evaluate(config.train)[metric] == pytest.approx(result.dev[metric])
