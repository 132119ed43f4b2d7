"""The scores of all tasks.

Input: gold answers and predicted ones, in the same order. Output: a dict of numbers from 0 to 1; higher is better.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np

from elmokit.extras import require

# ---- labels ----------------------------------------------------------------------------------------------------------


def likeliest(probabilities: Mapping[str, float]) -> str:
    """The label with the highest probability."""
    return max(probabilities, key=probabilities.__getitem__)


def accuracy(gold: Sequence[str], predicted: Sequence[str]) -> dict[str, float]:
    """Accuracy of labels.

    Args:
        gold: The gold label of each example.
        predicted: The predicted label of each example.

    Returns:
        `accuracy`, and `macro_f1`: the mean of the F1 of each gold label.
    """
    _check_lengths(gold, predicted, "labels")
    right = sum(map(str.__eq__, gold, predicted))
    f1 = []
    for label in sorted(set(gold)):
        hits = sum(a == b == label for a, b in zip(gold, predicted, strict=True))
        f1.append(2 * hits / (list(gold).count(label) + list(predicted).count(label)))
    return {"accuracy": right / len(gold) if gold else 0.0, "macro_f1": sum(f1) / len(f1) if f1 else 0.0}


def tag_accuracy(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict[str, float]:
    """Accuracy of tags.

    Args:
        gold: The gold tags of each sentence.
        predicted: The predicted tags of each sentence.

    Returns:
        `accuracy`: the fraction of tokens whose tag is right.
    """
    _check_tags(gold, predicted)
    flat = list(chain.from_iterable(gold))
    right = sum(a == b for a, b in zip(flat, chain.from_iterable(predicted), strict=True))
    return {"accuracy": right / len(flat) if flat else 0.0}


def entity_f1(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict[str, float]:
    """Precision, recall and F1 of complete entities in B-/I-/O tags, by seqeval.

    An entity is right if its type, its first and its last token are those of the gold. Tags are read as conlleval reads
    them: an I- without its B- begins an entity.

    Args:
        gold: The gold tags of each sentence.
        predicted: The predicted tags of each sentence.

    Returns:
        `f1`, `precision` and `recall`.

    Raises:
        ImportError: If seqeval is not installed.
    """
    score = require("seqeval.metrics.sequence_labeling", extra="tasks").precision_recall_fscore_support
    _check_tags(gold, predicted)
    if not any(tag != "O" for tag in chain.from_iterable([*gold, *predicted])):
        return {"f1": 0.0, "precision": 0.0, "recall": 0.0}
    rows = [[list(tags) for tags in side] for side in (gold, predicted)]
    precision, recall, f1, _ = score(*rows, average="micro", zero_division=0)
    return {"f1": float(f1), "precision": float(precision), "recall": float(recall)}


def _check_tags(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> None:
    _check_lengths(gold, predicted, "sentences")
    for number, (right, guess) in enumerate(zip(gold, predicted, strict=True)):
        _check_lengths(right, guess, f"tags in sentence {number}")


def _check_lengths(gold: Sequence[object], predicted: Sequence[object], what: str) -> None:
    if len(gold) != len(predicted):
        raise ValueError(f"{len(gold)} gold {what}, {len(predicted)} predicted")


# ---- questions -------------------------------------------------------------------------------------------------------


def answer_scores(gold: Sequence[Sequence[str]], predicted: Sequence[str]) -> dict[str, float]:
    """Exact match and F1 of SQuAD v1.1: the best over the gold answers of a question, averaged over the questions.

    Answers are compared without case, ASCII punctuation and articles. F1 is that of their words.

    Args:
        gold: The gold answers of each question.
        predicted: The predicted answer of each question.

    Returns:
        `f1` and `exact_match`.
    """
    _check_lengths(gold, predicted, "answers")
    exact, f1 = 0.0, 0.0
    for answers, guess in zip(gold, predicted, strict=True):
        words, golds = _answer_words(guess), list(map(_answer_words, answers))
        exact += any(words == right for right in golds)
        f1 += max((_words_f1(right, words) for right in golds), default=0.0)
    return {"f1": f1 / max(1, len(gold)), "exact_match": exact / max(1, len(gold))}


def _answer_words(answer: str) -> list[str]:
    """The words of an answer, lowercase, without punctuation and articles."""
    text = answer.lower().translate(dict.fromkeys(map(ord, string.punctuation)))
    return re.sub(r"\b(a|an|the)\b", " ", text).split()


def _words_f1(gold: Sequence[str], predicted: Sequence[str]) -> float:
    shared = (Counter(gold) & Counter(predicted)).total()
    return 2 * shared / (len(gold) + len(predicted)) if shared else 0.0


# ---- semantic roles --------------------------------------------------------------------------------------------------

Spans = Sequence[tuple[str, int, int]]
"""(role, start, end) of each span of a proposition."""


def role_f1(gold: Sequence[Spans], predicted: Sequence[Spans]) -> dict[str, float]:
    """Precision, recall and F1 of the arguments of propositions.

    As in the scorer of CoNLL-2005: spans of C-X continue the last X before them (and are an X where there is none), an
    argument is right if its role and all its pieces are right, and the predicate's own words (V) do not count.

    Args:
        gold: The gold spans of each proposition.
        predicted: The predicted spans of each proposition.

    Returns:
        `f1`, `precision` and `recall`.
    """
    _check_lengths(gold, predicted, "propositions")
    right, guessed = (
        {(row, *argument) for row, spans in enumerate(side) for argument in _arguments(spans)}
        for side in (gold, predicted)
    )
    return f1_of_counts(len(right & guessed), len(right), len(guessed))


def _arguments(spans: Spans) -> list[tuple[str, tuple[tuple[int, int], ...]]]:
    """The role and the pieces of each argument, without the predicate."""
    arguments: list[tuple[str, list[tuple[int, int]]]] = []
    last: dict[str, list[tuple[int, int]]] = {}
    for label, start, end in sorted(spans, key=lambda span: span[1:]):
        role = label.removeprefix("C-")
        if role != label and role in last:
            last[role].append((start, end))
        else:
            last[role] = [(start, end)]
            arguments.append((role, last[role]))
    return [(role, tuple(pieces)) for role, pieces in arguments if role != "V"]


def f1_of_counts(right: int, gold: int, predicted: int) -> dict[str, float]:
    """Precision, recall and F1 from counts.

    Args:
        right: Number of predictions that are right.
        gold: Number of gold answers.
        predicted: Number of predictions.

    Returns:
        `f1`, `precision` and `recall`.
    """
    return {
        "f1": 2 * right / (gold + predicted) if gold + predicted else 0.0,
        "precision": right / predicted if predicted else 0.0,
        "recall": right / gold if gold else 0.0,
    }


# ---- word senses -----------------------------------------------------------------------------------------------------


def sense_f1(gold: Sequence[Sequence[str]], predicted: Sequence[str | None]) -> dict[str, float]:
    """Precision, recall and F1 of word senses.

    Args:
        gold: The sense keys of each word, each of which is right.
        predicted: The predicted sense key of each word; None: no answer.

    Returns:
        `f1`, `precision` and `recall`.
    """
    _check_lengths(gold, predicted, "words")
    right = sum(sense in senses for senses, sense in zip(gold, predicted, strict=True))
    return f1_of_counts(right, len(gold), len(gold) - list(predicted).count(None))


# ---- coreference -----------------------------------------------------------------------------------------------------

Clusters = Sequence[Sequence[tuple[int, int]]]
"""The entities of a document, each as its mentions; a mention is in one entity."""


def conll_f1(gold: Sequence[Clusters], predicted: Sequence[Clusters]) -> dict[str, float]:
    """The CoNLL-2012 score of documents: the mean F1 of MUC, B-cubed and CEAF-e.

    Counts are summed over the documents before they are divided, as in the official scorer. Entities with a single
    mention count like others (MUC ignores them).

    Args:
        gold: The gold entities of each document.
        predicted: The predicted entities of each document.

    Returns:
        `conll_f1`, its parts `muc_f1`, `b3_f1` and `ceafe_f1`, and `mention_f1`, the F1 of the mentions.

    Raises:
        ImportError: If scipy is not installed.
    """
    _check_lengths(gold, predicted, "documents")
    keys, responses = ([[set(entity) for entity in document] for document in side] for side in (gold, predicted))
    scores = {}
    for name, measure in (("muc_f1", _muc), ("b3_f1", _b_cubed), ("ceafe_f1", _ceaf_e)):
        recall, precision = (
            _divide_sums([measure(document, other) for document, other in zip(side, others, strict=True)])
            for side, others in ((keys, responses), (responses, keys))
        )
        scores[name] = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    right, guessed = (
        {(row, mention) for row, document in enumerate(side) for entity in document for mention in entity}
        for side in (keys, responses)
    )
    mention_f1 = f1_of_counts(len(right & guessed), len(right), len(guessed))["f1"]
    return {"conll_f1": sum(scores.values()) / 3, **scores, "mention_f1": mention_f1}


Entities = list[set[tuple[int, int]]]


def _divide_sums(parts: list[tuple[float, float]]) -> float:
    total = sum(of for _, of in parts)
    return sum(right for right, _ in parts) / total if total else 0.0


def _muc(key: Entities, response: Entities) -> tuple[float, float]:
    """Links of the key that the response keeps, and all links (Vilain et al., 1995): p parts lose p - 1 links."""
    owner = {mention: number for number, entity in enumerate(response) for mention in entity}
    parts = [len({owner.get(mention, mention) for mention in entity}) for entity in key]
    return sum(map(len, key)) - sum(parts), sum(map(len, key)) - len(key)


def _b_cubed(key: Entities, response: Entities) -> tuple[float, float]:
    """For each mention of the key, the fraction of its entity in its response entity (Bagga and Baldwin, 1998)."""
    right = sum(size * size / len(key[row]) for (row, _), size in _overlaps(key, response).items())
    return right, sum(map(len, key))


def _ceaf_e(key: Entities, response: Entities) -> tuple[float, float]:
    """The similarity phi_4 of the best one-to-one alignment of entities, and their number (Luo, 2005)."""
    align = require("scipy.optimize", extra="tasks").linear_sum_assignment
    similarity = np.zeros((len(key), len(response)))
    for (row, column), size in _overlaps(key, response).items():
        similarity[row, column] = 2 * size / (len(key[row]) + len(response[column]))
    return float(similarity[align(-similarity)].sum()), len(key)


def _overlaps(key: Entities, response: Entities) -> Counter[tuple[int, int]]:
    """Number of mentions that an entity of the key and one of the response share, where they share any."""
    owner = {mention: number for number, entity in enumerate(response) for mention in entity}
    return Counter((row, owner[mention]) for row, entity in enumerate(key) for mention in entity if mention in owner)


FEMININE = frozenset({"she", "her", "hers"})


def gap_f1(
    pronouns: Sequence[str], gold: Sequence[Sequence[bool]], predicted: Sequence[Sequence[bool]]
) -> dict[str, float]:
    """The score of GAP (Webster et al., 2018): F1 over both names of all pronouns.

    Args:
        pronouns: The pronouns.
        gold: For each name of each pronoun, A and B, whether the pronoun refers to it.
        predicted: The same, predicted.

    Returns:
        `f1`, `precision`, `recall`, and the F1 of each gender, `feminine_f1` and `masculine_f1`.
    """
    _check_lengths(gold, predicted, "pronouns")

    def f1(rows: Sequence[int]) -> dict[str, float]:
        pairs = [pair for row in rows for pair in zip(gold[row], predicted[row], strict=True)]
        return f1_of_counts(sum(a and b for a, b in pairs), sum(a for a, _ in pairs), sum(b for _, b in pairs))

    feminine = [row for row, pronoun in enumerate(pronouns) if pronoun.lower() in FEMININE]
    masculine = sorted(set(range(len(gold))) - set(feminine))
    return {**f1(range(len(gold))), "feminine_f1": f1(feminine)["f1"], "masculine_f1": f1(masculine)["f1"]}
