"""Arithmetic on vectors.

Input and output: NumPy arrays whose last dimension is a vector.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating]


def unit(vectors: Floats) -> Floats:
    """Scale vectors to length one, so that their products are cosines.

    Args:
        vectors: (..., D).

    Returns:
        (..., D). A vector of zeros stays zeros.
    """
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12))
