"""A small share of the torture of run.py: hostile inputs, damaged files, kills, and two processes on one target.

ELMOKIT_TORTURE_SCALE=1 runs all of it. ELMOKIT_TORTURE_PYTHON names an interpreter with an installed elmokit; without
it a wheel of this checkout is built and installed into a temporary environment.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).with_name("run.py")
CASES = {"hostile": 20, "damaged": 60, "kills": 12, "pairs": 9}


@pytest.mark.slow
@pytest.mark.parametrize("part", CASES)
def test_no_crash_no_hang_and_no_silent_difference(part, tmp_path):
    scale = os.environ.get("ELMOKIT_TORTURE_SCALE")
    size = ["--count", str(CASES[part])] if scale is None else ["--scale", scale]
    command = [sys.executable, str(RUN), part, *size, "--out", str(tmp_path / "reports")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout[-20_000:]}\n{done.stderr[-5_000:]}"
