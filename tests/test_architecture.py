"""The house plan: a room imports only from the layers above it, and the command line starts without torch."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src" / "elmokit"

# A room imports from the layers above its own, never from a sibling or from below. PUBLIC is `elmokit` itself.
PUBLIC = "elmokit"
LAYERS = [
    {"files", "extras", "progress", "arguments"},
    {"settings"},
    {"config"},
    {"text", "kernels"},
    {"network"},
    {"storage", "inference"},
    {"model"},
    {"spans", "corpus", "datasets"},
    {"vector_files", "pretraining", "tasks", "index"},
    {PUBLIC, "probes"},
    {"serve", "integrations", "compat", "bench"},
    {"cli"},
    {"__main__"},
]
LAYER_OF = {room: number for number, rooms in enumerate(LAYERS) for room in rooms}
FILES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def own_imports(source: str, package: list[str]) -> Iterator[tuple[int, str]]:
    """(line, room) of every import of ours in `source`, a file in `package` (a dotted path)."""
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
                yield node.lineno, target[1] if len(target) > 1 and target[1] in LAYER_OF else PUBLIC


def wrong_imports(source: str, path: Path) -> list[str]:
    """The imports of `source` that break the plan, as lines to read; `path` is relative to the package."""
    here = path.parts[0].removesuffix(".py")
    package = ["elmokit", *path.parts[:-1]]
    return [
        f"{path}:{line} imports {target}, which is not in a layer above {here}"
        for line, target in own_imports(source, package)
        if target != here and LAYER_OF[target] >= LAYER_OF[here]
    ]


def test_every_room_is_in_one_layer():
    rooms = {path.relative_to(SOURCE).parts[0].removesuffix(".py") for path in FILES}
    assert rooms == set(LAYER_OF) - {PUBLIC}
    assert len(LAYER_OF) == sum(map(len, LAYERS))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_a_room_imports_only_from_the_layers_above_it(path):
    assert wrong_imports(path.read_text(encoding="utf-8"), path.relative_to(SOURCE)) == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("network/bilm.py", "from elmokit.model import ELMo"),
        ("network/bilm.py", "from elmokit import model"),
        ("network/bilm.py", "from elmokit import ELMo"),
        ("network/bilm.py", "import elmokit.model as m"),
        ("network/bilm.py", "import elmokit"),
        ("network/bilm.py", "from ..model import ELMo"),
        ("network/bilm.py", "def late():\n    from elmokit.cli import main"),
        ("kernels/eager.py", "from ..network import BiLM"),
        ("kernels/eager.py", "from elmokit.text import tokenize"),
        ("storage/folder.py", "from elmokit.inference import scores"),
        ("tasks/task.py", "from elmokit.pretraining import pretrain"),
    ],
)
def test_an_import_from_below_or_beside_is_found_however_it_is_written(path, source):
    assert len(wrong_imports(source, Path(path))) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("network/bilm.py", "from elmokit import kernels"),
        ("network/bilm.py", "import torch, elmokit.config"),
        ("kernels/eager.py", "from elmokit.kernels.interface import LSTMState"),
        ("kernels/eager.py", "from .interface import LSTMState"),
        ("network/bilm.py", "from ..config import BiLMConfig"),
        ("compat.py", "from elmokit import ELMo"),
    ],
)
def test_an_import_from_above_is_allowed(path, source):
    assert wrong_imports(source, Path(path)) == []


def test_the_command_line_is_imported_without_torch():
    program = "import sys, elmokit.cli; print(sorted({'torch', 'nltk', 'h5py'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
