"""Processes that serve a model: start, workers, signals, shutdown.

Input: models, folders of tasks and of an index, `Settings`.  Output: a running server. After SIGTERM or Ctrl-C it
accepts no more connections, answers the requests that it has, and returns. SIGHUP makes it read the file of API keys
again.

Several workers are forks of a process that has loaded the model, packed its weights and started no threads of torch.
They share this memory, in whatever format the weights are stored, because none of them writes to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from elmokit.extras import require
from elmokit.files import locked
from elmokit.serve.loading import answering_while_loading
from elmokit.serve.settings import METRICS_VARIABLE, Settings

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI

    from elmokit.index import WordIndex
    from elmokit.model import ELMo
    from elmokit.serve.access import Access
    from elmokit.serve.engine import Task
    from elmokit.serve.routes.status import Lifecycle

logger = logging.getLogger(__name__)

BACKLOG = 1024
MAX_FILES = 65536
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
HANGUP: signal.Signals | None = getattr(signal, "SIGHUP", None)
FORWARDED_SIGNALS = STOP_SIGNALS if HANGUP is None else (*STOP_SIGNALS, HANGUP)
RESTART_SECONDS = 1.0  # a worker that ends sooner is started again only after this time
ACCEPT_SECONDS = 0.05  # at shutdown, time to accept the connections of the backlog
SHUTDOWN_SECONDS = 5.0  # at shutdown, time beyond the deadline to send the last responses
METRICS_PREFIX = "elmokit-metrics-"
UNLOCKED_SECONDS = 60.0  # a new metrics folder may not be locked yet


def serve(
    load: Callable[[], ELMo],
    settings: Settings,
    *,
    name: str = "elmokit",
    tasks: Mapping[str, Path] | None = None,
    index: Path | None = None,
    models: Mapping[str, Callable[[], ELMo]] | None = None,
    on_listening: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve a model until SIGTERM or SIGINT.

    Args:
        load: Loads the model. It is called after the port is bound.
        settings: Address, number of workers and limits.
        name: Name of the model in responses.
        tasks: Folders of trained tasks by the name in their path, /tasks/NAME.
        index: Folder of the index for /neighbours.
        models: Functions that load further models, by name.
        on_listening: Called once with the URL, when the models are loaded.

    Raises:
        ImportError: If the extra `serve` is not installed.
        ValueError: If the address cannot be used, if several workers are not possible on this system or device, if
            the index was built with another model, or if the API keys cannot be read.
    """
    for module in ("fastapi", "orjson", "uvicorn"):
        require(module, extra="serve")
    from elmokit.serve.access import read_keys

    read_keys(settings)  # each worker reads them; one that cannot would be started again and again
    with _listen(settings.host, settings.port) as listening, _ignoring_hangup():

        def load_all() -> _Service:
            model = load()
            if settings.workers > 1 and model.device.type != "cpu":
                raise ValueError(f"workers is {settings.workers}: one worker serves a GPU, use workers=1")
            further = {other: load_other() for other, load_other in (models or {}).items()}
            return _Service(model, name, _load_tasks(tasks or {}, model), _open_index(index, model), further)

        def announce() -> None:
            on_listening(_url(listening))
            _warn_if_open(listening, settings)

        _raise_file_limit()
        if settings.workers == 1:
            require("prometheus_client", extra="serve")
            listening.listen(BACKLOG)
            with answering_while_loading(listening):
                service = load_all()
            announce()
            _run(service, settings, listening)
        else:
            _serve_with_workers(load_all, settings, listening, announce)


@dataclass(frozen=True)
class _Service:
    """What a server serves."""

    model: ELMo
    name: str
    tasks: Mapping[str, Task]
    index: WordIndex | None
    models: Mapping[str, ELMo]


def _serve_with_workers(
    load_all: Callable[[], _Service], settings: Settings, listening: socket.socket, announce: Callable[[], None]
) -> None:
    """Load and warm up the models once, and serve them in several forks."""
    if not hasattr(os, "fork"):
        raise ValueError("several workers need a system that can fork: use workers=1")
    with contextlib.ExitStack() as stack:
        # before the workers are started, SIGTERM unwinds this stack
        stack.callback(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)))
        stack.enter_context(_shared_metrics())
        require("prometheus_client", extra="serve")  # it reads METRICS_VARIABLE when it is imported
        import torch

        from elmokit.serve.engine import warm_up

        cores = torch.get_num_threads()
        torch.set_num_threads(1)  # a thread pool does not survive a fork
        listening.listen(BACKLOG)
        stack.callback(_answer_backlog, listening)  # if this ends before there is a worker
        with answering_while_loading(listening):  # its thread ends before the first fork
            service = load_all()
            for model in (service.model, *service.models.values()):
                warm_up(model)
        gc.collect()
        gc.freeze()
        announce()
        supervisor = os.getpid()

        def work() -> None:
            torch.set_num_threads(max(1, cores // settings.workers))
            _run(service, settings, listening, supervisor)

        # a connection that no worker accepts any more must not wait in the socket of this process
        _supervise(work, settings.workers, listening.close)


def _answer_backlog(listening: socket.socket) -> None:
    """Answer with 503 the connections that wait in a socket, unless it is closed: closing it would reset them."""
    if listening.fileno() >= 0:
        with answering_while_loading(listening):
            listening.listen(0)
            time.sleep(ACCEPT_SECONDS)


def _load_tasks(folders: Mapping[str, Path], model: ELMo) -> dict[str, Task]:
    if not folders:
        return {}
    from elmokit.tasks import load_task

    return {name: load_task(folder, device=str(model.device)) for name, folder in folders.items()}


def _open_index(folder: Path | None, model: ELMo) -> WordIndex | None:
    if folder is None:
        return None
    from elmokit.index import WordIndex

    index = WordIndex.open(folder)
    index.check_model(model)  # before the server listens
    return index


def _listen(host: str, port: int) -> socket.socket:
    """A socket bound to its port. It listens when the model is loaded."""
    listening: socket.socket | None = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError as error:
        if listening is not None:
            listening.close()
        raise ValueError(f"cannot listen at {host} port {port}: {error.strerror or error}") from None
    listening.set_inheritable(True)
    return listening


def _raise_file_limit() -> None:
    """Allow as many open connections as the system does."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = MAX_FILES if hard == resource.RLIM_INFINITY else min(MAX_FILES, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))


@contextlib.contextmanager
def _ignoring_hangup() -> Generator[None, None, None]:
    """SIGHUP does not end the process, also while it loads and while it ends."""
    if HANGUP is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(HANGUP, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(HANGUP, before)


def _warn_if_open(listening: socket.socket, settings: Settings) -> None:
    """Warn if other machines can send requests without a key."""
    from elmokit.serve.access import is_loopback

    host = listening.getsockname()[0]
    if not settings.keys and settings.api_key_file is None and not is_loopback(host):
        logger.warning(
            "other machines can use this server without an API key: set ELMOKIT_API_KEY",
            extra={"fields": {"address": host}},
        )


def _url(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@contextlib.contextmanager
def _shared_metrics() -> Generator[None, None, None]:
    """Make a folder in which the workers share their metrics. prometheus_client must be imported after this.

    The folder is locked while this process or one of its workers is alive. Folders that are not locked were left by
    servers that were killed; they are removed.
    """
    for leftover in Path(tempfile.gettempdir()).glob(f"{METRICS_PREFIX}*"):
        with contextlib.suppress(OSError):
            if time.time() - leftover.stat().st_mtime > UNLOCKED_SECONDS:
                with locked(leftover, wait=False):
                    shutil.rmtree(leftover)
    folder = tempfile.mkdtemp(prefix=METRICS_PREFIX)
    os.environ[METRICS_VARIABLE] = folder
    try:
        with locked(Path(folder), wait=True):
            yield
    finally:
        del os.environ[METRICS_VARIABLE]
        shutil.rmtree(folder, ignore_errors=True)


# ---- one process -----------------------------------------------------------------------------------------------------


def _run(service: _Service, settings: Settings, listening: socket.socket, supervisor: int | None = None) -> None:
    """Serve in this process until a signal comes."""
    from elmokit.serve.app import create_app

    names = [service.name, *service.models]
    fields = {"url": _url(listening), "model": service.name, "models": names, "tasks": list(service.tasks)}
    logger.info("serving", extra={"fields": fields})
    app = create_app(
        service.model,
        settings,
        name=service.name,
        tasks=service.tasks,
        index=service.index,
        models=service.models,
    )
    make_server(app, settings, supervisor=supervisor).run(sockets=[listening])
    logger.info("ended")


def make_server(app: FastAPI, settings: Settings, *, supervisor: int | None = None) -> uvicorn.Server:
    """Make the uvicorn server of an application, with timeouts and a graceful shutdown.

    Args:
        app: The application of `create_app`.
        settings: Timeouts.
        supervisor: Id of the process that started this one. The server stops when that process is no longer its parent.

    Returns:
        A server; `run(sockets=[...])` serves until a signal comes.
    """
    import uvicorn

    from elmokit.serve.connection import Connection

    lifecycle: Lifecycle = app.state.lifecycle
    access: Access = app.state.access

    class TimedConnection(Connection):
        client_timeout = settings.client_timeout

    class DrainingServer(uvicorn.Server):
        """Shuts down in two steps: first responses close their connections, then no new connections are accepted."""

        async def main_loop(self) -> None:
            if supervisor is not None:  # a worker that ended while it starts would reset the connections that wait
                signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED_SIGNALS)
            await super().main_loop()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            logger.info("ending")
            lifecycle.is_draining = True
            await asyncio.sleep(settings.drain)
            # closing a socket resets the connections of its backlog: stop the backlog, and accept what is in it
            for listening in sockets or []:
                listening.listen(0)
            await asyncio.sleep(ACCEPT_SECONDS)
            # a backlog of 0 has room for one, which may have come since asyncio looked
            last = [connection for listening in sockets or [] for connection in _accept_all(listening)]
            for server in self.servers:
                server.close()
            for connection in last:
                await asyncio.get_running_loop().connect_accepted_socket(self.make_connection, connection)
            await super().shutdown(sockets)

        def make_connection(self) -> TimedConnection:
            return TimedConnection(config, self.server_state, self.lifespan.state)

        async def on_tick(self, counter: int) -> bool:
            is_orphan = supervisor is not None and os.getppid() != supervisor
            return await super().on_tick(counter) or is_orphan

        @contextlib.contextmanager
        def capture_signals(self) -> Generator[None, None, None]:
            """As in uvicorn, but the signal is not raised again at the end: a stopped server exits with 0."""
            if threading.current_thread() is not threading.main_thread():
                yield
                return
            before = {number: signal.signal(number, self.handle_exit) for number in STOP_SIGNALS}
            if HANGUP is not None:
                loop = asyncio.get_running_loop()
                before[HANGUP] = signal.signal(HANGUP, lambda *_: loop.call_soon_threadsafe(access.reload))
                if settings.api_key_file is not None:  # a signal since the file was read was ignored
                    access.reload()
            try:
                yield
            finally:
                for number, handler in before.items():
                    signal.signal(number, handler)

    config = uvicorn.Config(
        app,
        http=TimedConnection,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=max(1, round(settings.client_timeout)),
        timeout_graceful_shutdown=round(settings.deadline + settings.client_timeout + SHUTDOWN_SECONDS),
    )
    return DrainingServer(config)


def _accept_all(listening: socket.socket) -> list[socket.socket]:
    """Accept the connections that wait in a socket that does not block."""
    accepted = []
    with contextlib.suppress(OSError):
        while True:
            accepted.append(listening.accept()[0])
    return accepted


# ---- several processes -----------------------------------------------------------------------------------------------


def _supervise(work: Callable[[], None], count: int, on_stop: Callable[[], None] = lambda: None) -> None:
    """Run `work` in `count` forks and restart those that end, until a signal comes; then wait for them.

    Signals are passed on to the forks, in which they are blocked until `work` unblocks them.

    Args:
        work: What a fork does.
        count: Number of forks.
        on_stop: Called when a signal stops the forks; not if there is none.
    """
    stopping = False
    workers: dict[int, float] = {}  # when each was started, by its id
    next_start = time.monotonic()
    with _signals_as_bytes((*FORWARDED_SIGNALS, signal.SIGCHLD)) as signals:
        while workers or not stopping:
            is_wanted = len(workers) < count and not stopping  # one more worker
            received = _receive(signals, max(0.0, next_start - time.monotonic()) if is_wanted else None)
            for number in set(FORWARDED_SIGNALS).intersection(received):
                if number in STOP_SIGNALS:
                    stopping = True
                    if workers:
                        on_stop()
                # Ctrl-C sends SIGINT to the forks too, and a second SIGINT would make them drop their requests
                for worker in workers:
                    os.kill(worker, signal.SIGTERM if number == signal.SIGINT else number)
            for worker, code in _ended(workers):
                seconds = time.monotonic() - workers.pop(worker)
                if not stopping:
                    logger.error("a worker ended", extra={"fields": {"worker": worker, "code": code}})
                    _forget_metrics(worker)
                    if seconds < RESTART_SECONDS:
                        next_start = time.monotonic() + RESTART_SECONDS
            if is_wanted and not stopping and time.monotonic() >= next_start:
                workers[_fork(work)] = time.monotonic()


@contextlib.contextmanager
def _signals_as_bytes(numbers: Iterable[int]) -> Generator[socket.socket, None, None]:
    """A socket that receives the number of each signal as a byte.

    A handler in Python runs between two instructions of the main thread. If its signal comes just before a call that
    blocks, or to another thread, it runs when that call has returned. The byte is written at once, by the handler in C.
    """
    receiving, sending = socket.socketpair()
    with receiving, sending:
        sending.setblocking(False)
        wakeup = signal.set_wakeup_fd(sending.fileno(), warn_on_full_buffer=False)
        before = {number: signal.signal(number, lambda *_: None) for number in numbers}
        try:
            yield receiving
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(wakeup)


def _receive(signals: socket.socket, seconds: float | None) -> bytes:
    """The bytes of a socket; none if there are none after some seconds."""
    signals.settimeout(seconds)
    try:
        return signals.recv(4096)
    except (BlockingIOError, TimeoutError):
        return b""


def _ended(workers: Iterable[int]) -> list[tuple[int, int]]:
    """The forks that have ended, with their exit codes."""
    found = [os.waitpid(worker, os.WNOHANG) for worker in workers]
    return [(worker, os.waitstatus_to_exitcode(status)) for worker, status in found if worker]


def _fork(work: Callable[[], None]) -> int:
    """Run `work` in a fork, with signals blocked, and exit there; the id of the fork."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED_SIGNALS)
    worker = os.fork()
    if worker:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return worker
    code: Literal[0, 1] = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number in FORWARDED_SIGNALS:
            signal.signal(number, signal.SIG_DFL if number in STOP_SIGNALS else signal.SIG_IGN)
        work()
        code = 0
    except BaseException:
        logger.exception("a worker failed")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _forget_metrics(worker: int) -> None:
    """Remove the gauges of a worker that has ended."""
    require("prometheus_client.multiprocess", extra="serve").mark_process_dead(worker)
