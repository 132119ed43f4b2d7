"""A name -> the files of a model on this machine.

Enters: nothing (the embedded default), a folder, an official name ("small", "medium", "original", "original-5.5b") or
a "user/model" of the Hugging Face hub.  Leaves: paths, in `Location`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elmokit.storage.folder import ModelFiles
from elmokit.storage.downloads import Progress, as_text, fetch, is_offline

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)


@dataclass(frozen=True)
class OfficialModel:
    """URLs of one published model; the softmax and its vocabulary only where they were published too."""

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
class Location:
    """What a name resolved to: a folder of ours or of ELMoForManyLangs, or the official pair and what lies beside it.

    `weights` is an HDF5 file, or the .index of a TensorFlow checkpoint.
    """

    folder: Path | None = None
    options: Path | None = None
    weights: Path | None = None
    softmax: Path | None = None
    vocabulary: Path | None = None


def resolve(name: str | os.PathLike[str] | None, *, progress: Progress | None = None) -> Location:
    """Find the model that `name` means, downloading it where it has to be.

    None is the embedded default. A folder that holds a model comes first, so "./small" and an existing "small" mean the
    folder; then the official names; then "user/model" on the Hugging Face hub.
    """
    if name is None:
        embedded = Path(str(resources.files("elmokit") / "models" / "en"))
        if not (embedded / "config.json").is_file():
            raise ValueError(
                "this installation of elmokit holds no default model: pass a model folder, an official name "
                f"({_official_names()}) or a Hugging Face id 'user/model'"
            )
        return Location(folder=embedded)
    text = as_text(name)
    path = Path(text).expanduser()
    if text and os.path.isdir(path):
        found = _look_into(path)
        if found is not None:
            return found
        if text not in OFFICIAL:
            raise ValueError(
                f"{text}: this folder holds no model: neither config.json (elmokit's own format, ELMoForManyLangs) nor "
                "options.json with an HDF5 weight file (the official format) or a TensorFlow checkpoint"
            )
    if text in OFFICIAL:
        model = OFFICIAL[text]
        return Location(
            options=fetch(model.options, progress=progress), weights=fetch(model.weights, progress=progress)
        )
    if os.path.isfile(path):
        raise ValueError(f"{text}: this is a file: pass its folder, or use ELMo.from_files(options, weights)")
    if isinstance(name, str) and _HUB_NAME.fullmatch(text):
        return Location(folder=_from_huggingface(text, progress))
    raise ValueError(
        f"no model {text!r}: pass the path of a model folder, an official name ({_official_names()}) or a Hugging Face "
        "id 'user/model'; URLs of an official pair go to ELMo.from_files(options, weights)"
    )


def read(location: Location) -> ModelFiles:
    """What the files of a model hold, in any format."""
    from elmokit import storage as formats
    from elmokit.storage import folder as checkpoint

    if location.folder is not None:
        if formats.is_manylangs(location.folder):
            return formats.read_manylangs(location.folder)
        return checkpoint.load(location.folder)
    assert location.options is not None
    assert location.weights is not None
    return formats.read_official_model(
        location.options, location.weights, vocabulary_path=location.vocabulary, softmax_path=location.softmax
    )


def _official_names() -> str:
    return ", ".join(OFFICIAL)


def _look_into(folder: Path) -> Location | None:
    if (folder / "config.json").is_file():
        return Location(folder=folder)
    options = _only(folder, "options.json", "*options*.json")
    weights = _if_file(folder / "model.hdf5") or _only(folder, "weights.hdf5", "*weights*.hdf5")
    if options is not None and weights is None:
        from elmokit.storage import newest_checkpoint

        weights = newest_checkpoint(folder)
    if options is None or weights is None:
        return None
    vocabulary = _if_file(folder / "vocabulary.txt")
    if weights.suffix == ".index":
        vocabulary = _only(folder, "vocabulary.txt", "vocab*.txt")
    softmax = _if_file(folder / "softmax.hdf5") if vocabulary else None
    return Location(options=options, weights=weights, softmax=softmax, vocabulary=vocabulary)


def _if_file(path: Path) -> Path | None:
    return path if path.is_file() else None


def _only(folder: Path, name: str, pattern: str) -> Path | None:
    """The file of that name, else the only one of that pattern: published pairs carry long names."""
    if (folder / name).is_file():
        return folder / name
    found = sorted(path for path in folder.glob(pattern) if path.is_file() and "softmax" not in path.name)
    if len(found) > 1:
        raise ValueError(
            f"{folder}: which of {', '.join(path.name for path in found)} is meant? Rename one to {name}, "
            "or use ELMo.from_files(options, weights)"
        )
    return found[0] if found else None


def _from_huggingface(name: str, progress: Progress | None) -> Path:
    try:
        import huggingface_hub
        from huggingface_hub.errors import RepositoryNotFoundError
        from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
    except ImportError as error:
        raise ValueError(
            f'there is no folder {name!r}; to load it from the Hugging Face hub: pip install "elmokit[hub]"'
        ) from error
    # The hub draws its own bars, which no callback can replace: they show only to a caller who wants progress,
    # or where the hub's own variable says so (which it warns about when overruled).
    asked = progress is not None or "HF_HUB_DISABLE_PROGRESS_BARS" in os.environ
    silence = not asked and not are_progress_bars_disabled()
    if silence:
        disable_progress_bars()
    try:
        folder = Path(
            huggingface_hub.snapshot_download(
                name,
                allow_patterns=["config.json", "*.safetensors", "vocabulary.txt", "lexicon.json", "README.md"],
                local_files_only=is_offline(),
            )
        )
    except RepositoryNotFoundError as error:
        raise ValueError(
            f"no model {name!r}: there is no such folder, and the Hugging Face hub has no such model, or not for you "
            "(`hf auth login` for a private one)"
        ) from error
    except Exception as error:  # whatever HTTP library the hub uses, its errors come through bare
        if is_offline():
            reason = "is not in the Hugging Face cache, and ELMOKIT_OFFLINE forbids the network"
        else:
            reason = f"could not be loaded from the Hugging Face hub ({type(error).__name__}: {error})"
        raise ConnectionError(f"{name}: there is no such folder, and it {reason}") from error
    finally:
        if silence:
            enable_progress_bars()
    if not (folder / "config.json").is_file():
        raise ValueError(f"{name}: this Hugging Face model has no config.json, so it is not in elmokit's format")
    return folder
