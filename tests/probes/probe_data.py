"""Words, sentences and figures that the tests of probes share."""

import gzip
from pathlib import Path

import numpy as np
from click.testing import CliRunner

from elmokit.cli.probe import probe
from elmokit.datasets import SenseInstance, SenseSentence, TaggedSentence, WordInContext, WordPair

NOUNS = ["bank", "river", "money", "boat", "play", "stage", "ball"]
WORDS = [*NOUNS, "the", "a", "of", "sat", "lent", "she", "he", "by", "old", "ran", ".", ",", "and"]
LAYERS = ["0", "1", "2", "mean"]


def sentences(seed, count, length=9):
    rng = np.random.default_rng(seed)
    return [[str(word) for word in rng.choice(WORDS, rng.integers(3, length))] for _ in range(count)]


def of_each_layer(model, tokens, place):
    """(L+2, 2P): one token's layers and their mean, from the model itself."""
    found = model.embed([tokens], layers="all")[0][:, place].astype(np.float64)
    return np.concatenate([found, found.mean(axis=0, keepdims=True)])


def cosine(a, b):
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def sense_sentence(tokens, *instances):
    """instances: (index, lemma, senses)."""
    found = [SenseInstance(f"i{index}", index, lemma, "NOUN", senses) for index, lemma, senses in instances]
    return SenseSentence("s", tokens, tokens, ["NOUN"] * len(tokens), found)


def random_senses(seed, count, lemmas):
    """Sentences whose third token is an instance, a phrase now and then."""
    rng = np.random.default_rng(seed)
    found = []
    for tokens in sentences(seed, count):
        lemma = str(rng.choice(lemmas))
        senses = tuple(dict.fromkeys(f"{lemma}%{number}" for number in rng.integers(0, 3, rng.integers(1, 3))))
        if rng.random() < 0.3:
            tokens[2] += " bank"
        found.append(sense_sentence(["``", *tokens], (3, lemma, senses)))
    return found


def tagged(seed, count):
    """The tag is the length of the word, and whether the word before it is long."""
    return [
        TaggedSentence(tokens, [f"{len(word)}{len(before) > 3}" for before, word in zip(["", *tokens], tokens)])  # noqa: B905
        for tokens in sentences(seed, count)
    ]


def pairs(seed, count):
    rng = np.random.default_rng(seed)
    text = iter(sentences(seed, 2 * count))
    words = [WordInContext(one[1], "N", one, 1) for one in text]
    return [WordPair(a, b, float(rng.integers(0, 2))) for a, b in zip(words[0::2], words[1::2], strict=True)]


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)


def invoke(*arguments):
    result = CliRunner().invoke(probe, [str(argument) for argument in arguments])
    if result.exception is not None:
        raise result.exception
    return result
