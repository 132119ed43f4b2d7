"""Official weight files, in and out: bit for bit if they are complete, one clear line if they are not."""

import json
import logging
import pickle
import resource
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

import reference
from elmokit import ELMo, Vocabulary
from elmokit.network import OutputLayer
from elmokit.storage import official as formats

VARIANTS = {
    "published": {},
    "no skip connections": {"skip": False},
    "tanh": {"activation": "tanh"},
    "no highway": {"highways": 0},
    "three highways": {"highways": 3},
    "no projection of the characters": {"char_projection": False},
    "one layer": {"layers": 1},
    "four layers": {"layers": 4},
    "no clips": {"cell_clip": None, "proj_clip": None},
    "short words": {"max_characters": 12},
    "one filter": {"filters": ((3, 5),)},
    "words": {"word_level": True},
}
SENTENCES = [["The", "word1", "word7", "."], ["nonsense"], ["word2", "naïve", "日本", "word3", "x" * 60]]
CELL = "RNN_{}/RNN/MultiRNNCell/Cell{}/LSTMCell/{}"


def read(path: Path) -> dict[str, np.ndarray]:
    names = []
    with h5py.File(path) as file:
        file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
        return {name: file[name][()] for name in names}


def same_bits(path: Path, arrays) -> None:
    found = read(path)
    assert sorted(found) == sorted(arrays)
    for name, values in arrays.items():
        assert (found[name].dtype, found[name].shape) == (np.dtype(np.float32), values.shape), name
        assert found[name].tobytes() == values.tobytes(), name


def load(model, tmp_path, **settings):
    if model.vocabulary is not None:
        settings["vocabulary"] = tmp_path / "words.txt"
        Vocabulary(model.vocabulary).save(settings["vocabulary"])
    return ELMo.from_files(model.options_path, model.weights_path, **settings)


@pytest.fixture
def broken(official_model, tmp_path):
    """broken(change_options=, change_arrays=, **variant): the files of a model after something happened to them."""

    def make(change_options=None, change_arrays=None, **variant):
        model = official_model(**variant)
        options, arrays = json.loads(json.dumps(model.options)), dict(model.arrays)
        if change_options is not None:
            change_options(options)
        if change_arrays is not None:
            change_arrays(arrays)
        (tmp_path / "options.json").write_text(json.dumps(options), encoding="utf-8")
        with h5py.File(tmp_path / "weights.hdf5", "w") as file:
            for name, values in arrays.items():
                file.create_dataset(name, data=values)
        return tmp_path / "options.json", tmp_path / "weights.hdf5"

    return make


# ---- complete files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_every_variant_comes_back_bit_for_bit_through_our_folder(official_model, tmp_path, variant):
    model = official_model(7, **variant)
    load(model, tmp_path).save_pretrained(tmp_path / "ours")
    ELMo.from_pretrained(tmp_path / "ours").export_hdf5(tmp_path / "theirs")
    same_bits(tmp_path / "theirs" / "weights.hdf5", model.arrays)
    options = json.loads((tmp_path / "theirs" / "options.json").read_text(encoding="utf-8"))
    clips = {"cell_clip": None, "proj_clip": None}  # written out, where the random model leaves them away
    assert options == model.options | {"lstm": clips | model.options["lstm"]}


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_every_variant_gives_the_reference_s_vectors_after_the_round_trip(official_model, tmp_path, variant):
    model = official_model(8, **variant)
    load(model, tmp_path).export_hdf5(tmp_path / "theirs")
    moved = model._replace(
        options_path=tmp_path / "theirs" / "options.json", weights_path=tmp_path / "theirs" / "weights.hdf5"
    )
    found = load(moved, tmp_path).embed(SENTENCES, layers="all")
    for vectors, sentence in zip(found, SENTENCES, strict=True):
        np.testing.assert_allclose(vectors, model.expected(sentence).layers, atol=1e-5)


@pytest.mark.parametrize("number", [261, 262, None])
def test_options_may_say_261_or_262_characters_or_nothing(broken, number):
    def say(options):
        del options["char_cnn"]["n_characters"]
        options["char_cnn"] |= {} if number is None else {"n_characters": number}

    found = ELMo.from_files(*broken(say)).embed(SENTENCES)
    expected = ELMo.from_files(*broken()).embed(SENTENCES)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("dtype", [np.float16, np.float64, ">f4"])
def test_other_floating_point_types_are_read_as_float32(broken, dtype):
    def cast(arrays):
        arrays.update({name: values.astype(dtype) for name, values in arrays.items()})

    config, weights = formats.read_official(*broken(change_arrays=cast))
    assert all(tensor.dtype == torch.float32 for tensor in weights.values())
    _, exact = formats.read_official(*broken())
    for name, tensor in weights.items():
        np.testing.assert_allclose(tensor, exact[name], rtol=1e-3 if dtype is np.float16 else 0, atol=1e-6)
    assert config.num_layers == 2


def test_a_model_in_half_precision_is_written_as_float32(official_model, tmp_path):
    model = official_model()
    load(model, tmp_path, dtype=torch.float16).export_hdf5(tmp_path / "theirs")
    rounded = {name: values.astype(np.float16).astype(np.float32) for name, values in model.arrays.items()}
    same_bits(tmp_path / "theirs" / "weights.hdf5", rounded)


def test_zero_clips_and_no_highway_key_mean_none(broken):
    def change(options):
        options["lstm"] |= {"cell_clip": 0, "proj_clip": 0}
        options["char_cnn"]["n_highway"] = None

    config, _ = formats.read_official(*broken(change, highways=0))
    assert (config.cell_clip, config.proj_clip, config.num_highways) == (None, None, 0)


def test_unknown_keys_are_logged_and_the_model_loads(broken, caplog):
    def more_options(options):
        options |= {"reverse": True, "batch_size": 128}
        options["lstm"]["colour"] = "red"
        options["char_cnn"]["projection_after_highway"] = True

    def more_arrays(arrays):
        arrays["softmax/W"] = np.zeros((3, 5), np.float32)

    with caplog.at_level(logging.WARNING):
        paths = broken(more_options, more_arrays)
        found = ELMo.from_files(*paths)
    assert "char_cnn.projection_after_highway, lstm.colour, reverse" in caplog.text
    assert "batch_size" not in caplog.text
    assert f"{paths[1]}: softmax/W is not part of the biLM" in caplog.text
    assert len(found.embed(SENTENCES)) == 3


# ---- files that are not ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [b"", b"not HDF5 at all", b"<html><body>404</body></html>", pickle.dumps({"char_embed": 1}), b"\x89HDF\r\n\x1a\n"],
    ids=["empty", "text", "HTML", "pickle", "a header only"],
)
def test_what_is_not_an_hdf5_file_is_named(broken, content):
    options, weights = broken()
    weights.write_bytes(content)
    with pytest.raises(ValueError, match=r"weights\.hdf5: not a complete HDF5 file"):
        ELMo.from_files(options, weights)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_named(broken, share):
    options, weights = broken()
    whole = weights.read_bytes()
    weights.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(ValueError, match=r"weights\.hdf5: not a complete HDF5 file"):
        ELMo.from_files(options, weights)


def test_a_damaged_file_either_loads_or_is_named(broken):
    options, weights = broken()
    whole = weights.read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(60):
        damaged = bytearray(whole)
        begin = int(rng.integers(0, len(whole) - 16))
        damaged[begin : begin + 16] = rng.bytes(16)
        weights.write_bytes(damaged)
        try:
            formats.read_official(options, weights)
        except ValueError as error:
            assert str(weights) in str(error)  # noqa: PT017 (not every damage shows)
            refused += 1
    assert refused > 5


def test_a_missing_file_and_a_folder_are_named(broken, tmp_path):
    options, weights = broken()
    for read_one in (lambda path: formats.read_official(options, path), lambda path: ELMo.from_files(options, path)):
        with pytest.raises(ValueError, match=r"none\.hdf5"):
            read_one(tmp_path / "none.hdf5")
        with pytest.raises(ValueError, match=r"this is a folder"):
            read_one(tmp_path)
    with pytest.raises(ValueError, match=r"none\.json"):
        ELMo.from_files(tmp_path / "none.json", weights)


@pytest.mark.parametrize(
    "name",
    ["char_embed", "CNN/W_cnn_1", "CNN/b_cnn_2", "CNN_high_0/W_carry", "CNN_proj/b_proj", CELL.format(1, 0, "W_P_0")],
)
def test_a_missing_array_is_named_with_what_the_file_holds(broken, name):
    paths = broken(change_arrays=lambda arrays: arrays.pop(name))
    with pytest.raises(ValueError, match=rf"weights\.hdf5: {name} is missing; the file holds .*RNN_0"):
        ELMo.from_files(*paths)


def test_a_missing_projection_is_named_where_the_widths_differ(broken):
    def drop(arrays):
        del arrays["CNN_proj/W_proj"], arrays["CNN_proj/b_proj"]

    with pytest.raises(ValueError, match="CNN_proj/W_proj is missing"):
        ELMo.from_files(*broken(change_arrays=drop))


def test_a_word_table_that_is_one_number_is_named(broken):
    paths = broken(change_arrays=lambda arrays: arrays.update(embedding=np.float32(1.0)), word_level=True)
    with pytest.raises(ValueError, match=r"weights\.hdf5: embedding is a single number, not a table"):
        ELMo.from_files(*paths)


def test_a_file_of_nothing_is_named(broken):
    with pytest.raises(ValueError, match="char_embed is missing; the file holds nothing"):
        ELMo.from_files(*broken(change_arrays=dict.clear))


def test_a_group_in_place_of_an_array_is_missing(broken):
    def nest(arrays):
        arrays["char_embed/inner"] = arrays.pop("char_embed")

    with pytest.raises(ValueError, match="char_embed is missing"):
        ELMo.from_files(*broken(change_arrays=nest))


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("char_embed", lambda a: a[:-1], r"char_embed is \(260, 3\), the options need \(261, 3\)"),
        ("CNN/W_cnn_1", lambda a: a[0], r"CNN/W_cnn_1 is \(2, 3, 3\), the options need \(1, 2, 3, 3\)"),
        ("CNN_proj/W_proj", lambda a: a.T, r"CNN_proj/W_proj is \(5, 8\), the options need \(8, 5\)"),
        (CELL.format(0, 1, "B"), lambda a: a[:4], r"LSTMCell/B is \(4,\), the options need \(28,\)"),
        ("char_embed", lambda a: np.float32(1.0), r"char_embed is \(\), the options need \(261, 3\)"),
        ("char_embed", lambda a: a.astype(np.int32), "char_embed holds int32, not floating-point numbers"),
        ("char_embed", lambda a: a.astype(np.complex64), "char_embed holds complex64, not floating-point numbers"),
        ("char_embed", lambda a: a.astype(bytes), r"char_embed holds \|S\d+, not floating-point numbers"),
        ("CNN/b_cnn_0", lambda a: a * np.nan, "CNN/b_cnn_0 holds 2 values that are NaN or infinite"),
        ("CNN/b_cnn_0", lambda a: np.array([np.inf, -np.inf], np.float32), "CNN/b_cnn_0 holds 2 values that are NaN"),
        ("CNN/b_cnn_0", lambda a: np.array([1e300, 0.0]), "CNN/b_cnn_0 holds 1 values that are NaN or infinite"),
    ],
)
def test_an_array_of_the_wrong_shape_type_or_content_is_named(broken, name, change, says):
    paths = broken(change_arrays=lambda arrays: arrays.update({name: change(arrays[name])}))
    with pytest.raises(ValueError, match=rf"weights\.hdf5: .*{says}"):
        ELMo.from_files(*paths)


@pytest.mark.parametrize(
    ("table", "key", "value", "says"),
    [
        (
            "lstm",
            "n_layers",
            1,
            r"Cell1/LSTMCell/B is not in .*options\.json: the options contradict the weights",
        ),
        ("lstm", "n_layers", 3, "Cell2/LSTMCell/W_0 is missing"),
        ("lstm", "projection_dim", 4, r"is \(8, 5\), the options need \(8, 4\)"),
        ("lstm", "projection_dim", 6, r"is \(8, 5\), the options need \(8, 6\)"),
        ("lstm", "dim", 6, r"W_0 is \(10, 28\), the options need \(10, 24\)"),
        ("lstm", "dim", 2_000_000_000, r"W_0 is \(10, 28\), the options need \(10, 8000000000\)"),
        ("char_cnn", "n_highway", 0, "CNN_high_0/W_carry is not in"),
        ("char_cnn", "n_highway", 2, "CNN_high_1/W_carry is missing"),
        ("char_cnn", "filters", [[1, 2], [2, 6]], r"CNN/W_cnn_1 is \(1, 2, 3, 3\), the options need \(1, 2, 3, 6\)"),
        ("char_cnn", "filters", [[1, 2], [2, 3], [4, 3], [5, 1]], "CNN/W_cnn_3 is missing"),
        ("char_cnn", "filters", [[1, 2], [3, 3], [4, 3]], r"CNN/W_cnn_1 is \(1, 2, 3, 3\)"),
        ("char_cnn", "embedding", {"dim": 4}, r"char_embed is \(261, 3\), the options need \(261, 4\)"),
    ],
)
def test_options_that_contradict_the_weights_are_refused(broken, table, key, value, says):
    paths = broken(lambda options: options[table].update({key: value}))
    with pytest.raises(ValueError, match=rf"weights\.hdf5: .*{says}"):
        ELMo.from_files(*paths)


def test_a_filter_that_the_options_forget_is_refused(broken):
    def forget(options):
        options["char_cnn"]["filters"].pop()

    with pytest.raises(ValueError, match="CNN_high_0/W_carry is"):
        ELMo.from_files(*broken(forget))
    with pytest.raises(ValueError, match="CNN/W_cnn_2 is not in"):
        ELMo.from_files(*broken(forget, narrow))


def narrow(arrays, width=5):
    """The highways and the projection as the shorter list of filters wants them; the last filter stays."""
    for name, values in list(arrays.items()):
        if name.startswith("CNN_high"):
            arrays[name] = values[:width, :width] if values.ndim == 2 else values[:width]
        elif name == "CNN_proj/W_proj":
            arrays[name] = values[:width]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "not a JSON file"),
        ("{", "not a JSON file"),
        ("<html>", "not a JSON file"),
        ("[]", "expected a JSON object, found list"),
        ("{}", "'lstm' is missing or is not a table"),
        ('{"lstm": 3}', "'lstm' is missing or is not a table: 3"),
        ('{"lstm": {"dim": 7, "projection_dim": 5}, "char_cnn": []}', r"'char_cnn' is missing or is not a table: \[\]"),
        ('{"lstm": {"dim": 7}, "char_cnn": {}}', "lstm.projection_dim is missing"),
        ('{"lstm": {"projection_dim": 7}, "char_cnn": {}}', "lstm.dim is missing"),
    ],
)
def test_options_that_are_none_are_named(broken, content, says):
    options, weights = broken()
    options.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=rf"options\.json: .*{says}"):
        ELMo.from_files(options, weights)


def test_options_without_a_lstm_over_word_level_weights_are_named(broken):
    paths = broken(dict.clear, word_level=True)
    with pytest.raises(ValueError, match=r"options\.json: 'lstm' is missing"):
        ELMo.from_files(*paths)


@pytest.mark.parametrize(
    ("table", "key", "value", "says"),
    [
        ("lstm", "dim", "7", "cell_dim must be int, not '7'"),
        ("lstm", "dim", 0, "cell_dim must be at least 1, not 0"),
        ("lstm", "cell_clip", "three", "cell_clip must be"),
        ("lstm", "cell_clip", -1.0, "cell_clip must be above 0"),
        ("char_cnn", "n_characters", 300, "char_cnn.n_characters is 300, not 261 or 262"),
        ("char_cnn", "activation", "gelu", "activation must be 'relu' or 'tanh', not 'gelu'"),
        ("char_cnn", "filters", [], "filters is empty"),
        ("char_cnn", "filters", [[1, 2, 3]], "filters must be"),
        ("char_cnn", "filters", 7, "filters must be"),
        ("char_cnn", "filters", [[60, 2]], r"filter \[60, 2\] does not fit"),
        ("char_cnn", "embedding", {}, "char_cnn.embedding.dim is missing"),
        ("char_cnn", "embedding", 4, "'embedding' is missing or is not a table: 4"),
        ("char_cnn", "n_highway", -1, "num_highways must be 0 or more"),
        ("char_cnn", "max_characters_per_token", 2, "max_characters must be at least 3"),
    ],
)
def test_an_impossible_option_is_named_with_its_file(broken, table, key, value, says):
    paths = broken(lambda options: options[table].update({key: value}))
    with pytest.raises(ValueError, match=rf"options\.json: .*{says}"):
        ELMo.from_files(*paths)


# ---- softmax and word tables -----------------------------------------------------------------------------------------


@pytest.fixture
def language_model(official_model, tmp_path):
    """Paths for from_files of a character model with softmax and vocabulary, and the arrays of the softmax."""
    model = official_model()
    rng = np.random.default_rng(1)
    arrays = {
        "softmax/W": rng.standard_normal((12, 5)).astype(np.float32),
        "softmax/b": rng.standard_normal(12).astype(np.float32),
    }
    with h5py.File(tmp_path / "softmax.hdf5", "w") as file:
        for name, values in arrays.items():
            file[name] = values
    words = reference.random_vocabulary(12)
    (tmp_path / "words.txt").write_text("\n".join(words), encoding="utf-8")
    paths = {"options": model.options_path, "weights": model.weights_path}
    return model, arrays, words, paths | {"softmax": tmp_path / "softmax.hdf5", "vocabulary": tmp_path / "words.txt"}


def test_a_language_model_goes_round_with_its_softmax_and_vocabulary(language_model, tmp_path):
    model, arrays, words, paths = language_model
    ELMo.from_files(**paths).save_pretrained(tmp_path / "ours")
    loaded = ELMo.from_pretrained(tmp_path / "ours")
    loaded.export_hdf5(tmp_path / "theirs")
    same_bits(tmp_path / "theirs" / "softmax.hdf5", arrays)
    same_bits(tmp_path / "theirs" / "weights.hdf5", model.arrays)
    assert (tmp_path / "theirs" / "vocabulary.txt").read_text(encoding="utf-8").split() == words
    sentence = ["word1", "word7", "nonsense"]
    (expected,) = reference.log_probs(
        model.options, model.arrays, [sentence], arrays["softmax/W"], arrays["softmax/b"], words
    )
    (found,) = loaded.log_probs([sentence])
    np.testing.assert_allclose([*found.forward, found.forward_end], expected.forward, atol=1e-5)
    np.testing.assert_allclose([found.backward_end, *found.backward], expected.backward, atol=1e-5)


def test_a_softmax_of_another_size_than_its_vocabulary_is_refused(language_model):
    *_, paths = language_model
    paths["vocabulary"].write_text("<S>\n</S>\n<UNK>\nword\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"softmax\.hdf5 has 12 rows, .*words\.txt has 4 words"):
        ELMo.from_files(**paths)
    with pytest.raises(ValueError, match=r"softmax\.hdf5: a softmax needs the vocabulary"):
        ELMo.from_files(**paths | {"vocabulary": None})


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("softmax/W", lambda a: a[:, :4], r"softmax/W is \(12, 4\), the options need \(12, 5\)"),
        ("softmax/b", lambda a: a[:5], r"softmax/b is \(5,\), the options need \(12,\)"),
        ("softmax/W", lambda a: a.astype(np.int64), "softmax/W holds int64"),
        ("softmax/W", lambda a: a * np.nan, "softmax/W holds 60 values that are NaN"),
        ("softmax/b", None, r"softmax/b is missing; the file holds softmax/W"),
        ("softmax/W", None, r"softmax/W is missing; the file holds softmax/b"),
    ],
)
def test_a_softmax_file_that_does_not_fit_is_named(language_model, name, change, says):
    _, arrays, _, paths = language_model
    with h5py.File(paths["softmax"], "a") as file:
        del file[name]
        if change is not None:
            file[name] = change(arrays[name])
    with pytest.raises(ValueError, match=rf"softmax\.hdf5: {says}"):
        ELMo.from_files(**paths)


def test_a_word_level_model_needs_a_vocabulary_of_its_size(official_model, tmp_path):
    model = official_model(word_level=True)
    with pytest.raises(ValueError, match="needs its vocabulary: it is missing"):
        ELMo.from_files(model.options_path, model.weights_path)
    with pytest.raises(ValueError, match="needs its vocabulary: this one has 4 words"):
        load(model._replace(vocabulary=["<S>", "</S>", "<UNK>", "word"]), tmp_path)


def test_a_word_table_may_have_the_boundaries_anywhere(official_model, tmp_path):
    model = official_model(word_level=True)
    order = [5, 1, 0, 7, 2, 3, 4, 6, 8, 9, 10, 11]
    arrays = model.arrays | {"embedding": model.arrays["embedding"][order]}
    shuffled = model._replace(arrays=arrays, vocabulary=[model.vocabulary[place] for place in order])
    reference.write_official(tmp_path / "shuffled", model.options, arrays)
    paths = {"options_path": tmp_path / "shuffled/options.json", "weights_path": tmp_path / "shuffled/lm_weights.hdf5"}
    found = load(shuffled._replace(**paths), tmp_path).embed(SENTENCES, layers="all")
    for vectors, sentence in zip(found, SENTENCES, strict=True):
        np.testing.assert_allclose(vectors, model.expected(sentence).layers, atol=1e-5)


def test_a_character_file_under_word_level_options_is_named(official_model, tmp_path):
    model = official_model()
    (tmp_path / "options.json").write_text(json.dumps({"lstm": model.options["lstm"]}), encoding="utf-8")
    with pytest.raises(ValueError, match=r"options\.json: 'char_cnn' is missing"):
        ELMo.from_files(tmp_path / "options.json", model.weights_path)


# ---- writing ---------------------------------------------------------------------------------------------------------


def test_a_softmax_is_written_as_it_is(tmp_path):
    layer = OutputLayer(7, 3)
    formats.write_softmax(layer.state_dict(), tmp_path / "softmax.hdf5")
    same_bits(
        tmp_path / "softmax.hdf5",
        {"softmax/W": layer.weight.detach().numpy(), "softmax/b": layer.bias.detach().numpy()},
    )


def test_an_export_that_fails_in_the_middle_leaves_the_old_files_and_no_others(official_model, tmp_path, monkeypatch):
    old, new = official_model(1), official_model(2)
    folder = tmp_path / "theirs"
    load(old, tmp_path).export_hdf5(folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def fail(config):
        raise RuntimeError("stop")

    monkeypatch.setattr(formats, "options_from_config", fail)
    with pytest.raises(RuntimeError, match="stop"):
        load(new, tmp_path).export_hdf5(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_disk_that_takes_no_more_is_one_error_that_names_the_file(official_model, tmp_path):
    model = load(official_model(), tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16384, hard))
    try:
        with pytest.raises(OSError, match=r"File too large: .*theirs/weights\.hdf5"):
            model.export_hdf5(tmp_path / "theirs")
        with pytest.raises(OSError, match=r"File too large: .*tokens\.hdf5"):
            formats.write_token_embeddings(torch.zeros(1000, 100), tmp_path / "theirs" / "tokens.hdf5")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list((tmp_path / "theirs").iterdir()) == []
