"""An exported model: what ONNX Runtime makes of it, what the file says of itself, and what is refused."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from elmokit import BiLM, BiLMConfig, ELMo, Vocabulary, __version__, batch_to_ids
from elmokit.settings import to_mapping
from elmokit.text import WordWeights

onnx = pytest.importorskip("onnx", reason="the extra elmokit[onnx] is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="the extra elmokit[onnx] is not installed")

from elmokit.cli.models import export as export_verb  # noqa: E402
from elmokit.integrations import onnx as export_module  # noqa: E402
from elmokit.integrations.onnx import export_onnx  # noqa: E402

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "onnx_runtime.py"
CONFIG = BiLMConfig(char_dim=3, filters=((1, 4), (3, 5)), num_highways=1, cell_dim=6, projection_dim=4)
SENTENCES = [["The", "bank", "lent", "money", "."], [], ["é" * 40], ["a", "<S>", "</S>", "bank"]]


def random_model(config=CONFIG, seed=0, vocabulary=None, lexicon=None, **settings):
    torch.manual_seed(seed)
    bilm = BiLM(config)
    for parameter in bilm.parameters():  # initial weights are so small that gates hardly move
        parameter.data.mul_(2)
    return ELMo(bilm, vocabulary=vocabulary, lexicon=lexicon, **settings).eval()


def open_session(path):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def run(path, ids):
    """{output name: array} of a file."""
    session = open_session(path)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, {"ids": np.asarray(ids)}), strict=True))


def assert_as_torch(model, session, ids):
    with torch.no_grad():
        expected = model.bilm(ids)
    layers, mask = session.run(["layers", "mask"], {"ids": ids.numpy()})
    assert layers.shape == tuple(expected.layers.shape)
    assert layers.dtype == np.float32
    assert np.array_equal(mask, expected.mask.numpy())
    assert np.abs(layers - expected.layers.numpy()).max(initial=0) < 1e-5
    assert not layers[:, ~mask].any()


@pytest.fixture(scope="module")
def model():
    return random_model()


# ---- the same vectors ------------------------------------------------------------------------------------------------

VARIANTS = [
    {},
    {"skip": False},
    {"activation": "tanh"},
    {"highways": 0},
    {"highways": 3},
    {"char_projection": False},
    {"layers": 1},
    {"layers": 3},
    {"cell_clip": None},
    {"proj_clip": None},
    {"cell_clip": None, "proj_clip": None},
    {"max_characters": 6, "filters": ((6, 3), (1, 2))},
    {"word_level": True},
    {"word_level": True, "layers": 1, "skip": False},
]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_every_variant_gives_what_the_equations_say(variant, official_model, tmp_path):
    official = official_model(3, **variant)
    vocabulary = Vocabulary(official.vocabulary) if official.vocabulary else None
    paths = {}
    if vocabulary is not None:
        vocabulary.save(tmp_path / "vocabulary.txt")
        paths = {"vocabulary": tmp_path / "vocabulary.txt", "embeddings": official.weights_path}
    model = ELMo.from_files(official.options_path, official.weights_path, **paths)
    path = export_onnx(model, tmp_path / "model.onnx").path
    onnx.checker.check_model(path, full_check=True)
    sentences = [["word1", "word0", "Bank", "word1"], [], ["word3"], ["unbelievably", "."]]
    found = run(path, official.ids(sentences))
    assert found["mask"].sum(axis=1).tolist() == [4, 0, 1, 2]
    for row, sentence in enumerate(sentences):
        if sentence:
            expected = official.expected(sentence).layers
            assert np.abs(found["layers"][:, row, : len(sentence)] - expected).max() < 1e-5
        assert not found["layers"][:, row, len(sentence) :].any()


@st.composite
def configs(draw):
    filters = draw(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 4)), min_size=1, max_size=3))
    projected = draw(st.booleans())
    return BiLMConfig(
        max_characters=draw(st.sampled_from([5, 9, 50])),
        char_dim=draw(st.integers(1, 3)),
        filters=tuple(filters),
        activation=draw(st.sampled_from(["relu", "tanh"])),
        num_highways=draw(st.integers(0, 2)),
        char_projection=projected,
        cell_dim=draw(st.integers(1, 6)),
        projection_dim=draw(st.integers(1, 5)) if projected else sum(channels for _, channels in filters),
        num_layers=draw(st.integers(1, 3)),
        cell_clip=draw(st.sampled_from([None, 0.3, 3.0])),
        proj_clip=draw(st.sampled_from([None, 0.2, 3.0])),
        skip_connections=draw(st.booleans()),
    )


@settings(max_examples=40)
@given(configs(), st.integers(0, 100), st.data())
def test_random_models_agree_with_torch_on_random_batches(tmp_path_factory, config, seed, data):
    model = random_model(config, seed)
    session = open_session(export_onnx(model, tmp_path_factory.mktemp("onnx") / "model.onnx").path)
    words = st.text(st.characters(codec="utf-8"), max_size=12)
    for _ in range(3):  # one file for batches of all shapes
        sentences = data.draw(st.lists(st.lists(words, max_size=6), min_size=1, max_size=4))
        assert_as_torch(model, session, batch_to_ids(sentences, max_characters=config.max_characters))


def test_one_file_reads_batches_of_any_size_and_length(model, tmp_path):
    session = open_session(export_onnx(model, tmp_path / "model.onnx").path)
    sentence = ["The", "bank", "lent", "money"] * 30
    for sentences in ([], [[]], [[], []], [["a"]], [sentence], [["a"]] * 70, [sentence[:k] for k in range(20)]):
        assert_as_torch(model, session, batch_to_ids(sentences))
    ids = batch_to_ids([["a", "b"]])
    assert_as_torch(model, session, torch.cat([ids, torch.zeros_like(ids)], dim=1))  # more padding than is needed


def test_ids_that_are_no_spelling_of_a_word_read_as_in_torch(model, tmp_path):
    session = open_session(export_onnx(model, tmp_path / "model.onnx").path)
    ids = torch.randint(0, 262, (3, 4, 50), generator=torch.Generator().manual_seed(0))
    ids[0, 0] = 261  # pads alone
    ids[0, 1, 1:] = 0  # no pads at all
    assert_as_torch(model, session, ids)


def test_the_embedded_model_agrees_with_torch_and_keeps_its_int8_size(tmp_path):
    model = ELMo.from_pretrained()
    file = export_onnx(model, tmp_path / "model.onnx", dtype="int8")
    assert file.num_bytes == file.path.stat().st_size < 20_000_000
    # its matrices were int8 before, so nothing is lost
    assert_as_torch(model, open_session(file.path), batch_to_ids(SENTENCES))


LEXICONS = {
    "characters and words": {"num_lexicon_words": 4, "word_dim": 3},
    "characters": {},
    "words": {"num_lexicon_words": 4, "word_dim": 3, "filters": ()},
}


@pytest.mark.parametrize("kind", LEXICONS)
def test_a_model_with_a_lexicon_agrees_with_torch_and_carries_it(kind, tmp_path):
    from elmokit.text import Lexicon

    sizes = {"char_dim": 3, "filters": ((1, 4), (3, 5)), "num_highways": 1, "max_characters": 9} | LEXICONS[kind]
    config = BiLMConfig(num_lexicon_characters=5, cell_dim=6, projection_dim=4, **sizes)
    lexicon = Lexicon("aebkn", ["bank", "a", "river", "é"][: config.num_lexicon_words])
    model = random_model(config, lexicon=lexicon)
    path = export_onnx(model, tmp_path / "model.onnx").path
    session = open_session(path)
    assert_as_torch(model, session, model.to_ids(SENTENCES))
    told = json.loads(session.get_modelmeta().custom_metadata_map["lexicon"])
    assert told == {"characters": list("aebkn"), "words": list(lexicon.words)}


# ---- one vector a token ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layers", ["average", "top", "slot", 0, 1, 2])
def test_chosen_layers_are_those_of_embed(model, tmp_path, layers):
    file = export_onnx(model, tmp_path / "model.onnx", layers=layers)
    onnx.checker.check_model(file.path, full_check=True)
    found = run(file.path, batch_to_ids(SENTENCES))
    assert list(found) == list(file.outputs) == ["vectors", "mask"]
    for vectors, expected in zip(found["vectors"], model.embed(SENTENCES, layers=layers), strict=True):
        assert np.abs(vectors[: len(expected)] - expected).max(initial=0) < 1e-5
        assert not vectors[len(expected) :].any()


def weights_by_metadata(session, sentences, num_tokens):
    """The second input of a file of "sense", as docs/onnx.md says: (batch, tokens), zeros at padding."""
    table = json.loads(session.get_modelmeta().custom_metadata_map["word_weights"])
    weights = np.zeros((len(sentences), num_tokens), np.float32)
    for row, sentence in zip(weights, sentences, strict=True):
        row[: len(sentence)] = [table["words"].get(token, table["unknown"]) for token in sentence]
    return weights


def assert_sense_as_embed(model, path, sentences, padding=0):
    session = open_session(path)
    ids = model.to_ids(sentences)
    ids = torch.cat([ids, ids.new_zeros(len(ids), padding, *ids.shape[2:])], dim=1)
    weights = weights_by_metadata(session, sentences, ids.shape[1])
    vectors, mask = session.run(["vectors", "mask"], {"ids": ids.numpy(), "weights": weights})
    assert vectors.shape == (*ids.shape[:2], model.dim)
    assert mask.sum(axis=1).tolist() == list(map(len, sentences))
    for found, expected in zip(vectors, model.embed(sentences, layers="sense"), strict=True):
        assert np.abs(found[: len(expected)] - expected).max(initial=0) < 1e-5
        assert not found[len(expected) :].any()


VIEWED = {
    "characters": (CONFIG, {}),
    "one layer, no skip connections": (
        BiLMConfig(char_dim=3, filters=((1, 4),), cell_dim=6, projection_dim=4, num_layers=1, skip_connections=False),
        {},
    ),
    "words": (
        BiLMConfig(num_words=5, cell_dim=6, projection_dim=4),
        {"vocabulary": Vocabulary(["<S>", "</S>", "<UNK>", "bank", "é"])},
    ),
}


@pytest.mark.parametrize("kind", VIEWED)
def test_sense_is_that_of_embed_with_the_weights_that_the_file_holds(tmp_path, kind):
    config, parts = VIEWED[kind]
    model = random_model(config, **parts)
    file = export_onnx(model, tmp_path / "model.onnx", layers="sense")
    onnx.checker.check_model(file.path, full_check=True)
    assert list(file.inputs) == ["ids", "weights"]
    assert file.inputs["weights"] == ("batch", "tokens")
    assert list(file.outputs) == ["vectors", "mask"]
    session = open_session(file.path)
    for values, shapes in ((session.get_inputs(), file.inputs), (session.get_outputs(), file.outputs)):
        assert {value.name: tuple(value.shape) for value in values} == shapes
    assert session.get_modelmeta().custom_metadata_map["layers"] == "sense"
    far = ["bank", *["The", "lent", "é"] * 30, "money"]  # words that are further away than the surroundings reach
    for sentences in (SENTENCES, [["bank"]], [far, ["a", "b"]], [[]], [[], []], []):
        assert_sense_as_embed(model, file.path, sentences)
    assert_sense_as_embed(model, file.path, SENTENCES, padding=3)


def test_weights_of_counts_are_those_of_the_file_and_padding_has_none(tmp_path):
    model = random_model()
    model.word_weights = WordWeights({"The": 70, "bank": 2, "Über": 1})
    path = export_onnx(model, tmp_path / "model.onnx", layers="sense").path
    assert_sense_as_embed(model, path, SENTENCES)
    session, ids = open_session(path), model.to_ids(SENTENCES).numpy()
    weights = weights_by_metadata(session, SENTENCES, ids.shape[1])
    weights[weights == 0] = 5.0  # what is at padding does not count
    (vectors,) = session.run(["vectors"], {"ids": ids, "weights": weights})
    assert np.abs(vectors[0] - model.embed(SENTENCES, layers="sense")[0]).max() < 1e-5
    assert np.abs(vectors[3, :4] - model.embed(SENTENCES, layers="sense")[3]).max() < 1e-5


@pytest.mark.parametrize("layers", ["slot", "sense"])
def test_the_embedded_model_gives_slot_and_sense(tmp_path, layers):
    model = ELMo.from_pretrained()
    path = export_onnx(model, tmp_path / "model.onnx", layers=layers, dtype="int8").path
    sentences = [*SENTENCES, ["He", "sat", "on", "the", "bank", "of", "the", "river", "."]]
    if layers == "sense":
        assert_sense_as_embed(model, path, sentences)
        return
    for found, expected in zip(
        run(path, batch_to_ids(sentences))["vectors"], model.embed(sentences, layers=layers), strict=True
    ):
        assert np.abs(found[: len(expected)] - expected).max(initial=0) < 1e-5


def test_the_mix_is_the_one_that_the_model_has_learned(tmp_path):
    model = random_model(num_mixes=1)
    model.mixes[0].weights.data.copy_(torch.tensor([0.5, -1.0, 2.0]))
    model.mixes[0].gamma.data.fill_(1.7)
    path = export_onnx(model, tmp_path / "model.onnx", layers="mix").path
    ids = batch_to_ids(SENTENCES)
    with torch.no_grad():
        expected = model(ids).mixes[0].numpy()
    assert np.abs(run(path, ids)["vectors"] - expected).max() < 1e-5


# ---- the file --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "share"), [("float16", 0.5), ("int8", 0.25)])
def test_smaller_weights_give_what_a_folder_of_that_kind_gives(tmp_path, dtype, share):
    config = BiLMConfig(char_dim=16, filters=((1, 64), (3, 64)), num_highways=1, cell_dim=64, projection_dim=64)
    model = random_model(config)
    whole = export_onnx(model, tmp_path / "whole.onnx")
    small = export_onnx(model, tmp_path / "small.onnx", dtype=dtype)
    onnx.checker.check_model(small.path, full_check=True)
    assert small.num_bytes < (share + 0.07) * whole.num_bytes
    model.save_pretrained(tmp_path / "folder", dtype=dtype)
    rounded = ELMo.from_pretrained(tmp_path / "folder")
    ids = batch_to_ids(SENTENCES)
    assert_as_torch(rounded, open_session(small.path), ids)
    difference = np.abs(run(whole.path, ids)["layers"] - run(small.path, ids)["layers"]).max()
    assert difference > 1e-5


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_model_of_any_floating_type_is_written_in_float32(tmp_path, dtype):
    model = random_model().to(dtype)
    path = export_onnx(model, tmp_path / "model.onnx").path
    assert_as_torch(model.float(), open_session(path), batch_to_ids(SENTENCES))


def test_the_file_says_what_it_is(model, tmp_path):
    file = export_onnx(model, tmp_path / "model.onnx")
    assert file.inputs == {"ids": ("batch", "tokens", 50)}
    assert file.outputs == {"layers": (3, "batch", "tokens", 8), "mask": ("batch", "tokens")}
    session = open_session(file.path)
    for values, shapes in ((session.get_inputs(), file.inputs), (session.get_outputs(), file.outputs)):
        assert {value.name: tuple(value.shape) for value in values} == shapes
    assert [value.type for value in session.get_outputs()] == ["tensor(float)", "tensor(bool)"]
    told = session.get_modelmeta().custom_metadata_map
    assert json.loads(told.pop("config")) == to_mapping(model.config)
    assert told == {"elmokit_version": __version__, "layers": "all", "dtype": "float32"}
    proto = onnx.load(file.path)
    assert (proto.producer_name, proto.ir_version) == ("elmokit", 8)
    assert [(opset.domain, opset.version) for opset in proto.opset_import] == [("", 18)]
    held = {constant.name: onnx.numpy_helper.to_array(constant) for constant in proto.graph.initializer}
    expected = model.bilm.layers[1].projection[1].detach().numpy()
    assert np.array_equal(held["layers.1.projection.backward"], expected)


def test_a_word_level_file_carries_its_vocabulary(tmp_path):
    words = ["<S>", "</S>", "<UNK>", "bank", "é"]
    config = BiLMConfig(num_words=5, cell_dim=6, projection_dim=4)
    model = random_model(config, vocabulary=Vocabulary(words))
    file = export_onnx(model, tmp_path / "model.onnx")
    assert file.inputs == {"ids": ("batch", "tokens")}
    session = open_session(file.path)
    assert session.get_modelmeta().custom_metadata_map["vocabulary"].split("\n") == words
    assert_as_torch(model, session, model.to_ids([["bank", "river"], ["é"], []]))


def test_the_same_model_gives_the_same_bytes(model, tmp_path):
    paths = [export_onnx(model, tmp_path / name).path for name in ("a.onnx", "b.onnx")]
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_a_write_that_fails_leaves_the_old_file(model, tmp_path, monkeypatch):
    path = tmp_path / "model.onnx"
    path.write_bytes(b"old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        export_onnx(model, path)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["model.onnx"]


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "asked", "message"),
    [
        ({}, {"layers": 3}, "number from 0 to 2, not 3"),
        ({}, {"layers": -4}, "number from 0 to 2, not -4"),
        ({}, {"layers": True}, "not True"),
        ({}, {"layers": "bottom"}, "not 'bottom'"),
        ({}, {"dtype": "int4"}, "not as 'int4'"),
        ({"num_mixes": 0}, {"layers": "mix"}, "this one has 0 mixes"),
        ({"num_mixes": 2}, {"layers": "mix"}, "this one has 2 mixes"),
        ({"layer_norm": True}, {"layers": "mix"}, "1 mixes with layer norm"),
        ({"state": "carry"}, {}, "without state"),
        ({"keep_boundaries": True}, {}, "without keep_boundaries"),
    ],
)
def test_what_a_graph_cannot_be_is_refused(tmp_path, made, asked, message):
    with pytest.raises(ValueError, match=message):
        export_onnx(random_model(**made), tmp_path / "model.onnx", **asked)
    assert os.listdir(tmp_path) == []


def test_weights_rounded_for_the_cpu_engine_are_refused(tmp_path, tiny_elmo):
    model = ELMo.from_pretrained(tiny_elmo, quantize="int8")
    with pytest.raises(ValueError, match='export with dtype="int8"'):
        export_onnx(model, tmp_path / "model.onnx")


def test_a_model_that_no_onnx_file_holds_is_refused_with_the_way_out(model, tmp_path, monkeypatch):
    monkeypatch.setattr(export_module, "LARGEST_FILE", 1000)
    with pytest.raises(ValueError, match=r"model.onnx: an ONNX file holds 2 GiB.* store it as"):
        export_onnx(model, tmp_path / "model.onnx")
    with pytest.raises(ValueError, match=r"bytes as int8$"):
        export_onnx(model, tmp_path / "model.onnx", dtype="int8")


def test_ids_that_no_character_has_are_refused_at_run_time(model, tmp_path):
    session = open_session(export_onnx(model, tmp_path / "model.onnx").path)
    for ids in (np.full((1, 1, 50), 262), np.ones((1, 1, 49), np.int64), np.ones((1, 1, 50), np.int32)):
        with pytest.raises(Exception, match=r"out of data bounds|Got invalid dimensions|Unexpected input data type"):
            session.run(None, {"ids": ids})


def test_without_onnx_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    monkeypatch.delitem(sys.modules, "elmokit.integrations.onnx")
    with pytest.raises(ImportError, match=r'pip install "elmokit\[onnx\]"'):
        importlib.import_module("elmokit.integrations.onnx")


# ---- the command line and the example --------------------------------------------------------------------------------


def invoke(*arguments):
    return CliRunner().invoke(export_verb, [str(argument) for argument in arguments])


def test_the_verb_writes_the_file_and_says_what_it_reads_and_gives(tiny_elmo, tmp_path):
    path = tmp_path / "model.onnx"
    done = invoke(tiny_elmo, "--onnx", path)
    assert done.exit_code == 0, done.output
    size = path.stat().st_size
    shapes = "ids (batch, tokens, 50) -> layers (3, batch, tokens, 16), mask (batch, tokens)"
    assert done.output == f"{path}: {size / 1e6:.1f} MB, {shapes}\n"
    assert_as_torch(ELMo.from_pretrained(tiny_elmo), open_session(path), batch_to_ids(SENTENCES))


def test_the_verb_gives_json_and_takes_layers_and_dtype(tiny_elmo, tmp_path):
    path = tmp_path / "model.onnx"
    done = invoke(tiny_elmo, "--onnx", path, "--layers", "1", "--dtype", "float16", "--json")
    assert json.loads(done.output) == {
        "path": str(path),
        "num_bytes": path.stat().st_size,
        "inputs": {"ids": ["batch", "tokens", 50]},
        "outputs": {"vectors": ["batch", "tokens", 16], "mask": ["batch", "tokens"]},
    }
    assert invoke(tiny_elmo, "--onnx", path, "--layers", "mix", "--overwrite").exit_code == 0
    done = invoke(tiny_elmo, "--onnx", path, "--layers", "sense", "--overwrite")
    shapes = "ids (batch, tokens, 50), weights (batch, tokens) -> vectors (batch, tokens, 16), mask (batch, tokens)"
    assert done.output.endswith(f" MB, {shapes}\n")


def test_the_verb_refuses_before_it_loads_a_model(tiny_elmo, tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(b"old")
    assert "--overwrite" in str(invoke("no-such-model", "--onnx", path).exception)
    refused = invoke(tiny_elmo, "--onnx", path, "--layers", "bottom", "--overwrite")  # the model has no such layer
    assert "not 'bottom'" in str(refused.exception)
    assert path.read_bytes() == b"old"


def test_the_example_runs_without_torch_and_tells_the_banks_apart(tmp_path):
    path = export_onnx(ELMo.from_pretrained(), tmp_path / "model.onnx", layers="average", dtype="int8").path
    program = (
        "import runpy, sys; sys.modules['torch'] = sys.modules['elmokit'] = None; "
        "sys.argv[:] = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    command = [sys.executable, "-c", program, str(EXAMPLE), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    first, *rows = done.stdout.splitlines()
    assert first == "ids (4, 11, 50) -> vectors (4, 11, 512), mask (4, 11) with 38 tokens"
    cosines = np.array([[float(cosine) for cosine in row.split()[:4]] for row in rows])
    assert min(cosines[0, 1], cosines[2, 3]) > cosines[:2, 2:].max()
