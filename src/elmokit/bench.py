"""How fast this machine runs a biLM, side by side in one run: our engines, torch's own layers, the products' ceiling.

Enters: sizes, a device, a dtype, and text (real, or a Zipf stream).  Leaves: a `Report` of tokens/s, and a plot of it.
Contenders take turns in every round and their medians are compared, so that whatever else the machine does hits all.
Weights are random: time does not depend on them.
"""

from __future__ import annotations

import contextlib
import os
import platform
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from elmokit import kernels
from elmokit.config import BiLMConfig
from elmokit.kernels import eager
from elmokit.model import ELMo
from elmokit.network import BiLM
from elmokit.text import tokenize

SIZES = {
    "small": BiLMConfig(cell_dim=1024, projection_dim=128, num_highways=1),
    "medium": BiLMConfig(cell_dim=2048, projection_dim=256, num_highways=1),
    "original": BiLMConfig(cell_dim=4096, projection_dim=512, num_highways=2),
}
ROWS = {"cpu": (1, 32, 64), "cuda": (1, 64, 256, 1024, 4096)}
CEILING_SIDE = {"cpu": 2048, "cuda": 8192}

Call = Callable[[], Any]


@dataclass(frozen=True)
class Measurement:
    """Tokens/s of one contender at one shape."""

    part: str
    """`stack` (LSTM layers over token vectors), or `model` (raw tokens in, all layers out)."""
    mode: str
    """`inference`, or `training` (forward and backward)."""
    size: str
    contender: str
    rows: int
    steps: int
    threads: int
    tokens_per_second: float
    of_ceiling: float | None
    """Share of the speed of one large matrix product in the same run, where the contender's operations are known."""


@dataclass(frozen=True)
class Report:
    """What was measured, and on what."""

    machine: dict[str, Any]
    ceiling_tflops: float
    measurements: list[Measurement]


def measure(
    sizes: Sequence[str],
    *,
    device: str,
    dtype: torch.dtype = torch.float32,
    rows: Sequence[int] | None = None,
    steps: int = 25,
    training: bool = False,
    text: Path | None = None,
    num_sentences: int = 640,
    rounds: int = 5,
    threads: int | None = None,
    progress: Callable[[Measurement], None] | None = None,
) -> Report:
    """Time the recurrent stack at each number of rows, then the whole model over text, for each size.

    `text` is a file of one sentence a line; without one a stream of words by Zipf's law stands in for it.
    """
    for size in sizes:
        if size not in SIZES:
            raise ValueError(f"size {size!r} is none of {', '.join(SIZES)}")
    kind = torch.device(device).type
    threads = threads or torch.get_num_threads()
    machine = describe_machine(device, dtype, threads)
    found: list[Measurement] = []
    with _threads(threads), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "LSTM with projections is not supported with oneDNN")
        ceiling = ceiling_flops(device, dtype, rounds)

        def note(part: str, size: str, shape: tuple[int, int], seconds: dict[str, float], tokens: int) -> None:
            for contender, taken in seconds.items():
                share = None
                if part == "stack" and contender != "transformer":
                    share = stack_operations(SIZES[size], training) * tokens / taken / ceiling
                found.append(
                    Measurement(
                        part,
                        "training" if training and part == "stack" else "inference",
                        size,
                        contender,
                        *shape,
                        threads,
                        tokens / taken,
                        share,
                    )
                )
                if progress is not None:
                    progress(found[-1])

        for size in sizes:
            for num_rows in rows or ROWS.get(kind, ROWS["cpu"]):
                calls = stack_calls(SIZES[size], num_rows, steps, device, dtype, training=training)
                note("stack", size, (num_rows, steps), take_turns(calls, rounds, device), num_rows * steps)
            if not training:
                sentences = read_sentences(text, num_sentences)
                num_tokens = sum(map(len, sentences))
                shape = (len(sentences), round(num_tokens / len(sentences)))
                calls = model_calls(SIZES[size], sentences, device, dtype)
                note("model", size, shape, take_turns(calls, rounds, device), num_tokens)
    return Report(machine, ceiling / 1e12, found)


def stack_operations(config: BiLMConfig, training: bool) -> int:
    """Floating-point operations of the LSTM layers for one token: both directions, products alone."""
    gates, projection = 2 * config.projection_dim * 4 * config.cell_dim, config.cell_dim * config.projection_dim
    return 2 * (gates + projection) * 2 * config.num_layers * (3 if training else 1)


def stack_calls(
    config: BiLMConfig, rows: int, steps: int, device: str, dtype: torch.dtype, *, training: bool
) -> dict[str, Call]:
    """The LSTM layers by our engine and by the eager one; torch's LSTM, which cannot clip; torch's transformer."""
    torch.manual_seed(0)
    bilm = BiLM(config).to(device, dtype).requires_grad_(training)
    width, vector = config.projection_dim, 2 * config.projection_dim
    tokens = torch.randn(steps, rows, width).to(device, dtype)
    wide = torch.randn(steps, rows, vector).to(device, dtype)
    lengths = torch.full((rows,), steps, device=device)
    lstms = nn.ModuleList(
        nn.LSTM(width, config.cell_dim, num_layers=config.num_layers, proj_size=width) for _ in range(2)
    ).to(device, dtype)
    layer = nn.TransformerEncoderLayer(vector, nhead=8, dim_feedforward=4 * vector, dropout=0.0)
    transformer = nn.TransformerEncoder(layer, config.num_layers, enable_nested_tensor=False).to(device, dtype).train()

    def ours(engine: Any) -> Call:
        def call() -> Tensor:
            with kernels.forced(engine):
                return bilm.contextualize(tokens, lengths).layers[-1]

        return differentiated(call, [p for name, p in bilm.named_parameters() if name.startswith("layers.")], training)

    return {
        "elmokit": ours(kernels.choose(tokens)),
        "eager": ours(eager),
        "nn.LSTM": differentiated(
            lambda: torch.cat([lstm(tokens)[0] for lstm in lstms], dim=-1), list(lstms.parameters()), training
        ),
        "transformer": differentiated(lambda: transformer(wide), list(transformer.parameters()), training),
    }


def differentiated(call: Callable[[], Tensor], parameters: list[nn.Parameter], training: bool) -> Call:
    """The call without gradients, or followed by those of all parameters."""

    def run() -> None:
        with torch.set_grad_enabled(training):
            result = call()
            if training:
                torch.autograd.grad(result, parameters, result.detach())

    return run


def model_calls(config: BiLMConfig, sentences: list[list[str]], device: str, dtype: torch.dtype) -> dict[str, Call]:
    """The whole model over text: every word new to it, as at the start of a text, and every word known."""
    torch.manual_seed(0)
    model = ELMo(BiLM(config)).to(device, dtype).eval()
    chosen = kernels.choose(next(model.bilm.parameters()))

    def run(engine: Any, *, forget: bool) -> Call:
        def call() -> None:
            if forget:
                model.forget_words()
            with kernels.forced(engine):
                model.embed(sentences, layers="all", convert_to_tensor=True)

        return call

    return {
        "elmokit, new words": run(chosen, forget=True),
        "elmokit, known words": run(chosen, forget=False),
        "eager, new words": run(eager, forget=True),
    }


def ceiling_flops(device: str, dtype: torch.dtype, rounds: int) -> float:
    """Floating-point operations a second of one large matrix product."""
    side = CEILING_SIDE.get(torch.device(device).type, CEILING_SIDE["cpu"])
    a, b = (torch.randn(side, side).to(device, dtype) for _ in range(2))
    return float(2 * side**3 / take_turns({"product": lambda: a @ b}, rounds, device)["product"])


def take_turns(calls: dict[str, Call], rounds: int, device: str) -> dict[str, float]:
    """Median seconds of one call of each contender, in turn; short calls are repeated to fill 20 milliseconds."""
    wait: Call = torch.cuda.synchronize if torch.device(device).type == "cuda" else lambda: None
    counts: dict[str, int] = {}
    times: dict[str, list[float]] = {name: [] for name in calls}

    def timed(call: Call, count: int) -> float:
        wait()
        begin = time.perf_counter()
        for _ in range(count):
            call()
        wait()
        return (time.perf_counter() - begin) / count

    for name, call in calls.items():
        call()  # weights are packed and kernels compiled
        counts[name] = max(1, round(0.02 / timed(call, 1)))
    for _ in range(rounds):
        for name, call in calls.items():
            times[name].append(timed(call, counts[name]))
    return {name: statistics.median(taken) for name, taken in times.items()}


def read_sentences(path: Path | None, count: int) -> list[list[str]]:
    """The first sentences of a file, or a stream of made words by Zipf's law, of lengths as in running text."""
    if path is not None:
        with open(path, encoding="utf-8") as lines:
            sentences = [tokens for tokens in map(tokenize, lines) if tokens]
        if not sentences:
            raise ValueError(f"{path}: no sentence in it")
        return sentences[:count]
    rng = np.random.default_rng(0)
    words = ["".join(map(chr, rng.integers(97, 123, length))) for length in rng.integers(1, 13, 50_000)]
    lengths = np.clip(rng.lognormal(3.0, 0.5, count), 1, 100).astype(int)
    ranks = np.minimum(rng.zipf(1.2, lengths.sum()), len(words)) - 1
    ends = lengths.cumsum()
    return [[words[rank] for rank in ranks[end - length : end]] for end, length in zip(ends, lengths, strict=True)]


def describe_machine(device: str, dtype: torch.dtype, threads: int) -> dict[str, Any]:
    """What a reader must know to compare figures."""
    chip = platform.processor() or platform.machine()
    if torch.device(device).type == "cuda":
        chip = torch.cuda.get_device_name(device)
    elif os.path.exists("/proc/cpuinfo"):
        names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
        chip = names[0].split(":")[1].strip() if names else chip
    return {
        "device": device,
        "chip": chip,
        "dtype": str(dtype).removeprefix("torch."),
        "threads": threads,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def headline(report: Report) -> str:
    """Where the figures come from, in one line."""
    facts = ", ".join(f"{name} {value}" for name, value in report.machine.items())
    return f"{facts}; one large product: {report.ceiling_tflops:.2f} TFLOP/s"


def table(report: Report) -> tuple[list[str], list[list[str]]]:
    """Heads and rows of text, each speed with its ratio to ours."""
    ours: dict[tuple[str, str, int], float] = {}
    for one in report.measurements:
        if one.contender.startswith("elmokit"):
            ours.setdefault((one.part, one.size, one.rows), one.tokens_per_second)
    rows = [
        [
            *map(str, (one.part, one.mode, one.size, one.rows, one.steps, one.contender)),
            f"{one.tokens_per_second:,.0f}",
            f"{one.tokens_per_second / ours[one.part, one.size, one.rows]:.2f}x",
            "" if one.of_ceiling is None else f"{one.of_ceiling:.1%}",
        ]
        for one in report.measurements
    ]
    return ["part", "mode", "size", "rows", "steps", "contender", "tokens/s", "of ours", "of ceiling"], rows


def plot(report: Report, path: Path) -> None:
    """Bars of tokens/s: one panel for each size and part, one bar for each contender and shape."""
    try:
        import matplotlib

        matplotlib.use("agg")
        from matplotlib import pyplot
    except ImportError:
        raise ValueError('a plot needs matplotlib: pip install "elmokit[plot]"') from None
    panels: dict[tuple[str, str], list[Measurement]] = {}
    for one in report.measurements:
        panels.setdefault((one.size, one.part), []).append(one)
    heights = [0.3 * len(found) + 1 for found in panels.values()]
    figure, axes = pyplot.subplots(
        len(panels), 1, figsize=(8, sum(heights)), squeeze=False, gridspec_kw={"height_ratios": heights}
    )
    for axis, ((size, part), found) in zip(axes[:, 0], panels.items(), strict=True):
        names = [f"{one.contender}, {one.rows} x {one.steps}" for one in found]
        colors = ["tab:blue" if one.contender.startswith("elmokit") else "tab:gray" for one in found]
        bars = axis.barh(range(len(found)), [one.tokens_per_second for one in found], color=colors)
        axis.bar_label(bars, [f"{one.tokens_per_second:,.0f}" for one in found], padding=3, fontsize=8)
        axis.set_yticks(range(len(found)), names, fontsize=8)
        axis.invert_yaxis()
        axis.margins(x=0.12)
        axis.set_xlabel("tokens/s (sentences x tokens)", fontsize=8)
        axis.set_title(f"{size}, {'LSTM layers' if part == 'stack' else 'whole model'}, {found[0].mode}", fontsize=10)
    machine = report.machine
    figure.suptitle(f"{machine['chip']}, {machine['dtype']}, torch {machine['torch']}", fontsize=10)
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
