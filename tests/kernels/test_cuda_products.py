"""Products whose gradient is a sum of parts, against plain PyTorch; the arithmetic is the same on any device."""

import pytest
import torch

from elmokit import kernels
from elmokit.kernels.cuda import products
from elmokit.kernels.cuda.tiles import Device


@pytest.mark.parametrize(("num_rows", "parts"), [(4096, 8), (1536, 2), (1025, 1), (6, 1)])
def test_a_product_and_its_gradients_are_those_of_plain_pytorch(monkeypatch, num_rows, parts):
    monkeypatch.setattr(products, "device_of", lambda rows: Device(132, large=True))
    assert products.num_parts(2, num_rows, 24, 40, 132) == parts
    generator = torch.Generator().manual_seed(num_rows)
    rows = torch.randn(2, num_rows, 24, generator=generator, dtype=torch.float64).requires_grad_()
    weight = torch.randn(2, 24, 40, generator=generator, dtype=torch.float64).requires_grad_()
    along = torch.randn(2, num_rows, 40, generator=generator, dtype=torch.float64)
    expected = torch.autograd.grad((torch.bmm(rows, weight) * along).sum(), [rows, weight])
    found = torch.autograd.grad((products.product(rows, weight) * along).sum(), [rows, weight])
    assert torch.equal(products.product(rows, weight), torch.bmm(rows, weight))
    assert torch.equal(found[0], expected[0])
    torch.testing.assert_close(found[1], expected[1], rtol=1e-12, atol=1e-12)


def test_what_needs_no_gradient_gets_none():
    rows, weight = torch.randn(2, 8, 4), torch.randn(2, 4, 6).requires_grad_()
    (grad,) = torch.autograd.grad(products.product(rows, weight).sum(), [weight])
    torch.testing.assert_close(grad, rows.sum(1).unsqueeze(-1).expand_as(weight))
    rows.requires_grad_()
    (grad,) = torch.autograd.grad(products.product(rows, weight.detach()).sum(), [rows])
    torch.testing.assert_close(grad, weight.detach().sum(2).unsqueeze(1).expand_as(rows))


def test_a_gradient_is_divided_where_that_is_faster():
    for width, columns, parts in [
        (256, 256, 8),
        (256, 768, 8),
        (808, 256, 8),
        (1952, 256, 4),
        (256, 1616, 1),
        (256, 3904, 1),
        (4096, 4096, 1),
    ]:
        assert products.num_parts(2, 32768, width, columns, 132) == parts
    assert products.num_parts(2, 1000, 256, 256, 132) == 1  # too few rows


@pytest.mark.gpu
def test_half_precision_products_on_a_gpu_are_near():
    rows = torch.randn(2, 8192, 64, device="cuda", dtype=torch.bfloat16).requires_grad_()
    weight = torch.randn(2, 64, 128, device="cuda").requires_grad_()
    with torch.autocast("cuda", torch.bfloat16):
        result = kernels.product(rows, weight)
    along = torch.randn_like(result)
    found = torch.autograd.grad(result, [rows, weight], along)
    assert [grad.dtype for grad in found] == [torch.bfloat16, torch.float32]
    exact = torch.bmm(rows.detach().double().transpose(1, 2), along.double())
    assert float((found[1] - exact).norm() / exact.norm()) < 4e-3
