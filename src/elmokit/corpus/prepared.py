"""A prepared corpus: a folder of memory-mapped arrays.

Input: a folder that `prepare` made.  Output: a `Corpus`, its arrays and their counts.

    stream.bin        int32   B w w w B w w B ...   the word forms of all sentences, with a boundary B = 0 between them
    documents.bin     int64   the index in the stream at which each document starts, and the length of the stream
    forms.bin         int16   (F, max_characters): characters of each form; rows 0 and 1 are <S> and </S>
    form_targets.bin  int32   (F,): vocabulary id of each form; that of <UNK> for a form outside the vocabulary
    corpus.json       counts, tokenizer, digest of the vocabulary, checksums of each shard of the stream and of each
                      other file

A pair is two neighbours in the stream. In the forward direction, pair p reads stream[p], with B as <S>, and predicts
stream[p + 1], with B as </S>. In the backward direction it reads stream[p + 1], with B as </S>, and predicts stream[p],
with B as <S>. A sentence of n words has n + 1 predictions in each direction. A document is a sequence of pairs, and
documents can be read in any order.

Checksums are compared when a corpus is opened: those of all files but the stream, and that of a stream of at most
CHECKED_BYTES. Word forms that are read from the stream are checked against the number of forms, of any corpus.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from elmokit.arguments import check_path
from elmokit.files import sha256_of_json
from elmokit.text import Vocabulary, WordIds

FORMAT = "elmokit corpus 1"
CHECKED_BYTES = 1 << 30  # size of the largest stream whose checksums are compared when a corpus is opened


@dataclass(frozen=True, eq=False)
class Corpus:
    """A prepared corpus. The docstring of this module describes its arrays."""

    folder: Path
    num_tokens: int
    """Number of words, without sentence boundaries."""
    num_sentences: int
    num_documents: int
    num_replaced_lines: int
    """Number of lines with bytes that are not UTF-8."""
    vocabulary_digest: str
    tokenizer: str | None
    """Name of the tokenizer that split the text; None if an earlier version prepared it."""
    made_from: str
    """Digest of the text, the vocabulary and the settings."""
    stream: npt.NDArray[np.int32] = field(repr=False)
    documents: npt.NDArray[np.int64] = field(repr=False)
    forms: npt.NDArray[np.int16] = field(repr=False)
    form_targets: npt.NDArray[np.int32] = field(repr=False)

    @classmethod
    def open(cls, folder: str | Path, *, vocabulary: Vocabulary | None = None) -> Corpus:
        """Open a folder made by `prepare`, and compare checksums. The arrays are mapped, not kept in memory.

        Args:
            folder: The folder.
            vocabulary: If given, check that the corpus was prepared with this vocabulary.

        Raises:
            ValueError: If the folder is not a complete corpus, is damaged, or has another vocabulary. The checksum of a
                stream larger than CHECKED_BYTES is not compared: `verify` does so.
        """
        folder = Path(check_path("folder", folder))
        about = _read_about(folder)
        prepared_with = about["vocabulary_digest"]
        if vocabulary is not None and vocabulary.digest != prepared_with:
            raise ValueError(
                f"{folder} was prepared with the vocabulary {prepared_with}, and this one is {vocabulary.digest}:"
                " give the same vocabulary, or prepare the text again with this one"
            )

        def map_file(name: str, dtype: type[np.generic], *shape: int) -> Any:
            path, size = folder / name, int(np.prod(shape)) * np.dtype(dtype).itemsize
            actual_size = path.stat().st_size if path.exists() else 0
            if actual_size != size:
                raise ValueError(f"{path} has {actual_size} bytes and should have {size}: prepare the text again")
            return np.memmap(path, dtype, "r", shape=shape)

        corpus = cls(
            folder=folder,
            num_tokens=about["num_tokens"],
            num_sentences=about["num_sentences"],
            num_documents=about["num_documents"],
            num_replaced_lines=about["num_replaced_lines"],
            vocabulary_digest=prepared_with,
            tokenizer=about.get("tokenizer"),
            made_from=about["made_from"],
            stream=map_file("stream.bin", np.int32, about["num_tokens"] + about["num_sentences"] + 1),
            documents=map_file("documents.bin", np.int64, about["num_documents"] + 1),
            forms=map_file("forms.bin", np.int16, about["num_forms"], about["max_characters"]),
            form_targets=map_file("form_targets.bin", np.int32, about["num_forms"]),
        )
        corpus._check_tables(about)
        if corpus.stream.nbytes <= CHECKED_BYTES:
            corpus._check_stream(about)
        return corpus

    @property
    def num_pairs(self) -> int:
        """Number of predictions in each direction: every word, and one boundary per sentence."""
        return self.num_tokens + self.num_sentences

    def ids_of(self, forms: npt.NDArray[np.generic], word_ids: WordIds) -> npt.NDArray[Any]:
        """The shifted ids of word forms that a biLM reads.

        Args:
            forms: (N,) rows of `forms`.
            word_ids: How the biLM reads words.

        Returns:
            int16 characters (N, C), or int32 words (N,) of a word-level biLM.

        Raises:
            ValueError: If the corpus was prepared for another number of characters per word.
        """
        table = self.form_targets if word_ids.num_columns is None else self.forms
        if word_ids.num_columns not in (None, self.forms.shape[1]):
            raise ValueError(
                f"{self.folder} was prepared with {self.forms.shape[1]} characters per word, the model reads "
                f"{word_ids.num_columns} ids per word: prepare the text again, or set max_characters"
            )
        ids: npt.NDArray[Any] = np.asarray(table)[forms] + table.dtype.type(1)
        return ids

    def check_forms(self, forms: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Check word forms that were read from the stream.

        Args:
            forms: Elements of `stream`, in any shape.

        Returns:
            `forms`.

        Raises:
            ValueError: If one is not a row of `forms`: the stream is damaged.
        """
        unsigned = forms.view(np.uint32)  # a negative number is a large one
        if forms.size and (largest := int(unsigned.max())) >= len(self.form_targets):
            wrong = np.uint32(largest).view(np.int32)
            raise ValueError(
                f"{self.folder / 'stream.bin'} is damaged: it has the word form {wrong}, the corpus has "
                f"{len(self.form_targets)} forms. Remove {self.folder} and prepare the text again"
            )
        return forms

    def verify(self) -> None:
        """Read all arrays and compare their checksums.

        Raises:
            ValueError: If a shard or a file was changed; the message names it.
        """
        about = _read_about(self.folder)
        self._check_stream(about)
        self._check_tables(about)

    def _check_stream(self, about: dict[str, Any]) -> None:
        """Compare the checksums of the stream."""
        begin = 0
        for number, shard in enumerate(about["shards"]):
            end = begin + shard["length"]
            if sha256_of_array(self.stream[begin:end]) != shard["sha256"]:
                raise ValueError(
                    f"{self.folder / 'stream.bin'}: shard {number}, from {shard['file']}, elements {begin} to {end},"
                    f" is damaged: its checksum differs. Remove {self.folder} and prepare the text again"
                )
            begin = end

    def _check_tables(self, about: dict[str, Any]) -> None:
        """Compare the checksums of all files but the stream."""
        for name, sha256 in about["files"].items():
            if sha256_of_array(getattr(self, Path(name).stem)) != sha256:
                raise ValueError(
                    f"{self.folder / name} is damaged: its checksum differs. Remove {self.folder} and prepare the text"
                    " again"
                )


def _read_about(folder: Path) -> dict[str, Any]:
    path = folder / "corpus.json"
    if not path.exists():
        raise ValueError(f"{folder} is not a prepared corpus: it has no corpus.json. Run `elmokit prepare` to its end")
    try:
        about: dict[str, Any] = dict(json.loads(path.read_bytes()))
        if about.pop("sha256") == sha256_of_json(about) and about["format"] == FORMAT:
            return about
    except (ValueError, KeyError, TypeError):
        pass
    raise ValueError(f"{path} is damaged, or not of the format {FORMAT!r}: prepare the text again")


def sha256_of_array(array: npt.NDArray[Any]) -> str:
    """The SHA-256 of the numbers of an array, as 64 hexadecimal digits."""
    return hashlib.sha256(array.data).hexdigest()
