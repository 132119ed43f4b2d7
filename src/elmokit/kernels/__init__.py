"""The clipped, projected LSTM over time, once per engine, and the choice between them.

Enters: the tensors of one layer (see `interface`).  Leaves: the engine module that runs them best.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from types import ModuleType
from typing import cast

from torch import Tensor

from elmokit.kernels import eager
from elmokit.kernels.interface import Engine, LSTMState, LSTMWeights

__all__ = ["Engine", "LSTMState", "LSTMWeights", "choose", "forced"]

_forced: ContextVar[ModuleType | None] = ContextVar("elmokit_engine", default=None)


def choose(inputs: Tensor) -> Engine:
    """The engine for tensors such as `inputs`, or the one that `forced` names."""
    return cast(Engine, _forced.get() or eager)


@contextlib.contextmanager
def forced(engine: ModuleType) -> Iterator[None]:
    """Inside the block every layer runs on `engine` (a module of this package): for tests and side-by-side timing."""
    token = _forced.set(engine)
    try:
        yield
    finally:
        _forced.reset(token)
