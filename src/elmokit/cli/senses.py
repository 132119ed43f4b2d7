"""The verb that groups the occurrences of a word: senses."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import click

from elmokit.cli.terminal import (
    device_option,
    format_count,
    json_option,
    load_model,
    model_option,
    print_json,
    progress_bar,
    size_to_read,
    tokenized_for,
    tokenized_option,
)

if TYPE_CHECKING:
    from elmokit.inference.senses import WordSenses
    from elmokit.model import ELMo


@click.command()
@click.argument("word")
@click.argument("corpus", nargs=-1, required=True)
@model_option
@device_option
@click.option("-n", "--num-senses", type=click.IntRange(1), help="Number of senses.  [default: found from the data]")
@click.option(
    "--sentences", "num_shown", type=click.IntRange(0), default=3, show_default=True, help="Sentences per sense."
)
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=2000,
    show_default=True,
    help="Largest number of sentences with WORD to group; of more, a sample.",
)
@click.option("--plot", "picture", type=click.Path(path_type=Path), help="Picture to draw: .svg, .png or .pdf.")
@tokenized_option
@json_option
def senses(
    word: str,
    corpus: tuple[str, ...],
    model: str | None,
    device: str | None,
    num_senses: int | None,
    num_shown: int,
    limit: int,
    picture: Path | None,
    tokenized: bool,
    as_json: bool,
) -> None:
    """Group the occurrences of WORD in CORPUS into senses.

    Prints each sense with its share, words that fit in its place, and its most typical sentences. WORD may be a phrase.

    CORPUS: files or globs of .txt, .gz, .xz, .zst or .parquet files, one sentence per line; or the folder of a store,
    which `elmokit index build` wrote.
    """
    from elmokit.index import SETTINGS_FILE, WordIndex
    from elmokit.inference.senses import check_picture

    if picture is not None:
        check_picture(picture)
    if len(corpus) == 1 and (Path(corpus[0]) / SETTINGS_FILE).is_file():
        store = WordIndex.open(corpus[0])
        elmo = load_model(model or store.settings.model, device)
        found = store.senses(elmo, word, num_senses=num_senses, limit=limit)
        num_all = store.occurrences(word, limit=1).num_total
    else:
        elmo = load_model(model, device)
        sentences, num_all = _sample(word, corpus, elmo, tokenized, limit)
        with progress_bar("embedding", len(sentences), in_bytes=False) as advance:
            found = elmo.senses(word, sentences, num_senses=num_senses, show_progress=advance.to)
    if picture is not None and found.occurrences:
        found.plot(picture)
    if as_json:
        print_json(_as_json(found, num_all, num_shown), ensure_ascii=False)
    else:
        _print(found, num_all, num_shown)


def _sample(word: str, corpus: tuple[str, ...], elmo: ELMo, tokenized: bool, limit: int) -> tuple[list[list[str]], int]:
    """At most `limit` sentences with the word, each as likely as any other, and the number of all occurrences."""
    from elmokit.corpus.sources import find_files, read_blocks, report_replaced, sentences
    from elmokit.inference.senses import find_occurrences

    draw = random.Random(0)  # the same call gives the same sample
    chosen: list[tuple[int, list[str]]] = []
    num_all = num_found = num_replaced = 0
    files, rule = find_files(list(corpus)), tokenized_for(elmo, tokenized)
    # the longest run of letters is in the line as it is, however the tokenizer cuts the word
    letters = "".join(character if character.isalnum() else " " for character in word.casefold()).split()
    needle = max(letters, key=len, default="")
    with progress_bar("searching", size_to_read(files)) as advance:
        for block in read_blocks(files, None):
            for line in block.content.removesuffix(b"\n").split(b"\n"):
                advance(len(line) + 1)
                if needle not in line.decode(errors="replace").casefold():
                    continue
                (tokens,), replaced = sentences(line, tokenized=rule)
                num_replaced += replaced
                if num_inside := len(list(find_occurrences(word, [tokens], elmo.tokenizer))):
                    num_all, num_found = num_all + num_inside, num_found + 1
                    place = len(chosen) if len(chosen) < limit else draw.randrange(num_found)
                    chosen[place : place + 1] = [(num_found, tokens)] if place < limit else []
    report_replaced(num_replaced)
    return [tokens for _, tokens in sorted(chosen)], num_all


def _as_json(found: WordSenses, num_all: int, num_shown: int) -> dict[str, object]:
    return {
        "word": found.word,
        "num_occurrences": num_all,
        "num_grouped": len(found.occurrences),
        "senses": [
            {
                "share": sense.share,
                "substitutes": sense.substitutes,
                "sentences": [
                    {"tokens": one.tokens, "start": one.start, "end": one.end} for one in sense.occurrences[:num_shown]
                ],
            }
            for sense in found.senses
        ],
    }


def _print(found: WordSenses, num_all: int, num_shown: int) -> None:
    sample = "" if num_all == len(found.occurrences) else f", of which {len(found.occurrences):,} are grouped"
    occurrences, senses = format_count(num_all, "occurrence"), format_count(len(found.senses), "sense")
    click.echo(f"{found.word}: {occurrences}{sample}, {senses}")
    for number, sense in enumerate(found.senses, 1):
        click.echo(f"\n{number}  {100 * sense.share:.0f}%  {', '.join(sense.substitutes)}".rstrip())
        for one in sense.occurrences[:num_shown]:
            click.echo(f"   {one}")
