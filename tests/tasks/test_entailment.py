"""Entailment: pairs are read in every published form, learned, and answered alike alone and in a batch."""

import gzip
import json
import tomllib
from pathlib import Path

import pytest
import torch
from task_examples import learn_by_heart, small_config

from elmokit import ELMo
from elmokit.tasks import TASKS, TaskConfig, load_task, train
from elmokit.tasks.entailment import TokenPair
from elmokit.tasks.settings import find_files, load_recipe

RECIPES = Path(__file__).resolve().parents[2] / "src" / "elmokit" / "recipes" / "tasks"
PAIRS = [
    ("A man plays the guitar.", "A man plays music.", "entailment"),
    ("A man plays the guitar.", "Nobody plays.", "contradiction"),
    ("A man plays the guitar.", "The man is old.", "neutral"),
    ("Two dogs run in the snow", "Animals are outside", "entailment"),
    ("Two dogs run in the snow", "The dogs are asleep", "contradiction"),
    ("Two dogs run in the snow", "The dogs chase a hare", "neutral"),
    ("She isn't here.", "She is absent.", "entailment"),
    ("She isn't here.", "She is here.", "contradiction"),
    ("Rain", "It rains", "entailment"),
    ("Rain", "The picnic was moved to the long hall behind the church", "neutral"),
]


def write_snli(path: Path) -> Path:
    rows = [{"gold_label": label, "sentence1": a, "sentence2": b} for a, b, label in PAIRS]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_table(path: Path, header: str, row: str) -> Path:
    lines = [row.format(a=a, b=b, label=label, LABEL=label.upper()) for a, b, label in PAIRS]
    path.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    return path


SICK = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment", "1\t{a}\t{b}\t3.5\t{LABEL}"
SNLI_TABLE = "gold_label\tsentence1\tsentence2", "{label}\t{a}\t{b}"


@pytest.fixture
def small(tmp_path, tiny_elmo):
    """small(**changes): the config of a small training on the ten pairs."""

    def make(**changes: object) -> TaskConfig:
        return small_config("entailment", write_snli(tmp_path / "train.jsonl"), tmp_path, tiny_elmo, **changes)

    return make


def test_every_published_form_reads_the_same(tmp_path):
    task = TASKS["entailment"]
    pairs = task.read(str(write_snli(tmp_path / "snli.jsonl")))
    assert pairs[6] == TokenPair(["She", "is", "n't", "here", "."], ["She", "is", "absent", "."], "entailment")
    assert [pair.label for pair in pairs] == [label for *_, label in PAIRS]
    assert task.read(str(write_table(tmp_path / "sick.txt", *SICK))) == pairs
    assert task.read(str(write_table(tmp_path / "snli.txt", *SNLI_TABLE))) == pairs
    packed = tmp_path / "sick.txt.gz"
    packed.write_bytes(gzip.compress((tmp_path / "sick.txt").read_bytes()))
    assert task.read(str(packed)) == pairs


def test_what_cannot_be_read_is_named_with_its_file(tmp_path):
    read = TASKS["entailment"].read
    with pytest.raises(ValueError, match=r"nowhere\.txt: no such file"):
        read(str(tmp_path / "nowhere.txt"))
    cut = tmp_path / "cut.txt.gz"
    cut.write_bytes(gzip.compress(b"a\tb\n" * 1000)[:-20])
    with pytest.raises(ValueError, match=r"cut\.txt\.gz"):
        read(str(cut))
    with pytest.raises(ValueError, match=r"plain\.gz: cannot be read"):
        read(str(write_snli(tmp_path / "plain.gz")))
    (tmp_path / "bad.txt").write_text(SICK[0] + "\n1\ta\tb\t3\tPERHAPS\n")
    with pytest.raises(ValueError, match=r"bad\.txt, line 2: the label 'perhaps'"):
        read(str(tmp_path / "bad.txt"))


def test_the_files_of_a_data_folder_are_found(tmp_path):
    for name in ("snli_1.0_train.jsonl", "snli_1.0_dev.jsonl", "snli_1.0_test.jsonl", "README.md"):
        write_snli(tmp_path / name)
    found = find_files(str(tmp_path), TASKS["entailment"].suffixes)
    assert {part: [Path(file).name for file in files] for part, files in found.items()} == {
        part: [f"snli_1.0_{part}.jsonl"] for part in ("train", "dev", "test")
    }


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("elmo_at", ["none", "both"])
def test_ten_pairs_are_memorized_and_the_saved_task_answers_the_same(small, elmo_at, device):
    config = small(elmo_at=elmo_at, device=device, epochs=60, patience=60, rate_decay=1.0)
    trained = learn_by_heart(config, "accuracy")
    assert trained.evaluate(config.train) == {"accuracy": 1.0, "macro_f1": 1.0}
    answers = trained.predict([{"premise": premise, "hypothesis": hypothesis} for premise, hypothesis, _ in PAIRS])
    assert [answer["label"] for answer in answers] == [label for *_, label in PAIRS]
    assert all(sum(answer["probabilities"].values()) == pytest.approx(1) for answer in answers)
    assert trained.predict([f"{premise}\t{hypothesis}" for premise, hypothesis, _ in PAIRS]) == answers


def test_a_task_that_was_saved_and_loaded_gives_the_same_probabilities(small, tmp_path):
    config = small(elmo_at="both", epochs=2)
    train(config)
    trained = load_task(config.out)
    trained.save(tmp_path / "again")
    pairs = trained.task.read(config.train)
    assert load_task(tmp_path / "again").answer(pairs) == trained.answer(pairs)


@pytest.mark.parametrize("elmo_at", ["none", "both"])
def test_a_pair_is_answered_the_same_alone_and_in_any_batch_and_where_a_sentence_is_empty(small, elmo_at):
    config = small(elmo_at=elmo_at, batch_size=32)
    train(config)
    trained = load_task(config.out)
    given = [*(f"{a}\t{b}" for a, b, _ in PAIRS), "", "\t", "a\t", "\tb", "a " * 60 + "\tb", "Zürich 東京\t\ud800"]
    together = trained.predict(given)
    for text, answer in zip(given, together, strict=True):
        (alone,) = trained.predict([text])
        assert alone["probabilities"] == pytest.approx(answer["probabilities"], abs=1e-5)
        assert (alone["premise"], alone["hypothesis"]) == (answer["premise"], answer["hypothesis"])
    assert together[11]["probabilities"] != pytest.approx(together[0]["probabilities"], abs=1e-5)
    json.dumps(together)


def test_premise_and_hypothesis_are_not_interchangeable_nor_read_across_pairs(small):
    config = small(elmo_at="none")
    train(config)
    network = load_task(config.out).network.eval()
    a, b, c = ["two", "dogs"], ["a", "man", "plays", "music"], ["rain"]
    with torch.no_grad():
        forth, back = network.predict([TokenPair(a, b, ""), TokenPair(b, a, "")])
        assert forth != pytest.approx(back, abs=1e-6)
        beside_others = network.predict([TokenPair(c, a, ""), TokenPair(a, b, ""), TokenPair(b, c, "")])[1]
    assert beside_others == pytest.approx(forth, abs=1e-6)


@pytest.mark.parametrize(
    "given", ["no tab", "a\tb\tc", ["a", "b"], {"premise": "a"}, {"premise": "a", "hypothesis": "b", "c": 1}, 3, None]
)
def test_a_value_that_is_not_a_pair_is_refused_and_named(given):
    with pytest.raises(ValueError, match="expected a premise and a hypothesis") as caught:
        TASKS["entailment"].from_text(given)
    assert repr(given)[:100] in str(caught.value)


def test_a_side_of_a_pair_may_be_tokens_but_not_numbers():
    pair = TASKS["entailment"].from_text({"premise": ["It", "'s", "rain"], "hypothesis": "It's wet."})
    assert (pair.premise, pair.hypothesis) == (["It", "'s", "rain"], ["It", "'s", "wet", "."])
    with pytest.raises(ValueError, match="3"):
        TASKS["entailment"].from_text({"premise": 3, "hypothesis": "b"})


@pytest.mark.parametrize("name", ["snli", "sick"])
def test_the_recipe_trains(name, small, tmp_path):
    """With the recipe's own settings, sizes and all, on the ten pairs."""
    path, like = RECIPES / f"{name}.toml", small()
    assert tomllib.loads(path.read_text())["task"] == "entailment"
    file = str(write_table(tmp_path / "train.txt", *SICK)) if name == "sick" else like.train
    files = {"train": file, "dev": None, "test": file, "out": like.out}
    changes = {"elmo": like.elmo, "cache": like.cache, "epochs": 1, "device": "cpu"}
    defaults = {task: TASKS[task].defaults for task in TASKS}
    result = train(load_recipe(str(path), defaults, {**files, **changes}))
    assert 0 <= result.score <= 1
    assert len(result.mix_weights) == 2


def test_the_published_files_are_read(data):
    folder = data / "tasks" / "entailment"
    counts = {"sick/SICK_dev.txt": 500, "snli/snli_1.0_dev.jsonl.gz": 9842, "multinli/multinli_subset_dev.jsonl": 2499}
    for name, count in counts.items():
        if not (folder / name).is_file():
            pytest.skip(f"no file {folder / name}")
        pairs = TASKS["entailment"].read(str(folder / name))
        assert len(pairs) == count
        assert {pair.label for pair in pairs} == {"entailment", "neutral", "contradiction"}


def test_training_files_and_texts_are_tokenized_by_the_tokenizer_of_the_bilm(small, tiny_elmo, tmp_path, monkeypatch):
    ELMo(ELMo.from_pretrained(tiny_elmo).bilm, tokenizer="spaces").save_pretrained(tmp_path / "spaces")
    premises = []
    fit = type(TASKS["entailment"]).fit
    monkeypatch.setattr(
        type(TASKS["entailment"]), "fit", lambda self, e: premises.append([x.premise for x in e]) or fit(self, e)
    )
    for elmo, elmo_at in (
        (str(tmp_path / "spaces"), "input"),
        (tiny_elmo, "input"),
        (str(tmp_path / "spaces"), "none"),
    ):
        config = small(elmo=elmo, elmo_at=elmo_at, out=str(tmp_path / f"run{len(premises)}"))
        train(config)
        (answer,) = load_task(config.out).predict(["She isn't here.\tb"])
        assert answer["premise"] == premises[-1][6]
    assert premises[0] == [premise.split() for premise, *_ in PAIRS]
    assert premises[1] == premises[2]  # by the Penn Treebank rules
    assert premises[1][6] == ["She", "is", "n't", "here", "."]
