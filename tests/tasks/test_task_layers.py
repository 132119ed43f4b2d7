"""The layers that the tasks share, against enumeration and against one sentence at a time."""

import itertools

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from elmokit.tasks.layers import CRF, BiLSTM, LockedDropout, bio_rules, masked_max, masked_mean, masked_softmax
from elmokit.tasks.tagging import to_bio

TAGS = ["O", "B-x", "I-x", "B-y", "I-y"]


def score_of(crf: CRF, emissions: torch.Tensor, path: tuple[int, ...]) -> float:
    total = crf.first[path[0]] + crf.last[path[-1]] + sum(emissions[time, tag] for time, tag in enumerate(path))
    return (total + sum(crf.transitions[a, b] for a, b in itertools.pairwise(path))).item()


@pytest.fixture
def crf_batch():
    """A CRF with large random scores, and sentences of 4, 1, 0 and 3 tokens."""
    torch.manual_seed(5)
    crf = CRF(len(TAGS), **dict(zip(("allowed", "allowed_first"), bio_rules(TAGS), strict=True))).double()
    for parameter in crf.parameters():
        torch.nn.init.normal_(parameter)
    lengths = [4, 1, 0, 3]
    mask = torch.arange(4) < torch.tensor(lengths).unsqueeze(1)
    return crf, torch.randn(4, 4, len(TAGS), dtype=torch.float64), mask, lengths


def test_the_crf_weighs_every_tag_sequence_as_enumeration_does(crf_batch):
    crf, emissions, mask, lengths = crf_batch
    tags = torch.randint(len(TAGS), (4, 4), generator=torch.Generator().manual_seed(1))
    likelihoods = crf.log_likelihood(emissions, tags, mask)
    for row, length in enumerate(lengths):
        if length == 0:
            assert likelihoods[row] == 0
            continue
        paths = list(itertools.product(range(len(TAGS)), repeat=length))
        scores = torch.tensor([score_of(crf, emissions[row], path) for path in paths], dtype=torch.float64)
        gold = score_of(crf, emissions[row], tuple(tags[row, :length].tolist()))
        assert likelihoods[row].item() == pytest.approx(gold - scores.logsumexp(0).item(), abs=1e-9)


def test_the_gradients_of_the_crf_are_finite_differences(crf_batch):
    crf, emissions, mask, _ = crf_batch
    tags = torch.randint(len(TAGS), (4, 4), generator=torch.Generator().manual_seed(1))
    parameters = tuple(crf.parameters())

    def likelihood(emissions: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
        return crf.log_likelihood(emissions, tags, mask)

    assert torch.autograd.gradcheck(likelihood, (emissions.requires_grad_(), *parameters))


def test_the_crf_decodes_the_best_allowed_sequence(crf_batch):
    crf, emissions, mask, lengths = crf_batch
    decoded = crf.decode(emissions, mask)
    for row, length in enumerate(lengths):
        valid = [
            path
            for path in itertools.product(range(len(TAGS)), repeat=length)
            if to_bio([TAGS[tag] for tag in path]) == [TAGS[tag] for tag in path]
        ]
        best = max(valid, key=lambda path: score_of(crf, emissions[row], path) if path else 0.0)
        assert tuple(decoded[row]) == best


def test_padding_changes_nothing(crf_batch):
    _, emissions, mask, lengths = crf_batch
    torch.manual_seed(0)
    rnn = BiLSTM(len(TAGS), 3, num_layers=2, dropout=0.5).double().eval()
    whole = rnn(emissions, mask)
    for row, length in enumerate(lengths):
        assert not whole[row, length:].any()
        if length:
            alone = rnn(emissions[row : row + 1, :length], mask[row : row + 1, :length])
            torch.testing.assert_close(whole[row : row + 1, :length], alone)
            torch.testing.assert_close(masked_max(emissions, mask)[row], emissions[row, :length].amax(0))
            torch.testing.assert_close(masked_mean(emissions, mask)[row], emissions[row, :length].mean(0))
        else:
            assert not masked_max(emissions, mask)[row].any()
            assert not masked_mean(emissions, mask)[row].any()
    weights = masked_softmax(emissions[:, :, 0], mask)
    assert weights.sum(1).tolist() == pytest.approx([1, 1, 0, 1])
    assert not weights[~mask].any()


def test_both_directions_read_what_packed_rows_give_and_have_their_gradients():
    torch.manual_seed(3)
    lengths = torch.tensor([4, 1, 0, 3, 6])
    mask = torch.arange(7) < lengths.unsqueeze(1)  # one place more than the longest row
    rnn = BiLSTM(5, 3, num_layers=2).double()
    x = torch.randn(5, 7, 5, dtype=torch.float64)
    x[~mask] *= 100  # what is at padding is not read
    weights = torch.randn(5, 7, 6, dtype=torch.float64)

    def packed(x: torch.Tensor) -> torch.Tensor:
        for layer in rnn.layers:
            rows = pack_padded_sequence(x, lengths.clamp(min=1), batch_first=True, enforce_sorted=False)
            x, _ = pad_packed_sequence(layer(rows)[0], batch_first=True, total_length=7)
        return x * mask.unsqueeze(-1)

    results = []
    for read in (packed, lambda x: rnn(x, mask)):
        leaf = x.clone().requires_grad_()
        y = read(leaf)
        results.append([y, *torch.autograd.grad((y * weights).sum(), [leaf, *rnn.parameters()])])
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-13)


def test_locked_dropout_leaves_out_the_same_features_of_all_tokens_and_keeps_the_mean():
    torch.manual_seed(0)
    dropped = LockedDropout(0.25)(torch.ones(200, 3, 50))
    assert (dropped == dropped[:, :1]).all()
    assert dropped.unique().tolist() == pytest.approx([0, 4 / 3])
    assert dropped.mean().item() == pytest.approx(1, abs=0.03)
