"""Arithmetic on vectors.

Input and output: NumPy arrays whose last dimension is a vector.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from elmokit.arguments import describe

Floats = npt.NDArray[np.floating]


def unit(vectors: Floats) -> Floats:
    """Scale vectors to length one, so that their products are cosines.

    Args:
        vectors: (..., D).

    Returns:
        (..., D). A vector of zeros stays zeros.
    """
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12))


def check_vectors(name: str, value: npt.ArrayLike, dim: int) -> npt.NDArray[np.float32]:
    """Check vectors.

    Args:
        name: Name of the argument.
        value: (N, dim).
        dim: Width of a vector.

    Raises:
        ValueError: If they are not numbers, have another shape, or are not finite.
    """
    try:
        vectors = np.asarray(value, np.float32)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name} must be numbers (n, {dim}), not {describe(value)}") from error
    if vectors.ndim != 2 or vectors.shape[1] != dim:
        raise ValueError(f"{name} must be numbers (n, {dim}), not an array of {vectors.shape}")
    if not np.isfinite(vectors).all():
        raise ValueError(f"{name} have values that are not finite: they cannot be compared")
    return vectors
