"""The whole training step, and where its time goes; and the plot of a run's held-out perplexity.

    python benchmarks/training.py speed [--sizes small original] [--losses sampled full] [--rows 1024] [--json FILE]
                                        [--corpus FOLDER]
    python benchmarks/training.py curve runs/tiny docs/img/tiny-curve.svg
    python benchmarks/training.py finetuning benchmarks/finetuning.json docs/img/fine-tuning.svg

`speed` takes the step as `elmokit pretrain` does: batches from the loader's thread, characters, LSTMs, softmax, update.
A token is one prediction in each direction.  Without a prepared corpus the stream is drawn by Zipf's law from a million
word forms.  Each part is also timed by itself, forward and backward (on a GPU recorded as a graph, so that launches do
not count); the ceiling is the rate of one large product in the same type.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from elmokit.config import BiLMConfig
from elmokit.corpus import Corpus, Streams
from elmokit.network import take_rows
from elmokit.network.losses import chunked_softmax_loss, sampled_softmax_loss
from elmokit.network.sampling import gather_rows
from elmokit.pretraining import PretrainConfig
from elmokit.pretraining.batches import Batch, BatchMaker, Loader
from elmokit.pretraining.optimizers import Rates
from elmokit.pretraining.processes import Processes
from elmokit.pretraining.step import LanguageModel, Learner
from elmokit.text import BOW, EOW, PAD, words_to_ids

SIZES = {
    "tiny": BiLMConfig(
        filters=((1, 16), (2, 32), (3, 48), (4, 64), (5, 64)), num_highways=1, cell_dim=256, projection_dim=64
    ),
    "small": BiLMConfig(num_highways=1, cell_dim=1024, projection_dim=128),
    "medium": BiLMConfig(num_highways=1, cell_dim=2048, projection_dim=256),
    "original": BiLMConfig(num_highways=2, cell_dim=4096, projection_dim=512),
}
ROWS = {"tiny": 64, "small": 2048, "medium": 1024, "original": 1024}
WORDS = {"sampled": 793_471, "full": 60_000}
UNROLL, NEGATIVES = 20, 8192
Part = Callable[[], Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    speed = commands.add_parser("speed")
    speed.add_argument("--sizes", nargs="+", choices=SIZES, default=["small", "original"])
    speed.add_argument("--losses", nargs="+", choices=WORDS, default=list(WORDS))
    speed.add_argument("--rows", type=int, help="rows of a batch; by default what suits the size")
    speed.add_argument("--words", type=int, help="words of the softmax")
    speed.add_argument("--steps", type=int, default=50)
    speed.add_argument("--corpus", type=Path, help="a folder that `elmokit prepare` made")
    speed.add_argument("--json", type=Path)
    curve = commands.add_parser("curve")
    curve.add_argument("run", type=Path)
    curve.add_argument("target", type=Path)
    finetuning = commands.add_parser("finetuning")
    finetuning.add_argument("numbers", type=Path, help="held-out perplexities by step of several fine-tunings")
    finetuning.add_argument("target", type=Path)
    options = parser.parse_args()
    if options.command == "finetuning":
        plot_finetuning(options.numbers, options.target)
        return
    if options.command == "curve":
        plot_curve(options.run, options.target)
        return

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    name = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    ceiling = measure_ceiling(device)
    print(f"{name}, torch {torch.__version__}, ceiling {ceiling / 1e12:.3g} TFLOP/s")
    corpus = (
        Corpus.open(options.corpus) if options.corpus else zipf_corpus(2_000_000 if device.type == "cuda" else 200_000)
    )
    results = []
    for size in options.sizes:
        for loss in options.losses:
            rows, words = options.rows or ROWS[size], options.words or WORDS[loss]
            try:
                result = measure(size, loss, rows, words, corpus, device, options.steps, ceiling)
            except torch.OutOfMemoryError as error:
                result = {"size": size, "loss": loss, "rows": rows, "error": str(error).splitlines()[0]}
            results.append(result)
            print(json.dumps(result), flush=True)
    if options.json:
        found = {"device": name, "torch": torch.__version__, "ceiling_flops": ceiling, "results": results}
        options.json.write_text(json.dumps(found, indent=2) + "\n")


def measure(
    size: str, loss: str, rows: int, words: int, corpus: Corpus, device: torch.device, steps: int, ceiling: float
) -> dict[str, Any]:
    model = SIZES[size]
    on_gpu = device.type == "cuda"
    config = PretrainConfig(
        train="-",
        out="-",
        batch_size=rows,
        unroll=UNROLL,
        loss="sampled" if loss == "sampled" else "full",
        num_negatives=min(NEGATIVES, words // 2),
        optimizer="adagrad" if loss == "sampled" else "adamw",
        precision="bfloat16" if on_gpu else "float32",
        ema_decay=None if loss == "sampled" else 0.999,
    )
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    torch.manual_seed(0)
    with torch.device(device):
        made = LanguageModel(model, words)
    learner = Learner(made, config, Processes(device=device))
    capped = clip_targets(corpus, words)
    streams = Streams(capped, batch_size=rows, unroll=UNROLL, seed=1)
    loader = Loader(streams, BatchMaker(capped, model, static_shapes=on_gpu), accumulation=1, pin=on_gpu)
    batches = iter(loader)
    rates = Rates(1000, 1e-4, 1e-4, 0.001)
    warm = 15 if on_gpu else 2
    for _ in range(warm):
        learner.step(next(batches), rates)
    learner.finish()

    waited, began = 0.0, time.perf_counter()
    for _ in range(steps):
        asked = time.perf_counter()
        batch = next(batches)
        waited += time.perf_counter() - asked
        learner.step(batch, rates)
    learner.finish()
    seconds = (time.perf_counter() - began) / steps
    began = time.perf_counter()
    for _ in range(steps):  # the same batch again: nothing to wait for
        learner.step(batch, rates)
    learner.finish()
    without_loading = (time.perf_counter() - began) / steps
    loader.close()

    tokens = rows * UNROLL
    given = learner._batches[0] if on_gpu else batch.batches[0]
    num_distinct = len(torch.unique(given.index))
    flops = product_flops(model, config, words, tokens, num_distinct)
    generators = [learner._dropout, learner._draws]
    parts = {name: time_part(part, device, generators) for name, part in parts_of(learner, given).items()}
    return {
        "size": size,
        "loss": loss,
        "rows": rows,
        "words": words,
        "tokens_per_second": round(tokens / seconds),
        "step_ms": round(1e3 * seconds, 3),
        "of_ceiling": round(sum(flops.values()) / seconds / ceiling, 4),
        "data_share": round(max(0.0, 1 - without_loading / seconds), 4),
        "waited_share": round(waited / steps / seconds, 4),
        "distinct_words": num_distinct,
        "parts_ms": {name: round(1e3 * value, 3) for name, value in parts.items()},
        "parts_of_ceiling": {name: round(flops[name] / parts[name] / ceiling, 4) for name in flops},
        "recorded": bool(learner._recorder and learner._recorder._graphs),
        "memory_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2) if on_gpu else None,
    }


def parts_of(learner: Learner, batch: Batch) -> dict[str, Part]:
    """Forward and backward of each part by itself, on inputs like those of the step."""
    bilm, output, config = learner.model.bilm, learner.model.output, learner.config
    with torch.no_grad(), learner._precision():
        vectors = bilm.embed_groups(batch.words)
        tokens = vectors[batch.index]
        lengths = torch.full((tokens.shape[2],), tokens.shape[1], dtype=torch.long, device=tokens.device)
        hidden = bilm.run_layers(tokens, lengths, learner.state)[0][-1]
    tokens_gradient, hidden_gradient = torch.randn_like(tokens), torch.randn_like(hidden)
    tokens, hidden = tokens.detach().requires_grad_(), hidden.detach().requires_grad_()

    def characters() -> None:
        with learner._precision():
            found: Tensor = take_rows(bilm.embed_groups(batch.words), batch.index)
        found.backward(tokens_gradient)

    def lstm() -> None:
        with learner._precision():
            dropout = learner._drop if config.dropout else None
            found = bilm.run_layers(tokens, lengths, learner.state, dropout=dropout)[0][-1]
        found.backward(hidden_gradient)

    def loss() -> None:
        rows, negatives = None, None
        if learner.sampler is not None:
            negatives = [learner.sampler.sample(learner._draws) for _ in range(2)]
            rows = gather_rows(output, batch.targets, *(one.ids for one in negatives))
            learner._rows = rows
        total = torch.zeros((), device=hidden.device)
        with learner._precision():
            for direction in range(2):
                x, targets = hidden[direction].flatten(0, 1), batch.targets[direction].flatten()
                if negatives is not None:
                    total = total + sampled_softmax_loss(x, targets, rows, negatives[direction])
                else:
                    total = total + chunked_softmax_loss(x, targets, output)
        total.backward()

    return {"characters": characters, "lstm": lstm, "loss": loss, "update": learner._update}


def time_part(part: Part, device: torch.device, generators: Sequence[torch.Generator] = ()) -> float:
    """Median seconds of a call."""
    if device.type == "cpu":
        times = []
        for _ in range(3):
            began = time.perf_counter()
            part()
            times.append(time.perf_counter() - began)
        return statistics.median(times)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            part()
        call = part
        try:
            graph = torch.cuda.CUDAGraph()
            for generator in generators:
                graph.register_generator_state(generator)
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                part()
            call = graph.replay
        except RuntimeError as error:  # an engine that waits for the host
            print(f"timed without a graph: {error}")
        times = []
        for _ in range(10):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record(stream)
            for _ in range(3):
                call()
            end.record(stream)
            end.synchronize()
            times.append(begin.elapsed_time(end) / 3e3)
    return statistics.median(times)


def product_flops(
    model: BiLMConfig, config: PretrainConfig, num_words: int, tokens: int, num_distinct: int
) -> dict[str, float]:
    """Operations of the matrix products of a step, forward and backward (twice forward), both directions."""
    widths = sum(width * channels for width, channels in model.filters) * model.char_dim
    positions = 11  # of an average distinct word of 8 letters and two marks
    filters, p, c = model.filters_dim, model.projection_dim, model.cell_dim
    word = positions * widths + model.num_highways * 2 * filters**2 + filters * p
    columns = config.num_negatives if config.loss == "sampled" else num_words
    return {
        "characters": 6.0 * num_distinct * word,
        "lstm": 6.0 * tokens * 2 * model.num_layers * (2 * p * 4 * c + c * p),
        "loss": 6.0 * tokens * 2 * columns * p,
    }


def measure_ceiling(device: torch.device) -> float:
    """FLOP/s of one large product."""
    side, dtype = (8192, torch.bfloat16) if device.type == "cuda" else (1024, torch.float32)
    a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    return 2 * side**3 / time_part(lambda: a @ b, device)


def zipf_corpus(num_tokens: int, num_forms: int = 1_000_000) -> Corpus:
    """Words drawn by Zipf's law, in sentences of 24 and documents of 600, spelled at random, 2 to 20 letters."""
    rng = np.random.default_rng(0)
    weights = 1.0 / (np.arange(num_forms - 2) + 2.7)
    ranks = np.searchsorted(np.cumsum(weights) / weights.sum(), rng.random(num_tokens)).astype(np.int32)
    stream = np.minimum(ranks, num_forms - 3) + 2
    stream[::25] = 0
    stream = np.append(stream, 0).astype(np.int32)
    lengths = np.clip(2 + rng.gamma(2.0, 0.18 * np.log2(np.arange(num_forms) + 2)).astype(int), 1, 20)
    forms = np.full((num_forms, 50), PAD, np.int16)
    letters = rng.integers(97, 123, (num_forms, 20), dtype=np.int16)
    forms[:, 1:21] = np.where(np.arange(20) < lengths[:, None], letters, PAD)
    forms[:, 0] = BOW
    forms[np.arange(num_forms), lengths + 1] = EOW
    forms[:2] = words_to_ids(["<S>", "</S>"])
    targets = np.arange(num_forms, dtype=np.int32)
    targets[2:] += 1  # after <UNK>
    boundaries = np.flatnonzero(stream == 0)
    documents = np.append(boundaries[:-1:25], len(stream) - 1).astype(np.int64)
    return Corpus(
        folder=Path("zipf"),
        num_tokens=int(np.count_nonzero(stream)),
        num_sentences=len(boundaries) - 1,
        num_documents=len(documents) - 1,
        num_replaced_lines=0,
        vocabulary_digest="",
        made_from="",
        tokenizer=None,
        stream=stream,
        documents=documents,
        forms=forms,
        form_targets=targets,
    )


def clip_targets(corpus: Corpus, num_words: int) -> Corpus:
    """The same corpus for a vocabulary of `num_words`: rarer words are <UNK>, which is word 2."""
    targets = np.asarray(corpus.form_targets)
    return dataclasses.replace(corpus, form_targets=np.where(targets < num_words, targets, 2).astype(np.int32))


def plot_curve(run: Path, target: Path) -> None:
    """Held-out perplexity by step, with the unigram model's as the mark to beat, as the run's card tells it."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    measured = [line for line in lines if "heldout_perplexity" in line]
    steps = [line["step"] for line in measured]
    unigram = re.search(r"a unigram model has perplexity (\d+\.\d+)", (run / "README.md").read_text())
    plt.rcParams["svg.hashsalt"] = "elmokit"  # the same file for the same numbers
    figure, axes = plt.subplots(figsize=(6, 3.4), layout="constrained")
    for name, label in (("heldout_forward_perplexity", "forward"), ("heldout_backward_perplexity", "backward")):
        axes.plot(steps, [line[name] for line in measured], marker="o", markersize=3, label=label)
    if unigram:
        axes.axhline(float(unigram[1]), linestyle="--", color="gray", label="unigram model")
    axes.set(xlabel="step", ylabel="held-out perplexity", yscale="log")
    low = min(line["heldout_perplexity"] for line in measured)
    ticks = [tick for tick in (50, 100, 200, 300, 500, 1000, 2000) if tick > 0.7 * low]
    axes.set_yticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_ylim(0.8 * low, 1.2 * max(measured[0]["heldout_perplexity"], float(unigram[1]) if unigram else 0.0))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, metadata={"Date": None} if target.suffix == ".svg" else None)


def plot_finetuning(numbers: Path, target: Path) -> None:
    """Held-out perplexity by step of the runs that are to be shown; every run starts at the model as given."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    found = json.loads(numbers.read_text())
    plt.rcParams["svg.hashsalt"] = "elmokit"
    figure, axes = plt.subplots(figsize=(8, 3.4), layout="constrained")
    for run in found["runs"]:
        if run["shown"]:
            curve = [(0, found["before"]), *run["curve"]]
            axes.plot(*zip(*curve, strict=True), marker="o", markersize=3, label=run["name"])
    axes.axhline(found["before"], linestyle="--", color="gray", label="the model as given")
    axes.set(xlabel="step", ylabel="held-out perplexity")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right center", frameon=False, fontsize="small")
    figure.savefig(target, metadata={"Date": None} if target.suffix == ".svg" else None)


if __name__ == "__main__":
    main()
