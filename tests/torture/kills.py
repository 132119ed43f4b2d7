"""Part 3: kill -9 at a random moment of a command, then the same command again.

After one to three kills the command runs to its end: it succeeds with the result of a run that nobody disturbed, bit by
bit, or says in one line that the target is complete, and it is. Nothing temporary is left. A model that is saved over
another is one of the two at any time.
"""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path

from commands import Command, commands, warm_up
from processes import Child, Outcome
from report import Report
from world import World

SECONDS = 10.0


def run(world: World, desk: Path, *, seed: int, cases: range, step: int, only: str = "") -> Report:
    """Kill, run again, compare."""
    warm_up()
    report, begin = Report("kill -9"), time.monotonic()
    every = [command for name, command in commands(world).items() if name.startswith(only)]
    # the four formats of embed are one command of the six
    names = sorted({command.name.split()[0] for command in every})
    undisturbed: dict[str, tuple[Path, float]] = {}
    for case in cases[::step]:
        rng = random.Random(f"{seed} kills {case}")
        verb = names[case // step % len(names)]
        command = rng.choice([command for command in every if command.name.split()[0] == verb])
        if command.name not in undisturbed:
            undisturbed[command.name] = run_undisturbed(command, desk / "undisturbed" / command.name)
        expected, usual = undisturbed[command.name]
        folder = desk / f"case-{case}"
        problem, killed = check(command, folder, world, rng, expected, usual)
        if problem is None:
            report.count(command.name, "resumed" if killed else "finished before the kill")
        else:
            kind, _, detail = problem.partition(": ")
            report.fail(command.name, kind, detail, f"kills --seed {seed} --index {case} --jobs {step}")
        shutil.rmtree(folder)
    report.seconds = time.monotonic() - begin
    return report


def run_undisturbed(command: Command, folder: Path) -> tuple[Path, float]:
    """The target of a run that nobody disturbs, and how long it takes."""
    command.set_up(folder)
    outcome = Child(command.run, folder=folder, log=folder / "log").wait(120)
    assert not _failed(outcome), f"{command.name}: {outcome} {_log(folder)}"
    assert not command.litter(folder), f"{command.name} leaves {command.litter(folder)}"
    return folder / command.target, outcome.seconds


def check(
    command: Command, folder: Path, world: World, rng: random.Random, expected: Path, usual: float
) -> tuple[str | None, int]:
    """What is wrong after the kills, if anything; and the number of kills."""
    command.set_up(folder)
    target, log, killed = folder / command.target, folder / "log", 0
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        child = Child(command.run, folder=folder, log=log)
        time.sleep(rng.uniform(0, 1.05 * usual))
        child.kill()
        outcome = child.wait(SECONDS)
        if outcome.signal is None and _failed(outcome) and not _is_refusal(outcome, folder):
            return f"fails between kills: {_told(outcome, folder)}", killed
        killed += outcome.signal is not None
        if orphans := child.orphans(SECONDS):
            return f"orphans: {len(orphans)} processes live on for {SECONDS:.0f} s", killed
        if command.intact is not None:
            left = Child(lambda: command.intact(target, world.folder)).wait(60)
            if left.error or left.value:
                return f"spoiled by the kill: {left.error or left.value}", killed
    outcome = Child(command.run, folder=folder, log=log).wait(SECONDS + 5 * usual)
    if outcome.hung:
        return f"hang: longer than {SECONDS + 5 * usual:.0f} s", killed
    if _failed(outcome) and not _is_refusal(outcome, folder):
        return f"fails after the kill: {_told(outcome, folder)}", killed
    compared = Child(lambda: command.difference(target, expected)).wait(60)
    if compared.error or compared.value:
        return f"other result after the kill: {compared.error or compared.value}, {_told(outcome, folder)}", killed
    if litter := command.litter(folder):
        return f"litter: {litter}", killed
    return None, killed


def _failed(outcome: Outcome) -> bool:
    return outcome.error is not None or outcome.exit_code != 0


def _is_refusal(outcome: Outcome, folder: Path) -> bool:
    """One line, which says that the target exists."""
    return outcome.exit_code == 1 and "already exists" in _log(folder) and "Traceback" not in _log(folder)


def _told(outcome: Outcome, folder: Path) -> str:
    return f"{outcome.error or ''} exit {outcome.exit_code}, {_log(folder)[-400:]!r}"


def _log(folder: Path) -> str:
    path = folder / "log"
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
