"""The page without a server, as files: what is in the folder, what its graphs compute, and which models are refused."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from elmokit import ELMo
from elmokit.cli.main import main

pytest.importorskip("onnx", reason='needs onnx: pip install "elmokit[onnx]"')
ort = pytest.importorskip("onnxruntime", reason="needs onnxruntime")

from elmokit.integrations.web import RUNTIME_FILES, export_web, find_runtime  # noqa: E402

SENTENCES = [["She", "sat", "by", "the", "bank", "."], ["The", "bank", "lent", "money"]]


@pytest.fixture
def runtime(tmp_path):
    """Files of the names of onnxruntime-web; the page is not run here."""
    folder = tmp_path / "package" / "dist"
    folder.mkdir(parents=True)
    for name in RUNTIME_FILES:
        (folder / name).write_text(name)
    return folder.parent


@pytest.fixture(scope="module")
def english():
    return ELMo.from_pretrained()


def test_the_graphs_compute_what_the_library_does(english, runtime, tmp_path):
    written = export_web(english, tmp_path / "web", name="en", runtime=runtime)
    folder = written.path
    facts = json.loads((folder / "model" / "model.json").read_text())
    assert facts["num_layers"] == english.num_layers
    assert facts["files"] == {file: (folder / "model" / file).stat().st_size for file in facts["files"]}
    assert written.model_bytes == sum(facts["files"].values()) < 40e6
    words = json.loads((folder / "model" / "words.json").read_text())
    assert words["words"] == list(english.vocabulary.words)
    weights = english.word_weights.batch(SENTENCES, 6)
    found = [[words["weights"][words["words"].index(token)] for token in tokens] for tokens in SENTENCES]
    np.testing.assert_allclose(np.concatenate(found), np.concatenate([weights[0], weights[1][:4]]), atol=1e-6)

    bilm = ort.InferenceSession(folder / "model" / "bilm.onnx")
    names = ["layers", "slot", "sense"]
    results = bilm.run(names, {"ids": english.to_ids(SENTENCES).numpy(), "weights": weights})
    for name, result in zip(names, results, strict=True):
        for row, vectors in enumerate(english.embed(SENTENCES, layers="all" if name == "layers" else name)):
            np.testing.assert_allclose(result[..., row, : len(SENTENCES[row]), :], vectors, atol=2e-5)

    output = ort.InferenceSession(folder / "model" / "output.onnx")
    slot = results[1][0, 4]  # of bank
    (log_probs,) = output.run(None, {"hidden": slot.reshape(2, -1)})
    (scores,) = english.log_probs(SENTENCES[:1])
    bank = english.vocabulary.id("bank")
    np.testing.assert_allclose(log_probs[:, bank], [scores.forward[4], scores.backward[4]], atol=1e-4)


def test_the_folder_has_page_and_runtime_and_loads_nothing_from_elsewhere(runtime, tmp_path):
    result = CliRunner().invoke(main, ["export", "--web", str(tmp_path / "web"), "--runtime", str(runtime), "--json"])
    assert result.exit_code == 0, result.output
    folder = tmp_path / "web"
    assert json.loads(result.stdout)["num_bytes"] == sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
    assert {file.name for file in (folder / "runtime").iterdir()} == set(RUNTIME_FILES)
    html = (folder / "index.html").read_text()
    assert 'data-model="model"' in html
    assert "default-src 'self'" in html
    assert "http://" not in html.replace("http://www.w3.org", "")
    again = CliRunner().invoke(main, ["export", "--web", str(folder), "--runtime", str(runtime)])
    assert again.exit_code == 1
    assert "already exists" in again.output


def test_a_file_in_the_place_of_the_folder_is_refused(english, runtime, tmp_path):
    (tmp_path / "file").write_text("dear")
    arguments = ["export", "--web", str(tmp_path / "file"), "--runtime", str(runtime), "--overwrite"]
    assert "file is a file: name a folder" in CliRunner().invoke(main, arguments).output
    with pytest.raises(ValueError, match=r"web: .*file is a file: name a folder"):
        export_web(english, tmp_path / "file" / "web", runtime=runtime)


def test_without_the_runtime_the_message_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="npm install onnxruntime-web"):
        find_runtime()
    with pytest.raises(ValueError, match=r"ort\.wasm\.min\.mjs"):
        find_runtime(tmp_path)
    result = CliRunner().invoke(main, ["export", "--web", "web"])
    assert result.exit_code == 1
    assert "npm install onnxruntime-web" in result.output
    assert CliRunner().invoke(main, ["export"]).exit_code == 2


def test_models_that_the_page_cannot_run_are_refused(runtime, tmp_path, tiny_elmo):
    with pytest.raises(ValueError, match="needs a model with a vocabulary"):
        export_web(ELMo.from_pretrained(tiny_elmo), tmp_path / "web", runtime=runtime)
    carrying = ELMo.from_pretrained(tiny_elmo, state="carry")
    with pytest.raises(ValueError, match="keeps no state"):
        export_web(carrying, tmp_path / "web", runtime=runtime)
    assert not (tmp_path / "web").exists()
