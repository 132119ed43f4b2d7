"""All probes over a folder: what runs, what is kept, tables and plots."""

import dataclasses
import json
import math
import re
import sys
import xml.etree.ElementTree as ElementTree
from statistics import fmean

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
    CHINESE_TRIPLES,
    PROBES,
    ProbeReport,
    find_probes,
    read_report,
    report,
    run_probes,
    sense_triples,
    sentence_perplexity,
    suite,
    text_perplexity,
)
from elmokit.text import tokenize


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
    assert list(read_report(kept).probes) == ["senses", "words", "blanks", "wic"]
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
    said = []
    found = text_perplexity(model, tmp_path / "text.txt", progress=lambda *counts: said.append(counts))
    assert said[-1] == (expected.num_tokens, expected.num_tokens) == (10, 10)
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


def test_single_sentences_are_taken_from_the_start_until_there_are_enough_tokens(model, tmp_path, monkeypatch):
    lines = ["the bank lent money .", "", "an old unheard-of boat", "to the old bank, glorp", "money", "never read"]
    write(tmp_path / "text.txt", "\n".join(lines) + "\n")
    monkeypatch.setattr(suite, "SENTENCES_AT_ONCE", 2)
    said = []
    found = sentence_perplexity(
        model, tmp_path / "text.txt", num_tokens=10, progress=lambda done, total: said.append((done, total))
    )
    chosen = [tokenize(lines[0]), tokenize(lines[2]), tokenize(lines[3])]
    assert (found.num_sentences, found.num_tokens) == (3, sum(map(len, chosen))) == (3, 15)
    assert said[-1] == (15, 15)
    assert len(said) == 2
    losses, known, num_unknown = [], [], 0
    for sentence in chosen:
        (scores,) = model.log_probs([sentence])
        ends = [scores.forward_end, scores.backward_end]
        losses += ends
        known += ends
        for token, *both in zip(sentence, scores.forward, scores.backward, strict=True):
            losses += both
            known += both if token in WORDS else []
            num_unknown += token not in WORDS
    assert found.unknown == pytest.approx(100 * num_unknown / 15)
    assert found.perplexity.num_unknown == num_unknown >= 2
    assert found.perplexity.both == pytest.approx(math.exp(-fmean(losses)), rel=1e-5)
    assert found.perplexity.known == pytest.approx(math.exp(-fmean(known)), rel=1e-5)


def test_a_text_that_is_shorter_is_scored_completely_and_one_sentence_is_as_in_running_text(model, tmp_path):
    write(tmp_path / "text.txt.gz", "the bank lent glorps .\n")
    running = text_perplexity(model, tmp_path / "text.txt.gz")
    found = sentence_perplexity(model, tmp_path / "text.txt.gz")
    assert dataclasses.asdict(found.perplexity) == pytest.approx(dataclasses.asdict(running), rel=1e-5)
    assert (found.num_sentences, found.num_tokens, found.unknown) == (1, 5, 20.0)


def test_a_text_without_sentences_has_no_perplexity_of_sentences(model, tmp_path):
    write(tmp_path / "empty.txt", "\n\n")
    with pytest.raises(ValueError, match=r"there is no sentence in .*empty\.txt"):
        sentence_perplexity(model, tmp_path / "empty.txt")


def old_report(kept):
    """The report as version 0.2 wrote it: the perplexity of running text, in both directions."""
    content = dataclasses.asdict(kept)
    fields = ("forward", "backward", "both", "num_tokens")
    texts = content["probes"]["perplexity"]["result"]
    content["probes"]["perplexity"]["result"] = {name: {key: one[key] for key in fields} for name, one in texts.items()}
    content["probes"]["perplexity"]["data"] = "0" * 64
    return content


def test_perplexities_with_and_without_unknown_tokens_are_in_the_tables_and_old_reports_are_read(
    model_folder, model, tmp_path
):
    write(tmp_path / "text.txt", "the bank lent glorps .\nmoney of the bank\n")
    arguments = ["--model", model_folder, "--heldout", tmp_path / "text.txt", "--only", "perplexity"]
    out = tmp_path / "out"
    invoke(*arguments, "--out", out)
    kept = read_report(out / "probe.json")
    result = kept.probes["perplexity"]["result"]["text.txt"]
    expected = model.perplexity(["the bank lent glorps .", "money of the bank"])
    running, singly = (one for one in report.tables(kept) if one.title.startswith("Perplexity"))
    assert result["sentences"]["perplexity"] == pytest.approx(dataclasses.asdict(expected), rel=1e-5)
    assert dict(zip(singly.columns, singly.rows[0], strict=True)) == {
        "text": "text.txt",
        "both": f"{expected.both:.2f}",
        "forward": f"{expected.forward:.2f}",
        "backward": f"{expected.backward:.2f}",
        "both, without unknown": f"{expected.known:.2f}",
        "sentences": "2",
        "tokens": "9",
        "unknown, %": "11.11",
    }
    assert running.rows[0][-2:] == ["11", "1"]
    assert running.rows[0][4] == f"{result['known']:.2f}"

    write(tmp_path / "old.json", json.dumps(old_report(kept)))
    old = read_report(tmp_path / "old.json")
    (table,) = (one for one in report.tables(old) if one.title.startswith("Perplexity"))
    assert table.rows == [["text.txt", *running.rows[0][1:4], "", "11", ""]]
    beside = report.comparison([kept, old]).rows
    assert ["perplexity text.txt, single sentences", f"{expected.both:.2f}", ""] in beside
    assert ["perplexity text.txt, single sentences, without unknown", f"{expected.known:.2f}", ""] in beside
    assert "Side by side" in invoke(*arguments, "--beside", tmp_path / "old.json").stdout

    write(out / "probe.json", json.dumps(old_report(kept)))
    again = invoke(*arguments, "--out", out)  # the figures of single sentences are missing: it runs again
    assert again.stderr.splitlines()[-1] == "perplexity: done"
    assert read_report(out / "probe.json").probes["perplexity"]["result"]["text.txt"] == result
    assert invoke(*arguments, "--out", out).stderr.splitlines()[-1] == "perplexity: kept"


def test_words_that_are_not_tokens_of_the_model_are_not_asked_for(model):
    said = []
    by_characters = ELMo(model.bilm, tokenizer="characters")
    report = run_probes(by_characters, "m", {"senses": []}, on_probe=lambda *one: said.append(one))
    assert report.probes == {}
    assert said[0][1].startswith("left out: its English words are not tokens of this model")


def test_a_chinese_model_is_asked_for_chinese_triples(model):
    said = []
    chinese = ELMo(model.bilm, vocabulary=model.vocabulary, tokenizer="han")
    report = run_probes(chinese, "m", {"senses": [], "words": []}, on_probe=lambda *one: said.append(one))
    assert [probe for probe, state in said if state.startswith("left out")] == ["words"]
    assert report.probes["senses"]["result"] == dataclasses.asdict(sense_triples(chinese, CHINESE_TRIPLES))
    english = run_probes(model, "m", {"senses": []})
    assert english.probes["senses"]["data"] != report.probes["senses"]["data"]


def test_perplexity_needs_a_softmax(model, tmp_path):
    for measure in (text_perplexity, sentence_perplexity):
        with pytest.raises(ValueError, match="no softmax"):
            measure(ELMo(model.bilm), tmp_path / "text.txt")


def test_a_folder_is_asked_for_what_it_holds_and_no_more(folder, tmp_path):
    (folder / "similarity" / "scws" / "ratings.txt").unlink()
    (folder / "wsd" / suite.DEV / f"{suite.DEV}.gold.key.txt").unlink()
    assert list(find_probes(folder)) == ["senses", "words", "blanks", "wic", "pos", "contexts"]
    assert list(find_probes(None)) == ["senses", "words", "blanks"]
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
    write(tmp_path / "file", "")
    with pytest.raises(ValueError, match="file is a file: name a folder"):
        invoke("--only", "senses", "--out", tmp_path / "file")
    with pytest.raises(ValueError, match=r"there is no sentence in .*file"):
        invoke("--heldout", tmp_path / "file")
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


def test_a_plot_of_one_panel_has_its_complete_title_and_no_percentage_above_100(tmp_path):
    layers = {"0": 0.0, "1": 60.0, "2": 88.0}
    probes = {"senses": {"result": {"num_triples": 41, "layers": layers, "lost": {}}}}
    found = ProbeReport("models/" + "m" * 60, "0" * 64, list(layers), {}, probes)
    report.plot(found, tmp_path / "probe.svg")
    drawn = (tmp_path / "probe.svg").read_text(encoding="utf-8")
    assert f"<!-- What the layers of {found.model} know -->" in drawn  # and nothing of a star
    assert float(re.search(r'width="([\d.]+)pt"', drawn)[1]) > 60 * 7  # an m of ten points is seven wide
    assert [f"<!-- {tick} -->" in drawn for tick in (80, 100, 120)] == [True, True, False]
