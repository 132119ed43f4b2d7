"""The shape of a biLM, as a frozen dataclass.

Enters: numbers from a user, a config.json of ours, a recipe.  Leaves: a `BiLMConfig` whose values fit together, or a
ValueError that names the field and its value.  Foreign option files are read in `storage/`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from elmokit.settings import check_types

PUBLISHED_FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))


@dataclass(frozen=True)
class BiLMConfig:
    """Sizes and variants of one biLM; the defaults are the published "original"."""

    num_words: int | None = None
    """Rows of the word table of a word-level biLM; None: words are read as characters."""
    bos_id: int = 0
    eos_id: int = 1
    """Rows of the sentence boundaries in the word table of a word-level biLM."""
    num_lexicon_characters: int | None = None
    """Characters of a model that has a lexicon of its own (ELMoForManyLangs); None: words are read as UTF-8 bytes."""
    num_lexicon_words: int = 0
    word_dim: int = 0
    """Words of that lexicon and the width of their vectors, which stand beside the filters; 0: characters alone."""
    max_characters: int = 50
    """Ids of one word, its begin and end marks among them; longer words are cut."""
    char_dim: int = 16
    filters: tuple[tuple[int, int], ...] = PUBLISHED_FILTERS
    """(width, channels) of each convolution over the characters."""
    activation: Literal["relu", "tanh"] = "relu"
    num_highways: int = 2
    char_projection: bool = True
    """Project the filters to `projection_dim`; False only where their channels sum to it."""
    cell_dim: int = 4096
    projection_dim: int = 512
    num_layers: int = 2
    cell_clip: float | None = 3.0
    proj_clip: float | None = 3.0
    skip_connections: bool = True

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("max_characters", "char_dim", "cell_dim", "projection_dim", "num_layers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.num_highways < 0:
            raise ValueError(f"num_highways must be 0 or more, not {self.num_highways}")
        for name in ("cell_clip", "proj_clip"):
            clip = getattr(self, name)
            if clip is not None and not clip > 0:
                raise ValueError(f"{name} must be above 0, or null for no clipping, not {clip}")
        if self.num_words is not None:
            if self.num_words < 1:
                raise ValueError(f"num_words must be at least 1, not {self.num_words}")
            for name in ("bos_id", "eos_id"):
                if not 0 <= getattr(self, name) < self.num_words:
                    raise ValueError(f"{name} is {getattr(self, name)}, the word table has {self.num_words} rows")
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
            raise ValueError("a model with a lexicon is no word-level model, and projects: num_words, char_projection")
        if self.num_lexicon_words and not self.word_dim:
            raise ValueError(f"num_lexicon_words is {self.num_lexicon_words}, so word_dim must be above 0")

    @property
    def id_columns(self) -> int | None:
        """Ids of one token: its characters, before them its word where there is a lexicon; None: the word alone."""
        if self.num_words is not None:
            return None
        return self.max_characters + (self.num_lexicon_characters is not None)

    @property
    def filters_dim(self) -> int:
        """Channels of all filters together: the width between convolutions and projection."""
        return sum(channels for _, channels in self.filters)
