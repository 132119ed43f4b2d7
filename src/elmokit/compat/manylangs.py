"""The `Embedder` of ELMoForManyLangs."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from elmokit.arguments import check_integer, check_optional_integer, check_path
from elmokit.inference.views import Layers
from elmokit.model import ELMo


class Embedder:
    """`elmoformanylangs.Embedder`.

    Args:
        model_dir: A folder of ELMoForManyLangs, or anything else that `ELMo.from_pretrained` takes.
        batch_size: Largest number of sentences per batch; None chooses it.
    """

    def __init__(self, model_dir: str | os.PathLike[str], batch_size: int | None = 64) -> None:
        self.batch_size = check_optional_integer("batch_size", batch_size)
        self.elmo = ELMo.from_pretrained(check_path("model_dir", model_dir))

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
        output_layer = check_integer("output_layer", output_layer, least=-2, most=self.elmo.num_layers - 1)
        names: dict[int, Layers] = {-1: "average", -2: "all"}
        layers = names.get(output_layer, output_layer)
        return self.elmo.embed(sents, layers=layers, batch_size=self.batch_size)
