"""What the layers know: a probe gives what brute force gives, chooses nothing on test data, goes on when stopped."""

import dataclasses
import gzip
import json
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from elmokit.cli import probe as cli_probe
from elmokit.cli.probe import probe
from elmokit.datasets import (
    SenseInstance,
    SenseSentence,
    TaggedSentence,
    WordInContext,
    WordPair,
    read_conllu,
    read_sense_index,
    read_wsd,
)
from elmokit.inference.vectors import unit
from elmokit.model import ELMo
from elmokit.network import OutputLayer
from elmokit.probes import (
    PROBES,
    SENSE_TRIPLES,
    SenseTriple,
    TaggedSplits,
    disambiguate,
    disambiguation,
    find_probes,
    likeness,
    nearest_in_context,
    neighbours_of_words,
    probe_tags,
    read_report,
    report,
    run_probes,
    same_meaning,
    sense_triples,
    suite,
    tags,
    text_perplexity,
    vectors,
)
from elmokit.probes.mixes import TaskMixes, read_mixes
from elmokit.probes.similarity import best_threshold
from elmokit.probes.tags import most_frequent_tag
from elmokit.probes.vectors import Place
from elmokit.text import Vocabulary, marked_word

NOUNS = ["bank", "river", "money", "boat", "play", "stage", "ball"]
WORDS = [*NOUNS, "the", "a", "of", "sat", "lent", "she", "he", "by", "old", "ran", ".", ",", "and"]
LAYERS = ["0", "1", "2", "mean"]


@pytest.fixture(scope="module")
def model(official_model):
    """A random language model of two layers."""
    files = official_model(seed=7, projection_dim=6, cell_clip=3.0, proj_clip=3.0)
    elmo = ELMo.from_files(files.options_path, files.weights_path)
    torch.manual_seed(0)
    elmo.vocabulary = Vocabulary(["<S>", "</S>", "<UNK>", *WORDS])
    elmo.output_layer = OutputLayer(len(WORDS) + 3, 6)
    return elmo


def sentences(seed, count, length=9):
    rng = np.random.default_rng(seed)
    return [[str(word) for word in rng.choice(WORDS, rng.integers(3, length))] for _ in range(count)]


def of_each_layer(model, tokens, place):
    """(L+2, 2P): one token's layers and their mean, from the model itself."""
    found = model.embed([tokens], layers="all")[0][:, place].astype(np.float64)
    return np.concatenate([found, found.mean(axis=0, keepdims=True)])


def cosine(a, b):
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


# ---- vectors ---------------------------------------------------------------------------------------------------------


def test_a_phrase_is_the_mean_of_its_words_and_places_come_in_any_order(model, monkeypatch):
    monkeypatch.setattr(vectors, "TOKENS_AT_ONCE", 12)  # several windows
    text = sentences(1, 9)
    places = [Place(7, 1, 3), Place(2, 0, 1), Place(7, 2, 3)]
    found = vectors.gather(model, text, places)
    for place, rows in zip(places, found, strict=True):
        words = [of_each_layer(model, text[place.sentence], number) for number in range(place.start, place.end)]
        np.testing.assert_allclose(rows, np.mean(words, axis=0), atol=1e-6)


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


# ---- word senses -----------------------------------------------------------------------------------------------------


def sense_sentence(tokens, *instances):
    """instances: (index, lemma, senses)."""
    found = [SenseInstance(f"i{index}", index, lemma, "NOUN", senses) for index, lemma, senses in instances]
    return SenseSentence("s", tokens, tokens, ["NOUN"] * len(tokens), found)


def random_senses(seed, count, lemmas):
    """Sentences whose third token is an instance, a phrase now and then."""
    rng = np.random.default_rng(seed)
    found = []
    for tokens in sentences(seed, count):
        lemma = str(rng.choice(lemmas))
        senses = tuple(dict.fromkeys(f"{lemma}%{number}" for number in rng.integers(0, 3, rng.integers(1, 3))))
        if rng.random() < 0.3:
            tokens[2] += " bank"
        found.append(sense_sentence(["``", *tokens], (3, lemma, senses)))
    return found


def test_a_word_takes_the_sense_whose_mean_vector_is_nearest(model):
    train, dev, test = (random_senses(seed, 15, ["Bank", "play"]) for seed in (1, 2, 3))
    scores = disambiguate(model, train, {"dev": dev, "test": test}, {}, dev="dev")

    def vector(sentence):
        tokens = ['"', *(word for token in sentence.tokens[1:] for word in token.split())]
        phrase = len(sentence.tokens[3].split())
        return np.mean([of_each_layer(model, tokens, 3 + number) for number in range(phrase)], axis=0)

    means = {}
    for sentence in train:
        for sense in sentence.instances[0].senses:
            means.setdefault(sense, []).append(vector(sentence))
    means = {sense: np.mean(found, axis=0) for sense, found in means.items()}
    for row, layer in enumerate(LAYERS):
        for name, given in (("dev", dev), ("test", test)):
            right = 0
            for sentence in given:
                asked, one = vector(sentence)[row], sentence.instances[0]
                candidates = [sense for sense in means if sense.startswith(one.lemma)]
                right += max(candidates, key=lambda sense: cosine(means[sense][row], asked)) in one.senses
            assert scores.layers[layer][name] == pytest.approx(100 * right / len(given))
        assert scores.layers[layer]["all"] == scores.layers[layer]["test"]
    assert scores.layers[scores.best_layer]["dev"] == max(found["dev"] for found in scores.layers.values())


def test_what_training_never_showed_takes_the_first_sense_and_an_unknown_word_has_no_answer(model):
    train = [
        sense_sentence(["old", "bank"], (1, "bank", ("bank%2",))),
        sense_sentence(["a", "bank"], (1, "bank", ("bank%2",))),
        sense_sentence(["the", "bank"], (1, "bank", ("bank%1",))),
        sense_sentence(["a", "ball"], (1, "ball", ("ball%3",))),
    ]
    index = {("bank", "NOUN"): ["bank%1", "bank%2"], ("ball", "NOUN"): ["ball%1"], ("stage", "NOUN"): ["stage%1"]}
    test = [
        sense_sentence(["old", "bank"], (1, "bank", ("bank%2",))),
        sense_sentence(["ball"], (0, "ball", ("ball%3",))),
        sense_sentence(["stage"], (0, "stage", ("stage%1", "stage%2"))),
        sense_sentence(["boat"], (0, "boat", ("boat%1",))),
    ]
    scores = disambiguate(model, train, {"dev": test[:1], "one": test[:2], "two": test[2:]}, index, dev="dev")
    assert scores.first_sense == pytest.approx({"dev": 0, "one": 0, "two": 200 / 3, "all": 200 / 7})
    assert scores.most_frequent == pytest.approx({"dev": 100, "one": 100, "two": 200 / 3, "all": 600 / 7})
    assert scores.layers["2"] == pytest.approx({"dev": 100, "one": 100, "two": 200 / 3, "all": 600 / 7})
    assert scores.num_instances == {"dev": 1, "one": 2, "two": 2, "all": 4}
    assert scores.num_unseen == {"dev": 0, "one": 0, "two": 2, "all": 2}


def test_senses_need_a_set_that_chooses_and_one_to_test(model):
    with pytest.raises(ValueError, match="the sets are test: expected 'dev'"):
        disambiguate(model, [], {"test": []}, {}, dev="dev")


@pytest.mark.slow
def test_the_baselines_on_the_published_sets_are_those_that_are_known(model, data, monkeypatch):
    monkeypatch.setattr(disambiguation, "place_vectors", lambda *_, **__: iter(()))  # no vector, no time
    folder = data / "tasks" / "wsd"
    sets = {name: read_wsd(folder / name / f"{name}.data.xml") for name in (suite.DEV, *suite.TESTS)}
    index = read_sense_index(folder / "wordnet" / "index.sense.gz")
    scores = disambiguate(model, read_wsd(folder / "semcor" / "semcor.data.xml.gz"), sets, index, dev=suite.DEV)
    assert round(scores.first_sense["all"], 1) == 65.5
    assert round(scores.most_frequent["all"], 1) == 65.7


# ---- parts of speech -------------------------------------------------------------------------------------------------


def tagged(seed, count):
    """The tag is the length of the word, and whether the word before it is long."""
    return [
        TaggedSentence(tokens, [f"{len(word)}{len(before) > 3}" for before, word in zip(["", *tokens], tokens)])  # noqa: B905
        for tokens in sentences(seed, count)
    ]


def test_each_layer_gets_the_linear_classifier_that_it_would_get_alone(model, monkeypatch):
    monkeypatch.setattr(tags, "EPOCHS", 5)
    splits = TaggedSplits(tagged(1, 80), tagged(2, 30), tagged(3, 30))
    scores = probe_tags(model, {"length": splits})["length"]
    parts = [splits.train, splits.dev, splits.test]
    names = sorted({tag for sentence in splits.train for tag in sentence.tags})
    labels = [torch.tensor([names.index(tag) for one in part for tag in one.tags]) for part in parts]
    for row, layer in enumerate(LAYERS):
        features = []
        for part in parts:
            found = model.embed([one.tokens for one in part], layers="all")
            found = [np.concatenate([one, one.mean(axis=0, keepdims=True)])[row] for one in found]
            features.append(torch.from_numpy(np.concatenate(found)).half().float())
        mean, deviation = features[0].mean(dim=0), features[0].std(dim=0, correction=0)
        train, dev, test = (((one - mean) / deviation).half().float() for one in features)
        linear = torch.nn.Linear(train.shape[1], len(names))
        torch.nn.init.zeros_(linear.weight)
        torch.nn.init.zeros_(linear.bias)
        optimizer = torch.optim.Adam(linear.parameters(), lr=2e-3)
        generator = torch.Generator().manual_seed(0)
        history = []
        for _ in range(5):
            for batch in torch.randperm(len(train), generator=generator).split(128):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(linear(train[batch]), labels[0][batch]).backward()
                optimizer.step()
            right = [
                float((linear(x).argmax(dim=1) == y).double().mean()) for x, y in ((dev, labels[1]), (test, labels[2]))
            ]
            history.append(right)
        best = max(range(5), key=lambda epoch: history[epoch][0])
        assert scores.epochs[layer] == best + 1
        assert (scores.dev[layer], scores.test[layer]) == pytest.approx(
            (100 * history[best][0], 100 * history[best][1])
        )
    assert scores.best_layer == max(LAYERS, key=lambda layer: scores.dev[layer])
    assert sum(scores.mix_weights) == pytest.approx(1)
    assert scores.mix_weights != pytest.approx([1 / 3] * 3, abs=1e-6)


def test_what_hangs_on_the_word_before_is_read_off_the_layers_with_context(model, monkeypatch):
    monkeypatch.setattr(tags, "LEARNING_RATE", 0.05)
    monkeypatch.setattr(tags, "EPOCHS", 10)
    parts = [sentences(seed, count, length=4) for seed, count in ((1, 300), (2, 60), (3, 60))]
    parts = [[TaggedSentence(one, ["-", *(word[0] for word in one[:-1])]) for one in part] for part in parts]
    scores = probe_tags(model, {"before": TaggedSplits(*parts)})["before"]
    assert scores.test[scores.best_layer] > scores.test["0"] + 10
    assert scores.test["mix"] > scores.test["0"] + 10


def test_two_tag_sets_share_the_vectors_and_must_share_the_tokens(model, monkeypatch):
    monkeypatch.setattr(tags, "EPOCHS", 1)
    calls = []
    one = TaggedSplits(tagged(1, 5), tagged(2, 3), tagged(3, 3))
    found = probe_tags(model, {"a": one, "b": one}, progress=lambda done, total: calls.append((done, total)))
    assert found["a"] == found["b"]
    assert len(calls) == 1
    with pytest.raises(ValueError, match="the tag set b is over other tokens than a"):
        probe_tags(model, {"a": one, "b": TaggedSplits(one.train, one.dev, tagged(4, 3))})
    with pytest.raises(ValueError, match="tokens: each needs at least one"):
        probe_tags(model, {"a": TaggedSplits(one.train, [], one.test)})
    with pytest.raises(ValueError, match="no tag set"):
        probe_tags(model, {})


def test_a_tag_that_train_has_not_is_never_right(model, monkeypatch):
    monkeypatch.setattr(tags, "EPOCHS", 1)
    splits = TaggedSplits(
        [TaggedSentence(["a", "bank"], ["X", "X"])],
        [TaggedSentence(["a"], ["X"])],
        [TaggedSentence(["a", "b"], ["X", "NEW"])],
    )
    scores = probe_tags(model, {"t": splits})["t"]
    assert scores.num_tags == 1
    assert set(scores.dev.values()) == {100.0}
    assert set(scores.test.values()) == {50.0}


def test_the_most_frequent_tag_is_that_of_the_word_or_else_the_commonest():
    train = [TaggedSentence(["a", "a", "a", "b"], ["X", "Y", "Y", "Z"]), TaggedSentence(["c", "d"], ["Z", "Z"])]
    assert most_frequent_tag(train, [TaggedSentence(["a", "b", "new", "a"], ["Y", "Z", "Z", "X"])]) == 75


@pytest.mark.slow
@pytest.mark.parametrize(("column", "known"), [("upos", 86.2), ("xpos", 83.8)])
def test_the_most_frequent_tags_of_the_treebank_are_right_as_often_as_is_known(data, column, known):
    parts = (data / "tasks" / "pos" / f"en_ewt-ud-{part}.conllu.gz" for part in ("train", "test"))
    assert round(most_frequent_tag(*(read_conllu(path, column=column) for path in parts)), 1) == known


# ---- likeness --------------------------------------------------------------------------------------------------------


def pairs(seed, count):
    rng = np.random.default_rng(seed)
    text = iter(sentences(seed, 2 * count))
    words = [WordInContext(one[1], "N", one, 1) for one in text]
    return [WordPair(a, b, float(rng.integers(0, 2))) for a, b in zip(words[0::2], words[1::2], strict=True)]


def pair_cosines(model, given):
    each = [[of_each_layer(model, word.tokens, word.index) for word in (pair.first, pair.second)] for pair in given]
    return np.array([[cosine(a, b) for a, b in zip(first, second, strict=True)] for first, second in each])


@pytest.mark.parametrize("seed", range(6))
def test_no_other_threshold_is_right_more_often(seed):
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 6, 15) / 6  # with many that are equal
    truths = rng.random(15) < 0.5
    found = best_threshold(values, truths)
    cuts = [-1, *(np.arange(6) / 6 + 0.01), 2]
    assert ((values >= found) == truths).sum() == max(((values >= cut) == truths).sum() for cut in cuts)


def test_the_threshold_is_that_of_train_and_so_is_the_layer(model):
    train, test = pairs(1, 30), pairs(2, 20)
    scores = same_meaning(model, train, test)
    for layer, known, asked in zip(LAYERS, pair_cosines(model, train).T, pair_cosines(model, test).T, strict=True):
        threshold = scores.thresholds[layer]
        assert scores.train[layer] == pytest.approx(
            100 * max(np.mean((known >= cut) == [p.score == 1 for p in train]) for cut in [-2, *known, 2])
        )
        assert scores.test[layer] == pytest.approx(100 * np.mean((asked >= threshold) == [p.score == 1 for p in test]))
    assert scores.best_layer == max(LAYERS, key=lambda layer: scores.train[layer])
    with pytest.raises(ValueError, match="0 pairs to choose by"):
        same_meaning(model, [], test)


def test_the_correlation_is_that_of_ranks(model, monkeypatch):
    given = [dataclasses.replace(pair, score=number % 4) for number, pair in enumerate(pairs(3, 25))]
    scores = likeness(model, given)

    def ranks(values):
        values = np.round(values, 12)
        return [(np.sum(values < value) + np.sum(values <= value) + 1) / 2 for value in values]

    for layer, column in zip(LAYERS, pair_cosines(model, given).T, strict=True):
        expected = np.corrcoef(ranks(column), ranks(np.array([pair.score for pair in given])))[0, 1]
        assert scores.layers[layer] == pytest.approx(100 * expected, abs=1e-2)
    with pytest.raises(ValueError, match="there are 1 pairs"):
        likeness(model, given[:1])
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    with pytest.raises(ImportError, match=r"elmokit\[tasks\]"):
        likeness(model, given)


def test_a_triple_is_won_when_both_comparisons_are(model):
    triples = SENSE_TRIPLES[:8]
    scores = sense_triples(model, triples)
    for layer, name in [(0, "0"), (1, "1"), (2, "2"), ("average", "mean")]:
        lost = []
        for one in triples:
            if layer == 0:  # without context the three are one vector, and no comparison is won
                lost.append(one.word)
                continue
            alike = model.similarity(one.first, one.second, word=one.word, layers=layer)
            others = [
                model.similarity(text, one.other, word=one.word, layers=layer) for text in (one.first, one.second)
            ]
            lost += [one.word] if alike <= max(others) else []
        assert scores.lost[name] == lost
        assert scores.layers[name] == pytest.approx(100 * (1 - len(lost) / len(triples)))
    with pytest.raises(ValueError, match="'bank' is not in 'no such word'"):
        sense_triples(model, [SenseTriple("bank", "a bank", "no such word", "bank")])
    with pytest.raises(ValueError, match="there are no triples"):
        sense_triples(model, [])


# ---- neighbours ------------------------------------------------------------------------------------------------------


def test_neighbours_of_a_new_word_are_the_nearest_of_the_vocabulary(model, monkeypatch):
    monkeypatch.setattr("elmokit.probes.neighbours.WORDS_AT_ONCE", 6)
    found = neighbours_of_words(model, ["bankk", "river"], k=4)
    for word, nearest in found.items():
        asked = model.embed([[word]], layers=0)[0][0]
        cosines = {known: cosine(asked, model.embed([[known]], layers=0)[0][0]) for known in WORDS if known != word}
        best = sorted(cosines, key=lambda known: -cosines[known])[:4]
        assert [one.word for one in nearest] == best
        assert [one.cosine for one in nearest] == pytest.approx([cosines[known] for known in best], abs=1e-5)


def test_neighbours_of_words_need_characters_and_a_vocabulary(model, official_model):
    with pytest.raises(ValueError, match="k is 0"):
        neighbours_of_words(model, ["a"], k=0)
    files = official_model(seed=1, word_level=True)
    (files.options_path.parent / "words.txt").write_text("\n".join(files.vocabulary) + "\n")
    by_words = ELMo.from_files(
        files.options_path, files.weights_path, vocabulary=files.options_path.parent / "words.txt"
    )
    with pytest.raises(ValueError, match="reads words, not characters"):
        neighbours_of_words(by_words, ["a"])
    with pytest.raises(ValueError, match=r"no vocabulary\.txt"):
        neighbours_of_words(ELMo(model.bilm), ["a"])


@pytest.mark.parametrize("layer", [None, 1])
def test_the_nearest_words_in_context_are_those_of_an_exhaustive_search(model, layer):
    corpus = [*sentences(5, 20), [], ["she", "sat", "by", "the", "bank"]]
    queries = ["she sat by the [bank]", "the [play] ran"]
    for query, found in zip(queries, nearest_in_context(model, queries, corpus, k=3, layer=layer), strict=True):
        tokens, place = marked_word(query)
        row = 2 if layer is None else layer
        asked = of_each_layer(model, tokens, place)[row]
        best = []
        for sentence in corpus:
            if sentence and sentence != tokens:
                each = [cosine(asked, of_each_layer(model, sentence, number)[row]) for number in range(len(sentence))]
                best.append((max(each), sentence, int(np.argmax(each))))
        best.sort(key=lambda one: -one[0])
        assert [one.cosine for one in found] == pytest.approx([value for value, _, _ in best[:3]], abs=1e-5)
        assert [(one.tokens, one.position) for one in found] == [(sentence, at) for _, sentence, at in best[:3]]


def test_a_query_marks_one_word():
    assert marked_word("He sat on the [bank].") == (["He", "sat", "on", "the", "bank", "."], 4)
    for wrong in ("no mark", "[two] [marks]", "an empty [ ] one"):
        with pytest.raises(ValueError, match="mark one word"):
            marked_word(wrong)


def test_neighbours_in_context_refuse_what_is_not_there(model):
    with pytest.raises(ValueError, match="layer is 3: the model has layers 0 to 2"):
        nearest_in_context(model, ["a [b]"], [["a"]], layer=3)
    with pytest.raises(ValueError, match="k is 0"):
        nearest_in_context(model, ["a [b]"], [["a"]], k=0)


# ---- all of them, from a folder --------------------------------------------------------------------------------------


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)


def conllu(seed):
    rows = []
    for sentence in tagged(seed, 6):
        for number, (token, tag) in enumerate(zip(sentence.tokens, sentence.tags, strict=True), 1):
            rows.append(f"{number}\t{token}\t_\t{tag}\t{tag}x\t_\t_\t_\t_\t_")
        rows.append("")
    return "\n".join(rows) + "\n"


def sense_xml(seed):
    text, keys = "", ""
    for number, sentence in enumerate(random_senses(seed, 6, ["bank", "play"])):
        words = [f'<wf lemma="x" pos="NOUN">{token}</wf>' for token in sentence.tokens]
        one = sentence.instances[0]
        words[3] = f'<instance id="s{number}" lemma="{one.lemma}" pos="NOUN">{sentence.tokens[3]}</instance>'
        text += f'<sentence id="s{number}">\n' + "\n".join(words) + "\n</sentence>\n"
        keys += f"s{number} {' '.join(sense.replace('%', '%1:0') + '::' for sense in one.senses)}\n"
    return f"<corpus><text>\n{text}</text></corpus>\n", keys


@pytest.fixture
def folder(tmp_path):
    """Data of every probe, laid out as the suite wants it."""
    here = tmp_path / "data"
    for seed, part in enumerate(("train", "dev", "test")):
        write(here / "pos" / f"xx-ud-{part}.conllu{'.gz' * (seed == 0)}", conllu(seed))
    for seed, name in enumerate(("semcor", suite.DEV, *suite.TESTS)):
        text, keys = sense_xml(seed)
        write(here / "wsd" / name / f"{name}.data.xml{'.gz' * (seed == 0)}", text)
        write(here / "wsd" / name / f"{name}.gold.key.txt{'.gz' * (seed == 0)}", keys)
    write(here / "wsd" / "wordnet" / "index.sense.gz", "bank%1:00:: 1 1 0\nplay%1:00:: 2 1 0\n")
    for part, count in (("train", 8), ("dev", 4)):
        rows = [f"bank\tN\t1-1\t{' '.join(p.first.tokens)}\t{' '.join(p.second.tokens)}" for p in pairs(1, count)]
        write(here / "similarity" / "wic" / part / f"{part}.data.txt", "\n".join(rows) + "\n")
        write(here / "similarity" / "wic" / part / f"{part}.gold.txt", "T\nF\n" * (count // 2))
    rows = [
        "\t".join([str(n), "bank", "n", "play", "n", "the <b> bank </b> .", f"a <b> {w} </b> ran", str(n)] + ["0"] * 10)
        for n, w in enumerate(WORDS[:6])
    ]
    write(here / "similarity" / "scws" / "ratings.txt", "\n".join(rows) + "\n")
    write(tmp_path / "heldout.txt", "the bank lent money to an old boat .\n")
    return here


@pytest.fixture
def model_folder(model, tmp_path):
    model.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def invoke(*arguments):
    result = CliRunner().invoke(probe, [str(argument) for argument in arguments])
    if result.exception is not None:
        raise result.exception
    return result


def test_the_verb_runs_all_that_the_folder_holds_and_writes_tables_and_a_plot(model_folder, folder, tmp_path):
    out = tmp_path / "out"
    arguments = ["--model", model_folder, "--data", folder, "--heldout", tmp_path / "heldout.txt", "--out", out]
    shown = invoke(*arguments)
    kept = read_report(out / "probe.json")
    assert set(kept.probes) == set(PROBES)
    assert [line for line in shown.stderr.splitlines() if line.endswith(": done")] == [f"{p}: done" for p in PROBES]
    page = (out / "probe.md").read_text()
    for table in report.tables(kept):
        assert table.title in shown.stdout
        assert f"## {table.title}" in page
        assert all(len(row) == len(table.columns) for row in table.rows)
    picture = ElementTree.parse(out / "probe.svg").getroot()
    assert picture.tag.endswith("svg")
    again = invoke(*arguments, "--beside", out / "probe.json", "--json")
    assert json.loads(again.stdout) == dataclasses.asdict(kept)
    assert again.stderr.splitlines() == [f"{p}: kept" for p in PROBES]


def test_models_stand_side_by_side(model_folder, folder, tmp_path):
    invoke("--model", model_folder, "--data", folder, "--only", "wic, scws", "--out", tmp_path / "one")
    shown = invoke("--model", model_folder, "--only", "senses", "--beside", tmp_path / "one" / "probe.json")
    rows = shown.stdout.split("Side by side\n")[1].splitlines()
    figures = {row.split("  ")[0]: row.split()[-1] for row in rows[1:]}
    one = read_report(tmp_path / "one" / "probe.json").probes
    assert figures["SCWS Spearman x 100, 1"] == f"{one['scws']['result']['layers']['1']:.2f}"
    best = one["wic"]["result"]["best_layer"]
    assert figures["WiC accuracy, chosen layer"] == f"({best})"
    assert "sense triples won, %, mean" in figures


def test_a_stopped_run_goes_on_and_only_changed_data_runs_again(model, folder, tmp_path, monkeypatch):
    files = find_probes(folder)
    kept = tmp_path / "probe.json"
    real, ran = suite.run_probe, []

    def stop(elmo, name, paths, *, progress=None):
        if name == "scws":
            raise KeyboardInterrupt
        return real(elmo, name, paths, progress=progress)

    def count(elmo, name, paths, *, progress=None):
        ran.append(name)
        return real(elmo, name, paths, progress=progress)

    monkeypatch.setattr(suite, "run_probe", stop)
    with pytest.raises(KeyboardInterrupt):
        run_probes(model, "m", files, keep=kept)
    assert list(read_report(kept).probes) == ["senses", "words", "wic"]
    monkeypatch.setattr(suite, "run_probe", count)
    run_probes(model, "m", files, keep=kept)
    assert ran == ["scws", "pos", "wsd", "contexts"]
    ran.clear()
    write(folder / "similarity" / "wic" / "dev" / "dev.gold.txt", "F\nF\nT\nT\n")
    run_probes(model, "m", find_probes(folder), keep=kept)
    assert ran == ["wic"]


def test_a_model_of_other_weights_takes_nothing_from_the_report_that_is_there(model, official_model, tmp_path):
    kept = tmp_path / "probe.json"
    first = run_probes(model, "m", {"senses": []}, keep=kept)
    files = official_model(seed=8, projection_dim=6)
    other = ELMo.from_files(files.options_path, files.weights_path)
    said = []
    second = run_probes(
        other, "o", find_probes(None, [tmp_path / "probe.json"]), keep=kept, on_probe=lambda *one: said.append(one)
    )
    assert first.weights != second.weights
    assert list(second.probes) == ["senses"]
    assert dict(said)["perplexity"] == "left out: the model has no softmax"
    assert dict(said)["words"].startswith("left out: it needs a model that reads characters")
    assert read_report(kept).model == "o"


def test_the_perplexity_of_one_sentence_is_that_of_the_language_model(model, tmp_path):
    write(tmp_path / "text.txt", "the bank lent money to an old boat .\n")
    expected = model.perplexity(["the bank lent money to an old boat ."])
    found = text_perplexity(model, tmp_path / "text.txt")
    assert (found.both, found.forward) == pytest.approx((expected.both, expected.forward), rel=1e-5)


def test_perplexity_needs_a_softmax(model, tmp_path):
    with pytest.raises(ValueError, match="no softmax"):
        text_perplexity(ELMo(model.bilm), tmp_path / "text.txt")


def test_a_folder_is_asked_for_what_it_holds_and_no_more(folder, tmp_path):
    (folder / "similarity" / "scws" / "ratings.txt").unlink()
    (folder / "wsd" / suite.DEV / f"{suite.DEV}.gold.key.txt").unlink()
    assert list(find_probes(folder)) == ["senses", "words", "wic", "pos", "contexts"]
    assert list(find_probes(None)) == ["senses", "words"]
    with pytest.raises(ValueError, match="nowhere: there is no such folder"):
        find_probes(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"none\.txt: there is no such file"):
        find_probes(None, [tmp_path / "none.txt"])


def test_the_verb_says_what_is_wrong_before_it_loads_a_model(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(cli_probe, "load_model", None)
    with pytest.raises(ValueError, match="--only 'poz': the probes are senses, words"):
        invoke("--data", folder, "--only", "poz")
    with pytest.raises(ValueError, match="--only perplexity: its data is not there"):
        invoke("--data", folder, "--only", "pos,perplexity")
    write(tmp_path / "probe.json", "[]")
    with pytest.raises(ValueError, match=r"probe\.json is no report of probes"):
        invoke("--data", folder, "--beside", tmp_path / "probe.json")


def test_a_device_that_is_not_there_is_named(model_folder):
    with pytest.raises(ValueError, match="device 'nodevice' cannot be used"):
        invoke("--model", model_folder, "--device", "nodevice")


def test_without_matplotlib_there_is_all_but_the_plot(model_folder, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    shown = invoke("--model", model_folder, "--out", tmp_path / "out", "--only", "senses")
    assert 'pip install "elmokit[plot]"' in shown.stderr
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["probe.json", "probe.md"]
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ValueError, match=r"elmokit\[plot\]"):
        report.plot(read_report(tmp_path / "out" / "probe.json"), tmp_path / "p.svg")


def test_a_plot_needs_a_figure_for_each_layer(model, tmp_path):
    with pytest.raises(ValueError, match="no probe with a figure for each layer"):
        report.plot(run_probes(model, "m", {"words": []}), tmp_path / "p.svg")


def test_a_probe_that_nobody_knows_is_refused(model):
    with pytest.raises(ValueError, match="there is no probe 'poz'"):
        suite.run_probe(model, "poz", [])


# ---- the mixes that tasks learned ------------------------------------------------------------------------------------


def variant(elmo_at, *weights):
    return {
        "elmo_at": elmo_at, "scores": [0.5, 0.6], "mean": 0.55, "spread": 0.07, "error_reduction": None,
        "mix_weights": weights, "seconds": 1.0,
    }  # fmt: skip


@pytest.fixture
def trained(tmp_path):
    """Folders of a comparison, of a training with ELMo at the input of another biLM, and of one without ELMo."""
    variants = [
        variant("none"),
        variant("input", [0.2, 0.3, 0.5]),
        variant("both", [0.11, 0.22, 0.67], [0.6, 0.3, 0.1]),
    ]
    comparison = {"task": "ner", "metric": "f1", "part": "test", "seeds": [1, 2], "variants": variants}
    write(tmp_path / "wnut" / "compare.json", json.dumps(comparison))
    result = {
        "folder": "x", "task": "sentiment", "metric": "accuracy", "dev": {"accuracy": 0.5}, "test": None,
        "best_epoch": 1, "epochs": 1, "mix_weights": [[0.41, 0.59]], "seconds": 1.0,
    }  # fmt: skip
    write(tmp_path / "sst" / "result.json", json.dumps(result))
    write(tmp_path / "plain" / "result.json", json.dumps({**result, "mix_weights": []}))
    return tmp_path


def test_learned_mixes_of_comparisons_and_trainings_become_a_table_and_a_heat_map(trained):
    assert read_mixes([trained / "wnut", trained / "sst"]) == [
        TaskMixes("wnut", "ner", 2, ((0.11, 0.22, 0.67), (0.6, 0.3, 0.1))),
        TaskMixes("sst", "sentiment", 1, ((0.41, 0.59),)),
    ]
    out = trained / "out"
    shown = invoke("mixes", trained / "wnut", trained / "sst", "--out", out).stdout.splitlines()
    assert shown[0].split("  ")[-1].strip() == "layer 2"
    assert [line.split() for line in shown[1:]] == [
        ["wnut", "ner", "2", "input", "0.11", "0.22", "0.67"],
        ["wnut", "ner", "2", "output", "0.60", "0.30", "0.10"],
        ["sst", "sentiment", "1", "input", "0.41", "0.59"],
    ]
    assert "| sst | sentiment | 1 | input | 0.41 | 0.59 |  |" in (out / "mixes.md").read_text()
    values = json.loads((out / "mixes.json").read_text())
    assert values == json.loads(invoke("mixes", trained / "wnut", trained / "sst", "--json").stdout)
    assert values["wnut"]["weights"] == [[0.11, 0.22, 0.67], [0.6, 0.3, 0.1]]
    picture = (out / "mixes.svg").read_text()
    for text in ("mix at the input", "mix at the output", "wnut", "0.67", "0.10", "0.41"):
        assert f"<!-- {text} -->" in picture
    assert picture.count("<!-- 0.") == 8


def test_a_heat_map_has_no_panel_for_an_output_that_no_task_has(trained):
    invoke("mixes", trained / "sst", "--out", trained / "out")
    assert "mix at the output" not in (trained / "out" / "mixes.svg").read_text()


def test_options_before_the_name_of_a_verb_are_not_lost_in_silence(trained):
    done = CliRunner().invoke(probe, ["--out", str(trained / "out"), "mixes", str(trained / "wnut")])
    assert done.exit_code == 2
    assert "write the options of mixes after its name" in done.stderr


def test_folders_without_mixes_are_named(trained, monkeypatch):
    monkeypatch.setattr(cli_probe, "load_model", None)
    with pytest.raises(ValueError, match=r"plain: trained without ELMo"):
        invoke("mixes", trained / "plain")
    with pytest.raises(ValueError, match=r"neither compare\.json nor result\.json"):
        invoke("mixes", trained)
    write(trained / "sst" / "result.json", "{}")
    with pytest.raises(ValueError, match=r"sst/result\.json: .*missing"):
        invoke("mixes", trained / "sst")
