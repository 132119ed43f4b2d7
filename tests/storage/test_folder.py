"""A model folder: what was saved comes back, what is damaged is named, and a failed write leaves the old model."""

import dataclasses
import errno
import json
import os
import pickle
import resource
import shutil
import signal
import stat
import subprocess
import sys
import threading
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from elmokit import ELMo, Vocabulary
from elmokit.compat import ElmoEmbedder
from elmokit.network import OutputLayer
from elmokit.storage import folder as checkpoint
from elmokit.storage import names

WORDS = ["<S>", "</S>", "<UNK>", "the", "bank", "."]
SENTENCES = [["the", "bank", "."], ["bank"]]


@pytest.fixture
def model(official_model):
    """A character model that is also a language model, with two mixes."""
    made = official_model()
    elmo = ELMo.from_files(made.options_path, made.weights_path, num_mixes=2, layer_norm=True)
    torch.manual_seed(0)
    elmo.output_layer, elmo.vocabulary = OutputLayer(len(WORDS), 5), Vocabulary(WORDS)
    with torch.no_grad():
        for mix in elmo.mixes:
            mix.weights.normal_()
            mix.gamma.fill_(1.5)
    return elmo


@pytest.fixture
def folder(model, tmp_path):
    model.save_pretrained(tmp_path / "folder")
    return tmp_path / "folder"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def change_tensors(path: Path, change) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def drop_checksums(folder: Path) -> None:
    """Make the folder one of version 0.2, whose files may be changed."""
    change_config(folder, lambda values: values.pop("checksums"))


def change_config(folder: Path, change) -> None:
    values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    change(values)
    (folder / "config.json").write_text(json.dumps(values), encoding="utf-8")


# ---- there and back -------------------------------------------------------------------------------------------------


def test_a_folder_holds_five_files_and_gives_back_every_tensor(model, folder):
    assert sorted(contents(folder)) == [
        "README.md", "config.json", "model.safetensors", "softmax.safetensors", "vocabulary.txt",
    ]  # fmt: skip
    loaded = ELMo.from_pretrained(folder)
    assert (len(loaded.mixes), loaded.layer_norm, loaded.config) == (2, True, model.config)
    assert loaded.vocabulary.words == tuple(WORDS)
    expected = model.state_dict()
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, expected[name]), name
    assert len(loaded.state_dict()) == len(expected)


def test_saving_the_loaded_model_writes_the_same_bytes(folder, tmp_path):
    ELMo.from_pretrained(folder).save_pretrained(tmp_path / "again")
    assert contents(tmp_path / "again") == contents(folder)


def test_the_folder_is_plain_safetensors_named_as_the_network_is(model, folder):
    tensors = load_file(folder / "model.safetensors")
    assert set(tensors) == {*model.bilm.state_dict(), *(f"mixes.{name}" for name in model.mixes.state_dict())}
    assert "layers.0.input_weight" in tensors
    assert set(load_file(folder / "softmax.safetensors")) == {"weight", "bias"}


def test_a_card_that_someone_wrote_is_kept(model, folder):
    (folder / "README.md").write_text("mine", encoding="utf-8")
    model.save_pretrained(folder)
    assert (folder / "README.md").read_text(encoding="utf-8") == "mine"


def test_the_softmax_and_vocabulary_of_another_model_do_not_stay_behind(model, folder):
    model.output_layer = model.vocabulary = None
    model.save_pretrained(folder)
    assert sorted(contents(folder)) == ["README.md", "config.json", "model.safetensors"]
    assert ELMo.from_pretrained(folder).output_layer is None


@pytest.mark.parametrize("tokenizer", ["treebank", "spaces", "characters"])
def test_the_folder_says_how_text_is_split_into_tokens(folder, tmp_path, tokenizer):
    files = dataclasses.replace(checkpoint.load(folder), tokenizer=tokenizer)
    checkpoint.save(files, tmp_path / "other", card=(folder / "README.md").read_text(encoding="utf-8"))
    assert json.loads((tmp_path / "other" / "config.json").read_bytes())["tokenizer"] == tokenizer
    loaded = checkpoint.load(tmp_path / "other")
    assert (loaded.tokenizer, loaded.layer_norm) == (tokenizer, True)
    elmo = ELMo.from_pretrained(tmp_path / "other")
    assert elmo.tokenizer.name == tokenizer
    elmo.save_pretrained(tmp_path / "again")
    assert contents(tmp_path / "again")["config.json"] == contents(tmp_path / "other")["config.json"]


def test_a_folder_of_version_0_1_splits_text_by_the_rules_of_the_treebank(folder):
    change_config(folder, lambda values: (values.pop("tokenizer"), values.pop("layer_norm")))
    loaded = checkpoint.load(folder)
    assert (loaded.tokenizer, loaded.layer_norm) == ("treebank", False)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_folder_of_another_precision_loads_as_float32(model, folder, dtype):
    expected = {name: tensor.to(dtype).float() for name, tensor in model.state_dict().items()}
    for name in ("model", "softmax"):
        path = folder / f"{name}.safetensors"
        save_file({key: tensor.to(dtype) for key, tensor in load_file(path).items()}, path)
    drop_checksums(folder)
    loaded = ELMo.from_pretrained(folder)
    for name, tensor in loaded.state_dict().items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, expected[name]), name
    assert loaded.embed(SENTENCES)[0].dtype == np.float32


def test_a_model_in_half_precision_makes_a_folder_of_half_the_size(model, folder, tmp_path):
    model.half().save_pretrained(tmp_path / "half")
    sizes = [(where / "model.safetensors").stat().st_size for where in (tmp_path / "half", folder)]
    assert sizes[0] < 0.7 * sizes[1]
    assert {tensor.dtype for tensor in load_file(tmp_path / "half" / "model.safetensors").values()} == {torch.float16}


def test_a_fine_tuned_model_comes_back_as_it_was_left(official_model, tmp_path):
    made = official_model()
    model = ELMo.from_files(made.options_path, made.weights_path, freeze=False, dropout=0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.train()
    model(model.to_ids(SENTENCES)).mixes[0].square().sum().backward()
    optimizer.step()
    model.eval().save_pretrained(tmp_path / "tuned")
    found = ELMo.from_pretrained(tmp_path / "tuned")
    for a, b in zip(found.embed(SENTENCES), model.embed(SENTENCES), strict=True):
        np.testing.assert_array_equal(a, b)
    untouched = ELMo.from_files(made.options_path, made.weights_path)
    assert np.abs(found.embed(SENTENCES)[0] - untouched.embed(SENTENCES)[0]).max() > 1e-3


# ---- float16 and int8 -----------------------------------------------------------------------------------------------


def is_matrix(name: str) -> bool:
    return name.split(".")[0] != "mixes" and not name.endswith("bias")


def inputs_last(name: str, array: np.ndarray) -> np.ndarray:
    """A matrix as (outputs, inputs): what a product with it sums over becomes the rows' elements."""
    if name.startswith("layers."):  # (directions, inputs, outputs)
        return array.swapaxes(1, 2).reshape(-1, array.shape[1])
    return array.reshape(len(array), -1)


def arrays(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a file as NumPy arrays; NumPy knows no bfloat16, whose values float32 holds exactly."""
    return {
        name: (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
        for name, tensor in load_file(path).items()
    }


@pytest.mark.parametrize("name", ["model", "softmax"])
def test_int8_moves_no_weight_by_more_than_half_a_step_of_its_output(model, folder, tmp_path, name):
    model.save_pretrained(tmp_path / "int8", dtype="int8")
    exact, found = (arrays(where / f"{name}.safetensors") for where in (folder, tmp_path / "int8"))
    matrices = {key for key in exact if is_matrix(key)}
    assert set(found) == set(exact) | {f"{key}.scale" for key in matrices}
    for key in matrices:
        steps, scale, weights = found[key], found[f"{key}.scale"], exact[key].astype(np.float64)
        assert (steps.dtype, steps.shape, scale.ndim) == (np.int8, weights.shape, weights.ndim)
        assert (np.abs(steps.astype(np.float64) * scale - weights) <= scale / 2 * (1 + 1e-6)).all()
        by_output = np.abs(inputs_last(key, weights))
        sizes = inputs_last(key, np.broadcast_to(scale, weights.shape))
        assert (sizes == sizes[:, :1]).all()  # one for each output …
        assert scale.size == len(by_output)
        np.testing.assert_allclose(sizes[:, 0], by_output.max(axis=1) / 127, rtol=2**-8)  # … as small as it can be
        assert (np.abs(inputs_last(key, steps.astype(np.int64))).max(axis=1) == 127).all()
    for key in set(exact) - matrices:
        np.testing.assert_array_equal(found[key], exact[key].astype(np.float16))
        assert found[key].dtype == np.float16


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_a_stored_model_loads_as_the_float32_values_that_its_file_encodes(model, tmp_path, dtype):
    model.save_pretrained(tmp_path / dtype, dtype=dtype)
    files = checkpoint.load(tmp_path / dtype)
    for name, tensors in (("model", files.weights), ("softmax", files.softmax)):
        raw = arrays(tmp_path / dtype / f"{name}.safetensors")
        assert set(tensors) == {key for key in raw if not key.endswith(".scale")}
        for key, tensor in tensors.items():
            assert tensor.dtype == torch.float32
            expected = raw[key].astype(np.float32) * raw.get(f"{key}.scale", np.float32(1))
            np.testing.assert_array_equal(tensor.numpy(), expected)


def test_float16_is_each_number_rounded_once(model, folder, tmp_path):
    model.save_pretrained(tmp_path / "half", dtype="float16")
    for name in ("model.safetensors", "softmax.safetensors"):
        exact, found = arrays(folder / name), arrays(tmp_path / "half" / name)
        assert set(found) == set(exact)
        for key, array in found.items():
            assert array.dtype == np.float16
            np.testing.assert_array_equal(array, exact[key].astype(np.float16))


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_what_float16_cannot_hold_stays_float32(model, tmp_path, dtype):
    with torch.no_grad():
        model.output_layer.bias[1] = 1e5
    model.save_pretrained(tmp_path / "folder", dtype=dtype)
    loaded = ELMo.from_pretrained(tmp_path / "folder")
    assert torch.equal(loaded.output_layer.bias, model.output_layer.bias)


@pytest.mark.parametrize("factor", [0.0, 1e-37, 1e-6, 1e30])
def test_int8_takes_matrices_of_any_size(model, tmp_path, factor):
    with torch.no_grad():
        model.output_layer.weight[2] *= factor
    expected = model.output_layer.weight.detach().numpy().copy()
    model.save_pretrained(tmp_path / "folder", dtype="int8")
    found = ELMo.from_pretrained(tmp_path / "folder").output_layer.weight.detach().numpy()
    smallest = np.finfo(np.float32).tiny  # of a step
    bound = np.maximum(np.abs(expected).max(axis=1, keepdims=True) / 127 * (1 + 2**-8), smallest) / 2
    assert (np.abs(found.astype(np.float64) - expected) <= bound * (1 + 1e-6)).all()
    assert np.isfinite(found).all()


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_a_loaded_model_stored_again_in_the_same_dtype_is_the_same_bytes(model, tmp_path, dtype):
    model.save_pretrained(tmp_path / "once", dtype=dtype)
    ELMo.from_pretrained(tmp_path / "once").save_pretrained(tmp_path / "twice", dtype=dtype)
    assert contents(tmp_path / "twice") == contents(tmp_path / "once")


def test_int8_survives_many_outputs_of_many_sizes_bit_for_bit(tmp_path, model):
    """Every scale that bfloat16 rounding can make, and more rows than a tiny model has."""
    words = [*WORDS, *map(str, range(4000))]
    sizes = torch.logspace(-30, 30, len(words)).unsqueeze(1)
    torch.manual_seed(1)
    model.output_layer, model.vocabulary = OutputLayer(len(words), 5), Vocabulary(words)
    with torch.no_grad():
        model.output_layer.weight *= sizes
    for name, source in (("once", lambda: model), ("twice", lambda: ELMo.from_pretrained(tmp_path / "once"))):
        source().save_pretrained(tmp_path / name, dtype="int8")
    assert contents(tmp_path / "twice") == contents(tmp_path / "once")


def test_an_int8_model_written_as_float32_is_exactly_what_was_loaded(model, tmp_path):
    model.save_pretrained(tmp_path / "int8", dtype="int8")
    loaded = ELMo.from_pretrained(tmp_path / "int8")
    loaded.save_pretrained(tmp_path / "wide", dtype="float32")
    wide = ELMo.from_pretrained(tmp_path / "wide").state_dict()
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(wide[name], tensor), name


def test_float32_is_written_also_of_a_model_in_half_precision(model, tmp_path):
    model.half().save_pretrained(tmp_path / "wide", dtype="float32")
    assert {tensor.dtype for tensor in load_file(tmp_path / "wide" / "model.safetensors").values()} == {torch.float32}


def test_a_word_level_model_is_stored_in_int8_too(official_model, tmp_path):
    made = official_model(word_level=True)
    Vocabulary(made.vocabulary).save(tmp_path / "words.txt")
    model = ELMo.from_files(made.options_path, made.weights_path, vocabulary=tmp_path / "words.txt")
    model.save_pretrained(tmp_path / "folder", dtype="int8")
    assert load_file(tmp_path / "folder" / "model.safetensors")["word_embedding.scale"].shape == (12, 1)
    found = ELMo.from_pretrained(tmp_path / "folder").embed([["word1", "word2"]], layers=0)[0]
    expected = made.expected(["word1", "word2"]).layers[0]
    np.testing.assert_allclose(found, expected, atol=np.abs(expected).max() / 250)


@pytest.mark.parametrize("write", [ELMo.save_pretrained, ELMo.export_hdf5])
def test_a_file_in_the_place_of_the_folder_is_refused_before_any_work(write, model, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("dear")
    monkeypatch.setattr(model.bilm, "state_dict", None)
    with pytest.raises(ValueError, match=r"^[^:]*file is a file: name a folder"):
        write(model, tmp_path / "file")
    with pytest.raises(ValueError, match=r"file/model: .*file is a file: name a folder"):
        write(model, tmp_path / "file" / "model")
    assert (tmp_path / "file").read_text() == "dear"


@pytest.mark.parametrize("dtype", ["int4", "bfloat16", torch.float16])
def test_a_storage_that_does_not_exist_is_refused_before_anything_is_written(model, tmp_path, dtype):
    with pytest.raises(ValueError, match=rf'dtype must be None, "float32", "float16" or "int8", not .*{dtype}'):
        model.save_pretrained(tmp_path / "new", dtype=dtype)
    files = checkpoint.ModelFiles(model.config, model.bilm.state_dict())
    with pytest.raises(ValueError, match=rf"stored as float32, float16, int8, not as .*{dtype}"):
        checkpoint.save(files, tmp_path / "new", card="", storage=dtype)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("value", [torch.nan, -torch.inf])
def test_int8_never_hides_a_weight_that_is_not_a_number(model, folder, value):
    before = contents(folder)
    with torch.no_grad():
        model.bilm.layers[1].projection[0, 2, 3] = value
    with pytest.raises(
        ValueError, match=r"layers\.1\.projection holds NaN or infinite values, which int8 cannot store"
    ):
        model.save_pretrained(folder, dtype="int8")
    assert contents(folder) == before


GATES = "layers.0.input_weight"


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("model", lambda t: t.pop(f"{GATES}.scale"), rf"{GATES} is int8, but {GATES}\.scale, .* is missing"),
        ("model", lambda t: t.pop(GATES), rf"{GATES}\.scale has no int8 {GATES}"),
        ("model", lambda t: t.update({GATES: t[GATES].float()}), rf"{GATES}\.scale has no int8 {GATES}"),
        (
            "model",
            lambda t: t.update({"layers.0.bias.scale": torch.ones(2, 1)}),
            r"layers\.0\.bias\.scale has no int8",
        ),
        (
            "model",
            lambda t: t.update({f"{GATES}.scale": torch.ones(2, 5, 1)}),
            rf"{GATES}\.scale is \(2, 5, 1\), {GATES} needs \(2, 1, 28\)",
        ),
        ("model", lambda t: t.update({f"{GATES}.scale": torch.ones(())}), rf"{GATES}\.scale is \(\), {GATES} needs"),
        (
            "model",
            lambda t: t.update({f"{GATES}.scale": torch.ones(2, 1, 28, dtype=torch.int64)}),
            rf"{GATES}\.scale holds torch\.int64, not floating-point numbers",
        ),
        (
            "model",
            lambda t: t[f"{GATES}.scale"][0, 0, :3].fill_(0.0),
            rf"{GATES}\.scale holds 3 values that are not step sizes",
        ),
        (
            "model",
            lambda t: t[f"{GATES}.scale"][1, 0, :2].neg_(),
            rf"{GATES}\.scale holds 2 values that are not step sizes",
        ),
        (
            "softmax",
            lambda t: t["weight.scale"].fill_(torch.nan),
            r"weight\.scale holds 6 values that are not step sizes",
        ),
        (
            "softmax",
            lambda t: t["weight.scale"][4].fill_(torch.inf),
            r"weight\.scale holds 1 values that are not step sizes",
        ),
        (
            "softmax",
            lambda t: t["weight.scale"][4].fill_(3e38),
            r"weight\.scale holds 1 values that are not step sizes",
        ),
        (
            "softmax",
            lambda t: t.update({"weight": torch.ones(7, 5).char(), "weight.scale": torch.ones(7, 1)}),
            r"weight is \(7, 5\), the configuration needs \(6, 5\)",
        ),
        (
            "model",
            lambda t: t.update({"extra": torch.ones(7, 5).char(), "extra.scale": torch.ones(7, 1)}),
            "extra is not part of a model",
        ),
    ],
)
def test_a_scale_that_does_not_fit_its_matrix_is_named(model, tmp_path, name, change, says):
    model.save_pretrained(tmp_path / "int8", dtype="int8")
    change_tensors(tmp_path / "int8" / f"{name}.safetensors", change)
    with pytest.raises(ValueError, match=rf"{name}\.safetensors: {says}"):
        ELMo.from_pretrained(tmp_path / "int8")


# ---- damage ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["model.safetensors", "softmax.safetensors"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: b"",
        lambda whole: whole[: len(whole) // 2],
        lambda whole: whole[:-1],
        lambda whole: whole + b"more",
        lambda whole: b"<html>404</html>",
        lambda whole: pickle.dumps({"weight": [1.0]}),
    ],
    ids=["empty", "half", "one byte short", "too long", "HTML", "pickle"],
)
def test_what_is_not_a_complete_safetensors_file_is_named(folder, name, damage):
    (folder / name).write_bytes(damage((folder / name).read_bytes()))
    with pytest.raises(ValueError, match=rf"{name}: not a complete safetensors file"):
        ELMo.from_pretrained(folder)


class Trap:
    """Leaves a mark when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("sprung",)


@pytest.mark.parametrize("name", ["model.safetensors", "softmax.safetensors"])
def test_nothing_is_ever_unpickled(folder, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for content in (pickle.dumps(Trap()), _torch_file({"weight": Trap()}, tmp_path)):
        (folder / name).write_bytes(content)
        with pytest.raises(ValueError, match=name):
            ELMo.from_pretrained(folder)
    assert not (tmp_path / "sprung").exists()


def _torch_file(value, tmp_path: Path) -> bytes:
    torch.save(value, tmp_path / "trap.pt")
    return (tmp_path / "trap.pt").read_bytes()


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("model", lambda t: t.pop("layers.1.bias"), r"layers\.1\.bias \(2, 28\) is missing"),
        ("model", lambda t: t.update(extra=torch.zeros(1)), "extra is not part of a model with this configuration"),
        ("model", lambda t: t.update({"layers.2.bias": torch.zeros(2, 28)}), r"layers\.2\.bias is not part of a model"),
        (
            "model",
            lambda t: t.update({"layers.0.bias": torch.zeros(2, 27)}),
            r"layers\.0\.bias is \(2, 27\), the configuration needs \(2, 28\)",
        ),
        ("model", lambda t: t["layers.0.bias"].fill_(torch.nan), r"layers\.0\.bias holds 56 values that are NaN"),
        ("model", lambda t: t["layers.0.bias"][0, :3].fill_(torch.inf), r"layers\.0\.bias holds 3 values that are NaN"),
        (
            "model",
            lambda t: t.update({"layers.0.bias": torch.zeros(2, 28, dtype=torch.int64)}),
            r"layers\.0\.bias holds torch\.int64, not floating-point numbers",
        ),
        (
            "model",
            lambda t: t.update({"layers.0.bias": torch.zeros(2, 28).to(torch.float8_e4m3fn)}),
            r"layers\.0\.bias holds torch\.float8_e4m3fn, not floating-point numbers",
        ),
        ("model", lambda t: t.pop("mixes.1.gamma"), r"mixes\.1\.gamma \(\) is missing"),
        ("model", lambda t: t.update({"mixes.0.weights": torch.zeros(2)}), r"mixes\.0\.weights is \(2,\)"),
        ("model", dict.clear, r"char_encoder\.char_embedding \(261, 3\) is missing"),
        ("softmax", lambda t: t.pop("bias"), r"bias \(6,\) is missing"),
        ("softmax", lambda t: t.update(weight=torch.zeros(7, 5)), r"weight is \(7, 5\), .* needs \(6, 5\)"),
        ("softmax", lambda t: t["weight"].fill_(-torch.inf), "weight holds 30 values that are NaN or infinite"),
        ("softmax", lambda t: t.update(more=torch.zeros(1)), "more is not part"),
    ],
)
def test_a_tensor_that_does_not_belong_is_named(folder, name, change, says):
    change_tensors(folder / f"{name}.safetensors", change)
    with pytest.raises(ValueError, match=rf"{name}\.safetensors: {says}"):
        ELMo.from_pretrained(folder)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda c: c.update(colour="red"), "unknown key 'colour'"),
        (lambda c: c["bilm"].update(colour="red"), "bilm: unknown key 'colour'"),
        (lambda c: c["bilm"].update(cell_dim="7"), "cell_dim must be int, not '7'"),
        (lambda c: c["bilm"].update(skip_connections=1), "skip_connections must be bool, not 1"),
        (lambda c: c["bilm"].update(filters=[[1]]), "filters must be"),
        (lambda c: c.update(bilm=[1]), "expected a table of settings, found list"),
        (lambda c: c.pop("bilm"), "expected a table of settings, found NoneType"),
        (lambda c: c.update(layer_norm="yes"), "layer_norm must be true or false, not 'yes'"),
        (lambda c: c.update(tokenizer="words"), "one of treebank, spaces, characters, han, not 'words'"),
        (lambda c: c.update(tokenizer=["spaces"]), r"tokenizer must be one of .*, not \['spaces'\]"),
        (lambda c: c.update(tokenizer=None), "tokenizer must be one of .*, not None"),
        (lambda c: c.update(format="bert"), 'no "format": "elmokit", so another program wrote it'),
        (lambda c: c.pop("format"), "another program wrote it"),
    ],
)
def test_a_config_that_is_wrong_is_named(folder, change, says):
    change_config(folder, change)
    with pytest.raises(ValueError, match=rf"config\.json: .*{says}"):
        ELMo.from_pretrained(folder)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda c: c["bilm"].update(num_layers=3), r"layers\.2\.input_weight .*is missing"),
        (lambda c: c["bilm"].update(num_layers=1), r"mixes\.0\.weights is|layers\.1\.\w+ is not part"),
        (lambda c: c["bilm"].update(projection_dim=6), r"is \(5, 8\), the configuration needs \(6, 8\)"),
        (lambda c: c["bilm"].update(num_highways=0), r"char_encoder\.highways\.0\.\w+\.\w+ is not part"),
    ],
)
def test_a_config_that_contradicts_the_weights_is_refused(folder, change, says):
    change_config(folder, change)
    with pytest.raises(ValueError, match=rf"model\.safetensors: .*{says}"):
        ELMo.from_pretrained(folder)


@pytest.mark.parametrize("content", ["", "{", "[]", "<html>"])
def test_a_config_that_is_not_a_json_object_is_named(folder, content):
    (folder / "config.json").write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=r"config\.json"):
        ELMo.from_pretrained(folder)


def test_a_folder_that_lacks_a_file_says_which(folder, tmp_path):
    with pytest.raises(ValueError, match=r"empty: no config\.json, so this is not an elmokit model folder"):
        checkpoint.load(tmp_path / "empty")
    drop_checksums(folder)
    (folder / "vocabulary.txt").unlink()
    with pytest.raises(ValueError, match=r"softmax\.safetensors needs a vocabulary\.txt"):
        ELMo.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"model\.safetensors: the file is missing"):
        ELMo.from_pretrained(folder)
    (folder / "model.safetensors").mkdir()
    with pytest.raises(ValueError, match=r"model\.safetensors: the file is missing"):
        ELMo.from_pretrained(folder)


def test_a_word_level_folder_needs_the_vocabulary_of_its_word_table(official_model, tmp_path):
    made = official_model(word_level=True)
    Vocabulary(made.vocabulary).save(tmp_path / "words.txt")
    model = ELMo.from_files(made.options_path, made.weights_path, vocabulary=tmp_path / "words.txt")
    model.save_pretrained(tmp_path / "folder")
    found = ELMo.from_pretrained(tmp_path / "folder").embed([["word1", "word2"]], layers="all")
    np.testing.assert_allclose(found[0], made.expected(["word1", "word2"]).layers, atol=1e-5)
    Vocabulary(WORDS).save(tmp_path / "folder" / "vocabulary.txt")
    with pytest.raises(ValueError, match=r"vocabulary\.txt: .* 12 words needs its vocabulary: this one has 6 words"):
        ELMo.from_pretrained(tmp_path / "folder")
    (tmp_path / "folder" / "vocabulary.txt").unlink()
    drop_checksums(tmp_path / "folder")
    with pytest.raises(ValueError, match=r"vocabulary\.txt: .* 12 words needs its vocabulary: it is missing"):
        ELMo.from_pretrained(tmp_path / "folder")


# ---- checksums -------------------------------------------------------------------------------------------------------


def flip(path: Path, place: int, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["model.safetensors", "softmax.safetensors", "vocabulary.txt"])
def test_a_single_flipped_bit_in_any_file_is_named(folder, name):
    path = folder / name
    size = path.stat().st_size
    for place, bit in [(0, 0), (size // 3, 2), (size - 9, 1), (size - 1, 7), (size // 2, 5)]:
        flip(path, place, bit)
        with pytest.raises(ValueError, match=rf'{name}.* checksum .*config\.json.*remove "checksums"'):
            ELMo.from_pretrained(folder)
        flip(path, place, bit)
    ELMo.from_pretrained(folder)


@pytest.mark.parametrize("change", [{"cell_clip": 2.0}, {"max_characters": 51}, {"skip_connections": False}])
def test_a_changed_size_that_fits_the_weights_is_named(folder, change):
    change_config(folder, lambda values: values["bilm"].update(change))
    with pytest.raises(ValueError, match=r'config\.json: the checksum of bilm .*remove "checksums"'):
        ELMo.from_pretrained(folder)
    drop_checksums(folder)
    assert ELMo.from_pretrained(folder).config == dataclasses.replace(ELMo.from_pretrained(folder).config, **change)


@pytest.mark.parametrize("name", ["softmax.safetensors", "vocabulary.txt"])
@pytest.mark.parametrize("instead", ["nothing", "folder", "link"])
def test_a_file_that_the_config_names_must_be_there(folder, name, instead):
    (folder / name).unlink()
    if instead == "folder":
        (folder / name).mkdir()
    elif instead == "link":
        (folder / name).symlink_to(folder / name)
    problem = "the file is missing" if instead == "nothing" else "this is not a regular file"
    with pytest.raises(ValueError, match=rf'{name}: {problem}, .*remove its line from "checksums"'):
        checkpoint.load(folder)


def test_the_checksums_are_those_of_the_files(folder):
    files = contents(folder)
    recorded = json.loads(files.pop("config.json"))["checksums"]["files"]
    assert recorded == {name: f"{zlib.crc32(content):08x}" for name, content in files.items()}


def test_a_folder_without_checksums_gets_them_and_nothing_else_changes(folder):
    before = contents(folder)
    drop_checksums(folder)
    checkpoint.record_checksums(folder)
    after = contents(folder)
    assert {name: data for name, data in after.items() if name != "config.json"} == {
        name: data for name, data in before.items() if name != "config.json"
    }
    values = [json.loads(side["config.json"]) for side in (before, after)]
    values[0]["checksums"]["files"].pop("README.md")  # which a user may have written
    assert values[0] == values[1]
    flip(folder / "vocabulary.txt", 20, 0)
    with pytest.raises(ValueError, match="checksum"):
        ELMo.from_pretrained(folder)


def test_the_model_of_the_package_has_checksums():
    folder = names.resolve("en").folder
    recorded = json.loads((folder / "config.json").read_bytes())["checksums"]["files"]
    assert set(recorded) == {"model.safetensors", "softmax.safetensors", "vocabulary.txt"}
    for name, value in recorded.items():
        assert value == f"{zlib.crc32((folder / name).read_bytes()):08x}"


@pytest.mark.parametrize(
    "wrong",
    [1, {}, {"bilm": "0", "files": {}}, {"bilm": "0", "files": {"model.safetensors": "0", "../x": "0"}}, {"files": 1}],
)
def test_checksums_of_another_form_are_refused(folder, wrong):
    change_config(folder, lambda values: values.update(checksums=wrong))
    with pytest.raises(ValueError, match=r"config\.json: checksums"):
        ELMo.from_pretrained(folder)


# ---- a process that is killed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("is_of_0_2", "new_has_softmax"), [(True, True), (False, False)])
def test_a_save_that_is_killed_before_any_of_its_steps_leaves_the_old_or_the_new_model(
    model, folder, tmp_path, is_of_0_2, new_has_softmax
):
    old = {name: tensor.clone() for name, tensor in ELMo.from_pretrained(folder).state_dict().items()}
    if is_of_0_2:
        drop_checksums(folder)
    if not new_has_softmax:
        model.output_layer = model.vocabulary = None
    other(model).save_pretrained(tmp_path / "new")
    new = ELMo.from_pretrained(tmp_path / "new").state_dict()

    def which(path: Path) -> str:
        state = ELMo.from_pretrained(path).state_dict()
        for name, expected in (("old", old), ("new", new)):
            if state.keys() == expected.keys() and all(torch.equal(state[key], expected[key]) for key in state):
                return name
        return "a mixture"

    seen = []
    pid = os.getpid()
    for steps in range(200):
        target = tmp_path / f"target{steps}"
        shutil.copytree(folder, target)
        child = os.fork()
        if child == 0:
            _save_and_die(tmp_path / "new", target, steps)
        assert os.getpid() == pid
        _, status = os.waitpid(child, 0)
        seen.append(which(target))
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            break
        model.save_pretrained(target)  # cleans up
        assert sorted(contents(target)) == sorted(contents(tmp_path / "new"))
        assert which(target) == "new"
    assert set(seen) == {"old", "new"}
    assert seen == sorted(seen, reverse=True)
    assert len(seen) > 12


def _save_and_die(source: Path, target: Path, steps: int) -> None:
    """Save the model of one folder to another, and kill the process before the given change of the target."""
    writes = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.chmod"}

    def count(event: str, arguments: tuple) -> None:
        nonlocal steps
        if event == "open":
            is_write = isinstance(arguments[2], int) and arguments[2] & (os.O_RDWR | os.O_WRONLY)
        else:
            is_write = event in writes
        if is_write:
            steps -= 1
            if steps < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    try:
        elmo = ELMo.from_pretrained(source)
        sys.addaudithook(count)
        elmo.save_pretrained(target)
    finally:
        os._exit(0 if steps >= 0 else 1)


def test_a_model_that_is_saved_and_loaded_at_once_is_never_a_mixture(model, folder):
    states = [{name: t.clone() for name, t in model.state_dict().items()}]
    states.append({name: t + 1 for name, t in states[0].items()})
    stop = threading.Event()

    def save() -> None:
        count = 0
        while not stop.is_set():
            count += 1
            model.load_state_dict(states[count % 2])
            model.save_pretrained(folder)

    thread = threading.Thread(target=save)
    thread.start()
    try:
        for _ in range(40):
            loaded = ELMo.from_pretrained(folder).state_dict()
            assert any(all(torch.equal(loaded[name], state[name]) for name in state) for state in states)
    finally:
        stop.set()
        thread.join()


def test_two_processes_that_save_to_one_folder_leave_one_of_the_models(model, folder, tmp_path):
    children = []
    for number in range(2):
        if (child := os.fork()) == 0:
            try:
                for _ in range(10):
                    other(model).save_pretrained(folder) if number else model.save_pretrained(folder)
            finally:
                os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    loaded = ELMo.from_pretrained(folder)
    difference = loaded.bilm.state_dict()["layers.0.bias"] - model.bilm.state_dict()["layers.0.bias"]
    for name, tensor in loaded.state_dict().items():
        assert torch.allclose(tensor - model.state_dict()[name], difference[0, 0], atol=1e-4), name
    assert len(contents(folder)) == 5


# ---- files and their modes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_the_files_of_a_model_have_the_mode_of_the_umask(model, tmp_path, umask):
    before = os.umask(umask)
    try:
        model.save_pretrained(tmp_path / "folder")
        model.export_hdf5(tmp_path / "official")
    finally:
        os.umask(before)
    for folder in ("folder", "official"):
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / folder).iterdir()}
        assert modes == dict.fromkeys(modes, 0o666 & ~umask)


def test_the_card_of_an_earlier_save_is_replaced_and_that_of_version_0_2_too(model, folder, official_model):
    made = official_model(seed=1, layers=1)
    smaller = ELMo.from_files(made.options_path, made.weights_path)
    old_card = (folder / "README.md").read_text(encoding="utf-8")
    assert old_card.startswith("# A biLM over characters\n\n2 layers of 7 cells")
    smaller.save_pretrained(folder)
    assert "\n1 layer of 7 cells" in (folder / "README.md").read_text(encoding="utf-8")
    (folder / "README.md").write_text(old_card, encoding="utf-8")
    change_config(folder, lambda values: values.pop("checksums"))
    smaller.save_pretrained(folder)
    assert "\n1 layer of 7 cells" in (folder / "README.md").read_text(encoding="utf-8")


# ---- writes that fail -----------------------------------------------------------------------------------------------


def other(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    return model


@pytest.mark.parametrize("calls_before", [0, 1])
def test_a_save_that_fails_in_the_middle_leaves_the_old_model_and_no_other_file(
    model, folder, monkeypatch, calls_before
):
    before, calls = contents(folder), []

    def fail(tensors, path):
        if len(calls) == calls_before:
            raise OSError(errno.ENOSPC, "No space left on device")
        calls.append(path)
        save_file(tensors, path)

    monkeypatch.setattr(checkpoint, "save_file", fail)
    with pytest.raises(OSError, match=rf"No space left on device: '{folder}'"):
        other(model).save_pretrained(folder)
    assert contents(folder) == before


@pytest.mark.parametrize("function", ["replace", "fsync"])
def test_a_disk_that_fails_before_the_first_file_took_its_place_leaves_the_old_model(
    model, folder, monkeypatch, function
):
    before = contents(folder)

    def fail(*arguments):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, function, fail)
    with pytest.raises(OSError, match="Input/output error"):
        other(model).save_pretrained(folder)
    monkeypatch.undo()
    assert contents(folder) == before


def test_a_new_folder_is_not_a_model_until_its_config_is_there(model, tmp_path, monkeypatch):
    placed = []
    replace = os.replace

    def note(source, target):
        placed.append(Path(target).name)
        replace(source, target)

    monkeypatch.setattr(os, "replace", note)
    model.save_pretrained(tmp_path / "new")
    finished = [name for name in placed if not name.endswith(".tmp")]
    assert sorted(finished) == sorted(contents(tmp_path / "new"))
    assert finished[-1] == "config.json"


def test_a_disk_that_takes_no_more_is_an_error_that_names_the_file(model, folder):
    before = contents(folder)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2048, hard))
    try:
        with pytest.raises(OSError, match=r"File too large.*folder/model\.safetensors"):
            other(model).save_pretrained(folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert contents(folder) == before


@pytest.fixture
def full_disk(tmp_path):
    """A folder on a real disk of 64 KB, of which 8 are left."""
    (tmp_path / "disk").mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(tmp_path / "disk")]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a small disk can be mounted by root only")
    try:
        (tmp_path / "disk" / "filler").write_bytes(bytes(56 << 10))
        yield tmp_path / "disk"
    finally:
        subprocess.run(["umount", str(tmp_path / "disk")], check=True)


def test_every_writer_says_when_the_disk_is_full_and_leaves_nothing_on_it(official_model, model, tmp_path, full_disk):
    made = official_model()
    embedder = ElmoEmbedder(made.options_path, made.weights_path)
    (tmp_path / "words.txt").write_text("\n".join([*WORDS, *map(str, range(2000))]), encoding="utf-8")
    writers = {
        "new": model.save_pretrained,
        "official": model.export_hdf5,
        "vectors.hdf5": lambda path: embedder.embed_file(["a b c d e f"] * 40, path),
        "tokens.hdf5": lambda path: model.export_token_embeddings(tmp_path / "words.txt", path),
    }
    for name, write in writers.items():
        with pytest.raises(OSError, match=rf"No space left on device.*{name}"):
            write(full_disk / name)
        assert [path.name for path in full_disk.rglob("*") if path.is_file()] == ["filler"]
