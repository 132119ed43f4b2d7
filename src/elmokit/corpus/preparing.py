"""Text files become a prepared corpus, the folder that prepared.py describes.

Input: text files and a vocabulary.  Output: the folder, opened as a `Corpus`.

Each block of text becomes a shard in the subfolder `shards`, in one process per core; then the shards are joined.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from elmokit.arguments import check_path
from elmokit.corpus.counts import by_frequency
from elmokit.corpus.prepared import FORMAT, Corpus, sha256_of_array
from elmokit.corpus.sources import (
    Block,
    Paths,
    Progress,
    Tokenized,
    check_packages,
    find_files,
    read_blocks,
    report_replaced,
    sentences,
    tokenizer_of,
)
from elmokit.corpus.workers import run_in_order
from elmokit.files import check_new_folder, claimed, replacing, sha256_of_json, write_json
from elmokit.text import BOS_TOKEN, EOS_TOKEN, MAX_CHARACTERS, Vocabulary, words_to_ids

# ---- text -> shards -------------------------------------------------------------------------------------------------


def prepare(
    paths: Paths,
    out: str | Path,
    *,
    vocabulary: Vocabulary,
    tokenized: Tokenized = False,
    max_characters: int = MAX_CHARACTERS,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Corpus:
    """Turn text files into a corpus folder.

    Each block of text becomes a shard in out/shards, named by a digest of its text and settings; then the shards are
    joined. A preparation that was killed therefore resumes with the shards that exist, changed text is noticed, and the
    result does not depend on the number of workers. A folder that is already complete is opened.

    Args:
        paths: Paths or globs of text files.
        out: The folder to make.
        vocabulary: Words that a model predicts; other words are targets as <UNK>.
        tokenized: How lines are split into words: see `Tokenized`.
        max_characters: Number of character ids per word.
        workers: Number of processes. Default: one per core.
        progress: Called with the number of bytes read so far and in total.

    Returns:
        The corpus.

    Raises:
        ValueError: If there is no sentence, a file is damaged, `out` holds another corpus, or another process prepares
            it.
        ImportError: If a package to read a file is missing.
    """
    files, out = find_files(paths), Path(check_path("out", out))
    check_packages(files)
    check_new_folder(out)
    out.mkdir(parents=True, exist_ok=True)
    try:
        with claimed(out, lock=out / ".lock", doing="preparing it"):
            return _prepare(files, out, vocabulary, tokenized, max_characters, workers, progress)
    except ValueError:
        with contextlib.suppress(OSError):
            out.rmdir()  # if nothing was written to it
        raise


def _prepare(
    files: list[Path],
    out: Path,
    vocabulary: Vocabulary,
    tokenized: Tokenized,
    max_characters: int,
    workers: int | None,
    progress: Progress | None,
) -> Corpus:
    """Prepare a folder that no other process writes."""
    finished = (out / "corpus.json").exists()
    shards: list[_Shard] = []
    (out / "shards").mkdir(exist_ok=True)

    def unfinished_jobs() -> Iterator[tuple[bytes, Tokenized, Path]]:
        for block in read_blocks(files, progress):
            shards.append(_Shard.of(block, tokenized, out / "shards"))
            if not finished and not shards[-1].is_complete():
                yield block.content, tokenized, shards[-1].path

    for _ in run_in_order(_write_shard, unfinished_jobs(), workers):
        pass
    sources = [(shard.path.stem, shard.begins_file) for shard in shards]
    made_from = sha256_of_json([FORMAT, vocabulary.digest, max_characters, sources])
    if finished:
        if Corpus.open(out).made_from != made_from:
            raise ValueError(f"{out} holds a corpus of other text or vocabulary: remove it, or name another folder")
    else:
        counts = _count_forms(shards)
        if not counts:
            shutil.rmtree(out / "shards")
            raise ValueError(f"there is no sentence in {', '.join(map(str, files))}")
        _join(shards, counts, out, vocabulary, tokenizer_of(tokenized).name, max_characters, made_from)
    shutil.rmtree(out / "shards")
    for temporary in out.glob(".*.tmp"):  # of a killed preparation
        temporary.unlink()
    corpus = Corpus.open(out)
    report_replaced(corpus.num_replaced_lines)
    return corpus


@dataclass(frozen=True)
class _Shard:
    """The file of one prepared block."""

    path: Path
    file: str
    begins_file: bool

    @classmethod
    def of(cls, block: Block, tokenized: Tokenized, folder: Path) -> _Shard:
        made_from = hashlib.sha256(f"{FORMAT}, tokenized={tokenized}\n".encode() + block.content).hexdigest()
        return cls(folder / f"{made_from}.npz", block.file.name, block.begins_file)

    def is_complete(self) -> bool:
        return self.path.exists() and self._content() is not None

    def load(self) -> Any:
        content = self._content()
        if content is None:
            raise ValueError(f"{self.path} was damaged after it was written: prepare the text again")
        return np.load(io.BytesIO(content))

    def _content(self) -> bytes | None:
        """The file without the checksum at its start; None if the checksum differs."""
        content = self.path.read_bytes()
        return content[32:] if hashlib.sha256(content[32:]).digest() == content[:32] else None


def _write_shard(content: bytes, tokenized: Tokenized, path: Path) -> None:
    """Prepare a block: its forms are numbered in order of occurrence; 0 is the boundary before each sentence."""
    lines, num_replaced = sentences(content, tokenized=tokenized)
    words: list[str | None] = []
    documents = []  # only those after a blank line in this block: the first one may continue the block before
    after_blank = False
    for line in lines:
        if line:
            if after_blank:
                documents.append(len(words))
            words.append(None)
            words += line
        after_blank = not line
    numbers: defaultdict[str | None, int] = defaultdict(None, {None: 0})
    numbers.default_factory = numbers.__len__
    stream = np.fromiter(map(numbers.__getitem__, words), np.int32, len(words))
    del numbers[None]
    arrays = io.BytesIO()
    np.savez(
        arrays,
        stream=stream,
        documents=np.array(documents, np.int64),
        forms=np.frombuffer("\n".join(map(str, numbers)).encode(), np.uint8),
        counts=np.bincount(stream, minlength=len(numbers) + 1)[1:],
        ends_blank=np.array(after_blank),
        num_replaced_lines=np.array(num_replaced),
    )
    with replacing(path) as temporary:
        temporary.write_bytes(hashlib.sha256(arrays.getbuffer()).digest() + arrays.getbuffer())


# ---- shards -> corpus -----------------------------------------------------------------------------------------------


def _count_forms(shards: list[_Shard]) -> Counter[str]:
    """Number of occurrences of each word form."""
    counts: Counter[str] = Counter()
    for shard in shards:
        with shard.load() as arrays:
            for form, count in zip(_forms(arrays), arrays["counts"].tolist(), strict=True):
                counts[form] += count
    return counts


def _join(
    shards: list[_Shard],
    counts: Counter[str],
    out: Path,
    vocabulary: Vocabulary,
    tokenizer: str,
    max_characters: int,
    made_from: str,
) -> None:
    """Join the shards, and write the arrays and corpus.json."""
    # A literal <S> in the text is an ordinary form: it does not end a sentence, so it is not row 0.
    forms = [BOS_TOKEN, EOS_TOKEN, *by_frequency(counts)]  # frequent forms are neighbours and share memory pages
    numbers = {form: number for number, form in enumerate(forms[2:], 2)}

    parts: list[dict[str, Any]] = []
    documents: list[npt.NDArray[np.int64]] = []
    length = num_sentences = num_replaced_lines = 0
    ends_blank = False
    with replacing(out / "stream.bin") as temporary, open(temporary, "wb") as file:
        for shard in shards:
            with shard.load() as arrays:
                stream = np.array([0, *map(numbers.__getitem__, _forms(arrays))], np.int32)[arrays["stream"]]
                starts = arrays["documents"]
                if len(stream) and (shard.begins_file or ends_blank):
                    starts = np.union1d(starts, [0])
                ends_blank = bool(arrays["ends_blank"])
                num_replaced_lines += int(arrays["num_replaced_lines"])
            documents.append(starts + length)
            num_sentences += int(np.count_nonzero(stream == 0))
            length += len(stream)
            if shard is shards[-1]:
                stream = np.append(stream, np.int32(0))
            file.write(stream.data)
            parts.append({"file": shard.file, "length": len(stream), "sha256": sha256_of_array(stream)})

    starts = np.append(np.concatenate(documents), length)
    characters = (
        words_to_ids(forms[start : start + 65536], max_characters=max_characters)
        for start in range(0, len(forms), 65536)
    )
    about = {
        "format": FORMAT,
        "made_from": made_from,
        "vocabulary_digest": vocabulary.digest,
        "tokenizer": tokenizer,
        "max_characters": max_characters,
        "num_tokens": length - num_sentences,
        "num_sentences": num_sentences,
        "num_documents": len(starts) - 1,
        "num_forms": len(forms),
        "num_replaced_lines": num_replaced_lines,
        "files": {
            "documents.bin": _write_arrays(out / "documents.bin", [starts]),
            "forms.bin": _write_arrays(out / "forms.bin", characters),
            "form_targets.bin": _write_arrays(out / "form_targets.bin", [vocabulary.ids(forms)]),
        },
        "shards": parts,
    }
    # last: a folder without it is not a corpus
    write_json(out / "corpus.json", {**about, "sha256": sha256_of_json(about)})


def _forms(arrays: Any) -> list[str]:
    """The word forms of a shard."""
    text: str = arrays["forms"].tobytes().decode()
    return text.split("\n") if text else []


def _write_arrays(path: Path, arrays: Iterable[npt.NDArray[Any]]) -> str:
    """Write arrays one after the other and return the checksum of the file."""
    checksum = hashlib.sha256()
    with replacing(path) as temporary, open(temporary, "wb") as file:
        for array in arrays:
            file.write(array.data)
            checksum.update(array.data)
    return checksum.hexdigest()
