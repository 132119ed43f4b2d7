"""File layouts: which files make a model, in which format it is, and that reading follows."""

from pathlib import Path

import pytest
import torch

from elmokit import ELMo, Vocabulary
from elmokit.network.losses import OutputLayer
from elmokit.storage import names
from elmokit.storage.layouts import BilmTfFolder, ElmokitFolder, ManyLangsFolder, OfficialFiles, find_layout


def put(folder: Path, *paths: str) -> None:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(b"")


@pytest.mark.parametrize(
    ("files", "layout"),
    [
        (["config.json"], ElmokitFolder),
        (["config.json", "options.json", "weights.hdf5"], ElmokitFolder),
        (["config.json", "token_embedder.pkl", "encoder.pkl"], ManyLangsFolder),
        (["config.json", "token_embedder.pkl"], ElmokitFolder),
        (["options.json", "weights.hdf5"], OfficialFiles),
        (["options.json", "weights.hdf5", "model.ckpt-7.index"], OfficialFiles),
        (["options.json", "model.ckpt-7.index"], BilmTfFolder),
        (["options.json"], None),
        (["weights.hdf5"], None),
        (["model.ckpt-7.index"], None),
        (["token_embedder.pkl", "encoder.pkl"], None),
        ([], None),
    ],
)
def test_the_files_of_a_folder_tell_its_layout(tmp_path, files, layout):
    put(tmp_path, *files)
    found = find_layout(tmp_path)
    assert type(found) is (layout or type(None))
    if found is not None:
        assert (found.folder, found) == (tmp_path, type(found).match(tmp_path))


def test_each_layout_has_the_name_of_its_format():
    formats = [layout.format for layout in (ElmokitFolder, OfficialFiles, BilmTfFolder, ManyLangsFolder)]
    assert formats == ["elmokit", "official", "bilm-tf", "elmoformanylangs"]


def test_a_layout_lists_its_own_files_and_no_others(tmp_path):
    put(tmp_path / "ours", "config.json", "model.safetensors", "README.md", "notes.txt")
    put(tmp_path / "official", "options.json", "weights.hdf5", "softmax.hdf5", "vocabulary.txt", "notes.txt")
    put(tmp_path / "nameless", "options.json", "weights.hdf5", "softmax.hdf5")  # no vocabulary names the rows
    put(tmp_path / "bilm-tf", "options.json", "m-7.index", "m-7.data-00000-of-00001", "vocab-all.txt")
    put(tmp_path / "bilm-tf", "m-70.data-00000-of-00001", "checkpoint")
    put(tmp_path / "many", "config.json", "token_embedder.pkl", "encoder.pkl", "configs/sizes.json")
    expected = {
        "ours": {"config.json", "model.safetensors", "README.md"},
        "official": {"options.json", "weights.hdf5", "softmax.hdf5", "vocabulary.txt"},
        "nameless": {"options.json", "weights.hdf5"},
        "bilm-tf": {"options.json", "m-7.index", "m-7.data-00000-of-00001", "vocab-all.txt"},
        "many": {"config.json", "token_embedder.pkl", "encoder.pkl", "configs/sizes.json"},
    }
    for name, files in expected.items():
        layout = find_layout(tmp_path / name)
        assert layout is not None
        assert {path.relative_to(tmp_path / name).as_posix() for path in layout.files()} == files


def test_the_same_model_reads_the_same_in_our_layout_and_in_the_official_one(official_model, tmp_path):
    made = official_model()
    elmo = ELMo.from_files(made.options_path, made.weights_path)
    torch.manual_seed(3)
    elmo.output_layer, elmo.vocabulary = OutputLayer(4, 5), Vocabulary(["<S>", "</S>", "<UNK>", "the"])
    elmo.save_pretrained(tmp_path / "ours")
    elmo.export_hdf5(tmp_path / "official")
    ours, official = (find_layout(tmp_path / name).read() for name in ("ours", "official"))
    assert ours.config == official.config == elmo.config
    assert ours.vocabulary.words == official.vocabulary.words
    for name, tensor in {**official.weights, **official.softmax}.items():
        assert torch.equal({**ours.weights, **ours.softmax}[name], tensor), name


def test_token_embeddings_make_a_word_level_model(official_model, tmp_path):
    made = official_model()
    elmo = ELMo.from_files(made.options_path, made.weights_path)
    Vocabulary(["<S>", "</S>", "<UNK>", "the"]).save(tmp_path / "words.txt")
    elmo.export_token_embeddings(tmp_path / "words.txt", tmp_path / "tokens.hdf5")
    pair = (made.options_path, made.weights_path)
    layout = OfficialFiles(*pair, vocabulary=tmp_path / "words.txt", embeddings=tmp_path / "tokens.hdf5")
    assert (layout.read().config.num_words, len(layout.files())) == (4, 4)
    assert OfficialFiles(*pair).read().config.num_words is None


@pytest.mark.parametrize(
    ("options", "weights", "others"),
    [
        ("options.json", "weights.hdf5", ["lm_weights.hdf5", "elmo_options.json"]),
        ("options.json", "lm_weights.hdf5", ["lm_embeddings_0.hdf5", "sentences.json"]),
        ("elmo_small_options.json", "elmo_small_weights.hdf5", ["elmo_small_softmax_weights.hdf5"]),
    ],
)
def test_a_folder_with_the_official_pair_is_found(
    tmp_path: Path, options: str, weights: str, others: list[str]
) -> None:
    for name in (options, weights, *others):
        (tmp_path / name).write_bytes(b"")
    assert names.resolve(tmp_path) == OfficialFiles(tmp_path / options, tmp_path / weights)


def test_a_folder_with_two_weight_files_asks_which(tmp_path: Path) -> None:
    for name in ("options.json", "a_weights.hdf5", "b_weights.hdf5"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(ValueError, match=r"which of a_weights\.hdf5, b_weights\.hdf5 is meant.*from_files"):
        names.resolve(tmp_path)
