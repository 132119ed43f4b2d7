"""The steps in C against the eager engine in float64, and PyTorch in their place."""

from __future__ import annotations

import importlib.util
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from random_layers import random_layer

from elmokit.kernels import cpu, eager
from elmokit.kernels.cpu import native
from elmokit.kernels.interface import LSTMState, LSTMWeights
from elmokit.network import CharacterEncoder

ROOT = Path(__file__).resolve().parents[2]
HAS_COMPILER = (
    any(map(shutil.which, ("cc", "gcc", "clang")))
    and sys.platform != "win32"
    and os.environ.get("ELMOKIT_NATIVE") != "0"
)
CLIPS = [(None, None), (0.5, 0.4)]
# no width is a multiple of a register, or all are
SIZES = [(9, 1, 17, 33), (6, 2, 5, 3), (8, 3, 64, 16), (5, 11, 65, 31), (4, 1, 128, 512), (1, 1, 1, 1)]


@pytest.fixture
def library():
    if native.library() is None:
        pytest.skip("the LSTM steps are not compiled: there is no C compiler, or ELMOKIT_NATIVE is 0")
    return native.library()


@pytest.fixture
def wide(library):
    if not native.is_wide():
        pytest.skip("this processor has no AVX-512 with VNNI")


@pytest.fixture
def without_library(monkeypatch):
    monkeypatch.setattr(native, "library", lambda: None)


def integers_times_scales(weight):
    """The nearest weight that is int8 times a scale per column, as the files of the embedded models hold it."""
    scales = (weight.abs().amax(dim=-2, keepdim=True) / 127).to(torch.bfloat16).float()
    return (weight / scales).round().clamp(-127, 127) * scales


def a_layer(*, steps, rows, width, cells, form="float"):
    inputs, _, weights, state = random_layer(steps=steps, rows=rows, width=width, cells=cells, seed=steps + 10 * rows)
    if form == "integers":
        weights = LSTMWeights(*(part if part.ndim == 2 else integers_times_scales(part) for part in weights))
    return inputs, weights, state


def in_float64(inputs, lengths, weights, state, **clips):
    wide = (LSTMWeights(*(part.double() for part in weights)), LSTMState(*(part.double() for part in state)))
    return eager.lstm(inputs.double(), lengths, *wide, **clips)


def assert_close(ours, theirs, *, atol=1e-5):
    for mine, oracle in zip((ours[0], *ours[1]), (theirs[0], *theirs[1]), strict=True):
        torch.testing.assert_close(mine.double(), oracle.double(), atol=atol, rtol=0)


@pytest.mark.skipif(not HAS_COMPILER, reason="there is no C compiler, or ELMOKIT_NATIVE is 0")
def test_where_there_is_a_compiler_the_steps_are_compiled():
    assert native.library() is not None, "compile them with: python hatch_build.py"


@pytest.mark.parametrize("form", ["float", "integers"])
@pytest.mark.parametrize("clips", CLIPS)
@pytest.mark.parametrize(("steps", "rows", "width", "cells"), SIZES)
def test_ragged_rows_give_what_eager_gives_in_float64(library, steps, rows, width, cells, clips, form):
    inputs, weights, state = a_layer(steps=steps, rows=rows, width=width, cells=cells, form=form)
    ragged = torch.randint(0, steps + 1, (2, rows), generator=torch.Generator().manual_seed(1))
    bounds = {"cell_clip": clips[0], "proj_clip": clips[1]}
    for lengths in (ragged, torch.full((2, rows), steps), torch.zeros(2, rows, dtype=torch.long)):
        with torch.no_grad():
            ours = cpu.lstm(inputs, lengths, weights, state, **bounds)
        assert_close(ours, in_float64(inputs, lengths, weights, state, **bounds))


@pytest.mark.parametrize("form", ["float", "integers"])
def test_pytorch_gives_the_same_where_the_library_is_missing(without_library, form):
    for steps, rows, width, cells in SIZES:
        inputs, weights, state = a_layer(steps=steps, rows=rows, width=width, cells=cells, form=form)
        lengths = torch.full((2, rows), steps)
        with torch.no_grad():
            ours = cpu.lstm(inputs, lengths, weights, state, cell_clip=0.5, proj_clip=0.4)
        assert_close(ours, in_float64(inputs, lengths, weights, state, cell_clip=0.5, proj_clip=0.4))
    assert not native.is_fast(1)
    assert not native.is_wide()


def test_rows_are_divided_among_the_threads_of_the_caller(library, monkeypatch):
    monkeypatch.setattr(native, "WORK_OF_A_THREAD", 1)
    inputs, weights, state = a_layer(steps=5, rows=19, width=20, cells=24)
    lengths = torch.randint(0, 6, (2, 19), generator=torch.Generator().manual_seed(2))
    before = torch.get_num_threads()
    torch.set_num_threads(6)  # three for each direction
    try:
        with torch.no_grad():
            ours = cpu.lstm(inputs, lengths, weights, state, cell_clip=3.0, proj_clip=3.0)
    finally:
        torch.set_num_threads(before)
    assert_close(ours, in_float64(inputs, lengths, weights, state, cell_clip=3.0, proj_clip=3.0))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("form", ["float", "integers", "int8"])
def test_a_value_that_is_not_finite_is_not_hidden(library, form, value):
    inputs, weights, state = a_layer(steps=3, rows=2, width=8, cells=8, form=form)
    inputs[:, 1, 1, 2] = value
    given = cpu.quantize(weights) if form == "int8" else weights
    with torch.no_grad():
        outputs, _ = cpu.lstm(inputs, torch.full((2, 2), 3), given, state, cell_clip=None, proj_clip=None)
    assert outputs[:, 1, 0].isfinite().all()
    if value != value or form == "int8":
        assert outputs[:, 1, 1].isnan().all()


def test_large_values_saturate_as_the_exact_functions_do(library):
    inputs, weights, state = a_layer(steps=2, rows=1, width=8, cells=40)
    lengths = torch.full((2, 1), 2)
    for factor in (1e2, 1e4, 1e30):
        with torch.no_grad():
            ours = cpu.lstm(inputs * factor, lengths, weights, state, cell_clip=3.0, proj_clip=None)
        assert_close(ours, in_float64(inputs * factor, lengths, weights, state, cell_clip=3.0, proj_clip=None))


@pytest.mark.parametrize("form", ["float", "integers", "int8"])
@pytest.mark.parametrize(("width", "cells"), [(16, 24), (17, 33), (64, 128)])
def test_a_row_is_equal_to_the_bit_alone_and_in_any_batch(wide, width, cells, form):
    inputs, weights, state = a_layer(steps=6, rows=7, width=width, cells=cells, form=form)
    weights = cpu.quantize(weights) if form == "int8" else weights
    lengths = torch.tensor([6, 2, 5, 6, 1, 3, 6]).expand(2, -1)
    together = cpu.lstm(inputs, lengths, weights, state, cell_clip=3.0, proj_clip=3.0)
    for row in range(7):
        one = slice(row, row + 1)
        own = LSTMState(*(part[:, one] for part in state))
        alone = cpu.lstm(inputs[:, :, one], lengths[:, one], weights, own, cell_clip=3.0, proj_clip=3.0)
        assert torch.equal(alone[0], together[0][:, :, one])
        assert all(torch.equal(mine, all_rows[:, one]) for mine, all_rows in zip(alone[1], together[1], strict=True))


# ---- products --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_rows", [0, 1, 2, 3, 7, 130])
@pytest.mark.parametrize(("depth", "columns"), [(1, 1), (17, 70), (64, 64), (300, 5), (128, 192)])
def test_products_are_those_of_float64(library, num_rows, depth, columns):
    generator = torch.Generator().manual_seed(depth)
    rows, bias = torch.randn(num_rows, depth, generator=generator), torch.randn(columns, generator=generator)
    weight = torch.randn(depth, columns, generator=generator)
    for matrix in (weight, integers_times_scales(weight)):
        packed = native.pack(matrix)
        expected = rows.double() @ matrix.double()
        torch.testing.assert_close(native.product(rows, packed, None).double(), expected, atol=1e-4, rtol=1e-5)
        torch.testing.assert_close(native.product(rows, packed, bias).double(), expected + bias, atol=1e-4, rtol=1e-5)


def test_a_weight_is_packed_as_integers_only_if_it_is_exactly_that():
    weight = integers_times_scales(torch.randn(70, 30, generator=torch.Generator().manual_seed(0)))
    scales = native.exact_scales(weight)
    assert scales is not None
    assert torch.equal((weight / scales).round() * scales, weight)
    assert native.pack(weight).values.dtype == torch.int8
    weight[69, 29] *= 1 + 1e-6
    assert native.exact_scales(weight) is None
    assert native.pack(weight).values.dtype == torch.float32
    weight[0, 0] = float("nan")
    assert native.exact_scales(weight) is None


def test_zeros_and_empty_weights_have_products(library):
    for shape in ((0, 3), (4, 0), (4, 3)):
        packed = native.pack(torch.zeros(shape))
        assert torch.equal(native.product(torch.ones(2, shape[0]), packed, None), torch.zeros(2, shape[1]))


# ---- scores ----------------------------------------------------------------------------------------------------------


def log_sums(*blocks):
    """The log of the sum of the exponentials of each row of (scores, bias)."""
    num_rows = len(blocks[0][0])
    peaks, sums = torch.full((num_rows,), -torch.inf), torch.zeros(num_rows, dtype=torch.float64)
    for scores, bias in blocks:
        native.add_scores(scores, bias, peaks, sums)
    return peaks + sums.log()


def expected_log_sums(*blocks):
    return torch.cat([(scores + bias).double() for scores, bias in blocks], dim=1).logsumexp(dim=1)


def test_many_small_blocks_are_not_lost_beside_a_large_score(library):
    one = (torch.tensor([[0.0]]), torch.zeros(1))
    small = (torch.full((1, 70), -22.0), torch.zeros(70))
    blocks = [one, *([small] * 200)]  # each is less than the last bit of 1 in float32
    torch.testing.assert_close(log_sums(*blocks), expected_log_sums(*blocks), atol=0, rtol=1e-6)


@pytest.mark.parametrize("factor", [1e-3, 1.0, 30.0, 1e4])
@pytest.mark.parametrize(
    ("num_rows", "columns"), [(1, (1,)), (0, (3,)), (3, (64, 5)), (9, (131, 512, 1)), (2, (20011,))]
)
def test_sums_of_exponentials_are_those_of_float64(library, num_rows, columns, factor):
    generator = torch.Generator().manual_seed(num_rows)
    blocks = [
        (factor * torch.randn(num_rows, m, generator=generator), torch.randn(m, generator=generator)) for m in columns
    ]
    torch.testing.assert_close(log_sums(*blocks), expected_log_sums(*blocks), atol=1e-6, rtol=1e-7)


def test_a_score_far_below_the_largest_adds_nothing_wherever_the_largest_is(library):
    for place in (0, 63, 64, 99):
        low = torch.full((1, 100), -1e30)
        high = low.clone()
        high[0, place] = 1e4
        bias = torch.zeros(100)
        for blocks in ([(high, bias)], [(low, bias), (high, bias)], [(high, bias), (low, bias)]):
            assert log_sums(*blocks).item() == 1e4


@pytest.mark.parametrize("num_columns", [2, 64, 100])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_score_that_is_not_finite_gives_what_it_gives_in_pytorch(library, value, num_columns):
    for other in (0.0, torch.nan, torch.inf, -torch.inf):
        for place in (0, num_columns - 1):
            scores, bias = torch.full((3, num_columns), other), torch.zeros(num_columns)
            scores[1, place] = value
            expected = expected_log_sums((scores, bias))
            torch.testing.assert_close(log_sums((scores, bias)), expected, equal_nan=True)
            for blocks in (
                [(scores, bias), (torch.ones(3, 7), torch.ones(7))],
                [(torch.ones(3, 7), torch.ones(7)), (scores, bias)],
            ):
                expected = expected_log_sums(*blocks)
                torch.testing.assert_close(log_sums(*blocks), expected, equal_nan=True)


# ---- int8 ------------------------------------------------------------------------------------------------------------


def test_int8_products_are_exact_sums_times_the_scales(wide):
    generator = torch.Generator().manual_seed(5)
    for depth, columns in ((1, 1), (17, 70), (1536, 64)):
        rows, weight = torch.randn(9, depth, generator=generator), torch.randn(depth, columns, generator=generator)
        weight[:, 0] = weight.abs().max()  # the largest sums
        matrix = cpu.quantize_matrix(weight)
        row_scales = rows.double().abs().amax(dim=1, keepdim=True) / 127
        sums = (rows.double() / row_scales).round() @ matrix.by_rows.double()
        expected = sums * row_scales * matrix.scales.double()
        torch.testing.assert_close(matrix.product(rows).double(), expected, atol=0, rtol=1e-6)


def test_int8_weights_with_and_without_the_library_compute_the_same(wide, monkeypatch):
    inputs, float_weights, state = a_layer(steps=6, rows=3, width=24, cells=40)
    weights, lengths = pickle.loads(pickle.dumps(cpu.quantize(float_weights))), torch.full((2, 3), 6)
    ours = cpu.lstm(inputs, lengths, weights, state, cell_clip=3.0, proj_clip=3.0)
    monkeypatch.setattr(native, "library", lambda: None)  # where the file is read on another machine
    theirs = cpu.lstm(inputs, lengths, weights, state, cell_clip=3.0, proj_clip=3.0)
    assert_close(ours, theirs, atol=2e-3)  # the last bit of a gate can move a rounded value by a step


# ---- the library -----------------------------------------------------------------------------------------------------


@pytest.fixture
def reloaded():
    """`native.library` for another file; the one of this process stays as it is."""
    return native.library.__wrapped__


def test_a_missing_a_damaged_and_a_stale_library_are_not_used(library, reloaded, monkeypatch, tmp_path, caplog):
    caplog.set_level("DEBUG", logger=native.__name__)
    damaged, source = tmp_path / "damaged.so", tmp_path / "steps.c"
    damaged.write_bytes(b"not a library")
    source.write_text("int another;")
    for name, value in (("LIBRARY", tmp_path / "missing.so"), ("LIBRARY", damaged), ("SOURCES", (source,))):
        with monkeypatch.context() as patch:
            patch.setattr(native, name, value)
            assert reloaded() is None
    assert len(caplog.records) == 3
    assert {record.levelname for record in caplog.records} == {"DEBUG"}
    assert reloaded() is not None


def test_elmokit_native_0_leaves_the_library_aside(reloaded, monkeypatch):
    monkeypatch.setenv("ELMOKIT_NATIVE", "0")
    assert reloaded() is None


@pytest.fixture
def build(monkeypatch, tmp_path):
    """`hatch_build.py`, writing into a folder of the test."""
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "LIBRARY", tmp_path / "libsteps.so")
    return module


@pytest.mark.skipif(not HAS_COMPILER, reason="there is no C compiler, or ELMOKIT_NATIVE is 0")
def test_a_build_compiles_the_source_without_a_warning(build, reloaded, monkeypatch):
    monkeypatch.setattr(
        build, "FLAGS", [flag for flag in build.FLAGS if flag != "-w"] + ["-Wall", "-Wextra", "-Werror"]
    )
    monkeypatch.setenv("ELMOKIT_NATIVE", "1")
    assert build.compile_steps()
    monkeypatch.delenv("ELMOKIT_NATIVE")
    monkeypatch.setattr(native, "LIBRARY", build.LIBRARY)
    assert reloaded() is not None


@pytest.mark.skipif(not HAS_COMPILER, reason="there is no C compiler, or ELMOKIT_NATIVE is 0")
@pytest.mark.parametrize("highest", [256, 128])
def test_processors_with_narrower_registers_compute_the_same_row(build, reloaded, monkeypatch, highest):
    monkeypatch.setattr(build, "FLAGS", [*build.FLAGS, f"-DHIGHEST={highest}"])
    assert build.compile_steps()
    monkeypatch.setattr(native, "LIBRARY", build.LIBRARY)
    narrow = reloaded()
    monkeypatch.setattr(native, "library", lambda: narrow)
    assert native.is_fast(1)
    assert not native.is_fast(2)
    for form in ("float", "integers"):
        for steps, width, cells in ((9, 17, 33), (4, 128, 512)):
            inputs, weights, state = a_layer(steps=steps, rows=1, width=width, cells=cells, form=form)
            lengths = torch.full((2, 1), steps)
            with torch.no_grad():
                ours = cpu.lstm(inputs, lengths, weights, state, cell_clip=3.0, proj_clip=3.0)
            assert_close(ours, in_float64(inputs, lengths, weights, state, cell_clip=3.0, proj_clip=3.0))
    generator = torch.Generator().manual_seed(highest)
    blocks = [(torch.randn(3, m, generator=generator), torch.randn(m, generator=generator)) for m in (131, 64, 5)]
    torch.testing.assert_close(log_sums(*blocks), expected_log_sums(*blocks), atol=1e-6, rtol=1e-7)
    encoder = CharacterEncoder(
        char_dim=3,
        filters=[(2, 70)],
        activation="tanh",
        num_highways=1,
        projection_dim=5,
        max_characters=9,
        num_characters=30,
    ).requires_grad_(False)
    (convolution,), (highway,) = encoder.convolutions, encoder.highways
    transform, carry, projection = (
        cpu.NativeLinear(native.pack(layer.weight.t()), layer.bias)
        for layer in (highway.transform, highway.carry, encoder.projection)
    )
    filters = [(convolution.weight, convolution.bias)]
    words = cpu.WordEncoder(encoder.char_embedding, 30, filters, True, [(transform, carry)], projection)
    ids = torch.randint(0, 31, (13, 9), generator=generator)
    torch.testing.assert_close(cpu.encode_words(ids, words), encoder(ids), atol=1e-5, rtol=1e-5)


def test_a_build_without_a_compiler_is_pure_python_unless_it_must_not_be(build, monkeypatch, tmp_path):
    monkeypatch.setattr(build.sys, "platform", "linux")
    monkeypatch.setenv("CC", str(tmp_path / "no-compiler"))
    monkeypatch.delenv("ELMOKIT_NATIVE", raising=False)
    assert not build.compile_steps()
    monkeypatch.setenv("ELMOKIT_NATIVE", "1")
    with pytest.raises(RuntimeError, match=r"ELMOKIT_NATIVE=1.*no-compiler"):
        build.compile_steps()
    monkeypatch.setenv("ELMOKIT_NATIVE", "0")
    monkeypatch.setenv("CC", "cc")
    assert not build.compile_steps()
    assert list(tmp_path.iterdir()) == []


def test_a_forked_child_computes_with_threads_of_its_own(library):
    code = """
import os, torch
from elmokit.kernels.cpu import native
native.WORK_OF_A_THREAD = 1
torch.set_num_threads(2)
packed, rows = native.pack(torch.ones(8, 8)), torch.ones(9, 8)
assert native.product(rows, packed, None).sum() == 576
child = os.fork()
if child == 0:
    os._exit(int(native.product(rows, packed, None).sum() != 576))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
