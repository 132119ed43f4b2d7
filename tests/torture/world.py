"""The small world of the harness: models of every format with random weights, text, task data, a recipe.

Input: an empty folder. Output: a `World` in it. All of it is made from fixed seeds by the package under test.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np

CANARY = ["The bank lent money .", "He sat by the bank , é 😀 !", ""]
"""Sentences whose vectors are compared before and after."""

SIZES = {"char_dim": 4, "filters": ((1, 8), (2, 8), (3, 4)), "num_highways": 1, "cell_dim": 12, "projection_dim": 6}
WORDS = ["<S>", "</S>", "<UNK>", ".", "the", "bank", "of", "money", "she", "he", "left", "by", "river", "bread", "fish"]
WORDS += ["oven", "today", "quietly", "lent", "sat", "on"]

RECIPE = """\
train = "short.txt"
heldout = "heldout.txt"
out = "run"
batch_size = 4
unroll = 5
steps = 18
eval_every = 6
checkpoint_every = 4
log_every = 3
loss = "full"
optimizer = "adamw"
learning_rate = 0.01
dropout = 0.1
eval_batch_size = 2
tensorboard = false
device = "cpu"
tokenized = true

[model]
char_dim = 3
filters = [[1, 4], [2, 5]]
num_highways = 1
cell_dim = 32
projection_dim = 16
"""


@dataclass(frozen=True)
class World:
    """Where everything is."""

    folder: Path

    @property
    def models(self) -> dict[str, Path]:
        """Model folders by their format."""
        return {path.name: path for path in sorted((self.folder / "models").iterdir())}

    def path(self, name: str) -> Path:
        """A file of the world."""
        return self.folder / name


def make_world(folder: Path) -> World:
    """Write the world."""
    import torch

    from elmokit import BiLM, BiLMConfig, ELMo, Vocabulary
    from elmokit.network import OutputLayer
    from elmokit.text import Lexicon

    def language_model(seed: int, *, num_mixes: int = 1, **sizes: object) -> ELMo:
        torch.manual_seed(seed)
        config = BiLMConfig(**{**SIZES, **sizes})
        output = OutputLayer(len(WORDS), config.projection_dim)
        torch.nn.init.normal_(output.bias)
        return ELMo(BiLM(config), num_mixes=num_mixes, output_layer=output, vocabulary=Vocabulary(WORDS)).eval()

    folder.mkdir(parents=True, exist_ok=True)
    models = folder / "models"
    tiny = language_model(1)
    tiny.save_pretrained(models / "characters")
    tiny.save_pretrained(models / "int8", dtype="int8")
    tiny.save_pretrained(models / "float16", dtype="float16")
    tiny.export_hdf5(models / "official")
    language_model(3, num_words=len(WORDS)).save_pretrained(models / "words")
    torch.manual_seed(4)
    lexicon = Lexicon(list("abcdefghijklmnopqrstuvwxyz."), WORDS[3:])
    sizes = {"num_lexicon_characters": len(lexicon.characters), "num_lexicon_words": len(lexicon.words), "word_dim": 3}
    ELMo(BiLM(BiLMConfig(**SIZES, **sizes)), lexicon=lexicon).save_pretrained(models / "lexicon")
    large = {"cell_dim": 256, "projection_dim": 64}
    for name, seed in (("first", 11), ("second", 12)):  # two models for one place: saving takes a while
        language_model(seed, **large).save_pretrained(folder / name)

    _write_text(folder / "text.txt", seed=5, num_lines=8400)
    _write_text(folder / "medium.txt", seed=10, num_lines=2150)
    _write_text(folder / "short.txt", seed=7, num_lines=300)
    _write_text(folder / "heldout.txt", seed=6, num_lines=60)
    (folder / "vocabulary.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    (folder / "other-vocabulary.txt").write_text("\n".join(WORDS[:12]) + "\n", encoding="utf-8")
    (folder / "recipe.toml").write_text(RECIPE, encoding="utf-8")
    for name, seed in (("train.conll", 8), ("dev.conll", 9)):
        rng = random.Random(seed)
        lines = (sentence.split() for sentence in _sentences(rng, 60))
        blocks = (
            "".join(f"{word}\t{'B-LOC' if word in ('bank', 'river') else 'O'}\n" for word in line) for line in lines
        )
        (folder / name).write_text("\n".join(blocks), encoding="utf-8")
    _train_task(folder)
    return World(folder)


def _train_task(folder: Path) -> None:
    from elmokit.index import WordIndex
    from elmokit.model import ELMo
    from elmokit.tasks import TaskConfig, train

    files = {"train": str(folder / "train.conll"), "dev": str(folder / "dev.conll"), "out": str(folder / "task")}
    sizes = {
        "epochs": 1,
        "hidden_dim": 4,
        "word_dim": 3,
        "char_dim": 3,
        "cache": str(folder / "cache"),
        "device": "cpu",
    }
    elmo = folder / "models" / "characters"
    train(TaskConfig(task="ner", elmo=str(elmo), **files, **sizes))
    model = ELMo.from_pretrained(elmo)
    WordIndex.create(folder / "store", model).add(model, _sentences(random.Random(3), 40))


def _sentences(rng: random.Random, number: int) -> list[str]:
    places = {"money": "bank", "fish": "river", "bread": "oven"}
    lines = []
    for _ in range(number):
        thing, place = rng.choice(sorted(places.items()))
        who = rng.choice(["she", "he", f"visitor{rng.randrange(400)}"])
        lines.append(f"{who} left the {thing} by the {place} {rng.choice(['today .', 'quietly .', '.'])}")
    return lines


def _write_text(path: Path, *, seed: int, num_lines: int) -> None:
    """Sentences of a small grammar in documents of ten, with a long line now and then."""
    lines = _sentences(random.Random(seed), num_lines)
    for place in range(0, num_lines, 10):
        lines[place] += "\n"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def vectors_digest(model: object) -> str:
    """The SHA-256 of the canary's vectors, and of its log-probabilities where the model has any."""
    from elmokit import ELMo

    assert isinstance(model, ELMo)
    digest = hashlib.sha256()
    arrays = list(model.embed(CANARY, layers="all"))
    if model.is_language_model:
        for one in model.log_probs(CANARY):
            arrays += [np.asarray(value, np.float64) for value in (one.forward, one.backward)]
    for array in arrays:
        digest.update(f"{array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def tree_digest(folder: Path, *, leave_out: tuple[str, ...] = ()) -> str:
    """The SHA-256 of names and contents of all files of a folder."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name not in leave_out:
            digest.update(f"{path.relative_to(folder)}\n".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
