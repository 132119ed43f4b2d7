"""The command line: what each verb writes and prints, what it says of bad input, and that stopped work goes on."""

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import h5py
import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
from click.testing import CliRunner, Result

from elmokit import vector_files as output
from elmokit.cli import main, terminal
from elmokit.inference.scores import Perplexity
from elmokit.model import ELMo
from elmokit.text import tokenize

FORMATS = ["hdf5", "npz", "parquet", "safetensors"]
LINES = ["He sat on the bank .", "", "The river, isn't it?", "He sat on the bank .", "last one"]
WORDS = ["<S>", "</S>", "<UNK>", "the", ".", "bank", "He", "sat", "on", "river", "money"]


def run(*arguments: object, text: str | bytes | None = None) -> Result:
    """The verb does what it is told."""
    result = CliRunner().invoke(main, [str(argument) for argument in arguments], input=text)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


def result_of(*arguments: object, text: str | bytes | None = None) -> Any:
    """What the verb prints with --json."""
    return json.loads(run(*arguments, "--json", text=text).stdout)


def error_of(*arguments: object, text: str | bytes | None = None) -> str:
    """The one line that the verb ends with."""
    result = CliRunner().invoke(main, [str(argument) for argument in arguments], input=text)
    assert result.exit_code == 1, (result.output, result.exception)
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("Error: ")
    return lines[0]


@pytest.fixture(scope="session")
def official(official_model: Callable[..., Any]) -> Any:
    return official_model(seed=3)


@pytest.fixture(scope="session")
def folder(official: Any) -> Path:
    """A model in the official format."""
    return official.options_path.parent


@pytest.fixture(scope="session")
def language_model(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model with a softmax, in our format."""
    here = tmp_path_factory.mktemp("language")
    rng = np.random.default_rng(4)
    with h5py.File(here / "softmax.hdf5", "w") as file:
        file["softmax/W"] = rng.standard_normal((len(WORDS), 5)).astype(np.float32)
        file["softmax/b"] = rng.standard_normal(len(WORDS)).astype(np.float32)
    (here / "words.txt").write_text("".join(f"{word}\n" for word in WORDS))
    run("convert", folder, here / "model", "--softmax", here / "softmax.hdf5", "--vocabulary", here / "words.txt")
    return here / "model"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "in.txt"
    path.write_text("".join(f"{line}\n" for line in LINES))
    return path


def read_vectors(path: Path) -> dict[int, np.ndarray]:
    """The arrays of a file by line, read by the library that the format belongs to."""
    kind = path.suffix[1:]
    if kind == "hdf5":
        with h5py.File(path) as file:
            return {int(key): file[key][()] for key in file if key.isdecimal()}
    if kind == "npz":
        with np.load(path) as arrays:
            return {int(key): arrays[key] for key in arrays}
    if kind == "safetensors":
        return {int(key): array for key, array in safetensors.numpy.load_file(path).items()}
    import pyarrow.parquet

    rows = pyarrow.parquet.read_table(path).to_pylist()
    return {row["line"]: np.array(row["vectors"]) for row in rows}


def assert_same_file(found: Path, expected: Path) -> None:
    """The same lines with the same vectors; a word that an earlier part had spelled may differ in its last bit."""
    one, other = read_vectors(found), read_vectors(expected)
    assert list(one) == list(other)
    for line, vectors in one.items():
        np.testing.assert_allclose(vectors, other[line], atol=1e-6, rtol=0)
    assert found.stat().st_size == expected.stat().st_size


def assert_same_vectors(found: dict[int, np.ndarray], expected: list[np.ndarray], rtol: float = 1e-4) -> None:
    assert sorted(found) == list(range(len(expected)))
    for number, vectors in enumerate(expected):
        if vectors.size:
            assert found[number].shape == vectors.shape
            np.testing.assert_allclose(found[number], vectors, atol=1e-5 if rtol < 1e-3 else 1e-3, rtol=rtol)
        else:  # nested lists cannot say how wide nothing is
            assert found[number].size == 0


# ---- help ------------------------------------------------------------------------------------------------------------


def test_help_of_every_verb_comes_without_torch_or_any_other_slow_import():
    program = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from elmokit.cli import main\n"
        "for verb in [None, *main.commands]:\n"
        "    done = CliRunner().invoke(main, [verb, '--help'] if verb else ['--help'])\n"
        "    assert done.exit_code == 0 and 'Usage' in done.output, verb\n"
        "print(sorted({'torch', 'numpy', 'h5py', 'rich', 'nltk'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_the_verbs_are_those_of_the_documentation():
    page = Path(__file__).resolve().parents[2] / "docs" / "cli.md"
    documented = {line.split()[2] for line in page.read_text().splitlines() if line.startswith("## elmokit ")}
    assert documented == set(main.commands)


# ---- embed -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("layers", ["all", "top", "average", "0"])
def test_every_format_holds_the_vectors_of_every_line(kind, layers, official, folder, text, tmp_path):
    result = result_of("embed", text, tmp_path / f"out.{kind}", "--model", folder, "--layers", layers)
    assert (result["num_sentences"], result["format"]) == (len(LINES), kind)
    expected = []
    for line in LINES:
        stacked = official.expected(tokenize(line)).layers
        chosen = {"all": stacked, "top": stacked[-1], "average": stacked.mean(axis=0), "0": stacked[0]}
        expected.append(chosen[layers])
    assert_same_vectors(read_vectors(tmp_path / f"out.{kind}"), expected)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", f"out.{kind}"]


@pytest.mark.parametrize("kind", FORMATS)
def test_half_precision_is_the_same_rounded(kind, folder, text, tmp_path):
    for dtype in ("float32", "float16"):
        run("embed", text, tmp_path / f"{dtype}.{kind}", "--model", folder, "--dtype", dtype, "--layers", "all")
    exact, rounded = (read_vectors(tmp_path / f"{dtype}.{kind}") for dtype in ("float32", "float16"))
    assert rounded[0].dtype == np.float16 or kind == "parquet"
    assert_same_vectors(rounded, [exact[number] for number in range(len(LINES))], rtol=1e-3)
    assert not np.array_equal(rounded[0].astype(np.float32), exact[0].astype(np.float32))


@pytest.mark.parametrize("kind", ["hdf5", "npz", "parquet"])
def test_compressed_files_hold_the_same(kind, folder, text, tmp_path):
    run("embed", text, tmp_path / f"plain.{kind}", "--model", folder)
    run("embed", text, tmp_path / f"small.{kind}", "--model", folder, "--compression", "gzip")
    plain, small = (read_vectors(tmp_path / f"{name}.{kind}") for name in ("plain", "small"))
    assert_same_vectors(small, [plain[number] for number in range(len(LINES))], rtol=0)


def test_an_hdf5_file_has_the_layout_of_allennlp(official, folder, text, tmp_path):
    run("embed", text, tmp_path / "out", "--format", "hdf5", "--model", folder, "--layers", "all", "--tokenized")
    with h5py.File(tmp_path / "out") as file:
        assert sorted(file) == ["0", "1", "2", "3", "4", "sentence_to_index"]
        assert file["sentence_to_index"].shape == (1,)
        index = json.loads(file["sentence_to_index"][0])
        assert index == {LINES[0]: "3", "": "1", LINES[2]: "2", LINES[4]: "4"}  # of equal lines the last is found
        assert file[index[LINES[0]]].shape == (3, 6, 10)
        assert file["0"].dtype == np.float32
        assert file["1"].shape == (3, 0, 10)
        assert file["2"].shape == (3, 4, 10)  # split at spaces alone
        np.testing.assert_allclose(file["2"], official.expected(LINES[2].split()).layers, atol=1e-5)


def test_sentences_can_be_forgotten_or_be_keys(folder, tmp_path):
    lines = "one two\nthree / four\n"
    run("embed", "-", tmp_path / "a.hdf5", "--model", folder, "--forget-sentences", text=lines)
    run("embed", "-", tmp_path / "b.hdf5", "--model", folder, "--use-sentence-keys", text=lines)
    with h5py.File(tmp_path / "a.hdf5") as numbered, h5py.File(tmp_path / "b.hdf5") as keyed:
        assert sorted(numbered) == ["0", "1"]
        assert "sentence_to_index" not in keyed
        for number, line in enumerate(lines.splitlines()):
            assert np.array_equal(keyed[line], numbered[str(number)])


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("same\nother\nsame\n", "line 3: 'same' is there twice"),
        ("one\n\n", "line 2: '' cannot be a key"),
        ("a/b\na\n", "line 2: 'a' and another line differ by what follows a /"),
        ("a\na/b\n", "line 2: 'a/b' and another line"),
        ("nul\0\n", "line 1: 'nul\\x00' cannot be a key"),
    ],
)
def test_lines_that_cannot_be_keys_are_named(lines, message, folder, tmp_path):
    found = error_of("embed", "-", tmp_path / "o.h5", "--model", folder, "--use-sentence-keys", text=lines)
    assert message in found
    assert list(tmp_path.iterdir()) == []


def test_a_parquet_row_has_the_line_and_its_tokens(folder, text, tmp_path):
    import pyarrow.parquet

    run("embed", text, tmp_path / "out.parquet", "--model", folder)
    rows = pyarrow.parquet.read_table(tmp_path / "out.parquet").to_pylist()
    assert [row["tokens"] for row in rows] == [tokenize(line) for line in LINES]
    assert [len(row["vectors"]) for row in rows] == [len(tokenize(line)) for line in LINES]


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"one two\r\n\r\nthree\r\n", ["one two", "", "three"]),
        (b"no line feed at the end", ["no line feed at the end"]),
        (b"\xef\xbb\xbfa mark first\nthen\n", ["a mark first", "then"]),
        ("a\u2028b \u0085 c\n\U0001f600\n".encode(), ["a\u2028b \u0085 c", "\U0001f600"]),
        (b"", []),
        (b"\n", [""]),
        (b"long " * 3000 + b"\n" + b"x" * 20000 + b"\n", ["long " * 2999 + "long", "x" * 20000]),
    ],
)
def test_a_line_ends_at_a_line_feed_and_nowhere_else(content, lines, folder, tmp_path):
    (tmp_path / "in.txt").write_bytes(content)
    result = result_of("embed", tmp_path / "in.txt", tmp_path / "out.npz", "--model", folder)
    found = read_vectors(tmp_path / "out.npz")
    assert [found[number].shape for number in range(len(lines))] == [(len(tokenize(line)), 10) for line in lines]
    assert (result["num_sentences"], result["num_tokens"]) == (len(lines), sum(map(len, map(tokenize, lines))))


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("layers", ["all", "top"])
def test_an_empty_file_and_blank_lines_alone_make_a_file_too(kind, layers, folder, tmp_path):
    for lines in ("", "\n\n"):
        arguments = ["embed", "-", tmp_path / f"out.{kind}", "--overwrite", "--model", folder, "--layers", layers]
        run(*arguments, "--tokenized", text=lines)
        found = read_vectors(tmp_path / f"out.{kind}")
        assert sorted(found) == list(range(len(lines)))
        assert all(vectors.size == 0 for vectors in found.values())


def test_the_batch_size_does_not_change_the_vectors(folder, text, tmp_path):
    run("embed", text, tmp_path / "a.npz", "--model", folder)
    run("embed", text, tmp_path / "b.npz", "--model", folder, "--batch-size", 1)
    first, second = read_vectors(tmp_path / "a.npz"), read_vectors(tmp_path / "b.npz")
    assert_same_vectors(first, [second[number] for number in range(len(LINES))], rtol=1e-5)


def test_text_that_is_not_utf8_is_an_error_that_names_the_line(folder, tmp_path):
    (tmp_path / "in.txt").write_bytes("fine\nf\xfcr\n".encode("latin-1"))
    message = error_of("embed", tmp_path / "in.txt", tmp_path / "out.hdf5", "--model", folder)
    assert "in.txt: line 2 is not UTF-8 at byte 2" in message
    assert "iconv" in message
    assert [path.name for path in tmp_path.iterdir()] == ["in.txt"]
    assert "standard input: line 1 is not UTF-8" in error_of(
        "embed", "-", tmp_path / "out.hdf5", "--model", folder, text=b"\xff\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing.txt", "out.npz"], "nothing.txt: No such file or directory"),
        ([".", "out.npz"], ".: Is a directory"),
        (["in.txt", "out"], "out: its suffix names no format"),
        (["in.txt", "out.npz", "--layers", "9"], "number from 0 to 2, not 9"),
        (["in.txt", "out.npz", "--layers", "most"], "--layers is all, top, average or a number from 0, not 'most'"),
        (["in.txt", "out.npz", "--batch-size", "0"], "batch_size must be at least 1, not 0"),
        (["in.txt", "out.npz", "--device", "abacus"], "--device abacus: "),
        (["in.txt", "out.npz", "--forget-sentences"], "out.npz: sentence keys are a matter of hdf5 files"),
        (["in.txt", "out.safetensors", "--compression", "gzip"], "safetensors files are not compressed"),
        (["in.txt", "in.txt/out.npz"], "in.txt/out.npz: there is no folder in.txt"),
        (["in.txt", "away/out.npz"], "away/out.npz: there is no folder away"),
        (["in.txt", "/dev/full", "--format", "npz", "--overwrite"], "/dev/full is no regular file"),
        (["in.txt", ".", "--format", "npz"], ". is no regular file"),
        (["in.txt", "in.txt", "--format", "npz"], "in.txt is there already"),
        (["in.txt", "out.npz", "--model", "nowhere"], "no model 'nowhere'"),
    ],
)
def test_embed_says_in_one_line_what_is_wrong(arguments, message, folder, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if "--model" not in arguments:
        arguments = [*arguments, "--model", str(folder)]
    assert message in error_of("embed", *arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["in.txt"]
    assert text.read_text().startswith(LINES[0])


def test_parquet_without_pyarrow_names_the_extra(folder, text, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert 'pip install "elmokit[parquet]"' in error_of("embed", text, tmp_path / "o.parquet", "--model", folder)


def test_values_that_half_precision_cannot_hold_are_an_error(folder, text, tmp_path, monkeypatch):
    monkeypatch.setattr(
        ELMo, "embed", lambda self, tokens, **_: [np.full((len(words), 10), 1e6, np.float32) for words in tokens]
    )
    arguments = ["embed", text, tmp_path / "out.npz", "--model", folder]
    assert "line 1 has values beyond float16: write float32" in error_of(*arguments, "--dtype", "float16")
    run(*arguments)


def test_more_tensors_than_a_safetensors_header_holds_can_still_be_written_as_hdf5(folder, text, tmp_path, monkeypatch):
    monkeypatch.setattr(output, "SAFETENSORS_HEADER_BYTES", 100)
    message = error_of("embed", text, tmp_path / "out.safetensors", "--model", folder)
    assert "5 tensors are too many" in message
    (tmp_path / "out.safetensors.partial").rename(tmp_path / "out.hdf5.partial")
    assert result_of("embed", text, tmp_path / "out.hdf5", "--model", folder)["num_resumed"] == 5


# ---- embed goes on ---------------------------------------------------------------------------------------------------


CHILDREN = """
import json, os, resource, signal, sys
import torch
from elmokit import cli, model, vector_files as output

torch.set_num_threads(1)
output.PART_LINES = 2
for line in sys.stdin:
    order = json.loads(line)
    child = os.fork()
    if child == 0:
        for number, path in ((1, order["stdout"]), (2, order["stderr"])):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
        os.dup2(os.open(order["stdin"], os.O_RDONLY), 0)
        replace, num_calls = os.replace, 0

        def replace_or_die(*arguments):
            global num_calls
            num_calls += 1
            if num_calls == order["kill_at"]:
                os.kill(os.getpid(), signal.SIGKILL)
            replace(*arguments)

        os.replace = replace_or_die
        if order["limit"]:
            resource.setrlimit(resource.RLIMIT_FSIZE, (order["limit"], order["limit"]))
        try:
            cli.main(order["arguments"])
        except SystemExit as end:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(end.code or 0)
        os._exit(99)
    print(json.dumps(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])), flush=True)
"""


class Ended(NamedTuple):
    code: int
    stdout: str
    stderr: str


class Children:
    """Runs commands in processes of their own, which are forked from one that has imported everything."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self.process, self.folder = process, folder

    def run(self, *arguments: object, kill_at: int = 0, limit: int = 0, stdin: Path = Path(os.devnull)) -> Ended:
        """`kill_at` ends the process without warning when it is about to put its n-th file in place."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        streams = {name: str(self.folder / name) for name in ("stdout", "stderr")}
        order = {"arguments": list(map(str, arguments)), "kill_at": kill_at, "limit": limit, "stdin": str(stdin)}
        self.process.stdin.write(json.dumps({**order, **streams}) + "\n")
        self.process.stdin.flush()
        code = json.loads(self.process.stdout.readline())
        return Ended(code, *(Path(path).read_text() for path in streams.values()))


@pytest.fixture(scope="module")
def children(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Children]:
    command = [sys.executable, "-c", CHILDREN]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Children(process, tmp_path_factory.mktemp("children"))
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture
def long_text(tmp_path: Path) -> Path:
    path = tmp_path / "in.txt"
    path.write_text("".join(f"sentence number {k} , {'word ' * (k % 5)}\n" if k % 4 else "\n" for k in range(11)))
    return path


@pytest.mark.parametrize(("kind", "source"), [*((kind, "file") for kind in FORMATS), ("npz", "stdin")])
def test_a_run_that_is_killed_again_and_again_ends_in_the_same_file(
    kind, source, children, folder, long_text, tmp_path
):
    def embed(out: str, kill_at: int = 0) -> Ended:
        name, stdin = (long_text, Path(os.devnull)) if source == "file" else ("-", long_text)
        arguments = ["embed", name, tmp_path / f"{out}.{kind}", "--model", folder, "--layers", "all", "--json"]
        return children.run(*arguments, kill_at=kill_at, stdin=stdin)

    assert embed("whole").code == 0
    kills = 0
    for attempt in range(40):
        ended = embed("killed", kill_at=(2, 2, 1, 3)[attempt % 4])
        if ended.code == 0:
            break
        assert ended.code == -signal.SIGKILL
        assert not (tmp_path / f"killed.{kind}").exists()
        kills += 1
    assert kills == 11  # before job.json, parts, the joined file and its last move
    assert json.loads(ended.stdout)["num_resumed"] == 11
    assert_same_file(tmp_path / f"killed.{kind}", tmp_path / f"whole.{kind}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", f"killed.{kind}", f"whole.{kind}"]


@pytest.mark.parametrize("kind", FORMATS)
def test_a_full_disk_is_one_line_and_keeps_what_is_done(kind, children, folder, long_text, tmp_path):
    target = tmp_path / f"out.{kind}"
    arguments = ["embed", long_text, target, "--model", folder, "--layers", "all"]
    assert children.run("embed", long_text, tmp_path / f"whole.{kind}", *arguments[3:]).code == 0
    for limit in (600, 3500):  # too little for a part, too little for the file
        ended = children.run(*arguments, limit=limit)
        assert ended.code == 1
        assert len(ended.stderr.splitlines()) == 1
        assert f"out.{kind}" in ended.stderr
        assert "File too large" in ended.stderr
        assert not target.exists()
    assert len(list((tmp_path / f"out.{kind}.partial").glob("part-*"))) == 6
    ended = children.run(*arguments)
    assert (ended.code, ended.stderr) == (0, "")
    assert "11 of them were done before" in ended.stdout
    assert_same_file(target, tmp_path / f"whole.{kind}")


def test_a_full_disk_under_an_hdf5_file_is_told_from_the_disk_itself(folder, long_text, tmp_path, monkeypatch):
    monkeypatch.setattr(output, "PART_LINES", 2)
    arguments = ["embed", long_text, tmp_path / "out.hdf5", "--model", folder, "--layers", "all"]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3500, hard))
    try:
        message = error_of(*arguments)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert message == f"Error: {tmp_path / 'out.hdf5'}: cannot be written: File too large; what is done is kept"
    assert result_of(*arguments)["num_resumed"] == 11


def interrupted(monkeypatch: pytest.MonkeyPatch, after: int, *arguments: object) -> Result:
    """The verb, with Ctrl-C pressed during its n-th part of two lines."""
    monkeypatch.setattr(output, "PART_LINES", 2)
    embed, num_calls = ELMo.embed, 0

    def embed_or_stop(self: ELMo, *args: Any, **kwargs: Any) -> Any:
        nonlocal num_calls
        num_calls += 1
        if num_calls == after:
            raise KeyboardInterrupt
        return embed(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(ELMo, "embed", embed_or_stop)
        return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_ctrl_c_says_that_the_run_can_go_on_and_it_does(folder, long_text, tmp_path, monkeypatch):
    arguments = ["embed", long_text, tmp_path / "out.hdf5", "--model", folder]
    result = interrupted(monkeypatch, 3, *arguments)
    assert (result.exit_code, result.stderr) == (130, "Interrupted; the same command goes on where it stopped\n")
    assert "(4 of them were done before)" in run(*arguments).stdout


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--layers", "top"], "was begun with layers average, and now it is top"),
        (["--dtype", "float16"], "was begun with dtype float32, and now it is float16"),
        (["--tokenized"], "was begun with tokenized False, and now it is True"),
        (["--model", "OTHER"], "was begun with model "),
    ],
)
def test_a_run_goes_on_only_as_it_was_begun(change, message, official_model, folder, long_text, tmp_path, monkeypatch):
    arguments = ["embed", long_text, tmp_path / "out.npz", "--model", folder]
    interrupted(monkeypatch, 3, *arguments)
    other = str(official_model(seed=8).options_path.parent)
    change = [other if word == "OTHER" else word for word in change]
    found = error_of(*arguments, *change)
    assert f"out.npz.partial {message}" in found
    assert "--overwrite" in found
    assert result_of(*arguments, *change, "--overwrite")["num_resumed"] == 0
    run("embed", long_text, tmp_path / "fresh.npz", "--model", folder, *change)
    assert_same_file(tmp_path / "out.npz", tmp_path / "fresh.npz")


@pytest.mark.parametrize(
    ("edit", "message", "kept"),
    [
        (lambda lines: [*lines[:3], "other", *lines[4:]], "line 4 differs", 2),
        (lambda lines: lines[:5], "line 6 differs", 4),
        (lambda lines: lines[:4], "a longer text; now it ends after line 4", 4),
    ],
)
def test_a_run_goes_on_only_with_the_text_that_it_began_with(
    edit, message, kept, folder, long_text, tmp_path, monkeypatch
):
    arguments = ["embed", long_text, tmp_path / "out.npz", "--model", folder]
    interrupted(monkeypatch, 4, *arguments)
    long_text.write_text("\n".join(edit(long_text.read_text().split("\n"))) + "\n")
    assert message in error_of(*arguments)
    assert result_of(*arguments, "--overwrite")["num_resumed"] == kept
    run("embed", long_text, tmp_path / "fresh.npz", "--model", folder)
    assert_same_file(tmp_path / "out.npz", tmp_path / "fresh.npz")


def test_a_file_that_is_there_is_replaced_only_when_told(folder, text, long_text, tmp_path):
    arguments = ["embed", long_text, tmp_path / "out.npz", "--model", folder]
    run(*arguments)
    before = (tmp_path / "out.npz").read_bytes()
    assert "out.npz is there already" in error_of(*arguments)
    assert (tmp_path / "out.npz").read_bytes() == before
    long_text.write_text("another text\n")
    assert result_of(*arguments, "--overwrite")["num_sentences"] == 1
    assert sorted(read_vectors(tmp_path / "out.npz")) == [0]


def test_damaged_parts_are_never_taken_for_good(folder, long_text, tmp_path, monkeypatch):
    arguments = ["embed", long_text, tmp_path / "out.npz", "--model", folder]
    interrupted(monkeypatch, 4, *arguments)
    parts = tmp_path / "out.npz.partial"
    content = bytearray((parts / "part-00000000.npz").read_bytes())
    whole = bytes(content)
    content[content.index(b"vectors.npy") + 200] ^= 1
    (parts / "part-00000000.npz").write_bytes(content)  # a changed bit
    assert "part-00000000.npz is damaged" in error_of(*arguments)
    (parts / "part-00000000.npz").write_bytes(whole[:-30])  # cut off
    assert "part-00000000.npz is damaged" in error_of(*arguments)
    (parts / "part-00000000.npz").unlink()
    (parts / ".part-00000000.npz.1-abc.tmp").write_bytes(b"torn")
    assert result_of(*arguments)["num_resumed"] == 9
    run("embed", long_text, tmp_path / "fresh.npz", "--model", folder)
    assert_same_file(tmp_path / "out.npz", tmp_path / "fresh.npz")


def test_a_damaged_job_file_is_an_error_and_a_missing_one_starts_over(folder, long_text, tmp_path, monkeypatch):
    arguments = ["embed", long_text, tmp_path / "out.npz", "--model", folder]
    interrupted(monkeypatch, 4, *arguments)
    job = tmp_path / "out.npz.partial" / "job.json"
    job.write_text("{")
    assert "job.json is damaged" in error_of(*arguments)
    job.unlink()
    assert result_of(*arguments)["num_resumed"] == 0


def test_a_long_line_is_a_part_by_itself_and_parts_are_bounded_in_bytes(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(output, "PART_BYTES", 4 * 10 * 4)  # four tokens
    lines = ["a b", "c d", "e", "f g h i j k", "", "l m n o"]
    sizes: list[int] = []
    embed = ELMo.embed
    monkeypatch.setattr(
        ELMo, "embed", lambda self, tokens, **keys: sizes.append(len(tokens)) or embed(self, tokens, **keys)
    )
    run("embed", "-", tmp_path / "o.npz", "--model", folder, "--tokenized", text="\n".join(lines))
    assert sizes == [2, 1, 1, 2]
    assert [len(read_vectors(tmp_path / "o.npz")[n]) for n in range(6)] == [2, 2, 1, 6, 0, 4]


def test_a_word_level_model_is_known_by_its_vocabulary_too(official_model, tmp_path):
    words = official_model(seed=5, word_level=True)
    (words.options_path.parent / "vocabulary.txt").write_text("".join(f"{word}\n" for word in words.vocabulary))
    run("convert", words.options_path.parent, tmp_path / "model")
    run("embed", "-", tmp_path / "o.npz", "--model", tmp_path / "model", "--layers", "all", text="word1 word3 other\n")
    expected = words.expected(["word1", "word3", "other"]).layers
    np.testing.assert_allclose(read_vectors(tmp_path / "o.npz")[0], expected, atol=1e-5)
    info = result_of("info", tmp_path / "model")
    assert (info["input"], info["vocabulary_size"], info["language_model"]) == ("words", 12, False)
    assert "12 words" in run("info", tmp_path / "model").stdout


# ---- models ----------------------------------------------------------------------------------------------------------


def test_similar_prints_the_cosine_of_a_word_in_each_layer(official, folder):
    sentences = ["He sat by the bank .", "The Bank lent money ."]
    result = result_of("similar", *sentences, "--word", "bank", "--per-layer", "--model", folder)
    layers = [official.expected(tokenize(sentence)).layers for sentence in sentences]
    a, b = layers[0][:, 4], layers[1][:, 1]
    a, b = np.vstack([a, a.mean(axis=0)]), np.vstack([b, b.mean(axis=0)])
    expected = (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    assert list(result["cosine"]) == ["0", "1", "2", "average"]
    np.testing.assert_allclose(list(result["cosine"].values()), expected, atol=1e-5)
    table = run("similar", *sentences, "--word", "bank", "--layers", "all", "--model", folder).stdout.splitlines()
    assert [line.split() for line in table] == [
        ["layer", "cosine"],
        *([name, f"{value:.4f}"] for name, value in result["cosine"].items()),
    ]


def test_similar_compares_whole_sentences_without_a_word(official, folder):
    sentences = ["He sat by the bank .", "The bank lent money ."]
    result = result_of("similar", *sentences, "--layers", "top", "--model", folder)
    a, b = (official.expected(tokenize(sentence)).layers[-1].mean(axis=0) for sentence in sentences)
    assert result["cosine"] == {"top": pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b), abs=1e-5)}


def test_similar_names_a_word_that_is_not_there(folder):
    assert "the word 'money' is not in the sentence" in error_of(
        "similar", "a", "b", "--word", "money", "--model", folder
    )


def test_info_counts_what_the_files_hold(official, folder, language_model):
    found = result_of("info", folder)
    assert found["format"] == "official"
    assert (found["layers"], found["vector_dim"]) == (3, 10)
    assert found["bilm_parameters"] == sum(array.size for array in official.arrays.values())
    assert sum(found["parameters"].values()) == found["bilm_parameters"]
    assert {Path(file["path"]) for file in found["files"]} == {official.options_path, official.weights_path}
    assert not found["language_model"]
    found = result_of("info", language_model)
    assert (found["format"], found["language_model"], found["vocabulary_size"]) == ("elmokit", True, len(WORDS))
    assert found["parameters"]["softmax"] == len(WORDS) * 6
    assert {file["path"]: file["bytes"] for file in found["files"]} == {
        str(path): path.stat().st_size for path in language_model.iterdir()
    }
    lines = run("info", language_model).stdout
    assert "1:2 2:3 4:3" in lines
    assert "3 layers of 10" in lines


def test_convert_goes_both_ways_without_changing_a_bit(official, folder, language_model, tmp_path):
    result = result_of("convert", language_model, tmp_path / "back")
    assert (result["format"], result["files"]) == (
        "official",
        ["options.json", "softmax.hdf5", "vocabulary.txt", "weights.hdf5"],
    )
    with h5py.File(tmp_path / "back" / "weights.hdf5") as file:
        for name, array in official.arrays.items():
            assert np.array_equal(file[name][()], array), name
    assert (tmp_path / "back" / "vocabulary.txt").read_text().split() == WORDS
    run("convert", tmp_path / "back", tmp_path / "again")  # the softmax beside it comes along
    for name in ("model.safetensors", "softmax.safetensors", "config.json", "vocabulary.txt"):
        assert (tmp_path / "again" / name).read_bytes() == (language_model / name).read_bytes()
    run("convert", folder, tmp_path / "copy", "--to", "official")
    with h5py.File(tmp_path / "copy" / "weights.hdf5") as file:
        assert np.array_equal(file["char_embed"][()], official.arrays["char_embed"])


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_convert_stores_either_format_as_it_is_told(folder, language_model, tmp_path, dtype):
    for source in (folder, language_model):
        result = result_of("convert", source, tmp_path / dtype / source.name, "--dtype", dtype)
        assert (result["format"], "model.safetensors" in result["files"]) == ("elmokit", True)
        ELMo.from_pretrained(source).save_pretrained(tmp_path / "expected" / source.name, dtype=dtype)
        for path in (tmp_path / "expected" / source.name).iterdir():
            assert (tmp_path / dtype / source.name / path.name).read_bytes() == path.read_bytes()
    matrix = safetensors.torch.load_file(tmp_path / dtype / language_model.name / "softmax.safetensors")["weight"]
    assert str(matrix.dtype) == f"torch.{dtype}"


def test_convert_writes_over_a_model_only_when_told_and_leaves_nothing_of_it(folder, language_model, tmp_path):
    run("convert", language_model, tmp_path / "model")
    (tmp_path / "model" / "notes.txt").write_text("mine")
    assert "model is there already" in error_of("convert", folder, tmp_path / "model")
    run("convert", folder, tmp_path / "model", "--overwrite")
    names = sorted(path.name for path in (tmp_path / "model").iterdir())
    assert names == ["README.md", "config.json", "model.safetensors", "notes.txt"]
    assert not result_of("info", tmp_path / "model")["language_model"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["OFFICIAL", "file"], "file is a file: name a folder"),
        (["OFFICIAL", "OFFICIAL", "--overwrite"], "is the model that is read"),
        (["OURS", "new", "--softmax", "s.hdf5"], "is in our format, which has its own softmax"),
        (["OFFICIAL", "new", "--softmax", "s.hdf5"], "s.hdf5"),
        (["OFFICIAL", "file/new"], "file/new: Not a directory"),
        (["nowhere", "new"], "no model 'nowhere'"),
        (["OURS", "new", "--to", "official", "--dtype", "int8"], "--dtype int8 is for our format"),
    ],
)
def test_convert_says_in_one_line_what_is_wrong(arguments, message, folder, language_model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    places = {"OFFICIAL": folder, "OURS": language_model}
    assert message in error_of("convert", *(places.get(word, word) for word in arguments))
    assert not Path("new").exists()


# ---- the language model ----------------------------------------------------------------------------------------------


def test_substitutes_are_words_of_the_vocabulary_best_first(language_model):
    sentence = "He sat on the [bank] ."
    result = result_of("substitutes", sentence, "-k", 3, "--model", language_model)
    expected = ELMo.from_pretrained(language_model).substitutes(sentence, k=3)
    assert [found["word"] for found in result["substitutes"]] == [found.word for found in expected]
    assert len(expected) == 3
    table = run("substitutes", sentence, "--model", language_model).stdout.splitlines()
    assert len(table) == 6
    assert table[1].split()[0] == expected[0].word


def test_substitutes_without_brackets_or_softmax_are_an_error(folder, language_model):
    assert "mark one word with brackets" in error_of("substitutes", "no mark", "--model", language_model)
    assert "no output layer" in error_of("substitutes", "a [mark]", "--model", folder)


def test_perplexity_of_a_file_is_that_of_its_sentences(language_model, text, tmp_path):
    elmo = ELMo.from_pretrained(language_model)
    expected = elmo.perplexity([line for line in LINES if line])
    # as many rows as sentences: each begins without state, so the published test gives the same
    for found in (
        result_of("perplexity", language_model, text),
        result_of("perplexity", language_model, text, "--per-sentence"),
    ):
        numbers = [found[key] for key in ("forward", "backward", "both", "num_tokens")]
        np.testing.assert_allclose(
            numbers, [expected.forward, expected.backward, expected.both, expected.num_tokens], rtol=1e-5
        )
    each = [elmo.perplexity([line]).both for line in LINES if line]
    np.testing.assert_allclose([sentence["both"] for sentence in found["sentences"]], each, rtol=1e-5)
    assert f"{expected.both:.2f}" in run("perplexity", language_model, text).stdout
    assert len(run("perplexity", language_model, text, "--per-sentence").stdout.splitlines()) == 6


def test_perplexity_reads_a_prepared_folder_of_the_same_vocabulary(language_model, text, tmp_path):
    vocabulary = language_model / "vocabulary.txt"
    run("prepare", text, "-o", tmp_path / "corpus", "--vocabulary", vocabulary)
    assert result_of("perplexity", language_model, tmp_path / "corpus") == pytest.approx(
        result_of("perplexity", language_model, text)
    )
    (tmp_path / "other.txt").write_text("<S>\n</S>\n<UNK>\nthe\n")
    run("prepare", text, "-o", tmp_path / "other", "--vocabulary", tmp_path / "other.txt")
    assert "was prepared with the vocabulary" in error_of("perplexity", language_model, tmp_path / "other")


def test_perplexity_needs_a_softmax_and_text(folder, language_model, tmp_path):
    (tmp_path / "empty.txt").write_text("")
    assert "has no softmax" in error_of("perplexity", folder, tmp_path / "empty.txt")
    assert "there is no sentence in" in error_of("perplexity", language_model, tmp_path / "empty.txt")
    assert "no sentences" in error_of("perplexity", language_model, tmp_path / "empty.txt", "--per-sentence")


# ---- training --------------------------------------------------------------------------------------------------------


def test_vocab_counts_the_words_of_all_files(text, tmp_path):
    (tmp_path / "more.txt").write_text("bank bank\nHe\n")
    arguments = ["vocab", text, tmp_path / "more.txt", "-o", tmp_path / "words.txt", "--size", 5]
    assert result_of(*arguments)["words"] == 5
    assert (tmp_path / "words.txt").read_text().split() == ["<S>", "</S>", "<UNK>", "bank", "He"]
    assert "words.txt is there already" in error_of(*arguments)
    assert "5 words" in run(*arguments, "--overwrite").stdout
    run("vocab", text, "-o", tmp_path / "often.txt", "--tokenized", "--min-count", 2)
    assert "river," not in (tmp_path / "often.txt").read_text().split()


def test_vocab_says_in_one_line_what_is_wrong(text, tmp_path):
    (tmp_path / "empty.txt").write_text("")
    assert "there is no word" in error_of("vocab", tmp_path / "empty.txt", "-o", tmp_path / "v.txt")
    assert "no such file" in error_of("vocab", tmp_path / "nothing.txt", "-o", tmp_path / "v.txt")
    assert "there is no folder" in error_of("vocab", text, "-o", text / "v.txt")
    assert "/dev/full is no regular file" in error_of("vocab", text, "-o", "/dev/full", "--overwrite")
    assert not (tmp_path / "v.txt").exists()


def test_prepare_writes_a_corpus_and_counts_it(text, tmp_path):
    run("vocab", text, "-o", tmp_path / "words.txt")
    arguments = ["prepare", text, "-o", tmp_path / "corpus", "--vocabulary", tmp_path / "words.txt"]
    result = result_of(*arguments)
    assert (result["sentences"], result["documents"], result["replaced_lines"]) == (4, 2, 0)
    assert result["tokens"] == sum(len(tokenize(line)) for line in LINES)
    assert "4 sentences" in run(*arguments).stdout  # what is there is not made again
    text.write_text("changed\n")
    assert "holds a corpus of other text" in error_of(*arguments)
    assert "words: No such file" in error_of(*arguments[:-1], "words")


RECIPE = """
train = "{text}"
heldout = "{text}"
out = "{out}"
batch_size = 4
unroll = 5
steps = 6
log_every = 2
eval_every = 3
loss = "full"
tensorboard = false
[model]
char_dim = 3
filters = [[1, 2], [2, 3]]
num_highways = 1
cell_dim = 7
projection_dim = 5
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    words = ["the", "bank", "river", "money", "sat", "lent"]
    rng = np.random.default_rng(6)
    (tmp_path / "train.txt").write_text("".join(" ".join(rng.choice(words, 5)) + " .\n" for _ in range(40)))
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE.format(text=tmp_path / "train.txt", out=tmp_path / "run"))
    return path


def test_pretrain_runs_a_recipe_and_leaves_a_language_model(recipe, tmp_path):
    result = CliRunner().invoke(main, ["pretrain", str(recipe), "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["step"], found["num_steps"], found["ended"]) == (6, 6, "steps")
    assert found["folder"] == str(tmp_path / "run")
    reports = result.stderr.splitlines()
    assert [line.split("  ")[0] for line in reports] == ["step 2 of 6", "step 4 of 6", "step 6 of 6"]
    assert result_of("info", tmp_path / "run")["language_model"]
    line = run("pretrain", recipe).stdout  # it has ended: nothing is done again
    assert f"held-out perplexity {found['best']['both']:.2f} at step {found['best_step']}" in line
    assert "by word frequencies alone" in line


def test_pretrain_takes_settings_and_names_wrong_ones(recipe):
    assert result_of("pretrain", recipe, "--set", "steps=2", "--set", "heldout=null")["step"] == 2
    assert "unknown key 'stepz'" in error_of("pretrain", recipe, "--set", "stepz=2")
    assert "no such recipe" in error_of("pretrain", "nothing.toml")


def test_a_run_that_a_signal_stopped_ends_with_its_code(recipe, tmp_path):
    from elmokit import pretraining

    stopped = pretraining.PretrainResult(tmp_path, 3, 6, "SIGINT", None, 0, None, None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pretraining, "run_recipe", lambda *_, **__: stopped)
        result = CliRunner().invoke(main, ["pretrain", str(recipe)])
        assert (result.exit_code, result.stdout) == (130, f"{tmp_path}: step 3 of 6\n")
        patch.setenv("RANK", "1")  # the other processes of torchrun are silent
        assert run("pretrain", recipe).stdout == ""


def test_finetune_goes_on_from_any_model_with_the_words_of_the_text(recipe, folder, tmp_path):
    settings = ["--set", "batch_size=4", "--set", "unroll=5", "--set", "steps=2", "--set", "loss=full"]
    arguments = ["finetune", folder, tmp_path / "train.txt", "-o", tmp_path / "tuned", "--tokenized"]
    assert result_of(*arguments, *settings, "--set", "tensorboard=false")["step"] == 2
    found = result_of("info", tmp_path / "tuned")
    assert (found["language_model"], found["vocabulary_size"]) == (True, 10)
    assert found["bilm_parameters"] == result_of("info", folder)["bilm_parameters"]
    before, after = (ELMo.from_pretrained(name).bilm.state_dict() for name in (folder, tmp_path / "tuned"))
    changes = [float((after[name] - before[name]).abs().max()) for name in before]
    assert 0 < max(changes) < 2  # trained on, not begun anew


def test_finetune_takes_a_vocabulary_and_names_wrong_settings(recipe, language_model, tmp_path):
    (tmp_path / "words.txt").write_text("<S>\n</S>\n<UNK>\nthe\nbank\n")
    arguments = ["finetune", language_model, tmp_path / "train.txt", "-o", tmp_path / "tuned"]
    settings = ["--set", "batch_size=4", "--set", "steps=1", "--set", "tensorboard=false", "--set", "num_negatives=3"]
    run(*arguments, *settings, "--vocabulary", tmp_path / "words.txt", "--heldout", tmp_path / "train.txt")
    assert result_of("info", tmp_path / "tuned")["vocabulary_size"] == 5
    assert "unknown key 'stepz'" in error_of(*arguments, "--set", "stepz=1")
    assert "write a setting as key=value" in error_of(*arguments, "--set", "steps")


# ---- errors and bars -------------------------------------------------------------------------------------------------


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
