"""ELMo inside scikit-learn: a transformer from sentences to vectors, for pipelines and searches.

Enters: sentences, as strings or token lists, in a list, an array or a column.  Leaves: an array (n, 2P) of float32, the
same that `ELMo.encode` gives.  Nothing is learned by `fit`: the vectors come from the biLM as it is.
"""

from __future__ import annotations

import copy
import threading
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from elmokit.inference.views import Layers
from elmokit.model import ELMo
from elmokit.text import as_list

try:
    from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
    from sklearn.utils import Tags
except ImportError:
    raise ImportError(
        'elmokit.integrations.sklearn needs scikit-learn 1.6 or later: pip install "elmokit[sklearn]"'
    ) from None

SENTENCES_AT_ONCE = 1024  # whose token vectors are in memory together
MODELS_AT_ONCE = 4  # that were asked for by name and stay in memory

Vectors = npt.NDArray[np.float32]


class ELMoVectorizer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Sentences -> vectors.

    model : the embedded model (None); a folder, an official name or a Hugging Face id; or an `ELMo`.  A name is loaded
        when vectors are first asked for, once in a process, however many estimators have it; a pickle holds the name
        alone.  An `ELMo` is shared by clones and pickled with its weights.
    layers : "average", "top" or the number of a layer, as in `ELMo.encode`.
    pooling : "mean" of the token vectors, as in `ELMo.encode`, or their "max" in each feature.
    normalize : vectors of length one.
    batch_size : most sentences of a batch; None: batches are bounded in tokens alone.
    device : "cpu", "cuda", …, for a model that is loaded by name; None: the CPU.
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
        """Check the parameters, load the model; of `X` only the kind is looked at."""
        _as_sentences(X)
        self._encode([])
        return self

    def transform(self, X: Any) -> Vectors:
        """(n, 2P): a vector for each sentence; zeros for one without tokens."""
        return self._encode(_as_sentences(X))

    def _encode(self, sentences: list[Any]) -> Vectors:
        elmo = self._elmo()
        if self.pooling == "mean":
            vectors: Vectors = elmo.encode(
                sentences, layers=self.layers, batch_size=self.batch_size, normalize=self.normalize
            )
            return vectors
        if self.pooling != "max":
            raise ValueError(f'pooling must be "mean" or "max", not {self.pooling!r}')
        if self.layers == "all":
            raise ValueError('a sentence has one vector here: layers must be "average", "top" or a number, not "all"')
        vectors = np.zeros((len(sentences), self._n_features_out), np.float32)
        for begin in range(0, max(1, len(sentences)), SENTENCES_AT_ONCE):
            window = sentences[begin : begin + SENTENCES_AT_ONCE]
            for n, tokens in enumerate(elmo.embed(window, layers=self.layers, batch_size=self.batch_size), begin):
                if len(tokens):
                    vectors[n] = tokens.max(axis=0)
        if self.normalize:
            vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return vectors

    def _elmo(self) -> ELMo:
        if not isinstance(self.model, ELMo):
            with _loading:  # threads that ask together get one model
                return _load(self.model, self.device, _content(self.model))
        if self.device is not None:
            raise ValueError(f"device={self.device!r} is for a model that is loaded by name: use model.to(device)")
        return self.model

    @property
    def _n_features_out(self) -> int:
        return 2 * int(self._elmo().config.projection_dim)

    def __sklearn_clone__(self) -> ELMoVectorizer:
        """A clone with the same model: the usual one would copy the weights for each fold of a search."""
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
    """Changes when the files of a model folder do, or another folder has the name."""
    if not isinstance(name, str | Path):
        return ()
    folder = Path(name).expanduser()
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    return tuple((str(file.resolve()), file.stat().st_mtime_ns) for file in files)


def _as_sentences(X: Any) -> list[Any]:
    # Rows of a table would be taken for token lists, and a pandas DataFrame for the list of its columns.
    if len(getattr(X, "shape", (0,))) != 1:
        raise ValueError(
            f"X has the shape {X.shape}: give sentences as a list or as one column; in a ColumnTransformer name the "
            'column as a string, "text", not as a list, ["text"]'
        )
    return as_list(X)
