"""A label for a sentence: sentiment in five classes (SST-5) or two (SST-2), and any other table of labels and texts.

Enters: sentences with a label.  Leaves: a label and the probability of each.  The network is the biattentive classifier
of McCann et al. (2017), which the paper uses, in small: a biLSTM, attention of the sentence on itself, a second biLSTM
over what it found, four pools, and maxout layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from elmokit import datasets as readers
from elmokit.datasets import LabelledText
from elmokit.network import to_device
from elmokit.tasks import metrics
from elmokit.tasks.inputs import Inputs, read_tokens
from elmokit.tasks.layers import AttentionPool, BiLSTM, masked_max, masked_mean, masked_softmax
from elmokit.tasks.settings import TaskConfig

MAXOUT_PIECES = 4


class BiattentiveClassifier(nn.Module):
    """x_k -> biLSTM -> attention on itself -> biLSTM -> pools -> a score for each label."""

    def __init__(self, inputs: Inputs, labels: Sequence[str], *, config: TaskConfig) -> None:
        super().__init__()
        self.inputs, self.labels = inputs, list(labels)
        self.rows = {label: row for row, label in enumerate(self.labels)}
        self.project = nn.Sequential(
            nn.Linear(inputs.input_dim, config.hidden_dim), nn.ReLU(), nn.Dropout(config.dropout)
        )
        self.encoder = BiLSTM(
            config.hidden_dim, config.hidden_dim, num_layers=config.num_layers, dropout=config.dropout
        )
        self.integrator = BiLSTM(3 * self.encoder.output_dim, config.hidden_dim)
        pooled_dim = self.integrator.output_dim + inputs.output_dim
        self.attention = AttentionPool(pooled_dim)
        self.maxouts = nn.ModuleList(
            Maxout(wide, narrow, config.dropout)
            for wide, narrow in ((4 * pooled_dim, config.hidden_dim), (config.hidden_dim, config.hidden_dim // 2 + 1))
        )
        self.scores = nn.Linear(config.hidden_dim // 2 + 1, len(self.labels))

    def _logits(self, examples: Sequence[LabelledText]) -> Tensor:
        embedded = self.inputs([example.tokens for example in examples])
        mask = embedded.mask
        encoded = self.encoder(self.project(embedded.x), mask)  # (B, T, 2H)
        weights = masked_softmax(encoded @ encoded.transpose(1, 2), mask.unsqueeze(1))  # (B, T, T)
        context = weights @ encoded
        integrated = self.integrator(torch.cat([encoded, encoded - context, encoded * context], dim=-1), mask)
        integrated = torch.cat([integrated, embedded.output], dim=-1)
        pools = [masked_max(integrated, mask), -masked_max(-integrated, mask), masked_mean(integrated, mask)]
        x = torch.cat([*pools, self.attention(integrated, mask)], dim=-1)
        for maxout in self.maxouts:
            x = maxout(x)
        logits: Tensor = self.scores(x)  # (B, labels)
        return logits

    def loss(self, examples: Sequence[LabelledText]) -> Tensor:
        """The mean cross-entropy."""
        logits = self._logits(examples)
        targets = torch.tensor([self.rows[example.label] for example in examples])
        return nn.functional.cross_entropy(logits, to_device(targets, logits.device))

    def predict(self, examples: Sequence[LabelledText]) -> list[dict[str, float]]:
        """The probability of each label."""
        return [dict(zip(self.labels, row, strict=True)) for row in self._logits(examples).softmax(dim=-1).tolist()]


class Maxout(nn.Module):
    """Normalized, dropped out, and then the largest of several linear pieces for each output."""

    def __init__(self, input_dim: int, output_dim: int, dropout: float) -> None:
        super().__init__()
        self.normalize, self.dropout = nn.LayerNorm(input_dim), nn.Dropout(dropout)
        self.linear = nn.Linear(input_dim, MAXOUT_PIECES * output_dim)

    def forward(self, x: Tensor) -> Tensor:
        """(B, in) -> (B, out)."""
        pieces: Tensor = self.linear(self.dropout(self.normalize(x)))
        return pieces.view(len(x), -1, MAXOUT_PIECES).amax(dim=2)


@dataclass(frozen=True)
class Classification:
    """Sentences with labels as a task (`task.Task`)."""

    metric: str = "accuracy"
    suffixes: tuple[str, ...] = (".txt", ".tsv")
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def read(self, path: str) -> list[LabelledText]:
        """Trees of the Stanford Sentiment Treebank, or a table (.tsv) of `label` and `text`."""
        if path.removesuffix(".gz").endswith(".tsv"):
            return readers.read_labelled_tsv(path)
        return readers.read_sst_trees(path)

    def phrases(self, examples: Sequence[LabelledText]) -> list[LabelledText]:
        """The labelled phrases inside them: each once with each of its labels, and none that is a sentence too."""
        distinct = {(tuple(one.tokens), one.label): one for example in examples for one in example.phrases}
        whole = {(tuple(example.tokens), example.label) for example in examples}
        return [one for key, one in distinct.items() if key not in whole]

    def sentences(self, example: LabelledText) -> list[list[str]]:
        """The tokens."""
        return [example.tokens]

    def fit(self, examples: Sequence[LabelledText]) -> dict[str, Any]:
        """The labels."""
        return {"labels": sorted({example.label for example in examples})}

    def build(self, config: TaskConfig, fitted: dict[str, Any], inputs: Inputs) -> BiattentiveClassifier:
        """The network."""
        return BiattentiveClassifier(inputs, fitted["labels"], config=config)

    def score(self, examples: Sequence[LabelledText], predictions: Sequence[dict[str, float]]) -> dict[str, float]:
        """Accuracy, and the mean F1 of the labels."""
        return metrics.accuracy([example.label for example in examples], list(map(metrics.likeliest, predictions)))

    def from_text(self, given: Any) -> LabelledText:
        """A sentence: see `read_tokens`."""
        return LabelledText(read_tokens(given), "")

    def to_json(self, example: LabelledText, prediction: dict[str, float]) -> dict[str, Any]:
        """Tokens, the likeliest label, and the probability of each."""
        return {"tokens": example.tokens, "label": metrics.likeliest(prediction), "probabilities": prediction}


SENTIMENT = Classification(
    defaults={"hidden_dim": 100, "dropout": 0.2, "elmo_dropout": 0.3, "epochs": 15, "patience": 4}
)
