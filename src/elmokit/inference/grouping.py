"""Vectors in groups: the occurrences of a word become its senses.

Input: vectors (N, D) of length one.  Output: the group of each vector, and the centres of the groups.

Groups are merged by average linkage: those two first whose vectors have the smallest mean distance. The merging ends
when the two nearest groups are further from each other than two occurrences of the word are on average, by a factor;
a word of one sense stays one group. The constants were chosen on 100 words of SemCor, by the sum of V-measure and
paired F.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from elmokit.inference.vectors import Floats, unit

SEPARATION: Final = 1.04  # distance of two groups, over the mean distance of two vectors
SMALLEST_GROUP: Final = 3
SMALLEST_SHARE: Final = 0.02
MOST_LINKED: Final = 2000  # vectors that are compared with each other; further ones join the nearest group

Labels = npt.NDArray[np.int64]


class Groups(NamedTuple):
    """Groups, the largest first."""

    labels: Labels
    """(N,): the group of each vector."""
    centres: Floats
    """(groups, D), of length one."""


class Merge(NamedTuple):
    """Two groups become one. A group is known by any of its vectors."""

    distance: float
    first: int
    second: int


def group(vectors: Floats, num_groups: int | None = None) -> Groups:
    """Find groups of vectors.

    Args:
        vectors: (N, D), N at least 1, each of length one.
        num_groups: Number of groups; None finds it from the data. There are fewer if there are fewer vectors.

    Returns:
        The group of each vector, and their centres.
    """
    num = len(vectors)
    linked = np.unique(np.linspace(0, num - 1, min(num, MOST_LINKED)).astype(np.int64))  # evenly over the text
    chosen = np.asarray(vectors[linked], np.float64)
    distances = 1 - chosen @ chosen.T
    merges = average_linkage(distances)
    smallest = max(SMALLEST_GROUP, SMALLEST_SHARE * len(linked))
    if num_groups is None:
        furthest = SEPARATION * (distances.sum() - np.trace(distances)) / max(len(linked) * (len(linked) - 1), 1)
        num_merges = sum(merge.distance <= furthest for merge in merges)
    else:  # of occurrences that are too few for as many groups of this size, smaller ones
        smallest = next(size for size in (smallest, 2, 1) if size == 1 or _last_with(merges, num_groups, size) >= 0)
        num_merges = max(_last_with(merges, num_groups, smallest), 0)
    labels = _cut(merges, len(linked), num_merges)
    sizes = np.bincount(labels)
    large = np.flatnonzero(sizes >= min(smallest, sizes.max()))
    large = large[np.argsort(-sizes[large], kind="stable")]
    centres = unit(np.stack([chosen[labels == number].sum(axis=0) for number in large]))
    # vectors of small groups, and those that were not compared, join the nearest centre
    result = (np.asarray(vectors, np.float64) @ centres.T).argmax(axis=1)
    for new, old in enumerate(large):
        result[linked[labels == old]] = new
    order = np.argsort(-np.bincount(result, minlength=len(large)), kind="stable")
    return Groups(np.argsort(order, kind="stable")[result], centres[order])


def average_linkage(distances: Floats) -> list[Merge]:
    """Merge the two nearest groups until one is left; the distance of two groups is the mean over their pairs.

    Nearest-neighbour chains (Murtagh, 1983): a chain of groups, each the nearest of the one before it, ends in two
    that are nearest to each other. Average linkage may merge these at once; the work is of order N squared.

    Args:
        distances: (N, N), symmetric.

    Returns:
        The N - 1 merges by rising distance.
    """
    num = len(distances)
    between = np.array(distances, np.float64)
    np.fill_diagonal(between, np.inf)
    sizes = np.ones(num)
    merges: list[Merge] = []
    chain: list[int] = []
    is_group = np.ones(num, bool)
    while len(merges) < num - 1:
        if not chain:
            chain = [int(is_group.argmax())]
        nearest = int(between[chain[-1]].argmin())
        # the group before is taken where it is as near as the nearest, or the chain would never end
        if len(chain) > 1 and between[chain[-1], chain[-2]] <= between[chain[-1], nearest]:
            second, first = chain.pop(), chain.pop()
            merges.append(Merge(float(between[first, second]), first, second))
            joined = (sizes[first] * between[first] + sizes[second] * between[second]) / (sizes[first] + sizes[second])
            joined[[first, second]] = np.inf
            between[first] = between[:, first] = joined
            between[second] = between[:, second] = np.inf
            sizes[first] += sizes[second]
            is_group[second] = False
        else:
            chain.append(nearest)
    return sorted(merges, key=lambda merge: merge.distance)


class _Forest:
    """Which group each of `num` vectors is in, while groups are merged."""

    def __init__(self, num: int) -> None:
        self.parents, self.sizes = list(range(num)), [1] * num

    def find(self, place: int) -> int:
        """The vector by which the group of a vector is known."""
        while self.parents[place] != place:
            self.parents[place] = self.parents[self.parents[place]]
            place = self.parents[place]
        return place

    def merge(self, merge: Merge) -> tuple[int, int]:
        """Merge two groups; returns their sizes."""
        first, second = self.find(merge.first), self.find(merge.second)
        sizes = self.sizes[first], self.sizes[second]
        self.parents[second] = first
        self.sizes[first] += self.sizes[second]
        return sizes


def _cut(merges: list[Merge], num: int, num_merges: int) -> Labels:
    """The group of each of `num` vectors after the first merges."""
    forest = _Forest(num)
    for merge in merges[:num_merges]:
        forest.merge(merge)
    return np.unique([forest.find(place) for place in range(num)], return_inverse=True)[1].reshape(-1)


def _last_with(merges: list[Merge], num_groups: int, smallest: float) -> int:
    """The largest number of merges after which there are `num_groups` groups of at least this size; -1: never."""
    num = len(merges) + 1
    forest = _Forest(num)
    num_large = num if smallest <= 1 else 0
    last = 0 if num_large >= num_groups else -1
    for number, merge in enumerate(merges, start=1):
        first, second = forest.merge(merge)
        num_large += (first + second >= smallest) - (first >= smallest) - (second >= smallest)
        if num_large >= num_groups:
            last = number
    return last
