"""The verbs that store words in context and find similar ones: index build, add, info; neighbours."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from elmokit.cli.terminal import (
    DEFAULT_MODEL,
    Advance,
    device_option,
    format_count,
    json_option,
    layers_option,
    load_model,
    model_option,
    print_json,
    print_result,
    print_table,
    progress_bar,
    size_to_read,
    tokenized_for,
    tokenized_option,
)

if TYPE_CHECKING:
    from elmokit.corpus.sources import Tokenized
    from elmokit.index import Neighbour, WordIndex
    from elmokit.model import ELMo

FOLDER = click.Path(path_type=Path)
store_model_option = click.option(
    "--model", metavar="MODEL", help="Model folder, name or Hugging Face id.  [default: the model of the store]"
)


@click.group()
def index() -> None:
    """Store the words of a corpus in their contexts."""


@index.command()
@click.argument("corpus", nargs=-1, required=True)
@click.option("-o", "--out", "folder", type=FOLDER, default="store", show_default=True, help="Folder to write.")
@model_option
@device_option
@layers_option("sense", "Layer of the vectors", names="sense, slot, average, top", flag="--layer")
@click.option("--skip-punctuation", is_flag=True, help="Leave out tokens that have no letter and no digit.")
@click.option("--skip-words", type=FOLDER, help="File of words to leave out, separated by spaces or lines.")
@tokenized_option
@json_option
def build(
    corpus: tuple[str, ...],
    folder: Path,
    model: str | None,
    device: str | None,
    layer: Any,
    skip_punctuation: bool,
    skip_words: Path | None,
    tokenized: bool,
    as_json: bool,
) -> None:
    """Store the vectors of all words of CORPUS.

    CORPUS: files or globs of .txt, .gz, .xz, .zst or .parquet files, one sentence per line. If a build is stopped, the
    same command resumes it.
    """
    from elmokit.corpus.sources import find_files
    from elmokit.files import check_new_folder
    from elmokit.index import SETTINGS_FILE, WordIndex
    from elmokit.inference.views import check_layers

    check_new_folder(folder)
    files = find_files(list(corpus))
    skipped = [] if skip_words is None else _read_words(skip_words)
    store = WordIndex.open(folder) if (folder / SETTINGS_FILE).exists() else None
    is_default = click.get_current_context().get_parameter_source("layer") == ParameterSource.DEFAULT
    if store is not None and is_default:  # a store of an earlier version has another default
        layer = store.settings.layer
    elmo = load_model(model or (None if store is None else store.settings.model), device)
    layer = check_layers(layer, elmo.num_layers, single=True)
    if store is None:
        name = str(Path(model).resolve()) if model is not None and Path(model).exists() else model
        store = WordIndex.create(
            folder, elmo, layer=layer, skip_punctuation=skip_punctuation, skip_words=skipped, model_name=name
        )
    else:
        options = {
            "layer": layer,
            "skip_punctuation": skip_punctuation,
            "skip_words": tuple(sorted({word.casefold() for word in skipped})),
        }
        for option, value in options.items():
            if (stored := getattr(store.settings, option)) != value:
                raise ValueError(f"{folder} was made with {option} {stored!r}, not {value!r}: name another folder")
    _add_files(store, elmo, files, tokenized, as_json)


def _read_words(path: Path) -> list[str]:
    from elmokit.vector_files import read_lines

    with path.open("rb") as file:
        return [word for line in read_lines(file, str(path)) for word in line.split()]


@index.command()
@click.argument("folder", metavar="STORE", type=FOLDER)
@click.argument("corpus", nargs=-1, required=True)
@store_model_option
@device_option
@tokenized_option
@json_option
def add(
    folder: Path, corpus: tuple[str, ...], model: str | None, device: str | None, tokenized: bool, as_json: bool
) -> None:
    """Add the words of CORPUS to STORE.

    Of files that STORE already holds, only new lines at the end are added.
    """
    from elmokit.corpus.sources import find_files
    from elmokit.index import WordIndex

    files, store = find_files(list(corpus)), WordIndex.open(folder)
    _add_files(store, load_model(model or store.settings.model, device), files, tokenized, as_json)


@index.command()
@click.argument("folder", metavar="STORE", type=FOLDER, default="store")
@json_option
def info(folder: Path, as_json: bool) -> None:
    """Print the size, the files and the settings of STORE."""
    from elmokit.index import WordIndex

    store = WordIndex.open(folder)
    contents = store.contents
    result: dict[str, Any] = {
        "store": str(folder),
        "words": len(store),
        "sentences": store.num_sentences,
        "words_in_graph": contents.graph_rows,
        "bytes": store.size_on_disk,
        **{name: value for name, value in dataclasses.asdict(store.settings).items() if name != "skip_words"},
        "skipped_words": len(store.settings.skip_words),
        "sources": {name: number for name, number, _ in contents.sources},
    }
    shown = {
        **result,
        "model": store.settings.model or DEFAULT_MODEL,
        "sources": ", ".join(f"{name} ({number:,})" for name, number in result["sources"].items()),
    }
    words = {True: "yes", False: "no"}
    rows = [
        [name, words[value] if isinstance(value, bool) else f"{value:,}" if isinstance(value, int) else str(value)]
        for name, value in shown.items()
    ]
    print_table(as_json, result, ["what", "value"], rows)


@click.command()
@click.argument("sentences", metavar="SENTENCE...", nargs=-1, required=True)
@click.option(
    "--store", "folder", type=FOLDER, default="store", show_default=True, help="Folder that `index build` wrote."
)
@click.option("-k", "--neighbours", "k", type=int, default=10, show_default=True, help="Number of words per SENTENCE.")
@click.option("--same-word", is_flag=True, help="Only print uses of the same word.")
@store_model_option
@device_option
@json_option
def neighbours(
    sentences: tuple[str, ...],
    folder: Path,
    k: int,
    same_word: bool,
    model: str | None,
    device: str | None,
    as_json: bool,
) -> None:
    """Print the words of a store nearest to a word or phrase.

    It is in brackets in each SENTENCE, as in "He sat by the [bank] .".
    """
    from elmokit.index import WordIndex

    store = WordIndex.open(folder)
    elmo = load_model(model or store.settings.model, device)
    nearest = {sentence: store.neighbours(elmo, sentence, k=k, same_word=same_word) for sentence in sentences}
    if as_json:
        answers = [
            {"sentence": sentence, "neighbours": [*map(dataclasses.asdict, near)]} for sentence, near in nearest.items()
        ]
        print_json({"store": str(folder), "queries": answers})
        return
    for number, (sentence, near) in enumerate(nearest.items()):
        click.echo(("\n" if number else "") + sentence)
        for neighbour in near:
            click.echo(f"{neighbour.cosine:.4f}  {_mark(neighbour)}")


def _add_files(store: WordIndex, model: ELMo, files: list[Path], tokenized: bool, as_json: bool) -> None:
    num_words = num_skipped = 0
    with progress_bar("indexing", size_to_read(files)) as advance:
        for file in files:
            rule = tokenized_for(model, tokenized)
            added = store.add(model, _read_sentences(file, rule, advance), source=str(file.resolve()))
            num_words += added.num_words
            num_skipped += added.num_skipped
    result = {"store": str(store.folder), "added_words": num_words, "words": len(store)}
    result |= {"sentences": store.num_sentences, "known_sentences": num_skipped, "bytes": store.size_on_disk}
    words, sentences = format_count(num_words, "word"), format_count(store.num_sentences, "sentence")
    known = f"; {format_count(num_skipped, 'sentence was', 'sentences were')} there before" if num_skipped else ""
    print_result(as_json, result, f"{store.folder}: {words} added, {len(store):,} in {sentences} now{known}")


def _read_sentences(file: Path, tokenized: Tokenized, advance: Advance) -> Iterator[list[str]]:
    """The tokens of each line; a line advances the bar once it has been processed."""
    from elmokit.corpus.sources import read_blocks, report_replaced, sentences

    num_replaced = 0
    for block in read_blocks([file], None):
        for line in block.content.removesuffix(b"\n").split(b"\n"):
            (tokens,), replaced = sentences(line, tokenized=tokenized)
            num_replaced += replaced
            yield tokens
            advance(len(line) + 1)
    report_replaced(num_replaced)


def _mark(neighbour: Neighbour) -> str:
    """The sentence of a neighbour, with the word in brackets."""
    from elmokit.text import join_tokens

    before, after = neighbour.tokens[: neighbour.index], neighbour.tokens[neighbour.index + 1 :]
    return join_tokens([*before, f"[{neighbour.word}]", *after])
