"""The pictures of docs/explorer.md and docs/chinese.md: the page of `elmokit serve` in Chromium, panel by panel.

    python examples/screenshots.py                  # into docs/img
    python examples/screenshots.py OTHER_FOLDER

Input: the embedded models, and the sentences below: those that are typed, those of the index, and those that two small
tasks are trained on. Output: explorer-*.png: the four panels, the first one also in dark colours, the scatter plot, and
the four panels on a narrow, dark screen; two panels with the Chinese model. Needs
`pip install "elmokit[serve,index,tasks,browser,plot]"` (Pillow comes with matplotlib), Chromium on the PATH or in
ELMOKIT_CHROMIUM, Chinese fonts (Debian: fonts-noto-cjk), and some seconds.
"""

import io
import re
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode

from chromium import FLAGS, MISSING, find_chromium
from fastapi import FastAPI
from PIL import Image
from playwright.sync_api import Browser, Locator, Page, sync_playwright

from elmokit import ELMo, tokenize
from elmokit.index import WordIndex
from elmokit.serve.app import create_app
from elmokit.serve.server import make_server
from elmokit.serve.settings import Settings
from elmokit.tasks import TaskConfig, TrainedTask, load_task, train

WIDTH, FIRST_SCREEN, PHONE_WIDTH, PHONE_HEIGHT, GAP = 1000, (1440, 780), 360, 1100, 12
GAP_COLOR = "#4b4f5a"
SETTINGS = Settings(drain=0.0)

# ---- what is typed; the other fields keep what the page shows first --------------------------------------------------

SURPRISING = """\
He sat on the bank of the river and watched the water.
The bank of England raised its interest umbrellas.
We crossed the Ystwyth in a boat."""
NAMES = """\
Maria Schmidt left her house in Berlin and went to London with her father.
Mr. Darcy met Elizabeth at the gate of the park."""
HOVERED = "guard"  # in the scatter plot, with room for its sentence

# ---- what the index holds --------------------------------------------------------------------------------------------

CORPUS = """\
The village lies on the east bank of the Rhine.
Willows lean over the far bank of the stream, and children swim there in summer.
They pulled the boat up on the muddy bank and slept until the sun rose.
A heron stood on the opposite bank, waiting for a fish.
From the mill the road follows the left bank of the river as far as the old bridge.
We ate our bread on the grassy bank above the water.
After the flood the whole south bank of the river was covered with sand.
The soldiers crossed at night and camped on the north bank of the Danube.
The children ran along the shore of the lake until it was dark.
An old man sat on the edge of the pier with his rod.
There are houses on both sides of the river.
The river rises in the hills and flows slowly through the plain.
Fog hung over the water until noon.
He sat down on a bench in the garden and read his letters.
The bank lowered its interest rates in March.
She asked the bank for a loan of ten thousand pounds.
He opened an account with a bank in Geneva.
Two men robbed the bank in broad daylight.
The central bank bought government bonds.
The bank at the corner of the square closes at four.
The company moved its money to another bank.
The boat was sold to pay what he owed to the bank.""".splitlines()

# ---- what the tasks are trained on: nothing that is typed is among it ------------------------------------------------

TAGGED = """\
Anna/PROPN Weber/PROPN drove/VERB from/ADP Paris/PROPN to/ADP Vienna/PROPN ./PUNCT
He/PRON came/VERB to/PART see/VERB the/DET president/NOUN of/ADP the/DET European/PROPN Union/PROPN ./PUNCT
She/PRON wants/VERB to/PART meet/VERB the/DET owners/NOUN of/ADP the/DET Grand/PROPN Hotel/PROPN ./PUNCT
Peter/PROPN Hill/PROPN walked/VERB from/ADP Oxford/PROPN to/ADP London/PROPN to/PART see/VERB his/PRON aunt/NOUN ./PUNCT
The/DET ministers/NOUN flew/VERB to/ADP Madrid/PROPN to/PART sign/VERB the/DET treaty/NOUN ./PUNCT
They/PRON sailed/VERB from/ADP Genoa/PROPN to/ADP Athens/PROPN in/ADP May/PROPN ./PUNCT
The/DET members/NOUN of/ADP the/DET National/PROPN Bank/PROPN met/VERB in/ADP Geneva/PROPN ./PUNCT
A/DET quiet/ADJ ,/PUNCT clever/ADJ and/CCONJ deeply/ADV moving/ADJ story/NOUN ./PUNCT
A/DET dull/ADJ ,/PUNCT long/ADJ and/CCONJ utterly/ADV silly/ADJ book/NOUN ./PUNCT
The/DET acting/NOUN is/AUX good/ADJ but/CCONJ the/DET music/NOUN is/AUX loud/ADJ ./PUNCT
The/DET story/NOUN is/AUX simple/ADJ and/CCONJ the/DET pictures/NOUN are/AUX beautiful/ADJ ./PUNCT
The/DET rooms/NOUN are/AUX small/ADJ and/CCONJ the/DET beds/NOUN are/AUX hard/ADJ ./PUNCT
The/DET soup/NOUN was/AUX cold/ADJ and/CCONJ the/DET waiters/NOUN were/AUX slow/ADJ ./PUNCT
It/PRON is/AUX a/DET charming/ADJ and/CCONJ truly/ADV original/ADJ comedy/NOUN ./PUNCT
I/PRON liked/VERB the/DET strange/ADJ ,/PUNCT sad/ADJ and/CCONJ wonderful/ADJ ending/NOUN ./PUNCT
The/DET children/NOUN are/AUX hungry/ADJ and/CCONJ the/DET horses/NOUN are/AUX thirsty/ADJ ./PUNCT
Thomas/PROPN Keller/PROPN moved/VERB from/ADP Hamburg/PROPN to/ADP New/PROPN York/PROPN ./PUNCT
We/PRON went/VERB home/ADV early/ADV because/SCONJ the/DET roads/NOUN were/AUX wet/ADJ ./PUNCT
Maria/PROPN Rossi/PROPN gave/VERB her/PRON brother/NOUN a/DET very/ADV old/ADJ map/NOUN of/ADP Rome/PROPN ./PUNCT
Nobody/PRON wanted/VERB to/PART read/VERB the/DET letter/NOUN of/ADP the/DET director/NOUN ./PUNCT
""".splitlines()
NAMED = """\
[PER Anna Weber] left [PER her sister] in [FAC the house] and went to [GPE Paris] .
[PER Peter Brown] came from [GPE Vienna] with [PER his mother] .
[PER Mr. Brown] met [PER Jane] at [FAC the door] of [FAC the church] .
[PER Mrs. Bennet] saw [PER Charles] at [FAC the window] of [FAC the library] .
[PER Elizabeth] walked to [FAC the garden] with [PER her father] and [PER her aunt] .
[PER Thomas] sold [FAC his house] in [GPE Hamburg] and moved to [GPE New York] .
[PER Mr. Bingley] waited in [FAC the hall] until [PER Maria] came .
[PER The old man] sat in [FAC the park] and read a letter from [GPE Rome] .
[PER Miss Darcy] opened [FAC the gate] and went into [FAC the yard] .
[PER Lucy Keller] lived in [FAC a small house] in [GPE Geneva] with [PER her brother] .
It rained in [GPE London] , and nobody left [FAC the inn] .
[PER Mr. Knightley] met [PER Emma] in [FAC the street] and told her the news .
They went to [GPE Berlin] in the spring and to [GPE Madrid] in the autumn .
[PER Henry Schmidt] found the key at [FAC the gate] of [FAC the castle] .
Nothing was said of the matter until the end of the week .
[PER His father] left [GPE England] and never wrote again .
""".splitlines()


def train_task(name: str, examples: list[str], folder: Path) -> TrainedTask:
    """A tagger that has learned from these examples, one per string in the notation of its file."""
    file = folder / f"{name}.txt"
    file.write_text("\n".join(examples), encoding="utf-8")
    result = train(
        TaskConfig(
            task=name, train=str(file), dev=str(file), out=str(folder / name), cache=str(folder / "cache"),
            word_dim=0, hidden_dim=64, learning_rate=0.005, batch_size=4, epochs=12, device="cpu",
        )
    )  # fmt: skip
    return load_task(result.folder, device="cpu")


def to_conllu(line: str) -> str:
    pairs = (part.rsplit("/", 1) for part in line.split())
    return "".join(f"{number}\t{word}\t_\t{tag}\t_\t_\t_\t_\t_\t_\n" for number, (word, tag) in enumerate(pairs, 1))


def to_conll(line: str) -> str:
    rows = []
    for label, name, word in re.findall(r"\[([A-Z]+) (.*?)\]|(\S+)", line):
        tagged = [(part, f"{'I' if place else 'B'}-{label}") for place, part in enumerate(name.split())]
        rows += [f"{part}\t{tag}\n" for part, tag in tagged or [(word, "O")]]
    return "".join(rows)


def english_app(folder: Path) -> FastAPI:
    """A server with all four panels."""
    model = ELMo.from_pretrained()
    index = WordIndex.create(folder / "store", model, skip_punctuation=True)
    index.add(model, [tokenize(sentence) for sentence in CORPUS])
    tasks = {
        "pos": train_task("pos", [to_conllu(line) for line in TAGGED], folder),
        "ner": train_task("ner", [to_conll(line) for line in NAMED], folder),
    }
    return create_app(model, SETTINGS, name="elmokit-en", tasks=tasks, index=index)


@contextmanager
def serving(app: FastAPI) -> Iterator[str]:
    """The address of a server."""
    server = make_server(app, SETTINGS)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


# ---- the browser -----------------------------------------------------------------------------------------------------


PLACE_OF_WORD = """(canvas, word) => {
    const chart = Chart.getChart(canvas);
    const points = chart.data.datasets.flatMap(({ data }, number) =>
        data.map(({ name }, place) => ({ name, ...chart.getDatasetMeta(number).data[place].getCenterPoint() })));
    const { x, y } = points.find(({ name }) => name === word);
    return { x, y };
}"""


def open_panel(page: Page, base: str, panel: str, **fields: str) -> Locator:
    """Open a panel by its link, and wait until it has drawn what was asked for."""
    page.goto("about:blank")  # a link to the same page would not load it
    page.goto(f"{base}/#{panel}?{urlencode(fields)}")
    section = page.locator(f"#{panel}[aria-busy=false]")
    section.wait_for()
    message = section.locator(".message.error")
    if message.count():
        raise RuntimeError(f"{panel}: {message.first.inner_text()}")
    section.locator(".map .dot" if panel == "context" else ".results").first.wait_for()
    if panel == "next":
        section.locator(".blank[aria-busy=false] .words li").last.wait_for()
    return section


def take_first_screens(browser: Browser, base: str) -> dict[str, bytes]:
    """The first screen of a laptop, in light and dark colours: the finding and its proof."""
    pictures = {}
    width, height = FIRST_SCREEN
    for scheme, name in (("light", "context"), ("dark", "context-dark")):
        page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
        open_panel(page, base, "context")
        pictures[name] = page.screenshot()
        page.close()
    return pictures


def take_panels(browser: Browser, base: str) -> dict[str, bytes]:
    """The scatter plot with the sentence of one point, and the other panels."""
    page = browser.new_page(viewport={"width": WIDTH, "height": 700}, color_scheme="light")
    context = open_panel(page, base, "context", advanced="1")
    canvas = context.locator(".scatter canvas")
    canvas.hover(position=canvas.evaluate(PLACE_OF_WORD, HOVERED))
    page.wait_for_function("canvas => Chart.getChart(canvas).tooltip.opacity === 1", arg=canvas.element_handle())
    pictures = {"scatter": context.locator(".scatter").screenshot()}

    open_panel(page, base, "next", text=SURPRISING)
    pictures["next"] = page.screenshot(full_page=True)
    open_panel(page, base, "neighbours", k="7")
    pictures["neighbours"] = page.screenshot(full_page=True)
    open_panel(page, base, "tasks", task="pos")
    pictures["tasks"] = page.screenshot(full_page=True)
    page.close()
    return pictures


def take_chinese(browser: Browser, base: str) -> dict[str, bytes]:
    """The first screen with the Chinese model, and the words that fit in a blank of two characters."""
    width, height = FIRST_SCREEN
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme="light")
    open_panel(page, base, "context")
    pictures = {"chinese": page.screenshot()}
    page.set_viewport_size({"width": WIDTH, "height": 700})
    open_panel(page, base, "next")
    pictures["chinese-next"] = page.screenshot(full_page=True)
    page.close()
    return pictures


def take_phone(browser: Browser, base: str) -> Image.Image:
    """The four panels on a narrow screen with dark colours, side by side."""
    page = browser.new_page(viewport={"width": PHONE_WIDTH, "height": PHONE_HEIGHT}, color_scheme="dark")
    fields = {"context": {}, "next": {}, "neighbours": {"k": "4"}, "tasks": {"task": "ner", "text": NAMES}}
    whole = Image.new("RGB", (len(fields) * (PHONE_WIDTH + GAP) - GAP, PHONE_HEIGHT), GAP_COLOR)
    for number, (panel, values) in enumerate(fields.items()):
        open_panel(page, base, panel, **values)
        whole.paste(Image.open(io.BytesIO(page.screenshot())), (number * (PHONE_WIDTH + GAP), 0))
    page.close()
    return whole


def save(picture: Image.Image, target: Path) -> None:
    """Save with 256 colours: the pages have few, and the file is a third as large."""
    picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(target, optimize=True)
    print(target)


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/img")
    folder.mkdir(parents=True, exist_ok=True)
    chromium = find_chromium() or sys.exit(MISSING)
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=FLAGS)
        with serving(create_app(ELMo.from_pretrained("zh"), SETTINGS, name="elmokit-zh")) as base:
            pictures = take_chinese(browser, base)
        with serving(english_app(Path(temporary))) as base:
            pictures |= {**take_first_screens(browser, base), **take_panels(browser, base)}
            save(take_phone(browser, base), folder / "explorer-phone.png")
        for name, picture in pictures.items():
            save(Image.open(io.BytesIO(picture)), folder / f"explorer-{name}.png")
        browser.close()


if __name__ == "__main__":
    main()
