"""What verbs share: progress bars, tables, errors of one line, common options.

Enters: counts, reports, results and exceptions of the library.  Leaves: text; results on standard output, everything
else on standard error.  Bars are drawn on a terminal alone, and rich is imported only for them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from elmokit.model import ELMo
    from elmokit.pretraining import Progress

F = TypeVar("F", bound=Callable[..., Any])

GOES_ON = {
    "embed",
    "prepare",
    "pretrain",
    "finetune",
    "task",
    "probe",
    "index",
}  # verbs that go on where they were stopped


class OneLineErrors(click.Group):
    """A group whose verbs end in one line where the input, the disk or the network is at fault."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()  # a full disk behind a pipe shows here, not after the last line of the program
            return result
        except BrokenPipeError:
            raise  # click ends quietly
        except KeyboardInterrupt:
            again = "; the same command goes on where it stopped" if ctx.invoked_subcommand in GOES_ON else ""
            click.echo(f"Interrupted{again}", err=True)
            ctx.exit(130)
        except (ValueError, OSError, ImportError, MemoryError, RuntimeError) as error:
            if ctx.params["debug"] or isinstance(error, click.exceptions.Exit | click.exceptions.Abort):
                raise
            raise click.ClickException(_one_line(error)) from error


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    text = " ".join(str(error).split())
    return text if text and isinstance(error, ValueError | OSError | ImportError) else f"{type(error).__name__}: {text}"


def counting(stream: IO[bytes], advance: Advance) -> Iterator[bytes]:
    """The lines of a file, each moving the bar on when it has been worked on."""
    for line in stream:
        yield line
        advance(len(line))


class Advance:
    """Moves a bar by a count, or to a place of a total; does nothing where there is no bar."""

    def __init__(self, bar: Any = None, task: Any = None) -> None:
        self._bar, self._task = bar, task

    def __call__(self, count: int) -> None:
        if self._bar is not None:
            self._bar.advance(self._task, count)

    def to(self, done: int, total: int | None) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total)


@contextmanager
def progress_bar(label: str, total: int | None, *, in_bytes: bool = True) -> Iterator[Advance]:
    """A progress bar on standard error, where that is a terminal; it counts bytes or else pieces of work."""
    if not sys.stderr.isatty():
        yield Advance()
        return
    with _rich_bar(in_bytes) as bar:
        yield Advance(bar, bar.add_task(label, total=total))


@contextmanager
def downloads() -> Iterator[Callable[[str, int, int | None], None] | None]:
    """A bar for each file that is downloaded; most calls download nothing, so it comes with the first byte."""
    if not sys.stderr.isatty():
        yield None
        return
    tasks: dict[str, Advance] = {}
    with ExitStack() as stack:
        bars: list[Any] = []

        def progress(name: str, done: int, total: int | None) -> None:
            if not bars:
                bars.append(stack.enter_context(_rich_bar(in_bytes=True)))
            if name not in tasks:
                tasks[name] = Advance(bars[0], bars[0].add_task(name, total=total))
            tasks[name].to(done, total)

        yield progress


def _rich_bar(in_bytes: bool) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    count = DownloadColumn() if in_bytes else MofNCompleteColumn()
    columns = [TextColumn("{task.description}"), BarColumn(), count, TimeRemainingColumn()]
    return Progress(*columns, console=Console(stderr=True), transient=True)


@contextmanager
def training_bar() -> Iterator[Callable[[Progress], None]]:
    """Reports of a run: a bar on a terminal, lines elsewhere."""

    def spell(report: Progress) -> str:
        heldout = "" if report.heldout is None else f"  held-out perplexity {report.heldout.both:.2f}"
        return f"loss {report.loss:.4f}  {report.tokens_per_second:,.0f} tokens/s{heldout}"

    if not sys.stderr.isatty():

        def say(report: Progress) -> None:
            left = f"{report.seconds_left:,.0f} s left"
            click.echo(f"step {report.step:,} of {report.num_steps:,}  {spell(report)}  {left}", err=True)

        yield say
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    columns = [BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn()]
    with RichProgress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=None)
        yield lambda report: bar.update(task, completed=report.step, total=report.num_steps, description=spell(report))


def print_result(as_json: bool, result: dict[str, Any], line: str) -> None:
    """The result as JSON, or the line that says it."""
    click.echo(json.dumps(result) if as_json else line)


def print_table(as_json: bool, result: dict[str, Any], columns: list[str], rows: list[list[str]]) -> None:
    """The result as JSON, or as columns of text."""
    if as_json:
        click.echo(json.dumps(result))
        return
    widths = [max(len(row[number]) for row in [columns, *rows]) for number in range(len(columns))]
    for row in [columns, *rows]:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


# ---- options and checks that several verbs share ---------------------------------------------------------------------


json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
tokenized_option = click.option(
    "--tokenized/--raw", help="Tokens stand between spaces; by default text is tokenized.  [default: raw]"
)
overwrite_option = click.option("--overwrite", is_flag=True, help="Replace what is there.")


def model_options(verb: F) -> F:
    """--model and --device, for `load_model`."""
    verb = click.option("--device", help="cpu, cuda, cuda:1; by default a GPU where there is one.")(verb)
    return click.option("--model", metavar="MODEL", help="Folder, official name or Hugging Face id.")(verb)


def load_model(name: str | None, device: str | None) -> ELMo:
    """The model that a verb was asked to use, on its device."""
    import torch

    from elmokit.model import ELMo

    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"--device {device}: {str(error).splitlines()[0]}") from None
    with downloads() as progress:
        return ELMo.from_pretrained(name, device=device, progress=progress)


def check_new_file(path: Path, overwrite: bool) -> None:
    """Find out before the work, not after it, that its result has no place."""
    if not path.parent.is_dir():
        raise ValueError(f"{path}: there is no folder {path.parent}")
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is no regular file: name a file to write")
    if path.exists() and not overwrite:
        raise ValueError(f"{path} is there already: name another file, or replace it with --overwrite")
