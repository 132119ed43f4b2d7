"""Hostile inputs, damaged files, killed processes, two processes on one target: all against an installed wheel.

    python tests/torture/run.py                          # everything, in full: about half an hour on two cores
    python tests/torture/run.py --scale 0.01             # a hundredth of it, about a minute
    python tests/torture/run.py damaged --count 300      # one part, that many cases
    python tests/torture/run.py hostile --only ELMo.embed --index 17    # one case, with its traceback

    hostile   hostile.py   10,000 odd inputs to each public function
    damaged   damaged.py   2,000 model folders and HDF5 files that are damaged or crafted
    kills     kills.py     200 processes killed with kill -9, and the same command again
    pairs     pairs.py     50 times two processes on one target

The programs under test run in `--python` (or $ELMOKIT_TORTURE_PYTHON), whose elmokit is an installed wheel. Without
one, and if the elmokit of this interpreter is the checkout's, a wheel is built and installed into an environment in a
temporary folder, which borrows every other package from this one. The result is a table, a JSON report per part in
`--out`, and the exit code 1 if anything failed; each failure is printed with the arguments that reproduce it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from pathlib import Path

from report import Report, read_reports

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]
CASES = {"hostile": 10_000, "damaged": 2_000, "kills": 200, "pairs": 50}


def main() -> int:
    """Run the parts that are asked for; 1 if one has a failure."""
    options = parse_options()
    with tempfile.TemporaryDirectory(prefix="elmokit-torture-") as temporary:
        desk = Path(temporary)
        python = options.python or installed_python(desk)
        world = desk / "world"
        home = run_part(python, "world", "--world", world).stdout.strip()
        print(f"elmokit under test: {home}", flush=True)
        options.out.mkdir(parents=True, exist_ok=True)
        reports = [run_in_processes(python, part, world, desk, options) for part in options.parts]
    for report in reports:
        print_failures(report)
    print(table(reports))
    return int(any(report.failures for report in reports))


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(CASES)}; default: all")
    default_python = os.environ.get("ELMOKIT_TORTURE_PYTHON")
    parser.add_argument("--python", type=Path, default=default_python, help="Interpreter with an installed elmokit.")
    parser.add_argument("--scale", type=float, default=1.0, help="Fraction of the full number of cases.")
    parser.add_argument("--count", type=int, help="Number of cases, instead of --scale.")
    parser.add_argument("--index", type=int, help="Run only this case.")
    parser.add_argument("--only", help="hostile: only functions whose name starts with this. kills, pairs: a command.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="Number of processes.")
    parser.add_argument("--out", type=Path, default=Path("torture-reports"), help="Folder of the JSON reports.")
    options = parser.parse_args()
    options.parts = options.parts or list(CASES)
    if unknown := set(options.parts) - set(CASES):
        parser.error(f"unknown part {unknown.pop()!r}: one of {', '.join(CASES)}")
    return options


def installed_python(desk: Path) -> Path:
    """An interpreter whose elmokit is an installed wheel: this one, or that of a new environment."""
    code = "import elmokit; print(elmokit.__file__)"
    asked = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True)
    if asked.returncode == 0 and Path(asked.stdout.strip()).resolve().parents[1].name == "site-packages":
        return Path(sys.executable)
    return make_environment(desk / "environment", CHECKOUT)


def make_environment(folder: Path, checkout: Path) -> Path:
    """A new environment with the wheel of a checkout; other packages are those of this interpreter."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    wheels = folder.parent / "wheels"
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", wheels, str(checkout)], check=True
    )
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    (wheel,) = wheels.glob("elmokit-*.whl")
    subprocess.run([*pip, "--python", str(python), "install", "--no-deps", str(wheel)], check=True)
    # a path in a .pth file: the packages there are found after the wheel, their own .pth files are not read
    packages = sysconfig.get_paths(vars={"base": str(folder), "platbase": str(folder)})["purelib"]
    (Path(packages) / "borrowed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n", encoding="utf-8")
    return python


def run_part(python: Path, part: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """part.py to its end, in the interpreter under test."""
    done = subprocess.run(part_command(python, part, *arguments), stdout=subprocess.PIPE, text=True, env=clean_env())
    if done.returncode:
        sys.exit(f"{part} ended with {done.returncode}")
    return done


def part_command(python: Path, part: str, *arguments: object) -> list[str]:
    return [str(python), str(HERE / "part.py"), part, *map(str, arguments)]


def clean_env() -> dict[str, str]:
    """The environment without anything that leads back to the checkout."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    return {**kept, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}


def run_in_processes(python: Path, part: str, world: Path, desk: Path, options: argparse.Namespace) -> Report:
    """One part, its cases divided among processes."""
    count = options.count or max(1, round(CASES[part] * options.scale))
    first, jobs = (0, options.jobs) if options.index is None else (options.index, 1)
    end = count if options.index is None else options.index + 1
    began, running = time.monotonic(), []
    for job in range(jobs):
        own = desk / f"{part}-{job}"
        own.mkdir(exist_ok=True)
        report = options.out.resolve() / f"{part}-{job}.json"
        report.unlink(missing_ok=True)
        arguments = ["--world", world, "--desk", own, "--report", report, "--seed", options.seed]
        arguments += ["--cases", f"{first + job}:{end}:{jobs}"]
        arguments += [] if options.only is None else ["--only", options.only]
        process = subprocess.Popen(part_command(python, part, *arguments), cwd=own, env=clean_env())
        running.append((process, report))
    for process, report in running:
        if process.wait() or not report.exists():
            sys.exit(f"the process of {part} itself ended with {process.returncode}")
    total = read_reports(report for _, report in running)
    for _, report in running:
        report.unlink()
    total.seconds = time.monotonic() - began
    total.write(options.out / f"{part}.json")
    print(f"{part}: {total.cases:,} cases, {dict(total.outcomes)}, {total.seconds:.0f} s", flush=True)
    return total


def print_failures(report: Report) -> None:
    """Each kind of failure with its first case."""
    for failure in sorted(report.failures.values(), key=lambda one: -one.count):
        print(
            f"\n{failure.count:6} x {failure.signature}\n         {failure.detail}\n         run.py {failure.reproduce}"
        )


def table(reports: list[Report]) -> str:
    """The counts as Markdown, for docs/measured.md."""
    lines = ["", "| part | subjects | cases | outcomes | kinds of failure | seconds |", "|---|---|---|---|---|---|"]
    for report in reports:
        outcomes = ", ".join(f"{name} {number:,}" for name, number in report.outcomes.most_common())
        lines.append(
            f"| {report.part} | {len(report.by_subject)} | {report.cases:,} | {outcomes} | {len(report.failures)} "
            f"| {report.seconds:.0f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
