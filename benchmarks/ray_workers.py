"""How much faster two workers of a Ray cluster are than one: two nodes of one CPU each, on this machine.

    python benchmarks/ray_workers.py TEXT... [--tokens 200000] [--rounds 2] [--model MODEL] [--store-mb 300]

Embeds the first lines of the text with one worker and with two, in turns, and prints tokens/s of each and their ratio.
Time is measured from the first blocks to the last, because a worker needs seconds to start, once, for any corpus; the
seconds of the complete run are printed too.  Two workers need two free cores.  On a busy machine the ratio depends on
the load, which is printed; tokens per second of the workers' CPU time show the speed on free cores.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import tempfile
import time
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import psutil
from ray.cluster_utils import Cluster

from elmokit import ELMo
from elmokit.corpus.sources import find_files, read_blocks, sentences
from elmokit.integrations import ray as corpus
from elmokit.text import tokenize
from elmokit.vector_files import VectorFile

NUM_BLOCKS = 32  # with few blocks one worker is idle while the other finishes the last one


def take(paths: list[str], num_tokens: int, target: Path) -> int:
    """Write about `num_tokens` tokens of the text, one sentence per line; returns their number."""
    lines = chain.from_iterable(
        sentences(block.content, tokenized=True)[0] for block in read_blocks(find_files(paths), None)
    )
    taken = 0
    with open(target, "w", encoding="utf-8") as out:
        for words in lines:
            if taken >= num_tokens:
                break
            if words:
                line = " ".join(words)
                taken += len(tokenize(line))
                out.write(line + "\n")
    return taken


@dataclass(frozen=True)
class Run:
    """What a run cost between its first blocks and its last."""

    rate: float
    """Tokens per second."""
    cpu_rate: float
    """Tokens per second of the workers' CPU time."""
    seconds: float
    """The complete run, including the start of the workers."""


def cpu_seconds(known: dict[int, float]) -> float:
    """CPU time of the actors so far; `known` remembers those that have ended."""
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "MapWorker" in " ".join(child.cmdline()):
                known[child.pid] = child.cpu_times().user + child.cpu_times().system
    return sum(known.values())


def measure(text: Path, num_tokens: int, model: ELMo, concurrency: int) -> Run:
    seen: list[tuple[float, float, float]] = []
    actors: dict[int, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        corpus.embed_files(
            text,
            VectorFile(Path(folder) / "vectors.parquet", "parquet"),
            model=model,
            workers=corpus.Workers(concurrency=concurrency),
            progress=lambda done, total: seen.append((done / total, time.perf_counter(), cpu_seconds(actors))),
        )
        seconds = time.perf_counter() - begin
    # the first blocks of a worker wait for its start, and for most words' first vectors
    (fraction, first, cpu_before), (_, last, cpu_after) = seen[2 * concurrency - 1], seen[-1]
    tokens = num_tokens * (1 - fraction)
    return Run(tokens / (last - first), tokens / (cpu_after - cpu_before), seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", nargs="+")
    parser.add_argument("--tokens", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--model")
    parser.add_argument("--store-mb", type=int, default=300, help="Ray's object store, of each node")
    options = parser.parse_args()

    store = {"object_store_memory": options.store_mb << 20, "num_cpus": 1}
    cluster = Cluster(initialize_head=True, head_node_args=store)
    try:
        cluster.add_node(**store)
        with corpus.cluster(cluster.address), tempfile.TemporaryDirectory() as folder:
            compare(Path(folder) / "text.txt", options)
    finally:
        cluster.shutdown()


def compare(text: Path, options: argparse.Namespace) -> None:
    model = ELMo.from_pretrained(options.model)
    num_tokens = take(options.text, options.tokens, text)
    corpus.files.BLOCK_BYTES = num_tokens * 2 * model.config.projection_dim * 4 // NUM_BLOCKS
    print(f"{num_tokens:,} tokens, {os.cpu_count()} cores")
    runs: dict[int, list[Run]] = {1: [], 2: []}
    for _ in range(options.rounds):
        for concurrency, done in runs.items():
            done.append(measure(text, num_tokens, model, concurrency))
            rates = f"{done[-1].rate:8,.0f} tokens/s  {done[-1].cpu_rate:8,.0f} tokens/s of CPU"
            print(
                f"workers {concurrency}  {rates}  {done[-1].seconds:6.1f} s  load {os.getloadavg()[0]:.1f}", flush=True
            )
    rate, cpu_rate = (
        [statistics.median(getattr(run, name) for run in runs[n]) for n in runs] for name in ("rate", "cpu_rate")
    )
    print(f"two workers over one: {rate[1] / rate[0]:.2f}; by CPU time {2 * cpu_rate[1] / cpu_rate[0]:.2f}")


if __name__ == "__main__":
    main()
