"""Published sizes with random weights: tokens/s of the LSTM layers and of the complete model, with ratios.

    python benchmarks/inference.py [the options of `elmokit bench`]

The same as `elmokit bench`, for a checkout that is not installed.
"""

import sys

from elmokit.cli import main

if __name__ == "__main__":
    main(["bench", *sys.argv[1:]])
