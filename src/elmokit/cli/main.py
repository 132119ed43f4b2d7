"""The verbs of the command line: `elmokit VERB --help` says what each takes and gives.

Enters: arguments, files, standard input.  Leaves: files, and a result on standard output, as text or with --json as one
JSON object; progress and errors go to standard error.  Bad input is one line and exit code 1, wrong usage is 2, Ctrl-C
is 130.  What a verb needs is imported inside it, so that --help does not wait for torch.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

from elmokit import __version__
from elmokit.cli.export import export
from elmokit.cli.index import index, neighbours
from elmokit.cli.probe import probe
from elmokit.cli.serve import serve
from elmokit.cli.tasks import task
from elmokit.cli.terminal import (
    OneLineErrors,
    check_new_file,
    counting,
    downloads,
    json_option,
    load_model,
    model_options,
    overwrite_option,
    print_result,
    print_table,
    progress_bar,
    tokenized_option,
)
from elmokit.cli.training import finetune, prepare, pretrain, vocab

if TYPE_CHECKING:
    from elmokit.inference.scores import Perplexity
    from elmokit.inference.views import Layers
    from elmokit.model import ELMo
    from elmokit.storage.folder import ModelFiles
    from elmokit.storage.layouts import Layout
    from elmokit.vector_files import VectorFile, Written

F = TypeVar("F", bound=Callable[..., Any])


@click.group(cls=OneLineErrors, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="elmokit")
@click.option("--debug", is_flag=True, envvar="ELMOKIT_TRACEBACK", help="Show the whole traceback of an error.")
def main(debug: bool) -> None:
    """Contextual word vectors from bidirectional language models.

    A model is a folder, an official name (small, medium, original, original-5.5b) or a Hugging Face id; without one it
    is the model that comes with elmokit.
    """


for _verb in (vocab, prepare, pretrain, finetune, task, probe, index, neighbours, serve, export):
    main.add_command(_verb)


# ---- options that several verbs share --------------------------------------------------------------------------------


def _read_layers(_: click.Context, __: click.Parameter, value: str) -> Layers:
    if value.isdecimal():
        return int(value)
    if value not in ("all", "top", "average"):
        raise ValueError(f"--layers is all, top, average or a number from 0, not {value!r}")
    return value  # type: ignore[return-value]


layers_option = click.option(
    "--layers", default="average", show_default=True, callback=_read_layers, help="all, top, average, or 0, 1, 2 …"
)


# ---- vectors ---------------------------------------------------------------------------------------------------------


@main.command()
@click.argument("source", metavar="IN")
@click.argument("target", metavar="OUT", type=click.Path(path_type=Path))
@model_options
@layers_option
@click.option("--dtype", type=click.Choice(["float32", "float16"]), default="float32", show_default=True)
@click.option("--compression", type=click.Choice(["gzip", "none"]), default="none", show_default=True)
@click.option(
    "--format",
    "file_format",
    type=click.Choice(["hdf5", "npz", "parquet", "safetensors"]),
    help="By default what the suffix of OUT says.",
)
@tokenized_option
@click.option("--batch-size", type=int, help="At most so many sentences in a batch.")
@click.option("--forget-sentences", is_flag=True, help="HDF5: leave sentence_to_index out.")
@click.option("--use-sentence-keys", is_flag=True, help="HDF5: name each dataset by its sentence.")
@click.option(
    "--ray",
    "ray_address",
    metavar="ADDRESS",
    is_flag=False,
    flag_value="local",
    help="Spread the work over the Ray cluster at ADDRESS (auto, host:port); local, or nothing, starts one here.",
)
@click.option("--workers", type=click.IntRange(1), help="With --ray: so many; by default as many as there is room for.")
@overwrite_option
@json_option
def embed(
    source: str,
    target: Path,
    model: str | None,
    device: str | None,
    layers: Layers,
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
    """Write the vectors of every token of IN (one sentence a line; - is standard input) to OUT.

    A blank line gives an empty entry.  A run that was stopped goes on when the same command is given again.

    With --ray, IN may also be a Parquet file (a sentence a row) or a glob, and OUT is a folder of Parquet files.
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
        raise ValueError(f"--workers {workers} is for --ray: name a cluster, or leave it out")
    else:
        check_new_file(target, overwrite)
        with _open_input(source) as (stream, size):
            elmo = load_model(model, device)
            with progress_bar("embedding", size) as advance:
                lines = read_lines(counting(stream, advance), "standard input" if source == "-" else source)
                written = write_vectors(elmo, lines, file, batch_size=batch_size, overwrite=overwrite)
    result = {"out": str(target), "format": file.format, "layers": layers, **dataclasses.asdict(written)}
    resumed = f" ({written.num_resumed:,} of them were done before)" if written.num_resumed else ""
    print_result(
        as_json, result, f"{target}: {written.num_sentences:,} sentences{resumed}, {written.num_tokens:,} tokens"
    )


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
        raise ValueError("Ray's workers read the input themselves, standard input has one reader: name a file")
    if device not in (None, "cpu", "cuda"):
        raise ValueError(f"--device {device}: Ray chooses the GPU of each worker: say cuda, or cpu")
    elmo = load_model(model, "cpu")
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


@main.command()
@click.argument("first", metavar="SENTENCE1")
@click.argument("second", metavar="SENTENCE2")
@click.option("--word", help="Compare this word in the two sentences; by default the sentences as a whole.")
@model_options
@layers_option
@click.option("--per-layer", is_flag=True, help="Every layer, and their average.")
@json_option
def similar(
    first: str,
    second: str,
    word: str | None,
    model: str | None,
    device: str | None,
    layers: Layers,
    per_layer: bool,
    as_json: bool,
) -> None:
    """Print the cosine of two sentences, or of a word in them."""
    elmo = load_model(model, device)
    wanted: list[Layers] = [layers]
    if per_layer or layers == "all":
        wanted = [*range(elmo.config.num_layers + 1), "average"]
    cosines = {str(choice): elmo.similarity(first, second, word=word, layers=choice) for choice in wanted}
    result = {"word": word, "sentences": [first, second], "cosine": cosines}
    print_table(as_json, result, ["layer", "cosine"], [[name, f"{value:.4f}"] for name, value in cosines.items()])


# ---- models ----------------------------------------------------------------------------------------------------------


@main.command()
@click.argument("model", required=False)
@json_option
def info(model: str | None, as_json: bool) -> None:
    """Print what MODEL is: sizes, parameters, files, and whether it is a language model."""
    from elmokit.settings import to_mapping

    layout, files = _read_files(model)
    parameters: dict[str, int] = {}
    for name, tensor in files.weights.items():
        part = ".".join(name.split(".")[: 2 if name.startswith("layers.") else 1])
        parameters[part] = parameters.get(part, 0) + tensor.numel()
    bilm = sum(count for part, count in parameters.items() if part != "mixes")
    if files.softmax is not None:
        parameters["softmax"] = sum(tensor.numel() for tensor in files.softmax.values())
    config = files.config
    result: dict[str, Any] = {
        "model": model,
        "format": layout.format,
        "input": "characters" if config.num_words is None else "words",
        "layers": config.num_layers + 1,
        "vector_dim": 2 * config.projection_dim,
        "config": to_mapping(config),
        "bilm_parameters": bilm,
        "parameters": parameters,
        "language_model": files.softmax is not None,
        "vocabulary_size": None if files.vocabulary is None else len(files.vocabulary),
        "files": [{"path": str(path), "bytes": path.stat().st_size} for path in layout.files()],
    }
    skipped = {"num_words", "bos_id", "eos_id"} if config.num_words is None else {"num_words", *CHARACTER_SETTINGS}
    if config.num_lexicon_characters is None:
        skipped |= {"num_lexicon_characters", "num_lexicon_words", "word_dim"}
    rows = [
        ["format", result["format"]],
        ["input", "characters" if config.num_words is None else f"{config.num_words:,} words"],
        ["vectors", f"{config.num_layers + 1} layers of {2 * config.projection_dim}"],
        *([name.replace("_", " "), _spell(value)] for name, value in result["config"].items() if name not in skipped),
        ["biLM parameters", f"{bilm:,}"],
        *([f"  {part}", f"{count:,}"] for part, count in parameters.items()),
        ["language model", "yes" if files.softmax is not None else "no: there is no softmax"],
        ["vocabulary", "none" if files.vocabulary is None else f"{len(files.vocabulary):,} words"],
        *(["file", f"{file['path']} ({file['bytes']:,} bytes)"] for file in result["files"]),
    ]
    print_table(as_json, result, [model or "default model", ""], rows)


def _read_files(model: str | None) -> tuple[Layout, ModelFiles]:
    """A model as its files say it is, without the network that they make."""
    from elmokit.storage import names as hub

    with downloads() as progress:
        layout = hub.resolve(model, progress=progress)
    return layout, layout.read()


CHARACTER_SETTINGS = ("max_characters", "char_dim", "filters", "activation", "num_highways", "char_projection")


@main.command()
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST", type=click.Path(path_type=Path))
@click.option("--to", "to", type=click.Choice(["official", "elmokit"]), help="By default the format that SRC has not.")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "float16", "int8"]),
    help="How our format stores the weights: half of float32's room, or a quarter; means --to elmokit.",
)
@click.option("--softmax", metavar="FILE", help="Softmax file of an official model; makes it a language model.")
@click.option("--vocabulary", metavar="FILE", help="The words of the softmax, or of a word-level official model.")
@overwrite_option
@json_option
def convert(
    source: str,
    target: Path,
    to: str | None,
    dtype: Any,
    softmax: str | None,
    vocabulary: str | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Write the model SRC into the folder DST, in our format or as the official options.json and weights.hdf5.

    The softmax.hdf5 and vocabulary.txt of an official folder come along.  The official format has no place for the
    weights of mixes.
    """
    from elmokit.model import ELMo
    from elmokit.storage import names as hub
    from elmokit.storage.layouts import ELMOKIT_FILES, OFFICIAL_FILES, OfficialFiles

    if dtype is not None and to == "official":
        raise ValueError(f"--dtype {dtype} is for our format, the official one is float32: leave one of the two out")
    if target.exists() and not target.is_dir():
        raise ValueError(f"{target} is a file: name a folder")
    if target.exists() and any(target.iterdir()) and not overwrite:
        raise ValueError(f"{target} is there already: name another folder, or write into it with --overwrite")
    with downloads() as progress:
        layout = hub.resolve(source, progress=progress)
        if target.exists() and target.samefile(layout.folder):
            raise ValueError(f"{target} is the model that is read: name another folder")
        if isinstance(layout, OfficialFiles):
            elmo = ELMo.from_files(
                layout.options,
                layout.weights,
                softmax=softmax or layout.softmax,
                vocabulary=vocabulary or layout.vocabulary,
                progress=progress,
            )
        elif softmax or vocabulary:
            raise ValueError(f"{source} is in our format, which has its own softmax and vocabulary: leave them out")
        else:
            elmo = ELMo.from_pretrained(layout.folder)
    # the official format has no lexicon
    ours = not isinstance(layout, OfficialFiles) and elmo.lexicon is None
    to = to or ("official" if ours and dtype is None else "elmokit")
    if to == "official":
        elmo.export_hdf5(target)
    else:
        elmo.save_pretrained(target, dtype=dtype)
    written = set(OFFICIAL_FILES if to == "official" else ELMOKIT_FILES)
    if elmo.output_layer is None:
        written -= {"softmax.hdf5", "softmax.safetensors"}
    if elmo.vocabulary is None:
        written -= {"vocabulary.txt"}
    if elmo.lexicon is None:
        written -= {"lexicon.json"}
    for name in {*ELMOKIT_FILES, *OFFICIAL_FILES} - written - {"README.md"}:  # of a model that was there before
        (target / name).unlink(missing_ok=True)
    result = {"out": str(target), "format": to, "files": sorted(written)}
    print_result(as_json, result, f"{target}: {to} format, {', '.join(sorted(written))}")


@main.command()
@click.option("--size", "sizes", multiple=True, default=["small"], show_default=True, help="small, medium, original.")
@click.option("--device", help="cpu, cuda, cuda:1; by default a GPU where there is one.")
@click.option("--dtype", type=click.Choice(["float32", "float16", "bfloat16"]), help="By default bfloat16 on a GPU.")
@click.option("--rows", multiple=True, type=click.IntRange(1), help="Sentences at a time; several may be given.")
@click.option("--steps", type=click.IntRange(1), default=25, show_default=True, help="Tokens of each sentence.")
@click.option("--training", is_flag=True, help="Forward and backward, LSTM layers alone.")
@click.option("--text", type=click.Path(path_type=Path), help="Sentences for the whole model; else made words.")
@click.option("--sentences", type=click.IntRange(1), default=640, show_default=True, help="How many of them.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="Turns; medians count.")
@click.option("--threads", multiple=True, type=click.IntRange(1), help="CPU threads; several may be given.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw the bars into this file.")
@json_option
def bench(
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
    """Measure tokens/s here, side by side: our engine, the eager one, torch's LSTM, a transformer of equal width."""
    import torch

    from elmokit import bench as benchmark

    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    kind = getattr(torch, dtype or ("bfloat16" if device.startswith("cuda") else "float32"))
    reports = [
        benchmark.measure(
            sizes,
            device=device,
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


# ---- the language model ----------------------------------------------------------------------------------------------


@main.command()
@click.argument("sentence")
@click.option("-k", "count", type=int, default=5, show_default=True, help="Number of words.")
@model_options
@json_option
def substitutes(sentence: str, count: int, model: str | None, device: str | None, as_json: bool) -> None:
    """Print the words that fit best in place of the one in brackets: "He sat on the [bank] ." """
    import math

    words = load_model(model, device).substitutes(sentence, k=count)
    result = {"sentence": sentence, "substitutes": [dataclasses.asdict(word) for word in words]}
    rows = [[word.word, f"{math.exp(word.log_prob):.4f}"] for word in words]
    print_table(as_json, result, ["word", "probability"], rows)


@main.command()
@click.argument("model")
@click.argument("text", nargs=-1, required=True)
@click.option("--device", help="cpu, cuda, cuda:1; by default a GPU where there is one.")
@click.option("--per-sentence", is_flag=True, help="Each line by itself, without the lines before it.")
@tokenized_option
@json_option
def perplexity(
    model: str, text: tuple[str, ...], device: str | None, per_sentence: bool, tokenized: bool, as_json: bool
) -> None:
    """Print the perplexity of TEXT (files, or one folder that `elmokit prepare` made) by the language model MODEL.

    As published: the full softmax, the state carried from sentence to sentence, the boundaries counted.
    """
    elmo = load_model(model, device)
    if per_sentence:
        _print_sentence_perplexities(elmo, text, tokenized, as_json)
        return
    import tempfile

    from elmokit.corpus import Corpus, prepare
    from elmokit.corpus.heldout import heldout_perplexity

    output_layer, vocabulary = elmo.output_layer, elmo.vocabulary
    if output_layer is None or vocabulary is None:
        raise ValueError(
            f"{model} has no softmax, so it is no language model: `elmokit convert --softmax` gives it one"
        )
    if len(text) == 1 and Path(text[0]).is_dir():
        found = heldout_perplexity(elmo.bilm, output_layer, Corpus.open(text[0], vocabulary=vocabulary))
    else:
        width = elmo.config.max_characters
        with tempfile.TemporaryDirectory(prefix="elmokit-") as folder, progress_bar("reading", None) as advance:
            corpus = prepare(
                text,
                folder,
                vocabulary=vocabulary,
                tokenized=tokenized,
                max_characters=width,
                progress=advance.to,
            )
            found = heldout_perplexity(elmo.bilm, output_layer, corpus)
    print_table(as_json, dataclasses.asdict(found), PERPLEXITY_COLUMNS, [_perplexity_row(found)])


PERPLEXITY_COLUMNS = ["perplexity", "forward", "backward", "predictions"]


def _perplexity_row(found: Perplexity) -> list[str]:
    return [f"{found.both:.2f}", f"{found.forward:.2f}", f"{found.backward:.2f}", f"{found.num_tokens:,}"]


def _print_sentence_perplexities(elmo: ELMo, paths: tuple[str, ...], tokenized: bool, as_json: bool) -> None:
    from elmokit.inference.scores import perplexity_of
    from elmokit.text import tokenize
    from elmokit.vector_files import read_lines

    scored: list[Any] = []
    for path in paths:
        with _open_input(path) as (stream, size), progress_bar("scoring", size) as advance:
            lines = [line for line in read_lines(counting(stream, advance), path) if line]
        tokens = [line.split() if tokenized else tokenize(line) for line in lines]
        scored += zip(lines, elmo.log_probs(tokens), strict=True)
    each = [(line, perplexity_of([scores])) for line, scores in scored]
    total = perplexity_of([scores for _, scores in scored])
    sentences = [{"sentence": line, **dataclasses.asdict(found)} for line, found in each]
    rows = [[*_perplexity_row(found), line] for line, found in each] + [[*_perplexity_row(total), "(all)"]]
    result = {**dataclasses.asdict(total), "sentences": sentences}
    print_table(as_json, result, [*PERPLEXITY_COLUMNS, "sentence"], rows)


# ---- what verbs share ------------------------------------------------------------------------------------------------


@contextmanager
def _open_input(path: str) -> Iterator[tuple[IO[bytes], int | None]]:
    """A file to read and its size; `-` is standard input, whose size nobody knows."""
    if path == "-":
        yield sys.stdin.buffer, None
        return
    with open(path, "rb") as file:
        yield file, os.fstat(file.fileno()).st_size


def _spell(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(":".join(map(str, item)) if isinstance(item, list) else str(item) for item in value)
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
