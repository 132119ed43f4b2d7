"""embed resumes: a run that was stopped at any point ends with the same file."""

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner, Result
from verbs import FORMATS, assert_same_file, error_of, read_vectors, result_of, run

from elmokit.cli import main
from elmokit.model import ELMo
from elmokit.vector_files import write as output

CHILDREN = """
import json, os, resource, signal, sys
import torch
from elmokit import cli, model
from elmokit.vector_files import write as output

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
    assert "11 of them by an earlier run" in ended.stdout
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
    assert (result.exit_code, result.stderr) == (130, "Interrupted; run the same command again to resume\n")
    assert "(4 of them by an earlier run)" in run(*arguments).stdout


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
    assert "out.npz already exists" in error_of(*arguments)
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


@pytest.mark.parametrize("change", [["--layers", "top"], ["--layers", "top", "--overwrite"], []])
def test_two_runs_with_one_output_do_not_mix(change, folder, long_text, tmp_path, monkeypatch):
    """The second run begins while the first one embeds its third part."""
    monkeypatch.setattr(output, "PART_LINES", 2)
    arguments = ["embed", long_text, tmp_path / "out.npz", "--model", folder]
    run("embed", long_text, tmp_path / "alone.npz", "--model", folder)
    embed, num_calls, messages = ELMo.embed, 0, []

    def embed_beside_another(self: ELMo, *args: Any, **kwargs: Any) -> Any:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 3:
            with monkeypatch.context() as patch:
                patch.setattr(ELMo, "embed", embed)
                messages.append(error_of(*arguments, *change))
        return embed(self, *args, **kwargs)

    monkeypatch.setattr(ELMo, "embed", embed_beside_another)
    run(*arguments)
    assert f"out.npz: another process is writing it (process {os.getpid()} on " in messages[0]
    assert messages[0].endswith(": wait until it ends, or use another path")
    assert_same_file(tmp_path / "out.npz", tmp_path / "alone.npz")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alone.npz", "in.txt", "out.npz"]


def test_a_run_does_not_replace_a_file_that_another_run_wrote_meanwhile(folder, long_text, tmp_path, monkeypatch):
    """The other run writes it after this one has seen that there is none, while its model is loaded."""
    arguments = ["embed", long_text, tmp_path / "out.npz", "--model", folder]
    from_pretrained = ELMo.from_pretrained

    def load_slowly(*args: Any, **kwargs: Any) -> ELMo:
        monkeypatch.setattr(ELMo, "from_pretrained", from_pretrained)
        run(*arguments)
        return from_pretrained(*args, **kwargs)

    monkeypatch.setattr(ELMo, "from_pretrained", load_slowly)
    assert "out.npz already exists" in error_of(*arguments, "--layers", "top")
    run("embed", long_text, tmp_path / "alone.npz", "--model", folder)
    assert_same_file(tmp_path / "out.npz", tmp_path / "alone.npz")


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
