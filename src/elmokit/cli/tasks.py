"""The verbs of `elmokit task`: train, eval, predict, compare, summary.

Enters and leaves: as in `cli`, which gathers all verbs.  What a verb needs is imported inside it.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

from elmokit.cli.terminal import json_option, print_result, print_table

if TYPE_CHECKING:
    from elmokit.tasks import Progress, TaskConfig
    from elmokit.tasks.settings import ElmoAt

F = TypeVar("F", bound=Callable[..., Any])
LINES_AT_ONCE = 256  # lines of standard input that are predicted together


@click.group()
def task() -> None:
    """Train and use the tasks of the paper: ner, sentiment, … with and without ELMo."""


def training_options(verb: F) -> F:
    """What `train` and `compare` share."""
    for option in reversed(
        [
            click.argument("recipe", metavar="TASK|RECIPE"),
            click.option("--data", metavar="FOLDER", help="Its files named train, dev and test are read."),
            click.option("--train", "train_files", multiple=True, metavar="FILE", help="May be given several times."),
            click.option("--dev", "dev_files", multiple=True, metavar="FILE"),
            click.option("--test", "test_files", multiple=True, metavar="FILE"),
            click.option("-o", "--out", metavar="FOLDER", help="Of the run, and then of the trained task."),
            click.option("--model", "elmo", metavar="MODEL", help="Folder, official name or Hugging Face id."),
            click.option(
                "--vectors", metavar="PATH", help="Static word vectors: a text file, or a folder with a .npy."
            ),
            click.option("--tune", is_flag=True, help="Train the biLM too."),
            click.option("--device", help="cpu, cuda, cuda:1; by default a GPU where there is one."),
            click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change one setting."),
        ]
    ):
        verb = option(verb)
    return verb


@task.command()
@training_options
@click.option("--elmo-at", type=click.Choice(["none", "input", "both"]), help="Where ELMo's vectors join.")
@json_option
def train(as_json: bool, **given: Any) -> None:
    """Train TASK (its name, or a recipe file) on --data, into --out.

    A run that was stopped goes on when the same command is given again.
    """
    from elmokit.tasks import train as train_task

    config = _read_config(**given)
    with _progress() as show:
        result = train_task(config, on_progress=lambda progress: show("", progress))
    scores = result.dev if result.test is None else result.test
    part = "dev" if result.test is None else "test"
    line = f"{result.folder}: {_spell(scores)} on {part} (epoch {result.best_epoch} of {result.epochs})"
    print_result(as_json, {**dataclasses.asdict(result), "score": result.score}, line)


@task.command("eval")
@click.argument("folder")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--device", help="cpu, cuda, cuda:1; by default a GPU where there is one.")
@json_option
def evaluate(folder: str, files: tuple[str, ...], device: str | None, as_json: bool) -> None:
    """The scores of the trained task in FOLDER on labelled files."""
    from elmokit.tasks import load_task

    scores = load_task(folder, device=device or "auto").evaluate(files)
    print_result(as_json, scores, _spell(scores))


@task.command()
@click.argument("folder")
@click.argument("source", default="-", metavar="[FILE]")
@click.option("--device", help="cpu, cuda, cuda:1; by default a GPU where there is one.")
def predict(folder: str, source: str, device: str | None) -> None:
    """What the trained task in FOLDER says of each line of FILE (standard input without one), as JSON lines.

    A line is a text, or a JSON object with the fields of the task.
    """
    from elmokit.tasks import load_task

    trained = load_task(folder, device=device or "auto")
    with click.open_file(source, encoding="utf-8") as file:
        for texts in _blocks(file):
            for result in trained.predict(texts):
                click.echo(json.dumps(result, ensure_ascii=False))
            sys.stdout.flush()


@task.command()
@training_options
@click.option(
    "--seeds", type=click.IntRange(1), default=3, show_default=True, help="So many trainings of each variant."
)
@click.option("--shares", metavar="NUMBERS", help="Train on these shares of the training data, as in 0.01,0.1,1.")
@click.option(
    "--variants",
    metavar="NAMES",
    default="none,input,both",
    show_default=True,
    help="Where ELMo joins: one training with each seed for each.",
)
@json_option
def compare(seeds: int, shares: str | None, variants: str, as_json: bool, **given: Any) -> None:
    """Train TASK without ELMo, with it at the input, and at the output too; table and plot go into --out.

    With --shares, do so for several shares of the training data: how few examples are enough with ELMo?  A comparison
    that was stopped goes on when the same command is given again.
    """
    from elmokit.settings import to_mapping
    from elmokit.tasks import compare as comparing

    which: dict[str, Any] = {"seeds": range(1, seeds + 1), "variants": variants.split(",")}
    config = _read_config(**given)
    with _progress() as show:

        def report(share: float | None, elmo_at: ElmoAt, seed: int, progress: Progress) -> None:
            part = "" if share is None else f"{100 * share:g} %, "
            show(f"{part}{comparing.NAMES[elmo_at]}, seed {seed}: ", progress)

        if shares is None:
            comparison = comparing.compare(config, **which, on_progress=partial(report, None))
            values, table = to_mapping(comparison), comparing.comparison_table(comparison)
        else:
            found = comparing.compare_shares(config, _read_shares(shares), **which, on_progress=report)
            values = {f"{share:g}": to_mapping(one) for share, one in found.items()}
            table = comparing.share_table(found)
    print_table(as_json, values, *table)


@task.command()
@click.argument("folders", nargs=-1, required=True, metavar="FOLDER...")
@click.option("-o", "--out", metavar="FOLDER", help="Where summary.md, summary.json and summary.svg are written.")
@json_option
def summary(folders: tuple[str, ...], out: str | None, as_json: bool) -> None:
    """Finished comparisons of several tasks in one table and one plot, beside the paper's figures.

    Each FOLDER is the --out of an `elmokit task compare`; its name is the row's.
    """
    from elmokit.settings import to_mapping
    from elmokit.tasks.compare import read_comparisons, summarize, summary_table

    found = read_comparisons(folders) if out is None else summarize(folders, out)
    print_table(as_json, {name: to_mapping(one) for name, one in found.items()}, *summary_table(found))


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
    **given: str | None,
) -> TaskConfig:
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
    values |= {key: value for key, value in given.items() if value is not None}
    values |= dict(map(read_setting, overrides))
    if tune:
        values["tune"] = True
    return load_recipe(recipe, defaults, values)


def _blocks(file: Any) -> Iterator[list[Any]]:
    """The lines of a file as texts or mappings, some at a time."""
    block: list[Any] = []
    for line in file:
        text = line.rstrip("\r\n")
        block.append(text)
        if text.startswith("{"):
            with suppress(json.JSONDecodeError):  # or else it is a text that begins with a brace
                block[-1] = json.loads(text)
        if len(block) == LINES_AT_ONCE:
            yield block
            block = []
    if block:
        yield block


def _spell(scores: dict[str, float]) -> str:
    return ", ".join(f"{name} {100 * value:.2f}" for name, value in scores.items())


@contextmanager
def _progress() -> Iterator[Callable[[str, Progress], None]]:
    """Reports of a training: a bar on a terminal, a line for each epoch elsewhere."""

    def spell(progress: Progress) -> str:
        if progress.stage == "vectors":
            return "vectors of the biLM"
        scores = "" if progress.scores is None else f"  dev {_spell(progress.scores)}"
        return f"epoch {progress.epoch}  loss {progress.loss:.4f}{scores}"

    if not sys.stderr.isatty():

        def say(label: str, progress: Progress) -> None:
            if progress.done == progress.total:
                click.echo(label + spell(progress), err=True)

        yield say
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as RichProgress

    columns = [BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}")]
    with RichProgress(*columns, console=Console(stderr=True)) as bar:
        shown = bar.add_task("", total=None)

        def draw(label: str, progress: Progress) -> None:
            bar.update(shown, completed=progress.done, total=progress.total, description=label + spell(progress))
            if progress.scores is not None:
                bar.console.print(label + spell(progress), highlight=False)

        yield draw
