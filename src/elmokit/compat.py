"""The names that users of other ELMo packages know, each a few lines over `ELMo`.

Enters: what those packages took.  Leaves: the shapes that they gave: AllenNLP's `Elmo`, `ElmoEmbedder` and
`batch_to_ids`, TF-Hub's module, ELMoForManyLangs' `Embedder`, simple_elmo's `ElmoModel`, the `SeqVecEmbedder` of
proteins.  Vectors do not depend on what was embedded before, unless `state="carry"` asks for AllenNLP's way.
docs/differences.md lists the rest.
"""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from elmokit.files import replacing
from elmokit.inference.runner import StateRule
from elmokit.model import ELMo
from elmokit.storage.hdf5 import writing_hdf5
from elmokit.storage.names import OFFICIAL
from elmokit.text import as_list, as_tokens, batch_to_ids

__all__ = [
    "Elmo",
    "ElmoEmbedder",
    "ElmoModel",
    "Embedder",
    "SeqVecEmbedder",
    "TFHubELMo",
    "batch_to_ids",
    "read_fasta",
]

Array = npt.NDArray[np.float32]
AnyPath = str | os.PathLike[str]
Format = Literal["all", "top", "average"]

_ORIGINAL = OFFICIAL["original"]


# ---- AllenNLP --------------------------------------------------------------------------------------------------------


class Elmo(nn.Module):
    """`allennlp.modules.elmo.Elmo`: one biLM run, several mixes.

    `vocab_to_cache` and `word_inputs` saved work by naming words by number; each distinct word of a batch is computed
    once here in any case, from its characters, so both are taken and not read.
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
        self.elmo = ELMo.from_files(
            options_file,
            weight_file,
            freeze=not requires_grad,
            num_mixes=num_output_representations,
            dropout=dropout,
            layer_norm=do_layer_norm,
            keep_boundaries=keep_sentence_boundaries,
            state=state,
        )
        if scalar_mix_parameters is not None:
            given = torch.tensor([float(weight) for weight in scalar_mix_parameters])
            num_layers = self.elmo.config.num_layers + 1
            if len(given) != num_layers:
                raise ValueError(
                    f"scalar_mix_parameters has {len(given)} weights, this model {num_layers} layers: give one each"
                )
            for mix in self.elmo.mixes:
                mix.weights.data = given.clone()
                mix.requires_grad_(False)
        self.train()  # as every new module is: dropout is on until .eval()

    def get_output_dim(self) -> int:
        """The width of a vector."""
        return 2 * int(self.elmo.config.projection_dim)

    def forward(self, inputs: Tensor, word_inputs: Tensor | None = None) -> dict[str, Any]:
        """Character ids (B, T, 50) -> `elmo_representations`, a list of (B, T, 2P), and `mask` (B, T).

        Dimensions before those three come back as they were: (B, K, T, 50) gives (B, K, T, 2P).
        """
        output = self.elmo(inputs.flatten(0, -3) if inputs.ndim > 3 else inputs)
        leading = inputs.shape[:-2]
        return {
            "elmo_representations": [mixed.unflatten(0, leading) for mixed in output.mixes],
            "mask": output.mask.unflatten(0, leading),
        }


class ElmoEmbedder:
    """`allennlp.commands.elmo.ElmoEmbedder`: all layers of tokenized sentences, as arrays."""

    def __init__(
        self,
        options_file: AnyPath = _ORIGINAL.options,
        weight_file: AnyPath = _ORIGINAL.weights,
        cuda_device: int = -1,
        *,
        state: StateRule = "stateless",
    ) -> None:
        if cuda_device >= torch.cuda.device_count():
            raise ValueError(
                f"cuda_device is {cuda_device}, CUDA devices here: {torch.cuda.device_count()}; -1 is the CPU"
            )
        device = f"cuda:{cuda_device}" if cuda_device >= 0 else "cpu"
        self.elmo = ELMo.from_files(options_file, weight_file, num_mixes=0, state=state, device=device)

    def batch_to_embeddings(self, batch: Sequence[Sequence[str]]) -> tuple[Tensor, Tensor]:
        """Sentences -> (B, L+1, T, 2P), and the mask (B, T)."""
        output = self.elmo(self.elmo.to_ids(batch))
        return output.layers.transpose(0, 1), output.mask

    def embed_sentence(self, sentence: Sequence[str]) -> Array:
        """One sentence -> (L+1, T, 2P)."""
        return self.embed_batch([sentence])[0]

    def embed_batch(self, batch: Sequence[Sequence[str]]) -> list[Array]:
        """Sentences -> (L+1, T, 2P) each."""
        return self.elmo.embed(batch, layers="all", batch_size=max(1, len(batch)))

    def embed_sentences(self, sentences: Iterable[Sequence[str]], batch_size: int = 64) -> Iterator[Array]:
        """Any number of sentences -> (L+1, T, 2P) each, `batch_size` of them read ahead."""
        return self._embed(sentences, "all", batch_size)

    def embed_file(
        self,
        input_file: Iterable[str],
        output_file_path: AnyPath,
        output_format: Format = "all",
        batch_size: int = 64,
        forget_sentences: bool = False,
        use_sentence_keys: bool = False,
    ) -> None:
        """Lines of tokens between spaces -> HDF5: a dataset for each, its key the line's number from "0", or the line.

        Beside numbers stands `sentence_to_index`: one JSON string of {line: key}.  A blank line is an empty dataset.
        The file appears when all of it is written.
        """
        if output_format not in ("all", "top", "average"):
            raise ValueError(f'output_format must be "all", "top" or "average", not {output_format!r}')
        lines = [line.strip() for line in input_file]
        keys = lines if use_sentence_keys else [str(number) for number in range(len(lines))]
        vectors = self._embed((line.split() for line in lines), output_format, batch_size)
        with replacing(Path(output_file_path)) as target, writing_hdf5(target) as file:
            for number, (key, values) in enumerate(zip(keys, vectors, strict=True)):
                if use_sentence_keys and (not key or "\0" in key or key in file):
                    raise ValueError(
                        f"line {number} {key!r} is blank, holds a NUL or was there before: no key for HDF5"
                    )
                try:
                    file.create_dataset(key, data=values, dtype="float32")
                except (ValueError, TypeError) as error:  # HDF5 reads a slash as a folder
                    raise ValueError(f"line {number} {key!r} cannot be a key ({error})") from None
            if not (forget_sentences or use_sentence_keys):
                index = json.dumps(dict(zip(lines, keys, strict=True)))
                file.create_dataset("sentence_to_index", data=[index], dtype=h5py.string_dtype())

    def _embed(self, sentences: Iterable[Sequence[str]], layers: Format, batch_size: int) -> Iterator[Array]:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {batch_size}")
        waiting = iter(sentences)
        while batch := list(islice(waiting, batch_size)):
            yield from self.elmo.embed(batch, layers=layers, batch_size=batch_size)


# ---- TF-Hub ----------------------------------------------------------------------------------------------------------


class TFHubELMo(nn.Module):
    """`hub.Module("https://tfhub.dev/google/elmo/3")`: both signatures and all outputs, as torch tensors.

    `model` is an `ELMo` with one mix, or what `ELMo.from_pretrained` takes.  The mix's weights are trainable; with
    `trainable` (or in an `ELMo` that is not frozen) the biLM is too.
    """

    def __init__(self, model: ELMo | AnyPath | None = "original", trainable: bool = False) -> None:
        super().__init__()
        if not isinstance(model, ELMo):
            model = ELMo.from_pretrained(model, freeze=not trainable, num_mixes=1, dropout=0.0)
        if len(model.mixes) != 1:
            raise ValueError(
                f"the model has {len(model.mixes)} mixes, TF-Hub's output has one: make it with num_mixes=1"
            )
        self.elmo = model

    def forward(self, inputs: Any, signature: Literal["default", "tokens"] = "default", as_dict: bool = False) -> Any:
        """Strings (B), split on spaces; or {"tokens": (B, T), "sequence_len": (B)} with `signature="tokens"`.

        Gives the sentence vectors (B, 2P), or with `as_dict` {"word_emb": (B, T, P), "lstm_outputs1", "lstm_outputs2",
        "elmo": (B, T, 2P), "default": (B, 2P)}; `default` is the mean of `elmo` over the tokens, padding left out.
        """
        if signature == "default":
            sentences = [_split_on_spaces(sentence, place) for place, sentence in enumerate(as_list(inputs))]
        elif signature == "tokens":
            sentences = _unpadded(inputs)
        else:
            raise ValueError(f'signature must be "default" or "tokens", not {signature!r}')
        output = self.elmo(self.elmo.to_ids(sentences))
        mixed, lengths = output.mixes[0], output.mask.sum(dim=1, keepdim=True)
        default = (mixed * output.mask.unsqueeze(-1)).sum(dim=1) / lengths.clamp(min=1)
        if not as_dict:
            return default
        result = {"word_emb": output.layers[0, :, :, : self.elmo.config.projection_dim]}
        result |= {f"lstm_outputs{number}": layer for number, layer in enumerate(output.layers[1:], 1)}
        return result | {"elmo": mixed, "default": default}


def _split_on_spaces(sentence: object, place: int) -> list[str]:
    if not isinstance(sentence, str):
        raise ValueError(f'inputs[{place}] is {sentence!r}, not a string: token lists need signature="tokens"')
    return [token for token in sentence.split(" ") if token]


def _unpadded(inputs: object) -> list[list[str]]:
    if not isinstance(inputs, Mapping) or set(inputs) != {"tokens", "sequence_len"}:
        raise ValueError(f'signature "tokens" takes {{"tokens": …, "sequence_len": …}}, not {inputs!r}')
    rows, lengths = as_list(inputs["tokens"]), np.asarray(inputs["sequence_len"])
    if lengths.shape != (len(rows),) or (lengths.size and lengths.dtype.kind not in "iu"):
        raise ValueError(f"sequence_len is {inputs['sequence_len']!r}, not {len(rows)} whole numbers, one for each row")
    for place, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        if isinstance(row, str) or not 0 <= length <= len(row):
            raise ValueError(
                f"tokens[{place}] is {row!r}, not a list of at least sequence_len[{place}] = {length} tokens"
            )
    return [list(row[:length]) for row, length in zip(rows, lengths, strict=True)]


# ---- ELMoForManyLangs ------------------------------------------------------------------------------------------------


class Embedder:
    """`elmoformanylangs.Embedder`, over its own folders and any other model that `ELMo.from_pretrained` takes."""

    def __init__(self, model_dir: AnyPath, batch_size: int = 64) -> None:
        self.elmo = ELMo.from_pretrained(model_dir)
        self.batch_size = batch_size

    def sents2elmo(self, sents: Sequence[Sequence[str]], output_layer: int = -1) -> list[Array]:
        """Tokenized sentences -> (T, 2P) each: layer 0, 1, 2, or -1 for their mean; -2 for all, (L+1, T, 2P)."""
        layers: Any = {-1: "average", -2: "all"}.get(output_layer, output_layer)
        return self.elmo.embed(sents, layers=layers, batch_size=self.batch_size)


# ---- simple_elmo -----------------------------------------------------------------------------------------------------


class ElmoModel:
    """`simple_elmo.ElmoModel`: load a model, then get padded arrays of vectors."""

    def __init__(self) -> None:
        self._elmo: ELMo | None = None
        self.batch_size = 32

    @property
    def elmo(self) -> ELMo:
        """The model."""
        if self._elmo is None:
            raise ValueError("no model yet: call load(directory) first")
        return self._elmo

    @property
    def n_layers(self) -> int:
        """Layers, the context-free one among them."""
        return int(self.elmo.config.num_layers) + 1

    @property
    def vector_size(self) -> int:
        """The width of a vector."""
        return 2 * int(self.elmo.config.projection_dim)

    def load(self, directory: AnyPath, max_batch_size: int = 32, limit: int = 100, full: bool = False) -> str:
        """Load a folder, or a ZIP archive with `options.json` and `model.hdf5` as the NLPL repository has them.

        `limit` sized a cache that sizes itself here; `full` asked for the language model, which is loaded wherever the
        folder holds one.
        """
        path = Path(directory)
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
        """Tokenized sentences -> (n, T, 2P), padded with zeros to the longest; "all": (n, L+1, T, 2P).

        `warmup` ran the first batch twice, to fill a state that is not kept here.
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
        """Tokenized sentences -> (n, 2P): the mean over the tokens, scaled to length one; "all": (n, L+1, 2P)."""
        vectors = self._vectors(texts, layers)
        result = np.zeros((len(vectors), *self._layers_axis(layers), self.vector_size), dtype=np.float32)
        for row, values in zip(result, vectors, strict=True):
            total = values.sum(axis=-2)
            row[...] = total / max(float(np.linalg.norm(total)), 1e-12)
        return result

    def get_elmo_substitutes(
        self, data: Sequence[str], topn: int = 3, nodelimiters: bool = True
    ) -> list[list[dict[str, Any]]]:
        """Sentences, split on whitespace -> for each word what either language model would say in its place.

        {"word", "forward", "backward"}; each direction {"candidates": ids, "candidate_words", "logp"}, the likeliest
        first.  `nodelimiters` leaves <S> and </S> out.
        """
        sentences = as_tokens([item.split() if isinstance(item, str) else item for item in as_list(data)])
        return [self._substitutes(tokens, topn, nodelimiters) for tokens in sentences]

    def _substitutes(self, tokens: list[str], topn: int, nodelimiters: bool) -> list[dict[str, Any]]:
        model = self.elmo
        output_layer, vocabulary = model.output_layer, model.vocabulary
        if output_layer is None or vocabulary is None:
            raise ValueError("this model has no softmax and vocabulary, so it predicts no words: load a language model")
        if not 1 <= topn <= len(vocabulary):
            raise ValueError(f"topn must be 1 to {len(vocabulary)}, the words of the vocabulary, not {topn}")
        width = model.config.projection_dim
        with torch.no_grad():
            top = model.bilm(model.to_ids([tokens]).to(model.device), keep_boundaries=True).layers[-1, 0]  # (T+2, 2P)
            scores = output_layer.logits(torch.stack([top[:-2, :width], top[2:, width:]])).log_softmax(dim=-1)
        if nodelimiters:
            scores[..., [vocabulary.bos_id, vocabulary.eos_id]] = -torch.inf
        best = scores.topk(topn)  # (2, T, topn)
        values, ids = best.values.tolist(), best.indices.tolist()
        return [
            {"word": word}
            | {
                name: {
                    "candidates": ids[d][place],
                    "candidate_words": [vocabulary.words[number] for number in ids[d][place]],
                    "logp": values[d][place],
                }
                for d, name in enumerate(("forward", "backward"))
            }
            for place, word in enumerate(tokens)
        ]

    def _vectors(self, texts: Sequence[Sequence[str]], layers: Format) -> list[Array]:
        return self.elmo.embed(texts, layers=layers, batch_size=self.batch_size)

    def _layers_axis(self, layers: Format) -> tuple[int, ...]:
        return (self.n_layers,) if layers == "all" else ()


def _unpack(archive: Path, folder: Path) -> Path:
    with zipfile.ZipFile(archive) as zipped:
        for name in ("options.json", "model.hdf5"):
            if name not in zipped.namelist():
                raise ValueError(f"{archive}: holds no {name}, but {', '.join(zipped.namelist()[:20]) or 'nothing'}")
            zipped.extract(name, folder)
    return folder


# ---- SeqVec: proteins as sentences, residues as words ----------------------------------------------------------------


class SeqVecEmbedder:
    """`bio_embeddings.embed.SeqVecEmbedder`: vectors of the residues of proteins.

    `model` is the folder of SeqVec (options.json, weights.hdf5), whatever else `ELMo.from_pretrained` takes, or an
    `ELMo`.  A protein is a string of letters, one for each residue; blanks are left out, small letters made large.
    """

    def __init__(self, model: ELMo | AnyPath, *, device: str | torch.device | None = None) -> None:
        self.elmo = model if isinstance(model, ELMo) else ELMo.from_pretrained(model, num_mixes=0, device=device)

    def embed(self, sequence: str) -> Array:
        """One protein -> (3, L, 1024): its three layers."""
        return self.embed_many([sequence])[0]

    def embed_many(self, sequences: Iterable[str], *, show_progress: bool = False) -> list[Array]:
        """Any number of proteins -> (3, L, 1024) each, batched by length."""
        proteins = [_residues(sequence, place) for place, sequence in enumerate(as_list(sequences))]
        return self.elmo.embed(proteins, layers="all", show_progress=show_progress)

    @staticmethod
    def reduce_per_residue(embedding: Array) -> Array:
        """(3, L, 1024) -> (L, 1024): the sum of the layers, for predictions about residues."""
        result: Array = embedding.sum(axis=0)
        return result

    @staticmethod
    def reduce_per_protein(embedding: Array) -> Array:
        """(3, L, 1024) -> (1024,): the mean over the residues of the sum of the layers; zeros of a protein of none."""
        result: Array = embedding.sum(axis=0).sum(axis=0) / max(1, embedding.shape[1])
        return result


def read_fasta(path: AnyPath) -> dict[str, str]:
    """The proteins of a FASTA file by the first word of their header, their lines joined, in the order of the file."""
    parts: dict[str, list[str]] = {}
    name = None
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if line.startswith(">"):
                name = next(iter(line[1:].split()), "")
                if not name or name in parts:
                    raise ValueError(f"{path}: line {number} names {name!r}: each protein needs a name of its own")
                parts[name] = []
            elif line.strip():
                if name is None:
                    raise ValueError(f"{path}: line {number} comes before the first header: is this FASTA?")
                parts[name].append(line.strip())
    return {name: "".join(lines) for name, lines in parts.items()}


def _residues(sequence: object, place: int) -> list[str]:
    if not isinstance(sequence, str):
        raise ValueError(f"sequences[{place}] is {sequence!r}, not a string of letters, one for each residue")
    residues = list("".join(sequence.split()).upper())
    for position, residue in enumerate(residues):
        if not "A" <= residue <= "Z":
            raise ValueError(
                f"sequences[{place}] has {residue!r} at place {position}: residues are letters; take gaps and stops out"
            )
    return residues
