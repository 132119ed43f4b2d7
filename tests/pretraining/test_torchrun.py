"""Several processes and GPUs: two processes take the steps of one, also when one of them is killed."""

import contextlib
import dataclasses
import json
import os
import socket
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from tiny_runs import MODEL, SAMPLED, SETTINGS, SOURCE, config, lines, rates

from elmokit.corpus import Streams
from elmokit.pretraining import (
    Progress,
    loop,
    pretrain,
)
from elmokit.pretraining.batches import BatchMaker, Loader
from elmokit.pretraining.processes import Processes
from elmokit.pretraining.step import LanguageModel, Learner

WORKER = """
    import json, os, signal, sys
    import torch

    torch.set_num_threads(1)
    from pathlib import Path
    from elmokit.config import BiLMConfig
    from elmokit.pretraining import pretrain
    from elmokit.pretraining.step import Learner

    job = json.loads(sys.argv[1])
    mark, step = Path(job["mark"]), Learner.step

    def killed(self, given, rates):
        if rates.step == 8 and os.environ["RANK"] == "1" and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        step(self, given, rates)

    Learner.step = killed
    job["model"]["filters"] = tuple(map(tuple, job["model"]["filters"]))
    pretrain(model=BiLMConfig(**job["model"]), **job["settings"])
"""


@pytest.mark.parametrize("loss", [{"ema_decay": None}, {**SAMPLED, "accumulation": 2}], ids=["full", "sampled"])
def test_two_processes_are_as_one_also_when_one_is_killed_and_torchrun_starts_them_again(text, tmp_path, loss):
    settings = {**SETTINGS, **loss, "dropout": 0.0, **text}
    pretrain(model=MODEL, out=tmp_path / "one", **settings)
    script = tmp_path / "worker.py"
    script.write_text(textwrap.dedent(WORKER))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    job = {"model": dataclasses.asdict(MODEL), "mark": str(tmp_path / "mark")}
    job["settings"] = {**settings, "out": str(tmp_path / "two")}
    done = subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--max-restarts=1",
            "--monitor-interval=0.1", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}",
            "--local-addr=127.0.0.1", str(script), json.dumps(job),
        ],
        capture_output=True, text=True, timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE), "GLOO_SOCKET_IFNAME": "lo"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "mark").exists()
    one, two = (lines(tmp_path / which / "metrics.jsonl") for which in ("one", "two"))
    assert len(one) == len(two) == 6 + 3
    for expected, found in zip(one, two, strict=True):
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-5)


SECOND = """
    import json, sys
    import torch

    torch.set_num_threads(1)
    from elmokit.config import BiLMConfig
    from elmokit.pretraining import pretrain

    job = json.loads(sys.argv[1])
    job["model"]["filters"] = tuple(map(tuple, job["model"]["filters"]))
    print(pretrain(model=BiLMConfig(**job["model"]), **job["settings"]).ended)
"""


@pytest.mark.parametrize("loss", [{}, SAMPLED], ids=["full", "sampled"])
def test_a_signal_to_one_process_stops_all_and_any_number_of_processes_resumes(text, tmp_path, monkeypatch, loss):
    settings = {**SETTINGS, **loss, "dropout": 0.0, **text}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    group = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    group |= {"GLOO_SOCKET_IFNAME": "lo"}
    job = {"model": dataclasses.asdict(MODEL), "settings": {**settings, "out": str(tmp_path / "two")}}
    second = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SECOND), json.dumps(job)],
        env={**os.environ, **group, "RANK": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    for name, value in {**group, "RANK": "0"}.items():
        monkeypatch.setenv(name, value)

    def at_step_four(report: Progress) -> None:
        if report.step == 4:
            second.terminate()

    result = pretrain(model=MODEL, out=tmp_path / "two", on_progress=at_step_four, **settings)
    output, errors = second.communicate(timeout=120)
    assert (result.ended, output.strip()) == ("SIGTERM", "SIGTERM"), errors
    assert 4 <= result.step < 12
    for name in [*group, "RANK"]:
        monkeypatch.delenv(name)
    assert pretrain(model=MODEL, out=tmp_path / "two", **settings).step == 12
    pretrain(model=MODEL, out=tmp_path / "one", **settings)
    one, two = (lines(tmp_path / which / "metrics.jsonl") for which in ("one", "two"))
    for expected, found in zip(one, two, strict=True):
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_rows_that_processes_cannot_share_are_refused(text, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "join_processes", lambda device: contextlib.nullcontext(Processes(0, 3)))
    with pytest.raises(ValueError, match="batch_size is 4, which 3 processes cannot share evenly"):
        pretrain(**text, model=MODEL, out=tmp_path, **SETTINGS)


@pytest.mark.gpu
@pytest.mark.parametrize("loss", [{"ema_decay": 0.9}, {**SAMPLED, "accumulation": 2}], ids=["full", "sampled"])
def test_a_gpu_takes_the_same_steps_recorded_or_not_and_as_the_cpu_takes_them(corpus, loss, caplog):
    model = dataclasses.replace(MODEL, cell_dim=64, projection_dim=32)
    settings = {**SETTINGS, "dropout": 0.0, **loss}

    def losses(device: str, *, recorded: bool) -> list[list[float]]:
        torch.manual_seed(0)
        made = LanguageModel(model, int(corpus.form_targets.max()) + 1)
        learner = Learner(made, config(**settings), Processes(device=torch.device(device)))
        if learner._recorder is not None:
            learner._recorder._works = recorded
        streams = Streams(corpus, batch_size=4, unroll=5, seed=1)
        maker = BatchMaker(corpus, model, static_shapes=device == "cuda")
        loader = Loader(streams, maker, accumulation=learner.config.accumulation, pin=device == "cuda")
        found = []
        for number, batches in zip(range(1, 11), loader, strict=False):
            learner.step(batches, rates(number, learning_rate=0.01, output_learning_rate=0.01))
            learner.finish()
            found.append(learner.loss_sums.tolist())
        loader.close()
        return found

    recorded = losses("cuda", recorded=True)
    assert "cannot be recorded" not in caplog.text
    np.testing.assert_allclose(recorded, losses("cuda", recorded=False), rtol=1e-4)
    if settings["loss"] == "full":  # a GPU draws other negatives
        np.testing.assert_allclose(recorded, losses("cpu", recorded=False), rtol=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("loss", "steps"), [({}, 40), ({**SAMPLED, "learning_rate": 0.5}, 300)], ids=["full", "sampled"]
)
def test_a_gpu_learns_in_bfloat16_and_resumes_after_a_stop(text, tmp_path, loss, steps):
    model = dataclasses.replace(MODEL, cell_dim=64, projection_dim=32)
    settings = {**SETTINGS, **loss, "device": "cuda", "precision": "bfloat16", "batch_size": 16, "steps": steps}
    settings |= {"eval_every": steps // 4}
    first = pretrain(**text, model=model, out=tmp_path, **settings)
    second = pretrain(**text, model=model, out=tmp_path, **{**settings, "steps": 2 * steps})
    assert second.best.both < first.best.both < first.unigram
