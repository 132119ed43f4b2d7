"""The `Embedder` of ELMoForManyLangs."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from elmokit.inference.views import Layers
from elmokit.model import ELMo


class Embedder:
    """`elmoformanylangs.Embedder`.

    Args:
        model_dir: A folder of ELMoForManyLangs, or anything else that `ELMo.from_pretrained` takes.
        batch_size: Largest number of sentences per batch.
    """

    def __init__(self, model_dir: str | os.PathLike[str], batch_size: int = 64) -> None:
        self.elmo = ELMo.from_pretrained(model_dir)
        self.batch_size = batch_size

    def sents2elmo(self, sents: Sequence[Sequence[str]], output_layer: int = -1) -> list[npt.NDArray[np.float32]]:
        """Vectors of tokenized sentences.

        Args:
            sents: Token lists.
            output_layer: The number of a layer, -1 for the mean of all, -2 for all.

        Returns:
            (T, 2P) for each sentence, or (L+1, T, 2P) of all layers.

        Raises:
            ValueError: If the model has no such layer.
        """
        names: dict[int, Layers] = {-1: "average", -2: "all"}
        layers = names.get(output_layer, output_layer)
        if isinstance(layers, int) and layers < 0:  # counting from the top would take it for a layer
            raise ValueError(f"output_layer must be -2, -1 or a layer from 0, not {output_layer}")
        return self.elmo.embed(sents, layers=layers, batch_size=self.batch_size)
