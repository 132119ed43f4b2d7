"""ELMo inside Hugging Face transformers: configuration, tokenizer, model and two heads, known to the Auto classes.

Input: text, which the tokenizer turns into character ids (B, T, 50) and an attention mask (B, T); a folder that
`save_pretrained` wrote, or an `ELMo`. Output: `last_hidden_state` (B, T, 2P), the top layer, and on demand
`hidden_states`, all L+1 layers, layer 0 the context-free one; logits and a loss from the heads, which weight the layers
by a mix of their own.

    config.py     `ElmokitConfig`
    tokenizer.py  `ElmokitTokenizer`
    model.py      `ElmokitModel` and the heads

Importing this package registers the classes: `AutoConfig`, `AutoTokenizer`, `AutoModel`,
`AutoModelForTokenClassification` and `AutoModelForSequenceClassification` then know `model_type: "elmokit"`.
"""

# ruff: noqa: E402 (a missing host is reported before anything imports it)
# mypy: disable-error-code="no-untyped-call"

from elmokit.extras import require

require("transformers", extra="transformers")

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
)

from elmokit.integrations.transformers.config import ElmokitConfig
from elmokit.integrations.transformers.model import (
    ElmokitForSequenceClassification,
    ElmokitForTokenClassification,
    ElmokitModel,
)
from elmokit.integrations.transformers.tokenizer import ElmokitTokenizer

__all__ = [
    "ElmokitConfig",
    "ElmokitForSequenceClassification",
    "ElmokitForTokenClassification",
    "ElmokitModel",
    "ElmokitTokenizer",
]

AutoConfig.register(ElmokitConfig.model_type, ElmokitConfig)
AutoTokenizer.register(ElmokitConfig, ElmokitTokenizer)
AutoModel.register(ElmokitConfig, ElmokitModel)
AutoModelForTokenClassification.register(ElmokitConfig, ElmokitForTokenClassification)
AutoModelForSequenceClassification.register(ElmokitConfig, ElmokitForSequenceClassification)
