"""The verb `serve` as a process: it ends well, its workers share memory, and the examples of its page run."""

import asyncio
import contextlib
import gc
import json
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from served import make_model, process

import elmokit.tasks
from elmokit import ELMo
from elmokit.cli import serve as cli_serve
from elmokit.files import locked
from elmokit.serve import server
from elmokit.serve.app import create_app
from elmokit.serve.settings import METRICS_VARIABLE, Settings

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
FENCES = re.findall(r"```(\w+)\n(.*?)```", PAGE, flags=re.DOTALL)
CURLS = [line[2:] for kind, block in FENCES if kind == "console" for line in block.splitlines() if line[:2] == "$ "]


@pytest.fixture(scope="module")
def one(folder):
    with process(folder) as running:
        yield running


@pytest.mark.parametrize("command", CURLS)
def test_a_curl_command_of_the_page_runs(one, command, tmp_path):
    command = command.replace("http://127.0.0.1:8080", one.url).replace("curl -s ", "curl -s --fail-with-body ", 1)
    done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    if "vectors.npy" in command:
        assert np.load(tmp_path / "vectors.npy").shape == (2, 16)
    elif "-o " not in command:
        assert done.stdout


def test_the_openai_example_of_the_page_runs(one, capsys):
    (script,) = [block for kind, block in FENCES if kind == "python" and "openai" in block]
    exec(script.replace("http://127.0.0.1:8080", one.url) + "\nclient.close()", {})
    assert capsys.readouterr().out == "16 12\n"


def test_sigterm_under_load_answers_everything_and_ends_with_zero(folder):
    with process(folder) as running:
        answers, stop = [], threading.Event()

        def ask():
            while not stop.is_set():
                try:
                    # a new connection each time: one that the server has closed is no lost request
                    answers.append(
                        httpx.post(f"{running.url}/embed", json={"inputs": ["a bank"] * 20}, timeout=60).status_code
                    )
                except httpx.ConnectError:
                    return
                except httpx.HTTPError as error:
                    answers.append(repr(error))

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        while len(answers) < 20:
            time.sleep(0.01)
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 0
        stop.set()
        for thread in threads:
            thread.join(60)
    assert set(answers) == {200}
    assert running.log[-1]["message"] == "ended"


WORKERS_THAT_START_UNTIL_SIGTERM = """
import signal, time

from elmokit.cli.serve import serve
from elmokit.serve import app

create_app = app.create_app

def create_slowly(*arguments, **settings):
    while signal.SIGTERM not in signal.sigpending():
        time.sleep(0.01)
    return create_app(*arguments, **settings)

app.create_app = create_slowly
serve()
"""


def test_sigterm_while_workers_start_answers_the_connections_that_wait(folder):
    program = WORKERS_THAT_START_UNTIL_SIGTERM
    with process(folder, "--workers", "2", program=program) as running, contextlib.ExitStack() as stack:
        waiting = [stack.enter_context(ask_for_health(running.url)) for _ in range(5)]
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 0
        assert [connection.recv(12) for connection in waiting] == [b"HTTP/1.1 200"] * 5


def test_sigterm_before_the_first_worker_answers_the_connections_that_wait(folder, temporary):
    waiting, threads = [], torch.get_num_threads()

    def stop(url):
        waiting.append(ask_for_health(url))
        send_sigterm()

    try:
        with pytest.raises(SystemExit) as ended:
            server.serve(lambda: ELMo.from_pretrained(folder), Settings(port=0, workers=2), on_listening=stop)
    finally:
        gc.unfreeze()
        torch.set_num_threads(threads)
    assert ended.value.code == 0
    with waiting[0] as connection:
        assert connection.recv(12) == b"HTTP/1.1 200"


def ask_for_health(url):
    """A connection that has sent a request."""
    connection = socket.create_connection(url.removeprefix("http://").split(":"), timeout=60)
    connection.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
    return connection


def test_workers_answer_alike_share_their_counts_and_are_replaced(folder, tmp_path):
    with process(folder, "--workers", "2", TMPDIR=str(tmp_path)) as running:
        with httpx.Client(base_url=running.url, timeout=60) as client:
            expected = client.post("/embed", json={"inputs": "The bank"}).json()

        def ask():
            answer = httpx.post(f"{running.url}/embed", json={"inputs": "The bank"}, timeout=60)
            return answer.status_code, answer.json()

        for _ in range(20):
            assert ask() == (200, expected)
        counted = re.search(
            r'elmokit_requests_total{route="/embed",status="200"} (\S+)',
            httpx.get(f"{running.url}/metrics", timeout=60).text,
        )
        assert float(counted[1]) == 21
        workers = {line["process"] for line in running.log if line["message"] == "serving"}
        while len(workers) < 2:
            time.sleep(0.05)
            workers = {line["process"] for line in running.log if line["message"] == "serving"}
        os.kill(min(workers), signal.SIGKILL)
        for _ in range(600):
            if len({line["process"] for line in running.log if line["message"] == "serving"}) == 3:
                break
            time.sleep(0.05)
        else:
            raise AssertionError("the worker was not replaced")
        assert ask() == (200, expected)
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 0
    assert list(tmp_path.iterdir()) == [], "no folder of metrics stays behind"


def test_workers_take_the_key_from_the_environment_and_end_when_their_supervisor_was_killed(folder, tmp_path):
    with process(folder, "--workers", "2", ELMOKIT_API_KEY="secret", TMPDIR=str(tmp_path)) as running:
        assert httpx.get(f"{running.url}/info", timeout=60).status_code == 401
        key = {"authorization": "Bearer secret"}
        assert httpx.get(f"{running.url}/info", headers=key, timeout=60).status_code == 200
        assert "secret" not in str(running.log)
        running.kill()
        for _ in range(600):
            try:
                httpx.get(f"{running.url}/health", timeout=60)
            except httpx.TransportError:
                break
            time.sleep(0.05)
        else:
            raise AssertionError("a worker lives on")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--workers", "0"], "workers is 0"),
        (["--task", "ner"], "--task ner: write a name and a folder"),
        (["--task", "ner=nowhere"], "there is no folder nowhere"),
        (["--host", "256.1.1.1"], "cannot listen at 256.1.1.1"),
    ],
)
def test_what_cannot_be_served_is_a_value_error(folder, arguments, named):
    result = CliRunner().invoke(cli_serve.serve, [str(folder), "--port", "0", *arguments])
    assert isinstance(result.exception, ValueError)
    assert named in str(result.exception)


@pytest.mark.slow
def test_hostile_requests_find_no_way_to_break_it(folder):
    script = Path(__file__).resolve().parents[2] / "benchmarks" / "serve.py"
    command = [sys.executable, script, "hostile", "--count", "4000", "--senders", "16", "--model", folder]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5xx: none" in done.stdout


def test_the_verb_serves_a_model_with_a_task_until_it_is_told_to_end(folder, tmp_path, monkeypatch, loggers):
    class Lengths:
        def predict(self, texts):
            return [len(text) for text in texts]

    loaded = []
    monkeypatch.setattr(elmokit.tasks, "load_task", lambda path, device: loaded.append((path, device)) or Lengths())
    with server._listen("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    answers = []

    def ask():
        try:
            with httpx.Client(
                base_url=f"http://127.0.0.1:{port}", transport=httpx.HTTPTransport(retries=30), timeout=60
            ) as client:
                ask = {"inputs": ["bank", "a"]}
                while (answer := client.post("/tasks/lengths", json=ask)).status_code == 503:  # the model is loading
                    time.sleep(0.01)
                answers.append(answer.json())
                answers.append(client.get("/info").json()["model_id"])
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=ask)
    thread.start()
    handler = signal.getsignal(signal.SIGTERM)
    result = CliRunner().invoke(
        cli_serve.serve, [str(folder), "--port", str(port), "--task", f"lengths={tmp_path}", "--device", "cpu"]
    )
    thread.join(60)
    assert result.exit_code == 0, result.output
    assert answers == [[4, 1], str(folder)]
    assert loaded == [(tmp_path, "cpu")]
    assert signal.getsignal(signal.SIGTERM) is handler
    messages = [json.loads(line)["message"] for line in result.stderr.splitlines()]
    assert messages == ["serving", "request", "request", "ending", "ended"]


def test_a_port_that_is_taken_is_named():
    with server._listen("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=f"cannot listen at 127.0.0.1 port {port}"):
            server.serve(lambda: None, Settings(port=port))


def test_an_address_of_either_kind_has_its_url():
    with server._listen("127.0.0.1", 0) as four:
        assert server._url(four) == f"http://127.0.0.1:{four.getsockname()[1]}"
    assert server._url(SimpleNamespace(getsockname=lambda: ("::1", 80, 0, 0))) == "http://[::1]:80"


# ---- several workers, seen from inside -------------------------------------------------------------------------------


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """A temporary folder of the test's own."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_the_folder_of_metrics_goes_with_its_server_and_so_do_those_of_servers_that_were_killed(temporary):
    long_ago = time.time() - 3600
    stale, fresh, alive = (temporary / f"elmokit-metrics-{name}" for name in ("stale", "fresh", "alive"))
    for folder in (stale, fresh, alive):
        folder.mkdir()
        (folder / "counter_1.db").write_bytes(b"x")
    for folder in (stale, alive):
        os.utime(folder, (long_ago, long_ago))
    with locked(alive, wait=True), server._shared_metrics():  # locked as another server does
        own = Path(os.environ[METRICS_VARIABLE])
        os.utime(own, (long_ago, long_ago))
        with server._shared_metrics():
            assert set(temporary.iterdir()) == {fresh, alive, own, Path(os.environ[METRICS_VARIABLE])}
        os.environ[METRICS_VARIABLE] = str(own)
    assert set(temporary.iterdir()) == {fresh, alive}
    assert METRICS_VARIABLE not in os.environ


def test_what_workers_share_is_ready_before_they_are_forked_and_undone_after_them(folder, temporary, monkeypatch):
    handlers, threads = signal.getsignal(signal.SIGTERM), torch.get_num_threads()
    ran, heard = [], []
    monkeypatch.setattr(server, "_run", lambda *given: ran.append(given))

    def supervise(work, count, on_stop):
        assert len(list(temporary.glob("elmokit-metrics-*"))) == 1
        assert torch.get_num_threads() == 1, "nothing has run in parallel"
        work()
        heard.append(count)

    monkeypatch.setattr(server, "_supervise", supervise)
    try:
        server.serve(
            lambda: ELMo.from_pretrained(folder), Settings(port=0, workers=2), name="tiny", on_listening=heard.append
        )
    finally:
        gc.unfreeze()
        torch.set_num_threads(threads)
    assert heard[0].startswith("http://127.0.0.1:")
    assert heard[1] == 2
    ((service, settings, _, supervisor),) = ran
    assert "warm" in service.model._runner._words._slots, "its weights are packed"
    assert (service.name, service.tasks, service.index) == ("tiny", {}, None)
    assert (settings.workers, supervisor) == (2, os.getpid())
    assert list(temporary.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) is handlers


def test_sigterm_while_the_model_of_several_workers_loads_leaves_nothing_behind(temporary):
    threads = torch.get_num_threads()
    try:
        with pytest.raises(SystemExit) as ended:
            server.serve(lambda: os.kill(os.getpid(), signal.SIGTERM), Settings(port=0, workers=2))
    finally:
        torch.set_num_threads(threads)
    assert ended.value.code == 0
    assert list(temporary.iterdir()) == []


def test_several_workers_are_refused_where_they_cannot_be(temporary, monkeypatch):
    threads = torch.get_num_threads()
    with pytest.raises(ValueError, match="one worker serves a GPU"):
        server.serve(lambda: SimpleNamespace(device=torch.device("cuda")), Settings(port=0, workers=2))
    torch.set_num_threads(threads)
    monkeypatch.delattr(os, "fork")
    with pytest.raises(ValueError, match="a system that can fork"):
        server.serve(lambda: None, Settings(port=0, workers=2))


@pytest.fixture
def killed(monkeypatch):
    """The processes that were sent a signal."""
    pids = []
    monkeypatch.setattr(os, "kill", lambda pid, number, kill=os.kill: (pids.append(pid), kill(pid, number)))
    return pids


def programs(commands, when_the_last_starts):
    """Programs for `_fork` to start, and the list of those that it has started."""
    started = []

    def fork(work):
        command = commands.pop(0)
        started.append(os.posix_spawn(shutil.which(command[0]), command, {}, setsigmask=[]))
        if not commands:
            when_the_last_starts()
        return started[-1]

    return fork, started


def send_sigterm():
    os.kill(os.getpid(), signal.SIGTERM)


def send_sigterm_to_another_thread():
    """When this returns, the handler in C has run; one in Python runs in the main thread, when that is not blocked."""
    thread = threading.Thread(target=lambda: signal.pthread_kill(threading.get_ident(), signal.SIGTERM))
    thread.start()
    thread.join()


def test_workers_that_end_are_replaced_until_a_signal_comes_and_then_they_end_too(
    tmp_path, monkeypatch, caplog, killed
):
    monkeypatch.setenv(METRICS_VARIABLE, str(tmp_path))
    monkeypatch.setattr(server, "RESTART_SECONDS", 0.05)
    (tmp_path / "gauge_livesum_1.db").touch()
    fork, started = programs([["false"], ["sleep", "60"], ["sleep", "60"]], send_sigterm)
    monkeypatch.setattr(server, "_fork", fork)
    before = signal.getsignal(signal.SIGTERM)
    with caplog.at_level(logging.ERROR, "elmokit.serve.server"):
        server._supervise(lambda: None, 2)
    assert [record.fields for record in caplog.records] == [{"worker": started[0], "code": 1}]
    assert killed == [os.getpid(), *started[1:]]
    assert signal.getsignal(signal.SIGTERM) is before
    for worker in started:
        with pytest.raises(ProcessLookupError):
            os.kill(worker, 0)


@pytest.mark.parametrize("seconds", [0.0, 0.2], ids=["while the last worker starts", "while the server waits for them"])
def test_a_signal_reaches_all_workers_whichever_thread_it_interrupts(monkeypatch, killed, seconds):
    """Python runs a handler late if its signal comes just before a call that blocks, or to another thread."""
    timer = threading.Timer(seconds, send_sigterm_to_another_thread)

    def stop():
        timer.start()
        if not seconds:
            timer.join()

    fork, started = programs([["sleep", "60"], ["sleep", "60"]], stop)
    monkeypatch.setattr(server, "_fork", fork)
    server._supervise(lambda: None, 2)
    timer.join()
    assert killed == started


def test_no_worker_starts_after_a_signal(monkeypatch):
    receive = server._receive

    def receive_after_signal(signals, seconds):
        send_sigterm()
        return receive(signals, seconds)

    fork, started = programs([["true"], ["true"]], lambda: None)
    monkeypatch.setattr(server, "_receive", receive_after_signal)
    monkeypatch.setattr(server, "_fork", fork)
    server._supervise(lambda: None, 2)
    assert started == []


@pytest.mark.parametrize("fails", [False, True])
def test_a_fork_does_its_work_and_ends_with_a_code_that_says_how(monkeypatch, caplog, fails):
    class EndedError(BaseException):
        pass

    def end(code):
        raise EndedError(code)

    found = []

    def work():
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
        found.append((signal.getsignal(signal.SIGTERM), signal.set_wakeup_fd(-1), blocked >= before.keys()))
        if fails:
            raise RuntimeError("broken")

    monkeypatch.setattr(os, "fork", lambda: 0)
    monkeypatch.setattr(os, "_exit", end)
    before = {number: signal.getsignal(number) for number in server.FORWARDED_SIGNALS}
    try:
        with server._signals_as_bytes(before), pytest.raises(EndedError) as ended:
            server._fork(work)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, before)
    assert ended.value.args == (1 if fails else 0,)
    assert found == [(signal.SIG_DFL, -1, True)], "the handlers are not the supervisor's, and the signals wait"
    assert [record.message for record in caplog.records] == ["a worker failed"] * fails


def test_a_worker_without_its_supervisor_ends():
    app = create_app(make_model(), Settings())
    assert asyncio.run(server.make_server(app, Settings(), supervisor=os.getppid() + 1).on_tick(1))
    assert not asyncio.run(server.make_server(app, Settings(), supervisor=os.getppid()).on_tick(1))


@pytest.mark.parametrize("module", ["fastapi", "orjson", "uvicorn", "prometheus_client"])
def test_without_the_extra_the_error_names_the_command_before_the_model_is_loaded(monkeypatch, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=r'pip install "elmokit\[serve\]"'):
        server.serve(_must_not_load, Settings(port=0))


def _must_not_load():
    raise AssertionError("the model was loaded")
