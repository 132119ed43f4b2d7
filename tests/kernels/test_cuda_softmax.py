"""The fused softmax gradient, against the plain one in float64: in Triton's interpreter, and on a GPU."""

import math

import pytest
import torch

from elmokit import kernels
from elmokit.network import losses

DEVICES = [
    pytest.param("cpu", marks=pytest.mark.skipif(torch.cuda.is_available(), reason="the kernel is compiled here")),
    pytest.param("cuda", marks=pytest.mark.gpu),
]


@pytest.mark.skipif(not kernels.has_triton(), reason="no Triton here")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("num_tokens", "num_columns"), [(5, 3), (8, 4096), (6, 8191), (3, 60_003), (0, 10)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_fused_gradient_equals_the_plain_one(device, num_tokens, num_columns, dtype):
    from elmokit.kernels.cuda import softmax

    generator = torch.Generator(device).manual_seed(num_columns)
    scores = (torch.randn(num_tokens, num_columns, device=device, generator=generator) * 4).to(dtype)
    bias = torch.randn(num_columns, device=device, generator=generator)
    targets = torch.randint(-1, num_columns, (num_tokens,), device=device, generator=generator)
    if num_tokens:
        targets[0], targets[-1] = -1, num_columns - 1
    extra = torch.randn(num_tokens, device=device, generator=generator)
    extra = torch.where(targets < 0, extra, -math.inf)
    weights = torch.arange(num_tokens, device=device).remainder(3).float()
    exact = scores.double()
    wanted = losses.softmax_gradient_(exact, bias.double(), targets, extra.double(), weights.double())
    results = softmax.softmax_gradient_(scores, bias, targets, extra, weights)
    for got, want in zip(results, wanted, strict=True):
        torch.testing.assert_close(got.double(), want, atol=1e-5, rtol=1e-5)
    tolerance = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}[dtype]
    torch.testing.assert_close(scores.double(), exact, atol=tolerance, rtol=tolerance)
