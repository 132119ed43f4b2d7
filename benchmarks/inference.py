"""Whole-model inference: raw tokens in, all layers out, published sizes with random weights.

    python benchmarks/inference.py [--sizes small original] [--device cuda] [--dtype bfloat16] [--json FILE]

Engines run side by side in one process, interleaved; medians and ratios are printed.  The text is real where a corpus
is at hand (--text FILE), else a Zipf stream; never one repeated sentence.  Each engine sees the text twice: cold, when
every word is new to the word cache, and warm, as running text is after a while.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np
import torch

from elmokit import BiLM, BiLMConfig, ELMo, kernels, tokenize
from elmokit.kernels import eager

SIZES = {
    "small": BiLMConfig(cell_dim=1024, projection_dim=128, num_highways=1),
    "medium": BiLMConfig(cell_dim=2048, projection_dim=256, num_highways=1),
    "original": BiLMConfig(cell_dim=4096, projection_dim=512, num_highways=2),
}


def read_sentences(path: Path | None, count: int) -> list[list[str]]:
    if path is not None:
        with open(path, encoding="utf-8") as lines:
            sentences = [tokenize(line) for line in lines if line.strip()]
        return sentences[:count]
    rng = np.random.default_rng(0)
    words = ["".join(map(chr, rng.integers(97, 123, length))) for length in rng.integers(1, 13, 50_000)]
    lengths = np.clip(rng.lognormal(3.0, 0.5, count), 1, 100).astype(int)
    ranks = np.minimum(rng.zipf(1.2, lengths.sum()), len(words)) - 1
    stream = [words[rank] for rank in ranks]
    ends = lengths.cumsum()
    return [stream[end - length : end] for end, length in zip(ends, lengths, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["small", "original"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--text", type=Path)
    parser.add_argument("--sentences", type=int, default=640)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()

    sentences = read_sentences(arguments.text, arguments.sentences)
    num_tokens = sum(map(len, sentences))
    wait = torch.cuda.synchronize if arguments.device.startswith("cuda") else lambda: None
    rows = []
    print(f"{len(sentences)} sentences, {num_tokens} tokens, {arguments.device}, {arguments.dtype}, ", end="")
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}")
    print(f"{'size':>10} {'engine':>8} {'cold':>12} {'warm':>12} tokens/s   against eager")
    for size in arguments.sizes:
        torch.manual_seed(0)
        model = ELMo(BiLM(SIZES[size])).to(arguments.device, getattr(torch, arguments.dtype)).eval()
        chosen = kernels.choose(next(model.bilm.parameters()))
        engines = {"eager": eager, "chosen": chosen}
        times: dict[tuple[str, str], list[float]] = {}
        for _ in range(arguments.repeats):
            for name, engine in engines.items():
                model.forget_words()
                for state in ("cold", "warm"):
                    wait()
                    begin = time.perf_counter()
                    with kernels.forced(engine):
                        model.embed(sentences, layers="all", batch_size=arguments.batch_size, convert_to_tensor=True)
                    wait()
                    times.setdefault((name, state), []).append(time.perf_counter() - begin)
        for name in engines:
            speed = {state: num_tokens / statistics.median(times[name, state]) for state in ("cold", "warm")}
            ratio = statistics.median(times["eager", "warm"]) / statistics.median(times[name, "warm"])
            print(f"{size:>10} {name:>8} {speed['cold']:12,.0f} {speed['warm']:12,.0f} {'':>10} {ratio:.2f}x")
            rows.append({"size": size, "engine": name, "tokens_per_second": speed, "against_eager": ratio})
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"tokens": num_tokens, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
