"""The verbs of the command line."""

from elmokit.cli.main import main

__all__ = ["main"]
