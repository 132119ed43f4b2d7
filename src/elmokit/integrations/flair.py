"""ELMo inside flair, in place of its `ELMoEmbeddings`, which needs an AllenNLP that no longer installs.

Enters: flair `Sentence`s.  Leaves: one vector on each of their tokens, for any flair model of `TokenEmbeddings`.
The biLM is frozen; `embedding_mode="mix"` learns with the model how much of each layer to use.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from elmokit.model import ELMo
from elmokit.network import ScalarMix

try:
    import flair
    from flair.data import Sentence
    from flair.embeddings import TokenEmbeddings
    from flair.embeddings.base import register_embeddings
except ImportError as error:
    raise ImportError('elmokit.integrations.flair needs flair: pip install "elmokit[flair]"') from error

__all__ = ["ELMoEmbeddings"]

Mode = Literal["all", "top", "average", "mix"]
FLAIR_NAMES = {"large": "original-5.5b", "5.5B": "original-5.5b"}  # what flair called the official models


@register_embeddings("elmokit.ELMoEmbeddings")
class ELMoEmbeddings(TokenEmbeddings):  # type: ignore[misc]
    """Vectors from a frozen biLM: the embedded model, or any that `ELMo.from_pretrained` or `from_files` reads.

    `embedding_mode`: "all" puts the layers behind each other, "top" is the last one, "average" their even mix, as in
    flair; "mix" is their sum with weights that are learned.
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
            raise ValueError("give a model's name or folder, or options_file and weight_file together, or nothing")
        self.name = f"elmo-{weight_file or model or 'en'}-{embedding_mode}"
        self.embedding_mode = embedding_mode
        self.static_embeddings = embedding_mode != "mix"  # flair keeps static vectors from epoch to epoch
        super().__init__()
        if options_file is not None and weight_file is not None:
            elmo = ELMo.from_files(options_file, weight_file, num_mixes=0)
        else:
            elmo = ELMo.from_pretrained(FLAIR_NAMES.get(str(model), model), num_mixes=0)
        elmo.output_layer = None
        if not elmo.reads_words:
            elmo.vocabulary = None
        # not as a submodule: frozen weights need no optimizer, and go to a file once, as a folder in `to_params`
        self.__dict__["elmo"] = elmo
        self.mix = ScalarMix(elmo.config.num_layers + 1) if embedding_mode == "mix" else None
        self.to(flair.device)
        self.eval()

    @property
    def embedding_length(self) -> int:
        """Width of a token's vector."""
        config = self.elmo.config
        return int(2 * config.projection_dim * (config.num_layers + 1 if self.embedding_mode == "all" else 1))

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
        """The biLM goes where flair's model goes (`to`, `cuda`, `half`)."""
        self.elmo._apply(fn, recurse)
        super()._apply(fn, recurse)
        return self

    def to_params(self) -> dict[str, Any]:
        """What `from_params` needs, the biLM's files among it: a saved flair model needs nothing outside it."""
        with tempfile.TemporaryDirectory() as folder:
            self.elmo.save_pretrained(folder)
            files = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
        return {"name": self.name, "embedding_mode": self.embedding_mode, "files": files}

    @classmethod
    def from_params(cls, params: dict[str, Any]) -> ELMoEmbeddings:
        """The embeddings that `to_params` described; the weights of a learned mix follow with flair's state dict."""
        with tempfile.TemporaryDirectory() as folder:
            for name, content in params["files"].items():
                (Path(folder) / Path(name).name).write_bytes(content)
            embeddings = cls(folder, embedding_mode=params["embedding_mode"])
        embeddings.name = params["name"]
        return embeddings

    def extra_repr(self) -> str:
        """What flair prints of a model's part."""
        return f"name={self.name}, embedding_length={self.embedding_length}"
