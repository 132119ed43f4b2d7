"""Both architectures under one face: random biLMs, what their references make of a sentence, how near the two come."""

from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import reference
import reference_transformer
from elmokit.network import lstm, transformer

SENTENCES = [
    ["The", "bank", "lent", "money", "to", "the", "mill", "."],
    ["Yes"],
    ["We", "sat", "by", "the", "bank", "of", "the", "river", ",", "café", "naïve", "日本語"],
    [],
    ["x" * 70, "", "</S>", "a", "<S>", "<UNK>", "\x00"],
    ["bank", "bank", "bank"],
]


class LSTM:
    """LSTM layers, as an `OfficialModel` has them."""

    sizes: ClassVar[dict[str, Any]] = {
        "layers": 3,
        "filters": ((1, 4), (3, 5), (7, 6)),
        "projection_dim": 8,
        "cell_dim": 16,
    }
    word_level: ClassVar[dict[str, Any]] = {"word_level": True}
    near = 1e-6  # distance that batches of other shapes may make, in float32
    same = 0.0  # distance that two runs of the same shape may make
    far = 0.0  # distance that a token on the visible side makes at least

    @staticmethod
    def expected_after(model, sentence, run):
        """What the reference makes of a sentence that follows the one of `run`."""
        return model.expected(sentence, state=run.state)

    @staticmethod
    def assert_state(model, state, row, run, tolerance):
        """The hidden and cell vectors of a row are the reference's."""
        for (which, layer), (hidden, cell) in run.state.items():
            close(state.hidden[layer, which, row], hidden, tolerance)
            close(state.cell[layer, which, row], cell, tolerance)

    @staticmethod
    def state_shapes(model, num_rows):
        """Shapes of the parts of a state."""
        sizes = model.options["lstm"]
        return [(sizes["n_layers"], 2, num_rows, sizes[name]) for name in ("projection_dim", "dim")]

    @staticmethod
    def log_probs(model, sentences, weight, bias):
        """What the reference's language models say of sentences."""
        return reference.log_probs(model.options, model.arrays, sentences, weight, bias, model.vocabulary)

    @staticmethod
    def limit_steps(monkeypatch: pytest.MonkeyPatch, bilm, steps: int, num_rows: int) -> None:
        """Compute at most this many steps at once."""
        monkeypatch.setattr(lstm, "GATES_AT_ONCE", {"cpu": steps * 2 * 4 * bilm.config.cell_dim * num_rows})


class Transformer:
    """Transformer blocks, as a `TransformerModel` has them."""

    sizes: ClassVar[dict[str, Any]] = {
        "num_layers": 3,
        "projection_dim": 8,
        "feedforward_dim": 16,
        "attention_window": 6,
    }
    word_level: ClassVar[dict[str, Any]] = {"num_words": 12}
    near = 2e-6
    same = 1e-6
    far = 1e-4

    @staticmethod
    def expected_after(model, sentence, run):
        """What the reference makes of a sentence that follows the one of `run`."""
        return model.expected(sentence, past=run.past)

    @staticmethod
    def assert_state(model, state, row, run, tolerance):
        """The keys and values of a row are the reference's last ones, and nothing else counts."""
        num_kept = model.sizes["attention_window"] - 1
        for (which, block), seen in run.past.items():
            last = seen[-num_kept:] if num_kept else []
            assert state.num_past[0, 0, row] == len(last)
            for age, (key, value) in enumerate(reversed(last), 1):
                heads = [reference_transformer.norm(part) for part in np.split(key, model.sizes["num_heads"])]
                close(state.past_keys[block, which, row, -age], np.concatenate(heads), tolerance)
                close(state.past_values[block, which, row, -age], value, tolerance)

    @staticmethod
    def state_shapes(model, num_rows):
        """Shapes of the parts of a state."""
        sizes = model.sizes
        past = (sizes["num_layers"], 2, num_rows, sizes["attention_window"] - 1, sizes["projection_dim"])
        return [past, past, (1, 1, num_rows)]

    @staticmethod
    def log_probs(model, sentences, weight, bias):
        """What the reference's language models say of sentences."""
        return reference_transformer.log_probs(
            model.sizes, model.arrays, sentences, weight, bias, model.vocabulary, word_level=True
        )

    @staticmethod
    def limit_steps(monkeypatch: pytest.MonkeyPatch, bilm, steps: int, num_rows: int) -> None:
        """Compute at most this many steps at once."""
        monkeypatch.setattr(transformer, "TOKENS_AT_ONCE", {"cpu": steps * num_rows})


def close(given: Any, expected: Any, tolerance: float) -> None:
    """Same shape, and nowhere farther apart than `tolerance`."""
    given, expected = (torch.as_tensor(np.asarray(values)).double() for values in (given, expected))
    torch.testing.assert_close(given, expected, rtol=0.0, atol=tolerance)


def states_close(given, expected, tolerance: float) -> None:
    """Every part of two states is close."""
    for one, other in zip(given, expected, strict=True):
        close(one, other, tolerance)


def assert_equals_reference(architecture, model, sentences, *, single: float = 1e-5, double: float = 1e-10) -> None:
    """The complete batch, in float32 and in float64, layers and state, with and without boundary tokens."""
    expected = [model.expected(sentence) for sentence in sentences]
    bilm = model.bilm()
    for dtype, tolerance in [(torch.float32, single), (torch.float64, double)]:
        bilm = bilm.to(dtype)  # the weights are float32 numbers, so float64 holds them exactly
        bare = bilm(model.ids(sentences))
        complete = bilm(model.ids(sentences), keep_boundaries=True)
        for row, (sentence, run) in enumerate(zip(sentences, expected, strict=True)):
            close(bare.layers[:, row, : len(sentence)], run.layers, tolerance)
            close(complete.layers[:, row, : len(sentence) + 2], run.with_boundaries, tolerance)
            architecture.assert_state(model, bare.state, row, run, tolerance)


def assert_same_sentences(output, sentences, expected, tolerance: float) -> None:
    """`output` holds at each row what `expected` (a dict by sentence) says, and nothing elsewhere."""
    for row, sentence in enumerate(sentences):
        close(output.layers[:, row, : len(sentence)], expected[tuple(sentence)], tolerance)
        assert output.mask[row].tolist() == [t < len(sentence) for t in range(output.mask.shape[1])]


def each_alone(model, bilm) -> dict[tuple[str, ...], torch.Tensor]:
    """The layers of each of SENTENCES, run by itself."""
    return {tuple(sentence): bilm(model.ids([sentence])).layers[:, 0] for sentence in SENTENCES}
