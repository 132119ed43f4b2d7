"""Fixtures of the tests of the server."""

import pytest
from served import CORPUS, Capitals, Slow, make_model, serving

from elmokit.index import WordIndex


@pytest.fixture(scope="module")
def model():
    return make_model()


@pytest.fixture(scope="module")
def client(model):
    with serving(model, name="tiny", tasks={"capitals": Capitals()}) as client:
        yield client


@pytest.fixture
def slow():
    task = Slow()
    yield task
    task.gate.set()


@pytest.fixture(scope="module")
def index(model, tmp_path_factory):
    store = WordIndex.create(tmp_path_factory.mktemp("store") / "index", model)
    store.add(model, [sentence.split() for sentence in CORPUS])
    return store
