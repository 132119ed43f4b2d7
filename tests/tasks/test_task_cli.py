"""`elmokit task`: train, eval, predict, compare and summary."""

import json
import re
import shutil
import sys

import click
import numpy as np
import pytest
from click.testing import CliRunner
from task_examples import write_examples
from test_compare import made_up, write_comparison

from elmokit.cli import tasks as cli_tasks
from elmokit.cli.tasks import task as task_group
from elmokit.tasks import Progress, load_task, trainer
from elmokit.tasks.compare import compare_shares, read_comparison, summarize


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


def test_predict_names_the_line_that_has_no_prediction(arguments, tmp_path, monkeypatch):
    monkeypatch.setattr(cli_tasks, "LINES_AT_ONCE", 3)
    run("train", *arguments, "--elmo-at", "none")
    file = tmp_path / "lines.txt"
    file.write_bytes(b"Rome .\n" * 4 + b'{"tokens": ["a", 3]}\n')
    with pytest.raises(ValueError, match=r"lines\.txt: line 5: .* is 3 \(int\): expected a token"):
        run("predict", tmp_path / "out", file)
    with pytest.raises(ValueError, match=r"standard input: line 1: .* expected a sentence"):
        run("predict", tmp_path / "out", text='{"foo": []}\n')
    file.write_bytes(b"Rome .\ncaf\xe9\n")
    with pytest.raises(ValueError, match=r"lines\.txt: line 2 is not UTF-8 at byte 4: convert the file"):
        run("predict", tmp_path / "out", file)
    file.write_bytes("\ufeffRome .\n".encode())  # some editors write a byte-order mark
    assert json.loads(run("predict", tmp_path / "out", file))["tokens"] == ["Rome", "."]


def test_a_folder_that_is_a_file_is_refused_before_vectors_are_computed(arguments, tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "_Run", None)
    (tmp_path / "out").write_text("a file of the user", encoding="utf-8")
    with pytest.raises(ValueError, match="out is a file: name a folder"):
        run("train", *arguments)
    with pytest.raises(ValueError, match="out is a file: name a folder"):
        run("train", *[tmp_path / "out" / "ner" if one == tmp_path / "out" else one for one in arguments])
    write_comparison(tmp_path / "ner", made_up("ner", {"none": [0.5]}))
    with pytest.raises(ValueError, match="out is a file: name a folder"):
        run("summary", tmp_path / "ner", "--out", tmp_path / "out")
    assert (tmp_path / "out").read_text(encoding="utf-8") == "a file of the user"


def test_a_bilm_and_word_vectors_that_were_moved_can_be_named(arguments, tiny_elmo, tmp_path):
    shutil.copytree(tiny_elmo, tmp_path / "model")
    (tmp_path / "glove.txt").write_text("rome 1 2 3\noslo 4 5 6\n", encoding="utf-8")
    arguments[arguments.index(tiny_elmo)] = tmp_path / "model"
    result = json.loads(run("train", *arguments, "--vectors", tmp_path / "glove.txt", "--json"))
    moved = {name: (tmp_path / name).rename(tmp_path / f"moved-{name}") for name in ("model", "glove.txt")}
    options = ["--model", moved["model"], "--vectors", moved["glove.txt"]]
    out = tmp_path / "out"
    assert json.loads(run("eval", out, tmp_path / "test.conll", *options, "--json")) == result["test"]
    assert json.loads(run("predict", out, *options, text="Rome"))["tokens"] == ["Rome"]


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


@pytest.mark.slow
def test_trainings_at_the_same_time_are_told_apart_and_give_the_same_table(arguments, tmp_path):
    chosen = ["--seeds", "1", "--variants", "none,input"]
    options = [*map(str, arguments), *chosen, "--json"]
    result = CliRunner().invoke(task_group, ["compare", *options, "--jobs", "2"])
    assert result.exit_code == 0
    for name in ("baseline", r"\+ ELMo at the input"):
        assert len(re.findall(rf"^{name}, seed 1: epoch 1  loss \d\.\d+  dev f1 ", result.stderr, re.MULTILINE)) == 1
    options[options.index(str(tmp_path / "out"))] = str(tmp_path / "one")
    found, expected = json.loads(result.stdout), json.loads(run("compare", *options, "--jobs", "1"))
    for comparison in (found, expected):
        for variant in comparison["variants"]:
            del variant["seconds"]
    assert found == expected
    with pytest.raises(SystemExit):
        run("compare", *arguments, "--jobs", "0")


def test_shares_that_are_none_are_refused_before_anything_trains(arguments, small):
    with pytest.raises(ValueError, match=r"--shares 'half': write numbers with commas between them"):
        run("compare", *arguments, "--shares", "half")
    for wrong in ([], [0.1, 0.1], [0], [2]):
        with pytest.raises(ValueError, match="different numbers above 0 and at most 1"):
            compare_shares(small(), wrong)


def test_finished_comparisons_become_one_table_with_the_figures_of_the_paper(tmp_path):
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


def test_a_folder_without_a_comparison_is_named(tmp_path):
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


def test_without_a_terminal_a_long_epoch_writes_lines_too(arguments, monkeypatch):
    monkeypatch.setattr("elmokit.progress.SECONDS_BETWEEN_LINES", 0.0)
    result = CliRunner().invoke(task_group, ["train", *map(str, arguments), "--set", "batch_size=1"])
    assert result.exit_code == 0
    lines = [line for line in result.stderr.splitlines() if line.startswith("epoch 1")]
    assert re.match(r"epoch 1  loss \d\.\d+: 1 of \d+ \(\d+%\)", lines[0])
    assert "dev f1" in lines[-1]


def test_on_a_terminal_a_bar_shows_vectors_and_epochs(arguments, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    options = [*map(str, arguments), "--set", f"cache={tmp_path / 'fresh'}"]
    task_group.main(["train", *options], standalone_mode=False)
    shown = capsys.readouterr().err
    assert "epoch 1" in shown
    assert isinstance(task_group, click.Group)


def test_each_training_that_runs_has_a_row_and_the_next_one_takes_the_row_of_one_that_ended(monkeypatch, capsys):
    monkeypatch.setattr("elmokit.progress.SECONDS_BETWEEN_LINES", 0.0)
    numbers = iter(range(9))
    rows = cli_tasks._Rows(2, lambda: next(numbers))
    assert [rows.find(label) for label in "aababca"] == [0, 0, 1, 0, 1, 0, 1]
    with cli_tasks._progress(2) as show:
        for done in (1, 2):
            for label in ("a: ", "b: "):
                show(label, Progress("epoch", done, 4, 1, 0.5))
        show("a: ", Progress("epoch", 4, 4, 1, 0.25, {"f1": 0.5}))
    assert re.sub(r", [\d,.]+/s, .*? left", "", capsys.readouterr().err).splitlines() == [
        "a: epoch 1  loss 0.5000: 1 of 4 (25%)",
        "b: epoch 1  loss 0.5000: 1 of 4 (25%)",
        "a: epoch 1  loss 0.5000: 2 of 4 (50%)",
        "b: epoch 1  loss 0.5000: 2 of 4 (50%)",
        "a: epoch 1  loss 0.2500  dev f1 50.00",
    ]


def test_on_a_terminal_each_training_that_runs_has_a_bar(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with cli_tasks._progress(2) as show:
        for label in ("a: ", "b: "):
            show(label, Progress("epoch", 1, 4, 7, 0.5))
    shown = capsys.readouterr().err
    assert "a: epoch 7" in shown
    assert "b: epoch 7" in shown
