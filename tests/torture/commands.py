"""The commands that write: how each is run, and what it must leave behind.

A `Command` runs in a folder of its own, by the verb of the command line or the method of the library, and writes one
target there. `difference` compares a target with that of another run, without times and process ids: bit by bit, but
for vectors, which depend on the batch that a word was first seen in (to 1e-6, as documented).
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from world import World, tree_digest, vectors_digest

LITTER = (".tmp", ".partial", "part-")
"""Parts of names that no finished command leaves behind."""


@dataclass(frozen=True)
class Command:
    """One way to write a target."""

    name: str
    target: str
    run: Callable[[], None]
    difference: Callable[[Path, Path], str | None]
    """What differs between two targets; None if nothing."""
    inputs: Sequence[Path] = field(default_factory=list)
    """Files that are copied into the folder first."""
    intact: Callable[[Path, Path], str | None] | None = None
    """What is wrong with a target that a kill left behind; it is None where anything may be left that the next run
    mends. Takes the target and the world's folder."""

    def set_up(self, folder: Path) -> None:
        """An empty folder with the inputs."""
        folder.mkdir(parents=True)
        for path in self.inputs:
            if path.is_dir():
                shutil.copytree(path, folder / self.target)
            else:
                shutil.copy(path, folder)

    def litter(self, folder: Path) -> list[str]:
        """Temporary files in the folder."""
        return [
            str(path.relative_to(folder)) for path in folder.rglob("*") if any(part in path.name for part in LITTER)
        ]


def cli(*arguments: object) -> Callable[[], None]:
    """A verb of the command line, in this process."""

    def run() -> None:
        import torch

        from elmokit.cli import main

        torch.set_num_threads(1)
        sys.argv = ["elmokit", *map(str, arguments)]
        main.main(args=[str(argument) for argument in arguments], prog_name="elmokit")

    return run


def commands(world: World, variant: int = 0) -> dict[str, Command]:
    """The commands by name. Variants 0 and 1 differ in one setting, and so in what they write."""
    model, vocabulary = world.models["characters"], ("vocabulary.txt", "other-vocabulary.txt")[variant]
    text, layers, seed = world.path("text.txt"), ("average", "top")[variant], 1 + variant
    found = [
        Command(
            f"embed {suffix}",
            f"out.{suffix}",
            cli("embed", "text.txt", f"out.{suffix}", "--model", model, "--layers", layers),
            _differing_vectors,
            [text],
        )
        for suffix in ("hdf5", "npz", "safetensors", "parquet")
    ]
    found += [
        Command(
            "save_pretrained",
            "saved",
            _saving(world, variant),
            _differing_models,
            [world.path("first")],
            _one_of_two_models,
        ),
        Command(
            "index",
            "store",
            cli("index", "build", "medium.txt", "-o", "store", "--model", model, "--layer", layers),
            _differing_indexes,
            [world.path("medium.txt")],
        ),
        Command(
            "prepare",
            "corpus",
            cli(
                "prepare", "text.txt", "-o", "corpus", "--vocabulary", vocabulary, "--tokenized", "--workers", 1
            ),
            _differing_trees,
            [text, world.path(vocabulary)],
        ),
        Command(
            "pretrain",
            "run",
            cli("pretrain", "recipe.toml", "--set", f"seed={seed}"),
            _differing_runs,
            [world.path("heldout.txt"), world.path("short.txt"), world.path("recipe.toml")],
        ),
        Command(
            "task train",
            "task",
            cli(
                "task", "train", "ner", "--train", "train.conll", "--dev", "dev.conll", "--out", "task",
                "--model", model, "--set", "epochs=3", "--set", "hidden_dim=8", "--set", f"seed={seed}",
                "--set", "cache=cache", "--set", "device=cpu",
            ),
            _differing_tasks,
            [world.path("train.conll"), world.path("dev.conll")],
        ),
    ]  # fmt: skip
    return {command.name: command for command in found}


def warm_up() -> None:
    """Import what the commands import, so that children start with it."""
    import elmokit.cli
    import elmokit.corpus
    import elmokit.index
    import elmokit.model
    import elmokit.pretraining
    import elmokit.tasks
    import elmokit.vector_files  # noqa: F401

    for optional in ("usearch.index", "pyarrow.parquet", "seqeval.metrics", "h5py"):
        __import__(optional)


def _saving(world: World, variant: int) -> Callable[[], None]:
    """Save one model and the other in turn, so that a kill falls into a save; the last is that of the variant."""

    def run() -> None:
        import torch

        from elmokit import ELMo

        torch.set_num_threads(1)
        both = [ELMo.from_pretrained(world.path(name)) for name in ("first", "second")]
        for turn in range(10):
            both[(turn + variant) % 2].save_pretrained("saved")

    return run


def _one_of_two_models(target: Path, world: Path) -> str | None:
    """A folder that is saved over holds one of the two models at any time."""
    return _differing_models(target, world / "first") and _differing_models(target, world / "second")


def _differing_models(target: Path, expected: Path) -> str | None:
    from elmokit import ELMo

    try:
        model = ELMo.from_pretrained(target)
    except Exception as error:
        return f"does not load: {error}"
    same = vectors_digest(model) == vectors_digest(ELMo.from_pretrained(expected))
    return None if same else "other vectors or probabilities"


def _differing_trees(target: Path, expected: Path) -> str | None:
    return None if tree_digest(target) == tree_digest(expected) else "other files"


def _differing_vectors(target: Path, expected: Path) -> str | None:
    """Compare files of vectors, each read by the library that the format belongs to."""
    found, wanted = _read_vectors(target), _read_vectors(expected)
    if found.keys() != wanted.keys():
        return f"{len(found)} entries, not {len(wanted)}"
    for name, array in wanted.items():
        if array.shape != found[name].shape or array.dtype != found[name].dtype:
            return f"{name} is {found[name].shape}, not {array.shape}"
        same = (array == found[name]).all() if array.dtype.kind in "OSU" else np.allclose(array, found[name], 0, 1e-6)
        if not same:
            return f"{name} has other values"
    return None


def _read_vectors(path: Path) -> dict[str, np.ndarray]:
    if path.suffix == ".hdf5":
        import h5py

        with h5py.File(path) as file:
            return {name: file[name][()] for name in file if isinstance(file[name], h5py.Dataset)}
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return dict(arrays)
    if path.suffix == ".safetensors":
        from safetensors.numpy import load_file

        return load_file(path)
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(path)
    columns = {name: table.column(name).combine_chunks() for name in table.column_names}
    vectors = columns.pop("vectors")
    while pyarrow.types.is_list(vectors.type) or pyarrow.types.is_fixed_size_list(vectors.type):
        vectors = vectors.flatten()
    others = {name: np.array([str(column.to_pylist())]) for name, column in columns.items()}
    return {"vectors": vectors.to_numpy(zero_copy_only=False), **others}


def _differing_indexes(target: Path, expected: Path) -> str | None:
    """Rows and sentences bit by bit, vectors as float16. The graph is made from them, of more or fewer rows."""
    from elmokit.index import WordIndex

    found, wanted = WordIndex.open(target), WordIndex.open(expected)
    if len(found) != len(wanted):
        return f"{len(found)} words, not {len(wanted)}"
    for name in ("rows.bin", "sentences.jsonl"):
        if (target / name).read_bytes() != (expected / name).read_bytes():
            return f"another {name}"
    vectors = [np.fromfile(folder / "vectors.bin", np.float16).astype(np.float32) for folder in (target, expected)]
    if vectors[0].shape != vectors[1].shape or not np.allclose(*vectors, 0, 2e-3):
        return "other vectors"
    return None


def _differing_runs(target: Path, expected: Path) -> str | None:
    """The model of a run, every line of its metrics, and its settings."""
    for name in ("metrics.jsonl", "recipe.json", "vocabulary.txt", "model.safetensors", "softmax.safetensors"):
        if (target / name).read_bytes() != (expected / name).read_bytes():
            return f"another {name}"
    return _differing_models(target, expected)


def _differing_tasks(target: Path, expected: Path) -> str | None:
    """The weights, labels and settings of a task, and the scores of each epoch."""
    from elmokit.tasks import load_task

    load_task(target, device="cpu")
    if (target / "model.safetensors").read_bytes() != (expected / "model.safetensors").read_bytes():
        return "another model.safetensors"
    configs = [json.loads((folder / "config.json").read_text()) for folder in (target, expected)]
    for name in configs[1].keys() - {"config", "relative_paths"}:  # the folder of a run is another one
        if configs[0].get(name) != configs[1][name]:
            return f"another config.json: {name}"
    found, wanted = (
        [{**json.loads(line), "seconds": 0} for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for folder in (target, expected)
    )
    return None if found == wanted else "another metrics.jsonl"
