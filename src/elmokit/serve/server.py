"""One process or several that serve a model, from the first request to the last.

Enters: a model, folders of tasks and of an index, `Settings`.  Leaves: a running server; after SIGTERM or
Ctrl-C it takes no more connections, answers what it has, and returns.

Several workers are forks of a process that has loaded the model, packed its weights and run nothing in parallel: they
share all of that memory, however the weights are stored, until somebody writes to it, and nobody does.
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
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Literal

from elmokit.files import locked
from elmokit.serve.settings import METRICS_VARIABLE, Settings

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI

    from elmokit.index import WordIndex
    from elmokit.model import ELMo
    from elmokit.serve.app import Phase
    from elmokit.serve.engine import Task

logger = logging.getLogger(__name__)

BACKLOG = 1024
STOPPING = (signal.SIGINT, signal.SIGTERM)
SHORTEST_LIFE = 1.0  # seconds; a worker that ends sooner is not started again at once
LAST_CONNECTIONS = 0.05  # seconds in which those that wait to be taken are taken
LAST_ANSWERS = 5.0  # seconds beyond the deadline in which the last answers may be sent
METRICS_FOLDER = "elmokit-metrics-"
JUST_MADE = 60.0  # seconds in which a folder may not be locked yet


def serve(
    load: Callable[[], ELMo],
    settings: Settings,
    *,
    name: str = "elmokit",
    tasks: Mapping[str, Path] | None = None,
    index: Path | None = None,
    on_listening: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve the model that `load` gives until SIGTERM or SIGINT; `on_listening` is told the URL once."""
    _check_extra()
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(_listen(settings.host, settings.port))
        url = _url(listening)
        if settings.workers == 1:
            model = load()
            loaded, opened = _load_tasks(tasks or {}, model), _open_index(index, model)
            listening.listen(BACKLOG)
            on_listening(url)
            _run(model, settings, listening, name, loaded, opened)
            return
        if not hasattr(os, "fork"):
            raise ValueError("several workers need a system that can fork: use one worker here")
        # until the workers are there, to be told to end is to go back through this stack
        stack.callback(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)))
        stack.enter_context(_shared_metrics())
        import torch

        from elmokit.serve.engine import warm_up

        cores = torch.get_num_threads()
        torch.set_num_threads(1)  # a pool of threads would not survive the fork
        model = load()
        if model.device.type != "cpu":
            raise ValueError(f"one worker serves a GPU: {settings.workers} workers would only wait for each other")
        loaded, opened = _load_tasks(tasks or {}, model), _open_index(index, model)
        warm_up(model)
        gc.collect()
        gc.freeze()
        listening.listen(BACKLOG)
        on_listening(url)
        supervisor = os.getpid()

        def work() -> None:
            torch.set_num_threads(max(1, cores // settings.workers))
            _run(model, settings, listening, name, loaded, opened, supervisor)

        _supervise(work, settings.workers)


def _check_extra() -> None:
    try:
        import fastapi  # noqa: F401
        import orjson  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ImportError(f'serving needs {error.name}: pip install "elmokit[serve]"') from None


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
    index.check_model(model)  # before anybody is told that the server is there
    return index


def _listen(host: str, port: int) -> socket.socket:
    """A socket that has its port; it takes connections when the model is loaded."""
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


def _url(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@contextlib.contextmanager
def _shared_metrics() -> Generator[None, None, None]:
    """Let the workers count into files of one folder, which must be known before prometheus_client is imported.

    The folder is locked while this process or a fork of it lives: one that is not was left by a server that was killed,
    and goes.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{METRICS_FOLDER}*"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > JUST_MADE:
                with locked(left, wait=False):
                    shutil.rmtree(left)
    folder = tempfile.mkdtemp(prefix=METRICS_FOLDER)
    os.environ[METRICS_VARIABLE] = folder
    try:
        with locked(Path(folder), wait=True):
            yield
    finally:
        del os.environ[METRICS_VARIABLE]
        shutil.rmtree(folder, ignore_errors=True)


# ---- one process -----------------------------------------------------------------------------------------------------


def _run(
    model: ELMo,
    settings: Settings,
    listening: socket.socket,
    name: str,
    tasks: Mapping[str, Task],
    index: WordIndex | None = None,
    supervisor: int | None = None,
) -> None:
    from elmokit.serve.app import create_app

    logger.info("serving", extra={"fields": {"url": _url(listening), "model": name, "tasks": list(tasks)}})
    app = create_app(model, settings, name=name, tasks=tasks, index=index)
    make_server(app, settings, supervisor=supervisor).run(sockets=[listening])
    logger.info("ended")


def make_server(app: FastAPI, settings: Settings, *, supervisor: int | None = None) -> uvicorn.Server:
    """The application of `create_app` with connections that have limits of time, and an end in two steps.

    `supervisor` is the process that started this one, without which it ends.
    """
    import uvicorn

    from elmokit.serve.connection import Connection

    phase: Phase = app.state.phase

    class TimedConnection(Connection):
        client_timeout = settings.client_timeout

    class DrainingServer(uvicorn.Server):
        """Ends in two steps: answers close their connections, then no new ones are taken."""

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            logger.info("ending")
            phase.is_draining = True
            await asyncio.sleep(settings.drain)
            # closing would reset the connections that the system has made and that nobody has taken yet: let it make
            # no more, and take those
            for listening in sockets or []:
                listening.listen(0)
            await asyncio.sleep(LAST_CONNECTIONS)
            await super().shutdown(sockets)

        async def on_tick(self, counter: int) -> bool:
            is_orphan = supervisor is not None and os.getppid() != supervisor
            return await super().on_tick(counter) or is_orphan

        @contextlib.contextmanager
        def capture_signals(self) -> Generator[None, None, None]:
            """As uvicorn, but the signal is not raised again at the end: to be told to end and to end is success."""
            if threading.current_thread() is not threading.main_thread():
                yield
                return
            before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
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
        timeout_graceful_shutdown=round(settings.deadline + settings.client_timeout + LAST_ANSWERS),
    )
    return DrainingServer(config)


# ---- several processes -----------------------------------------------------------------------------------------------


def _supervise(work: Callable[[], None], count: int) -> None:
    """Keep `count` forks at work until a signal comes; then let them end."""
    stopping = False
    workers: dict[int, float] = {}

    def stop(number: int, _: FrameType | None) -> None:
        nonlocal stopping
        stopping = True
        for worker in list(workers):
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, number)

    before = {number: signal.signal(number, stop) for number in STOPPING}
    try:
        while workers or not stopping:
            while len(workers) < count and not stopping:
                # a signal waits until `stop` knows the worker, and never runs it in the fork
                signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
                workers[_fork(work)] = time.monotonic()
                signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
            worker, status = os.wait()
            lived = time.monotonic() - workers.pop(worker)
            if not stopping:
                code = os.waitstatus_to_exitcode(status)
                logger.error("a worker ended", extra={"fields": {"worker": worker, "code": code}})
                _forget_metrics(worker)
                if lived < SHORTEST_LIFE:
                    time.sleep(SHORTEST_LIFE)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _fork(work: Callable[[], None]) -> int:
    worker = os.fork()
    if worker:
        return worker
    code: Literal[0, 1] = 1
    try:
        for number in STOPPING:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
        work()
        code = 0
    except BaseException:
        logger.exception("a worker failed")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _forget_metrics(worker: int) -> None:
    from prometheus_client import multiprocess

    multiprocess.mark_process_dead(worker)  # type: ignore[no-untyped-call]
