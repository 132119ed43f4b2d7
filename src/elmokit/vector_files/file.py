"""What is asked for: a file of vectors, and how it is written.

A file has one entry per line of the text, blank lines included. An array is (T, 2P), or (L+1, T, 2P) of all layers.

    hdf5         AllenNLP's layout: datasets "0", "1", … by line, and `sentence_to_index`, a JSON string of shape (1,);
                 the tokens are JSON in the attribute `tokens` of the file
    npz          arrays "0", "1", …; the tokens are JSON, as bytes (uint8) of the array `tokens`
    safetensors  tensors "0", "1", …; the tokens are JSON, as bytes (uint8) of the tensor `tokens`
    parquet      rows of line (int64), tokens (list<string>), vectors (nested lists in the shape of the array)

The JSON of the tokens is a list with one list of strings per line.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from elmokit.arguments import check_choice, check_flag, check_path
from elmokit.extras import require
from elmokit.inference.views import Layers
from elmokit.model import ELMo
from elmokit.text import Tokenizer

Format = Literal["hdf5", "npz", "parquet", "safetensors"]
SUFFIXES: dict[str, Format] = {
    ".hdf5": "hdf5",
    ".h5": "hdf5",
    ".npz": "npz",
    ".parquet": "parquet",
    ".safetensors": "safetensors",
}


@dataclass(frozen=True)
class VectorFile:
    """The file that is asked for.

    Args:
        path: The file to write.
        format: Its format; see `format_of`.
        layers: As in `ELMo.embed`.
        dtype: Type of the numbers.
        gzip: Compress the file.
        tokenized: Tokens are separated by spaces. By default the model's tokenizer cuts the lines.
        forget_sentences: HDF5: leave the text out, both `sentence_to_index` and the tokens.
        use_sentence_keys: HDF5: use the sentences as names of the datasets.

    Raises:
        ValueError: If the format has no such option.
        ImportError: If the format is parquet and pyarrow is not installed.
    """

    path: Path
    format: Format
    layers: Layers = "average"
    dtype: Literal["float32", "float16"] = "float32"
    gzip: bool = False
    tokenized: bool = False
    forget_sentences: bool = False
    use_sentence_keys: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(check_path("path", self.path)))
        check_choice("format", self.format, get_args(Format))
        check_choice("dtype", self.dtype, ("float32", "float16"))
        for name in ("gzip", "tokenized", "forget_sentences", "use_sentence_keys"):
            check_flag(name, getattr(self, name))
        if self.gzip and self.format == "safetensors":
            raise ValueError(f"{self.path}: safetensors files are not compressed: leave gzip out, or write hdf5")
        if self.format != "hdf5" and (self.forget_sentences or self.use_sentence_keys):
            raise ValueError(f"{self.path}: sentence keys are an option of hdf5 files, this is {self.format}")
        if self.format == "parquet":
            require("pyarrow.parquet", extra="parquet")

    def tokenizer(self, model: ELMo) -> Tokenizer:
        """How lines are cut into tokens."""
        return Tokenizer("spaces") if self.tokenized else model.tokenizer


@dataclass(frozen=True)
class Written:
    """What a run did."""

    num_sentences: int
    num_tokens: int
    num_resumed: int
    """Number of sentences that an interrupted run had done before."""


def format_of(path: Path) -> Format:
    """The format of a file by its suffix.

    Raises:
        ValueError: If the suffix is not one of SUFFIXES.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"{path}: its suffix names no format: end it in {', '.join(SUFFIXES)}, or name a format")
    return SUFFIXES[path.suffix.lower()]
