"""One tag per token: named entities, chunks, parts of speech.

Input: sentences with tags. Output: tags, and for tags of the B-/I-/O scheme the spans that they mark. The network is
that of the paper for named entities (Lample et al., 2016; Peters et al., 2017): characters and words, a biLSTM and, for
spans, a conditional random field that never decodes an I- without its B-.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from elmokit.datasets import TaggedSentence, read_conll2000, read_conllu, read_entities
from elmokit.tasks import metrics
from elmokit.tasks.batches import on_device
from elmokit.tasks.inputs import Collected, Embedded, Inputs
from elmokit.tasks.layers import CRF, BiLSTM, bio_rules
from elmokit.tasks.settings import TaskConfig
from elmokit.tasks.texts import read_tokens
from elmokit.text import TREEBANK, Tokenizer

NO_TAG = -100  # the target of padding


@dataclass(frozen=True)
class TaggedBatch:
    """What the host collects of B sentences to train on."""

    sentences: Collected
    tags: Tensor
    """(B, T): the indices of the tags, NO_TAG at padding."""


class Tagger(nn.Module):
    """x_k -> biLSTM -> a score for each tag -> the best sequence (spans) or the best tag of each token.

    Args:
        inputs: The vectors of tokens.
        tags: The tags.
        spans: The tags are B-, I- and O: a CRF decodes them.
        hidden_dim: Units of the biLSTM per direction.
        num_layers: Layers of the biLSTM.
        dropout: Dropout of the biLSTM.
    """

    def __init__(
        self, inputs: Inputs, tags: Sequence[str], *, spans: bool, hidden_dim: int, num_layers: int, dropout: float
    ) -> None:
        super().__init__()
        self.inputs, self.tags = inputs, list(tags)
        self.rows = {tag: row for row, tag in enumerate(self.tags)}
        self.rnn = BiLSTM(inputs.input_dim, hidden_dim, num_layers=num_layers, dropout=dropout)
        self.scores = nn.Linear(self.rnn.output_dim + inputs.output_dim, len(self.tags))
        self.crf: CRF | None = None
        if spans:
            allowed, allowed_first = bio_rules(self.tags)
            self.crf = CRF(len(self.tags), allowed=allowed, allowed_first=allowed_first)

    def _emissions(self, embedded: Embedded) -> Tensor:
        encoded = self.rnn(embedded.x, embedded.mask)
        emissions: Tensor = self.scores(torch.cat([encoded, embedded.output], dim=-1))  # (B, T, K)
        return emissions

    def loss(self, examples: Sequence[TaggedSentence]) -> Tensor:
        """The mean negative log-likelihood of the tags: per sentence with a CRF, per token without."""
        return self.loss_of(on_device(self.collect(examples), self.inputs.device))

    def collect(self, examples: Sequence[TaggedSentence], *, rounded: bool = False) -> TaggedBatch:
        """See `HasBatches`."""
        sentences = self.inputs.collect([example.tokens for example in examples], rounded=rounded)
        tags = [example.tags for example in examples]
        return TaggedBatch(sentences, tag_rows(self.rows, tags, sentences.mask.shape[1]))

    def loss_of(self, batch: TaggedBatch) -> Tensor:
        """See `HasBatches`."""
        embedded = self.inputs.embed(batch.sentences)
        emissions = self._emissions(embedded)
        if self.crf is None:
            return nn.functional.cross_entropy(emissions.flatten(0, 1), batch.tags.flatten(), ignore_index=NO_TAG)
        return -self.crf.log_likelihood(emissions, batch.tags.clamp(min=0), embedded.mask).mean()

    def predict(self, examples: Sequence[TaggedSentence]) -> list[list[str]]:
        """The tags of each sentence."""
        embedded = self.inputs([example.tokens for example in examples])
        emissions = self._emissions(embedded)
        if self.crf is not None:
            rows = self.crf.decode(emissions, embedded.mask)
        else:
            rows = emissions.argmax(dim=-1).tolist()
        return [
            [self.tags[number] for number in row[: len(example.tokens)]]
            for row, example in zip(rows, examples, strict=True)
        ]


@dataclass(frozen=True)
class Tagging:
    """Tagging as a task (`task.Task`)."""

    reader: Callable[[str], list[TaggedSentence]]
    spans: bool
    """The tags are B-, I- and O."""
    suffixes: tuple[str, ...]
    requirements: tuple[str, ...]
    defaults: Mapping[str, Any] = field(default_factory=dict)

    @property
    def metric(self) -> str:
        """F1 of spans, or accuracy of tags."""
        return "f1" if self.spans else "accuracy"

    def read(self, path: str, tokenizer: Tokenizer = TREEBANK) -> list[TaggedSentence]:
        """Read the sentences of a file; tags of IOB1 (CoNLL-2003) become B-/I-/O."""
        sentences = self.reader(path)
        return [TaggedSentence(s.tokens, to_bio(s.tags)) for s in sentences] if self.spans else sentences

    def sentences(self, example: TaggedSentence) -> list[list[str]]:
        """The tokens."""
        return [example.tokens]

    def fit(self, examples: Sequence[TaggedSentence]) -> dict[str, Any]:
        """The tags."""
        tags = {tag for example in examples for tag in example.tags}
        return {"tags": sorted(tags | {"O"} if self.spans else tags)}  # O: a span can always end

    def build(self, config: TaskConfig, fitted: dict[str, Any], inputs: Inputs) -> Tagger:
        """The network."""
        return Tagger(
            inputs,
            fitted["tags"],
            spans=self.spans,
            hidden_dim=config.hidden_dim,
            num_layers=config.num_layers,
            dropout=config.dropout,
        )

    def score(self, examples: Sequence[TaggedSentence], predictions: Sequence[list[str]]) -> dict[str, float]:
        """Scores of spans or tags."""
        score = metrics.entity_f1 if self.spans else metrics.tag_accuracy
        return score([example.tags for example in examples], predictions)

    def from_text(self, text: Any, tokenizer: Tokenizer = TREEBANK) -> TaggedSentence:
        """A sentence, as `read_tokens` takes it."""
        return TaggedSentence(read_tokens(text, tokenizer), [])

    def to_json(self, example: TaggedSentence, prediction: list[str]) -> dict[str, Any]:
        """Tokens and tags; spans with label, text and position: tokens[start:end]."""
        result: dict[str, Any] = {"tokens": example.tokens, "tags": prediction}
        if self.spans:
            result["spans"] = [
                {"label": label, "start": start, "end": end, "text": " ".join(example.tokens[start:end])}
                for label, start, end in spans_of(prediction)
            ]
        return result


def tag_rows(rows: Mapping[str, int], sequences: Sequence[Sequence[str]], num_tokens: int) -> Tensor:
    """The indices of tags, one row per sequence.

    Args:
        rows: The index of each tag.
        sequences: N sequences of at most T tags.
        num_tokens: T.

    Returns:
        (N, T), on the host; NO_TAG at padding.
    """
    padded = [[*map(rows.__getitem__, tags), *[NO_TAG] * (num_tokens - len(tags))] for tags in sequences]
    return torch.tensor(padded, dtype=torch.long).view(len(sequences), num_tokens)


def to_bio(tags: Sequence[str]) -> list[str]:
    """Convert tags of IOB1 or B-/I-/O to B-/I-/O: an I- that continues no span becomes a B-."""
    before = ["O", *tags]
    return [
        f"B-{tag[2:]}" if tag.startswith("I-") and before[place][2:] != tag[2:] else tag
        for place, tag in enumerate(tags)
    ]


def spans_of(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """The spans of B-/I-/O tags.

    Args:
        tags: One tag per token.

    Returns:
        (label, start, end) of each span, `tokens[start:end]`.
    """
    spans: list[tuple[str, int, int]] = []
    for place, tag in enumerate(tags):
        if tag.startswith("B-"):
            spans.append((tag[2:], place, place + 1))
        elif tag.startswith("I-"):
            label, start, _ = spans[-1]
            spans[-1] = (label, start, place + 1)
    return spans


NER = Tagging(read_entities, spans=True, suffixes=(".conll", ".bio", ".txt"), requirements=("seqeval",))
CHUNKING = Tagging(read_conll2000, spans=True, suffixes=(".txt",), requirements=("seqeval",))
POS = Tagging(read_conllu, spans=False, suffixes=(".conllu",), requirements=("conllu",))
