"""The model that comes with the package: it is there, small, whole, and what its card says."""

import re
from pathlib import Path

import pytest
from safetensors import safe_open

import elmokit
from elmokit import ELMo
from elmokit.probes import SENSE_TRIPLES, sense_triples

FOLDER = Path(elmokit.__file__).parent / "models" / "en"
CARD = (FOLDER / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def model() -> ELMo:
    return ELMo.from_pretrained()


def test_it_fits_the_package():
    sizes = {path.name: path.stat().st_size for path in FOLDER.iterdir()}
    assert sum(sizes.values()) <= 36e6
    assert max(sizes.values()) < 25e6


def test_its_matrices_are_stored_as_int8():
    with safe_open(FOLDER / "softmax.safetensors", framework="pt") as file:
        assert file.get_slice("weight").get_dtype() == "I8"
        assert file.get_slice("weight").get_shape() == [60_003, 256]


def test_it_is_a_language_model_of_the_sizes_that_the_card_names(model):
    assert model.embed(["The bank lent money."])[0].shape == (5, 512)
    assert model.config.cell_dim == int(re.search(r"layers of ([\d,]+) cells", CARD)[1].replace(",", ""))
    assert f"{len(model.vocabulary):,} words" in CARD
    parameters = sum(parameter.numel() for parameter in model.bilm.parameters())
    assert f"{parameters / 1e6:.1f} million" in CARD


def test_it_tells_english_from_the_same_words_in_disorder(model):
    assert model.perplexity(["The bank refused him a loan ."]).both < 100
    assert model.perplexity(["Loan a him refused bank the ."]).both > 1000


def test_it_puts_banks_and_edges_where_the_river_is(model):
    found = [word.word for word in model.substitutes("They sat on the [bank] of the river .", k=3)]
    assert found == ["banks", "side", "edge"]


def test_it_tells_senses_apart_as_often_as_the_card_says(model):
    found = sense_triples(model, SENSE_TRIPLES).layers
    row = re.search(r"\| sense triples won, % \|(.*)\|", CARD)[1].split("|")
    for name, cell in zip(("0", "1", "2", "mean"), row, strict=False):
        assert found[name] == pytest.approx(float(cell), abs=0.05)


@pytest.mark.parametrize(
    ("misspelled", "right", "others"),
    [
        ("goverment", "government", ["garment", "movement", "gourmet", "governor"]),
        ("beautifull", "beautiful", ["dutiful", "full", "beauty", "bountiful"]),
    ],
)
def test_a_misspelled_word_lies_nearer_to_the_right_one_than_to_others_that_look_like_it(
    model, misspelled, right, others
):
    first, *rest = model.embed([[word] for word in (misspelled, right, *others)], layers=0)
    cosines = [float(first[0] @ v[0]) / float((first[0] @ first[0]) * (v[0] @ v[0])) ** 0.5 for v in rest]
    assert max(cosines) == cosines[0]
