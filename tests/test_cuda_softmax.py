"""The fused softmax gradient, against the plain one in float64."""

import math

import pytest
import torch

from elmokit import kernels, losses

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available() or not kernels.has_triton(), reason="needs a GPU and Triton"),
]


@pytest.mark.parametrize(("num_tokens", "num_columns"), [(5, 3), (64, 4096), (33, 8191), (16, 60_003), (0, 10)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_fused_gradient_equals_the_plain_one(num_tokens, num_columns, dtype):
    generator = torch.Generator("cuda").manual_seed(num_columns)
    scores = (torch.randn(num_tokens, num_columns, device="cuda", generator=generator) * 4).to(dtype)
    bias = torch.randn(num_columns, device="cuda", generator=generator)
    targets = torch.randint(-1, num_columns, (num_tokens,), device="cuda", generator=generator)
    extra = torch.randn(num_tokens, device="cuda", generator=generator)
    extra = torch.where(targets < 0, extra, -math.inf)
    weights = torch.rand(num_tokens, device="cuda", generator=generator).round()
    exact = scores.double()
    wanted = losses.softmax_gradient_(exact, bias.double(), targets, extra.double(), weights.double())
    found = losses.softmax_gradient_(scores, bias, targets, extra, weights)
    for got, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(got.double(), want, atol=1e-5, rtol=1e-5)
    tolerance = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}[dtype]
    torch.testing.assert_close(scores.double(), exact, atol=tolerance, rtol=tolerance)
