"""ELMo as a module of sentence-transformers: encode, save, load, pooling, prompts, training and its own evaluators."""

import importlib
import json
import pickle
import shutil
import sys

import numpy as np
import pytest

pytest.importorskip("transformers")
pytest.importorskip("datasets.arrow_dataset")  # `datasets` alone is found as a folder of tests

import torch
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.evaluation import (
    BinaryClassificationEvaluator,
    EmbeddingSimilarityEvaluator,
    InformationRetrievalEvaluator,
    TripletEvaluator,
)
from sentence_transformers.sentence_transformer.losses import CosineSimilarityLoss, MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling
from transformers import set_seed

from datasets import Dataset
from elmokit import BiLM, BiLMConfig, ELMo, Vocabulary, tokenize
from elmokit.integrations import sentence_transformers as ours
from elmokit.integrations.sentence_transformers import ElmoEmbeddings
from elmokit.network import OutputLayer
from elmokit.text import WordWeights

TEXTS = ["The bank lent money.", "", f"He said: {'o' * 99}!", "Ça va? 友達", "I cannot pay $3.50, Mr. Jones."]


@pytest.fixture
def elmo(tiny_elmo):
    return ELMo.from_pretrained(tiny_elmo)


def tolerance_of(layers):
    """The vectors of a random tiny model are short; parts of length one magnify their rounding."""
    return 1e-5 if layers == "sense" else 1e-6


def host(*modules):
    return SentenceTransformer(modules=list(modules), device="cpu")


# ---- vectors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layers", ["average", "top", "slot", "sense", 0, 1])
def test_encode_is_that_of_the_elmo(elmo, layers):
    model = host(ElmoEmbeddings(elmo, layers=layers))
    np.testing.assert_allclose(model.encode(TEXTS), elmo.encode(TEXTS, layers=layers), atol=tolerance_of(layers))
    expected = elmo.encode(TEXTS, layers=layers, normalize=True)
    np.testing.assert_allclose(model.encode(TEXTS, normalize_embeddings=True), expected, atol=tolerance_of(layers))
    assert model.get_embedding_dimension() == 16


@pytest.mark.parametrize("layers", ["average", "slot", "sense"])
def test_a_sentence_encodes_the_same_alone_and_in_any_batch(elmo, layers):
    model = host(ElmoEmbeddings(elmo, layers=layers))
    together = model.encode(TEXTS)
    atol = tolerance_of(layers)
    np.testing.assert_allclose(model.encode(TEXTS[::-1], batch_size=2)[::-1], together, atol=atol)
    np.testing.assert_allclose([model.encode(text) for text in TEXTS], together, atol=atol)
    assert np.array_equal(model.encode(TEXTS), together)
    assert not together[1].any(), "a text without words is zeros"


@pytest.mark.parametrize("layers", ["average", "sense"])
def test_the_english_model_encodes_as_it_does_by_itself(layers):
    english = ELMo.from_pretrained()
    model = host(ElmoEmbeddings(english, layers=layers))
    np.testing.assert_allclose(model.encode(TEXTS), english.encode(TEXTS, layers=layers), atol=tolerance_of(layers))


def test_lists_of_words_are_taken_as_they_are(elmo):
    words = [["can", "not"], ["cannot"]]
    np.testing.assert_allclose(host(ElmoEmbeddings(elmo)).encode(words), elmo.encode(words), atol=1e-6)


@pytest.mark.parametrize("layers", ["average", "slot", "sense"])
def test_word_vectors_come_as_token_embeddings(elmo, layers):
    texts = [TEXTS[0], TEXTS[4]]
    found = host(ElmoEmbeddings(elmo, layers=layers)).encode(texts, output_value="token_embeddings")
    for vectors, expected in zip(found, elmo.embed(texts, layers=layers), strict=True):
        np.testing.assert_allclose(vectors, expected, atol=tolerance_of(layers))


@pytest.mark.parametrize("layers", ["average", "sense"])
@pytest.mark.parametrize("mode", ["mean", "max", "lasttoken"])
def test_pooling_modules_of_the_host_see_words_and_no_padding(elmo, mode, layers):
    model = host(ElmoEmbeddings(elmo, layers=layers), Pooling(16, mode), Normalize())
    pool = {"mean": lambda x: x.mean(0), "max": lambda x: x.max(0), "lasttoken": lambda x: x[-1]}[mode]
    texts = [text for text in TEXTS if text]
    expected = np.stack([pool(vectors) for vectors in elmo.embed(texts, layers=layers)])
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(model.encode(texts), expected, atol=tolerance_of(layers))
    if mode != "max":
        assert not model.encode([""]).any()


def test_a_prompt_stands_before_the_text_and_pooling_may_leave_it_out(elmo):
    prompt, text = "Find this. ", "The bank lent money."
    model = host(ElmoEmbeddings(elmo))
    np.testing.assert_allclose(model.encode([text], prompt=prompt), elmo.encode([prompt + text]), atol=1e-6)
    without = host(ElmoEmbeddings(elmo), Pooling(16, "mean", include_prompt=False))
    assert tokenize(prompt + text)[:2] == ["Find", "this."]
    expected = elmo.embed([prompt + text])[0][2:].mean(0)
    np.testing.assert_allclose(without.encode(text, prompt=prompt), expected, atol=1e-6)
    with pytest.raises(ValueError, match="not lists of words"):
        model[0].preprocess([["a"]], prompt=prompt)


def test_words_beyond_max_seq_length_are_cut(elmo):
    model = host(ElmoEmbeddings(elmo, max_seq_length=3))
    np.testing.assert_allclose(model.encode([TEXTS[0]]), elmo.encode([["The", "bank", "lent"]]), atol=1e-6)
    model.max_seq_length = 1
    np.testing.assert_allclose(model.encode([TEXTS[0]]), elmo.encode([["The"]]), atol=1e-6)
    assert model.preprocess([TEXTS[0]], max_length=2)["input_ids"].shape == (1, 2, 50)
    assert ElmoEmbeddings(elmo).max_seq_length is None


@pytest.mark.parametrize("layers", ["average", "sense"])
def test_half_precision_sums_in_single(elmo, layers):
    half = host(ElmoEmbeddings(elmo.to(torch.float16), layers=layers))
    found = half.encode(TEXTS, convert_to_tensor=True)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found, elmo.encode(TEXTS, layers=layers), atol=1e-3)


def test_the_weights_of_words_belong_to_the_words_that_are_kept(elmo):
    elmo.word_weights = WordWeights({"bank": 5, "the": 900, "lent": 1})
    module = ElmoEmbeddings(elmo, layers="sense", max_seq_length=3)
    features = module.preprocess(["The bank lent money.", "the", ""])
    np.testing.assert_allclose(features["word_weights"][0], elmo.word_weights(["The", "bank", "lent"]))
    np.testing.assert_allclose(features["word_weights"][1], [*elmo.word_weights(["the"]), 0, 0])
    assert not features["word_weights"][2].any()
    assert module.preprocess([""])["word_weights"].shape == (1, 1)
    expected = elmo.encode([["The", "bank", "lent"]], layers="sense")
    np.testing.assert_allclose(host(module).encode(["The bank lent money."]), expected, atol=1e-5)
    assert "word_weights" not in ElmoEmbeddings(elmo, layers="slot").preprocess(["a"])


@pytest.mark.parametrize("layers", ["slot", "sense"])
def test_gradients_reach_the_biLM_through_slot_and_sense(tiny_elmo, layers):
    module = ElmoEmbeddings(ELMo.from_pretrained(tiny_elmo, freeze=False), layers=layers)
    texts = ["The bank lent money .", "", "bank"]  # no words; one word, which has no surroundings
    vectors = module(module.preprocess(texts))["sentence_embedding"]
    wanted = torch.randn(vectors.shape, generator=torch.Generator().manual_seed(3))
    (vectors * wanted).sum().backward()
    for name, parameter in module.named_parameters():
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.any(), name
    # one weight, moved a little in float64: the loss changes as the gradient says
    wide = ELMo.from_pretrained(tiny_elmo, dtype=torch.float64)
    entry = (0, 3, 2)
    step = 1e-5
    losses = []
    for sign in (1, -1):
        wide.bilm.layers[0].recurrent_weight.data[entry] += sign * step
        losses.append(float((wide.encode(texts, layers=layers) * wanted.numpy()).sum()))
        wide.bilm.layers[0].recurrent_weight.data[entry] -= sign * step
    slope = (losses[0] - losses[1]) / (2 * step)
    assert slope == pytest.approx(float(module.elmo.bilm.layers[0].recurrent_weight.grad[entry]), rel=1e-3)


def test_the_module_holds_a_copy_without_what_vectors_do_not_need(tmp_path):
    words = Vocabulary(["<S>", "</S>", "<UNK>", "a"])
    sizes = BiLMConfig(char_dim=2, filters=((1, 4),), num_highways=0, cell_dim=4, projection_dim=4)
    elmo = ELMo(BiLM(sizes), output_layer=OutputLayer(4, 4), vocabulary=words, state="carry", keep_boundaries=True)
    module = ElmoEmbeddings(elmo)
    assert {name.split(".")[1] for name, _ in module.named_parameters()} == {"bilm"}
    assert elmo.output_layer is not None
    assert len(elmo.mixes) == 1
    model = host(module)
    assert np.array_equal(model.encode(["a b"]), model.encode(["a b"])), "no state is carried"
    module.elmo.bilm.layers[0].projection.data.zero_()
    assert elmo.bilm.layers[0].projection.any()


def test_a_word_level_model_keeps_its_vocabulary(tmp_path):
    words = Vocabulary(["<S>", "</S>", "<UNK>", "a"])
    elmo = ELMo(BiLM(BiLMConfig(num_words=4, cell_dim=4, projection_dim=4)), vocabulary=words)
    model = host(ElmoEmbeddings(elmo))
    np.testing.assert_allclose(model.encode(["a b", ""]), elmo.encode(["a b", ""]), atol=1e-6)
    assert not model.encode([""]).any()
    model.save_pretrained(str(tmp_path))
    loaded = SentenceTransformer(str(tmp_path), device="cpu", trust_remote_code=True)
    assert np.array_equal(loaded.encode(["a b"]), model.encode(["a b"]))


def test_a_model_can_be_sent_to_another_process(elmo):
    model = host(ElmoEmbeddings(elmo, layers="mix"))
    assert np.array_equal(pickle.loads(pickle.dumps(model)).encode(TEXTS), model.encode(TEXTS))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layers": "all"}, "not 'all'"),
        ({"layers": 3}, "0 to 2, not 3"),
        ({"layers": -4}, "0 to 2, not -4"),
        ({"layers": True}, "not True"),
        ({"max_seq_length": 0}, "max_seq_length"),
    ],
)
def test_a_wrong_setting_is_named(elmo, settings, message):
    with pytest.raises(ValueError, match=message):
        ElmoEmbeddings(elmo, **settings)


def test_a_mix_needs_an_elmo_with_one(tiny_elmo):
    with pytest.raises(ValueError, match="num_mixes=1, not 2"):
        ElmoEmbeddings(ELMo.from_pretrained(tiny_elmo, num_mixes=2), layers="mix")


# ---- save and load ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layers", ["top", "mix", "slot", "sense", 0])
def test_a_saved_model_loads_and_encodes_the_same_bits(tiny_elmo, tmp_path, layers):
    elmo = ELMo.from_pretrained(tiny_elmo, freeze=False, dropout=0.25)
    elmo.mixes[0].weights.data = torch.tensor([0.0, 1.0, 2.0])
    model = host(ElmoEmbeddings(elmo, layers=layers, max_seq_length=7), Dense(16, 4))
    model.save_pretrained(str(tmp_path))
    loaded = SentenceTransformer(str(tmp_path), device="cpu", trust_remote_code=True)
    assert np.array_equal(loaded.encode(TEXTS), model.encode(TEXTS))
    assert loaded[0].get_config_dict() == model[0].get_config_dict()
    assert loaded[0].get_config_dict() == {"layers": layers, "max_seq_length": 7, "freeze": False, "dropout": 0.25}
    assert all(parameter.requires_grad for parameter in loaded[0].parameters())


def test_sense_keeps_the_words_of_a_language_model_when_it_is_saved(tmp_path):
    words = Vocabulary(["<S>", "</S>", "<UNK>", "the", "bank"])
    sizes = BiLMConfig(char_dim=2, filters=((1, 4),), num_highways=0, cell_dim=4, projection_dim=4)
    elmo = ELMo(BiLM(sizes), output_layer=OutputLayer(5, 4), vocabulary=words).eval()
    texts = ["the bank", "a bank lent the money"]
    model = host(ElmoEmbeddings(elmo, layers="sense"))
    np.testing.assert_allclose(model.encode(texts), elmo.encode(texts, layers="sense"), atol=1e-5)
    model.save_pretrained(str(tmp_path))
    loaded = SentenceTransformer(str(tmp_path), device="cpu", trust_remote_code=True)
    assert np.array_equal(loaded.encode(texts), model.encode(texts))
    assert loaded[0].elmo.output_layer is None
    assert {name.split(".")[1] for name, _ in loaded[0].named_parameters()} == {"bilm"}


def test_the_saved_folder_is_a_folder_of_elmo_too(elmo, tmp_path):
    model = host(ElmoEmbeddings(elmo))
    model.save_pretrained(str(tmp_path))
    np.testing.assert_allclose(ELMo.from_pretrained(tmp_path).encode(TEXTS), model.encode(TEXTS), atol=1e-6)


def test_a_folder_with_wrong_settings_is_refused_by_name(elmo, tmp_path):
    model = host(ElmoEmbeddings(elmo))
    model.save_pretrained(str(tmp_path))
    path = tmp_path / "elmo_embeddings.json"
    missing = "missing keys 'max_seq_length', 'freeze', 'dropout'"
    for settings, message in [({"layers": "top"}, missing), ({"depth": 3}, "unknown key 'depth'")]:
        path.write_text(json.dumps(settings))
        with pytest.raises(ValueError, match=rf"elmo_embeddings.json: .*{message}"):
            SentenceTransformer(str(tmp_path), device="cpu", trust_remote_code=True)
    path.unlink()
    with pytest.raises(ValueError, match=r"elmo_embeddings.json: the file is missing"):
        SentenceTransformer(str(tmp_path), device="cpu", trust_remote_code=True)


# ---- training and evaluation -----------------------------------------------------------------------------------------

PAIRS = {
    "first": ["a red car", "the blue sky", "a red car", "rain falls", "the blue sky", "rain falls"],
    "second": ["one red car", "that blue sky", "rain fell", "rain fell", "one red car", ""],
    "score": [1.0, 1.0, 0.0, 1.0, 0.0, 0.0],
}


def pairs_trainer(elmo, out, **settings):
    set_seed(1)
    model = host(ElmoEmbeddings(elmo, **settings))
    arguments = SentenceTransformerTrainingArguments(
        str(out), max_steps=20, learning_rate=0.01, per_device_train_batch_size=6, save_steps=10, report_to=[],
        use_cpu=True, disable_tqdm=True, seed=5, logging_steps=1, warmup_steps=0,
    )  # fmt: skip
    data = Dataset.from_dict(PAIRS)
    return SentenceTransformerTrainer(model, arguments, train_dataset=data, loss=CosineSimilarityLoss(model))


def losses_of(trainer):
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def test_fine_tuning_lowers_the_loss_and_resumes_to_the_same_bits(tiny_elmo, tmp_path):
    elmo = ELMo.from_pretrained(tiny_elmo, freeze=False)
    judge = EmbeddingSimilarityEvaluator(PAIRS["first"], PAIRS["second"], PAIRS["score"], write_csv=False)
    before = judge(host(ElmoEmbeddings(elmo)))["spearman_cosine"]
    whole = pairs_trainer(elmo, tmp_path / "whole")
    whole.train()
    losses = losses_of(whole)
    assert losses[-1] < losses[0] / 4
    assert judge(whole.model)["spearman_cosine"] > max(before, 0.8)

    shutil.copytree(tmp_path / "whole" / "checkpoint-10", tmp_path / "resumed" / "checkpoint-10")
    resumed = pairs_trainer(elmo, tmp_path / "resumed")
    resumed.train(resume_from_checkpoint=True)
    assert np.array_equal(resumed.model.encode(TEXTS), whole.model.encode(TEXTS))
    saved = SentenceTransformer(str(tmp_path / "whole" / "checkpoint-20"), device="cpu", trust_remote_code=True)
    assert np.array_equal(saved.encode(TEXTS), whole.model.encode(TEXTS))


def test_fine_tuning_by_sense_lowers_the_loss(tiny_elmo, tmp_path):
    trainer = pairs_trainer(ELMo.from_pretrained(tiny_elmo, freeze=False), tmp_path, layers="sense")
    trainer.train()
    losses = losses_of(trainer)
    assert losses[-1] < losses[0] / 2


def test_of_a_frozen_biLM_the_mix_alone_is_learnt(elmo, tmp_path):
    trainer = pairs_trainer(elmo, tmp_path, layers="mix")
    trainer.train()
    learnt = trainer.model[0].elmo
    assert learnt.mixes[0].weights.any()
    assert not elmo.mixes[0].weights.any()
    assert torch.equal(learnt.bilm.layers[0].projection, elmo.bilm.layers[0].projection)


def test_a_contrastive_loss_falls_too(tiny_elmo, tmp_path):
    set_seed(1)
    model = host(ElmoEmbeddings(ELMo.from_pretrained(tiny_elmo, freeze=False)))
    arguments = SentenceTransformerTrainingArguments(
        str(tmp_path), max_steps=15, learning_rate=0.01, per_device_train_batch_size=3, save_strategy="no",
        report_to=[], use_cpu=True, disable_tqdm=True, logging_steps=1, warmup_steps=0,
    )  # fmt: skip
    data = Dataset.from_dict(
        {"anchor": ["red car", "blue sky", "rain"], "positive": ["a red car", "that sky", "it rains"]}
    )
    trainer = SentenceTransformerTrainer(model, arguments, train_dataset=data, loss=MultipleNegativesRankingLoss(model))
    trainer.train()
    losses = losses_of(trainer)
    assert losses[-1] < losses[0] / 2


def test_the_host_evaluators_give_what_the_vectors_give(elmo):
    model = host(ElmoEmbeddings(elmo))
    unit = {text: elmo.encode(text, normalize=True) for text in {*PAIRS["first"], *PAIRS["second"]}}
    cosines = [float(unit[a] @ unit[b]) for a, b in zip(PAIRS["first"], PAIRS["second"], strict=True)]

    similar = EmbeddingSimilarityEvaluator(PAIRS["first"], PAIRS["second"], PAIRS["score"], write_csv=False)(model)
    assert similar["pearson_cosine"] == pytest.approx(np.corrcoef(cosines, PAIRS["score"])[0, 1], abs=1e-5)

    labels = [int(score) for score in PAIRS["score"]]
    binary = BinaryClassificationEvaluator(PAIRS["first"], PAIRS["second"], labels, write_csv=False)(model)
    cosines_of = {label: [c for c, found in zip(cosines, labels, strict=True) if found == label] for label in (0, 1)}
    right = [sum(c >= limit for c in cosines_of[1]) + sum(c < limit for c in cosines_of[0]) for limit in cosines]
    best = max(right) / len(labels)
    assert binary["cosine_accuracy"] == pytest.approx(best)

    triplet = TripletEvaluator(["a red car"], ["one red car"], ["rain fell"], write_csv=False)(model)
    closer = unit["a red car"] @ unit["one red car"] > unit["a red car"] @ unit["rain fell"]
    assert triplet["cosine_accuracy"] == float(closer)

    texts, right = {text: text for text in unit}, {text: {text} for text in unit if text}
    found = InformationRetrievalEvaluator(texts, texts, right, write_csv=False)(model)
    assert found["cosine_accuracy@1"] == 1.0, "a text is nearest to itself"


# ---- without the extra -----------------------------------------------------------------------------------------------


def test_without_sentence_transformers_the_import_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentence_transformers.base.modules", None)
    monkeypatch.delitem(sys.modules, ours.__name__)
    with pytest.raises(ImportError, match=r'pip install "elmokit\[sentence-transformers\]"'):
        importlib.import_module(ours.__name__)
