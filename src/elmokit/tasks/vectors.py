"""Vectors that a task reads and does not train: static word vectors, and the layers of a frozen biLM.

Enters: a file or folder of word vectors; a biLM and the sentences of a data file.  Leaves: a table to look words up in;
and one file on disk for each data file, float16, that holds every layer of every sentence, so that a biLM runs once
and training reads.  That file is named by the model's weights and the sentences, so it cannot be mistaken for another;
one that is damaged is made again, and one whose making was stopped is gone on with.
"""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from elmokit.files import locked, sha256_of, sha256_of_json, sync_folder, write_json
from elmokit.model import ELMo
from elmokit.settings import read_json

logger = logging.getLogger(__name__)

SENTENCES_AT_ONCE = 512  # embedded together, sorted by length, and then written
BYTES_AT_ONCE = 1 << 24

Advance = Callable[[int, int], None]
"""Called with how many sentences are done, and of how many."""


# ---- static word vectors ---------------------------------------------------------------------------------------------


class StaticVectors:
    """Words and their vectors, as a file has them."""

    def __init__(self, words: Sequence[str], table: npt.NDArray[np.float32], sha256: str) -> None:
        self.table, self.sha256 = table, sha256
        self._rows = {word: row for row, word in enumerate(words)}

    @property
    def dim(self) -> int:
        """Width of a vector."""
        return int(self.table.shape[1])

    def lookup(self, words: Sequence[str]) -> npt.NDArray[np.float32]:
        """(N, dim): the word as it is written, else in small letters, else zeros."""
        rows = [self._rows.get(word, self._rows.get(word.lower(), -1)) for word in words]
        vectors = self.table[rows].astype(np.float32)
        vectors[[row < 0 for row in rows]] = 0
        return vectors


def load_static(path: str) -> StaticVectors:
    """Read a text file of a word and its numbers a line (as GloVe has it), or a folder with a .npy and its words.

    The words of a .npy lie beside it: one a line in a .txt, or the first column of a .parquet.
    """
    place = Path(path).expanduser()
    if not place.exists():
        raise ValueError(f"{path}: there are no word vectors here; name a text file, or a folder with a .npy")
    return _load_static(place, place.stat().st_mtime_ns)


@lru_cache(maxsize=1)  # the runs of a comparison read the same
def _load_static(path: Path, _: int) -> StaticVectors:
    if path.is_file() and path.suffix != ".npy":
        return _read_text(path)
    array = path if path.is_file() else _only(path, "*.npy")
    words = _only(array.parent, "*.parquet", "*.txt")
    try:
        table = np.load(array, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{array}: not an array of word vectors ({error})") from None
    if words.suffix == ".parquet":
        try:
            import pyarrow.parquet as parquet
        except ImportError as error:
            raise ImportError(f'reading {words} needs pyarrow: pip install "elmokit[parquet]"') from error
        names = parquet.read_table(words).column(0).to_pylist()
    else:
        names = words.read_text(encoding="utf-8").splitlines()
    if table.ndim != 2 or len(names) != len(table):
        raise ValueError(f"{array}: {table.shape}, but {words} names {len(names)} words")
    return StaticVectors(names, table, sha256_of(array))


def _only(folder: Path, *patterns: str) -> Path:
    found = sorted(path for pattern in patterns for path in folder.rglob(pattern))
    if len(found) != 1:
        which = "none" if not found else ", ".join(path.name for path in found)
        raise ValueError(f"{folder}: expected one {' or '.join(patterns)} of word vectors, found {which}")
    return found[0]


def _read_text(path: Path) -> StaticVectors:
    words: list[str] = []
    rows: list[npt.NDArray[np.float32]] = []
    dim = -1
    with open(path, encoding="utf-8", errors="replace", newline="\n") as file:
        for number, line in enumerate(file, start=1):
            fields = line.rstrip().split(" ")
            if number == 1 and len(fields) == 2 and all(map(str.isdecimal, fields)):
                dim = int(fields[1])  # word2vec says first how many words and numbers there are
                continue
            dim = len(fields) - 1 if dim < 0 else dim
            try:
                rows.append(np.array(fields[-dim:] if dim else [], dtype=np.float32))
            except ValueError:
                raise ValueError(f"{path}, line {number}: expected a word and its {dim} numbers") from None
            if not 0 < dim < len(fields):
                raise ValueError(f"{path}, line {number}: {len(fields) - 1} numbers, expected {dim or 'some'}")
            words.append(" ".join(fields[:-dim]))  # some words hold spaces
    if not rows:
        raise ValueError(f"{path}: holds no word vectors")
    return StaticVectors(words, np.stack(rows), sha256_of(path))


# ---- the layers of a frozen biLM -------------------------------------------------------------------------------------


class FrozenLayers:
    """Every layer of sentences by a biLM that does not change: from the disk where `prepare` put them, else live."""

    def __init__(self, elmo: ELMo, folder: Path) -> None:
        self.elmo, self.folder = elmo, folder
        self.num_layers, self.dim = elmo.config.num_layers + 1, 2 * elmo.config.projection_dim
        self.digest = elmo.digest()
        self._places: dict[tuple[str, ...], npt.NDArray[np.float16]] = {}

    def prepare(self, sentences: Sequence[Sequence[str]], advance: Advance | None = None) -> None:
        """Have the vectors of these sentences, those of one data file, on disk."""
        distinct = list(dict.fromkeys(tuple(tokens) for tokens in sentences if tokens))
        if not distinct:
            return
        name = sha256_of_json([self.digest, distinct])[:32]
        path = self.folder / f"{name}.f16"
        ends = np.cumsum([len(tokens) for tokens in distinct]) * self.num_layers * self.dim
        if not _is_whole(path, 2 * int(ends[-1])):
            self.folder.mkdir(parents=True, exist_ok=True)
            with locked(self.folder, wait=True):
                if not _is_whole(path, 2 * int(ends[-1])):
                    self._make(path, distinct, ends, advance)
        stored = np.memmap(path, dtype=np.float16, mode="r")
        for tokens, begin, end in zip(distinct, [0, *ends[:-1]], ends, strict=True):
            self._places[tokens] = stored[begin:end].reshape(self.num_layers, len(tokens), self.dim)

    def _make(
        self, path: Path, sentences: list[tuple[str, ...]], ends: npt.NDArray[np.int64], advance: Advance | None
    ) -> None:
        part = path.with_suffix(".part")
        part.touch()
        bounds = [*range(0, len(sentences), SENTENCES_AT_ONCE), len(sentences)]
        offsets = [0 if bound == 0 else 2 * int(ends[bound - 1]) for bound in bounds]
        with open(part, "r+b") as file:
            size = os.fstat(file.fileno()).st_size
            done = max(number for number, offset in enumerate(offsets) if offset <= size)  # whole blocks that are there
            file.truncate(offsets[done])
            file.seek(offsets[done])
            for begin, end in zip(bounds[done:-1], bounds[done + 1 :], strict=True):
                for vectors in self._embed(sentences[begin:end]):
                    file.write(vectors.tobytes())
                file.flush()
                if advance is not None:
                    advance(end, len(sentences))
            os.fsync(file.fileno())
        about = {"sha256_of_model": self.digest, "sentences": len(sentences), "crc32": _crc32(part)}
        write_json(path.with_suffix(".json"), about)
        os.replace(part, path)
        sync_folder(path.parent)

    def _embed(self, sentences: Sequence[Sequence[str]]) -> list[npt.NDArray[np.float16]]:
        arrays: list[npt.NDArray[np.float16]] = []
        for vectors in self.elmo.embed([list(tokens) for tokens in sentences], layers="all"):
            with np.errstate(over="ignore"):
                arrays.append(vectors.astype(np.float16))
            if not np.isfinite(arrays[-1]).all():
                raise ValueError("this biLM's vectors do not fit into float16: set tune, which stores none")
        return arrays

    def tokens(self, sentences: Sequence[Sequence[str]]) -> torch.Tensor:
        """(L+1, N, dim), float16: the N tokens of all sentences, one sentence behind the other."""
        parts = [np.zeros((self.num_layers, 0, self.dim), dtype=np.float16)]
        filled = [tokens for tokens in sentences if tokens]
        stored = [self._places.get(tuple(tokens)) for tokens in filled]
        live = [tokens for tokens, known in zip(filled, stored, strict=True) if known is None]
        computed = iter(self._embed(live) if live else [])  # rounded as those on disk are, so that both are the same
        parts += [next(computed) if known is None else known for known in stored]
        return torch.from_numpy(np.concatenate(parts, axis=1))


def _is_whole(path: Path, size: int) -> bool:
    if not path.is_file():
        return False
    try:
        if path.stat().st_size == size and read_json(path.with_suffix(".json"))["crc32"] == _crc32(path):
            return True
    except (OSError, ValueError, KeyError):
        pass
    logger.warning("%s is damaged and is made again", path)
    return False


def _crc32(path: Path) -> int:
    value = 0
    with open(path, "rb") as file:
        while block := file.read(BYTES_AT_ONCE):
            value = zlib.crc32(block, value)
    return value
