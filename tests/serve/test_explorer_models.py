"""The explorer of a server with several models: which one is asked, and which examples it begins with."""

import numpy as np
import pytest
from pages import numbers, view
from served import Capitals, make_model, serving

playwright = pytest.importorskip("playwright.sync_api", reason='needs playwright: pip install "elmokit[browser]"')
expect = playwright.expect

TEXT = "The bank lent money.\nHe sat by the bank of the river.\nThe river bank."


@pytest.fixture(scope="module")
def server(model, index):
    chinese = make_model(tokenizer="han", words="。，我他坐在河边的", seed=1)
    further = {"zh": chinese, "other": make_model(seed=2)}
    with serving(model, name="en", tasks={"capitals": Capitals()}, index=index, models=further) as client:
        yield client


@pytest.fixture
def open_page(open_address, server):
    return lambda view="", **options: open_address(f"{server.base_url}/{view}", **options)


def expected_cosines(model, sentences, word, layers):
    embedded = zip(sentences, model.embed(sentences, layers=layers), strict=True)
    vectors = np.stack([rows[i] for tokens, rows in embedded for i, token in enumerate(tokens) if token == word])
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit @ unit.T


def drawn(page):
    page.wait_for_selector("#context[aria-busy=false] .map .dot")
    return page


def test_the_page_asks_the_model_that_is_chosen_about_the_same_text(open_page, model):
    page = drawn(open_page(view("context", text=TEXT, word="bank", advanced=1)))
    chooser = page.get_by_role("combobox", name="Model")
    assert chooser.locator("option").all_inner_texts() == ["en", "zh", "other"]
    expect(chooser).to_have_value("en")
    expect(page.get_by_role("tab")).to_have_count(4)
    sentences = [model.tokenizer(line) for line in TEXT.splitlines()]
    first = numbers(page, "Sense: slot and surroundings")
    np.testing.assert_allclose(first, expected_cosines(model, sentences, "bank", "sense"), atol=6e-4)
    chooser.select_option("other")
    page.wait_for_url("**/?model=other#context?*")
    drawn(page)
    expect(page.locator("#context textarea")).to_have_value(TEXT)
    second = numbers(page, "Sense: slot and surroundings")
    np.testing.assert_allclose(second, expected_cosines(make_model(seed=2), sentences, "bank", "sense"), atol=6e-4)
    assert np.abs(first - second).max() > 0.01
    # tasks and the index belong to the first model
    expect(page.get_by_role("tab")).to_have_text(["Word in context", "What comes next"])
    page.get_by_role("combobox", name="Model").select_option("en")
    page.wait_for_url("**/?model=en#context?*")
    drawn(page).get_by_role("tab", name="Tasks").click()
    page.wait_for_selector("#tasks[aria-busy=false] .answers li")


def test_a_model_that_the_server_does_not_have_is_told(open_page):
    page = drawn(open_page("?model=gone", errors_expected=True))
    expect(page.locator("#facts")).to_contain_text("there is no model “gone”")
    expect(page.get_by_role("combobox", name="Model")).to_have_value("en")


def test_examples_are_of_the_language_of_the_chosen_model(open_page):
    page = drawn(open_page())
    word, chooser = page.locator("#context input[name=word]"), page.get_by_role("combobox", name="Model")
    expect(word).to_have_value("cell")
    chooser.select_option("zh")
    expect(word).to_have_value("苹果")
    expect(page.locator("#context .backdrop mark")).to_have_text(["苹果"] * 6)
    page.get_by_role("tab", name="What comes next").click()
    expect(page.locator("#next .blank h2")).to_have_text("Words in place of “河边”")
    page.wait_for_function("location.hash.startsWith('#next?')")
    chooser.select_option("en")
    expect(page.locator("#next .blank h2")).to_have_text("Words in place of “bank”")
    page.get_by_role("tab", name="Word in context").click()
    expect(word).to_have_value("cell")


@pytest.mark.parametrize(("scheme", "width"), [("light", 1440), ("dark", 360)])
def test_the_page_with_a_chooser_is_accessible_and_fits(open_page, scheme, width):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python")
    page = drawn(open_page("?model=zh", color_scheme=scheme, viewport={"width": width, "height": 800}))
    found = axe.Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
