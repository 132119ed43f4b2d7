"""The clipped, projected LSTM on NVIDIA GPUs: both directions at once, no gate ever written to memory in inference.

Enters and leaves: as `interface` says, in float32, bfloat16 or float16, cells in float32 throughout.  All steps of a
layer are one launch, so neither the cost of launches nor the shapes of captured graphs matter; weight gradients are
products over all steps at once, after the backward loop.  The kernels are in `steps`, which needs Triton;
`is_available` says whether this engine can run.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import threading
import weakref
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from elmokit.kernels import eager, has_triton
from elmokit.kernels.interface import LSTMState, LSTMWeights

WIDTH_STEP, CELL_STEP = 64, 64  # widths are padded to multiples of these, which every tile divides
RUN = 32  # cells of one gate that stand side by side (see `steps`)
CACHED_LAYERS = 16  # frozen layers whose prepared weights are kept


def is_available(inputs: Tensor) -> bool:
    """Whether this engine runs tensors such as `inputs`; where it does not, `eager` does."""
    if not inputs.is_cuda or inputs.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return False
    return has_triton() and torch.cuda.get_device_capability(inputs.device) >= (8, 0)


def lstm(
    inputs: Tensor,
    lengths: Tensor,
    weights: LSTMWeights,
    state: LSTMState,
    *,
    cell_clip: float | None,
    proj_clip: float | None,
) -> tuple[Tensor, LSTMState]:
    """Run one layer, all directions (see `interface`), in the dtype of the inputs or of autocast."""
    if not inputs.numel():
        return eager.lstm(inputs, lengths, weights, state, cell_clip=cell_clip, proj_clip=proj_clip)
    device = inputs.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else inputs.dtype
    with torch.autocast(device, enabled=False):
        prepared = _prepared(weights, dtype)
        save = torch.is_grad_enabled() and any(x.requires_grad for x in (inputs, *weights, *state))
        # an operator is for autograd and for compilers; its dispatch takes as long as a short sentence's step
        run = _lstm if save or torch.compiler.is_compiling() else _lstm_now
        outputs, hidden, cell, *_ = run(
            inputs.to(dtype),
            lengths.to(torch.int32).contiguous(),
            *prepared,
            state.hidden.to(dtype),
            state.cell,
            math.inf if cell_clip is None else cell_clip,
            math.inf if proj_clip is None else proj_clip,
            save,
        )
    return outputs, LSTMState(hidden.to(state.hidden.dtype), cell.to(state.cell.dtype))


# --- weights as the kernels read them


class Prepared(NamedTuple):
    """Weights of one layer, padded to whole tiles with zeros: K is P padded, C padded likewise."""

    weight: Tensor  # (D, 2K, 4C): input weights over recurrent weights, gates interleaved (see `steps`)
    bias: Tensor  # (D, 4C) float32, the forget gate's 1 in it
    projection: Tensor  # (D, C, K)


_cache: OrderedDict[tuple[Any, ...], tuple[list[weakref.ref[Tensor]], Prepared]] = OrderedDict()
_cache_lock = threading.Lock()


def _prepared(weights: LSTMWeights, dtype: torch.dtype) -> Prepared:
    """The weights made ready, from the cache where the layer is frozen: a trained one changes with every step."""
    trained = any(w.requires_grad for w in weights)
    if trained or torch.compiler.is_compiling() or any(w.is_inference() for w in weights):
        return prepare(weights, dtype)
    key = (dtype, *((w.data_ptr(), w._version, w.shape, w.dtype) for w in weights))
    with _cache_lock:
        for old in [k for k, (owners, _) in _cache.items() if any(owner() is None for owner in owners)]:
            del _cache[old]  # another tensor may get the same address
        if key in _cache:
            _cache.move_to_end(key)
            return _cache[key][1]
    prepared = prepare(weights, dtype)
    with _cache_lock:
        _cache[key] = ([weakref.ref(w) for w in weights], prepared)
        while len(_cache) > CACHED_LAYERS:
            _cache.popitem(last=False)
    return prepared


def prepare(weights: LSTMWeights, dtype: torch.dtype) -> Prepared:
    """Join, pad, interleave and cast; autograd brings the gradients back to where they belong."""
    cells, width = weights.projection.shape[1:]
    C, K = cells + -cells % CELL_STEP, width + -width % WIDTH_STEP
    projection = weights.projection.to(dtype)
    if cells < C or width < K:
        projection = functional.pad(projection, (0, K - width, 0, C - cells))
    weight: Tensor = _Interleave.apply(K, C, dtype, weights.input, weights.recurrent)  # type: ignore[no-untyped-call]
    bias = _Interleave.apply(1, C, torch.float32, weights.bias.unsqueeze(1)).squeeze(1)  # type: ignore[no-untyped-call]
    # the 1 that no file's bias holds; made on the device, since a copy from the host would wait for all work before it
    forget = torch.arange(4 * C, device=bias.device) // RUN % 4 == 2
    return Prepared(weight, bias + forget, projection.contiguous())


class _Interleave(torch.autograd.Function):
    """Matrices (D, P, 4C) in blocks of gates -> one over the other, padded with zeros, gates interleaved, cast."""

    @staticmethod
    def forward(ctx: Any, width: int, cells: int, dtype: torch.dtype, *parts: Tensor) -> Tensor:
        directions, given_width, columns = parts[0].shape
        ctx.given = given_width, columns, width, parts[0].dtype
        make = parts[0].new_zeros if (given_width, columns) != (width, 4 * cells) else parts[0].new_empty
        joined = make(directions, len(parts) * width, 4 * cells, dtype=dtype)
        for n, part in enumerate(parts):
            blocks = part.reshape(directions, given_width, 4, columns // 4)
            if columns < 4 * cells:
                blocks = functional.pad(blocks, (0, cells - columns // 4))
            _by_gate(joined)[:, n * width : n * width + given_width] = blocks.reshape(*blocks.shape[:3], -1, RUN)
        return joined

    @staticmethod
    def backward(ctx: Any, joined: Tensor) -> tuple[Tensor | None, ...]:
        given_width, columns, width, dtype = ctx.given
        grads = []
        for begin in range(0, joined.shape[1], width):
            grad = _by_gate(joined)[:, begin : begin + given_width].to(dtype, memory_format=torch.contiguous_format)
            grads.append(grad.flatten(-2)[..., : columns // 4].flatten(-2))
        return None, None, None, *grads


def _by_gate(interleaved: Tensor) -> Tensor:
    """A view (…, 4, C / RUN, RUN) of (…, 4C)."""
    return interleaved.reshape(*interleaved.shape[:-1], -1, 4, RUN).transpose(-3, -2)


# --- how a shape is cut into tiles


@dataclass(frozen=True)
class Tile:
    """What one program of a product makes at a time."""

    rows: int
    columns: int  # of the forward loop's first product: cells, each with four gates
    depth: int
    warps: int
    stages: int


@dataclass(frozen=True)
class Plan:
    """One time loop: the product with cells on one side, and the one with the hidden state on the other."""

    cells: Tile
    hidden: Tile
    split: int  # into how many parts the sum behind the hidden state is cut, so that all processors work
    hoisted: bool = False  # forward only: the inputs' part of the gates is made before the loop
    looped: bool = True  # all steps in one launch


class Device(NamedTuple):
    """What a plan has to know of a GPU."""

    processors: int
    large: bool  # the memory of a processor holds the large tiles, and its matrix units need them


def plan_forward(rows: int, cells: int, width: int, dtype: torch.dtype, device: Device) -> Plan:
    """The tiles of the forward loop for B rows, C padded cells and K padded width, as measured on an H200."""
    hoisted = False
    if not device.large:
        a, b = Tile(64, 32, 32, 4, 2), Tile(64, 32, 32, 4, 2)
    elif dtype == torch.float32:
        a, b = Tile(64, 64, 32, 8, 3), Tile(64, 64, 32, 8, 3)
    elif rows <= 64:
        # the recurrent half of the weights stays in the cache between steps, both halves would not
        high = 16 if rows <= 16 else 32 if rows <= 32 else 64
        a, b, hoisted = Tile(high, 64, 64, 8, 4), Tile(high, 64, 64, 8, 4), True
    elif rows > 2048 and width > 128:
        a, b = Tile(128, 64, 64, 8, 3), Tile(128, 128, 64, 8, 3)
    else:
        full = 2 * (cells // 64) * -(-rows // 128) > 0.7 * device.processors
        a = Tile(128 if full else 64, 64, 64, 8, 4)
        b = Tile(64, 32, 64, 8, 4) if width <= 128 and 512 < rows <= 2048 else Tile(128, 64, 64, 8, 4)
    b = dataclasses.replace(b, columns=math.gcd(b.columns, width))
    return Plan(a, b, _split(rows, width, cells, b, device), hoisted)


def plan_backward(rows: int, cells: int, width: int, dtype: torch.dtype, device: Device) -> Plan:
    """The tiles of the backward loop."""
    if not device.large:
        a, b = Tile(64, 32, 32, 4, 2), Tile(64, 32, 32, 4, 2)
    elif dtype == torch.float32:
        a, b = Tile(64, 64, 32, 8, 3), Tile(64, 64, 32, 8, 3)
    else:
        high = 128 if rows > 64 else 64
        a, b = Tile(high, 256, 64, 8, 3), Tile(high, 256, 64, 8, 3)
    a = dataclasses.replace(a, columns=math.gcd(a.columns, cells))
    b = dataclasses.replace(b, columns=math.gcd(b.columns, width))
    return Plan(a, b, _split(rows, width, 4 * cells, b, device))


def _split(rows: int, width: int, depth: int, tile: Tile, device: Device) -> int:
    """Parts of a sum over `depth`, a power of two, so that the tiles of two directions fill the processors once."""
    tiles = 2 * -(-rows // tile.rows) * (width // tile.columns)
    parts = 1
    while 2 * parts * tiles <= device.processors and depth % (2 * parts * tile.depth) == 0:
        parts *= 2
    return parts


# --- the operator


def _lstm_now(
    inputs: Tensor,
    lengths: Tensor,
    weight: Tensor,
    bias: Tensor,
    projection: Tensor,
    hidden: Tensor,
    cell: Tensor,
    cell_clip: float,
    proj_clip: float,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Outputs, hidden and cell, then what backward reads: rows, gates, cells before each step, projected values."""
    C, K = projection.shape[1:]
    plan = plan_forward(inputs.shape[2], C, K, inputs.dtype, _device(inputs))
    weights = Prepared(weight, bias, projection)
    return run_forward(plan, inputs, lengths, weights, hidden, cell, cell_clip, proj_clip, save)


def run_forward(
    plan: Plan,
    inputs: Tensor,
    lengths: Tensor,
    weights: Prepared,
    hidden: Tensor,
    cell: Tensor,
    cell_clip: float,
    proj_clip: float,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The forward loop by a given plan."""
    from elmokit.kernels.cuda import steps

    directions, times, num_rows, width = inputs.shape
    num_cells = cell.shape[2]
    C, K = weights.projection.shape[1:]
    make = inputs.new_zeros if width < K else inputs.new_empty
    rows = make(directions, times + 2, num_rows, 2 * K)
    rows[:, 1:-1, :, :width] = inputs
    for d in range(directions):
        rows[d, times if d else 1, :, K : K + width] = hidden[d]
    cell = _padded(cell, C)
    outputs = torch.empty_like(inputs, memory_format=torch.contiguous_format)
    nothing = inputs.new_empty(0)
    mixed = inputs.new_empty(directions, times if save else 1, num_rows, C)
    gates = inputs.new_empty(directions, times, num_rows, 4 * C) if save else nothing
    cells = inputs.new_empty(directions, times, num_rows, C) if save else nothing
    hoisted = nothing
    if plan.hoisted:
        hoisted = torch.bmm(rows[:, 1:-1, :, :K].flatten(1, 2), weights.weight[:, :K])
    partials = cell.new_empty(plan.split if plan.split > 1 else 0, directions, num_rows, K)
    tensors = (rows, weights.weight, weights.bias, hoisted, weights.projection, lengths, cell, mixed, outputs)
    _run_loop(
        plan,
        steps.forward_loop,
        (*tensors, gates, cells, partials, _barrier(inputs)),
        (2 * K, times, num_rows, width, directions, cell_clip, proj_clip),
        {"K": K, "C": C, "HOISTED": plan.hoisted, "SAVE": save},
        {
            steps.GATES: directions * (C // plan.cells.columns) * -(-num_rows // plan.cells.rows),
            steps.PROJECT: directions * _hidden_tiles(plan, num_rows, K),
            steps.REDUCE: directions * -(-num_rows * K // _elements(inputs, num_rows, K)) if plan.split > 1 else 0,
        },
    )
    last = torch.stack([rows[d, 0 if d else times + 1, :, K : K + width] for d in range(directions)])
    cell = cell[..., :num_cells].contiguous()
    if save:
        return outputs, last, cell, rows, gates, cells, mixed
    return outputs, last, cell, nothing, inputs.new_empty(0), inputs.new_empty(0), inputs.new_empty(0)


_lstm = torch.library.custom_op("elmokit::lstm", _lstm_now, mutates_args=())


@_lstm.register_fake
def _(
    inputs: Tensor,
    lengths: Tensor,
    weight: Tensor,
    bias: Tensor,
    projection: Tensor,
    hidden: Tensor,
    cell: Tensor,
    cell_clip: float,
    proj_clip: float,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    directions, times, num_rows, _ = inputs.shape
    C, K = projection.shape[1:]
    shapes = [(times + 2, num_rows, 2 * K), (times, num_rows, 4 * C), (times, num_rows, C), (times, num_rows, C)]
    rows, gates, cells, mixed = (
        inputs.new_empty(directions, *shape) if save else inputs.new_empty(0) for shape in shapes
    )
    return _empty_like(inputs), _empty_like(hidden), _empty_like(cell.float()), rows, gates, cells, mixed


@torch.library.custom_op("elmokit::lstm_backward", mutates_args=())
def _lstm_backward(
    outputs_grad: Tensor,
    hidden_grad: Tensor,
    cell_grad: Tensor,
    lengths: Tensor,
    weight: Tensor,
    projection: Tensor,
    rows: Tensor,
    gates: Tensor,
    cells: Tensor,
    mixed: Tensor,
    cell_clip: float,
    proj_clip: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of inputs, weight, bias, projection, hidden and cell."""
    C, K = projection.shape[1:]
    plan = plan_backward(rows.shape[2], C, K, rows.dtype, _device(rows))
    saved = (weight, projection, rows, gates, cells, mixed)
    return run_backward(plan, outputs_grad, hidden_grad, cell_grad, lengths, *saved, cell_clip, proj_clip)


def run_backward(
    plan: Plan,
    outputs_grad: Tensor,
    hidden_grad: Tensor,
    cell_grad: Tensor,
    lengths: Tensor,
    weight: Tensor,
    projection: Tensor,
    rows: Tensor,
    gates: Tensor,
    cells: Tensor,
    mixed: Tensor,
    cell_clip: float,
    proj_clip: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The backward loop by a given plan, then the products over all steps."""
    from elmokit.kernels.cuda import steps

    directions, times, num_rows, width = outputs_grad.shape
    num_cells = cell_grad.shape[2]
    C, K = projection.shape[1:]
    carry, cell_grad = _padded(hidden_grad, K), _padded(cell_grad, C)
    projected_grad = rows.new_empty(directions, times, num_rows, K)  # of the projected values before their clip
    mixed_grad = rows.new_empty(directions, num_rows, C)
    gates_grad = torch.empty_like(gates)
    strips = min(-(-num_rows // steps.ROWS), max(1, _device(rows).processors * steps.COLUMNS // (directions * C)))
    bias_grad = cell_grad.new_zeros(directions, strips, 4 * C)
    partials = cell_grad.new_zeros(plan.split, directions, num_rows, K)
    tensors = (rows, weight, projection, lengths, outputs_grad.contiguous(), projected_grad, carry, mixed_grad, gates)
    # a clipped value was rounded with the rest: compare with the bound as it was rounded
    rounded = float(torch.tensor(proj_clip, dtype=rows.dtype))
    _run_loop(
        plan,
        steps.backward_loop,
        (*tensors, cells, gates_grad, cell_grad, bias_grad, partials, _barrier(rows)),
        (K, strips, times, num_rows, width, directions, cell_clip, rounded),
        {"K": K, "C": C, "ROWS": steps.ROWS, "COLUMNS": steps.COLUMNS, "STAGES": plan.cells.stages},
        {
            steps.HIDDEN: directions * -(-num_rows * K // _elements(rows, num_rows, K)),
            steps.UNPROJECT: directions * (C // plan.cells.columns) * -(-num_rows // plan.cells.rows),
            steps.CELLS: directions * (C // steps.COLUMNS) * strips,
            steps.BACK: directions * _hidden_tiles(plan, num_rows, K),
        },
    )
    gates_grad = gates_grad.flatten(1, 2)  # (D, TB, 4C)
    inputs_grad = torch.bmm(gates_grad, weight[:, :K].transpose(1, 2)).view(directions, times, num_rows, K)
    weight_grad = torch.bmm(rows[:, 1:-1].flatten(1, 2).transpose(1, 2), gates_grad)
    projection_grad = torch.bmm(mixed.flatten(1, 2).transpose(1, 2), projected_grad.flatten(1, 2))
    carry += partials.sum(dim=0)
    return (
        inputs_grad[..., :width].contiguous(),
        weight_grad,
        bias_grad.sum(dim=1),
        projection_grad,
        carry[..., :width].to(hidden_grad.dtype, memory_format=torch.contiguous_format, copy=True),
        cell_grad[..., :num_cells].contiguous(),
    )


@_lstm_backward.register_fake
def _(
    outputs_grad: Tensor,
    hidden_grad: Tensor,
    cell_grad: Tensor,
    lengths: Tensor,
    weight: Tensor,
    projection: Tensor,
    rows: Tensor,
    gates: Tensor,
    cells: Tensor,
    mixed: Tensor,
    cell_clip: float,
    proj_clip: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    bias_grad = cell_grad.new_empty(weight.shape[0], weight.shape[2])
    state_grads = _empty_like(hidden_grad), _empty_like(cell_grad)
    return _empty_like(outputs_grad), _empty_like(weight), bias_grad, _empty_like(projection), *state_grads


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, lengths, weight, _, projection, _, _, ctx.cell_clip, ctx.proj_clip, _ = inputs
    ctx.save_for_backward(lengths, weight, projection, *output[3:])
    ctx.like = [(x.shape, x.dtype, x.device) for x in output[:3]]
    ctx.set_materialize_grads(False)  # else autograd would fill zeros as large as all that is saved


def _differentiate(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    outputs_grad, hidden_grad, cell_grad = (
        torch.zeros(shape, dtype=dtype, device=device) if grad is None else grad
        for grad, (shape, dtype, device) in zip(grads, ctx.like, strict=False)
    )
    inputs, weight, bias, projection, hidden, cell = torch.ops.elmokit.lstm_backward(
        outputs_grad, hidden_grad, cell_grad, *ctx.saved_tensors, ctx.cell_clip, ctx.proj_clip
    )
    return inputs, None, weight, bias, projection, hidden, cell, None, None, None


_lstm.register_autograd(_differentiate, setup_context=_keep)


# --- launches


def _run_loop(
    plan: Plan,
    kernel: Any,
    tensors: tuple[Tensor, ...],
    scalars: tuple[float, ...],
    sizes: dict[str, int],
    work: dict[int, int],
) -> None:
    """Launch all steps of a loop whose phases have that much work: in one cooperative launch, or phase by phase."""
    from elmokit.kernels.cuda import steps

    rows = tensors[0]  # (D, T + 2, B, 2K)
    a, b = plan.cells, plan.hidden
    constants = {
        **sizes,
        "BM": a.rows, "BN": a.columns, "BK": a.depth, "PM": b.rows, "PN": b.columns, "PK": b.depth, "SPLIT": plan.split,
        "ELEMENTS": _elements(rows, rows.shape[2], sizes["K"]), "PRECISION": _precision(rows.dtype),
        "FAST": rows.is_cuda and rows.dtype != torch.float32,
        "num_warps": a.warps, "num_stages": a.stages,
    }  # fmt: skip
    times = rows.shape[1] - 2
    with torch.cuda.device_of(rows):  # type: ignore[no-untyped-call]
        if plan.looped and _cooperative():
            grid = (min(_device(rows).processors, max(work.values())),)
            kernel[grid](
                *tensors, 0, times, *scalars, PHASES=steps.ALL, launch_cooperative_grid=True, **constants
            )  # fmt: skip
            return
        for step in range(times):
            for phase, programs in work.items():
                if programs:
                    kernel[(programs,)](*tensors, step, step + 1, *scalars, PHASES=phase, **constants)


def _hidden_tiles(plan: Plan, num_rows: int, K: int) -> int:
    return plan.split * (K // plan.hidden.columns) * -(-num_rows // plan.hidden.rows)


def _elements(like: Tensor, num_rows: int, K: int) -> int:
    """Of an elementwise block: few, so that all processors get some, or many, so that each has enough on its way."""
    return 1024 if num_rows * K < 2048 * _device(like).processors else 4096


def _barrier(like: Tensor) -> Tensor:
    return torch.zeros(1, dtype=torch.int32, device=like.device)


def _padded(x: Tensor, width: int) -> Tensor:
    """A float32 copy whose last axis is `width` wide."""
    if x.shape[-1] == width:
        return x.to(torch.float32, memory_format=torch.contiguous_format, copy=True)
    return functional.pad(x.float(), (0, width - x.shape[-1])).contiguous()


def _empty_like(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _precision(dtype: torch.dtype) -> str:
    """Of float32 products: exact, unless the user allowed tf32 for cuBLAS."""
    matmul = torch.backends.cuda.matmul
    chosen = getattr(matmul, "fp32_precision", None)  # since torch 2.9
    allowed = matmul.allow_tf32 if chosen is None else chosen == "tf32"
    return "tf32" if allowed or dtype != torch.float32 else "ieee"


@functools.cache
def _cooperative() -> bool:
    """Whether this Triton can launch a grid whose programs all run at once (since 3.3)."""
    from triton.backends.nvidia.compiler import CUDAOptions

    return "launch_cooperative_grid" in {field.name for field in dataclasses.fields(CUDAOptions)}


def _device(like: Tensor) -> Device:
    return _cuda_device(like.device) if like.is_cuda else Device(1, large=False)


@functools.cache
def _cuda_device(device: torch.device) -> Device:
    properties = torch.cuda.get_device_properties(device)
    return Device(properties.multi_processor_count, large=properties.major == 9)
