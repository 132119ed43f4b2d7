"""ELMo as the first module of a SentenceTransformer.

Enters: texts, and an `ELMo`.  Leaves: in the features that sentence-transformers hands from module to module, the
vectors of the words (`token_embeddings`) and their mean without padding (`sentence_embedding`), which is what
`ELMo.encode` gives; a Pooling module behind this one replaces it.

    SentenceTransformer(modules=[ElmoEmbeddings(ELMo.from_pretrained())]).encode(["The bank lent money."])
"""

# sentence-transformers calls itself typed, and leaves some of its functions without types or open to any argument
# mypy: disable-error-code="no-untyped-call, override"

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import nn
from torch.nn import functional

from elmokit.files import write_json
from elmokit.model import ELMo
from elmokit.settings import check_types, from_mapping, read_json, to_mapping
from elmokit.text import as_tokens, tokenize_with_offsets

try:
    from sentence_transformers.base.modules import InputModule
except ImportError as error:
    raise ImportError(
        f'{__name__} needs sentence-transformers 6: pip install "elmokit[sentence-transformers]"'
    ) from error

__all__ = ["ElmoEmbeddings"]


@dataclass(frozen=True)
class _Settings:
    """What is saved beside the ELMo."""

    layers: str | int
    max_seq_length: int | None
    freeze: bool
    dropout: float

    def __post_init__(self) -> None:
        check_types(self)


class ElmoEmbeddings(InputModule):
    """Texts -> vectors of their words and sentences, from one layer of a biLM or from all.

    `layers` is as in `ELMo.encode` ("average", "top", a number), or "mix": weights of the layers that training learns.
    Gradients reach the biLM where the ELMo was made with `freeze=False`.  The module holds a copy of the ELMo,
    without its output layer: that is of no use to vectors, and wrong once they are fine-tuned.
    """

    config_file_name = "elmo_embeddings.json"  # config.json beside it is the ELMo's

    def __init__(
        self,
        elmo: ELMo,
        *,
        layers: Literal["average", "top", "mix"] | int = "average",
        max_seq_length: int | None = None,
    ) -> None:
        super().__init__()
        last = elmo.config.num_layers
        is_number = isinstance(layers, int) and not isinstance(layers, bool) and 0 <= layers <= last
        if layers not in ("average", "top", "mix") and not is_number:
            raise ValueError(f'layers must be "average", "top", "mix" or a number from 0 to {last}, not {layers!r}')
        if layers == "mix" and len(elmo.mixes) != 1:
            raise ValueError(f'layers="mix" needs an ELMo with num_mixes=1, not {len(elmo.mixes)}')
        if max_seq_length is not None and max_seq_length < 1:
            raise ValueError(f"max_seq_length must be at least 1 word, or None for no limit, not {max_seq_length}")
        self.layers, self.max_seq_length = layers, max_seq_length
        # a copy that is stateless, and has no parameter that would never get a gradient
        self.elmo = copy.deepcopy(elmo, {id(elmo.output_layer): None})
        self.elmo.state, self.elmo.keep_boundaries = "stateless", False
        if layers != "mix":
            self.elmo.mixes = nn.ModuleList()
        if not elmo.reads_words:
            self.elmo.vocabulary = None

    def preprocess(
        self,
        inputs: Sequence[str | Sequence[str]],
        prompt: str | None = None,
        max_length: int | None = None,
        **unused: Any,
    ) -> dict[str, Any]:
        """Texts, or lists of words, -> `input_ids` (B, T, 50); with a prompt before each text, its number of words."""
        features: dict[str, Any] = {}
        if prompt:
            if not all(isinstance(text, str) for text in inputs):
                raise ValueError(f"the prompt {prompt!r} stands before texts: give texts, not lists of words")
            inputs = [f"{prompt}{text}" for text in inputs]
            # counted with a text behind it: alone, the prompt's last word would lose its period
            first = tokenize_with_offsets(str(inputs[0]))
            features["prompt_length"] = sum(token.start < len(prompt.rstrip()) for token in first)
        limit = max_length or self.max_seq_length
        ids = self.elmo.to_ids([words[:limit] for words in as_tokens(inputs)])
        if ids.shape[1] == 0:  # a pooling module wants one place at least, be it padding
            ids = functional.pad(ids, (0, 0) * (ids.ndim - 2) + (0, 1))
        return features | {"input_ids": ids}

    def forward(self, features: dict[str, Any], **unused: Any) -> dict[str, Any]:
        """`input_ids` -> `token_embeddings` (B, T, 2P), `attention_mask` (B, T), `sentence_embedding` (B, 2P)."""
        output = self.elmo(features["input_ids"])
        if self.layers == "mix":
            tokens = output.mixes[0]
        elif self.layers == "average":
            tokens = output.layers.mean(dim=0)
        else:
            tokens = output.layers[-1 if self.layers == "top" else self.layers]
        wide = torch.promote_types(tokens.dtype, torch.float32)  # half precision is not enough for a sum
        totals = tokens.sum(dim=1, dtype=wide)  # padding is zero, so it adds nothing
        return features | {
            "token_embeddings": tokens,
            "attention_mask": output.mask.long(),
            "sentence_embedding": totals / output.mask.sum(dim=1, keepdim=True).clamp(min=1),
        }

    def get_embedding_dimension(self) -> int:
        """Width of a vector: 2P."""
        return 2 * int(self.elmo.config.projection_dim)

    def get_config_dict(self) -> dict[str, Any]:
        """What `load` needs beside the ELMo."""
        return to_mapping(_Settings(self.layers, self.max_seq_length, self.elmo.freeze, self.elmo.dropout.p))

    def save(self, output_path: str, *unused: Any, safe_serialization: bool = True, **unused_too: Any) -> None:
        """Write a folder that `ELMo.from_pretrained` reads too, always in safetensors."""
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
        """Read what `save` wrote, from a folder or a name on the Hugging Face hub."""
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
            raise ValueError(f"{path}: the file is missing, so this is no folder that ElmoEmbeddings wrote")
        settings = from_mapping(_Settings, read_json(path), source=str(path))
        elmo = ELMo.from_pretrained(path.parent, freeze=settings.freeze, dropout=settings.dropout)
        return cls(elmo, layers=settings.layers, max_seq_length=settings.max_seq_length)  # type: ignore[arg-type]
