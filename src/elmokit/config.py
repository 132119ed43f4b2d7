"""The sizes of a biLM.

Input: values from a user, a config.json or a recipe.  Output: a `BiLMConfig` whose values fit together; otherwise a
ValueError that names the field and its value.  Option files of other programs are read in `storage/`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final, Literal, get_args

from elmokit.settings import check_types

Architecture = Literal["lstm", "transformer"]

MAX_CLIP = 1e38  # a float32
MAX_CHARACTERS = 10_000
"""Upper bound of `max_characters`, which no weight bounds: every word takes this many ids."""
MAX_WINDOW = 16_384
"""Upper bound of `attention_window`, which no weight bounds: a carried state takes this many keys and values."""
FIELDS_OF: Final[dict[Architecture, tuple[str, ...]]] = {
    "lstm": ("cell_dim", "cell_clip", "proj_clip", "skip_connections"),
    "transformer": ("num_heads", "feedforward_dim", "attention_window"),
}
"""Fields that only one architecture has."""
PUBLISHED_FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))


@dataclass(frozen=True)
class BiLMConfig:
    """Sizes and variants of a biLM. The defaults are those of the published "original" model.

    A biLM reads words in one of three ways: as UTF-8 bytes (the default), as rows of a word table (`num_words`), or as
    characters and words of a lexicon of its own (`num_lexicon_characters`, ELMoForManyLangs).  Its layers are LSTMs
    (the default) or transformer blocks (`architecture`).
    """

    num_words: int | None = None
    """Number of rows of the word table of a word-level biLM. Default: None, words are read as UTF-8 bytes."""
    bos_id: int = 0
    """Row of the sentence start <S> in the word table of a word-level biLM."""
    eos_id: int = 1
    """Row of the sentence end </S> in the word table of a word-level biLM."""
    num_lexicon_characters: int | None = None
    """Number of characters of a lexicon. Default: None, the model has no lexicon."""
    num_lexicon_words: int = 0
    """Number of words of the lexicon."""
    word_dim: int = 0
    """Width of the lexicon's word vectors, which are concatenated to the outputs of the filters. 0: no word vectors."""
    max_characters: int = 50
    """Number of character ids per word, including its begin and end marks. Longer words are truncated."""
    char_dim: int = 16
    """Width of a character vector."""
    filters: tuple[tuple[int, int], ...] = PUBLISHED_FILTERS
    """(width, channels) of each convolution over the characters."""
    activation: Literal["relu", "tanh"] = "relu"
    """Activation after the convolutions."""
    num_highways: int = 2
    """Number of highway layers after the convolutions."""
    char_projection: bool = True
    """Project the outputs of the filters to `projection_dim`. If False, their channels must sum to it."""
    cell_dim: int = 4096
    """Width of an LSTM cell, per direction. Only "lstm"."""
    projection_dim: int = 512
    """Width P of a token vector and of a hidden state, per direction. A vector of ELMo has 2P numbers."""
    num_layers: int = 2
    """Number of LSTM layers or transformer blocks."""
    cell_clip: float | None = 3.0
    """Cell states are clipped to [-cell_clip, cell_clip]. None: no clipping. Only "lstm"."""
    proj_clip: float | None = 3.0
    """Hidden states are clipped to [-proj_clip, proj_clip]. None: no clipping. Only "lstm"."""
    skip_connections: bool = True
    """Add the input of an LSTM layer to its output, from the second layer on. Only "lstm"."""
    architecture: Architecture = "lstm"
    """"lstm": layers of clipped, projected LSTMs. "transformer": blocks of causal attention and a feed-forward part."""
    num_heads: int = 8
    """Number of attention heads, per direction; projection_dim / num_heads must be even. Only "transformer"."""
    feedforward_dim: int = 1408
    """Width of the feed-forward part of a block, per direction. Only "transformer"."""
    attention_window: int = 64
    """Number of tokens that attention reads: a token itself and the ones before it. Only "transformer"."""

    def __post_init__(self) -> None:
        check_types(self)
        sizes = ("max_characters", "char_dim", "cell_dim", "projection_dim", "num_layers")
        for name in (*sizes, *FIELDS_OF["transformer"]):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.max_characters > MAX_CHARACTERS:
            raise ValueError(f"max_characters must be at most {MAX_CHARACTERS}, not {self.max_characters}")
        for name in ("num_highways", "bos_id", "eos_id"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be 0 or more, not {getattr(self, name)}")
        for name in ("cell_clip", "proj_clip"):
            clip = getattr(self, name)
            if clip is not None and not 0 < clip <= MAX_CLIP:
                raise ValueError(f"{name} must be above 0 and at most 1e38, or null for no clipping, not {clip}")
        if self.num_words is not None:
            if self.num_words < 1:
                raise ValueError(f"num_words must be at least 1, not {self.num_words}")
            for name in ("bos_id", "eos_id"):
                if getattr(self, name) >= self.num_words:
                    raise ValueError(f"{name} is {getattr(self, name)}, the word table has {self.num_words} rows")
        self._check_architecture()
        self._check_lexicon()
        if self.num_words is not None:
            return
        if self.max_characters < 3:
            raise ValueError(f"max_characters must be at least 3 (a mark, a byte, a mark), not {self.max_characters}")
        if not self.filters and not self.word_dim:
            raise ValueError("filters is empty: give at least one [width, channels] pair")
        for width, channels in self.filters:
            if width < 1 or channels < 1 or width > self.max_characters:
                raise ValueError(
                    f"filter [{width}, {channels}] does not fit: its width must be 1 to max_characters "
                    f"({self.max_characters}) and its channels at least 1"
                )
        if not self.char_projection and self.filters_dim != self.projection_dim:
            raise ValueError(
                f"char_projection is false, so the filters' channels must sum to projection_dim: "
                f"they sum to {self.filters_dim}, projection_dim is {self.projection_dim}"
            )

    def _check_architecture(self) -> None:
        defaults = {field.name: field.default for field in fields(self)}
        for architecture in get_args(Architecture):
            for name in FIELDS_OF[architecture]:
                if architecture != self.architecture and getattr(self, name) != defaults[name]:
                    raise ValueError(
                        f'{name} is {getattr(self, name)}, but architecture is "{self.architecture}": only '
                        f'"{architecture}" has {name}, leave it out'
                    )
        if self.architecture != "transformer":
            return
        if self.projection_dim % (2 * self.num_heads):
            raise ValueError(
                f"projection_dim is {self.projection_dim}, which num_heads ({self.num_heads}) cannot share in equal, "
                "even parts: rotary positions turn pairs of numbers"
            )
        if self.attention_window > MAX_WINDOW:
            raise ValueError(f"attention_window must be at most {MAX_WINDOW}, not {self.attention_window}")

    def _check_lexicon(self) -> None:
        for name in ("num_lexicon_words", "word_dim"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be 0 or more, not {getattr(self, name)}")
            if self.num_lexicon_characters is None and getattr(self, name):
                raise ValueError(f"{name} is {getattr(self, name)}, but num_lexicon_characters is null: no lexicon")
        if self.num_lexicon_characters is None:
            return
        if self.num_lexicon_characters < 0:
            raise ValueError(f"num_lexicon_characters must be 0 or more, or null, not {self.num_lexicon_characters}")
        if self.num_words is not None or not self.char_projection:
            raise ValueError("num_lexicon_characters is set, so num_words must be null and char_projection true")
        if self.num_lexicon_words and not self.word_dim:
            raise ValueError(f"num_lexicon_words is {self.num_lexicon_words}, so word_dim must be above 0")

    @property
    def unused_fields(self) -> frozenset[str]:
        """Fields that `settings.to_mapping` leaves out: those of other architectures, and "lstm", the default.

        A file of an LSTM model is the one that versions without other architectures write.
        """
        others = [name for kind, names in FIELDS_OF.items() if kind != self.architecture for name in names]
        return frozenset([*others, "architecture"] if self.architecture == "lstm" else others)

    @property
    def id_columns(self) -> int | None:
        """Number of ids per word: characters, and the word itself if there is a lexicon. None: one word id."""
        if self.num_words is not None:
            return None
        return self.max_characters + (self.num_lexicon_characters is not None)

    @property
    def filters_dim(self) -> int:
        """Number of channels of all filters: the width between convolutions and projection."""
        return sum(channels for _, channels in self.filters)
