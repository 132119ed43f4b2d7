"""Transformer blocks in C against the blocks of PyTorch in float64 (which tests/network compares with NumPy)."""

from __future__ import annotations

import pytest
import torch
from test_native import HAS_COMPILER, build, integers_times_scales, reloaded  # noqa: F401 (fixtures)

from elmokit.kernels import AttentionSizes, cpu
from elmokit.kernels.cpu import native
from elmokit.network.int8 import Int8Block
from elmokit.network.transformer import AttentionState, TransformerBlock, run_blocks

# steps, rows, width, heads, feed-forward width, window: no width is a multiple of a register, or all are
SIZES = [
    (9, 5, 12, 2, 17, 9),
    (7, 3, 64, 1, 64, 4),
    (20, 4, 60, 5, 90, 8),
    (33, 2, 128, 4, 200, 40),
    (6, 30, 32, 8, 33, 6),
    (1, 1, 2, 1, 1, 1),
]


@pytest.fixture
def wide():
    if native.library() is None or not native.is_wide():
        pytest.skip("the blocks are not compiled, or this processor has no AVX-512 with VNNI")


def some_blocks(width, feedforward_dim, *, num_layers=3, form="float"):
    torch.manual_seed(width + feedforward_dim)
    blocks = [
        TransformerBlock(projection_dim=width, feedforward_dim=feedforward_dim, num_layers=num_layers)
        .requires_grad_(False)
        for _ in range(num_layers)
    ]  # fmt: skip
    for block in blocks if form == "integers" else []:
        for parameter in block.parameters():
            parameter.copy_(torch.stack([integers_times_scales(weight) for weight in parameter]))
    return blocks


def some_rows(steps, rows, width, window, num_layers=3):
    """Vectors, ragged lengths with an empty row, and a past of 0 to window - 1 tokens."""
    generator = torch.Generator().manual_seed(steps)
    lengths = torch.randint(0, steps + 1, (rows,), generator=generator)
    lengths[0] = steps
    past = [torch.randn(num_layers, 2, rows, window - 1, width, generator=generator) for _ in range(2)]
    num_past = torch.randint(0, window, (1, 1, rows), generator=generator)
    for part in past:  # what is not a token is zero
        for row, count in enumerate(num_past[0, 0]):
            part[:, :, row, : window - 1 - count] = 0
    return torch.randn(2, steps, rows, width, generator=generator), lengths, AttentionState(*past, num_past)


def in_float64(blocks, x, lengths, state, sizes):
    wide = [
        TransformerBlock(projection_dim=x.shape[-1], feedforward_dim=1, num_layers=1).requires_grad_(False)
        for _ in blocks
    ]
    for copy, block in zip(wide, blocks, strict=True):
        for name, parameter in block.named_parameters():
            setattr(copy, name, torch.nn.Parameter(parameter.double(), requires_grad=False))
    if state is not None:
        state = AttentionState(state.past_keys.double(), state.past_values.double(), state.num_past)
    return run_blocks(wide, x.double(), lengths, state, sizes)


def assert_close(ours, theirs, *, atol=1e-5):
    for mine, oracle in zip((*ours[0], *ours[1]), (*theirs[0], *theirs[1]), strict=True):
        torch.testing.assert_close(mine.double(), oracle.double(), atol=atol, rtol=0)


@pytest.mark.parametrize("form", ["float", "integers"])
@pytest.mark.parametrize("with_past", [False, True])
@pytest.mark.parametrize(("steps", "rows", "width", "heads", "feedforward", "window"), SIZES)
def test_ragged_rows_give_what_pytorch_gives_in_float64(
    wide, steps, rows, width, heads, feedforward, window, with_past, form
):
    blocks, sizes = some_blocks(width, feedforward, form=form), AttentionSizes(heads, window)
    x, lengths, past = some_rows(steps, rows, width, window)
    for counts in (lengths, torch.full_like(lengths, steps), torch.zeros_like(lengths)):
        state = past if with_past else None
        assert_close(run_blocks(blocks, x, counts, state, sizes), in_float64(blocks, x, counts, state, sizes))


def test_the_blocks_run_in_c_where_that_is_fast_and_in_pytorch_elsewhere(wide, monkeypatch):
    blocks, sizes = some_blocks(64, 90), AttentionSizes(2, 30)
    x, lengths, _ = some_rows(20, 3, 64, 30)
    calls = []
    real = native.call
    monkeypatch.setattr(native, "call", lambda name, *arguments: calls.append(name) or real(name, *arguments))
    in_c = run_blocks(blocks, x, lengths, None, sizes)
    assert set(calls) == {"elmokit_blocks"}
    calls.clear()
    monkeypatch.setattr(native, "is_wide", lambda: False)
    assert_close(in_c, run_blocks(blocks, x, lengths, None, sizes))
    assert "elmokit_blocks" not in calls


@pytest.mark.parametrize("form", ["float", "integers", "int8"])
def test_a_row_is_equal_to_the_bit_alone_and_in_any_batch(wide, form):
    blocks, sizes = some_blocks(48, 70, form=form), AttentionSizes(3, 20)
    if form == "int8":
        blocks = [Int8Block(block) for block in blocks]
    x, lengths, _ = some_rows(20, 40, 48, 20)  # several tiles
    layers, state = run_blocks(blocks, x, lengths, None, sizes)
    for row in (0, 7, 39):
        own, length = slice(row, row + 1), int(lengths[row])
        alone, after = run_blocks(blocks, x[:, :length, own], lengths[own], None, sizes)
        for mine, together in zip(alone, layers, strict=True):
            assert torch.equal(mine, together[:, :length, own])
        assert torch.equal(after.past_keys, state.past_keys[:, :, own])
        assert torch.equal(after.past_values, state.past_values[:, :, own])


def test_only_the_top_layer_is_the_same_layer(wide):
    blocks, sizes = some_blocks(48, 70), AttentionSizes(3, 20)
    x, lengths, _ = some_rows(20, 5, 48, 20)
    layers, _ = run_blocks(blocks, x, lengths, None, sizes, with_state=False)
    (top,), state = run_blocks(blocks, x, lengths, None, sizes, with_state=False, only_top=True)
    assert torch.equal(top, layers[-1])
    assert state is None


def test_rows_are_divided_among_the_threads_of_the_caller(wide, monkeypatch):
    monkeypatch.setattr(native, "WORK_OF_A_THREAD", 1)
    blocks, sizes = some_blocks(24, 30), AttentionSizes(2, 6)
    x, lengths, past = some_rows(9, 19, 24, 6)
    before = torch.get_num_threads()
    torch.set_num_threads(6)  # three for each direction
    try:
        ours = run_blocks(blocks, x, lengths, past, sizes)
    finally:
        torch.set_num_threads(before)
    assert_close(ours, in_float64(blocks, x, lengths, past, sizes))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_value_that_is_not_finite_is_not_hidden_and_stays_in_its_row(wide, value):
    blocks, sizes = some_blocks(24, 30), AttentionSizes(2, 6)
    x, _, _ = some_rows(6, 3, 24, 6)
    x[:, 2, 1, 5] = value
    layers, _ = run_blocks(blocks, x, torch.full((3,), 6), None, sizes)
    for layer in layers[1:]:
        assert layer[:, :, [0, 2]].isfinite().all()
        assert layer[0, 2:, 1].isnan().all()
        assert layer[1, :3, 1].isnan().all()
        assert layer[0, :2, 1].isfinite().all(), "what was read before does not see it"


@pytest.mark.skipif(not HAS_COMPILER, reason="there is no C compiler, or ELMOKIT_NATIVE is 0")
@pytest.mark.parametrize("highest", [256, 128])
def test_processors_with_narrower_registers_compute_the_same(build, reloaded, monkeypatch, highest):  # noqa: F811
    monkeypatch.setattr(build, "FLAGS", [*build.FLAGS, f"-DHIGHEST={highest}"])
    assert build.compile_steps()
    monkeypatch.setattr(native, "LIBRARY", build.LIBRARY)
    narrow = reloaded()
    monkeypatch.setattr(native, "library", lambda: narrow)
    for steps, rows, width, heads, feedforward, window in SIZES:
        blocks, sizes = some_blocks(width, feedforward), AttentionSizes(heads, window)
        x, lengths, _ = some_rows(steps, rows, width, window)
        packed = [cpu.NativeBlock(*(native.pack(weight[0]) for weight in block.parameters())) for block in blocks]
        layers, _ = cpu.run_blocks(
            packed, x[0].transpose(0, 1), lengths, None, None, sizes, with_state=False, only_top=False
        )
        expected, _ = in_float64(blocks, x, lengths, None, sizes)
        for mine, oracle in zip(layers, expected[1:], strict=True):
            for row, length in enumerate(lengths):
                torch.testing.assert_close(mine[row, :length].double(), oracle[0, :length, row], atol=1e-5, rtol=0)
