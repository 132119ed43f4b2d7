"""A corpus past one machine: Ray's workers, one model each, turn Parquet or text into Parquet.

Enters: a Ray Dataset; or files of text (a sentence a line) and Parquet files (a sentence a row).  Leaves: the same rows
with their vectors, in their order; a Dataset from `embed_dataset`, a folder of Parquet files from `embed_files`.

`embed_files` cuts its input into blocks, at places that depend on the input and the shape of the vectors alone.  A
block becomes one file of OUT.partial, written by the worker that embedded it, there whole or not at all: a worker that
is killed costs its block, and a driver that is started again goes on with the blocks that have no file.  _elmokit.json
says what was asked for, of which model, of which input: a run that asks for something else is refused.  When every
block is there, OUT.partial becomes OUT.  Its rows are those of the one file that `elmokit.output` writes:

    line (int64), tokens (list<string>), vectors (nested lists in the shape of the array); `id`, where the input has one

The driver loads the model and sends it to the workers.  Input and output lie where every machine of the cluster sees
them under the same path.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import shutil
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from elmokit.corpus.sources import Paths, find_files
from elmokit.files import replacing, sha256_of, sync_folder, write_json
from elmokit.inference.views import Layers
from elmokit.model import ELMo
from elmokit.text import tokenize
from elmokit.vector_files import VectorFile, Written, nest_vectors, read_lines

try:
    import pyarrow
    import pyarrow.compute
    import pyarrow.parquet
    import ray
    import ray.data
except ImportError as error:
    raise ImportError('elmokit.integrations.ray needs Ray Data: pip install "elmokit[ray]"') from error

MANIFEST = "_elmokit.json"  # Parquet's readers pass over names that begin so
BLOCK_BYTES = 1 << 27  # vectors of a block in float32, at BYTES_PER_TOKEN
BYTES_PER_TOKEN = 5  # of text, about; a block's tokens are not counted before a worker has it
LOCAL_STORE_BYTES = 1 << 30  # the model passes through Ray's object store; of `embed_files`, nothing else of size

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Workers:
    """The pool of actors, each with a model of its own."""

    concurrency: int | None = None
    """How many; by default as many as the cluster has room for."""
    num_cpus: float = 1
    """Of each, and the threads that it computes with; where it has a GPU, Ray decides."""
    num_gpus: float = 0
    """Of each; 0 computes on CPUs, 0.5 lets two workers share a GPU."""

    def __post_init__(self) -> None:
        if self.concurrency is not None and self.concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, not {self.concurrency}")
        if self.num_gpus < 0 or self.num_cpus <= 0:
            raise ValueError(f"a worker needs a share of a machine, not {self.num_cpus} CPUs, {self.num_gpus} GPUs")

    @property
    def share(self) -> dict[str, Any]:
        """What an actor holds; Ray Data wants GPUs or CPUs, not both."""
        return {"num_gpus": self.num_gpus} if self.num_gpus else {"num_cpus": self.num_cpus}

    def room(self) -> int:
        """How many of them the cluster can hold."""
        kind, share = ("GPU", self.num_gpus) if self.num_gpus else ("CPU", self.num_cpus)
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
        room = sum(int(node.get(kind, 0) // share) for node in nodes)
        if room == 0:
            raise ValueError(f"no machine of the Ray cluster has {share:g} {kind}, which a worker asks for")
        return room


# ---- a Dataset -> a Dataset ------------------------------------------------------------------------------------------


def embed_dataset(
    ds: ray.data.Dataset,
    *,
    model: ELMo | str | os.PathLike[str] | None = None,
    layers: Layers = "average",
    dtype: Literal["float32", "float16"] = "float32",
    tokenized: bool = False,
    batch_size: int = 512,
    workers: Workers | None = None,
) -> ray.data.Dataset:
    """Add `tokens` and `vectors` to the rows of `ds`, whose sentences stand in `tokens` (lists) or `text` (strings).

    Lazy, as Ray Data is: nothing runs until the result is read or written.  Rows keep their order (the context of `ds`
    is told so).  A worker takes `batch_size` rows at a time, and makes of them batches for the network, by length.
    """
    elmo = model if isinstance(model, ELMo) else ELMo.from_pretrained(model)
    _check_model(elmo, layers, batch_size)
    workers = workers or Workers()
    if workers.concurrency is None:  # grows as far as there is room beside the tasks that make the rows
        pool = ray.data.ActorPoolStrategy(min_size=1, max_size=workers.room())
    else:
        pool = ray.data.ActorPoolStrategy(size=workers.concurrency)
    num_cpus = ray.cluster_resources().get("CPU", 0)  # type: ignore[no-untyped-call]
    if not workers.num_gpus and num_cpus - workers.num_cpus * pool.min_size < 1:
        logger.warning(
            "the workers hold all %g CPUs of the cluster: tasks that read or write may wait forever", num_cpus
        )
    ds.context.execution_options.preserve_order = True
    return ds.map_batches(
        _RowEmbedder,
        fn_constructor_args=(_Sent.of(elmo, workers, layers=layers, dtype=dtype, tokenized=tokenized),),
        batch_size=batch_size,
        batch_format="pyarrow",
        compute=pool,
        **workers.share,
    )


class _RowEmbedder:
    """One actor of `embed_dataset`."""

    def __init__(self, sent: _Sent) -> None:
        self.embed = sent.load()

    def __call__(self, rows: pyarrow.Table) -> pyarrow.Table:
        columns = self.embed(rows[_sentence_column(rows.schema, "the dataset")], 0)
        kept = {name: rows[name] for name in rows.column_names if name not in columns}
        return pyarrow.table({**kept, **columns})


# ---- files -> a folder of files --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Block:
    number: int
    first: int
    """The number of its first line, counted from 0 through all files."""
    file: str
    begin: int
    end: int
    """Bytes of a text, rows of a Parquet file."""
    size: int
    """Bytes of its sentences, about."""

    @property
    def part(self) -> str:
        return f"part-{self.number:08d}.parquet"


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
    """Write the vectors of text and Parquet files (paths, globs) to the folder `file.path`; the same call goes on.

    Text has a sentence a line, a Parquet file a sentence a row: a list of strings in `tokens`, else a string in `text`
    or in the only column of strings.  What was begun with another input, model or options is a ValueError; with
    `overwrite` it is dropped.  `progress` is called with the bytes of sentences that are done, and all.
    """
    if file.format != "parquet":
        raise ValueError(f"{file.path}: Ray's workers write Parquet, not {file.format}: end the output in .parquet")
    _check_model(model, file.layers, batch_size)
    _check_place(file.path, overwrite)
    files = [path.resolve() for path in find_files(source)]
    num_planes = model.config.num_layers + 1 if file.layers == "all" else 1
    block_bytes = BYTES_PER_TOKEN * max(1, BLOCK_BYTES // (num_planes * 2 * model.config.projection_dim * 4))
    blocks = _cut(files, block_bytes)
    if not blocks:
        raise ValueError(f"{source}: there are no sentences to embed")
    folder = _open_partial(file.path, _job(files, file, model, block_bytes), overwrite)

    todo, before = [], []
    for block in blocks:
        path = folder / block.part
        if path.exists():
            before.append(_count(path))
        else:
            todo.append(block)
    num_resumed = num_sentences = sum(sentences for sentences, _ in before)
    num_tokens = sum(tokens for _, tokens in before)
    total = sum(block.size for block in blocks)
    done = total - sum(block.size for block in todo)
    try:
        for block, sentences, tokens in _write_blocks(todo, folder, file, model, batch_size, workers or Workers()):
            num_sentences, num_tokens, done = num_sentences + sentences, num_tokens + tokens, done + block.size
            if progress:
                progress(done, total)
    except BaseException:
        if not any(folder.glob("part-*")):  # nothing was done: leave nothing behind
            shutil.rmtree(folder, ignore_errors=True)  # a worker may be at it still
        raise

    for left_by_a_killed_worker in folder.glob(".*.tmp"):
        left_by_a_killed_worker.unlink()
    if file.path.is_dir():
        shutil.rmtree(file.path)
    else:
        file.path.unlink(missing_ok=True)
    os.replace(folder, file.path)
    sync_folder(file.path.absolute().parent)
    return Written(num_sentences, num_tokens, num_resumed)


def _write_blocks(
    blocks: list[_Block], folder: Path, file: VectorFile, model: ELMo, batch_size: int | None, workers: Workers
) -> Iterator[tuple[_Block, int, int]]:
    """(block, its sentences, its tokens) when its file is there, in the order in which they end."""
    if not blocks:
        return
    sent = _Sent.of(
        model, workers, layers=file.layers, dtype=file.dtype, tokenized=file.tokenized, batch_size=batch_size
    )
    # rows that say where a block lies, one a task: Ray Data hands them out, and again where a worker has died
    ds = ray.data.from_items([asdict(block) for block in blocks], override_num_blocks=len(blocks))
    ds.context.enable_progress_bars = False
    writer: Any = _BlockWriter
    done = ds.map(
        writer,
        fn_constructor_args=(sent, folder.absolute(), file.gzip),
        compute=ray.data.ActorPoolStrategy(size=min(workers.concurrency or workers.room(), len(blocks))),
        **workers.share,
    )
    for row in done.iter_rows():
        if row["error"]:
            raise ValueError(row["error"])
        yield _Block(**row["block"]), row["num_sentences"], row["num_tokens"]


class _BlockWriter:
    """One actor of `embed_files`: the place of a block -> its file."""

    def __init__(self, sent: _Sent, folder: Path, gzip: bool) -> None:
        self.embed = sent.load()
        self.folder, self.gzip = folder, gzip

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        block = _Block(**row)
        path = self.folder / block.part
        try:
            if not path.exists():  # it does where a worker died after its last write, before Ray heard of it
                self.write(block, path)
            num_sentences, num_tokens = _count(path)
        except (ValueError, OSError) as error:  # as a row: Ray wraps what is raised in pages of its own
            return {"block": row, "num_sentences": 0, "num_tokens": 0, "error": str(error)}
        return {"block": row, "num_sentences": num_sentences, "num_tokens": num_tokens, "error": ""}

    def write(self, block: _Block, path: Path) -> None:
        rows, column = _read(block)
        columns = {"line": pyarrow.array(np.arange(block.first, block.first + len(rows)))}
        if "id" in rows.column_names:
            columns["id"] = rows["id"]
        columns |= self.embed(rows[column], block.first)
        compression = "gzip" if self.gzip else "none"
        with replacing(path) as target:
            # a dictionary of floats, which hardly ever repeat, would be built in vain
            pyarrow.parquet.write_table(pyarrow.table(columns), target, compression=compression, use_dictionary=False)


def _count(path: Path) -> tuple[int, int]:
    """(sentences, tokens) of a block's file."""
    try:
        with pyarrow.parquet.ParquetFile(path) as part:
            tokens = part.read(columns=["tokens"])["tokens"]
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"{path} is damaged ({error}): remove it, and its lines are embedded again") from None
    return len(tokens), int(pyarrow.compute.sum(pyarrow.compute.list_value_length(tokens)).as_py())


# ---- what was asked for ----------------------------------------------------------------------------------------------


def _check_model(model: ELMo, layers: Layers, batch_size: int | None) -> None:
    """A wrong setting is told here, and not by a worker."""
    model.embed([], layers=layers, batch_size=batch_size)
    if model.state != "stateless":
        raise ValueError(f'a worker does not know what the others read: load the model without state="{model.state}"')


def _check_place(path: Path, overwrite: bool) -> None:
    if not path.absolute().parent.is_dir():
        raise ValueError(f"{path}: there is no folder {path.parent}")
    if path.exists() and not overwrite:
        raise ValueError(f"{path} is there already: name another folder, or replace it with --overwrite")
    if path.is_dir() and any(path.iterdir()) and not (path / MANIFEST).is_file():
        raise ValueError(f"{path} is a folder that holds other things than vectors: name another one")


def _job(files: list[Path], file: VectorFile, model: ELMo, block_bytes: int) -> dict[str, Any]:
    """What makes the files of the blocks what they are."""
    inputs = []
    for path in files:
        inputs.append({"file": path.name, "bytes": path.stat().st_size, "sha256": sha256_of(path)})
    return {
        "model": model.digest(),
        "layers": file.layers,
        "dtype": file.dtype,
        "tokenized": file.tokenized,
        "gzip": file.gzip,
        "block_bytes": block_bytes,
        "input": inputs,
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
        raise ValueError(f"{folder} is not the work of Ray's workers: go on without --ray, or remove it to start over")
    differing = [key for key in job if begun is not None and begun.get(key) != job[key]]
    if differing and not overwrite:
        assert begun is not None
        key = differing[0]
        values = "" if key == "input" else f" {begun.get(key)}, and now it is {job[key]}"
        raise ValueError(
            f"{folder} was begun with {'other ' if key == 'input' else ''}{key}{values}: run as it was begun to go on, "
            "or start over with --overwrite"
        )
    if differing:
        shutil.rmtree(folder)
    folder.mkdir(exist_ok=True)
    for left_by_a_killed_run in folder.glob(".*.tmp"):
        left_by_a_killed_run.unlink()
    if begun is None or differing:
        write_json(manifest, job)
    return folder


# ---- the input, in blocks --------------------------------------------------------------------------------------------


def _cut(files: Sequence[Path], block_bytes: int) -> list[_Block]:
    """The blocks of all files, in order; none holds lines of two files."""
    blocks: list[_Block] = []
    first = 0
    for path in files:
        if path.suffix.lower() in (".gz", ".xz", ".zst", ".bz2"):
            raise ValueError(f"{path} is compressed, and every worker reads its own part of a file: unpack it")
        cut = _cut_rows if path.suffix.lower() == ".parquet" else _cut_text
        for begin, end, num_lines, size in cut(path, block_bytes):
            blocks.append(_Block(len(blocks), first, str(path), begin, end, size))
            first += num_lines
    return blocks


def _cut_text(path: Path, block_bytes: int) -> Iterator[tuple[int, int, int, int]]:
    """(first byte, byte after the last, number of lines, bytes) of each block of whole lines."""
    with open(path, "rb") as stream:
        begin = 0
        while lines := stream.readlines(block_bytes):
            content = b"".join(lines)
            try:
                content.decode()
            except UnicodeDecodeError:
                stream.seek(0)
                deque(read_lines(stream, str(path)), maxlen=0)  # which names the line
            yield begin, begin + len(content), len(lines), len(content)
            begin += len(content)


def _cut_rows(path: Path, block_bytes: int) -> Iterator[tuple[int, int, int, int]]:
    """(first row, row after the last, number of rows, bytes of their sentences) of each block."""
    try:
        table = pyarrow.parquet.ParquetFile(path)
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"{path} is not a parquet file: {error}") from None
    with table:
        column = _sentence_column(table.schema_arrow, str(path))
        begin = end = held = 0
        for batch in table.iter_batches(columns=[column]):
            sentences = batch.column(0)
            if _is_string(sentences.type):
                sizes = pyarrow.compute.binary_length(sentences)
            else:
                sizes = pyarrow.compute.multiply(pyarrow.compute.list_value_length(sentences), BYTES_PER_TOKEN)
            for size in sizes.to_pylist():
                end += 1
                held += size or 0
                if held >= block_bytes:
                    yield begin, end, end - begin, held
                    begin, held = end, 0
        if end > begin:
            yield begin, end, end - begin, held


def _read(block: _Block) -> tuple[pyarrow.Table, str]:
    """(the rows of a block, the name of the column with their sentences)."""
    if not block.file.lower().endswith(".parquet"):
        with open(block.file, "rb") as stream:
            stream.seek(block.begin)
            content = stream.read(block.end - block.begin)
        # some editors begin a file with a mark; a line ends at a line feed and nowhere else
        text = content.decode("utf-8-sig" if block.begin == 0 else "utf-8")
        return pyarrow.table({"text": [line.strip() for line in text.removesuffix("\n").split("\n")]}), "text"
    with pyarrow.parquet.ParquetFile(block.file) as table:
        column = _sentence_column(table.schema_arrow, block.file)
        sizes = [table.metadata.row_group(group).num_rows for group in range(table.num_row_groups)]
    columns = ("id", column) if "id" in table.schema_arrow.names else (column,)
    ends = np.cumsum(sizes)
    groups = [g for g, end in enumerate(ends) if end > block.begin and end - sizes[g] < block.end]
    rows = pyarrow.concat_tables([_read_row_group(block.file, group, columns) for group in groups])
    return rows.slice(block.begin - int(ends[groups[0]] - sizes[groups[0]]), block.end - block.begin), column


@functools.lru_cache(maxsize=2)  # a row group may be many blocks
def _read_row_group(file: str, group: int, columns: tuple[str, ...]) -> pyarrow.Table:
    with pyarrow.parquet.ParquetFile(file) as table:
        return table.read_row_group(group, columns=list(columns))


def _sentence_column(schema: pyarrow.Schema, name: str) -> str:
    columns = {field.name: field.type for field in schema}
    if "tokens" in columns and _is_list(columns["tokens"]) and _is_string(columns["tokens"].value_type):
        return "tokens"
    strings = [column for column, kind in columns.items() if _is_string(kind) and column != "id"]
    if "text" in strings or len(strings) == 1:
        return "text" if "text" in strings else strings[0]
    listed = ", ".join(f"{column} ({kind})" for column, kind in columns.items())
    raise ValueError(
        f"{name} needs lists of strings in 'tokens', strings in 'text', or one string column alone; it has {listed}"
    )


def _is_string(kind: Any) -> bool:
    return bool(pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind))


def _is_list(kind: Any) -> bool:
    return bool(pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind))


# ---- in the worker ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Sent:
    """What an actor is sent: a model, in Ray's object store and so once for each machine, and what to do with it."""

    model: Any
    device: str
    num_threads: int
    layers: Layers
    dtype: str
    tokenized: bool
    batch_size: int | None

    @classmethod
    def of(
        cls,
        model: ELMo,
        workers: Workers,
        *,
        layers: Layers,
        dtype: str,
        tokenized: bool,
        batch_size: int | None = None,
    ) -> _Sent:
        device = "cuda" if workers.num_gpus else "cpu"
        return cls(ray.put(model), device, max(1, int(workers.num_cpus)), layers, dtype, tokenized, batch_size)

    def load(self) -> Callable[[pyarrow.ChunkedArray, int], dict[str, pyarrow.Array]]:
        """The actor's function: sentences, and the number of the first -> the columns `tokens` and `vectors`."""
        if self.device == "cpu":
            torch.set_num_threads(self.num_threads)
        model: ELMo = ray.get(self.model).to(self.device)
        split = str.split if self.tokenized else tokenize

        def embed(sentences: pyarrow.ChunkedArray, first: int) -> dict[str, pyarrow.Array]:
            values = sentences.to_pylist()  # what is null is as a blank line
            tokens = [value or [] if _is_list(sentences.type) else split((value or "").strip()) for value in values]
            vectors = model.embed(tokens, layers=self.layers, batch_size=self.batch_size)
            column = _vector_column(vectors, self.dtype, first) if vectors else pyarrow.nulls(0)
            return {"tokens": pyarrow.array(tokens, pyarrow.list_(pyarrow.string())), "vectors": column}

        return embed


def _vector_column(vectors: list[npt.NDArray[Any]], dtype: str, first: int) -> pyarrow.Array:
    """Arrays (T, 2P) or (L+1, T, 2P) as nested lists; `first` is the number of the first line."""
    flat = np.empty((sum(array[..., 0].size for array in vectors), vectors[0].shape[-1]), dtype)
    end = 0
    for number, array in enumerate(vectors, first):
        begin, end = end, end + array[..., 0].size
        try:
            with np.errstate(over="raise"):
                flat[begin:end] = array.reshape(-1, array.shape[-1])
        except FloatingPointError:
            raise ValueError(f"line {number + 1} has values beyond {dtype}: write float32") from None
    return nest_vectors(pyarrow, flat, [array.shape[-2] for array in vectors], *vectors[0].shape[:-2])


# ---- the cluster -----------------------------------------------------------------------------------------------------


@contextmanager
def cluster(address: str = "local") -> Iterator[None]:
    """Join the Ray cluster at `address`; "local" starts one on this machine, which ends with the block.

    A process that has joined one already stays in it.
    """
    if ray.is_initialized():
        yield
        return
    if address.startswith("ray://"):
        raise ValueError(f"{address}: a Ray client sees no files of the cluster: run on it, with host:port or auto")
    if ":" in address:  # Ray tries for minutes what nobody answers
        host, port = address.rsplit(":", 1)
        try:
            socket.create_connection((host, int(port)), timeout=10).close()
        except (OSError, ValueError) as error:
            raise ValueError(
                f"{address}: no Ray cluster answers there ({error}): `ray status` says where it is"
            ) from None
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a cluster that we start tells nobody
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # what goes wrong is an exception too
    talkative = logging.getLogger("ray.data")
    level = talkative.level
    own: dict[str, Any] = {"include_dashboard": False, "object_store_memory": LOCAL_STORE_BYTES}
    try:
        talkative.setLevel(logging.ERROR)
        with _silent_stderr():
            ray.init(
                address=address,
                log_to_driver=False,
                logging_level=logging.ERROR,
                **(own if address == "local" else {}),
            )
        yield
    finally:
        talkative.setLevel(level)
        ray.shutdown()


@contextmanager
def _silent_stderr() -> Iterator[None]:
    """Ray's C++ side says there that it was told to be silent."""
    sys.stderr.flush()
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nothing, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


def has_gpus() -> bool:
    """Whether the cluster has any."""
    return bool(ray.cluster_resources().get("GPU"))  # type: ignore[no-untyped-call]
