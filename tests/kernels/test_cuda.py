"""The CUDA engine: its tiles and weights anywhere, its kernels in Triton's interpreter, and all of it on a GPU."""

import gc
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from elmokit.kernels import LSTMState, LSTMWeights, cuda, eager
from elmokit.kernels.cuda import launch, operators
from elmokit.kernels.cuda.tiles import Device, Plan, Tile, plan_backward, plan_forward
from elmokit.kernels.cuda.weights import CACHED_LAYERS, RUN, _cache, cached_weights, prepare

H200 = Device(132, large=True)
OTHER = Device(82, large=False)
gpu = pytest.mark.gpu


def random_layer(
    *, steps: int, rows: int, width: int, cells: int, device: str = "cpu", seed: int = 0
) -> tuple[list[Tensor], Tensor, list[Tensor]]:
    """[inputs, four weights, hidden, cell], ragged lengths, and [gradients of outputs, hidden, cell], in float64."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int, scale: float = 1.0) -> Tensor:
        return (torch.randn(2, *shape, generator=generator, dtype=torch.float64) * scale).to(device)

    tensors = [
        random(steps, rows, width),
        random(width, 4 * cells, scale=(2 * width) ** -0.5),
        random(width, 4 * cells, scale=(2 * width) ** -0.5),
        random(4 * cells, scale=0.1),
        random(cells, width, scale=2 * cells**-0.5),
        random(rows, width, scale=0.5),
        random(rows, cells, scale=0.5),
    ]
    lengths = torch.randint(0, steps + 1, (2, rows), generator=generator)
    lengths[:, 0] = steps
    return tensors, lengths.to(device), [random(steps, rows, width), random(rows, width), random(rows, cells)]


def run(
    engine: Any, tensors: list[Tensor], lengths: Tensor, grads: list[Tensor], dtype: torch.dtype, clip: float | None
) -> tuple[list[Tensor], list[Tensor]]:
    """(outputs, hidden, cell) and the gradients of all `tensors`."""
    leaves = [t.to(dtype).requires_grad_() for t in tensors]
    weights, state = LSTMWeights(*leaves[1:5]), LSTMState(*leaves[5:])
    outputs, last = engine.lstm(leaves[0], lengths, weights, state, cell_clip=clip, proj_clip=clip)
    results = [outputs, *last]
    gradients = torch.autograd.grad(results, leaves, [g.to(r.dtype) for g, r in zip(grads, results, strict=True)])
    return [r.detach() for r in results], list(gradients)


def relative(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).norm() / b.double().norm())


# --- anywhere


@pytest.mark.parametrize("device", [H200, OTHER])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("cells", "width"), [(64, 64), (1024, 128), (2048, 256), (4096, 512), (4160, 576)])
@pytest.mark.parametrize("rows", [1, 17, 64, 100, 256, 1024, 4096])
def test_tiles_of_every_shape_cover_it_exactly(
    device: Device, dtype: torch.dtype, cells: int, width: int, rows: int
) -> None:
    for plan, depth in (
        (plan_forward(rows, cells, width, dtype, device), cells),
        (plan_forward(rows, cells, width, dtype, device, save=True), cells),
        (plan_backward(rows, cells, width, dtype, device), 4 * cells),
    ):
        assert (cells % plan.cells.columns, width % plan.cells.depth, plan.cells.columns % RUN) == (0, 0, 0)
        assert (width % plan.hidden.columns, depth % (plan.split * plan.hidden.depth)) == (0, 0)
        assert min(plan.cells.rows, plan.hidden.rows, plan.hidden.columns) >= 16  # the least of a matrix instruction
        tiles = 2 * plan.split * (width // plan.hidden.columns) * math.ceil(rows / plan.hidden.rows)
        assert plan.split == 1 or tiles <= device.processors


def test_large_batches_on_a_large_gpu_keep_all_processors_at_work() -> None:
    for rows in (128, 256, 512, 1024):
        plan = plan_forward(rows, 4096, 512, torch.bfloat16, H200)
        assert 2 * plan.split * (512 // plan.hidden.columns) * math.ceil(rows / plan.hidden.rows) == 128


@pytest.mark.parametrize(("width", "cells"), [(64, 64), (20, 70)])
def test_prepared_weights_hold_every_gate_in_runs_of_cells_and_zeros_elsewhere(width: int, cells: int) -> None:
    tensors, _, _ = random_layer(steps=1, rows=1, width=width, cells=cells)
    weights = LSTMWeights(*tensors[1:5])
    prepared = prepare(weights, torch.float64)
    K, C = 64, 64 * math.ceil(cells / 64)
    assert prepared.projection.shape == (2, C, K)
    expected = torch.zeros(2, 2 * K, 4 * C, dtype=torch.float64)
    bias = torch.zeros(2, 4 * C)
    for gate in range(4):
        for cell in range(C):
            column = cell // RUN * 4 * RUN + gate * RUN + cell % RUN
            bias[:, column] = 1.0 if gate == 2 else 0.0
            if cell < cells:
                expected[:, :width, column] = weights.input[:, :, gate * cells + cell]
                expected[:, K : K + width, column] = weights.recurrent[:, :, gate * cells + cell]
                bias[:, column] += weights.bias[:, gate * cells + cell].float()
    assert torch.equal(prepared.weight, expected)
    assert torch.allclose(prepared.bias, bias)
    assert torch.equal(prepared.projection[:, :cells, :width], weights.projection)
    assert prepared.projection.sum() == pytest.approx(float(weights.projection.sum()))


@pytest.mark.parametrize(("width", "cells"), [(64, 64), (20, 70)])
def test_gradients_of_prepared_weights_return_to_their_places(width: int, cells: int) -> None:
    tensors, _, _ = random_layer(steps=1, rows=1, width=width, cells=cells)
    leaves = [t.requires_grad_() for t in tensors[1:5]]
    prepared = prepare(LSTMWeights(*leaves), torch.float64)
    factors = [torch.randn_like(p) for p in prepared]
    total = torch.stack([(p * f).sum() for p, f in zip(prepared, factors, strict=True)]).sum()
    grads = torch.autograd.grad(total, leaves)
    # preparing is linear, so the gradient times the weights is the sum itself, up to the forget gate's ones
    C = prepared.bias.shape[1] // 4
    ones = factors[1].view(2, C // RUN, 4, RUN)[:, :, 2].sum()
    again = torch.stack([(g * w.detach()).sum() for g, w in zip(grads, leaves, strict=True)]).sum()
    assert float(again + ones) == pytest.approx(float(total.detach()), rel=1e-5)
    assert [g.shape for g in grads] == [w.shape for w in leaves]


def test_a_frozen_layer_is_prepared_once_and_again_after_a_change() -> None:
    tensors, _, _ = random_layer(steps=1, rows=1, width=20, cells=16)
    weights = LSTMWeights(*tensors[1:5])
    first = cached_weights(weights, torch.float32)
    assert cached_weights(weights, torch.float32) is first
    assert cached_weights(weights, torch.float16) is not first
    weights.recurrent.mul_(2.0)
    second = cached_weights(weights, torch.float32)
    assert second is not first
    assert torch.equal(second.weight[:, 64:], 2 * first.weight[:, 64:])


def test_prepared_weights_die_with_their_layer_and_their_number_is_bounded() -> None:
    _cache.clear()
    kept = []
    for seed in range(CACHED_LAYERS + 3):
        tensors, _, _ = random_layer(steps=1, rows=1, width=4, cells=4, seed=seed)
        kept.append(LSTMWeights(*tensors[1:5]))
        cached_weights(kept[-1], torch.float32)
    assert len(_cache) == CACHED_LAYERS
    kept = kept[-1:]
    del tensors
    gc.collect()
    cached_weights(kept[0], torch.float32)
    assert len(_cache) == 1


def test_a_trained_layer_is_never_cached() -> None:
    tensors, _, _ = random_layer(steps=1, rows=1, width=4, cells=4)
    weights = LSTMWeights(*(t.requires_grad_() for t in tensors[1:5]))
    before = len(_cache)
    assert cached_weights(weights, torch.float32) is not cached_weights(weights, torch.float32)
    with torch.inference_mode():
        frozen = LSTMWeights(*(t.detach().clone() for t in weights))
        assert cached_weights(frozen, torch.float32) is not cached_weights(frozen, torch.float32)
    assert len(_cache) == before


def test_tensors_that_it_cannot_run_are_left_to_eager() -> None:
    assert not cuda.is_available(torch.zeros(2, 1, 1, 4))
    tensors, lengths, _ = random_layer(steps=1, rows=2, width=4, cells=4)
    weights, state = LSTMWeights(*tensors[1:5]), LSTMState(*tensors[5:])
    outputs, last = cuda.lstm(tensors[0][:, :0], lengths, weights, state, cell_clip=None, proj_clip=None)
    assert outputs.shape == (2, 0, 2, 4)
    assert torch.equal(last.hidden, state.hidden)


@pytest.mark.parametrize("save", [False, True])
def test_the_compiler_knows_the_shapes_without_running_anything(save: bool) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        tensors, lengths, grads = random_layer(steps=3, rows=5, width=20, cells=70)
        prepared = prepare(LSTMWeights(*tensors[1:5]), torch.float64)
        results = torch.ops.elmokit.lstm(tensors[0], lengths, *prepared, *tensors[5:], 3.0, 3.0, save)
        assert [tuple(r.shape) for r in results[:3]] == [(2, 3, 5, 20), (2, 5, 20), (2, 5, 70)]
        if save:
            saved = (lengths, prepared.weight, prepared.projection, *results[3:])
            back = torch.ops.elmokit.lstm_backward(*grads, *saved, 3.0, 3.0)
            shapes = [tensors[0].shape, *(p.shape for p in prepared), tensors[5].shape, tensors[6].shape]
            assert [b.shape for b in back] == shapes


# --- the kernels, in Triton's interpreter


@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels run on the GPU here")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("plan", "rows", "width", "cells", "clip"),
    [
        (Plan(Tile(16, 32, 64, 4, 2), Tile(16, 64, 32, 4, 2), 2, hoisted=True), 5, 64, 64, 0.6),
        (Plan(Tile(16, 32, 64, 4, 2), Tile(16, 64, 32, 4, 2), 2, hoisted=True, early=True), 5, 64, 64, 0.6),
        (Plan(Tile(16, 32, 64, 4, 2), Tile(16, 64, 64, 4, 2), 1), 18, 64, 64, 0.6),
        (Plan(Tile(32, 64, 64, 4, 2), Tile(16, 64, 64, 4, 2), 2, looped=False), 18, 20, 70, None),
    ],
    ids=["hoisted", "hoisted, cells early", "complete sums", "phase by phase, odd sizes, no clips"],
)
def test_the_kernels_agree_with_eager(
    monkeypatch: pytest.MonkeyPatch,
    plan: Plan,
    rows: int,
    width: int,
    cells: int,
    clip: float | None,
) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr(operators, "plan_forward", lambda *_, **__: plan)
    monkeypatch.setattr(operators, "plan_backward", lambda *_: plan)
    layer = random_layer(steps=3, rows=rows, width=width, cells=cells)
    expected, expected_grads = run(eager, *layer, torch.float64, clip)
    results, grads = run(cuda, *layer, torch.float32, clip)
    assert all(torch.allclose(a.double(), b, atol=1e-5) for a, b in zip(results, expected, strict=True))
    assert all(relative(a, b) < 1e-5 for a, b in zip(grads, expected_grads, strict=True))


@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels run on the GPU here")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("width", "cells"), [(64, 64), (20, 70)])
@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("hoisted", [False, True])
def test_no_state_is_a_state_of_zeros(
    monkeypatch: pytest.MonkeyPatch, width: int, cells: int, trained: bool, hoisted: bool
) -> None:
    pytest.importorskip("triton")
    if hoisted:
        plan = Plan(Tile(16, 32, 64, 4, 2), Tile(16, 64, 32, 4, 2), 2, hoisted=True)
        monkeypatch.setattr(operators, "plan_forward", lambda *_, **__: plan)
    tensors, lengths, _ = random_layer(steps=3, rows=2, width=width, cells=cells)
    inputs, *rest = (t.float() for t in tensors)
    weights, zeros = LSTMWeights(*rest[:4]), LSTMState(*(torch.zeros_like(t) for t in rest[4:]))
    weights.bias.requires_grad_(trained)
    for engine in (cuda, eager):
        expected, state = engine.lstm(inputs, lengths, weights, zeros, cell_clip=1.0, proj_clip=1.0)
        outputs, after = engine.lstm(inputs, lengths, weights, None, cell_clip=1.0, proj_clip=1.0)
        assert torch.equal(outputs, expected)
        assert all(torch.equal(a, b) for a, b in zip(after, state, strict=True))


# --- on a GPU

SHAPES = [
    {"steps": 5, "rows": 3, "width": 16, "cells": 32},
    {"steps": 7, "rows": 19, "width": 20, "cells": 70},
    {"steps": 6, "rows": 64, "width": 128, "cells": 1024},
    {"steps": 6, "rows": 150, "width": 512, "cells": 4096},
    {"steps": 3, "rows": 1100, "width": 128, "cells": 256},
]


@gpu
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("clip", [0.5, None])
def test_float32_on_the_gpu_agrees_with_eager(
    monkeypatch: pytest.MonkeyPatch, shape: dict[str, int], clip: float | None
) -> None:
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
    layer = random_layer(**shape, device="cuda")
    assert cuda.is_available(layer[0][0].float())
    expected, expected_grads = run(eager, *layer, torch.float64, clip)
    results, grads = run(cuda, *layer, torch.float32, clip)
    assert all(torch.allclose(a.double(), b, atol=1e-5) for a, b in zip(results, expected, strict=True))
    assert all(relative(a, b) < 1e-3 for a, b in zip(grads, expected_grads, strict=True))


@gpu
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_on_the_gpu_points_where_eager_points(dtype: torch.dtype, shape: dict[str, int]) -> None:
    layer = random_layer(**shape, device="cuda")
    expected, expected_grads = run(eager, *layer, torch.float64, 1.0)
    results, grads = run(cuda, *layer, dtype, 1.0)
    outputs, wanted = results[0].double(), expected[0]
    active = wanted.abs().sum(dim=-1) > 0
    assert torch.equal(outputs.abs().sum(dim=-1) > 0, active)
    assert float(torch.cosine_similarity(outputs, wanted, dim=-1)[active].min()) > 0.9995
    # a rounded value near a clip may be on its other side, and then its gradient is zero, or is not
    bound = 0.1 if dtype == torch.bfloat16 else 0.05
    assert all(relative(a, b) < bound for a, b in zip(grads, expected_grads, strict=True))


@gpu
@pytest.mark.parametrize("rows", [3, 64, 300])
def test_one_launch_and_a_launch_for_each_phase_give_the_same_bits_every_time(
    monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    layer = random_layer(steps=9, rows=rows, width=128, cells=512, device="cuda")
    first = run(cuda, *layer, torch.bfloat16, 1.0)
    again = run(cuda, *layer, torch.bfloat16, 1.0)
    monkeypatch.setattr(launch, "can_cooperate", lambda: False)
    separate = run(cuda, *layer, torch.bfloat16, 1.0)
    for other in (again, separate):
        assert all(torch.equal(a, b) for a, b in zip(first[0] + first[1], other[0] + other[1], strict=True))


@gpu
def test_autocast_runs_float32_weights_in_half_precision_and_returns_float32_gradients() -> None:
    tensors, lengths, _ = random_layer(steps=4, rows=8, width=64, cells=64, device="cuda")
    leaves = [t.float().requires_grad_() for t in tensors]
    with torch.autocast("cuda", torch.bfloat16):
        outputs, last = cuda.lstm(
            leaves[0], lengths, LSTMWeights(*leaves[1:5]), LSTMState(*leaves[5:]), cell_clip=1.0, proj_clip=1.0
        )
    assert (outputs.dtype, last.hidden.dtype, last.cell.dtype) == (torch.bfloat16, torch.float32, torch.float32)
    grads = torch.autograd.grad(outputs.float().sum(), leaves[:5])
    assert all(g.dtype == torch.float32 and bool(g.isfinite().all()) for g in grads)


@gpu
@pytest.mark.parametrize("trained", [False, True])
def test_it_can_be_captured_in_a_users_own_graph(trained: bool) -> None:
    tensors, lengths, _ = random_layer(steps=4, rows=8, width=64, cells=64, device="cuda")
    x, *rest = (t.float() for t in tensors)
    weights, state = LSTMWeights(*(t.requires_grad_(trained) for t in rest[:4])), LSTMState(*rest[4:])
    expected, _ = cuda.lstm(x, lengths, weights, state, cell_clip=1.0, proj_clip=1.0)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        outputs, _ = cuda.lstm(x, lengths, weights, state, cell_clip=1.0, proj_clip=1.0)
    outputs.detach().zero_()
    graph.replay()
    assert torch.equal(outputs, expected)


@gpu
@pytest.mark.filterwarnings("ignore")
def test_the_compiler_sees_one_node() -> None:
    tensors, lengths, _ = random_layer(steps=4, rows=8, width=64, cells=64, device="cuda")
    x, *rest = (t.float() for t in tensors)
    weights, state = LSTMWeights(*(t.requires_grad_() for t in rest[:4])), LSTMState(*rest[4:])

    def mean(x: Tensor) -> Tensor:
        return cuda.lstm(x, lengths, weights, state, cell_clip=1.0, proj_clip=1.0)[0].mean()

    expected = torch.autograd.grad(mean(x), weights)
    grads = torch.autograd.grad(torch.compile(mean, fullgraph=True, backend="aot_eager")(x), weights)
    assert all(torch.allclose(a, b) for a, b in zip(grads, expected, strict=True))
