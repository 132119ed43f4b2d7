"""senses: the groups of a word's occurrences in a text or a store."""

import gzip

import numpy as np
import pytest
from verbs import error_of, result_of, run

from elmokit.model import ELMo

MONEY = [f"The bank lent {number} dollars to the company ." for number in ("nine", "ten", "six", "two", "five")]
RIVER = [f"They sat on the {kind} bank of the river ." for kind in ("muddy", "grassy", "steep", "green", "far")]


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("".join(f"{line}\n" for line in [*MONEY, "Nothing of the kind .", "", *RIVER]), encoding="utf-8")
    return path


def test_it_prints_each_sense_with_its_share_words_and_sentences(corpus):
    printed = run("senses", "Bank", corpus, "-n", 2, "--sentences", 2).stdout.splitlines()
    assert printed[0] == "Bank: 10 occurrences, 2 senses"
    assert sum("[bank]" in line for line in printed) == 4
    assert sum("  50%  " in line for line in printed) == 2


def test_its_groups_are_those_of_the_model(corpus, tmp_path):
    result = result_of("senses", "bank", corpus, "--num-senses", 2, "--plot", tmp_path / "bank.png", "--sentences", 9)
    expected = ELMo.from_pretrained().senses("bank", MONEY + RIVER, num_senses=2)
    assert (result["word"], result["num_occurrences"], result["num_grouped"]) == ("bank", 10, 10)
    for printed, sense in zip(result["senses"], expected.senses, strict=True):
        assert printed["share"] == sense.share
        assert printed["substitutes"] == sense.substitutes
        assert [one["tokens"] for one in printed["sentences"]] == [one.tokens for one in sense.occurrences]
    assert (tmp_path / "bank.png").read_bytes().startswith(b"\x89PNG")


def test_a_large_text_gives_the_same_sample_each_time_and_the_number_of_all(corpus, tmp_path, folder):
    packed = tmp_path / "packed.txt.gz"
    packed.write_bytes(gzip.compress(corpus.read_bytes()))
    results = [result_of("senses", "bank", path, "--limit", 4, "--model", folder) for path in (corpus, packed)]
    assert results[0] == results[1]
    assert (results[0]["num_occurrences"], results[0]["num_grouped"]) == (10, 4)


def test_a_store_gives_the_senses_of_its_text(corpus, tmp_path):
    pytest.importorskip("usearch", reason="the extra elmokit[index] is not installed")
    run("index", "build", corpus, "-o", tmp_path / "store")
    of_store, of_text = (result_of("senses", "bank", path, "-n", 2) for path in (tmp_path / "store", corpus))
    assert [sense["share"] for sense in of_store["senses"]] == [sense["share"] for sense in of_text["senses"]]
    groups = [{" ".join(one["tokens"]) for one in sense["sentences"]} for sense in of_store["senses"]]
    assert groups[0].isdisjoint(groups[1])
    assert result_of("senses", "bank", tmp_path / "store", "--limit", 3)["num_grouped"] == 3
    assert "an index has single tokens" in error_of("senses", "the bank", tmp_path / "store")


def test_a_word_that_does_not_occur_is_said_so(corpus, folder):
    assert run("senses", "heron", corpus, "--model", folder).stdout == "heron: 0 occurrences, 0 senses\n"


@pytest.mark.parametrize("word", ["", "  "])
def test_a_word_without_a_token_is_refused_in_one_line(corpus, folder, word):
    assert "pass a word or a phrase" in error_of("senses", word, corpus, "--model", folder)


def test_a_picture_that_cannot_be_drawn_is_refused_before_the_text_is_read(corpus, tmp_path):
    missing = tmp_path / "missing.txt"
    assert ".svg, .png or .pdf" in error_of("senses", "bank", missing, "--plot", tmp_path / "bank.gif")
    assert "missing.txt" in error_of("senses", "bank", missing)
    assert np.size(list(tmp_path.iterdir())) == 1
