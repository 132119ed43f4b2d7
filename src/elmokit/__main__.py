"""`python -m elmokit`: the command line."""

from elmokit.cli import main

main()
