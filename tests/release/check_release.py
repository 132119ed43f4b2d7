"""Check the wheels and the sdist of a release: `python tests/release/check_release.py dist`, as `make release` does.

There is one wheel for every machine and one for the platform, which has the compiled LSTM steps.  They and the sdist
hold every file that they should, the metadata has the version of the package and no relative link, and each wheel,
installed into a new environment outside of the checkout, runs the first Python session of README.md in an empty folder
and the Chinese model.
"""

import platform
import re
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from email import message_from_bytes
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = "elmokit/kernels/cpu/csrc/libsteps.so"
OLDEST_GLIBC = (2, 17)  # of manylinux_2_17
IS_COMPILED = (
    "from elmokit.kernels.cpu import native; assert (native.library() is not None) is {}, 'compiled steps: expected {}'"
)
RELATIVE_LINK = re.compile(r"\]\((?![a-z]+:|#)[^)]*\)")


def tracked_files(*paths: str) -> set[str]:
    """The files of the repository under these paths."""
    done = subprocess.run(["git", "ls-files", "-z", "--", *paths], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.split("\0")) - {""}


def only_file(folder: Path, pattern: str) -> Path:
    """The file of that pattern."""
    files = sorted(folder.glob(pattern))
    assert len(files) == 1, f"{folder} has {len(files)} files {pattern}, expected one"
    return files[0]


def package_version() -> str:
    """The version that the source says."""
    found = re.search(r'^__version__ = "(.+)"$', (ROOT / "src/elmokit/__init__.py").read_text("utf-8"), re.MULTILINE)
    assert found is not None, "src/elmokit/__init__.py has no __version__"
    return found[1]


def is_compiled(wheel: Path) -> bool:
    """Whether a wheel is for one platform, with the compiled LSTM steps."""
    return not wheel.name.endswith("-any.whl")


def check_wheel(path: Path) -> None:
    """Every file of the package, with recipes, models and the explorer's page, and metadata that PyPI can show."""
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
        metadata = message_from_bytes(
            archive.read(next(name for name in names if name.endswith(".dist-info/METADATA")))
        )
    missing = {name.removeprefix("src/") for name in tracked_files("src")} - names
    assert not missing, f"{path.name} lacks {sorted(missing)}"
    strangers = {name for name in names if not name.startswith(("elmokit/", f"elmokit-{package_version()}.dist-info/"))}
    assert not strangers, f"{path.name} has {sorted(strangers)}"
    assert (LIBRARY in names) is is_compiled(path), f"{path.name}: {LIBRARY} does not belong to its tag"
    if "manylinux_2_17" in path.name:
        with zipfile.ZipFile(path) as archive:
            versions = re.findall(rb"GLIBC_(\d+)\.(\d+)", archive.read(LIBRARY))
        newest = max((int(major), int(minor)) for major, minor in versions)
        assert newest <= OLDEST_GLIBC, f"{path.name}: {LIBRARY} needs glibc {newest}"
    assert metadata["Version"] == package_version()
    readme = str(metadata.get_payload())
    assert readme.startswith("# elmokit")
    assert (link := RELATIVE_LINK.search(readme)) is None, f"README.md on PyPI has the relative link {link}"


def check_sdist(path: Path) -> None:
    """Every file of the folders and documents that it includes."""
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = tracked_files(
        "src", "tests", "docs", "benchmarks", "examples", "*.md", "Makefile", "hatch_build.py", "constraints*.txt"
    )
    missing = {*wanted, "pyproject.toml", "CITATION.cff", "LICENSE"} - names
    assert not missing, f"{path.name} lacks {sorted(missing)}"


def run_first_session(wheel: Path) -> None:
    """The first Python session of README.md, by the wheel in an environment of its own."""
    session = re.search(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert session is not None, "README.md has no Python session"
    with tempfile.TemporaryDirectory(prefix="elmokit-release-") as folder:
        venv.create(Path(folder) / "venv", with_pip=True)
        python = Path(folder) / "venv" / ("Scripts" if sys.platform == "win32" else "bin") / "python"
        desk = Path(folder) / "desk"
        desk.mkdir()
        (desk / "first_session.txt").write_text(session[1], encoding="utf-8")
        install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        for command in (
            [*install, "-c", str(ROOT / "constraints.txt"), str(wheel.resolve())],
            ["-m", "pip", "check"],
            ["-c", IS_COMPILED.format(is_compiled(wheel), is_compiled(wheel))],
            ["-m", "doctest", "-o", "ELLIPSIS", "first_session.txt"],
            ["-m", "elmokit", "similar", "--word", "bank", "The bank lent money .", "He sat by the bank ."],
            ["-m", "elmokit", "substitutes", "--model", "zh", "他把钱存在[银行]里。"],
        ):
            print("$ python", *command, flush=True)
            subprocess.run([python, "-I", *command], cwd=desk, check=True)


def main() -> None:
    folder = Path(sys.argv[1])
    wheels = [only_file(folder, "*-any.whl"), only_file(folder, f"*_{platform.machine()}.whl")]
    sdist = only_file(folder, "*.tar.gz")
    for wheel in wheels:
        check_wheel(wheel)
    check_sdist(sdist)
    for wheel in wheels:
        run_first_session(wheel)
    print(f"{', '.join(path.name for path in (*wheels, sdist))}: ready to upload")


if __name__ == "__main__":
    main()
