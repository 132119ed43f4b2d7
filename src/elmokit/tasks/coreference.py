"""Which words speak of the same: coreference of whole documents (LitBank, OntoNotes), and ambiguous pronouns (GAP).

Enters: documents as sentences of tokens, with their entities as clusters of spans; or a passage, a pronoun and names.
Leaves: the clusters of a document; or the name that a pronoun refers to.  The network ranks spans, as Lee et al. (2017,
2018) do and the paper with them, in small: a biLSTM over each sentence; a vector for each span of up to MAX_WIDTH
tokens from its two ends, its width and its words by attention; a score for each span to be a mention; the best spans of
a document, and for each of them the best antecedents by a product, which are then scored in full against "none" (0).

Where the training data marks entities of a single mention (LitBank does, OntoNotes does not), the mention score is
trained to find them, and spans that it takes for mentions are predicted alone.  Training reads a random part of a long
document, of at most SEGMENT_TOKENS; prediction reads documents as they are.

GAP marks no mention but three: the pronoun and two names, which the system is given ("gold-two-mention").  So it is a
task of its own on the same spans and pairs: the pronoun's score with each name, against "none".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import Any

import torch
from torch import Tensor, nn

from elmokit import datasets as readers
from elmokit.network import to_device
from elmokit.tasks import metrics
from elmokit.tasks.inputs import Embedded, Inputs, lay_out, read_tokens
from elmokit.tasks.layers import NEVER, BiLSTM, masked_softmax
from elmokit.tasks.settings import TaskConfig
from elmokit.text import as_tokens, tokenize_sentences

MAX_WIDTH = 12  # tokens of a span: 98.7 % of LitBank's mentions
SPAN_DIM = 150
SPANS_PER_TOKEN = 0.3  # so many spans of a document are kept
MAX_ANTECEDENTS = 50  # of a span, scored in full
SEGMENT_TOKENS = 1000  # of a document, in one update
DISTANCES = (1, 2, 3, 4, 5, 8, 16, 32, 64, 128, 256, 512, 1024)  # where a new bucket begins, in tokens

PRONOUN_WORDS = frozenset({"he", "him", "his"}) | metrics.FEMININE
OPENING_WORD = re.compile(  # begins sentences, and no names
    "(?i:a|after|all|also|although|an|and|as|at|because|before|both|but|by|despite|during|each|every|for|from|how|"
    "however|if|in|is|it|its|later|many|most|my|no|not|now|of|on|once|one|our|over|perhaps|several|since|so|some|soon|"
    "such|that|the|their|then|there|these|they|this|those|though|through|to|two|under|until|upon|was|we|were|what|when|"
    "where|which|while|who|why|with|you|your)"
)

Span = tuple[int, int]
"""tokens[start:end], in the tokens of all sentences in a row."""


@dataclass(frozen=True, slots=True)
class CoreferenceDocument:
    """A document and its entities."""

    sentences: list[list[str]]
    clusters: list[list[Span]]


@dataclass(frozen=True, slots=True)
class PronounQuestion:
    """A pronoun, the names that it may refer to, and for each name whether it does."""

    pronoun: Span
    candidates: list[Span]
    refers: list[bool]


@dataclass(frozen=True, slots=True)
class PronounPassage:
    """A text and the pronouns that are asked for: one of them in GAP."""

    sentences: list[list[str]]
    questions: list[PronounQuestion]


# ---- spans and pairs of them -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DocumentTokens:
    """The tokens of D documents, N each at most, as spans are made of them (G wide)."""

    start: Tensor
    """(D, N, G): what a token gives to the spans that it begins."""
    end: Tensor
    """(D, N, G): what it gives to the spans that it ends."""
    word: Tensor
    """(D, N, G): what it gives to the spans that it stands in, by attention."""
    attention: Tensor
    """(D, N): how much."""
    mask: Tensor
    """(D, N)."""
    sentence_end: Tensor
    """(D, N): the place behind the last token of its sentence; no span passes it."""


class SpanEncoder(nn.Module):
    """Sentences -> tokens -> vectors of spans.

    A span's vector is relu(W [h_start; h_end; sum a_t x_t; width] + b).  W is applied to the tokens before spans are
    made of them: the same numbers, for a fraction of the work.
    """

    def __init__(self, inputs: Inputs, config: TaskConfig) -> None:
        super().__init__()
        self.rnn = BiLSTM(inputs.input_dim, config.hidden_dim, num_layers=config.num_layers, dropout=config.dropout)
        token_dim = self.rnn.output_dim + inputs.output_dim
        self.start, self.end = nn.Linear(token_dim, SPAN_DIM), nn.Linear(token_dim, SPAN_DIM, bias=False)
        self.word = nn.Linear(inputs.input_dim, SPAN_DIM, bias=False)
        self.width = nn.Embedding(MAX_WIDTH, SPAN_DIM)
        self.attention = nn.Linear(token_dim, 1)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, embedded: Embedded, documents: Sequence[Sequence[Sequence[str]]]) -> DocumentTokens:
        """`embedded` holds the sentences of all documents, one behind the other."""
        device = embedded.x.device
        lengths = torch.tensor([sum(map(len, sentences)) for sentences in documents])
        mask = torch.arange(max(1, int(lengths.max()))) < lengths.unsqueeze(1)  # (D, N)
        sentence_end = torch.zeros(mask.shape, dtype=torch.long)
        sizes = [torch.tensor([len(tokens) for tokens in sentences], dtype=torch.long) for sentences in documents]
        sentence_end[mask] = torch.cat([size.cumsum(0).repeat_interleave(size) for size in sizes])

        def by_document(values: Tensor) -> Tensor:
            """(sentences, T, G) -> (D, N, G)."""
            return lay_out(values[embedded.mask], mask)

        encoded = torch.cat([self.rnn(embedded.x, embedded.mask), embedded.output], dim=-1)
        return DocumentTokens(
            start=by_document(self.start(encoded)),
            end=by_document(self.end(encoded)),
            word=by_document(self.word(embedded.x)),
            attention=by_document(self.attention(encoded)).squeeze(-1),
            mask=to_device(mask, device),
            sentence_end=to_device(sentence_end, device),
        )

    def spans_from(self, tokens: DocumentTokens, documents: Tensor, starts: Tensor) -> Tensor:
        """Documents and places in them (…) -> (…, W, G): the spans of 1 to W tokens that begin there."""
        width = torch.arange(MAX_WIDTH, device=starts.device)
        window = (starts.unsqueeze(-1) + width).clamp(max=tokens.mask.shape[1] - 1)  # (…, W)
        documents = documents.unsqueeze(-1)
        inside = width <= width.unsqueeze(1)  # (W, W): the token at this offset stands in the span of this width
        weights = masked_softmax(tokens.attention[documents, window].unsqueeze(-2), inside)  # (…, W, W)
        begun = tokens.start[documents, starts.unsqueeze(-1)]  # (…, 1, G)
        words = weights @ tokens.word[documents, window]  # (…, W, G)
        spans: Tensor = self.dropout(torch.relu(begun + tokens.end[documents, window] + words + self.width.weight))
        return spans


class PairScorer(nn.Module):
    """How likely two spans speak of the same: their product, and a network over both, their product and distance."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.product = nn.Linear(SPAN_DIM, SPAN_DIM, bias=False)
        self.span, self.antecedent = nn.Linear(SPAN_DIM, SPAN_DIM), nn.Linear(SPAN_DIM, SPAN_DIM, bias=False)
        self.both = nn.Linear(SPAN_DIM, SPAN_DIM, bias=False)
        self.distance = nn.Embedding(2 * (len(DISTANCES) + 1), SPAN_DIM)
        self.score = nn.Sequential(nn.ReLU(), nn.Dropout(dropout), nn.Linear(SPAN_DIM, 1))
        self.bounds: Tensor
        self.register_buffer("bounds", torch.tensor(DISTANCES), persistent=False)

    def coarse(self, spans: Tensor) -> Tensor:
        """(D, K, G) -> (D, K, K): the product alone, of each span (row) with each other."""
        products: Tensor = self.product(spans) @ spans.transpose(1, 2)
        return products

    def forward(self, spans: Tensor, antecedents: Tensor, distance: Tensor) -> Tensor:
        """(…, 1, G), (…, A, G), (…, A) -> (…, A); a distance below 0: the antecedent stands behind the span."""
        bucket = torch.bucketize(distance.abs(), self.bounds, right=True) + (distance < 0) * (len(DISTANCES) + 1)
        hidden = (
            self.span(spans) + self.antecedent(antecedents) + self.both(spans * antecedents) + self.distance(bucket)
        )
        scores: Tensor = (self.product(spans) * antecedents).sum(dim=-1) + self.score(hidden).squeeze(-1)
        return scores


def marginal_loss(scores: Tensor, right: Tensor) -> Tensor:
    """(…, A) scores of antecedents, (…, A) which are right -> (…): minus the log-probability of those together.

    Beside them stands "none" with the score 0, which is right where no other is.
    """
    scores = nn.functional.pad(scores, (1, 0))
    right = torch.cat([~right.any(dim=-1, keepdim=True), right], dim=-1)
    return scores.logsumexp(dim=-1) - scores.masked_fill(~right, NEVER).logsumexp(dim=-1)


# ---- documents -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ranking:
    """The K best spans of D documents, in the order of the text, and their A best antecedents each."""

    mentions: Tensor
    """(D, N, W): the mention score of the span of w + 1 tokens that begins at n."""
    is_span: Tensor
    """(D, N, W): it lies in one sentence."""
    kept: Tensor
    """(D, K): the span as n * W + w."""
    mask: Tensor
    """(D, K): False behind a document's last one."""
    antecedents: Tensor
    """(D, K, A): as places in K."""
    scores: Tensor
    """(D, K, A), NEVER where there is no such antecedent."""


class SpanRanker(nn.Module):
    """Documents -> spans -> mentions -> antecedents."""

    def __init__(self, inputs: Inputs, *, singletons: bool, config: TaskConfig) -> None:
        super().__init__()
        self.inputs, self.singletons = inputs, singletons
        self.spans, self.pairs = SpanEncoder(inputs, config), PairScorer(config.dropout)
        self.mention = nn.Sequential(
            nn.Linear(SPAN_DIM, SPAN_DIM), nn.ReLU(), nn.Dropout(config.dropout), nn.Linear(SPAN_DIM, 1)
        )

    def _rank(self, documents: Sequence[CoreferenceDocument]) -> Ranking:
        tokens = self.spans(*_embed(self.inputs, documents))
        device = tokens.mask.device
        row = torch.arange(len(documents), device=device).unsqueeze(1)  # (D, 1)
        place = torch.arange(tokens.mask.shape[1], device=device)  # (N,)
        spans = self.spans.spans_from(tokens, row, place.expand(len(documents), -1))  # (D, N, W, G)
        mentions = self.mention(spans).squeeze(-1)  # (D, N, W)
        width = torch.arange(MAX_WIDTH, device=device)
        is_span = place.unsqueeze(1) + width < tokens.sentence_end.unsqueeze(2)  # (D, N, W)

        flat = mentions.masked_fill(~is_span, NEVER).flatten(1)  # (D, N * W)
        limit = (tokens.mask.sum(dim=1, keepdim=True) * SPANS_PER_TOKEN).ceil()  # (D, 1)
        best = flat.topk(max(1, int(limit.max())), dim=1).indices  # (D, K)
        live = (torch.arange(best.shape[1], device=device) < limit) & is_span.flatten(1).gather(1, best)
        kept = best.masked_fill(~live, flat.shape[1]).sort(dim=1).values  # in the order of the text, padding last
        mask = kept < flat.shape[1]
        kept = kept.clamp(max=flat.shape[1] - 1)
        g, score = spans.flatten(1, 2)[row, kept], flat.gather(1, kept)  # (D, K, G), (D, K)
        if self.singletons:  # the score is then the log-odds of a mention, and what joins a pair is its log-probability
            score = nn.functional.logsigmoid(score)

        order = torch.arange(kept.shape[1], device=device)
        is_before = (order < order.unsqueeze(1)) & mask.unsqueeze(1) & mask.unsqueeze(2)  # (D, K, K)
        with torch.no_grad():  # chooses alone; what is chosen is scored again below
            coarse = (self.pairs.coarse(g) + score.unsqueeze(1)).masked_fill(~is_before, NEVER)
            antecedents = coarse.topk(min(MAX_ANTECEDENTS, coarse.shape[2]), dim=2).indices  # (D, K, A)
        row = row.unsqueeze(2)
        start = kept // MAX_WIDTH
        scores = self.pairs(g.unsqueeze(2), g[row, antecedents], start.unsqueeze(2) - start[row, antecedents])
        scores = scores + score.unsqueeze(2) + score[row, antecedents]
        scores = scores.masked_fill(~is_before.gather(2, antecedents), NEVER)
        return Ranking(mentions, is_span, kept, mask, antecedents, scores)

    def loss(self, examples: Sequence[CoreferenceDocument]) -> Tensor:
        """Of each kept span: minus the log-probability of its right antecedents; and the mentions' cross-entropy."""
        documents = [_random_part(example) for example in examples]
        ranking = self._rank(documents)
        entity = to_device(_entity_grid(documents, ranking.is_span.shape), ranking.scores.device)  # (D, N, W)
        own = entity.flatten(1).gather(1, ranking.kept) * ranking.mask  # (D, K); 0: no mention
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
        alone = (ranking.mentions.flatten(1).gather(1, ranking.kept) > 0) & self.singletons
        rows = zip(
            ranking.kept.tolist(), antecedent.tolist(), alone.tolist(), ranking.mask.sum(dim=1).tolist(), strict=True
        )
        return [_clusters(kept[:count], links[:count], alone) for kept, links, alone, count in rows]


def _clusters(kept: Sequence[int], antecedents: Sequence[int], alone: Sequence[bool]) -> list[list[Span]]:
    """Follow each span to its antecedent; a span without any link is a cluster where it may stand alone."""
    clusters: dict[int, list[Span]] = {}
    owner: list[int] = []
    for number, (span, antecedent) in enumerate(zip(kept, antecedents, strict=True)):
        owner.append(number if antecedent < 0 else owner[antecedent])
        start, width = divmod(span, MAX_WIDTH)
        clusters.setdefault(owner[-1], []).append((start, start + width + 1))
    return [cluster for first, cluster in clusters.items() if len(cluster) > 1 or alone[first]]


def _entity_grid(documents: Sequence[CoreferenceDocument], shape: torch.Size) -> Tensor:
    """(D, N, W): the number of the entity that the span is a mention of, from 1; 0: of none."""
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
    """Sentences in a row of at most SEGMENT_TOKENS (one alone may have more), and what of the entities is in them."""
    ends = list(accumulate(map(len, document.sentences), initial=0))
    if ends[-1] <= SEGMENT_TOKENS:
        return document
    last = max(number for number, end in enumerate(ends[:-1]) if ends[-1] - end >= SEGMENT_TOKENS)
    first = int(torch.randint(last + 1, ()))  # by torch, whose seed the trainer sets
    begin = ends[first]
    count = max(1, sum(begin < end <= begin + SEGMENT_TOKENS for end in ends))
    end = ends[first + count]
    clusters = [
        [(a - begin, b - begin) for a, b in cluster if begin <= a and b <= end] for cluster in document.clusters
    ]
    return CoreferenceDocument(document.sentences[first : first + count], [cluster for cluster in clusters if cluster])


def _embed(
    inputs: Inputs, documents: Sequence[CoreferenceDocument | PronounPassage]
) -> tuple[Embedded, list[list[list[str]]]]:
    sentences = [document.sentences for document in documents]
    return inputs(list(chain.from_iterable(sentences)) or [[]]), sentences  # an RNN wants at least one row


@dataclass(frozen=True)
class Coreference:
    """Coreference as a task (`task.Task`)."""

    metric: str = "conll_f1"
    suffixes: tuple[str, ...] = ("_conll", ".conll")
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def read(self, path: str) -> list[CoreferenceDocument]:
        """The documents of a CoNLL-2012 file."""
        return [
            CoreferenceDocument([sentence.tokens for sentence in document.sentences], document.clusters)
            for document in readers.read_conll2012(path)
        ]

    def sentences(self, example: CoreferenceDocument) -> list[list[str]]:
        """The sentences."""
        return example.sentences

    def fit(self, examples: Sequence[CoreferenceDocument]) -> dict[str, Any]:
        """Whether the data marks entities of a single mention."""
        return {"singletons": any(len(cluster) == 1 for example in examples for cluster in example.clusters)}

    def build(self, config: TaskConfig, fitted: dict[str, Any], inputs: Inputs) -> SpanRanker:
        """The network."""
        return SpanRanker(inputs, singletons=fitted["singletons"], config=config)

    def score(
        self, examples: Sequence[CoreferenceDocument], predictions: Sequence[list[list[Span]]]
    ) -> dict[str, float]:
        """The CoNLL-2012 score and its parts."""
        return metrics.conll_f1([example.clusters for example in examples], predictions)

    def from_text(self, given: Any) -> CoreferenceDocument:
        """A document: see `read_sentences`."""
        return CoreferenceDocument(read_sentences(given), [])

    def to_json(self, example: CoreferenceDocument, prediction: list[list[Span]]) -> dict[str, Any]:
        """All tokens, the length of each sentence, and the mentions of each entity."""
        tokens = list(chain.from_iterable(example.sentences))
        clusters = [[_describe(tokens, mention) for mention in cluster] for cluster in prediction]
        return {"tokens": tokens, "sentence_lengths": list(map(len, example.sentences)), "clusters": clusters}


# ---- pronouns --------------------------------------------------------------------------------------------------------


class PronounResolver(nn.Module):
    """A pronoun and names -> the score of each name, against "none"."""

    def __init__(self, inputs: Inputs, *, config: TaskConfig) -> None:
        super().__init__()
        self.inputs = inputs
        self.spans, self.pairs = SpanEncoder(inputs, config), PairScorer(config.dropout)

    def _scores(self, passages: Sequence[PronounPassage]) -> Tensor:
        """(Q, C): a row a question; NEVER where it has fewer names."""
        tokens = self.spans(*_embed(self.inputs, passages))
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
        """Minus the log-probability of the right name, or of "none"."""
        scores = self._scores(examples)
        right = torch.zeros(scores.shape, dtype=torch.bool)
        answers = (question.refers for example in examples for question in example.questions)
        for row, refers in zip(right, answers, strict=True):
            row[: len(refers)] = torch.tensor(refers)
        return marginal_loss(scores, to_device(right, scores.device)).mean()

    def predict(self, examples: Sequence[PronounPassage]) -> list[list[list[float]]]:
        """For each question of each passage the probability of each name; what they leave is that of "none"."""
        scores = nn.functional.pad(self._scores(examples), (1, 0))
        rows = iter(scores.softmax(dim=-1)[:, 1:].tolist())
        return [[next(rows)[: len(question.candidates)] for question in example.questions] for example in examples]


@dataclass(frozen=True)
class Pronouns:
    """Ambiguous pronouns as a task (`task.Task`)."""

    metric: str = "f1"
    suffixes: tuple[str, ...] = (".tsv",)
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def read(self, path: str) -> list[PronounPassage]:
        """The passages of a table of GAP, cut into sentences and tokens."""
        passages = []
        for example in readers.read_gap(path):
            names = [(candidate.name, candidate.start) for candidate in (example.a, example.b)]
            refers = [example.a.coreferent, example.b.coreferent]
            passages.append(_passage(example.text, (example.pronoun, example.start), names, refers))
        return passages

    def sentences(self, example: PronounPassage) -> list[list[str]]:
        """The sentences."""
        return example.sentences

    def fit(self, examples: Sequence[PronounPassage]) -> dict[str, Any]:
        """Nothing."""
        return {}

    def build(self, config: TaskConfig, fitted: dict[str, Any], inputs: Inputs) -> PronounResolver:
        """The network."""
        return PronounResolver(inputs, config=config)

    def score(self, examples: Sequence[PronounPassage], predictions: Sequence[list[list[float]]]) -> dict[str, float]:
        """The score of GAP."""
        pronouns, gold, predicted = [], [], []
        for example, answers in zip(examples, predictions, strict=True):
            tokens = list(chain.from_iterable(example.sentences))
            for question, probabilities in zip(example.questions, answers, strict=True):
                chosen = _likeliest(probabilities)
                pronouns.append(tokens[question.pronoun[0]])
                gold.append(question.refers)
                predicted.append([place == chosen for place in range(len(probabilities))])
        return metrics.gap_f1(pronouns, gold, predicted)

    def from_text(self, given: Any) -> PronounPassage:
        """A text, see `read_sentences`; or a mapping as GAP has it, with the pronoun, two names and their offsets.

        A text alone asks for every he and she of it, with every run of capitalized words as a name.
        """
        if not isinstance(given, Mapping) or "pronoun" not in given:
            sentences = read_sentences(given)
            return PronounPassage(sentences, _find_questions(sentences))
        expected = {
            "text": str,
            "pronoun": str,
            "pronoun_offset": int,
            "a": str,
            "a_offset": int,
            "b": str,
            "b_offset": int,
        }
        for key, kind in expected.items():
            if not isinstance(given.get(key), kind):
                needs = f"expected one of type {kind.__name__}, beside {', '.join(expected.keys() - {key})}"
                raise ValueError(f"{key} is {given.get(key)!r:.60}, {needs}")
        parts = [(given[name], given[f"{name}_offset"]) for name in ("pronoun", "a", "b")]
        for part, offset in parts:
            if offset < 0 or not part.strip() or not given["text"].startswith(part, offset):
                raise ValueError(
                    f"{part!r} does not stand at {offset} of {given['text']!r:.60}: offsets count characters"
                )
        return _passage(given["text"], parts[0], parts[1:], [])

    def to_json(self, example: PronounPassage, prediction: list[list[float]]) -> dict[str, Any]:
        """All tokens, and for each pronoun the name that it refers to (or null) and the probability of each name."""
        tokens = list(chain.from_iterable(example.sentences))
        pronouns = []
        for question, probabilities in zip(example.questions, prediction, strict=True):
            names = [_describe(tokens, name) for name in question.candidates]
            chosen = _likeliest(probabilities)
            pronouns.append(
                {
                    **_describe(tokens, question.pronoun),
                    "refers_to": None if chosen is None else names[chosen],
                    "candidates": [{**n, "probability": p} for n, p in zip(names, probabilities, strict=True)],
                }
            )
        return {"tokens": tokens, "pronouns": pronouns}


def _likeliest(probabilities: Sequence[float]) -> int | None:
    """The name that is likelier than the others and than none."""
    best = max(range(len(probabilities)), key=probabilities.__getitem__, default=None)
    return best if best is not None and probabilities[best] > 1 - sum(probabilities) else None


def _passage(
    text: str, pronoun: tuple[str, int], names: Sequence[tuple[str, int]], refers: list[bool]
) -> PronounPassage:
    """Words and their offsets in characters -> spans of tokens: of all that a word has a part in."""
    sentences = tokenize_sentences(text)
    tokens = list(chain.from_iterable(sentences))
    spans = []
    for word, begin in (pronoun, *names):
        touched = [place for place, t in enumerate(tokens) if t.start < begin + len(word) and begin < t.end]
        spans.append((touched[0], touched[-1] + 1))
    question = PronounQuestion(spans[0], spans[1:], refers)
    return PronounPassage([[token.text for token in sentence] for sentence in sentences], [question])


def _find_questions(sentences: Sequence[Sequence[str]]) -> list[PronounQuestion]:
    """Every pronoun with every run of capitalized words, a sentence's first word among them if it can be a name."""
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


# ---- text ------------------------------------------------------------------------------------------------------------


def read_sentences(given: Any) -> list[list[str]]:
    """A document as a user gave it: a text, the tokens of one sentence, the token lists of several, or one of these in
    a mapping, as text, tokens or sentences."""
    if isinstance(given, Mapping):
        if len(given) != 1 or not set(given) <= {"text", "tokens", "sentences"}:
            raise ValueError(f'{dict(given)!r:.100}: expected a document as {{"text": …}} or {{"sentences": [[…]]}}')
        given = next(iter(given.values()))
    if isinstance(given, str):
        return [[token.text for token in sentence] for sentence in tokenize_sentences(given)]
    if isinstance(given, list | tuple) and not any(isinstance(item, str) for item in given):
        return as_tokens(given)
    return [read_tokens(given)]


def _describe(tokens: Sequence[str], span: Span) -> dict[str, Any]:
    start, end = span
    return {"start": start, "end": end, "text": " ".join(tokens[start:end])}


COREFERENCE = Coreference(defaults={"batch_size": 1, "dropout": 0.3, "epochs": 80, "patience": 10, "rate_decay": 0.8})
PRONOUNS = Pronouns(defaults={"batch_size": 16, "dropout": 0.3})
