"""Compiles the LSTM steps for a wheel or an editable installation, if the machine has a C compiler.

The wheel then holds `elmokit/kernels/cpu/csrc/libsteps.so`, for this platform and every Python 3.  Without a compiler,
on Windows, or with ELMOKIT_NATIVE=0, the wheel is pure Python, and PyTorch computes the same; with ELMOKIT_NATIVE=1 a
missing compiler is an error.  `python hatch_build.py` compiles in a checkout.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run as a script
    BuildHookInterface = object  # type: ignore[assignment,misc]

ROOT = Path(__file__).parent
FOLDER = ROOT / "src" / "elmokit" / "kernels" / "cpu" / "csrc"
LIBRARY = FOLDER / "libsteps.so"
SOURCES = (
    FOLDER / "steps.c",
    FOLDER / "kernel.h",
    FOLDER / "blocks.h",
    FOLDER / "words.h",
)  # as in native.py, which compares their checksum
FLAGS = ("-std=gnu11", "-O3", "-ffp-contract=fast", "-fPIC", "-shared", "-w")


class CompileSteps(BuildHookInterface):  # type: ignore[type-arg,misc]
    """The build hook of hatchling."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and put the library into the wheel; `version` is "standard" or "editable"."""
        if compile_steps():
            build_data["artifacts"].append(LIBRARY.relative_to(ROOT).as_posix())
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{platform_tag()}"


def compile_steps() -> bool:
    """Write the library beside its sources; False without a compiler."""
    wish = os.environ.get("ELMOKIT_NATIVE", "")
    if wish == "0" or sys.platform == "win32":
        return False
    partial = LIBRARY.with_suffix(f".{os.getpid()}")
    checksum = zlib.crc32(b"".join(path.read_bytes() for path in SOURCES))
    try:
        command = [*compiler(), *FLAGS, *for_macos(), f"-DSOURCE={checksum}u", "-o", str(partial), str(SOURCES[0])]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise OSError(f"{command[0]} fails:\n{done.stderr}")
        partial.replace(LIBRARY)  # a process may have loaded the one before
    except OSError as error:
        partial.unlink(missing_ok=True)
        if wish == "1":
            raise RuntimeError(f"ELMOKIT_NATIVE=1, but {error}") from error
        return False
    return True


def compiler() -> list[str]:
    """The command of the C compiler: CC, or the first of cc, gcc and clang."""
    if given := os.environ.get("CC", "").split():
        return given
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            return [name]
    raise OSError("there is no C compiler: install gcc or clang, or set CC")


def for_macos() -> list[str]:
    """Flags for the oldest macOS of the tag."""
    return ["-mmacosx-version-min=11.0"] if sys.platform == "darwin" else []


def platform_tag() -> str:
    """Where the library runs: it needs a few functions of the C library that glibc has had since 2.14."""
    system = {"darwin": "macosx_11_0", "linux": "manylinux_2_17"}.get(sys.platform, sys.platform)
    if sys.platform == "linux" and platform.libc_ver()[0] != "glibc":
        system = "musllinux_1_1"
    return f"{system}_{platform.machine()}"


if __name__ == "__main__":
    sys.exit(0 if compile_steps() else "the LSTM steps were not compiled")
