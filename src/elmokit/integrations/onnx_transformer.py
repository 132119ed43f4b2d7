"""The blocks of a transformer biLM as nodes of an ONNX graph.

Input: token vectors with boundary tokens (S, B, P), and where they are (S, B, 1).  Output: every block's vectors,
forward and backward, (S, B, P) each.  The equations are those of `elmokit.network.transformer`; here the window is a
mask over all pairs of tokens, and the backward direction is not reordered: its positions count from the end.
"""

# ruff: noqa: E402 (a missing host is reported before anything imports it)

from __future__ import annotations

import math

import numpy as np

from elmokit.config import BiLMConfig
from elmokit.extras import require
from elmokit.integrations.onnx_graph import Directions, Graph, integer, ints, number
from elmokit.kernels.blocks import NORM_EPS, ROTARY_BASE

require("onnx", extra="onnx")

from onnx import TensorProto

FAR = -1e9  # added to the score of a token that is not read


def transformer_layers(graph: Graph, config: BiLMConfig, tokens: str, active: str) -> list[Directions]:
    """(S, B, P) -> forward and backward (S, B, P) of each block, zero at padding."""
    num_rows = graph("Slice", graph("Shape", tokens), ints(1), ints(2))  # (1,)
    # a product of batches refuses a batch of no sentences: it gets one of zeros
    extra = graph("Cast", graph("Equal", num_rows, ints(0)), to=TensorProto.INT64)
    pads = graph("Concat", ints(0, 0, 0, 0), extra, ints(0), axis=0)
    x = graph("Transpose", graph("Pad", tokens, pads), perm=[1, 0, 2])  # (B, S, P)
    is_token = graph("Transpose", graph("Pad", active, pads), perm=[1, 2, 0])  # (B, 1, S)
    layers: list[Directions] = [[] for _ in range(config.num_layers)]
    for d in (0, 1):
        stream, reads = x, _Reading(graph, config, is_token, d)
        for block, layer in enumerate(layers):
            stream = _block(graph, config, block, d, stream, reads)
            vectors = graph("Slice", normalized(graph, stream), ints(0), num_rows, ints(0))
            layer.append(graph("Mul", graph("Transpose", vectors, perm=[1, 0, 2]), active))
    return layers


class _Reading:
    """What the blocks of a direction share: rotary angles (S, 1, d / 2), and the mask (B, 1, S, S) to add to scores."""

    def __init__(self, graph: Graph, config: BiLMConfig, is_token: str, direction: int) -> None:
        num_steps = graph("Squeeze", graph("Slice", graph("Shape", is_token), ints(2), ints(3)), ints(0))
        steps = graph("Range", integer(0), num_steps, integer(1))  # (S,)
        if direction == 1:
            steps = graph("Sub", graph("Sub", num_steps, integer(1)), steps)
        half = config.projection_dim // config.num_heads // 2
        rates = ROTARY_BASE ** -(np.arange(half, dtype=np.float64) / half)
        positions = graph("Unsqueeze", graph("Cast", steps, to=TensorProto.DOUBLE), ints(1, 2))  # (S, 1, 1)
        angles = graph("Mul", positions, rates)
        self.cos, self.sin = (graph("Cast", graph(turn, angles), to=TensorProto.FLOAT) for turn in ("Cos", "Sin"))
        ages = graph("Sub", graph("Unsqueeze", steps, ints(1)), steps)  # (S, S): of each key for each query
        is_near = graph("And", graph("GreaterOrEqual", ages, integer(0)),
                        graph("Less", ages, integer(config.attention_window)))  # fmt: skip
        is_read = graph("And", is_near, graph("Greater", is_token, number(0)))  # (B, S, S)
        # padding would read no token of the backward direction; what it reads does not matter, but it must be a number
        is_read = graph("Or", is_read, graph("Equal", ages, integer(0)))
        self.mask = graph("Unsqueeze", graph("Where", is_read, number(0), number(FAR)), ints(1))


def _block(graph: Graph, config: BiLMConfig, block: int, direction: int, x: str, reads: _Reading) -> str:
    """(B, S, P) -> (B, S, P): one block, one direction."""

    def product(name: str, rows: str) -> str:
        return graph("MatMul", rows, graph.weight(f"layers.{block}.{name}", direction))

    heads, dim = config.num_heads, config.projection_dim // config.num_heads
    qkv = graph("Reshape", product("attention_input", normalized(graph, x)), ints(0, 0, 3 * heads, dim))
    names = [graph.new_name("queries_keys"), graph.new_name("values")]
    queries_keys, values = graph.several("Split", qkv, ints(2 * heads, heads), outputs=names, axis=2)
    turned = _turn(graph, normalized(graph, queries_keys), reads, dim)
    names = [graph.new_name("queries"), graph.new_name("keys")]
    queries, keys = graph.several("Split", turned, ints(heads, heads), outputs=names, axis=2)
    scores = graph(
        "MatMul", graph("Transpose", queries, perm=[0, 2, 1, 3]), graph("Transpose", keys, perm=[0, 2, 3, 1])
    )
    scores = graph("Add", graph("Mul", scores, number(1 / math.sqrt(dim))), reads.mask)  # (B, H, S, S)
    mixed = graph("MatMul", graph("Softmax", scores, axis=-1), graph("Transpose", values, perm=[0, 2, 1, 3]))
    mixed = graph("Reshape", graph("Transpose", mixed, perm=[0, 2, 1, 3]), ints(0, 0, config.projection_dim))
    x = graph("Add", x, product("attention_output", mixed))
    both = product("feedforward_input", normalized(graph, x))  # (B, S, 2F)
    names = [graph.new_name("gate"), graph.new_name("value")]
    gate, value = graph.several("Split", both, outputs=names, axis=2, num_outputs=2)
    gated = graph("Mul", graph("Mul", gate, graph("Sigmoid", gate)), value)
    return graph("Add", x, product("feedforward_output", gated))


def _turn(graph: Graph, x: str, reads: _Reading, dim: int) -> str:
    """Rotate the pairs (i, i + d / 2) of (B, S, heads, d) by the angles of their positions."""
    names = [graph.new_name("first"), graph.new_name("second")]
    first, second = graph.several("Split", x, ints(dim // 2, dim // 2), outputs=names, axis=3)
    left = graph("Sub", graph("Mul", first, reads.cos), graph("Mul", second, reads.sin))
    right = graph("Add", graph("Mul", second, reads.cos), graph("Mul", first, reads.sin))
    return graph("Concat", left, right, axis=3)


def normalized(graph: Graph, x: str) -> str:
    """Vectors divided by the root of their mean square: see `elmokit.kernels.blocks.norm`."""
    square = graph("ReduceMean", graph("Mul", x, x), ints(-1), keepdims=1)
    return graph("Div", x, graph("Sqrt", graph("Add", square, number(NORM_EPS))))
