"""Word counts of text files, and the vocabulary made from them.

Input: text files.  Output: `WordCounts`, or a `Vocabulary` sorted by frequency.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import chain

from elmokit.arguments import check_paths
from elmokit.corpus.sources import Paths, Progress, Tokenized, find_files, read_blocks, report_replaced, sentences
from elmokit.corpus.workers import run_in_order
from elmokit.text.vocabulary import SPECIALS, Vocabulary


class WordCounts(Counter[str]):
    """Number of occurrences of each word."""

    num_replaced_lines = 0
    """Number of lines with bytes that are not UTF-8; these bytes were replaced by U+FFFD."""


def count_words(
    paths: Paths, *, tokenized: Tokenized = False, progress: Progress | None = None, workers: int | None = None
) -> WordCounts:
    """Count the words of text files. Memory grows with the number of distinct words only.

    Args:
        paths: Paths or globs of text files.
        tokenized: How lines are split into words: see `Tokenized`.
        progress: Called with the number of bytes read so far and in total.
        workers: Number of processes. Default: one per core.

    Raises:
        ValueError: If there is no such file, or a file is damaged.
        ImportError: If a package to read a file is missing.
    """
    jobs = ((block.content, tokenized) for block in read_blocks(find_files(paths), progress))
    counts = WordCounts()
    for part, num_replaced in run_in_order(_count_block, jobs, workers):
        counts.update(part)
        counts.num_replaced_lines += num_replaced
    report_replaced(counts.num_replaced_lines)
    return counts


def _count_block(content: bytes, tokenized: Tokenized) -> tuple[dict[str, int], int]:
    lines, num_replaced = sentences(content, tokenized=tokenized)
    return dict(Counter(chain.from_iterable(lines))), num_replaced


def build_vocabulary(
    paths: Paths,
    *,
    size: int | None = None,
    min_count: int = 1,
    tokenized: Tokenized = False,
    progress: Progress | None = None,
    workers: int | None = None,
) -> Vocabulary:
    """Make the vocabulary of text files: <S>, </S>, <UNK>, then words by falling frequency, ties in alphabetical order.

    Args:
        paths: Paths or globs of text files.
        size: Largest number of words, including the three special words. Default: no limit.
        min_count: Words that occur fewer times are excluded.
        tokenized: How lines are split into words: see `Tokenized`.
        progress: Called with the number of bytes read so far and in total.
        workers: Number of processes. Default: one per core.

    Raises:
        ValueError: If there is no word, or `size` leaves room for none; or as for `count_words`.
    """
    if size is not None and size <= len(SPECIALS):
        raise ValueError(f"size is {size}: a vocabulary has {', '.join(SPECIALS)} and at least one word")
    paths = check_paths("paths", paths)
    counts = count_words(paths, tokenized=tokenized, progress=progress, workers=workers)
    if not counts:
        raise ValueError(f"there is no word in {', '.join(paths)}")
    words = [word for word in by_frequency(counts) if counts[word] >= min_count and word not in SPECIALS]
    if not words:
        raise ValueError(f"min_count is {min_count}: no word of {', '.join(paths)} occurs that often")
    return Vocabulary([*SPECIALS, *words][:size])


def by_frequency(counts: Mapping[str, int]) -> list[str]:
    """The words of `counts`, the most frequent first, ties in alphabetical order."""
    return sorted(counts, key=lambda word: (-counts[word], word))
