"""Arithmetic on vectors that several rooms share."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating]


def unit(vectors: Floats) -> Floats:
    """Scale vectors (..., D) to length one, so that products are cosines; a vector of zeros stays zeros."""
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12))
