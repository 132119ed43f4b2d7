"""Checks of the arguments of public functions, before any work is done.

Input: the name of an argument and its value.  Output: the value, or a ValueError that names both and says what to pass.
"""

from __future__ import annotations

import math
import operator
import os
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, TypeVar

T = TypeVar("T")


def check_integer(
    name: str, value: object, *, least: int = 1, most: int | None = None, expected: str = "an integer"
) -> int:
    """Check an integer. Integers of NumPy are accepted; True, 1.0 and "1" are not.

    Args:
        name: Name of the argument.
        value: Its value.
        least: Smallest value.
        most: Largest value; None if there is none.
        expected: What to pass, for the message.

    Returns:
        The value as an int.

    Raises:
        ValueError: If it is not an integer, or out of bounds.
    """
    try:
        if isinstance(value, bool) or _has_dimensions(value):
            raise TypeError
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ValueError(f"{name} must be {expected}, not {describe(value)}") from None
    if number < least or (most is not None and number > most):
        bounds = f"at least {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"{name} must be {bounds}, not {number}")
    return number


def check_optional_integer(name: str, value: object, *, least: int = 1) -> int | None:
    """Check an integer or None; see `check_integer`."""
    return None if value is None else check_integer(name, value, least=least, expected="an integer or None")


def check_number(
    name: str, value: object, *, least: float = -math.inf, most: float = math.inf, below: float = math.inf
) -> float:
    """Check a finite number. Integers and numbers of NumPy are accepted; True and "0.5" are not.

    Args:
        name: Name of the argument.
        value: Its value.
        least: Smallest value.
        most: Largest value.
        below: The value must be smaller than this.

    Raises:
        ValueError: If it is not a number, not finite, or out of bounds.
    """
    bounds = [f"at least {least:g}"] if math.isfinite(least) else []
    bounds += [f"at most {most:g}"] if math.isfinite(most) else []
    bounds += [f"less than {below:g}"] if math.isfinite(below) else []
    expected = f"{name} must be a number{', ' if bounds else ''}{' and '.join(bounds)}"
    try:
        if isinstance(value, bool | str | bytes) or _has_dimensions(value):
            raise TypeError
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise ValueError(f"{expected}, not {describe(value)}") from None
    if not math.isfinite(number) or not least <= number <= most or number >= below:
        raise ValueError(f"{expected}, not {number:g}")
    return number


def check_weights(name: str, value: object) -> list[float]:
    """Check the weights that a softmax reads: a list of finite numbers, or of minus infinity, which leaves one out.

    Args:
        name: Name of the argument.
        value: Its value: a list, another iterable, or an array of one dimension.

    Returns:
        The weights as a list.

    Raises:
        ValueError: If it is not a list of numbers, or all of them are minus infinity.
    """
    if (
        not isinstance(value, Iterable)
        or isinstance(value, str | bytes | bytearray | Mapping | AbstractSet)
        or getattr(value, "ndim", 1) != 1
    ):
        raise ValueError(f"{name} must be a list of numbers, not {describe(value)}")
    try:
        values = list(value.tolist() if hasattr(value, "tolist") else value)
    except RuntimeError:  # a tensor without storage: sparse, on the meta device
        raise ValueError(f"{name} must be a list of numbers, not {describe(value)}") from None
    weights = [
        -math.inf if isinstance(weight, float) and weight == -math.inf else check_number(f"{name}[{place}]", weight)
        for place, weight in enumerate(values)
    ]
    if weights and max(weights) == -math.inf:
        raise ValueError(f"{name} is {describe(weights)}: at least one weight must be finite")
    return weights


def check_flag(name: str, value: object) -> bool:
    """Check True or False; 1, 0 and booleans of NumPy are accepted, "no" is not."""
    try:
        if value is True or value is False or (not isinstance(value, str | bytes | float) and value in (0, 1)):
            return bool(value)
    except (TypeError, ValueError, RuntimeError):  # an array has no truth value
        pass
    raise ValueError(f"{name} must be True or False, not {describe(value)}")


def check_choice(name: str, value: object, choices: Sequence[T]) -> T:
    """Check that a value is one of a few."""
    if isinstance(value, str) or value is None:
        for choice in choices:
            if value == choice:
                return choice
    *first, last = (f'"{choice}"' if isinstance(choice, str) else str(choice) for choice in choices)
    raise ValueError(f"{name} must be {', '.join(first)} or {last}, not {describe(value)}")


def check_string(name: str, value: object) -> str:
    """Check a string."""
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a string, not {describe(value)}")
    return value


def check_path(name: str, value: object) -> str | os.PathLike[str]:
    """Check a path: a string that is not empty, or a Path. Names of files that are not UTF-8 are accepted.

    Args:
        name: Name of the argument.
        value: Its value.

    Raises:
        ValueError: If it is something else, or the system has no such names: those with NUL or lone surrogates.
    """
    try:
        text = os.fspath(value)  # type: ignore[call-overload]
    except Exception:  # the value of a user may fail at anything
        text = None
    if not isinstance(text, str) or not text:
        raise ValueError(f"{name} must be a path, not {describe(value)}")
    if "\0" in text:
        raise ValueError(f"{name} is {text!r}: a path has no NUL")
    try:
        os.fsencode(text)
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} is {text!r}: a path has no {text[error.start]!r}, half of a character") from None
    return value  # type: ignore[return-value]


def check_paths(name: str, value: object) -> list[str]:
    """Check one path, or a list of paths.

    Args:
        name: Name of the argument.
        value: A path, or any iterable of paths except mappings, sets and bytes.

    Returns:
        The paths as strings.

    Raises:
        ValueError: If it is something else, or one of them is not a path.
    """
    if isinstance(value, str | os.PathLike):
        return [os.fspath(check_path(name, value))]
    if not isinstance(value, Iterable) or isinstance(value, bytes | bytearray | memoryview | Mapping | AbstractSet):
        raise ValueError(f"{name} must be a path or a list of paths, not {describe(value)}")
    try:
        items = list(value)
    except TypeError:  # an array or a tensor without dimensions
        raise ValueError(f"{name} must be a path or a list of paths, not {describe(value)}") from None
    return [os.fspath(check_path(f"{name}[{number}]", path)) for number, path in enumerate(items)]


def check_instance(name: str, value: object, kind: type[T], expected: str) -> T:
    """Check the class of a value.

    Args:
        name: Name of the argument.
        value: Its value.
        kind: Its class.
        expected: What to pass, for the message.

    Raises:
        ValueError: If the value is of another class.
    """
    if not isinstance(value, kind):
        raise ValueError(f"{name} must be {expected}, not {describe(value)}")
    return value


def check_callable(name: str, value: Any) -> None:
    """Check a function or None."""
    if value is not None and not callable(value):
        raise ValueError(f"{name} must be a function or None, not {describe(value)}")


def _has_dimensions(value: object) -> bool:
    """Whether a value is an array or a tensor with dimensions; those with one element convert to numbers."""
    return getattr(value, "ndim", None) not in (None, 0)


def describe(value: object) -> str:
    """A value and its type, for messages: "1.5 (float)", at most one line."""
    if value is None or isinstance(value, bool | str):
        return reprlib.repr(value)
    if hasattr(value, "shape") and not isinstance(value, type):
        return f"an object of type {type(value).__name__} and shape {tuple(value.shape)}"
    try:
        text = " ".join(reprlib.repr(value).split())
    except Exception:  # the value of a user may fail at anything
        return f"an object of type {type(value).__name__}"
    return f"{text} ({type(value).__name__})"
