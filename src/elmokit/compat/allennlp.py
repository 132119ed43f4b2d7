"""AllenNLP's `Elmo`, `ElmoTokenEmbedder` and `ElmoEmbedder`.

Input: character ids, or token lists. Output: mixes with their mask, or all layers as arrays. `Elmo` and
`ElmoTokenEmbedder` load what AllenNLP saved (see `allennlp_weights.py`).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Literal, TypedDict, get_args

import h5py
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from elmokit.arguments import (
    check_choice,
    check_flag,
    check_instance,
    check_integer,
    check_optional_integer,
    check_path,
    check_string,
    check_weights,
)
from elmokit.compat.allennlp_parts import IDS
from elmokit.compat.allennlp_weights import load_elmo
from elmokit.files import replacing
from elmokit.inference.runner import StateRule
from elmokit.model import ELMo
from elmokit.network.ids import check_dense
from elmokit.progress import format_count
from elmokit.storage.hdf5 import writing_hdf5
from elmokit.storage.names import OFFICIAL
from elmokit.text import as_list, check_sentences

Array = npt.NDArray[np.float32]
AnyPath = str | os.PathLike[str]
Format = Literal["all", "top", "average"]

_ORIGINAL = OFFICIAL["original"]


class ElmoOutput(TypedDict):
    """What `Elmo.forward` gives."""

    elmo_representations: list[Tensor]
    """(B, T, 2P) for each mix."""
    mask: Tensor
    """(B, T)."""


class Elmo(nn.Module):
    """`allennlp.modules.elmo.Elmo`: one biLM run, several mixes.

    It loads a `state_dict` that AllenNLP saved.

    Args:
        options_file: The official options, a path or a URL.
        weight_file: The official weights, a path or a URL.
        num_output_representations: Number of mixes.
        requires_grad: Train the biLM.
        do_layer_norm: Normalize each layer before it is mixed.
        dropout: Dropout of each mix, in training.
        vocab_to_cache: Accepted and not used: each distinct word of a batch is computed once in any case.
        keep_sentence_boundaries: Leave the sentence boundaries in the output.
        scalar_mix_parameters: Fixed weights of the layers, before the softmax.
        state: "stateless", or "carry" for AllenNLP's behaviour.

    Raises:
        ValueError: If the number of `scalar_mix_parameters` is not that of the layers.
    """

    def __init__(
        self,
        options_file: AnyPath,
        weight_file: AnyPath,
        num_output_representations: int,
        requires_grad: bool = False,
        do_layer_norm: bool = False,
        dropout: float = 0.5,
        vocab_to_cache: Sequence[str] | None = None,
        keep_sentence_boundaries: bool = False,
        scalar_mix_parameters: Sequence[float] | None = None,
        *,
        state: StateRule = "stateless",
    ) -> None:
        super().__init__()
        weights = None
        if scalar_mix_parameters is not None:
            weights = torch.tensor(check_weights("scalar_mix_parameters", scalar_mix_parameters))
        self.elmo = ELMo.from_files(
            check_path("options_file", options_file),
            check_path("weight_file", weight_file),
            freeze=not check_flag("requires_grad", requires_grad),
            num_mixes=check_integer("num_output_representations", num_output_representations, least=0),
            dropout=dropout,
            layer_norm=check_flag("do_layer_norm", do_layer_norm),
            keep_boundaries=check_flag("keep_sentence_boundaries", keep_sentence_boundaries),
            state=state,
        )
        if weights is not None:
            if len(weights) != self.elmo.num_layers:
                given, layers = format_count(len(weights), "weight"), format_count(self.elmo.num_layers, "layer")
                raise ValueError(f"scalar_mix_parameters has {given}, this model {layers}: pass one weight per layer")
            for mix in self.elmo.mixes:
                mix.weights.data = weights.clone()
                mix.requires_grad_(False)
        self.register_load_state_dict_pre_hook(load_elmo)  # type: ignore[no-untyped-call]
        self.train()  # as every new module is: dropout is on until .eval()

    def get_output_dim(self) -> int:
        """Width of a vector."""
        return self.elmo.dim

    def forward(self, inputs: Tensor, word_inputs: Tensor | None = None) -> ElmoOutput:
        """Run a batch.

        Args:
            inputs: Character ids (B, T, 50), or with more dimensions before T: (B, K, T, 50) gives (B, K, T, 2P).
            word_inputs: Accepted and not used.

        Returns:
            `elmo_representations`, (B, T, 2P) for each mix, and `mask` (B, T).

        Raises:
            ValueError: If the ids have a wrong shape, type or range.
        """
        check_dense(check_instance("inputs", inputs, Tensor, IDS), "inputs")
        output = self.elmo(inputs.flatten(0, -3) if inputs.ndim > 3 else inputs)
        leading = inputs.shape[:-2]
        return {
            "elmo_representations": [mixed.unflatten(0, leading) for mixed in output.mixes],
            "mask": output.mask.unflatten(0, leading),
        }


class ElmoTokenEmbedder(nn.Module):
    """`allennlp.modules.token_embedders.ElmoTokenEmbedder`: one mix, at the input of a network.

    It loads a `state_dict` that AllenNLP saved.

    Args:
        options_file: The official options, a path or a URL.
        weight_file: The official weights, a path or a URL.
        do_layer_norm: Normalize each layer before it is mixed.
        dropout: Dropout of the mix, in training.
        requires_grad: Train the biLM.
        projection_dim: Width of a learned projection of the mix; None is no projection.
        vocab_to_cache: Accepted and not used: each distinct word of a batch is computed once in any case.
        scalar_mix_parameters: Fixed weights of the layers, before the softmax.
        state: "stateless", or "carry" for AllenNLP's behaviour.

    Raises:
        ValueError: If the number of `scalar_mix_parameters` is not that of the layers.
    """

    def __init__(
        self,
        options_file: AnyPath = _ORIGINAL.options,
        weight_file: AnyPath = _ORIGINAL.weights,
        do_layer_norm: bool = False,
        dropout: float = 0.5,
        requires_grad: bool = False,
        projection_dim: int | None = None,
        vocab_to_cache: Sequence[str] | None = None,
        scalar_mix_parameters: Sequence[float] | None = None,
        *,
        state: StateRule = "stateless",
    ) -> None:
        super().__init__()
        projection_dim = check_optional_integer("projection_dim", projection_dim, least=0)
        self._elmo = Elmo(
            options_file,
            weight_file,
            1,
            requires_grad=requires_grad,
            do_layer_norm=do_layer_norm,
            dropout=dropout,
            vocab_to_cache=vocab_to_cache,
            scalar_mix_parameters=scalar_mix_parameters,
            state=state,
        )
        self._projection = nn.Linear(self._elmo.get_output_dim(), projection_dim) if projection_dim else None
        self.output_dim = projection_dim or self._elmo.get_output_dim()

    def get_output_dim(self) -> int:
        """Width of a vector."""
        return self.output_dim

    def forward(self, elmo_tokens: Tensor, word_inputs: Tensor | None = None) -> Tensor:
        """Run a batch.

        Args:
            elmo_tokens: Character ids (B, T, 50), or with more dimensions before T.
            word_inputs: Accepted and not used.

        Returns:
            (B, T, 2P), or (B, T, projection_dim).

        Raises:
            ValueError: If the ids have a wrong shape, type or range.
        """
        check_instance("elmo_tokens", elmo_tokens, Tensor, IDS)
        mixed = self._elmo(elmo_tokens, word_inputs)["elmo_representations"][0]
        vectors: Tensor = mixed if self._projection is None else self._projection(mixed)
        return vectors


class ElmoEmbedder:
    """`allennlp.commands.elmo.ElmoEmbedder`: all layers of tokenized sentences, as arrays.

    Args:
        options_file: The official options, a path or a URL.
        weight_file: The official weights, a path or a URL.
        cuda_device: Number of a GPU; -1 is the CPU.
        state: "stateless", or "carry" for AllenNLP's behaviour.

    Raises:
        ValueError: If there is no such GPU.
    """

    def __init__(
        self,
        options_file: AnyPath = _ORIGINAL.options,
        weight_file: AnyPath = _ORIGINAL.weights,
        cuda_device: int = -1,
        *,
        state: StateRule = "stateless",
    ) -> None:
        cuda_device = check_integer("cuda_device", cuda_device, least=-1)
        if cuda_device >= torch.cuda.device_count():
            raise ValueError(
                f"cuda_device is {cuda_device}, CUDA devices here: {torch.cuda.device_count()}; -1 is the CPU"
            )
        device = f"cuda:{cuda_device}" if cuda_device >= 0 else "cpu"
        check_path("options_file", options_file)
        check_path("weight_file", weight_file)
        self.elmo = ELMo.from_files(options_file, weight_file, num_mixes=0, state=state, device=device)

    def batch_to_embeddings(self, batch: Sequence[Sequence[str]]) -> tuple[Tensor, Tensor]:
        """Sentences -> (B, L+1, T, 2P), and the mask (B, T)."""
        output = self.elmo(self.elmo.to_ids(as_list(batch, "batch")))
        return output.layers.transpose(0, 1), output.mask

    def embed_sentence(self, sentence: Sequence[str]) -> Array:
        """One sentence -> (L+1, T, 2P)."""
        return self.embed_batch([sentence])[0]

    def embed_batch(self, batch: Sequence[Sequence[str]]) -> list[Array]:
        """Sentences -> (L+1, T, 2P) each."""
        sentences = as_list(batch, "batch")
        return self.elmo.embed(sentences, layers="all", batch_size=max(1, len(sentences)))

    def embed_sentences(self, sentences: Iterable[Sequence[str]], batch_size: int = 64) -> Iterator[Array]:
        """Any number of sentences -> (L+1, T, 2P) each; `batch_size` of them are read ahead."""
        return self._embed(check_sentences(sentences), "all", check_integer("batch_size", batch_size))

    def embed_file(
        self,
        input_file: Iterable[str],
        output_file_path: AnyPath,
        output_format: Format = "all",
        batch_size: int = 64,
        forget_sentences: bool = False,
        use_sentence_keys: bool = False,
    ) -> None:
        """Write the vectors of lines of tokens to an HDF5 file, which appears when it is complete.

        Args:
            input_file: Lines of tokens separated by spaces. A blank line gives an empty dataset.
            output_file_path: The file to write: one dataset per line, named by its number from "0".
            output_format: The layers: "all", "top" or "average".
            batch_size: Number of sentences per batch.
            forget_sentences: Leave out `sentence_to_index`, a JSON string of {line: key}.
            use_sentence_keys: Name a dataset by its line; without `sentence_to_index`.

        Raises:
            ValueError: If an argument is wrong, or a line is not a string or cannot be a key.
        """
        check_path("output_file_path", output_file_path)
        output_format = check_choice("output_format", output_format, get_args(Format))
        batch_size = check_integer("batch_size", batch_size)
        forget_sentences = check_flag("forget_sentences", forget_sentences)
        use_sentence_keys = check_flag("use_sentence_keys", use_sentence_keys)
        given = as_list(input_file, "input_file")
        lines = [check_string(f"input_file[{number}]", line).strip() for number, line in enumerate(given)]
        keys = lines if use_sentence_keys else [str(number) for number in range(len(lines))]
        vectors = self._embed((line.split() for line in lines), output_format, batch_size)
        with replacing(Path(output_file_path)) as target, writing_hdf5(target) as file:
            for number, (key, values) in enumerate(zip(keys, vectors, strict=True)):
                if use_sentence_keys and (not _can_be_key(key) or key in file):
                    raise ValueError(
                        f"line {number} {key!r} is blank, contains a NUL or a lone surrogate, or is there twice: it "
                        "cannot be a key of HDF5"
                    )
                try:
                    file.create_dataset(key, data=values, dtype="float32")
                except (ValueError, TypeError) as error:  # HDF5 reads a slash as a folder
                    raise ValueError(f"line {number} {key!r} cannot be a key ({error})") from None
            if not (forget_sentences or use_sentence_keys):
                index = json.dumps(dict(zip(lines, keys, strict=True)))
                file.create_dataset("sentence_to_index", data=[index], dtype=h5py.string_dtype())

    def _embed(self, sentences: Iterable[Sequence[str]], layers: Format, batch_size: int) -> Iterator[Array]:
        waiting = iter(sentences)
        while batch := list(islice(waiting, min(batch_size, sys.maxsize))):
            yield from self.elmo.embed(batch, layers=layers, batch_size=batch_size)


def _can_be_key(text: str) -> bool:
    """Whether a text can be the name of a dataset of HDF5."""
    try:
        return bool(text) and b"\0" not in text.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return False
