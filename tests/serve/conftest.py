"""Fixtures of the tests of the server."""

import pytest
from served import Capitals, Slow, make_model, serving


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
