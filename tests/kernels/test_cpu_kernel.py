"""The CPU engine against the eager one: values, gradients, threads, changed weights, int8."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from random_layers import random_layer
from torch import Tensor

from elmokit import BiLM, BiLMConfig, kernels
from elmokit.kernels import cpu, eager
from elmokit.kernels.cpu import int8, native, one_row, packed
from elmokit.kernels.cpu import steps as forward_pass
from elmokit.kernels.cpu import threads as cpu_threads
from elmokit.kernels.interface import LSTMState, LSTMWeights

CLIPS = [(None, None), (0.5, 0.4), (0.5, None), (None, 0.4)]


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.fixture(params=[True, False], ids=["native", "PyTorch"])
def library(request, monkeypatch):
    """With the steps in C, where they are compiled, and without them."""
    if not request.param:
        monkeypatch.setattr(native, "library", lambda: None)


def assert_same(ours, theirs, *, atol=1e-5):
    for mine, oracle in zip((ours[0], *ours[1]), (theirs[0], *theirs[1]), strict=True):
        assert mine.shape == oracle.shape
        torch.testing.assert_close(mine, oracle, atol=atol, rtol=0)


@pytest.mark.parametrize(("cell_clip", "proj_clip"), CLIPS)
@pytest.mark.parametrize(
    ("steps", "rows", "width", "cells"),
    [(7, 5, 12, 20), (1, 1, 1, 1), (9, 1, 17, 33), (40, 13, 7, 11), (3, 150, 8, 16), (0, 3, 4, 5), (4, 0, 4, 5)],
)
def test_every_shape_gives_what_eager_gives(steps, rows, width, cells, cell_clip, proj_clip, threads, library):
    inputs, ragged, weights, state = random_layer(steps=steps, rows=rows, width=width, cells=cells)
    for lengths in (ragged, torch.full((2, rows), steps), torch.zeros(2, rows, dtype=torch.long)):
        clips = {"cell_clip": cell_clip, "proj_clip": proj_clip}
        with torch.no_grad():
            theirs = eager.lstm(inputs, lengths, weights, state, **clips)
            assert_same(cpu.lstm(inputs, lengths, weights, state, **clips), theirs)
        with torch.inference_mode():
            assert_same(cpu.lstm(inputs, lengths, weights, state, **clips), theirs)


def test_the_published_small_size_gives_what_eager_gives(threads, library):
    inputs, lengths, weights, state = random_layer(steps=6, rows=9, width=128, cells=1024)
    with torch.no_grad():
        ours = cpu.lstm(inputs, lengths, weights, state, cell_clip=3.0, proj_clip=3.0)
        assert_same(ours, eager.lstm(inputs, lengths, weights, state, cell_clip=3.0, proj_clip=3.0))


def test_without_packed_layouts_plain_products_give_the_same(monkeypatch):
    monkeypatch.setattr(packed, "can_block", lambda: False)
    monkeypatch.setattr(native, "library", lambda: None)
    inputs, lengths, weights, state = random_layer(steps=5, rows=4, width=6, cells=9)
    ours = cpu.lstm(inputs, lengths, weights, state, cell_clip=3.0, proj_clip=3.0)
    assert_same(ours, eager.lstm(inputs, lengths, weights, state, cell_clip=3.0, proj_clip=3.0))


def test_inputs_and_state_are_left_as_they_were(threads, library):
    inputs, lengths, weights, state = random_layer(steps=5, rows=4, width=6, cells=8)
    before = [tensor.clone() for tensor in (inputs, lengths, *weights, *state)]
    cpu.lstm(inputs, lengths, weights, state, cell_clip=3.0, proj_clip=3.0)
    assert all(torch.equal(a, b) for a, b in zip(before, (inputs, lengths, *weights, *state), strict=True))


def test_inputs_may_be_one_tensor_expanded_to_both_directions(threads, library):
    inputs, lengths, weights, state = random_layer(steps=5, rows=4, width=6, cells=8)
    inputs = inputs[0].expand(2, -1, -1, -1)
    with torch.no_grad():
        ours = cpu.lstm(inputs, lengths, weights, state, cell_clip=3.0, proj_clip=3.0)
        assert_same(ours, eager.lstm(inputs, lengths, weights, state, cell_clip=3.0, proj_clip=3.0))


# ---- gradients


def gradients(engine, inputs, lengths, weights, state, clips) -> list[Tensor]:
    leaves = [tensor.clone().requires_grad_() for tensor in (inputs, *weights, *state)]
    outputs, last = engine.lstm(
        leaves[0], lengths, LSTMWeights(*leaves[1:5]), LSTMState(*leaves[5:]), cell_clip=clips[0], proj_clip=clips[1]
    )
    slope = torch.linspace(-1, 1, outputs.numel()).view_as(outputs)
    ((outputs * slope).sum() + last.hidden.square().sum() + last.cell.sin().sum()).backward()
    # without steps eager uses no weight, and its gradient is None instead of zeros
    return [outputs.detach(), *(torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves)]


@pytest.mark.parametrize("clips", CLIPS)
@pytest.mark.parametrize(
    ("steps", "rows", "width", "cells"), [(9, 6, 12, 20), (4, 1, 5, 7), (0, 3, 4, 5), (4, 0, 4, 5)]
)
def test_gradients_are_those_of_eager(steps, rows, width, cells, clips, threads):
    inputs, ragged, weights, state = random_layer(steps=steps, rows=rows, width=width, cells=cells)
    for lengths in (ragged, torch.full((2, rows), steps)):
        ours = gradients(cpu, inputs, lengths, weights, state, clips)
        for mine, oracle in zip(ours, gradients(eager, inputs, lengths, weights, state, clips), strict=True):
            torch.testing.assert_close(mine, oracle, atol=1e-5, rtol=1e-5)


def test_gradients_agree_with_finite_differences():
    inputs, lengths, weights, state = random_layer(steps=4, rows=3, width=2, cells=3)
    leaves = [tensor.double().requires_grad_() for tensor in (inputs, *weights, *state)]

    def run(*leaves):
        outputs, last = cpu.lstm(
            leaves[0], lengths, LSTMWeights(*leaves[1:5]), LSTMState(*leaves[5:]), cell_clip=0.6, proj_clip=0.5
        )
        return outputs, *last

    torch.autograd.gradcheck(run, leaves)


def test_frozen_weights_still_pass_the_gradient_to_their_inputs():
    inputs, lengths, weights, state = random_layer(steps=4, rows=3, width=5, cells=6)
    grads = []
    for engine in (cpu, eager):
        leaf = inputs.clone().requires_grad_()
        engine.lstm(leaf, lengths, weights, state, cell_clip=3.0, proj_clip=3.0)[0].square().sum().backward()
        grads.append(leaf.grad)
    torch.testing.assert_close(*grads, atol=1e-5, rtol=1e-5)


# ---- changed weights


def change_under_no_grad(weight):
    with torch.no_grad():
        weight.mul_(0.5)


def change_through_data(weight):
    weight.data.mul_(0.5)


def change_the_storage(weight):
    weight.data = weight.data * 0.5


def change_by_an_optimizer(weight):
    weight.grad = torch.ones_like(weight)
    torch.optim.SGD([weight], lr=0.1).step()


def change_under_inference_mode(weight):
    with torch.inference_mode():
        weight.mul_(0.5)


@pytest.mark.parametrize(
    "change",
    [
        change_under_no_grad,
        change_through_data,
        change_the_storage,
        change_by_an_optimizer,
        change_under_inference_mode,
    ],
)
@pytest.mark.parametrize("field", ["input", "recurrent", "bias", "projection"])
def test_a_changed_weight_is_never_served_stale(field, change, library):
    inputs, lengths, weights, state = random_layer(steps=3, rows=4, width=24, cells=40)
    weights = LSTMWeights(*(torch.nn.Parameter(weight) for weight in weights))
    with torch.no_grad():
        before = cpu.lstm(inputs, lengths, weights, state, cell_clip=3.0, proj_clip=3.0)
    change(getattr(weights, field))
    with torch.no_grad():
        ours = cpu.lstm(inputs, lengths, weights, state, cell_clip=3.0, proj_clip=3.0)
        theirs = eager.lstm(inputs, lengths, weights, state, cell_clip=3.0, proj_clip=3.0)
    assert_same(ours, theirs)
    assert not torch.allclose(ours[0], before[0], atol=1e-5)


@pytest.mark.parametrize("field", ["input", "recurrent", "projection"])
def test_a_change_of_a_part_of_the_rows_or_columns_is_noticed(field, library):
    inputs, lengths, weights, state = random_layer(steps=2, rows=3, width=64, cells=256)
    for rows, columns in (
        (slice(None), slice(1, None, 2)),
        (slice(1, None, 2), slice(None)),
        (slice(7, 8), slice(None)),
    ):
        with torch.no_grad():
            cpu.lstm(inputs, lengths, weights, state, cell_clip=3.0, proj_clip=3.0)
            getattr(weights, field).data[:, rows, columns] += 0.5
            ours = cpu.lstm(inputs, lengths, weights, state, cell_clip=3.0, proj_clip=3.0)
            assert_same(ours, eager.lstm(inputs, lengths, weights, state, cell_clip=3.0, proj_clip=3.0))


def test_weights_made_in_inference_mode_are_packed_and_watched_too(library):
    with torch.inference_mode():
        inputs, lengths, weights, state = random_layer(steps=3, rows=4, width=6, cells=8)
        for _ in range(2):
            ours = cpu.lstm(inputs, lengths, weights, state, cell_clip=3.0, proj_clip=3.0)
            assert_same(ours, eager.lstm(inputs, lengths, weights, state, cell_clip=3.0, proj_clip=3.0))
            weights.recurrent.mul_(0.5)


def test_a_change_of_a_linear_weight_that_has_gaps_or_is_transposed_is_noticed(library):
    rows = torch.randn(3, 40, generator=torch.Generator().manual_seed(0))
    for weight in (torch.ones(30, 80)[:, ::2], torch.ones(40, 30).t(), torch.ones(30, 40)):
        for _ in range(2):
            torch.testing.assert_close(packed.packed_linear(weight).product(rows), rows @ weight.t())
            weight.data[7] += 0.5  # not counted by autograd


def test_packed_weights_are_kept_as_long_as_the_weights_and_no_longer():
    gc.collect()
    before = len(packed._cache)
    inputs, lengths, weights, state = random_layer(steps=3, rows=4, width=6, cells=8)
    cpu.lstm(inputs, lengths, weights, state, cell_clip=3.0, proj_clip=3.0)
    first = packed.packed_direction(weights.input, 1)
    assert packed.packed_direction(weights.input, 1) is first
    assert len(packed._cache) == before + 3
    del weights, first
    gc.collect()
    assert len(packed._cache) == before


# ---- threads


def test_concurrent_callers_get_what_each_would_get_alone(threads, library):
    layers = [random_layer(steps=6, rows=5 + k, width=32, cells=48, seed=k) for k in range(4)]

    def run(layer):
        torch.set_num_threads(threads)
        with torch.no_grad():
            return [cpu.lstm(*layer, cell_clip=3.0, proj_clip=3.0)[0] for _ in range(5)]

    alone = [run(layer)[0] for layer in layers]
    with ThreadPoolExecutor(4) as callers:
        for wanted, results in zip(alone, callers.map(run, layers), strict=True):
            assert all(torch.equal(result, wanted) for result in results)


def test_thread_counts_of_the_caller_and_of_new_threads_stay_as_they_were():
    before = torch.get_num_threads()
    layer = random_layer(steps=3, rows=2, width=4, cells=6)
    try:
        for count in (4, 2, 6):
            torch.set_num_threads(count)
            cpu.lstm(*layer, cell_clip=3.0, proj_clip=3.0)
            seen = []
            thread = threading.Thread(target=lambda seen=seen: seen.append(torch.get_num_threads()))
            thread.start()
            thread.join()
            assert (torch.get_num_threads(), seen) == (count, [count])
    finally:
        torch.set_num_threads(before)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system does not bind threads to CPUs")
def test_the_directions_have_different_cpus_and_the_caller_keeps_its_own(monkeypatch):
    own, seen = os.sched_getaffinity(0), {}
    if len(own) < 2:
        pytest.skip("there is one CPU")

    def run(d):
        seen[d] = os.sched_getaffinity(0)

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        monkeypatch.setattr(cpu_threads, "FEW_CPUS", len(own))
        cpu.in_parallel(run, 2)
    finally:
        torch.set_num_threads(before)
    assert seen[0] | seen[1] == own
    assert not seen[0] & seen[1]
    assert os.sched_getaffinity(0) == own


def test_an_error_in_one_direction_reaches_the_caller(threads):
    def run(d):
        if d == 1:
            raise ValueError("the second direction fails")

    with pytest.raises(ValueError, match="second direction"):
        cpu.in_parallel(run, 2)


def test_a_forked_child_starts_its_own_threads():
    code = """
import os, torch
from elmokit.kernels import cpu
torch.set_num_threads(2)
ran = []
cpu.in_parallel(ran.append, 2)
child = os.fork()
if child == 0:
    cpu.in_parallel(ran.append, 2)
    os._exit(len(ran))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


# ---- int8


def test_int8_products_stay_close_to_float_ones_token_by_token(threads, library):
    inputs, lengths, weights, state = random_layer(steps=8, rows=6, width=128, cells=256)
    with torch.no_grad():
        theirs, _ = eager.lstm(inputs, lengths, weights, state, cell_clip=3.0, proj_clip=3.0)
        ours, _ = cpu.lstm(inputs, lengths, cpu.quantize(weights), state, cell_clip=3.0, proj_clip=3.0)
    active = theirs.abs().sum(dim=-1) > 0
    cosine = torch.cosine_similarity(ours[active], theirs[active], dim=-1)
    assert active.any()
    assert cosine.min() > 0.999
    assert not torch.equal(ours, theirs)
    assert not ours[~active].any()


def test_an_int8_product_is_off_by_no_more_than_its_rounding(library):
    weight, rows = torch.randn(50, 30), torch.randn(7, 50)
    matrix = cpu.quantize_matrix(weight)
    # each factor is off by at most half a step
    bound = (
        rows.abs().amax(1, keepdim=True) / 254 * weight.abs().sum(0)
        + rows.abs().sum(1, keepdim=True) * weight.abs().amax(0) / 254
        + 50 * rows.abs().amax(1, keepdim=True) * weight.abs().amax(0) / 254**2
    )
    assert ((matrix.product(rows) - rows @ weight).abs() <= bound).all()
    bias, plus = torch.randn(30), torch.randn(7, 30)
    torch.testing.assert_close(matrix.product(rows, bias=bias), matrix.product(rows) + bias)
    torch.testing.assert_close(matrix.product(rows, plus=plus.clone()), matrix.product(rows) + plus)


def test_an_int8_sentence_is_the_same_alone_and_in_any_batch(library):
    inputs, _, weights, state = random_layer(steps=6, rows=5, width=16, cells=24)
    quantized, lengths = cpu.quantize(weights), torch.full((2, 5), 6)
    together, _ = cpu.lstm(inputs, lengths, quantized, state, cell_clip=3.0, proj_clip=3.0)
    for row in range(5):
        one = slice(row, row + 1)
        alone, _ = cpu.lstm(
            inputs[:, :, one], lengths[:, one], quantized, LSTMState(*(part[:, one] for part in state)),
            cell_clip=3.0, proj_clip=3.0,
        )  # fmt: skip
        torch.testing.assert_close(alone, together[:, :, one], atol=1e-6, rtol=0)


@pytest.mark.parametrize("is_int8", [False, True])
@pytest.mark.parametrize("clip", [3.0, 0.1, None])
def test_one_sentence_runs_in_torchscript_and_without_it_gives_the_same(monkeypatch, threads, is_int8, clip):
    inputs, _, float_weights, state = random_layer(steps=7, rows=1, width=16, cells=24)
    weights = cpu.quantize(float_weights) if is_int8 else float_weights
    lengths = torch.full((2, 1), 7)
    monkeypatch.setattr(native, "library", lambda: None)
    with torch.no_grad():
        scripted = cpu.lstm(inputs, lengths, weights, state, cell_clip=clip, proj_clip=clip)
        monkeypatch.setattr(forward_pass, "in_torchscript", lambda function: function)
        plain = cpu.lstm(inputs, lengths, weights, state, cell_clip=clip, proj_clip=clip)
    torch.testing.assert_close(scripted, plain, atol=0, rtol=0)


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="torch.jit does not support this Python")
def test_torchscript_compiles_the_steps_once_and_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled = [one_row.in_torchscript(function) for function in (one_row.float_steps, one_row.int8_steps)]
    assert all(isinstance(function, torch.jit.ScriptFunction) for function in compiled)
    assert one_row.in_torchscript(one_row.float_steps) is compiled[0]


def test_a_function_that_torchscript_does_not_compile_runs_as_python():
    def not_in_torchscript(*values: int, **names: int) -> object:
        return {**names, "values": values}

    assert one_row.in_torchscript(not_in_torchscript)(1, b=2) == {"b": 2, "values": (1,)}


def test_zeros_quantize_to_zeros(library):
    matrix = cpu.quantize_matrix(torch.zeros(4, 3))
    assert not matrix.product(torch.zeros(2, 4)).any()


def test_int8_is_tried_in_a_child_where_the_cpu_announces_amx(monkeypatch):
    attempts = []

    def attempt(returncode):
        def run(command, *, capture_output):
            attempts.append(command)
            return subprocess.CompletedProcess(command, returncode)

        return run

    monkeypatch.setattr(int8, "announces_amx", lambda: True)
    monkeypatch.setattr(subprocess, "run", attempt(0))
    assert int8.int8_works.__wrapped__()
    monkeypatch.setattr(subprocess, "run", attempt(-4))  # SIGILL
    assert not int8.int8_works.__wrapped__()
    assert len(attempts) == 2
    monkeypatch.setattr(int8, "int8_works", lambda: False)
    with pytest.raises(ValueError, match=r"quantize='int8'.*AMX"):
        cpu.quantize_matrix(torch.zeros(2, 2))


def saturating_int_mm(rows, values):
    """Sums of pairs in 16 bits with rows shifted to unsigned, as oneDNN computes on CPUs without VNNI."""
    shifted, values = rows.long() + 128, values.long()
    pairs = (shifted.unsqueeze(2) * values).unflatten(1, (-1, 2)).sum(dim=2).clamp(-(2**15), 2**15 - 1)
    return (pairs.sum(dim=1) - 128 * values.sum(dim=0)).to(torch.int32)


def test_int8_products_that_overflow_are_computed_in_float32(monkeypatch):
    generator = torch.Generator().manual_seed(3)
    rows, weight = torch.rand(9, 64, generator=generator), torch.rand(64, 48, generator=generator)
    exact = [cpu.quantize_matrix(weight).product(part) for part in (rows, rows[:1])]
    monkeypatch.setattr(torch, "_int_mm", saturating_int_mm)
    assert not int8.int8_is_exact.__wrapped__()
    monkeypatch.setattr(int8, "int8_is_exact", lambda: False)
    matrix = cpu.quantize_matrix(weight)
    for part, expected in zip((rows, rows[:1]), exact, strict=True):
        torch.testing.assert_close(matrix.product(part), expected, atol=1e-4, rtol=1e-6)
        row_scales = part.double().abs().amax(dim=1, keepdim=True) / 127
        scales = weight.double().abs().amax(dim=0) / 127
        integers = (part / row_scales).round() @ (weight / scales).round()
        torch.testing.assert_close(matrix.product(part).double(), integers * row_scales * scales, atol=1e-4, rtol=1e-5)


def test_int8_products_of_this_cpu_are_exact_or_replaced():
    ones = torch.full((32, 64), 127, dtype=torch.int8)
    is_exact = bool((torch._int_mm(ones, ones.t().contiguous()) == 127 * 127 * 64).all())
    assert int8.int8_is_exact() <= is_exact
    assert (cpu.quantize_matrix(torch.ones(64, 8)).by_rows.dtype == torch.int8) == int8.int8_is_exact()


def test_a_cpu_that_does_not_list_its_features_announces_nothing(monkeypatch):
    def missing(*_, **__):
        raise FileNotFoundError

    monkeypatch.setattr("builtins.open", missing)
    assert not int8.announces_amx()


# ---- what the engine takes


def test_the_engine_takes_float32_on_cpu_and_leaves_everything_else_to_eager():
    x = torch.zeros(2, 3, 4, 5)
    assert cpu.is_available(x)
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        assert not cpu.is_available(x.to(dtype))
    assert not cpu.is_available(x.to("meta"))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not cpu.is_available(x)


# ---- linear layers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_rows", [0, 1, 2, 64, 65, 200])
def test_a_packed_linear_layer_gives_the_products_of_torch(num_rows, library):
    torch.manual_seed(num_rows)
    rows, weight, bias = torch.randn(num_rows, 24), torch.randn(40, 24), torch.randn(40)
    expected = torch.nn.functional.linear(rows.double(), weight.double(), bias.double())
    torch.testing.assert_close(kernels.linear(rows, weight, bias).double(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("num_rows", [1, 2, 31, 64, 65])
def test_a_row_of_a_packed_linear_layer_has_the_same_product_among_any_others(num_rows, library):
    torch.manual_seed(num_rows)
    rows, weight, bias = torch.randn(200, 96), torch.randn(80, 96), torch.randn(80)
    together = kernels.linear(rows, weight, bias)
    torch.testing.assert_close(kernels.linear(rows[-num_rows:], weight, bias), together[-num_rows:], rtol=0, atol=0)


def test_a_changed_weight_of_a_linear_layer_is_packed_again(library):
    rows, weight, bias = torch.randn(3, 24), torch.nn.Parameter(torch.randn(40, 24)), torch.zeros(40)
    with torch.no_grad():
        before = kernels.linear(rows, weight, bias)
        weight.data.mul_(2.0)
        torch.testing.assert_close(kernels.linear(rows, weight, bias), 2.0 * before, rtol=1e-5, atol=1e-5)


def test_a_linear_layer_in_training_has_gradients():
    rows, weight, bias = torch.randn(3, 4), torch.randn(5, 4, requires_grad=True), torch.zeros(5)
    kernels.linear(rows, weight, bias).sum().backward()
    torch.testing.assert_close(weight.grad, rows.sum(dim=0).expand(5, 4))


# ---- PyTorch beside the directions -----------------------------------------------------------------------------------


@pytest.fixture
def two_cores(monkeypatch):
    """A caller with two cores, on a machine with few."""
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    cpu_threads.openmp_setter.cache_clear()
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)
    cpu_threads.openmp_setter.cache_clear()


def in_new_thread(call):
    with ThreadPoolExecutor(1) as new_thread:
        return new_thread.submit(call).result()


def test_without_openmp_the_caller_has_one_core_and_the_directions_have_theirs(two_cores):
    if cpu_threads.openmp_setter() is None:
        pytest.skip("PyTorch has no OpenMP here")
    ran_in, cores = [], []

    def run(d):
        ran_in.append(threading.current_thread())
        cores.append(torch.get_num_threads())

    with cpu.without_openmp():
        assert torch.get_num_threads() == 1
        assert in_new_thread(torch.get_num_threads) == 2
        with cpu.without_openmp():
            cpu.in_parallel(run, 2)
        assert torch.get_num_threads() == 1
        assert cpu_threads.cores_of_caller() == 2
    assert len(set(ran_in)) == 2
    assert cores == [1, 1]
    assert torch.get_num_threads() == cpu_threads.cores_of_caller() == 2


@pytest.mark.parametrize("architecture", ["lstm", "transformer"])
def test_beside_the_layers_of_either_architecture_the_caller_has_one_core(two_cores, architecture):
    if cpu_threads.openmp_setter() is None:
        pytest.skip("PyTorch has no OpenMP here")
    sizes = {"lstm": {"cell_dim": 8}, "transformer": {"num_heads": 2, "feedforward_dim": 8, "attention_window": 4}}
    bilm = BiLM(BiLMConfig(architecture=architecture, projection_dim=8, filters=((1, 4),), **sizes[architecture]))
    with torch.no_grad(), bilm.without_openmp():
        assert torch.get_num_threads() == 1
    with bilm.without_openmp():
        assert torch.get_num_threads() == 2, "a backward pass may follow"


def test_the_caller_has_its_cores_again_after_an_error(two_cores):
    with pytest.raises(KeyError), cpu.without_openmp():
        raise KeyError
    assert torch.get_num_threads() == 2


def test_on_a_machine_with_many_cpus_pytorch_keeps_its_threads(two_cores, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    cpu_threads.openmp_setter.cache_clear()
    with cpu.without_openmp():
        assert torch.get_num_threads() == 2
