"""Batches of many requests: each gets its own results, in fair turns, within the budget; cancelled ones do not run."""

import asyncio
import contextlib
import threading

import pytest

from elmokit.serve.batching import Batcher, OverloadedError
from elmokit.serve.settings import Settings


class Model:
    """Doubles numbers, notes each batch, and waits at a gate before each of them."""

    def __init__(self, *, open_gate=True):
        self.batches = []
        self.gate = threading.Semaphore(10**6 if open_gate else 0)
        self.entered = threading.Semaphore(0)

    def __call__(self, items):
        self.batches.append(list(items))
        self.entered.release()
        self.gate.acquire()
        if "bad" in items:
            raise ValueError("a bad item")
        return [item * 2 for item in items]

    async def is_in_a_batch(self):
        await asyncio.to_thread(self.entered.acquire)


@pytest.fixture
def batcher():
    """batcher(lanes, **settings): started, and closed at the end."""
    made = []

    def make(lanes, *, batch_tokens=100, queue_tokens=1000, patience=0.0, **settings):
        made.append(Batcher(lanes, batch_tokens=batch_tokens, queue_tokens=queue_tokens, patience=patience, **settings))
        made[-1].start()
        return made[-1]

    yield make
    for one in made:
        for lane in one.lanes.values():
            lane.gate.release(10**6)
        one.close()


def test_results_come_in_the_order_of_the_items_whoever_shares_the_batch(batcher):
    model = Model()
    b = batcher({"a": model}, patience=0.01)

    async def run():
        return await asyncio.gather(*(b.submit("a", range(n, n + 7), [5] * 7) for n in range(0, 700, 7)))

    assert asyncio.run(run()) == [[2 * n for n in range(first, first + 7)] for first in range(0, 700, 7)]
    assert sorted(item for batch in model.batches for item in batch) == list(range(700))


def test_a_batch_stays_within_its_tokens_unless_a_single_piece_is_more(batcher):
    model = Model()
    b = batcher({"a": model}, batch_tokens=10)
    costs = {1: 4, 2: 4, 3: 4, 4: 30, 5: 10, 6: 1}
    assert asyncio.run(b.submit("a", list(costs), list(costs.values()))) == [2, 4, 6, 8, 10, 12]
    assert all(sum(costs[item] for item in batch) <= 10 or len(batch) == 1 for batch in model.batches)
    assert max(map(len, model.batches)) > 1


def test_no_items_need_no_batch(batcher):
    model = Model()
    assert asyncio.run(batcher({"a": model}).submit("a", [], [])) == []
    assert model.batches == []


def test_pieces_of_different_lanes_never_run_together(batcher):
    numbers, letters = Model(), Model()
    b = batcher({"numbers": numbers, "letters": letters}, patience=0.01)

    async def run():
        return await asyncio.gather(
            *(b.submit("numbers", [n], [1]) for n in range(5)), *(b.submit("letters", [c], [1]) for c in "abc")
        )

    assert asyncio.run(run()) == [[0], [2], [4], [6], [8], ["aa"], ["bb"], ["cc"]]
    assert {item for batch in numbers.batches for item in batch} == set(range(5))
    assert {item for batch in letters.batches for item in batch} == set("abc")


def test_a_short_request_passes_the_rest_of_a_long_document(batcher):
    model = Model(open_gate=False)
    b = batcher({"a": model}, batch_tokens=100)

    async def run():
        document = asyncio.ensure_future(b.submit("a", list(range(100)), [20] * 100))
        await model.is_in_a_batch()  # the first five sentences run, ninety-five wait
        short = asyncio.ensure_future(b.submit("a", ["x"], [20]))
        await asyncio.sleep(0)
        model.gate.release(2)
        assert await short == ["xx"]
        assert not document.done()
        model.gate.release(100)
        assert await document == [2 * n for n in range(100)]

    asyncio.run(run())
    assert "x" in model.batches[1]
    assert len(model.batches[1]) == 5, "the document makes progress too"


def test_a_document_makes_progress_while_short_requests_keep_coming(batcher):
    model = Model(open_gate=False)
    b = batcher({"a": model}, batch_tokens=40)

    async def run():
        document = asyncio.ensure_future(b.submit("a", list(range(10)), [20] * 10))
        shorts = []
        while not document.done():  # each batch could be filled by the two that have just come
            await model.is_in_a_batch()
            assert len(model.batches) < 100
            shorts += [asyncio.ensure_future(b.submit("a", ["x"], [20])) for _ in range(2)]
            await asyncio.sleep(0)
            model.gate.release()
            await asyncio.sleep(0.001)
        assert await document == [2 * n for n in range(10)]
        model.gate.release(1000)
        await asyncio.gather(*shorts)

    asyncio.run(run())


def test_short_requests_run_in_the_pauses_of_a_long_sentence(batcher):
    pauses = []

    @contextlib.contextmanager
    def pausing(call):
        pauses.append(call)
        yield
        pauses.pop()

    class Pausing(Model):
        """Pauses once in each batch in which it may, after its gate."""

        def __call__(self, items):
            results = super().__call__(items)
            for pause in list(pauses):
                pause()
                self.batches.append("after the pause")
            return results

    model = Pausing(open_gate=False)
    reports = []
    b = batcher({"a": model}, batch_tokens=800, pausing=pausing, report=reports.append)

    async def run():
        first = asyncio.ensure_future(b.submit("a", ["x"], [20]))
        await model.is_in_a_batch()
        document = asyncio.ensure_future(b.submit("a", [1], [500]))
        short = asyncio.ensure_future(b.submit("a", ["y"], [20]))
        await asyncio.sleep(0)
        model.gate.release(3)
        assert await asyncio.gather(first, short, document) == [["xx"], ["yy"], [2]]

    asyncio.run(run())
    assert model.batches == [["x"], [1], ["y"], "after the pause", "after the pause"]
    assert [report.num_tokens for report in reports] == [20, 20, 500], "the short one ends first"


def test_a_sentence_much_longer_than_the_one_whose_turn_it_is_waits_for_its_own(batcher):
    model = Model(open_gate=False)
    b = batcher({"a": model}, batch_tokens=2000)

    async def run():
        first = asyncio.ensure_future(b.submit("a", ["first"], [10]))
        await model.is_in_a_batch()
        rest = [asyncio.ensure_future(b.submit("a", [name], [cost])) for name, cost in [("s", 9), ("long", 500)]]
        rest += [asyncio.ensure_future(b.submit("a", ["t"], [120]))]
        await asyncio.sleep(0)
        model.gate.release(10)
        await asyncio.gather(first, *rest)

    asyncio.run(run())
    assert model.batches == [["first"], ["s", "t"], ["long"]]


def test_short_sentences_join_a_long_one_whose_turn_it_is(batcher):
    model = Model(open_gate=False)
    b = batcher({"a": model}, batch_tokens=2000)

    async def run():
        first = asyncio.ensure_future(b.submit("a", ["first"], [10]))
        await model.is_in_a_batch()
        rest = [asyncio.ensure_future(b.submit("a", [name], [cost])) for name, cost in [("long", 500), ("s", 9)]]
        await asyncio.sleep(0)
        model.gate.release(10)
        await asyncio.gather(first, *rest)

    asyncio.run(run())
    assert model.batches == [["first"], ["long", "s"]]


def test_a_full_batch_does_not_wait_for_more_requests(batcher):
    model = Model()
    b = batcher({"a": model}, batch_tokens=2, patience=60.0)

    async def run():
        return await asyncio.wait_for(asyncio.gather(b.submit("a", [1], [1]), b.submit("a", [2], [1])), 30)

    assert asyncio.run(run()) == [[2], [4]]
    assert model.batches == [[1, 2]]


def test_a_cancelled_request_never_runs(batcher):
    model = Model(open_gate=False)
    b = batcher({"a": model}, batch_tokens=10)

    async def run():
        first = asyncio.ensure_future(b.submit("a", [1, 2, 3], [10] * 3))
        await model.is_in_a_batch()
        gone = asyncio.ensure_future(b.submit("a", ["gone"] * 5, [10] * 5))
        await asyncio.sleep(0)
        gone.cancel()
        first.cancel()
        await asyncio.sleep(0)
        last = asyncio.ensure_future(b.submit("a", ["last"], [10]))
        await asyncio.sleep(0)
        model.gate.release(10)
        assert await last == ["lastlast"]

    asyncio.run(run())
    assert model.batches == [[1], ["last"]]
    assert b.tokens_waiting == 0


def test_a_bad_item_fails_only_its_own_request(batcher):
    model = Model()
    b = batcher({"a": model}, patience=0.05)

    async def run():
        requests = (b.submit("a", items, [1] * len(items)) for items in ([1, 2], [3, "bad", 4], [5]))
        return await asyncio.gather(*requests, return_exceptions=True)

    good, bad, other = asyncio.run(run())
    assert good == [2, 4]
    assert isinstance(bad, ValueError)
    assert other == [10]


def test_what_waits_for_an_answer_is_bounded():
    b = Batcher({}, batch_tokens=10, queue_tokens=100, patience=0.0)
    first = b.admit(60)
    b.check_capacity()
    with pytest.raises(OverloadedError) as full:
        b.admit(41)
    assert full.value.retry_after >= 1
    b.admit(40)
    with pytest.raises(OverloadedError):
        b.check_capacity()
    b.release(first)
    b.admit(60)
    assert b.admitted == 100


def test_no_more_is_admitted_than_can_be_answered_in_time(batcher):
    model = Model(open_gate=False)
    b = batcher({"a": model}, batch_tokens=10, queue_tokens=10**9, max_wait=0.001)

    async def run():
        first = asyncio.ensure_future(b.submit("a", [1], [10]))
        await model.is_in_a_batch()
        await asyncio.sleep(0.05)  # ten tokens take all of this
        model.gate.release()
        await first

    b.admit(1)
    b.admit(15)
    asyncio.run(run())
    with pytest.raises(OverloadedError):
        b.admit(10)  # two batches fit, however slow they are
    b.admit(4)


def test_a_request_as_large_as_it_may_be_enters_an_empty_queue():
    b = Batcher({}, batch_tokens=10, queue_tokens=100, patience=0.0)
    b.admit(200)
    assert b.admitted == 200


def test_each_batch_is_reported(batcher):
    reports = []
    b = batcher({"a": Model()}, report=reports.append)
    asyncio.run(b.submit("a", [1, 2, 3], [2, 3, 4]))
    assert sum(report.num_tokens for report in reports) == 9
    assert sum(report.num_pieces for report in reports) == 3
    assert all(report.lane == "a" and report.seconds >= 0 and report.queue_seconds >= 0 for report in reports)


def test_an_event_loop_that_is_closed_does_not_stop_the_batcher(batcher):
    model = Model(open_gate=False)
    b = batcher({"a": model})
    loop = asyncio.new_event_loop()
    lost = loop.create_task(b.submit("a", [1], [1]))
    loop.run_until_complete(model.is_in_a_batch())
    lost._log_destroy_pending = False
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    model.gate.release(5)
    assert asyncio.run(b.submit("a", [2], [1])) == [4]


def test_a_closed_batcher_refuses_requests():
    b = Batcher({"a": Model()}, batch_tokens=10, queue_tokens=100, patience=0.0)
    b.start()
    assert b.is_alive
    b.close()
    assert not b.is_alive
    with pytest.raises(RuntimeError):
        asyncio.run(b.submit("a", [1], [1]))


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"port": -1}, "port is -1"),
        ({"port": 70000}, "port is 70000"),
        ({"workers": 0}, "workers is 0"),
        ({"patience": -0.1}, "patience is -0.1"),
        ({"deadline": 0.0}, "deadline is 0.0"),
        ({"api_key": ""}, "API key"),
        ({"api_key": "käse"}, "API key"),
        ({"max_sentence_tokens": 9000}, "max_sentence_tokens is 9000"),
        ({"queue_tokens": 100}, "queue_tokens is 100"),
    ],
)
def test_inconsistent_settings_are_refused(wrong, named):
    with pytest.raises(ValueError, match=named):
        Settings(**wrong)
