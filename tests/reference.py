"""The whole biLM in float64 NumPy, from the published equations alone: what the package is measured against.

Enters: the official layout (an options dict, arrays under their HDF5 names) and sentences as lists of words.
Leaves: every layer's vectors of one sentence at a time, the state, mixes and log-probabilities.  No batch, no padding,
one time step after the other; nothing here comes from the package or from torch.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np

BOS, EOS, BOW, EOW, PAD = 256, 257, 258, 259, 260  # after the 256 byte values
START, END, UNKNOWN = "<S>", "</S>", "<UNK>"

Arrays = dict[str, np.ndarray]
Options = dict[str, Any]
State = dict[tuple[int, int], tuple[np.ndarray, np.ndarray]]  # (direction, layer) -> h (P,), c (C,)


class Run(NamedTuple):
    """One sentence through the biLM; T tokens, or T + 2 with the boundary tokens."""

    layers: np.ndarray  # (L+1, T, 2P)
    with_boundaries: np.ndarray  # (L+1, T+2, 2P)
    state: State  # after the sentence's last token, each direction's own


def bilm(
    options: Options,
    arrays: Arrays,
    sentence: list[str],
    *,
    state: State | None = None,
    vocabulary: list[str] | None = None,
) -> Run:
    """All layers of one sentence; `vocabulary` names the rows of a word-level model's `embedding`."""
    x = np.array([token_vector(options, arrays, word, vocabulary) for word in [START, *sentence, END]])  # (T+2, P)
    layers = [np.concatenate([x, x], axis=1)]
    forward, forward_state = direction(options, arrays, 0, x, state)
    backward, backward_state = direction(options, arrays, 1, x[::-1], state)
    for up, down in zip(forward, backward, strict=True):
        layers.append(np.concatenate([up, down[::-1]], axis=1))
    stacked = np.stack(layers)
    return Run(stacked[:, 1:-1], stacked, forward_state | backward_state)


def direction(
    options: Options, arrays: Arrays, which: int, x: np.ndarray, state: State | None
) -> tuple[list[np.ndarray], State]:
    """One direction's LSTM layers over `x` (T, P), which stands in the order in which this direction reads."""
    lstm = options["lstm"]
    after: State = {}
    results = []
    inputs = x
    for layer in range(lstm["n_layers"]):
        name = f"RNN_{which}/RNN/MultiRNNCell/Cell{layer}/LSTMCell/"
        weight, bias, projection = (arrays[name + part].astype(np.float64) for part in ("W_0", "B", "W_P_0"))
        if state is None:
            h, c = np.zeros(projection.shape[1]), np.zeros(projection.shape[0])
        else:
            h, c = state[which, layer]
        outputs = np.zeros((len(inputs), projection.shape[1]))
        for t in range(len(inputs)):
            i, j, f, o = np.split(np.concatenate([inputs[t], h]) @ weight + bias, 4)
            c = clip(sigmoid(f + 1.0) * c + sigmoid(i) * np.tanh(j), lstm.get("cell_clip"))
            h = clip((sigmoid(o) * np.tanh(c)) @ projection, lstm.get("proj_clip"))
            outputs[t] = h
        if layer > 0 and lstm["use_skip_connections"]:
            outputs = outputs + inputs
        after[which, layer] = (h, c)
        results.append(outputs)
        inputs = outputs
    return results, after


def token_vector(options: Options, arrays: Arrays, word: str, vocabulary: list[str] | None = None) -> np.ndarray:
    """The context-free vector (P,) of one word."""
    if "char_cnn" not in options:
        assert vocabulary is not None
        return arrays["embedding"][word_id(word, vocabulary)].astype(np.float64)
    cnn = options["char_cnn"]
    arrays = {name: values.astype(np.float64) for name, values in arrays.items() if not name.startswith("RNN")}
    characters = arrays["char_embed"][character_ids(word, cnn["max_characters_per_token"])]  # (50, d)
    pieces = []
    for k, (width, channels) in enumerate(cnn["filters"]):
        kernel = arrays[f"CNN/W_cnn_{k}"][0]  # (w, d, n)
        best = np.full(channels, -np.inf)
        for begin in range(len(characters) - width + 1):
            window = characters[begin : begin + width]  # (w, d)
            best = np.maximum(best, np.einsum("wd,wdn->n", window, kernel) + arrays[f"CNN/b_cnn_{k}"])
        pieces.append(np.maximum(best, 0.0) if cnn["activation"] == "relu" else np.tanh(best))
    x = np.concatenate(pieces)  # (F,)
    for k in range(cnn.get("n_highway", 0)):
        high = f"CNN_high_{k}/"
        gate = sigmoid(x @ arrays[high + "W_carry"] + arrays[high + "b_carry"])
        transformed = np.maximum(x @ arrays[high + "W_transform"] + arrays[high + "b_transform"], 0.0)
        x = gate * transformed + (1.0 - gate) * x
    if "CNN_proj/W_proj" in arrays:
        x = x @ arrays["CNN_proj/W_proj"] + arrays["CNN_proj/b_proj"]
    return x


def character_ids(word: str, max_characters: int = 50) -> list[int]:
    """The ids of one word, before the shift that frees 0 for padding."""
    if word == START:
        inside = [BOS]
    elif word == END:
        inside = [EOS]
    else:
        inside = []
        for byte in word.encode("utf-8", "ignore"):
            if len(inside) < max_characters - 2:
                inside.append(byte)
    ids = [BOW, *inside, EOW]
    while len(ids) < max_characters:
        ids.append(PAD)
    return ids


def word_id(word: str, vocabulary: list[str]) -> int:
    return vocabulary.index(word if word in vocabulary else UNKNOWN)


def shifted_ids(options: Options, sentences: list[list[str]], vocabulary: list[str] | None = None) -> np.ndarray:
    """A padded batch as the biLM reads it: every id + 1, 0 is padding; (B, T, 50), or (B, T) of a word-level model."""
    longest = max(map(len, sentences), default=0)
    word_level = "char_cnn" not in options
    columns = () if word_level else (options["char_cnn"]["max_characters_per_token"],)
    batch = np.zeros((len(sentences), longest, *columns), dtype=np.int64)
    for row, sentence in enumerate(sentences):
        for t, word in enumerate(sentence):
            if word_level:
                assert vocabulary is not None
                batch[row, t] = word_id(word, vocabulary) + 1
            else:
                batch[row, t] = np.array(character_ids(word, columns[0])) + 1
    return batch


def scalar_mix(
    layers: np.ndarray, mask: np.ndarray, w: np.ndarray, gamma: float, layer_norm: bool = False, eps: float = 1e-13
) -> np.ndarray:
    """gamma * sum_j softmax(w)_j * layer_j of (L+1, B, T, D), each layer first normalized over the tokens of `mask`."""
    powers = np.exp(np.asarray(w, dtype=np.float64))
    result = np.zeros(layers.shape[1:])
    for layer, power in zip(layers.astype(np.float64), powers, strict=True):
        if layer_norm:
            tokens = layer[mask.astype(bool)]  # (tokens, D)
            layer = (layer - tokens.mean()) / np.sqrt(tokens.var() + eps)
        result += power / powers.sum() * layer
    return gamma * result


class LogProbs(NamedTuple):
    """Of one sentence, both in reading order of the text."""

    forward: np.ndarray  # (T+1,): of each word given those before it, and last of the sentence's end
    backward: np.ndarray  # (T+1,): first of the sentence's start, then of each word given those after it


def log_probs(
    options: Options,
    arrays: Arrays,
    sentences: list[list[str]],
    softmax_weight: np.ndarray,
    softmax_bias: np.ndarray,
    vocabulary: list[str],
    *,
    carry: bool = False,
) -> list[LogProbs]:
    """What each language model says of each sentence; a word outside `vocabulary` is <UNK> where it is predicted.

    A model never reads the token it predicts last (the forward one no </S>, the backward one no <S>), so with `carry`
    the state that starts the next sentence is the one before that token: as the training streams have it.
    """
    results = []
    states: list[State | None] = [None, None]
    for sentence in sentences:
        tokens = [START, *sentence, END]
        found = []
        for which, reading in enumerate([tokens, tokens[::-1]]):
            x = np.array([token_vector(options, arrays, word, vocabulary) for word in reading[:-1]])
            outputs, after = direction(options, arrays, which, x, states[which])
            states[which] = after if carry else None
            logits = outputs[-1] @ softmax_weight.astype(np.float64).T + softmax_bias  # (T+1, V)
            logits -= logits.max(axis=1, keepdims=True)
            normalized = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
            targets = [word_id(word, vocabulary) for word in reading[1:]]
            found.append(normalized[np.arange(len(targets)), targets])
        results.append(LogProbs(found[0], found[1][::-1]))
    return results


def perplexity(results: list[LogProbs]) -> float:
    """exp of the mean loss of both directions."""
    return float(np.exp(-np.concatenate([np.concatenate(pair) for pair in results]).mean()))


def random_model(
    rng: np.random.Generator,
    *,
    skip: bool = True,
    activation: str = "relu",
    highways: int = 1,
    char_projection: bool = True,
    layers: int = 2,
    word_level: bool = False,
    cell_clip: float | None = 0.6,
    proj_clip: float | None = 0.4,
    filters: tuple[tuple[int, int], ...] = ((1, 2), (2, 3), (4, 3)),
    char_dim: int = 3,
    projection_dim: int = 5,
    cell_dim: int = 7,
    max_characters: int = 50,
    num_words: int = 12,
) -> tuple[Options, Arrays]:
    """Options and arrays of any variant, with weights large enough, and clips tight enough, that both clips bite.

    Without `char_projection` the filters' channels are the projection_dim.
    """

    def normal(*shape: int, scale: float = 1.0) -> np.ndarray:
        return (rng.standard_normal(shape) * scale).astype(np.float32)

    width = sum(channels for _, channels in filters)
    if not word_level and not char_projection:
        projection_dim = width
    lstm: Options = {
        "dim": cell_dim,
        "projection_dim": projection_dim,
        "n_layers": layers,
        "use_skip_connections": skip,
    }
    lstm |= {} if cell_clip is None else {"cell_clip": cell_clip}
    lstm |= {} if proj_clip is None else {"proj_clip": proj_clip}
    options: Options = {"lstm": lstm}
    arrays: Arrays = {}
    if word_level:
        arrays["embedding"] = normal(num_words, projection_dim)
    else:
        options["char_cnn"] = {
            "activation": activation,
            "embedding": {"dim": char_dim},
            "filters": [list(pair) for pair in filters],
            "max_characters_per_token": max_characters,
            "n_characters": 262,
            "n_highway": highways,
        }
        arrays["char_embed"] = normal(261, char_dim)
        for k, (w, n) in enumerate(filters):
            arrays[f"CNN/W_cnn_{k}"] = normal(1, w, char_dim, n, scale=0.7 / np.sqrt(w * char_dim))
            arrays[f"CNN/b_cnn_{k}"] = normal(n, scale=0.3)
        for k in range(highways):
            for part in ("carry", "transform"):
                arrays[f"CNN_high_{k}/W_{part}"] = normal(width, width, scale=1.0 / np.sqrt(width))
                arrays[f"CNN_high_{k}/b_{part}"] = normal(width, scale=0.5)
        if char_projection:
            arrays["CNN_proj/W_proj"] = normal(width, projection_dim, scale=1.0 / np.sqrt(width))
            arrays["CNN_proj/b_proj"] = normal(projection_dim, scale=0.3)
    for which in (0, 1):
        for layer in range(layers):
            name = f"RNN_{which}/RNN/MultiRNNCell/Cell{layer}/LSTMCell/"
            arrays[name + "W_0"] = normal(2 * projection_dim, 4 * cell_dim, scale=1.5 / np.sqrt(projection_dim))
            arrays[name + "B"] = normal(4 * cell_dim, scale=0.5)
            arrays[name + "W_P_0"] = normal(cell_dim, projection_dim, scale=2.0 / np.sqrt(cell_dim))
    return options, arrays


def random_vocabulary(num_words: int) -> list[str]:
    """Names for the rows of a word table: the three special words first, as bilm-tf's vocabulary files have them."""
    return [START, END, UNKNOWN, *(f"word{k}" for k in range(num_words - 3))]


def write_official(folder: str | Path, options: Options, arrays: Arrays) -> tuple[Path, Path]:
    """options.json and lm_weights.hdf5 in `folder`, written without the package."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    options_path, weights_path = folder / "options.json", folder / "lm_weights.hdf5"
    options_path.write_text(json.dumps(options), encoding="utf-8")
    with h5py.File(weights_path, "w") as file:
        for name, values in arrays.items():
            file.create_dataset(name, data=values.astype(np.float32))
    return options_path, weights_path


def clip(values: np.ndarray, bound: float | None) -> np.ndarray:
    return values if bound is None else np.clip(values, -bound, bound)


def sigmoid(values: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-values))
