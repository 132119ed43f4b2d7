"""A Ray Dataset becomes the same Dataset with tokens and vectors."""

from __future__ import annotations

import logging
import os
from typing import Literal

import ray
import ray.data

from elmokit.inference.views import Layers
from elmokit.integrations.ray.workers import RowEmbedder, Workers, WorkerTask, check_model
from elmokit.model import ELMo
from elmokit.text import Tokenizer

logger = logging.getLogger(__name__)


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
    """Add the columns `tokens` and `vectors` to a Dataset.

    Lazy, as Ray Data is: nothing runs until the result is read or written. Rows keep their order (the context of `ds`
    is told so).

    Args:
        ds: Rows with sentences in `tokens` (lists of strings), `text` (strings), or the only column of strings.
        model: An `ELMo`, or what `ELMo.from_pretrained` takes.
        layers: As in `ELMo.embed`.
        dtype: Type of the numbers.
        tokenized: Tokens of `text` are separated by spaces. By default the model's tokenizer cuts them.
        batch_size: Number of rows that a worker takes at a time.
        workers: The pool of workers; by default one per CPU.

    Returns:
        A Dataset with the vectors as nested lists (T, 2P), or (L+1, T, 2P) with `layers="all"`.

    Raises:
        ValueError: If the model has no such layers or carries its state, or no machine has room for a worker.
    """
    elmo = model if isinstance(model, ELMo) else ELMo.from_pretrained(model)
    check_model(elmo, layers, batch_size)
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
    task = WorkerTask.send(
        elmo, workers, layers=layers, dtype=dtype, tokenizer=Tokenizer("spaces") if tokenized else elmo.tokenizer
    )
    return ds.map_batches(
        RowEmbedder,
        fn_constructor_args=(task,),
        batch_size=batch_size,
        batch_format="pyarrow",
        compute=pool,
        **workers.resources,
    )
