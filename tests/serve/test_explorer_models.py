"""The explorer of a server with several models: which one is shown, and Chinese text."""

from urllib.parse import urlencode

import numpy as np
import pytest
from served import CORPUS, WORDS, Capitals, make_model, serving

from elmokit.index import WordIndex

playwright = pytest.importorskip("playwright.sync_api", reason='needs playwright: pip install "elmokit[browser]"')
expect = playwright.expect

TEXT = "The bank lent money.\nHe sat by the bank of the river.\nThe river bank."
CHINESE_TEXT = "我去银行。\n他在 银行工作，银行很大。\n银子不行"
CHINESE_WORDS = [*WORDS[:3], *"。，我去他在工作很大银行子不的"]


@pytest.fixture(scope="module")
def chinese():
    return make_model(tokenizer="han", words=CHINESE_WORDS, seed=1)


@pytest.fixture(scope="module")
def server(model, chinese, tmp_path_factory):
    store = WordIndex.create(tmp_path_factory.mktemp("stores") / "index", model)
    store.add(model, [sentence.split() for sentence in CORPUS])
    with serving(
        model,
        name="en",
        tasks={"capitals": Capitals()},
        index=store,
        models={"zh": chinese, "other": make_model(seed=2)},
    ) as client:
        yield client


@pytest.fixture
def open_page(open_address, server):
    return lambda view="", **options: open_address(f"{server.base_url}/{view}", **options)


def view(panel, **fields):
    return f"#{panel}?{urlencode(fields)}"


def cosines(page, caption):
    rows = page.locator(f"#context table:has(caption:text-is('{caption}')) tbody tr")
    return np.array([[float(cell) for cell in row.split("\t")[1:]] for row in rows.all_inner_texts()])


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
    first = cosines(page, "Sense: slot and surroundings")
    np.testing.assert_allclose(first, expected_cosines(model, sentences, "bank", "sense"), atol=6e-4)
    chooser.select_option("other")
    page.wait_for_url("**/?model=other#context?*")
    drawn(page)
    expect(page.locator("#context textarea")).to_have_value(TEXT)
    second = cosines(page, "Sense: slot and surroundings")
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


def test_a_chinese_model_begins_with_chinese_and_finds_words_of_several_characters(open_page, chinese):
    page = drawn(open_page())
    page.get_by_role("combobox", name="Model").select_option("zh")
    page.wait_for_url("**/?model=zh*")
    drawn(page)
    expect(page.locator("#context input[name=word]")).to_have_value("苹果")
    expect(page.locator("#context .backdrop mark")).to_have_text(["苹果"] * 6)
    page.locator("#context textarea").fill(CHINESE_TEXT)
    page.locator("#context input[name=word]").fill("银行")
    expect(page.locator("#context .backdrop mark")).to_have_text(["银行"] * 3)
    assert page.locator("#context .heat .row-name").all_inner_texts() == [
        "1\n我去银行。",
        "2\n他在银行工作，银行很大 …",
        "3\n… 在银行工作，银行很大。",
    ]
    page.locator("#context summary").click()
    page.wait_for_selector("#context .tables table")
    words = [["我", "去", "银行", "。"], ["他", "在", "银行", *"工作，", "银行", *"很大。"], list("银子不行")]
    for caption, layers in (("Layer 1", 1), ("Sense: slot and surroundings", "sense")):
        np.testing.assert_allclose(
            cosines(page, caption), expected_cosines(chinese, words, "银行", layers), atol=6e-4, err_msg=caption
        )
    page.locator("#context input[name=word]").fill("银")
    expect(page.locator("#context .backdrop mark")).to_have_text(["银"] * 4)


def test_surprise_and_substitutes_of_chinese_text(open_page, chinese):
    page = open_page("?model=zh" + view("next", text="我去银行。", at="0,3"))
    page.wait_for_selector("#next .blank[aria-busy=false] .words li")
    assert page.locator("#next .strip .token").all_inner_texts() == ["start", *"我去银行。", "end"]
    best = chinese.substitutes(list("我去银行。"), position=3, k=1)[0].word
    page.locator("#next .words button", has_text=best).first.click()
    expect(page.locator("#next textarea")).to_have_value(f"我去银{best}。")


@pytest.mark.parametrize(("scheme", "width"), [("light", 1440), ("dark", 360)])
def test_the_page_with_a_chooser_is_accessible_and_fits(open_page, scheme, width):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python")
    page = drawn(open_page("?model=zh", color_scheme=scheme, viewport={"width": width, "height": 800}))
    found = axe.Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
