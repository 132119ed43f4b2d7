"""Vectors of phrases: names of several words, noun phrases, mentions.

Input: a model, sentences, and the positions of spans in them, counted in tokens or in characters; or, inside a user's
own network, token vectors (B, T, D) and spans (B, S, 2). Output: one vector per span: the mean of its tokens, its two
ends, or a mean weighted by a learned attention (Lee et al., 2017, End-to-end Neural Coreference Resolution).

A span is (start, end) as in Python's `tokens[start:end]`: the end is not included.
"""

from __future__ import annotations

import operator
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple, get_args, overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from elmokit.arguments import (
    check_choice,
    check_flag,
    check_instance,
    check_integer,
    check_optional_integer,
    check_string,
)
from elmokit.inference.runner import Sentence
from elmokit.inference.views import Layers, view_of
from elmokit.model import ELMo
from elmokit.network import to_device
from elmokit.progress import OnProgress, format_count, reporting
from elmokit.text import TREEBANK, Tokenizer, as_list, as_tokens

Span = tuple[int, int]
How = Literal["mean", "ends", "attention"]
Unit = Literal["tokens", "characters"]


# ---- sentences -> vectors of spans -----------------------------------------------------------------------------------


@overload
def embed_spans(
    elmo: ELMo,
    sentences: Sequence[Sentence],
    spans: Sequence[Sequence[Span]],
    *,
    how: How = ...,
    unit: Unit = ...,
    attention: SpanAttention | None = ...,
    layers: Layers = ...,
    batch_size: int | None = ...,
    show_progress: bool | OnProgress = ...,
    convert_to_tensor: Literal[False] = ...,
) -> list[npt.NDArray[np.float32]]: ...


@overload
def embed_spans(
    elmo: ELMo,
    sentences: Sequence[Sentence],
    spans: Sequence[Sequence[Span]],
    *,
    how: How = ...,
    unit: Unit = ...,
    attention: SpanAttention | None = ...,
    layers: Layers = ...,
    batch_size: int | None = ...,
    show_progress: bool | OnProgress = ...,
    convert_to_tensor: Literal[True],
) -> list[Tensor]: ...


def embed_spans(
    elmo: ELMo,
    sentences: Sequence[Sentence],
    spans: Sequence[Sequence[Span]],
    *,
    how: How = "mean",
    unit: Unit = "tokens",
    attention: SpanAttention | None = None,
    layers: Layers = "average",
    batch_size: int | None = None,
    show_progress: bool | OnProgress = False,
    convert_to_tensor: bool = False,
) -> list[npt.NDArray[np.float32]] | list[Tensor]:
    """Vectors of the spans of each sentence.

    Args:
        elmo: The model.
        sentences: Strings, which the model's tokenizer cuts, or token lists.
        spans: `spans[n]` are the spans of `sentences[n]`: none, one or many. They may overlap.
        how: "mean" of the tokens; "ends", the first token's vector and then the last one's, 4P wide; "attention", the
            mean weighted by a trained `attention`. The views "slot" and "sense" look at a span from outside, as one
            word, and take only "mean".
        unit: "tokens" counts tokens. "characters" counts characters of the sentence, which must be a string; a token
            that a span touches belongs to it.
        attention: For `how="attention"`.
        layers: As in `ELMo.embed`.
        batch_size: Largest number of sentences per batch.
        show_progress: As in `ELMo.embed`.
        convert_to_tensor: Return tensors on the model's device instead of NumPy arrays.

    Returns:
        For each sentence (S, 2P), one row per span; or (L+1, S, 2P) with `layers="all"`.

    Raises:
        ValueError: If a span is empty or outside of its sentence, or the arguments do not fit together.
    """
    check_instance("elmo", elmo, ELMo, "a model, such as ELMo.from_pretrained()")
    pool = _pooling(how, attention, elmo.dim)
    view = view_of(layers, elmo.num_layers, caller="embed_spans")
    if layers in ("slot", "sense") and pool is not None:
        raise ValueError(f'layers="{layers}" looks at a span from outside, not at its tokens: leave out how={how!r}')
    convert_to_tensor = check_flag("convert_to_tensor", convert_to_tensor)
    batch_size = check_optional_integer("batch_size", batch_size)
    if not callable(show_progress):
        show_progress = check_flag("show_progress", show_progress)
    tokens, located = _locate(as_list(sentences), as_list(spans, "spans"), unit, elmo.tokenizer)
    if elmo.state != "carry":  # sentences without spans are not read
        tokens = [words if own else [] for words, own in zip(tokens, located, strict=True)]
    results: list[Tensor] = [torch.empty(0)] * len(tokens)
    with reporting(show_progress, "spans of sentences", len(tokens)) as progress, torch.no_grad():
        for number, reading in elmo.readings(tokens, batch_size=batch_size, show_progress=progress):
            own = torch.tensor(located[number], dtype=torch.long).reshape(-1, 2)
            if pool is None:
                pooled = view.spans(reading, *own.unbind(dim=-1)).squeeze(-3)  # (…, S, 2P)
            else:
                vectors = view.tokens(reading).squeeze(-3)  # (…, T, 2P)
                vectors = vectors.to(torch.promote_types(vectors.dtype, torch.float32))
                pooled = pool(vectors, own.expand(*vectors.shape[:-2], -1, -1))  # (…, S, 2P or 4P)
            results[number] = pooled if convert_to_tensor else pooled.cpu()
    return results if convert_to_tensor else [pooled.numpy() for pooled in results]


def to_token_spans(text: str, spans: Sequence[Span], tokenizer: Tokenizer = TREEBANK) -> TokenSpans:
    """Tokenize a text, and turn spans of its characters into spans of its tokens.

    A token that a span touches belongs to it: a span that ends inside a word takes the complete word.

    Args:
        text: One sentence.
        spans: Pairs (start, end) of characters.
        tokenizer: How the text is cut; that of a model is `ELMo.tokenizer`.

    Returns:
        The tokens, and the spans counted in tokens.

    Raises:
        ValueError: If a span is empty, outside of the text, or has no token.

    >>> to_token_spans("She left New York.", [(9, 17)])
    TokenSpans(tokens=['She', 'left', 'New', 'York', '.'], spans=[(2, 4)])
    """
    check_string("text", text)
    check_instance("tokenizer", tokenizer, Tokenizer, "a Tokenizer, such as that of a model, ELMo.tokenizer")
    return _to_token_spans(text, spans, "spans", tokenizer)


class TokenSpans(NamedTuple):
    """A text's tokens, and its spans counted in tokens."""

    tokens: list[str]
    spans: list[Span]


def _locate(
    sentences: list[object], spans: list[object], unit: Unit, tokenizer: Tokenizer
) -> tuple[list[list[str]], list[list[Span]]]:
    """The tokens of each sentence, and its spans in tokens."""
    check_choice("unit", unit, get_args(Unit))
    if len(sentences) != len(spans):
        lists = format_count(len(spans), "list of spans", "lists of spans")
        raise ValueError(f"{format_count(len(sentences), 'sentence')} came with {lists}: pass one list per sentence")
    if unit == "tokens":
        tokens = as_tokens(sentences, tokenizer)
        checked = [
            _check(own, len(words), "tokens", f"spans[{n}]")
            for n, (words, own) in enumerate(zip(tokens, spans, strict=True))
        ]
        return tokens, checked
    located = []
    for n, (sentence, own) in enumerate(zip(sentences, spans, strict=True)):
        if not isinstance(sentence, str):
            raise ValueError(f'sentences[{n}] is not a string: unit="characters" counts characters of a string')
        located.append(_to_token_spans(sentence, own, f"spans[{n}]", tokenizer))
    return [one.tokens for one in located], [one.spans for one in located]


def _to_token_spans(text: str, spans: object, name: str, tokenizer: Tokenizer) -> TokenSpans:
    tokens = tokenizer.with_offsets(text)
    starts, ends = [token.start for token in tokens], [token.end for token in tokens]
    places = []
    for n, (start, end) in enumerate(_check(spans, len(text), "characters", name)):
        first, behind = bisect_right(ends, start), bisect_left(starts, end)
        if first >= behind:
            raise ValueError(f"{name}[{n}] is ({start}, {end}), which is {text[start:end]!r}: it has no token")
        places.append((first, behind))
    return TokenSpans([token.text for token in tokens], places)


def _check(spans: object, length: int, unit: Unit, name: str) -> list[Span]:
    """The spans of one sentence as pairs of ints inside it, or a ValueError that names the one that is not."""
    if not isinstance(spans, Iterable) or isinstance(spans, str | bytes) or getattr(spans, "shape", None) == ():
        raise ValueError(f"{name} is {spans!r}: expected the spans of one sentence, a list of (start, end)")
    checked = []
    for n, span in enumerate(spans):
        try:
            start, end = map(operator.index, span)
        except (TypeError, ValueError):
            raise ValueError(f"{name}[{n}] is {span!r}: expected (start, end), two integers") from None
        if not 0 <= start < end <= length:
            outside = f"outside of the sentence, which has {length} {unit}"
            problem = "empty" if start == end else "reversed" if end < start else outside
            raise ValueError(
                f"{name}[{n}] is ({start}, {end}), {problem}: a span is (start, end), the end not included"
            )
        checked.append((start, end))
    return checked


def _pooling(how: How, attention: SpanAttention | None, dim: int) -> Callable[[Tensor, Tensor], Tensor] | None:
    """How the vectors of a span's tokens become one; None for the mean, which views know themselves."""
    check_choice("how", how, get_args(How))
    if attention is not None:
        check_instance("attention", attention, SpanAttention, "a SpanAttention")
    if how == "attention":
        if attention is None:
            raise ValueError('how="attention" needs attention=, a trained SpanAttention')
        if attention.dim != dim:
            raise ValueError(f"attention reads vectors {attention.dim} wide, this model's are {dim} wide")
        return attention
    if attention is not None:
        raise ValueError(f'attention= is for how="attention", not for how={how!r}')
    return None if how == "mean" else ends_of_spans


# ---- inside a user's own network -------------------------------------------------------------------------------------


class SpanAttention(nn.Module):
    """The mean of a span's tokens, weighted by a learned score of each token. Untrained, it is the plain mean.

    Args:
        dim: Width of the vectors that are scored.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = check_integer("dim", dim)
        self.score = nn.Linear(dim, 1, bias=False)  # a softmax does not see a bias
        nn.init.zeros_(self.score.weight)

    def forward(self, x: Tensor, spans: Tensor, values: Tensor | None = None) -> Tensor:
        """Average the tokens of each span.

        Args:
            x: Token vectors (B, T, D), which are scored.
            spans: (B, S, 2), see `pad_spans`.
            values: Token vectors (B, T, V) that are averaged instead of `x`. In the coreference model `x` is the output
                of the task's biLSTM and `values` its input.

        Returns:
            (B, S, D), or (B, S, V) with `values`; zeros for a span (0, 0).
        """
        weights = _softmax_inside(self.score(x).squeeze(-1), spans)
        return weights @ (x if values is None else values)


def mean_of_spans(x: Tensor, spans: Tensor) -> Tensor:
    """The mean of each span's tokens.

    Args:
        x: Token vectors (B, T, D).
        spans: (B, S, 2), see `pad_spans`.

    Returns:
        (B, S, D); zeros for a span (0, 0).
    """
    return _softmax_inside(x.new_zeros(x.shape[:-1]), spans) @ x


def ends_of_spans(x: Tensor, spans: Tensor) -> Tensor:
    """The vectors of each span's first and last token.

    Args:
        x: Token vectors (B, T, D).
        spans: (B, S, 2), see `pad_spans`.

    Returns:
        (B, S, 2D): the first token, then the last; zeros for a span (0, 0).
    """
    spans = to_device(_checked(spans, x.shape[-2]), x.device)
    is_span = (spans[..., :1] < spans[..., 1:]).to(x.dtype)  # (B, S, 1)
    ends = (spans - spans.new_tensor([0, 1])).clamp(min=0)
    picked = [torch.take_along_dim(x, ends[..., side : side + 1], dim=-2) for side in (0, 1)]  # (B, S, D) each
    return torch.cat(picked, dim=-1) * is_span


def pad_spans(spans: Sequence[Sequence[Span]], lengths: Sequence[int]) -> Tensor:
    """Make a tensor of the spans of a batch.

    Args:
        spans: For each sentence its spans (start, end), counted in tokens.
        lengths: For each sentence its number of tokens.

    Returns:
        (B, S, 2), where S is the largest number of spans. Shorter rows end in (0, 0), whose vector is zeros.

    Raises:
        ValueError: If a span is empty or outside of its sentence.
    """
    own_spans = as_list(spans, "spans")
    own_lengths = [
        check_integer(f"lengths[{n}]", length, least=0) for n, length in enumerate(as_list(lengths, "lengths"))
    ]
    if len(own_spans) != len(own_lengths):
        raise ValueError(f"{len(own_spans)} lists of spans came with {len(own_lengths)} lengths: pass one per sentence")
    checked = [
        _check(own, length, "tokens", f"spans[{n}]")
        for n, (own, length) in enumerate(zip(own_spans, own_lengths, strict=True))
    ]
    most = max(map(len, checked), default=0)
    rows = [[*own, *[(0, 0)] * (most - len(own))] for own in checked]
    return torch.tensor(rows, dtype=torch.long).reshape(len(rows), most, 2)


def _softmax_inside(scores: Tensor, spans: Tensor) -> Tensor:
    """(B, T), (B, S, 2) -> (B, S, T): weights that sum to one over each span's tokens; zeros for (0, 0)."""
    spans = to_device(_checked(spans, scores.shape[-1]), scores.device)
    place = torch.arange(scores.shape[-1], device=scores.device)
    inside = (spans[..., :1] <= place) & (place < spans[..., 1:])
    lowest = torch.finfo(scores.dtype).min  # finite: where nothing is inside, minus infinity would give NaN
    return scores.unsqueeze(-2).masked_fill(~inside, lowest).softmax(dim=-1) * inside


def _checked(spans: Tensor, length: int) -> Tensor:
    """Check that spans are inside the tokens; not on a GPU, since that would wait for it."""
    check_instance("spans", spans, Tensor, "a tensor of integers (B, S, 2): see pad_spans")
    if spans.is_floating_point() or spans.shape[-1:] != (2,):
        raise ValueError(f"spans are integers (B, S, 2), not {spans.dtype} of {tuple(spans.shape)}: see pad_spans")
    if spans.device.type == "cpu" and len(wrong := spans[~_is_place(spans, length)]):
        raise ValueError(f"the span {tuple(wrong[0].tolist())} is empty, reversed or outside of the {length} tokens")
    return spans


def _is_place(spans: Tensor, length: int) -> Tensor:
    start, end = spans.unbind(-1)
    return (start >= 0) & (start < end) & (end <= length) | (start == 0) & (end == 0)
