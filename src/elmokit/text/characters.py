"""Words become character ids, as the published biLM reads them: one row of fifty for each word.

    [BOW] utf-8 bytes, at most 48 [EOW] PAD PAD ...

Enters: words.  Leaves: `words_to_ids` gives the ids as training counts them, from 0 (bytes are 0 to 255);
`batch_to_ids` gives them as inference counts them: one higher, so that a row of fifty zeros is padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch
from elmokit.text.sentences import as_tokens, check_tokens

BOS, EOS, BOW, EOW, PAD = 256, 257, 258, 259, 260
NUM_CHARACTERS: Final = 261
MAX_CHARACTERS: Final = 50
BOS_TOKEN, EOS_TOKEN, UNK_TOKEN = "<S>", "</S>", "<UNK>"
_BOUNDARIES: Final = {BOS_TOKEN: BOS, EOS_TOKEN: EOS}


def words_to_ids(words: Sequence[str], *, max_characters: int = MAX_CHARACTERS) -> npt.NDArray[np.int16]:
    """Spell words as character ids, (len(words), max_characters), counted from 0 as in training.

    Words are cut by bytes, so that the end-of-word id always has its place; the cut may split a character. Lone
    surrogates, which UTF-8 cannot write, are left out. `<S>` and `</S>` are the sentence boundaries.
    """
    if max_characters < 3:
        raise ValueError(f"max_characters is {max_characters}: a word needs at least 3 (begin, one byte, end)")
    room = max_characters - 2
    words = check_tokens(words, "words", "a list of words")
    spellings = [word.encode("utf-8", "ignore")[:room] for word in words]
    lengths = np.fromiter(map(len, spellings), np.int64, len(spellings))
    starts = np.arange(len(spellings)) * max_characters
    ids = np.full((len(spellings), max_characters), PAD, np.int16)
    ids[:, 0] = BOW
    flat = ids.reshape(-1)
    ends = np.cumsum(lengths)
    # The k-th byte of all lands at its place within its own word, right of that word's BOW.
    shifts = np.repeat(starts + 1 - (ends - lengths), lengths)
    flat[shifts + np.arange(len(shifts))] = np.frombuffer(b"".join(spellings), np.uint8)
    flat[starts + 1 + lengths] = EOW
    for row, word in enumerate(words):
        if word in _BOUNDARIES:
            ids[row, 1:] = PAD
            ids[row, 1:3] = _BOUNDARIES[word], EOW
    return ids


def batch_to_ids(
    sentences: Sequence[Sequence[str]] | Sequence[str], *, max_characters: int = MAX_CHARACTERS
) -> torch.Tensor:
    """Turn sentences into the character ids that a biLM reads: a LongTensor (B, T, max_characters).

    T is the length of the longest sentence; shorter ones end in rows of zeros. Boundary tokens are the model's
    business and are not added. Token lists give exactly what AllenNLP's `batch_to_ids` gives; strings are tokenized.
    No sentences give (0, 0, max_characters); an empty sentence is a row without tokens. What is no sentence is a
    ValueError (see `as_tokens`).
    """
    import torch

    tokens = as_tokens(sentences)
    # Row 0 is padding; each distinct word is spelled once.
    row_of: dict[str, int] = {}
    rows = [row_of.setdefault(word, len(row_of) + 1) for word in chain.from_iterable(tokens)]
    ids = words_to_ids(list(row_of), max_characters=max_characters)
    table = np.concatenate([np.zeros((1, max_characters), np.int64), ids + np.int64(1)])
    lengths = np.fromiter(map(len, tokens), np.int64, len(tokens))
    places = np.zeros((len(tokens), lengths.max(initial=0)), np.int64)
    places[np.arange(places.shape[1]) < lengths[:, None]] = rows
    return torch.from_numpy(table.take(places, axis=0))
