"""Sentences become tokens, and tokens the character ids that the biLM reads.

In come strings, which are tokenized by the Penn Treebank rules that ELMo's training text follows, or lists of tokens,
which are taken as they are. Out come character ids, one row of fifty for each token:

    [BOW] utf-8 bytes, at most 48 [EOW] PAD PAD ...

`words_to_ids` gives the ids as training counts them, from 0 (bytes are 0 to 255). `batch_to_ids` gives them as
inference counts them: one higher, so that a row of fifty zeros is a place where a sentence has no token.
"""

from __future__ import annotations

import re
import reprlib
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

BOS, EOS, BOW, EOW, PAD = 256, 257, 258, 259, 260
NUM_CHARACTERS: Final = 261
MAX_CHARACTERS: Final = 50
BOS_TOKEN, EOS_TOKEN, UNK_TOKEN = "<S>", "</S>", "<UNK>"


# ---- strings -> tokens ----------------------------------------------------------------------------------------------


class Token(NamedTuple):
    """A token and its place in the text: `text == source[start:end]`, in characters."""

    text: str
    start: int
    end: int


def _is_word_character(character: str) -> bool:
    # NLTK compiles its rules with the `regex` package, to which a joiner, a combining mark or a circled letter is part
    # of a word and a superscript is not; Python's own \w has it the other way round.
    category = unicodedata.category(character)
    return category[0] in "LM" or category in ("Nd", "Nl", "Pc") or _OTHER_WORD_CHARACTER.match(character) is not None


_OTHER_WORD_CHARACTER: Final = re.compile(
    r"[\u200c\u200d\u24b6-\u24e9\U0001f130-\U0001f149\U0001f150-\U0001f169\U0001f170-\U0001f189]"
)


def _part_opening_apostrophe(match: re.Match[str]) -> str:
    """Part an apostrophe from the word that it opens; that of a clitic ('s, 'll) opens none."""
    text, place, after = match.string, match.start(), match[1]
    inside_word = place > 0 and _is_word_character(text[place - 1])
    return "' " if _is_word_character(after) and not inside_word else "'"


# The Treebank rules, in the order and with the effects of NLTK's NLTKWordTokenizer (rules of its that commute are one
# pass here). Each rule only puts spaces between characters, but for one: an opening double quote is written ``, so
# that the rule of the final period does not take it for a closing one. `_split` undoes that.
_PAD = r" \g<0> "
_SPACE = r"[^\S\x1c-\x1f]"  # to `regex`, the ASCII separators are no space
_CLOSERS = "])}>\"'»”’"
_TREEBANK: list[tuple[str, str | Callable[[re.Match[str]], str]]] = [
    # quotes that open
    (r"[«“‘„]|``?", _PAD),
    (r'\A"', " `` "),
    (r"""([ (\[{<])(?:"|'')""", r"\1 `` "),
    (r"(?i)'(?=(?:re|ve|ll|[mtsdn])?+(.))", _part_opening_apostrophe),
    # punctuation: the final period, commas and colons outside numbers, ellipses, signs, dashes
    (rf"([^.])\.([{re.escape(_CLOSERS)} ]*+){_SPACE}*$", r"\1 . \2 "),
    (r"([:,])(\D|$)", r" \1 \2"),
    (r"\.{2,}|[;@#$%&?!\u2012-\u2015]", _PAD),
    (r"([^'])' ", r"\1 ' "),
    (r"[][(){}<>*]|--", _PAD),
    # the rules that follow want a space at both ends of the text
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
    """The tokens of `text` by the rules: slices of `text`, in order, that leave out whitespace alone."""
    spaced = text
    for pattern, replacement in _RULES:
        spaced = pattern.sub(replacement, spaced)
    tokens = spaced.split()
    if '"' in text or "''" in text:
        # Every double quote is a token of its own, so the quotes of the text and those of the tokens go in step.
        quotes = re.finditer(r"""``|''|\"""", text)
        tokens = [next(quotes).group() if token in ("``", "''", '"') else token for token in tokens]
    return tokens


# Most chunks are a word with punctuation around it, of which the rules make single characters; to see that is several
# times faster than to run the rules. Inside a text a period stays with its word, at the end it is a token.
_OPENING, _CLITIC, _CLOSING = r"""([(\[{<"“]*)""", r"((?:'[sS])?)", r"""[])}>"”,;:?!]*"""
_WORD = r"\w+(?:(?:[-./]|[,:](?=\d))\w+)*"
_PLAIN_INSIDE: Final = re.compile(rf"{_OPENING}({_WORD}\.?){_CLITIC}({_CLOSING})")
_PLAIN_LAST: Final = re.compile(rf"""{_OPENING}({_WORD}){_CLITIC}({_CLOSING}\.?[])}}>"”]*)""")
_WRITTEN_TOGETHER: Final = re.compile("(?i)cannot|gimme|gonna|gotta|lemme|wanna")


class _Chunks(dict[str, tuple[str, ...]]):
    """The tokens of a piece of text that stands between spaces, remembered: running text repeats most of its pieces.

    No rule looks past a space, except those of the start and the end of the text; hence one such memory for each
    context. Threads may share it: a lost entry is only computed again.
    """

    capacity = 1 << 18  # some 50 MB of English
    longest = 64  # longer pieces are rarely seen twice

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
_last, _whole = _Chunks(first=False, last=True), _Chunks(first=True, last=True)
_WHITESPACE: Final = "".join(character for character in map(chr, range(0x3001)) if character.isspace())


def tokenize(text: str) -> list[str]:
    """Split a text into tokens by the Penn Treebank rules (those of NLTK's `NLTKWordTokenizer`).

    Tokens are slices of the text: a double quote stays `"`, where NLTK's `tokenize` writes `` or '' for it, and
    whitespace is never part of one. Every string has a result; an empty or blank one has no tokens. The text should be
    one sentence: a period is split from its word only at the end of the text.

    >>> tokenize('He said: "I cannot pay $3.50, Mr. Jones."')
    ['He', 'said', ':', '"', 'I', 'can', 'not', 'pay', '$', '3.50', ',', 'Mr.', 'Jones', '.', '"']
    """
    if not isinstance(text, str):
        raise _wrong("text", text, "a string")
    # The rule of the final period looks back over closing brackets and quotes, spaces among them, to one more chunk.
    end = text.rfind(" ", 0, len(text.rstrip(_CLOSERS + _WHITESPACE))) + 1
    if end == 0:
        return list(_whole[text])
    first, *inside = text[: end - 1].split(" ")
    return [*_first[first], *chain.from_iterable(map(_inside.__getitem__, inside)), *_last[text[end:]]]


def tokenize_with_offsets(text: str) -> list[Token]:
    """Split a text as `tokenize` does, and say where each token stands: `text[token.start:token.end] == token.text`.

    >>> tokenize_with_offsets("It's  here.")[-2:]
    [Token(text='here', start=6, end=10), Token(text='.', start=10, end=11)]
    """
    tokens, end = [], 0
    for word in tokenize(text):
        start = text.index(word, end)
        end = start + len(word)
        tokens.append(Token(word, start, end))
    return tokens


_NO_END: Final = re.compile(  # of a sentence, though it ends in a period: an initial, letters with periods, a title
    r"\W*([^\W\d_I]|([^\W\d_]\.)+[^\W\d_]?|Mrs?|Ms|Dr|St|Prof|Gen|Col|Capt|Lt|Sgt|Rev|Hon|Sen|Rep|Gov|Mt|No|vs|cf|ca)\."
)


def tokenize_sentences(text: str) -> list[list[Token]]:
    """The tokens of each sentence of a text, with their places in it; a blank text has no sentence.

    A sentence ends at a period, a question or an exclamation mark that is followed by space and by no small letter, or
    at an empty line.  The period of an initial, of letters with periods (U.S.) or of a title (Mr.) ends none.

    >>> [[token.text for token in sentence] for sentence in tokenize_sentences("Mr. A. Roe met us. (He did!) So")]
    [['Mr.', 'A.', 'Roe', 'met', 'us', '.'], ['(', 'He', 'did', '!', ')'], ['So']]
    """
    bounds, chunk = [0], 0
    for space in re.finditer(r"\s+", text):
        before, after = text[chunk : space.start()].rstrip("\"'”’»)]"), text[space.end() : space.end() + 1]
        chunk = space.end()
        ends = before.endswith((".", "!", "?", "…", "。")) and not after.islower() and not _NO_END.fullmatch(before)
        if ends or space[0].count("\n") > 1:
            bounds.append(chunk)
    sentences = [
        [Token(token.text, begin + token.start, begin + token.end) for token in tokenize_with_offsets(text[begin:end])]
        for begin, end in zip(bounds, [*bounds[1:], len(text)], strict=True)
    ]
    return [sentence for sentence in sentences if sentence]


def as_list(sentences: object) -> list[Any]:
    """Check that a user gave a list (or other iterable) of sentences, and not one string."""
    if isinstance(sentences, str):
        raise ValueError(f"expected a list of sentences, got one string: write [{reprlib.repr(sentences)}]")
    return _items(sentences, "sentences", "a list of strings or of token lists")


def as_tokens(sentences: object, *, first: int = 0) -> list[list[str]]:
    """Check what a user gave as sentences, and return them as lists of tokens.

    A sentence is a string, which is tokenized, or an iterable of tokens, which are taken as they are, the empty token
    among them; both kinds may be mixed. No sentences give [], a sentence without tokens gives [] in its place.
    Anything else (one bare string, bytes, None, numbers, mappings, sets, deeper nesting) is a ValueError that says
    where it stands, counted from `first`.
    """
    return [
        tokenize(sentence)
        if isinstance(sentence, str)
        else _check_tokens(sentence, f"sentences[{position}]", "a string or a list of tokens")
        for position, sentence in enumerate(as_list(sentences), first)
    ]


def _check_tokens(tokens: object, name: str, expected: str) -> list[str]:
    if type(tokens) is list and set(map(type, tokens)) <= {str}:  # nearly always
        return tokens
    words = _items(tokens, name, expected)
    if set(map(type, words)) <= {str}:
        return words  # type: ignore[return-value]
    for position, word in enumerate(words):
        if not isinstance(word, str):
            raise _wrong(f"{name}[{position}]", word, "a token, which is a string")
    return [str(word) for word in words]  # a subclass, as NumPy's strings are


def _items(value: object, name: str, expected: str) -> list[object]:
    # A string or bytes would fall into characters, and a mapping or a set has lost the order of the words.
    if not isinstance(value, Iterable) or isinstance(
        value, str | bytes | bytearray | memoryview | Mapping | AbstractSet
    ):
        raise _wrong(name, value, expected)
    try:
        return list(value)
    except TypeError as error:  # an array without dimensions calls itself iterable
        raise _wrong(name, value, expected) from error


def _wrong(name: str, value: object, expected: str) -> ValueError:
    return ValueError(f"{name} is {reprlib.repr(value)} ({type(value).__name__}): expected {expected}")


# ---- tokens -> character ids ----------------------------------------------------------------------------------------


_BOUNDARIES: Final = {BOS_TOKEN: BOS, EOS_TOKEN: EOS}


def words_to_ids(words: Sequence[str], *, max_characters: int = MAX_CHARACTERS) -> npt.NDArray[np.int16]:
    """Spell words as character ids, (len(words), max_characters), counted from 0 as in training.

    Words are cut by bytes, so that the end-of-word id always has its place; the cut may split a character. Lone
    surrogates, which UTF-8 cannot write, are left out. `<S>` and `</S>` are the sentence boundaries.
    """
    if max_characters < 3:
        raise ValueError(f"max_characters is {max_characters}: a word needs at least 3 (begin, one byte, end)")
    room = max_characters - 2
    words = _check_tokens(words, "words", "a list of words")
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


# ---- tokens -> ids of a model's own lexicon -------------------------------------------------------------------------


class Lexicon:
    """The characters and words that a model knows by number, where it does not read words as UTF-8 bytes.

    Rows of its character table: the characters in their order, then six marks: unknown, <S>, </S>, begin and end of a
    word, pad. Rows of its word table: unknown, <S>, </S>, then the words in their order. The sentence boundaries are
    `<S>` and `</S>` as everywhere, and also `<bos>` and `<eos>`, as such models name them.
    """

    NUM_MARKS: Final = 6
    NUM_SPECIAL_WORDS: Final = 3

    def __init__(self, characters: Iterable[str], words: Iterable[str] = ()) -> None:
        self.characters, self.words = tuple(characters), tuple(words)
        self._characters = {character: row for row, character in enumerate(self.characters)}
        self._words = {word: row for row, word in enumerate(self.words, self.NUM_SPECIAL_WORDS)}
        for name, given, rows in (("character", self.characters, self._characters), ("word", self.words, self._words)):
            if len(rows) < len(given):
                double = next(item for item, count in Counter(given).items() if count > 1)
                raise ValueError(f"the {name} {double!r} is there twice: a lexicon holds each once")
        for character in self.characters:
            if len(character) != 1:
                raise ValueError(f"{character!r} is no character")

    def ids(self, words: Sequence[str], *, max_characters: int = MAX_CHARACTERS) -> npt.NDArray[np.int64]:
        """Words as (len(words), 1 + max_characters) rows, counted from 0: the word's, then those of its characters.

        Words are cut to `max_characters` - 2 characters before they are looked up, as the models were trained.
        """
        unknown, _, _, begin, end, pad = range(len(self.characters), len(self.characters) + self.NUM_MARKS)
        ids = np.full((len(words), 1 + max_characters), pad, np.int64)
        boundaries = lexicon_boundaries(len(self.characters), max_characters=max_characters)
        for row, word in zip(ids, words, strict=True):
            if word in _LEXICON_BOUNDARIES:
                row[:] = boundaries[_LEXICON_BOUNDARIES[word]]
                continue
            cut = word[: max_characters - 2]
            row[0] = self._words.get(cut, 0)
            row[1] = begin
            row[2 : 2 + len(cut)] = [self._characters.get(character, unknown) for character in cut]
            row[2 + len(cut)] = end
        return ids


_LEXICON_BOUNDARIES: Final = {BOS_TOKEN: 0, "<bos>": 0, EOS_TOKEN: 1, "<eos>": 1}


def lexicon_boundaries(num_characters: int, *, max_characters: int) -> npt.NDArray[np.int64]:
    """The ids of the two sentence boundaries in a `Lexicon` of so many characters: (2, 1 + max_characters)."""
    _, bos, eos, begin, end, pad = range(num_characters, num_characters + Lexicon.NUM_MARKS)
    ids = np.full((2, 1 + max_characters), pad, np.int64)
    ids[:, 0] = 1, 2
    ids[:, 1:4] = [[begin, bos, end], [begin, eos, end]]
    return ids
