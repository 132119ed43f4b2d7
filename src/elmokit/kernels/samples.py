"""Elements of a weight that are compared to notice that it has changed.

Input: a weight.  Output: up to a few thousand of its elements.

PyTorch counts writes to a tensor in its version, but not writes through `.data`: those show only in the values.
"""

from __future__ import annotations

import math

from torch import Tensor


def samples_of(weight: Tensor, num_samples: int) -> Tensor:
    """A view of elements spread over the rows and columns of a weight.

    The distance of two samples has no factor in common with the length of a row, so that no two samples are in the same
    column before all columns were visited.

    Args:
        weight: (…, N).
        num_samples: Number of elements, or somewhat more; all elements of a smaller weight.
    """
    flat = weight.detach().reshape(-1)
    step = max(1, flat.numel() // num_samples)
    while math.gcd(step, weight.shape[-1] if weight.ndim else 1) > 1:
        step -= 1
    return flat[::step]
