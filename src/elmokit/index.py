"""A searchable store of words in context: every word of a corpus with its vector, on disk.

Enters: a model and sentences, batch by batch.  Leaves: a folder, and from it the words nearest to a word in context.

    index.json       what was chosen when the folder was made: the model's digest, the layer, the words left out
    sentences.jsonl  one line for each sentence, a JSON list of its tokens
    rows.bin         for each word its sentence, where that stands in sentences.jsonl, and its place in it
    vectors.bin      for each word its vector, float16, length one
    graph-N.usearch  an HNSW graph over the first N words, their vectors rounded to int8
    contents.json    how much of the files above counts

Sentences, rows and vectors only grow at their ends, and contents.json, replaced in one step once they are on the disk,
says how far they reach: what a killed process left behind that is cut off by the next one.  The graph proposes more
words than are asked for, and the float16 vectors put them in order; words that are not in it yet, the last few or those
of a build that was killed, are compared one by one.  So a right answer needs no graph, only a fast one does.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from elmokit.files import locked, replacing, write_json
from elmokit.inference.runner import Sentence
from elmokit.inference.vectors import unit
from elmokit.model import ELMo
from elmokit.settings import check_types, from_mapping, read_json, to_mapping
from elmokit.text import as_list, as_tokens, marked_word

log = logging.getLogger(__name__)

Layer = Literal["average", "top"] | int
Progress = Callable[[int, int | None], None]
"""Called with the sentences that are done and those there are, where that is known."""

SETTINGS_FILE, CONTENTS_FILE = "index.json", "contents.json"
SENTENCES_FILE, ROWS_FILE, VECTORS_FILE = "sentences.jsonl", "rows.bin", "vectors.bin"
FORMAT = "elmokit index 1"
ROW = np.dtype([("sentence", "<i8"), ("begin", "<i8"), ("bytes", "<i4"), ("token", "<i4")])
VECTOR = np.dtype("<f2")

TOKENS_AT_ONCE = 16384  # embedded and committed together: what a kill can cost
ROWS_OUTSIDE_GRAPH = 8192  # compared one by one in a few milliseconds, so that a few new words do not rewrite the graph
ROWS_AT_ONCE = 16384  # of float32 copies, in exact search and while the graph grows
CONNECTIVITY, EXPANSION_ADD, EXPANSION_SEARCH = 16, 128, 128
CANDIDATES = 4  # words that the graph proposes for each that is asked for


@dataclass(frozen=True)
class Neighbour:
    """A word of the store near the one that was asked about."""

    tokens: list[str]
    index: int
    """Place of the word in `tokens`."""
    word: str
    cosine: float
    sentence_number: int
    """Sentences are counted from 0 in the order in which they were added, empty ones too."""


@dataclass(frozen=True)
class Hits:
    """What `search` found: one line for each query, best first."""

    rows: npt.NDArray[np.int64]
    cosines: npt.NDArray[np.float32]


@dataclass(frozen=True)
class Added:
    """What `add` did."""

    num_sentences: int
    num_words: int
    num_skipped: int
    """Sentences of the source that were in the store before."""


@dataclass(frozen=True)
class IndexSettings:
    """What is chosen once, when a store is made."""

    digest: str
    """See `ELMo.digest`."""
    model: str | None
    """The name under which the model can be loaded again, where it has one."""
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
    """Name, number of sentences, and digest of them, of each source that was named."""

    def __post_init__(self) -> None:
        check_types(self)


class WordIndex:
    """A folder of words in context that can be searched and added to; made by `create` or `open`.

    Threads may search at once, and other processes while one adds; not other threads, with the object that adds.
    """

    def __init__(self, folder: Path, settings: IndexSettings) -> None:
        self.folder, self.settings = folder, settings
        self._skip_words = frozenset(settings.skip_words)
        self._known_model: tuple[Callable[[], ELMo | None], list[tuple[int, int]]] = (lambda: None, [])
        self._growing: Any = None
        self._map(_read_contents(folder))

    @classmethod
    def create(
        cls,
        folder: str | os.PathLike[str],
        model: ELMo,
        *,
        layer: Layer = "average",
        skip_punctuation: bool = False,
        skip_words: Iterable[str] = (),
        model_name: str | None = None,
    ) -> WordIndex:
        """An empty store for the vectors of `model` in a layer: the even mix, the last one, or one by its number.

        `skip_punctuation` leaves out tokens without a letter or digit, `skip_words` those words in any case; they stay
        in their sentences, but are not found.
        """
        folder = Path(folder)
        if (folder / SETTINGS_FILE).exists():
            raise ValueError(f"{folder}: there is an index already: open it, or name another folder")
        # a killed call may have left its first file
        if folder.exists() and not (folder.is_dir() and {path.name for path in folder.iterdir()} <= {CONTENTS_FILE}):
            raise ValueError(f"{folder}: something else is there: name a new or empty folder")
        if layer not in ("average", "top") and not (type(layer) is int and 0 <= layer <= model.config.num_layers):
            numbers = f"a number from 0 to {model.config.num_layers}"
            raise ValueError(f'layer must be "average", "top" or {numbers}, not {layer!r}')
        _import_usearch()  # before hours of work, not after them
        settings = IndexSettings(
            digest=model.digest(),
            model=model_name,
            dim=2 * model.config.projection_dim,
            layer=layer,
            skip_punctuation=skip_punctuation,
            skip_words=tuple(sorted({word.casefold() for word in as_list(skip_words)})),
        )
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / CONTENTS_FILE, to_mapping(IndexContents()))
        write_json(folder / SETTINGS_FILE, to_mapping(settings))  # last: with it the folder is an index
        return cls(folder, settings)

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> WordIndex:
        """The store in `folder`, as it was after the last batch that was committed."""
        folder = Path(folder)
        if not (folder / SETTINGS_FILE).is_file():
            raise ValueError(f'{folder}: no {SETTINGS_FILE}, so this is no index: make one with "elmokit index build"')
        path = folder / SETTINGS_FILE
        return cls(folder, from_mapping(IndexSettings, read_json(path), source=str(path)))

    def __len__(self) -> int:
        return self.contents.num_rows

    @property
    def num_sentences(self) -> int:
        """Sentences that were added, empty ones too."""
        return self.contents.num_sentences

    @property
    def size_on_disk(self) -> int:
        """Bytes of all files."""
        return sum(path.stat().st_size for path in self.folder.iterdir())

    # ---- adding ------------------------------------------------------------------------------------------------------

    def add(
        self,
        model: ELMo,
        sentences: Iterable[Sentence],
        *,
        source: str | None = None,
        progress: Progress | None = None,
    ) -> Added:
        """Embed the sentences and add their words, batch by batch; a kill costs the batch that was being made.

        A `source` is remembered by its name: when it is added again, the sentences that are in the store are skipped,
        so that the same call goes on where it was stopped, and a text that grew at its end is taken from there.
        Without a source the sentences are added whatever there is.
        """
        self.check_model(model)
        if model.state == "carry":
            raise ValueError('this model carries its state from batch to batch: load it with state="stateless"')
        total = len(sentences) if isinstance(sentences, Sequence) else None
        with self._writing():
            before = self.contents
            sources = {name: (number, digest) for name, number, digest in before.sources}
            known, digest = (0, "") if source is None else sources.get(source, (0, ""))
            for batch in _batches(sentences, known, digest, f"{source}: {self.folder}"):
                if source is not None:
                    sources[source] = (batch.num_done, batch.digest)
                self._commit(model, batch, tuple((name, *what) for name, what in sources.items()))
                if progress is not None:
                    progress(batch.num_done, total)
                # doubling: to save the graph again and again costs no more than twice the last saving
                self._grow_graph(beyond=max(ROWS_OUTSIDE_GRAPH, self.contents.graph_rows))
            self._grow_graph(beyond=ROWS_OUTSIDE_GRAPH)
            after = self.contents
        return Added(after.num_sentences - before.num_sentences, after.num_rows - before.num_rows, known)

    def check_model(self, model: ELMo) -> None:
        """The model is the one whose vectors are here, or ValueError."""
        # weights change in place, or are other tensors: the digest, a matter of a second, is made again then alone
        seen = [(p.data_ptr(), p._version) for p in model.bilm.parameters()]
        known, known_weights = self._known_model
        if known() is model and known_weights == seen:
            return
        found = model.digest()
        if found != self.settings.digest:
            name = "" if self.settings.model is None else f" ({self.settings.model})"
            raise ValueError(
                f"{self.folder}: this index was made with another model{name}: its weights have the digest "
                f"{self.settings.digest[:12]}, those of the model given have {found[:12]}; load that model, with the "
                "same dtype and quantize, or build a new index"
            )
        self._known_model = weakref.ref(model), seen

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Hold the folder alone, start from what is committed, and cut off what is not."""
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(self.folder, wait=False))
            except BlockingIOError:
                raise ValueError(f"{self.folder}: another process is adding to this index: wait for it") from None
            stack.callback(setattr, self, "_growing", None)
            self._map(_read_contents(self.folder))
            for name, size in self._sizes(self.contents).items():
                with open(self.folder / name, "ab") as file:
                    file.truncate(size)
            for leftover in {*self.folder.glob(".*.tmp"), *self.folder.glob("graph-*")}:
                if leftover.name != _graph_name(self.contents):
                    leftover.unlink()
            yield

    def _commit(self, model: ELMo, batch: _Batch, sources: tuple[tuple[str, int, str], ...]) -> None:
        old, layer = self.contents, self.settings.layer
        rows, vectors = [], []
        embedded = model.embed(batch.tokens, layers=layer)  # type: ignore[arg-type]  # checked when it was chosen
        begin = old.num_bytes
        for sentence, (line, words, found) in enumerate(
            zip(batch.lines, batch.tokens, embedded, strict=True), old.num_sentences
        ):
            kept = [place for place, word in enumerate(words) if self._keeps(word)]
            if not np.isfinite(found).all():
                raise ValueError(f"the model's vectors of {' '.join(words)!r} are not finite: they cannot be compared")
            rows += [(sentence, begin, len(line), place) for place in kept]
            vectors.append(unit(found[kept]))
            begin += len(line)
        new = {
            SENTENCES_FILE: b"".join(batch.lines),
            ROWS_FILE: np.array(rows, ROW).tobytes(),
            VECTORS_FILE: np.concatenate(vectors).astype(VECTOR).tobytes(),
        }
        for name, content in new.items():
            _append(self.folder / name, content)
        self._write_contents(
            replace(
                old,
                num_sentences=old.num_sentences + len(batch.lines),
                num_rows=old.num_rows + len(rows),
                num_bytes=begin,
                sources=sources,
            )
        )

    def _keeps(self, word: str) -> bool:
        if self.settings.skip_punctuation and not any(map(str.isalnum, word)):
            return False
        return word.casefold() not in self._skip_words

    def _grow_graph(self, *, beyond: int) -> None:
        """Put all words into the graph, where more than `beyond` are not in it."""
        old = self.contents
        if old.num_rows - old.graph_rows <= beyond:
            return
        if self._growing is None:  # kept while sentences are being added
            self._growing = _new_graph(self.settings.dim)
            if old.graph_rows:
                self._growing.load(self.folder / _graph_name(old))
        for begin in range(old.graph_rows, old.num_rows, ROWS_AT_ONCE):
            some = _to_int8(self._vectors[begin : begin + ROWS_AT_ONCE])
            self._growing.add(np.arange(begin, begin + len(some)), some, threads=torch.get_num_threads())
        new = replace(old, graph_rows=old.num_rows)
        path = self.folder / _graph_name(new)
        with replacing(path) as temporary:
            self._growing.save(temporary)
        self._write_contents(replace(new, graph_bytes=path.stat().st_size))
        (self.folder / _graph_name(old)).unlink(missing_ok=True)
        log.info("%s: the graph has %d words", self.folder, old.num_rows)

    # ---- searching ---------------------------------------------------------------------------------------------------

    def neighbours(self, model: ELMo, sentence: str, k: int = 10) -> list[Neighbour]:
        """The k words of the store nearest to the one in brackets, "He sat by the [bank] .", best first.

        One word a sentence: the same sentence k times would say nothing.  A sentence that is the query itself is left
        out.  There are fewer than k where the store has no more.
        """
        if k < 1:
            raise ValueError(f"k is {k}: ask for at least one neighbour")
        asked, place = marked_word(sentence)
        self.check_model(model)
        query = model.embed([asked], layers=self.settings.layer)[0][place]  # type: ignore[arg-type]
        wanted = 2 * k
        while True:
            hits = self.search(query[None], wanted)
            found: dict[int, Neighbour] = {}
            for row, cosine in zip(hits.rows[0], hits.cosines[0], strict=True):
                neighbour = self._neighbour(int(row), float(cosine))
                if neighbour.tokens != asked:
                    found.setdefault(neighbour.sentence_number, neighbour)
            if len(found) >= k or wanted >= len(self):
                return list(found.values())[:k]
            wanted *= 4

    def search(self, vectors: npt.ArrayLike, k: int = 10, *, exact: bool = False) -> Hits:
        """The k rows nearest to each of `vectors` (n, 2P) by cosine, all rows where there are fewer than k.

        `exact` compares with every row, which takes seconds for a million of them.
        """
        queries = np.asarray(vectors, np.float32)
        if queries.ndim != 2 or queries.shape[1] != self.settings.dim:
            raise ValueError(f"vectors are {queries.shape}: this index has vectors of (n, {self.settings.dim})")
        if k < 1:
            raise ValueError(f"k is {k}: ask for at least one neighbour")
        queries = np.asarray(unit(queries), np.float32)
        k = min(k, len(self))
        if exact or self._graph is None or not len(queries) or k * CANDIDATES > self.contents.graph_rows:
            return self._compare(queries, 0, k)
        last = self._compare(queries, self.contents.graph_rows, min(k, len(self) - self.contents.graph_rows))
        lines = []
        for query, short, others in zip(queries, _to_int8(queries), last.rows, strict=True):
            proposed = self._graph.search(short, k * CANDIDATES).keys.astype(np.int64)
            if len(proposed) < k:  # a part of the graph that cannot be reached
                return self._compare(queries, 0, k)
            rows = np.sort(np.concatenate([proposed, others]))
            lines.append(_best(rows, self._vectors[rows].astype(np.float32) @ query, k))
        return _stack(lines, k)

    def _compare(self, queries: npt.NDArray[np.float32], first: int, k: int) -> Hits:
        """The k best of the rows from `first` on, each compared."""
        best = [(np.zeros(0, np.int64), np.zeros(0, np.float32)) for _ in queries]
        for begin in range(first, len(self), ROWS_AT_ONCE):
            some = self._vectors[begin : begin + ROWS_AT_ONCE].astype(np.float32)
            rows = np.arange(begin, begin + len(some))
            for number, cosines in enumerate(queries @ some.T):
                old_rows, old_cosines = best[number]
                best[number] = _best(np.concatenate([old_rows, rows]), np.concatenate([old_cosines, cosines]), k)
        return _stack(best, k)

    def _neighbour(self, row: int, cosine: float) -> Neighbour:
        where = self._rows[row]
        begin, place = int(where["begin"]), int(where["token"])
        try:
            tokens = json.loads(self._sentences[begin : begin + int(where["bytes"])].tobytes())
            return Neighbour(tokens, place, tokens[place], cosine, int(where["sentence"]))
        except (ValueError, LookupError, TypeError):
            path = self.folder / SENTENCES_FILE
            raise ValueError(f"{path}: damaged at byte {begin:,}, in the sentence of word {row:,}") from None

    # ---- files -------------------------------------------------------------------------------------------------------

    def _map(self, contents: IndexContents) -> None:
        """Look at the files as far as `contents` says that they reach."""
        for name, size in self._sizes(contents).items():
            path = self.folder / name
            found = path.stat().st_size if path.is_file() else 0
            if found < size:
                raise ValueError(
                    f"{path} has {found:,} bytes, {CONTENTS_FILE} counts {size:,}: the index is damaged, build it again"
                )
        self.contents = contents
        self._sentences = self._map_file(SENTENCES_FILE, np.dtype(np.uint8), (contents.num_bytes,))
        self._rows = self._map_file(ROWS_FILE, ROW, (contents.num_rows,))
        self._vectors = self._map_file(VECTORS_FILE, VECTOR, (contents.num_rows, self.settings.dim))
        self._graph = self._view_graph()

    def _sizes(self, contents: IndexContents) -> dict[str, int]:
        return {
            SENTENCES_FILE: contents.num_bytes,
            ROWS_FILE: contents.num_rows * ROW.itemsize,
            VECTORS_FILE: contents.num_rows * self.settings.dim * VECTOR.itemsize,
        }

    def _map_file(self, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
        if shape[0] == 0:
            return np.zeros(shape, dtype)  # there is nothing to map
        return np.asarray(np.memmap(self.folder / name, dtype, "r", shape=shape))

    def _view_graph(self) -> Any:
        """The graph, left on disk; None where there is none."""
        if not self.contents.graph_rows:
            return None
        path = self.folder / _graph_name(self.contents)
        graph = _new_graph(self.settings.dim)
        try:
            if path.stat().st_size != self.contents.graph_bytes:
                raise RuntimeError(f"{CONTENTS_FILE} counts {self.contents.graph_bytes:,} bytes")
            graph.view(path)
            if len(graph) != self.contents.graph_rows or graph.ndim != self.settings.dim:
                raise RuntimeError(f"{len(graph)} words of {graph.ndim} numbers")
        except (OSError, RuntimeError) as error:
            # it is made of the vectors, which are there: searching is slower until it is made again
            log.warning("%s: the graph is damaged or missing (%s); words are compared one by one", path, error)
            self.contents = replace(self.contents, graph_rows=0, graph_bytes=0)
            return None
        return graph

    def _write_contents(self, contents: IndexContents) -> None:
        write_json(self.folder / CONTENTS_FILE, to_mapping(contents))
        self._map(contents)


@dataclass(frozen=True)
class _Batch:
    lines: list[bytes]
    """As they are written to sentences.jsonl."""
    tokens: list[list[str]]
    num_done: int
    """Sentences of the source up to the end of this batch."""
    digest: str
    """Of all of those."""


def _batches(sentences: Iterable[Sentence], known: int, digest: str, name: str) -> Iterator[_Batch]:
    """The sentences after the `known` first ones, whose digest must be `digest`."""
    if isinstance(sentences, str):
        as_list(sentences)  # says how one sentence is given
    changed = ValueError(
        f"{name} holds {known:,} sentences of it, which are not its first ones now: add the text under another name, "
        "or build a new index"
    )
    hasher = hashlib.sha256()
    lines: list[bytes] = []
    tokens: list[list[str]] = []
    number = num_tokens = 0
    for number, sentence in enumerate(sentences, 1):
        (words,) = as_tokens([sentence], first=number - 1)
        line = json.dumps(words).encode() + b"\n"
        hasher.update(line)
        if number <= known:
            if number == known and hasher.hexdigest() != digest:
                raise changed
            continue
        lines.append(line)
        tokens.append(words)
        num_tokens += len(words)
        if num_tokens >= TOKENS_AT_ONCE or len(tokens) >= TOKENS_AT_ONCE:
            yield _Batch(lines, tokens, number, hasher.hexdigest())
            lines, tokens, num_tokens = [], [], 0
    if number < known:
        raise changed
    if lines:
        yield _Batch(lines, tokens, number, hasher.hexdigest())


def _read_contents(folder: Path) -> IndexContents:
    path = folder / CONTENTS_FILE
    if not path.is_file():
        raise ValueError(f"{path} is missing: the index is damaged, build it again")
    return from_mapping(IndexContents, read_json(path), source=str(path))


def _append(path: Path, content: bytes) -> None:
    """`content` is on the disk at the end of the file, or an OSError that names the file, as that of a full disk."""
    try:
        with open(path, "ab") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def _graph_name(contents: IndexContents) -> str:
    return f"graph-{contents.graph_rows}.usearch"


def _new_graph(dim: int) -> Any:
    return _import_usearch()(
        ndim=dim,
        metric="cos",
        dtype="i8",
        connectivity=CONNECTIVITY,
        expansion_add=EXPANSION_ADD,
        expansion_search=EXPANSION_SEARCH,
    )


def _import_usearch() -> Any:
    try:
        from usearch.index import Index
    except ImportError:
        raise ImportError('an index of words needs usearch: pip install "elmokit[index]"') from None
    return Index


def _to_int8(vectors: npt.NDArray[Any]) -> npt.NDArray[np.int8]:
    """Each vector stretched to the whole range of int8: cosines do not see its length."""
    vectors = vectors.astype(np.float32)
    largest = np.maximum(np.abs(vectors).max(axis=1, keepdims=True), 1e-12)
    return np.asarray(np.rint(vectors * (127 / largest)), np.int8)


def _best(
    rows: npt.NDArray[np.int64], cosines: npt.NDArray[np.float32], k: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """The k largest cosines, the earlier row first where two are equal; `rows` ascend where cosines are equal."""
    if len(rows) > 4 * k:  # a sort of all would cost more than the products
        threshold = np.partition(cosines, len(cosines) - k)[len(cosines) - k]
        kept = cosines >= threshold
        rows, cosines = rows[kept], cosines[kept]
    order = np.argsort(-cosines, kind="stable")[:k]
    return rows[order], cosines[order]


def _stack(lines: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]], k: int) -> Hits:
    rows, cosines = np.zeros((len(lines), k), np.int64), np.zeros((len(lines), k), np.float32)
    for number, line in enumerate(lines):
        rows[number], cosines[number] = line
    return Hits(rows, cosines)
