"""`layers=` is checked in one module and means the same everywhere."""

import numpy as np
import pytest
import torch

from elmokit.inference.views import check_layers, view_of

LAYERS = torch.randn(3, 2, 5, 8, generator=torch.Generator().manual_seed(0))  # (L+1, B, T, 2P)


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ("average", (LAYERS[0] + LAYERS[1] + LAYERS[2]) / 3),
        ("top", LAYERS[2]),
        ("all", LAYERS),
        (0, LAYERS[0]),
        (-1, LAYERS[2]),
        (-3, LAYERS[0]),
        (np.int64(1), LAYERS[1]),
        (np.uint8(2), LAYERS[2]),
    ],
)
def test_a_view_is_what_its_name_says(layers, expected):
    torch.testing.assert_close(view_of(layers, 3)(LAYERS), expected)


@pytest.mark.parametrize("layers", ["bottom", "0", 3, -4, True, 1.0, None, [1], np.float64(1)])
def test_anything_else_is_refused_with_the_value(layers):
    with pytest.raises(ValueError, match=r"layers must be .* a number from 0 to 2, not"):
        view_of(layers, 3)


def test_a_caller_that_needs_one_vector_per_token_refuses_all_layers():
    assert check_layers("top", 3, single=True) == "top"
    with pytest.raises(
        ValueError, match=r'must be "average", "top" or a number from 0 to 2, not .all., which is for embed'
    ):
        view_of("all", 3, single=True)
