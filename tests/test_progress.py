"""Progress of long work: lines on standard error where there is no terminal, not too many of them."""

import sys

import numpy as np
import pytest

from elmokit import ELMo, embed_spans, progress
from elmokit.progress import Lines, downloads, progress_bar

SENTENCES = [["word"] * (1 + number % 7) for number in range(40)]


class Clock:
    """The time, which tests move."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(progress.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def test_a_line_has_what_is_done_the_rate_and_the_time_left(clock, capsys):
    lines = Lines("embedding", in_bytes=True)
    for second in range(1, 13):
        clock.now += 1
        lines.show(second * 500_000, 60_000_000)
    assert capsys.readouterr().err.splitlines() == [
        "embedding: 2.5 MB of 60.0 MB (4%), 500.0 kB/s, 0:01:55 left",
        "embedding: 5.0 MB of 60.0 MB (8%), 500.0 kB/s, 0:01:50 left",
    ]


def test_the_rate_is_that_of_the_last_lines_so_that_a_resumed_run_does_not_seem_fast(clock, capsys):
    lines = Lines("sentences", in_bytes=False)
    done = 0
    for step in range(20):
        clock.now += 5
        done += 100_000 if step < 2 else 50
        lines.show(done, 300_000)
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"sentences: {done:,} of 300,000 (66%), 10/s, ")


def test_short_work_writes_nothing_and_long_work_at_most_a_line_a_minute_after_an_hour(clock, capsys):
    with progress_bar("embedding", 100) as advance:
        advance(100)
    assert capsys.readouterr().err == ""
    with progress_bar("embedding", None) as advance:
        for _ in range(2 * 3600):
            clock.now += 1
            advance(1)
    lines = capsys.readouterr().err.splitlines()
    assert 100 < len(lines) < 400
    assert lines[0] == "embedding: 5 bytes, 1 bytes/s"
    assert lines[-1] == "embedding: 7.2 kB, 2:00:00 in all"


def test_a_next_stage_starts_its_rate_again(clock, capsys):
    lines = Lines("probing", in_bytes=False)
    for done, total in ((900, 1000), (10, 50), (20, 50)):
        clock.now += 10
        lines.show(done, total)
    assert capsys.readouterr().err.splitlines() == [
        "probing: 900 of 1,000 (90%), 90/s, 0:00:01 left",
        "probing: 10 of 50 (20%)",
        "probing: 20 of 50 (40%), 1/s, 0:00:30 left",
    ]


def test_a_reader_of_the_lines_that_is_gone_does_not_end_the_work(clock, monkeypatch):
    class Gone:
        def isatty(self):
            return False

        def write(self, text):
            raise BrokenPipeError

        flush = write

    monkeypatch.setattr(sys, "stderr", Gone())
    with progress_bar("embedding", 10) as advance:
        clock.now += 100
        advance(10)


def test_downloads_write_lines_too(clock, capsys):
    with downloads() as show:
        show("weights.hdf5", 0, 100_000_000)
        clock.now += 10
        show("weights.hdf5", 20_000_000, 100_000_000)
    assert capsys.readouterr().err == "weights.hdf5: 20.0 MB of 100.0 MB (20%), 2.0 MB/s, 0:00:40 left\n"


@pytest.mark.parametrize("call", ["embed", "encode", "embed_spans"])
def test_show_progress_writes_to_standard_error_only(call, tiny_elmo, capsys):
    model = ELMo.from_pretrained(tiny_elmo)
    if call == "embed_spans":
        embed_spans(model, SENTENCES, [[(0, 1)]] * 40, show_progress=True)
    else:
        getattr(model, call)(SENTENCES, show_progress=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    label = "spans of sentences" if call == "embed_spans" else "sentences"
    assert shown.err == f"{label}: 40 of 40 (100%), 0:00:00 in all\n"


def test_lines_come_while_the_work_lasts(tiny_elmo, capsys, monkeypatch):
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    ELMo.from_pretrained(tiny_elmo).embed(SENTENCES, batch_size=10, show_progress=True)
    amounts = [line.partition(",")[0] for line in capsys.readouterr().err.splitlines()]
    assert amounts == [f"sentences: {done} of 40 ({done * 100 // 40}%)" for done in (10, 20, 30, 40)]


@pytest.mark.parametrize("call", ["embed", "encode", "embed_spans"])
def test_show_progress_may_be_a_function_that_gets_the_counts(call, tiny_elmo):
    model, counts = ELMo.from_pretrained(tiny_elmo), []
    arguments = {"batch_size": 10, "show_progress": lambda done, total: counts.append((done, total))}
    if call == "embed_spans":
        embed_spans(model, SENTENCES, [[(0, 1)]] * 40, **arguments)
    else:
        getattr(model, call)(SENTENCES, **arguments)
    assert counts == [(10, 40), (20, 40), (30, 40), (40, 40)]


def test_a_bar_is_drawn_in_a_notebook(monkeypatch):
    monkeypatch.setitem(sys.modules, "ipykernel", np)
    assert progress.shows_bars()
