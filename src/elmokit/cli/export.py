"""The verb of the command line that writes a model for other runtimes: export.

Enters and leaves: as in `cli`, which gathers all verbs.  What the verb needs is imported inside it.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from elmokit.cli.terminal import check_new_file, json_option, load_model, overwrite_option, print_result

if TYPE_CHECKING:
    from elmokit.integrations.onnx import Layers, Shape


def _read_layers(_: click.Context, __: click.Parameter, value: str) -> Layers:
    if value.isdecimal():
        return int(value)
    if value not in ("all", "average", "top", "mix"):
        raise ValueError(f"--layers is all, average, top, mix or a number from 0, not {value!r}")
    return value  # type: ignore[return-value]


@click.command()
@click.argument("model", required=False)
@click.option("--onnx", "target", metavar="OUT", required=True, type=click.Path(path_type=Path), help="File to write.")
@click.option(
    "--layers", default="all", show_default=True, callback=_read_layers, help="all, average, top, mix, or 0, 1, 2 …"
)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "float16", "int8"]),
    default="float32",
    show_default=True,
    help="How the file stores the weights; it computes in float32.",
)
@overwrite_option
@json_option
def export(model: str | None, target: Path, layers: Layers, dtype: Any, overwrite: bool, as_json: bool) -> None:
    """Write MODEL as one ONNX file, which reads ids of any batch and length and gives vectors and a mask."""
    from elmokit.integrations.onnx import export_onnx

    check_new_file(target, overwrite)
    file = export_onnx(load_model(model, "cpu"), target, layers=layers, dtype=dtype)
    outputs = ", ".join(f"{name} {_spell(shape)}" for name, shape in file.outputs.items())
    line = f"{file.path}: {file.num_bytes / 1e6:.1f} MB, ids {_spell(file.inputs['ids'])} -> {outputs}"
    print_result(as_json, {**dataclasses.asdict(file), "path": str(file.path)}, line)


def _spell(shape: Shape) -> str:
    return f"({', '.join(map(str, shape))})"
