"""BiLMConfig holds values that fit together, or is a ValueError that names the field, the value and the file."""

import dataclasses
import json

import pytest

from elmokit.config import BiLMConfig
from elmokit.settings import from_mapping, to_mapping


def test_the_defaults_are_the_published_original():
    config = BiLMConfig()
    assert (config.cell_dim, config.projection_dim, config.num_layers, config.num_highways) == (4096, 512, 2, 2)
    assert (config.cell_clip, config.proj_clip, config.max_characters, config.char_dim) == (3.0, 3.0, 50, 16)
    assert config.filters == ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
    assert config.filters_dim == 2048
    assert (config.skip_connections, config.char_projection, config.num_words) == (True, True, None)


def test_a_configuration_does_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        BiLMConfig().cell_dim = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    "name", ["max_characters", "char_dim", "cell_dim", "projection_dim", "num_layers", "num_words"]
)
@pytest.mark.parametrize("value", [0, -3])
def test_a_size_below_one_is_refused_by_name(name, value):
    with pytest.raises(ValueError, match=f"{name} must be at least 1, not {value}"):
        BiLMConfig(**{name: value})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_highways": -1}, "num_highways must be 0 or more, not -1"),
        ({"cell_clip": 0.0}, "cell_clip must be above 0 and at most 1e38, or null for no clipping, not 0.0"),
        ({"proj_clip": 1e308}, "proj_clip must be above 0 and at most 1e38, or null for no clipping, not 1e\\+308"),
        ({"proj_clip": -3}, "proj_clip must be above 0 and at most 1e38, or null for no clipping, not -3"),
        ({"proj_clip": float("nan")}, "proj_clip must be above 0 and at most 1e38, or null for no clipping, not nan"),
        ({"max_characters": 2}, "max_characters must be at least 3 .*, not 2"),
        ({"filters": ()}, "filters is empty"),
        ({"filters": ((0, 4),)}, r"filter \[0, 4\] does not fit"),
        ({"filters": ((1, 4), (2, 0))}, r"filter \[2, 0\] does not fit"),
        ({"filters": ((51, 4),)}, r"filter \[51, 4\] does not fit: its width must be 1 to max_characters \(50\)"),
        ({"char_projection": False}, "they sum to 2048, projection_dim is 512"),
        ({"num_words": 5, "bos_id": 5}, "bos_id is 5, the word table has 5 rows"),
        ({"num_words": 5, "eos_id": -1}, "eos_id must be 0 or more, not -1"),
        ({"bos_id": -5}, "bos_id must be 0 or more, not -5"),
        ({"num_words": 1}, "eos_id is 1, the word table has 1 rows"),
    ],
)
def test_values_that_do_not_fit_together_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        BiLMConfig(**values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"cell_dim": "64"}, "cell_dim must be int, not '64'"),
        ({"cell_dim": 64.0}, "cell_dim must be int, not 64.0"),
        ({"num_layers": True}, "num_layers must be int, not True"),
        ({"cell_clip": True}, "cell_clip must be float or null, not True"),
        ({"cell_clip": "3"}, "cell_clip must be float or null, not '3'"),
        ({"skip_connections": 1}, "skip_connections must be bool, not 1"),
        ({"activation": "gelu"}, "activation must be 'relu' or 'tanh', not 'gelu'"),
        ({"activation": None}, "activation must be 'relu' or 'tanh', not None"),
        ({"num_words": "many"}, "num_words must be int or null, not 'many'"),
        ({"num_layers": None}, "num_layers must be int, not None"),
        ({"filters": [[1, 4]]}, r"filters must be .*, not \[\[1, 4\]\]"),
        ({"filters": ((1, 4, 2),)}, r"filters must be .*, not \(\(1, 4, 2\),\)"),
        ({"filters": ((1, "4"),)}, r"filters must be .*, not \(\(1, '4'\),\)"),
        ({"filters": (1, 4)}, r"filters must be .*, not \(1, 4\)"),
    ],
)
def test_a_value_of_a_wrong_type_is_refused_by_name(values, message):
    with pytest.raises(ValueError, match=message):
        BiLMConfig(**values)


def test_values_at_the_edge_are_taken():
    BiLMConfig(num_highways=0, cell_clip=None, proj_clip=None, num_layers=1, cell_dim=1, projection_dim=1, char_dim=1)
    BiLMConfig(filters=((3, 1),), max_characters=3, char_projection=False, projection_dim=1)
    BiLMConfig(cell_clip=3)  # a whole number is a number
    BiLMConfig(num_words=1, bos_id=0, eos_id=0)


def test_a_word_level_model_has_no_rules_about_characters():
    assert BiLMConfig(num_words=9, filters=(), char_projection=False, max_characters=1).num_words == 9


@pytest.mark.parametrize(
    "config",
    [
        BiLMConfig(),
        BiLMConfig(cell_clip=None, activation="tanh", filters=((2, 5),), skip_connections=False),
        BiLMConfig(num_words=7, bos_id=3, eos_id=4),
        BiLMConfig(architecture="transformer"),
        BiLMConfig(architecture="transformer", projection_dim=64, num_heads=4, feedforward_dim=9, attention_window=7),
    ],
)
def test_a_configuration_comes_back_from_json_as_it_went(config):
    values = json.loads(json.dumps(to_mapping(config)))
    assert from_mapping(BiLMConfig, values, source="config.json") == config


def test_a_mapping_holds_plain_json_values():
    values = to_mapping(BiLMConfig(filters=((1, 4), (2, 6))))
    assert values["filters"] == [[1, 4], [2, 6]]
    assert values["num_words"] is None
    of_other_architectures = {"architecture", "num_heads", "feedforward_dim", "attention_window"}
    assert set(values) == {field.name for field in dataclasses.fields(BiLMConfig)} - of_other_architectures


def test_a_mapping_of_a_transformer_has_no_field_of_an_lstm():
    values = to_mapping(BiLMConfig(architecture="transformer"))
    assert values["architecture"] == "transformer"
    of_lstms = {"cell_dim", "cell_clip", "proj_clip", "skip_connections"}
    assert set(values) == {field.name for field in dataclasses.fields(BiLMConfig)} - of_lstms


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_heads": 4}, 'num_heads is 4, but architecture is "lstm": only "transformer" has num_heads'),
        ({"attention_window": 9}, 'attention_window is 9, but architecture is "lstm"'),
        ({"feedforward_dim": 9, "architecture": "lstm"}, 'feedforward_dim is 9, but architecture is "lstm"'),
        ({"architecture": "transformer", "cell_dim": 64}, 'cell_dim is 64, but architecture is "transformer"'),
        ({"architecture": "transformer", "cell_clip": None}, 'only "lstm" has cell_clip, leave it out'),
        ({"architecture": "transformer", "skip_connections": False}, 'only "lstm" has skip_connections, leave it out'),
        ({"architecture": "gru"}, "architecture must be 'lstm' or 'transformer', not 'gru'"),
        ({"architecture": "transformer", "num_heads": 0}, "num_heads must be at least 1, not 0"),
        ({"architecture": "transformer", "attention_window": 0}, "attention_window must be at least 1, not 0"),
        ({"architecture": "transformer", "attention_window": 10**9}, "attention_window must be at most 16384"),
        ({"architecture": "transformer", "num_heads": 3}, r"projection_dim is 512, which num_heads \(3\) cannot share"),
        ({"architecture": "transformer", "num_heads": 512}, r"projection_dim is 512, which num_heads \(512\) cannot"),
    ],
)
def test_fields_of_another_architecture_and_sizes_that_do_not_fit_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        BiLMConfig(**values)


def test_lists_become_tuples_and_whole_numbers_floats():
    config = from_mapping(BiLMConfig, {"filters": [[1, 4], [2, 6]], "cell_clip": 5}, source="x.toml")
    assert config.filters == ((1, 4), (2, 6))
    assert config.cell_clip == 5.0
    assert isinstance(config.cell_clip, float)


def test_what_is_not_named_keeps_its_default():
    assert from_mapping(BiLMConfig, {}, source="config.json") == BiLMConfig()


def test_an_unknown_key_is_an_error_that_names_it_the_source_and_the_known_keys():
    with pytest.raises(ValueError, match=r"run/config.json: unknown key 'cel_dim'; known keys: .*cell_dim"):
        from_mapping(BiLMConfig, {"cel_dim": 4}, source="run/config.json")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_layers": True}, "config.json: num_layers must be int, not True"),
        ({"num_layers": 2.0}, "config.json: num_layers must be int, not 2.0"),
        ({"filters": [[1, 4], 3]}, "config.json: filters must be"),
        ({"filters": {"1": 4}}, "config.json: filters must be"),
        ({"cell_clip": 0}, "config.json: cell_clip must be above 0"),
        ([["num_layers", 2]], "config.json: expected a table of settings, found list"),
    ],
)
def test_a_bad_value_of_a_file_is_an_error_that_names_the_file(values, message):
    with pytest.raises(ValueError, match=message):
        from_mapping(BiLMConfig, values, source="config.json")
