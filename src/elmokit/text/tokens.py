"""The Penn Treebank tokenizer, whose rules ELMo's training text follows.

Input: one sentence.  Output: its tokens.
"""

from __future__ import annotations

import re
import reprlib
import unicodedata
from collections.abc import Callable
from itertools import chain
from typing import Final


def _is_word_character(character: str) -> bool:
    # NLTK compiles its rules with the `regex` package. There a joiner, a combining mark or a circled letter is part of
    # a word and a superscript is not; Python's own \w does the opposite.
    category = unicodedata.category(character)
    return category[0] in "LM" or category in ("Nd", "Nl", "Pc") or _OTHER_WORD_CHARACTER.match(character) is not None


_OTHER_WORD_CHARACTER: Final = re.compile(
    r"[\u200c\u200d\u24b6-\u24e9\U0001f130-\U0001f149\U0001f150-\U0001f169\U0001f170-\U0001f189]"
)


def _split_opening_apostrophe(match: re.Match[str]) -> str:
    """Split an apostrophe from the word that it opens; that of a clitic ('s, 'll) is not split."""
    text, start, after = match.string, match.start(), match[1]
    inside_word = start > 0 and _is_word_character(text[start - 1])
    return "' " if _is_word_character(after) and not inside_word else "'"


# The Treebank rules, in the order and with the effects of NLTK's NLTKWordTokenizer (rules that commute are one pass
# here). Each rule only inserts spaces, with one exception: an opening double quote becomes ``, so that the rule of the
# final period does not take it for a closing one. `_split` restores the quote.
_PAD = r" \g<0> "
_SPACE = r"[^\S\x1c-\x1f]"  # in `regex`, the ASCII separators are not whitespace
_CLOSERS = "])}>\"'»”’"
_TREEBANK: list[tuple[str, str | Callable[[re.Match[str]], str]]] = [
    # quotes that open
    (r"[«“‘„]|``?", _PAD),
    (r'\A"', " `` "),
    (r"""([ (\[{<])(?:"|'')""", r"\1 `` "),
    (r"(?i)'(?=(?:re|ve|ll|[mtsdn])?+(.))", _split_opening_apostrophe),
    # punctuation: the final period, commas and colons outside numbers, ellipses, signs, dashes
    (rf"([^.])\.([{re.escape(_CLOSERS)} ]*+){_SPACE}*$", r"\1 . \2 "),
    (r"([:,])(\D|$)", r" \1 \2"),
    (r"\.{2,}|[;@#$%&?!\u2012-\u2015]", _PAD),
    (r"([^'])' ", r"\1 ' "),
    (r"[][(){}<>*]|--", _PAD),
    # the following rules need a space at both ends of the text
    (r"\A|\Z", " "),
    # quotes that close, and clitics
    (r"""[»”’"]|''""", _PAD),
    (rf"{_SPACE}+", " "),
    (r"([^' ])('[sSmMdD]?) ", r"\1 \2 "),
    (r"([^' ])('ll|'LL|'re|'RE|'ve|'VE|n't|N'T) ", r"\1 \2 "),
    # words written together
    (
        r"(?i)\b(can(?=not)|d(?='ye)|gim(?=me)|gon(?=na)|got(?=ta)|lem(?=me)|more(?='n)|wan(?=na\s))"
        r"(not|'ye|me|na|ta|'n)\b",
        r" \1 \2 ",
    ),
    (r"(?i) ('t)(is)\b", r" \1 \2 "),
    (r"(?i) ('t)(was)\b", r" \1 \2 "),
]
_RULES: Final = [(re.compile(pattern), replacement) for pattern, replacement in _TREEBANK]


def _split(text: str) -> list[str]:
    """The tokens of `text` by the rules: slices of `text`, in order, without whitespace."""
    spaced = text
    for pattern, replacement in _RULES:
        spaced = pattern.sub(replacement, spaced)
    tokens = spaced.split()
    if '"' in text or "''" in text:
        # Every double quote is a token of its own, so the n-th quote of the text is the n-th quote token.
        quotes = re.finditer(r"""``|''|\"""", text)
        tokens = [next(quotes).group() if token in ("``", "''", '"') else token for token in tokens]
    return tokens


# Most chunks are a word with punctuation around it, which the rules split into single characters. One match is several
# times faster than all rules. Inside a text a period stays with its word; at the end it is a token.
_OPENING, _CLITIC, _CLOSING = r"""([(\[{<"“]*)""", r"((?:'[sS])?)", r"""[])}>"”,;:?!]*"""
_WORD = r"\w+(?:(?:[-./]|[,:](?=\d))\w+)*"
_PLAIN_INSIDE: Final = re.compile(rf"{_OPENING}({_WORD}\.?){_CLITIC}({_CLOSING})")
_PLAIN_LAST: Final = re.compile(rf"""{_OPENING}({_WORD}){_CLITIC}({_CLOSING}\.?[])}}>"”]*)""")
_WRITTEN_TOGETHER: Final = re.compile("(?i)cannot|gimme|gonna|gotta|lemme|wanna")


class _Chunks(dict[str, tuple[str, ...]]):
    """A cache of the tokens of chunks, the pieces of text between spaces.

    Only the rules of the start and the end of a text look beyond a space; hence one cache per context. Threads may
    share it: a lost entry is computed again.
    """

    capacity = 1 << 18  # about 50 MB of English
    longest = 64  # longer chunks rarely occur twice

    def __init__(self, *, first: bool, last: bool) -> None:
        super().__init__()
        self.before = "" if first else " "
        self.after = "" if last else " x"  # any word will do
        self.plain = _PLAIN_LAST if last else _PLAIN_INSIDE

    def __missing__(self, chunk: str) -> tuple[str, ...]:
        plain = self.plain.fullmatch(chunk)
        if plain and not _WRITTEN_TOGETHER.search(chunk):
            opening, word, clitic, closing = plain.groups()
            tokens = (*opening, word, clitic, *closing) if clitic else (*opening, word, *closing)
        else:
            tokens = tuple(_split(self.before + chunk + self.after))
            if self.after:
                tokens = tokens[:-1]
        if len(chunk) <= self.longest:
            if len(self) >= self.capacity:
                self.clear()
            self[chunk] = tokens
        return tokens


_first, _inside = _Chunks(first=True, last=False), _Chunks(first=False, last=False)
_last, _only = _Chunks(first=False, last=True), _Chunks(first=True, last=True)
_WHITESPACE: Final = "".join(character for character in map(chr, range(0x3001)) if character.isspace())


def tokenize(text: str) -> list[str]:
    """Split a text into tokens by the Penn Treebank rules (those of NLTK's `NLTKWordTokenizer`).

    Tokens are slices of the text without whitespace. A double quote stays `"`, where NLTK's `tokenize` returns `` or
    ''. A period is split from its word only at the end of the text.

    Args:
        text: One sentence. An empty or blank string has no tokens.

    Raises:
        ValueError: If `text` is not a string.

    >>> tokenize('He said: "I cannot pay $3.50, Mr. Jones."')
    ['He', 'said', ':', '"', 'I', 'can', 'not', 'pay', '$', '3.50', ',', 'Mr.', 'Jones', '.', '"']
    """
    if not isinstance(text, str):
        raise ValueError(f"text is {reprlib.repr(text)} ({type(text).__name__}): expected a string")
    # The rule of the final period looks back over closing brackets, quotes and spaces, to one more chunk.
    end = text.rfind(" ", 0, len(text.rstrip(_CLOSERS + _WHITESPACE))) + 1
    if end == 0:
        return list(_only[text])
    first, *inside = text[: end - 1].split(" ")
    return [*_first[first], *chain.from_iterable(map(_inside.__getitem__, inside)), *_last[text[end:]]]
