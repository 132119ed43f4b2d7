"""Who runs next, how large a batch is, and who is admitted: by turns, by time, and by what waits."""

import random
from collections import Counter, deque

import numpy as np
import pytest

from elmokit.serve.admission import Admission, OverloadedError
from elmokit.serve.pace import Pace
from elmokit.serve.turns import Piece, Request, Turns

PER_STEP, PER_TOKEN = 0.001, 0.00025


def seconds_of(lane, num_tokens, num_steps):
    return PER_STEP * num_steps + PER_TOKEN * num_tokens


def make_turns(**settings):
    return Turns(**{"batch_tokens": 2048, "max_age": 1e9, "seconds": seconds_of, **settings})


def ask(turns, client, costs, *, now=0.0, lane="a"):
    request = Request(client, lane, deque(Piece(n, n, cost) for n, cost in enumerate(costs)), now)
    turns.add(request)
    return request


def run(turns, now=0.0):
    """Run one batch: the costs of its pieces by client, and its seconds."""
    batch = turns.next_batch(now)
    for request in set(batch.requests):
        if not request.pieces:
            turns.remove(request)
    shares = Counter()
    for request, piece in zip(batch.requests, batch.pieces, strict=True):
        shares[request.client] += piece.cost
    return shares, seconds_of("a", batch.num_tokens, batch.num_steps)


def test_clients_share_the_model_equally_however_many_requests_they_send():
    turns = make_turns(batch_tokens=200)
    for _ in range(50):
        ask(turns, "many", [20] * 20)
    ask(turns, "one", [20] * 200)
    total = Counter()
    for _ in range(30):
        total.update(run(turns)[0])
    assert total["one"] == pytest.approx(total["many"], abs=200)


def test_the_requests_of_one_client_share_its_part():
    turns = make_turns(batch_tokens=200)
    requests = [ask(turns, "", [20] * 100) for _ in range(4)]
    for _ in range(20):
        run(turns)
    left = [len(request.pieces) for request in requests]
    assert max(left) - min(left) <= 1
    assert sum(left) == 400 - 20 * 10


def test_clients_that_come_and_go_do_not_hold_up_the_one_that_stays():
    turns = make_turns(batch_tokens=40)
    document = ask(turns, "stays", [20] * 20)
    for number in range(200):
        for one in range(2):  # each batch could be filled by the two that have just come
            ask(turns, f"{number} {one}", [20])
        run(turns)
        if not document.pieces:
            break
    assert not document.pieces
    assert len(turns._clients) < 200, "clients that are gone are forgotten"


def test_a_long_sentence_pauses_for_short_requests_while_they_come():
    turns = make_turns(can_pause=True)
    ask(turns, "document", [500] * 6)
    assert not turns.next_batch(0.0).pauses, "nobody else is there"
    waiting = ask(turns, "short", [20] * 2)
    batch = turns.next_batch(0.1)
    assert batch.pauses
    assert batch.num_tokens == 500, "a short request does not join it: it would end with it"
    assert turns.short_batch(0.1).requests == [waiting] * 2
    assert turns.short_batch(0.1) is None, "no short request waits"
    shorts = [ask(turns, f"short {number}", [20, 30], now=0.1) for number in range(20)]
    inside = turns.short_batch(0.2)
    assert set(inside.requests) < set(shorts), "no more than what a short request takes, and a half"
    assert inside.requests[0] is shorts[0]
    assert seconds_of("a", inside.num_tokens, inside.num_steps) <= 1.5 * seconds_of("a", 50, 30)
    assert turns.tokens_waiting == 500 + 20 * 50 - inside.num_tokens, "one sentence of the document, and short requests"


def test_a_long_sentence_that_is_overdue_does_not_pause():
    turns = make_turns(max_age=10.0, can_pause=True)
    ask(turns, "document", [500])
    ask(turns, "short", [20], now=10.5)
    batch = turns.next_batch(11.0)
    assert [request.client for request in batch.requests] == ["document", "short"]
    assert not batch.pauses


def test_batches_are_full_while_no_short_request_comes():
    turns = make_turns()
    ask(turns, "document", [20] * 400)
    assert run(turns)[0]["document"] == 2040


def test_batches_of_documents_are_short_while_short_requests_come_and_full_again_later():
    turns = make_turns()
    for _ in range(50):  # what short requests take is known
        ask(turns, "short", [20] * 4)
        run(turns)
    alone = seconds_of("a", 80, 20)
    ask(turns, "document", [20] * 400)
    assert run(turns)[1] <= 1.5 * alone
    ask(turns, "short", [20] * 4)
    shares, seconds = run(turns)
    assert shares["short"] == 80
    assert seconds <= 1.5 * alone
    assert run(turns, now=3.0)[0]["document"] == 2040


def test_a_short_request_that_waited_long_still_does_not_share_a_full_batch():
    turns = make_turns()
    for _ in range(50):
        ask(turns, "short", [20] * 4)
        run(turns)
    ask(turns, "document", [20] * 400)
    ask(turns, "short", [20] * 4, now=1.0)
    shares, seconds = run(turns, now=100.0)  # the batch before it took this long
    assert shares["short"] == 80
    assert seconds <= 1.5 * seconds_of("a", 80, 20)
    assert run(turns, now=101.0)[1] <= 1.5 * seconds_of("a", 80, 20)


def test_short_requests_fill_batches_with_each_other():
    turns = make_turns()
    for number in range(200):
        ask(turns, str(number), [20])
    assert sum(run(turns)[0].values()) == 2040


def test_a_request_that_has_waited_too_long_goes_first():
    turns = make_turns(batch_tokens=100, max_age=10.0)
    old = ask(turns, "old", [20] * 50, now=0.0)
    for number in range(100):
        ask(turns, str(number), [20] * 5, now=0.1)
    for _ in range(5):
        run(turns, now=1.0)
    assert len(old.pieces) > 40, "its share is small"
    for _ in range(10):
        run(turns, now=10.05)
    assert not old.pieces


def test_a_piece_runs_once_in_random_traffic_with_requests_that_leave():
    rng, turns, ran, expected, alive = random.Random(3), make_turns(batch_tokens=120, max_age=5.0), Counter(), 0, []
    for tick in range(2000):
        if rng.random() < 0.4:
            costs = [rng.randint(1, 60) for _ in range(rng.randint(1, 12))]
            alive.append(ask(turns, str(rng.randrange(6)), costs, now=tick / 10, lane=rng.choice("ab")))
            expected += len(costs)
        if alive and rng.random() < 0.05:
            leaver = alive.pop(rng.randrange(len(alive)))
            expected -= len(leaver.pieces)
            turns.remove(leaver)
        batch = turns.next_batch(tick / 10)
        if batch is None:
            assert turns.tokens_waiting == 0
            continue
        assert batch.num_tokens == sum(piece.cost for piece in batch.pieces)
        assert batch.num_tokens <= 120 or len(batch.pieces) == 1
        assert {request.lane for request in batch.requests} == {batch.lane}
        ran.update((id(request), piece.index) for request, piece in zip(batch.requests, batch.pieces, strict=True))
        for request in [one for one in alive if not one.pieces]:
            alive.remove(request)
            turns.remove(request)
    while (batch := turns.next_batch(1e6)) is not None:
        ran.update((id(request), piece.index) for request, piece in zip(batch.requests, batch.pieces, strict=True))
    assert turns.tokens_waiting == 0
    assert sum(ran.values()) == expected


def test_the_pace_is_fitted_per_step_and_per_token():
    pace, rng = Pace(2048), np.random.default_rng(0)
    sizes = [(int(rng.integers(n, 2049)), n) for n in rng.integers(3, 60, 80).tolist()]
    for num_tokens, num_steps in sizes:
        pace.record(num_tokens, num_steps, seconds_of("a", num_tokens, num_steps), 1.0)
    matrix = np.array([(steps, tokens) for tokens, steps in sizes])
    expected = np.linalg.lstsq(matrix, matrix @ [PER_STEP, PER_TOKEN], rcond=None)[0] @ [20, 500]
    assert pace.seconds(500, 20) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("sizes", [[(10, 10)] * 5, [(100, 5), (50, 50)]])
def test_a_pace_is_never_negative(sizes):
    pace = Pace(100)
    for num_tokens, num_steps in sizes:
        pace.record(num_tokens, num_steps, 1.0 / num_steps, 1.0)
    assert all(pace.seconds(tokens, steps) >= 0 for tokens, steps in [(1, 1), (1000, 1), (1000, 1000)])


def make_admission(tokens_per_second=100.0, **settings):
    admission = Admission(**{"batch_tokens": 10, "queue_tokens": 10**9, "max_wait": 10.0, **settings})
    admission.pace("a").tokens_per_second = tokens_per_second
    admission.pace("slow").tokens_per_second = tokens_per_second / 10
    return admission


def admit(admission, tokens, client, lane="a"):
    return admission.admit(tokens, lane=lane, client=client, cost=tokens)


def test_a_client_is_refused_before_it_would_wait_too_long_and_told_when_to_come_back():
    admission = make_admission()
    admit(admission, 900, "one")
    admit(admission, 100, "one")
    with pytest.raises(OverloadedError) as late:
        admit(admission, 300, "one")
    assert (late.value.reason, late.value.retry_after) == ("time", 3)
    admit(admission, 300, "another")  # its turns come between those of the other
    with pytest.raises(OverloadedError):
        admit(admission, 200, "third")  # all together are bounded too


def test_slow_work_counts_by_its_own_speed():
    admission = make_admission()
    admit(admission, 95, "one", "slow")
    with pytest.raises(OverloadedError):
        admit(admission, 60, "one")
    admit(admission, 40, "one")


def test_what_has_run_does_not_count():
    admission = make_admission()
    ticket = admit(admission, 1000, "one")
    admission.has_run(ticket, 400)
    admit(admission, 400, "one")
    with pytest.raises(OverloadedError):
        admit(admission, 50, "one")
    admission.release(ticket)
    admit(admission, 500, "one")
    assert admission.tokens == 900


def test_a_full_queue_is_another_reason_than_time():
    admission = make_admission(queue_tokens=100)
    admit(admission, 100, "one")
    with pytest.raises(OverloadedError) as full:
        admission.check("two")
    assert full.value.reason == "queue"


@pytest.mark.parametrize("seed", range(2))
def test_whoever_is_admitted_is_answered_before_the_deadline_at_300_percent(seed):
    """A simulation with its own clock: documents and short requests of several clients, three times what can run."""
    deadline, speed = 30.0, 1 / PER_TOKEN
    rng = random.Random(seed)
    admission = Admission(batch_tokens=2048, queue_tokens=10**6, max_wait=0.35 * deadline)
    turns = make_turns(max_age=1.1 * 0.35 * deadline, seconds=lambda lane, *size: admission.pace(lane).seconds(*size))
    now, waiting, waits, num_refused, next_arrival = 0.0, {}, {"short": [], "document": []}, 0, 0.0
    while now < 60:
        while next_arrival <= now:
            kind = "short" if rng.random() < 0.97 else "document"
            costs = [22] * 4 if kind == "short" else [22] * 300
            next_arrival += rng.expovariate(3 * speed / (0.97 * 88 + 0.03 * 6600))
            try:
                ticket = admission.admit(sum(costs), lane="a", client=f"{kind} {rng.randrange(8)}", cost=sum(costs))
            except OverloadedError:
                num_refused += 1
                continue
            request = ask(turns, ticket.client, costs, now=next_arrival)
            waiting[request] = (ticket, kind)
        batch = turns.next_batch(now)
        if batch is None:
            now = next_arrival
            continue
        seconds = seconds_of("a", batch.num_tokens, batch.num_steps)
        now += seconds
        admission.pace("a").record(batch.num_tokens, batch.num_steps, seconds, seconds)
        for request, piece in zip(batch.requests, batch.pieces, strict=True):
            admission.has_run(waiting[request][0], piece.cost)
        for request in set(batch.requests):
            if not request.pieces:
                ticket, kind = waiting.pop(request)
                waits[kind].append(now - request.arrived)
                admission.release(ticket)
                turns.remove(request)
    assert num_refused > 50
    assert len(waits["document"]) > 3
    assert max(waits["document"]) < deadline
    assert max(waits["short"]) < deadline
