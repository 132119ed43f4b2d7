"""Checkpoints of a run: what was saved comes back, two are kept, and a failed write leaves the older ones."""

import hashlib
import json

import pytest
import torch

from elmokit.storage import snapshots
from elmokit.storage.snapshots import Snapshot, Snapshots


def snapshot(step: int) -> Snapshot:
    return Snapshot(step, {"x": torch.full((3, 2), float(step)).t()}, {"n": step, "deep": {"list": [1, None, "a"]}})


def test_a_checkpoint_comes_back_as_it_was_saved(tmp_path):
    kept = Snapshots(tmp_path / "new")
    kept.save(snapshot(7))
    loaded = kept.load(7)
    assert (loaded.step, loaded.values) == (7, snapshot(7).values)
    assert torch.equal(loaded.tensors["x"], snapshot(7).tensors["x"])


def test_a_checkpoint_names_the_checksums_of_its_files(tmp_path):
    Snapshots(tmp_path).save(snapshot(7))
    folder = tmp_path / "step-00000007"
    about = json.loads((folder / "snapshot.json").read_bytes())
    assert about["tensors_sha256"] == hashlib.sha256((folder / "tensors.safetensors").read_bytes()).hexdigest()
    rest = {key: value for key, value in about.items() if key != "sha256"}
    assert about["sha256"] == hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def test_the_last_two_checkpoints_are_kept(tmp_path):
    kept = Snapshots(tmp_path)
    for step in (3, 10, 20, 100):
        kept.save(snapshot(step))
    assert kept.steps() == [20, 100]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000020", "step-00000100"]


def test_a_checkpoint_that_cannot_be_written_leaves_the_older_ones_and_names_the_last(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    kept = Snapshots(tmp_path)
    kept.save(snapshot(1))
    monkeypatch.setattr(snapshots, "save_file", full)
    with pytest.raises(OSError, match=r"step-00000002: .*No space left.* that of step 1 is complete: free disk space"):
        kept.save(snapshot(2))
    assert (kept.steps(), kept.newest()) == ([1], 1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


def test_what_a_killed_run_left_is_not_a_checkpoint_and_is_replaced(tmp_path):
    (tmp_path / ".step-00000005.tmp").mkdir(parents=True)
    (tmp_path / ".step-00000005.tmp" / "tensors.safetensors").write_bytes(b"half a file")
    kept = Snapshots(tmp_path)
    assert kept.newest() is None
    kept.save(snapshot(5))
    assert kept.load(5).values == snapshot(5).values
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000005"]
