"""Hostile values: odd types and odd contents.

Input: a random generator. Output: values, the same ones for the same generator. Sizes are bounded, so that a request
that is legal is also quick.
"""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import fractions
import math
import pathlib
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

try:
    import pandas
except ImportError:  # an optional package of users
    pandas = None


class HostileError(Exception):
    """What hostile objects raise: it may pass through the package."""


def _raise(*_: Any, **__: Any) -> Any:
    raise HostileError("raised by the caller's own object")


class Liar(list):  # type: ignore[type-arg]
    """A list that has another length than it says."""

    def __len__(self) -> int:
        return 3


HOSTILE_CLASSES = [
    type(f"Hostile{name.strip('_').title()}", (), {name: _raise, **extra})
    for name, extra in {
        "__len__": {"__iter__": lambda self: iter(["a"])},
        "__iter__": {},
        "__getitem__": {"__len__": lambda self: 2},
        "__str__": {},
        "__repr__": {},
        "__eq__": {"__hash__": lambda self: 1},
        "__hash__": {},
        "__bool__": {},
        "__index__": {},
        "__float__": {},
        "__array__": {},
        "__fspath__": {},
    }.items()
]


class Text(str):
    """A subclass of str whose methods are not those of str."""

    split = encode = lower = strip = _raise


class Color(enum.Enum):
    RED = "red"


TEXTS = (
    "", " ", "\0", "a\0b", "\ud800", "x\udfffy", "\U0010ffff", "\u202egnirts", "e\u0301" * 30, "\ufeffBOM", "a\nb\r\nc",
    "\u2028", "\u200d" * 9, "👩‍👩‍👧‍👦", "ﷺ" * 50, "i" * 1000, "word " * 300, "''''\"\"``", "[", "]", "[[a]]", "[]",
    "a [b] c [d]", "[bank]", "<S>", "</S>", "<UNK>", "..", "/", "../../etc/passwd", "http://[", "~nobody/x", "NaN",
    "-1", "1e400", "None", "%s%n", "{0}", "\\", "'; DROP", "中文 字", "مرحبا", "\x7f\x1b[31m", "\t\v\f", "İ", "ŉ",
)  # fmt: skip
INTS = (-(10**30), -(2**63) - 1, -(2**31), -5, -1, 0, 1, 2, 3, 7, 255, 2**31, 2**63, 10**18, 10**30)
FLOATS = (-1.0, -0.0, 0.5, 1.0, 1.5, 1e-320, 1e308, math.nan, math.inf, -math.inf)


def text(rng: random.Random) -> str:
    """A string: one of the odd ones, or random characters of all planes."""
    if rng.random() < 0.6:
        return rng.choice(TEXTS)
    planes = ((32, 127), (0, 256), (0x300, 0x370), (0x600, 0x700), (0xD800, 0xE000), (0x1F000, 0x1FAFF), (0, 0x110000))
    return "".join(chr(rng.randrange(*rng.choice(planes))) for _ in range(rng.choice((1, 3, 10, 60))))


def anything(rng: random.Random, depth: int = 0) -> Any:
    """A value of any type."""
    simple: list[Callable[[], Any]] = [
        lambda: None,
        lambda: rng.choice((True, False)),
        lambda: rng.choice(INTS),
        lambda: rng.choice(FLOATS),
        lambda: text(rng),
        lambda: text(rng).encode("utf-8", "replace"),
        lambda: bytearray(b"abc"),
        lambda: memoryview(b"abc"),
        lambda: rng.choice((1j, ..., NotImplemented, object(), int, len, math, Color.RED, Exception("e"))),
        lambda: rng.choice((decimal.Decimal("nan"), fractions.Fraction(1, 3), datetime.date(2020, 1, 1), range(3))),
        lambda: pathlib.Path(rng.choice(("", ".", "/", "no/such", "/dev/null", "/proc/self/mem"))),
        lambda: Text("The bank"),
        lambda: rng.choice(HOSTILE_CLASSES)(),
        lambda: array(rng),
        lambda: tensor(rng),
        lambda: frame(rng),
    ]
    nested: list[Callable[[], Any]] = [
        lambda: [anything(rng, depth + 1) for _ in range(rng.randrange(4))],
        lambda: tuple(anything(rng, depth + 1) for _ in range(rng.randrange(3))),
        lambda: {rng.choice(TEXTS): anything(rng, depth + 1) for _ in range(rng.randrange(3))},
        lambda: {"a", "b"},
        lambda: frozenset((1, 2)),
        lambda: (item for item in [anything(rng, depth + 1)]),
        lambda: iter([text(rng)]),
        lambda: map(str, range(3)),
        lambda: collections.deque(["a", "b"]),
        lambda: Liar(["a"]),
        lambda: itself(),
        lambda: nested_list(200),
        lambda: collections.UserString("bank"),
        lambda: rng.choice((Failing(0), Failing(2))),
    ]
    return rng.choice(simple if depth > 2 else simple + nested)()


class Failing:
    """An iterable that fails after some items."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __iter__(self) -> Any:
        for _ in range(self.number):
            yield "bank"
        raise HostileError("the caller's own iterator failed")


def itself() -> list[Any]:
    """A list that holds itself."""
    result: list[Any] = ["a"]
    result.append(result)
    return result


def nested_list(depth: int) -> list[Any]:
    """A list in a list in a list."""
    result: list[Any] = []
    for _ in range(depth):
        result = [result]
    return result


def array(rng: random.Random) -> Any:
    """A NumPy array or scalar."""
    shape = rng.choice(((), (0,), (1,), (3,), (2, 3), (0, 5), (2, 1, 4)))
    dtype = rng.choice(("f4", "f8", "f2", "i4", "i8", "u1", "c8", "?", "U5", "S5", "O", "M8[s]", "V4"))
    made = np.zeros(shape, dtype)
    if made.dtype.kind == "f" and made.size:
        made.flat[0] = rng.choice((0.5, 1.5, math.nan, math.inf))
    return made if rng.random() < 0.8 or made.ndim else made[()]


def tensor(rng: random.Random) -> torch.Tensor:
    """A tensor of any type and shape."""
    shape = rng.choice(((), (0,), (2,), (1, 3), (1, 2, 50), (2, 0, 50), (0, 0, 0), (1, 1, 1, 1)))
    dtype = rng.choice(
        (torch.float32, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool, torch.complex64)
    )
    made = torch.zeros(shape, dtype=dtype)
    kind = rng.randrange(8)
    if kind == 1 and made.ndim:
        return made.to_sparse()
    if kind == 2 and dtype == torch.float32:
        return made.requires_grad_()
    if made.numel() and kind == 3:
        made.view(-1)[0] = 1
    return made


def frame(rng: random.Random) -> Any:
    """A DataFrame, a Series, or an Index."""
    if pandas is None:
        return None
    data = pandas.DataFrame({"text": ["The bank .", "a b"], "label": [1, 2]})
    return rng.choice((data, data[["text"]], data["text"], data["label"], data["text"][:0], data.columns, data.iloc[0]))
