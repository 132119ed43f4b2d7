"""Random transformer biLMs: in memory for the reference, as a BiLM for the package."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import reference
import reference_transformer
from elmokit.config import BiLMConfig
from elmokit.network import BiLM


@dataclass(frozen=True)
class TransformerModel:
    """The same weights for the reference and for the package."""

    sizes: reference_transformer.Sizes
    arrays: reference_transformer.Arrays
    vocabulary: list[str] | None

    def expected(self, sentence: list[str], past: Any = None) -> reference_transformer.Run:
        """What the reference makes of one sentence."""
        return reference_transformer.bilm(self.sizes, self.arrays, sentence, past=past, vocabulary=self.vocabulary)

    def ids(self, sentences: list[list[str]]) -> torch.Tensor:
        """The sentences as one padded batch, encoded by the reference."""
        options = {} if self.vocabulary else {"char_cnn": {"max_characters_per_token": self.sizes["max_characters"]}}
        return torch.from_numpy(reference.shifted_ids(options, sentences, self.vocabulary))

    def bilm(self, **changed: Any) -> BiLM:
        """The package's network with these weights."""
        sizes = {name: value for name, value in self.sizes.items() if name != "filters"} | changed
        filters = tuple(tuple(pair) for pair in self.sizes["filters"])
        bilm = BiLM(BiLMConfig(architecture="transformer", filters=filters, **sizes))  # type: ignore[arg-type]
        bilm.load_state_dict({name: torch.from_numpy(values) for name, values in self.arrays.items()})
        return bilm.eval().requires_grad_(False)


def random_transformer(seed: int = 0, **variant: Any) -> TransformerModel:
    """A model of that variant: see `reference_transformer.random_model`."""
    sizes, arrays = reference_transformer.random_model(np.random.default_rng(seed), **variant)
    num_words = sizes["num_words"]
    return TransformerModel(sizes, arrays, None if num_words is None else reference.random_vocabulary(num_words))
