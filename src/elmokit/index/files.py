"""The folder of an index: what is written, and how much of it counts.

    index.json       what was chosen when the index was created: the model's digest, the layer, the words left out
    sentences.jsonl  one line per sentence, a JSON list of its tokens
    rows.bin         for each word its sentence, the place of that sentence in sentences.jsonl, and its position in it
    vectors.bin      for each word its vector, float16, length one
    graph-N.usearch  an HNSW graph over the first N words, their vectors rounded to int8
    contents.json    how much of the files above counts

Sentences, rows and vectors only grow at their ends. contents.json is replaced in one step once they are on disk and
says how far they reach; the next call that adds cuts off what a killed process wrote behind that.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from elmokit.files import claimed, write_json
from elmokit.index.batches import SentenceBatch
from elmokit.inference.vectors import Floats
from elmokit.settings import check_types, from_mapping, read_json, to_mapping

SETTINGS_FILE, CONTENTS_FILE, LOCK_FILE = "index.json", "contents.json", ".lock"
SENTENCES_FILE, ROWS_FILE, VECTORS_FILE = "sentences.jsonl", "rows.bin", "vectors.bin"
FORMAT = "elmokit index 1"
ROW = np.dtype([("sentence", "<i8"), ("begin", "<i8"), ("bytes", "<i4"), ("token", "<i4")])
VECTOR = np.dtype("<f2")

Item = TypeVar("Item", bound=np.generic)


class Source(NamedTuple):
    """A text that was added under a name."""

    name: str
    num_sentences: int
    digest: str
    """SHA-256 of those sentences."""


@dataclass(frozen=True)
class IndexSettings:
    """What is chosen once, when an index is created."""

    digest: str
    """See `ELMo.digest`."""
    model: str | None
    """The name under which the model can be loaded again, if it has one."""
    dim: int
    layer: str | int
    skip_punctuation: bool
    skip_words: tuple[str, ...]
    format: str = FORMAT

    def __post_init__(self) -> None:
        check_types(self)
        if self.format != FORMAT:
            raise ValueError(f"format is {self.format!r}, this version reads {FORMAT!r}")


@dataclass(frozen=True)
class IndexContents:
    """How much of the files counts."""

    num_sentences: int = 0
    num_rows: int = 0
    num_bytes: int = 0
    """Of sentences.jsonl."""
    graph_rows: int = 0
    graph_bytes: int = 0
    sources: tuple[tuple[str, int, str], ...] = ()
    """The fields of a `Source` for each text that was added under a name."""

    def __post_init__(self) -> None:
        check_types(self)

    @property
    def graph_file(self) -> str:
        """Name of the file with the graph."""
        return f"graph-{self.graph_rows}.usearch"


@dataclass(frozen=True)
class StoredWord:
    """A word and its sentence."""

    tokens: list[str]
    position: int
    sentence_number: int


def read_settings(folder: Path) -> IndexSettings:
    """Read index.json."""
    path = folder / SETTINGS_FILE
    if not path.is_file():
        raise ValueError(f'{folder}: no {SETTINGS_FILE}, so this is not an index: make one with "elmokit index build"')
    return from_mapping(IndexSettings, read_json(path), source=str(path))


def claimed_folder(folder: Path) -> AbstractContextManager[None]:
    """Keep other processes from writing the folder of an index; a ValueError names the one that does."""
    return claimed(folder, lock=folder / LOCK_FILE, doing="adding to this index")


def create_files(folder: Path, settings: IndexSettings) -> None:
    """Write the files of an empty index into a folder that exists."""
    write_json(folder / CONTENTS_FILE, to_mapping(IndexContents()))
    write_json(folder / SETTINGS_FILE, to_mapping(settings))  # last: with it the folder is an index


class IndexFiles:
    """The files of an index, mapped into memory as far as contents.json counts them."""

    contents: IndexContents
    sentences: npt.NDArray[np.uint8]
    rows: npt.NDArray[np.void]
    """(N,) of the fields of ROW."""
    vectors: npt.NDArray[np.float16]
    """(N, 2P)."""

    def __init__(self, folder: Path, dim: int) -> None:
        self.folder, self.dim = folder, dim
        self.refresh()

    def refresh(self) -> None:
        """Read contents.json again, and map the files that far."""
        path = self.folder / CONTENTS_FILE
        if not path.is_file():
            raise ValueError(f"{path} is missing: the index is damaged, build it again")
        self._map(from_mapping(IndexContents, read_json(path), source=str(path)))

    def write_contents(self, contents: IndexContents) -> None:
        """Replace contents.json, and map the files that far."""
        write_json(self.folder / CONTENTS_FILE, to_mapping(contents))
        self._map(contents)

    def drop_graph(self) -> None:
        """Count no graph any more; contents.json says so with the next write."""
        self.contents = replace(self.contents, graph_rows=0, graph_bytes=0)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Lock the folder, start from what is committed, and cut off what is not."""
        with claimed_folder(self.folder):
            self.refresh()
            for name, size in self._sizes(self.contents).items():
                with open(self.folder / name, "ab") as file:
                    file.truncate(size)
            for leftover in {*self.folder.glob(".*.tmp"), *self.folder.glob("graph-*")}:
                if leftover.name != self.contents.graph_file:
                    leftover.unlink()
            yield

    def append(
        self, batch: SentenceBatch, positions: list[list[int]], vectors: list[Floats], sources: list[Source]
    ) -> None:
        """Commit a batch.

        Args:
            batch: The sentences.
            positions: For each sentence the positions of the words that are indexed.
            vectors: For each sentence the vectors (words, 2P) of those.
            sources: All sources, with what this batch adds.
        """
        old, rows, begin = self.contents, [], self.contents.num_bytes
        for sentence, (line, indexed) in enumerate(zip(batch.lines, positions, strict=True), old.num_sentences):
            rows += [(sentence, begin, len(line), position) for position in indexed]
            begin += len(line)
        _append(self.folder / SENTENCES_FILE, b"".join(batch.lines))
        _append(self.folder / ROWS_FILE, np.array(rows, ROW).tobytes())
        _append(self.folder / VECTORS_FILE, np.concatenate(vectors).astype(VECTOR).tobytes())
        self.write_contents(
            replace(
                old,
                num_sentences=old.num_sentences + len(batch.lines),
                num_rows=old.num_rows + len(rows),
                num_bytes=begin,
                sources=tuple(sources),
            )
        )

    def word(self, row: int) -> StoredWord:
        """The word of a row."""
        place = self.rows[row]
        begin, position = int(place["begin"]), int(place["token"])
        try:
            tokens = json.loads(self.sentences[begin : begin + int(place["bytes"])].tobytes())
            tokens[position]  # raises where the line is not the one that was written
        except (ValueError, LookupError, TypeError):
            path = self.folder / SENTENCES_FILE
            raise ValueError(f"{path}: damaged at byte {begin:,}, in the sentence of word {row:,}") from None
        return StoredWord(tokens, position, int(place["sentence"]))

    def _map(self, contents: IndexContents) -> None:
        for name, expected in self._sizes(contents).items():
            path = self.folder / name
            size = path.stat().st_size if path.is_file() else 0
            if size < expected:
                raise ValueError(
                    f"{path} has {size:,} bytes, {CONTENTS_FILE} counts {expected:,}: the index is damaged, build it "
                    "again"
                )
        self.contents = contents
        self.sentences = self._map_file(SENTENCES_FILE, np.dtype(np.uint8), (contents.num_bytes,))
        self.rows = self._map_file(ROWS_FILE, ROW, (contents.num_rows,))
        self.vectors = self._map_file(VECTORS_FILE, VECTOR, (contents.num_rows, self.dim))

    def _map_file(self, name: str, dtype: np.dtype[Item], shape: tuple[int, ...]) -> npt.NDArray[Item]:
        if shape[0] == 0:
            return np.zeros(shape, dtype)  # an empty file cannot be mapped
        return np.asarray(np.memmap(self.folder / name, dtype, "r", shape=shape))

    def _sizes(self, contents: IndexContents) -> dict[str, int]:
        return {
            SENTENCES_FILE: contents.num_bytes,
            ROWS_FILE: contents.num_rows * ROW.itemsize,
            VECTORS_FILE: contents.num_rows * self.dim * VECTOR.itemsize,
        }


def _append(path: Path, content: bytes) -> None:
    """Append to a file and wait until it is on disk; an OSError names the file."""
    try:
        with open(path, "ab") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
