"""How tests call the verbs, and read the files of vectors that they write."""

import functools
import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import safetensors.numpy
from click.testing import CliRunner, Result

from elmokit.cli import main
from elmokit.storage.names import english_vocabulary

FORMATS = ["hdf5", "npz", "parquet", "safetensors"]
LINES = ["He sat on the bank .", "", "The river, isn't it?", "He sat on the bank .", "last one"]
WORDS = ["<S>", "</S>", "<UNK>", "the", ".", "bank", "He", "sat", "on", "river", "money"]


def run(*arguments: object, text: str | bytes | None = None) -> Result:
    """The verb does what it is told."""
    result = CliRunner().invoke(main, [str(argument) for argument in arguments], input=text)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


def result_of(*arguments: object, text: str | bytes | None = None) -> Any:
    """What the verb prints with --json."""
    return json.loads(run(*arguments, "--json", text=text).stdout)


def error_of(*arguments: object, text: str | bytes | None = None) -> str:
    """The one line that the verb ends with."""
    result = CliRunner().invoke(main, [str(argument) for argument in arguments], input=text)
    assert result.exit_code == 1, (result.output, result.exception)
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("Error: ")
    return lines[0]


def slot_by_hand(layers: np.ndarray, start: int, end: int) -> np.ndarray:
    """(2P,) of tokens[start:end], from the reference's layers (L+1, T+2, 2P), which begin with <S>."""
    half = layers.shape[-1] // 2
    return np.concatenate([layers[-1, start, :half], layers[-1, end + 1, half:]])


@functools.cache
def english_ranks() -> dict[str, int]:
    """The ranks of English words."""
    return {word: rank for rank, word in enumerate(english_vocabulary().words)}


def sense_by_hand(layers: np.ndarray, tokens: list[str], start: int, end: int) -> np.ndarray:
    """(2P,) of tokens[start:end], by the ranks of English words; for sentences of less than 64 tokens."""
    ranks = english_ranks()
    half = layers.shape[-1] // 2
    words, contexts = np.zeros(half), np.zeros(half)
    for place, token in enumerate(tokens):
        distance = start - place if place < start else place - end + 1
        if distance > 0:
            probability = 1 / (10 * (ranks.get(token, len(ranks)) + 10))
            weight = 1e-3 / (1e-3 + probability) / (1 + distance / 2)
            words += weight * layers[0, place + 1, :half]
            own = slice(None, half) if place < start else slice(half, None)  # the direction that comes from there
            contexts += weight * layers[-1, place + 1, own]
    said = slot_by_hand(layers, start, end) - slot_by_hand(layers, 0, len(tokens))  # beyond what <S> and </S> say
    said, words, contexts = (part / max(np.linalg.norm(part), 1e-12) for part in (said, words, contexts))
    scale = np.sqrt(2 * half)
    return np.tanh(scale * (said + 0.6 * np.sqrt(0.5) * np.concatenate([words, contexts]))) / scale


def views_by_hand(layers: np.ndarray, tokens: list[str]) -> dict[str, np.ndarray]:
    """ "slot" and "sense" of every token: (T, 2P)."""
    places, shape = [(k, k + 1) for k in range(len(tokens))], (len(tokens), layers.shape[-1])
    return {
        "slot": np.array([slot_by_hand(layers, *place) for place in places]).reshape(shape),
        "sense": np.array([sense_by_hand(layers, tokens, *place) for place in places]).reshape(shape),
    }


def read_vectors(path: Path) -> dict[int, np.ndarray]:
    """The arrays of a file by line, read by the library that the format belongs to."""
    kind = path.suffix[1:]
    if kind == "hdf5":
        with h5py.File(path) as file:
            return {int(key): file[key][()] for key in file if key.isdecimal()}
    if kind == "npz":
        with np.load(path) as arrays:
            return {int(key): arrays[key] for key in arrays if key != "tokens"}
    if kind == "safetensors":
        return {int(key): array for key, array in safetensors.numpy.load_file(path).items() if key != "tokens"}
    import pyarrow.parquet

    rows = pyarrow.parquet.read_table(path).to_pylist()
    return {row["line"]: np.array(row["vectors"]) for row in rows}


def read_tokens(path: Path) -> list[list[str]]:
    """The tokens of every line of a file, read by the library that the format belongs to."""
    kind = path.suffix[1:]
    if kind == "hdf5":
        with h5py.File(path) as file:
            return json.loads(file.attrs["tokens"])
    if kind == "npz":
        with np.load(path) as arrays:
            return json.loads(arrays["tokens"].tobytes())
    if kind == "safetensors":
        return json.loads(safetensors.numpy.load_file(path)["tokens"].tobytes())
    import pyarrow.parquet

    return pyarrow.parquet.read_table(path)["tokens"].to_pylist()


def assert_same_file(found: Path, expected: Path) -> None:
    """The same lines with the same vectors; a word that an earlier part had spelled may differ in its last bit."""
    one, other = read_vectors(found), read_vectors(expected)
    assert list(one) == list(other)
    for line, vectors in one.items():
        np.testing.assert_allclose(vectors, other[line], atol=1e-6, rtol=0)
    assert read_tokens(found) == read_tokens(expected)
    assert found.stat().st_size == expected.stat().st_size


def assert_same_vectors(found: dict[int, np.ndarray], expected: list[np.ndarray], rtol: float = 1e-4) -> None:
    assert sorted(found) == list(range(len(expected)))
    for number, vectors in enumerate(expected):
        if vectors.size:
            assert found[number].shape == vectors.shape
            np.testing.assert_allclose(found[number], vectors, atol=1e-5 if rtol < 1e-3 else 1e-3, rtol=rtol)
        else:  # nested lists cannot say how wide nothing is
            assert found[number].size == 0
