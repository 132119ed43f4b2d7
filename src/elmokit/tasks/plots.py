"""Plots of comparisons, as SVG files. They need matplotlib (the extra `plot`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from elmokit.extras import require
from elmokit.files import replacing
from elmokit.tasks.settings import ElmoAt
from elmokit.tasks.tables import NAMES, PAPER, Comparison, percent

COLORS: dict[ElmoAt, str] = {"none": "#777777", "input": "#56B4E9", "both": "#0072B2"}  # safe for colour blindness


def require_matplotlib() -> Any:
    """Import matplotlib with a backend that needs no display.

    Raises:
        ImportError: If it is not installed. The message names the pip command.
    """
    matplotlib = require("matplotlib", extra="plot")
    matplotlib.use("agg")
    return matplotlib


@contextmanager
def picture(path: Path, *, columns: int = 1, **layout: Any) -> Iterator[Any]:
    """Draw an SVG file; the same drawing gives the same bytes.

    Args:
        path: The file, which is written at the end of the block.
        columns: Number of panels side by side.
        layout: Arguments of `matplotlib.pyplot.subplots`.

    Returns:
        A context manager that gives the axes of the panels, as one row.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    matplotlib = require_matplotlib()
    pyplot = require("matplotlib.pyplot", extra="plot")
    with matplotlib.rc_context({"svg.hashsalt": "elmokit"}):
        figure, axes = pyplot.subplots(1, columns, squeeze=False, **layout)
        try:
            yield axes
            figure.tight_layout()
            with replacing(path) as temporary:
                figure.savefig(temporary, format="svg", metadata={"Date": None})
        finally:
            pyplot.close(figure)


def plot_comparison(comparison: Comparison, path: Path) -> None:
    """Draw one bar per variant, with its spread as an error bar and one dot per seed."""
    with picture(path, figsize=(6, 0.6 * len(comparison.variants) + 1.2)) as axes:
        axis = axes[0][0]
        for place, one in enumerate(comparison.variants):
            axis.barh(place, 100 * one.mean, xerr=100 * one.spread, color=COLORS[one.elmo_at], alpha=0.7, capsize=3)
            axis.plot([100 * score for score in one.scores], [place] * len(one.scores), "k.", markersize=4)
        axis.set_yticks(range(len(comparison.variants)), [NAMES[one.elmo_at] for one in comparison.variants])
        axis.invert_yaxis()
        scores = [score for one in comparison.variants for score in one.scores]
        margin = max(0.02, 0.5 * (max(scores) - min(scores)))
        axis.set_xlim(100 * max(0.0, min(scores) - margin), 100 * min(1.0, max(scores) + margin))
        axis.set_xlabel(f"{comparison.metric} on {comparison.part}, hundredths")
        axis.set_title(comparison.task)


def plot_shares(comparisons: Mapping[float, Comparison], path: Path) -> None:
    """Draw score against share of the training data, one line per variant, with its spread as error bars."""
    first = next(iter(comparisons.values()))
    with picture(path, figsize=(6, 3.6)) as axes:
        axis = axes[0][0]
        for place, elmo_at in enumerate(one.elmo_at for one in first.variants):
            ones = [one for comparison in comparisons.values() if (one := comparison.variant(elmo_at))]
            axis.errorbar(
                [share * 1.02 ** (place - 1) for share in comparisons],  # error bars side by side
                [100 * one.mean for one in ones],
                yerr=[100 * one.spread for one in ones],
                color=COLORS[elmo_at],
                marker="o",
                markersize=4,
                capsize=3,
                label=NAMES[elmo_at],
            )
        axis.set_xscale("log")
        axis.set_xticks(list(comparisons), [percent(share) for share in comparisons])
        axis.minorticks_off()
        axis.grid(axis="y", alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_xlabel("share of the training data")
        axis.set_ylabel(f"{first.metric} on {first.part}, hundredths")
        axis.set_title(first.task)
        axis.legend(frameon=False, fontsize=8)


def plot_summary(comparisons: Mapping[str, Comparison], path: Path) -> None:
    """Draw two panels with one row per comparison: scores with their spread, and relative error reductions."""
    ordered = list(comparisons.values())
    with picture(path, columns=2, figsize=(10, 0.6 * len(ordered) + 1.4), sharey=True) as axes:
        scores, reductions = axes[0]
        for elmo_at, height in zip(NAMES, (-0.2, 0.0, 0.2), strict=True):
            variants = [(place, one) for place, each in enumerate(ordered) if (one := each.variant(elmo_at))]
            scores.errorbar(
                [100 * one.mean for _, one in variants],
                [place + height for place, _ in variants],
                xerr=[100 * one.spread for _, one in variants],
                color=COLORS[elmo_at],
                fmt="o",
                markersize=5,
                capsize=2,
                label=NAMES[elmo_at],
            )
            gains = [
                (place + (0.18 if elmo_at == "both" else -0.18), 100 * one.error_reduction)
                for place, one in variants
                if one.error_reduction is not None
            ]
            if gains:
                bars = reductions.barh(*zip(*gains, strict=True), height=0.34, color=COLORS[elmo_at])
                reductions.bar_label(bars, [f"{gain:.1f}" for _, gain in gains], padding=3, fontsize=8)
        published = [(100 * PAPER[each.task], place) for place, each in enumerate(ordered) if each.task in PAPER]
        if published:
            reductions.plot(*zip(*published, strict=True), "kd", markersize=5, label="in the paper, on its own data")
        names = [f"{name}\n{each.metric} on {each.part}" for name, each in comparisons.items()]
        scores.set_yticks(range(len(ordered)), names, fontsize=8)
        scores.set_ylim(len(ordered) - 0.5, -0.5)
        scores.set_xlabel("score, hundredths")
        reductions.set_xlabel("relative error reduction, %")
        reductions.axvline(0, color="black", linewidth=0.8)
        reductions.margins(x=0.1)
        for axis in (scores, reductions):
            axis.grid(axis="x", alpha=0.3)
            axis.set_axisbelow(True)
            axis.spines[["top", "right"]].set_visible(False)
            if axis.get_legend_handles_labels()[1]:
                axis.legend(frameon=False, fontsize=7, loc="lower left", bbox_to_anchor=(0, 1), ncols=3)
