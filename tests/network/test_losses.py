"""The losses against their definitions in float64 NumPy, and against finite differences."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from elmokit.kernels.cpu import native
from elmokit.kernels.cpu import scores as cpu_scores
from elmokit.network import losses
from elmokit.network.losses import chunked_softmax_loss, full_softmax_loss, sampled_softmax_loss
from elmokit.network.output import SCORES_PER_CHUNK, OutputLayer
from elmokit.network.sampling import LogUniformSampler, Negatives, gather_rows

V, P, N, S = 37, 5, 23, 11


@pytest.fixture
def output() -> OutputLayer:
    torch.manual_seed(1)
    output = OutputLayer(V, P).double()
    with torch.no_grad():
        output.bias.normal_()
    return output


@pytest.fixture
def hidden() -> torch.Tensor:
    torch.manual_seed(2)
    return torch.randn(N, P, dtype=torch.float64, requires_grad=True)


@pytest.fixture
def targets() -> torch.Tensor:
    torch.manual_seed(3)
    return torch.randint(0, V, (N,))


@pytest.fixture
def negatives() -> Negatives:
    return LogUniformSampler(V, S).sample(torch.Generator().manual_seed(4))


def probability(k: int, num_words: int) -> float:
    return math.log((k + 2) / (k + 1)) / math.log(num_words + 1)


def written_softmax(hidden, targets, weight, bias):
    """-log softmax, token by token."""
    losses = []
    for h, t in zip(hidden, targets, strict=True):
        scores = weight @ h + bias
        losses.append(np.log(np.exp(scores - scores.max()).sum()) + scores.max() - scores[t])
    return np.array(losses)


def written_sampled_softmax(hidden, targets, weight, bias, sampled, num_tries, num_words):
    """TensorFlow's definition, term by term: the true class first, accidental hits out, log expected counts off."""

    def score(h, word):
        expected = -math.expm1(num_tries * math.log1p(-probability(word, num_words)))
        return float(weight[word] @ h + bias[word]) - math.log(expected)

    losses = []
    for h, t in zip(hidden, targets, strict=True):
        scores = [score(h, t)] + [score(h, word) for word in sampled if word != t]
        losses.append(math.log(sum(math.exp(s) for s in scores)) - scores[0])
    return np.array(losses)


def numpy_of(*tensors):
    return [t.detach().numpy().copy() for t in tensors]


def finite_differences(function, array, step=1e-6):
    """Central differences of a scalar function, one element of `array` at a time."""
    gradient = np.zeros_like(array)
    for at in np.ndindex(array.shape):
        kept = array[at]
        array[at] = kept + step
        above = function()
        array[at] = kept - step
        gradient[at] = (above - function()) / (2 * step)
        array[at] = kept
    return gradient


def gradients(loss, *leaves):
    return [g.numpy() for g in torch.autograd.grad(loss, leaves)]


# The output layer


def test_an_output_layer_starts_as_published():
    torch.manual_seed(0)
    output = OutputLayer(4000, 64)
    assert output.num_words == 4000
    assert output.weight.shape == (4000, 64)
    assert float(output.weight.detach().std()) == pytest.approx(1 / 8, rel=0.01)
    assert float(output.weight.detach().mean()) == pytest.approx(0, abs=1e-3)
    assert torch.equal(output.bias, torch.zeros(4000))


def test_log_probs_are_the_log_softmax_at_the_targets_in_any_shape(output, hidden, targets, monkeypatch):
    monkeypatch.setitem(SCORES_PER_CHUNK, "cpu", 4 * V)  # four tokens at a time
    expected = -written_softmax(*numpy_of(hidden, targets, output.weight, output.bias))
    found = output.log_probs(hidden[:22].reshape(2, 11, P), targets[:22].reshape(2, 11))
    np.testing.assert_allclose(found.detach().numpy().ravel(), expected[:22], rtol=1e-12)
    assert output.log_probs(hidden[:0], targets[:0]).shape == (0,)


@pytest.fixture(params=["with the library", "without it"])
def library(request, monkeypatch):
    if request.param == "without it":
        monkeypatch.setattr(native, "library", lambda: None)
    elif native.library() is None:
        pytest.skip("the library is not compiled, or ELMOKIT_NATIVE is 0")


@pytest.mark.parametrize(("rows_at_once", "words_at_once"), [(7, 5), (1, V), (1000, 1), (256, 512)])
def test_log_probs_in_blocks_are_the_log_softmax_for_any_size_of_a_block(
    output, hidden, targets, library, monkeypatch, rows_at_once, words_at_once
):
    monkeypatch.setattr(cpu_scores, "ROWS_AT_ONCE", rows_at_once)
    monkeypatch.setattr(cpu_scores, "WORDS_AT_ONCE", words_at_once)
    expected = -written_softmax(*numpy_of(hidden, targets, output.weight, output.bias))
    layer = OutputLayer(V, P).requires_grad_(False)
    layer.load_state_dict(output.state_dict())
    rounded = hidden.detach().float()
    found = layer.log_probs(rounded, targets)
    np.testing.assert_allclose(found.numpy(), expected, atol=2e-6 * np.abs(expected).max())
    far = layer.log_probs(1e4 * rounded, targets)  # exp of such scores is infinite
    expected = -written_softmax(*numpy_of(1e4 * rounded.double(), targets, output.weight, output.bias))
    np.testing.assert_allclose(far.numpy(), expected, rtol=1e-4, atol=0.1)
    assert layer.log_probs(rounded[:0], targets[:0]).shape == (0,)


@pytest.mark.parametrize(("num_words", "num_rows"), [(1, 3), (63, 1), (1000, 5), (1537, 1030)])
def test_log_probs_of_many_words_are_those_of_float64(library, num_words, num_rows):
    torch.manual_seed(num_words)
    layer = OutputLayer(num_words, P).requires_grad_(False)
    layer.bias.normal_()
    hidden, targets = 3 * torch.randn(num_rows, P), torch.randint(num_words, (num_rows,))
    scores = hidden.double() @ layer.weight.double().T + layer.bias
    expected = scores.log_softmax(dim=1).gather(1, targets[:, None])[:, 0]
    torch.testing.assert_close(layer.log_probs(hidden, targets).double(), expected, atol=4e-6, rtol=1e-6)


def test_a_word_that_is_impossible_and_a_score_that_is_no_number_are_those_of_log_softmax(library):
    torch.manual_seed(0)
    layer = OutputLayer(1100, P).requires_grad_(False)
    layer.bias[:900] = -math.inf  # all words of a block
    hidden, targets = torch.randn(4, P), torch.tensor([1099, 0, 900, 1000])
    hidden[3, 1] = math.nan
    expected = layer.logits(hidden).log_softmax(dim=1).gather(1, targets[:, None])[:, 0]
    assert expected[1] == -math.inf
    assert expected[3].isnan()
    torch.testing.assert_close(layer.log_probs(hidden, targets), expected, equal_nan=True)


def test_log_probs_sum_half_precision_scores_in_float32(output, hidden, targets):
    found = output.log_probs(hidden.half(), targets)
    assert found.dtype == torch.float32
    expected = -written_softmax(*numpy_of(hidden, targets, output.weight, output.bias))
    np.testing.assert_allclose(found.detach().numpy(), expected, atol=0.02)


# Full and chunked softmax


def test_the_full_softmax_is_its_written_definition(output, hidden, targets):
    expected = written_softmax(*numpy_of(hidden, targets, output.weight, output.bias))
    losses = full_softmax_loss(hidden, targets, output)
    np.testing.assert_allclose(losses.detach().numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("multiple", [1, 64])  # of columns: 64 is what a GPU takes
@pytest.mark.parametrize("chunk_tokens", [1, 7, N - 1, N, N + 1, None])
def test_the_chunked_softmax_and_its_gradient_equal_the_full_one_at_any_chunk_size(
    output, hidden, targets, chunk_tokens, multiple, monkeypatch
):
    monkeypatch.setitem(losses.COLUMN_MULTIPLE, "cpu", multiple)
    leaves = (hidden, output.weight, output.bias)
    full = full_softmax_loss(hidden, targets, output).mean()
    chunked = chunked_softmax_loss(hidden, targets, output, chunk_tokens=chunk_tokens)
    assert chunked.item() == pytest.approx(full.item(), rel=1e-12)
    for found, expected in zip(gradients(3 * chunked, *leaves), gradients(3 * full, *leaves), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-13)


def test_the_chunked_softmax_gradient_equals_finite_differences(output, hidden, targets):
    h, t, w, b = numpy_of(hidden, targets, output.weight, output.bias)
    loss = chunked_softmax_loss(hidden, targets, output, chunk_tokens=6)
    for found, array in zip(gradients(loss, hidden, output.weight, output.bias), (h, w, b), strict=True):
        expected = finite_differences(lambda: written_softmax(h, t, w, b).mean(), array)
        np.testing.assert_allclose(found, expected, atol=1e-8)


def test_weights_leave_masked_tokens_out_of_the_mean_and_of_the_gradient(output, hidden, targets):
    mask = torch.arange(N) % 3 != 0
    leaves = (hidden, output.weight, output.bias)
    kept = full_softmax_loss(hidden[mask], targets[mask], output).mean()
    masked = chunked_softmax_loss(hidden, targets, output, weights=mask, chunk_tokens=5)
    assert masked.item() == pytest.approx(kept.item(), rel=1e-12)
    for found, expected in zip(gradients(masked, *leaves), gradients(kept, *leaves), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-13)


@pytest.mark.parametrize("num_tokens", [0, N])
def test_a_batch_without_tokens_that_count_has_loss_zero_and_no_gradient(
    output, hidden, targets, negatives, num_tokens
):
    nothing = torch.zeros(num_tokens)
    for loss in (
        chunked_softmax_loss(hidden[:num_tokens], targets[:num_tokens], output, weights=nothing),
        sampled_softmax_loss(hidden[:num_tokens], targets[:num_tokens], output, negatives, weights=nothing),
    ):
        assert loss.item() == 0
        assert all(not g.any() for g in gradients(loss, hidden, output.weight, output.bias))


def test_scores_far_apart_neither_overflow_nor_underflow(output, hidden, targets, negatives):
    large = hidden.detach().float() * 1000
    layer = output.float()
    expected = written_softmax(*numpy_of(large.double(), targets, layer.weight.double(), layer.bias.double())).mean()
    assert chunked_softmax_loss(large, targets, layer).item() == pytest.approx(expected, rel=1e-5)
    assert torch.isfinite(sampled_softmax_loss(large, targets, layer, negatives))


def test_the_gradient_can_be_taken_again_from_a_kept_graph(output, hidden, targets):
    loss = chunked_softmax_loss(hidden, targets, output)
    first, second = (torch.autograd.grad(loss, hidden, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("autocast", [False, True])
def test_half_precision_products_give_float32_sums_and_gradients_in_each_inputs_own_dtype(
    output, hidden, targets, negatives, autocast
):
    exact_full = chunked_softmax_loss(hidden, targets, output).item()
    exact_sampled = sampled_softmax_loss(hidden, targets, output, negatives).item()
    exact_gradient = gradients(sampled_softmax_loss(hidden, targets, output, negatives), output.weight)[0]
    layer = output.float()
    narrow = hidden.detach().to(torch.float32 if autocast else torch.float16).requires_grad_()
    with torch.autocast("cpu", dtype=torch.float16, enabled=autocast):
        full = chunked_softmax_loss(narrow, targets, layer, chunk_tokens=6)
        sampled = sampled_softmax_loss(narrow, targets, layer, negatives, chunk_tokens=6)
    assert full.dtype == sampled.dtype == torch.float32
    assert full.item() == pytest.approx(exact_full, abs=5e-3)
    assert full.item() != pytest.approx(exact_full, abs=1e-6), "the products were not made in half precision"
    assert sampled.item() == pytest.approx(exact_sampled, abs=5e-3)
    sampled.backward()
    assert narrow.grad.dtype == narrow.dtype
    assert layer.weight.grad.dtype == layer.bias.grad.dtype == torch.float32
    np.testing.assert_allclose(layer.weight.grad.numpy(), exact_gradient, atol=2e-3)


class LargestTensor(TorchDispatchMode):
    """Notes the most elements that any operation returns."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            self.elements = max(self.elements, tensor.numel() if isinstance(tensor, torch.Tensor) else 0)
        return result


def test_no_more_than_a_chunk_of_scores_is_ever_held(monkeypatch):
    num_words, num_tokens, chunk = 500, 64, 4
    monkeypatch.setitem(SCORES_PER_CHUNK, "cpu", chunk * num_words)
    output, sampler = OutputLayer(num_words, 2), LogUniformSampler(num_words, 400)
    hidden, targets = torch.randn(num_tokens, 2, requires_grad=True), torch.arange(num_tokens)
    negatives = sampler.sample(torch.Generator().manual_seed(0))
    for loss, columns in (
        (lambda: chunked_softmax_loss(hidden, targets, output).backward(), num_words),
        (lambda: chunked_softmax_loss(hidden, targets, output, chunk_tokens=chunk).backward(), num_words),
        (lambda: output.log_probs(hidden, targets), num_words),
        (lambda: sampled_softmax_loss(hidden, targets, output, negatives, chunk_tokens=chunk).backward(), 400),
    ):
        with LargestTensor() as largest:
            loss()
        assert largest.elements == chunk * columns


# The sampler


def test_words_are_drawn_by_the_log_uniform_law():
    sampler = LogUniformSampler(50, 5)
    draws, rounds = np.zeros(50), 400
    generator = torch.Generator().manual_seed(0)
    for _ in range(rounds):
        draws += np.bincount(sampler._draw(generator).numpy(), minlength=50)
    total = rounds * sampler.num_draws
    p = np.array([probability(k, 50) for k in range(50)])
    assert p.sum() == pytest.approx(1)
    assert np.all(np.abs(draws - total * p) < 5 * np.sqrt(total * p * (1 - p)))


@pytest.mark.parametrize(("num_words", "num_samples"), [(1000, 100), (60, 59), (2, 1)])
def test_a_draw_is_the_first_distinct_words_of_drawing_one_by_one(num_words, num_samples):
    sampler = LogUniformSampler(num_words, num_samples)
    for seed in range(20):
        negatives = sampler.sample(torch.Generator().manual_seed(seed))
        generator = torch.Generator().manual_seed(seed)
        uniforms = torch.rand(sampler.num_draws, dtype=torch.float64, generator=generator).tolist()
        seen: set[int] = set()
        tries = 0
        while len(seen) < num_samples:
            seen.add(math.floor(math.exp(uniforms[tries] * math.log(num_words + 1))) - 1)
            tries += 1
        assert negatives.ids.tolist() == sorted(seen)
        assert int(negatives.num_tries) == tries


def test_a_block_that_falls_short_is_followed_by_others_of_the_same_stream():
    sampler = LogUniformSampler(1000, 100)
    enough = sampler.sample(torch.Generator().manual_seed(5))
    sampler.num_draws = 40  # at least three blocks for a hundred distinct words
    short = sampler.sample(torch.Generator().manual_seed(5))
    assert torch.equal(short.ids, enough.ids)
    assert torch.equal(short.num_tries, enough.num_tries)


def test_the_published_draw_needs_one_block_of_about_twice_its_words():
    sampler = LogUniformSampler(793_471, 8192)
    negatives = sampler.sample(torch.Generator().manual_seed(0))
    assert len(negatives.ids.unique()) == 8192
    assert 8192 < int(negatives.num_tries) < sampler.num_draws < 2.5 * 8192


def test_the_same_generator_state_gives_the_same_draw_and_the_next_differs():
    sampler, generator = LogUniformSampler(1000, 100), torch.Generator().manual_seed(7)
    state = generator.get_state()
    first, next_ = sampler.sample(generator), sampler.sample(generator)
    generator.set_state(state)
    assert torch.equal(sampler.sample(generator).ids, first.ids)
    assert not torch.equal(next_.ids, first.ids)


def test_expected_counts_are_the_fraction_of_draws_that_contain_a_word():
    sampler, generator, rounds = LogUniformSampler(40, 10), torch.Generator().manual_seed(0), 4000
    tries, words = 25, torch.arange(40)
    found = np.zeros(40)
    for _ in range(rounds):
        found[np.unique(sampler._draw(generator)[:tries].numpy())] += 1
    expected = sampler.log_expected_counts(words, torch.tensor(tries)).exp().numpy()
    assert np.all(np.abs(found / rounds - expected) < 5 * np.sqrt(expected * (1 - expected) / rounds))


@pytest.mark.parametrize("num_samples", [10, 11, 0, -1])
def test_a_draw_of_no_words_or_of_all_is_refused(num_samples):
    with pytest.raises(ValueError, match=f"cannot draw {num_samples} distinct negatives from 10 words.*from 1 to 9"):
        LogUniformSampler(10, num_samples)


# Sampled softmax


def test_the_sampled_softmax_is_its_written_definition_term_by_term(output, hidden, targets, negatives):
    hit = np.isin(targets.numpy(), negatives.ids.numpy())
    assert hit.any()
    assert not hit.all()
    expected = written_sampled_softmax(
        *numpy_of(hidden, targets, output.weight, output.bias), negatives.ids.tolist(), int(negatives.num_tries), V
    )
    for token in range(N):
        alone = torch.zeros(N)
        alone[token] = 1
        loss = sampled_softmax_loss(hidden, targets, output, negatives, weights=alone)
        assert loss.item() == pytest.approx(expected[token], rel=1e-12)
    mean = sampled_softmax_loss(hidden, targets, output, negatives)
    assert mean.item() == pytest.approx(expected.mean(), rel=1e-12)


@pytest.mark.parametrize("chunk_tokens", [1, 8, None])
def test_the_sampled_softmax_gradient_equals_finite_differences(output, hidden, targets, negatives, chunk_tokens):
    h, t, w, b = numpy_of(hidden, targets, output.weight, output.bias)
    ids, tries = negatives.ids.tolist(), int(negatives.num_tries)
    loss = sampled_softmax_loss(hidden, targets, output, negatives, chunk_tokens=chunk_tokens)
    for found, array in zip(gradients(loss, hidden, output.weight, output.bias), (h, w, b), strict=True):
        expected = finite_differences(lambda: written_sampled_softmax(h, t, w, b, ids, tries, V).mean(), array)
        np.testing.assert_allclose(found, expected, atol=1e-8)


def test_the_mean_gradient_over_many_draws_approaches_the_full_softmax(output, hidden, targets):
    def gradient(loss):
        return np.concatenate([g.ravel() for g in gradients(loss, hidden, output.weight, output.bias)])

    full = gradient(full_softmax_loss(hidden, targets, output).mean())
    generator = torch.Generator().manual_seed(0)
    distances = []
    for num_samples in (5, 15, 30):
        sampler = LogUniformSampler(V, num_samples)
        draws = np.stack(
            [gradient(sampled_softmax_loss(hidden, targets, output, sampler.sample(generator))) for _ in range(500)]
        )
        of_one, of_mean = (np.linalg.norm(g - full) / np.linalg.norm(full) for g in (draws[0], draws.mean(0)))
        assert of_mean < 0.5 * of_one, "averaging should take most of the noise away"
        distances.append(of_mean)
    # What is left is the known bias of the estimate (a ratio of sums): about 0.39, 0.17 and 0.03 of the gradient here.
    assert distances[1] < 0.6 * distances[0]
    assert distances[2] < 0.06


# Rows


def test_rows_take_the_layers_gradient_and_the_layer_none(output, targets, negatives):
    torch.manual_seed(5)
    forward, backward = torch.randn(2, N, P, dtype=torch.float64)
    others, other_targets = negatives.sampler.sample(torch.Generator().manual_seed(9)), targets.flip(0) // 2
    rows = gather_rows(output, targets, negatives.ids, other_targets, others.ids)
    losses = []
    for table in (rows, output):
        loss = sampled_softmax_loss(forward, targets, table, negatives)
        loss = loss + sampled_softmax_loss(backward, other_targets, table, others)
        losses.append(loss)
    losses[0].backward()
    assert output.weight.grad is None
    losses[1].backward()
    assert torch.equal(losses[0], losses[1])
    assert len(rows.ids) == 2 * (N + S) > len(rows.ids.unique())
    for taken, dense in ((rows.weight.grad, output.weight.grad), (rows.bias.grad, output.bias.grad)):
        assert torch.equal(torch.zeros_like(dense).index_add_(0, rows.ids, taken), dense)
        assert float(taken.norm()) == pytest.approx(float(dense.norm()), rel=1e-12)


def test_adagrad_on_rows_is_adagrad_on_the_layer_bit_for_bit(targets):
    torch.manual_seed(6)
    dense, sparse = OutputLayer(V, P), OutputLayer(V, P)
    sparse.load_state_dict(dense.state_dict())
    optimizer = torch.optim.Adagrad(dense.parameters(), lr=0.2, initial_accumulator_value=1.0)
    squares = {name: torch.ones_like(parameter) for name, parameter in sparse.named_parameters()}
    sampler, generator = LogUniformSampler(V, S), torch.Generator().manual_seed(7)
    for _ in range(5):
        hidden, negatives = torch.randn(N, P), sampler.sample(generator)
        optimizer.zero_grad()
        sampled_softmax_loss(hidden, targets, dense, negatives).backward()
        optimizer.step()

        rows = gather_rows(sparse, targets, negatives.ids)
        sampled_softmax_loss(hidden, targets, rows, negatives).backward()
        for name, leaf in (("weight", rows.weight), ("bias", rows.bias)):
            squares[name].index_add_(0, rows.ids, leaf.grad**2)
            step = -0.2 * leaf.grad / squares[name][rows.ids].sqrt()
            sparse.get_parameter(name).data.index_add_(0, rows.ids, step)
        assert torch.equal(sparse.weight, dense.weight)
        assert torch.equal(sparse.bias, dense.bias)


# Bad input


def test_targets_outside_the_vocabulary_are_refused_by_every_loss(output, hidden, targets, negatives):
    for wrong in (V, -1):
        bad = targets.clone()
        bad[3] = wrong
        for call in (
            lambda bad=bad: full_softmax_loss(hidden, bad, output),
            lambda bad=bad: chunked_softmax_loss(hidden, bad, output),
            lambda bad=bad: sampled_softmax_loss(hidden, bad, output, negatives),
            lambda bad=bad: output.log_probs(hidden, bad),
            lambda bad=bad: gather_rows(output, bad),
        ):
            with pytest.raises(ValueError, match=f"id {wrong} is outside the vocabulary: ids go from 0 to {V - 1}"):
                call()


def test_tensors_that_do_not_fit_are_refused_with_the_shape_that_would(output, hidden, targets):
    with pytest.raises(ValueError, match=rf"hidden is \({N}, {P - 1}\), the output layer asks for \(tokens, {P}\)"):
        chunked_softmax_loss(hidden[:, 1:], targets, output)
    with pytest.raises(ValueError, match=rf"targets are \({N - 1},\): {N} tokens need \({N},\)"):
        chunked_softmax_loss(hidden, targets[1:], output)
    with pytest.raises(ValueError, match=rf"weights are \(1,\): {N} tokens need \({N},\)"):
        chunked_softmax_loss(hidden, targets, output, weights=torch.ones(1))
    with pytest.raises(ValueError, match=r"target ids are torch.int32, not torch.int64"):
        chunked_softmax_loss(hidden, targets.int(), output)
    with pytest.raises(ValueError, match="chunk_tokens is 0"):
        chunked_softmax_loss(hidden, targets, output, chunk_tokens=0)
    with pytest.raises(ValueError, match="at least one word and one dimension, not 0 and 4"):
        OutputLayer(0, 4)


def test_a_word_that_was_not_gathered_is_named(output, hidden, targets, negatives):
    rows = gather_rows(output, negatives.ids)
    missing = next(int(t) for t in targets if t not in negatives.ids)
    with pytest.raises(ValueError, match=f"word {missing} was not gathered"):
        sampled_softmax_loss(hidden, targets, rows, negatives)
    with pytest.raises(ValueError, match="no words to gather"):
        gather_rows(output, targets[:0])


# On a GPU


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.gpu
def test_a_gpu_step_in_bfloat16_agrees_with_the_cpu_and_never_waits_for_the_host():
    torch.manual_seed(0)
    num_words, num_tokens, dim = 5000, 300, 64
    sampler = LogUniformSampler(num_words, 512)
    output, hidden = OutputLayer(num_words, dim), torch.randn(num_tokens, dim)
    targets = torch.randint(0, num_words, (num_tokens,))
    device_output = OutputLayer(num_words, dim).cuda()
    device_output.load_state_dict(output.state_dict())
    device_hidden, device_targets = hidden.cuda().bfloat16().requires_grad_(), targets.cuda()
    generator = torch.Generator("cuda").manual_seed(0)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        negatives = sampler.sample(generator)
        rows = gather_rows(device_output, device_targets, negatives.ids)
        sampled = sampled_softmax_loss(device_hidden, device_targets, rows, negatives, chunk_tokens=128)
        full = chunked_softmax_loss(device_hidden, device_targets, device_output, chunk_tokens=128)
        (sampled + full).backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")

    on_cpu = Negatives(negatives.ids.cpu(), negatives.num_tries.cpu(), sampler)
    assert len(on_cpu.ids.unique()) == 512
    hidden.requires_grad_()
    expected_sampled = sampled_softmax_loss(hidden, targets, output, on_cpu)
    expected_full = full_softmax_loss(hidden, targets, output).mean()
    assert sampled.item() == pytest.approx(expected_sampled.item(), rel=5e-3)
    assert full.item() == pytest.approx(expected_full.item(), rel=5e-3)
    (expected_sampled + expected_full).backward()
    found = device_output.weight.grad.index_add(0, rows.ids, rows.weight.grad).cpu()
    for gradient, expected in ((device_hidden.grad.float().cpu(), hidden.grad), (found, output.weight.grad)):
        assert float((gradient - expected).norm()) < 0.02 * float(expected.norm())
