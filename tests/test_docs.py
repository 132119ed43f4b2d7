"""Every command and every session of README.md runs, in a folder that holds what it speaks of."""

import doctest
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from elmokit import BiLM, BiLMConfig, ELMo, Vocabulary
from elmokit.losses import OutputLayer

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
FENCES = re.findall(r"```(\w+)\n(.*?)```", README, flags=re.DOTALL)
COMMANDS = [line[2:] for kind, block in FENCES if kind == "console" for line in block.splitlines() if line[:2] == "$ "]
# made by the environment that runs this test
NOT_HERE = {"pip install elmokit", "make test", "make demo"}
SHORTER = " --set steps=2 --set eval_every=1 --set checkpoint_every=1 --set batch_size=4"


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    """The official pair, a model folder, sentences and a corpus, under the names that the documents use."""
    folder = tmp_path_factory.mktemp("workshop")
    torch.manual_seed(0)
    # as wide as the published model, with few cells: the shapes are the same
    config = BiLMConfig(char_dim=4, filters=((1, 8), (2, 8), (3, 16)), num_highways=1, cell_dim=16, projection_dim=512)
    words = ["<S>", "</S>", "<UNK>", ".", "the", "of", "a", "bank", "river", "money", "sat", "by", "lent", "He", "The"]
    model = ELMo(BiLM(config), output_layer=OutputLayer(len(words), 512), vocabulary=Vocabulary(words))
    model.export_hdf5(folder / "exported")
    for name in ("options.json", "weights.hdf5"):
        shutil.move(folder / "exported" / name, folder / name)
    model.save_pretrained(folder / "my-model")
    sentences = ["The bank lent money .", "", "He sat by the river bank ."]
    (folder / "sentences.txt").write_text("\n".join(sentences) + "\n")
    (folder / "corpus").mkdir()
    (folder / "corpus" / "part.txt").write_text("\n".join(sentences * 40) + "\n")
    (folder / "heldout.txt").write_text("\n".join(sentences * 10) + "\n")
    shutil.copytree(ROOT / "recipes", folder / "recipes")
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_readme_runs(command, workshop):
    if command in NOT_HERE:
        return
    if command.startswith("elmokit pretrain"):
        command += SHORTER
    shell = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "ELMOKIT_OFFLINE": "1"}
    done = subprocess.run(command, shell=True, cwd=workshop, env=shell, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_sessions_of_the_readme_print_what_they_say(workshop, monkeypatch):
    monkeypatch.chdir(workshop)
    sessions = [block for kind, block in FENCES if kind == "python" and block.startswith(">>>")]
    assert len(sessions) >= 2
    for number, session in enumerate(sessions):
        parsed = doctest.DocTestParser().get_doctest(session, {}, f"session {number}", "README.md", 0)
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
        report = []
        runner.run(parsed, out=report.append)
        assert runner.failures == 0, "".join(report)


def test_every_link_of_the_documents_leads_somewhere():
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            if "://" not in link:
                assert (page.parent / link).exists(), f"{page.name}: {link}"
