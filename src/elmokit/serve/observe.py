"""Metrics, and a log of one JSON object per line. Neither contains texts of users.

Input: requests, batches and log records.  Output: Prometheus text, lines on standard error.
"""

from __future__ import annotations

import logging
import os
import platform
import re
import sys
import traceback
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import orjson
import torch
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, ProcessCollector, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from elmokit import __version__
from elmokit.serve.batching import BatchReport
from elmokit.serve.settings import METRICS_VARIABLE

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
TOKENS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 16384, 65536)


class Metrics:
    """Metrics of one server. Those of several workers are summed."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "elmokit_requests", "Number of answered requests.", ["route", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "elmokit_request_seconds",
            "Seconds from the first byte of a request to the last byte of its response.",
            ["route"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self.in_flight = Gauge(
            "elmokit_requests_in_flight",
            "Number of requests that are read or answered now.",
            registry=self.registry,
            multiprocess_mode="livesum",
        )
        self.queue_tokens = Gauge(
            "elmokit_queue_tokens",
            "Number of tokens of admitted requests that are not answered.",
            registry=self.registry,
            multiprocess_mode="livesum",
        )
        self.tokens = Counter(
            "elmokit_tokens", "Number of tokens that the model read.", ["lane"], registry=self.registry
        )
        self.batch_tokens = Histogram(
            "elmokit_batch_tokens", "Number of tokens per batch.", buckets=TOKENS, registry=self.registry
        )
        self.batch_pieces = Histogram(
            "elmokit_batch_sentences", "Number of sentences per batch.", buckets=TOKENS, registry=self.registry
        )
        self.model_seconds = Histogram(
            "elmokit_model_seconds", "Seconds per batch.", buckets=SECONDS, registry=self.registry
        )
        self.queue_seconds = Histogram(
            "elmokit_queue_seconds",
            "Seconds that the first sentence of a batch waited.",
            buckets=SECONDS,
            registry=self.registry,
        )

        build = Gauge(
            "elmokit_build_info",
            "Versions of the program; the value is 1.",
            ["version", "python", "torch"],
            registry=self.registry,
            multiprocess_mode="max",
        )
        build.labels(__version__, platform.python_version(), torch.__version__).set(1)

    def record_batch(self, report: BatchReport) -> None:
        """Count a batch.

        Args:
            report: Its measurements.
        """
        self.tokens.labels(report.lane).inc(report.num_tokens)
        self.batch_tokens.observe(report.num_tokens)
        self.batch_pieces.observe(report.num_pieces)
        self.model_seconds.observe(report.seconds)
        self.queue_seconds.observe(report.queue_seconds)

    def text(self) -> bytes:
        """The metrics in the text format of Prometheus; with several workers, those of all workers."""
        registry, processes = self.registry, [os.getpid()]
        if folder := os.environ.get(METRICS_VARIABLE):
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
            files = (re.fullmatch(r"gauge_livesum_(\d+)\.db", path.name) for path in Path(folder).iterdir())
            processes = [int(file[1]) for file in files if file is not None]
        own = CollectorRegistry()
        own.register(_Processes(processes))
        return generate_latest(registry) + generate_latest(own)


class _Processes(Collector):
    """The metrics `process_…` of Prometheus for all workers: sums, and the first start.

    Args:
        processes: Their ids.
    """

    def __init__(self, processes: list[int]) -> None:
        self.processes = processes

    def collect(self) -> Iterable[Metric]:
        """Metrics of the processes that are alive. There are none on a system without /proc."""
        metrics: dict[str, Metric] = {}
        for process in self.processes:
            for metric in ProcessCollector(pid=partial(int, process), registry=None).collect():
                known = metrics.setdefault(metric.name, metric)
                if known is not metric:
                    join = min if metric.name in ("process_start_time_seconds", "process_max_fds") else sum
                    value = join((known.samples[0].value, metric.samples[0].value))
                    known.samples[0] = known.samples[0]._replace(value=value)
        return metrics.values()


class JSONLines(logging.Formatter):
    """Formats a log record as one JSON object: time, level, message, and the fields in `extra={"fields": …}`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line. Of an exception it has the type and the stack, not the message, which may quote a request."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "process": record.process,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info and record.exc_info[0] is not None:
            frames = traceback.extract_tb(record.exc_info[2])
            line["exception"] = record.exc_info[0].__name__
            line["at"] = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
        return orjson.dumps(line, default=str).decode()


def log_as_json(level: int = logging.INFO) -> None:
    """Write the log of elmokit and of uvicorn to standard error, one JSON object per line.

    Args:
        level: Level of elmokit's log. That of uvicorn is WARNING.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JSONLines())
    for name, logger_level in (("elmokit", level), ("uvicorn", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logger_level)
