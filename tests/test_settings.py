"""Settings: typed dataclasses from JSON, TOML and key=value; what is wrong names the source and the field."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

import elmokit
from elmokit.settings import check_types, from_mapping, read_json, read_recipe, read_setting, recipe_names


@dataclass(frozen=True)
class Needy:
    """A dataclass without defaults, with a nested and an optional field."""

    name: str
    ratios: tuple[float, ...] | None

    def __post_init__(self) -> None:
        check_types(self)


def test_a_missing_field_is_an_error_that_names_it_and_the_file():
    with pytest.raises(ValueError, match=r"^needy\.toml: missing key 'ratios'$"):
        from_mapping(Needy, {"name": "x"}, source="needy.toml")
    with pytest.raises(ValueError, match=r"^needy\.toml: missing keys 'name', 'ratios'$"):
        from_mapping(Needy, {}, source="needy.toml")


def test_other_dataclasses_are_read_by_the_same_rules():
    assert from_mapping(Needy, {"name": "x", "ratios": [1, 0.5]}, source="s") == Needy("x", (1.0, 0.5))
    assert from_mapping(Needy, {"name": "x", "ratios": None}, source="s") == Needy("x", None)
    with pytest.raises(ValueError, match=r"s: ratios must be tuple\[float, \.\.\.\] or null, not \('a',\)"):
        from_mapping(Needy, {"name": "x", "ratios": ["a"]}, source="s")


def test_a_json_object_is_read(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"cell_dim": 3, "activation": "tanh"}', encoding="utf-8")
    assert read_json(path) == {"cell_dim": 3, "activation": "tanh"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"cell_dim": ', "bad.json: not a JSON file"),
        (b'{"cell_dim": ' + b"9" * 5000 + b"}", "bad.json: not a JSON file"),
        (b"", "bad.json: not a JSON file"),
        (b'{"a": "\xff"}', "bad.json: not a JSON file"),
        (b"[1, 2]", "bad.json: expected a JSON object, found list"),
        (b"null", "bad.json: expected a JSON object, found NoneType"),
        (b"[" * 100_000, "bad.json: not a JSON file"),
    ],
)
def test_a_file_that_holds_no_json_object_is_an_error_that_names_it(tmp_path, content, message):
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_json(path)


@pytest.mark.parametrize("target", ["/dev/zero", "."])
def test_a_device_or_a_folder_is_not_read_as_json(tmp_path, target):
    (tmp_path / "link.json").symlink_to(target)
    with pytest.raises(ValueError, match=r"link\.json: this is not a regular file"):
        read_json(tmp_path / "link.json")


def test_a_missing_json_file_is_an_error_that_names_it(tmp_path):
    with pytest.raises((ValueError, FileNotFoundError), match=r"none\.json"):
        read_json(tmp_path / "none.json")


def test_a_setting_is_a_toml_value_null_or_text():
    settings = ["a=3", "b = 1e-3", "c=null", "d=runs/x", "e=true", 'f=["x", "y"]', "g=none", "h=a=b"]
    expected = {"a": 3, "b": 1e-3, "c": None, "d": "runs/x", "e": True, "f": ["x", "y"], "g": "none", "h": "a=b"}
    assert dict(map(read_setting, settings)) == expected
    with pytest.raises(ValueError, match="'a': write a setting as key=value"):
        read_setting("a")


def test_a_recipe_is_toml_or_json_and_errors_name_it(tmp_path):
    for name, content in {
        "a.toml": "seed = 3\n[model]\ncell_dim = 4\n",
        "a.json": '{"seed": 3, "model": {"cell_dim": 4}}',
    }.items():
        (tmp_path / name).write_text(content)
        assert read_recipe(tmp_path / name) == {"seed": 3, "model": {"cell_dim": 4}}
    (tmp_path / "bad.toml").write_text("seed = ")
    (tmp_path / "bad.json").write_text("{")
    for name, message in {
        "none.toml": "no such recipe",
        "none.json": "no such recipe",
        "bad.toml": "not a TOML file",
        "bad.json": "not a JSON file",
    }.items():
        with pytest.raises(ValueError, match=f"{name}: {message}"):
            read_recipe(tmp_path / name)


@pytest.mark.parametrize(("kind", "folder"), [("pretraining", "recipes"), ("tasks", "recipes/tasks")])
def test_the_recipes_of_the_package_are_read_by_name(kind, folder):
    paths = list((Path(elmokit.__file__).parent / folder).glob("*.toml"))
    assert recipe_names(kind) == sorted(path.stem for path in paths) != []
    for path in paths:
        assert read_recipe(path.stem, kind) == tomllib.loads(path.read_text(encoding="utf-8"))


def test_a_file_comes_before_a_recipe_of_that_name_and_an_unknown_name_lists_those_of_its_kind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    known = ", ".join(recipe_names("tasks"))
    with pytest.raises(ValueError, match=f"nothing: no such recipe: pass a TOML file, or one of {known}"):
        read_recipe("nothing", "tasks")
    (tmp_path / "tiny").mkdir()  # a folder is not a recipe
    assert "model" in read_recipe("tiny")
    (tmp_path / "tiny").rmdir()
    (tmp_path / "tiny").write_text("seed = 3")
    assert read_recipe("tiny") == {"seed": 3}
