"""Semantic roles of the predicates of a sentence: who did what to whom (PropBank).

Input: sentences with their predicates, and for each predicate its arguments as spans. Output: the arguments of each
predicate. The network is a small version of that of He et al. (2017), which the paper uses: x_k and a mark of the
predicate, a deep LSTM with highway connections whose layers alternate in direction, an independent score for each tag,
and the best sequence of tags under the B-/I-/O rules.

Roles are scored with gold predicates, as in published results. For text without them a small tagger finds the
predicates. It is trained with the roles and reads the same vectors, but its gradients do not reach them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from elmokit.datasets import read_conll2012
from elmokit.tasks import metrics
from elmokit.tasks.batches import fill_up, on_device, round_up
from elmokit.tasks.inputs import Collected, Embedded, Inputs
from elmokit.tasks.layers import CRF, BiLSTM, LockedDropout, bio_rules
from elmokit.tasks.settings import TaskConfig
from elmokit.tasks.tagging import NO_TAG, spans_of, tag_rows
from elmokit.tasks.texts import read_tokens
from elmokit.text import TREEBANK, Tokenizer

INDICATOR_DIM = 50  # width of the mark of the predicate
FINDER_DIM = 64  # units per direction of the tagger that finds predicates


@dataclass(frozen=True, slots=True)
class RoleSentence:
    """A sentence and its predicates."""

    tokens: list[str]
    predicates: list[int] | None
    """Index of each predicate in the tokens; None: the predicates are to be found."""
    tags: list[list[str]]
    """Gold tags: for each predicate one B-/I-/O tag per token."""


@dataclass(frozen=True, slots=True)
class RolePrediction:
    """The roles of a sentence."""

    predicates: list[int]
    """Those of the example if it names them, else those that were found."""
    tags: list[list[str]]
    """For each of them one B-/I-/O tag per token."""
    found: list[int]
    """The predicates that the tagger finds, in any case."""


@dataclass(frozen=True)
class Predicates:
    """N predicates of sentences."""

    sentence: Tensor
    """(N,): the index of its sentence."""
    place: Tensor
    """(N,): the index of its token; -1 at rows that only fill up."""


@dataclass(frozen=True)
class RoleBatch:
    """What the host collects of B sentences to train on."""

    sentences: Collected
    predicates: Predicates
    tags: Tensor
    """(N, T): the indices of the tags, NO_TAG at padding."""
    is_predicate: Tensor
    """(B, T): 1 at predicates, 0 elsewhere."""


class HighwayLSTM(nn.Module):
    """LSTM layers that read forward and backward in turn, each with a highway around it.

    With h' the LSTM's output: h_t = r_t * h'_t + (1 - r_t) * W x_t, and r_t = sigmoid(R [x_t; h'_{t-1}] + b). In He et
    al. the recurrence reads h; here it reads h', so that all steps of a layer are one call of torch's LSTM.

    Args:
        input_dim: Width D of the input.
        hidden_dim: Units H of each layer.
        num_layers: Number of layers. The first reads forward, the second backward, and so on.
        dropout: Dropout after each layer.
    """

    def __init__(self, input_dim: int, hidden_dim: int, *, num_layers: int, dropout: float) -> None:
        super().__init__()
        widths = [input_dim, *[hidden_dim] * (num_layers - 1)]
        self.output_dim = hidden_dim
        self.lstms = nn.ModuleList(nn.LSTM(width, hidden_dim, batch_first=True) for width in widths)
        self.gates = nn.ModuleList(nn.Linear(width + hidden_dim, hidden_dim) for width in widths)
        self.carries = nn.ModuleList(nn.Linear(width, hidden_dim, bias=False) for width in widths)
        self.dropout = LockedDropout(dropout)
        for name, parameter in self.lstms.named_parameters():
            if "weight" in name:
                for block in parameter.data.chunk(4):
                    nn.init.orthogonal_(block)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(B, T, D), (B, T) -> (B, T, H), zeros at padding."""
        lengths, places = mask.sum(dim=1, keepdim=True), torch.arange(mask.shape[1], device=mask.device)
        mirror = torch.where(mask, lengths - 1 - places, places).unsqueeze(-1)  # (B, T, 1): reverses each row's tokens
        for number, (lstm, gate, carry) in enumerate(zip(self.lstms, self.gates, self.carries, strict=True)):
            backward = number % 2 == 1
            if backward:
                x = x.gather(1, mirror.expand_as(x))
            h, _ = lstm(x)  # padding is after the tokens, so it does not change them
            before = nn.functional.pad(h[:, :-1], (0, 0, 1, 0))
            ratio = torch.sigmoid(gate(torch.cat([x, before], dim=-1)))
            x = ratio * h + (1 - ratio) * carry(x)
            if backward:
                x = x.gather(1, mirror.expand_as(x))
            x = self.dropout(x)
        return x * mask.unsqueeze(-1)


class RoleTagger(nn.Module):
    """x_k and the predicate's mark -> highway LSTM -> a score for each tag -> the best valid sequence.

    Args:
        inputs: The vectors of tokens.
        tags: The B-/I-/O tags.
        hidden_dim: Units of each layer of the highway LSTM.
        num_layers: Layers of the highway LSTM.
        dropout: Dropout of all layers.
    """

    def __init__(
        self, inputs: Inputs, tags: Sequence[str], *, hidden_dim: int, num_layers: int, dropout: float
    ) -> None:
        super().__init__()
        self.inputs, self.tags = inputs, list(tags)
        self.rows = {tag: row for row, tag in enumerate(self.tags)}
        self.indicator = nn.Embedding(2, INDICATOR_DIM)
        self.rnn = HighwayLSTM(inputs.input_dim + INDICATOR_DIM, hidden_dim, num_layers=num_layers, dropout=dropout)
        self.scores = nn.Linear(self.rnn.output_dim + inputs.output_dim, len(self.tags))
        allowed, allowed_first = bio_rules(self.tags)
        self.decoder = CRF(len(self.tags), allowed=allowed, allowed_first=allowed_first)
        for parameter in self.decoder.parameters():  # only the rules: transitions that they allow score 0
            nn.init.zeros_(parameter.requires_grad_(False))
        self.finder = BiLSTM(inputs.input_dim, FINDER_DIM, dropout=dropout)
        self.is_predicate = nn.Linear(self.finder.output_dim, 1)

    def _find(self, embedded: Embedded) -> Tensor:
        """(B, T): the log-odds that a token is a predicate."""
        encoded = self.finder(embedded.x.detach(), embedded.mask)
        odds: Tensor = self.is_predicate(encoded).squeeze(-1)
        return odds

    def _emissions(self, embedded: Embedded, predicates: Predicates) -> tuple[Tensor, Tensor]:
        """A score for each tag (N, T, K) and the mask (N, T), one row per predicate."""
        sentence, place = predicates.sentence, predicates.place.unsqueeze(1)
        if not len(place):  # torch's LSTM wants at least one row
            return embedded.x.new_zeros(0, embedded.mask.shape[1], len(self.tags)), embedded.mask[:0]
        mask = embedded.mask[sentence] & (place >= 0)
        marks = torch.arange(mask.shape[1], device=mask.device) == place  # (N, T)
        x = torch.cat([embedded.x[sentence], self.indicator(marks.long())], dim=-1)
        encoded = torch.cat([self.rnn(x, mask), embedded.output[sentence]], dim=-1)
        return self.scores(encoded), mask

    def loss(self, examples: Sequence[RoleSentence]) -> Tensor:
        """The mean cross-entropy of the tags, plus that of the predicates."""
        return self.loss_of(on_device(self.collect(examples), self.inputs.device))

    def collect(self, examples: Sequence[RoleSentence], *, rounded: bool = False) -> RoleBatch:
        """See `HasBatches`."""
        sentences = self.inputs.collect([example.tokens for example in examples], rounded=rounded)
        predicates = collect_predicates([example.predicates or [] for example in examples])
        tags = tag_rows(self.rows, [own for example in examples for own in example.tags], sentences.mask.shape[1])
        is_predicate = torch.zeros(sentences.mask.shape)
        is_predicate[predicates.sentence, predicates.place] = 1
        if rounded:
            size = round_up(len(tags), 32)
            predicates = Predicates(fill_up(predicates.sentence, size), fill_up(predicates.place, size, -1))
            tags = fill_up(tags, size, NO_TAG)
        return RoleBatch(sentences, predicates, tags, is_predicate)

    def loss_of(self, batch: RoleBatch) -> Tensor:
        """See `HasBatches`."""
        embedded = self.inputs.embed(batch.sentences)
        emissions, mask = self._emissions(embedded, batch.predicates)
        tag_loss = nn.functional.cross_entropy(
            emissions.flatten(0, 1), batch.tags.flatten(), ignore_index=NO_TAG, reduction="sum"
        )
        odds = self._find(embedded)
        predicate_loss = nn.functional.binary_cross_entropy_with_logits(
            odds, batch.is_predicate.to(odds.dtype), weight=embedded.mask, reduction="sum"
        )
        loss: Tensor = tag_loss / mask.sum().clamp(min=1) + predicate_loss / embedded.mask.sum().clamp(min=1)
        return loss

    def predict(self, examples: Sequence[RoleSentence]) -> list[RolePrediction]:
        """The predicates of each sentence and their tags."""
        embedded = self.inputs([example.tokens for example in examples])
        marked = ((self._find(embedded) > 0) & embedded.mask).tolist()
        found = [[place for place, mark in enumerate(row) if mark] for row in marked]
        predicates = [
            example.predicates if example.predicates is not None else places
            for example, places in zip(examples, found, strict=True)
        ]
        emissions, mask = self._emissions(embedded, on_device(collect_predicates(predicates), self.inputs.device))
        decoded = iter(self.decoder.decode(emissions, mask))
        return [
            RolePrediction(places, [[self.tags[number] for number in next(decoded)] for _ in places], seen)
            for places, seen in zip(predicates, found, strict=True)
        ]


def collect_predicates(places: Sequence[Sequence[int]]) -> Predicates:
    """The predicates of sentences, on the host.

    Args:
        places: For each sentence the indices of its predicates in its tokens.
    """
    return Predicates(
        torch.tensor([sentence for sentence, own in enumerate(places) for _ in own], dtype=torch.long),
        torch.tensor(list(chain.from_iterable(places)), dtype=torch.long),
    )


@dataclass(frozen=True)
class SemanticRoles:
    """Semantic role labelling as a task (`task.Task`)."""

    metric: str = "f1"
    suffixes: tuple[str, ...] = ("_conll", ".conll")
    requirements: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def read(self, path: str, tokenizer: Tokenizer = TREEBANK) -> list[RoleSentence]:
        """Read the sentences of a CoNLL-2012 file, including those without a predicate."""
        return [
            RoleSentence(
                sentence.tokens,
                [proposition.predicate for proposition in sentence.propositions],
                [proposition.tags(len(sentence.tokens)) for proposition in sentence.propositions],
            )
            for document in read_conll2012(path)
            for sentence in document.sentences
        ]

    def sentences(self, example: RoleSentence) -> list[list[str]]:
        """The tokens."""
        return [example.tokens]

    def fit(self, examples: Sequence[RoleSentence]) -> dict[str, Any]:
        """The tags: B- and I- of each role, so that a span can always continue."""
        roles = {tag[2:] for example in examples for tags in example.tags for tag in tags if tag != "O"}
        return {"tags": ["O", *(f"{mark}-{role}" for role in sorted(roles) for mark in "BI")]}

    def build(self, config: TaskConfig, fitted: dict[str, Any], inputs: Inputs) -> RoleTagger:
        """The network."""
        return RoleTagger(
            inputs,
            fitted["tags"],
            hidden_dim=config.hidden_dim,
            num_layers=config.num_layers,
            dropout=config.dropout,
        )

    def score(self, examples: Sequence[RoleSentence], predictions: Sequence[RolePrediction]) -> dict[str, float]:
        """Precision, recall and F1 of the arguments, and the F1 of the predicates that were found."""
        gold = [spans_of(tags) for example in examples for tags in example.tags]
        predicted = [spans_of(tags) for prediction in predictions for tags in prediction.tags]
        right = {(row, place) for row, example in enumerate(examples) for place in example.predicates or []}
        guessed = {(row, place) for row, prediction in enumerate(predictions) for place in prediction.found}
        predicates = metrics.f1_of_counts(len(right & guessed), len(right), len(guessed))
        return {**metrics.role_f1(gold, predicted), "predicate_f1": predicates["f1"]}

    def from_text(self, text: Any, tokenizer: Tokenizer = TREEBANK) -> RoleSentence:
        """A sentence, as `read_tokens` takes it; a mapping may also have the index of one token as `predicate`."""
        if not isinstance(text, Mapping) or "predicate" not in text:
            return RoleSentence(read_tokens(text, tokenizer), None, [])
        index = text["predicate"]
        tokens = read_tokens({key: value for key, value in text.items() if key != "predicate"}, tokenizer)
        if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < len(tokens):
            raise ValueError(f"predicate is {index!r}, expected the index of a token, 0 to {len(tokens) - 1}")
        return RoleSentence(tokens, [index], [])

    def to_json(self, example: RoleSentence, prediction: RolePrediction) -> dict[str, Any]:
        """Tokens, and for each predicate its tags and its arguments, without the predicate's own words (V)."""
        tokens = example.tokens
        propositions = []
        for place, tags in zip(prediction.predicates, prediction.tags, strict=True):
            arguments = [
                {"role": role, "start": start, "end": end, "text": " ".join(tokens[start:end])}
                for role, start, end in spans_of(tags)
                if role != "V"
            ]
            propositions.append({"predicate": place, "word": tokens[place], "arguments": arguments, "tags": tags})
        return {"tokens": tokens, "propositions": propositions}


ROLES = SemanticRoles(defaults={"num_layers": 4, "dropout": 0.1, "epochs": 25})
