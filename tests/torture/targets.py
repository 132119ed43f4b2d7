"""The public functions, each with the kinds of its arguments.

A `Target` is a function with some arguments bound (a model, an index). The kind of every other argument is found by its
name in `BY_NAME`, unless the target says otherwise; surface.py and surface_compat.py list them. `uncovered` finds
public names that have no target, so that a new one is not forgotten.
"""

from __future__ import annotations

import importlib
import inspect
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from kinds import BY_NAME, FIXED
from world import World


@dataclass(frozen=True)
class Target:
    """A public function."""

    name: str
    call: Callable[..., Any]
    kinds: dict[str, Any]
    """Kinds of the arguments by name."""
    is_total: bool = False
    """Legal arguments always succeed."""
    finite: bool = True
    """The result holds neither NaN nor infinity."""
    cost: int = 1
    """Run one case of this many: a function that trains takes a hundred times longer than the others."""
    is_inside: bool = False
    """A function on tensors, inside a user's own network: the errors of torch itself may pass."""
    check: Callable[[dict[str, Any], Any], str | None] = lambda arguments, result: None
    """What is wrong with a result, if anything."""


def targets(world: World) -> list[Target]:
    """All of them, with the models of the world."""
    import surface
    import surface_compat

    return [*surface.targets(world), *surface_compat.targets(world)]


def make(
    name: str, call: Callable[..., Any], /, *, total: bool = False, finite: bool = True, cost: int = 1,
    inside: bool = False, check: Any = None, **kinds: Any,
) -> Target:  # fmt: skip
    """A target; the kinds of arguments that are not named are those of `BY_NAME`."""
    found = {}
    for parameter in inspect.signature(call).parameters.values():
        kind = kinds.get(parameter.name, BY_NAME.get(parameter.name))
        if kind is None:
            is_optional = parameter.default is not parameter.empty or parameter.kind is parameter.VAR_KEYWORD
            assert is_optional, f"{name}: what is {parameter.name}?"
        elif kind is not FIXED:
            found[parameter.name] = kind
    found |= {key: kind for key, kind in kinds.items() if key not in found and kind is not FIXED}  # of **settings
    extra = {} if check is None else {"check": check}
    return Target(name, call, found, total, finite, cost, inside, **extra)


# ---- public names without a target -----------------------------------------------------------------------------------

NOT_TARGETS = {
    "digest", "embed_groups", "word_parameters", "load_weights", "contextualize", "run_layers", "initial_state",
    "mix_l2", "l2", "reset_state", "forget_words", "load_language_model", "without_openmp",  # no arguments
    "of_words",  # of the words of a batch
    "disambiguate", "run_probes",  # from files, by `elmokit probe`
    "fit", "build", "from_text", "to_json",  # a protocol for authors of tasks
    "answer", "score", "size", "check_model", "get_output_dim",
}  # fmt: skip


def uncovered(found: Iterable[Target]) -> list[str]:
    """Public functions and methods that no target calls."""
    known = " ".join(target.name for target in found)
    missing = []
    for room in ("elmokit", "elmokit.compat", "elmokit.probes", "elmokit.index", "elmokit.tasks"):
        module = importlib.import_module(room)
        for name in module.__all__:
            thing = getattr(module, name)
            if inspect.isclass(thing):
                functions = [
                    key for key, value in vars(thing).items() if isinstance(value, types.FunctionType | classmethod)
                ]
                missing += [
                    f"{room}.{name}.{key}"
                    for key in functions
                    if not key.startswith("_") and key not in NOT_TARGETS and f".{key}" not in known
                ]
            elif inspect.isfunction(thing) and name not in known and name not in NOT_TARGETS:
                missing.append(f"{room}.{name}")
    return missing
