"""The folder OUT.partial: what a run has done so far.

job.json says what was asked for. Each part-N.npz has some lines with their vectors, and is complete or absent. A part
is taken over only if its lines are still the lines of the input, so nothing is lost or written twice.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from elmokit.files import replacing, write_json
from elmokit.inference.vectors import Floats
from elmokit.inference.views import needs_weights
from elmokit.model import ELMo
from elmokit.vector_files.file import VectorFile


class Entry(NamedTuple):
    """One line and its vectors."""

    line: int
    """Number of the line, counted from 0."""
    text: str
    vectors: Floats
    """(T, 2P) or (L+1, T, 2P)."""


@dataclass(frozen=True)
class Part:
    """Some lines and their vectors."""

    first: int
    """Number of the first line, counted from 0."""
    texts: list[str]
    lengths: npt.NDArray[np.int64]
    """Number of tokens of each line."""
    vectors: Floats
    """(T, 2P) or (L+1, T, 2P) of all lines, one after the other."""

    def entries(self) -> Iterator[Entry]:
        """The lines one by one."""
        ends = np.cumsum(self.lengths).tolist()
        for number, (text, length, end) in enumerate(zip(self.texts, self.lengths.tolist(), ends, strict=True)):
            yield Entry(self.first + number, text, self.vectors[..., end - length : end, :])


class Parts:
    """The folder OUT.partial.

    Args:
        file: What is asked for.
        model: The model.
        overwrite: Discard parts that do not fit.

    Raises:
        ValueError: If the folder has parts of another run, and `overwrite` is False.
    """

    def __init__(self, file: VectorFile, model: ELMo, overwrite: bool) -> None:
        self.file, self.overwrite = file, overwrite
        self.folder = file.path.with_name(f"{file.path.name}.partial")
        self.count = 0
        self.tokenizer = file.tokenizer(model)
        self.layers_shape: tuple[int, ...] = (model.num_layers,) if file.layers == "all" else ()
        self.dim = model.dim
        job = {
            "layers": file.layers,
            "dtype": file.dtype,
            "tokenized": file.tokenized,
            "model": model.digest(),
        }
        if needs_weights(file.layers):
            job["word_weights"] = model.word_weights.digest()
        self.folder.mkdir(exist_ok=True)
        for left_by_a_killed_run in self.folder.glob(".*.tmp"):
            left_by_a_killed_run.unlink()
        begun = self._read_job()
        if begun is None:
            self._drop()
        for key, value in job.items():
            if begun is not None and begun.get(key) != value:
                self._refuse(f"was begun with {key} {begun.get(key)}, and now it is {value}")
        if begun != job:
            write_json(self.folder / "job.json", job)

    def _read_job(self) -> dict[str, Any] | None:
        path = self.folder / "job.json"
        if not path.exists():
            return None
        try:
            job = json.loads(path.read_bytes())
        except ValueError:
            job = None
        if not isinstance(job, dict):
            raise ValueError(f"{path} is damaged: remove {self.folder} to start over")
        return job

    def path(self, number: int) -> Path:
        """The file of a part."""
        return self.folder / f"part-{number:08d}.npz"

    def take_over(self, texts: list[str], first: int) -> bool:
        """Take over the next part if it exists; False if the lines must be embedded."""
        path = self.path(self.count)
        if not path.exists():
            return False
        held = self.read(self.count, first, with_vectors=False).texts
        if held != texts:
            same = next((n for n, pair in enumerate(zip(held, texts, strict=False)) if pair[0] != pair[1]), None)
            line = first + (min(len(held), len(texts)) if same is None else same) + 1
            self._refuse(f"was begun with other text: line {line} differs")
            return False
        self.count += 1
        return True

    def end(self, num_lines: int) -> None:
        """Check that there are no parts after the last line."""
        if self.path(self.count).exists():
            self._refuse(f"was begun with a longer text; now it ends after line {num_lines}")

    def _refuse(self, difference: str) -> None:
        """Remove the parts that do not fit, or raise a ValueError."""
        if not self.overwrite:
            raise ValueError(
                f"{self.folder} {difference}: run it as it was begun to resume, or start over with --overwrite"
            )
        self._drop()

    def _drop(self) -> None:
        for path in self.folder.glob("part-*.npz"):
            if path >= self.path(self.count):
                path.unlink()

    def add(self, texts: list[str], vectors: Sequence[Floats], first: int) -> None:
        """Write the next part.

        Args:
            texts: Its lines.
            vectors: For each line (T, 2P) or (L+1, T, 2P).
            first: Number of the first line.
        """
        lengths = np.array([values.shape[-2] for values in vectors], np.int64)
        joined: Floats = np.empty((*self.layers_shape, int(lengths.sum()), self.dim), self.file.dtype)
        part = Part(first, texts, lengths, joined)
        for entry, values in zip(part.entries(), vectors, strict=True):
            try:
                with np.errstate(over="raise"):
                    entry.vectors[...] = values
            except FloatingPointError:
                raise ValueError(f"line {entry.line + 1} has values beyond {self.file.dtype}: write float32") from None
        with replacing(self.path(self.count)) as target, open(target, "wb") as file:
            text = np.frombuffer(json.dumps(texts).encode("ascii"), np.uint8)
            np.savez(file, text=text, lengths=lengths, vectors=joined)
        self.count += 1

    def read(self, number: int, first: int, *, with_vectors: bool = True) -> Part:
        """Read a part whose first line has the number `first`."""
        path = self.path(number)
        try:
            with open(path, "rb") as file, np.load(file) as arrays:
                texts = json.loads(arrays["text"].tobytes())
                vectors = arrays["vectors"] if with_vectors else np.empty(0)
                return Part(first, texts, arrays["lengths"], vectors)
        except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(f"{path} is damaged ({error}): remove it, and its lines are embedded again") from None

    def __iter__(self) -> Iterator[Part]:
        first = 0
        for number in range(self.count):
            part = self.read(number, first)
            first += len(part.texts)
            yield part

    def lengths(self) -> Iterator[int]:
        """Number of tokens of each line."""
        for number in range(self.count):
            yield from self.read(number, 0, with_vectors=False).lengths.tolist()

    def tokens_as_json(self) -> Iterator[bytes]:
        """The tokens of all lines, a list of lists of strings, as pieces of one JSON text in ASCII."""
        before = b"["
        for number in range(self.count):
            tokens = map(self.tokenizer, self.read(number, 0, with_vectors=False).texts)
            yield before + ",\n".join(map(json.dumps, tokens)).encode("ascii")
            before = b",\n"
        yield b"]" if self.count else b"[]"
