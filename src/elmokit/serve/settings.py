"""Settings of the server and their defaults.

Input: values from the command line or a program.  Output: a `Settings` with consistent values, or a ValueError.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

METRICS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"  # read by prometheus_client: workers share their metrics


@dataclass(frozen=True)
class Settings:
    """Address, access and limits of a server."""

    host: str = "127.0.0.1"
    port: int = 8080
    """0 chooses a free port."""
    workers: int = 1
    """Number of processes. They share the memory of the model."""
    api_key: str | None = None
    """Key that clients send as `Authorization: Bearer KEY`. None: no key is needed."""
    api_keys: tuple[str, ...] = ()
    """Further keys: each of them is accepted."""
    api_key_file: str | None = None
    """File with one key per line, which are accepted too. It is read again at SIGHUP."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names that requests may be sent to, without ports. Empty: any, but see `access.Access.allows_host`."""
    cors_origins: tuple[str, ...] = ()
    """Origins of web pages that may send requests from a browser; "*" is every origin."""

    max_body_bytes: int = 2_000_000
    """Largest size of a request body."""
    max_sentences: int = 1024
    """Largest number of sentences per request."""
    max_sentence_tokens: int = 512
    """Largest number of tokens per sentence."""
    max_request_tokens: int = 8192
    """Largest number of tokens per request."""

    batch_tokens: int | None = None
    """Largest number of tokens per batch. None: a default for the device."""
    queue_tokens: int | None = None
    """Largest number of tokens of requests that are not answered yet. Further requests get 429. None: 16 batches."""
    max_requests: int = 512
    """Largest number of requests at the same time, counted when they are complete. Further requests get 429."""
    patience: float = 0.003
    """How long, in seconds, a request waits for others to be batched with."""

    deadline: float = 30.0
    """Seconds until a request must be answered after its body is read. A request that would wait for more than a third
    of it, by the speed of the model, gets 503 at once. A request that is not answered in time gets 504."""
    client_timeout: float = 30.0
    """Seconds that a client has to send a request, and to read a part of the response."""
    drain: float = 0.3
    """Seconds after SIGTERM in which new connections are still accepted, so that no request is lost."""

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
        for key in self.keys:
            check_key(key)
        if self.max_sentence_tokens > self.max_request_tokens:
            raise ValueError(
                f"max_sentence_tokens is {self.max_sentence_tokens}: it must be at most max_request_tokens, "
                f"{self.max_request_tokens}"
            )
        if self.queue_tokens is not None and self.queue_tokens < self.max_request_tokens:
            raise ValueError(
                f"queue_tokens is {self.queue_tokens}: it must be at least max_request_tokens, "
                f"{self.max_request_tokens}"
            )

    @property
    def keys(self) -> tuple[str, ...]:
        """All keys that do not come from a file."""
        return self.api_keys if self.api_key is None else (self.api_key, *self.api_keys)


def check_key(key: str) -> None:
    """Check an API key.

    Raises:
        ValueError: If it cannot be sent in a header.
    """
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise ValueError("the API key must be ASCII without spaces, and not empty")
