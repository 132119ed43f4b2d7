"""What the host collects of a batch: sizes that are rounded up change neither loss nor gradients."""

import dataclasses

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from elmokit.datasets import LabelledText, TaggedSentence
from elmokit.tasks import TASKS, TaskConfig
from elmokit.tasks.batches import on_device, round_up, sizes_of, tensors_of, with_tensors
from elmokit.tasks.entailment import TokenPair
from elmokit.tasks.questions import TokenizedQuestion
from elmokit.tasks.roles import RoleSentence
from elmokit.tasks.task import HasBatches
from elmokit.tasks.trained import assemble, load_elmo

CPU = torch.device("cpu")
TEXTS = [text.split() for text in ("Ada wrote to Rome", "nothing", "Oslo is extraordinarily far from Lima", "")]
TAGS = [text.split() for text in ("B-PER O O B-LOC", "O", "B-LOC O O O O B-LOC", "")]
LONG = ["he", "flew", "extraordinarily"] * 12


def question_on(sentences: list[list[str]], question: str, spans: list[tuple[int, int]]) -> TokenizedQuestion:
    context = " ".join(word for tokens in sentences for word in tokens)
    starts = [sum(len(word) + 1 for word in context.split()[:number]) for number in range(len(context.split()))]
    offsets = [(start, start + len(word)) for start, word in zip(starts, context.split(), strict=True)]
    answers = [context[offsets[start][0] : offsets[end - 1][1]] for start, end in spans]
    return TokenizedQuestion(context, question, sentences, offsets, question.split(), answers, spans)


EXAMPLES = {
    "ner": [TaggedSentence(tokens, tags) for tokens, tags in zip(TEXTS, TAGS, strict=True)],
    "pos": [TaggedSentence(tokens, tags) for tokens, tags in zip(TEXTS, TAGS, strict=True)],
    "sentiment": [LabelledText(tokens, str(number % 3)) for number, tokens in enumerate(TEXTS)],
    "entailment": [
        TokenPair(tokens, other, str(number % 2))
        for number, (tokens, other) in enumerate(zip(TEXTS, reversed(TEXTS), strict=True))
    ],
    "roles": [
        RoleSentence(TEXTS[0], [1, 3], [["B-A0", "B-V", "O", "O"], ["O", "B-A1", "I-A1", "B-V"]]),
        RoleSentence(TEXTS[1], [], []),
        RoleSentence(TEXTS[2], [1], [["B-A1", "B-V", "I-A1", "O", "O", "O"]]),
        RoleSentence(TEXTS[3], [], []),
    ],
    "questions": [
        question_on([TEXTS[0], TEXTS[2]], "who wrote", [(0, 1), (3, 5)]),
        question_on([TEXTS[1]], "", [(0, 1)]),
        question_on([LONG] * 14, "who ?", [(450, 453)]),  # its window is a part of its sentences
    ],
}


@pytest.fixture
def network_of(tiny_elmo, cache):
    """network_of(task, elmo_at): a network of double precision that drops nothing, for the examples above."""

    def make(name: str, elmo_at: str) -> torch.nn.Module:
        config = TaskConfig(
            task=name, train="none", out="none", elmo=tiny_elmo, cache=cache, elmo_at=elmo_at, word_dim=6, char_dim=7,
            hidden_dim=5, num_layers=2, dropout=0.0, elmo_dropout=0.0,
        )  # fmt: skip
        task, elmo = TASKS[name], load_elmo(config, CPU)
        torch.manual_seed(2)
        trained = assemble(task, config, task.fit(EXAMPLES[name]), ["he", "rome", "is"], elmo, CPU)
        frozen = trained.network.inputs.frozen
        if frozen is not None:
            frozen.prepare([tokens for example in EXAMPLES[name] for tokens in task.sentences(example)])
        return trained.network.double().train()

    return make


def gradients(network: torch.nn.Module, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    parameters = {name: parameter for name, parameter in network.named_parameters() if parameter.requires_grad}
    values = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    return {
        name: torch.zeros_like(parameter) if value is None else value
        for (name, parameter), value in zip(parameters.items(), values, strict=True)
    }


@pytest.mark.parametrize("elmo_at", ["none", "both"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_sizes_that_are_rounded_up_change_neither_loss_nor_gradients(network_of, name, elmo_at):
    network = network_of(name, elmo_at)
    assert isinstance(network, HasBatches)
    for examples in (EXAMPLES[name], EXAMPLES[name][1:2]):  # the second has no predicate
        exact, rounded = network.collect(examples), network.collect(examples, rounded=True)
        assert sizes_of(exact) != sizes_of(rounded)
        loss, padded_loss = network.loss_of(exact), network.loss_of(rounded)
        assert loss.item() == network.loss(examples).item()
        torch.testing.assert_close(padded_loss, loss, atol=1e-12, rtol=1e-10)
        expected, found = gradients(network, loss), gradients(network, padded_loss)
        for parameter in expected:
            torch.testing.assert_close(found[parameter], expected[parameter], atol=1e-12, rtol=1e-8)


@pytest.mark.parametrize("name", EXAMPLES)
def test_batches_that_differ_a_little_have_the_same_rounded_sizes(network_of, name):
    network, examples = network_of(name, "both"), EXAMPLES[name]
    other = [examples[1], *examples[1:]]
    assert sizes_of(network.collect(examples)) != sizes_of(network.collect(other))
    assert sizes_of(network.collect(examples, rounded=True)) == sizes_of(network.collect(other, rounded=True))


@pytest.mark.parametrize("elmo_at", ["none", "both"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_operations_of_one_batch_compute_the_loss_of_another_of_its_sizes(network_of, name, elmo_at):
    """As a graph replays them: a value of the first batch that they had kept would show."""
    network, examples = network_of(name, elmo_at), EXAMPLES[name]
    first = network.collect(examples, rounded=True)
    other = network.collect([examples[1], *reversed(examples[1:])], rounded=True)
    assert sizes_of(first) == sizes_of(other)
    # pre_dispatch: a layer of LSTMs is one operation, not some for each token
    trace = make_fx(lambda *tensors: network.loss_of(with_tensors(first, tensors)), pre_dispatch=True)
    operations = trace(*tensors_of(first))
    loss, expected = operations(*tensors_of(other)), network.loss_of(other)
    assert abs(expected - network.loss_of(first)) > 1e-7
    torch.testing.assert_close(loss, expected, atol=1e-12, rtol=1e-12)


def test_sizes_are_rounded_to_few_that_are_at_most_a_quarter_larger():
    sizes = {round_up(size, 8) for size in range(1, 513)}
    assert sorted(sizes) == [*range(8, 65, 8), 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512]
    assert all(size <= round_up(size, 8) <= max(size + 7, 1.25 * size) for size in range(1, 2000))
    assert [round_up(size, 32) for size in (0, 1, 32, 33)] == [0, 32, 32, 64]


def test_the_tensors_of_a_batch_are_taken_out_and_put_back():
    @dataclasses.dataclass(frozen=True)
    class Inner:
        a: torch.Tensor
        number: int
        nothing: torch.Tensor | None

    @dataclasses.dataclass(frozen=True)
    class Outer:
        inner: Inner
        b: torch.Tensor

    batch = Outer(Inner(torch.zeros(2), 3, None), torch.ones(1, 4))
    assert [tensor.shape for tensor in tensors_of(batch)] == [(2,), (1, 4)]
    assert sizes_of(batch) == (((2,), 3, None), (1, 4))
    doubled = with_tensors(batch, (tensor + 1 for tensor in tensors_of(batch)))
    assert doubled.inner.a.tolist() == [1, 1]
    assert (doubled.inner.number, doubled.inner.nothing, doubled.b.tolist()) == (3, None, [[2] * 4])
    assert on_device(batch, CPU).inner.a is batch.inner.a
