"""Which store for words in context: usearch, faiss, lancedb, and elmokit's own, which is built on usearch.

    python benchmarks/index.py embed CORPUS... --out vectors.npy --rows 1020000 [--model MODEL] [--layer sense]
    python benchmarks/index.py compare vectors.npy --rows 1000000 --queries 1000 [--only usearch-i8,faiss-ivf-sq8]
    python benchmarks/index.py occurrences CORPUS... --rows 1000000 --words bank,time,the

`embed` writes the vectors of a corpus.  `compare` puts the first rows into each store and asks for rows that are not
among them; each store is built in a process of its own and searched, one query at a time on one thread, in another.  It
prints recall@10 against exact search in float32, seconds to build, milliseconds per query, bytes on disk, and memory.
`occurrences` makes an index of random vectors, and prints how long it takes to find all occurrences of words.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from elmokit import ELMo

K = 10


def unit(vectors: np.ndarray) -> np.ndarray:
    vectors = np.asarray(vectors, np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def chunks(vectors: np.ndarray, size: int = 16384):
    for begin in range(0, len(vectors), size):
        yield begin, unit(vectors[begin : begin + size])


# ---- the stores: build(vectors, folder), and open(folder, dim) -> search(query) -> rows ------------------------------


class USearch:
    """HNSW; int8 as elmokit rounds it, or float16."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype

    def vectors(self, some: np.ndarray) -> np.ndarray:
        if self.dtype == "f16":
            return some.astype(np.float16)
        return np.rint(some * (127 / np.abs(some).max(axis=1, keepdims=True))).astype(np.int8)

    def index(self, dim: int) -> Any:
        from usearch.index import Index

        return Index(ndim=dim, metric="cos", dtype=self.dtype, connectivity=16, expansion_add=128, expansion_search=128)

    def build(self, vectors: np.ndarray, folder: Path) -> None:
        index = self.index(vectors.shape[1])
        for begin, some in chunks(vectors):
            index.add(np.arange(begin, begin + len(some)), self.vectors(some))
        index.save(folder / "graph.usearch")

    def open(self, folder: Path, dim: int) -> Any:
        index = self.index(dim)
        index.view(folder / "graph.usearch")
        return lambda query: index.search(self.vectors(query[None])[0], K).keys


class Faiss:
    """An index by its factory string; trained on a sample, where it is trained."""

    def __init__(self, factory: str, **settings: int) -> None:
        self.factory, self.settings = factory, settings

    def build(self, vectors: np.ndarray, folder: Path) -> None:
        import faiss

        index = faiss.index_factory(vectors.shape[1], self.factory, faiss.METRIC_INNER_PRODUCT)
        if "efConstruction" in self.settings:
            index.hnsw.efConstruction = self.settings["efConstruction"]
        index.train(unit(vectors[np.sort(np.random.default_rng(0).permutation(len(vectors))[:100_000])]))
        for _, some in chunks(vectors):
            index.add(some)
        faiss.write_index(index, str(folder / "index.faiss"))

    def open(self, folder: Path, dim: int) -> Any:
        import faiss

        faiss.omp_set_num_threads(1)
        index = faiss.read_index(str(folder / "index.faiss"), faiss.IO_FLAG_MMAP if "IVF" in self.factory else 0)
        if "nprobe" in self.settings:
            index.nprobe = self.settings["nprobe"]
        else:
            index.hnsw.efSearch = self.settings["efSearch"]
        return lambda query: index.search(query[None], K)[1][0]


class Lance:
    """A table with an index of vectors; the best are compared again with the vectors themselves."""

    def __init__(self, index_type: str, *, nprobes: int, refine_factor: int, **settings: int) -> None:
        self.index_type, self.settings = index_type, settings
        self.nprobes, self.refine_factor = nprobes, refine_factor

    def build(self, vectors: np.ndarray, folder: Path) -> None:
        import lancedb
        import pyarrow as pa

        dim = vectors.shape[1]
        schema = pa.schema([("row", pa.int64()), ("vector", pa.list_(pa.float16(), dim))])
        table = lancedb.connect(str(folder)).create_table("words", schema=schema)
        for begin, some in chunks(vectors, 65536):
            flat = pa.array(some.astype(np.float16).reshape(-1))
            columns = [pa.array(np.arange(begin, begin + len(some))), pa.FixedSizeListArray.from_arrays(flat, dim)]
            table.add(pa.Table.from_arrays(columns, schema=schema))
        table.create_index(metric="cosine", vector_column_name="vector", index_type=self.index_type, **self.settings)

    def open(self, folder: Path, dim: int) -> Any:
        import lancedb

        table = lancedb.connect(str(folder)).open_table("words")

        def search(query: np.ndarray) -> np.ndarray:
            asked = table.search(query).metric("cosine").nprobes(self.nprobes).refine_factor(self.refine_factor)
            return asked.limit(K).select(["row", "_distance"]).to_arrow()["row"].to_numpy()

        return search


def model_of(dim: int, embed: Any) -> ELMo:
    """A model of no use but for its vectors: `embed` makes (T, dim) of a list of tokens."""
    from elmokit import BiLM, BiLMConfig, ELMo

    config = BiLMConfig(char_dim=1, filters=((1, 1),), num_highways=1, cell_dim=1, projection_dim=dim // 2)
    model = ELMo(BiLM(config)).eval()
    model.embed = lambda sentences, layers: [embed(tokens) for tokens in sentences]  # type: ignore[method-assign]
    return model


class Elmokit:
    """`WordIndex`, with sentences of 25 words."""

    length = 25

    def build(self, vectors: np.ndarray, folder: Path) -> None:
        from elmokit.index import WordIndex

        def embed(tokens: list[str]) -> np.ndarray:  # a sentence is the numbers of some rows
            return np.asarray(vectors[int(tokens[0]) : int(tokens[-1]) + 1], np.float32)

        model = model_of(vectors.shape[1], embed)
        store = WordIndex.create(folder / "store", model)
        store.add(
            model,
            (
                [str(row) for row in range(begin, min(begin + self.length, len(vectors)))]
                for begin in range(0, len(vectors), self.length)
            ),
        )

    def open(self, folder: Path, dim: int) -> Any:
        from elmokit.index import WordIndex

        store = WordIndex.open(folder / "store")
        return lambda query: store.search(query[None], K).rows[0]


STORES: dict[str, Any] = {
    "elmokit": Elmokit(),
    "usearch-i8": USearch("i8"),
    "usearch-f16": USearch("f16"),
    "faiss-ivf-sq8": Faiss("IVF1024,SQ8", nprobe=32),
    "faiss-hnsw-sq8": Faiss("HNSW16_SQ8", efConstruction=128, efSearch=128),
    "lancedb-ivf-pq": Lance("IVF_PQ", nprobes=32, refine_factor=10, num_partitions=1024, num_sub_vectors=64),
    "lancedb-hnsw-sq": Lance("IVF_HNSW_SQ", nprobes=8, refine_factor=4, num_partitions=32, m=16, ef_construction=128),
}


# ---- figures ---------------------------------------------------------------------------------------------------------


def memory() -> dict[str, int]:
    """MB of this process: its peak, and its current memory without mapped files."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {name: int(status[field].split()[0]) // 1024 for name, field in [("peak", "VmHWM"), ("own", "RssAnon")]}


def exact(vectors: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """Rows of the K largest cosines, in float32."""
    rows, cosines = np.zeros((len(queries), 0), np.int64), np.zeros((len(queries), 0), np.float32)
    for begin, some in chunks(vectors):
        cosines = np.concatenate([cosines, queries @ some.T], axis=1)
        new = np.broadcast_to(np.arange(begin, begin + len(some)), (len(queries), len(some)))
        rows = np.concatenate([rows, new], axis=1)
        best = np.argpartition(-cosines, K, axis=1)[:, :K]
        rows, cosines = np.take_along_axis(rows, best, 1), np.take_along_axis(cosines, best, 1)
    return rows


def run_step(step: str, name: str, path: Path, num_rows: int, num_queries: int, folder: Path) -> dict[str, Any]:
    """One step in this process."""
    all_vectors = np.load(path, mmap_mode="r")
    vectors = all_vectors[:num_rows]
    begin = time.perf_counter()
    if step == "build":
        STORES[name].build(vectors, folder)
        return {"seconds": time.perf_counter() - begin, **memory()}
    queries = unit(all_vectors[num_rows:][:: max(1, (len(all_vectors) - num_rows) // num_queries)][:num_queries])
    if step == "exact":
        np.save(folder / "exact.npy", exact(vectors, queries))
        return {}
    wanted = np.load(folder.parent / "exact.npy")
    search = STORES[name].open(folder, vectors.shape[1])
    opened = time.perf_counter() - begin
    results, seconds = [], []
    for number in range(2):  # the first round brings the files into memory
        results, seconds = [], []
        for query in queries:
            start = time.perf_counter()
            results.append(search(query))
            seconds.append(time.perf_counter() - start)
        if number == 0:
            first = 1000 * float(np.median(seconds))
    recall = np.mean(
        [len(set(map(int, got)) & set(map(int, best))) / K for got, best in zip(results, wanted, strict=True)]
    )
    p50, p99 = (1000 * float(np.percentile(seconds, percent)) for percent in (50, 99))
    return {"recall": float(recall), "p50": p50, "p99": p99, "first_p50": first, "open": opened, **memory()}


def compare(arguments: argparse.Namespace) -> None:
    names = arguments.only.split(",") if arguments.only else list(STORES)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as scratch:

        def child(step: str, name: str, folder: Path) -> dict[str, Any]:
            numbers = [str(arguments.rows), str(arguments.queries)]
            command = [sys.executable, __file__, "step", step, name, str(arguments.vectors), *numbers, str(folder)]
            return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.splitlines()[-1])

        child("exact", "-", Path(scratch))
        for name in names:
            folder = Path(scratch) / name
            folder.mkdir()
            built = child("build", name, folder)
            size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
            result = child("search", name, folder)
            print(
                f"{name:16s} recall@10 {result['recall']:.4f}  p50 {result['p50']:.2f} ms (first time "
                f"{result['first_p50']:.2f}), p99 {result['p99']:.2f} ms  built in {built['seconds']:.0f} s, "
                f"peak {built['peak']:,} MB  on disk {size / arguments.rows:,.0f} bytes per row  searching: opened in "
                f"{result['open']:.2f} s, {result['own']:,} MB of its own, {result['peak']:,} MB with mapped files",
                flush=True,
            )


def occurrences(arguments: argparse.Namespace) -> None:
    from elmokit.corpus.sources import find_files, read_blocks, sentences
    from elmokit.index import WordIndex, store

    store.ROWS_OUTSIDE_GRAPH = arguments.rows + 100_000  # words are found without the graph
    random = np.random.default_rng(0)
    model = model_of(512, lambda tokens: random.standard_normal((len(tokens), 512), np.float32))

    def read() -> Any:
        done = 0
        for block in read_blocks(find_files(arguments.corpus), None):
            for tokens in sentences(block.content, tokenized=False)[0]:
                yield tokens
                done += len(tokens)
                if done >= arguments.rows:
                    return

    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        WordIndex.create(Path(folder) / "store", model).add(model, read())
        words = WordIndex.open(Path(folder) / "store")
        print(f"{len(words):,} words in {words.num_sentences:,} sentences")
        for word in arguments.words.split(","):
            for limit in (1000, None):
                for _ in range(2):  # the first time brings the files into memory
                    begin, cpu = time.perf_counter(), time.process_time()
                    found = words.occurrences(word, limit=limit)
                    begin, cpu = time.perf_counter() - begin, time.process_time() - cpu
                    print(
                        f"{word:12s} {len(found.words):6,} of {found.num_total:6,}  {1000 * begin:8.1f} ms, "
                        f"{1000 * cpu:8.1f} ms of the processor"
                    )


def embed(arguments: argparse.Namespace) -> None:
    from elmokit import ELMo
    from elmokit.corpus.sources import find_files, read_blocks, sentences

    model = ELMo.from_pretrained(arguments.model)
    shape = (arguments.rows, 2 * model.config.projection_dim)
    vectors = np.lib.format.open_memmap(arguments.out, "w+", np.float16, shape)
    done = 0
    for block in read_blocks(find_files(arguments.corpus), None):
        lines = list(sentences(block.content, tokenized=False)[0])
        for begin in range(0, len(lines), 1000):
            for embedded in model.embed(lines[begin : begin + 1000], layers=arguments.layer):
                embedded = embedded[: arguments.rows - done]
                vectors[done : done + len(embedded)] = embedded
                done += len(embedded)
            print(f"\r{done:,} words", end="", file=sys.stderr)
            if done == arguments.rows:
                return
    raise SystemExit(f"the corpus has {done:,} words, {arguments.rows:,} were asked for")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("embed")
    verb.add_argument("corpus", nargs="+")
    verb.add_argument("--out", required=True)
    verb.add_argument("--rows", type=int, default=1_020_000)
    verb.add_argument("--model")
    verb.add_argument("--layer", default="sense")
    verb = verbs.add_parser("compare")
    verb.add_argument("vectors", type=Path)
    verb.add_argument("--rows", type=int, default=1_000_000)
    verb.add_argument("--queries", type=int, default=1000)
    verb.add_argument("--only", help=", ".join(STORES))
    verb.add_argument("--folder", help="Where the stores are built, and removed again.")
    verb = verbs.add_parser("occurrences")
    verb.add_argument("corpus", nargs="+")
    verb.add_argument("--rows", type=int, default=1_000_000)
    verb.add_argument("--words", default="bank,time,the")
    verb.add_argument("--folder", help="Where the store is built, and removed again.")
    verb = verbs.add_parser("step")
    for name in ("step", "name", "vectors", "rows", "queries", "folder"):
        verb.add_argument(name)
    arguments = parser.parse_args()
    if arguments.verb == "step":
        numbers = int(arguments.rows), int(arguments.queries)
        paths = Path(arguments.vectors), Path(arguments.folder)
        print(json.dumps(run_step(arguments.step, arguments.name, paths[0], *numbers, paths[1])))
    else:
        {"embed": embed, "compare": compare, "occurrences": occurrences}[arguments.verb](arguments)


if __name__ == "__main__":
    main()
