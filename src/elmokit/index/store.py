"""`WordIndex`: words in context that can be added to and searched.

Input: a model and sentences, batch by batch. Output: a folder (see files.py), and from it the words nearest to a word
or phrase in context, and all occurrences of a word. Words that are not in the graph yet (the last ones, or those of a
build that was killed) are compared one by one: the graph makes answers fast, not right.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from elmokit.arguments import (
    check_callable,
    check_flag,
    check_instance,
    check_integer,
    check_optional_integer,
    check_path,
    check_string,
)
from elmokit.extras import require
from elmokit.files import replacing
from elmokit.index.batches import SentenceBatch, make_batches
from elmokit.index.files import (
    WORDS_FILE,
    IndexContents,
    IndexFiles,
    IndexSettings,
    Source,
    check_new,
    claimed_folder,
    create_files,
    read_settings,
)
from elmokit.index.graph import Hits, Ranking, WordGraph, compare, compare_some, rank, stack, to_int8
from elmokit.index.same_model import ModelCheck
from elmokit.index.words import Neighbour, Occurrences, Rows, hash_words, spread
from elmokit.inference.runner import Sentence
from elmokit.inference.senses import Occurrence, WordSenses
from elmokit.inference.vectors import check_vectors, unit
from elmokit.inference.views import SENSE_VERSION, check_layers, needs_weights, view_of
from elmokit.model import ELMo
from elmokit.text import check_sentences, check_tokens, join_tokens, marked_phrase

log = logging.getLogger(__name__)

Layer = Literal["average", "top", "slot", "sense"] | int
Progress = Callable[[int, int | None], None]
"""Called with the number of sentences done, and of all, None if that is not known."""

ROWS_OUTSIDE_GRAPH = 8192  # compared one by one in a few milliseconds, so that a few new words do not rewrite the graph
CANDIDATES = 4  # rows that the graph proposes for each that is asked for


@dataclass(frozen=True)
class Added:
    """What `add` did."""

    num_sentences: int
    num_words: int
    num_skipped: int
    """Number of sentences of the source that the index had before."""


class WordIndex:
    """A folder of words in context that can be searched and added to. Use `create` or `open`.

    Several threads may search at once. Other processes may search while one adds; other threads may not use the object
    that adds.
    """

    def __init__(self, folder: Path, settings: IndexSettings) -> None:
        self.folder, self.settings = folder, settings
        self._skip_words = frozenset(settings.skip_words)
        self._check_weights = ModelCheck(folder, settings)
        self._growing: WordGraph | None = None
        self._files = IndexFiles(folder, settings.dim)
        self._graph = self._view_graph()

    @classmethod
    def create(
        cls,
        folder: str | os.PathLike[str],
        model: ELMo,
        *,
        layer: Layer = "sense",
        skip_punctuation: bool = False,
        skip_words: Iterable[str] = (),
        model_name: str | None = None,
    ) -> WordIndex:
        """Create an empty index.

        Words that are left out stay in their sentences, but are not found.

        Args:
            folder: A new or empty folder.
            model: The model whose vectors are indexed.
            layer: As `layers` of `ELMo.embed`, but not "all": "sense" tells best what a word means in its sentence;
                "slot", "average", "top", or the number of a layer.
            skip_punctuation: Leave out tokens without a letter or digit.
            skip_words: Words to leave out, in upper or lower case.
            model_name: A name under which the model can be loaded again.

        Raises:
            ValueError: If the folder has content, or the model has no such layer.
            ImportError: If usearch is not installed.
        """
        folder = Path(check_path("folder", folder))
        _check_kind(model)
        checked = check_layers(layer, model.num_layers, single=True, caller="WordIndex.create")
        skip_punctuation = check_flag("skip_punctuation", skip_punctuation)
        skipped = check_tokens(skip_words, "skip_words", "a list of words")
        if model_name is not None:
            check_string("model_name", model_name)
        check_new(folder)
        require("usearch.index", extra="index")
        settings = IndexSettings(
            digest=model.digest(),
            model=model_name,
            dim=model.dim,
            layer=checked,
            skip_punctuation=skip_punctuation,
            skip_words=tuple(sorted({word.casefold() for word in skipped})),
            word_weights=model.word_weights.digest() if needs_weights(checked) else None,
            sense_version=SENSE_VERSION if checked == "sense" else None,
        )
        folder.mkdir(parents=True, exist_ok=True)
        with claimed_folder(folder):
            check_new(folder)  # another process may have been faster
            create_files(folder, settings)
        return cls(folder, settings)

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> WordIndex:
        """Open the index in `folder`, as it was after the last batch that was committed.

        Raises:
            ValueError: If the folder is not an index, or is damaged.
        """
        folder = Path(check_path("folder", folder))
        return cls(folder, read_settings(folder))

    def __len__(self) -> int:
        return self.contents.num_rows

    @property
    def contents(self) -> IndexContents:
        """Numbers of sentences, words and bytes, and the sources."""
        return self._files.contents

    @property
    def num_sentences(self) -> int:
        """Number of sentences that were added, empty ones included."""
        return self.contents.num_sentences

    @property
    def size_on_disk(self) -> int:
        """Bytes of all files, without those that another process is just writing."""
        return sum(path.stat().st_size for path in self.folder.iterdir() if not path.name.startswith("."))

    # ---- adding ------------------------------------------------------------------------------------------------------

    def add(
        self,
        model: ELMo,
        sentences: Iterable[Sentence],
        *,
        source: str | None = None,
        progress: Progress | None = None,
    ) -> Added:
        """Embed sentences and add their words, batch by batch. A kill costs at most one batch.

        Args:
            model: The model that the index was created with.
            sentences: Strings, which the model's tokenizer cuts, or token lists.
            source: A name for these sentences. If it was added before, the sentences that the index has are skipped:
                the same call resumes where it was stopped, and a text that has grown is continued. Without a name all
                sentences are added.
            progress: Called after each batch.

        Returns:
            The numbers of sentences and words added, and of sentences skipped.

        Raises:
            ValueError: If the model is another one or carries its state, the source has changed, or another process is
                adding.
        """
        _check_kind(model)
        sentences = check_sentences(sentences)
        if source is not None:
            check_string("source", source)
        check_callable("progress", progress)
        self.check_model(model)
        if model.state == "carry":
            raise ValueError('this model carries its state from batch to batch: load it with state="stateless"')
        total = len(sentences) if isinstance(sentences, Sequence) else None
        with self._writing():
            before = self.contents
            sources = {one[0]: Source(*one) for one in before.sources}
            known = Source("", 0, "") if source is None else sources.get(source, Source(source, 0, ""))
            batches = make_batches(
                sentences,
                model.tokenizer,
                num_known=known.num_sentences,
                digest=known.digest,
                name=f"{source}: {self.folder}",
            )
            for batch in batches:
                if source is not None:
                    sources[source] = Source(source, batch.num_done, batch.digest)
                self._commit(model, batch, list(sources.values()))
                if progress is not None:
                    progress(batch.num_done, total)
                # doubling: saving the graph again and again costs at most twice the last save
                self._grow_graph(beyond=max(ROWS_OUTSIDE_GRAPH, self.contents.graph_rows))
            self._grow_graph(beyond=ROWS_OUTSIDE_GRAPH)
            after = self.contents
        return Added(after.num_sentences - before.num_sentences, after.num_rows - before.num_rows, known.num_sentences)

    def check_model(self, model: ELMo) -> None:
        """Check that the vectors of the index are those of `model`.

        Raises:
            ValueError: If the model has other weights, or other word weights in an index of the layer "sense".
        """
        _check_kind(model)
        self._check_weights(model)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Lock the folder; the graph that grows is kept in memory until the block ends."""
        with self._files.writing():
            if read_settings(self.folder) != self.settings:
                raise ValueError(f"{self.folder}: the index was replaced by another one: open it again")
            self._graph = self._view_graph()
            try:
                yield
            finally:
                self._growing = None

    def _commit(self, model: ELMo, batch: SentenceBatch, sources: list[Source]) -> None:
        """Embed a batch and write it."""
        embedded = model.embed(batch.tokens, layers=self._layer)
        positions = [[n for n, word in enumerate(words) if self._is_indexed(word)] for words in batch.tokens]
        for words, vectors in zip(batch.tokens, embedded, strict=True):
            if not np.isfinite(vectors).all():
                raise ValueError(f"the model's vectors of {' '.join(words)!r} are not finite: they cannot be compared")
        units = [unit(vectors[indexed]) for vectors, indexed in zip(embedded, positions, strict=True)]
        self._files.append(batch, positions, units, sources)
        self._graph = self._view_graph()

    def _is_indexed(self, word: str) -> bool:
        if self.settings.skip_punctuation and not any(map(str.isalnum, word)):
            return False
        return word.casefold() not in self._skip_words

    def _grow_graph(self, *, beyond: int) -> None:
        """Add all words to the graph if more than `beyond` are not in it."""
        old = self.contents
        if old.num_rows - old.graph_rows <= beyond:
            return
        if self._growing is None:
            self._growing = WordGraph(self.settings.dim)
            if old.graph_rows:
                self._growing.load(self.folder / old.graph_file)
        self._growing.add(self._files.vectors, old.graph_rows, old.num_rows)
        new = replace(old, graph_rows=old.num_rows)
        path = self.folder / new.graph_file
        with replacing(path) as temporary:
            self._growing.save(temporary)
        self._files.write_contents(replace(new, graph_bytes=path.stat().st_size))
        self._graph = self._view_graph()
        (self.folder / old.graph_file).unlink(missing_ok=True)
        log.info("%s: the graph has %d words", self.folder, old.num_rows)

    # ---- searching ---------------------------------------------------------------------------------------------------

    def neighbours(self, model: ELMo, sentence: str, k: int = 10, *, same_word: bool = False) -> list[Neighbour]:
        """The words nearest to one word or phrase in a sentence, at most one per sentence of the index.

        Args:
            model: The model that the index was created with.
            sentence: A sentence with one word or phrase in brackets, "He sat by the [bank] ." The same sentence in
                the index is left out of the result.
            k: Number of words.
            same_word: Only return the word in brackets, in upper or lower case: its uses that are most like this one.
                All of them are compared, without the graph.

        Returns:
            The neighbours, best first; fewer than `k` if the index has no more.

        Raises:
            ValueError: If no word or more than one is marked, `k` is less than 1, the model is another one, or a phrase
                is marked with `same_word`.
        """
        _check_kind(model)
        k, same_word = check_integer("k", k), check_flag("same_word", same_word)
        asked = marked_phrase(sentence, model.tokenizer)
        phrase = asked.tokens[asked.start : asked.end]
        if same_word and len(phrase) > 1 and not model.tokenizer.splits_words:
            raise ValueError(f"same_word is for one token, and {phrase} are {len(phrase)}: mark one, or leave it out")
        self.check_model(model)
        ((_, reading),) = model.readings([asked.tokens])
        view = view_of(self._layer, model.num_layers)
        query = view.spans(reading, torch.tensor([asked.start]), torch.tensor([asked.end]))[0].cpu().numpy()  # (1, 2P)
        if not query.any():
            raise ValueError(f"{sentence!r} has no other word, so nothing tells what this one means: add its context")
        if same_word:
            rows = self._rows_of(join_tokens(phrase))
            ranking = compare_some(np.asarray(unit(query[0]), np.float32), self._files.vectors, rows)
            return self._one_per_sentence(ranking, asked.tokens, k)
        num_rows = 2 * k
        while True:
            hits = self.search(query, num_rows)
            found = self._one_per_sentence(Ranking(hits.rows[0], hits.cosines[0]), asked.tokens, k)
            if len(found) == k or num_rows >= len(self):
                return found
            num_rows *= 4

    def _one_per_sentence(self, ranking: Ranking, asked: list[str], k: int) -> list[Neighbour]:
        """The best word of each of the first k sentences other than the one that was asked about."""
        found: dict[int, Neighbour] = {}
        for word, cosine in zip(self._files.words(ranking.rows), ranking.cosines, strict=True):
            if "".join(word.tokens) != "".join(asked):  # Chinese words, or their characters
                neighbour = Neighbour(
                    word.tokens, word.position, word.tokens[word.position], float(cosine), word.sentence_number
                )
                found.setdefault(word.sentence_number, neighbour)
                if len(found) == k:
                    break
        return list(found.values())

    def search(self, vectors: npt.ArrayLike, k: int = 10, *, exact: bool = False) -> Hits:
        """The rows nearest to each vector by cosine.

        Args:
            vectors: (n, 2P).
            k: Number of rows for each vector.
            exact: Compare with every row, which takes seconds for a million of them.

        Returns:
            Rows and cosines (n, k), best first; (n, N) if the index has only N < k rows.

        Raises:
            ValueError: If the vectors have another shape, or `k` is less than 1.
        """
        k, exact = check_integer("k", k), check_flag("exact", exact)
        queries = check_vectors("vectors", vectors, self.settings.dim)
        queries = np.asarray(unit(queries), np.float32)
        stored, in_graph = self._files.vectors, self.contents.graph_rows
        k = min(k, len(self))
        if exact or self._graph is None or not len(queries) or k * CANDIDATES > in_graph:
            return compare(queries, stored, 0, k)
        last = compare(queries, stored, in_graph, min(k, len(self) - in_graph))
        rankings = []
        for query, rounded, others in zip(queries, to_int8(queries), last.rows, strict=True):
            proposed = self._graph.propose(rounded, k * CANDIDATES)
            if len(proposed) < k:  # a part of the graph cannot be reached
                return compare(queries, stored, 0, k)
            rows = np.sort(np.concatenate([proposed, others]))
            rankings.append(rank(rows, stored[rows].astype(np.float32) @ query, k))
        return stack(rankings, k)

    def occurrences(self, word: str, *, limit: int | None = None, ignore_case: bool = True) -> Occurrences:
        """Occurrences of a word, in the order of adding.

        Args:
            word: One token, as the tokenizer cuts it. A word that was left out of the index has no occurrences.
            limit: Largest number of occurrences. If there are more, these are at even distances over the index.
            ignore_case: Also count the word in upper or lower case.

        Returns:
            The occurrences with their sentences and vectors, and the number of all.

        Raises:
            ValueError: If `limit` is less than 1, or words.bin is damaged.
        """
        word = check_string("word", word)
        limit, ignore_case = check_optional_integer("limit", limit), check_flag("ignore_case", ignore_case)
        rows = self._rows_of(word)
        if not ignore_case:
            same = [stored.tokens[stored.position] == word for stored in self._files.words(rows)]
            rows = rows[np.array(same, bool)]
        chosen = spread(rows, limit)
        words = list(self._files.words(chosen))
        for stored, row in zip(words, chosen, strict=True):
            if stored.tokens[stored.position].casefold() != word.casefold():
                path = self.folder / WORDS_FILE
                raise ValueError(f"{path}: damaged at word {row:,}: delete it, it is made again from the sentences")
        return Occurrences(words, self._files.vectors[chosen].astype(np.float32), chosen, len(rows))

    def senses(self, model: ELMo, word: str, *, num_senses: int | None = None, limit: int | None = 2000) -> WordSenses:
        """The occurrences of a word, grouped into senses, as `ELMo.senses` does.

        Args:
            model: The model that the index was created with.
            word: One token, in upper or lower case.
            num_senses: Number of senses; None finds it from the data.
            limit: As for `occurrences`.

        Raises:
            ValueError: If the word is several tokens, or the model is another one.
        """
        _check_kind(model)
        num_senses = check_optional_integer("num_senses", num_senses)
        if len(model.tokenizer(check_string("word", word))) != 1:
            raise ValueError(f"word is {word!r}: an index has single tokens; find a phrase with ELMo.senses")
        self.check_model(model)
        found = self.occurrences(word, limit=limit)
        uses = [Occurrence(one.tokens, one.position, one.position + 1, one.sentence_number) for one in found.words]
        return model.group_senses(word, uses, found.vectors, num_senses=num_senses)

    def _rows_of(self, word: str) -> Rows:
        """The rows of a word in upper or lower case."""
        return np.flatnonzero(self._files.hashes() == hash_words([word]))

    @property
    def _layer(self) -> Layer:
        return self.settings.layer  # type: ignore[return-value]  # checked when it was chosen

    def _view_graph(self) -> WordGraph | None:
        """Open the saved graph; None if there is none, or it is damaged."""
        contents = self.contents
        if not contents.graph_rows:
            return None
        path = self.folder / contents.graph_file
        try:
            return WordGraph.view(
                path, dim=self.settings.dim, num_rows=contents.graph_rows, num_bytes=contents.graph_bytes
            )
        except (OSError, RuntimeError) as error:
            # it is made from the vectors, which are there: searching is slower until it is made again
            log.warning("%s: the graph is damaged or missing (%s); words are compared one by one", path, error)
            self._files.drop_graph()
            return None


def _check_kind(model: object) -> None:
    check_instance("model", model, ELMo, "a model, such as ELMo.from_pretrained()")
