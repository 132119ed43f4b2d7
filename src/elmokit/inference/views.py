"""Views: what a caller gets of all that a biLM computed for a sentence. The argument `layers=` names one.

Input: a `Reading`, all layers of a batch of sentences with their boundary tokens.  Output: vectors of its tokens, or of
phrases.

A biLM layer at a word is trained to predict the words beside it. Two views look at the word from outside:

    slot      [forward layer L at k - 1 ; backward layer L at k + 1]: what the context expects at word k.
    sense     level(unit(slot - slot without context) + 0.6 unit(surroundings))

where the slot without context is [forward layer L at <S> ; backward layer L at </S>]. The surroundings are two sums of
the other words' vectors, weighted by how rare a word is (`WordWeights`) and how near, each scaled to length one:

    [layer 0 of all other words ; forward layer L of the words before + backward layer L of the words after].

`level` is tanh(sqrt(2P) x) / sqrt(2P), so that no few dimensions decide a cosine. No part has read word k. Words k to m
of a phrase have the slot from k - 1 and m + 1, and the surroundings outside of them. A sentence of one word says
nothing about its sense, which is zeros.
"""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

from elmokit.arguments import describe
from elmokit.kernels.cpu.threads import in_parallel
from elmokit.network import to_device

Layers = Literal["average", "top", "all", "slot", "sense"] | int

SENSE_VERSION: Final = 2  # of the definition of "sense": vectors of another version cannot be compared
SURROUNDINGS: Final = 0.6  # their weight in a sense; the slot's is 1
HALF_DISTANCE: Final = 2  # of surroundings: a word so far away counts half
REACH: Final = 64  # words further away do not count, so that the work grows with the length, not with its square
SPANS_AT_ONCE: Final = 128  # rows of a table of weights


@dataclass(frozen=True)
class Reading:
    """What a model computed for a batch of sentences."""

    layers: Tensor
    """(L+1, B, T+2, 2P): <S>, the tokens, </S>, and padding, in every layer."""
    lengths: tuple[int, ...]
    """Number of tokens of each sentence."""
    weights: Tensor | None = None
    """(B, T): the weight of each word, zero at padding; only "sense" needs it."""
    starts: tuple[list[int], ...] | None = None
    """The first token of each word of each sentence, and the number of tokens (W+1 each), where a user's words are
    several tokens to the model; None if words and tokens are the same."""

    def sentence(self, row: int) -> Reading:
        """One sentence of the batch, without padding."""
        length = self.lengths[row]
        weights = None if self.weights is None else self.weights[row : row + 1, :length]
        starts = None if self.starts is None else (self.starts[row],)
        return Reading(self.layers[:, row : row + 1, : length + 2], (length,), weights, starts)


class View(ABC):
    """A choice of `layers=`."""

    needs_weights = False
    """Whether it reads the weights of words."""

    def tokens(self, reading: Reading) -> Tensor:
        """Vectors of all tokens: (B, T, 2P), or (L+1, B, T, 2P) of "all"; what follows a sentence is undefined."""
        start = torch.arange(reading.layers.shape[2] - 2)
        return self.spans(reading, start, start + 1).to(reading.layers.dtype)

    @abstractmethod
    def spans(self, reading: Reading, start: Tensor, end: Tensor) -> Tensor:
        """Vectors of phrases.

        Args:
            reading: A batch of sentences.
            start: (S,) on the CPU: the first token of each phrase, the same in every sentence of the batch.
            end: (S,) on the CPU: the token after it.

        Returns:
            (B, S, 2P), or (L+1, B, S, 2P) of "all", in float32 or wider.
        """


class _OfWords(View):
    """A view whose positions count a user's words, of which the model may read several tokens: Chinese words.

    In a layer, a word is what was read up to its last character and, backward, down to its first: the forward half of
    the one and the backward half of the other. Slot and sense look at it from outside, as at a phrase.
    """

    def __init__(self, view: View) -> None:
        self.view, self.needs_weights = view, view.needs_weights

    def tokens(self, reading: Reading) -> Tensor:
        if reading.starts is None:
            return self.view.tokens(reading)
        num_words = max(len(starts) - 1 for starts in reading.starts)
        rows = []
        for row, starts in enumerate(reading.starts):
            word = torch.arange(len(starts) - 1)
            vectors = self.spans(reading.sentence(row), word, word + 1)  # (…, 1, W, 2P)
            rows.append(torch.nn.functional.pad(vectors, (0, 0, 0, num_words - vectors.shape[-2])))
        return torch.cat(rows, dim=-3).to(reading.layers.dtype)

    def spans(self, reading: Reading, start: Tensor, end: Tensor) -> Tensor:
        if reading.starts is None:
            return self.view.spans(reading, start, end)
        if len(reading.starts) > 1:
            raise ValueError("spans of words are taken of one sentence: Reading.sentence")
        if isinstance(self.view, _Chosen):
            return self.view.spans(_by_words(reading), start, end)
        bounds = torch.tensor(reading.starts[0])
        return self.view.spans(reading, bounds[start], bounds[end])


def _by_words(reading: Reading) -> Reading:
    """A sentence with one vector per word, instead of one per character, in every layer."""
    assert reading.starts is not None
    bounds = torch.tensor(reading.starts[0])
    width, edges = reading.layers.shape[-1] // 2, torch.tensor([0, reading.lengths[0] + 1])
    # <S> is before character 0: character k is at k + 1
    last = torch.cat([edges[:1], bounds[1:], edges[1:]])
    first = torch.cat([edges[:1], bounds[:-1] + 1, edges[1:]])
    last, first = to_device(torch.stack([last, first]), reading.layers.device)
    layers = torch.cat([reading.layers[:, :, last, :width], reading.layers[:, :, first, width:]], dim=-1)
    return Reading(layers, (len(bounds) - 1,))


class _Chosen(View):
    """One layer, the mean of all, or all. A phrase is the mean of its tokens."""

    def __init__(self, layers: Literal["average", "all"] | int) -> None:
        self.layers = layers

    def tokens(self, reading: Reading) -> Tensor:
        inside = reading.layers[:, :, 1:-1]
        if self.layers == "average":
            return inside.mean(dim=0)
        return inside if self.layers == "all" else inside[self.layers]

    def spans(self, reading: Reading, start: Tensor, end: Tensor) -> Tensor:
        vectors = self.tokens(reading)
        place = torch.arange(vectors.shape[-2])
        inside = (start.unsqueeze(-1) <= place) & (place < end.unsqueeze(-1))  # (S, T)
        share = inside / (end - start).unsqueeze(-1)
        wide = _wide(vectors)
        return to_device(share, vectors.device).to(wide.dtype) @ wide


class _Slot(View):
    """What the context expects where the phrase stands, by the top layer."""

    def spans(self, reading: Reading, start: Tensor, end: Tensor) -> Tensor:
        top = reading.layers[-1]  # (B, T+2, 2P)
        width = top.shape[-1] // 2
        # <S> is before token 0: token k has its left neighbour at k and its right one at k + 2
        left, right = to_device(torch.stack([start, end + 1]), top.device)
        return _wide(torch.cat([top[:, left, :width], top[:, right, width:]], dim=-1))


class _Sense(View):
    """What the slot says beyond an empty context, and the surroundings."""

    needs_weights = True

    def spans(self, reading: Reading, start: Tensor, end: Tensor) -> Tensor:
        said = _Slot().spans(reading, start, end) - _slot_without_context(reading)
        sense = normalize(said, dim=-1) + SURROUNDINGS * _surroundings(reading, start, end)
        scale = math.sqrt(sense.shape[-1])  # of a vector of length one the values are about 1 / scale
        return torch.tanh(sense * scale) / scale


_FROM_OUTSIDE: Final[Mapping[str, type[View]]] = {"slot": _Slot, "sense": _Sense}


def _slot_without_context(reading: Reading) -> Tensor:
    """(B, 1, 2P): what is expected where nothing was read but a boundary."""
    top = reading.layers[-1]  # (B, T+2, 2P)
    width = top.shape[-1] // 2
    ends = to_device(torch.tensor(reading.lengths) + 1, top.device)
    rows = torch.arange(len(top), device=top.device)
    return _wide(torch.cat([top[:, 0, :width], top[rows, ends, width:]], dim=-1)).unsqueeze(1)


def _surroundings(reading: Reading, start: Tensor, end: Tensor) -> Tensor:
    """(B, S, 2P), of length one: sums of the words outside of each phrase; zeros if there are none."""
    assert reading.weights is not None
    inside = reading.layers[:, :, 1:-1]  # (L+1, B, T, 2P)
    weights = reading.weights.unsqueeze(-1)
    sums: list[Tensor] = [start.new_empty(0), start.new_empty(0)]

    def run(half: int) -> None:
        vectors = _wide(inside[0 if half == 0 else -1])  # the halves of layer 0 are equal
        before, after = (vectors * weights.to(vectors.dtype)).chunk(2, dim=-1)
        sums[half] = normalize(_sum_around(before, after, start, end), dim=-1)

    if reading.layers.is_cpu and not reading.layers.requires_grad:
        # as the LSTM layers: OpenMP threads of the caller would keep spinning on the cores of the next sentence's
        in_parallel(run, 2)
    else:
        run(0)
        run(1)
    return torch.cat(sums, dim=-1) * math.sqrt(0.5)


def _sum_around(before: Tensor, after: Tensor, start: Tensor, end: Tensor) -> Tensor:
    """The sum of the vectors outside of each phrase, by their nearness.

    Args:
        before: (B, T, P): what a word counts in the phrases that follow it.
        after: (B, T, P): what it counts in the phrases before it.
        start: As for `View.spans`.
        end: As for `View.spans`.

    Returns:
        (B, S, P).
    """
    num_tokens = before.shape[1]
    blocks = []
    for begin in range(0, len(start), SPANS_AT_ONCE):
        first, behind = start[begin : begin + SPANS_AT_ONCE], end[begin : begin + SPANS_AT_ONCE]
        low, high = max(0, int(first.min()) - REACH), min(num_tokens, int(behind.max()) + REACH)
        place = torch.arange(low, high)
        # 1 for the words beside the phrase; 0 or less on its other side
        distance = torch.cat([first.unsqueeze(-1) - place, place - behind.unsqueeze(-1) + 1], dim=-1)  # (S, 2W)
        counts = (distance > 0) & (distance <= REACH)
        nearness = torch.where(counts, 1 / (1 + distance.clamp(min=0).to(before.dtype) / HALF_DISTANCE), 0.0)
        blocks.append(to_device(nearness, before.device) @ torch.cat([before[:, low:high], after[:, low:high]], dim=1))
    return torch.cat(blocks, dim=1) if blocks else before[:, :0]


def _wide(vectors: Tensor) -> Tensor:
    """Vectors in float32 or wider: half precision is not enough for sums."""
    return vectors.to(torch.promote_types(vectors.dtype, torch.float32))


def check_layers(layers: object, num_layers: int, *, single: bool = False, caller: str = "") -> Layers:
    """Check `layers=`.

    Args:
        layers: "average", "top", "all", "slot", "sense", or the number of a layer: 0 is the context-free layer, -1 the
            top one. NumPy integers are accepted.
        num_layers: Number of layers of the model, layer 0 included.
        single: Refuse "all", for callers that need one vector per token.
        caller: Name of the caller, for messages.

    Returns:
        The name, or the number counted from 0.

    Raises:
        ValueError: If the model has no such layers.
    """
    names = ("average", "top", "slot", "sense") if single else ("average", "top", "all", "slot", "sense")
    if isinstance(layers, str):
        if layers in names:
            return layers  # type: ignore[return-value]
    elif not isinstance(layers, bool):
        try:
            number = operator.index(layers)  # type: ignore[arg-type]
        except TypeError:
            pass
        else:
            if -num_layers <= number < num_layers:
                return number % num_layers
    quoted = ", ".join(f'"{name}"' for name in names)
    where = f"{caller}: " if caller else ""
    shown = repr(layers) if isinstance(layers, str | int | float) or layers is None else describe(layers)
    hint = ", which is for embed" if isinstance(layers, str) and layers == "all" else ""
    raise ValueError(f"{where}layers must be {quoted} or a number from 0 to {num_layers - 1}, not {shown}{hint}")


def needs_weights(layers: object) -> bool:
    """Whether the view that `layers` names reads the weights of words. What names no view does not."""
    return isinstance(layers, str) and layers in _FROM_OUTSIDE and _FROM_OUTSIDE[layers].needs_weights


def default_layers(word: str | None) -> Layers:
    """What is compared by default: uses of a word by their sense, sentences by the average."""
    return "average" if word is None else "sense"


def view_of(layers: object, num_layers: int, *, single: bool = False, caller: str = "") -> View:
    """The view that `layers` names.

    Args:
        layers: As for `check_layers`.
        num_layers: Number of layers of the model, layer 0 included.
        single: Refuse "all".
        caller: Name of the caller, for messages.
    """
    match check_layers(layers, num_layers, single=single, caller=caller):
        case "slot" | "sense" as name:
            return _OfWords(_FROM_OUTSIDE[name]())
        case "top":
            return _OfWords(_Chosen(num_layers - 1))
        case chosen:
            return _OfWords(_Chosen(chosen))
