"""ELMoForManyLangs folders: a random model of every kind, written by the rules of that package and computed by them.

The writer and the float64 reference below follow its published loader and network, not ours: its names of arrays, its
lexicons, its gates in the order i, f, j, o, its highway that carries by the gate, its swapped marks of a word.
"""

import json
import pickle
import re
import shlex
from collections import OrderedDict
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import test_tensorflow as checkpoints
import torch
from click.testing import CliRunner

import reference
from elmokit import BiLM, BiLMConfig, ELMo, batch_to_ids
from elmokit.cli import main
from elmokit.compat import Embedder
from elmokit.pretraining import finetune
from elmokit.text import Lexicon

CHARACTERS = "abcdehilnorst今天氣好'"
WORDS = ["the", "cat", "今天", "is", "<pad-like>", "ab" * 4]
SENTENCES = [
    ["the", "cat", "is", "on"],
    ["今天", "天氣", "好"],
    ["x"],
    ["", "ab" * 10, "ab" * 4, "<oov>", "<pad>", "naïve", "<bos>", "\u3000"],
    [],
]
VARIANTS = {
    "words and characters": {},
    "characters only": {"word_dim": 0},
    "words only": {"char_dim": 0},
    "tanh, no highway, one layer": {"activation": "tanh", "highways": 0, "layers": 1},
    "no clips": {"clip": 0},
    "pretrained words first": {"specials_last": True},
}


class Random(NamedTuple):
    """A model of theirs in memory."""

    sizes: dict
    characters: dict[str, int]
    words: dict[str, int]
    embedder: dict[str, np.ndarray]
    encoder: dict[str, np.ndarray]


def random_model(
    seed=0,
    *,
    word_dim=3,
    char_dim=4,
    activation="relu",
    highways=2,
    layers=2,
    clip=0.5,
    specials_last=False,
    max_characters=10,
) -> Random:
    rng = np.random.default_rng(seed)
    cell_dim, projection_dim, filters = 6, 5, [[1, 2], [2, 3], [3, 2]]
    embedder_sizes = {"name": "cnn", "activation": activation, "filters": filters, "n_highway": highways}
    embedder_sizes |= {"word_dim": word_dim, "char_dim": char_dim, "max_characters_per_token": max_characters}
    sizes = {
        "encoder": {"name": "elmo", "projection_dim": projection_dim, "cell_clip": clip, "proj_clip": clip and 0.3}
        | {"dim": cell_dim, "n_layers": layers},
        "token_embedder": embedder_sizes,
        "classifier": {"name": "sampled_softmax", "n_samples": 8192},
        "dropout": 0.1,
    }
    special_words, known = ["<oov>", "<bos>", "<eos>", "<pad>"], [*WORDS, "\u3000"]
    words = known + special_words if specials_last else special_words + known
    characters = [*CHARACTERS, "\u3000", "<bos>", "<eos>", "<oov>", "<pad>", "<bow>", "<eow>"]

    def normal(*shape, scale=1.0):
        return (rng.standard_normal(shape) * scale).astype(np.float32)

    embedder = {}
    filters_dim = 7 if char_dim else 0
    if word_dim:
        embedder["word_emb_layer.embedding.weight"] = normal(len(words), word_dim)
    if char_dim:
        embedder["char_emb_layer.embedding.weight"] = normal(len(characters), char_dim)
        for i, (width, channels) in enumerate(filters):
            embedder[f"convolutions.{i}.weight"] = normal(channels, char_dim, width, scale=0.5)
            embedder[f"convolutions.{i}.bias"] = normal(channels, scale=0.3)
        for k in range(highways):
            embedder[f"highways._layers.{k}.weight"] = normal(14, 7, scale=0.5)
            embedder[f"highways._layers.{k}.bias"] = normal(14, scale=0.5)
    embedder["projection.weight"] = normal(projection_dim, word_dim + filters_dim, scale=0.6)
    embedder["projection.bias"] = normal(projection_dim, scale=0.3)
    encoder = {}
    for layer in range(layers):
        for direction in ("forward", "backward"):
            name = f"{direction}_layer_{layer}."
            encoder[name + "input_linearity.weight"] = normal(4 * cell_dim, projection_dim, scale=0.7)
            encoder[name + "state_linearity.weight"] = normal(4 * cell_dim, projection_dim, scale=0.7)
            encoder[name + "state_linearity.bias"] = normal(4 * cell_dim, scale=0.5)
            encoder[name + "state_projection.weight"] = normal(projection_dim, cell_dim, scale=0.9)
    number = lambda items: {item: row for row, item in enumerate(items)}  # noqa: E731
    return Random(sizes, number(characters) if char_dim else {}, number(words), embedder, encoder)


def write(model: Random, folder: Path, *, legacy=False, config_path="configs/sizes.json") -> Path:
    """The folder as their trainer leaves it."""
    folder.mkdir(exist_ok=True)
    (folder / "configs").mkdir(exist_ok=True)
    (folder / "configs" / "sizes.json").write_text(json.dumps(model.sizes))
    (folder / "config.json").write_text(json.dumps({"config_path": config_path, "lr": 0.001, "model": "out/xx"}))
    for name, lexicon in (("char.dic", model.characters), ("word.dic", model.words)):
        if lexicon:
            lines = "".join(f"{item}\t{row}\n" for item, row in lexicon.items())
            (folder / name).write_text(lines, encoding="utf-8", newline="\n")
    for name, arrays in (("token_embedder.pkl", model.embedder), ("encoder.pkl", model.encoder)):
        tensors = OrderedDict((key, torch.from_numpy(values)) for key, values in arrays.items())
        torch.save(tensors, folder / name, _use_new_zipfile_serialization=not legacy)
    return folder


# ---- the reference: their rules, one sentence at a time, in float64 --------------------------------------------------


def expected(model: Random, sentence: list[str]) -> np.ndarray:
    """(L+1, T, 2P): what a fresh Embedder gives with output_layer=-2."""
    room = model.sizes["token_embedder"]["max_characters_per_token"] - 2
    tokens = ["<bos>", *(token[:room] for token in sentence), "<eos>"]
    x = np.array([token_vector(model, token) for token in tokens])
    stacked = [np.concatenate([x, x], axis=1)]
    streams = {"forward": x, "backward": x}
    for layer in range(model.sizes["encoder"]["n_layers"]):
        for direction, inputs in streams.items():
            times = range(len(inputs)) if direction == "forward" else reversed(range(len(inputs)))
            outputs = lstm(model, f"{direction}_layer_{layer}.", inputs, list(times))
            streams[direction] = outputs + inputs if layer else outputs
        stacked.append(np.concatenate([streams["forward"], streams["backward"]], axis=1))
    return np.stack(stacked)[:, 1:-1]


def token_vector(model: Random, token: str) -> np.ndarray:
    sizes = model.sizes["token_embedder"]
    arrays = {name: values.astype(np.float64) for name, values in model.embedder.items()}
    parts = []
    if sizes["word_dim"]:
        parts.append(arrays["word_emb_layer.embedding.weight"][model.words.get(token, model.words["<oov>"])])
    if sizes["char_dim"]:
        lexicon = model.characters
        first, last = lexicon["<eow>"], lexicon["<bow>"]  # swapped, as their create_one_batch has them
        inside = [lexicon[token]] if token in ("<bos>", "<eos>") else [lexicon.get(c, lexicon["<oov>"]) for c in token]
        ids = [first, *inside, last]
        ids += [lexicon["<pad>"]] * (sizes["max_characters_per_token"] - len(ids))
        characters = arrays["char_emb_layer.embedding.weight"][ids]  # (C, d)
        found = []
        for i, (width, _) in enumerate(sizes["filters"]):
            kernel, bias = arrays[f"convolutions.{i}.weight"], arrays[f"convolutions.{i}.bias"]
            windows = [characters[k : k + width] for k in range(len(ids) - width + 1)]
            best = np.max([np.einsum("wd,ndw->n", window, kernel) + bias for window in windows], axis=0)
            found.append(np.tanh(best) if sizes["activation"] == "tanh" else np.maximum(best, 0))
        y = np.concatenate(found)
        for k in range(sizes["n_highway"]):
            both = arrays[f"highways._layers.{k}.weight"] @ y + arrays[f"highways._layers.{k}.bias"]
            new, gate = np.maximum(both[: len(y)], 0), sigmoid(both[len(y) :])
            y = gate * y + (1 - gate) * new
        parts.append(y)
    return arrays["projection.weight"] @ np.concatenate(parts) + arrays["projection.bias"]


def lstm(model: Random, name: str, inputs: np.ndarray, times: list[int]) -> np.ndarray:
    sizes = model.sizes["encoder"]
    get = lambda part: model.encoder[name + part].astype(np.float64)  # noqa: E731
    h, c = np.zeros(sizes["projection_dim"]), np.zeros(sizes["dim"])
    outputs = np.zeros_like(inputs)
    for t in times:
        gates = get("input_linearity.weight") @ inputs[t]
        gates += get("state_linearity.weight") @ h + get("state_linearity.bias")
        i, f, j, o = np.split(gates, 4)
        c = sigmoid(i) * np.tanh(j) + sigmoid(f) * c
        if sizes["cell_clip"]:
            c = np.clip(c, -sizes["cell_clip"], sizes["cell_clip"])
        h = get("state_projection.weight") @ (sigmoid(o) * np.tanh(c))
        if sizes["proj_clip"]:
            h = np.clip(h, -sizes["proj_clip"], sizes["proj_clip"])
        outputs[t] = h
    return outputs


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def same(found: list[np.ndarray], model: Random, sentences=SENTENCES, atol=1e-5) -> None:
    for vectors, sentence in zip(found, sentences, strict=True):
        np.testing.assert_allclose(vectors, expected(model, sentence), atol=atol)


# ---- parity ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_every_kind_of_model_gives_the_vectors_of_its_own_rules(tmp_path, variant):
    model = random_model(**variant)
    elmo = ELMo.from_pretrained(write(model, tmp_path / "xx.model"))
    same(elmo.embed(SENTENCES, layers="all"), model)


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_both_forms_of_torch_files_are_read(tmp_path, legacy):
    model = random_model(1)
    folder = write(model, tmp_path / "xx.model", legacy=legacy)
    assert (folder / "encoder.pkl").read_bytes()[:2] == (b"\x80\x02" if legacy else b"PK")
    same(ELMo.from_pretrained(folder).embed(SENTENCES, layers="all"), model)


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_our_own_folder_keeps_the_lexicon_and_every_vector(tmp_path, variant):
    model = random_model(2, **variant)
    elmo = ELMo.from_pretrained(write(model, tmp_path / "xx.model"))
    elmo.save_pretrained(tmp_path / "ours")
    again = ELMo.from_pretrained(tmp_path / "ours")
    assert again.config == elmo.config
    assert (again.lexicon.characters, again.lexicon.words) == (elmo.lexicon.characters, elmo.lexicon.words)
    for a, b in zip(again.embed(SENTENCES, layers="all"), elmo.embed(SENTENCES, layers="all"), strict=True):
        np.testing.assert_array_equal(a, b)
    same(again.embed(SENTENCES, layers="all"), model)


def test_a_folder_of_one_kind_saved_over_another_leaves_no_lexicon_behind(tmp_path, tiny_elmo):
    ELMo.from_pretrained(write(random_model(), tmp_path / "xx.model")).save_pretrained(tmp_path / "ours")
    assert (tmp_path / "ours" / "lexicon.json").is_file()
    ELMo.from_pretrained(tiny_elmo).save_pretrained(tmp_path / "ours")
    assert not (tmp_path / "ours" / "lexicon.json").exists()


def test_forward_gives_the_same_as_embed_and_trains(tmp_path):
    model = random_model(3)
    elmo = ELMo.from_pretrained(write(model, tmp_path / "xx.model"), freeze=False, dropout=0.0)
    ids = elmo.to_ids(SENTENCES)
    assert ids.shape == (5, 8, 11)
    output = elmo(ids)
    assert output.mask.sum(dim=1).tolist() == [4, 3, 1, 8, 0]
    same([output.layers[:, row, : len(s)].detach().numpy() for row, s in enumerate(SENTENCES)], model)
    output.mixes[0].square().sum().backward()
    encoder = elmo.bilm.lexicon_encoder
    assert encoder.word_embedding.grad.abs().sum() > 0
    assert encoder.spelling.char_embedding.grad.abs().sum() > 0


def test_a_changed_word_vector_is_not_taken_from_the_cache(tmp_path):
    elmo = ELMo.from_pretrained(write(random_model(), tmp_path / "xx.model"))
    before = elmo.embed([["cat"]])[0]
    with torch.no_grad():
        elmo.bilm.lexicon_encoder.word_embedding.add_(1.0)
    assert np.abs(elmo.embed([["cat"]])[0] - before).max() > 1e-3


def test_int8_weights_stay_near(tmp_path):
    folder = write(random_model(4), tmp_path / "xx.model")
    whole, rounded = ELMo.from_pretrained(folder), ELMo.from_pretrained(folder, quantize="int8")
    for a, b in zip(whole.embed(SENTENCES), rounded.embed(SENTENCES), strict=True):
        np.testing.assert_allclose(a, b, atol=0.1)
    assert not np.array_equal(whole.embed([["cat"]])[0], rounded.embed([["cat"]])[0])
    words_only = write(random_model(4, char_dim=0), tmp_path / "words.model")
    assert ELMo.from_pretrained(words_only, quantize="int8").bilm.is_int8


def test_the_command_line_says_what_it_is_and_converts_it_to_our_format(tmp_path):
    model = random_model()
    folder = write(model, tmp_path / "theirs")
    said = json.loads(CliRunner().invoke(main, ["info", str(folder), "--json"]).stdout)
    assert said["format"] == "elmoformanylangs"
    assert {Path(file["path"]).name for file in said["files"]} >= {"config.json", "encoder.pkl", "token_embedder.pkl"}
    shown = CliRunner().invoke(main, ["info", str(folder)]).stdout
    assert "num lexicon characters" in shown
    ours = tmp_path / "ours"
    done = CliRunner().invoke(main, ["convert", str(folder), str(ours)], catch_exceptions=False)
    assert done.exit_code == 0
    assert (ours / "lexicon.json").is_file()
    same(ELMo.from_pretrained(ours).embed(SENTENCES, layers="all"), model)


def test_it_gives_vectors_and_is_not_trained_on(tmp_path):
    ELMo.from_pretrained(write(random_model(), tmp_path / "theirs")).save_pretrained(tmp_path / "ours")
    (tmp_path / "text.txt").write_text("a b .\n" * 20, encoding="utf-8")
    (tmp_path / "vocabulary.txt").write_text("<S>\n</S>\n<UNK>\na\nb\n.\n", encoding="utf-8")
    text = str(tmp_path / "text.txt")
    with pytest.raises(ValueError, match="a lexicon of its own"):
        finetune(
            tmp_path / "ours", train=text, out=tmp_path / "run", vocabulary=str(tmp_path / "vocabulary.txt"), steps=1
        )


@pytest.mark.parametrize("output_layer", [0, 1, 2, -1, -2])
def test_their_embedder_s_layers_are_theirs(tmp_path, output_layer):
    model = random_model(5)
    found = Embedder(write(model, tmp_path / "xx.model"), batch_size=2).sents2elmo(SENTENCES, output_layer)
    for vectors, sentence in zip(found, SENTENCES, strict=True):
        stacked = expected(model, sentence)
        wanted = {-1: stacked.mean(axis=0), -2: stacked}.get(output_layer, stacked[output_layer])
        np.testing.assert_allclose(vectors, wanted, atol=1e-5)


def test_the_snippets_of_the_page_about_other_models_run(tmp_path, monkeypatch, official_model, capsys):
    monkeypatch.chdir(tmp_path)
    write(random_model(), tmp_path / "zht.model")
    model, folder = official_model(2), tmp_path / "tf_checkpoint"
    folder.mkdir()
    words = reference.random_vocabulary(9)
    width = model.options["lstm"]["projection_dim"]
    softmax = {"softmax/W": np.ones((9, width), np.float32), "softmax/b": np.zeros(9, np.float32)}
    checkpoints.write_checkpoint(folder / "model.ckpt-7", checkpoints.variables(model.arrays | softmax, "1.0"))
    (folder / "options.json").write_text(json.dumps(model.options))
    for path in (folder / "vocab.txt", tmp_path / "vocab.txt"):
        checkpoints.write_vocabulary(path, words)
    page = (Path(__file__).resolve().parents[2] / "docs" / "other-models.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```(py|sh)\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    names = {}
    for kind, block in blocks:
        if kind == "py":
            exec(block, names)
        else:
            done = CliRunner().invoke(main, shlex.split(block)[1:])
            assert done.exit_code == 0, done.output
    assert len(blocks) == 5
    assert names["model"].output_layer is not None
    assert float(capsys.readouterr().out) == pytest.approx(9.0)  # a softmax that knows nothing
    assert ELMo.from_pretrained("mine").output_layer is not None
    assert ELMo.from_pretrained("traditional-chinese").lexicon.words == ("<pad>", *WORDS, "\u3000")


# ---- where the sizes are ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config_path", ["/home/them/elmo/configs/sizes.json", "sizes.json", "..\\x\\sizes.json"])
def test_the_sizes_are_found_by_their_name_in_the_folder(tmp_path, config_path):
    model = random_model(6)
    folder = write(model, tmp_path / "xx.model", config_path=config_path)
    same(ELMo.from_pretrained(folder).embed(SENTENCES, layers="all"), model)
    (folder / "configs" / "sizes.json").rename(folder / "sizes.json")
    same(ELMo.from_pretrained(folder).embed(SENTENCES, layers="all"), model)


def test_the_published_sizes_are_known_where_their_file_is_not_in_the_folder(tmp_path):
    name = "../elmoformanylangs/configs/cnn_50_100_512_4096_sample.json"
    folder = write(random_model(), tmp_path / "xx.model", config_path=name)
    with pytest.raises(ValueError, match=r"token_embedder\.pkl: projection\.weight is .*needs \(512, 2148\)"):
        ELMo.from_pretrained(folder)


def test_an_unknown_name_of_the_sizes_is_named(tmp_path):
    folder = write(random_model(), tmp_path / "xx.model", config_path="mine/other.json")
    with pytest.raises(ValueError, match=r"config\.json names 'mine/other\.json', but there is no such file"):
        ELMo.from_pretrained(folder)
    (folder / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"config\.json: 'config_path', .* is None"):
        ELMo.from_pretrained(folder)


# ---- what is refused -------------------------------------------------------------------------------------------------


class Bomb:
    """A pickle that would run a command."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("write_bomb", [lambda b, p: p.write_bytes(pickle.dumps(b)), torch.save], ids=["pickle", "zip"])
def test_a_pickle_that_holds_more_than_tensors_is_refused_and_never_run(tmp_path, write_bomb):
    folder = write(random_model(), tmp_path / "xx.model")
    write_bomb({"projection.weight": Bomb(tmp_path / "ran")}, folder / "token_embedder.pkl")
    with pytest.raises(ValueError, match=r"token_embedder\.pkl: not a file of tensors only"):
        ELMo.from_pretrained(folder)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x80\x02", b"text"], ids=["empty", "zip", "pickle", "text"])
def test_what_is_not_a_file_of_tensors_is_named(tmp_path, content):
    folder = write(random_model(), tmp_path / "xx.model")
    (folder / "encoder.pkl").write_bytes(content)
    with pytest.raises(ValueError, match=r"encoder\.pkl: not a file of tensors only"):
        ELMo.from_pretrained(folder)
    torch.save([torch.zeros(2)], folder / "encoder.pkl")
    with pytest.raises(ValueError, match=r"encoder\.pkl: not a table of tensors by name"):
        ELMo.from_pretrained(folder)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda m: m.embedder.pop("projection.bias"), r"token_embedder\.pkl: projection\.bias \(5,\) is missing"),
        (lambda m: m.encoder.update({"x": np.zeros(2, np.float32)}), r"encoder\.pkl: x is not part of a model"),
        (lambda m: m.sizes["encoder"].update(dim=7), r"encoder\.pkl: .* is \(24, 5\), the configuration needs \(28"),
        (lambda m: m.words.update(more=30), r"word_emb_layer.embedding.weight is \(11, 3\), .* needs \(31, 3\)"),
        (lambda m: m.encoder["forward_layer_0.state_linearity.bias"].fill(np.nan), r"encoder\.pkl: .* holds 24 values"),
        (lambda m: m.sizes["encoder"].update(name="lstm"), "encoder.name is 'lstm': only 'elmo' is supported"),
        (lambda m: m.sizes["token_embedder"].update(name="lstm"), "token_embedder.name is 'lstm': only 'cnn'"),
        (lambda m: m.sizes["token_embedder"].update(word_dim=0, char_dim=0), "are both 0"),
        (lambda m: m.sizes["token_embedder"].update(word_dim="3"), "word_dim must be a width, or 0 for none, not '3'"),
        (lambda m: m.sizes["token_embedder"].pop("filters"), r"sizes\.json: token_embedder\.filters is missing"),
        (lambda m: m.sizes.pop("encoder"), r"sizes\.json: 'encoder' is missing or is not a table"),
        (lambda m: m.characters.pop("<bow>"), r"char\.dic: <bow> is missing"),
        (lambda m: m.words.pop("<oov>"), r"word\.dic: <oov> is missing"),
        (lambda m: m.words.update({"a\tb": 3}), r"word\.dic: line 12 is b'a\\tb\\t3', not an item, a tab and a number"),
        (lambda m: m.words.update({"a": "b"}), r"word\.dic: line 12 is b'a\\tb', not an item"),
    ],
)  # fmt: skip
def test_a_folder_that_contradicts_itself_is_named(tmp_path, change, says):
    model = random_model()
    change(model)
    with pytest.raises(ValueError, match=says):
        ELMo.from_pretrained(write(model, tmp_path / "xx.model"))


def test_a_missing_lexicon_is_named(tmp_path):
    folder = write(random_model(), tmp_path / "xx.model")
    (folder / "char.dic").unlink()
    with pytest.raises(ValueError, match=r"char\.dic: the file is missing"):
        ELMo.from_pretrained(folder)


def test_the_official_format_has_no_place_for_a_lexicon(tmp_path):
    elmo = ELMo.from_pretrained(write(random_model(), tmp_path / "xx.model"))
    with pytest.raises(ValueError, match="cannot hold a lexicon: use save_pretrained"):
        elmo.export_hdf5(tmp_path / "theirs")
    assert not (tmp_path / "theirs").exists()


def test_ids_of_bytes_are_refused(tmp_path):
    elmo = ELMo.from_pretrained(write(random_model(), tmp_path / "xx.model"))
    with pytest.raises(ValueError, match=r"this model reads \(B, T, 11\): make them with ELMo.to_ids"):
        elmo(batch_to_ids([["cat"]]))
    ids = elmo.to_ids([["cat"]])
    for column, value, largest in ((0, 11, 11), (0, 99, 11), (3, 25, 25), (1, -1, 25)):
        wrong = ids.clone()
        wrong[0, 0, column] = value if value < 0 else value + 1
        with pytest.raises(ValueError, match=f"this model reads 0 to {largest}"):
            elmo(wrong)


# ---- the lexicon in our own folder -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda lists: lists.pop("words"), r"lexicon\.json: 'words' must be a list of strings"),
        (lambda lists: lists["words"].append(3), r"lexicon\.json: 'words' must be a list of strings"),
        (lambda lists: lists["words"].append("cat"), r"lexicon\.json: the word 'cat' occurs twice"),
        (lambda lists: lists["characters"].append("a"), r"lexicon\.json: the character 'a' occurs twice"),
        (lambda lists: lists["characters"].append("ab"), r"lexicon\.json: 'ab' is not a single character"),
        (lambda lists: lists["characters"].append(""), r"lexicon\.json: '' is not a single character"),
        (
            lambda lists: lists["words"].pop(),
            r"lexicon\.json: a lexicon of 19 characters and 7 words, the model asks",
        ),
    ],
)
def test_a_lexicon_file_that_does_not_fit_is_named(tmp_path, change, says):
    folder = tmp_path / "ours"
    ELMo.from_pretrained(write(random_model(), tmp_path / "xx.model")).save_pretrained(folder)
    lists = json.loads((folder / "lexicon.json").read_text())
    change(lists)
    (folder / "lexicon.json").write_text(json.dumps(lists))
    with pytest.raises(ValueError, match=says):
        ELMo.from_pretrained(folder)
    (folder / "lexicon.json").unlink()
    with pytest.raises(ValueError, match=r"lexicon\.json: the file is missing"):
        ELMo.from_pretrained(folder)


def test_a_model_and_its_lexicon_must_fit():
    sizes = {"char_dim": 2, "filters": ((1, 2),), "cell_dim": 4, "projection_dim": 3}
    with pytest.raises(ValueError, match="a lexicon of nothing, the model asks for 2 characters and 0 words"):
        ELMo(BiLM(BiLMConfig(num_lexicon_characters=2, **sizes)))
    with pytest.raises(ValueError, match="a lexicon of 2 characters and 0 words, the model asks for none"):
        ELMo(BiLM(BiLMConfig(**sizes)), lexicon=Lexicon("ab"))
    assert ELMo(BiLM(BiLMConfig(num_lexicon_characters=2, **sizes)), lexicon=Lexicon("ab")).encode("ab c").shape == (6,)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"word_dim": 3}, "word_dim is 3, but num_lexicon_characters is null"),
        ({"num_lexicon_words": -1}, "num_lexicon_words must be 0 or more, not -1"),
        ({"num_lexicon_characters": -1}, "num_lexicon_characters must be 0 or more, or null, not -1"),
        ({"num_lexicon_characters": 1, "num_lexicon_words": 4}, "num_lexicon_words is 4, so word_dim must be above 0"),
        ({"num_lexicon_characters": 1, "num_words": 4}, "so num_words must be null"),
        ({"num_lexicon_characters": 1, "filters": ()}, "filters is empty"),
    ],
)
def test_sizes_of_a_lexicon_that_cannot_be_are_named(values, says):
    with pytest.raises(ValueError, match=says):
        BiLMConfig(**values)
