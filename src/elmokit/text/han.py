"""The rule of Chinese text: each Han character is a token.

Input: a string.  Output: its tokens, or the places where its sentences end.

    Han, kana, bopomofo and hangul   each character is a token, with the variation selectors that follow it
    other letters, and digits        a run is a token: "iPhone", "H1N1", "don't", "1,234.5"
    everything else                  each character is a token: punctuation of any width, signs; an emoji is one token

Characters are neither converted nor dropped, so that tokens are slices of the text: full-width and half-width forms,
traditional and simplified characters stay what they are. Whitespace, line breaks included, is not part of a token.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import cache
from typing import Final

# Scripts whose characters are tokens, as ranges of a character class.
_HAN: Final = (
    "\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3038-\u303b\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff"  # rare characters beyond the first plane
)
_KANA: Final = "\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\uff66-\uff9f"
_OTHERS: Final = "\u3105-\u312f\u31a0-\u31bf\u1100-\u11ff\u3131-\u318e\uac00-\ud7ff"  # bopomofo, hangul
_SINGLE: Final = _HAN + _KANA + _OTHERS

_SELECTORS: Final = "\ufe00-\ufe0f\u3099\u309a\ufe20-\ufe2f\U000e0020-\U000e007f\U000e0100-\U000e01ef"
_SKINS: Final = "\U0001f3fb-\U0001f3ff"  # colors of emoji
_WORD: Final = rf"[^\W_{_SINGLE}]"  # a letter or a digit that is not one of the above
_CLOSERS: Final = "”’」』）】〕》〉\"')\\]}»"


# The patterns are large: they are compiled when the first Chinese text is read.


@cache
def token_pattern() -> re.Pattern[str]:
    """A pattern whose matches are the tokens of a text."""
    # Combining marks of all scripts below the ideographs. Python's \w does not match them.
    marks = "".join(chr(code) for code in range(0x300, 0x2100) if unicodedata.category(chr(code))[0] == "M")
    extends = f"[{marks}{_SELECTORS}{_SKINS}]"
    return re.compile(
        rf"[{_SINGLE}]{extends}*"
        rf"|{_WORD}(?:{_WORD}|{extends}|[\u200c\u200d'’](?={_WORD})|(?<=\d)[.,](?=\d))*"
        rf"|[\U0001f1e6-\U0001f1ff]{{2}}"  # a flag
        rf"|\S{extends}*(?:\u200d[^\s\w]{extends}*)*"
    )


@cache
def unspaced_pattern() -> re.Pattern[str]:
    """A pattern of the characters beside which no space is written."""
    return re.compile(rf"[{_HAN}{_KANA}\u3000-\u303f\uff00-\uffef]")


@cache
def _end_pattern() -> re.Pattern[str]:
    """A pattern of the ends of sentences, and of what no sentence ends in."""
    return re.compile(
        r"《[^《》\n]*》|〈[^〈〉\n]*〉|（[^（）\n]*）|\([^()\n]*\)"  # titles and parentheses
        rf"|(?P<end>[。！？｡!?]+[{_CLOSERS}]*"
        rf"|(?<=[{_SINGLE}])\.(?![.A-Za-z0-9])[{_CLOSERS}]*"  # a half-width period after a Han character
        rf"|(?<=[a-z][a-z])\.[{_CLOSERS}]*+(?=\s++[^\sa-z])"
        rf"|(?<!…)…++[{_CLOSERS}]*+(?=\s|\Z)"
        r"|\n)"
    )


def sentence_ends(text: str) -> Iterator[int]:
    """The places where sentences of a text end; the end of the text is not among them.

    A sentence ends after 。 ！ ？ and their half-width forms, with the quotes and brackets that close after them; at a
    line break; after … before whitespace; and after a period that follows a Han character, or that is between a word of
    Latin letters and whitespace. No sentence ends inside 《》 or parentheses.
    """
    for match in _end_pattern().finditer(text):
        if match["end"] is not None and match.end() < len(text):
            yield match.end()
