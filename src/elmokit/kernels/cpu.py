"""The clipped, projected LSTM on CPU cores, in float32, with and without gradients.

Enters: the tensors of one layer (see `interface`), or their int8 form from `quantize`.  Leaves: what `eager` leaves,
within 1e-5, and the same gradients.

What makes it fast, most first:
- weights are packed once into oneDNN's blocked layout: a product of 32 rows reads 67 MB of weights at twice the speed;
- inputs are multiplied for many steps at once, a few hundred rows at a time, so that gates stay in the cache;
- rows are sorted by length: those alive at a step are a prefix, and only they are computed;
- tanh is written as a sigmoid, which PyTorch computes six times faster;
- the two directions run in two threads with half of the cores each, and never wait for each other;
- in training, all weight gradients are large products after the loop.
"""

from __future__ import annotations

import functools
import os
import platform
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.weak import WeakIdKeyDictionary

from elmokit.kernels.eager import clip
from elmokit.kernels.interface import LSTMState, LSTMWeights

HOISTED_ROWS = 128  # rows of the input product at a time: enough for full speed, few enough to stay in the cache
PACKED_FOR_ROWS = 64  # oneDNN's layout for this many rows is also the best for fewer and for more
FEW_ROWS = 64  # that are multiplied as they are: a step of the LSTM
FINGERPRINT = 1024  # elements of a weight that tell whether it was written behind autograd's back


def is_available(inputs: Tensor) -> bool:
    """Whether this engine takes layers with such `inputs`; other dtypes, autocast and tracing are eager's."""
    return (
        inputs.device.type == "cpu"
        and inputs.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )


def lstm(
    inputs: Tensor,
    lengths: Tensor,
    weights: LSTMWeights | Int8Weights,
    state: LSTMState,
    *,
    cell_clip: float | None,
    proj_clip: float | None,
) -> tuple[Tensor, LSTMState]:
    """Run one layer, all directions (see `interface`); int8 weights take no gradient."""
    clips = Clips(cell_clip, proj_clip)
    if isinstance(weights, LSTMWeights) and torch.is_grad_enabled():
        differentiable = (inputs, *weights, *state)
        if any(tensor.requires_grad for tensor in differentiable):
            outputs, hidden, cell = Differentiable.apply(lengths, clips, *differentiable)  # type: ignore[no-untyped-call]
            return outputs, LSTMState(hidden, cell)
    # the caller's thread computes nothing: its helpers would go on spinning for a while on the cores of the directions
    outputs = inputs.new_empty(inputs.shape)
    after = LSTMState(*(part.new_empty(part.shape) for part in state))

    def run(d: int) -> None:
        layer, live = layer_of(weights, d), live_rows(lengths[d], inputs.shape[1])
        rows, hidden, cell = live.gather(inputs[d]), live.sort(state.hidden[d]), live.sort(state.cell[d])
        results = torch.empty_like(rows)
        walk(rows, live.counts, layer, LSTMState(hidden, cell), results, clips, d)
        live.scatter(results, outputs[d])
        live.unsort(hidden, after.hidden[d])
        live.unsort(cell, after.cell[d])

    with torch.no_grad():
        in_parallel(run, len(inputs))
    return outputs, after


class Clips(NamedTuple):
    """Bounds of the cells and of the outputs; None does not clip."""

    cell: float | None
    proj: float | None


class Matrix(Protocol):
    """A weight (K, N) in whatever form multiplies best."""

    def product(self, rows: Tensor, *, bias: Tensor | None = None, plus: Tensor | None = None) -> Tensor:
        """rows (n, K) @ weight, and either `bias` (N,) or `plus` (n, N) added -> (n, N); `plus` may be overwritten."""


class Layer(NamedTuple):
    """The weights of one direction of one layer."""

    input: Matrix  # (P, 4C)
    recurrent: Matrix  # (P, 4C)
    bias: Tensor  # (4C,), with the forget gate's 1
    projection: Matrix  # (C, P)


def layer_of(weights: LSTMWeights | Int8Weights, d: int) -> Layer:
    """Direction d of a layer, its weights packed."""
    bias = run_time_bias(weights.bias[d])
    if isinstance(weights, Int8Weights):
        return Layer(weights.input[d], weights.recurrent[d], bias, weights.projection[d])
    return Layer(packed(weights.input, d), packed(weights.recurrent, d), bias, packed(weights.projection, d))


def run_time_bias(bias: Tensor) -> Tensor:
    """(4C,) with 1 on the forget gate: bilm-tf adds it at run time, so no file's bias holds it."""
    bias = bias.detach().clone()
    bias.view(4, -1)[2] += 1.0
    return bias


class LiveRows(NamedTuple):
    """The live rows of all steps as one matrix (R, P): step after step, at each the longest sentences first.

    So the rows alive at a step are a slice, and among the sorted rows of the state they are a prefix.
    """

    counts: list[int]  # rows alive at each step
    order: Tensor  # (B,) sentences, longest first
    places: Tensor | None  # (R,) where each row stands among T * B; None where all rows live at all steps

    def gather(self, steps: Tensor) -> Tensor:
        """(T, B, P) -> (R, P)."""
        flat = steps.reshape(-1, steps.shape[-1])
        return flat if self.places is None else flat[self.places]

    def scatter(self, rows: Tensor, steps: Tensor) -> None:
        """(R, P) into (T, B, P), with zeros where no row is alive."""
        flat = steps.view(-1, steps.shape[-1])
        if self.places is None:
            flat.copy_(rows)
        else:
            flat.zero_()[self.places] = rows

    def sort(self, state: Tensor) -> Tensor:
        """(B, …) with the longest sentence first; a copy."""
        return state[self.order]

    def unsort(self, ordered: Tensor, state: Tensor) -> None:
        """The way back, into `state`."""
        state[self.order] = ordered


def live_rows(lengths: Tensor, num_steps: int) -> LiveRows:
    """Which rows of (T, B) are alive."""
    num_rows = len(lengths)
    ordered, order = lengths.sort(descending=True, stable=True)
    live = torch.arange(num_steps).unsqueeze(1) < ordered  # (T, B)
    counts = live.sum(dim=1).tolist()
    if sum(counts) == num_steps * num_rows:
        return LiveRows(counts, order, None)  # nothing to sort: the sort is stable
    places = (torch.arange(num_steps).unsqueeze(1) * num_rows + order)[live]
    return LiveRows(counts, order, places)


def walk(
    rows: Tensor, counts: list[int], layer: Layer, state: LSTMState, results: Tensor, clips: Clips, d: int
) -> None:
    """The recurrence over gathered rows (R, P), `counts[t]` of them at step t; writes results (R, P) and state."""
    hidden, cell = state
    scratch = torch.empty_like(cell)
    h, c, y = hidden, cell, scratch
    for begin, end, steps in blocks(counts, reverse=d == 1):
        from_inputs = layer.input.product(rows[begin:end], bias=layer.bias)  # (r, 4C)
        for start, n in steps:
            if n != len(h):
                h, c, y = hidden[:n], cell[:n], scratch[:n]
            gates = layer.recurrent.product(h, plus=from_inputs[start - begin : start - begin + n])  # (n, 4C)
            i, j, f, o = gates.chunk(4, dim=1)  # (n, C) each
            j.mul_(2.0)
            gates.sigmoid_()
            # j holds sigmoid(2 j), and tanh(j) = 2 sigmoid(2 j) - 1
            c.mul_(f).addcmul_(i, j, value=2.0).sub_(i)
            if clips.cell is not None:
                c.clamp_(-clips.cell, clips.cell)
            torch.mul(c, 2.0, out=y).sigmoid_()
            torch.addcmul(o.neg_(), o, y, value=-2.0, out=y)  # o tanh(c), by the same identity
            h.copy_(layer.projection.product(y))
            if clips.proj is not None:
                h.clamp_(-clips.proj, clips.proj)
            results[start : start + n] = h


def steps_of(counts: list[int], *, reverse: bool) -> list[tuple[int, int]]:
    """(first row, rows) of each live step, in the order of the walk."""
    steps, row = [], 0
    for n in counts:
        if n:
            steps.append((row, n))
            row += n
    return steps[::-1] if reverse else steps


def blocks(counts: list[int], *, reverse: bool) -> Iterator[tuple[int, int, list[tuple[int, int]]]]:
    """Cut the live steps into runs of about HOISTED_ROWS rows: (first row, end row, steps)."""
    steps = steps_of(counts, reverse=reverse)
    block: list[tuple[int, int]] = []
    num_rows = 0
    for k, (row, n) in enumerate(steps):
        block.append((row, n))
        num_rows += n
        if num_rows >= HOISTED_ROWS or k == len(steps) - 1:
            first = min(block[0][0], row)
            yield first, first + num_rows, block
            block, num_rows = [], 0


# ---- with gradients -------------------------------------------------------------------------------------------------


class Trace(NamedTuple):
    """What the backward walk needs of one direction, for all live rows R."""

    live: LiveRows
    rows: Tensor  # (R, P)
    gates: Tensor  # (R, 4C), after their sigmoids and tanh
    hidden_before: Tensor  # (R, P)
    cell_before: Tensor  # (R, C)
    cell_raw: Tensor  # (R, C) before the clip
    cell_tanh: Tensor  # (R, C) tanh of the clipped cell
    hidden_raw: Tensor  # (R, P) before the clip


class Differentiable(torch.autograd.Function):
    """`lstm` as one node of autograd."""

    @staticmethod
    def forward(
        ctx: Any,
        lengths: Tensor,
        clips: Clips,
        inputs: Tensor,
        input_weight: Tensor,
        recurrent: Tensor,
        bias: Tensor,
        projection: Tensor,
        hidden: Tensor,
        cell: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Walk as `walk` does, keeping what the way back needs."""
        outputs, hidden_after, cell_after = (part.new_empty(part.shape) for part in (inputs, hidden, cell))
        weights = LSTMWeights(input_weight, recurrent, bias, projection)
        traces: dict[int, Trace] = {}

        def run(d: int) -> None:
            live = live_rows(lengths[d], inputs.shape[1])
            state = LSTMState(live.sort(hidden[d]), live.sort(cell[d]))
            traces[d] = traced_walk(live, live.gather(inputs[d]), weights, state, clips, d)
            live.scatter(clip(traces[d].hidden_raw, clips.proj), outputs[d])
            live.unsort(state.hidden, hidden_after[d])
            live.unsort(state.cell, cell_after[d])

        in_parallel(run, len(inputs))
        ctx.save_for_backward(*weights)
        ctx.traces, ctx.clips, ctx.shape = traces, clips, inputs.shape
        return outputs, hidden_after, cell_after

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, of_outputs: Tensor, of_hidden: Tensor, of_cell: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of `forward`'s arguments, in their order."""
        weights = LSTMWeights(*ctx.saved_tensors)
        of_inputs = of_outputs.new_empty(ctx.shape)
        of_weights = LSTMWeights(*(torch.empty_like(weight) for weight in weights))
        of_state = LSTMState(torch.empty_like(of_hidden), torch.empty_like(of_cell))

        def run(d: int) -> None:
            trace: Trace = ctx.traces[d]
            live = trace.live
            state = LSTMState(live.sort(of_hidden[d]), live.sort(of_cell[d]))
            of_gates, of_projected = walk_back(trace, live.gather(of_outputs[d]), weights, state, ctx.clips, d)
            y = trace.gates.chunk(4, dim=1)[3] * trace.cell_tanh
            torch.mm(trace.rows.t(), of_gates, out=of_weights.input[d])
            torch.mm(trace.hidden_before.t(), of_gates, out=of_weights.recurrent[d])
            torch.sum(of_gates, dim=0, out=of_weights.bias[d])
            torch.mm(y.t(), of_projected, out=of_weights.projection[d])
            live.scatter(of_gates @ weights.input[d].t(), of_inputs[d])
            live.unsort(state.hidden, of_state.hidden[d])
            live.unsort(state.cell, of_state.cell[d])

        in_parallel(run, len(of_inputs))
        return None, None, of_inputs, *of_weights, *of_state


def traced_walk(live: LiveRows, rows: Tensor, weights: LSTMWeights, state: LSTMState, clips: Clips, d: int) -> Trace:
    """`walk` with everything kept; weights change after each training step, so they are not packed."""
    hidden, cell = state
    recurrent, projection = weights.recurrent[d], weights.projection[d]
    gates = torch.addmm(run_time_bias(weights.bias[d]), rows, weights.input[d])  # (R, 4C)
    hidden_before, hidden_raw = torch.empty_like(rows), torch.empty_like(rows)
    cell_before, cell_raw, cell_tanh = rows.new_empty(3, len(rows), cell.shape[1])
    for start, n in steps_of(live.counts, reverse=d == 1):
        here, h, c = slice(start, start + n), hidden[:n], cell[:n]
        hidden_before[here], cell_before[here] = h, c
        g = gates[here].addmm_(h, recurrent)
        i, j, f, o = g.chunk(4, dim=1)
        j.mul_(2.0)
        g.sigmoid_()
        j.mul_(2.0).sub_(1.0)  # tanh(j) = 2 sigmoid(2 j) - 1
        raw = torch.mul(c, f, out=cell_raw[here]).addcmul_(i, j)
        c.copy_(clip(raw, clips.cell))
        tanh_c = torch.mul(c, 2.0, out=cell_tanh[here]).sigmoid_().mul_(2.0).sub_(1.0)
        h.copy_(clip(torch.mm(tanh_c * o, projection, out=hidden_raw[here]), clips.proj))
    return Trace(live, rows, gates, hidden_before, cell_before, cell_raw, cell_tanh, hidden_raw)


def walk_back(
    trace: Trace, of_rows: Tensor, weights: LSTMWeights, of_state: LSTMState, clips: Clips, d: int
) -> tuple[Tensor, Tensor]:
    """Gradients of the gates before their nonlinearities (R, 4C) and of the projections before their clip (R, P).

    `of_rows` is the gradient of the outputs; `of_state` enters as the last state's and leaves as the first's.
    """
    recurrent, projection = weights.recurrent[d].t(), weights.projection[d].t()
    i, j, f, o = trace.gates.chunk(4, dim=1)
    tanh_c = trace.cell_tanh
    to_cell = (1.0 - tanh_c * tanh_c).mul_(o)  # from o tanh(c) to c
    # what the gradient of the cell (of o tanh(c), for the gate o) is multiplied by on its way to each gate
    of_gates = torch.cat(
        [j * i * (1.0 - i), (1.0 - j * j).mul_(i), trace.cell_before * f * (1.0 - f), tanh_c * o * (1.0 - o)], dim=1
    )
    keep_cell, keep_hidden = inside(trace.cell_raw, clips.cell), inside(trace.hidden_raw, clips.proj)
    of_projected = of_rows.clone()
    cells = tanh_c.shape[1]
    for start, n in reversed(steps_of(trace.live.counts, reverse=d == 1)):
        here, of_h, of_c = slice(start, start + n), of_state.hidden[:n], of_state.cell[:n]
        of_p = of_projected[here].add_(of_h).mul_(keep_hidden[here])
        of_y = of_p @ projection  # (n, C)
        of_c.addcmul_(of_y, to_cell[here]).mul_(keep_cell[here])
        g = of_gates[here]
        g.view(n, 4, cells)[:, :3].mul_(of_c.unsqueeze(1))
        g[:, 3 * cells :].mul_(of_y)
        of_c.mul_(f[here])
        torch.mm(g, recurrent, out=of_h)
    return of_gates, of_projected


def inside(values: Tensor, bound: float | None) -> Tensor:
    """Where a clip lets the gradient through."""
    return torch.ones_like(values, dtype=torch.bool) if bound is None else values.abs() <= bound


# ---- float32 weights, packed once -----------------------------------------------------------------------------------


class PackedMatrix(NamedTuple):
    """A float32 weight as it stands and, where oneDNN knows how, in its blocked layout."""

    plain: Tensor  # (K, N)
    blocked: Tensor | None

    def product(self, rows: Tensor, *, bias: Tensor | None = None, plus: Tensor | None = None) -> Tensor:
        """See `Matrix`."""
        # one row is a matrix-vector product, bound by reading the weights, which the plain layout does best
        if self.blocked is None or len(rows) == 1:
            if plus is not None:
                return plus.addmm_(rows, self.plain)
            return rows @ self.plain if bias is None else torch.addmm(bias, rows, self.plain)
        n = len(rows)
        more = _even(n) - n
        filled = functional.pad(rows, (0, 0, 0, more)) if more else rows
        result: Tensor = torch.ops.mkldnn._linear_pointwise.default(filled, self.blocked, bias, "none", [], "")[:n]
        return result if plus is None else plus.add_(result)  # oneDNN's own addition is slower


def _even(n: int) -> int:
    """So many rows are multiplied in place of n, at most a sixteenth more.

    For each number of rows oneDNN compiles a program of half a MB and keeps it, a thousand of them: without this, a
    process that meets batches of all sizes would grow by hundreds of MB.
    """
    step = 1 << max(0, n.bit_length() - 5)
    return n if n <= FEW_ROWS else -(-n // step) * step


class Cached(NamedTuple):
    """Packed directions of a weight, and what the weight looked like when they were packed."""

    seen: tuple[int, int]
    fingerprint: Tensor
    directions: dict[int | None, PackedMatrix]


_cache: WeakIdKeyDictionary = WeakIdKeyDictionary()  # weight -> Cached; an entry goes with its weight
_cache_lock = threading.Lock()


def linear(rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`functional.linear` of rows (n, K) for a weight (N, K) that stays the same from call to call; no gradient."""
    with torch.no_grad():
        return packed(weight.t(), None, owner=weight).product(rows, bias=bias)


def packed(weight: Tensor, d: int | None, *, owner: Tensor | None = None) -> PackedMatrix:
    """`weight[d]`, or all of `weight` (K, N) for None, packed; from the cache unless the weight changed since.

    Writes that autograd counts (optimizers, load_state_dict, no_grad) show in the version; writes through `.data` do
    not, so a sample spread over the whole weight is compared too.  A view names its `owner`, which lives longer.
    """
    owner = weight if owner is None else owner
    seen = (0 if owner.is_inference() else owner._version, owner.data_ptr())
    flat = owner.detach().reshape(-1)
    fingerprint = flat[:: max(1, flat.numel() // FINGERPRINT)]
    with _cache_lock:
        if owner not in _cache:
            _cache[owner] = Cached(seen, fingerprint.clone(), {})
        entry: Cached = _cache[owner]
        if entry.seen != seen or not torch.equal(entry.fingerprint, fingerprint):
            entry = _cache[owner] = Cached(seen, fingerprint.clone(), {})
        if d not in entry.directions:
            plain = (weight if d is None else weight[d]).detach()
            entry.directions[d] = PackedMatrix(plain, block(plain) if can_block() and plain.numel() else None)
        return entry.directions[d]


def block(plain: Tensor) -> Tensor:
    """(K, N) in oneDNN's layout, opaque to everything but its own products."""
    blocked: Tensor = torch.ops.mkldnn._reorder_linear_weight(plain.t().contiguous(), PACKED_FOR_ROWS)
    return blocked


@functools.cache
def can_block() -> bool:
    """Whether this build of PyTorch packs float32 weights for this CPU."""
    return (
        platform.machine().lower() in ("x86_64", "amd64")
        and torch._C._has_mkldnn
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


# ---- int8 weights ---------------------------------------------------------------------------------------------------


class Int8Matrix(NamedTuple):
    """A weight rounded to int8, one scale for each column; rows are rounded as they come, one scale for each row.

    A scale of its own for each row keeps a sentence's vectors the same alone and in any batch.
    """

    by_rows: Tensor  # (K, N) int8: what many rows read fastest
    by_columns: Tensor  # (N, K) int8, the same: what one row reads fastest
    scales: Tensor  # (N,)

    def product(self, rows: Tensor, *, bias: Tensor | None = None, plus: Tensor | None = None) -> Tensor:
        """See `Matrix`."""
        scale = rows.abs().amax(dim=1, keepdim=True).clamp_(min=1e-30).div_(127.0)  # (n, 1)
        rounded = (rows / scale).round_().to(torch.int8)
        values = self.by_columns.t() if len(rows) == 1 else self.by_rows
        result = torch._int_mm(rounded, values).to(torch.float32).mul_(scale).mul_(self.scales)
        add = plus if bias is None else bias
        return result if add is None else result.add_(add)


class Int8Weights(NamedTuple):
    """`LSTMWeights` with int8 matrices, one for each direction."""

    input: tuple[Int8Matrix, ...]
    recurrent: tuple[Int8Matrix, ...]
    bias: Tensor  # (D, 4C)
    projection: tuple[Int8Matrix, ...]


def quantize(weights: LSTMWeights) -> Int8Weights:
    """The weights of a layer in int8, for `lstm`: a copy, that later changes of `weights` do not reach."""
    matrices = [tuple(quantize_matrix(matrix) for matrix in weight) for weight in weights._replace(bias=weights.input)]
    return Int8Weights(matrices[0], matrices[1], weights.bias.detach().clone(), matrices[3])


def quantize_matrix(weight: Tensor) -> Int8Matrix:
    """A float weight (K, N) rounded to int8, symmetric, one scale for each column."""
    if not int8_runs():
        raise ValueError(
            "quantize='int8' cannot run here: this CPU announces AMX and faults when it is used; leave quantize unset"
        )
    weight = weight.detach().float()
    scales = weight.abs().amax(dim=0).clamp(min=1e-30) / 127.0
    by_rows = (weight / scales).round().to(torch.int8).contiguous()
    return Int8Matrix(by_rows, by_rows.t().contiguous(), scales)


@functools.cache
def int8_runs() -> bool:
    """Whether int8 products return at all.

    Some virtual machines announce AMX and kill the process that uses it, so there a child process tries first.
    """
    if not announces_amx():
        return True
    attempt = "import torch; a = torch.ones(32, 256, dtype=torch.int8); torch._int_mm(a, a.t().contiguous())"
    return subprocess.run([sys.executable, "-c", attempt], capture_output=True).returncode == 0


def announces_amx() -> bool:
    """Whether the CPU claims to have matrix tiles."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return any("amx_int8" in line for line in lines)
    except OSError:
        return False


# ---- two directions at once -----------------------------------------------------------------------------------------

_pool: ThreadPoolExecutor | None = None
_pool_lock = threading.Lock()


def in_parallel(run: Callable[[int], None], num_directions: int) -> None:
    """run(0), run(1), …, side by side with an equal share of the caller's cores where it has more than one."""
    cores = torch.get_num_threads()
    if num_directions < 2 or cores < 2:
        for d in range(num_directions):
            run(d)
        return
    share, inference = max(1, cores // num_directions), torch.is_inference_mode_enabled()

    def task(d: int) -> None:
        set_own_threads(share)
        with torch.inference_mode(inference), torch.no_grad():  # modes belong to a thread, so the caller's are set here
            run(d)

    for future in [pool().submit(task, d) for d in range(num_directions)]:
        future.result()


def set_own_threads(count: int) -> None:
    """Give the calling thread `count` cores; all other threads, also those yet to come, keep theirs."""
    if torch.get_num_threads() == count:
        return
    # PyTorch's number is the caller's own and also what new threads start with: a new thread reads it and puts it back
    with _pool_lock, ThreadPoolExecutor(1) as new_thread:
        usual = new_thread.submit(torch.get_num_threads).result()
        torch.set_num_threads(count)
        new_thread.submit(torch.set_num_threads, usual).result()


def pool() -> ThreadPoolExecutor:
    """Two threads, started when first needed and shared by all callers."""
    global _pool
    with _pool_lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(2, thread_name_prefix="elmokit-direction")
        return _pool


def _forget_pool() -> None:
    """A forked child has the pool but not its threads."""
    global _pool, _pool_lock, _cache_lock
    _pool, _pool_lock, _cache_lock = None, threading.Lock(), threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)
