"""The verbs that make models: vocab, prepare, pretrain, finetune."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from elmokit.cli.terminal import (
    RecipeCommand,
    check_new_file,
    corpus_tokenized_option,
    downloads,
    format_count,
    json_option,
    overwrite_option,
    print_result,
    progress_bar,
    set_option,
    tokenized_option,
    training_bar,
)

if TYPE_CHECKING:
    from elmokit.corpus.sources import Tokenized
    from elmokit.pretraining import PretrainResult

characters_option = click.option(
    "--characters", is_flag=True, help="Make each character a token, for languages without spaces."
)
han_option = click.option(
    "--han", is_flag=True, help="Make each Han character and each other word a token, for Chinese."
)
workers_option = click.option("--workers", type=int, help="Number of processes.  [default: one per core]")


@click.command()
@click.argument("text", nargs=-1, required=True)
@click.option("-o", "--out", "target", required=True, type=click.Path(path_type=Path), help="File to write.")
@click.option("--size", type=int, help="Largest number of words, with <S>, </S> and <UNK>.  [default: all]")
@click.option("--min-count", type=int, default=1, show_default=True, help="Leave out words that occur less often.")
@corpus_tokenized_option
@characters_option
@han_option
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
    han: bool,
    workers: int | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Count the words of TEXT and write a vocabulary file.

    TEXT: files or globs of .txt, .gz, .xz, .zst or .parquet files. The most frequent word comes first.
    """
    from elmokit.corpus import build_vocabulary
    from elmokit.files import claimed

    rule = _one_of(tokenized, characters, han)
    check_new_file(target, overwrite)
    with claimed(target), progress_bar("counting", None) as advance:
        check_new_file(target, overwrite)  # another process may have been faster
        vocabulary = build_vocabulary(
            text,
            size=size,
            min_count=min_count,
            tokenized=rule,
            progress=advance.to,
            workers=workers,
        )
        vocabulary.save(target)
    result = {"out": str(target), "words": len(vocabulary)}
    print_result(as_json, result, f"{target}: {format_count(len(vocabulary), 'word')}")


@click.command()
@click.argument("text", nargs=-1, required=True)
@click.option("-o", "--out", "target", required=True, type=click.Path(path_type=Path), help="Corpus folder to write.")
@click.option("--vocabulary", "words", required=True, help="File that `elmokit vocab` wrote.")
@corpus_tokenized_option
@characters_option
@han_option
@click.option(
    "--max-characters",
    type=int,
    default=50,
    show_default=True,
    help="Number of character ids per word, with the marks of its begin and end.",
)
@workers_option
@json_option
def prepare(
    text: tuple[str, ...],
    target: Path,
    words: str,
    tokenized: bool,
    characters: bool,
    han: bool,
    max_characters: int,
    workers: int | None,
    as_json: bool,
) -> None:
    """Convert TEXT into a corpus folder that training reads.

    TEXT has one sentence per line; a blank line ends a document. If a run is stopped, the same command resumes it.
    """
    from elmokit.corpus import prepare as prepare_corpus
    from elmokit.text import Vocabulary

    rule = _one_of(tokenized, characters, han)
    vocabulary = Vocabulary.load(words)
    with progress_bar("preparing", None) as advance:
        corpus = prepare_corpus(
            text,
            target,
            vocabulary=vocabulary,
            tokenized=rule,
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
    numbers = {"token": corpus.num_tokens, "sentence": corpus.num_sentences, "document": corpus.num_documents}
    counts = ", ".join(format_count(number, noun) for noun, number in numbers.items())
    print_result(as_json, result, f"{target}: {counts}")


def _one_of(tokenized: bool, characters: bool, han: bool) -> Tokenized:
    """How text is split, of options that exclude each other."""
    if tokenized + characters + han > 1:
        raise click.UsageError("--tokenized, --characters and --han exclude each other: pass one of them")
    return "han" if han else "characters" if characters else tokenized


@click.command(cls=RecipeCommand, recipes="pretraining")
@click.argument("recipe")
@set_option
@json_option
def pretrain(recipe: str, overrides: tuple[str, ...], as_json: bool) -> None:
    """Train a biLM from text.

    RECIPE is the name of a recipe of the package (below), or a TOML file. Set your own files with --set train=FILES,
    --set heldout=FILES and --set out=FOLDER. If a run is stopped, the same command resumes it.

    Several GPUs: torchrun --no-python --nproc-per-node 8 elmokit pretrain RECIPE.
    """
    from elmokit.pretraining import load_recipe, run_recipe

    config, sizes = load_recipe(recipe, overrides)
    with training_bar() as on_progress:
        result = run_recipe(config, sizes, on_progress=on_progress)
    _print_training(result, as_json)


@click.command()
@click.argument("model")
@click.argument("text", nargs=-1, required=True)
@click.option("-o", "--out", "target", required=True, help="Folder of the run and of the trained model.")
@click.option("--heldout", help="Text to measure the perplexity of; the best model is kept, MODEL itself included.")
@click.option(
    "--vocabulary", help="Words of a new softmax.  [default: those of MODEL if it has a softmax, else of TEXT]"
)
@click.option(
    "--recipe",
    default="finetune",
    show_default=True,
    metavar="NAME|FILE",
    help="Recipe whose settings are the defaults; its text, its folder and its sizes are not used.",
)
@tokenized_option
@set_option
@json_option
def finetune(
    model: str,
    text: tuple[str, ...],
    target: str,
    heldout: str | None,
    vocabulary: str | None,
    recipe: str,
    tokenized: bool,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Continue training MODEL on TEXT.

    MODEL is any model: a folder, a name or a Hugging Face id. The defaults are three passes over TEXT in small steps.
    If a run is stopped, the same command resumes it.

    With --heldout the perplexity is measured before the first step too: if training does not lower it, MODEL is saved
    as it was given.
    """
    from elmokit.pretraining import finetune as continue_training
    from elmokit.settings import read_setting
    from elmokit.storage import names

    settings = {**({"tokenized": True} if tokenized else {}), **dict(map(read_setting, overrides))}
    if vocabulary is not None:
        settings["vocabulary"] = vocabulary
    with downloads() as progress:
        files = names.resolve(model, progress=progress).read()
    with training_bar() as on_progress:
        train = text[0] if len(text) == 1 else text
        result = continue_training(
            files, train=train, out=target, heldout=heldout, recipe=recipe, on_progress=on_progress, **settings
        )
    _print_training(result, as_json)
    if heldout is None and not as_json and os.environ.get("RANK", "0") == "0":
        click.echo("without --heldout it is not measured whether the model improved", err=True)


def _print_training(result: PretrainResult, as_json: bool) -> None:
    if os.environ.get("RANK", "0") != "0":  # of the processes that torchrun started, the first one prints
        return
    line = f"{result.folder}: step {result.step:,} of {result.num_steps:,}"
    if result.best is not None:
        line += f"; held-out perplexity {result.best.both:.2f} at step {result.best_step:,}"
    if result.unigram is not None:
        line += f" (word frequencies only: {result.unigram:.2f})"
    values = {**dataclasses.asdict(result), "folder": str(result.folder)}
    if result.summary is not None:
        values["summary"] = result.summary
        line += f"\n{result.summary}"
    print_result(as_json, values, line)
    if result.ended.startswith("SIG"):
        import signal

        sys.exit(128 + signal.Signals[result.ended])
