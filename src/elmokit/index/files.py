"""The folder of an index: what is written, and how much of it counts.

    index.json       what was chosen when the index was created: the model's digest, the layer, the words left out
    sentences.jsonl  one line per sentence, a JSON list of its tokens
    rows.bin         for each word its sentence, the place of that sentence in sentences.jsonl, and its position in it
    words.bin        for each word a hash of it, by which all its occurrences are found
    vectors.bin      for each word its vector, float16, length one
    graph-N.usearch  an HNSW graph over the first N words, their vectors rounded to int8
    contents.json    how much of the files above counts

Sentences, rows, words and vectors only grow at their ends. contents.json is replaced in one step once they are on disk
and says how far they reach; the next call that adds cuts off what a killed process wrote behind that.

Indexes of version 0.1 have no words.bin. The hashes that it lacks are computed from the sentences when they are needed,
and written by the next call that adds.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from elmokit.files import check_new_folder, claimed, write_json
from elmokit.index.batches import SentenceBatch
from elmokit.index.words import HASH, Hashes, Rows, StoredWord, hash_words
from elmokit.inference.vectors import Floats
from elmokit.settings import check_types, from_mapping, read_json, to_mapping

SETTINGS_FILE, CONTENTS_FILE, LOCK_FILE = "index.json", "contents.json", ".lock"
SENTENCES_FILE, ROWS_FILE, WORDS_FILE, VECTORS_FILE = "sentences.jsonl", "rows.bin", "words.bin", "vectors.bin"
FORMAT = "elmokit index 1"
ROW = np.dtype([("sentence", "<i8"), ("begin", "<i8"), ("bytes", "<i4"), ("token", "<i4")])
VECTOR = np.dtype("<f2")
ROWS_AT_ONCE = 65536  # rows whose words are hashed at a time

log = logging.getLogger(__name__)

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
    word_weights: str | None = None
    """See `WordWeights.digest`; None if the layer does not depend on them."""
    sense_version: int | None = None
    """Version of the view "sense" that the vectors have; None if they are of another layer."""

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
    hashed_rows: int = 0
    """Number of rows that words.bin covers: all, or none in an index of version 0.1."""
    sources: tuple[tuple[str, int, str], ...] = ()
    """The fields of a `Source` for each text that was added under a name."""

    def __post_init__(self) -> None:
        check_types(self)

    @property
    def graph_file(self) -> str:
        """Name of the file with the graph."""
        return f"graph-{self.graph_rows}.usearch"


def read_settings(folder: Path) -> IndexSettings:
    """Read index.json."""
    path = folder / SETTINGS_FILE
    if not path.is_file():
        raise ValueError(f'{folder}: no {SETTINGS_FILE}, so this is not an index: make one with "elmokit index build"')
    return from_mapping(IndexSettings, read_json(path), source=str(path))


def check_new(folder: Path) -> None:
    """Check that a folder can be made, or is empty."""
    check_new_folder(folder)
    if (folder / SETTINGS_FILE).exists():
        raise ValueError(f"{folder}: an index already exists: open it, or name another folder")
    left_by_a_killed_call = {CONTENTS_FILE, LOCK_FILE}
    if folder.exists() and not {path.name for path in folder.iterdir()} <= left_by_a_killed_call:
        raise ValueError(f"{folder} already exists and is not an index: name a new or empty folder")


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
        self._hashes: Hashes = np.zeros(0, HASH)
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
        hashes = hash_words(
            words[position] for words, indexed in zip(batch.tokens, positions, strict=True) for position in indexed
        )
        _append(self.folder / SENTENCES_FILE, b"".join(batch.lines))
        _append(self.folder / ROWS_FILE, np.array(rows, ROW).tobytes())
        _append(self.folder / WORDS_FILE, self.hashes()[old.hashed_rows :].tobytes() + hashes.tobytes())
        _append(self.folder / VECTORS_FILE, np.concatenate(vectors).astype(VECTOR).tobytes())
        self.write_contents(
            replace(
                old,
                num_sentences=old.num_sentences + len(batch.lines),
                num_rows=old.num_rows + len(rows),
                num_bytes=begin,
                hashed_rows=old.num_rows + len(rows),
                sources=tuple(sources),
            )
        )

    def words(self, rows: Rows) -> Iterator[StoredWord]:
        """The word of each row. Words of one sentence share its list of tokens if their rows follow each other."""
        places, read, tokens = self.rows[rows], -1, []
        columns = (places[name].tolist() for name in ("sentence", "begin", "bytes", "token"))
        for row, sentence, begin, num_bytes, position in zip(rows.tolist(), *columns, strict=True):
            try:
                if begin != read:
                    tokens, read = json.loads(self.sentences[begin : begin + num_bytes].tobytes()), begin
                tokens[position]  # raises where the line is not the one that was written
            except (ValueError, LookupError, TypeError):
                path = self.folder / SENTENCES_FILE
                raise ValueError(f"{path}: damaged at byte {begin:,}, in the sentence of word {row:,}") from None
            yield StoredWord(tokens, position, sentence)

    def hashes(self) -> Hashes:
        """The hash of each word (N,), from words.bin; computed from the sentences for rows that it does not cover."""
        parts, num_rows = [self._hashes], self.contents.num_rows
        for begin in range(len(self._hashes), num_rows, ROWS_AT_ONCE):
            words = self.words(np.arange(begin, min(begin + ROWS_AT_ONCE, num_rows)))
            parts.append(hash_words(word.tokens[word.position] for word in words))
        if len(parts) > 1:
            self._hashes = np.concatenate(parts)
        return self._hashes

    def _map(self, contents: IndexContents) -> None:
        for name, expected in self._sizes(contents).items():
            path = self.folder / name
            size = path.stat().st_size if path.is_file() else 0
            if size < expected and name == WORDS_FILE:
                # it is made from the sentences, which are there
                log.warning("%s has %d bytes, expected %d; words are read from the sentences", path, size, expected)
                contents = replace(contents, hashed_rows=0)
            elif size < expected:
                raise ValueError(
                    f"{path} has {size:,} bytes, {CONTENTS_FILE} counts {expected:,}: the index is damaged, build it "
                    "again"
                )
        self.contents = contents
        self.sentences = self._map_file(SENTENCES_FILE, np.dtype(np.uint8), (contents.num_bytes,))
        self.rows = self._map_file(ROWS_FILE, ROW, (contents.num_rows,))
        self._hashes = self._map_file(WORDS_FILE, HASH, (contents.hashed_rows,))
        self.vectors = self._map_file(VECTORS_FILE, VECTOR, (contents.num_rows, self.dim))

    def _map_file(self, name: str, dtype: np.dtype[Item], shape: tuple[int, ...]) -> npt.NDArray[Item]:
        if shape[0] == 0:
            return np.zeros(shape, dtype)  # an empty file cannot be mapped
        return np.asarray(np.memmap(self.folder / name, dtype, "r", shape=shape))

    def _sizes(self, contents: IndexContents) -> dict[str, int]:
        return {
            SENTENCES_FILE: contents.num_bytes,
            ROWS_FILE: contents.num_rows * ROW.itemsize,
            WORDS_FILE: contents.hashed_rows * HASH.itemsize,
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
