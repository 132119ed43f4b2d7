"""Foreign weights: official HDF5 files and TensorFlow checkpoints (AllenNLP, bilm-tf), ELMoForManyLangs folders.

Each is a table of names and shapes; that of the official HDF5 files reads both ways.
"""

from elmokit.storage.hdf5 import open_hdf5, writing_hdf5
from elmokit.storage.manylangs import is_manylangs, read_manylangs
from elmokit.storage.official import (
    config_from_options,
    official_views,
    options_from_config,
    read_official,
    read_official_model,
    read_softmax,
    write_official,
    write_softmax,
    write_token_embeddings,
)
from elmokit.storage.tensorflow import newest_checkpoint

__all__ = [
    "config_from_options",
    "is_manylangs",
    "newest_checkpoint",
    "official_views",
    "open_hdf5",
    "options_from_config",
    "read_manylangs",
    "read_official",
    "read_official_model",
    "read_softmax",
    "write_official",
    "write_softmax",
    "write_token_embeddings",
    "writing_hdf5",
]
