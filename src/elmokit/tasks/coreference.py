"""Coreference of documents: which spans refer to the same entity (LitBank, OntoNotes).

Input: documents as sentences of tokens, with their entities as clusters of spans. Output: the clusters of a document.
The network ranks spans, as a small version of Lee et al. (2017, 2018), which the paper uses: the vectors of all spans
(span_pairs.py), a score for each span to be a mention, the best spans of a document, and for each of them the best
antecedents by a product, which are then scored in full against "none" (0).

Where the training data has entities with a single mention (LitBank has, OntoNotes has not), the mention score is
trained to find them, and spans with a positive score are predicted as entities of their own. Training reads a random
part of a long document, of at most SEGMENT_TOKENS; prediction reads complete documents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import Any

import torch
from torch import Tensor, nn

from elmokit.datasets import read_conll2012
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

SPANS_PER_TOKEN = 0.3  # number of spans of a document that are kept, per token
MAX_ANTECEDENTS = 50  # number of antecedents of a span that are scored in full
SEGMENT_TOKENS = 1000  # number of tokens of a document in one update, at most


@dataclass(frozen=True, slots=True)
class CoreferenceDocument:
    """A document and its entities."""

    sentences: list[list[str]]
    clusters: list[list[Span]]


# ---- the network -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ranking:
    """The K best spans of D documents, in the order of the text, and the A best antecedents of each."""

    mentions: Tensor
    """(D, N, W): the mention score of the span of w + 1 tokens that begins at n."""
    is_span: Tensor
    """(D, N, W): True if it is inside one sentence."""
    kept: Tensor
    """(D, K): the span as n * W + w."""
    mask: Tensor
    """(D, K): False after the last span of a document."""
    antecedents: Tensor
    """(D, K, A): as indices into K."""
    scores: Tensor
    """(D, K, A), NEVER where there is no such antecedent."""


class SpanRanker(nn.Module):
    """Documents -> spans -> mentions -> antecedents.

    Args:
        inputs: The vectors of tokens.
        singletons: The data has entities with a single mention.
        hidden_dim: Units of the biLSTM per direction.
        num_layers: Layers of the biLSTM.
        dropout: Dropout of all layers.
    """

    def __init__(self, inputs: Inputs, *, singletons: bool, hidden_dim: int, num_layers: int, dropout: float) -> None:
        super().__init__()
        self.inputs, self.singletons = inputs, singletons
        self.spans = SpanEncoder(inputs, hidden_dim=hidden_dim, num_layers=num_layers, dropout=dropout)
        self.pairs = PairScorer(dropout)
        self.mention = nn.Sequential(
            nn.Linear(SPAN_DIM, SPAN_DIM), nn.ReLU(), nn.Dropout(dropout), nn.Linear(SPAN_DIM, 1)
        )

    def _rank(self, documents: Sequence[CoreferenceDocument]) -> Ranking:
        sentences = [document.sentences for document in documents]
        tokens = self.spans(embed_documents(self.inputs, sentences), sentences)
        device = tokens.mask.device
        row = torch.arange(len(documents), device=device).unsqueeze(1)  # (D, 1)
        place = torch.arange(tokens.mask.shape[1], device=device)  # (N,)
        spans = self.spans.spans_from(tokens, row, place.expand(len(documents), -1))  # (D, N, W, G)
        mentions = self.mention(spans).squeeze(-1)  # (D, N, W)
        width = torch.arange(MAX_WIDTH, device=device)
        is_span = place.unsqueeze(1) + width < tokens.sentence_end.unsqueeze(2)  # (D, N, W)

        flat = mentions.masked_fill(~is_span, NEVER).flatten(1)  # (D, N * W)
        limit = (
            torch.tensor([[sum(map(len, one))] for one in sentences]) * SPANS_PER_TOKEN
        ).ceil()  # (D, 1), on the host
        best = flat.topk(max(1, int(limit.max())), dim=1).indices  # (D, K)
        limit = to_device(limit, device)
        is_kept = (torch.arange(best.shape[1], device=device) < limit) & is_span.flatten(1).gather(1, best)
        kept = best.masked_fill(~is_kept, flat.shape[1]).sort(dim=1).values  # in the order of the text, padding last
        mask = kept < flat.shape[1]
        kept = kept.clamp(max=flat.shape[1] - 1)
        g, score = spans.flatten(1, 2)[row, kept], flat.gather(1, kept)  # (D, K, G), (D, K)
        if self.singletons:  # the score is then the log-odds of a mention, and a pair adds its log-probability
            score = nn.functional.logsigmoid(score)

        order = torch.arange(kept.shape[1], device=device)
        is_before = (order < order.unsqueeze(1)) & mask.unsqueeze(1) & mask.unsqueeze(2)  # (D, K, K)
        with torch.no_grad():  # it only chooses; the chosen ones are scored again below
            coarse = (self.pairs.coarse(g) + score.unsqueeze(1)).masked_fill(~is_before, NEVER)
            antecedents = coarse.topk(min(MAX_ANTECEDENTS, coarse.shape[2]), dim=2).indices  # (D, K, A)
        row = row.unsqueeze(2)
        start = kept // MAX_WIDTH
        scores = self.pairs(g.unsqueeze(2), g[row, antecedents], start.unsqueeze(2) - start[row, antecedents])
        scores = scores + score.unsqueeze(2) + score[row, antecedents]
        scores = scores.masked_fill(~is_before.gather(2, antecedents), NEVER)
        return Ranking(mentions, is_span, kept, mask, antecedents, scores)

    def loss(self, examples: Sequence[CoreferenceDocument]) -> Tensor:
        """The negative log-probability of the right antecedents of the kept spans, plus the mentions' cross-entropy."""
        documents = [_random_part(example) for example in examples]
        ranking = self._rank(documents)
        entity = to_device(_entity_grid(documents, ranking.is_span.shape), ranking.scores.device)  # (D, N, W)
        own = entity.flatten(1).gather(1, ranking.kept) * ranking.mask  # (D, K); 0: not a mention
        row = torch.arange(len(documents), device=own.device).view(-1, 1, 1)
        right = (own[row, ranking.antecedents] == own.unsqueeze(2)) & (own > 0).unsqueeze(2)
        right &= ranking.scores > NEVER
        loss = (marginal_loss(ranking.scores, right) * ranking.mask).sum()
        if self.singletons:
            loss = loss + nn.functional.binary_cross_entropy_with_logits(
                ranking.mentions, (entity > 0).to(loss.dtype), weight=ranking.is_span, reduction="sum"
            )
        return loss / ranking.mask.sum().clamp(min=1)

    def predict(self, examples: Sequence[CoreferenceDocument]) -> list[list[list[Span]]]:
        """The clusters of each document."""
        ranking = self._rank(examples)
        best, choice = ranking.scores.max(dim=2)  # (D, K)
        antecedent = ranking.antecedents.gather(2, choice.unsqueeze(2)).squeeze(2)
        antecedent = antecedent.masked_fill(best <= 0, -1)
        singleton = (ranking.mentions.flatten(1).gather(1, ranking.kept) > 0) & self.singletons
        counts = ranking.mask.sum(dim=1).tolist()
        rows = zip(ranking.kept.tolist(), antecedent.tolist(), singleton.tolist(), counts, strict=True)
        return [_clusters(kept[:count], links[:count], single) for kept, links, single, count in rows]


def _clusters(kept: Sequence[int], antecedents: Sequence[int], singleton: Sequence[bool]) -> list[list[Span]]:
    """Follow each span to its antecedent; a span without a link is a cluster if it may be a singleton."""
    clusters: dict[int, list[Span]] = {}
    owner: list[int] = []
    for number, (span, antecedent) in enumerate(zip(kept, antecedents, strict=True)):
        owner.append(number if antecedent < 0 else owner[antecedent])
        start, width = divmod(span, MAX_WIDTH)
        clusters.setdefault(owner[-1], []).append((start, start + width + 1))
    return [cluster for first, cluster in clusters.items() if len(cluster) > 1 or singleton[first]]


def _entity_grid(documents: Sequence[CoreferenceDocument], shape: torch.Size) -> Tensor:
    """(D, N, W): the number of the entity that the span is a mention of, from 1; 0: not a mention."""
    grid = torch.zeros(shape, dtype=torch.long)
    marks = [
        (row, start, end - start - 1, number)
        for row, document in enumerate(documents)
        for number, cluster in enumerate(document.clusters, start=1)
        for start, end in cluster
        if end - start <= MAX_WIDTH
    ]
    if marks:
        row, start, width, number = torch.tensor(marks).T
        grid[row, start, width] = number
    return grid


def _random_part(document: CoreferenceDocument) -> CoreferenceDocument:
    """Consecutive sentences of at most SEGMENT_TOKENS (or one longer sentence), with the mentions inside them."""
    ends = list(accumulate(map(len, document.sentences), initial=0))
    if ends[-1] <= SEGMENT_TOKENS:
        return document
    last = max(number for number, end in enumerate(ends[:-1]) if ends[-1] - end >= SEGMENT_TOKENS)
    first = int(torch.randint(last + 1, ()))  # from torch, whose seed the trainer sets
    begin = ends[first]
    count = max(1, sum(begin < end <= begin + SEGMENT_TOKENS for end in ends))
    end = ends[first + count]
    clusters = [
        [(a - begin, b - begin) for a, b in cluster if begin <= a and b <= end] for cluster in document.clusters
    ]
    return CoreferenceDocument(document.sentences[first : first + count], [cluster for cluster in clusters if cluster])


# ---- the task --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Coreference:
    """Coreference as a task (`task.Task`)."""

    metric: str = "conll_f1"
    suffixes: tuple[str, ...] = ("_conll", ".conll")
    requirements: tuple[str, ...] = ("scipy.optimize",)
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def read(self, path: str, tokenizer: Tokenizer = TREEBANK) -> list[CoreferenceDocument]:
        """Read the documents of a CoNLL-2012 file."""
        return [
            CoreferenceDocument([sentence.tokens for sentence in document.sentences], document.clusters)
            for document in read_conll2012(path)
        ]

    def sentences(self, example: CoreferenceDocument) -> list[list[str]]:
        """The sentences."""
        return example.sentences

    def fit(self, examples: Sequence[CoreferenceDocument]) -> dict[str, Any]:
        """Whether the data has entities with a single mention."""
        return {"singletons": any(len(cluster) == 1 for example in examples for cluster in example.clusters)}

    def build(self, config: TaskConfig, fitted: dict[str, Any], inputs: Inputs) -> SpanRanker:
        """The network."""
        return SpanRanker(
            inputs,
            singletons=fitted["singletons"],
            hidden_dim=config.hidden_dim,
            num_layers=config.num_layers,
            dropout=config.dropout,
        )

    def score(
        self, examples: Sequence[CoreferenceDocument], predictions: Sequence[list[list[Span]]]
    ) -> dict[str, float]:
        """The CoNLL-2012 score and its parts."""
        return metrics.conll_f1([example.clusters for example in examples], predictions)

    def from_text(self, text: Any, tokenizer: Tokenizer = TREEBANK) -> CoreferenceDocument:
        """A document, as `read_sentences` takes it."""
        return CoreferenceDocument(read_sentences(text, tokenizer), [])

    def to_json(self, example: CoreferenceDocument, prediction: list[list[Span]]) -> dict[str, Any]:
        """All tokens, the length of each sentence, and the mentions of each entity."""
        tokens = list(chain.from_iterable(example.sentences))
        clusters = [[describe_span(tokens, mention) for mention in cluster] for cluster in prediction]
        return {"tokens": tokens, "sentence_lengths": list(map(len, example.sentences)), "clusters": clusters}


COREFERENCE = Coreference(defaults={"batch_size": 1, "dropout": 0.3, "epochs": 80, "patience": 10, "rate_decay": 0.8})
