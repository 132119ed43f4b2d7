"""Recipes and settings: every recipe of the package reads, and a wrong setting is named."""

import pytest
import torch
from tiny_runs import MODEL, RECIPES

from elmokit.network import BiLM
from elmokit.pretraining import (
    finetune,
    load_recipe,
    pretrain,
)


def test_every_recipe_of_the_project_reads():
    recipes = sorted(path.stem for path in RECIPES.glob("*.toml"))
    assert {"tiny", "small", "medium", "original", "word-level", "chinese"} <= set(recipes)
    for name in recipes:
        own = (
            ["train=a", "heldout=b", "out=c"] if name == "finetune" else []
        )  # the defaults of `finetune`, for any text
        load_recipe(RECIPES / f"{name}.toml", own)


@pytest.mark.parametrize(("name", "count"), [("small", 13_593_296), ("medium", 28_027_728), ("original", 93_600_848)])
def test_the_published_sizes_have_their_published_parameters(name, count):
    _, model = load_recipe(RECIPES / f"{name}.toml")
    with torch.device("meta"):
        assert sum(parameter.numel() for parameter in BiLM(model).parameters()) == count


@pytest.mark.parametrize("name", ["tiny", "english"])
def test_a_transformer_recipe_has_the_parameters_the_vectors_and_the_tokens_per_update_of_its_lstm(name):
    (lstm, lstm_sizes), (blocks, block_sizes) = (load_recipe(f"{kind}{name}") for kind in ("", "transformer-"))
    assert (lstm_sizes.architecture, block_sizes.architecture) == ("lstm", "transformer")
    assert lstm_sizes.projection_dim == block_sizes.projection_dim
    with torch.device("meta"):
        counts = [sum(p.numel() for p in BiLM(sizes).parameters()) for sizes in (lstm_sizes, block_sizes)]
    assert 0.99 * counts[0] < counts[1] <= counts[0]
    assert lstm.batch_size * lstm.unroll == blocks.batch_size * blocks.unroll
    assert (lstm.optimizer, lstm.steps, lstm.vocabulary_size) == (
        blocks.optimizer, blocks.steps, blocks.vocabulary_size,
    )  # fmt: skip


def test_overrides_change_a_recipe(tmp_path):
    recipe, model = load_recipe(
        RECIPES / "tiny.toml",
        ["train=a b.txt", 'heldout=["x", "y"]', "model.cell_dim=17", "ema_decay=null", "seed = 5"],
    )
    assert (recipe.train, recipe.heldout, recipe.ema_decay, recipe.seed) == ("a b.txt", ("x", "y"), None, 5)
    assert model.cell_dim == 17


@pytest.mark.parametrize(
    ("content", "override", "message"),
    [
        ("batch_sise = 4", None, "unknown key 'batch_sise'"),
        ("batch_size = 'many'", None, "batch_size must be int, not 'many'"),
        ("[model]\ncells = 4", None, "unknown key 'cells'"),
        ("[model]\ncell_dim = 0", None, "cell_dim must be at least 1"),
        ("batch_size = ", None, "not a TOML file"),
        ("", "batch_size", "write a setting as key=value"),
        ("", "batch_size=0", "batch_size must be at least 1, not 0"),
        ("", "learning_rate=0", "learning_rate must be above 0"),
        ("", "dropout=1", "dropout must be 0 or more and less than 1"),
        ("", "betas=[0.5, 1.5]", "betas must be 0 or more and less than 1"),
        ("", "final_rate=2", "final_rate must be from 0 to 1"),
        ("", "state_reset=-0.1", "state_reset must be from 0 to 1"),
        ("", "train=[]", "train is empty"),
        ("", "patience=3", "patience is 3, but heldout is not set"),
        ("", "nowhere.key=3", "unknown key 'nowhere'"),
        ("", "eval_every=0", "eval_every must be above 0, not 0"),
        ("", "eval_every=2.5", "eval_every must be a number of updates, or a fraction below 1, not 2.5"),
    ],
)
def test_a_bad_recipe_names_the_file_and_the_key(tmp_path, content, override, message):
    path = tmp_path / "recipe.toml"
    path.write_text('train = "a"\nout = "b"\n' + content)
    with pytest.raises(ValueError, match=r"recipe\.toml") as caught:
        load_recipe(path, [override] if override else [])
    assert message in str(caught.value)


def test_a_recipe_that_does_not_exist_and_one_without_text_are_refused(tmp_path):
    with pytest.raises(ValueError, match="no such recipe"):
        load_recipe(tmp_path / "none.toml")
    (tmp_path / "empty.toml").write_text("")
    with pytest.raises(ValueError, match=r"empty\.toml: train is not set: .*--set train=PATH"):
        load_recipe(tmp_path / "empty.toml")


def test_an_unknown_setting_of_pretrain_is_named(text, tmp_path):
    with pytest.raises(ValueError, match="unknown key 'batchsize'"):
        pretrain(**text, model=MODEL, out=tmp_path, batchsize=3)


def test_settings_are_checked_before_a_model_is_downloaded(tmp_path, monkeypatch):
    monkeypatch.setattr("elmokit.storage.names.resolve", lambda name: pytest.fail("it was downloaded"))
    with pytest.raises(ValueError, match=r"^finetune: batch_size must be int, not 'many'"):
        finetune("small", train=tmp_path / "text.txt", out=tmp_path / "run", batch_size="many")
    with pytest.raises(ValueError, match=r"^finetune: train\[1\] must be a path, not None"):
        finetune("small", train=[tmp_path / "text.txt", None], out=tmp_path / "run")


def test_a_vocabulary_may_be_a_path(text, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"words\.txt"):
        pretrain(**text, model=MODEL, out=tmp_path / "run", device="cpu", vocabulary=tmp_path / "words.txt")
