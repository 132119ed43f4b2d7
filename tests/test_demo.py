"""`make demo`: the story of "bank" by the English model of the package, and of four words by the Chinese one."""

import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def told():
    """What the demo prints, with a space wherever it has some or a new line."""
    script = Path(__file__).parent.parent / "examples" / "bank.py"
    done = subprocess.run([sys.executable, script], capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    return " ".join(done.stdout.split())


def test_the_demo_tells_its_story_of_bank(told):
    assert "6 of 6 find their own sense; by layer 2, 6." in told


def test_the_demo_tells_of_chinese_words(told):
    (right,) = re.findall(r"(\d+) of 24 sentences find their own sense", told)
    assert int(right) >= 20
