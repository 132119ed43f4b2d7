"""Every command, snippet and session of the documents runs, in a folder that holds what they speak of; the site builds.

A page is one story, told in one folder and one namespace: its ```python and ```console blocks run from top to bottom.
"""

import doctest
import gzip
import importlib.util
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
import types
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from chromium import MISSING, find_chromium
from click.testing import CliRunner

import elmokit
from elmokit import BiLM, BiLMConfig, ELMo, Vocabulary
from elmokit.cli import main
from elmokit.network import OutputLayer
from elmokit.tasks import TaskConfig, train

# a host library's warnings are for its own users
pytestmark = pytest.mark.filterwarnings("default")

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "README.zh-CN.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
FENCE = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)

# libraries that a page or an example may stand on, beyond the core
HOSTS = {"flair", "onnxruntime", "playwright", "ray", "sentence_transformers", "sklearn", "spacy", "transformers"}
OTHER_TESTS = {"serving.md": "tests/serve/test_serve_process.py", "bank.py": "tests/test_demo.py"}  # they run these
NOT_HERE = ("pip install", "make ", "git ", ".venv/bin/pre-commit")  # made by the environment that runs this test

# what makes a command short, and stands in for the model or the machine that a user would name
SHORTER = {
    "elmokit pretrain": " --set steps=2 --set eval_every=1 --set checkpoint_every=1 --set batch_size=4"
    " --set model.cell_dim=16 --set model.projection_dim=8 --set num_negatives=4 --set eval_batch_size=2"
    " --set precision=float32 --set device=cpu --set tensorboard=false",
    "elmokit finetune": " --set steps=1 --set batch_size=2 --set num_negatives=4 --set device=cpu",
    "elmokit bench": " --rounds 1 --sentences 2 --steps 2",
    "elmokit bench --training": " --rows 2",
    "elmokit convert": " --overwrite",
    "elmokit probe --only": " --model my-model",
    "elmokit task train": " --set epochs=1 --set hidden_dim=4",
    "elmokit task compare": " --set epochs=1 --set hidden_dim=4 --seeds 1",
}
SMALLER = {"--nproc-per-node 8": "--nproc-per-node 1", "--size original ": "", "--rows 32": "--rows 2"}
WORDS = ("<S>", "</S>", "<UNK>", ".", "the", "of", "a", "bank", "river", "money", "sat", "by", "lent", "He", "good")


@dataclass(frozen=True)
class Block:
    """A fenced block: its kind, its text, and where it stands, to be found again."""

    kind: str
    text: str
    place: str


def blocks_of(page):
    text = page.read_text(encoding="utf-8")
    blocks = [
        Block(found[1], found[2], f"{page.name}:{text.count(chr(10), 0, found.start()) + 1}")
        for found in FENCE.finditer(text)
    ]
    if page.name == "cli.md":  # a list of verbs, whose commands stand indented
        lines = enumerate(text.splitlines(), 1)
        blocks += [
            Block("console", "$ " + line.split("#")[0].strip(), f"{page.name}:{number}")
            for number, line in lines
            if re.match(r"    \S", line)
        ]
    return [block for block in blocks if block.kind in ("python", "console")]


def skip_without_hosts(file):
    line = re.compile(r"^(?:>>> )? *(?:import|from) (?:elmokit\.integrations\.)?(\w+)", re.MULTILINE)
    imported = line.findall(file.read_text(encoding="utf-8"))
    for host in sorted(HOSTS.intersection(imported)):
        if importlib.util.find_spec(host) is None:
            pytest.skip(f"{file.name} needs {host}, which is not installed here")
    if "playwright" in imported and find_chromium() is None:
        pytest.skip(f"{file.name}: {MISSING}")


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    """The official pair, model folders, sentences and a corpus, under the names that the documents use."""
    folder = tmp_path_factory.mktemp("documents") / "workshop"
    folder.mkdir()
    torch.manual_seed(0)
    # as wide as the published model, with few cells: the shapes are the same
    config = BiLMConfig(char_dim=4, filters=((1, 8), (2, 8), (3, 16)), num_highways=1, cell_dim=16, projection_dim=512)
    model = ELMo(BiLM(config), output_layer=OutputLayer(len(WORDS), 512), vocabulary=Vocabulary(WORDS))
    for name in ("my-model", "mine", "runs/mine"):
        model.save_pretrained(folder / name)
    model.export_hdf5(folder)
    for name in ("original", "official-folder", "folder"):  # a folder comes before an official name
        (folder / name).mkdir()
        for file in ("options.json", "weights.hdf5"):
            shutil.copy(folder / file, folder / name / file)
    text = "The bank lent money .\n\nHe sat by the river bank .\n"
    for name, repeats in {
        "sentences": 1, "train": 40, "heldout": 10, "clinical": 10, "corpus": 2, "more": 1, "corpus/part": 40,
    }.items():  # fmt: skip
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / f"{name}.txt").write_text(text * repeats)
    (folder / "zh.txt").write_text("我去银行取钱。\n他坐在河边看书。\n银行在河边。\n", encoding="utf-8")
    for name in ("big", "corpus/part"):
        (folder / f"{name}.txt.gz").write_bytes(gzip.compress((text * 40).encode()))
    (folder / "wnut17").mkdir()
    for name in ("train", "dev", "test"):
        tagged = "Anna\tB-person\nlives\tO\nin\tO\nNew\tB-location\nYork\tI-location\n\nRain\tO\n\n"
        (folder / "wnut17" / f"{name}.conll").write_text(tagged * 3)
    for name in ("semcor", "semeval2007"):
        lines = "".join(
            f'<sentence id="s{number}"><wf lemma="x" pos="X">{before}</wf>'
            f'<instance id="s{number}.t0" lemma="bank" pos="NOUN">bank</instance></sentence>\n'
            for number, before in enumerate(("The", "He sat by the"))
        )
        (folder / name).mkdir()
        (folder / name / f"{name}.data.xml").write_text(f"<corpus>\n{lines}</corpus>\n")
        keys = ("s0.t0 bank%1:14:00::\n", "s1.t0 bank%1:17:01::\n")
        (folder / name / f"{name}.gold.key.txt").write_text("".join(keys))
    (folder / "wordnet").mkdir()
    (folder / "wordnet" / "index.sense").write_text("lend%2:40:00:: 1 1 0\nriver%1:17:00:: 2 1 0\n")
    package = folder / "node_modules" / "onnxruntime-web" / "dist"  # stands in for npm's
    package.mkdir(parents=True)
    for name in ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm"):
        (package / name).touch()
    config = TaskConfig(
        task="ner", train=str(folder / "wnut17/train.conll"), dev=str(folder / "wnut17/dev.conll"),
        out=str(folder / "runs/ner"), elmo_at="none", epochs=1, hidden_dim=4,
    )  # fmt: skip
    train(config)
    return folder


@pytest.fixture
def desk(workshop, tmp_path, monkeypatch):
    """A copy of the workshop as the working folder, no network, and a `__main__` of its own, which is given."""
    shutil.copytree(workshop, tmp_path / "workshop")
    monkeypatch.chdir(tmp_path / "workshop")
    for name, value in {
        "ELMOKIT_OFFLINE": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "ELMOKIT_CACHE": str(tmp_path / "cache"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }.items():
        monkeypatch.setenv(name, value)
    module = types.ModuleType("__main__")  # where pickle looks for what a snippet defines
    monkeypatch.setitem(sys.modules, "__main__", module)
    threads = torch.get_num_threads()
    yield module
    torch.set_num_threads(threads)
    if "ray" in sys.modules:
        sys.modules["ray"].shutdown()


def run_command(command, place):
    """As a shell would; a verb of ours without a pipe is called here, which saves its seconds of imports."""
    if command.startswith(NOT_HERE):
        return
    for start, addition in SHORTER.items():
        if start in command:
            command += addition
    for large, small in SMALLER.items():
        command = command.replace(large, small)
    if "elmokit task train" in command:
        shutil.rmtree("runs/ner", ignore_errors=True)
    if "elmokit vocab" in command:
        Path("vocabulary.txt").unlink(missing_ok=True)
    if re.search(r"[|<>;$]|--ray|torchrun", command) or not command.startswith("elmokit "):
        done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, f"{place}: {command}\n{done.stdout}{done.stderr}"
        return
    for part in command.split(" && "):
        done = CliRunner().invoke(main, shlex.split(part)[1:])
        assert done.exit_code == 0, f"{place}: {part}\n{done.output}{done.exception!r}"


def run_python(block, namespace):
    if ">>>" not in block.text:
        exec(compile(block.text, block.place, "exec"), namespace)
        return
    session = doctest.DocTestParser().get_doctest(block.text, {}, block.place, block.place, 0)
    session.globs = namespace  # and not a copy of it: what a session defines, the next block may use
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    report = []
    runner.run(session, out=report.append, clear_globs=False)
    assert runner.failures == 0, "".join(report)


def shorten_pretraining(monkeypatch):
    """A biLM of a few cells, and two steps."""
    pretrain = elmokit.pretrain

    def shorter(*, model, **settings):
        small = BiLMConfig(char_dim=2, filters=((1, 4),), num_highways=1, cell_dim=4, projection_dim=4)
        assert model.cell_dim == 1024
        return pretrain(model=small, **settings, steps=2, eval_every=1, batch_size=4, eval_batch_size=2, device="cpu")

    monkeypatch.setattr(elmokit, "pretrain", shorter)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_runs_from_top_to_bottom(page, desk, monkeypatch, capsys):
    if page.name in OTHER_TESTS:
        pytest.skip(f"{OTHER_TESTS[page.name]} runs this page")
    skip_without_hosts(page)
    shorten_pretraining(monkeypatch)
    for block in blocks_of(page):
        if block.kind == "python":
            run_python(block, vars(desk))
        elif page.name != "README.zh-CN.md":  # its commands are those of README.md, as the next test says
            for line in block.text.splitlines():
                if line.startswith("$ "):
                    run_command(line[2:], block.place)
    if page.name == "pretraining.md":
        assert "Perplexity(" in capsys.readouterr().out


def test_both_readmes_show_the_same_commands_and_sessions():
    def without_remarks(page):
        return [re.sub(r" +# .*", "", block.text) for block in blocks_of(page)]

    english = without_remarks(ROOT / "README.md")
    assert len(english) >= 5
    install, opening, *others = without_remarks(ROOT / "README.zh-CN.md")  # it opens with the Chinese model
    assert 'ELMo.from_pretrained("zh")' in opening
    assert all(f'compare("{word}", ' in opening for word in ("苹果", "意思", "打", "包袱"))
    assert [install, *others] == english


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_an_example_runs(example, desk, monkeypatch, capsys):
    if example.name in OTHER_TESTS:
        pytest.skip(f"{OTHER_TESTS[example.name]} runs it")
    skip_without_hosts(example)
    monkeypatch.setattr(sys, "argv", [str(example)])
    runpy.run_path(str(example), run_name="__main__")
    assert capsys.readouterr().out, f"{example.name} shows nothing"


def test_every_link_of_the_documents_leads_somewhere():
    for page in PAGES:
        for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if "://" not in link:
                assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_a_page_that_speaks_of_equal_vectors_says_how_equal_they_are():
    without_a_figure = re.compile(
        r"(has|have|with) the same vectors|vectors are the same|exact to the published|numbers\s+exactly"
        r"|的向量都相同|模型一致",
        re.IGNORECASE,
    )
    for page in PAGES:
        claim = without_a_figure.search(page.read_text(encoding="utf-8"))
        assert claim is None, f"{page.name}: {claim[0]!r}: write that they are equal to about 1e-6"


def test_every_page_is_in_the_navigation_and_the_site_builds_without_a_warning(tmp_path):
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert f": {page.name}\n" in navigation, f"mkdocs.yml leaves {page.name} out of its nav"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for page in (tmp_path / "site").rglob("*.html"):
        loaded = re.findall(r'<(?:script|link|img)\b[^>]*?(?:src|href)="(https?://[^"]+)', page.read_text("utf-8"))
        assert not loaded, f"{page.name} loads {loaded[0]} from elsewhere"


def test_every_public_name_is_in_the_reference():
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    for name in set(elmokit.__all__) - {"__version__"}:
        assert re.search(rf"^::: elmokit\.[\w.]+\.{name}$", page, re.MULTILINE), name


def test_every_extra_of_the_package_is_named_in_the_quickstart():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    page = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
    for extra in project["optional-dependencies"].keys() - {"dev", "docs", "browser"}:
        assert f"`{extra}`" in page, extra
