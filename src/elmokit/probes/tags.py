"""Parts of speech by a linear classifier on each layer (Peters et al., 2018, table 6).

Input: a model, and tagged sentences in three splits, in one or more tag sets over the same tokens. Output: accuracy of
each layer, of the mean of all and of a learned mix, with the weights that the mix learned.

The biLM is frozen: its vectors are computed once and kept in half precision. Features are standardised on train; one
linear layer is trained with Adam at a rate that falls linearly to zero, and the best epoch is chosen on dev.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from elmokit.datasets import TaggedSentence
from elmokit.inference.views import view_of
from elmokit.model import ELMo
from elmokit.probes.vectors import Progress, layer_names, read_all

MIX = "mix"
EPOCHS = 8
BATCH = 128
LEARNING_RATE = 2e-3  # of the first update; it falls to zero, which gains 0.2 points on dev over a constant rate


@dataclass(frozen=True)
class TaggedSplits:
    """One tag set: train for the classifier, dev to choose its epochs and the layer, test for the report."""

    train: Sequence[TaggedSentence]
    dev: Sequence[TaggedSentence]
    test: Sequence[TaggedSentence]


@dataclass(frozen=True)
class TagScores:
    """Accuracy in percent of each layer, of the mean of them and of their learned mix."""

    num_tags: int
    most_frequent_tag: float
    """Test accuracy of each word's most frequent tag in train, and of the most frequent tag for a new word."""
    dev: dict[str, float]
    test: dict[str, float]
    epochs: dict[str, int]
    """The epoch with the best accuracy on dev."""
    mix_weights: list[float]
    """The fraction of each layer in the learned mix; they add up to one."""
    best_layer: str
    """The best on dev; the learned mix, which is more than one layer, is not a candidate."""


def probe_tags(
    model: ELMo, tag_sets: Mapping[str, TaggedSplits], *, progress: Progress | None = None
) -> dict[str, TagScores]:
    """Train a linear classifier for each tag set on each layer. The sentences are embedded once for all of them.

    Args:
        model: The model.
        tag_sets: Tag sets by name, all over the same tokens.
        progress: Called after each batch.

    Raises:
        ValueError: If there are no tag sets, they have other tokens, or a split is empty.
    """
    if not tag_sets:
        raise ValueError("no tag set: pass at least one")
    first, *others = tag_sets
    splits = {name: (tags.train, tags.dev, tags.test) for name, tags in tag_sets.items()}
    sentences = [[one.tokens for one in part] for part in splits[first]]
    for name in others:
        if [[one.tokens for one in part] for part in splits[name]] != sentences:
            raise ValueError(f"the tag set {name} is over other tokens than {first}: use the same files for both")
    sizes = [sum(map(len, part)) for part in sentences]
    if 0 in sizes:
        raise ValueError(f"train, dev and test have {sizes} tokens: each needs at least one")
    features = _features(model, [tokens for part in sentences for tokens in part], sizes[0], progress)
    return {name: _fit(features, tags, sizes, [*layer_names(model), MIX]) for name, tags in tag_sets.items()}


def most_frequent_tag(train: Sequence[TaggedSentence], test: Sequence[TaggedSentence]) -> float:
    """Accuracy in percent of the tag that each word has most often in train; a new word takes the commonest tag."""
    counts: dict[str, Counter[str]] = {}
    for sentence in train:
        for token, tag in zip(sentence.tokens, sentence.tags, strict=True):
            counts.setdefault(token, Counter())[tag] += 1
    commonest = sum(counts.values(), Counter[str]()).most_common(1)[0][0]
    best = {token: found.most_common(1)[0][0] for token, found in counts.items()}
    right = [
        best.get(token, commonest) == tag
        for sentence in test
        for token, tag in zip(sentence.tokens, sentence.tags, strict=True)
    ]
    return 100 * sum(right) / len(right)


def _features(model: ELMo, sentences: list[list[str]], num_train: int, progress: Progress | None) -> Tensor:
    """(L+2, N, 2P) in half precision: layers of all tokens, and their mean, standardised on the first `num_train`."""
    starts = np.cumsum([0, *map(len, sentences)])
    num_layers = model.num_layers
    shape = (num_layers + 1, int(starts[-1]), model.dim)
    features = torch.empty(shape, dtype=torch.float16, device=model.device)
    every = view_of("all", num_layers)
    for number, reading in read_all(model, sentences, progress=progress):
        here, layers = slice(starts[number], starts[number + 1]), every.tokens(reading)[:, 0]  # (L+1, T, 2P)
        features[:num_layers, here] = layers
        features[num_layers, here] = layers.float().mean(dim=0)
    for layer in features:
        values = layer.float()
        variance, mean = torch.var_mean(values[:num_train], dim=0, correction=0)
        layer.copy_(values.sub_(mean).div_(variance.sqrt().clamp(min=1e-6)))
    return features


def _fit(features: Tensor, splits: TaggedSplits, sizes: list[int], names: list[str]) -> TagScores:
    """Train one linear classifier for each row of `features`, and one for a learned mix of the layers, side by side.

    They share the batches and nothing else: each has its own loss and, as Adam works by element, its own steps.
    """
    device, (num_train, num_dev, num_test) = features.device, sizes
    tags = [tag for part in (splits.train, splits.dev, splits.test) for sentence in part for tag in sentence.tags]
    known = {tag: number for number, tag in enumerate(sorted(set(tags[:num_train])))}
    labels = torch.tensor([known.get(tag, -1) for tag in tags], device=device)  # -1 is a tag that no classifier says
    weight = torch.zeros(len(names), features.shape[2], len(known), device=device, requires_grad=True)
    bias = torch.zeros(len(names), 1, len(known), device=device, requires_grad=True)
    mix = torch.zeros(len(features) - 1, device=device, requires_grad=True)
    optimizer = torch.optim.Adam([weight, bias, mix], lr=LEARNING_RATE)
    num_updates = EPOCHS * -(-num_train // BATCH)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=num_updates)
    generator = torch.Generator().manual_seed(0)

    def classify(rows: Tensor) -> Tensor:
        inputs = features.index_select(1, rows).float()  # (L+2, B, 2P)
        mixed = torch.einsum("l,lbd->bd", mix.softmax(dim=0), inputs[:-1])
        return torch.baddbmm(bias, torch.cat([inputs, mixed.unsqueeze(0)]), weight)  # (L+3, B, tags)

    @torch.no_grad()
    def accuracy(begin: int, end: int) -> list[float]:
        right = torch.zeros(len(names), device=device)
        for rows in torch.split(torch.arange(begin, end, device=device), 4096):
            right += (classify(rows).argmax(dim=2) == labels[rows]).sum(dim=1)
        return (100 * right.double() / (end - begin)).tolist()

    best: dict[str, tuple[float, float, int, list[float]]] = {}
    for epoch in range(1, EPOCHS + 1):
        for rows in torch.split(torch.randperm(num_train, generator=generator).to(device), BATCH):
            scores = classify(rows).flatten(end_dim=1)
            loss = nn.functional.cross_entropy(scores, labels[rows].repeat(len(names)), reduction="sum") / len(rows)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            schedule.step()
        on_dev = accuracy(num_train, num_train + num_dev)
        on_test = accuracy(num_train + num_dev, num_train + num_dev + num_test)
        for name, dev, test in zip(names, on_dev, on_test, strict=True):
            if name not in best or dev > best[name][0]:
                best[name] = dev, test, epoch, mix.softmax(dim=0).tolist()
    return TagScores(
        num_tags=len(known),
        most_frequent_tag=most_frequent_tag(splits.train, splits.test),
        dev={name: best[name][0] for name in names},
        test={name: best[name][1] for name in names},
        epochs={name: best[name][2] for name in names},
        mix_weights=best[MIX][3],
        best_layer=max((name for name in names if name != MIX), key=lambda name: best[name][0]),
    )
