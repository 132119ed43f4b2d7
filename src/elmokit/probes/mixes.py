"""Which layers the tasks use: the learned weights of their mixes, side by side (the paper's figure 2).

Input: folders of finished trainings, or of finished comparisons, whose weights are the mean over their seeds. Output:
the fraction of each layer in the mix at the task's input and, if there is one, at its output: values, a Markdown table
and a heat map.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from elmokit.files import check_new_folder, replacing, write_json
from elmokit.settings import from_mapping, read_json, to_mapping
from elmokit.tasks.compare import VALUES_FILE, by_name, picture, read_comparison, to_markdown
from elmokit.tasks.trainer import RESULT_FILE, TaskResult

PLACES = ("input", "output")


@dataclass(frozen=True)
class TaskMixes:
    """The mixes of one task."""

    name: str
    """Of the folder."""
    task: str
    num_runs: int
    weights: tuple[tuple[float, ...], ...]
    """Fraction of each layer, the context-free one first, at the input and, if there are two mixes, at the output."""


def read_mixes(folders: Sequence[str | Path]) -> list[TaskMixes]:
    """Read the learned mixes of tasks.

    Args:
        folders: Folders of finished trainings or comparisons. Of a comparison the variant with the most mixes counts.

    Raises:
        ValueError: If a folder is neither, or was trained without ELMo.
    """
    return [_read(name, folder) for name, folder in by_name(folders).items()]


def _read(name: str, folder: Path) -> TaskMixes:
    if (folder / VALUES_FILE).is_file():
        comparison = read_comparison(folder)
        task, num_runs = comparison.task, len(comparison.seeds)
        weights = max((one.mix_weights for one in comparison.variants), key=len)
    elif (folder / RESULT_FILE).is_file():
        result = from_mapping(TaskResult, read_json(folder / RESULT_FILE), source=str(folder / RESULT_FILE))
        task, num_runs, weights = result.task, 1, tuple(map(tuple, result.mix_weights))
    else:
        raise ValueError(f"{folder}: neither {VALUES_FILE} nor {RESULT_FILE}: name a finished comparison or training")
    if not weights:
        raise ValueError(f"{folder}: trained without ELMo, so there are no mixes: name one with ELMo at input or both")
    return TaskMixes(name, task, num_runs, weights)


def mix_table(mixes: Sequence[TaskMixes]) -> tuple[list[str], list[list[str]]]:
    """Heads and rows of a table: one row per mix, one column per layer."""
    rows = [
        [
            one.name,
            one.task,
            str(one.num_runs),
            place,
            *(f"{fraction:.2f}" for fraction in fractions),
            *[""] * (_num_layers(mixes) - len(fractions)),
        ]
        for one in mixes
        for place, fractions in zip(PLACES, one.weights, strict=False)
    ]
    return ["data", "task", "runs", "mix at", *(f"layer {n}" for n in range(_num_layers(mixes)))], rows


def write_mixes(mixes: Sequence[TaskMixes], out: Path) -> None:
    """Write mixes.json, mixes.md and mixes.svg into a folder."""
    check_new_folder(out)
    out.mkdir(parents=True, exist_ok=True)
    values = {one.name: to_mapping(one) for one in mixes}
    write_json(out / "mixes.json", values)
    with replacing(out / "mixes.md") as temporary:
        temporary.write_text(to_markdown(*mix_table(mixes)), encoding="utf-8")
    plot_mixes(mixes, out / "mixes.svg")


def plot_mixes(mixes: Sequence[TaskMixes], path: Path) -> None:
    """Draw a heat map for the input and one for the output: one row per task, one column per layer."""
    places = PLACES[: max(len(one.weights) for one in mixes)]
    layers = _num_layers(mixes)
    size = (1.6 + len(places) * (0.8 * layers + 0.4), 0.42 * len(mixes) + 1.2)
    with picture(path, columns=len(places), figsize=size, sharey=True) as axes:
        for number, (axis, place) in enumerate(zip(axes[0], places, strict=True)):
            fractions = [one.weights[number] if number < len(one.weights) else () for one in mixes]
            grid = [[*row, *[float("nan")] * (layers - len(row))] for row in fractions]  # nan: an empty field
            axis.imshow(grid, cmap="Blues", vmin=0, vmax=1, aspect="auto")
            for row, values in enumerate(fractions):
                for column, fraction in enumerate(values):
                    color = "white" if fraction > 0.6 else "black"
                    axis.text(column, row, f"{fraction:.2f}", ha="center", va="center", color=color, fontsize=8)
            axis.set_xticks(range(layers), [f"layer {n}" for n in range(layers)], fontsize=8)
            axis.set_yticks(range(len(mixes)), [one.name for one in mixes], fontsize=8)
            axis.set_title(f"mix at the {place}", fontsize=9)


def _num_layers(mixes: Sequence[TaskMixes]) -> int:
    return max(len(fractions) for one in mixes for fractions in one.weights)
