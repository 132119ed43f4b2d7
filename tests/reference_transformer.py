"""A transformer biLM in float64 NumPy, from the equations alone: what the package is measured against.

Enters: sizes, arrays under the names of elmokit's own format, and sentences as lists of words.  Leaves: every layer's
vectors of one sentence at a time, and the state: the keys and values of all tokens that were read.  One token after the
other, one head after the other; nothing here comes from the package or from torch.
"""

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

import reference

EPS, BASE = 1e-6, 10_000.0

Sizes = dict[str, Any]
Arrays = dict[str, np.ndarray]
Past = dict[tuple[int, int], list[tuple[np.ndarray, np.ndarray]]]  # (direction, block) -> (key, value) of each token


class Run(NamedTuple):
    """One sentence through the biLM; T tokens, or T + 2 with the boundary tokens."""

    layers: np.ndarray  # (L+1, T, 2P)
    with_boundaries: np.ndarray  # (L+1, T+2, 2P)
    past: Past  # after the sentence's last token, each direction's own


def bilm(
    sizes: Sizes, arrays: Arrays, sentence: list[str], *, past: Past | None = None, vocabulary: list[str] | None = None
) -> Run:
    """All layers of one sentence; `vocabulary` names the rows of a word-level model's table."""
    words = [reference.START, *sentence, reference.END]
    x = np.array([norm(token_vector(sizes, arrays, word, vocabulary)) for word in words])  # (T+2, P)
    after: Past = {key: list(items) for key, items in (past or {}).items()}
    forward = [read(sizes, arrays, 0, vector, after) for vector in x]
    backward = [read(sizes, arrays, 1, vector, after) for vector in x[::-1]][::-1]
    layers = [np.concatenate([x, x], axis=1)]
    for block in range(sizes["num_layers"]):
        layers.append(np.array([np.concatenate([f[block], b[block]]) for f, b in zip(forward, backward, strict=True)]))
    stacked = np.stack(layers)
    return Run(stacked[:, 1:-1], stacked, after)


def read(sizes: Sizes, arrays: Arrays, which: int, x: np.ndarray, past: Past) -> list[np.ndarray]:
    """One token (P,) through all blocks of a direction: each block's vector; its key and value are added to `past`."""
    results = []
    for block in range(sizes["num_layers"]):
        names = ("attention_input", "attention_output", "feedforward_input", "feedforward_output")
        a_in, a_out, f_in, f_out = (arrays[f"layers.{block}.{name}"][which].astype(np.float64) for name in names)
        q, k, v = np.split(norm(x) @ a_in, 3)
        seen = past.setdefault((which, block), [])
        seen.append((k, v))
        x = x + attend(sizes, q, seen[-sizes["attention_window"] :]) @ a_out
        gate, value = np.split(norm(x) @ f_in, 2)
        x = x + (gate * reference.sigmoid(gate) * value) @ f_out
        results.append(norm(x))
    return results


def attend(sizes: Sizes, query: np.ndarray, seen: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """(P,): what each head takes of the values; the last token of `seen` is the one that asks."""
    heads = []
    width = len(query) // sizes["num_heads"]
    for begin in range(0, len(query), width):
        part = slice(begin, begin + width)
        weights = attention_weights(query[part], [key[part] for key, _ in seen])
        heads.append(sum(weight * value[part] for weight, (_, value) in zip(weights, seen, strict=True)))
    return np.concatenate(heads)


def attention_weights(query: np.ndarray, keys: list[np.ndarray]) -> np.ndarray:
    """How much of each token one head takes; the query is that of the last token."""
    asked = rotate(norm(query), len(keys) - 1)
    scores = np.array([asked @ rotate(norm(key), position) for position, key in enumerate(keys)]) / np.sqrt(len(query))
    powers = np.exp(scores - scores.max())
    return powers / powers.sum()


def rotate(x: np.ndarray, position: int) -> np.ndarray:
    """Each pair (i, i + half) is a complex number that turns by position * base ** (-2 i / width)."""
    half = len(x) // 2
    turned = (x[:half] + 1j * x[half:]) * np.exp(1j * position * BASE ** (-2 * np.arange(half) / len(x)))
    return np.concatenate([turned.real, turned.imag])


def norm(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean() + EPS)


def token_vector(sizes: Sizes, arrays: Arrays, word: str, vocabulary: list[str] | None) -> np.ndarray:
    """The vector (P,) of one word, before it is normalized, by the encoder of `reference`."""
    if vocabulary is not None:
        return arrays["word_embedding"][reference.word_id(word, vocabulary)].astype(np.float64)
    cnn = {
        "max_characters_per_token": sizes["max_characters"],
        "filters": sizes["filters"],
        "activation": sizes["activation"],
        "n_highway": sizes["num_highways"],
    }
    official = {"char_embed": arrays["char_encoder.char_embedding"]}
    for k in range(len(sizes["filters"])):
        kernel = arrays[f"char_encoder.convolutions.{k}.weight"]  # (n, d, w)
        official[f"CNN/W_cnn_{k}"] = kernel.transpose(2, 1, 0)[None]
        official[f"CNN/b_cnn_{k}"] = arrays[f"char_encoder.convolutions.{k}.bias"]
    for k in range(sizes["num_highways"]):
        for part in ("carry", "transform"):
            name = f"char_encoder.highways.{k}.{part}"
            official[f"CNN_high_{k}/W_{part}"] = arrays[f"{name}.weight"].T
            official[f"CNN_high_{k}/b_{part}"] = arrays[f"{name}.bias"]
    if sizes["char_projection"]:
        official["CNN_proj/W_proj"] = arrays["char_encoder.projection.weight"].T
        official["CNN_proj/b_proj"] = arrays["char_encoder.projection.bias"]
    return reference.token_vector({"char_cnn": cnn}, official, word)


def log_probs(
    sizes: Sizes,
    arrays: Arrays,
    sentences: list[list[str]],
    softmax_weight: np.ndarray,
    softmax_bias: np.ndarray,
    vocabulary: list[str],
    *,
    carry: bool = False,
    word_level: bool = False,
) -> list[reference.LogProbs]:
    """As `reference.log_probs`: what each language model says of each sentence."""
    results = []
    pasts: list[Past] = [{}, {}]
    for sentence in sentences:
        tokens = [reference.START, *sentence, reference.END]
        found = []
        for which, reading in enumerate([tokens, tokens[::-1]]):
            if not carry:
                pasts[which] = {}
            scores = []
            for word, target in pairwise(reading):
                x = norm(token_vector(sizes, arrays, word, vocabulary if word_level else None))
                top = read(sizes, arrays, which, x, pasts[which])[-1]
                logits = softmax_weight.astype(np.float64) @ top + softmax_bias
                logits -= logits.max()
                scores.append(logits[reference.word_id(target, vocabulary)] - np.log(np.exp(logits).sum()))
            found.append(np.array(scores))
        results.append(reference.LogProbs(found[0], found[1][::-1]))
    return results


def random_model(rng: np.random.Generator, **variant: Any) -> tuple[Sizes, Arrays]:
    """Sizes and arrays of any variant, with weights so large that attention is far from even."""
    sizes: Sizes = {
        "num_layers": 2,
        "projection_dim": 8,
        "num_heads": 2,
        "feedforward_dim": 10,
        "attention_window": 5,
        "filters": [[1, 2], [2, 3], [4, 3]],
        "char_dim": 3,
        "max_characters": 50,
        "activation": "relu",
        "num_highways": 1,
        "char_projection": True,
        "num_words": None,
    } | variant
    channels = sum(n for _, n in sizes["filters"])
    if sizes["num_words"] is None and not sizes["char_projection"]:
        sizes["projection_dim"] = channels
    p, f = sizes["projection_dim"], sizes["feedforward_dim"]

    def normal(*shape: int, scale: float = 1.0) -> np.ndarray:
        return (rng.standard_normal(shape) * scale).astype(np.float32)

    arrays: Arrays = {}
    if sizes["num_words"] is not None:
        arrays["word_embedding"] = normal(sizes["num_words"], p)
    else:
        arrays["char_encoder.char_embedding"] = normal(261, sizes["char_dim"])
        for k, (w, n) in enumerate(sizes["filters"]):
            shape = (n, sizes["char_dim"], w)
            arrays[f"char_encoder.convolutions.{k}.weight"] = normal(*shape, scale=0.7 / np.sqrt(w * sizes["char_dim"]))
            arrays[f"char_encoder.convolutions.{k}.bias"] = normal(n, scale=0.3)
        for k in range(sizes["num_highways"]):
            for part in ("carry", "transform"):
                arrays[f"char_encoder.highways.{k}.{part}.weight"] = normal(channels, channels, scale=channels**-0.5)
                arrays[f"char_encoder.highways.{k}.{part}.bias"] = normal(channels, scale=0.5)
        if sizes["char_projection"]:
            arrays["char_encoder.projection.weight"] = normal(p, channels, scale=channels**-0.5)
            arrays["char_encoder.projection.bias"] = normal(p, scale=0.3)
    for block in range(sizes["num_layers"]):
        arrays[f"layers.{block}.attention_input"] = normal(2, p, 3 * p, scale=p**-0.5)
        arrays[f"layers.{block}.attention_output"] = normal(2, p, p, scale=p**-0.5)
        arrays[f"layers.{block}.feedforward_input"] = normal(2, p, 2 * f, scale=p**-0.5)
        arrays[f"layers.{block}.feedforward_output"] = normal(2, f, p, scale=f**-0.5)
    return sizes, arrays
