"""Words, sentences and figures that the tests of probes share."""

import gzip
from pathlib import Path

import numpy as np
from click.testing import CliRunner

from elmokit.cli.probe import probe
from elmokit.datasets import SenseInstance, SenseSentence, TaggedSentence, WordInContext, WordPair
from elmokit.spans import embed_spans

NOUNS = ["bank", "river", "money", "boat", "play", "stage", "ball"]
WORDS = [*NOUNS, "the", "a", "of", "sat", "lent", "she", "he", "by", "old", "ran", ".", ",", "and"]
LAYERS = ["0", "1", "2", "mean"]
VIEWS = [*LAYERS, "slot", "sense"]


def sentences(seed, count, length=9):
    rng = np.random.default_rng(seed)
    return [[str(word) for word in rng.choice(WORDS, rng.integers(3, length))] for _ in range(count)]


def of_each_view(model, tokens, start, end=None):
    """(L+4, 2P): a phrase's layers, their mean, its slot and its sense, by `embed` and `embed_spans`."""
    end = start + 1 if end is None else end
    layers = model.embed([tokens], layers="all")[0][:, start:end].astype(np.float64).mean(axis=1)
    others = [embed_spans(model, [tokens], [[(start, end)]], layers=view)[0][0] for view in VIEWS[-2:]]
    return np.stack([*layers, layers.mean(axis=0), *others])


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
