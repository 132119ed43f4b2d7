"""ELMo inside spaCy: vectors of docs, spans and tokens, and a layer that a spaCy config trains."""

import importlib.metadata
import importlib.util
import runpy
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("spacy")

import spacy
import torch
from spacy.cli.train import train
from spacy.tokens import Doc, DocBin, Span
from thinc.api import Adam, Config

from elmokit import BiLM, BiLMConfig, ELMo, ScalarMix, Vocabulary
from elmokit.integrations import spacy as integration
from elmokit.integrations.spacy import attach_vectors, make_tok2vec
from elmokit.network import OutputLayer

RECIPES = Path(__file__).resolve().parents[2] / "src" / "elmokit" / "recipes" / "spacy"
TEXT = "The bank refused him a loan. He sat by the bank of the river."


@pytest.fixture
def nlp(tiny_elmo):
    pipeline = spacy.blank("en")
    pipeline.add_pipe("sentencizer")
    pipeline.add_pipe("elmokit", config={"model": tiny_elmo})
    return pipeline


def words(span):
    return [token.text for token in span]


def cosine(a, b):
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


# ---- the component ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layers", ["average", "top", "slot", "sense", 0, 1])
def test_a_token_has_the_vector_that_elmo_gives_it_in_its_sentence(tiny_elmo, layers):
    nlp = spacy.blank("en")
    nlp.add_pipe("sentencizer")
    nlp.add_pipe("elmokit", config={"model": tiny_elmo, "layers": layers})
    doc = nlp(TEXT)
    sentences = list(doc.sents)
    assert len(sentences) == 2
    expected = np.concatenate(ELMo.from_pretrained(tiny_elmo).embed([words(s) for s in sentences], layers=layers))
    np.testing.assert_allclose([token.vector for token in doc], expected, atol=1e-6)


def test_a_doc_without_sentences_is_read_as_one(tiny_elmo):
    nlp = spacy.blank("en")
    nlp.add_pipe("elmokit", config={"model": tiny_elmo})
    doc = nlp(TEXT)
    (expected,) = ELMo.from_pretrained(tiny_elmo).embed([words(doc)])
    np.testing.assert_allclose(doc.tensor, expected, atol=1e-6)


def test_white_space_is_no_word_of_its_sentence(nlp, tiny_elmo):
    doc = nlp("The bank  lent \n\n money .")
    spaces = [token.is_space for token in doc]
    assert sum(spaces) == 2
    (expected,) = ELMo.from_pretrained(tiny_elmo).embed([["The", "bank", "lent", "money", "."]])
    np.testing.assert_allclose(doc.tensor[~np.array(spaces)], expected, atol=1e-6)
    assert not doc.tensor[spaces].any()
    assert [token.has_vector for token in doc] == [not space for space in spaces]
    np.testing.assert_allclose(doc.vector, expected.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(doc[1:4].vector, expected[1:3].mean(axis=0), atol=1e-6)


def test_docs_of_a_stream_have_the_vectors_that_they_have_alone(nlp):
    texts = [TEXT, "", "Rain .", " \n ", "The river . The bank . A loan ."] * 2
    docs = list(nlp.pipe(texts, batch_size=3))
    assert [doc.text for doc in docs] == texts
    for doc, text in zip(docs, texts, strict=True):
        np.testing.assert_allclose(doc.tensor, nlp(text).tensor, atol=1e-6)
        assert doc.tensor.shape == (len(doc), 16)
        assert doc.vector.shape == (16,)
        assert doc.has_vector == bool(text.strip())


def test_similarity_is_the_cosine_of_vectors_even_of_words_spelled_alike(nlp):
    doc = nlp(TEXT)
    first, second = (token for token in doc if token.text == "bank")
    assert first.similarity(second) == pytest.approx(cosine(first.vector, second.vector))
    assert first.similarity(second) < 0.9999
    assert doc[:3].similarity(first) == pytest.approx(cosine(doc.tensor[:3].mean(axis=0), first.vector))
    other = nlp("Rain .")
    assert doc.similarity(other) == pytest.approx(cosine(doc.tensor.mean(axis=0), other.tensor.mean(axis=0)), abs=1e-6)
    assert doc.similarity(nlp("")) == 0
    assert first.vector_norm == pytest.approx(np.linalg.norm(first.vector))


def test_vectors_of_different_widths_have_no_similarity(nlp):
    with pytest.raises(ValueError, match="vectors of 16 and 0 numbers"):
        nlp("Rain .").similarity(spacy.blank("en")("Rain ."))


def test_vectors_stay_with_their_tokens_when_a_doc_changes(nlp):
    doc = nlp(TEXT)
    before = {token.idx: token.vector for token in doc}
    part = doc[7:10].as_doc()
    np.testing.assert_array_equal(part[0].vector, doc[7].vector)
    np.testing.assert_allclose(part.vector, doc[7:10].vector)
    copied = doc.copy()
    np.testing.assert_array_equal(copied[3].vector, doc[3].vector)
    with doc.retokenize() as retokenizer:
        retokenizer.merge(doc[3:5])
    np.testing.assert_array_equal(doc[6].vector, before[doc[6].idx])
    assert len(doc.tensor) == len(doc)


@pytest.mark.filterwarnings("ignore:.*W109")  # spaCy says that hooks do not go to bytes
def test_a_doc_that_came_as_bytes_gets_its_vectors_attached_again(nlp):
    doc = nlp(TEXT)
    read = Doc(nlp.vocab).from_bytes(doc.to_bytes())
    first, second = (token for token in read if token.text == "bank")
    assert first.similarity(second) == 1.0  # of spaCy's own making: the same letters
    attach_vectors(read)
    assert first.similarity(second) == pytest.approx(cosine(first.vector, second.vector))
    assert first.similarity(second) < 0.9999
    with pytest.raises(ValueError, match="run elmokit on it"):
        attach_vectors(spacy.blank("en")("Rain ."))


def test_a_tensor_of_another_component_is_not_taken_for_vectors(nlp):
    doc = nlp(TEXT)
    doc.tensor = np.zeros((len(doc), 4), dtype="float32")
    with pytest.raises(ValueError, match=r"doc.tensor is \(\d+, 4\) and no longer .*add elmokit after"):
        doc[0].vector


def test_a_pipeline_on_disk_or_in_bytes_needs_no_model_outside_it(nlp, tiny_elmo, tmp_path):
    own = tmp_path / "own"
    shutil.copytree(tiny_elmo, own)
    made = spacy.blank("en")
    made.add_pipe("elmokit", config={"model": str(own), "layers": "top"})
    expected = made(TEXT).tensor
    made.to_disk(tmp_path / "pipeline")
    data = made.to_bytes()
    shutil.rmtree(own)
    read = spacy.load(tmp_path / "pipeline")
    np.testing.assert_array_equal(read(TEXT).tensor, expected)
    again = spacy.blank("en")
    again.add_pipe("elmokit", config={"model": str(own), "layers": "top"})
    again.from_bytes(data)
    np.testing.assert_array_equal(again(TEXT).tensor, expected)


def test_sense_takes_the_words_of_a_language_model_along_and_not_its_softmax(tmp_path):
    known = Vocabulary(["<S>", "</S>", "<UNK>", "the", "bank", "."])
    torch.manual_seed(3)
    sizes = BiLMConfig(char_dim=4, filters=((1, 8),), num_highways=0, cell_dim=4, projection_dim=4)
    elmo = ELMo(BiLM(sizes), output_layer=OutputLayer(6, 4), vocabulary=known).eval()
    elmo.save_pretrained(tmp_path / "own")
    made = spacy.blank("en")
    made.add_pipe("elmokit", config={"model": str(tmp_path / "own"), "layers": "sense"})
    doc = made(TEXT)
    np.testing.assert_allclose(doc.tensor, elmo.embed([words(doc)], layers="sense")[0], atol=1e-6)
    made.to_disk(tmp_path / "pipeline")
    data = made.to_bytes()
    shutil.rmtree(tmp_path / "own")
    read = spacy.load(tmp_path / "pipeline")
    np.testing.assert_array_equal(read(TEXT).tensor, doc.tensor)
    assert read.get_pipe("elmokit").elmo.output_layer is None
    again = spacy.blank("en")
    again.add_pipe("elmokit", config={"model": str(tmp_path / "own"), "layers": "sense"})
    np.testing.assert_array_equal(again.from_bytes(data)(TEXT).tensor, doc.tensor)


def test_a_word_level_model_takes_its_vocabulary_along(tmp_path):
    words = ["<S>", "</S>", "<UNK>", "Rain", "."]
    sizes = BiLMConfig(num_words=len(words), cell_dim=4, projection_dim=2)
    ELMo(BiLM(sizes), vocabulary=Vocabulary(words)).save_pretrained(tmp_path / "words")
    made = spacy.blank("en")
    made.add_pipe("elmokit", config={"model": str(tmp_path / "words")})
    made.to_disk(tmp_path / "pipeline")
    np.testing.assert_array_equal(spacy.load(tmp_path / "pipeline")("Rain .").tensor, made("Rain .").tensor)


def test_a_wrong_setting_is_told(tmp_path):
    nlp = spacy.blank("en")
    with pytest.raises(ValueError, match=r"layers must be .* not 'all'"):
        nlp.add_pipe("elmokit", config={"layers": "all"})
    nlp.add_pipe("elmokit", config={"model": str(tmp_path)})
    with pytest.raises(ValueError, match="holds no model"):
        nlp.initialize()


def test_the_error_of_a_batch_goes_to_the_pipelines_handler(nlp, monkeypatch):
    monkeypatch.setattr(nlp.get_pipe("elmokit").elmo, "embed", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        nlp("Rain .")
    failed = []
    nlp.set_error_handler(lambda name, component, docs, error: failed.append((name, [doc.text for doc in docs])))
    assert list(nlp.pipe(["Rain .", "Sun ."])) == []
    assert failed == [("elmokit", ["Rain .", "Sun ."])]


def test_spacy_finds_component_and_architecture_without_an_import_of_ours():
    points = {
        (group, point.name): point.load()
        for group in ("spacy_factories", "spacy_architectures")
        for point in importlib.metadata.entry_points(group=group)
    }
    assert points["spacy_factories", "elmokit"] is integration.make_context_vectors
    assert points["spacy_architectures", "elmokit.ELMo.v1"] is make_tok2vec


def test_without_spacy_the_import_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "spacy.language", None)
    spec = importlib.util.spec_from_file_location("elmokit_without_spacy", integration.__file__)
    with pytest.raises(ImportError, match=r'pip install "elmokit\[spacy\]"'):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


# ---- the layer -------------------------------------------------------------------------------------------------------


@pytest.fixture
def docs():
    vocab = spacy.blank("en").vocab
    return [
        Doc(vocab, words=["The", "bank", "\n", "lent", "money", "Rain"], sent_starts=[1, 0, 0, 0, 0, 1]),
        Doc(vocab, words=[]),
        Doc(vocab, words=["A", "loan"]),
    ]


SENTENCES = [["The", "bank", "lent", "money"], ["Rain"], ["A", "loan"]]  # of `docs`
WORD_ROWS = [0, 1, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("fine_tune", [False, True])
def test_the_layer_gives_what_elmo_and_its_mix_give_and_their_gradients(tiny_elmo, docs, fine_tune):
    layer = make_tok2vec(tiny_elmo, fine_tune=fine_tune)
    layer.initialize(X=docs)
    mix_node = layer.layers[0]
    weights, gamma = np.array([0.3, -0.2, 0.7], dtype="f"), np.array([1.5], dtype="f")
    mix_node.set_param("weights", weights.copy())  # the optimizer works in place
    mix_node.set_param("gamma", gamma)
    vectors, backprop = layer.begin_update(docs)
    assert [v.shape for v in vectors] == [(6, 16), (0, 16), (2, 16)]
    d_vectors = [np.random.default_rng(0).normal(size=v.shape).astype("f") for v in vectors]
    backprop(d_vectors)

    elmo, mix = ELMo.from_pretrained(tiny_elmo, freeze=not fine_tune), ScalarMix(3)
    with torch.no_grad():
        mix.weights.copy_(torch.from_numpy(weights))
        mix.gamma.fill_(1.5)
    output = elmo(elmo.to_ids(SENTENCES))
    expected = mix(output.layers, output.mask)[output.mask]
    stacked = np.concatenate(vectors)
    np.testing.assert_allclose(stacked[WORD_ROWS], expected.detach(), atol=1e-6)
    assert not stacked[2].any()
    expected.backward(torch.from_numpy(np.concatenate(d_vectors)[WORD_ROWS]))
    np.testing.assert_allclose(mix_node.get_grad("weights"), mix.weights.grad, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(mix_node.get_grad("gamma"), mix.gamma.grad, rtol=1e-4, atol=1e-5)
    inner = mix_node.shims[0].elmo
    for (name, ours), theirs in zip(inner.bilm.named_parameters(), elmo.bilm.parameters(), strict=True):
        if fine_tune:
            np.testing.assert_allclose(ours.grad, theirs.grad, rtol=1e-3, atol=1e-5, err_msg=name)
        else:
            assert ours.grad is None
    before = [p.detach().clone() for p in inner.bilm.parameters()]
    layer.finish_update(Adam(0.01))
    changed = [not torch.equal(a, b) for a, b in zip(before, inner.bilm.parameters(), strict=True)]
    assert all(changed) if fine_tune else not any(changed)
    assert not np.array_equal(mix_node.get_param("weights"), weights)


def test_a_layer_reads_the_same_in_training_and_in_prediction_also_when_it_is_tuned(tiny_elmo, docs):
    layer = make_tok2vec(tiny_elmo, fine_tune=True)
    layer.initialize(X=docs)
    for trained, predicted in zip(layer.begin_update(docs)[0], layer.predict(docs), strict=True):
        np.testing.assert_allclose(trained, predicted, atol=1e-6)


def test_a_frozen_bilm_reads_a_kept_sentence_once_in_training(tiny_elmo, docs, monkeypatch):
    layer, plain = make_tok2vec(tiny_elmo, cache_tokens=5), make_tok2vec(tiny_elmo)
    for one in (layer, plain):
        one.initialize(X=docs)
    elmo, read = layer.layers[0].shims[0].elmo, []
    embed = elmo.embed
    monkeypatch.setattr(elmo, "embed", lambda sentences, **how: read.extend(sentences) or embed(sentences, **how))
    layer.predict(docs)
    assert layer.layers[0].shims[0]._kept == {}  # a trained pipeline holds no text
    read.clear()
    for _ in range(2):
        for ours, theirs in zip(layer.begin_update([*docs, docs[0]])[0], plain.predict([*docs, docs[0]]), strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-6)
    first, rain, loan = map(tuple, SENTENCES)  # five tokens have room: the first four and one
    assert read == [first, rain, loan, loan]
    layer.initialize(X=docs)
    assert layer.layers[0].shims[0]._kept == {}
    with pytest.raises(ValueError, match="cache_tokens=5 is for a frozen biLM"):
        make_tok2vec(tiny_elmo, fine_tune=True, cache_tokens=5)


def test_a_layer_with_a_width_ends_in_that_width(tiny_elmo, docs):
    layer = make_tok2vec(tiny_elmo, width=5)
    layer.initialize(X=docs)
    assert layer.get_dim("nO") == 5
    assert [v.shape for v in layer.predict(docs)] == [(6, 5), (0, 5), (2, 5)]
    assert [v.shape for v in layer.predict([docs[1]])] == [(0, 5)]


def test_a_layer_in_bytes_needs_no_model_outside_it(tiny_elmo, docs, tmp_path):
    layer = make_tok2vec(tiny_elmo, width=5)
    layer.initialize(X=docs)
    read = make_tok2vec(str(tmp_path / "gone"), width=5).from_bytes(layer.to_bytes())
    for ours, theirs in zip(read.predict(docs), layer.predict(docs), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_layer_that_was_not_initialized_says_so(tiny_elmo, docs):
    layer = make_tok2vec(tiny_elmo)
    with pytest.raises(ValueError, match=r"call nlp.initialize\(\)"):
        layer.predict(docs)
    assert make_tok2vec(tiny_elmo).from_bytes(layer.to_bytes()).layers[0].shims[0]._model is None


def test_the_two_recipes_differ_in_nothing_but_the_embedding():
    elmo, static = (
        Config().from_disk(RECIPES / f"tagger-{kind}.cfg", interpolate=False) for kind in ("elmo", "static")
    )
    for config in (elmo, static):
        del config["components"]["tok2vec"]["model"]["embed"]
    assert elmo == static


def test_spacy_train_trains_the_recipe_into_a_pipeline_that_stands_alone(tiny_elmo, tmp_path):
    tagged = [("The bank lent money", "DET NOUN VERB NOUN"), ("He sat by the river", "PRON VERB ADP DET NOUN")]
    vocab = spacy.blank("en").vocab
    corpus = DocBin(docs=[Doc(vocab, words=text.split(), tags=tags.split()) for text, tags in tagged])
    corpus.to_disk(tmp_path / "corpus.spacy")
    own = tmp_path / "own"
    shutil.copytree(tiny_elmo, own)
    overrides = {
        "paths.train": str(tmp_path / "corpus.spacy"),
        "paths.dev": str(tmp_path / "corpus.spacy"),
        "components.tok2vec.model.embed.model": str(own),
        "training.max_epochs": 40,
        "training.eval_frequency": 20,
    }
    train(RECIPES / "tagger-elmo.cfg", tmp_path / "run", overrides=overrides)
    shutil.rmtree(own)
    nlp = spacy.load(tmp_path / "run" / "model-last")
    for text, tags in tagged:
        assert [token.tag_ for token in nlp(text)] == tags.split()
    mix = nlp.get_pipe("tok2vec").model.get_ref("embed").layers[0]
    assert mix.get_param("weights").any()


def test_the_example_tells_the_two_banks_apart(capsys):
    runpy.run_path(str(RECIPES.parents[3] / "examples" / "spacy_vectors.py"))
    alike, apart = (float(line.split()[0]) for line in capsys.readouterr().out.splitlines()[:2])
    assert alike > 0.8 > 0.6 > apart


def test_a_span_of_white_space_has_no_vector(nlp):
    doc = nlp("Rain \n\n .")
    span = Span(doc, 1, 2)
    assert span.text.isspace()
    assert not span.has_vector
    assert span.vector.shape == (16,)
