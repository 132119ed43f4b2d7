"""The verbs that compute vectors: embed, encode, similar."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from elmokit.cli.terminal import (
    LinesRead,
    batch_size_option,
    check_new_file,
    device_option,
    dtype_option,
    format_count,
    json_option,
    layers_option,
    load_model,
    model_option,
    new_file,
    open_input,
    overwrite_option,
    print_result,
    print_table,
    progress_bar,
    tokenized_option,
)

if TYPE_CHECKING:
    from elmokit.inference.views import Layers
    from elmokit.model import ELMo
    from elmokit.vector_files import VectorFile, Written

STANDARD_INPUT = "standard input"


# ---- vectors of tokens -----------------------------------------------------------------------------------------------


@click.command()
@click.argument("source", metavar="IN")
@click.argument("target", metavar="OUT", type=click.Path(path_type=Path))
@model_option
@device_option
@layers_option("average", "Layers of each token to write")
@dtype_option
@click.option(
    "--compression",
    type=click.Choice(["gzip", "none"]),
    default="none",
    show_default=True,
    help="Compression of OUT; safetensors files are never compressed.",
)
@click.option(
    "--format",
    "file_format",
    type=click.Choice(["hdf5", "npz", "parquet", "safetensors"]),
    help="Format of OUT.  [default: by the suffix of OUT]",
)
@tokenized_option
@batch_size_option
@click.option("--forget-sentences", is_flag=True, help="HDF5: write no text: no sentence_to_index, no tokens.")
@click.option("--use-sentence-keys", is_flag=True, help="HDF5: use each sentence as the name of its dataset.")
@click.option(
    "--ray",
    "ray_address",
    metavar="ADDRESS",
    is_flag=False,
    flag_value="local",
    help="Run on the Ray cluster at ADDRESS: auto, host:port, or local (also without ADDRESS) to start one here.",
)
@click.option(
    "--workers", type=click.IntRange(1), help="Number of workers of --ray.  [default: as many as the cluster can run]"
)
@overwrite_option
@json_option
def embed(
    source: str,
    target: Path,
    model: str | None,
    device: str | None,
    layers: Any,
    dtype: Any,
    compression: str,
    file_format: Any,
    tokenized: bool,
    batch_size: int | None,
    forget_sentences: bool,
    use_sentence_keys: bool,
    ray_address: str | None,
    workers: int | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Write one vector per token of IN to OUT.

    IN has one sentence per line; - is standard input. A blank line gives an empty entry. If a run is stopped, the same
    command resumes it.

    With --ray, IN can also be a Parquet file (one sentence per row) or a glob, and OUT is a folder of Parquet files.
    """
    from elmokit.vector_files import VectorFile, format_of, read_lines, write_vectors

    file = VectorFile(
        path=target,
        format=file_format or format_of(target),
        layers=layers,
        dtype=dtype,
        gzip=compression == "gzip",
        tokenized=tokenized,
        forget_sentences=forget_sentences,
        use_sentence_keys=use_sentence_keys,
    )
    if ray_address is not None:
        written = _embed_by_ray(ray_address, workers, source, file, model, device, batch_size, overwrite)
    elif workers is not None:
        raise ValueError(f"--workers {workers} needs --ray: add --ray, or leave --workers out")
    else:
        check_new_file(target, overwrite)
        with open_input(source) as (stream, size):
            elmo = load_model(model, device)
            file = _with_checked_layers(file, elmo)
            with progress_bar("embedding", size) as advance:
                read = LinesRead(stream, advance, size)
                lines = read_lines(read, STANDARD_INPUT if source == "-" else source)
                written = write_vectors(
                    elmo, lines, file, batch_size=batch_size, overwrite=overwrite, progress=read.done
                )
    result = {"out": str(target), "format": file.format, "layers": layers, **dataclasses.asdict(written)}
    resumed = f" ({written.num_resumed:,} of them by an earlier run)" if written.num_resumed else ""
    num_sentences, num_tokens = written.num_sentences, written.num_tokens
    counts = f"{format_count(num_sentences, 'sentence')}{resumed}, {format_count(num_tokens, 'token')}"
    print_result(as_json, result, f"{target}: {counts}")


def _with_checked_layers(file: VectorFile, elmo: ELMo) -> VectorFile:
    from elmokit.inference.views import check_layers

    return dataclasses.replace(file, layers=check_layers(file.layers, elmo.num_layers))


def _embed_by_ray(
    address: str,
    concurrency: int | None,
    source: str,
    file: VectorFile,
    model: str | None,
    device: str | None,
    batch_size: int | None,
    overwrite: bool,
) -> Written:
    from elmokit.integrations.ray import Workers, cluster, embed_files, has_gpus

    if source == "-":
        raise ValueError("the workers of Ray read the input themselves and cannot share standard input: name a file")
    if device not in (None, "cpu", "cuda"):
        raise ValueError(f"--device {device}: Ray chooses the GPU of each worker: use cuda or cpu")
    elmo = load_model(model, "cpu")
    file = _with_checked_layers(file, elmo)
    with cluster(address), progress_bar("embedding", None) as advance:
        on_gpus = device == "cuda" or (device is None and has_gpus())
        workers = Workers(concurrency=concurrency, num_gpus=1 if on_gpus else 0)
        return embed_files(
            source,
            file,
            model=elmo,
            batch_size=batch_size,
            workers=workers,
            overwrite=overwrite,
            progress=advance.to,
        )


# ---- vectors of sentences --------------------------------------------------------------------------------------------


@click.command()
@click.argument("source", metavar="IN")
@click.argument("target", metavar="OUT", type=click.Path(path_type=Path))
@model_option
@device_option
@layers_option("average", "Layer of the token vectors", names="average, top, slot, sense")
@click.option("--normalize", is_flag=True, help="Scale each vector to length one.")
@dtype_option
@click.option(
    "--format",
    "file_format",
    type=click.Choice(["hdf5", "npy", "npz", "parquet", "safetensors"]),
    help="Format of OUT.  [default: by the suffix of OUT]",
)
@tokenized_option
@batch_size_option
@overwrite_option
@json_option
def encode(
    source: str,
    target: Path,
    model: str | None,
    device: str | None,
    layers: Any,
    normalize: bool,
    dtype: Any,
    file_format: Any,
    tokenized: bool,
    batch_size: int | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Write one vector per sentence of IN to OUT.

    IN has one sentence per line; - is standard input. The vector of a sentence is the mean of its token vectors. Row N
    of OUT is line N of IN; a blank line gives a row of zeros.
    """
    from elmokit.cli.sentence_vectors import MatrixFile, format_of
    from elmokit.inference.views import check_layers
    from elmokit.vector_files import read_lines

    file = MatrixFile(target, file_format or format_of(target), dtype)
    with new_file(target, overwrite), open_input(source) as (stream, size):
        elmo = load_model(model, device)
        view = check_layers(layers, elmo.num_layers, single=True)
        with progress_bar("encoding", size) as advance:
            read = LinesRead(stream, advance, size)
            lines = read_lines(read, STANDARD_INPUT if source == "-" else source)
            blocks = _encode_blocks(elmo, lines, tokenized, view, batch_size, normalize, read.done)
            num_rows = file.write(blocks, elmo.dim)
    result = {
        "out": str(target),
        "format": file.format,
        "layers": layers,
        "normalized": normalize,
        "num_sentences": num_rows,
        "dim": elmo.dim,
    }
    print_result(as_json, result, f"{target}: {format_count(num_rows, 'sentence')}, {elmo.dim} numbers each")


def _encode_blocks(
    elmo: ELMo,
    lines: Iterable[str],
    tokenized: bool,
    layers: Layers,
    batch_size: int | None,
    normalize: bool,
    progress: Callable[[int], None],
) -> Iterable[Any]:
    """Matrices (n, 2P) of the lines, some lines at a time."""
    from elmokit.cli.sentence_vectors import blocks_of

    before = 0

    def show(num_done: int, _: int) -> None:
        progress(before + num_done)

    for block in blocks_of(lines):
        sentences = [line.split() for line in block] if tokenized else block
        yield elmo.encode(sentences, layers=layers, batch_size=batch_size, normalize=normalize, show_progress=show)
        before += len(block)


# ---- cosines ---------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("first", metavar="SENTENCE1")
@click.argument("second", metavar="SENTENCE2")
@click.option(
    "--word", help="Compare this word or phrase in the two sentences.  [default: compare the sentence vectors]"
)
@model_option
@device_option
@layers_option(None, "Layers to compare, by default sense with --word, else average")
@click.option(
    "--per-layer",
    is_flag=True,
    help="Compare every layer, their average, the slot and the sense; the same as --layers all.",
)
@json_option
def similar(
    first: str,
    second: str,
    word: str | None,
    model: str | None,
    device: str | None,
    layers: Any,
    per_layer: bool,
    as_json: bool,
) -> None:
    """Print the cosine of two sentences, or of a word in them."""
    from elmokit.inference.views import check_layers, default_layers

    if per_layer and layers not in (None, "all"):
        raise click.UsageError(f"--per-layer compares every layer, --layers {layers} one: pass one of them")
    elmo = load_model(model, device)
    if layers is None:
        layers = default_layers(word)
    check_layers(layers, elmo.num_layers)
    choices: list[Layers] = [layers]
    if per_layer or layers == "all":
        choices = [*range(elmo.num_layers), "average", "slot", "sense"]
    cosines = {str(choice): elmo.similarity(first, second, word=word, layers=choice) for choice in choices}
    result = {"word": word, "sentences": [first, second], "cosine": cosines}
    print_table(as_json, result, ["layer", "cosine"], [[name, f"{value:.4f}"] for name, value in cosines.items()])
