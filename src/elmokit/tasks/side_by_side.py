"""Trainings that run at the same time, each in a process of its own.

Input: the settings of trainings, and how many of them run at once. Output: their folders, as `train` writes them.

A small training waits for its own Python code, not for the GPU, so that several of them share one.
The process of a training is `python -m elmokit.tasks.side_by_side`, not a fork of this one: CUDA cannot be used in a
fork, and a script needs no `if __name__ == "__main__"`.

    standard input    one line of JSON, the settings; then nothing until it is closed, which stops the training. It is
                      closed when this process ends too, however that happens.
    standard output   lines of JSON: progress, log records, and the error if there is one
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import logging
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, TextIO

import torch

from elmokit.network import find_device
from elmokit.settings import from_mapping, to_mapping
from elmokit.tasks import PACKAGE_TASKS
from elmokit.tasks.settings import TaskConfig
from elmokit.tasks.task import check_requirements, find_task
from elmokit.tasks.trainer import RESULT_FILE, Progress, train

SECONDS_BETWEEN_REPORTS = 0.1  # of one training; the end of an epoch is always reported
TRAININGS_PER_GPU = 6  # processes take turns on a GPU: twenty at once hardly advanced
SECONDS_TO_STOP = 30.0  # then the process of a training is killed

_Messages = queue.SimpleQueue[tuple[int, dict[str, Any] | None]]
"""The number of a training and a line of its process; None when the process closed its output."""


def choose_jobs(config: TaskConfig, num_trainings: int, jobs: int | None) -> int:
    """Number of trainings to run at the same time.

    Args:
        config: The settings that the trainings share.
        num_trainings: Number of all trainings.
        jobs: What the user asked for. None: on a GPU six, and at most one per CPU core; 1 on a CPU, if the biLM is
            trained too (which keeps a GPU busy), and for a task that is not part of elmokit.

    Returns:
        At most one per training.

    Raises:
        ValueError: If there is no such task or device, or `jobs` is above 1 for a task that is not part of elmokit.
    """
    is_packaged = PACKAGE_TASKS.get(config.task) is find_task(config.task)
    if jobs is None:
        is_small = find_device(config.device).type == "cuda" and not config.tune
        jobs = min(_num_cores(), TRAININGS_PER_GPU) if is_small and is_packaged else 1
    elif jobs > 1 and not is_packaged:
        raise ValueError(
            f"jobs is {jobs}, but the task {config.task!r} is not part of elmokit, and another process does not know "
            "it: pass jobs=1"
        )
    return min(jobs, num_trainings)


def _num_cores() -> int:
    """Number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def train_side_by_side(
    configs: Sequence[TaskConfig], jobs: int, on_progress: Callable[[int, Progress], None] | None = None
) -> None:
    """Train several tasks at the same time, each in a process with one CPU thread.

    Finished runs are left as they are, and stopped ones resume. If a training fails, or this process is interrupted,
    the other trainings are stopped.

    Args:
        configs: The settings of the trainings, which begin in this order.
        jobs: Largest number of trainings that run at the same time.
        on_progress: Called in this thread with the number of a training and its progress, at most ten times per second
            and training.

    Raises:
        Exception: The error of the first training that failed, of the same type.
        RuntimeError: If the process of a training was killed. The message names the training and the signal.
    """
    for config in configs:
        check_requirements(find_task(config.task))
        find_device(config.device)
        if _is_finished(config):
            train(config)  # an error if it is a run with other settings
    waiting = deque(number for number, config in enumerate(configs) if not _is_finished(config))
    running: dict[int, _Worker] = {}
    messages: _Messages = queue.SimpleQueue()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                number = waiting.popleft()
                running[number] = _Worker(number, configs[number], messages)
            number, message = messages.get()
            if message is None:
                running.pop(number).finish(jobs)
            elif "error" in message:
                running[number].error = message
            elif "log" in message:
                logging.getLogger(message["log"]).log(message["level"], "%s", message["text"])
            elif on_progress is not None:
                on_progress(number, Progress(**message["progress"]))
    finally:
        _stop(running.values())


def _is_finished(config: TaskConfig) -> bool:
    return (Path(config.out) / RESULT_FILE).is_file()


class _Worker:
    """The process of one training, and a thread that reads what it writes.

    Args:
        number: The number of the training.
        config: Its settings.
        messages: Where the lines of the process go.
    """

    def __init__(self, number: int, config: TaskConfig, messages: _Messages) -> None:
        self.config = config
        self.error: dict[str, Any] | None = None
        path = os.pathsep.join(folder or os.getcwd() for folder in sys.path)
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "elmokit.tasks.side_by_side"],  # -P: a file here may be named as a module
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,  # Ctrl-C reaches this process only, which stops the others
            text=True,
            encoding="utf-8",
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._input, self._output = self.process.stdin, self.process.stdout
        self._thread = threading.Thread(target=self._read, args=(number, messages), daemon=True)
        self._thread.start()
        request = {"config": to_mapping(config), "log_level": logging.getLogger("elmokit").getEffectiveLevel()}
        with contextlib.suppress(OSError):  # it has ended already, and `finish` tells why
            self._input.write(json.dumps(request) + "\n")
            self._input.flush()

    def _read(self, number: int, messages: _Messages) -> None:
        """Pass on the lines of the process until it ends."""
        for line in self._output:
            if line.endswith("\n"):  # else it was killed while it wrote this line
                messages.put((number, json.loads(line)))
        messages.put((number, None))

    def finish(self, jobs: int) -> None:
        """Wait for the end of the process, and raise its error if there is one."""
        status = self.process.wait()
        self.close()
        if self.error is not None:
            raise _read_error(self.error, self.config, jobs)
        if status == 0:
            return
        training = f"{self.config.out}: the process of this training"
        if status < 0:
            name = _signal_name(-status)
            hint = " If there is too little memory, pass a smaller jobs." if name == "SIGKILL" else ""
            raise RuntimeError(f"{training} was killed by {name}. The same call resumes it.{hint}")
        raise RuntimeError(f"{training} ended with exit status {status}. The same call resumes it.")

    def ask_to_stop(self) -> None:
        """Close the input of the process, which then stops."""
        with contextlib.suppress(OSError):
            self._input.close()

    def close(self) -> None:
        """Close both pipes, after the end of the process."""
        self.ask_to_stop()
        self._thread.join()
        self._output.close()


def _stop(workers: Collection[_Worker]) -> None:
    """Stop processes; those that do not stop by themselves are killed."""
    for worker in workers:
        worker.ask_to_stop()
    limit = time.monotonic() + SECONDS_TO_STOP
    try:
        for worker in workers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.process.wait(max(0.0, limit - time.monotonic()))
    finally:  # also after a second Ctrl-C
        for worker in workers:
            worker.process.kill()
            worker.process.wait()
            worker.close()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _read_error(message: dict[str, Any], config: TaskConfig, jobs: int) -> Exception:
    """The exception of a training, with a note that has its traceback."""
    error: Exception = pickle.loads(base64.b64decode(message["error"]))
    if isinstance(error, MemoryError) or "out of memory" in str(error).lower():
        error.args = (f"{config.out}: {error} Up to {jobs} trainings run at the same time: pass a smaller jobs.",)
    error.add_note(f"In the process of the training {config.out}:\n{message['traceback']}")
    return error


# ---- the process of a training ---------------------------------------------------------------------------------------


class _Channel:
    """Writes lines of JSON to the process that started this one.

    Args:
        file: The pipe to it.
    """

    def __init__(self, file: TextIO) -> None:
        self._file, self._lock = file, threading.Lock()

    def send(self, message: dict[str, Any]) -> None:
        """Write a line."""
        with self._lock, contextlib.suppress(BrokenPipeError):  # it has ended, and `_stop_at_end_of_input` stops us
            self._file.write(json.dumps(message) + "\n")
            self._file.flush()


class _LogHandler(logging.Handler):
    """Sends log records to the process that started this one, which logs them.

    Args:
        channel: The way there.
    """

    def __init__(self, channel: _Channel) -> None:
        super().__init__()
        self._channel = channel

    def emit(self, record: logging.LogRecord) -> None:
        self._channel.send({"log": record.name, "level": record.levelno, "text": self.format(record)})


def main() -> int:
    """Train with the settings of standard input, and return the exit status."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background jobs with SIGINT ignored
    channel = _Channel(os.fdopen(os.dup(1), "w", encoding="utf-8"))
    os.dup2(2, 1)  # what a library prints is not part of the messages
    try:
        line = sys.stdin.buffer.readline()
        if not line.endswith(b"\n"):  # the other process ended before it had written the settings
            return 1
        threading.Thread(target=_stop_at_end_of_input, daemon=True).start()
        _train(json.loads(line), channel)
        return 0
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        channel.send({"error": _pickle_error(error), "traceback": traceback.format_exc()})
        return 1


def _train(request: dict[str, Any], channel: _Channel) -> None:
    torch.set_num_threads(1)  # the other cores have trainings of their own
    logger = logging.getLogger("elmokit")
    logger.setLevel(request["log_level"])
    logger.addHandler(_LogHandler(channel))
    logger.propagate = False
    next_report = 0.0

    def report(progress: Progress) -> None:
        nonlocal next_report
        now = time.monotonic()
        if now >= next_report or progress.done == progress.total:
            next_report = now + SECONDS_BETWEEN_REPORTS
            channel.send({"progress": dataclasses.asdict(progress)})

    config = from_mapping(TaskConfig, request["config"], source="the settings of the training")
    train(config, on_progress=report)


def _stop_at_end_of_input() -> None:
    """Interrupt the training when the other process closes the pipe or ends."""
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(SECONDS_TO_STOP)
    os._exit(1)


def _pickle_error(error: Exception) -> str:
    """The exception as text, as a RuntimeError if it cannot be pickled."""
    try:
        content = pickle.dumps(error)
        pickle.loads(content)
    except Exception:  # the exception of a library may fail at anything
        content = pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
    return base64.b64encode(content).decode("ascii")


if __name__ == "__main__":
    sys.exit(main())
