"""Connections: bytes that are not HTTP, slow clients, and bodies in parts."""

import contextlib
import io
import json
import socket
import time

import numpy as np
import orjson
from served import TOLERANCE, error_of, post, raw_request, read_all, reply_to, serving, wait_for

from elmokit.serve import wire
from elmokit.serve.settings import Settings


def test_bytes_that_are_not_http_are_400_in_the_same_format(client):
    for garbage in (b"GARBAGE\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00", b"GET / HTTP/1.1\r\n\x00bad: x\r\n\r\n"):
        answer = reply_to(client.address, garbage + b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 400")
        assert set(json.loads(answer.split(b"\r\n\r\n", 1)[1])) == {"error", "error_type"}


def test_a_head_without_end_is_400(client):
    answer = reply_to(client.address, b"GET / HTTP/1.1\r\nhost: x\r\n", b"a: " + b"b" * 200_000)
    assert answer.startswith(b"HTTP/1.1 400")


def test_a_slow_client_is_not_waited_for(model):
    whole, begun = raw_request("/embed", b'{"inputs": "a"}'), b"POST /em"
    parts = [b"", begun, raw_request("/embed", b'{"inp', length=100), whole, whole + begun]
    with contextlib.ExitStack() as stack:
        listening, slow = socket.create_server(("127.0.0.1", 0)), []
        for part in parts:  # before the server starts: its timeouts begin when it has received them
            slow.append(stack.enter_context(socket.create_connection(listening.getsockname(), timeout=30)))
            slow[-1].sendall(part)
        stack.enter_context(serving(model, Settings(client_timeout=0.2, drain=0.0), listening=listening))
        first = b""
        while not first.endswith(b"]]"):
            first += (part := slow[3].recv(65536))
            assert part, first
        slow[3].sendall(begun)
        answers = [read_all(connection) for connection in slow]
    answers[3] = first + answers[3]
    for part, answer in zip(parts, answers, strict=True):
        assert answer.startswith(b"HTTP/1.1 200") == part.startswith(whole), part
        assert b"HTTP/1.1 408" in answer, part
        assert b'"error_type":"Timeout"' in answer


def test_a_client_that_does_not_read_its_answer_is_disconnected(model):
    with serving(model, Settings(client_timeout=0.3, drain=0.0)) as client:
        deaf = socket.socket()
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(client.address)
        body = orjson.dumps({"inputs": [["the"] * 500] * 16})
        with contextlib.suppress(OSError):
            for _ in range(3):
                deaf.sendall(raw_request("/layers", body))
        wait_for(lambda: 'route="/layers",status="499"' in client.get("/metrics").text)
        post(client, "/embed", {"inputs": "a"})
        assert client.app.state.engine.batcher.admitted == 0
        deaf.close()


def test_a_client_that_reads_slowly_gets_all_of_its_answer(client, model):
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.connect(client.address)
    tokens = [["the", "river"] * 250] * 16
    slow.sendall(raw_request("/layers", orjson.dumps({"inputs": tokens}), headers="accept: application/x-npy\r\n"))
    time.sleep(0.3)
    answer = b""
    while b"\r\n\r\n" not in answer or len(answer.split(b"\r\n\r\n", 1)[1]) < 3 * 8000 * 16 * 4 + 128:
        part = slow.recv(1 << 20)
        assert part, "the answer ended too soon"
        answer += part
    slow.close()
    found = np.load(io.BytesIO(answer.split(b"\r\n\r\n", 1)[1]))
    np.testing.assert_allclose(found[:, :500], model.embed(tokens[:1], layers="all")[0], **TOLERANCE)


def test_a_body_in_chunks_is_held_against_the_limit_too(model):
    with serving(model, Settings(max_body_bytes=1000, drain=0.0)) as client:
        pieces = [b'{"inputs": "', b"a" * 600, b"b" * 600, b'"}']
        response = client.post("/embed", content=iter(pieces), headers={"content-type": "application/json"})
        error_of(response, 413, "Validation")
        response = client.post("/embed", content=iter([b'{"inputs":', b'"a"}']), headers={"content-type": wire.JSON})
        assert response.status_code == 200
        huge = reply_to(client.address, raw_request("/embed", b"a" * 300_000))
        assert huge.startswith(b"HTTP/1.1 413"), "the answer is read though the body was not"


def test_a_client_that_leaves_before_its_body_is_complete_affects_no_other(client):
    assert reply_to(client.address, raw_request("/embed", b'{"inp', length=100), half_close=True) == b""
    wait_for(lambda: 'route="/embed",status="499"' in client.get("/metrics").text)
    post(client, "/embed", {"inputs": "a"})
