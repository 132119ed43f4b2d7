"""What the tests of the server share: a tiny model, stand-ins for tasks, a server in a thread, and requests."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import httpx
import torch

from elmokit import BiLM, BiLMConfig, ELMo, Vocabulary
from elmokit.network import OutputLayer
from elmokit.serve.app import create_app
from elmokit.serve.server import make_server
from elmokit.serve.settings import Settings

WORDS = ["<S>", "</S>", "<UNK>", ".", "the", "of", "a", "bank", "river", "money", "sat", "by", "lent", "He", "The"]
TEXTS = ["The bank lent money.", "", "He sat by the river bank.", "a", "the of " * 30, "Grüße, 銀行 🏦!"]
CORPUS = ["The bank lent money .", "He sat by the river .", "a bank by the river", "the money of the bank ."]
PROGRAM = "from elmokit.cli.serve import serve; serve()"
TOLERANCE = {"atol": 1e-6, "rtol": 0}
SENSE_TOLERANCE = {"atol": 1e-5, "rtol": 0}  # parts of length one: the rounding of short vectors is magnified


class Capitals:
    """Stands in for a trained task: the words with a capital letter."""

    def predict(self, texts):
        if any(text == "fail" for text in texts):
            raise RuntimeError("a secret text")
        return [{"capitals": [word for word in str(text).split() if word[:1].isupper()]} for text in texts]


class Slow:
    """Stands in for a trained task: waits until its gate is opened."""

    def __init__(self):
        self.gate, self.entered, self.seen = threading.Event(), threading.Event(), []

    def predict(self, texts):
        self.seen += texts
        self.entered.set()
        assert self.gate.wait(30)
        return list(texts)


def make_model(*, language_model=True, seed=0, words=WORDS, **settings):
    torch.manual_seed(seed)
    config = BiLMConfig(char_dim=4, filters=((1, 8), (2, 8)), num_highways=1, cell_dim=16, projection_dim=8)
    words = list(dict.fromkeys(["<S>", "</S>", "<UNK>", *words]))
    parts = {"output_layer": OutputLayer(len(words), 8), "vocabulary": Vocabulary(words)} if language_model else {}
    return ELMo(BiLM(config), **parts, **settings).eval()


@contextlib.contextmanager
def serving(model, settings=None, *, listening=None, **more):
    """A server in a thread; its application and a client."""
    settings = settings or Settings(port=0, drain=0.0)
    app = create_app(model, settings, **more)
    server = make_server(app, settings)
    listening = listening or socket.create_server(("127.0.0.1", 0))
    address = listening.getsockname()
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    while not server.started:
        time.sleep(0.005)

    def stop():
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()

    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{address[1]}", timeout=60) as client:
            client.address, client.app, client.stop = address, app, stop
            yield client
    finally:
        stop()


@contextlib.contextmanager
def process(*arguments, program=PROGRAM, **environment):
    """A server as a process, its URL and the lines of its log so far."""
    running = subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments), "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "2", **environment},
    )
    running.log = []
    ready = threading.Event()

    def read():
        for line in running.stderr:
            running.log.append(json.loads(line))
            if "url" in running.log[-1]:
                running.url = running.log[-1]["url"]
                ready.set()
        ready.set()

    reader = threading.Thread(target=read)
    reader.start()
    try:
        assert ready.wait(60)
        yield running
    finally:
        if running.poll() is None:
            running.send_signal(signal.SIGTERM)
        running.wait(60)
        reader.join(60)
        running.stderr.close()


def post(client, path, body, **headers):
    response = client.post(path, json=body, headers=headers)
    assert response.status_code == 200, response.text
    return response


def error_of(response, status, error_type):
    """The message of an answer that is an error of this kind."""
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"error", "error_type"}
    assert body["error_type"] == error_type
    if response.url.path.startswith("/v1/"):  # the format of OpenAI
        assert body["error"] == {"message": body["error"]["message"], "type": error_type, "param": None, "code": None}
        return body["error"]["message"]
    return body["error"]


def in_background(client, path, body):
    """A request in a thread; its answer is appended to the list that comes back."""
    answers = []

    def ask():
        with httpx.Client(base_url=client.base_url, timeout=60) as own:
            answers.append(own.post(path, json=body))

    thread = threading.Thread(target=ask)
    thread.start()
    return thread, answers


def wait_for(condition):
    for _ in range(12_000):  # a minute
        if condition():
            return
        time.sleep(0.005)
    raise AssertionError("it did not happen")


def raw_request(path, body, length=None, headers=""):
    length = len(body) if length is None else length
    fixed = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n"
    return f"{fixed}{headers}\r\n".encode() + body


def reply_to(address, *parts, half_close=False):
    """All bytes that the server answers to these."""
    with socket.create_connection(address, timeout=30) as connection:
        with contextlib.suppress(OSError):
            for part in parts:
                connection.sendall(part)
            if half_close:
                connection.shutdown(socket.SHUT_WR)
        return read_all(connection)


def read_all(connection):
    """All bytes that come from a connection until it is closed."""
    answer = b""
    with contextlib.suppress(OSError):
        while part := connection.recv(65536):
            answer += part
    return answer
