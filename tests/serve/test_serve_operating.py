"""What an operator relies on: readiness, signals, keys, limits of connections, metrics, and the files in deploy/."""

import asyncio
import contextlib
import logging
import os
import re
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest
from click.testing import CliRunner
from served import (
    PROGRAM,
    error_of,
    in_background,
    make_model,
    post,
    process,
    raw_request,
    read_all,
    reply_to,
    serving,
    wait_for,
)

from elmokit.cli import serve as cli_serve
from elmokit.serve import server
from elmokit.serve.access import Access
from elmokit.serve.errors import RefusalError
from elmokit.serve.loading import answering_while_loading
from elmokit.serve.settings import Settings
from elmokit.serve.uploads import Uploads

# ---- ready, and not yet ----------------------------------------------------------------------------------------------


def test_while_the_model_loads_the_server_is_healthy_and_not_ready():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with answering_while_loading(listening):
            assert httpx.get(f"{url}/health", timeout=60).json() == {"status": "healthy"}
            error_of(httpx.get(f"{url}/ready", timeout=60), 503, "Unhealthy")
            answer = httpx.post(f"{url}/embed", json={"inputs": "a " * 500_000}, timeout=60)
            assert "loading" in error_of(answer, 503, "Unhealthy")
            assert answer.headers["retry-after"] == "1"
            assert httpx.head(f"{url}/ready", timeout=60).status_code == 503
            reply_to(listening.getsockname(), b"\r\n\r\n", half_close=True)
        with socket.create_connection(listening.getsockname()):
            listening.accept()[0].close()  # the socket is the server's again


def test_a_process_is_not_ready_until_its_model_is_loaded(folder):
    with server._listen("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    gate, statuses = threading.Event(), []

    def ask():
        with contextlib.suppress(httpx.TransportError):
            statuses.append(httpx.get(f"http://127.0.0.1:{port}/ready", timeout=60).status_code)

    def load():
        wait_for(lambda: ask() or statuses)
        gate.set()
        return make_model()

    def listening(_):
        os.kill(os.getpid(), signal.SIGTERM) if not gate.is_set() else threading.Timer(0.3, stop).start()

    def stop():
        wait_for(lambda: ask() or statuses[-1] == 200)
        os.kill(os.getpid(), signal.SIGTERM)

    server.serve(load, Settings(port=port, drain=0.0), on_listening=listening)
    assert statuses[0] == 503
    assert statuses[-1] == 200


def test_a_connection_that_is_accepted_as_loading_ends_is_answered(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as connection:
        connection.settimeout(30)

        class Event(asyncio.Event):
            def set(self):
                connection.connect(listening.getsockname())
                connection.sendall(b"GET /health HTTP/1.1\r\n\r\n")
                connection.shutdown(socket.SHUT_WR)
                asyncio.get_running_loop().call_soon(super().set)  # when the connection is accepted

        monkeypatch.setattr(asyncio, "Event", Event)
        with answering_while_loading(listening):
            pass
        assert read_all(connection).startswith(b"HTTP/1.1 200")


# ---- signals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2])
def test_sighup_reads_the_keys_again_and_drops_nothing(folder, tmp_path, workers):
    keys = tmp_path / "keys"
    keys.write_text("# the keys of the team\nold\n")
    with process(folder, "--api-key-file", keys, "--workers", workers) as running, httpx.Client(timeout=60) as client:

        def status(key):
            headers = {"authorization": f"bearer {key}", "connection": "close"}
            return client.post(f"{running.url}/embed", json={"inputs": "a"}, headers=headers).status_code

        wait_for(lambda: status("old") == 200)
        assert status("new") == 401
        keys.write_text("old\nnew\n")
        answers = []
        with ThreadPoolExecutor(4) as pool:
            futures = [pool.submit(status, "old") for _ in range(40)]
            running.send_signal(signal.SIGHUP)
            answers = [future.result() for future in futures]
        assert set(answers) == {200}
        wait_for(lambda: all(status("new") == 200 for _ in range(8)))
        keys.write_text("new\n")
        running.send_signal(signal.SIGHUP)
        wait_for(lambda: all(status("old") == 401 for _ in range(8)))
        keys.write_text("")
        running.send_signal(signal.SIGHUP)
        wait_for(lambda: sum("not read again" in line["message"] for line in running.log) == workers)
        assert status("new") == 200, "a file that cannot be used changes nothing"
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 0


def test_a_sighup_while_a_server_starts_is_not_lost(tmp_path, monkeypatch):
    keys, statuses = tmp_path / "keys", []
    keys.write_text("old\n")
    make_server = server.make_server

    def make(*arguments, **settings):  # after the keys were read, before the server waits for signals
        keys.write_text("new\n")
        os.kill(os.getpid(), signal.SIGHUP)
        return make_server(*arguments, **settings)

    def status(url, key):
        answer = httpx.post(
            f"{url}/embed", json={"inputs": "a"}, headers={"authorization": f"bearer {key}"}, timeout=60
        )
        return answer.status_code

    def ask(url):
        with contextlib.suppress(AssertionError):
            wait_for(lambda: status(url, "new") == 200)
        statuses.extend(status(url, key) for key in ("old", "new"))
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(server, "make_server", make)
    settings = Settings(port=0, drain=0.0, api_key_file=str(keys))
    server.serve(make_model, settings, on_listening=lambda url: threading.Thread(target=ask, args=(url,)).start())
    assert statuses == [401, 200]


WAITING = f"""
import os, elmokit.tasks
from served import wait_for

class Waiting:
    def __init__(self, folder, device):
        self.folder = folder

    def predict(self, texts):
        (self.folder / str(os.getpid())).touch()
        wait_for((self.folder / "gate").exists)
        return texts

elmokit.tasks.load_task = Waiting
{PROGRAM}
"""


def test_ctrl_c_drops_no_request_of_several_workers(folder, tmp_path):
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    arguments = (folder, "--workers", 2, "--drain", 0, "--task", f"waiting={tmp_path}")
    with process(*arguments, program=WAITING, PYTHONPATH=path) as running, ThreadPoolExecutor() as pool:

        def processes(message):
            return {line["process"] for line in running.log if line["message"] == message}

        wait_for(lambda: len(processes("serving")) == 2)
        body = {"inputs": ["a"]}
        answer = pool.submit(httpx.post, f"{running.url}/tasks/waiting", json=body, timeout=60)
        wait_for(lambda: any(tmp_path.iterdir()))
        busy = int(next(tmp_path.iterdir()).name)
        (idle,) = processes("serving") - {busy}
        os.kill(busy, signal.SIGINT)  # a terminal sends it to all processes
        wait_for(lambda: busy in processes("ending"))
        running.send_signal(signal.SIGINT)
        wait_for(lambda: not psutil.pid_exists(idle))  # the signal was passed on
        (tmp_path / "gate").touch()
        assert answer.result().status_code == 200
        assert running.wait(60) == 0


def test_a_worker_that_is_killed_takes_only_its_own_requests_with_it(folder):
    with process(folder, "--workers", 2) as running:
        wait_for(lambda: sum(line["message"] == "serving" for line in running.log) == 2)
        workers = {line["process"] for line in running.log if line["message"] == "serving"}
        answers, stop = [], threading.Event()

        def ask():
            while not stop.is_set():
                try:
                    answers.append(
                        httpx.post(f"{running.url}/embed", json={"inputs": ["a bank"] * 4}, timeout=60).status_code
                    )
                except httpx.HTTPError as error:
                    answers.append(type(error).__name__)

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        wait_for(lambda: len(answers) > 10)
        os.kill(min(workers), signal.SIGKILL)
        wait_for(lambda: sum(line["message"] == "serving" for line in running.log) == 3)
        count = len(answers)
        wait_for(lambda: len(answers) > count + 20)
        stop.set()
        for thread in threads:
            thread.join(60)
    lost = [answer for answer in answers if answer != 200]
    assert len(lost) <= 3, "each of the three clients had at most one request with the worker"
    assert 200 in answers[-10:]


# ---- keys and addresses ----------------------------------------------------------------------------------------------


def test_each_of_several_keys_opens(model):
    with serving(model, Settings(api_key="one", api_keys=("two", "three"), drain=0.0)) as client:
        for key in ("one", "two", "three"):
            for scheme in ("Bearer", "bearer", "BEARER"):
                post(client, "/embed", {"inputs": "a"}, authorization=f"{scheme} {key}")
        for wrong in ("Bearer four", "Bearer", "Basic one", "Bearer one two", "one"):
            error_of(client.post("/embed", json={"inputs": "a"}, headers={"authorization": wrong}), 401, "Unauthorized")


@pytest.mark.parametrize("workers", [1, 2])
def test_keys_that_cannot_be_read_stop_the_server_before_it_loads_the_model(tmp_path, workers):
    settings = Settings(port=0, workers=workers, api_key_file=str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match="cannot read the API keys"):
        server.serve(lambda: pytest.fail("the model was loaded"), settings)


@pytest.mark.parametrize(("content", "named"), [("", "has no API key"), ("a b\n", "the API key must be ASCII")])
def test_a_file_of_keys_that_cannot_be_used_is_named(tmp_path, content, named):
    (tmp_path / "keys").write_text(content)
    with pytest.raises(ValueError, match=named):
        Access(Settings(api_key_file=str(tmp_path / "keys")))
    with pytest.raises(ValueError, match="cannot read the API keys"):
        Access(Settings(api_key_file=str(tmp_path / "nowhere")))


@pytest.mark.parametrize(
    ("host", "key", "warns"), [("0.0.0.0", None, True), ("0.0.0.0", "k", False), ("127.0.0.1", None, False)]
)
def test_an_open_server_warns(monkeypatch, caplog, host, key, warns):
    monkeypatch.setattr(server, "_run", lambda *_: None)  # it ends before the first request
    server.serve(make_model, Settings(host=host, port=0, api_key=key))
    assert ("other machines can use this server without an API key" in caplog.text) is warns


def test_the_verb_passes_on_what_an_operator_sets(monkeypatch, loggers, folder):
    calls = []
    monkeypatch.setattr(server, "serve", lambda load, settings, **more: calls.append((load, settings, more)))
    arguments = ["--drain", "7", "--log-level", "warning", "--api-key", "a", "--api-key", "b", "--api-key-file", "keys"]
    arguments += ["--allowed-host", "API.example", str(folder), f"legal={folder}"]
    assert CliRunner().invoke(cli_serve.serve, arguments).exception is None
    ((load, settings, more),) = calls
    assert (settings.drain, settings.keys, settings.api_key_file) == (7.0, ("a", "b"), "keys")
    assert settings.allowed_hosts == ("api.example",)
    assert (more["name"], list(more["models"])) == (str(folder), ["legal"])
    assert load().digest() == more["models"]["legal"]().digest()
    more["on_listening"]("http://127.0.0.1:80")
    assert logging.getLogger("elmokit").level == logging.WARNING


@pytest.mark.parametrize(
    ("models", "named"), [(["legal="], "write a name and a model"), (["en", "en"], "there are two models en")]
)
def test_models_without_a_name_of_their_own_are_refused(models, named):
    assert named in str(CliRunner().invoke(cli_serve.serve, models).exception)


def test_several_keys_come_from_the_environment(monkeypatch, folder):
    calls = []
    monkeypatch.setattr(server, "serve", lambda load, settings, **more: calls.append(settings))
    CliRunner().invoke(cli_serve.serve, [str(folder)], env={"ELMOKIT_API_KEY": "old new"})
    assert calls[0].keys == ("old", "new")


# ---- bodies that do not end ------------------------------------------------------------------------------------------


def test_half_sent_bodies_do_not_lock_others_out(model):
    with (
        serving(model, Settings(max_requests=8, drain=0.0, client_timeout=20)) as client,
        contextlib.ExitStack() as stack,
    ):
        for _ in range(560):
            slow = stack.enter_context(socket.create_connection(client.address))
            slow.sendall(raw_request("/embed", b'{"inp', length=100))
        begin = time.monotonic()
        for _ in range(5):
            post(client, "/embed", {"inputs": "The bank lent money."})
        assert time.monotonic() - begin < 15
        slow.sendall(b'uts": "a"}' + b" " * 85)
        assert slow.recv(100).startswith(b"HTTP/1.1 200"), "a body that is complete at last is answered"


@pytest.mark.parametrize("limits", [{"max_uploads": 3}, {"max_upload_bytes": 200}])
def test_the_oldest_of_too_many_half_sent_bodies_is_given_up(limits):
    uploads = Uploads(max_body_bytes=100, client_timeout=30, **limits)

    async def run():
        queues = [asyncio.Queue() for _ in range(4)]
        tasks = []
        for queue in queues:
            queue.put_nowait({"type": "http.request", "body": b"x" * 60, "more_body": True})
            tasks.append(asyncio.ensure_future(uploads.read(queue.get)))
            await asyncio.sleep(0.01)
        for queue in queues:
            queue.put_nowait({"type": "http.request", "body": b"yy", "more_body": False})
        return await asyncio.gather(*tasks, return_exceptions=True)

    oldest, *others = asyncio.run(run())
    assert isinstance(oldest, RefusalError)
    assert (oldest.status, oldest.headers["retry-after"]) == (503, "1")
    assert others == [b"x" * 60 + b"yy"] * 3
    assert uploads._num_bytes == 0


# ---- load ------------------------------------------------------------------------------------------------------------


def test_a_request_that_would_be_late_is_503_at_once(model, slow):
    with serving(model, Settings(deadline=10.0, batch_tokens=20, drain=0.0), tasks={"slow": slow}) as client:
        batcher = client.app.state.engine.batcher
        batcher._admission.pace("task slow").tokens_per_second = 100.0
        thread, answers = in_background(client, "/tasks/slow", {"inputs": ["a " * 100] * 3})
        assert slow.entered.wait(30)
        begin = time.monotonic()
        response = client.post("/tasks/slow", json={"inputs": ["a " * 100]})
        error_of(response, 503, "Overloaded")
        assert 1 <= int(response.headers["retry-after"]) <= 4
        assert time.monotonic() - begin < 3
        slow.gate.set()
        thread.join(30)
        assert answers[0].status_code == 200


def test_clients_behind_a_proxy_are_told_apart_by_their_keys_and_addresses(model, slow):
    with serving(model, Settings(api_keys=("a", "b"), drain=0.0), tasks={"slow": slow}) as client:
        batcher, names = client.app.state.engine.batcher, []
        submit = batcher.submit

        async def noting(lane, items, costs, ticket=None):
            names.append(ticket.client)
            return await submit(lane, items, costs, ticket)

        batcher.submit = noting
        for key, address in [("a", "10.0.0.1"), ("a", "10.0.0.2"), ("b", "10.0.0.1"), ("b", "10.0.0.1")]:
            headers = {"authorization": f"Bearer {key}", "x-forwarded-for": address}
            post(client, "/embed", {"inputs": "a"}, **headers)
    assert names == ["0 10.0.0.1", "0 10.0.0.2", "1 10.0.0.1", "1 10.0.0.1"]


# ---- metrics ---------------------------------------------------------------------------------------------------------


def test_metrics_have_the_process_and_the_build(client):
    text = client.get("/metrics").text
    values = dict(re.findall(r"^(process_\w+) (\S+)$", text, re.MULTILINE))
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    assert float(values["process_resident_memory_bytes"]) == pytest.approx(pages * os.sysconf("SC_PAGE_SIZE"), rel=0.2)
    assert float(values["process_open_fds"]) > 3
    assert re.search(r'^elmokit_build_info\{python="3[^"]+",torch="[^"]+",version="[^"]+"\} 1.0$', text, re.MULTILINE)


def test_metrics_of_workers_are_summed(folder):
    with process(folder, "--workers", 2) as running:
        wait_for(lambda: sum(line["message"] == "serving" for line in running.log) == 2)
        workers = [line["process"] for line in running.log if line["message"] == "serving"]
        wait_for(lambda: httpx.get(f"{running.url}/ready", timeout=60).status_code == 200)

        def resident():
            text = httpx.get(f"{running.url}/metrics", timeout=60).text
            return float(re.search(r"^process_resident_memory_bytes (\S+)$", text, re.MULTILINE)[1])

        pages = sum(int(Path(f"/proc/{worker}/statm").read_text().split()[1]) for worker in workers)
        wait_for(lambda: resident() == pytest.approx(pages * os.sysconf("SC_PAGE_SIZE"), rel=0.2))
        assert running.log[0]["models"] == [str(folder)]
