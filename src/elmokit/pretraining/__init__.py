"""Training of biLMs on text, on a CPU or on many GPUs.  Fine-tuning is the same loop from the weights of a model.

    settings.py    all settings of a run, and recipe files
    batches.py     streams -> batches of distinct words, made ahead by a thread
    processes.py   devices, torchrun, signals
    recorder.py    CUDA graphs of a step
    muon.py        the Muon optimizer
    optimizers.py  Adagrad, AdamW, Muon; the learning rate schedule
    step.py        one training step: forward pass, loss, backward pass, update
    data.py        text -> corpora; a model with its initial weights
    metrics.py     metrics.jsonl, speed.jsonl, TensorBoard
    results.py     progress, result, and the state that a checkpoint keeps
    card.py        recipe.json and the model card
    loop.py        the training loop, and the functions that start it

A file imports only those above it.
"""

from elmokit.pretraining.loop import finetune, pretrain, run_recipe
from elmokit.pretraining.results import DivergenceError, PretrainResult, Progress
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
