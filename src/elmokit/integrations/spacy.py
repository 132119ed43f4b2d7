"""ELMo inside spaCy: a pipe that sets vectors, and a layer that a spaCy config trains.

Input: spaCy `Doc`s. Output: with the component "elmokit", `doc.tensor` with one vector per token, which the `vector`
and `similarity` of tokens, spans and docs read; with the architecture "elmokit.ELMo.v1", a Thinc model from docs to
lists of vectors, for `[components.tok2vec.model]` or for the embedding of any other component. spaCy finds both by
their entry points, without an import.

Sentences are read one by one if a component before has set them; otherwise a doc is one sentence. A token of whitespace
is not a word: it is left out of its sentence, and its vector is zeros. Tokens are spaCy's own.
"""

# ruff: noqa: E402 (a missing host is reported before anything imports it)

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from elmokit.extras import require
from elmokit.inference.views import Layers, check_layers, needs_weights
from elmokit.integrations.bundles import drop_language_model, in_folder, to_files
from elmokit.model import ELMo

require("spacy.language", extra="spacy")

import srsly  # type: ignore[import-untyped]
from spacy.language import Language
from spacy.pipeline import Pipe
from spacy.tokens import Doc, Span, Token
from spacy.util import SimpleFrozenList, minibatch, registry
from thinc.api import Dropout, Maxout, Model, PyTorchShim, chain, torch2xp, with_array, xp2torch
from thinc.types import Floats2d
from thinc.util import get_torch_default_device

__all__ = ["ContextVectors", "attach_vectors", "make_context_vectors", "make_tok2vec"]

Array = npt.NDArray[np.float32]
MODEL_FOLDER = "model"


# ---- a model for either ----------------------------------------------------------------------------------------------


def _load(name: str | Path | None, *, freeze: bool = True, keep_vocabulary: bool = False) -> ELMo:
    """Load a model onto spaCy's device; a pipeline has no use for the softmax."""
    elmo = ELMo.from_pretrained(name, freeze=freeze, num_mixes=0, device=get_torch_default_device())
    drop_language_model(elmo, keep_vocabulary=keep_vocabulary)
    return elmo


def _to_bytes(elmo: ELMo) -> bytes:
    return cast(bytes, srsly.msgpack_dumps(to_files(elmo)))


def _from_bytes(data: bytes, *, freeze: bool = True, keep_vocabulary: bool = False) -> ELMo:
    with in_folder(srsly.msgpack_loads(data)) as folder:
        return _load(folder, freeze=freeze, keep_vocabulary=keep_vocabulary)


@dataclass(frozen=True)
class _Sentences:
    """The words of some docs, and their rows among all tokens of those docs."""

    words: list[list[str]]
    rows: npt.NDArray[np.int64]
    lengths: list[int]
    """Number of tokens of each doc, whitespace included."""

    @classmethod
    def of(cls, docs: Sequence[Doc]) -> _Sentences:
        words: list[list[str]] = []
        rows: list[int] = []
        first = 0
        for doc in docs:
            for sentence in doc.sents if doc.has_annotation("SENT_START") else [doc[:]]:
                tokens = [token for token in sentence if not token.is_space]
                if tokens:
                    words.append([token.text for token in tokens])
                    rows.extend(first + token.i for token in tokens)
            first += len(doc)
        return cls(words, np.array(rows, dtype=np.int64), [len(doc) for doc in docs])


# ---- nlp.add_pipe("elmokit") -----------------------------------------------------------------------------------------


class ContextVectors(Pipe):
    """Sets `doc.tensor` to the vectors of the tokens in their sentences, and lets spaCy's `vector`s read it.

    Args:
        name: The component's name in the pipeline.
        model: What `ELMo.from_pretrained` takes; None is the embedded model. It is loaded when it is first needed.
        layers: "average", "top", "slot", "sense" or the number of a layer, as in `ELMo.embed`. A number that the model
            does not have is a ValueError when the model is loaded.
    """

    def __init__(self, name: str, model: str | None, layers: Layers) -> None:
        if isinstance(layers, str):  # the names are the same for every model
            check_layers(layers, 1, single=True)
        self.name, self.model_name, self.layers = name, model, layers
        self._elmo: ELMo | None = None

    @property
    def elmo(self) -> ELMo:
        """The model. It is loaded when it is first needed; a pipeline from disk has its own."""
        if self._elmo is None:
            self._elmo = self._check(_load(self.model_name, keep_vocabulary=self._needs_weights))
        return self._elmo

    @property
    def _needs_weights(self) -> bool:
        return needs_weights(self.layers)

    def _check(self, elmo: ELMo) -> ELMo:
        check_layers(self.layers, elmo.num_layers, single=True)
        return elmo

    def __call__(self, doc: Doc) -> Doc:
        """Set the vectors of one doc."""
        self._set_vectors([doc])
        return doc

    def pipe(self, stream: Iterable[Doc], *, batch_size: int = 128) -> Iterator[Doc]:
        """Set the vectors of docs, `batch_size` of them at a time."""
        for docs in minibatch(stream, size=batch_size):  # type: ignore[no-untyped-call]
            try:
                self._set_vectors(docs)
            except Exception as error:
                self.get_error_handler()(self.name, self, docs, error)
            else:
                yield from docs

    def _set_vectors(self, docs: Sequence[Doc]) -> None:
        sentences = _Sentences.of(docs)
        vectors: Array = np.zeros((sum(sentences.lengths), self.elmo.dim), dtype=np.float32)
        if sentences.words:
            vectors[sentences.rows] = np.concatenate(self.elmo.embed(sentences.words, layers=self.layers))
        for doc, tensor in zip(docs, np.split(vectors, np.cumsum(sentences.lengths)[:-1]), strict=True):
            doc.tensor = cast(Any, tensor.copy())  # a view would keep the whole batch
            attach_vectors(doc)

    def initialize(self, get_examples: Callable[[], Iterable[Any]], *, nlp: Language | None = None) -> None:
        """Load the model now, so that a wrong name is an error before training."""
        self._elmo = self._check(_load(self.model_name, keep_vocabulary=self._needs_weights))

    def to_disk(self, path: str | Path, *, exclude: Iterable[str] = SimpleFrozenList()) -> None:
        """Write the model: the folder needs nothing outside it."""
        self.elmo.save_pretrained(Path(path) / MODEL_FOLDER)

    def from_disk(self, path: str | Path, *, exclude: Iterable[str] = SimpleFrozenList()) -> ContextVectors:
        """Read the model that `to_disk` wrote."""
        self._elmo = self._check(_load(Path(path) / MODEL_FOLDER, keep_vocabulary=self._needs_weights))
        return self

    def to_bytes(self, *, exclude: Iterable[str] = SimpleFrozenList()) -> bytes:
        """The model as bytes."""
        return _to_bytes(self.elmo)

    def from_bytes(self, data: bytes, *, exclude: Iterable[str] = SimpleFrozenList()) -> ContextVectors:
        """Take the model that `to_bytes` gave."""
        self._elmo = self._check(_from_bytes(data, keep_vocabulary=self._needs_weights))
        return self


def attach_vectors(doc: Doc) -> None:
    """Let the `vector` and `similarity` of a doc and its parts read `doc.tensor`.

    The component does so; a doc that came as bytes, from a file or from another process, has lost it.

    Args:
        doc: A doc with the vectors in `doc.tensor`.

    Raises:
        ValueError: If `doc.tensor` has no vectors.
    """
    if doc.tensor.ndim != 2:
        raise ValueError(f"the doc has no vectors (doc.tensor is {doc.tensor.shape}): run elmokit on it")
    hooks = _Hooks(doc.tensor.shape[1])
    for place in (doc.user_hooks, doc.user_span_hooks, doc.user_token_hooks):
        place.update(vector=hooks.vector, has_vector=hooks.has_vector, similarity=hooks.similarity)


@dataclass(frozen=True)
class _Hooks:
    """Functions for `vector`, `has_vector` and `similarity` that read `doc.tensor`, which spaCy keeps up to date when
    tokens are merged or split, a span becomes a doc, or a doc is sent as bytes."""

    width: int

    def vector(self, item: Doc | Span | Token) -> Array:
        """A token's row; for a span or a doc the mean over its words."""
        if isinstance(item, Token):
            return cast(Array, self._tensor(item.doc)[item.i])
        words = [token.i for token in item if not token.is_space]
        tensor = self._tensor(item.doc)
        return cast(Array, tensor[words].mean(axis=0) if words else np.zeros(self.width, dtype=np.float32))

    def has_vector(self, item: Doc | Span | Token) -> bool:
        """False where there is no word."""
        return bool(self.vector(item).any())

    def similarity(self, item: Doc | Span | Token, other: Any) -> float:
        """Cosine. spaCy's own gives 1 for any two tokens with the same text."""
        a, b = self.vector(item), other.vector
        if a.shape != b.shape:
            raise ValueError(f"no cosine of vectors of {len(a)} and {len(b)} numbers: use one pipeline for both")
        return float(np.dot(a, b) / max(float(np.linalg.norm(a) * np.linalg.norm(b)), 1e-12))

    def _tensor(self, doc: Doc) -> Array:
        if doc.tensor.shape != (len(doc), self.width):
            raise ValueError(
                f"doc.tensor is {doc.tensor.shape} and no longer the {(len(doc), self.width)} that elmokit set: "
                "another component has replaced it; add elmokit after that one"
            )
        return cast(Array, doc.tensor)


@Language.factory(
    "elmokit",
    default_config={"model": None, "layers": "average"},
    assigns=["doc.tensor", "doc.vector", "token.vector"],
)
def make_context_vectors(nlp: Language, name: str, model: str | None, layers: str | int) -> ContextVectors:
    """Make the component.

    Args:
        nlp: The pipeline.
        name: The component's name in it.
        model: What `ELMo.from_pretrained` takes; None is the embedded model.
        layers: "average", "top", "slot", "sense" or the number of a layer.
    """
    return ContextVectors(name, model, cast(Layers, layers))


# ---- [components.tok2vec.model] --------------------------------------------------------------------------------------


@registry.architectures("elmokit.ELMo.v1")  # type: ignore[untyped-decorator]
def make_tok2vec(
    model: str | None = None, width: int | None = None, fine_tune: bool = False, cache_tokens: int = 0
) -> Model[list[Doc], list[Floats2d]]:
    """Make a Thinc model from docs to their tokens' vectors: a learned mix of the biLM's layers, and dropout.

    Args:
        model: What `ELMo.from_pretrained` takes; None is the embedded model.
        width: Add a maxout layer of this width, as spaCy's own embeddings have. None: vectors are as wide as the
            biLM's.
        fine_tune: Train the biLM too.
        cache_tokens: Number of tokens of training whose layers stay in memory, so that a frozen biLM need not read
            them in every epoch; 6 kB per token with the embedded model.

    Raises:
        ValueError: If both `fine_tune` and `cache_tokens` are set.
    """
    if cache_tokens and fine_tune:
        raise ValueError(f"cache_tokens={cache_tokens} is for a frozen biLM: set it to 0, or fine_tune to false")
    layers: list[Model[Any, Any]] = [
        Model(
            "elmo_mix",
            _forward_mix,
            init=_initialize_mix,
            params={"weights": None, "gamma": None},
            dims={"nO": None},
            shims=[_BiLMShim(model, fine_tune, cache_tokens)],
        ),
        Dropout(),
    ]
    if width is not None:
        layers.append(with_array(Maxout(width, nP=3, dropout=0.0, normalize=True)))
    return chain(*layers)


class _BiLMShim(PyTorchShim):
    """Holds the model for Thinc, which lets it take optimizer steps and saves and loads it as bytes."""

    def __init__(self, name: str | None, fine_tune: bool, cache_tokens: int) -> None:
        super().__init__(None)
        self.name, self.fine_tune, self.cache_tokens = name, fine_tune, cache_tokens
        self._kept: dict[tuple[str, ...], Tensor] = {}

    @property
    def elmo(self) -> ELMo:
        """The model, after `initialize` or `from_bytes`."""
        if self._model is None:
            raise ValueError("the model has no weights yet: call nlp.initialize(), or load a trained pipeline")
        return cast(ELMo, self._model)

    def load(self) -> ELMo:
        """Load the model that the config names."""
        self._model, self._kept = _load(self.name, freeze=not self.fine_tune), {}
        return self.elmo

    def layers(self, sentences: _Sentences, is_train: bool) -> Tensor:
        """(L+1, N, 2P): each word's vector in each layer."""
        if not sentences.words:
            return torch.zeros(self.elmo.num_layers, 0, self.elmo.dim, device=self.elmo.device)
        if is_train and self.fine_tune:
            output = self.elmo(self.elmo.to_ids(sentences.words))
            return cast(Tensor, output.layers[:, output.mask])
        keys = [tuple(words) for words in sentences.words]
        unread = [key for key in dict.fromkeys(keys) if key not in self._kept]
        read = dict(zip(unread, self.elmo.embed(unread, layers="all", convert_to_tensor=True), strict=True))
        if is_train:
            self._keep(read)
        return torch.cat([self._kept[key] if key in self._kept else read[key] for key in keys], dim=1)

    def _keep(self, read: dict[tuple[str, ...], Tensor]) -> None:
        """Keep what comes first: in epochs of the same order, dropping the oldest would drop everything."""
        room = self.cache_tokens - sum(map(len, self._kept))
        for key, states in read.items():
            if len(key) <= room:
                self._kept[key] = states.clone()  # a view would keep the whole batch
                room -= len(key)

    def to_bytes(self) -> bytes:
        return b"" if self._model is None else _to_bytes(self._model)

    def from_bytes(self, data: bytes) -> _BiLMShim:
        if data:
            self._model, self._kept = _from_bytes(data, freeze=not self.fine_tune), {}
        return self


def _initialize_mix(model: Model[Any, Any], X: Any = None, Y: Any = None) -> None:
    elmo = cast(_BiLMShim, model.shims[0]).load()
    model.set_dim("nO", elmo.dim)
    model.set_param("weights", model.ops.alloc1f(elmo.num_layers))
    model.set_param("gamma", model.ops.alloc1f(1) + 1)


def _forward_mix(
    model: Model[list[Doc], list[Floats2d]], docs: list[Doc], is_train: bool
) -> tuple[list[Floats2d], Callable[[list[Floats2d]], list[Doc]]]:
    """gamma * sum_j softmax(weights)_j * layer_j, as `ScalarMix`, with parameters of Thinc."""
    sentences = _Sentences.of(docs)
    ops, xp = model.ops, model.ops.xp
    states = cast(_BiLMShim, model.shims[0]).layers(sentences, is_train)
    layers: Any = torch2xp(states.detach(), ops=ops)  # (L+1, N, 2P)
    gamma: Any = model.get_param("gamma")  # (1,)
    fractions: Any = ops.softmax(cast(Any, model.get_param("weights")))  # (L+1,)
    mixed = xp.tensordot(fractions, layers, axes=1)  # (N, 2P)
    vectors: Any = ops.alloc2f(sum(sentences.lengths), mixed.shape[1])
    vectors[sentences.rows] = gamma * mixed

    def backprop(grad_vectors: list[Floats2d]) -> list[Doc]:
        grad_words = cast(Any, ops.flatten(grad_vectors))[sentences.rows]  # (N, 2P)
        model.inc_grad("gamma", (grad_words * mixed).sum().reshape(1))
        grad_fractions = gamma * xp.tensordot(layers, grad_words, axes=2)  # (L+1,)
        model.inc_grad("weights", fractions * (grad_fractions - (fractions * grad_fractions).sum()))
        if states.requires_grad:
            torch.autograd.backward(
                states, xp2torch((gamma * fractions)[:, None, None] * grad_words, device=states.device)
            )
        return []

    return cast(list[Floats2d], ops.unflatten(vectors, ops.asarray1i(sentences.lengths))), backprop
