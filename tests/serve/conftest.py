"""Fixtures of the tests of the server."""

import logging
import os
import shutil

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


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "tiny"
    make_model().save_pretrained(path)
    return path


@pytest.fixture
def loggers():
    """What `serve` does to the log is undone."""
    kept = [
        (logger, logger.handlers, logger.propagate, logger.level)
        for logger in map(logging.getLogger, ("elmokit", "uvicorn"))
    ]
    yield
    for logger, handlers, propagate, level in kept:
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def browser():
    """Chromium."""
    playwright = pytest.importorskip("playwright.sync_api", reason='needs playwright: pip install "elmokit[browser]"')
    names = ("chromium", "chromium-browser", "google-chrome")
    path = os.environ.get("ELMOKIT_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if path is None:
        pytest.skip("no Chromium found: install it (Debian: apt-get install chromium) or set ELMOKIT_CHROMIUM")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()
