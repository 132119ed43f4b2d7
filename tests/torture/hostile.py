"""Part 1: odd inputs to every public function.

A call gives a finite result, or a ValueError or TypeError (of a path also an OSError) that the package raises on
purpose and whose message names the argument or its value. What a hostile object of the caller raises may pass. Other
exceptions, errors that escape from deep inside, a crash, 10 seconds, an input that is not documented and still
accepted, and a model that gives other vectors afterwards are failures.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import linecache
import math
import mmap
import random
import reprlib
import shutil
import struct
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import torch
from processes import GIB, Child
from report import Failure, Report
from targets import Target, targets, uncovered
from values import HostileError, anything
from world import World, vectors_digest

SECONDS = 10
BLOCK = 500
"""Cases per process; the model is checked after each block."""


def run(world: World, desk: Path, *, seed: int, cases: range, step: int, only: str = "") -> Report:
    """Call every target; every `step`-th case, from `cases.start`."""
    torch.set_num_threads(1)
    report, begin = Report("hostile inputs"), time.monotonic()
    every = targets(world)
    for name in uncovered(every):
        report.add_failure(
            Failure(f"{name}: no target", "a public function that this harness does not call", "hostile")
        )
    indices = list(cases[::step])
    for target in every:
        if target.name.startswith(only):
            caller, began = Caller(target, world, desk, seed, report), time.monotonic()
            own = indices[:: target.cost]
            for first in range(0, len(own), BLOCK):
                caller.run_block(own[first : first + BLOCK])
            print(f"{target.name}: {len(own)} cases in {time.monotonic() - began:.1f} s", flush=True)
    report.seconds = time.monotonic() - begin
    return report


class Caller:
    """Runs blocks of cases of one target, each in a process."""

    def __init__(self, target: Target, world: World, desk: Path, seed: int, report: Report) -> None:
        self.target, self.world, self.desk, self.seed, self.report = target, world, desk, seed, report
        self.position = mmap.mmap(-1, 8)  # shared with the child: the case that it is at

    def run_block(self, indices: list[int], *, check_each: bool = False) -> None:
        """Run the cases; a case that ends its process is left out, and the others run again."""
        while indices:
            folder = self.desk / "calls"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            work = Child(
                lambda cases=indices: self._work(cases, check_each),
                folder=folder,
                log=self.desk / "log",
                memory=4 * GIB,
            )
            outcome = work.wait(SECONDS, heartbeat=lambda: self.position[:8])
            if outcome.value is not None:
                break
            assert outcome.error is None, f"{self.target.name}: {outcome.traceback}"  # of this harness itself
            place = struct.unpack("q", self.position[:8])[0]
            log = (self.desk / "log").read_text(encoding="utf-8", errors="replace")
            kind = "hang" if outcome.hung else "crash"
            detail = f"{self._describe(place)}: signal {outcome.signal} {log[-600:]}"
            self._fail(kind, detail, place)
            indices = [index for index in indices if index != place]
        else:
            return
        calls, spoiled = outcome.value
        if spoiled and not check_each and len(indices) > 1:  # which of them was it?
            return self.run_block(indices, check_each=True)
        for index, kind, detail, where in calls:
            if kind in ("accepted", "refused", "passed"):
                self.report.count(self.target.name, kind)
            else:
                self._fail(kind, f"{self._describe(index)}: {detail}", index, where)
        if spoiled:
            self.report.add_failure(
                Failure(
                    f"{self.target.name}: other vectors afterwards",
                    self._describe(spoiled[0]),
                    self._reproduce(spoiled[0]),
                )
            )

    def _fail(self, kind: str, detail: str, index: int, where: str = "") -> None:
        self.report.fail(self.target.name, kind, detail, self._reproduce(index), where=where)

    def _reproduce(self, index: int) -> str:
        return f"hostile --seed {self.seed} --only '{self.target.name}' --index {index}"

    def arguments(self, index: int) -> dict[str, Any]:
        """The arguments of a case: good ones, of which one or two, rarely all, are odd."""
        rng = random.Random(f"{self.seed} {self.target.name} {index}")
        kinds = self.target.kinds
        passed = {name: kind.good(rng) for name, kind in kinds.items() if name in self._needed or rng.random() < 0.7}
        number = len(kinds) if rng.random() < 0.05 else rng.choice((0, 1, 1, 1, 1, 2))
        for name in rng.sample(sorted(kinds), min(number, len(kinds))):
            kind = kinds[name]
            passed[name] = kind.near(rng) if kind.is_typed or rng.random() < 0.6 else anything(rng)
            if kind.is_path and isinstance(passed[name], str | bytes | Path | int):
                passed[name] = kind.near(rng)  # nothing outside of the current folder may be written
        return passed

    @functools.cached_property
    def _needed(self) -> set[str]:
        """Arguments that are always passed."""
        parameters = inspect.signature(self.target.call).parameters
        optional = {name for name, parameter in parameters.items() if parameter.default is not parameter.empty}
        return {name for name, kind in self.target.kinds.items() if kind.is_needed or name not in optional}

    def _work(self, indices: list[int], check_each: bool) -> tuple[list[tuple[int, str, str, str]], list[int]]:
        """In the child: call, judge, and look at the model."""
        before, calls, spoiled = self._canary(), [], []
        for index in indices:
            self.position[:8] = struct.pack("q", index)
            kind, detail, where = self._call(index)
            if kind not in ("accepted", "refused", "passed") or len(indices) == 1:
                print(index, kind, detail, flush=True)
            calls.append((index, kind, detail, where))
            if check_each and self._canary() != before:
                spoiled.append(index)
                break
        if not spoiled and self._canary() != before:
            spoiled = indices
        return calls, spoiled

    def _canary(self) -> tuple[Any, ...]:
        """Vectors of each model that the target holds, and settings of the process that a call must leave alone."""
        models = _models_of(self.target.call)
        flags = (
            torch.is_grad_enabled(),
            torch.get_default_dtype(),
            torch.get_num_threads(),
            torch.is_inference_mode_enabled(),
        )
        states = tuple((model.training, model.state, [p.requires_grad for p in model.parameters()]) for model in models)
        with torch.enable_grad():
            return (*map(vectors_digest, models), *map(str, states), *map(str, flags))

    def _call(self, index: int) -> tuple[str, str, str]:
        passed = self.arguments(index)
        legal = {name: self.target.kinds[name].is_legal(value) for name, value in passed.items()}
        try:
            result = self.target.call(**passed)
        except HostileError:
            return "passed", "", ""
        except (ValueError, TypeError, OSError, ImportError) as error:
            if _is_hostile(error):
                return "passed", "", ""
            if self.target.is_total and all(legal.values()):
                return "legal input refused", _told(error), _place(error)
            if isinstance(error, ImportError):
                return (
                    ("refused", "", "")
                    if "pip install" in str(error)
                    else ("wrong exception", _told(error), _place(error))
                )
            return self._judge_message(error, passed)
        except Exception as error:
            if self.target.is_inside and isinstance(error, RuntimeError | IndexError):
                return "refused", "", ""
            return ("passed", "", "") if _is_hostile(error) else ("wrong exception", _told(error), _place(error))
        wrong = [name for name, is_legal in legal.items() if is_legal is False]
        if wrong:
            return "undocumented input accepted", f"{', '.join(wrong)}; gives {_short(result)}", " ".join(wrong)
        if self.target.finite and not _is_finite(result):
            return "not finite", _short(result), ""
        if problem := self.target.check(passed, result):
            return "wrong result", problem, ""
        return "accepted", "", ""

    def _judge_message(self, error: Exception, passed: dict[str, Any]) -> tuple[str, str, str]:
        """A message is clear if the package raised it on purpose, and it names an argument or a value."""
        message, frame = str(error).lower(), traceback.extract_tb(error.__traceback__)[-1]
        kinds = [self.target.kinds[name] for name in passed]
        names = {word.lower() for name in passed for word in (name, *self.target.kinds[name].words)}
        names |= {written[:20].lower() for value in passed.values() for written in _ways_to_write(value)}
        if isinstance(error, OSError):
            named = error.filename is not None or any(name in message for name in names)
            is_clear = named and any(kind.is_path for kind in kinds)
        elif self.target.is_inside:
            is_clear = True
        elif isinstance(error, TypeError) and "os.pathlike" in message:  # Python's own message about a path
            is_clear = any(kind.is_path for kind in kinds)
        else:
            on_purpose = linecache.getline(frame.filename, frame.lineno or 0).strip().startswith("raise")
            is_clear = on_purpose and any(name in message for name in names)
        if is_clear:
            return "refused", "", ""
        return "wrong exception" if isinstance(error, OSError) else "unclear message", _told(error), _place(error)

    def _describe(self, index: int) -> str:
        arguments = (f"{name}={_short(value)}" for name, value in self.arguments(index).items())
        return f"{self.target.name}({', '.join(arguments)})"


def _models_of(call: Any) -> list[Any]:
    """The models that a target holds: its own object, what is bound to it, what it closes over."""
    from elmokit import ELMo

    holders = [call, getattr(call, "__self__", None), getattr(getattr(call, "func", None), "__self__", None)]
    holders += [*getattr(call, "args", ()), *(cell.cell_contents for cell in getattr(call, "__closure__", None) or ())]
    for holder in list(holders):
        if isinstance(holder, torch.nn.Module):
            holders += holder.modules()
        elif hasattr(holder, "__dict__"):
            holders += vars(holder).values()
    return list({id(holder): holder for holder in holders if isinstance(holder, ELMo)}.values())


def _short(value: Any) -> str:
    try:
        return reprlib.repr(value)
    except Exception:
        return f"<{type(value).__name__}>"


def _ways_to_write(value: Any) -> list[str]:
    with contextlib.suppress(Exception):
        return [
            repr(value),
            str(value) or repr(value),
            _short(value)[:8],
            f"type {type(value).__name__}",
            f"({type(value).__name__})",
        ]
    return []


def _told(error: Exception) -> str:
    with contextlib.suppress(Exception):
        return f"{type(error).__name__}: {error!s:.300}"
    return type(error).__name__


def _is_hostile(error: BaseException | None) -> bool:
    """Whether an exception comes from a hostile object."""
    while error is not None:
        if isinstance(error, HostileError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _place(error: Exception) -> str:
    """The exception's type and the last line of the package: failures at the same line are one."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/elmokit/" in frame.filename]
    where = f" at {frames[-1].filename.rpartition('/elmokit/')[2]}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{where}"


def _is_finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, np.ndarray):
        return value.dtype.kind not in "fc" or bool(np.isfinite(value).all())
    if isinstance(value, torch.Tensor):
        has_values = value.is_floating_point() and value.layout == torch.strided and not value.is_meta
        return not has_values or bool(torch.isfinite(value.float()).all())
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_finite, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return all(_is_finite(getattr(value, field.name)) for field in dataclasses.fields(value))
    return True
