"""ELMo as the first module of a SentenceTransformer.

Input: texts, and an `ELMo`. Output: in the features that sentence-transformers passes from module to module, the
vectors of the words (`token_embeddings`) and their mean without padding (`sentence_embedding`), which is what
`ELMo.encode` gives; a Pooling module after this one replaces it.

    SentenceTransformer(modules=[ElmoEmbeddings(ELMo.from_pretrained())]).encode(["The bank lent money."])
"""

# sentence-transformers calls itself typed, and leaves some of its functions without types or open to any argument
# mypy: disable-error-code="no-untyped-call, override"
# ruff: noqa: E402 (a missing host is reported before anything imports it)

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Tensor
from torch.nn import functional

from elmokit.extras import require
from elmokit.files import write_json
from elmokit.inference.views import Reading, View, check_layers, view_of
from elmokit.model import ELMo
from elmokit.settings import check_types, from_mapping, read_json, to_mapping
from elmokit.text import as_tokens

require("sentence_transformers.base.modules", extra="sentence-transformers")

from sentence_transformers.base.modules import InputModule

__all__ = ["ElmoEmbeddings"]


@dataclass(frozen=True)
class _Settings:
    """What is saved with the ELMo."""

    layers: str | int
    max_seq_length: int | None
    freeze: bool
    dropout: float

    def __post_init__(self) -> None:
        check_types(self)


class ElmoEmbeddings(InputModule):
    """Texts -> vectors of their words and sentences, by one of the views of `ELMo.encode` or by a learned mix.

    Gradients reach the biLM if the ELMo was made with `freeze=False`. The module has a copy of the ELMo, without its
    output layer: vectors do not need it, and fine-tuning would make it wrong.

    Args:
        elmo: The model.
        layers: "average", "top", "slot", "sense" or a number, as in `ELMo.encode`; or "mix", the ELMo's own mix, which
            training learns. "sense" reads the weights of words, which come from the ELMo's vocabulary or lexicon and
            are saved with it; weights that were set by hand are not saved.
        max_seq_length: Largest number of words per text; longer texts are cut. None: no limit.

    Raises:
        ValueError: If the model has no such layers or not one mix, or the limit is less than 1.
    """

    config_file_name = "elmo_embeddings.json"  # config.json beside it is the ELMo's

    def __init__(
        self,
        elmo: ELMo,
        *,
        layers: Literal["average", "top", "slot", "sense", "mix"] | int = "average",
        max_seq_length: int | None = None,
    ) -> None:
        super().__init__()
        self._view: View | None = None  # None is the mix
        if layers != "mix":
            layers = check_layers(layers, elmo.num_layers, single=True)  # type: ignore[assignment]  # not "all"
            self._view = view_of(layers, elmo.num_layers, single=True)
        elif len(elmo.mixes) != 1:
            raise ValueError(f'layers="mix" needs an ELMo with num_mixes=1, not {len(elmo.mixes)}')
        weighted = self._view is not None and self._view.needs_weights
        if max_seq_length is not None and max_seq_length < 1:
            raise ValueError(f"max_seq_length must be at least 1 word, or None for no limit, not {max_seq_length}")
        self.layers, self.max_seq_length = layers, max_seq_length
        # a copy that is stateless, and has no parameter that would never get a gradient
        self.elmo = ELMo(
            copy.deepcopy(elmo.bilm),
            freeze=elmo.freeze,
            num_mixes=1 if layers == "mix" else 0,
            dropout=elmo.dropout.p,
            layer_norm=elmo.layer_norm,
            vocabulary=elmo.vocabulary if elmo.reads_words or weighted else None,
            lexicon=elmo.lexicon,
            tokenizer=elmo.tokenizer.name,
        ).train(elmo.training)
        if layers == "mix":
            self.elmo.mixes = copy.deepcopy(elmo.mixes)
        if weighted:
            self.elmo.word_weights = elmo.word_weights

    def preprocess(
        self,
        inputs: Sequence[str | Sequence[str]],
        prompt: str | None = None,
        max_length: int | None = None,
        **unused: Any,
    ) -> dict[str, Any]:
        """Turn texts into the ids that the model reads.

        Args:
            inputs: Strings, which the ELMo's tokenizer cuts, or lists of words.
            prompt: A text to put before each string.
            max_length: Largest number of words per text, instead of `max_seq_length`.

        Returns:
            `input_ids`, as from `ELMo.to_ids`; for "sense" also the weights of the words, `word_weights` (B, T); with a
            prompt, also its number of words, `prompt_length`.

        Raises:
            ValueError: If a prompt comes with lists of words.
        """
        features: dict[str, Any] = {}
        if prompt:
            if not all(isinstance(text, str) for text in inputs):
                raise ValueError(f"the prompt {prompt!r} is for texts: pass strings, not lists of words")
            inputs = [f"{prompt}{text}" for text in inputs]
            # counted with a text after it: at the end of a text, a period is a token of its own
            first = self.elmo.tokenizer.with_offsets(str(inputs[0]))
            features["prompt_length"] = sum(token.start < len(prompt.rstrip()) for token in first)
        limit = max_length or self.max_seq_length
        sentences = [words[:limit] for words in as_tokens(inputs, self.elmo.tokenizer)]
        ids = self.elmo.to_ids(sentences)
        if ids.shape[1] == 0:  # a pooling module needs at least one token, if only padding
            ids = functional.pad(ids, (0, 0) * (ids.ndim - 2) + (0, 1))
        if self._view is not None and self._view.needs_weights:
            features["word_weights"] = torch.from_numpy(self.elmo.word_weights.batch(sentences, ids.shape[1]))
        return features | {"input_ids": ids}

    def forward(self, features: dict[str, Any], **unused: Any) -> dict[str, Any]:
        """Run the model.

        Args:
            features: With `input_ids`, and for "sense" `word_weights`, from `preprocess`.

        Returns:
            The features with `token_embeddings` (B, T, 2P), `attention_mask` (B, T) and `sentence_embedding` (B, 2P).
        """
        if self._view is None:
            output = self.elmo(features["input_ids"])
            tokens, mask = output.mixes[0], output.mask
        else:
            tokens, mask = self._view_tokens(self._view, features)
        wide = torch.promote_types(tokens.dtype, torch.float32)  # half precision is not enough for a sum
        totals = tokens.sum(dim=1, dtype=wide)  # padding is zero, so it adds nothing
        return features | {
            "token_embeddings": tokens,
            "attention_mask": mask.long(),
            "sentence_embedding": totals / mask.sum(dim=1, keepdim=True).clamp(min=1),
        }

    def _view_tokens(self, view: View, features: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Vectors (B, T, 2P) by a view, zeros at padding, and the mask (B, T)."""
        device, weights = self.elmo.device, None
        if view.needs_weights:
            weights = features["word_weights"].to(device)
        output = self.elmo.bilm(features["input_ids"].to(device), keep_boundaries=True)
        mask = output.mask[:, 2:]
        reading = Reading(output.layers, tuple(mask.sum(dim=1).tolist()), weights)
        return torch.where(mask.unsqueeze(-1), view.tokens(reading), 0.0), mask

    def get_embedding_dimension(self) -> int:
        """Width of a vector: 2P."""
        return self.elmo.dim

    def get_config_dict(self) -> dict[str, Any]:
        """What `load` needs in addition to the ELMo."""
        return to_mapping(_Settings(self.layers, self.max_seq_length, self.elmo.freeze, self.elmo.dropout.p))

    def save(self, output_path: str, *unused: Any, safe_serialization: bool = True, **unused_too: Any) -> None:
        """Write a folder, always in safetensors. `ELMo.from_pretrained` reads it too."""
        self.elmo.save_pretrained(output_path)
        write_json(Path(output_path) / self.config_file_name, self.get_config_dict())

    @classmethod
    def load(
        cls,
        model_name_or_path: str,
        subfolder: str = "",
        token: bool | str | None = None,
        cache_folder: str | None = None,
        revision: str | None = None,
        local_files_only: bool = False,
        **unused: Any,
    ) -> Self:
        """Read what `save` wrote, from a folder or the Hugging Face hub.

        Raises:
            ValueError: If the folder is not one of `save`.
        """
        folder = cls.load_dir_path(
            model_name_or_path,
            subfolder=subfolder,
            token=token,
            cache_folder=cache_folder,
            revision=revision,
            local_files_only=local_files_only,
        )
        path = Path(folder or model_name_or_path) / cls.config_file_name
        if not path.is_file():
            raise ValueError(f"{path}: the file is missing, so this is not a folder that ElmoEmbeddings wrote")
        settings = from_mapping(_Settings, read_json(path), source=str(path))
        elmo = ELMo.from_pretrained(path.parent, freeze=settings.freeze, dropout=settings.dropout)
        return cls(elmo, layers=settings.layers, max_seq_length=settings.max_seq_length)  # type: ignore[arg-type]
