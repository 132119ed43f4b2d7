"""Tasks: each is learned, saved, loaded and used; a training that was killed ends as if it had not been."""

import dataclasses
import gzip
import json
import math
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import numpy as np
import pytest
import safetensors.torch
import torch
from click.testing import CliRunner

from elmokit import ELMo
from elmokit.cli.tasks import task as task_group
from elmokit.tasks import TASKS, TaskConfig, load_task, train, vectors
from elmokit.tasks.compare import Comparison, Variant, compare, compare_shares, read_comparison, share_table, summarize
from elmokit.tasks.inputs import Inputs, read_tokens
from elmokit.tasks.settings import find_files, load_recipe
from elmokit.tasks.trainer import Snapshots
from elmokit.tasks.vectors import FrozenLayers, load_static

RECIPES = Path(__file__).resolve().parents[2] / "src" / "elmokit" / "recipes" / "tasks"
OURS = ["ner", "chunking", "pos", "sentiment"]

SENTENCES = [
    "Maria Schmidt flew to Rome .",
    "Rome is far from Oslo .",
    "we met Ada in Lima",
    "Ada Lovelace wrote",
    "nothing happened here today",
    "Oslo",
    "from Lima to Oslo and Rome",
    "Maria met Ada Lovelace",
    "he flew home",
    "is Lima nice ?",
]
TAGS = [
    "B-PER I-PER O O B-LOC O",
    "B-LOC O O O B-LOC O",
    "O O B-PER O B-LOC",
    "B-PER I-PER O",
    "O O O O",
    "B-LOC",
    "O B-LOC O B-LOC O B-LOC",
    "B-PER O B-PER I-PER",
    "O O O",
    "O B-LOC O O",
]


def write_examples(task: str, path: Path) -> Path:
    """Ten examples in the format of the task."""
    pairs = [list(zip(words.split(), tags.split(), strict=True)) for words, tags in zip(SENTENCES, TAGS, strict=True)]
    if task == "ner":
        text = "\n".join("".join(f"{word}\t{tag}\n" for word, tag in pair) for pair in pairs)
    elif task == "chunking":
        text = "\n".join("".join(f"{word} NN {tag}\n" for word, tag in pair) for pair in pairs)
    elif task == "pos":
        line = "{}\t{}\t_\t{}\t_\t_\t_\t_\t_\t_\n"
        text = "\n".join(
            "".join(line.format(number, word, tag[0]) for number, (word, tag) in enumerate(pair, 1)) for pair in pairs
        )
    else:
        text = "label\ttext\n" + "".join(f"{number % 3}\t{words}\n" for number, words in enumerate(SENTENCES))
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def cache(tmp_path_factory) -> str:
    return str(tmp_path_factory.mktemp("vectors"))


SUFFIX = {"ner": ".conll", "chunking": ".txt", "pos": ".conllu", "sentiment": ".tsv"}


@pytest.fixture
def small(tmp_path, tiny_elmo, cache):
    """small(task, **changes): the config of a small training on ten examples."""

    def make(task: str = "ner", **changes: object) -> TaskConfig:
        file = tmp_path / f"train{SUFFIX[task]}"
        if not file.exists():
            write_examples(task, file)
        settings = {
            "task": task, "train": str(file), "dev": str(file), "out": str(tmp_path / "run"), "elmo": tiny_elmo,
            "cache": cache, "word_dim": 8, "char_dim": 8, "hidden_dim": 16, "dropout": 0.0, "elmo_dropout": 0.0,
            "learning_rate": 0.02, "batch_size": 4, "epochs": 3, "device": "cpu",
        }  # fmt: skip
        return TaskConfig(**{**settings, **changes})

    return make


@pytest.fixture
def glove(tmp_path) -> Path:
    """Static vectors as text."""
    path = tmp_path / "glove.txt"
    path.write_text("rome 1 2 3\nOslo 4 5 6\noslo 7 8 9\nada -1 -2 -3\n", encoding="utf-8")
    return path


# ---- each task is learned --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("elmo_at", ["none", "both"])
@pytest.mark.parametrize("name", OURS)
def test_ten_examples_are_learned_by_heart_and_the_saved_task_answers_the_same(small, name, elmo_at):
    config = small(name, elmo_at=elmo_at, epochs=40, patience=40, rate_decay=1.0)
    seen = []

    class LearnedError(Exception):
        pass

    def stop_when_learned(progress):
        if progress.scores:
            seen.append(progress.scores[TASKS[name].metric])
            if seen[-1] == 1.0:
                raise LearnedError

    with pytest.raises(LearnedError):
        train(config, on_progress=stop_when_learned)
    trained = load_task(config.out)
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
def test_what_is_no_sentence_is_refused(small, given, message):
    config = small(epochs=1, elmo_at="none")
    train(config)
    with pytest.raises(ValueError, match=message):
        load_task(config.out).predict(given)


def test_a_mapping_holds_one_sentence():
    assert read_tokens({"text": "a b"}) == read_tokens({"tokens": ["a", "b"]}) == ["a", "b"]


def test_conll2003_is_read_by_its_columns(tmp_path):
    path = tmp_path / "eng.train.txt.gz"
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.write("-DOCSTART- -X- O O\n\nRome NNP I-NP I-LOC\nOslo NNP I-NP B-LOC\n")
    (sentence,) = TASKS["ner"].read(str(path))
    assert sentence.tags == ["B-LOC", "B-LOC"]  # IOB1, in which the first of them begins with I-
    with pytest.raises(ValueError, match="nowhere"):
        TASKS["ner"].read(str(tmp_path / "nowhere"))


def test_labelled_phrases_train_where_asked_each_once(small, tmp_path):
    train_file, dev_file = tmp_path / "train.txt", tmp_path / "dev.txt"
    train_file.write_text("(3 (4 good) (2 film))\n(1 (0 bad) (2 film))\n(2 film)\n", encoding="utf-8")
    dev_file.write_text("(1 (0 bad) (2 film))\n(4 good)\n(0 bad)\n", encoding="utf-8")
    totals = set()
    settings = {"phrases": True, "batch_size": 5, "epochs": 60, "patience": 60}
    config = small("sentiment", train=str(train_file), dev=str(dev_file), **settings)
    result = train(config, on_progress=lambda one: one.stage == "epoch" and totals.add(one.total))
    assert totals == {1}  # three sentences, good and bad: "film" is a sentence with that label already
    assert result.dev["accuracy"] == 1  # though no sentence of train has one of the labels 4 and 0


def test_phrases_are_refused_where_a_task_or_its_file_has_none(small):
    for name in ("ner", "sentiment"):
        with pytest.raises(ValueError, match=f"{name} finds no labelled phrases in .*train.*leave it out"):
            train(small(name, phrases=True))


def test_a_run_of_an_older_version_without_a_setting_goes_on(small, tmp_path):
    config = small()
    result = train(config)
    settings = tmp_path / "run" / "run.json"
    values = json.loads(settings.read_text())
    del values["phrases"]
    settings.write_text(json.dumps(values))
    assert train(config) == result
    with pytest.raises(ValueError, match="holds a run with phrases = False, not True"):
        train(dataclasses.replace(config, phrases=True))


def test_trees_of_the_sentiment_treebank_are_read(tmp_path):
    path = tmp_path / "train.txt"
    path.write_text("(3 (2 It) (4 works))\n", encoding="utf-8")
    (example,) = TASKS["sentiment"].read(str(path))
    assert (example.tokens, example.label) == (["It", "works"], "3")


# ---- training --------------------------------------------------------------------------------------------------------


def state_of(folder: str) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(Path(folder) / "model.safetensors")


def assert_same_run(one: str, other: str) -> None:
    assert (Path(one) / "metrics.jsonl").read_text() == (Path(other) / "metrics.jsonl").read_text()
    first, second = state_of(one), state_of(other)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    results = [json.loads((Path(folder) / "result.json").read_text()) for folder in (one, other)]
    for result in results:
        del result["folder"], result["seconds"]
    assert results[0] == results[1]


@pytest.mark.parametrize("tune", [False, True])
def test_a_training_that_was_stopped_ends_as_if_it_had_not_been(small, tmp_path, tune):
    settings = {"dropout": 0.3, "elmo_dropout": 0.3, "epochs": 4, "elmo_at": "both", "tune": tune, "patience": 1}
    settings |= {"test": str(write_examples("ner", tmp_path / "test.conll")), "rate_decay": 0.7, "patience": 9}
    whole, parts = small(out=str(tmp_path / "whole"), **settings), small(out=str(tmp_path / "parts"), **settings)
    train(whole)
    for epoch, done in ((1, 2), (3, 1), (3, 3)):  # inside the first epoch, inside the third, at the end of the third

        def stop(progress, epoch=epoch, done=done):
            if (progress.epoch, progress.done) == (epoch, done):
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            train(parts, on_progress=stop)
    train(parts)
    assert_same_run(whole.out, parts.out)


def test_a_training_that_was_killed_goes_on_past_a_torn_checkpoint(small, tmp_path):
    settings = {"dropout": 0.3, "elmo_at": "none"}
    whole, killed = small(out=str(tmp_path / "whole"), **settings), small(out=str(tmp_path / "killed"), **settings)
    train(whole)
    program = (
        "import os, signal, sys, json, torch\nfrom elmokit.tasks import TaskConfig, train\n"
        "torch.set_num_threads(1)\n"  # as here: sums of several threads differ in their last digits
        "def die(progress):\n"
        "    if (progress.epoch, progress.done) == (3, 1): os.kill(os.getpid(), signal.SIGKILL)\n"
        "train(TaskConfig(**json.loads(sys.argv[1])), on_progress=die)\n"
    )
    config = json.dumps(dataclasses.asdict(killed))
    done = subprocess.run([sys.executable, "-c", program, config], timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL
    checkpoint = Path(killed.out) / "checkpoints" / "step-00000002" / "tensors.safetensors"
    checkpoint.write_bytes(checkpoint.read_bytes()[:-4])
    train(killed)
    assert_same_run(whole.out, killed.out)


def test_a_finished_training_is_given_back_and_other_settings_are_refused(small):
    config = small(elmo_at="none", epochs=1)
    result = train(config)
    assert train(config, on_progress=lambda _: pytest.fail("it trained again")) == result
    assert not (Path(config.out) / "checkpoints").exists()
    with pytest.raises(ValueError, match="hidden_dim = 16, not 17"):
        train(dataclasses.replace(config, hidden_dim=17))


def test_training_leaves_the_random_numbers_of_others_alone(small):
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    train(small(elmo_at="none", epochs=1))
    assert torch.equal(torch.rand(4), expected)


def test_the_best_epoch_is_kept_the_rate_falls_and_training_stops(small, monkeypatch):
    """Dev scores 0.2, 0.9, and then worse ones: the second epoch is the result, and three worse ones are enough."""
    scores = iter([0.2, 0.9, 0.1, 0.3, 0.3, 0.55])
    monkeypatch.setattr(type(TASKS["ner"]), "score", lambda *_: {"f1": next(scores)})
    weights, rates = [], []
    save = Snapshots.save

    def watch(self, snapshot):
        weights.append(snapshot.tensors["network.scores.weight"].clone())
        rates.append(snapshot.values["rates"])
        save(self, snapshot)

    monkeypatch.setattr(Snapshots, "save", watch)
    config = small(elmo_at="none", epochs=9, patience=3, test=small().train)
    result = train(config)
    assert (result.best_epoch, result.epochs, result.dev, result.test) == (2, 5, {"f1": 0.9}, {"f1": 0.55})
    assert result.score == 0.55
    assert torch.equal(state_of(config.out)["scores.weight"], weights[1])
    assert not torch.equal(weights[1], weights[3])
    assert rates == [[0.02], [0.02], [0.02], [0.01], [0.01]]


def test_a_tuned_bilm_changes_is_saved_and_is_the_one_that_answers(small, tiny_elmo):
    config = small(elmo_at="both", tune=True, tune_learning_rate=0.01)
    before = ELMo.from_pretrained(tiny_elmo).bilm.state_dict()
    result = train(config)
    trained = load_task(config.out)
    after = trained.network.inputs.elmo.bilm.state_dict()
    assert not any(torch.equal(before[name], after[name]) for name in before if name != "char_encoder.char_embedding")
    assert trained.evaluate(config.train) == result.dev
    assert not any("bilm" in name for name in state_of(config.out))


def test_the_best_weights_of_a_tuned_bilm_are_those_that_are_scored(small, monkeypatch):
    scores = iter([0.9, 0.1])
    answers = []
    score = type(TASKS["ner"]).score

    def watch(self, examples, predictions):
        answers.append(predictions)
        return {"f1": next(scores)} if len(answers) < 3 else score(self, examples, predictions)

    monkeypatch.setattr(type(TASKS["ner"]), "score", watch)
    config = small(elmo_at="input", tune=True, epochs=2, test=small().train, tune_learning_rate=0.1)
    train(config)
    assert answers[2] == answers[0]  # test is scored with the weights of the first epoch
    assert load_task(config.out).answer(TASKS["ner"].read(config.train)) == answers[0]


def test_a_frozen_bilm_stays_as_it_is_and_only_its_mixes_learn(small, tiny_elmo):
    result = train(small(elmo_at="both", mix_l2=0.0))
    assert np.shape(result.mix_weights) == (2, 3)
    assert all(sum(weights) == pytest.approx(1) for weights in result.mix_weights)
    assert result.mix_weights[0] != pytest.approx([1 / 3] * 3, abs=1e-4)


def test_the_mixes_are_held_back_by_their_l2(small, tmp_path):
    free = train(small(out=str(tmp_path / "free"), mix_l2=0.0))
    held = train(small(out=str(tmp_path / "held"), mix_l2=100.0))

    def spread(result):
        return max(result.mix_weights[0]) - min(result.mix_weights[0])

    assert spread(held) < spread(free) / 2


def test_without_a_dev_file_the_last_tenth_is_held_out(small, monkeypatch):
    sizes = []
    score = type(TASKS["ner"]).score
    monkeypatch.setattr(
        type(TASKS["ner"]), "score", lambda self, e, p: sizes.append([x.tokens for x in e]) or score(self, e, p)
    )
    train(small(elmo_at="none", dev=None, epochs=1))
    assert sizes == [[SENTENCES[-1].split()]]


def test_a_share_of_the_training_examples_is_drawn_by_the_seed(small, monkeypatch):
    fitted = []
    fit = type(TASKS["ner"]).fit
    monkeypatch.setattr(type(TASKS["ner"]), "fit", lambda self, e: fitted.append([x.tokens for x in e]) or fit(self, e))
    for seed in (1, 1, 2):
        config = small(elmo_at="none", share=0.3, seed=seed, out=f"{small().out}-{len(fitted)}")
        with pytest.raises(KeyboardInterrupt):
            train(config, on_progress=lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    assert [len(examples) for examples in fitted] == [3, 3, 3]
    assert fitted[0] == fitted[1] != fitted[2]


def test_an_epoch_of_a_share_has_as_many_updates_as_one_of_all(small):
    updates = {}
    for share in (1.0, 0.5, 0.2):
        config = small(elmo_at="none", share=share, epochs=1, batch_size=2, out=f"{small().out}-{share}")
        train(config, on_progress=lambda progress, share=share: updates.update({share: progress.total}))
    assert updates == {1.0: 5, 0.5: 5, 0.2: 5}  # of ten examples


@pytest.mark.parametrize(("missing", "extra"), [("seqeval", "tasks"), ("pyarrow", "parquet"), ("matplotlib", "plot")])
def test_an_extra_that_is_not_installed_is_named(missing, extra, monkeypatch, small, tmp_path):
    np.save(tmp_path / "v.npy", np.zeros((1, 2), dtype=np.float32))
    (tmp_path / "v.parquet").touch()
    for name in [missing, *(name for name in sys.modules if name.startswith(f"{missing}."))]:
        monkeypatch.setitem(sys.modules, name, None)
    vectors = str(tmp_path / "v.npy") if missing == "pyarrow" else "trained"
    with pytest.raises((ImportError, ValueError), match=rf"needs {missing}: pip install .elmokit\[{extra}\]"):
        compare(small(epochs=1, elmo_at="none", vectors=vectors), seeds=[1], variants=["none"])


def test_several_files_are_read_one_after_the_other(small, tmp_path):
    more = tmp_path / "more.conll"
    more.write_text("new\tB-NEW\n", encoding="utf-8")
    config = small(elmo_at="none", epochs=1)
    config = dataclasses.replace(config, train=(config.train, str(more)), optimizer="adamw", weight_decay=0.1)
    train(config)
    assert "B-NEW" in load_task(config.out).fitted["tags"]


def test_a_loss_that_is_no_number_stops_the_training(small, monkeypatch):
    monkeypatch.setattr("elmokit.tasks.tagging.Tagger.loss", lambda self, _: self.scores.weight.sum() * math.nan)
    with pytest.raises(ValueError, match=r"batch 1 of epoch 1 is nan: lower learning_rate"):
        train(small(elmo_at="none"))


# ---- what a task reads of a token ------------------------------------------------------------------------------------


def make_inputs(**changes) -> Inputs:
    settings = {"words": ["rome", "oslo"], "word_dim": 3, "static": None, "char_dim": 5, "elmo": None, "num_mixes": 0}
    torch.manual_seed(0)
    return Inputs(**{**settings, "dropout": 0.5, "elmo_dropout": 0.5, **changes}).eval()


def test_a_token_has_the_same_vector_alone_and_in_any_batch(tiny_elmo, tmp_path, glove):
    elmo = ELMo.from_pretrained(tiny_elmo, num_mixes=0)
    sentences = [["Rome", "a"], [], ["extraordinarily", "oslo", "x", "Rome"], [""]]
    for source in (FrozenLayers(elmo, tmp_path), elmo):
        inputs = make_inputs(elmo=source, num_mixes=2, static=load_static(str(glove)))
        assert (inputs.input_dim, inputs.output_dim) == (3 + 3 + 5 + 16, 16)
        with torch.no_grad():
            together = inputs(sentences)
            assert together.x.shape == (4, 4, inputs.input_dim)
            assert together.mask.tolist() == [[i < len(tokens) for i in range(4)] for tokens in sentences]
            for row, tokens in enumerate(sentences):
                alone = inputs([tokens])
                torch.testing.assert_close(together.x[row, : len(tokens)], alone.x[0, : len(tokens)])
                torch.testing.assert_close(together.output[row, : len(tokens)], alone.output[0, : len(tokens)])
                assert not together.x[row, len(tokens) :].any()
        assert inputs([]).x.shape == (0, 1, inputs.input_dim)


def test_elmo_joins_as_the_paper_says(tiny_elmo, tmp_path):
    elmo = ELMo.from_pretrained(tiny_elmo, num_mixes=0)
    inputs = make_inputs(elmo=FrozenLayers(elmo, tmp_path), num_mixes=2)
    with torch.no_grad():
        inputs.mixes[0].weights.copy_(torch.tensor([0.5, -1.0, 2.0]))
        inputs.mixes[1].gamma.fill_(3.0)
        embedded = inputs([["Rome", "again"]])
    layers = elmo.embed([["Rome", "again"]], layers="all")[0]
    shares = np.exp([0.5, -1.0, 2.0]) / np.exp([0.5, -1.0, 2.0]).sum()
    np.testing.assert_allclose(embedded.x[0, :, 8:], np.einsum("l,ltp->tp", shares, layers), atol=2e-3)
    np.testing.assert_allclose(embedded.output[0], 3 * layers.mean(axis=0), atol=6e-3)
    assert inputs.mix_l2().item() == pytest.approx(0.25 + 1 + 4)


def test_dropout_leaves_out_the_same_features_of_all_words_of_a_sentence():
    inputs = make_inputs(char_dim=0, word_dim=64).train()
    kept = inputs([["rome", "oslo", "x"], ["rome", "oslo"]]).x != 0
    assert torch.equal(kept[0, 0], kept[0, 1])
    assert torch.equal(kept[0, 0], kept[0, 2])
    assert torch.equal(kept[1, 0], kept[1, 1])
    assert not torch.equal(kept[0, 0], kept[1, 0])
    assert 16 < kept[0, 0].sum() < 48
    plain, dropped = inputs.eval()([["rome"]]).x, inputs.train()([["rome"]]).x
    torch.testing.assert_close(dropped[dropped != 0], 2 * plain[dropped != 0])


def test_words_that_have_no_trained_vector_share_one():
    inputs = make_inputs(char_dim=0)
    x = inputs([["ROME", "rome", "other", "words"]]).x[0]
    assert torch.equal(x[0], x[1])
    assert torch.equal(x[2], x[3])
    assert not torch.equal(x[0], x[2])


def test_the_character_vector_is_a_convolution_and_its_maximum():
    characters = make_inputs().characters
    word = "ab"  # begin, a, b, end: two windows of three
    ids = torch.tensor([258, 97, 98, 259])
    x = characters.embedding(ids)  # (4, d)
    weight, bias = characters.convolution.weight, characters.convolution.bias
    windows = [torch.einsum("wd,odw->o", x[start : start + 3], weight) + bias for start in (0, 1)]
    expected = torch.relu(torch.stack(windows)).amax(0)
    torch.testing.assert_close(characters([word, "x" * 80])[0], expected)


# ---- static vectors --------------------------------------------------------------------------------------------------


def test_static_vectors_are_found_as_written_then_in_small_letters(glove):
    static = load_static(str(glove))
    found = static.lookup(["Rome", "Oslo", "OSLO", "nothing"])
    assert found.tolist() == [[1, 2, 3], [4, 5, 6], [7, 8, 9], [0, 0, 0]]
    assert static.lookup([]).shape == (0, 3)


def test_the_head_of_word2vec_and_words_with_spaces_are_read(tmp_path):
    path = tmp_path / "vectors.txt"
    path.write_text("2 3\n. . 1 2 3\nb 4 5 6\n", encoding="utf-8")
    assert load_static(str(path)).lookup([". .", "b"]).tolist() == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize("names", ["words.txt", "index.parquet"])
def test_an_array_is_read_with_the_words_beside_it(tmp_path, names):
    table = np.arange(6, dtype=np.float32).reshape(3, 2)
    np.save(tmp_path / "vectors.npy", table)
    words = ["a", "b", "c"]
    if names.endswith(".txt"):
        (tmp_path / names).write_text("\n".join(words), encoding="utf-8")
    else:
        pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.table({"index": words}), tmp_path / names)
    for path in (tmp_path, tmp_path / "vectors.npy"):
        assert load_static(str(path)).lookup(["c", "z", "A"]).tolist() == [[4, 5], [0, 0], [0, 1]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a 1 2\nb 1\n", "line 2: expected a word and its 2 numbers"),
        ("a 1 2\n1 2\n", "line 2: 1 numbers, expected 2"),
        ("a 1 x\n", "line 1: expected a word and its 2 numbers"),
        ("a\n", "line 1: 0 numbers, expected some"),
        ("", "holds no word vectors"),
    ],
)
def test_a_bad_file_of_vectors_is_named(tmp_path, content, message):
    path = tmp_path / "bad.txt"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=rf"bad\.txt.*{message}"):
        load_static(str(path))


def test_a_folder_of_vectors_that_does_not_fit_is_named(tmp_path):
    with pytest.raises(ValueError, match="no word vectors here"):
        load_static(str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match="found none"):
        load_static(str(tmp_path))
    np.save(tmp_path / "v.npy", np.zeros((3, 2), dtype=np.float32))
    (tmp_path / "w.txt").write_text("a\nb\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"v\.npy: \(3, 2\), but .*w\.txt names 2 words"):
        load_static(str(tmp_path / "v.npy"))
    (tmp_path / "v.npy").write_bytes(b"")
    with pytest.raises(ValueError, match=r"v\.npy: not an array of word vectors"):
        load_static(str(tmp_path))


def test_a_task_with_static_vectors_keeps_them_by_name_and_notices_others(small, glove, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = small(vectors="glove.txt", epochs=1, elmo_at="none")
    result = train(config)
    monkeypatch.chdir(tmp_path.parent)
    assert load_task(config.out).evaluate(config.train) == result.dev
    moved = glove.rename(tmp_path / "moved.txt")
    with pytest.raises(ValueError, match="no word vectors here"):
        load_task(config.out)
    assert load_task(config.out, vectors=str(moved)).evaluate(config.train) == result.dev
    moved.write_text("rome 1 2 4\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"trained with another vectors than .*moved\.txt"):
        load_task(config.out, vectors=str(moved))


# ---- the vectors of a frozen biLM on disk ----------------------------------------------------------------------------


@pytest.fixture
def layers(tiny_elmo, tmp_path):
    """layers(): a fresh reader of the same folder of vectors."""
    elmo = ELMo.from_pretrained(tiny_elmo, num_mixes=0)
    return lambda: FrozenLayers(elmo, tmp_path / "vectors")


TOKENS = [sentence.split() for sentence in SENTENCES] + [[], SENTENCES[0].split()]


def refuse_to_run(monkeypatch):
    monkeypatch.setattr(ELMo, "embed", lambda *_, **__: pytest.fail("the biLM ran"))


def test_vectors_are_computed_once_and_read_the_same_as_they_are_computed_live(layers, monkeypatch):
    live = layers().tokens(TOKENS)
    first = layers()
    first.prepare(TOKENS)
    refuse_to_run(monkeypatch)
    second = layers()
    second.prepare(TOKENS, lambda *_: pytest.fail("computed again"))
    for stored in (first, second):
        torch.testing.assert_close(stored.tokens(TOKENS), live, atol=2e-3, rtol=2e-3)
        assert stored.tokens([[]]).shape == (3, 0, 16)
    second.prepare([[]])  # nothing to store is nothing stored
    assert len(list(second.folder.glob("*.f16"))) == 1


@pytest.mark.parametrize("damage", ["cut", "flip", "no record", "bad record"])
def test_damaged_vectors_are_made_again(layers, damage, caplog):
    good = layers()
    good.prepare(TOKENS)
    expected = good.tokens(TOKENS).clone()
    (path,) = good.folder.glob("*.f16")
    content = bytearray(path.read_bytes())
    if damage == "cut":
        path.write_bytes(content[:-2])
    elif damage == "flip":
        content[100] ^= 1
        path.write_bytes(content)
    elif damage == "no record":
        path.with_suffix(".json").unlink()
    else:
        path.with_suffix(".json").write_text("{}")
    again = layers()
    again.prepare(TOKENS)
    assert "is damaged and is made again" in caplog.text
    assert torch.equal(again.tokens(TOKENS), expected)


def test_the_making_of_vectors_goes_on_where_it_was_stopped(layers, monkeypatch):
    monkeypatch.setattr(vectors, "SENTENCES_AT_ONCE", 3)
    whole = layers()
    whole.prepare(TOKENS)
    expected = whole.tokens(TOKENS).clone()
    for path in whole.folder.iterdir():
        path.unlink()

    def stop(done, total):
        assert total == 10
        if done == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        layers().prepare(TOKENS, stop)
    (part,) = whole.folder.iterdir()
    with open(part, "ab") as file:
        file.write(b"torn")
    ran = []
    embed = ELMo.embed
    monkeypatch.setattr(ELMo, "embed", lambda self, s, **k: ran.extend(s) or embed(self, s, **k))
    again = layers()
    again.prepare(TOKENS)
    assert len(ran) == 4
    torch.testing.assert_close(again.tokens(TOKENS), expected, atol=2e-3, rtol=2e-3)
    assert {path.suffix for path in again.folder.iterdir()} == {".f16", ".json"}


def test_another_model_has_other_vectors(layers, tiny_elmo, tmp_path):
    layers().prepare(TOKENS)
    elmo = ELMo.from_pretrained(tiny_elmo, num_mixes=0)
    with torch.no_grad():
        elmo.bilm.layers[0].bias[0, 0] += 1e-3
    other = FrozenLayers(elmo, tmp_path / "vectors")
    other.prepare(TOKENS)
    assert len(list(other.folder.glob("*.f16"))) == 2


def test_vectors_too_large_for_half_floats_are_refused(layers, monkeypatch):
    monkeypatch.setattr(ELMo, "embed", lambda *_, **__: [np.full((3, 1, 16), 1e6, dtype=np.float32)])
    with pytest.raises(ValueError, match="float16: set tune"):
        layers().prepare([["a"]])


def test_a_task_notices_another_bilm(small, tiny_elmo, tmp_path):
    config = small(epochs=1)
    train(config)
    other = tmp_path / "other"
    elmo = ELMo.from_pretrained(tiny_elmo)
    with torch.no_grad():
        elmo.bilm.layers[0].bias += 1
    elmo.save_pretrained(other)
    with pytest.raises(ValueError, match=r"trained with another elmo than .*other"):
        load_task(config.out, elmo=str(other))


# ---- bad folders and settings ----------------------------------------------------------------------------------------


def test_a_folder_that_holds_no_whole_task_is_refused(small, tmp_path):
    with pytest.raises(ValueError, match=r"no config\.json"):
        load_task(tmp_path)
    config = small(epochs=1, elmo_at="none")
    train(config)
    out = Path(config.out)
    weights = (out / "model.safetensors").read_bytes()
    (out / "model.safetensors").write_bytes(weights[:-8])
    with pytest.raises(ValueError, match=r"model\.safetensors: not a whole safetensors file"):
        load_task(out)
    tensors = safetensors.torch.load(weights)
    tensors["scores.bias"] = tensors["scores.bias"][:-1]
    safetensors.torch.save_file(tensors, out / "model.safetensors")
    with pytest.raises(ValueError, match=r"scores\.bias is \(3,\), the task asks for \(4,\)"):
        load_task(out)
    (out / "config.json").write_text('{"format": "elmokit task 1", "config": {}, "fitted": {}, "words": []}')
    with pytest.raises(ValueError, match=r"config\.json: sha256_of_bilm, sha256_of_vectors is missing"):
        load_task(out)
    (out / "config.json").write_text('{"format": "another"}')
    with pytest.raises(ValueError, match="its format is 'another'"):
        load_task(out)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "cooking"}, "task must be one of .*ner.*, not 'cooking'"),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"learning_rate": 0.0}, "learning_rate must be above 0"),
        ({"share": 1.5}, "share must be above 0 and at most 1"),
        ({"dropout": 1.0}, "dropout must be 0 or more and less than 1"),
        ({"train": ()}, "train is empty"),
        ({"elmo_at": "none", "tune": True}, 'elmo_at is "none"'),
        ({"elmo_at": "none", "word_dim": 0, "char_dim": 0}, "a token has no vector"),
        ({"elmo_at": "top"}, "elmo_at must be 'none' or 'input' or 'both'"),
        ({"device": "abacus"}, "device 'abacus'"),
        ({"train": "nowhere.conll"}, "nowhere.conll"),
    ],
)
def test_bad_settings_are_named(small, changes, message):
    with pytest.raises(ValueError, match=message):
        train(dataclasses.replace(small(), **changes))
    assert not Path(small().out).exists()  # so that the right settings can still be given for this folder


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_named(small):
    with pytest.raises(ValueError, match="torch sees no GPU"):
        train(small(device="cuda"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@pytest.mark.parametrize("tune", [False, True])
@pytest.mark.parametrize("name", OURS)
def test_what_a_gpu_trained_answers_the_same_on_a_cpu(small, name, tune):
    config = small(name, device="cuda", elmo_at="both", tune=tune)
    result = train(config)
    metric = TASKS[name].metric
    assert load_task(config.out, device="cpu").evaluate(config.train)[metric] == pytest.approx(result.dev[metric])


def test_one_example_is_too_few_without_dev(small, tmp_path):
    path = tmp_path / "one.conll"
    path.write_text("a\tO\n", encoding="utf-8")
    with pytest.raises(ValueError, match="give dev"):
        train(small(train=str(path), dev=None, elmo_at="none"))


def test_files_of_a_folder_are_found_by_their_names(tmp_path):
    names = ["en-train.conllu.gz", "en-dev.conllu", "valid.conllu", "test.conllu", "train.md", "latest.conllu"]
    for name in names:
        (tmp_path / name).touch()
    found = find_files(str(tmp_path), (".conllu",))
    assert {part: [Path(file).name for file in files] for part, files in found.items()} == {
        "train": ["en-train.conllu.gz"],
        "dev": ["en-dev.conllu", "valid.conllu"],
        "test": ["test.conllu"],
    }
    with pytest.raises(ValueError, match="no file with `train`"):
        find_files(str(tmp_path), (".csv",))
    with pytest.raises(ValueError, match="no such folder"):
        find_files(str(tmp_path / "nowhere"), (".csv",))


# ---- recipes and the command line ------------------------------------------------------------------------------------


DEFAULTS = {name: task.defaults for name, task in TASKS.items()}


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.toml")), ids=lambda path: path.stem)
def test_every_recipe_is_a_config(path):
    config = load_recipe(str(path), DEFAULTS, {})
    assert config.test is not None
    assert set(tomllib.loads(path.read_text())) >= {"task", "train", "test", "out"}


@pytest.mark.parametrize(
    "path",
    [path for path in sorted(RECIPES.glob("*.toml")) if tomllib.loads(path.read_text())["task"] in OURS],
    ids=lambda path: path.stem,
)
def test_every_recipe_trains(path, small, tmp_path):
    """With the recipe's own settings, sizes and all, on the ten examples."""
    recipe = tomllib.loads(path.read_text())
    like, examples = small(recipe["task"]), tmp_path / "trees.txt"
    if recipe.get("phrases"):
        trees = (
            f"({number % 3} {' '.join(f'({len(word) % 5} {word})' for word in sentence.split())})\n"
            for number, sentence in enumerate(SENTENCES)
        )
        examples.write_text("".join(trees), encoding="utf-8")
    else:
        examples = like.train
    files = {"train": str(examples), "dev": None, "test": str(examples), "out": like.out}
    changes = {"elmo": like.elmo, "cache": like.cache, "epochs": 1, "device": "cpu"}
    result = train(load_recipe(str(path), DEFAULTS, {**files, **changes}))
    assert 0 <= result.score <= 1


def test_a_recipe_that_does_not_fit_is_named(tmp_path):
    with pytest.raises(ValueError, match="'cooking' is no task"):
        load_recipe("cooking", DEFAULTS, {})
    with pytest.raises(ValueError, match="no such recipe"):
        load_recipe(str(tmp_path / "x.toml"), DEFAULTS, {})
    path = tmp_path / "bad.toml"
    path.write_text("task = ")
    with pytest.raises(ValueError, match=r"bad\.toml: not a TOML file"):
        load_recipe(str(path), DEFAULTS, {})
    path.write_text('task = "cooking"')
    with pytest.raises(ValueError, match=r"bad\.toml: task must be one of"):
        load_recipe(str(path), DEFAULTS, {})
    path.write_text('task = "ner"\nspoons = 3')
    with pytest.raises(ValueError, match=r"bad\.toml with out=x: unknown key 'spoons'"):
        load_recipe(str(path), DEFAULTS, {"out": "x"})
    assert load_recipe("sentiment", DEFAULTS, {"train": "a", "out": "b"}).hidden_dim == 100


def run(*arguments: object, text: str | None = None) -> str:
    result = CliRunner().invoke(task_group, [str(argument) for argument in arguments], input=text)
    if result.exception is not None:
        raise result.exception
    return result.stdout


@pytest.fixture
def arguments(tmp_path, tiny_elmo, cache):
    """What `train` and `compare` need on the command line."""
    for part in ("train", "dev", "test"):
        write_examples("ner", tmp_path / f"{part}.conll")
    sizes = ["hidden_dim=8", "word_dim=4", "char_dim=4", "epochs=1", f"cache={cache}"]
    settings = [word for size in sizes for word in ("--set", size)]
    return ["ner", "--data", tmp_path, "--out", tmp_path / "out", "--model", tiny_elmo, "--device", "cpu", *settings]


def test_the_command_line_trains_scores_and_predicts(arguments, tmp_path):
    result = json.loads(run("train", *arguments, "--elmo-at", "both", "--json"))
    out = tmp_path / "out"
    assert result["test"] == json.loads(run("eval", out, tmp_path / "test.conll", "--json"))
    assert f"{100 * result['score']:.2f}" in run("train", *arguments, "--elmo-at", "both")
    text = 'Maria flew .\n\n{"tokens": ["Rome"]}\n{ a brace\n'
    lines = [json.loads(line) for line in run("predict", out, text=text).splitlines()]
    assert [line["tokens"] for line in lines] == [["Maria", "flew", "."], [], ["Rome"], ["{", "a", "brace"]]
    file = tmp_path / "lines.txt"
    file.write_text(text)
    assert [json.loads(line) for line in run("predict", out, file).splitlines()] == lines


def test_many_lines_are_predicted_block_by_block(arguments, tmp_path, monkeypatch):
    monkeypatch.setattr("elmokit.cli.tasks.LINES_AT_ONCE", 2)
    run("train", *arguments, "--set", "elmo_at=none")
    assert len(run("predict", tmp_path / "out", text="a\nb\nc\nd\n").splitlines()) == 4


def test_files_can_be_named_one_by_one_and_a_recipe_takes_another_folder(tmp_path, arguments):
    file = tmp_path / "train.conll"
    rest = arguments[3:]
    run("train", "ner", "--train", file, "--train", file, "--dev", file, *rest, "--set", "elmo_at=none")
    config = load_task(tmp_path / "out").config
    assert (config.train, config.dev, config.test) == ((str(file), str(file)), str(file), None)
    recipe = tmp_path / "mine.toml"
    recipe.write_text('task = "ner"\nseed = 5\n')
    run("train", recipe, *arguments[1:], "--tune", "--out", tmp_path / "tuned")
    config = load_task(tmp_path / "tuned").config
    assert (config.seed, config.tune, config.train) == (5, True, (str(file),))


def test_a_comparison_tells_mean_spread_and_error_reduction_and_keeps_its_runs(arguments, tmp_path, monkeypatch):
    found = json.loads(run("compare", *arguments, "--seeds", "2", "--json"))
    out = tmp_path / "out"
    assert found == json.loads((out / "compare.json").read_text())
    assert found["part"] == "test"
    scores = {}
    for variant in found["variants"]:
        runs = [json.loads((out / f"{variant['elmo_at']}-{seed}" / "result.json").read_text()) for seed in (1, 2)]
        values = [run["test"]["f1"] for run in runs]
        scores[variant["elmo_at"]] = np.mean(values)
        assert variant["scores"] == values
        assert variant["mean"] == pytest.approx(np.mean(values))
        assert variant["spread"] == pytest.approx(np.std(values, ddof=1))
        weights = np.mean([run["mix_weights"] for run in runs], axis=0)
        np.testing.assert_allclose(np.array(variant["mix_weights"]).reshape(weights.shape), weights)
    baseline = scores["none"]
    for variant in found["variants"][1:]:
        expected = (scores[variant["elmo_at"]] - baseline) / (1 - baseline)
        assert variant["error_reduction"] == pytest.approx(expected)
    table = (out / "compare.md").read_text()
    assert f"| + ELMo at the input | {100 * scores['input']:.2f} |" in table
    assert (out / "compare.svg").read_text().lstrip().startswith("<?xml")
    monkeypatch.setattr("elmokit.tasks.trainer._Run", lambda *_: pytest.fail("it trained again"))
    again = run("compare", *arguments, "--seeds", "2")
    assert f"{100 * baseline:.2f}" in again
    assert "error reduction" in again


def test_a_comparison_of_one_seed_has_no_spread_and_bad_ones_are_refused(small):
    seen = set()
    config = small(epochs=1)
    comparison = compare(
        config, seeds=[4], variants=["input"], on_progress=lambda at, seed, progress: seen.add((at, seed))
    )
    assert seen == {("input", 4)}
    assert (comparison.part, comparison.variants[0].spread, comparison.variants[0].error_reduction) == ("dev", 0, None)
    with pytest.raises(ValueError, match="different seeds"):
        compare(config, seeds=[1, 1])
    with pytest.raises(ValueError, match="not 'top'"):
        compare(config, variants=["top"])


def test_a_plain_comparison_is_the_one_of_all_data_among_shares_and_nothing_trains_twice(
    arguments, tmp_path, monkeypatch
):
    out = tmp_path / "out"
    whole = json.loads(run("compare", *arguments, "--seeds", "1", "--json"))
    shares = [*arguments, "--seeds", "1", "--shares", "1,0.5"]
    found = json.loads(run("compare", *shares, "--json"))
    assert list(found) == ["0.5", "1"]
    assert found["1"] == whole
    assert found == json.loads((out / "shares.json").read_text())
    assert found["0.5"] == json.loads((out / "share-0.5" / "compare.json").read_text())
    for folder, share in ((out / "share-0.5" / "both-1", 0.5), (out / "both-1", 1.0)):
        assert json.loads((folder / "run.json").read_text())["share"] == share
    assert (out / "shares.svg").read_text().lstrip().startswith("<?xml")
    monkeypatch.setattr("elmokit.tasks.trainer._Run", lambda *_: pytest.fail("it trained again"))
    shown = run("compare", *shares).splitlines()
    for line, (share, comparison) in zip(shown[1:], found.items(), strict=True):
        means = [f"{100 * one['mean']:.2f} ± 0.00" for one in comparison["variants"]]
        assert re.split(r"\s{2,}", line) == [f"{100 * float(share):g} %", *means]


def test_the_variants_of_a_comparison_can_be_named(arguments, tmp_path):
    chosen = ["--seeds", "1", "--variants", "none,both"]
    found = json.loads(run("compare", *arguments, *chosen, "--json"))
    assert [variant["elmo_at"] for variant in found["variants"]] == ["none", "both"]
    shares = json.loads(run("compare", *arguments, *chosen, "--shares", "1", "--json"))
    assert shares == {"1": found}
    assert sorted(path.name for path in (tmp_path / "out").glob("*-1")) == ["both-1", "none-1"]
    with pytest.raises(ValueError, match="variants are none, input, both, not 'top'"):
        run("compare", *arguments, "--variants", "none,top")


def test_shares_that_are_none_are_refused_before_anything_trains(arguments, small):
    with pytest.raises(ValueError, match=r"--shares 'half': write numbers with commas between them"):
        run("compare", *arguments, "--shares", "half")
    for wrong in ([], [0.1, 0.1], [0], [2]):
        with pytest.raises(ValueError, match="different numbers above 0 and at most 1"):
            compare_shares(small(), wrong)


def made_up(task: str, scores: dict[str, list[float]], **changes: object) -> Comparison:
    """A comparison with these scores; mixes that differ for each task and variant."""
    baseline = None if "none" not in scores else np.mean(scores["none"])
    variants = []
    for elmo_at, values in scores.items():
        reduction = None if elmo_at == "none" or baseline is None else (np.mean(values) - baseline) / (1 - baseline)
        mixes = {"none": (), "input": ((0.2, 0.5, 0.3),), "both": ((0.1, 0.6, 0.3), (0.7, 0.2, 0.1))}[elmo_at]
        spread = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
        variants.append(Variant(elmo_at, tuple(values), float(np.mean(values)), spread, reduction, mixes, 2.0))
    seeds = tuple(range(1, len(values) + 1))
    return dataclasses.replace(Comparison(task, "f1", "test", seeds, tuple(variants)), **changes)


def write_comparison(folder: Path, comparison: Comparison) -> Path:
    folder.mkdir(parents=True)
    (folder / "compare.json").write_text(json.dumps(dataclasses.asdict(comparison)))
    return folder


def test_shares_tell_how_little_data_does_what_all_of_it_does_without_elmo(small, monkeypatch):
    scores = {
        0.01: {"none": [0.2, 0.3], "input": [0.4, 0.5], "both": [0.3, 0.4]},
        0.1: {"none": [0.4, 0.5], "input": [0.6, 0.6], "both": [0.5, 0.6]},
        1.0: {"none": [0.5, 0.6], "input": [0.7, 0.7], "both": [0.8, 0.9]},
    }
    asked = []

    def instead(config, *, seeds, variants, on_progress):
        asked.append((config.share, Path(config.out).name))
        on_progress("none", 1, "somewhere")
        return made_up("ner", scores[config.share])

    monkeypatch.setattr("elmokit.tasks.compare.compare", instead)
    config, heard = small(), []
    Path(config.out).mkdir()
    found = compare_shares(config, [1, 0.01, 0.1], on_progress=lambda *one: heard.append(one))
    assert asked == [(0.01, "share-0.01"), (0.1, "share-0.1"), (1.0, "run")]
    assert heard == [(share, "none", 1, "somewhere") for share in (0.01, 0.1, 1)]
    columns, rows = share_table(found)
    assert columns == ["ner: f1 on test, 2 seeds", "baseline", "+ ELMo at the input", "+ ELMo at input and output"]
    assert rows[0] == ["1 %", "25.00 ± 7.07", "45.00 ± 7.07", "35.00 ± 7.07"]
    page = (Path(config.out) / "shares.md").read_text()
    assert "+ ELMo at the input: 10 % of train do at least what 100 % do for the baseline." in page
    assert "+ ELMo at input and output: 10 % of train do at least what 100 % do for the baseline." in page
    scores[0.1]["both"] = [0.5, 0.55]
    compare_shares(config, [0.01, 0.1, 1])
    assert "at input and output:" not in (Path(config.out) / "shares.md").read_text()


def test_finished_comparisons_stand_in_one_table_beside_the_paper(tmp_path):
    comparisons = {
        "wnut": made_up("ner", {"none": [0.4, 0.6], "input": [0.6, 0.6], "both": [0.5, 0.7]}),
        "ewt": made_up("pos", {"none": [0.9], "both": [0.8]}, metric="accuracy", part="dev"),
        "more": made_up("ner", {"input": [0.6]}),
    }
    folders = [write_comparison(tmp_path / name, one) for name, one in comparisons.items()]
    assert [read_comparison(folder) for folder in folders] == list(comparisons.values())
    out = tmp_path / "docs"
    shown = run("summary", *folders, "--out", out)
    lines = (out / "summary.md").read_text().splitlines()
    assert lines[2:] == [
        "| wnut | ner | f1 on test | 2 | 50.00 ± 14.14 | 60.00 ± 0.00 | 60.00 ± 14.14 | 20.0 % | 20.0 % | 21.0 % |",
        "| ewt | pos | accuracy on dev | 1 | 90.00 ± 0.00 |  | 80.00 ± 0.00 |  | -100.0 % |  |",
        "| more | ner | f1 on test | 1 |  | 60.00 ± 0.00 |  |  |  | 21.0 % |",
    ]
    assert lines[0].count("|") == lines[1].count("|") == lines[2].count("|")
    assert "60.00 ± 14.14" in shown
    values = json.loads(run("summary", *folders, "--json"))
    assert values == json.loads((out / "summary.json").read_text())
    assert values["ewt"]["variants"][1]["mean"] == 0.8
    first = (out / "summary.svg").read_bytes()
    summarize(folders, out)
    assert (out / "summary.svg").read_bytes() == first
    for number in ("20.0", "-100.0", "wnut"):
        assert number in first.decode()
    summarize(folders[1:2], out)  # neither a figure of the paper nor a gain at the input
    assert "in the paper" not in (out / "summary.svg").read_text()


def test_what_is_no_comparison_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"nowhere: no compare\.json there"):
        run("summary", tmp_path / "nowhere")
    folder = write_comparison(tmp_path / "a", made_up("ner", {"none": [0.5]}))
    (tmp_path / "b").mkdir()
    with pytest.raises(ValueError, match=r"b/\.\./a have the same name 'a': rename one of them"):
        run("summary", folder, tmp_path / "b" / ".." / "a")
    for text, message in (
        ("[]", "expected a JSON object"),
        ("{}", "there are no variants in it"),
        ('{"variants": [{"spoons": 3}]}', "unknown key 'spoons'"),
        ('{"variants": [3]}', "expected a table of settings, found int"),
    ):
        (folder / "compare.json").write_text(text)
        with pytest.raises(ValueError, match=rf"a/compare\.json: .*{message}"):
            run("summary", folder)


def test_on_a_terminal_a_bar_shows_vectors_and_epochs(arguments, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    options = [*map(str, arguments), "--set", f"cache={tmp_path / 'fresh'}"]
    task_group.main(["train", *options], standalone_mode=False)
    shown = capsys.readouterr().err
    assert "epoch 1" in shown
    assert isinstance(task_group, click.Group)
