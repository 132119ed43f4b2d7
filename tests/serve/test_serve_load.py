"""Under load: a full queue, deadlines, clients that disconnect, and shutdown."""

import asyncio
import contextlib
import socket
import threading
import time

import numpy as np
from served import TOLERANCE, error_of, in_background, post, raw_request, read_all, serving, wait_for

from elmokit.serve.server import ACCEPT_SECONDS
from elmokit.serve.settings import Settings


def test_a_full_queue_answers_429_at_once_and_admits_again_later(model, slow):
    settings = Settings(max_request_tokens=20, max_sentence_tokens=20, queue_tokens=20, drain=0.0)
    with serving(model, settings, tasks={"slow": slow}) as client:
        thread, answers = in_background(client, "/tasks/slow", {"inputs": "a " * 15})
        assert slow.entered.wait(30)
        response = client.post("/embed", json={"inputs": "a " * 6})
        error_of(response, 429, "Overloaded")
        assert int(response.headers["retry-after"]) >= 1
        another, more = in_background(client, "/embed", {"inputs": "a " * 5})  # there is room for five
        engine = client.app.state.engine
        wait_for(lambda: engine.batcher.admitted == 20)
        error_of(client.post("/embed", json={"inputs": "a"}), 429, "Overloaded")
        assert client.get("/health").status_code == 200
        slow.gate.set()
        thread.join(30)
        another.join(30)
        assert [answer.status_code for answer in answers + more] == [200, 200]
        post(client, "/embed", {"inputs": "a " * 20})
        wait_for(lambda: engine.batcher.admitted == 0)


def test_more_requests_at_once_than_allowed_are_429(model, slow):
    with serving(model, Settings(max_requests=1, drain=0.0), tasks={"slow": slow}) as client:
        thread, answers = in_background(client, "/tasks/slow", {"inputs": "a"})
        assert slow.entered.wait(30)
        response = client.get("/info")
        error_of(response, 429, "Overloaded")
        assert response.headers["retry-after"] == "1"
        assert client.get("/health").status_code == 200
        slow.gate.set()
        thread.join(30)
        assert answers[0].status_code == 200


def test_a_request_past_its_deadline_is_504_and_never_runs(model, slow):
    with serving(model, Settings(deadline=0.2, drain=0.0), tasks={"slow": slow}) as client:
        thread, answers = in_background(client, "/tasks/slow", {"inputs": "a"})
        assert slow.entered.wait(30)
        error_of(client.post("/tasks/slow", json={"inputs": "b"}), 504, "Timeout")
        slow.gate.set()
        thread.join(30)
        assert answers[0].status_code == 504
        post(client, "/embed", {"inputs": "a"})
        assert slow.seen == ["a"]


def test_the_request_of_a_client_that_disconnects_never_runs(model, slow):
    with serving(model, tasks={"slow": slow}) as client:
        thread, _ = in_background(client, "/tasks/slow", {"inputs": "first"})
        assert slow.entered.wait(30)
        engine = client.app.state.engine
        leaver = socket.create_connection(client.address)
        leaver.sendall(raw_request("/tasks/slow", b'{"inputs": "two words"}'))
        wait_for(lambda: engine.batcher.admitted == 3)
        leaver.close()
        wait_for(lambda: engine.batcher.admitted == 1)
        slow.gate.set()
        thread.join(30)
        post(client, "/tasks/slow", {"inputs": "last"})
        assert slow.seen == ["first", "last"]
        assert 'status="499"' in client.get("/metrics").text


def test_what_was_accepted_is_answered_before_the_server_ends(model, slow):
    with serving(model, Settings(drain=0.2), tasks={"slow": slow}) as client:
        thread, answers = in_background(client, "/tasks/slow", {"inputs": "a"})
        assert slow.entered.wait(30)
        client.app.state.lifecycle.is_draining = True
        response = client.get("/ready")
        assert "shutting down" in error_of(response, 503, "Unhealthy")
        assert response.headers["connection"] == "close"
        threading.Timer(0.3, slow.gate.set).start()
    thread.join(30)
    assert answers[0].status_code == 200


def test_a_connection_that_comes_as_the_socket_is_closed_is_answered(model, monkeypatch):
    sleep, late = asyncio.sleep, []

    async def connect_instead(seconds):
        if seconds != ACCEPT_SECONDS:
            return await sleep(seconds)
        late.append(socket.create_connection(client.address, timeout=30))
        late[0].sendall(raw_request("/embed", b'{"inputs": "a"}'))  # and the event loop does not see it

    monkeypatch.setattr(asyncio, "sleep", connect_instead)
    with serving(model) as client:
        pass
    with late[0]:
        assert read_all(late[0]).startswith(b"HTTP/1.1 200")


def test_a_connection_made_before_the_end_may_still_send_its_request(model):
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(serving(model, Settings(drain=0.2)))
        fresh = stack.enter_context(socket.create_connection(client.address, timeout=30))
        idle = stack.enter_context(socket.create_connection(client.address, timeout=30))
        wait_for(lambda: client.get("/health").status_code == 200)
        lifecycle = client.app.state.lifecycle
        stop = threading.Thread(target=client.stop)
        stop.start()
        wait_for(lambda: lifecycle.is_draining)
        time.sleep(0.4)  # no connection is taken any more
        fresh.sendall(raw_request("/embed", b'{"inputs": "a"}'))
        answer = b""
        while part := fresh.recv(65536):
            answer += part
        assert answer.startswith(b"HTTP/1.1 200")
        assert b"connection: close" in answer
        assert idle.recv(100) == b""
        stop.join(30)


def test_a_short_request_is_answered_inside_a_long_sentence(model, slow):
    long, short, events = "the of " * 240, "The bank lent money.", []
    with serving(model, tasks={"slow": slow}) as client:
        batcher = client.app.state.engine.batcher
        run = batcher.lanes["vectors"]

        def noting(items):
            events.append(("begins", len(items[0][0])))
            results = run(items)
            events.append(("ends", len(items[0][0])))
            return results

        batcher.lanes["vectors"] = noting
        blocking, _ = in_background(client, "/tasks/slow", {"inputs": "a"})
        assert slow.entered.wait(30)
        first, long_answers = in_background(client, "/embed", {"inputs": long, "normalize": False})
        wait_for(lambda: batcher.tokens_waiting == 482)
        second, short_answers = in_background(client, "/embed", {"inputs": short, "normalize": False})
        wait_for(lambda: batcher.tokens_waiting == 482 + 7)
        slow.gate.set()
        for thread in (blocking, first, second):
            thread.join(30)
    assert events == [("begins", 480), ("begins", 5), ("ends", 5), ("ends", 480)]
    for text, answers in ((long, long_answers), (short, short_answers)):
        np.testing.assert_allclose(answers[0].json(), model.encode([text]), **TOLERANCE)
