"""What a part of the harness counted: outcomes by name, and failures with what reproduces them.

Failures with the same signature are one entry with its number and its first case, so that a report stays readable.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass
class Failure:
    """One kind of failure."""

    signature: str
    detail: str
    reproduce: str
    """Arguments of run.py."""
    count: int = 1


@dataclass
class Report:
    """Counts of one part."""

    part: str
    cases: int = 0
    seconds: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)
    by_subject: dict[str, int] = field(default_factory=dict)
    """Number of cases of each function, format or command."""
    failures: dict[str, Failure] = field(default_factory=dict)

    def count(self, subject: str, outcome: str) -> None:
        """Count one case."""
        self.cases += 1
        self.outcomes[outcome] += 1
        self.by_subject[subject] = self.by_subject.get(subject, 0) + 1

    def fail(self, subject: str, outcome: str, detail: str, reproduce: str, *, where: str = "") -> None:
        """Count one case that failed."""
        self.count(subject, outcome)
        self.add_failure(Failure(f"{subject}: {outcome} {where}".strip(), detail, reproduce))

    def add_failure(self, failure: Failure) -> None:
        """Add to the failures of the same signature."""
        known = self.failures.get(failure.signature)
        if known is None:
            self.failures[failure.signature] = failure
        else:
            known.count += failure.count

    def write(self, path: Path) -> None:
        """Write the report as JSON."""
        failures = [asdict(failure) for failure in self.failures.values()]
        values = vars(self) | {"outcomes": dict(self.outcomes), "failures": failures}
        path.write_text(json.dumps(values, indent=1), encoding="utf-8")


def read_reports(paths: Iterable[Path]) -> Report:
    """One report of the reports of several processes."""
    total: Report | None = None
    for path in paths:
        values = json.loads(path.read_text(encoding="utf-8"))
        total = total or Report(values["part"])
        total.cases += values["cases"]
        total.seconds = max(total.seconds, values["seconds"])
        total.outcomes.update(values["outcomes"])
        for subject, number in values["by_subject"].items():
            total.by_subject[subject] = total.by_subject.get(subject, 0) + number
        for failure in values["failures"]:
            total.add_failure(Failure(**failure))
    assert total is not None
    return total
