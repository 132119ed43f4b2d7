"""Names of models: what each name resolves to, and which names there are."""

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from broken_server import OPTIONS, WEIGHTS, Resource, Server, cut_after, say

from elmokit import ELMo
from elmokit.storage import names
from elmokit.storage.layouts import ElmokitFolder, OfficialFiles


def test_the_official_names_are_the_published_files() -> None:
    sizes = {
        "small": "2x1024_128_2048cnn_1xhighway",
        "medium": "2x2048_256_2048cnn_1xhighway",
        "original": "2x4096_512_2048cnn_2xhighway",
        "original-5.5b": "2x4096_512_2048cnn_2xhighway_5.5B",
    }
    assert list(names.OFFICIAL) == list(sizes)
    for name, size in sizes.items():
        stem = f"https://allennlp.s3.amazonaws.com/models/elmo/{size}/elmo_{size}"
        assert names.OFFICIAL[name].options == f"{stem}_options.json"
        assert names.OFFICIAL[name].weights == f"{stem}_weights.hdf5"
    assert [name for name, model in names.OFFICIAL.items() if model.softmax] == ["original", "original-5.5b"]
    assert [name for name, model in names.OFFICIAL.items() if model.vocabulary] == ["original", "original-5.5b"]


def test_an_official_name_is_downloaded_once_and_then_works_offline(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options_url, options = server.put("/m/elmo_options.json", OPTIONS)
    weights_url, weights = server.put("/m/elmo_weights.hdf5", WEIGHTS, deeds=[cut_after(10_000)])
    monkeypatch.setattr(names, "OFFICIAL", {"small": names.OfficialModel(options_url, weights_url)})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small").mkdir()  # a folder of that name without a model in it is not in the way
    labels: set[str] = set()
    found = names.resolve("small", progress=lambda label, _, __: labels.add(label))
    assert isinstance(found, OfficialFiles)
    assert found.options.read_bytes() == OPTIONS
    assert found.weights.read_bytes() == WEIGHTS
    assert labels == {"elmo_options.json", "elmo_weights.hdf5"}
    monkeypatch.setenv("ELMOKIT_OFFLINE", "1")
    assert names.resolve("small") == found
    assert len(options.requests) == 1
    assert weights.ranges == [None, "bytes=10000-"]


# --- the language model of a published model


@pytest.fixture
def published(
    server: Server, official_model: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[str, Path], dict[str, Resource]]:
    """ "original" is a tiny model on the local server, with softmax and vocabulary: its files, and their resources."""
    made = official_model()
    rng = np.random.default_rng(1)
    with h5py.File(tmp_path / "softmax.hdf5", "w") as file:
        file["softmax/W"] = rng.standard_normal((12, 5)).astype(np.float32)
        file["softmax/b"] = rng.standard_normal(12).astype(np.float32)
    words = ["</S>", "<S>", "<UNK>", "the", "bank", *(f"word{n}" for n in range(7)), "!!!MAXTERMID"]
    (tmp_path / "words.txt").write_text("\n".join(words), encoding="utf-8")
    files = {
        "options": made.options_path,
        "weights": made.weights_path,
        "softmax": tmp_path / "softmax.hdf5",
        "vocabulary": tmp_path / "words.txt",
    }
    put = {part: server.put(f"/m/elmo_{part}{path.suffix}", path.read_bytes()) for part, path in files.items()}
    model = names.OfficialModel(**{part: url for part, (url, _) in put.items()})
    monkeypatch.setattr(names, "OFFICIAL", {"original": model})
    return files, {part: resource for part, (_, resource) in put.items()}


SENTENCE = ["the", "bank", "nobody"]


def test_a_published_model_is_a_language_model_that_downloads_its_softmax_when_it_is_needed(
    published: tuple[dict[str, Path], dict[str, Resource]], monkeypatch: pytest.MonkeyPatch
) -> None:
    files, resources = published
    model, expected = ELMo.from_pretrained("original"), ELMo.from_files(**files)
    assert model.is_language_model
    np.testing.assert_array_equal(model.embed([SENTENCE])[0], expected.embed([SENTENCE])[0])
    assert [len(resources[part].requests) for part in ("options", "weights", "softmax", "vocabulary")] == [1, 1, 0, 0]
    assert model.output_layer is None
    assert model.perplexity([SENTENCE]) == expected.perplexity([SENTENCE])
    assert model.substitutes(SENTENCE, position=1, k=3) == expected.substitutes(SENTENCE, position=1, k=3)
    assert [len(resources[part].requests) for part in ("softmax", "vocabulary")] == [1, 1]
    assert model.vocabulary is not None
    assert model.vocabulary.words[:3] == ("</S>", "<S>", "<UNK>")
    assert not any(parameter.requires_grad for parameter in model.output_layer.parameters())  # type: ignore[union-attr]
    monkeypatch.setenv("ELMOKIT_OFFLINE", "1")
    again = ELMo.from_pretrained("original", dtype=torch.float64)
    again.load_language_model()
    assert again.output_layer is not None
    assert again.output_layer.weight.dtype == torch.float64
    assert [len(resources[part].requests) for part in ("softmax", "vocabulary")] == [1, 1]


def test_a_softmax_that_cannot_be_had_leaves_the_vectors_as_they_are(
    published: tuple[dict[str, Path], dict[str, Resource]], monkeypatch: pytest.MonkeyPatch
) -> None:
    files, resources = published
    model = ELMo.from_pretrained("original")
    resources["softmax"].deeds[:] = [say(404)]
    with pytest.raises(ConnectionError, match=r"elmo_softmax\.hdf5: HTTP 404"):
        model.log_probs([SENTENCE])
    assert (model.output_layer, model.vocabulary) == (None, None)
    np.testing.assert_array_equal(model.embed([SENTENCE])[0], ELMo.from_files(**files).embed([SENTENCE])[0])
    monkeypatch.setenv("ELMOKIT_OFFLINE", "1")
    with pytest.raises(ConnectionError, match=r"elmo_softmax\.hdf5 is not in the cache"):
        model.log_probs([SENTENCE])
    monkeypatch.delenv("ELMOKIT_OFFLINE")
    assert len(model.log_probs([SENTENCE])) == 1  # the next call tries again


def test_a_softmax_of_other_words_than_the_vocabulary_is_named(
    published: tuple[dict[str, Path], dict[str, Resource]],
) -> None:
    _, resources = published
    resources["vocabulary"].body = b"</S>\n<S>\n<UNK>\nthe\n"
    with pytest.raises(ValueError, match=r"elmo_softmax\.hdf5 has 12 rows, .*elmo_vocabulary\.txt has 4 words"):
        ELMo.from_pretrained("original").perplexity([SENTENCE])


def test_a_published_model_is_saved_without_its_softmax_unless_that_was_used(
    published: tuple[dict[str, Path], dict[str, Resource]], tmp_path: Path
) -> None:
    model = ELMo.from_pretrained("original")
    model.save_pretrained(tmp_path / "vectors")
    assert not ELMo.from_pretrained(tmp_path / "vectors").is_language_model
    model.load_language_model()
    model.save_pretrained(tmp_path / "both")
    assert ELMo.from_pretrained(tmp_path / "both").perplexity([SENTENCE]) == model.perplexity([SENTENCE])


def test_the_command_line_downloads_the_softmax_too(
    published: tuple[dict[str, Path], dict[str, Resource]], tmp_path: Path
) -> None:
    from click.testing import CliRunner

    from elmokit.cli.main import main

    (tmp_path / "text.txt").write_text("the bank nobody\n" * 3, encoding="utf-8")
    done = CliRunner().invoke(main, ["perplexity", "original", str(tmp_path / "text.txt"), "--json"])
    assert done.exit_code == 0, done.output
    assert len(published[1]["softmax"].requests) == 1


def test_a_model_without_a_published_softmax_says_so(
    published: tuple[dict[str, Path], dict[str, Resource]], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = names.OFFICIAL["original"]
    monkeypatch.setattr(names, "OFFICIAL", {"small": names.OfficialModel(original.options, original.weights)})
    model = ELMo.from_pretrained("small")
    assert not model.is_language_model
    with pytest.raises(ValueError, match="this model has no output layer"):
        model.perplexity([SENTENCE])


def test_a_folder_in_our_format_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "options.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert names.resolve(folder) == ElmokitFolder(folder)
    assert names.resolve(str(folder)) == ElmokitFolder(folder)
    assert names.resolve("small") == ElmokitFolder(Path("small"))  # before the official name


@pytest.mark.parametrize("files", [[], ["options.json"], ["weights.hdf5"], ["model.safetensors"]])
def test_a_folder_without_a_model_is_an_error_that_says_what_was_looked_for(tmp_path: Path, files: list[str]) -> None:
    for name in files:
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(ValueError, match=r"holds no model: neither config\.json .* nor options\.json"):
        names.resolve(tmp_path)


def test_the_default_is_the_embedded_model_or_an_error_that_says_what_to_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names.resources, "files", lambda package: tmp_path / package)
    with pytest.raises(ValueError, match=r"no default model: pass .*small, medium, original, original-5\.5b"):
        names.resolve(None)
    embedded = tmp_path / "elmokit" / "models" / "en"
    embedded.mkdir(parents=True)
    (embedded / "config.json").write_text("{}")
    assert names.resolve(None) == ElmokitFolder(embedded)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder models/ of a package with the models en and zh, and a folder that holds none."""
    monkeypatch.setattr(names.resources, "files", lambda package: tmp_path / package)
    models = tmp_path / "elmokit" / "models"
    for name in ("zh", "en"):
        (models / name).mkdir(parents=True)
        (models / name / "config.json").write_text("{}")
    (models / "empty").mkdir()
    (models / "en" / "model.safetensors").write_bytes(b"1234567890")
    return models


def test_a_model_of_the_package_has_the_name_of_its_folder(package: Path) -> None:
    assert names.resolve("en") == names.resolve(None) == ElmokitFolder(package / "en")
    assert names.resolve("zh") == ElmokitFolder(package / "zh")
    with pytest.raises(ValueError, match=r"no model 'empty': .*\(en, zh, small, medium, original, original-5\.5b\)"):
        names.resolve("empty")


def test_a_folder_that_holds_a_model_comes_before_a_name_of_the_package_but_not_before_the_default(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "en").mkdir()
    assert names.resolve("en") == ElmokitFolder(package / "en")
    (tmp_path / "en" / "config.json").write_text("{}")
    assert names.resolve("en") == ElmokitFolder(Path("en"))
    assert names.resolve(None) == ElmokitFolder(package / "en")


def test_the_embedded_model_is_the_default_and_loads_by_its_name() -> None:
    assert names.resolve("en") == names.resolve(None)
    assert names.resolve("en").read().vocabulary is not None


def test_the_models_are_those_of_the_package_and_the_official_ones_with_their_size_on_disk(
    package: Path, server: Server, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    options, _ = server.put("/m/options.json", OPTIONS)
    weights, it = server.put("/m/weights.hdf5", WEIGHTS, deeds=[say(404)])
    other = names.OfficialModel("https://host/o.json", "https://host/w.hdf5")
    monkeypatch.setattr(names, "OFFICIAL", {"small": names.OfficialModel(options, weights), "medium": other})
    absent = [names.ModelEntry(name, "official", None, False, None) for name in ("small", "medium")]
    embedded = [
        names.ModelEntry("en", "embedded", 12, True, package / "en"),
        names.ModelEntry("zh", "embedded", 2, True, package / "zh"),
    ]
    assert names.list_models() == [*embedded, *absent]
    with pytest.raises(ConnectionError):
        names.resolve("small")
    assert names.list_models() == [*embedded, *absent]  # its options without its weights
    names.resolve("small")
    present = names.ModelEntry("small", "official", len(OPTIONS) + len(WEIGHTS), True, cache)
    assert names.list_models() == [*embedded, present, absent[1]]
    assert len(it.requests) == 2


def test_names_are_resolved_and_listed_without_torch() -> None:
    program = "import sys; from elmokit.storage import names; names.list_models(); names.resolve('en'); "
    program += "print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize(
    "name", ["", "smal", "a/b/c", "/nowhere/model", "user/../model", "x" * 5000, "a\x00b", "https://host/x", "ü/model"]
)
def test_an_unknown_name_is_an_error_that_lists_what_to_pass(name: str) -> None:
    with pytest.raises(ValueError, match=r"small, medium, original, original-5\.5b.*user/model") as caught:
        names.resolve(name)
    assert repr(name) in str(caught.value)


def test_a_path_object_or_a_file_is_never_taken_for_a_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no model 'runs/mine'"):
        names.resolve(Path("runs/mine"))
    (tmp_path / "weights.hdf5").write_bytes(WEIGHTS)
    with pytest.raises(ValueError, match=r"this is a file: pass its folder, or use ELMo\.from_files"):
        names.resolve(tmp_path / "weights.hdf5")
    with pytest.raises(ValueError, match="7: expected a string or a path, got int"):
        names.resolve(7)  # type: ignore[arg-type]


# --- the Hugging Face hub

needs_hub = pytest.mark.skipif(importlib.util.find_spec("huggingface_hub") is None, reason="needs elmokit[hub]")


@pytest.fixture
def snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[dict[str, object]]]:
    """Puts a fake in place of snapshot_download: it gives back a folder or raises, and notes how it was called."""
    import huggingface_hub
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled

    monkeypatch.delenv("HF_HUB_DISABLE_PROGRESS_BARS", raising=False)

    def answer(result: Path | Exception) -> list[dict[str, object]]:
        calls: list[dict[str, object]] = []

        def fake(repo_id: str, **arguments: object) -> str:
            calls.append({"repo_id": repo_id, "silent": are_progress_bars_disabled(), **arguments})
            if isinstance(result, Exception):
                raise result
            return str(result)

        monkeypatch.setattr(huggingface_hub, "snapshot_download", fake)
        return calls

    return answer


@needs_hub
def test_a_hub_id_is_a_snapshot_of_the_files_of_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: Callable[..., list[dict[str, object]]]
) -> None:
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled

    before = are_progress_bars_disabled()
    (tmp_path / "config.json").write_text("{}")
    calls = snapshot(tmp_path)
    assert names.resolve("user/my-model.v2") == ElmokitFolder(tmp_path)
    patterns = ["config.json", "*.safetensors", "vocabulary.txt", "lexicon.json", "README.md"]
    asked = {"repo_id": "user/my-model.v2", "silent": True, "allow_patterns": patterns, "local_files_only": False}
    assert calls == [asked]
    assert are_progress_bars_disabled() == before
    monkeypatch.setenv("ELMOKIT_OFFLINE", "1")
    names.resolve("user/my-model.v2", progress=lambda *_: None)
    assert calls[1] == {**asked, "silent": before, "local_files_only": True}


@needs_hub
def test_an_unknown_hub_id_is_named_as_folder_and_as_model(
    snapshot: Callable[..., list[dict[str, object]]],
) -> None:
    from huggingface_hub.errors import RepositoryNotFoundError

    snapshot(RepositoryNotFoundError.__new__(RepositoryNotFoundError))
    with pytest.raises(ValueError, match=r"no model 'runs/mine': there is no such folder, and the Hugging Face hub"):
        names.resolve("runs/mine")


@needs_hub
def test_a_hub_that_cannot_be_reached_is_a_connection_error(
    monkeypatch: pytest.MonkeyPatch, snapshot: Callable[..., list[dict[str, object]]]
) -> None:
    snapshot(RuntimeError("no route"))
    with pytest.raises(ConnectionError, match=r"user/model: .*RuntimeError: no route"):
        names.resolve("user/model")
    monkeypatch.setenv("ELMOKIT_OFFLINE", "1")
    with pytest.raises(ConnectionError, match=r"user/model: .*not in the Hugging Face cache.*ELMOKIT_OFFLINE"):
        names.resolve("user/model")


@needs_hub
def test_a_hub_model_of_another_kind_is_an_error(
    tmp_path: Path, snapshot: Callable[..., list[dict[str, object]]]
) -> None:
    snapshot(tmp_path)
    with pytest.raises(ValueError, match=r"user/model: this Hugging Face model has no config\.json"):
        names.resolve("user/model")


@needs_hub
def test_offline_the_real_hub_client_answers_from_its_own_cache_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants, snapshot_download

    def from_cache(name: str, **arguments: object) -> object:
        return snapshot_download(name, cache_dir=tmp_path, **arguments)  # type: ignore[call-overload]

    monkeypatch.setattr("huggingface_hub.snapshot_download", from_cache)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("ELMOKIT_OFFLINE", "1")
    with pytest.raises(ConnectionError, match="ELMOKIT_OFFLINE"):
        names.resolve("user/model")
    commit = "0" * 40
    repository = tmp_path / "models--user--model"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    folder = repository / "snapshots" / commit
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert names.resolve("user/model") == ElmokitFolder(folder)


def test_without_the_extra_a_hub_id_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ValueError, match=r'no folder \'user/model\'.*pip install "elmokit\[hub\]"'):
        names.resolve("user/model")
