"""Tokenizers: how text is split into tokens.  A model records the tokenizer of its training text.

Input: a string.  Output: its tokens, tokens with offsets, or the tokens of each of its sentences.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, get_args

from elmokit.arguments import check_string
from elmokit.text import han
from elmokit.text.tokens import tokenize

TokenizerName = Literal["treebank", "spaces", "characters", "han"]


class Token(NamedTuple):
    """A token and its position in the text, in characters: `text == source[start:end]`."""

    text: str
    start: int
    end: int


@dataclass(frozen=True)
class Tokenizer:
    """Splits text into tokens. Tokens are slices of the text, in order, without whitespace.

    Args:
        name: "treebank": by the Penn Treebank rules, as in ELMo's training text. "spaces": at whitespace only, for text
            that is already tokenized. "characters": each character is a token, for languages without spaces. "han": for
            Chinese: each Han character is a token, and runs of other letters and digits are words (see `han`).

    Raises:
        ValueError: If there is no tokenizer of this name.
    """

    name: TokenizerName = "treebank"

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or self.name not in get_args(TokenizerName):
            raise ValueError(f"tokenizer must be one of {', '.join(get_args(TokenizerName))}, not {self.name!r}")

    def __call__(self, text: str) -> list[str]:
        """Split one sentence into tokens; a blank text has none."""
        if self.name == "treebank":
            return tokenize(text)
        check_string("text", text)
        if self.name == "han":
            return _han_tokens(text)
        return text.split() if self.name == "spaces" else list("".join(text.split()))

    def with_offsets(self, text: str) -> list[Token]:
        """Split one sentence into tokens with offsets: `text[token.start:token.end] == token.text`.

        Examples:
            >>> Tokenizer().with_offsets("It's  here.")[-2:]
            [Token(text='here', start=6, end=10), Token(text='.', start=10, end=11)]
        """
        if self.name == "han":
            check_string("text", text)
            return [Token(match[0], *match.span()) for match in han.token_pattern().finditer(text)]
        tokens, end = [], 0
        for word in self(text):
            start = text.index(word, end)
            end = start + len(word)
            tokens.append(Token(word, start, end))
        return tokens

    def sentences(self, text: str) -> list[list[Token]]:
        """Split a text into sentences, and each sentence into tokens with their offsets in the text.

        A sentence ends at an empty line, or at a period, question mark or exclamation mark that is followed by
        whitespace and not by a lowercase letter. The period of an initial, of an abbreviation such as U.S., or of a
        title such as Mr. does not end a sentence. The tokenizer "han" has a rule of its own (see `han.sentence_ends`).

        Examples:
            >>> [[token.text for token in sentence] for sentence in TREEBANK.sentences("Mr. Roe met us. (He did!) So")]
            [['Mr.', 'Roe', 'met', 'us', '.'], ['(', 'He', 'did', '!', ')'], ['So']]
        """
        check_string("text", text)
        bounds = self._sentence_bounds(text)
        sentences = [
            [Token(token.text, begin + token.start, begin + token.end) for token in self.with_offsets(text[begin:end])]
            for begin, end in zip(bounds, [*bounds[1:], len(text)], strict=True)
        ]
        return [sentence for sentence in sentences if sentence]

    @property
    def splits_words(self) -> bool:
        """Whether a token of a user's list may be several units."""
        return self.name == "han"

    def units(self, token: str) -> list[str]:
        """The tokens that a model reads for one token of a user's list.

        The tokenizer "han" splits a Chinese word into its characters, because its models read characters. The others
        leave a token as it is.

        >>> Tokenizer("han").units("银行"), Tokenizer().units("can't")
        (['银', '行'], ["can't"])
        """
        if not self.splits_words or len(token) < 2:
            return [token]
        return _han_tokens(token) or [token]

    def _sentence_bounds(self, text: str) -> list[int]:
        """Where sentences begin."""
        if self.name == "han":
            return [0, *han.sentence_ends(text)]
        bounds, chunk = [0], 0
        for space in re.finditer(r"\s+", text):
            before, after = text[chunk : space.start()].rstrip("\"'”’»)]"), text[space.end() : space.end() + 1]
            chunk = space.end()
            ends = before.endswith((".", "!", "?", "…", "。")) and not after.islower()
            if (ends and not _NOT_AN_END.fullmatch(before)) or space[0].count("\n") > 1:
                bounds.append(chunk)
        return bounds


def join_tokens(tokens: Iterable[str]) -> str:
    """A sentence of tokens, to be read: with spaces, but none beside a Chinese character or mark.

    >>> join_tokens(["我", "的", "iPhone", "15", "，", "好"])
    '我的iPhone 15，好'
    """
    text, is_unspaced = "", han.unspaced_pattern().match
    for token in tokens:
        is_joined = not text or not token or is_unspaced(text[-1]) or is_unspaced(token)
        text += token if is_joined else f" {token}"
    return text


def _han_tokens(text: str) -> list[str]:
    tokens: list[str] = han.token_pattern().findall(text)
    return tokens


TREEBANK: Final = Tokenizer("treebank")

_NOT_AN_END: Final = re.compile(  # a word with a period that does not end a sentence: initial, abbreviation, title
    r"\W*([^\W\d_I]|([^\W\d_]\.)+[^\W\d_]?|Mrs?|Ms|Dr|St|Prof|Gen|Col|Capt|Lt|Sgt|Rev|Hon|Sen|Rep|Gov|Mt|No|vs|cf|ca)\."
)
