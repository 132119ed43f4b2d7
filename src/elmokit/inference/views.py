"""The argument `layers=`: which layers of a biLM a caller gets.

Input: "average", "top", "all" or the number of a layer.  Output: a function from all layers (L+1, ..., T, 2P) to the
selected vectors.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Literal

from torch import Tensor

from elmokit.arguments import describe

Layers = Literal["average", "top", "all"] | int
View = Callable[[Tensor], Tensor]


def check_layers(layers: object, num_layers: int, *, single: bool = False, caller: str = "") -> Layers:
    """Check `layers=`.

    Args:
        layers: "average", "top", "all", or the number of a layer: 0 is the context-free layer, -1 the top one. NumPy
            integers are accepted.
        num_layers: Number of layers of the model, layer 0 included.
        single: Refuse "all", for callers that need one vector per token.
        caller: Name of the caller, for messages.

    Returns:
        The name, or the number counted from 0.

    Raises:
        ValueError: If the model has no such layers.
    """
    names = ("average", "top") if single else ("average", "top", "all")
    if isinstance(layers, str):
        if layers in names:
            return layers  # type: ignore[return-value]
    elif not isinstance(layers, bool):
        try:
            number = operator.index(layers)  # type: ignore[arg-type]
        except TypeError:
            pass
        else:
            if -num_layers <= number < num_layers:
                return number % num_layers
    quoted = ", ".join(f'"{name}"' for name in names)
    where = f"{caller}: " if caller else ""
    shown = repr(layers) if isinstance(layers, str | int | float) or layers is None else describe(layers)
    hint = ", which is for embed" if isinstance(layers, str) and layers == "all" else ""
    raise ValueError(f"{where}layers must be {quoted} or a number from 0 to {num_layers - 1}, not {shown}{hint}")


def view_of(layers: object, num_layers: int, *, single: bool = False, caller: str = "") -> View:
    """The function that picks `layers` from all layers (L+1, ..., T, 2P).

    Args:
        layers: As for `check_layers`.
        num_layers: Number of layers of the model, layer 0 included.
        single: Refuse "all".
        caller: Name of the caller, for messages.

    Returns:
        A function that gives (..., T, 2P), or with "all" its argument.
    """
    checked = check_layers(layers, num_layers, single=single, caller=caller)
    if checked == "average":
        return lambda stacked: stacked.mean(dim=0)
    if checked == "all":
        return lambda stacked: stacked
    number = num_layers - 1 if checked == "top" else checked
    assert isinstance(number, int)
    return lambda stacked: stacked[number]
