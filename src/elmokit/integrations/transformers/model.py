"""The model, whose layers are hidden states, and two heads over a learned mix of them."""

# transformers calls itself typed, and leaves many of its functions without types
# mypy: disable-error-code="no-untyped-call, untyped-decorator, override"

from __future__ import annotations

import copy
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, initialization
from transformers.modeling_outputs import BaseModelOutput, SequenceClassifierOutput, TokenClassifierOutput
from transformers.utils.generic import can_return_tuple

from elmokit.integrations.transformers.config import ElmokitConfig
from elmokit.model import ELMo
from elmokit.network import BiLM, BiLMOutput, ScalarMix


class ElmokitPreTrainedModel(PreTrainedModel):
    """What the model and its heads share: initial weights, and the conversion from and to an `ELMo`."""

    config_class = ElmokitConfig
    base_model_prefix = "elmokit"
    main_input_name = "input_ids"

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        # transformers visits children first, so a BiLM comes after what is inside it
        if isinstance(module, BiLM):
            if not all(getattr(parameter, "_is_hf_initialized", False) for parameter in module.parameters()):
                fresh = BiLM(module.config)
                for name, parameter in module.named_parameters():
                    initialization.copy_(parameter, fresh.get_parameter(name))
            # this makes the ids of the boundary tokens, which are in no file
            module.load_weights(module.state_dict(keep_vars=True))
        elif isinstance(module, ScalarMix):
            initialization.zeros_(module.weights)
            initialization.ones_(module.gamma)
        else:
            super()._init_weights(module)

    @classmethod
    def from_elmo(cls, elmo: ELMo, **settings: Any) -> Self:
        """A model with a copy of the ELMo's biLM, without its mixes and output layer; a head gets initial weights.

        Args:
            elmo: The model to copy.
            **settings: Fields of the configuration, such as num_labels=3.

        Raises:
            ValueError: If the ELMo was quantized, or reads words or a lexicon.
        """
        if elmo.bilm.is_int8:
            raise ValueError("this ELMo's weights were rounded to int8: load it without quantize")
        model = cls(ElmokitConfig(bilm=elmo.config, word_tokenizer=elmo.tokenizer.name, **settings))
        model._bilm.load_state_dict(elmo.bilm.state_dict())
        nn.Module.to(model, device=elmo.device, dtype=next(elmo.bilm.parameters()).dtype)
        model.eval()
        return model

    def to_elmo(self) -> ELMo:
        """An `ELMo` with a frozen copy of the biLM, and a copy of a head's mix."""
        elmo = ELMo(copy.deepcopy(self._bilm), tokenizer=self.config.word_tokenizer).to(
            device=self.device, dtype=self.dtype
        )
        if isinstance(mix := getattr(self, "mix", None), ScalarMix):
            elmo.mixes[0].load_state_dict(mix.state_dict())
        return elmo.eval()

    @property
    def _bilm(self) -> BiLM:
        bilm = self.base_model.bilm
        assert isinstance(bilm, BiLM)
        return bilm


class ElmokitModel(ElmokitPreTrainedModel):
    """A biLM whose layers are hidden states."""

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
        """Run the biLM.

        Args:
            input_ids: (B, T, 50), from `ElmokitTokenizer`.
            attention_mask: (B, T), 0 at padding.
            output_hidden_states: Also return all layers.

        Returns:
            `last_hidden_state` (B, T, 2P), zeros at padding; `hidden_states`, (B, T, 2P) for each of the L+1 layers.
        """
        layers = self.run(input_ids, attention_mask).layers  # (L+1, B, T, 2P)
        return BaseModelOutput(
            last_hidden_state=layers[-1],  # type: ignore[arg-type]
            hidden_states=self.listed(layers, output_hidden_states),
        )

    def run(self, input_ids: Tensor, attention_mask: Tensor | None) -> BiLMOutput:
        """The biLM's own output. What the attention mask hides is padding, at the end of a row."""
        if input_ids.numel() == 0:  # as lists, sentences without words have no last axis
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

    def listed(self, layers: Tensor, output_hidden_states: bool | None) -> tuple[torch.FloatTensor, ...] | None:
        """The layers as transformers has them, if the caller or the configuration asks for them."""
        wanted = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        return layers.unbind() if wanted else None  # type: ignore[return-value]


class _ElmokitHead(ElmokitPreTrainedModel):
    """A mix of the layers, as in the paper, then dropout and a linear layer."""

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
        """Classify each word.

        Args:
            input_ids: (B, T, 50).
            attention_mask: (B, T), 0 at padding.
            labels: (B, T), -100 for a word without a label.
            output_hidden_states: Also return all layers.

        Returns:
            `logits` (B, T, num_labels), and with `labels` the loss.
        """
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
        """Classify each sentence.

        Args:
            input_ids: (B, T, 50).
            attention_mask: (B, T), 0 at padding.
            labels: (B,), or what `problem_type` asks for.
            output_hidden_states: Also return all layers.

        Returns:
            `logits` (B, num_labels), and with `labels` the loss.
        """
        output = self.elmokit.run(input_ids, attention_mask)
        mixed = self.mix(output.layers, output.mask)  # (B, T, 2P), zeros at padding
        means = mixed.sum(dim=1) / output.mask.sum(dim=1, keepdim=True).clamp(min=1)  # (B, 2P)
        logits = self.classifier(self.dropout(means))  # (B, num_labels)
        return SequenceClassifierOutput(
            loss=None if labels is None else self.loss_function(labels, logits, self.config),
            logits=logits,
            hidden_states=self.elmokit.listed(output.layers, output_hidden_states),
        )
