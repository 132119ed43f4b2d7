"""The LSTM layers on a GPU, compared in one run: elmokit's engines, cuDNN, and the speed of one large product.

    python benchmarks/recurrent.py [--sizes original small] [--rounds 5] [--json FILE]

Two layers, two directions, clips at 3 (cuDNN cannot clip), all rows of full length.  The contenders take turns in every
round.  A time is the median over rounds; calls follow each other without a pause, as in a stream of batches.
cuDNN is `torch.nn.LSTM(proj_size=...)`, one per direction, one after the other or on two streams, whichever is faster.
Its weights are flattened; with separate weights it copies them at every call, and PyTorch's warning is an error here.
"""

from __future__ import annotations

import argparse
import json
import statistics
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from elmokit.bench import flatten_weights
from elmokit.kernels import LSTMState, LSTMWeights, cuda, eager

SIZES = {"original": (4096, 512), "small": (1024, 128)}
INFERENCE = {"steps": 25, "rows": (1, 64, 256, 1024, 4096)}
TRAINING = {"steps": 20, "rows": (128, 256, 1024)}
LAYERS, DIRECTIONS, CLIP = 2, 2, 3.0
Call = Callable[[], Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--rows", nargs="+", type=int, help="Only these numbers of rows.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a CUDA device")
    warnings.filterwarnings("error", "RNN module weights are not part of single contiguous chunk")
    results = []
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, bfloat16")
    print(f"{'size':9}{'pass':10}{'rows':>5} | {'ours':>9}{'eager':>9}{'cuDNN':>9} M tokens/s | of cuDNN | of ceiling")
    for size in options.sizes:
        for kind, shape in (("inference", INFERENCE), ("training", TRAINING)):
            for rows in shape["rows"]:
                if options.rows and rows not in options.rows:
                    continue
                result = compare(size, rows, shape["steps"], kind == "training", options.rounds)
                results.append(result)
                print(line(result), flush=True)
    if options.json:
        report = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "results": results}
        options.json.write_text(json.dumps(report, indent=2) + "\n")


def line(result: dict[str, Any]) -> str:
    speed = {name: result["tokens_per_second"].get(name, float("nan")) / 1e6 for name in ("ours", "eager", "cudnn")}
    return (
        f"{result['size']:9}{result['pass']:10}{result['rows']:5} | {speed['ours']:9.3f}{speed['eager']:9.3f}"
        f"{speed['cudnn']:9.3f} M tokens/s | {speed['ours'] / speed['cudnn']:7.2f}x | {result['of_ceiling']:6.1%}"
        f"   ({result['milliseconds']['ours']:.2f} ms, ceiling {result['ceiling_tflops']:.0f} TFLOP/s)"
    )


def compare(size: str, rows: int, steps: int, training: bool, rounds: int) -> dict[str, Any]:
    cells, width = SIZES[size]
    torch.manual_seed(0)
    x = torch.randn(steps, rows, width, device="cuda", dtype=torch.bfloat16)
    side = 8192
    a, b = (torch.randn(side, side, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    layers = [weights(cells, width, training) for _ in range(LAYERS)]
    stacks = [
        nn.LSTM(width, cells, num_layers=LAYERS, proj_size=width).to("cuda", torch.bfloat16) for _ in range(DIRECTIONS)
    ]
    for stack in stacks:
        flatten_weights(stack)
    calls: dict[str, Call] = {
        "ours": lambda: run(cuda, x, layers, training),
        "eager": lambda: run(eager, x, layers, training),
        "cudnn": lambda: run_cudnn(stacks, x, training),
        "cudnn_streams": lambda: run_cudnn_on_streams(stacks, x, training),
        "ceiling": lambda: a @ b,
    }
    seconds = take_turns(calls, rounds)
    seconds["cudnn"] = min(seconds["cudnn"], seconds.pop("cudnn_streams"))
    ceiling = 2 * side**3 / seconds.pop("ceiling")
    tokens = rows * steps
    operations = 18 * cells * width * LAYERS * DIRECTIONS * tokens * (3 if training else 1)
    return {
        "size": size,
        "pass": "training" if training else "inference",
        "rows": rows,
        "steps": steps,
        "tokens_per_second": {name: tokens / s for name, s in seconds.items()},
        "milliseconds": {name: 1e3 * s for name, s in seconds.items()},
        "ceiling_tflops": ceiling / 1e12,
        "of_ceiling": operations / seconds["ours"] / ceiling,
    }


def weights(cells: int, width: int, training: bool) -> LSTMWeights:
    def random(*shape: int, scale: float) -> Tensor:
        made = torch.randn(DIRECTIONS, *shape, device="cuda") * scale
        return made.to(torch.bfloat16).requires_grad_(training)

    gates = (2 * width) ** -0.5
    return LSTMWeights(
        random(width, 4 * cells, scale=gates),
        random(width, 4 * cells, scale=gates),
        random(4 * cells, scale=0.1),
        random(cells, width, scale=cells**-0.5),
    )


def run(engine: Any, x: Tensor, layers: list[LSTMWeights], training: bool) -> Any:
    """The pass over the layers as in `BiLM`."""
    steps, rows, width = x.shape
    cells = layers[0].projection.shape[1]
    lengths = torch.full((DIRECTIONS, rows), steps, device=x.device, dtype=torch.int32)
    with torch.set_grad_enabled(training):
        inputs = x.expand(DIRECTIONS, *x.shape)
        for number, layer in enumerate(layers):
            state = LSTMState(x.new_zeros(DIRECTIONS, rows, width), x.new_zeros(DIRECTIONS, rows, cells))
            outputs, _ = engine.lstm(inputs, lengths, layer, state, cell_clip=CLIP, proj_clip=CLIP)
            inputs = outputs + inputs if number else outputs
        return torch.autograd.grad(inputs, [w for layer in layers for w in layer], inputs) if training else inputs


def run_cudnn(stacks: list[nn.LSTM], x: Tensor, training: bool) -> None:
    for stack in stacks:
        with torch.set_grad_enabled(training):
            outputs, _ = stack(x)
            if training:
                torch.autograd.grad(outputs, list(stack.parameters()), outputs)


def run_cudnn_on_streams(stacks: list[nn.LSTM], x: Tensor, training: bool) -> None:
    current = torch.cuda.current_stream()
    for stack in stacks:
        stream = torch.cuda.Stream()
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            run_cudnn([stack], x, training)
        current.wait_stream(stream)


def take_turns(calls: dict[str, Call], rounds: int) -> dict[str, float]:
    """Median seconds per call; the contenders take turns of about a tenth of a second.

    A shorter turn would depend on the clock frequency that the contender before it has left.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    counts = {}
    for name, call in calls.items():
        call()
        counts[name] = max(2, round(0.1 / time_of(call, 2)))
    for _ in range(rounds):
        for name, call in calls.items():
            times[name].append(time_of(call, counts[name]))
    return {name: statistics.median(taken) for name, taken in times.items()}


def time_of(call: Call, count: int) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    for _ in range(count):
        call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3 / count


if __name__ == "__main__":
    main()
