"""The vocabulary: the words that a language model predicts, and that a word-level model reads.

Input: a list of words, or a file with one word per line.  Output: the id of each word, which is its index in the list.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from elmokit.arguments import check_path, check_string
from elmokit.files import replacing
from elmokit.text import BOS_TOKEN, EOS_TOKEN, UNK_TOKEN
from elmokit.text.sentences import check_tokens

SPECIALS: Final = (BOS_TOKEN, EOS_TOKEN, UNK_TOKEN)


class Vocabulary:
    """The words that a language model predicts. A word's id is its index in the list.

    Args:
        words: Distinct words, with <S>, </S> and <UNK> among them. elmokit writes these three first.

    Raises:
        ValueError: If a word occurs twice, or a special word is missing.
    """

    def __init__(self, words: Iterable[str]) -> None:
        self.words = tuple(check_tokens(words, "words", "a list of words"))
        self._ids = {word: number for number, word in enumerate(self.words)}
        if len(self._ids) < len(self.words):
            first, word = next((n, word) for n, word in enumerate(self.words) if self._ids[word] != n)
            raise ValueError(f"{word!r} occurs twice, on lines {first + 1} and {self._ids[word] + 1}: remove one")
        if missing := [word for word in SPECIALS if word not in self._ids]:
            raise ValueError(f"{', '.join(missing)} is missing: a vocabulary has {', '.join(SPECIALS)} and words")
        self.bos_id, self.eos_id, self.unk_id = (self._ids[word] for word in SPECIALS)

    @classmethod
    def load(cls, path: str | Path) -> Vocabulary:
        """Read a file with one word per line.

        Args:
            path: The file.

        Raises:
            ValueError: If a line is empty or not UTF-8, or as for `Vocabulary`; the message names the file.
        """
        file = Path(check_path("path", path))
        if file.is_char_device() or file.is_block_device():  # it may never end
            raise ValueError(f"{path}: this is a device: pass the path of a file with one word per line")
        words = []
        for number, line in enumerate(file.read_bytes().removesuffix(b"\n").split(b"\n"), 1):
            try:
                word = line.decode().strip()
            except UnicodeDecodeError:
                raise ValueError(f"{path}: line {number} is not UTF-8: {line[:40]!r}") from None
            if not word:
                raise ValueError(f"{path}: line {number} is empty: write one word on each line")
            words.append(word)
        if words[-1] == "!!!MAXTERMID":  # the end mark of files of lm_1b and bilm-tf, which has no id
            words.pop()
        try:
            return cls(words)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    def save(self, path: str | Path) -> None:
        """Write the words, one per line.

        Raises:
            ValueError: If `path` is not a path, or a word has a lone surrogate. The message names it.
        """
        with replacing(Path(check_path("path", path))) as temporary:
            temporary.write_bytes(self._content())

    def _content(self) -> bytes:
        try:
            return "".join(f"{word}\n" for word in self.words).encode()
        except UnicodeEncodeError as error:
            begin, rest = error.object[: error.start], error.object[error.start :]
            word = begin.rsplit("\n", 1)[-1] + rest.split("\n", 1)[0]
            raise ValueError(f"{word!r} has a lone surrogate: the words of a file are UTF-8") from None

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the file that `save` writes."""
        return hashlib.sha256(self._content()).hexdigest()

    def id(self, word: str) -> int:
        """The id of a word; that of <UNK> for a word outside the vocabulary.

        Raises:
            ValueError: If the word is not a string.
        """
        return self._ids.get(check_string("word", word), self.unk_id)

    def ids(self, words: Iterable[str]) -> npt.NDArray[np.int32]:
        """The ids of N words: (N,).

        Args:
            words: Words in an order, not one string.

        Raises:
            ValueError: If one of them is not a string.
        """
        words, find, unk_id = check_tokens(words, "words", "a list of words"), self._ids.get, self.unk_id
        return np.fromiter((find(word, unk_id) for word in words), np.int32, len(words))

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self._ids
