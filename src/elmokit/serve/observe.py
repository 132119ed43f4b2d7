"""What a server says of itself: metrics, and a log of one JSON object a line.  Neither ever holds a user's text.

Enters: requests that ended, batches that ran, log records.  Leaves: Prometheus text, lines on standard error.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from datetime import UTC, datetime

import orjson
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from elmokit.serve.batching import BatchReport
from elmokit.serve.settings import METRICS_VARIABLE

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
TOKENS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 16384, 65536)


class Metrics:
    """Counters of one server; those of several workers are added up."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "elmokit_requests", "Requests that were answered.", ["route", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "elmokit_request_seconds",
            "From a request's first byte to its answer's last.",
            ["route"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self.in_flight = Gauge(
            "elmokit_requests_in_flight",
            "Requests that are being read or answered.",
            registry=self.registry,
            multiprocess_mode="livesum",
        )
        self.queue_tokens = Gauge(
            "elmokit_queue_tokens",
            "Tokens of requests that were let in and are not answered.",
            registry=self.registry,
            multiprocess_mode="livesum",
        )
        self.tokens = Counter("elmokit_tokens", "Tokens that the model read.", ["lane"], registry=self.registry)
        self.batch_tokens = Histogram(
            "elmokit_batch_tokens", "Tokens of a batch.", buckets=TOKENS, registry=self.registry
        )
        self.batch_pieces = Histogram(
            "elmokit_batch_sentences", "Sentences of a batch.", buckets=TOKENS, registry=self.registry
        )
        self.model_seconds = Histogram(
            "elmokit_model_seconds", "Seconds that a batch took.", buckets=SECONDS, registry=self.registry
        )
        self.waited = Histogram(
            "elmokit_queue_seconds",
            "Seconds that a sentence waited.",
            buckets=SECONDS,
            registry=self.registry,
        )

    def batch(self, report: BatchReport) -> None:
        """Count a batch."""
        self.tokens.labels(report.lane).inc(report.num_tokens)
        self.batch_tokens.observe(report.num_tokens)
        self.batch_pieces.observe(report.num_pieces)
        self.model_seconds.observe(report.seconds)
        self.waited.observe(report.waited)

    def text(self) -> bytes:
        """What Prometheus reads."""
        registry = self.registry
        if METRICS_VARIABLE in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry)


class JSONLines(logging.Formatter):
    """A record as one JSON object: time, level, message, and the fields that came as `extra={"fields": …}`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line; an exception gives its type and its places, and not its message, which may quote a request."""
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
    """Send the log of elmokit and of uvicorn to standard error as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JSONLines())
    for name, wanted in (("elmokit", level), ("uvicorn", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(wanted)
