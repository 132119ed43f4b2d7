"""Vectors of spans and scores of pairs of spans: what coreference and pronouns share.

Input: the vectors of sentences. Output: a vector for each span of up to MAX_WIDTH tokens, from its two ends, its width
and its words by attention, as in Lee et al. (2017, 2018); and the score of two spans to refer to the same entity.

Shapes: D documents, N tokens of the longest, W = MAX_WIDTH, G = SPAN_DIM.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor, nn

from elmokit.network import to_device
from elmokit.tasks.inputs import Embedded, Inputs
from elmokit.tasks.layers import NEVER, BiLSTM, masked_softmax

MAX_WIDTH = 12  # tokens of a span: 98.7 % of LitBank's mentions
SPAN_DIM = 150
DISTANCES = (1, 2, 3, 4, 5, 8, 16, 32, 64, 128, 256, 512, 1024)  # where a new bucket begins, in tokens

Span = tuple[int, int]
"""tokens[start:end], in the tokens of all sentences of a document in a row."""
Sentences = Sequence[Sequence[str]]
"""The sentences of one document, as token lists."""


@dataclass(frozen=True)
class DocumentTokens:
    """The tokens of documents, with what each adds to the vectors of spans; any values at padding."""

    start: Tensor
    """(D, N, G): what a token adds to the spans that it begins."""
    end: Tensor
    """(D, N, G): what a token adds to the spans that it ends."""
    word: Tensor
    """(D, N, G): what a token adds to the spans that it is in, weighted by attention."""
    attention: Tensor
    """(D, N): its score in that attention."""
    mask: Tensor
    """(D, N)."""
    sentence_end: Tensor
    """(D, N): the index after the last token of its sentence; no span crosses it."""


class SpanEncoder(nn.Module):
    """Sentences -> tokens -> vectors of spans.

    The vector of a span is relu(W [h_start; h_end; sum a_t x_t; width] + b). W is applied to the tokens before the
    spans are built, which gives the same numbers for a fraction of the work.

    Args:
        inputs: The vectors of tokens.
        hidden_dim: Units of the biLSTM per direction.
        num_layers: Layers of the biLSTM.
        dropout: Dropout of the biLSTM and of the vectors of spans.
    """

    def __init__(self, inputs: Inputs, *, hidden_dim: int, num_layers: int, dropout: float) -> None:
        super().__init__()
        self.rnn = BiLSTM(inputs.input_dim, hidden_dim, num_layers=num_layers, dropout=dropout)
        token_dim = self.rnn.output_dim + inputs.output_dim
        self.start, self.end = nn.Linear(token_dim, SPAN_DIM), nn.Linear(token_dim, SPAN_DIM, bias=False)
        self.word = nn.Linear(inputs.input_dim, SPAN_DIM, bias=False)
        self.width = nn.Embedding(MAX_WIDTH, SPAN_DIM)
        self.attention = nn.Linear(token_dim, 1)
        self.dropout = nn.Dropout(dropout)

    def forward(self, embedded: Embedded, documents: Sequence[Sentences]) -> DocumentTokens:
        """Encode the tokens of documents.

        Args:
            embedded: The sentences of all documents, one after the other, as `embed_documents` returns them.
            documents: The same sentences, by document.
        """
        device = embedded.x.device
        lengths = torch.tensor([sum(map(len, sentences)) for sentences in documents])
        mask = torch.arange(max(1, int(lengths.max()))) < lengths.unsqueeze(1)  # (D, N)
        sizes = [torch.tensor([len(tokens) for tokens in sentences], dtype=torch.long) for sentences in documents]
        sentence_end, place = torch.zeros(2, *mask.shape, dtype=torch.long)  # place: in the rows of all sentences
        sentence_end[mask] = torch.cat([size.cumsum(0).repeat_interleave(size) for size in sizes])
        is_token = torch.arange(embedded.mask.shape[1]) < torch.cat(sizes).unsqueeze(1)
        place[mask] = is_token.flatten().nonzero().squeeze(1)  # on the host: a GPU would be waited for
        place = to_device(place, device)

        encoded = torch.cat([self.rnn(embedded.x, embedded.mask), embedded.output], dim=-1)
        encoded, x = encoded.flatten(0, 1)[place], embedded.x.flatten(0, 1)[place]  # (D, N, …), any values at padding
        return DocumentTokens(
            start=self.start(encoded),
            end=self.end(encoded),
            word=self.word(x),
            attention=self.attention(encoded).squeeze(-1),
            mask=to_device(mask, device),
            sentence_end=to_device(sentence_end, device),
        )

    def spans_from(self, tokens: DocumentTokens, documents: Tensor, starts: Tensor) -> Tensor:
        """The vectors of the spans of 1 to W tokens that begin at given tokens.

        Args:
            tokens: What `forward` returned.
            documents: (…), indices of documents.
            starts: (…), indices of tokens in these documents.

        Returns:
            (…, W, G).
        """
        width = torch.arange(MAX_WIDTH, device=starts.device)
        window = (starts.unsqueeze(-1) + width).clamp(max=tokens.mask.shape[1] - 1)  # (…, W)
        documents = documents.unsqueeze(-1)
        inside = width <= width.unsqueeze(1)  # (W, W): the token at this offset is in the span of this width
        weights = masked_softmax(tokens.attention[documents, window].unsqueeze(-2), inside)  # (…, W, W)
        first = tokens.start[documents, starts.unsqueeze(-1)]  # (…, 1, G)
        words = weights @ tokens.word[documents, window]  # (…, W, G)
        spans: Tensor = self.dropout(torch.relu(first + tokens.end[documents, window] + words + self.width.weight))
        return spans


class PairScorer(nn.Module):
    """The score of two spans to refer to the same entity: their product, and a network over both and their distance.

    Args:
        dropout: Dropout of the network's hidden layer.
    """

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
        """(D, K, G) -> (D, K, K): only the product, of each span (row) with each other."""
        products: Tensor = self.product(spans) @ spans.transpose(1, 2)
        return products

    def forward(self, spans: Tensor, antecedents: Tensor, distance: Tensor) -> Tensor:
        """Score pairs.

        Args:
            spans: (…, 1, G).
            antecedents: (…, A, G).
            distance: (…, A), in tokens; negative where the antecedent comes after the span.

        Returns:
            (…, A).
        """
        bucket = torch.bucketize(distance.abs(), self.bounds, right=True) + (distance < 0) * (len(DISTANCES) + 1)
        hidden = (
            self.span(spans) + self.antecedent(antecedents) + self.both(spans * antecedents) + self.distance(bucket)
        )
        scores: Tensor = (self.product(spans) * antecedents).sum(dim=-1) + self.score(hidden).squeeze(-1)
        return scores


def marginal_loss(scores: Tensor, right: Tensor) -> Tensor:
    """The negative log-probability of the right antecedents together.

    There is also "none" with the score 0, which is right where no antecedent is.

    Args:
        scores: (…, A), scores of antecedents.
        right: (…, A) bool, True at right antecedents.

    Returns:
        (…).
    """
    scores = nn.functional.pad(scores, (1, 0))
    right = torch.cat([~right.any(dim=-1, keepdim=True), right], dim=-1)
    return scores.logsumexp(dim=-1) - scores.masked_fill(~right, NEVER).logsumexp(dim=-1)


def embed_documents(inputs: Inputs, documents: Sequence[Sentences]) -> Embedded:
    """Embed the sentences of all documents, one row per sentence."""
    embedded: Embedded = inputs(list(chain.from_iterable(documents)) or [[]])  # an RNN needs at least one row
    return embedded
