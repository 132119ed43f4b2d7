"""substitutes, perplexity: numbers of the language model."""

import json
import re
import shutil

import numpy as np
import pytest
from verbs import LINES, WORDS, error_of, result_of, run

from elmokit.model import ELMo
from elmokit.text import tokenize


def test_substitutes_are_words_of_the_vocabulary_best_first(language_model):
    sentence = "He sat on the [bank] ."
    result = result_of("substitutes", sentence, "-k", 3, "--model", language_model)
    expected = ELMo.from_pretrained(language_model).substitutes(sentence, k=3)
    assert [found["word"] for found in result["substitutes"]] == [found.word for found in expected]
    assert len(expected) == 3
    table = run("substitutes", sentence, "--model", language_model).stdout.splitlines()
    assert len(table) == 6
    assert table[1].split()[0] == expected[0].word


def test_substitutes_without_brackets_or_softmax_are_an_error(folder, language_model):
    assert "mark one word with brackets" in error_of("substitutes", "no mark", "--model", language_model)
    assert "no output layer" in error_of("substitutes", "a [mark]", "--model", folder)


def test_perplexity_of_a_file_is_that_of_its_sentences(language_model, text, tmp_path):
    elmo = ELMo.from_pretrained(language_model)
    expected = elmo.perplexity([line for line in LINES if line])
    # as many rows as sentences: each begins without state, so the published test gives the same
    for found in (
        result_of("perplexity", language_model, text),
        result_of("perplexity", language_model, text, "--per-sentence"),
    ):
        numbers = [found[key] for key in ("forward", "backward", "both", "num_tokens")]
        np.testing.assert_allclose(
            numbers, [expected.forward, expected.backward, expected.both, expected.num_tokens], rtol=1e-5
        )
    each = [elmo.perplexity([line]).both for line in LINES if line]
    np.testing.assert_allclose([sentence["both"] for sentence in found["sentences"]], each, rtol=1e-5)
    assert f"{expected.both:.2f}" in run("perplexity", language_model, text).stdout
    assert len(run("perplexity", language_model, text, "--per-sentence").stdout.splitlines()) == 6


def test_perplexity_says_which_tokens_are_unknown_and_what_it_is_without_them(language_model, text, tmp_path):
    unknown = [[token for token in tokenize(line) if token not in WORDS] for line in LINES if line]
    assert [len(tokens) for tokens in unknown] == [0, 6, 0, 2]
    expected = ELMo.from_pretrained(language_model).perplexity([line for line in LINES if line])
    for options in ([], ["--per-sentence"]):
        found = result_of("perplexity", language_model, text, *options)
        assert found["num_unknown"] == expected.num_unknown == 8
        assert found["known"] == pytest.approx(expected.known, rel=1e-5)
        rows = run("perplexity", language_model, text, *options).stdout.splitlines()
        assert re.split("  +", rows[0])[:6] == [
            *("perplexity", "forward", "backward", "predictions"),
            *("unknown", "without unknown"),
        ]
        assert re.split("  +", rows[-1])[4:6] == ["8", f"{expected.known:.2f}"]
    assert [sentence["unknown_tokens"] for sentence in found["sentences"]] == unknown
    assert [re.split("  +", row)[4] for row in rows[1:-1]] == ["0", "6 (The , is n't it ?)", "0", "2 (last one)"]


def test_perplexity_reads_a_prepared_folder_of_the_same_vocabulary(language_model, text, tmp_path):
    vocabulary = language_model / "vocabulary.txt"
    run("prepare", text, "-o", tmp_path / "corpus", "--vocabulary", vocabulary)
    assert result_of("perplexity", language_model, tmp_path / "corpus") == pytest.approx(
        result_of("perplexity", language_model, text)
    )
    (tmp_path / "other.txt").write_text("<S>\n</S>\n<UNK>\nthe\n")
    run("prepare", text, "-o", tmp_path / "other", "--vocabulary", tmp_path / "other.txt")
    assert "was prepared with the vocabulary" in error_of("perplexity", language_model, tmp_path / "other")


def test_perplexity_needs_a_softmax_and_text(folder, language_model, tmp_path):
    (tmp_path / "empty.txt").write_text("")
    assert "has no softmax" in error_of("perplexity", folder, tmp_path / "empty.txt")
    assert "there is no sentence in" in error_of("perplexity", language_model, tmp_path / "empty.txt")
    assert "no sentences" in error_of("perplexity", language_model, tmp_path / "empty.txt", "--per-sentence")


def test_perplexity_takes_its_model_as_an_option_or_as_the_first_of_several_arguments(language_model, text, tmp_path):
    expected = result_of("perplexity", language_model, text)
    assert result_of("perplexity", text, "--model", language_model) == expected
    assert result_of("perplexity", "--model", language_model, text) == expected
    (tmp_path / "second.txt").write_text("the bank .\n")
    both = result_of("perplexity", language_model, text, tmp_path / "second.txt")
    assert both["num_tokens"] == expected["num_tokens"] + 4
    assert result_of("perplexity", text, tmp_path / "second.txt", "--model", language_model) == both


def test_perplexity_uses_the_english_model_for_files_without_a_model(language_model, text, tmp_path, monkeypatch):
    asked = []
    from_pretrained = ELMo.from_pretrained

    def remember(name: object, **settings: object) -> ELMo:
        asked.append(name)
        return from_pretrained(language_model, **settings)

    monkeypatch.setattr(ELMo, "from_pretrained", remember)
    (tmp_path / "second.txt").write_text("the bank .\n")
    run("perplexity", text)
    run("perplexity", text, tmp_path / "second.txt")
    run("perplexity", "-", text, "--per-sentence", text="the bank .\n")
    run("perplexity", language_model, text)
    assert asked == [None, None, None, str(language_model)]


def test_perplexity_splits_raw_text_by_the_tokenizer_of_the_model(language_model, text, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(language_model, model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "tokenizer": "characters"}))
    spaced = tmp_path / "spaced.txt"
    spaced.write_text("".join(" ".join(line.replace(" ", "")) + "\n" for line in LINES))
    for options in ([], ["--per-sentence"]):
        numbers = {
            key: value for key, value in result_of("perplexity", model, text, *options).items() if key != "sentences"
        }
        split = result_of("perplexity", language_model, spaced, "--tokenized", *options)
        assert numbers == pytest.approx({key: split[key] for key in numbers})


@pytest.mark.parametrize("arguments", [(), ("--per-sentence",)])
def test_an_infinite_perplexity_is_null_in_json(arguments, language_model, text, tmp_path):
    model = ELMo.from_pretrained(language_model)
    model.output_layer.bias.data[0] = 1e6  # of <S>, which no direction predicts here
    model.save_pretrained(tmp_path / "model")
    printed = run("perplexity", text, "--model", tmp_path / "model", "--json", *arguments).stdout
    result = json.loads(printed, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert (result["both"], result["known"]) == (None, None)
    assert "inf" in run("perplexity", text, "--model", tmp_path / "model", *arguments).stdout
