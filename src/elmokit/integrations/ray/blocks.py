"""Files of text and Parquet, cut into blocks: the units of work of `embed_files`.

Input: files of text (one sentence per line) and Parquet files (one sentence per row). Output: blocks, cut at places
that depend only on the input and the shape of the vectors; and in a worker, the rows of a block.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.compute
import pyarrow.parquet

from elmokit.vector_files import read_lines

BYTES_PER_TOKEN = 5  # of text, about; a block's tokens are not counted before a worker has it


@dataclass(frozen=True)
class Block:
    """A run of lines or rows of one file."""

    number: int
    first: int
    """Number of the first line, counted from 0 through all files."""
    file: str
    begin: int
    end: int
    """Bytes of a text, rows of a Parquet file; the end is not included."""
    size: int
    """Bytes of the sentences, about."""

    @property
    def part(self) -> str:
        """Name of the block's file."""
        return f"part-{self.number:08d}.parquet"


@dataclass(frozen=True)
class _Cut:
    """A block of one file, before the lines of all files are counted."""

    begin: int
    end: int
    num_lines: int
    size: int


def cut_files(files: Sequence[Path], block_bytes: int) -> list[Block]:
    """Cut files into blocks, in order. No block has lines of two files.

    Args:
        files: Files of text and Parquet files.
        block_bytes: Bytes of sentences after which a block ends.

    Raises:
        ValueError: If a file is compressed, is not UTF-8, or has no column of sentences.
    """
    blocks: list[Block] = []
    first = 0
    for path in files:
        if path.suffix.lower() in (".gz", ".xz", ".zst", ".bz2"):
            raise ValueError(f"{path} is compressed, and every worker reads its own part of a file: unpack it")
        cut = _cut_rows if path.suffix.lower() == ".parquet" else _cut_text
        for one in cut(path, block_bytes):
            blocks.append(Block(len(blocks), first, str(path), one.begin, one.end, one.size))
            first += one.num_lines
    return blocks


def _cut_text(path: Path, block_bytes: int) -> Iterator[_Cut]:
    """Blocks of complete lines."""
    with open(path, "rb") as stream:
        begin = 0
        while lines := stream.readlines(block_bytes):
            content = b"".join(lines)
            try:
                content.decode()
            except UnicodeDecodeError:
                stream.seek(0)
                deque(read_lines(stream, str(path)), maxlen=0)  # raises, and names the line
            yield _Cut(begin, begin + len(content), len(lines), len(content))
            begin += len(content)


def _cut_rows(path: Path, block_bytes: int) -> Iterator[_Cut]:
    """Blocks of rows."""
    try:
        table = pyarrow.parquet.ParquetFile(path)
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"{path} is not a parquet file: {error}") from None
    with table:
        column = sentence_column(table.schema_arrow, str(path))
        begin = end = held = 0
        for batch in table.iter_batches(columns=[column]):
            sentences = batch.column(0)
            if _is_string(sentences.type):
                sizes = pyarrow.compute.binary_length(sentences)
            else:
                sizes = pyarrow.compute.multiply(pyarrow.compute.list_value_length(sentences), BYTES_PER_TOKEN)
            for size in sizes.to_pylist():
                end += 1
                held += size or 0
                if held >= block_bytes:
                    yield _Cut(begin, end, end - begin, held)
                    begin, held = end, 0
        if end > begin:
            yield _Cut(begin, end, end - begin, held)


def read_block(block: Block) -> tuple[pyarrow.Table, str]:
    """The rows of a block, and the name of the column with their sentences."""
    if not block.file.lower().endswith(".parquet"):
        with open(block.file, "rb") as stream:
            stream.seek(block.begin)
            content = stream.read(block.end - block.begin)
        # some editors write a byte-order mark; only a line feed ends a line
        text = content.decode("utf-8-sig" if block.begin == 0 else "utf-8")
        return pyarrow.table({"text": [line.strip() for line in text.removesuffix("\n").split("\n")]}), "text"
    with pyarrow.parquet.ParquetFile(block.file) as table:
        column = sentence_column(table.schema_arrow, block.file)
        sizes = [table.metadata.row_group(group).num_rows for group in range(table.num_row_groups)]
    columns = ("id", column) if "id" in table.schema_arrow.names else (column,)
    ends = np.cumsum(sizes)
    groups = [g for g, end in enumerate(ends) if end > block.begin and end - sizes[g] < block.end]
    rows = pyarrow.concat_tables([_read_row_group(block.file, group, columns) for group in groups])
    return rows.slice(block.begin - int(ends[groups[0]] - sizes[groups[0]]), block.end - block.begin), column


@functools.lru_cache(maxsize=2)  # a row group may be many blocks
def _read_row_group(file: str, group: int, columns: tuple[str, ...]) -> pyarrow.Table:
    with pyarrow.parquet.ParquetFile(file) as table:
        return table.read_row_group(group, columns=list(columns))


def sentence_column(schema: pyarrow.Schema, name: str) -> str:
    """The column with the sentences: `tokens`, else `text`, else the only column of strings.

    Args:
        schema: The columns.
        name: Name of the table, for messages.

    Raises:
        ValueError: If there is no such column.
    """
    columns = {field.name: field.type for field in schema}
    if "tokens" in columns and is_list(columns["tokens"]) and _is_string(columns["tokens"].value_type):
        return "tokens"
    strings = [column for column, kind in columns.items() if _is_string(kind) and column != "id"]
    if "text" in strings or len(strings) == 1:
        return "text" if "text" in strings else strings[0]
    listed = ", ".join(f"{column} ({kind})" for column, kind in columns.items())
    raise ValueError(
        f"{name} needs lists of strings in 'tokens', strings in 'text', or only one column of strings; it has {listed}"
    )


def is_list(kind: pyarrow.DataType) -> bool:
    """Whether a column has lists."""
    return bool(pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind))


def _is_string(kind: pyarrow.DataType) -> bool:
    return bool(pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind))
