"""One label per sentence: sentiment in five classes (SST-5) or two (SST-2), or any table of labels and texts.

Input: sentences with a label. Output: a label and the probability of each. The network is a small version of the
biattentive classifier of McCann et al. (2017), which the paper uses: a biLSTM, attention of the sentence on itself, a
second biLSTM over both, four pools, and maxout layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from elmokit.datasets import LabelledText, read_labelled_tsv, read_sst_trees
from elmokit.tasks import metrics
from elmokit.tasks.batches import on_device
from elmokit.tasks.inputs import Collected, Embedded, Inputs
from elmokit.tasks.layers import AttentionPool, BiLSTM, masked_max, masked_mean, masked_softmax
from elmokit.tasks.settings import TaskConfig
from elmokit.tasks.texts import read_tokens
from elmokit.text import TREEBANK, Tokenizer

MAXOUT_PIECES = 4


@dataclass(frozen=True)
class LabelledBatch:
    """What the host collects of B sentences to train on."""

    sentences: Collected
    labels: Tensor
    """(B,): the indices of the labels."""


class BiattentiveClassifier(nn.Module):
    """x_k -> biLSTM -> attention on itself -> biLSTM -> pools -> a score for each label.

    Args:
        inputs: The vectors of tokens.
        labels: The labels.
        hidden_dim: Units of each biLSTM per direction.
        num_layers: Layers of the first biLSTM.
        dropout: Dropout of all layers.
    """

    def __init__(
        self, inputs: Inputs, labels: Sequence[str], *, hidden_dim: int, num_layers: int, dropout: float
    ) -> None:
        super().__init__()
        self.inputs, self.labels = inputs, list(labels)
        self.rows = {label: row for row, label in enumerate(self.labels)}
        self.project = nn.Sequential(nn.Linear(inputs.input_dim, hidden_dim), nn.ReLU(), nn.Dropout(dropout))
        self.encoder = BiLSTM(hidden_dim, hidden_dim, num_layers=num_layers, dropout=dropout)
        self.integrator = BiLSTM(3 * self.encoder.output_dim, hidden_dim)
        pooled_dim = self.integrator.output_dim + inputs.output_dim
        self.attention = AttentionPool(pooled_dim)
        self.maxouts = nn.ModuleList(
            Maxout(wide, narrow, dropout)
            for wide, narrow in ((4 * pooled_dim, hidden_dim), (hidden_dim, hidden_dim // 2 + 1))
        )
        self.scores = nn.Linear(hidden_dim // 2 + 1, len(self.labels))

    def _logits(self, embedded: Embedded) -> Tensor:
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
        return self.loss_of(on_device(self.collect(examples), self.inputs.device))

    def collect(self, examples: Sequence[LabelledText], *, rounded: bool = False) -> LabelledBatch:
        """See `HasBatches`."""
        sentences = self.inputs.collect([example.tokens for example in examples], rounded=rounded)
        return LabelledBatch(sentences, torch.tensor([self.rows[example.label] for example in examples]))

    def loss_of(self, batch: LabelledBatch) -> Tensor:
        """See `HasBatches`."""
        return nn.functional.cross_entropy(self._logits(self.inputs.embed(batch.sentences)), batch.labels)

    def predict(self, examples: Sequence[LabelledText]) -> list[dict[str, float]]:
        """The probability of each label."""
        logits = self._logits(self.inputs([example.tokens for example in examples]))
        return [dict(zip(self.labels, row, strict=True)) for row in logits.softmax(dim=-1).tolist()]


class Maxout(nn.Module):
    """Layer norm, dropout, and the maximum of several linear pieces for each output.

    Args:
        input_dim: Width of the input.
        output_dim: Width of the output.
        dropout: Dropout of the input.
    """

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
    requirements: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def read(self, path: str, tokenizer: Tokenizer = TREEBANK) -> list[LabelledText]:
        """Read trees of the Stanford Sentiment Treebank, or a table (.tsv) of `label` and `text`."""
        return read_labelled_tsv(path) if path.removesuffix(".gz").endswith(".tsv") else read_sst_trees(path)

    def phrases(self, examples: Sequence[LabelledText]) -> list[LabelledText]:
        """The labelled phrases inside the examples: each once per label, without those that are an example too."""
        distinct = {(tuple(one.tokens), one.label): one for example in examples for one in example.phrases}
        sentences = {(tuple(example.tokens), example.label) for example in examples}
        return [one for key, one in distinct.items() if key not in sentences]

    def sentences(self, example: LabelledText) -> list[list[str]]:
        """The tokens."""
        return [example.tokens]

    def fit(self, examples: Sequence[LabelledText]) -> dict[str, Any]:
        """The labels."""
        return {"labels": sorted({example.label for example in examples})}

    def build(self, config: TaskConfig, fitted: dict[str, Any], inputs: Inputs) -> BiattentiveClassifier:
        """The network."""
        return BiattentiveClassifier(
            inputs,
            fitted["labels"],
            hidden_dim=config.hidden_dim,
            num_layers=config.num_layers,
            dropout=config.dropout,
        )

    def score(self, examples: Sequence[LabelledText], predictions: Sequence[dict[str, float]]) -> dict[str, float]:
        """Accuracy and macro F1."""
        return metrics.accuracy([example.label for example in examples], list(map(metrics.likeliest, predictions)))

    def from_text(self, text: Any, tokenizer: Tokenizer = TREEBANK) -> LabelledText:
        """A sentence, as `read_tokens` takes it."""
        return LabelledText(read_tokens(text, tokenizer), "")

    def to_json(self, example: LabelledText, prediction: dict[str, float]) -> dict[str, Any]:
        """Tokens, the label with the highest probability, and the probability of each."""
        return {"tokens": example.tokens, "label": metrics.likeliest(prediction), "probabilities": prediction}


SENTIMENT = Classification(
    defaults={"hidden_dim": 100, "dropout": 0.2, "elmo_dropout": 0.3, "epochs": 15, "patience": 4}
)
