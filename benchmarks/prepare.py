"""How fast text becomes a vocabulary and a corpus, and a corpus batches.

    python benchmarks/prepare.py [--megabytes 60] [--workers 2] [--text FILE.txt.xz]

Reads the shared pretraining text where it is present, else a generated text with Zipf's frequencies. Prints words per
second by the clock, and per second of processor time: the second figure is the one to look at on a busy machine.
"""

import argparse
import lzma
import os
import tempfile
import time
from pathlib import Path

import numpy as np

from elmokit.corpus import Corpus, Streams, build_vocabulary, prepare
from elmokit.text import tokenize

DATA = Path(os.environ.get("ELMOKIT_DATA", Path(__file__).parents[2] / "shared" / "data"))


def write_text(path: Path, num_bytes: int, source: Path) -> None:
    if source.exists():
        print(f"text: the first {num_bytes / 1e6:.0f} MB of {source.name}")
        with lzma.open(source) as file:
            text = file.read(num_bytes)
        path.write_bytes(text[: text.rfind(b"\n") + 1])
        return
    print(f"text: {num_bytes / 1e6:.0f} MB of generated words")
    draw = np.random.default_rng(0)
    with open(path, "w") as file:
        while file.tell() < num_bytes:
            words = [f"w{rank}" for rank in (200_000 ** draw.random(20_000)).astype(int)]  # P(rank) ~ 1 / rank
            for start in range(0, len(words), 20):
                file.write(" ".join(words[start : start + 20]) + (".\n\n" if start % 400 == 0 else ".\n"))


def seconds() -> tuple[float, float]:
    times = os.times()
    return times.elapsed, times.user + times.system + times.children_user + times.children_system


def report(what: str, num_words: int, before: tuple[float, float]) -> None:
    clock, processor = (after - start for after, start in zip(seconds(), before, strict=True))
    print(f"{what:<20} {num_words / clock:>12,.0f} words/s {num_words / processor:>12,.0f} words/s of processor time")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--megabytes", type=int, default=60)
    arguments.add_argument("--workers", type=int, default=2)
    arguments.add_argument("--text", type=Path, default=DATA / "pretrain/train-0.txt.xz")
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        raw, tokenized = folder / "raw.txt", folder / "tokenized.txt"
        write_text(raw, options.megabytes * 1_000_000, options.text)
        with open(raw, encoding="utf-8") as source, open(tokenized, "w", encoding="utf-8") as file:
            file.writelines(" ".join(tokenize(line)) + "\n" for line in source)
        num_words = len(tokenized.read_text(encoding="utf-8").split())
        print(
            f"{num_words:,} words, {options.workers} workers, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
        )
        for path in [tokenized, raw]:
            settings = {"tokenized": path == tokenized, "workers": options.workers}
            before = seconds()
            vocabulary = build_vocabulary(path, size=60_000, **settings)
            report(f"vocab, {path.stem}", num_words, before)
            before = seconds()
            corpus = prepare(path, folder / f"corpus-{path.stem}", vocabulary=vocabulary, **settings)
            report(f"prepare, {path.stem}", num_words, before)

        start = time.perf_counter()
        Corpus.open(corpus.folder)
        print(f"open                 {1e3 * (time.perf_counter() - start):.2f} ms")
        streams = Streams(corpus, batch_size=2048, unroll=20, seed=0)
        streams.next()
        before, in_caller = seconds(), time.thread_time()
        num_steps = 200
        for _ in range(num_steps):
            streams.next()
        caller = (time.thread_time() - in_caller) / num_steps
        everything = (seconds()[1] - before[1]) / num_steps
        print(
            f"batch of 2048 x 20   {1e3 * caller:.3f} ms in the caller, {1e3 * everything:.2f} ms with its thread:"
            f" {caller / (2048 * 20 / 2e6):.2%} and {everything / (2048 * 20 / 2e6):.1%} of a step at 2M tokens/s"
        )


if __name__ == "__main__":
    main()
