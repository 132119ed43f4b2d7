"""What one sentence says of another: entailment, neutral or contradiction (SNLI, MultiNLI, SICK).

Enters: pairs of a premise and a hypothesis with a label.  Leaves: a label and the probability of each.  The network is
ESIM (Chen et al., 2017), which the paper uses: encode both sentences, attend from each to the other, compare what was
met, and compose that into one vector of each sentence.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from elmokit import datasets as readers
from elmokit.network import to_device
from elmokit.tasks import metrics
from elmokit.tasks.inputs import Inputs, read_tokens
from elmokit.tasks.layers import BiLSTM, LockedDropout, masked_max, masked_mean, masked_softmax
from elmokit.tasks.settings import TaskConfig
from elmokit.text import tokenize

SICK_COLUMN = "entailment_judgment"
EXPECTED = 'a premise and a hypothesis as {"premise": …, "hypothesis": …}, or as text with a tab between them'


@dataclass(frozen=True, slots=True)
class TokenPair:
    """Two sentences in tokens and what the first says of the second; "" where nobody has said it."""

    premise: list[str]
    hypothesis: list[str]
    label: str


class ESIM(nn.Module):
    """x_k -> biLSTM -> attention across -> comparison -> biLSTM -> pools of both -> a score for each label."""

    def __init__(self, inputs: Inputs, labels: Sequence[str], *, config: TaskConfig) -> None:
        super().__init__()
        self.inputs, self.labels = inputs, list(labels)
        self.rows = {label: row for row, label in enumerate(self.labels)}
        hidden_dim, dropout = config.hidden_dim, config.dropout
        self.encoder = BiLSTM(inputs.input_dim, hidden_dim, num_layers=config.num_layers, dropout=dropout)
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

    def _logits(self, pairs: Sequence[TokenPair]) -> Tensor:
        both = self.inputs([pair.premise for pair in pairs] + [pair.hypothesis for pair in pairs])  # premises first
        mask, half = both.mask, len(pairs)
        encoded = torch.cat([self.encoder(both.x, mask), both.output], dim=-1)  # (2B, T, E)
        other, other_mask = encoded.roll(half, dims=0), mask.roll(half, dims=0)  # each row's partner
        weights = masked_softmax(encoded @ other.transpose(1, 2), other_mask.unsqueeze(1))  # (2B, T, T)
        met = weights @ other  # (2B, T, E): what a token finds of itself in the other sentence
        compared = self.compare(torch.cat([encoded, met, encoded - met, encoded * met], dim=-1))  # (2B, T, H)
        composed = self.composer(compared, mask)  # (2B, T, 2H)
        pooled = torch.cat([masked_mean(composed, mask), masked_max(composed, mask)], dim=-1)  # (2B, 4H)
        logits: Tensor = self.classify(torch.cat([pooled[:half], pooled[half:]], dim=-1))  # (B, labels)
        return logits

    def loss(self, examples: Sequence[TokenPair]) -> Tensor:
        """The mean cross-entropy."""
        logits = self._logits(examples)
        targets = torch.tensor([self.rows[example.label] for example in examples])
        return nn.functional.cross_entropy(logits, to_device(targets, logits.device))

    def predict(self, examples: Sequence[TokenPair]) -> list[dict[str, float]]:
        """The probability of each label."""
        return [dict(zip(self.labels, row, strict=True)) for row in self._logits(examples).softmax(dim=-1).tolist()]


@dataclass(frozen=True)
class Entailment:
    """Entailment as a task (`task.Task`)."""

    metric: str = "accuracy"
    suffixes: tuple[str, ...] = (".jsonl", ".txt", ".tsv")
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def read(self, path: str) -> list[TokenPair]:
        """SNLI and MultiNLI (.jsonl, or the published table), or SICK's table, which its first line tells apart."""
        read = readers.read_sick if SICK_COLUMN in _first_line(path).split("\t") else readers.read_snli
        return [TokenPair(tokenize(pair.premise), tokenize(pair.hypothesis), pair.label) for pair in read(path)]

    def sentences(self, example: TokenPair) -> list[list[str]]:
        """Both."""
        return [example.premise, example.hypothesis]

    def fit(self, examples: Sequence[TokenPair]) -> dict[str, Any]:
        """The labels."""
        return {"labels": sorted({example.label for example in examples})}

    def build(self, config: TaskConfig, fitted: dict[str, Any], inputs: Inputs) -> ESIM:
        """The network."""
        return ESIM(inputs, fitted["labels"], config=config)

    def score(self, examples: Sequence[TokenPair], predictions: Sequence[dict[str, float]]) -> dict[str, float]:
        """Accuracy, and the mean F1 of the labels."""
        return metrics.accuracy([example.label for example in examples], list(map(metrics.likeliest, predictions)))

    def from_text(self, given: Any) -> TokenPair:
        """A mapping of premise and hypothesis, each as text or tokens; or text with a tab between them."""
        if isinstance(given, str) and given.count("\t") == (1 if given else 0):
            premise, _, hypothesis = given.partition("\t")
            return TokenPair(tokenize(premise), tokenize(hypothesis), "")
        if isinstance(given, Mapping) and set(given) == {"premise", "hypothesis"}:
            return TokenPair(read_tokens(given["premise"]), read_tokens(given["hypothesis"]), "")
        raise ValueError(f"{given!r:.100}: expected {EXPECTED}")

    def to_json(self, example: TokenPair, prediction: dict[str, float]) -> dict[str, Any]:
        """The tokens of both, the likeliest label, and the probability of each."""
        return {
            "premise": example.premise,
            "hypothesis": example.hypothesis,
            "label": metrics.likeliest(prediction),
            "probabilities": prediction,
        }


def _first_line(path: str) -> str:
    """The first line of a file, "" where it cannot be read: its reader then says why."""
    try:
        with (gzip.open if path.endswith(".gz") else open)(path, "rt", encoding="utf-8-sig", errors="replace") as file:
            return file.readline().rstrip("\r\n")
    except (OSError, EOFError, zlib.error):
        return ""


ENTAILMENT = Entailment(defaults={"dropout": 0.2})
