"""The verbs of the command line that make models: vocab, prepare, pretrain, finetune.

Enters and leaves: as in `cli`, which gathers all verbs.  What a verb needs is imported inside it.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from elmokit.cli.terminal import (
    check_new_file,
    downloads,
    json_option,
    overwrite_option,
    print_result,
    progress_bar,
    tokenized_option,
    training_bar,
)

if TYPE_CHECKING:
    from elmokit.pretraining import PretrainResult

characters_option = click.option("--characters", is_flag=True, help="Each character is a token.")
workers_option = click.option("--workers", type=int, help="Processes; by default one for each core.")
set_option = click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change one setting.")


@click.command()
@click.argument("text", nargs=-1, required=True)
@click.option("-o", "--out", "target", required=True, type=click.Path(path_type=Path), help="vocabulary.txt")
@click.option("--size", type=int, help="At most so many words, <S>, </S> and <UNK> included.")
@click.option("--min-count", type=int, default=1, show_default=True, help="Leave out words that occur less often.")
@tokenized_option
@characters_option
@workers_option
@overwrite_option
@json_option
def vocab(
    text: tuple[str, ...],
    target: Path,
    size: int | None,
    min_count: int,
    tokenized: bool,
    characters: bool,
    workers: int | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Count the words of TEXT (.txt, .gz, .xz, .zst, .parquet; globs too) and write them, most frequent first."""
    from elmokit.corpus import build_vocabulary

    check_new_file(target, overwrite)
    with progress_bar("counting", None) as advance:
        vocabulary = build_vocabulary(
            text,
            size=size,
            min_count=min_count,
            tokenized="characters" if characters else tokenized,
            progress=advance.to,
            workers=workers,
        )
    vocabulary.save(target)
    print_result(as_json, {"out": str(target), "words": len(vocabulary)}, f"{target}: {len(vocabulary):,} words")


@click.command()
@click.argument("text", nargs=-1, required=True)
@click.option("-o", "--out", "target", required=True, type=click.Path(path_type=Path), help="The corpus folder.")
@click.option("--vocabulary", "words", required=True, help="The file that `elmokit vocab` wrote.")
@tokenized_option
@characters_option
@click.option("--max-characters", type=int, default=50, show_default=True, help="Of a word, its two marks included.")
@workers_option
@json_option
def prepare(
    text: tuple[str, ...],
    target: Path,
    words: str,
    tokenized: bool,
    characters: bool,
    max_characters: int,
    workers: int | None,
    as_json: bool,
) -> None:
    """Turn TEXT (one sentence a line, a blank line ends a document) into a folder that training reads.

    A run that was stopped goes on when the same command is given again.
    """
    from elmokit.corpus import prepare as prepare_corpus
    from elmokit.text import Vocabulary

    vocabulary = Vocabulary.load(words)
    with progress_bar("preparing", None) as advance:
        corpus = prepare_corpus(
            text,
            target,
            vocabulary=vocabulary,
            tokenized="characters" if characters else tokenized,
            max_characters=max_characters,
            workers=workers,
            progress=advance.to,
        )
    result = {
        "out": str(target),
        "tokens": corpus.num_tokens,
        "sentences": corpus.num_sentences,
        "documents": corpus.num_documents,
        "replaced_lines": corpus.num_replaced_lines,
    }
    counts = ", ".join(f"{result[key]:,} {key}" for key in ("tokens", "sentences", "documents"))
    print_result(as_json, result, f"{target}: {counts}")


@click.command()
@click.argument("recipe")
@set_option
@json_option
def pretrain(recipe: str, overrides: tuple[str, ...], as_json: bool) -> None:
    """Train a biLM as the file RECIPE says.

    A run that was stopped goes on when the same command is given again.  Several GPUs: torchrun --no-python
    --nproc-per-node 8 elmokit pretrain RECIPE.
    """
    from elmokit.pretraining import load_recipe, run_recipe

    config, sizes = load_recipe(recipe, overrides)
    with training_bar() as on_progress:
        result = run_recipe(config, sizes, on_progress=on_progress)
    _print_training(result, as_json)


@click.command()
@click.argument("model")
@click.argument("text", nargs=-1, required=True)
@click.option("-o", "--out", "target", required=True, help="The folder of the run, and then of the model.")
@click.option("--heldout", help="Text whose perplexity is measured; the best model by it is kept.")
@click.option("--vocabulary", help="Words of a new softmax; by default those of MODEL, or those of TEXT.")
@tokenized_option
@set_option
@json_option
def finetune(
    model: str,
    text: tuple[str, ...],
    target: str,
    heldout: str | None,
    vocabulary: str | None,
    tokenized: bool,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Train MODEL, any that can be loaded, on with TEXT.

    A run that was stopped goes on when the same command is given again.
    """
    from elmokit.pretraining import finetune as train_on
    from elmokit.settings import read_setting
    from elmokit.storage import names as hub

    settings = {**({"tokenized": True} if tokenized else {}), **dict(map(read_setting, overrides))}
    if vocabulary is not None:
        settings["vocabulary"] = vocabulary
    with downloads() as progress:
        files = hub.resolve(model, progress=progress).read()
    with training_bar() as on_progress:
        train = text[0] if len(text) == 1 else text
        result = train_on(files, train=train, out=target, heldout=heldout, on_progress=on_progress, **settings)
    _print_training(result, as_json)


def _print_training(result: PretrainResult, as_json: bool) -> None:
    if os.environ.get("RANK", "0") != "0":  # one of the processes that torchrun started speaks for all
        return
    line = f"{result.folder}: step {result.step:,} of {result.num_steps:,}"
    if result.best is not None:
        line += f"; held-out perplexity {result.best.both:.2f} at step {result.best_step:,}"
    if result.unigram is not None:
        line += f" (by word frequencies alone {result.unigram:.2f})"
    print_result(as_json, {**dataclasses.asdict(result), "folder": str(result.folder)}, line)
    if result.ended.startswith("SIG"):
        import signal

        sys.exit(128 + signal.Signals[result.ended])
