"""The verbs of the command line that keep words in context and find them again: index build, add, info; neighbours.

Enters and leaves: as in `cli`, which gathers all verbs.  What a verb needs is imported inside it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from elmokit.cli.terminal import (
    Advance,
    json_option,
    load_model,
    model_options,
    print_result,
    print_table,
    progress_bar,
    tokenized_option,
)

if TYPE_CHECKING:
    from elmokit.index import Layer, Neighbour, WordIndex
    from elmokit.model import ELMo

FOLDER = click.Path(path_type=Path)


@click.group()
def index() -> None:
    """Keep every word of a corpus in its context, to find those nearest to another."""


def _read_layer(_: click.Context, __: click.Parameter, value: str) -> Layer:
    if value.isdecimal():
        return int(value)
    if value not in ("top", "average"):
        raise ValueError(f"--layer is top, average or a number from 0, not {value!r}")
    return value  # type: ignore[return-value]


@index.command()
@click.argument("corpus", nargs=-1, required=True)
@click.option("-o", "--out", "folder", type=FOLDER, default="store", show_default=True, help="The folder to make.")
@model_options
@click.option("--layer", default="average", show_default=True, callback=_read_layer, help="top, average, or 0, 1, 2 …")
@click.option("--skip-punctuation", is_flag=True, help="Leave out tokens without a letter or digit.")
@click.option("--skip-words", type=FOLDER, help="File with words to leave out, one a line.")
@tokenized_option
@json_option
def build(
    corpus: tuple[str, ...],
    folder: Path,
    model: str | None,
    device: str | None,
    layer: Layer,
    skip_punctuation: bool,
    skip_words: Path | None,
    tokenized: bool,
    as_json: bool,
) -> None:
    """Make a store of every word of CORPUS: text files or globs, one sentence a line, .gz, .xz, .zst or .parquet too.

    A build that was stopped goes on when the same command is given again.
    """
    from elmokit.corpus.sources import find_files
    from elmokit.index import SETTINGS_FILE, WordIndex

    files = find_files(list(corpus))
    skipped = [] if skip_words is None else skip_words.read_text(encoding="utf-8").split()
    chosen = {
        "layer": layer,
        "skip_punctuation": skip_punctuation,
        "skip_words": tuple(sorted({word.casefold() for word in skipped})),
    }
    if (folder / SETTINGS_FILE).exists():
        store = WordIndex.open(folder)
        for setting, value in chosen.items():
            if (there := getattr(store.settings, setting)) != value:
                raise ValueError(f"{folder} was made with {setting} {there!r}, not {value!r}: name another folder")
        elmo = load_model(model or store.settings.model, device)
    else:
        elmo = load_model(model, device)
        name = str(Path(model).resolve()) if model is not None and Path(model).exists() else model
        store = WordIndex.create(
            folder, elmo, layer=layer, skip_punctuation=skip_punctuation, skip_words=skipped, model_name=name
        )
    _add_files(store, elmo, files, tokenized, as_json)


@index.command()
@click.argument("folder", metavar="STORE", type=FOLDER)
@click.argument("corpus", nargs=-1, required=True)
@model_options
@tokenized_option
@json_option
def add(
    folder: Path, corpus: tuple[str, ...], model: str | None, device: str | None, tokenized: bool, as_json: bool
) -> None:
    """Add the words of CORPUS to STORE; of files that are in it already, what is new at their ends."""
    from elmokit.corpus.sources import find_files
    from elmokit.index import WordIndex

    files, store = find_files(list(corpus)), WordIndex.open(folder)
    _add_files(store, load_model(model or store.settings.model, device), files, tokenized, as_json)


@index.command()
@click.argument("folder", metavar="STORE", type=FOLDER, default="store")
@json_option
def info(folder: Path, as_json: bool) -> None:
    """Print what STORE holds."""
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
    shown = {**result, "sources": ", ".join(f"{name} ({number:,})" for name, number in result["sources"].items())}
    spelled = [[name, f"{value:,}" if type(value) is int else str(value)] for name, value in shown.items()]
    print_table(as_json, result, ["what", "value"], spelled)


@click.command()
@click.argument("sentences", metavar="SENTENCE...", nargs=-1, required=True)
@click.option("--store", "folder", type=FOLDER, default="store", show_default=True, help="Made by index build.")
@click.option("-k", "--neighbours", "k", type=int, default=10, show_default=True, help="How many for each sentence.")
@model_options
@json_option
def neighbours(
    sentences: tuple[str, ...], folder: Path, k: int, model: str | None, device: str | None, as_json: bool
) -> None:
    """Print the words of a store nearest to the one in brackets of each SENTENCE, as in "He played the [bank] ."."""
    from elmokit.index import WordIndex

    store = WordIndex.open(folder)
    elmo = load_model(model or store.settings.model, device)
    found = {sentence: store.neighbours(elmo, sentence, k=k) for sentence in sentences}
    if as_json:
        answers = [{"sentence": asked, "neighbours": [*map(dataclasses.asdict, near)]} for asked, near in found.items()]
        click.echo(json.dumps({"store": str(folder), "queries": answers}))
        return
    for number, (sentence, near) in enumerate(found.items()):
        click.echo(("\n" if number else "") + sentence)
        for neighbour in near:
            click.echo(f"{neighbour.cosine:.4f}  {_mark(neighbour)}")


def _add_files(store: WordIndex, model: ELMo, files: list[Path], tokenized: bool, as_json: bool) -> None:
    num_words = num_skipped = 0
    plain = all(file.suffix.lower() not in (".gz", ".xz", ".zst", ".parquet") for file in files)
    with progress_bar("indexing", sum(file.stat().st_size for file in files) if plain else None) as advance:
        for file in files:
            added = store.add(model, _read_sentences(file, tokenized, advance), source=str(file.resolve()))
            num_words += added.num_words
            num_skipped += added.num_skipped
    result = {"store": str(store.folder), "added_words": num_words, "words": len(store)}
    result |= {"sentences": store.num_sentences, "known_sentences": num_skipped, "bytes": store.size_on_disk}
    known = f"; {num_skipped:,} sentences were there before" if num_skipped else ""
    line = f"{store.folder}: {num_words:,} words added, {len(store):,} in {store.num_sentences:,} sentences now{known}"
    print_result(as_json, result, line)


def _read_sentences(file: Path, tokenized: bool, advance: Advance) -> Iterator[list[str]]:
    """The tokens of each line; the bar moves when they have been worked on."""
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
    before, after = neighbour.tokens[: neighbour.index], neighbour.tokens[neighbour.index + 1 :]
    return " ".join([*before, f"[{neighbour.word}]", *after])
