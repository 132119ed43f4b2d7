"""What verbs share: options, loading of models, progress bars, tables, errors of one line.

Input: counts, reports, results and exceptions of the library.  Output: text; results on standard output, everything
else on standard error.
"""

from __future__ import annotations

import json
import math
import os
import sys
import textwrap
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, TypeVar

import click

from elmokit.progress import Advance as Advance
from elmokit.progress import downloads as downloads
from elmokit.progress import format_bytes as format_bytes
from elmokit.progress import format_count as format_count
from elmokit.progress import progress_bar as progress_bar
from elmokit.progress import shows_bars

if TYPE_CHECKING:
    from elmokit.corpus.sources import Tokenized
    from elmokit.model import ELMo
    from elmokit.pretraining import Progress

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_MODEL = "en"
"""Name of the model that verbs use if none is given; it is part of the package."""
RESUMABLE = {"embed", "prepare", "pretrain", "finetune", "task", "probe", "index"}
"""Verbs that resume if the same command is run again."""


# ---- errors ----------------------------------------------------------------------------------------------------------


class OneLineErrors(click.Group):
    """A group whose verbs end with one line if the input, the disk or the network is at fault."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()  # a full disk behind a pipe shows here, not after the last line of the program
            return result
        except BrokenPipeError:
            raise  # click ends quietly
        except KeyboardInterrupt:
            hint = "; run the same command again to resume" if ctx.invoked_subcommand in RESUMABLE else ""
            click.echo(f"Interrupted{hint}", err=True)
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


# ---- options ---------------------------------------------------------------------------------------------------------


json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
overwrite_option = click.option("--overwrite", is_flag=True, help="Replace OUT if it exists.")
device_option = click.option("--device", help="cpu, cuda or cuda:1.  [default: a GPU if there is one, else the CPU]")
model_option = click.option(
    "--model", metavar="MODEL", help=f"Model folder, name or Hugging Face id.  [default: {DEFAULT_MODEL}]"
)
dtype_option = click.option(
    "--dtype",
    type=click.Choice(["float32", "float16"]),
    default="float32",
    show_default=True,
    help="Type of the numbers in OUT.",
)
batch_size_option = click.option(
    "--batch-size", type=int, help="Largest number of sentences per batch.  [default: limited by tokens only]"
)
tokenized_option = click.option(
    "--tokenized/--raw",
    help="--tokenized splits text at spaces only. --raw splits it as the text that the model was trained on.  "
    "[default: raw]",
)
corpus_tokenized_option = click.option(
    "--tokenized/--raw",
    help="--tokenized splits text at spaces only. --raw splits it by the Penn Treebank rules.  [default: raw]",
)
set_option = click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change a setting; can be repeated."
)


def layers_option(
    default: str | None, purpose: str, *, names: str = "average, top, all, slot, sense", flag: str = "--layers"
) -> Callable[[F], F]:
    """The option --layers of every verb: a name or a number, which `check_layers` judges once the model is known."""
    text = f"{purpose}: {names}, or a number (0 is the context-free layer, -1 the top one)."
    return click.option(flag, default=default, show_default=default is not None, callback=_read_layers, help=text)


def _read_layers(_: click.Context, __: click.Parameter, value: str | None) -> str | int | None:
    try:
        return None if value is None else int(value)
    except ValueError:
        return value


class RecipeCommand(click.Command):
    """A command whose help ends with the names of the recipes in the package."""

    def __init__(self, *args: Any, recipes: Literal["pretraining", "tasks"], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.recipes = recipes

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from elmokit.settings import recipe_names

        with formatter.section("Recipes"):
            indent = " " * formatter.current_indent
            names = ", ".join(recipe_names(self.recipes))
            # not write_text, which breaks a line inside transformer-tiny
            lines = textwrap.wrap(
                names, formatter.width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
            )
            formatter.write("\n".join(lines) + "\n")


# ---- input and output ------------------------------------------------------------------------------------------------


def load_model(name: str | None, device: str | None) -> ELMo:
    """The model of a name on a device, by default the one of the package on a GPU if there is one."""
    from elmokit.model import ELMo
    from elmokit.network import find_device

    where = find_device(device)
    with downloads() as progress:
        return ELMo.from_pretrained(name, device=where, progress=progress)


def tokenized_for(elmo: ELMo, tokenized: bool) -> Tokenized:
    """How a corpus for a model is split: at spaces with --tokenized, else by the tokenizer of the model."""
    from elmokit.corpus.sources import tokenized_of

    return True if tokenized else tokenized_of(elmo.tokenizer.name)


def size_to_read(files: list[Path]) -> int | None:
    """Number of bytes of text in files; None if one is packed, whose text has another size."""
    is_packed = any(file.suffix.lower() in (".gz", ".xz", ".zst", ".parquet") for file in files)
    return None if is_packed else sum(file.stat().st_size for file in files)


def check_new_file(path: Path, overwrite: bool) -> None:
    """Refuse before the work, not after it, a path that cannot be written."""
    if not path.parent.is_dir():
        raise ValueError(f"{path}: there is no folder {path.parent}")
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is not a regular file: name a file to write")
    if path.exists() and not overwrite:
        raise ValueError(f"{path} already exists: name another file, or replace it with --overwrite")


@contextmanager
def new_file(path: Path, overwrite: bool) -> Iterator[None]:
    """Check that a file may be written, and keep other processes from writing it in the meantime."""
    from elmokit.files import claimed

    check_new_file(path, overwrite=True)  # else there is no folder for the lock
    with claimed(path):
        check_new_file(path, overwrite)
        yield


@contextmanager
def open_input(path: str) -> Iterator[tuple[IO[bytes], int | None]]:
    """A file to read and its size in bytes; `-` is standard input, whose size is not known."""
    if path == "-":
        yield sys.stdin.buffer, None
        return
    with open(path, "rb") as file:
        yield file, os.fstat(file.fileno()).st_size


def counting(stream: IO[bytes], advance: Advance) -> Iterator[bytes]:
    """The lines of a file; each advances the bar once it has been processed."""
    for line in stream:
        yield line
        advance(len(line))


class LinesRead:
    """The lines of a file, read ahead of the work; `done` moves the bar to the end of the last line that is done.

    Args:
        stream: The file.
        advance: The bar, which counts bytes.
        size: Size of the file; None if it is not known.
    """

    def __init__(self, stream: IO[bytes], advance: Advance, size: int | None) -> None:
        self._stream, self._advance, self._size = stream, advance, size
        self._ahead: deque[int] = deque()  # bytes of each line that was read and is not done
        self._num_done = self._bytes_done = 0

    def __iter__(self) -> Iterator[bytes]:
        for line in self._stream:
            self._ahead.append(len(line))
            yield line

    def done(self, num_lines: int) -> None:
        """The first `num_lines` lines are done."""
        for _ in range(num_lines - self._num_done):
            self._bytes_done += self._ahead.popleft()
        self._num_done = num_lines
        self._advance.to(self._bytes_done, self._size)


def print_result(as_json: bool, result: dict[str, Any], line: str) -> None:
    """Print the result as JSON, or as a line."""
    if as_json:
        print_json(result)
    else:
        click.echo(line)


def print_table(as_json: bool, result: dict[str, Any], columns: list[str], rows: list[list[str]]) -> None:
    """Print the result as JSON, or as columns of text."""
    if as_json:
        print_json(result)
        return
    widths = [max(len(row[number]) for row in [columns, *rows]) for number in range(len(columns))]
    for row in [columns, *rows]:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def print_json(value: Any, *, ensure_ascii: bool = True) -> None:
    """Print a line of JSON, which has no infinity and no NaN: they are null."""
    click.echo(json.dumps(_finite(value), ensure_ascii=ensure_ascii, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# ---- progress --------------------------------------------------------------------------------------------------------


@contextmanager
def training_bar() -> Iterator[Callable[[Progress], None]]:
    """Reports of a run: a bar on a terminal, else lines."""

    def describe(report: Progress) -> str:
        heldout = "" if report.heldout is None else f"  held-out perplexity {report.heldout.both:.2f}"
        return f"loss {report.loss:.4f}  {report.tokens_per_second:,.0f} tokens/s{heldout}"

    if not shows_bars():

        def print_line(report: Progress) -> None:
            left = f"{report.seconds_left:,.0f} s left"
            click.echo(f"step {report.step:,} of {report.num_steps:,}  {describe(report)}  {left}", err=True)

        yield print_line
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    columns = [BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn()]
    with RichProgress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=None)
        yield lambda report: bar.update(
            task, completed=report.step, total=report.num_steps, description=describe(report)
        )
