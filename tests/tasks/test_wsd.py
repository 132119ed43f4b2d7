"""Word senses: the answers are those of brute force, the folder needs no other file, and any text has answers."""

import dataclasses
import gzip
import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from click.testing import CliRunner

from elmokit import ELMo
from elmokit.cli.tasks import task as task_group
from elmokit.datasets import read_wsd
from elmokit.inference.views import SENSE_VERSION
from elmokit.spans import embed_spans
from elmokit.tasks import TASKS, TaskConfig, learning, load_task, train
from elmokit.tasks.compare import compare
from elmokit.tasks.senses import PRIOR, UNSEEN
from elmokit.tasks.settings import load_recipe

MONEY, SHORE, TILT = "bank%1:14:00::", "bank%1:17:01::", "bank%2:38:00::"
PLACE, SEE, LEND = "take_place%2:30:00::", "see%2:39:00::", "lend%2:40:00::"
# tokens with their sense keys: word|lemma|pos|keys
TRAIN = [
    f"the bank|bank|NOUN|{MONEY} lent|lend|VERB|{LEND} them money .",
    f"a bank|bank|NOUN|{MONEY} of the city",
    f"he saw|see|VERB|{SEE} the river bank|bank|NOUN|{SHORE} .",
    f"`` planes bank|bank|VERB|{TILT} '' he said",
    f"it took_place|take_place|VERB|{PLACE} by the banks|bank|NOUN|{SHORE},{MONEY}",
    f"the old Bank|Bank|NOUN|{MONEY} .",
]
DEV = [
    f"she saw|see|VERB|{SEE} the bank|bank|NOUN|{SHORE} of the river",
    f"the heron|heron|NOUN|heron%1:05:00:: took_place|take_place|VERB|{PLACE}",
    f"a bank|bank|NOUN|{MONEY} lends|lend|VERB|{LEND} qux|qux|NOUN|qux%1:00:00::",
]
INDEX = """bank%1:17:01:: 1 1 25
bank%1:14:00:: 2 2 20
heron%1:05:00:: 3 1 0
heron%1:05:01:: 4 2 0
run%1:04:00:: 5 1 0
run%2:38:00:: 6 1 0
"""


def write_senses(path: Path, sentences: list[str]) -> str:
    """Sentences in the format of the WSD framework, with their keys beside; `path` ends in .data.xml."""
    lines, keys = ['<corpus lang="en">'], []
    for number, sentence in enumerate(sentences):
        lines.append(f'<sentence id="s{number}">')
        for word in sentence.split():
            token, *labels = word.split("|")
            token = token.replace("_", " ")
            if labels:
                lemma, pos, senses = labels
                name = f"s{number}.t{len(keys)}"
                keys.append(f"{name} {senses.replace(',', ' ')}")
                lines.append(f'<instance id="{name}" lemma="{lemma}" pos="{pos}">{token}</instance>')
            else:
                lines.append(f'<wf lemma="{token}" pos="X">{token}</wf>')
        lines.append("</sentence>")
    path.write_text("\n".join([*lines, "</corpus>"]), encoding="utf-8")
    path.with_name(path.name.replace(".data.xml", ".gold.key.txt")).write_text("\n".join(keys), encoding="utf-8")
    return str(path)


@pytest.fixture
def config(tmp_path, tiny_elmo, cache) -> TaskConfig:
    (tmp_path / "index.sense").write_text(INDEX)
    return TaskConfig(
        task="wsd",
        train=write_senses(tmp_path / "train.data.xml", TRAIN),
        dev=write_senses(tmp_path / "dev.data.xml", DEV),
        sense_index=str(tmp_path / "index.sense"),
        out=str(tmp_path / "run"),
        elmo=tiny_elmo,
        cache=cache,
        device="cpu",
    )


def cosine_of(a, b) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def brute_force(config: TaskConfig, files: str, first: dict) -> list[tuple[str | None, float | None]]:
    """The sense and the cosine of every instance of a file, from float64 vectors one by one."""
    model = ELMo.from_pretrained(config.elmo)

    def instances(path):
        for sentence in read_wsd(path):
            words, starts = [], []
            for token in sentence.tokens:
                starts.append(len(words))
                words += {"``": '"', "''": '"'}.get(token, token).split()
            for one in sentence.instances:
                span = starts[one.index], starts[one.index] + len(sentence.tokens[one.index].split())
                vector = embed_spans(model, [words], [[span]], layers="sense")[0][0].astype(np.float64)
                yield (one.lemma.lower(), one.pos), one.senses, vector / np.linalg.norm(vector)

    vectors, counts = {}, {}
    for word, senses, vector in instances(config.train):
        for sense in senses:
            vectors.setdefault((word, sense), []).append(vector)
            counts.setdefault(word, Counter())[sense] += 1
    answers = []
    for word, _, vector in instances(files):
        if word not in counts:
            answers.append((first.get(word), None))
            continue
        best = -math.inf, None, None
        for sense, count in counts[word].items():
            mean = np.mean(vectors[word, sense], axis=0)
            cosine = mean @ vector / np.linalg.norm(mean)
            share = (count + 0.5) / (counts[word].total() + 0.5 * len(counts[word]))
            best = max(best, (cosine + PRIOR * math.log(share), sense, cosine))
        answers.append(best[1:])
    return answers


@pytest.mark.parametrize("part", ["train", "dev"])
def test_a_word_takes_the_sense_that_brute_force_gives_it(config, part):
    result = train(config)
    path = getattr(config, part)
    first = {("heron", "NOUN"): "heron%1:05:00::", ("bank", "NOUN"): SHORE}
    expected = brute_force(config, path, first)
    trained = load_task(config.out)
    answers = [answer for found in trained.answer(trained.task.read(path)) for answer in found]
    assert [answer.sense for answer in answers] == [sense for sense, _ in expected]
    for answer, (_, cosine) in zip(answers, expected, strict=True):
        assert answer.cosine == (None if cosine is None else pytest.approx(cosine, abs=2e-3))  # senses are in float16
    gold = [one.senses for sentence in read_wsd(path) for one in sentence.instances]
    right = sum(sense in senses for (sense, _), senses in zip(expected, gold, strict=True))
    num_answers = sum(sense is not None for sense, _ in expected)
    scores = trained.evaluate(path)
    assert scores["f1"] == pytest.approx(2 * right / (len(gold) + num_answers))
    assert scores["precision"] == pytest.approx(right / num_answers)
    assert scores["recall"] == pytest.approx(right / len(gold))
    if part == "dev":
        assert num_answers == len(gold) - 1  # qux is in no file
        assert result.dev == scores
        assert (result.epochs, result.best_epoch, result.mix_weights) == (1, 1, [])


def test_the_folder_answers_without_the_files_of_the_training(config, tmp_path):
    train(config)
    texts = ["The herons ran to the bank .", {"tokens": ["bank"], "lemmas": ["bank"], "pos": ["NOUN"]}]
    before = load_task(config.out).predict(texts)
    for path in (config.train, config.dev, config.sense_index):
        Path(path).unlink()
    assert load_task(config.out).predict(texts) == before
    state = safetensors.torch.load_file(Path(config.out) / "model.safetensors")
    assert {name: (tensor.dtype, tensor.shape[0]) for name, tensor in state.items()} == {"vectors": (torch.float16, 8)}
    again = load_task(config.out)
    again.save(tmp_path / "copy")
    assert load_task(tmp_path / "copy").predict(texts) == before
    assert train(config).dev == json.loads((Path(config.out) / "result.json").read_text())["dev"]  # finished


def test_a_folder_of_an_earlier_version_of_the_view_is_refused(config):
    train(config)
    path = Path(config.out) / "config.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    assert values["fitted"].pop("view_version") == SENSE_VERSION
    path.write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(ValueError, match=r'trained with version 1 of the view "sense".*train the task again'):
        load_task(config.out)


def test_words_of_a_text_are_found_with_their_lemmas_and_senses(config):
    train(config)
    trained = load_task(config.out)
    (answer,) = trained.predict(["It took place when herons saw the banks of qux."])
    assert answer["tokens"] == ["It", "took", "place", "when", "herons", "saw", "the", "banks", "of", "qux", "."]
    found = answer["senses"]
    assert [(one["start"], one["end"], one["text"], one["lemma"], one["pos"]) for one in found[:3]] == [
        (1, 3, "took place", "take_place", "VERB"),
        (4, 5, "herons", "heron", "NOUN"),
        (5, 6, "saw", "see", "VERB"),
    ]
    assert [one["sense"] for one in found[:3]] == [PLACE, "heron%1:05:00::", SEE]
    assert [one["cosine"] is None for one in found[:3]] == [False, True, False]
    assert found[3]["text"] == "banks"
    assert len(found) == 4
    json.dumps(answer)


@pytest.mark.parametrize(("text", "place"), [("planes bank .", 1), ("the run by the river", 1), ("they saw", 1)])
def test_a_form_of_several_words_takes_the_best_sense_of_all(config, text, place):
    """Between words count the prior of the word in the form, and the mean vector of its part of speech."""
    index = Path(config.sense_index)
    index.write_text(INDEX + "saw%1:06:00:: 9 1 0\n")
    train(config)
    trained = load_task(config.out)
    senses = {
        "bank": {("bank", "NOUN"): {MONEY: 4, SHORE: 2}, ("bank", "VERB"): {TILT: 1}},
        "saw": {("see", "VERB"): {SEE: 1}, ("saw", "NOUN"): {"saw%1:06:00::": 0}},
        "run": {("run", "NOUN"): {"run%1:04:00::": 0}, ("run", "VERB"): {"run%2:38:00::": 0}},
    }
    in_form = {("bank", "NOUN"): 4, ("bank", "VERB"): 1, ("see", "VERB"): 1}  # "bank" and "Bank"; "banks" is another
    form = text.split()[place]
    rows = trained.network.vectors.numpy().astype(np.float64)
    row_of = trained.network.rows
    kinds = {
        pos: np.mean([rows[row] for ((_, own), _), row in row_of.items() if own == pos], axis=0)
        for pos in ("NOUN", "VERB")
    }
    vector = ELMo.from_pretrained(config.elmo).embed([text.split()], layers="sense")[0][place].astype(np.float64)
    num_in_form = sum(in_form.get(word, 0) for word in senses[form])
    scores = {}
    for word, counts in senses[form].items():
        kind = cosine_of(kinds[word[1]], vector)
        for sense, count in counts.items():
            share = (count + 0.5) / (sum(counts.values()) + len(counts) / 2)
            share_of_word = (in_form.get(word, 0) + 0.5) / (num_in_form + len(senses[form]) / 2)
            cosine = cosine_of(rows[row_of[word, sense]], vector) if count else UNSEEN * kind
            scores[sense] = cosine + kind + PRIOR * math.log(share * share_of_word)
    (answer,) = [one for one in trained.predict([text])[0]["senses"] if one["start"] == place]
    assert answer["sense"] == max(scores, key=scores.__getitem__)
    best = sorted(scores.values())
    assert best[-1] - best[-2] > 2e-3  # the test would not notice less, as senses are in float16


def test_lemmas_and_parts_of_speech_may_come_with_the_tokens(config):
    train(config)
    trained = load_task(config.out)
    fields = {
        "tokens": ["Banks", "run", "New York", "by", "qux"],
        "lemmas": ["Bank", "run", "New York", "by", "qux"],
        "pos": ["PROPN", "VERB", "PROPN", "ADP", "NOUN"],
    }
    (answer,) = trained.predict([fields])
    assert answer["tokens"] == fields["tokens"]
    assert [(one["start"], one["end"], one["lemma"], one["pos"]) for one in answer["senses"]] == [
        (0, 1, "bank", "NOUN"),
        (1, 2, "run", "VERB"),
    ]
    assert answer["senses"][1]["sense"] == "run%2:38:00::"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tokens": ["a"], "lemmas": ["a"]}, r'expected \{"tokens": \[…\], "lemmas": \[…\], "pos": \[…\]\}'),
        ({"text": "a", "lemmas": ["a"], "pos": ["NOUN"]}, "expected"),
        ({"tokens": ["a", "b"], "lemmas": ["a"], "pos": ["NOUN"]}, "2 tokens, 1 lemma, 1 pos: pass one of each"),
        ({"tokens": ["a"], "lemmas": [3], "pos": ["NOUN"]}, r"lemmas\[0\]"),
        ({"tokens": ["a"], "lemmas": "a", "pos": ["NOUN"]}, "lemmas"),
        ({"txt": "a"}, "text"),
    ],
)
def test_fields_that_do_not_fit_are_named(fields, message):
    with pytest.raises(ValueError, match=message):
        TASKS["wsd"].from_text(fields)


def test_any_text_has_an_answer_alone_and_in_any_batch(config):
    train(config)
    trained = load_task(config.out)
    odd = [
        "",
        "   ",
        [],
        ["", "\x00"],
        "bank",
        "Zürich 東京 \ud800 bank",
        ["the river", "bank"],
        {"text": "the bank ."},
    ]
    answers = trained.predict(odd)
    assert [len(answer["tokens"]) for answer in answers] == [0, 0, 0, 2, 1, 4, 2, 3]
    assert [len(answer["senses"]) for answer in answers] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert answers[4]["senses"][0]["sense"] == MONEY  # there is no context, so the most frequent sense is taken
    assert answers[4]["senses"][0]["cosine"] == 0
    for text, answer in zip(odd, answers, strict=True):
        (alone,) = trained.predict([text])
        for one, other in zip(alone["senses"], answer["senses"], strict=True):
            assert {**one, "cosine": 0} == {**other, "cosine": 0}
            assert one["cosine"] == pytest.approx(other["cosine"], abs=1e-5)
    assert trained.predict([]) == []


def test_without_a_sense_index_words_that_are_not_in_training_have_no_answer(config):
    train(dataclasses.replace(config, sense_index=None))
    trained = load_task(config.out)
    assert trained.predict(["The herons ."])[0]["senses"] == []
    scores = trained.evaluate(config.dev)
    assert scores["precision"] == pytest.approx(scores["recall"] * 7 / 5)


def test_frequent_forms_that_hardly_ever_have_a_sense_are_left_out_of_text(config, tmp_path):
    text = ["the can|can|NOUN|can%1:06:00:: of beer|beer|NOUN|beer%1:13:00::", *["he can can can"] * 10, *["rare"] * 9]
    trained_on = write_senses(tmp_path / "can.data.xml", text)
    train(dataclasses.replace(config, train=trained_on, dev=trained_on))
    trained = load_task(config.out)
    assert trained.fitted["function_words"] == ["can", "he"]  # not "rare", which occurs too rarely
    assert [one["text"] for one in trained.predict(["he can rare beer"])[0]["senses"]] == ["beer"]
    assert trained.evaluate(trained_on)["f1"] == 1.0  # a file says itself which words are asked for


def test_a_training_that_was_stopped_ends_as_if_it_had_not_been(config, tmp_path, monkeypatch):
    monkeypatch.setattr(learning, "EXAMPLES_AT_ONCE", 2)
    whole = train(dataclasses.replace(config, out=str(tmp_path / "whole")))
    seen = []

    def stop(progress):
        seen.append(progress.done)
        if progress.done == 4:  # the second of three blocks is read, and its checkpoint not yet written
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, on_progress=stop)
    result = train(config, on_progress=lambda progress: seen.append(progress.done))
    assert seen == [2, 4, 4, 6, 1]  # the first block is not read again; at the end the epoch is reported
    assert result.dev == whole.dev
    first, second = (safetensors.torch.load_file(Path(run.folder) / "model.safetensors") for run in (whole, result))
    assert torch.equal(first["vectors"], second["vectors"])
    assert not (Path(config.out) / "checkpoints").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"elmo_at": "none"}, "elmo_at is 'none', but the task wsd compares vectors of the biLM and trains no network"),
        ({"elmo_at": "both"}, "elmo_at is 'both'"),
        ({"tune": True}, "tune is True"),
        ({"vectors": "glove.txt"}, "vectors is 'glove.txt'"),
        ({"sense_index": "nowhere"}, "nowhere"),
        ({"sense_index": ""}, "sense_index is empty"),
        ({"phrases": True}, "phrases is set, but wsd finds no labelled phrases"),
        ({"task": "ner"}, "sense_index is '.*', but ner has no word senses: leave it out"),
    ],
)
def test_settings_that_have_no_meaning_are_refused(config, changes, message):
    if changes.get("task") == "ner":
        pytest.importorskip("seqeval", reason="the task ner needs seqeval")
    with pytest.raises(ValueError, match=message):
        train(dataclasses.replace(config, **changes))
    assert not Path(config.out).exists()


def test_there_is_nothing_to_compare(config):
    pytest.importorskip("matplotlib", reason="a comparison needs matplotlib")
    with pytest.raises(ValueError, match="leave elmo_at out; it has no variants to compare"):
        compare(config)


def test_files_without_keys_or_words_are_named(config, tmp_path):
    path = Path(write_senses(tmp_path / "x.data.xml", TRAIN))
    (tmp_path / "x.gold.key.txt").unlink()
    with pytest.raises(ValueError, match=r"x\.data\.xml: no sense keys: put the file x\.gold\.key\.txt beside it"):
        TASKS["wsd"].read(str(path))
    packed = tmp_path / "y.data.xml.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(ValueError, match=r"put the file y\.gold\.key\.txt beside it"):
        TASKS["wsd"].read(str(packed))
    path = write_senses(tmp_path / "z.data.xml", ["no word"])
    with pytest.raises(ValueError, match=r"z\.data\.xml: no <instance> in this file"):
        TASKS["wsd"].read(path)


def test_the_recipe_trains(config):
    """With the recipe's own settings, on a few sentences."""
    files = {"train": config.train, "dev": None, "test": config.dev, "out": config.out}
    changes = {"elmo": config.elmo, "cache": config.cache, "sense_index": config.sense_index, "device": "cpu"}
    defaults = {task: TASKS[task].defaults for task in TASKS}
    result = train(load_recipe("semcor", defaults, {**files, **changes}))
    assert 0 <= result.score <= 1
    assert set(result.dev) == set(result.test) == {"f1", "precision", "recall"}


def test_the_command_line_trains_scores_and_predicts(config, tmp_path):
    def run(*arguments: object, text: str | None = None) -> str:
        result = CliRunner().invoke(task_group, [str(argument) for argument in arguments], input=text)
        if result.exception is not None:
            raise result.exception
        assert "nan" not in result.stderr
        return result.stdout

    options = ["--dev", config.dev, "--sense-index", config.sense_index, "--model", config.elmo, "--device", "cpu"]
    result = json.loads(run("train", "wsd", "--train", config.train, *options, "--out", config.out, "--json"))
    assert json.loads(run("eval", config.out, config.dev, "--json")) == result["dev"]
    text = 'The herons saw it .\n{"tokens": ["bank"], "lemmas": ["bank"], "pos": ["VERB"]}\n'
    lines = [json.loads(line) for line in run("predict", config.out, text=text).splitlines()]
    assert [[one["sense"] for one in line["senses"]] for line in lines] == [["heron%1:05:00::", SEE], [TILT]]
