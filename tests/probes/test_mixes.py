"""The mixes that tasks have learned: tables and heat maps."""

import json

import pytest
from click.testing import CliRunner
from probe_data import invoke, write

from elmokit.cli import probe as cli_probe
from elmokit.cli.probe import probe
from elmokit.probes.mixes import TaskMixes, read_mixes


def variant(elmo_at, *weights):
    return {
        "elmo_at": elmo_at, "scores": [0.5, 0.6], "mean": 0.55, "spread": 0.07, "error_reduction": None,
        "mix_weights": weights, "seconds": 1.0,
    }  # fmt: skip


@pytest.fixture
def trained(tmp_path):
    """Folders of a comparison, of a training with ELMo at the input of another biLM, and of one without ELMo."""
    variants = [
        variant("none"),
        variant("input", [0.2, 0.3, 0.5]),
        variant("both", [0.11, 0.22, 0.67], [0.6, 0.3, 0.1]),
    ]
    comparison = {"task": "ner", "metric": "f1", "part": "test", "seeds": [1, 2], "variants": variants}
    write(tmp_path / "wnut" / "compare.json", json.dumps(comparison))
    result = {
        "folder": "x", "task": "sentiment", "metric": "accuracy", "dev": {"accuracy": 0.5}, "test": None,
        "best_epoch": 1, "epochs": 1, "mix_weights": [[0.41, 0.59]], "seconds": 1.0,
    }  # fmt: skip
    write(tmp_path / "sst" / "result.json", json.dumps(result))
    write(tmp_path / "plain" / "result.json", json.dumps({**result, "mix_weights": []}))
    return tmp_path


def test_learned_mixes_of_comparisons_and_trainings_become_a_table_and_a_heat_map(trained):
    assert read_mixes([trained / "wnut", trained / "sst"]) == [
        TaskMixes("wnut", "ner", 2, ((0.11, 0.22, 0.67), (0.6, 0.3, 0.1))),
        TaskMixes("sst", "sentiment", 1, ((0.41, 0.59),)),
    ]
    out = trained / "out"
    shown = invoke("mixes", trained / "wnut", trained / "sst", "--out", out).stdout.splitlines()
    assert shown[0].split("  ")[-1].strip() == "layer 2"
    assert [line.split() for line in shown[1:]] == [
        ["wnut", "ner", "2", "input", "0.11", "0.22", "0.67"],
        ["wnut", "ner", "2", "output", "0.60", "0.30", "0.10"],
        ["sst", "sentiment", "1", "input", "0.41", "0.59"],
    ]
    assert "| sst | sentiment | 1 | input | 0.41 | 0.59 |  |" in (out / "mixes.md").read_text()
    values = json.loads((out / "mixes.json").read_text())
    assert values == json.loads(invoke("mixes", trained / "wnut", trained / "sst", "--json").stdout)
    assert values["wnut"]["weights"] == [[0.11, 0.22, 0.67], [0.6, 0.3, 0.1]]
    picture = (out / "mixes.svg").read_text()
    for text in ("mix at the input", "mix at the output", "wnut", "0.67", "0.10", "0.41"):
        assert f"<!-- {text} -->" in picture
    assert picture.count("<!-- 0.") == 8


def test_a_heat_map_has_no_panel_for_an_output_that_no_task_has(trained):
    invoke("mixes", trained / "sst", "--out", trained / "out")
    assert "mix at the output" not in (trained / "out" / "mixes.svg").read_text()


def test_options_before_the_name_of_a_verb_are_not_lost_in_silence(trained):
    done = CliRunner().invoke(probe, ["--out", str(trained / "out"), "mixes", str(trained / "wnut")])
    assert done.exit_code == 2
    assert "write the options of mixes after its name" in done.stderr


def test_folders_without_mixes_are_named(trained, monkeypatch):
    monkeypatch.setattr(cli_probe, "load_model", None)
    with pytest.raises(ValueError, match=r"plain: trained without ELMo"):
        invoke("mixes", trained / "plain")
    with pytest.raises(ValueError, match=r"neither compare\.json nor result\.json"):
        invoke("mixes", trained)
    write(trained / "sst" / "result.json", "{}")
    with pytest.raises(ValueError, match=r"sst/result\.json: .*missing"):
        invoke("mixes", trained / "sst")
