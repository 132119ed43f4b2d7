"""Random weights, inputs and states for the tests of the CPU engine."""

import torch

from elmokit.kernels.interface import LSTMState, LSTMWeights


def random_layer(*, steps, rows, width, cells, seed=0):
    """(inputs, ragged lengths, weights, state) for `lstm`."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape, scale):
        return torch.randn(*shape, generator=generator) * scale

    weights = LSTMWeights(
        normal(2, width, 4 * cells, scale=width**-0.5),
        normal(2, width, 4 * cells, scale=width**-0.5),
        normal(2, 4 * cells, scale=0.1),
        normal(2, cells, width, scale=2 * cells**-0.5),
    )
    state = LSTMState(normal(2, rows, width, scale=0.3), normal(2, rows, cells, scale=0.3))
    lengths = torch.randint(0, steps + 1, (2, rows), generator=generator)
    return normal(2, steps, rows, width, scale=1.0), lengths, weights, state
