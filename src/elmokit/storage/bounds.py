"""Bounds of a model's sizes: a configuration never asks for more than its weight files can hold.

Input: a `BiLMConfig` from a file, and the size of the weight files. Output: nothing, or a ValueError, before a network
of these sizes is built and before memory is taken.
"""

from __future__ import annotations

from pathlib import Path

from elmokit.config import BiLMConfig
from elmokit.text import NUM_CHARACTERS, Lexicon

SPARE_TENSORS = 100  # a smaller difference is found later, tensor by tensor, with a more precise message
MAX_WEIGHTS = 1 << 58  # of a network that torch can describe without memory
SPARE_WEIGHTS = 1_000_000
WEIGHTS_PER_BYTE = 16  # of a compressed file


def num_weights(config: BiLMConfig) -> int:
    """Number of weights of a biLM, without its output layer, however large the sizes are."""
    dim, cells, filters_dim = config.projection_dim, config.cell_dim, config.filters_dim
    filters = sum(width * config.char_dim * channels + channels for width, channels in config.filters)
    encoder = filters + config.num_highways * 2 * (filters_dim + 1) * filters_dim
    if config.num_words is not None:
        encoder = config.num_words * dim
    elif config.num_lexicon_characters is None:
        encoder += NUM_CHARACTERS * config.char_dim
        encoder += (filters_dim + 1) * dim if config.char_projection else 0
    else:
        if config.filters:
            encoder += (config.num_lexicon_characters + Lexicon.NUM_MARKS) * config.char_dim
        else:
            encoder = 0
        if config.word_dim:
            encoder += (config.num_lexicon_words + Lexicon.NUM_SPECIAL_WORDS) * config.word_dim
        encoder += (config.word_dim + filters_dim + 1) * dim
    layer = 2 * (2 * dim * 4 * cells + 4 * cells + cells * dim)
    if config.architecture == "transformer":
        layer = 2 * (4 * dim + 3 * config.feedforward_dim) * dim
    return encoder + config.num_layers * layer


def check_sizes(config: BiLMConfig, *, num_tensors: int, source: str, weights: Path) -> None:
    """Check, before a network of these sizes is built, that its tensors can be those of a weight file.

    Args:
        config: The sizes.
        num_tensors: Number of tensors in the file.
        source: Where the sizes come from, for messages.
        weights: The weight file, for messages.

    Raises:
        ValueError: If the sizes ask for far more tensors, or for tensors that no computer has. The message names the
            size and both files.
    """
    counts = {"num_layers": config.num_layers, "num_highways": config.num_highways, "filters": len(config.filters)}
    name = max(counts, key=counts.__getitem__)
    if counts[name] > num_tensors + SPARE_TENSORS:
        raise ValueError(
            f"{source}: {name} is {counts[name]}, but {weights} holds {num_tensors} tensors: one of the two files is "
            "damaged, or they are of different models"
        )
    if (needed := num_weights(config)) > MAX_WEIGHTS:
        widths = {
            name: getattr(config, name) or 0
            for name in (
                "num_words",
                "num_lexicon_characters",
                "num_lexicon_words",
                "word_dim",
                "char_dim",
                "cell_dim" if config.architecture == "lstm" else "feedforward_dim",
                "projection_dim",
            )
        } | {"filters": config.filters_dim}
        name = max(widths, key=widths.__getitem__)
        raise ValueError(
            f"{source}: {name} is {widths[name]}, so that the model has {needed} weights, which {weights} cannot hold: "
            "one of the two files is damaged"
        )


def check_content(num_values: int, num_bytes: int, path: Path) -> None:
    """Check, before memory is taken, that the values of a file are not far more than its bytes.

    Args:
        num_values: Number of values that are read.
        num_bytes: Size of the file or files.
        path: The file, for messages.

    Raises:
        ValueError: If they are. Weights cannot be compressed that much.
    """
    if num_values > WEIGHTS_PER_BYTE * num_bytes + SPARE_WEIGHTS:
        raise ValueError(
            f"{path}: {num_bytes} bytes would become {num_values} weights, but weights cannot be compressed that much: "
            "the file is damaged"
        )
