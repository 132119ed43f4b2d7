"""ELMo inside flair, in place of its `ELMoEmbeddings`, which needs an AllenNLP that no longer installs.

Input: flair `Sentence`s. Output: one vector on each of their tokens, for any flair model of `TokenEmbeddings`. The biLM
is frozen; with `embedding_mode="mix"` the model learns how much of each layer to use.
"""

# ruff: noqa: E402 (a missing host is reported before anything imports it)

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from elmokit.extras import require
from elmokit.inference.views import needs_weights
from elmokit.integrations.bundles import drop_language_model, in_folder, to_files
from elmokit.model import ELMo
from elmokit.network import ScalarMix

require("flair", extra="flair")

import flair
from flair.data import Sentence
from flair.embeddings import TokenEmbeddings
from flair.embeddings.base import register_embeddings

__all__ = ["ELMoEmbeddings"]

Mode = Literal["all", "top", "average", "slot", "sense", "mix"]
FLAIR_NAMES = {"large": "original-5.5b", "5.5B": "original-5.5b"}  # what flair called the official models


@register_embeddings("elmokit.ELMoEmbeddings")
class ELMoEmbeddings(TokenEmbeddings):  # type: ignore[misc]
    """Vectors from a frozen biLM.

    Args:
        model: What `ELMo.from_pretrained` takes, or flair's names "large" and "5.5B"; None is the embedded model.
        options_file: With `weight_file`, the official files instead of a model's name.
        weight_file: See `options_file`.
        embedding_mode: "all" concatenates the layers, "top" is the last one, "average" their even mix, as in flair;
            "slot" and "sense" as in `ELMo.embed`; "mix" is the sum of the layers with learned weights.

    Raises:
        ValueError: If the mode is none of these, or both a name and files are passed.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        options_file: str | os.PathLike[str] | None = None,
        weight_file: str | os.PathLike[str] | None = None,
        embedding_mode: Mode = "all",
    ) -> None:
        if embedding_mode not in get_args(Mode):
            raise ValueError(f"embedding_mode must be one of {', '.join(get_args(Mode))}, not {embedding_mode!r}")
        if (options_file is None) != (weight_file is None) or (model is not None and options_file is not None):
            raise ValueError("pass a model's name or folder, or options_file and weight_file together, or nothing")
        self.name = f"elmo-{weight_file or model or 'en'}-{embedding_mode}"
        self.embedding_mode = embedding_mode
        self.static_embeddings = embedding_mode != "mix"  # flair keeps static vectors from epoch to epoch
        super().__init__()
        if options_file is not None and weight_file is not None:
            elmo = ELMo.from_files(options_file, weight_file, num_mixes=0)
        else:
            elmo = ELMo.from_pretrained(FLAIR_NAMES.get(str(model), model), num_mixes=0)
        drop_language_model(elmo, keep_vocabulary=needs_weights(embedding_mode))
        # not as a submodule: frozen weights need no optimizer, and `to_params` saves them
        self.__dict__["elmo"] = elmo
        self.mix = ScalarMix(elmo.num_layers) if embedding_mode == "mix" else None
        self.to(flair.device)
        self.eval()

    @property
    def embedding_length(self) -> int:
        """Width of a token's vector."""
        return int(self.elmo.dim * (self.elmo.num_layers if self.embedding_mode == "all" else 1))

    def _add_embeddings_internal(self, sentences: list[Sentence]) -> None:
        layers = "all" if self.embedding_mode == "mix" else self.embedding_mode
        tokens = [[token.text for token in sentence] for sentence in sentences]
        embedded = self.elmo.embed(tokens, layers=layers, convert_to_tensor=True)
        for sentence, vectors in zip(sentences, embedded, strict=True):
            for token, vector in zip(sentence, self._combine(vectors), strict=True):
                token.set_embedding(self.name, vector)

    def _combine(self, vectors: Tensor) -> Tensor:
        """(L+1, T, 2P), or (T, 2P) of one layer, -> (T, embedding_length)."""
        if self.mix is not None:
            mask = torch.ones(1, vectors.shape[1], dtype=torch.bool, device=vectors.device)
            return self.mix(vectors.unsqueeze(1), mask).squeeze(0)  # type: ignore[no-any-return]
        if self.embedding_mode == "all":
            return vectors.movedim(0, 1).flatten(1)
        return vectors.clone()  # flair keeps it, and a view would keep the whole batch

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> ELMoEmbeddings:
        """Move the biLM with flair's model (`to`, `cuda`, `half`)."""
        self.elmo._apply(fn, recurse)
        super()._apply(fn, recurse)
        return self

    def to_params(self) -> dict[str, Any]:
        """What `from_params` needs, with the model's files: a saved flair model needs nothing outside it."""
        return {"name": self.name, "embedding_mode": self.embedding_mode, "files": to_files(self.elmo)}

    @classmethod
    def from_params(cls, params: dict[str, Any]) -> ELMoEmbeddings:
        """Make the embeddings again from `to_params`; flair's state dict has the weights of a learned mix."""
        with in_folder(params["files"]) as folder:
            embeddings = cls(folder, embedding_mode=params["embedding_mode"])
        embeddings.name = params["name"]
        return embeddings

    def extra_repr(self) -> str:
        """What flair prints for this part of a model."""
        return f"name={self.name}, embedding_length={self.embedding_length}"
