"""What runs on the workers: a model each, which turns sentences into columns of tokens and vectors.

Input: rows of a Dataset, or the place of a block of a file. Output: the rows with their vectors, or the block's file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.compute
import pyarrow.parquet
import ray
import ray.data
import torch

from elmokit.files import replacing
from elmokit.inference.vectors import Floats
from elmokit.inference.views import Layers
from elmokit.integrations.ray.blocks import Block, is_list, read_block, sentence_column
from elmokit.model import ELMo
from elmokit.text import Tokenizer
from elmokit.vector_files import nest_vectors

EmbedColumn = Callable[[pyarrow.ChunkedArray, int], dict[str, pyarrow.Array]]
"""Sentences, and the number of the first one -> the columns `tokens` and `vectors`."""


@dataclass(frozen=True)
class Workers:
    """The pool of actors, each with a model of its own.

    Args:
        concurrency: Number of workers; by default as many as the cluster has room for.
        num_cpus: CPUs of each worker, and the threads that it computes with. With a GPU, Ray decides.
        num_gpus: GPUs of each worker. 0 computes on CPUs, 0.5 lets two workers share a GPU.

    Raises:
        ValueError: If a number is not positive.
    """

    concurrency: int | None = None
    num_cpus: float = 1
    num_gpus: float = 0

    def __post_init__(self) -> None:
        if self.concurrency is not None and self.concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, not {self.concurrency}")
        if self.num_gpus < 0 or self.num_cpus <= 0:
            raise ValueError(f"a worker needs a share of a machine, not {self.num_cpus} CPUs, {self.num_gpus} GPUs")

    @property
    def resources(self) -> dict[str, Any]:
        """What an actor holds, as options of Ray Data, which wants GPUs or CPUs, not both."""
        return {"num_gpus": self.num_gpus} if self.num_gpus else {"num_cpus": self.num_cpus}

    def room(self) -> int:
        """The number of workers that the cluster can hold.

        Raises:
            ValueError: If no machine has room for one.
        """
        kind, share = ("GPU", self.num_gpus) if self.num_gpus else ("CPU", self.num_cpus)
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
        room = sum(int(node.get(kind, 0) // share) for node in nodes)
        if room == 0:
            raise ValueError(f"no machine of the Ray cluster has {share:g} {kind}, which a worker asks for")
        return room


def check_model(model: ELMo, layers: Layers, batch_size: int | None) -> None:
    """Raise a ValueError for a wrong setting here, not in a worker."""
    model.embed([], layers=layers, batch_size=batch_size)
    if model.state != "stateless":
        raise ValueError(f'a worker does not know what the others read: load the model without state="{model.state}"')


@dataclass(frozen=True)
class WorkerTask:
    """What an actor receives: a model, which Ray copies once per machine, and what to do with it."""

    model: ray.ObjectRef[ELMo]
    device: str
    num_threads: int
    layers: Layers
    dtype: str
    tokenizer: Tokenizer
    batch_size: int | None = None

    @classmethod
    def send(
        cls,
        model: ELMo,
        workers: Workers,
        *,
        layers: Layers,
        dtype: str,
        tokenizer: Tokenizer,
        batch_size: int | None = None,
    ) -> WorkerTask:
        """Put the model into Ray's object store."""
        device = "cuda" if workers.num_gpus else "cpu"
        return cls(ray.put(model), device, max(1, int(workers.num_cpus)), layers, dtype, tokenizer, batch_size)

    def load(self) -> EmbedColumn:
        """In the actor: take the model from the store, and make the function that embeds a column."""
        if self.device == "cpu":
            torch.set_num_threads(self.num_threads)
        model: ELMo = ray.get(self.model).to(self.device)

        def embed(sentences: pyarrow.ChunkedArray, first: int) -> dict[str, pyarrow.Array]:
            values = sentences.to_pylist()  # a null is a blank line
            if is_list(sentences.type):
                tokens = [value or [] for value in values]
            else:
                tokens = [self.tokenizer((value or "").strip()) for value in values]
            vectors = model.embed(tokens, layers=self.layers, batch_size=self.batch_size)
            column = _vector_column(vectors, self.dtype, first) if vectors else pyarrow.nulls(0)
            return {"tokens": pyarrow.array(tokens, pyarrow.list_(pyarrow.string())), "vectors": column}

        return embed


class RowEmbedder:
    """One actor of `embed_dataset`."""

    def __init__(self, task: WorkerTask) -> None:
        self.embed = task.load()

    def __call__(self, rows: pyarrow.Table) -> pyarrow.Table:
        """Add the vectors of the rows."""
        columns = self.embed(rows[sentence_column(rows.schema, "the dataset")], 0)
        kept = {name: rows[name] for name in rows.column_names if name not in columns}
        return pyarrow.table({**kept, **columns})


class BlockWriter:
    """One actor of `embed_files`: the place of a block -> its file."""

    def __init__(self, task: WorkerTask, folder: Path, gzip: bool) -> None:
        self.embed = task.load()
        self.folder, self.gzip = folder, gzip

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Write a block. An error is returned as text, since Ray wraps what is raised in pages of its own."""
        block = Block(**row)
        path = self.folder / block.part
        try:
            if not path.exists():  # it exists if a worker died after its last write, before Ray heard of it
                self.write(block, path)
            size = count_part(path)
        except (ValueError, OSError) as error:
            return {"block": row, "num_sentences": 0, "num_tokens": 0, "error": str(error)}
        return {"block": row, "num_sentences": size.num_sentences, "num_tokens": size.num_tokens, "error": ""}

    def write(self, block: Block, path: Path) -> None:
        """Embed a block and write its file."""
        rows, column = read_block(block)
        columns = {"line": pyarrow.array(np.arange(block.first, block.first + len(rows)))}
        if "id" in rows.column_names:
            columns["id"] = rows["id"]
        columns |= self.embed(rows[column], block.first)
        compression = "gzip" if self.gzip else "none"
        with replacing(path) as target:
            # floats hardly ever repeat: a dictionary of them would be built in vain
            pyarrow.parquet.write_table(pyarrow.table(columns), target, compression=compression, use_dictionary=False)


@dataclass(frozen=True)
class PartSize:
    """Sentences and tokens of a block's file."""

    num_sentences: int
    num_tokens: int


def count_part(path: Path) -> PartSize:
    """Count the sentences and tokens of a block's file."""
    try:
        with pyarrow.parquet.ParquetFile(path) as part:
            tokens = part.read(columns=["tokens"])["tokens"]
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"{path} is damaged ({error}): remove it, and its lines are embedded again") from None
    return PartSize(len(tokens), int(pyarrow.compute.sum(pyarrow.compute.list_value_length(tokens)).as_py()))


def _vector_column(vectors: Sequence[Floats], dtype: str, first: int) -> pyarrow.Array:
    """Arrays (T, 2P) or (L+1, T, 2P) as nested lists; `first` is the number of the first line."""
    flat: Floats = np.empty((sum(array[..., 0].size for array in vectors), vectors[0].shape[-1]), dtype)
    end = 0
    for number, array in enumerate(vectors, first):
        begin, end = end, end + array[..., 0].size
        try:
            with np.errstate(over="raise"):
                flat[begin:end] = array.reshape(-1, array.shape[-1])
        except FloatingPointError:
            raise ValueError(f"line {number + 1} has values beyond {dtype}: write float32") from None
    return nest_vectors(flat, [array.shape[-2] for array in vectors], *vectors[0].shape[:-2])
