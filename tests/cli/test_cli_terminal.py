"""All verbs: help, errors of one line, exit codes, progress bars."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from verbs import error_of, run

import elmokit
from elmokit.cli import main, terminal
from elmokit.inference.scores import Perplexity
from elmokit.model import ELMo


def all_verbs(group: click.Group = main, *names: str) -> Iterator[tuple[list[str], click.Command]]:
    """Every verb with its names, those of groups too."""
    for name, command in group.commands.items():
        yield [*names, name], command
        if isinstance(command, click.Group):
            yield from all_verbs(command, *names, name)


def help_of(*names: str) -> str:
    """The help text of a verb as one line."""
    return " ".join(run(*names, "--help").stdout.split())


def test_help_of_every_verb_comes_without_torch_or_any_other_slow_import():
    verbs = [[], *(names for names, _ in all_verbs())]
    program = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from elmokit.cli import main\n"
        f"for verb in {verbs}:\n"
        "    done = CliRunner().invoke(main, [*verb, '--help'])\n"
        "    assert done.exit_code == 0 and 'Usage' in done.output, verb\n"
        "print(sorted({'torch', 'numpy', 'h5py', 'rich', 'nltk'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_the_verbs_are_those_of_the_documentation():
    page = Path(__file__).resolve().parents[2] / "docs" / "cli.md"
    documented = {line.split()[2] for line in page.read_text().splitlines() if line.startswith("## elmokit ")}
    assert documented == set(main.commands)


@pytest.mark.parametrize(("names", "command"), [pytest.param(*verb, id="-".join(verb[0])) for verb in all_verbs()])
def test_every_verb_and_every_option_says_what_it_does(names, command):
    assert command.help
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{names} {parameter.opts}"
            assert parameter.help.partition("  [")[0].endswith("."), f"{names} {parameter.opts}"
    first_line = command.get_short_help_str(limit=60)
    assert not first_line.endswith("..."), f"{names}: the list of verbs cuts {first_line!r}"


def test_help_names_the_recipes_and_the_tasks_of_the_package():
    from elmokit.settings import recipe_names
    from elmokit.tasks import TASKS

    assert f"Recipes: {', '.join(recipe_names('pretraining'))}" in help_of("pretrain")
    for verb in ("train", "compare"):
        assert f"Recipes: {', '.join(recipe_names('tasks'))}" in help_of("task", verb)
    line = help_of("task").partition("Tasks: ")[2].partition(".")[0]
    assert sorted(line.split(", ")) == sorted(TASKS)


def test_the_module_is_the_same_program():
    done = subprocess.run([sys.executable, "-m", "elmokit", "--version"], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, f"elmokit, version {elmokit.__version__}\n")


@pytest.mark.parametrize(("text", "value"), [("top", "top"), ("0", 0), ("-1", -1), ("12", 12), ("1.5", "1.5")])
def test_layers_are_a_name_or_a_number(text, value):
    @click.command()
    @terminal.layers_option("average", "Layers")
    def verb(layers: object) -> None:
        click.echo(repr(layers))

    assert CliRunner().invoke(verb, ["--layers", text]).stdout == f"{value!r}\n"


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (1500, "1.5 kB"), (35_700_000, "35.7 MB"), (10**9, "1.0 GB")],
)
def test_bytes_are_shown_in_units_of_a_thousand(count, text):
    assert terminal.format_bytes(count) == text


@pytest.mark.parametrize(
    ("count", "nouns", "text"),
    [
        (0, ["word"], "0 words"),
        (1, ["word"], "1 word"),
        (1200, ["word"], "1,200 words"),
        (1, ["line has", "lines have"], "1 line has"),
        (2, ["line has", "lines have"], "2 lines have"),
    ],
)
def test_a_count_has_the_noun_of_its_number(count, nouns, text):
    assert terminal.format_count(count, *nouns) == text


def test_json_has_no_infinity_and_no_nan(capsys):
    values = {"a": [float("inf"), 1.5, None], "b": {"c": (float("nan"), True)}, "d": -float("inf"), "e": "inf"}
    expected = {"a": [None, 1.5, None], "b": {"c": [None, True]}, "d": None, "e": "inf"}
    terminal.print_result(True, values, "")
    terminal.print_table(True, values, [], [])
    terminal.print_json(values, ensure_ascii=False)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [expected] * 3


def test_the_default_model_is_asked_for_where_none_is_named(folder, monkeypatch):
    asked = []

    def from_pretrained(name: object, **_: object) -> ELMo:
        asked.append(name)
        raise ConnectionError("no\nnetwork")

    monkeypatch.setattr(ELMo, "from_pretrained", from_pretrained)
    monkeypatch.setattr("elmokit.storage.names.resolve", from_pretrained)
    assert error_of("similar", "a", "b") == "Error: no network"
    assert error_of("info") == "Error: no network"
    assert asked == [None, None]


def test_a_traceback_comes_only_when_asked_for(monkeypatch):
    for arguments in (["--debug", "info", "nowhere"], ["info", "nowhere"]):
        result = CliRunner().invoke(main, arguments, env={"ELMOKIT_TRACEBACK": "0" if "--debug" in arguments else "1"})
        assert isinstance(result.exception, ValueError)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError(28, "No space left on device", "a/file"), "Error: a/file: No space left on device\n"),
        (OSError(28, "No space left on device"), "Error: [Errno 28] No space left on device\n"),
        (MemoryError(), "Error: MemoryError: \n"),
        (RuntimeError("the loss is\nnot finite"), "Error: RuntimeError: the loss is not finite\n"),
        (ImportError('pip install "elmokit[hub]"'), 'Error: pip install "elmokit[hub]"\n'),
        (BrokenPipeError(32, "Broken pipe"), ""),
    ],
)
def test_faults_of_the_machine_are_one_line(error, line, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("elmokit.storage.names.resolve", fail)
    result = CliRunner().invoke(main, ["info", "model"])
    assert (result.exit_code, result.stderr) == (1, line)


def test_wrong_usage_has_its_own_code():
    assert CliRunner().invoke(main, ["embed", "--wrong"]).exit_code == 2
    assert CliRunner().invoke(main, ["neither"]).exit_code == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_standard_output_on_a_full_disk_is_one_line(text, tmp_path):
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "elmokit", "vocab", str(text), "-o", str(tmp_path / "v.txt")]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (1, "Error: [Errno 28] No space left on device\n")


class Terminal:
    """Standard error that says it is a terminal."""

    encoding = "utf-8"

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return True


def watch(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """From here on standard error is a terminal (not a fixture: pytest puts its own in place before a test)."""
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    return screen


def test_a_bar_moves_with_the_lines_that_are_done(monkeypatch):
    screen = watch(monkeypatch)
    with terminal.progress_bar("embedding", 10) as advance:
        assert list(terminal.counting(iter([b"12345", b"67890"]), advance)) == [b"12345", b"67890"]
    assert "embedding" in screen.text
    assert "10/10 bytes" in screen.text


def test_a_bar_of_sentences_counts_no_bytes(monkeypatch):
    screen = watch(monkeypatch)
    with terminal.progress_bar("probing", None, in_bytes=False) as advance:
        advance.to(3, 7)
    assert "3/7" in screen.text
    assert "bytes" not in screen.text


def test_downloads_draw_a_bar_for_each_file_from_its_first_byte_on(monkeypatch):
    screen = watch(monkeypatch)
    with terminal.downloads() as progress:
        assert screen.text == ""
        assert progress is not None
        progress("weights.hdf5", 5, 20)
        progress("weights.hdf5", 20, 20)
        progress("options.json", 1, None)
    assert "20/20 bytes" in screen.text
    assert "options.json" in screen.text


def test_training_shows_loss_speed_and_perplexity(monkeypatch):
    screen = watch(monkeypatch)
    from elmokit.pretraining import Progress

    heldout = Perplexity(30.0, 32.0, 31.0, 100)
    with terminal.training_bar() as report:
        report(Progress(1, 2, 3.5, 33.0, 0.2, 1234.0, 5.0, None))
        report(Progress(2, 2, 3.25, 25.0, 0.2, 1234.0, 0.0, heldout))
    assert "2/2" in screen.text
    assert "loss 3.2500" in screen.text
    assert "held-out perplexity 31.00" in screen.text


def test_the_group_is_what_the_script_calls():
    assert isinstance(main, click.Group)
