"""The public names: which there are, and that each of them has real types and says what its arguments are."""

import inspect
import re

import pytest

import elmokit

FUNCTIONS = {
    f"{owner.__name__}.{name}" if owner is not elmokit else name: function
    for owner in (elmokit, elmokit.ELMo, elmokit.BiLM, elmokit.ScalarMix, elmokit.Vocabulary)
    for name, function in [
        (name, inspect.getattr_static(owner, name) if owner is not elmokit else getattr(elmokit, name))
        for name in (elmokit.__all__ if owner is elmokit else vars(owner))
    ]
    if not name.startswith("_")
    for function in [getattr(function, "__func__", function)]
    if inspect.isfunction(function)
}


def test_the_public_names_are_these():
    assert elmokit.__all__ == [
        "BiLM", "BiLMConfig", "BiLMOutput", "BiLMState", "ELMo", "ELMoOutput", "Perplexity", "ScalarMix",
        "TokenLogProbs", "Vocabulary", "__version__", "batch_to_ids", "embed_spans", "pretrain", "tokenize",
    ]  # fmt: skip
    assert all(hasattr(elmokit, name) for name in elmokit.__all__)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_public_signature_has_real_types(name):
    hints = FUNCTIONS[name].__annotations__  # as they are written
    parameters = [parameter for parameter in inspect.signature(FUNCTIONS[name]).parameters if parameter != "self"]
    assert {*parameters, "return"} - {"cls"} <= set(hints)
    assert [parameter for parameter, hint in hints.items() if re.search(r"\bAny\b", str(hint))] == []


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_public_function_says_what_it_does_and_what_its_arguments_are(name):
    documented = inspect.getdoc(FUNCTIONS[name]) or ""
    assert documented
    parameters = [p for p in inspect.signature(FUNCTIONS[name]).parameters if p not in ("self", "cls")]
    if len(parameters) > 2:
        assert "Args:" in documented
        assert [p for p in parameters if f"{p}:" not in documented] == []
