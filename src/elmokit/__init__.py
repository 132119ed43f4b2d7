"""elmokit: contextual word vectors from bidirectional language models.

    from elmokit import ELMo

    model = ELMo.from_pretrained()
    model.embed(["The bank lent money ."])      # [array of (5, 2P)]

Names are imported on first use, so that `elmokit --help` does not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elmokit.config import BiLMConfig
    from elmokit.inference.scores import Perplexity, TokenLogProbs
    from elmokit.model import ELMo, ELMoOutput
    from elmokit.network import BiLM, BiLMOutput, BiLMState, ScalarMix
    from elmokit.pretraining import pretrain
    from elmokit.spans import embed_spans
    from elmokit.text import Vocabulary, batch_to_ids, tokenize

__version__ = "0.2.0"

_HOMES = {
    "BiLM": "network",
    "BiLMConfig": "config",
    "BiLMOutput": "network",
    "BiLMState": "network",
    "ELMo": "model",
    "ELMoOutput": "model",
    "Perplexity": "inference.scores",
    "ScalarMix": "network",
    "TokenLogProbs": "inference.scores",
    "Vocabulary": "text",
    "batch_to_ids": "text",
    "embed_spans": "spans",
    "pretrain": "pretraining",
    "tokenize": "text",
}

__all__ = [
    "BiLM",
    "BiLMConfig",
    "BiLMOutput",
    "BiLMState",
    "ELMo",
    "ELMoOutput",
    "Perplexity",
    "ScalarMix",
    "TokenLogProbs",
    "Vocabulary",
    "__version__",
    "batch_to_ids",
    "embed_spans",
    "pretrain",
    "tokenize",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'elmokit' has no attribute {name!r}")
    value = getattr(import_module(f"elmokit.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
