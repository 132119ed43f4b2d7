"""Trainings at the same time: the same folders as one after the other, and no process outlives a failure or a stop."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from task_examples import SENTENCES
from test_trainer import assert_same_run

from elmokit import ELMo, files
from elmokit.tasks import TASKS, side_by_side, train
from elmokit.tasks.compare import compare, compare_shares
from elmokit.tasks.side_by_side import choose_jobs
from elmokit.tasks.vectors import FrozenLayers

posix_only = pytest.mark.skipif(files.fcntl is None, reason="there are no signals and file locks here")


def paths_in(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def without_seconds(path: Path) -> object:
    values = json.loads(path.read_text())
    for variant in values["variants"]:
        del variant["seconds"]
    return values


def process_of(run: Path) -> int:
    """The process that trains in a folder."""
    return json.loads((run / ".lock").read_text())["pid"]


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return (
        Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z" if Path("/proc").is_dir() else True
    )


def wait_until(condition, seconds: float = 60) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.02)


@pytest.fixture
def started(monkeypatch):
    """The processes that were started."""
    processes = []

    class Recorded(subprocess.Popen):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            processes.append(self)

    monkeypatch.setattr(side_by_side.subprocess, "Popen", Recorded)
    return processes


def test_trainings_at_the_same_time_write_what_they_write_one_after_the_other(small, tmp_path, started):
    settings = {"dropout": 0.3, "elmo_dropout": 0.3, "epochs": 2}
    one, two = (
        small(out=str(tmp_path / name), cache=str(tmp_path / f"cache of {name}"), **settings) for name in ("one", "two")
    )
    expected = compare(one, seeds=[1], jobs=1)
    assert started == []
    reports, threads = {}, set()

    def report(elmo_at, seed, progress):
        reports.setdefault((elmo_at, seed), []).append(progress)
        threads.add(threading.current_thread())

    comparison = compare(two, seeds=[1], jobs=2, on_progress=report)
    assert [process.returncode for process in started] == [0, 0, 0]
    assert paths_in(tmp_path / "one") == paths_in(tmp_path / "two")
    for elmo_at in ("none", "input", "both"):
        assert_same_run(*(str(tmp_path / name / f"{elmo_at}-1") for name in ("one", "two")))
    assert without_seconds(tmp_path / "one" / "compare.json") == without_seconds(tmp_path / "two" / "compare.json")
    assert [variant.scores for variant in comparison.variants] == [variant.scores for variant in expected.variants]

    assert threads == {threading.current_thread()}
    assert reports.keys() == {("none", 1), ("input", 1), ("both", 1)}
    for progresses in reports.values():
        ends = [progress for progress in progresses if progress.scores is not None]
        assert [progress.epoch for progress in ends] == [1, 2]
        assert all(progress.done == progress.total for progress in ends)
    computed = [key for key, progresses in reports.items() if any(one.stage == "vectors" for one in progresses)]
    assert len(computed) == 1  # the other training waited for its vectors, or found them

    again = compare(two, seeds=[1], jobs=2, on_progress=lambda *_: pytest.fail("it trained again"))
    assert again == comparison
    assert len(started) == 3


@pytest.mark.slow
def test_trainings_of_several_shares_run_at_the_same_time(small, tmp_path, started):
    config = small(elmo_at="none", epochs=1)
    seen = set()
    found = compare_shares(
        config, [1, 0.5], seeds=[3], variants=["none"], jobs=5, on_progress=lambda *key: seen.add(key[:3])
    )
    assert [process.returncode for process in started] == [0, 0]
    assert seen == {(0.5, "none", 3), (1, "none", 3)}
    assert list(found) == [0.5, 1]
    for share, folder in ((0.5, "run/share-0.5/none-3"), (1.0, "run/none-3")):
        assert json.loads((tmp_path / folder / "run.json").read_text())["share"] == share
    assert (tmp_path / "run" / "share-0.5" / "compare.json").is_file()


def test_a_training_that_fails_stops_the_others_and_its_error_is_raised(small, tmp_path, started):
    config = small(epochs=10**6, patience=10**6)
    runs = {seed: tmp_path / "run" / f"none-{seed}" for seed in (1, 2, 3)}
    result = dataclasses.asdict(train(small(out=str(tmp_path / "short"), elmo_at="none", epochs=1)))
    for seed in (1, 2):
        runs[seed].mkdir(parents=True)
    (runs[1] / "result.json").write_text(json.dumps(result))
    (runs[2] / "run.json").mkdir()
    with pytest.raises(ValueError, match=r"run/none-2/run\.json: this is not a regular file") as caught:
        compare(config, seeds=[1, 2, 3], variants=["none"], jobs=2)
    assert "Traceback" in caught.value.__notes__[0]
    assert len(started) == 2  # the first one is finished
    assert all(process.returncode for process in started)
    assert json.loads((runs[1] / "result.json").read_text()) == result
    assert not (runs[3] / ".lock").exists()
    assert not (tmp_path / "run" / "compare.json").exists()


def test_an_error_of_a_progress_function_stops_the_trainings(small, started):
    def fail(*_):
        raise LookupError("no more")

    with pytest.raises(LookupError, match="no more"):
        compare(small(epochs=10**6, patience=10**6), seeds=[1, 2], variants=["none"], jobs=2, on_progress=fail)
    assert all(process.returncode for process in started)


class UnpicklableError(Exception):
    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("wrong"), ValueError("wrong")),
        (ImportError("pip install it"), ImportError("pip install it")),
        (RuntimeError("bad kernel"), RuntimeError("bad kernel")),
        (FileNotFoundError(2, "No such file", "a.txt"), FileNotFoundError(2, "No such file", "a.txt")),
        (UnpicklableError("this", "that"), RuntimeError("UnpicklableError: this and that")),
        (
            torch.OutOfMemoryError("CUDA out of memory."),
            torch.OutOfMemoryError(
                "out: CUDA out of memory. Up to 4 trainings run at the same time: pass a smaller jobs."
            ),
        ),
    ],
)
def test_an_error_has_the_same_type_and_message_in_the_other_process(error, expected, small):
    message = {"error": side_by_side._pickle_error(error), "traceback": "Traceback"}
    received = side_by_side._read_error(json.loads(json.dumps(message)), small(out="out"), 4)
    assert type(received) is type(expected)
    assert (received.args, str(received)) == (expected.args, str(expected))


@pytest.mark.slow
@posix_only
def test_a_training_that_is_killed_is_named_with_its_signal_and_resumes(small, tmp_path, started, caplog):
    settings = {"dropout": 0.3, "epochs": 25, "patience": 25}
    config, whole = (small(out=str(tmp_path / name), **settings) for name in ("run", "whole"))

    def kill(elmo_at, seed, progress):
        if (elmo_at, progress.stage, seed) == ("none", "epoch", 2) and progress.epoch > 1:
            os.kill(process_of(tmp_path / "run" / "none-2"), signal.SIGKILL)

    message = (
        r"run/none-2: the process of this training was killed by SIGKILL\. The same call resumes it\. .*smaller jobs"
    )
    with pytest.raises(RuntimeError, match=message):
        compare(config, seeds=[1, 2], variants=["none"], jobs=2, on_progress=kill)
    assert sorted(process.returncode for process in started)[0] == -signal.SIGKILL
    assert all(process.returncode is not None for process in started)
    with caplog.at_level("INFO", "elmokit"):
        compare(config, seeds=[1, 2], variants=["none"], jobs=2)
    assert "run/none-2: resumes after epoch" in caplog.text  # what the process logs is logged here
    compare(whole, seeds=[1, 2], variants=["none"], jobs=1)
    for seed in (1, 2):
        assert_same_run(str(tmp_path / "run" / f"none-{seed}"), str(tmp_path / "whole" / f"none-{seed}"))


@posix_only
@pytest.mark.parametrize(
    "number", [signal.SIGINT, *(pytest.param(one, marks=pytest.mark.slow) for one in (signal.SIGTERM, signal.SIGKILL))]
)
def test_trainings_stop_with_the_process_that_started_them_and_resume(small, tmp_path, number):
    settings = {"dropout": 0.3, "epochs": 30, "patience": 30, "elmo_at": "none"}
    config, whole = small(**settings), small(out=str(tmp_path / "whole"), seed=2, **settings)
    script = tmp_path / "script.py"
    script.write_text(  # it has no `if __name__ == "__main__"`
        "import json, signal, sys\nfrom elmokit.tasks import TaskConfig\nfrom elmokit.tasks.compare import compare\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # ignored if the tests run as a background job
        "compare(TaskConfig(**json.loads(sys.argv[1])), seeds=[1, 2], variants=['none'], jobs=2,\n"
        "        on_progress=lambda at, seed, progress: print(seed, progress.epoch, flush=True))\n"
    )
    command = [sys.executable, str(script), json.dumps(dataclasses.asdict(config))]
    runs = [tmp_path / "run" / f"none-{seed}" for seed in (1, 2)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as parent:
        started = set()
        for line in parent.stdout:
            seed, epoch = map(int, line.split())
            started |= {seed} if epoch > 1 else set()
            if started == {1, 2}:
                break
        processes = [process_of(run) for run in runs if (run / ".lock").is_file()]
        parent.send_signal(number)
        shown = parent.stderr.read()
        assert parent.wait(60) == -number
    assert processes
    wait_until(lambda: not any(map(is_running, processes)))
    assert shown.count("Traceback") == (number == signal.SIGINT)  # that of the script; those of the trainings are none
    assert not any((run / ".lock").exists() for run in runs)
    train(dataclasses.replace(whole, out=str(runs[1])))
    train(whole)
    assert_same_run(str(runs[1]), whole.out)


@posix_only
def test_a_process_that_dies_while_it_computes_vectors_does_not_block_the_others(tiny_elmo, tmp_path):
    tokens = [sentence.split() for sentence in SENTENCES]
    program = (
        "import sys, time, torch\nfrom pathlib import Path\n"
        "from elmokit import ELMo\nfrom elmokit.tasks import vectors\n"
        "torch.set_num_threads(1)\nvectors.SENTENCES_AT_ONCE = 4\n"
        "def stop(done, total):\n    print(done, flush=True)\n    time.sleep(600)\n"
        "elmo = ELMo.from_pretrained(sys.argv[1], num_mixes=0)\n"
        "vectors.FrozenLayers(elmo, Path(sys.argv[2])).prepare([line.split() for line in sys.argv[3:]], stop)\n"
    )
    layers = FrozenLayers(ELMo.from_pretrained(tiny_elmo, num_mixes=0), tmp_path / "vectors")
    command = [sys.executable, "-c", program, tiny_elmo, str(layers.folder), *SENTENCES]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "4\n"
        waiting = threading.Thread(target=layers.prepare, args=(tokens,))
        waiting.start()
        waiting.join(0.3)
        assert waiting.is_alive()  # it waits for the vectors of the other process
        other.kill()
        waiting.join(60)
        assert not waiting.is_alive()
    whole = FrozenLayers(layers.elmo, tmp_path / "whole")
    whole.prepare(tokens)
    torch.testing.assert_close(layers.tokens(tokens), whole.tokens(tokens), atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("wrong", [0, -1, True, "2", 1.5, [2], float("nan")])
def test_a_wrong_number_of_jobs_is_refused_before_anything_trains(small, wrong):
    config = small()
    with pytest.raises(ValueError, match="jobs must be "):
        compare(config, jobs=wrong)
    with pytest.raises(ValueError, match="jobs must be "):
        compare_shares(config, [0.5, 1], jobs=wrong)
    assert not Path(config.out).exists()


def test_by_default_a_gpu_trains_six_and_at_most_one_per_core_and_a_cpu_one(small, monkeypatch):
    monkeypatch.setattr(side_by_side, "_num_cores", lambda: 4)
    assert choose_jobs(small(), 9, None) == 1
    assert choose_jobs(small(), 9, 4) == 4
    assert choose_jobs(small(), 3, 4) == 3
    monkeypatch.setattr(side_by_side, "find_device", lambda name: torch.device("cuda"))
    assert choose_jobs(small(), 9, None) == 4
    monkeypatch.setattr(side_by_side, "_num_cores", lambda: 16)
    assert choose_jobs(small(), 9, None) == 6
    assert choose_jobs(small(), 9, 9) == 9
    assert choose_jobs(small(), 3, None) == 3
    assert choose_jobs(small(tune=True), 9, None) == 1
    assert choose_jobs(small(tune=True), 9, 2) == 2


def test_a_task_of_a_script_trains_in_its_process(small, monkeypatch):
    monkeypatch.setitem(TASKS, "mine", TASKS["ner"])
    monkeypatch.setattr(side_by_side, "find_device", lambda name: torch.device("cuda"))
    config = dataclasses.replace(small(), task="mine")
    assert choose_jobs(config, 9, None) == 1
    with pytest.raises(ValueError, match=r"the task 'mine' is not part of elmokit.*pass jobs=1"):
        compare(config, jobs=2)
