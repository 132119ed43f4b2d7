"""The names of other packages: their signatures, their shapes, and the reference's numbers behind them."""

import inspect
import json
import shutil
import zipfile

import h5py
import numpy as np
import pytest
import torch

import elmokit
import reference
from elmokit import ELMo, Vocabulary
from elmokit.compat import Elmo, ElmoEmbedder, ElmoModel, Embedder, TFHubELMo, batch_to_ids
from elmokit.network import OutputLayer
from elmokit.storage.names import OFFICIAL

SENTENCES = [["The", "bank", "lent", "money"], ["Hi"], ["naïve", "日本", "."]]
WIDTH = 10  # 2P


@pytest.fixture(scope="module")
def made(official_model):
    return official_model(5)


@pytest.fixture(scope="module")
def paths(made):
    return made.options_path, made.weights_path


@pytest.fixture(scope="module")
def folder(made, tmp_path_factory):
    """The model as other packages' folders have it: options.json and weights.hdf5."""
    where = tmp_path_factory.mktemp("folder")
    shutil.copy(made.options_path, where / "options.json")
    shutil.copy(made.weights_path, where / "weights.hdf5")
    return where


def layers(made, sentence):
    return made.expected(sentence).layers  # (3, T, 2P)


def mean(made, sentence):
    return layers(made, sentence).mean(axis=0)


def close(found, expected):
    assert tuple(found.shape) == expected.shape
    np.testing.assert_allclose(found, expected, atol=1e-5)


# ---- AllenNLP: Elmo -------------------------------------------------------------------------------------------------


def test_the_signatures_are_allennlp_s():
    names = list(inspect.signature(Elmo).parameters)
    assert names[:9] == [
        "options_file", "weight_file", "num_output_representations", "requires_grad", "do_layer_norm", "dropout",
        "vocab_to_cache", "keep_sentence_boundaries", "scalar_mix_parameters",
    ]  # fmt: skip
    assert list(inspect.signature(ElmoEmbedder).parameters)[:3] == ["options_file", "weight_file", "cuda_device"]
    assert inspect.signature(ElmoEmbedder).parameters["options_file"].default == OFFICIAL["original"].options
    assert inspect.signature(ElmoEmbedder).parameters["weight_file"].default == OFFICIAL["original"].weights
    assert batch_to_ids is elmokit.batch_to_ids


def test_elmo_gives_each_mix_and_the_mask(made, paths):
    elmo = Elmo(*paths, 2, dropout=0)
    output = elmo(batch_to_ids(SENTENCES))
    assert set(output) == {"elmo_representations", "mask"}
    assert output["mask"].tolist() == [[True] * 4, [True, False, False, False], [True, True, True, False]]
    assert elmo.get_output_dim() == WIDTH
    for mixed in output["elmo_representations"]:
        assert mixed.shape == (3, 4, WIDTH)
        for row, sentence in zip(mixed.detach(), SENTENCES, strict=True):
            close(row[: len(sentence)], mean(made, sentence))
            assert not row[len(sentence) :].any()
    assert len(output["elmo_representations"]) == 2


def test_elmo_is_in_training_mode_when_it_is_new_and_dropout_stops_with_eval(paths):
    elmo = Elmo(*paths, 1)
    ids = batch_to_ids(SENTENCES)
    dropped = elmo(ids)["elmo_representations"][0][0]
    assert 0.2 < (dropped == 0).float().mean() < 0.8
    elmo.eval()
    assert torch.equal(elmo(ids)["elmo_representations"][0], elmo(ids)["elmo_representations"][0])


def test_elmo_trains_the_mixes_alone_unless_gradients_are_required(paths):
    for requires_grad in (False, True):
        elmo = Elmo(*paths, 1, requires_grad=requires_grad, dropout=0)
        elmo(batch_to_ids(SENTENCES))["elmo_representations"][0].sum().backward()
        moved = {name.split(".")[1] for name, parameter in elmo.named_parameters() if parameter.grad is not None}
        assert moved == ({"mixes", "bilm"} if requires_grad else {"mixes"})


def test_elmo_gives_leading_dimensions_back(paths):
    elmo = Elmo(*paths, 1, dropout=0)
    ids = batch_to_ids(SENTENCES)
    flat = elmo(ids)
    stacked = elmo(ids.expand(2, 5, *ids.shape))
    assert stacked["mask"].shape == (2, 5, 3, 4)
    assert stacked["elmo_representations"][0].shape == (2, 5, 3, 4, WIDTH)
    close(stacked["elmo_representations"][0][1, 4].detach(), flat["elmo_representations"][0].detach().numpy())


def test_elmo_keeps_the_boundaries_when_asked(made, paths):
    output = Elmo(*paths, 1, dropout=0, keep_sentence_boundaries=True)(batch_to_ids(SENTENCES))
    assert output["mask"].sum(dim=1).tolist() == [6, 3, 5]
    for row, sentence in zip(output["elmo_representations"][0].detach(), SENTENCES, strict=True):
        close(row[: len(sentence) + 2], made.expected(sentence).with_boundaries.mean(axis=0))


def test_elmo_s_layer_norm_counts_the_boundaries(made, paths):
    output = Elmo(*paths, 1, do_layer_norm=True, dropout=0)(batch_to_ids(SENTENCES))
    mask = np.zeros((3, 6), dtype=bool)
    stacked = np.zeros((3, 3, 6, WIDTH))
    for row, sentence in enumerate(SENTENCES):
        mask[row, : len(sentence) + 2] = True
        stacked[:, row, : len(sentence) + 2] = made.expected(sentence).with_boundaries
    expected = reference.scalar_mix(stacked, mask, np.zeros(3), 1.0, layer_norm=True)
    for row, sentence in enumerate(SENTENCES):
        found = output["elmo_representations"][0][row, : len(sentence)].detach()
        np.testing.assert_allclose(found, expected[row, 1 : len(sentence) + 1], atol=1e-4)


def test_given_mix_parameters_are_weights_before_the_softmax_and_stay(made, paths):
    elmo = Elmo(*paths, 2, dropout=0, scalar_mix_parameters=[-9e10, 1, -9e10])
    for mixed in elmo(batch_to_ids(SENTENCES[:1]))["elmo_representations"]:
        close(mixed[0], layers(made, SENTENCES[0])[1])
    elmo = Elmo(*paths, 1, dropout=0, scalar_mix_parameters=[0.5, -1.0, 2.0])
    expected = reference.scalar_mix(
        layers(made, SENTENCES[0])[:, None], np.ones((1, 4)), np.array([0.5, -1.0, 2.0]), 1.0
    )
    close(elmo(batch_to_ids(SENTENCES[:1]))["elmo_representations"][0], expected)
    assert not any(parameter.requires_grad for parameter in elmo.parameters())
    with pytest.raises(ValueError, match="scalar_mix_parameters has 2 weights, this model 3 layers"):
        Elmo(*paths, 1, scalar_mix_parameters=[0.0, 1.0])


def test_a_vocabulary_to_cache_changes_nothing(paths):
    words = ["<pad>", "The", "bank", "Hi"]
    ids = batch_to_ids([["The", "bank"], ["Hi"]])
    cached = Elmo(*paths, 1, dropout=0, vocab_to_cache=words)(ids, torch.tensor([[1, 2], [3, 0]]))
    plain = Elmo(*paths, 1, dropout=0)(ids)
    assert torch.equal(cached["elmo_representations"][0], plain["elmo_representations"][0])


def test_elmo_says_what_ids_it_reads(paths):
    elmo = Elmo(*paths, 1)
    for wrong in (torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, 3, 49, dtype=torch.long)):
        with pytest.raises(ValueError, match=r"this model reads \(B, T, 50\)"):
            elmo(wrong)


# ---- AllenNLP: ElmoEmbedder -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def embedder(paths):
    return ElmoEmbedder(*paths)


def test_the_embedder_gives_all_layers_of_each_sentence(made, embedder):
    close(embedder.embed_sentence(SENTENCES[0]), layers(made, SENTENCES[0]))
    batch = embedder.embed_batch(SENTENCES)
    stream = embedder.embed_sentences(iter(SENTENCES), batch_size=2)
    assert iter(stream) is stream
    for one, other, sentence in zip(batch, stream, SENTENCES, strict=True):
        assert isinstance(one, np.ndarray)
        assert one.dtype == np.float32
        close(one, layers(made, sentence))
        close(other, layers(made, sentence))


def test_the_embedder_s_tensors_have_the_sentence_first(made, embedder):
    activations, mask = embedder.batch_to_embeddings(SENTENCES)
    assert activations.shape == (3, 3, 4, WIDTH)
    assert mask.sum(dim=1).tolist() == [4, 1, 3]
    for row, sentence in zip(activations, SENTENCES, strict=True):
        close(row[:, : len(sentence)], layers(made, sentence))


def test_the_embedder_takes_empty_sentences_and_no_sentences(embedder):
    assert embedder.embed_sentence([]).shape == (3, 0, WIDTH)
    assert [rows.shape for rows in embedder.embed_batch([[], ["a"]])] == [(3, 0, WIDTH), (3, 1, WIDTH)]
    assert embedder.embed_batch([]) == []
    assert list(embedder.embed_sentences([])) == []


def test_the_embedder_carries_state_when_asked_and_only_then(made, paths):
    sentence = SENTENCES[0]
    fresh, carrying = ElmoEmbedder(*paths), ElmoEmbedder(*paths, state="carry")
    after = made.expected(sentence).state
    for embedder, state in ((fresh, None), (carrying, after)):
        close(embedder.embed_sentence(sentence), layers(made, sentence))
        close(embedder.embed_sentence(sentence), made.expected(sentence, state=state).layers)


def test_the_embedder_reads_ahead_no_more_than_a_batch(embedder):
    taken = []

    def sentences():
        for number in range(10):
            taken.append(number)
            yield ["word"]

    next(embedder.embed_sentences(sentences(), batch_size=3))
    assert taken == [0, 1, 2]
    with pytest.raises(ValueError, match="batch_size must be at least 1, not 0"):
        next(embedder.embed_sentences([["a"]], batch_size=0))


def test_a_cuda_device_that_is_not_there_is_an_error(paths):
    with pytest.raises(ValueError, match="cuda_device is 99, CUDA devices here"):
        ElmoEmbedder(*paths, cuda_device=99)


LINES = ["The bank lent money", "Hi", "test / this", "Hi", "  spaced \t out "]


@pytest.mark.parametrize("output_format", ["all", "top", "average"])
def test_embed_file_writes_allennlp_s_layout(made, embedder, tmp_path, output_format):
    (tmp_path / "in.txt").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    with open(tmp_path / "in.txt", encoding="utf-8") as lines:
        embedder.embed_file(lines, str(tmp_path / "out.hdf5"), output_format, batch_size=2)
    choose = {"all": lambda v: v, "top": lambda v: v[-1], "average": lambda v: v.mean(axis=0)}[output_format]
    with h5py.File(tmp_path / "out.hdf5") as file:
        assert set(file) == {"0", "1", "2", "3", "4", "sentence_to_index"}
        for number, line in enumerate(LINES):
            assert file[str(number)].dtype == np.float32
            close(file[str(number)][()], choose(layers(made, line.split())))
        assert file["sentence_to_index"].shape == (1,)
        index = json.loads(file["sentence_to_index"][0])
    assert index == {"The bank lent money": "0", "Hi": "3", "test / this": "2", "spaced \t out": "4"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out.hdf5"]


def test_embed_file_can_forget_the_sentences_or_use_them_as_keys(made, embedder, tmp_path):
    embedder.embed_file(["a b"], tmp_path / "out.hdf5", forget_sentences=True)
    with h5py.File(tmp_path / "out.hdf5") as file:
        assert set(file) == {"0"}
    embedder.embed_file(["a b", "c"], tmp_path / "out.hdf5", use_sentence_keys=True)
    with h5py.File(tmp_path / "out.hdf5") as file:
        assert set(file) == {"a b", "c"}
        close(file["a b"][()], layers(made, ["a", "b"]))


@pytest.mark.parametrize("lines", [["a", "a"], [""], ["."], ["a/b", "a"], ["a", "a/b"], ["a\0b"]])
def test_a_line_that_cannot_be_a_key_is_named_and_no_file_is_left(embedder, tmp_path, lines):
    with pytest.raises(ValueError, match=r"line \d '"):
        embedder.embed_file(lines, tmp_path / "out.hdf5", use_sentence_keys=True)
    assert list(tmp_path.iterdir()) == []


def test_a_blank_line_is_an_empty_dataset(embedder, tmp_path):
    embedder.embed_file(["a", "", "b"], tmp_path / "out.hdf5")
    with h5py.File(tmp_path / "out.hdf5") as file:
        assert [file[key].shape for key in "012"] == [(3, 1, WIDTH), (3, 0, WIDTH), (3, 1, WIDTH)]


def test_embed_file_refuses_what_it_cannot_do_and_leaves_the_old_file(embedder, tmp_path):
    (tmp_path / "out.hdf5").write_text("old", encoding="utf-8")
    with pytest.raises(ValueError, match=r"output_format must be .* not 'middle'"):
        embedder.embed_file(["a"], tmp_path / "out.hdf5", "middle")
    with pytest.raises(ValueError, match="batch_size"):
        embedder.embed_file(["a"], tmp_path / "out.hdf5", batch_size=0)
    with pytest.raises(ValueError, match=r"/dev/full: this is not a regular file"):
        embedder.embed_file(["a"], "/dev/full")
    assert {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()} == {"out.hdf5": "old"}


# ---- TF-Hub ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("signature", ["default", "tokens"])
def test_both_signatures_of_tf_hub_give_all_five_outputs(made, folder, signature):
    elmo = TFHubELMo(folder)
    if signature == "default":
        inputs = ["The bank  lent money", "Hi", " naïve 日本 ."]
    else:
        inputs = {
            "tokens": [["The", "bank", "lent", "money"], ["Hi", "", "", ""], ["naïve", "日本", ".", ""]],
            "sequence_len": [4, 1, 3],
        }
    outputs = elmo(inputs, signature=signature, as_dict=True)
    assert {name: tuple(values.shape) for name, values in outputs.items()} == {
        "word_emb": (3, 4, 5),
        "lstm_outputs1": (3, 4, WIDTH),
        "lstm_outputs2": (3, 4, WIDTH),
        "elmo": (3, 4, WIDTH),
        "default": (3, WIDTH),
    }
    assert torch.equal(elmo(inputs, signature=signature), outputs["default"])
    outputs = {name: values.detach() for name, values in outputs.items()}
    for row, sentence in enumerate(SENTENCES):
        expected, length = layers(made, sentence), len(sentence)
        close(outputs["word_emb"][row, :length], expected[0, :, :5])
        close(outputs["lstm_outputs1"][row, :length], expected[1])
        close(outputs["lstm_outputs2"][row, :length], expected[2])
        close(outputs["elmo"][row, :length], expected.mean(axis=0))
        close(outputs["default"][row], expected.mean(axis=(0, 1)))


def test_tf_hub_s_mix_is_trainable_and_the_bilm_when_asked(folder):
    for trainable in (False, True):
        elmo = TFHubELMo(folder, trainable=trainable)
        elmo(["a b"]).sum().backward()
        moved = {name.split(".")[1] for name, parameter in elmo.named_parameters() if parameter.grad is not None}
        assert moved == ({"mixes", "bilm"} if trainable else {"mixes"})


def test_tf_hub_takes_a_model_of_one_mix_and_arrays(made, paths):
    elmo = TFHubELMo(ELMo.from_files(*paths, dropout=0.0))
    tokens = np.array([["a", "b"], ["c", ""]])
    found = elmo({"tokens": tokens, "sequence_len": np.array([2, 1])}, signature="tokens")
    close(found[1].detach(), layers(made, ["c"]).mean(axis=(0, 1)))
    assert not elmo([""]).detach().any()
    with pytest.raises(ValueError, match="the model has 2 mixes"):
        TFHubELMo(ELMo.from_files(*paths, num_mixes=2))


@pytest.mark.parametrize(
    ("inputs", "signature", "says"),
    [
        ("a bare string", "default", "expected a list of sentences"),
        ([["a", "b"]], "default", r'inputs\[0\] is .* need signature="tokens"'),
        ([b"bytes"], "default", r"inputs\[0\] is b'bytes', not a string"),
        (["a"], "tokens", 'signature "tokens" takes'),
        ({"tokens": [["a"]]}, "tokens", 'signature "tokens" takes'),
        ({"tokens": [["a"]], "sequence_len": [1, 2]}, "tokens", r"sequence_len is \[1, 2\], not 1 integers"),
        ({"tokens": [["a"]], "sequence_len": [0.5]}, "tokens", "not 1 integers"),
        ({"tokens": [["a"]], "sequence_len": None}, "tokens", "not 1 integers"),
        ({"tokens": [["a"]], "sequence_len": [2]}, "tokens", r"tokens\[0\] is \['a'\], not a list of at least"),
        ({"tokens": [["a"]], "sequence_len": [-1]}, "tokens", r"sequence_len\[0\] = -1"),
        ({"tokens": ["abc"], "sequence_len": [2]}, "tokens", r"tokens\[0\] is 'abc'"),
        ({"tokens": [[1]], "sequence_len": [1]}, "tokens", "a token, which is a string"),
        (["a"], "other", 'signature must be "default" or "tokens"'),
    ],
)
def test_tf_hub_s_inputs_are_checked(folder, inputs, signature, says):
    with pytest.raises(ValueError, match=says):
        TFHubELMo(folder)(inputs, signature=signature)


# ---- ELMoForManyLangs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("output_layer", [-2, -1, 0, 1, 2])
def test_sents2elmo_gives_the_layer_that_its_number_means(made, folder, output_layer):
    found = Embedder(folder, batch_size=2).sents2elmo(SENTENCES, output_layer=output_layer)
    for rows, sentence in zip(found, SENTENCES, strict=True):
        every = layers(made, sentence)
        close(rows, {-2: every, -1: every.mean(axis=0)}.get(output_layer, every[output_layer]))


def test_sents2elmo_averages_by_default_and_knows_no_other_layers(made, folder):
    embedder = Embedder(folder)
    assert embedder.batch_size == 64
    close(embedder.sents2elmo(SENTENCES[:1])[0], mean(made, SENTENCES[0]))
    for layer in (3, -3):
        with pytest.raises(ValueError, match=f"not {layer}"):
            embedder.sents2elmo(SENTENCES, output_layer=layer)


# ---- simple_elmo ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def simple(folder):
    model = ElmoModel()
    assert model.load(folder) == "The model is now loaded."
    return model


def test_simple_elmo_s_vectors_are_one_padded_array(made, simple):
    assert (simple.batch_size, simple.n_layers, simple.vector_size) == (32, 3, WIDTH)
    choices = {"average": lambda v: v.mean(axis=0), "top": lambda v: v[-1], "all": lambda v: v}
    for name, choose in choices.items():
        found = simple.get_elmo_vectors(SENTENCES, layers=name, warmup=False)
        assert found.shape == ((3, 3, 4, WIDTH) if name == "all" else (3, 4, WIDTH))
        for rows, sentence in zip(found, SENTENCES, strict=True):
            close(rows[..., : len(sentence), :], choose(layers(made, sentence)))
            assert not rows[..., len(sentence) :, :].any()
    np.testing.assert_array_equal(
        simple.get_elmo_vectors(SENTENCES), simple.get_elmo_vectors(SENTENCES, layers="average")
    )
    assert simple.get_elmo_vectors([]).shape == (0, 0, WIDTH)


def test_simple_elmo_s_averages_have_length_one(made, simple):
    for name, expected in {
        "average": lambda v: v.mean(axis=(0, 1)),
        "top": lambda v: v[-1].mean(axis=0),
        "all": lambda v: v.mean(axis=1),
    }.items():
        found = simple.get_elmo_vector_average([*SENTENCES, []], layers=name)
        for vector, sentence in zip(found, SENTENCES, strict=False):
            wanted = expected(layers(made, sentence))
            close(vector, wanted / np.linalg.norm(wanted))
        assert not found[-1].any()


def test_simple_elmo_loads_model_hdf5_and_the_archives_of_the_repository(made, tmp_path):
    (tmp_path / "model").mkdir()
    shutil.copy(made.options_path, tmp_path / "model" / "options.json")
    shutil.copy(made.weights_path, tmp_path / "model" / "model.hdf5")
    with zipfile.ZipFile(tmp_path / "209.zip", "w") as archive:
        for name in ("options.json", "model.hdf5"):
            archive.write(tmp_path / "model" / name, name)
    for place in ("model", "209.zip"):
        model = ElmoModel()
        model.load(str(tmp_path / place), max_batch_size=1, limit=5, full=True)
        assert model.batch_size == 1
        close(model.get_elmo_vectors(SENTENCES[:1])[0], mean(made, SENTENCES[0]))


def test_simple_elmo_says_what_it_cannot_load(tmp_path):
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("meta.json", "{}")
    with pytest.raises(ValueError, match=r"other\.zip: no options\.json in it, but meta\.json"):
        ElmoModel().load(tmp_path / "other.zip")
    with pytest.raises(ValueError, match="none"):
        ElmoModel().load(tmp_path / "none")
    with pytest.raises(ValueError, match=r"call load\(directory\) first"):
        ElmoModel().get_elmo_vectors(SENTENCES)


@pytest.fixture(scope="module")
def language_model(made, paths, tmp_path_factory):
    model = ELMo.from_files(*paths)
    torch.manual_seed(0)
    model.output_layer, model.vocabulary = OutputLayer(12, 5), Vocabulary(reference.random_vocabulary(12))
    model.save_pretrained(tmp_path_factory.mktemp("lm"))
    loaded = ElmoModel()
    loaded.load(tmp_path_factory.getbasetemp() / "lm0")
    return loaded


def test_substitutes_are_what_either_language_model_says_at_each_place(made, language_model):
    tokens = ["word1", "nonsense", "word7"]
    found = language_model.get_elmo_substitutes(["word1  nonsense word7", "word2"], topn=12, nodelimiters=False)
    assert [[entry["word"] for entry in sentence] for sentence in found] == [tokens, ["word2"]]
    words = reference.random_vocabulary(12)
    weight, bias = (tensor.detach().numpy() for tensor in (
        language_model.elmo.output_layer.weight, language_model.elmo.output_layer.bias
    ))  # fmt: skip
    (expected,) = reference.log_probs(made.options, made.arrays, [tokens], weight, bias, words)
    for place, entry in enumerate(found[0]):
        own = words.index(tokens[place]) if tokens[place] in words else words.index("<UNK>")
        for name, log_prob in (("forward", expected.forward[place]), ("backward", expected.backward[place + 1])):
            side = entry[name]
            assert set(side) == {"candidates", "candidate_words", "logp"}
            assert side["candidate_words"] == [words[number] for number in side["candidates"]]
            assert side["logp"] == sorted(side["logp"], reverse=True)
            assert np.exp(side["logp"]).sum() == pytest.approx(1.0)
            assert side["logp"][side["candidates"].index(own)] == pytest.approx(log_prob, abs=1e-5)


def test_substitutes_leave_the_delimiters_out_unless_asked(language_model):
    (sentence,) = language_model.get_elmo_substitutes([["word1", "word2"]], topn=10)
    for entry in sentence:
        for side in (entry["forward"], entry["backward"]):
            assert {"<S>", "</S>"}.isdisjoint(side["candidate_words"])
    (sentence,) = language_model.get_elmo_substitutes(["word1"])
    assert len(sentence[0]["forward"]["candidates"]) == 3
    assert language_model.get_elmo_substitutes([""]) == [[]]


def test_substitutes_need_a_language_model_and_a_possible_number(language_model, simple):
    with pytest.raises(ValueError, match="no softmax and vocabulary"):
        simple.get_elmo_substitutes(["a b"])
    for topn, bounds in ((0, "at least 1"), (13, "1 to 12, the words of the vocabulary")):
        with pytest.raises(ValueError, match=f"topn must be {bounds}, not {topn}"):
            language_model.get_elmo_substitutes(["word1"], topn=topn)
    with pytest.raises(ValueError, match=r"sentences\[0\] is None"):
        language_model.get_elmo_substitutes([None])
