"""`elmokit bench`: what is compared, and how speeds follow from times. No test depends on a measured time."""

import json

import pytest
import torch
from click.testing import CliRunner

from elmokit import BiLMConfig, bench
from elmokit.cli import main
from elmokit.text import Tokenizer

TINY = BiLMConfig(char_dim=4, filters=((1, 4), (2, 4)), num_highways=0, cell_dim=16, projection_dim=8)


@pytest.fixture(autouse=True)
def tiny_sizes(monkeypatch):
    monkeypatch.setitem(bench.SIZES, "small", TINY)
    monkeypatch.setitem(bench.CEILING_SIDE, "cpu", 16)


def test_every_contender_is_measured_at_every_shape():
    seen = []
    report = bench.measure(
        ["small"], device="cpu", rows=(1, 3), steps=4, num_sentences=5, rounds=1, progress=seen.append
    )
    assert seen == report.measurements
    shapes = [(one.part, one.contender, one.rows, one.steps) for one in seen]
    stack = ["elmokit", "eager", "nn.LSTM", "transformer"]
    assert shapes[:8] == [("stack", name, rows, 4) for rows in (1, 3) for name in stack]
    assert [one.contender for one in seen[8:]] == ["elmokit, new words", "elmokit, known words", "eager, new words"]
    assert all(one.tokens_per_second > 0 for one in seen)
    assert [one.of_ceiling is None for one in seen] == [False, False, False, True] * 2 + [True] * 3
    assert report.machine["dtype"] == "float32"


def test_training_measures_the_layers_alone():
    report = bench.measure(["small"], device="cpu", rows=(2,), steps=3, training=True, rounds=1, threads=1)
    assert {(one.part, one.mode) for one in report.measurements} == {("stack", "training")}


def test_weights_are_flattened_in_bfloat16_too_and_compute_the_same(monkeypatch):
    lstm, x = torch.nn.LSTM(4, 6, num_layers=2, proj_size=4), torch.randn(3, 2, 4)
    before, dtypes = lstm(x)[0], set(torch.backends.cudnn.CUDNN_TENSOR_DTYPES)
    flattened_with = []
    original = torch.nn.LSTM.flatten_parameters

    def flatten_parameters(self):
        flattened_with.append(set(torch.backends.cudnn.CUDNN_TENSOR_DTYPES))
        original(self)

    monkeypatch.setattr(torch.nn.LSTM, "flatten_parameters", flatten_parameters)
    bench.flatten_weights(lstm)
    assert flattened_with == [dtypes | {torch.bfloat16}]
    assert dtypes == torch.backends.cudnn.CUDNN_TENSOR_DTYPES
    assert torch.equal(lstm(x)[0], before)


def test_operations_of_the_stack_are_those_of_its_products():
    products = 2 * (2 * 8 * 64 + 16 * 8)  # input and recurrent gates, projection; multiply and add
    assert bench.stack_operations(TINY, training=False) == products * 2 * 2
    assert bench.stack_operations(TINY, training=True) == 3 * products * 2 * 2


def test_medians_of_turns_are_compared(monkeypatch):
    ticks = iter([0, 1, 0, 1, 0, 2, 0, 20, 0, 9, 0, 30, 0, 3, 0, 10])
    monkeypatch.setattr(bench.time, "perf_counter", lambda: next(ticks))
    calls = []
    medians = bench.take_turns({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 3, "cpu")
    assert medians == {"a": 3, "b": 20}
    assert calls == ["a", "a", "b", "b", "a", "b", "a", "b", "a", "b"]


def test_the_number_of_threads_is_given_back():
    before = torch.get_num_threads()
    bench.measure(["small"], device="cpu", rows=(1,), steps=2, num_sentences=2, rounds=1, threads=before + 1)
    assert torch.get_num_threads() == before


def test_text_is_read_from_a_file_or_made_by_zipfs_law(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("One sentence.\n\nAnother one.\nA third.\n")
    assert bench.read_sentences(path, 2) == [["One", "sentence", "."], ["Another", "one", "."]]
    assert bench.read_sentences(path, 1, Tokenizer("spaces")) == [["One", "sentence."]]
    path.write_text("\n\n")
    with pytest.raises(ValueError, match="contains no sentence"):
        bench.read_sentences(path, 2)
    made = bench.read_sentences(None, 300)
    words = [word for sentence in made for word in sentence]
    assert len(made) == 300
    assert 0.1 < len(set(words)) / len(words) < 0.9
    assert bench.read_sentences(None, 300) == made


def test_an_unknown_size_is_named():
    with pytest.raises(ValueError, match="unknown size 'huge': choose from small, medium, original"):
        bench.measure(["huge"], device="cpu")


def test_the_verb_prints_a_table_or_json_and_draws(tmp_path):
    arguments = ["bench", "--rows", "2", "--steps", "3", "--sentences", "3", "--rounds", "1"]
    result = CliRunner().invoke(main, [*arguments, "--plot", str(tmp_path / "bars.png")])
    assert result.exit_code == 0, result.output
    assert "TFLOP/s" in result.output
    assert "nn.LSTM" in result.output
    assert (tmp_path / "bars.png").stat().st_size > 10_000
    result = CliRunner().invoke(main, [*arguments, "--threads", "1", "--json"])
    report = json.loads(result.output)
    assert {one["contender"] for one in report["measurements"]} >= {"elmokit", "eager", "nn.LSTM", "transformer"}


def test_a_model_is_measured_from_its_name_to_its_vectors(tiny_elmo, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("The bank lent money.\nRain.\n", encoding="utf-8")
    arguments = ["bench", "--model", tiny_elmo, "--text", str(text), "--rounds", "1", "--device", "cpu"]
    report = json.loads(CliRunner().invoke(main, [*arguments, "--json"]).output)
    assert (report["model"], report["num_sentences"], report["num_tokens"]) == (tiny_elmo, 2, 7)
    for name in ("load_seconds", "sentence_ms", "new_words_per_second", "known_words_per_second"):
        assert report[name] > 0
    assert 0 <= report["largest_difference"] < 1e-5
    assert report["peak_memory_mb"] > 50  # Python and torch are more
    result = CliRunner().invoke(main, [*arguments, "--threads", "1"])
    assert result.exit_code == 0, result.output
    assert "2 sentences, 7 tokens" in result.output
    assert "one sentence per call" in result.output


def test_times_of_a_model_become_its_speeds(tiny_elmo, monkeypatch):
    monkeypatch.setattr(bench, "take_turns", lambda calls, rounds, device: {"new": 2.0, "known": 0.5, "one": 0.25})
    monkeypatch.setattr(bench, "read_sentences", lambda path, count, tokenizer: [["a"] * 4, ["b"] * 6])
    report = bench.measure_model(tiny_elmo, device="cpu")
    assert (report.new_words_per_second, report.known_words_per_second, report.sentence_ms) == (5.0, 20.0, 250.0)


@pytest.mark.parametrize("option", [["--rows", "2"], ["--training"], ["--plot", "bars.png"]])
def test_options_of_the_comparison_do_not_go_with_a_model(option):
    result = CliRunner().invoke(main, ["bench", "--model", "en", *option])
    assert result.exit_code == 2
    assert "leave out --rows, --training and --plot" in result.output
