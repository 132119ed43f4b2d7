"""Comparisons of trainings as values and as tables.

Input: the folders of finished comparisons. Output: `Comparison` objects, and tables of text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from elmokit.arguments import check_path, check_paths
from elmokit.progress import format_count
from elmokit.settings import from_mapping, read_json
from elmokit.tasks.settings import ElmoAt

NAMES: dict[ElmoAt, str] = {"none": "baseline", "input": "+ ELMo at the input", "both": "+ ELMo at input and output"}
VALUES_FILE = "compare.json"
# Relative error reductions of the paper's table 1, on its own data.
PAPER = {"questions": 0.249, "entailment": 0.058, "roles": 0.172, "coreference": 0.098, "ner": 0.21, "sentiment": 0.068}


@dataclass(frozen=True)
class Variant:
    """The runs of one variant."""

    elmo_at: ElmoAt
    scores: tuple[float, ...]
    """One per seed."""
    mean: float
    spread: float
    """Standard deviation over the seeds; 0 for one seed."""
    error_reduction: float | None
    """Fraction of the baseline's errors, 1 - score, that this variant does not make; null for the baseline."""
    mix_weights: tuple[tuple[float, ...], ...]
    """The learned weights of the layers for each mix, averaged over the seeds."""
    seconds: float
    """Time of one training, averaged over the seeds."""


@dataclass(frozen=True)
class Comparison:
    """All variants of one task."""

    task: str
    metric: str
    part: str
    """"test", or "dev" if there is no test file."""
    seeds: tuple[int, ...]
    variants: tuple[Variant, ...]

    def variant(self, elmo_at: ElmoAt) -> Variant | None:
        """The runs of one variant; None if it was not run."""
        return next((one for one in self.variants if one.elmo_at == elmo_at), None)


# ---- reading ---------------------------------------------------------------------------------------------------------


def read_comparison(folder: str | Path) -> Comparison:
    """Read a finished comparison.

    Args:
        folder: The folder that `compare` wrote.

    Raises:
        ValueError: If there is no finished comparison in it.
    """
    path = Path(check_path("folder", folder)) / VALUES_FILE
    if not path.is_file():
        raise ValueError(f"{folder}: no {VALUES_FILE} there: pass a folder that `elmokit task compare` finished")
    values = read_json(path)
    variants = values.get("variants")
    if not isinstance(variants, list) or not variants:
        raise ValueError(f"{path}: there are no variants in it")
    values["variants"] = [from_mapping(Variant, one, source=f"{path}: variants") for one in variants]
    return from_mapping(Comparison, values, source=str(path))


def read_comparisons(folders: Sequence[str | Path]) -> dict[str, Comparison]:
    """Read finished comparisons.

    Args:
        folders: Folders that `compare` wrote, with different names.

    Returns:
        The comparisons by the names of their folders.
    """
    return {name: read_comparison(folder) for name, folder in by_name(folders).items()}


def by_name(folders: Sequence[str | Path]) -> dict[str, Path]:
    """The folders by their names.

    Raises:
        ValueError: If two have the same name, or one is not a path.
    """
    named: dict[str, Path] = {}
    for folder in check_paths("folders", folders):
        name = Path(folder).resolve().name
        if name in named:
            raise ValueError(f"{named[name]} and {folder} have the same name {name!r}: rename one of them")
        named[name] = Path(folder)
    return named


# ---- tables ----------------------------------------------------------------------------------------------------------


def comparison_table(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """The table of one comparison.

    Returns:
        Column names, and one row per variant; scores are multiplied by 100.
    """
    seeds = ", ".join(map(str, comparison.seeds))
    title = f"{comparison.task}, {comparison.metric} on {comparison.part}, seeds {seeds}"
    rows = [
        [
            NAMES[one.elmo_at],
            f"{100 * one.mean:.2f}",
            f"{100 * one.spread:.2f}",
            "" if one.error_reduction is None else f"{100 * one.error_reduction:.1f} %",
            f"{one.seconds:.0f}",
        ]
        for one in comparison.variants
    ]
    return [title, "mean", "spread", "relative error reduction", "seconds"], rows


def share_table(comparisons: Mapping[float, Comparison]) -> tuple[list[str], list[list[str]]]:
    """The table of a comparison with several shares of the training data.

    Returns:
        Column names, and one row per share: mean ± spread of each variant, multiplied by 100.
    """
    first = next(iter(comparisons.values()))
    title = f"{first.task}: {first.metric} on {first.part}, {format_count(len(first.seeds), 'seed')}"
    rows = [[percent(share), *map(_mean_and_spread, one.variants)] for share, one in comparisons.items()]
    return [title, *(NAMES[one.elmo_at] for one in first.variants)], rows


def smallest_shares(comparisons: Mapping[float, Comparison]) -> list[str]:
    """One sentence per variant with ELMo: the smallest share that is as good as the baseline with the largest."""
    largest = max(comparisons)
    baseline = comparisons[largest].variant("none")
    sentences = []
    for elmo_at in ("input", "both"):
        variants = {share: comparison.variant(elmo_at) for share, comparison in comparisons.items()}
        enough = [share for share, one in variants.items() if baseline and one and one.mean >= baseline.mean]
        if enough and min(enough) < largest:
            least, most = percent(min(enough)), percent(largest)
            sentences.append(f"{NAMES[elmo_at]}: {least} of train is at least as good as the baseline with {most}.")
    return sentences


def summary_table(comparisons: Mapping[str, Comparison]) -> tuple[list[str], list[list[str]]]:
    """The table of several tasks.

    Returns:
        Column names, and one row per comparison: mean ± spread of each variant, multiplied by 100, and relative error
        reductions with those of the paper.
    """
    reduced = [f"error reduction{one}" for one in (", input", ", both", " in the paper, its data")]
    columns = ["data", "task", "metric", "seeds", *NAMES.values(), *reduced]
    rows = []
    for name, comparison in comparisons.items():
        variants = [comparison.variant(elmo_at) for elmo_at in NAMES]
        reductions = [None if one is None else one.error_reduction for one in variants[1:]]
        rows.append(
            [
                name,
                comparison.task,
                f"{comparison.metric} on {comparison.part}",
                str(len(comparison.seeds)),
                *("" if one is None else _mean_and_spread(one) for one in variants),
                *("" if one is None else f"{100 * one:.1f} %" for one in [*reductions, PAPER.get(comparison.task)]),
            ]
        )
    return columns, rows


def to_markdown(columns: list[str], rows: list[list[str]]) -> str:
    """A table of text as Markdown."""
    return "".join(f"| {' | '.join(line)} |\n" for line in [columns, ["---"] * len(columns), *rows])


def percent(share: float) -> str:
    """A fraction as a percentage: 0.1 is "10 %"."""
    return f"{100 * share:g} %"


def _mean_and_spread(one: Variant) -> str:
    return f"{100 * one.mean:.2f} ± {100 * one.spread:.2f}"
