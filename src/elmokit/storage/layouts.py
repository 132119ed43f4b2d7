"""File layouts: which files make a model, and in which format they are.

Input: a folder. Output: one record per layout with the same members: `match` recognizes the layout in a folder,
`files` lists its files, `read` returns what they hold as `ModelFiles`, and `format` is its name.
"""

from __future__ import annotations

import glob
import logging
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol, Self

from elmokit.storage.downloads import Progress, cached_path, fetch

if TYPE_CHECKING:  # the modules that read weights import torch, and names are resolved without it
    from torch import Tensor

    from elmokit.storage.folder import ModelFiles
    from elmokit.text import Vocabulary

logger = logging.getLogger(__name__)

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
SOFTMAX_FILE = "softmax.safetensors"
VOCABULARY_FILE = "vocabulary.txt"
LEXICON_FILE = "lexicon.json"
CARD_FILE = "README.md"
ELMOKIT_FILES = (CONFIG_FILE, WEIGHTS_FILE, SOFTMAX_FILE, VOCABULARY_FILE, LEXICON_FILE, CARD_FILE)

OPTIONS_FILE = "options.json"
OFFICIAL_WEIGHTS_FILE = "weights.hdf5"
OFFICIAL_SOFTMAX_FILE = "softmax.hdf5"
OFFICIAL_FILES = (OPTIONS_FILE, OFFICIAL_WEIGHTS_FILE, OFFICIAL_SOFTMAX_FILE, VOCABULARY_FILE)

EMBEDDER_FILE, ENCODER_FILE = "token_embedder.pkl", "encoder.pkl"


class Layout(Protocol):
    """The files of one model."""

    format: ClassVar[str]
    """Name of the format: "elmokit", "official", "bilm-tf" or "elmoformanylangs"."""

    @property
    def folder(self) -> Path:
        """The folder of the files."""

    @classmethod
    def match(cls, folder: Path) -> Self | None:
        """The layout of `folder`, or None if its files are of another layout."""

    def files(self) -> list[Path]:
        """The files that exist."""

    def read(self) -> ModelFiles:
        """Read and check the files. What is wrong with them is a ValueError that names the file."""


@dataclass(frozen=True)
class ElmokitFolder:
    """A folder that `ELMo.save_pretrained` wrote."""

    folder: Path
    format: ClassVar[str] = "elmokit"

    @classmethod
    def match(cls, folder: Path) -> Self | None:
        """The layout of a folder with config.json."""
        return cls(folder) if (folder / CONFIG_FILE).is_file() else None

    def files(self) -> list[Path]:
        """The files that exist."""
        return [self.folder / name for name in ELMOKIT_FILES if (self.folder / name).is_file()]

    def read(self) -> ModelFiles:
        """Read and check the folder."""
        from elmokit.storage.folder import load

        return load(self.folder)


@dataclass(frozen=True)
class SoftmaxUrls:
    """The softmax of a published model and its vocabulary: more than 1 GB, downloaded when they are first needed."""

    softmax: str
    vocabulary: str

    def read(self, projection_dim: int, *, progress: Progress | None = None) -> tuple[dict[str, Tensor], Vocabulary]:
        """Download the files, unless they are in the cache, and read them.

        Args:
            projection_dim: Width of the softmax's rows.
            progress: Called while files are downloaded.

        Returns:
            `weight` (V, P) and `bias` (V,), and the words of their rows.

        Raises:
            ValueError: If a file is damaged, or the two do not fit. The message names the file.
            ConnectionError: If a file cannot be downloaded.
        """
        from elmokit.storage.official import read_language_model

        if not cached_path(self.softmax).is_file():
            logger.warning("downloading the softmax of the language model, more than 1 GB: %s", self.softmax)
        vocabulary = fetch(self.vocabulary, progress=progress)  # the small file first
        return read_language_model(fetch(self.softmax, progress=progress), vocabulary, projection_dim=projection_dim)


@dataclass(frozen=True)
class OfficialFiles:
    """Files in the format of AllenNLP and bilm-tf: options.json, HDF5 weights, and what belongs to them."""

    options: Path
    weights: Path
    vocabulary: Path | None = None
    """Names the rows of the softmax, and those of a word-level model."""
    softmax: Path | None = None
    embeddings: Path | None = None
    """A token-embedding file, which makes a word-level model."""
    softmax_urls: SoftmaxUrls | None = None
    """Where the softmax of a published model is, if it is not in `softmax`."""
    format: ClassVar[str] = "official"

    @property
    def folder(self) -> Path:
        """The folder of the weights."""
        return self.weights.parent

    @classmethod
    def match(cls, folder: Path) -> Self | None:
        """The layout of a folder with one options file and one HDF5 weight file."""
        options = _only_file(folder, OPTIONS_FILE, "*options*.json")
        weights = _if_file(folder / "model.hdf5") or _only_file(folder, OFFICIAL_WEIGHTS_FILE, "*weights*.hdf5")
        if options is None or weights is None:
            return None
        vocabulary = _if_file(folder / VOCABULARY_FILE)
        return cls(options, weights, vocabulary, _if_file(folder / OFFICIAL_SOFTMAX_FILE) if vocabulary else None)

    def files(self) -> list[Path]:
        """The files that exist."""
        paths = (self.options, self.weights, self.softmax, self.vocabulary, self.embeddings)
        return [path for path in paths if path is not None]

    def read(self) -> ModelFiles:
        """Read and check the files."""
        from elmokit.storage.official import read_official_model

        files = read_official_model(
            self.options,
            self.weights,
            vocabulary_path=self.vocabulary,
            embeddings_path=self.embeddings,
            softmax_path=self.softmax,
        )
        return replace(files, softmax_urls=self.softmax_urls)


@dataclass(frozen=True)
class BilmTfFolder(OfficialFiles):
    """A training folder of bilm-tf: options.json, a TensorFlow checkpoint (`weights` is its .index), a vocabulary."""

    format: ClassVar[str] = "bilm-tf"

    @classmethod
    def match(cls, folder: Path) -> Self | None:
        """The layout of a folder with one options file and a checkpoint."""
        options = _only_file(folder, OPTIONS_FILE, "*options*.json")
        weights = None if options is None else newest_checkpoint(folder)
        if options is None or weights is None:
            return None
        vocabulary = _only_file(folder, VOCABULARY_FILE, "vocab*.txt")
        return cls(options, weights, vocabulary, _if_file(folder / OFFICIAL_SOFTMAX_FILE) if vocabulary else None)

    def files(self) -> list[Path]:
        """The files that exist, with the .data files of the checkpoint."""
        shards = sorted(self.weights.parent.glob(f"{glob.escape(self.weights.stem)}.data-*-of-*"))
        return [*super().files(), *shards]


@dataclass(frozen=True)
class ManyLangsFolder:
    """A model folder of ELMoForManyLangs."""

    folder: Path
    format: ClassVar[str] = "elmoformanylangs"

    @classmethod
    def match(cls, folder: Path) -> Self | None:
        """The layout of a folder with config.json, token_embedder.pkl and encoder.pkl."""
        names = (CONFIG_FILE, EMBEDDER_FILE, ENCODER_FILE)
        return cls(folder) if all((folder / name).is_file() for name in names) else None

    def files(self) -> list[Path]:
        """The files that exist."""
        return sorted(path for path in self.folder.rglob("*") if path.is_file())

    def read(self) -> ModelFiles:
        """Read and check the folder."""
        from elmokit.storage.manylangs import read_manylangs

        return read_manylangs(self.folder)


LAYOUTS: tuple[type[Layout], ...] = (ManyLangsFolder, ElmokitFolder, OfficialFiles, BilmTfFolder)
"""In the order in which they are tried: folders of ELMoForManyLangs also have a config.json."""


def find_layout(folder: Path) -> Layout | None:
    """The layout of the model in a folder.

    Args:
        folder: A folder that exists.

    Returns:
        The first layout that matches, or None if the folder holds no model.

    Raises:
        ValueError: If several files could be the options or the weights. The message names them.
    """
    for layout in LAYOUTS:
        if (matched := layout.match(folder)) is not None:
            return matched
    return None


def newest_checkpoint(folder: Path) -> Path | None:
    """The .index file of the newest TensorFlow checkpoint in a folder.

    Args:
        folder: A training folder of bilm-tf. Its file `checkpoint` names the newest checkpoint. Without that file the
            only .index file is used.

    Returns:
        The path of the .index file, or None if there is none.

    Raises:
        ValueError: If `checkpoint` names a file that does not exist, or if there are several .index files and no
            `checkpoint`.
    """
    indexes = sorted(folder.glob("*.index"))
    note = folder / "checkpoint"
    if note.is_file():
        named = re.search(r'^model_checkpoint_path: "(.*)"', note.read_text(encoding="utf-8", errors="replace"), re.M)
        if named is not None:  # the path is one of the machine that trained the model: only its last part counts
            path = folder / (re.split(r"[/\\]", named[1])[-1] + ".index")
            if not path.is_file():
                present = ", ".join(other.name for other in indexes) or "none"
                raise ValueError(f"{note} names {named[1]!r}, but {path.name} does not exist: the folder has {present}")
            return path
    if len(indexes) > 1:
        raise ValueError(
            f"{folder}: which of {', '.join(path.name for path in indexes)} is meant? There is no file `checkpoint` "
            "that names one: use ELMo.from_files(options, weights) with one of them"
        )
    return indexes[0] if indexes else None


def _if_file(path: Path) -> Path | None:
    return path if path.is_file() else None


def _only_file(folder: Path, name: str, pattern: str) -> Path | None:
    """The file of that name, or the only one of that pattern: published files have long names."""
    if (folder / name).is_file():
        return folder / name
    matching = sorted(path for path in folder.glob(pattern) if path.is_file() and "softmax" not in path.name)
    if len(matching) > 1:
        raise ValueError(
            f"{folder}: which of {', '.join(path.name for path in matching)} is meant? Rename one to {name}, "
            "or use ELMo.from_files(options, weights)"
        )
    return matching[0] if matching else None
