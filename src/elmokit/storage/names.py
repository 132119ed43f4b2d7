"""Names of models: a name becomes the files of a model on this machine.

Input: nothing (the default model), a folder, the name of a model in the package ("en", "zh"), an official name
("small", "medium", "original", "original-5.5b") or a "user/model" of the Hugging Face hub. Output: a layout (see
`layouts.py`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Literal

from elmokit.extras import require
from elmokit.storage.downloads import Progress, as_text, cached_path, fetch, is_offline
from elmokit.storage.layouts import (
    CARD_FILE,
    CONFIG_FILE,
    LEXICON_FILE,
    VOCABULARY_FILE,
    ElmokitFolder,
    Layout,
    OfficialFiles,
    SoftmaxUrls,
    find_layout,
)
from elmokit.text import Vocabulary

DEFAULT = "en"
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)


@dataclass(frozen=True)
class OfficialModel:
    """URLs of one published model; those of the softmax and its vocabulary only if they were published too.

    The softmax and its vocabulary are downloaded when the language model is first used (see `layouts.SoftmaxUrls`).
    """

    options: str
    weights: str
    softmax: str | None = None
    vocabulary: str | None = None


_ALLENNLP = "https://allennlp.s3.amazonaws.com/models/elmo"


def _published(size: str, vocabulary: str | None = None) -> OfficialModel:
    stem = f"{_ALLENNLP}/{size}/elmo_{size}"
    return OfficialModel(
        options=f"{stem}_options.json",
        weights=f"{stem}_weights.hdf5",
        softmax=f"{stem}_softmax_weights.hdf5" if vocabulary else None,
        vocabulary=f"{_ALLENNLP}/{vocabulary}" if vocabulary else None,
    )


OFFICIAL: Mapping[str, OfficialModel] = {
    "small": _published("2x1024_128_2048cnn_1xhighway"),
    "medium": _published("2x2048_256_2048cnn_1xhighway"),
    "original": _published("2x4096_512_2048cnn_2xhighway", "vocab-2016-09-10.txt"),
    "original-5.5b": _published(
        "2x4096_512_2048cnn_2xhighway_5.5B",
        "2x4096_512_2048cnn_2xhighway_5.5B/tf_checkpoint/vocab-enwiki-news-500000.txt",
    ),
}


@dataclass(frozen=True)
class ModelEntry:
    """A model that has a name."""

    name: str
    kind: Literal["embedded", "official"]
    """Part of the package, or downloaded on first use."""
    size: int | None
    """Bytes on disk; None if the model is not on this machine."""
    cached: bool
    """Whether the model loads without the network."""
    path: Path | None
    """Folder of the model; None if it is not on this machine."""


def list_models() -> list[ModelEntry]:
    """The models that `resolve` knows by name: those of the package, then the official ones."""
    entries = []
    for name, folder in _embedded_models().items():
        size = sum(path.stat().st_size for path in ElmokitFolder(folder).files())
        entries.append(ModelEntry(name, "embedded", size, cached=True, path=folder))
    for name, model in OFFICIAL.items():
        paths = [cached_path(model.options), cached_path(model.weights)]
        if all(path.is_file() for path in paths):
            size = sum(path.stat().st_size for path in paths)
            entries.append(ModelEntry(name, "official", size, cached=True, path=paths[0].parent))
        else:
            entries.append(ModelEntry(name, "official", size=None, cached=False, path=None))
    return entries


def resolve(name: str | os.PathLike[str] | None, *, progress: Progress | None = None) -> Layout:
    """Find the model of a name, and download it if necessary.

    A folder that holds a model comes first: "./small", or "small" where such a folder exists. Then come the names of
    the package, the official names, and "user/model" on the Hugging Face hub.

    Args:
        name: A folder, a name, or None for the default model of the package.
        progress: Called while files are downloaded.

    Returns:
        The layout of the model's files. Its `read` returns what they hold.

    Raises:
        ValueError: If there is no such model, or the folder holds none.
        ConnectionError: If the model cannot be downloaded.
    """
    if name is None:
        embedded = _embedded_models().get(DEFAULT)
        if embedded is None:
            raise ValueError(
                "this installation of elmokit has no default model: pass a model folder, a name "
                f"({_known_names()}) or a Hugging Face id 'user/model'"
            )
        return ElmokitFolder(embedded)
    text = as_text(name)
    path = Path(text).expanduser()
    if text and os.path.isdir(path):
        layout = find_layout(path)
        if layout is not None:
            return layout
        if text not in OFFICIAL and text not in _embedded_models():
            raise ValueError(
                f"{text}: this folder holds no model: neither config.json (the format of elmokit, ELMoForManyLangs) "
                "nor options.json with an HDF5 weight file (the official format) or a TensorFlow checkpoint"
            )
    if text in _embedded_models():
        return ElmokitFolder(_embedded_models()[text])
    if text in OFFICIAL:
        model = OFFICIAL[text]
        urls = None
        if model.softmax is not None and model.vocabulary is not None:
            urls = SoftmaxUrls(model.softmax, model.vocabulary)
        options, weights = (fetch(url, progress=progress) for url in (model.options, model.weights))
        return OfficialFiles(options, weights, softmax_urls=urls)
    if os.path.isfile(path):
        raise ValueError(f"{text}: this is a file: pass its folder, or use ELMo.from_files(options, weights)")
    if isinstance(name, str) and _HUB_NAME.fullmatch(text):
        return ElmokitFolder(_from_huggingface(text, progress))
    raise ValueError(
        f"no model {text!r}: pass the path of a model folder, a name ({_known_names()}) or a Hugging Face id "
        "'user/model'; URLs of an official pair go to ELMo.from_files(options, weights)"
    )


def english_vocabulary() -> Vocabulary:
    """The words of the English model in the package, in order of falling frequency."""
    embedded = _embedded_models().get("en")
    if embedded is None:
        raise ValueError("this installation of elmokit has no English model, and so no frequencies of English words")
    return Vocabulary.load(embedded / VOCABULARY_FILE)


def is_embedded(name: str) -> bool:
    """Whether a model of this name is part of the package."""
    return name in _embedded_models()


def _embedded_models() -> dict[str, Path]:
    """Name -> folder of each model in the package: every folder under models/ that holds one."""
    folder = Path(str(resources.files("elmokit") / "models"))
    return {path.parent.name: path.parent for path in sorted(folder.glob(f"*/{CONFIG_FILE}"))}


def _known_names() -> str:
    return ", ".join([*_embedded_models(), *OFFICIAL])


def _from_huggingface(name: str, progress: Progress | None) -> Path:
    """The folder of a model of the Hugging Face hub, downloaded by the hub's own client."""
    try:
        hub = require("huggingface_hub", extra="hub")
        errors = require("huggingface_hub.errors", extra="hub")
        bars = require("huggingface_hub.utils.tqdm", extra="hub")
    except ImportError as error:
        raise ValueError(f"there is no folder {name!r}; to load it from the Hugging Face hub: {error}") from error
    # The hub draws its own progress bars, which no callback can replace. They show only to a caller who wants
    # progress, or if the hub's own variable is set (the hub warns when it is overruled).
    asked = progress is not None or "HF_HUB_DISABLE_PROGRESS_BARS" in os.environ
    silence = not asked and not bars.are_progress_bars_disabled()
    if silence:
        bars.disable_progress_bars()
    try:
        folder = Path(
            hub.snapshot_download(
                name,
                allow_patterns=[CONFIG_FILE, "*.safetensors", VOCABULARY_FILE, LEXICON_FILE, CARD_FILE],
                local_files_only=is_offline(),
            )
        )
    except errors.RepositoryNotFoundError as error:
        raise ValueError(
            f"no model {name!r}: there is no such folder, and the Hugging Face hub has no such model, or it is private "
            "(`hf auth login`)"
        ) from error
    except Exception as error:  # the hub does not wrap the errors of its HTTP library
        if is_offline():
            reason = "is not in the Hugging Face cache, and ELMOKIT_OFFLINE forbids the network"
        else:
            reason = f"could not be loaded from the Hugging Face hub ({type(error).__name__}: {error})"
        raise ConnectionError(f"{name}: there is no such folder, and it {reason}") from error
    finally:
        if silence:
            bars.enable_progress_bars()
    if not (folder / CONFIG_FILE).is_file():
        raise ValueError(f"{name}: this Hugging Face model has no {CONFIG_FILE}, so it is not in elmokit's format")
    return folder
