"""The Chromium of this machine, for `screenshots.py` and for the tests of the explorer.

    python examples/chromium.py     # prints its path

Input: the variable ELMOKIT_CHROMIUM, or the PATH.  Output: its path, and the options to run it without a screen.
"""

import os
import shutil

NAMES = ("chromium", "chromium-browser", "google-chrome")
MISSING = "no Chromium found: install it (Debian: apt-get install chromium) or set ELMOKIT_CHROMIUM"
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def find_chromium() -> str | None:
    """The path of the browser; None if there is none."""
    return os.environ.get("ELMOKIT_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


if __name__ == "__main__":
    print(find_chromium() or MISSING)
