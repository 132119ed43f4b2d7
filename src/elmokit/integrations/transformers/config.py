"""The configuration: the sizes of a biLM, as in elmokit's own config.json, and what transformers adds."""

# transformers calls itself typed, and leaves many of its functions without types
# mypy: disable-error-code="no-untyped-call, untyped-decorator, override"

from __future__ import annotations

from typing import Any

from transformers import PreTrainedConfig

from elmokit.config import BiLMConfig
from elmokit.settings import from_mapping, to_mapping
from elmokit.text import NUM_CHARACTERS, TokenizerName


class ElmokitConfig(PreTrainedConfig):
    """The sizes of a biLM under `bilm`, as in elmokit's own config.json, and what transformers adds."""

    model_type = "elmokit"

    bilm: Any = None
    """The fields of a `BiLMConfig`, or a `BiLMConfig`; None is the published "original"."""
    word_tokenizer: TokenizerName = "treebank"
    """How text is cut into words, see `ELMo.tokenizer`."""
    classifier_dropout: float = 0.5
    """Dropout of the mixed vectors that a head reads, in training."""
    pad_token_id: int | None = 0

    def __post_init__(self, **others: Any) -> None:
        """Check the sizes; `others` are the values of transformers."""
        if "format" in others:
            raise ValueError(
                "this folder was written by ELMo.save_pretrained, which may round weights as transformers does "
                "not read them: use ElmokitModel.from_elmo(ELMo.from_pretrained(folder))"
            )
        self.bilm = to_mapping(self.bilm if isinstance(self.bilm, BiLMConfig) else self.bilm_config)
        if self.bilm["num_words"] is not None or self.bilm.get("num_lexicon_characters") is not None:
            raise ValueError(
                "this integration is for models that read the bytes of a word: "
                "use a model with a vocabulary or lexicon of its own through elmokit.ELMo"
            )
        super().__post_init__(**others)

    @property
    def bilm_config(self) -> BiLMConfig:
        """The sizes of the network."""
        return from_mapping(BiLMConfig, self.bilm or {}, source="ElmokitConfig.bilm")

    @property
    def hidden_size(self) -> int:
        """Width of a token's vector in any layer: 2P."""
        return 2 * int(self.bilm["projection_dim"])

    @property
    def num_hidden_layers(self) -> int:
        """Number of LSTM layers; `hidden_states` has one more, the context-free layer 0."""
        return int(self.bilm["num_layers"])

    @property
    def vocab_size(self) -> int:
        """Number of character ids, with the padding of sentences."""
        return NUM_CHARACTERS + 1
