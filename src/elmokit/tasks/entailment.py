"""The relation of two sentences: entailment, neutral or contradiction (SNLI, MultiNLI, SICK).

Input: pairs of a premise and a hypothesis with a label. Output: a label and the probability of each. The network is
ESIM (Chen et al., 2017), which the paper uses: encode both sentences, attend from each to the other, compare each token
with what it attends to, and compose the comparisons into one vector per sentence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from elmokit.datasets import read_entailment
from elmokit.tasks import metrics
from elmokit.tasks.batches import on_device
from elmokit.tasks.inputs import Collected, Embedded, Inputs
from elmokit.tasks.layers import BiLSTM, LockedDropout, masked_max, masked_mean, masked_softmax
from elmokit.tasks.settings import TaskConfig
from elmokit.tasks.texts import read_tokens
from elmokit.text import TREEBANK, Tokenizer

EXPECTED = 'a premise and a hypothesis as {"premise": …, "hypothesis": …}, or as text with a tab between them'


@dataclass(frozen=True, slots=True)
class TokenPair:
    """Two sentences in tokens and their label; "" where it is unknown."""

    premise: list[str]
    hypothesis: list[str]
    label: str


@dataclass(frozen=True)
class PairBatch:
    """What the host collects of B pairs to train on."""

    sentences: Collected
    """2B rows: all premises, then all hypotheses."""
    labels: Tensor
    """(B,): the indices of the labels."""


class ESIM(nn.Module):
    """x_k -> biLSTM -> attention across -> comparison -> biLSTM -> pools of both -> a score for each label.

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
        self.encoder = BiLSTM(inputs.input_dim, hidden_dim, num_layers=num_layers, dropout=dropout)
        encoded_dim = self.encoder.output_dim + inputs.output_dim
        self.compare = nn.Sequential(nn.Linear(4 * encoded_dim, hidden_dim), nn.ReLU(), LockedDropout(dropout))
        self.composer = BiLSTM(hidden_dim, hidden_dim)
        self.classify = nn.Sequential(
            nn.Dropout(dropout),
            nn.Linear(4 * self.composer.output_dim, hidden_dim),
            nn.Tanh(),
            nn.Dropout(dropout),
            nn.Linear(hidden_dim, len(self.labels)),
        )

    def _logits(self, both: Embedded) -> Tensor:
        mask, half = both.mask, len(both.mask) // 2
        encoded = torch.cat([self.encoder(both.x, mask), both.output], dim=-1)  # (2B, T, E)
        other, other_mask = encoded.roll(half, dims=0), mask.roll(half, dims=0)  # each row's partner
        weights = masked_softmax(encoded @ other.transpose(1, 2), other_mask.unsqueeze(1))  # (2B, T, T)
        attended = weights @ other  # (2B, T, E): what a token attends to in the other sentence
        pieces = [encoded, attended, encoded - attended, encoded * attended]
        compared = self.compare(torch.cat(pieces, dim=-1))  # (2B, T, H)
        composed = self.composer(compared, mask)  # (2B, T, 2H)
        pooled = torch.cat([masked_mean(composed, mask), masked_max(composed, mask)], dim=-1)  # (2B, 4H)
        logits: Tensor = self.classify(torch.cat([pooled[:half], pooled[half:]], dim=-1))  # (B, labels)
        return logits

    def loss(self, examples: Sequence[TokenPair]) -> Tensor:
        """The mean cross-entropy."""
        return self.loss_of(on_device(self.collect(examples), self.inputs.device))

    def collect(self, examples: Sequence[TokenPair], *, rounded: bool = False) -> PairBatch:
        """See `HasBatches`."""
        sentences = self.inputs.collect(_both(examples), rounded=rounded)
        return PairBatch(sentences, torch.tensor([self.rows[example.label] for example in examples]))

    def loss_of(self, batch: PairBatch) -> Tensor:
        """See `HasBatches`."""
        return nn.functional.cross_entropy(self._logits(self.inputs.embed(batch.sentences)), batch.labels)

    def predict(self, examples: Sequence[TokenPair]) -> list[dict[str, float]]:
        """The probability of each label."""
        logits = self._logits(self.inputs(_both(examples)))
        return [dict(zip(self.labels, row, strict=True)) for row in logits.softmax(dim=-1).tolist()]


def _both(pairs: Sequence[TokenPair]) -> list[list[str]]:
    """All premises, then all hypotheses."""
    return [pair.premise for pair in pairs] + [pair.hypothesis for pair in pairs]


@dataclass(frozen=True)
class Entailment:
    """Entailment as a task (`task.Task`)."""

    metric: str = "accuracy"
    suffixes: tuple[str, ...] = (".jsonl", ".txt", ".tsv")
    requirements: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def read(self, path: str, tokenizer: Tokenizer = TREEBANK) -> list[TokenPair]:
        """Read SNLI or MultiNLI (.jsonl, or the published table), or SICK's table."""
        return [
            TokenPair(tokenizer(pair.premise), tokenizer(pair.hypothesis), pair.label) for pair in read_entailment(path)
        ]

    def sentences(self, example: TokenPair) -> list[list[str]]:
        """Premise and hypothesis."""
        return [example.premise, example.hypothesis]

    def fit(self, examples: Sequence[TokenPair]) -> dict[str, Any]:
        """The labels."""
        return {"labels": sorted({example.label for example in examples})}

    def build(self, config: TaskConfig, fitted: dict[str, Any], inputs: Inputs) -> ESIM:
        """The network."""
        return ESIM(
            inputs,
            fitted["labels"],
            hidden_dim=config.hidden_dim,
            num_layers=config.num_layers,
            dropout=config.dropout,
        )

    def score(self, examples: Sequence[TokenPair], predictions: Sequence[dict[str, float]]) -> dict[str, float]:
        """Accuracy and macro F1."""
        return metrics.accuracy([example.label for example in examples], list(map(metrics.likeliest, predictions)))

    def from_text(self, text: Any, tokenizer: Tokenizer = TREEBANK) -> TokenPair:
        """A mapping of premise and hypothesis, each a string or tokens; or a string with a tab between them."""
        if isinstance(text, str) and text.count("\t") == (1 if text else 0):
            premise, _, hypothesis = text.partition("\t")
            return TokenPair(tokenizer(premise), tokenizer(hypothesis), "")
        if isinstance(text, Mapping) and set(text) == {"premise", "hypothesis"}:
            return TokenPair(read_tokens(text["premise"], tokenizer), read_tokens(text["hypothesis"], tokenizer), "")
        raise ValueError(f"{text!r:.100}: expected {EXPECTED}")

    def to_json(self, example: TokenPair, prediction: dict[str, float]) -> dict[str, Any]:
        """The tokens of both, the label with the highest probability, and the probability of each."""
        return {
            "premise": example.premise,
            "hypothesis": example.hypothesis,
            "label": metrics.likeliest(prediction),
            "probabilities": prediction,
        }


ENTAILMENT = Entailment(defaults={"dropout": 0.2})
