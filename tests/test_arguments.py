"""Every argument of every public function: what is wrong is a ValueError that names it, before any work is done."""

import importlib.util
import io
import os
import secrets
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import elmokit
from elmokit import BiLM, BiLMConfig, ELMo, ScalarMix, Vocabulary, batch_to_ids, embed_spans, tokenize
from elmokit.arguments import (
    check_choice,
    check_flag,
    check_integer,
    check_number,
    check_optional_integer,
    check_path,
    check_paths,
    describe,
)
from elmokit.corpus import Corpus, prepare
from elmokit.corpus.sources import find_files
from elmokit.datasets import read_bio
from elmokit.index import WordIndex
from elmokit.inference.senses import Occurrence
from elmokit.network import OutputLayer
from elmokit.pretraining import finetune, pretrain
from elmokit.probes import (
    find_probes,
    nearest_in_context,
    neighbours_of_words,
    read_mixes,
    read_report,
    run_probes,
    sentence_perplexity,
    text_perplexity,
)
from elmokit.spans import SpanAttention, mean_of_spans, pad_spans, to_token_spans
from elmokit.tasks import TaskConfig, load_task
from elmokit.tasks import train as train_task
from elmokit.tasks.compare import summarize
from elmokit.text import Tokenizer, marked_phrase, marked_word, words_to_ids
from elmokit.vector_files import VectorFile, write_vectors

NAN = float("nan")


class BytesPath:
    def __fspath__(self) -> bytes:
        return b"a"


WRONG: dict[str, list[Any]] = {
    "integer": [1.5, 1.0, -1, True, "2", None, NAN, [1], (2,), np.float64(2), np.array([1, 2]), {}, object(), 2 + 0j],
    "flag": ["no", "", 2, None, [True], 0.5, NAN, np.array([True, False]), object()],
    "number": [NAN, float("inf"), "0.5", True, None, 1.5, -0.1, [0.5], np.array([0.1, 0.2]), 1j],
    "layers": [None, True, 1.0, NAN, "0", "bottom", "", 3, -4, 10**20, [1], (0, 1), {}, np.array([0, 1]), b"top"],
    "sentences": [None, 3, NAN, True, b"bytes", {"a": 1}, {"a"}, Path("text.txt"), object(), np.zeros(()), len],
    "items": [
        [None], [NAN], [3], [b"bytes"], [{"a": 1}], [{"a"}], [Path("a")], [["a", 1]], [["a", None]], [["a", ["b"]]],
        [["a", b"b"]], [object()], [[["a"]]], np.zeros(3), torch.zeros(2), np.array([b"a"]), np.array([["a"], ["b"]]),
        iter([None]), b"a b".split(), range(3),
    ],
    "sentence": [None, 3, NAN, b"bytes", {"a": 1}, {"a"}, Path("a"), ["a", None], ["a", ["b"]], [b"a"], object()],
    "string": [None, 3, b"bytes", ["a"], NAN, Path("a"), object()],
    "path": [
        None, 3, "", "a\0b", b"bytes", ["a"], NAN, object(), True, "x\udfffy", Path("x\udfffy"), Path("a\0b"),
        BytesPath(),
    ],
    "paths": [
        None, 3, "", "a\0b", b"bytes", NAN, object(), True, {"a": 1}, {"a"}, Path("x\udfffy"), ["a", None], ["a", 3],
        ["a", ""], [b"a"], ("a", "x\udfffy"), [["a"]], np.array("a"), np.zeros(2),
    ],
    "rate": [NAN, float("inf"), -0.1, "0.5", True, None, [0.5], 10**400, 1j, np.array([0.1, 0.2]), object()],
    "betas": [None, 0.9, "ab", (0.9,), (0.9, "x"), (0.9, NAN), [0.9, 0.9, 0.9], {"a": 1}],
    "split": [None, 1, 0.5, "no", b"characters", ["characters"], np.array(["characters", "x"]), object()],
    "choice": [None, "other", 3, NAN, ["a"], b"a", object(), True],
    "model": [None, "en", 3, object(), ELMo, {}, 0],
    "all": ["all"],
    "eps": [NAN, float("inf"), -1e-9, "0", None, True, [0.1]],
    "function": ["print", 3, object(), [len]],
    "lengths": [None, 3, [1.5], [-1], [True], [None], ["3"], [1, 2], {"a": 1}, {1}, "3", np.zeros(1)],
    "vectors": [None, "a", [["a"]], 3, [1.0], np.zeros((1, 3)), np.full((1, 8), NAN), object(), [[1], [1, 2]]],
    "words": [None, "one string", 3, b"a", {"a": 1}, {"a"}, ["a", None], ["a", 3], [["a"]]],
    "tensor": [None, [[1]], "ids", 3, np.zeros((1, 1)), torch.zeros(2), torch.zeros(())],
}  # fmt: skip
OPTIONAL = "integer or None"
WRONG[OPTIONAL] = [value for value in WRONG["integer"] if value is not None]
for kind in ("choice", "flag", "string", "path", "words", "model"):
    WRONG[f"{kind} or None"] = [value for value in WRONG[kind] if value is not None]
WRONG["some paths"] = [*WRONG["paths"], [], ()]
WRONG["flags"] = [*WRONG["flag"], 1, 0]
WRONG["some paths or None"] = [value for value in WRONG["some paths"] if value is not None]
WRONG["view or None"] = [value for value in WRONG["layers"] if value is not None]
SENTENCES = {"sentences": "sentences", "sentences ": "items"}


class Call(NamedTuple):
    """A public function with arguments that are right, and what kind each of them is."""

    function: Callable[..., Any]
    arguments: dict[str, Any]
    kinds: dict[str, str]


def language_model() -> ELMo:
    torch.manual_seed(3)
    words = ["<S>", "</S>", "<UNK>", "the", "bank", "."]
    sizes = BiLMConfig(char_dim=4, filters=((1, 8),), num_highways=1, cell_dim=8, projection_dim=4)
    return ELMo(BiLM(sizes), output_layer=OutputLayer(len(words), 4), vocabulary=Vocabulary(words)).eval()


MODEL = language_model()
RUNNING = {"batch_size": OPTIONAL, "show_progress": "flag", "convert_to_tensor": "flag"}
LOADING = {
    "freeze": "flag", "dropout": "number", "keep_boundaries": "flag", "state": "choice", "device": "choice or None",
    "dtype": "choice", "quantize": "choice or None", "progress": "function",
}  # fmt: skip
TRAINING = {
    "train": "some paths", "out": "path", "heldout": "some paths or None", "vocabulary": "path or None",
    "on_progress": "function", "batch_size": "integer", "steps": OPTIONAL, "seed": "integer", "dropout": "number",
    "optimizer": "choice",
    "device": "string", "tensorboard": "flags", "tokenized": "split", "betas": "betas",
    **dict.fromkeys(["learning_rate", "epochs", "eval_every", "weight_decay", "eps", "initial_accumulator"], "rate"),
}  # fmt: skip
GOOD = ["the bank ."]


def calls(tmp_path: Path) -> dict[str, Call]:
    model = MODEL
    missing = tmp_path / "missing"  # a wrong argument is named, not the file that does not exist
    found = {
        "ELMo": Call(ELMo, {"bilm": model.bilm}, {
            "bilm": "model", "freeze": "flag", "num_mixes": "integer", "dropout": "number",
            "layer_norm": "flag or None", "keep_boundaries": "flag", "state": "choice", "output_layer": "function",
            "vocabulary": "words or None", "lexicon": "function", "tokenizer": "choice",
        }),
        "ELMo.from_pretrained": Call(ELMo.from_pretrained, {"name": missing}, {
            "name": "path or None", "num_mixes": OPTIONAL, "layer_norm": "flag or None", **LOADING,
        }),
        "ELMo.from_files": Call(ELMo.from_files, {"options": missing, "weights": missing}, {
            "options": "path", "weights": "path", "vocabulary": "path or None", "embeddings": "path or None",
            "softmax": "path or None", "num_mixes": "integer", "layer_norm": "flag or None", **LOADING,
        }),
        "ELMo.save_pretrained": Call(model.save_pretrained, {"folder": missing}, {
            "folder": "path", "dtype": "choice or None",
        }),
        "ELMo.export_hdf5": Call(model.export_hdf5, {"folder": missing}, {"folder": "path"}),
        "ELMo.export_token_embeddings": Call(
            model.export_token_embeddings, {"vocabulary": missing, "path": missing},
            {"vocabulary": "path", "path": "path"},
        ),
        "ELMo.forward": Call(model, {"ids": model.to_ids(GOOD)}, {"ids": "tensor"}),
        "ELMo.mix": Call(
            model.mix, {"layers": torch.zeros(3, 1, 2, 8), "mask": torch.ones(1, 2, dtype=torch.bool)},
            {"layers": "tensor", "mask": "tensor"},
        ),
        "BiLM": Call(BiLM, {"config": model.config}, {"config": "model"}),
        "ScalarMix": Call(ScalarMix, {"num_layers": 3}, {"num_layers": "integer", "layer_norm": "flag", "eps": "eps"}),
        "tasks.train": Call(train_task, {"config": None}, {"config": "model"}),
        "tasks.load_task": Call(load_task, {"folder": missing}, {
            "folder": "path", "elmo": "path or None", "vectors": "path or None",
        }),
        "ELMo.unfreeze": Call(language_model().unfreeze, {}, {"from_layer": "layers"}),
        "ELMo.load_language_model": Call(model.load_language_model, {}, {"progress": "function"}),
        "ELMo.to_ids": Call(model.to_ids, {"sentences": GOOD}, SENTENCES),
        "ELMo.embed_words": Call(model.embed_words, {"words": ["bank"]}, {"words": "words"}),
        "ELMo.embed": Call(model.embed, {"sentences": GOOD}, {**SENTENCES, "layers": "layers", **RUNNING}),
        "ELMo.encode": Call(model.encode, {"sentences": GOOD}, {
            **SENTENCES, "layers": "layers", "normalize": "flag", **RUNNING,
        }),
        "ELMo.similarity": Call(model.similarity, {"first": "the bank", "second": "bank ."}, {
            "first": "sentence", "second": "sentence", "word": "string or None", "layers": "view or None",
        }),
        "ELMo.senses": Call(model.senses, {"word": "bank", "sentences": GOOD}, {
            "word": "string", **SENTENCES, "num_senses": OPTIONAL, "batch_size": OPTIONAL, "show_progress": "flag",
        }),
        "ELMo.group_senses": Call(
            model.group_senses,
            {"word": "bank", "occurrences": [Occurrence(["bank"], 0, 1, 0)], "vectors": np.ones((1, 8))},
            {"word": "string", "occurrences": "sentences", "vectors": "vectors", "num_senses": OPTIONAL},
        ),
        "ELMo.readings": Call(lambda **given: list(model.readings(**given)), {"sentences": GOOD}, {
            **SENTENCES, "batch_size": OPTIONAL, "show_progress": "flag",
        }),
        "ELMo.log_probs": Call(model.log_probs, {"sentences": GOOD}, SENTENCES),
        "ELMo.perplexity": Call(model.perplexity, {"sentences": GOOD}, SENTENCES),
        "ELMo.substitutes": Call(model.substitutes, {"sentence": "the [bank] ."}, {
            "sentence": "sentence", "k": "integer",
        }),
        "ELMo.substitutes of tokens": Call(model.substitutes, {"sentence": ["the", "bank"], "position": 1}, {
            "sentence": "sentence", "position": "integer", "k": "integer",
        }),
        "embed_spans": Call(embed_spans, {"elmo": model, "sentences": GOOD, "spans": [[(0, 1)]]}, {
            "elmo": "model", **SENTENCES, "spans": "sentences", "spans ": "items", "how": "choice", "unit": "choice",
            "attention": "function", "layers": "layers", **RUNNING,
        }),
        "to_token_spans": Call(to_token_spans, {"text": "the bank", "spans": [(0, 3)]}, {
            "text": "string", "spans": "sentences", "spans ": "items", "tokenizer": "choice",
        }),
        "pad_spans": Call(pad_spans, {"spans": [[(0, 1)]], "lengths": [3]}, {
            "spans": "sentences", "spans ": "items", "lengths": "lengths",
        }),
        "SpanAttention": Call(SpanAttention, {"dim": 8}, {"dim": "integer"}),
        "mean_of_spans": Call(mean_of_spans, {"x": torch.zeros(1, 2, 8), "spans": torch.tensor([[[0, 1]]])}, {
            "spans": "tensor",
        }),
        "batch_to_ids": Call(batch_to_ids, {"sentences": GOOD}, {**SENTENCES, "max_characters": "integer"}),
        "words_to_ids": Call(words_to_ids, {"words": ["bank"]}, {"words": "words", "max_characters": "integer"}),
        "tokenize": Call(tokenize, {"text": "the bank"}, {"text": "string"}),
        "Tokenizer": Call(Tokenizer, {}, {"name": "choice"}),
        "Vocabulary": Call(Vocabulary, {"words": ["<S>", "</S>", "<UNK>"]}, {"words": "words"}),
        "Vocabulary.load": Call(Vocabulary.load, {"path": missing}, {"path": "path"}),
        "Vocabulary.save": Call(model.vocabulary.save, {"path": missing}, {"path": "path"}),
        "Vocabulary.id": Call(model.vocabulary.id, {"word": "bank"}, {"word": "string"}),
        "Vocabulary.ids": Call(model.vocabulary.ids, {"words": ["bank"]}, {"words": "words"}),
        "neighbours_of_words": Call(neighbours_of_words, {"model": model, "words": ["bankk"]}, {
            "model": "model", "words": "words", "k": "integer",
        }),
        "nearest_in_context": Call(
            nearest_in_context, {"model": model, "queries": ["the [bank]"], "corpus": [["a", "bank"]]},
            {"model": "model", "queries": "words", "queries ": "items", "corpus": "sentences", "corpus ": "items",
             "k": "integer", "layer": "layers", "layer ": "all", "progress": "function"},
        ),
        "find_probes": Call(find_probes, {"data": None}, {"data": "path or None", "heldout": "paths"}),
        "run_probes": Call(run_probes, {"model": model, "name": "mine", "files": {}}, {
            "model": "model", "name": "string", "keep": "path or None", "progress": "function", "on_probe": "function",
        }),
        "read_report": Call(read_report, {"path": missing}, {"path": "path"}),
        "text_perplexity": Call(text_perplexity, {"model": model, "path": missing}, {"model": "model", "path": "path"}),
        "sentence_perplexity": Call(sentence_perplexity, {"model": model, "path": missing}, {
            "model": "model", "path": "path", "num_tokens": "integer", "progress": "function",
        }),
        "read_mixes": Call(read_mixes, {"folders": [missing]}, {"folders": "paths"}),
        "summarize": Call(summarize, {"folders": [missing], "out": missing}, {"folders": "paths", "out": "path"}),
        "find_files": Call(find_files, {"paths": missing}, {"paths": "paths"}),
        "prepare": Call(
            prepare, {"paths": __file__, "out": missing, "vocabulary": model.vocabulary},
            {"paths": "paths", "out": "path"},
        ),
        "Corpus.open": Call(Corpus.open, {"folder": missing}, {"folder": "path"}),
        "read_bio": Call(read_bio, {"path": missing}, {"path": "path"}),
        "TaskConfig": Call(TaskConfig, {"task": "ner", "train": "a", "out": "b"}, {
            "task": "string", "train": "path", "dev": "path or None", "test": "path or None", "out": "path",
            "vectors": "path", "elmo": "path or None", "cache": "path or None", "epochs": "integer", "tune": "flags",
            "optimizer": "choice", "learning_rate": "rate", "tune_learning_rate": "rate", "weight_decay": "rate",
            "mix_l2": "rate",
        }),
        "pretrain": Call(pretrain, {"train": missing, "out": missing / "run"}, {**TRAINING, "model": "model or None"}),
        "finetune": Call(finetune, {"model": missing, "train": missing, "out": missing / "run"}, {
            **TRAINING, "model": "path or None", "recipe": "path",
        }),
        "marked_phrase": Call(marked_phrase, {"sentence": "the [bank]"}, {"sentence": "string"}),
        "marked_word": Call(marked_word, {"sentence": "the [bank]"}, {"sentence": "string"}),
        "VectorFile": Call(VectorFile, {"path": missing, "format": "npz"}, {
            "path": "path", "format": "choice", "dtype": "choice", "gzip": "flag", "tokenized": "flag",
            "forget_sentences": "flag", "use_sentence_keys": "flag",
        }),
        "write_vectors": Call(
            write_vectors, {"model": model, "lines": GOOD, "file": VectorFile(missing, "npz")},
            {"model": "model", "lines": "sentences", "file": "model", "batch_size": OPTIONAL, "overwrite": "flag",
             "progress": "function"},
        ),
    }  # fmt: skip
    if importlib.util.find_spec("usearch"):
        index = WordIndex.create(tmp_path.with_name(f"{tmp_path.name}-index") / secrets.token_hex(4), model)
        found |= {
            "WordIndex.create": Call(WordIndex.create, {"folder": missing, "model": model}, {
                "folder": "path", "model": "model", "layer": "layers", "layer ": "all", "skip_punctuation": "flag",
                "skip_words": "words", "model_name": "string or None",
            }),
            "WordIndex.open": Call(WordIndex.open, {"folder": index.folder}, {"folder": "path"}),
            "WordIndex.check_model": Call(index.check_model, {"model": model}, {"model": "model"}),
            "WordIndex.add": Call(index.add, {"model": model, "sentences": GOOD}, {
                "model": "model", **SENTENCES, "source": "string or None", "progress": "function",
            }),
            "WordIndex.neighbours": Call(index.neighbours, {"model": model, "sentence": "the [bank] ."}, {
                "model": "model", "sentence": "string", "k": "integer", "same_word": "flag",
            }),
            "WordIndex.occurrences": Call(index.occurrences, {"word": "bank"}, {
                "word": "string", "limit": OPTIONAL, "ignore_case": "flag",
            }),
            "WordIndex.senses": Call(index.senses, {"model": model, "word": "bank"}, {
                "model": "model", "word": "string", "num_senses": OPTIONAL, "limit": OPTIONAL,
            }),
            "WordIndex.search": Call(index.search, {"vectors": np.zeros((1, 8))}, {
                "vectors": "vectors", "k": "integer", "exact": "flag",
            }),
        }  # fmt: skip
    for name in NAMES:  # of tokenizers
        found[f"Tokenizer {name}"] = Call(Tokenizer(name), {"text": "a"}, {"text": "string"})
        found[f"Tokenizer.sentences {name}"] = Call(Tokenizer(name).sentences, {"text": "a"}, {"text": "string"})
    return found


NAMES = ("treebank", "spaces", "characters")
with tempfile.TemporaryDirectory() as somewhere:
    KINDS = {name: call.kinds for name, call in calls(Path(somewhere) / "x").items()}
SWEEP = [
    pytest.param(name, argument, kind, id=f"{name}-{argument.strip()}-{kind}")
    for name, kinds in KINDS.items()
    for argument, kind in kinds.items()
]
NO_FILES = {  # their arguments name a file that does not exist
    "ELMo.from_pretrained", "ELMo.from_files", "ELMo.export_token_embeddings", "Vocabulary.load", "tasks.train",
    "tasks.load_task", "pretrain", "finetune", "read_report", "text_perplexity", "sentence_perplexity", "read_mixes",
    "summarize", "find_files", "prepare", "Corpus.open", "read_bio",
}  # fmt: skip
# an argument that the message calls by another name: that of the rule, or of its first element
ALIASES = {"name": "name|tokenizer|model", "ids": "ids|batch_to_ids"}


@pytest.mark.parametrize(("name", "argument", "kind"), SWEEP)
def test_a_wrong_argument_is_named_with_its_value_before_any_work_is_done(name, argument, kind, tmp_path, capfd):
    call, argument = calls(tmp_path)[name], argument.strip()
    for value in WRONG[kind]:
        if isinstance(value, type(iter([]))):
            value = iter([None])
        with pytest.raises(ValueError, match=ALIASES.get(argument, argument)) as caught:
            call.function(**{**call.arguments, argument: value})
        assert len(str(caught.value).splitlines()) == 1, value
        assert len(str(caught.value)) < 400, value
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", [name for name in KINDS if name not in NO_FILES])
def test_the_arguments_that_the_sweep_starts_from_are_right(name, tmp_path):
    call = calls(tmp_path)[name]
    call.function(**call.arguments)


def test_every_public_function_is_swept():
    public = {name for name in elmokit.__all__ if callable(getattr(elmokit, name))} - {
        "BiLMConfig",  # settings, with tests of their own
        "BiLMOutput", "BiLMState", "ELMoOutput", "Perplexity", "TokenLogProbs",  # results
    }  # fmt: skip
    methods = {f"ELMo.{name}" for name in vars(ELMo) if not name.startswith("_") and callable(getattr(ELMo, name))}
    without_arguments = {"ELMo.mix_l2", "ELMo.reset_state", "ELMo.forget_words", "ELMo.digest"}
    assert public | methods - without_arguments <= set(KINDS)


@pytest.mark.parametrize("method", ["embed", "encode", "similarity"])
def test_layers_of_a_wrong_kind_name_the_method_that_was_called(method):
    arguments = ["a", "b"] if method == "similarity" else [["a"]]
    with pytest.raises(ValueError, match=f"^{method}: layers must be"):
        getattr(MODEL, method)(*arguments, layers="most")
    if method != "embed":
        with pytest.raises(ValueError, match=rf"^{method}: layers must be .*, not 'all', which is for embed"):
            getattr(MODEL, method)(*arguments, layers="all")


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda model: model.log_probs(None), "sentences"),
        (lambda model: model.perplexity("one string"), "sentences"),
        (lambda model: model.substitutes("the [bank]", k=0), "k must be"),
        (lambda model: model.substitutes("the bank"), "mark one word"),
        (lambda model: model.substitutes(["a"], position=1), "position must be"),
    ],
)
def test_arguments_of_the_language_model_are_checked_before_its_output_layer_is_loaded(call, argument, monkeypatch):
    monkeypatch.setattr(ELMo, "load_language_model", lambda _: pytest.fail("it was loaded"))
    with pytest.raises(ValueError, match=argument):
        call(MODEL)


@pytest.mark.parametrize("layers", [np.int64(1), np.int8(-2), np.uint8(1), torch.tensor(1)])
def test_a_layer_may_be_an_integer_of_numpy_or_torch_everywhere(layers):
    assert np.array_equal(MODEL.embed(GOOD, layers=layers)[0], MODEL.embed(GOOD, layers=1)[0])
    assert np.array_equal(MODEL.encode(GOOD, layers=layers), MODEL.encode(GOOD, layers=1))
    assert MODEL.similarity("the bank", ".", layers=layers) == MODEL.similarity("the bank", ".", layers=1)
    spans = [[(0, 2)]]
    assert np.array_equal(
        embed_spans(MODEL, GOOD, spans, layers=layers)[0], embed_spans(MODEL, GOOD, spans, layers=1)[0]
    )


def test_numbers_and_flags_of_numpy_are_accepted():
    first = MODEL.embed(GOOD * 3)
    second = MODEL.embed(GOOD * 3, batch_size=np.int64(2), convert_to_tensor=np.False_, show_progress=0)
    np.testing.assert_allclose(first, second, rtol=0, atol=1e-6)
    assert len(MODEL.substitutes(["the", "bank"], position=np.int32(1), k=np.int64(2))) == 2
    assert ELMo(MODEL.bilm, dropout=np.float32(0.25), num_mixes=np.int64(2)).dropout.p == 0.25


# ---- sentences in every container ------------------------------------------------------------------------------------

TEXTS = ["The bank lent money.", "", "It's a river, isn't it?"]


def by_call() -> dict[str, Callable[[Any], Any]]:
    """What each function that reads sentences makes of them, as lists that can be compared."""
    return {
        "embed": lambda texts: [vectors.tolist() for vectors in MODEL.embed(texts)],
        "encode": lambda texts: MODEL.encode(texts).tolist(),
        "to_ids": lambda texts: MODEL.to_ids(texts).tolist(),
        "batch_to_ids": lambda texts: batch_to_ids(texts).tolist(),
        "log_probs": lambda texts: [(scores.tokens, scores.forward.tolist()) for scores in MODEL.log_probs(texts)],
        "perplexity": MODEL.perplexity,
        "embed_spans": lambda texts: [
            vectors.tolist() for vectors in embed_spans(MODEL, texts, iter([[(0, 2)], (), np.array([[1, 3]])]))
        ],
    }


@pytest.mark.parametrize("name", by_call())
def test_sentences_may_come_in_any_ordered_container(name):
    call = by_call()[name]
    expected = call(TEXTS)
    assert call(tuple(TEXTS)) == expected
    assert call(text for text in TEXTS) == expected
    assert call(dict.fromkeys(TEXTS).keys().__iter__()) == expected
    assert call(np.array(TEXTS)) == expected
    assert call(np.array(TEXTS, dtype=object)) == expected
    assert call([np.str_(text) for text in TEXTS]) == expected
    assert call(io.StringIO("\n".join(TEXTS))) == expected  # the lines of an open file
    tokens = [tokenize(text) for text in TEXTS]
    assert call(tokens) == expected
    assert call([tuple(words) for words in tokens]) == expected
    assert call([iter(words) for words in tokens]) == expected
    assert call([np.array(words, dtype=object) for words in tokens]) == expected


@pytest.mark.parametrize("name", by_call())
def test_a_column_of_pandas_is_its_strings_and_a_table_is_refused(name):
    pandas = pytest.importorskip("pandas")
    call, table = by_call()[name], pandas.DataFrame({"id": [1, 2, 3], "text": TEXTS}, index=[7, 3, 5])
    expected = call(TEXTS)
    assert call(table["text"]) == expected
    assert call(table["text"].astype("category")) == expected
    assert call(table["text"].to_numpy()) == expected
    assert call(pandas.Index(TEXTS)) == expected
    assert call(table["text"].map(tokenize)) == expected
    with pytest.raises(ValueError, match=r"sentences is a DataFrame with the columns .*df\[\"text\"\]\.tolist\(\)"):
        call(table)
    with pytest.raises(ValueError, match=r"df\[\"review\"\]\.tolist\(\)"):
        call(table.rename(columns={"text": "review"})[["review"]])
    with pytest.raises(ValueError, match=r"an array of shape \(3, 1\): .*array\[:, 0\]\.tolist\(\)"):
        call(table[["text"]].to_numpy())
    for missing in (None, NAN, pandas.NA):
        series = pandas.Series(["a", missing, "b"], dtype=object)
        with pytest.raises(ValueError, match=r"sentences\[1\] is .*leave out what is missing, or put '' in its place"):
            call(series)


def test_an_array_of_arrow_is_its_strings():
    arrow = pytest.importorskip("pyarrow")
    assert MODEL.to_ids(arrow.array(TEXTS)).equal(MODEL.to_ids(TEXTS))
    assert MODEL.to_ids(arrow.chunked_array([TEXTS[:1], TEXTS[1:]])).equal(MODEL.to_ids(TEXTS))
    with pytest.raises(ValueError, match=r"sentences is a Table with the columns"):
        MODEL.embed(arrow.table({"text": TEXTS}))


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ([b"bytes"], r"value\.decode\(\)"),
        (Path("a.txt"), r"path\.read_text\(\)\.splitlines\(\)"),
        ("one string", r"got one string: write \['one string'\]"),
        ({"a"}, "expected a list of strings or of token lists, in an order"),
    ],
)
def test_what_is_not_sentences_names_the_way_out(value, hint):
    with pytest.raises(ValueError, match=hint):
        MODEL.embed(value)


# ---- the checks themselves -------------------------------------------------------------------------------------------


def test_checks_return_plain_values():
    assert [type(check_integer("k", value)) for value in (3, np.int64(3), torch.tensor(3))] == [int] * 3
    assert check_optional_integer("k", None) is None
    assert [check_number("p", value, least=0, most=1) for value in (0, 1, np.float32(0.5))] == [0.0, 1.0, 0.5]
    assert [check_flag("f", value) for value in (True, 0, np.True_, 1)] == [True, False, True, True]
    assert check_choice("c", None, (None, "a")) is None
    assert check_path("p", Path("a")) == Path("a")
    assert check_path("p", os.fsdecode(b"caf\xe9")) == "caf\udce9"  # a name that is not UTF-8
    assert [check_paths("p", value) for value in ("a", Path("a"), (Path("a"), "b"), iter("a"), np.array(["a"]))] == [
        ["a"], ["a"], ["a", "b"], ["a"], ["a"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda: check_integer("k", 1.5), "k must be an integer, not 1.5 (float)"),
        (lambda: check_integer("k", 0), "k must be at least 1, not 0"),
        (lambda: check_integer("k", 9, most=4), "k must be from 1 to 4, not 9"),
        (lambda: check_optional_integer("n", "x"), "n must be an integer or None, not 'x'"),
        (lambda: check_number("p", NAN, least=0, below=1), "p must be a number, at least 0 and less than 1, not nan"),
        (lambda: check_number("p", "x"), "p must be a number, not 'x'"),
        (lambda: check_flag("f", "no"), "f must be True or False, not 'no'"),
        (lambda: check_choice("c", 3, ("a", "b")), 'c must be "a" or "b", not 3 (int)'),
        (lambda: check_path("p", "a\0"), "p is 'a\\x00': a path has no NUL"),
        (lambda: check_path("p", "a\ud800"), "p is 'a\\ud800': a path has no '\\ud800', half of a character"),
        (lambda: check_paths("p", ["a", 3]), "p[1] must be a path, not 3 (int)"),
        (lambda: check_paths("p", {"a"}), "p must be a path or a list of paths, not {'a'} (set)"),
    ],
)
def test_a_message_says_what_is_wrong_and_what_to_pass(check, message):
    with pytest.raises(ValueError) as caught:
        check()
    assert str(caught.value) == message


def test_any_object_can_be_described_in_one_line():
    class Broken:
        def __repr__(self) -> str:
            raise RuntimeError

    assert describe(Broken()).startswith("<Broken instance at") or "Broken" in describe(Broken())
    assert describe(np.zeros((2, 3))) == "an object of type ndarray and shape (2, 3)"
    assert describe([1] * 1000) == "[1, 1, 1, 1, 1, 1, ...] (list)"
