"""ELMo inside transformers: the Auto classes, save and load, the tokenizer's conventions, pipelines and the Trainer."""

import importlib
import shutil
import sys

import numpy as np
import pytest

pytest.importorskip("transformers")
pytest.importorskip("datasets.arrow_dataset")  # `datasets` alone is found as a folder of tests

import torch
from safetensors.torch import load_file
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    pipeline,
    set_seed,
)

import reference
from datasets import Dataset
from elmokit import BiLM, BiLMConfig, ELMo, Vocabulary, batch_to_ids
from elmokit.integrations import transformers as ours
from elmokit.integrations.transformers import (
    ElmokitConfig,
    ElmokitForSequenceClassification,
    ElmokitForTokenClassification,
    ElmokitModel,
    ElmokitTokenizer,
)

TEXTS = ["The bank lent money.", "", f"He said: {'o' * 99}!", "Ça va? 友達", "I cannot pay $3.50, Mr. Jones."]


@pytest.fixture
def elmo(tiny_elmo):
    return ELMo.from_pretrained(tiny_elmo)


@pytest.fixture
def tokenizer(elmo):
    return ElmokitTokenizer.from_elmo(elmo)


@pytest.fixture
def folder(elmo, tokenizer, tmp_path):
    """What a user saves: a model and its tokenizer."""
    ElmokitModel.from_elmo(elmo).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def assert_equal_weights(first, second):
    first, second = first.state_dict(), second.state_dict()
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


# ---- save and load ---------------------------------------------------------------------------------------------------


def test_the_auto_classes_load_what_was_saved_bit_for_bit(elmo, folder):
    model, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert (type(model), type(tokenizer)) == (ElmokitModel, ElmokitTokenizer)
    assert not model.training
    assert_equal_weights(model.bilm, elmo.bilm)
    with torch.no_grad():
        hidden = model(**tokenizer(TEXTS, padding=True, return_tensors="pt"), output_hidden_states=True).hidden_states
        assert torch.equal(torch.stack(hidden), elmo(batch_to_ids(TEXTS)).layers)


def test_the_configuration_survives_a_save_and_says_the_sizes(folder):
    config = AutoConfig.from_pretrained(folder)
    assert type(config) is ElmokitConfig
    assert config.bilm_config == BiLMConfig(
        char_dim=4, filters=((1, 8), (2, 8)), num_highways=1, cell_dim=16, projection_dim=8
    )
    assert (config.hidden_size, config.num_hidden_layers, config.vocab_size) == (16, 2, 262)


def test_the_way_to_transformers_and_back_keeps_every_bit(tiny_elmo, folder, tmp_path):
    there = AutoModel.from_pretrained(folder)
    back = there.to_elmo()
    back.save_pretrained(tmp_path / "back")
    expected = load_file(f"{tiny_elmo}/model.safetensors")
    found = load_file(tmp_path / "back" / "model.safetensors")
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    there.bilm.layers[0].projection.data.zero_()
    assert back.bilm.layers[0].projection.any(), "the ELMo has weights of its own"


def test_the_type_of_the_weights_goes_along(elmo, tmp_path):
    ElmokitModel.from_elmo(elmo.to(torch.float16)).save_pretrained(tmp_path)
    model = AutoModel.from_pretrained(tmp_path)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float16}
    assert model.to_elmo().bilm.layers[0].bias.dtype == torch.float16


def test_a_new_model_begins_with_the_published_distributions():
    set_seed(0)
    config = ElmokitConfig(bilm=BiLMConfig(filters=((3, 500),), num_highways=1, cell_dim=32, projection_dim=16))
    model = AutoModel.from_config(config)
    encoder = model.bilm.char_encoder
    assert torch.equal(encoder.highways[0].carry.bias, torch.full((500,), -2.0))
    assert encoder.char_embedding.abs().max() <= 1
    assert encoder.char_embedding.std().item() == pytest.approx(3**-0.5, rel=0.05)  # U(-1, 1)
    assert encoder.highways[0].transform.weight.std().item() == pytest.approx(500**-0.5, rel=0.05)
    assert ElmokitConfig().bilm_config == BiLMConfig()


def test_a_head_takes_the_biLM_of_a_saved_model_and_gives_it_back(folder, elmo, tmp_path, caplog):
    head = AutoModelForTokenClassification.from_pretrained(folder, num_labels=3)
    assert type(head) is ElmokitForTokenClassification
    assert_equal_weights(head.elmokit.bilm, elmo.bilm)
    assert torch.equal(head.elmokit.bilm.boundary_ids, elmo.bilm.boundary_ids)
    assert head.classifier.weight.shape == (3, 16)
    head.mix.weights.data = torch.tensor([0.0, 1.0, 2.0])
    head.save_pretrained(tmp_path / "head")
    again = AutoModelForTokenClassification.from_pretrained(tmp_path / "head")
    assert_equal_weights(again, head)
    assert_equal_weights(AutoModel.from_pretrained(tmp_path / "head").bilm, elmo.bilm)
    assert_equal_weights(again.to_elmo().mixes[0], head.mix)


# ---- the tokenizer ---------------------------------------------------------------------------------------------------


def test_ids_and_mask_are_those_of_the_reference(tokenizer):
    words = [["The", "bank", "lent", "money", "."], [], ["Hi", "友達", "o" * 99, "<pad>", ""]]
    batch = tokenizer(words, is_split_into_words=True, padding=True, return_tensors="pt")
    options, _ = reference.random_model(np.random.default_rng(0))
    assert batch["input_ids"].shape == (3, 5, 50)
    assert batch["input_ids"].tolist() == reference.shifted_ids(options, words, None).tolist()
    assert batch["attention_mask"].tolist() == [[1] * 5, [0] * 5, [1] * 5]


def test_offsets_lead_back_to_the_text(tokenizer):
    text = TEXTS[-1]
    encoded = tokenizer(text, return_offsets_mapping=True, return_length=True, return_special_tokens_mask=True)
    words = [text[start:end] for start, end in encoded["offset_mapping"]]
    assert words == ["I", "can", "not", "pay", "$", "3.50", ",", "Mr.", "Jones", "."]
    assert words == tokenizer.tokenize(text) == tokenizer.convert_ids_to_tokens(encoded["input_ids"])
    assert (encoded["length"], encoded["special_tokens_mask"]) == (10, [0] * 10)
    split = tokenizer([["a", "bc"], ["d"]], is_split_into_words=True, padding=True, return_offsets_mapping=True)
    assert split["offset_mapping"] == [[(0, 1), (0, 2)], [(0, 1), (0, 0)]]


def test_padding_and_truncation_follow_the_usual_arguments(tokenizer):
    assert [len(rows) for rows in tokenizer(["a b c", "d"])["input_ids"]] == [3, 1]
    assert tokenizer("a b", padding="max_length", max_length=4)["attention_mask"] == [1, 1, 0, 0]
    assert tokenizer(["a b c"], padding=True, pad_to_multiple_of=4, return_tensors="np")["input_ids"].shape == (
        1,
        4,
        50,
    )
    cut = tokenizer("a b c", truncation=True, max_length=2)
    assert tokenizer.decode(cut["input_ids"]) == "a b"
    tokenizer.truncation_side = "left"
    assert tokenizer.decode(tokenizer("a b c", truncation=True, max_length=2)["input_ids"]) == "b c"
    assert tokenizer("a b c", truncation=True, max_length=0)["input_ids"] == []


def test_texts_without_words_keep_their_shape(tokenizer):
    for kind in ("pt", "np"):
        batch = tokenizer(["", " "], padding=True, return_tensors=kind)
        assert tuple(batch["input_ids"].shape) == (2, 0, 50)
        assert tuple(batch["attention_mask"].shape) == (2, 0)
    assert tokenizer("")["input_ids"] == []
    assert tokenizer([], is_split_into_words=True, return_tensors="pt")["input_ids"].shape == (1, 0, 50)


def test_ids_are_read_back_as_words(tokenizer):
    batch = tokenizer(["Ça va ?", "友達"], padding=True, return_tensors="pt")["input_ids"]
    assert tokenizer.decode(batch) == ["Ça va ?", "友達 <pad> <pad>"]
    assert tokenizer.decode(batch, skip_special_tokens=True) == ["Ça va ?", "友達"]
    assert tokenizer.convert_tokens_to_ids("va") == batch[0, 1].tolist()
    assert tokenizer.convert_ids_to_tokens(batch[0, 1]) == "va"
    assert tokenizer.convert_ids_to_tokens(tokenizer.convert_tokens_to_ids(["<S>", "o" * 60])) == ["<bos>", "o" * 48]
    assert (tokenizer.pad_token_id, len(tokenizer), tokenizer.vocab_size) == (0, 262, 262)


def test_a_saved_tokenizer_remembers_how_many_characters_a_word_has(elmo, tmp_path):
    short = ELMo(BiLM(BiLMConfig(max_characters=12, filters=((1, 4),), num_highways=0, cell_dim=4, projection_dim=4)))
    ElmokitTokenizer.from_elmo(short).save_pretrained(tmp_path)
    ElmokitModel.from_elmo(short).save_pretrained(tmp_path)
    ids = AutoTokenizer.from_pretrained(tmp_path)(["a b"], return_tensors="pt")
    assert ids["input_ids"].shape == (1, 2, 12)
    assert AutoModel.from_pretrained(tmp_path)(**ids).last_hidden_state.shape == (1, 2, 8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"text": "a", "text_pair": "b"}, "text_pair"),
        ({"text": ["a"], "return_overflowing_tokens": True}, "return_overflowing_tokens"),
        ({"text": [["a", "b"]]}, "is_split_into_words is False"),
        ({"text": "a b", "is_split_into_words": True}, "is_split_into_words is True"),
        ({"text": [["a"], "b"], "is_split_into_words": True}, "'b'"),
        ({"text": 5}, "sentences is 5"),
        ({"text": ["a", "b c"], "padding": True, "padding_side": "left"}, "must be 'right'"),
    ],
)
def test_what_the_tokenizer_cannot_do_is_refused_by_name(tokenizer, arguments, message):
    with pytest.raises(ValueError, match=message):
        tokenizer(**arguments)


# ---- the model -------------------------------------------------------------------------------------------------------


def test_outputs_match_the_reference(official_model):
    files = official_model(seed=3)
    sentences = [["The", "bank", "."], ["Rain"]]
    elmo = ELMo.from_files(files.options_path, files.weights_path)
    batch = ElmokitTokenizer.from_elmo(elmo)(sentences, is_split_into_words=True, padding=True, return_tensors="pt")
    with torch.no_grad():
        out = ElmokitModel.from_elmo(elmo)(**batch, output_hidden_states=True)
    for row, sentence in enumerate(sentences):
        expected = files.expected(sentence).layers
        found = torch.stack(out.hidden_states)[:, row].numpy()
        np.testing.assert_allclose(found[:, : len(sentence)], expected, atol=1e-5)
        np.testing.assert_allclose(out.last_hidden_state[row, : len(sentence)], expected[-1], atol=1e-5)
        assert not found[:, len(sentence) :].any()


def test_a_sentence_has_the_same_vectors_alone_and_in_any_batch(elmo, tokenizer):
    model = ElmokitModel.from_elmo(elmo)
    with torch.no_grad():
        together = model(**tokenizer(TEXTS, padding=True, return_tensors="pt")).last_hidden_state
        for row, text in enumerate(TEXTS):
            alone = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
            torch.testing.assert_close(together[row, : len(alone)], alone, atol=1e-6, rtol=0)
            assert not together[row, len(alone) :].any()


def test_what_the_attention_mask_hides_is_not_read(elmo, tokenizer):
    model = ElmokitModel.from_elmo(elmo)
    batch = tokenizer(["a b c d"], return_tensors="pt")
    batch["attention_mask"][0, 2:] = 0
    with torch.no_grad():
        hidden = model(**batch).last_hidden_state[0]
        short = model(**tokenizer(["a b"], return_tensors="pt")).last_hidden_state[0]
    torch.testing.assert_close(hidden[:2], short, atol=1e-6, rtol=0)
    assert not hidden[2:].any()
    batch["attention_mask"][0] = torch.tensor([0, 1, 1, 1])
    with pytest.raises(ValueError, match="padding before a token"):
        model(**batch)
    with pytest.raises(ValueError, match=r"attention_mask is \(1, 3\)"):
        model(batch["input_ids"], attention_mask=torch.ones(1, 3))


def test_hidden_states_come_when_asked_for_and_tuples_too(elmo, tokenizer):
    model, batch = ElmokitModel.from_elmo(elmo), tokenizer(["a b"], return_tensors="pt")
    assert model(**batch).hidden_states is None
    hidden = model(**batch, output_hidden_states=True).hidden_states
    assert [tuple(layer.shape) for layer in hidden] == [(1, 2, 16)] * 3
    assert isinstance(model(**batch, return_dict=False), tuple)
    always = ElmokitModel.from_elmo(elmo, output_hidden_states=True)
    assert torch.equal(always(**batch).hidden_states[-1], always(**batch).last_hidden_state)


@pytest.mark.parametrize("head", [ElmokitForTokenClassification, ElmokitForSequenceClassification])
def test_gradients_reach_every_parameter_of_a_head(elmo, tokenizer, head):
    model = head.from_elmo(elmo, num_labels=2).train()
    batch = tokenizer(["a b", "c"], padding=True, return_tensors="pt")
    labels = torch.tensor([1, 0] if head is ElmokitForSequenceClassification else [[1, 0], [0, -100]])
    model(**batch, labels=labels).loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert model.elmokit.bilm.char_encoder.char_embedding.grad.any()


def test_the_loss_of_a_tagger_leaves_out_labels_of_padding(elmo, tokenizer):
    model = ElmokitForTokenClassification.from_elmo(elmo, num_labels=3)
    batch = tokenizer(["a b c", "d"], padding=True, return_tensors="pt")
    labels = torch.tensor([[0, 1, 2], [1, -100, -100]])
    with torch.no_grad():
        out = model(**batch, labels=labels)
        mixed = elmo.mixes[0](elmo(batch_to_ids(["a b c", "d"])).layers, batch["attention_mask"] != 0)
    logits = mixed @ model.classifier.weight.T + model.classifier.bias
    torch.testing.assert_close(out.logits, logits.detach(), atol=1e-6, rtol=0)
    kept = logits.log_softmax(-1)[labels >= 0, labels[labels >= 0]]
    assert out.loss.item() == pytest.approx(-kept.mean().item(), abs=1e-6)


def test_a_sentence_classifier_reads_the_mean_of_its_words(elmo, tokenizer):
    model = ElmokitForSequenceClassification.from_elmo(elmo, num_labels=2)
    with torch.no_grad():
        found = model(**tokenizer(TEXTS, padding=True, return_tensors="pt")).logits
    expected = torch.from_numpy(elmo.encode(TEXTS)) @ model.classifier.weight.T + model.classifier.bias
    torch.testing.assert_close(found, expected.detach(), atol=1e-6, rtol=0)


def test_what_transformers_would_read_wrongly_is_refused(elmo, tiny_elmo, tmp_path):
    with pytest.raises(ValueError, match="from_elmo"):
        ElmokitModel.from_pretrained(tiny_elmo)
    words = Vocabulary(["<S>", "</S>", "<UNK>", "a"])
    word_level = ELMo(BiLM(BiLMConfig(num_words=4, cell_dim=4, projection_dim=4)), vocabulary=words)
    with pytest.raises(ValueError, match="vocabulary or lexicon"):
        ElmokitModel.from_elmo(word_level)
    with pytest.raises(ValueError, match="without quantize"):
        ElmokitModel.from_elmo(ELMo.from_pretrained(tiny_elmo, quantize="int8"))
    with pytest.raises(ValueError, match=r"ElmokitConfig.bilm: unknown key 'width'"):
        ElmokitConfig(bilm={"width": 3})


# ---- pipelines -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [1, 3])
def test_the_feature_extraction_pipeline_gives_the_top_layer(elmo, folder, batch_size):
    extract = pipeline("feature-extraction", model=str(folder), device="cpu")
    found = extract(["", *TEXTS], batch_size=batch_size)
    for vectors, expected in zip(found, elmo.embed(["", *TEXTS], layers="top"), strict=True):
        vectors = np.array(vectors)[0].reshape(-1, 16)
        np.testing.assert_allclose(vectors[: len(expected)], expected, atol=1e-6)
        assert not vectors[len(expected) :].any()


def test_the_text_classification_pipeline_names_labels(elmo, tokenizer):
    model = ElmokitForSequenceClassification.from_elmo(elmo, id2label={0: "bad", 1: "good"})
    model.classifier.bias.data = torch.tensor([0.0, 50.0])
    found = pipeline("text-classification", model=model, tokenizer=tokenizer, device="cpu")(TEXTS, batch_size=2)
    assert [result["label"] for result in found] == ["good"] * len(TEXTS)


# ---- the Trainer -----------------------------------------------------------------------------------------------------


def tagged(tokenizer):
    """Words whose label is whether they are names; one sentence has no word."""
    sentences = [
        ["Anna", "sleeps"],
        ["in", "Rome"],
        ["Ben", "eats", "Anna"],
        [],
        ["runs"],
        ["Rome", "in", "Rome", "Ben"],
    ]
    return [
        {**tokenizer(words, is_split_into_words=True), "labels": [int(word.istitle()) for word in words]}
        for words in sentences
    ]


def tagger_trainer(elmo, tokenizer, out):
    set_seed(1)
    arguments = TrainingArguments(
        str(out), max_steps=40, learning_rate=0.05, per_device_train_batch_size=3, save_steps=20, warmup_steps=5,
        report_to=[], use_cpu=True, disable_tqdm=True, seed=5,
    )  # fmt: skip
    model = ElmokitForTokenClassification.from_elmo(elmo, num_labels=2, classifier_dropout=0.1)
    examples = tagged(tokenizer)
    return Trainer(
        model,
        arguments,
        train_dataset=examples,
        eval_dataset=examples,
        data_collator=DataCollatorForTokenClassification(tokenizer),
        processing_class=tokenizer,
    )


def test_a_tagger_learns_under_the_trainer_and_resumes_to_the_same_bits(elmo, tokenizer, tmp_path):
    whole = tagger_trainer(elmo, tokenizer, tmp_path / "whole")
    before = whole.evaluate()["eval_loss"]
    whole.train()
    assert whole.evaluate()["eval_loss"] < before / 10
    predicted = whole.predict(tagged(tokenizer))
    right = predicted.predictions.argmax(-1) == predicted.label_ids
    assert right[predicted.label_ids >= 0].all()
    assert not torch.equal(whole.model.elmokit.bilm.layers[0].bias, elmo.bilm.layers[0].bias)

    shutil.copytree(tmp_path / "whole" / "checkpoint-20", tmp_path / "resumed" / "checkpoint-20")
    resumed = tagger_trainer(elmo, tokenizer, tmp_path / "resumed")
    resumed.train(resume_from_checkpoint=True)
    assert_equal_weights(resumed.model, whole.model)
    saved = AutoModelForTokenClassification.from_pretrained(tmp_path / "whole" / "checkpoint-40")
    assert_equal_weights(saved, whole.model)
    assert isinstance(AutoTokenizer.from_pretrained(tmp_path / "whole" / "checkpoint-40"), ElmokitTokenizer)


def test_a_frozen_biLM_stays_as_it_is_while_a_sentence_classifier_learns(folder, elmo, tokenizer, tmp_path):
    set_seed(1)
    model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=2, classifier_dropout=0.0)
    model.base_model.requires_grad_(False)
    examples = Dataset.from_dict({"text": TEXTS, "labels": [0, 1, 0, 1, 0]})
    examples = examples.map(lambda rows: tokenizer(rows["text"]), batched=True)
    arguments = TrainingArguments(
        str(tmp_path / "out"), num_train_epochs=40, learning_rate=0.5, report_to=[], use_cpu=True, disable_tqdm=True,
        save_strategy="no",
    )  # fmt: skip
    trainer = Trainer(
        model,
        arguments,
        train_dataset=examples,
        eval_dataset=examples,
        data_collator=DataCollatorWithPadding(tokenizer),
    )
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < before / 2
    assert_equal_weights(model.elmokit.bilm, elmo.bilm)
    assert model.mix.weights.any()


def test_a_batch_of_sentences_without_words_goes_through_a_collator(elmo, tokenizer):
    batch = DataCollatorWithPadding(tokenizer)([tokenizer(""), tokenizer(" ")])
    assert ElmokitModel.from_elmo(elmo)(**batch).last_hidden_state.shape == (2, 0, 16)


# ---- without the extra -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["characters", "spaces"])
def test_the_tokenizer_of_the_model_goes_along(tiny_elmo, tmp_path, name):
    elmo = ELMo(ELMo.from_pretrained(tiny_elmo).bilm, tokenizer=name)
    text = "银行, 在河边."
    ElmokitTokenizer.from_elmo(elmo).save_pretrained(tmp_path)
    ElmokitModel.from_elmo(elmo).save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer.tokenize(text) == elmo.tokenizer(text)
    encoded = tokenizer(text, return_tensors="pt", return_offsets_mapping=True)
    assert [text[start:end] for start, end in encoded["offset_mapping"][0].tolist()] == elmo.tokenizer(text)
    assert torch.equal(encoded["input_ids"], elmo.to_ids([text]))
    assert AutoModel.from_pretrained(tmp_path).to_elmo().tokenizer == elmo.tokenizer


def test_without_transformers_the_import_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, ours.__name__)
    with pytest.raises(ImportError, match=r'pip install "elmokit\[transformers\]"'):
        importlib.import_module(ours.__name__)
