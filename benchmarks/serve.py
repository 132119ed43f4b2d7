"""The server against the library on the same text, under load, beyond it, and under attack; figures on standard output.

    python benchmarks/serve.py all [--model MODEL] [--text FILE]       all but soak and hostile, in a few minutes
    python benchmarks/serve.py throughput|latency|overload|sigterm     one of them
    python benchmarks/serve.py soak --seconds 600
    python benchmarks/serve.py hostile --count 100000

Server and client share the machine: the client is a few lines over sockets so that it takes little of it.  Without a
model it is one of 1536 cells and projection 256 with random weights; without text it is made words by Zipf's law.
"""

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import click
import torch

from elmokit import BiLM, BiLMConfig, ELMo, Vocabulary
from elmokit.network import OutputLayer
from elmokit.text import tokenize

PROGRAM = "from elmokit.cli.serve import serve; serve()"


# ---- a server, a client ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def serving(model, *arguments):
    """A server as a process: its address, its process; its log goes to a file whose size stays small."""
    with tempfile.TemporaryFile("w+") as log:
        running = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(model), "--port", "0", *map(str, arguments)], stderr=log, text=True
        )
        try:
            running.address = _address(running, log)
            yield running
        finally:
            if running.poll() is None:
                running.send_signal(signal.SIGTERM)
            running.wait(120)


def _address(running, log):
    while True:
        assert running.poll() is None, "the server did not start"
        log.seek(0)
        for line in log:
            with contextlib.suppress(ValueError):
                if url := json.loads(line).get("url"):
                    log.seek(0, os.SEEK_END)
                    host, port = url.removeprefix("http://").rsplit(":", 1)
                    return host, int(port)
        time.sleep(0.1)


def resident(process):
    """Resident memory of a process in MB."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


class Client:
    """One connection that is kept; a request at a time."""

    def __init__(self, address):
        self.address, self.reader, self.writer = address, None, None

    async def post(self, path, body, accept="application/json"):
        """Status, headers and body; a connection that the server has closed is opened again."""
        head = (
            f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\naccept: {accept}\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection(*self.address, limit=2**26)
        self.writer.write(head.encode() + body)
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:] if ": " in line)
        if "content-length" in headers:
            content = await self.reader.readexactly(int(headers["content-length"]))
        else:
            parts = []
            while size := int(await self.reader.readline(), 16):
                parts.append((await self.reader.readexactly(size + 2))[:-2])
            await self.reader.readexactly(2)
            content = b"".join(parts)
        if headers.get("connection") == "close":
            self.close()
        return int(lines[0].split()[1]), headers, content

    def close(self):
        if self.writer is not None:
            self.writer.close()
            self.writer = None


# ---- a model, a text -------------------------------------------------------------------------------------------------


def random_model(folder):
    """A model of the size of the one that comes with elmokit."""
    torch.manual_seed(0)
    filters = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 512))
    config = BiLMConfig(filters=filters, num_highways=1, cell_dim=1536, projection_dim=256)
    words = ["<S>", "</S>", "<UNK>", *(f"w{n}" for n in range(20_000))]
    model = ELMo(BiLM(config), output_layer=OutputLayer(len(words), 256), vocabulary=Vocabulary(words))
    model.save_pretrained(folder)
    return folder


def sentences_of(path, count):
    """So many sentences of a file, or of made words, between 3 and 60 tokens long."""
    if path is not None:
        lines = [line.strip() for line in Path(path).read_text(encoding="utf-8").splitlines()]
        return [line for line in lines if 3 <= len(tokenize(line)) <= 60][:count]
    rng = random.Random(0)
    words = ["".join(rng.choices("etaoinshrdlu", k=rng.randint(1, 10))) for _ in range(20_000)]
    weights = [1 / (rank + 3) for rank in range(len(words))]
    lengths = [max(3, min(60, round(rng.gauss(22, 10)))) for _ in range(count)]
    return [" ".join(rng.choices(words, weights, k=length)) for length in lengths]


def bodies_of(sentences, size):
    """Requests of `size` sentences, and the tokens of each."""
    groups = [sentences[begin : begin + size] for begin in range(0, len(sentences), size)]
    return [(json.dumps({"inputs": group}).encode(), sum(len(tokenize(s)) for s in group)) for group in groups]


def row(what, found, ratio):
    """A line of the table of RESULTS.md."""
    print(f"| {what} | {found} | {ratio} |", flush=True)


# ---- measurements ----------------------------------------------------------------------------------------------------


async def saturate(address, path, bodies, connections, accept="application/json"):
    """Tokens per second when so many connections ask all bodies, each its next one at once."""
    waiting, done = list(reversed(bodies)), 0

    async def ask():
        nonlocal done
        client = Client(address)
        while waiting:
            body, tokens = waiting.pop()
            status, _, _ = await client.post(path, body, accept)
            assert status == 200, status
            done += tokens
        client.close()

    begin = time.perf_counter()
    await asyncio.gather(*(ask() for _ in range(connections)))
    return done / (time.perf_counter() - begin)


def throughput(model, sentences, rounds):
    """Offline `embed` and the server in turns, on the same text."""
    kinds = [
        ("/embed_all", "application/x-npy", 32),
        ("/embed_all", "application/json", 32),
        ("/embed", "application/json", 32),
        ("/embed", "application/json", 1),
    ]
    offline_model = ELMo.from_pretrained(model)
    count = sum(len(tokenize(sentence)) for sentence in sentences)
    rates = {kind: [] for kind in ["offline", *kinds]}
    with serving(model) as server:
        for number in range(rounds + 1):  # the first turn warms both
            begin = time.perf_counter()
            offline_model.embed(sentences)
            found = {"offline": count / (time.perf_counter() - begin)}
            for path, accept, size in kinds:
                run = saturate(server.address, path, bodies_of(sentences, size), max(8, 128 // size), accept)
                found[path, accept, size] = asyncio.run(run)
            if number:
                for kind, rate in found.items():
                    rates[kind].append(rate)
    row("offline `embed`", f"{statistics.median(rates['offline']):,.0f} tokens/s", "100%")
    for path, accept, size in kinds:
        ratios = [mine / base for mine, base in zip(rates[path, accept, size], rates["offline"], strict=True)]
        rate, ratio = statistics.median(rates[path, accept, size]), statistics.median(ratios)
        what = f"`{path}`, {accept}, {size} sentence{'s' * (size > 1)} a request"
        row(what, f"{rate:,.0f} tokens/s", f"{ratio:.0%} of offline")


async def steady(address, bodies, rate, seconds):
    """Requests at random moments, `rate` a second on the average: their seconds, and their statuses."""
    rng, idle, taken, statuses, tasks = random.Random(1), [], [], [], []

    async def ask(body):
        begin = time.perf_counter()
        client = idle.pop() if idle else Client(address)
        status, _, _ = await client.post("/embed", body)
        taken.append(time.perf_counter() - begin)
        statuses.append(status)
        idle.append(client)

    end = time.perf_counter() + seconds
    moment = time.perf_counter()
    while moment < end:
        moment += rng.expovariate(rate)
        await asyncio.sleep(max(0.0, moment - time.perf_counter()))
        tasks.append(asyncio.ensure_future(ask(rng.choice(bodies)[0])))
    await asyncio.gather(*tasks)
    for client in idle:
        client.close()
    return taken, statuses


def latency(model, sentences, seconds):
    """p50 and p99 of requests of four sentences at 80% of what the server can do."""
    bodies = bodies_of(sentences, 4)
    with serving(model) as server:
        asyncio.run(saturate(server.address, "/embed", bodies, 32))
        most = asyncio.run(saturate(server.address, "/embed", bodies, 32))
        rate = 0.8 * most / statistics.mean(tokens for _, tokens in bodies)
        taken, statuses = asyncio.run(steady(server.address, bodies, rate, seconds))
    cuts = statistics.quantiles(taken, n=100)
    assert set(statuses) == {200}, sorted(set(statuses))
    row(
        f"latency at 80% of {most:,.0f} tokens/s, {len(taken):,} requests",
        f"p50 {1000 * cuts[49]:.0f} ms, p99 {1000 * cuts[98]:.0f} ms",
        f"p99/p50 {cuts[98] / cuts[49]:.1f}",
    )


def overload(model, sentences, seconds):
    """Three times what the server can do: how fast 429 comes, what is still answered, and that it recovers."""
    bodies = bodies_of(sentences, 4)
    with serving(model) as server:
        most = asyncio.run(saturate(server.address, "/embed", bodies, 32))
        rate = 3 * most / statistics.mean(tokens for _, tokens in bodies)
        taken, statuses = asyncio.run(steady(server.address, bodies, rate, seconds))
        refused = [t for t, status in zip(taken, statuses, strict=True) if status == 429]
        answered = [t for t, status in zip(taken, statuses, strict=True) if status == 200]
        assert len(refused) + len(answered) == len(taken), sorted(set(statuses))
        after, after_statuses = asyncio.run(steady(server.address, bodies, rate / 9, seconds / 2))
        assert set(after_statuses) == {200}, "it recovers"
    assert refused, "the queue did not fill: make --seconds longer"
    late = statistics.quantiles(refused, n=100)[98]
    row(
        f"at 300%: {len(answered):,} answered, {len(refused):,} refused with 429",
        f"429 after p50 {1000 * statistics.median(refused):.0f} ms, p99 {1000 * late:.0f} ms; "
        f"200 after p50 {statistics.median(answered):.2f} s",
        f"then at 33%: all 200, p50 {1000 * statistics.median(after):.0f} ms",
    )


def sigterm(model, sentences):
    """SIGTERM in the middle of load: every request on a connection that was taken has its answer."""
    bodies = bodies_of(sentences, 4)
    counts = {"answered": 0, "lost": 0, "not taken": 0}

    async def ask(address, stop):
        rng = random.Random(id(stop))
        while not stop.is_set():
            client = Client(address)  # a new connection each time, so that each is accepted or not
            try:
                client.reader, client.writer = await asyncio.open_connection(*address)
            except OSError:
                counts["not taken"] += 1
                return
            try:
                status, _, _ = await client.post("/embed", rng.choice(bodies)[0])
                assert status in (200, 429), status
                counts["answered"] += 1
            except (OSError, asyncio.IncompleteReadError):
                counts["lost"] += 1
            client.close()

    async def run(server):
        stop = asyncio.Event()
        tasks = [asyncio.ensure_future(ask(server.address, stop)) for _ in range(64)]
        await asyncio.sleep(5)
        server.send_signal(signal.SIGTERM)
        begin = time.perf_counter()
        await asyncio.gather(*tasks)
        return begin

    with serving(model) as server:
        begin = asyncio.run(run(server))
        code = server.wait(60)
    seconds = time.perf_counter() - begin
    row(
        f"SIGTERM under load: {counts['answered']:,} requests accepted",
        f"{counts['lost']} lost",
        f"exit code {code} after {seconds:.1f} s",
    )
    assert counts["lost"] == 0


def soak(model, sentences, seconds):
    """Four connections that pause as long as their last answer took, for a long time: memory."""
    bodies = bodies_of(sentences, 4)

    async def ask(address, until, rng):
        client, count = Client(address), 0
        while time.perf_counter() < until:
            begin = time.perf_counter()
            path = rng.choice(["/embed", "/embed", "/embed_all", "/log_probs"])
            status, _, _ = await client.post(path, rng.choice(bodies)[0])
            assert status == 200, status
            count += 1
            await asyncio.sleep(time.perf_counter() - begin)
        client.close()
        return count

    async def part(address, number):
        until = time.perf_counter() + seconds / 10
        return sum(await asyncio.gather(*(ask(address, until, random.Random(4 * number + n)) for n in range(4))))

    with serving(model) as server:
        memory, total = [resident(server)], 0
        for number in range(10):
            total += asyncio.run(part(server.address, number))
            memory.append(resident(server))
            print(f"{(number + 1) * seconds / 10:.0f} s, {total:,} requests: {memory[-1]:.0f} MB", flush=True)
    print(f"soak {seconds:g} s, {total:,} requests: resident MB {' '.join(f'{value:.0f}' for value in memory)}")


# ---- attack ----------------------------------------------------------------------------------------------------------


PATHS = ["/embed", "/embed_all", "/layers", "/similarity", "/tokenize", "/v1/embeddings", "/log_probs", "/substitutes"]
ODD = ["\0", "\u202e", "e" + "\u0301" * 50, "\U0001f468\u200d\U0001f469", "\ufeff", "\uffff", "ﷺ" * 20, "[", "]", "<S>"]


def attack(rng):
    """One hostile request: its bytes in parts, the pause between them, and whether the sender half-closes."""
    kind = rng.randrange(12)
    if kind == 0:
        return [rng.randbytes(rng.randint(1, 2000))], 0.0, rng.random() < 0.3
    path = rng.choice([*PATHS, "/tasks/x", "/docs", "/%00%ff", "/../../etc/passwd", "/" + "a" * rng.randint(1, 5000)])
    if kind == 1:
        body = rng.randbytes(rng.randint(0, 5000))
    elif kind == 2:
        body = b"[" * rng.randint(1, 50_000) if rng.random() < 0.5 else b'{"inputs":' * rng.randint(1, 20_000)
    elif kind == 3:
        body = json.dumps({"inputs": "a" * rng.randint(1, 3_000_000)}).encode() if rng.random() < 0.1 else b"x" * 3_000
    elif kind == 4:
        odd = "".join(rng.choices(ODD, k=rng.randint(1, 20)))
        body = json.dumps({"inputs": odd, "input": odd} if rng.random() < 0.5 else {"inputs": [odd] * 3}).encode()
    elif kind == 5:
        body = ('{"inputs": "' + rng.choice(["\\ud800", "\\udfff\\ud800", "\\u0000", "\ud7ff"]) * 9 + '"}').encode()
    elif kind > 9:  # nothing is wrong with this one
        path, words = rng.choice(PATHS[:3]), rng.choices(["bank", "".join(rng.choices("etaoin", k=9)), *ODD], k=20)
        body = json.dumps({"inputs": [" ".join(words)] * rng.randint(1, 9)}).encode()
    else:
        body = json.dumps({rng.choice(FIELDS): value_of(rng, 4) for _ in range(rng.randint(0, 4))}).encode()
    verb = rng.choice(["POST"] * 12 + ["GET", "PUT", "BREW", "HEAD", "OPTIONS"])
    length = len(body) if rng.random() < 0.9 else rng.choice([0, len(body) + 7, 10**12, len(body) // 2])
    kind_of = rng.choice(["application/json"] * 9 + ["text/plain", "\x7f", "application/json; charset=utf-16"])
    head = f"{verb} {path} HTTP/1.1\r\nhost: x\r\ncontent-type: {kind_of}\r\ncontent-length: {length}\r\n\r\n"
    whole = head.encode("latin-1", "replace") + body
    if kind == 9 and rng.random() < 0.2:  # a slow sender
        cut = rng.randint(1, len(whole))
        return [whole[:cut], whole[cut:]], rng.random() * 0.5, rng.random() < 0.5
    return [whole], 0.0, rng.random() < 0.05


FIELDS = ["inputs", "inputs", "inputs", "input", "layers", "weights", "gamma", "k", "position", "normalize", "truncate"]


def value_of(rng, depth):
    """Any JSON value, most of them wrong."""
    kind = rng.randrange(9 if depth else 7)
    if kind < 2:
        return " ".join(rng.choices(["bank", "river", "[bank]", *ODD], k=rng.randint(0, 30)))
    if kind < 7:
        return rng.choice([None, True, -1, 0, 2, 1e308, 10**30, "all", "top", [], {}, [0, 1, 2], [0.5, -1, 2]])
    if kind == 7:
        return [value_of(rng, depth - 1) for _ in range(rng.randint(0, 5))]
    return {rng.choice(FIELDS): value_of(rng, depth - 1) for _ in range(rng.randint(0, 3))}


def hostile(model, count, senders):
    """So many hostile requests by several senders: statuses, memory, and that it works as before."""
    statuses, lock = {}, threading.Lock()

    def send(address, seed, number):
        rng = random.Random(seed)
        for _ in range(number):
            parts, pause, half_close = attack(rng)
            answer = b""
            with contextlib.suppress(OSError), socket.create_connection(address, timeout=10) as connection:
                for place, part in enumerate(parts):
                    if place:
                        time.sleep(pause)
                    with contextlib.suppress(OSError):
                        connection.sendall(part)
                if half_close:
                    connection.shutdown(socket.SHUT_WR)
                elif rng.random() < 0.1:
                    continue  # gone without reading
                connection.settimeout(1.5)
                answer = connection.recv(65536)
            status = answer[9:12].decode("latin-1") if answer.startswith(b"HTTP/1.1 ") else "none"
            with lock:
                statuses[status] = statuses.get(status, 0) + 1

    with serving(model, "--client-timeout", 1) as server:
        memory = [resident(server)]
        for part in range(10):
            number = -(-count // (10 * senders))
            threads = [
                threading.Thread(target=send, args=(server.address, 1000 * part + n, number)) for n in range(senders)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert server.poll() is None, "the server ended"
            memory.append(resident(server))
            print(
                f"{(part + 1) * number * senders:,} requests: {memory[-1]:.0f} MB, {dict(sorted(statuses.items()))}",
                flush=True,
            )
        status, _, _ = asyncio.run(Client(server.address).post("/embed", b'{"inputs": "a bank"}'))
        assert status == 200
        server.send_signal(signal.SIGTERM)
        code = server.wait(60)
    failed = {status: number for status, number in statuses.items() if status.startswith("5")}
    print(f"5xx: {failed or 'none'}; resident MB {' '.join(f'{value:.0f}' for value in memory)}; exit code {code}")
    assert not failed


@click.command()
@click.argument("what", type=click.Choice(["all", "throughput", "latency", "overload", "sigterm", "soak", "hostile"]))
@click.option("--model", help="A model folder; by default one with random weights.")
@click.option("--text", help="A file of sentences; by default made words.")
@click.option("--sentences", "num_sentences", default=2000, show_default=True)
@click.option("--rounds", default=3, show_default=True, help="Of throughput; medians count.")
@click.option("--seconds", default=20.0, show_default=True, help="Of latency, overload and soak.")
@click.option("--count", default=100_000, show_default=True, help="Of hostile requests.")
@click.option("--senders", default=16, show_default=True, help="Of hostile requests.")
def main(what, model, text, num_sentences, rounds, seconds, count, senders):
    sentences = sentences_of(text, num_sentences)
    with tempfile.TemporaryDirectory(prefix="elmokit-") as folder:
        model = model or random_model(Path(folder) / "model")
        if what not in ("soak", "hostile"):
            row("what", "found", "ratio")
            row("---", "---", "---")
        if what in ("all", "throughput"):
            throughput(model, sentences, rounds)
        if what in ("all", "latency"):
            latency(model, sentences, seconds)
        if what in ("all", "overload"):
            overload(model, sentences, seconds)
        if what in ("all", "sigterm"):
            sigterm(model, sentences)
        if what == "soak":
            soak(model, sentences, seconds)
        if what == "hostile":
            hostile(model, count, senders)


if __name__ == "__main__":
    main()
