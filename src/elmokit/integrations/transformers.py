"""ELMo inside Hugging Face transformers: configuration, tokenizer, model and two heads, known to the Auto classes.

Enters: text, which the tokenizer turns into character ids (B, T, 50) and an attention mask (B, T); a folder that
`save_pretrained` wrote, or an `ELMo`.  Leaves: `last_hidden_state` (B, T, 2P), the top layer, and on demand
`hidden_states`, all L+1 layers, layer 0 the context-free one; logits and a loss from the heads, which weigh the layers
by a mix of their own.

Importing this module registers the classes: `AutoConfig`, `AutoTokenizer`, `AutoModel`,
`AutoModelForTokenClassification` and `AutoModelForSequenceClassification` then know `model_type: "elmokit"`.
"""

# transformers calls itself typed, and leaves many of its functions without types
# mypy: disable-error-code="no-untyped-call, untyped-decorator, override"

from __future__ import annotations

import copy
import reprlib
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from elmokit.config import BiLMConfig
from elmokit.model import ELMo
from elmokit.network import BiLM, BiLMOutput, ScalarMix
from elmokit.settings import from_mapping, to_mapping
from elmokit.text import (
    EOW,
    MAX_CHARACTERS,
    NUM_CHARACTERS,
    PAD,
    as_list,
    as_tokens,
    tokenize,
    tokenize_with_offsets,
    words_to_ids,
)

try:
    from transformers import (
        AutoConfig,
        AutoModel,
        AutoModelForSequenceClassification,
        AutoModelForTokenClassification,
        AutoTokenizer,
        BatchEncoding,
        PreTrainedConfig,
        PreTrainedModel,
        PreTrainedTokenizer,
        initialization,
    )
    from transformers.modeling_outputs import BaseModelOutput, SequenceClassifierOutput, TokenClassifierOutput
    from transformers.tokenization_utils_base import TruncationStrategy
    from transformers.utils.generic import PaddingStrategy, can_return_tuple
except ImportError as error:
    raise ImportError(f'{__name__} needs transformers 5: pip install "elmokit[transformers]"') from error

__all__ = [
    "ElmokitConfig",
    "ElmokitForSequenceClassification",
    "ElmokitForTokenClassification",
    "ElmokitModel",
    "ElmokitTokenizer",
]


class ElmokitConfig(PreTrainedConfig):
    """The sizes of a biLM under `bilm`, as in elmokit's own config.json, beside what transformers keeps."""

    model_type = "elmokit"

    bilm: Any = None
    """The fields of a `BiLMConfig`, or a `BiLMConfig`; None: the published "original"."""
    classifier_dropout: float = 0.5
    """Of the mixed vectors that a head reads, while it trains."""
    pad_token_id: int | None = 0

    def __post_init__(self, **others: Any) -> None:
        """Check the sizes; `others` are the values that transformers keeps."""
        if "format" in others:
            raise ValueError(
                "this folder was written by ELMo.save_pretrained, which may round weights in ways that transformers "
                "does not read: use ElmokitModel.from_elmo(ELMo.from_pretrained(folder))"
            )
        self.bilm = to_mapping(self.bilm if isinstance(self.bilm, BiLMConfig) else self.bilm_config)
        if self.bilm["num_words"] is not None or self.bilm.get("num_lexicon_characters") is not None:
            raise ValueError(
                "transformers is given models that read the bytes of a word: "
                "use a model with a vocabulary or lexicon of its own through elmokit.ELMo"
            )
        super().__post_init__(**others)

    @property
    def bilm_config(self) -> BiLMConfig:
        """The sizes as the network wants them."""
        return from_mapping(BiLMConfig, self.bilm or {}, source="ElmokitConfig.bilm")

    @property
    def hidden_size(self) -> int:
        """Width of a token's vector in any layer: 2P."""
        return 2 * int(self.bilm["projection_dim"])

    @property
    def num_hidden_layers(self) -> int:
        """LSTM layers; `hidden_states` has one more, the context-free layer 0."""
        return int(self.bilm["num_layers"])

    @property
    def vocab_size(self) -> int:
        """Character ids, the padding of sentences among them."""
        return NUM_CHARACTERS + 1


class ElmokitTokenizer(PreTrainedTokenizer):
    """Text -> words by the Penn Treebank rules -> `input_ids`, one row of 50 character ids for each word.

    One word is one token, with `is_split_into_words` as without, so labels of words need no alignment.  No special
    tokens are added: the sentence boundaries are the model's business.  Padding is rows of zeros on the right.
    """

    model_input_names = ["input_ids", "attention_mask"]  # noqa: RUF012 (as transformers has it)
    padding_side = "right"

    def __init__(self, max_characters: int = MAX_CHARACTERS, pad_token: str = "<pad>", **settings: Any) -> None:
        self.max_characters = max_characters
        # the vocabulary is one of characters: the padding, bytes, and the marks of sentences and words
        names = [chr(byte) for byte in range(256)] + ["<bos>", "<eos>", "<bow>", "<eow>", "<pad character>"]
        self._characters = {str(pad_token): 0} | {name: place for place, name in enumerate(names, 1)}
        super().__init__(max_characters=max_characters, pad_token=pad_token, **settings)

    @classmethod
    def from_elmo(cls, elmo: ELMo) -> Self:
        """The tokenizer whose ids the model reads."""
        return cls(max_characters=elmo.config.max_characters)

    @property
    def vocab_size(self) -> int:
        """Character ids, the padding of sentences among them."""
        return len(self._characters)

    def get_vocab(self) -> dict[str, int]:
        """The names of the character ids; bytes are written as the characters of Latin-1."""
        return dict(self._characters)

    def tokenize(self, text: str, **unused: Any) -> list[str]:
        """The words of a text."""
        return tokenize(text)

    def _convert_token_to_id(self, token: str) -> list[int]:
        return self._rows([token])[0].tolist()  # type: ignore[no-any-return]

    def _rows(self, words: Sequence[str]) -> np.ndarray[Any, np.dtype[np.int64]]:
        return words_to_ids(words, max_characters=self.max_characters).astype(np.int64) + 1

    def _encode_plus(
        self,
        text: Any,
        text_pair: Any = None,
        *,
        padding_strategy: PaddingStrategy = PaddingStrategy.DO_NOT_PAD,
        truncation_strategy: TruncationStrategy = TruncationStrategy.DO_NOT_TRUNCATE,
        max_length: int | None = None,
        is_split_into_words: bool = False,
        pad_to_multiple_of: int | None = None,
        padding_side: str | None = None,
        return_tensors: Any = None,
        return_attention_mask: bool | None = None,
        return_overflowing_tokens: bool = False,
        return_special_tokens_mask: bool = False,
        return_offsets_mapping: bool = False,
        return_length: bool = False,
        **unused: Any,
    ) -> BatchEncoding:
        """What a call of the tokenizer does; `unused` are settings of transformers that change nothing here."""
        if text_pair is not None or return_overflowing_tokens:
            asked = "text_pair" if text_pair is not None else "return_overflowing_tokens"
            raise ValueError(f"ELMo reads one sentence at a time, so {asked} has no meaning here: leave it out")
        # a list of words is one sentence where the caller says so, and any other list is a batch
        items = [text] if isinstance(text, str) else as_list(text)
        is_one = isinstance(text, str) or (is_split_into_words and all(isinstance(item, str) for item in items))
        sentences = [text] if is_one else items
        encoded: dict[str, list[Any]] = {"input_ids": []}
        for sentence in sentences:
            if is_split_into_words == isinstance(sentence, str):
                raise ValueError(
                    f"is_split_into_words is {is_split_into_words}, and a sentence is {reprlib.repr(sentence)}: "
                    "lists of words go with True, strings with False"
                )
            if is_split_into_words:  # as with the fast tokenizers, each word is a text of its own
                tokens = [(word, 0, len(word)) for word in as_tokens([sentence])[0]]
            else:
                tokens = [(token.text, token.start, token.end) for token in tokenize_with_offsets(sentence)]
            if truncation_strategy != TruncationStrategy.DO_NOT_TRUNCATE and max_length is not None:
                begin = max(0, len(tokens) - max_length) if self.truncation_side == "left" else 0
                tokens = tokens[begin : begin + max_length]
            encoded["input_ids"].append(self._rows([word for word, _, _ in tokens]).tolist())
            if return_offsets_mapping:
                encoded.setdefault("offset_mapping", []).append([(start, end) for _, start, end in tokens])
            if return_special_tokens_mask:
                encoded.setdefault("special_tokens_mask", []).append([0] * len(tokens))
            if return_length:
                encoded.setdefault("length", []).append(len(tokens))
        padded = self.pad(
            encoded,
            padding=padding_strategy.value,
            max_length=max_length,
            pad_to_multiple_of=pad_to_multiple_of,
            padding_side=padding_side,
            return_attention_mask=return_attention_mask,
        )
        if return_tensors is not None:
            shape = (-1, self.max_characters)  # which a sentence without words would lose
            padded["input_ids"] = [np.array(rows, dtype=np.int64).reshape(shape) for rows in padded["input_ids"]]
        elif is_one:
            padded = BatchEncoding({name: values[0] for name, values in padded.items()})
        return BatchEncoding(dict(padded), tensor_type=return_tensors)

    def _pad(
        self,
        encoded_inputs: Any,
        max_length: int | None = None,
        padding_strategy: PaddingStrategy = PaddingStrategy.DO_NOT_PAD,
        pad_to_multiple_of: int | None = None,
        padding_side: str | None = None,
        return_attention_mask: bool | None = None,
    ) -> dict[str, Any]:
        """Pad one sentence: transformers appends the id 0, which becomes a row of zeros here."""
        if (padding_side or self.padding_side) != "right":
            raise ValueError("padding_side must be 'right': both directions of the model start at a sentence's own end")
        encoded: dict[str, Any] = super()._pad(
            encoded_inputs,
            max_length=max_length,
            padding_strategy=padding_strategy,
            pad_to_multiple_of=pad_to_multiple_of,
            padding_side=padding_side,
            return_attention_mask=return_attention_mask,
        )
        blank = [0] * self.max_characters
        encoded["input_ids"] = [list(blank) if row == 0 else row for row in encoded["input_ids"]]
        if "offset_mapping" in encoded:
            missing = len(encoded["input_ids"]) - len(encoded["offset_mapping"])
            encoded["offset_mapping"] = [*encoded["offset_mapping"], *[(0, 0)] * missing]
        return encoded

    def convert_ids_to_tokens(self, ids: Any, skip_special_tokens: bool = False) -> Any:
        """Rows of character ids -> words, as far as their 48 bytes reach; one row -> one word."""
        rows = np.asarray(ids)
        if rows.ndim == 1 and len(rows):
            return self._spell(rows)
        words = [self._spell(row) for row in rows]
        return [word for word in words if not (skip_special_tokens and word == self.pad_token)]

    def _spell(self, row: np.ndarray[Any, Any]) -> str:
        if not row.any():
            return str(self.pad_token)
        inside = [int(identity) for identity in row[1:] if identity not in (EOW + 1, PAD + 1)]
        if any(identity > 256 for identity in inside):  # a boundary of sentences
            names = list(self._characters)
            return "".join(names[identity] for identity in inside)
        return bytes(identity - 1 for identity in inside).decode(errors="replace")

    def decode(self, token_ids: Any, skip_special_tokens: bool = False, **unused: Any) -> Any:
        """One sentence (T, 50) -> its words with spaces between them; a batch (B, T, 50) -> a list of such."""
        rows = np.asarray(token_ids)
        if rows.ndim == 3:
            return [self.decode(sentence, skip_special_tokens) for sentence in rows]
        return " ".join(self.convert_ids_to_tokens(rows, skip_special_tokens))


class ElmokitPreTrainedModel(PreTrainedModel):
    """What the model and its heads share: how weights begin, and the way from and to an `ELMo`."""

    config_class = ElmokitConfig
    base_model_prefix = "elmokit"
    main_input_name = "input_ids"

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        # transformers comes by its modules children first, so a BiLM has the last word on what is inside it
        if isinstance(module, BiLM):
            if not all(getattr(parameter, "_is_hf_initialized", False) for parameter in module.parameters()):
                fresh = BiLM(module.config)
                for name, parameter in module.named_parameters():
                    initialization.copy_(parameter, fresh.get_parameter(name))
            # the ids of the boundary tokens are in no file: this makes them again
            module.load_weights(module.state_dict(keep_vars=True))
        elif isinstance(module, ScalarMix):
            initialization.zeros_(module.weights)
            initialization.ones_(module.gamma)
        else:
            super()._init_weights(module)

    @classmethod
    def from_elmo(cls, elmo: ELMo, **settings: Any) -> Self:
        """A copy of the ELMo's biLM; a head begins anew.  `settings` are of the configuration: num_labels=3.

        The ELMo's mixes and output layer stay behind.
        """
        if elmo.bilm.is_int8:
            raise ValueError("this ELMo's weights were rounded to int8: load it without quantize")
        model = cls(ElmokitConfig(bilm=elmo.config, **settings))
        model._bilm.load_state_dict(elmo.bilm.state_dict())
        nn.Module.to(model, device=elmo.device, dtype=next(elmo.bilm.parameters()).dtype)
        model.eval()
        return model

    def to_elmo(self) -> ELMo:
        """An `ELMo` with a copy of the biLM, frozen, and of a head's mix; it saves, exports and embeds as any other."""
        elmo = ELMo(copy.deepcopy(self._bilm)).to(device=self.device, dtype=self.dtype)
        if isinstance(mix := getattr(self, "mix", None), ScalarMix):
            elmo.mixes[0].load_state_dict(mix.state_dict())
        return elmo.eval()

    @property
    def _bilm(self) -> BiLM:
        bilm = self.base_model.bilm
        assert isinstance(bilm, BiLM)
        return bilm


class ElmokitModel(ElmokitPreTrainedModel):
    """A biLM whose layers come out as hidden states."""

    def __init__(self, config: ElmokitConfig) -> None:
        super().__init__(config)
        self.bilm = BiLM(config.bilm_config)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        output_hidden_states: bool | None = None,
    ) -> BaseModelOutput:
        """input_ids (B, T, 50), attention_mask (B, T) -> last_hidden_state (B, T, 2P); zeros where padding stands."""
        layers = self.run(input_ids, attention_mask).layers  # (L+1, B, T, 2P)
        return BaseModelOutput(
            last_hidden_state=layers[-1],  # type: ignore[arg-type]
            hidden_states=self.listed(layers, output_hidden_states),
        )

    def run(self, input_ids: Tensor, attention_mask: Tensor | None) -> BiLMOutput:
        """The biLM's own output; what the attention mask hides is padding, and stands at the end of a row."""
        if input_ids.numel() == 0:  # a batch of sentences without words has lost its last axis in a list
            input_ids = input_ids.reshape(len(input_ids), -1, self.bilm.config.max_characters)
        if attention_mask is not None:
            if attention_mask.shape != input_ids.shape[:2]:
                raise ValueError(
                    f"attention_mask is {tuple(attention_mask.shape)}, input_ids {tuple(input_ids.shape)}: "
                    "the mask has one number for each token"
                )
            input_ids = input_ids * (attention_mask != 0).unsqueeze(-1)
        output: BiLMOutput = self.bilm(input_ids)
        return output

    def listed(self, layers: Tensor, output_hidden_states: bool | None) -> Any:
        """The layers as transformers wants them, where the caller or the configuration asks for them."""
        wanted = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        return layers.unbind() if wanted else None


class _ElmokitHead(ElmokitPreTrainedModel):
    """A mix of the layers, as in the paper, with dropout and a linear layer behind it."""

    def __init__(self, config: ElmokitConfig) -> None:
        super().__init__(config)
        self.elmokit = ElmokitModel(config)
        self.mix = ScalarMix(config.num_hidden_layers + 1)
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.classifier = nn.Linear(config.hidden_size, len(config.id2label or ()))
        self.post_init()


class ElmokitForTokenClassification(_ElmokitHead):
    """A label for each word."""

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool | None = None,
    ) -> TokenClassifierOutput:
        """labels (B, T), -100 where there is none -> loss; logits (B, T, num_labels)."""
        output = self.elmokit.run(input_ids, attention_mask)
        mixed = self.mix(output.layers, output.mask)  # (B, T, 2P)
        logits = self.classifier(self.dropout(mixed))  # (B, T, num_labels)
        return TokenClassifierOutput(
            loss=None if labels is None else self.loss_function(logits, labels, self.config),
            logits=logits,
            hidden_states=self.elmokit.listed(output.layers, output_hidden_states),
        )


class ElmokitForSequenceClassification(_ElmokitHead):
    """A label for each sentence, from the mean over its words."""

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool | None = None,
    ) -> SequenceClassifierOutput:
        """labels (B,), or what `problem_type` asks for -> loss; logits (B, num_labels)."""
        output = self.elmokit.run(input_ids, attention_mask)
        mixed = self.mix(output.layers, output.mask)  # (B, T, 2P), zeros where padding stands
        means = mixed.sum(dim=1) / output.mask.sum(dim=1, keepdim=True).clamp(min=1)  # (B, 2P)
        logits = self.classifier(self.dropout(means))  # (B, num_labels)
        return SequenceClassifierOutput(
            loss=None if labels is None else self.loss_function(labels, logits, self.config),
            logits=logits,
            hidden_states=self.elmokit.listed(output.layers, output_hidden_states),
        )


AutoConfig.register(ElmokitConfig.model_type, ElmokitConfig)
AutoTokenizer.register(ElmokitConfig, ElmokitTokenizer)
AutoModel.register(ElmokitConfig, ElmokitModel)
AutoModelForTokenClassification.register(ElmokitConfig, ElmokitForTokenClassification)
AutoModelForSequenceClassification.register(ElmokitConfig, ElmokitForSequenceClassification)
