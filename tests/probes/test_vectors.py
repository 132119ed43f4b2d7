"""Vectors of words in context, as probes read them."""

import numpy as np
import pytest
from probe_data import of_each_view, sentences

from elmokit.inference.vectors import unit
from elmokit.probes import (
    vectors,
)
from elmokit.probes.vectors import Place


def test_places_have_the_vectors_of_embed_and_embed_spans_and_come_in_any_order(model):
    text = sentences(1, 9)
    places = [Place(7, 1, 3), Place(2, 0, 1), Place(7, 2, 3)]
    found = vectors.gather(model, text, places)
    for place, rows in zip(places, found, strict=True):
        expected = of_each_view(model, text[place.sentence], place.start, place.end)
        np.testing.assert_allclose(rows, expected, atol=1e-6)


def test_sentences_without_a_place_are_not_read(model):
    reports = []
    text = sentences(2, 6)
    vectors.gather(model, text, [Place(3, 0, 1)], progress=lambda done, total: reports.append((done, total)))
    assert reports == [(len(text[3]), len(text[3]))]


def test_a_place_outside_of_its_sentence_is_refused(model):
    with pytest.raises(ValueError, match=r"no tokens 1 to 3 in \['a', 'b'\]"):
        vectors.gather(model, [["a", "b"]], [Place(0, 1, 3)])


def test_a_vector_of_zeros_has_no_direction_and_stays():
    np.testing.assert_array_equal(unit(np.array([[0.0, 0.0], [3.0, 4.0]])), [[0, 0], [0.6, 0.8]])
