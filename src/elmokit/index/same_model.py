"""Whether a model is the one that an index was made with.

Input: a model, and the settings of an index. Output: nothing, or an error that says what differs. Digests take a
second, so they are computed again only after a change.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from elmokit.index.files import IndexSettings
from elmokit.inference.views import SENSE_VERSION
from elmokit.kernels import samples_of
from elmokit.model import ELMo

NUM_SAMPLES = 2048  # elements of each weight that are compared to notice a change

_Key = tuple[object, ...]


class ModelCheck:
    """Checks models against the settings of an index; the last model that was right is not checked again.

    Args:
        folder: The folder of the index, for messages.
        settings: Its settings.
    """

    def __init__(self, folder: Path, settings: IndexSettings) -> None:
        self.folder, self.settings = folder, settings
        self._known: tuple[Callable[[], ELMo | None], _Key] = (lambda: None, ())

    def __call__(self, model: ELMo) -> None:
        """Check a model.

        Raises:
            ValueError: If it has other weights, or other word weights where the index depends on them, or if "sense"
                was defined in another way when the index was made.
        """
        # objects and not their digests: both cannot be changed, only replaced
        key = (*_key_of(list(model.bilm.parameters())), model.tokenizer, self._word_weights(model))
        known, known_key = self._known
        if known() is model and known_key == key:
            return
        digest = model.digest()
        if digest != self.settings.digest:
            name = "" if self.settings.model is None else f" ({self.settings.model})"
            raise ValueError(
                f"{self.folder}: this index was made with another model{name}: its weights have the digest "
                f"{self.settings.digest[:12]}, those of this model have {digest[:12]}; load that model, with the same "
                "dtype and quantize, or build a new index"
            )
        if self.settings.layer == "sense" and self.settings.sense_version != SENSE_VERSION:
            raise ValueError(
                f'{self.folder}: this index was made with an earlier version of the view "sense", which had other '
                "vectors: build a new index"
            )
        if (
            self.settings.word_weights is not None
            and (own := model.word_weights.digest()) != self.settings.word_weights
        ):
            raise ValueError(
                f"{self.folder}: this index was made with other word weights: they have the digest "
                f"{self.settings.word_weights[:12]}, those of this model have {own[:12]}; set model.word_weights to "
                "those of the index, or build a new index"
            )
        self._known = weakref.ref(model), key

    def _word_weights(self, model: ELMo) -> object:
        return None if self.settings.word_weights is None else model.word_weights


def _key_of(weights: list[Tensor]) -> _Key:
    """A key that changes with the weights. PyTorch does not count writes through `.data`, so it holds elements."""
    samples = [samples_of(weight, NUM_SAMPLES).contiguous().view(torch.uint8) for weight in weights]
    places = [(weight.data_ptr(), 0 if weight.is_inference() else weight._version) for weight in weights]
    # one tensor: the host waits once for a GPU
    return (*places, torch.cat(samples).cpu().numpy().tobytes() if samples else b"")
