"""The network, in the order of the forward pass.

ids.py          checks of the ids of sentences and words
encoder.py      words -> context-free vectors
rows.py         each distinct word once, and its vector at every place
lstm.py         one layer of the biLM, both directions
transformer.py  one block of a transformer biLM, both directions
bilm.py         sentences -> every layer's vectors, with state
mix.py          layers -> one vector per token
output.py       top layer -> scores of words
losses.py       scores -> the objective of training
int8.py         layers for inference with int8 weights
devices.py      which device, and how tensors get there
"""

from elmokit.network.bilm import BiLM, BiLMOutput, BiLMState, State, parameters_of
from elmokit.network.devices import find_device, to_device, to_host
from elmokit.network.encoder import CharacterEncoder, LexiconEncoder
from elmokit.network.lstm import ProjectedLSTM, pausing
from elmokit.network.mix import ScalarMix
from elmokit.network.output import OutputLayer
from elmokit.network.rows import take_rows
from elmokit.network.transformer import AttentionState, TransformerBlock

__all__ = [
    "AttentionState",
    "BiLM",
    "BiLMOutput",
    "BiLMState",
    "CharacterEncoder",
    "LexiconEncoder",
    "OutputLayer",
    "ProjectedLSTM",
    "ScalarMix",
    "State",
    "TransformerBlock",
    "find_device",
    "parameters_of",
    "pausing",
    "take_rows",
    "to_device",
    "to_host",
]
