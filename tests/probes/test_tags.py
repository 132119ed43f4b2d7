"""Parts of speech: each layer gets the linear classifier that it would get by itself."""

import numpy as np
import pytest
import torch
from probe_data import LAYERS, sentences, tagged

from elmokit.datasets import (
    TaggedSentence,
    read_conllu,
)
from elmokit.probes import (
    TaggedSplits,
    probe_tags,
    tags,
)
from elmokit.probes.tags import most_frequent_tag


def test_each_layer_gets_the_linear_classifier_that_it_would_get_alone(model, monkeypatch):
    monkeypatch.setattr(tags, "EPOCHS", 5)
    splits = TaggedSplits(tagged(1, 80), tagged(2, 30), tagged(3, 30))
    scores = probe_tags(model, {"length": splits})["length"]
    parts = [splits.train, splits.dev, splits.test]
    names = sorted({tag for sentence in splits.train for tag in sentence.tags})
    labels = [torch.tensor([names.index(tag) for one in part for tag in one.tags]) for part in parts]
    for row, layer in enumerate(LAYERS):
        features = []
        for part in parts:
            found = model.embed([one.tokens for one in part], layers="all")
            found = [np.concatenate([one, one.mean(axis=0, keepdims=True)])[row] for one in found]
            features.append(torch.from_numpy(np.concatenate(found)).half().float())
        mean, deviation = features[0].mean(dim=0), features[0].std(dim=0, correction=0)
        train, dev, test = (((one - mean) / deviation).half().float() for one in features)
        linear = torch.nn.Linear(train.shape[1], len(names))
        torch.nn.init.zeros_(linear.weight)
        torch.nn.init.zeros_(linear.bias)
        optimizer = torch.optim.Adam(linear.parameters(), lr=2e-3)
        generator = torch.Generator().manual_seed(0)
        history, done, total = [], 0, 5 * -(-len(train) // 128)
        for _ in range(5):
            for batch in torch.randperm(len(train), generator=generator).split(128):
                optimizer.param_groups[0]["lr"] = 2e-3 * (1 - done / total)  # falls linearly to zero
                done += 1
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(linear(train[batch]), labels[0][batch]).backward()
                optimizer.step()
            right = [
                float((linear(x).argmax(dim=1) == y).double().mean()) for x, y in ((dev, labels[1]), (test, labels[2]))
            ]
            history.append(right)
        best = max(range(5), key=lambda epoch: history[epoch][0])
        assert scores.epochs[layer] == best + 1
        assert (scores.dev[layer], scores.test[layer]) == pytest.approx(
            (100 * history[best][0], 100 * history[best][1])
        )
    assert scores.best_layer == max(LAYERS, key=lambda layer: scores.dev[layer])
    assert sum(scores.mix_weights) == pytest.approx(1)
    assert scores.mix_weights != pytest.approx([1 / 3] * 3, abs=1e-6)


def test_what_hangs_on_the_word_before_is_read_off_the_layers_with_context(model, monkeypatch):
    monkeypatch.setattr(tags, "LEARNING_RATE", 0.05)
    monkeypatch.setattr(tags, "EPOCHS", 10)
    parts = [sentences(seed, count, length=4) for seed, count in ((1, 300), (2, 60), (3, 60))]
    parts = [[TaggedSentence(one, ["-", *(word[0] for word in one[:-1])]) for one in part] for part in parts]
    scores = probe_tags(model, {"before": TaggedSplits(*parts)})["before"]
    assert scores.test[scores.best_layer] > scores.test["0"] + 10
    assert scores.test["mix"] > scores.test["0"] + 10


def test_two_tag_sets_share_the_vectors_and_must_share_the_tokens(model, monkeypatch):
    monkeypatch.setattr(tags, "EPOCHS", 1)
    calls = []
    one = TaggedSplits(tagged(1, 5), tagged(2, 3), tagged(3, 3))
    found = probe_tags(model, {"a": one, "b": one}, progress=lambda done, total: calls.append((done, total)))
    assert found["a"] == found["b"]
    assert len(calls) == 1
    with pytest.raises(ValueError, match="the tag set b is over other tokens than a"):
        probe_tags(model, {"a": one, "b": TaggedSplits(one.train, one.dev, tagged(4, 3))})
    with pytest.raises(ValueError, match="tokens: each needs at least one"):
        probe_tags(model, {"a": TaggedSplits(one.train, [], one.test)})
    with pytest.raises(ValueError, match="no tag set"):
        probe_tags(model, {})


def test_a_tag_that_train_has_not_is_never_right(model, monkeypatch):
    monkeypatch.setattr(tags, "EPOCHS", 1)
    splits = TaggedSplits(
        [TaggedSentence(["a", "bank"], ["X", "X"])],
        [TaggedSentence(["a"], ["X"])],
        [TaggedSentence(["a", "b"], ["X", "NEW"])],
    )
    scores = probe_tags(model, {"t": splits})["t"]
    assert scores.num_tags == 1
    assert set(scores.dev.values()) == {100.0}
    assert set(scores.test.values()) == {50.0}


def test_the_most_frequent_tag_is_that_of_the_word_or_else_the_commonest():
    train = [TaggedSentence(["a", "a", "a", "b"], ["X", "Y", "Y", "Z"]), TaggedSentence(["c", "d"], ["Z", "Z"])]
    assert most_frequent_tag(train, [TaggedSentence(["a", "b", "new", "a"], ["Y", "Z", "Z", "X"])]) == 75


@pytest.mark.slow
@pytest.mark.parametrize(("column", "known"), [("upos", 86.2), ("xpos", 83.8)])
def test_the_most_frequent_tags_of_the_treebank_are_right_as_often_as_is_known(data, column, known):
    parts = (data / "tasks" / "pos" / f"en_ewt-ud-{part}.conllu.gz" for part in ("train", "test"))
    assert round(most_frequent_tag(*(read_conllu(path, column=column) for path in parts)), 1) == known
