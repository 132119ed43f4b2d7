"""Every command and every session of the documents runs, in a folder that holds what they speak of."""

import doctest
import gzip
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import elmokit
from elmokit import BiLM, BiLMConfig, ELMo, Vocabulary
from elmokit.losses import OutputLayer
from elmokit.tasks import TaskConfig, train

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PRETRAINING = (ROOT / "docs" / "pretraining.md").read_text(encoding="utf-8")
CLI = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
FENCES = re.findall(r"```(\w+)\n(.*?)```", README + PRETRAINING, flags=re.DOTALL)
COMMANDS = [
    *(line[2:] for kind, block in FENCES if kind == "console" for line in block.splitlines() if line[:2] == "$ "),
    *(line.split("#")[0].strip() for line in CLI.splitlines() if re.match(r"    \S", line)),
]
# made by the environment that runs this test
NOT_HERE = {"pip install elmokit", "make test", "make demo", ".venv/bin/pre-commit install"}

# what makes a command short, and stands in for the model that a user would name
SHORTER = {
    "elmokit pretrain": " --set steps=2 --set eval_every=1 --set checkpoint_every=1 --set batch_size=4"
    " --set model.cell_dim=16 --set model.projection_dim=8 --set num_negatives=4 --set eval_batch_size=2"
    " --set precision=float32 --set device=cpu --set tensorboard=false",
    "elmokit finetune": " --set steps=1 --set batch_size=2 --set num_negatives=4 --set device=cpu",
    "elmokit bench": " --rounds 1 --sentences 2 --steps 2",
    "elmokit convert": " --overwrite",
    "elmokit task train": " --set epochs=1 --set hidden_dim=4",
    "elmokit task compare": " --set epochs=1 --set hidden_dim=4 --seeds 1",
}


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    """The official pair, model folders, sentences and a corpus, under the names that the documents use."""
    folder = tmp_path_factory.mktemp("documents") / "workshop"
    folder.mkdir()
    torch.manual_seed(0)
    # as wide as the published model, with few cells: the shapes are the same
    config = BiLMConfig(char_dim=4, filters=((1, 8), (2, 8), (3, 16)), num_highways=1, cell_dim=16, projection_dim=512)
    words = ["<S>", "</S>", "<UNK>", ".", "the", "of", "a", "bank", "river", "money", "sat", "by", "lent", "He", "The"]
    model = ELMo(BiLM(config), output_layer=OutputLayer(len(words), 512), vocabulary=Vocabulary(words))
    for name in ("my-model", "mine", "runs/mine"):
        model.save_pretrained(folder / name)
    model.export_hdf5(folder)
    for name in ("original", "official-folder"):  # a folder comes before an official name
        (folder / name).mkdir()
        for file in ("options.json", "weights.hdf5"):
            shutil.copy(folder / file, folder / name / file)
    text = "The bank lent money .\n\nHe sat by the river bank .\n"
    for name, repeats in (("sentences", 1), ("train", 40), ("heldout", 10), ("clinical", 10), ("corpus/part", 40)):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / f"{name}.txt").write_text(text * repeats)
    for name in ("big", "corpus/part"):
        (folder / f"{name}.txt.gz").write_bytes(gzip.compress((text * 40).encode()))
    shutil.copytree(ROOT / "recipes", folder / "recipes")
    (folder / "wnut17").mkdir()
    for name in ("train", "dev", "test"):
        tagged = "Anna\tB-person\nlives\tO\nin\tO\nNew\tB-location\nYork\tI-location\n\nRain\tO\n\n"
        (folder / "wnut17" / f"{name}.conll").write_text(tagged * 3)
    config = TaskConfig(
        task="ner", train=str(folder / "wnut17/train.conll"), dev=str(folder / "wnut17/dev.conll"),
        out=str(folder / "runs/ner"), elmo_at="none", epochs=1, hidden_dim=4,
    )  # fmt: skip
    train(config)
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_documents_runs(command, workshop, tmp_path):
    if command in NOT_HERE:
        return
    folder = tmp_path / "workshop"
    shutil.copytree(workshop, folder)
    if command.startswith("elmokit vocab"):
        (folder / "vocabulary.txt").unlink()
    if command.startswith("elmokit task train"):
        shutil.rmtree(folder / "runs" / "ner")
    for start, addition in SHORTER.items():
        if start in command:
            command += addition
    command = command.replace("--nproc-per-node 8", "--nproc-per-node 2")
    shell = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "ELMOKIT_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(command, shell=True, cwd=folder, env=shell, capture_output=True, text=True, check=False)
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


def test_the_script_of_the_pretraining_page_trains(workshop, tmp_path, monkeypatch, capsys):
    shutil.copytree(workshop, tmp_path / "workshop")
    monkeypatch.chdir(tmp_path / "workshop")
    script = next(block for kind, block in FENCES if kind == "python" and "elmokit.pretrain(" in block)
    pretrain = elmokit.pretrain

    def shorter(*, model, **settings):
        small = BiLMConfig(char_dim=2, filters=((1, 4),), num_highways=1, cell_dim=4, projection_dim=4)
        assert model.cell_dim == 1024
        return pretrain(model=small, **settings, steps=2, eval_every=1, batch_size=4, eval_batch_size=2, device="cpu")

    monkeypatch.setattr(elmokit, "pretrain", shorter)
    exec(script, {"__name__": "__main__"})
    assert "Perplexity(" in capsys.readouterr().out


def test_every_link_of_the_documents_leads_somewhere():
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            if "://" not in link:
                assert (page.parent / link).exists(), f"{page.name}: {link}"
