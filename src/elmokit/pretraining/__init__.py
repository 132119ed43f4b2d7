"""From text to a biLM: one loop for a laptop and for many GPUs; fine-tuning is the same loop from other weights.

    settings.py   every choice of a run, and recipe files
    batches.py    streams -> batches of distinct words, made ahead by a thread
    learner.py    one training step: characters, LSTMs, loss, update
    data.py       text -> corpora; a model with its first weights
    snapshots.py  checkpoints that are whole or not there
    metrics.py    the numbers of a run, as files
    processes.py  devices, torchrun, signals
    loop.py       the run: steps, measurements, checkpoints, the folder that comes out

A file imports only those above it.
"""

from elmokit.pretraining.loop import DivergenceError, PretrainResult, Progress, finetune, pretrain, run_recipe
from elmokit.pretraining.settings import PretrainConfig, load_recipe

__all__ = [
    "DivergenceError",
    "PretrainConfig",
    "PretrainResult",
    "Progress",
    "finetune",
    "load_recipe",
    "pretrain",
    "run_recipe",
]
