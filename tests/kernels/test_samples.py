"""Samples of a weight: spread over all of its rows and columns."""

import pytest
import torch

from elmokit.kernels import samples_of


@pytest.mark.parametrize("shape", [(1536, 1536), (256, 1536), (512, 16 * 7), (261, 16), (1024, 2048), (2048, 512)])
def test_samples_reach_every_row_and_every_column(shape):
    rows, columns = shape
    places = samples_of(torch.arange(rows * columns).reshape(shape), 2048)
    assert set((places // columns).tolist()) == set(range(rows))
    assert set((places % columns).tolist()) == set(range(columns))
    assert min(2048, rows * columns) <= len(places) < 8192


@pytest.mark.parametrize("shape", [(), (0,), (1,), (7,), (3, 0, 4), (3, 5, 4)])
def test_a_small_weight_is_read_completely(shape):
    weight = torch.randn(shape)
    assert torch.equal(samples_of(weight, 2048), weight.reshape(-1))


def test_samples_are_a_view():
    weight = torch.nn.Parameter(torch.zeros(64, 64))
    samples = samples_of(weight, 16)
    weight.data.fill_(1.0)
    assert samples.eq(1.0).all()
    assert not samples.requires_grad
