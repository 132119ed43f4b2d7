"""The verbs about model files: info, models, convert, export."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from elmokit.cli.terminal import (
    DEFAULT_MODEL,
    check_new_file,
    downloads,
    format_bytes,
    format_count,
    json_option,
    layers_option,
    load_model,
    overwrite_option,
    print_result,
    print_table,
)

if TYPE_CHECKING:
    from elmokit.model import ELMo
    from elmokit.storage.folder import ModelFiles
    from elmokit.storage.layouts import Layout

CHARACTER_SETTINGS = {"max_characters", "char_dim", "filters", "activation", "num_highways", "char_projection"}
LEXICON_SETTINGS = {"num_lexicon_characters", "num_lexicon_words", "word_dim"}


# ---- what a model is -------------------------------------------------------------------------------------------------


@click.command()
@click.argument("model", required=False)
@json_option
def info(model: str | None, as_json: bool) -> None:
    """Print what MODEL is.

    Sizes, tokenizer, parameters, files, and whether it is a language model. Without MODEL, describe en.
    """
    from elmokit.settings import to_mapping
    from elmokit.storage import names

    with downloads() as progress:
        layout = names.resolve(model, progress=progress)
    files = layout.read()
    config = files.config
    parameters = _count_parameters(files)
    num_bilm = sum(count for part, count in parameters.items() if part not in ("mixes", "softmax"))
    result: dict[str, Any] = {
        "model": model or DEFAULT_MODEL,
        "format": layout.format,
        "input": "characters" if config.num_words is None else "words",
        "tokenizer": files.tokenizer,
        "layers": config.num_layers + 1,
        "vector_dim": 2 * config.projection_dim,
        "config": to_mapping(config),
        "bilm_parameters": num_bilm,
        "parameters": parameters,
        "language_model": files.softmax is not None or files.softmax_urls is not None,
        "vocabulary_size": None if files.vocabulary is None else len(files.vocabulary),
        "files": [{"path": str(path), "bytes": path.stat().st_size} for path in layout.files()],
    }
    hidden = {"num_words", "bos_id", "eos_id"} if config.num_words is None else {"num_words", *CHARACTER_SETTINGS}
    if config.num_lexicon_characters is None:
        hidden |= LEXICON_SETTINGS
    settings = {name: value for name, value in result["config"].items() if name not in hidden}
    rows = [
        ["format", layout.format],
        ["input", "characters" if config.num_words is None else format_count(config.num_words, "word")],
        ["tokenizer", files.tokenizer],
        ["vectors", f"{format_count(result['layers'], 'layer')} of {result['vector_dim']}"],
        *([name.replace("_", " "), _format_setting(value)] for name, value in settings.items()),
        ["biLM parameters", f"{num_bilm:,}"],
        *([f"  {part}", f"{count:,}"] for part, count in parameters.items()),
        ["language model", _describe_softmax(files)],
        ["vocabulary", "none" if files.vocabulary is None else format_count(len(files.vocabulary), "word")],
        *(["file", f"{file['path']} ({format_count(file['bytes'], 'byte')})"] for file in result["files"]),
    ]
    print_table(as_json, result, [result["model"], ""], rows)


def _describe_softmax(files: ModelFiles) -> str:
    """Whether the model is a language model, and why not or from when on."""
    if files.softmax is not None:
        return "yes"
    if files.softmax_urls is not None:
        return "yes: its softmax is downloaded when it is first needed"
    return "no: there is no softmax"


def _count_parameters(files: ModelFiles) -> dict[str, int]:
    """Part of the model -> number of its parameters."""
    parameters: dict[str, int] = {}
    for name, tensor in files.weights.items():
        part = ".".join(name.split(".")[: 2 if name.startswith("layers.") else 1])
        parameters[part] = parameters.get(part, 0) + tensor.numel()
    if files.softmax is not None:
        parameters["softmax"] = sum(tensor.numel() for tensor in files.softmax.values())
    return parameters


def _format_setting(value: Any) -> str:
    """A value of a biLM's settings; pairs, such as filters, are joined by colons."""
    if isinstance(value, list):
        return " ".join(":".join(map(str, item)) if isinstance(item, list) else str(item) for item in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


# ---- which models have names -----------------------------------------------------------------------------------------


@click.command()
@click.option("--clean", is_flag=True, help="Remove all downloads from the cache.")
@json_option
def models(clean: bool, as_json: bool) -> None:
    """List the models that have a name, and the download cache.

    Embedded models are part of the package. Official models are downloaded on first use. Models of the Hugging Face
    hub are not listed: `hf cache ls` shows them.
    """
    from elmokit.storage.downloads import cache_dir, cached_files, clean_cache
    from elmokit.storage.names import list_models

    if clean:
        num_bytes = clean_cache()
        result: dict[str, Any] = {"cache": str(cache_dir()), "freed_bytes": num_bytes}
        print_result(as_json, result, f"{cache_dir()}: {format_bytes(num_bytes)} freed")
        return
    entries, downloaded = list_models(), cached_files()
    result = {
        "models": [
            {
                "name": entry.name,
                "kind": entry.kind,
                "cached": entry.cached,
                "bytes": entry.size,
                "path": None if entry.path is None else str(entry.path),
            }
            for entry in entries
        ],
        "cache": {
            "path": str(cache_dir()),
            "files": len(downloaded),
            "bytes": sum(file.size for file in downloaded),
        },
    }
    rows = [
        [
            entry.name,
            entry.kind,
            "" if entry.size is None else format_bytes(entry.size),
            "not downloaded" if entry.path is None else str(entry.path),
        ]
        for entry in entries
    ]
    rows.append(["", "cache", format_bytes(result["cache"]["bytes"]), str(cache_dir())])
    print_table(as_json, result, ["name", "kind", "size", "folder"], rows)


# ---- other formats ---------------------------------------------------------------------------------------------------


@click.command()
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST", type=click.Path(path_type=Path))
@click.option(
    "--to",
    "to",
    type=click.Choice(["official", "elmokit"]),
    help="Format to write.  [default: the one that SRC does not have]",
)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "float16", "int8"]),
    help="Type of the stored weights; implies --to elmokit.  [default: float32]",
)
@click.option("--softmax", metavar="FILE", help="Softmax file of an official model, which makes it a language model.")
@click.option("--vocabulary", metavar="FILE", help="Words of the softmax, or of a word-level official model.")
@click.option("--overwrite", is_flag=True, help="Write into DST even if it is not empty.")
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
    """Write the model SRC in another format into the folder DST.

    The formats are that of elmokit and the official one, options.json with weights.hdf5. softmax.hdf5 and
    vocabulary.txt of an official folder are converted too. The official format does not hold the weights of mixes.
    """
    from elmokit.files import check_new_folder
    from elmokit.storage import names
    from elmokit.storage.layouts import CARD_FILE, ELMOKIT_FILES, OFFICIAL_FILES, ElmokitFolder

    if dtype is not None and to == "official":
        raise ValueError(f"--dtype {dtype} is for --to elmokit; the official format is float32: leave one of them out")
    check_new_folder(target)
    if target.exists() and any(target.iterdir()) and not overwrite:
        raise ValueError(f"{target} already exists: name another folder, or write into it with --overwrite")
    with downloads() as progress:
        layout = names.resolve(source, progress=progress)
    if target.exists() and target.samefile(layout.folder):
        raise ValueError(f"{target} is the folder of SRC: name another folder")
    elmo = _read_model(source, layout, softmax, vocabulary)
    # the official format has no lexicon and no transformer
    is_ours = isinstance(layout, ElmokitFolder) and elmo.lexicon is None and elmo.config.architecture == "lstm"
    to = to or ("official" if is_ours and dtype is None else "elmokit")
    if to == "official":
        elmo.export_hdf5(target)
    else:
        elmo.save_pretrained(target, dtype=dtype)
    written = _written_files(elmo, OFFICIAL_FILES if to == "official" else ELMOKIT_FILES)
    for name in {*ELMOKIT_FILES, *OFFICIAL_FILES} - written - {CARD_FILE}:  # of another model
        (target / name).unlink(missing_ok=True)
    result = {"out": str(target), "format": to, "files": sorted(written)}
    print_result(as_json, result, f"{target}: {to} format, {', '.join(sorted(written))}")


def _read_model(source: str, layout: Layout, softmax: str | None, vocabulary: str | None) -> ELMo:
    from elmokit.model import ELMo
    from elmokit.storage.layouts import OfficialFiles

    if isinstance(layout, OfficialFiles):
        with downloads() as progress:
            return ELMo.from_files(
                layout.options,
                layout.weights,
                softmax=softmax or layout.softmax,
                vocabulary=vocabulary or layout.vocabulary,
                progress=progress,
            )
    if softmax or vocabulary:
        raise ValueError(
            f"{source} is in {layout.format} format, which has its own softmax and vocabulary: leave --softmax and "
            "--vocabulary out"
        )
    return ELMo.from_pretrained(layout.folder)


def _written_files(elmo: ELMo, names: tuple[str, ...]) -> set[str]:
    """The files that a model has of those that its format can have."""
    from elmokit.storage.layouts import LEXICON_FILE, OFFICIAL_SOFTMAX_FILE, SOFTMAX_FILE, VOCABULARY_FILE

    absent: set[str] = set()
    if elmo.output_layer is None:
        absent |= {SOFTMAX_FILE, OFFICIAL_SOFTMAX_FILE}
    if elmo.vocabulary is None:
        absent |= {VOCABULARY_FILE}
    if elmo.lexicon is None:
        absent |= {LEXICON_FILE}
    return set(names) - absent


@click.command()
@click.argument("model", required=False)
@click.option("--onnx", "target", metavar="OUT", type=click.Path(path_type=Path), help="ONNX file to write.")
@click.option(
    "--web", metavar="FOLDER", type=click.Path(path_type=Path), help="Folder to write: a page that runs the model."
)
@layers_option("all", "Layers that the file computes", names="average, top, all, slot, sense, mix")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "float16", "int8"]),
    default="float32",
    show_default=True,
    help="Type of the stored weights; the file computes in float32. A page has int8.",
)
@click.option(
    "--runtime",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="The npm package onnxruntime-web, for --web. Default: that of node_modules here or above.",
)
@overwrite_option
@json_option
def export(
    model: str | None,
    target: Path | None,
    web: Path | None,
    layers: Any,
    dtype: Any,
    runtime: Path | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Write MODEL as an ONNX file or as a web page.

    The file turns ids of any batch and length into vectors and a mask; for sense it also reads the weights of the
    words. The page is the explorer of `elmokit serve` as static files; the model runs in the browser. Without MODEL,
    export en.
    """
    if (target is None) == (web is None):
        raise click.UsageError("Pass --onnx OUT or --web FOLDER.")
    if web is not None:
        return _export_web(model, web, runtime, overwrite, as_json)
    assert target is not None
    from elmokit.inference.views import check_layers
    from elmokit.integrations.onnx import export_onnx

    check_new_file(target, overwrite)
    elmo = load_model(model, "cpu")
    chosen: Any = layers if layers == "mix" else check_layers(layers, elmo.num_layers)
    file = export_onnx(elmo, target, layers=chosen, dtype=dtype)
    inputs, outputs = (
        ", ".join(f"{name} {_format_shape(shape)}" for name, shape in shapes.items())
        for shapes in (file.inputs, file.outputs)
    )
    line = f"{file.path}: {file.num_bytes / 1e6:.1f} MB, {inputs} -> {outputs}"
    print_result(as_json, {**dataclasses.asdict(file), "path": str(file.path)}, line)


def _export_web(model: str | None, folder: Path, runtime: Path | None, overwrite: bool, as_json: bool) -> None:
    from elmokit.files import check_new_folder
    from elmokit.integrations.web import export_web, find_runtime

    find_runtime(runtime)  # before the model is loaded
    check_new_folder(folder)
    if folder.exists() and not overwrite and any(folder.iterdir()):
        raise ValueError(f"{folder} already exists: pass --overwrite to replace its files")
    name = "elmokit-en" if model is None else Path(model).name
    written = export_web(load_model(model, "cpu"), folder, name=name, runtime=runtime)
    line = (
        f"{folder}: {written.num_bytes / 1e6:.1f} MB, {written.model_bytes / 1e6:.1f} MB of it the model. "
        f"Look at it with: python -m http.server -d {folder}"
    )
    print_result(as_json, {**dataclasses.asdict(written), "path": str(folder)}, line)


def _format_shape(shape: tuple[str | int, ...]) -> str:
    return f"({', '.join(map(str, shape))})"
