"""A tag for each token: named entities, chunks, parts of speech.

Enters: sentences with tags.  Leaves: tags, and where they are of the B-/I-/O scheme the spans that they mark.  The
network is that of the paper's named entities (Lample et al., 2016; Peters et al., 2017): characters and words, a biLSTM
and, for spans, a conditional random field that never decodes an I- without its B-.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from elmokit import datasets as readers
from elmokit.datasets import TaggedSentence
from elmokit.network import to_device
from elmokit.tasks import metrics
from elmokit.tasks.inputs import Embedded, Inputs, read_tokens
from elmokit.tasks.layers import CRF, BiLSTM, LockedDropout, bio_rules
from elmokit.tasks.settings import TaskConfig

NO_TAG = -100  # the target of padding, and of a tag that training did not have


class Tagger(nn.Module):
    """x_k -> biLSTM -> a score for each tag -> the best sequence (spans) or the best tag of each token."""

    def __init__(self, inputs: Inputs, tags: Sequence[str], *, spans: bool, config: TaskConfig) -> None:
        super().__init__()
        self.inputs, self.tags = inputs, list(tags)
        self.rows = {tag: row for row, tag in enumerate(self.tags)}
        self.rnn = BiLSTM(inputs.input_dim, config.hidden_dim, num_layers=config.num_layers, dropout=config.dropout)
        self.dropout = LockedDropout(config.dropout)
        self.scores = nn.Linear(self.rnn.output_dim + inputs.output_dim, len(self.tags))
        self.crf: CRF | None = None
        if spans:
            allowed, allowed_first = bio_rules(self.tags)
            self.crf = CRF(len(self.tags), allowed=allowed, allowed_first=allowed_first)

    def _emissions(self, examples: Sequence[TaggedSentence]) -> tuple[Tensor, Embedded]:
        embedded = self.inputs([example.tokens for example in examples])
        encoded = self.rnn(embedded.x, embedded.mask)
        return self.scores(torch.cat([encoded, embedded.output], dim=-1)), embedded  # (B, T, K)

    def loss(self, examples: Sequence[TaggedSentence]) -> Tensor:
        """Minus the log-likelihood of the tags: of a sentence with a CRF, of a token without."""
        emissions, embedded = self._emissions(examples)
        targets = torch.full(embedded.mask.shape, NO_TAG)
        for row, example in zip(targets, examples, strict=True):
            row[: len(example.tags)] = torch.tensor([self.rows[tag] for tag in example.tags])
        targets = to_device(targets, emissions.device)
        if self.crf is None:
            return nn.functional.cross_entropy(emissions.flatten(0, 1), targets.flatten(), ignore_index=NO_TAG)
        return -self.crf.log_likelihood(emissions, targets.clamp(min=0), embedded.mask).mean()

    def predict(self, examples: Sequence[TaggedSentence]) -> list[list[str]]:
        """The tags of each sentence."""
        emissions, embedded = self._emissions(examples)
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
    """Tagging as a task (`task.Task`); `spans`: the tags are B-, I- and O."""

    reader: Callable[[str], list[TaggedSentence]]
    spans: bool
    suffixes: tuple[str, ...]
    defaults: Mapping[str, Any] = field(default_factory=dict)

    @property
    def metric(self) -> str:
        """The F1 of spans, or the accuracy of tags."""
        return "f1" if self.spans else "accuracy"

    def read(self, path: str) -> list[TaggedSentence]:
        """The sentences of a file; IOB1 (CoNLL-2003), whose spans may begin with I-, is read as B-/I-/O."""
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
        return Tagger(inputs, fitted["tags"], spans=self.spans, config=config)

    def score(self, examples: Sequence[TaggedSentence], predictions: Sequence[list[str]]) -> dict[str, float]:
        """Of spans or tags."""
        score = metrics.entity_f1 if self.spans else metrics.tag_accuracy
        return score([example.tags for example in examples], predictions)

    def from_text(self, given: Any) -> TaggedSentence:
        """A sentence: see `read_tokens`."""
        return TaggedSentence(read_tokens(given), [])

    def to_json(self, example: TaggedSentence, prediction: list[str]) -> dict[str, Any]:
        """Tokens and tags; spans with their label, their text and their place: tokens[start:end]."""
        result: dict[str, Any] = {"tokens": example.tokens, "tags": prediction}
        if self.spans:
            result["spans"] = [
                {"label": label, "start": start, "end": end, "text": " ".join(example.tokens[start:end])}
                for label, start, end in spans_of(prediction)
            ]
        return result


def to_bio(tags: Sequence[str]) -> list[str]:
    """IOB1 or B-/I-/O -> B-/I-/O: an I- that goes on with nothing begins a span."""
    before = ["O", *tags]
    return [
        f"B-{tag[2:]}" if tag.startswith("I-") and before[place][2:] != tag[2:] else tag
        for place, tag in enumerate(tags)
    ]


def spans_of(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """B-/I-/O tags -> (label, start, end) of each span, its end behind its last token."""
    spans: list[tuple[str, int, int]] = []
    for place, tag in enumerate(tags):
        if tag.startswith("B-"):
            spans.append((tag[2:], place, place + 1))
        elif tag.startswith("I-"):
            label, start, _ = spans[-1]
            spans[-1] = (label, start, place + 1)
    return spans


def read_entities(path: str) -> list[TaggedSentence]:
    """Two columns (WNUT17, LitBank) or the four of CoNLL-2003."""
    if Path(path).is_file():  # where not, the reader says so
        with (gzip.open if path.endswith(".gz") else open)(path, "rt", encoding="utf-8", errors="replace") as file:
            lines = (line.split() for line in file if not line.startswith("-DOCSTART-"))
            if len(next(filter(None, lines), [])) == 4:
                return readers.read_conll2003(path)
    return readers.read_bio(path)


NER = Tagging(read_entities, spans=True, suffixes=(".conll", ".bio", ".txt"))
CHUNKING = Tagging(readers.read_conll2000, spans=True, suffixes=(".txt",))
POS = Tagging(readers.read_conllu, spans=False, suffixes=(".conllu",))
