"""The verb that measures speed: bench."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from elmokit.cli.terminal import device_option, json_option, print_result, print_table


@click.command()
@click.option("--model", metavar="MODEL", help="Measure this model instead: load, speed, memory.")
@click.option(
    "--size",
    "sizes",
    multiple=True,
    default=["small"],
    show_default=True,
    help="Size of the random model: small, medium or original; can be repeated.",
)
@device_option
@click.option(
    "--dtype",
    type=click.Choice(["float32", "float16", "bfloat16"]),
    help="Type of weights and vectors.  [default: bfloat16 on a GPU, else float32]",
)
@click.option("--rows", multiple=True, type=click.IntRange(1), help="Number of sentences per batch; can be repeated.")
@click.option("--steps", type=click.IntRange(1), default=25, show_default=True, help="Number of tokens per sentence.")
@click.option("--training", is_flag=True, help="Measure forward and backward pass of the LSTM layers.")
@click.option(
    "--text",
    type=click.Path(path_type=Path),
    help="File of sentences that the complete model embeds.  [default: random words]",
)
@click.option(
    "--sentences", type=click.IntRange(1), default=640, show_default=True, help="Number of sentences of --text."
)
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="Number of runs; medians count.")
@click.option("--threads", multiple=True, type=click.IntRange(1), help="Number of CPU threads; can be repeated.")
@click.option("--plot", type=click.Path(path_type=Path), help="Image file for a bar chart.")
@json_option
def bench(
    model: str | None,
    sizes: tuple[str, ...],
    device: str | None,
    dtype: str | None,
    rows: tuple[int, ...],
    steps: int,
    training: bool,
    text: Path | None,
    sentences: int,
    rounds: int,
    threads: tuple[int, ...],
    plot: Path | None,
    as_json: bool,
) -> None:
    """Measure tokens per second on this machine.

    Compares elmokit's kernel, the eager one, torch's LSTM and a transformer of equal width. With --model, measures how
    long a model takes to load, to embed one sentence and many, and its memory.
    """
    if model is not None and (rows or training or plot is not None):
        raise click.UsageError("--model measures a complete model: leave out --rows, --training and --plot")
    import torch

    from elmokit import bench as benchmark
    from elmokit.network import find_device

    where = find_device(device)
    kind = getattr(torch, dtype or ("bfloat16" if where.type == "cuda" else "float32"))
    if model is not None:
        for count in threads or (None,):
            measured = benchmark.measure_model(
                model,
                device=str(where),
                dtype=kind,
                text=text,
                num_sentences=sentences,
                rounds=rounds,
                threads=count,
            )
            if not as_json:
                print_result(False, {}, benchmark.headline(measured))
            print_table(as_json, dataclasses.asdict(measured), *benchmark.model_table(measured))
        return
    reports = [
        benchmark.measure(
            sizes,
            device=str(where),
            dtype=kind,
            rows=rows or None,
            steps=steps,
            training=training,
            text=text,
            num_sentences=sentences,
            rounds=rounds,
            threads=count,
        )
        for count in threads or (None,)
    ]
    for report in reports:
        if plot is not None:
            name = plot if len(reports) == 1 else plot.with_stem(f"{plot.stem}-{report.machine['threads']}")
            benchmark.plot(report, name)
        if not as_json:
            print_result(False, {}, benchmark.headline(report))
        print_table(as_json, dataclasses.asdict(report), *benchmark.table(report))
