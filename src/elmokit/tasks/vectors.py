"""Vectors that a task reads and does not train: static word vectors, and the layers of a frozen biLM.

Input: a file or folder of word vectors; or a biLM and the sentences of a data file.
Output: a table of word vectors; or one file on disk per data file, float16, with every layer of every sentence, so that
the biLM runs once and training reads from disk.

The name of that file is made from the model's digest and the sentences. A corrupted file is computed again; an
incomplete one is continued.
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

from elmokit.arguments import check_path
from elmokit.extras import require
from elmokit.files import locked, sha256_of, sha256_of_json, sync_folder, write_json
from elmokit.model import ELMo
from elmokit.settings import read_json

logger = logging.getLogger(__name__)

SENTENCES_AT_ONCE = 512  # sentences that are embedded together, sorted by length, and then written
BYTES_AT_ONCE = 1 << 24

OnSentences = Callable[[int, int], None]
"""Called with the number of sentences that are done, and the number of all."""


# ---- static word vectors ---------------------------------------------------------------------------------------------


class StaticVectors:
    """Word vectors of a file.

    Args:
        words: The words.
        table: (number of words, dim), one row per word.
        sha256: Checksum of the file.
    """

    def __init__(self, words: Sequence[str], table: npt.NDArray[np.float32], sha256: str) -> None:
        self.table, self.sha256 = table, sha256
        self._rows = {word: row for row, word in enumerate(words)}

    @property
    def dim(self) -> int:
        """Width of a vector."""
        return int(self.table.shape[1])

    def lookup(self, words: Sequence[str]) -> npt.NDArray[np.float32]:
        """Look up N words.

        Args:
            words: Words in any case. A word that is not in the table is looked up in lowercase.

        Returns:
            (N, dim), zeros for unknown words.
        """
        rows = [self._rows.get(word, self._rows.get(word.lower(), -1)) for word in words]
        vectors = self.table[rows].astype(np.float32)
        vectors[[row < 0 for row in rows]] = 0
        return vectors


def load_static(path: str) -> StaticVectors:
    """Load static word vectors.

    Args:
        path: A text file with a word and its numbers per line, as GloVe and word2vec write it; or a .npy array, or a
            folder with one. The words of a .npy are beside it: one per line in a .txt, or the first column of a
            .parquet.

    Raises:
        ValueError: If there are no word vectors, or the file is not in this format. The message names the line.
        ImportError: If the words are in a .parquet and pyarrow is not installed.
    """
    place = Path(check_path("path", path)).expanduser()
    if not place.exists():
        raise ValueError(f"{path}: no word vectors here; pass a text file, or a folder with a .npy")
    return _load_static(place, place.stat().st_mtime_ns)


@lru_cache(maxsize=1)  # the runs of a comparison read the same
def _load_static(path: Path, _: int) -> StaticVectors:
    if path.is_file() and path.suffix != ".npy":
        return _read_text(path)
    array = path if path.is_file() else _only_file(path, "*.npy")
    words = _only_file(array.parent, "*.parquet", "*.txt")
    try:
        table = np.load(array, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{array}: not an array of word vectors ({error})") from None
    if words.suffix == ".parquet":
        names = require("pyarrow.parquet", extra="parquet").read_table(words).column(0).to_pylist()
    else:
        names = words.read_text(encoding="utf-8").splitlines()
    if table.ndim != 2 or len(names) != len(table):
        raise ValueError(f"{array}: {table.shape}, but {words} has {len(names)} words")
    return StaticVectors(names, table, sha256_of(array))


def _only_file(folder: Path, *patterns: str) -> Path:
    """The one file of a folder that matches one of the patterns."""
    paths = sorted(path for pattern in patterns for path in folder.rglob(pattern))
    if len(paths) != 1:
        names = "none" if not paths else ", ".join(path.name for path in paths)
        raise ValueError(f"{folder}: expected one {' or '.join(patterns)} of word vectors, found {names}")
    return paths[0]


def _read_text(path: Path) -> StaticVectors:
    """Read one word and its numbers per line."""
    words: list[str] = []
    rows: list[npt.NDArray[np.float32]] = []
    dim = -1
    with open(path, encoding="utf-8", errors="replace", newline="\n") as file:
        for number, line in enumerate(file, start=1):
            fields = line.rstrip().split(" ")
            if number == 1 and len(fields) == 2 and all(map(str.isdecimal, fields)):
                dim = int(fields[1])  # the first line of word2vec: number of words, width of a vector
                continue
            dim = len(fields) - 1 if dim < 0 else dim
            try:
                rows.append(np.array(fields[-dim:] if dim else [], dtype=np.float32))
            except ValueError:
                raise ValueError(f"{path}, line {number}: expected a word and its {dim} numbers") from None
            if not 0 < dim < len(fields):
                raise ValueError(f"{path}, line {number}: {len(fields) - 1} numbers, expected {dim or 'some'}")
            words.append(" ".join(fields[:-dim]))  # a word may contain spaces
    if not rows:
        raise ValueError(f"{path}: no word vectors in this file")
    return StaticVectors(words, np.stack(rows), sha256_of(path))


# ---- the layers of a frozen biLM -------------------------------------------------------------------------------------


class FrozenLayers:
    """All layers of sentences by a frozen biLM: read from disk after `prepare`, else computed.

    Args:
        elmo: The model. Its weights must not change.
        folder: The folder of the files; it may be deleted at any time.
    """

    def __init__(self, elmo: ELMo, folder: Path) -> None:
        self.elmo, self.folder = elmo, folder
        self.digest = elmo.digest()
        self._stored: dict[tuple[str, ...], npt.NDArray[np.float16]] = {}

    def prepare(self, sentences: Sequence[Sequence[str]], on_sentences: OnSentences | None = None) -> None:
        """Compute the layers of sentences and store them on disk, unless they are there.

        Args:
            sentences: The sentences of one data file.
            on_sentences: Called with the number of sentences that are done, and the number of all.

        Raises:
            ValueError: If the values are too large for float16.
        """
        distinct = list(dict.fromkeys(tuple(tokens) for tokens in sentences if tokens))
        if not distinct:
            return
        num_layers, dim = self.elmo.num_layers, self.elmo.dim
        name = sha256_of_json([self.digest, distinct])[:32]
        path = self.folder / f"{name}.f16"
        ends = np.cumsum([len(tokens) for tokens in distinct]) * num_layers * dim
        if not _is_complete(path, 2 * int(ends[-1])):
            self.folder.mkdir(parents=True, exist_ok=True)
            with locked(self.folder, wait=True):
                if not _is_complete(path, 2 * int(ends[-1])):
                    self._store(path, distinct, ends, on_sentences)
        values = np.memmap(path, dtype=np.float16, mode="r")
        for tokens, begin, end in zip(distinct, [0, *ends[:-1]], ends, strict=True):
            self._stored[tokens] = values[begin:end].reshape(num_layers, len(tokens), dim)

    def _store(
        self,
        path: Path,
        sentences: list[tuple[str, ...]],
        ends: npt.NDArray[np.int64],
        on_sentences: OnSentences | None,
    ) -> None:
        """Write the file of vectors block by block, after the complete blocks of a run that was stopped."""
        part = path.with_suffix(".part")
        part.touch()
        bounds = [*range(0, len(sentences), SENTENCES_AT_ONCE), len(sentences)]
        offsets = [0 if bound == 0 else 2 * int(ends[bound - 1]) for bound in bounds]
        with open(part, "r+b") as file:
            size = os.fstat(file.fileno()).st_size
            num_complete = max(number for number, offset in enumerate(offsets) if offset <= size)
            file.truncate(offsets[num_complete])
            file.seek(offsets[num_complete])
            for begin, end in zip(bounds[num_complete:-1], bounds[num_complete + 1 :], strict=True):
                for vectors in self._embed(sentences[begin:end]):
                    file.write(vectors.tobytes())
                file.flush()
                if on_sentences is not None:
                    on_sentences(end, len(sentences))
            os.fsync(file.fileno())
        record = {"sha256_of_model": self.digest, "sentences": len(sentences), "crc32": _crc32(part)}
        write_json(path.with_suffix(".json"), record)
        os.replace(part, path)
        sync_folder(path.parent)

    def _embed(self, sentences: Sequence[Sequence[str]]) -> list[npt.NDArray[np.float16]]:
        """(L+1, T, 2P) of each sentence."""
        arrays: list[npt.NDArray[np.float16]] = []
        for vectors in self.elmo.embed([list(tokens) for tokens in sentences], layers="all"):
            with np.errstate(over="ignore"):
                arrays.append(vectors.astype(np.float16))
            if not np.isfinite(arrays[-1]).all():
                raise ValueError("the vectors of this biLM are too large for float16: set tune, which stores none")
        return arrays

    def tokens(
        self, sentences: Sequence[Sequence[str]], chosen: Sequence[int] | None = None, size: int | None = None
    ) -> torch.Tensor:
        """The layers of N tokens, without padding.

        Args:
            sentences: Token lists. Those that were not prepared are computed, and rounded as those on disk are.
            chosen: The N tokens, as indices in the tokens of all sentences; None: all of them.
            size: N, or a larger number: zeros are then appended.

        Returns:
            (L+1, size, 2P), float16, in the order of `chosen`.
        """
        not_empty = [tokens for tokens in sentences if tokens]
        stored = [self._stored.get(tuple(tokens)) for tokens in not_empty]
        new = [tokens for tokens, layers in zip(not_empty, stored, strict=True) if layers is None]
        computed = iter(self._embed(new) if new else [])
        parts = [next(computed) if layers is None else layers for layers in stored]
        num_tokens = sum(map(len, not_empty))
        if chosen is not None:
            parts = [np.concatenate(parts, axis=1)[:, chosen]] if len(chosen) else []
            num_tokens = len(chosen)
        layers = np.zeros((self.elmo.num_layers, size or num_tokens, self.elmo.dim), dtype=np.float16)
        if parts:
            np.concatenate(parts, axis=1, out=layers[:, :num_tokens])
        return torch.from_numpy(layers)


def _is_complete(path: Path, size: int) -> bool:
    """True if the file has this size and the checksum of its record."""
    if not path.is_file():
        return False
    try:
        if path.stat().st_size == size and read_json(path.with_suffix(".json"))["crc32"] == _crc32(path):
            return True
    except (OSError, ValueError, KeyError):
        pass
    logger.warning("%s is corrupted and is computed again", path)
    return False


def _crc32(path: Path) -> int:
    value = 0
    with open(path, "rb") as file:
        while block := file.read(BYTES_AT_ONCE):
            value = zlib.crc32(block, value)
    return value
