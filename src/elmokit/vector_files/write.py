"""Lines of text become a file of vectors.

Input: an `ELMo`, and lines of text as they come. Output: the file. While a run lasts, the folder OUT.partial has what
is done (see parts.py); the file is made from it at the end and appears in one step. Until then the parts need as much
room as the file itself.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from elmokit.arguments import check_callable, check_flag, check_instance, check_optional_integer
from elmokit.files import claimed, replacing, sync_folder
from elmokit.inference.views import check_layers
from elmokit.model import ELMo
from elmokit.text import Tokenizer, check_sentences
from elmokit.vector_files.file import VectorFile, Written
from elmokit.vector_files.formats import WRITERS
from elmokit.vector_files.parts import Parts

PART_LINES = 4096
PART_BYTES = 1 << 28  # vectors of a part in float32; a longer line is a part of its own


def read_lines(file: Iterable[bytes], name: str) -> Iterator[str]:
    """Read the lines of a UTF-8 text, without whitespace around them; as `decode_lines`."""
    return (line.strip() for line in decode_lines(file, name))


def decode_lines(file: Iterable[bytes], name: str) -> Iterator[str]:
    """Read the lines of a UTF-8 text. Only a line feed ends a line.

    Args:
        file: A file opened in binary mode, or other lines of bytes.
        name: Name of the text, for messages.

    Raises:
        ValueError: If a line is not UTF-8.
    """
    for number, line in enumerate(file, 1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")  # some editors write a byte-order mark
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{name}: line {number} is not UTF-8 at byte {error.start + 1}: convert the file, as in "
                "iconv -f latin1 -t utf8"
            ) from None


def write_vectors(
    model: ELMo,
    lines: Iterable[str],
    file: VectorFile,
    *,
    batch_size: int | None = None,
    overwrite: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Written:
    """Embed every line and write the file. The same call resumes a run that was stopped.

    Args:
        model: The model.
        lines: One sentence per line; a blank line gives an empty entry.
        file: What to write.
        batch_size: Largest number of sentences per batch.
        overwrite: Replace a file that exists, and discard the parts of a run with other settings or other text.
        progress: Called after each batch, with the number of lines done.

    Returns:
        The numbers of sentences and tokens.

    Raises:
        ValueError: If the file exists, another process writes it, an unfinished run has other settings or other text,
            lines cannot be keys, or the model carries its state.
        OSError: If the file cannot be written. The parts are kept.
    """
    check_instance("model", model, ELMo, "a model, such as ELMo.from_pretrained()")
    check_instance("file", file, VectorFile, "a VectorFile")
    file = replace(file, layers=check_layers(file.layers, model.num_layers, caller="write_vectors"))
    batch_size, overwrite = check_optional_integer("batch_size", batch_size), check_flag("overwrite", overwrite)
    check_callable("progress", progress)
    lines = check_sentences(lines, "lines")
    if model.state == "carry":  # the lines of an earlier run are not read again, so their state is not known
        raise ValueError('this model carries its state from batch to batch: load it with state="stateless"')
    if file.use_sentence_keys:
        lines = _check_keys(lines)
    with claimed(file.path):
        if file.path.exists() and not overwrite:
            raise ValueError(f"{file.path} already exists: name another file, or replace it with --overwrite")
        parts = Parts(file, model, overwrite)
        done = _embed_parts(model, lines, parts, batch_size, progress or (lambda _: None))
        _write_file(parts)
    return done


def _write_file(parts: Parts) -> None:
    """Make the file from the parts, and remove them."""
    file = parts.file
    with _naming(file.path):
        complete = parts.folder / "complete"
        with replacing(complete) as target:
            WRITERS[file.format](target, parts, file)
        os.replace(complete, file.path)
        sync_folder(file.path.parent)
        shutil.rmtree(parts.folder)


def _embed_parts(
    model: ELMo, lines: Iterable[str], parts: Parts, batch_size: int | None, progress: Callable[[int], None]
) -> Written:
    """Embed the lines that are not done; an error before the first part leaves nothing behind."""
    file, num_done, num_resumed, num_tokens = parts.file, 0, 0, 0
    num_planes = model.num_layers if file.layers == "all" else 1
    try:
        for chunk in _chunks(lines, parts.tokenizer, max_tokens=PART_BYTES // (num_planes * model.dim * 4)):
            if parts.take_over(chunk.texts, num_done):
                num_resumed += len(chunk.texts)
            else:
                vectors = model.embed(
                    chunk.tokens,
                    layers=file.layers,
                    batch_size=batch_size,
                    show_progress=lambda done, _, before=num_done: progress(before + done),
                )
                with _naming(parts.folder):
                    parts.add(chunk.texts, vectors, num_done)
            num_done += len(chunk.texts)
            num_tokens += sum(map(len, chunk.tokens))
            progress(num_done)
        parts.end(num_done)
    except BaseException:
        if not any(parts.folder.glob("part-*")):
            shutil.rmtree(parts.folder)
        raise
    return Written(num_done, num_tokens, num_resumed)


@dataclass(frozen=True)
class _Chunk:
    """The lines of one part, and their tokens."""

    texts: list[str]
    tokens: list[list[str]]


def _chunks(lines: Iterable[str], tokenizer: Tokenizer, *, max_tokens: int) -> Iterator[_Chunk]:
    """Cut lines into parts, at places that depend only on the text and the shape of the vectors."""
    texts: list[str] = []
    tokens: list[list[str]] = []
    num_tokens = 0
    for text in lines:
        words = tokenizer(text)
        if texts and (len(texts) == PART_LINES or num_tokens + len(words) > max_tokens):
            yield _Chunk(texts, tokens)
            texts, tokens, num_tokens = [], [], 0
        texts.append(text)
        tokens.append(words)
        num_tokens += len(words)
    if texts:
        yield _Chunk(texts, tokens)


def _check_keys(lines: Iterable[str]) -> Iterator[str]:
    """Pass on lines that can all be names in one HDF5 file, where `/` makes a group and a name is used once."""
    datasets: set[bytes] = set()
    groups: set[bytes] = set()
    for number, line in enumerate(lines, 1):
        steps = [step for step in line.split("/") if step not in ("", ".")]
        if not steps or "\0" in line:
            raise ValueError(f"line {number}: {line[:40]!r} cannot be a key: leave sentence keys out")
        above = [_digest("/".join(steps[:depth])) for depth in range(1, len(steps))]
        own = _digest("/".join(steps))
        if own in datasets:
            raise ValueError(f"line {number}: {line[:40]!r} is there twice, so it cannot be a key: leave them out")
        if own in groups or not datasets.isdisjoint(above):
            raise ValueError(f"line {number}: {line[:40]!r} and another line differ by what follows a /: no keys then")
        datasets.add(own)
        groups.update(above)
        yield line


def _digest(key: str) -> bytes:
    return hashlib.blake2b(key.encode(), digest_size=16).digest()


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Let errors of the disk name the file that was asked for, not a temporary one."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise OSError(error.errno or 0, f"cannot be written: {reason}; what is done is kept", str(path)) from error
