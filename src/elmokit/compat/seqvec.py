"""The `SeqVecEmbedder` of bio_embeddings: proteins are sentences, residues are words."""

from __future__ import annotations

import os
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import torch

from elmokit.arguments import check_path
from elmokit.model import ELMo
from elmokit.text import as_list

Array = npt.NDArray[np.float32]
AnyPath = str | os.PathLike[str]


class SeqVecEmbedder:
    """`bio_embeddings.embed.SeqVecEmbedder`: vectors of the residues of proteins.

    A protein is a string of letters, one per residue. Whitespace is removed, lowercase letters become uppercase.

    Args:
        model: The folder of SeqVec (options.json, weights.hdf5), anything else that `ELMo.from_pretrained` takes, or an
            `ELMo`.
        device: Where a model that is loaded here computes.
    """

    def __init__(self, model: ELMo | AnyPath, *, device: str | torch.device | None = None) -> None:
        self.elmo = model if isinstance(model, ELMo) else ELMo.from_pretrained(model, num_mixes=0, device=device)

    def embed(self, sequence: str) -> Array:
        """Vectors of one protein: (3, L, 1024), its three layers."""
        return self.embed_many([sequence])[0]

    def embed_many(self, sequences: Iterable[str], *, show_progress: bool = False) -> list[Array]:
        """Vectors of proteins, batched by length.

        Args:
            sequences: Strings of letters.
            show_progress: Show a progress bar on standard error.

        Returns:
            (3, L, 1024) for each protein.

        Raises:
            ValueError: If a residue is not a letter.
        """
        proteins = [_residues(sequence, place) for place, sequence in enumerate(as_list(sequences, "sequences"))]
        return self.elmo.embed(proteins, layers="all", show_progress=show_progress)

    @staticmethod
    def reduce_per_residue(embedding: Array) -> Array:
        """(3, L, 1024) -> (L, 1024): the sum of the layers, for predictions about residues."""
        result: Array = embedding.sum(axis=0)
        return result

    @staticmethod
    def reduce_per_protein(embedding: Array) -> Array:
        """(3, L, 1024) -> (1024,): the mean over the residues of the sum of the layers; zeros without residues."""
        result: Array = embedding.sum(axis=0).sum(axis=0) / max(1, embedding.shape[1])
        return result


def read_fasta(path: AnyPath) -> dict[str, str]:
    """Read the proteins of a FASTA file.

    Args:
        path: The file.

    Returns:
        First word of the header -> sequence, in the order of the file.

    Raises:
        ValueError: If a name is missing or used twice, the file does not begin with a header, or is not UTF-8.
    """
    parts: dict[str, list[str]] = {}
    name = None
    with open(check_path("path", path), encoding="utf-8", errors="surrogateescape") as lines:
        for number, line in enumerate(lines, 1):
            if not line.isascii():
                _check_utf8(line, f"{path}: line {number}")
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


def _check_utf8(line: str, place: str) -> None:
    """Refuse a line with bytes that are not UTF-8, which are read as surrogates."""
    try:
        line.encode()
    except UnicodeEncodeError:
        content = line.rstrip("\n").encode(errors="surrogateescape")
        raise ValueError(f"{place} is not UTF-8: {content[:40]!r}") from None


def _residues(sequence: object, place: int) -> list[str]:
    if not isinstance(sequence, str):
        raise ValueError(f"sequences[{place}] is {sequence!r}, not a string of letters, one per residue")
    residues = list("".join(sequence.split()).upper())
    for position, residue in enumerate(residues):
        if not "A" <= residue <= "Z":
            raise ValueError(
                f"sequences[{place}] has {residue!r} at position {position}: residues are letters: remove gaps, stops"
            )
    return residues
