"""The Muon optimizer: the update of a matrix is its orthogonalized momentum.

Input: the matrices of a biLM with their names, their gradients, and the running means of the gradients.  Output:
updated matrices and means.  Each gate of each direction of an LSTM is a matrix of its own; so are projections and
highways, and the queries, keys, values, gates and outputs of each direction of a transformer block.  The output layer,
convolutions, tables and biases are updated by AdamW with the same learning rate: `SCALE` makes an update of Muon about
as large as one of AdamW.

Matrices of the same shape are updated as one batch, tall ones transposed, to launch few kernels.
The method and its coefficients are of Jordan et al. (2024), the scale of Liu et al. (2025, arXiv 2502.16982).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor

MOMENTUM = 0.95
COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of x, x^3 and x^5: a few steps bring all singular values near 1
NUM_STEPS = 5
SCALE = 0.2
PARTS = {  # parameters whose columns are this many matrices
    "input_weight": 4,
    "recurrent_weight": 4,
    "attention_input": 3,
    "feedforward_input": 2,
}
MATRICES = (
    *PARTS,
    "attention_output",
    "feedforward_output",
    "projection",
    "projection.weight",
    "transform.weight",
    "carry.weight",
)


def is_matrix(name: str) -> bool:
    """Whether Muon updates the parameter of this name in a `step.LanguageModel`."""
    return name.startswith("bilm.") and name.endswith(MATRICES)


def as_matrices(name: str, parameter: Tensor) -> Tensor:
    """View a parameter as wide matrices (..., rows, columns): one per gate or part; tall matrices are transposed."""
    num_parts = PARTS.get(name.rpartition(".")[2], 1)
    if num_parts > 1:  # (D, P, 4C) -> (D, 4, P, C)
        parameter = parameter.view(*parameter.shape[:-1], num_parts, -1).transpose(-3, -2)
    return parameter.mT if parameter.shape[-2] > parameter.shape[-1] else parameter


def orthogonalize(matrices: Tensor) -> Tensor:
    """Bring the singular values of matrices near 1, by Newton-Schulz steps.

    On a GPU the products are in bfloat16: the update needs directions only, and no high precision.

    Args:
        matrices: Wide matrices (n, rows, columns).

    Returns:
        (n, rows, columns).
    """
    a, b, c = COEFFICIENTS
    norms = torch.linalg.vector_norm(matrices, dim=(1, 2), keepdim=True)
    x: Tensor = matrices / norms.clamp(min=1e-30)  # zeros stay zeros
    if x.is_cuda:
        x = x.bfloat16()
    for _ in range(NUM_STEPS):
        square = x @ x.mT  # (n, rows, rows)
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x.to(matrices.dtype)


def move_means(gradients: Tensor, means: Tensor) -> None:
    """Update the means by the gradients, and turn the gradients into Nesterov momentum, both in place."""
    means.lerp_(gradients, 1 - MOMENTUM)
    gradients.lerp_(means, MOMENTUM)


def update(parameters: Iterable[tuple[str, Tensor, Tensor]], rate: Tensor) -> None:
    """Update matrices in place.

    Args:
        parameters: (name, value, momentum) of each matrix.
        rate: Learning rate ().
    """
    groups: defaultdict[torch.Size, list[tuple[Tensor, Tensor]]] = defaultdict(list)
    for name, value, momentum in parameters:
        matrices = as_matrices(name, momentum)
        groups[matrices.shape[-2:]].append((as_matrices(name, value), matrices))
    for shape, group in groups.items():
        batch = torch.cat([matrices.reshape(-1, *shape) for _, matrices in group])
        updates = orthogonalize(batch).mul_(rate * (SCALE * math.sqrt(max(shape))))
        sizes = [matrices.shape[:-2].numel() for _, matrices in group]
        for (value, _), update in zip(group, torch.split(updates, sizes), strict=True):
            value.sub_(update.view(value.shape))
