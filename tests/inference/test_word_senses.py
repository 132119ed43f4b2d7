"""Occurrences of a word fall into groups: the linkage is scipy's, the number comes from the data or the caller."""

import re

import numpy as np
import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib import font_manager
from scipy.cluster.hierarchy import linkage
from scipy.spatial.distance import squareform

from elmokit import ELMo
from elmokit.inference import grouping
from elmokit.inference.grouping import average_linkage, group
from elmokit.inference.sense_labels import distinct_words
from elmokit.inference.senses import Occurrence, Sense, WordSenses, find_occurrences, group_senses
from elmokit.inference.vectors import unit
from elmokit.text import TREEBANK

MONEY = [
    "She opened an account at the bank to save some money .",
    "The bank raised its interest rates again last week .",
    "He still owes his local bank a large sum for the house .",
    "The bank refused to give the company another loan .",
]
RIVER = [
    "They walked slowly along the bank of the quiet river .",
    "The canoe drifted toward the muddy bank near the old bridge .",
    "Reeds and yellow flowers grew on the bank of the stream .",
    "We sat on the grassy bank and watched the boats on the river .",
]


def cloud(rng: np.random.Generator, sizes: list[int], spread: float = 0.03) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors around as many orthogonal directions, mixed, and which each belongs to."""
    truth = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    return unit(np.eye(256)[truth] + rng.normal(size=(len(truth), 256)) * spread), truth


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 40), st.integers(0, 10**6))
def test_the_linkage_is_the_average_linkage_of_scipy(num, seed):
    vectors = unit(np.random.default_rng(seed).normal(size=(num, 5)))
    distances = np.clip(1 - vectors @ vectors.T, 0, 2)
    np.fill_diagonal(distances, 0)
    expected = linkage(squareform(distances, checks=False), "average")[:, 2]
    np.testing.assert_allclose([merge.distance for merge in average_linkage(distances)], expected, atol=1e-9)


def test_separate_clouds_are_found_with_their_number_the_largest_first():
    vectors, truth = cloud(np.random.default_rng(0), [40, 25, 10])
    found = group(vectors)
    np.testing.assert_array_equal(found.labels, truth)
    means = [unit(vectors[truth == number].sum(axis=0)) for number in range(3)]
    np.testing.assert_allclose(found.centres, means, atol=1e-12)


def test_one_cloud_stays_one_group():
    vectors, _ = cloud(np.random.default_rng(1), [60])
    assert len(group(vectors).centres) == 1


def test_a_group_that_is_too_small_joins_the_nearest_also_if_the_number_is_given():
    vectors, truth = cloud(np.random.default_rng(2), [40, 25, 2])
    for found in (group(vectors), group(vectors, 2)):
        np.testing.assert_array_equal(found.labels[truth < 2], truth[truth < 2])
        assert len(found.centres) == 2
    few, truth = cloud(np.random.default_rng(2), [4, 2])
    np.testing.assert_array_equal(group(few, 2).labels, truth)  # so few that there is no other second group


@pytest.mark.parametrize("num_groups", [1, 2, 3, 7, 20, 50])
def test_the_caller_gets_as_many_groups_as_he_asks_for_or_as_there_are_vectors(num_groups):
    vectors, _ = cloud(np.random.default_rng(3), [10, 10])
    assert len(set(group(vectors, num_groups).labels.tolist())) == min(num_groups, 20)


def test_vectors_beyond_those_that_are_compared_join_the_nearest_centre(monkeypatch):
    monkeypatch.setattr(grouping, "MOST_LINKED", 50)
    vectors, truth = cloud(np.random.default_rng(4), [700, 300])
    np.testing.assert_array_equal(group(vectors).labels, truth)


def test_occurrences_are_found_in_any_case_as_phrases_and_more_than_once_in_a_sentence():
    sentences = [["The", "Bank", "of", "the", "bank"], ["no", "such", "word"], ["New", "York", "is", "new"], []]
    places = [(one.sentence, one.start, one.end) for one in find_occurrences("bank", sentences, TREEBANK)]
    assert places == [(0, 1, 2), (0, 4, 5)]
    (phrase,) = find_occurrences("new york", sentences, TREEBANK)
    assert (phrase.sentence, phrase.start, phrase.end, str(phrase)) == (2, 0, 2, "[New York] is new")
    (token,) = find_occurrences("can't", [["you", "can't"], ["you", "ca", "n't"]][:1], TREEBANK)
    assert (token.start, token.end) == (1, 2)
    assert [one.end for one in find_occurrences("can't", [["you", "ca", "n't"]], TREEBANK)] == [3]


def test_a_sense_has_its_share_and_its_occurrences_nearest_to_the_centre_first():
    vectors, truth = cloud(np.random.default_rng(5), [12, 6])
    occurrences = [Occurrence(["bank"], 0, 1, number) for number in range(18)]
    found = group_senses("bank", occurrences, 7 * vectors, label=lambda groups: [[str(len(own))] for own in groups])
    assert [sense.share for sense in found.senses] == pytest.approx([12 / 18, 6 / 18])
    assert [sense.substitutes for sense in found.senses] == [["12"], ["6"]]
    np.testing.assert_allclose(found.vectors, vectors, atol=1e-6)
    for number, sense in enumerate(found.senses):
        own = np.flatnonzero(truth == number)
        centre = vectors[own].sum(axis=0)
        assert [one.sentence for one in sense.occurrences] == sorted(own, key=lambda place: -vectors[place] @ centre)


def test_labels_fit_one_sense_more_than_the_others():
    fit = np.array([[0.5, 0.3, 0.2, 0.0, 0.6], [0.5, 0.0, 0.0, 0.1, 0.0]])
    words = ["both", "loan", "fund", "shore", "bank"]
    assert distinct_words(fit, words, {"bank"}) == [["loan", "both", "fund"], ["both", "shore"]]


def test_the_english_model_tells_the_bank_of_money_from_the_bank_of_a_river(tmp_path):
    model = ELMo.from_pretrained()
    found = model.senses("bank", [*MONEY, "Nothing here .", *RIVER], num_senses=2)
    assert [{one.sentence for one in sense.occurrences} for sense in found.senses] in (
        [{0, 1, 2, 3}, {5, 6, 7, 8}],
        [{5, 6, 7, 8}, {0, 1, 2, 3}],
    )
    for sense in found.senses:
        assert len(sense.substitutes) == 5
        assert "bank" not in sense.substitutes
    assert set(found.senses[0].substitutes) != set(found.senses[1].substitutes)
    found.plot(tmp_path / "bank.svg")
    assert "<svg" in (tmp_path / "bank.svg").read_text(encoding="utf-8")
    with pytest.raises(ValueError, match=r"bank\.gif: a picture is an \.svg, \.png or \.pdf file"):
        found.plot(tmp_path / "bank.gif")


def picture_of(path, word, substitutes):
    """The SVG of a word whose occurrences have a sense for each list of substitutes."""
    number = len(substitutes)
    occurrences = [Occurrence([word], 0, 1, place) for place in range(3 * number)]
    labels = np.arange(3 * number) % number
    senses = [Sense(1 / number, occurrences[place::number], words) for place, words in enumerate(substitutes)]
    vectors = np.random.default_rng(0).normal(size=(3 * number, 8)).astype(np.float32)
    WordSenses(word, senses, occurrences, labels, vectors).plot(path)
    return path.read_text(encoding="utf-8")


def write_font(path, characters):
    """A font that has only these characters, each a square."""
    pen = TTGlyphPen(None)
    for move in ((0, 0), (0, 700), (700, 700), (700, 0)):
        (pen.lineTo if pen.points else pen.moveTo)(move)
    pen.closePath()
    names = [".notdef", *(f"u{ord(character):x}" for character in characters)]
    font = FontBuilder(1000)
    font.setupGlyphOrder(names)
    font.setupCharacterMap({ord(character): f"u{ord(character):x}" for character in characters})
    font.setupGlyf(dict.fromkeys(names, pen.glyph()))
    font.setupHorizontalMetrics(dict.fromkeys(names, (800, 0)))
    font.setupHorizontalHeader(ascent=800, descent=-200)
    font.setupNameTable({"familyName": "Square", "styleName": "Regular", "psName": "Square"})
    font.setupOS2()
    font.setupPost()
    font.save(path)


def test_characters_that_matplotlib_has_no_font_for_are_drawn_by_a_font_of_the_machine(tmp_path, monkeypatch, caplog):
    write_font(tmp_path / "square.ttf", "银行存")
    own = [font for font in font_manager.fontManager.ttflist if font.name == "DejaVu Sans"]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", own)
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: [str(tmp_path / "square.ttf")])
    assert picture_of(tmp_path / "senses.svg", "银行", [["存"]]).lower().count("square-") >= 3
    assert not caplog.messages


def test_characters_that_no_font_has_are_named_once(tmp_path, monkeypatch, caplog):
    own = [font for font in font_manager.fontManager.ttflist if font.name == "DejaVu Sans"]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", own)
    monkeypatch.setattr(font_manager, "findSystemFonts", list)
    picture_of(tmp_path / "senses.svg", "银行", [["银"], ["存"]])
    (message,) = caplog.messages
    assert "has 存行银: install one" in message


def test_the_picture_of_many_senses_has_room_for_all_occurrences(tmp_path):
    drawn = picture_of(tmp_path / "senses.svg", "bank", [["shore"]] * 40)
    frame = re.search(r'<g id="patch_2">\s*<path d="M \S+ (\S+) \nL \S+ \S+ \nL \S+ (\S+) ', drawn)
    assert float(frame[1]) - float(frame[2]) > 200  # of 432 points with one sense


def test_a_dollar_sign_is_a_word_and_not_a_formula(tmp_path):
    assert "“$”, 3 occurrences" in picture_of(tmp_path / "senses.svg", "$", [["US$", "_$"]])


def test_a_word_that_does_not_occur_has_no_senses_and_a_model_without_words_gives_no_labels(tiny_elmo, tmp_path):
    model = ELMo.from_pretrained(tiny_elmo)
    none = model.senses("heron", MONEY)
    assert (none.senses, none.occurrences, none.vectors.shape) == ([], [], (0, model.dim))
    with pytest.raises(ValueError, match="'heron' does not occur"):
        none.plot(tmp_path / "heron.svg")
    (sense,) = model.senses("bank", MONEY, num_senses=1).senses
    assert (sense.share, sense.substitutes) == (1, [])
    with pytest.raises(ValueError, match="word is ' '"):
        model.senses(" ", MONEY)
    with pytest.raises(ValueError, match="carries its state"):
        ELMo.from_pretrained(tiny_elmo, state="carry").senses("bank", MONEY)
