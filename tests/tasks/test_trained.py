"""The folder of a trained task: what it contains, what it checks, and folders of version 0.1."""

import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch

from elmokit import ELMo
from elmokit.tasks import load_task, train
from elmokit.tasks.trainer import Snapshots
from elmokit.text import Tokenizer


def state_of(folder: str) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(Path(folder) / "model.safetensors")


def test_a_tuned_bilm_changes_is_saved_and_is_the_one_that_answers(small, tiny_elmo):
    config = small(elmo_at="both", tune=True, tune_learning_rate=0.01)
    before = ELMo.from_pretrained(tiny_elmo).bilm.state_dict()
    result = train(config)
    trained = load_task(config.out)
    after = trained.network.inputs.elmo.bilm.state_dict()
    assert not any(torch.equal(before[name], after[name]) for name in before if name != "char_encoder.char_embedding")
    assert trained.evaluate(config.train) == result.dev
    assert not any("bilm" in name for name in state_of(config.out))


def test_a_task_is_not_saved_in_the_place_of_a_file(small, tmp_path):
    config = small(elmo_at="none")
    train(config)
    trained = load_task(config.out)
    (tmp_path / "file").write_text("dear", encoding="utf-8")
    for path in (tmp_path / "file", tmp_path / "file" / "task"):
        with pytest.raises(ValueError, match="file is a file: name a folder"):
            trained.save(path)


def test_a_task_with_static_vectors_keeps_them_by_name_and_notices_others(small, glove, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = small(vectors="glove.txt", epochs=1, elmo_at="none")
    result = train(config)
    monkeypatch.chdir(tmp_path.parent)
    assert load_task(config.out).evaluate(config.train) == result.dev
    moved = glove.rename(tmp_path / "moved.txt")
    with pytest.raises(ValueError, match="no word vectors here"):
        load_task(config.out)
    assert load_task(config.out, vectors=str(moved)).evaluate(config.train) == result.dev
    moved.write_text("rome 1 2 4\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"trained with another vectors than .*moved\.txt"):
        load_task(config.out, vectors=str(moved))


def test_a_task_notices_another_bilm(small, tiny_elmo, tmp_path):
    config = small(epochs=1)
    train(config)
    other = tmp_path / "other"
    elmo = ELMo.from_pretrained(tiny_elmo)
    with torch.no_grad():
        elmo.bilm.layers[0].bias += 1
    elmo.save_pretrained(other)
    with pytest.raises(ValueError, match=r"trained with another elmo than .*other"):
        load_task(config.out, elmo=str(other))


def test_a_task_that_is_moved_together_with_its_bilm_and_vectors_still_answers(small, glove, tiny_elmo, tmp_path):
    project = tmp_path / "project"
    shutil.copytree(tiny_elmo, project / "models/mine")
    (project / "runs").mkdir()
    glove.rename(project / "glove.txt")
    paths = {"out": "runs/ner", "elmo": "models/mine", "vectors": "glove.txt"}
    config = small(epochs=1, **{name: str(project / path) for name, path in paths.items()})
    result = train(config)
    moved = project.rename(tmp_path / "moved")
    assert load_task(moved / "runs/ner").evaluate(config.train) == result.dev
    shutil.copytree(moved / "models/mine", project / "models/mine")  # the path of the training comes first
    assert load_task(moved / "runs/ner").config.elmo == config.elmo


def test_a_task_whose_bilm_is_gone_says_where_it_was_and_takes_another_path(small, tiny_elmo, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(tiny_elmo, model)
    config = small(epochs=1, elmo=str(model))
    result = train(config)
    moved = model.rename(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=r"run: the biLM of this task was .*model, which is not there: .* --model"):
        load_task(config.out)
    assert load_task(config.out, elmo=str(moved)).evaluate(config.train) == result.dev


def test_the_folder_of_an_incomplete_task_is_refused(small, tmp_path):
    with pytest.raises(ValueError, match=r"no config\.json"):
        load_task(tmp_path)
    config = small(epochs=1, elmo_at="none")
    train(config)
    out = Path(config.out)
    weights = (out / "model.safetensors").read_bytes()
    (out / "model.safetensors").write_bytes(weights[:-8])
    with pytest.raises(ValueError, match=r"model\.safetensors: not a complete safetensors file"):
        load_task(out)
    tensors = safetensors.torch.load(weights)
    tensors["scores.bias"] = tensors["scores.bias"][:-1]
    safetensors.torch.save_file(tensors, out / "model.safetensors")
    with pytest.raises(ValueError, match=r"scores\.bias is \(3,\), the task expects \(4,\)"):
        load_task(out)
    (out / "config.json").write_text('{"format": "elmokit task 1", "config": {}, "fitted": {}, "words": []}')
    with pytest.raises(ValueError, match=r"config\.json: sha256_of_bilm, sha256_of_vectors is missing"):
        load_task(out)
    (out / "config.json").write_text('{"format": "another"}')
    with pytest.raises(ValueError, match="its format is 'another'"):
        load_task(out)


@pytest.mark.parametrize(("elmo_at", "num_mixes"), [("none", 0), ("input", 1), ("both", 2)])
@pytest.mark.parametrize("tune", [False, True])
def test_weights_have_the_names_of_version_0_1_and_never_those_of_the_bilm(small, elmo_at, num_mixes, tune):
    config = small(elmo_at=elmo_at, tune=tune and elmo_at != "none", epochs=1)
    train(config)
    names = set(state_of(config.out))
    mixes = {f"inputs.mixes.{number}.{part}" for number in range(num_mixes) for part in ("weights", "gamma")}
    assert {name for name in names if "mixes" in name} == mixes
    assert not any("elmo" in name or "bilm" in name for name in names)
    own = {name for name in load_task(config.out).network.state_dict() if not name.startswith("inputs.elmo.")}
    assert names == mixes | own


@pytest.mark.parametrize("tune", [False, True])
def test_a_checkpoint_has_the_names_of_version_0_1_and_a_bilm_only_where_it_is_trained(small, monkeypatch, tune):
    names = []
    monkeypatch.setattr(Snapshots, "save", lambda self, snapshot: names.append(set(snapshot.tensors)))
    train(small(elmo_at="both", tune=tune, epochs=1))
    network = {name for name in names[0] if name.startswith("network.")}
    assert {"network.inputs.mixes.0.weights", "network.inputs.mixes.1.gamma"} <= network
    assert any(name.startswith("network.inputs.elmo.bilm.") for name in network) == tune
    assert not any(name.startswith("network.inputs.elmo.mixes.") for name in network)


def test_a_task_learns_its_own_mixes_and_not_those_that_were_saved_with_the_model(small, tiny_elmo, tmp_path):
    elmo = ELMo.from_pretrained(tiny_elmo, num_mixes=1, layer_norm=True)
    with torch.no_grad():
        elmo.mixes[0].weights.copy_(torch.tensor([3.0, 0.0, -3.0]))
        elmo.mixes[0].gamma.fill_(7.0)
    elmo.save_pretrained(tmp_path / "mixed")
    plain = train(small(out=str(tmp_path / "plain"), epochs=2))
    mixed = train(small(out=str(tmp_path / "with"), epochs=2, elmo=str(tmp_path / "mixed")))
    assert mixed.mix_weights == plain.mix_weights
    assert all(torch.equal(one, state_of(plain.folder)[name]) for name, one in state_of(mixed.folder).items())


def test_a_tuned_bilm_is_a_model_of_its_own_with_the_mixes_of_the_task(small):
    config = small(elmo_at="both", tune=True)
    result = train(config)
    elmo = ELMo.from_pretrained(Path(config.out) / "bilm")
    assert [mix.weights.softmax(0).tolist() for mix in elmo.mixes] == result.mix_weights


@pytest.mark.parametrize("name", ["ner", "sentiment"])
def test_a_text_is_tokenized_by_the_tokenizer_of_the_bilm(small, name):
    config = small(name, epochs=1)
    train(config)
    trained = load_task(config.out)
    assert trained.predict(["isn't it?"])[0]["tokens"] == ["is", "n't", "it", "?"]
    trained.network.inputs.elmo.tokenizer = Tokenizer("spaces")
    assert trained.predict(["isn't it?"])[0]["tokens"] == ["isn't", "it?"]


def test_paths_of_a_trained_task_may_be_of_any_kind_and_wrong_ones_are_named(small, tmp_path):
    config = small(epochs=1, elmo_at="none")
    scores, trained = train(config).dev, load_task(config.out)
    assert trained.evaluate(Path(config.train)) == trained.evaluate([Path(config.train)]) == scores
    before = sorted(tmp_path.iterdir())
    for path in (None, 3, "", b"dev.conll", "a\0b", "x\udfffy", Path("x\udfffy")):
        with pytest.raises(ValueError, match=r"^files (must be|is)") as caught:
            trained.evaluate(path)
        assert len(str(caught.value)) < 400
        with pytest.raises(ValueError, match=r"^files\[1\] (must be|is)"):
            trained.evaluate([config.train, path])
        with pytest.raises(ValueError, match=r"^folder (must be|is)"):
            trained.save(path)
    for files in ([], {"a": 1}, {config.train}):
        with pytest.raises(ValueError, match=r"^files (must be|is empty)"):
            trained.evaluate(files)
    assert sorted(tmp_path.iterdir()) == before
