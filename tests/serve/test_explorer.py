"""The explorer in a real browser: what it shows is what the library computes, and the page is accessible."""

import itertools
import math
import re

import numpy as np
import pytest
import task_examples
import test_coreference
import test_entailment
import test_questions
import test_roles
from pages import numbers, view
from served import make_model, serving

from elmokit.index import WordIndex
from elmokit.inference.grouping import group
from elmokit.inference.senses import find_occurrences
from elmokit.serve.settings import Settings
from elmokit.tasks import load_task, train
from elmokit.text import TREEBANK, batch_to_ids, tokenize

playwright = pytest.importorskip("playwright.sync_api", reason='needs playwright: pip install "elmokit[browser]"')
expect = playwright.expect

PANELS = ["context", "next", "neighbours", "tasks"]
TEXT = "The bank lent money.\nHe sat by the bank of the river.\nThe river bank."


class Chains:
    """Stands in for coreference: mentions inside one another."""

    def predict(self, texts):
        spans = [[{"start": 0, "end": 3}, {"start": 4, "end": 5}], [{"start": 2, "end": 3}]]
        return [{"tokens": text.split(), "sentence_lengths": [5], "clusters": spans} for text in texts]


UNIVERSAL_TAGS = [
    *("ADJ", "ADP", "ADV", "AUX", "CCONJ", "DET", "INTJ", "NOUN", "NUM"),
    *("PART", "PRON", "PROPN", "PUNCT", "SCONJ", "SYM", "VERB", "X"),
]


class Tags:
    """Stands in for a tagger of parts of speech: every tag once."""

    def predict(self, texts):
        return [{"tokens": UNIVERSAL_TAGS, "tags": UNIVERSAL_TAGS} for _ in texts]


# what is typed into each trained task: sentences and texts that its ten examples have taught it
TYPED = {
    "ner": {"text": "Maria Schmidt flew to Rome .\nnothing happened here today"},
    "pos": {"text": "from Lima to Oslo"},
    "roles": {"text": "Ada wrote a letter\nMaria said Ada wrote it"},
    "coreference": {"text": "Ada met Max . She greeted him ."},
    "pronouns": {"text": "Ada met Eva before she left Rome."},
    "sentiment": {"text": "Rome is far from Oslo .\nOslo"},
    "entailment": {"premise": "Two dogs run in the snow", "hypothesis": "The dogs are asleep"},
    "questions": {"context": "Ada was born in London in 1815. She wrote notes.", "question": "Where was Ada born?"},
}


@pytest.fixture(scope="module")
def tasks(tmp_path_factory, tiny_elmo):
    """Every task, trained for seconds and loaded from its folder; and one stand-in."""
    folder = tmp_path_factory.mktemp("tasks")
    files = {
        **{
            n: task_examples.write_examples(n, folder / f"{n}{task_examples.SUFFIX[n]}")
            for n in ("ner", "pos", "sentiment")
        },
        "roles": test_roles.write_examples(folder / "roles_conll"),
        "questions": test_questions.write_squad(folder / "questions.json"),
        "coreference": test_coreference.write_documents(folder / "coreference_conll"),
        "pronouns": test_coreference.write_passages(folder / "pronouns.tsv"),
        "entailment": test_entailment.write_snli(folder / "entailment.jsonl"),
    }

    def trained(name):
        config = task_examples.small_config(
            name, files[name], folder / name, tiny_elmo,
            elmo_at="none", learning_rate=0.02, epochs=15, patience=15, rate_decay=1.0,
        )  # fmt: skip
        return load_task(train(config).folder)

    return {**{name: trained(name) for name in TYPED}, "chains": Chains(), "tags": Tags()}


@pytest.fixture(scope="module")
def server(model, index, tasks):
    with serving(model, name="tiny", tasks=tasks, index=index) as client:
        yield client


@pytest.fixture
def open_page(open_address, server):
    """Opens a view of the server, or of another one."""

    def open_view(view="", *, base=None, **options):
        return open_address(
            f"{base or server.base_url}/{view}", **{"viewport": {"width": 1100, "height": 900}, **options}
        )

    return open_view


def settled(page, panel="context"):
    """Wait until the panel has drawn what it was asked for."""
    page.wait_for_selector(f"#{panel}[aria-busy=false]")
    return page


def show_tables(page):
    page.locator("#context .advanced > summary").click()
    page.wait_for_selector("#context .kept:not(:empty)")  # drawn after the event that they are open


def occurrences(model, text, word):
    """(L+1, n, 2P): the vectors of every occurrence of a word, by the library."""
    sentences = [tokenize(line) for line in text.splitlines()]
    found = [
        layers[:, place]
        for tokens, layers in zip(sentences, model.embed(sentences, layers="all"), strict=True)
        for place, token in enumerate(tokens)
        if token.lower() == word
    ]
    return np.stack(found, axis=1)


def occurrences_in(model, text, word, view_name):
    """(n, 2P): the vectors of every occurrence of a word by a view."""
    sentences = [tokenize(line) for line in text.splitlines()]
    return np.stack(
        [
            vectors[place]
            for tokens, vectors in zip(sentences, model.embed(sentences, layers=view_name), strict=True)
            for place, token in enumerate(tokens)
            if token.lower() == word
        ]
    )


def cosines(vectors):
    unit = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    return unit @ unit.T


def mixed(layers, weights, gamma):
    shares = np.exp(weights) / np.exp(weights).sum()
    return gamma * np.einsum("l,lnp->np", shares, layers)


# ---- word in context -------------------------------------------------------------------------------------------------


def senses(page):
    """The found sense of each occurrence, as the class of its mark in the text, its dot and its row."""
    number = "nodes => nodes.map(node => Number(/sense-(\\d)/.exec(node.getAttribute('class'))[1]))"
    places = ("#context .backdrop mark", "#context .map .dot", "#context .heat tbody .badge")
    return [page.locator(place).evaluate_all(number) for place in places]


def ranges(cosine, labels):
    """(lowest, highest) cosine of pairs with the same label and of the other pairs."""
    pairs = list(itertools.combinations(range(len(labels)), 2))
    values = [[cosine[a, b] for a, b in pairs if (labels[a] == labels[b]) == same] for same in (True, False)]
    return [(min(one), max(one)) for one in values]


def range_text(low, high):
    return f"{low:.2f}" if f"{low:.2f}" == f"{high:.2f}" else f"{low:.2f}–{high:.2f}"


def test_the_page_opens_with_an_example_and_its_finding_in_words(open_page, model):
    page = settled(open_page())
    expect(page.locator("#facts")).to_contain_text("tiny · 3 layers of 16 dimensions, 15 words")
    text = page.locator("#context textarea").input_value()
    layers = occurrences(model, text, "cell")
    assert layers.shape[1] == 6
    assert page.locator("#context .backdrop mark").all_text_contents() == ["cell"] * 6
    sense = cosines(occurrences_in(model, text, "cell", "sense"))
    same, other = ranges(sense, [0, 0, 0, 1, 1, 1])  # as a reader sees them
    figures = f"same sense {range_text(*same)}, other sense {range_text(*other)}; by spelling 1.00"
    expect(page.locator("#context .finding .figures")).to_have_text(figures)
    np.testing.assert_allclose(numbers(page, "Cosines by sense"), sense, atol=6e-3)
    show_tables(page)
    np.testing.assert_allclose(numbers(page, "The mix"), cosines(layers.mean(axis=0)), atol=6e-4)
    np.testing.assert_allclose(numbers(page, "Layer 0: spelling only"), np.ones((6, 6)), atol=6e-4)
    for number in (1, 2):
        np.testing.assert_allclose(numbers(page, f"Layer {number}"), cosines(layers[number]), atol=6e-4)
    for caption, name in (("Slot: what the context expects", "slot"), ("Sense: slot and surroundings", "sense")):
        vectors = occurrences_in(model, text, "cell", name)
        np.testing.assert_allclose(numbers(page, caption), cosines(vectors), atol=6e-4)
    # something is painted: a chart that failed would leave its canvas empty
    for canvas in page.locator("#context canvas").all():
        colours = canvas.evaluate(
            "c => new Set(new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer)).size"
        )
        assert colours > 3


def test_the_senses_are_those_of_the_library_in_text_map_and_table_alike(open_page, model):
    text = "The bank lent money.\nHe sat by the bank of the river.\nThe river bank.\na bank\nShe lent the bank money ."
    page = settled(open_page(view("context", text=text, word="bank")))
    expected = model.senses("bank", text.splitlines()).labels.tolist()
    marks, dots, rows = senses(page)
    assert marks == dots == rows
    assert (np.equal.outer(marks, marks) == np.equal.outer(expected, expected)).all()


def test_groups_are_those_of_the_library(open_page):
    page = settled(open_page())
    rng = np.random.default_rng(3)
    for num in (1, 2, 3, 5, 9, 17, 40):
        vectors = rng.standard_normal((num, 8)) + 2 * rng.standard_normal((3, 8))[rng.integers(3, size=num)]
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        script = "async (rows) => (await import('/js/senses.js')).group(rows)"
        labels = page.evaluate(script, (vectors @ vectors.T).tolist())
        expected = group(vectors.astype(np.float32)).labels
        assert (np.equal.outer(labels, labels) == np.equal.outer(expected, expected)).all(), num


def dots(page):
    """(n, 2): where the dots are on the map, in pixels."""
    places = page.locator("#context .map .dot").evaluate_all("dots => dots.map(dot => dot.getAttribute('transform'))")
    return np.array([[float(part) for part in re.findall(r"[\d.]+", place)] for place in places])


def test_the_slider_moves_the_dots_from_spelling_to_sense(open_page, model):
    page = settled(open_page(view("context", text=TEXT, word="bank"), reduced_motion="reduce"))
    sense = dots(page)
    distances = np.linalg.norm(sense[:, None] - sense[None], axis=-1)
    # three vectors lie in a plane: the distances on the map are those of the vectors, by one scale
    expected = np.sqrt(np.maximum(2 - 2 * cosines(occurrences_in(model, TEXT, "bank", "sense")), 0))
    scale = distances[0, 1] / expected[0, 1]
    np.testing.assert_allclose(distances, expected * scale, atol=0.5)
    page.get_by_role("button", name=re.compile("^Spelling")).click()
    expect(page.locator("#context .heat caption")).to_have_text("Cosines by spelling")
    assert np.ptp(dots(page), axis=0).max() < 0.1  # one word, one place
    for caption, layer in (("Cosines by layer 1", 1), ("Cosines by layer 2", 2)):
        page.locator("input[name=view]").press("ArrowRight")
        expect(page.locator("#context .heat caption")).to_have_text(caption)
        np.testing.assert_allclose(numbers(page, caption), cosines(occurrences(model, TEXT, "bank")[layer]), atol=6e-3)
        layer_dots = dots(page)
        distances = np.linalg.norm(layer_dots[:, None] - layer_dots[None], axis=-1)
        expected = np.sqrt(np.maximum(2 - 2 * cosines(occurrences(model, TEXT, "bank")[layer]), 0))
        np.testing.assert_allclose(distances, expected * scale, atol=0.5)
    before = dots(page)
    page.locator("input[name=view]").fill("2.5")
    np.testing.assert_allclose(dots(page), (before + sense) / 2, atol=0.02)
    page.get_by_role("button", name="Move from spelling to sense").click()
    expect(page.locator("input[name=view]")).to_have_value("3")
    np.testing.assert_allclose(dots(page), sense, atol=0.02)


def test_an_example_is_one_click_and_a_senseless_one_says_so(open_page):
    page = settled(open_page())
    for word in ("bank", "crane"):
        page.get_by_role("button", name=word, exact=True).click()
        expect(page.locator("#context input[name=word]")).to_have_value(word)
        expect(page.locator("#context .finding")).to_contain_text(f"“{word}”")
        expect(page.locator("#context .chip[aria-pressed=true]")).to_have_text([word])
        expect(page.locator("#context .remark")).to_contain_text("A reader sees two")
    page.locator("#context textarea").fill("a crane by the river\nthe crane")
    expect(page.locator("#context .chip[aria-pressed=true]")).to_have_count(0)


def test_the_sliders_change_the_mix_without_a_request(open_page, model):
    page = settled(open_page(view("context", text=TEXT, word="bank", source="mix")))
    show_tables(page)
    layers = occurrences(model, TEXT, "bank")
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    before = numbers(page, "The mix")
    page.locator("#weight-0").fill("-3")
    page.locator("#weight-2").fill("2.5")
    expected = cosines(mixed(layers, [-3, 0, 2.5], 1))
    assert np.abs(expected - before).max() > 0.01
    np.testing.assert_allclose(numbers(page, "The mix"), expected, atol=6e-4)
    expect(page.locator("output[for=weight-2]")).to_have_text("92%")
    page.locator("#gamma").fill("2")
    np.testing.assert_allclose(numbers(page, "The mix"), expected, atol=6e-4)
    page.locator("select[name=measure]").select_option("dot")
    doubled = mixed(layers, [-3, 0, 2.5], 2)
    np.testing.assert_allclose(numbers(page, "The mix"), doubled @ doubled.T, atol=6e-4)
    page.get_by_role("button", name="Layer 1", exact=True).click()
    np.testing.assert_allclose(numbers(page, "The mix"), layers[1] @ layers[1].T, atol=2e-3)
    assert asked == []


@pytest.mark.parametrize("source", ["slot", "sense", "1"])
def test_the_scatter_plot_shows_the_vectors_that_are_chosen(open_page, model, source):
    page = settled(open_page(view("context", text=TEXT, word="bank", source=source, advanced=1)))
    expect(page.locator("select[name=source]")).to_have_value(source)
    sentences = [tokenize(line) for line in TEXT.splitlines()]
    vectors = np.concatenate(model.embed(sentences, layers=int(source) if source.isdigit() else source))
    variances = np.linalg.svd(vectors - vectors.mean(axis=0), compute_uv=False) ** 2
    kept = 100 * variances[:2].sum() / variances.sum()
    shown = re.fullmatch(r"(\d+)% of the variance of (\d+) tokens", page.locator("#context .kept").inner_text())
    assert int(shown[1]) == pytest.approx(kept, abs=0.6)
    assert int(shown[2]) == len(vectors)


def test_words_are_typed_and_picked(open_page, model):
    page = settled(open_page(view("context", text=TEXT, word="bank")))
    show_tables(page)
    place = page.locator("#context textarea").evaluate(
        """area => {  // where the word "river" is: that of the same text behind the area
            const text = document.querySelector("#context .backdrop");
            const walker = document.createTreeWalker(text, NodeFilter.SHOW_TEXT);
            while (walker.nextNode() && !walker.currentNode.data.includes("river"));
            const range = document.createRange();
            const start = walker.currentNode.data.indexOf("river");
            range.setStart(walker.currentNode, start);
            range.setEnd(walker.currentNode, start + 5);
            const [own, box] = [range.getBoundingClientRect(), area.getBoundingClientRect()];
            return { x: own.x + own.width / 2 - box.x, y: own.y + own.height / 2 - box.y };
        }"""
    )
    page.locator("#context textarea").dblclick(position=place)
    expect(page.locator("#context input[name=word]")).to_have_value("river")
    np.testing.assert_allclose(numbers(page, "Layer 2"), cosines(occurrences(model, TEXT, "river")[2]), atol=6e-4)
    page.locator("#context input[name=word]").fill("lent")
    expect(page.locator("#context .finding")).to_have_text("“lent” occurs only once.")
    expect(page.locator("#context .map")).to_be_hidden()
    expect(page.locator("#context .heat")).to_be_hidden()
    page.locator("#context input[name=word]").fill("tree")
    expect(page.locator("#context .finding")).to_have_text("“tree” is not in these sentences.")
    expect(page.locator("#context .map")).to_be_hidden()
    page.locator("#context input[name=word]").fill("bank")
    longer = TEXT + "\na bank, a BANK"
    page.locator("#context textarea").fill(longer)
    expect(page.locator("#context .backdrop mark")).to_have_count(5)
    np.testing.assert_allclose(numbers(page, "Layer 1"), cosines(occurrences(model, longer, "bank")[1]), atol=6e-4)


def test_the_plane_is_that_of_the_principal_components(open_page):
    page = settled(open_page())
    rng = np.random.default_rng(0)
    layers = (rng.standard_normal((3, 40, 12)) * np.linspace(3, 0.5, 12)).astype(np.float32)
    found = page.evaluate(
        """async ([values, weights]) => {
            const { innerProducts, mix, principalPlane, softmax } = await import("/js/vectors.js");
            const products = innerProducts({ layers: 3, tokens: 40, width: 12, values: Float32Array.from(values) });
            return principalPlane(mix(products, softmax(weights), 1.5), 40, null);
        }""",
        [layers.ravel().tolist(), [0.5, -1, 2]],
    )
    vectors = mixed(layers, [0.5, -1, 2], 1.5)
    left, values, _ = np.linalg.svd(vectors - vectors.mean(axis=0), full_matrices=False)
    np.testing.assert_allclose(np.abs(found["points"]), np.abs(left * values)[:, :2], atol=1e-3)
    np.testing.assert_allclose(found["kept"], (values**2 / (values**2).sum())[:2], atol=1e-6)


TRICKY = [
    "It's the dogs' bone, isn't it?", "He said: \"I cannot pay $3.50, Mr. Jones.\"", "'Tis gonna rain... 'twas so.", "",
    "“Quoted” text — with ‘dashes’ and «guillemets».", "a,b 1,000 x:y 12:30 (see [1]) {z} <t>", "don't DON'T we'll I'm",
    "d'ye more'n wanna go gimme lemme gotta", "e.g. the U.S. and Ph.D. end.", "''double'' ``ticks`` 'single' \"d\"",
    "naïve café's Ünïcode 東京 écannot", "end.) end.\" end.' end.”", "--a-- ** #tag @you 5% & more; yes!",
    "tab\tand  spaces ",
    "rock 'n' roll, the '90s, o'clock, y'all", "a 𝒳 b 𠮷野家 😀 c", "x.. y...z. w", "'s 'll '",
    "the cell, the Cell; CELL",
]  # fmt: skip


def test_the_tokens_and_ids_of_the_page_without_a_server_are_those_of_the_library(open_page):
    page = settled(open_page())
    script = """async (texts) => {
        const { characterIds, withOffsets } = await import("/js/text.js");
        const row = ({ text, start, stop }) => [text, start, stop, characterIds(text, 50)];
        return texts.map((text) => withOffsets(text, "treebank").map(row));
    }"""
    for text, found in zip(TRICKY, page.evaluate(script, TRICKY), strict=True):
        expected = [list(token) for token in TREEBANK.with_offsets(text)]
        assert [one[:3] for one in found] == expected
        ids = batch_to_ids([[token for token, *_ in expected]])[0].tolist()
        assert [one[3] for one in found] == ids


def test_points_tell_their_word_and_sentence(open_page):
    page = settled(open_page(view("context", text=TEXT, word="bank", advanced=1)))
    canvas = page.locator("#context .scatter canvas")
    told = canvas.evaluate(
        """canvas => {
            const chart = Chart.getChart(canvas);
            return chart.data.datasets[0].data.map(({ name, where }) => [name, where]);
        }"""
    )
    assert told[0] == ["bank 1", "The bank lent money."]
    assert len(told) == 3


# ---- what comes next -------------------------------------------------------------------------------------------------


def bits_shown(page, sentence):
    rows = page.locator("#next .strip").nth(sentence).locator("button").all_inner_texts()
    return np.array([[float(part) for part in re.findall(r"[→←] (\S+)", row)] for row in rows])


def bits(model, text):
    (scored,) = model.log_probs([text])
    return np.stack([scored.forward, scored.backward], axis=1) / -math.log(2)


def test_surprise_is_that_of_the_library_and_a_blank_is_filled(open_page, model):
    page = settled(open_page(view("next", text=TEXT, at="0,1")), "next")
    first, second, _ = TEXT.splitlines()
    np.testing.assert_allclose(bits_shown(page, 0), bits(model, first), atol=0.06)
    np.testing.assert_allclose(bits_shown(page, 1), bits(model, second), atol=0.06)
    expect(page.locator("#next .words li")).to_have_count(12)  # 15 words, three of them special
    expected = model.substitutes("The [bank] lent money .", k=12, keep_word=True)
    assert page.locator("#next .words .word").all_inner_texts() == [one.word for one in expected]
    assert page.locator("#next .words .own").all_inner_texts() == ["bank"]
    shown = page.locator("#next .words .number").first.inner_text()
    assert float(shown.rstrip("%")) == pytest.approx(100 * math.exp(expected[0].log_prob), abs=0.6)
    page.locator("#next .strip").nth(1).get_by_role("button", name="river").click()
    expect(page.locator("#next .blank h2")).to_contain_text("“river”")
    expected = model.substitutes("He sat by the bank of the [river] .", k=12, keep_word=True)
    expect(page.locator("#next .words .word").first).to_have_text(expected[0].word)


def test_unknown_words_are_marked_and_not_counted(open_page, model):
    text = "The unheard bank lent glorps.\nThe bank lent money.\nGlorps\nكتاب جميل"
    page = settled(open_page(view("next", text=text, at="0,1")), "next")
    marked = page.locator("#next .strip .unknown")
    assert marked.locator(".token").all_inner_texts() == ["unheard", "glorps", "Glorps", "كتاب", "جميل"]
    for button in marked.all():
        assert button.get_attribute("title") == "not in the vocabulary: not counted"
        assert button.get_attribute("aria-label").endswith(": not in the vocabulary: not counted")
    expect(page.locator("#next .unknown-key")).to_be_visible()
    names = page.locator("#next .bars canvas").evaluate("canvas => Chart.getChart(canvas).data.labels")
    assert names == ["The", "unheard (unknown)", "bank", "lent", "glorps (unknown)", "."]
    expect(page.locator("#next .own-note")).to_contain_text("“unheard” is not in the vocabulary")
    for number, line in enumerate(text.splitlines()):
        (scores,) = model.log_probs([line])
        shown = page.locator("#next .strips > li").nth(number).locator("p").inner_text()
        if scores.unknown.all():
            assert shown == "No word of this sentence is in the vocabulary: the model cannot score it."
            continue
        *figures, perplexity = map(float, re.findall(r"[\d.]*\d", shown)[: 2 if scores.unknown.any() else 3])
        expected = model.perplexity([line])
        means = [expected.known] if scores.unknown.any() else [expected.forward, expected.backward]
        assert figures == pytest.approx(list(map(math.log2, means)), abs=0.006)
        assert perplexity == pytest.approx(expected.known, abs=0.51)
        assert shown.endswith(
            "2 words are not in the vocabulary and not counted." if scores.unknown.any() else f"{perplexity:.0f}."
        )
    page.locator("#next textarea").fill("The bank")
    expect(page.locator("#next .strip")).to_have_count(1)
    expect(page.locator("#next .unknown-key")).to_be_hidden()


def test_a_word_put_into_the_blank_is_scored_anew(open_page, model):
    page = settled(open_page(view("next", text=TEXT, at="0,1")), "next")
    chosen = page.locator("#next .words button").nth(2)
    word = chosen.inner_text()
    chosen.click()
    changed = f"The {word} lent money ."
    expect(page.locator("#next textarea")).to_have_value(re.compile(rf"^{re.escape(changed)}\n"))
    expect(page.locator("#next .strip").first.locator("button").nth(1)).to_contain_text(word)
    np.testing.assert_allclose(bits_shown(page, 0), bits(model, changed), atol=0.06)
    page.locator("#next textarea").fill("a river")
    expect(page.locator("#next .strip")).to_have_count(1)
    np.testing.assert_allclose(bits_shown(page, 0), bits(model, "a river"), atol=0.06)


# ---- neighbours ------------------------------------------------------------------------------------------------------


def test_neighbours_are_those_of_the_index(open_page, model, index):
    page = settled(open_page(view("neighbours", text="He sat on the [bank] .", k=3)), "neighbours")

    def check(sentence):
        expected = index.neighbours(model, sentence, 3)
        assert page.locator("#neighbours .hits mark").all_inner_texts() == [hit.word for hit in expected]
        shown = [float(number) for number in page.locator("#neighbours .hits .number").all_inner_texts()]
        np.testing.assert_allclose(shown, [hit.cosine for hit in expected], atol=6e-4)

    check("He sat on the [bank] .")
    page.get_by_role("button", name="He", exact=True).click()
    expect(page.locator("#neighbours input[name=text]")).to_have_value("[He] sat on the bank .")
    expect(page.locator("#neighbours .chips [aria-pressed=true]")).to_have_text("He")
    settled(page, "neighbours")
    check("[He] sat on the bank .")
    page.locator("#neighbours input[name=text]").fill("no word is marked")
    expect(page.locator("#neighbours .message")).to_have_text("Choose a word of the sentence.")


# ---- tasks -----------------------------------------------------------------------------------------------------------


def type_into(page, task):
    """Choose a task, type into its fields; what comes into view after that is its answer."""
    page.locator("#tasks select").select_option(task)
    for name, text in TYPED[task].items():
        page.locator(f"#tasks textarea[name={name}]").fill(text)


def spans_of(answer):
    """What is to be marked in the text, row by row: (label, start, end)."""
    if "propositions" in answer:
        for proposition in answer["propositions"]:
            place = proposition["predicate"]
            roles = [(part["role"], part["start"], part["end"]) for part in proposition["arguments"]]
            yield from sorted([*roles, ("predicate", place, place + 1)], key=lambda span: span[1])
    elif "clusters" in answer:
        numbered = enumerate(answer["clusters"], 1)
        mentions = [(f"entity {number}", m["start"], m["end"]) for number, cluster in numbered for m in cluster]
        yield from sorted(mentions, key=lambda span: span[1])
    elif "pronouns" in answer:
        for found in answer["pronouns"]:
            yield (found["refers_to"] or {"text": "no name"})["text"], found["start"], found["end"]
    elif "spans" in answer:
        yield from ((span["label"], span["start"], span["end"]) for span in answer["spans"])
    else:
        yield from ((tag, place, place + 1) for place, tag in enumerate(answer["tags"]))


@pytest.mark.parametrize("task", ["ner", "pos", "roles", "coreference", "pronouns"])
def test_what_a_trained_task_sees_is_marked_in_the_text(open_page, tasks, task):
    page = settled(open_page("#tasks"), "tasks")
    type_into(page, task)
    text = TYPED[task]["text"]
    answers = tasks[task].predict([text] if task in ("coreference", "pronouns") else text.splitlines())
    expected = [
        " ".join(answer["tokens"][start:end]) + label for answer in answers for label, start, end in spans_of(answer)
    ]
    assert expected, "the task has learned something"
    marks = page.locator("#tasks mark")
    expect(marks).to_have_text(expected)
    assert marks.first.evaluate("m => getComputedStyle(m).backgroundColor") != "rgba(0, 0, 0, 0)"
    expect(page.locator("#tasks .answers > li")).to_have_count(len(answers))


def percentages(probabilities):
    return [f"{100 * share:.0f}%" for share in probabilities.values()]


def test_an_opinion_colours_its_sentence_and_gives_its_shares(open_page, tasks):
    page = settled(open_page("#tasks"), "tasks")
    type_into(page, "sentiment")
    lines = TYPED["sentiment"]["text"].splitlines()
    answers = tasks["sentiment"].predict(lines)
    expect(page.locator("#tasks .whole")).to_have_text(["Rome is far from Oslo.", "Oslo"])
    expect(page.locator("#tasks .whole")).to_have_class([f"text whole tone-{answer['label']}" for answer in answers])
    shown = page.locator("#tasks .shares .number").all_inner_texts()
    assert shown == [share for answer in answers for share in percentages(answer["probabilities"])]
    page.locator("#tasks textarea").fill(lines[1])
    expect(page.locator("#tasks .whole")).to_have_text(["Oslo"])


def test_a_pair_of_sentences_is_judged_in_two_fields(open_page, tasks):
    page = settled(open_page("#tasks"), "tasks")
    type_into(page, "entailment")
    (answer,) = tasks["entailment"].predict([TYPED["entailment"]])
    expect(page.locator("#tasks .whole")).to_have_text(list(TYPED["entailment"].values()))
    expect(page.locator("#tasks .shares .label")).to_have_text(list(answer["probabilities"]))
    assert page.locator("#tasks .shares .number").all_inner_texts() == percentages(answer["probabilities"])


def test_an_answer_is_marked_in_its_passage(open_page, tasks):
    page = settled(open_page("#tasks"), "tasks")
    type_into(page, "questions")
    (answer,) = tasks["questions"].predict([TYPED["questions"]])
    expect(page.locator("#tasks mark")).to_have_text([answer["answer"]])
    expect(page.locator("#tasks .answers .text")).to_have_text(TYPED["questions"]["context"])
    expect(page.locator("#tasks .answers .soft")).to_have_text(f"{100 * answer['probability']:.0f}% sure")
    other = {"context": "Oslo is the capital of Norway.", "question": "What is the capital of Norway?"}
    for name, text in other.items():
        page.locator(f"#tasks textarea[name={name}]").fill(text)
    (answer,) = tasks["questions"].predict([other])
    expect(page.locator("#tasks .answers .text")).to_have_text(other["context"])
    expect(page.locator("#tasks mark")).to_have_text([answer["answer"]])


def test_a_mention_inside_another_is_drawn_inside_it(open_page):
    page = settled(open_page(view("tasks", task="chains", text="the man of Rome slept")), "tasks")
    assert page.locator("#tasks mark").all_text_contents() == [
        "the man ofentity 2entity 1",
        "ofentity 2",
        "sleptentity 1",
    ]


def test_every_tag_has_a_colour_of_its_own(open_page):
    page = settled(open_page(view("tasks", task="tags", text="the man of Rome slept")), "tasks")
    colours = page.locator("#tasks mark").evaluate_all("marks => marks.map(m => getComputedStyle(m).backgroundColor)")
    assert len(set(colours)) == len(colours) == len(UNIVERSAL_TAGS)


def test_there_are_no_tabs_for_what_the_server_does_not_have(open_page, model):
    with serving(model) as bare:
        page = settled(open_page("#neighbours", base=bare.base_url))
        expect(page.get_by_role("tab")).to_have_text(["Word in context", "What comes next"])
        expect(page.locator("#context")).to_be_visible()
        expect(page.locator("footer")).to_contain_text("elmokit serve --index store")
        expect(page.locator("footer")).to_contain_text("elmokit serve --task")
    with serving(make_model(language_model=False)) as plain:
        page = settled(open_page("#next", base=plain.base_url))
        expect(page.get_by_role("tab")).to_have_text(["Word in context"])


# ---- the page --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("panel", "fields", "seen"),
    [
        ("context", {"text": TEXT, "word": "river", "weights": "1,-2,3", "advanced": "1"}, ".mixed table"),
        ("context", {"text": TEXT, "word": "bank", "gamma": "1.5", "measure": "dot", "view": "1"}, ".heat table"),
        ("next", {"text": "a river\nThe bank", "at": "1,1"}, ".blank[aria-busy=false] .words"),
        ("neighbours", {"text": "by the [river]", "k": "2"}, ".hits"),
        ("tasks", {"task": "ner", "text": "Ada Lovelace wrote"}, ".answers"),
    ],
)
def test_the_link_of_a_view_restores_it(open_page, panel, fields, seen):
    page = settled(open_page(view(panel, **fields)), panel)
    link = page.locator(f"#{panel} .link").get_attribute("href")
    other = settled(open_page(link), panel)
    for each in (page, other):
        each.wait_for_selector(f"#{panel} {seen}", state="attached")
    contents = [each.locator(f"#{panel} {seen}").first.text_content() for each in (page, other)]
    assert contents[0] == contents[1] != ""
    assert other.locator(f"#{panel} .link").get_attribute("href") == link


def test_what_is_changed_is_in_the_address_and_back_goes_back(open_page):
    page = settled(open_page(view("context", advanced=1)))
    page.locator("#weight-1").fill("4")
    page.wait_for_url(re.compile("weights=0%2C4%2C0"))
    page.get_by_role("tab", name="What comes next").click()
    settled(page, "next")
    page.go_back()
    expect(page.locator("#context")).to_be_visible()
    expect(page.locator("#weight-1")).to_have_value("4")


def test_the_keyboard_goes_through_the_tabs(open_page):
    page = settled(open_page())
    page.get_by_role("tab", name="Word in context").focus()
    for panel in (*PANELS[1:], PANELS[0]):
        page.keyboard.press("ArrowRight")
        expect(page.locator(f"#{panel}")).to_be_visible()
        expect(page.locator(f"#tab-{panel}")).to_be_focused()
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#tasks")).to_be_visible()


def test_colours_follow_the_system_until_they_are_chosen(open_page):
    page = settled(open_page(color_scheme="dark"))
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    dark = page.evaluate(ground)
    page.locator("#theme").click()
    assert page.evaluate(ground) != dark
    page.reload()
    assert page.evaluate(ground) != dark
    page.locator("#theme").click()
    assert page.evaluate(ground) == dark


def test_refusals_of_the_server_are_shown_in_words(open_page, model):
    settings = Settings(port=0, drain=0.0, max_sentence_tokens=8, max_request_tokens=100)
    with serving(model, settings) as small:
        page = open_page(view("context", text="a " * 9), base=small.base_url, errors_expected=True)
        message = page.locator("#context .message.error")
        words = "Sentence 1 has 9 words and punctuation marks, at most 8 are allowed: split it into sentences."
        expect(message).to_have_text(words)
        page.locator("#context textarea").fill("a bank\nthe bank")
        page.locator("#context input[name=word]").fill("bank")
        expect(message).to_have_count(0)
        expect(page.locator("#context .map .dot")).to_have_count(2)
        opacity = "document.querySelector('#context .stage').computedStyleMap().get('opacity').value"
        assert page.evaluate(opacity) == 1
        page.locator("#context textarea").fill(" ")
        expect(message).to_have_text("Enter a sentence.")
        assert page.evaluate(opacity) < 0.5  # what is drawn does not belong to what is entered
        page.locator("#context textarea").fill("a bank\nthe river bank")
        expect(message).to_have_count(0)
        assert page.evaluate(opacity) == 1
        small.stop()
        page.locator("#context textarea").fill("a river")
        expect(message).to_contain_text("The server does not answer")
        assert page.evaluate(opacity) < 0.5


def test_a_server_with_a_key_is_asked_with_it(open_page, model):
    with serving(model, Settings(api_key="open-sesame", port=0, drain=0.0)) as locked:
        page = open_page(base=locked.base_url, errors_expected=True)
        expect(page.locator("#facts")).to_contain_text("needs an API key")
        expect(page.get_by_role("tab")).to_have_count(0)
        expect(page.locator("main")).to_be_hidden()
        page.get_by_label("This server needs an API key").fill("wrong")
        page.keyboard.press("Enter")
        expect(page.locator("#facts")).to_contain_text("does not accept this key")
        page.get_by_label("This server needs an API key").fill("open-sesame")
        page.get_by_role("button", name="Use it").click()
        settled(page)
        expect(page.locator("#context .backdrop mark")).to_have_count(6)
        expect(page.get_by_role("tab")).to_have_text(["Word in context", "What comes next"])


@pytest.mark.parametrize(("scheme", "width"), [("light", 1440), ("dark", 800), ("light", 360), ("dark", 360)])
def test_every_panel_is_accessible_and_fits(open_page, scheme, width):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python")
    page = settled(open_page(color_scheme=scheme, viewport={"width": width, "height": 740}))
    for panel in PANELS:
        page.get_by_role("tab", name=page.locator(f"#tab-{panel}").inner_text()).click()
        settled(page, panel)
        found = axe.Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
        assert page.evaluate("document.documentElement.scrollWidth") <= width, panel
    page.get_by_role("tab", name="Word in context").click()
    show_tables(page)
    found = axe.Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("size", [(1440, 900), (390, 844)])
def test_the_finding_and_its_proof_are_on_the_first_screen(open_page, size):
    width, height = size
    page = settled(open_page(viewport={"width": width, "height": height}))
    for part in (".finding", ".map svg", "input[name=view]", ".stops"):
        box = page.locator(f"#context {part}").bounding_box()
        assert box["height"] > 0
        assert box["y"] + box["height"] <= height, part


@pytest.mark.parametrize("width", [1440, 360])
def test_a_word_of_400_letters_does_not_widen_the_page(open_page, width):
    long = "bank" * 100
    text = f"The {long} lent money.\n{long} by the river"
    for panel, fields in (
        ("context", {"text": text, "word": long, "advanced": 1}),
        ("next", {"text": text, "at": "0,1"}),
        ("neighbours", {"text": f"a [{long}] bank"}),
    ):
        page = settled(open_page(view(panel, **fields), viewport={"width": width, "height": 740}), panel)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, panel


# ---- Chinese ---------------------------------------------------------------------------------------------------------

CHINESE_TEXT = "我去银行取钱。\n银行在河边。\n他走。\n她说银行的钱，银行不好。"


@pytest.fixture(scope="module")
def chinese(tmp_path_factory):
    """A model that reads Chinese characters, and a server with it and an index."""
    words = [*"的我去银行取钱河边在她说不好他走", "，", "。"]
    elmo = make_model(words=words, tokenizer="han")
    store = WordIndex.create(tmp_path_factory.mktemp("chinese") / "store", elmo)
    store.add(elmo, [elmo.tokenizer(line) for line in CHINESE_TEXT.splitlines()])
    with serving(elmo, name="chinese", index=store) as client:
        yield elmo, client.base_url


def test_a_chinese_page_opens_with_a_chinese_example(open_page, chinese):
    page = settled(open_page(base=chinese[1]))
    expect(page.locator("#context .finding")).to_contain_text("“苹果”")
    assert page.locator("#context .map .dot").count() == 6
    expect(page.locator("#context .stop").first).to_contain_text("Characters")
    for chip in page.locator("#context .chip").all():
        word = chip.inner_text()
        chip.click()
        expect(page.locator("#context .finding")).to_contain_text(f"“{word}”")
        expect(page.locator("#context .backdrop mark")).to_have_text([word] * 6)


@pytest.mark.parametrize("word", ["银行", "钱"])
def test_a_chinese_word_is_compared_by_all_its_characters(open_page, chinese, word):
    elmo, base = chinese
    page = settled(open_page(view("context", text=CHINESE_TEXT, word=word, advanced=1), base=base))
    found = list(find_occurrences(word, [elmo.tokenizer(line) for line in CHINESE_TEXT.splitlines()], elmo.tokenizer))
    expect(page.locator("#context .backdrop mark")).to_have_text([word] * len(found))
    lists = [[*one.tokens[: one.start], word, *one.tokens[one.end :]] for one in found]
    for name, layers in (("Layer 1", 1), ("Slot: what the context expects", "slot")):
        embedded = elmo.embed(lists, layers=layers)
        vectors = np.stack([vectors[one.start] for one, vectors in zip(found, embedded, strict=True)])
        np.testing.assert_allclose(numbers(page, name), cosines(vectors), atol=2e-3)


def test_another_chinese_word_is_asked_for_when_it_is_typed(open_page, chinese):
    page = settled(open_page(view("context", text=CHINESE_TEXT, word="银行"), base=chinese[1]))
    for word, count in (("银", 4), ("行", 4), ("银行", 4), ("银河", 0), ("我去", 1)):
        page.locator("#context input[name=word]").fill(word)
        expect(page.locator("#context .backdrop mark")).to_have_text([word] * count)
    expect(page.locator("#context .finding")).to_have_text("“我去” occurs only once.")


def test_a_blank_of_several_chinese_characters(open_page, chinese):
    elmo, base = chinese
    page = settled(open_page(view("next", text="我去银行取钱。", at="0,2"), base=base), "next")
    buttons = page.locator("#next .strip button")
    chosen = page.locator("#next .strip button[aria-pressed=true] .token")
    expect(chosen).to_have_text(["银"])
    buttons.nth(3).click(modifiers=["Shift"])
    expect(chosen).to_have_text(["银", "行"])
    expect(page.locator("#next .blank h2")).to_have_text("Words in place of “银行”")
    expected = [one.word for one in elmo.substitutes("我去[银行]取钱。", k=12, keep_word=True)]
    expect(page.locator("#next .words .word")).to_have_text(expected)
    assert page.locator("#next a.link").get_attribute("href").endswith("at=0%2C2%2C2")
    first = next(word for word in expected if word != "银行")
    page.locator("#next .words button").first.click()
    expect(page.locator("#next textarea")).to_have_value(f"我去{first}取钱。")
    buttons.nth(0).click()
    expect(chosen).to_have_text([elmo.tokenizer("我")[0]])


def test_neighbours_of_a_chinese_word(open_page, chinese):
    page = settled(open_page(view("neighbours", text="他在[银行]取钱。", k=3), base=chinese[1]), "neighbours")
    expect(page.locator("#neighbours .chips [aria-pressed=true]")).to_have_text(["银", "行"])
    expect(page.locator("#neighbours .hits li")).to_have_count(3)
