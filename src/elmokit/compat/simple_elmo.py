"""The `ElmoModel` of simple_elmo."""

from __future__ import annotations

import os
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypedDict

import numpy as np
import numpy.typing as npt
import torch

from elmokit.arguments import check_flag, check_integer, check_optional_integer, check_path
from elmokit.model import ELMo
from elmokit.network import OutputLayer
from elmokit.text import Vocabulary, as_list, as_tokens

Array = npt.NDArray[np.float32]
Format = Literal["all", "top", "average"]


class Candidates(TypedDict):
    """The likeliest words of one direction, best first."""

    candidates: list[int]
    candidate_words: list[str]
    logp: list[float]


class WordSubstitutes(TypedDict):
    """What either direction predicts in the place of a word."""

    word: str
    forward: Candidates
    backward: Candidates


class ElmoModel:
    """`simple_elmo.ElmoModel`: load a model, then get padded arrays of vectors."""

    def __init__(self) -> None:
        self._elmo: ELMo | None = None
        self.batch_size: int | None = 32

    @property
    def elmo(self) -> ELMo:
        """The model."""
        if self._elmo is None:
            raise ValueError("no model yet: call load(directory) first")
        return self._elmo

    @property
    def n_layers(self) -> int:
        """Number of layers, the context-free one included."""
        return self.elmo.num_layers

    @property
    def vector_size(self) -> int:
        """Width of a vector."""
        return self.elmo.dim

    def load(
        self, directory: str | os.PathLike[str], max_batch_size: int | None = 32, limit: int = 100, full: bool = False
    ) -> str:
        """Load a model.

        Args:
            directory: A folder, or a ZIP archive with `options.json` and `model.hdf5` as in the NLPL repository.
            max_batch_size: Largest number of sentences per batch; None chooses it.
            limit: Accepted and not used: the cache chooses its size.
            full: Accepted and not used: a language model is loaded if the folder has one.

        Raises:
            ValueError: If there is no model, or an argument is wrong.
        """
        max_batch_size = check_optional_integer("max_batch_size", max_batch_size)
        path = Path(check_path("directory", directory))
        if path.is_file() and zipfile.is_zipfile(path):
            with tempfile.TemporaryDirectory() as folder:
                self._elmo = ELMo.from_pretrained(_unpack(path, Path(folder)))
        else:
            self._elmo = ELMo.from_pretrained(path)
        self.batch_size = max_batch_size
        return "The model is now loaded."

    def get_elmo_vectors(
        self, texts: Sequence[Sequence[str]], *, layers: Format = "average", warmup: bool = True
    ) -> Array:
        """Vectors of tokenized sentences.

        Args:
            texts: Token lists.
            layers: "average", "top" or "all".
            warmup: Accepted and not used: no state is kept.

        Returns:
            (n, T, 2P), or (n, L+1, T, 2P) with "all"; padded with zeros to the longest sentence.
        """
        vectors = self._vectors(texts, layers)
        longest = max((rows.shape[-2] for rows in vectors), default=0)
        result = np.zeros((len(vectors), *self._layers_axis(layers), longest, self.vector_size), dtype=np.float32)
        for row, values in zip(result, vectors, strict=True):
            row[..., : values.shape[-2], :] = values
        return result

    def get_elmo_vector_average(
        self, texts: Sequence[Sequence[str]], *, layers: Format = "average", warmup: bool = True
    ) -> Array:
        """Vectors of sentences: the mean over the tokens, scaled to length one.

        Args:
            texts: Token lists.
            layers: "average", "top" or "all".
            warmup: Accepted and not used: no state is kept.

        Returns:
            (n, 2P), or (n, L+1, 2P) with "all", where all layers of a sentence are scaled together.
        """
        vectors = self._vectors(texts, layers)
        result = np.zeros((len(vectors), *self._layers_axis(layers), self.vector_size), dtype=np.float32)
        for row, values in zip(result, vectors, strict=True):
            total = values.sum(axis=-2)
            row[...] = total / max(float(np.linalg.norm(total)), 1e-12)
        return result

    def get_elmo_substitutes(
        self, data: Sequence[str], topn: int = 3, nodelimiters: bool = True
    ) -> list[list[WordSubstitutes]]:
        """What each direction of the language model predicts in the place of each word.

        Args:
            data: Sentences, which are split on whitespace.
            topn: Number of words per direction.
            nodelimiters: Leave out <S> and </S>.

        Returns:
            For each word of each sentence the likeliest words of both directions.

        Raises:
            ValueError: If the model is not a language model, or has fewer words than `topn`.
        """
        nodelimiters = check_flag("nodelimiters", nodelimiters)
        sentences = as_tokens([item.split() if isinstance(item, str) else item for item in as_list(data, "data")])
        model = self.elmo
        topn = check_integer("topn", topn)
        model.load_language_model()
        output_layer, vocabulary = model.output_layer, model.vocabulary
        if output_layer is None or vocabulary is None:
            raise ValueError(
                "this model has no softmax and vocabulary, so it does not predict words: load a language model"
            )
        if topn > len(vocabulary):
            raise ValueError(f"topn must be 1 to {len(vocabulary)}, the words of the vocabulary, not {topn}")
        return [self._substitutes(tokens, topn, nodelimiters, output_layer, vocabulary) for tokens in sentences]

    def _substitutes(
        self, tokens: list[str], topn: int, nodelimiters: bool, output_layer: OutputLayer, vocabulary: Vocabulary
    ) -> list[WordSubstitutes]:
        """What both directions predict at each token of a sentence."""
        model = self.elmo
        width = model.config.projection_dim
        with torch.no_grad():
            top = model.bilm(model.to_ids([tokens]).to(model.device), keep_boundaries=True).layers[-1, 0]  # (T+2, 2P)
            scores = output_layer.logits(torch.stack([top[:-2, :width], top[2:, width:]])).log_softmax(dim=-1)
        if nodelimiters:
            scores[..., [vocabulary.bos_id, vocabulary.eos_id]] = -torch.inf
        best = scores.topk(topn)  # (2, T, topn)
        values, ids = best.values.tolist(), best.indices.tolist()

        def candidates(direction: int, position: int) -> Candidates:
            numbers = ids[direction][position]
            words = [vocabulary.words[number] for number in numbers]
            return {"candidates": numbers, "candidate_words": words, "logp": values[direction][position]}

        return [
            {"word": word, "forward": candidates(0, position), "backward": candidates(1, position)}
            for position, word in enumerate(tokens)
        ]

    def _vectors(self, texts: Sequence[Sequence[str]], layers: Format) -> list[Array]:
        return self.elmo.embed(texts, layers=layers, batch_size=self.batch_size)

    def _layers_axis(self, layers: Format) -> tuple[int, ...]:
        return (self.n_layers,) if layers == "all" else ()


def _unpack(archive: Path, folder: Path) -> Path:
    with zipfile.ZipFile(archive) as zipped:
        for name in ("options.json", "model.hdf5"):
            if name not in zipped.namelist():
                raise ValueError(f"{archive}: no {name} in it, but {', '.join(zipped.namelist()[:20]) or 'nothing'}")
            zipped.extract(name, folder)
    return folder
