"""The scorers of labels and tags, against computations of their own on random answers."""

import itertools
import random

import pytest
import torch

from elmokit.tasks import metrics
from elmokit.tasks.layers import CRF, BiLSTM, LockedDropout, bio_rules, masked_max, masked_mean, masked_softmax
from elmokit.tasks.tagging import spans_of, to_bio

TAGS = ["O", "B-x", "I-x", "B-y", "I-y"]


def random_tags(chance: random.Random, *, valid: bool) -> list[list[str]]:
    rows = [[chance.choice(TAGS) for _ in range(chance.randrange(7))] for _ in range(12)]
    return [to_bio(row) for row in rows] if valid else rows


def spans_by_definition(tags: list[str]) -> set[tuple[str, int, int]]:
    """Every (label, start, end) that begins where a span may begin and ends where it cannot go on."""
    begins = {
        i
        for i, tag in enumerate(tags)
        if tag != "O" and (tag[0] == "B" or i == 0 or tags[i - 1] == "O" or tags[i - 1][2:] != tag[2:])
    }
    found = set()
    for start in begins:
        end = start + 1
        while end < len(tags) and end not in begins and tags[end] != "O":
            end += 1
        found.add((tags[start][2:], start, end))
    return found


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("valid", [True, False])
def test_entity_f1_counts_spans_whose_label_and_both_ends_are_right(seed, valid):
    chance = random.Random(seed)
    gold = random_tags(chance, valid=valid)
    predicted = [[chance.choice([tag, tag, chance.choice(TAGS)]) for tag in row] for row in gold]
    if valid:
        predicted = [to_bio(row) for row in predicted]
    a = {(n, *span) for n, row in enumerate(gold) for span in spans_by_definition(row)}
    b = {(n, *span) for n, row in enumerate(predicted) for span in spans_by_definition(row)}
    precision = len(a & b) / len(b) if b else 0.0
    recall = len(a & b) / len(a) if a else 0.0
    f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    assert metrics.entity_f1(gold, predicted) == pytest.approx({"f1": f1, "precision": precision, "recall": recall})


def test_entity_f1_without_any_entity_is_zero_and_no_warning():
    assert metrics.entity_f1([["O", "O"]], [["O", "O"]])["f1"] == 0.0
    assert metrics.entity_f1([["B-x"]], [["O"]])["f1"] == 0.0
    assert metrics.entity_f1([["O"]], [["B-x"]])["f1"] == 0.0


@pytest.mark.parametrize("seed", range(10))
def test_spans_of_valid_tags_are_those_of_the_definition(seed):
    for row in random_tags(random.Random(seed), valid=True):
        assert set(spans_of(row)) == spans_by_definition(row)


def test_iob1_becomes_bio():
    assert to_bio(["I-x", "I-x", "B-x", "I-y", "O", "I-y"]) == ["B-x", "I-x", "B-x", "B-y", "O", "B-y"]


@pytest.mark.parametrize("seed", range(10))
def test_accuracy_and_macro_f1_are_those_of_scikit_learn(seed):
    sklearn = pytest.importorskip("sklearn.metrics")
    chance = random.Random(seed)
    gold, predicted = ([chance.choice("abc") for _ in range(30)] for _ in range(2))
    labels = sorted(set(gold))
    expected = {
        "accuracy": sklearn.accuracy_score(gold, predicted),
        "macro_f1": sklearn.f1_score(gold, predicted, labels=labels, average="macro", zero_division=0),
    }
    assert metrics.accuracy(gold, predicted) == pytest.approx(expected)
    rows = [gold[:10], gold[10:]], [predicted[:10], predicted[10:]]
    assert metrics.tag_accuracy(*rows) == pytest.approx({"accuracy": expected["accuracy"]})


def test_no_answers_score_zero():
    assert metrics.accuracy([], []) == {"accuracy": 0.0, "macro_f1": 0.0}
    assert metrics.tag_accuracy([[]], [[]]) == {"accuracy": 0.0}


@pytest.mark.parametrize("score", [metrics.entity_f1, metrics.tag_accuracy])
def test_answers_that_do_not_stand_beside_each_other_are_refused(score):
    with pytest.raises(ValueError, match="1 gold sentences, 0 predicted"):
        score([["O"]], [])
    with pytest.raises(ValueError, match="1 gold tags in sentence 0, 2 predicted"):
        score([["O"]], [["O", "O"]])
    with pytest.raises(ValueError, match="1 gold labels, 0 predicted"):
        metrics.accuracy(["a"], [])


# ---- the layers that all tasks share ---------------------------------------------------------------------------------


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


def test_what_stands_behind_a_sentence_changes_nothing(crf_batch):
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


def test_locked_dropout_leaves_out_the_same_features_of_all_tokens_and_keeps_the_mean():
    torch.manual_seed(0)
    dropped = LockedDropout(0.25)(torch.ones(200, 3, 50))
    assert (dropped == dropped[:, :1]).all()
    assert dropped.unique().tolist() == pytest.approx([0, 4 / 3])
    assert dropped.mean().item() == pytest.approx(1, abs=0.03)
