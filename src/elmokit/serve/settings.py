"""What a server may be told, and its usual values.

Enters: numbers from the command line or a program.  Leaves: a `Settings` whose values go together, or a ValueError.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

METRICS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"  # prometheus_client's name; set, it makes several workers count as one


@dataclass(frozen=True)
class Settings:
    """Where a server listens, who may ask, and how much."""

    host: str = "127.0.0.1"
    port: int = 8080
    """0 takes a free one."""
    workers: int = 1
    """Processes that share the model's memory."""
    api_key: str | None = None
    """What clients send as `Authorization: Bearer KEY`; None lets everybody in."""
    cors_origins: tuple[str, ...] = ()
    """Origins whose pages may ask from a browser; "*" is every origin."""

    max_body_bytes: int = 2_000_000
    max_sentences: int = 1024
    """Of one request."""
    max_sentence_tokens: int = 512
    max_request_tokens: int = 8192

    batch_tokens: int | None = None
    """Tokens that run together; None is what suits the device."""
    queue_tokens: int | None = None
    """Tokens that wait or run, or whose answers are not sent yet: beyond it comes 429, as it does beyond what the model
    reads in half of the deadline.  None is sixteen batches."""
    max_requests: int = 512
    """Requests that are being read, wait or run; beyond it comes 429."""
    patience: float = 0.003
    """Seconds that the first piece of a batch waits for company."""

    deadline: float = 30.0
    """Seconds until a request that was read must be answered; beyond it comes 504."""
    client_timeout: float = 30.0
    """Seconds that a client may take to send a request, and to take up a part of its answer."""
    drain: float = 0.3
    """Seconds after SIGTERM in which new connections are still answered, so that none is lost on its way in."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in ("port", "patience", "drain"):
                if value < 0:
                    raise ValueError(f"{field.name} is {value}: it must be 0 or more")
            elif isinstance(value, int | float) and value <= 0:
                raise ValueError(f"{field.name} is {value}: it must be more than 0")
        if self.port > 65535:
            raise ValueError(f"port is {self.port}: it must be at most 65535")
        if self.api_key is not None and (not self.api_key or not self.api_key.isascii() or " " in self.api_key):
            raise ValueError("the API key must be ASCII without spaces, and not empty")
        if self.max_sentence_tokens > self.max_request_tokens:
            raise ValueError(
                f"max_sentence_tokens is {self.max_sentence_tokens} and max_request_tokens {self.max_request_tokens}: "
                "a request must have room for its sentence"
            )
        if self.queue_tokens is not None and self.queue_tokens < self.max_request_tokens:
            raise ValueError(
                f"queue_tokens is {self.queue_tokens} and max_request_tokens {self.max_request_tokens}: "
                "the queue must have room for a request"
            )
