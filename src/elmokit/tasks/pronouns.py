"""Ambiguous pronouns: which name a pronoun refers to (GAP).

Input: a passage, a pronoun and names. Output: the probability of each name, and the name that the pronoun refers to, or
none. GAP marks only three mentions, the pronoun and two names, which the system is given ("gold-two-mention"). So this
is a task of its own on the spans and pairs of coreference (span_pairs.py): the score of the pronoun with each name,
against "none" (0).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from elmokit.datasets import read_gap
from elmokit.network import to_device
from elmokit.tasks import metrics
from elmokit.tasks.inputs import Inputs
from elmokit.tasks.layers import NEVER
from elmokit.tasks.settings import TaskConfig
from elmokit.tasks.span_pairs import (
    MAX_WIDTH,
    SPAN_DIM,
    PairScorer,
    Span,
    SpanEncoder,
    embed_documents,
    marginal_loss,
)
from elmokit.tasks.texts import describe_span, read_sentences
from elmokit.text import TREEBANK, Tokenizer

PRONOUN_WORDS = frozenset({"he", "him", "his"}) | metrics.FEMININE
OPENING_WORD = re.compile(  # capitalized at the beginning of a sentence, and not a name
    "(?i:a|after|all|also|although|an|and|as|at|because|before|both|but|by|despite|during|each|every|for|from|how|"
    "however|if|in|is|it|its|later|many|most|my|no|not|now|of|on|once|one|our|over|perhaps|several|since|so|some|soon|"
    "such|that|the|their|then|there|these|they|this|those|though|through|to|two|under|until|upon|was|we|were|what|when|"
    "where|which|while|who|why|with|you|your)"
)
FIELDS = {"text": str, "pronoun": str, "pronoun_offset": int, "a": str, "a_offset": int, "b": str, "b_offset": int}


@dataclass(frozen=True, slots=True)
class PronounQuestion:
    """A pronoun, the names that it may refer to, and for each name whether it does."""

    pronoun: Span
    candidates: list[Span]
    refers: list[bool]


@dataclass(frozen=True, slots=True)
class PronounPassage:
    """A text and the pronouns to resolve: one in GAP."""

    sentences: list[list[str]]
    questions: list[PronounQuestion]


# ---- the network -----------------------------------------------------------------------------------------------------


class PronounResolver(nn.Module):
    """A pronoun and names -> the score of each name, against "none".

    Args:
        inputs: The vectors of tokens.
        hidden_dim: Units of the biLSTM per direction.
        num_layers: Layers of the biLSTM.
        dropout: Dropout of all layers.
    """

    def __init__(self, inputs: Inputs, *, hidden_dim: int, num_layers: int, dropout: float) -> None:
        super().__init__()
        self.inputs = inputs
        self.spans = SpanEncoder(inputs, hidden_dim=hidden_dim, num_layers=num_layers, dropout=dropout)
        self.pairs = PairScorer(dropout)

    def _scores(self, passages: Sequence[PronounPassage]) -> Tensor:
        """(Q, C): one row per question; NEVER where it has fewer names."""
        sentences = [passage.sentences for passage in passages]
        tokens = self.spans(embed_documents(self.inputs, sentences), sentences)
        questions = [(row, question) for row, passage in enumerate(passages) for question in passage.questions]
        num_names = max([0, *(len(question.candidates) for _, question in questions)])
        spans = torch.zeros(len(questions), 1 + num_names, 3, dtype=torch.long)  # document, start, width - 1
        mask = torch.zeros(len(questions), num_names, dtype=torch.bool)
        for number, (row, question) in enumerate(questions):
            places = [(row, a, min(b - a, MAX_WIDTH) - 1) for a, b in (question.pronoun, *question.candidates)]
            spans[number, : len(places)] = torch.tensor(places)
            mask[number, : len(question.candidates)] = True
        document, start, width = to_device(spans, tokens.mask.device).unbind(dim=-1)  # (Q, 1 + C)
        grid = self.spans.spans_from(tokens, document, start)  # (Q, 1 + C, W, G)
        g = grid.gather(2, width[..., None, None].expand(*width.shape, 1, SPAN_DIM)).squeeze(2)
        scores: Tensor = self.pairs(g[:, :1], g[:, 1:], start[:, :1] - start[:, 1:])
        return scores.masked_fill(~to_device(mask, scores.device), NEVER)

    def loss(self, examples: Sequence[PronounPassage]) -> Tensor:
        """The mean negative log-probability of the right name, or of "none"."""
        scores = self._scores(examples)
        right = torch.zeros(scores.shape, dtype=torch.bool)
        answers = (question.refers for example in examples for question in example.questions)
        for row, refers in zip(right, answers, strict=True):
            row[: len(refers)] = torch.tensor(refers)
        return marginal_loss(scores, to_device(right, scores.device)).mean()

    def predict(self, examples: Sequence[PronounPassage]) -> list[list[list[float]]]:
        """For each question of each passage the probability of each name; the rest is that of "none"."""
        scores = nn.functional.pad(self._scores(examples), (1, 0))
        rows = iter(scores.softmax(dim=-1)[:, 1:].tolist())
        return [[next(rows)[: len(question.candidates)] for question in example.questions] for example in examples]


# ---- the task --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pronouns:
    """Ambiguous pronouns as a task (`task.Task`)."""

    metric: str = "f1"
    suffixes: tuple[str, ...] = (".tsv",)
    requirements: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def read(self, path: str, tokenizer: Tokenizer = TREEBANK) -> list[PronounPassage]:
        """Read the passages of a table of GAP, and cut them into sentences and tokens."""
        passages = []
        for example in read_gap(path):
            names = [(candidate.name, candidate.start) for candidate in (example.a, example.b)]
            refers = [example.a.coreferent, example.b.coreferent]
            passages.append(_passage(example.text, (example.pronoun, example.start), names, refers, tokenizer))
        return passages

    def sentences(self, example: PronounPassage) -> list[list[str]]:
        """The sentences."""
        return example.sentences

    def fit(self, examples: Sequence[PronounPassage]) -> dict[str, Any]:
        """Nothing."""
        return {}

    def build(self, config: TaskConfig, fitted: dict[str, Any], inputs: Inputs) -> PronounResolver:
        """The network."""
        return PronounResolver(
            inputs, hidden_dim=config.hidden_dim, num_layers=config.num_layers, dropout=config.dropout
        )

    def score(self, examples: Sequence[PronounPassage], predictions: Sequence[list[list[float]]]) -> dict[str, float]:
        """The score of GAP."""
        pronouns, gold, predicted = [], [], []
        for example, answers in zip(examples, predictions, strict=True):
            tokens = list(chain.from_iterable(example.sentences))
            for question, probabilities in zip(example.questions, answers, strict=True):
                chosen = _chosen_name(probabilities)
                pronouns.append(tokens[question.pronoun[0]])
                gold.append(question.refers)
                predicted.append([place == chosen for place in range(len(probabilities))])
        return metrics.gap_f1(pronouns, gold, predicted)

    def from_text(self, text: Any, tokenizer: Tokenizer = TREEBANK) -> PronounPassage:
        """A text, as `read_sentences` takes it; or a mapping with the fields of GAP: pronoun, two names, offsets.

        Without these fields every he and she of the text is a question, and every run of capitalized words a name.
        """
        if not isinstance(text, Mapping) or "pronoun" not in text:
            sentences = read_sentences(text, tokenizer)
            return PronounPassage(sentences, _find_questions(sentences))
        for key, kind in FIELDS.items():
            if not isinstance(text.get(key), kind):
                others = ", ".join(name for name in FIELDS if name != key)
                raise ValueError(f"{key} is {text.get(key)!r:.60}, expected one of type {kind.__name__}, with {others}")
        parts = [(text[name], text[f"{name}_offset"]) for name in ("pronoun", "a", "b")]
        for part, offset in parts:
            if offset < 0 or not part.strip() or not text["text"].startswith(part, offset):
                raise ValueError(f"{part!r} is not at {offset} of {text['text']!r:.60}: offsets count characters")
        return _passage(text["text"], parts[0], parts[1:], [], tokenizer)

    def to_json(self, example: PronounPassage, prediction: list[list[float]]) -> dict[str, Any]:
        """All tokens, and for each pronoun the name that it refers to (or null) and the probability of each name."""
        tokens = list(chain.from_iterable(example.sentences))
        pronouns = []
        for question, probabilities in zip(example.questions, prediction, strict=True):
            names = [describe_span(tokens, name) for name in question.candidates]
            chosen = _chosen_name(probabilities)
            pronouns.append(
                {
                    **describe_span(tokens, question.pronoun),
                    "refers_to": None if chosen is None else names[chosen],
                    "candidates": [{**n, "probability": p} for n, p in zip(names, probabilities, strict=True)],
                }
            )
        return {"tokens": tokens, "pronouns": pronouns}


def _chosen_name(probabilities: Sequence[float]) -> int | None:
    """Index of the name with the highest probability; None if that of "none" is as high."""
    best = max(range(len(probabilities)), key=probabilities.__getitem__, default=None)
    return best if best is not None and probabilities[best] > 1 - sum(probabilities) else None


def _passage(
    text: str,
    pronoun: tuple[str, int],
    names: Sequence[tuple[str, int]],
    refers: list[bool],
    tokenizer: Tokenizer,
) -> PronounPassage:
    """Words with their offsets in characters -> spans of all tokens that they overlap."""
    sentences = tokenizer.sentences(text)
    tokens = list(chain.from_iterable(sentences))
    spans = []
    for word, begin in (pronoun, *names):
        touched = [place for place, t in enumerate(tokens) if t.start < begin + len(word) and begin < t.end]
        spans.append((touched[0], touched[-1] + 1))
    question = PronounQuestion(spans[0], spans[1:], refers)
    return PronounPassage([[token.text for token in sentence] for sentence in sentences], [question])


def _find_questions(sentences: Sequence[Sequence[str]]) -> list[PronounQuestion]:
    """Every pronoun, with every run of capitalized words as a name, except words that only open a sentence."""
    pronouns: list[Span] = []
    names: list[Span] = []
    begin = 0
    for sentence in sentences:
        for place, word in enumerate(sentence, start=begin):
            if word.lower() in PRONOUN_WORDS:
                pronouns.append((place, place + 1))
            elif word[:1].isupper() and word != "I" and not (place == begin and OPENING_WORD.fullmatch(word)):
                if names and names[-1][1] == place > begin:
                    names[-1] = (names[-1][0], place + 1)
                else:
                    names.append((place, place + 1))
        begin += len(sentence)
    return [PronounQuestion(pronoun, names, []) for pronoun in pronouns]


PRONOUNS = Pronouns(defaults={"batch_size": 16, "dropout": 0.3})
