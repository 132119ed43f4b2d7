"""Streams: batches are those of the definition, over epochs, processes and positions."""

import json
import os
import random
from collections import Counter
from dataclasses import asdict
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from tiny_corpora import FIELDS, cut_to_48_bytes, make_corpus, make_documents, read_back, spelled

from elmokit.corpus import (
    StreamPosition,
    Streams,
    build_vocabulary,
    evaluation_batches,
    prepare,
)
from elmokit.text import tokenize


def pairs_of(document):
    """The (forward input, forward target) and (backward input, backward target) of a document, in the text's order."""
    forward, backward = [], []
    for sentence in document:
        inputs, targets = ["<S>", *sentence], [*sentence, "</S>"]
        forward += zip(inputs, targets, strict=True)
        inputs, targets = ["</S>", *reversed(sentence)], [*reversed(sentence), "<S>"]
        backward += reversed(list(zip(inputs, targets, strict=True)))
    return forward, backward


def expected_rows(documents, rows, seed, num_epochs, shuffle=True):
    """What each row of the two streams reads in whole epochs, as lists of (input word, target word)."""
    forward_rows, backward_rows = [[] for _ in range(rows)], [[] for _ in range(rows)]
    for epoch in range(num_epochs):
        order = list(range(len(documents)))
        if shuffle:
            draws = np.random.PCG64([seed, epoch]).random_raw(len(documents)).tolist()
            order.sort(key=draws.__getitem__)
        forward = [pair for d in order for pair in pairs_of(documents[d])[0]]
        backward = [pair for d in order for pair in pairs_of(documents[d])[1]]
        for row in range(rows):
            run = slice(row * len(forward) // rows, (row + 1) * len(forward) // rows)
            forward_rows[row] += forward[run]
            backward_rows[row] += reversed(backward[run])
    return forward_rows, backward_rows


def words_read(corpus, vocabulary, batches):
    """What the rows of batches hold, in the form of `expected_rows`."""
    words = [spelled(row) for row in corpus.forms]
    rows = []
    for direction in ["forward", "backward"]:
        inputs = np.concatenate([getattr(batch, f"{direction}_inputs") for batch in batches], axis=1)
        targets = np.concatenate([getattr(batch, f"{direction}_targets") for batch in batches], axis=1)
        rows.append(
            [
                [(words[form], vocabulary.words[target]) for form, target in zip(*row, strict=True)]
                for row in zip(inputs.tolist(), targets.tolist(), strict=True)
            ]
        )
    return rows


def with_unk(rows, vocabulary):
    return [[(word, target if target in vocabulary else "<UNK>") for word, target in row] for row in rows]


def assert_same_batches(some, others):
    for one, other in zip(some, others, strict=True):
        for field in FIELDS:
            assert np.array_equal(getattr(one, field), getattr(other, field)), field


@pytest.mark.parametrize(
    ("rows", "unroll", "num_documents"),
    [(1, 1, 3), (1, 5, 1), (3, 4, 12), (7, 20, 30), (16, 3, 12), (50, 20, 12), (2, 900, 2)],
)
@pytest.mark.parametrize("shuffle", [True, False])
def test_the_streams_are_those_of_the_definition_over_several_epochs(tmp_path, rows, unroll, num_documents, shuffle):
    documents = cut_to_48_bytes(make_documents(rows, num_documents))
    corpus, vocabulary = make_corpus(tmp_path, documents)
    streams = Streams(corpus, batch_size=rows, unroll=unroll, seed=11, shuffle=shuffle)
    num_steps = 3 * streams.tokens_per_epoch // (rows * unroll) + 2
    num_epochs = num_steps * unroll // (streams.tokens_per_epoch // rows) + 1
    batches = [streams.next() for _ in range(num_steps)]
    for batch in batches:
        for field in FIELDS:
            array = getattr(batch, field)
            assert (array.shape, array.dtype, array.flags.c_contiguous) == ((rows, unroll), np.int32, True)
    for read, expected in zip(
        words_read(corpus, vocabulary, batches), expected_rows(documents, rows, 11, num_epochs, shuffle), strict=True
    ):
        assert read == [row[: num_steps * unroll] for row in with_unk(expected, vocabulary)]


def test_a_sentence_is_read_forward_after_its_start_and_backward_after_its_end(tmp_path):
    corpus, vocabulary = make_corpus(tmp_path, [[["a", "b"], ["c"]]])
    streams = Streams(corpus, batch_size=1, unroll=5, seed=0)
    forward, backward = words_read(corpus, vocabulary, [streams.next()])
    assert forward == [[("<S>", "a"), ("a", "b"), ("b", "</S>"), ("<S>", "c"), ("c", "</S>")]]
    assert backward == [[("</S>", "c"), ("c", "<S>"), ("</S>", "b"), ("b", "a"), ("a", "<S>")]]


def test_every_pair_comes_once_per_epoch_and_the_order_changes_from_epoch_to_epoch(tmp_path):
    documents = cut_to_48_bytes(make_documents(12, 40))
    corpus, vocabulary = make_corpus(tmp_path, documents, size=None)
    streams = Streams(corpus, batch_size=1, unroll=1, seed=3)
    expected = [Counter(pair for d in documents for pair in pairs_of(d)[direction]) for direction in (0, 1)]
    seen = []
    for _ in range(3):
        batches = [streams.next() for _ in range(streams.tokens_per_epoch)]
        rows = words_read(corpus, vocabulary, batches)
        assert [Counter(row) for (row,) in rows] == expected
        seen.append(rows)
    assert seen[0] != seen[1] != seen[2] != seen[0]
    assert streams.tokens_per_epoch == corpus.num_tokens + corpus.num_sentences == expected[0].total()
    assert streams.state.epoch == 3


def test_another_seed_gives_another_order_and_the_same_seed_the_same(tmp_path):
    corpus, _ = make_corpus(tmp_path, make_documents(13, 30))
    first, same, other = (
        [streams.next() for _ in range(10)]
        for streams in [Streams(corpus, batch_size=4, unroll=5, seed=seed) for seed in [1, 1, 2]]
    )
    assert_same_batches(first, same)
    assert any(not np.array_equal(a.forward_inputs, b.forward_inputs) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("world_size", [2, 3])
def test_processes_share_the_rows_that_one_process_would_have(tmp_path, world_size):
    corpus, _ = make_corpus(tmp_path, make_documents(14, 30))
    single = Streams(corpus, batch_size=6, unroll=7, seed=5)
    ranks = [
        Streams(corpus, batch_size=6 // world_size, unroll=7, seed=5, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]
    for _ in range(3 * corpus.num_pairs // 42):
        whole, parts = single.next(), [streams.next() for streams in ranks]
        for field in FIELDS:
            assert np.array_equal(getattr(whole, field), np.concatenate([getattr(part, field) for part in parts]))
        assert {streams.state for streams in ranks} == {single.state}


@pytest.mark.parametrize("chunk_pairs", [1, 100, 1 << 20])
def test_streams_continue_from_any_position_bit_by_bit(tmp_path, monkeypatch, chunk_pairs):
    monkeypatch.setattr("elmokit.corpus.streams.CHUNK_PAIRS", chunk_pairs)
    corpus, _ = make_corpus(tmp_path, make_documents(15, 30))
    streams = Streams(corpus, batch_size=5, unroll=4, seed=6)
    positions, batches = [], []
    for _ in range(4 * corpus.num_pairs // 20):
        positions.append(streams.state)
        batches.append(streams.next())
    draw = random.Random(7)
    fresh = Streams(corpus, batch_size=5, unroll=4, seed=6)
    for step in [0, *draw.sample(range(len(batches) - 5), 12)]:
        written = json.dumps(asdict(positions[step]))
        for restored in [streams, fresh]:
            restored.restore(StreamPosition(**json.loads(written)))
            assert restored.state == positions[step]
            assert_same_batches([restored.next() for _ in range(5)], batches[step : step + 5])


def test_a_position_of_other_streams_is_refused(tmp_path):
    corpus, _ = make_corpus(tmp_path, make_documents(16, 30))
    streams = Streams(corpus, batch_size=4, unroll=5, seed=1)
    before = streams.state
    for changed in [{"batch_size": 5}, {"unroll": 4}, {"seed": 2}]:
        other = Streams(corpus, **{"batch_size": 4, "unroll": 5, "seed": 1, **changed})
        other.next()
        with pytest.raises(ValueError, match=r"a position in other streams"):
            streams.restore(other.state)
    assert streams.state == before


def test_bad_stream_settings_are_errors_that_name_them(tmp_path):
    corpus, _ = make_corpus(tmp_path, [[["a", "b"]]])
    settings = {"batch_size": 1, "unroll": 1, "seed": 0}
    bad = [{"batch_size": 0}, {"unroll": 0}, {"seed": -1}, {"rank": 1}, {"world_size": 0}]
    for change in bad:
        ((name, value),) = change.items()
        with pytest.raises(ValueError, match=f"{name}={value}"):
            Streams(corpus, **{**settings, **change})
    with pytest.raises(ValueError, match="has 3 tokens for the 4 rows of a batch"):
        Streams(corpus, **{**settings, "batch_size": 4})
    with pytest.raises(ValueError, match="unroll=0"):
        next(evaluation_batches(corpus, batch_size=1, unroll=0))


@pytest.mark.parametrize(("rows", "unroll"), [(1, 1), (1, 1000), (4, 7), (16, 20), (200, 3)])
def test_evaluation_reads_every_pair_once_in_rows_of_complete_sentences(tmp_path, rows, unroll):
    documents = cut_to_48_bytes(make_documents(17, 20))
    corpus, vocabulary = make_corpus(tmp_path, documents)
    batches = list(evaluation_batches(corpus, batch_size=rows, unroll=unroll))
    weights = np.concatenate([batch.weights for batch in batches], axis=1)
    assert weights.dtype == np.float32
    assert weights.shape == (rows, len(batches) * unroll)
    assert set(weights.ravel().tolist()) <= {0.0, 1.0}
    lengths = weights.sum(axis=1).astype(int)
    assert (np.diff(weights, axis=1) <= 0).all(), "a row is padded at its end only"
    longest_sentence = max(len(sentence) + 1 for document in documents for sentence in document)
    assert (lengths <= corpus.num_pairs // rows + 1 + longest_sentence).all()
    forward, backward = (
        [row[:length] for row, length in zip(read, lengths, strict=True)]
        for read in words_read(corpus, vocabulary, batches)
    )
    for row in forward:
        assert not row or (row[0][0], row[-1][1]) == ("<S>", "</S>")
    expected = [[pair for document in documents for pair in pairs_of(document)[direction]] for direction in (0, 1)]
    expected_forward, expected_backward = with_unk(expected, vocabulary)
    assert [pair for row in forward for pair in row] == expected_forward
    assert [pair for row in backward for pair in reversed(row)] == expected_backward


def test_the_shared_text_becomes_a_vocabulary_a_corpus_and_streams(tmp_path):
    source = (
        Path(os.environ.get("ELMOKIT_SHARED", Path(__file__).resolve().parents[3] / "shared"))
        / "data/pretrain/heldout-wiki.txt"
    )
    if not source.exists():
        pytest.skip(f"needs {source}")
    with open(source, encoding="utf-8") as file:
        lines = list(islice(file, 1500))
    (tmp_path / "part.txt").write_text("".join(lines), encoding="utf-8")
    vocabulary = build_vocabulary(tmp_path / "part.txt", min_count=2)
    corpus = prepare(tmp_path / "part.txt", tmp_path / "corpus", vocabulary=vocabulary)
    sentences = [tokenize(line.rstrip("\n")) for line in lines]
    assert [sentence for document in read_back(corpus) for sentence in document] == [s for s in sentences if s]
    assert corpus.num_documents == sum(
        bool(s) and not before for before, s in zip([[], *sentences[:-1]], sentences, strict=True)
    )
    streams = Streams(corpus, batch_size=8, unroll=20, seed=1)
    num_unknown = sum((streams.next().forward_targets == vocabulary.unk_id).sum() for _ in range(20))
    assert 0 < num_unknown < 0.5 * 20 * 160
