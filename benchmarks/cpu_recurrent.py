"""The LSTM layers on CPU cores, compared with their matrix products and with the eager engine.

Prints one row per size and batch: milliseconds of one layer, both directions; tokens/s of two layers; and the fraction
of the speed of the products.  The ceiling is the time of the products of a layer only (input product of all steps,
recurrent product and projection of each step), by torch.mm or in oneDNN's packed form, whichever is faster.
The candidates take turns and minima are compared, because other programs on the machine only add time.  On a busy
machine use `--cpu-time`: it counts processor time, divided by the number of threads.

    python benchmarks/cpu_recurrent.py [--threads 2] [--steps 25] [--repeats 7] [--cpu-time] [--json out.json]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import torch

from elmokit.kernels import cpu, eager
from elmokit.kernels.interface import LSTMState, LSTMWeights

SIZES = {"small": (128, 1024), "original": (512, 4096)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32, 64])
    parser.add_argument("--sizes", nargs="+", default=list(SIZES))
    parser.add_argument("--eager", action="store_true", help="Also time the eager engine.")
    parser.add_argument("--cpu-time", action="store_true", help="Count processor time instead of wall-clock time.")
    parser.add_argument("--json", help="File for the rows, as JSON.")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rows = [
        measure(size, batch, steps=args.steps, repeats=args.repeats, with_eager=args.eager, cpu_time=args.cpu_time)
        for size in args.sizes
        for batch in args.batches
    ]
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"torch": torch.__version__, "threads": args.threads, "rows": rows}, file, indent=1)


@torch.inference_mode()
def measure(size: str, batch: int, *, steps: int, repeats: int, with_eager: bool, cpu_time: bool) -> dict[str, object]:
    width, cells = SIZES[size]
    weights = LSTMWeights(
        torch.randn(2, width, 4 * cells) * width**-0.5,
        torch.randn(2, width, 4 * cells) * width**-0.5,
        torch.zeros(2, 4 * cells),
        torch.randn(2, cells, width) * cells**-0.5,
    )
    quantized = cpu.quantize(weights)
    inputs = torch.randn(2, steps, batch, width)
    state = LSTMState(torch.zeros(2, batch, width), torch.zeros(2, batch, cells))
    full = torch.full((2, batch), steps)
    ragged = torch.linspace(1, steps, batch).long().expand(2, -1)

    def run(engine: object, weights: object, lengths: torch.Tensor) -> Callable[[], object]:
        return lambda: engine.lstm(inputs, lengths, weights, state, cell_clip=3.0, proj_clip=3.0)

    candidates = {
        "cpu": run(cpu, weights, full),
        "ragged": run(cpu, weights, ragged),
        "int8": run(cpu, quantized, full),
        **ceilings(inputs, weights),
    }
    if with_eager:
        candidates["eager"] = run(eager, weights, full)
    best = interleaved(candidates, repeats, processor_clock if cpu_time else time.perf_counter)
    ceiling = min(best["plain products"], best["packed products"])
    row: dict[str, object] = {name: round(1e3 * seconds, 3) for name, seconds in best.items()}
    row |= {
        "size": size,
        "batch": batch,
        "tokens_per_s": round(batch * steps / (2 * best["cpu"])),
        "of_ceiling": round(ceiling / best["cpu"], 3),
    }
    print(row, flush=True)
    return row


def ceilings(inputs: torch.Tensor, weights: LSTMWeights) -> dict[str, Callable[[], object]]:
    """The products of one layer, both directions at the same time, as the engine runs them."""
    steps, batch, width = inputs.shape[1:]
    cells = weights.projection.shape[1]
    hidden, cell_output = torch.randn(batch, width), torch.randn(batch, cells)

    def plain(d: int) -> None:
        rows, w = inputs[d].reshape(-1, width), [weight[d] for weight in weights]
        gates, projected = hidden.new_empty(batch, 4 * cells), hidden.new_empty(batch, width)
        for block in rows.split(cpu.HOISTED_ROWS):
            torch.mm(block, w[0])
        for _ in range(steps):
            torch.mm(hidden, w[1], out=gates)
            torch.mm(cell_output, w[3], out=projected)

    def packed(d: int) -> None:
        layer = cpu.layer_of(weights, d)
        for block in inputs[d].reshape(-1, width).split(cpu.HOISTED_ROWS):
            layer.input.product(block)
        for _ in range(steps):
            layer.recurrent.product(hidden)
            layer.projection.product(cell_output)

    return {
        "plain products": lambda: cpu.in_parallel(plain, 2),
        "packed products": lambda: cpu.in_parallel(packed, 2),
    }


def processor_clock() -> float:
    return time.process_time() / torch.get_num_threads()


def interleaved(
    candidates: dict[str, Callable[[], object]], repeats: int, clock: Callable[[], float]
) -> dict[str, float]:
    """Seconds of the fastest run of each candidate; the candidates take turns."""
    best = dict.fromkeys(candidates, float("inf"))
    for turn in range(repeats + 1):
        for name, call in candidates.items():
            start = clock()
            call()
            if turn:  # the first turn packs weights and compiles oneDNN's kernels
                best[name] = min(best[name], clock() - start)
    return best


if __name__ == "__main__":
    main()
