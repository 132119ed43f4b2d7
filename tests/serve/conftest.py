"""Fixtures of the tests of the server."""

import logging
import re

import pytest

pytest.importorskip("orjson", reason="the extra elmokit[serve] is not installed")

from chromium import FLAGS, MISSING, find_chromium
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


@pytest.fixture(scope="module")
def browser():
    """Chromium."""
    playwright = pytest.importorskip("playwright.sync_api", reason='needs playwright: pip install "elmokit[browser]"')
    path = find_chromium()
    if path is None:
        pytest.skip(MISSING)
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def open_address(browser):
    """Opens an address; at the end of the test no page may have written an error or asked another server."""
    contexts, problems, asked, opened = [], [], set(), set()

    def host(address):
        return re.match(r"\w+://[^/]*", address)[0]

    def open_page(address, *, errors_expected=False, **options):
        context = browser.new_context(**{"viewport": {"width": 1440, "height": 900}, **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        if not errors_expected:
            page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: asked.add(host(request.url)))
        opened.add(host(address))
        page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert problems == []
    assert asked <= opened
