"""An ELMo inside another library's model: without its language model, and as bytes.

Input: an `ELMo`. Output: the same one without what vectors do not need; the content of its folder, for hosts that save
a model as bytes, and a folder with that content.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from elmokit.model import ELMo


def drop_language_model(elmo: ELMo, *, keep_vocabulary: bool = False) -> None:
    """Remove the output layer, and the vocabulary unless the model reads its words.

    Args:
        elmo: The model, which is changed.
        keep_vocabulary: Keep the vocabulary in any case: the view "sense" has the weights of words from it.
    """
    elmo.output_layer = None
    if not elmo.reads_words and not keep_vocabulary:
        elmo.vocabulary = None


def to_files(elmo: ELMo) -> dict[str, bytes]:
    """The files that `ELMo.save_pretrained` writes: name -> content."""
    with tempfile.TemporaryDirectory() as folder:
        elmo.save_pretrained(folder)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


@contextmanager
def in_folder(files: Mapping[str, bytes]) -> Iterator[Path]:
    """A temporary folder with the files of `to_files`, for `ELMo.from_pretrained`."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            (Path(folder) / Path(name).name).write_bytes(content)  # never outside of the folder
        yield Path(folder)
