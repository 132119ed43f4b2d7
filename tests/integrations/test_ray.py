"""Ray's workers write what one process writes; what is killed loses nothing, and what is done is not done again."""

import json
import logging
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow
import pyarrow.parquet
import pytest
import torch
from click.testing import CliRunner

from elmokit import BiLM, BiLMConfig, ELMo
from elmokit.cli import main
from elmokit.corpus.sources import read_blocks, sentences
from elmokit.text import WordWeights, tokenize
from elmokit.vector_files import VectorFile, write_vectors

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_BACKEND_LOG_LEVEL"] = "fatal"

ray = pytest.importorskip("ray")
corpus = pytest.importorskip("elmokit.integrations.ray")

from elmokit.integrations.ray.blocks import Block  # noqa: E402
from elmokit.integrations.ray.files import WrittenBlock  # noqa: E402
from elmokit.integrations.ray.workers import BlockWriter, PartSize, RowEmbedder, WorkerTask  # noqa: E402

# settings that Ray Data deprecates and sets itself
pytestmark = pytest.mark.filterwarnings("ignore:`use_:DeprecationWarning:ray.data.context")

LINES = [f"Line {n} of the river bank, isn't it?" if n % 7 else "" for n in range(60)]
STORE_BYTES = 100 << 20


@pytest.fixture(scope="module")
def local_ray() -> Iterator[None]:
    """One small cluster for the module."""
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=STORE_BYTES,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def model(tiny_elmo: str) -> ELMo:
    return ELMo.from_pretrained(tiny_elmo)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """About eight lines each, for vectors of 16 numbers."""
    monkeypatch.setattr(corpus.files, "BLOCK_BYTES", 64 * 16 * 4)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "in.txt"
    path.write_text("".join(f"{line}\n" for line in LINES))
    return path


def asked(path: Path, **settings: Any) -> VectorFile:
    return VectorFile(path, "parquet", **settings)


def read(path: Path) -> pyarrow.Table:
    """A file of vectors, or a folder of them."""
    return pyarrow.parquet.read_table(path)


def tolerance_of(layers: Any) -> float:
    """The vectors of a random tiny model are short; parts of length one magnify their rounding."""
    return 1e-5 if layers == "sense" else 1e-6


def assert_same_rows(found: Path, expected: Path, layers: Any = "average") -> None:
    one, other = read(found), read(expected)
    assert one.schema.equals(other.schema)
    assert one["line"] == other["line"]
    assert one["tokens"] == other["tokens"]
    for row, (vectors, wanted) in enumerate(zip(one["vectors"].to_pylist(), other["vectors"].to_pylist(), strict=True)):
        np.testing.assert_allclose(vectors, wanted, atol=tolerance_of(layers), rtol=0, err_msg=f"row {row}")


def inline(blocks: Any, folder: Path, file: VectorFile, model: ELMo, batch_size: Any, workers: Any) -> Iterator[Any]:
    """In the place of Ray Data: the worker's own code, in this process and one block after the other."""
    task = WorkerTask(model, "cpu", 1, file.layers, file.dtype, file.tokenizer(model), batch_size)
    writer = BlockWriter(task, folder, file.gzip)
    for block in blocks:
        row = writer(vars(block))
        if row["error"]:
            raise ValueError(row["error"])
        yield WrittenBlock(block, PartSize(row["num_sentences"], row["num_tokens"]))


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch, small_blocks: None) -> None:
    monkeypatch.setattr(ray, "get", lambda sent: sent)
    monkeypatch.setattr(corpus.files, "write_blocks", inline)


# ---- on a cluster ----------------------------------------------------------------------------------------------------


def workers_of_this_test() -> list[psutil.Process]:
    """The actors of Ray Data among the processes that this one has started."""
    return [
        process
        for process in psutil.Process().children(recursive=True)
        if any("MapWorker" in word for word in process.cmdline())
    ]


def test_the_verb_writes_with_ray_what_it_writes_without(local_ray, small_blocks, text, tiny_elmo, tmp_path):
    command = ["embed", str(text), "--model", tiny_elmo, "--json"]
    alone = CliRunner().invoke(main, [*command, str(tmp_path / "alone.parquet")])
    spread = CliRunner().invoke(main, [*command, str(tmp_path / "spread.parquet"), "--ray"])
    assert (alone.exit_code, spread.exit_code) == (0, 0), (alone.output, spread.output)
    assert_same_rows(tmp_path / "spread.parquet", tmp_path / "alone.parquet")
    assert len(list((tmp_path / "spread.parquet").glob("part-*.parquet"))) > 3
    counts = [{key: n for key, n in json.loads(run.stdout).items() if key[:4] == "num_"} for run in (alone, spread)]
    assert counts[0] == counts[1]
    assert not (tmp_path / "spread.parquet.partial").exists()


def test_a_worker_that_is_killed_costs_nothing_but_time(local_ray, text, model, tmp_path, monkeypatch):
    monkeypatch.setattr(corpus.files, "BLOCK_BYTES", 1)  # a line each: many are left when the first one is done
    text.write_text("".join(f"{line}\n" for line in LINES[:24]))
    killed = []
    partial = tmp_path / "spread.parquet.partial"
    inodes = {}

    def kill_one(done: int, total: int) -> None:
        if not killed:
            inodes.update({path.name: path.stat().st_ino for path in partial.glob("part-*.parquet")})
            killed.extend(workers_of_this_test()[:1])
            killed[0].send_signal(signal.SIGKILL)

    workers = corpus.Workers(concurrency=1)
    file = asked(tmp_path / "spread.parquet")
    written = corpus.embed_files(text, file, model=model, workers=workers, progress=kill_one)
    assert killed
    assert written == write_vectors(model, LINES[:24], asked(tmp_path / "alone.parquet"))
    assert_same_rows(file.path, tmp_path / "alone.parquet")
    assert 0 < len(inodes) < len(list(file.path.glob("part-*")))  # what was written before was not written again
    assert inodes == {name: (file.path / name).stat().st_ino for name in inodes}
    assert not list(file.path.glob(".*"))


def test_a_dataset_keeps_its_rows_and_their_order(local_ray, model):
    words = [tokenize(line) for line in LINES]
    rows = [{"id": f"doc-{n}", "text": line, "n": n} for n, line in enumerate(LINES)]
    ds = ray.data.from_items(rows, override_num_blocks=4)
    found = corpus.embed_dataset(ds, model=model, layers="all", batch_size=7).take_all()
    assert [(row["id"], row["text"], row["n"]) for row in found] == [tuple(row.values()) for row in rows]
    assert [list(row["tokens"]) for row in found] == words
    for row, expected in zip(found, model.embed(words, layers="all"), strict=True):
        vectors = np.array([[list(token) for token in plane] for plane in row["vectors"]])
        if expected.size:
            np.testing.assert_allclose(vectors, expected, atol=1e-6, rtol=0)
        else:
            assert vectors.size == 0


@pytest.mark.parametrize("layers", ["slot", "sense"])
def test_workers_on_a_cluster_give_slot_and_sense(local_ray, model, layers):
    model = ELMo(model.bilm).eval()
    model.word_weights = WordWeights({"bank": 3, "the": 90})  # they travel with the model
    words = [tokenize(line) for line in LINES[:9]]
    ds = ray.data.from_items([{"text": line} for line in LINES[:9]], override_num_blocks=2)
    found = corpus.embed_dataset(ds, model=model, layers=layers).take_all()
    for row, expected in zip(found, model.embed(words, layers=layers), strict=True):
        vectors = np.array([list(token) for token in row["vectors"]]).reshape(expected.shape)
        np.testing.assert_allclose(vectors, expected, atol=tolerance_of(layers), rtol=0)


def test_what_is_wrong_with_a_dataset_is_said_before_a_worker_starts(local_ray, model):
    ds = ray.data.from_items([{"text": "one"}])
    with pytest.raises(ValueError, match="layers must be"):
        corpus.embed_dataset(ds, model=model, layers=9)
    with pytest.raises(ValueError, match="no machine of the Ray cluster has 1 GPU"):
        corpus.embed_dataset(ds, model=model, workers=corpus.Workers(num_gpus=1))
    assert not corpus.has_gpus()


def test_workers_that_leave_no_cpu_to_the_tasks_that_read_are_warned_of(local_ray, model, caplog):
    ds = ray.data.from_items([{"text": "one"}])
    corpus.embed_dataset(ds, model=model, workers=corpus.Workers(concurrency=1))
    assert not caplog.records
    corpus.embed_dataset(ds, model=model, workers=corpus.Workers(concurrency=2))
    assert "the workers hold all 2 CPUs" in caplog.text


def test_there_is_room_for_as_many_workers_as_fit_on_the_machines(local_ray):
    assert corpus.Workers().room() == 2
    assert corpus.Workers(num_cpus=0.5).room() == 4
    assert corpus.Workers(num_cpus=2).room() == 1


# ---- what a worker does, in this process -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"layers": "all", "gzip": True},
        {"layers": 0, "dtype": "float16"},
        {"layers": "top", "tokenized": True},
        {"layers": "slot"},
        {"layers": "sense"},
    ],
)
def test_the_folder_holds_the_rows_of_the_file(in_process, text, model, tmp_path, settings):
    seen: list[tuple[int, int]] = []
    file = asked(tmp_path / "spread.parquet", **settings)
    written = corpus.embed_files(text, file, model=model, batch_size=3, progress=lambda *now: seen.append(now))
    expected = write_vectors(model, LINES, asked(tmp_path / "alone.parquet", **settings))
    assert_same_rows(file.path, tmp_path / "alone.parquet", file.layers)
    assert written == expected
    assert len(seen) > 3
    assert seen[-1] == (text.stat().st_size, text.stat().st_size)


def test_text_is_cut_by_the_tokenizer_of_the_model(in_process, text, model, tmp_path):
    by_characters = ELMo(model.bilm, tokenizer="characters").eval()
    file = asked(tmp_path / "spread.parquet")
    corpus.embed_files(text, file, model=by_characters)
    write_vectors(by_characters, LINES, asked(tmp_path / "alone.parquet"))
    assert_same_rows(file.path, tmp_path / "alone.parquet")
    assert read(file.path)["tokens"].to_pylist() == [list(line.replace(" ", "")) for line in LINES]


def test_lines_end_at_line_feeds_and_a_mark_at_the_start_is_no_text(in_process, model, tiny_elmo, tmp_path):
    text = tmp_path / "in.txt"
    lines = ["\ufefffirst\u2028line\r", *(f"\ufeffline {n} \x85 of it\r" for n in range(30)), "", "last"]
    text.write_bytes("\n".join(lines).encode())
    corpus.embed_files(text, asked(tmp_path / "spread.parquet"), model=model)
    run = CliRunner().invoke(main, ["embed", str(text), str(tmp_path / "alone.parquet"), "--model", tiny_elmo])
    assert run.exit_code == 0, run.output
    assert_same_rows(tmp_path / "spread.parquet", tmp_path / "alone.parquet")


def test_parquet_rows_come_with_their_ids_and_several_files_are_counted_through(in_process, model, tmp_path):
    ids = [f"id{n:03d}" for n in range(len(LINES))]
    texts = [line or None for line in LINES]
    first = pyarrow.table({"id": ids[:35], "url": range(35), "sentence": texts[:35]})
    pyarrow.parquet.write_table(first, tmp_path / "in-0.parquet", row_group_size=10)
    split = [tokenize(line) for line in LINES[35:-1]] + [None]
    second = pyarrow.table({"tokens": split, "text": ["not read"] * 25, "id": ids[35:]})
    pyarrow.parquet.write_table(second, tmp_path / "in-1.parquet")
    file = asked(tmp_path / "out.parquet")
    corpus.embed_files(str(tmp_path / "in-*.parquet"), file, model=model)
    found = read(file.path)
    assert found.column_names == ["line", "id", "tokens", "vectors"]
    assert found["line"].to_pylist() == list(range(60))
    assert found["id"].to_pylist() == ids
    words = [tokenize(line) for line in LINES[:-1]] + [[]]
    assert found["tokens"].to_pylist() == words
    for row, expected in zip(found["vectors"].to_pylist(), model.embed(words), strict=True):
        np.testing.assert_allclose(np.array(row).reshape(expected.shape), expected, atol=1e-6, rtol=0)


def test_a_run_that_was_stopped_resumes_with_the_blocks_that_are_missing(in_process, text, model, tmp_path):
    file = asked(tmp_path / "out.parquet")
    partial = tmp_path / "out.parquet.partial"

    def stop(done: int, total: int) -> None:
        if 3 * done > total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        corpus.embed_files(text, file, model=model, progress=stop)
    assert not file.path.exists()
    done = {path.name: path.stat().st_ino for path in partial.glob("part-*")}
    assert len(done) >= 2
    (partial / ".part-00000007.parquet.1-ab.tmp").write_bytes(b"half a")
    num_done = sum(pyarrow.parquet.read_metadata(partial / name).num_rows for name in done)
    written = corpus.embed_files(text, file, model=model)
    assert (written.num_sentences, written.num_resumed) == (60, num_done)
    assert {name: (file.path / name).stat().st_ino for name in done} == done
    expected = write_vectors(model, LINES, asked(tmp_path / "alone.parquet"))
    assert_same_rows(file.path, tmp_path / "alone.parquet")
    assert written.num_tokens == expected.num_tokens
    assert {path.name[:5] for path in file.path.iterdir()} == {"part-", "_elmo"}


def test_a_run_whose_blocks_are_all_there_needs_no_cluster_to_end(in_process, text, model, tmp_path, monkeypatch):
    file = asked(tmp_path / "out.parquet")
    corpus.embed_files(text, file, model=model)
    (tmp_path / "out.parquet").rename(tmp_path / "out.parquet.partial")
    monkeypatch.undo()
    monkeypatch.setattr(corpus.files, "BLOCK_BYTES", 64 * 16 * 4)
    assert corpus.embed_files(text, file, model=model).num_resumed == 60


def test_a_worker_leaves_a_block_alone_that_is_there(in_process, text, model, tmp_path):
    file = asked(tmp_path / "out.parquet")
    corpus.embed_files(text, file, model=model)
    block = Block(0, 0, "no such file", 0, 1, 1)
    [written] = inline([block], file.path, file, model, None, None)
    assert written.size.num_sentences > 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": "top"}, "layers average, and now it is top"),
        ({"dtype": "float16"}, "dtype float32, and now it is float16"),
        ({"tokenized": True}, "tokenized False, and now it is True"),
        ({"gzip": True}, "gzip False, and now it is True"),
        ("text", "with other input"),
        ("model", "model [0-9a-f]{64}, and now"),
    ],
)
def test_another_run_is_refused_by_what_differs_and_starts_over_when_told(
    in_process, text, model, tmp_path, change, message
):
    file = asked(tmp_path / "out.parquet")
    corpus.embed_files(text, file, model=model)
    (tmp_path / "out.parquet").rename(tmp_path / "out.parquet.partial")
    if change == "text":
        text.write_text(text.read_text() + "one more\n")
    elif change == "model":
        torch.manual_seed(8)
        model = ELMo(BiLM(model.config)).eval()
    else:
        file = asked(tmp_path / "out.parquet", **change)
    with pytest.raises(ValueError, match=f"out.parquet.partial was begun .*{message}.*--overwrite"):
        corpus.embed_files(text, file, model=model)
    written = corpus.embed_files(text, file, model=model, overwrite=True)
    assert written.num_resumed == 0
    assert written.num_sentences == 60 + (change == "text")


def test_what_is_there_is_replaced_only_when_told_and_only_where_it_is_ours(in_process, text, model, tmp_path):
    file = asked(tmp_path / "out.parquet")
    file.path.write_bytes(b"a file of the verb without ray")
    with pytest.raises(ValueError, match="already exists"):
        corpus.embed_files(text, file, model=model)
    for _ in range(2):  # a file, then a folder
        corpus.embed_files(text, file, model=model, overwrite=True)
        assert file.path.is_dir()
    (file.path / corpus.files.MANIFEST).unlink()
    with pytest.raises(ValueError, match="other content than vectors"):
        corpus.embed_files(text, file, model=model, overwrite=True)
    with pytest.raises(ValueError, match="there is no folder"):
        corpus.embed_files(text, asked(tmp_path / "none" / "out.parquet"), model=model)


def test_damaged_and_foreign_work_is_named(in_process, text, model, tmp_path):
    file = asked(tmp_path / "out.parquet")
    partial = tmp_path / "out.parquet.partial"
    corpus.embed_files(text, file, model=model)
    file.path.rename(partial)
    part = partial / "part-00000001.parquet"
    part.write_bytes(part.read_bytes()[:-9])
    with pytest.raises(ValueError, match=r"part-00000001.parquet is damaged .* embedded again"):
        corpus.embed_files(text, file, model=model)
    (partial / corpus.files.MANIFEST).write_text("{")
    with pytest.raises(ValueError, match=r"_elmokit.json is damaged: remove"):
        corpus.embed_files(text, file, model=model)
    (partial / corpus.files.MANIFEST).unlink()
    with pytest.raises(ValueError, match="not the work of Ray's workers"):
        corpus.embed_files(text, file, model=model)


def test_what_a_worker_cannot_do_comes_back_as_one_line(in_process, text, tmp_path):
    torch.manual_seed(0)
    sizes = BiLMConfig(char_dim=4, filters=((1, 8),), num_highways=0, cell_dim=8, projection_dim=8)
    model = ELMo(BiLM(sizes)).eval()
    with torch.no_grad():
        model.bilm.char_encoder.projection.weight.mul_(1e9)
    file = asked(tmp_path / "out.parquet", layers=0, dtype="float16")
    with pytest.raises(ValueError, match="line 2 has values beyond float16: write float32"):
        corpus.embed_files(text, file, model=model)
    assert [path.name for path in tmp_path.iterdir()] == ["in.txt"]  # nothing was done, and nothing is left


def test_settings_that_make_no_sense_are_refused_before_anything_is_written(in_process, text, tiny_elmo, tmp_path):
    carrying = ELMo.from_pretrained(tiny_elmo, state="carry")
    with pytest.raises(ValueError, match="without state"):
        corpus.embed_files(text, asked(tmp_path / "out.parquet"), model=carrying)
    with pytest.raises(ValueError, match="layers must be"):
        corpus.embed_files(text, asked(tmp_path / "out.parquet", layers=7), model=ELMo.from_pretrained(tiny_elmo))
    assert [path.name for path in tmp_path.iterdir()] == ["in.txt"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("in.txt.gz", b"", "is compressed"),
        ("in.txt", b"", "no sentences"),
        ("in.txt", b"one\ntw\xff\n", "line 2 is not UTF-8"),
        ("in.parquet", b"no such thing", "is not a parquet file"),
        ("in.parquet", pyarrow.table({"a": ["x"], "b": ["y"]}), r"needs lists of strings .* it has a \(string\), b"),
        ("in.parquet", pyarrow.table({"tokens": [1]}), r"it has tokens \(int64\)"),
    ],
)
def test_bad_input_is_named(in_process, model, tmp_path, name, content, message):
    path = tmp_path / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        pyarrow.parquet.write_table(content, path)
    with pytest.raises(ValueError, match=f"{name}.*{message}"):
        corpus.embed_files(path, asked(tmp_path / "out.parquet"), model=model)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["in.txt", "out.hdf5", "--ray"], "Ray's workers write Parquet, not hdf5"),
        (["-", "out.parquet", "--ray"], "name a file"),
        (["in.txt", "out.parquet", "--ray", "local", "--device", "cuda:1"], "Ray chooses the GPU"),
        (["in.txt", "out.parquet", "--workers", "2"], "--workers 2 needs --ray: add --ray, or leave --workers out"),
    ],
)
def test_the_verb_says_what_goes_with_ray(options, message, text, tiny_elmo, monkeypatch):
    monkeypatch.chdir(text.parent)
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(corpus, "has_gpus", lambda: False)
    run = CliRunner().invoke(main, ["embed", *options, "--model", tiny_elmo])
    assert run.exit_code == 1
    assert message in run.stderr
    assert len(run.stderr.splitlines()) == 1


@pytest.mark.parametrize("settings", [{"concurrency": 0}, {"num_cpus": 0}, {"num_gpus": -1}])
def test_a_worker_needs_a_share_of_a_machine(settings):
    with pytest.raises(ValueError, match=r"at least 1|a share of a machine"):
        corpus.Workers(**settings)


def test_no_rows_have_no_vectors(in_process, model):
    task = WorkerTask(model, "cpu", 1, "average", "float32", model.tokenizer)
    rows = pyarrow.table({"text": pyarrow.array([], pyarrow.large_string()), "id": pyarrow.array([], pyarrow.int64())})
    assert RowEmbedder(task)(rows).num_rows == 0


# ---- the cluster -----------------------------------------------------------------------------------------------------


def test_a_local_cluster_ends_with_its_block_and_tells_nobody(monkeypatch):
    calls: list[Any] = []
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **settings: calls.append(settings))
    monkeypatch.setattr(ray, "shutdown", lambda: calls.append("shutdown"))
    monkeypatch.delenv("RAY_USAGE_STATS_ENABLED")
    level = logging.getLogger("ray.data").level
    with corpus.cluster():
        assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
        assert calls[0]["address"] == "local"
        assert calls[0]["include_dashboard"] is False
    assert calls[1:] == ["shutdown"]
    assert logging.getLogger("ray.data").level == level
    with socket.create_server(("127.0.0.1", 0)) as server, corpus.cluster(f"127.0.0.1:{server.getsockname()[1]}"):
        assert "include_dashboard" not in calls[2]  # it has its own, or none


def test_a_cluster_that_is_not_there_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    for address in (f"127.0.0.1:{port}", "127.0.0.1:port"):
        with pytest.raises(ValueError, match=f"{address}: no Ray cluster answers"), corpus.cluster(address):
            pass
    with pytest.raises(ValueError, match="a Ray client sees no files"), corpus.cluster("ray://127.0.0.1:10001"):
        pass


def test_without_ray_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray.data", None)
    with pytest.raises(ImportError, match=r'pip install "elmokit\[ray\]"'):
        runpy.run_path(corpus.__file__)


# ---- a million tokens ------------------------------------------------------------------------------------------------

DRIVER = """
import sys
from pathlib import Path
from elmokit import ELMo
from elmokit.integrations import ray as corpus
from elmokit.vector_files import VectorFile
address, text, out, model, block_bytes = sys.argv[1:]
corpus.files.BLOCK_BYTES = int(block_bytes)
with corpus.cluster(address):
    print(corpus.embed_files(text, VectorFile(Path(out), "parquet"), model=ELMo.from_pretrained(model)))
"""


def wait_for_parts(partial: Path, count: int, driver: subprocess.Popen[str]) -> dict[str, int]:
    """The names and inodes of the blocks that are there, once there are `count` of them."""
    while len(found := {path.name: path.stat().st_ino for path in partial.glob("part-*.parquet")}) < count:
        assert driver.poll() is None, driver.communicate()
        time.sleep(0.05)
    return found


@pytest.mark.slow
def test_two_nodes_embed_a_million_tokens_through_a_killed_worker_and_a_killed_driver(data, tiny_elmo, tmp_path):
    from ray.cluster_utils import Cluster

    num_tokens = 0
    text = tmp_path / "text.txt"
    with open(text, "w", encoding="utf-8") as out:
        for block in read_blocks([data / "pretrain" / "train-0.txt.xz"], None):
            for words in sentences(block.content, tokenized=True)[0]:
                num_tokens += len(words)
                out.write(" ".join(words) + "\n")
                if num_tokens >= 1_000_000:
                    break
            if num_tokens >= 1_000_000:
                break
    node = {"num_cpus": 1, "object_store_memory": 200 << 20}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    try:
        cluster.add_node(**node)
        partial, target = tmp_path / "out.parquet.partial", tmp_path / "out.parquet"
        block_bytes = 1_000_000 * 16 * 4 // 60
        command = [sys.executable, "-c", DRIVER, cluster.address, str(text), str(target), tiny_elmo, str(block_bytes)]

        def start() -> subprocess.Popen[str]:
            return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

        driver = start()
        wait_for_parts(partial, 10, driver)
        workers = workers_of_this_test()
        assert len(workers) == 2
        workers[0].send_signal(signal.SIGKILL)
        before = wait_for_parts(partial, 25, driver)
        driver.kill()
        driver.communicate()
        time.sleep(5)  # Ray ends the workers of a driver that is gone; a block that they end is a block
        after = {path.name: path.stat().st_ino for path in partial.glob("part-*.parquet")}
        assert before.items() <= after.items()
        num_done = sum(pyarrow.parquet.read_metadata(partial / name).num_rows for name in after)
        driver = start()
        printed, errors = driver.communicate()
        assert driver.returncode == 0, errors
        assert f"num_resumed={num_done})" in printed
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert after.items() <= {path.name: path.stat().st_ino for path in target.glob("part-*")}.items()
    assert len(list(target.iterdir())) > 50

    lines = [line.strip() for line in text.read_text(encoding="utf-8").split("\n")[:-1]]
    write_vectors(ELMo.from_pretrained(tiny_elmo), lines, asked(tmp_path / "alone.parquet"))
    one, other = read(target), read(tmp_path / "alone.parquet")
    assert one["line"] == other["line"]
    assert one["tokens"] == other["tokens"]
    assert one["vectors"].combine_chunks().flatten().flatten().to_numpy().size >= 16_000_000
    difference = [
        table["vectors"].combine_chunks().flatten().flatten().to_numpy(zero_copy_only=False) for table in (one, other)
    ]
    np.testing.assert_allclose(*difference, atol=1e-6, rtol=0)
