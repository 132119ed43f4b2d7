"""Kinds of arguments: for each what is documented, what is nearly right, and which values must not be accepted.

`BY_NAME` has the kind of an argument by its name, since names mean the same everywhere in the package.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from values import FLOATS, INTS, Text, anything, pandas, tensor, text


@dataclass(frozen=True)
class Kind:
    """What an argument may be."""

    good: Callable[[random.Random], Any]
    """A documented value."""
    near: Callable[[random.Random], Any] = anything
    """A value that is nearly right."""
    is_legal: Callable[[Any], bool | None] = lambda value: None
    """Whether a value is documented: None if that is not decided here. An illegal value must not be accepted."""
    words: tuple[str, ...] = ()
    """What a message may call the argument, beside its name."""
    is_path: bool = False
    """A file or a folder."""
    is_typed: bool = False
    """Odd values are of the right type, such as tensors or records of the package."""
    is_needed: bool = False
    """Always passed: the default is a download, or a large model."""


SENTENCES = ("The bank lent money .", "He sat by the bank .", "bank", "", "é 😀", "don't")


def good_sentence(rng: random.Random) -> Any:
    sentence = rng.choice(SENTENCES)
    return sentence.split() if rng.random() < 0.5 else sentence


def good_sentences(rng: random.Random) -> Any:
    made = [good_sentence(rng) for _ in range(rng.randrange(4))]
    return rng.choice((made, made, tuple(made)))


def near_sentences(rng: random.Random) -> Any:
    """Sentences with something odd among them, or in another container."""
    made: list[Any] = [good_sentence(rng) for _ in range(rng.randrange(1, 4))]
    strings = [rng.choice(SENTENCES) for _ in range(2)]
    odd = [
        lambda: [*made, anything(rng)],
        lambda: [*made, ["bank", anything(rng)]],
        lambda: [*made, [text(rng) for _ in range(3)]],
        lambda: [*made, text(rng)],
        lambda: [made],
        lambda: np.array(strings),
        lambda: np.array(strings, object),
        lambda: np.array([strings]),
        lambda: pandas.Series(strings) if pandas is not None else strings,
        lambda: (sentence for sentence in strings),
        lambda: dict.fromkeys(strings),
        lambda: [b"bytes", "text"],
        lambda: Text("bank"),
        lambda: [Text("The bank")],
        lambda: [np.str_("bank river")],
        lambda: [["a"] * rng.choice((100, 500))],
        lambda: ["x"] * 60,
    ]
    return rng.choice(odd)()


def is_tokens(value: Any) -> bool | None:
    if isinstance(value, list | tuple):
        return all(isinstance(token, str) for token in value)
    return None if _is_column(value) else False


def is_sentence(value: Any) -> bool | None:
    return True if isinstance(value, str) else is_tokens(value)


def are_sentences(value: Any) -> bool | None:
    if isinstance(value, list | tuple):
        verdicts = [is_sentence(sentence) for sentence in value]
        return False if False in verdicts else None if None in verdicts else True
    return None if _is_column(value) else False


def _is_column(value: Any) -> bool:
    """One column, an iterator, or a sequence of the caller's own: whether it is accepted is not decided here."""
    if isinstance(value, str | bytes | bytearray | memoryview | Mapping | set | frozenset | np.generic):
        return False
    if isinstance(value, np.ndarray):
        return value.ndim > 0 and (value.dtype.kind in "UO" or not value.size)
    if isinstance(value, torch.Tensor):
        return not value.numel()
    if pandas is not None and isinstance(value, pandas.DataFrame):
        return False
    return hasattr(type(value), "__iter__")


def integers(low: int, high: int, *, none: bool = False, most: int | None = None, bound: int | None = None) -> Kind:
    """An integer from `low` to `high`.

    Args:
        low: The smallest that is legal, and a good value.
        high: Another good value.
        none: None is legal.
        most: The largest that is legal. Default: any.
        bound: The largest that is passed, where larger ones are legal requests that take long.
    """

    def is_legal(value: Any) -> bool | None:
        if value is None:
            return none
        if isinstance(value, bool | torch.Tensor | np.ndarray):
            return None
        if isinstance(value, int | np.integer):
            return low <= int(value) and (most is None or int(value) <= most)
        return None if hasattr(type(value), "__index__") else False

    def near(rng: random.Random) -> Any:
        number = rng.choice([value for value in (*INTS, low - 1, high + 1) if bound is None or value <= bound])
        odd = float(low), low + 0.5, str(low), np.int64(low), np.float32(low), True, [low], (low,), None, f"{low}", 1j
        return rng.choice((number, rng.choice(odd)))

    is_typed = bound is not None  # any value could be a large number
    return Kind(lambda rng: rng.choice([low, high, *([None] if none else [])]), near, is_legal, is_typed=is_typed)


def choice(*values: Any, none: bool = False) -> Kind:
    """One of some values."""

    def is_legal(value: Any) -> bool | None:
        if value is None:
            return none
        return any(type(value) is type(one) and value == one for one in values) or None

    def near(rng: random.Random) -> Any:
        one = rng.choice(values)
        return rng.choice((str(one).upper(), f"{one} ", [one], np.str_(one), "", None, 1, text(rng)))

    return Kind(lambda rng: rng.choice(values), near, is_legal)


def floats(low: float, high: float) -> Kind:
    """A number from `low` to `high`."""

    def is_legal(value: Any) -> bool | None:
        return low <= value <= high if isinstance(value, int | float) and not isinstance(value, bool) else None

    return Kind(
        lambda rng: rng.choice((low, (low + high) / 2)), lambda rng: rng.choice((*FLOATS, *INTS, "0.5")), is_legal
    )


FLAG = Kind(
    lambda rng: rng.choice((True, False)), lambda rng: rng.choice((0, 1, None, "yes", np.True_, [], 1.5)), is_typed=True
)
SENTENCES_KIND = Kind(good_sentences, near_sentences, are_sentences, ("sentence", "text", "token"))
SENTENCE_KIND = Kind(good_sentence, lambda rng: rng.choice((text, anything))(rng), is_sentence, ("sentence", "token"))
TOKENS_KIND = Kind(
    lambda rng: rng.choice(SENTENCES).split(), near_sentences, is_sentence, ("sentence", "token", "word")
)
WORDS_KIND = Kind(
    lambda rng: ["bank", "river", "", "é"][: rng.randrange(5)], near_sentences, is_tokens, ("word", "token", "sentence")
)
TEXT_KIND = Kind(
    lambda rng: rng.choice(SENTENCES), text, lambda value: isinstance(value, str), ("sentence", "string", "text")
)
MARKED_KIND = Kind(
    lambda rng: "He sat by the [bank] .", text, lambda value: isinstance(value, str), ("sentence", "brackets", "token")
)
FIXED = object()
"""The argument is always the good one."""


def _is_path(value: Any) -> bool | None:
    return None if isinstance(value, str | os.PathLike) else False


def reading(*paths: Path, none: bool = False) -> Kind:
    """A file or folder to read, or None. No device that never ends."""
    odd: list[Any] = ["", "no/such", "a\0b", "\ud800", ".", "/", "x" * 5000, Path("no"), "/dev/null", "http://[", "~"]
    odd += [path for path in paths[0].parent.iterdir() if path.is_dir() or path.stat().st_size < 9000]
    words = ("file", "folder", "model", "read", "path", "index", "examples")
    near = lambda rng: rng.choice((*odd, text(rng)))  # noqa: E731
    is_legal = lambda value: none if value is None else _is_path(value)  # noqa: E731
    return Kind(lambda rng: rng.choice(paths), near, is_legal, words, is_path=True, is_needed=True)


def writing(name: str) -> Kind:
    """A new file or folder, in the current folder: nothing outside of it may be written."""

    def near(rng: random.Random) -> Any:
        while True:
            value = rng.choice((text, anything))(rng)
            path = os.fsdecode(value) if isinstance(value, bytes | str | Path) else ""
            if not path.startswith(("/", "~")) and ".." not in path and not isinstance(value, int):
                return value

    def good(rng: random.Random) -> Any:
        return rng.choice((str, Path))(f"{name}-{rng.randrange(10**9)}{Path(name).suffix}")

    return Kind(good, near, _is_path, ("file", "folder", "path"), is_path=True, is_needed=True)


def ids(model: Any) -> Kind:
    """Ids of a batch."""

    def near(rng: random.Random) -> Any:
        made = model.to_ids([["the", "bank"], ["x"]])
        changed = [
            lambda: made.float(),
            lambda: made.int(),
            lambda: made - 1,
            lambda: made + rng.choice((300, 2**40)),
            lambda: -made,
            lambda: made[0],
            lambda: made[None],
            lambda: made[..., :-1],
            lambda: made[:0],
            lambda: made[:, :0],
            lambda: made.flip(1),  # padding before words
            lambda: made.numpy(),
            lambda: made.tolist(),
            lambda: made.T if made.ndim == 2 else made.transpose(0, 2),
            lambda: tensor(rng),
        ]
        return rng.choice(changed)()

    return Kind(lambda rng: model.to_ids([["bank"], ["the", "river", "."]]), near, words=("id",))


def floating(*shape: int) -> Kind:
    """A tensor of floats."""

    def near(rng: random.Random) -> Any:
        made = torch.ones(shape)
        return rng.choice((made[:1], made[..., :1], made.double(), made.half(), made[None], made[:0], tensor(rng)))

    return Kind(lambda rng: torch.ones(shape) / 2, near, words=("layer", "mask", "vector", "weights"), is_typed=True)


def records(*good: Any) -> Kind:
    """Examples of a probe, as its reader returns them: none of them, or one often."""
    words = ("pair", "triple", "example", "sentence", "tag")
    return Kind(lambda rng: list(good), lambda rng: list(good) * rng.choice((0, 0, 1, 9)), words=words, is_typed=True)


ODD_SPANS = ([[(1, 0)]], [[(0, 9)]], [[(-1, 1)]], [(0, 1)], [[0, 1]], [[(0.0, 1.0)]], [[(0, 1, 2)]], [[None]], [], [[]])
SPANS = Kind(
    lambda rng: [[(0, 1)]],
    lambda rng: rng.choice(ODD_SPANS),
    words=("span",),
)
BY_NAME: dict[str, Any] = {
    "sentences": SENTENCES_KIND,
    "sentence": SENTENCE_KIND,
    "first": SENTENCE_KIND,
    "second": SENTENCE_KIND,
    "text": TEXT_KIND,
    "words": WORDS_KIND,
    "word": Kind(lambda rng: rng.choice(("bank", None)), text, lambda value: value is None or isinstance(value, str)),
    "layers": choice("average", "top", "slot", "sense", 0, 1, 2, -1),
    "layer": choice("average", "top", "slot", "sense", 0, -1),
    "num_senses": integers(1, 4, none=True),
    "limit": integers(1, 9, none=True),
    "batch_size": integers(1, 4, none=True),
    "k": integers(1, 5),
    "position": integers(0, 0, most=5),
    "max_characters": integers(3, 50, bound=200),
    "spans": SPANS,
    "device": choice("cpu", none=True),
    "dtype": choice(torch.float32),
    "quantize": choice("int8", none=True),
    "state": choice("stateless", "carry"),
    "tokenizer": choice("treebank", "spaces", "characters"),
    "num_mixes": integers(0, 2, none=True, bound=50),
    "dropout": floats(0.0, 1.0),
    **dict.fromkeys(
        ("show_progress", "convert_to_tensor", "normalize", "freeze", "layer_norm", "keep_boundaries", "trainable",
         "as_dict", "exact", "ignore_case", "same_word", "skip_punctuation", "requires_grad", "do_layer_norm",
         "keep_sentence_boundaries", "warmup",
         "full", "nodelimiters", "forget_sentences", "use_sentence_keys", "gzip", "tokenized", "overwrite"), FLAG
    ),
    **dict.fromkeys(("progress", "on_progress", "on_probe", "keep", "model_name"), FIXED),
}  # fmt: skip


def given(*good: Any, near: Any = anything, words: tuple[str, ...] = (), **others: Any) -> Kind:
    """Some good values; near misses are a tuple of values, or made by a function."""
    made = near if callable(near) else lambda rng: rng.choice(near)
    return Kind(lambda rng: rng.choice(good), made, words=words, **others)
