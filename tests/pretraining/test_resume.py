"""Resume: a run that is killed or stopped at any moment gives the result of an uninterrupted one, bit by bit."""

import dataclasses
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from tiny_runs import MODEL, SAMPLED, SETTINGS, SOURCE, make_learner

from elmokit.pretraining import (
    Progress,
    loop,
    pretrain,
)
from elmokit.storage import snapshots
from elmokit.storage.snapshots import Snapshot, Snapshots

CHILD = """
    import json, os, random, signal, sys, threading, time
    import torch

    torch.set_num_threads(1)
    from elmokit.config import BiLMConfig
    from elmokit.pretraining import pretrain
    from elmokit.storage import snapshots
    from elmokit.pretraining.step import Learner

    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    def run(out, kill):
        if kill == "in the tensors":
            def torn(tensors, path):
                with open(path, "wb") as file:
                    file.write(b"half a file")
                die()
            snapshots.save_file = torn
        elif kill == "before the rename":
            replace = os.replace
            os.replace = lambda a, b: die() if os.path.basename(b).startswith("step-") else replace(a, b)
        elif kill == "while old ones are removed":
            snapshots.shutil.rmtree = lambda path, **_: die() if os.path.exists(path) else None
        elif kill is not None:
            # a moment inside one of the steps
            step, left = Learner.step, [kill]
            def until(self, *given):
                left[0] -= 1
                if left[0] < 0:
                    threading.Timer(-left[0] * 1e-3 * random.random(), die).start()
                step(self, *given)
            Learner.step = until
        pretrain(out=out, model=BiLMConfig(**MODEL), **SETTINGS)

    def fork(out, kill):
        pid = os.fork()  # the imports are done once
        if pid == 0:
            try:
                run(out, kill)
            except BaseException:
                import traceback
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        return os.waitpid(pid, 0)[1]

    job = json.loads(sys.argv[1])
    MODEL, SETTINGS = job["model"], job["settings"]
    MODEL["filters"] = tuple(map(tuple, MODEL["filters"]))
    statuses = [fork(job["whole"], None)]
    for kill in job["kills"]:
        statuses.append(fork(job["killed"], kill))
    statuses.append(fork(job["killed"], None))
    print(json.dumps(statuses))
"""


def run_killed(folder: Path, text: dict[str, str], kills: list, **settings) -> list[int]:
    """Exit statuses of an uninterrupted run, of killed runs in another folder, and of the run that completes them."""
    job = {
        "model": dataclasses.asdict(MODEL), "settings": {**SETTINGS, **text, **settings}, "kills": kills,
        "whole": str(folder / "whole"), "killed": str(folder / "killed"),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(CHILD), json.dumps(job)],
        capture_output=True, text=True, timeout=600,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return json.loads(done.stdout)


def check_same_run(folder: Path) -> None:
    for name in ("model.safetensors", "softmax.safetensors", "vocabulary.txt", "metrics.jsonl", "README.md"):
        whole, killed = (folder / which / name for which in ("whole", "killed"))
        expected = (
            whole.read_text().replace("/whole", "/killed").encode() if name == "README.md" else whole.read_bytes()
        )
        assert killed.read_bytes() == expected, name
    last = [Snapshots(folder / which / "checkpoints").newest() for which in ("whole", "killed")]
    assert last[0] == last[1]
    whole, killed = (Snapshots(folder / which / "checkpoints").load(last[0]) for which in ("whole", "killed"))
    assert all(torch.equal(tensor, killed.tensors[name]) for name, tensor in whole.tensors.items())
    assert whole.values == killed.values


@pytest.mark.parametrize("loss", [{"state_reset": 0.3}, SAMPLED], ids=["full", "sampled"])
def test_a_run_that_is_killed_at_any_moment_ends_as_if_it_had_not_been(text, tmp_path, loss):
    kills = [2, "in the tensors", 5, "before the rename", 2, "while old ones are removed"]
    statuses = run_killed(tmp_path, text, kills, **loss)
    assert statuses[0] == statuses[-1] == 0
    assert statuses[1:-1] == [signal.SIGKILL] * len(kills)
    check_same_run(tmp_path)


@pytest.mark.slow
def test_a_run_that_is_killed_twenty_times_ends_as_if_it_had_not_been(text, tmp_path):
    rng = random.Random(11)
    kills: list = [rng.randrange(2, 12) for _ in range(20)] + ["in the tensors", "before the rename"] * 2
    rng.shuffle(kills)
    settings = {"steps": 150, "eval_every": 15, "checkpoint_every": 5, "log_every": 7, "accumulation": 2}
    statuses = run_killed(tmp_path, text, kills, **settings)
    assert statuses[0] == statuses[-1] == 0
    assert statuses.count(signal.SIGKILL) >= 20
    check_same_run(tmp_path)


@pytest.mark.parametrize("damage", ["tensors", "values", "missing", "other"])
def test_an_incomplete_checkpoint_is_never_loaded(tmp_path, damage):
    kept = Snapshots(tmp_path)
    for step in (1, 2):
        kept.save(Snapshot(step, {"x": torch.full((100,), float(step))}, {"n": step}))
    assert (kept.newest(), kept.load(2).values, float(kept.load(2).tensors["x"][0])) == (2, {"n": 2}, 2.0)
    folder = tmp_path / "step-00000002"
    if damage == "tensors":
        content = bytearray((folder / "tensors.safetensors").read_bytes())
        content[-1] ^= 1
        (folder / "tensors.safetensors").write_bytes(content)
    elif damage == "values":
        (folder / "snapshot.json").write_text((folder / "snapshot.json").read_text().replace('"n": 2', '"n": 3'))
    elif damage == "missing":
        (folder / "tensors.safetensors").unlink()
    else:
        (folder / "snapshot.json").write_text("[]")
    assert kept.newest() == 1
    with pytest.raises(ValueError, match="incomplete or damaged"):
        kept.load(2)
    kept.save(Snapshot(2, {"x": torch.zeros(3)}, {}))  # training comes by again
    assert kept.newest() == 2


def test_a_run_whose_checkpoints_are_all_damaged_stops_and_starts_again_only_when_they_are_removed(
    text, tmp_path, caplog
):
    pretrain(**text, model=MODEL, out=tmp_path, **{**SETTINGS, "steps": 6})
    model, metrics = (tmp_path / "model.safetensors").read_bytes(), (tmp_path / "metrics.jsonl").read_bytes()
    for step in (3, 6):
        (tmp_path / "checkpoints" / f"step-{step:08d}" / "snapshot.json").write_text("{}")
    with pytest.raises(
        ValueError, match=r"step-00000006: .* damaged: .*; there is no other good .*checkpoints\. .*remove"
    ):
        pretrain(**text, model=MODEL, out=tmp_path, **SETTINGS)
    assert "is used" not in caplog.text
    assert (tmp_path / "model.safetensors").read_bytes() == model
    assert (tmp_path / "metrics.jsonl").read_bytes() == metrics
    shutil.rmtree(tmp_path / "checkpoints")
    assert pretrain(**text, model=MODEL, out=tmp_path, **SETTINGS).step == 12


def test_a_damaged_checkpoint_is_named_with_the_one_that_is_used(tmp_path, caplog):
    kept = Snapshots(tmp_path)
    for step in (1, 2):
        kept.save(Snapshot(step, {"x": torch.zeros(3)}, {}))
    (tmp_path / "step-00000002" / "snapshot.json").write_text("{}")
    (tmp_path / "step-backup").mkdir()  # not a checkpoint
    assert kept.newest() == 1
    assert "step-00000002: the checkpoint is incomplete or damaged" in caplog.text
    assert "the checkpoint of step 1 is used" in caplog.text


def test_no_checkpoint_is_no_error(tmp_path):
    assert Snapshots(tmp_path / "none").newest() is None


def test_a_full_disk_keeps_the_older_checkpoint_and_says_so(text, tmp_path):
    settings = {**SETTINGS, "steps": 6, "checkpoint_every": 3}
    pretrain(**text, model=MODEL, out=tmp_path, **{**settings, "steps": 3})
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = (tmp_path / "checkpoints" / "step-00000003" / "tensors.safetensors").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size - 100, limit[1]))  # the checkpoint does not fit, all else does
    try:
        with pytest.raises(
            OSError, match=r"could not be written .* that of step 3 is complete: free disk space and start again"
        ):
            pretrain(**text, model=MODEL, out=tmp_path, **settings)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert Snapshots(tmp_path / "checkpoints").newest() == 3
    assert not list((tmp_path / "checkpoints").glob(".*"))
    assert pretrain(**text, model=MODEL, out=tmp_path, **settings).step == 6


def test_a_full_disk_at_the_first_checkpoint_or_for_the_model_is_clear_too(text, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(snapshots, "save_file", full)
    with pytest.raises(OSError, match="there is no older one"):
        pretrain(**text, model=MODEL, out=tmp_path / "a", **SETTINGS)
    monkeypatch.setattr(loop.model_folder, "save", full)
    with pytest.raises(OSError, match="the model could not be written"):
        pretrain(**text, model=MODEL, out=tmp_path / "b", **{**SETTINGS, "checkpoint_every": 100})


def test_a_checkpoint_of_other_sizes_is_refused(corpus):
    learner, other = make_learner(corpus), make_learner(corpus, model=dataclasses.replace(MODEL, cell_dim=9))
    with pytest.raises(ValueError, match="here: values is"):
        learner.restore(other.tensors(), source="here")
    with pytest.raises(ValueError, match="here: squares is missing"):
        learner.restore({"values": learner.optimizer.flat.values}, source="here")


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_leaves_a_checkpoint_and_a_clear_line_and_the_run_resumes_later(text, tmp_path, caplog, name):
    def at_step_four(report: Progress) -> None:
        if report.step == 4:
            os.kill(os.getpid(), getattr(signal, name))

    before = signal.getsignal(getattr(signal, name))
    stopped = pretrain(**text, model=MODEL, out=tmp_path / "a", on_progress=at_step_four, **SETTINGS)
    assert (stopped.ended, stopped.step) == (name, 4)
    assert f"{name}: stopped after step 4 of 12" in caplog.text
    assert signal.getsignal(getattr(signal, name)) is before
    ended = pretrain(**text, model=MODEL, out=tmp_path / "a", **SETTINGS)
    pretrain(**text, model=MODEL, out=tmp_path / "b", **SETTINGS)
    assert ended.ended == "steps"
    for file in ("model.safetensors", "metrics.jsonl"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
