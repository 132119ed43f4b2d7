"""`elmokit export --web` in a real browser: the page without a server shows what the library computes.

Needs onnxruntime-web, which is not part of elmokit: `npm install onnxruntime-web`, or its folder in ELMOKIT_ORT_WEB.
"""

import contextlib
import functools
import http.server
import math
import os
import re
import threading

import numpy as np
import pytest
from pages import numbers, view
from served import make_model

from elmokit import ELMo
from elmokit.text import tokenize

playwright = pytest.importorskip("playwright.sync_api", reason='needs playwright: pip install "elmokit[browser]"')
pytest.importorskip("onnx", reason='needs onnx: pip install "elmokit[onnx]"')
web = pytest.importorskip("elmokit.integrations.web")
expect = playwright.expect

TEXT = "The bank lent money.\nHe sat by the bank of the river.\nThe river bank.\na bank, a unheard BANK"


@pytest.fixture(scope="module")
def runtime():
    try:
        return web.find_runtime(os.environ.get("ELMOKIT_ORT_WEB"))
    except ValueError as error:
        pytest.skip(str(error))


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Files of a folder, and no line for each request."""

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def files_at(folder):
    """The address of a plain web server for a folder."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def static(tmp_path_factory, runtime, model):
    folder = tmp_path_factory.mktemp("web")
    web.export_web(model, folder, name="tiny", runtime=runtime)
    with files_at(folder) as base:
        yield base


@pytest.fixture
def open_page(open_address, static):
    """Opens a view of the static page."""
    return lambda view="", **options: open_address(f"{static}/{view}", **options)


def check_context(page, model, text, word):
    page.wait_for_selector("#context[aria-busy=false] .map .dot")
    sentences = [tokenize(line) for line in text.splitlines()]
    for caption, layers in (
        ("Layer 0: spelling only", 0),
        ("Layer 1", 1),
        ("Layer 2", 2),
        ("Slot: what the context expects", "slot"),
        ("Sense: slot and surroundings", "sense"),
    ):
        vectors = np.stack(
            [
                vector
                for tokens, rows in zip(sentences, model.embed(sentences, layers=layers), strict=True)
                for token, vector in zip(tokens, rows, strict=True)
                if token.lower() == word
            ]
        )
        unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        np.testing.assert_allclose(numbers(page, caption), unit @ unit.T, atol=1e-3)


def check_next(page, model, text, place):
    """Surprise and substitutes of the first sentence."""
    page.wait_for_selector("#next .blank[aria-busy=false] .words li")
    first = text.splitlines()[0]
    (scores,) = model.log_probs([first])
    rows = page.locator("#next .strip").first.locator("button").all_inner_texts()
    shown = np.array([[float(part) for part in re.findall(r"[→←] (\S+)", row)] for row in rows])
    np.testing.assert_allclose(shown, np.stack([scores.forward, scores.backward], axis=1) / -math.log(2), atol=0.06)
    figures = model.perplexity([first])
    summary = page.locator("#next .strips > li").first.locator("p").inner_text()
    expected = [math.log2(figures.forward), math.log2(figures.backward), figures.known]
    assert list(map(float, re.findall(r"[\d.]*\d", summary))) == pytest.approx(expected, rel=0.01, abs=0.51)
    expected = model.substitutes(tokenize(first), position=place, k=12, keep_word=True, num_read=0)
    likely = [one for one in expected if math.exp(one.log_prob) > 0.0006 or one.word == tokenize(first)[place]]
    words = page.locator("#next .words .word").all_inner_texts()
    assert words[: len(likely) - 1] == [one.word for one in likely][: len(likely) - 1]
    percent = page.locator("#next .words .number").first.inner_text()
    assert float(percent.rstrip("%")) == pytest.approx(100 * math.exp(expected[0].log_prob), abs=0.6)


@pytest.fixture(scope="module")
def stored(model, tmp_path_factory):
    """The model as the page has it: rounded to int8."""
    folder = tmp_path_factory.mktemp("int8") / "model"
    model.save_pretrained(folder, dtype="int8")
    return ELMo.from_pretrained(folder)


def test_vectors_senses_surprise_and_substitutes_are_those_of_the_library(open_page, stored):
    page = open_page(view("context", text=TEXT, word="bank", advanced=1))
    check_context(page, stored, TEXT, "bank")
    expect(page.locator("#facts")).to_contain_text("tiny · 3 layers of 16 dimensions, 15 words")
    expect(page.get_by_role("tab")).to_have_text(["Word in context", "What comes next"])
    expect(page.get_by_role("link", name="HTTP interface")).to_have_count(0)
    page.goto(page.url.split("#")[0] + view("next", text=TEXT, at="0,1"))
    check_next(page, stored, TEXT, 1)


def test_the_page_works_offline_once_it_is_loaded(open_page, stored):
    page = open_page(view("context", text=TEXT, word="bank", advanced=1))
    page.wait_for_selector("#context[aria-busy=false] .map .dot")
    page.get_by_role("tab", name="What comes next").click()  # the output layer is loaded after the first answer
    page.wait_for_selector("#next .words li")
    page.context.set_offline(True)
    page.get_by_role("tab", name="Word in context").click()
    other = "The bank\nthe river bank\na bank lent money"
    page.locator("#context textarea").fill(other)
    expect(page.locator("#context .backdrop mark")).to_have_count(3)
    check_context(page, stored, other, "bank")


@pytest.mark.parametrize(("scheme", "width"), [("light", 1440), ("dark", 800), ("dark", 360)])
def test_the_static_page_is_accessible_and_fits(open_page, scheme, width):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python")
    page = open_page(color_scheme=scheme, viewport={"width": width, "height": 800})
    page.wait_for_selector("#context[aria-busy=false] .map .dot")
    for tab in ("What comes next", "Word in context"):
        page.get_by_role("tab", name=tab).click()
        found = axe.Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_model_file_that_is_missing_is_told(browser, tmp_path, runtime):
    web.export_web(make_model(), tmp_path, runtime=runtime)
    (tmp_path / "model" / "bilm.onnx").unlink()
    with files_at(tmp_path) as base:
        page = browser.new_page()
        page.goto(f"{base}/")
        expect(page.locator("#facts.error")).to_contain_text("bilm.onnx could not be loaded: 404")
        expect(page.get_by_role("tab")).to_have_count(0)
        page.close()


@pytest.mark.slow
def test_the_english_model_runs_in_a_folder_of_less_than_60_megabytes(browser, tmp_path, runtime):
    english = ELMo.from_pretrained()
    written = web.export_web(english, tmp_path, runtime=runtime)
    assert written.num_bytes < 60e6
    with files_at(tmp_path) as base:
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.set_default_timeout(60_000)
        page.goto(f"{base}/" + view("context", advanced=1))
        expect(page.locator("#loading")).to_contain_text("model")
        page.wait_for_selector("#context .map .dot")
        check_context(page, english, page.locator("#context textarea").input_value(), "cell")
        text = "He sat on the bank of the river and watched the water."
        page.goto(f"{base}/" + view("next", text=text, at="0,4"))
        check_next(page, english, text, 4)
        page.close()
