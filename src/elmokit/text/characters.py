"""Words as character ids, as the published biLM reads them: one row of fifty ids per word.

    [BOW] utf-8 bytes, at most 48 [EOW] PAD PAD ...

Input: words.  Output: `words_to_ids` returns ids from 0 (bytes are 0 to 255), as a prepared corpus stores them;
`batch_to_ids` returns shifted ids, one higher, so that a row of fifty zeros is padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch
from elmokit.arguments import check_integer
from elmokit.text.sentences import as_tokens, check_tokens

BOS, EOS, BOW, EOW, PAD = 256, 257, 258, 259, 260
NUM_CHARACTERS: Final = 261
MAX_CHARACTERS: Final = 50
BOS_TOKEN, EOS_TOKEN, UNK_TOKEN = "<S>", "</S>", "<UNK>"
_BOUNDARIES: Final = {BOS_TOKEN: BOS, EOS_TOKEN: EOS}


def words_to_ids(words: Sequence[str], *, max_characters: int = MAX_CHARACTERS) -> npt.NDArray[np.int16]:
    """Encode words as character ids, counted from 0.

    Words are truncated by bytes, so that the end-of-word id always fits; this may split a character. Lone surrogates,
    which UTF-8 cannot encode, are dropped. `<S>` and `</S>` are the sentence boundaries.

    Args:
        words: N words.
        max_characters: Number of ids per word.

    Returns:
        (N, max_characters) int16.

    Raises:
        ValueError: If `words` is not a list of strings, or `max_characters` is less than 3.
    """
    check_integer("max_characters", max_characters, least=3)  # begin, one byte, end
    max_bytes = max_characters - 2
    words = check_tokens(words, "words", "a list of words")
    text = "".join(words)
    bytes_of_text = np.frombuffer(text.encode("utf-8", "ignore"), np.uint8)
    sizes = _utf8_sizes(text, np.fromiter(map(len, words), np.int64, len(words)))
    lengths = np.minimum(sizes, max_bytes)
    starts = np.arange(len(words)) * max_characters
    ids = np.full((len(words), max_characters), PAD, np.int16)
    ids[:, 0] = BOW
    flat = ids.reshape(-1)
    # the k-th byte of all words goes to its position in its own word, after that word's BOW
    number = np.arange(lengths.sum())
    from_first = number - np.repeat(np.cumsum(lengths) - lengths, lengths)  # place of a byte in its word
    places = np.repeat(starts + 1, lengths) + from_first
    flat[places] = bytes_of_text[np.repeat(np.cumsum(sizes) - sizes, lengths) + from_first]
    flat[starts + 1 + lengths] = EOW
    for row in np.flatnonzero(ids[:, 1] == ord("<")):
        if words[row] in _BOUNDARIES:
            ids[row, 1:] = PAD
            ids[row, 1:3] = _BOUNDARIES[words[row]], EOW
    return ids


def _utf8_sizes(text: str, lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Number of UTF-8 bytes of each word; a lone surrogate has none.

    Args:
        text: All words, joined.
        lengths: Number of characters of each word.
    """
    if text.isascii():
        return lengths
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    sizes = 1 + (points >= 0x80).astype(np.int64) + (points >= 0x800) + (points >= 0x10000)
    sizes[(points >= 0xD800) & (points <= 0xDFFF)] = 0
    before = np.concatenate([[0], np.cumsum(sizes)])  # number of bytes before each character
    ends = np.cumsum(lengths)
    return np.asarray(before[ends] - before[ends - lengths])


def batch_to_ids(
    sentences: Sequence[Sequence[str]] | Sequence[str], *, max_characters: int = MAX_CHARACTERS
) -> torch.Tensor:
    """Turn sentences into the character ids that a biLM reads.

    The result for token lists is that of AllenNLP's `batch_to_ids`. Boundary tokens are not added; the model adds them.

    Args:
        sentences: B token lists; or strings, which are tokenized by the Penn Treebank rules.
        max_characters: Number of ids per word.

    Returns:
        (B, T, max_characters) int64. T is the length of the longest sentence; shorter ones are padded with zeros.

    Raises:
        ValueError: If an element is not a sentence (see `as_tokens`).
    """
    import torch

    max_characters = check_integer("max_characters", max_characters, least=3)
    tokens = as_tokens(sentences)
    # Row 0 is padding; each distinct word is encoded once.
    row_of: dict[str, int] = {}
    rows = [row_of.setdefault(word, len(row_of) + 1) for word in chain.from_iterable(tokens)]
    ids = words_to_ids(list(row_of), max_characters=max_characters)
    table = np.concatenate([np.zeros((1, max_characters), np.int64), ids + np.int64(1)])
    lengths = np.fromiter(map(len, tokens), np.int64, len(tokens))
    grid = np.zeros((len(tokens), lengths.max(initial=0)), np.int64)  # (B, T) rows of the table
    grid[np.arange(grid.shape[1]) < lengths[:, None]] = rows
    return torch.from_numpy(table.take(grid, axis=0))
