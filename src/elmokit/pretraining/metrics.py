"""Metrics of a run as files: metrics.jsonl, speed.jsonl and, where it is installed, TensorBoard events.

Input: numbers per step.  Output: one JSON line per step.  metrics.jsonl does not depend on the clock, and is truncated
when a run resumes from a checkpoint: a run that was killed has the same lines as one that was not.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

from elmokit.extras import require

logger = logging.getLogger(__name__)

METRICS_FILE, SPEED_FILE = "metrics.jsonl", "speed.jsonl"


def truncate(path: Path, size: int) -> None:
    """Truncate a file to `size` bytes: steps after the checkpoint are done again."""
    if path.exists() and path.stat().st_size > size:
        os.truncate(path, size)


class Metrics:
    """Writes metrics.jsonl, speed.jsonl and TensorBoard events.

    Args:
        out: The run's folder.
        tensorboard: Write TensorBoard events, if TensorBoard is installed.
    """

    def __init__(self, out: Path, tensorboard: bool) -> None:
        self._metrics = open(out / METRICS_FILE, "a", encoding="utf-8")  # noqa: SIM115 (closed by __exit__)
        self._speed = open(out / SPEED_FILE, "a", encoding="utf-8")  # noqa: SIM115
        self._board = _open_tensorboard(out / "tensorboard") if tensorboard else None

    def __enter__(self) -> Metrics:
        return self

    def __exit__(self, *_: object) -> None:
        self._metrics.close()
        self._speed.close()
        if self._board is not None:
            self._board.close()

    def write(self, step: int, values: dict[str, float]) -> None:
        """Add a line to metrics.jsonl."""
        self._metrics.write(json.dumps({"step": step, **values}) + "\n")
        self._metrics.flush()
        self._add_events(step, values)

    def write_speed(self, step: int, tokens_per_second: float) -> None:
        """Add a line to speed.jsonl."""
        self._speed.write(json.dumps({"step": step, "tokens_per_second": tokens_per_second}) + "\n")
        self._speed.flush()
        self._add_events(step, {"tokens_per_second": tokens_per_second})

    def sync(self) -> int:
        """Flush metrics.jsonl to disk and return its size in bytes."""
        self._metrics.flush()
        os.fsync(self._metrics.fileno())
        return os.fstat(self._metrics.fileno()).st_size

    def _add_events(self, step: int, values: dict[str, float]) -> None:
        if self._board is not None:
            for name, value in values.items():
                self._board.add_scalar(name, value, step)


def _open_tensorboard(folder: Path) -> Any:
    """A writer of events; None if TensorBoard is not installed."""
    try:
        require("tensorboard", extra="train")
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        logger.info("no TensorBoard events: %s; metrics.jsonl has all numbers", error)
        return None
    return SummaryWriter(str(folder))
