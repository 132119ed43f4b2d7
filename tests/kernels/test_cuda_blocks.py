"""The fused parts of transformer blocks against the plain ones in float64: in Triton's interpreter, and on a GPU."""

import numpy as np
import pytest
import torch

from elmokit import kernels
from elmokit.kernels import AttentionSizes, Past, blocks, cuda, eager
from elmokit.kernels.cuda import blocks as fused
from elmokit.network import AttentionState, transformer
from transformer_models import random_transformer

pytestmark = [
    pytest.mark.skipif(not kernels.has_triton(), reason="no Triton here"),
    pytest.mark.filterwarnings("ignore"),  # of the interpreter
]
HERE = "cuda" if torch.cuda.is_available() else "cpu"
DEVICES = [
    pytest.param("cpu", marks=pytest.mark.skipif(HERE == "cuda", reason="the kernels are compiled here")),
    pytest.param("cuda", marks=pytest.mark.gpu),
]
TOLERANCES = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}  # of the largest value


def relative(found, expected):
    """The largest difference, divided by the largest value."""
    if not expected.numel():
        return 0.0
    return float((found.double() - expected).abs().max() / expected.abs().max().clamp(min=1e-6))


def assert_near(found, expected, dtype, factor=1.0):
    assert [part.shape for part in found] == [part.shape for part in expected]
    distances = [relative(one, other) for one, other in zip(found, expected, strict=True)]
    assert max(distances) < factor * TOLERANCES[dtype], distances


def gradients(outputs, leaves, seed=0):
    """Gradients of a random sum of outputs."""
    generator = torch.Generator().manual_seed(seed)
    total = [
        (output.double() * torch.randn(output.shape, generator=generator, dtype=torch.float64).to(output.device)).sum()
        for output in outputs
    ]
    return torch.autograd.grad(torch.stack(total).sum(), leaves, allow_unused=True)


# ---- attention ------------------------------------------------------------------------------------------------------


def attend(parts, dtype, device, *, steps, rows, heads, dim, window, past, ragged, grad_past=True):
    """What attention takes and keeps, at tokens only, and the gradients of what it reads, the past with `grad_past`."""
    rng = np.random.default_rng(steps * 100 + dim)
    width = heads * dim

    def random(*shape):
        return torch.from_numpy(rng.standard_normal(shape))

    qkv, values = random(2, rows * steps, 3 * width), random(2, rows, window - 1, width)
    keys = blocks.norm(random(2, rows, window - 1, heads, dim)).flatten(-2)
    lengths = torch.from_numpy(rng.integers(0, steps + 1, rows)) if ragged else torch.full((rows,), steps)
    lengths[0] = steps
    num_past = torch.from_numpy(rng.integers(0, window, rows)) if past else torch.zeros(rows, dtype=torch.long)
    is_past = (torch.arange(window - 1) >= window - 1 - num_past[:, None]).view(1, rows, -1, 1)
    num_kept = (num_past + lengths).clamp(max=window - 1)
    is_kept = (torch.arange(window - 1) >= window - 1 - num_kept[:, None]).view(1, rows, -1, 1).to(device)
    is_token = (torch.arange(steps) < lengths[:, None]).view(1, -1, 1).to(device)
    if parts is fused:  # what is no token is not read
        keys, values = (torch.where(is_past, part, torch.nan) for part in (keys, values))
    leaves = [part.to(device, dtype) for part in ([qkv, keys, values] if past else [qkv])]
    trained = [leaf.requires_grad_() for leaf in (leaves if grad_past else leaves[:1])]
    attention = parts.Attention(
        AttentionSizes(heads, window), lengths.to(device), num_past.to(device) if past else None, steps, width,
        leaves[0], with_state=True,
    )  # fmt: skip
    mixed, after = attention(leaves[0], Past(*leaves[1:]) if past else None)
    outputs = [torch.where(is_token, mixed, 0.0), *(torch.where(is_kept, part, 0.0) for part in after)]
    grad_qkv, *grads = gradients(outputs, trained)
    grads = [torch.where(is_past.to(device), grad, 0.0) for grad in grads if grad is not None]
    with torch.no_grad():
        again, none = parts.Attention(
            AttentionSizes(heads, window), lengths.to(device), num_past.to(device) if past else None, steps, width,
            leaves[0], with_state=False,
        )(leaves[0].detach(), Past(*(leaf.detach() for leaf in leaves[1:])) if past else None)  # fmt: skip
    assert none is None
    assert torch.equal(torch.where(is_token, again, 0.0), outputs[0].detach())
    return [output.detach() for output in outputs], [grad_qkv, *grads]


SMALL = [
    {"steps": 5, "rows": 3, "heads": 2, "dim": 8, "window": 4, "past": True, "ragged": True},
    {"steps": 3, "rows": 1, "heads": 1, "dim": 2, "window": 9, "past": True, "ragged": False},
    {"steps": 7, "rows": 2, "heads": 2, "dim": 6, "window": 1, "past": False, "ragged": True},
    {"steps": 20, "rows": 2, "heads": 1, "dim": 8, "window": 7, "past": True, "ragged": True},
    {"steps": 70, "rows": 1, "heads": 1, "dim": 40, "window": 20, "past": False, "ragged": False},
    {"steps": 18, "rows": 2, "heads": 1, "dim": 16, "window": 40, "past": True, "ragged": True},
    {"steps": 6, "rows": 3, "heads": 2, "dim": 8, "window": 4, "past": True, "ragged": True, "grad_past": False},
    {"steps": 16, "rows": 2, "heads": 1, "dim": 16, "window": 40, "past": True, "ragged": True, "grad_past": False},
    {"steps": 35, "rows": 2, "heads": 1, "dim": 4, "window": 20, "past": True, "ragged": True, "grad_past": False},
]
LARGE = [
    {"steps": 64, "rows": 5, "heads": 4, "dim": 64, "window": 64, "past": True, "ragged": False},
    {"steps": 64, "rows": 5, "heads": 4, "dim": 64, "window": 64, "past": True, "ragged": False, "grad_past": False},
    {"steps": 25, "rows": 40, "heads": 4, "dim": 64, "window": 64, "past": False, "ragged": True},
    {"steps": 300, "rows": 3, "heads": 2, "dim": 32, "window": 100, "past": True, "ragged": True},
    {"steps": 130, "rows": 2, "heads": 1, "dim": 128, "window": 64, "past": True, "ragged": True},
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("sizes", SMALL, ids=str)
def test_attention_and_its_gradients_are_those_of_plain_pytorch(device, sizes):
    expected, expected_grads = attend(blocks, torch.float64, "cpu", **sizes)
    outputs, grads = attend(fused, torch.float32, device, **sizes)
    assert_near([part.cpu() for part in outputs], expected, torch.float32)
    assert_near([part.cpu() for part in grads], expected_grads, torch.float32)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_attention_in_half_precision_is_near(device, dtype):
    if (device, dtype) == ("cpu", torch.bfloat16):
        pytest.skip("the interpreter multiplies the bits of bfloat16")
    expected, expected_grads = attend(blocks, torch.float64, "cpu", **SMALL[3])
    outputs, grads = attend(fused, dtype, device, **SMALL[3])
    assert {part.dtype for part in (*outputs, *grads)} == {dtype}
    assert_near([part.cpu() for part in outputs], expected, dtype)
    assert_near([part.cpu() for part in grads], expected_grads, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sizes", LARGE, ids=str)
def test_attention_of_published_sizes_is_that_of_plain_pytorch(monkeypatch, dtype, sizes):
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
    expected, expected_grads = attend(blocks, torch.float64, "cuda", **sizes)
    outputs, grads = attend(fused, dtype, "cuda", **sizes)
    assert_near(outputs, expected, dtype)
    assert_near(grads, expected_grads, dtype)


# ---- sums, norms, gates, reading order ------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("rows", "width"), [(1, 8), (37, 24), (9, 300), (3, 5000)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_sum_and_its_norm_and_their_gradients_are_those_of_plain_pytorch(device, rows, width, dtype):
    generator = torch.Generator().manual_seed(width)
    given = [torch.randn(2, rows, 1, width, generator=generator, dtype=torch.float64) for _ in range(2)]
    results = []
    for parts, kind, where in ((blocks, torch.float64, "cpu"), (fused, dtype, device)):
        leaves = [part.to(where, dtype).to(kind).requires_grad_() for part in given]
        outputs = [*parts.add_norm(*leaves), parts.norm(leaves[0])]
        alone = gradients(parts.add_norm(*leaves)[:1], leaves)  # the norm is not used
        results.append([part.detach().cpu() for part in (*outputs, *gradients(outputs, leaves), *alone)])
        with torch.no_grad():
            assert torch.equal(parts.add_norm(*leaves)[1], outputs[1])
    assert_near(results[1], results[0], dtype)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (21, 24), (10, 808)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gate_and_its_gradient_are_those_of_plain_pytorch(device, rows, width, dtype):
    given = torch.randn(2, rows, 2 * width, generator=torch.Generator().manual_seed(width), dtype=torch.float64) * 4
    given[0, 0, 0] = -200.0
    results = []
    for parts, kind, where in ((blocks, torch.float64, "cpu"), (fused, dtype, device)):
        leaf = given.to(where, dtype).to(kind).requires_grad_()
        gated = parts.gate(leaf)
        results.append([part.detach().cpu() for part in (gated, *gradients([gated], [leaf]))])
        with torch.no_grad():
            assert torch.equal(parts.gate(leaf), gated)
    assert_near(results[1], results[0], dtype)


@pytest.mark.parametrize("device", DEVICES)
def test_reading_order_and_back_are_exact_and_so_are_their_gradients(device):
    lengths = torch.tensor([11, 0, 1, 6])
    x = torch.randn(11, 4, 12, generator=torch.Generator().manual_seed(0)).expand(2, -1, -1, -1)  # (D, T, B, P)
    is_token = (torch.arange(11) < lengths[:, None]).view(1, 4, 11, 1)
    results = []
    for parts, where in ((blocks, "cpu"), (fused, device)):
        leaf = x.to(where).requires_grad_()
        rows = parts.to_reading_order(leaf, lengths.to(where), torch.float32)
        (back,) = parts.to_text_order([rows * 2.0], lengths.to(where), torch.float32)
        assert torch.equal(back.cpu(), 2.0 * x * is_token.transpose(1, 2))
        with torch.no_grad():
            for other in parts.to_text_order([rows * 2.0] * 2, lengths.to(where), torch.float64):
                assert torch.equal(other, back.double())
        results.append([rows.detach().cpu() * is_token, *(grad.cpu() for grad in gradients([back], [leaf]))])
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


# ---- complete networks ----------------------------------------------------------------------------------------------


def network(engine, dtype, device, *, window, layers=2, heads=1, dropout=None, autocast=None, grad=True):
    """Layers and state of two calls, the second after the first, and gradients of tokens and weights."""
    model = random_transformer(5, num_layers=layers, num_heads=heads, attention_window=window)
    bilm = model.bilm().to(device, dtype).requires_grad_(grad)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randn(2, 9, 3, 8, generator=generator, dtype=torch.float64).to(device, dtype).requires_grad_(grad)
    lengths = torch.tensor([9, 4, 0], device=device)
    outputs, state = [], None
    with kernels.forced(engine), torch.autocast(device, autocast or torch.bfloat16, enabled=autocast is not None):
        for _ in range(2):
            vectors, state = bilm.run_layers(tokens, lengths, state, dropout=dropout)
            outputs += vectors
    is_past = torch.arange(window - 1, device=device) >= window - 1 - state.num_past[0, 0, :, None]
    outputs += [torch.where(is_past.view(1, 1, 3, -1, 1), part, 0.0) for part in state[:2]]
    if not grad:
        return [output.cpu() for output in outputs]
    grads = gradients(outputs, [tokens, *bilm.layers.parameters()])
    return [part.detach().cpu() for part in (*outputs, *grads)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("sizes", "tokens_at_once"),
    [  # the interpreter takes its time for each row, direction, head and layer
        ({"window": 1, "layers": 1}, None),
        ({"window": 20, "layers": 1, "heads": 2}, None),
        ({"window": 4, "layers": 2}, 15),
    ],
    ids=str,
)
def test_fused_blocks_have_the_layers_state_and_gradients_of_plain_ones(monkeypatch, device, sizes, tokens_at_once):
    if tokens_at_once is not None:  # gradients then pass through the state
        monkeypatch.setattr(transformer, "TOKENS_AT_ONCE", dict.fromkeys(("cpu", "cuda"), tokens_at_once))
    expected = network(eager, torch.float64, "cpu", **sizes)
    found = network(cuda, torch.float32, device, **sizes)
    assert_near(found, expected, torch.float32)
    for one, other in zip(network(cuda, torch.float32, device, **sizes, grad=False), found, strict=False):
        assert torch.equal(one, other)


@pytest.mark.parametrize("device", DEVICES)
def test_dropout_and_autocast_act_on_fused_blocks_as_on_plain_ones(device):
    def doubled(x):
        return x * 2.0

    expected = network(eager, torch.float64, "cpu", window=4, dropout=doubled)
    assert_near(network(cuda, torch.float32, device, window=4, dropout=doubled), expected, torch.float32)
    expected = network(eager, torch.float64, "cpu", window=4)
    found = network(cuda, torch.float32, device, window=4, autocast=torch.float16)
    assert_near(found, expected, torch.float16, factor=2.0)
    assert {part.dtype for part in found[:6]} == {torch.float32}  # layers


def test_a_state_of_another_precision_is_read():
    model = random_transformer(5, num_layers=1, attention_window=4)
    bilm, tokens = model.bilm().to(HERE), torch.randn(5, 2, 8, device=HERE).expand(2, -1, -1, -1)
    lengths = torch.tensor([5, 3], device=HERE)
    with kernels.forced(cuda):
        _, state = bilm.run_layers(tokens, lengths, None)
        narrow = AttentionState(state.past_keys.half(), state.past_values.half(), state.num_past)
        (one,), _ = bilm.run_layers(tokens, lengths, narrow, only_top=True)
        (other,), _ = bilm.run_layers(tokens, lengths, state, only_top=True)
    torch.testing.assert_close(one, other, rtol=0, atol=1e-2)


def test_without_rows_or_tokens_the_plain_parts_run():
    with kernels.forced(cuda):
        assert kernels.block_parts(torch.zeros(2, 0, 3, 8)) is blocks
        assert kernels.block_parts(torch.zeros(2, 1, 3, 8)) is fused


def test_the_compiler_knows_the_shapes_without_running_anything():
    from torch._subclasses.fake_tensor import FakeTensorMode

    ops = torch.ops.elmokit
    with FakeTensorMode():
        x, added = torch.empty(2, 3, 5, 8), torch.empty(2, 3, 5, 8, dtype=torch.bfloat16)
        total, normed, factors = ops.add_norm(x, added, torch.bfloat16)
        assert (total.shape, total.dtype, normed.shape, normed.dtype) == (x.shape, x.dtype, x.shape, torch.bfloat16)
        grads = ops.add_norm_backward(x, normed, normed, factors, torch.float32, torch.bfloat16)
        assert [(grad.shape, grad.dtype) for grad in grads] == [(x.shape, x.dtype), (x.shape, torch.bfloat16)]
        assert ops.gate(x).shape == (2, 3, 5, 4)
        assert ops.gate_backward(ops.gate(x), x).shape == x.shape
        lengths, turns = torch.empty(5, dtype=torch.long), torch.empty(16, 2)
        assert ops.reading_order(x, lengths, torch.float32).shape == (2, 5, 3, 8)
        assert ops.text_order(x, lengths, torch.float16).shape == (2, 5, 3, 8)
        qkv, past = torch.empty(2, 15, 24), torch.empty(2, 5, 6, 8)
        mixed, *after, sums = ops.attention(qkv, past, past, lengths, lengths, turns, turns, 2, 7, 3, True)
        assert [part.shape for part in (mixed, *after)] == [(2, 15, 8), past.shape, past.shape]
        sizes = (2, 7, 3, True)
        grads = ops.attention_backward(
            mixed, *after, qkv, past, past, lengths, lengths, turns, turns, mixed, sums, *sizes
        )
        assert [grad.shape for grad in grads] == [qkv.shape, past.shape, past.shape]


@pytest.mark.gpu
def test_fused_blocks_can_be_captured_in_a_users_own_graph():
    bilm = random_transformer(5, num_layers=2, attention_window=4).bilm().cuda()
    tokens, lengths = torch.randn(2, 9, 3, 8, device="cuda"), torch.tensor([9, 4, 2], device="cuda")
    with torch.no_grad():
        (expected,), _ = bilm.run_layers(tokens, lengths, None, only_top=True)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            (found,), _ = bilm.run_layers(tokens, lengths, None, only_top=True)
        found.zero_()
        graph.replay()
    assert torch.equal(found, expected)
