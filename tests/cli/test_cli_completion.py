"""Completion by the shell: the scripts that docs/cli.md tells to write, and what they complete."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = shutil.which("elmokit", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="elmokit is not installed as a program")


def run(command, shell="sh", **variables):
    path = f"{Path(PROGRAM).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, **variables}
    done = subprocess.run(
        [shell, "-c", command], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def documented_commands():
    """The command of each shell in docs/cli.md."""
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    commands = re.findall(r"^    (_ELMOKIT_COMPLETE=(\w+)_source elmokit) > \S+$", page, re.MULTILINE)
    return {shell: command for command, shell in commands}


def test_the_documents_have_a_command_for_each_shell_that_writes_its_script():
    commands = documented_commands()
    assert set(commands) == {"bash", "zsh", "fish"}
    starts = {"bash": "_elmokit_completion()", "zsh": "#compdef elmokit", "fish": "function _elmokit_completion"}
    for shell, command in commands.items():
        assert run(command).startswith(starts[shell])


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (["em"], ["embed"]),
        (["pre"], ["prepare", "pretrain"]),
        (["embed", "--la"], ["--layers"]),
        (["task", "ev"], ["eval"]),
        (["embed", "--dtype", ""], ["float32", "float16"]),
    ],
)
def test_bash_completes_verbs_options_and_choices(tmp_path, words, completed):
    script = tmp_path / "elmokit-complete.bash"
    script.write_text(run(documented_commands()["bash"]), encoding="utf-8")
    typed = " ".join(f"'{word}'" for word in ["elmokit", *words])
    source = (
        f". {script}; complete -p elmokit >&2; COMP_WORDS=({typed}); COMP_CWORD={len(words)}; "
        '_elmokit_completion elmokit; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    assert sorted(run(source, shell="bash").split()) == sorted(completed)


@pytest.mark.parametrize(
    ("shell", "variables"),
    [
        ("zsh", {"COMP_WORDS": "elmokit em", "COMP_CWORD": "1"}),
        ("fish", {"COMP_WORDS": "elmokit em", "COMP_CWORD": "em"}),
    ],
)
def test_the_program_answers_the_scripts_of_the_other_shells(shell, variables):
    answer = run("elmokit", _ELMOKIT_COMPLETE=f"{shell}_complete", **variables)
    assert re.search(r"\bembed\b", answer)
    assert not re.search(r"\bencode\b", answer)
