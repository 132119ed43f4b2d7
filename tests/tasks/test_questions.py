"""Questions: answers are pieces of the context to the character, alike alone and in a batch, and scored as in SQuAD."""

import itertools
import json
import tomllib
from pathlib import Path

import pytest
import torch
from task_examples import learn_by_heart, small_config

from elmokit.tasks import TASKS, TaskConfig, load_task, metrics, questions, train
from elmokit.tasks.layers import NEVER
from elmokit.tasks.questions import best_spans
from elmokit.tasks.settings import load_recipe

RECIPES = Path(__file__).resolve().parents[2] / "src" / "elmokit" / "recipes" / "tasks"
QUESTIONS = TASKS["questions"]

# (context, [(question, [answers])])
PARAGRAPHS = [
    (
        "Ada Lovelace was born in London  in 1815. She wrote notes\non a machine of Charles Babbage (1791–1871).",
        [
            ("Where was Ada born?", ["London"]),
            ("When was Ada born?", ["1815", "in 1815"]),
            ("What did she write?", ["notes", "notes\non a machine"]),
            ("Whose machine was it?", ["Charles Babbage"]),
        ],
    ),
    (
        'Oslo is the capital of Norway. "It rains," said Mr. Berg, "and it snows." Its river is short.',
        [
            ("What is the capital of Norway?", ["Oslo"]),
            ("Who spoke?", ["Mr. Berg", "Berg"]),
            ("What is short?", ["Its river", "river"]),
        ],
    ),
    (
        "Copper melts at 1,085 °C; lead at 327 °C.",
        [
            ("Which metal melts first?", ["lead"]),
            ("At what heat does copper melt?", ["1,085 °C"]),
            ("At what heat does lead melt?", ["327 °C"]),
        ],
    ),
]


def write_squad(path: Path, paragraphs=PARAGRAPHS) -> Path:
    number = itertools.count()
    content = [
        {
            "context": context,
            "qas": [
                {
                    "id": f"q{next(number)}",
                    "question": question,
                    "answers": [{"text": text, "answer_start": context.index(text)} for text in answers],
                }
                for question, answers in asked
            ],
        }
        for context, asked in paragraphs
    ]
    path.write_text(json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": content}]}), encoding="utf-8")
    return path


@pytest.fixture
def small(tmp_path, tiny_elmo):
    """small(**changes): the config of a small training on the ten questions."""

    def make(**changes: object) -> TaskConfig:
        settings = {"hidden_dim": 12, "learning_rate": 0.02, "batch_size": 5, **changes}
        return small_config("questions", write_squad(tmp_path / "train.json"), tmp_path, tiny_elmo, **settings)

    return make


@pytest.fixture
def short_windows(monkeypatch):
    monkeypatch.setattr(questions, "WINDOW_TOKENS", 8)
    monkeypatch.setattr(questions, "WINDOW_STEP", 4)


# ---- text to tokens and back -----------------------------------------------------------------------------------------


def test_tokens_and_gold_spans_match_the_context_to_the_character(tmp_path):
    examples = QUESTIONS.read(str(write_squad(tmp_path / "train.json")))
    assert len(examples) == 10
    for example in examples:
        tokens = list(itertools.chain.from_iterable(example.sentences))
        assert [example.context[start:end] for start, end in example.offsets] == tokens
        found = [
            example.context[example.offsets[start][0] : example.offsets[stop - 1][1]] for start, stop in example.spans
        ]
        assert found == example.answers
    assert examples[0].sentences is examples[1].sentences  # one paragraph, held once


def test_a_gold_answer_inside_a_token_is_that_token_and_equal_answers_count_once(tmp_path):
    context = "It has a gold-plated roof"
    path = write_squad(tmp_path / "train.json", [(context, [("Which roof?", ["gold", "gold-plated", "gold"])])])
    (example,) = QUESTIONS.read(str(path))
    assert example.spans == [(3, 4)]
    assert example.answers == ["gold", "gold-plated", "gold"]


def test_an_answer_without_a_token_is_refused_by_file_and_question(tmp_path):
    path = write_squad(tmp_path / "bad.json", [("a  b", [("?", ["  "])])])
    with pytest.raises(ValueError, match=r"bad\.json, question q0: the answer '  ' contains no token"):
        QUESTIONS.read(str(path))
    with pytest.raises(ValueError, match=r"nowhere\.json"):
        QUESTIONS.read(str(tmp_path / "nowhere.json"))


# ---- the search for the best span ------------------------------------------------------------------------------------


@pytest.mark.parametrize("longest", [1, 3, 50])
@pytest.mark.parametrize("seed", range(5))
def test_the_best_span_is_that_of_brute_force(seed, longest):
    generator = torch.Generator().manual_seed(seed)
    lengths = [7, 1, 4, 12]
    mask = torch.arange(12) < torch.tensor(lengths).unsqueeze(1)
    first, last = (torch.randn(4, 12, generator=generator).masked_fill(~mask, NEVER) for _ in range(2))
    best = best_spans(first, last, longest)
    for row, length in enumerate(lengths):
        spans = [(i, j) for i in range(length) for j in range(i, min(length, i + longest))]
        expected = max(spans, key=lambda span: float(first[row, span[0]] + last[row, span[1]]))
        assert (int(best.first[row]), int(best.last[row])) == expected
        assert float(best.score[row]) == pytest.approx(float(first[row, expected[0]] + last[row, expected[1]]))


@pytest.mark.parametrize("num_tokens", [0, 1, 399, 400, 401, 599, 600, 601, 3784])
def test_windows_cover_a_context_and_any_answer_up_to_half_a_window_is_complete_in_one(num_tokens):
    windows = questions._windows(num_tokens)
    assert windows[0][0] == 0
    assert windows[-1][1] == num_tokens
    assert all(0 <= end - begin <= 400 for begin, end in windows)
    for start in range(0, num_tokens, 7):
        stop = min(start + 200, num_tokens)
        assert any(begin <= start and stop <= end for begin, end in windows)


# ---- the task --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("elmo_at", ["none", "both"])
def test_ten_questions_are_memorized_and_the_saved_task_answers_the_same(small, elmo_at, device):
    config = small(elmo_at=elmo_at, device=device, epochs=80, patience=80, rate_decay=1.0)
    trained = learn_by_heart(config, "f1")
    assert trained.evaluate(config.train) == {"f1": 1.0, "exact_match": 1.0}
    given = [(context, question, golds) for context, asked in PARAGRAPHS for question, golds in asked]
    answers = trained.predict([{"context": context, "question": question} for context, question, _ in given])
    for (context, question, golds), answer in zip(given, answers, strict=True):
        assert answer["answer"] in golds or metrics.answer_scores([golds], [answer["answer"]])["f1"] == 1.0
        assert answer["answer"] == context[answer["start"] : answer["end"]]
        assert (answer["question"], answer["context"]) == (question, context)
        assert 0 < answer["probability"] <= 1
    as_text = trained.predict([f"{question}\t{context}" for context, question, _ in given])
    assert as_text == answers


def test_windows_are_learned_and_answered_too(small, short_windows):
    """Windows of eight tokens with the same ten questions: their contexts fall into several."""
    config = small(elmo_at="none", epochs=20, patience=20, rate_decay=1.0)
    example = QUESTIONS.read(config.train)[3]
    begin, end = questions._training_window(example)
    assert 0 < begin <= example.spans[0][0] < example.spans[0][1] <= end
    seen = []
    train(config, on_progress=lambda progress: seen.append(progress.loss) if progress.scores else None)
    assert seen[-1] < 0.5 * seen[0]
    trained = load_task(config.out)
    for answer in trained.predict([{"context": example.context, "question": example.question}] * 2):
        assert answer["answer"] == example.context[answer["start"] : answer["end"]] != ""


def test_an_answer_longer_than_a_window_trains_on_its_part_in_the_window(small, tmp_path, short_windows):
    words = " ".join(f"w{number}" for number in range(30))
    path = write_squad(tmp_path / "long.json", [(words, [("Which?", [words[words.index("w5 ") :], "w29"])])])
    (example,) = QUESTIONS.read(str(path))
    assert example.spans == [(5, 30), (29, 30)]
    assert questions._training_window(example) == (4, 12)
    result = train(small(train=str(path), dev=str(path), elmo_at="none"))
    assert 0 <= result.score <= 1


def test_the_loss_is_minus_the_log_probability_of_any_gold_span(small):
    """By the definition: a softmax over first and over last tokens of each context, spans added up."""
    config = small(elmo_at="both")
    train(config)
    trained = load_task(config.out)
    network = trained.network.eval()
    examples = trained.task.read(config.train)
    expected = []
    with torch.no_grad():
        for example in examples:
            first, last = network._scores(network._collect([example], [[(0, len(example.offsets))]]))
            p, q = first[0].softmax(0), last[0].softmax(0)
            expected.append(-torch.log(sum(p[start] * q[stop - 1] for start, stop in example.spans)))
        assert network.loss(examples).item() == pytest.approx(float(torch.stack(expected).mean()), abs=1e-5)


@pytest.mark.parametrize("elmo_at", ["none", "both"])
@pytest.mark.parametrize("windowed", [False, True])
def test_a_question_is_answered_the_same_alone_and_in_any_batch_and_where_there_is_no_text(
    small, request, elmo_at, windowed
):
    if windowed:
        request.getfixturevalue("short_windows")
    config = small(elmo_at=elmo_at, batch_size=32, epochs=2)
    train(config)
    trained = load_task(config.out)
    given = [{"context": context, "question": asked[0][0]} for context, asked in PARAGRAPHS]
    given += [
        {"context": context, "question": ""} for context in ("", "  ", "Oslo", "a b c. D! " * 70, "Zürich \ud800")
    ]
    given += ["", "\t", "Who?\t", "Who? \tAda\tdid it"]
    together = trained.predict(given)
    for text, answer in zip(given, together, strict=True):
        (alone,) = trained.predict([text])
        assert alone["probability"] == pytest.approx(answer["probability"], abs=1e-5)
        assert {**alone, "probability": 0} == {**answer, "probability": 0}
        assert answer["answer"] == answer["context"][answer["start"] : answer["end"]]
        assert bool(answer["answer"]) == bool(answer["context"].strip())
    assert together[-1]["context"] == "Ada\tdid it"
    json.dumps(together)


def test_a_task_that_was_saved_and_loaded_gives_the_same_answers(small, tmp_path):
    config = small(elmo_at="both", epochs=2)
    train(config)
    trained = load_task(config.out)
    trained.save(tmp_path / "again")
    examples = trained.task.read(config.train)
    assert load_task(tmp_path / "again").answer(examples) == trained.answer(examples)


@pytest.mark.parametrize(
    "given", ["no tab", ["a", "b"], {"context": "a"}, {"context": "a", "question": "b", "id": 1}, 3, None]
)
def test_a_value_that_is_not_a_question_is_refused_and_named(given):
    with pytest.raises(ValueError, match="expected a context and a question") as caught:
        QUESTIONS.from_text(given)
    assert repr(given)[:100] in str(caught.value)


@pytest.mark.parametrize("given", [{"context": ["a"], "question": "b"}, {"context": "a", "question": None}])
def test_a_context_or_question_that_is_not_a_string_is_refused(given):
    with pytest.raises(ValueError, match="context and question must both be strings"):
        QUESTIONS.from_text(given)


@pytest.mark.parametrize("name", ["squad", "qamr"])
def test_the_recipe_trains(name, small):
    """With the recipe's own settings, sizes and all, on the ten questions."""
    path, like = RECIPES / f"{name}.toml", small()
    assert tomllib.loads(path.read_text())["task"] == "questions"
    files = {"train": like.train, "dev": None, "test": like.train, "out": like.out}
    changes = {"elmo": like.elmo, "cache": like.cache, "epochs": 1, "device": "cpu"}
    defaults = {task: TASKS[task].defaults for task in TASKS}
    result = train(load_recipe(str(path), defaults, {**files, **changes}))
    assert 0 <= result.score <= 1
    assert len(result.mix_weights) == 2


def test_the_published_files_are_read_and_their_answers_are_nearly_always_whole_tokens(data):
    path = data / "tasks" / "qa" / "squad" / "dev-v1.1-half.json.gz"
    if not path.is_file():
        pytest.skip(f"no file {path}")
    examples = QUESTIONS.read(str(path))
    assert len(examples) == 4961
    best = [
        example.context[example.offsets[start][0] : example.offsets[stop - 1][1]]
        for example in examples
        for start, stop in example.spans[:1]
    ]
    assert metrics.answer_scores([example.answers for example in examples], best)["exact_match"] > 0.98
