"""Settings: reading JSON files, TOML recipes and `key=value` into typed dataclasses.

Input: files and strings. Output: a frozen dataclass whose values have the annotated types, or a ValueError that names
the source, the field and its value.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import tomllib
import types
import typing
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from elmokit.arguments import check_path, describe

T = TypeVar("T")


def check_types(config: Any) -> None:
    """Check that every field of a dataclass has its annotated type.

    Args:
        config: An instance of a dataclass.

    Raises:
        ValueError: If a field has another type. The message names the field and its value.
    """
    hints = get_type_hints(type(config))
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if not _fits(value, hints[field.name]):
            raise ValueError(f"{field.name} must be {_describe(hints[field.name])}, not {describe(value)}")


def from_mapping(kind: type[T], values: Mapping[str, Any], *, source: str) -> T:
    """Build a dataclass from JSON or TOML values.

    Args:
        kind: The dataclass.
        values: Value of each field by name. Fields that are absent keep their defaults.
        source: Where the values come from, such as a file name, for messages.

    Raises:
        ValueError: If a key is unknown, a field without a default is missing, or a value is wrong. The message names
            `source`.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"{source}: expected a table of settings, found {type(values).__name__}")
    hints = get_type_hints(kind)
    unknown = sorted(set(values) - set(hints))
    if unknown:
        raise ValueError(f"{source}: unknown key {unknown[0]!r}; known keys: {', '.join(sorted(hints))}")
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]  # a dataclass, as the arguments say
    needed = [field.name for field in fields if {field.default, field.default_factory} == {dataclasses.MISSING}]
    if missing := [name for name in needed if name not in values]:
        raise ValueError(f"{source}: missing key{'s' * (len(missing) > 1)} {', '.join(map(repr, missing))}")
    try:
        return kind(**{key: _from_json(value, hints[key]) for key, value in values.items()})
    except (ValueError, TypeError) as error:
        raise ValueError(f"{source}: {error}") from None


def to_mapping(config: Any) -> dict[str, Any]:
    """The fields of a dataclass as JSON values, without its `unused_fields` if it has any: tuples become lists."""
    result: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(config)))
    unused: frozenset[str] = getattr(config, "unused_fields", frozenset())
    return {name: value for name, value in result.items() if name not in unused}


def read_json(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a JSON file that holds an object.

    Args:
        path: The file.

    Raises:
        ValueError: If the file is not JSON, or holds something other than an object. The message names it.
        OSError: If the file cannot be read.
    """
    if Path(path).exists() and not Path(path).is_file():  # a device may never end
        raise ValueError(f"{path}: this is not a regular file: pass the path of a JSON file")
    try:
        values = json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # bytes that are not UTF-8, wrong syntax, a number of 5,000 digits
        raise ValueError(f"{path}: not a JSON file ({error})") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path}: expected a JSON object, found {type(values).__name__}")
    return values


def recipe_names(kind: Literal["pretraining", "tasks"]) -> list[str]:
    """Names of the recipes in the package, sorted.

    Args:
        kind: Recipes for pretraining, or those for tasks.
    """
    return sorted(path.stem for path in _recipe_folder(kind).glob("*.toml"))


def _recipe_folder(kind: Literal["pretraining", "tasks"]) -> Path:
    """The folder of the package's recipes."""
    folder = Path(str(resources.files("elmokit") / "recipes"))
    return folder / "tasks" if kind == "tasks" else folder


def read_recipe(name: str | os.PathLike[str], kind: Literal["pretraining", "tasks"] = "pretraining") -> dict[str, Any]:
    """Read the settings of a recipe.

    Args:
        name: A TOML file, a .json file that a run wrote, or the name of a recipe in the package, such as "tiny". A file
            comes before a name of the package.
        kind: Recipes for pretraining, or those for tasks.

    Returns:
        The settings by name.

    Raises:
        ValueError: If there is no such recipe, or the file is not TOML or JSON. The message names it.
    """
    path = Path(check_path("recipe", name))
    if str(name) in recipe_names(kind) and not path.is_file():
        path = _recipe_folder(kind) / f"{name}.toml"
    try:
        if path.suffix == ".json":
            return read_json(path)
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        known = ", ".join(recipe_names(kind))
        raise ValueError(f"{name}: no such recipe: pass a TOML file, or one of {known}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{name}: not a TOML file ({error})") from None


def read_setting(text: str) -> tuple[str, Any]:
    """Read a setting `key=value` of the command line.

    Args:
        text: The setting. The value is TOML, or `null` for None, or plain text if it is neither.

    Returns:
        The key and the value.

    Raises:
        ValueError: If there is no `=`.
    """
    key, equals, value = (part.strip() for part in text.partition("="))
    if not equals:
        raise ValueError(f"{text!r}: write a setting as key=value, as in batch_size=64")
    try:
        return key, None if value == "null" else tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key, value


def _from_json(value: Any, hint: Any) -> Any:
    """Convert lists to tuples and integers to floats, where the annotation `hint` says so."""
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    for option in options:
        if get_origin(option) is tuple and isinstance(value, list):
            item = get_args(option)[0]
            return tuple(_from_json(element, item) for element in value)
        if option is float and type(value) is int and _fits(value, float):
            return float(value)
    return value


def _fits(value: Any, hint: Any) -> bool:
    """Whether `value` has the annotated type `hint`."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, option) for option in arguments)
    if origin is Literal:
        return any(isinstance(value, type(choice)) and value == choice for choice in arguments)
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return all(_fits(element, arguments[0]) for element in value)
        return len(value) == len(arguments) and all(map(_fits, value, arguments))
    if hint is float:
        return type(value) is float or (type(value) is int and abs(value) <= sys.float_info.max)
    if hint is int:
        return type(value) is int  # True is not a number here
    return isinstance(value, hint)


def _describe(hint: Any) -> str:
    """An annotated type, for messages: "int or null"."""
    if get_origin(hint) is Literal:
        return " or ".join(repr(choice) for choice in get_args(hint))
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(_describe(option) for option in get_args(hint))
    if hint is type(None):
        return "null"
    return hint.__name__ if isinstance(hint, type) and not typing.get_origin(hint) else str(hint)
