"""Nodes and constants of an ONNX graph.

Input: operators, and the tensors of a biLM by name.  Output: a `Graph`, whose nodes are in the order of the data.
"""

# ruff: noqa: E402 (a missing host is reported before anything imports it)

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from elmokit.extras import require
from elmokit.storage.folder import SCALE

require("onnx", extra="onnx")

from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

Directions = list[str]  # forward and backward, (S, B, P) each
Shape = tuple[str | int, ...]
Array = npt.NDArray[Any]


class Graph:
    """Nodes and constants of a graph: `graph(operator, inputs…)` adds a node and returns the name of its output."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        self.weights = weights
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []
        self._numbers = itertools.count()

    def __call__(self, operator: str, *inputs: str | Array, output: str | None = None, **attributes: Any) -> str:
        return self.several(operator, *inputs, outputs=[output or self.new_name(operator)], **attributes)[0]

    def several(self, operator: str, *inputs: str | Array, outputs: list[str], **attributes: Any) -> list[str]:
        """Add a node with several outputs; an output that is not used is named ""."""
        names = [value if isinstance(value, str) else self.constant(value) for value in inputs]
        self.nodes.append(helper.make_node(operator, names, outputs, **attributes))
        return outputs

    def new_name(self, stem: str) -> str:
        """A name that is not used in this graph or in the bodies of its loops."""
        return f"{stem}_{next(self._numbers)}"

    def constant(self, values: Array, name: str | None = None) -> str:
        """Add values to the file."""
        name = name or self.new_name("constant")
        self.constants.append(numpy_helper.from_array(values, name))
        return name

    def weight(self, name: str, direction: int | None = None) -> str:
        """A tensor of the biLM, or its part for one direction, in float32.

        A smaller type is widened by nodes that read only constants: a runtime does that once, when it loads the file.
        """
        tensor, scale = self.weights[name], self.weights.get(name + SCALE)
        if direction is not None:
            name, tensor = f"{name}.{('forward', 'backward')[direction]}", tensor[direction]
            scale = None if scale is None else scale[direction]
        widened = self.constant(tensor.numpy(), name)
        if tensor.dtype != torch.float32:
            widened = self("Cast", widened, to=TensorProto.FLOAT)
        return widened if scale is None else self("Mul", widened, scale.float().numpy())

    def body(self) -> Graph:
        """The graph of a loop's step, which can use the names of this one and keeps its constants here."""
        inner = Graph(self.weights)
        inner.constants, inner._numbers = self.constants, self._numbers
        return inner


def values_of(shapes: dict[str, Shape], kind: int = TensorProto.FLOAT) -> list[ValueInfoProto]:
    """Inputs or outputs of a graph, by name and shape."""
    return [helper.make_tensor_value_info(name, kind, shape) for name, shape in shapes.items()]


def integer(value: int) -> Array:
    """A constant ()."""
    return np.array(value, np.int64)


def ints(*values: int) -> Array:
    """A constant (n,)."""
    return np.array(values, np.int64)


def number(value: float) -> Array:
    """A constant (), float32."""
    return np.array(value, np.float32)
