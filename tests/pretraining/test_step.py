"""One training step: losses and gradients are exact, words in groups are those of the network, dropout repeats."""

import dataclasses

import numpy as np
import pytest
import torch
from tiny_runs import BLOCKS, MODEL, SETTINGS, make_learner, step_batches

import reference
import reference_transformer
from elmokit.corpus import Streams, prepare
from elmokit.network import AttentionState, BiLM, BiLMState
from elmokit.pretraining import (
    pretrain,
)
from elmokit.pretraining.batches import BatchMaker, Loader
from elmokit.pretraining.step import Learner
from elmokit.text import Vocabulary, words_to_ids
from transformer_models import random_transformer


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        (MODEL, {}),
        (MODEL, {"loss": "sampled", "num_negatives": 8}),
        (dataclasses.replace(MODEL, activation="tanh", skip_connections=False, cell_clip=0.2, proj_clip=0.1), {}),
        (dataclasses.replace(MODEL, num_words=20), {}),
        (BLOCKS, {}),
        (BLOCKS, {"state_reset": 1.0}),
    ],
    ids=["full", "sampled", "clipped", "words", "transformer", "transformer without state"],
)
def test_the_gradient_of_every_parameter_equals_finite_differences(corpus, model, settings):
    learner = make_learner(corpus, dtype=torch.float64, model=model, **{"dropout": 0.0, **settings})
    batch = step_batches(corpus, 1, model=model)[0].batches[0]
    rng = torch.Generator().manual_seed(3)
    state = random_state(learner.state, rng)
    negatives = None
    if settings.get("loss") == "sampled":
        negatives = (learner.sampler.sample(rng), learner.sampler.sample(rng))

    def total() -> torch.Tensor:
        forward, backward, _ = learner.losses(batch, state, negatives=negatives)
        return forward + backward

    named = dict(learner.model.named_parameters())
    gradients = dict(zip(named, torch.autograd.grad(total(), list(named.values())), strict=True))
    for name, parameter in named.items():
        directions = [torch.randn(parameter.shape, generator=rng, dtype=parameter.dtype) for _ in range(2)]
        # and single elements: one with the largest gradient, one anywhere
        for place in (gradients[name].abs().argmax(), torch.randint(parameter.numel(), (), generator=rng)):
            one = torch.zeros_like(parameter).flatten()
            one[place] = 1.0
            directions.append(one.view_as(parameter))
        for direction in directions:
            with torch.no_grad():
                values = parameter.clone()
                parameter.copy_(values + 1e-6 * direction)
                above = total()
                parameter.copy_(values - 1e-6 * direction)
                below = total()
                parameter.copy_(values)
            measured = float(above - below) / 2e-6
            found = float((gradients[name] * direction).sum())
            assert found == pytest.approx(measured, rel=1e-5, abs=1e-8), name


def random_state(like, rng):
    """A state of the same shapes; the four rows of a transformer have 3, 0, 1 and 2 tokens before them."""
    if isinstance(like, BiLMState):
        return BiLMState(*(torch.randn(part.shape, generator=rng, dtype=part.dtype) * 0.1 for part in like))
    if isinstance(like, AttentionState):
        past = [torch.randn(part.shape, generator=rng, dtype=part.dtype) for part in like[:2]]
        return AttentionState(*past, torch.tensor([[[3, 0, 1, 2]]]))
    return None  # of a run that carries nothing


def lstm_and_its_reference(official_model):
    """A biLM, and read(direction, words, state) of the reference: the top layer (T, P) and the state after it."""
    official = official_model(seed=2)

    def read(which, words, state):
        x = np.array([reference.token_vector(official.options, official.arrays, word) for word in words])
        outputs, state = reference.direction(official.options, official.arrays, which, x, state)
        return outputs[-1], state

    return official.bilm(), read


def transformer_and_its_reference(official_model):
    """As `lstm_and_its_reference`; the state is the past of all tokens."""
    model = random_transformer(2, attention_window=6)

    def read(which, words, past):
        past, tops = {} if past is None else past, []
        for word in words:
            x = reference_transformer.norm(reference_transformer.token_vector(model.sizes, model.arrays, word, None))
            tops.append(reference_transformer.read(model.sizes, model.arrays, which, x, past)[-1])
        return np.stack(tops), past

    return model.bilm(), read


@pytest.mark.parametrize(
    "bilm_and_its_reference", [lstm_and_its_reference, transformer_and_its_reference], ids=["lstm", "transformer"]
)
def test_the_losses_are_those_of_the_reference_with_state_carried_in_both_streams(
    corpus, official_model, bilm_and_its_reference
):
    bilm, read = bilm_and_its_reference(official_model)
    learner = make_learner(corpus, model=bilm.config, dropout=0.0)
    learner.model.bilm.load_state_dict(bilm.state_dict())
    streams = Streams(corpus, batch_size=3, unroll=4, seed=1)
    maker = BatchMaker(corpus, bilm.config, static_shapes=False)
    state = learner.model.bilm.initial_state(3)
    spelled = {row.tobytes(): word for word, row in _spellings()}
    softmax = {n: p.detach().numpy().astype(np.float64) for n, p in learner.model.output.named_parameters()}
    carried: list = [[None] * 3, [None] * 3]
    for _ in range(3):
        batch = streams.next()
        with torch.no_grad():
            forward, backward, state = learner.losses(maker.make(batch), state)
        for which, found, inputs, targets in (
            (0, forward, batch.forward_inputs, batch.forward_targets),
            (1, backward, batch.backward_inputs, batch.backward_targets),
        ):
            losses = []
            for row in range(3):
                words = [spelled[np.asarray(corpus.forms)[form].tobytes()] for form in inputs[row]]
                outputs, carried[which][row] = read(which, words, carried[which][row])
                logits = outputs @ softmax["weight"].T + softmax["bias"]
                log_probs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
                losses += [-log_probs[t, target] for t, target in enumerate(targets[row])]
            assert float(found) == pytest.approx(np.mean(losses), rel=1e-5)


def _spellings():
    """(word, its ids) of all words of the text."""
    grammar = "she he left the money fish bread by bank river oven today quietly ."
    words = ["<S>", "</S>", *grammar.split(), *(f"visitor{number}" for number in range(40))]
    return zip(words, words_to_ids(words), strict=True)


@pytest.mark.parametrize("static_shapes", [False, True])
@pytest.mark.parametrize(
    "variant", [{}, {"activation": "tanh", "num_highways": 0}, {"max_characters": 12}, {"filters": ((4, 6),)}]
)
def test_words_encoded_in_groups_are_those_of_the_network_and_so_are_their_gradients(tmp_path, variant, static_shapes):
    model = dataclasses.replace(MODEL, **{"filters": ((1, 2), (2, 3), (7, 4)), **variant})
    words = ["a", "of", "river", "x" * 9, "y" * 16, "z" * 40, "q" * 43, "w" * 47, "v" * 48, "long" * 30]
    (tmp_path / "text.txt").write_text(" ".join(words * 3) + "\n", encoding="utf-8")
    vocabulary = Vocabulary(["<S>", "</S>", "<UNK>", "of"])
    corpus = prepare(
        tmp_path / "text.txt", tmp_path / "corpus", vocabulary=vocabulary, tokenized=True,
        max_characters=model.max_characters,
    )  # fmt: skip
    raw = Streams(corpus, batch_size=2, unroll=15, seed=0).next()
    batch = BatchMaker(corpus, model, static_shapes=static_shapes).make(raw)
    torch.manual_seed(0)
    bilm = BiLM(model).double()
    for bias in (p for name, p in bilm.named_parameters() if name.endswith("bias")):
        torch.nn.init.normal_(bias)

    found = bilm.embed_groups(batch.words)[batch.index]  # (D, T, B, P)
    forms = np.stack([raw.forward_inputs.T, raw.backward_inputs.T[::-1]])
    ids = torch.from_numpy(np.asarray(corpus.forms)[forms.reshape(-1)].astype(np.int64) + 1)
    expected = torch.cat([bilm.embed_words(row[None]) for row in ids]).view_as(found)
    torch.testing.assert_close(found, expected)

    pattern = torch.randn(found.shape, dtype=torch.float64)
    parameters = list(bilm.char_encoder.parameters())
    own = torch.autograd.grad((found * pattern).sum(), parameters)
    for gradient, wanted in zip(own, torch.autograd.grad((expected * pattern).sum(), parameters), strict=True):
        torch.testing.assert_close(gradient, wanted)


def test_static_shapes_stay_the_same_from_batch_to_batch(corpus):
    streams = Streams(corpus, batch_size=4, unroll=5, seed=1)
    maker = BatchMaker(corpus, MODEL, static_shapes=True)
    shapes = [[tensor.shape for tensor in maker.make(streams.next()).tensors()] for _ in range(20)]
    assert all(shape == shapes[0] for shape in shapes)


def test_a_corpus_of_other_word_lengths_is_refused(corpus):
    with pytest.raises(ValueError, match="prepared with 50 characters per word, the model reads 30"):
        BatchMaker(corpus, dataclasses.replace(MODEL, max_characters=30), static_shapes=False)


def test_dropout_zeroes_its_fraction_scales_the_rest_and_repeats_with_the_step(corpus):
    learner = make_learner(corpus, dropout=0.25)
    learner._dropout.manual_seed(1)
    x = torch.ones(1000, 10)
    dropped = learner._drop(x)
    assert dropped.unique().tolist() == pytest.approx([0.0, 1 / 0.75])
    assert float((dropped == 0).float().mean()) == pytest.approx(0.25, abs=0.02)
    learner._dropout.manual_seed(1)
    assert torch.equal(dropped, learner._drop(x))


@pytest.mark.parametrize(("fraction", "least", "most"), [(0.0, 0, 0), (0.5, 15, 35), (1.0, 44, 44)])
def test_a_fraction_of_the_rows_starts_a_step_with_a_zero_state(text, tmp_path, monkeypatch, fraction, least, most):
    fresh = []
    losses = Learner.losses

    def watched(self, batch, state, **arguments):
        fresh.append((state.cell == 0).all(dim=3).all(dim=1).all(dim=0))  # (B,)
        return losses(self, batch, state, **arguments)

    monkeypatch.setattr(Learner, "losses", watched)
    pretrain(model=MODEL, out=tmp_path / "run", **text, **{**SETTINGS, "state_reset": fraction})
    assert fresh[0].all()
    assert least <= int(torch.stack(fresh[1:]).sum()) <= most  # of eleven steps with four rows


def test_an_error_in_the_loaders_thread_reaches_the_caller(corpus):
    class Broken:
        def next(self):
            raise RuntimeError("the disk is gone")

    loader = Loader(Broken(), BatchMaker(corpus, MODEL, static_shapes=False), accumulation=1, pin=False)
    with pytest.raises(RuntimeError, match="the disk is gone"):
        next(iter(loader))
    loader.close()
