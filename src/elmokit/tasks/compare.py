"""What ELMo brings to a task: the same training without it, with it at the input, and at the output too.

Enters: a `TaskConfig` and seeds.  Leaves: the score of each variant, its mean and spread over the seeds, and the share
of the baseline's errors that went away; as a table (compare.md), as values (compare.json) and as a plot (compare.svg).
Every run is a folder under `out`: a comparison that was stopped goes on, and one with more seeds keeps those it has.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from elmokit.config import to_mapping
from elmokit.files import replacing
from elmokit.tasks.settings import ElmoAt, TaskConfig
from elmokit.tasks.trainer import Progress, TaskResult, train

NAMES: dict[ElmoAt, str] = {"none": "baseline", "input": "+ ELMo at the input", "both": "+ ELMo at input and output"}
TABLE_FILE, VALUES_FILE, PLOT_FILE = "compare.md", "compare.json", "compare.svg"


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
    comparison = _summarize(config, tuple(seeds), results)
    with replacing(out / VALUES_FILE) as temporary:
        temporary.write_text(json.dumps(to_mapping(comparison), indent=1), encoding="utf-8")
    with replacing(out / TABLE_FILE) as temporary:
        temporary.write_text(to_markdown(comparison), encoding="utf-8")
    with replacing(out / PLOT_FILE) as temporary:
        plot(comparison, temporary)
    return comparison


def _summarize(config: TaskConfig, seeds: tuple[int, ...], results: dict[ElmoAt, list[TaskResult]]) -> Comparison:
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


def to_markdown(comparison: Comparison) -> str:
    """The comparison as a table, scores in hundredths."""
    seeds = ", ".join(map(str, comparison.seeds))
    lines = [
        f"| {comparison.task}, {comparison.metric} on {comparison.part}, seeds {seeds} | mean | spread | "
        "relative error reduction | seconds |",
        "|---|---|---|---|---|",
    ]
    for one in comparison.variants:
        reduction = "" if one.error_reduction is None else f"{100 * one.error_reduction:.1f} %"
        numbers = f"{100 * one.mean:.2f} | {100 * one.spread:.2f} | {reduction} | {one.seconds:.0f}"
        lines.append(f"| {NAMES[one.elmo_at]} | {numbers} |")
    return "\n".join(lines) + "\n"


def plot(comparison: Comparison, path: Path) -> None:
    """A bar for each variant, its spread as a whisker, and a dot for each seed."""
    try:
        import matplotlib

        matplotlib.use("agg")
        from matplotlib import pyplot
    except ImportError:
        raise ValueError('a plot needs matplotlib: pip install "elmokit[plot]"') from None
    with matplotlib.rc_context({"svg.hashsalt": "elmokit"}):  # the same file for the same numbers
        figure, axis = pyplot.subplots(figsize=(6, 0.6 * len(comparison.variants) + 1.2))
        for place, one in enumerate(comparison.variants):
            color = "tab:gray" if one.elmo_at == "none" else "tab:blue"
            axis.barh(place, 100 * one.mean, xerr=100 * one.spread, color=color, alpha=0.6, capsize=3)
            axis.plot([100 * score for score in one.scores], [place] * len(one.scores), "k.", markersize=4)
        axis.set_yticks(range(len(comparison.variants)), [NAMES[one.elmo_at] for one in comparison.variants])
        axis.invert_yaxis()
        every = [score for one in comparison.variants for score in one.scores]
        margin = max(0.02, 0.5 * (max(every) - min(every)))
        axis.set_xlim(100 * max(0.0, min(every) - margin), 100 * min(1.0, max(every) + margin))
        axis.set_xlabel(f"{comparison.metric} on {comparison.part}, hundredths")
        axis.set_title(comparison.task)
        figure.tight_layout()
        figure.savefig(path, format="svg", metadata={"Date": None})
        pyplot.close(figure)
