"""Lines, blocks, tables and JSON of text files, with errors that name the file and the line.

Input: the path of a UTF-8 file, plain or gzipped (its name ends in `.gz`).
Output: numbered lines, or checked values. An error in a file is a ValueError that names the file and the line.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from elmokit.arguments import check_path
from elmokit.progress import format_count

Value = TypeVar("Value")
Line = tuple[int, str]
"""Number of a line, counted from 1, and the line without its line feed."""


def fail(path: str | Path | None, place: int | str, message: str) -> NoReturn:
    """Raise the ValueError for an error in a file.

    Args:
        path: The file.
        place: Number of the line, or a description such as "question 17".
        message: What is wrong, and what was expected.
    """
    raise ValueError(f"{path}, {place if isinstance(place, str) else f'line {place}'}: {message}")


def read_lines(path: str | Path) -> Iterator[Line]:
    """Read the lines that are not blank. Only a line feed ends a line: text may contain U+2028 and similar characters.

    Args:
        path: A UTF-8 file, plain or gzipped; a byte order mark is skipped.

    Returns:
        An iterator over the lines with their numbers.

    Raises:
        ValueError: If the file cannot be read or is not UTF-8.
    """
    path = Path(check_path("path", path))
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            for number, raw in enumerate(file, start=1):
                try:
                    line = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
                except UnicodeDecodeError as error:
                    fail(path, number, f"byte {error.start + 1} of the line is {raw[error.start]:#04x}, expected UTF-8")
                if line.strip(" \t"):
                    yield number, line
    except FileNotFoundError:
        raise ValueError(f"{path}: no such file") from None
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: cannot be read: {error}") from error


def first_line(path: str | Path) -> str:
    """The first line that is not blank, or "" where there is none.

    Raises:
        ValueError: If the file cannot be read or is not UTF-8.
    """
    return next((line for _, line in read_lines(path)), "")


def read_blocks(path: str | Path, *, separators: tuple[str, ...] = ()) -> Iterator[list[Line]]:
    """Read the blocks of lines between blank lines.

    Args:
        path: The file.
        separators: A line that starts with one of these is a block of its own.
    """
    block: list[Line] = []
    for number, line in read_lines(path):
        if block and (number > block[-1][0] + 1 or line.startswith(separators) or block[-1][1].startswith(separators)):
            yield block
            block = []
        block.append((number, line))
    if block:
        yield block


def read_text(path: str | Path) -> str:
    """Read a complete file; blank lines stay, so that a parser counts lines as an editor does."""
    lines: list[str] = []
    for number, line in read_lines(path):
        lines += [""] * (number - len(lines) - 1)
        lines.append(line)
    return "\n".join(check_not_empty(path, lines))


def read_table(path: str | Path, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Read the rows of a tab-separated table without quoting, whose first line has the names of the columns.

    Args:
        path: The file.
        columns: Names of columns that the table must have.

    Returns:
        An iterator over (number of the line, values by column name).
    """
    header: list[str] = []
    for number, line in read_lines(path):
        row = line.split("\t")
        if not header:
            if missing := [name for name in columns if name not in row]:
                names = ", ".join(missing)
                fail(path, number, f"no column {names} in this first line, expected the names of the columns")
            header = row
            continue
        if len(row) != len(header):
            fail(path, number, f"{format_count(len(row), 'column')}, expected the {len(header)} of the first line")
        yield number, dict(zip(header, row, strict=True))


def split_columns(line: str) -> list[str]:
    """Split a line at tabs, or at spaces where it has no tab."""
    # Not str.split(): a token of noisy text may contain a no-break space.
    return line.rstrip(" ").split("\t") if "\t" in line else re.split(" +", line.strip(" "))


def parse_json(path: str | Path, number: int, text: str) -> Any:
    """Parse JSON that begins at line `number` of a file."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        fail(path, number + error.lineno - 1, f"{error.msg} at character {error.colno}, expected JSON")
    except RecursionError:
        fail(path, number, "brackets are nested too deeply, expected JSON")


def parse_number(path: str | Path, number: int, text: str, kind: Callable[[str], Value]) -> Value:
    """Convert the text of a cell with `kind`, which is `int` or `float`."""
    try:
        return kind(text)
    except ValueError:
        fail(path, number, f"{text!r}, expected a number")


def member(path: str | Path, place: int | str, holder: Any, name: str, kind: type[Value]) -> Value:
    """The member `name` of a JSON object, checked to be of type `kind`."""
    value = holder.get(name) if isinstance(holder, dict) else None
    if not isinstance(value, kind):
        fail(path, place, f"{name} is {value!r:.60}, expected one of type {kind.__name__}")
    return value


def choose(path: str | Path, number: int, text: str, choices: Mapping[str, Value]) -> Value:
    """The value of a label, checked to be one of `choices`."""
    if text not in choices:
        fail(path, number, f"the label {text!r}, expected one of {', '.join(choices)}")
    return choices[text]


def check_offset(path: str | Path, place: int | str, text: str, part: str, start: int) -> None:
    """Check that `part` is in `text` at the character `start`."""
    if start < 0 or not part or not text.startswith(part, start):
        there = text[max(start, 0) :][: len(part)]
        fail(path, place, f"{part!r} is not at its offset {start}; the text there is {there!r}")


def check_not_empty(path: str | Path, examples: list[Value]) -> list[Value]:
    """Return the examples of a file, or raise a ValueError where there are none."""
    if not examples:
        raise ValueError(f"{path}: no examples, expected at least one")
    return examples
