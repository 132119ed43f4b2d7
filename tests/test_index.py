"""The store of words in context: what it finds, and what it keeps when it is killed, damaged or asked wrongly."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from elmokit import BiLM, BiLMConfig, ELMo, files
from elmokit.cli.index import index as index_verb
from elmokit.cli.index import neighbours as neighbours_verb
from elmokit.index import Added, Neighbour, WordIndex, batches, store
from elmokit.inference.views import SENSE_VERSION
from elmokit.spans import embed_spans
from elmokit.text import Tokenizer, WordWeights, tokenize

pytest.importorskip("usearch", reason="the extra elmokit[index] is not installed")

CONFIG = BiLMConfig(char_dim=4, filters=((1, 8), (2, 8)), num_highways=1, cell_dim=16, projection_dim=8, num_layers=2)
DATA_FILES = ["sentences.jsonl", "rows.bin", "vectors.bin", "words.bin"]


def random_model(seed=0, **settings):
    torch.manual_seed(seed)
    model = ELMo(BiLM(CONFIG), **settings).eval()
    for parameter in model.bilm.parameters():  # initial weights are so small that all vectors are nearly one
        parameter.data.mul_(2)
    return model


@pytest.fixture(scope="module")
def model():
    return random_model()


def random_sentences(count, seed=0):
    rng = np.random.default_rng(seed)
    words = ["the", "bank", "river", "money", "play", "a", "of", ",", ".", *(f"w{number}" for number in range(60))]
    return [[words[word] for word in rng.integers(len(words), size=rng.integers(0, 12))] for _ in range(count)]


def vectors_of(model, sentences, layers="sense"):
    """(words, 2P), length one: the oracle's own computation."""
    vectors = np.concatenate(model.embed(sentences, layers=layers)).astype(np.float64)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


@pytest.fixture
def with_graph(monkeypatch):
    """Batches and graphs at the sizes of tests."""
    monkeypatch.setattr(batches, "TOKENS_AT_ONCE", 100)
    monkeypatch.setattr(store, "ROWS_OUTSIDE_GRAPH", 50)


def as_version_0_1(folder):
    """Make of an index what version 0.1 wrote: no hashes of words, and nothing about word weights."""
    (folder / "words.bin").unlink(missing_ok=True)
    for name, keys in (("contents.json", ["hashed_rows"]), ("index.json", ["word_weights", "sense_version"])):
        record = json.loads((folder / name).read_text())
        for key in keys:
            del record[key]
        (folder / name).write_text(json.dumps(record))


def content(folder):
    return {name: (folder / name).read_bytes() for name in DATA_FILES}


# ---- what it finds ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layer", ["average", "top", "slot", "sense", 0, 1])
def test_exact_search_finds_what_numpy_finds(model, tmp_path, layer):
    sentences = random_sentences(100)
    store = WordIndex.create(tmp_path / "store", model, layer=layer)
    store.add(model, sentences)
    words = vectors_of(model, sentences, layer)
    assert len(store) == len(words)
    queries = vectors_of(model, random_sentences(5, seed=1), layer)
    cosines = queries @ words.T
    hits = store.search(queries, 7)
    assert np.allclose(hits.cosines, -np.sort(-cosines, axis=1)[:, :7], atol=1e-3)  # of float16
    assert np.allclose(np.take_along_axis(cosines, hits.rows, axis=1), hits.cosines, atol=1e-3)


def test_the_view_is_sense_unless_another_one_is_asked_for(model, tmp_path):
    created = WordIndex.create(tmp_path / "store", model)
    created.add(model, random_sentences(30))
    assert created.settings.layer == "sense"
    assert np.allclose(created._files.vectors, vectors_of(model, random_sentences(30), "sense"), atol=1e-3)
    created.add(model, [["Hello"]])  # a word without context
    assert not created._files.vectors[-1].any()


def test_the_graph_finds_nearly_all_that_exact_search_finds(model, tmp_path, with_graph):
    sentences = random_sentences(400)
    store = WordIndex.create(tmp_path / "store", model)
    store.add(model, sentences)
    assert store.contents.graph_rows > 1000
    queries = vectors_of(model, random_sentences(50, seed=1))
    found, wanted = store.search(queries, 10), store.search(queries, 10, exact=True)
    assert np.mean([len({*a} & {*b}) / 10 for a, b in zip(found.rows, wanted.rows, strict=True)]) > 0.95
    assert (np.diff(found.cosines, axis=1) <= 0).all()
    # the same figures, since both come from the float16 vectors
    same = found.rows == wanted.rows
    assert same.any()
    assert np.allclose(found.cosines[same], wanted.cosines[same], atol=1e-6)


def test_words_that_are_not_in_the_graph_yet_are_found_too(model, tmp_path, with_graph):
    store = WordIndex.create(tmp_path / "store", model)
    store.add(model, random_sentences(100))
    in_graph = store.contents.graph_rows
    assert in_graph == len(store)
    store.add(model, [["an", "uncommon", "sentence"]])
    assert store.contents.graph_rows == in_graph  # too few to write the graph again
    hits = store.search(vectors_of(model, [["an", "uncommon", "sentence"]]), 1)
    assert hits.rows[:, 0].tolist() == [in_graph, in_graph + 1, in_graph + 2]
    assert np.allclose(hits.cosines, 1, atol=1e-3)


def test_a_graph_that_proposes_too_little_is_not_believed(model, tmp_path, with_graph, monkeypatch):
    store = WordIndex.create(tmp_path / "store", model)
    store.add(model, random_sentences(100))
    queries = vectors_of(model, random_sentences(3, seed=1))
    wanted = store.search(queries, 5, exact=True)

    class Broken:
        def propose(self, query, count):
            return np.zeros(2, np.int64)

    monkeypatch.setattr(store, "_graph", Broken())
    assert (store.search(queries, 5).rows == wanted.rows).all()


def test_more_than_the_store_has_gives_all_that_it_has(model, tmp_path, with_graph):
    sentences = random_sentences(60)
    store = WordIndex.create(tmp_path / "store", model)
    store.add(model, sentences)
    hits = store.search(vectors_of(model, [["the", "bank"]]), 10_000)
    assert sorted(hits.rows[0]) == list(range(len(store)))
    found = store.neighbours(model, "the [bank]", k=10_000)
    distinct = [number for number, words in enumerate(sentences) if words and words != ["the", "bank"]]
    assert sorted(neighbour.sentence_number for neighbour in found) == distinct


def test_no_queries_have_no_neighbours(model, tmp_path, with_graph):
    store = WordIndex.create(tmp_path / "store", model)
    store.add(model, random_sentences(50))
    assert store.search(np.zeros((0, 16)), 3).rows.shape == (0, 3)


def test_neighbours_are_one_word_of_each_sentence_and_not_the_query(model, tmp_path):
    sentences = [["He", "sat", "by", "the", "bank", "."], *random_sentences(80)]
    store = WordIndex.create(tmp_path / "store", model)
    store.add(model, sentences)
    found = store.neighbours(model, "He sat by the [bank] .", k=5)
    query = vectors_of(model, sentences[:1])[4]
    best = {}
    for number, words in enumerate(sentences):
        if words and number:
            cosines = vectors_of(model, [words]) @ query
            best[number] = (float(cosines.max()), int(cosines.argmax()))
    wanted = sorted(best, key=lambda number: -best[number][0])[:5]
    assert [neighbour.sentence_number for neighbour in found] == wanted
    for neighbour in found:
        cosine, place = best[neighbour.sentence_number]
        words = sentences[neighbour.sentence_number]
        assert neighbour == Neighbour(words, place, words[place], pytest.approx(cosine, abs=1e-3), wanted.pop(0))


@pytest.mark.parametrize("layer", ["sense", "average"])
@pytest.mark.parametrize(
    ("query", "tokens", "span"),
    [
        ("He left [New York] .", ["He", "left", "New", "York", "."], (2, 4)),
        ("He [can't] pay.", ["He", "ca", "n't", "pay", "."], (1, 3)),
        ("Mr. [Roe] of the U.S. army", ["Mr.", "Roe", "of", "the", "U.S.", "army"], (1, 2)),
        ("the [U.S.] army", ["the", "U.S.", "army"], (1, 2)),
    ],
)
def test_a_marked_phrase_is_seen_as_one_word_and_its_own_sentence_is_left_out(
    model, tmp_path, layer, query, tokens, span
):
    sentences = [tokens, *random_sentences(80)]
    store = WordIndex.create(tmp_path / "store", model, layer=layer)
    store.add(model, sentences)
    ((vector,),) = embed_spans(model, [tokens], [[span]], layers=layer)
    cosines = [
        (vectors_of(model, [words], layer) @ vector).max() / np.linalg.norm(vector) for words in sentences[1:] if words
    ]
    found = store.neighbours(model, query, k=5)
    assert tokens not in [neighbour.tokens for neighbour in found]
    assert [neighbour.cosine for neighbour in found] == pytest.approx(sorted(cosines, reverse=True)[:5], abs=1e-3)


@pytest.mark.parametrize("k", [3, 500])
def test_uses_of_the_same_word_are_all_compared_and_no_other_word(model, tmp_path, with_graph, k):
    sentences = [["He", "sat", "by", "the", "bank", "."], *random_sentences(300), ["Bank", "on", "the", "BANK"]]
    store = WordIndex.create(tmp_path / "store", model)
    store.add(model, sentences)
    assert store.contents.graph_rows > 1000
    query, best = vectors_of(model, sentences[:1])[4], {}
    for number, words in enumerate(sentences[1:], 1):
        places = [place for place, word in enumerate(words) if word.casefold() == "bank"]
        if places:
            cosines = vectors_of(model, [words])[places] @ query
            best[number] = cosines.max(), words[places[cosines.argmax()]]
    wanted = sorted(best, key=lambda number: -best[number][0])[:k]
    found = store.neighbours(model, "He sat by the [bank] .", k=k, same_word=True)
    assert [neighbour.sentence_number for neighbour in found] == wanted
    assert [neighbour.word for neighbour in found] == [best[number][1] for number in wanted]
    assert [neighbour.cosine for neighbour in found] == pytest.approx([best[n][0] for n in wanted], abs=1e-3)
    assert all(neighbour.tokens[neighbour.index] == neighbour.word for neighbour in found)
    assert store.neighbours(model, "an [unknown] word", same_word=True) == []


def test_strings_are_tokenized_and_odd_tokens_come_back_as_they_went_in(model, tmp_path):
    odd = ["two words", "", "naïve", "漢字", "\ud800", "line\nfeed", '"']
    store = WordIndex.create(tmp_path / "store", model)
    assert store.add(model, ["He can't pay.", odd]) == Added(2, 5 + len(odd), 0)
    found = store.neighbours(model, "a [b]", k=9)
    assert sorted(neighbour.tokens for neighbour in found) == sorted([tokenize("He can't pay."), odd])


def test_punctuation_and_chosen_words_are_left_out_on_request(model, tmp_path):
    sentences = [["The", "bank", ",", "--", "of", "3", "."], ["."]]
    store = WordIndex.create(tmp_path / "store", model, skip_punctuation=True, skip_words=["the", "OF"])
    assert store.add(model, sentences).num_words == 2
    assert store.num_sentences == 2
    (found,) = store.neighbours(model, "a [b]", k=9)
    assert (found.word in ("bank", "3"), found.tokens) == (True, sentences[0])


def test_an_empty_corpus_makes_an_empty_store_that_finds_nothing(model, tmp_path):
    store = WordIndex.create(tmp_path / "store", model)
    assert store.add(model, []) == Added(0, 0, 0)
    assert store.add(model, [[], ""]) == Added(2, 0, 0)
    assert (len(store), store.num_sentences) == (0, 2)
    assert store.neighbours(model, "the [bank]") == []
    assert WordIndex.open(tmp_path / "store").search(np.ones((2, 16))).rows.shape == (2, 0)


def test_the_progress_counts_sentences(model, tmp_path, with_graph):
    sentences, seen = random_sentences(100), []
    store = WordIndex.create(tmp_path / "store", model)
    store.add(model, sentences, progress=lambda done, total: seen.append((done, total)))
    assert len(seen) > 2
    assert seen == sorted(seen)
    assert seen[-1] == (100, 100)
    store.add(model, iter(sentences[:3]), progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (3, None)


# ---- occurrences of a word -------------------------------------------------------------------------------------------


def places_of(word, sentences, *, ignore_case=True):
    """(sentence, position) of each occurrence, by looking at all words."""
    same = (lambda a: a.casefold() == word.casefold()) if ignore_case else (lambda a: a == word)
    return [(n, at) for n, words in enumerate(sentences) for at, token in enumerate(words) if same(token)]


def test_all_occurrences_of_a_word_come_with_their_sentences_and_vectors(model, tmp_path, with_graph):
    sentences = [*random_sentences(150), ["Bank", "on", "the", "BANK", "of", "a", "bank"]]
    store = WordIndex.create(tmp_path / "store", model)
    store.add(model, sentences[:90])
    store.add(model, sentences[90:])
    for word in ("bank", "BANK", "w7", ","):
        found = WordIndex.open(tmp_path / "store").occurrences(word)
        wanted = places_of(word, sentences)
        assert len(wanted) > 3
        assert [(one.sentence_number, one.position) for one in found.words] == wanted
        assert [one.tokens for one in found.words] == [sentences[number] for number, _ in wanted]
        assert (found.num_total, found.vectors.dtype, len(found.rows)) == (len(wanted), np.float32, len(wanted))
        vectors = [vectors_of(model, [sentences[number]])[position] for number, position in wanted]
        assert np.allclose(found.vectors, vectors, atol=1e-3)
        assert (store.search(found.vectors, 1).cosines[:, 0] > 0.999).all()
        assert (store._files.vectors[found.rows] == found.vectors).all()


def test_upper_and_lower_case_can_be_told_apart(model, tmp_path):
    sentences = [["Bank", "on", "the", "BANK", "of", "a", "bank"], ["Straße", "STRASSE"], ["bank"]]
    store = WordIndex.create(tmp_path / "store", model)
    store.add(model, sentences)
    for word, num_any in (("bank", 4), ("Bank", 4), ("bANK", 4), ("strasse", 2), ("Straße", 2), ("", 0)):
        assert store.occurrences(word).num_total == num_any == len(places_of(word, sentences))
        exactly = store.occurrences(word, ignore_case=False)
        wanted = places_of(word, sentences, ignore_case=False)
        assert [(one.sentence_number, one.position) for one in exactly.words] == wanted
        assert exactly.num_total == len(wanted)


@pytest.mark.parametrize("limit", [1, 2, 7, 30, 99, 100, 101])
def test_a_limit_samples_occurrences_evenly_and_the_number_of_all_is_known(model, tmp_path, limit):
    store = WordIndex.create(tmp_path / "store", model)
    store.add(model, [["a", "bank"], ["no"], ["the", "Bank"]] * 50)
    found, everything = store.occurrences("bank", limit=limit), store.occurrences("bank")
    assert (found.num_total, everything.num_total, len(everything.words)) == (100, 100, 100)
    assert len(found.words) == len(found.vectors) == len(found.rows) == min(limit, 100)
    places = [everything.rows.tolist().index(row) for row in found.rows]
    gaps = np.diff([*places, 100 + places[0]])  # around the end, so that the last part is not longer
    assert gaps.max() - gaps.min() <= 1
    assert found.words == [everything.words[place] for place in places]
    assert (found.vectors == everything.vectors[places]).all()
    exactly = store.occurrences("bank", limit=limit, ignore_case=False)
    assert (exactly.num_total, len(exactly.words)) == (50, min(limit, 50))


def test_words_that_are_left_out_or_not_there_have_no_occurrences(model, tmp_path):
    store = WordIndex.create(tmp_path / "store", model, skip_words=["the"], skip_punctuation=True)
    assert store.occurrences("bank").num_total == 0
    store.add(model, [["The", "bank", "."]])
    for word, number in {"the": 0, "The": 0, ".": 0, "bank": 1, "nothing": 0}.items():
        found = store.occurrences(word, limit=5)
        assert (found.num_total, len(found.words), found.vectors.shape) == (number, number, (number, 16))


def test_odd_tokens_are_found_as_they_are(model, tmp_path):
    odd = ["two words", "", "\ud800", "漢字", "line\nfeed", "漢字", '"']
    store = WordIndex.create(tmp_path / "store", model)
    store.add(model, [odd])
    for position, word in enumerate(odd):
        assert position in [one.position for one in store.occurrences(word).words]
        assert store.occurrences(word).num_total == odd.count(word)


def test_what_another_process_is_adding_is_found_once_it_is_committed(model, tmp_path, with_graph):
    sentences, store, seen = random_sentences(100), WordIndex.create(tmp_path / "store", model), []

    def meanwhile(done, total):
        number = len(places_of("bank", sentences[:done]))
        assert WordIndex.open(tmp_path / "store").occurrences("bank").num_total == number
        assert store.occurrences("bank").num_total == number
        seen.append(number)

    store.add(model, sentences, progress=meanwhile)
    assert len({*seen}) > 2


def test_asking_wrongly_for_occurrences_is_refused(model, tmp_path):
    store = WordIndex.create(tmp_path / "store", model)
    with pytest.raises(ValueError, match="limit must be at least 1, not 0"):
        store.occurrences("bank", limit=0)
    with pytest.raises(ValueError, match="word must be a string"):
        store.occurrences(["bank"])
    with pytest.raises(ValueError, match="ignore_case must be"):
        store.occurrences("bank", ignore_case="yes")


# ---- indexes of version 0.1 ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layer", ["average", 1])
def test_an_index_of_version_0_1_is_searched_and_grows(model, tmp_path, with_graph, layer):
    sentences = random_sentences(160)
    new = WordIndex.create(tmp_path / "new", model, layer=layer)
    WordIndex.create(tmp_path / "store", model, layer=layer).add(model, sentences[:100], source="a")
    as_version_0_1(tmp_path / "store")
    old = WordIndex.open(tmp_path / "store")
    queries = vectors_of(model, random_sentences(4, seed=1), layer)
    assert (old.search(queries, 5).rows == old.search(queries, 5, exact=True).rows).mean() > 0.9
    assert old.occurrences("bank").num_total == len(places_of("bank", sentences[:100]))
    assert not (tmp_path / "store" / "words.bin").exists()  # who reads may not be allowed to write
    assert old.neighbours(model, "the [bank] .")
    old.add(model, sentences, source="a")
    new.add(model, sentences[:100], source="a")
    new.add(model, sentences, source="a")
    assert content(tmp_path / "store") == content(tmp_path / "new")
    assert WordIndex.open(tmp_path / "store").contents.hashed_rows == len(new)
    for grown in (old, WordIndex.open(tmp_path / "store")):
        assert grown.occurrences("bank").num_total == len(places_of("bank", sentences))


def test_an_index_of_version_0_1_whose_growth_is_killed_loses_no_word(model, tmp_path, with_graph, monkeypatch):
    sentences = random_sentences(60)
    for step in range(1, 8):
        folder = tmp_path / str(step)
        WordIndex.create(folder, model, layer="top").add(model, sentences[:30])
        as_version_0_1(folder)
        store, num_synced = WordIndex.open(folder), 0

        def dies(handle, step=step):
            nonlocal num_synced
            num_synced += 1
            if num_synced == step:
                raise Killed

        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", dies)
            with pytest.raises(Killed):
                store.add(model, sentences[30:])
        again = WordIndex.open(folder)
        assert again.occurrences("bank").num_total == len(places_of("bank", sentences[: again.num_sentences]))
        again.add(model, sentences[again.num_sentences :])
        assert WordIndex.open(folder).occurrences("bank").num_total == len(places_of("bank", sentences))


# ---- adding in parts -------------------------------------------------------------------------------------------------


def test_a_store_made_in_parts_is_the_store_made_at_once(model, tmp_path, with_graph):
    sentences = random_sentences(120)
    whole, parts = (WordIndex.create(tmp_path / name, model) for name in ("whole", "parts"))
    whole.add(model, sentences)
    for begin in range(0, 120, 17):
        WordIndex.open(tmp_path / "parts").add(model, sentences[begin : begin + 17])
    parts = WordIndex.open(tmp_path / "parts")
    assert parts.num_sentences == 120
    assert (parts._files.rows == whole._files.rows).all()
    assert np.allclose(parts._files.vectors.astype(float), whole._files.vectors.astype(float), atol=1e-3)
    lines = (tmp_path / "parts" / "sentences.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == sentences
    assert len(list((tmp_path / "parts").glob("graph-*"))) == 1


def test_a_source_is_added_once_and_what_grew_at_its_end_is_added(model, tmp_path, with_graph):
    sentences = random_sentences(60)
    store = WordIndex.create(tmp_path / "store", model)
    first = store.add(model, sentences[:50], source="a.txt")
    assert (first.num_sentences, first.num_skipped) == (50, 0)
    assert store.add(model, sentences[:50], source="a.txt") == Added(0, 0, 50)
    assert store.add(model, sentences, source="a.txt").num_sentences == 10
    assert store.add(model, sentences[:5], source="b.txt").num_sentences == 5
    assert store.add(model, sentences[:5]).num_sentences == 5
    assert store.num_sentences == 70


@pytest.mark.parametrize("change", [lambda lines: [["other"], *lines[1:]], lambda lines: lines[:-1], lambda _: []])
def test_a_source_that_changed_is_refused(model, tmp_path, change):
    sentences = random_sentences(20)
    store = WordIndex.create(tmp_path / "store", model)
    store.add(model, sentences, source="a.txt")
    before = content(tmp_path / "store")
    with pytest.raises(ValueError, match=r"a\.txt: .*20 sentences of it, which are no longer its first ones"):
        store.add(model, change(sentences), source="a.txt")
    assert content(tmp_path / "store") == before


# ---- killed and damaged ----------------------------------------------------------------------------------------------


class Killed(BaseException):
    pass


@pytest.mark.parametrize("step", range(1, 37, 5))
def test_a_build_that_stops_anywhere_resumes_and_loses_and_repeats_nothing(
    model, tmp_path, with_graph, monkeypatch, step
):
    sentences = random_sentences(60)
    WordIndex.create(tmp_path / "whole", model).add(model, sentences, source="a")
    store, steps = WordIndex.create(tmp_path / "store", model), []

    def dies(original, *, after):
        def call(*arguments, **settings):
            steps.append(original)
            if len(steps) == step and not after:
                raise Killed
            result = original(*arguments, **settings)
            if len(steps) == step:
                raise Killed
            return result

        return call

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", dies(os.fsync, after=False))
        patched.setattr(os, "replace", dies(os.replace, after=True))
        with pytest.raises(Killed):
            store.add(model, sentences, source="a")
    before = WordIndex.open(tmp_path / "store")
    assert before.search(np.ones((1, 16)), 3).rows.shape == (1, min(3, len(before)))
    again = WordIndex.open(tmp_path / "store")
    added = again.add(model, sentences, source="a")
    assert added.num_sentences + added.num_skipped == 60
    assert content(tmp_path / "store") == content(tmp_path / "whole")
    assert not list((tmp_path / "store").glob(".*.tmp"))
    assert (again.contents.graph_rows > 0, len(list((tmp_path / "store").glob("graph-*")))) == (True, 1)


KILLED_PROGRAM = """
import sys, time
from test_index import random_model, random_sentences
from elmokit.index import WordIndex, batches, store
batches.TOKENS_AT_ONCE, store.ROWS_OUTSIDE_GRAPH = 100, 50
model = random_model()
words = WordIndex.create(sys.argv[1], model)
def report(done, total):
    print(done, flush=True)
    time.sleep(0.05)
words.add(model, random_sentences(200), source="a", progress=report)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no SIGKILL here")
def test_a_killed_process_leaves_a_store_that_resumes(model, tmp_path, with_graph):
    path = os.pathsep.join([os.path.dirname(__file__), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", KILLED_PROGRAM, str(tmp_path / "store")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        for _ in range(3):
            assert int(process.stdout.readline())
        os.kill(process.pid, signal.SIGKILL)
    half = WordIndex.open(tmp_path / "store")
    assert 0 < half.num_sentences < 200
    with open(tmp_path / "store" / "vectors.bin", "ab") as file:
        file.write(b"half of a batch")
    added = half.add(model, random_sentences(200), source="a")
    assert (added.num_skipped > 0, added.num_sentences + added.num_skipped) == (True, 200)
    WordIndex.create(tmp_path / "whole", model).add(model, random_sentences(200), source="a")
    resumed, whole = content(tmp_path / "store"), content(tmp_path / "whole")
    # other sentences are embedded together after the kill, and float16 may round their last bits apart
    vectors = [np.frombuffer(files.pop("vectors.bin"), dtype=np.float16) for files in (resumed, whole)]
    assert resumed == whole
    np.testing.assert_allclose(*vectors, rtol=0, atol=2.0**-11)


@pytest.mark.skipif(files.fcntl is None, reason="there are no file locks here")
def test_two_do_not_add_at_once_and_a_reader_sees_what_is_committed(model, tmp_path, with_graph):
    store = WordIndex.create(tmp_path / "store", model)

    def meanwhile(done, total):
        assert len(WordIndex.open(tmp_path / "store")) == len(store)
        with pytest.raises(ValueError, match="another process is adding"):
            WordIndex.open(tmp_path / "store").add(model, [["a"]])

    store.add(model, random_sentences(40), progress=meanwhile)


@pytest.mark.skipif(files.fcntl is None, reason="there are no file locks here")
def test_who_adds_is_named_to_the_next_one(model, tmp_path):
    store = WordIndex.create(tmp_path / "store", model)

    def meanwhile(done, total):
        holder = rf"\(process {os.getpid()} on .*, since .*\)"
        with pytest.raises(ValueError, match=f"process is adding to this index {holder}"):
            store.add(model, [["a"]])

    store.add(model, random_sentences(40), progress=meanwhile)
    assert not (tmp_path / "store" / ".lock").exists()


def test_two_that_create_an_index_at_once_do_not_mix_their_settings(model, tmp_path, monkeypatch):
    """The second one creates it after the first one has seen that there is none."""
    digest = ELMo.digest

    def slow_digest(self):
        monkeypatch.setattr(ELMo, "digest", digest)
        WordIndex.create(tmp_path / "store", model, layer="top")
        return digest(self)

    monkeypatch.setattr(ELMo, "digest", slow_digest)
    with pytest.raises(ValueError, match="an index already exists"):
        WordIndex.create(tmp_path / "store", model, layer=0)
    assert WordIndex.open(tmp_path / "store").settings.layer == "top"


def test_an_index_that_was_replaced_by_another_one_is_not_added_to(model, tmp_path):
    old = WordIndex.create(tmp_path / "store", model, layer=0)
    shutil.rmtree(tmp_path / "store")
    WordIndex.create(tmp_path / "store", model, layer="top")
    with pytest.raises(ValueError, match="replaced by another one: open it again"):
        old.add(model, [["a"]])
    assert len(WordIndex.open(tmp_path / "store")) == 0


@pytest.mark.parametrize("name", ["sentences.jsonl", "rows.bin", "vectors.bin"])
@pytest.mark.parametrize("missing", [True, False])
def test_a_file_that_is_cut_or_gone_is_named(model, tmp_path, name, missing):
    WordIndex.create(tmp_path / "store", model).add(model, random_sentences(20))
    path = tmp_path / "store" / name
    if missing:
        path.unlink()
    else:
        os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(ValueError, match=f"{name} has .* bytes, contents.json counts .* damaged"):
        WordIndex.open(tmp_path / "store")


@pytest.mark.parametrize("missing", [True, False])
def test_hashes_that_are_cut_or_gone_are_made_again_of_the_sentences(model, tmp_path, caplog, missing):
    folder, sentences = tmp_path / "store", random_sentences(50)
    WordIndex.create(folder, model).add(model, sentences)
    before, path = content(folder), folder / "words.bin"
    if missing:
        path.unlink()
    else:
        os.truncate(path, path.stat().st_size - 1)
    store = WordIndex.open(folder)
    assert "words are read from the sentences" in caplog.text
    assert store.occurrences("bank").num_total == len(places_of("bank", sentences))
    store.add(model, [["a", "bank"]])
    caplog.clear()
    assert WordIndex.open(folder).occurrences("bank").num_total == len(places_of("bank", sentences)) + 1
    assert path.read_bytes().startswith(before["words.bin"])
    assert not caplog.records


def test_hashes_of_other_words_are_named_as_damage(model, tmp_path):
    WordIndex.create(tmp_path / "store", model).add(model, [["a", "bank"]])
    path = tmp_path / "store" / "words.bin"
    path.write_bytes(path.read_bytes()[8:] * 2)
    with pytest.raises(ValueError, match=r"words\.bin: damaged at word 0: delete it"):
        WordIndex.open(tmp_path / "store").occurrences("bank")
    path.unlink()
    assert WordIndex.open(tmp_path / "store").occurrences("bank").num_total == 1


@pytest.mark.parametrize("name", ["index.json", "contents.json"])
@pytest.mark.parametrize("text", ["", "[]", '{"unknown": 1}', '{"num_rows": "many"}', '{"format": "other"}'])
def test_a_damaged_record_is_named(model, tmp_path, name, text):
    WordIndex.create(tmp_path / "store", model)
    (tmp_path / "store" / name).write_text(text)
    with pytest.raises(ValueError, match=name):
        WordIndex.open(tmp_path / "store")


def test_a_store_of_another_format_is_refused(model, tmp_path):
    WordIndex.create(tmp_path / "store", model)
    path = tmp_path / "store" / "index.json"
    path.write_text(path.read_text().replace("index 1", "index 2"))
    with pytest.raises(ValueError, match=r"index\.json: format is 'elmokit index 2'"):
        WordIndex.open(tmp_path / "store")


def test_a_missing_record_is_named(model, tmp_path):
    WordIndex.create(tmp_path / "store", model)
    (tmp_path / "store" / "contents.json").unlink()
    with pytest.raises(ValueError, match=r"contents\.json is missing"):
        WordIndex.open(tmp_path / "store")


def test_a_damaged_sentence_is_named(model, tmp_path):
    store = WordIndex.create(tmp_path / "store", model)
    store.add(model, random_sentences(20))
    path = tmp_path / "store" / "sentences.jsonl"
    path.write_bytes(b"\x00" * path.stat().st_size)
    with pytest.raises(ValueError, match=r"sentences\.jsonl: damaged at byte"):
        WordIndex.open(tmp_path / "store").neighbours(model, "the [bank]")


@pytest.mark.parametrize("damage", ["gone", "cut", "nonsense", "another"])
def test_a_damaged_graph_is_made_again_of_the_vectors(model, tmp_path, with_graph, caplog, damage):
    folder = tmp_path / "store"
    WordIndex.create(folder, model).add(model, random_sentences(100), source="a")
    (graph,) = folder.glob("graph-*")
    if damage == "gone":
        graph.unlink()
    elif damage == "cut":
        os.truncate(graph, 1000)
    elif damage == "nonsense":
        graph.write_bytes(b"\x01" * graph.stat().st_size)
    else:
        WordIndex.create(tmp_path / "other", model).add(model, random_sentences(20))
        (other,) = (tmp_path / "other").glob("graph-*")
        graph.write_bytes(other.read_bytes())
        record = json.loads((folder / "contents.json").read_text())
        (folder / "contents.json").write_text(json.dumps({**record, "graph_bytes": graph.stat().st_size}))
    store = WordIndex.open(folder)
    assert "the graph is damaged or missing" in caplog.text
    queries = vectors_of(model, [["the", "bank"]])
    assert (store.search(queries, 5).rows == store.search(queries, 5, exact=True).rows).all()
    store.add(model, random_sentences(100), source="a")
    caplog.clear()
    assert WordIndex.open(folder).contents.graph_rows == len(store)
    assert not caplog.records


def test_a_full_disk_is_an_error_that_names_the_file(model, tmp_path, monkeypatch):
    store = WordIndex.create(tmp_path / "store", model)

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"sentences\.jsonl"):
        store.add(model, [["a"]])
    assert len(WordIndex.open(tmp_path / "store")) == 0


# ---- asked wrongly ---------------------------------------------------------------------------------------------------


def test_another_model_is_refused_and_the_same_one_loaded_again_is_not(model, tmp_path):
    store = WordIndex.create(tmp_path / "store", model, model_name="mine")
    store.add(model, random_sentences(5))
    other = random_model(seed=1)
    with pytest.raises(ValueError, match=r"another model \(mine\): its weights have the digest"):
        store.neighbours(other, "the [bank]")
    with pytest.raises(ValueError, match="another model"):
        store.add(other, [["a"]])
    model.save_pretrained(tmp_path / "model")
    assert store.neighbours(ELMo.from_pretrained(tmp_path / "model"), "the [bank]")


def test_a_weight_that_changes_later_is_seen(tmp_path):
    model = random_model()
    store = WordIndex.create(tmp_path / "store", model)
    store.add(model, random_sentences(5))
    with torch.no_grad():
        next(model.bilm.layers[1].parameters()).view(-1)[0] += 1
    with pytest.raises(ValueError, match="another model"):
        store.neighbours(model, "the [bank]")


def test_a_weight_that_is_written_through_data_is_seen(tmp_path):
    for name, parameter in random_model().bilm.named_parameters():
        model = random_model()
        store = WordIndex.create(tmp_path / name, model)
        store.add(model, random_sentences(5))
        model.bilm.get_parameter(name).data.add_(0.01)
        with pytest.raises(ValueError, match="another model"):
            store.neighbours(model, "the [bank]")
        model.bilm.get_parameter(name).data.copy_(parameter)
        assert store.neighbours(model, "the [bank]")


def test_another_tokenizer_is_seen(tmp_path):
    model = random_model()
    store = WordIndex.create(tmp_path / "store", model)
    store.add(model, random_sentences(5))
    model.tokenizer = Tokenizer("characters")
    with pytest.raises(ValueError, match="another model"):
        store.add(model, ["the bank"])


def test_the_digests_of_a_model_that_did_not_change_are_computed_once(tmp_path, monkeypatch):
    model, calls = random_model(), []
    store = WordIndex.create(tmp_path / "store", model)
    for kind in (ELMo, WordWeights):
        digest = kind.digest
        monkeypatch.setattr(kind, "digest", lambda self, digest=digest: calls.append(digest) or digest(self))
    for _ in range(3):
        store.add(model, random_sentences(5))
        store.neighbours(model, "the [bank]")
    assert len(calls) == 2


def test_a_model_of_inference_mode_is_checked_too(model, tmp_path):
    model.save_pretrained(tmp_path / "model")
    with torch.inference_mode():
        other = ELMo.from_pretrained(tmp_path / "model")
    store = WordIndex.create(tmp_path / "store", other)
    store.add(other, random_sentences(5))
    assert store.neighbours(model, "the [bank]")


def test_other_word_weights_are_refused_where_the_vectors_depend_on_them(tmp_path):
    model = random_model()
    sense, top = (WordIndex.create(tmp_path / name, model, layer=name) for name in ("sense", "top"))
    assert (sense.settings.word_weights, top.settings.word_weights) == (model.word_weights.digest(), None)
    for created in (sense, top):
        created.add(model, random_sentences(5))
    model.word_weights = WordWeights(["the", "bank"])
    message = f"other word weights: they have the digest {sense.settings.word_weights[:12]}.* set model.word_weights"
    with pytest.raises(ValueError, match=message):
        sense.neighbours(model, "the [bank]")
    with pytest.raises(ValueError, match="other word weights"):
        WordIndex.open(tmp_path / "sense").add(model, [["a"]])
    assert top.neighbours(model, "the [bank]")
    own = random_model()
    own.word_weights = WordWeights({"the": 3, "bank": 1})
    store = WordIndex.create(tmp_path / "own", own)
    store.add(own, random_sentences(5))
    own.word_weights = WordWeights({"the": 3, "bank": 1})
    assert store.neighbours(own, "the [bank]")


def test_an_index_of_an_earlier_version_of_the_view_is_refused(tmp_path):
    model = random_model()
    for layer in ("sense", "slot"):
        WordIndex.create(tmp_path / layer, model, layer=layer).add(model, random_sentences(5))
        record = json.loads((tmp_path / layer / "index.json").read_text())
        assert record.pop("sense_version") == (SENSE_VERSION if layer == "sense" else None)
        (tmp_path / layer / "index.json").write_text(json.dumps(record))
    with pytest.raises(ValueError, match=r'an earlier version of the view "sense".*build a new index'):
        WordIndex.open(tmp_path / "sense").neighbours(model, "the [bank]")
    assert WordIndex.open(tmp_path / "slot").neighbours(model, "the [bank]")


def test_a_model_that_carries_its_state_is_refused(tmp_path):
    model = random_model(state="carry")
    with pytest.raises(ValueError, match="carries its state"):
        WordIndex.create(tmp_path / "store", model).add(model, [["a"]])


def test_vectors_that_are_not_finite_are_refused(tmp_path, monkeypatch):
    model = random_model()
    store = WordIndex.create(tmp_path / "store", model)
    monkeypatch.setattr(model, "embed", lambda tokens, layers: [np.full((len(t), 16), np.nan) for t in tokens])
    with pytest.raises(ValueError, match="vectors of 'a b' are not finite"):
        store.add(model, [["a", "b"]])
    assert len(WordIndex.open(tmp_path / "store")) == 0


def test_wrong_questions_are_refused(model, tmp_path):
    store = WordIndex.create(tmp_path / "store", model)
    with pytest.raises(ValueError, match="expected a list of sentences, got one string"):
        store.add(model, "one string")
    with pytest.raises(ValueError, match=r"sentences\[1\]"):
        store.add(model, [["a"], 3])
    with pytest.raises(ValueError, match="k must be at least 1, not 0"):
        store.neighbours(model, "the [bank]", k=0)
    with pytest.raises(ValueError, match="k must be at least 1, not 0"):
        store.search(np.ones((1, 16)), 0)
    with pytest.raises(ValueError, match="mark one word with brackets"):
        store.neighbours(model, "the bank")
    with pytest.raises(ValueError, match=r"same_word is for one token, and \['New', 'York'\] are 2"):
        store.neighbours(model, "in [New York]", same_word=True)
    with pytest.raises(ValueError, match=r"vectors must be numbers \(n, 16\), not an array of \(16,\)"):
        store.search(np.ones(16))


@pytest.mark.parametrize("layer", ["all", 3, -4, True, 1.0])
def test_a_layer_that_the_model_does_not_have_is_refused(model, tmp_path, layer):
    with pytest.raises(ValueError, match="layers must be"):
        WordIndex.create(tmp_path / "store", model, layer=layer)


@pytest.mark.parametrize(("layer", "number"), [(-1, 2), (np.int64(1), 1), (-3, 0)])
def test_a_layer_may_be_counted_from_the_top_and_be_an_integer_of_numpy(model, tmp_path, layer, number):
    sentences = random_sentences(10)
    created = WordIndex.create(tmp_path / "store", model, layer=layer)
    created.add(model, sentences)
    assert WordIndex.open(tmp_path / "store").settings.layer == number
    (query,) = model.embed([["the", "bank"]], layers=number)
    cosines = vectors_of(model, sentences, number) @ (query[1] / np.linalg.norm(query[1]))
    assert created.search(query[1:], 1).cosines == pytest.approx(cosines.max(), abs=1e-3)


def test_strings_are_cut_by_the_tokenizer_of_the_model(tmp_path):
    model = random_model(tokenizer="characters")
    created = WordIndex.create(tmp_path / "store", model)
    assert created.add(model, ["银行 在河边", "a b"]) == Added(2, 5 + 2, 0)
    (found,) = created.neighbours(model, "a [b]", k=9)
    assert found.tokens == ["银", "行", "在", "河", "边"]


def test_a_file_in_the_place_of_the_folder_is_refused(model, tmp_path):
    (tmp_path / "file").write_text("dear")
    for path in (tmp_path / "file", tmp_path / "file" / "store"):
        with pytest.raises(ValueError, match="file is a file: name a folder"):
            WordIndex.create(path, model)


def test_a_folder_that_holds_something_is_left_alone(model, tmp_path):
    WordIndex.create(tmp_path / "store", model)
    with pytest.raises(ValueError, match="an index already exists"):
        WordIndex.create(tmp_path / "store", model)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("dear")
    with pytest.raises(ValueError, match="already exists and is not an index"):
        WordIndex.create(tmp_path / "other", model)
    with pytest.raises(ValueError, match=r"no index\.json, so this is not an index"):
        WordIndex.open(tmp_path / "other")
    (tmp_path / "store" / "index.json").unlink()  # as a kill in `create` leaves it
    assert len(WordIndex.create(tmp_path / "store", model)) == 0


def test_without_usearch_the_extra_is_named(model, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "usearch.index", None)
    with pytest.raises(ImportError, match=r'pip install "elmokit\[index\]"'):
        WordIndex.create(tmp_path / "store", model)
    assert not (tmp_path / "store").exists()


# ---- the command line ------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(model, tmp_path, monkeypatch):
    """A working folder with a model and a corpus."""
    monkeypatch.chdir(tmp_path)
    model.save_pretrained("mine")
    lines = ["He sat by the bank.", "", "The play was good.", "They play ball, he said."]
    (tmp_path / "corpus.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path


def run(verb, *arguments):
    done = CliRunner().invoke(verb, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_store_is_built_added_to_and_asked_from_the_command_line(folder, model):
    assert "18 words added, 18 in 4 sentences now" in run(index_verb, "build", "corpus.txt", "--model", "mine")
    again = json.loads(run(index_verb, "build", "corpus.txt", "--json"))
    assert (again["added_words"], again["known_sentences"], again["words"]) == (0, 4, 18)
    (folder / "more.txt").write_text("a new play begins\n")
    said = run(index_verb, "add", "store", "more.txt", "corpus.txt")
    assert "4 words added, 22 in 5 sentences now; 4 sentences were there before" in said


def test_neighbours_are_printed_with_their_word_marked(folder, model):
    run(index_verb, "build", "corpus.txt", "--model", "mine", "-o", "words")
    text = run(neighbours_verb, "A [play] .", "the [bank]", "--store", "words", "-k", "2")
    lines = text.splitlines()
    assert (lines[0], lines[3], lines[4], len(lines)) == ("A [play] .", "", "the [bank]", 7)
    store = WordIndex.open("words")
    for line, found in zip(lines[1:3], store.neighbours(model, "A [play] .", k=2), strict=True):
        marked = [*found.tokens[: found.index], f"[{found.word}]", *found.tokens[found.index + 1 :]]
        assert line == f"{found.cosine:.4f}  {' '.join(marked)}"
    answer = json.loads(run(neighbours_verb, "A [play] .", "--store", "words", "--json"))
    assert [query["sentence"] for query in answer["queries"]] == ["A [play] ."]
    same = json.loads(run(neighbours_verb, "A [Play] .", "--store", "words", "--json", "--same-word"))
    assert [one["word"] for one in same["queries"][0]["neighbours"]] == ["play", "play"]
    first = answer["queries"][0]["neighbours"][0]
    assert first["tokens"][first["index"]] == first["word"]
    assert first["sentence_number"] in (0, 2, 3)


def test_info_says_what_a_store_holds(folder):
    (folder / "stop.txt").write_text("the\nof\n")
    options = ["--model", "mine", "--layer", "1", "--skip-punctuation", "--skip-words", "stop.txt"]
    run(index_verb, "build", "corpus.txt", *options)
    found = json.loads(run(index_verb, "info", "--json"))
    assert (found["words"], found["sentences"], found["layer"], found["skipped_words"]) == (12, 4, 1, 2)
    assert found["sources"] == {str((folder / "corpus.txt").resolve()): 4}
    assert found["bytes"] == sum(path.stat().st_size for path in (folder / "store").iterdir())
    assert "corpus.txt (4)" in run(index_verb, "info", "store")
    assert re.search(r"^skip_punctuation +yes$", run(index_verb, "info", "store"), re.MULTILINE)


def test_info_names_the_model_of_the_package_if_none_was_given(folder):
    WordIndex.create(folder / "store", ELMo.from_pretrained())
    assert re.search(r"^model +en$", run(index_verb, "info", "store"), re.MULTILINE)


def test_a_file_of_words_to_leave_out_that_is_not_utf8_is_named(folder):
    (folder / "stop.txt").write_bytes(b"the\ncaf\xe9\n")
    with pytest.raises(ValueError, match=r"stop\.txt: line 2 is not UTF-8"):
        run(index_verb, "build", "corpus.txt", "--model", "mine", "--skip-words", "stop.txt")
    assert not (folder / "store").exists()


def test_a_store_is_built_of_sense_vectors_and_built_on_with_the_layer_that_it_has(folder):
    for name, options in {"new": [], "old": ["--layer", "average"], "top": ["--layer", "-1"]}.items():
        run(index_verb, "build", "corpus.txt", "--model", "mine", "-o", name, *options)
    as_version_0_1(folder / "old")
    with open(folder / "corpus.txt", "a") as file:
        file.write("one more\n")
    for name, layer in (("new", "sense"), ("old", "average"), ("top", 2)):
        assert json.loads(run(index_verb, "info", name, "--json"))["layer"] == layer
        again = json.loads(run(index_verb, "build", "corpus.txt", "-o", name, "--json"))
        assert (again["added_words"], again["known_sentences"]) == (2, 4)
    with pytest.raises(ValueError, match="old was made with layer 'average', not 'sense'"):
        run(index_verb, "build", "corpus.txt", "-o", "old", "--layer", "sense")


def test_a_phrase_is_asked_for_from_the_command_line(folder, model):
    run(index_verb, "build", "corpus.txt", "--model", "mine")
    answer = json.loads(run(neighbours_verb, "He left [New York] .", "--json"))
    (query,) = answer["queries"]
    found = WordIndex.open("store").neighbours(model, "He left [New York] .")
    assert [one["cosine"] for one in query["neighbours"]] == pytest.approx([one.cosine for one in found], abs=1e-6)
    ((vector,),) = embed_spans(model, ["He left New York ."], [[(2, 4)]], layers="sense")
    cosines = vectors_of(model, ["He sat by the bank."]) @ (vector / np.linalg.norm(vector))
    assert max(one["cosine"] for one in query["neighbours"] if one["sentence_number"] == 0) == pytest.approx(
        cosines.max(), abs=1e-3
    )


def test_a_store_is_not_built_on_with_other_settings(folder):
    run(index_verb, "build", "corpus.txt", "--model", "mine")
    with pytest.raises(ValueError, match="store was made with layer 'sense', not 'top'"):
        run(index_verb, "build", "corpus.txt", "--layer", "top")
    with pytest.raises(ValueError, match=r'must be "average", "top", .* or a number from 0 to 2, not .all.'):
        run(index_verb, "build", "corpus.txt", "--layer", "all")
    with pytest.raises(ValueError, match="no such file"):
        run(index_verb, "build", "nowhere.txt")


def test_a_word_without_context_is_refused_as_a_query_and_found_by_none(model, tmp_path):
    index = WordIndex.create(tmp_path / "index", model)
    index.add(model, [["bank"], ["the", "bank", "lent", "money"], ["a", "river"]])
    with pytest.raises(ValueError, match=r"'\[bank\]' has no other word, so nothing tells what this one means"):
        index.neighbours(model, "[bank]")
    found = index.neighbours(model, "the [bank] of a river", k=3)
    assert [one.sentence_number for one in found][-1] == 0  # its cosine is zero
    assert found[-1].cosine == 0


def test_an_index_of_chinese_words_is_asked_with_raw_text(tmp_path):
    model = random_model(tokenizer="han")
    sentences = [["我", "去", "银行", "取钱"], ["河边", "有", "水"], ["他", "在", "银行", "里"], ["走"]]
    words = WordIndex.create(tmp_path / "words", model, layer="average")
    words.add(model, sentences)
    uses = words.neighbours(model, "她走进[银行]了", k=5, same_word=True)
    assert [(one.word, one.tokens) for one in sorted(uses, key=lambda one: one.sentence_number)] == [
        ("银行", sentences[0]),
        ("银行", sentences[2]),
    ]
    (query,) = embed_spans(model, ["她走进银行了"], [[(3, 5)]], layers="average")
    (vectors,) = model.embed([sentences[0]], layers="average")
    cosine = float(query[0] @ vectors[2] / np.linalg.norm(query[0]) / np.linalg.norm(vectors[2]))
    assert {round(one.cosine, 2) for one in uses if one.sentence_number == 0} == {round(cosine, 2)}
    assert all(one.tokens != sentences[0] for one in words.neighbours(model, "我去[银行]取钱", k=5))
    characters = WordIndex.create(tmp_path / "characters", model, layer="average")
    characters.add(model, ["我去银行取钱", "河边有水"])
    assert len(characters) == 10
    assert characters.neighbours(model, "他在[银行]里", k=1)
