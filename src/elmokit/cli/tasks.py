"""The verbs of `elmokit task`: train, eval, predict, compare, summary."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import click

from elmokit.cli.terminal import (
    RecipeCommand,
    device_option,
    json_option,
    model_option,
    open_input,
    print_json,
    print_result,
    print_table,
    set_option,
)
from elmokit.progress import Lines, shows_bars

if TYPE_CHECKING:
    from elmokit.tasks import Progress, TaskConfig, TrainedTask
    from elmokit.tasks.settings import ElmoAt

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
LINES_AT_ONCE = 256  # lines of standard input that are predicted together


@click.group()
def task() -> None:
    """Train and use the tasks of the ELMo paper, and word senses.

    Tasks: ner, sentiment, entailment, questions, roles, coreference, pronouns, pos, chunking, wsd.
    """


def training_options(verb: F) -> F:
    """The options that `train` and `compare` share."""
    for option in reversed(
        [
            click.argument("recipe", metavar="TASK|RECIPE"),
            click.option("--data", metavar="FOLDER", help="Folder of the files train, dev and test."),
            click.option(
                "--train", "train_files", multiple=True, metavar="FILE", help="Training data; can be repeated."
            ),
            click.option(
                "--dev", "dev_files", multiple=True, metavar="FILE", help="Development data; can be repeated."
            ),
            click.option("--test", "test_files", multiple=True, metavar="FILE", help="Test data; can be repeated."),
            click.option("-o", "--out", metavar="FOLDER", help="Folder of the run and of the trained task."),
            model_option,
            click.option(
                "--vectors", metavar="PATH", help="Static word vectors: a text file, or a folder with a .npy file."
            ),
            click.option("--tune", is_flag=True, help="Train the biLM too."),
            device_option,
            set_option,
        ]
    ):
        verb = option(verb)
    return verb


def moved_options(verb: F) -> F:
    """The options of `eval` and `predict` for a biLM and word vectors that are not where they were in training."""
    for option in reversed(
        [
            click.option(
                "--model", "elmo", metavar="MODEL", help="The biLM of the task.  [default: where it was in training]"
            ),
            click.option(
                "--vectors",
                metavar="PATH",
                help="The word vectors of the task.  [default: where they were in training]",
            ),
        ]
    ):
        verb = option(verb)
    return verb


@task.command(cls=RecipeCommand, recipes="tasks")
@training_options
@click.option(
    "--elmo-at",
    type=click.Choice(["none", "input", "both"]),
    help="Where ELMo's vectors are used: nowhere, as input, or as input and output.  [default: by the task]",
)
@click.option(
    "--sense-index",
    metavar="FILE",
    help="WordNet's index.sense, for wsd: gives words that are not in --train their first sense.",
)
@json_option
def train(as_json: bool, **options: Any) -> None:
    """Train a task on --data and write it to --out.

    TASK is the name of a task, RECIPE the name of a recipe of the package (below) or a TOML file. If a run is stopped,
    the same command resumes it.
    """
    from elmokit.tasks import train as train_task

    config = _read_config(**options)
    with _progress() as show:
        result = train_task(config, on_progress=lambda progress: show("", progress))
    scores = result.dev if result.test is None else result.test
    part = "dev" if result.test is None else "test"
    line = f"{result.folder}: {_format_scores(scores)} on {part} (epoch {result.best_epoch} of {result.epochs})"
    print_result(as_json, {**dataclasses.asdict(result), "score": result.score}, line)


@task.command("eval")
@click.argument("folder")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@moved_options
@device_option
@json_option
def evaluate(
    folder: str, files: tuple[str, ...], elmo: str | None, vectors: str | None, device: str | None, as_json: bool
) -> None:
    """Print the scores of a trained task on labelled files."""
    from elmokit.tasks import load_task

    scores = load_task(folder, device=device or "auto", elmo=elmo, vectors=vectors).evaluate(files)
    print_result(as_json, scores, _format_scores(scores))


@task.command()
@click.argument("folder")
@click.argument("source", default="-", metavar="[FILE]")
@moved_options
@device_option
def predict(folder: str, source: str, elmo: str | None, vectors: str | None, device: str | None) -> None:
    """Print predictions for each line of FILE, as JSON lines.

    FOLDER is a trained task. Without FILE, read standard input. A line is a text, or a JSON object with the fields of
    the task.
    """
    from elmokit.tasks import load_task
    from elmokit.vector_files import decode_lines

    trained = load_task(folder, device=device or "auto", elmo=elmo, vectors=vectors)
    name = "standard input" if source == "-" else source
    with open_input(source) as (file, _):
        first = 1
        for texts in _blocks(decode_lines(file, name)):
            try:
                results = trained.predict(texts)
            except ValueError as error:
                raise ValueError(f"{name}: {_find_line(trained, texts, first)}{error}") from None
            for result in results:
                print_json(result, ensure_ascii=False)
            sys.stdout.flush()
            first += len(texts)


@task.command(cls=RecipeCommand, recipes="tasks")
@training_options
@click.option("--seeds", type=click.IntRange(1), default=3, show_default=True, help="Number of trainings per variant.")
@click.option("--shares", metavar="NUMBERS", help="Train on these fractions of the training data, as in 0.01,0.1,1.")
@click.option(
    "--variants",
    metavar="NAMES",
    default="none,input,both",
    show_default=True,
    help="Where ELMo's vectors are used, as in --elmo-at of `task train`; one table row per name.",
)
@click.option(
    "--jobs",
    type=click.IntRange(1),
    metavar="N",
    help="Number of trainings that run at the same time, each with one CPU thread if there are several.  "
    "[default: 6 on a GPU, at most one per CPU core; 1 on a CPU, or with --tune]",
)
@json_option
def compare(seeds: int, shares: str | None, variants: str, jobs: int | None, as_json: bool, **options: Any) -> None:
    """Train a task with and without ELMo, and compare.

    The variants are: without ELMo, with ELMo as input, with ELMo as input and output. The table and the plot are
    written to --out.

    TASK is the name of a task, RECIPE the name of a recipe of the package (below) or a TOML file. With --shares, train
    on several fractions of the training data. If a comparison is stopped, the same command resumes it. If a training
    fails, the others are stopped.
    """
    from elmokit.settings import to_mapping
    from elmokit.tasks import compare as comparing
    from elmokit.tasks.side_by_side import choose_jobs

    names, numbers = variants.split(","), None if shares is None else _read_shares(shares)
    config = _read_config(**options)
    jobs = choose_jobs(config, seeds * len(names) * len(numbers or [1]), jobs)
    trainings: dict[str, Any] = {"seeds": range(1, seeds + 1), "variants": names, "jobs": jobs}
    with _progress(jobs) as show:

        def report(share: float | None, elmo_at: ElmoAt, seed: int, progress: Progress) -> None:
            part = "" if share is None else f"{100 * share:g} %, "
            show(f"{part}{comparing.NAMES[elmo_at]}, seed {seed}: ", progress)

        if numbers is None:
            comparison = comparing.compare(config, **trainings, on_progress=partial(report, None))
            values, table = to_mapping(comparison), comparing.comparison_table(comparison)
        else:
            comparisons = comparing.compare_shares(config, numbers, **trainings, on_progress=report)
            values = {f"{share:g}": to_mapping(one) for share, one in comparisons.items()}
            table = comparing.share_table(comparisons)
    print_table(as_json, values, *table)


@task.command()
@click.argument("folders", nargs=-1, required=True, metavar="FOLDER...")
@click.option("-o", "--out", metavar="FOLDER", help="Folder for summary.md, summary.json and summary.svg.")
@json_option
def summary(folders: tuple[str, ...], out: str | None, as_json: bool) -> None:
    """Print finished comparisons as one table.

    The table also has the scores of the paper. Each FOLDER is the --out of an `elmokit task compare`; its name is the
    name of the row.
    """
    from elmokit.settings import to_mapping
    from elmokit.tasks.compare import read_comparisons, summarize, summary_table

    comparisons = read_comparisons(folders) if out is None else summarize(folders, out)
    values = {name: to_mapping(comparison) for name, comparison in comparisons.items()}
    print_table(as_json, values, *summary_table(comparisons))


def _read_shares(text: str) -> list[float]:
    try:
        return [float(number) for number in text.split(",")]
    except ValueError:
        raise ValueError(f"--shares {text!r}: write numbers with commas between them, as in 0.01,0.1,1") from None


def _read_config(
    *,
    recipe: str,
    data: str | None,
    train_files: tuple[str, ...],
    dev_files: tuple[str, ...],
    test_files: tuple[str, ...],
    overrides: tuple[str, ...],
    tune: bool,
    model: str | None,
    **options: str | None,
) -> TaskConfig:
    """The settings of a training, from the recipe and the options of `training_options`."""
    from elmokit.settings import read_setting
    from elmokit.tasks import TASKS
    from elmokit.tasks.settings import find_files, load_recipe

    defaults = {name: task.defaults for name, task in TASKS.items()}
    values: dict[str, Any] = {}
    if data is not None:
        name = recipe if recipe in TASKS else load_recipe(recipe, defaults, {"train": data, "out": data}).task
        values = {"dev": None, "test": None, **find_files(data, TASKS[name].suffixes)}
    for part, files in {"train": train_files, "dev": dev_files, "test": test_files}.items():
        if files:
            values[part] = files[0] if len(files) == 1 else files
    values |= {key: value for key, value in {"elmo": model, **options}.items() if value is not None}
    values |= dict(map(read_setting, overrides))
    if tune:
        values["tune"] = True
    return load_recipe(recipe, defaults, values)


def _find_line(trained: TrainedTask, texts: list[Any], first: int) -> str:
    """The number of the first line that has no prediction by itself, for a message."""
    for number, text in enumerate(texts, first):
        try:
            trained.predict([text])
        except ValueError:
            return f"line {number}: "
    return ""


def _blocks(lines: Iterable[str]) -> Iterator[list[Any]]:
    """The lines of a file as texts or mappings, at most LINES_AT_ONCE at a time."""
    block: list[Any] = []
    for line in lines:
        text = line.rstrip("\r\n")
        block.append(text)
        if text.startswith("{"):
            with suppress(json.JSONDecodeError):  # else it is a text that begins with a brace
                block[-1] = json.loads(text)
        if len(block) == LINES_AT_ONCE:
            yield block
            block = []
    if block:
        yield block


def _format_scores(scores: dict[str, float]) -> str:
    """Scores in percent, such as "f1 81.20, precision 80.00"."""
    return ", ".join(f"{name} {100 * value:.2f}" for name, value in scores.items())


class _Rows(Generic[T]):
    """A row of the display for each training that runs; a new training takes the row that was not shown for longest.

    Args:
        num_rows: Number of trainings that run at the same time.
        new_row: Makes a row.
    """

    def __init__(self, num_rows: int, new_row: Callable[[], T]) -> None:
        self._num_rows, self._new_row = num_rows, new_row
        self._rows: dict[str, T] = {}

    def find(self, label: str) -> T:
        """The row of the training with this label."""
        if label in self._rows:
            row = self._rows.pop(label)
        elif len(self._rows) < self._num_rows:
            row = self._new_row()
        else:
            row = self._rows.pop(next(iter(self._rows)))
        self._rows[label] = row  # the last one is the newest
        return row


@contextmanager
def _progress(jobs: int = 1) -> Iterator[Callable[[str, Progress], None]]:
    """Reports of trainings: bars on a terminal, else one line per epoch, and lines while an epoch lasts long.

    Args:
        jobs: Number of trainings that run at the same time, each with its bar or its lines.
    """

    def describe(progress: Progress) -> str:
        if progress.stage == "vectors":
            return "vectors of the biLM"
        loss = "" if math.isnan(progress.loss) else f"  loss {progress.loss:.4f}"
        scores = "" if progress.scores is None else f"  dev {_format_scores(progress.scores)}"
        return f"epoch {progress.epoch}{loss}{scores}"

    if not shows_bars():
        rows = _Rows(jobs, lambda: Lines("", in_bytes=False))

        def print_line(label: str, progress: Progress) -> None:
            lines = rows.find(label)
            lines.label = label + describe(progress)
            if progress.done == progress.total:
                click.echo(lines.label, err=True)
            else:
                lines.show(progress.done, progress.total)

        yield print_line
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as RichProgress

    columns = [BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}")]
    with RichProgress(*columns, console=Console(stderr=True)) as bar:
        bars = _Rows(jobs, lambda: bar.add_task("", total=None))
        bars.find("")  # a bar also before the first report

        def draw(label: str, progress: Progress) -> None:
            text = label + describe(progress)
            bar.update(bars.find(label), completed=progress.done, total=progress.total, description=text)
            if progress.scores is not None:
                bar.console.print(text, highlight=False)

        yield draw
