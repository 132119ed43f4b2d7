"""Part 2: damaged model folders and HDF5 files. Each is loaded in a process of its own.

A damaged model gives a ValueError or OSError that names a file of it, or loads with the vectors of the original. It
does not crash, does not take 10 seconds or a gigabyte, and does not load with other vectors, except where the format
has no checksum and the change is a legal model; those are counted as "another model".
"""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path

from mutations import Mutation, mutate
from processes import GIB, Child, Outcome
from report import Report
from world import World, vectors_digest

SECONDS = 10.0
MEMORY = 4 * GIB
"""Address space for a load, so that a bomb ends the load, not the machine."""
PEAK = GIB // 2
"""Resident memory that a load of a few kilobytes may take."""


def run(world: World, desk: Path, *, seed: int, cases: range, step: int) -> Report:
    """Mutate and load; every `step`-th case, from `cases.start`."""
    import elmokit.model
    import elmokit.storage.manylangs
    import elmokit.storage.official
    import elmokit.storage.tensorflow  # noqa: F401 (children inherit them)

    report, begin = Report("damaged files"), time.monotonic()
    models = list(world.models.items())
    expected = {name: Child(lambda folder=folder: _load(folder)).wait(60).value for name, folder in models}
    assert all(expected.values()), f"an undamaged model does not load: {expected}"
    for case in cases[::step]:
        rng = random.Random(f"{seed} damaged {case}")
        # half of them are official HDF5 files
        name = "official" if rng.random() < 0.4 else rng.choice(models)[0]
        folder = desk / f"case-{case}" / name
        shutil.copytree(world.models[name], folder)
        mutation = mutate(folder, rng)
        outcome = Child(lambda folder=folder: _load(folder), memory=MEMORY).wait(SECONDS)
        verdict = judge(outcome, expected[name], folder, mutation)
        reproduce = f"damaged --seed {seed} --index {case}"
        if verdict in ("refused", "harmless", "another model"):
            report.count(name, verdict)
        else:
            told = outcome.error or f"signal {outcome.signal}, {outcome.seconds:.1f} s, {outcome.peak >> 20} MiB"
            detail = f"{mutation.name}, {mutation.detail}: {told:.400}"
            report.fail(name, verdict, detail, reproduce, where=f"{mutation.name}{_line(outcome)}")
        shutil.rmtree(folder.parent)
    report.seconds = time.monotonic() - begin
    return report


def judge(outcome: Outcome, expected: str, folder: Path, mutation: Mutation) -> str:
    """The verdict on one load."""
    if outcome.hung:
        return "hang"
    if outcome.signal is not None:
        return "crash"
    if outcome.peak > PEAK:
        return "too much memory"
    if outcome.error is None:
        if outcome.value == expected:
            return "harmless"
        return "another model" if mutation.may_be_legal else "other vectors"
    if not {"ValueError", "OSError"} & set(outcome.error_types):
        return "wrong exception"
    return "refused" if folder.name in outcome.error or "outside.hdf5" in outcome.error else "unclear message"


def _line(outcome: Outcome) -> str:
    """The last line of the package in a traceback: failures at the same line are one."""
    lines = [line.strip() for line in outcome.traceback.splitlines() if "elmokit/" in line and "File" in line]
    return " at " + lines[-1].rpartition("elmokit/")[2].replace('", line ', ":") if lines else ""


def _load(folder: Path) -> str:
    import torch

    from elmokit import ELMo

    torch.set_num_threads(1)
    if (folder / "options.json").exists() and (folder / "weights.hdf5").exists():
        optional = {
            key: folder / file
            for key, file in {"softmax": "softmax.hdf5", "vocabulary": "vocabulary.txt"}.items()
            if (folder / file).exists()
        }
        return vectors_digest(ELMo.from_files(folder / "options.json", folder / "weights.hdf5", **optional))
    return vectors_digest(ELMo.from_pretrained(folder))
