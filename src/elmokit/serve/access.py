"""Who may send requests: API keys and host names.

Input: headers of requests, and a file of keys that can change while the server runs.  Output: which key was sent, and
whether the host name is one of this server.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
import threading
from pathlib import Path

from elmokit.serve.settings import Settings, check_key

logger = logging.getLogger(__name__)


class Access:
    """The API keys and the host names of a server.

    Args:
        settings: Keys, file of keys, and host names.

    Raises:
        ValueError: If the file of keys cannot be read, or has a key that is not valid.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._keys = read_keys(settings)
        # a page of another site can reach a server on this machine under its own name (DNS rebinding)
        self._checks_hosts = bool(settings.allowed_hosts) or (not self.needs_key and is_loopback(settings.host))

    @property
    def needs_key(self) -> bool:
        """Whether clients must send a key."""
        return bool(self._keys) or self._settings.api_key_file is not None

    def reload(self) -> None:
        """Read the file of keys again. If it cannot be read, the keys stay as they are, and the log has the reason."""
        if self._settings.api_key_file is None:
            logger.info("there is no file of API keys to read again")
            return
        try:
            keys = read_keys(self._settings)
        except ValueError as error:
            logger.error("the API keys were not read again", extra={"fields": {"reason": str(error)}})
            return
        with self._lock:
            self._keys = keys
        logger.info("read the API keys again", extra={"fields": {"keys": len(keys)}})

    def key_number(self, authorization: bytes) -> int | None:
        """Find the key of a request.

        Args:
            authorization: Value of the header Authorization: `Bearer KEY`; the scheme may be in any case.

        Returns:
            The number of the key; None if it is not one of the server's.
        """
        scheme, _, sent = authorization.partition(b" ")
        sent = sent.strip()
        with self._lock:
            keys = self._keys
        matches = [hmac.compare_digest(sent, key.encode()) for key in keys]  # all of them: the time says nothing
        return matches.index(True) if scheme.lower() == b"bearer" and any(matches) else None

    def allows_host(self, host: bytes) -> bool:
        """Check the header Host.

        Args:
            host: Its value, a name or an address, with or without a port.

        Returns:
            Whether it is one of `allowed_hosts`. A server of this machine only, without a key and without
            `allowed_hosts`, accepts addresses and names that nobody can register: names without a dot, and *.localhost.
        """
        if not self._checks_hosts:
            return True
        name = _without_port(host.decode("latin-1").strip().lower())
        if name in self._settings.allowed_hosts:
            return True
        if self._settings.allowed_hosts:
            return False
        return "." not in name or name.endswith(".localhost") or _is_address(name)


def is_loopback(host: str) -> bool:
    """Whether an address or a host name is of this machine only."""
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0] if host.count(":") <= 1 else host


def read_keys(settings: Settings) -> tuple[str, ...]:
    """All keys: of the settings and of the file, one per line; lines that start with # are comments."""
    keys = list(settings.keys)
    if settings.api_key_file is not None:
        try:
            lines = Path(settings.api_key_file).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"cannot read the API keys in {settings.api_key_file}: {error}") from None
        own = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
        if not own:
            raise ValueError(f"{settings.api_key_file} has no API key: write one per line")
        for key in own:
            check_key(key)
        keys += own
    return tuple(keys)
