"""ELMo inside scikit-learn: a transformer from sentences to vectors, for pipelines and searches.

Input: sentences, as strings or token lists, in a list, an array or a column. Output: an array (n, 2P) of float32, the
same that `ELMo.encode` gives. `fit` learns nothing: the vectors come from the biLM as it is.
"""

# ruff: noqa: E402 (a missing host is reported before anything imports it)

from __future__ import annotations

import copy
import threading
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from elmokit.arguments import check_choice
from elmokit.extras import require
from elmokit.inference.vectors import unit
from elmokit.inference.views import Layers, check_layers
from elmokit.model import ELMo
from elmokit.text import as_list

require("sklearn.base", extra="sklearn")

from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import Tags

SENTENCES_AT_ONCE = 1024  # whose token vectors are in memory together
MODELS_AT_ONCE = 4  # that were asked for by name and stay in memory

Vectors = npt.NDArray[np.float32]


class ELMoVectorizer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """A transformer from sentences to vectors.

    Args:
        model: What `ELMo.from_pretrained` takes (None is the embedded model), or an `ELMo`. A name is loaded when
            vectors are first asked for, once per process for all estimators; a pickle has only the name. An `ELMo` is
            shared by clones and pickled with its weights.
        layers: "average", "top", "slot", "sense" or the number of a layer, as in `ELMo.encode`.
        pooling: "mean" of the token vectors, as in `ELMo.encode`, or their "max" in each feature.
        normalize: Scale the vectors to length one.
        batch_size: Largest number of sentences per batch. Batches are bounded in tokens in any case.
        device: "cpu", "cuda", …, for a model that is loaded by name; None is the CPU.
    """

    def __init__(
        self,
        model: str | Path | ELMo | None = None,
        *,
        layers: Layers = "average",
        pooling: Literal["mean", "max"] = "mean",
        normalize: bool = False,
        batch_size: int | None = None,
        device: str | None = None,
    ) -> None:
        self.model = model
        self.layers = layers
        self.pooling = pooling
        self.normalize = normalize
        self.batch_size = batch_size
        self.device = device

    def fit(self, X: Any, y: Any = None) -> ELMoVectorizer:
        """Check the parameters and load the model.

        Args:
            X: Sentences; only their type is checked.
            y: Not used.

        Raises:
            ValueError: If a parameter is wrong, or `X` is not a list or column of sentences.
        """
        _as_sentences(X)
        self._encode([])
        return self

    def transform(self, X: Any) -> Vectors:
        """Vectors of sentences.

        Args:
            X: Sentences, as strings or token lists, in a list, an array or a column.

        Returns:
            (n, 2P) float32: one vector per sentence; zeros for one without tokens.

        Raises:
            ValueError: If `X` is not a list or column of sentences.
        """
        return self._encode(_as_sentences(X))

    def _encode(self, sentences: list[Any]) -> Vectors:
        elmo = self._elmo()
        if check_choice("pooling", self.pooling, ("mean", "max")) == "mean":
            vectors: Vectors = elmo.encode(
                sentences, layers=self.layers, batch_size=self.batch_size, normalize=self.normalize
            )
            return vectors
        check_layers(self.layers, elmo.num_layers, single=True)
        vectors = np.zeros((len(sentences), self._n_features_out), np.float32)
        for begin in range(0, max(1, len(sentences)), SENTENCES_AT_ONCE):
            window = sentences[begin : begin + SENTENCES_AT_ONCE]
            for n, tokens in enumerate(elmo.embed(window, layers=self.layers, batch_size=self.batch_size), begin):
                if len(tokens):
                    vectors[n] = tokens.max(axis=0)
        return np.asarray(unit(vectors), np.float32) if self.normalize else vectors

    def _elmo(self) -> ELMo:
        if not isinstance(self.model, ELMo):
            with _loading:  # threads that ask together get one model
                return _load(self.model, self.device, _content(self.model))
        if self.device is not None:
            raise ValueError(f"device={self.device!r} is for a model that is loaded by name: use model.to(device)")
        return self.model

    @property
    def _n_features_out(self) -> int:
        return self._elmo().dim

    def __sklearn_clone__(self) -> ELMoVectorizer:
        """Clone with the same model; the usual clone would copy the weights for each fold of a search."""
        bare = copy.copy(self)
        bare.model = None
        twin: ELMoVectorizer = BaseEstimator.__sklearn_clone__(bare)
        twin.model = self.model
        return twin

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        tags.input_tags.one_d_array = tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        tags.transformer_tags.preserves_dtype = ["float32"]
        return tags


_loading = threading.Lock()


@lru_cache(maxsize=MODELS_AT_ONCE)
def _load(name: str | Path | None, device: str | None, content: tuple[Any, ...]) -> ELMo:
    return ELMo.from_pretrained(name, device=device)


def _content(name: str | Path | None) -> tuple[Any, ...]:
    """A key that changes with the files of a model folder, or when the name means another folder."""
    if not isinstance(name, str | Path):
        return ()
    folder = Path(name).expanduser()
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    return tuple((str(file.resolve()), file.stat().st_mtime_ns) for file in files)


def _as_sentences(X: Any) -> list[Any]:
    # Rows of a table would be taken for token lists, and a pandas DataFrame for the list of its columns.
    if len(getattr(X, "shape", (0,))) != 1:
        raise ValueError(
            f"X has the shape {X.shape}: pass sentences as a list or as one column; in a ColumnTransformer name the "
            'column as a string, "text", not as a list, ["text"]'
        )
    return as_list(X)
