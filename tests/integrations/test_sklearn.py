"""The scikit-learn transformer: what `ELMo.encode` gives, as scikit-learn wants it, with one model for all clones."""

import importlib
import pickle
import sys

import joblib
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import SkipTestWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.utils.estimator_checks import check_estimator
from sklearn.utils.validation import check_is_fitted, validate_data

from elmokit import ELMo
from elmokit.integrations import sklearn as ours
from elmokit.integrations.sklearn import ELMoVectorizer

SENTENCES = ["The bank lent money .", "He sat by the river bank .", "", "Rain ?", "a very old boat, and a new one."]
LABELED = [(f"{word} {number} times", word == "good") for number in range(6) for word in ("good", "bad")]


@pytest.fixture
def model(tiny_elmo):
    return ELMo.from_pretrained(tiny_elmo)


# ---- vectors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layers", ["average", "top", "slot", "sense", 0, 1])
@pytest.mark.parametrize("normalize", [False, True])
def test_vectors_are_those_of_encode(model, layers, normalize):
    vectorizer = ELMoVectorizer(model, layers=layers, normalize=normalize, batch_size=2)
    found = vectorizer.fit_transform(SENTENCES)
    expected = model.encode(SENTENCES, layers=layers, normalize=normalize, batch_size=2)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected)


def test_the_default_is_the_embedded_model():
    np.testing.assert_array_equal(ELMoVectorizer().transform(SENTENCES), ELMo.from_pretrained().encode(SENTENCES))


@pytest.mark.parametrize("normalize", [False, True])
def test_max_pooling_takes_the_largest_of_each_feature(model, normalize, monkeypatch):
    monkeypatch.setattr(ours, "SENTENCES_AT_ONCE", 2)
    found = ELMoVectorizer(model, layers=1, pooling="max", normalize=normalize).fit_transform(SENTENCES)
    assert found.dtype == np.float32
    for row, tokens in zip(found, model.embed(SENTENCES, layers=1), strict=True):
        expected = tokens.max(axis=0) if len(tokens) else np.zeros(16)
        if normalize and len(tokens):
            expected = expected / np.linalg.norm(expected)
        np.testing.assert_allclose(row, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "make",
    [np.array, lambda x: np.array(x, dtype=object), pd.Series, tuple, lambda x: pd.Series(x, dtype="string"), iter],
    ids=["strings", "objects", "series", "tuple", "string series", "iterator"],
)
def test_sentences_come_in_any_column(model, make):
    np.testing.assert_array_equal(ELMoVectorizer(model).transform(make(SENTENCES)), model.encode(SENTENCES))


def test_token_lists_are_taken_as_they_are_and_no_sentences_give_no_rows(model):
    tokens = [["The", "bank"], [], ["old boat"]]
    np.testing.assert_array_equal(ELMoVectorizer(model).transform(tokens), model.encode(tokens))
    for pooling in ("mean", "max"):
        assert ELMoVectorizer(model, pooling=pooling).fit_transform([]).shape == (0, 16)


def test_features_have_names_and_come_as_a_frame_where_asked(model):
    vectorizer = ELMoVectorizer(model).set_output(transform="pandas")
    frame = vectorizer.fit_transform(pd.Series(SENTENCES, index=list("abcde")))
    assert list(frame.columns) == [f"elmovectorizer{n}" for n in range(16)]
    assert list(frame.columns) == list(vectorizer.get_feature_names_out())
    assert list(frame.index) == list("abcde")
    assert clone(vectorizer).transform(SENTENCES).equals(frame.reset_index(drop=True))


def test_a_column_of_a_table_is_one_feature_group_among_others(model):
    table = pd.DataFrame({"text": SENTENCES, "length": [float(len(one)) for one in SENTENCES]})
    columns = ColumnTransformer([("elmo", ELMoVectorizer(model), "text"), ("rest", "passthrough", ["length"])])
    found = columns.fit_transform(table)
    np.testing.assert_allclose(found[:, :16], model.encode(SENTENCES))
    assert columns.get_feature_names_out()[-2:].tolist() == ["elmo__elmovectorizer15", "rest__length"]
    union = FeatureUnion([("mean", ELMoVectorizer(model)), ("max", ELMoVectorizer(model, pooling="max"))])
    assert union.fit_transform(SENTENCES).shape == (5, 32)


# ---- what scikit-learn asks of an estimator --------------------------------------------------------------------------


class SpelledRows(ELMoVectorizer):
    """Reads rows of numbers, since scikit-learn's checks have no other data: each row is a sentence of its numbers."""

    def fit(self, X, y=None):
        return super().fit(self._spell(validate_data(self, X)), y)

    def transform(self, X):
        return super().transform(self._spell(validate_data(self, X, reset=not hasattr(self, "n_features_in_"))))

    def _spell(self, X):
        return [[f"{number:.3f}" for number in row] for row in X]

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.one_d_array = tags.input_tags.string = False
        tags.input_tags.two_d_array = True
        return tags


@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_every_check_of_scikit_learn_is_passed_over_spelled_rows(tiny_elmo, pooling):
    results = check_estimator(SpelledRows(tiny_elmo, pooling=pooling), on_skip=None, on_fail=None)
    assert [(one["check_name"], one["exception"]) for one in results if one["status"] == "failed"] == []
    assert {one["check_name"] for one in results if one["status"] == "skipped"} <= {"check_array_api_input"}
    assert len(results) > 40


def test_sentences_themselves_are_not_the_data_that_scikit_learn_checks_with(tiny_elmo):
    with pytest.warns(SkipTestWarning, match="string=True"):
        results = check_estimator(ELMoVectorizer(tiny_elmo))
    assert {one["status"] for one in results} == {"passed"}
    check_is_fitted(ELMoVectorizer(tiny_elmo))  # nothing is learned, so nothing is missing


def test_parameters_are_read_and_set_by_name(model, tiny_elmo):
    vectorizer = ELMoVectorizer(tiny_elmo)
    assert vectorizer.get_params() == {
        "model": tiny_elmo, "layers": "average", "pooling": "mean", "normalize": False, "batch_size": None,
        "device": None,
    }  # fmt: skip
    vectorizer.set_params(layers="top", normalize=True)
    np.testing.assert_array_equal(
        vectorizer.transform(SENTENCES), model.encode(SENTENCES, layers="top", normalize=True)
    )


# ---- one model -------------------------------------------------------------------------------------------------------


@pytest.fixture
def loads(monkeypatch):
    """The names that were loaded, in order."""
    seen, real = [], ELMo.from_pretrained
    monkeypatch.setattr(ELMo, "from_pretrained", lambda name, **rest: seen.append(name) or real(name, **rest))
    ours._load.cache_clear()
    yield seen
    ours._load.cache_clear()


def test_a_model_is_loaded_when_it_is_needed_and_once_for_all_clones(tiny_elmo, loads):
    vectorizer = ELMoVectorizer(tiny_elmo)
    twins = [clone(vectorizer) for _ in range(3)]
    again = pickle.loads(pickle.dumps(vectorizer))
    assert loads == []
    found = [one.fit(SENTENCES).transform(SENTENCES) for one in [vectorizer, *twins, again]]
    assert loads == [tiny_elmo]
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


def test_a_model_folder_that_changes_is_read_again(model, tmp_path, loads):
    folder = tmp_path / "mine"
    model.save_pretrained(folder)
    before = ELMoVectorizer(folder).transform(SENTENCES)
    for parameter in model.bilm.parameters():
        parameter.data.mul_(1.1)
    model.save_pretrained(folder)
    after = ELMoVectorizer(folder).transform(SENTENCES)
    assert not np.allclose(before, after)
    np.testing.assert_array_equal(after, model.encode(SENTENCES))
    assert loads == [folder, folder]


def test_a_model_that_was_given_is_shared_by_clones_and_travels_in_a_pickle(model, tmp_path):
    pipeline = make_pipeline(ELMoVectorizer(model, layers=1), LogisticRegression())
    assert clone(pipeline)[0].model is model
    texts, labels = zip(*LABELED, strict=True)
    pipeline.fit(texts, labels)
    joblib.dump(pipeline, tmp_path / "pipeline.joblib")
    loaded = joblib.load(tmp_path / "pipeline.joblib")
    assert loaded[0].model is not model
    np.testing.assert_array_equal(loaded.predict_proba(texts), pipeline.predict_proba(texts))


def test_a_pickle_of_a_named_model_holds_the_name_alone(tiny_elmo):
    vectorizer = ELMoVectorizer(tiny_elmo)
    vectorizer.fit_transform(SENTENCES)
    assert len(pickle.dumps(vectorizer)) < 1000


def test_a_search_over_layers_runs_in_two_processes(tiny_elmo):
    texts, labels = zip(*LABELED, strict=True)
    pipeline = make_pipeline(ELMoVectorizer(tiny_elmo), LogisticRegression())
    grid = {"elmovectorizer__layers": [0, "average"], "elmovectorizer__pooling": ["mean", "max"]}
    search = GridSearchCV(pipeline, grid, cv=2, n_jobs=2).fit(texts, labels)
    alone = GridSearchCV(pipeline, grid, cv=2).fit(texts, labels)
    np.testing.assert_allclose(search.cv_results_["mean_test_score"], alone.cv_results_["mean_test_score"])
    assert search.best_score_ > 0.8


def test_a_pipeline_with_a_memory_encodes_what_a_fold_trains_on_once(tiny_elmo, tmp_path, monkeypatch):
    counts, real = [], ELMo.encode

    def encode(self, sentences, **rest):
        counts.append(len(sentences))
        return real(self, sentences, **rest)

    monkeypatch.setattr(ELMo, "encode", encode)
    texts, labels = zip(*LABELED, strict=True)
    pipeline = make_pipeline(ELMoVectorizer(tiny_elmo), LogisticRegression(), memory=str(tmp_path))
    GridSearchCV(pipeline, {"logisticregression__C": [0.1, 1, 10]}, cv=3, refit=False).fit(texts, labels)
    assert counts.count(8) == 3  # what a fold trains on; scoring its other 4 sentences encodes them each time
    assert counts.count(4) == 9


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": 7}, "a number from 0 to 2, not 7"),
        ({"layers": "all"}, "not 'all', which is for embed"),
        ({"layers": "all", "pooling": "max"}, "not 'all', which is for embed"),
        ({"pooling": "median"}, 'pooling must be "mean" or "max", not \'median\''),
        ({"batch_size": 0}, "batch_size must be at least 1, not 0"),
        ({"model": "no/such/model"}, "no model 'no/such/model'"),
        ({"device": "cpu"}, r"device='cpu' is for a model that is loaded by name"),
    ],
)
def test_a_bad_parameter_is_named_by_fit(model, changes, message):
    vectorizer = ELMoVectorizer(model).set_params(**changes)
    with pytest.raises(ValueError, match=message):
        vectorizer.fit(SENTENCES)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("one string", "got one string"),
        (pd.DataFrame({"text": SENTENCES}), r"X has the shape \(5, 1\): .* name the column as a string"),
        (np.array([["a", "b"], ["c", "d"]]), r"X has the shape \(2, 2\)"),
        (np.array("text"), r"X has the shape \(\)"),
        (["fine", None], r"sentences\[1\] is None"),
        (pd.Series(["fine", float("nan")]), r"sentences\[1\] is nan"),
    ],
)
def test_what_is_not_a_list_of_sentences_is_named(model, given, message):
    with pytest.raises(ValueError, match=message):
        ELMoVectorizer(model).transform(given)


def test_without_scikit_learn_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    monkeypatch.delitem(sys.modules, "elmokit.integrations.sklearn")
    with pytest.raises(ImportError, match=r'sklearn is not installed: pip install "elmokit\[sklearn\]"'):
        importlib.import_module("elmokit.integrations.sklearn")


@pytest.mark.parametrize("pooling", ["sum", None, np.array([])])
def test_another_pooling_is_named(model, pooling):
    with pytest.raises(ValueError, match='pooling must be "mean" or "max", not '):
        ELMoVectorizer(model, pooling=pooling).fit_transform(SENTENCES)
