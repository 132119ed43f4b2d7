"""Scores of text equal those of the float64 reference, however the text is batched."""

import math
from collections import Counter

import numpy as np
import pytest
import torch

import reference
from elmokit.corpus import Corpus, heldout, prepare
from elmokit.corpus.heldout import heldout_perplexity, unigram_perplexity
from elmokit.inference.runner import Runner
from elmokit.inference.scores import REACH, Scorer, perplexity_of
from elmokit.network import BiLM, OutputLayer
from elmokit.storage.official import read_official
from elmokit.text import TREEBANK, Vocabulary, make_word_ids

WORDS = ["<S>", "</S>", "<UNK>", "the", "bank", "of", "river", "lent", "money", "sat", "by", "."]
SENTENCES = [
    ["the", "bank", "lent", "money", "."],
    ["unheard", "of"],
    [],
    ["she", "sat", "by", "the", "bank", "of", "the", "river", "."],
    ["money"],
]


class Case:
    """A tiny language model, for the package and for the reference."""

    def __init__(self, official_model, **variant):
        self.official = official_model(seed=3, num_words=len(WORDS), **variant)
        if self.official.vocabulary is not None:
            self.official = self.official._replace(vocabulary=WORDS)
        rng = np.random.default_rng(5)
        config, weights = read_official(self.official.options_path, self.official.weights_path)
        self.bilm = BiLM(config)
        self.bilm.load_weights(weights)
        self.weight = rng.standard_normal((len(WORDS), config.projection_dim)).astype(np.float32)
        self.bias = rng.standard_normal(len(WORDS)).astype(np.float32)
        self.output = OutputLayer(len(WORDS), config.projection_dim)
        self.output.load_state_dict({"weight": torch.from_numpy(self.weight), "bias": torch.from_numpy(self.bias)})
        self.vocabulary = Vocabulary(WORDS)
        self.scorer = self.make_scorer(self.output, self.vocabulary)

    def make_scorer(self, output, vocabulary):
        runner = Runner(make_word_ids(self.bilm.config, vocabulary), TREEBANK, "stateless")
        return Scorer(runner, self.bilm, output, vocabulary)

    def expected(self, sentences, *, carry=False):
        options, arrays = self.official.options, self.official.arrays
        return reference.log_probs(options, arrays, sentences, self.weight, self.bias, WORDS, carry=carry)


@pytest.fixture(params=[{}, {"skip": False, "layers": 1}, {"word_level": True}], ids=["characters", "plain", "words"])
def case(request, official_model):
    return Case(official_model, **request.param)


@pytest.fixture
def corpus(tmp_path):
    return make_corpus(tmp_path, [s for s in SENTENCES if s])


def make_corpus(folder, sentences, name="corpus") -> Corpus:
    text = folder / f"{name}.txt"
    text.write_text("".join(" ".join(sentence) + "\n" for sentence in sentences), encoding="utf-8")
    return prepare(text, folder / name, vocabulary=Vocabulary(WORDS), tokenized=True)


def test_log_probabilities_are_those_of_the_reference(case):
    for found, expected in zip(case.scorer.log_probs(SENTENCES), case.expected(SENTENCES), strict=True):
        np.testing.assert_allclose([*found.forward, found.forward_end], expected.forward, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose([found.backward_end, *found.backward], expected.backward, rtol=1e-4, atol=1e-5)


def test_results_keep_the_order_of_the_sentences_and_do_not_depend_on_the_batches(case):
    alone = case.scorer.log_probs(SENTENCES, batch_tokens=1)
    together = case.scorer.log_probs(SENTENCES, batch_tokens=10**6)
    assert [scores.tokens for scores in alone] == SENTENCES
    for one, other in zip(alone, together, strict=True):
        assert one.tokens == other.tokens
        np.testing.assert_allclose(one.forward, other.forward, atol=1e-5)
        np.testing.assert_allclose(one.backward, other.backward, atol=1e-5)


def test_perplexity_counts_every_word_and_one_boundary_a_sentence(case):
    found = perplexity_of(case.scorer.log_probs(SENTENCES))
    expected = case.expected(SENTENCES)
    assert found.num_tokens == sum(len(sentence) + 1 for sentence in SENTENCES)
    assert found.both == pytest.approx(reference.perplexity(expected), rel=1e-4)
    assert found.forward == pytest.approx(np.exp(-np.concatenate([e.forward for e in expected]).mean()), rel=1e-4)
    assert found.both == pytest.approx(math.sqrt(found.forward * found.backward))


def known_perplexity(sentences, expected):
    """exp of the mean loss over both directions, of boundaries and of words in WORDS: counted one by one."""
    losses = []
    for sentence, scores in zip(sentences, expected, strict=True):
        targets = (
            zip([*sentence, "</S>"], scores.forward, strict=True),
            zip(["<S>", *sentence], scores.backward, strict=True),
        )
        losses += [-log_prob for pairs in targets for word, log_prob in pairs if word in WORDS]
    return math.exp(sum(losses) / len(losses))


def test_tokens_outside_the_vocabulary_are_marked(case):
    found = case.scorer.log_probs([*SENTENCES, ["<UNK>", "bank"]])
    marked = [[token for token, is_unknown in zip(s.tokens, s.unknown, strict=True) if is_unknown] for s in found]
    assert marked == [[], ["unheard"], [], ["she"], [], ["<UNK>"]]
    for scores in found:
        assert (scores.unknown.dtype, scores.unknown.shape) == (np.bool_, scores.forward.shape)


def test_perplexity_is_measured_without_unknown_tokens_too(case):
    found = perplexity_of(case.scorer.log_probs(SENTENCES))
    assert found.num_unknown == 2
    assert found.known == pytest.approx(known_perplexity(SENTENCES, case.expected(SENTENCES)), rel=1e-4)
    assert abs(found.known / found.both - 1) > 1e-3


def test_without_unknown_tokens_both_perplexities_are_the_same_number(case, tmp_path):
    sentences = [SENTENCES[0], SENTENCES[4]]
    found = perplexity_of(case.scorer.log_probs(sentences))
    assert (found.num_unknown, found.known) == (0, found.both)
    corpus = make_corpus(tmp_path, sentences)
    found = heldout_perplexity(case.bilm, case.output, corpus, unk_id=case.vocabulary.unk_id)
    assert (found.num_unknown, found.known) == (0, found.both)


def test_a_sentence_of_unknown_tokens_has_the_perplexity_of_its_boundaries(case):
    (scores,) = case.scorer.log_probs([["she", "unheard"]])
    found = perplexity_of([scores])
    assert found.num_unknown == 2
    assert found.known == pytest.approx(math.exp(-(scores.forward_end + scores.backward_end) / 2))


def test_no_sentences_give_no_scores_and_no_perplexity(case):
    assert case.scorer.log_probs([]) == []
    with pytest.raises(ValueError, match="no sentences"):
        perplexity_of([])


@pytest.mark.parametrize(("unroll", "known_forms"), [(1, 65536), (3, 65536), (3, 2), (50, 65536)])
def test_heldout_perplexity_carries_the_state_through_the_text(case, corpus, unroll, known_forms, monkeypatch):
    monkeypatch.setattr(heldout, "KNOWN_FORMS", known_forms)
    sentences = [s for s in SENTENCES if s]
    found = heldout_perplexity(case.bilm, case.output, corpus, batch_size=1, unroll=unroll)
    forward = np.concatenate([scores.forward for scores in case.expected(sentences, carry=True)])
    # the backward stream reads the last sentence first
    backward = np.concatenate([scores.backward for scores in case.expected(sentences[::-1], carry=True)])
    assert found.num_tokens == len(forward) == corpus.num_pairs
    assert found.forward == pytest.approx(np.exp(-forward.mean()), rel=1e-4)
    assert found.backward == pytest.approx(np.exp(-backward.mean()), rel=1e-4)


@pytest.mark.parametrize(("batch_size", "unroll"), [(1, 3), (1, 50), (3, 4)])
def test_heldout_perplexity_counts_unknown_tokens_if_it_is_told_their_id(case, corpus, batch_size, unroll):
    found = heldout_perplexity(
        case.bilm, case.output, corpus, batch_size=batch_size, unroll=unroll, unk_id=case.vocabulary.unk_id
    )
    plain = heldout_perplexity(case.bilm, case.output, corpus, batch_size=batch_size, unroll=unroll)
    assert (plain.num_unknown, plain.known) == (None, None)
    assert found.num_unknown == 2
    assert (found.forward, found.backward, found.both, found.num_tokens) == (
        plain.forward,
        plain.backward,
        plain.both,
        plain.num_tokens,
    )
    if batch_size == 1:
        sentences = [s for s in SENTENCES if s]
        forward = case.expected(sentences, carry=True)
        backward = case.expected(sentences[::-1], carry=True)[::-1]
        both = [ahead._replace(backward=back.backward) for ahead, back in zip(forward, backward, strict=True)]
        assert found.known == pytest.approx(known_perplexity(sentences, both), rel=1e-4)


def test_heldout_runs_side_by_side_each_count_once(case, tmp_path):
    corpus = make_corpus(tmp_path, [SENTENCES[0], SENTENCES[0], SENTENCES[0]])
    # three rows of one sentence each: no state is carried, and a batch_size that is too large is not an error
    found = heldout_perplexity(case.bilm, case.output, corpus, batch_size=100, unroll=4)
    assert found.num_tokens == corpus.num_pairs
    assert found.both == pytest.approx(perplexity_of(case.scorer.log_probs(SENTENCES[:1])).both, rel=1e-4)


def test_heldout_perplexity_refuses_a_corpus_of_a_larger_vocabulary(case, corpus):
    with pytest.raises(ValueError, match="prepare the text with the vocabulary of the model"):
        heldout_perplexity(case.bilm, OutputLayer(5, case.output.weight.shape[1]), corpus)


def test_unigram_perplexity_is_that_of_counted_words(tmp_path):
    train, heldout = make_corpus(tmp_path, SENTENCES[3:], "train"), make_corpus(tmp_path, SENTENCES[:2], "heldout")

    def words(sentences):
        return [word if word in WORDS else "<UNK>" for sentence in sentences for word in [*sentence, "</S>"]]

    counts = Counter(words(SENTENCES[3:]))
    total = counts.total() + len(WORDS)
    logs = [math.log((counts[word] + 1) / total) for word in words(SENTENCES[:2])]
    assert unigram_perplexity(train, heldout, len(WORDS)) == pytest.approx(math.exp(-sum(logs) / len(logs)))


def test_substitutes_weigh_left_and_right_context_against_frequency(case):
    tokens, position = SENTENCES[3], 4  # she sat by the [bank] ...
    scores = {}
    for rank, word in enumerate(WORDS[3:], 3):
        (found,) = case.expected([[*tokens[:position], word, *tokens[position + 1 :]]])
        prior = math.log(math.log((rank + 2) / (rank + 1)))
        scores[word] = found.forward[position] + found.backward[position + 1] - prior
    total = math.log(sum(map(math.exp, scores.values())))
    expected = sorted(((word, score - total) for word, score in scores.items()), key=lambda pair: -pair[1])

    found = case.scorer.substitutes(tokens, position, 100, keep_word=True, num_read=0)
    assert [substitute.word for substitute in found] == [word for word, _ in expected]
    np.testing.assert_allclose([s.log_prob for s in found], [score for _, score in expected], rtol=1e-3, atol=1e-4)
    least = min(scores, key=scores.get)
    changed = [*tokens[:position], least, *tokens[position + 1 :]]
    kept = case.scorer.substitutes(changed, position, 2, keep_word=True, num_read=0)
    assert [s.word for s in kept] == [expected[0][0], expected[1][0], least]
    np.testing.assert_allclose(kept[2].log_prob, scores[least] - total, rtol=1e-3, atol=1e-4)
    others = [s.word for s in case.scorer.substitutes(tokens, position, 4, num_read=0)]
    assert others == [word for word, _ in expected if word != "bank"][:4]


def test_the_words_that_are_read_share_their_mass_by_the_probability_of_the_sentence_with_each(case):
    tokens, position, num_read = SENTENCES[3], 4, 5
    by_sides = {s.word: s.log_prob for s in case.scorer.substitutes(tokens, position, 100, keep_word=True, num_read=0)}
    read = list(by_sides)[:num_read]
    least = list(by_sides)[-1]
    changed = [*tokens[:position], least, *tokens[position + 1 :]]  # it is read too where it is kept
    for sentence, words in ((tokens, read), (changed, [*read, least])):
        scored = case.expected([[*tokens[:position], word, *tokens[position + 1 :]] for word in words])
        of_sentences = np.array([(one.forward.sum() + one.backward.sum()) / 2 for one in scored])
        mass = np.logaddexp.reduce([by_sides[word] for word in words])
        expected = by_sides | dict(zip(words, of_sentences - np.logaddexp.reduce(of_sentences) + mass, strict=True))

        found = case.scorer.substitutes(sentence, position, 100, keep_word=True, num_read=num_read)
        assert [s.word for s in found] == sorted(expected, key=expected.get, reverse=True)
        np.testing.assert_allclose(
            [s.log_prob for s in found], sorted(expected.values(), reverse=True), rtol=1e-3, atol=1e-3
        )


def test_words_are_read_with_a_limited_number_of_tokens_on_each_side(case):
    near = [*["the", "river"] * (REACH // 2), "bank", *["of", "the"] * (REACH // 2)]
    expected = case.scorer.substitutes(near, REACH, 100, keep_word=True, num_read=100)  # all words are read
    found = case.scorer.substitutes(["money", *near, "sat", "."], REACH + 1, 100, keep_word=True, num_read=100)
    assert [s.word for s in found] == [s.word for s in expected]
    np.testing.assert_allclose([s.log_prob for s in found], [s.log_prob for s in expected], atol=1e-5)
    assert len(found) == len(WORDS) - 3  # without the special words


def test_a_word_outside_the_vocabulary_has_substitutes_too(case):
    found = case.scorer.substitutes(["she", "sat"], 0, 3)
    assert len(found) == 3
    assert not {"<S>", "</S>", "<UNK>"} & {substitute.word for substitute in found}


@pytest.mark.parametrize(
    ("position", "k", "num_read", "message"),
    [(2, 1, 1, "tokens 0 to 1"), (-1, 1, 1, "position"), (0, 0, 1, "k is 0"), (0, 1, -1, "num_read is -1")],
)
def test_substitutes_refuse_a_place_outside_the_sentence(case, position, k, num_read, message):
    with pytest.raises(ValueError, match=message):
        case.scorer.substitutes(["she", "sat"], position, k, num_read=num_read)


def test_a_vocabulary_that_is_not_the_models_is_refused(official_model):
    larger = Vocabulary([*WORDS, "more"])
    case = Case(official_model)
    with pytest.raises(ValueError, match="has 13 words, the softmax 12"):
        case.make_scorer(case.output, larger)
    words = Case(official_model, word_level=True)
    with pytest.raises(ValueError, match="12 words needs its vocabulary: this one has 13 words"):
        words.make_scorer(OutputLayer(13, words.output.weight.shape[1]), larger)


def test_batch_tokens_must_be_positive(case):
    with pytest.raises(ValueError, match="batch_tokens must be at least 1, not 0"):
        case.scorer.log_probs(SENTENCES, batch_tokens=0)


def test_a_hopeless_model_has_infinite_perplexity_and_no_overflow(case):
    case.output.bias.data[4] = 1e5
    assert perplexity_of(case.scorer.log_probs([["money"]])).forward == math.inf
