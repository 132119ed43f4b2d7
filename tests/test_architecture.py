"""The house plan holds: a module imports only what stands above it, and the command line starts without torch."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src" / "elmokit"

# A module may import what stands before it, never what stands behind it.  PUBLIC is `elmokit` itself, the public names.
PUBLIC = "elmokit"
ORDER = [
    "files",
    "config",
    "characters",
    "kernels",
    "network",
    "losses",
    "corpus",
    "checkpoint",
    "formats",
    "hub",
    "pipeline",
    "evaluate",
    "model",
    "spans",
    "pretraining",
    PUBLIC,
    "tasks",
    "probes",
    "index",
    "export",
    "serve",
    "output",
    "integrations",
    "compat",
    "bench",
    "terminal",
    "cli_training",
    "cli_tasks",
    "cli_probe",
    "cli_index",
    "cli_serve",
    "cli_export",
    "cli",
]
FILES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def own_imports(source: str, package: list[str], modules: set[str]) -> Iterator[tuple[int, str]]:
    """(line, top-level module) of every import of ours in `source`, a file that lies in `package` (a dotted path)."""
    for node in ast.walk(ast.parse(source)):
        targets: list[list[str]] = []
        if isinstance(node, ast.Import):
            targets = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = base + (node.module.split(".") if node.module else [])
            targets = [[*base, alias.name] for alias in node.names]
        for target in targets:
            if target[0] == "elmokit":
                yield node.lineno, target[1] if len(target) > 1 and target[1] in modules else PUBLIC


def wrong_imports(source: str, path: Path) -> list[str]:
    """The imports of `source` that go against the order, as lines to read; `path` is relative to the package."""
    here = path.parts[0].removesuffix(".py")
    package = ["elmokit", *path.parts[:-1]]
    return [
        f"{path}:{line} imports {target}, which stands under {here}"
        for line, target in own_imports(source, package, set(ORDER))
        if target != here and ORDER.index(target) > ORDER.index(here)
    ]


def test_every_module_has_its_place_in_the_order():
    assert FILES
    assert {path.relative_to(SOURCE).parts[0].removesuffix(".py") for path in FILES} <= set(ORDER)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_a_module_imports_only_what_stands_above_it(path):
    assert wrong_imports(path.read_text(encoding="utf-8"), path.relative_to(SOURCE)) == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("network.py", "from elmokit.model import ELMo"),
        ("network.py", "from elmokit import model"),
        ("network.py", "from elmokit import ELMo"),
        ("network.py", "import elmokit.model as m"),
        ("network.py", "import elmokit"),
        ("network.py", "from .model import ELMo"),
        ("network.py", "def late():\n    from elmokit.cli import main"),
        ("kernels/eager.py", "from ..network import BiLM"),
        ("kernels/eager.py", "from elmokit.network import BiLM"),
    ],
)
def test_an_import_against_the_order_is_seen_however_it_is_written(path, source):
    assert len(wrong_imports(source, Path(path))) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("network.py", "from elmokit import kernels"),
        ("network.py", "import torch, elmokit.config"),
        ("kernels/eager.py", "from elmokit.kernels.interface import LSTMState"),
        ("kernels/eager.py", "from .interface import LSTMState"),
        ("kernels/eager.py", "from ..config import BiLMConfig"),
        ("compat.py", "from elmokit import ELMo"),
    ],
)
def test_an_import_in_the_order_is_let_through(path, source):
    assert wrong_imports(source, Path(path)) == []


def test_the_command_line_is_imported_without_torch():
    program = "import sys, elmokit.cli; print(sorted({'torch', 'nltk', 'h5py'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
