"""What ELMo brings to a task: the same training without it, with it at the input, and at the output too.

Enters: a `TaskConfig` and seeds.  Leaves: the score of each variant, its mean and spread over the seeds, and the share
of the baseline's errors that went away; as a table (compare.md), as values (compare.json) and as a plot (compare.svg).
Every run is a folder under `out`: a comparison that was stopped goes on, and one with more seeds keeps those it has.

`compare_shares` does so with several shares of the training data (the paper's figure 1: shares.md, .json, .svg), and
`summarize` puts finished comparisons of several tasks side by side (its table 1: summary.md, .json, .svg).
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from elmokit.files import replacing, write_json
from elmokit.settings import from_mapping, read_json, to_mapping
from elmokit.tasks.settings import ElmoAt, TaskConfig
from elmokit.tasks.trainer import Progress, TaskResult, train

NAMES: dict[ElmoAt, str] = {"none": "baseline", "input": "+ ELMo at the input", "both": "+ ELMo at input and output"}
COLORS: dict[ElmoAt, str] = {"none": "#777777", "input": "#56B4E9", "both": "#0072B2"}  # told apart by all eyes
VALUES_FILE = "compare.json"
# Relative error reductions of the paper's table 1, on its own data.
PAPER = {"questions": 0.249, "entailment": 0.058, "roles": 0.172, "coreference": 0.098, "ner": 0.21, "sentiment": 0.068}


@dataclass(frozen=True)
class Variant:
    """The runs of one variant."""

    elmo_at: ElmoAt
    scores: tuple[float, ...]
    """One for each seed."""
    mean: float
    spread: float
    """The standard deviation over the seeds; 0 for one seed."""
    error_reduction: float | None
    """The share of the baseline's errors, 1 - score, that this variant does not make; null for the baseline."""
    mix_weights: tuple[tuple[float, ...], ...]
    """The learned share of each layer, for each mix, in the mean over the seeds."""
    seconds: float
    """Of one training, in the mean."""


@dataclass(frozen=True)
class Comparison:
    """All variants of one task."""

    task: str
    metric: str
    part: str
    """"test", or "dev" where there is no test file."""
    seeds: tuple[int, ...]
    variants: tuple[Variant, ...]


def compare(
    config: TaskConfig,
    *,
    seeds: Sequence[int] = (1, 2, 3),
    variants: Sequence[ElmoAt] = ("none", "input", "both"),
    on_progress: Callable[[ElmoAt, int, Progress], None] | None = None,
) -> Comparison:
    """Train every variant with every seed under `config.out`, and write what came of it there.

    `elmo_at` and `seed` of the config are not read; `tune` counts where there is a biLM.  `on_progress` hears of the
    variant and seed that train.
    """
    unknown = sorted(set(variants) - set(get_args(ElmoAt)))
    if unknown:
        raise ValueError(f"variants are {', '.join(get_args(ElmoAt))}, not {unknown[0]!r}")
    if not seeds or not variants or len(set(seeds)) < len(seeds):
        raise ValueError(f"a comparison needs variants and different seeds, not {list(variants)} and {list(seeds)}")
    out = Path(config.out)
    results: dict[ElmoAt, list[TaskResult]] = {elmo_at: [] for elmo_at in variants}
    for seed in seeds:
        for elmo_at in results:
            run = dataclasses.replace(
                config,
                elmo_at=elmo_at,
                seed=seed,
                tune=config.tune and elmo_at != "none",
                out=str(out / f"{elmo_at}-{seed}"),
            )

            def report(progress: Progress, elmo_at: ElmoAt = elmo_at, seed: int = seed) -> None:
                if on_progress is not None:
                    on_progress(elmo_at, seed, progress)

            results[elmo_at].append(train(run, on_progress=report))
    comparison = _gather(config, tuple(seeds), results)
    _write(out, "compare", to_mapping(comparison), to_markdown(*comparison_table(comparison)))
    plot(comparison, out / "compare.svg")
    return comparison


def _gather(config: TaskConfig, seeds: tuple[int, ...], results: dict[ElmoAt, list[TaskResult]]) -> Comparison:
    baseline = statistics.fmean(run.score for run in results["none"]) if "none" in results else None
    variants = []
    for elmo_at, runs in results.items():
        scores = tuple(run.score for run in runs)
        mean, reduction = statistics.fmean(scores), None
        if baseline is not None and elmo_at != "none":
            reduction = (mean - baseline) / (1 - baseline) if baseline < 1 else 0.0
        mixes = zip(*(run.mix_weights for run in runs), strict=True)  # each mix with its weights of all seeds
        variants.append(
            Variant(
                elmo_at=elmo_at,
                scores=scores,
                mean=mean,
                spread=statistics.stdev(scores) if len(scores) > 1 else 0.0,
                error_reduction=reduction,
                mix_weights=tuple(tuple(map(statistics.fmean, zip(*mix, strict=True))) for mix in mixes),
                seconds=statistics.fmean(run.seconds for run in runs),
            )
        )
    metric = next(iter(results.values()))[0].metric
    return Comparison(config.task, metric, "dev" if config.test is None else "test", seeds, tuple(variants))


def comparison_table(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Heads and rows: a row for each variant, scores in hundredths."""
    seeds = ", ".join(map(str, comparison.seeds))
    head = f"{comparison.task}, {comparison.metric} on {comparison.part}, seeds {seeds}"
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
    return [head, "mean", "spread", "relative error reduction", "seconds"], rows


def plot(comparison: Comparison, path: Path) -> None:
    """A bar for each variant, its spread as a whisker, and a dot for each seed."""
    with picture(path, figsize=(6, 0.6 * len(comparison.variants) + 1.2)) as axes:
        axis = axes[0][0]
        for place, one in enumerate(comparison.variants):
            axis.barh(place, 100 * one.mean, xerr=100 * one.spread, color=COLORS[one.elmo_at], alpha=0.7, capsize=3)
            axis.plot([100 * score for score in one.scores], [place] * len(one.scores), "k.", markersize=4)
        axis.set_yticks(range(len(comparison.variants)), [NAMES[one.elmo_at] for one in comparison.variants])
        axis.invert_yaxis()
        every = [score for one in comparison.variants for score in one.scores]
        margin = max(0.02, 0.5 * (max(every) - min(every)))
        axis.set_xlim(100 * max(0.0, min(every) - margin), 100 * min(1.0, max(every) + margin))
        axis.set_xlabel(f"{comparison.metric} on {comparison.part}, hundredths")
        axis.set_title(comparison.task)


# ---- several shares of the training data -----------------------------------------------------------------------------


def compare_shares(
    config: TaskConfig,
    shares: Sequence[float],
    *,
    seeds: Sequence[int] = (1, 2, 3),
    variants: Sequence[ElmoAt] = ("none", "input", "both"),
    on_progress: Callable[[float, ElmoAt, int, Progress], None] | None = None,
) -> dict[float, Comparison]:
    """The comparison with each share of the training examples, the smallest first.

    A share's runs lie in `config.out`/share-0.1; those of all examples in `config.out` itself, where `compare` has
    them.  What is finished is not trained again.
    """
    if not shares or len(set(shares)) < len(shares) or not all(0 < share <= 1 for share in shares):
        raise ValueError(f"shares are different numbers above 0 and at most 1, not {list(shares)}")
    out = Path(config.out)
    found: dict[float, Comparison] = {}
    for share in sorted(shares):

        def report(elmo_at: ElmoAt, seed: int, progress: Progress, share: float = share) -> None:
            if on_progress is not None:
                on_progress(share, elmo_at, seed, progress)

        folder = out if share == 1 else out / f"share-{share:g}"
        part = dataclasses.replace(config, share=float(share), out=str(folder))
        found[share] = compare(part, seeds=seeds, variants=variants, on_progress=report)
    page = to_markdown(*share_table(found)) + "".join(f"\n{sentence}\n" for sentence in _equal_shares(found))
    _write(out, "shares", {f"{share:g}": to_mapping(one) for share, one in found.items()}, page)
    plot_shares(found, out / "shares.svg")
    return found


def share_table(comparisons: Mapping[float, Comparison]) -> tuple[list[str], list[list[str]]]:
    """Heads and rows: mean ± spread of each variant in hundredths, a row for each share."""
    first = next(iter(comparisons.values()))
    head = f"{first.task}: {first.metric} on {first.part}, {len(first.seeds)} seeds"
    rows = [[_percent(share), *map(_mean_and_spread, one.variants)] for share, one in comparisons.items()]
    return [head, *(NAMES[one.elmo_at] for one in first.variants)], rows


def _equal_shares(comparisons: Mapping[float, Comparison]) -> list[str]:
    """How little of the training data does with ELMo what all of it does without."""
    largest = max(comparisons)
    baseline = _variant(comparisons[largest], "none")
    sentences = []
    for elmo_at in ("input", "both"):
        scores = {share: _variant(comparison, elmo_at) for share, comparison in comparisons.items()}
        enough = [share for share, one in scores.items() if baseline and one and one.mean >= baseline.mean]
        if enough and min(enough) < largest:
            least, most = _percent(min(enough)), _percent(largest)
            sentences.append(f"{NAMES[elmo_at]}: {least} of train do at least what {most} do for the baseline.")
    return sentences


def plot_shares(comparisons: Mapping[float, Comparison], path: Path) -> None:
    """Score against share, a line for each variant, its spread as whiskers."""
    first = next(iter(comparisons.values()))
    with picture(path, figsize=(6, 3.6)) as axes:
        axis = axes[0][0]
        for place, elmo_at in enumerate(one.elmo_at for one in first.variants):
            ones = [one for comparison in comparisons.values() if (one := _variant(comparison, elmo_at))]
            axis.errorbar(
                [share * 1.02 ** (place - 1) for share in comparisons],  # whiskers beside each other
                [100 * one.mean for one in ones],
                yerr=[100 * one.spread for one in ones],
                color=COLORS[elmo_at],
                marker="o",
                markersize=4,
                capsize=3,
                label=NAMES[elmo_at],
            )
        axis.set_xscale("log")
        axis.set_xticks(list(comparisons), [_percent(share) for share in comparisons])
        axis.minorticks_off()
        axis.grid(axis="y", alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_xlabel("share of the training data")
        axis.set_ylabel(f"{first.metric} on {first.part}, hundredths")
        axis.set_title(first.task)
        axis.legend(frameon=False, fontsize=8)


# ---- several tasks ---------------------------------------------------------------------------------------------------


def read_comparison(folder: str | Path) -> Comparison:
    """The finished comparison in a folder."""
    path = Path(folder) / VALUES_FILE
    if not path.is_file():
        raise ValueError(f"{folder}: no {VALUES_FILE} there: name a folder that `elmokit task compare` finished")
    values = read_json(path)
    variants = values.get("variants")
    if not isinstance(variants, list) or not variants:
        raise ValueError(f"{path}: there are no variants in it")
    values["variants"] = [from_mapping(Variant, one, source=f"{path}: variants") for one in variants]
    return from_mapping(Comparison, values, source=str(path))


def read_comparisons(folders: Sequence[str | Path]) -> dict[str, Comparison]:
    """Finished comparisons by the names of their folders."""
    return {name: read_comparison(folder) for name, folder in by_name(folders).items()}


def by_name(folders: Sequence[str | Path]) -> dict[str, Path]:
    """The folders by their names, which must differ."""
    found: dict[str, Path] = {}
    for folder in folders:
        name = Path(folder).resolve().name
        if name in found:
            raise ValueError(f"{found[name]} and {folder} have the same name {name!r}: rename one of them")
        found[name] = Path(folder)
    return found


def summarize(folders: Sequence[str | Path], out: str | Path) -> dict[str, Comparison]:
    """Read finished comparisons, and write table, values and plot of all of them into `out`."""
    found = read_comparisons(folders)
    Path(out).mkdir(parents=True, exist_ok=True)
    values = {name: to_mapping(one) for name, one in found.items()}
    _write(Path(out), "summary", values, to_markdown(*summary_table(found)))
    plot_summary(found, Path(out) / "summary.svg")
    return found


def summary_table(comparisons: Mapping[str, Comparison]) -> tuple[list[str], list[list[str]]]:
    """Heads and rows: mean ± spread of each variant in hundredths, relative error reductions, the paper's beside."""
    reduced = [f"error reduction{one}" for one in (", input", ", both", " in the paper, its data")]
    columns = ["data", "task", "metric", "seeds", *NAMES.values(), *reduced]
    rows = []
    for name, comparison in comparisons.items():
        variants = [_variant(comparison, elmo_at) for elmo_at in NAMES]
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


def plot_summary(comparisons: Mapping[str, Comparison], path: Path) -> None:
    """Two panels, a row for each comparison: scores with their spread, and relative error reductions."""
    every = list(comparisons.values())
    with picture(path, columns=2, figsize=(10, 0.6 * len(every) + 1.4), sharey=True) as axes:
        scores, reductions = axes[0]
        for elmo_at, height in zip(NAMES, (-0.2, 0.0, 0.2), strict=True):
            found = [(place, one) for place, each in enumerate(every) if (one := _variant(each, elmo_at))]
            scores.errorbar(
                [100 * one.mean for _, one in found],
                [place + height for place, _ in found],
                xerr=[100 * one.spread for _, one in found],
                color=COLORS[elmo_at],
                fmt="o",
                markersize=5,
                capsize=2,
                label=NAMES[elmo_at],
            )
            gains = [
                (place + (0.18 if elmo_at == "both" else -0.18), 100 * one.error_reduction)
                for place, one in found
                if one.error_reduction is not None
            ]
            if gains:
                bars = reductions.barh(*zip(*gains, strict=True), height=0.34, color=COLORS[elmo_at])
                reductions.bar_label(bars, [f"{gain:.1f}" for _, gain in gains], padding=3, fontsize=8)
        known = [(100 * PAPER[each.task], place) for place, each in enumerate(every) if each.task in PAPER]
        if known:
            reductions.plot(*zip(*known, strict=True), "kd", markersize=5, label="in the paper, on its own data")
        names = [f"{name}\n{each.metric} on {each.part}" for name, each in comparisons.items()]
        scores.set_yticks(range(len(every)), names, fontsize=8)
        scores.set_ylim(len(every) - 0.5, -0.5)
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


# ---- what all of them share ------------------------------------------------------------------------------------------


def _variant(comparison: Comparison, elmo_at: ElmoAt) -> Variant | None:
    return next((one for one in comparison.variants if one.elmo_at == elmo_at), None)


def _mean_and_spread(one: Variant) -> str:
    return f"{100 * one.mean:.2f} ± {100 * one.spread:.2f}"


def _percent(share: float) -> str:
    return f"{100 * share:g} %"


def to_markdown(columns: list[str], rows: list[list[str]]) -> str:
    """A table of text as Markdown."""
    return "".join(f"| {' | '.join(line)} |\n" for line in [columns, ["---"] * len(columns), *rows])


def _write(out: Path, name: str, values: dict[str, Any], table: str) -> None:
    write_json(out / f"{name}.json", values)
    with replacing(out / f"{name}.md") as temporary:
        temporary.write_text(table, encoding="utf-8")


@contextmanager
def picture(path: Path, *, columns: int = 1, **layout: Any) -> Iterator[Any]:
    """The axes of a row of panels; what was drawn on them is an SVG file when the block ends, the same each time."""
    try:
        import matplotlib

        matplotlib.use("agg")
        from matplotlib import pyplot
    except ImportError:
        raise ValueError('a plot needs matplotlib: pip install "elmokit[plot]"') from None
    with matplotlib.rc_context({"svg.hashsalt": "elmokit"}):
        figure, axes = pyplot.subplots(1, columns, squeeze=False, **layout)
        try:
            yield axes
            figure.tight_layout()
            with replacing(path) as temporary:
                figure.savefig(temporary, format="svg", metadata={"Date": None})
        finally:
            pyplot.close(figure)
