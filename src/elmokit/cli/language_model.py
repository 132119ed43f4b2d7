"""The verbs that use a model as a language model: substitutes, perplexity."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from elmokit.cli.terminal import (
    DEFAULT_MODEL,
    counting,
    device_option,
    downloads,
    json_option,
    load_model,
    model_option,
    open_input,
    print_table,
    progress_bar,
    tokenized_for,
    tokenized_option,
)

if TYPE_CHECKING:
    from elmokit.corpus import Corpus
    from elmokit.inference.scores import Perplexity, TokenLogProbs
    from elmokit.model import ELMo

PERPLEXITY_COLUMNS = ["perplexity", "forward", "backward", "predictions", "unknown", "without unknown"]


@click.command()
@click.argument("sentence")
@click.option("-k", "count", type=int, default=5, show_default=True, help="Number of words.")
@model_option
@device_option
@json_option
def substitutes(sentence: str, count: int, model: str | None, device: str | None, as_json: bool) -> None:
    """Print the likeliest words for a place in SENTENCE.

    The place is in brackets, as in "He sat on the [bank] .".
    """
    import math

    words = load_model(model, device).substitutes(sentence, k=count)
    result = {"sentence": sentence, "substitutes": [dataclasses.asdict(word) for word in words]}
    rows = [[word.word, f"{math.exp(word.log_prob):.4f}"] for word in words]
    print_table(as_json, result, ["word", "probability"], rows)


@click.command()
@click.argument("arguments", metavar="[MODEL] TEXT...", nargs=-1, required=True)
@model_option
@device_option
@click.option("--per-sentence", is_flag=True, help="Score each line separately, without the lines before it.")
@tokenized_option
@json_option
def perplexity(
    arguments: tuple[str, ...],
    model: str | None,
    device: str | None,
    per_sentence: bool,
    tokenized: bool,
    as_json: bool,
) -> None:
    """Print the perplexity of TEXT.

    TEXT: files, or one folder that `elmokit prepare` wrote. MODEL is a language model. It can be given as the first of
    several arguments, or as --model. Without it, en is used.

    Computed as published: full softmax, state carried from sentence to sentence, sentence boundaries counted. Tokens
    outside the vocabulary are scored as <UNK>; their number and the perplexity without them are printed too. In
    JSON an infinite perplexity is null.
    """
    model, text = _split_arguments(model, arguments)
    elmo = load_model(model, device)
    if not elmo.is_language_model:
        raise ValueError(
            f"{model or DEFAULT_MODEL} has no softmax, so it is not a language model: `elmokit convert --softmax` adds "
            "one"
        )
    with downloads() as progress:
        elmo.load_language_model(progress=progress)
    if per_sentence:
        _print_sentence_perplexities(elmo, text, tokenized, as_json)
    else:
        score = _corpus_perplexity(elmo, text, tokenized)
        print_table(as_json, dataclasses.asdict(score), PERPLEXITY_COLUMNS, [_format_perplexity(score)])


def _split_arguments(model: str | None, arguments: tuple[str, ...]) -> tuple[str | None, tuple[str, ...]]:
    """The model and the texts.  A file is never a model, so that several files need no --model."""
    first, *rest = arguments
    if model is not None or not rest or first == "-" or os.path.isfile(first):
        return model, arguments
    return first, tuple(rest)


def _corpus_perplexity(elmo: ELMo, text: tuple[str, ...], tokenized: bool) -> Perplexity:
    import tempfile

    from elmokit.corpus import Corpus, prepare

    if len(text) == 1 and Path(text[0]).is_dir():
        return _prepared_perplexity(elmo, Corpus.open(text[0], vocabulary=elmo.vocabulary))
    assert elmo.vocabulary is not None
    with tempfile.TemporaryDirectory(prefix="elmokit-") as folder:
        with progress_bar("reading", None) as advance:
            corpus = prepare(
                text,
                folder,
                vocabulary=elmo.vocabulary,
                tokenized=tokenized_for(elmo, tokenized),
                max_characters=elmo.config.max_characters,
                progress=advance.to,
            )
        return _prepared_perplexity(elmo, corpus)


def _prepared_perplexity(elmo: ELMo, corpus: Corpus) -> Perplexity:
    from elmokit.corpus.heldout import heldout_perplexity

    assert elmo.output_layer is not None
    assert elmo.vocabulary is not None
    with progress_bar("scoring", corpus.num_pairs, in_bytes=False) as advance:
        unk_id = elmo.vocabulary.unk_id
        return heldout_perplexity(elmo.bilm, elmo.output_layer, corpus, unk_id=unk_id, progress=advance.to)


def _print_sentence_perplexities(elmo: ELMo, paths: tuple[str, ...], tokenized: bool, as_json: bool) -> None:
    from elmokit.inference.scores import perplexity_of
    from elmokit.vector_files import read_lines

    scored: list[tuple[str, TokenLogProbs]] = []
    for path in paths:
        with open_input(path) as (stream, size), progress_bar("scoring", size) as advance:
            lines = [line for line in read_lines(counting(stream, advance), path) if line]
        scored += zip(lines, elmo.log_probs([line.split() for line in lines] if tokenized else lines), strict=True)
    sentences, rows = [], []
    for line, scores in scored:
        score = perplexity_of([scores])
        unknown = [token for token, is_unknown in zip(scores.tokens, scores.unknown, strict=True) if is_unknown]
        sentences.append({"sentence": line, **dataclasses.asdict(score), "unknown_tokens": unknown})
        rows.append([*_format_perplexity(score, unknown), line])
    total = perplexity_of([scores for _, scores in scored])
    result = {**dataclasses.asdict(total), "sentences": sentences}
    print_table(as_json, result, [*PERPLEXITY_COLUMNS, "sentence"], [*rows, [*_format_perplexity(total), "(all)"]])


def _format_perplexity(score: Perplexity, unknown_tokens: Sequence[str] = ()) -> list[str]:
    """The cells of PERPLEXITY_COLUMNS."""
    assert score.known is not None
    listed = f" ({' '.join(unknown_tokens)})" if unknown_tokens else ""
    return [
        *(f"{value:.2f}" for value in (score.both, score.forward, score.backward)),
        f"{score.num_tokens:,}",
        f"{score.num_unknown:,}{listed}",
        f"{score.known:.2f}",
    ]
