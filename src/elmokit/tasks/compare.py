"""The effect of ELMo on a task: the same training without it, with it at the input, and at the output too.

Input: a `TaskConfig` and seeds. Output: the score of each variant, its mean and spread over the seeds, and the fraction
of the baseline's errors that it removes; as a table (compare.md), as values (compare.json) and as a plot (compare.svg).
Every run is a folder under `out`. A comparison that was stopped resumes, and one with more seeds keeps its runs.
Several runs can be trained at the same time (side_by_side.py).

`compare_shares` does the same with several shares of the training data (the paper's figure 1: shares.md, .json, .svg),
and `summarize` puts finished comparisons of several tasks into one table (its table 1: summary.md, .json, .svg).
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

from elmokit.arguments import check_callable, check_instance, check_optional_integer, check_path
from elmokit.files import check_new_folder, replacing, write_json
from elmokit.settings import to_mapping
from elmokit.tasks.plots import picture, plot_comparison, plot_shares, plot_summary, require_matplotlib
from elmokit.tasks.settings import ElmoAt, TaskConfig
from elmokit.tasks.side_by_side import choose_jobs, train_side_by_side
from elmokit.tasks.tables import (
    NAMES,
    VALUES_FILE,
    Comparison,
    Variant,
    by_name,
    comparison_table,
    read_comparison,
    read_comparisons,
    share_table,
    smallest_shares,
    summary_table,
    to_markdown,
)
from elmokit.tasks.trainer import Progress, TaskResult, check_folder, train

__all__ = [
    "NAMES",
    "VALUES_FILE",
    "Comparison",
    "Variant",
    "by_name",
    "compare",
    "compare_shares",
    "comparison_table",
    "picture",
    "read_comparison",
    "read_comparisons",
    "share_table",
    "summarize",
    "summary_table",
    "to_markdown",
]


def compare(
    config: TaskConfig,
    *,
    seeds: Sequence[int] = (1, 2, 3),
    variants: Sequence[ElmoAt] = ("none", "input", "both"),
    jobs: int | None = None,
    on_progress: Callable[[ElmoAt, int, Progress], None] | None = None,
) -> Comparison:
    """Train every variant with every seed, and write table, values and plot.

    If a training fails, the others are stopped. Runs that are finished are kept, and the same call resumes the others.

    Args:
        config: The settings; the runs are in folders under `config.out`. `elmo_at` and `seed` are ignored, and `tune`
            is for the variants with ELMo.
        seeds: One training of each variant per seed.
        variants: Where ELMo's vectors are added.
        jobs: Number of trainings that run at the same time, each in a process of its own with one CPU thread. With 1
            they run in this process, one after the other. None: on a GPU six, and at most one per CPU core; 1 on a
            CPU, and if `tune` is set. The results are the same, except for the last digits of sums that several CPU
            threads add up.
        on_progress: Called in this process with the variant and the seed that train, and their progress. With several
            jobs at most ten times per second and training.

    Raises:
        ImportError: If matplotlib, or an optional module that the task needs, is not installed.
        ValueError: If seeds, variants, jobs or settings are wrong.
        RuntimeError: If the process of a training was killed. The message names the training and the signal.
    """
    seeds, variants = _check(config, seeds, variants, jobs, on_progress)
    runs = _runs(config, seeds, variants)
    report = on_progress or (lambda elmo_at, seed, progress: None)
    _train_together(config, runs, jobs, report)
    results: dict[ElmoAt, list[TaskResult]] = {elmo_at: [] for elmo_at in variants}
    for (elmo_at, seed), run in runs.items():  # those that are finished are read
        results[elmo_at].append(train(run, on_progress=partial(report, elmo_at, seed)))
    comparison = _gather(config, tuple(seeds), results)
    out = Path(config.out)
    _write(out, "compare", to_mapping(comparison), to_markdown(*comparison_table(comparison)))
    plot_comparison(comparison, out / "compare.svg")
    return comparison


def _check(
    config: TaskConfig, seeds: Sequence[int], variants: Sequence[ElmoAt], jobs: int | None, on_progress: object
) -> tuple[list[int], list[ElmoAt]]:
    """Check the arguments of a comparison, and return seeds and different variants."""
    check_instance("config", config, TaskConfig, "the settings of a training, a TaskConfig")
    check_callable("on_progress", on_progress)
    check_optional_integer("jobs", jobs)
    unknown = sorted(set(variants) - set(get_args(ElmoAt)))
    if unknown:
        raise ValueError(f"variants are {', '.join(get_args(ElmoAt))}, not {unknown[0]!r}")
    if not seeds or not variants or len(set(seeds)) < len(seeds):
        raise ValueError(f"a comparison needs variants and different seeds, not {list(variants)} and {list(seeds)}")
    require_matplotlib()
    return list(seeds), list(dict.fromkeys(variants))


def _runs(config: TaskConfig, seeds: Sequence[int], variants: Sequence[ElmoAt]) -> dict[tuple[ElmoAt, int], TaskConfig]:
    """The settings of each training of a comparison, by variant and seed, in the order in which they are trained."""
    return {
        (elmo_at, seed): dataclasses.replace(
            config,
            elmo_at=elmo_at,
            seed=seed,
            tune=config.tune and elmo_at != "none",
            out=str(Path(config.out) / f"{elmo_at}-{seed}"),
        )
        for seed in seeds
        for elmo_at in variants
    }


def _train_together(
    config: TaskConfig, runs: Mapping[Any, TaskConfig], jobs: int | None, report: Callable[..., None]
) -> None:
    """Check the folders of all runs. Train the runs, if several are to run at the same time.

    The keys of `runs` are the arguments of `report` before the progress.
    """
    jobs = choose_jobs(config, len(runs), jobs)
    for run in runs.values():
        check_folder(run)
    if jobs > 1:
        keys = list(runs)
        train_side_by_side(list(runs.values()), jobs, lambda number, progress: report(*keys[number], progress))


def _gather(config: TaskConfig, seeds: tuple[int, ...], results: dict[ElmoAt, list[TaskResult]]) -> Comparison:
    """The means over the seeds."""
    baseline = statistics.fmean(run.score for run in results["none"]) if "none" in results else None
    variants = []
    for elmo_at, runs in results.items():
        scores = tuple(run.score for run in runs)
        mean, reduction = statistics.fmean(scores), None
        if baseline is not None and elmo_at != "none":
            reduction = (mean - baseline) / (1 - baseline) if baseline < 1 else 0.0
        mixes = zip(*(run.mix_weights for run in runs), strict=True)  # for each mix its weights of all seeds
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


def compare_shares(
    config: TaskConfig,
    shares: Sequence[float],
    *,
    seeds: Sequence[int] = (1, 2, 3),
    variants: Sequence[ElmoAt] = ("none", "input", "both"),
    jobs: int | None = None,
    on_progress: Callable[[float, ElmoAt, int, Progress], None] | None = None,
) -> dict[float, Comparison]:
    """Compare with several shares of the training examples, the smallest first, and write table, values and plot.

    Args:
        config: The settings, as for `compare`. The runs of a share are in `config.out`/share-0.1; those of all examples
            in `config.out`, as `compare` writes them. Finished runs are not trained again.
        shares: Fractions of the training examples, above 0 and at most 1.
        seeds: One training of each variant per seed.
        variants: Where ELMo's vectors are added.
        jobs: Number of trainings that run at the same time, as for `compare`; they may be of several shares.
        on_progress: Called with the share, the variant and the seed that train, and their progress.

    Returns:
        The comparison of each share.

    Raises:
        ImportError: If matplotlib, or an optional module that the task needs, is not installed.
        ValueError: If shares, seeds, variants, jobs or settings are wrong.
        RuntimeError: If the process of a training was killed. The message names the training and the signal.
    """
    if not shares or len(set(shares)) < len(shares) or not all(0 < share <= 1 for share in shares):
        raise ValueError(f"shares are different numbers above 0 and at most 1, not {list(shares)}")
    seeds, variants = _check(config, seeds, variants, jobs, on_progress)
    out = Path(config.out)
    folders = {share: out if share == 1 else out / f"share-{share:g}" for share in sorted(shares)}
    parts = {
        share: dataclasses.replace(config, share=float(share), out=str(folder)) for share, folder in folders.items()
    }
    runs = {(share, *key): run for share, part in parts.items() for key, run in _runs(part, seeds, variants).items()}
    report = on_progress or (lambda share, elmo_at, seed, progress: None)
    _train_together(config, runs, jobs, report)
    comparisons = {
        share: compare(part, seeds=seeds, variants=variants, jobs=1, on_progress=partial(report, share))
        for share, part in parts.items()
    }
    page = to_markdown(*share_table(comparisons)) + "".join(f"\n{line}\n" for line in smallest_shares(comparisons))
    _write(out, "shares", {f"{share:g}": to_mapping(one) for share, one in comparisons.items()}, page)
    plot_shares(comparisons, out / "shares.svg")
    return comparisons


def summarize(folders: Sequence[str | Path], out: str | Path) -> dict[str, Comparison]:
    """Write table, values and plot of finished comparisons of several tasks.

    Args:
        folders: Folders that `compare` wrote, with different names.
        out: The folder for summary.md, summary.json and summary.svg.

    Returns:
        The comparisons by the names of their folders.

    Raises:
        ImportError: If matplotlib is not installed.
        ValueError: If a folder has no finished comparison.
    """
    check_path("out", out)
    require_matplotlib()
    check_new_folder(Path(out))
    comparisons = read_comparisons(folders)
    Path(out).mkdir(parents=True, exist_ok=True)
    values = {name: to_mapping(one) for name, one in comparisons.items()}
    _write(Path(out), "summary", values, to_markdown(*summary_table(comparisons)))
    plot_summary(comparisons, Path(out) / "summary.svg")
    return comparisons


def _write(out: Path, name: str, values: dict[str, Any], table: str) -> None:
    write_json(out / f"{name}.json", values)
    with replacing(out / f"{name}.md") as temporary:
        temporary.write_text(table, encoding="utf-8")
