"""Part 4: two processes on one target, with other settings or with the same.

One wins and the other says in one line why it stops, or both end well. The target is then exactly what one of them
writes alone, never a mixture, and nothing temporary is left.
"""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path

from commands import Command, commands, warm_up
from kills import SECONDS, run_undisturbed
from processes import Child, Outcome
from report import Report
from world import World


def run(world: World, desk: Path, *, seed: int, cases: range, step: int, only: str = "") -> Report:
    """Start two, compare."""
    warm_up()
    report, begin = Report("two processes"), time.monotonic()
    variants = [commands(world, variant) for variant in (0, 1)]
    names = [name for name in variants[0] if name.startswith(only)]
    alone: dict[tuple[str, int], tuple[Path, float]] = {}
    for case in cases[::step]:
        rng = random.Random(f"{seed} pairs {case}")
        name = names[case // step % len(names)]
        chosen = [0, rng.choice((0, 1, 1))]
        for variant in chosen:
            if (name, variant) not in alone:
                alone[name, variant] = run_undisturbed(
                    variants[variant][name], desk / "undisturbed" / f"{name} {variant}"
                )
        two, results = [variants[variant][name] for variant in chosen], [alone[name, variant] for variant in chosen]
        folder = desk / f"case-{case}"
        outcome = check(two, folder, rng, [target for target, _ in results], max(usual for _, usual in results))
        if outcome in ("both succeed", "one wins, one stops"):
            report.count(name, outcome)
        else:
            kind, _, detail = outcome.partition(": ")
            detail += f" (variants {chosen})"
            report.fail(name, kind, detail, f"pairs --seed {seed} --index {case} --jobs {step}")
        shutil.rmtree(folder)
    report.seconds = time.monotonic() - begin
    return report


def check(two: list[Command], folder: Path, rng: random.Random, expected: list[Path], usual: float) -> str:
    """What became of the target."""
    for number, command in enumerate(two):
        if number == 0:
            command.set_up(folder)
        else:  # the inputs of the other variant
            for path in command.inputs:
                if path.is_file() and not (folder / path.name).exists():
                    shutil.copy(path, folder)
    logs, children = [folder / f"log-{number}" for number in (0, 1)], []
    for command, log in zip(two, logs, strict=True):
        children.append(Child(command.run, folder=folder, log=log))
        if rng.random() < 0.5:
            time.sleep(rng.uniform(0, usual))
    outcomes = [child.wait(SECONDS + 10 * usual) for child in children]
    stopped = 0
    for outcome, log in zip(outcomes, logs, strict=True):
        told = log.read_text(encoding="utf-8", errors="replace")
        if outcome.hung:
            return f"hang: longer than {SECONDS + 10 * usual:.0f} s, {told[-300:]!r}"
        if outcome.signal is not None:
            return f"crash: signal {outcome.signal}, {told[-300:]!r}"
        if _failed(outcome):
            stopped += 1
            if not _is_clear(outcome, told):
                return f"unclear end: {outcome.error or ''} exit {outcome.exit_code}, {told[-400:]!r}"
    if stopped == 2:
        return f"both fail: {[log.read_text(errors='replace')[-200:] for log in logs]}"
    target, difference = folder / two[0].target, two[0].difference
    won = [path for path, outcome in zip(expected, outcomes, strict=True) if not _failed(outcome)]
    compared = [Child(lambda path=path: difference(target, path)).wait(60) for path in won]
    differences = [one.error or one.value for one in compared]
    if all(differences):
        told = [_told(*pair) for pair in zip(outcomes, logs, strict=True)]
        return f"mixture: the target is not what a process that succeeded writes: {differences}; {told}"
    if litter := two[0].litter(folder):
        return f"litter: {litter}"
    return "one wins, one stops" if stopped else "both succeed"


def _failed(outcome: Outcome) -> bool:
    return outcome.error is not None or outcome.exit_code != 0


def _is_clear(outcome: Outcome, told: str) -> bool:
    """An error line of a verb, or a ValueError or OSError of the library."""
    if outcome.error is not None:
        return bool({"ValueError", "OSError"} & set(outcome.error_types))
    return outcome.exit_code == 1 and "Error: " in told and "Traceback" not in told


def _told(outcome: Outcome, log: Path) -> str:
    return f"exit {outcome.exit_code} {outcome.error or ''} {log.read_text(errors='replace')[-150:]!r}"
