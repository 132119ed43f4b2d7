"""info, models, convert: what they print and write."""

import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import safetensors.torch
from verbs import WORDS, error_of, result_of, run

from elmokit.files import sha256_of, write_json
from elmokit.model import ELMo
from elmokit.storage.downloads import cache_dir, cached_path
from elmokit.storage.names import OFFICIAL


def test_info_counts_what_the_files_hold(official, folder, language_model):
    found = result_of("info", folder)
    assert found["format"] == "official"
    assert (found["layers"], found["vector_dim"]) == (3, 10)
    assert found["bilm_parameters"] == sum(array.size for array in official.arrays.values())
    assert sum(found["parameters"].values()) == found["bilm_parameters"]
    assert {Path(file["path"]) for file in found["files"]} == {official.options_path, official.weights_path}
    assert not found["language_model"]
    found = result_of("info", language_model)
    assert (found["format"], found["language_model"], found["vocabulary_size"]) == ("elmokit", True, len(WORDS))
    assert found["parameters"]["softmax"] == len(WORDS) * 6
    assert {file["path"]: file["bytes"] for file in found["files"]} == {
        str(path): path.stat().st_size for path in language_model.iterdir()
    }
    lines = run("info", language_model).stdout
    assert "1:2 2:3 4:3" in lines
    assert "3 layers of 10" in lines


def test_convert_goes_both_ways_without_changing_a_bit(official, folder, language_model, tmp_path):
    result = result_of("convert", language_model, tmp_path / "back")
    assert (result["format"], result["files"]) == (
        "official",
        ["options.json", "softmax.hdf5", "vocabulary.txt", "weights.hdf5"],
    )
    with h5py.File(tmp_path / "back" / "weights.hdf5") as file:
        for name, array in official.arrays.items():
            assert np.array_equal(file[name][()], array), name
    assert (tmp_path / "back" / "vocabulary.txt").read_text().split() == WORDS
    run("convert", tmp_path / "back", tmp_path / "again")  # the softmax beside it comes along
    for name in ("model.safetensors", "softmax.safetensors", "config.json", "vocabulary.txt"):
        assert (tmp_path / "again" / name).read_bytes() == (language_model / name).read_bytes()
    run("convert", folder, tmp_path / "copy", "--to", "official")
    with h5py.File(tmp_path / "copy" / "weights.hdf5") as file:
        assert np.array_equal(file["char_embed"][()], official.arrays["char_embed"])


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_convert_stores_either_format_as_it_is_told(folder, language_model, tmp_path, dtype):
    for source in (folder, language_model):
        result = result_of("convert", source, tmp_path / dtype / source.name, "--dtype", dtype)
        assert (result["format"], "model.safetensors" in result["files"]) == ("elmokit", True)
        ELMo.from_pretrained(source).save_pretrained(tmp_path / "expected" / source.name, dtype=dtype)
        for path in (tmp_path / "expected" / source.name).iterdir():
            assert (tmp_path / dtype / source.name / path.name).read_bytes() == path.read_bytes()
    matrix = safetensors.torch.load_file(tmp_path / dtype / language_model.name / "softmax.safetensors")["weight"]
    assert str(matrix.dtype) == f"torch.{dtype}"


def test_convert_writes_over_a_model_only_when_told_and_leaves_nothing_of_it(folder, language_model, tmp_path):
    run("convert", language_model, tmp_path / "model")
    (tmp_path / "model" / "notes.txt").write_text("mine")
    assert "model already exists" in error_of("convert", folder, tmp_path / "model")
    run("convert", folder, tmp_path / "model", "--overwrite")
    names = sorted(path.name for path in (tmp_path / "model").iterdir())
    assert names == ["README.md", "config.json", "model.safetensors", "notes.txt"]
    assert not result_of("info", tmp_path / "model")["language_model"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["OFFICIAL", "file"], "file is a file: name a folder"),
        (["OFFICIAL", "OFFICIAL", "--overwrite"], "is the folder of SRC"),
        (["OURS", "new", "--softmax", "s.hdf5"], "is in elmokit format, which has its own softmax"),
        (["OFFICIAL", "new", "--softmax", "s.hdf5"], "s.hdf5"),
        (["OFFICIAL", "file/new"], "file/new: file is a file: name a folder"),
        (["nowhere", "new"], "no model 'nowhere'"),
        (["OURS", "new", "--to", "official", "--dtype", "int8"], "--dtype int8 is for --to elmokit"),
    ],
)
def test_convert_says_in_one_line_what_is_wrong(arguments, message, folder, language_model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    places = {"OFFICIAL": folder, "OURS": language_model}
    assert message in error_of("convert", *(places.get(word, word) for word in arguments))
    assert not Path("new").exists()


def test_info_without_a_model_describes_the_english_one():
    found, named = result_of("info"), result_of("info", "en")
    assert found == named
    assert (found["model"], found["format"], found["tokenizer"]) == ("en", "elmokit", "treebank")
    assert found["language_model"]


def test_info_shows_the_tokenizer(characters_model, folder):
    assert result_of("info", characters_model)["tokenizer"] == "characters"
    assert ["tokenizer", "treebank"] in [line.split() for line in run("info", folder).stdout.splitlines()]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty download cache."""
    monkeypatch.setenv("ELMOKIT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    return tmp_path / "cache"


def fill_cache(official: Any, name: str = "small") -> int:
    """Put an official model into the cache as a download does, and return the size of the cache in bytes."""
    model = OFFICIAL[name]
    for url, source in ((model.options, official.options_path), (model.weights, official.weights_path)):
        target = cached_path(url)
        shutil.copy(source, target)
        record = {"url": url, "sha256": sha256_of(target), "size": target.stat().st_size, "etag": None}
        write_json(Path(f"{target}.json"), {**record, "mtime_ns": target.stat().st_mtime_ns})
    return sum(path.stat().st_size for path in cache_dir().iterdir())


def test_models_lists_embedded_and_official_models(cache, official):
    listed = result_of("models")
    assert [model["name"] for model in listed["models"]] == ["en", "zh", *OFFICIAL]
    english, chinese, small = listed["models"][:3]
    assert (english["kind"], english["cached"]) == ("embedded", True)
    assert (chinese["kind"], chinese["cached"]) == ("embedded", True)
    assert english["bytes"] == sum(file["bytes"] for file in result_of("info", "en")["files"])
    assert (small["kind"], small["cached"], small["bytes"], small["path"]) == ("official", False, None, None)
    assert listed["cache"] == {"path": str(cache), "files": 0, "bytes": 0}
    num_bytes = fill_cache(official)
    listed = result_of("models")
    assert listed["models"][2]["cached"]
    assert listed["models"][2]["path"] == str(cache)
    assert listed["cache"] == {"path": str(cache), "files": 2, "bytes": num_bytes}
    lines = [line.split() for line in run("models").stdout.splitlines()]
    assert lines[0] == ["name", "kind", "size", "folder"]
    assert lines[1][:2] == ["en", "embedded"]
    assert lines[2][:2] == ["zh", "embedded"]
    assert lines[4] == ["medium", "official", "not", "downloaded"]
    assert lines[-1][0] == "cache"
    assert result_of("info", "small")["layers"] == 3


def test_models_can_empty_the_cache_and_says_how_much_was_freed(cache, official):
    num_bytes = fill_cache(official)
    (cache / "notes.txt").write_text("mine")
    assert result_of("models", "--clean") == {"cache": str(cache), "freed_bytes": num_bytes}
    assert [path.name for path in cache.iterdir()] == ["notes.txt"]
    assert run("models", "--clean").stdout == f"{cache}: 0 bytes freed\n"


def test_info_says_that_the_softmax_of_a_published_model_is_downloaded_later(cache, official):
    fill_cache(official, name="original")
    assert result_of("info", "original")["language_model"]
    (row,) = [line for line in run("info", "original").stdout.splitlines() if line.startswith("language model")]
    assert row.split(maxsplit=2)[2] == "yes: its softmax is downloaded when it is first needed"
    fill_cache(official)
    assert not result_of("info", "small")["language_model"]
