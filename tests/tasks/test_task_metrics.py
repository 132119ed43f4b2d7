"""The scores of the tasks, against independent computations on random answers."""

import itertools
import random
from collections import Counter

import pytest

from elmokit.tasks import metrics
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
def test_different_numbers_of_gold_and_predicted_answers_are_refused(score):
    with pytest.raises(ValueError, match="1 gold sentences, 0 predicted"):
        score([["O"]], [])
    with pytest.raises(ValueError, match="1 gold tags in sentence 0, 2 predicted"):
        score([["O"]], [["O", "O"]])
    with pytest.raises(ValueError, match="1 gold labels, 0 predicted"):
        metrics.accuracy(["a"], [])


PIECES = [
    "the",
    "a",
    "An",
    "The",
    "them",
    "Cat",
    "cat",
    "sat",
    "U.S.",
    "1,085",
    " ",
    "  ",
    "-",
    "'s",
    "–",
    "é",
    "a-b",
    "!",
]


def normalized_by_the_rules(answer: str) -> str:
    """SQuAD's published rules, in their order: lowercase; no punctuation; no articles; one space between words."""
    text = "".join(character for character in answer.lower() if character not in "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
    runs = ["".join(run) for _, run in itertools.groupby(text, key=lambda character: character.isalnum())]
    return " ".join("".join(" " if run in ("a", "an", "the") else run for run in runs).split())


def scores_by_the_rules(gold: list[list[str]], predicted: list[str]) -> dict[str, float]:
    exact, f1 = [], []
    for answers, guess in zip(gold, predicted, strict=True):
        exact.append(max(normalized_by_the_rules(guess) == normalized_by_the_rules(answer) for answer in answers))
        best = 0.0
        for answer in answers:
            left, right = normalized_by_the_rules(guess).split(), normalized_by_the_rules(answer).split()
            remaining, same = Counter(right), 0
            for word in left:
                if remaining[word] > 0:
                    remaining[word] -= 1
                    same += 1
            if same:
                precision, recall = same / len(left), same / len(right)
                best = max(best, 2 * precision * recall / (precision + recall))
        f1.append(best)
    return {"f1": sum(f1) / len(f1), "exact_match": sum(exact) / len(exact)}


@pytest.mark.parametrize("seed", range(20))
def test_answers_are_scored_by_the_published_rules(seed):
    chance = random.Random(seed)

    def answer() -> str:
        return chance.choice(["", " "]).join(chance.choice(PIECES) for _ in range(chance.randrange(6)))

    gold = [[answer() for _ in range(chance.randrange(1, 4))] for _ in range(40)]
    predicted = [chance.choice([answer(), chance.choice(golds), f"The {golds[0].upper()} ."]) for golds in gold]
    expected = scores_by_the_rules(gold, predicted)
    assert metrics.answer_scores(gold, predicted) == pytest.approx(expected)
    assert 0 < expected["exact_match"] < expected["f1"] + 0.5 < 1.5


def test_known_answers_have_known_scores():
    assert metrics.answer_scores([["The Cat!"]], ["cat"]) == {"f1": 1.0, "exact_match": 1.0}
    assert metrics.answer_scores([["black cat", "dog"]], ["the cat"]) == {
        "f1": pytest.approx(2 / 3),
        "exact_match": 0.0,
    }
    assert metrics.answer_scores([["the"]], ["a"]) == {"f1": 0.0, "exact_match": 1.0}  # as v1.1's scorer has it
    assert metrics.answer_scores([], []) == {"f1": 0.0, "exact_match": 0.0}
    with pytest.raises(ValueError, match="1 gold answers, 2 predicted"):
        metrics.answer_scores([["a"]], ["a", "b"])


def arguments_by_definition(spans: list[tuple[str, int, int]]) -> list[tuple[str, frozenset[tuple[int, int]]]]:
    """Each X with every C-X after it and before the next X; a C-X that has none before it is an X."""
    spans = sorted(spans, key=lambda span: span[1])
    heads = []
    for place, (label, *_) in enumerate(spans):
        role = label.removeprefix("C-")
        earlier = [other for other, *_ in spans[:place] if other in (role, f"C-{role}")]
        if label == role or not earlier:
            heads.append((place, role))
    found = []
    for place, role in heads:
        later = [other for other, name in heads if name == role and other > place]
        stop = later[0] if later else len(spans)
        pieces = [spans[place], *(span for span in spans[place + 1 : stop] if span[0] == f"C-{role}")]
        found.append((role, frozenset((start, end) for _, start, end in pieces)))
    return [argument for argument in found if argument[0] != "V"]


@pytest.mark.parametrize("seed", range(30))
def test_role_f1_joins_continued_arguments_and_leaves_out_the_predicate(seed):
    chance = random.Random(seed)
    names = ["A0", "A1", "C-A1", "V", "C-V", "R-A0"]
    gold = [[(chance.choice(names), at, at + 1) for at in range(5) if chance.random() < 0.6] for _ in range(10)]
    predicted = [
        [(chance.choice([role, role, chance.choice(names)]), *place) for role, *place in row if chance.random() < 0.9]
        for row in gold
    ]
    a, b = ([(n, x) for n, row in enumerate(side) for x in arguments_by_definition(row)] for side in (gold, predicted))
    right = sum(argument in b for argument in a)
    assert len(set(a)) == len(a)
    precision, recall = right / len(b), right / len(a)
    f1 = 2 * precision * recall / (precision + recall) if right else 0.0
    assert metrics.role_f1(gold, predicted) == pytest.approx({"f1": f1, "precision": precision, "recall": recall})


def test_role_f1_of_nothing_is_zero_and_of_unequal_lists_an_error():
    assert metrics.role_f1([[]], [[("V", 0, 1)]]) == {"f1": 0.0, "precision": 0.0, "recall": 0.0}
    with pytest.raises(ValueError, match="1 gold propositions, 0 predicted"):
        metrics.role_f1([[]], [])


def random_clusters(chance: random.Random, mentions: list[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    clusters: dict[int, list[tuple[int, int]]] = {}
    for mention in mentions:
        if chance.random() < 0.8:
            clusters.setdefault(chance.randrange(4), []).append(mention)
    return list(clusters.values())


def muc_by_partitions(key, response):
    """Vilain et al.: the parts into which the response cuts each entity of the key; (right, of)."""
    right = of = 0
    for entity in key:
        parts = []
        left = set(entity)
        for other in response:
            if left & set(other):
                parts.append(left & set(other))
                left -= set(other)
        parts += [{mention} for mention in left]
        right += len(entity) - len(parts)
        of += len(entity) - 1
    return right, of


def b3_by_mentions(key, response):
    right, of = 0.0, 0
    for entity in key:
        for mention in entity:
            of += 1
            other = next((set(other) for other in response if mention in other), set())
            right += len(set(entity) & other) / len(entity)
    return right, of


def ceaf_by_all_alignments(key, response):
    short, long = sorted([key, response], key=len)
    best = 0.0
    for chosen in itertools.permutations(long, len(short)):
        pairs = zip(short, chosen, strict=True)
        best = max(best, sum(2 * len(set(a) & set(b)) / (len(a) + len(b)) for a, b in pairs))
    return best, len(key)


def f1_of(measure, gold, predicted):
    recalls = [measure(a, b) for a, b in zip(gold, predicted, strict=True)]
    precisions = [measure(b, a) for a, b in zip(gold, predicted, strict=True)]
    ratios = []
    for parts in (recalls, precisions):
        of = sum(part[1] for part in parts)
        ratios.append(sum(part[0] for part in parts) / of if of else 0.0)
    return 2 * ratios[0] * ratios[1] / sum(ratios) if sum(ratios) else 0.0


@pytest.mark.parametrize("seed", range(40))
def test_the_coreference_score_is_brute_force_from_the_definitions(seed):
    chance = random.Random(seed)
    mentions = [(at, at + chance.choice([1, 2])) for at in range(chance.randrange(1, 9))]
    gold, predicted = ([random_clusters(chance, mentions) for _ in range(3)] for _ in range(2))
    if seed % 4 == 0:
        predicted[0] = gold[0]
    expected = {
        "muc_f1": f1_of(muc_by_partitions, gold, predicted),
        "b3_f1": f1_of(b3_by_mentions, gold, predicted),
        "ceafe_f1": f1_of(ceaf_by_all_alignments, gold, predicted),
    }
    expected["conll_f1"] = sum(expected.values()) / 3
    a, b = ({(n, m) for n, doc in enumerate(side) for c in doc for m in c} for side in (gold, predicted))
    expected["mention_f1"] = 2 * len(a & b) / (len(a) + len(b)) if a or b else 0.0
    assert metrics.conll_f1(gold, predicted) == pytest.approx(expected)


def test_the_published_example_of_b_cubed_and_ceaf():
    """Luo (2005), figure 1: truth {1-5}, {6, 7}, {8-12}; system response (a) joins the two large entities' parts."""
    ones, two, three = ([(n, n + 1) for n in numbers] for numbers in (range(1, 6), (6, 7), (8, 9, 10, 11, 12)))
    scores = metrics.conll_f1([[ones, two, three]], [[ones, [*two, *three]]])
    assert scores["muc_f1"] == pytest.approx(18 / 19)
    assert scores["b3_f1"] == pytest.approx(0.865, abs=5e-4)
    assert scores["ceafe_f1"] == pytest.approx(2 * (1 + 10 / 12) / (3 + 2))


def test_no_entities_score_zero_and_unequal_lists_are_refused():
    assert set(metrics.conll_f1([[]], [[]]).values()) == {0.0}
    with pytest.raises(ValueError, match="1 gold documents, 0 predicted"):
        metrics.conll_f1([[]], [])


@pytest.mark.parametrize("seed", range(10))
def test_the_gap_score_counts_both_names_of_each_pronoun(seed):
    chance = random.Random(seed)
    pronouns = [chance.choice(["he", "His", "she", "HER", "hers"]) for _ in range(20)]
    gold = [chance.choice([[True, False], [False, True], [False, False]]) for _ in pronouns]
    predicted = [chance.choice([row, [True, False], [False, False]]) for row in gold]

    def f1(*wanted):
        hits = wrong = 0
        for pronoun, right, guess in zip(pronouns, gold, predicted, strict=True):
            if pronoun in wanted:
                hits += sum(a and b for a, b in zip(right, guess, strict=True))
                wrong += sum(a != b for a, b in zip(right, guess, strict=True))
        return 2 * hits / (2 * hits + wrong) if hits else 0.0

    scores = metrics.gap_f1(pronouns, gold, predicted)
    assert scores["f1"] == pytest.approx(f1("he", "His", "she", "HER", "hers"))
    assert scores["feminine_f1"] == pytest.approx(f1("she", "HER", "hers"))
    assert scores["masculine_f1"] == pytest.approx(f1("he", "His"))
    right, of, guessed = (
        sum(map(sum, rows))
        for rows in (
            [[a and b for a, b in zip(*pair, strict=True)] for pair in zip(gold, predicted, strict=True)],
            gold,
            predicted,
        )
    )
    assert (scores["precision"], scores["recall"]) == pytest.approx((right / guessed, right / of))


def test_a_sense_is_right_if_it_is_one_of_the_gold_and_no_answer_costs_recall_only():
    gold = [("a", "b"), ("c",), ("d",), ("e",)]
    assert metrics.sense_f1(gold, ["b", "d", "d", None]) == pytest.approx(
        {"f1": 4 / 7, "precision": 2 / 3, "recall": 0.5}
    )
    assert metrics.sense_f1([], []) == {"f1": 0.0, "precision": 0.0, "recall": 0.0}
    with pytest.raises(ValueError, match="1 gold words, 0 predicted"):
        metrics.sense_f1([("a",)], [])
