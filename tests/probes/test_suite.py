"""All probes over a folder: what runs, what is kept, tables and plots."""

import dataclasses
import json
import sys
import xml.etree.ElementTree as ElementTree

import pytest
from probe_data import (
    WORDS,
    invoke,
    pairs,
    random_senses,
    tagged,
    write,
)

from elmokit.cli import probe as cli_probe
from elmokit.model import ELMo
from elmokit.probes import (
    PROBES,
    find_probes,
    read_report,
    report,
    run_probes,
    suite,
    text_perplexity,
)


def conllu(seed):
    rows = []
    for sentence in tagged(seed, 6):
        for number, (token, tag) in enumerate(zip(sentence.tokens, sentence.tags, strict=True), 1):
            rows.append(f"{number}\t{token}\t_\t{tag}\t{tag}x\t_\t_\t_\t_\t_")
        rows.append("")
    return "\n".join(rows) + "\n"


def sense_xml(seed):
    text, keys = "", ""
    for number, sentence in enumerate(random_senses(seed, 6, ["bank", "play"])):
        words = [f'<wf lemma="x" pos="NOUN">{token}</wf>' for token in sentence.tokens]
        one = sentence.instances[0]
        words[3] = f'<instance id="s{number}" lemma="{one.lemma}" pos="NOUN">{sentence.tokens[3]}</instance>'
        text += f'<sentence id="s{number}">\n' + "\n".join(words) + "\n</sentence>\n"
        keys += f"s{number} {' '.join(sense.replace('%', '%1:0') + '::' for sense in one.senses)}\n"
    return f"<corpus><text>\n{text}</text></corpus>\n", keys


@pytest.fixture
def folder(tmp_path):
    """Data of every probe, laid out as the suite wants it."""
    here = tmp_path / "data"
    for seed, part in enumerate(("train", "dev", "test")):
        write(here / "pos" / f"xx-ud-{part}.conllu{'.gz' * (seed == 0)}", conllu(seed))
    for seed, name in enumerate(("semcor", suite.DEV, *suite.TESTS)):
        text, keys = sense_xml(seed)
        write(here / "wsd" / name / f"{name}.data.xml{'.gz' * (seed == 0)}", text)
        write(here / "wsd" / name / f"{name}.gold.key.txt{'.gz' * (seed == 0)}", keys)
    write(here / "wsd" / "wordnet" / "index.sense.gz", "bank%1:00:: 1 1 0\nplay%1:00:: 2 1 0\n")
    for part, count in (("train", 8), ("dev", 4)):
        rows = [f"bank\tN\t1-1\t{' '.join(p.first.tokens)}\t{' '.join(p.second.tokens)}" for p in pairs(1, count)]
        write(here / "similarity" / "wic" / part / f"{part}.data.txt", "\n".join(rows) + "\n")
        write(here / "similarity" / "wic" / part / f"{part}.gold.txt", "T\nF\n" * (count // 2))
    rows = [
        "\t".join([str(n), "bank", "n", "play", "n", "the <b> bank </b> .", f"a <b> {w} </b> ran", str(n)] + ["0"] * 10)
        for n, w in enumerate(WORDS[:6])
    ]
    write(here / "similarity" / "scws" / "ratings.txt", "\n".join(rows) + "\n")
    write(tmp_path / "heldout.txt", "the bank lent money to an old boat .\n")
    return here


@pytest.fixture
def model_folder(model, tmp_path):
    model.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_the_verb_runs_all_that_the_folder_holds_and_writes_tables_and_a_plot(model_folder, folder, tmp_path):
    out = tmp_path / "out"
    arguments = ["--model", model_folder, "--data", folder, "--heldout", tmp_path / "heldout.txt", "--out", out]
    shown = invoke(*arguments)
    kept = read_report(out / "probe.json")
    assert set(kept.probes) == set(PROBES)
    assert [line for line in shown.stderr.splitlines() if line.endswith(": done")] == [f"{p}: done" for p in PROBES]
    page = (out / "probe.md").read_text()
    for table in report.tables(kept):
        assert table.title in shown.stdout
        assert f"## {table.title}" in page
        assert all(len(row) == len(table.columns) for row in table.rows)
    picture = ElementTree.parse(out / "probe.svg").getroot()
    assert picture.tag.endswith("svg")
    again = invoke(*arguments, "--beside", out / "probe.json", "--json")
    assert json.loads(again.stdout) == dataclasses.asdict(kept)
    assert again.stderr.splitlines() == [f"{p}: kept" for p in PROBES]


def test_models_stand_side_by_side(model_folder, folder, tmp_path):
    invoke("--model", model_folder, "--data", folder, "--only", "wic, scws", "--out", tmp_path / "one")
    shown = invoke("--model", model_folder, "--only", "senses", "--beside", tmp_path / "one" / "probe.json")
    rows = shown.stdout.split("Side by side\n")[1].splitlines()
    figures = {row.split("  ")[0]: row.split()[-1] for row in rows[1:]}
    one = read_report(tmp_path / "one" / "probe.json").probes
    assert figures["SCWS Spearman x 100, 1"] == f"{one['scws']['result']['layers']['1']:.2f}"
    best = one["wic"]["result"]["best_layer"]
    assert figures["WiC accuracy, chosen layer"] == f"({best})"
    assert "sense triples won, %, mean" in figures


def test_a_stopped_run_resumes_and_only_changed_data_runs_again(model, folder, tmp_path, monkeypatch):
    files = find_probes(folder)
    kept = tmp_path / "probe.json"
    real, ran = suite.run_probe, []

    def stop(elmo, name, paths, *, progress=None):
        if name == "scws":
            raise KeyboardInterrupt
        return real(elmo, name, paths, progress=progress)

    def count(elmo, name, paths, *, progress=None):
        ran.append(name)
        return real(elmo, name, paths, progress=progress)

    monkeypatch.setattr(suite, "run_probe", stop)
    with pytest.raises(KeyboardInterrupt):
        run_probes(model, "m", files, keep=kept)
    assert list(read_report(kept).probes) == ["senses", "words", "wic"]
    monkeypatch.setattr(suite, "run_probe", count)
    run_probes(model, "m", files, keep=kept)
    assert ran == ["scws", "pos", "wsd", "contexts"]
    ran.clear()
    write(folder / "similarity" / "wic" / "dev" / "dev.gold.txt", "F\nF\nT\nT\n")
    run_probes(model, "m", find_probes(folder), keep=kept)
    assert ran == ["wic"]


def test_a_model_of_other_weights_takes_nothing_from_the_report_that_is_there(model, official_model, tmp_path):
    kept = tmp_path / "probe.json"
    first = run_probes(model, "m", {"senses": []}, keep=kept)
    files = official_model(seed=8, projection_dim=6)
    other = ELMo.from_files(files.options_path, files.weights_path)
    said = []
    second = run_probes(
        other, "o", find_probes(None, [tmp_path / "probe.json"]), keep=kept, on_probe=lambda *one: said.append(one)
    )
    assert first.weights != second.weights
    assert list(second.probes) == ["senses"]
    assert dict(said)["perplexity"] == "left out: the model has no softmax"
    assert dict(said)["words"].startswith("left out: it needs a model that reads characters")
    assert read_report(kept).model == "o"


def test_the_perplexity_of_one_sentence_is_that_of_the_language_model(model, tmp_path):
    write(tmp_path / "text.txt", "the bank lent money to an old boat .\n")
    expected = model.perplexity(["the bank lent money to an old boat ."])
    found = text_perplexity(model, tmp_path / "text.txt")
    assert (found.both, found.forward) == pytest.approx((expected.both, expected.forward), rel=1e-5)


@pytest.mark.parametrize("name", ["characters", "spaces"])
def test_a_text_is_cut_as_the_model_cuts_it(model, tmp_path, name):
    by_name = ELMo(model.bilm, output_layer=model.output_layer, vocabulary=model.vocabulary, tokenizer=name)
    text = "the bank, a boat ."
    write(tmp_path / "text.txt", text + "\n")
    tokens = list(text.replace(" ", "")) if name == "characters" else text.split()
    expected = model.perplexity([tokens])
    found = text_perplexity(by_name, tmp_path / "text.txt")
    assert (found.both, found.num_tokens) == (pytest.approx(expected.both, rel=1e-5), len(tokens) + 1)


def test_words_that_are_not_tokens_of_the_model_are_not_asked_for(model):
    said = []
    by_characters = ELMo(model.bilm, tokenizer="characters")
    report = run_probes(by_characters, "m", {"senses": []}, on_probe=lambda *one: said.append(one))
    assert report.probes == {}
    assert said[0][1].startswith("left out: its English words are not tokens of this model")


def test_perplexity_needs_a_softmax(model, tmp_path):
    with pytest.raises(ValueError, match="no softmax"):
        text_perplexity(ELMo(model.bilm), tmp_path / "text.txt")


def test_a_folder_is_asked_for_what_it_holds_and_no_more(folder, tmp_path):
    (folder / "similarity" / "scws" / "ratings.txt").unlink()
    (folder / "wsd" / suite.DEV / f"{suite.DEV}.gold.key.txt").unlink()
    assert list(find_probes(folder)) == ["senses", "words", "wic", "pos", "contexts"]
    assert list(find_probes(None)) == ["senses", "words"]
    with pytest.raises(ValueError, match="nowhere: there is no such folder"):
        find_probes(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"none\.txt: there is no such file"):
        find_probes(None, [tmp_path / "none.txt"])


def test_the_verb_says_what_is_wrong_before_it_loads_a_model(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(cli_probe, "load_model", None)
    with pytest.raises(ValueError, match="--only 'poz': the probes are senses, words"):
        invoke("--data", folder, "--only", "poz")
    with pytest.raises(ValueError, match="--only perplexity: its data is not there"):
        invoke("--data", folder, "--only", "pos,perplexity")
    write(tmp_path / "probe.json", "[]")
    with pytest.raises(ValueError, match=r"probe\.json is not a report of probes"):
        invoke("--data", folder, "--beside", tmp_path / "probe.json")


def test_a_device_that_is_not_there_is_named(model_folder):
    with pytest.raises(ValueError, match="device 'nodevice' cannot be used"):
        invoke("--model", model_folder, "--device", "nodevice")


def test_without_matplotlib_there_is_all_but_the_plot(model_folder, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    shown = invoke("--model", model_folder, "--out", tmp_path / "out", "--only", "senses")
    assert 'pip install "elmokit[plot]"' in shown.stderr
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["probe.json", "probe.md"]
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"elmokit\[plot\]"):
        report.plot(read_report(tmp_path / "out" / "probe.json"), tmp_path / "p.svg")


def test_a_plot_needs_a_figure_for_each_layer(model, tmp_path):
    with pytest.raises(ValueError, match="no probe with a figure for each layer"):
        report.plot(run_probes(model, "m", {"words": []}), tmp_path / "p.svg")


def test_a_probe_that_nobody_knows_is_refused(model):
    with pytest.raises(ValueError, match="there is no probe 'poz'"):
        suite.run_probe(model, "poz", [])
