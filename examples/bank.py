"""The story of the word "bank": one form, two senses, and how a biLM tells them apart.

    python examples/bank.py
    python examples/bank.py --model FOLDER

Input: a model, by default the embedded English one. Output: a page of 100 columns in four parts: how similar "bank" is
to itself in six sentences, its nearest words in context, the words that could replace it, and how much each word of a
sentence surprises the model. Without --model a fifth part tells of four Chinese words, by the embedded Chinese model.
Every number is computed when the page is printed. Needs no download, no GPU, and some seconds.
"""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np
import numpy.typing as npt
from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from elmokit import ELMo
from elmokit.text import marked_word

WIDTH = 100
NUM_BEST = 5
BLOCKS, ASCII_BLOCKS = "▁▂▃▄▅▆▇█", "_.-:=+*#"

# The first sentence of each sense is also the one whose neighbours and substitutes are shown.
MONEY = (
    "She opened an account at the [bank] to save some money.",
    "The [bank] raised its interest rates again last week.",
    "He still owes his local [bank] a large sum for the house.",
)
RIVER = (
    "They walked slowly along the [bank] of the quiet river.",
    "The [bank] was covered with reeds and yellow flowers.",
    "The canoe drifted toward the muddy [bank] near the old bridge.",
)
BOTH = "He sat on the bank of the river and counted his money."

# Where the neighbours are sought: a third of money, a third of land and water, a third of anything else; no "bank".
ELSEWHERE = (
    "A [lender] must check how much each borrower earns.",
    "The [insurer] paid for the repairs within a month.",
    "He deposited his wages at the [office] on Friday.",
    "She asked the [broker] to sell all of her shares.",
    "The [fund] invests in small companies abroad.",
    "They closed the [account] after moving to Spain.",
    "Our [company] borrowed heavily to build the new factory.",
    "The [treasury] printed more notes during the war.",
    "I paid the [cashier] in coins.",
    "The [shop] on the corner accepts credit cards.",
    "He works at the [branch] as a financial adviser.",
    "The [mortgage] will be paid off in ten years.",
    "Children played on the [shore] of the lake until dark.",
    "We followed the [path] beside the water to the mill.",
    "Cows were grazing on the [slope] below the forest.",
    "The boat was tied up at the [jetty] for the night.",
    "A heron stood at the [edge] of the pond.",
    "They pitched their tent on the [beach] behind the dunes.",
    "The [stream] rushed down over smooth stones.",
    "Tall grass grew all over the [marsh].",
    "She climbed the [hill] to see the valley.",
    "He swam across the [canal] with his dog.",
    "The road follows the [coast] for many miles.",
    "An otter slid from the [rocks] into the sea.",
    "The [doctor] told him to rest for a week.",
    "My grandmother baked a [cake] for the whole family.",
    "The [orchestra] played two encores last night.",
    "She read the [novel] in a single afternoon.",
    "Our [teacher] explained the problem once more.",
    "The [train] was late again because of the snow.",
    "He repaired the [bicycle] in the garage.",
    "The [judge] sent the jury home early.",
    "A [goalkeeper] needs quick hands and good eyes.",
    "They painted the [kitchen] a pale shade of yellow.",
    "The [theatre] was almost empty on Monday.",
    "She wore a [scarf] around her neck.",
    "The [minister] refused to answer any questions.",
    "We saw a [film] about the first flight to the moon.",
    "The [soldiers] marched through the gate at dawn.",
    "He sharpened the [knife] before dinner.",
)

# Chinese words, each in three sentences of one sense and three of another; the model reads them character by character.
CHINESE = {
    "苹果": (
        ("fruit", "她削了一个[苹果]给孩子吃。", "树上的[苹果]已经熟了。", "这种[苹果]又脆又甜。"),
        ("company", "[苹果]公布了新一代手机的价格。", "[苹果]的股价昨天大幅下跌。", "他在[苹果]担任软件工程师。"),
    ),
    "意思": (
        ("meaning", "这个词的[意思]很难解释。", "请说明这句话的[意思]。", "他不明白那个符号的[意思]。"),
        ("fun", "这部电影很有[意思]。", "和他聊天真有[意思]。", "我觉得这本小说没有[意思]。"),
    ),
    "打": (
        ("hit", "父亲生气时[打]了儿子。", "他被人[打]伤了头部。", "两个人在街上[打]了一架。"),
        ("phone", "她每天晚上给母亲[打]电话。", "请你明天[打]电话给我。", "他[打]电话通知了医院。"),
    ),
    "包袱": (
        ("bundle", "老人背着[包袱]走在山路上。", "她打开[包袱]，取出几件衣服。", "他把干粮包进[包袱]里带走。"),
        ("burden", "历史的[包袱]使改革难以进行。", "他放下了思想[包袱]，轻松上场。", "债务成了这家企业沉重的[包袱]。"),
    ),
}


# ---- compute ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ViewSimilarity:
    """Mean cosine of "bank" with "bank" in one view, over all pairs of different sentences."""

    view: int | str
    """The number of a layer, "slot" or "sense"."""
    money_money: float
    river_river: float
    money_river: float
    num_nearest_same: int | None
    """Of the six, how many have a "bank" of their own sense nearest; None where all six are alike."""

    @property
    def gap(self) -> float:
        """How much more alike one sense is than two."""
        return (self.money_money + self.river_river) / 2 - self.money_river


@dataclass(frozen=True)
class Neighbour:
    """A word in its sentence, in brackets, and its cosine with "bank" in another."""

    cosine: float
    sentence: str


@dataclass(frozen=True)
class Filler:
    """A word that could stand in the place of "bank"."""

    probability: float
    word: str


@dataclass(frozen=True)
class Surprise:
    """Bits that each token costs a reader who comes from the left, and one who comes from the right."""

    tokens: list[str]
    forward: list[float]
    backward: list[float]
    unknown: list[str]
    """Tokens outside the vocabulary, which are scored as the one unknown word."""


@dataclass(frozen=True)
class Story:
    """All that is printed; each pair is money, river."""

    num_parameters: int
    similarities: list[ViewSimilarity]
    neighbours: tuple[list[Neighbour], list[Neighbour]]
    fillers: tuple[list[Filler], list[Filler]] | None
    """None, as `surprise`, if the model is not a language model."""
    surprise: Surprise | None


def tell(model: ELMo) -> Story:
    speaks = model.output_layer is not None and model.vocabulary is not None
    return Story(
        num_parameters=sum(parameter.numel() for parameter in model.bilm.parameters()),
        similarities=compare_senses(model),
        neighbours=(find_neighbours(model, MONEY[0]), find_neighbours(model, RIVER[0])),
        fillers=(fill(model, MONEY[0]), fill(model, RIVER[0])) if speaks else None,
        surprise=measure_surprise(model, BOTH) if speaks else None,
    )


def compare_senses(model: ELMo) -> list[ViewSimilarity]:
    num_money, num_all = len(MONEY), len(MONEY + RIVER)
    money, river = range(num_money), range(num_money, num_all)
    rows = []
    for view in (*range(model.num_layers), "slot", "sense"):
        vectors = marked_vectors(model, MONEY + RIVER, view)
        cosines = vectors @ vectors.T
        others = np.where(np.eye(num_all, dtype=bool), -np.inf, cosines)
        same = [(nearest < num_money) == (place < num_money) for place, nearest in enumerate(others.argmax(axis=1))]
        rows.append(
            ViewSimilarity(
                view=view,
                money_money=float(np.mean([cosines[pair] for pair in combinations(money, 2)])),
                river_river=float(np.mean([cosines[pair] for pair in combinations(river, 2)])),
                money_river=float(np.mean([cosines[pair] for pair in product(money, river)])),
                num_nearest_same=None if np.ptp(cosines) < 1e-5 else sum(same),
            )
        )
    return rows


@dataclass(frozen=True)
class ChineseWord:
    """A Chinese word by the view "sense": mean cosines with itself, and what could stand in its place."""

    word: str
    same: float
    """Of two sentences of one sense."""
    other: float
    """Of two sentences of different senses."""
    num_nearest_same: int
    """Of the sentences, how many have one of their own sense nearest."""
    fillers: tuple[list[Filler], list[Filler]]
    """In the first sentence of each sense."""


def tell_chinese(model: ELMo) -> list[ChineseWord]:
    told = []
    for word, senses in CHINESE.items():
        sentences = [sentence for _, *own in senses for sentence in own]
        sense = np.array([number for number, (_, *own) in enumerate(senses) for _ in own])
        vectors = marked_vectors(model, sentences, "sense")
        cosines = vectors @ vectors.T
        is_same = (sense[:, None] == sense) & ~np.eye(len(sense), dtype=bool)
        nearest = np.where(np.eye(len(sense), dtype=bool), -np.inf, cosines).argmax(axis=1)
        fillers = [fill(model, own[0]) for _, *own in senses]
        told.append(
            ChineseWord(
                word=word,
                same=float(cosines[is_same].mean()),
                other=float(cosines[sense[:, None] != sense].mean()),
                num_nearest_same=int((sense[nearest] == sense).sum()),
                fillers=(fillers[0], fillers[1]),
            )
        )
    return told


def find_neighbours(model: ELMo, sentence: str) -> list[Neighbour]:
    query, *candidates = marked_vectors(model, (sentence, *ELSEWHERE), "sense")
    cosines = np.stack(candidates) @ query
    return [Neighbour(float(cosines[best]), ELSEWHERE[best]) for best in np.argsort(-cosines)[:NUM_BEST]]


def fill(model: ELMo, sentence: str) -> list[Filler]:
    return [Filler(math.exp(found.log_prob), found.word) for found in model.substitutes(sentence, k=NUM_BEST)]


def measure_surprise(model: ELMo, sentence: str) -> Surprise:
    assert model.vocabulary is not None
    (scores,) = model.log_probs([sentence])
    forward, backward = ((-side / math.log(2)).tolist() for side in (scores.forward, scores.backward))
    unknown = [token for token in scores.tokens if model.vocabulary.id(token) == model.vocabulary.unk_id]
    return Surprise(scores.tokens, forward, backward, unknown)


def marked_vectors(model: ELMo, sentences: Sequence[str], view: int | str) -> npt.NDArray[np.float64]:
    """The vectors of length one of each sentence's word in brackets: (B, 2P)."""
    words = [marked_word(sentence, model.tokenizer) for sentence in sentences]
    embedded = model.embed([word.tokens for word in words], layers=view)
    vectors = np.stack([rows[word.position] for rows, word in zip(embedded, words, strict=True)]).astype(np.float64)
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


# ---- print -----------------------------------------------------------------------------------------------------------


def show(story: Story, console: Console) -> None:
    num_layers = sum(isinstance(row.view, int) for row in story.similarities) - 1
    layers = f"{num_layers} {'layer' if num_layers == 1 else 'layers'}"
    console.print(f'\nA biLM of {story.num_parameters:,} parameters, {layers} deep, reads the word "bank".\n')
    show_similarities(story.similarities, console)
    show_neighbours(story, console)
    if story.fillers is None or story.surprise is None:
        say(console, "This model has vectors and no softmax: the words it expects and their surprise are left out.")
        return
    show_fillers(story.fillers, console)
    show_surprise(story.surprise, console)


def show_similarities(rows: list[ViewSimilarity], console: Console) -> None:
    console.rule('1  Is "bank" the same word twice?', align="left")
    for sense, sentences in (("money", MONEY), ("river", RIVER)):
        for sentence in sentences:
            console.print(Text.assemble("  ", (sense, "dim"), "  ", marked(sentence)))
    table = new_table("", "money-money", "river-river", "money-river", 'nearest "bank" is of the same sense')
    for row in rows:
        cosines = [f"{value:.2f}" for value in (row.money_money, row.river_river, row.money_river)]
        same = "all alike" if row.num_nearest_same is None else f"{row.num_nearest_same} of {len(MONEY + RIVER)}"
        table.add_row(f"layer {row.view}" if isinstance(row.view, int) else row.view, *cosines, same)
    console.print(table)
    first, *_, top, _, sense = rows
    say(
        console,
        "Mean cosine of the word with itself in another sentence.  Layer 0 sees the word alone, the same letters six "
        f"times: {first.money_river:.2f}.  The layers above it predict the words beside it.  The slot is what the "
        "words on both sides expect in its place; the sense is the slot and the words around it.",
    )
    within = sense.money_river + sense.gap
    verdict = (
        f"By its sense, {within:.2f} within a sense and {sense.money_river:.2f} between the two, "
        f"{sense.num_nearest_same} of {len(MONEY + RIVER)} find their own sense; by layer {top.view}, "
        f"{top.num_nearest_same}."
        if sense.gap > 0
        else f"This model does not tell them apart: the mean is {within:.2f} within a sense and "
        f"{sense.money_river:.2f} between the two."
    )
    say(console, verdict)


def show_neighbours(story: Story, console: Console) -> None:
    console.rule("2  What does it stand next to?", align="left")
    for sentence, neighbours in zip((MONEY[0], RIVER[0]), story.neighbours, strict=True):
        console.print(Text.assemble("  ", marked(sentence)))
        table = new_table("cosine", "nearest")
        table.columns[1].justify = "left"
        for neighbour in neighbours:
            table.add_row(f"{neighbour.cosine:.2f}", marked(neighbour.sentence))
        console.print(table)
    money, river = ({neighbour.sentence for neighbour in found} for found in story.neighbours)
    say(
        console,
        f'The nearest of {len(ELSEWHERE)} words in other sentences, none of them "bank", by the view '
        f'"sense".  {in_common(len(money & river))}; by spelling alone they would be the same.',
    )


def show_fillers(fillers: tuple[list[Filler], list[Filler]], console: Console) -> None:
    console.rule("3  Which words could stand in its place?", align="left")
    table = Table.grid(padding=(0, 2))
    for sentence, found in zip((MONEY[0], RIVER[0]), fillers, strict=True):
        words = "   ".join(f"{filler.word} {percent(filler.probability)}" for filler in found)
        table.add_row("", marked(sentence.replace("[bank]", "[____]")))
        table.add_row("", Text(words))
        table.add_row()
    console.print(table)
    money, river = ({filler.word for filler in found} for found in fillers)
    say(
        console,
        'Guessed from the words on the left and on the right, with the place itself covered; "bank" is left out.  '
        f"{in_common(len(money & river))}.",
    )


def show_surprise(surprise: Surprise, console: Console) -> None:
    console.rule("4  How surprising is each word?", align="left")
    blocks = BLOCKS if console.encoding.startswith("utf") else ASCII_BLOCKS
    highest = max(surprise.forward + surprise.backward)
    table = Table.grid(padding=(0, 1))
    table.add_row("", *(Text(token) for token in surprise.tokens))
    for name, bits in (("forward", surprise.forward), ("backward", surprise.backward)):
        heights = [blocks[min(int(value / highest * len(blocks)), len(blocks) - 1)] for value in bits]
        widths = [max(len(token), 4) for token in surprise.tokens]
        table.add_row(Text(name, "dim"), *(Text(block * width) for block, width in zip(heights, widths, strict=True)))
        table.add_row(Text("bits", "dim"), *(Text(f"{value:.1f}") for value in bits))
    console.print(Padding(table, (1, 2), expand=False))
    place = surprise.tokens.index("bank")
    forward, backward = surprise.forward[place], surprise.backward[place]
    told = "the words before it say" if forward < backward else "the words after it say"
    verdict = "both sides say as much" if f"{forward:.1f}" == f"{backward:.1f}" else f"{told} more"
    most = surprise.tokens[int(np.argmax(surprise.forward))]
    say(
        console,
        f'Bits: how many coin tosses a word is worth.  "bank" costs {forward:.1f} given the words before it and '
        f"{backward:.1f} given the words after it, so {verdict} about it.  Read from the left, the greatest "
        f'surprise is "{most}".',
    )
    if surprise.unknown:
        say(console, f"Not in this model's vocabulary, and scored as an unknown word: {' '.join(surprise.unknown)}")


def show_chinese(words: list[ChineseWord], console: Console) -> None:
    console.rule("5  And in Chinese?", align="left")
    if not console.encoding.startswith("utf"):
        say(console, "This terminal has no Chinese characters: the part about four Chinese words is left out.")
        return
    table = new_table("", "same sense", "other sense", "nearest is of the same sense")
    for told in words:
        count = sum(len(own) - 1 for own in CHINESE[told.word])
        table.add_row(told.word, f"{told.same:.2f}", f"{told.other:.2f}", f"{told.num_nearest_same} of {count}")
    console.print(table)
    lines = Table.grid(padding=(0, 2))
    for told in words:
        for (sense, first, *_), found in zip(CHINESE[told.word], told.fillers, strict=True):
            lines.add_row("", Text(sense, "dim"), marked(first), Text("  ".join(filler.word for filler in found)))
    console.print(lines)
    right = sum(told.num_nearest_same for told in words)
    count = sum(len(own) - 1 for senses in CHINESE.values() for own in senses)
    say(
        console,
        "\nMean cosine of each word with itself in another sentence, by its sense, and the words that could stand in "
        "its place.  The text is read character by character, without a segmenter; a blank of two characters is filled "
        f"by two.  {right} of {count} sentences find their own sense.",
    )


def new_table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 2))
    for column in columns:
        table.add_column(column, justify="right")
    return table


def marked(sentence: str) -> Text:
    """The sentence with its word in brackets, in bold where the terminal has it."""
    text = Text(sentence)
    text.highlight_regex(r"\[.*?\]", "bold cyan")
    return text


def percent(probability: float) -> str:
    return "<0.1%" if probability < 0.0005 else f"{probability:.1%}"


def in_common(count: int) -> str:
    return f"The two lists have {count or 'no'} {'word' if count == 1 else 'words'} of {NUM_BEST} in common"


def say(console: Console, words: str) -> None:
    console.print(Padding(Text(words), (0, 2, 1, 2), expand=False))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description='The story of the word "bank".')
    parser.add_argument("--model", help="a folder or a name; by default the embedded English model")
    options = parser.parse_args(arguments)
    console = Console(width=WIDTH, highlight=False)
    show(tell(ELMo.from_pretrained(options.model)), console)
    if options.model is None:
        show_chinese(tell_chinese(ELMo.from_pretrained("zh")), console)


if __name__ == "__main__":
    main()
