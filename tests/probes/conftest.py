"""The model of the tests of probes."""

import pytest
import torch
from probe_data import WORDS

from elmokit.model import ELMo
from elmokit.network import OutputLayer
from elmokit.text import Vocabulary


@pytest.fixture(scope="session")
def model(official_model):
    """A random language model of two layers."""
    files = official_model(seed=7, projection_dim=6, cell_clip=3.0, proj_clip=3.0)
    elmo = ELMo.from_files(files.options_path, files.weights_path)
    torch.manual_seed(0)
    elmo.vocabulary = Vocabulary(["<S>", "</S>", "<UNK>", *WORDS])
    elmo.output_layer = OutputLayer(len(WORDS) + 3, 6)
    return elmo
