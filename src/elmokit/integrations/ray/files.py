"""Files of text or Parquet become a folder of Parquet files, written by Ray's workers.

Input: files of text (one sentence per line) and Parquet files (one sentence per row). Output: a folder with one Parquet
file per block, whose rows are those of the one file that `elmokit.vector_files` writes:

    line (int64), tokens (list<string>), vectors (nested lists in the shape of the array); `id`, if the input has one

The worker that embedded a block writes its file in OUT.partial, complete or not at all: a worker that is killed costs
its block, and a driver that is started again resumes with the blocks that have no file. _elmokit.json says what was
asked for, of which model, of which input: a run that asks for something else is refused. When every block is there,
OUT.partial becomes OUT.

The driver loads the model and sends it to the workers. Input and output are where every machine of the cluster sees
them under the same path.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import ray.data

from elmokit.corpus.sources import Paths, find_files
from elmokit.files import sha256_of, sync_folder, write_json
from elmokit.inference.views import needs_weights
from elmokit.integrations.ray.blocks import BYTES_PER_TOKEN, Block, cut_files
from elmokit.integrations.ray.workers import BlockWriter, PartSize, Workers, WorkerTask, check_model, count_part
from elmokit.model import ELMo
from elmokit.vector_files import VectorFile, Written

MANIFEST = "_elmokit.json"  # readers of Parquet folders skip names that begin with _
BLOCK_BYTES = 1 << 27  # vectors of a block in float32, at BYTES_PER_TOKEN


def embed_files(
    source: Paths,
    file: VectorFile,
    *,
    model: ELMo,
    batch_size: int | None = None,
    workers: Workers | None = None,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Written:
    """Write the vectors of files of text and Parquet to a folder. The same call resumes a run that was stopped.

    Args:
        source: Paths or globs. Text has one sentence per line. A Parquet file has one sentence per row: a list of
            strings in `tokens`, else a string in `text` or in the only column of strings.
        file: What to write; `file.path` is the folder.
        model: The model. It must be stateless.
        batch_size: Largest number of sentences per batch.
        workers: The pool of workers; by default one per CPU.
        overwrite: Replace the folder, and discard blocks of a run with other input, model or options.
        progress: Called with the bytes of sentences that are done, and of all.

    Returns:
        The numbers of sentences and tokens.

    Raises:
        ValueError: If an unfinished run has other settings, the folder exists, or the input cannot be read.
    """
    if file.format != "parquet":
        raise ValueError(f"{file.path}: Ray's workers write Parquet, not {file.format}: end the output in .parquet")
    check_model(model, file.layers, batch_size)
    _check_target(file.path, overwrite)
    files = [path.resolve() for path in find_files(source)]
    num_planes = model.num_layers if file.layers == "all" else 1
    block_bytes = BYTES_PER_TOKEN * max(1, BLOCK_BYTES // (num_planes * model.dim * 4))
    blocks = cut_files(files, block_bytes)
    if not blocks:
        raise ValueError(f"{source}: there are no sentences to embed")
    folder = _open_partial(file.path, _job(files, file, model, block_bytes), overwrite)

    todo, before = [], []
    for block in blocks:
        if (folder / block.part).exists():
            before.append(count_part(folder / block.part))
        else:
            todo.append(block)
    num_resumed = num_sentences = sum(size.num_sentences for size in before)
    num_tokens = sum(size.num_tokens for size in before)
    total = sum(block.size for block in blocks)
    done = total - sum(block.size for block in todo)
    try:
        for written in write_blocks(todo, folder, file, model, batch_size, workers or Workers()):
            num_sentences += written.size.num_sentences
            num_tokens += written.size.num_tokens
            done += written.block.size
            if progress:
                progress(done, total)
    except BaseException:
        if not any(folder.glob("part-*")):  # nothing was done: leave nothing behind
            shutil.rmtree(folder, ignore_errors=True)  # a worker may still write to it
        raise
    _finish(folder, file.path)
    return Written(num_sentences, num_tokens, num_resumed)


@dataclass(frozen=True)
class WrittenBlock:
    """A block whose file is complete."""

    block: Block
    size: PartSize


def write_blocks(
    blocks: list[Block], folder: Path, file: VectorFile, model: ELMo, batch_size: int | None, workers: Workers
) -> Iterator[WrittenBlock]:
    """Let the workers write blocks; each is returned when its file is complete, in any order."""
    if not blocks:
        return
    task = WorkerTask.send(
        model,
        workers,
        layers=file.layers,
        dtype=file.dtype,
        tokenizer=file.tokenizer(model),
        batch_size=batch_size,
    )
    # one row per block and task: Ray Data hands them out, and again if a worker has died
    ds = ray.data.from_items([asdict(block) for block in blocks], override_num_blocks=len(blocks))
    ds.context.enable_progress_bars = False
    writer: Any = BlockWriter
    done = ds.map(
        writer,
        fn_constructor_args=(task, folder.absolute(), file.gzip),
        compute=ray.data.ActorPoolStrategy(size=min(workers.concurrency or workers.room(), len(blocks))),
        **workers.resources,
    )
    for row in done.iter_rows():
        if row["error"]:
            raise ValueError(row["error"])
        yield WrittenBlock(Block(**row["block"]), PartSize(row["num_sentences"], row["num_tokens"]))


def _check_target(path: Path, overwrite: bool) -> None:
    if not path.absolute().parent.is_dir():
        raise ValueError(f"{path}: there is no folder {path.parent}")
    if path.exists() and not overwrite:
        raise ValueError(f"{path} already exists: name another folder, or replace it with --overwrite")
    if path.is_dir() and any(path.iterdir()) and not (path / MANIFEST).is_file():
        raise ValueError(f"{path} is a folder with other content than vectors: name another one")


def _job(files: list[Path], file: VectorFile, model: ELMo, block_bytes: int) -> dict[str, Any]:
    """All that the files of the blocks depend on."""
    weights = {"word_weights": model.word_weights.digest()} if needs_weights(file.layers) else {}
    return {
        "model": model.digest(),
        **weights,
        "layers": file.layers,
        "dtype": file.dtype,
        "tokenized": file.tokenized,
        "gzip": file.gzip,
        "block_bytes": block_bytes,
        "input": [{"file": path.name, "bytes": path.stat().st_size, "sha256": sha256_of(path)} for path in files],
    }


def _open_partial(target: Path, job: dict[str, Any], overwrite: bool) -> Path:
    """The folder OUT.partial, with the blocks that an earlier run of the same job has done."""
    folder = target.with_name(f"{target.name}.partial")
    manifest = folder / MANIFEST
    begun = None
    if manifest.exists():
        try:
            begun = json.loads(manifest.read_bytes())
        except ValueError:
            begun = None
        if not isinstance(begun, dict):
            raise ValueError(f"{manifest} is damaged: remove {folder} to start over")
    elif folder.exists() and any(folder.glob("[!.]*")):
        raise ValueError(f"{folder} is not the work of Ray's workers: resume without --ray, or remove it to start over")
    differing = [key for key in job if begun is not None and begun.get(key) != job[key]]
    if differing and not overwrite:
        assert begun is not None
        key = differing[0]
        values = "" if key == "input" else f" {begun.get(key)}, and now it is {job[key]}"
        raise ValueError(
            f"{folder} was begun with {'other ' if key == 'input' else ''}{key}{values}: run it as it was begun to "
            "resume, or start over with --overwrite"
        )
    if differing:
        shutil.rmtree(folder)
    folder.mkdir(exist_ok=True)
    _remove_temporary_files(folder)
    if begun is None or differing:
        write_json(manifest, job)
    return folder


def _finish(folder: Path, target: Path) -> None:
    """OUT.partial becomes OUT."""
    _remove_temporary_files(folder)
    if target.is_dir():
        shutil.rmtree(target)
    else:
        target.unlink(missing_ok=True)
    os.replace(folder, target)
    sync_folder(target.absolute().parent)


def _remove_temporary_files(folder: Path) -> None:
    """Remove what killed runs and workers left."""
    for path in folder.glob(".*.tmp"):
        path.unlink()
