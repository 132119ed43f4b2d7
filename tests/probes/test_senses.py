"""The sense triples are fair: no spelling, place or other word gives the answer away; the story of "bank" is true."""

import importlib.util
import io
import math
import sys
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from elmokit import BiLM, BiLMConfig, ELMo, Vocabulary
from elmokit.network import OutputLayer
from elmokit.probes.senses import SENSE_TRIPLES
from elmokit.text import tokenize

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "bank.py"

# words without a subject of their own: two sentences may share them whatever they speak of
LITTLE_WORDS = """
a an the this that these those such each every all some any many most few several other another and or but so as if of
to in on at by for from with without into onto over under through after before until because although while when than
then about against across around near behind beside above off out up down i me my we us our you your he him his she her
it its they them their who what where how is are was were be been being am has have had do does did will would can could
may might must should not no never nobody there here very too rather much little more one two three last first . ,
"""
STOP_WORDS = set(LITTLE_WORDS.split())

every_triple = pytest.mark.parametrize("triple", SENSE_TRIPLES, ids=lambda triple: triple.word)


def sentences(triple):
    return [[token.lower() for token in tokenize(text)] for text in (triple.first, triple.second, triple.other)]


def content(tokens, word):
    """The words that say what a sentence is about, singular and plural as one."""
    return {token.removesuffix("s") for token in tokens if token not in STOP_WORDS and token != word}


def test_there_are_bank_and_forty_more_words():
    assert SENSE_TRIPLES[0].word == "bank"
    assert len({triple.word for triple in SENSE_TRIPLES}) == len(SENSE_TRIPLES) == 41


def test_no_sentence_stands_twice():
    texts = [text for triple in SENSE_TRIPLES for text in (triple.first, triple.second, triple.other)]
    assert len(set(texts)) == 3 * len(SENSE_TRIPLES)


@every_triple
def test_each_sentence_holds_its_word_exactly_once_in_one_spelling(triple):
    for text in (triple.first, triple.second, triple.other):
        assert tokenize(text).count(triple.word) == 1
        assert text.lower().count(triple.word) == 1  # nor hidden in another word


@every_triple
def test_each_sentence_is_complete_and_of_8_to_16_words(triple):
    for text in (triple.first, triple.second, triple.other):
        assert text[0].isupper()
        *words, period = tokenize(text)
        assert period == "."
        assert all(word.isalpha() for word in words)
        assert 8 <= len(words) <= 16


@every_triple
def test_the_place_of_the_word_says_nothing_of_its_sense(triple):
    places = [tokens.index(triple.word) for tokens in sentences(triple)]
    assert max(places) - min(places) <= 2


@every_triple
def test_the_sentences_of_a_triple_share_no_other_content_word(triple):
    for one, two in combinations(sentences(triple), 2):
        assert content(one, triple.word)
        assert content(one, triple.word) & content(two, triple.word) == set()


# ---- examples/bank.py ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bank():
    """The example, as a module."""
    spec = importlib.util.spec_from_file_location("bank_example", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = BiLMConfig(char_dim=4, filters=((1, 8), (2, 8)), num_highways=1, cell_dim=16, projection_dim=8)
    words = ["<S>", "</S>", "<UNK>", "the", "of", ".", "bank", "river", "money", "He", "sat", "on", "and", "his"]
    return ELMo(BiLM(config), output_layer=OutputLayer(len(words), 8), vocabulary=Vocabulary(words)).eval()


@pytest.fixture(scope="module")
def story(bank, model):
    return bank.tell(model)


def plain(sentence):
    return sentence.replace("[", "").replace("]", "")


def page(bank, story):
    """What is printed where there is no colour, as lines and as one flow of words."""
    stream = io.StringIO()
    bank.show(story, Console(file=stream, width=bank.WIDTH, highlight=False))
    return stream.getvalue().splitlines(), " ".join(stream.getvalue().split())


def test_the_senses_are_compared_by_the_mean_similarity_of_all_pairs(bank, model, story):
    pairs = {
        "money_money": combinations(bank.MONEY, 2),
        "river_river": combinations(bank.RIVER, 2),
        "money_river": product(bank.MONEY, bank.RIVER),
    }
    pairs = {name: [(plain(a), plain(b)) for a, b in found] for name, found in pairs.items()}
    assert [row.view for row in story.similarities] == [0, 1, 2, "slot", "sense"]
    for row in story.similarities:
        for name, found in pairs.items():
            cosines = [model.similarity(a, b, word="bank", layers=row.view) for a, b in found]
            assert getattr(row, name) == pytest.approx(np.mean(cosines), abs=1e-5)


def test_the_nearest_bank_is_counted_except_where_all_are_alike(bank, model, story):
    sentences = [plain(sentence) for sentence in bank.MONEY + bank.RIVER]
    assert story.similarities[0].num_nearest_same is None
    for row in story.similarities[1:]:
        count = 0
        for place, sentence in enumerate(sentences):
            others = [number for number in range(6) if number != place]
            nearest = max(others, key=lambda n: model.similarity(sentence, sentences[n], word="bank", layers=row.view))
            count += nearest // 3 == place // 3
        assert row.num_nearest_same == count


def test_the_neighbours_are_the_nearest_marked_words_best_first(bank, model, story):
    for sentence, found in zip((bank.MONEY[0], bank.RIVER[0]), story.neighbours, strict=True):
        own = tokenize(plain(sentence))
        here = model.embed([own], layers="sense")[0][own.index("bank")]
        cosines = {}
        for other in bank.ELSEWHERE:
            tokens = tokenize(plain(other))
            there = model.embed([tokens], layers="sense")[0][tokens.index(other.split("[")[1].split("]")[0])]
            cosines[other] = here @ there / np.linalg.norm(here) / np.linalg.norm(there)
        best = sorted(cosines, key=cosines.get, reverse=True)[: bank.NUM_BEST]
        assert [neighbour.sentence for neighbour in found] == best
        assert [neighbour.cosine for neighbour in found] == pytest.approx([cosines[other] for other in best], abs=1e-5)


def test_neighbours_are_sought_among_forty_sentences_without_the_word_itself(bank):
    assert len(set(bank.ELSEWHERE)) == 40
    assert all("bank" not in sentence and sentence.count("[") == 1 for sentence in bank.ELSEWHERE)


def test_fillers_and_surprise_are_what_the_language_model_says(bank, model, story):
    expected = model.substitutes(bank.RIVER[0], k=bank.NUM_BEST)
    assert [(f.word, math.log(f.probability)) for f in story.fillers[1]] == [
        (s.word, pytest.approx(s.log_prob)) for s in expected
    ]
    (scores,) = model.log_probs([bank.BOTH])
    assert 2.0 ** -np.array(story.surprise.forward) == pytest.approx(np.exp(scores.forward))
    assert 2.0 ** -np.array(story.surprise.backward) == pytest.approx(np.exp(scores.backward))
    assert story.surprise.unknown == ["counted"]


def test_the_page_fits_100_columns_without_colour(bank, story):
    lines, words = page(bank, story)
    assert max(map(len, lines)) <= 100
    assert "\x1b" not in words
    assert "…" not in words  # nothing was cut to fit
    for sentence in (*bank.MONEY, *bank.RIVER):
        assert sentence in words
    assert "scored as an unknown word: counted" in words


def test_the_words_follow_the_numbers(bank, story):
    def with_rows(money_river):
        rows = [bank.ViewSimilarity(view, 0.6, 0.8, money_river, 4) for view in (1, "slot", "sense")]
        return replace(story, similarities=[story.similarities[0], *rows])

    told = "By its sense, 0.70 within a sense and 0.50 between the two, 4 of 6 find their own sense; by layer 1, 4."
    assert told in page(bank, with_rows(0.5))[1]
    assert "1 layer deep" in page(bank, with_rows(0.5))[1]
    assert "does not tell them apart" in page(bank, with_rows(0.9))[1]

    def with_bits(forward, backward):
        return replace(story, surprise=bank.Surprise(["bank", "money"], [forward, 9.0], [backward, 1.0], []))

    for forward, backward, verdict in (
        (2.0, 3.0, "the words before it say more"),
        (3.0, 2.0, "the words after it say more"),
        (2.0, 2.01, "both sides say as much"),
    ):
        words = page(bank, with_bits(forward, backward))[1]
        assert verdict in words
        assert 'the greatest surprise is "money"' in words
        assert "unknown word" not in words

    same = replace(story, neighbours=(story.neighbours[0][:1], story.neighbours[0]))
    assert "The two lists have 1 word of 5 in common" in page(bank, same)[1]


def test_a_model_without_a_softmax_tells_the_half_that_it_knows(bank, model):
    words = page(bank, bank.tell(ELMo(model.bilm)))[1]
    assert "What does it stand next to?" in words
    assert "has vectors and no softmax" in words
    assert "How surprising" not in words


def test_the_example_runs_on_a_model_folder(bank, model, tmp_path, capsys):
    model.save_pretrained(tmp_path / "model")
    bank.main(["--model", str(tmp_path / "model")])
    assert "4  How surprising is each word?" in capsys.readouterr().out


def test_a_terminal_that_knows_no_blocks_gets_plain_characters(bank, story):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    bank.show(story, Console(file=stream, width=bank.WIDTH, highlight=False))
    stream.flush()
    assert b"####" in stream.buffer.getvalue()


# ---- its Chinese part ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def chinese():
    torch.manual_seed(0)
    config = BiLMConfig(char_dim=4, filters=((1, 8), (2, 8)), num_highways=1, cell_dim=16, projection_dim=8)
    words = ["<S>", "</S>", "<UNK>", *"的一了他她在有意思打包袱苹果。，"]
    vocabulary, output_layer = Vocabulary(words), OutputLayer(len(words), 8)
    return ELMo(BiLM(config), output_layer=output_layer, vocabulary=vocabulary, tokenizer="han").eval()


def test_chinese_words_are_compared_by_their_sense(bank, chinese):
    told = bank.tell_chinese(chinese)
    assert [one.word for one in told] == ["苹果", "意思", "打", "包袱"]
    for one in told:
        (_, *first), (_, *second) = bank.CHINESE[one.word]
        assert all(f"[{one.word}]" in sentence for sentence in first + second)

        def cosine(a, b, word=one.word):
            return chinese.similarity(plain(a), plain(b), word=word)

        pairs = [*combinations(first, 2), *combinations(second, 2)]
        assert one.same == pytest.approx(np.mean([cosine(a, b) for a, b in pairs]), abs=1e-5)
        assert one.other == pytest.approx(np.mean([cosine(a, b) for a, b in product(first, second)]), abs=1e-5)
        everything, right = first + second, 0
        for place, sentence in enumerate(everything):
            others = [number for number in range(6) if number != place]
            right += max(others, key=lambda n: cosine(sentence, everything[n])) // 3 == place // 3
        assert one.num_nearest_same == right
        for sentence, found in zip((first[0], second[0]), one.fillers, strict=True):
            assert [f.word for f in found] == [s.word for s in chinese.substitutes(sentence, k=bank.NUM_BEST)]


def test_the_chinese_part_fits_the_page_and_is_left_out_where_it_cannot_be_printed(bank, chinese):
    told = bank.tell_chinese(chinese)
    stream = io.StringIO()
    console = Console(file=stream, width=bank.WIDTH, highlight=False)
    bank.show_chinese(told, console)
    words = " ".join(stream.getvalue().split())
    assert f"{sum(one.num_nearest_same for one in told)} of 24 sentences find their own sense" in words
    assert "…" not in words
    plain_stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    bank.show_chinese(told, Console(file=plain_stream, width=bank.WIDTH, highlight=False, safe_box=True))
    plain_stream.flush()
    assert b"has no Chinese characters" in plain_stream.buffer.getvalue()
