"""`ELMo.embed` of the original size with random weights over text: known words, new text, one sentence; and its parts.

    python benchmarks/embed.py --text TEXT [--sentences 20480] [--device cuda] [--dtype bfloat16] [--breakdown]

Input: one sentence per line.  Output: tokens/s with all words known and with no word known, and the milliseconds of one
sentence of median length; the clock stops when the device is done. With `--breakdown`: padding, how long the host is
busy, the kernels of one call, and the functions of the host that take longest.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from elmokit import ELMo
from elmokit.bench import SIZES, describe_machine, read_sentences, take_turns
from elmokit.inference.batches import plan
from elmokit.inference.runner import SENTENCES_AT_ONCE, TOKENS_AT_ONCE
from elmokit.network import BiLM


def padding(sentences: list[list[str]], batch_size: int, device: str) -> str:
    """Number of batches, steps and positions of a call."""
    budget = TOKENS_AT_ONCE[torch.device(device).type]
    batches = plan(sentences[:SENTENCES_AT_ONCE], 0, budget=budget, batch_size=batch_size)
    steps = [max(batch.lengths) + 2 for batch in batches]
    positions = sum(step * len(batch.tokens) for step, batch in zip(steps, batches, strict=True))
    per_token = positions / sum(map(len, sentences[:SENTENCES_AT_ONCE]))
    return f"{len(batches)} batches, {sum(steps)} steps, {per_token:.3f} positions per token"


def kernels(call: Callable[[], Any], device: str, wait: Callable[[], Any], top: int = 20) -> list[str]:
    """The kernels of one call, and how long they run."""
    on_gpu = device != "cpu"
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as seen:
        call()
        wait()
    field = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    events = sorted(seen.key_averages(), key=lambda event: -getattr(event, field))
    lines = [f"kernels and copies: {sum(getattr(event, field) for event in events) / 1e3:.2f} ms"]
    return lines + [f"{getattr(e, field) / 1e3:10.3f} ms {e.count:6d} x {e.key[:90]}" for e in events[:top]]


def functions(call: Callable[[], Any], top: int = 20) -> list[str]:
    """The functions of the host that take longest, without the calls that they make."""
    seen = cProfile.Profile()
    seen.runcall(call)
    stats: dict[Any, Any] = pstats.Stats(seen).stats  # type: ignore[attr-defined]
    rows = sorted(((own, number, key) for key, (_, number, own, *_) in stats.items()), reverse=True)[:top]
    return [f"{1e3 * own:10.2f} ms {number:6d} x {Path(file).stem} {name}" for own, number, (file, _, name) in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, help="one sentence per line; default: words by Zipf's law")
    parser.add_argument("--sentences", type=int, default=20480)
    parser.add_argument("--size", choices=SIZES, default="original")
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--breakdown", action="store_true")
    options = parser.parse_args()
    device, dtype = options.device, getattr(torch, options.dtype)
    wait: Callable[[], Any] = (lambda: None) if device == "cpu" else torch.cuda.synchronize
    sentences = read_sentences(options.text, options.sentences)
    num_tokens = sum(map(len, sentences))
    one = [sorted(sentences, key=len)[len(sentences) // 2]]
    torch.manual_seed(0)
    model = ELMo(BiLM(SIZES[options.size])).to(device, dtype).eval()

    def embed(batch: list[list[str]]) -> Any:
        return model.embed(batch, layers="all", batch_size=options.batch_size, convert_to_tensor=True)

    def known() -> Any:
        return embed(sentences)

    def new() -> Any:
        model.forget_words()
        return embed(sentences)

    def single() -> None:
        embed(one)
        wait()

    print(describe_machine(device, dtype, torch.get_num_threads()))
    print(f"{len(sentences)} sentences, {num_tokens} tokens, {len(set().union(*sentences))} words")
    seconds = take_turns({"new": new, "known": known, "one": single}, options.rounds, device)
    print(f"known words {num_tokens / seconds['known'] / 1e6:.3f} M tokens/s ({1e3 * seconds['known']:.0f} ms)")
    print(f"new text    {num_tokens / seconds['new'] / 1e6:.3f} M tokens/s ({1e3 * seconds['new']:.0f} ms)")
    print(f"one sentence of {len(one[0])} tokens {1e3 * seconds['one']:.3f} ms")
    if not options.breakdown:
        return
    print(padding(sentences, options.batch_size, device))
    for name, call in (("known", known), ("new", new), ("one", single)):
        wait()
        begin, taken = time.perf_counter(), []
        for _ in range(3):
            call()
            taken.append(time.perf_counter() - begin)
            wait()
            begin = time.perf_counter()
        print(f"\n{name}: the host is busy for {1e3 * statistics.median(taken):.2f} ms")
        print(*kernels(call, device, wait), *functions(call), sep="\n")


if __name__ == "__main__":
    main()
