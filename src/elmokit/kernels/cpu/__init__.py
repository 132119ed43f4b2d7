"""The CPU engine: the clipped, projected LSTM in float32, with and without gradients, and with int8 weights.

Input: the tensors of one layer (see `interface`), or their int8 form from `quantize`.
Output: the results of `eager` within 1e-5, and the same gradients.

rows.py      active rows of each step
steps.py     forward pass: by native, or in PyTorch
native.py    products, all steps of a direction and sums of scores in C (csrc/), where a compiler was there
block_stack.py  transformer blocks by native
one_row.py   forward pass of one sentence in TorchScript
backward.py  forward pass with saved activations, backward pass
packed.py    float32 weights in the layouts of native and oneDNN
int8.py      int8 weights
scores.py    sums of the exponentials of an output layer's scores, by native or in PyTorch
words.py     vectors of words from their characters, by native
threads.py   both directions at the same time

What makes it fast, the largest gain first:
- All steps of a direction are one call of C, without Python and PyTorch between them; a step computes the gates of 16
  cells where their products are, in registers.
- Weights are packed once, in the order in which they are read. Those that are integers of 8 bits stay so.
- New words are encoded by one call of C in each thread, from their characters to their vectors.
- Inputs of many steps are multiplied at once, 64 rows or a little more at a time, so that the gates stay in the cache.
- Rows are sorted by length: the active rows of a step are a prefix, and only they are computed.
- The two directions run in two threads with half of the cores each, and never wait for each other. Between layers
  PyTorch runs on one core: OpenMP's threads would spin on theirs.
- Without the library, products are oneDNN's, tanh is a sigmoid, which is six times faster in PyTorch, and the steps of
  one sentence run in TorchScript: the directions do not wait for each other's Python.
- In training, all weight gradients are large products after the loop.
"""

from __future__ import annotations

import torch
from torch import Tensor

from elmokit.kernels import blocks
from elmokit.kernels.cpu.backward import DifferentiableLSTM
from elmokit.kernels.cpu.block_stack import NativeBlock, run_blocks
from elmokit.kernels.cpu.int8 import Int8Matrix, Int8Weights, quantize, quantize_matrix
from elmokit.kernels.cpu.packed import packed_linear
from elmokit.kernels.cpu.rows import HOISTED_ROWS, active_rows
from elmokit.kernels.cpu.scores import log_sums
from elmokit.kernels.cpu.steps import Clips, layer_of, run_steps
from elmokit.kernels.cpu.threads import in_parallel, without_openmp
from elmokit.kernels.cpu.words import NativeLinear, WordEncoder, encode_words
from elmokit.kernels.interface import LSTMState, LSTMWeights, zero_state

__all__ = [
    "HOISTED_ROWS",
    "Int8Matrix",
    "Int8Weights",
    "NativeBlock",
    "NativeLinear",
    "WordEncoder",
    "blocks",
    "encode_words",
    "in_parallel",
    "is_available",
    "layer_of",
    "log_sums",
    "lstm",
    "packed_linear",
    "quantize",
    "quantize_matrix",
    "run_blocks",
    "without_openmp",
]


def is_available(inputs: Tensor) -> bool:
    """Whether this engine runs `inputs`: float32 on a CPU; `eager` runs other dtypes, autocast and tracing."""
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
    state: LSTMState | None,
    *,
    cell_clip: float | None,
    proj_clip: float | None,
) -> tuple[Tensor, LSTMState]:
    """Run one layer, all directions: see `interface.Engine.lstm`.  Int8 weights have no gradients."""
    clips = Clips(cell_clip, proj_clip)
    state = zero_state(inputs, weights.bias) if state is None else state
    if isinstance(weights, LSTMWeights) and torch.is_grad_enabled():
        tensors = (inputs, *weights, *state)
        if any(tensor.requires_grad for tensor in tensors):
            outputs, hidden, cell = DifferentiableLSTM.apply(lengths, clips, *tensors)  # type: ignore[no-untyped-call]
            return outputs, LSTMState(hidden, cell)
    # the caller's thread computes nothing: its OpenMP threads would keep spinning on the cores of the directions
    outputs = inputs.new_empty(inputs.shape)
    state_after = LSTMState(*(part.new_empty(part.shape) for part in state))

    # short calls of PyTorch in two threads take turns and wake each other: in one thread they take less time
    with torch.no_grad():
        layers = [layer_of(weights, d) for d in range(len(inputs))]
        actives = [active_rows(lengths[0], inputs.shape[1])]
        for own in lengths[1:]:
            actives.append(actives[0] if torch.equal(own, lengths[0]) else active_rows(own, inputs.shape[1]))

    def run(d: int) -> None:
        layer, active = layers[d], actives[d]
        rows, hidden, cell = active.gather(inputs[d]), active.sort(state.hidden[d]), active.sort(state.cell[d])
        results = torch.empty_like(rows)
        run_steps(rows, active.counts, layer, LSTMState(hidden, cell), results, clips, d)
        active.scatter(results, outputs[d])
        active.unsort(hidden, state_after.hidden[d])
        active.unsort(cell, state_after.cell[d])

    with torch.no_grad():
        in_parallel(run, len(inputs))
    return outputs, state_after
