"""Words of several tokens: a model that reads Chinese characters takes lists of Chinese words."""

import itertools

import numpy as np
import pytest
import torch

from elmokit import ELMo, embed_spans
from elmokit.config import BiLMConfig
from elmokit.inference.scores import perplexity_of
from elmokit.network import BiLM, OutputLayer
from elmokit.text import Tokenizer, Vocabulary, join_tokens

CHARACTERS = [*"的我去银行取钱河边走在苹果吃打电话了", "，", "。", "iPhone"]
WORDS = [["我", "去", "银行", "取钱", "。"], [], ["打电话", "了", "iPhone"], ["我", "走", "。"]]
VIEWS = ["average", "top", 0, 1, "all", "slot", "sense"]


@pytest.fixture(scope="module")
def elmo():
    torch.manual_seed(4)
    bilm = BiLM(BiLMConfig(filters=((1, 4), (2, 4), (3, 8)), num_highways=1, cell_dim=12, projection_dim=6))
    output_layer = OutputLayer(len(CHARACTERS) + 3, 6)
    torch.nn.init.normal_(output_layer.weight)
    vocabulary = Vocabulary(["<S>", "</S>", "<UNK>", *CHARACTERS])
    return ELMo(bilm, output_layer=output_layer, vocabulary=vocabulary, tokenizer="han").eval()


def split(words):
    """(characters, spans of the words among them), computed word by word."""
    characters, spans = [], []
    for word in words:
        own = [word] if word.isascii() else list(word)
        spans.append((len(characters), len(characters) + len(own)))
        characters += own
    return characters, spans


@pytest.mark.parametrize("layers", [0, 1, 2, "average", "top"])
def test_a_word_is_its_last_character_forward_and_its_first_backward(elmo, layers):
    half = elmo.dim // 2
    for words, vectors in zip(WORDS, elmo.embed(WORDS, layers=layers), strict=True):
        characters, spans = split(words)
        (by_character,) = elmo.embed([characters], layers=layers)
        expected = [[*by_character[end - 1][:half], *by_character[start][half:]] for start, end in spans]
        np.testing.assert_allclose(vectors, np.array(expected).reshape(len(words), elmo.dim), atol=1e-6)


@pytest.mark.parametrize("layers", ["slot", "sense"])
def test_from_outside_a_word_of_a_list_is_the_span_of_its_characters(elmo, layers):
    lists = [words for words in WORDS if words]
    by_word = elmo.embed(lists, layers=layers)
    texts, spans = zip(*map(split, lists), strict=True)
    for words, spanned in zip(by_word, embed_spans(elmo, texts, spans, layers=layers), strict=True):
        np.testing.assert_allclose(words, spanned, atol=1e-5)


def test_words_and_characters_may_be_mixed_in_one_call(elmo):
    together = elmo.embed([*WORDS, "我去银行取钱。"])
    for one, words in zip(together, [*WORDS, "我去银行取钱。"], strict=True):
        np.testing.assert_allclose(one, elmo.embed([words])[0], atol=1e-6)


def test_characters_of_a_list_are_read_as_those_of_a_string(elmo):
    np.testing.assert_array_equal(elmo.embed(["我去银行。"])[0], elmo.embed([[*"我去银行。"]])[0])


@pytest.mark.parametrize("layers", VIEWS)
def test_a_word_of_a_list_is_the_span_of_that_word(elmo, layers):
    lists = [words for words in WORDS if words]
    spans = [[(place, place + 1) for place in range(len(words))] for words in lists]
    for words, spanned in zip(
        elmo.embed(lists, layers=layers), embed_spans(elmo, lists, spans, layers=layers), strict=True
    ):
        np.testing.assert_allclose(words, spanned, atol=1e-5)


def test_spans_of_a_list_count_its_words(elmo):
    (of_words,) = embed_spans(elmo, [WORDS[0]], [[(2, 4), (0, 1)]])
    (words,) = elmo.embed([WORDS[0]])
    np.testing.assert_allclose(of_words, [words[2:4].mean(axis=0), words[0]], atol=1e-6)
    (ends,) = embed_spans(elmo, [WORDS[0]], [[(1, 4)]], how="ends")
    np.testing.assert_allclose(ends[0], np.concatenate([words[1], words[3]]), atol=1e-6)


def test_spans_of_raw_text_count_its_characters(elmo):
    text = "我 去\n银行 取钱。"
    (of_text,) = embed_spans(elmo, [text], [[(text.index("银"), text.index("行") + 1)]], unit="characters")
    (of_list,) = embed_spans(elmo, [[*"我去银行取钱。"]], [[(2, 4)]])
    np.testing.assert_allclose(of_text, of_list, atol=1e-6)


def test_a_sentence_of_words_is_the_mean_of_its_words(elmo):
    np.testing.assert_allclose(elmo.encode([WORDS[0]])[0], elmo.embed([WORDS[0]])[0].mean(axis=0), atol=1e-6)


def test_similarity_finds_a_word_of_several_characters(elmo):
    first, second = "我去银行取钱。", "他在银行。"
    expected = embed_spans(elmo, [first, second], [[(2, 4)], [(2, 4)]], layers="sense")
    a, b = (vectors[0] for vectors in expected)
    cosine = float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
    assert elmo.similarity(first, second, word="银行") == pytest.approx(cosine, abs=1e-5)
    lists = ["我", "去", "银行", "取钱", "。"], ["他", "在", "银行", "。"]
    assert elmo.similarity(*lists, word="银行") == pytest.approx(cosine, abs=1e-5)


def test_senses_of_a_word_of_several_characters(elmo):
    found = elmo.senses("银行", ["我去银行取钱。", "河边走。", ["在", "银行", "，", "银行"], "银河行"])
    places = [(one.sentence, one.start, one.end) for one in found.occurrences]
    assert places == [(0, 2, 4), (2, 1, 2), (2, 3, 4)]
    assert str(found.occurrences[0]) == "我去[银行]取钱。"
    labels = [label for sense in found.senses for label in sense.substitutes]
    assert labels
    assert all(len(Tokenizer("han")(label)) == 2 and label != "银行" for label in labels)


def test_log_probabilities_of_words_are_sums_over_their_characters(elmo):
    characters, spans = split(WORDS[0])
    (by_character,) = elmo.log_probs([characters])
    (by_word,) = elmo.log_probs([WORDS[0]])
    assert by_word.tokens == WORDS[0]
    for name in ("forward", "backward"):
        expected = [getattr(by_character, name)[start:end].sum() for start, end in spans]
        np.testing.assert_allclose(getattr(by_word, name), expected, atol=1e-6)
    assert by_word.forward_end == pytest.approx(by_character.forward_end, abs=1e-6)
    assert elmo.log_probs([["我", "龘行"]])[0].unknown.tolist() == [False, True]


def test_perplexity_is_per_character_however_characters_are_grouped(elmo):
    characters, _ = split(WORDS[0])
    by_word, by_character = elmo.perplexity([WORDS[0]]), elmo.perplexity([characters])
    assert by_word.both == pytest.approx(by_character.both, rel=1e-6)
    assert by_word.num_tokens == by_character.num_tokens == len(characters) + 1
    unknown = perplexity_of(elmo.log_probs([["我", "龘行", "走"]]))
    assert unknown.num_unknown == 2  # the characters of a word with an unknown one


def test_substitutes_of_a_word_of_two_characters_are_the_best_of_all_pairs(elmo):
    left, right = [*"我去"], [*"取钱。"]
    letters = [word for word in CHARACTERS if word.isalnum()]
    prior = {word: np.log(np.log1p(1 / (4 + rank))) for rank, word in enumerate(CHARACTERS)}
    scores = {}
    for pair in itertools.product(letters, letters):
        whole, bare = elmo.log_probs([[*left, *pair, *right], list(pair)])
        of_pair = (prior[pair[0]] + bare.forward[1] + prior[pair[1]] + bare.backward[0]) / 2
        scores[pair] = whole.forward[2:4].sum() + whole.backward[2:4].sum() - of_pair
    best = max((pair for pair in scores if pair != ("银", "行")), key=lambda pair: scores[pair])
    found = elmo.substitutes("我去[银行]取钱。", k=5, num_read=0)
    assert found[0].word == join_tokens(best)
    assert [one.log_prob for one in found] == sorted((one.log_prob for one in found), reverse=True)
    assert all(len(Tokenizer("han")(one.word)) == 2 and one.word != "银行" for one in found)
    assert elmo.substitutes(["我", "去", "银行", "取钱", "。"], position=2, k=5, num_read=0) == found
    assert elmo.substitutes("我去[__]取钱。", k=1, num_read=0)[0].word in (found[0].word, "银行")


@pytest.mark.parametrize("keep_word", [False, True])
def test_words_of_two_characters_that_are_read_share_their_mass_by_the_sentence_with_each(elmo, keep_word):
    def find(**settings):
        found = elmo.substitutes("我去[银行]取钱。", k=10_000, keep_word=keep_word, **settings)
        return {one.word: one.log_prob for one in found}

    by_sides = find(num_read=0)
    read = [word for place, word in enumerate(by_sides) if place < 6 or word == "银行"]
    scored = elmo.log_probs([["我", "去", *Tokenizer("han")(word), "取", "钱", "。"] for word in read])
    of_sentences = np.array([(s.forward.sum() + s.forward_end + s.backward.sum() + s.backward_end) / 2 for s in scored])
    mass = np.logaddexp.reduce([by_sides[word] for word in read]) - np.logaddexp.reduce(of_sentences)
    expected = by_sides | dict(zip(read, of_sentences + mass, strict=True))
    found = find(num_read=6)
    assert list(found) == sorted(expected, key=expected.get, reverse=True)
    assert found == pytest.approx(expected, abs=1e-3)


def test_substitutes_of_several_characters_can_keep_the_word_that_is_there(elmo):
    kept = elmo.substitutes("我去[银行]取钱。", k=10_000, keep_word=True)
    assert "银行" in [one.word for one in kept]
    assert sum(np.exp(one.log_prob) for one in kept) == pytest.approx(1)
    few = elmo.substitutes("我去[银行]取钱。", k=1, keep_word=True)
    assert few == ([kept[0]] if kept[0].word == "银行" else [kept[0], *(one for one in kept if one.word == "银行")])
    assert "龘行" not in [one.word for one in elmo.substitutes("我去[龘行]取钱。", k=10_000, keep_word=True)]


def test_substitutes_of_one_character(elmo):
    for blank in ("我[]银行", "我[去]银行"):
        assert len(elmo.substitutes(blank, k=3)[0].word) in (1, 6)
    by_word = elmo.substitutes(["我", "去", "银行"], position=1, k=3)
    assert by_word == elmo.substitutes([*"我去银行"], position=1, k=3)


def test_a_blank_that_is_too_long_is_refused(elmo):
    with pytest.raises(ValueError, match="the blank has 9 tokens: words of at most 8 tokens"):
        elmo.substitutes("我[一二三四五六七八九]去")


@pytest.mark.parametrize(
    "text",
    [
        "ＡＢＣ１２３，真的！",
        "ﾊﾝｶｸと全角",
        "开心😀了👨‍👩‍👧❤️",
        "我love你москва한국어ไทย",
        "𠮷野家的𪚥龘",
        "第一行\n第二行\r\n\t第三行",
        "銀行與银行",
        "\u200b\ufeff你\u202e好",
        "。。。，，，！！！",
        "\ud800坏",
        "好" * 3000,
        "x" * 3000,
    ],
)
def test_hostile_text_has_one_finite_vector_per_token(elmo, text):
    (vectors,) = elmo.embed([text])
    tokens = elmo.tokenizer.with_offsets(text)
    assert vectors.shape == (len(tokens), elmo.dim)
    assert np.isfinite(vectors).all()
    assert all(text[token.start : token.end] == token.text for token in tokens)
    assert np.isfinite(elmo.log_probs([text])[0].forward).all()
